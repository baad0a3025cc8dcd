"""A disk that forgets: file operations that are carried out, and remember what a loss of power would leave of them.

A file keeps the bytes of its last sync, a directory its names: those that were there as that sync began. So a new file is there after a
loss of power only if its directory was synced after it was made, and empty unless it was synced itself. Files that others write
(quorum-state) count as synced.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from fastq_broker.log.files import READ, FileHandle, Files
from fastq_broker.log.flusher import Done, ManualFlusher
from faulty_files import FaultyFiles


class ForgetfulFiles(FaultyFiles):
    """Invariant: `_data` holds the synced bytes by inode, `_names` the synced entries (name to inode) of directories by inode."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._begun = 0
        self._as_of: dict[int, int] = {}
        """Which sync, counted as they begin, what is held of an inode is of."""
        self._kept: list[FileHandle] = []
        """What has no name any more, held open so that its inode is not used again."""

    def all_on_disk(self, root: Path) -> None:
        """Everything below `root` is on disk as it is now."""
        self._data.clear()
        self._names.clear()
        for folder, _, names in os.walk(root):
            self._names[os.stat(folder).st_ino] = _entries(folder)
            for name in names:
                path = os.path.join(folder, name)
                self._data[os.stat(path).st_ino] = Path(path).read_bytes()

    def open(self, path: str, flags: int) -> int:
        is_new = not os.path.exists(path)
        fd = super().open(path, flags)
        if is_new:
            self._data[os.fstat(fd).st_ino] = b""
        return fd

    def _keep(self, path: str) -> None:
        if os.path.exists(path):
            self._kept.append(FileHandle(Files(), path, READ))

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._keep(target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._keep(path)
        super().unlink(path)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        self._keep(path)
        os.rmdir(path)

    def mkdir(self, path: str) -> None:  # type: ignore[override]
        os.mkdir(path)
        self._names[os.stat(path).st_ino] = {}

    def sync_data(self, fd: int) -> None:  # type: ignore[override]
        super().sync_data(fd)
        self.begin_sync(fd)()

    def begin_sync(self, fd: int) -> Callable[[], None]:
        """What makes safe, as a sync that begins now ends, what is there now; what is written meanwhile need not be on disk."""
        inode, path = os.fstat(fd).st_ino, f"/proc/self/fd/{fd}"
        names = _entries(path) if os.path.isdir(path) else None
        data = os.pread(fd, 1 << 30, 0) if names is None else b""
        self._begun += 1
        begun = self._begun

        def end() -> None:
            if self._as_of.get(inode, 0) > begun:
                return
            self._as_of[inode] = begun
            if names is None:
                self._data[inode] = data
            else:
                self._names[inode] = names

        return end

    def lose_power(self, root: Path, target: Path) -> None:
        """Make `target` what is left of `root`."""
        self._restore(os.stat(root).st_ino, inodes_below(root), target)

    def _restore(self, inode: int, paths: dict[int, str], target: Path) -> None:
        target.mkdir(parents=True)
        for name, child in self._names_left(inode, paths.get(inode)).items():
            if child in self._names:
                self._restore(child, paths, target / name)
            else:
                (target / name).write_bytes(self._data_left(child, paths.get(child)))

    def _names_left(self, inode: int, path: str | None) -> dict[str, int]:
        return self._names[inode]

    def _data_left(self, inode: int, path: str | None) -> bytes:
        """Of a file that others have written: all of it. What has no path any more was removed, and that was not synced."""
        content = self._data.get(inode)
        if content is None:
            assert path is not None
            return Path(path).read_bytes()
        return content


class NoPower(BaseException):
    """Everything ends at once."""


class FailingPower(ForgetfulFiles):
    """The power goes before an operation that changes something, once `left` of them have passed (None: never)."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def _pass(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise NoPower
            self.left -= 1

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        self._pass()
        return super().pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        self._pass()
        super().truncate(fd, size)

    def mkdir(self, path: str) -> None:
        self._pass()
        super().mkdir(path)

    def rmdir(self, path: str) -> None:
        self._pass()
        super().rmdir(path)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._pass()
        super().rename(source, target)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._pass()
        super().unlink(path)

    def sync_data(self, fd: int) -> None:
        self._pass()
        super().sync_data(fd)


def kill(root: Path, target: Path) -> None:
    """Make `target` what a killed process leaves of `root`: everything that was written."""
    shutil.copytree(root, target)


def _entries(folder: str) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


def inodes_below(root: Path) -> dict[int, str]:
    found = {os.stat(root).st_ino: str(root)}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            found[os.stat(path).st_ino] = path
    return found


class UnorderedFlusher(ManualFlusher):
    """Ends its jobs one by one, in any order, as threads do; only when the test says so. Each has begun with its submission."""

    _files: ForgetfulFiles

    def submit(self, handles: Sequence[FileHandle], done: Done) -> None:
        ends = [(handle.fd, self._files.begin_sync(handle.fd)) for handle in handles]

        def work() -> None:
            for fd, end in ends:
                FaultyFiles.sync_data(self._files, fd)
                end()

        self._jobs.append((work, done, handles))

    def step(self, choose: Random, *, but: str = "/nothing/") -> bool:
        """Carry out one job, none that touches a path with `but` in it; False when there is none."""
        jobs = [job for job in self._jobs if not any(but in _path(file) for file in job[2])]
        if not jobs:
            return False
        job = choose.choice(jobs)
        rest = [other for other in self._jobs if other is not job]
        self._jobs.clear()
        self._jobs.append(job)
        super().drain()
        self._jobs.extendleft(reversed(rest))
        return True

    def drain(self) -> int:
        return 0


def _path(file: FileHandle | str) -> str:
    return file if isinstance(file, str) else file.path
