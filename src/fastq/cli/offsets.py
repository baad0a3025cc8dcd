"""`fastq offsets`: first, last and by-time offsets of partitions."""

from __future__ import annotations

import argparse
from typing import Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.codes import code_of
from fastq.cli.output import Subparsers, UsageError, add_json_option, complain, nonempty, print_records
from fastq.cli.partition_names import HELP, PLACE, partitions_of
from fastq.words import read_time_ms


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "offsets", "Offsets of partitions.", "fastq offsets logs bills:0-3 --at 2026-11-21T10:00:00"
    )
    parser.add_argument("topics", type=nonempty, nargs="+", metavar=PLACE, help=HELP)
    add_client_options(parser)
    add_json_option(parser)
    parser.add_argument(
        "--at",
        default="latest",
        metavar="WHEN",
        help="latest, earliest, max-timestamp, earliest-local, latest-tiered, or -1 to -5 as Kafka's tool has them; milliseconds since the "
        "epoch, or an ISO date and time (local unless it says)",
    )
    parser.set_defaults(run=run)


def when(text: str) -> int:
    """`--at` as the protocol takes it: one of the special timestamps, or milliseconds since the epoch."""
    from fastq.admin import OffsetSpec

    for spec in OffsetSpec:
        if text in (spec.name.lower().replace("_", "-"), str(int(spec))):
            return int(spec)
    try:
        return read_time_ms(text)
    except ValueError:
        known = ", ".join(f"{spec.name.lower().replace('_', '-')} ({int(spec)})" for spec in OffsetSpec)
        raise UsageError(
            f"--at takes {known}, milliseconds since 1970, or a date like 2026-11-21T10:00:00, not {text!r}"
        ) from None


def run(options: argparse.Namespace) -> int:
    at = when(options.at)
    with opened_admin(options) as admin:
        outcomes = admin.list_offsets(dict.fromkeys(partitions_of(admin, options.topics), at))
    rows: list[dict[str, object]] = [
        {"topic": place.topic, "partition": place.partition, "offset": row.offset, "timestamp_ms": row.timestamp_ms}
        for place, row in ((place, outcome.value) for place, outcome in outcomes.items())
        if row is not None
    ]
    if rows or not outcomes.errors:
        print_records(["topic", "partition", "offset", "timestamp_ms"], rows, options.json)
    elif len(outcomes.errors) == 1:
        outcomes.results()
    for error in outcomes.errors.values():
        complain(str(error))
    return max(map(code_of, outcomes.errors.values()), default=0)
