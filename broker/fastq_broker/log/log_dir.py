"""One log directory: what its logs share, and whether it can still be written to.

Rules
- The first failed write, sync, rename or truncation takes the directory offline: nothing is appended to any of its logs until the
  broker has been started again. Its data stays readable as far as the disk allows. Other directories go on.
- Files are deleted by the flusher's threads: that may wait for the disk.
- A failed sync is never tried again: the kernel may have dropped the pages, so that a second one would succeed without them.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence

from fastq.errors import KafkaError, error_for_code

from .files import FdBudget, Files
from .flusher import Flusher

logger = logging.getLogger(__name__)

KAFKA_STORAGE_ERROR = 56

_ADVICE = {
    errno.ENOSPC: "free space on that file system, then restart the broker",
    errno.EDQUOT: "raise the disk quota, then restart the broker",
    errno.EROFS: "the file system is read-only: check its health, remount it writable, then restart the broker",
    errno.EIO: "the disk reports errors: check it, then restart the broker",
    errno.EMFILE: "raise the limit of open files (ulimit -n), then restart the broker",
    errno.EACCES: "give the broker's user read and write access, then restart the broker",
}


class LogDir:
    """A log directory. Event-loop thread only.

    `offline` is the error that took it offline, None while it is fine; `on_offline` is called once with the directory.
    """

    def __init__(self, path: str, files: Files, budget: FdBudget, flusher: Flusher) -> None:
        self.path = path
        self.files = files
        self.budget = budget
        self.flusher = flusher
        self.offline: KafkaError | None = None
        self.on_offline: Callable[[LogDir], None] | None = None
        self._deletions: list[tuple[int, str]] = []
        self._flushes: deque[tuple[int, Callable[[], None]]] = deque()

    def fail(self, action: str, path: str, error: OSError) -> KafkaError:
        """Take the directory offline and answer the error to raise: what failed, on which file, why, and what to do."""
        name = errno.errorcode.get(error.errno or 0, "?")
        advice = _ADVICE.get(error.errno or 0, "check the disk and its mount, then restart the broker")
        failure = error_for_code(
            KAFKA_STORAGE_ERROR,
            f"{action} failed: {error.strerror or error}; the log directory is offline and nothing of this was acknowledged",
            log_dir=self.path,
            file=path,
            errno=name,
            hint=advice[0].upper() + advice[1:],
        )
        if self.offline is None:
            self.offline = failure
            logger.error("%s", failure)
            if self.on_offline is not None:
                self.on_offline(self)
        return failure

    # -- what comes later

    def tick(self, now_ms: int) -> None:
        """Begin the flushes and the deletions that are due."""
        flushes = self._flushes
        while flushes and flushes[0][0] <= now_ms:
            flushes.popleft()[1]()
        self._run_deletions(now_ms)

    def flush_later(self, at_ms: int, start: Callable[[], None]) -> None:
        """Call `start` once `at_ms` has come, after those that were asked for before."""
        self._flushes.append((at_ms, start))

    def delete_later(self, paths: Sequence[str], at_ms: int) -> None:
        """Unlink files once `at_ms` has come."""
        self._deletions.extend((at_ms, path) for path in paths)

    def _run_deletions(self, now_ms: int) -> None:
        """Have the files unlinked that are due."""
        if not self._deletions:
            return
        due = [path for at_ms, path in self._deletions if at_ms <= now_ms]
        if due:
            self._deletions = [(at_ms, path) for at_ms, path in self._deletions if at_ms > now_ms]
            self._remove(due, None)

    def remove_directory(self, path: str) -> None:
        """Have a directory of files removed. Raises OSError."""
        self._remove([os.path.join(path, name) for name in self.files.listdir(path)], path)

    def _remove(self, paths: list[str], directory: str | None) -> None:
        def removed(error: OSError | None) -> None:
            if error is not None:
                self.fail("deleting a file", error.filename or directory or paths[0], error)

        self.flusher.remove(paths, directory, removed)
