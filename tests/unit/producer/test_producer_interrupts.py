"""Interrupts wherever they can come in a producer's calls: what was accepted arrives once and in order, and the producer goes on.

One interrupt before the n-th bytecode of a call, for every n, and perhaps another a few bytecodes later, which is when the first is being
cleaned up after.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interruptions import every_place

from fastq import Consumer, Producer

WAYS: dict[str, Callable[[Producer, str, bytes], Any]] = {
    "send and result": lambda producer, topic, value: producer.send(topic, value).result(20),
    "send and flush": lambda producer, topic, value: (producer.send(topic, value), producer.flush(20)),
    "send_many": lambda producer, topic, value: producer.send_many(topic, [value] * 3).result(20),
    "partitions_for": lambda producer, topic, value: producer.partitions_for(topic),
}


def in_another_thread(call: Callable[[], Any]) -> Any:
    """What a call answers in another thread, which finds a lock that was left behind."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(30)
    assert answers, "the call did not end: a lock was left behind"
    return answers[0]


@pytest.mark.parametrize(
    ("linger_ms", "then"),
    [(0, 0), (0, 3), (5, 40), *(pytest.param(*each, marks=pytest.mark.soak) for each in ((5, 0), (5, 3), (0, 40)))],
)
@pytest.mark.parametrize("way", WAYS)
def test_what_was_accepted_arrives_once(
    make: Any, topic: str, shared_broker: Any, way: str, linger_ms: int, then: int
) -> None:
    producer = make(linger_ms=linger_ms, acks="all")
    producer.send(topic, b"first").result(20)
    answered: list[bytes] = []
    number = 0

    def call() -> bytes:
        nonlocal number
        number += 1
        value = b"%d" % number
        WAYS[way](producer, topic, value)
        return value

    for answer in every_place(call, then, 1 if then == 0 else 7):
        if answer is not None:
            answered.append(answer)
        if number % 25 == 0:
            assert in_another_thread(lambda: producer.send(topic, b"probe").result(20)).offset >= 0
    producer.flush(20)
    assert producer.metrics()["record_errors_total"] == 0
    with Consumer(bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found: list[bytes] = []
        end = consumer.end_offsets([(topic, 0)])[(topic, 0)]
        while consumer.position((topic, 0)) < end:
            found.extend(record.value for record in consumer.poll(timeout=10))
    numbers = [int(value) for value in found if value.isdigit()]
    assert numbers == sorted(numbers)
    if way != "partitions_for":
        copies = 3 if way == "send_many" else 1
        for value in answered:
            assert found.count(value) == copies
        assert max(found.count(value) for value in set(found) - {b"probe"}) <= copies


@pytest.fixture(params=["SIGALRM", "SIGTERM", "SIGUSR1"])
def raising(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal whose handler raises, as those of time limits and of SystemExit at SIGTERM do."""
    which = signal.Signals[request.param]

    def handler(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt(which.name)

    before = signal.signal(which, handler)
    yield which
    assert signal.getsignal(which) is handler, "the application's handler was not put back"
    signal.signal(which, before)


def test_a_handler_that_raises_does_not_tear_a_client_that_begins(
    shared_broker: Any, topic: str, raising: signal.Signals
) -> None:
    """One torn in the middle of its first request waited ten seconds for it, or for good."""
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b"there").result(20)

    def call() -> None:
        with Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0) as producer:
            producers.append(producer)
            producer.send(topic, b"x").result(20)

    producers: list[Producer] = []
    within = (
        "_connect",
        "_run_effects",
        "_write_all",
        "_write",
        "request_metadata_update",
        "send",
        "connected",
        "_queue",
    )
    for _ in every_place(call, step=17, within=within, what=raising):
        # Closed by the block, whatever came: what it closed had nothing left to wait for.
        assert producers.pop()._parts.core.closed


def test_signals_that_come_together_are_all_delivered(shared_broker: Any, topic: str, raising: signal.Signals) -> None:
    seen: list[int] = []
    others = (signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)
    before = [signal.signal(which, lambda number, _frame: seen.append(number)) for which in others]
    try:
        with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
            with pytest.raises(KeyboardInterrupt, match=raising.name), producer._turn:
                for which in (raising, *others):
                    signal.raise_signal(which)
                assert not seen
            assert sorted(seen) == sorted(others)
            assert producer.send(topic, b"x").result(20).offset == 0
    finally:
        for which, handler in zip(others, before, strict=True):
            signal.signal(which, handler)
