"""A slow codec that interprets the message definitions at run time: the oracle of the generated classes.

It shares no code with the generator or the native reader and writer, only the parser of the notation. Values are plain
dictionaries by field name; `random_values` makes them, `build` and `as_values` go to and from the generated classes.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from message_notation import Field, Message, Struct, parse_folder  # noqa: E402

from fastq.protocol import messages as generated  # noqa: E402

DEFINITIONS = [message for message in parse_folder(ROOT / "tools" / "messages") if message.versions]
BY_NAME = {message.name: message for message in DEFINITIONS}
Values = dict[str, Any]

FORMATS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}


def class_of(message: Message) -> Any:
    return getattr(generated, message.name)


# --- encoding


def uvarint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def encode(message: Message, values: Values, version: int, extra_tag: tuple[int, bytes] | None = None) -> bytes:
    """The body of `values`; `extra_tag` is put into every tag section, as a newer peer might."""
    return _encode_fields(message, message.fields, values, version, extra_tag)


def _encode_fields(
    message: Message, fields: list[Field], values: Values, version: int, extra_tag: tuple[int, bytes] | None
) -> bytes:
    out = b""
    tags: list[tuple[int, bytes]] = []
    flexible = message.flexible(version)
    for field in fields:
        value = values[field.name]
        if version in field.tagged:
            if value != default_value(message, field):
                tags.append((field.tag or 0, _encode_value(message, field, value, version, True, extra_tag)))
        elif version in field.versions:
            out += _encode_value(message, field, value, version, flexible and not field.inflexible, extra_tag)
    if flexible:
        if extra_tag is not None:
            tags.append(extra_tag)
        out += uvarint(len(tags))
        for number, data in sorted(tags):
            out += uvarint(number) + uvarint(len(data)) + data
    return out


def _encode_value(
    message: Message, field: Field, value: Any, version: int, compact: bool, extra_tag: tuple[int, bytes] | None
) -> bytes:
    if field.array:
        if value is None:
            return b"\0" if compact else b"\xff\xff\xff\xff"
        out = uvarint(len(value) + 1) if compact else struct.pack(">i", len(value))
        for item in value:
            out += _encode_one(message, field, item, version, compact, extra_tag)
        return out
    if field.is_struct and field.nullable:
        if value is None:  # in a tagged field Kafka's mark is an unsigned varint, elsewhere a signed byte
            return b"\0" if version in field.tagged else b"\xff"
        return b"\x01" + _encode_one(message, field, value, version, compact, extra_tag)
    return _encode_one(message, field, value, version, compact, extra_tag)


def _encode_one(
    message: Message, field: Field, value: Any, version: int, compact: bool, extra_tag: tuple[int, bytes] | None
) -> bytes:
    if field.is_struct:
        return _encode_fields(message, message.structs[field.type].fields, value, version, extra_tag)
    if field.type in FORMATS:
        return struct.pack(FORMATS[field.type], value)
    if field.type == "bool":
        return b"\x01" if value else b"\0"
    if field.type == "uuid":
        assert len(value) == 16
        return bytes(value)
    data = value.encode() if isinstance(value, str) else value
    size = -1 if data is None else len(data)
    if compact:
        head = uvarint(size + 1)
    else:
        head = struct.pack(">h" if field.type == "string" else ">i", size)
    return head + (data or b"")


# --- values


def default_value(message: Message, field: Field) -> Any:
    if field.default == "null":
        return None
    if field.array:
        return []
    if field.is_struct:
        return default_values(message, message.structs[field.type].fields)
    if field.type == "bool":
        return field.default == "true"
    if field.type == "string":
        return field.default or ""
    if field.type in ("bytes", "records"):
        return b""
    if field.type == "uuid":
        return bytes(16)
    if field.type == "float64":
        return float(field.default or 0)
    return int(field.default or 0)


def default_values(message: Message, fields: list[Field]) -> Values:
    return {field.name: default_value(message, field) for field in fields}


def random_values(message: Message, version: int, source: random.Random) -> Values:
    """Values that `version` can carry; fields it does not have keep their defaults."""
    return _random_fields(message, message.fields, version, source)


def _random_fields(message: Message, fields: list[Field], version: int, source: random.Random) -> Values:
    return {
        field.name: random_value(message, field, version, source)
        if version in field.versions
        else default_value(message, field)
        for field in fields
    }


def random_value(message: Message, field: Field, version: int, source: random.Random) -> Any:
    if version in field.nullable and source.random() < 0.25:
        return None
    if field.tagged and source.random() < 0.3:
        default = default_value(message, field)
        if default is not None or version in field.nullable:
            return default
    if field.array:
        return [_random_one(message, field, version, source) for _ in range(source.choice((0, 1, 1, 2, 3)))]
    return _random_one(message, field, version, source)


def _random_one(message: Message, field: Field, version: int, source: random.Random) -> Any:
    if field.is_struct:
        return _random_fields(message, message.structs[field.type].fields, version, source)
    if field.type == "bool":
        return source.random() < 0.5
    if field.type == "float64":
        return source.uniform(-1e9, 1e9)
    if field.type in FORMATS:
        bits = int("".join(character for character in field.type if character.isdigit()))
        low, high = (0, 2**bits - 1) if field.type[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return source.choice((low, high, 0, 1, source.randint(low, high)))
    if field.type == "uuid":
        return source.randbytes(16)
    size = source.choice((0, 1, 5, 63, 64, 126, 127, 128, 200))
    if field.type == "string":
        return "".join(source.choice("abcXYZ019._-é漢😀\0") for _ in range(size))
    return source.randbytes(size)


# --- to and from the generated classes


def build(message: Message, values: Values) -> Any:
    return class_of(message)(**_arguments(message, message.fields, values))


def _arguments(message: Message, fields: list[Field], values: Values) -> Values:
    result = {}
    for field in fields:
        value = values[field.name]
        if field.is_struct and value is not None:
            inner = getattr(class_of(message), field.type)
            inner_fields = message.structs[field.type].fields
            if field.array:
                value = [inner(**_arguments(message, inner_fields, item)) for item in value]
            else:
                value = inner(**_arguments(message, inner_fields, value))
        result[field.name] = value
    return result


def as_values(message: Message, instance: Any) -> Values:
    return _values_of(message, message.fields, instance)


def _values_of(message: Message, fields: list[Field], instance: Any) -> Values:
    result = {}
    for field in fields:
        value = getattr(instance, field.name)
        if field.is_struct and value is not None:
            inner_fields = message.structs[field.type].fields
            if field.array:
                value = [_values_of(message, inner_fields, item) for item in value]
            else:
                value = _values_of(message, inner_fields, value)
        elif isinstance(value, memoryview):
            value = bytes(value)
        result[field.name] = value
    return result


def all_fields(message: Message) -> list[tuple[Message | Struct, Field]]:
    """Every field with what holds it."""
    return [(holder, field) for holder in (message, *message.structs.values()) for field in holder.fields]
