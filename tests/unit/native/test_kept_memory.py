"""Large blocks that are kept for the next taker: bounded, never handed to two, from any thread, and through a fork."""

from __future__ import annotations

import contextlib
import os
import random
import threading

import pyarrow as pa
import pytest
from consume_support import fetched

from fastq._native.columns import ConsumerBatch
from fastq._native.kept_memory import KeptBuffer, kept
from fastq._native.records import build_batch

KEPT_BYTES_MAX, KEPT_BLOCKS_MAX = 32 << 20, 64


def test_sizes_that_no_buffer_has() -> None:
    with pytest.raises(ValueError, match="0 bytes or more, got -1"):
        KeptBuffer(-1)
    for size in (1 << 62, (1 << 63) - 1):
        with pytest.raises(MemoryError, match=str(size)):
            KeptBuffer(size)
    assert len(KeptBuffer(0)) == 0 and bytes(KeptBuffer(0)) == b""


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 1 << 20, (16 << 20) - 1, 16 << 20, (16 << 20) + 1])
def test_all_of_a_buffer_can_be_written(size: int) -> None:
    view = memoryview(KeptBuffer(size))
    assert len(view) == size and not view.readonly
    view[0], view[-1] = 1, 2
    view[:] = bytes(size)
    assert view.tobytes() == bytes(size)


def test_a_view_keeps_its_memory() -> None:
    view = memoryview(KeptBuffer(1 << 20))[10:20]
    view[:] = b"0123456789"
    others = [memoryview(KeptBuffer(1 << 20)) for _ in range(4)]
    for other in others:
        other[:] = bytes(len(other))
    assert bytes(view) == b"0123456789"


@pytest.mark.parametrize("seed", range(5))
def test_no_two_have_the_same_memory_and_what_is_kept_is_bounded(seed: int) -> None:
    source = random.Random(seed)
    alive: dict[int, memoryview] = {}
    for number in range(2_000):
        if len(alive) > 8 or (alive and source.random() < 0.5):
            name = source.choice(list(alive))
            view = alive.pop(name)
            mark = name.to_bytes(8, "little")
            assert view[:8] == mark and view[-8:] == mark and view[len(view) // 2 :][:8] == mark
            del view
        else:
            size = int(2 ** source.uniform(5, 24.2))
            view = memoryview(KeptBuffer(size))
            mark = number.to_bytes(8, "little")
            view[len(view) // 2 :][:8] = mark
            view[:8] = view[-8:] = mark
            alive[number] = view
        blocks, size_bytes = kept()
        assert blocks <= KEPT_BLOCKS_MAX and size_bytes <= KEPT_BYTES_MAX


def test_many_small_blocks_push_the_oldest_out() -> None:
    alive = [KeptBuffer(70_000) for _ in range(200)]
    alive.clear()
    blocks, size_bytes = kept()
    assert blocks <= KEPT_BLOCKS_MAX and size_bytes <= KEPT_BYTES_MAX


def test_threads_take_and_give() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        source = random.Random(seed)
        mine: list[memoryview] = []
        for _ in range(400):
            view = memoryview(KeptBuffer(source.choice([70_000, 200_000, 1 << 20])))
            view[:1] = view[-1:] = bytes([seed])
            mine.append(view)
            if len(mine) > 3:
                given = mine.pop(source.randrange(4))
                if given[0] != seed or given[-1] != seed:
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_table_may_be_dropped_by_another_thread() -> None:
    """Arrow gives memory back where its last owner goes, without the GIL."""
    rows = [(1_700_000_000_000 + number, b"key-%d" % number, b"v" * 900, []) for number in range(200)]
    batch = ConsumerBatch()
    batch.add(fetched(bytes(build_batch(rows)), 0))
    tables = [pa.table(batch.to_arrow()) for _ in range(50)]
    kept_one = tables.pop()
    first = kept_one.to_pylist()

    def drop() -> None:
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                tables.pop()

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        view = memoryview(KeptBuffer(200_000))
        view[:] = b"\xff" * len(view)
    for thread in threads:
        thread.join()
    assert kept_one.to_pylist() == first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks only where there is fork")
def test_a_forks_child_goes_on() -> None:
    alive = [KeptBuffer(100_000) for _ in range(4)]
    alive.clear()
    child = os.fork()
    if child == 0:
        view = memoryview(KeptBuffer(100_000))
        view[:] = bytes(len(view))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
