"""Deserializers and what a registry may have: schemas that are of no use, and types that are within themselves."""

from __future__ import annotations

import re

import pytest

from fastq.errors import DeserializationError, SchemaRegistryError
from fastq.schema_registry import AvroDeserializer, AvroSerializer, JsonSchemaDeserializer, Schema
from fastq.schema_registry.avro import LEVELS_MAX

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
