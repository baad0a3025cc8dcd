"""Seeded sequences of what a program may do with an asyncio producer's transactions while metadata comes late and the buffer is short.

The model: a transaction that is committed has exactly the records that were sent in it and not cancelled, in the order of the calls, and
none of them failed; one that is aborted has none; everybody gets an answer; nothing is left in the buffer.
"""

import asyncio
import contextlib
from random import Random

import pytest
from waiting_bench import committed, run

from fastq.errors import AbortableTransactionError, FastqError, TransactionError, TransactionTimeout
from fastq.producer.transaction_states import State

STEPS = 120
ERRORS = (FastqError, TypeError)


class Sent:
    """One send: what the test did with it, and what became of it."""

    def __init__(self, value, entry, task=None):
        self.value, self.entry, self.task = value, entry, task
        self.is_awaited = False

    async def wait(self):
        self.is_awaited = True
        return await self.entry

    async def answer(self):
        """The error of the record or None; asked for once its transaction is over, so it has to be there."""
        try:
            # A task that was cancelled before its first step has awaited nothing, so its record is sent as any other.
            delivery = await asyncio.wait_for(self.task if self.is_awaited else self.entry, 20)
            await asyncio.wait_for(delivery, 20)
        except asyncio.CancelledError:
            return asyncio.CancelledError()
        except ERRORS as error:
            return error
        return None


class Program:
    """A program that does one thing after another, and what ought to be committed by it."""

    def __init__(self, producer, topics, seed):
        self.producer, self.topics, self.random = producer, topics, Random(seed)
        self.held = set()  # topics whose metadata is not there yet
        sender = producer._parts.sender
        there = sender.topic_ready
        sender.topic_ready = lambda name, *asked: None if name in self.held else there(name, *asked)
        self.expected = {topic: [] for topic in topics}
        self.sent = []  # in the open transaction: (topic, Sent)
        self.number = 0
        self.refused = False

    @property
    def state(self):
        return self.producer._parts.transactions.state

    def hold(self):
        self.held.add(self.random.choice(self.topics))

    def release(self):
        self.held.clear()
        self.producer._parts.core.request_metadata_update("it was held back")

    def next_value(self):
        self.number += 1
        return b"%06d" % self.number + bytes(self.random.choice([0, 10, 300]))

    def send(self):
        topic = self.random.choice(self.topics)
        kind = self.random.random()
        value, extra = self.next_value(), {}
        if kind < 0.03:
            extra = {"partition": 9}  # which there is not
        elif kind < 0.06:
            value = "text"
        try:
            entry = self.producer.send(topic, value, **extra)
        except (*ERRORS, ValueError):
            return  # told by the call
        sent = Sent(value, entry)
        if self.random.random() < 0.5:
            sent.task = asyncio.ensure_future(sent.wait())
        self.sent.append((topic, sent))

    def cancel(self):
        tasks = [sent for _, sent in self.sent if sent.task is not None and not sent.task.done()]
        if tasks:
            sent = self.random.choice(tasks)
            sent.task.cancel()

    async def many(self):
        topic = self.random.choice(self.topics)
        values = [self.next_value() for _ in range(self.random.randrange(1, 8))]
        with contextlib.suppress(*ERRORS):
            many = asyncio.ensure_future(self.producer.send_many(topic, values))
            self.release()
            await asyncio.wait_for(many, 20)
            self.sent += [(topic, Sent(value, many)) for value in values]

    async def commit(self):
        while True:
            try:
                if self.random.random() < 0.3:
                    await self.producer.commit_transaction(0.001)
                elif self.random.random() < 0.3:
                    commit = asyncio.ensure_future(self.producer.commit_transaction())
                    await asyncio.sleep(0)
                    commit.cancel()
                    await commit
                else:
                    asyncio.get_running_loop().call_later(0.005, self.release)
                    await self.producer.commit_transaction()
            except (TransactionTimeout, asyncio.CancelledError):
                if self.state is State.READY:  # it was through before that was seen
                    break
                self.release()
            except AbortableTransactionError:
                await self.abort()
                return
            else:
                break
        await self.over(True)

    async def abort(self):
        while self.state is not State.READY:
            with contextlib.suppress(TransactionTimeout):
                await self.producer.abort_transaction(self.random.choice([None, 0.001]))
        await self.over(False)

    async def over(self, is_committed):
        """The transaction is over: look at what became of each of its records."""
        sent, self.sent = self.sent, []
        for topic, record in sent:
            error = await record.answer()
            if not is_committed:
                continue
            if error is None:
                self.expected[topic].append(record.value)
            else:  # somebody has heard of it
                assert record.is_awaited, f"committed without {record.value!r}: {error!r}"
                assert not isinstance(error, TransactionError), error

    async def step(self):
        if self.state is State.READY:
            await self.producer.begin_transaction()
        elif self.state is State.ABORTABLE_ERROR:
            with pytest.raises(AbortableTransactionError):
                await self.producer.commit_transaction()
            await self.abort()
            return
        kind = self.random.random()
        if kind < 0.06:
            await self.commit()
        elif kind < 0.1:
            await self.abort()
        elif kind < 0.14:
            await self.many()
        elif kind < 0.18:
            self.hold()
        elif kind < 0.24:
            self.release()
        elif kind < 0.34:
            self.cancel()
        elif kind < 0.44:
            await asyncio.sleep(self.random.choice([0, 0, 0.002]))
        else:
            self.send()


def numbers(values):
    return [int(value[:6]) for value in values]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_committed_is_what_was_sent_in_it(shared_broker, new_topic_name, seed):
    topics = [new_topic_name() for _ in range(3)]

    async def main(producer):
        await producer.init_transactions()
        program = Program(producer, topics, seed)
        program.held.update(topics)
        for _ in range(STEPS):
            await program.step()
        if program.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            program.release()
            await program.abort()
        metrics = producer.metrics()
        assert not producer._places
        assert (metrics["buffered_records"], metrics["batches_incomplete"], metrics["buffer_used_bytes"]) == (0, 0, 0)
        return program.expected

    options = {
        "linger_ms": seed % 3,
        "batch_size": 512,
        "buffer_memory": 1 << 15,
        "transactional_id": f"sequence-{seed}",
    }
    expected = run(main, shared_broker, **options)
    for topic in topics:
        assert numbers(committed(shared_broker, topic)) == numbers(expected[topic]), topic
