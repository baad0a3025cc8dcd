"""Durability "fsync": group commit, visibility, failures; the native threads that sync."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import LogConfig, LogManager, native_flusher
from fastq_broker.log import flusher as flusher_module
from fastq_broker.log.durability import ROLL_FLUSH_DELAY_MS
from fastq_broker.log.files import READ, READ_WRITE_CREATE, FileHandle, Files
from fastq_broker.log.flusher import Flusher, ThreadFlusher, wait_readable
from fastq_broker.log.index_file import IndexFile
from fastq_broker.log.native_flusher import NativeFlusher
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, TOPIC_ID, StandingClock, one_batch, open_manager

from fastq._native.flusher import SyncThreads, write_range
from fastq.errors import KafkaError, KafkaStorageError

FSYNC = LogConfig(durability="fsync")


def test_nothing_is_visible_or_acknowledged_before_it_is_on_disk(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, FSYNC)
    log = manager.create("t", 0, TOPIC_ID)
    told: list[tuple[int, KafkaError | None]] = []
    advances: list[int] = []
    log.on_advance(lambda moved: advances.append(moved.high_watermark))
    for number in range(3):
        result = log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        log.wait_durable(result.last_offset + 1, lambda error, number=number: told.append((number, error)))  # type: ignore[misc]
    assert (log.log_end_offset, log.high_watermark, told) == (3, 0, [])
    assert log.read(0, 1000, upper_offset=log.high_watermark).size == 0
    manager.flusher.drain()  # the first append's job
    assert (log.high_watermark, told) == (1, [(0, None)])
    manager.flusher.drain()  # one job for both others
    assert (log.high_watermark, told) == (3, [(0, None), (1, None), (2, None)])
    assert advances[-1] == 3
    assert manager.flusher.drain() == 0


def test_one_sync_covers_all_appends_before_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, FSYNC, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    manager.flusher.wait()
    before = files.calls.get("sync", 0)
    for _ in range(100):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    manager.flusher.wait()
    assert log.high_watermark == 101
    assert files.calls.get("sync", 0) - before == 2


@pytest.mark.parametrize("config", [FSYNC, LogConfig()])
def test_the_topic_id_is_synced_with_the_first_records(tmp_path: Path, config: LogConfig) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, config, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    path = tmp_path / "t-0" / "partition.metadata"
    assert str(path) not in files.synced
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    if not config.synchronous:
        log.flush()
    manager.flusher.drain()
    assert files.synced[str(path)] == path.stat().st_size > 0
    assert str(tmp_path / "t-0") in files.synced


def test_page_cache_acknowledges_at_once(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    told: list[KafkaError | None] = []
    log.wait_durable(1, told.append)
    assert (log.high_watermark, told) == (1, [None])


def test_flush_messages_of_one_is_the_same_promise(tmp_path: Path) -> None:
    log = open_manager(tmp_path, LogConfig(flush_messages=1)).create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    assert (log.log_end_offset, log.high_watermark) == (1, 0)


def test_a_failed_sync_takes_the_directory_offline_for_good(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, FSYNC, files=files)
    log = manager.create("t", 0, TOPIC_ID)
    files.plan(Fault("sync", errno.EIO, repeat=False))  # a second sync would succeed, without the lost pages
    told: list[KafkaError | None] = []
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    log.wait_durable(1, told.append)
    manager.flusher.wait()
    assert len(told) == 1 and isinstance(told[0], KafkaStorageError)
    assert "syncing failed" in str(told[0].detail)
    assert log.high_watermark == 0
    with pytest.raises(KafkaStorageError):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    log.wait_durable(1, told.append)
    assert len(told) == 2 and told[1] is not None
    manager.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_deleted_log_tells_those_who_wait(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, FSYNC)
    log = manager.create("t", 0, TOPIC_ID)
    told: list[KafkaError | None] = []
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    log.wait_durable(1, told.append)
    manager.delete("t", 0)
    assert len(told) == 1 and told[0] is not None
    manager.flusher.wait()


def test_an_event_loop_hears_of_the_sync(tmp_path: Path) -> None:
    async def main() -> None:
        manager = LogManager([tmp_path], default_config=FSYNC)
        manager.start()
        manager.attach(asyncio.get_running_loop())
        logs = [manager.create("t", partition, TOPIC_ID) for partition in range(5)]
        now = manager.clock()
        for _ in range(20):
            done = []
            for log in logs:
                future = asyncio.get_running_loop().create_future()
                result = log.append(one_batch([b"v"], timestamp_ms=now), leader_epoch=0, now_ms=now)
                log.wait_durable(result.last_offset + 1, future.set_result)
                done.append(future)
            assert await asyncio.wait_for(asyncio.gather(*done), 30) == [None] * 5
        assert [log.high_watermark for log in logs] == [20] * 5
        manager.close()

    asyncio.run(main())


@pytest.fixture(params=["native", "threads"])
def flusher(request: pytest.FixtureRequest) -> Flusher:
    return NativeFlusher(2) if request.param == "native" else ThreadFlusher(Files(), 2)


def test_flushers_begin_to_write_back(flusher: Flusher, tmp_path: Path) -> None:
    handle = FileHandle(Files(), str(tmp_path / "f"), READ_WRITE_CREATE)
    os.pwrite(handle.fd, b"x" * 100_000, 0)
    ended: list[OSError | None] = []
    flusher.write_back(handle, 0, 100_000, ended.append)
    flusher.write_back(handle, 50_000, 200_000, ended.append)  # past the file's end too
    flusher.wait()
    assert ended == [None, None]
    flusher.close()


def test_flushers_report_each_job_once(flusher: Flusher, tmp_path: Path) -> None:
    handle = FileHandle(Files(), str(tmp_path / "f"), READ_WRITE_CREATE)
    directory = FileHandle(Files(), str(tmp_path), os.O_RDONLY)
    ended: list[tuple[int, OSError | None]] = []
    for job in range(50):
        os.pwrite(handle.fd, b"x" * 100, job * 100)
        flusher.submit([handle, directory], lambda error, job=job: ended.append((job, error)))  # type: ignore[misc]
    deadline = time.monotonic() + 30
    while len(ended) < 50 and time.monotonic() < deadline:
        wait_readable(flusher.fileno())
        flusher.drain()
    assert sorted(job for job, _ in ended) == list(range(50))
    assert {error for _, error in ended} == {None}
    assert flusher.drain() == 0
    flusher.close()


def test_a_callback_that_raises_keeps_nothing_from_the_others(
    flusher: Flusher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [[FileHandle(Files(), str(tmp_path / f"log-{number}"), READ_WRITE_CREATE)] for number in range(5)]
    ended: list[int] = []

    def done(number: int) -> None:
        jobs[number].clear()  # as a log does, whose next job needs the descriptors
        ended.append(number)
        if number in (1, 3):
            raise ValueError("broken callback")

    for number, handles in enumerate(jobs):
        flusher.submit(handles, lambda error, number=number: done(number))  # type: ignore[misc]
    flusher.wait()
    assert sorted(ended) == [0, 1, 2, 3, 4]
    assert caplog.text.count("what follows a job on") == 2
    assert "log-1 failed" in caplog.text and "log-3 failed" in caplog.text
    assert flusher.drain() == 0
    flusher.close()


def test_flushers_report_errors(flusher: Flusher, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    pipe = FileHandle.__new__(FileHandle)
    pipe.fd, pipe.path = read_end, "pipe"
    os.close(read_end)
    ended: list[OSError | None] = []
    flusher.submit([pipe], ended.append)
    flusher.wait()
    assert len(ended) == 1 and ended[0] is not None and ended[0].errno == errno.EBADF
    pipe.fd = -1
    os.close(write_end)
    flusher.close()


class RefusingThreads:
    """SyncThreads of which some calls raise first."""

    def __init__(self, threads: SyncThreads) -> None:
        self._threads = threads
        self.problem: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if name in ("submit", "remove", "begin") and self.problem is not None:
                problem, self.problem = self.problem, None
                raise problem
            return getattr(self._threads, name)(*given, **named)

        return call


PROBLEMS = [MemoryError(), ValueError("the sync threads are closed")]


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.timeout(30)
def test_nobody_waits_for_a_job_that_could_not_be_begun(
    tmp_path: Path, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = NativeFlusher(1)
    threads = RefusingThreads(flusher._threads)
    monkeypatch.setattr(flusher, "_threads", threads)
    handle = FileHandle(Files(), str(tmp_path / "f"), READ_WRITE_CREATE)
    ended: list[OSError | None] = []
    calls: list[Callable[[], None]] = [
        lambda: flusher.submit([handle], ended.append),
        lambda: flusher.write_back(handle, 0, 1, ended.append),
        lambda: flusher.remove([handle.path], None, ended.append),
    ]
    for call in calls:
        threads.problem = problem
        with pytest.raises(type(problem)):
            call()
        flusher.wait()
        assert ended == []
        call()
        flusher.wait()
        assert ended == [None]
        ended.clear()
    flusher.close()


@pytest.mark.timeout(30)
def test_threads_that_cannot_be_started_leave_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flusher = ThreadFlusher(Files(), 1)
    submit = flusher._executor.submit

    def refuse(*job: Any) -> None:
        submit(*job)  # an executor has the job by then
        raise RuntimeError("can't start new thread")

    handle = FileHandle(Files(), str(tmp_path / "f"), READ_WRITE_CREATE)
    ended: list[OSError | None] = []
    with monkeypatch.context() as patch:
        patch.setattr(flusher._executor, "submit", refuse)
        with pytest.raises(RuntimeError):
            flusher.submit([handle], ended.append)
    flusher.wait()
    flusher.submit([handle], ended.append)
    flusher.wait()
    assert ended == [None]
    flusher.close()


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.timeout(30)
def test_a_flush_that_could_not_be_begun_is_begun_again(
    tmp_path: Path, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    flusher = NativeFlusher(1)
    threads = RefusingThreads(flusher._threads)
    monkeypatch.setattr(flusher, "_threads", threads)
    manager = LogManager([tmp_path], default_config=FSYNC, flusher=flusher, clock=StandingClock())
    manager.start()
    log = manager.create("t", 0, TOPIC_ID)
    told: list[KafkaError | None] = []
    threads.problem = problem
    with contextlib.suppress(ValueError):  # a mistake is told, and no shortage
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    assert not log.durability.flushing and not log.durability.settled
    log.wait_durable(1, told.append)
    if isinstance(problem, MemoryError):
        manager.tick()
    flusher.wait()
    assert (told, log.high_watermark) == ([None], 1)
    assert manager.offline_dirs == {}
    threads.problem = problem
    with contextlib.suppress(ValueError):
        log.flush()
    log.flush()
    flusher.wait()
    assert log.durability.settled, "what is on disk was told by a job that there was"
    manager.close()


def test_checkpoints_and_deletions_that_could_not_be_begun_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StandingClock()
    manager = open_manager(tmp_path, LogConfig(file_delete_delay_ms=0), clock=clock)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(2):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        log.roll(START_MS)
    log.flush()
    manager.flusher.wait()

    def no_memory(*job: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(manager.flusher, "submit", no_memory)
        patch.setattr(manager.flusher, "remove", no_memory)
        with pytest.raises(MemoryError):
            manager.checkpoint(log.dir)
        log.drop_oldest(1)
        with pytest.raises(MemoryError):
            log.dir.tick()
    manager.checkpoint(log.dir)
    log.dir.tick()
    manager.flusher.wait()
    assert "t 0 2" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_a_failure_that_cannot_be_said_takes_no_other_jobs_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flusher = NativeFlusher(1)
    handles = [FileHandle(Files(), str(tmp_path / f"log-{number}"), READ_WRITE_CREATE) for number in range(3)]
    ended: dict[int, OSError | None] = {}
    broken = FileHandle.__new__(FileHandle)
    broken.fd, broken.path = 1 << 20, "nowhere"
    for number, handle in enumerate([broken, *handles]):
        flusher.submit([handle], partial(ended.__setitem__, number))

    def no_memory(code: int) -> str:
        raise MemoryError

    monkeypatch.setattr(os, "strerror", no_memory)
    flusher.wait()
    broken.fd = -1
    assert isinstance(ended.pop(0), OSError)
    assert ended == {1: None, 2: None, 3: None}
    flusher.close()


INTERRUPTED = """
#include <errno.h>
int syncfs(int fd) { static int calls; (void)fd; errno = EINTR; return calls++ ? 0 : -1; }
"""


@pytest.mark.skipif(sys.platform != "linux", reason="syncfs is Linux's")
def test_a_sync_of_a_file_system_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "interrupted.c", tmp_path / "interrupted.so"
    source.write_text(INTERRUPTED)
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    code = "import os; from fastq._native.flusher import sync_filesystem; sync_filesystem(os.open('/', os.O_RDONLY))"
    # Behind what is loaded first already: a sanitizer's runtime has to be.
    preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), LD_PRELOAD=preload)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("native", [True, False])
def test_a_callback_of_the_flusher_may_wait_for_the_rest(
    tmp_path: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that has written to the metadata log of a node that is alone: the rest is told of once, nothing is amiss, and it does not
    wait for what has ended by then: the loop stood still for a second."""
    flusher = NativeFlusher(1) if native else ThreadFlusher(Files(), 1)
    directory = FileHandle(Files(), str(tmp_path), READ)
    told: list[OSError | None] = []
    waited: list[int] = []

    def wait(error: OSError | None) -> None:
        told.append(error)
        flusher.wait()

    for _ in range(3):
        flusher.submit([directory], wait)
    while (flusher._threads.ended() if isinstance(flusher, NativeFlusher) else len(flusher._ended)) < 3:
        time.sleep(0.001)
    for module in (flusher_module, native_flusher):
        monkeypatch.setattr(module, "wait_readable", waited.append)
    assert flusher.drain() == 1
    assert told == [None] * 3
    assert not waited
    flusher.close()


def test_sync_threads_refuse_what_they_cannot_do() -> None:
    for count in (0, 65):
        with pytest.raises(ValueError, match="1 to 64"):
            SyncThreads(count)
    threads = SyncThreads(1)
    with pytest.raises((TypeError, OverflowError)):
        threads.submit(1, ["no descriptor"])  # type: ignore[list-item]
    threads.submit(2, [])
    wait_readable(threads.fileno(), 10_000)
    with pytest.raises(KeyError):
        threads.take({})
    jobs = {1: "one", 2: "two"}
    assert (threads.ended(), threads.take(jobs), jobs) == (1, ("two", 0, 0), {1: "one"})
    assert (threads.ended(), threads.take(jobs)) == (0, None)
    with pytest.raises(ValueError, match="null byte"):
        threads.remove(3, ["a\0b"])
    threads.close()
    threads.close()
    with pytest.raises(ValueError, match="closed"):
        threads.fileno()


def test_flushers_remove_files_and_then_their_directory(flusher: Flusher, tmp_path: Path) -> None:
    directory = tmp_path / "t-0.gone-delete"
    directory.mkdir()
    names = ["a", "b", "n\u00e4me"]
    for name in names:
        (directory / name).write_bytes(b"x")
    ended: list[OSError | None] = []
    flusher.remove([str(directory / name) for name in ("a", "never-there")], None, ended.append)
    flusher.wait()
    assert ended == [None]
    assert sorted(path.name for path in directory.iterdir()) == names[1:]
    flusher.remove([str(directory / "b")], str(directory), ended.append)
    flusher.wait()
    error = ended[1]
    assert error is not None and error.errno == errno.ENOTEMPTY
    assert error.filename == str(directory), "the one that failed, not the first"
    flusher.remove([str(directory / names[2])], str(directory), ended.append)
    flusher.wait()
    assert ended[2] is None
    assert not directory.exists()
    flusher.close()


def test_a_roll_is_flushed_later_with_all_that_follow_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    clock = StandingClock()
    manager = open_manager(tmp_path, LogConfig(), files=files, clock=clock)
    log = manager.create("t", 0, TOPIC_ID)
    for _ in range(3):
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=clock())
        log.roll(clock())
        clock.advance(1000)
    before = files.calls.get("sync", 0)
    clock.advance(ROLL_FLUSH_DELAY_MS - 3001)
    manager.tick()
    manager.flusher.wait()
    assert (files.calls.get("sync", 0), log.recovery_point) == (before, 0)
    clock.advance(1)
    manager.tick()
    manager.flusher.wait()
    assert log.recovery_point == 3
    synced = files.calls.get("sync", 0)
    assert synced > before
    clock.advance(10 * ROLL_FLUSH_DELAY_MS)
    manager.tick()
    manager.flusher.wait()
    assert files.calls.get("sync", 0) == synced, "one flush for the three of them"


def test_no_flush_begins_for_a_log_that_is_deleted(tmp_path: Path) -> None:
    clock = StandingClock()
    manager = open_manager(tmp_path, LogConfig(), clock=clock)
    log = manager.create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=clock())
    log.flush()
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=clock())
    log.flush()  # begins when the first one has ended
    log.roll(clock())  # and one for later
    manager.delete("t", 0)
    manager.flusher.wait()
    clock.advance(ROLL_FLUSH_DELAY_MS)
    manager.tick()
    manager.flusher.wait()
    assert manager.offline_dirs == {}
    told: list[KafkaError | None] = []
    log.durability.wait(2, told.append)
    assert told[0] is not None and "deleted" in str(told[0])


def test_ranges_are_written_or_said_not_to_be(tmp_path: Path) -> None:
    handle = FileHandle(Files(), str(tmp_path / "file"), READ_WRITE_CREATE)
    os.pwrite(handle.fd, b"x" * 10_000, 0)
    begun = write_range(handle.fd, 0, 8192)
    assert begun == (sys.platform == "linux")
    assert write_range(handle.fd, 0, 8192, wait=True) == begun
    if begun:
        with pytest.raises(OSError, match="Bad file descriptor"):
            write_range(-1, 0, 10)


def test_a_full_flush_looks_at_the_segments_that_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FaultyFiles()
    config = LogConfig(segment_bytes=200, index_interval_bytes=0)
    log = open_manager(tmp_path, config, files=files).create("t", 0, TOPIC_ID)
    for _ in range(100):
        log.append(one_batch([b"v" * 20]), leader_epoch=0, now_ms=START_MS)
    assert len(log.segments) > 40
    flusher = log.dir.flusher
    log.flush()
    flusher.wait()
    looked_at: list[str] = []
    write_pending = IndexFile.write_pending

    def spy(index: IndexFile) -> None:
        looked_at.append(index.path)
        write_pending(index)

    monkeypatch.setattr(IndexFile, "write_pending", spy)
    for _ in range(3):
        log.append(one_batch([b"v" * 20]), leader_epoch=0, now_ms=START_MS)
        looked_at.clear()
        log.flush()
        flusher.wait()
        assert log.recovery_point == log.log_end_offset
        assert len(looked_at) <= 6
    for segment in log.segments:
        for index in (segment.index, segment.time_index):
            if index.unsynced or index.path in files.synced:
                assert files.synced.get(index.path) == os.path.getsize(index.path), "none was left out"
    old = log.segments[3]
    old.index.truncate_entries(0)
    old.index.append(old.base_offset, 1 << 20)  # points out of the segment: the next read makes the index anew
    old.index.write_pending()
    assert log.durability.settled
    log.read(old.base_offset, 1)
    assert not log.durability.settled
    log.flush()
    flusher.wait()
    assert not old.index.unsynced
    assert files.synced[old.index.path] == os.path.getsize(old.index.path)
    assert log.durability.settled
