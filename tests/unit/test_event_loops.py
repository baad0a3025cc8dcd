"""The asyncio clients belong to one event loop, and say so at once in another: nothing is taken there that would be lost."""

import asyncio

import pytest

from fastq import AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer
from fastq.errors import WrongEventLoop


@pytest.fixture(params=["open", "closed"])
def loops(request):
    """Two loops of this thread, which run by turns; in one case the first one is closed before the second runs, without a word to anybody.
    What is run with them is run in both."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    def run(in_first, in_second):
        first.run_until_complete(in_first())
        if request.param == "closed":
            for task in asyncio.all_tasks(first):  # connections that are being made
                task.cancel()
            first.run_until_complete(asyncio.sleep(0))
            first.close()
        second.run_until_complete(in_second())
        return None if first.is_closed() else first

    yield run
    for loop in (first, second):
        loop.close()


def test_a_producer_refuses_the_send_itself(shared_broker, new_topic_name, loops):
    """Also into a batch that the first loop has left open."""
    topic = new_topic_name()
    producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=60_000)

    async def begin():
        await producer.send(topic, b"made")
        await producer.flush()
        await producer.send(topic, b"here")
        await producer.send(topic, b"here")

    async def elsewhere():
        for _ in range(3):
            with pytest.raises(WrongEventLoop, match="another event loop"):
                producer.send(topic, b"elsewhere")
            with pytest.raises(WrongEventLoop):
                await producer.send_many(topic, [b"elsewhere"])
        with pytest.raises(WrongEventLoop):
            await producer.flush()

    home = loops(begin, elsewhere)
    if home is None:
        return

    async def end():
        await producer.send(topic, b"last")
        await producer.close()

    home.run_until_complete(end())
    with Consumer(topic, bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        assert [r.value for r in consumer.read_to_end()] == [b"made", b"here", b"here", b"last"]


def test_a_consumer_refuses_every_call_that_waits(shared_broker, make_topic, loops):
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    consumer = AsyncConsumer(topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest")

    async def begin():
        assert await consumer.poll(timeout=0.01) == []

    async def elsewhere():
        for call in (
            lambda: consumer.poll(timeout=1),
            lambda: consumer.poll_batch(timeout=1),
            lambda: consumer.read_to_end(),
            lambda: consumer.commit({(topic, 0): 7}),
            lambda: consumer.end_offsets([(topic, 0)]),
            lambda: anext(consumer.__aiter__()),
            lambda: consumer.close(),
        ):
            with pytest.raises(WrongEventLoop, match="another event loop"):
                await call()

    home = loops(begin, elsewhere)
    if home is not None:
        assert home.run_until_complete(consumer.committed([(topic, 0)])) == {(topic, 0): None}
        home.run_until_complete(consumer.close())


def test_where_no_loop_runs_the_error_says_what_to_do(make_topic, shared_broker):
    servers = shared_broker.bootstrap_servers
    producer = AsyncProducer(bootstrap_servers=servers)
    for _ in range(2):
        with pytest.raises(
            WrongEventLoop, match=r"no event loop runs.*asyncio\.run\(\.\.\.\) runs, or take the blocking client"
        ):
            producer.send("t", b"nowhere")

    async def main():
        topic = make_topic(servers)
        async with producer:
            assert (await (await producer.send(topic, b"here"))).offset == 0, "nothing of before came along"

    asyncio.run(main())


def test_an_admin_refuses_its_calls(shared_broker, loops):
    admin = AsyncAdmin(bootstrap_servers=shared_broker.bootstrap_servers)

    async def begin():
        await admin.list_topics()

    async def elsewhere():
        with pytest.raises(WrongEventLoop, match="another event loop"):
            await admin.list_topics()
        with pytest.raises(WrongEventLoop, match="another event loop"):
            await admin.close()  # who waits for an answer would not be woken by its end

    home = loops(begin, elsewhere)
    if home is not None:
        assert home.run_until_complete(admin.list_topics()) is not None, "it is not closed"
        home.run_until_complete(admin.close())
