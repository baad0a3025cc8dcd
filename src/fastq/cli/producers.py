"""`fastq producers`: what partitions remember of idempotent and transactional producers (KIP-664)."""

from __future__ import annotations

import argparse
from typing import Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import Subparsers, add_json_option, print_records, whole
from fastq.cli.partition_names import add_topic_option, partitions_of


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "producers", "Producers that partitions remember.", "fastq producers describe --topic orders:0"
    )
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))
    describe = kinds.add(
        "describe", "Ids, epochs, sequences and open transactions.", "fastq producers describe --topic orders:0,1"
    )
    add_topic_option(describe, required=True)
    describe.add_argument("--broker", type=whole(), metavar="ID", help="as this broker knows them, not the leaders")
    add_client_options(describe)
    add_json_option(describe)
    describe.set_defaults(run=run_describe)


def run_describe(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        partitions = partitions_of(admin, options.topic)
        found = admin.describe_producers(partitions, node_id=options.broker).results()
    rows: list[dict[str, object]] = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "producer_id": producer.producer_id,
            "epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp_ms": producer.last_timestamp_ms,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_start": producer.transaction_start_offset,
        }
        for tp, producers in found.items()
        for producer in producers
    ]
    columns = ["topic", "partition", "producer_id", "epoch", "last_sequence", "last_timestamp_ms"]
    print_records([*columns, "coordinator_epoch", "transaction_start"], rows, options.json)
    return 0
