"""`fastq consume`: records to standard output, as text, as JSON lines or with all their fields.

Rules: records are written and flushed before the next ones are asked for, so that with `--group` what is committed was written. A
topic that is not there is an error, not a new topic.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, check_found, check_reachable, opened_consumer
from fastq.cli.output import Subparsers, UsageError, add_encoding_option, count, seconds, shown_in_json

if TYPE_CHECKING:
    from fastq import Consumer, Record


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "consume",
        "Print the records of topics, the new ones or all.",
        "fastq consume logs --from-beginning --exit-at-end --json",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    add_client_options(parser)
    parser.add_argument("--group", metavar="ID", help="read as a member of this group, and commit what was printed")
    parser.add_argument("--from-beginning", action="store_true", help="start at the earliest record, not at the end")
    parser.add_argument("--partition", type=int, help="read only this partition of the topic")
    parser.add_argument(
        "--offset", type=int, help="start at this offset (with --partition); one that is not there is an error"
    )
    parser.add_argument("--max-records", type=count, metavar="N", help="stop after N records")
    parser.add_argument("--exit-at-end", action="store_true", help="stop at the offsets that were the end at the start")
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="stop when no record came for so long")
    parser.add_argument("--isolation", default="read_uncommitted", choices=["read_uncommitted", "read_committed"])
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--json", action="store_true", help="one JSON object a line, with every field")
    style.add_argument("--verbose", action="store_true", help="partition, offset, time and key before the value")
    style.add_argument("--key-separator", metavar="TEXT", help="print key, TEXT, value")
    add_encoding_option(
        parser,
        'of keys and values. auto: as they are; in JSON, what is no UTF-8 as {"base64": ...}. utf-8: text, what is none replaced. '
        "base64: all of them",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastq import TopicPartition

    if options.offset is not None and options.partition is None:
        raise UsageError("--offset needs --partition: each partition has offsets of its own")
    if options.partition is not None and len(options.topics) > 1:
        raise UsageError("--partition is for one topic")
    if options.group is not None and options.partition is not None:
        raise UsageError("--group and --partition exclude each other: a group divides the partitions itself")
    start = "earliest" if options.from_beginning else "latest" if options.offset is None else "none"
    settings: dict[str, Any] = {"auto_offset_reset": start, "isolation_level": options.isolation}
    if options.group is not None:
        settings["group_id"] = options.group
    topics = [] if options.partition is not None else options.topics
    with opened_consumer(options, topics, **settings) as consumer:
        if options.partition is not None:
            partition = TopicPartition(options.topics[0], options.partition)
            consumer.assign([partition])
            if options.offset is not None:
                consumer.seek(partition, options.offset)
        _print_all(consumer, options)
        if consumer.config.group_id is not None:
            consumer.commit()
    return 0


def _print_all(consumer: Consumer, options: argparse.Namespace) -> None:
    left = options.max_records if options.max_records is not None else -1
    if options.exit_at_end:
        write = sys.stdout.buffer.write
        for record in consumer.read_to_end():
            write(_shown(record, options))
            left -= 1
            if left == 0:
                break
        sys.stdout.flush()
        return
    wait = options.timeout if options.timeout is not None else 3600.0
    while left:
        records = consumer.poll(max_records=500 if left < 0 else min(500, left), timeout=wait)
        if not records and options.timeout is not None:
            check_reachable(consumer)
            check_found(consumer)
            return
        _write(records, options)
        left -= len(records)


def _write(records: Iterable[Record], options: argparse.Namespace) -> None:
    sys.stdout.buffer.write(b"".join([_shown(record, options) for record in records]))
    sys.stdout.flush()


def _shown(record: Record, options: argparse.Namespace) -> bytes:
    encoding = options.encoding
    if options.json:
        return json.dumps(as_document(record, encoding), ensure_ascii=False).encode() + b"\n"
    value = _plain(record.value, encoding, b"null")
    if options.verbose:
        head = f"{record.topic}-{record.partition}@{record.offset} {record.timestamp_ms} "
        return head.encode() + _plain(record.key, encoding, b"null") + b" " + value + b"\n"
    if options.key_separator:
        separator: str = options.key_separator
        return _plain(record.key, encoding, b"") + separator.encode() + value + b"\n"
    return value + b"\n"


def _plain(data: bytes | None, encoding: str, null: bytes) -> bytes:
    if data is None:
        return null
    if encoding == "base64":
        return base64.b64encode(data)
    return data if encoding == "auto" else data.decode("utf-8", "replace").encode()


def as_document(record: Record, encoding: str = "auto") -> dict[str, Any]:
    """A record as JSON shows it; see `shown_in_json` for its bytes."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": shown_in_json(record.key, encoding),
        "value": shown_in_json(record.value, encoding),
        "headers": [[key, shown_in_json(value, encoding)] for key, value in record.headers],
    }
