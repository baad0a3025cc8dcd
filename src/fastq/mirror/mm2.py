"""The records of MirrorMaker 2's own topics, in its bytes, so that its tools and `RemoteClusterUtils` work with what we mirror.

Rules: pure. Big-endian; a text is an int16 length and UTF-8. Each of these topics has one partition and is compacted. Classes of the same
names in org.apache.kafka.connect.mirror.
"""

from __future__ import annotations

import struct

from fastq.errors import DeserializationError
from fastq.values import NamedTuple

VERSION = 0


class Heartbeat(NamedTuple):
    """Of the topic `heartbeats` of the source, which is mirrored as `ALIAS.heartbeats`: the mirror lived at this time."""

    source: str
    target: str
    time_ms: int

    def key(self) -> bytes:
        return _text(self.source) + _text(self.target)

    def value(self) -> bytes:
        return struct.pack(">hq", VERSION, self.time_ms)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Heartbeat:
        reader = _Reader(key)
        source, target = reader.text(), reader.text()
        reader.end()
        rest = _versioned(value)
        time_ms = rest.int64()
        return cls(source, target, time_ms)


class Checkpoint(NamedTuple):
    """Of `ALIAS.checkpoints.internal` of the target: where a group of the source would go on there. `topic` is the target's."""

    group: str
    topic: str
    partition: int
    upstream: int
    downstream: int
    metadata: str = ""

    def key(self) -> bytes:
        return _text(self.group) + _text(self.topic) + struct.pack(">i", self.partition)

    def value(self) -> bytes:
        return struct.pack(">hqq", VERSION, self.upstream, self.downstream) + _text(self.metadata)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Checkpoint:
        reader = _Reader(key)
        group, topic, partition = reader.text(), reader.text(), reader.int32()
        reader.end()
        rest = _versioned(value)
        return cls(group, topic, partition, rest.int64(), rest.int64(), rest.text())


class OffsetSync(NamedTuple):
    """Of `mm2-offset-syncs.ALIAS.internal`: a record of the source's topic and the same one in the target."""

    topic: str
    partition: int
    upstream: int
    downstream: int

    def key(self) -> bytes:
        return _text(self.topic) + struct.pack(">i", self.partition)

    def value(self) -> bytes:
        return struct.pack(">qq", self.upstream, self.downstream)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> OffsetSync:
        reader, rest = _Reader(key), _Reader(value)
        topic, partition = reader.text(), reader.int32()
        reader.end()
        return cls(topic, partition, rest.int64(), rest.int64())


def checkpoints_topic(source_alias: str) -> str:
    return f"{source_alias}.checkpoints.internal"


def offset_syncs_topic(other_alias: str) -> str:
    """Named by the other of the two clusters than the one that has it."""
    return f"mm2-offset-syncs.{other_alias}.internal"


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _versioned(value: bytes) -> _Reader:
    reader = _Reader(value)
    version = reader.int16()
    if version != VERSION:
        raise DeserializationError(f"version {version} of a record of MirrorMaker 2, {VERSION} is known")
    return reader


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) < size:
            raise DeserializationError(f"a record of MirrorMaker 2 ends early: {self._data[:100]!r}")
        self._at += size
        return found

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def text(self) -> str:
        try:
            return self._take(self.int16()).decode()
        except UnicodeDecodeError as error:
            raise DeserializationError(
                f"no text in a record of MirrorMaker 2: {self._data[:100]!r}", cause=error
            ) from None

    def end(self) -> None:
        if self._at != len(self._data):
            raise DeserializationError(f"a record of MirrorMaker 2 goes on behind its end: {self._data[:100]!r}")
