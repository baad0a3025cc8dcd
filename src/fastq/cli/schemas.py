"""Values and keys whose schemas are in a registry: JSON of them for `consume`, bytes of JSON for `produce`.

Rules: the formats are those of `fastq.schema_registry`, whose libraries are loaded for what is met alone. Bytes are `{"base64": "..."}` in
JSON, both ways; times, decimals, NaN and the like come out as texts. What is read is not checked against its JSON Schema. What is no frame
of Confluent's form is shown as it is; a frame that cannot be read ends the command with the record's place, as it would be lost to who
reads the output.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastq.cli.output import UsageError, read_text
from fastq.errors import DeserializationError, FastqError
from fastq.schema_registry.letters import A_BYTE, check_letters, check_message_letters

if TYPE_CHECKING:
    from fastq import Record
    from fastq.schema_registry import SchemaRegistryClient

FRAME_BYTES = 5
"""A zero, and the id of the schema."""
KINDS = ("AVRO", "PROTOBUF", "JSON")
LETTERS_MAX = 64 << 20
"""What a value may have, if that is more than A_BYTE for each of its bytes."""
ENDINGS = {".avsc": "AVRO", ".json": "JSON", ".desc": "PROTOBUF"}


def opened_registry(url: str) -> SchemaRegistryClient:
    """The client of a registry, which has asked nothing yet. Raises UsageError."""
    from fastq.schema_registry import SchemaRegistryClient

    try:
        return SchemaRegistryClient(url)
    except ValueError as error:
        raise UsageError(f"--schema-registry: {error}") from None


def _of_format(name: str) -> Any:
    """A name of `fastq.schema_registry`, whose library may not be installed."""
    from fastq import schema_registry

    try:
        return getattr(schema_registry, name)
    except ImportError as error:
        raise UsageError(str(error)) from None


def _known_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError(f"the registry's schema is of the type {kind}; {', '.join(KINDS)} are known")


# -- out


class SchemaReader:
    """Keys and values as documents, by the schemas that their frames name. One thread."""

    def __init__(self, registry: SchemaRegistryClient) -> None:
        self._registry = registry
        self._deserializers: dict[str, Any] = {}

    def read(self, record: Record, part: str, data: bytes | None) -> tuple[bool, Any]:
        """Whether there is a frame, and the document in it. Raises FastqError with the record's place."""
        if data is None or len(data) < FRAME_BYTES or data[0] != 0:
            return False, None
        schema_id = int.from_bytes(data[1:FRAME_BYTES], "big")
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "part": part}
        try:
            kind = self._registry.schema(schema_id).schema_type
            if kind not in self._deserializers:
                _known_kind(kind)
                self._deserializers[kind] = _deserializer(kind, self._registry)
            value = self._deserializers[kind].deserialize(record.topic, record.headers, data)
            _check_letters(value, max(LETTERS_MAX, A_BYTE * len(data)))
            return True, plain(value)
        except UsageError:
            raise
        except FastqError as error:
            raise error.with_context(**where) from None
        except Exception as error:  # the formats' libraries have errors of their own, and the bytes are anybody's
            raise DeserializationError(
                f"schema {schema_id} does not fit: {type(error).__name__} {error}",
                hint="Without --schema-registry the record is shown as bytes",
            ).with_context(**where) from None


def _check_letters(value: Any, most: int) -> None:
    """Names in a schema may have any length."""
    (check_message_letters if hasattr(value, "DESCRIPTOR") else check_letters)(value, most)


def _deserializer(kind: str, registry: SchemaRegistryClient) -> Any:
    """Of schemas of anybody who may register one: a pattern of JSON Schema may take any time, and few bytes of Avro all memory."""
    if kind == "JSON":
        return _of_format("JsonSchemaDeserializer")(registry, validate=False)
    if kind == "PROTOBUF":
        return _of_format("ProtobufDeserializer")(registry)
    _of_format("AvroDeserializer")
    from fastq.schema_registry.avro import BoundedAvroDeserializer

    return BoundedAvroDeserializer(registry)


def plain(value: Any) -> Any:
    """What JSON can have of what a format gave."""
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped, unused-ignore]

        # In the writer's own pool of types: of those is what an Any holds.
        pool = value.DESCRIPTOR.file.pool
        return MessageToDict(value, preserving_proto_field_name=True, descriptor_pool=pool)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # its name: JSON has no such number
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# -- in

Writer = Callable[[Any], bytes]
"""From a document to what is sent. Raises FastqError of the registry, anything else of a document that does not fit."""


def schema_writer(
    registry: SchemaRegistryClient, topic: str, *, is_key: bool, file: Path | None, subject: str | None
) -> Writer:
    """For a schema of a file, which is registered for the topic, or for the latest of a subject. Raises UsageError, FastqError, OSError."""
    kind = ENDINGS.get(file.suffix) if file is not None else None
    if file is not None and kind is None:
        raise UsageError(
            f"{file}: a schema is .avsc (Avro), .json (JSON Schema) or .desc (Protobuf, of protoc --include_imports --descriptor_set_out)"
        )
    more: dict[str, Any] = {"is_key": is_key}
    if subject is not None:
        kind = registry.latest(subject).schema.schema_type
        _known_kind(kind)
        more |= {"use_latest_version": True, "subject_name_strategy": lambda *_: subject}
    if kind == "PROTOBUF":
        return _protobuf_writer(registry, topic, file, subject, more)
    name = "AvroSerializer" if kind == "AVRO" else "JsonSchemaSerializer"
    made = _of_format(name)
    try:
        serializer = made(registry, None if file is None else read_text(file), **more)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{file}: {error}") from None
    serializer.warm_up(topic)
    return lambda document: bytes(serializer.serialize(topic, _with_bytes(document)))


def _protobuf_writer(
    registry: SchemaRegistryClient, topic: str, file: Path | None, subject: str | None, more: dict[str, Any]
) -> Writer:
    serializer_of, deserializer_of = _of_format("ProtobufSerializer"), _of_format("ProtobufDeserializer")
    from google.protobuf.json_format import ParseDict

    if file is None:
        assert subject is not None
        message = deserializer_of(registry)._class_of(registry.latest(subject).schema_id, (0,))
    else:
        message = _message_of(file)
    serializer = serializer_of(registry, message, **more)
    serializer.warm_up(topic)
    pool = message.DESCRIPTOR.file.pool  # of whose types an Any is
    return lambda document: bytes(serializer.serialize(topic, ParseDict(document, message(), descriptor_pool=pool)))


def _message_of(file: Path) -> Any:
    """The first message of the last file in a set of descriptors, which is the one that protoc was given."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped, unused-ignore]

    found = descriptor_pb2.FileDescriptorSet()
    try:
        found.ParseFromString(file.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for each in found.file:
            pool.Add(each)
        messages = list(pool.FindFileByName(found.file[-1].name).message_types_by_name.values())
        return message_factory.GetMessageClass(messages[0])
    except OSError:
        raise
    except Exception as error:  # protobuf's have several bases
        raise UsageError(f"{file}: no set of descriptors with a message: {type(error).__name__} {error}") from None


def _with_bytes(document: Any) -> Any:
    """Where it says that something is bytes, those."""
    if isinstance(document, dict):
        if document.keys() == {"base64"} and isinstance(document["base64"], str):
            return base64.b64decode(document["base64"], validate=True)
        return {name: _with_bytes(item) for name, item in document.items()}
    return [_with_bytes(item) for item in document] if isinstance(document, list) else document
