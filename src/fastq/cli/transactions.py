"""`fastq transactions`: list and describe transactions, find those that hang, end them (KIP-664)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.each_broker import shown_of
from fastq.cli.output import (
    INT64_MAX,
    Subparsers,
    UsageError,
    Waiting,
    add_json_option,
    complain,
    nonempty,
    of_known,
    print_json,
    print_records,
    sent,
    whole,
)

if TYPE_CHECKING:
    from fastq.errors import FastqError
    from fastq.metadata import TopicPartition

PLACES_SHOWN = 5


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "transactions", "Transactions: who has which open, and since when.", "fastq transactions list --state Ongoing"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))

    listing = kinds.add("list", "All transactional ids.", "fastq transactions list --longer-than 60000")
    listing.add_argument("--state", action="append", default=[], help="Ongoing, PrepareCommit, ...; may be repeated")
    listing.add_argument("--producer-id", type=whole(0, INT64_MAX), action="append", default=[], help="may be repeated")
    listing.add_argument("--longer-than", type=whole(0, INT64_MAX), metavar="MS", help="open for longer than this")
    listing.add_argument("--pattern", type=sent, metavar="REGEX", help="ids that match a regular expression")
    listing.set_defaults(run=run_list)

    describe = kinds.add(
        "describe", "Producer, state, time and partitions of transactions.", "fastq transactions describe billing-1"
    )
    describe.add_argument("ids", type=nonempty, nargs="+", metavar="TRANSACTIONAL-ID")
    describe.set_defaults(run=run_describe)

    abort = kinds.add(
        "abort",
        "Abort by transactional id (its producer is fenced), or one that hangs in a partition, by its first offset.",
        "fastq transactions abort --topic orders --partition 0 --start-offset 4711",
    )
    abort.add_argument("ids", type=nonempty, nargs="*", metavar="TRANSACTIONAL-ID")
    abort.add_argument("--topic", type=nonempty)
    abort.add_argument("--partition", type=whole())
    abort.add_argument(
        "--start-offset", type=whole(0, INT64_MAX), metavar="N", help="where the transaction begins in the partition"
    )
    abort.set_defaults(run=run_abort)

    hanging = kinds.add(
        "find-hanging",
        "Transactions that are open in partitions and that no coordinator will end.",
        "fastq transactions find-hanging --topic orders",
    )
    hanging.add_argument("--topic", type=nonempty, action="append", help="only this topic; may be repeated")
    hanging.add_argument("--broker", type=whole(), metavar="ID", help="only the partitions that this broker leads")
    hanging.add_argument(
        "--max-timeout", type=whole(0), default=900_000, metavar="MS", help="the longest that a transaction may take"
    )
    hanging.set_defaults(run=run_find_hanging)

    for action in (listing, describe, abort, hanging):
        add_client_options(action)
        add_json_option(action)


def run_list(options: argparse.Namespace) -> int:
    from fastq.admin.transaction_types import TRANSACTION_STATES
    from fastq.admin.transactions import transactions_shown

    states = of_known(options.state, TRANSACTION_STATES, "--state")
    with opened_admin(options) as admin:
        listing = transactions_shown(
            states, options.producer_id, longer_than_ms=options.longer_than, id_pattern=options.pattern
        )
        told = shown_of(admin, listing)
    rows: list[dict[str, object]] = [
        {"transactional_id": t.transactional_id, "producer_id": t.producer_id, "state": t.state}
        for t in told.found.values()
    ]
    print_records(["transactional_id", "producer_id", "state"], rows, options.json)
    return 1 if told.silent else 0


def run_describe(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        found = admin.describe_transactions(options.ids).results()
    now_ms = time.time_ns() // 1_000_000
    rows: list[dict[str, object]] = [
        {
            "transactional_id": t.transactional_id,
            "state": t.state,
            "producer_id": t.producer_id,
            "epoch": t.producer_epoch,
            "timeout_ms": t.timeout_ms,
            "open_ms": None if t.start_ms is None else max(0, now_ms - t.start_ms),
            "coordinator": str(t.coordinator),
            "partitions": [str(tp) for tp in t.partitions],
        }
        for t in found.values()
    ]
    columns = [
        "transactional_id",
        "state",
        "producer_id",
        "epoch",
        "timeout_ms",
        "open_ms",
        "coordinator",
        "partitions",
    ]
    print_records(columns, rows, options.json)
    return 0


def run_abort(options: argparse.Namespace) -> int:
    from fastq import TopicPartition

    place = (options.topic, options.partition, options.start_offset)
    if bool(options.ids) == any(part is not None for part in place) or (not options.ids and None in place):
        raise UsageError("give transactional ids, or --topic with --partition and --start-offset")
    rows: list[dict[str, object]]
    with opened_admin(options) as admin:
        if options.ids:
            fenced = admin.fence_producers(options.ids).results()
            rows = [
                {"transactional_id": id_, "producer_id": now.producer_id, "epoch": now.producer_epoch}
                for id_, now in fenced.items()
            ]
        else:
            partition = TopicPartition(options.topic, options.partition)
            producer = admin.abort_open_transaction(partition, options.start_offset)
            rows = [
                {"transactional_id": None, "producer_id": producer.producer_id, "epoch": producer.producer_epoch},
            ]
    if options.json:
        print_json(rows, options.json)
    else:
        for row in rows:
            name = row["transactional_id"] or f"the transaction at {options.topic}-{options.partition}"
            print(f"aborted {name}: producer {row['producer_id']}, epoch {row['epoch']}")
    return 0


def run_find_hanging(options: argparse.Namespace) -> int:
    from fastq.admin.arguments import clock_ms
    from fastq.admin.transactions import hanging_shown

    with opened_admin(options) as admin, Waiting("asking all leaders about open transactions"):
        looking = hanging_shown(options.topic, options.broker, max_timeout_ms=options.max_timeout, clock_ms=clock_ms)
        found = admin._client.run(looking)
    _tell_unknown(found.unknown)
    now_ms = time.time_ns() // 1_000_000
    rows: list[dict[str, object]] = [
        {
            "topic": hanging.topic_partition.topic,
            "partition": hanging.topic_partition.partition,
            "start_offset": hanging.producer.transaction_start_offset,
            "producer_id": hanging.producer.producer_id,
            "epoch": hanging.producer.producer_epoch,
            "coordinator_epoch": hanging.producer.coordinator_epoch,
            "idle_ms": max(0, now_ms - hanging.producer.last_timestamp_ms),
            "transactional_id": hanging.transactional_id,
        }
        for hanging in found.hanging
    ]
    columns = ["topic", "partition", "start_offset", "producer_id", "epoch", "coordinator_epoch", "idle_ms"]
    print_records([*columns, "transactional_id"], rows, options.json)
    return 1 if found.unknown else 0


def _tell_unknown(unknown: Mapping[TopicPartition, FastqError]) -> None:
    """Where something may hang that is not shown: a node that is silent has the same error for all its partitions."""
    by_words: dict[str, list[str]] = {}
    for tp, error in unknown.items():
        by_words.setdefault(str(error), []).append(str(tp))
    for words, places in by_words.items():
        more = f" and {len(places) - PLACES_SHOWN} more" if len(places) > PLACES_SHOWN else ""
        complain(f"nothing is known of {', '.join(places[:PLACES_SHOWN])}{more}: {words}")
