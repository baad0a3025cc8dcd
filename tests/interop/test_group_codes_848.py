"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over raw sockets, on each kind of broker: codes, epochs, assignments."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from raw_kafka import RawConnection, create_topic, topic_id_of
from raw_transactions import Producer, wait_for

from fastq.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from fastq.testing import Broker

COORDINATOR_NOT_THERE_YET = (14, 15, 16)
PATIENCE_S = 60


@pytest.fixture(scope="module")
def fastq_servers(one_coordinator: Broker) -> str:
    return one_coordinator.bootstrap_servers


class Raw:
    """Heartbeats of one group over one connection."""

    def __init__(self, connection: RawConnection, group_id: str) -> None:
        self.connection = connection
        self.group_id = group_id
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
        self.until(lambda: connection.call(asked, 4).coordinators[0].error_code not in COORDINATOR_NOT_THERE_YET)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def beat(self, member_id: str, epoch: int, version: int = 1, **fields: Any) -> Any:
        """The answer to a heartbeat, once the coordinator is loaded."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=member_id, member_epoch=epoch, **fields
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.connection.call(request, version)
            if answer.error_code not in COORDINATOR_NOT_THERE_YET or time.monotonic() > deadline:
                return answer
            time.sleep(0.02)

    def join(self, member_id: str, *topics: str, version: int = 1, **fields: Any) -> Any:
        full: dict[str, Any] = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": list(topics)}
        return self.beat(member_id, 0, version, **{**full, "topic_partitions": [], **fields})

    def settle(self, answer: Any) -> tuple[int, dict[bytes, list[int]]]:
        """Epoch and assignment of a single member that has just joined, once it has any partitions."""

        def has_partitions() -> bool:
            nonlocal answer
            assert answer.error_code == 0, answer
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return True
            answer = self.beat(answer.member_id, answer.member_epoch)
            return False

        self.until(has_partitions)
        return answer.member_epoch, {
            item.topic_id: sorted(item.partitions) for item in answer.assignment.topic_partitions
        }

    def describe(self) -> Any:
        (group,) = self.connection.call(ConsumerGroupDescribeRequest(group_ids=[self.group_id]), 1).groups
        return group

    def commit(self, member_id: str, epoch: int, topic: str, version: int = 9) -> int:
        request = OffsetCommitRequest(
            group_id=self.group_id,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
                    ],
                )
            ],
        )
        return int(self.connection.call(request, version).topics[0].partitions[0].error_code)


@pytest.fixture
def topic(connection: RawConnection, new_topic_name: Callable[[], str]) -> str:
    name = new_topic_name()
    create_topic(connection, name, 3)
    return name


@pytest.fixture
def group(connection: RawConnection, topic: str) -> Raw:
    return Raw(connection, f"group-of-{topic}")


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields", "code"),
    [
        ("", 0, {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"], "topic_partitions": []}, 42),
        ("", 1, {}, 42),
        ("", -1, {}, 42),
        ("a", 0, {"subscribed_topic_names": ["t"], "topic_partitions": []}, 42),
        ("a", 0, {"rebalance_timeout_ms": 1, "topic_partitions": []}, 42),
        ("a", 0, {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t"]}, 42),
        ("a", -3, {}, 42),
        ("a", -2, {}, 42),
        ("a", 1, {"instance_id": ""}, 42),
        ("a", 1, {"rack_id": ""}, 42),
        ("a", 1, {"server_assignor": "mine"}, 112),
        ("a", 1, {}, 69),
        ("a", -1, {}, 69),
        ("a", -2, {"instance_id": "i"}, 69),
        (
            "a",
            0,
            {"rebalance_timeout_ms": 1, "subscribed_topic_regex": "(", "topic_partitions": []},
            128,
        ),
    ],
)
def test_codes_of_requests_that_are_refused(
    group: Raw, member_id: str, epoch: int, fields: dict[str, Any], code: int
) -> None:
    answer = group.beat(member_id, epoch, **fields)
    assert (answer.error_code, answer.member_epoch) == (code, 0)
    assert answer.error_message


def test_a_member_joins_stays_and_leaves(group: Raw, topic: str) -> None:
    joined = group.join("a", topic)
    assert (joined.error_code, joined.member_id) == (0, "a")
    assert 0 < joined.heartbeat_interval_ms <= 5000  # fastq has members come sooner while a group settles
    epoch, owned = group.settle(joined)
    assert owned == {topic_id_of(group.connection, topic): [0, 1, 2]}
    assert group.beat("a", epoch).assignment is None
    assert group.beat("a", epoch + 1).error_code == 110
    assert group.beat("b", epoch).error_code == 25
    assert group.beat("a", -1).member_epoch == -1
    assert group.beat("a", epoch).error_code == 25


def test_version_0_gets_its_id_from_the_broker(group: Raw, topic: str) -> None:
    answer = group.join("", topic, version=0)
    assert answer.error_code == 0
    assert answer.member_id
    assert group.beat(answer.member_id, answer.member_epoch, 0).error_code == 0


def test_static_members(group: Raw, topic: str) -> None:
    epoch = group.join("a", topic, instance_id="i").member_epoch
    assert group.join("b", topic, instance_id="i").error_code == 111
    assert group.beat("b", epoch, instance_id="i").error_code == 82
    assert group.beat("b", -2, instance_id="i").error_code == 82
    assert group.beat("b", -2, instance_id="j").error_code == 25
    assert group.beat("a", -2, instance_id="i").member_epoch == -2
    back = group.join("b", topic, instance_id="i")
    assert (back.error_code, back.member_id) == (0, "b")
    assert group.beat("a", epoch, instance_id="i").error_code == 82


def test_commits_and_fetches_of_members(group: Raw, topic: str) -> None:
    epoch, _ = group.settle(group.join("a", topic))
    assert group.commit("a", epoch, topic) == 0
    assert group.commit("a", epoch + 1, topic) == 113
    assert group.commit("b", epoch, topic) == 25
    assert group.commit("", -1, topic) == 25
    assert group.commit("a", epoch, topic, version=8) == 35

    def fetched(member_id: str | None, member_epoch: int) -> int:
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group.group_id, member_id=member_id, member_epoch=member_epoch, topics=None
        )
        (answer,) = group.connection.call(OffsetFetchRequest(groups=[asked]), 9).groups
        return int(answer.error_code)

    assert fetched(None, -1) == 0
    assert fetched("a", epoch) == 0
    assert fetched("a", epoch + 1) == 113
    assert fetched("b", epoch) == 25
    group.beat("a", -1)
    assert group.commit("", -1, topic) == 0


def test_commits_of_members_in_a_transaction(group: Raw, topic: str, connection: RawConnection) -> None:
    """There is no STALE_MEMBER_EPOCH in that API."""
    epoch, _ = group.settle(group.join("a", topic))
    producer = Producer(connection, f"copier-of-{topic}")

    def committed(member_id: str, member_epoch: int) -> int:
        place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.name,
            group_id=group.group_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=member_epoch,
            member_id=member_id,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[place])],
        )
        return int(
            wait_for(
                lambda: connection.call(request, 5).topics[0].partitions[0].error_code,
                lambda code: code in (*COORDINATOR_NOT_THERE_YET, 51),
            )
        )

    assert committed("a", epoch) == 0
    assert committed("a", epoch + 1) == 22
    assert committed("b", epoch) == 25
    assert committed("", -1) == 0
    assert producer.finish(committed=False) == 0


def test_descriptions_lists_and_deletion(group: Raw, topic: str) -> None:
    assert group.describe().error_code == 69
    epoch, _ = group.settle(group.join("a", topic, rack_id="r"))
    group.until(lambda: group.describe().group_state == "Stable")
    described = group.describe()
    assert (described.error_code, described.assignor_name) == (0, "uniform")
    assert described.group_epoch == described.assignment_epoch == epoch
    (member,) = described.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_type) == ("a", None, "r", 1)
    assert (member.client_id, member.client_host, member.member_epoch) == ("raw", "/127.0.0.1", epoch)
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ([topic], "")
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, sorted(assigned.partitions)) == (topic, [0, 1, 2])
    (target,) = member.target_assignment.topic_partitions
    assert sorted(target.partitions) == [0, 1, 2]
    listed = group.connection.call(ListGroupsRequest(types_filter=["consumer"]), 5).groups
    (mine,) = [item for item in listed if item.group_id == group.group_id]
    assert (mine.protocol_type, mine.group_state, mine.group_type) == ("consumer", "Stable", "consumer")

    def delete() -> int:
        (result,) = group.connection.call(DeleteGroupsRequest(groups_names=[group.group_id]), 2).results
        return int(result.error_code)

    assert delete() == 68
    group.beat("a", -1)
    assert delete() == 0
    assert group.describe().error_code == 69


def test_a_classic_member_needs_a_protocol_of_consumers(group: Raw, topic: str) -> None:
    group.settle(group.join("a", topic))
    request = JoinGroupRequest(
        group_id=group.group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="connect",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    assert group.connection.call(request, 9).error_code == 23
