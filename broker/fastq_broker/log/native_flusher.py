"""The flusher over native threads: see fastq._native.flusher for how."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastq._native.flusher import SyncThreads, supported

from .files import FileHandle
from .flusher import Done, wait_readable


class NativeFlusher:
    """Syncs in native threads that never take the GIL; `fileno` is an eventfd (a pipe where there is none).

    Event-loop thread only.
    """

    def __init__(self, threads: int = 4) -> None:
        self._threads = SyncThreads(threads)
        self._jobs: dict[int, tuple[Sequence[FileHandle], Done]] = {}
        self._next_job = 0

    @staticmethod
    def supported() -> bool:
        """Whether this platform has native threads for it."""
        return bool(supported())

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        self._next_job += 1
        self._jobs[self._next_job] = (handles, done)
        self._threads.submit(self._next_job, [handle.fd for handle in handles])

    def close_later(self, fd: int) -> None:
        self._threads.close_later(fd)

    def fileno(self) -> int:
        return self._threads.fileno()

    def drain(self) -> int:
        ended = self._threads.drain()
        for job, code in ended:
            _, done = self._jobs.pop(job)
            done(OSError(code, os.strerror(code)) if code else None)
        return len(ended)

    def wait(self) -> None:
        while self._jobs:
            wait_readable(self._threads.fileno())
            self.drain()

    def close(self) -> None:
        self.wait()
        self._threads.close()
