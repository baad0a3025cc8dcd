"""How a pool ends: by a record that fails for good, or because it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from under_test import broker_under_test
from waiting import until

from fastq import AsyncConsumer, Consumer, Producer, TopicPartition
from fastq.consumer import AsyncConsumerPool, ConsumerPool, RetryPolicy
from fastq.errors import ConfigError, RecordFailed
from fastq.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with broker_under_test(config={"group.initial.rebalance.delay.ms": 0}, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, make_topic: Callable[..., str]) -> str:
    name = make_topic(broker.bootstrap_servers, 1)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(name, [b"%d" % number for number in range(300)])
    return name


def options(broker: Broker, topic: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": f"group-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_begun_after_a_failure(broker: Broker, topic: str, asynchronous: bool) -> None:
    """However long it takes until `run` hears of it: here the handlers leave the event loop, or the lock, to nobody."""
    begun: list[int] = []

    def fail(record: Any) -> None:
        begun.append(record.offset)
        raise RuntimeError("all are bad")

    async def fail_later(record: Any) -> None:
        fail(record)

    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:
            await AsyncConsumerPool(consumer, fail_later, workers=2, order="none").run()

    with pytest.raises(RecordFailed):
        if asynchronous:
            asyncio.run(main())
        else:
            with Consumer(topic, **options(broker, topic)) as consumer:
                ConsumerPool(consumer, fail, workers=2, order="none").run()
    assert 1 <= len(begun) <= 2


def test_a_record_that_fails_while_the_pool_ends_keeps_its_other_attempts(broker: Broker, topic: str) -> None:
    """It is read again, and not skipped or set aside for what was only its first attempt."""
    pool: ConsumerPool

    def fail_late(record: Any) -> None:
        pool.stop()
        until(lambda: pool._closing)  # that is, beyond drain_timeout
        raise RuntimeError("the first time only")

    with Consumer(topic, **options(broker, topic)) as consumer:
        retry = RetryPolicy(attempts=3, backoff_ms=1, skip=True)
        pool = ConsumerPool(consumer, fail_late, workers=1, order="none", retry=retry, drain_timeout=0.5)
        pool.run()
        assert (pool.finished, pool.failed) == (0, 0)
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)] is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_pool_runs_once(broker: Broker, topic: str, asynchronous: bool) -> None:
    """A second run took records, and no worker began with any: it went on so for ever, and what the first had begun was never done."""
    handled: list[int] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def handle_later(record: Any) -> None:
            handled.append(record.offset)
            begun.set()

        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:
            pool = AsyncConsumerPool(consumer, handle_later)
            running = asyncio.ensure_future(pool.run())
            await begun.wait()
            running.cancel()
            await asyncio.wait([running])
            await asyncio.wait_for(pool.run(), 30)

    with pytest.raises(ConfigError, match="a pool runs once"):
        if asynchronous:
            asyncio.run(main())
        else:
            with Consumer(topic, **options(broker, topic)) as consumer:
                pool = ConsumerPool(consumer, lambda record: handled.append(record.offset) or pool.stop())
                pool.run()
                pool.run()
    assert handled
