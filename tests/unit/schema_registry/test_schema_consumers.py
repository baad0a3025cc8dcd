"""Consumers whose deserializers ask a registry: an event loop is not held up, and a record waits for its schema."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from fastq import AsyncConsumer, AsyncConsumerPool, Consumer, Producer
from fastq.errors import DeserializationError, LoadingWouldBlock, SchemaRegistryError
from fastq.schema_registry import AvroDeserializer, AvroSerializer, Schema, SchemaRegistryClient, record_name

TWO = [
    Schema(json.dumps({"type": "record", "name": f"Of_{name}", "fields": [{"name": name, "type": "long"}]}))
    for name in ("a", "b")
]
VALUES = [{"a": 1}, {"a": 2}, {"b": 3}, {"a": 4}]


@pytest.fixture
def client(server):
    return SchemaRegistryClient(server.url)


def write_two_schemas(broker, client, topic):
    """Four records of two schemas; the schemas' ids."""
    writers = [AvroSerializer(client, schema, subject_name_strategy=record_name) for schema in TWO]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in VALUES:
            producer.send(topic, writers["b" in value].serialize(topic, value)).result(20)
    return [writer.warm_up(topic) for writer in writers]


def reading(broker, topic, deserializer, **more):
    return AsyncConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=deserializer,
        **more,
    )


def test_an_asyncio_consumer_loads_schemas_in_a_thread(server, client, shared_broker, new_topic_name):
    topic = new_topic_name()
    write_two_schemas(shared_broker, client, topic)

    async def main():
        async with reading(shared_broker, topic, AvroDeserializer(SchemaRegistryClient(server.url))) as consumer:
            found = []
            while len(found) < 4:
                found += await consumer.poll(timeout=20)
            assert [record.value for record in found] == VALUES
        async with reading(shared_broker, topic, AvroDeserializer(SchemaRegistryClient(server.url))) as consumer:
            assert [record.value async for record in await consumer.read_to_end()] == VALUES
        asked, answer = threading.Event(), threading.Event()
        async with reading(shared_broker, topic, AvroDeserializer(held_up(server.url, asked, answer))) as consumer:
            # An iterator that is left while a schema is loaded has lost nothing.
            iterator = aiter(consumer)
            task = asyncio.ensure_future(step(iterator))
            await asyncio.to_thread(asked.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer.set()
            assert [(await anext(iterator)).value for _ in range(4)] == VALUES

    async def step(iterator):
        return await anext(iterator)

    asyncio.run(main())


def held_up(url, asked, answer):
    """A registry client that says that it was asked, and waits before it asks in turn."""
    client = SchemaRegistryClient(url)
    request, loop_thread = client._request, threading.current_thread()

    def wait_and_request(*arguments, **more):
        if threading.current_thread() is not loop_thread:
            asked.set()
            assert answer.wait(20)
        return request(*arguments, **more)

    client._request = wait_and_request
    return client


def test_a_registry_that_fails_an_asyncio_consumer(server, client, shared_broker, new_topic_name):
    topic = new_topic_name()
    first, _ = write_two_schemas(shared_broker, client, topic)

    known = AvroDeserializer(client)
    known.warm_up(first)

    def half_dead():
        """A deserializer that knows the first schema, and cannot ask for the second."""
        deserializer = AvroDeserializer(SchemaRegistryClient("http://127.0.0.1:1", retries=0))
        deserializer._known.update(known._known)
        return deserializer

    async def main():
        async with reading(shared_broker, topic, half_dead()) as consumer:
            found = []
            while len(found) < 2:
                found += await consumer.poll(timeout=20)
            with pytest.raises(DeserializationError, match="cannot be reached") as caught:
                await consumer.poll(timeout=20)
            assert (caught.value.offset, isinstance(caught.value.__cause__, SchemaRegistryError)) == (2, True)
            found += await consumer.poll(timeout=20)
            assert [record.value for record in found] == [VALUES[0], VALUES[1], VALUES[3]]
        async with reading(shared_broker, topic, half_dead(), on_deserialization_error="skip") as consumer:
            values = [record.value async for record in await consumer.read_to_end()]
            assert values == [VALUES[0], VALUES[1], VALUES[3]]

    asyncio.run(main())


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_a_deserializer_of_ones_own_cannot_load_is_an_error_of_its_record(shared_broker, new_topic_name, on_error):
    """The consumer came no further: each call loaded again, and raised what that did."""
    topic, loads = new_topic_name(), []

    class Loading:
        def deserialize(self, topic, headers, data):
            if data == b"b":
                error = LoadingWouldBlock()
                error.load = self.load
                raise error
            return data

        def load(self):
            loads.append(threading.current_thread())
            raise OSError("no file there")

    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send_many(topic, [b"a", b"b", b"c"]).result(20)

    async def main():
        async with reading(shared_broker, topic, Loading(), on_deserialization_error=on_error) as consumer:
            found = await consumer.poll(timeout=20)
            if on_error == "raise":
                with pytest.raises(DeserializationError, match="no file there") as caught:
                    await consumer.poll(timeout=20)
                assert (caught.value.offset, caught.value.retriable) == (1, True)
            while len(found) < 2:
                found += await consumer.poll(timeout=20)
            assert [record.value for record in found] == [b"a", b"c"]

    asyncio.run(main())
    assert threading.current_thread() not in loads and len(loads) == 1


def test_a_pool_loads_schemas_in_a_thread(server, client, shared_broker, new_topic_name):
    topic, found = new_topic_name(), []
    write_two_schemas(shared_broker, client, topic)

    async def handle(record):
        found.append(record.value)
        if len(found) == len(VALUES):
            consumer.stop()

    async def main():
        async with consumer:
            await asyncio.wait_for(AsyncConsumerPool(consumer, handle, workers=1).run(), 40)

    deserializer = AvroDeserializer(SchemaRegistryClient(server.url))
    consumer = reading(shared_broker, topic, deserializer, group_id=topic, enable_auto_commit=False)
    asyncio.run(main())
    assert found == VALUES


def test_a_blocking_consumer_in_an_event_loop_keeps_its_place(server, client, shared_broker, new_topic_name):
    topic = new_topic_name()
    write_two_schemas(shared_broker, client, topic)
    given = {"bootstrap_servers": shared_broker.bootstrap_servers, "auto_offset_reset": "earliest"}
    deserializer = AvroDeserializer(SchemaRegistryClient(server.url))

    async def main(consumer):
        for _ in range(2):
            with pytest.raises(LoadingWouldBlock) as caught:
                consumer.poll(timeout=20)
            with pytest.raises(LoadingWouldBlock):
                next(iter(consumer))
        await asyncio.to_thread(caught.value.load)
        assert [record.value for record in consumer.poll(timeout=20)] == VALUES[:2]

    with Consumer(topic, value_deserializer=deserializer, on_deserialization_error="skip", **given) as consumer:
        asyncio.run(main(consumer))
        assert [record.value for record in consumer.read_to_end()] == VALUES[2:]
