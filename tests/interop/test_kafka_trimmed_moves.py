"""Records are deleted while every replica is on its way to another directory of its node: on three nodes of ours, and with Apache Kafka as
the judge of the directories that come of it.

Rules: a rate of one byte a second keeps the moves under way for as long as the test wants; three nodes of Apache Kafka then run on the same
directories and settings, and each has to lead what it found there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import apache_kafka
import pytest
from test_rolling_replacement import Cluster

from fastq import Consumer, Producer
from fastq.admin import Admin, ConfigResource, ElectionType, OffsetSpec, ResourceType, TopicPartitionReplica
from fastq.metadata import TopicPartition

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TP = TopicPartition("trimmed", 0)
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
TRIMS = 300, 700
"""While the copies have next to nothing of it, and once more behind that; in the middle of segments and of batches."""


def value(number: int) -> bytes:
    return b"%d " % number * 1000


def produce(servers: str, numbers: range) -> None:
    with Producer(bootstrap_servers=servers, acks="all", linger_ms=20) as producer:
        for number in numbers:
            producer.send(TP.topic, value(number), partition=TP.partition)


def places(admin: Admin) -> dict[int, dict[str, bool]]:
    """By node: the directories that have the partition, and whether it is still a copy there."""
    found = admin.describe_log_dirs(topics=[TP.topic]).results()
    return {
        node: {one.path: replica.is_future for one in directories for replica in one.replicas}
        for node, directories in found.items()
    }


def rates(admin: Admin, cluster: Cluster) -> set[str | None]:
    """What each node says that it may move in a second."""
    nodes = admin.describe_configs([ConfigResource.broker(node) for node in cluster.places]).results()
    return {settings[RATE].value for settings in nodes.values()}


def other(cluster: Cluster, node: int, current: str) -> str:
    """The directory of a node that is not that one."""
    one, two = cluster.places[node].kafka.properties["log.dirs"].split(",")
    return two if current == one else one


def offsets(admin: Admin) -> tuple[int, int]:
    """Where it begins and ends."""
    (first, last) = (
        admin.list_offsets({TP: of})[TP].result().offset for of in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return first, last


def begins_at(servers: str, offset: int) -> bool:
    """Whether the whole of the partition, as its leader has it, begins there."""
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TP])
        records = [(record.offset, record.value) for record in consumer.read_to_end()]
    return records == [(number, value(number)) for number in range(offset, 1000)]


def lead(cluster: Cluster, admin: Admin, node: int, until: Callable[[Callable[[], bool]], None]) -> None:
    """Make a node the leader."""
    order = [node, *(number for number in cluster.places if number != node)]
    admin.alter_partition_reassignments({TP: order}).results()
    until(lambda: not admin.list_partition_reassignments())
    admin.elect_leaders(ElectionType.PREFERRED, [TP])

    def leads() -> bool:
        leader = admin.describe_topic(TP.topic).partitions[TP.partition].leader
        return leader is not None and leader.node_id == node

    until(leads)


@pytest.mark.timeout(400)
def test_records_that_are_deleted_amid_a_move_are_gone_for_apache_kafka(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, static=False)
    for place in cluster.places.values():
        place.kafka.properties["replica.fetch.max.bytes"] = "1"
    try:
        for place in cluster.places.values():
            place.kafka.format()
            place.start(ours=True)
        cluster.whole()
        with Admin(bootstrap_servers=cluster.servers) as admin:
            admin.create_topic(TP.topic, 1, replication_factor=3, configs={"segment.bytes": "1048576"})
            produce(cluster.servers, range(600))
            admin.set_configs(ALL_BROKERS, {RATE: "1"})
            # A node that has not heard of it yet would be done at once.
            cluster.until(lambda: rates(admin, cluster) == {"1"})
            before = places(admin)
            wanted = {node: {other(cluster, node, *held): False} for node, held in before.items()}
            moves = {TopicPartitionReplica(TP.topic, 0, node): path for node, held in wanted.items() for path in held}
            admin.alter_replica_log_dirs(moves).results()
            cluster.until(lambda: all(len(held) == 2 for held in places(admin).values()))
            admin.delete_records({TP: TRIMS[0]}).results()
            produce(cluster.servers, range(600, 1000))
            admin.delete_records({TP: TRIMS[1]}).results()
            assert all(len(held) == 2 for held in places(admin).values()), "the moves are still under way"
            assert offsets(admin) == (TRIMS[1], 1000)
            admin.set_configs(ALL_BROKERS, {RATE: None})
            cluster.until(lambda: places(admin) == wanted)
            assert begins_at(cluster.servers, TRIMS[1])
        for place in cluster.places.values():
            place.kill()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda place: place.start(ours=False), cluster.places.values()))
        cluster.whole()
        with Admin(bootstrap_servers=cluster.servers) as admin:
            assert places(admin) == wanted
            for node in cluster.places:
                lead(cluster, admin, node, cluster.until)
                assert offsets(admin) == (TRIMS[1], 1000), node
                cluster.until(partial(begins_at, cluster.servers, TRIMS[1]))
    except BaseException:
        for place in cluster.places.values():
            print(place.log_text())
        raise
    finally:
        cluster.kill()
