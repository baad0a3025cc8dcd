"""The accumulator where there is no memory: a batch is always open, in its queue, in flight or done, and counted once."""

import contextlib
import gc
import subprocess
import sys
import threading
from collections import deque

import pytest
from failing_allocations import AllocationsFail
from test_accumulator import Core

from fastq._native.producer_batch import IN_FLIGHT, READY
from fastq.compression import compress, decompress

SHORT = """
import itertools, resource, time
from fastq._native.accumulator import Accumulator
from fastq._native.producer_core import SyncProducerCore

class Core(SyncProducerCore):
    def _attend(self): pass

def split(room_bytes):
    accumulator = Accumulator(buffer_memory=64 << 20, batch_size=8 << 20, batch_size_max=8 << 20, max_request_size=32 << 20,
                              clock=time.monotonic, seed=1)
    topic, core = accumulator.update_topic("t", 1), Core(accumulator)
    deliveries = [core.send("t", b"x" * 3_000_000), core.send("t", b"y" * 3_000_000)]
    accumulator.close_all()
    batch = accumulator.take_head(topic.partitions[0])
    accumulator.requeue(batch)
    used = accumulator.pool.used_bytes
    now = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (now + room_bytes, resource.RLIM_INFINITY))
    try:
        accumulator.split(batch, None)
    except MemoryError:
        assert accumulator.pool.used_bytes == used and batch.children is None and list(topic.partitions[0].queue) == [batch]
        short = True
    else:
        short = False
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for each in list(accumulator.incomplete):
        accumulator.complete(each, ValueError("expired"))
    assert [str(each.exception(0)) for each in deliveries] == ["expired"] * 2
    return short

assert split(1 << 20) and split(5 << 20), "neither half has room, and only the first"
assert not split(64 << 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_split_for_which_there_is_no_memory_changes_nothing():
    subprocess.run([sys.executable, "-c", SHORT], check=True, timeout=60)


def test_a_batch_is_in_its_queue_or_in_flight_whichever_allocation_fails():
    outcomes = []
    for at in range(20):
        core = Core()
        delivery = core.send("t", b"x")
        core.accumulator.close_all()
        partition = core.topic.partitions[0]
        batch = partition.queue[0]
        try:
            with AllocationsFail(at):
                core.accumulator.take_head(partition)
        except MemoryError:
            pass
        taken = batch.state == IN_FLIGHT
        outcomes.append(taken)
        assert (list(partition.queue), partition.in_flight) == (([], [batch]) if taken else ([batch], []))
        assert core.accumulator.in_flight == taken
        assert core.accumulator.abort(ValueError("expired")) == 1
        assert str(delivery.exception(0)) == "expired" and core.accumulator.oldest() is None
    assert not all(outcomes) and outcomes[-1]


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_is_open_or_in_its_queue_whichever_allocation_fails(codec):
    failures = 0
    for count in range(28, 36):  # of batches in the queue: with one of them it asks for memory
        for at in range(6):
            core = Core(codec=codec, batch_records_max=1)
            deliveries = [core.send("t", b"x") for _ in range(count + 1)]
            partition = core.topic.partitions[0]
            batch = partition.open
            kept = [deque() for _ in range(100)]  # what Python keeps of queues that are gone
            try:
                with AllocationsFail(at, 0):
                    core.accumulator.close_all()
            except MemoryError:
                failures += at > 1  # not for the list of partitions
            assert (partition.open is batch) != (batch in partition.queue)
            assert (partition in core.accumulator.open_partitions) == (partition.open is batch)
            core.accumulator.close_all()
            core._attend()
            assert list(core.accumulator.incomplete) == list(partition.queue)
            assert {each.state for each in partition.queue} == {READY}
            assert partition in core.accumulator.ready
            core.accumulator.abort(ValueError("expired"))
            assert {str(each.exception(0)) for each in deliveries} == {"expired"}
            assert (core.accumulator.pool.used_bytes, core.accumulator.buffered_records) == (0, 0)
            del kept
    assert failures


def test_a_record_has_its_batch_among_those_without_a_fate_whichever_allocation_fails():
    outcomes = []
    for at in range(80):
        core, delivery = Core(), None
        try:
            with AllocationsFail(at):
                delivery = core.send("t", b"x")
        except MemoryError:
            pass
        outcomes.append(delivery is not None)
        partition = core.topic.partitions[0]
        opened = [] if partition.open is None else [partition.open]
        assert list(core.accumulator.incomplete) == opened
        assert list(core.accumulator.open_partitions) == [partition] * len(opened)
        core.accumulator.abort(ValueError("expired"))
        assert core.accumulator.pool.used_bytes == 0
    assert not all(outcomes) and outcomes[-1]


@pytest.mark.parametrize("at", range(3))
def test_a_partition_is_marked_ready_again_where_there_was_no_memory_for_it(at):
    core = Core(partitions=100)
    partitions = core.topic.partitions
    kept = [deque() for _ in range(100)]  # what Python keeps of queues that are gone
    with contextlib.suppress(MemoryError), AllocationsFail(at, 0):
        for partition in partitions:
            core.accumulator.mark_ready(partition)
    assert len(core.accumulator.ready) < len(partitions) and len(kept) == 100
    for partition in partitions:
        core.accumulator.mark_ready(partition)
    assert list(core.accumulator.ready) == partitions


def test_a_split_that_an_allocation_fails_in_changes_nothing():
    outcomes = []
    for at in range(1, 80):
        core = Core(batch_size=2000, batch_size_max=2000)
        deliveries = [core.send("t", b"%d" % i * 20) for i in range(100)]
        core.accumulator.close_all()
        partition = core.topic.partitions[0]
        before = list(partition.queue)
        batch = core.accumulator.take_head(partition)
        batch.stamp(3, 0, 7)
        data = b"".join(batch.buffers())
        core.accumulator.requeue(batch)
        used = core.accumulator.pool.used_bytes
        try:
            with AllocationsFail(at):
                core.accumulator.split(batch, None)
        except MemoryError:
            assert list(partition.queue) == before and list(core.accumulator.incomplete) == before
            assert batch.children is None and b"".join(batch.buffers()) == data
            assert core.accumulator.pool.used_bytes == used
        outcomes.append(batch.children is None)
        parts = [batch] if batch.children is None else batch.children
        assert list(partition.queue) == list(core.accumulator.incomplete) == [*parts, *before[1:]]
        core.accumulator.abort(ValueError("expired"))
        assert {str(each.exception(0)) for each in deliveries} == {"expired"}
        assert (core.accumulator.pool.used_bytes, core.accumulator.buffered_records) == (0, 0)
    assert any(outcomes) and not outcomes[-1]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a collection runs between instructions alone")
def test_a_half_that_is_being_compressed_when_the_split_fails_is_not_counted():
    """Whether a collection comes in between is the interpreter's: it is tried until one has."""
    assert any(_half_is_compressed_as_the_split_fails() for _ in range(100))


def _half_is_compressed_as_the_split_fails() -> bool:
    core = Core(codec=4)
    for _ in range(20):
        core.send("t", b"x" * 100)
    core.accumulator.close_all()
    core._attend()
    batch = core.accumulator.take_head(core.topic.partitions[0])
    used, compressing, go_on, threads = core.accumulator.pool.used_bytes, threading.Event(), threading.Event(), []

    def slow(codec, view):
        compressing.set()
        assert go_on.wait(10)
        return compress(codec, view)

    def collected(phase, info):
        """As what a collection ends may send, and another thread have its turn."""
        if core.accumulator.to_compress and not threads:
            threads.append(threading.Thread(target=core.accumulator.to_compress.popleft().compress, args=(slow,)))
            threads[0].start()
            assert compressing.wait(10)

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        with pytest.raises(ValueError):  # it is not in its queue
            core.accumulator.split(batch, lambda codec, data: decompress(codec, data, 1 << 20))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert core.accumulator.pool.used_bytes == used
    core.accumulator.abort(ValueError("expired"))
    assert core.accumulator.pool.used_bytes == 0
    return bool(threads)


def test_callbacks_for_which_there_is_no_memory_are_called_later_and_in_order():
    """A batch that was done was told to nobody: whose task awaited it waited for ever, and its callbacks did not run."""
    core, told = Core(partitions=200), []
    for index in range(200):
        delivery = core.send("t", b"x", partition=index)
        delivery.add_done_callback(lambda delivery: told.append(delivery.partition))
    batches = list(core.accumulator.incomplete)
    waiting = [1]
    batches[-1].add_waiter(waiting.clear)
    kept = [deque() for _ in range(100)]  # what Python keeps of queues that are gone
    for batch in batches:
        with AllocationsFail(0, 0):
            core.accumulator.complete(batch)
    assert not waiting and len(core.accumulator.callbacks) < len(batches) and len(kept) == 100
    core.accumulator.close_due(0.0, 1.0)
    assert list(core.accumulator.callbacks) == batches
    while core.accumulator.callbacks:
        for _, callback, argument in core.accumulator.callbacks.popleft().take_callbacks():
            callback(argument)
    assert told == list(range(200))


def test_a_batch_that_was_compressed_is_looked_at_however_little_memory_there_is():
    core = Core(partitions=200, codec=4)
    for index in range(200):
        core.send("t", b"x" * 100, partition=index)
    core.accumulator.close_all()
    payloads = [compress(4, b"y" * 50) for _ in range(200)]
    for payload in payloads:
        batch = core.accumulator.to_compress.popleft()

        def compressed(codec, view, payload=payload):
            return payload

        with contextlib.suppress(MemoryError), AllocationsFail(1, 0):
            batch.compress(compressed)
        assert batch.state == READY
    assert list(core.accumulator.ready) == core.topic.partitions
