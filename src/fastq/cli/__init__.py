"""The `fastq` command: topics, records, configs, offsets and files from a terminal.

Rules: one module a command, each with `register(commands)` and a `run(options)` that returns the exit code; what a
person reads goes through `output`, with `--json` as JSON, one document or one object a line; progress and errors go
to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from fastq.cli.main import main

__all__ = ["main"]
