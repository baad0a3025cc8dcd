"""Settings that could be passed over in silence, against a real broker: what is told, and by whom."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq.errors import ConfigError
from fastq.testing import Broker


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"session_timeout_ms": 6000}, ["session_timeout_ms=6000"]),
        ({"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}, ["session_timeout_ms", "heartbeat_interval_ms"]),
        ({"session_timeout_ms": 6000, "group_protocol": "consumer"}, ["session_timeout_ms=6000"]),
        ({"session_timeout_ms": 6000, "group_protocol": "classic"}, []),
        ({}, []),
    ],
    ids=str,
)
def test_settings_of_the_classic_protocol_under_the_newer_one(
    shared_broker: Broker,
    new_topic_name: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
    options: dict[str, object],
    told: list[str],
) -> None:
    topic = new_topic_name()
    servers = shared_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, b"x").result(timeout=30)
    with (
        caplog.at_level(logging.WARNING, "fastq.consumer"),
        Consumer(topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", **options) as consumer,  # type: ignore[call-overload]  # settings by name
    ):
        assert [record.value for record in consumer.read_to_end()] == [b"x"]
    lines = [line for line in caplog.messages if "has no effect" in line]
    assert len(lines) == len(told) and all(words in line for words, line in zip(told, lines, strict=True))


def test_a_transaction_refuses_a_consumer_that_commits_by_itself() -> None:
    settings = {"bootstrap_servers": "127.0.0.1:1"}
    with Consumer("t", **settings, group_id="g") as consumer:
        producer = Producer(**settings, transactional_id="x")
        with pytest.raises(ConfigError, match="enable_auto_commit=False"):
            producer.transaction(consumer=consumer)
        producer.close(0)


def test_a_transaction_refuses_a_consumer_without_a_group_before_it_begins() -> None:
    """What its auto-commit would do is no matter then, and at the end of the block it was too late to say so."""
    settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}
    producer = Producer(**settings, transactional_id="x")
    for more in ({}, {"enable_auto_commit": False}):
        with Consumer("t", **settings, **more) as consumer, pytest.raises(ConfigError, match="needs a group_id"):
            producer.transaction(consumer=consumer)
    producer.close(0)


async def _refused() -> None:
    settings = {"bootstrap_servers": "127.0.0.1:1"}
    consumer, producer = AsyncConsumer("t", **settings, group_id="g"), AsyncProducer(**settings, transactional_id="x")
    with pytest.raises(ConfigError, match="enable_auto_commit=False"):
        producer.transaction(consumer=consumer)
    await consumer.close()
    await producer.close(0)


def test_the_same_with_asyncio() -> None:
    import asyncio

    asyncio.run(_refused())
