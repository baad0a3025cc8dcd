"""Group operations of the admin client against a small broker that plays coordinators of every age."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from admin_fakes import A0, A1, B0, Coordinators, answer_once, limit
from net_fakes import FakeBroker

from fastq._native.wire import Writer
from fastq.admin import Admin, CommittedOffset, OffsetChange, OffsetReset
from fastq.admin.offset_reset import plan_reset
from fastq.errors import (
    ConnectionTimeout,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    NonEmptyGroup,
    ProtocolError,
    UnknownMemberId,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from fastq.metadata import TopicPartition
from fastq.net.operations import Coordinator
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics = {"a": 2, "b": 1}
        broker.handlers[ApiKey.FIND_COORDINATOR] = Coordinators(broker)
        yield broker


@pytest.fixture
def admin(broker: FakeBroker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.address, default_api_timeout_ms=5000, retry_backoff_ms=1) as admin:
        yield admin


def serve_bounds(broker: FakeBroker, start: int, end: int, at_time: int = -1) -> None:
    """ListOffsets of a partition that holds the records from `start` to `end`."""

    def handle(request: Any, version: int) -> Any:
        answers = {-2: start, -1: end}
        partition = m.ListOffsetsResponse.ListOffsetsPartitionResponse
        return m.ListOffsetsResponse(
            topics=[
                m.ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        partition(partition_index=p.partition_index, offset=answers.get(p.timestamp, at_time))
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    broker.handlers[ApiKey.LIST_OFFSETS] = handle


def serve_commits(broker: FakeBroker, committed: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """OffsetFetch and OffsetCommit of one group over a dictionary."""

    def fetch(request: Any, version: int) -> Any:
        topics = request.groups[0].topics if version >= 8 else request.topics
        if topics is None:
            wanted = list(committed)
        else:
            wanted = [TopicPartition(t.name, index) for t in topics for index in t.partition_indexes]
        group = m.OffsetFetchResponse.OffsetFetchResponseGroup
        topic_type: Any = m.OffsetFetchResponse.OffsetFetchResponseTopics
        part_type: Any = m.OffsetFetchResponse.OffsetFetchResponsePartitions
        if version < 8:
            topic_type = m.OffsetFetchResponse.OffsetFetchResponseTopic
            part_type = m.OffsetFetchResponse.OffsetFetchResponsePartition
        answers = [
            topic_type(
                name=tp.topic,
                partitions=[
                    part_type(partition_index=tp.partition, committed_offset=committed.get(tp, -1), metadata="note")
                ],
            )
            for tp in wanted
        ]
        if version < 8:
            return m.OffsetFetchResponse(topics=answers)
        return m.OffsetFetchResponse(groups=[group(group_id=request.groups[0].group_id, topics=answers)])

    def commit(request: Any, version: int) -> Any:
        assert request.generation_id_or_member_epoch == -1 and request.member_id == ""
        answer = m.OffsetCommitResponse.OffsetCommitResponseTopic
        partition = m.OffsetCommitResponse.OffsetCommitResponsePartition
        for topic in request.topics:
            for p in topic.partitions:
                committed[TopicPartition(topic.name, p.partition_index)] = p.committed_offset
        return m.OffsetCommitResponse(
            topics=[
                answer(name=t.name, partitions=[partition(partition_index=p.partition_index) for p in t.partitions])
                for t in request.topics
            ]
        )

    broker.handlers[ApiKey.OFFSET_FETCH] = fetch
    broker.handlers[ApiKey.OFFSET_COMMIT] = commit
    return committed


def classic_group(group_id: str, **fields: Any) -> m.DescribeGroupsResponse.DescribedGroup:
    values = {"group_state": "Stable", "protocol_type": "consumer", "protocol_data": "range", **fields}
    return m.DescribeGroupsResponse.DescribedGroup(group_id=group_id, **values)


def embedded(version: int, message: Any) -> bytes:
    writer = Writer()
    message.encode(writer, min(version, 3))
    return version.to_bytes(2, "big") + bytes(writer.getvalue())


# -- coordinators ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [6, 3, 0])
def test_a_call_looks_for_its_coordinator_until_there_is_one(broker: FakeBroker, admin: Admin, version: int) -> None:
    limit(broker, ApiKey.FIND_COORDINATOR, version)
    coordinators = broker.handlers[ApiKey.FIND_COORDINATOR] = Coordinators(broker, 15, 14, 16)
    answer_once(broker, ApiKey.DELETE_GROUPS, m.DeleteGroupsResponse())
    request = m.DeleteGroupsRequest(groups_names=["g"])
    response = admin._client.call(Coordinator("group", "g"), request)
    assert response == m.DeleteGroupsResponse() and coordinators.asked == 4


def test_a_coordinator_that_never_comes_is_the_error(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.FIND_COORDINATOR] = Coordinators(broker, *[15] * 10_000)
    with pytest.raises(CoordinatorNotAvailable, match="group g"):
        admin._client.call(Coordinator("group", "g"), m.DeleteGroupsRequest(groups_names=["g"]), 1.5)


def test_a_coordinator_that_may_not_be_known(broker: FakeBroker, admin: Admin) -> None:
    broker.handlers[ApiKey.FIND_COORDINATOR] = Coordinators(broker, 30, 30)
    with pytest.raises(GroupAuthorizationFailed):
        admin._client.call(Coordinator("group", "g"), m.DeleteGroupsRequest(groups_names=["g"]))
    assert isinstance(admin.describe_groups(["g"])["g"].error, GroupAuthorizationFailed)


def test_after_a_lost_connection_the_coordinator_is_looked_up_again(broker: FakeBroker, admin: Admin) -> None:
    coordinators = broker.handlers[ApiKey.FIND_COORDINATOR]
    calls = []

    def delete(request: Any, version: int) -> Any:
        calls.append(request)
        if len(calls) == 1:
            broker.drop_connections()
            return None
        return m.DeleteGroupsResponse()

    broker.handlers[ApiKey.DELETE_GROUPS] = delete
    admin._client.call(Coordinator("group", "g"), m.DeleteGroupsRequest(groups_names=["g"]))
    assert len(calls) == 2 and coordinators.asked >= 2


@pytest.mark.parametrize("version", [6, 2])
def test_where_a_coordinator_has_left_the_cluster_its_successor_is_asked(
    broker: FakeBroker, admin: Admin, version: int
) -> None:
    """The first answer names a node that no metadata has."""
    limit(broker, ApiKey.FIND_COORDINATOR, version)
    here, left = Coordinators(broker), Coordinators(broker)
    left_node = SimpleNamespace(node_id=2, host="127.0.0.1", port=1)

    def find(request: Any, version: int) -> Any:
        if left.asked == 0:
            left.broker = left_node  # type: ignore[assignment]  # where it is, which is all that is asked of it
            return left(request, version)
        return here(request, version)

    broker.handlers[ApiKey.FIND_COORDINATOR] = find
    result = m.DeleteGroupsResponse.DeletableGroupResult
    answer_once(broker, ApiKey.DELETE_GROUPS, m.DeleteGroupsResponse(results=[result(group_id="g")]))
    admin.delete_groups(["g"]).results()
    assert (left.asked, here.asked) == (1, 1)
    left.asked = 0
    admin._client.call(Coordinator("group", "g"), m.DeleteGroupsRequest(groups_names=["g"]))
    assert (left.asked, here.asked) == (1, 2)


@pytest.mark.parametrize("version", [6, 2])
def test_an_answer_that_leaves_the_group_out_is_malformed(broker: FakeBroker, admin: Admin, version: int) -> None:
    """As a consumer and a producer take it, too."""
    limit(broker, ApiKey.FIND_COORDINATOR, version)
    broker.handlers[ApiKey.FIND_COORDINATOR] = lambda request, version: m.FindCoordinatorResponse()
    errors = admin.delete_groups(["g", "h"]).errors
    for group in ("g", "h"):
        assert isinstance(errors[group], ProtocolError)
        assert f"FindCoordinator response leaves the group out [api FindCoordinator, group {group}]" in str(
            errors[group]
        )


def test_a_coordinator_that_does_not_answer(broker: FakeBroker, admin: Admin) -> None:
    over = threading.Event()
    broker.handlers[ApiKey.DELETE_GROUPS] = lambda request, version: over.wait(10) and None
    with pytest.raises(ConnectionTimeout):
        admin._client.call(Coordinator("group", "g"), m.DeleteGroupsRequest(groups_names=["g"]), 0.3)
    over.set()


@pytest.mark.parametrize("version", [6, 2])
def test_a_coordinator_that_moves_in_every_step(broker: FakeBroker, admin: Admin, version: int) -> None:
    limit(broker, ApiKey.FIND_COORDINATOR, version)
    result = m.DeleteGroupsResponse.DeletableGroupResult
    requests = answer_once(
        broker,
        ApiKey.DELETE_GROUPS,
        m.DeleteGroupsResponse(results=[result(group_id="g", error_code=16), result(group_id="h")]),
        m.DeleteGroupsResponse(results=[result(group_id="g", error_code=14)]),
        m.DeleteGroupsResponse(results=[result(group_id="g", error_code=68)]),
    )
    outcomes = admin.delete_groups(["g", "h"])
    assert [request.groups_names for request in requests] == [["g", "h"], ["g"], ["g"]]
    assert isinstance(outcomes["g"].error, NonEmptyGroup) and outcomes["h"].error is None


# -- groups ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 4, 3])
def test_list_groups_with_filters_that_old_brokers_do_not_have(broker: FakeBroker, admin: Admin, version: int) -> None:
    limit(broker, ApiKey.LIST_GROUPS, version)
    listed = m.ListGroupsResponse.ListedGroup
    known = {"z": ("Stable", "classic"), "c": ("Empty", "consumer"), "k": ("Empty", "classic")}

    def handle(request: Any, version: int) -> Any:
        groups = [
            listed(group_id=id_, protocol_type="consumer", group_state=state, group_type=kind)
            for id_, (state, kind) in known.items()
            if not request.states_filter or state in request.states_filter
        ]
        return m.ListGroupsResponse(groups=groups)

    broker.handlers[ApiKey.LIST_GROUPS] = handle
    assert list(admin.list_groups()) == ["c", "k", "z"]
    empty = admin.list_groups(states=["empty"])
    classic = admin.list_groups(types=["classic"])
    assert list(empty) == (["c", "k"] if version >= 4 else ["c", "k", "z"])  # who does not know its state may be it
    assert list(classic) == (["k", "z"] if version >= 5 else ["c", "k", "z"])
    assert admin.list_groups()["c"].type == ("consumer" if version >= 5 else None)


def test_list_groups_waits_for_a_coordinator_that_loads(broker: FakeBroker, admin: Admin) -> None:
    requests = answer_once(
        broker, ApiKey.LIST_GROUPS, m.ListGroupsResponse(error_code=14), m.ListGroupsResponse(error_code=0)
    )
    assert admin.list_groups() == {} and len(requests) == 2


def test_groups_are_listed_of_those_that_stay(broker: FakeBroker, admin: Admin) -> None:
    """A node is gone before it has answered, and one that has answered by then has its groups since."""
    good = broker.handlers[ApiKey.METADATA]

    def listing(*names: str) -> m.ListGroupsResponse:
        listed = m.ListGroupsResponse.ListedGroup
        return m.ListGroupsResponse(groups=[listed(group_id=name, protocol_type="consumer") for name in names])

    asked = answer_once(broker, ApiKey.LIST_GROUPS, listing("own"), listing("own", "taken over"))

    def metadata(request: Any, version: int) -> Any:
        response = good(request, version)
        if not asked:
            node = m.MetadataResponse.MetadataResponseBroker(node_id=2, host="127.0.0.1", port=1)
            response.brokers = [*response.brokers, node]
        return response

    broker.handlers[ApiKey.METADATA] = metadata
    assert list(admin.list_groups()) == ["own", "taken over"]
    assert len(asked) == 2


def test_describe_groups_of_both_protocols(broker: FakeBroker, admin: Admin) -> None:
    described = m.ConsumerGroupDescribeResponse
    place = described.TopicPartitions(topic_name="a", partitions=[1, 0])
    member = described.Member(
        member_id="m1",
        instance_id="i1",
        member_epoch=7,
        client_id="me",
        client_host="/127.0.0.1",
        subscribed_topic_names=["a"],
        assignment=described.Assignment(topic_partitions=[place]),
        target_assignment=described.Assignment(),
    )
    new = described.DescribedGroup(
        group_id="new",
        group_state="Stable",
        group_epoch=7,
        assignment_epoch=7,
        assignor_name="uniform",
        members=[member],
    )
    missing = [described.DescribedGroup(group_id=id_, error_code=69) for id_ in ("old", "gone", "past", "connect")]
    answer_once(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, described(groups=[new, *missing]))
    assignment = m.ConsumerProtocolAssignment(
        assigned_partitions=[m.ConsumerProtocolAssignment.TopicPartition(topic="b", partitions=[0])]
    )
    subscription = m.ConsumerProtocolSubscription(topics=["b", "a"])
    classic_member = m.DescribeGroupsResponse.DescribedGroupMember(
        member_id="m2", member_metadata=embedded(9, subscription), member_assignment=embedded(1, assignment)
    )
    worker = m.DescribeGroupsResponse.DescribedGroupMember(member_id="w", member_assignment=b"\0\1rubbish")
    answer_once(
        broker,
        ApiKey.DESCRIBE_GROUPS,
        m.DescribeGroupsResponse(
            groups=[
                classic_group("old", members=[classic_member]),
                classic_group("gone", error_code=69, error_message="no such group"),
                classic_group("past", group_state="Dead"),
                classic_group("connect", protocol_type="connect", members=[worker]),
            ]
        ),
    )
    outcomes = admin.describe_groups(["old", "new", "gone", "past", "connect"])
    assert list(outcomes) == ["old", "new", "gone", "past", "connect"]
    fresh = outcomes["new"].result()
    assert (fresh.type, fresh.assignor, fresh.group_epoch, fresh.is_active) == ("consumer", "uniform", 7, True)
    assert fresh.members[0].assignment == (A0, A1) and fresh.members[0].target_assignment == ()
    assert f"{fresh.coordinator.host}:{fresh.coordinator.port}" == broker.address
    old = outcomes["old"].result()
    assert (old.type, old.assignor, old.members[0].assignment) == ("classic", "range", (B0,))
    assert old.members[0].subscribed_topics == ("a", "b")
    assert outcomes["connect"].result().members[0].assignment == ()
    assert outcomes["connect"].result().members[0].raw_assignment == b"\0\1rubbish"
    assert isinstance(outcomes["gone"].error, GroupIdNotFound) and "no such group" in str(outcomes["gone"].error)
    assert isinstance(outcomes["past"].error, GroupIdNotFound)


def test_a_subscription_without_what_its_version_adds_is_read(broker: FakeBroker, admin: Admin) -> None:
    """Some clients say version 1 and leave the owned partitions out; the topics stand in front of them."""
    limit(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, -1)
    short = b"\0\1" + embedded(0, m.ConsumerProtocolSubscription(topics=["b", "a"], user_data=b"\7"))[2:]
    member = m.DescribeGroupsResponse.DescribedGroupMember(member_id="m", member_metadata=short)
    answer_once(broker, ApiKey.DESCRIBE_GROUPS, m.DescribeGroupsResponse(groups=[classic_group("g", members=[member])]))
    (described,) = admin.describe_group("g").members
    assert (described.subscribed_topics, described.metadata) == (("a", "b"), short)


def test_describe_groups_of_a_broker_without_the_new_protocol(broker: FakeBroker, admin: Admin) -> None:
    limit(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, -1)
    broken = m.DescribeGroupsResponse.DescribedGroupMember(member_id="m", member_assignment=b"\0\1\0\0\0\\9")
    answer_once(broker, ApiKey.DESCRIBE_GROUPS, m.DescribeGroupsResponse(groups=[classic_group("g", members=[broken])]))
    group = admin.describe_group("g")
    assert group.state == "Stable" and group.members[0].assignment == ()
    with pytest.raises(UnknownServerError, match="leaves out h"):
        admin.describe_group("h")


def test_remove_members(broker: FakeBroker, admin: Admin) -> None:
    limit(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, -1)
    answered = m.LeaveGroupResponse.MemberResponse

    def leave(request: Any, version: int) -> Any:
        codes = {"i2": 25}
        return m.LeaveGroupResponse(
            members=[
                answered(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=codes.get(member.group_instance_id, 0),
                )
                for member in request.members
            ]
        )

    broker.handlers[ApiKey.LEAVE_GROUP] = leave
    outcomes = admin.remove_members("g", instance_ids=["i1", "i2"], member_ids=["m1"], reason="test")
    assert list(outcomes.errors) == ["i2"] and isinstance(outcomes["i2"].error, UnknownMemberId)
    last = next(request for key, _, request in broker.requests if key == ApiKey.LEAVE_GROUP)
    assert [(member.member_id, member.group_instance_id, member.reason) for member in last.members] == [
        ("", "i1", "test"),
        ("", "i2", "test"),
        ("m1", None, "test"),
    ]
    members = [m.DescribeGroupsResponse.DescribedGroupMember(member_id=id_) for id_ in ("m1", "m2")]
    answer_once(broker, ApiKey.DESCRIBE_GROUPS, m.DescribeGroupsResponse(groups=[classic_group("g", members=members)]))
    assert list(admin.remove_members("g").results()) == ["m1", "m2"]
    answer_once(broker, ApiKey.DESCRIBE_GROUPS, m.DescribeGroupsResponse(groups=[classic_group("g")]))
    assert dict(admin.remove_members("g")) == {}
    answer_once(broker, ApiKey.LEAVE_GROUP, m.LeaveGroupResponse(error_code=30))
    with pytest.raises(GroupAuthorizationFailed):
        admin.remove_members("g", member_ids=["m1"])["m1"].result()


# -- offsets -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [10, 8, 5, 2])
def test_offsets_are_listed_and_altered(broker: FakeBroker, admin: Admin, version: int) -> None:
    limit(broker, ApiKey.OFFSET_FETCH, version)
    committed = serve_commits(broker, {A0: 5, B0: 0})
    assert admin.list_group_offsets("g").results() == {A0: CommittedOffset(5, "note"), B0: CommittedOffset(0, "note")}
    assert admin.list_group_offsets("g", [A1, A0]).results() == {A1: None, A0: CommittedOffset(5, "note")}
    admin.alter_group_offsets("g", {A1: 9, A0: CommittedOffset(6, "why", 3)}).results()
    assert committed == {A0: 6, A1: 9, B0: 0}
    commit = next(request for key, _, request in broker.requests if key == ApiKey.OFFSET_COMMIT)
    assert [p.committed_metadata for p in commit.topics[0].partitions] == ["", "why"]
    assert [p.committed_leader_epoch for p in commit.topics[0].partitions] == [-1, 3]
    with pytest.raises(ValueError, match="a-1: an offset is 0 or more"):
        admin.alter_group_offsets("g", {A1: -1})


def test_offsets_of_open_transactions_are_waited_for(broker: FakeBroker, admin: Admin) -> None:
    part = m.OffsetFetchResponse.OffsetFetchResponsePartitions

    def answer(code: int, offset: int) -> Any:
        parts = [part(partition_index=0, committed_offset=offset, metadata="", error_code=code)]
        topic = m.OffsetFetchResponse.OffsetFetchResponseTopics(name="a", partitions=parts)
        group = m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic])
        return m.OffsetFetchResponse(groups=[group])

    requests = answer_once(broker, ApiKey.OFFSET_FETCH, answer(88, -1), answer(88, -1), answer(0, 4))
    assert admin.list_group_offsets("g", require_stable=True).results() == {A0: CommittedOffset(4)}
    assert all(request.require_stable for request in requests) and len(requests) == 3


def test_a_group_error_of_offsets_is_raised(broker: FakeBroker, admin: Admin) -> None:
    group = m.OffsetFetchResponse.OffsetFetchResponseGroup
    answers = [m.OffsetFetchResponse(groups=[group(group_id="g", error_code=code)]) for code in (16, 30)]
    answer_once(broker, ApiKey.OFFSET_FETCH, *answers)
    with pytest.raises(GroupAuthorizationFailed, match="group g"):
        admin.list_group_offsets("g")


def test_a_group_with_members_keeps_its_offsets(broker: FakeBroker, admin: Admin) -> None:
    partition = m.OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=0, error_code=25)
    topic = m.OffsetCommitResponse.OffsetCommitResponseTopic(name="a", partitions=[partition])
    answer_once(broker, ApiKey.OFFSET_COMMIT, m.OffsetCommitResponse(topics=[topic]))
    with pytest.raises(UnknownMemberId, match="stop them first"):
        admin.alter_group_offsets("g", {A0: 1})[A0].result()


def test_delete_group_offsets(broker: FakeBroker, admin: Admin) -> None:
    partition = m.OffsetDeleteResponse.OffsetDeleteResponsePartition
    topic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic(
        name="a", partitions=[partition(partition_index=0), partition(partition_index=1, error_code=86)]
    )
    answer_once(
        broker, ApiKey.OFFSET_DELETE, m.OffsetDeleteResponse(error_code=16), m.OffsetDeleteResponse(topics=[topic])
    )
    outcomes = admin.delete_group_offsets("g", [A0, A1])
    assert outcomes[A0].error is None and outcomes.errors[A1].name == "GROUP_SUBSCRIBED_TO_TOPIC"
    answer_once(broker, ApiKey.OFFSET_DELETE, m.OffsetDeleteResponse(error_code=69))
    assert isinstance(admin.delete_group_offsets("g", [A0])[A0].error, GroupIdNotFound)


def test_lag(broker: FakeBroker, admin: Admin) -> None:
    serve_commits(broker, {A0: 5, TopicPartition("gone", 0): 1})
    serve_bounds(broker, 2, 12)
    lags = admin.group_lag("g")
    assert lags[A0].result().lag == 7 and isinstance(lags[TopicPartition("gone", 0)].error, UnknownTopicOrPartition)
    unread = admin.group_lag("g", [B0], read_committed=True)[B0].result()
    assert (unread.committed, unread.start, unread.end, unread.lag) == (None, 2, 12, None)


def test_reset_plans_and_executes(broker: FakeBroker, admin: Admin) -> None:
    committed = serve_commits(broker, {A0: 5, B0: 8})
    serve_bounds(broker, 2, 12, at_time=7)
    before = dict(committed)
    plan = admin.reset_group_offsets("g", OffsetReset.to_earliest(), dry_run=True)
    assert plan == {A0: OffsetChange(5, 2, 2, 12), B0: OffsetChange(8, 2, 2, 12)} and committed == before
    assert admin.reset_group_offsets("g", OffsetReset.to_datetime(1000), topics=["a"]) == {
        A0: OffsetChange(5, 7, 2, 12),
        A1: OffsetChange(None, 7, 2, 12),
    }
    assert committed == {A0: 7, A1: 7, B0: 8}
    admin.reset_group_offsets("g", OffsetReset.to_offsets({A0: 3, B0: 99}))
    assert committed == {A0: 3, A1: 7, B0: 12}
    admin.reset_group_offsets("g", OffsetReset.to_offsets({A0: 4, B0: 4}), partitions=[B0])
    assert committed == {A0: 3, A1: 7, B0: 4}
    assert admin.reset_group_offsets("g", OffsetReset.to_latest(), partitions=[]) == {}


def test_the_plan_of_each_reset() -> None:
    committed, starts, ends = {A0: 5}, {A0: 2, A1: 0}, {A0: 12, A1: 4}

    def after(reset: OffsetReset, found: int = -1) -> tuple[int, int]:
        plan = plan_reset(reset, [A0, A1], committed, starts, ends, {A0: found, A1: found})
        return plan[A0].after, plan[A1].after

    assert after(OffsetReset.to_earliest()) == (2, 0)
    assert after(OffsetReset.to_latest()) == (12, 4)
    assert after(OffsetReset.to_current()) == (5, 4)
    assert after(OffsetReset.to_offset(3)) == (3, 3)
    assert after(OffsetReset.to_offset(1)) == (2, 1)
    assert after(OffsetReset.to_datetime(1), found=3) == (3, 3)
    assert after(OffsetReset.to_datetime(1), found=-1) == (12, 4)
    for shift, expected in ((3, 8), (-1, 4), (-10, 2), (100, 12)):
        change = plan_reset(OffsetReset.shift_by(shift), [A0], committed, starts, ends)[A0]
        assert change.after == expected and change.clamped == (change.after != 5 + shift)
    with pytest.raises(ValueError, match="a-1: the group has committed no offset to shift from"):
        plan_reset(OffsetReset.shift_by(1), [A1], committed, starts, ends)


def test_times_of_resets() -> None:
    moment = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
    assert OffsetReset.to_datetime(moment).value == 1795255200000
    assert OffsetReset.by_duration(timedelta(minutes=1), now_ms=100_000).value == 40_000
    assert OffsetReset.by_duration(timedelta(0)).value > 1_600_000_000_000
