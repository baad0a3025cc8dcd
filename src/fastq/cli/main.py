"""Entry point of `fastq`: the parser over all commands, and the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import fastq
from fastq.cli import (
    configs,
    consume,
    dump_log,
    groups,
    log_dirs,
    offsets,
    perf,
    produce,
    producers,
    topics,
    transactions,
)
from fastq.errors import FastqError

EXAMPLES = """examples:
  fastq topics create logs --partitions 6
  echo hello | fastq produce logs
  fastq consume logs --from-beginning --exit-at-end
  fastq perf produce logs --records 1000000
"""

COMMANDS = (
    topics, produce, consume, groups, transactions, producers, configs, offsets, log_dirs, dump_log, perf
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastq",
        description="Command-line tools for any Kafka-protocol broker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastq {fastq.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except (FastqError, OSError, ValueError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output went away: nothing is left to tell it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"fastq: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code
