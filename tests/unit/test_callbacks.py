"""Functions of users that would never run are refused where they are given, all over the client."""

from __future__ import annotations

import functools
import json
import logging
import operator
import pickle
import struct
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

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


class Takes:
    """Methods by the names that clients call, each with an argument more or less than they are given."""

    def serialize(self, topic: str, headers: Any, value: Any) -> Any: ...

    def deserialize(self, topic: str, data: bytes) -> Any: ...

    def partition(self, key: Any) -> Any: ...

    def on_consume(self) -> None: ...

    def on_send(self, record: Any) -> Any: ...

    def on_acknowledgement(self, metadata: Any) -> None: ...


class Called(Takes):
    """With methods that are wrapped, and take what they are given all the same."""

    def adapted(function: Callable[..., Any]) -> Any:  # type: ignore[misc]
        return functools.wraps(function)(lambda self, *given: function(self, given[-1]))

    @adapted
    def serialize(self, value: Any) -> Any:
        return value

    @adapted
    def deserialize(self, data: Any) -> Any:
        return data


@pytest.mark.parametrize(
    ("config", "setting", "given", "words"),
    [
        (ConsumerConfig, "value_deserializer", Takes(), r"\(topic, headers, data\), which Takes.deserialize\(topic, data\)"),
        (ConsumerConfig, "key_deserializer", Takes, r"whose deserialize can be called with \(topic, headers, data\)"),
        (ConsumerConfig, "key_deserializer", lambda data, context: data, r"called with \(data\), which .*\(data, context\)"),
        (ConsumerConfig, "interceptors", Takes(), r"on_consume can be called with \(records\), which Takes.on_consume\(\)"),
        (ProducerConfig, "value_serializer", Takes(), r"\(topic, value\), which Takes.serialize\(topic, headers, value\)"),
        (ProducerConfig, "key_serializer", lambda: b"", r"a function that can be called with \(value\), which .*\(\) cannot"),
        (ProducerConfig, "partitioner", Takes(), r"value_bytes, partitions, available\), which Takes.partition\(key\)"),
        (ProducerConfig, "partitioner", lambda key: 0, r"\(key_bytes, partitions, available\), which .*\(key\)"),
        (ProducerConfig, "interceptors", Takes(), r"\(metadata, error\), which Takes.on_acknowledgement\(metadata\)"),
    ],
)  # fmt: skip
def test_what_cannot_take_what_it_is_given_is_refused_at_the_beginning(
    config: Any, setting: str, given: Any, words: str
) -> None:
    """It was accepted, and then failed for each record."""
    with pytest.raises(ConfigError, match=words) as caught:
        config(bootstrap_servers=NOWHERE, **{setting: given})
    assert setting in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        json.loads, pickle.dumps, bytes.hex, struct.Struct(">q").unpack, operator.itemgetter(0), mock.Mock(), print, zlib.compress,
        functools.partial(int.from_bytes, byteorder="big"), Called(), lambda *given: given, lambda data, other=1: data,
    ],
)  # fmt: skip
def test_what_says_nothing_of_its_arguments_or_can_take_them_passes(function: Any) -> None:
    ConsumerConfig(bootstrap_servers=NOWHERE, value_deserializer=function)
    ProducerConfig(bootstrap_servers=NOWHERE, value_serializer=function)
