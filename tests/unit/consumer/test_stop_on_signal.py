"""Signals that stop something: what becomes of their handlers, and of what waits."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_fakes import SocketCluster

from fastq import AsyncConsumer, Consumer
from fastq.consumer.interrupts import StopOnSignal


def test_a_signal_that_cannot_be_handled_leaves_the_others_as_they_were() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(OSError), StopOnSignal(object(), (signal.SIGUSR1, signal.SIGKILL)):
        raise AssertionError("it is not entered")
    assert signal.getsignal(signal.SIGUSR1) == before


class Silent(SocketCluster):
    """It says where logs end when the test is over. `asked`: somebody wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.over = threading.Event(), threading.Event()

    def _list_offsets(self, node: int, request: Any, version: int) -> Any:
        self.asked.set()
        self.over.wait(60)
        return super()._list_offsets(node, request, version)


@pytest.fixture
def silent() -> Iterator[Silent]:
    cluster = Silent()
    cluster.create("logs")
    yield cluster
    cluster.over.set()
    cluster.close()


def nobody(silent: Silent) -> tuple[dict[str, Any], Callable[[], object]]:
    """A group cannot be joined as there is no broker; and when it is to be stopped."""
    return {"bootstrap_servers": "127.0.0.1:1", "group_id": "g"}, lambda: threading.Event().wait(0.2)


def no_ends(silent: Silent) -> tuple[dict[str, Any], Callable[[], object]]:
    """It is known what is read, but not up to where."""
    return {"bootstrap_servers": silent.bootstrap}, silent.asked.wait


@pytest.mark.parametrize("waits_for", [nobody, no_ends])
def test_reading_to_the_end_ends_at_once_when_it_is_stopped(silent: Silent, waits_for: Any) -> None:
    """`stop` has iterators end; these had not begun yet, and what was waited for was told as a time-out."""
    given, stopping = waits_for(silent)
    with Consumer("logs", **given) as consumer:

        def stop() -> None:
            stopping()
            consumer.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        assert list(consumer.read_to_end()) == []
        assert list(consumer.read_batches_to_end()) == []
        thread.join()
        silent.over.set()


@pytest.mark.parametrize("waits_for", [nobody, no_ends])
def test_so_it_does_with_asyncio(silent: Silent, waits_for: Any) -> None:
    given, stopping = waits_for(silent)

    async def main() -> None:
        async with AsyncConsumer("logs", **given) as consumer:

            async def stop() -> None:
                await asyncio.to_thread(stopping)
                consumer.stop()

            task = asyncio.create_task(stop())
            assert [record async for record in await consumer.read_to_end()] == []
            assert [batch async for batch in await consumer.read_batches_to_end()] == []
            await task
            silent.over.set()

    asyncio.run(asyncio.wait_for(main(), 30))
