"""Recovery of a log after a crash: what lies above the recovery point is checked, and cut where it is damaged.

Rules
- What lies below the recovery point is trusted and not read, but for the index interval that it falls into. Batches above it are checked
  (structure, checksum, offsets that ascend); at the first bad one the log ends: the rest is cut off and reported.
- Indexes above the recovery point are built anew, with the entries that the appends had made.
- Producers and leader epochs above it are taken from the batches.
- What follows from the batches needs no room: on a full disk indexes and epochs wait in memory for the next flush that has some. Until that
  is done the recovery point stays where it is, so that the next crash finds them again.
Source: LogSegment.recover.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fastq._native.records import verify_crc

from .files import Files
from .leader_epochs import LeaderEpochs
from .producer_state import ProducerState
from .scan import MAGIC_POSITION, CorruptSegment, batch_of_entry, iter_bounds
from .segment import (
    Segment,
)
from .stored_batches import (
    RecoveryReport,
    check_range,
    iter_batches,
    past_old_batches,
    past_old_run,
)
from .stored_producers import (
    load_snapshot,
    replay,
    replay_batch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
_TAIL_BATCHES: Final = 10_000
"""More than lie between two index entries."""


class UnrecoverableLog(Exception):
    """A log that recovery can neither check nor cut without losing whole batches: it is left as it is, and not served."""


# -- loading


def is_offset_file(name: str, suffix: str) -> bool:
    return len(name) == 20 + len(suffix) and name.endswith(suffix) and name[:20].isdigit()


def find_end(files: Files, segment: Segment, report: RecoveryReport | None = None) -> int | None:
    """The offset after the last batch of an active segment that was closed; None when it is not whole. Raises MuchToRead where an index
    without entries leaves a whole segment to be gone through."""
    if not segment.size:
        return segment.base_offset
    offset, position = segment.index.last()
    try:
        if position < 0:
            raise CorruptSegment(segment.index.path, position, "the last index entry has a negative position")
        end, indexed = segment.base_offset, not position
        for number, bounds in enumerate(iter_bounds(files, segment.log.handle(), position, segment.size)):
            if number == _TAIL_BATCHES and report is not None:
                report.foresee(segment.size - position)
            if not indexed and bounds.last_offset >= offset:
                indexed = bounds.last_offset == offset
                if not indexed:
                    break
            end = bounds.last_offset + 1
        if not indexed:
            reason = f"the index has offset {offset}, at which no batch of the log ends from there on"
            raise CorruptSegment(segment.index.path, position, reason)
        if end > segment.base_offset:
            return end
        raise CorruptSegment(segment.log.path, position, "the last index entry lies past the end")
    except CorruptSegment as error:
        logger.error("recovering a log although it was closed cleanly: %s", error)
        return None


# -- recovery


def recover(
    log: PartitionLog,
    segments: list[Segment],
    epochs: LeaderEpochs,
    producers: ProducerState,
    snapshots: list[int],
    report: RecoveryReport,
    old_below: int,
) -> int:
    """Check what lies above the recovery point, cut off what is damaged; answers the log's end. Batches of magic 0 and 1 below offset
    `old_below` cannot be checked, and need not be."""
    point = log.recovery_point
    number = max((n for n, segment in enumerate(segments) if segment.base_offset <= point), default=0)
    position, offset = _trusted_position(log.files, segments[number], point)
    log.recovery_point = min(point, offset)  # index entries from there on are written anew, and not synced
    position, offset = past_old_batches(log.files, segments[number], position, offset, old_below, report)
    load_snapshot(log, producers, snapshots, min(point, offset) if position else segments[number].base_offset)
    if producers.end_offset < offset:
        heard = RecoveryReport(on_read=report.on_read)  # `report` counts what is checked
        replay(log, producers, segments, producers.end_offset, offset, heard)
    end = offset
    while number < len(segments):
        segment = segments[number]
        if position == 0 and segment.base_offset < end:
            _remove_from(log, segments, number, report, f"it begins below the log's end {end}")
            break
        end, valid, reason = _recover_segment(
            log, segment, position, max(end, segment.base_offset), epochs, producers, report, old_below
        )
        number += 1
        if reason is not None:
            _cut(segment, valid, reason, report)
            _remove_from(log, segments, number, report, "it follows a damaged segment")
            break
        position = 0
        if number < len(segments):
            _note_gap(log, segment, end, segments[number].base_offset, report)
    end = max(end, segments[-1].base_offset)
    producers.end_offset = end
    return end


def _note_gap(log: PartitionLog, segment: Segment, end: int, following: int, report: RecoveryReport) -> None:
    """Note, and say, what is missing between the end of a segment and the next one. Only compaction takes records out of the middle of a
    log, below its checkpoint where the policy is another by now, and what a mirror or a leader sends may begin too far above the end."""
    if following - end > RELATIVE_OFFSET_MAX or log.config.compacted:
        return
    end = max(end, log.cleaned_offset)
    if following <= max(end, log.checkpointed_start_offset):
        return
    report.gaps.append((end, following))
    if segment.size:  # of one that is empty it was said before
        logger.error(
            "%s ends at offset %d, but the next segment begins at %d: the records between are gone, and are passed over unless a "
            "leader has them; restore the file from a copy to have them back",
            segment.log.path,
            end,
            following,
        )


def find_gaps(log: PartitionLog, segments: list[Segment], report: RecoveryReport) -> bool:
    """Look for what is missing above the recovery point of a log that was closed cleanly: it lies below the log's end for nothing else.
    Whether that could be seen; else nothing is noted, and the log is to be recovered from there."""
    first = max((n for n, segment in enumerate(segments) if segment.base_offset <= log.recovery_point), default=0)
    ends = [find_end(log.files, segment, report) for segment in segments[first:-1]]
    if None in ends:
        return False
    for segment, end, following in zip(segments[first:], ends, segments[first + 1 :], strict=False):
        assert end is not None
        _note_gap(log, segment, end, following.base_offset, report)
    return True


def _trusted_position(files: Files, segment: Segment, point: int) -> tuple[int, int]:
    """(position, offset): where checking begins in the segment of the recovery point, and the first offset there.

    It is the last index entry below the recovery point, if the log bears it out; else the segment's begin.
    """
    count = segment.index.trusted_count(segment.size, point)
    if count:
        offset, position = segment.index.entry_at(count - 1)
        bounds = batch_of_entry(files, segment.log.handle(), offset, position, segment.size)
        if bounds is not None:
            segment.forget_indexes(position, bounds.base_offset)
            return position, bounds.base_offset
    segment.forget_indexes(0, segment.base_offset)
    return 0, segment.base_offset


def _recover_segment(
    log: PartitionLog,
    segment: Segment,
    position: int,
    expected: int,
    epochs: LeaderEpochs,
    producers: ProducerState,
    report: RecoveryReport,
    old_below: int,
) -> tuple[int, int, str | None]:
    """(end offset, end of the valid bytes, what is wrong there or None) of a segment checked from `position` on."""
    files = log.files
    if not position:
        segment.forget_indexes(0, segment.base_offset)
        if segment.base_offset < old_below:
            position, expected = past_old_batches(files, segment, 0, expected, old_below, report)
    _refuse_old_format(files, segment, position, report)  # before anything is forgotten
    segment.forget_aborts(expected)
    valid = position
    reason: str | None = None
    while valid < segment.size and reason is None:
        try:
            for at, header, data in iter_batches(files, segment.log.handle(), valid, segment.size, report):
                if header.base_offset < expected or header.last_offset < header.base_offset:
                    problem = f"offset {header.base_offset}, expected {expected} or above"
                    raise CorruptSegment(segment.log.path, at, problem)
                if not verify_crc(data):
                    problem = f"the checksum of the batch at offset {header.base_offset} is wrong"
                    raise CorruptSegment(segment.log.path, at, problem)
                check_range(segment, at, header)
                segment.note_batch(at, len(data), header.last_offset, header.max_timestamp)
                if header.partition_leader_epoch < epochs.epoch_for_offset(header.base_offset):
                    epochs.truncate_epochs_above(header.partition_leader_epoch)
                epochs.assign(header.partition_leader_epoch, header.base_offset, write=False)
                if header.producer_id >= 0 and header.base_offset >= producers.end_offset:
                    replay_batch(producers, header, data, segment.note_abort, log.clock())
                expected = header.next_offset
                valid = at + len(data)
        except CorruptSegment as error:
            behind, following = past_old_run(files, segment, error.position, expected, old_below, report)
            if behind == error.position:
                valid, reason = error.position, error.reason
                _refuse_old_format(files, segment, valid, report)
            else:
                valid, expected = behind, following
    segment.time_index.append_if_later(segment.max_timestamp, segment.max_timestamp_offset)
    segment.index.trim_if_room()
    segment.time_index.trim_if_room()
    return expected, valid, reason


def _refuse_old_format(files: Files, segment: Segment, position: int, report: RecoveryReport) -> None:
    """Raises UnrecoverableLog rather than have whole batches of magic 0 or 1 cut off, which recovery cannot check."""
    handle = segment.log.handle()
    try:
        found = next(iter_bounds(files, handle, position, segment.size), None)
    except CorruptSegment:
        return
    if found is not None and files.pread(handle.fd, 1, position + MAGIC_POSITION) in (b"\0", b"\1"):
        cut = ", ".join(f"{lost} bytes of {path} from byte {at} on" for path, at, lost in report.cut) or "nothing"
        raise UnrecoverableLog(
            f"{segment.log.path}: batches of an old format at byte {position} cannot be recovered after a crash; {cut} was cut off and "
            "the partition is not served: have the broker that wrote them stop cleanly first, or delete the topic"
        )


def _cut(segment: Segment, valid: int, reason: str, report: RecoveryReport) -> None:
    """Cut a segment off at a position."""
    lost = segment.size - valid
    logger.warning("%s: cut off at byte %d, %d bytes removed: %s", segment.log.path, valid, lost, reason)
    report.cut.append((segment.log.path, valid, lost))
    segment.log.truncate(valid)


def _remove_from(log: PartitionLog, segments: list[Segment], number: int, report: RecoveryReport, reason: str) -> None:
    """Remove the segments from a number on."""
    for segment in segments[number:]:
        logger.warning("%s: removed, %d bytes: %s", segment.log.path, segment.size, reason)
        report.cut.append((segment.log.path, 0, segment.size))
        log.remove_files(segment)
    del segments[number:]


def first_segment(log: PartitionLog, segments: Sequence[Segment], start: int) -> Segment | None:
    """The segment that a log begins anew with, made while the others are there: who has no room for it, or is stopped in between, has a log
    all the same. None where one of them has its name. Raises OSError."""
    if any(segment.base_offset == start for segment in segments):
        return None
    fresh = log.make_segment(start, size=0, created_ms=log.clock())
    fresh.create_files()
    return fresh


def start_anew(log: PartitionLog, segments: list[Segment], start: int, fresh: Segment | None) -> list[Segment]:
    """Remove the segments of a log, which begins anew at `start` with what `first_segment` has made. Raises OSError."""
    for segment in segments:
        log.remove_files(segment)
    if fresh is None:
        fresh = log.make_segment(start, size=0, created_ms=log.clock())
        fresh.create_files()
    return [fresh]
