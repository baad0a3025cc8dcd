"""What takes the disk's time: syncs, begins to write back and removes files away from the event loop and reports back to it.

Rules
- A job is a list of files to sync, or to remove, in order, or a range of one to write back; its callback runs in the thread that calls
  `drain`, with the first error or None.
- A job covers every write that was made before it was submitted. Group commit is the log's: it submits one job at a time and the
  next one covers all appends that came meanwhile.
- A callback that raises is reported with the file of its job; the callbacks of other logs run.
- A job that could not be begun, as that raises, is none: its callback never runs, and nobody waits for it.
- The native flusher never needs the GIL: a Python thread that ends an fsync may wait 5 ms for it.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from .failures import failures
from .files import FileHandle, Files

Done = Callable[[OSError | None], None]


def wait_readable(fd: int, timeout_ms: int = 1000) -> None:
    """Wait until a descriptor, of any number, is readable."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(timeout_ms)


class Flusher(Protocol):
    """Syncs and removes files in the background."""

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        """Sync the files' data in order; they stay open meanwhile."""

    def remove(self, paths: Sequence[str], directory: str | None, done: Done) -> None:
        """Unlink files, those that are there, then remove the directory that held them, if one is given.

        To free 30 MB of pages and blocks takes 1 ms, and one that is being written to the disk is waited for.
        """

    def write_back(self, handle: FileHandle, position: int, size: int, done: Done) -> None:
        """Begin to write a range of a file to the disk, where the system can. It is no sync, and a disk's error is the next sync's."""

    def fileno(self) -> int:
        """A descriptor that is readable when `drain` has something to do; -1 when there is none."""

    def drain(self) -> int:
        """Run the callbacks of jobs that have ended; answers how many. Never waits."""

    def wait(self) -> None:
        """Wait until all jobs have ended, and run their callbacks."""

    def close(self) -> None:
        """Wait for all jobs, run their callbacks, and stop."""


def _name_of(files: Sequence[FileHandle] | Sequence[str]) -> str:
    """The file that a job is named after."""
    first = files[0] if files else "no file"
    return first if isinstance(first, str) else first.path


def deliver(done: Done, error: OSError | None, files: Sequence[FileHandle] | Sequence[str]) -> None:
    """Run the callback of a job that has ended; one that raises concerns nobody else."""
    name = _name_of(files)  # the callback may let go of them
    try:
        done(error)
    except Exception as failure:
        failures.report(f"what follows a job on {name}", failure)


def _sync(files: Files, handles: Sequence[FileHandle]) -> None:
    for handle in handles:
        files.sync(handle.fd)


def _begin(files: Files, handle: FileHandle, position: int, size: int) -> None:
    files.write_range(handle.fd, position, size)


def _remove(files: Files, paths: Sequence[str], directory: str | None) -> None:
    for path in paths:
        files.remove_if_exists(path)
    if directory is not None:
        files.rmdir(directory)


def _error_of(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None


class ManualFlusher:
    """Does its jobs in `drain`, in the caller's thread: for tests and the simulator, which decide when a disk is done."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._jobs: deque[tuple[Callable[[], None], Done, Sequence[FileHandle] | Sequence[str]]] = deque()

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        self._jobs.append((partial(_sync, self._files, handles), done, handles))

    def remove(self, paths: Sequence[str], directory: str | None, done: Done) -> None:
        self._jobs.append((partial(_remove, self._files, paths, directory), done, paths))

    def write_back(self, handle: FileHandle, position: int, size: int, done: Done) -> None:
        self._jobs.append((partial(_begin, self._files, handle, position, size), done, [handle]))

    def fileno(self) -> int:
        return -1

    def drain(self) -> int:
        count = 0
        for _ in range(len(self._jobs)):
            work, done, files = self._jobs.popleft()
            deliver(done, _error_of(work), files)
            count += 1
        return count

    def wait(self) -> None:
        while self._jobs:
            self.drain()

    def close(self) -> None:
        self.wait()


class ThreadFlusher:
    """Python threads: where there is no native flusher, and where file operations are injected."""

    def __init__(self, files: Files, threads: int = 4) -> None:
        self._files = files
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="fastq-flush")
        self._ended: deque[tuple[int, OSError | None]] = deque()
        self._jobs: dict[int, tuple[Sequence[FileHandle] | Sequence[str], Done]] = {}
        self._next_job = 0

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        self._begin(partial(_sync, self._files, handles), done, handles)

    def remove(self, paths: Sequence[str], directory: str | None, done: Done) -> None:
        self._begin(partial(_remove, self._files, paths, directory), done, paths)

    def write_back(self, handle: FileHandle, position: int, size: int, done: Done) -> None:
        self._begin(partial(_begin, self._files, handle, position, size), done, [handle])

    def _begin(self, work: Callable[[], None], done: Done, files: Sequence[FileHandle] | Sequence[str]) -> None:
        self._next_job += 1
        job = self._next_job
        self._jobs[job] = (files, done)
        try:
            self._executor.submit(self._run, job, work)
        except BaseException:  # a thread that was there before may do it yet, of which nobody is to hear
            del self._jobs[job]
            raise

    def _run(self, job: int, work: Callable[[], None]) -> None:
        self._ended.append((job, _error_of(work)))
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            pass  # full of wake-ups already

    def fileno(self) -> int:
        return self._read

    def drain(self) -> int:
        try:
            os.read(self._read, 65536)
        except BlockingIOError:
            pass
        count = 0
        while self._ended:
            job, error = self._ended.popleft()
            if job in self._jobs:
                files, done = self._jobs.pop(job)
                count += 1
                deliver(done, error, files)
        return count

    def wait(self) -> None:
        while self._jobs:
            if not self.drain():  # at first: a drain that this is called in has heard of what had ended by then
                wait_readable(self._read)

    def close(self) -> None:
        self.wait()
        self._executor.shutdown()
        os.close(self._read)
        os.close(self._write)


def open_flusher(files: Files) -> Flusher:
    """The native flusher, or threads where file operations are injected or the platform has no native one."""
    if type(files) is Files:
        from .native_flusher import NativeFlusher

        if NativeFlusher.supported():
            return NativeFlusher()
    return ThreadFlusher(files)
