"""File operations that fail on purpose: for fault tests and the simulator.

Rules
- A fault names an operation, an errno, part of the path it hits, and how many matching calls pass before it strikes.
- Everything that is not to fail happens really. `synced` remembers what a loss of power would leave of each file.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Literal

from fastq_broker.log.files import Files, Space

Operation = Literal["open", "write", "truncate", "sync", "rename", "unlink", "read", "list", "allocate"]


@dataclass
class Fault:
    """One planned failure. `partial` bytes of a write reach the file first; `code` 0 only shortens the write. A read that fails
    with EAGAIN finds so many bytes in memory."""

    operation: Operation
    code: int
    path_part: str = ""
    passes: int = 0
    """Matching calls that still succeed."""
    repeat: bool = True
    """Whether it strikes on each later call too, as a full disk does; else once."""
    partial: int = 0
    struck: int = 0


class FaultyFiles(Files):
    """Files that fail as planned in `faults`; every operation is counted in `calls`."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.calls: dict[str, int] = {}
        self.synced: dict[str, int] = {}
        """Size of each file when it was last synced."""
        self.room: Space | None = None
        """What `space` answers; None: what the disk has."""
        self._paths: dict[int, str] = {}

    def plan(self, fault: Fault) -> Fault:
        """Add a fault, and answer it to look at `struck` later."""
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all faults."""
        self.faults.clear()

    def _strike(self, operation: Operation, path: str) -> Fault | None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        for fault in self.faults:
            if fault.operation != operation or fault.path_part not in path or (fault.struck and not fault.repeat):
                continue
            if fault.passes:
                fault.passes -= 1
                continue
            fault.struck += 1
            return fault
        return None

    def space(self, path: str) -> Space:
        return self.room or super().space(path)

    def _check(self, operation: Operation, path: str) -> None:
        fault = self._strike(operation, path)
        if fault is not None:
            raise OSError(fault.code, os.strerror(fault.code), path)

    def open(self, path: str, flags: int) -> int:
        self._check("open", path)
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:  # type: ignore[override]
        path = self._paths[fd]
        fault = self._strike("write", path)
        if fault is None:
            return os.pwrite(fd, data, position)
        written = os.pwrite(fd, memoryview(data)[: fault.partial], position) if fault.partial else 0
        if fault.code == 0:
            return written
        raise OSError(fault.code, os.strerror(fault.code), path)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._check("read", self._paths[fd])
        return os.pread(fd, size, position)

    def truncate(self, fd: int, size: int) -> None:
        self._check("truncate", self._paths[fd])
        os.ftruncate(fd, size)

    def preallocate(self, fd: int, size: int) -> bool:
        self._check("allocate", self._paths.get(fd, ""))
        return super().preallocate(fd, size)

    def sync_data(self, fd: int) -> None:  # type: ignore[override]
        path = self._paths[fd]
        self._check("sync", path)
        self.synced[path] = os.fstat(fd).st_size

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._check("rename", source)
        os.rename(source, target)
        if source in self.synced:
            self.synced[target] = self.synced.pop(source)

    def listdir(self, path: str) -> list[str]:  # type: ignore[override]
        self._check("list", path)
        return os.listdir(path)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._check("unlink", path)
        os.unlink(path)
        self.synced.pop(path, None)

    def read_if_cached(self, fd: int, size: int, position: int) -> bytes | None:
        fault = self._strike("read", self._paths[fd])
        if fault is not None and fault.code == errno.EAGAIN:
            return super().read_if_cached(fd, min(fault.partial, size), position) if fault.partial else None
        if fault is not None:
            raise OSError(fault.code, os.strerror(fault.code), self._paths[fd])
        return super().read_if_cached(fd, size, position)
