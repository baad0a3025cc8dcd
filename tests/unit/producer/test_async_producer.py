"""The asyncio producer against a broker of ours: the same promises, and cancellation."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest
from stored_log import Log

from fastq.errors import BufferTimeout, ClientClosed, SerializationError, UnknownTopicOrPartition, WrongEventLoop
from fastq.producer import AsyncProducer


def run(main, broker, **options):
    async def whole():
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            return await asyncio.wait_for(main(producer), 40)

    return asyncio.run(whole())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_send_then_await_the_delivery(shared_broker, topic, loop):
    async def main():
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
            delivery = await producer.send(topic, b"line", key=b"k", headers=[("a", b"b")], timestamp_ms=5)
            assert not delivery.done()
            with pytest.raises(asyncio.InvalidStateError):
                delivery.result()
            metadata = await delivery
            assert metadata == (topic, 0, 0, 5, 1, 4)
            assert delivery.done() and delivery.result() == metadata and delivery.exception() is None
            assert await delivery == metadata

    if loop == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        event_loop = uvloop.new_event_loop()
        try:
            event_loop.run_until_complete(main())
        finally:
            event_loop.close()
    else:
        asyncio.run(main())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_many_sends_arrive_in_order_and_the_loop_lives(shared_broker, topic, codec):
    async def main(producer):
        ticks = 0

        async def ticker():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(ticker())
        deliveries = [await producer.send(topic, b"%d" % i) for i in range(100_000)]
        await producer.flush(20)
        task.cancel()
        assert [d.result().offset for d in deliveries] == list(range(100_000))
        return ticks

    assert run(main, shared_broker, compression_type=codec) > 10
    assert Log(shared_broker, topic).values() == [b"%d" % i for i in range(100_000)]


def test_concurrent_tasks_and_a_small_buffer(shared_broker, topic):
    async def main(producer):
        async def work(number):
            for i in range(1000):
                await producer.send(topic, b"%d:%d" % (number, i) + bytes(100), key=b"%d" % number)
                assert producer.accumulator.pool.used_bytes <= 1 << 17

        await asyncio.gather(*(work(number) for number in range(10)))

    run(main, shared_broker, buffer_memory=1 << 17, batch_size=8192)
    values = [value.rstrip(b"\0") for value in Log(shared_broker, topic).values()]
    for number in range(10):
        mine = [value for value in values if value.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, i) for i in range(1000)]


def test_cancelling_loses_and_doubles_nothing(shared_broker, topic):
    """A cancelled send is not stored; one that ended is, once; a cancelled `await delivery` changes nothing."""

    async def main(producer):
        accepted, cancelled = [], []

        async def one(value):
            try:
                delivery = await producer.send(topic, value)
            except asyncio.CancelledError:
                cancelled.append(value)
                raise
            accepted.append(value)
            await delivery

        tasks = []
        for i in range(3000):
            task = asyncio.create_task(one(b"%d" % i + b"." * 200))
            tasks.append(task)
            if i % 3 == 0:
                asyncio.get_running_loop().call_soon(task.cancel)
            if i % 100 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.flush(20)
        return accepted, cancelled

    accepted, cancelled = run(main, shared_broker, buffer_memory=1 << 16, batch_size=4096)
    assert cancelled
    assert Log(shared_broker, topic).values() == accepted
    assert not set(accepted) & set(cancelled)


def test_send_many(shared_broker, topic):
    async def main(producer):
        handle = await producer.send_many(topic, [b"%d" % i for i in range(50_000)])
        result = await handle
        assert result.count == 50_000 and result.offsets == {0: [range(50_000)]}
        handle = await producer.send_many(topic, (b"x" for _ in range(10)), keys=[b"k"] * 10)
        with pytest.raises(asyncio.InvalidStateError):
            handle.result()
        assert (await handle).offsets == {0: [range(50_000, 50_010)]}
        with pytest.raises(SerializationError) as caught:
            await producer.send_many(topic, [b"a", 5])
        assert caught.value.accepted == 1

    run(main, shared_broker, buffer_memory=1 << 20)


def test_errors(shared_broker, topic):
    async def main(producer):
        await (await producer.send(topic, b"x"))
        with pytest.raises(SerializationError):
            await producer.send(topic, "text")
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send(topic, b"x", partition=7)
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send(topic, b"x")

    run(main, shared_broker, request_timeout_ms=300, delivery_timeout_ms=3000)


def test_buffer_timeout(shared_broker, topic):
    async def main(producer):
        await (await producer.send(topic, b"x"))
        os.kill(shared_broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(BufferTimeout, match="buffer_memory"):
                for _ in range(1000):
                    await producer.send(topic, bytes(1000))
        finally:
            os.kill(shared_broker.pid, signal.SIGCONT)

    run(main, shared_broker, buffer_memory=1 << 16, batch_size=4096, max_block_ms=1000)


def test_callbacks_and_serializers(shared_broker, topic):
    async def main(producer):
        seen = []
        for i in range(5):
            (await producer.send(topic, {"n": i})).add_done_callback(lambda d: seen.append(d.result().offset))
        await producer.flush(10)
        assert seen == list(range(5))

    run(main, shared_broker, value_serializer="json")


def test_pickle_and_metrics(shared_broker):
    async def main(producer):
        assert pickle.loads(pickle.dumps(producer)).config == producer.config
        assert producer.metrics()["buffered_records"] == 0

    run(main, shared_broker)


def test_what_is_not_closed_is_counted(shared_broker, topic):
    program = f"""
        import asyncio
        from fastq.producer import AsyncProducer
        async def main():
            producer = AsyncProducer(bootstrap_servers={shared_broker.bootstrap_servers!r}, linger_ms=10000)
            for _ in range(5):
                await producer.send({topic!r}, b"x")
        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=30, capture_output=True, text=True)
    assert "5 records were not delivered" in done.stderr


def test_gather_and_timeouts_take_a_send(shared_broker, topic):
    """What send answers is awaitable wherever a coroutine is."""

    async def main(producer):
        await (await producer.send(topic, b"0"))
        deliveries = await asyncio.gather(*(producer.send(topic, b"%d" % i) for i in range(1, 5)))
        await asyncio.wait_for(producer.send(topic, b"5"), 5)
        await asyncio.gather(*deliveries)
        await producer.flush(5)

    run(main, shared_broker)
    assert Log(shared_broker, topic).values() == [b"%d" % i for i in range(6)]


def test_the_loop_is_not_blocked_by_a_stopped_broker(shared_broker, topic):
    async def main(producer):
        await (await producer.send(topic, b"x"))
        os.kill(shared_broker.pid, signal.SIGSTOP)
        threading.Timer(0.3, lambda: os.kill(shared_broker.pid, signal.SIGCONT)).start()
        delivery = await producer.send(topic, b"y")
        longest, last = 0.0, time.monotonic()
        while not delivery.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert longest < 0.25

    run(main, shared_broker)


def test_transactions_of_another_event_loop_are_refused_at_once(shared_broker, new_topic_name):
    """Nothing of it is done: the transaction goes on in its own loop."""
    topic = new_topic_name()

    async def main():
        async with AsyncProducer(
            bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=topic, linger_ms=0
        ) as producer:
            await producer.begin_transaction()
            await producer.send(topic, b"here")

            async def elsewhere():
                for call in (
                    producer.init_transactions,
                    producer.begin_transaction,
                    producer.commit_transaction,
                    producer.abort_transaction,
                    producer.transaction().__aenter__,
                    partial(producer.send_offsets_to_transaction, {(topic, 0): 1}, "g"),
                ):
                    with pytest.raises(WrongEventLoop, match="another event loop"):
                        await call()

            await asyncio.to_thread(asyncio.run, elsewhere())
            await producer.send(topic, b"here too")
            await producer.commit_transaction()

    asyncio.run(asyncio.wait_for(main(), 40))
    assert Log(shared_broker, topic).values()[:2] == [b"here", b"here too"]  # the third is the commit's marker


def test_what_a_closed_loop_left_waiting_is_told_as_lost(caplog):
    loop, tasks = asyncio.new_event_loop(), []

    async def begin():
        producer = AsyncProducer(bootstrap_servers="127.0.0.1:1")
        producer.accumulator.update_topic("t", 2)
        for partition in (0, 1):
            delivery = await producer.send("t", b"x", partition=partition)
            tasks.append(loop.create_task(delivery._wait()))
        await asyncio.sleep(0)
        return producer

    async def go_on():
        for _ in range(2):
            with pytest.raises(WrongEventLoop, match="which is closed"):
                await producer.send("t", b"y")

    producer = loop.run_until_complete(begin())
    loop.close()
    asyncio.run(go_on())
    assert not producer.accumulator.incomplete
    assert caplog.text.count("2 records") == 1
    for task in [*tasks, *producer._driver._connects]:
        task._log_destroy_pending = False  # a collection in the middle of another test would tell of it


@pytest.mark.parametrize("call", ["send", "send_many"])
def test_a_bound_on_records_leaves_the_loop_alive_and_ends_after_max_block_ms(shared_broker, new_topic_name, call):
    topic = new_topic_name()

    async def main():
        async with AsyncProducer(
            bootstrap_servers=shared_broker.bootstrap_servers, buffer_records_max=50, max_block_ms=300, linger_ms=0
        ) as producer:
            await (await producer.send(topic, b"first"))
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.01)

            ticker = asyncio.create_task(tick())
            os.kill(shared_broker.pid, signal.SIGSTOP)
            try:
                with pytest.raises(BufferTimeout, match="50 of buffer_records_max=50 records"):
                    if call == "send":
                        for _ in range(51):
                            await producer.send(topic, b"x")
                    else:
                        await producer.send_many(topic, [b"x"] * 51)
                assert producer.accumulator.buffered_records == 50
                assert ticks > 10
            finally:
                os.kill(shared_broker.pid, signal.SIGCONT)
            ticker.cancel()
            await producer.flush(20)

    asyncio.run(asyncio.wait_for(main(), 40))
    assert len(Log(shared_broker, topic).values()) == 51
