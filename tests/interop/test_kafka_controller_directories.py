"""Where brokers say that their replicas are, beside Apache Kafka's own ReplicationControlManager: the same answer and the same records, of
brokers in any state, in any epoch, with directories that nobody has, twice, failed, of partitions that move, are gone or were made anew."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_kafka
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "controller"))

from control_world import Cluster, directory_id, topic_id
from fastq_broker.controller.assign_directories import plan_assignments
from fastq_broker.controller.image import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY, Record
from fastq_broker.controller.records import decode_record, encode_record

from fastq._native.wire import Reader, Writer
from fastq.protocol import messages as m

BROKERS = range(1, 5)
QUESTIONS = 3000
DIRS = m.AssignReplicasToDirsRequest


class Told(Cluster):
    """Metadata, and the records that it grew by."""

    def __init__(self, level: int, **more: Any) -> None:
        self.level = level
        self.records: list[str] = []
        super().__init__(level=level, **more)

    def apply(self, *records: Record) -> list[Record]:
        self.records += [b64encode(encode_record(record, self.level)).decode() for record in records]
        return super().apply(*records)


def cluster_of(rng: random.Random) -> Told:
    """Brokers and partitions in any state that the metadata may be in."""
    elr = rng.random() < 0.5
    cluster = Told(30 if elr else rng.choice((16, 17, 20, 30)), elr=elr, min_isr=rng.randint(1, 3))
    for broker_id in BROKERS:
        if rng.random() < 0.9:
            fenced = rng.random() < 0.3
            more = {} if cluster.level >= 17 else {"log_dirs": []}
            shutting = not fenced and rng.random() < 0.2
            cluster.broker(broker_id, fenced=fenced, shutting=shutting, directories=rng.randint(1, 3), **more)
    for name in ("t", "u"):
        for _ in range(rng.randint(1, 2)):
            replicas = rng.sample(BROKERS, rng.randint(1, 3))
            isr = rng.sample(replicas, rng.randint(0 if elr else 1, len(replicas)))
            adding = rng.sample(replicas[1:], rng.randint(0, len(replicas) - 1)) if rng.random() < 0.4 else []
            cluster.partition(
                name,
                replicas=replicas,
                isr=isr,
                leader=rng.choice([*isr, -1]) if isr else -1,
                adding_replicas=adding,
                eligible_leader_replicas=[one for one in replicas if one not in isr and rng.random() < 0.5]
                if elr
                else [],
                directories=[directory(rng, one) for one in replicas] if cluster.level >= 17 else [],
            )
    if rng.random() < 0.3:  # made anew under its name
        cluster.apply(m.RemoveTopicRecord(topic_id=topic_id("u")))
        cluster.apply(m.TopicRecord(name="u", topic_id=topic_id("u again")))
        cluster.apply(
            m.PartitionRecord(
                topic_id=topic_id("u again"), partition_id=0, replicas=[1], isr=[1], leader=1, leader_epoch=0,
                partition_epoch=0, directories=[directory_id(1)] if cluster.level >= 17 else [],
            )
        )  # fmt: skip
    return cluster


def directory(rng: random.Random, broker_id: int) -> bytes:
    """One that the broker has, or has lost, or has never had, or that means something else."""
    own = [directory_id(broker_id, number) for number in range(4)]
    return rng.choice([*own, *own, directory_id(9), UNASSIGNED_DIRECTORY, LOST_DIRECTORY, MIGRATING_DIRECTORY])


def question(rng: random.Random, cluster: Told) -> DIRS:
    broker_id = rng.choice(BROKERS)
    return DIRS(
        broker_id=broker_id,
        broker_epoch=100 + broker_id if rng.random() < 0.9 else rng.choice((-1, 0, 99, 105)),
        directories=[
            DIRS.DirectoryData(
                id=directory(rng, broker_id),
                topics=[
                    DIRS.TopicData(
                        topic_id=topic_id(rng.choice(("t", "t", "u", "u again", "nowhere"))),
                        partitions=[
                            DIRS.PartitionData(partition_index=rng.choice((0, 0, 1, 1, 2, -1)))
                            for _ in range(rng.randint(0, 3))
                        ],
                    )
                    for _ in range(rng.randint(0, 3))
                ],
            )
            for _ in range(rng.randint(0, 3))
        ],
    )  # fmt: skip


def encoded(message: Any) -> str:
    writer = Writer()
    message.encode(writer, 0)
    return b64encode(bytes(writer.getvalue())).decode()


def kafka(asked: Sequence[dict[str, Any]]) -> list[Any]:
    """The answers of Apache Kafka's classes."""
    command = ["java", "-cp", apache_kafka.class_path(), str(Path(__file__).with_name("ControllerDirectories.java"))]
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    run = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def by_partition(records: Sequence[Record]) -> dict[tuple[bytes, int], list[m.PartitionChangeRecord]]:
    """The changes of each partition; in which order partitions come is left to a hash by Apache Kafka."""
    found: dict[tuple[bytes, int], list[m.PartitionChangeRecord]] = {}
    for record in records:
        assert isinstance(record, m.PartitionChangeRecord)
        found.setdefault((record.topic_id, record.partition_id), []).append(record)
    return found


def departs(records: Sequence[m.PartitionChangeRecord]) -> bool:
    """Where we mean to differ: Apache Kafka takes a replica that is lost out of the partition as it was before anything was said of it, so
    what that has changed it changes again, or leaves the leadership with whom it takes out of the ISR."""
    return any(
        record
        != m.PartitionChangeRecord(
            topic_id=record.topic_id, partition_id=record.partition_id, directories=record.directories
        )
        for record in records[:-1]
    )


def check_leaders(cluster: Told, records: Sequence[Record]) -> None:
    """Who leads once these records are there is active, in sync, and has the log that it leads."""
    view = cluster.view.after(records)
    for found in view.partitions():
        leader, before = found.partition.leader, cluster.image.topics_by_id[found.topic.topic_id]
        if leader != before.partitions[found.number].leader and leader >= 0:
            assert leader in found.partition.isr and view.is_active(leader), found
            assert view.has_directory(leader, found.partition), found


@pytest.mark.kafka
def test_where_replicas_are_is_taken_as_apache_kafka_takes_it() -> None:
    reason = apache_kafka.available()
    if reason is not None:
        pytest.skip(reason)
    rng = random.Random(22)
    clusters = [cluster_of(rng) for _ in range(QUESTIONS)]
    requests = [question(rng, cluster) for cluster in clusters]
    asked = [
        {"records": cluster.records, "request": encoded(request)}
        for cluster, request in zip(clusters, requests, strict=True)
    ]
    compared = departed = 0
    for cluster, request, theirs in zip(clusters, requests, kafka(asked), strict=True):
        answer, records = plan_assignments(cluster.view, request)
        if "error" in theirs:
            assert (answer.error_code, answer.directories, records) == (theirs["error"], [], []), request
            continue
        said = m.AssignReplicasToDirsResponse.decode(Reader(b64decode(theirs["response"])), 0)
        assert answer == said, request
        expected = [decode_record(b64decode(record)) for record in theirs["records"]]
        check_leaders(cluster, records)
        ours = by_partition([decode_record(encode_record(each, cluster.level)) for each in records])
        for key, changes in by_partition(expected).items():
            if departs(changes) or departs(ours[key]):
                departed += 1
            else:
                before = cluster.image.topics_by_id[key[0]].partitions[key[1]]
                for change in ours[key]:
                    if change.isr == [] and before.leader == -1 and change.last_known_elr == [*before.isr]:
                        change.last_known_elr = None  # Apache Kafka forgets who was in sync last where nobody had led
                assert ours[key] == changes, request
                compared += 1
        assert ours.keys() == by_partition(expected).keys(), request
    assert compared > QUESTIONS / 10 > departed
