"""Sends of the asyncio producer where there is no memory: one that raises has sent nothing, and what is in is sent."""

import asyncio
import types

import pytest
from failing_allocations import AllocationsFail
from waiting_bench import no_metadata

from fastq.interceptors import ProducerInterceptor
from fastq.producer import AsyncProducer, waiting_sends

ALLOCATIONS = 60


@pytest.mark.parametrize("failing", [1, 3])
@pytest.mark.parametrize("interceptors", [(), (ProducerInterceptor(),)], ids=["the short way", "the long way"])
def test_a_send_has_failed_exactly_where_its_record_is_not_in_whichever_allocations_fail(
    shared_broker, topic, failing, interceptors
):
    """It raised behind the append: who sent it again had it twice. And what no turn could be asked for was not sent by itself."""
    outcomes = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        options = {"bootstrap_servers": shared_broker.bootstrap_servers, "linger_ms": 0}
        async with AsyncProducer(**options, interceptors=interceptors) as producer:
            before = (await (await producer.send(topic, b"first"))).offset
            for at in range(ALLOCATIONS):
                sent = None
                try:
                    with AllocationsFail(at, failing):
                        sent = producer.send(topic, b"x")
                except MemoryError:
                    pass
                outcomes.append(sent is not None)
                if sent is not None:
                    assert (await asyncio.wait_for((await sent)._wait(), 20)).offset == before + 1
                after = (await asyncio.wait_for((await producer.send(topic, b"next"))._wait(), 20)).offset
                assert after - before - 1 == (sent is not None), f"allocation {at}"
                before = after

    asyncio.run(main())
    assert not all(outcomes) and outcomes[-1]


def test_a_record_for_which_no_turn_can_be_asked_for_is_sent_without_another_call(shared_broker, topic, caplog):
    async def main():
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0) as producer:
            await (await producer.send(topic, b"first"))
            loop, delivered = producer._loop, asyncio.Event()

            def no_memory(*_):
                raise MemoryError

            short = types.SimpleNamespace(call_soon=no_memory, call_later=loop.call_later, is_closed=lambda: False)
            producer._loop = short
            asyncio._set_running_loop(short)
            try:
                sent = producer.send(topic, b"x")
            finally:
                asyncio._set_running_loop(loop)
                producer._loop = loop
            (await sent).add_done_callback(lambda _: delivered.set())
            await asyncio.wait_for(delivered.wait(), 20)

    asyncio.run(main())
    assert "could not be asked for" in caplog.text


def test_a_send_that_cannot_be_timed_does_not_wait_for_its_place(shared_broker, topic, monkeypatch):
    """It raised, and was sent all the same once the metadata was there."""

    def no_memory(*_):
        raise MemoryError

    async def main():
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0) as producer:
            with no_metadata(producer):
                with monkeypatch.context() as short:
                    short.setattr(waiting_sends.WaitingSends, "_set_timer", no_memory)
                    with pytest.raises(MemoryError):
                        producer.send(topic, b"x")
                assert not producer._places
                second = producer.send(topic, b"second")
            assert (await (await asyncio.wait_for(second, 20))).offset == 0

    asyncio.run(main())
