"""Loading a log: what is in its directory, and what a stop in the middle of something has left there.

Rules
- After a clean stop nothing is verified: the end is found from the last index entry on, the producers come from their snapshot. After a
  crash, and where that end cannot be, `recovery` checks what lies above the recovery point.
- Where there is not the time to read much, that is found out before anything is changed: see late_recovery.
- What is gone is said, once: records whose file is not there, or empty, and a log that begins above where it did.
Source: LogLoader.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from .checkpoints import PARTITION_METADATA, CorruptCheckpoint, format_partition_metadata, read_topic_id
from .cleaner_swap import BrokenSwap, is_leftover, recover_swaps
from .files import READ_WRITE_CREATE, FileHandle, Files
from .leader_epochs import LeaderEpochs
from .producer_state import ProducerState
from .recovery import (
    RELATIVE_OFFSET_MAX,
    UnrecoverableLog,
    find_end,
    find_gaps,
    first_segment,
    is_offset_file,
    recover,
    start_anew,
)
from .scan import NO_UPPER, CorruptSegment
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
from .stored_batches import RecoveryReport, iter_new_batches, rebuild_indexes
from .stored_producers import aborts_damaged, load_producers, rebuild_aborts, remove_stray_snapshots

if TYPE_CHECKING:
    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)


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
    loading = _Loading(log, bytes_max)
    loading.find_segments()
    loading.find_epochs()
    loading.find_end()
    loading.find_start()
    loading.fit_epochs()
    return loading.install()


class _Loading:
    """What a load knows of its log, step by step; each step stands on those before it.

    `end` is the offset after the last record, `start` that of the first that is to be read. `deleted` are files of segments before the
    first one that have lost their records, `began` where the leader epochs say that the log began (-1: they say nothing).
    """

    def __init__(self, log: PartitionLog, bytes_max: int | None) -> None:
        self.log = log
        self.names = _tidy_up(log)
        if log.topic_id is None and PARTITION_METADATA in self.names:
            log.topic_id = topic_id_on_disk(log.files, log.path)
        self.report = RecoveryReport(on_read=log.dir.on_recovery_read, bytes_max=bytes_max)
        self.segments: list[Segment] = []
        self.deleted: list[str] = []
        self.epochs = LeaderEpochs(log.files, log.path)
        self.epochs_lost = False
        self.producers = ProducerState(log.name, expiration_ms=log.producer_expiration_ms)
        self.snapshots: list[int] = []
        self.began = -1
        self.end = self.start = 0

    def _offsets_of(self, suffix: str) -> list[int]:
        return sorted(int(name[: -len(suffix)]) for name in self.names if is_offset_file(name, suffix))

    def find_segments(self) -> None:
        """Those with records; a log that has none gets its first."""
        log, segments = self.log, self.segments
        for base in self._offsets_of(LOG_SUFFIX):
            path = os.path.join(log.path, offset_file_name(base, LOG_SUFFIX))
            found = os.stat(path)
            if not (
                stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
            ):  # a directory is refused when it is opened
                raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), path)
            segments.append(log.make_segment(base, size=found.st_size, created_ms=int(found.st_mtime * 1000)))
        _name_emptied(log, segments)
        alone = _without_log(segments, self.names)
        self.deleted = [name for name in alone if segments and int(name[:20]) < segments[0].base_offset]
        _name_missing(log, alone[len(self.deleted) :])
        if segments:
            if log.clean and not log.durability.is_new:
                log.durability.name_is_synced()
            return
        segment = log.make_segment(log.checkpointed_start_offset, size=0, created_ms=log.clock())
        segment.create_files(log.config.segment_bytes if log.config.preallocate else 0)
        segments.append(segment)
        self.names.discard(offset_file_name(segment.base_offset, TXN_INDEX_SUFFIX))

    def find_epochs(self) -> None:
        """The leader epochs, and where the log began by them."""
        log, epochs = self.log, self.epochs
        self.epochs_lost = not _load_epochs(epochs, has_records=self.segments[0].size > 0)
        epochs.unsynced = log.durability.is_new and len(epochs) > 0
        self.began = epochs.earliest[1]
        if self.epochs_lost:
            # Then indexes without their records tell that there were such, but for the one that a deletion cut short may leave.
            told = [int(name[:20]) for name in self.deleted if name.endswith(INDEX_SUFFIX)]
            if log.clean or len(told) > 1:
                self.began = min(told, default=self.began)

    def find_end(self) -> None:
        """The end, and what stands beside the records up to there: aborted transactions, indexes, producers. What has to be read for that
        is foreseen before anything is changed."""
        log, segments, report = self.log, self.segments, self.report
        with_aborts = [
            segment for segment in segments if offset_file_name(segment.base_offset, TXN_INDEX_SUFFIX) in self.names
        ]
        for segment in with_aborts:
            segment.expect_aborts()
        damaged = [segment for segment in with_aborts if aborts_damaged(log.files, segment)]
        self.snapshots = self._offsets_of(SNAPSHOT_SUFFIX)
        indexless = _without_indexes(segments, self.names)
        end = self._trusted_end()
        if end is None or damaged or self.epochs_lost or indexless:
            report.foresee(sum(segment.size for segment in segments))
        for segment in damaged:
            rebuild_aborts(log, segment, self.producers, segments, self.snapshots, end, report)
        if end is None:
            self.end = self._recovered_end()
            return
        self.end = end
        for segment in indexless:
            _rebuild_missing(log, segment, report)
        if log.known_producers is not None and log.known_producers.end_offset == end:
            self.producers = log.known_producers
        else:
            load_producers(log, self.producers, segments, self.snapshots, end, report)

    def _trusted_end(self) -> int | None:
        """That of a log that was closed cleanly; None where it is to be recovered."""
        log = self.log
        end = find_end(log.files, self.segments[-1], self.report) if log.clean else None
        if end is not None and end < log.recovery_point:
            logger.error(
                "recovering %s although it was closed cleanly: it ends at offset %d, not %d",
                log.path,
                end,
                log.recovery_point,
            )
            return None
        if end is not None and log.recovery_point < end and not find_gaps(log, self.segments, self.report):
            return None
        return end

    def _recovered_end(self) -> int:
        """That of a log of which what lies above the recovery point is checked, all of it where it ends below that."""
        log, epochs = self.log, self.epochs
        point, known_epochs = log.recovery_point, epochs.entries()
        end = self._recover(point)
        if end < point:
            logger.warning(
                "%s ends at offset %d, below its recovery point %d: what was said to be on disk is gone, or the point is another log's; "
                "all of it is checked",
                log.path,
                end,
                point,
            )
            log.recovery_point = 0
            self.report.gaps.clear()
            end = self._recover(end)
        # Of lost ones these are the last: alone in the file, they would be believed after a stop.
        if not self.epochs_lost and epochs.entries() != known_epochs:
            epochs.keep()
        return end

    def _recover(self, old_below: int) -> int:
        return recover(self.log, self.segments, self.epochs, self.producers, self.snapshots, self.report, old_below)

    def find_start(self) -> None:
        """The first record that is to be read. What was deleted before it goes; what is missing before it is said."""
        log, segments = self.log, self.segments
        self.start = max(log.checkpointed_start_offset, segments[0].base_offset)
        if self.start > self.end:
            logger.warning(
                "%s: the log start offset %d lies past the end %d: starting anew there", log.path, self.start, self.end
            )
            self.segments = start_anew(log, segments, self.start, first_segment(log, segments, self.start))
            self.producers.clear(self.start)
            self.end = self.start
        elif _begins_as_it_did(log, self.began, segments[0].base_offset):
            for name in self.deleted:
                log.files.remove_if_exists(os.path.join(log.path, name))
        else:
            _name_missing(log, self.deleted)

    def fit_epochs(self) -> None:
        """The leader epochs of what is between the start and the end."""
        log, epochs = self.log, self.epochs
        if self.epochs_lost:
            _rebuild_epochs(log, self.segments, epochs, self.report)
        # The pending epoch would be taken away here only to be assigned again, each time with a new file.
        if epochs.entries()[-1:] != [(log.pending_leader_epoch, self.end)]:
            epochs.truncate_from_end(self.end)
        if log.lost_start is None or self.start > log.lost_start[1]:
            epochs.truncate_from_start(self.start)
        else:  # they tell the next load where the log began, which the checkpoint of its start soon says no more
            epochs.truncate_from_start(log.lost_start[0])
            epochs.keep_if_behind()

    def install(self) -> RecoveryReport:
        """Have the log go on with all that."""
        log, end = self.log, self.end
        remove_stray_snapshots(log, self.snapshots, self.segments, end)
        log.cleaned_offset = min(log.cleaned_offset, end)  # what comes there next was never compacted
        log.install(self.segments, self.epochs, self.producers, end, self.start)
        log.recovery = self.report
        if log.clean:
            log.recovery_point = log.durability.on_disk_offset = end
            return self.report
        self.segments[-1].log.give_back()  # a crash has left what was reserved ahead of it
        log.recovery_point = min(log.recovery_point, end)
        log.durability.on_disk_offset = log.recovery_point
        if log.config.synchronous:
            _sync_recovered(log)
        return self.report


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


def _name_emptied(log: PartitionLog, segments: list[Segment]) -> None:
    """Say which records are gone with the bytes of a rolled segment: only compaction takes them all, below its checkpoint.

    One that the next is too far away from for its indexes has had none: what a mirror or a leader sends may begin so far above.
    """
    for segment, following in pairwise(segments):
        known = max(segment.base_offset, log.checkpointed_start_offset, log.cleaned_offset)
        missing = following.base_offset - known
        rolled_empty = following.base_offset - segment.base_offset > RELATIVE_OFFSET_MAX
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
