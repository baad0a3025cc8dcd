"""File systems that have no sync of a directory: none of what syncs fails for that. A file that cannot be synced is always told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fastq_broker.log.files import READ, FileHandle, Files
from fastq_broker.log.flusher import Flusher, ManualFlusher, ThreadFlusher
from fastq_broker.log.native_flusher import NativeFlusher
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, one_batch, open_manager

NONE_OF_IT = [errno.EINVAL, errno.ENOTSUP]


def outcome(flusher: Flusher, files: Files, *paths: Path | str) -> OSError | None:
    """What a job that syncs these is told."""
    told: list[OSError | None] = []
    flusher.submit([FileHandle(files, str(path), READ) for path in paths], told.append)
    flusher.wait()
    flusher.close()
    (error,) = told
    return error


@pytest.mark.parametrize("make", [ManualFlusher, ThreadFlusher])
@pytest.mark.parametrize("code", [*NONE_OF_IT, errno.EIO])
def test_a_directory_without_a_sync(tmp_path: Path, make: type[ManualFlusher | ThreadFlusher], code: int) -> None:
    files = FaultyFiles()
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.touch()
    fault = files.plan(Fault("sync", code, "folder"))
    error = outcome(make(files), files, folder, file)
    assert fault.struck and (error is None) == (code in NONE_OF_IT)
    assert (str(file) in files.synced) == (error is None)


@pytest.mark.parametrize("make", [ManualFlusher, ThreadFlusher])
@pytest.mark.parametrize("code", NONE_OF_IT)
def test_a_file_without_a_sync(tmp_path: Path, make: type[ManualFlusher | ThreadFlusher], code: int) -> None:
    files = FaultyFiles()
    (tmp_path / "file").touch()
    files.plan(Fault("sync", code, "file"))
    error = outcome(make(files), files, tmp_path / "file")
    assert error is not None and error.errno == code


def _cannot_sync(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        os.fsync(fd)
    except OSError as error:
        return error.errno in NONE_OF_IT
    finally:
        os.close(fd)
    return False


@pytest.mark.skipif(not NativeFlusher.supported(), reason="there are no native threads here")
@pytest.mark.skipif(not _cannot_sync("/proc") or not _cannot_sync("/proc/self/comm"), reason="no such file system here")
def test_native_threads() -> None:
    assert outcome(NativeFlusher(1), Files(), "/proc") is None
    error = outcome(NativeFlusher(1), Files(), "/proc/self/comm")
    assert error is not None and error.errno in NONE_OF_IT


@pytest.mark.parametrize("code", NONE_OF_IT)
@pytest.mark.parametrize("how", ["full flush", "alone"])
def test_a_log_in_such_a_directory_is_flushed(tmp_path: Path, code: int, how: str) -> None:
    class NoDirectories(FaultyFiles):
        def sync_data(self, fd: int) -> None:  # type: ignore[override]
            if os.path.isdir(self._paths[fd]):
                raise OSError(code, os.strerror(code))
            super().sync_data(fd)

    manager = open_manager(tmp_path, files=NoDirectories())
    log = manager.create("t", 0, bytes(16))
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    if how == "alone":  # as a log that is recovered late
        log.durability.sync_alone()
    else:
        log.flush()
        manager.flusher.wait()
    assert log.dir.offline is None
    assert log.durability.settled == (how == "full flush")
    assert manager.close()
