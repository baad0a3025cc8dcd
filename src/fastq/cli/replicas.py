"""`fastq replicas`: whether all nodes have the same records of a partition."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fastq.cli.clients import add_client_options, described, opened_admin
from fastq.cli.output import (
    Progress,
    Subparsers,
    UsageError,
    add_json_option,
    complain,
    count,
    nonempty,
    print_records,
    seconds,
)
from fastq.cli.partition_names import HELP, PLACE, partitions_of
from fastq.errors import ConnectionFailed, FastqError, KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
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
    verify.add_argument("topics", type=nonempty, nargs="+", metavar=PLACE, help=HELP)
    verify.add_argument(
        "--timeout",
        type=seconds,
        default=PARTITION_TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long one partition may take (default: {PARTITION_TIMEOUT_S:.0f})",
    )
    verify.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="do it over and over, a line a round with the worst lag, so long from one round to the next, until it is interrupted",
    )
    verify.add_argument("--rounds", type=count, metavar="N", help="end after so many of them")
    add_client_options(verify)
    add_json_option(verify)
    verify.set_defaults(run=run_verify)


def run_verify(options: argparse.Namespace) -> int:
    if options.rounds is not None and options.interval is None:
        raise UsageError("--rounds is about --interval SECONDS")
    if options.interval is not None and options.json not in ("", "json"):
        raise UsageError(
            "with --interval there is a line a round, as text or as JSON: leave --output out, or give --json"
        )
    code = 0
    with opened_admin(options) as admin:
        if options.interval is None:
            return _tell(_round(admin, options), options)
        for number in itertools.count(1):
            began = time.monotonic()
            code |= _tell_round(number, _round(admin, options), options)
            if number == options.rounds:
                return code
            time.sleep(max(began + options.interval - time.monotonic(), 0.0))
    raise AssertionError("the rounds are endless")


class _Compared(NamedTuple):
    """What one round has found: a row a replica, and how many partitions it was about, and how many of them were not compared."""

    rows: list[dict[str, object]]
    partitions: int
    failed: int

    @property
    def wrong(self) -> list[dict[str, object]]:
        return [row for row in self.rows if row["result"] != "same"]

    @property
    def worst(self) -> dict[str, object] | None:
        """The replica that is the furthest behind its leader."""
        known = [row for row in self.rows if row["lag"] is not None]
        return max(known, key=lambda row: int(str(row["lag"])), default=None)


def _round(admin: Admin, options: argparse.Namespace) -> _Compared:
    from fastq.admin import ConfigResource

    rows: list[dict[str, object]] = []
    failed = 0
    partitions = partitions_of(admin, options.topics)
    names = list(dict.fromkeys(tp.topic for tp in partitions))
    settings = admin.describe_configs([ConfigResource.topic(name) for name in names]).results()
    compacted = {r.name for r, entries in settings.items() if "compact" in (entries["cleanup.policy"].value or "")}
    topics = described(admin, names)
    silent: dict[int, FastqError] = {}
    progress = Progress("partitions compared", len(partitions))
    for done, tp in enumerate(partitions):
        progress.update(done)
        try:
            reports = _compare(admin, tp, topics[tp.topic], tp.topic in compacted, options.timeout, silent)
        except (KafkaError, ConnectionFailed) as error:
            failed += 1
            progress.close()
            complain(f"{tp} was not compared: {error}")
            continue
        rows += _rows(tp, reports)
    progress.close()
    return _Compared(rows, len(partitions), failed)


def _tell(found: _Compared, options: argparse.Namespace) -> int:
    if found.rows or options.json:
        print_records(COLUMNS, found.rows, options.json)
    if found.rows and not options.json:
        print(f"\n{_summary(found)}")
        for line in _remarks(found.rows):
            print(line)
    return 1 if found.wrong or found.failed else 0


def _tell_round(number: int, found: _Compared, options: argparse.Namespace) -> int:
    """A line, as Kafka's verification tool has it; people see the replicas that are not the same, too."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    if options.json:
        worst = found.worst
        document = {
            "round": number,
            "time": now,
            "partitions": found.partitions,
            "not_compared": found.failed,
            "worst_lag": None
            if worst is None
            else {name: worst[name] for name in ("topic", "partition", "node", "end", "lag")},
            "not_the_same": found.wrong,
        }
        print(json.dumps(document), flush=True)
    else:
        print(f"{now}  {_summary(found)}", flush=True)
        if found.wrong:
            print_records(COLUMNS, found.wrong, "")
    return 1 if found.wrong or found.failed else 0


def _summary(found: _Compared) -> str:
    if not found.rows:
        return "nothing was compared"
    compared = counted(found.partitions - found.failed, "partition")
    ending = f"{counted(len(found.wrong), 'replica')} to look at" if found.wrong else "all replicas are the same"
    worst = found.worst
    if worst is None or not worst["lag"]:
        lag = "none is behind"
    else:
        place = f"{worst['topic']}-{worst['partition']} on node {worst['node']}"
        lag = f"the worst lag is {counted(int(str(worst['lag'])), 'record')}, of {place}"
    return f"{compared} compared: {ending}, {lag}"


def _compare(
    admin: Admin,
    tp: TopicPartition,
    topic: TopicDescription,
    compacted: bool,
    timeout_s: float,
    silent: dict[int, FastqError],
) -> list[ReplicaReport]:
    """`silent`: the nodes that take no connection in this round, which each partition would wait for anew."""
    from fastq.admin.replica_comparison import compare_replicas
    from fastq.admin.shown import silent_once

    part = next((part for part in topic.partitions if part.index == tp.partition), None)
    if part is None:
        raise UnknownTopicOrPartition(f"the topic has {counted(len(topic.partitions), 'partition')}", **tp._asdict())
    if part.leader is None:
        raise LeaderNotAvailable(
            "it has no leader; fastq partitions elect unclean makes a replica that lives lead, and loses records",
            **tp._asdict(),
        )
    operation = compare_replicas(tp, part.replicas, part.leader.node_id, compacted=compacted)
    return admin._client.run(silent_once(operation, silent), timeout_s)


COLUMNS = ["topic", "partition", "node", "role", "compared", "start", "end", "lag", "result", "detail"]


def _rows(tp: TopicPartition, reports: Sequence[ReplicaReport]) -> list[dict[str, object]]:
    """A row a replica. The lag is how far it ends before the leader does; where bytes were compared nothing is known of it."""
    (leader,) = (report for report in reports if report.is_leader)
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "node": report.node_id,
            "role": "leader" if report.is_leader else "follower",
            "compared": report.compared,
            "start": report.start,
            "end": report.end,
            "lag": None if report.end is None or leader.end is None else max(leader.end - report.end, 0),
            "result": report.state,
            "detail": report.detail,
        }
        for report in reports
    ]


def _remarks(rows: list[dict[str, object]]) -> list[str]:
    """What it means where records were not what was compared."""
    found = {row["compared"] for row in rows}
    words = {
        "ends": "compared by the ends of their logs: the topic is compacted, or the node lets nobody read from it as a follower",
        "bytes": "compared by their bytes on disk: the node tells nothing else of a log that it does not lead",
    }
    return [words[str(what)] for what in sorted(found & words.keys(), key=str)]
