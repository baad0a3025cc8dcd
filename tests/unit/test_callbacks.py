"""Functions of users that would never run are refused where they are given, all over the client."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fastq import Consumer, TopicPartition
from fastq.callbacks import check_plain, check_plain_methods, is_unfinished, kind_of, unfinished
from fastq.consumer.base import ConsumerBase
from fastq.consumer.config import ConsumerConfig
from fastq.errors import ConfigError
from fastq.producer.base import Parts
from fastq.producer.config import ProducerConfig

NOWHERE = "127.0.0.1:1"


async def later(*_: Any) -> Any: ...


def each(*_: Any) -> Any:
    yield 1


async def each_later(*_: Any) -> Any:
    yield 1


def plain(*_: Any) -> None: ...


class Thing:
    """Objects with methods of both kinds."""

    def plain(self, *_: Any) -> None: ...

    async def later(self, *_: Any) -> None: ...

    async def __call__(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, None),
        (Thing().plain, None),
        (functools.partial(plain, 1), None),
        (print, None),
        (Thing, None),
        (later, "coroutine function"),
        (Thing().later, "coroutine function"),
        (Thing(), "coroutine function"),
        (functools.partial(Thing(), 1), "coroutine function"),
        (functools.partial(later), "coroutine function"),
        (each, "generator function"),
        (each_later, "asynchronous generator function"),
    ],
)
def test_kinds(function: Any, kind: str | None) -> None:
    assert kind_of(function) == kind


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (later, "a coroutine function"),
        (each, "a generator function"),
        (each_later, "an asynchronous generator function"),
    ],
)
def test_messages_say_what_it_is(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"the handler {function.__name__} is {said}, which"):
        check_plain(function, "the handler", "")
    with pytest.raises(ValueError, match=f"{function.__name__}, {said}, is not"):
        check_plain_methods(function, (), "")
    assert "answered an async_generator: " in str(unfinished(each_later(), each_later, "the handler", ""))


@pytest.mark.parametrize("result", [None, 0, True, "text", b"", [], {}, object(), iter([])])
def test_results_that_are_done(result: Any) -> None:
    assert not is_unfinished(result)


class OnSend:
    async def on_send(self, record: Any) -> Any:
        return record


class OnConsume:
    def on_consume(self, records: Any) -> Any:
        return records

    async def close(self) -> None: ...


class Serializer:
    async def serialize(self, topic: str, value: Any) -> bytes:
        return b""

    async def deserialize(self, topic: str, headers: Any, data: bytes) -> Any: ...


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [
        (ProducerConfig, "value_serializer", later),
        (ProducerConfig, "key_serializer", Serializer()),
        (ProducerConfig, "value_serializer", Serializer),
        (ProducerConfig, "partitioner", later),
        (ProducerConfig, "partitioner", each),
        (ProducerConfig, "interceptors", [OnSend()]),
        (ConsumerConfig, "value_deserializer", later),
        (ConsumerConfig, "key_deserializer", Serializer()),
        (ConsumerConfig, "interceptors", [OnConsume()]),
    ],
)
def test_settings_refuse_them(make: Callable[..., Any], key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*(coroutine|generator) function"):
        make(**{key: value})


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_lost"])
def test_a_blocking_consumer_refuses_listeners_of_asyncio(name: str) -> None:
    with Consumer(bootstrap_servers=NOWHERE, group_id="g") as consumer:
        with pytest.raises(ConfigError, match=r"listener later is a coroutine function.*AsyncConsumer"):
            consumer.subscribe("t", **{name: later})  # type: ignore[arg-type]
        assert not consumer.subscription()
        with pytest.raises(ConfigError, match="callback of commit_async"):
            ConsumerBase._begin_commit(consumer, {TopicPartition("t", 0): 1}, 1.0, later)


def test_a_delivery_callback_that_is_a_coroutine_function_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Batch:
        def take_callbacks(self) -> list[Any]:
            return [(0, later, None), (1, later, None), (2, plain, None)]

    parts = Parts(ProducerConfig(bootstrap_servers=NOWHERE))
    with caplog.at_level(logging.ERROR, "fastq.producer"):
        parts.run_callbacks_of(Batch())  # type: ignore[arg-type]
    (line,) = caplog.messages
    assert "the delivery callback later answered a coroutine" in line
