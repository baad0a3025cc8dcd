"""Values of a schema registry as JSON, and back: what JSON has no form for of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pb2  # type: ignore[import-untyped, unused-ignore]

from fastq._native.consume import Record
from fastq.cli.consume_shapes import Shown, _json_line, as_document
from fastq.cli.schemas import SchemaReader, schema_writer
from fastq.schema_registry import AvroSerializer, Schema, SchemaRegistryClient, wire
from fastq.testing import SchemaRegistry

RECORD = Record("t", 0, 0)


@pytest.fixture
def client() -> Iterator[SchemaRegistryClient]:
    with SchemaRegistry() as server:
        yield SchemaRegistryClient(server.url)


@pytest.fixture
def descriptors(tmp_path: Path) -> Path:
    """Of a message with an Any, whose last file has a type to be in it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="pay.proto", package="pay", syntax="proto3", dependency=["google/protobuf/any.proto"]
    )
    text, message = 9, 11
    payment = file.message_type.add(name="Payment")
    payment.field.add(name="detail", number=1, type=message, type_name=".google.protobuf.Any", label=1)
    file.message_type.add(name="Card").field.add(name="number", number=1, type=text, label=1)
    known = descriptor_pb2.FileDescriptorProto()
    any_pb2.DESCRIPTOR.CopyToProto(known)
    found = tmp_path / "pay.desc"
    found.write_bytes(descriptor_pb2.FileDescriptorSet(file=[known, file]).SerializeToString())
    return found


def test_an_any_of_the_writers_own_types_goes_in_and_out(client: SchemaRegistryClient, descriptors: Path) -> None:
    """It was looked for among the types of this process, and ended the command."""
    document = {"detail": {"@type": "type.googleapis.com/pay.Card", "number": "4111"}}
    write = schema_writer(client, "t", is_key=False, file=descriptors, subject=None)
    assert SchemaReader(client).read(RECORD, "value", write(document)) == (True, document)
    latest = schema_writer(client, "t", is_key=False, file=None, subject="t-value")
    assert latest(document) == write(document)


def test_what_is_no_number_of_json_is_its_name(client: SchemaRegistryClient) -> None:
    values = [1.5, float("nan"), float("inf"), float("-inf")]
    data = AvroSerializer(client, {"type": "array", "items": "double"}).serialize("t", values)
    _, found = SchemaReader(client).read(RECORD, "value", data)
    line = _json_line(as_document(Shown(RECORD, None, found), "auto"))

    def refused(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    assert json.loads(line, parse_constant=refused)["value"] == [1.5, "NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(
    ("schema", "data", "found"),
    [
        (Schema('{"type": "string", "pattern": "^(a+)+$"}', "JSON"), b'"%s!"' % (b"a" * 40), "a" * 40 + "!"),
        (Schema('{"type": "array", "items": "null"}'), bytes([0x80] * 5 + [0x01, 0x00]), "items that take no bytes"),
    ],
)
def test_what_anybody_registers_does_not_hold_consume_up(
    client: SchemaRegistryClient, schema: Schema, data: bytes, found: str
) -> None:
    """In a process of its own: neither was to be ended."""
    frame = wire.header(client.register("t-value", schema)) + data
    program = (
        "import sys; from fastq._native.consume import Record; from fastq.cli.schemas import SchemaReader, opened_registry\n"
        "read = SchemaReader(opened_registry(sys.argv[1])).read\n"
        "print(read(Record('t', 0, 0), 'value', sys.stdin.buffer.read()))"
    )
    done = subprocess.run([sys.executable, "-c", program, client.urls[0]], input=frame, capture_output=True, timeout=60)
    assert found in (done.stdout + done.stderr).decode()
