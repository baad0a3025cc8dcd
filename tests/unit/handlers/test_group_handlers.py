"""The APIs of classic groups, in every version, against Kafka's error codes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.handlers import add_partitions_to_txn, delete_groups
from group_support import OFFSETS_TOPIC, GroupHandlers, HandlerBroker, subscription

from fastq.errors import KafkaStorageError
from fastq.protocol.messages import (
    AddPartitionsToTxnRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

# --- FindCoordinator ---


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_creates_the_topic_and_names_its_leader(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        image = handlers.broker.controller.image
        assert image.topic(OFFSETS_TOPIC) is None
        port = handlers.broker.advertised_listeners[0].port
        for key_type, topic in enumerate((OFFSETS_TOPIC, "__transaction_state")):
            if key_type and not version:
                continue
            asked: dict[str, Any] = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
            answer = await handlers.call(FindCoordinatorRequest(key_type=key_type, **asked), version)
            found = answer.coordinators if version >= 4 else [answer]
            assert [item.error_code for item in found] == [0] * len(found)
            assert {(item.node_id, item.host, item.port) for item in found} == {(1, "127.0.0.1", port)}
            if version >= 4:
                assert [item.key for item in found] == ["a", "b"]
            assert handlers.broker.controller.image.topic(topic) is not None
        offsets = handlers.broker.controller.image.topic(OFFSETS_TOPIC)
        assert offsets is not None
        assert (len(offsets.partitions), len(offsets.partitions[0].replicas)) == (3, 1)

    server.run(work, ready=False)


def test_find_coordinator_of_an_unknown_kind(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        answer = await handlers.call(FindCoordinatorRequest(key="a", key_type=9), 3)
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (42, -1, "", -1)

    server.run(work)


def test_the_coordinator_is_not_available_while_the_topic_cannot_be_there(
    server: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastq_broker.handlers.find_coordinator.create_topic", lambda ports, topic: None)

    async def work(handlers: GroupHandlers) -> None:
        answer = await handlers.call(FindCoordinatorRequest(coordinator_keys=["a"]), 4)
        assert [(item.error_code, item.node_id, item.port) for item in answer.coordinators] == [(15, -1, -1)]
        answer = await handlers.call(FindCoordinatorRequest(key="a"), 1)
        assert answer.error_code == 15
        assert answer.error_message

    server.run(work, ready=False)


def test_requests_that_come_before_the_topic_or_its_load(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        assert (await handlers.join()).error_code == 15
        handlers.broker.controller.settle()
        assert handlers.broker.controller.image.topic(OFFSETS_TOPIC) is not None
        assert (await handlers.join()).error_code == 14
        assert await handlers.heartbeat(4, "m", 1) == 0, "members have done nothing wrong while it loads"
        assert (await handlers.call(SyncGroupRequest(group_id="g"), 3)).error_code == 14
        assert (await handlers.call(ListGroupsRequest(), 5)).error_code == 14
        described = await handlers.call(DescribeGroupsRequest(groups=["g"]), 5)
        assert described.groups[0].error_code == 14
        answer = await handlers.call(OffsetFetchRequest(group_id="g", groups=[], topics=[_asked("t")]), 1)
        assert answer.topics[0].partitions[0].error_code == 14
        answer = await handlers.call(OffsetFetchRequest(group_id="g", groups=[], topics=[_asked("t")]), 2)
        assert (answer.error_code, answer.topics) == (14, [])

    server.run(work, ready=False)


def _asked(topic: str) -> Any:
    return OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])


# --- joining and staying, all versions ---


@pytest.mark.parametrize("version", range(10))
def test_join_group(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        first = await handlers.join(version)
        if version >= 4:
            assert (first.error_code, first.generation_id) == (79, -1)
            first = await handlers.join(version, first.member_id)
        assert (first.error_code, first.generation_id, first.leader) == (0, 1, first.member_id)
        assert first.protocol_name == "range"
        assert [(m.member_id, m.metadata) for m in first.members] == [(first.member_id, subscription("t"))]
        if version >= 7:
            assert first.protocol_type == "consumer"
        assert (await handlers.join(version, "nobody")).error_code == 25
        assert (await handlers.join(version, group_id="")).error_code == 24
        for session_ms, code in ((5999, 26), (1_800_001, 26), (6000, 25), (1_800_000, 25)):
            answer = await handlers.join(version, "nobody", session_timeout_ms=session_ms)
            assert answer.error_code == code

    server.run(work)


@pytest.mark.parametrize("version", range(6))
def test_sync_group(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.member()
        answer = await handlers.sync(version, joined, {joined.member_id: b"mine"})
        assert (answer.error_code, answer.assignment) == (0, b"mine")
        if version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
            assert (await handlers.sync(version, joined, protocol_name=None)).error_code == 23
        assert (await handlers.sync(version, joined, group_id="")).error_code == 24
        assert (await handlers.sync(version, joined, group_id="other")).error_code == 25

    server.run(work)


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.stable()
        assert await handlers.heartbeat(version, joined.member_id, 1) == 0
        assert await handlers.heartbeat(version, joined.member_id, 2) == 22
        assert await handlers.heartbeat(version, "nobody", 1) == 25
        assert await handlers.heartbeat(version, joined.member_id, 1, "other") == 25
        assert await handlers.heartbeat(version, joined.member_id, 1, "") == 24

    server.run(work)


@pytest.mark.parametrize("version", range(6))
def test_leave_group(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.stable()
        if version < 3:
            assert (await handlers.call(LeaveGroupRequest(group_id="g", member_id="x"), version)).error_code == 25
            request = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
            assert (await handlers.call(request, version)).error_code == 0
        else:
            identity = LeaveGroupRequest.MemberIdentity
            members = [identity(member_id=joined.member_id), identity(member_id="", group_instance_id="i")]
            answer = await handlers.call(LeaveGroupRequest(group_id="g", members=members), version)
            assert answer.error_code == 0
            assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
                (joined.member_id, None, 0),
                ("", "i", 25),
            ]
        assert (await handlers.call(LeaveGroupRequest(group_id=""), version)).error_code == 24
        if version < 3:
            assert (await handlers.call(LeaveGroupRequest(group_id="other"), version)).error_code == 25
        else:
            answer = await handlers.call(LeaveGroupRequest(group_id="other", members=members), version)
            assert (answer.error_code, [m.error_code for m in answer.members]) == (0, [25, 25])
        shard = handlers.broker.groups.shard("g")
        assert shard.groups["g"].state_name == "Empty"

    server.run(work)


def leave_of(member_id: str, version: int) -> LeaveGroupRequest:
    """Of one member, as the version has it."""
    if version < 3:
        return LeaveGroupRequest(group_id="g", member_id=member_id)
    return LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id=member_id)])


@pytest.mark.parametrize("version", [2, 5])
def test_who_leaves_hears_so_once_that_is_on_disk(
    server: HandlerBroker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.stable()
        held: list[Any] = []
        log = handlers.broker.groups.shard("g").context.replica.log
        request = leave_of(joined.member_id, version)
        with monkeypatch.context() as patch:
            patch.setattr(type(log.durability), "wait", lambda self, offset, callback: held.append(callback))
            leaving = asyncio.ensure_future(handlers.call(request, version))
            for _ in range(10):
                await asyncio.sleep(0)
            assert held and not leaving.done()
            for callback in held:
                callback(KafkaStorageError("the disk is gone"))
        answer = await leaving
        assert (answer.error_code, answer.members) == (16, [])

    server.run(work, durability="fsync")


@pytest.mark.parametrize("version", [2, 5])
def test_who_leaves_again_hears_so_when_the_first_does(
    server: HandlerBroker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is no member any more is what the first has changed, and a crash may still undo."""

    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.stable()
        held: list[Any] = []
        log = handlers.broker.groups.shard("g").context.replica.log
        request = leave_of(joined.member_id, version)
        with monkeypatch.context() as patch:
            patch.setattr(type(log.durability), "wait", lambda self, offset, callback: held.append(callback))
            first, again = [asyncio.ensure_future(handlers.call(request, version)) for _ in range(2)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not first.done() and not again.done()
            for callback in held:
                callback(None)
        answers = await asyncio.gather(first, again)
        errors = [answer.members[0].error_code if version >= 3 else answer.error_code for answer in answers]
        assert errors == [0, 25]

    server.run(work, durability="fsync")


@pytest.mark.parametrize("version", [2, 5])
def test_who_leaves_hears_that_it_could_not_be_written(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.stable()
        handlers.broker.groups.shard("g").context.replica.under_min_isr = True
        request = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
        if version >= 3:
            members = [LeaveGroupRequest.MemberIdentity(member_id=one) for one in (joined.member_id, "nobody")]
            request = LeaveGroupRequest(group_id="g", members=members)
        answer = await handlers.call(request, version)
        assert (answer.error_code, answer.members) == (15, [])

    server.run(work)


def test_static_members_over_the_wire(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        first = await handlers.join(5, group_instance_id="i")
        await handlers.sync(3, first, {first.member_id: b"mine"}, group_instance_id="i")
        again = await handlers.join(9, group_instance_id="i")
        assert (again.error_code, again.generation_id, again.skip_assignment) == (0, 1, True)
        assert again.members[0].group_instance_id == "i"
        fenced = HeartbeatRequest(group_id="g", generation_id=1, member_id=first.member_id, group_instance_id="i")
        assert (await handlers.call(fenced, 3)).error_code == 82
        assert (await handlers.sync(3, first, group_instance_id="i")).error_code == 82
        answer = await handlers.commit(7, {("t", 0): 1}, member_id=first.member_id, generation=1, group_instance_id="i")
        assert answer == {("t", 0): 82}

    server.run(work)


def test_a_follower_waits_for_its_leader(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        leader = await handlers.stable()
        new = (await handlers.join()).member_id
        joining = asyncio.ensure_future(handlers.join(9, new))
        await asyncio.sleep(0.01)
        assert await handlers.heartbeat(4, leader.member_id, 1) == 27
        led = await handlers.join(9, leader.member_id)
        followed = await joining
        assert (led.generation_id, followed.generation_id) == (2, 2)
        assert {m.member_id for m in led.members} == {leader.member_id, new}
        assert followed.members == []
        waiting = asyncio.ensure_future(handlers.sync(5, followed))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await handlers.sync(5, led, {new: b"new", leader.member_id: b"led"})
        assert (await waiting).assignment == b"new"

    server.run(work)


# --- describing, listing, deleting ---


@pytest.mark.parametrize("version", range(7))
def test_describe_groups(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        joined = await handlers.stable()
        await handlers.member(group_id="waiting")
        request = DescribeGroupsRequest(groups=["g", "waiting", "none"])
        request.include_authorized_operations = version >= 3
        stable, waiting, none = (await handlers.call(request, version)).groups
        assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
        (member,) = stable.members
        assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"all")
        assert (waiting.group_state, waiting.protocol_data) == ("CompletingRebalance", "")
        assert (waiting.members[0].member_metadata, waiting.members[0].member_assignment) == (b"", b"")
        assert (none.group_state, none.error_code) == ("Dead", 69 if version >= 6 else 0)
        if version >= 3:
            assert stable.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11

    server.run(work)


@pytest.mark.parametrize("version", range(6))
def test_list_groups(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        await handlers.stable()
        await handlers.commit(9, {("t", 0): 7}, group_id="simple")
        answer = await handlers.call(ListGroupsRequest(), version)
        assert sorted((g.group_id, g.protocol_type) for g in answer.groups) == [("g", "consumer"), ("simple", "")]
        if version >= 4:
            assert sorted(g.group_state for g in answer.groups) == ["Empty", "Stable"]
            found = await handlers.call(ListGroupsRequest(states_filter=["stable", "Dead"]), version)
            assert [g.group_id for g in found.groups] == ["g"]
        if version >= 5:
            assert {g.group_type for g in answer.groups} == {"classic"}
            assert len((await handlers.call(ListGroupsRequest(types_filter=["Classic"]), version)).groups) == 2
            assert (await handlers.call(ListGroupsRequest(types_filter=["consumer"]), version)).groups == []

    server.run(work)


def test_listing_before_there_is_a_coordinator(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        answer = await handlers.call(ListGroupsRequest(), 5)
        assert (answer.error_code, answer.groups) == (0, [])
        assert handlers.broker.controller.image.topic(OFFSETS_TOPIC) is None

    server.run(work, ready=False)


@pytest.mark.parametrize("version", range(3))
def test_delete_groups(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        joined = await handlers.stable()
        await handlers.commit(9, {("t", 0): 7}, member_id=joined.member_id, generation=1)
        await handlers.commit(9, {("t", 0): 7}, group_id="simple")
        request = DeleteGroupsRequest(groups_names=["g", "simple", "none"])
        answer = await handlers.call(request, version)
        assert [(r.group_id, r.error_code) for r in answer.results] == [("g", 68), ("simple", 0), ("none", 69)]
        await handlers.leave(joined.member_id)
        answer = await handlers.call(request, version)
        assert [r.error_code for r in answer.results] == [0, 69, 69]

    async def after(handlers: GroupHandlers) -> None:
        assert (await handlers.call(ListGroupsRequest(), 5)).groups == []
        assert await handlers.fetch(9, None) == {}

    server.run(work)
    server.run(after)


# --- coordinators ---


def test_a_disk_that_fails_is_told_as_a_coordinator_that_is_gone(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        shard = handlers.broker.groups.shard("g")
        log = shard.context.replica.log
        log.dir.fail("writing a batch", log.path, OSError(5, "Input/output error"))
        assert await handlers.commit(9, {("t", 0): 7}) == {("t", 0): 16}
        assert (await handlers.join()).error_code == 16
        assert "g" not in shard.groups
        answer = await handlers.call(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert answer.results[0].error_code == 69
        log.dir.offline = None  # for the stop

    server.run(work)


def test_a_coordinator_that_moves_turns_everybody_away_and_knows_them_when_it_is_back(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        joined = await handlers.stable()
        await handlers.commit(9, {("t", 0): 7}, member_id=joined.member_id, generation=1)
        runtime = handlers.broker.groups.runtime
        partition = runtime.partition_for("g")
        replica = handlers.broker.replicas.get(OFFSETS_TOPIC, partition)
        assert replica is not None
        new = (await handlers.join()).member_id
        waiting = asyncio.ensure_future(handlers.join(9, new))
        await asyncio.sleep(0.01)
        replica.leader_id = 9
        runtime.follow()
        assert (await waiting).error_code == 16
        assert await handlers.heartbeat(4, joined.member_id, 1) == 16
        assert await handlers.commit(9, {("t", 0): 8}) == {("t", 0): 16}
        assert (await handlers.join()).error_code == 16
        answer = await handlers.call(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert answer.results[0].error_code == 16
        replica.leader_id, replica.leader_epoch = handlers.broker.node_id, replica.leader_epoch + 1
        runtime.follow()
        assert await handlers.heartbeat(4, joined.member_id, 1) == 0, "it is loading"
        await handlers.ready()
        assert await handlers.heartbeat(4, joined.member_id, 1) == 0
        assert await handlers.fetch(9, None) == {("t", 0): (7, 0, "m")}
        assert (await handlers.join(9, new)).error_code == 25, "an id that was given out is not stored"

    server.run(work)


def test_settings_of_a_group_reach_its_coordinator(server: HandlerBroker) -> None:
    """A group's own settings, and the broker's as altered, are in force with the next heartbeat."""

    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")

        async def alter(kind: int, name: str, key: str, value: str | None) -> None:
            request = IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsRequest.AlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[
                            IncrementalAlterConfigsRequest.AlterableConfig(
                                name=key, config_operation=1 if value is None else 0, value=value
                            )
                        ],
                    )
                ]
            )
            (answer,) = (await handlers.call(request, 1)).responses
            assert answer.error_code == 0, answer.error_message

        async def interval(group: str, epoch: int, **fields: Any) -> int:
            request = ConsumerGroupHeartbeatRequest(
                group_id=group, member_id=f"of-{group}", member_epoch=epoch, **fields
            )
            answer = await handlers.call(request, 1)
            assert (answer.error_code, answer.member_epoch) == (0, 1)
            return int(answer.heartbeat_interval_ms)

        for group in ("own", "other"):
            joining = {"rebalance_timeout_ms": 5000, "subscribed_topic_names": ["t"], "topic_partitions": []}
            assert await interval(group, 0, **joining) == 5000
        await alter(32, "own", "consumer.heartbeat.interval.ms", "7000")
        assert [await interval(group, 1) for group in ("own", "other")] == [7000, 5000]
        await alter(32, "own", "consumer.heartbeat.interval.ms", None)
        assert [await interval(group, 1) for group in ("own", "other")] == [5000, 5000]
        await alter(32, "own", "consumer.assignment.interval.ms", "3000")
        await alter(4, "", "group.consumer.assignment.interval.ms", "4000")
        groups = handlers.broker.groups
        assert [groups.settings_of(group).assignment_interval_ms for group in ("own", "other")] == [3000, 4000]

    server.run(work, group_consumer_assignment_interval_ms="0")  # no settling: the interval is the usual one

    async def again(handlers: GroupHandlers) -> None:
        groups = handlers.broker.groups
        assert [groups.settings_of(group).assignment_interval_ms for group in ("own", "other")] == [3000, 4000]

    server.run(again)


def test_of_equal_requests_at_the_same_time_one_is_the_first(server: HandlerBroker) -> None:
    """What the coordinators answer, as Apache Kafka's: a group goes once, and no two producers have an id and epoch in common."""

    async def work(handlers: GroupHandlers) -> None:
        async def twice(request: Any, version: int) -> list[Any]:
            return await asyncio.gather(handlers.call(request, version), handlers.call(request, version))

        handlers.topics("t")
        await handlers.commit(8, {("t", 0): 7})
        partition = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[partition])
        answers = await twice(OffsetDeleteRequest(group_id="g", topics=[topic]), 0)
        assert [answer.topics[0].partitions[0].error_code for answer in answers] == [0, 0]
        answers = await twice(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert [answer.results[0].error_code for answer in answers] == [0, 69]
        await handlers.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4)
        for _ in range(10_000):
            if not handlers.broker.transactions.loading:
                break
            await asyncio.sleep(0.001)
        initialize = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)
        answers = await twice(initialize, 5)
        given = [(answer.producer_id, answer.producer_epoch) for answer in answers if not answer.error_code]
        assert len(set(given)) == len(given) >= 1
        assert {answer.error_code for answer in answers} <= {0, 51}

    server.run(work)


@pytest.mark.parametrize(
    ("handler", "part", "asked", "version"),
    [
        (delete_groups, "_delete", DeleteGroupsRequest(groups_names=["a", "b"]), 2),
        (
            add_partitions_to_txn,
            "_codes",
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(transactional_id=name) for name in "ab"
                ]
            ),
            4,
        ),
    ],
)
def test_who_is_gone_while_one_of_several_is_waited_for_leaves_none_unawaited(
    handler: Any, part: str, asked: Any, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind it said on stderr that nobody had awaited them."""
    parts: list[Coroutine[Any, Any, None]] = []

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    def begun(*_: Any) -> Coroutine[Any, Any, None]:
        parts.append(never())
        return parts[-1]

    async def scenario() -> None:
        monkeypatch.setattr(handler, part, begun)
        answering = asyncio.ensure_future(handler.handle(SimpleNamespace(api_version=version), asked))
        for _ in range(3):
            await asyncio.sleep(0)
        answering.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        states = [inspect.getcoroutinestate(one) for one in parts]
        for one in parts:
            one.close()
        assert states == [inspect.CORO_CLOSED] * 2

    asyncio.run(scenario())
