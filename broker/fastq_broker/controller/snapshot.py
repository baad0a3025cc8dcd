"""Snapshots of the metadata: everything an image holds, as records between a header and a footer.

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint
        control batch: SnapshotHeader, KRaftVersion, KRaftVoters
        data batches of at most 8 MiB: features, brokers, controllers, topics and partitions, configs, the rest
        control batch: SnapshotFooter

Rules: the file is written beside, synced and renamed, so one that has its name is whole. It holds every record below its
end offset; replay goes on from there. Offsets inside begin at 0. Source: RecordsSnapshotWriter, MetadataImage.write.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastq._native.records import decode_records, iter_headers
from fastq._native.wire import Reader
from fastq.protocol.messages import (
    ConfigRecord,
    FeatureLevelRecord,
    KRaftVersionRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    TopicRecord,
    VotersRecord,
)
from fastq.values import NamedTuple
from fastq_broker.controller.features import ELIGIBLE_LEADER_REPLICAS, METADATA_VERSION
from fastq_broker.controller.image import (
    BrokerImage,
    MetadataDelta,
    MetadataError,
    MetadataImage,
    PartitionImage,
    Record,
    TopicImage,
)
from fastq_broker.controller.records import (
    ABORT_TRANSACTION,
    BEGIN_TRANSACTION,
    END_TRANSACTION,
    ControlType,
    control_batch,
    data_batches,
    decode_record,
    encode_control,
    encode_record,
)
from fastq_broker.controller.storage import read_file, sync_directory
from fastq_broker.raft.messages import SnapshotId

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_HEADER_BYTES_MAX = 1 << 16
"""The control batch that a snapshot begins with has no more, whoever votes."""


class Batch(NamedTuple):
    """The decoded content of a batch of the metadata log: metadata records, or (key, value) pairs of control records."""

    base_offset: int
    last_offset: int
    epoch: int
    timestamp_ms: int
    records: Sequence[Record]
    controls: Sequence[tuple[bytes, bytes]]
    size_bytes: int


def decode_batches(data: bytes | memoryview) -> Iterator[Batch]:
    """The whole batches of `data`; a torn one at the end is left out. MetadataError or ValueError on damage."""
    for position, header in iter_headers(data):
        decoded = decode_records(data, position)
        records: list[Record] = []
        controls: list[tuple[bytes, bytes]] = []
        if header.is_control:
            controls = [(item.key or b"", item.value or b"") for item in decoded]
        else:
            records = [decode_record(item.value or b"") for item in decoded]
        yield Batch(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.max_timestamp,
            records,
            controls,
            header.size_bytes,
        )


class TransactionFilter:
    """Lets records through that are no part of a transaction, and those of one when it ends. Its ends themselves never come through."""

    def __init__(self) -> None:
        self._held: list[Record] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._held is not None

    def closed(self, batch: Batch) -> Iterator[Record]:
        """The records that count with this batch."""
        for record in batch.records:
            kind = record.API_KEY
            if kind == BEGIN_TRANSACTION:
                self._held = []
            elif kind == ABORT_TRANSACTION:
                self._held = None
            elif kind == END_TRANSACTION:
                held, self._held = self._held, None
                yield from held or ()
            elif self._held is not None:
                self._held.append(record)
            else:
                yield record


def replay_batches(batches: Iterable[Batch], delta: MetadataDelta) -> bool:
    """Feed the records of batches to `delta`, those of a transaction when it ends; answers whether the last one has not.

    MetadataError when a record does not fit.
    """
    closed = TransactionFilter()
    for batch in batches:
        for record in closed.closed(batch):
            delta.replay(record)
    return closed.is_open


def list_snapshots(directory: Path) -> list[SnapshotId]:
    """Whole snapshots in `directory`, oldest first."""
    found = (_NAME.fullmatch(name) for name in os.listdir(directory))
    return sorted(SnapshotId(int(match[1]), int(match[2])) for match in found if match)


def read_snapshot(path: Path) -> Iterator[Batch]:
    """The batches of a snapshot, checksums checked; MetadataError when it cannot be read, or its footer is missing."""
    footer = False
    try:
        try:
            data = read_file(path)
        except MemoryError as error:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error
        for batch in decode_batches(data):
            footer = any(key[2:4] == b"\x00\x04" for key, _ in batch.controls)
            yield batch
    except ValueError as error:
        raise MetadataError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise MetadataError(f"{path} cannot be read: {error.strerror}") from error
    if not footer:
        raise MetadataError(f"{path} is damaged: it ends without a snapshot footer")


def reaches_until_ms(path: Path) -> int | None:
    """The time of the last record of the log that a snapshot holds, as its header says, in ms since the epoch. 0 where the header is
    damaged: nobody can begin with such a one. None where it cannot be read."""
    try:
        with path.open("rb") as file:
            begin = file.read(_HEADER_BYTES_MAX)
    except OSError:
        return None
    with suppress(ValueError):
        for batch in decode_batches(begin):
            for key, value in batch.controls:
                if int.from_bytes(key[2:4], "big") == ControlType.SNAPSHOT_HEADER:
                    return SnapshotHeaderRecord.decode(Reader(value), 0).last_contained_log_timestamp
    return 0


def write_snapshot(
    path: Path,
    values: Sequence[bytes],
    *,
    epoch: int,
    timestamp_ms: int,
    last_timestamp_ms: int,
    kraft_version: int | None,
    voters: VotersRecord | None,
) -> int:
    """Write the records between header and footer to `path`, durably; answers the size in bytes."""
    header = [
        encode_control(
            ControlType.SNAPSHOT_HEADER, SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms)
        )
    ]
    if kraft_version is not None:
        header.append(encode_control(ControlType.KRAFT_VERSION, KRaftVersionRecord(kraft_version=kraft_version)))
    if voters is not None:
        header.append(encode_control(ControlType.KRAFT_VOTERS, voters))
    end = len(header) + len(values)
    footer = [encode_control(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord())]
    parts: list[Any] = [control_batch(header, base_offset=0, epoch=epoch, timestamp_ms=timestamp_ms)]
    parts += [
        batch for batch, _ in data_batches(values, base_offset=len(header), epoch=epoch, timestamp_ms=timestamp_ms)
    ]
    parts.append(control_batch(footer, base_offset=end, epoch=epoch, timestamp_ms=timestamp_ms))
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(temporary)
        with suppress(OSError):
            temporary.unlink()  # on a full disk it takes what others need
        raise
    temporary.rename(path)
    sync_directory(path.parent)
    return sum(map(len, parts))


def image_records(image: MetadataImage) -> Iterable[bytes]:
    """Every record of an image, encoded, in an order in which they can be replayed."""
    version = image.features.get(METADATA_VERSION, 0)
    for record in _records(image):
        yield encode_record(record, version)


def _records(image: MetadataImage) -> Iterator[Record]:
    # metadata.version first: it decides how the rest is written.
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for broker in image.brokers.values():
        yield _broker_record(broker)
    has_eligible = image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) > 0
    for topic in image.topics_by_name.values():
        for record in _topic_records(topic):
            if isinstance(record, PartitionRecord) and not has_eligible:
                record.eligible_leader_replicas = record.last_known_elr = None
            yield record
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            yield ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    if image.next_producer_id:
        broker_id, broker_epoch = image.producer_ids_owner
        yield ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=image.next_producer_id)
    yield from image.kept.values()


def _broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in broker.endpoints
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=list(broker.cordoned_directories) or None,
    )


def _topic_records(topic: TopicImage) -> Iterator[Record]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for number, partition in enumerate(topic.partitions):
        yield partition_to_record(topic.topic_id, number, partition)


def partition_to_record(topic_id: bytes, number: int, partition: PartitionImage) -> PartitionRecord:
    """The record that says all of a partition."""
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
