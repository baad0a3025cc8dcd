"""The `fastq` command: topics, records, configs, offsets and files from a terminal.

Rules: one module a command, each with `register(commands)` and a `run(options)` that returns the exit code; what a
person reads goes through `output`, with `--json` as JSON, one document or one object a line; progress, warnings and errors go
to standard error, each in one line that begins with `fastq: `. Bytes that are no text are shown as base64, and marked as such.
Clients come from `clients`, which waits for a broker first. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no broker could be reached,
130 interrupted, 141 the reader of the output went away, 143 terminated. A termination ends a command as an interrupt does: what it holds is
given back first, its place in a group too.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

INTERRUPTED, TERMINATED = 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see above."""
    terminations: list[int] = []
    try:  # an interrupt may come while the commands are imported
        with _terminations_as_interrupts(terminations):
            from fastq.cli.entry import run

            return run(arguments)
    except KeyboardInterrupt:
        if terminations:
            return TERMINATED
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's next prompt begins a line of its own, not one behind ^C
        return INTERRUPTED


@contextmanager
def _terminations_as_interrupts(seen: list[int]) -> Iterator[None]:
    """SIGTERM goes the way of SIGINT, which clients hold back where it would tear something; it is noted in `seen`."""

    def terminate(number: int, _frame: Any) -> None:
        seen.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As a shell has it for what a script runs in the background.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread: somebody's program calls a command
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = ["main"]
