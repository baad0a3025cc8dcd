"""Names of any length are in each value of a schema: what would have too much of them is told before it is made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped, unused-ignore]
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)

from fastq._native.consume import Record
from fastq.cli.schemas import LETTERS_MAX, SchemaReader
from fastq.console.decoding import JSON_BYTES_MAX, Registry
from fastq.errors import DeserializationError
from fastq.schema_registry import AvroSerializer, ProtobufSerializer
from fastq.schema_registry.letters import check_letters, check_message_letters

INT, TEXT, MESSAGE, BYTES, ENUM = 5, 9, 11, 12, 14
ONE, MANY = 1, 3


def made(name: str) -> Any:
    """A message with a field of each kind; `name` is that of a field, of a value of an enumeration, and of an extension."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto2", dependency=["google/protobuf/any.proto"])
    kinds = file.enum_type.add(name="Kind")
    kinds.value.add(name="NONE", number=0)
    kinds.value.add(name=f"k{name}", number=1)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name=f"f{name}", number=1, type=INT, label=ONE)
    outer = file.message_type.add(name="Outer")
    outer.extension_range.add(start=100, end=200)
    outer.field.add(name="inner", number=1, type=MESSAGE, type_name=".Inner", label=MANY)
    outer.field.add(name="kinds", number=2, type=ENUM, type_name=".Kind", label=MANY)
    outer.field.add(name="any", number=3, type=MESSAGE, type_name=".google.protobuf.Any", label=ONE)
    outer.field.add(name="texts", number=4, type=TEXT, label=MANY)
    outer.field.add(name="data", number=5, type=BYTES, label=ONE)
    outer.field.add(name="ints", number=7, type=INT, label=MANY)
    entry = outer.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=TEXT, label=ONE)
    entry.field.add(name="value", number=2, type=MESSAGE, type_name=".Inner", label=ONE)
    outer.field.add(name="map", number=6, type=MESSAGE, type_name=".Outer.MapEntry", label=MANY)
    file.extension.add(name=f"e{name}", number=100, type=INT, label=ONE, extendee=".Outer")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    message_factory.GetMessageClassesForFiles(["t.proto"], pool)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Outer"))


def filled(name: str, field: str, count: int) -> Any:
    """An Outer in which `name` is so many times."""
    outer = made(name)()
    pool = outer.DESCRIPTOR.file.pool
    if field == "inner":
        for _ in range(count):
            setattr(outer.inner.add(), f"f{name}", 1)
    elif field == "kinds":
        outer.kinds.extend([1] * count)
    elif field == "any":
        outer.any.type_url = "type.googleapis.com/Outer"
        outer.any.value = filled(name, "inner", count).SerializeToString()
    elif field == "map":
        for place in range(count):
            setattr(outer.map[str(place)], f"f{name}", 1)
    else:
        outer.Extensions[pool.FindExtensionByName(f"e{name}")] = 1
    return outer


@pytest.mark.parametrize("field", ["inner", "kinds", "any", "map", "extension"])
def test_names_of_a_message_are_counted_wherever_they_are(field: str) -> None:
    count = 1 if field == "extension" else 50
    message = filled("n" * 1_000, field, count)
    document = json_format.MessageToDict(
        message, preserving_proto_field_name=True, descriptor_pool=message.DESCRIPTOR.file.pool
    )
    assert str(document).count("n" * 1_000) == count
    check_message_letters(message, 1_010 * count + 100)
    with pytest.raises(ValueError, match="more than"):
        check_message_letters(message, 1_000 * count)


def test_texts_and_bytes_of_a_message_are_counted_and_its_numbers_are_not() -> None:
    message = made("a")(texts=["x" * 100, "y" * 100], data=b"z" * 100, ints=[1] * 1_000)
    message.any.type_url = "nobody/knows.This"
    check_message_letters(message, 320)
    with pytest.raises(ValueError, match="more than 300 letters"):
        check_message_letters(message, 300)


def test_names_and_texts_of_a_document_are_counted() -> None:
    document = {"a" * 100: [("b" * 100, 1), {"c" * 100: b"d" * 100}], "e": None}
    check_letters(document, 401)
    with pytest.raises(ValueError, match="more than 400 letters"):
        check_letters(document, 400)


def test_consume_and_the_console_make_no_document_of_a_message_that_is_too_large(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes were as much memory as there is, and the end of all that the console did."""
    count = LETTERS_MAX // 1_000_000 + 1
    message = filled("n" * 1_000_000, "kinds", count)
    data = ProtobufSerializer(client, type(message)).serialize("t", message)
    assert len(data) < 1_000
    monkeypatch.setattr(json_format, "MessageToDict", lambda *_, **__: pytest.fail("it is made"))
    with pytest.raises(DeserializationError, match=f"more than {LETTERS_MAX:,} letters"):
        SchemaReader(client).read(Record("t", 0, 0), "value", data)
    registry = Registry(client.urls[0])
    deserializer = registry._deserializer("PROTOBUF")
    deserializer.warm_up(int.from_bytes(data[1:5], "big"))
    field = asyncio.run(registry.decode("t", data))
    assert f"more than {JSON_BYTES_MAX:,} letters" in field.note


def test_consume_makes_no_text_of_a_value_of_avro_that_is_too_large(client: Any) -> None:
    name = "n" * 1_000_000
    schema = {"type": "array", "items": {"type": "record", "name": "R", "fields": [{"name": name, "type": "boolean"}]}}
    reader, serializer = SchemaReader(client), AvroSerializer(client, schema)
    fits = serializer.serialize("t", [{name: True}])
    assert reader.read(Record("t", 0, 0), "value", fits) == (True, [{name: True}])
    data = serializer.serialize("t", [{name: True}] * (LETTERS_MAX // 1_000_000 + 1))
    with pytest.raises(DeserializationError, match=f"more than {LETTERS_MAX:,} letters"):
        reader.read(Record("t", 0, 0), "value", data)
