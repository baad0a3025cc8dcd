"""The frame around a value whose schema is in a registry, as Confluent's serializers write it.

    magic 1 (always 0), schema id 4 (big-endian), and then by format
    Avro, JSON Schema   the value
    Protobuf            the place of the message's type in its file: a zigzag varint count, and as many zigzag varint
                        indexes, from the outermost type inwards; the first type of the file is the single byte 0
                        then the message

Rules: reading is checked against the end; what is no frame raises DeserializationError and says what was found.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fastq.errors import DeserializationError

MAGIC = 0
HEADER = struct.Struct(">bI")
INDEXES_MAX = 64
"""More nested types than that is rubbish."""


def header(schema_id: int) -> bytes:
    """The five bytes before a value of this schema."""
    return HEADER.pack(MAGIC, schema_id)


def split(data: bytes | bytearray | memoryview) -> tuple[int, memoryview]:
    """The schema id and what follows the header. Raises DeserializationError."""
    view = memoryview(data)
    if len(view) < HEADER.size or view[0] != MAGIC:
        found = f"{len(view)} bytes" if len(view) < HEADER.size else f"byte {view[0]:#04x}"
        raise DeserializationError(
            f"expected magic byte 0 and a schema id of 4 bytes, got {found}",
            raw=bytes(view),
            hint="The value was not written by a serializer with a schema registry; use another deserializer for the topic",
        )
    return HEADER.unpack_from(view)[1], view[HEADER.size :]


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The place of a message type in its file."""
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(_zigzag(value) for value in (len(indexes), *indexes))


def decode_indexes(view: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """The place of a message type, and what follows it. Raises DeserializationError."""
    count, position = _read_zigzag(view, 0)
    if count == 0:
        return (0,), view[position:]
    if not 0 < count <= INDEXES_MAX:
        raise DeserializationError(f"expected at most {INDEXES_MAX} message indexes, got {count}", raw=bytes(view))
    indexes = []
    for _ in range(count):
        value, position = _read_zigzag(view, position)
        if value < 0:
            raise DeserializationError(f"expected a message index, got {value}", raw=bytes(view))
        indexes.append(value)
    return tuple(indexes), view[position:]


def _zigzag(value: int) -> bytes:
    rest = value << 1 if value >= 0 else ~(value << 1)
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_zigzag(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(view) or shift > 28:
            raise DeserializationError("expected message indexes after the schema id, got the end", raw=bytes(view))
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
