"""Turns of producers that fail in the middle, as where there is no memory: what was not come to is done later."""

import asyncio
import threading
import time
import types
from functools import partial

import pytest
from waiting_bench import no_metadata

from fastq.interceptors import ProducerInterceptor
from fastq.producer import AsyncProducer, async_producer, base


def no_memory(*_, **__):
    raise MemoryError("none left")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(async_producer, "AGAIN_S", 0.01, raising=False)


def run(main, broker, **options):
    async def whole():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0, **options) as producer:
            return await asyncio.wait_for(main(producer), 20)

    return asyncio.run(whole())


@pytest.mark.parametrize("where", ["the expiry", "the follow-up of metadata", "the drain"])
def test_a_step_that_failed_is_taken_again(shared_broker, topic, monkeypatch, soon, where):
    """A delivery was awaited until something else happened, the next metadata for one."""
    name = {"the expiry": "_expire", "the follow-up of metadata": "_follow_metadata", "the drain": "_drain"}[where]

    async def main(producer):
        await (await producer.send(topic, b"first"))
        sender, failures = producer._parts.sender, []
        done = getattr(sender, name)

        def failing(*given):
            if len(failures) < 3:
                failures.append(given)
                raise MemoryError
            done(*given)

        monkeypatch.setattr(sender, name, failing)
        delivery = await producer.send(topic, b"x")
        metadata = await asyncio.wait_for(delivery._wait(), 5)
        assert metadata.offset == 1 and len(failures) == 3

    run(main, shared_broker)


def test_a_step_that_the_loop_cannot_take_is_asked_for_again(shared_broker, topic):
    async def main(producer):
        await (await producer.send(topic, b"first"))
        loop = producer._loop
        for name in ("call_soon", "call_soon_threadsafe"):
            producer._loop = types.SimpleNamespace(**{name: no_memory}, call_later=no_memory, is_closed=lambda: False)
            if name == "call_soon":
                asyncio._set_running_loop(producer._loop)
            try:
                producer._attend()
            finally:
                asyncio._set_running_loop(loop)
            producer._loop = loop
            assert not producer._step_scheduled and producer.accumulator.attention
        places = producer._places
        asyncio._set_running_loop(types.SimpleNamespace(call_soon=no_memory))
        try:
            with pytest.raises(MemoryError):
                places._schedule()
        finally:
            asyncio._set_running_loop(loop)
        assert not places._scheduled

    run(main, shared_broker)


def test_the_timer_that_runs_ends_once_the_next_one_is_had(shared_broker, topic):
    async def main(producer):
        await (await producer.send(topic, b"first"))
        loop, now = producer._loop, time.monotonic()
        producer._timer_at = now  # whatever it waits for
        producer._arm(now, now + 60, None)
        before = producer._timer
        producer._loop = types.SimpleNamespace(call_later=no_memory)
        try:
            with pytest.raises(MemoryError):
                producer._arm(now, now + 1, None)
        finally:
            producer._loop = loop
        assert producer._timer is before and not before.cancelled() and producer._timer_at == now + 60
        producer._arm(now, now + 1, None)
        assert before.cancelled() and producer._timer_at == now + 1

    run(main, shared_broker)


def test_a_producer_whose_driver_cannot_be_made_makes_it_at_the_next_call(shared_broker, topic, monkeypatch):
    """It had an event loop and no driver, and nothing was sent any more."""

    async def main():
        producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0)
        with monkeypatch.context() as patch:
            patch.setattr(async_producer._Driver, "kick", no_memory)
            with pytest.raises(MemoryError):
                await producer.send(topic, b"x")
        assert (await asyncio.wait_for((await producer.send(topic, b"x"))._wait(), 20)).offset == 0
        await producer.close()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["send", "send_many"])
@pytest.mark.parametrize("where", ["the turn", "the compression"])
def test_a_call_whose_record_is_in_has_not_failed_with_the_turn_that_it_takes(
    make, topic, monkeypatch, caplog, call, where
):
    """It raised, and the record was sent all the same: who sent it again had it twice."""
    producer, failures = make(linger_ms=0, compression_type="gzip"), []
    producer.send(topic, b"first").result(20)
    owner, name = {
        "the turn": (producer._parts.sender, "_drain"),
        "the compression": (producer._parts, "compress_pending"),
    }[where]
    done = getattr(owner, name)

    def failing(*given):
        if not failures:
            failures.append(given)
            raise MemoryError
        return done(*given)

    monkeypatch.setattr(owner, name, failing)
    delivery = producer.send(topic, b"x") if call == "send" else producer.send_many(topic, [b"x"])
    delivered = threading.Event()
    delivery.add_done_callback(lambda _: delivered.set())
    assert delivered.wait(20) and failures
    assert producer.send(topic, b"after").result(20).offset == 2
    assert "failed" in caplog.text, "by whichever thread has met it"


@pytest.mark.parametrize("fate", ["accepted", "refused", "withdrawn"])
def test_what_waits_behind_a_send_goes_on_when_there_is_no_memory_to_tell_of_that(
    shared_broker, topic, monkeypatch, fate
):
    """It stayed at the head of its queue: it was sent once more, or nothing for its topic was any more."""
    failures = []

    def failing_once(*_):
        if not failures:
            failures.append(fate)
            raise MemoryError

    async def main(producer):
        parts = producer._parts
        with no_metadata(producer):
            first = producer.send(topic, "no bytes" if fate == "refused" else b"first")
            second = producer.send(topic, b"second")
            if fate == "withdrawn":
                parts.refused = failing_once
                task = asyncio.ensure_future(first)
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            elif fate == "refused":
                parts.refused = failing_once
            else:
                monkeypatch.setattr(base, "partial", lambda *given: failing_once() or partial(*given))
        delivery = await asyncio.wait_for(second, 20)
        assert (await delivery).offset == (fate == "accepted") and failures

    run(main, shared_broker, interceptors=[ProducerInterceptor()])
