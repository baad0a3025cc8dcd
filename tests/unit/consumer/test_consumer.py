"""The blocking and the asyncio consumer over real sockets, against a small cluster of our own."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from consumer_fakes import SocketCluster
from consumer_on_sockets import async_consumer, consumer, fill, in_order

from fastq import AsyncConsumer, Consumer, TopicPartition
from fastq.consumer import RebalanceListener
from fastq.errors import (
    ClientClosed,
    ConcurrentModification,
    ConfigError,
    ForkedClient,
    NotAssigned,
    UnknownTopicOrPartition,
    WakeupError,
)

T0_MS = 1_700_000_000_000


def test_iteration_poll_and_batches_go_on_where_the_last_one_stopped(cluster: SocketCluster) -> None:
    count = fill(cluster)
    with consumer(cluster, "logs") as reader:
        records = list(itertools.islice(reader, 3))
        records += reader.poll(max_records=5, timeout=5)
        assert 3 < len(records) <= 8
        records += list(itertools.islice(reader, 2))
        while len(records) < count:
            records += list(reader.poll_batch(timeout=5))
        in_order(records, count)
        assert reader.poll(timeout=0.05) == []
        assert len(reader.poll_batch(timeout=0)) == 0
        with pytest.raises(ValueError, match="max_records"):
            reader.poll(max_records=0)
        with pytest.raises(TypeError, match=r"poll\(1\).*poll\(timeout=1\), a number of records poll\(max_records=1\)"):
            reader.poll(1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"poll_batch\(timeout=5.0\)$"):
            reader.poll_batch(5.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="1 or more"):
            reader.poll(max_records=0)


def test_read_to_end_ends_at_the_end_of_the_call(cluster: SocketCluster) -> None:
    count = fill(cluster)
    with consumer(cluster, "logs") as reader:
        records = reader.read_to_end()
        for log in cluster.logs.values():
            log.append([(None, b"later")])
        in_order(records, count)
        assert [record.value for record in reader.read_to_end()] == [b"later"] * 2
        assert list(reader.read_to_end()) == []


def test_read_to_end_over_what_no_reader_sees(cluster: SocketCluster) -> None:
    (log,) = cluster.create("logs")
    log.append([(None, b"a"), (None, b"b")])
    log.transaction(5, [[(None, b"gone")]], commit=False)
    with consumer(cluster, "logs", isolation_level="read_committed") as reader:
        assert [record.value for record in reader.read_to_end()] == [b"a", b"b"]
        assert reader.position(("logs", 0)) == log.end
    with consumer(cluster, "logs") as reader:
        assert [record.value for record in reader.read_to_end()] == [b"a", b"b", b"gone"]


def test_position_in_the_middle_of_iteration(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    with consumer(cluster, "logs") as reader:
        for record in itertools.islice(reader, 7):
            assert reader.position(("logs", 0)) == record.offset + 1


def test_seek_in_the_middle_of_iteration(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    with consumer(cluster, "logs") as reader:
        offsets = []
        for record in reader:
            offsets.append(record.offset)
            if len(offsets) == 3:
                reader.seek(("logs", 0), 10)
            if len(offsets) == 5:
                reader.seek_to_beginning()
            if len(offsets) == 6:
                break
        assert offsets == [0, 1, 2, 10, 11, 0]
        reader.seek_to_end(("logs", 0))
        assert reader.position(("logs", 0)) == 20
        for call in (lambda: reader.seek(("logs", 0), -1), lambda: reader.seek(("logs", 9), 0)):
            with pytest.raises(ValueError):
                call()


def test_pause_keeps_what_is_prefetched(cluster: SocketCluster) -> None:
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        first = next(iter(reader))
        paused = TopicPartition("logs", first.partition)
        reader.pause(paused)
        assert reader.paused() == [paused]
        others = list(itertools.islice(reader, 20))
        assert {record.partition for record in others} == {1 - first.partition}
        fetches = reader.metrics()["fetches"]
        reader.resume(paused)
        assert [record.offset for record in reader.poll(timeout=0)] == list(range(1, 20))
        assert reader.metrics()["fetches"] <= fetches + 1


def test_topics_and_partitions_by_hand_exclude_each_other(cluster: SocketCluster) -> None:
    """As in Kafka's consumer: one is given up before the other begins."""
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        next(iter(reader))
        with pytest.raises(ValueError, match=r"partitions of logs are read: unsubscribe\(\) before assign"):
            reader.assign([("logs", 1)])
        assert sorted(reader.assignment()) == [("logs", 0), ("logs", 1)]
        reader.unsubscribe()
        reader.assign([("logs", 1)])
        assert reader.assignment() == [("logs", 1)]
        assert {record.partition for record in reader.read_to_end()} <= {1}
        with pytest.raises(ValueError, match=r"assigned by hand: unsubscribe\(\) first"):
            reader.subscribe("logs")
        assert reader.assignment() == [("logs", 1)]
        with pytest.raises(ValueError, match="no topics are named"):
            reader.subscribe([])
        reader.assign([])
        reader.subscribe("logs")
        assert reader.poll(timeout=30)


def test_a_subscription_has_nothing_to_seek_in_before_it_is_assigned(cluster: SocketCluster) -> None:
    """Who moves everything to an end, of nothing, would read from elsewhere and not know."""
    fill(cluster)
    for group in (None, "g"):
        with consumer(cluster, "logs", group_id=group) as reader:
            for seek in (reader.seek_to_beginning, reader.seek_to_end):
                with pytest.raises(NotAssigned, match=r"call poll\(\) before, or seek in on_assigned"):
                    seek()
            with pytest.raises(NotAssigned, match=r"call poll\(\) before"):
                reader.seek(("logs", 0), 1)


def test_the_position_of_a_partition_that_is_given_up_meanwhile_is_not_waited_for(cluster: SocketCluster) -> None:
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        next(iter(reader))
        reader.subscribe("others")
        reader.seek_to_beginning(("logs", 0))
        with pytest.raises(NotAssigned, match="logs, partition 0"):
            reader.position(("logs", 0), timeout=30)


def test_what_takes_one_partition_or_several_says_so(cluster: SocketCluster) -> None:
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        for call in (reader.pause, reader.resume, reader.seek_to_beginning):
            with pytest.raises(TypeError, match=r"given one by one, as in pause\(\*partitions\)"):
                call([("logs", 0)])
        with pytest.raises(TypeError, match="a list of partitions is needed"):
            reader.end_offsets(("logs", 0))  # type: ignore[arg-type]


WAITS: dict[str, Any] = {
    "poll": lambda reader: reader.poll(timeout=30),
    "poll_batch": lambda reader: reader.poll_batch(timeout=30),
    "iteration": lambda reader: next(iter(reader)),
    "read_to_end": lambda reader: reader.read_to_end(),
    "read_batches_to_end": lambda reader: reader.read_batches_to_end(),
}
ASYNC_WAITS: dict[str, Any] = {**WAITS, "iteration": lambda reader: anext(aiter(reader))}


@pytest.mark.parametrize("how", WAITS)
def test_who_reads_nothing_is_told(cluster: SocketCluster, how: str) -> None:
    fill(cluster)
    with consumer(cluster) as reader:
        for let_go in (lambda: None, lambda: reader.assign([]), reader.unsubscribe):
            let_go()
            with pytest.raises(NotAssigned, match=r"not subscribed to any topics.*subscribe\('orders'\)"):
                WAITS[how](reader)
            reader.assign([("logs", 0)])
            assert len(reader.poll(timeout=30)) > 0
            reader.seek_to_beginning()

    async def main() -> None:
        async with async_consumer(cluster) as other:
            with pytest.raises(NotAssigned, match="not subscribed to any topics"):
                await ASYNC_WAITS[how](other)
            other.assign([("logs", 0)])
            assert len(await other.poll(timeout=30)) > 0
            await other.unsubscribe()
            with pytest.raises(NotAssigned, match="not subscribed to any topics"):
                await ASYNC_WAITS[how](other)

    asyncio.run(main())


def test_a_wait_ends_when_another_task_unsubscribes(cluster: SocketCluster) -> None:
    cluster.create("logs", 2)

    async def main() -> None:
        async with async_consumer(cluster, "logs") as reader:
            polls = asyncio.create_task(reader.poll())
            await asyncio.sleep(0.05)
            await reader.unsubscribe()
            assert await asyncio.wait_for(polls, 30) == []
            reader.assign([("logs", 0)])
            polls = asyncio.create_task(reader.poll())
            await asyncio.sleep(0.05)
            reader.assign([])
            assert await asyncio.wait_for(polls, 30) == []

    asyncio.run(main())


def test_times_before_1970_are_refused(cluster: SocketCluster) -> None:
    """-1 and -2 mean the ends to a broker; here they are a mistake, as in Kafka's consumer."""
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        for time_ms in (-1, -2, -1000, 2**63):
            with pytest.raises(ValueError, match=rf"0 to 2\*\*63 - 1, got {time_ms}; beginning_offsets"):
                reader.offsets_for_times({("logs", 0): time_ms})

    async def main() -> None:
        async with async_consumer(cluster, "logs") as other:
            with pytest.raises(ValueError, match=r"0 to 2\*\*63 - 1, got -1"):
                await other.offsets_for_times({("logs", 0): -1})

    asyncio.run(main())


def test_offsets(cluster: SocketCluster) -> None:
    fill(cluster)
    with consumer(cluster) as reader:
        parts = [("logs", 0), ("logs", 1)]
        assert list(reader.beginning_offsets(parts).values()) == [0, 0]
        assert list(reader.end_offsets(parts).values()) == [20, 20]
        found = reader.offsets_for_times({("logs", 0): T0_MS + 7, ("logs", 1): T0_MS + 999})
        assert found[TopicPartition("logs", 0)] == (7, T0_MS + 7, -1)
        assert found[TopicPartition("logs", 1)] is None
        with pytest.raises(UnknownTopicOrPartition, match="the topic has 2"):
            reader.end_offsets([("logs", 5)])


def test_new_partitions_are_read_from_their_beginning(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    with consumer(cluster, "logs", auto_offset_reset="latest", metadata_max_age_ms=100) as reader:
        assert reader.poll(timeout=0.2) == []
        cluster.create("logs", 1)[1].append([(None, b"new")])
        cluster.logs[TopicPartition("logs", 0)].append([(None, b"old partition")])
        values = {record.value for record in itertools.islice(reader, 2)}
        assert values == {b"new", b"old partition"}


class Interceptor:
    """Drops odd offsets, and fails once."""

    def __init__(self) -> None:
        self.closed = False
        self.failed = False

    def on_consume(self, records: list) -> list:
        if not self.failed:
            self.failed = True
            raise RuntimeError("interceptor")
        return [record for record in records if record.offset % 2 == 0]

    def close(self) -> None:
        self.closed = True


def test_interceptors(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    interceptor = Interceptor()
    with consumer(cluster, "logs", interceptors=[interceptor]) as reader:
        assert [record.offset for record in itertools.islice(reader, 3)] == [0, 2, 4]
        assert [record.offset for record in reader.poll(max_records=4, timeout=5)] == [6, 8]
    assert interceptor.closed


def test_a_class_is_no_interceptor_and_no_listener(cluster: SocketCluster) -> None:
    """Its methods all failed for want of an object, one record after the other."""
    with pytest.raises(ConfigError, match=r"the class Interceptor is not: write Interceptor\(\.\.\.\)"):
        consumer(cluster, "logs", interceptors=[Interceptor])
    with (
        consumer(cluster, group_id="g") as reader,
        pytest.raises(TypeError, match=r"got the class RebalanceListener: write RebalanceListener\(\)"),
    ):
        reader.subscribe("logs", listener=RebalanceListener)


def test_closed(cluster: SocketCluster) -> None:
    fill(cluster)
    reader = consumer(cluster, "logs")
    iterator = iter(reader)
    next(iterator)
    reader.close()
    reader.close()
    calls = [
        lambda: reader.poll(timeout=0),
        lambda: reader.poll_batch(timeout=0),
        lambda: next(iterator),
        lambda: iter(reader),
        lambda: reader.seek(("logs", 0), 1),
        lambda: reader.read_to_end(),
        lambda: reader.end_offsets([("logs", 0)]),
        lambda: reader.assign([]),
        lambda: reader.__enter__(),
    ]
    for call in calls:
        with pytest.raises(ClientClosed):
            call()


def test_close_from_another_thread_ends_a_poll(cluster: SocketCluster) -> None:
    cluster.create("logs")
    reader = consumer(cluster, "logs")
    threading.Timer(0.1, reader.close).start()
    with pytest.raises(ClientClosed):
        reader.poll(timeout=20)


BESIDE: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda reader: reader.poll(timeout=0),
    "poll_batch": lambda reader: reader.poll_batch(timeout=0),
    "iteration": lambda reader: next(iter(reader)),
    "read_to_end": lambda reader: reader.read_to_end(),
    "position": lambda reader: reader.position(("logs", 0)),
    "end_offsets": lambda reader: reader.end_offsets([("logs", 0)]),
    "commit": lambda reader: reader.commit({("logs", 0): 1}),
    "unsubscribe": lambda reader: reader.unsubscribe(),
}


def test_a_second_thread_is_refused_while_one_waits(cluster: SocketCluster) -> None:
    """It waited beside the first, and the two took records from each other."""
    ended: list[type[BaseException]] = []

    def wait() -> None:
        try:
            reader.poll()
        except WakeupError as error:
            ended.append(type(error))

    cluster.create("logs")
    with consumer(cluster, "logs", auto_offset_reset="latest") as reader:
        thread = threading.Thread(target=wait, name="first")
        thread.start()
        while reader._waiting is None:
            time.sleep(0.001)
        for name, call in BESIDE.items():
            with pytest.raises(ConcurrentModification, match=r"logs.*by the thread first.*MainThread.*ConsumerPool"):
                call(reader)
            assert thread.is_alive(), name
        assert reader.metrics()["fetch_errors"] == 0 and reader.paused() == [], "what need not wait is answered"
        reader.wakeup()
        thread.join(20)
        assert ended == [WakeupError]
        assert reader.poll(timeout=0) == [], "one after the other is no harm"


def test_interrupt_ends_a_poll_within_50_ms(cluster: SocketCluster) -> None:
    cluster.create("logs")
    with consumer(cluster, "logs") as reader:
        reader.poll(timeout=0.1)
        sent: list[float] = []

        def interrupt() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.1, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            reader.poll(timeout=20)
        assert time.monotonic() - sent[0] < 1.0  # 50 ms, with room for a busy machine
        cluster.logs[TopicPartition("logs", 0)].append([(None, b"after")])
        assert reader.poll(timeout=5)[0].value == b"after"


def test_a_child_process_cannot_use_it(cluster: SocketCluster) -> None:
    fill(cluster)
    with consumer(cluster, "logs") as reader:
        iterator = iter(reader)
        next(iterator)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except ForkedClient:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(list(itertools.islice(iterator, 20))) == 20


def test_pickles_as_what_it_was_made_with(cluster: SocketCluster) -> None:
    count = fill(cluster)
    with consumer(cluster, "logs", fetch_min_bytes=2, value_deserializer=bytes.upper) as reader:
        next(iter(reader))
        with pickle.loads(pickle.dumps(reader)) as other:
            assert other.config == reader.config and type(other) is Consumer
            in_order(other.read_to_end(), count)


def test_arguments() -> None:
    with pytest.raises(ConfigError, match="subscribed to with a group_id"):
        Consumer("^logs")
    with pytest.raises(TypeError, match="non-empty str"):
        Consumer("logs", 7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got b'logs'"):
        Consumer(b"logs")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean auto_offset_reset"):
        Consumer("logs", auto_ofset_reset="earliest")


@pytest.mark.parametrize("cls", [Consumer, AsyncConsumer])
def test_a_consumer_that_was_refused_is_not_one_that_was_left_open(cls: type[Any]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for topics in (("logs", 7), ("^logs",), (b"logs",), ("^logs(",)):
            with pytest.raises((TypeError, ValueError)):
                cls(*topics)
        gc.collect()
    assert [str(warning.message) for warning in told if warning.category is ResourceWarning] == []


def test_metrics(cluster: SocketCluster) -> None:
    fill(cluster, partitions=1)
    with consumer(cluster, "logs") as reader:
        assert len(reader.poll(max_records=5, timeout=5)) == 5
        metrics = reader.metrics()
        assert metrics["partitions"][("logs", 0)]["lag"] == 15
        assert reader.lag()[TopicPartition("logs", 0)] == 15
        assert metrics["partitions"][("logs", 0)]["position"] == 5
        assert metrics["fetched_bytes"] > metrics["buffered_bytes"] > 0


# -- asyncio


def test_async_reads_everything(cluster: SocketCluster) -> None:
    count = fill(cluster)

    async def main() -> None:
        async with async_consumer(cluster, "logs") as reader:
            records = []
            async for record in reader:
                records.append(record)
                assert await reader.position((record.topic, record.partition)) == record.offset + 1
                if len(records) == 5:
                    break
            records += await reader.poll(max_records=5, timeout=5)
            records += list(await reader.poll_batch(timeout=5))
            records += [record async for record in await reader.read_to_end()]
            in_order(records, count)
            assert await reader.poll(timeout=0.05) == []
            reader.seek(("logs", 1), 18)
            assert [r.offset for r in await reader.poll(timeout=5)] == [18, 19]
            assert list((await reader.end_offsets([("logs", 0)])).values()) == [20]
            assert list((await reader.beginning_offsets([("logs", 0)])).values()) == [0]
            found = await reader.offsets_for_times({("logs", 0): T0_MS + 3})
            assert found[TopicPartition("logs", 0)] == (3, T0_MS + 3, -1)
            reader.pause(("logs", 0))
            reader.seek_to_beginning()
            assert {record.partition for record in await reader.poll(timeout=5)} == {1}
            reader.resume(("logs", 0))
            assert {record.partition for record in await reader.poll(timeout=5)} == {0}
        for awaitable in (reader.poll(), reader.poll_batch(), reader.end_offsets([("logs", 0)])):
            with pytest.raises(ClientClosed):
                await awaitable

    asyncio.run(main())


def test_async_cancelling_loses_and_doubles_nothing(cluster: SocketCluster) -> None:
    logs = cluster.create("logs", 1)

    async def main() -> None:
        async with async_consumer(cluster, "logs") as reader:
            got: list[int] = []

            async def read() -> None:
                async for record in reader:
                    got.append(record.offset)  # noqa: PERF401  (one at a time: it is cancelled)

            async def poll() -> None:
                while True:
                    got.extend(record.offset for record in await reader.poll(max_records=3))

            for round_ in range(20):
                task = asyncio.create_task(read() if round_ % 2 else poll())
                with cluster.lock:
                    logs[0].append([(None, b"v")] * 7)
                await asyncio.sleep(0.001 * (round_ % 5))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            while len(got) < logs[0].end:
                got.extend(record.offset for record in await reader.poll(timeout=5))
            assert got == list(range(logs[0].end))

    asyncio.run(main())


def test_async_close_ends_a_wait(cluster: SocketCluster) -> None:
    cluster.create("logs")

    async def main() -> None:
        reader = async_consumer(cluster, "logs")
        waiting = asyncio.create_task(reader.poll())
        await asyncio.sleep(0.1)
        await reader.close()
        with pytest.raises(ClientClosed):
            await waiting

    asyncio.run(main())


def test_what_follows_read_to_end_need_not_wait_for_a_long_poll(cluster: SocketCluster) -> None:
    count = fill(cluster)
    cluster.idle_wait_s = 20.0
    with consumer(cluster, "logs", fetch_max_wait_ms=20_000) as reader:
        in_order(reader.read_to_end(), count)
        reader.seek_to_beginning()
        in_order(reader.read_to_end(), count)
        reader.seek_to_beginning()
        assert len(reader.poll(max_records=count, timeout=10)) >= 20


@pytest.mark.parametrize("change", ["assign", "subscribe"])
def test_what_another_task_has_read_is_begun_at_once(
    cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A task that waited for records heard of new partitions when it looked around the next time, which nothing else brings about."""
    monkeypatch.setattr("fastq.consumer.async_consumer.LOOK_AROUND_S", 3600.0)
    fill(cluster)
    cluster.create("empty", 1)

    async def main() -> None:
        async with async_consumer(cluster, *(["empty"] if change == "subscribe" else [])) as reader:
            if change == "assign":
                reader.assign([("empty", 0)])
            waits = asyncio.create_task(reader.poll())
            await asyncio.sleep(0.3)  # it has its metadata, and nothing more comes
            if change == "assign":
                reader.assign([("logs", 0)])
            else:
                reader.subscribe("logs")
            assert await asyncio.wait_for(waits, 20)

    asyncio.run(main())


def test_offsets_of_another_integer_type_are_committed_as_they_are_sought() -> None:
    """`commit({tp: numpy.int64(5)})` was refused as no int, where `seek` takes it."""

    class Number:
        def __index__(self) -> int:
            return 5

    told: list[Any] = []
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as client:
        client.assign([("logs", 0)])
        client.seek(("logs", 0), Number())  # type: ignore[arg-type]
        number: Any = Number()
        client.commit_async({("logs", 0): number}, lambda offsets, error: told.append(offsets))
        for refused in (5.0, -1, 2**63):
            offsets: dict[Any, Any] = {("logs", 0): refused}
            with pytest.raises(ValueError, match=r"an offset to commit is an int, 0 to 2\*\*63 - 1"):
                client.commit(offsets)
        with pytest.raises(ValueError, match=r"an offset is 0 to 2\*\*63 - 1"):
            client.seek(("logs", 0), 2**63)
        for count in (1.5, "1"):
            with pytest.raises(TypeError, match="max_records is an int, got"):
                client.poll(max_records=count, timeout=0)  # type: ignore[arg-type]
        client.close(timeout=0)
    assert told == [{TopicPartition("logs", 0): (5, "", -1)}]
    ((place,),) = (offsets.values() for offsets in told)
    assert type(place.offset) is int
