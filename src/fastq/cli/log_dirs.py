"""`fastq log-dirs`: the log directories of the brokers and what takes room in them; moves of replicas between those of one broker.

Rules: a move goes on in its broker when the command has ended; the list shows its copy, and how far behind that is, until it is over.
A directory that is `cordoned` gets no new replicas (cordoned.log.dirs of its broker); what is there is served.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.each_broker import answers_of
from fastq.cli.output import (
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    nonempty,
    print_json,
    print_records,
    shown_bytes,
    whole,
)
from fastq.cli.partition_names import partitions_of
from fastq.errors import ReplicaNotAvailable, UnsupportedVersion
from fastq.words import counted

if TYPE_CHECKING:
    from fastq import Admin, TopicPartition
    from fastq.admin import LogDirDescription, TopicPartitionReplica

LIST_S = 15.0
"""How long a broker is waited for that walks its directories."""
MOVE_TIMEOUT_S = 10.0


def register(commands: Any) -> None:
    parser = Subparsers(commands).add(
        "log-dirs",
        "Bytes on disk, by broker, directory and partition; moves between the directories of a broker.",
        "fastq log-dirs --topic logs",
    )
    add_client_options(parser)
    add_json_option(parser)
    parser.add_argument("--topic", type=nonempty, action="append", help="only this topic; may be repeated")
    parser.add_argument("--broker", type=whole(), action="append", help="only this broker; may be repeated")
    parser.set_defaults(run=run)
    kinds = Subparsers(parser.add_subparsers(title="actions", metavar="ACTION"))
    move = kinds.add(
        "move",
        "Begin to move replicas to another log directory of their brokers.",
        "fastq log-dirs move logs:0,1 --to /disk2/kafka --broker 1",
    )
    add_client_options(move, again=True)
    add_json_option(move, again=True)
    move.add_argument(
        "partitions", type=nonempty, nargs="+", metavar="TOPIC[:P,P...]", help="a topic, or some of its partitions"
    )
    move.add_argument("--to", required=True, metavar="DIR", help="the directory, as log.dirs of the broker has it")
    move.add_argument(
        "--broker",
        dest="node",
        type=whole(),
        metavar="ID",
        help="its replicas (default: those of all brokers that have DIR)",
    )
    move.set_defaults(run=run_move)


def run(options: argparse.Namespace) -> int:
    with opened_admin(options) as admin:
        silent, fenced = 0, []
        if options.topic:
            described(admin, options.topic)  # one that is not there is told once, not by each broker
        if options.broker is not None:
            found = admin.describe_log_dirs(options.broker, topics=options.topic).results()
        else:
            nodes = admin._client.driver.core.metadata.nodes
            found = answers_of(
                nodes,
                lambda node: admin.describe_log_dirs([node], topics=options.topic, timeout=LIST_S)[node].result(),
            )
            silent, fenced = len(nodes) - len(found), _fenced(admin)
    for node in fenced:
        complain(f"node {node} is fenced, as one that does not run is: what it has is not listed")
    rows: list[dict[str, object]] = []
    offline = 0
    for broker, directories in found.items():
        for directory in directories:
            state = "cordoned" if directory.is_cordoned else "online"
            if directory.error is not None:
                state = f"offline: {directory.error}"
            offline += directory.error is not None
            replicas = sorted(directory.replicas, key=lambda replica: -replica.size_bytes)
            total = sum(replica.size_bytes for replica in replicas)
            row = _row(broker, directory.path, "(all)", total, None, state, options.json)
            for name, size in (("total", directory.total_bytes), ("free", directory.usable_bytes)):
                row[name] = size if options.json or size is None else shown_bytes(size)
            rows.append(row)
            for replica in replicas:
                state = "copy" if replica.is_future else ""
                name, size, lag = str(replica.topic_partition), replica.size_bytes, replica.offset_lag
                rows.append(_row(broker, directory.path, name, size, lag, state, options.json))
    print_records(["broker", "directory", "partition", "bytes", "lag", "total", "free", "state"], rows, options.json)
    return 1 if offline or silent or fenced else 0


def _fenced(admin: Admin) -> list[int]:
    """Brokers that are registered and not among those that are asked, where the cluster tells (Kafka 4.0)."""
    try:
        return [node.node_id for node in admin.describe_cluster(include_fenced=True, timeout=LIST_S).fenced_nodes]
    except UnsupportedVersion:
        return []


def _row(
    broker: int, directory: str, partition: str, size: int, lag: int | None, state: str, shape: str
) -> dict[str, object]:
    return {
        "broker": broker,
        "directory": directory,
        "partition": partition,
        "bytes": size if shape else shown_bytes(size),
        "lag": lag,
        "total": None,  # of a disk, not of a replica
        "free": None,
        "state": state,
    }


def run_move(options: argparse.Namespace) -> int:
    from fastq.admin import TopicPartitionReplica

    if options.topic or options.broker:
        raise UsageError("--topic and --broker before move are about the list: name partitions and --broker after it")
    if not os.path.isabs(options.to):
        raise UsageError(f"--to takes an absolute path, not {options.to!r}")
    with opened_admin(options) as admin:
        directories = admin.describe_log_dirs(None if options.node is None else [options.node]).results()
        wanted = _replicas(admin, partitions_of(admin, options.partitions), options.to, directories)
        there = {
            TopicPartitionReplica(*one.topic_partition, broker): one.is_future
            for broker, found in directories.items()
            for directory in found
            if directory.path == options.to
            for one in directory.replicas
        }
        outcomes = admin.alter_replica_log_dirs(dict.fromkeys(wanted, options.to), timeout=MOVE_TIMEOUT_S)
    failed = {
        replica: error for replica, error in outcomes.errors.items() if not isinstance(error, ReplicaNotAvailable)
    }
    taken = [replica for replica in wanted if replica not in failed]
    begun = [_text(replica) for replica in taken if replica not in there]
    moving = [_text(replica) for replica in taken if there.get(replica)]
    stay = [_text(replica) for replica in taken if there.get(replica) is False]
    if options.json:
        refused = {_text(each): str(failed[each]) for each in failed}
        print_json({"begun": begun, "moving": moving, "there": stay, "failed": refused}, options.json)
    else:
        told = f"{counted(len(begun), 'move')} to {options.to}: {', '.join(begun)}" if begun else "nothing"
        print(f"begun {told}" + ("; fastq log-dirs shows the copies" if begun else ""))
        if moving:
            print(f"on the way there before: {', '.join(moving)}")
        if stay:
            print(f"there already: {', '.join(stay)}")
    for replica, error in failed.items():
        complain(str(error.with_context(hint=f"the log of node {replica.broker_id} says why {_text(replica)} stays")))
    return 1 if failed else 0


def _text(replica: TopicPartitionReplica) -> str:
    return f"{replica.topic}-{replica.partition} of node {replica.broker_id}"


def _replicas(
    admin: Admin,
    partitions: list[TopicPartition],
    path: str,
    directories: Mapping[int, Sequence[LogDirDescription]],
) -> list[TopicPartitionReplica]:
    """Which replicas are meant; ValueError for a partition that has none of them."""
    from fastq.admin import TopicPartitionReplica

    having = {broker for broker, found in directories.items() if path in {one.path for one in found}}
    if not having:
        there = "; ".join(
            f"node {broker}: {', '.join(one.path for one in found)}" for broker, found in sorted(directories.items())
        )
        raise ValueError(f"no log directory {path} is there: log.dirs are {there}")
    outcomes = admin.describe_topics(list(dict.fromkeys(tp.topic for tp in partitions))).results()
    nodes_of = {(name, part.index): part.replicas for name, found in outcomes.items() for part in found.partitions}
    replicas: list[TopicPartitionReplica] = []
    for tp in partitions:
        if tp not in nodes_of:
            raise ValueError(f"{tp} is not there; fastq topics describe {tp.topic} lists the partitions that are")
        mine = [TopicPartitionReplica(*tp, broker) for broker in nodes_of[tp] if broker in having]
        if not mine:
            raise ValueError(
                f"{tp} has replicas on nodes {', '.join(map(str, nodes_of[tp]))}, and {path} is a directory of "
                f"{', '.join(map(str, sorted(having)))}: fastq partitions reassign moves them between nodes"
            )
        replicas += mine
    return replicas
