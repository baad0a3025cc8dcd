"""What may go wrong once a record is said the first time, and then at a bounded rate: code of users, records that cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq.interceptors import ProducerInterceptor
from fastq.recurring import EVERY_S, SUBJECTS_MAX, Recurring
from fastq.testing import Broker

COUNT = 50


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_subject_is_said_at_once_and_then_with_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    recurring = Recurring(lambda: now[0])
    logger = logging.getLogger("fastq.test")

    def fail(subject: str) -> None:
        try:
            raise ValueError(subject)
        except ValueError:
            recurring.failed(logger, subject, "%s failed", subject)

    for _ in range(COUNT):
        fail("one")
    fail("another")
    now[0] += EVERY_S
    fail("one")
    fail("one")
    assert lines(caplog) == [
        "one failed",
        "another failed",
        f"one failed (and {COUNT - 1} more since it was last said)",
    ]
    assert all(record.exc_info is not None for record in caplog.records)
    for number in range(2 * SUBJECTS_MAX):
        recurring.due(number)
    assert len(recurring._said) <= SUBJECTS_MAX


class Broken(ProducerInterceptor):
    """Fails at every step, on both sides."""

    def on_send(self, record: Any) -> Any:
        raise RuntimeError("sent")

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        raise RuntimeError("acknowledged")

    def on_consume(self, records: Any) -> None:
        raise RuntimeError("consumed")

    def on_idle(self) -> None:
        raise RuntimeError("idle")


class Useless(ProducerInterceptor):
    def on_send(self, record: Any) -> Any:
        return None


def broken(_: object) -> None:
    raise RuntimeError("called back")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_users_plug_in_fails_at_a_bounded_rate(
    shared_broker: Broker, make_topic: Callable[..., str], caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    sending: dict[str, Any] = {"bootstrap_servers": servers, "interceptors": [Broken(), Useless()]}
    reading: dict[str, Any] = {
        "bootstrap_servers": servers,
        "auto_offset_reset": "earliest",
        "interceptors": [Broken()],
        "max_poll_records": 1,
    }

    async def main() -> None:
        async with AsyncProducer(**sending) as producer:
            for _ in range(COUNT):
                delivery = await producer.send(topic, b"x")
                delivery.add_done_callback(broken)
        async with AsyncConsumer(topic, **reading) as consumer:
            assert sum([len(await consumer.poll(timeout=10)) for _ in range(COUNT // 2)]) == COUNT // 2
            found = [record async for record in await consumer.read_to_end()]
            assert len(found) == COUNT - COUNT // 2

    if asynchronous:
        asyncio.run(main())
    else:
        with Producer(**sending) as producer:
            for _ in range(COUNT):
                producer.send(topic, b"x").add_done_callback(broken)
        with Consumer(topic, **reading) as consumer:
            assert sum([len(consumer.poll(timeout=10)) for _ in range(COUNT // 2)]) == COUNT // 2
            assert len(list(consumer.read_to_end())) == COUNT - COUNT // 2
    said = [record.exc_info[1].args[0] for record in caplog.records if record.exc_info and record.exc_info[1]]
    expected = {"sent", "acknowledged", "called back", "consumed", "idle"}
    assert set(said) == expected
    # A machine that is slow comes to a second line here and there, but not to one a record.
    assert len(lines(caplog)) < COUNT and any("not a ProducerRecord" in line for line in lines(caplog))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_records_that_are_left_out_are_said(
    shared_broker: Broker, make_topic: Callable[..., str], caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    servers = shared_broker.bootstrap_servers
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"not a number"] * COUNT + [b"1"])
    options: dict[str, Any] = {
        "bootstrap_servers": servers,
        "auto_offset_reset": "earliest",
        "value_deserializer": lambda data: int(data),
        "on_deserialization_error": "skip",
    }

    async def main() -> None:
        async with AsyncConsumer(topic, **options) as consumer:
            assert [record.value async for record in await consumer.read_to_end()] == [1]

    if asynchronous:
        asyncio.run(main())
    else:
        with Consumer(topic, **options) as consumer:
            assert [record.value for record in consumer.poll(timeout=10)] == [1]
    first, *others = (record for record in caplog.records if "is skipped" in record.getMessage())
    told = f"{topic}-0 at offset 0 is skipped, as on_deserialization_error=skip has it: its value could not be deserialized: ValueError("
    assert first.levelname == "WARNING" and first.getMessage().startswith(told)
    assert len(others) < COUNT // 10
