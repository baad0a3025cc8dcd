"""Records of the coordinators' topics as bytes.

A key is the record's type (int16), then the fields of its key message at version 0; a value is the version of its message
(int16), then its fields. Both are big-endian, as everything on the wire. Source: CoordinatorRecordSerde.
"""

from __future__ import annotations

from typing import TypeVar

from fastq._native.wire import Reader, Writer
from fastq.protocol.message import Message

M = TypeVar("M", bound=Message)


def encode_key(key: Message) -> bytes:
    """The bytes of a key: its record type is the message's API_KEY."""
    writer = Writer(128)
    writer.write_int16(key.API_KEY)
    key.encode(writer, 0)
    return bytes(writer.getvalue())


def encode_value(value: Message, version: int) -> bytes:
    """The bytes of a value at a version of its message."""
    writer = Writer(128)
    writer.write_int16(version)
    value.encode(writer, version)
    return bytes(writer.getvalue())


def record_type(key: bytes) -> int:
    """The type of a record; -1 for a key that is too short to have one."""
    return int.from_bytes(key[:2], "big", signed=True) if len(key) >= 2 else -1


def decode_key(message: type[M], key: bytes) -> M:
    """The key's message; its type is not looked at. Raises DecodeError."""
    return message.decode(Reader(key, 2), 0)


def decode_value(message: type[M], value: bytes) -> M:
    """The value's message, in the version that it says. Raises DecodeError, also for a version that is not known."""
    reader = Reader(value)
    return message.decode(reader, reader.read_int16())
