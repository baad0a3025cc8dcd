"""Sends in whose middle their transaction or their producer ends: each is told at once, none gets in where it does not belong."""

import asyncio
import threading
import time

import pytest
from waiting_bench import committed, no_metadata, run, sent_by_another

from fastq.errors import (
    AbortableTransactionError,
    ClientClosed,
    FastqError,
    TransactionAborted,
    TransactionFenced,
    TransactionStateError,
    TransactionTimeout,
    WaitTimeout,
)
from fastq.producer import AsyncProducer
from fastq.producer.transaction_states import Action, State


class Held:
    """A serializer, or rows of send_many, in whose middle the test has its turn."""

    def __init__(self):
        self.there, self.go_on = threading.Event(), threading.Event()

    def __call__(self, value):
        if value == b"held":
            self.wait()
        return value

    def rows(self):
        yield b"first"
        self.wait()
        yield b"held"
        yield b"last"

    def wait(self):
        self.there.set()
        assert self.go_on.wait(20)

    def around(self, send, then):
        """What `send` raises in a thread of its own when `then` is done in its middle."""
        raised = []

        def guarded():
            try:
                send()
            except FastqError as error:
                raised.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        assert self.there.wait(20)
        then()
        self.go_on.set()
        thread.join(20)
        assert not thread.is_alive()
        return raised


def calls(held):
    """By name, calls of a blocking producer that the test can hold in their middle."""
    return {
        "serializer": lambda producer, topic: producer.send(topic, b"held"),
        "partitioner": lambda producer, topic: producer.send(topic, b"x", b"held"),
        "interceptor": lambda producer, topic: producer.send(topic, b"held"),
        "interceptor of many": lambda producer, topic: producer.send_many(topic, [b"held", b"last"]),
        "serializer of many": lambda producer, topic: producer.send_many(topic, [b"held", b"last"]),
        "values": lambda producer, topic: producer.send_many(topic, held.rows()),
        "keys": lambda producer, topic: producer.send_many(topic, [b"x"] * 3, held.rows()),
    }


KINDS = sorted(calls(None))


class Interceptor:
    def __init__(self, held):
        self.held = held

    def on_send(self, record):
        self.held(record.value)
        return record

    def on_acknowledgement(self, metadata, error):
        pass


def options_of(kind, held):
    return {
        "serializer": {"value_serializer": held},
        "partitioner": {"partitioner": lambda key, *_: held(key) and None},
        "interceptor": {"interceptors": [Interceptor(held)]},
    }.get(kind.split()[0], {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("then", ["another begins", "none is open"])
def test_a_record_that_is_being_made_is_of_no_later_transaction(make, shared_broker, topic, kind, then):
    held = Held()
    producer = make(transactional_id=f"amid-{topic}", **options_of(kind, held))
    producer.begin_transaction()
    producer.send(topic, b"of the first")

    def end():
        producer.abort_transaction()
        if then == "another begins":
            producer.begin_transaction()

    (error,) = held.around(lambda: calls(held)[kind](producer, topic), end)
    assert isinstance(error, TransactionStateError)
    assert producer.metrics()["buffered_records"] == 0
    if then != "another begins":
        producer.begin_transaction()
    producer.send(topic, b"of the second")
    producer.commit_transaction()
    assert committed(shared_broker, topic) == [b"of the second"]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_being_made_is_not_taken_by_a_closed_producer(make, topic, kind, transactional):
    """It was taken, and waited for ever."""
    held = Held()
    producer = make(transactional_id=f"closed-{topic}" if transactional else None, **options_of(kind, held))
    if transactional:
        producer.begin_transaction()
    producer.send(topic, b"there")
    (error,) = held.around(lambda: calls(held)[kind](producer, topic), producer.close)
    assert isinstance(error, ClientClosed)
    assert "in the middle of the call" in str(error)
    metrics = producer.metrics()
    assert (metrics["buffered_records"], metrics["buffer_used_bytes"], metrics["batches_incomplete"]) == (0, 0, 0)


def test_many_records_of_a_loop_end_with_their_producer(shared_broker, topic):
    async def main():
        producer = AsyncProducer(bootstrap_servers=shared_broker.bootstrap_servers)
        await producer.send(topic, b"there")
        many = asyncio.ensure_future(producer.send_many(topic, [bytes(1000)] * 20_000))
        await asyncio.sleep(0)
        await producer.close(0)
        with pytest.raises(ClientClosed, match="in the middle of the call"):
            await asyncio.wait_for(many, 10)
        assert producer.metrics()["buffer_used_bytes"] == 0

    asyncio.run(main())


@pytest.mark.parametrize("failed", [AbortableTransactionError, TransactionFenced])
def test_what_waits_in_a_transaction_that_has_failed_is_told_at_once(shared_broker, topic, failed, caplog):
    """It waited for max_block_ms, and a flush or a close with it."""

    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            unheard = producer.send(topic, b"unheard")
            heard = asyncio.ensure_future(producer.send(topic, b"heard"))
            await asyncio.sleep(0.01)
            transactions = producer._parts.transactions
            transactions._fail(
                Action.FENCED if failed is TransactionFenced else Action.ABORT, FastqError("of the broker")
            )
            with pytest.raises(failed):
                await asyncio.wait_for(heard, 20)
            assert type(unheard.error) is failed
            await asyncio.wait_for(producer.flush(), 20)
            with pytest.raises(failed):
                await producer.commit_transaction()
        if failed is AbortableTransactionError:
            await producer.abort_transaction()

    run(main, shared_broker)
    assert ("1 record was not delivered" in caplog.text) == (failed is TransactionFenced)  # where no commit raised it


def test_one_that_is_refused_takes_those_that_wait_along(shared_broker, topic, make_topic):
    known = make_topic(shared_broker.bootstrap_servers, 1)

    async def main(producer):
        await producer.partitions_for(known)
        await producer.begin_transaction()
        with no_metadata(producer):
            other = producer.send(topic, b"waits")
            producer.send(known, b"x", partition=7)  # waits for metadata that knows it
            producer._places.of(known)[0].deadline = 0.0
            with pytest.raises(AbortableTransactionError):
                await asyncio.wait_for(producer.commit_transaction(), 20)
            assert isinstance(other.error, AbortableTransactionError)
            await producer.abort_transaction()

    run(main, shared_broker)


def test_a_send_of_another_thread_ends_with_its_transaction(make, topic):
    """It waited for its topic's metadata for max_block_ms all the same."""
    producer = make(transactional_id=f"ends-{topic}")
    producer.begin_transaction()
    with sent_by_another(producer, topic, b"x") as raised:
        producer.abort_transaction()
    assert [type(error) for error in raised] == [TransactionStateError]


@pytest.mark.parametrize("late", ["times out", "is refused"])
def test_a_record_of_the_transaction_before_fails_no_other(shared_broker, topic, caplog, late):
    """It failed the one that was open by then, or nobody was told."""

    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            entry = producer.send(topic, b"late")
            entry.transaction -= 1  # as if this was the next one
            if late == "times out":
                entry.deadline = 0.0
                producer._places._refuse(entry, producer._places._timed_out(entry))
            producer._places.pump()
            assert entry.settled
        producer._parts.core.request_metadata_update("it was held back")
        await producer.send(topic, b"of the second")
        await producer.commit_transaction()

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"of the second"]
    assert "1 record was not delivered" in caplog.text


def test_a_block_whose_commit_is_cancelled_while_it_waits_for_records_is_aborted(shared_broker, topic):
    """It was left open, and no other one could begin."""

    async def main(producer):
        async def block():
            async with producer.transaction():
                producer.send(topic, b"waits")

        with no_metadata(producer):
            task = asyncio.ensure_future(block())
            for _ in range(1000):
                if producer._waits and producer._places:
                    break
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert producer._parts.transactions.state is State.READY
        async with producer.transaction():
            await producer.send(topic, b"of the second")

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"of the second"]


def test_a_close_tells_what_waits_in_the_open_transaction(shared_broker, topic, caplog):
    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            sent = [producer.send(topic, b"unheard") for _ in range(2)]
            heard = asyncio.ensure_future(producer.send(topic, b"heard"))
            await asyncio.sleep(0)
            await producer.close()
            with pytest.raises(TransactionAborted):
                await heard
        assert all(isinstance(entry.error, TransactionAborted) for entry in sent)

    run(main, shared_broker)
    assert "2 records were not delivered: the producer was closed while its transaction was open" in caplog.text


def test_many_records_wait_for_their_turn_and_their_topic_within_one_time(shared_broker, topic):
    async def main(producer):
        await producer.begin_transaction()
        with no_metadata(producer):
            first = producer.send(topic, b"before")
            operation = producer._send_many(topic, [b"many"], None, None, None, None)
            assert next(operation).timeout_s == 60
            first.places._refuse(first, FastqError("of the test"))
            await producer.abort_transaction()
            await producer.begin_transaction()
            first = producer.send(topic, b"before")
            operation = producer._send_many(topic, [b"many"], None, None, None, None)
            next(operation)
            await asyncio.sleep(0.02)
            assert operation.send(True).timeout_s < 59.99
            operation.close()
            await producer.abort_transaction()

    run(main, shared_broker)


@pytest.mark.parametrize("then", ["commit", "abort"])
def test_a_commit_that_goes_through_while_it_is_called_again_is_told(make, topic, then):
    producer = make(transactional_id=f"amid-{topic}")
    producer.begin_transaction()
    producer.send(topic, b"there")
    with pytest.raises(TransactionTimeout, match="within 1e-06 s"):
        # As long as was asked for, and not what was left of it.
        producer.commit_transaction(1e-6)
    guard, transactions = producer._guard, producer._parts.transactions

    class Late:
        """The driver's lock, which the background thread has until the commit is through."""

        def __enter__(self):
            for _ in range(1000):
                if transactions.state is State.READY:
                    break
                time.sleep(0.01)
            return guard.__enter__()

        def __exit__(self, *error):
            return guard.__exit__(*error)

    producer._guard = Late()
    if then == "commit":
        producer.commit_transaction()
    else:
        with pytest.raises(TransactionStateError, match="the transaction is committed"):
            producer.abort_transaction()
    producer._guard = guard


@pytest.mark.parametrize("then", ["commit", "abort", "begin"])
def test_a_commit_that_goes_through_after_its_time_is_told_by_the_next_call(make, shared_broker, topic, then):
    """That was told that no transaction is open, and an abort that there was nothing to do: as if it had not been committed."""
    producer = make(transactional_id=f"unheard-{topic}", linger_ms=1)
    producer.begin_transaction()
    producer.send(topic, b"there")
    with pytest.raises(TransactionTimeout):
        producer.commit_transaction(0)
    for _ in range(1000):
        if producer._parts.transactions.state is State.READY:
            break
        time.sleep(0.01)
    if then == "begin":
        producer.begin_transaction()
        producer.abort_transaction()
    else:
        if then == "abort":
            for _ in range(2):
                with pytest.raises(TransactionStateError, match="the transaction is committed"):
                    producer.abort_transaction()
        producer.commit_transaction()
    with pytest.raises(TransactionStateError, match="no transaction is open"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert committed(shared_broker, topic) == [b"there"]


def test_a_commit_that_is_cancelled_and_goes_through_is_told_by_the_next_call(shared_broker, topic):
    async def main(producer):
        await producer.begin_transaction()
        await producer.send(topic, b"there")
        commit = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(0)
        commit.cancel()
        for _ in range(1000):
            if producer._parts.transactions.state is State.READY:
                break
            await asyncio.sleep(0.01)
        await producer.commit_transaction()

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"there"]


def test_an_abort_that_is_called_again_waits_for_the_new_producer_id(make, topic):
    producer = make(transactional_id=f"again-{topic}")
    transactions = producer._parts.transactions
    transactions.initialize()  # as it is where the coordinator had forgotten the old one
    producer.abort_transaction()
    assert transactions.state is State.READY


def test_a_block_that_waits_for_records_longer_than_it_may_is_aborted_and_says_so(shared_broker, topic):
    """It was left open, with the advice to call a commit again."""

    async def main(producer):
        with no_metadata(producer):
            with pytest.raises(AbortableTransactionError) as refused:
                async with producer.transaction():
                    producer.send(topic, b"waits")
                    producer._max_block_s = 0.5
            assert "1 record still waits for room or metadata" in str(refused.value)
            assert "It is aborted: do it again" in str(refused.value)
            assert "commit_transaction again" not in str(refused.value)
            producer._max_block_s = 60.0
        async with producer.transaction():
            await producer.send(topic, b"of the second")

    run(main, shared_broker)
    assert committed(shared_broker, topic) == [b"of the second"]


def test_a_commit_that_is_over_at_once_says_what_waits(make, topic, monkeypatch):
    producer = make(transactional_id=f"words-{topic}")
    producer.begin_transaction()
    with monkeypatch.context() as patch:
        patch.setattr(producer._parts.sender, "_drain", lambda now: None)  # it may be delivered by then otherwise
        producer.send(topic, b"x")
        with pytest.raises(TransactionTimeout, match="within 0 s: committing; 1 batch waits"):
            producer.commit_transaction(0)
    producer.commit_transaction()


def test_a_flush_that_is_over_at_once_says_what_waits(shared_broker, topic):
    async def main(producer):
        with no_metadata(producer):
            sent = producer.send(topic, b"x")
            with pytest.raises(WaitTimeout, match="1 record still waits for room or metadata after 0 s"):
                await producer.flush(0)
        producer._parts.core.request_metadata_update("it was held back")
        await sent

    run(main, shared_broker, transactional_id=None)
