"""Avro values with a schema registry, on fastavro.

Rules: a value is what fastavro takes and gives: dicts, lists, numbers, text, bytes, datetimes and decimals for logical types.
A reader's schema resolves older and newer writers' schemas (Avro's schema resolution).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from fastq.schema_registry import wire
from fastq.schema_registry.client import Schema, SchemaReference, SchemaRegistryClient
from fastq.schema_registry.serde import (
    SchemaDeserializer,
    SchemaSerializer,
    SubjectNameStrategy,
    convert,
    missing,
    referenced,
    topic_name,
)

try:
    import fastavro
except ImportError as error:  # the extra is not installed
    raise missing("fastavro", error) from error


def _parse(registry: SchemaRegistryClient, schema: Schema) -> Any:
    """A schema as fastavro wants it, with the named types of those that it builds on."""
    named: dict[str, Any] = {}
    for other in referenced(registry, schema).values():
        fastavro.parse_schema(json.loads(other.text), named_schemas=named)
    try:
        return fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    except Exception as error:  # fastavro's have several bases, and some say no more than the type
        raise ValueError(f"the Avro schema cannot be used: {type(error).__name__} {error}") from error


def _schema_of(schema: str | Mapping[str, Any] | list[Any] | Schema) -> Schema:
    if isinstance(schema, Schema):
        return schema
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        json.loads(text)
    except ValueError as error:
        raise ValueError(f"the Avro schema is no JSON: {error}: {text[:200]!r}") from None
    return Schema(text)


class AvroSerializer(SchemaSerializer):
    """Values as Avro: `Producer(value_serializer=AvroSerializer(registry, schema))`.

    schema: JSON text, what json.loads makes of it, or a Schema with references; None with use_latest_version.
    to_dict: from the program's objects to what fastavro takes. references: schemas of others whose types it uses.
    Raises from `serialize`: ValueError and TypeError of a value that does not fit, SchemaRegistryError.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | Mapping[str, Any] | list[Any] | Schema | None = None,
        *,
        to_dict: Callable[[Any], Any] | None = None,
        references: tuple[SchemaReference, ...] = (),
        is_key: bool = False,
        subject_name_strategy: SubjectNameStrategy = topic_name,
        auto_register: bool = True,
        use_latest_version: bool = False,
        normalize: bool = False,
    ) -> None:
        if schema is None and not use_latest_version:
            raise ValueError("AvroSerializer needs a schema, or use_latest_version=True")
        given = None if schema is None else _schema_of(schema)
        if given is not None and references:
            given = given._replace(references=tuple(references))
        name = None
        if given is not None:
            content = json.loads(given.text)
            if isinstance(content, dict) and "name" in content:
                namespace = content.get("namespace")
                name = content["name"]
                name = f"{namespace}.{name}" if namespace and "." not in name else name
        super().__init__(
            registry,
            given,
            record_name=name,
            is_key=is_key,
            subject_name_strategy=subject_name_strategy,
            auto_register=auto_register,
            use_latest_version=use_latest_version,
            normalize=normalize,
        )
        self._to_dict = to_dict
        self._parsed = None if given is None or given.references else _parse(registry, given)

    def serialize(self, topic: str, value: Any) -> bytes:
        """The frame of one value."""
        out = io.BytesIO()
        out.write(self._header(topic))
        if self._parsed is None:
            assert self._given is not None
            self._parsed = _parse(self.registry, self._given)
        fastavro.schemaless_writer(out, self._parsed, convert(self._to_dict, value))
        return out.getvalue()

    def _follow(self, schema: Schema) -> None:
        self._parsed = _parse(self.registry, schema)


class AvroDeserializer(SchemaDeserializer[Any]):
    """Avro values: `Consumer(value_deserializer=AvroDeserializer(registry))`.

    schema: the reader's, to which what was written with others is resolved; None: each value as it was written.
    from_dict: from what fastavro gives to the program's objects.
    """

    schema_type = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | Mapping[str, Any] | list[Any] | Schema | None = None,
        *,
        from_dict: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(registry)
        self._from_dict = from_dict
        self._given = None if schema is None else _schema_of(schema)
        self._reader = None if self._given is None or self._given.references else _parse(registry, self._given)

    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        """The value in one frame. Raises DeserializationError, SchemaRegistryError, and fastavro's errors."""
        schema_id, payload = wire.split(data)
        writer = self._writer(schema_id)
        if self._reader is None and self._given is not None:
            self._reader = _parse(self.registry, self._given)
        value = fastavro.schemaless_reader(io.BytesIO(payload), writer, self._reader)
        return convert(self._from_dict, value)

    def _prepare(self, schema: Schema) -> Any:
        return _parse(self.registry, schema)
