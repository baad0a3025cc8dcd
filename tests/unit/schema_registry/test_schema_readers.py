"""Deserializers and what a registry may have: schemas that are of no use, and types that are within themselves."""

from __future__ import annotations

import base64
import json
import re

import pytest
from google.protobuf import descriptor_pb2

from fastq.errors import DeserializationError, SchemaRegistryError
from fastq.schema_registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    ProtobufDeserializer,
    RegisteredSchema,
    Schema,
    SchemaReference,
    wire,
)
from fastq.schema_registry.avro import LEVELS_MAX
from fastq.schema_registry.serde import referenced

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}
VALUE = {"number": 42}


def test_avro_of_a_type_within_itself(client):
    """What may be deep is read in Python, with numbers of 64 bits at most: others took the square of their bytes."""
    fields = [{"name": "number", "type": "long"}, {"name": "next", "type": ["null", "List"]}]
    schema = {"type": "record", "name": "List", "fields": fields}
    value = None
    for number in (*range(1_000_000, 1_000_050), -(2**63), 2**63 - 1, 0, -1):
        value = {"number": number, "next": value}
    data = AvroSerializer(client, schema).serialize("lists", value)
    assert 2 * len(data) > LEVELS_MAX
    assert AvroDeserializer(client).deserialize("lists", (), data) == value
    newer = {**schema, "fields": [{"name": "word", "type": "string", "default": "none"}, *fields[1:]]}
    found = AvroDeserializer(client, newer).deserialize("lists", (), data)
    assert found["word"] == found["next"]["word"] == "none" and "number" not in found
    for damaged, error in ((b"\xff" * 1000, DeserializationError), (data[5:-1], EOFError)):
        with pytest.raises(error):
            AvroDeserializer(client).deserialize("lists", (), data[:5] + damaged)


UNKNOWN = '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "B"}]}'


def test_avro_of_types_that_build_on_one_another_in_a_long_row(client):
    """Two bytes ended the process: the compiled reader goes down the stack for each of them."""
    row = [{"type": "record", "name": "A0", "fields": [{"name": "number", "type": "int"}]}]
    row += [{"type": "record", "name": f"A{n}", "fields": [{"name": "a", "type": f"A{n - 1}"}]} for n in range(1, 3000)]
    for schema, levels in ((row, 3001), (row[:500], 501)):
        data = AvroSerializer(client, schema).serialize(f"rows-{levels}", {"number": 1})
        with pytest.raises(DeserializationError, match=f"within one another on {levels} levels"):
            AvroDeserializer(client).deserialize("rows", (), data)


def test_avro_of_types_that_are_told_shallower_than_they_are(client):
    """Each of a hundred rows is back at its begin behind a byte, and in the next one without any: three bytes ended the process."""
    made, entry = [{"type": "record", "name": "A0", "fields": [{"name": "number", "type": "int"}]}], "A0"
    for place in range(1, 101):
        row = f"B{place}"
        for number in reversed(range(120)):
            row = {"type": "record", "name": f"C{place}_{number}", "fields": [{"name": "a", "type": row}]}
        fields = [{"name": "on", "type": entry}, {"name": "back", "type": ["null", row]}]
        made.append({"type": "record", "name": f"B{place}", "fields": fields})
        entry = f"C{place}_0"
    schema_id = client.register(
        "rows", Schema(json.dumps([*made, {"type": "record", "name": "Z", "fields": [{"name": "a", "type": entry}]}]))
    )
    with pytest.raises(DeserializationError, match="within one another on 12102 levels"):
        AvroDeserializer(client).deserialize("rows", (), wire.header(schema_id) + b"\xca\1")


def test_avro_schemas_that_say_they_were_parsed(client):
    """fastavro believes that, and takes the types they name as they are: a record of no bytes ended the process."""
    named = {
        f"R{n}": {"type": "record", "name": f"z{n}", "fields": [{"name": "a", "type": {"type": f"R{n + 1}"}}]}
        for n in range(20_000)
    }
    named["R20000"] = {"type": "record", "name": "x", "fields": []}
    own = {"__fastavro_parsed": True, "__named_schemas": named}
    for schema in ({"type": "R0", **own}, [{"type": "R0", **own}], [[{"type": "R0", **own}]]):
        schema_id = client.register("parsed", Schema(json.dumps(schema)))
        with pytest.raises(DeserializationError, match="is of no use"):
            AvroDeserializer(client).deserialize("t", (), wire.header(schema_id) + b"\0\0")


A, B = ({"type": "record", "name": f"ns.{name}", "fields": [{"name": name, "type": "int"}]} for name in "ab")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (["ns.a", "ns.b"], {"b": 3}),
        (["null", "ns.b", {"type": "array", "items": "ns.a"}], [{"a": 1}]),
        ({"type": "array", "items": ["ns.a", "ns.b"]}, [{"b": 1}, {"a": 2}]),
        ({"type": "map", "values": "ns.a"}, {"one": {"a": 1}}),
        ("ns.b", {"b": 1}),
        (
            {"type": "record", "name": "C", "fields": [{"name": "c", "type": ["null", "ns.a", "C"]}]},
            {"c": {"c": {"a": 1}}},
        ),
    ],
)
def test_avro_of_types_of_other_schemas(client, schema, value):
    """As where a topic has several types, each with a subject of its own: a union of their names."""
    for one in (A, B):
        client.register(one["name"], Schema(json.dumps(one)))
    references = tuple(SchemaReference(one["name"], one["name"], 1) for one in (A, B))
    given = Schema(json.dumps(schema), "AVRO", references)
    data = AvroSerializer(client, given).serialize("t", value)
    assert AvroDeserializer(client).deserialize("t", (), data) == value
    assert AvroDeserializer(client, given).deserialize("t", (), data) == value


def test_avro_of_a_union_of_many_types(client, monkeypatch):
    """All names were taken over once for each of them, with each value."""
    many = [{"type": "record", "name": f"R{n}", "fields": [{"name": f"a{n}", "type": "int"}]} for n in range(300)]
    data = AvroSerializer(client, many).serialize("t", {"a299": 1})
    deserializer = AvroDeserializer(client)
    assert deserializer.deserialize("t", (), data) == {"a299": 1}
    (writer,) = deserializer._known.values()
    assert sum(len(one["__named_schemas"]) for one in writer.schema) == 300


def test_schemas_that_many_build_on_are_gone_into_once(client, monkeypatch):
    """Twenty-two, of which each builds on the one before it twice, took a minute and a half, and each one more twice of that."""
    asked = []
    schemas = {"s0": Schema('"int"')}
    for n in range(1, 60):
        references = tuple(SchemaReference(f"r{n}{side}", f"s{n - 1}", 1) for side in "ab")
        schemas[f"s{n}"] = Schema('"int"', "AVRO", references)
    version = lambda subject, number, format: asked.append(subject) or RegisteredSchema(1, subject, 1, schemas[subject])  # noqa: E731
    monkeypatch.setattr(client, "version", version)
    found = referenced(client, schemas["s59"])
    assert len(asked) == len(found) == 118 and list(found) == [f"r{n}{side}" for n in range(1, 60) for side in "ab"]


@pytest.mark.parametrize(
    ("schema", "reader", "words"),
    [
        (Schema(UNKNOWN), AvroDeserializer, "schema 1 is of no use: the Avro schema cannot be used: UnknownType B"),
        (Schema("{"), AvroDeserializer, "schema 1 is of no use: the Avro schema cannot be used: JSONDecodeError"),
        (Schema(UNKNOWN.replace("B", "A")), AvroDeserializer, "in each of its own values, which have no end"),
        (Schema('{"type": 5}', "JSON"), JsonSchemaDeserializer, "schema 1 is of no use"),
        (Schema("{}", "JSON"), AvroDeserializer, "schema 1 is JSON, expected AVRO"),
    ],
)
def test_a_schema_that_is_of_no_use_is_looked_into_once(client, monkeypatch, schema, reader, words):
    """That took its time again with each value."""
    monkeypatch.setattr(client, "schema", lambda _, **__: schema)
    made = []
    deserializer = reader(client)
    prepare = deserializer._prepare
    monkeypatch.setattr(deserializer, "_prepare", lambda one: made.append(one) or prepare(one))
    told = set()
    for _ in range(3):
        with pytest.raises(DeserializationError, match=re.escape(words)) as caught:
            deserializer.deserialize("t", (), b"\0\0\0\0\1{}")
        told.add(str(caught.value))
        assert caught.value.url == client.urls[0]
    assert len(made) == (schema.schema_type == reader.schema_type) and len(told) == 1


def test_versions_of_a_schema_are_kept_by_the_form_they_were_asked_for_in(client):
    """A Protobuf schema that somebody had looked at as text was that text to readers too, for good."""
    asked = []

    def answered(method, path, body, read, query, **where):
        asked.append(query.get("format"))
        return read({"id": 1, "subject": "a", "version": 1, "schema": f"as {query.get('format')}"})

    client._request = answered
    texts = [client.version("a", 1, format=form).schema.text for form in (None, "serialized", None, "serialized")]
    assert texts == ["as None", "as serialized"] * 2 and asked == [None, "serialized"]


def test_protobuf_that_builds_on_a_file_nobody_has_is_looked_into_once(client, monkeypatch):
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["google/protobuf/no_such.proto"])
    file.message_type.add(name="A")
    text = base64.b64encode(file.SerializeToString()).decode()
    monkeypatch.setattr(client, "schema", lambda _, **__: Schema(text, "PROTOBUF"))
    deserializer = ProtobufDeserializer(client)
    for _ in range(2):
        with pytest.raises(DeserializationError, match=r"protobuf does not bring google/protobuf/no_such\.proto"):
            deserializer.deserialize("t", (), b"\0\0\0\0\1\0")
    assert list(deserializer._refused) == [1]


def test_a_schema_whose_registry_fails_is_looked_into_again(client, monkeypatch):
    failing = [SchemaRegistryError("it has no time"), None]
    data = AvroSerializer(client, ORDER).serialize("t", VALUE)
    deserializer = AvroDeserializer(client)
    prepare = deserializer._prepare

    def prepared(schema):
        if error := failing.pop(0):
            raise error
        return prepare(schema)

    monkeypatch.setattr(deserializer, "_prepare", prepared)
    with pytest.raises(SchemaRegistryError, match="no time"):
        deserializer.deserialize("t", (), data)
    assert deserializer.deserialize("t", (), data) == VALUE
