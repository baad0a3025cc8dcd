"""`fastq log-dirs`: the log directories of the brokers and what takes room in them."""

from __future__ import annotations

import argparse
from typing import Any

from fastq.cli.clients import add_client_options, opened_admin
from fastq.cli.output import Subparsers, add_json_option, print_records, shown_bytes


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "log-dirs", "Bytes on disk, by broker, directory and partition.", "fastq log-dirs --topic logs"
    )
    add_client_options(parser)
    add_json_option(parser)
    parser.add_argument("--topic", action="append", help="only this topic; may be repeated")
    parser.add_argument("--broker", type=int, action="append", help="only this broker; may be repeated")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        found = admin.describe_log_dirs(options.broker, topics=options.topic).results()
    rows: list[dict[str, object]] = []
    offline = 0
    for broker, directories in found.items():
        for directory in directories:
            state = "online" if directory.error is None else f"offline: {directory.error}"
            offline += directory.error is not None
            replicas = sorted(directory.replicas, key=lambda replica: -replica.size_bytes)
            total = sum(replica.size_bytes for replica in replicas)
            rows.append(_row(broker, directory.path, "(all)", total, state, options.json))
            rows += [
                _row(broker, directory.path, str(replica.topic_partition), replica.size_bytes, "", options.json)
                for replica in replicas
            ]
    print_records(["broker", "directory", "partition", "bytes", "state"], rows, options.json)
    return 1 if offline else 0


def _row(broker: int, directory: str, partition: str, size: int, state: str, as_json: bool) -> dict[str, object]:
    shown = size if as_json else shown_bytes(size)
    return {"broker": broker, "directory": directory, "partition": partition, "bytes": shown, "state": state}
