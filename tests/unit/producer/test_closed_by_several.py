"""A producer that several close at a time: each of them comes back once it is closed, and hears what was not delivered."""

import asyncio
import contextlib
import threading
import time

import pytest
from test_ends_of_programs import COUNT, SEND, count, run

from fastq.errors import ClientClosed, UndeliveredRecords
from fastq.producer import AsyncProducer, Producer
from fastq.producer.transaction_states import State


def unreachable(client=Producer, **options):
    """A producer whose records stay: nobody listens there, and it knows its topic."""
    options = {"linger_ms": 0, "delivery_timeout_ms": 2000, "request_timeout_ms": 1000, **options}
    producer = client(bootstrap_servers="127.0.0.1:1", **options)
    producer.accumulator.update_topic("t", 1)
    return producer


class Closing(threading.Thread):
    """Closes a producer in a thread of its own, and keeps what that raises."""

    def __init__(self, producer, timeout=None):
        super().__init__(daemon=True)
        self.producer, self.timeout, self.error = producer, timeout, None
        self.start()
        while not producer._closing:
            time.sleep(0.01)

    def run(self):
        try:
            self.producer.close(self.timeout)
        except Exception as error:
            self.error = error


@pytest.mark.parametrize("raise_on_close", [True, False])
def test_the_second_thread_waits_for_the_first(raise_on_close, caplog):
    producer = unreachable(raise_on_close=raise_on_close)
    delivery = producer.send("t", b"x")
    first, second = Closing(producer), Closing(producer)
    try:
        producer.close()
        assert not raise_on_close
    except UndeliveredRecords as error:
        assert raise_on_close and error.count == 1
    assert delivery.done()
    for thread in (first, second):
        thread.join(10)
        assert isinstance(thread.error, UndeliveredRecords) == raise_on_close
    assert caplog.text.count("1 of its records was not delivered") == (not raise_on_close)
    producer.close()  # it was told


def test_the_second_is_back_when_its_time_is_over(capfd):
    producer = unreachable(delivery_timeout_ms=100_000)
    delivery = producer.send("t", b"x")
    first = Closing(producer)
    begun = time.monotonic()
    producer.close(0.2)
    assert time.monotonic() - begun < 20
    first.join(10)
    assert not first.is_alive() and first.error is None
    assert isinstance(delivery.exception(), ClientClosed)
    assert "closed with timeout=0.2" in str(delivery.exception())


def test_a_flush_is_back_when_every_record_has_its_fate_where_a_close_is_cut_short():
    producer = unreachable(delivery_timeout_ms=100_000)
    delivery = producer.send("t", b"x")
    found, entered = [], threading.Event()

    def flush():
        entered.set()
        with contextlib.suppress(ClientClosed):  # it hears of the close, or of the record's end, whichever is first
            producer.flush()
        found.append(delivery.done())

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    while not (entered.is_set() and producer._waiting):
        time.sleep(0.01)
    shut_down, may_end = producer._shut_down, threading.Event()

    def held_up(why):
        assert may_end.wait(10)
        shut_down(why)

    producer._shut_down = held_up
    first = Closing(producer)
    threading.Timer(1.0, may_end.set).start()
    producer.close(0)
    flushing.join(10)
    first.join(10)
    assert found == [True]
    assert isinstance(delivery.exception(), ClientClosed)


def test_a_callback_and_the_closing_thread_do_not_wait_for_themselves():
    producer = unreachable()
    closed = []

    def close(_):
        producer.close()
        closed.append(threading.current_thread())

    producer.send("t", b"x").add_done_callback(close)
    first = Closing(producer)
    producer.close()
    first.join(10)
    assert not first.is_alive() and len(closed) == 1


@pytest.mark.parametrize("waits", ["flush", "result"])
def test_what_waits_in_a_callback_is_cut_short_with_the_close_that_it_holds_up(waits):
    producer = unreachable(delivery_timeout_ms=100_000)
    producer._start_background = lambda: None  # so that callbacks run in the thread that closes
    producer.accumulator.update_topic("t", 2)
    waiting, raised = threading.Event(), []

    def wait(_):
        waiting.set()
        try:
            producer.flush() if waits == "flush" else stuck.result()
        except ClientClosed as error:
            raised.append(str(error))

    first, stuck = (producer.send("t", b"x", partition=index) for index in range(2))
    first.add_done_callback(wait)
    closing = Closing(producer)
    with producer._driver.lock:
        producer.accumulator.complete(next(iter(producer.accumulator.incomplete)), None, 5)
    producer._driver.wakeup()
    assert waiting.wait(10)
    producer.close(0)
    closing.join(10)
    assert not closing.is_alive() and closing.error is None
    assert ["closed with timeout=0" in text for text in raised] == [True]
    assert isinstance(stuck.exception(), ClientClosed)


def test_an_open_transaction_is_not_waited_for_beyond_the_second_one_s_time():
    producer = unreachable(delivery_timeout_ms=100_000, transactional_id="t")
    producer._parts.transactions.state = State.COMMITTING
    first = Closing(producer)
    producer.close(0)
    first.join(10)
    assert not first.is_alive()


@pytest.mark.parametrize("timeout", [None, 0.2])
def test_tasks(timeout):
    async def main():
        producer = unreachable(
            AsyncProducer, raise_on_close=True, delivery_timeout_ms=100_000 if timeout is not None else 2000
        )
        delivery = await producer.send("t", b"x")
        first = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(UndeliveredRecords):
            await producer.close(timeout)
        assert delivery.done()
        with pytest.raises(UndeliveredRecords):
            await asyncio.wait_for(first, 10)
        await producer.close()

    asyncio.run(main())


def test_a_task_that_flushes_is_back_when_every_record_has_its_fate():
    async def main():
        producer = unreachable(AsyncProducer, delivery_timeout_ms=100_000)
        delivery = await producer.send("t", b"x")
        found = []

        async def flush():
            await producer.flush()
            found.append(delivery.done())

        flushing = asyncio.ensure_future(flush())
        await asyncio.sleep(0)
        first = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        producer._end_at_once("the test")
        await asyncio.gather(flushing, first)
        assert found == [True]

    asyncio.run(main())


def test_an_exit_waits_no_longer_than_the_system_can(monkeypatch):
    """49 days on Windows, beyond which waiting is an error, and what was being delivered was given up."""
    monkeypatch.setattr(threading, "TIMEOUT_MAX", 4294967.0)
    waits = []

    async def main():
        producer = unreachable(AsyncProducer, delivery_timeout_ms=2**31 - 1, max_block_ms=2**31 - 1)
        await producer.send("t", b"x")
        producer._closing = True
        monkeypatch.setattr(producer._over, "wait", waits.append)
        monkeypatch.setattr(producer._over, "is_set", lambda: True)
        producer._close_at_exit()
        producer._closing = False
        await producer.close(0)

    asyncio.run(main())
    assert waits == [4294967.0]


CLOSED_BY_A_DAEMON = """
    threading.Thread(target=producer.close, daemon=True).start()
    while not producer._closing:
        pass
"""


@pytest.mark.parametrize("more", ["", "producer.close()"])
def test_a_program_ends_once_its_records_are_delivered(shared_broker, make_topic, more):
    servers = str(shared_broker.bootstrap_servers)
    topic = make_topic(servers, 1)
    # A callback a batch holds the first close up.
    program = f"""
    import time
    producer = made(batch_size=100)
    {SEND}[0].add_done_callback(lambda _: time.sleep(0.5))
    {CLOSED_BY_A_DAEMON}
    {more}
    """
    done = run(servers, topic, program)
    assert count(servers, topic) == COUNT, done.stderr
    assert done.stderr == ""


CLOSED_IN_A_DAEMON_S_LOOP = """
    import time
    producers = []
    def work():
        async def main():
            producer = made(%s)
            deliveries = [await producer.send(topic, b"%%d" %% n) for n in range(100)]
            deliveries[0].add_done_callback(lambda _: time.sleep(0.5))
            producers.append(producer)
            await producer.close()
        asyncio.run(main())
    threading.Thread(target=work, daemon=True).start()
    while not (producers and producers[0]._closing):
        time.sleep(0.001)
"""


def test_a_program_ends_once_the_records_of_a_closing_asyncio_producer_are_delivered(shared_broker, make_topic):
    servers = str(shared_broker.bootstrap_servers)
    topic = make_topic(servers, 1)
    done = run(servers, topic, CLOSED_IN_A_DAEMON_S_LOOP % "batch_size=100", "AsyncProducer")
    assert (count(servers, topic), done.stderr) == (COUNT, "")


def test_a_program_ends_once_what_a_closing_asyncio_producer_has_lost_is_told():
    options = "linger_ms=0, delivery_timeout_ms=2000, request_timeout_ms=1000, max_block_ms=500"
    program = CLOSED_IN_A_DAEMON_S_LOOP.replace(
        "deliveries =", "producer.accumulator.update_topic(topic, 1)\n            deliveries ="
    )
    done = run("127.0.0.1:1", "t", program % options, "AsyncProducer")
    assert "100 of its records were not delivered" in done.stderr
    assert "was not closed" not in done.stderr


def test_a_program_ends_once_what_was_lost_is_told():
    program = f"""
    producer = made(linger_ms=0, delivery_timeout_ms=2000, request_timeout_ms=1000)
    producer.accumulator.update_topic(topic, 1)
    {SEND}
    {CLOSED_BY_A_DAEMON}
    """
    done = run("127.0.0.1:1", "t", program)
    assert "100 of its records were not delivered" in done.stderr
