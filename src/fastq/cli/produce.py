"""`fastq produce`: lines of standard input or a file become records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from fastq.cli.output import Progress, Subparsers, add_client_options, client_settings, key_values

CHUNK_RECORDS = 5_000


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "produce",
        "Send each line of standard input (or of a file) as a record.",
        "fastq produce logs --file /var/log/syslog --compression zstd",
    )
    parser.add_argument("topic")
    add_client_options(parser)
    parser.add_argument("--file", type=Path, help="read lines from this file instead of standard input")
    parser.add_argument("--key", help="the same key for every record")
    parser.add_argument("--key-separator", metavar="TEXT", help="split each line at the first TEXT into key and value")
    parser.add_argument("--header", metavar="KEY=VALUE", action="append", default=[], help="a header of every record")
    parser.add_argument("--partition", type=int, help="send to this partition instead of choosing one")
    parser.add_argument("--null-marker", metavar="TEXT", help="a value equal to TEXT is sent as null (a tombstone)")
    parser.add_argument("--compression", default="none", choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--acks", default="all", choices=["0", "1", "all"])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastq import Producer

    headers = [(key, value.encode()) for key, value in key_values(options.header, "--header").items()] or None
    separator = options.key_separator.encode() if options.key_separator else None
    fixed_key = options.key.encode() if options.key is not None else None
    null_marker = options.null_marker.encode() if options.null_marker is not None else None
    sent = 0
    progress = Progress("sent")
    source = options.file.open("rb") if options.file else nullcontext(sys.stdin.buffer)
    with (
        source as lines,
        Producer(**client_settings(options), acks=options.acks, compression_type=options.compression) as producer,
    ):
        for line in _lines(lines):
            key, value = fixed_key, line
            if separator is not None:
                head, found, tail = line.partition(separator)
                key, value = (head, tail) if found else (fixed_key, line)
            shown = None if value == null_marker else value
            producer.send(
                options.topic, shown, key=key, headers=headers, partition=options.partition
            ).add_done_callback(_stop_on_error)
            sent += 1
            progress.update(sent)
            if _failures:
                break
        producer.flush()
    progress.close()
    if _failures:
        print(f"fastq: {_failures[0]}", file=sys.stderr)
        return 1
    print(f"{sent:,} records sent to {options.topic}", file=sys.stderr)
    return 0


_failures: list[BaseException] = []


def _stop_on_error(delivery: Any) -> None:
    error = delivery.exception()
    if error is not None:
        _failures.append(error)


def _lines(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        yield line.rstrip(b"\r\n")
