"""The consumer protocol (KIP-848) over sockets: what the configuration does to it, and what a crash leaves of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from raw_cluster import connect
from raw_kafka import RawConnection, create_topic
from under_test import ONE_COORDINATOR, broker_under_test

from fastq.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, FindCoordinatorRequest

pytestmark = pytest.mark.any_nodes

NOT_THERE_YET = (14, 15, 16)


def beat(connection: RawConnection, member_id: str, epoch: int, **fields: Any) -> Any:
    """A heartbeat, once the coordinator is there."""
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
    deadline = time.monotonic() + 60
    while True:
        answer = connection.call(request, 1)
        if answer.error_code not in NOT_THERE_YET or time.monotonic() > deadline:
            return answer
        connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        time.sleep(0.02)


def join(connection: RawConnection, member_id: str, **fields: Any) -> Any:
    full = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return beat(connection, member_id, 0, **{**full, **fields})


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_members_outlive_a_crash_of_the_broker(durability: str) -> None:
    with broker_under_test(
        config={"durability": durability, "group.consumer.assignment.interval.ms": 0, **ONE_COORDINATOR}
    ) as broker:
        with connect(broker.bootstrap_servers) as connection:
            create_topic(connection, "t", 4)
            first = join(connection, "a")
            assert (first.error_code, first.member_epoch) == (0, 1)
            assert join(connection, "b", instance_id="i").member_epoch == 2
            told = beat(connection, "a", 1)
            kept = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=item.topic_id, partitions=item.partitions)
                for item in told.assignment.topic_partitions
            ]
        broker.kill()
        broker.start()
        with connect(broker.bootstrap_servers) as connection:
            assert beat(connection, "a", 1, topic_partitions=kept).member_epoch == 2
            given = beat(connection, "b", 2, instance_id="i")
            (part,) = given.assignment.topic_partitions
            assert sorted([*part.partitions, *kept[0].partitions]) == [0, 1, 2, 3]
            assert beat(connection, "x", 2).error_code == 25


def test_the_configuration_bounds_and_tunes_it() -> None:
    config = {
        "group.consumer.max.size": 1,
        "group.consumer.heartbeat.interval.ms": 1234,
        "group.consumer.min.heartbeat.interval.ms": 1000,
        "group.consumer.assignment.interval.ms": 0,
        "group.consumer.assignors": "range",
        **ONE_COORDINATOR,
    }
    with broker_under_test(config=config) as broker, connect(broker.bootstrap_servers) as connection:
        create_topic(connection, "t", 4)
        assert join(connection, "a", server_assignor="uniform").error_code == 112
        assert join(connection, "a").heartbeat_interval_ms == 1234
        assert join(connection, "b").error_code == 81
        (group,) = connection.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert group.assignor_name == "range"


def test_it_can_be_turned_off() -> None:
    config = {"group.coordinator.rebalance.protocols": "classic", **ONE_COORDINATOR}
    with broker_under_test(config=config) as broker, connect(broker.bootstrap_servers) as connection:
        assert join(connection, "a").error_code == 35
        (group,) = connection.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert group.error_code == 35
