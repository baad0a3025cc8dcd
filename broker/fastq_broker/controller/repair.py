"""What a damaged metadata log costs, in words, and cutting it so that a node can start again.

Rules: what is kept is a log without a gap behind a snapshot, so that nothing is ever written at an offset that a snapshot covers.
Files are replaced in an order in which a stop at any moment leaves either the old state or the new one to be found; before a repair
changes anything, what it changes is copied to a file beside the directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fastq._native.crc32c import crc32c
from fastq._native.wire import Reader
from fastq.protocol.messages import (
    AbortTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    LeaderChangeMessage,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    VotersRecord,
)
from fastq.protocol.uuid import uuid_to_str
from fastq.values import Value
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.features import METADATA_VERSION
from fastq_broker.controller.image import MetadataDelta, MetadataError, MetadataImage, Record
from fastq_broker.controller.inspection import Damage, FoundBatch, Inspection, Verdict, kept_batches
from fastq_broker.controller.records import (
    ABORT_TRANSACTION,
    BEGIN_TRANSACTION,
    END_TRANSACTION,
    PRODUCER_ID_BLOCK,
    ControlType,
    data_batches,
    encode_record,
)
from fastq_broker.controller.snapshot import Batch, decode_batches, read_snapshot, replay_batches
from fastq_broker.controller.storage import sync_directory

_MADE_ANEW = {
    RegisterBrokerRecord: "the registration of a broker",
    BrokerRegistrationChangeRecord: "a change of a broker's registration",
    PartitionChangeRecord: "an election of a leader",
}
_SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_LEADER_EPOCHS = "leader-epoch-checkpoint"
_CUT_BYTES = 1 << 20  # as much as may have been at an end that is gone, for who counts what it may have held
UNFINISHED = ".part"
DAMAGED = ".damaged"


def begin_anew(directory: Path, batches: Iterable[bytes], at: int) -> None:
    """Let the log consist of these batches, the first of which has offset `at`. Raises OSError.

    A stop in between leaves the new file beside old ones, which begin below it or hold what it holds.
    """
    target = directory / f"{at:020d}.log"
    unfinished = target.with_name(target.name + UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            file.writelines(batches)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(unfinished)
        raise
    unfinished.replace(target)
    sync_directory(directory)
    for name in os.listdir(directory):
        if name != target.name and (name == _LEADER_EPOCHS or _is_of_a_segment(name)):
            (directory / name).unlink(missing_ok=True)
    sync_directory(directory)


def _is_of_a_segment(name: str) -> bool:
    return name[:20].isdigit() and name[20:] in _SEGMENT_SUFFIXES


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that it is in nobody's way and still there; answers its name. Raises OSError."""
    number = 0
    target = path.with_name(path.name + DAMAGED)
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{number}{DAMAGED}")
    path.rename(target)
    return target


class Plan(Value):
    """What a repair does: the log begins at `begin_at` with `kept`, and then ends; `lost` are the changes that are gone, in words."""

    found: Inspection
    reasons: Sequence[str]
    begin_at: int
    kept: Sequence[FoundBatch]
    lost: Sequence[str]
    lost_bytes: int

    @property
    def end_offset(self) -> int:
        """Where the log ends afterwards."""
        return self.kept[-1].next_offset if self.kept else self.begin_at


def plan_repair(found: Inspection, verdict: Verdict) -> Plan:
    """The repair that keeps the most. Nothing is changed."""
    begin_at = found.snapshot_end if verdict.begin_at is None else verdict.begin_at
    if not found.snapshot_end and verdict.begin_at is None and found.start_offset > 0:
        begin_at = 0
    kept = list(kept_batches(found, begin_at))
    end = kept[-1].next_offset if kept else begin_at
    behind = [batch for batch in found.batches if batch.base_offset >= end]
    unmended = [damage for damage in found.damages if damage.mended is None]
    broken = [damage for damage in unmended if damage.next_offset is None or damage.next_offset > end]
    size = sum(batch.size_bytes for batch in behind) + sum(item.end - item.position for item in broken)
    if verdict.cut:
        size += _CUT_BYTES
    names = _topic_names(found)
    lost = [
        *(text for damage in broken for text in _guessed(damage, names)),
        *_changes((record for batch in behind for record in _records(batch)), names),
    ]
    return Plan(found, verdict.losses, begin_at, kept, lost, size)


def _topic_names(found: Inspection) -> dict[bytes, str]:
    """Names of all topics that the readable part of the directory knows."""
    names: dict[bytes, str] = {}
    records = [record for batch in found.batches for record in _records(batch)]
    if found.snapshots:
        path = found.directory / found.snapshots[-1].file_name
        records += [record for batch in read_snapshot(path) for record in batch.records]
    for record in records:
        if isinstance(record, TopicRecord):
            names[record.topic_id] = record.name
    return names


def _records(batch: FoundBatch) -> Sequence[Record]:
    """The records of a batch; none of one that is whole and was written by another version."""
    try:
        return _decode(batch.read()).records
    except (ValueError, MetadataError):
        return ()


def _decode(data: bytes) -> Batch:
    return next(decode_batches(data))


def _guessed(damage: Damage, names: Mapping[bytes, str]) -> Iterator[str]:
    """What stood in a place that is damaged, read without its checksum."""
    with damage.path.open("rb") as file:
        file.seek(damage.position)
        data = bytearray(file.read(damage.end - damage.position))
    count = "" if damage.next_offset is None else f", {damage.next_offset - damage.offset} records"
    yield f"what stood at byte {damage.position} of {damage.path.name}: {len(data)} bytes{count}"
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    try:
        yield from (f"there, it seems: {text}" for text in _changes(_decode(bytes(data)).records, dict(names)))
    except (ValueError, MetadataError, StopIteration):
        return  # it cannot be read any more


def _changes(records: Iterable[Record], names: dict[bytes, str]) -> list[str]:
    """Records in words, in order; what is said twice is counted, and what a start makes anew comes last."""
    found: dict[str, int] = {}
    anew: dict[str, int] = {}
    for record in records:
        again = _MADE_ANEW.get(type(record))
        if again is not None:
            anew[again] = anew.get(again, 0) + 1
        elif record.API_KEY not in (BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION):
            text = _in_words(record, names)
            found[text] = found.get(text, 0) + 1
    texts = [text if count == 1 else f"{text} ({count} of them)" for text, count in found.items()]
    return texts + [f"{text} (made anew by the next start)" for text in anew]


def _in_words(record: Record, names: dict[bytes, str]) -> str:
    if isinstance(record, TopicRecord):
        names[record.topic_id] = record.name
        return f"topic {record.name} was created (topic id {uuid_to_str(record.topic_id)})"
    if isinstance(record, PartitionRecord | RemoveTopicRecord):
        name = names.get(record.topic_id, f"of id {uuid_to_str(record.topic_id)}")
        added = isinstance(record, PartitionRecord)
        return f"a partition of topic {name} was created" if added else f"topic {name} was deleted"
    if isinstance(record, ConfigRecord):
        known = record.resource_type in set(ResourceType)
        kind = ResourceType(record.resource_type).name.lower() if known else f"resource type {record.resource_type}"
        change = "was removed" if record.value is None else f"was set to {record.value!r}"
        return f"{record.name} of {kind} {record.resource_name!r} {change}"
    if isinstance(record, FeatureLevelRecord):
        return f"feature {record.name} was set to level {record.feature_level}"
    if isinstance(record, ProducerIdsRecord):
        return f"producer ids below {record.next_producer_id} were given out"
    return f"one {type(record).__name__}"


def refusal(plan: Plan, command: str) -> str:
    """Why a node does not start, what accepting it would cost, and how that is done."""
    shown = "; ".join(plan.lost[:20]) + ("; and more" if len(plan.lost) > 20 else "")
    cost = f"These changes would be lost: {shown}" if plan.lost else "No readable change would be lost"
    return (
        f"{'; '.join(plan.reasons)}. Nothing was changed. {cost}. Restore the directory from a copy, or "
        f"accept the loss: `{command}` says what it would do, and does it with --execute"
    )


def refusal_among_others(reasons: Sequence[str], root: Path, command: str) -> str:
    """Why a node of several does not start, and what is done there: what a repair cuts off, others have, and a replica that has forgotten
    what it has acknowledged must not count as the one that did. `command` formats `root`."""
    return (
        f"{'; '.join(reasons)}. Nothing was changed. This node is one of several, and the others have what is damaged here, so that no "
        f"repair is made: while a majority of the other controllers is up, set {root} aside, and format it anew: `{command}`; the node "
        "then fetches from the others what it had (docs/operations.md, 'A node or its disk is lost')"
    )


def named_voters(found: Inspection) -> frozenset[int]:
    """The voters that the last readable record, or else the latest snapshot, names."""
    for batch in reversed(found.batches):
        voters = _voters_in(_controls(batch))
        if voters is not None:
            return voters
    if found.snapshots:
        path = found.directory / found.snapshots[-1].file_name
        return _voters_in([item for batch in read_snapshot(path) for item in batch.controls]) or frozenset()
    return frozenset()


def _controls(batch: FoundBatch) -> Sequence[tuple[bytes, bytes]]:
    try:
        return _decode(batch.read()).controls
    except (ValueError, MetadataError):
        return ()


def _voters_in(controls: Sequence[tuple[bytes, bytes]]) -> frozenset[int] | None:
    """Who votes, as control records say: what a leader begins with, or what names voters."""
    for key, value in reversed(controls):
        kind = int.from_bytes(key[2:4], "big")
        if kind == ControlType.LEADER_CHANGE:
            return frozenset(voter.voter_id for voter in LeaderChangeMessage.decode(Reader(value), 0).voters)
        if kind == ControlType.KRAFT_VOTERS:
            return frozenset(voter.voter_id for voter in VotersRecord.decode(Reader(value), 0).voters)
    return None


def repair(plan: Plan) -> Path:
    """Carry a plan out; answers the file that keeps what was there. Raises OSError, MetadataError."""
    found = plan.found
    copy = _keep_copy(found.directory)
    pieces = [batch.read() for batch in plan.kept]
    if plan.lost or plan.lost_bytes:
        pieces += _skip_producer_ids(plan)
    end = plan.end_offset
    begin_anew(found.directory, pieces, plan.begin_at)
    for snapshot, _ in found.unreadable:  # last: a snapshot beyond the log may be all that says that something is lost
        set_aside(found.directory / snapshot.file_name)
    if any(snapshot.end_offset > end for snapshot in found.snapshots):
        raise MetadataError(f"{found.directory}: the log ends at {end}, below a snapshot")
    return copy


def _keep_copy(directory: Path) -> Path:
    number = 1
    while (target := directory.with_name(f"{directory.name}.before-repair.{number}.tar")).exists():
        number += 1
    try:
        with target.open("xb") as file:
            import tarfile

            with tarfile.open(fileobj=file, mode="w") as archive:
                archive.add(directory, directory.name)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        target.unlink(missing_ok=True)  # half a copy is none
        error.filename = error.filename or str(target)
        raise
    sync_directory(directory.parent)
    return target


def _skip_producer_ids(plan: Plan) -> list[bytes]:
    """A record that skips every producer id that a lost change may have given out: a block of them took a byte at least."""
    delta = MetadataDelta(MetadataImage())
    batches: list[Batch] = []
    if plan.found.snapshots:
        batches += read_snapshot(plan.found.directory / plan.found.snapshots[-1].file_name)
    batches += [_decode(batch.read()) for batch in plan.kept]
    in_transaction = replay_batches(batches, delta)
    image = delta.apply(plan.end_offset - 1, batches[-1].epoch if batches else 0, 0)
    if METADATA_VERSION not in image.features:
        return []  # nothing is left of the cluster: its topics are gone, and their producers with them
    broker_id, broker_epoch = image.producer_ids_owner
    skip = PRODUCER_ID_BLOCK * (plan.lost_bytes + 1)
    records: list[Record] = [
        ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=image.next_producer_id + skip
        )
    ]
    if in_transaction:
        records.insert(0, AbortTransactionRecord(reason="the rest of it was lost"))
    values = [encode_record(record, image.features[METADATA_VERSION]) for record in records]
    made = data_batches(
        values, base_offset=plan.end_offset, epoch=image.epoch, timestamp_ms=batches[-1].timestamp_ms if batches else 0
    )
    return [bytes(batch) for batch, _ in made]
