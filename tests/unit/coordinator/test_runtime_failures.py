"""The coordinator runtime on a real broker where something fails inside: what is loaded, read anew and tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from coordinator_tables import Table, Tables, put
from fastq_broker.broker import Broker

from fastq.errors import KafkaError, NotCoordinator


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_a_record_for_which_there_was_no_memory_is_not_left_out(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(broker: Broker) -> None:
        assert put(await tables.shard("orders"), [(b"a", b"1"), (b"b", b"2")]) is None

    bench.run(write, tables)
    failures = [MemoryError()]
    replay = Table.replay

    def failing(self: Table, key: bytes, *rest: Any) -> None:
        if key == b"b" and failures:
            raise failures.pop()
        replay(self, key, *rest)

    monkeypatch.setattr("fastq_broker.coordinator.runtime.RETRY_S", 0.01)
    monkeypatch.setattr(Table, "replay", failing)

    async def read(broker: Broker) -> None:
        assert (await tables.shard("orders")).values == {b"a": b"1", b"b": b"2"}

    bench.run(read, tables)
    assert failures == []


@pytest.mark.parametrize("what", ["make_shard", "create_task", "call_later"])
def test_one_that_cannot_be_begun_for_a_moment_keeps_no_other_from_loading(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It was coordinated by nobody, and those behind it were loading for good."""
    monkeypatch.setattr("fastq_broker.coordinator.runtime.RETRY_S", 0.01)
    failed: list[str] = []

    def once(name: str, work: Any, mine: Callable[[Any], bool]) -> Any:
        def failing(*given: Any, **options: Any) -> Any:
            if name not in failed and any(map(mine, given)):
                failed.append(name)
                raise MemoryError("none left")
            return work(*given, **options)

        return failing

    def prepare(broker: Broker) -> None:
        tables(broker)
        runtime, loop = tables.runtime, broker.loop
        if what != "create_task":
            runtime._make_shard = once("make_shard", runtime._make_shard, bool)
        if what == "call_later":
            monkeypatch.setattr(loop, what, once(what, loop.call_later, lambda given: given == runtime._retry))
        if what == "create_task":
            ours = runtime._load_all.__qualname__
            begun = once(what, loop.create_task, lambda given: getattr(given, "__qualname__", "") == ours)
            monkeypatch.setattr(loop, what, begun)

    async def work(broker: Broker) -> None:
        for partition in range(4):
            key = next(key for key in map(str, range(100)) if tables.runtime.partition_for(key) == partition)
            assert (await tables.shard(key)).events == ["loaded"]

    bench.run(work, prepare)
    assert what in failed


@pytest.mark.parametrize("what", ["log", "replay"])
def test_what_fails_inside_while_it_is_written_is_read_anew(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whoever asked is told, and the shard is what its log says."""

    async def scenario(broker: Broker) -> None:
        shard = await tables.shard("orders")
        assert put(shard, [(b"a", b"1")]) is None
        owner, name = (type(shard.context.replica.log), "append") if what == "log" else (Table, "replay")

        def failing(*_given: Any, **_options: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            assert isinstance(put(shard, [(b"a", b"2"), (b"b", b"2")]), NotCoordinator)
        assert isinstance(put(shard, [(b"c", b"3")]), NotCoordinator)
        await asyncio.sleep(0)  # the loop's next turn begins it
        again = await tables.shard("orders")
        assert again.values == ({b"a": b"1"} if what == "log" else {b"a": b"2", b"b": b"2"})
        assert shard.events[-1] == "unloaded" and put(again, [(b"c", b"3")]) is None

    bench.run(scenario, tables)


@pytest.mark.parametrize("asked", [True, False])
def test_what_cannot_be_read_anew_for_a_moment_is_when_somebody_asks_or_the_metadata_changes(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """It was about to be for good."""

    async def scenario(broker: Broker) -> None:
        shard = await tables.shard("orders")
        answers: list[KafkaError | None] = []

        def no_memory(*_: Any, **options: Any) -> None:
            raise MemoryError("none left")

        with monkeypatch.context() as patch:
            patch.setattr(Table, "replay", no_memory)
            patch.setattr(shard.context, "_loop", SimpleNamespace(call_soon=no_memory))
            shard.context.append([(b"a", b"1")], answers.append)
        assert isinstance(answers[0], NotCoordinator)
        await asyncio.sleep(0.01)
        assert shard.events == ["loaded"]
        if not asked:
            tables.runtime.follow()
            assert shard.events == ["loaded", "unloaded"]
        assert (await tables.shard("orders")).values == {b"a": b"1"}
        assert shard.events == ["loaded", "unloaded"]

    bench.run(scenario, tables)


def test_one_that_fails_inside_each_time_it_is_read_anew_pauses_between(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read again and again without a pause, and the broker did little else."""
    monkeypatch.setattr("fastq_broker.coordinator.runtime.RETRY_S", 3600.0)
    loaded: list[Table] = []

    def begins(self: Table) -> None:
        self.events.append("loaded")
        if self.context.partition == tables.runtime.partition_for("orders"):
            loaded.append(self)
            put(self, [(b"a", b"1")])

    def no_memory(*_: Any, **options: Any) -> None:
        raise MemoryError("none left")

    async def scenario(broker: Broker) -> None:
        runtime = tables.runtime
        shard = await tables.shard("orders")
        partition = shard.context.partition
        with monkeypatch.context() as patch:
            patch.setattr(Table, "loaded", begins)
            patch.setattr(type(shard.context.replica.log), "append", no_memory)
            put(shard, [(b"a", b"1")])
            while partition not in runtime._retries:
                assert len(loaded) < 3
                await asyncio.sleep(0)
            assert len(loaded) == 1
        runtime._retries[partition].cancel()
        runtime._retry(partition)
        again = await tables.shard("orders")
        assert again is not shard and put(again, [(b"c", b"3")]) is None

    bench.run(scenario, tables)


def test_one_that_fails_as_it_begins_is_tried_again_and_keeps_no_other_from_loading(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys had half a coordinator, and those of partitions behind it one that was loading for good."""
    monkeypatch.setattr("fastq_broker.coordinator.runtime.RETRY_S", 0.01)
    loaded = Table.loaded
    failures = [MemoryError("none left")]

    def failing(self: Table) -> None:
        if failures:
            raise failures.pop()
        loaded(self)

    monkeypatch.setattr(Table, "loaded", failing)

    async def work(broker: Broker) -> None:
        for partition in range(4):
            key = next(key for key in map(str, range(100)) if tables.runtime.partition_for(key) == partition)
            assert (await tables.shard(key)).events == ["loaded"]

    bench.run(work, tables)
    assert failures == []


def test_a_load_that_fails_is_tried_again(
    bench: Any, tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(broker: Broker) -> None:
        assert put(await tables.shard("orders"), [(b"a", b"1")]) is None

    bench.run(write, tables)
    failures = [OSError(5, "Input/output error")]
    monkeypatch.setattr("fastq_broker.coordinator.runtime.RETRY_S", 0.01)

    def prepare(broker: Broker) -> None:
        tables(broker)
        read = broker.read_ahead.call

        async def failing(work: Any) -> Any:
            if failures and work not in (broker.controller.read, broker.logs.recover):  # the start's own
                raise failures.pop()
            return await read(work)

        broker.read_ahead.call = failing  # type: ignore[method-assign]
        monkeypatch.setattr("fastq_broker.log.scan.LogSlice.is_cached", lambda self: False)

    async def read(broker: Broker) -> None:
        assert (await tables.shard("orders")).values == {b"a": b"1"}

    with caplog.at_level(logging.ERROR):
        bench.run(read, prepare)
    assert failures == []
    assert any("trying again" in record.getMessage() for record in caplog.records)
