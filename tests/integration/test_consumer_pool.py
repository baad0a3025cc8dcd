"""Pools over a broker: order, commits without gaps, retries, dead letters, rebalances, the end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from under_test import broker_under_test
from waiting import until

from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from fastq.consumer import AsyncConsumerPool, ConsumerPool, RetryPolicy
from fastq.errors import ConfigError, RecordFailed
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.any_nodes

COUNT = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker | Cluster]:
    config = {"group.initial.rebalance.delay.ms": 0, "group.consumer.min.assignment.interval.ms": 0}
    with broker_under_test(config=config, in_memory=True) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, make_topic: Callable[..., str]) -> str:
    """COUNT records in three partitions, of ten keys."""
    name = make_topic(broker.bootstrap_servers, 3)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number, key=b"key-%d" % (number % 10))
    return name


def options(broker: Broker, topic: str, **more: Any) -> dict[str, Any]:
    given = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": f"group-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    return {**given, **more}


def committed(broker: Broker, topic: str) -> int:
    """How many records of the topic are committed."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=f"group-{topic}") as consumer:
        found = consumer.committed([TopicPartition(topic, index) for index in range(3)])
    return sum(place.offset for place in found.values() if place is not None)


class Seen:
    """What handlers saw, by key, and how many were at work at once."""

    def __init__(self) -> None:
        self.by_key: defaultdict[Any, list[int]] = defaultdict(list)
        self.count = 0
        self.lock = threading.Lock()
        self.busy: set[Any] = set()

    def begin(self, record: Any) -> None:
        with self.lock:
            assert record.key not in self.busy, "two of one key at once"
            self.busy.add(record.key)

    def end(self, record: Any) -> int:
        with self.lock:
            self.busy.discard(record.key)
            self.by_key[record.key].append(int(record.value))
            self.count += 1
            return self.count

    def check(self) -> None:
        assert sum(map(len, self.by_key.values())) == COUNT
        assert all(numbers == sorted(numbers) for numbers in self.by_key.values())


def test_threads_keep_the_order_of_keys_and_commit_all(broker: Broker, topic: str) -> None:
    seen = Seen()

    def handle(record: Any) -> None:
        seen.begin(record)
        time.sleep(0.001)
        if seen.end(record) == COUNT:
            pool.stop()

    with Consumer(topic, **options(broker, topic)) as consumer:
        pool = ConsumerPool(consumer, handle, workers=8, pending_max=20)
        pool.run()
        assert (pool.finished, pool.pending) == (COUNT, 0)
        assert consumer.paused() == []
        assert consumer.poll(timeout=0) == []  # a stop leaves no wake-up behind
    seen.check()
    assert committed(broker, topic) == COUNT


def test_tasks_do_the_same(broker: Broker, topic: str) -> None:
    seen = Seen()

    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:

            async def handle(record: Any) -> None:
                seen.begin(record)
                await asyncio.sleep(0.001)
                if seen.end(record) == COUNT:
                    pool.stop()

            pool = AsyncConsumerPool(consumer, handle, pending_max=20)
            await pool.run()
            assert (pool.finished, pool.pending) == (COUNT, 0)

    asyncio.run(main())
    seen.check()
    assert committed(broker, topic) == COUNT


def test_retries_and_dead_letters(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    tries: defaultdict[int, int] = defaultdict(int)
    policy = RetryPolicy(attempts=3, backoff_ms=1, backoff_max_ms=5, dead_letter_topic="{topic}-dead")

    def handle(record: Any) -> None:
        number = int(record.value)
        tries[number] += 1
        if number % 50 == 7 or (number % 10 == 3 and tries[number] < 3):
            raise RuntimeError(f"cannot do {number}")
        seen.end(record)
        if seen.count == COUNT - 6:
            pool.stop()

    with (
        Consumer(topic, **options(broker, topic)) as consumer,
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        pool = ConsumerPool(consumer, handle, retry=policy, producer=producer)
        pool.run()
        assert pool.failed == 6
    (told,) = (line for line in caplog.messages if "set aside" in line)
    assert told.startswith(f"{topic}-") and "RuntimeError('cannot do " in told
    assert committed(broker, topic) == COUNT
    assert all(tries[n] == (3 if n % 50 == 7 or n % 10 == 3 else 1) for n in range(COUNT))
    assert all(numbers == sorted(numbers) for numbers in seen.by_key.values())
    dead = Consumer(
        f"{topic}-dead",
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        on_deserialization_error="raw",
    )
    with dead:
        letters = list(dead.read_to_end())
    assert sorted(int(letter.value) for letter in letters) == [7, 57, 107, 157, 207, 257]
    headers = dict(letters[0].headers)
    assert headers["dead-letter.topic"] == topic.encode()
    assert headers["dead-letter.error-message"] == b"cannot do %s" % letters[0].value
    assert headers["dead-letter.attempts"] == b"3"


def test_dead_letters_of_tasks(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = RetryPolicy(attempts=2, backoff_ms=1, backoff_max_ms=5, dead_letter_topic=f"{topic}-dead")

    async def main() -> None:
        async with (
            AsyncConsumer(topic, **options(broker, topic)) as consumer,
            AsyncProducer(bootstrap_servers=broker.bootstrap_servers) as producer,
        ):

            async def handle(record: Any) -> None:
                if int(record.value) == 5:
                    raise ValueError("five")
                if pool.finished + 1 >= COUNT:
                    pool.stop()

            pool = AsyncConsumerPool(consumer, handle, retry=policy, producer=producer)
            await pool.run()
            assert pool.failed == 1

    asyncio.run(main())
    (told,) = (line for line in caplog.messages if "set aside" in line)
    assert told.startswith(f"{topic}-") and told.endswith(f"in {topic}-dead after 2 attempts: ValueError('five')")
    assert committed(broker, topic) == COUNT


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_ends_the_pool_and_is_not_committed(broker: Broker, topic: str, asynchronous: bool) -> None:
    def fail(record: Any) -> None:
        if record.offset == 20:
            raise RuntimeError("bad record")

    async def fail_later(record: Any) -> None:
        fail(record)

    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:
            await AsyncConsumerPool(consumer, fail_later, order="partition").run()

    with pytest.raises(RecordFailed, match="at offset 20") as caught:
        if asynchronous:
            asyncio.run(main())
        else:
            with Consumer(topic, **options(broker, topic)) as consumer:
                ConsumerPool(consumer, fail, order="partition").run()
    assert isinstance(caught.value.__cause__, RuntimeError)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=f"group-{topic}") as consumer:
        assert caught.value.partition is not None
        tp = TopicPartition(topic, caught.value.partition)
        place = consumer.committed([tp])[tp]
        assert place is None or place.offset == 20


def test_what_a_handler_awaits_and_what_is_cancelled_is_a_failure_of_its_record(broker: Broker, topic: str) -> None:
    """Workers do not end by it: there are more of such records than workers. Where no task says whether it is cancelled itself, in Python
    3.10, the pool ends instead."""
    tries = 0
    known = sys.version_info >= (3, 11)

    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:

            async def handle(record: Any) -> None:
                nonlocal tries
                if record.offset < 5:
                    tries += 1
                    others = asyncio.get_running_loop().create_future()
                    others.cancel()
                    await others
                if pool.finished + 2 > COUNT:
                    pool.stop()

            policy = RetryPolicy(attempts=2, backoff_ms=1, skip=True)
            pool = AsyncConsumerPool(consumer, handle, workers=2, order="partition", retry=policy)
            await asyncio.wait_for(pool.run(), 30)
            assert (pool.finished, pool.failed, pool.pending) == (COUNT, 15, 0)

    with contextlib.nullcontext() if known else pytest.raises(RecordFailed):
        asyncio.run(main())
    assert tries == 30 or not known
    assert committed(broker, topic) == COUNT or not known


def test_a_worker_that_somebody_cancels_ends_the_pool(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:

            async def handle(record: Any) -> None:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

            policy = RetryPolicy(attempts=3, skip=True)
            await asyncio.wait_for(AsyncConsumerPool(consumer, handle, retry=policy).run(), 30)

    with pytest.raises(RecordFailed) as caught:
        asyncio.run(main())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert committed(broker, topic) == 0


PROTOCOLS: dict[str, dict[str, Any]] = {
    # Heartbeats so close that it is heard of while there are records.
    "classic": {
        "group_protocol": "classic",
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval_ms": 100,
    },
    "consumer": {"group_protocol": "consumer"},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rebalance_commits_what_has_begun(broker: Broker, topic: str, protocol: str) -> None:
    seen: list[tuple[int, int]] = []
    uneven = Uneven()
    pools: list[ConsumerPool] = []
    lock = threading.Lock()

    def handle(record: Any) -> None:
        time.sleep(uneven(record))
        with lock:
            seen.append((record.partition, record.offset))
            if len(set(seen)) == COUNT:
                for pool in pools:
                    pool.stop()

    def work() -> None:
        with Consumer(topic, **options(broker, topic, max_poll_records=10, **PROTOCOLS[protocol])) as consumer:
            pool = ConsumerPool(consumer, handle, workers=3, pending_max=30)
            pools.append(pool)
            pool.run()

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    while len({partition for partition, _ in list(seen)}) < 3:  # whichever is moved has begun
        time.sleep(0.01)
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    # What was in work when its partition went was finished and committed first, with what was passed over: nothing was done twice.
    assert len(seen) == len(set(seen)) == COUNT
    assert committed(broker, topic) == COUNT


class Uneven:
    """How long records take: one key of each partition is slow, so that others get ahead of it, which no commit can say."""

    def __init__(self) -> None:
        self.slow: dict[int, bytes] = {}

    def __call__(self, record: Any) -> float:
        return 0.03 if self.slow.setdefault(record.partition, record.key) == record.key else 0.005


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rebalance_of_tasks_commits_what_has_begun(broker: Broker, topic: str, protocol: str) -> None:
    seen: list[tuple[int, int]] = []
    uneven = Uneven()
    pools: list[AsyncConsumerPool] = []
    begun = asyncio.Event()

    async def handle(record: Any) -> None:
        await asyncio.sleep(uneven(record))
        seen.append((record.partition, record.offset))
        if len({partition for partition, _ in seen}) == 3:  # whichever is moved has begun
            begun.set()
        if len(set(seen)) == COUNT:
            for pool in pools:
                pool.stop()

    async def work() -> None:
        async with AsyncConsumer(
            topic, **options(broker, topic, max_poll_records=10, **PROTOCOLS[protocol])
        ) as consumer:
            pools.append(AsyncConsumerPool(consumer, handle, workers=3, pending_max=30))
            await pools[-1].run()

    async def main() -> None:
        first = asyncio.ensure_future(work())
        await begun.wait()
        await asyncio.wait_for(asyncio.gather(first, work()), 60)

    asyncio.run(main())
    assert len(seen) == len(set(seen)) == COUNT
    assert committed(broker, topic) == COUNT


def test_pools_that_make_no_sense(broker: Broker) -> None:
    auto = Consumer("t", bootstrap_servers=broker.bootstrap_servers, group_id="g")
    with auto, pytest.raises(ConfigError, match="enable_auto_commit=False"):
        ConsumerPool(auto, print)
    with Consumer("t", bootstrap_servers=broker.bootstrap_servers) as consumer:
        with pytest.raises(ValueError, match="workers"):
            ConsumerPool(consumer, print, workers=0)
        with pytest.raises(ValueError, match="pending_max"):
            ConsumerPool(consumer, print, pending_max=0)
        with pytest.raises(ValueError, match="order"):
            ConsumerPool(consumer, print, order="any")
        with pytest.raises(ValueError, match="needs a producer"):
            ConsumerPool(consumer, print, retry=RetryPolicy(dead_letter_topic="dead"))


def test_stopping_the_consumer_drains_its_pool(broker: Broker, topic: str) -> None:
    handled: list[int] = []

    def handle(record: Any) -> None:
        if len(handled) == 50:
            consumer.stop()
        handled.append(record.offset)
        time.sleep(0.001)

    with Consumer(topic, **options(broker, topic)) as consumer:
        ConsumerPool(consumer, handle, workers=2, pending_max=100).run()
    assert 50 < len(handled) <= COUNT
    assert committed(broker, topic) == len(handled)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_ends_of_transactions_leave_no_lag(
    broker: Broker, make_topic: Callable[..., str], asynchronous: bool
) -> None:
    """They have offsets, and no record that anybody could be done with."""
    name, handled = make_topic(broker.bootstrap_servers, 3), []
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name) as producer:
        for number in range(3):
            with producer.transaction():
                producer.send(name, b"%d" % number, partition=0)
        producer.begin_transaction()
        producer.send(name, b"never", partition=0)
        producer.flush()
        producer.abort_transaction()
    given = options(broker, name, isolation_level="read_committed")

    def handle(record: Any) -> None:
        handled.append(record.value)

    if asynchronous:

        async def work() -> None:
            async def handle_it(record: Any) -> None:
                handle(record)

            async with AsyncConsumer(name, **given) as consumer:
                pool = AsyncConsumerPool(consumer, handle_it, commit_interval_ms=10)
                running = asyncio.create_task(pool.run())
                await asyncio.to_thread(until, lambda: committed(broker, name) >= 8)
                pool.stop()
                await running

        asyncio.run(asyncio.wait_for(work(), 60))
    else:
        with Consumer(name, **given) as consumer:
            pool = ConsumerPool(consumer, handle, commit_interval_ms=10)
            thread = threading.Thread(target=pool.run)
            thread.start()
            until(lambda: committed(broker, name) >= 8)
            pool.stop()
            thread.join()
    assert handled == [b"0", b"1", b"2"] and committed(broker, name) == 8


# -- handlers that a pool cannot run


def test_a_coroutine_function_is_refused_before_anything_is_read(broker: Broker, topic: str) -> None:
    async def later(record: Any) -> None: ...

    async def each(record: Any) -> Any:
        yield record

    with Consumer(topic, **options(broker, topic)) as consumer, pytest.raises(ConfigError, match="AsyncConsumerPool"):
        ConsumerPool(consumer, later)  # type: ignore[arg-type]
    with Consumer(topic, **options(broker, topic)) as consumer, pytest.raises(ConfigError, match="got None"):
        ConsumerPool(consumer, None)  # type: ignore[arg-type]

    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:
            with pytest.raises(ConfigError, match="ConsumerPool"):
                AsyncConsumerPool(consumer, each)  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_handler_that_hides_what_it_is_ends_the_pool_and_commits_nothing(
    broker: Broker, topic: str, asynchronous: bool
) -> None:
    async def later(record: Any) -> None: ...

    policy = RetryPolicy(attempts=3, skip=True)

    async def main() -> None:
        async with AsyncConsumer(topic, **options(broker, topic)) as consumer:
            await AsyncConsumerPool(consumer, print, retry=policy).run()  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="cannot be awaited" if asynchronous else "was not done when it returned"):
        if asynchronous:
            asyncio.run(main())
        else:
            with Consumer(topic, **options(broker, topic)) as consumer:
                ConsumerPool(consumer, lambda record: later(record), retry=policy).run()  # type: ignore[arg-type,return-value]
    assert committed(broker, topic) == 0


# -- records that cannot be read


def broken_every_hundred(data: bytes) -> int:
    number = int(data)
    if number % 100 == 0:
        raise ValueError(f"no number: {number}")
    return number


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_cannot_be_read_goes_to_the_dead_letter_topic_as_its_bytes(
    broker: Broker, topic: str, asynchronous: bool
) -> None:
    """So does what a handler could not do, although it saw an object; the producer's serializer is not asked."""
    policy = RetryPolicy(attempts=2, backoff_ms=1, dead_letter_topic=f"{topic}-dead")
    given = options(broker, topic, value_deserializer=broken_every_hundred)
    sender = {"bootstrap_servers": broker.bootstrap_servers, "value_serializer": "json", "key_serializer": "json"}
    seen: list[int] = []

    def handle(record: Any) -> None:
        assert isinstance(record.value, int)
        if record.value == 7:
            raise RuntimeError("seven")
        seen.append(record.value)
        if len(seen) == COUNT - 4:
            pool.stop()

    async def handle_later(record: Any) -> None:
        handle(record)

    pool: Any = None

    async def main() -> None:
        nonlocal pool
        async with AsyncConsumer(topic, **given) as consumer, AsyncProducer(**sender) as producer:
            pool = AsyncConsumerPool(consumer, handle_later, retry=policy, producer=producer)
            await pool.run()

    if asynchronous:
        asyncio.run(main())
    else:
        with Consumer(topic, **given) as consumer, Producer(**sender) as producer:
            pool = ConsumerPool(consumer, handle, retry=policy, producer=producer)
            pool.run()
    assert sorted(seen) == [number for number in range(COUNT) if number % 100 and number != 7]
    assert pool.failed == 4
    assert committed(broker, topic) == COUNT
    with Consumer(
        f"{topic}-dead", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        letters = {bytes(letter.value): letter for letter in consumer.read_to_end()}
    assert sorted(letters) == [b"0", b"100", b"200", b"7"]
    headers = dict(letters[b"100"].headers)
    assert letters[b"100"].key == b"key-0"
    assert headers["dead-letter.error-class"] == b"fastq.errors.DeserializationError"
    assert b"no number: 100" in (headers["dead-letter.error-message"] or b"")
    assert headers["dead-letter.attempts"] == b"1"
    assert dict(letters[b"7"].headers)["dead-letter.attempts"] == b"2"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_cannot_be_read_ends_a_pool_without_a_policy_behind_what_could(
    broker: Broker, topic: str, asynchronous: bool
) -> None:
    def read(data: bytes) -> int:
        if data == b"250":
            raise ValueError("cut short")
        return int(data)

    given = options(broker, topic, value_deserializer=read)
    seen: list[int] = []

    async def main() -> None:
        async with AsyncConsumer(topic, **given) as consumer:

            async def handle(record: Any) -> None:
                seen.append(record.value)

            await AsyncConsumerPool(consumer, handle, order="partition").run()

    with pytest.raises(RecordFailed, match=r"could not be deserialized: ValueError\('cut short'\)"):
        if asynchronous:
            asyncio.run(main())
        else:
            with Consumer(topic, **given) as consumer:
                ConsumerPool(consumer, lambda record: seen.append(record.value), order="partition").run()
    assert len(seen) == committed(broker, topic) > 0


def test_what_could_not_be_read_for_a_moment_is_read_again_in_a_worker(broker: Broker, topic: str) -> None:
    tries: defaultdict[bytes, int] = defaultdict(int)
    seen: list[int] = []

    def read(data: bytes) -> int:
        tries[data] += 1
        if data == b"30" and tries[data] < 3:
            raise ConnectionRefusedError("the registry is away")
        return int(data)

    def handle(record: Any) -> None:
        seen.append(record.value)
        if len(seen) == COUNT:
            pool.stop()

    with Consumer(topic, **options(broker, topic, value_deserializer=read)) as consumer:
        pool = ConsumerPool(consumer, handle, retry=RetryPolicy(attempts=3, backoff_ms=1))
        pool.run()
    assert tries[b"30"] == 3
    assert sorted(seen) == list(range(COUNT))
    assert committed(broker, topic) == COUNT
