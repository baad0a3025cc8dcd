"""The flusher over native threads: see fastq._native.flusher for how."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastq._native.flusher import SyncThreads, supported

from .files import FileHandle
from .flusher import Done, deliver, wait_readable


class NativeFlusher:
    """Syncs in native threads that never take the GIL; `fileno` is an eventfd (a pipe where there is none).

    Event-loop thread only.
    """

    def __init__(self, threads: int = 4) -> None:
        self._threads = SyncThreads(threads)
        self._jobs: dict[int, tuple[Sequence[FileHandle] | Sequence[str], Done]] = {}
        self._next_job = 0

    @staticmethod
    def supported() -> bool:
        """Whether this platform has native threads for it."""
        return bool(supported())

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        self._threads.submit(self._note(handles, done), [handle.fd for handle in handles])

    def remove(self, paths: Sequence[str], directory: str | None, done: Done) -> None:
        everything = [*paths, directory] if directory is not None else list(paths)
        self._threads.remove(self._note(everything, done), everything)

    def write_back(self, handle: FileHandle, position: int, size: int, done: Done) -> None:
        self._threads.begin(self._note([handle], done), handle.fd, position, size)

    def _note(self, files: Sequence[FileHandle] | Sequence[str], done: Done) -> int:
        self._next_job += 1
        self._jobs[self._next_job] = (files, done)
        return self._next_job

    def fileno(self) -> int:
        return self._threads.fileno()

    def drain(self) -> int:
        ended = self._threads.drain()
        for job, code, at in ended:
            files, done = self._jobs.pop(job)
            if not code:
                deliver(done, None, files)
                continue
            failed = files[at]
            error = OSError(code, os.strerror(code), failed if isinstance(failed, str) else failed.path)
            deliver(done, error, files)
        return len(ended)

    def wait(self) -> None:
        while self._jobs:
            wait_readable(self._threads.fileno())
            self.drain()

    def close(self) -> None:
        self.wait()
        self._threads.close()
