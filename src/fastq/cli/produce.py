"""`fastq produce`: lines of standard input or a file become records.

Rules: the command has sent everything, or says how many records were acknowledged and why the first of the others was not.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from fastq.cli.clients import Default, add_client_options, opened_producer
from fastq.cli.output import Progress, Subparsers, UsageError, complain, counted, key_values


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
    parser.add_argument(
        "--encoding",
        default="utf-8",
        choices=["utf-8", "base64"],
        help="base64: keys and values of the lines are base64",
    )
    parser.add_argument("--compression", default=Default("none"), choices=["none", "gzip", "snappy", "lz4", "zstd"])
    parser.add_argument("--acks", default=Default("all"), choices=["0", "1", "all"])
    parser.set_defaults(run=run)


class _Sent:
    """What became of the records of one run."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.error: BaseException | None = None

    def done(self, delivery: Any) -> None:
        error = delivery.exception()
        if error is None:
            self.acknowledged += 1
        elif self.error is None:
            self.error = error


def run(options: argparse.Namespace) -> int:
    headers = [(key, value.encode()) for key, value in key_values(options.header, "--header").items()] or None
    if options.file is None and sys.stdin is None:
        raise UsageError("standard input is closed: give --file")
    typed = options.file is None and sys.stdin.isatty()
    sent, progress, count = _Sent(), Progress("sent", shown=not typed), 0  # not into a line that is being typed
    if typed:
        complain("each line is a record; Ctrl-D ends it")
    source = options.file.open("rb") if options.file else nullcontext(sys.stdin.buffer)
    settings = {"acks": options.acks, "compression_type": options.compression}
    try:
        with source as lines, opened_producer(options, **settings) as producer:
            for key, value in _records(lines, options):
                producer.send(
                    options.topic, value, key=key, headers=headers, partition=options.partition
                ).add_done_callback(sent.done)
                count += 1
                progress.update(count)
                if sent.error is not None:
                    break
            producer.flush()
    finally:
        progress.close()
        if count:
            complain(
                f"{counted(sent.acknowledged, 'record')} sent to {options.topic}"
            ) if sent.acknowledged == count else complain(
                f"{sent.acknowledged:,} of {counted(count, 'record')} were acknowledged"
            )
    if sent.error is not None:
        complain(str(sent.error))
        return 1
    if not count:
        complain("nothing to send: the input has no lines")
    return 0


def _records(source: BinaryIO, options: argparse.Namespace) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of every line."""
    separator = options.key_separator.encode() if options.key_separator else None
    fixed_key = options.key.encode() if options.key is not None else None
    null_marker = options.null_marker.encode() if options.null_marker is not None else None
    encoded = options.encoding == "base64"
    for number, line in enumerate(source, 1):
        key, value = fixed_key, line.rstrip(b"\r\n")
        if separator is not None:
            head, found, tail = value.partition(separator)
            if found:
                key, value = (_decoded(head, number) if encoded else head), tail
        if value == null_marker:
            yield key, None
        else:
            yield key, (_decoded(value, number) if encoded else value)


def _decoded(text: bytes, line: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise UsageError(f"line {line} is no base64 ({error}): {text[:60]!r}") from None
