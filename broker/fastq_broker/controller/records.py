"""Metadata records as bytes: the frame of a record, the version each is written in, and control records.

    value of a record     uvarint frame version (1), uvarint record type, uvarint record version, flexible body
    key of a control      int16 version (0), int16 type: 2 leader change, 3 snapshot header, 4 snapshot footer,
                          5 KRaft version, 6 voters; the value is the message itself (its first field is its version)

Source: AbstractApiMessageSerde, ControlRecordType, MetadataVersion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

from fastq._native.records import build_batch, encode_control_key
from fastq._native.wire import DecodeError, Reader, Writer
from fastq.protocol.api import metadata_record_class
from fastq_broker.controller.image import MetadataError, Record

FRAME_VERSION = 1
# Kafka's bound on one batch of the metadata log.
BATCH_BYTES_MAX = 8 << 20
RECORD_OVERHEAD_BYTES_MAX = 32
"""What a record takes in a batch beside its value, at most."""
# Ids in one block, as Kafka hands them out (ProducerIdsBlock).
PRODUCER_ID_BLOCK = 1000
# Levels of metadata.version at which a record's format changed.
_DIRECTORIES = 17  # 3.7-IV2
_ELR = 23  # 4.0-IV1
_ZK_MIGRATION = 8  # 3.4-IV0
_CORDONED = 30  # 4.3-IV0

BEGIN_TRANSACTION = 23
END_TRANSACTION = 24
ABORT_TRANSACTION = 25


class ControlType(IntEnum):
    """Types of control records in the metadata log and its snapshots."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def _record_class(record_type: int) -> Any:
    try:
        return metadata_record_class(record_type)
    except KeyError:
        raise MetadataError(f"metadata record type {record_type} is not known") from None


def version_of(record: Record, metadata_version: int) -> int:
    """The version a record is written in, so that every node at this metadata.version can read it."""
    kind = record.API_KEY
    if kind in (3, 5):
        return 2 if metadata_version >= _ELR else 1 if metadata_version >= _DIRECTORIES else 0
    if kind == 0:
        if metadata_version >= _CORDONED:
            return 4
        return 3 if metadata_version >= _DIRECTORIES else 2 if metadata_version >= _ZK_MIGRATION else 1
    if kind == 17:
        return _change_version(record)
    return 0


def _change_version(record: Record) -> int:
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0


def encode_record(record: Record, metadata_version: int) -> bytes:
    """The value of one metadata record."""
    version = version_of(record, metadata_version)
    if record.API_KEY in (3, 5) and version < 2:
        record = _without_newer_fields(record, version)
    writer = Writer(128)
    writer.write_uvarint(FRAME_VERSION)
    writer.write_uvarint(record.API_KEY)
    writer.write_uvarint(version)
    record.encode(writer, version)
    return writer.getvalue()


def _without_newer_fields(record: Record, version: int) -> Record:
    """A copy of a partition's record without what its version cannot say."""
    fields = {name: getattr(record, name) for name in record.__slots__}
    fields["eligible_leader_replicas"] = fields["last_known_elr"] = None
    if version < 1:
        fields["directories"] = [] if record.API_KEY == 3 else None
    return type(record)(**fields)


def decode_record(value: bytes | memoryview) -> Record:
    """The metadata record of a value; MetadataError names what is wrong with it."""
    try:
        # Frame, type and version below 128 are one byte each: all that exist today.
        if len(value) < 3 or value[0] != FRAME_VERSION or (value[1] | value[2]) > 0x7F:
            raise MetadataError(f"a metadata record starts with {bytes(value[:3]).hex()}, expected frame version 1")
        message = _record_class(value[1])
        version = value[2]
        if version > message.MAX_VERSION:
            raise MetadataError(
                f"{message.__name__} has version {version}, this node reads up to {message.MAX_VERSION}"
            )
        return message.decode(Reader(value, 3), version)
    except DecodeError as error:
        raise MetadataError(f"metadata record of type {value[1]} does not decode: {error}") from error


def encode_control(control_type: int, message: Any, version: int = 0) -> tuple[bytes, bytes]:
    """Key and value of a control record."""
    writer = Writer(128)
    message.encode(writer, version)
    return encode_control_key(control_type), writer.getvalue()


def data_batches(
    values: Sequence[bytes], *, base_offset: int, epoch: int, timestamp_ms: int
) -> Iterable[tuple[bytearray, int]]:
    """Batches of at most 8 MiB that hold the values in order, each with its number of records."""
    start = 0
    while start < len(values):
        end, size = start, 0
        while end < len(values) and (
            end == start or size + len(values[end]) + RECORD_OVERHEAD_BYTES_MAX <= BATCH_BYTES_MAX
        ):
            size += len(values[end]) + RECORD_OVERHEAD_BYTES_MAX
            end += 1
        rows = [(timestamp_ms, None, value, ()) for value in values[start:end]]
        yield build_batch(rows, base_offset=base_offset + start, leader_epoch=epoch), end - start
        start = end


def control_batch(
    records: Sequence[tuple[bytes, bytes]], *, base_offset: int, epoch: int, timestamp_ms: int
) -> bytearray:
    """One control batch of (key, value) pairs."""
    rows = [(timestamp_ms, key, value, ()) for key, value in records]
    return build_batch(rows, base_offset=base_offset, leader_epoch=epoch, control=True)
