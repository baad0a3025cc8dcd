"""Sends that wait while their transaction ends: none of them gets into the next one, and none is missing in one that is committed."""

import asyncio
import contextlib

import pytest
from waiting_bench import committed, no_metadata, run, sent_by_another

from fastq.errors import (
    AbortableTransactionError,
    BufferTimeout,
    SerializationError,
    TransactionAborted,
    TransactionStateError,
    TransactionTimeout,
)
from fastq.producer import Producer
from fastq.producer.transaction_states import State


@pytest.mark.parametrize("awaited", [True, False])
def test_what_waits_while_its_transaction_is_aborted_is_in_none(shared_broker, topic, awaited):
    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            first = producer.send(topic, b"of the first")
            if awaited:
                first = asyncio.ensure_future(first)
                await asyncio.sleep(0)
            await producer.abort_transaction()
        with pytest.raises(TransactionAborted, match="its transaction is aborted"):
            await asyncio.wait_for(first, 5)
        async with producer.transaction():
            await producer.send(topic, b"of the second")

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"of the second"]


def test_one_of_several_that_raises_takes_the_others_along(shared_broker, topic):
    """`gather` leaves the others waiting when it raises."""

    async def main(producer):
        with pytest.raises(SerializationError), no_metadata(producer):
            async with producer.transaction():
                sends = [asyncio.ensure_future(producer.send(topic, b"%d" % i)) for i in range(3)]
                await asyncio.sleep(0)
                raise SerializationError("of the application")
        async with producer.transaction():
            await producer.send(topic, b"of the second")
        found = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 5)
        assert [type(error) for error in found] == [TransactionAborted] * 3

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"of the second"]


def test_what_waits_while_its_transaction_is_committed_is_in_none_after_it(shared_broker, topic, caplog):
    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            late = producer.send(topic, b"late")
            transactions = producer._parts.transactions
            transactions.begin_commit()  # as if it had been sent while the commit was about to begin
            producer._kick()
            for _ in range(1000):
                if transactions.state is State.READY:
                    break
                await asyncio.sleep(0.01)
        async with producer.transaction():
            await producer.send(topic, b"of the second")
        with pytest.raises(TransactionStateError):
            await asyncio.wait_for(late, 5)

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"of the second"]
    assert "1 record was not delivered" in caplog.text


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"value": b"late"}, BufferTimeout),
        ({"value": "text"}, SerializationError),
        ({"value": b"x", "headers": [("a", "text")]}, None),
        ({"value": b"x", "partition": 77}, None),
    ],
    ids=["no metadata in time", "text", "header", "partition"],
)
def test_nothing_is_committed_without_a_record_that_was_refused(shared_broker, topic, record, why):
    """Nobody awaited it, so nobody had heard of it."""

    async def main(producer):
        await producer.begin_transaction()
        with contextlib.ExitStack() as held:
            if why is BufferTimeout:
                held.enter_context(no_metadata(producer))
            producer.send(topic, **record)
            with pytest.raises(AbortableTransactionError) as refused:
                await producer.commit_transaction()
        if why is not None:
            assert isinstance(refused.value.cause, why)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"of the second")

    run(main, shared_broker, max_block_ms=1000)
    assert committed(shared_broker, topic) == [b"of the second"]


def test_a_commit_waits_for_its_records_no_longer_than_it_is_given(shared_broker, topic):
    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            producer.send(topic, b"there")
            with pytest.raises(TransactionTimeout, match="1 record still waits"):
                await producer.commit_transaction(0.05)
        producer._parts.core.request_metadata_update("it was held back")
        await producer.commit_transaction()

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"there"]


def test_a_send_of_another_thread_is_in_no_later_transaction(shared_broker, topic):
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id="waits-thread") as producer:
        producer.begin_transaction()
        with sent_by_another(producer, topic, b"of the first") as failed:
            producer.abort_transaction()
            producer.begin_transaction()
        producer.send(topic, b"of the second")
        producer.commit_transaction()
    assert [type(error) for error in failed] == [TransactionStateError]
    assert committed(shared_broker, topic) == [b"of the second"]


@pytest.mark.parametrize("waits_for", ["a turn", "metadata", "room"])
def test_send_many_goes_behind_sends_that_wait(shared_broker, topic, waits_for):
    async def main(producer):
        if waits_for != "metadata":
            await producer.partitions_for(topic)
        sent = []
        while not sent or sent[-1][1].__class__.__name__ == "Sent":
            value = b"%04d" % len(sent) + bytes(200)
            sent.append((value, producer.send(topic, value)))
        await producer.send_many(topic, [b"many", b"more"])
        return [value for value, _ in sent]

    options = {"batch_size": 1024, "linger_ms": 20}
    if waits_for == "room":
        options |= {"buffer_memory": 1 << 15, "batch_size": 1 << 15}
    values = run(main, shared_broker, transactional_id=None, **options)
    assert committed(shared_broker, topic) == [*values, b"many", b"more"]
