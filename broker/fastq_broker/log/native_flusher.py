"""The flusher over native threads: see fastq._native.flusher for how."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

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
        self._untold = OSError(errno.EIO, "a job on a file failed, and there was no memory to say which")

    @staticmethod
    def supported() -> bool:
        """Whether this platform has native threads for it."""
        return bool(supported())

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        fds = [handle.fd for handle in handles]
        self._begin(handles, done, partial(self._threads.submit, fds=fds))

    def remove(self, paths: Sequence[str], directory: str | None, done: Done) -> None:
        everything = [*paths, directory] if directory is not None else list(paths)
        self._begin(everything, done, partial(self._threads.remove, paths=everything))

    def write_back(self, handle: FileHandle, position: int, size: int, done: Done) -> None:
        self._begin([handle], done, partial(self._threads.begin, fd=handle.fd, position=position, size=size))

    def _begin(self, files: Sequence[FileHandle] | Sequence[str], done: Done, begin: Callable[[int], object]) -> None:
        self._next_job += 1
        job = self._next_job
        self._jobs[job] = (files, done)
        try:
            begin(job)
        except BaseException:  # there is no such job, and `wait` would wait for its end
            del self._jobs[job]
            raise

    def fileno(self) -> int:
        return self._threads.fileno()

    def drain(self) -> int:
        threads, count = self._threads, 0
        left = threads.ended()
        try:
            while left:
                try:
                    ended = threads.take(self._jobs)
                except MemoryError:
                    break  # it is still there
                if ended is None:  # a callback has waited for the rest, and it is told of
                    left = 0
                    break
                job, code = ended[0], ended[1]  # unpacking takes memory, and nobody else knows of it by now
                files, done = job[0], job[1]
                deliver(done, self._error_of(code, files[ended[2]]) if code else None, files)
                left -= 1
                count += 1
        finally:
            if left:  # nobody has heard of these yet, for want of memory, or as one before them has raised
                threads.again()
        return count

    def _error_of(self, code: int, failed: FileHandle | str) -> OSError:
        try:
            return OSError(code, os.strerror(code), failed if isinstance(failed, str) else failed.path)
        except MemoryError:  # whoever waits for it must hear of it
            return self._untold

    def wait(self) -> None:
        while self._jobs:
            if not self.drain():  # at first: a drain that this is called in has heard of what had ended by then
                wait_readable(self._threads.fileno())

    def close(self) -> None:
        self.wait()
        self._threads.close()
