"""Damage to the log of one replica among three, by a loss of power or a bad disk: what was lost is fetched again from the leader; what is
bad is passed on to nobody, and never in silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq._native.records import iter_headers
from fastq.admin import ElectionType
from fastq.errors import CorruptRecord
from fastq.testing import Broker, Cluster

COUNT, BAD = 60, 30
"""Records, each a batch of its own, and which of them is damaged."""
TP = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(in_memory=True) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(TP.topic, replica_assignments={0: [1, 2, 3]})
        fill(cluster, range(COUNT))
        cluster.wait_in_sync()
        yield cluster


def fill(cluster: Cluster, numbers: range) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for number in numbers:
            producer.send(TP.topic, value(number), partition=0).result(60)


def value(number: int) -> bytes:
    return b"%d " % number * 20


def segment(node: Broker) -> Path:
    (found,) = (node.data_dir / str(TP)).glob("*.log")
    return found


def places(path: Path) -> list[int]:
    """Where batches begin."""
    return [position for position, _ in iter_headers(path.read_bytes())]


def flip(path: Path, number: int) -> None:
    """The last byte of that batch is another one."""
    position = [*places(path), path.stat().st_size][number + 1] - 1
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def cut(path: Path, number: int) -> None:
    """The file ends in the middle of that batch."""
    with path.open("r+b") as file:
        file.truncate(places(path)[number] + 40)


def rubbish(path: Path, number: int) -> None:
    """From the middle of that batch on the file has its size, and nothing that was written: blocks that never came to the disk."""
    position, size = places(path)[number] + 40, path.stat().st_size
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(size - position))


def until(condition: Callable[[], object], cluster: Cluster) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, cluster.log[-20_000:]
        time.sleep(0.02)


def in_sync(cluster: Cluster) -> set[int]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return set(admin.describe_topic(TP.topic).partitions[0].isr)


def lead(cluster: Cluster, node: Broker) -> None:
    """Have a node that is in sync lead."""
    others = [each.node_id for each in cluster.nodes if each is not node]
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_partition_reassignments({TP: [node.node_id, *others]}).results()
        admin.elect_leaders(ElectionType.PREFERRED, [TP])[TP].result()
    until(lambda: cluster.leader(*TP) is node, cluster)


def read(cluster: Cluster) -> list[bytes | None]:
    with Consumer(TP.topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        return [record.value for record in consumer.read_to_end(timeout=60)]


@pytest.mark.parametrize(
    ("who", "damage"),
    [
        *[(1, cut), (1, flip), (2, cut), (2, rubbish)],
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((1, rubbish), (2, flip))),
    ],
)
def test_what_a_loss_of_power_took_is_fetched_again(
    cluster: Cluster, damage: Callable[[Path, int], None], who: int
) -> None:
    """Of a leader (node 1) and of a follower, which comes back as the other's follower and then leads; the others wrote on meanwhile."""
    node, other = cluster.node(who), cluster.node(3)
    node.kill()
    until(lambda: in_sync(cluster) == {1, 2, 3} - {who}, cluster)
    fill(cluster, range(COUNT, COUNT + 5))
    damage(segment(node), BAD)
    node.start()
    cluster.wait_in_sync()
    assert segment(node).read_bytes() == segment(other).read_bytes()
    assert f"{segment(node)}: cut off at byte {places(segment(node))[BAD]}, " in node.log, node.log
    lead(cluster, node)
    assert read(cluster) == [value(number) for number in range(COUNT + 5)]


def test_a_damaged_batch_is_passed_on_to_nobody(cluster: Cluster) -> None:
    """Below the recovery point nothing is looked at when a node starts, as with Apache Kafka. When it leads, who reads the batch is told
    where it is, and a replica that has to fetch it stays behind, and says why, until one leads that has it whole."""
    bad, empty, good = cluster.nodes
    bad.stop()
    flip(segment(bad), BAD)
    bad.start()
    cluster.wait_in_sync()
    assert read(cluster) == [value(number) for number in range(COUNT)], "another leads"
    lead(cluster, bad)
    with pytest.raises(CorruptRecord, match=rf"corrupt batch in t-0 at offset {BAD}"):
        read(cluster)

    empty.stop()
    for file in segment(empty).parent.iterdir():
        file.unlink()
    empty.start()
    until(lambda: f"the CRC of the batch at offset {BAD} is wrong" in empty.log, cluster)
    assert in_sync(cluster) == {bad.node_id, good.node_id}
    assert len(places(segment(empty))) <= BAD
    assert segment(good).read_bytes().startswith(segment(empty).read_bytes())

    lead(cluster, good)
    cluster.wait_in_sync()
    assert segment(empty).read_bytes() == segment(good).read_bytes()
    bad.stop()
    for file in segment(bad).parent.iterdir():  # what a person does who was told
        file.unlink()
    bad.start()
    cluster.wait_in_sync()
    lead(cluster, bad)
    assert read(cluster) == [value(number) for number in range(COUNT)]
    assert segment(bad).read_bytes() == segment(good).read_bytes()


def test_a_leader_that_lacks_records_in_its_middle_has_them_back_by_a_restart() -> None:
    """It was the last in sync as power went, so that it leads as it is; a replica that has them comes in sync, and it restarts."""
    with Cluster(4, in_memory=True, config={"min.insync.replicas": 1}) as cluster:
        node, other = cluster.node(4), cluster.node(1)
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            small = {"segment.bytes": str(1 << 20)}
            admin.create_topic(TP.topic, replica_assignments={0: [4, 1]}, configs=small)
        with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
            for number in range(COUNT):
                producer.send(TP.topic, value(number) * 3000, partition=0).result(60)
        cluster.wait_in_sync()
        folder = node.data_dir / str(TP)
        segments = sorted(folder.glob("*.log"))
        assert len(segments) > 3
        gone = int(segments[1].stem), int(segments[2].stem)
        other.kill()
        until(lambda: in_sync(cluster) == {4}, cluster)
        node.kill()
        segments[1].write_bytes(b"")
        (node.data_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
        node.start()
        until(lambda: cluster.leader(*TP) is node, cluster)
        other.start()
        cluster.wait_in_sync()
        numbers = [number for number in range(COUNT) if not gone[0] <= number < gone[1]]
        assert cluster.leader(*TP) is node and read(cluster) == [value(number) * 3000 for number in numbers]
        node.restart()
        cluster.wait_in_sync()
        assert f"records are missing from offset {gone[0]} on in the middle of the log" in node.log, node.log
        lead(cluster, node)
        assert read(cluster) == [value(number) * 3000 for number in range(COUNT)]
