"""A follower of ours with Apache Kafka as the leader: it is told where to begin, cuts off what the leader does not have, joins those in
sync, and has the leader's log byte for byte.

The node is played: it registers and says that it lives, and its fetchers do the rest, on a real log.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import apache_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from fastq_broker.controller.features import SUPPORTED
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.replication.fetcher import FetcherConfig
from fastq_broker.replication.fetcher_driver import Assignment, NodeState, ReplicaFetchers
from fastq_broker.replication.fetcher_session import ReplicaPartition
from raft_members import until
from raw_kafka import RawConnection

from fastq._native.records import build_batch
from fastq.config import ClientConfig
from fastq.metadata import Node
from fastq.protocol.messages import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    CreateTopicsRequest,
    DescribeClusterRequest,
    MetadataRequest,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = "followed"
NODE = 2


class Registered:
    """A broker that Apache Kafka's controller knows, and nothing else of it."""

    def __init__(self, kafka: apache_kafka.ApacheKafka) -> None:
        with RawConnection(kafka.bootstrap_servers) as broker:
            cluster_id = broker.call(DescribeClusterRequest(), 1).cluster_id
        self.controller = RawConnection(f"127.0.0.1:{kafka.controller_port}")
        request = BrokerRegistrationRequest(
            broker_id=NODE,
            cluster_id=cluster_id,
            incarnation_id=bytes([NODE]) * 16,
            listeners=[
                BrokerRegistrationRequest.Listener(name="PLAINTEXT", host="127.0.0.1", port=apache_kafka.free_port())
            ],
            features=[
                BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED.items()
            ],
            rack=None,
            log_dirs=[bytes([9]) * 16],
        )
        answer = self.controller.call(request, 4)
        assert answer.error_code == 0
        self.epoch = answer.broker_epoch

    def live(self, want_fence: bool = False) -> None:
        """Say that it lives; or that it does not want to, and so leaves those in sync."""
        request = BrokerHeartbeatRequest(
            broker_id=NODE,
            broker_epoch=self.epoch,
            current_metadata_offset=self.epoch + 1000,
            want_fence=want_fence,
        )
        assert self.controller.call(request, 1).error_code == 0


def metadata(kafka: apache_kafka.ApacheKafka) -> tuple[bytes, int, list[int]]:
    """Topic id, leader epoch, and who is in sync."""
    with RawConnection(kafka.bootstrap_servers) as broker:
        (topic,) = broker.call(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False),
            12,
        ).topics
        (partition,) = topic.partitions
        return topic.topic_id, partition.leader_epoch, sorted(partition.isr_nodes)


def create_topic(kafka: apache_kafka.ApacheKafka) -> None:
    """On both nodes."""
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, NODE])
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    with RawConnection(kafka.bootstrap_servers) as broker:
        answer = broker.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
        assert [one.error_code for one in answer.topics] == [0]


def produce(kafka: apache_kafka.ApacheKafka, count: int, **settings: str | bool | int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0, **settings})
    for number in range(count):
        producer.produce(TOPIC, b"value %d" % number * 10, key=b"%d" % number, partition=0)
    assert producer.flush(60) == 0


def test_a_follower_of_apache_kafka(tmp_path: Path) -> None:
    reason = apache_kafka.available()
    if reason is not None:
        pytest.skip(reason)

    async def scenario(kafka: apache_kafka.ApacheKafka) -> None:
        node = await asyncio.to_thread(Registered, kafka)
        await asyncio.to_thread(create_topic, kafka)
        topic_id, epoch, in_sync = metadata(kafka)
        assert in_sync == [1]
        for settings in ({}, {"enable.idempotence": True}, {"compression.type": "zstd", "acks": 1}):
            await asyncio.to_thread(produce, kafka, 500, **settings)  # type: ignore[arg-type]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        deleted = admin.delete_records([Place(TOPIC, 0, 101)])
        await asyncio.to_thread(next(iter(deleted.values())).result, 30)

        manager = LogManager([tmp_path / "ours"], default_config=LogConfig())
        manager.start()
        log = manager.create(TOPIC, 0, topic_id)
        log.share(True)
        fetchers = ReplicaFetchers(
            FetcherConfig(replica_id=NODE),
            ClientConfig(),
            asyncio.get_running_loop(),
            NodeState(lambda: node.epoch, lambda: SUPPORTED["metadata.version"][1]),
            now_ms=manager.clock,
        )

        def follow(epoch: int) -> None:
            leader = Node(1, "127.0.0.1", kafka.port)
            fetchers.follow([Assignment(ReplicaPartition(TOPIC, topic_id, 0), leader, epoch, log)])

        async def until_log_ends(offset: int) -> None:
            deadline = time.monotonic() + 60
            while (log.log_end_offset, log.high_watermark) != (offset, offset):
                assert time.monotonic() < deadline, (log.log_end_offset, log.high_watermark, kafka.log_text()[-2000:])
                await asyncio.to_thread(node.live)
                await asyncio.sleep(0.05)

        # Its log begins where the leader's does, within a batch.
        follow(epoch)
        await until_log_ends(1500)
        assert log.log_start_offset == 101

        # Once it lives it is one of those in sync, and acknowledged is what both have.
        while metadata(kafka)[2] != [1, NODE]:
            await asyncio.to_thread(node.live)
            await asyncio.sleep(0.05)
        await asyncio.to_thread(produce, kafka, 100, acks="all")
        assert log.log_end_offset == 1600

        # It has more of the leader's epoch than the leader, as after an election that lost records.
        fetchers.unfollow([(topic_id, 0)])
        await asyncio.to_thread(node.live, want_fence=True)  # else it would be the next leader
        await until(lambda: metadata(kafka)[2] == [1])
        node.controller.sock.close()
        await asyncio.to_thread(kafka.stop)
        log.append_as_follower(
            build_batch([(1, None, b"lost")], base_offset=1600, leader_epoch=epoch), now_ms=manager.clock()
        )
        await asyncio.to_thread(kafka.start)
        deadline = time.monotonic() + 60
        while True:
            try:
                again = await asyncio.to_thread(Registered, kafka)
                later = metadata(kafka)[1]
                if later > epoch:
                    break
            except (AssertionError, OSError, EOFError):
                pass
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        node.epoch, node.controller = again.epoch, again.controller
        follow(later)
        await asyncio.to_thread(produce, kafka, 100, acks=1)
        await until_log_ends(1700)
        fetchers.close()
        await asyncio.to_thread(kafka.stop)
        theirs = b"".join(path.read_bytes() for path in sorted((tmp_path / "theirs" / f"{TOPIC}-0").glob("*.log")))
        ours = log.read(101, 1 << 24).read()
        assert theirs.endswith(ours)
        assert ours == theirs[theirs.index(ours[:61]) :]
        manager.close()

    with apache_kafka.ApacheKafka(tmp_path / "theirs", heap="512m") as kafka:
        asyncio.run(scenario(kafka))
