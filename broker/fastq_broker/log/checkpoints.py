"""Kafka's small text files: offset checkpoints of a log dir, leader epochs and identity of a partition.

Formats, lines end in a line feed:
    *-offset-checkpoint       "0", count, then count times "topic partition offset"
    leader-epoch-checkpoint   "0", count, then count times "epoch startOffset"
    partition.metadata        "version: 0", "topic_id: <22 characters of base64url>"
They are replaced at once (write `.tmp`, rename). Source: CheckpointFile, OffsetCheckpointFile, PartitionMetadataFile.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence

from .files import Files

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

TopicPartition = tuple[str, int]


class CorruptCheckpoint(ValueError):
    """A checkpoint that does not hold what its format says; the message names file and line."""


def _parse_lines(path: str, data: bytes) -> list[list[str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines or lines[0].strip() != "0":
        raise CorruptCheckpoint(f"{path}: expected version 0 in line 1, got {lines[0] if lines else 'an empty file'!r}")
    try:
        count = int(lines[1])
    except (IndexError, ValueError):
        raise CorruptCheckpoint(f"{path}: expected the number of entries in line 2") from None
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != count:
        raise CorruptCheckpoint(f"{path}: line 2 promises {count} entries, the file holds {len(entries)}")
    return entries


def parse_offsets(path: str, data: bytes) -> dict[TopicPartition, int]:
    """Entries of an offset checkpoint. Raises CorruptCheckpoint."""
    offsets: dict[TopicPartition, int] = {}
    for number, entry in enumerate(_parse_lines(path, data), start=3):
        try:
            topic, partition, offset = entry
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise CorruptCheckpoint(f"{path}: line {number} is not 'topic partition offset'") from None
    return offsets


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, int]:
    """Entries of an offset checkpoint of a log dir; none when there is no file, or an empty one, which Apache Kafka begins with.

    Raises CorruptCheckpoint, OSError.
    """
    path = os.path.join(directory, name)
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return {}
    return parse_offsets(path, data) if data else {}


def parse_epochs(path: str, data: bytes) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs of a leader-epoch-checkpoint. Raises CorruptCheckpoint."""
    epochs: list[tuple[int, int]] = []
    for number, entry in enumerate(_parse_lines(path, data), start=3):
        try:
            epoch, offset = map(int, entry)
        except ValueError:
            raise CorruptCheckpoint(f"{path}: line {number} is not 'epoch startOffset'") from None
        epochs.append((epoch, offset))
    return epochs


def format_epochs(epochs: Sequence[tuple[int, int]]) -> bytes:
    lines = "".join(f"{epoch} {offset}\n" for epoch, offset in epochs)
    return f"0\n{len(epochs)}\n{lines}".encode()


def format_partition_metadata(topic_id: bytes) -> bytes:
    encoded = base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
    return f"version: 0\ntopic_id: {encoded}".encode()


def parse_partition_metadata(path: str, data: bytes) -> bytes:
    """The 16 bytes of a topic id. Raises CorruptCheckpoint."""
    fields = dict(line.partition(":")[::2] for line in data.decode("utf-8", "replace").splitlines() if ":" in line)
    if fields.get("version", "").strip() != "0":
        raise CorruptCheckpoint(f"{path}: expected 'version: 0'")
    try:
        topic_id = base64.urlsafe_b64decode(fields["topic_id"].strip() + "==")
    except (KeyError, ValueError):
        raise CorruptCheckpoint(f"{path}: no readable topic_id") from None
    if len(topic_id) != 16:
        raise CorruptCheckpoint(f"{path}: topic_id has {len(topic_id)} bytes, expected 16")
    return topic_id


def read_topic_id(files: Files, directory: str) -> bytes | None:
    """The topic id that a log's directory carries; None when it has no partition.metadata. Raises CorruptCheckpoint, OSError."""
    path = os.path.join(directory, PARTITION_METADATA)
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return None
    return parse_partition_metadata(path, data)
