"""What a collection does to native objects that it finds in a cycle: it empties them in any order, and only then frees them."""

import gc
import os

import pytest
from test_accumulator import Core

from fastq._native.flusher import SyncThreads
from fastq._native.heartbeat import HeartbeatThread, Progress


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
