"""Getting a log onto the disk: flushes, group commit, and who waits for them.

Rules
- A log has one sync job in flight at a time. What is appended meanwhile is covered by the next one: that is the group commit.
- A plain job syncs the records; a full one also what recovery would otherwise rebuild (indexes, producer snapshot, leader epochs), and
  moves the recovery point. It has the files of SEGMENTS_PER_JOB segments at most, each of which takes descriptors, and goes on with the
  next ones: where rolls come faster than the disk takes them, or after a crash, there may be hundreds.
- What a roll asks for is begun ROLL_FLUSH_DELAY_MS after it, with all rolls since: the disk has its own pace, and a burst of
  records need not wait for it. The recovery point is written down once a minute, so that a crash costs no more of recovery for it.
- After a failed sync nothing is tried again: the directory is offline, and whoever waits gets its error.
- A job vouches for what the log held when it began: a truncation under way takes from it what was cut off.
- The first job after a truncation syncs the names that went, and then what was cut, whether a roll has come between or not: a loss of
  power would bring them back, below and behind what is acknowledged by then; and behind a gap, if what was cut were on disk before them.
- Settings may change at any moment, under a job or with waiters: `settings_changed` brings everyone to the new promise.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .checkpoints import PARTITION_METADATA
from .failures import failures
from .files import READ, FileHandle
from .segment import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, offset_file_name

if TYPE_CHECKING:
    from .partition_log import PartitionLog
    from .segment import Segment

Waiter = Callable[[KafkaError | None], None]
Marks = list[tuple[object, str, int | None]]
"""Attributes of objects, and what they are to be."""

ROLL_FLUSH_DELAY_MS: Final = 5_000
"""As often as Linux wakes up to write dirty pages."""
SEGMENTS_PER_JOB: Final = 16


class Durability:
    """The sync jobs of one log.

    Invariants: records below `on_disk_offset` are on disk; `recovery_point` of the log is at or below it after a full job. Indexes of
    segments below the one at `_settled_from` wait for no job, so that a full one looks at few segments of many. Once the log
    is deleted (`_deleted` says so to those who ask) no job begins: its files have other names.
    Event-loop thread only.
    """

    __slots__ = (
        "_again",
        "_cut_at",
        "_cut_off",
        "_deleted",
        "_flushing",
        "_later",
        "_log",
        "_name_synced",
        "_retry",
        "_settled_from",
        "_snapshot_offset",
        "_target",
        "_topic_id_unsynced",
        "_waiters",
        "is_new",
        "on_disk_offset",
    )

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.on_disk_offset = 0
        self.is_new = False
        """Whether this broker made the directory since it started: its name, and all that is in it, wait for the first jobs."""
        self._flushing = False
        self._target = 0  # the job in flight covers the records below it
        self._again: bool | None = None  # None: no further job is asked for; else whether it is a full one
        self._cut_at: int | None = None  # base offset of the first segment whose truncation no job has covered yet
        self._cut_off: deque[tuple[Waiter, KafkaError]] = deque()  # who is to be told that the records are gone
        self._later = False
        self._retry: bool | None = None  # as `_again`, for a job that could not be prepared
        self._deleted: KafkaError | None = None
        self._name_synced = False
        self._topic_id_unsynced = False
        self._snapshot_offset = -1
        self._settled_from = 0
        self._waiters: deque[tuple[int, Waiter]] = deque()

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be synced, and the recovery point is the log's end."""
        log = self._log
        return (
            self._name_synced
            and not self._topic_id_unsynced
            and self._cut_at is None
            and not log.epochs.unsynced
            and log.recovery_point >= log.log_end_offset
            and not any(
                segment.index.unsynced or segment.time_index.unsynced or segment.txn_index_unsynced
                for segment in log.segments_from(self._settled_from)
            )
        )

    @property
    def unsynced_from(self) -> int:
        """Segments from this offset on may have what is not on disk."""
        return self.on_disk_offset if self._cut_at is None else min(self.on_disk_offset, self._cut_at)

    def all_on_disk(self) -> None:
        """Everything of the log, which was finished before, has been synced from outside, its names too."""
        log = self._log
        self._name_synced = True
        self._topic_id_unsynced = False
        self._cut_at = None
        log.epochs.unsynced = False
        for segment in log.segments:
            segment.name_synced = True
            segment.index.unsynced = segment.time_index.unsynced = segment.txn_index_unsynced = False
        self._advance(log.log_end_offset, full=True)

    def synced(self, offset: int) -> None:
        """The records below `offset` have been synced from outside."""
        self._advance(offset, full=False)

    def sync_alone(self) -> None:
        """Sync everything in this thread, as a full job does, of a log that nobody else has. Raises OSError."""
        following: Segment | None = self._log.segments[0]
        while following is not None:
            handles, marks, following = self._handles(full=True, begin=following.base_offset)
            for handle in handles:
                self._log.files.sync(handle.fd)
            handles.clear()  # the next ones need their descriptors
            _set(marks)

    def unsettle(self, offset: int) -> None:
        """Indexes of the segment that holds `offset`, or of any above it, may have changed."""
        self._settled_from = min(self._settled_from, offset)

    def name_is_synced(self) -> None:
        """The log's directory was there before this broker started, and whoever made it has not been killed before it was synced."""
        self._name_synced = True

    def renamed(self) -> None:
        """The log's directory has another name, which the next job syncs."""
        self._name_synced = False

    def give_place(self, successor: Durability) -> None:
        """The log's files are others now, for which `successor` stands: who waits for these waits for those. A job in flight ends here."""
        self._log, successor._log = successor._log, self._log
        successor._waiters.extend(self._waiters)
        self._waiters.clear()
        successor.settings_changed()
        successor._advance(successor.on_disk_offset, full=False)

    def topic_id_written(self) -> None:
        """The log's partition.metadata is new: the next job syncs it."""
        self._topic_id_unsynced = True

    @property
    def flushing(self) -> bool:
        return self._flushing

    def request(self, *, full: bool) -> None:
        """Have everything synced that has been appended up to now."""
        if not self._flushing:
            self._start(full)
        elif full:
            self._again = True
        elif self._again is None:
            self._again = False

    def request_later(self) -> None:
        """The same with the indexes, ROLL_FLUSH_DELAY_MS from now."""
        if not self._later:
            self._later = True
            self._log.dir.flush_later(ROLL_FLUSH_DELAY_MS, self._request_now)

    def _request_now(self) -> None:
        self._later = False
        self.request(full=True)

    def wait(self, offset: int, callback: Waiter) -> None:
        """Call back once the records below `offset` are on disk, or with the error that keeps them from it for good."""
        log = self._log
        if self.on_disk_offset >= offset:
            callback(None)
        elif (refusal := log.dir.offline or log.failure) is not None:
            callback(refusal)
        else:
            if self._waiters:
                # In order of offsets: a duplicate waits with the append before it, which the same job covers.
                offset = max(offset, self._waiters[-1][0])
            self._waiters.append((offset, callback))
            if not self._flushing:
                self._start(full=False)

    def abandon(self, error: KafkaError) -> None:
        """The log is deleted: who waits, or will, gets this error."""
        self._deleted = error
        self._fail(error)

    def give_up(self, error: KafkaError) -> None:
        """The log cannot be loaded any more: who waits gets this error."""
        self._fail(error)

    def _fail(self, error: KafkaError) -> None:
        """Tell all who wait that it will not happen."""
        self._tell_cut_off()
        waiters, self._waiters = self._waiters, deque()
        for _, callback in waiters:
            self._tell(callback, error)

    def _tell(self, callback: Waiter, error: KafkaError | None) -> None:
        try:
            callback(error)
        except Exception as failure:  # those that wait behind it have done nothing wrong
            failures.report(f"answering who waited for the disk of {self._log.name}", failure)

    def settings_changed(self) -> None:
        """Act upon what the log's settings promise now: nobody waits for more than that, and what it takes is begun.

        Nothing is begun, and nobody is told that all is well, in a directory that is offline: who waited there has heard of it.
        """
        log = self._log
        if log.dir.offline is not None or self._deleted is not None:
            return
        behind = log.log_end_offset - self.on_disk_offset
        if log.config.synchronous:
            if behind and not self._flushing:
                # What was acknowledged from the page cache shall be as safe as what follows.
                self._start(full=False)
            return
        while self._waiters:
            self._tell(self._waiters.popleft()[1], None)
        if behind >= log.config.flush_messages:
            self.request(full=True)

    def truncated(self, end: int) -> None:
        """The log ends at `end` now, which was below its end before: what comes there next has not been synced by any job."""
        self.on_disk_offset = min(self.on_disk_offset, end)
        self._target = min(self._target, end)
        base = self._log.active_segment.base_offset
        self._cut_at = base if self._cut_at is None else min(self._cut_at, base)
        self.note_cut_off()
        if self._log.half_done is None:  # else once it is loaded
            self._tell_cut_off()

    def note_cut_off(self) -> None:
        """Who waits for what lies above the log's end waits for nothing, and is to be told so."""
        log = self._log
        gone, waiters, end = deque(self._cut_off), deque[tuple[int, Waiter]](), log.log_end_offset
        for offset, callback in self._waiters:
            if offset <= end:
                waiters.append((offset, callback))
                continue
            detail = f"the records below offset {offset} were cut off at {end} before they were on disk"
            error = error_for_code(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail, topic=log.topic, partition=log.partition)
            gone.append((callback, error))
        self._waiters, self._cut_off = waiters, gone

    def _tell_cut_off(self) -> None:
        while self._cut_off:
            callback, error = self._cut_off.popleft()
            self._tell(callback, error)

    def emptied(self, start: int) -> None:
        """The log has no records any more and begins at `start`, which may lie above its end before."""
        self.truncated(start)
        self.on_disk_offset = start

    def unloaded(self, base: int) -> None:
        """The log, whose files have changed from `base` on, is loaded anew: above it nothing is vouched for until then."""
        self.on_disk_offset = min(self.on_disk_offset, base)
        self._target = min(self._target, base)
        self._cut_at = base if self._cut_at is None else min(self._cut_at, base)

    def loaded_anew(self) -> None:
        """The log is loaded: what was cut is synced, and who waits goes on."""
        self._log.epochs.unsynced = len(self._log.epochs) > 0  # of what was written before nobody knows
        try:
            self._tell_cut_off()
        finally:
            self.request(full=True)

    @property
    def deleted(self) -> KafkaError | None:
        return self._deleted

    # -- jobs

    def _start(self, full: bool) -> None:
        log = self._log
        refusal = self._deleted or log.dir.offline
        if refusal is not None:
            self._fail(refusal)
            return
        if log.half_done is not None:  # its load asks for a job
            return
        target = log.log_end_offset
        try:
            handles, marks, following = self._handles(full)
            log.dir.flusher.submit(handles, lambda error: self._ended(full, handles, error))
        except (OSError, MemoryError) as problem:
            self._start_soon(full)  # before it is said, which takes memory
            error = problem if isinstance(problem, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            failure = log.dir.refuse("preparing a flush", error.filename or log.path, error)
            if log.dir.offline is not None:
                self._fail(failure)
                return
            if full and (self._waiters or log.config.synchronous):
                self._start(full=False)  # indexes have time: who waits for records shall not wait for room on the disk
            return
        # Once there is a job, and not before: one that could not be begun has no end.
        self._flushing = True
        self._target = target
        if following is not None:
            self._target, self._again = following.base_offset, full or bool(self._again)
        _set(marks)

    def _start_soon(self, full: bool) -> None:
        """For want of descriptors or memory the job begins at the directory's next tick; who waits goes on waiting."""
        if self._retry is None:
            self._log.dir.soon(self._retry_now)
        self._retry = full or bool(self._retry)

    def _retry_now(self) -> None:
        full, self._retry = bool(self._retry), None
        self.request(full=full)

    def _segments_to_sync(self, full: bool, begin: int) -> tuple[list[Segment], list[Segment], Segment | None]:
        """The segments from `begin` on of which one job syncs the records, and those of which it syncs indexes; and the first one that it
        leaves to the next job."""
        log = self._log
        since = min(log.recovery_point, self.unsynced_from) if full else self.unsynced_from
        records = log.segments_from(max(since, begin))
        indexes: list[Segment] = []
        if full:
            # A roll may have changed the indexes of a segment that was flushed before it.
            indexes = [
                segment for segment in log.segments_from(max(self._settled_from, begin)) if segment.indexes_unsynced
            ]
        bases = sorted({segment.base_offset for segment in (*records, *indexes)})
        if len(bases) <= SEGMENTS_PER_JOB:
            return records, indexes, None
        end = bases[SEGMENTS_PER_JOB]
        following = next(segment for segment in (*records, *indexes) if segment.base_offset == end)
        return (
            [segment for segment in records if segment.base_offset < end],
            [segment for segment in indexes if segment.base_offset < end],
            following,
        )

    def _handles(self, full: bool, begin: int = 0) -> tuple[list[FileHandle], Marks, Segment | None]:
        """The files of one job, in the order in which they are synced: records first, names last; what is to be marked as synced once the
        job has begun; and the segment at `begin` or above it that the next job has to go on with, if any. Raises OSError."""
        log = self._log
        files = log.files
        records, indexes, following = self._segments_to_sync(full, begin)
        handles: list[FileHandle] = []
        marks: Marks = []
        new_names = not self._name_synced
        if self._cut_at is not None:
            if following is None or self._cut_at < following.base_offset:
                marks.append((self, "_cut_at", None))
            new_names = True
        for segment in records:
            handles.append(segment.log.handle())
            if not segment.name_synced:
                new_names = True
                marks.append((segment, "name_synced", True))
        if full:
            for segment in indexes:
                for index in (segment.index, segment.time_index):
                    index.write_pending()
                    if index.unsynced:
                        marks.append((index, "unsynced", False))
                        handles.append(FileHandle(files, index.path, READ))
                if segment.txn_index_unsynced:
                    segment.write_aborts()
                if segment.txn_index_unsynced:  # else there are none, and no file any more
                    marks.append((segment, "txn_index_unsynced", False))
                    handles.append(FileHandle(files, segment.path_of(TXN_INDEX_SUFFIX), READ))
            snapshot = self.take_snapshot() if following is None else None
            if snapshot is not None:
                handles.append(FileHandle(files, snapshot, READ))
            if log.epochs.unsynced:
                log.epochs.write_if_behind()
                marks.append((log.epochs, "unsynced", False))
                handles.append(FileHandle(files, log.epochs.path, READ))
            marks.append((self, "_settled_from", (following or log.active_segment).base_offset))
            new_names = True
        if self._topic_id_unsynced:
            marks.append((self, "_topic_id_unsynced", False))
            handles.append(FileHandle(files, os.path.join(log.path, PARTITION_METADATA), READ))
            new_names = True
        if new_names:
            handles.append(FileHandle(files, log.path, READ))
        if self._cut_at is not None:
            # Files that went come back together with what was cut before them, or there would be a gap.
            handles.insert(0, handles[-1])
        if not self._name_synced:
            marks.append((self, "_name_synced", True))
            handles.append(FileHandle(files, log.dir.path, READ))
        return handles, marks, following

    def take_snapshot(self) -> str | None:
        """Write the producers as of the log's end, and answer the file's path; of those between rolls one is kept.

        There is none at offset 0, nor while a transaction is open that may have ended at a damaged batch: a load is to meet that again.
        Raises OSError.
        """
        log = self._log
        if not log.log_end_offset or log.producers.is_open_over_damage:
            return None
        path = os.path.join(log.path, offset_file_name(log.log_end_offset, SNAPSHOT_SUFFIX))
        log.files.write_file(path, log.producers.encode(), sync=False)
        previous, self._snapshot_offset = self._snapshot_offset, log.log_end_offset
        if previous not in (-1, log.log_end_offset) and all(previous != s.base_offset for s in log.segments):
            log.files.remove_if_exists(os.path.join(log.path, offset_file_name(previous, SNAPSHOT_SUFFIX)))
        return path

    def _ended(self, full: bool, handles: list[FileHandle], error: OSError | None) -> None:
        self._flushing = False
        handles.clear()  # the next job needs their descriptors
        log = self._log
        if error is not None:
            self._fail(log.dir.fail("syncing", error.filename or log.path, error))
            return
        if log.half_done is not None:  # it vouches for nothing; the load asks for another
            return
        self._advance(self._target, full)
        if self._flushing or self._deleted is not None:  # a callback has appended; the log was deleted meanwhile
            return
        behind = log.log_end_offset > self.on_disk_offset and (log.config.synchronous or self._waiters)
        if self._again is not None or behind:
            again, self._again = bool(self._again), None
            self._start(again)

    def _advance(self, target: int, full: bool) -> None:
        """Records below `target` are on disk, in a full job with all that recovery would rebuild."""
        log = self._log
        self._tell_cut_off()
        self.on_disk_offset = max(self.on_disk_offset, target)
        if full:
            log.recovery_point = max(log.recovery_point, target)
        log.on_disk(self.on_disk_offset)
        while self._waiters and self._waiters[0][0] <= self.on_disk_offset:  # each of whom may cut the log
            self._tell(self._waiters.popleft()[1], None)


def _set(marks: Marks) -> None:
    for holder, name, value in marks:
        setattr(holder, name, value)


def first_segment_from(bases: list[int], offset: int) -> int:
    """Number of the segment that holds `offset`; 0 when it lies before all."""
    return max(bisect_right(bases, offset) - 1, 0)
