"""The coordinator runtime on a real broker: loading, appends, markers, leadership, damage."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from coordinator_tables import Table, Tables, put
from fastq_broker.broker import Broker
from fastq_broker.controller.topics import OFFSETS_TOPIC

from fastq._native.records import build_batch, iter_headers, read_header
from fastq.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError, NotCoordinator


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_the_topic_comes_with_the_first_key_that_is_looked_up(bench: Any, tables: Tables) -> None:
    async def work(broker: Broker) -> None:
        assert broker.controller.image.topic(OFFSETS_TOPIC) is None
        assert tables.runtime.partition_count == 4
        with pytest.raises(CoordinatorNotAvailable):
            tables.runtime.shard_for("orders")
        broker.controller.settle()
        topic = broker.controller.image.topic(OFFSETS_TOPIC)
        assert topic is not None and len(topic.partitions) == 4
        assert broker.controller.image.topic_configs(OFFSETS_TOPIC)["cleanup.policy"] == "compact"
        with pytest.raises(CoordinatorLoadInProgress):
            tables.runtime.shard_for("orders")
        shard = await tables.shard("orders")
        assert shard.events == ["loaded"]
        assert shard.context.partition == tables.runtime.partition_for("orders")

    bench.run(work, tables)


def test_what_was_written_is_replayed_at_once_and_again_after_a_restart(bench: Any, tables: Tables) -> None:
    async def write(broker: Broker) -> None:
        shard = await tables.shard("orders")
        assert put(shard, [(b"a", b"1"), (b"b", b"2")]) is None
        assert put(shard, [(b"a", None), (b"c", b"3")]) is None
        assert put(shard, []) is None
        assert shard.values == {b"b": b"2", b"c": b"3"}

    async def read(broker: Broker) -> None:
        shard = await tables.shard("orders")
        assert shard.values == {b"b": b"2", b"c": b"3"}
        assert shard.events == ["loaded"]

    bench.run(write, tables)
    bench.run(read, tables)


def test_a_long_log_is_read_in_turns_with_the_loop(bench: Any, tables: Tables) -> None:
    count = 5000

    async def write(broker: Broker) -> None:
        shard = await tables.shard("orders")
        for start in range(0, count, 50):
            assert put(shard, [(b"%d" % n, bytes(200)) for n in range(start, start + 50)]) is None

    async def read(broker: Broker) -> None:
        turns = 0
        while True:
            try:
                shard = tables.runtime.shard_for("orders")
                break
            except CoordinatorLoadInProgress:
                turns += 1
                await asyncio.sleep(0)
        assert len(shard.values) == count
        assert turns >= count // 500

    bench.run(write, tables)
    bench.run(read, tables)


def test_transactions_count_once_their_marker_says_so(bench: Any, tables: Tables) -> None:
    def end(broker: Broker, shard: Table, producer_id: int, committed: bool) -> None:
        shard.context.replica.log.append_transaction_marker(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=committed,
            leader_epoch=shard.context.leader_epoch,
            now_ms=broker.clock(),
        )
        tables.runtime.marker_written(shard.context.partition, producer_id, 0, committed)

    async def write(broker: Broker) -> None:
        shard = await tables.shard("orders")
        for producer_id in (7, 8, 9):
            options: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
            assert put(shard, [(b"p%d" % producer_id, b"1")], **options) is None
        assert shard.values == {}
        end(broker, shard, 7, True)
        end(broker, shard, 8, False)
        assert shard.values == {b"p7": b"1"}
        assert shard.context.replica.log.last_stable_offset == 2

    async def read(broker: Broker) -> None:
        shard = await tables.shard("orders")
        assert shard.values == {b"p7": b"1"}
        assert list(shard.pending) == [9]

    bench.run(write, tables)
    bench.run(read, tables)


def test_a_record_too_large_is_refused_and_not_replayed(
    bench: Any, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(broker: Broker) -> None:
        shard = await tables.shard("orders")
        error = put(shard, [(b"a", bytes(2_000_000))])
        assert error is not None and error.code == 10
        assert shard.values == {}
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "above the max.message.bytes 1048588" in line and "Raise max.message.bytes" in line

    bench.run(work, tables)


def test_a_batch_may_be_as_large_as_the_topic_says_and_has_to_leave_what_is_asked_for(
    bench: Any, tables: Tables
) -> None:
    bench.settings["message.max.bytes"] = "1000"

    def batch_size(value: bytes) -> int:
        return len(build_batch([(1, b"k", value)]))

    async def work(broker: Broker) -> None:
        shard = await tables.shard("orders")
        value = bytes(1000 - batch_size(bytes(900)) + 900)
        assert batch_size(value) == 1000
        error = put(shard, [(b"k", value + b"x")])
        assert error is not None and error.code == 10 and shard.values == {}
        assert put(shard, [(b"k", value)]) is None and shard.values == {b"k": value}
        assert put(shard, [(b"k", value[1:])]) is None
        error = put(shard, [(b"k", value[6:])], spare_bytes=7)
        assert error is not None and error.code == 10
        assert put(shard, [(b"k", value[7:])], spare_bytes=7) is None

    bench.run(work, tables)


@pytest.mark.parametrize("transactional", [False, True])
def test_records_that_need_not_come_together_take_several_batches(
    bench: Any, tables: Tables, transactional: bool
) -> None:
    bench.settings["message.max.bytes"] = "1000"
    records: list[tuple[bytes, bytes | None]] = [(b"%03d" % n, bytes(n)) for n in range(200)]
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True} if transactional else {}

    async def write(broker: Broker) -> None:
        shard = await tables.shard("orders")
        answers: list[KafkaError | None] = []
        shard.context.append_in_parts(records, answers.append, **fields)
        shard.context.append_in_parts([], answers.append)
        assert answers == [None, None]
        assert (shard.pending[7] if transactional else shard.values) == dict(records)
        log = shard.context.replica.log
        headers = [header for _, header in iter_headers(log.read(0, 1 << 20).read())]
        assert all(header.is_transactional == transactional for header in headers)
        sizes = [header.size_bytes for header in headers]
        assert max(sizes) <= 1000 and len(sizes) < sum(sizes) / 500
        end = log.log_end_offset
        # One that fits no batch is refused; those before it are there, those after it are not.
        shard.context.append_in_parts([(b"a", bytes(600)), (b"b", bytes(1000)), (b"c", b"")], answers.append)
        assert answers[-1] is not None and answers[-1].code == 10
        assert log.log_end_offset == end + 1 and b"a" in shard.values and b"c" not in shard.values
        shard.context.close()
        shard.context.append_in_parts([(b"d", b"")], answers.append)
        assert answers[-1] is not None and answers[-1].code == 16 and len(answers) == 4

    async def read(broker: Broker) -> None:
        shard = await tables.shard("orders")
        if transactional:
            assert shard.pending[7] == dict(records)
        else:
            assert shard.values == {**dict(records), b"a": bytes(600)}

    bench.run(write, tables)
    bench.run(read, tables)


def test_a_disk_that_fails_answers_and_nothing_is_replayed(bench: Any, tables: Tables) -> None:
    async def work(broker: Broker) -> None:
        shard = await tables.shard("orders")
        log = shard.context.replica.log
        log.dir.fail("writing a batch", log.path, OSError(5, "Input/output error"))
        error = put(shard, [(b"a", b"1")])
        assert error is not None and error.code == 56
        assert shard.values == {}
        log.dir.offline = None  # for the stop

    bench.run(work, tables)


def test_leadership_lost_and_won_again(bench: Any, tables: Tables) -> None:
    async def work(broker: Broker) -> None:
        shard = await tables.shard("orders")
        assert put(shard, [(b"a", b"1")]) is None
        fired: list[int] = []
        shard.context.call_later(0, lambda: fired.append(1))
        replica = shard.context.replica
        replica.leader_id = 99
        tables.runtime.follow()
        assert shard.events == ["loaded", "unloaded"]
        with pytest.raises(NotCoordinator):
            tables.runtime.shard_for("orders")
        error = put(shard, [(b"b", b"2")])
        assert error is not None and error.code == 16
        replica.leader_id, replica.leader_epoch = broker.node_id, replica.leader_epoch + 1
        tables.runtime.follow()
        again = await tables.shard("orders")
        assert again is not shard
        assert again.values == {b"a": b"1"}
        replica.leader_epoch += 1  # a new epoch of the same leader is a new state, too
        tables.runtime.follow()
        assert again.events == ["loaded", "unloaded"]
        assert (await tables.shard("orders")).context.leader_epoch == replica.leader_epoch
        await asyncio.sleep(0.01)
        assert fired == []

    bench.run(work, tables)


def test_one_that_fails_as_it_goes_keeps_no_other_from_it(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other partitions of the same change were neither unloaded nor loaded before the next one."""
    unloaded = Table.unloaded

    def failing(self: Table) -> None:
        unloaded(self)
        raise MemoryError("none left")

    monkeypatch.setattr(Table, "unloaded", failing)

    async def work(broker: Broker) -> None:
        shards = [await tables.shard(key) for key in "abcdefgh"]
        for shard in shards:
            shard.context.replica.leader_epoch = shard.context.leader_epoch + 1
        tables.runtime.follow()
        assert all(shard.events == ["loaded", "unloaded"] for shard in shards)
        assert (await tables.shard("a")).events == ["loaded"]

    bench.run(work, tables)


def test_a_partition_that_moves_is_used_no_more_before_it_is_unloaded(bench: Any, tables: Tables) -> None:
    """Who waited for its replica was sent away first, asked again, and was told what only this node had; a record of the epoch before
    came into the log of a follower."""

    async def work(broker: Broker) -> None:
        shard = await tables.shard("orders")
        replica, number = shard.context.replica, shard.context.partition
        end = replica.log.log_end_offset
        for leader, error in ((99, NotCoordinator), (-1, NotCoordinator), (broker.node_id, CoordinatorLoadInProgress)):
            replica.leader_id, replica.leader_epoch = leader, replica.leader_epoch + 1
            with pytest.raises(error):
                tables.runtime.shard_for("orders")
            assert tables.runtime.shard_of(number) is None
            assert isinstance(put(shard, [(b"a", b"1")]), NotCoordinator)
        assert replica.log.log_end_offset == end and shard.events == ["loaded"]
        tables.runtime.follow()
        assert shard.events == ["loaded", "unloaded"]
        assert put(await tables.shard("orders"), [(b"a", b"1")]) is None

    bench.run(work, tables)


def test_a_deleted_topic_is_unloaded_and_created_again(bench: Any, tables: Tables) -> None:
    async def work(broker: Broker) -> None:
        shard = await tables.shard("orders")
        topic = broker.controller.image.topic(OFFSETS_TOPIC)
        assert topic is not None
        broker.controller.delete_topics([topic.topic_id])
        broker.controller.settle()
        assert shard.events == ["loaded", "unloaded"]
        assert list(tables.runtime.shards()) == []
        assert (await tables.shard("orders")).values == {}

    bench.run(work, tables)


def test_damaged_records_are_logged_with_file_and_position_and_left_out(
    bench: Any, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    paths: list[Path] = []

    async def write(broker: Broker) -> None:
        shard = await tables.shard("orders")
        log = shard.context.replica.log
        assert put(shard, [(b"a", b"1")]) is None
        assert put(shard, [(b"b", b"damaged")]) is None
        log.append(build_batch([(1, b"bad", b""), (1, b"worse", b""), (1, b"c", b"3")]), leader_epoch=0, now_ms=1)
        paths.append(Path(log.active_segment.log.path))

    async def read(broker: Broker) -> None:
        shard = await tables.shard("orders")
        assert shard.values == {b"a": b"1", b"c": b"3"}

    bench.run(write, tables)
    data = paths[0].read_bytes()
    assert data.count(b"damaged") == 1
    paths[0].write_bytes(data.replace(b"damaged", b"Damaged"))
    with caplog.at_level(logging.ERROR):
        bench.run(read, tables)
    lines = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    second = read_header(data).size_bytes
    third = second + read_header(data, second).size_bytes
    assert len(lines) == 3
    assert f"offset 1 ({paths[0]}, batch at byte {second})" in lines[0]
    assert f"offset 2 ({paths[0]}, batch at byte {third})" in lines[1]
    assert "offset 3" in lines[2]


def test_a_header_that_is_none_does_not_keep_all_keys_away(
    bench: Any, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """The load began again each second, for ever, with a traceback each time."""
    paths: list[Path] = []

    async def write(broker: Broker) -> None:
        shard = await tables.shard("orders")
        for value in (b"1", b"2", b"3"):
            assert put(shard, [(b"a", value)]) is None
        log = shard.context.replica.log
        log.roll(1)
        assert put(shard, [(b"b", b"4")]) is None
        paths.append(Path(log.segments[0].log.path))

    async def read(broker: Broker) -> None:
        assert (await tables.shard("orders")).values == {b"a": b"1", b"b": b"4"}

    bench.run(write, tables)
    data = bytearray(paths[0].read_bytes())
    second = read_header(bytes(data)).size_bytes
    data[second + 16] = 7  # the magic
    paths[0].write_bytes(data)
    with caplog.at_level(logging.ERROR):
        bench.run(read, tables)
    (line,) = [record.getMessage() for record in caplog.records if "loading goes on" in record.getMessage()]
    assert f"at offset 1 in {paths[0]}" in line and "goes on at offset 3" in line
