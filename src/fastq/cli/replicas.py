"""`fastq replicas`: whether all nodes have the same records of a partition."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.groups import partitions_of
from fastq.cli.output import Progress, Subparsers, add_json_option, complain, nonempty, print_records, seconds
from fastq.errors import KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin
    from fastq.admin import TopicDescription
    from fastq.admin.replica_comparison import ReplicaReport
    from fastq.metadata import TopicPartition

PARTITION_TIMEOUT_S = 3600.0


def register(commands: Any) -> None:
    parser = Subparsers(commands).add("replicas", "The copies of partitions.", "fastq replicas verify logs")
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION", required=True))
    verify = kinds.add(
        "verify",
        "Read the records of every replica and compare them with the leader's; exit code 1 unless all are the same.",
        "fastq replicas verify logs:0,1 bills",
    )
    verify.add_argument(
        "topics", type=nonempty, nargs="+", metavar="TOPIC[:P,P...]", help="a topic, or some of its partitions"
    )
    verify.add_argument(
        "--timeout",
        type=seconds,
        default=PARTITION_TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long one partition may take (default: {PARTITION_TIMEOUT_S:.0f})",
    )
    add_client_options(verify)
    add_json_option(verify)
    verify.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> int:
    from fastq.admin import ConfigResource

    rows: list[dict[str, object]] = []
    failed = 0
    with opened_admin(options) as admin:
        partitions = partitions_of(admin, options.topics)
        names = list(dict.fromkeys(tp.topic for tp in partitions))
        settings = admin.describe_configs([ConfigResource.topic(name) for name in names]).results()
        compacted = {r.name for r, entries in settings.items() if "compact" in (entries["cleanup.policy"].value or "")}
        topics = described(admin, names)
        progress = Progress("partitions compared", len(partitions))
        for done, tp in enumerate(partitions):
            progress.update(done)
            try:
                reports = _compare(admin, tp, topics[tp.topic], tp.topic in compacted, options.timeout)
            except KafkaError as error:
                failed += 1
                progress.close()
                complain(f"{tp} was not compared: {error}")
                continue
            rows += [_row(tp, report) for report in reports]
        progress.close()
    if rows or options.json:
        columns = ["topic", "partition", "node", "role", "compared", "start", "end", "result", "detail"]
        print_records(columns, rows, options.json)
    wrong = sum(row["result"] != "same" for row in rows)
    if rows and not options.json:
        compared = counted(len(partitions) - failed, "partition")
        ending = f"{counted(wrong, 'replica')} to look at" if wrong else "all replicas are the same"
        print(f"\n{compared} compared: {ending}")
        for line in _remarks(rows):
            print(line)
    return 1 if wrong or failed else 0


def _compare(
    admin: Admin, tp: TopicPartition, topic: TopicDescription, compacted: bool, timeout_s: float
) -> list[ReplicaReport]:
    from fastq.admin.replica_comparison import compare_replicas

    part = next((part for part in topic.partitions if part.index == tp.partition), None)
    if part is None:
        raise UnknownTopicOrPartition(f"the topic has {counted(len(topic.partitions), 'partition')}", **tp._asdict())
    if part.leader is None:
        raise LeaderNotAvailable(
            "it has no leader; fastq partitions elect unclean makes a replica that lives lead, and loses records",
            **tp._asdict(),
        )
    operation = compare_replicas(tp, part.replicas, part.leader.node_id, compacted=compacted)
    return admin._client.run(operation, timeout_s)


def _row(tp: TopicPartition, report: ReplicaReport) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "node": report.node_id,
        "role": "leader" if report.is_leader else "follower",
        "compared": report.compared,
        "start": report.start,
        "end": report.end,
        "result": report.state,
        "detail": report.detail,
    }


def _remarks(rows: list[dict[str, object]]) -> list[str]:
    """What it means where records were not what was compared."""
    found = {row["compared"] for row in rows}
    words = {
        "ends": "compared by the ends of their logs: the topic is compacted, or the node lets nobody read from it as a follower",
        "bytes": "compared by their bytes on disk: the node tells nothing else of a log that it does not lead",
    }
    return [words[str(what)] for what in sorted(found & words.keys(), key=str)]
