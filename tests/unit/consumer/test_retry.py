"""Retries and dead letters, one record after another."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import warnings
from concurrent.futures import Future
from typing import Any

import pytest

from fastq._native.consume import Record
from fastq.consumer import AsyncConsumerPool, ConsumerPool
from fastq.consumer.retry import DEAD_LETTER_HEADERS, RetryPolicy, SetAsideLog
from fastq.errors import ConfigError, DeserializationError, FastqError, RecordFailed
from fastq.recurring import EVERY_S
from fastq.serializers import json_serializer, serialize

RECORD = Record("orders", 3, 17, 1_700_000_000_000, key=b"key", value=b"value", headers=[("trace", b"1")])


class FakeDelivery:
    def result(self) -> None:
        pass

    def __await__(self) -> Any:
        yield from ()


class FakeProducer:
    """Remembers what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, topic: str, value: Any, *, key: Any, headers: Any) -> FakeDelivery:
        self.sent.append((topic, value, key, headers))
        return FakeDelivery()


class FakeAsyncProducer(FakeProducer):
    async def send(self, topic: str, value: Any, *, key: Any, headers: Any) -> FakeDelivery:  # type: ignore[override]
        return super().send(topic, value, key=key, headers=headers)


class Handler:
    """Fails so many times."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.calls = 0
        self.failures = failures
        self.error = error or RuntimeError("no luck")

    def __call__(self, record: Record) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error

    async def later(self, record: Record) -> None:
        self(record)


def test_tries_again_after_growing_pauses() -> None:
    pauses: list[float] = []
    handler = Handler(3)
    RetryPolicy(attempts=4, backoff_ms=100, backoff_max_ms=250).call(handler, RECORD, sleep=pauses.append)
    assert handler.calls == 4
    for pause, nominal in zip(pauses, (0.1, 0.2, 0.25), strict=True):
        assert 0.8 * nominal <= pause <= 1.2 * nominal


def test_gives_up_with_an_error_that_names_the_record() -> None:
    handler = Handler(9)
    with pytest.raises(RecordFailed) as caught:
        RetryPolicy(attempts=2, backoff_ms=0).call(handler, RECORD, sleep=lambda s: None)
    error = caught.value
    assert isinstance(error, FastqError)
    assert (error.topic, error.partition, error.offset, error.attempts) == ("orders", 3, 17, 2)
    assert error.__cause__ is handler.error
    assert "orders-3 at offset 17" in str(error)
    assert "no luck" in str(error)


def test_errors_that_do_not_pass_are_not_tried_again() -> None:
    handler = Handler(9, ValueError("never"))
    with pytest.raises(RecordFailed):
        RetryPolicy(attempts=5, retry_on=(OSError,)).call(handler, RECORD)
    assert handler.calls == 1


def test_interrupts_are_nobodys_failure() -> None:
    handler = Handler(9, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        RetryPolicy(attempts=5, skip=True).call(handler, RECORD)
    assert handler.calls == 1


def test_skips_where_that_is_wanted_and_says_so_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    monkeypatch.setattr("fastq.consumer.retry.set_aside_log", SetAsideLog(lambda: now[0]))
    policy = RetryPolicy(attempts=1, skip=True)
    for _ in range(3):
        policy.call(Handler(9), RECORD)
    now[0] += EVERY_S
    policy.call(Handler(9), RECORD)
    told = "orders-3 at offset 17 is skipped after 1 attempt: RuntimeError('no luck')"
    assert [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == "fastq.consumer"
    ] == [
        ("ERROR", told),
        ("ERROR", f"{told} (and 2 more of this topic since it was last said)"),
    ]


def test_what_is_set_aside_is_said_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    monkeypatch.setattr("fastq.consumer.retry.set_aside_log", SetAsideLog(lambda: now[0]))
    policy, producer = RetryPolicy(attempts=1, dead_letter_topic="dead"), FakeProducer()
    asynchronous = FakeAsyncProducer()
    for _ in range(3):
        policy.call(Handler(9), RECORD, producer)
        asyncio.run(policy.call_async(Handler(9).later, RECORD, asynchronous))
    now[0] += EVERY_S
    asyncio.run(policy.call_async(Handler(9, ValueError("x" * 9999)).later, RECORD, asynchronous))
    first, second = (record for record in caplog.records if record.name == "fastq.consumer")
    assert (first.levelname, second.levelname) == ("WARNING", "WARNING")
    told = "orders-3 at offset 17 was set aside in dead after 1 attempt: "
    assert first.getMessage() == f"{told}RuntimeError('no luck')"
    assert second.getMessage().startswith(f"{told}ValueError('xxx") and len(second.getMessage()) < 600
    assert second.getMessage().endswith(" (and 5 more of this topic since it was last said)")
    caplog.clear()
    producer.send = lambda *_, **__: 1 / 0  # type: ignore[method-assign]  # what it could not write
    now[0] += EVERY_S
    with pytest.raises(ZeroDivisionError):
        policy.call(Handler(9), RECORD, producer)
    assert caplog.records == []


def expected_headers(attempts: int) -> list[tuple[str, bytes]]:
    values = [b"orders", b"3", b"17", b"1700000000000", b"builtins.RuntimeError", b"no luck", b"%d" % attempts]
    return [("trace", b"1"), *zip(DEAD_LETTER_HEADERS, values, strict=True)]


def test_dead_letters_say_where_they_come_from() -> None:
    producer = FakeProducer()
    policy = RetryPolicy(attempts=2, backoff_ms=0, dead_letter_topic="{topic}.dead")
    policy.call(Handler(9), RECORD, producer, sleep=lambda s: None)
    assert producer.sent == [("orders.dead", b"value", b"key", expected_headers(2))]


def test_the_first_origin_stays() -> None:
    policy = RetryPolicy(attempts=1, dead_letter_topic="graveyard")
    letter = policy.dead_letter(RECORD, RuntimeError("no luck"), 1)
    assert letter is not None
    again = Record(letter.topic, 0, 5, 0, key=letter.key, value=letter.value, headers=letter.headers)
    second = policy.dead_letter(again, RuntimeError("still none"), 1)
    assert second is not None
    assert second.headers == letter.headers


def test_the_asyncio_form() -> None:
    producer = FakeAsyncProducer()
    policy = RetryPolicy(attempts=3, backoff_ms=0.01, backoff_max_ms=0.1, dead_letter_topic="dead")

    async def main() -> tuple[int, int]:
        passes, fails = Handler(2), Handler(9)
        await policy.call_async(passes.later, RECORD, producer)
        assert producer.sent == []
        await policy.call_async(fails.later, RECORD, producer)
        with pytest.raises(RecordFailed):
            await RetryPolicy(attempts=1).call_async(Handler(9).later, RECORD)
        return passes.calls, fails.calls

    assert asyncio.run(main()) == (3, 3)
    assert producer.sent == [("dead", b"value", b"key", expected_headers(3))]


@pytest.mark.parametrize(
    "bad",
    [
        {"attempts": 0},
        {"backoff_ms": -1},
        {"backoff_ms": 5, "backoff_max_ms": 4},
        {"skip": True, "dead_letter_topic": "d"},
    ],
)
def test_policies_that_make_no_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**bad)


def test_a_dead_letter_topic_needs_a_producer() -> None:
    with pytest.raises(ValueError, match="producer"):
        RetryPolicy(dead_letter_topic="dead").call(Handler(0), RECORD)
    assert RetryPolicy().pause_s(RuntimeError(), 3, random.Random(0)) is None


# -- handlers that are not run by calling them


async def awaited(record: Record) -> None:
    raise AssertionError("nobody awaits this")


def generated(record: Record) -> Any:
    yield record


async def both(record: Record) -> Any:
    yield record


class AsyncCallable:
    async def __call__(self, record: Record) -> None: ...

    async def method(self, record: Record) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        awaited,
        generated,
        both,
        functools.partial(functools.partial(awaited)),
        AsyncCallable(),
        AsyncCallable().method,
        None,
        "name",
    ],
    ids=["coroutine", "generator", "async-generator", "partial", "callable", "method", "nothing", "name"],
)
def test_a_handler_that_a_thread_cannot_run_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match="handler"):
        RetryPolicy(attempts=3).call(handler, RECORD)


def wrapped(record: Record) -> Any:
    return awaited(record)


@pytest.mark.parametrize(
    "handler",
    [
        wrapped,
        lambda record: generated(record),
        lambda record: both(record),
        lambda record: Future(),
        lambda record: FakeDelivery(),
    ],
)
def test_a_handler_whose_work_is_still_to_be_done_is_told_of(handler: Any) -> None:
    """No policy makes up for it: not another attempt, not a dead letter."""
    producer = FakeProducer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of coroutines that nobody awaited
        with pytest.raises(ConfigError, match="was not done when it returned"):
            RetryPolicy(attempts=3, dead_letter_topic="dead").call(handler, RECORD, producer, sleep=lambda s: None)
        gc.collect()
    assert producer.sent == []


@pytest.mark.parametrize("handler", [lambda record: None, lambda record: both(record), both, None])
def test_a_handler_that_cannot_be_awaited_is_told_of(handler: Any) -> None:
    with pytest.raises(ConfigError, match="handler"):
        asyncio.run(RetryPolicy(attempts=3).call_async(handler, RECORD))


def test_what_a_plain_handler_answers_does_not_matter() -> None:
    RetryPolicy().call(lambda record: 5, RECORD)  # type: ignore[arg-type]


# -- records that cannot be read

UNREADABLE = DeserializationError("not JSON", raw=RECORD)
AWAY = DeserializationError("no registry", raw=RECORD)
AWAY.retriable = True


def test_what_cannot_be_read_is_tried_again_only_where_that_may_help() -> None:
    policy = RetryPolicy(attempts=3)
    assert policy.pause_s(UNREADABLE, 1, random.Random()) is None
    assert policy.pause_s(AWAY, 1, random.Random()) is not None
    assert policy.pause_s(AWAY, 3, random.Random()) is None


def test_what_cannot_be_read_is_set_aside_as_its_bytes() -> None:
    producer = FakeProducer()
    RetryPolicy(dead_letter_topic="{topic}-dead").set_aside(RECORD, UNREADABLE, producer)
    ((topic, value, key, headers),) = producer.sent
    assert (topic, value, key, headers[0]) == ("orders-dead", b"value", b"key", ("trace", b"1"))
    assert json_of(value) == b"value"
    assert dict(headers)["dead-letter.error-class"] == b"fastq.errors.DeserializationError"
    with pytest.raises(RecordFailed, match="not JSON"):
        RetryPolicy().set_aside(RECORD, UNREADABLE)


def test_what_cannot_be_read_is_told_without_what_is_for_who_polls() -> None:
    error = DeserializationError("not JSON", raw=RECORD, hint="The next call goes on after it")
    letter = RetryPolicy(dead_letter_topic="dead").dead_letter(RECORD, error, 1)
    assert letter is not None and dict(letter.headers)["dead-letter.error-message"] == b"not JSON"
    with pytest.raises(RecordFailed, match=r"not JSON\. It is not committed and will be read again") as caught:
        RetryPolicy().set_aside(RECORD, error)
    assert caught.value.__cause__ is error


def json_of(value: Any) -> Any:
    """What the serializer of a dead-letter producer makes of a value."""
    return serialize(json_serializer, "orders-dead", value, "value")


def test_a_producer_of_the_other_kind_is_refused_before_the_handler_runs() -> None:
    class Blocking(FakeProducer):
        def __enter__(self) -> None: ...

    class Asyncio(FakeAsyncProducer):
        async def __aenter__(self) -> None: ...

    policy = RetryPolicy(attempts=1, dead_letter_topic="dead")
    handler = Handler(1)
    with pytest.raises(ConfigError, match="is a Producer here, got Asyncio"):
        policy.call(handler, RECORD, Asyncio())
    with pytest.raises(ConfigError, match="is an AsyncProducer here, got Blocking"):
        asyncio.run(policy.call_async(handler, RECORD, Blocking()))  # type: ignore[arg-type]
    assert handler.calls == 0


def test_what_is_no_client_at_all_is_refused_by_name() -> None:
    """It was an AttributeError, of the pool's own code or once a record had failed."""
    nobody: Any = "c"
    handler = Handler(1)
    with pytest.raises(TypeError, match="the consumer of a pool is a Consumer, got 'c'"):
        ConsumerPool(nobody, handler)
    with pytest.raises(TypeError, match="the consumer of a pool is an AsyncConsumer, got 'c'"):
        AsyncConsumerPool(nobody, json_of)
    with pytest.raises(TypeError, match="the producer of dead letters is a Producer, got 'c'"):
        RetryPolicy(dead_letter_topic="dead").call(handler, RECORD, nobody)
    assert handler.calls == 0
