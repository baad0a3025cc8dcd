"""The iterators of both consumers over fetched records: who waits, who is refused, what comes again."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable

import pytest
from consume_support import batch, drain, fetched, offsets

from fastq._native.consume import AsyncRecordIterator, Record, RecordIterator
from fastq.errors import ConcurrentModification, LoadingWouldBlock


def test_iterator_goes_from_chunk_to_chunk_and_may_be_detached() -> None:
    chunks = [fetched(batch(0)), fetched(batch(3))]
    asked = []

    def advance(chunk: object) -> object:
        asked.append(chunk)
        for candidate in chunks:
            if not candidate.exhausted:
                return candidate
        return None

    iterator = RecordIterator(advance)
    assert next(iterator).offset == 0
    iterator.detach()
    assert offsets(list(iterator)) == [1, 2, 3, 4, 5]
    assert asked == [None, None, chunks[0], chunks[1]]


def test_iterator_transform() -> None:
    iterator = RecordIterator(
        lambda chunk: fetched(batch(0)) if chunk is None else None,
        lambda record: None if record.offset == 1 else record.replace(value=1),
    )
    assert [(record.offset, record.value) for record in iterator] == [(0, 1), (2, 1)]


def async_iterator(chunks: list, delay_s: float = 0.0, transform: object = None) -> AsyncRecordIterator:
    async def advance(chunk: object) -> object:
        await asyncio.sleep(delay_s)
        return next((candidate for candidate in chunks if not candidate.exhausted), None)

    return AsyncRecordIterator(advance, transform)


def test_async_iterator_reads_all_and_lets_the_loop_run() -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        seen = [record.offset async for record in async_iterator([fetched(batch(0, 5000)), fetched(batch(5000, 10))])]
        task.cancel()
        assert seen == list(range(5010))
        assert turns >= 5

    asyncio.run(main())


def test_async_iterator_awaited_by_hand() -> None:
    async def main() -> None:
        iterator = async_iterator([fetched(batch(0))], 0.001)
        assert [(await anext(iterator)).offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)
        # Through a task: the awaitable is driven by other code than `async for`.
        iterator = async_iterator([fetched(batch(0))], 0.001)
        record = await asyncio.wait_for(asyncio.ensure_future(wrapped(iterator)), 1)
        assert record.offset == 0

    async def wrapped(iterator: AsyncRecordIterator) -> Record:
        return await iterator.__anext__()

    asyncio.run(main())


def test_cancelling_an_await_takes_no_record() -> None:
    async def main() -> None:
        chunks: list = []
        iterator = async_iterator(chunks, 0.002)

        async def read(count: int) -> list[int]:
            return [(await anext(iterator)).offset for _ in range(count)]

        chunks.append(fetched(batch(0)))
        for _ in range(3):
            task = asyncio.create_task(read(1))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await read(3) == [0, 1, 2]

    asyncio.run(main())


def test_async_iterator_errors() -> None:
    async def main() -> None:
        async def advance(chunk: object) -> object:
            await asyncio.sleep(0)
            raise ConnectionError("gone")

        iterator = AsyncRecordIterator(advance)
        for _ in range(2):
            with pytest.raises(ConnectionError, match="gone"):
                await anext(iterator)

        def transform(record: Record) -> Record | None:
            if record.offset == 1:
                raise ValueError("bad")
            return record

        iterator = async_iterator([fetched(batch(0))], transform=transform)
        assert (await anext(iterator)).offset == 0
        with pytest.raises(ValueError, match="bad"):
            await anext(iterator)
        assert (await anext(iterator)).offset == 2

    asyncio.run(main())


@pytest.mark.parametrize("codec", [0, 4])
def test_what_detaches_an_iterator_while_a_record_is_read_harms_nothing(codec: int) -> None:
    """`stop` of a signal handler or another thread, a pause or a seek of the deserializer itself: then the record has to come again."""
    chunk = fetched(batch(0, codec=codec))
    raised: list[BaseException] = []

    def transform(record: Record) -> Record:
        if not raised:
            iterator.detach()
            raised.append(LoadingWouldBlock("not loaded yet") if asynchronous else KeyboardInterrupt())
            raise raised[0]
        return record

    asynchronous = False
    iterator = RecordIterator(lambda _: None if chunk.exhausted else chunk, transform)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert offsets(list(iterator)) == [0, 1, 2]

    async def main() -> None:
        assert [record.offset async for record in iterator] == [0, 1, 2]

    asynchronous = True
    raised.clear()
    chunk = fetched(batch(0, codec=codec))
    iterator = async_iterator([chunk], transform=transform)
    asyncio.run(main())


@pytest.mark.parametrize("codec", [0, 4])
def test_a_record_comes_not_again_behind_those_that_were_taken_since(codec: int) -> None:
    """A deserializer that takes records itself, up to the end of the batch, which is freed then."""
    chunk = fetched(batch(0, codec=codec))

    def transform(record: Record) -> Record:
        assert offsets(drain(chunk)) == [1, 2]
        raise KeyboardInterrupt

    iterator = RecordIterator(lambda _: None if chunk.exhausted else chunk, transform)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert drain(chunk) == [] and chunk.position == 3


def test_two_tasks_do_not_wait_for_one_iterator() -> None:
    async def run() -> None:
        waiting = asyncio.Event()

        async def advance(chunk: object) -> object:
            waiting.set()
            await asyncio.get_running_loop().create_future()

        iterator = AsyncRecordIterator(advance)
        first = asyncio.create_task(anext_of(iterator))
        await waiting.wait()
        for other in (anext_of(iterator), all_of(iterator)):
            with pytest.raises(ConcurrentModification, match="another task waits"):
                await other
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        again = asyncio.create_task(anext_of(iterator))
        await asyncio.sleep(0)
        assert not again.done()
        again.cancel()

    asyncio.run(run())


def test_anext_with_a_default_waits_over_several_turns() -> None:
    """The interpreter asks for the iterator of its awaitable at each of its resumptions."""

    async def run() -> None:
        chunks = [fetched(batch(0))]
        iterator = async_iterator(chunks, 0.001)
        seen = [await anext(iterator, None) for _ in range(4)]
        assert [None if record is None else record.offset for record in seen] == [0, 1, 2, None]
        waiting = asyncio.create_task(default_of(iterator))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentModification, match="another task waits"):
            await default_of(iterator)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        chunks.append(fetched(batch(3)))
        record = await anext(iterator, None)
        assert record is not None and record.offset == 3

    asyncio.run(run())


def test_two_awaitables_of_one_iterator_are_not_awaited_by_two_tasks() -> None:
    async def run() -> None:
        iterator = async_iterator([fetched(batch(0))], 0.001)
        both = [of(anext(iterator)) for _ in range(2)]
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(first, Record) and first.offset == 0
        assert isinstance(second, ConcurrentModification)
        assert (await anext(iterator)).offset == 1

    asyncio.run(run())


def test_records_that_are_gathered_are_one_each() -> None:
    async def run() -> None:
        iterator = async_iterator([fetched(batch(0)), fetched(batch(3))])
        assert (await anext(iterator)).offset == 0
        both = await asyncio.gather(anext(iterator), anext(iterator))
        assert offsets(both) == [1, 2]
        anext(iterator)  # which nobody awaits
        assert [record.offset async for record in iterator] == [3, 4, 5]

    asyncio.run(run())


TASK_UNKNOWN = """
import asyncio
from fastq._native.consume import AsyncRecordIterator

known, failures = asyncio.current_task, [1]

def current_task():
    if failures:
        failures.pop()
        raise MemoryError
    return known()

asyncio.current_task = current_task

async def advance(chunk):
    return None

async def main():
    iterator = AsyncRecordIterator(advance)
    try:
        await anext(iterator)
    except MemoryError:
        pass
    else:
        raise SystemExit("it was not asked which task waits")
    assert await anext(iterator, None) is None

asyncio.run(main())
"""


def test_an_error_before_anything_is_waited_for_leaves_the_iterator_to_the_next() -> None:
    subprocess.run([sys.executable, "-c", TASK_UNKNOWN], check=True, timeout=60)


async def of(awaitable: Awaitable[object]) -> object:
    return await awaitable


async def default_of(iterator: AsyncRecordIterator) -> object:
    return await anext(iterator, None)


async def anext_of(iterator: AsyncRecordIterator) -> object:
    return await iterator.__anext__()


async def all_of(iterator: AsyncRecordIterator) -> list:
    return [record async for record in iterator]
