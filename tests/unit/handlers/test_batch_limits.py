"""What makes many records at once: as many batches as it takes where they need not come together, else refused before anything changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.controller import config_changes
from fastq_broker.controller.config_changes import ConfigChange, ResourceChange
from fastq_broker.controller.records import RECORD_OVERHEAD_BYTES_MAX
from fastq_broker.controller.topics import TRANSACTIONS_TOPIC, NewTopic
from group_support import OFFSETS_TOPIC, GroupHandlers, HandlerBroker

from fastq._native.records import iter_headers
from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    AddPartitionsToTxnRequest,
    DeleteGroupsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetDeleteRequest,
)

LIMIT = 3000
SMALL_BATCHES = {"message.max.bytes": str(LIMIT)}
PARTITIONS = 200


@pytest.fixture
def small(server: HandlerBroker) -> HandlerBroker:
    """A broker whose internal topics take small batches: the offsets of a topic are more than one, and so are their tombstones."""
    server.settings.update(SMALL_BATCHES)
    return server


def batch_sizes(broker: Broker, topic: str) -> Iterator[int]:
    for replica in broker.replicas:
        if replica.topic == topic:
            for segment in replica.log.segments:
                if segment.size:
                    data = replica.log.read(segment.base_offset, 1 << 24).read()
                    yield from (header.size_bytes for _, header in iter_headers(data))


async def fill(handlers: GroupHandlers, count: int = PARTITIONS) -> None:
    handlers.topics("t", partitions=count)
    answer = await handlers.commit(8, {("t", number): 1000 + number for number in range(count)})
    assert answer == {("t", number): 0 for number in range(count)}


async def committed(handlers: GroupHandlers, count: int = PARTITIONS) -> list[int]:
    found = await handlers.fetch(7, [("t", number) for number in range(count)])
    return [found["t", number][0] for number in range(count)]


def kept(handlers: GroupHandlers) -> int:
    """How many offsets the coordinator has, those of topics that are gone too, which it tells nobody."""
    return len(handlers.broker.groups.shard("g").offsets.of_group("g"))


NOTHING = [-1] * PARTITIONS
EVERYTHING = [1000 + number for number in range(PARTITIONS)]


def test_a_commit_of_many_partitions_takes_several_batches(small: HandlerBroker) -> None:
    async def write(handlers: GroupHandlers) -> None:
        await fill(handlers)
        assert await committed(handlers) == EVERYTHING
        sizes = list(batch_sizes(handlers.broker, OFFSETS_TOPIC))
        assert len(sizes) > 2 and max(sizes) <= LIMIT

    async def read(handlers: GroupHandlers) -> None:
        assert await committed(handlers) == EVERYTHING

    small.run(write)
    small.run(read)


def test_a_topic_that_comes_again_begins_without_offsets_however_many_there_were(small: HandlerBroker) -> None:
    async def write(handlers: GroupHandlers) -> None:
        await fill(handlers)
        handlers.broker.controller.delete_topics([handlers.topic_id("t")])
        handlers.topics("t", partitions=PARTITIONS)
        assert await committed(handlers) == NOTHING and not kept(handlers)

    async def read(handlers: GroupHandlers) -> None:
        assert await committed(handlers) == NOTHING and not kept(handlers)

    small.run(write)
    small.run(read)


def test_offsets_of_a_topic_that_was_deleted_while_the_coordinator_was_away_are_gone(small: HandlerBroker) -> None:
    async def write(handlers: GroupHandlers) -> None:
        await fill(handlers)
        # What a crash leaves: the topic's deletion is on disk, the tombstones of its offsets are not.
        shard = handlers.broker.groups.shard("g")
        shard.context.close()
        handlers.broker.controller.delete_topics([handlers.topic_id("t")])
        assert shard.offsets.of_group("g")

    async def read(handlers: GroupHandlers) -> None:
        handlers.topics("t", partitions=PARTITIONS)
        assert await committed(handlers) == NOTHING and not kept(handlers)

    small.run(write)
    small.run(read)


def test_offsets_of_a_topic_that_was_made_anew_during_the_load_are_gone(small: HandlerBroker) -> None:
    async def read(handlers: GroupHandlers) -> None:
        assert handlers.broker.groups.runtime.not_loaded(), "nothing is loaded before the loop's next turn"
        handlers.broker.controller.delete_topics([handlers.topic_id("t")])
        handlers.topics("t", partitions=PARTITIONS)
        await handlers.ready()
        assert await committed(handlers) == NOTHING and not kept(handlers)

    small.run(fill)
    small.run(read, ready=False)
    small.run(lambda handlers: _expect(handlers, NOTHING))


async def _expect(handlers: GroupHandlers, offsets: list[int]) -> None:
    assert await committed(handlers) == offsets


def test_a_group_with_many_offsets_is_deleted(small: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        await fill(handlers)
        (result,) = (await handlers.call(DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert result.error_code == 0
        assert await committed(handlers) == NOTHING
        assert "g" not in handlers.broker.groups.shard("g").groups

    small.run(work)


def test_many_offsets_are_deleted_by_request(small: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        await fill(handlers)
        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
        partition = OffsetDeleteRequest.OffsetDeleteRequestPartition
        partitions = [partition(partition_index=number) for number in range(PARTITIONS)]
        request = OffsetDeleteRequest(group_id="g", topics=[topic(name="t", partitions=partitions)])
        answer = await handlers.call(request, 0)
        assert answer.error_code == 0
        assert {item.error_code for item in answer.topics[0].partitions} == {0}
        assert await committed(handlers) == NOTHING

    small.run(work)


def test_many_offsets_expire(small: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        await fill(handlers)
        handlers.broker.clock = lambda: 1 << 42
        handlers.broker.groups.shard("g").context._clock = handlers.broker.clock
        assert handlers.broker.groups.expire_offsets() == PARTITIONS + 1
        assert await committed(handlers) == NOTHING and not kept(handlers)

    small.run(work)


# --- what has to be one batch: at the bound, and one byte above ---


def test_a_classic_group_of_one_byte_too_much_is_refused_and_stays_as_it_was(small: HandlerBroker) -> None:
    async def size_of(handlers: GroupHandlers, group_id: str, length: int) -> tuple[int, int]:
        """The error of the SyncGroup that stores a group with an assignment of some length, and the size of its batch."""
        joined = await handlers.member(group_id=group_id)
        answer = await handlers.sync(5, joined, {joined.member_id: bytes(length)}, group_id=group_id)
        return int(answer.error_code), max(batch_sizes(handlers.broker, OFFSETS_TOPIC))

    async def work(handlers: GroupHandlers) -> None:
        code, size = await size_of(handlers, "g1", 2000)
        assert code == 0
        spare = LIMIT - size
        assert await size_of(handlers, "g2", 2000 + spare - 1) == (0, LIMIT - 1)
        assert await size_of(handlers, "g3", 2000 + spare) == (0, LIMIT)
        code, size = await size_of(handlers, "g4", 2000 + spare + 1)
        assert (code, size) == (ErrorCode.UNKNOWN_SERVER_ERROR, LIMIT)
        # The group is still there, and a smaller assignment is taken.
        (member,) = handlers.broker.groups.shard("g4").groups["g4"].members.values()  # type: ignore[attr-defined]
        again = await handlers.join(group_id="g4", member_id=member.member_id)
        answer = await handlers.sync(5, again, {member.member_id: b"less"}, group_id="g4")
        assert (answer.error_code, bytes(answer.assignment)) == (0, b"less")

    small.run(work)


async def transactions_ready(handlers: GroupHandlers, name: str) -> None:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
    for _ in range(10_000):
        found = await handlers.call(request, 4)
        if not found.coordinators[0].error_code and not handlers.broker.transactions.runtime.loading:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the coordinator does not load")


def test_many_transactional_ids_are_forgotten_in_several_batches(small: HandlerBroker) -> None:
    names = [f"{number:03}-{'n' * 60}" for number in range(150)]

    async def write(handlers: GroupHandlers) -> None:
        await transactions_ready(handlers, names[0])
        for name in names:
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
            assert (await handlers.call(request, 4)).error_code == 0
        runtime = handlers.broker.transactions.runtime
        shards = {id(shard): shard for name in names if (shard := runtime.shard_for(name)) is not None}
        before = len(list(batch_sizes(handlers.broker, TRANSACTIONS_TOPIC)))
        assert sum(shard.expire(-1) for shard in shards.values()) == len(names)
        for _ in range(10_000):
            if not any(shard.transactions for shard in shards.values()):
                break
            await asyncio.sleep(0.001)
        sizes = list(batch_sizes(handlers.broker, TRANSACTIONS_TOPIC))
        assert len(sizes) - before > len(shards) and max(sizes) <= LIMIT

    async def read(handlers: GroupHandlers) -> None:
        await transactions_ready(handlers, names[0])
        for name in names:
            shard = handlers.broker.transactions.runtime.shard_for(name)
            assert shard is not None and not shard.transactions

    small.run(write)
    small.run(read)


def test_a_transaction_takes_no_partitions_with_which_it_could_not_end(small: HandlerBroker) -> None:
    async def work(handlers: GroupHandlers) -> None:
        await transactions_ready(handlers, "tx")
        names = [f"{number:03}-{'n' * 96}" for number in range(40)]
        handlers.topics(*names, partitions=1)
        shard = handlers.broker.transactions.runtime.shard_for("tx")
        producer: Any = await handlers.call(
            InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000), 4
        )
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        codes = []
        for name in names:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="tx",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[topic(name=name, partitions=[0])],
            )
            answer = await handlers.call(request, 3)
            (result,) = answer.results_by_topic_v3_and_below
            codes.append(result.results_by_partition[0].partition_error_code)
        taken = codes.index(ErrorCode.UNKNOWN_SERVER_ERROR)
        assert codes == [0] * taken + [ErrorCode.UNKNOWN_SERVER_ERROR] * (len(names) - taken)
        assert len(shard.transactions["tx"].partitions) == taken > 20
        request = EndTxnRequest(
            transactional_id="tx",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        assert (await handlers.call(request, 5)).error_code == 0
        for _ in range(1000):
            if shard.transactions["tx"].state.label == "CompleteCommit":
                break
            await asyncio.sleep(0.001)
        assert shard.transactions["tx"].state.label == "CompleteCommit"
        assert max(batch_sizes(handlers.broker, TRANSACTIONS_TOPIC)) > LIMIT - 200

    small.run(work)


# --- the metadata log ---


KEY = "leader.replication.throttled.replicas"


def throttled(length: int, name: str = "t") -> ResourceChange:
    """A change whose value has some length."""
    return ResourceChange(
        2, name, [ConfigChange(KEY, 0, "0:1," * ((length - 3) // 4) + "0:1" + "1" * ((length - 3) % 4))]
    )


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_change_of_metadata_is_one_batch_or_none(
    bench: Any, monkeypatch: pytest.MonkeyPatch, validate_only: bool
) -> None:
    controller = bench.controller
    controller.create_topics([NewTopic("t"), NewTopic("u")])
    wanted = [throttled(2000), throttled(2000, "u")]
    image, end_offset = controller.image, controller.quorum.end_offset
    _, records = config_changes.plan_changes(image, wanted, controller.layers)
    size = sum(len(value) + RECORD_OVERHEAD_BYTES_MAX for value in controller._encoded(records))
    monkeypatch.setattr("fastq_broker.controller.topics.BATCH_BYTES_MAX", size - 1)
    bad = ResourceChange(2, "nowhere", [])
    results = controller.alter_configs([*wanted, bad], validate_only=validate_only)
    assert [result.error for result in results] == [ErrorCode.POLICY_VIOLATION] * 2 + [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]
    configs = [(KEY, throttled(2000).changes[0].value)]
    results = controller.create_topics(
        [NewTopic(name, configs=configs) for name in ("v", "w")], validate_only=validate_only
    )
    assert [(result.name, result.error, result.topic_id) for result in results] == [
        ("v", ErrorCode.POLICY_VIOLATION, bytes(16)),
        ("w", ErrorCode.POLICY_VIOLATION, bytes(16)),
    ]
    assert controller.image is image and controller.quorum.end_offset == end_offset
    for limit in (size, size + 1):
        monkeypatch.setattr("fastq_broker.controller.topics.BATCH_BYTES_MAX", limit)
        results = controller.alter_configs(wanted, validate_only=validate_only)
        assert [result.error for result in results] == [0, 0]
    assert (controller.quorum.end_offset == end_offset) == validate_only


@pytest.mark.parametrize(("length", "error"), [(32_767, 0), (32_768, ErrorCode.INVALID_CONFIG)])
def test_a_value_is_no_longer_than_the_log_can_say(bench: Any, length: int, error: int) -> None:
    bench.controller.create_topics([NewTopic("t")])
    results = bench.controller.alter_configs([throttled(length)])
    assert [result.error for result in results] == [error]
    created = bench.controller.create_topics([NewTopic("u", configs=[(KEY, throttled(length).changes[0].value)])])
    assert [result.error for result in created] == [error]


def test_the_largest_topic_is_made_whole(bench: Any) -> None:
    start = bench.controller.quorum.end_offset
    bench.controller._listeners.clear()  # its logs are not needed
    results = bench.controller.create_topics([NewTopic("big", 9_999), NewTopic("more", 1), NewTopic("most", 1)])
    assert [result.error for result in results] == [0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    data = bench.controller.quorum._log.read(start, 1 << 24).read()
    assert len(list(iter_headers(data))) == 1
