"""One log directory: what its logs share, and whether it can still be written to.

Rules
- The first failed write, sync, rename or truncation takes the directory offline: nothing is appended to any of its logs until the
  broker has been started again. Its data stays readable as far as the disk allows. Other directories go on.
- A large file that is deleted is freed by the flusher's threads: the loop only takes its name away.
- A failed sync is never tried again: the kernel may have dropped the pages, so that a second one would succeed without them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence

from fastq.errors import KafkaError, error_for_code

from .files import READ, FdBudget, Files
from .flusher import Flusher

logger = logging.getLogger(__name__)

KAFKA_STORAGE_ERROR = 56
LARGE_FILE_BYTES = 8 << 20
"""Freeing a file of this size takes some tenths of a millisecond."""

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
        self._deletions: deque[tuple[int, str]] = deque()

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

    # -- deletions

    def delete_later(self, paths: Sequence[str], at_ms: int) -> None:
        """Unlink files once `at_ms` has come."""
        self._deletions.extend((at_ms, path) for path in paths)

    def run_deletions(self, now_ms: int, limit: int) -> int:
        """Unlink up to `limit` files that are due; answers how many were."""
        done = 0
        for _ in range(len(self._deletions)):
            if done >= limit:
                break
            at_ms, path = self._deletions.popleft()
            if at_ms > now_ms:
                self._deletions.append((at_ms, path))
                continue
            done += 1
            try:
                self.remove(path)
            except OSError as error:
                self.fail("deleting a file", path, error)
        return done

    def remove(self, path: str) -> None:
        """Unlink a file, if it is there; the space of a large one is freed in the background. Raises OSError."""
        kept = -1
        if self.files.size_bytes(path) >= LARGE_FILE_BYTES:
            with contextlib.suppress(OSError):  # then it is freed here
                kept = self.files.open(path, READ)
        try:
            self.files.remove_if_exists(path)
        finally:
            if kept >= 0:
                self.flusher.close_later(kept)
