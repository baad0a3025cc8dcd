"""What a log's files say of producers and transactions: the snapshots of producers, and what its batches add to them.

Rules
- The latest snapshot that can be read counts, and the batches since; one that cannot be read is removed, and an earlier one taken.
- A batch whose checksum is wrong, by more than a bit of it, says nothing of producers, which the log names. It may have been a marker: a
  transaction that was open before it has ended where its producer comes with a later epoch, in a load, and in appends that come after it.
- A transaction index that is damaged is made again from the batches of its segment, and where one of them is damaged from what it says
  itself of those from there on. That a transaction has ended at a marker that is lost its producer's next batch tells, or a snapshot that
  was made behind it, or the log that is in use.
- Where neither it nor its marker tells any more whether a transaction was aborted, it is taken for aborted, which is said: what is hidden
  is still there for who reads uncommitted records, what is shown wrongly has been taken for true.
Source: ProducerStateManager, LogLoader.
"""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from fastq._native.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
    decode_control_record,
    decode_records,
)
from fastq.values import NamedTuple

from . import txn_index
from .files import Files
from .producer_state import BORDER_PRODUCER_ID, BatchMetadata, CompletedTransaction, CorruptSnapshot, ProducerState
from .scan import (
    NO_UPPER,
    CorruptSegment,
    WildIndex,
    batch_of_entry,
    is_old_format,
    iter_starts,
    largest_timestamp_in,
    verify_start,
)
from .segment import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, Segment
from .stored_batches import RecoveryReport, iter_verified

if TYPE_CHECKING:
    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)

_WINDOW_ENTRIES: Final = 8
"""Index entries to go back for the batches that precede a producer snapshot: each is worth a batch or index.interval.bytes."""


def aborts_damaged(files: Files, segment: Segment) -> bool:
    """Whether the transaction index of a segment cannot be used, which is said."""
    path = segment.path_of(TXN_INDEX_SUFFIX)
    data = files.read_file(path)
    problem = txn_index.damage(data, path, segment.base_offset)
    if problem is not None:
        # Apache Kafka leaves an empty one where it has cut all entries off. Nothing tells it from one that was lost, so it is made again.
        logger.log(logging.ERROR if data else logging.WARNING, "%s: it is made again from the segment", problem)
    return problem is not None


def rebuild_aborts(
    log: PartitionLog,
    segment: Segment,
    producers: ProducerState,
    segments: list[Segment],
    snapshots: list[int],
    end: int | None,
    report: RecoveryReport,
) -> None:
    """Make the transaction index of a segment anew from its batches, and the producers as they were at its begin. The damaged one is there
    until the other is on disk, for the next load: one that is missing would not be missed. `end` is the log's; None: a recovery is to find
    it, and forgets what lies above."""
    made: list[CompletedTransaction] = []
    heard = RecoveryReport(on_read=report.read)
    load_snapshot(log, producers, snapshots, segment.base_offset)
    if producers.end_offset < segment.base_offset:
        replay(log, producers, segments, producers.end_offset, segment.base_offset, heard)
    following = [each.base_offset for each in segments if each.base_offset > segment.base_offset]
    end_offset = following[0] if following else NO_UPPER if end is None else end
    find_aborts(log, segment, producers, made, end_offset, snapshots, None, heard)
    segment.hold_aborts(made)
    log.durability.unsettle(segment.base_offset)


def find_aborts(
    log: PartitionLog,
    segment: Segment,
    producers: ProducerState,
    found: list[CompletedTransaction],
    end_offset: int,
    snapshots: Sequence[int],
    open_at_end: Mapping[int, int] | None,
    report: RecoveryReport,
) -> None:
    """Add the aborted transactions whose markers lie in a segment, below `end_offset`, by its batches and what was open at its begin. What
    a damaged batch said, there or where `report` has found one before, the old file may still say. That one has ended there the snapshots
    tell that come behind, and `open_at_end`: the first offsets, by their producers, of those that are open at its end; None: who knows."""
    lost: list[_Lost] = []
    ended: list[CompletedTransaction] = []
    damages: list[range] = []
    heard, end = report.damages, segment.base_offset
    later = deque(sorted(offset for offset in snapshots if segment.base_offset < offset <= end_offset))
    for header, data in _readable(log.files, segment, 0, report, "rebuilding the transaction index"):
        if heard != report.damages:
            heard, producers.damaged_at = report.damages, report.damaged_last
            damages.append(range(end, header.base_offset))
        end = header.next_offset
        while later and later[0] <= header.base_offset:
            lost += _ended_before(log, producers, later.popleft(), damages)
        if header.producer_id >= 0:
            since = _last_offset_of(producers, header.producer_id) if damages else -1
            replay_batch(producers, header, data, found.append, log.clock(), ended.append)
            while ended:
                lost.append(_Lost(ended.pop(), since, len(damages)))
    if end_offset != NO_UPPER:
        if heard != report.damages:
            damages.append(range(end, end_offset))
        end = end_offset
    while later and later[0] <= end:
        lost += _ended_before(log, producers, later.popleft(), damages)
    if open_at_end is not None:
        lost += _not_among(open_at_end, producers, damages)
    if report.damaged_at != NO_UPPER:
        path = segment.path_of(TXN_INDEX_SUFFIX)
        told = txn_index.entries_from(log.files, path, segment.base_offset, report.damaged_at, end_offset)
        known_to = txn_index.known_to(log.files, path, segment.base_offset, end_offset)
        found += _presumed(path, lost, damages, found, told, known_to)
        found[:] = _merged(found, told, report.damaged_at)


def _ended_before(
    log: PartitionLog, producers: ProducerState, offset: int, damages: Sequence[range]
) -> Sequence[_Lost]:
    """The transactions that were open by the batches read so far, and are not by the snapshot at `offset`, which counts from there on.
    Raises OSError."""
    if not damages:
        return ()
    told = ProducerState(producers.where, expiration_ms=producers.expiration_ms)
    try:
        data = log.files.read_file(_snapshot_path(log, offset))
        told.decode(data, offset, log.clock())
    except (FileNotFoundError, CorruptSnapshot):  # a load says so
        return ()
    lost = _not_among(told.open_since(), producers, damages)
    producers.decode(data, offset, log.clock())
    return lost


def _not_among(known: Mapping[int, int], producers: ProducerState, damages: Sequence[range]) -> list[_Lost]:
    """The transactions that are open by the batches read so far and not known to be, as they have ended at damage."""
    return [
        _Lost(
            CompletedTransaction(producer_id, first, damages[-1].stop - 1, False, first),
            _last_offset_of(producers, producer_id),
            len(damages),
        )
        for producer_id, first in producers.open_since().items()
        if damages and known.get(producer_id) != first
    ]


def _snapshot_path(log: PartitionLog, offset: int) -> str:
    return os.path.join(log.path, f"{offset:020d}{SNAPSHOT_SUFFIX}")


def _last_offset_of(producers: ProducerState, producer_id: int) -> int:
    """That of a producer's last batch, as far as is known."""
    entry = producers.get(producer_id)
    if entry is None:
        return -1
    return entry.batches[-1].last_offset if entry.batches else entry.txn_first_offset


class _Lost(NamedTuple):
    """A transaction whose marker is lost, the offset of its last batch, and how many damages of the segment came before what tells that it
    has ended: the marker was in those of them that are behind the last, or in a segment before."""

    transaction: CompletedTransaction
    last_offset: int
    damages: int


def _presumed(
    path: str,
    lost: Sequence[_Lost],
    damages: Sequence[range],
    found: Sequence[CompletedTransaction],
    told: Sequence[txn_index.AbortedTransaction],
    known_to: int,
) -> list[CompletedTransaction]:
    """Those of the transactions with lost markers that are to be taken for aborted: the marker lay in the segment, and what is left of its
    old file has neither told that, nor told of all aborts up to an offset behind it, `known_to`. It is said to lie at the first offset
    where it can: behind the producer's next batch, that and what follows would be taken for aborted, too."""
    taken = {one.last_offset for one in found} | {one.last_offset for one in told}
    presumed = []
    for one, last_offset, count in lost:
        producer_id, first = one.producer_id, one.first_offset
        if any(each.producer_id == producer_id and each.first_offset <= first < each.last_offset for each in told):
            continue
        # Of several that are lost together each has an offset in the damage.
        behind = damages[bisect_right(damages, last_offset, key=attrgetter("start")) : count]
        places = chain.from_iterable(range(max(damage.start, known_to + 1), damage.stop) for damage in behind)
        marker = next((offset for offset in places if offset not in taken), -1)
        if marker < 0:
            continue
        taken.add(marker)
        logger.error(
            "%s: the transaction of producer %d from offset %d on is taken for aborted: its marker, in a damaged batch from offset %d on, "
            "and what this file told of it are lost; if it was committed, its records are read with isolation level read_uncommitted alone",
            path,
            producer_id,
            first,
            marker,
        )
        presumed.append(one._replace(last_offset=marker, aborted=True))
    return presumed


def _readable(
    files: Files, segment: Segment, position: int, report: RecoveryReport, what: str
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """`iter_verified`, and on behind a damaged batch where the index leads, which is said of `what`. Raises OSError."""
    at: int | None = position
    end = segment.base_offset
    while at is not None:
        try:
            for header, data in iter_verified(files, segment, at, report):
                end = header.next_offset
                yield header, data
            return
        except CorruptSegment as error:
            logger.error("%s: %s", what, error)
            report.damaged(end)
            at = _behind(files, segment, error.position, end)


def _behind(files: Files, segment: Segment, position: int, offset: int) -> int | None:
    """Where whole batches of `offset` or above begin again behind `position`, by an index entry that its batch bears out; None where none
    does; an index that has less than was written is to be made again, with the next read. Raises OSError."""
    try:
        for last_offset, at in segment.index.entries():
            if position < at < segment.size:
                bounds = batch_of_entry(files, segment.log.handle(), last_offset, at, segment.size)
                if bounds is not None and bounds.base_offset >= offset:
                    return at
    except WildIndex as error:
        segment.doubt = error
    return None


def _merged(
    found: Sequence[CompletedTransaction], told: Sequence[txn_index.AbortedTransaction], damaged_at: int
) -> list[CompletedTransaction]:
    """What was found and what the old file has told from `damaged_at` on, in the order of the markers. Where both know one the file counts:
    the first batch may be the damaged one. Of those that it does not know nobody can say what was open beside them, so that who looks for
    others is to look on: the last stable offset is said to be where the damage begins."""
    by_marker = {
        one.last_offset: one._replace(last_stable_offset=min(one.last_stable_offset, damaged_at))
        if one.last_offset >= damaged_at
        else one
        for one in found
    }
    for entry in told:
        by_marker[entry.last_offset] = CompletedTransaction(
            entry.producer_id, entry.first_offset, entry.last_offset, True, entry.last_stable_offset
        )
    return [by_marker[marker] for marker in sorted(by_marker)]


def replay_batch(
    producers: ProducerState,
    header: BatchHeader,
    data: memoryview,
    note_abort: Callable[[CompletedTransaction], None] | None,
    now_ms: int,
    note_lost: Callable[[CompletedTransaction], None] | None = None,
) -> None:
    """Take a stored batch into the producer state; `note_abort`, if given, hears of a transaction that it aborts, and `note_lost` of one
    that has ended before it at a marker that is lost."""
    if not header.is_control:
        lost = producers.update(header, header.base_offset, header.last_offset, header.max_timestamp, now_ms)
        if lost is not None and note_lost is not None:
            note_lost(lost)
        return
    try:
        records = decode_records(data)
        if not records:
            return
        marker = decode_control_record(records[0].key, records[0].value)
    except ValueError as error:
        logger.error(
            "%s: the control record at offset %d cannot be read, and its transaction stays open: %s",
            producers.where,
            header.base_offset,
            error,
        )
        return
    if marker.type not in (CONTROL_ABORT, CONTROL_COMMIT):
        return
    completed = producers.complete(
        header.producer_id,
        header.producer_epoch,
        marker.coordinator_epoch,
        aborted=marker.type == CONTROL_ABORT,
        offset=header.base_offset,
        now_ms=now_ms,
    )
    if completed is not None and completed.aborted and note_abort is not None:
        note_abort(completed)


def load_producers(
    log: PartitionLog,
    producers: ProducerState,
    segments: list[Segment],
    snapshots: list[int],
    end: int,
    report: RecoveryReport | None = None,
) -> None:
    """The producer state as of `end`: the latest snapshot, the batches since, and the window's batches before it. Raises MuchToRead."""
    load_snapshot(log, producers, snapshots, end)
    if producers.end_offset < end:
        if report is not None:
            report.foresee(sum(segment.size for segment in holding(segments, producers.end_offset, end)))
        replay(log, producers, segments, producers.end_offset, end, report)
    elif len(producers):
        _fill_windows(log.files, producers, segments[-1])
    producers.end_offset = end


def load_snapshot(log: PartitionLog, producers: ProducerState, snapshots: list[int], end: int) -> None:
    """Load the latest readable snapshot at or below `end`; without one the state is empty as of the log's begin."""
    for offset in sorted((offset for offset in snapshots if offset <= end), reverse=True):
        path = _snapshot_path(log, offset)
        try:
            producers.decode(log.files.read_file(path), offset, log.clock())
            return
        except FileNotFoundError:  # a flush has put a later one in its place while a thread looked
            snapshots.remove(offset)
        except CorruptSnapshot as error:
            logger.error("%s: %s; an earlier snapshot is used", path, error)
            log.files.remove_if_exists(path)
            snapshots.remove(offset)
    producers.clear(0)


def holding(segments: list[Segment], start: int, end: int) -> Iterator[Segment]:
    """The segments with batches from offset `start` up to `end`."""
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end
        if following > start and segment.base_offset < end and segment.size:
            yield segment


def replay(
    log: PartitionLog,
    producers: ProducerState,
    segments: list[Segment],
    start: int,
    end: int,
    report: RecoveryReport | None = None,
) -> None:
    """Take the stored batches from offset `start` up to `end` into the producer state."""
    report = report or RecoveryReport()
    for segment in holding(segments, start, end):
        position = _position_of(log.files, segment, start)
        for header, data in _readable(log.files, segment, position, report, "replaying producers"):
            if header.base_offset >= end:
                break
            if header.producer_id >= 0 and header.base_offset >= start:
                producers.damaged_at = report.damaged_last
                replay_batch(producers, header, data, None, log.clock())
    producers.damaged_at = min(report.damaged_last, end - 1)  # its offset may be wrong, too
    producers.end_offset = end


def _position_of(files: Files, segment: Segment, offset: int) -> int:
    """Where to begin for the batches from `offset` on: by the index, where the segment bears it out."""
    try:
        position = segment.index.lookup(offset)
        if position:
            verify_start(files, segment, position, offset)
    except WildIndex as error:
        logger.warning("%s is not believed: at byte %d, %s", error.path, error.position, error.reason)
        return 0
    return position


def _fill_windows(files: Files, producers: ProducerState, segment: Segment) -> None:
    """Add the batches that a snapshot leaves out, so that a producer's retries across a restart are still recognised."""
    if not segment.size:
        return
    count = segment.index.entry_count
    position = segment.index.entry_at(count - _WINDOW_ENTRIES)[1] if count > _WINDOW_ENTRIES else 0
    handle = segment.log.handle()
    found: dict[tuple[int, int], list[BatchMetadata]] = {}
    try:
        for bounds, raw in iter_starts(files, handle, position, segment.size):
            if is_old_format(raw):
                continue
            producer_id, epoch, base_sequence = struct.unpack_from(">qhi", raw, 43)
            if producer_id == BORDER_PRODUCER_ID:
                found.clear()
            if producer_id < 0 or base_sequence < 0:
                continue
            delta = bounds.last_offset - bounds.base_offset
            last_sequence = (base_sequence + delta) & 0x7FFFFFFF
            found.setdefault((producer_id, epoch), []).append(
                BatchMetadata(last_sequence, bounds.last_offset, delta, largest_timestamp_in(raw))
            )
    except CorruptSegment as error:
        logger.error("filling up what is known of producers: %s; a retry from before is not recognised", error)
    for (producer_id, epoch), batches in found.items():
        producers.fill_window(producer_id, epoch, batches)


def remove_stray_snapshots(log: PartitionLog, snapshots: list[int], segments: list[Segment], end: int) -> None:
    """Keep the snapshots of segment begins and the latest one that is not past the end."""
    valid = [offset for offset in snapshots if offset <= end]
    keep = {segment.base_offset for segment in segments} | set(valid[-1:])
    for offset in snapshots:
        if offset not in keep:
            log.files.remove_if_exists(_snapshot_path(log, offset))
