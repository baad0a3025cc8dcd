"""The `fastq` command: topics, records, configs, offsets and files from a terminal.

Rules: one module a command, each with `register(commands)` and a `run(options)` that returns the exit code; what a
person reads goes through `output`, with `--json` as JSON, one document or one object a line; progress, warnings and errors go
to standard error, each in one line that begins with `fastq: `. Bytes that are no text are shown as base64, and marked as such.
Clients come from `clients`, which waits for a broker first. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no broker could be reached,
130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see above."""
    try:  # an interrupt may come while the commands are imported
        from fastq.cli.entry import run

        return run(arguments)
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's next prompt begins a line of its own, not one behind ^C
        return INTERRUPTED


__all__ = ["main"]
