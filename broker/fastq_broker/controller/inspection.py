"""What the metadata directory holds and whether all of it can be trusted: read before anything in it is opened or changed.

The log is one sequence of batches without a gap, in one file after another; a snapshot holds all that lies below its end.
- Damage is a place where no whole, right batch lies. Behind it the next one is looked for, byte by byte: its checksum tells it.
- Damage below the end of the latest readable snapshot S costs nothing: the log begins anew at S, with the batches from there on.
- Damage above it may be a change that somebody was told of: the start is refused, and `repair` says what it would cost.
- A log whose last epoch is below that of the latest snapshot is of a history that has lost, however far it reaches: the snapshot was
  fetched, and the node stopped before the log behind it had begun. Nothing of it is kept.
- The log of a node that is alone never ends below a snapshot, which is made of what is on disk: one that does was cut, and may have had
  more behind the snapshot.
- A torn tail is no damage: bytes at the log's end that a crash left of a batch that was never synced, so never acknowledged. A sync
  covers a batch and the file's size. So a tail is torn if the file ends inside of the batch, or all that follows some place of it is
  zeros (blocks that were given to the file and never written), and the node was not stopped cleanly after it. A whole batch with
  a wrong checksum is damage: whether its sync had come through cannot be known, so nobody but the operator may drop it.
- Fields of a header that the checksum does not cover (base offset, length, epoch, magic) follow from what lies around: damage in
  them is `mend`ed by a repair without a loss.
Kafka's KafkaMetadataLog starts from a snapshot in the same way (truncateToLatestSnapshot).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastq._native.crc32c import crc32c
from fastq._native.records import read_header, verify_crc
from fastq.values import NamedTuple, Value
from fastq_broker.controller.image import MetadataError
from fastq_broker.controller.snapshot import list_snapshots, read_snapshot
from fastq_broker.controller.storage import read_file
from fastq_broker.raft.messages import SnapshotId

LOG_SUFFIX = ".log"
_HEADER_BYTES = 61
_PREFIX = struct.Struct(">qiib")  # base offset, length, leader epoch, magic: what the checksum does not cover
_CRC_AT, _COVERED_AT, _DELTA_AT = 17, 21, 23
_SECTOR_BYTES = 512
_INT32_MAX = (1 << 31) - 1


class FoundBatch(NamedTuple):
    """A whole batch: where it lies, and what it is."""

    path: Path
    position: int
    size_bytes: int
    base_offset: int
    next_offset: int
    epoch: int
    header: bytes | None = None
    """What its first 17 bytes ought to be, where they are damaged."""

    def read(self) -> bytes:
        """Its bytes, the header mended. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(self.position)
            data = file.read(self.size_bytes)
        return data if self.header is None else self.header + data[len(self.header) :]


class Damage(NamedTuple):
    """A place in a file where offset `offset` should be and no right batch is."""

    path: Path
    position: int
    end: int
    """Position of the next whole batch, or the file's end."""
    offset: int
    next_offset: int | None
    """The offset that is readable again; None when nothing behind it is, and nobody knows how much it was."""
    reason: str
    mended: FoundBatch | None = None
    """The batch that lies here whole, but for its header's first bytes."""

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.position}, where offset {self.offset} should be: {self.reason}"


@dataclass
class Inspection:
    """What was found. `end_offset` is one above the last offset before a torn tail or unknown rest; -1 without a log."""

    directory: Path
    files: list[Path] = field(default_factory=list)
    batches: list[FoundBatch] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    snapshots: list[SnapshotId] = field(default_factory=list)
    """Those that can be read, oldest first."""
    unreadable: list[tuple[SnapshotId, str]] = field(default_factory=list)
    """Snapshots that cannot be read, with the reason."""
    torn: Damage | None = None
    start_offset: int = -1
    end_offset: int = -1

    @property
    def snapshot_end(self) -> int:
        """Where the latest readable snapshot ends; 0 without one."""
        return self.snapshots[-1].end_offset if self.snapshots else 0


def inspect(directory: Path, *, stopped_cleanly: bool, quorum_epoch: int | None) -> Inspection:
    """Read the metadata directory. `stopped_cleanly`: its node says so. `quorum_epoch`: what `quorum-state` says, None if nothing.

    Raises OSError when a file of the log cannot be read at all; what the system reports there is no damage to cut off.
    """
    found = Inspection(directory)
    _read_snapshots(found)
    names = (name for name in os.listdir(directory) if name.endswith(LOG_SUFFIX) and name[:20].isdigit())
    found.files = [directory / name for name in sorted(names) if len(name) == 20 + len(LOG_SUFFIX)]
    reader = _Reader(found, quorum_epoch)
    for number, path in enumerate(found.files):
        following = found.files[number + 1] if number + 1 < len(found.files) else None
        reader.read_file(path, None if following is None else int(following.name[:20]))
    if not found.files:
        return found
    found.start_offset = int(found.files[0].name[:20])
    found.end_offset = reader.expected
    last = found.damages[-1] if found.damages else None
    if last is not None and last.next_offset is None and not stopped_cleanly and _is_torn(last):
        found.torn = found.damages.pop()
    return found


def _read_snapshots(found: Inspection) -> None:
    for snapshot in list_snapshots(found.directory):
        try:
            for _ in read_snapshot(found.directory / snapshot.file_name):
                pass
        except MetadataError as error:
            found.unreadable.append((snapshot, str(error)))
        else:
            found.snapshots.append(snapshot)


class _Reader:
    """Goes through the files of the log. `expected` is the offset that comes next, `epoch` that of the batch before it."""

    def __init__(self, found: Inspection, quorum_epoch: int | None) -> None:
        self._found = found
        self._epoch_max = _INT32_MAX if quorum_epoch is None else quorum_epoch
        self.expected = -1
        self.epoch = 0

    def read_file(self, path: Path, limit: int | None) -> None:
        """Take in the batches of a file, those below offset `limit`: the next file begins there, and may hold them a second time
        where a log was begun anew and the old file is still there."""
        base = int(path.name[:20])
        data = read_file(path)
        if self.expected < 0:
            self.expected = base
        elif base > self.expected:
            reason = f"the files before it end at offset {self.expected}: one is missing, or ends early"
            self._found.damages.append(Damage(path, 0, 0, self.expected, base, reason))
            self.expected = base
        position = 0
        while position < len(data) and (limit is None or self.expected < limit):
            batch, reason = self._batch_at(path, data, position)
            if batch is None or (limit is not None and batch.next_offset > limit):
                position = self._skip(
                    path, data, position, limit, reason or f"it reaches into the next file, at {limit}"
                )
                continue
            self._take(batch)
            position += batch.size_bytes

    def _take(self, batch: FoundBatch) -> None:
        self._found.batches.append(batch)
        self.expected, self.epoch = batch.next_offset, batch.epoch

    def _batch_at(self, path: Path, data: bytes, position: int) -> tuple[FoundBatch | None, str]:
        """The right batch at a position, or what is wrong there."""
        try:
            header = read_header(data, position)
        except ValueError as error:
            return None, str(error)
        if header.base_offset != self.expected:
            return None, f"a batch at offset {header.base_offset}"
        if not verify_crc(data, position):
            return None, "the checksum of the batch is wrong"
        if not self.epoch <= header.partition_leader_epoch <= self._epoch_max:
            bounds = f"{self.epoch} to {self._epoch_max}"
            return None, f"its leader epoch is {header.partition_leader_epoch}, expected {bounds}"
        epoch = header.partition_leader_epoch
        return FoundBatch(path, position, header.size_bytes, header.base_offset, header.next_offset, epoch), ""

    def _skip(self, path: Path, data: bytes, position: int, limit: int | None, reason: str) -> int:
        """Note the damage at a position; answers where reading goes on."""
        at = _next_batch(data, position + 1, self.expected)
        end = len(data) if at is None else at
        known = limit if at is None else _offset_at(data, at)
        if limit is not None and known is not None and known > limit:
            end, known = len(data), limit
        mended = self._mend(path, data, position, end, known)
        if mended is None and _next_batch(data[position:end], 0, self.expected) == 0:
            end, known = position, _offset_at(data, position)  # it is right itself: others are missing
        elif mended is None and known is None and _is_one_batch(data, position, self.expected, end):
            known = self._below_snapshot()
        if mended is not None:
            end, known = position + mended.size_bytes, mended.next_offset
        self._found.damages.append(Damage(path, position, end, self.expected, known, reason, mended))
        if mended is not None:
            self._take(mended)
        elif known is not None:
            self.expected = known
        return end

    def _below_snapshot(self) -> int | None:
        """A snapshot ends between two batches: if one begins below its end, it ends there at the latest."""
        end = self._found.snapshot_end
        return end if self.expected < end else None

    def _mend(self, path: Path, data: bytes, position: int, end: int, following: int | None) -> FoundBatch | None:
        """The batch at a position whose bytes under the checksum are whole, given where the next one begins, and its offset."""
        claimed = position + 12 + struct.unpack_from(">i", data, position + 8)[0] if end - position >= 12 else end
        for stop in dict.fromkeys((end, claimed)):
            if not position + _HEADER_BYTES <= stop <= len(data):
                continue
            (crc,) = struct.unpack_from(">I", data, position + _CRC_AT)
            if crc32c(memoryview(data)[position + _COVERED_AT : stop]) != crc:
                continue
            next_offset = self.expected + struct.unpack_from(">i", data, position + _DELTA_AT)[0] + 1
            if following is not None and (next_offset > following or (stop == end and next_offset != following)):
                continue
            _, _, epoch, _ = _PREFIX.unpack_from(data, position)
            if not self.epoch <= epoch <= self._epoch_max:
                epoch = self.epoch
            header = _PREFIX.pack(self.expected, stop - position - 12, epoch, 2)
            return FoundBatch(path, position, stop - position, self.expected, next_offset, epoch, header)
        return None


def _next_batch(data: bytes, start: int, offset: int) -> int | None:
    """The position, from `start` on, of the next whole batch with a right checksum, at `offset` or above."""
    at = data.find(b"\x02", start + 16)
    while at >= 0:
        position = at - 16
        if len(data) - position < _HEADER_BYTES:
            return None
        base, length, _, _ = _PREFIX.unpack_from(data, position)
        # Each offset takes a byte at least.
        if offset <= base <= offset + len(data) and _HEADER_BYTES - 12 <= length <= len(data) - position - 12:
            try:
                if verify_crc(data, position):
                    return position
            except ValueError:
                pass
        at = data.find(b"\x02", at + 1)
    return None


def _offset_at(data: bytes, position: int) -> int:
    """The base offset of the batch at a position."""
    return int.from_bytes(data[position : position + 8], "big", signed=True)


def _is_one_batch(data: bytes, position: int, offset: int, end: int) -> bool:
    """Whether a header says that the bytes up to `end` are one batch, which begins at `offset`."""
    if end - position < _HEADER_BYTES:
        return False
    base, length, _, magic = _PREFIX.unpack_from(data, position)
    return (base, magic, position + 12 + length) == (offset, 2, end)


def _is_torn(damage: Damage) -> bool:
    """Whether the end of the log can be what a crash left of a batch that was not synced."""
    with damage.path.open("rb") as file:
        file.seek(damage.position)
        data = file.read()
    written = len(data.rstrip(b"\0"))
    # Blocks are given whole: what was not written begins at a sector, or is all of it.
    boundary = -(-(damage.position + written) // _SECTOR_BYTES) * _SECTOR_BYTES - damage.position
    if written == 0 or (boundary < len(data) and _begins_a_batch(data[:written], damage.offset)):
        return True
    if not _begins_a_batch(data, damage.offset):
        return False
    return len(data) < _HEADER_BYTES or 12 + struct.unpack_from(">i", data, 8)[0] > len(data)


def _begins_a_batch(data: bytes, offset: int) -> bool:
    """Whether some first bytes can be those of a batch at `offset`."""
    start = struct.pack(">q", offset)
    return data[:8] == start[: len(data)] and data[16:17] in (b"", b"\x02")


class Verdict(Value):
    """What is to be done with a metadata directory.

    `begin_at`: the offset at which the log has to begin anew, with the batches that it has from there on; None: it stays as it is.
    `losses`: why the start is refused, each a sentence; empty when nothing is lost.
    """

    begin_at: int | None
    losses: Sequence[str]
    cut: bool = False
    """Whether the end of the log is gone, and nobody knows how much that was."""
    keeps: bool = True
    """Whether the batches from `begin_at` on are of the history that the snapshot is of."""


def judge(
    found: Inspection, *, broker_epoch: int, quorum_epoch: int | None, alone: bool, votes: bool = True
) -> Verdict:
    """What an inspection means. `broker_epoch`: that of the last clean stop, -1 when it was not clean. `alone`: no other node is in the
    quorum, so a snapshot was made of this log, and holds what was on disk then; one that was fetched may lie above its end. `votes`: others
    may count on what it has; who does not vote, and was stopped between a snapshot that it fetched and the log behind it, fetches on."""
    start = found.snapshot_end
    epoch = found.snapshots[-1].epoch if found.snapshots else 0
    if not alone and found.batches and found.batches[-1].epoch < epoch:
        return Verdict(start, [], keeps=False)
    losses = [str(damage) for damage in found.damages if damage.next_offset is None or damage.next_offset > start]
    begin_at = start if any(damage.offset < start for damage in found.damages) else None
    if found.start_offset > start:
        losses.insert(0, _headless(found))
    # Of a log that ends below a snapshot, what is missing was never synced, and so counted for nobody else; one that is gone was removed.
    removed = votes and not found.files
    behind = quorum_epoch is not None and quorum_epoch > epoch and (alone or removed)
    cut = False
    if found.end_offset < start or not found.files:
        begin_at = start if start else None
        cut = behind or (alone and start > 0)
        if behind:
            losses.append(
                f"{found.directory} has no records behind offset {start}, where its latest snapshot ends, in epoch {epoch}: "
                f"quorum-state says that epoch {quorum_epoch} has begun"
            )
        elif cut:
            losses.append(
                f"the log in {found.directory} ends at offset {max(found.end_offset, 0)}, below its latest snapshot, which ends at "
                f"{start}: its end was cut off or removed, and with it all that came after the snapshot"
            )
    end = max(found.end_offset, start)
    for snapshot, reason in found.unreadable:
        if snapshot.end_offset > end:
            cut = True
            losses.append(f"the log ends at offset {end}, before a snapshot that cannot be used: {reason}")
    if broker_epoch >= end and not losses:
        cut = True
        losses.append(
            f"the log in {found.directory} ends at offset {end}; the last clean stop was of a broker that had registered at {broker_epoch}"
        )
    return Verdict(begin_at, losses, cut)


def _headless(found: Inspection) -> str:
    text = f"{found.directory} begins at offset {found.start_offset}, and no snapshot holds what was before"
    reasons = "; ".join(reason for _, reason in found.unreadable)
    return f"{text} ({reasons})" if reasons else text


def kept_batches(found: Inspection, begin_at: int) -> Iterator[FoundBatch]:
    """The batches from an offset on, up to the first place that is damaged for good."""
    expected = begin_at
    for batch in found.batches:
        if batch.base_offset < begin_at:
            continue
        if batch.base_offset != expected:
            return
        expected = batch.next_offset
        yield batch
