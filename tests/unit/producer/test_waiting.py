"""Who has to wait: for room, for a turn, in which order, and in which event loop. Nothing freezes, nothing overtakes, nothing vanishes."""

import asyncio
import contextlib
import gc
import inspect
import os
import random
import signal
import threading
import time

import pytest
from stored_log import Log

from fastq.errors import BufferTimeout, ClientClosed, TopicAuthorizationFailed, UnknownTopicOrPartition, WrongEventLoop
from fastq.interceptors import ProducerInterceptor
from fastq.producer import AsyncProducer, Producer


@contextlib.contextmanager
def stopped(broker):
    """The broker does not answer while the block runs."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def run(main, broker, **options):
    async def whole():
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            return await asyncio.wait_for(main(producer), 40)

    return asyncio.run(whole())


# An explicit batch size, a codec, values that compress well: a batch takes more than its size, by the ratio seen before.
TIGHT = {"batch_size": 4096, "compression_type": "lz4", "buffer_memory": 1 << 17, "max_block_ms": 1500, "linger_ms": 0}


# Values that compress as well leave much of the buffer free, and not enough for the next batch; others fill it.
FILLING = pytest.mark.parametrize(
    "value", [lambda: bytes(1000), lambda: os.urandom(600) + bytes(400)], ids=["compressible", "mixed"]
)


@FILLING
@pytest.mark.parametrize("call", ["send", "send_many"])
def test_a_full_buffer_leaves_the_loop_alive_and_ends_after_max_block_ms(shared_broker, topic, call, value):
    async def main(producer):
        for _ in range(200):
            await producer.send(topic, bytes(1000))
        await producer.flush(10)
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticker = asyncio.create_task(tick())
        with stopped(shared_broker):
            with pytest.raises(BufferTimeout, match="buffer_memory"):
                while True:
                    if call == "send":
                        await producer.send(topic, value())
                    else:
                        await producer.send_many(topic, [value() for _ in range(1000)])
            assert ticks > 10
        ticker.cancel()
        await producer.flush(20)

    run(main, shared_broker, **TIGHT)


@FILLING
@pytest.mark.parametrize("call", ["send", "send_many"])
def test_a_full_buffer_ends_after_max_block_ms_in_the_blocking_producer(make, shared_broker, topic, call, value):
    producer = make(**TIGHT)
    producer.send_many(topic, [bytes(1000)] * 200).result(10)
    with stopped(shared_broker), pytest.raises(BufferTimeout, match="buffer_memory"):
        while True:
            if call == "send":
                producer.send(topic, value())
            else:
                producer.send_many(topic, [value() for _ in range(1000)])
    producer.flush(20)


def test_records_are_in_the_order_of_the_calls_whichever_way_they_take(shared_broker, topic):
    """With and without headers and partition, awaited, gathered, as tasks and not at all, across batches and before the metadata."""

    async def main(producer):
        sent, waiting = [], []
        for i in range(6000):
            value = b"%d" % i + b"." * (i % 80)
            headers = [None, [("h", b"1")], (pair for pair in [("g", b"2")])][i % 3]
            answer = producer.send(topic, value, headers=headers, partition=0 if i % 5 == 0 else None)
            assert inspect.isawaitable(answer)
            sent.append((value, [] if headers is None else [("h", b"1")] if i % 3 == 1 else [("g", b"2")]))
            if i % 7 == 0:
                await answer
            elif i % 7 == 1:
                waiting.append(asyncio.create_task(answer))
            elif i % 7 == 2:
                waiting.append(asyncio.ensure_future(answer))
            # The others are left alone: they are sent all the same.
        await asyncio.gather(*waiting)
        await producer.flush(20)
        return sent

    sent = run(main, shared_broker, batch_size=2048)
    stored = Log(shared_broker, topic).partitions()[0]
    assert [(record.value, record.headers) for record in stored] == sent


def test_a_send_that_waits_may_be_awaited_by_several_tasks(shared_broker, topic):
    """Each of them gets its delivery; cancelling one takes the record from nobody, cancelling all takes it back."""

    async def main(producer):
        async def wait(place):
            return await place

        kept, lost = producer.send(topic, b"kept"), producer.send(topic, b"lost")
        waiting = [asyncio.create_task(wait(place)) for place in (kept, kept, kept, lost, lost)]
        await asyncio.sleep(0)
        for task in (waiting[0], *waiting[3:]):
            task.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(answer, asyncio.CancelledError) for answer in found] == [True, False, False, True, True]
        assert found[1] is found[2] and (await found[1]).offset == 0

    run(main, shared_broker)
    assert Log(shared_broker, topic).values() == [b"kept"]


def test_what_nobody_awaits_is_sent_at_the_latest_by_close(shared_broker, topic):
    async def main():
        async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, batch_size=1000) as producer:
            for i in range(500):
                producer.send(topic, b"%d" % i)

    asyncio.run(main())
    assert Log(shared_broker, topic).values() == [b"%d" % i for i in range(500)]


def test_what_nobody_awaits_and_fails_is_told(shared_broker, topic, caplog):
    async def main(producer):
        await producer.send(topic, b"x")
        producer.send(topic, b"y", partition=77)
        for _ in range(2000):
            if "1 record was not delivered" in caplog.text:
                break
            await asyncio.sleep(0.01)

    run(main, shared_broker)
    assert "1 record was not delivered" in caplog.text and "partition 77" in caplog.text


def test_what_nobody_awaits_and_cannot_be_encoded_is_told(shared_broker, topic, caplog):
    async def main(producer):
        producer.send(topic, b"x", headers=[("a", "text")])  # found out when the topic is known
        producer.send(topic, "text")
        producer.send(topic, b"good")
        await producer.flush(10)

    run(main, shared_broker)
    assert "header 'a' is a str" in caplog.text and "value is str" in caplog.text
    assert caplog.text.count(f"topic {topic}") == 2
    assert Log(shared_broker, topic).values() == [b"good"]


def test_a_cancelled_send_that_waits_gives_its_place_up(shared_broker, topic):
    async def main(producer):
        await (await producer.send(topic, b"first"))
        with stopped(shared_broker):
            accepted = []

            async def one(i):
                await producer.send(topic, b"%d" % i + bytes(1000))
                accepted.append(b"%d" % i)

            tasks = [asyncio.create_task(one(i)) for i in range(300)]
            await asyncio.sleep(0.1)
            assert not all(task.done() for task in tasks)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.flush(20)
        return accepted

    accepted = run(main, shared_broker, buffer_memory=1 << 16, batch_size=4096)
    assert [value.rstrip(b"\0") for value in Log(shared_broker, topic).values()] == [b"first", *accepted]
    assert len(accepted) < 300


@pytest.mark.parametrize("known", [False, True], ids=["before the metadata", "after it"])
def test_a_send_that_is_cancelled_before_its_first_step_is_told_what_became_of_it(shared_broker, topic, known):
    """Its record is in by then, and it ends with the delivery, or it is not, and is taken back. So also with a time-out of 0."""

    async def main(producer):
        if known:
            await (await producer.send(topic, b"first"))
        task = asyncio.create_task(producer.send(topic, b"task"))
        task.cancel()
        timed = asyncio.wait_for(producer.send(topic, b"timed"), 0)
        return await asyncio.gather(task, timed, return_exceptions=True)

    found = run(main, shared_broker)
    if known:
        assert [answer.result().offset for answer in found] == [1, 2]
    else:
        assert [type(answer) for answer in found] == [asyncio.CancelledError, asyncio.TimeoutError]
    assert Log(shared_broker, topic).values() == ([b"first", b"task", b"timed"] if known else [])


def test_a_second_event_loop_is_refused_at_once(shared_broker, topic):
    """Also with a batch of the first loop still open, which would swallow what is sent in the second one."""
    producer = AsyncProducer(
        bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=60_000, request_timeout_ms=1000
    )

    async def first():
        await producer.send(topic, b"left over")
        await producer.send(topic, b"left over too")

    async def second():
        with pytest.raises(WrongEventLoop, match="another event loop"):
            await producer.send(topic, b"x")
        for call in (producer.flush(1), producer.send_many(topic, [b"x"]), producer.partitions_for(topic)):
            with pytest.raises(WrongEventLoop):
                await call

    asyncio.run(first())
    asyncio.run(second())
    with contextlib.suppress(WrongEventLoop):
        asyncio.run(producer.close(1))
    assert Log(shared_broker, topic).values() == []


def test_a_loop_of_another_thread_is_refused_by_the_call(shared_broker, topic):
    """Not by an await, which may never come: nothing of it is sent."""

    async def main(producer):
        await (await producer.send(topic, b"here"))

        async def elsewhere():
            with pytest.raises(WrongEventLoop, match="another event loop"):
                producer.send(topic, b"there")

        await asyncio.to_thread(asyncio.run, elsewhere())
        await (await producer.send(topic, b"here too"))

    run(main, shared_broker)
    assert Log(shared_broker, topic).values() == [b"here", b"here too"]


def test_a_loop_that_is_closed_without_a_word_is_met_at_the_next_batch(shared_broker, topic, capfd):
    producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers)
    loop = asyncio.new_event_loop()

    async def send_and_wait():
        await (await producer.send(topic, b"x"))

    loop.run_until_complete(send_and_wait())
    loop.close()
    with pytest.raises(WrongEventLoop, match="closed"):
        asyncio.run(send_and_wait())


def test_a_partition_that_is_not_there_fails_with_the_next_metadata(make, wide, shared_broker):
    """Not after max_block_ms or request_timeout_ms: the test's own time-out would end it before."""
    producer = make()
    for _ in range(3):
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
            producer.send(wide, b"x", partition=99)

    async def main(producer):
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
            await producer.send(wide, b"x", partition=99)
        with pytest.raises(ValueError, match=r"a number from 0 to 3 for topic .*, or None to have one chosen, got -1"):
            await producer.send(wide, b"x", partition=-1)

    done = []
    thread = threading.Thread(target=lambda: done.append(run(main, shared_broker)))
    thread.start()
    thread.join(20)
    assert done


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_topic_that_is_allowed_later_is_asked_for_anew(make, topic, shared_broker, asynchronous):
    """What an earlier send was told of the topic is not believed for metadata_max_age_ms."""
    make().send(topic, b"first").result(10)

    async def main(producer):
        shared_broker.fail("Metadata", error="TOPIC_AUTHORIZATION_FAILED", times=None)
        for _ in range(2):
            with pytest.raises(TopicAuthorizationFailed, match=topic):
                await producer.send(topic, b"x")
        shared_broker.clear_faults()
        assert (await (await producer.send(topic, b"x"))).offset == 1

    try:
        if asynchronous:
            run(main, shared_broker)
            return
        producer = make()
        shared_broker.fail("Metadata", error="TOPIC_AUTHORIZATION_FAILED", times=None)
        for _ in range(2):
            with pytest.raises(TopicAuthorizationFailed, match=topic):
                producer.send(topic, b"x")
        shared_broker.clear_faults()
        assert producer.send(topic, b"x").result(10).offset == 1
    finally:
        shared_broker.clear_faults()


class Talker:
    """Garbage in a cycle, whose end sends a record."""

    def __init__(self, producer, topic, sent, number):
        self.me, self.producer, self.topic, self.sent, self.number = self, producer, topic, sent, number

    def __del__(self):
        value = b"del-%d" % self.number
        with contextlib.suppress(BufferTimeout, ClientClosed):
            self.producer.send(self.topic, value)
            self.sent.append(value)


def test_sends_of_finalizers_within_sends_are_delivered(make, topic, shared_broker):
    producer = make(batch_size=500, linger_ms=1)
    producer.send(topic, b"first").result(10)
    sent, mine = [], []
    thresholds = gc.get_threshold()
    gc.set_threshold(3, 1, 1)
    try:
        for i in range(3000):
            if i % 5 == 0:
                Talker(producer, topic, sent, i)
            mine.append(b"%d" % i)
            producer.send(topic, mine[-1])
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    producer.flush(20)
    stored = Log(shared_broker, topic).values()
    assert [value for value in stored if not value.startswith(b"del")] == [b"first", *mine]
    assert sorted(value for value in stored if value.startswith(b"del")) == sorted(sent)
    assert len(sent) > 500
    assert not producer.accumulator.incomplete and not producer.accumulator.buffered_records


def test_sends_of_finalizers_within_sends_of_asyncio_are_delivered(topic, shared_broker):
    """Whichever way the records take: alone and not awaited, awaited, many at once."""
    sent, mine = [], []

    async def main(producer):
        await (await producer.send(topic, b"first"))
        thresholds = gc.get_threshold()
        gc.set_threshold(3, 1, 1)
        try:
            for i in range(3000):
                if i % 5 == 0:
                    Talker(producer, topic, sent, i)
                mine.append(b"%d" % i)
                if i % 3 == 0:
                    producer.send(topic, mine[-1])
                elif i % 3 == 1:
                    await producer.send(topic, mine[-1])
                else:
                    await producer.send_many(topic, [mine[-1]])
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        await producer.flush(20)
        assert not producer.accumulator.incomplete and not producer.accumulator.buffered_records

    run(main, shared_broker, batch_size=500, linger_ms=1)
    stored = Log(shared_broker, topic).values()
    assert [value for value in stored if not value.startswith(b"del")] == [b"first", *mine]
    assert sorted(value for value in stored if value.startswith(b"del")) == sorted(sent)
    assert len(sent) > 500


@pytest.fixture
def collections_that_let_others_run():
    """Every object that is made may bring a collection, and some of these other threads' turn: what a busy machine does once a day."""
    chance = random.Random(5)

    def let_others_run(phase, info):
        if chance.random() < 0.3:
            time.sleep(0.0005)

    thresholds = gc.get_threshold()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(let_others_run)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_callback_runs_once_whatever_thread_comes_between(make, wide, threads, collections_that_let_others_run):
    """A callback that is added while the batch gets its answer is neither refused nor forgotten nor run twice."""
    producer = make(linger_ms=0, batch_size=300)
    told, wanted, errors, ballast = [], [], [], []

    def tell(name):
        told.append(name)
        # So that the interpreter has no list or tuple at hand that needs no collection.
        ballast.append([(*name, n) for n in range(4)])

    def send(thread):
        try:
            for i in range(400):
                name = (thread, i)
                wanted.append(name)
                if i % 10:
                    delivery = producer.send(wide, b"%d-%d" % name)
                else:
                    delivery = producer.send_many(wide, [b"%d" % n for n in range(3)])
                delivery.add_done_callback(lambda _, name=name: tell(name))
                if i % 3 == 0:
                    wanted.append((name, "again"))
                    delivery.add_done_callback(lambda _, name=(name, "again"): tell(name))
        except BaseException as error:
            errors.append(error)

    senders = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    producer.flush(20)
    assert not errors
    assert sorted(told, key=str) == sorted(wanted, key=str)


class Watcher(ProducerInterceptor):
    """Sends every third record to another topic, adds a header, and hears what became of it."""

    def __init__(self, other):
        self.other, self.heard = other, []

    def on_send(self, record):
        import dataclasses

        number = int(record.value)
        topic = self.other if number % 3 == 0 else record.topic
        return dataclasses.replace(record, topic=topic, headers=[*(record.headers or []), ("seen", b"1")])

    def on_delivery(self, record, metadata, error):
        self.heard.append((record.topic, record.value, metadata and metadata.offset, error))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_interceptors_of_send_many(make, topic, new_topic_name, shared_broker, asynchronous):
    """They hear of every delivery, a topic that they change is where the record goes, and what they make of one is not the next one's."""
    other = new_topic_name()
    watcher = Watcher(other)
    values = [b"%d" % i for i in range(300)]
    if asynchronous:

        async def main(producer):
            return await (await producer.send_many(topic, values))

        result = run(main, shared_broker, interceptors=[watcher], batch_size=1000)
    else:
        producer = make(interceptors=[watcher], batch_size=1000)
        result = producer.send_many(topic, values).result(20)
        producer.flush(10)
    own, others = [v for v in values if int(v) % 3], [v for v in values if int(v) % 3 == 0]
    assert Log(shared_broker, topic).values() == own and Log(shared_broker, other).values() == others
    assert result.count == 300 and result.offsets == {0: [range(200)]}
    assert dict(result.elsewhere) == {(other, 0): [range(100)]}
    assert sorted(watcher.heard) == sorted(
        [(topic, v, i, None) for i, v in enumerate(own)] + [(other, v, i, None) for i, v in enumerate(others)]
    )
    assert {len(r.headers) for r in Log(shared_broker, topic).partitions()[0]} == {1}


class Pairs:
    """Headers of somebody's own kind, with `items`, as HTTP libraries have them."""

    def __init__(self, *pairs):
        self.pairs = pairs

    def items(self):
        return self.pairs

    def __iter__(self):
        return (name for name, _ in self.pairs)


@pytest.mark.parametrize(
    "headers", [lambda: iter([("a", b"1")]), lambda: Pairs(("a", b"1"))], ids=["iterator", "items"]
)
@pytest.mark.parametrize("call", ["send", "send_many"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_headers_that_can_be_read_once_arrive(make, topic, shared_broker, asynchronous, call, headers, reads):
    """An interceptor that looked at an iterator of headers left none of them; an AsyncProducer took names of a mapping-like for pairs."""

    class Reader(ProducerInterceptor):
        def on_send(self, record):
            assert list(record.headers)
            return record

    options = {"interceptors": [Reader()]} if reads else {"wait_for_delivery": call == "send"}
    arguments = (topic, b"x") if call == "send" else (topic, [b"x"])
    given = {"headers": headers() if call == "send" else [headers()]}
    if asynchronous:

        async def main(producer):
            await getattr(producer, call)(*arguments, **given)

        run(main, shared_broker, **options)
    else:
        with make(**options) as producer:
            getattr(producer, call)(*arguments, **given)
    (record,) = Log(shared_broker, topic).partitions()[0]
    assert record.headers == (("a", b"1"),) or record.headers == [("a", b"1")]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_interceptors_hear_of_a_row_of_send_many_that_is_refused(make, topic, shared_broker, asynchronous):
    heard = []

    class Listener(ProducerInterceptor):
        def on_acknowledgement(self, metadata, error):
            heard.append((metadata is not None, type(error).__name__))

    rows = [b"a", 5, b"c"]
    if asynchronous:

        async def main(producer):
            with pytest.raises(Exception, match="value is int"):
                await producer.send_many(topic, rows)
            await producer.flush(10)

        run(main, shared_broker, interceptors=[Listener()])
    else:
        producer = make(interceptors=[Listener()])
        with pytest.raises(Exception, match="value is int"):
            producer.send_many(topic, rows)
        producer.flush(10)
    assert sorted(heard) == [(False, "SerializationError"), (True, "NoneType")]


def test_a_crc32_partitioner_goes_where_librdkafka_does(make, wide, shared_broker):
    confluent = pytest.importorskip("confluent_kafka")
    keys = [b"key-%d" % i for i in range(200)] + [b"k" * n for n in range(1, 60)]
    other = confluent.Producer({"bootstrap.servers": shared_broker.bootstrap_servers})
    for key in keys:
        other.produce(wide, b"theirs", key=key)
    other.flush(20)
    for name in ("consistent_random", "consistent"):
        producer = make(partitioner=name)
        producer.send_many(wide, [b"ours"] * len(keys), keys=keys)
        producer.flush(20)
        where = {}
        for index, records in Log(shared_broker, wide).partitions().items():
            for record in records:
                where.setdefault(record.key, set()).add(index)
        assert all(len(indexes) == 1 for indexes in where.values())
        assert len(where) == len(keys)


def test_null_and_empty_keys_by_partitioner(make, wide):
    assert make(partitioner="consistent").send(wide, b"x", key=b"").result(10).partition == 0
    nulls = [make(partitioner="murmur2").send(wide, b"x").result(10).partition for _ in range(3)]
    assert len(set(nulls)) == 1
    spread = make(partitioner="consistent_random", linger_ms=0)
    assert len({spread.send(wide, bytes(20_000), key=b"").result(10).partition for _ in range(40)}) > 1
    anywhere = make(partitioner="random")
    assert len({anywhere.send(wide, b"x", key=b"same").result(10).partition for _ in range(60)}) > 1


def test_a_partitioner_by_a_bad_name_gets_the_names():
    with pytest.raises(ValueError, match=r"murmur2_random.*did you mean murmur2"):
        Producer(partitioner="murmur3")
    with pytest.raises(ValueError, match=r"bootstrap_servers='host:9092'"):
        Producer("host:9092")
    for key in ("on_delivery", "dr_msg_cb", "delivery.report.only.error", "error_cb"):
        with pytest.raises(ValueError, match="key of another client"):
            Producer({key: print})
