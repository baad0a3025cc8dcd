"""The hash of a group's topics, as each kind of broker writes it into its record of the group, is the one that we reckon."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from fastq_broker.controller.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from fastq_broker.coordinator.hashing import partition_of
from fastq_broker.coordinator.records import decode_key, decode_value, record_type
from fastq_broker.groups.metadata_hash import hash_of_topics
from raw_kafka import RawConnection, create_topic, fetch

from fastq._native.records import decode_records, iter_headers
from fastq.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    FindCoordinatorRequest,
    MetadataRequest,
)

pytestmark = pytest.mark.one_node  # the hash is made from one node's directory

OFFSETS_TOPIC = "__consumer_offsets"
GROUP_RECORD = 3
PATIENCE_S = 60


def written(connection: RawConnection, group: str, partition: int) -> list[int]:
    """The hashes in all records of the group, oldest first."""
    data = bytes(fetch(connection, OFFSETS_TOPIC, 0, partition=partition, partition_max_bytes=1 << 24).records)
    records = [record for position, _ in iter_headers(data) for record in decode_records(data, position)]
    return [
        decode_value(ConsumerGroupMetadataValue, record.value).metadata_hash
        for record in records
        if record.key is not None
        and record.value is not None
        and record_type(record.key) == GROUP_RECORD
        and decode_key(ConsumerGroupMetadataKey, record.key).group_id == group
    ]


def test_the_hash_of_a_groups_topics(servers: str, new_topic_name: Callable[[], str]) -> None:
    counts = {new_topic_name(): count for count in (1, 3, 12)}
    group = new_topic_name()
    nodes = (1,)
    with RawConnection(servers) as connection:
        topics = {
            name: TopicImage(
                name, create_topic(connection, name, count), (PartitionImage(1, 0, 0, nodes, nodes, ()),) * count
            )
            for name, count in counts.items()
        }
        (node,) = connection.call(MetadataRequest(topics=[]), 12).brokers
        image = MetadataImage(
            topics_by_name=topics,
            brokers={1: BrokerImage(1, 0, bytes(16), (), (), node.rack, False, False, ())},
        )
        deadline = time.monotonic() + PATIENCE_S
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        while connection.call(asked, 4).coordinators[0].error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (offsets,) = connection.call(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)]), 12
        ).topics
        partition = partition_of(group, len(offsets.partitions))

        def join(*names: str) -> int:
            """The number that is written for a member of these topics, once the coordinator knows them all."""
            epoch, expected = 0, hash_of_topics(names, image)
            while True:
                request = ConsumerGroupHeartbeatRequest(
                    group_id=group,
                    member_id="m",
                    member_epoch=epoch,
                    rebalance_timeout_ms=5000,
                    subscribed_topic_names=list(names),
                    topic_partitions=[],
                )
                answer = connection.call(request, 1)
                if answer.error_code == 0:
                    last = written(connection, group, partition)[-1]
                    if last == expected:
                        return last
                assert time.monotonic() < deadline, (answer, expected)
                time.sleep(0.1)

        names = list(counts)
        assert len({join(*names), join(*names[:1]), join(*names[1:]), join("nowhere", names[2])}) == 4
        assert join("nowhere") == 0
