"""Groups move with their data directory: offsets, members and generations, from here to Apache Kafka and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_kafka
import pytest
from raw_groups import GroupCalls
from raw_kafka import RawConnection, create_topic

from fastq.protocol.messages import DescribeGroupsRequest, FindCoordinatorRequest, ListGroupsRequest, MetadataRequest
from fastq.testing import Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOPIC = "moving"


class Groups(GroupCalls):
    """Calls of group `g` over one connection."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection

    async def call(self, request: Any, version: int) -> Any:
        return self.connection.call(request, version)


@contextmanager
def groups_of(servers: str, *, create: bool = False) -> Iterator[Groups]:
    """Group calls once topic and coordinator are there."""
    with RawConnection(servers) as connection:
        if create:
            create_topic(connection, TOPIC, 2)
        deadline = time.monotonic() + 60
        while True:
            found = connection.call(FindCoordinatorRequest(key="g"), 0)
            request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)])
            (topic,) = connection.call(request, 9).topics
            listed = connection.call(ListGroupsRequest(), 0)
            codes = [found.error_code, topic.error_code, listed.error_code]
            codes += [partition.error_code for partition in topic.partitions]
            (group,) = connection.call(DescribeGroupsRequest(groups=["g"]), 5).groups
            if not any([*codes, group.error_code]):
                break
            assert time.monotonic() < deadline, codes
            time.sleep(0.1)
        yield Groups(connection)


async def write(groups: Groups, offset: int) -> Any:
    """A static member joins (again), its group commits, and so does somebody without a group."""
    joined = await groups.join(5, group_instance_id="i", session_timeout_ms=1_800_000)
    assert joined.error_code == 0
    await groups.sync(3, joined, {joined.member_id: b"mine"}, group_instance_id="i")
    committed = await groups.commit(
        7,
        {(TOPIC, 0): offset},
        member_id=joined.member_id,
        generation=joined.generation_id,
        group_instance_id="i",
    )
    assert committed == {(TOPIC, 0): 0}
    assert await groups.commit(8, {(TOPIC, 1): offset + 1}, group_id="simple") == {(TOPIC, 1): 0}
    return joined


async def check(groups: Groups, joined: Any, offset: int) -> None:
    """What `write` has left is there: the member need not join again."""
    assert await groups.fetch(8, None) == {(TOPIC, 0): (offset, 0, "m")}
    assert await groups.fetch(8, None, group_id="simple") == {(TOPIC, 1): (offset + 1, 0, "m")}
    (group,) = (await groups.call(DescribeGroupsRequest(groups=["g"]), 5)).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert [(m.member_id, m.group_instance_id, m.member_assignment) for m in group.members] == [
        (joined.member_id, "i", b"mine")
    ]
    assert await groups.heartbeat(2, joined.member_id, joined.generation_id) == 0
    synced = await groups.sync(3, joined, group_instance_id="i")
    assert (synced.error_code, synced.assignment) == (0, b"mine")


def test_from_fastq_to_kafka_and_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker, groups_of(broker.bootstrap_servers, create=True) as groups:
        joined = asyncio.run(write(groups, 10))
    with apache_kafka.ApacheKafka(data, heap="512m") as kafka, groups_of(kafka.bootstrap_servers) as groups:
        asyncio.run(check(groups, joined, 10))
        joined = asyncio.run(write(groups, 20))
    with Broker(data) as broker, groups_of(broker.bootstrap_servers) as groups:
        asyncio.run(check(groups, joined, 20))


def test_from_kafka_to_fastq_and_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        apache_kafka.ApacheKafka(data, heap="512m") as kafka,
        groups_of(kafka.bootstrap_servers, create=True) as groups,
    ):
        joined = asyncio.run(write(groups, 10))
    with Broker(data) as broker, groups_of(broker.bootstrap_servers) as groups:
        asyncio.run(check(groups, joined, 10))
        joined = asyncio.run(write(groups, 20))
    with apache_kafka.ApacheKafka(data, heap="512m") as kafka, groups_of(kafka.bootstrap_servers) as groups:
        asyncio.run(check(groups, joined, 20))
