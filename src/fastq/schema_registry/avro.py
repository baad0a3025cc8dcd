"""Avro values with a schema registry, on fastavro.

Rules: a value is what fastavro takes and gives: dicts, lists, numbers, text, bytes, datetimes and decimals for logical types.
A reader's schema resolves older and newer writers' schemas (Avro's schema resolution). fastavro's compiled reader goes down the C stack
with a value, and its process ends where that does: what may be deep is read by its Python twin, which raises RecursionError, or refused.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastq.errors import DeserializationError
from fastq.schema_registry import avro_bounds, wire
from fastq.schema_registry.client import Schema, SchemaReference, SchemaRegistryClient, check_registry
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
    import fastavro._read_py
    from fastavro.io.binary_decoder import BinaryDecoder
except ImportError as error:  # the extra is not installed
    raise missing("fastavro", error) from error


LEVELS_MAX = 400
"""How deep the compiled reader goes, which is within the stack of any thread."""


LONG_BYTES_MAX = 10
"""The most that a number of 64 bits has, of seven in each byte."""


class _Decoder(BinaryDecoder):
    """fastavro's, whose numbers go on for as long as their bytes do, and take the square of those in time."""

    def read_long(self) -> int:
        number = 0
        for place in range(LONG_BYTES_MAX):
            one: bytes = self.fo.read(1)
            if not one:
                raise EOFError("the value ends within a number")
            number |= (one[0] & 0x7F) << 7 * place
            if one[0] < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise DeserializationError(f"a number of the Avro value has more than {LONG_BYTES_MAX} bytes")

    read_int = read_long


PARSED, NAMED = "__fastavro_parsed", "__named_schemas"
"""By which fastavro knows what it has parsed, and by what names: of a registry's text it would take them unseen."""


def _read_deep(data: io.BytesIO, writer: Any, reader: Any) -> Any:
    """What fastavro's schemaless_reader does, in Python."""
    named: dict[str, dict[str, Any]] = {"writer": {}, "reader": {}}
    reader = (
        None if reader is None or reader == writer else fastavro.parse_schema(reader, named_schemas=named["reader"])
    )
    writer = fastavro.parse_schema(writer, named_schemas=named["writer"])
    options = {"handle_unicode_errors": "strict"}
    decoder = _Decoder(data)  # type: ignore[no-untyped-call, unused-ignore]
    return fastavro._read_py.read_data(decoder, writer, named, reader, options)  # type: ignore[no-untyped-call, unused-ignore]


class Writer(NamedTuple):
    """A schema that values were written with, and the types that it knows by name."""

    schema: Any
    named: dict[str, Any]
    is_recursive: bool
    levels: int
    """How deep a value goes; of a recursive one without a byte, and with each."""


def _parse(registry: SchemaRegistryClient, schema: Schema, named: dict[str, Any] | None = None) -> Any:
    """A schema as fastavro wants it, with the named types of those that it builds on; `named` gets those and its own."""
    named = {} if named is None else named
    others = referenced(registry, schema)
    try:
        for other in others.values():
            fastavro.parse_schema(_unparsed(json.loads(other.text)), named_schemas=named)
        return _with_names(fastavro.parse_schema(_unparsed(json.loads(schema.text)), named_schemas=named), named)
    except Exception as error:  # fastavro's have several bases, and some say no more than the type
        raise ValueError(f"the Avro schema cannot be used: {type(error).__name__} {error}") from error


def _unparsed(schema: Any) -> Any:
    """A schema, or the schemas of a union, without the marks of one that was looked at."""
    if isinstance(schema, list):
        return [_unparsed(one) for one in schema]
    if isinstance(schema, dict):
        return {key: value for key, value in schema.items() if key not in (PARSED, NAMED)}
    return schema


def _with_names(parsed: Any, named: dict[str, Any], kept: dict[str, Any] | None = None) -> Any:
    """The same with all types that it knows by name, `kept` in it: fastavro does so for records alone, and once in each of a union."""
    kept = named if kept is None else kept
    if isinstance(parsed, list):
        found: list[Any] = []
        for one in parsed:
            found.append(_with_names(one, named, kept))
            kept = {} if isinstance(found[-1], dict) else kept  # it is in one of them, which is enough
        return found
    whole = named.get(parsed) if isinstance(parsed, str) else parsed
    return parsed if whole is None else {**whole, PARSED: True, NAMED: kept}


def _schema_of(schema: str | Mapping[str, Any] | list[Any] | Schema) -> Schema:
    if isinstance(schema, Schema):
        return schema
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the Avro schema is no JSON: {error}: {text[:200]!r}") from None
    return Schema(text)


class AvroSerializer(SchemaSerializer[Any]):
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
        check_registry(registry)
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
        self._own = None if given is None or given.references else self._prepare(given)

    def serialize(self, topic: str, value: Any) -> bytes:
        """The frame of one value."""
        header, parsed = self._writing(topic)
        out = io.BytesIO()
        out.write(header)
        fastavro.schemaless_writer(out, parsed, convert(self._to_dict, value))
        return out.getvalue()

    def _prepare(self, schema: Schema) -> Any:
        return _parse(self.registry, schema)


class AvroDeserializer(SchemaDeserializer[Writer]):
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
        self._prepare_reader()
        is_deep = writer.is_recursive and (len(payload) + 1) * writer.levels > LEVELS_MAX
        read = _read_deep if is_deep else fastavro.schemaless_reader
        value = read(io.BytesIO(payload), writer.schema, self._reader)
        return convert(self._from_dict, value)

    def _prepare_reader(self) -> None:
        if self._reader is None and self._given is not None:
            self._reader = _parse(self.registry, self._given)

    def _prepare(self, schema: Schema) -> Writer:
        named: dict[str, Any] = {}
        parsed = _parse(self.registry, schema, named)
        if avro_bounds.is_recursive(named, always=True):
            raise DeserializationError(
                "a type of the Avro schema is in each of its own values, which have no end",
                hint="Have it in a union with null, or in an array",
            )
        is_recursive = avro_bounds.is_recursive(named)
        levels = avro_bounds.levels(parsed, named, free=is_recursive)
        if levels > LEVELS_MAX:
            raise DeserializationError(
                f"types of the Avro schema are within one another on {levels} levels; the most is {LEVELS_MAX}"
            )
        return Writer(parsed, named, is_recursive, levels)


class BoundedAvroDeserializer(AvroDeserializer):
    """For values and schemas of anybody: what few bytes would make much of is a DeserializationError, or stays bytes."""

    def _prepare(self, schema: Schema) -> Writer:
        found = super()._prepare(schema)
        if why := avro_bounds.why_endless(found.schema, found.named):
            raise DeserializationError(f"values of the schema are not decoded here: {why}")
        avro_bounds.bound_decimals(found.schema, found.named)
        return found
