"""Loading a log: from whole files after a clean stop, with recovery after a crash.

Rules
- After a clean stop nothing is verified: the end is found from the last index entry on, the producers come from their snapshot.
- After a crash, what lies below the recovery point is trusted and not read, but for the index interval that it falls into. Batches above it
  are checked (structure, checksum, offsets that ascend); at the first bad one the log ends: the rest is cut off and reported.
- Indexes above the recovery point are built anew, with the entries that the appends had made.
- Producers and leader epochs above it are taken from the batches.
- Where there is not the time to read much, that is found out before anything is changed: see late_recovery.
- What follows from the batches needs no room: on a full disk indexes and epochs wait in memory for the next flush that has some. Until that
  is done the recovery point stays where it is, so that the next crash finds them again.
Source: LogLoader, LogSegment.recover.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final

from fastq._native.records import verify_crc

from .checkpoints import PARTITION_METADATA, CorruptCheckpoint, format_partition_metadata, read_topic_id
from .cleaner_swap import BrokenSwap, is_leftover, recover_swaps
from .files import READ_WRITE_CREATE, FileHandle, Files
from .leader_epochs import LeaderEpochs
from .producer_state import ProducerState
from .scan import MAGIC_POSITION, NO_UPPER, CorruptSegment, batch_of_entry, iter_bounds
from .segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    offset_file_name,
)
from .stored_batches import (
    RecoveryReport,
    check_range,
    iter_batches,
    iter_new_batches,
    past_old_batches,
    past_old_run,
    rebuild_indexes,
)
from .stored_producers import (
    aborts_damaged,
    load_producers,
    load_snapshot,
    rebuild_aborts,
    remove_stray_snapshots,
    replay,
    replay_batch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)

_RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
_TAIL_BATCHES: Final = 10_000
"""More than lie between two index entries."""


class UnrecoverableLog(Exception):
    """A log that recovery can neither check nor cut without losing whole batches: it is left as it is, and not served."""


# -- loading


def make_log(log: PartitionLog) -> None:
    """Make the directory of a new log, with all that a load would make in it. Raises OSError."""
    files = log.files
    try:
        files.mkdir(log.path)
        log.durability.is_new = True
    except FileExistsError:
        pass  # what lies in it is the load's to judge
    if log.topic_id is not None:
        path = os.path.join(log.path, PARTITION_METADATA)
        files.write_file(path, format_partition_metadata(log.topic_id), sync=False)
        log.durability.topic_id_written()
    if not log.durability.is_new:
        return
    start = log.checkpointed_start_offset
    if log.pending_leader_epoch >= 0:
        LeaderEpochs(files, log.path).assign(log.pending_leader_epoch, start)
    # The records' file comes first: an index without one says that records are gone. A load makes those of a log that is preallocated.
    for suffix in () if log.config.preallocate else (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        FileHandle(files, os.path.join(log.path, offset_file_name(start, suffix)), READ_WRITE_CREATE)


def load_log(log: PartitionLog, bytes_max: int | None = None) -> RecoveryReport:
    """Fill a PartitionLog from its directory. Damage is repaired and logged, never raised. Raises OSError, UnrecoverableLog, and MuchToRead
    where more than about `bytes_max` would have to be read."""
    files = log.files
    names = _tidy_up(log)
    if log.topic_id is None and PARTITION_METADATA in names:
        log.topic_id = topic_id_on_disk(files, log.path)
    report = RecoveryReport(on_read=log.dir.on_recovery_read, bytes_max=bytes_max)
    segments = []
    for base in sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if is_offset_file(name, LOG_SUFFIX)):
        path = os.path.join(log.path, f"{base:020d}{LOG_SUFFIX}")
        found = os.stat(path)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # a directory is refused when it is opened
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), path)
        segments.append(log.make_segment(base, size=found.st_size, created_ms=int(found.st_mtime * 1000)))
    _name_emptied(log, segments)
    alone = _without_log(segments, names)
    deleted = [name for name in alone if segments and int(name[:20]) < segments[0].base_offset]
    _name_missing(log, alone[len(deleted) :])
    if segments:
        if log.clean and not log.durability.is_new:
            log.durability.name_is_synced()
    else:
        segment = log.make_segment(log.checkpointed_start_offset, size=0, created_ms=log.clock())
        segment.create_files(log.config.segment_bytes if log.config.preallocate else 0)
        segments.append(segment)
        names.discard(offset_file_name(segment.base_offset, TXN_INDEX_SUFFIX))
    epochs = LeaderEpochs(files, log.path)
    epochs_lost = not _load_epochs(epochs, has_records=segments[0].size > 0)
    epochs.unsynced = log.durability.is_new and len(epochs) > 0
    began = epochs.earliest[1]
    if epochs_lost:
        # Then indexes without their records tell that there were such, but for the one that a deletion cut short may leave.
        told = [int(name[:20]) for name in deleted if name.endswith(INDEX_SUFFIX)]
        if log.clean or len(told) > 1:
            began = min(told, default=began)
    producers = ProducerState(log.name, expiration_ms=log.producer_expiration_ms)
    with_aborts = [segment for segment in segments if offset_file_name(segment.base_offset, TXN_INDEX_SUFFIX) in names]
    for segment in with_aborts:
        segment.expect_aborts()
    damaged = [segment for segment in with_aborts if aborts_damaged(files, segment)]
    snapshots = sorted(int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if is_offset_file(name, SNAPSHOT_SUFFIX))
    indexless = _without_indexes(segments, names)
    end = find_end(files, segments[-1], report) if log.clean else None
    if end is not None and end < log.recovery_point:
        logger.error(
            "recovering %s although it was closed cleanly: it ends at offset %d, not %d",
            log.path,
            end,
            log.recovery_point,
        )
        end = None
    if end is not None and log.recovery_point < end and not _find_gaps(log, segments, report):
        end = None
    if end is None or damaged or epochs_lost or indexless:
        report.foresee(sum(segment.size for segment in segments))
    for segment in damaged:
        rebuild_aborts(log, segment, producers, segments, snapshots, end, report)
    if end is not None:
        for segment in indexless:
            _rebuild_missing(log, segment, report)
        if log.known_producers is not None and log.known_producers.end_offset == end:
            producers = log.known_producers
        else:
            load_producers(log, producers, segments, snapshots, end, report)
    else:
        point, known_epochs = log.recovery_point, epochs.entries()
        end = _recover(log, segments, epochs, producers, snapshots, report, point)
        if end < point:
            logger.warning(
                "%s ends at offset %d, below its recovery point %d: what was said to be on disk is gone, or the point is another log's; "
                "all of it is checked",
                log.path,
                end,
                point,
            )
            log.recovery_point = 0
            report.gaps.clear()
            end = _recover(log, segments, epochs, producers, snapshots, report, end)
        # Of lost ones these are the last: alone in the file, they would be believed after a stop.
        if not epochs_lost and epochs.entries() != known_epochs:
            epochs.keep()
    start = max(log.checkpointed_start_offset, segments[0].base_offset)
    if start > end:
        logger.warning("%s: the log start offset %d lies past the end %d: starting anew there", log.path, start, end)
        segments = start_anew(log, segments, start, first_segment(log, segments, start))
        producers.clear(start)
        end = start
    elif _begins_as_it_did(log, began, segments[0].base_offset):
        for name in deleted:
            files.remove_if_exists(os.path.join(log.path, name))
    else:
        _name_missing(log, deleted)
    if epochs_lost:
        _rebuild_epochs(log, segments, epochs, report)
    # The pending epoch would be taken away here only to be assigned again, each time with a new file.
    if epochs.entries()[-1:] != [(log.pending_leader_epoch, end)]:
        epochs.truncate_from_end(end)
    if log.lost_start is None or start > log.lost_start[1]:
        epochs.truncate_from_start(start)
    else:  # they tell the next load where the log began, which the checkpoint of its start soon says no more
        epochs.truncate_from_start(log.lost_start[0])
        epochs.keep_if_behind()
    remove_stray_snapshots(log, snapshots, segments, end)
    log.cleaned_offset = min(log.cleaned_offset, end)  # what comes there next was never compacted
    log.install(segments, epochs, producers, end, start)
    log.recovery = report
    if log.clean:
        log.recovery_point = log.durability.on_disk_offset = end
        return report
    segments[-1].log.give_back()  # a crash has left what was reserved ahead of it
    log.recovery_point = min(log.recovery_point, end)
    log.durability.on_disk_offset = log.recovery_point
    if log.config.synchronous:
        _sync_recovered(log)
    return report


def _sync_recovered(log: PartitionLog) -> None:
    """With durability "fsync" nothing is visible that is not on disk: sync what a crash may have left in the page cache, names too.
    Raises KafkaStorageError, with the directory offline, where a sync fails: done again it would succeed without what is lost."""
    ends = [segment.base_offset for segment in log.segments[1:]] + [log.log_end_offset]
    if log.half_done is not None:
        # Files that went come back together with what was cut before them, or there would be a gap.
        log.files.sync_directory(log.path)
    for segment, end in zip(log.segments, ends, strict=True):
        if end > log.recovery_point:
            handle = segment.log.handle()
            try:
                log.files.sync_data(handle.fd)
            except OSError as error:
                raise log.dir.fail("syncing a recovered log", error.filename or log.path, error) from error
    log.files.sync_directory(log.path)
    log.files.sync_directory(log.dir.path)
    log.durability.name_is_synced()
    log.durability.on_disk_offset = log.log_end_offset


def is_offset_file(name: str, suffix: str) -> bool:
    return len(name) == 20 + len(suffix) and name.endswith(suffix) and name[:20].isdigit()


def _tidy_up(log: PartitionLog) -> set[str]:
    """Finish what a stop in the middle of a deletion or of a replacement has left; answers the names in the directory."""
    names = set(log.files.listdir(log.path))
    try:
        recover_swaps(log.files, log.path, names)
    except BrokenSwap as error:
        raise UnrecoverableLog(str(error)) from error
    for name in names:
        if is_leftover(name):
            log.files.remove_if_exists(os.path.join(log.path, name))
    return set(log.files.listdir(log.path)) if any(name.endswith(SWAP_SUFFIX) for name in names) else names


def topic_id_on_disk(files: Files, directory: str) -> bytes | None:
    """The topic id that a log's directory carries; None when it is not there or cannot be read. Raises OSError."""
    try:
        return read_topic_id(files, directory)
    except CorruptCheckpoint as error:
        logger.error("%s; it is written again when the topic's id is known", error)
        return None


def _load_epochs(epochs: LeaderEpochs, *, has_records: bool) -> bool:
    """False where they cannot be read, or there are none although there are records."""
    try:
        lost = not epochs.load() and has_records
    except CorruptCheckpoint as error:
        logger.error("%s; the leader epochs are rebuilt from the log", error)
        return False
    if lost:
        logger.error("%s is missing or empty; the leader epochs are rebuilt from the log", epochs.path)
    return not lost


def _rebuild_epochs(log: PartitionLog, segments: list[Segment], epochs: LeaderEpochs, report: RecoveryReport) -> None:
    """Take the leader epochs from all batch headers: only when the file was lost. The first begins where the log should have."""
    epochs.truncate_from_end(0, write=False)  # those of a recovery begin at its point
    began = NO_UPPER if log.lost_start is None else log.lost_start[0]
    for segment in segments:
        if not segment.size:
            continue
        try:
            for _, header, _ in iter_new_batches(log.files, segment.log.handle(), 0, segment.size, report):
                offset = header.base_offset if len(epochs) else min(header.base_offset, began)
                epochs.assign(header.partition_leader_epoch, offset, write=False)
        except CorruptSegment as error:
            logger.error("rebuilding leader epochs: %s", error)
    epochs.keep()


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


def _without_indexes(segments: list[Segment], names: set[str]) -> list[Segment]:
    """The segments with records of which an index is missing."""
    return [
        segment
        for segment in segments
        if segment.size
        and not all(f"{segment.base_offset:020d}{suffix}" in names for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
    ]


def _rebuild_missing(log: PartitionLog, segment: Segment, report: RecoveryReport) -> None:
    """Make the indexes of a segment anew of which one is missing; it is still missing where that is stopped."""
    logger.warning("%s lacks an index: rebuilding the indexes of the segment", segment.log.path)
    try:
        rebuild_indexes(log.files, segment, report)
    except BaseException:
        log.files.remove_if_exists(segment.index.path)
        raise


# -- recovery


def _recover(
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
    if following - end > _RELATIVE_OFFSET_MAX or log.config.compacted:
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


def _begins_as_it_did(log: PartitionLog, began: int, found: int) -> bool:
    """Whether nothing is missing before a log's first segment, as far as can be told; what is, is noted, and said. The first leader epoch
    began at `began` (-1: none is known), which was the log's start when files were deleted last: no file above it has gone since. Of a log
    that has no epochs the checkpoint of its start says the same, after a clean stop."""
    told = log.lost_start is not None and log.lost_start[1] == found  # by whoever has loaded it before
    if told or (began < 0 and not (log.clean and log.checkpointed_start_offset)):
        return False
    expected = max(began, log.checkpointed_start_offset)
    if found <= expected:
        return True
    log.lost_start = expected, found
    logger.error(
        "%s begins at offset %d, not at %d as it did: the files of the records between are gone, and the log starts behind them; restore "
        "them from a copy to have them back",
        log.path,
        found,
        expected,
    )
    return False


def _find_gaps(log: PartitionLog, segments: list[Segment], report: RecoveryReport) -> bool:
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


def _name_emptied(log: PartitionLog, segments: list[Segment]) -> None:
    """Say which records are gone with the bytes of a rolled segment: only compaction takes them all, below its checkpoint.

    One that the next is too far away from for its indexes has had none: what a mirror or a leader sends may begin so far above.
    """
    for segment, following in pairwise(segments):
        known = max(segment.base_offset, log.checkpointed_start_offset, log.cleaned_offset)
        missing = following.base_offset - known
        rolled_empty = following.base_offset - segment.base_offset > _RELATIVE_OFFSET_MAX
        if not segment.size and missing > 0 and not rolled_empty and not log.config.compacted:
            logger.error(
                "%s is empty, but the next segment begins at offset %d: the records from %d on are gone, and are passed over; restore the "
                "file from a copy to have them back",
                segment.log.path,
                following.base_offset,
                segment.base_offset,
            )


def _without_log(segments: list[Segment], names: set[str]) -> list[str]:
    """The files of segments whose `.log` is not there, in the order of their offsets."""
    there = {f"{segment.base_offset:020d}" for segment in segments}
    suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
    return sorted(
        name for name in names if name[:20] not in there and any(is_offset_file(name, suffix) for suffix in suffixes)
    )


def _name_missing(log: PartitionLog, names: list[str]) -> None:
    """Say which segments are gone that have such files. What a cut has left half done is meant to go."""
    cut_from = inf if log.half_done is None else log.half_done.base
    for base in [int(name[:20]) for name in names if name.endswith(INDEX_SUFFIX)]:
        if base < cut_from:
            logger.error(
                "%s is not there, but its index is: the records from offset %d on are gone, unless a deletion was cut short; restore the "
                "file from a copy to have them back",
                os.path.join(log.path, offset_file_name(base, LOG_SUFFIX)),
                base,
            )


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
