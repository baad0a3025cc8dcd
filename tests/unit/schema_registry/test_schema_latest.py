"""Serializers that write with the newest version of a subject, and with what is loaded in an event loop."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fastq.schema_registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    wire,
)

ONE, OTHER = (
    Schema(json.dumps({"type": "record", "name": name, "fields": [{"name": field, "type": "long"}]}))
    for name, field in (("Order", "number"), ("Invoice", "amount"))
)
JSON_ONE, JSON_OTHER = (
    Schema(json.dumps({"type": "object", "required": [field], "properties": {field: {"type": "integer"}}}), "JSON")
    for field in ("number", "amount")
)
STRING = 9


def messages(*names):
    """The classes of a file with messages of one text each, in this order, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in names:
        file.message_type.add(name=name).field.add(name=name.lower(), number=1, type=STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}")) for name in names]


def test_each_topic_has_its_own_newest_schema(client):
    """With the schema of the topic that was new last, values of all others were written, under their own ids."""
    client.register("orders-value", ONE)
    client.register("invoices-value", OTHER)
    serializer, reader = AvroSerializer(client, use_latest_version=True), AvroDeserializer(client)
    order = {"number": 7}
    written = [serializer.serialize("orders", order), serializer.serialize("invoices", {"amount": 9})]
    written.append(serializer.serialize("orders", order))
    assert [reader.deserialize("t", (), data) for data in written] == [order, {"amount": 9}, order]
    with pytest.raises(ValueError, match="number"):
        serializer.serialize("orders", {"amount": 9})


def test_json_of_each_topic_is_checked_against_its_own_newest_schema(client):
    client.register("orders-value", JSON_ONE)
    client.register("invoices-value", JSON_OTHER)
    serializer, reader = JsonSchemaSerializer(client, use_latest_version=True), JsonSchemaDeserializer(client)
    order = {"number": 7}
    written = [serializer.serialize("orders", order), serializer.serialize("invoices", {"amount": 9})]
    written.append(serializer.serialize("orders", order))
    assert [reader.deserialize("t", (), data) for data in written] == [order, {"amount": 9}, order]
    with pytest.raises(ValueError, match="'number' is a required property"):
        serializer.serialize("orders", {"amount": 9})


def test_a_message_is_found_where_the_newest_version_has_it(client):
    """The place of its type in its own file is another one there."""
    ours, theirs = messages("Order"), messages("Invoice", "Order")
    ProtobufSerializer(client, ours[0]).warm_up("t")
    ProtobufSerializer(client, theirs[0]).warm_up("t")
    serializer = ProtobufSerializer(client, ours[0], use_latest_version=True)
    written = serializer.serialize("t", ours[0](order="7"))
    assert wire.decode_indexes(wire.split(written)[1])[0] == (1,)
    found = ProtobufDeserializer(client).deserialize("t", (), written)
    assert (found.DESCRIPTOR.full_name, found.order) == ("shop.Order", "7")


def test_a_message_that_the_newest_version_has_not_is_refused(client):
    ProtobufSerializer(client, messages("Invoice")[0]).warm_up("t")
    (order,) = messages("Order")
    with pytest.raises(
        ValueError, match=r"t-value \(id 1\) is of no use: its file shop\.proto has no message shop\.Order"
    ):
        ProtobufSerializer(client, order, use_latest_version=True).serialize("t", order())


def test_a_file_is_known_by_the_name_that_it_is_imported_by(client):
    """A registry keeps its text, and names all descriptors that it makes of texts alike."""
    money = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    order = descriptor_pb2.FileDescriptorProto(package="shop", syntax="proto3", dependency=["common.proto"])
    order.message_type.add(name="Order").field.add(name="total", number=1, type=11, type_name=".shop.Money", label=1)
    client.register("common.proto", as_schema(money))
    written_with = client.register("t-value", as_schema(order, SchemaReference("common.proto", "common.proto", 1)))
    found = ProtobufDeserializer(client).deserialize("t", (), wire.header(written_with) + b"\0\n\x02\x08\x07")
    assert found.total.cents == 7
    writer = ProtobufSerializer(client, type(found), use_latest_version=True)
    assert ProtobufDeserializer(client).deserialize("t", (), writer.serialize("t", found)).total.cents == 7


def as_schema(file, *references):
    return Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF", references)


@pytest.mark.parametrize("format", ["AVRO", "JSON", "PROTOBUF"])
def test_a_newest_version_of_another_format_is_refused(client, format):
    (order,) = messages("Order")
    value = order() if format == "PROTOBUF" else {"number": 7}
    client.register("t-value", JSON_ONE if format == "AVRO" else ONE)
    serializer = {
        "AVRO": lambda: AvroSerializer(client, use_latest_version=True),
        "JSON": lambda: JsonSchemaSerializer(client, use_latest_version=True),
        "PROTOBUF": lambda: ProtobufSerializer(client, order, use_latest_version=True),
    }[format]()
    with pytest.raises(ValueError, match=f"t-value .* is {'JSON' if format == 'AVRO' else 'AVRO'}, expected {format}"):
        serializer.serialize("t", value)


def test_a_newest_version_that_is_believed_for_no_time_is_loaded_all_the_same(server):
    """What was loaded was out of date by the next look, and was loaded again, for ever."""
    client = SchemaRegistryClient(server.url, retries=0, latest_ttl_s=0)
    client.register("t-value", ONE)
    serializer = AvroSerializer(client, use_latest_version=True)
    asked = len(server.requests)

    async def main():
        return await asyncio.wait_for(serializer.serialize_async("t", {"number": 7}), 10)

    assert AvroDeserializer(client).deserialize("t", (), asyncio.run(main())) == {"number": 7}
    assert [line for line in server.requests[asked:] if "latest" in line] == ["GET /subjects/t-value/versions/latest"]


def referring(client):
    """Schemas with references, of Avro and of JSON Schema."""
    client.register("order", ONE)
    client.register("number", Schema('{"type": "integer"}', "JSON"))
    avro = Schema(
        json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "order", "type": "Order"}]}),
        references=(SchemaReference("Order", "order", 1),),
    )
    json_schema = Schema(
        '{"properties": {"number": {"$ref": "number.json"}}}', "JSON", (SchemaReference("number.json", "number", 1),)
    )
    return avro, json_schema


def test_what_is_warmed_up_asks_for_nothing_more(client, server):
    avro, json_schema = referring(client)
    sale, numbered = {"order": {"number": 7}}, {"number": 7}
    written = [
        AvroSerializer(client, avro).serialize("a", sale),
        JsonSchemaSerializer(client, json_schema).serialize("j", numbered),
    ]

    async def main():
        fresh = [SchemaRegistryClient(server.url, retries=0) for _ in range(4)]
        writers = AvroSerializer(fresh[0], avro), JsonSchemaSerializer(fresh[1], json_schema)
        readers = AvroDeserializer(fresh[2], avro), JsonSchemaDeserializer(fresh[3], json_schema)
        for topic, value, writer, reader, data in zip("aj", (sale, numbered), writers, readers, written, strict=True):
            await asyncio.to_thread(writer.warm_up, topic)
            assert writer.serialize(topic, value) == data
            await asyncio.to_thread(reader.warm_up, wire.split(data)[0])
            assert reader.deserialize(topic, (), data) == value

    asyncio.run(main())


def test_a_readers_schema_with_references_is_loaded_in_an_event_loop(client, server):
    _, json_schema = referring(client)
    written = JsonSchemaSerializer(client, json_schema).serialize("j", {"number": 7})

    async def main():
        reader = JsonSchemaDeserializer(SchemaRegistryClient(server.url, retries=0), json_schema)
        assert await reader.deserialize_async("j", (), written) == {"number": 7}

    asyncio.run(main())
