"""Record batch v2 in plain, slow Python: what the native code is held against.

Written from the format's description alone (KIP-98): no shared code, no shortcuts. `Refused` is its one error.
"""

import struct
from typing import NamedTuple

HEADER = struct.Struct(">qiibIhiqqqhii")  # base offset ... record count: 61 bytes


class Refused(Exception):
    """The bytes are not what the format says."""


class Record(NamedTuple):
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: list


class Cursor:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, size):
        if size < 0 or self.at + size > len(self.data):
            raise Refused(f"{size} bytes at {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits):
        raw = 0
        for number in range((bits + 6) // 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                break
        else:
            raise Refused("varint too long")
        if raw >> bits:
            raise Refused("varint too wide")
        return raw >> 1 ^ -(raw & 1)

    def nullable(self):
        size = self.varint(32)
        if size == -1:
            return None
        return bytes(self.take(size))


def parse_record(cursor):
    body = Cursor(cursor.take(cursor.varint(32)))
    body.take(1)
    timestamp_delta = body.varint(64)
    offset_delta = body.varint(32)
    key, value = body.nullable(), body.nullable()
    headers = []
    count = body.varint(32)
    if count < 0:
        raise Refused("header count")
    while count:
        name = body.nullable()
        if name is None:
            raise Refused("null header key")
        headers.append((name.decode("utf-8", "surrogateescape"), body.nullable()))
        count -= 1
    if body.at != len(body.data):
        raise Refused("bytes behind the headers")
    return Record(offset_delta, timestamp_delta, key, value, headers)


def parse_records(payload, count):
    """Exactly `count` records that fill `payload`."""
    if count < 0:
        raise Refused("record count")
    cursor = Cursor(payload)
    records = []
    while len(records) < count:
        records.append(parse_record(cursor))
    if cursor.at != len(payload):
        raise Refused("bytes behind the records")
    return records


def wrap64(number):
    """As Java's long."""
    return (number + 2**63) % 2**64 - 2**63


def decode(data):
    """(offset, timestamp, key, value, headers) of each record of the uncompressed batch at the start of `data`."""
    if len(data) < HEADER.size:
        raise Refused("header")
    fields = HEADER.unpack_from(data)
    base_offset, length, _, magic, _, attributes, _, base_timestamp, max_timestamp = fields[:9]
    if magic != 2 or length < 49 or 12 + length > len(data) or attributes & 7:
        raise Refused("header")
    rows = []
    for record in parse_records(data[61 : 12 + length], fields[12]):
        timestamp = max_timestamp if attributes & 8 else wrap64(base_timestamp + record.timestamp_delta)
        rows.append((wrap64(base_offset + record.offset_delta), timestamp, record.key, record.value, record.headers))
    return rows


def varint(number, bits=64):
    raw = (number << 1 ^ number >> bits - 1) & (1 << bits) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def encode_nullable(data):
    return varint(-1) if data is None else varint(len(data)) + bytes(data)


def encode_record(offset_delta, timestamp_delta, key, value, headers=(), attributes=0):
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta)
    body += encode_nullable(key) + encode_nullable(value) + varint(len(headers))
    for name, content in headers:
        body += encode_nullable(name) + encode_nullable(content)
    return varint(len(body)) + body
