"""Interrupts wherever they can come: a call that KeyboardInterrupt ends has handed out nothing, and the next one goes on.

One interrupt before the n-th bytecode of a call, for every n, and perhaps another a few bytecodes later, which is when the first is being
cleaned up after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_fakes import SocketCluster
from interruptions import Interruptions, every_place

from fastq import Consumer, TopicPartition
from fastq.errors import ClientClosed

TP = [TopicPartition("logs", 0), TopicPartition("logs", 1)]


@pytest.fixture
def cluster() -> Iterator[SocketCluster]:
    made = SocketCluster()
    yield made
    made.close()


def fill(cluster: SocketCluster, batches: int) -> None:
    for log in cluster.create("logs", 0 if cluster.logs else 2):
        for _ in range(batches):
            with cluster.lock:
                log.append([(b"k", b"%d" % (log.end + n)) for n in range(3)])


class Reader:
    """What a program has seen of both partitions: every record once, in order."""

    def __init__(self) -> None:
        self.seen = dict.fromkeys(TP, 0)

    def saw(self, records: Any) -> None:
        for record in records or ():
            tp = TopicPartition(record.topic, record.partition)
            assert record.offset == self.seen[tp], f"{tp}: {record.offset} instead of {self.seen[tp]}"
            self.seen[tp] = record.offset + 1


WAYS: dict[str, Callable[[Consumer], Any]] = {
    "poll": lambda consumer: consumer.poll(max_records=4, timeout=1.0),
    "poll_batch": lambda consumer: list(consumer.poll_batch(timeout=1.0)),
}


TAKING = ("poll", "poll_batch", "_take", "_take_columns", "_taking", "_put_back", "_asks_next", "_asks")


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_while_records_are_taken(cluster: SocketCluster, way: str) -> None:
    """At every bytecode of what takes them: it is not under a lock, as deserializers are the application's."""
    fill(cluster, 20)
    reader = Reader()
    given: dict[str, Any] = {"value_deserializer": "str"} if way == "poll" else {}
    with Consumer("logs", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **given) as consumer:
        for answer in every_place(lambda: WAYS[way](consumer), within=TAKING):
            reader.saw(answer)
            fill(cluster, 2)
            reader.saw(consumer.poll(max_records=1, timeout=30))
        reader.saw(consumer.read_to_end(timeout=30))
        assert {tp: log.end for tp, log in cluster.logs.items()} == reader.seen


@pytest.mark.parametrize(
    ("then", "step"),
    [
        *[(0, 1), (1, 3), (2, 5), (3, 7), (9, 5), (40, 7)],
        *(pytest.param(then, 1, marks=pytest.mark.soak) for then in (1, 2, 9)),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_no_record_is_skipped_and_the_consumer_goes_on(cluster: SocketCluster, way: str, then: int, step: int) -> None:
    fill(cluster, 40)
    reader = Reader()
    given: dict[str, Any] = {"value_deserializer": "str"} if way == "poll" else {}
    with Consumer("logs", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **given) as consumer:
        consumer.poll(max_records=1, timeout=10)
        consumer.seek_to_beginning()
        calls = every_place(lambda: WAYS[way](consumer), then, step)
        for count, answer in enumerate(calls):
            reader.saw(answer)
            if count % 50 == 0 or answer is not None:
                fill(cluster, 10)
        for _ in range(2000):
            reader.saw(consumer.poll(timeout=0.5))
            if all(reader.seen[tp] == log.end for tp, log in cluster.logs.items()):
                break
        assert {tp: log.end for tp, log in cluster.logs.items()} == reader.seen
        assert {tp: consumer.position(tp) for tp in TP} == reader.seen


def test_iterating_with_a_deserializer(cluster: SocketCluster) -> None:
    """An interrupt while a record is made into what the program gets: it comes again."""
    fill(cluster, 60)
    reader = Reader()

    def loop(consumer: Consumer) -> None:
        for record in consumer:
            reader.saw([record])
            if record.offset % 3 == 2:
                break

    with Consumer(
        "logs", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", value_deserializer="str"
    ) as consumer:
        for _ in every_place(lambda: loop(consumer)):
            fill(cluster, 1)
        for record in consumer.read_to_end(timeout=10):
            reader.saw([record])
        assert {tp: log.end for tp, log in cluster.logs.items()} == reader.seen


def test_an_interrupted_commit_commits_nothing_that_nobody_saw(cluster: SocketCluster) -> None:
    """What poll had taken when it was interrupted is not what commit() means by "all that was handed out"."""
    fill(cluster, 2)

    def interrupt(records: Any) -> None:
        raise KeyboardInterrupt

    class Interceptor:
        on_consume = staticmethod(interrupt)

    with Consumer(
        "logs", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", interceptors=Interceptor()
    ) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout=10)
        assert [consumer.position(tp) for tp in TP] == [0, 0]


def test_close_closes_whatever_comes(cluster: SocketCluster) -> None:
    fill(cluster, 2)
    place, reached = 1, True
    while reached:
        consumer = Consumer("logs", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
        consumer.poll(timeout=10)
        with contextlib.suppress(KeyboardInterrupt), Interruptions(place, place + 5) as interruptions:
            consumer.close()
        reached = interruptions.sent > 0
        if place > 3:  # before that it had not begun
            with pytest.raises(ClientClosed):
                consumer.poll(timeout=0)
            assert not consumer._driver.lock._is_owned()  # type: ignore[attr-defined]
        consumer.close()
        place += 11


def test_going_back_to_what_is_committed_is_done_for_all_partitions_or_for_none() -> None:
    """An interrupt between two partitions left one at its old place: its records were not handed out again."""
    partitions = [TopicPartition("logs", n) for n in range(4)]
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign(partitions)

        places = 0
        for _ in every_place(consumer.seek_to_committed):
            assert len({state.position for state in consumer._fetcher.partitions.values()}) == 1
            for tp in partitions:
                consumer.seek(tp, 5)
            places += 1
        assert places > 50
