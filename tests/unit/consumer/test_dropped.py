"""A consumer that nobody has any more is closed, as one that a notebook's cell replaces when it is run again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from consumer_fakes import SocketCluster

from fastq import AsyncConsumer, Consumer


@pytest.fixture
def cluster() -> Iterator[SocketCluster]:
    made = SocketCluster()
    for log in made.create("logs", 2):
        log.append([(b"k", b"v")] * 50)
    yield made
    made.close()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing but the last reference's end frees anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def options(cluster: SocketCluster) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap, "auto_offset_reset": "earliest"}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("use", ["new", "poll", "iterate", "to the end", "batches", "interceptor"])
def test_the_last_reference_closes_it(cluster: SocketCluster, use: str) -> None:
    class Interceptor:
        def on_consume(self, records: Any) -> None:
            pass

        def on_idle(self) -> None:
            pass

    consumer: Any = Consumer("logs", **options(cluster), interceptors=[Interceptor()] if use == "interceptor" else ())
    if use == "poll":
        consumer.poll(timeout=10)
    elif use in ("iterate", "interceptor"):
        for _ in consumer:
            break
    elif use == "to the end":
        assert len(list(consumer.read_to_end())) == 100
    elif use == "batches":
        assert sum(map(len, consumer.read_batches_to_end())) == 100
    driver, there = consumer._driver, weakref.ref(consumer)
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del consumer
        assert there() is None
    assert driver._closed


@pytest.mark.usefixtures("no_collection")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_iterator_keeps_its_consumer(cluster: SocketCluster) -> None:
    iterator = iter(Consumer("logs", **options(cluster)))
    assert [next(iterator).offset for _ in range(10)]
    records = Consumer("logs", **options(cluster)).read_to_end()
    assert len(list(records)) == 100
    consumer = Consumer("logs", **options(cluster))
    kept = iter(consumer)
    assert iter(consumer) is kept
    first = [next(iter(consumer)) for _ in range(3)]
    assert len({(record.partition, record.offset) for record in first}) == 3
    consumer.close()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_asyncio(cluster: SocketCluster) -> None:
    async def main() -> None:
        consumer: Any = AsyncConsumer("logs", **options(cluster))
        async for _ in consumer:
            break
        await consumer.poll(timeout=5)
        for _ in range(20):
            await asyncio.sleep(0.01)
        driver = consumer._driver
        del consumer
        for _ in range(200):
            await asyncio.sleep(0.01)
            if driver._closed:
                break
        assert driver._closed

    asyncio.run(main())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_what_was_never_made_is_not_closed() -> None:
    with pytest.raises(Exception, match="unknown configuration key"):
        Consumer("logs", nonsense=1)  # type: ignore[call-overload]
    gc.collect()
