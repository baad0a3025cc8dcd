"""The asyncio producer with serializers that load something in a thread first, as a schema: no record is lost or doubled."""

import asyncio
import threading
from functools import partial

import pytest
from stored_log import Log
from waiting_bench import committed, run

from fastq.errors import ClientClosed, FastqError, LoadingWouldBlock, SerializationError, TransactionStateError
from fastq.interceptors import ProducerInterceptor
from fastq.producer import AsyncProducer


class Loading:
    """Takes texts, whose first letter it has to have loaded. `go_on` lets a load end; `failure` is what it ends with."""

    def __init__(self, *known, held=False, failure=None):
        self.known, self.failure = set(known), failure
        self.loaded, self.threads = [], set()
        self.asked, self.go_on = threading.Event(), threading.Event()
        if not held:
            self.go_on.set()

    def serialize(self, topic, value):
        if value[0] not in self.known:
            error = LoadingWouldBlock()
            error.load = partial(self.load, value[0])
            raise error
        return value.encode()

    def load(self, letter):
        self.loaded.append(letter)
        self.threads.add(threading.current_thread())
        self.asked.set()
        assert self.go_on.wait(20)
        if self.failure is not None:
            raise self.failure
        self.known.add(letter)

    async def was_asked(self):
        await asyncio.to_thread(self.asked.wait, 20)
        self.asked.clear()


class Seen(ProducerInterceptor):
    """What an interceptor heard."""

    def __init__(self):
        self.sent, self.told = [], []

    def on_send(self, record):
        self.sent.append(record.value)
        return record

    def on_acknowledgement(self, metadata, error):
        self.told.append(None if error is None else type(error))


def plain(main, broker, **options):
    return run(main, broker, transactional_id=None, **options)


ROWS = ["a1", "a2", "b3", "a4", "c5", "b6"]


@pytest.mark.parametrize("rows", [list, iter], ids=["list", "iterator"])
@pytest.mark.parametrize("watched", [False, True])
def test_rows_wait_for_what_their_serializers_load(shared_broker, topic, rows, watched):
    values, keys, seen = Loading(), Loading("k"), Seen()
    names = [f"{letter}{i}" for i, letter in enumerate("kkklkm")]

    async def main(producer):
        for _ in range(2):
            result = await (await producer.send_many(topic, rows(ROWS), rows(names)))
            assert result.count == len(ROWS)

    options = {"interceptors": [seen]} if watched else {}
    plain(main, shared_broker, value_serializer=values, key_serializer=keys, **options)
    stored = Log(shared_broker, topic).partitions()[0]
    expected = [(key.encode(), value.encode()) for key, value in zip(names, ROWS, strict=True)] * 2
    assert [(record.key, record.value) for record in stored] == expected
    assert (values.loaded, keys.loaded) == (["a", "b", "c"], ["l", "m"])
    assert threading.current_thread() not in values.threads | keys.threads
    if watched:
        assert (seen.sent, seen.told) == (ROWS * 2, [None] * 2 * len(ROWS))


@pytest.mark.parametrize("failure", [FastqError("no registry there"), OSError("no file there")])
@pytest.mark.parametrize("call", ["send", "send_many"])
def test_what_cannot_be_loaded_is_told(shared_broker, topic, call, failure):
    values, seen = Loading("a", failure=failure), Seen()

    async def main(producer):
        if call == "send":
            await producer.send(topic, "a1")
            await producer.send(topic, "a2")
            sent = producer.send(topic, "b3")
        else:
            sent = producer.send_many(topic, ROWS)
        with pytest.raises(
            SerializationError, match=r"failed to load what it needs.*no (registry|file) there"
        ) as caught:
            await sent
        assert caught.value.topic == topic and caught.value.__cause__ is failure
        if call == "send_many":
            assert caught.value.accepted == 2
        values.failure = None
        await producer.send_many(topic, ["b7"])

    plain(main, shared_broker, value_serializer=values, interceptors=[seen])
    assert Log(shared_broker, topic).values() == [b"a1", b"a2", b"b7"]
    assert (seen.sent, sorted(map(str, seen.told))) == (
        ["a1", "a2", "b3", "b7"],
        sorted(map(str, [None, None, SerializationError, None])),
    )


def test_many_that_are_cancelled_while_they_load_leave_what_is_in(shared_broker, topic, caplog):
    values, seen = Loading("a", held=True, failure=FastqError("nobody hears of it")), Seen()

    async def main(producer):
        many = asyncio.ensure_future(producer.send_many(topic, ROWS))
        await values.was_asked()
        many.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await many
        assert caught.value.accepted == 2
        values.go_on.set()
        await producer.send(topic, "a7")

    plain(main, shared_broker, value_serializer=values, interceptors=[seen])
    assert Log(shared_broker, topic).values() == [b"a1", b"a2", b"a7"]
    assert seen.told.count(asyncio.CancelledError) == 1 and len(seen.told) == 4
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("call", ["send", "send_many"])
def test_a_producer_that_is_closed_while_it_loads_says_so(shared_broker, topic, call):
    values = Loading("a", held=True)

    async def main():
        producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers, value_serializer=values)
        await producer.send(topic, "a0")
        rows = [producer.send(topic, row) for row in ROWS] if call == "send" else [producer.send_many(topic, ROWS)]
        sent = [asyncio.ensure_future(row) for row in rows]
        await values.was_asked()
        await asyncio.wait_for(producer.close(0.2), 10)
        found = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 10)
        values.go_on.set()
        assert {type(error) for error in found if isinstance(error, BaseException)} == {ClientClosed}
        assert producer.metrics()["buffer_used_bytes"] == 0

    asyncio.run(main())


def test_many_that_load_when_their_transaction_ends_are_of_no_other(shared_broker, topic):
    values = Loading("a", held=True)

    async def main(producer):
        async with producer.transaction():
            await producer.send(topic, "a0")
        await producer.begin_transaction()
        many = asyncio.ensure_future(producer.send_many(topic, ROWS))
        await values.was_asked()
        await producer.abort_transaction()
        await producer.begin_transaction()
        with pytest.raises(TransactionStateError):
            await asyncio.wait_for(many, 10)
        values.go_on.set()
        await producer.send(topic, "a7")
        await producer.commit_transaction()

    run(main, shared_broker, value_serializer=values, transactional_id=f"loads-{topic}")
    assert committed(shared_broker, topic) == [b"a0", b"a7"]


@pytest.mark.parametrize("call", ["send", "send_many"])
def test_the_loop_lives_while_something_loads_which_max_block_ms_does_not_count(shared_broker, topic, call):
    values = Loading("a", held=True)

    async def main(producer):
        await producer.send(topic, "a0")
        if call == "send":
            sent = [asyncio.ensure_future(producer.send(topic, row)) for row in ROWS]
        else:
            sent = [asyncio.ensure_future(producer.send_many(topic, ROWS))]
        await values.was_asked()
        if call == "send":
            sent.append(asyncio.ensure_future(producer.send_many(topic, ["a8"])))  # behind those
        for _ in range(50):
            await producer.send(f"other-{topic}", "a")
            await asyncio.sleep(0.01)
        assert not any(one.done() and one.exception() for one in sent)
        values.go_on.set()
        await asyncio.gather(*sent)

    plain(main, shared_broker, value_serializer=values, max_block_ms=200)
    expected = ["a0", *ROWS, "a8"] if call == "send" else ["a0", *ROWS]
    assert Log(shared_broker, topic).values() == [row.encode() for row in expected]


def test_a_blocking_producer_in_an_event_loop_says_what_to_do(make, topic):
    values, seen = Loading("a"), Seen()
    producer = make(value_serializer=values, interceptors=[seen])

    async def main():
        with pytest.raises(LoadingWouldBlock) as caught:
            producer.send_many(topic, ROWS)
        assert caught.value.accepted == 2 and seen.told[-1] is LoadingWouldBlock
        await asyncio.to_thread(caught.value.load)
        producer.send_many(topic, ROWS[2:4]).result(20)

    asyncio.run(main())
    assert len(seen.sent) == 5
