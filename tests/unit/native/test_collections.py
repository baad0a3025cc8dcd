"""What a collection does to native objects that it finds in a cycle: it empties them in any order, and only then frees them."""

import gc
import os
import socket

import pytest
from test_accumulator import Core

from fastq._native.flusher import SyncThreads
from fastq._native.heartbeat import HeartbeatThread, Progress, supported


def heartbeat():
    progress = Progress()
    return [progress, HeartbeatThread(progress)]


@pytest.mark.parametrize("make", [heartbeat, SyncThreads], ids=["heartbeat", "sync threads"])
def test_threads_end_before_what_they_use_is_freed(make):
    before = set(os.listdir("/proc/self/task"))
    for _ in range(10):
        cycle = [make()]
        cycle.append(cycle)
        del cycle
    gc.collect()
    left = set(os.listdir("/proc/self/task")) - before
    assert len(left) < 10, "other tests' libraries have threads that come and go; one of each of ours would be ten"


def test_a_heartbeat_thread_is_in_no_book_of_the_collector():
    """What is in them may be emptied before it is freed: the thread would then read a cell that was freed under it."""
    if not supported():
        pytest.skip("this platform has no native heartbeat thread")
    assert not gc.is_tracked(HeartbeatThread(Progress()))


def test_armed_threads_end_before_what_they_read_is_freed():
    """Each looks for signs of life all the time. For the sanitizers, which see a read of what is freed: what lies between the two is freed
    slowly, and nothing in it is in the collector's books either."""
    if not supported():
        pytest.skip("this platform has no native heartbeat thread")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(8):
            progress, thread = heartbeat()
            thread.connect_to("127.0.0.1", server.getsockname()[1])
            thread.arm(1, bytes(18), error_at=8, interval_ms=60_000, timeout_ms=50, poll_limit_ms=20, leave=bytes(18))
            slow = tuple(bytes(100) for _ in range(20_000))
            gc.collect()
            assert not gc.is_tracked(slow)
            cycle = [thread, slow, progress]
            cycle.append(cycle)
            del cycle, slow, progress, thread
            gc.collect()


@pytest.mark.parametrize("made", ["before the accumulator", "before the batch", "last"])
def test_a_view_may_outlive_its_emptied_batch(made):
    """The collector empties in the order in which things were made: a view goes when the list that has it is emptied."""
    lists = []
    if made == "before the accumulator":
        lists.append([])
    core = Core()
    if made == "before the batch":
        lists.append([])
    core.send("t", b"x" * 100)
    core.accumulator.close_all()
    batch = core.accumulator.take_head(core.topic.partitions[0])
    batch.stamp(1, 0, 0)
    if made == "last":
        lists.append([])
    cycle = lists.pop()
    cycle += [memoryview(part) for part in batch.buffers()]
    cycle += [cycle, batch]
    core.accumulator.complete(batch, None, 0)
    core.accumulator.ready.clear()
    del cycle, batch, core
    gc.collect()
