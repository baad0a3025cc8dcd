"""One log directory: what its logs share, and whether it can still be written to.

Rules
- The first failed write, sync, rename or truncation takes the directory offline: nothing is appended to any of its logs until the
  broker has been started again. Its data stays readable as far as the disk allows. Other directories go on.
- A shortage of descriptors, memory or room is no failure of the disk: what can be done again later is refused with the same retriable
  error, or put off to the next tick, and the directory stays online. A log that it leaves half done is loaded anew (see PartitionLog).
- Before a disk is full, clients' records are refused (`close_to_clients`): what is left is for the broker's own.
- Files are deleted by the flusher's threads: that may wait for the disk.
- What comes later is counted on a clock that nobody sets: when the system's time jumps, nothing is late or early.
- A failed sync is never tried again: the kernel may have dropped the pages, so that a second one would succeed without them.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError, error_for_code

from .failures import failures
from .files import FULL, FdBudget, Files, is_full, is_shortage
from .flusher import Flusher

if TYPE_CHECKING:
    from .index_rebuild import Rebuild
    from .partition_log import PartitionLog

logger = logging.getLogger(__name__)


_MORE_FILES = "raise the limit of open files (ulimit -n, LimitNOFILE=), or have fewer clients and partitions"
_SHORTAGE_LINE_MS = 10_000
"""Shortages are said at most this often."""

RESERVE_AGAIN_MS = 60_000
"""How long no log has room ahead of its end after a write has found the disk full."""
_IN_THE_WAY = frozenset(
    {errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EPERM, errno.EACCES, errno.EBUSY}
)
"""Why a file or directory cannot be removed although the disk is fine: somebody has put something there, or forbidden it."""
_WRONG_KIND = "something else lies where this file or directory should be: move it away, then restart the broker"
_ADVICE = {
    errno.EISDIR: _WRONG_KIND,
    errno.ENOTDIR: _WRONG_KIND,
    errno.ENODEV: _WRONG_KIND,  # a map of a directory
    errno.ESPIPE: _WRONG_KIND,  # a pipe
    errno.ELOOP: _WRONG_KIND,
    errno.ENOENT: "somebody has removed it: restore it from a copy, then restart the broker",
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the disk quota, or free space within it",
    errno.EROFS: "the file system is read-only: check its health, remount it writable, then restart the broker",
    errno.EIO: "the disk reports errors: check it, then restart the broker",
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
    errno.ENOMEM: "the machine is short of memory: give the broker more, or less to do",
    errno.EAGAIN: "the machine is short of memory or processes: give the broker more, or less to do",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f, LimitFSIZE=), or use a file system that takes larger files",
    errno.EACCES: "give the broker's user read and write access, then restart the broker",
}


def advice_for(error: OSError) -> str:
    """What to do about an error of the disk, or of what it takes to reach one."""
    return _ADVICE.get(error.errno or 0, "check the disk and its mount, then restart the broker")


def system_clock_ms() -> int:
    """The time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def system_monotonic_ms() -> int:
    """Milliseconds on a clock that never jumps; it begins anywhere."""
    return time.monotonic_ns() // 1_000_000


class LogDir:
    """A log directory. Event-loop thread only.

    `offline` is the error that took it offline, None while it is fine; `on_offline` is called with the directory, once unless it
    lacks the memory for it. `refusal` is why
    records of clients are refused now: that error, or that there is no room for them; None while they are taken.
    """

    def __init__(
        self,
        path: str,
        files: Files,
        budget: FdBudget,
        flusher: Flusher,
        *,
        monotonic_ms: Callable[[], int] = system_monotonic_ms,
    ) -> None:
        self.path = path
        self.files = files
        self.budget = budget
        self.flusher = flusher
        self.monotonic_ms = monotonic_ms
        self.offline: KafkaError | None = None
        self.refusal: KafkaError | None = None
        self._failed_inside = self._error(
            "taking back what an append has written",
            path,
            OSError(errno.ENOMEM, "it failed inside, for want of memory as a rule"),
            "the log directory is offline and nothing of this was acknowledged",
            ", then restart the broker",
        )
        self._untold = False  # whether it went offline and `on_offline` has not heard of it
        self.refused_for_room = 0
        """How many operations have met a full disk."""
        self.reserves = True
        """Whether logs may have room on the disk ahead of their ends: not while the disk is short of it."""
        self.on_offline: Callable[[LogDir], None] | None = None
        self.on_short: Callable[[LogDir], int] | None = None
        """Has logs give back the room ahead of their ends, and answers how much that was."""
        self._given_back_bytes = 0  # when the disk was last short of it
        self._reserves_at_ms = monotonic_ms()  # no sooner, after a write has found the disk full
        self.on_recovery_read: Callable[[int], None] | None = None
        """Hears of each piece of a log that a recovery has read."""
        self.late_recovery: Callable[[PartitionLog], KafkaError] | None = None
        """Has a thread read a log that has much to read, and answers the error for who touches it meanwhile; None: it is read at once."""
        self.index_rebuild: Callable[[Rebuild], bool] | None = None
        """Has a thread make a segment's indexes again, and answers whether there is one; None: it is done at once."""
        self.restate: Callable[[PartitionLog], None] | None = None
        """Has nothing on disk say more of a log than holds. Raises KafkaStorageError."""
        self._untold_shortages = 0
        self._next_line_ms = monotonic_ms()  # from then on a shortage is said again
        self._soon: deque[Callable[[], None]] = deque()
        self._deletions: list[tuple[int, str]] = []
        self._flushes: deque[tuple[int, Callable[[], None]]] = deque()

    def fail(self, action: str, path: str, error: OSError) -> KafkaError:
        """Take the directory offline and answer the error to raise: what failed, on which file, why, and what to do."""
        failure = self._error(
            action,
            path,
            error,
            "the log directory is offline and nothing of this was acknowledged",
            ", then restart the broker" if error.errno in FULL else "",
        )
        if self.offline is None:
            self.offline = self.refusal = failure
            self._tell_offline()
        return failure

    def fail_inside(self) -> None:
        """Take the directory offline where there may be no memory to say so: with what there is already, and it is said at the next tick
        where it cannot be now."""
        if self.offline is None:
            self.offline = self.refusal = self._failed_inside
            self._tell_offline()

    def _tell_offline(self) -> None:
        self._untold = False
        try:
            logger.error("%s", self.offline)
            if self.on_offline is not None:
                self.on_offline(self)
        except MemoryError:
            self._untold = True

    def refuse(self, action: str, path: str, error: OSError) -> KafkaError:
        """Answer the error to raise of something that changed nothing and may be tried again: a shortage leaves the directory online, and
        is said at a bounded rate; for all else the same as `fail`."""
        if not is_shortage(error):
            return self.fail(action, path, error)
        if is_full(error):
            self.refused_for_room += 1
            self._reserves_at_ms = self.monotonic_ms() + RESERVE_AGAIN_MS
            self.give_back_room()
        refusal = self._error(action, path, error, "nothing of this was acknowledged; try it again")
        now_ms = self.monotonic_ms()
        if now_ms < self._next_line_ms:
            self._untold_shortages += 1
        else:
            self._next_line_ms = now_ms + _SHORTAGE_LINE_MS
            self._tell_shortages()
            logger.warning("%s", refusal)
        return refusal

    def _tell_shortages(self) -> None:
        if self._untold_shortages:
            logger.warning(
                "%s: %d more operations met a shortage of descriptors, memory or room",
                self.path,
                self._untold_shortages,
            )
        self._untold_shortages = 0

    def close_to_clients(self, reason: str, hint: str) -> None:
        """Refuse the records of clients from now on; what the broker itself writes, and what followers fetch, is taken as before."""
        if self.offline is None:
            self.refusal = error_for_code(ErrorCode.KAFKA_STORAGE_ERROR, reason, log_dir=self.path, hint=hint)

    def open_to_clients(self) -> None:
        """Take the records of clients again."""
        self.refusal = self.offline

    def give_back_room(self) -> None:
        """The disk is short of room: no log is to have some ahead of its end, until somebody has found that there is enough."""
        if self.reserves:
            self.reserves = False
            if self.on_short is not None:
                self._given_back_bytes = self.on_short(self)

    def take_room_again(self, spare_bytes: int) -> None:
        """So many bytes are free besides what tells enough from too little. Logs may have room ahead of their ends where they would not be
        short of it again with what they had, nor the disk has been full a moment ago: by a quota, say, which nobody sees who looks."""
        if spare_bytes >= self._given_back_bytes and self.monotonic_ms() >= self._reserves_at_ms:
            self.reserves = True

    def check_append(self, from_client: bool) -> None:
        """Raise why an append is refused. Only where there is a `refusal`."""
        if self.offline is not None:
            raise self.offline.with_traceback(None)
        if from_client and self.refusal is not None:
            raise self.refusal.with_traceback(None)

    def _error(self, action: str, path: str, error: OSError, outcome: str, then: str = "") -> KafkaError:
        advice = advice_for(error) + then
        return error_for_code(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{action} failed: {error.strerror or error}; {outcome}",
            log_dir=self.path,
            file=path,
            errno=errno.errorcode.get(error.errno or 0, "?"),
            hint=advice[0].upper() + advice[1:],
        )

    # -- what comes later

    def tick(self) -> None:
        """Begin the flushes and the deletions that are due, and what a shortage has put off."""
        now_ms = self.monotonic_ms()
        if self._untold:
            self._tell_offline()
        if self._untold_shortages and now_ms >= self._next_line_ms:
            self._tell_shortages()
            self._next_line_ms = now_ms + _SHORTAGE_LINE_MS
        for _ in range(len(self._soon)):  # what there is no memory to begin with stays for the next one
            failures.attempt(f"what a shortage has put off in {self.path}", self._soon.popleft())
        flushes = self._flushes
        while flushes and flushes[0][0] <= now_ms:
            failures.attempt(f"beginning a flush in {self.path}", flushes.popleft()[1])
        self._run_deletions(now_ms)

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` at the next tick: a shortage may be over then."""
        self._soon.append(work)

    def flush_later(self, delay_ms: int, start: Callable[[], None]) -> None:
        """Call `start` when `delay_ms` are over, after those that were asked for before; all have the same delay."""
        self._flushes.append((self.monotonic_ms() + delay_ms, start))

    def delete_later(self, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink files when `delay_ms` are over."""
        at_ms = self.monotonic_ms() + delay_ms
        self._deletions.extend((at_ms, path) for path in paths)

    def _run_deletions(self, now_ms: int) -> None:
        """Have the files unlinked that are due."""
        if not self._deletions:
            return
        due = [path for at_ms, path in self._deletions if at_ms <= now_ms]
        if due:
            later = [(at_ms, path) for at_ms, path in self._deletions if at_ms > now_ms]
            self._remove(due, None)
            self._deletions = later

    def remove_directory(self, path: str) -> None:
        """Have a directory of files removed; one that is gone already is done. Raises OSError."""
        try:
            names = self.files.listdir(path)
        except FileNotFoundError:
            return
        self._remove([os.path.join(path, name) for name in names], path)

    def _remove(self, paths: list[str], directory: str | None) -> None:
        def removed(error: OSError | None) -> None:
            if error is None or error.errno == errno.ENOENT:
                return
            if error.errno in _IN_THE_WAY:
                logger.warning(
                    "%s cannot be deleted: %s; it is of no use any more, and stays until somebody removes it",
                    directory or error.filename or paths[0],
                    error.strerror,
                )
                return
            self.refuse("deleting a file", error.filename or directory or paths[0], error)
            if self.offline is None:
                self.soon(lambda: self._remove(paths, directory))

        self.flusher.remove(paths, directory, removed)
