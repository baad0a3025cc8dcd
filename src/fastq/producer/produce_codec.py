"""Produce requests and responses, coded by hand: one a batch of records, so the generated classes would be felt.

Rules: versions 3 to 13; a request refers to the batches' memory and copies none of it; decoding raises DecodeError and
nothing else. A test holds both equal to the generated messages.

    request   [v3+ transactional id] acks 2, timeout 4, topics[ name | v13+ id 16, partitions[ index 4, records ]]
    response  topics[ name | v13+ id 16, partitions[ index 4, error 2, base offset 8, log append time 8,
              v5+ log start 8, v8+ record errors[ index 4, message ], v8+ message, v10+ tag 0: leader 4, epoch 4 ]],
              throttle 4, v10+ tag 0: endpoints[ node 4, host, port 4, rack ]
    v9+ is flexible: compact lengths (uvarint of length + 1, 0 is null) and tagged fields after every struct.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

from fastq._native.producer_batch import Batch, TopicState
from fastq._native.wire import DecodeError
from fastq.metadata import Node
from fastq.values import NamedTuple, Value

API_KEY = 0
MIN_VERSION, MAX_VERSION = 3, 13
FLEXIBLE_VERSION = 9
TOPIC_ID_VERSION = 13

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_header = struct.Struct(">hi")
_answer_v3 = struct.Struct(">ihqq")
_answer_v5 = struct.Struct(">ihqqq")
_one_answer_v13 = struct.Struct(">B16sBihqqq4siB")
"""Of the whole body: count, topic id, count, the answer, its errors, message and tags with those of the topic, throttle, tags."""


class PartitionAnswer(NamedTuple):
    """What a broker says of one batch. `topic` is the name, or from v13 on the 16 bytes of the topic's id."""

    topic: str | bytes
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1


class ProduceAnswer(Value):
    """A whole response; `nodes` are the endpoints of the leaders that it names."""

    partitions: tuple[PartitionAnswer, ...]
    throttle_time_ms: int = 0
    nodes: tuple[Node, ...] = ()


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_produce(
    version: int, acks: int, timeout_ms: int, batches: Iterable[Batch], transactional_id: str | None = None
) -> list[bytes | memoryview]:
    """The body of a Produce request as a list of buffers, in wire order; at most one batch a partition."""
    by_topic: dict[TopicState, list[Batch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.partition.topic, []).append(batch)
    flexible = version >= FLEXIBLE_VERSION
    buffers: list[bytes | memoryview] = []
    head = bytearray(_request_head(flexible, acks, timeout_ms, transactional_id, len(by_topic)))
    for topic, members in by_topic.items():
        if version >= TOPIC_ID_VERSION:
            head += topic.topic_id
        elif flexible:
            head += uvarint(len(topic.encoded_name) + 1) + topic.encoded_name
        else:
            head += _int16.pack(len(topic.encoded_name)) + topic.encoded_name
        head += _count(len(members), flexible)
        for batch in members:
            size = batch.size_bytes
            head += _int32.pack(batch.partition.index) + (uvarint(size + 1) if flexible else _int32.pack(size))
            buffers.append(bytes(head))
            buffers.extend(batch.buffers())
            head = bytearray(b"\x00" if flexible else b"")
        if flexible:
            head += b"\x00"
    if flexible:
        head += b"\x00"
    if head:
        buffers.append(bytes(head))
    return buffers


@lru_cache(maxsize=64)
def _request_head(flexible: bool, acks: int, timeout_ms: int, transactional_id: str | None, topics: int) -> bytes:
    """What comes before the first topic; nearly always the same."""
    return _string(transactional_id, flexible) + _header.pack(acks, timeout_ms) + _count(topics, flexible)


def _string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else _int16.pack(len(encoded))) + encoded


@lru_cache(maxsize=64)
def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _int32.pack(count)


class _Cursor:
    """A place in a response; every read is checked against its end."""

    __slots__ = ("data", "flexible", "position")

    def __init__(self, data: bytes, flexible: bool) -> None:
        self.data, self.position, self.flexible = data, 0, flexible

    def bad(self, expected: str, position: int) -> DecodeError:
        """The error of something that is not there."""
        return DecodeError(expected, position, f"the response has {len(self.data)} bytes", "ProduceResponse")

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        position = self.position
        self.position = position + layout.size
        try:
            return layout.unpack_from(self.data, position)
        except struct.error:
            raise self.bad(f"{layout.size} bytes", position) from None

    def int32(self) -> int:
        return self.take(_int32)[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            if self.position >= len(self.data) or shift > 28:
                raise self.bad("a varint of at most 5 bytes", self.position)
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """The length of an array; null counts as empty. No more than one element for each byte that is left."""
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count > len(self.data) - self.position:
            raise self.bad(f"{count} elements", self.position)
        return max(count, 0)

    def raw(self, size: int) -> bytes:
        start, self.position = self.position, self.position + size
        if size < 0 or self.position > len(self.data):
            raise self.bad(f"{size} bytes", start)
        return self.data[start : self.position]

    def string(self) -> str | None:
        size = self.uvarint() - 1 if self.flexible else self.take(_int16)[0]
        if size == -1:
            return None
        try:
            return self.raw(size).decode()
        except UnicodeDecodeError as error:
            raise DecodeError("UTF-8", self.position, str(error), "ProduceResponse") from None

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that end a struct."""
        if not self.flexible:
            return {}
        return {self.uvarint(): self.raw(self.uvarint()) for _ in range(self.count_of_tags())}

    def count_of_tags(self) -> int:
        count = self.uvarint()
        if count > len(self.data) - self.position:
            raise self.bad(f"{count} tagged fields", self.position)
        return count


def decode_produce(data: bytes | bytearray | memoryview, version: int) -> ProduceAnswer:
    """Read the body of a Produce response. Raises DecodeError."""
    if version == TOPIC_ID_VERSION and len(data) == _one_answer_v13.size:
        # One partition without errors or tags, which is nearly every response of a producer with small batches.
        topics, topic_id, partitions, *fields, end, throttle_time_ms, last = _one_answer_v13.unpack(data)
        if (topics, partitions, end, last) == (2, 2, b"\x01\0\0\0", 0):
            return ProduceAnswer((PartitionAnswer(topic_id, *fields),), throttle_time_ms, ())
    cursor = _Cursor(bytes(data), version >= FLEXIBLE_VERSION)
    answers: list[PartitionAnswer] = []
    for _ in range(cursor.count()):
        topic: str | bytes = cursor.raw(16) if version >= TOPIC_ID_VERSION else cursor.string() or ""
        answers.extend([_decode_partition(cursor, version, topic) for _ in range(cursor.count())])
        cursor.tags()
    throttle_time_ms = cursor.int32()
    endpoints = cursor.tags().get(0)
    if cursor.position != len(cursor.data):
        raise DecodeError(
            "the end", cursor.position, f"{len(cursor.data) - cursor.position} bytes more", "ProduceResponse"
        )
    return ProduceAnswer(tuple(answers), throttle_time_ms, _decode_nodes(endpoints) if endpoints else ())


def _decode_partition(cursor: _Cursor, version: int, topic: str | bytes) -> PartitionAnswer:
    if version >= 5:
        index, error_code, base_offset, log_append_time_ms, log_start_offset = cursor.take(_answer_v5)
    else:
        (index, error_code, base_offset, log_append_time_ms), log_start_offset = cursor.take(_answer_v3), -1
    errors: tuple[tuple[int, str | None], ...] = ()
    message, leader_id, leader_epoch = None, -1, -1
    if version >= 8:
        errors = tuple([_decode_record_error(cursor) for _ in range(cursor.count())])
        message = cursor.string()
    tags = cursor.tags()
    if 0 in tags:
        leader = _Cursor(tags[0], True)
        leader_id, leader_epoch = leader.int32(), leader.int32()
    return PartitionAnswer(
        topic,
        index,
        error_code,
        base_offset,
        log_append_time_ms,
        log_start_offset,
        errors,
        message,
        leader_id,
        leader_epoch,
    )


def _decode_record_error(cursor: _Cursor) -> tuple[int, str | None]:
    index, message = cursor.int32(), cursor.string()
    cursor.tags()
    return index, message


def _decode_nodes(data: bytes) -> tuple[Node, ...]:
    cursor = _Cursor(data, True)
    nodes = []
    for _ in range(cursor.count()):
        nodes.append(Node(cursor.int32(), cursor.string() or "", cursor.int32(), cursor.string()))
        cursor.tags()
    return tuple(nodes)
