"""The producers of a worker process: one for each configuration, given back, and closed when nobody wants them any more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from fastq.errors import BrokerNotAvailable, ClientClosed
from fastq.producer import Producer, SendManyError
from fastq.spark import producers
from fastq.spark.producers import NotDelivered, Shipment, borrowed, key_of

SERVERS = {"bootstrap_servers": "127.0.0.1:1", "max_block_ms": 1}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """No producer of another test, and none for the next."""
    yield
    for kept in producers._kept.values():
        kept.producer.close(timeout=0)
    producers._kept.clear()


def closed(producer: Producer) -> bool:
    try:
        producer.partitions_for("t")
    except ClientClosed:
        return True
    except Exception:
        return False
    return False


def test_tasks_with_the_same_options_get_the_same_producer() -> None:
    with borrowed(SERVERS) as first:
        assert first.config.linger_ms == 100 and first.config.client_id == "fastq-spark"
    with borrowed(dict(reversed(SERVERS.items()))) as again, borrowed({**SERVERS, "linger.ms": "5"}) as other:
        assert again is first and other is not first
        assert other.config.linger_ms == 5
    assert not closed(first)


def test_a_task_that_fails_ends_its_producer() -> None:
    with pytest.raises(RuntimeError), borrowed(SERVERS) as first:
        raise RuntimeError("the task failed")
    assert closed(first)
    with borrowed(SERVERS) as second:
        assert second is not first and not closed(second)


def test_a_producer_that_two_tasks_have_is_closed_by_the_last() -> None:
    with borrowed(SERVERS) as outer:
        with pytest.raises(RuntimeError), borrowed(SERVERS) as inner:
            assert inner is outer
            raise RuntimeError("one of them failed")
        assert not closed(outer)
        with borrowed(SERVERS) as fresh:
            assert fresh is not outer
    assert closed(outer) and not closed(fresh)


def test_idle_producers_are_closed_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [{**SERVERS, "client_id": f"c{number}"} for number in range(producers.KEPT + 3)]
    found = []
    for options in many:
        with borrowed(options) as producer:
            found.append(producer)
    assert [closed(producer) for producer in found] == [True] * 3 + [False] * producers.KEPT
    monkeypatch.setattr(producers, "IDLE_S", -1.0)
    with borrowed(many[-1]) as last:
        assert last is found[-1]
        assert all(closed(producer) for producer in found[:-1])


def test_a_forked_worker_has_producers_of_its_own() -> None:
    with borrowed(SERVERS):
        child = os.fork()
        if child == 0:
            with borrowed(SERVERS) as mine:
                os._exit(0 if len(producers._kept) == 1 and not closed(mine) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_options_must_be_such_that_a_worker_can_have_them() -> None:
    assert key_of({"a": 1, "b": "x"}) == key_of({"b": "x", "a": 1}) != key_of({"a": 2, "b": "x"})
    with pytest.raises(TypeError, match="go to Spark's workers by pickle"):
        key_of({"partitioner": lambda *_: 0})


class FakeDelivery:
    """One send_many: how many records, whether it is over, and what failed."""

    topic = "t"

    def __init__(self, count: int, error: SendManyError | None = None) -> None:
        self.count, self.error, self.over, self.looks = count, error, False, 0

    def done(self) -> bool:
        return self.over

    def exception(self) -> SendManyError | None:
        self.looks += 1
        return self.error


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[FakeDelivery] = []

    def send_many(self, topic: str, values: Any, **columns: Any) -> FakeDelivery:
        return values

    def flush(self) -> None:
        for delivery in self.sent:
            delivery.over = True


def test_every_delivery_of_a_task_is_looked_at_once() -> None:
    producer: Any = FakeProducer()
    producer.sent = [FakeDelivery(10), FakeDelivery(0), FakeDelivery(5)]
    shipment = Shipment(producer, "a task")
    for delivery in producer.sent:
        shipment.send("t", delivery)
        delivery.over = True
    assert [delivery.looks for delivery in producer.sent] == [1, 1, 0]
    assert shipment.finish() == 15
    assert [delivery.looks for delivery in producer.sent] == [1, 1, 1]


@pytest.mark.parametrize("late", [True, False])
def test_a_failure_says_which_records_of_the_task(late: bool) -> None:
    error = SendManyError("3 of 5 records were not delivered", failures=[(BrokerNotAvailable(), [1, 2, 3])])
    producer: Any = FakeProducer()
    producer.sent = [FakeDelivery(10), FakeDelivery(5, error)]
    shipment = Shipment(producer, "the sink, partition 3")
    for delivery in producer.sent:
        shipment.send("t", delivery)
    if not late:
        producer.flush()
    with pytest.raises(NotDelivered, match="the sink, partition 3: of records 10 to 14 of this task, 3 of 5") as raised:
        if late:
            shipment.finish()
        else:
            shipment.send("t", FakeDelivery(1))
    assert raised.value.__cause__ is error and raised.value.topic == "t"
