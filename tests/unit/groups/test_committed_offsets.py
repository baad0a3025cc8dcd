"""Committed and pending offsets against a slow model, and their records against Kafka's formats."""

from __future__ import annotations

import random

import pytest
from fastq_broker.coordinator.records import decode_key, encode_key, record_type
from fastq_broker.groups.classic_group import ClassicGroup
from fastq_broker.groups.classic_state import State
from fastq_broker.groups.offsets import CommittedOffset, Offsets

from fastq._native.commit_path import decode_offset_value, encode_offset_key, encode_offset_value
from fastq._native.wire import DecodeError
from fastq.protocol.messages import LegacyOffsetCommitKey, OffsetCommitKey

DAY_MS = 24 * 3_600_000


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> tuple[bytes, bytes]:
    return encode_offset_key(group_id, topic, partition), encode_offset_value(*committed[:6])


def commit(offsets: Offsets, group_id: str, topic: str, partition: int, offset: int, producer_id: int = -1) -> None:
    offsets.replay(*offset_record(group_id, topic, partition, CommittedOffset(offset)), producer_id)


def test_a_record_is_what_kafka_writes() -> None:
    key, value = offset_record("g", "t", 3, CommittedOffset(5, 2, "m", 1000))
    assert key == bytes.fromhex("000100016700017400000003")
    assert value == bytes.fromhex("0004000000000000000500000002026d00000000000003e800")
    _, value = offset_record("g", "t", 3, CommittedOffset(5, 2, "m", 1000, topic_id=b"i" * 16))
    assert value == bytes.fromhex("0004000000000000000500000002026d00000000000003e8010010" + "69" * 16)


def test_a_retention_of_the_clients_own_is_kept_with_the_offset() -> None:
    _, value = offset_record("g", "t", 3, CommittedOffset(5, -1, "m", 1000, 2000))
    assert value == bytes.fromhex("0001000000000000000500016d00000000000003e800000000000007d0")
    assert decode_offset_value(value) == CommittedOffset(5, -1, "m", 1000, 2000)[:6]


def test_keys_of_old_logs_are_read_too() -> None:
    key = encode_key(LegacyOffsetCommitKey(group="g", topic="t", partition=1))
    assert record_type(key) == 0
    offsets = Offsets()
    offsets.replay(key, offset_record("g", "t", 1, CommittedOffset(9))[1], -1)
    assert offsets.get("g", "t", 1) == CommittedOffset(9, sequence=1)


@pytest.mark.parametrize("value", [b"", b"\0", bytes.fromhex("000900"), bytes.fromhex("00030000")])
def test_a_value_that_is_no_offset_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_offset_value(value)


def test_a_later_commit_stands_above_a_transaction_that_was_begun_before_it() -> None:
    offsets = Offsets()
    commit(offsets, "g", "t", 0, 10, producer_id=7)
    commit(offsets, "g", "t", 0, 20)
    offsets.end_transaction(7, True)
    found = offsets.get("g", "t", 0)
    assert found is not None
    assert found.offset == 20


def test_a_tombstone_takes_pending_offsets_along() -> None:
    offsets = Offsets()
    commit(offsets, "g", "t", 0, 10)
    commit(offsets, "g", "t", 0, 11, producer_id=7)
    commit(offsets, "g", "t", 1, 12, producer_id=7)
    assert offsets.is_pending("g", "t", 0)
    for key, value in offsets.tombstones("g"):
        offsets.replay(key, value, -1)
    assert not offsets.has_pending("g")
    offsets.end_transaction(7, True)
    assert list(offsets) == []
    assert "g" not in offsets


def test_tombstones_are_for_what_is_there() -> None:
    offsets = Offsets()
    commit(offsets, "g", "t", 0, 10)
    commit(offsets, "g", "u", 0, 10, producer_id=1)
    commit(offsets, "h", "u", 5, 10)
    assert offsets.tombstones("g", [("t", 0), ("t", 1)]) == [(encode_offset_key("g", "t", 0), None)]
    keys = [key for key, _ in offsets.tombstones_of_topics(frozenset({"u"}))]
    assert sorted(keys) == [encode_offset_key("g", "u", 0), encode_offset_key("h", "u", 5)]


def test_tombstones_of_a_topic_leave_the_offsets_of_a_younger_one_of_its_name() -> None:
    offsets = Offsets()
    for group_id, topic_id in (("g", b"o" * 16), ("h", b"y" * 16)):
        offsets.replay(*offset_record(group_id, "t", 0, CommittedOffset(1, topic_id=topic_id)), -1)
    offsets.replay(*offset_record("p", "t", 0, CommittedOffset(2, topic_id=b"o" * 16)), 7)
    assert offsets.topics() == {("t", b"o" * 16), ("t", b"y" * 16)}
    keys = [key for key, _ in offsets.tombstones_of_ids({("t", b"o" * 16)})]
    assert keys == [encode_offset_key("g", "t", 0), encode_offset_key("p", "t", 0)]


class Model:
    """The same, slow and obvious: the whole history, looked through for each question."""

    def __init__(self) -> None:
        self.history: list[tuple[str, tuple[str, int], int | None, int]] = []
        self.ends: dict[int, tuple[int, bool]] = {}

    def offset(self, item: tuple[str, tuple[str, int]]) -> int | None:
        found = None
        for group_id, partition, offset, writer in self.history:
            if (group_id, partition) == item:
                if offset is None:
                    found = None
                elif writer < 0 or self.ends.get(writer, (0, False))[1]:
                    found = offset
        return found

    def pending(self, item: tuple[str, tuple[str, int]]) -> bool:
        open_writers: set[int] = set()
        for group_id, partition, offset, writer in self.history:
            if (group_id, partition) == item:
                if offset is None:
                    open_writers.clear()
                elif writer >= 0 and writer not in self.ends:
                    open_writers.add(writer)
        return bool(open_writers)


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_commits_tombstones_and_markers_equals_the_model(seed: int) -> None:
    rng = random.Random(seed)
    offsets, model = Offsets(), Model()
    writers: dict[int, int] = {}  # producer id -> the number of its open transaction in the model
    numbers = 0
    items = [(group_id, ("t", partition)) for group_id in "ab" for partition in range(2)]
    for step in range(200):
        group_id, partition = rng.choice(items)
        producer_id = rng.choice([-1, -1, 1, 2, 3])
        action = rng.random()
        if action < 0.6:
            if producer_id >= 0 and producer_id not in writers:
                numbers += 1
                writers[producer_id] = numbers
            commit(offsets, group_id, *partition, step, producer_id)
            model.history.append((group_id, partition, step, writers.get(producer_id, -1)))
        elif action < 0.7:
            offsets.replay(encode_offset_key(group_id, *partition), None, -1)
            model.history.append((group_id, partition, None, -1))
        elif producer_id in writers:
            committed = rng.random() < 0.5
            offsets.end_transaction(producer_id, committed)
            model.ends[writers.pop(producer_id)] = (step, committed)
        for item in items:
            found = offsets.get(item[0], *item[1])
            assert (None if found is None else found.offset) == model.offset(item), (seed, step, item)
            assert offsets.is_pending(item[0], *item[1]) == model.pending(item), (seed, step, item)


# --- expiry ---


def expired(group: ClassicGroup, committed: CommittedOffset, now_ms: int) -> bool:
    offsets = Offsets()
    offsets.replay(*offset_record(group.group_id, "t", 0, committed), -1)
    records, nothing_left = offsets.expired(group.group_id, group, now_ms, 7 * DAY_MS)
    assert nothing_left == bool(records)
    return nothing_left


def make_group(protocol_type: str | None, state: State = State.EMPTY, since_ms: int | None = 0) -> ClassicGroup:
    group = ClassicGroup("g", wall_clock=lambda: 0, new_name=str)
    group.protocol_type, group.state, group.state_since_ms = protocol_type, state, since_ms
    group.subscribed = frozenset() if protocol_type == "consumer" else None
    return group


def test_offsets_without_a_group_protocol_expire_after_their_commit() -> None:
    group = make_group(None)
    assert not expired(group, CommittedOffset(1, commit_timestamp_ms=DAY_MS), 8 * DAY_MS - 1)
    assert expired(group, CommittedOffset(1, commit_timestamp_ms=DAY_MS), 8 * DAY_MS)


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    group = make_group("consumer", since_ms=5 * DAY_MS)
    assert not expired(group, CommittedOffset(1, commit_timestamp_ms=0), 12 * DAY_MS - 1)
    assert expired(group, CommittedOffset(1, commit_timestamp_ms=0), 12 * DAY_MS)
    assert expired(make_group("consumer", since_ms=None), CommittedOffset(1, commit_timestamp_ms=0), 7 * DAY_MS)


def test_offsets_of_an_active_group_expire_for_topics_that_it_does_not_read() -> None:
    group = make_group("consumer", State.STABLE)
    assert expired(group, CommittedOffset(1, commit_timestamp_ms=0), 7 * DAY_MS)
    group.subscribed = frozenset({"t"})
    assert not expired(group, CommittedOffset(1, commit_timestamp_ms=0), 70 * DAY_MS)
    group.subscribed, group.state = frozenset(), State.PREPARING_REBALANCE
    assert not expired(group, CommittedOffset(1, commit_timestamp_ms=0), 70 * DAY_MS)
    assert not expired(make_group("connect", State.STABLE), CommittedOffset(1, commit_timestamp_ms=0), 70 * DAY_MS)


def test_a_retention_of_the_clients_own_ends_when_it_says() -> None:
    group = make_group(None)
    assert expired(group, CommittedOffset(1, commit_timestamp_ms=0, expire_timestamp_ms=50), 50)
    assert not expired(group, CommittedOffset(1, commit_timestamp_ms=0, expire_timestamp_ms=50), 49)


def test_what_a_transaction_is_about_to_commit_does_not_expire() -> None:
    offsets = Offsets()
    group = make_group(None)
    commit(offsets, "g", "t", 0, 1)
    commit(offsets, "g", "t", 0, 2, producer_id=1)
    assert offsets.expired("g", group, 700 * DAY_MS, 7 * DAY_MS) == ([], False)


def test_key_of_an_offset() -> None:
    assert decode_key(OffsetCommitKey, encode_offset_key("g", "t", 2)) == OffsetCommitKey(
        group="g", topic="t", partition=2
    )
