"""`fastq consume`: records to standard output, as text, as JSON lines or with all their fields."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from fastq.cli.output import Subparsers, add_client_options, client_settings

if TYPE_CHECKING:
    from fastq import Consumer, Record


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "consume",
        "Print the records of a topic, the new ones or all.",
        "fastq consume logs --from-beginning --exit-at-end --json",
    )
    parser.add_argument("topic")
    add_client_options(parser)
    parser.add_argument("--from-beginning", action="store_true", help="start at the earliest record, not at the end")
    parser.add_argument("--partition", type=int, help="read only this partition")
    parser.add_argument("--offset", type=int, help="start at this offset (with --partition)")
    parser.add_argument("--max-records", type=int, metavar="N", help="stop after N records")
    parser.add_argument("--exit-at-end", action="store_true", help="stop at the offsets that were the end at the start")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="stop when no record came for so long")
    parser.add_argument("--isolation", default="read_uncommitted", choices=["read_uncommitted", "read_committed"])
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--json", action="store_true", help="one JSON object a line, with every field")
    style.add_argument("--verbose", action="store_true", help="partition, offset, time and key before the value")
    style.add_argument("--key-separator", metavar="TEXT", help="print key, TEXT, value")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastq import Consumer, TopicPartition

    if options.offset is not None and options.partition is None:
        raise ValueError("--offset needs --partition: each partition has offsets of its own")
    start = "earliest" if options.from_beginning or options.offset is not None else "latest"
    topics = () if options.partition is not None else (options.topic,)
    with Consumer(
        *topics, **client_settings(options), auto_offset_reset=start, isolation_level=options.isolation
    ) as consumer:
        if options.partition is not None:
            partition = TopicPartition(options.topic, options.partition)
            consumer.assign([partition])
            if options.offset is not None:
                consumer.seek(partition, options.offset)
        return _print_all(consumer, options)


def _print_all(consumer: Consumer, options: argparse.Namespace) -> int:
    left = options.max_records if options.max_records is not None else -1
    write = sys.stdout.buffer.write
    if options.exit_at_end:
        for record in consumer.read_to_end():
            write(_shown(record, options))
            left -= 1
            if left == 0:
                break
        return 0
    wait = options.timeout if options.timeout is not None else 3600.0
    while left:
        records = consumer.poll(max_records=500 if left < 0 else min(500, left), timeout=wait)
        if not records and options.timeout is not None:
            break
        for record in records:
            write(_shown(record, options))
        left -= len(records)
        sys.stdout.flush()
    return 0


def _shown(record: Record, options: argparse.Namespace) -> bytes:
    value: bytes = record.value if record.value is not None else b"null"
    if options.json:
        return json.dumps(as_document(record), ensure_ascii=False).encode() + b"\n"
    if options.verbose:
        key: bytes = record.key if record.key is not None else b"null"
        head = f"{record.topic}-{record.partition}@{record.offset} {record.timestamp_ms} "
        return head.encode() + key + b" " + value + b"\n"
    if options.key_separator:
        separator: str = options.key_separator
        return (record.key or b"") + separator.encode() + value + b"\n"
    return value + b"\n"


def as_document(record: Record) -> dict[str, Any]:
    """A record as JSON shows it; bytes that are no UTF-8 are replaced character by character."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[key, _text(value)] for key, value in record.headers],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode("utf-8", "replace")
