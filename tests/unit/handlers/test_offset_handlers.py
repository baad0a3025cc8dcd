"""The APIs of committed offsets, in every version, against Kafka's error codes: stored, fetched, expired, deleted, in transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.groups.shard import GroupShard
from fastq_broker.handlers import offset_commit
from fastq_broker.router import Deferred
from fastq_broker.server import flexible_versions
from group_support import OFFSETS_TOPIC, GroupHandlers, HandlerBroker

from fastq._native.produce_path import scan_request
from fastq.errors import KafkaError, KafkaStorageError
from fastq.protocol.frames import encode_request
from fastq.protocol.messages import (
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

# --- offsets, all versions ---


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t", "u")
        assert await handlers.commit(version, {("t", 0): 7, ("u", 1): 8}) == {("t", 0): 0, ("u", 1): 0}
        assert await handlers.commit(version, {("t", 9): 7, ("t", 1): 9}) == {("t", 9): 3, ("t", 1): 0}
        assert await handlers.commit(version, {("t", 2): 7}, metadata="m" * 4097) == {("t", 2): 12}
        assert await handlers.commit(version, {("t", 3): 7}, metadata="m" * 4096) == {("t", 3): 0}
        assert await handlers.commit(version, {("t", 0): 8}, metadata=None) == {("t", 0): 0}
        unknown = await handlers.commit(version, {("t", 0): 7}, group_id="new", member_id="m", generation=1)
        assert unknown == {("t", 0): 69 if version >= 9 else 22}
        joined = await handlers.member(group_id="live")
        live: dict[str, Any] = {"group_id": "live", "member_id": joined.member_id}
        assert await handlers.commit(version, {("t", 0): 1}, **live, generation=1) == {("t", 0): 27}
        await handlers.sync(5, joined, {}, group_id="live")
        assert await handlers.commit(version, {("t", 0): 1}, **live, generation=1) == {("t", 0): 0}
        assert await handlers.commit(version, {("t", 0): 1}, **live, generation=2) == {("t", 0): 22}
        assert await handlers.commit(version, {("t", 0): 1}, group_id="live", member_id="x", generation=1) == {
            ("t", 0): 25
        }
        assert await handlers.commit(version, {("t", 0): 1}, group_id="live") == {("t", 0): 25}
        found = await handlers.fetch(8, [("t", 0), ("u", 1), ("t", 1), ("t", 2)])
        assert found == {("t", 0): (8, 0, ""), ("u", 1): (8, 0, "m"), ("t", 1): (9, 0, "m"), ("t", 2): (-1, 0, "")}

    server.run(work)


def test_offset_commit_of_an_unknown_topic(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_metadata="")
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        by_name = [topic(name="nowhere", partitions=[partition])]
        answer = await handlers.call(OffsetCommitRequest(group_id="g", member_id="", topics=by_name), 9)
        assert answer.topics[0].partitions[0].error_code == 3
        by_id = [topic(topic_id=b"i" * 16, partitions=[partition])]
        answer = await handlers.call(OffsetCommitRequest(group_id="g", member_id="", topics=by_id), 10)
        assert (answer.topics[0].topic_id, answer.topics[0].partitions[0].error_code) == (b"i" * 16, 100)

    server.run(work)


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch(server: HandlerBroker, version: int) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t", "u")
        await handlers.commit(8, {("t", 0): 7, ("t", 2): 9})
        assert await handlers.fetch(version, [("t", 0), ("u", 1)]) == {("t", 0): (7, 0, "m"), ("u", 1): (-1, 0, "")}
        assert await handlers.fetch(version, [("t", 0)], group_id="other") == {("t", 0): (-1, 0, "")}
        if version >= 2:
            assert await handlers.fetch(version, None) == {("t", 0): (7, 0, "m"), ("t", 2): (9, 0, "m")}
            assert await handlers.fetch(version, None, group_id="other") == {}
        if version >= 10:
            asked = OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=b"i" * 16, partition_indexes=[0])
            group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[asked])
            answer = await handlers.call(OffsetFetchRequest(groups=[group], topics=[]), version)
            assert answer.groups[0].topics[0].partitions[0].error_code == 100

    server.run(work)


def test_offset_fetch_of_many_groups(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        for number, group_id in enumerate("abc"):
            await handlers.commit(8, {("t", 0): number}, group_id=group_id)
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        groups = [group(group_id=group_id, topics=None) for group_id in "abcd"]
        answer = await handlers.call(OffsetFetchRequest(groups=groups, topics=[]), 8)
        found = [
            (g.group_id, g.error_code, [t.partitions[0].committed_offset for t in g.topics]) for g in answer.groups
        ]
        assert found == [("a", 0, [0]), ("b", 0, [1]), ("c", 0, [2]), ("d", 0, [])]

    server.run(work)


def test_offsets_and_groups_survive_a_restart(server: HandlerBroker) -> None:
    async def before(handlers: GroupHandlers) -> Any:
        handlers.topics("t")
        joined = await handlers.stable()
        await handlers.commit(9, {("t", 0): 7}, member_id=joined.member_id, generation=1)
        await handlers.commit(9, {("t", 1): 8}, group_id="simple")
        return joined

    joined = server.run(before)

    async def after(handlers: GroupHandlers) -> None:
        assert await handlers.heartbeat(4, joined.member_id, 1) == 0
        assert (await handlers.sync(5, joined)).assignment == b"all"
        assert await handlers.fetch(9, None) == {("t", 0): (7, 0, "m")}
        assert await handlers.fetch(9, None, group_id="simple") == {("t", 1): (8, 0, "m")}

    server.run(after)


def test_with_durability_fsync_too(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        joined = await handlers.stable()
        commits = [handlers.commit(9, {("t", 0): n}, member_id=joined.member_id, generation=1) for n in range(20)]
        assert await asyncio.gather(*commits) == [{("t", 0): 0}] * 20
        assert await handlers.fetch(9, None) == {("t", 0): (19, 0, "m")}
        assert (await handlers.join(9, group_instance_id="i", group_id="h")).error_code == 0
        await handlers.leave(joined.member_id)
        answer = await handlers.call(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert answer.results[0].error_code == 0

    server.run(work, durability="fsync")


def test_a_commit_whose_later_answer_cannot_be_made_has_its_connection_closed(
    server: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection waited for it for ever, and was read from no more."""

    def no_memory(*_: Any) -> bytes:
        raise MemoryError("none left")

    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        told: asyncio.Queue[str] = asyncio.Queue()
        connection: Any = SimpleNamespace(complete=lambda *_: told.put_nowait("an answer"), fail=told.put_nowait)
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
        frame = bytearray(encode_request(1, "test", OffsetCommitRequest(group_id="g", topics=[topic]), 8))
        header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
        assert header is not None
        with monkeypatch.context() as patch:
            patch.setattr(offset_commit, "encode_commit_response", no_memory)
            deferred = offset_commit.handle_frame(connection, handlers.broker, frame, header)
            assert isinstance(deferred, Deferred)
            deferred.attached = True
            assert (await asyncio.wait_for(told.get(), 10)).startswith("OffsetCommit failed")

    server.run(work, durability="fsync")


def test_no_allocation_that_fails_keeps_a_commit_from_its_later_answer(
    server: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes the answer was made when all was on disk: where there was no memory for that, the connection waited for ever."""

    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        told = [0]  # which takes no memory to count in

        def tell(*_: Any) -> None:
            told[0] += 1

        connection: Any = SimpleNamespace(complete=tell, fail=tell)
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
        frame = bytearray(encode_request(1, "test", OffsetCommitRequest(group_id="g", topics=[topic]), 8))
        answers: list[Callable[[Any], None]] = []
        shard = handlers.broker.groups.shard("g")
        monkeypatch.setattr(shard, "commit", lambda _, answer: answers.append(answer))
        errors = {("t", 0): 0}
        for first in range(30):
            header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
            assert header is not None
            deferred = offset_commit.handle_frame(connection, handlers.broker, frame, header)
            assert isinstance(deferred, Deferred)
            deferred.attached = True
            with AllocationsFail(first):
                answers[-1](errors)
            assert told[0] == first + 1

    server.run(work)


@pytest.mark.parametrize("why", ["too late", "cut off"])
@pytest.mark.parametrize("version", [1, 5, 9])
def test_offsets_that_cannot_be_told_are_asked_for_elsewhere(
    server: HandlerBroker, version: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's consumers before 3.9 end with an error by COORDINATOR_NOT_AVAILABLE, so Kafka says NOT_COORDINATOR."""

    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        shard = handlers.broker.groups.shard(handlers.group_id)
        held: list[Callable[[KafkaError | None], None]] = []
        with monkeypatch.context() as patch:
            if why == "too late":
                durability = type(shard.context.replica.log.durability)
                patch.setattr(durability, "wait", lambda self, offset, callback: held.append(callback))
                assert await handlers.commit(8, {("t", 0): 2}) == {("t", 0): 15}
            else:
                patch.setattr(shard, "_is_surely_here", lambda: False)
            if version < 8:
                topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
                answer = await handlers.call(OffsetFetchRequest(group_id="g", topics=[topic], groups=[]), version)
                code = answer.error_code if version >= 2 else answer.topics[0].partitions[0].error_code
            else:
                group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
                code = (
                    (await handlers.call(OffsetFetchRequest(groups=[group], topics=[]), version)).groups[0].error_code
                )
            assert code == 16

    server.run(work, durability="fsync", offsets_commit_timeout_ms="1")


@pytest.mark.parametrize("version", [1, 7, 9])
def test_with_durability_fsync_an_offset_is_told_once_it_is_on_disk(
    server: HandlerBroker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        place = ("t", 0)
        assert await handlers.commit(8, {place: 1}) == {place: 0}
        held: list[Callable[[KafkaError | None], None]] = []
        log = handlers.broker.groups.shard(handlers.group_id).context.replica.log
        with monkeypatch.context() as patch:
            patch.setattr(type(log.durability), "wait", lambda self, offset, callback: held.append(callback))
            committing = asyncio.ensure_future(handlers.commit(8, {place: 2}))
            await asyncio.sleep(0)
            fetching = asyncio.ensure_future(handlers.fetch(version, [place]))
            await asyncio.sleep(0)
            later = asyncio.ensure_future(handlers.commit(8, {("t", 1): 2}))
            await asyncio.sleep(0)
            failing = asyncio.ensure_future(handlers.call(fetch_request(handlers.group_id), 9))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not (committing.done() or fetching.done() or failing.done())
            for callback in held[:3]:
                callback(None)
            held[3](KafkaStorageError("the disk is gone"))
        assert (await committing, await later) == ({place: 0}, {("t", 1): 0})
        assert await fetching == {place: (2, 0, "m")}
        assert [group.error_code for group in (await failing).groups] == [16]

    def fetch_request(group_id: str) -> OffsetFetchRequest:
        return OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)])

    server.run(work, durability="fsync")


def test_a_group_whose_offsets_are_not_safe_keeps_no_other_from_its_own(
    server: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups of the request were refused, which are in other partitions too."""

    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        groups, place = handlers.broker.groups, ("t", 0)
        slow, well, *_ = {groups.partition_for(name): name for name in map(str, range(50))}.values()
        for name in (slow, well):
            assert await handlers.commit(8, {place: 1}, group_id=name) == {place: 0}
        durability = groups.shard(slow).context.replica.log.durability
        wait = type(durability).wait
        held: list[Callable[[KafkaError | None], None]] = []

        def held_up(self: Any, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
            if self is durability:
                held.append(callback)
            else:
                wait(self, offset, callback)

        with monkeypatch.context() as patch:
            patch.setattr(type(durability), "wait", held_up)
            committing = asyncio.ensure_future(handlers.commit(8, {place: 2}, group_id=slow))
            asked = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in (slow, well)]
            fetching = asyncio.ensure_future(handlers.call(OffsetFetchRequest(groups=asked, topics=[]), 9))
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(held) == 2
            for callback in held:
                callback(KafkaStorageError("the disk is gone"))
        assert await committing == {place: 16}
        told = [(group.group_id, group.error_code, len(group.topics)) for group in (await fetching).groups]
        assert told == [(slow, 16, 0), (well, 0, 1)]

    server.run(work, durability="fsync")


def test_offsets_of_a_deleted_topic_are_gone(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t", "u")
        await handlers.commit(9, {("t", 0): 7, ("u", 0): 8})
        handlers.broker.controller.delete_topics([handlers.topic_id("t")])
        handlers.broker.controller.settle()
        await handlers.broker.controller.flushed()
        assert await handlers.fetch(9, None) == {("u", 0): (8, 0, "m")}

    server.run(work)


def test_offsets_whose_deletion_cannot_be_written_are_not_those_of_the_next_topic(
    server: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer replicas in sync than min.insync.replicas: the tombstones of the deleted topic wait for the next expiry."""

    async def work(handlers: GroupHandlers) -> None:
        groups = handlers.broker.groups
        handlers.topics("t", "u")
        await handlers.commit(9, {("t", 0): 7, ("u", 0): 8})
        with monkeypatch.context() as full:
            full.setattr(GroupShard, "_write", lambda self, records, what: None)
            handlers.broker.controller.delete_topics([handlers.topic_id("t")])
            handlers.broker.controller.settle()
            await handlers.broker.controller.flushed()
        handlers.topics("t")
        assert await handlers.fetch(9, None) == {("u", 0): (8, 0, "m")}
        assert await handlers.fetch(9, {("t", 0)}) == {("t", 0): (-1, 0, "")}
        assert groups.expire_offsets() == 1
        assert groups.expire_offsets() == 0
        await handlers.commit(9, {("t", 0): 2})
        assert await handlers.fetch(9, None) == {("t", 0): (2, 0, "m"), ("u", 0): (8, 0, "m")}

    server.run(work)


def test_expiry_deletes_offsets_and_groups(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        joined = await handlers.stable()
        await handlers.commit(9, {("t", 0): 7}, member_id=joined.member_id, generation=1)
        await handlers.commit(9, {("t", 0): 7}, group_id="simple")
        await handlers.commit(4, {("t", 0): 7}, group_id="short", retention_time_ms=1)
        clock = handlers.broker.clock
        groups = handlers.broker.groups
        await asyncio.sleep(0.002)
        assert groups.expire_offsets() == 2, "the offset, and the group that has nothing left"
        now_ms = clock() + 60_000 + 1
        for shard in groups.runtime.shards():
            shard.context._clock = lambda: now_ms
        assert groups.expire_offsets() == 2, "members that read the topic keep its offsets"
        assert {g for shard in groups.runtime.shards() for g in shard.groups} == {"g"}
        assert await handlers.fetch(9, None) == {("t", 0): (7, 0, "m")}

    server.run(work, offsets_retention_minutes="1")


def test_expiry_runs_by_itself(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        await handlers.commit(4, {("t", 0): 7}, retention_time_ms=1)
        for _ in range(1000):
            if await handlers.fetch(9, None) == {}:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("the offset does not expire")

    server.run(work, offsets_retention_check_interval_ms="5")


def test_offset_delete(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t", "u")
        joined = await handlers.stable()
        offsets = {("t", 0): 1, ("u", 0): 2, ("u", 1): 3}
        await handlers.commit(9, offsets, member_id=joined.member_id, generation=1)

        async def delete(group_id: str, *topics: tuple[str, int]) -> tuple[int, list[int]]:
            named = [
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)]
                )
                for topic, partition in topics
            ]
            answer = await handlers.call(OffsetDeleteRequest(group_id=group_id, topics=named), 0)
            return answer.error_code, [topic.partitions[0].error_code for topic in answer.topics]

        assert await delete("", ("t", 0)) == (24, [])
        assert await delete("none", ("t", 0)) == (69, [])
        assert await delete("g", ("t", 0), ("u", 0), ("nowhere", 0), ("u", 3)) == (0, [86, 0, 3, 0])
        assert await delete("g", ("u", 9)) == (0, [3])
        assert await handlers.fetch(9, None) == {("t", 0): (1, 0, "m"), ("u", 1): (3, 0, "m")}
        connect = await handlers.member(group_id="connect", protocol_type="connect")
        await handlers.sync(4, connect, group_id="connect")
        assert await delete("connect", ("t", 0)) == (68, [])
        await handlers.leave(joined.member_id)
        assert await delete("g", ("t", 0)) == (0, [0])

    server.run(work)


@pytest.mark.parametrize("said", [1, 2, 3, 9])
def test_topics_are_known_of_a_subscription_that_leaves_out_what_came_after_version_0(
    server: HandlerBroker, said: int
) -> None:
    metadata = said.to_bytes(2, "big") + ConsumerProtocolSubscription(topics=["t"]).to_bytes(0)

    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t", "u")
        joined = await handlers.stable(protocols=[("range", metadata)])
        await handlers.commit(9, {("t", 0): 1, ("u", 0): 2, ("u", 1): 3}, member_id=joined.member_id, generation=1)
        topics = [
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in "tu"
        ]
        answer = await handlers.call(OffsetDeleteRequest(group_id="g", topics=topics), 0)
        assert [topic.partitions[0].error_code for topic in answer.topics] == [86, 0]
        shard = handlers.broker.groups.shard("g")
        shard.context._clock = lambda: 1 << 42  # offsets of topics that it does not read expire
        assert shard.expire_offsets() == 1
        assert await handlers.fetch(9, None) == {("t", 0): (1, 0, "m")}

    server.run(work)


# --- transactions ---


def txn_commit(handlers: GroupHandlers, offset: int, **fields: Any) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    return TxnOffsetCommitRequest(
        **{
            "transactional_id": "tx",
            "group_id": "g",
            "producer_id": 5,
            "producer_epoch": 0,
            "member_id": "",
            "topics": [
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=[partition(partition_index=0, committed_offset=offset, committed_metadata="m")],
                )
            ],
            **fields,
        }
    )


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit(server: HandlerBroker, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def admitted(*args: object) -> None:
        """The transaction's own checks are tested with the transactions."""

    def end(handlers: GroupHandlers, committed: bool, epoch: int = 0) -> None:
        partition = handlers.broker.groups.runtime.partition_for("g")
        replica = handlers.broker.replicas.get(OFFSETS_TOPIC, partition)
        assert replica is not None
        replica.log.append_transaction_marker(
            producer_id=5, producer_epoch=epoch, coordinator_epoch=0, commit=committed, leader_epoch=0, now_ms=1
        )
        handlers.broker.groups.runtime.marker_written(partition, 5, epoch, committed)

    async def code(handlers: GroupHandlers, offset: int, **fields: Any) -> int:
        answer = await handlers.call(txn_commit(handlers, offset, **fields), version)
        return int(answer.topics[0].partitions[0].error_code)

    async def work(handlers: GroupHandlers) -> None:
        monkeypatch.setattr(handlers.broker.transactions, "check", admitted)
        assert await code(handlers, 7) == 3
        handlers.topics("t")
        await handlers.commit(9, {("t", 0): 1})
        assert await code(handlers, 7) == 0
        assert await handlers.fetch(7, [("t", 0)]) == {("t", 0): (1, 0, "m")}
        for fetch_version in range(7, 11):
            unstable = await handlers.fetch(fetch_version, [("t", 0)], require_stable=True)
            assert unstable == {("t", 0): (-1, 88, "")}
        assert await handlers.fetch(8, None, require_stable=True) == {("t", 0): (-1, 88, "")}
        end(handlers, True)
        assert await handlers.fetch(7, [("t", 0)], require_stable=True) == {("t", 0): (7, 0, "m")}
        assert await code(handlers, 8) == 0
        end(handlers, False)
        assert await handlers.fetch(7, [("t", 0)], require_stable=True) == {("t", 0): (7, 0, "m")}
        assert await code(handlers, 9, producer_epoch=1) == 0
        assert await code(handlers, 9, producer_epoch=0) == 47
        assert await code(handlers, 9, group_id="") == 24
        if version >= 3:
            assert await code(handlers, 9, group_id="none", generation_id=1, member_id="m") == 22
            joined = await handlers.stable(group_id="live")
            assert await code(handlers, 9, group_id="live", generation_id=1, member_id=joined.member_id) == 0
            assert await code(handlers, 9, group_id="live", generation_id=0, member_id=joined.member_id) == 22
            assert await code(handlers, 9, group_id="live", generation_id=1, member_id="m") == 25

    async def after(handlers: GroupHandlers) -> None:
        assert await handlers.fetch(7, [("t", 0)], require_stable=True) == {("t", 0): (-1, 88, "")}
        end(handlers, True, epoch=1)
        assert await handlers.fetch(7, [("t", 0)], require_stable=True) == {("t", 0): (9, 0, "m")}

    server.run(work)
    server.run(after)


def test_a_topic_that_goes_while_a_txn_offset_commit_waits_gets_no_offset(
    server: HandlerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked up before the transaction before had ended, and the offset became that of the next topic of the name."""

    async def work(handlers: GroupHandlers) -> None:
        async def goes_meanwhile(*args: object) -> None:
            handlers.broker.controller.delete_topics([handlers.topic_id("t")])
            handlers.broker.controller.settle()
            handlers.broker.controller.settle()

        handlers.topics("t")
        monkeypatch.setattr(handlers.broker.transactions, "check", goes_meanwhile)
        answer = await handlers.call(txn_commit(handlers, 7), 5)
        assert answer.topics[0].partitions[0].error_code == 3
        assert not handlers.broker.groups.shard("g").offsets.has_pending("g")

    server.run(work)


def test_txn_offset_commit_while_loading(server: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        handlers.topics("t")
        await handlers.join()  # has the topic created
        handlers.broker.controller.settle()
        for version, code in ((1, 15), (2, 14), (5, 14)):
            answer = await handlers.call(txn_commit(handlers, 7), version)
            assert answer.topics[0].partitions[0].error_code == code

    server.run(work, ready=False)
