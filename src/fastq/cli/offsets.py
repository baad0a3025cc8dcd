"""`fastq offsets`: first, last and by-time offsets of a topic's partitions."""

from __future__ import annotations

import argparse
from typing import Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import Subparsers, UsageError, add_json_option, nonempty, print_records
from fastq.words import read_time_ms


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "offsets", "Offsets of every partition of topics.", "fastq offsets logs --at 2026-11-21T10:00:00"
    )
    parser.add_argument("topics", type=nonempty, nargs="+", metavar="TOPIC")
    add_client_options(parser)
    add_json_option(parser)
    parser.add_argument(
        "--at",
        default="latest",
        metavar="WHEN",
        help="earliest, latest, max-timestamp, milliseconds since the epoch, or an ISO date and time (local unless it says)",
    )
    parser.set_defaults(run=run)


def when(text: str) -> int:
    """`--at` as the protocol takes it: one of the special timestamps, or milliseconds since the epoch."""
    from fastq.admin import OffsetSpec

    special = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST, "max-timestamp": OffsetSpec.MAX_TIMESTAMP}
    if text in special:
        return int(special[text])
    try:
        return read_time_ms(text)
    except ValueError:
        raise UsageError(
            f"--at takes {', '.join(special)}, milliseconds since 1970, or a date like 2026-11-21T10:00:00, not {text!r}"
        ) from None


def run(options: argparse.Namespace) -> int:
    from fastq import TopicPartition

    at = when(options.at)
    with opened_admin(options) as admin:
        topics = admin.describe_topics(options.topics).results()
        places = [TopicPartition(name, part.index) for name, topic in topics.items() for part in topic.partitions]
        found = admin.list_offsets(dict.fromkeys(places, at)).results()
    rows: list[dict[str, object]] = [
        {"topic": place.topic, "partition": place.partition, "offset": row.offset, "timestamp_ms": row.timestamp_ms}
        for place, row in found.items()
    ]
    print_records(["topic", "partition", "offset", "timestamp_ms"], rows, options.json)
    return 0
