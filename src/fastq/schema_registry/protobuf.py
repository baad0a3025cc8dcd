"""Protobuf messages with a schema registry, on protobuf.

Rules: the schema of a message is its .proto file, registered as its descriptor in base64; files that it imports are registered
before it, each under its own name, and become references. Files of google/protobuf are known everywhere and not registered.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Generic, TypeVar

from fastq.errors import DeserializationError
from fastq.schema_registry import wire
from fastq.schema_registry.client import Schema, SchemaReference, SchemaRegistryClient, check_registry
from fastq.schema_registry.serde import (
    SchemaDeserializer,
    SchemaSerializer,
    SubjectNameStrategy,
    missing,
    referenced,
    topic_name,
)

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped, unused-ignore]
    from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped, unused-ignore]
except ImportError as error:  # the extra is not installed
    raise missing("protobuf", error) from error

M = TypeVar("M", bound=Message)
KNOWN = "google/protobuf/"
FORMAT = "serialized"
"""In which a registry answers with descriptors."""


def message_indexes(descriptor: Any) -> tuple[int, ...]:
    """The place of a message type in its file, from the outermost type inwards."""
    indexes: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = list(
            (outer.nested_types_by_name if outer is not None else descriptor.file.message_types_by_name).values()
        )
        indexes.insert(0, [one.full_name for one in siblings].index(descriptor.full_name))
        descriptor = outer
    return tuple(indexes)


def _text_of(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


class ProtobufSerializer(SchemaSerializer[bytes], Generic[M]):
    """Messages of one type: `Producer(value_serializer=ProtobufSerializer(registry, Order))`.

    message_type: a class that protoc generated. use_latest_version: with the id of the subject's newest version, and the place that the
    type has there, by its name. Raises TypeError for a message of another type, ValueError where the newest version has no such type.
    """

    schema_type = "PROTOBUF"
    schema_format = FORMAT

    def __init__(
        self,
        registry: SchemaRegistryClient,
        message_type: type[M],
        *,
        is_key: bool = False,
        subject_name_strategy: SubjectNameStrategy = topic_name,
        auto_register: bool = True,
        use_latest_version: bool = False,
        normalize: bool = False,
    ) -> None:
        check_registry(registry)
        self._type = message_type
        self._descriptor: Any = message_type.DESCRIPTOR
        super().__init__(
            registry,
            None,
            record_name=self._descriptor.full_name,
            is_key=is_key,
            subject_name_strategy=subject_name_strategy,
            auto_register=auto_register,
            use_latest_version=use_latest_version,
            normalize=normalize,
        )

    def serialize(self, topic: str, value: M) -> bytes:
        """The frame of one message."""
        if not isinstance(value, self._type):
            raise TypeError(f"expected a {self._descriptor.full_name}, got {type(value).__name__}")
        header, indexes = self._writing(topic)
        return header + indexes + bytes(value.SerializeToString())

    def _schema(self) -> Schema:
        if self._given is None:
            file = self._descriptor.file
            self._given = Schema(_text_of(file), "PROTOBUF", self._register_imports(file))
        return self._given

    def _register_imports(self, file: Any) -> tuple[SchemaReference, ...]:
        found = []
        for other in file.dependencies:
            if other.name.startswith(KNOWN):
                continue
            schema = Schema(_text_of(other), "PROTOBUF", self._register_imports(other))
            if self._auto_register:
                self.registry.register(other.name, schema, normalize=self._normalize)
            place = self.registry.lookup(other.name, schema, normalize=self._normalize)
            found.append(SchemaReference(other.name, other.name, place.version))
        return tuple(found)

    def _prepare(self, schema: Schema) -> bytes:
        """Where the newest version has the type, which need not be where its own file has it."""
        try:
            file = _file(self.registry, schema)
        except DeserializationError as error:
            raise ValueError(str(error)) from error
        name = self._descriptor.full_name
        try:
            found = file.pool.FindMessageTypeByName(name)
        except KeyError:
            found = None
        if found is None or found.file.name != file.name:
            raise ValueError(f"its file {file.name} has no message {name}")
        return wire.encode_indexes(message_indexes(found))

    def _prepare_own(self, schema: Schema) -> bytes:
        return wire.encode_indexes(message_indexes(self._descriptor))


class ProtobufDeserializer(SchemaDeserializer[Any], Generic[M]):
    """Messages: `Consumer(value_deserializer=ProtobufDeserializer(registry, Order))`.

    message_type: a class that protoc generated, which reads what older and newer writers of the type wrote; a message of
    another type is a DeserializationError. None: classes are made of the writers' schemas.
    """

    schema_type = "PROTOBUF"
    schema_format = FORMAT

    def __init__(self, registry: SchemaRegistryClient, message_type: type[M] | None = None) -> None:
        super().__init__(registry)
        self._type = message_type
        self._classes: dict[tuple[int, tuple[int, ...]], type[Message]] = {}

    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        """The message in one frame. Raises DeserializationError and SchemaRegistryError."""
        schema_id, rest = wire.split(data)
        indexes, payload = wire.decode_indexes(rest)
        chosen = self._classes.get((schema_id, indexes))
        if chosen is None:
            chosen = self._classes[schema_id, indexes] = self._class_of(schema_id, indexes)
        message = chosen()
        try:
            message.ParseFromString(bytes(payload))
        except DecodeError as error:
            name = chosen.DESCRIPTOR.full_name
            raise DeserializationError(
                f"the bytes are no {name} (schema {schema_id}): {error}", raw=bytes(data)
            ) from error
        return message

    def _class_of(self, schema_id: int, indexes: tuple[int, ...]) -> type[Message]:
        file = self._writer(schema_id)
        try:
            descriptor = list(file.message_types_by_name.values())[indexes[0]]
            for index in indexes[1:]:
                descriptor = list(descriptor.nested_types_by_name.values())[index]
        except IndexError:
            raise DeserializationError(
                f"schema {schema_id} ({file.name}) has no message at {'/'.join(map(str, indexes))}"
            ) from None
        if self._type is None:
            made: type[Message] = message_factory.GetMessageClass(descriptor)
            return made
        expected: Any = self._type.DESCRIPTOR
        if descriptor.full_name != expected.full_name:
            raise DeserializationError(
                f"expected a {expected.full_name}, got a {descriptor.full_name} (schema {schema_id})",
                hint="The topic holds several types of messages: use ProtobufDeserializer without a message_type",
            )
        return self._type

    def _prepare(self, schema: Schema) -> Any:
        return _file(self.registry, schema)


def _file(registry: SchemaRegistryClient, schema: Schema) -> Any:
    """The descriptor of a schema's file, in a pool of its own: two versions of a file have the same names. Raises DeserializationError, and
    what protobuf raises for a file that does not hold together."""
    pool = descriptor_pool.DescriptorPool()
    files = []
    for name, one in referenced(registry, schema, FORMAT).items():
        files.append(_file_of(one))
        files[-1].name = name  # by which it is imported; a registry that keeps the text alone gives all files one name
    for file in (*files, own := _file_of(schema)):
        for name in file.dependency:
            if name.startswith(KNOWN):
                _add_known(pool, name)
        pool.Add(file)
    return pool.FindFileByName(own.name)


def _file_of(schema: Schema) -> Any:
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(schema.text, validate=True))
    except (DecodeError, binascii.Error, ValueError) as error:
        raise DeserializationError(
            f"the registry did not give a Protobuf schema as a descriptor: {error}",
            hint="It must know format=serialized, as Confluent's does",
        ) from error
    if not file.name:
        file.name = "default"
    return file


def _add_known(pool: Any, name: str) -> None:
    """Give a pool one of the files that protobuf itself brings."""
    try:
        pool.FindFileByName(name)
    except KeyError:
        try:
            __import__("google.protobuf." + name[len(KNOWN) :].removesuffix(".proto") + "_pb2")
        except ImportError as error:
            raise DeserializationError(f"protobuf does not bring {name}, which the schema builds on") from error
        known = descriptor_pool.Default().FindFileByName(name)
        for other in known.dependencies:
            _add_known(pool, other.name)
        pool.AddSerializedFile(known.serialized_pb)
