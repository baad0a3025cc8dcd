"""Reads: bounds, limits, cold pages, descriptors, corrupt segments, times."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fastq_broker import output
from fastq_broker.log import LogConfig, PartitionLog
from fastq_broker.log.files import AHEAD_BYTES, LOOKS, Files, bring_in
from fastq_broker.log.retention import apply_retention
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, StandingClock, found_at, one_batch, open_manager, records_of

from fastq._native.flusher import is_resident
from fastq.errors import CorruptMessage, OffsetOutOfRange

SIZE = len(one_batch([b"v00"]))


def filled(
    directory: Path, count: int, config: LogConfig | None = None, files: FaultyFiles | None = None, **settings: object
) -> PartitionLog:
    log = open_manager(directory, config, files=files, **settings).create("t", 0, bytes(16))
    for number in range(count):
        log.append(one_batch([b"v%02d" % number], timestamp_ms=START_MS + number), leader_epoch=0, now_ms=START_MS)
    return log


@pytest.mark.parametrize("interval", [0, 200, 100_000])
def test_every_offset_and_limit(tmp_path: Path, interval: int) -> None:
    log = filled(tmp_path, 90, LogConfig(segment_bytes=30 * SIZE, index_interval_bytes=interval))
    assert len(log.segments) == 3
    for offset in range(90):
        left = 30 - offset % 30
        for batches in (0, 1, 2, 29, 1000):
            got = log.read(offset, batches * SIZE + 3)
            assert got.size == min(max(batches, 1), left) * SIZE
            assert records_of(got)[0].offset == offset
        assert log.read(offset, SIZE - 1, min_one_batch=False).size == 0
        assert log.read(offset, 1 << 20, upper_offset=offset + 2).size == min(2, left) * SIZE
        assert log.read(offset, 1 << 20, upper_offset=offset).size == 0
    assert (log.read(90, 100).size, log.read(90, 100).fd) == (0, -1)
    for offset in (-1, 91):
        with pytest.raises(OffsetOutOfRange, match=f"offset {offset} is outside of 0 to 90"):
            log.read(offset, 100)


def test_a_read_in_the_middle_of_a_batch_begins_with_it(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    for _ in range(3):
        log.append(one_batch([b"a", b"b", b"c"]), leader_epoch=0, now_ms=START_MS)
    assert [record.offset for record in records_of(log.read(4, 1 << 20))] == [3, 4, 5, 6, 7, 8]


def test_a_cold_page_makes_a_cold_slice_that_a_thread_finishes(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = filled(tmp_path, 90, LogConfig(segment_bytes=30 * SIZE, index_interval_bytes=200), files)
    files.plan(Fault("read", errno.EAGAIN, ".log", repeat=False))
    cold = log.read(7, 5 * SIZE)
    assert (cold.cold, cold.is_cached(), cold.size) == (True, False, 0)
    cold.warm()
    assert (cold.cold, cold.size) == (False, 5 * SIZE)
    assert [record.offset for record in records_of(cold)] == [7, 8, 9, 10, 11]
    files.plan(Fault("read", errno.EAGAIN, ".log", repeat=False))
    assert [record.offset for record in records_of(log.read(8, SIZE))] == [8]


def test_pages_that_end_inside_a_header_are_cold_and_not_corrupt(tmp_path: Path) -> None:
    """Of a log larger than memory a part of what is looked at may be cached."""
    files = FaultyFiles()
    log = filled(tmp_path, 20, LogConfig(index_interval_bytes=200), files)
    cold = 0
    for partial in range(1, 3 * SIZE):
        files.plan(Fault("read", errno.EAGAIN, ".log", partial=partial))
        got = log.read(7, 5 * SIZE)
        files.heal()
        cold += got.cold
        got.warm()
        assert [record.offset for record in records_of(got)] == [7, 8, 9, 10, 11], partial
    assert 0 < cold < 3 * SIZE - 1


def test_probing_the_page_cache(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    got = log.read(0, 1 << 20)
    assert got.is_cached()  # it has just been written
    assert log.read(10, 100).is_cached()


def evicted(path: Path, size: int) -> int:
    """A descriptor of a new file, nothing of which is in memory where the file system can forget (a tmpfs cannot)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, os.urandom(size), 0)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor


def test_whether_a_range_is_in_the_page_cache(tmp_path: Path) -> None:
    size = 1 << 20
    descriptor = evicted(tmp_path / "f", size)
    if is_resident(descriptor, 0, size) is None:
        pytest.skip("this system does not tell: Linux 6.5 does, where no filter of a container keeps it from that")
    os.pread(descriptor, size, 0)
    assert (
        is_resident(descriptor, 0, size) and is_resident(descriptor, 4095, 2) and is_resident(descriptor, size - 1, 1)
    )
    assert is_resident(descriptor, 0, size + 1) is False, "there is no such page"
    assert [is_resident(descriptor, *range_) for range_ in ((0, 0), (-1, 5), (0, -1))] == [None] * 3
    os.close(descriptor)
    assert is_resident(descriptor, 0, 1) is None


def test_what_is_not_in_memory_is_not_even_begun_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that does not wait has the kernel begin one of the disk, which waits for memory."""

    def not_read(*_: object) -> int:
        raise AssertionError("it was read")

    with monkeypatch.context() as patched:
        patched.setattr("fastq_broker.log.files.is_resident", lambda descriptor, position, size: False)
        patched.setattr(os, "preadv", not_read)
        descriptor = evicted(tmp_path / "f", 5000)
        assert Files().is_cached(descriptor, 0, 5000) is False
        assert Files().read_if_cached(descriptor, 5000, 0) is None
        assert output.is_cached(descriptor, 0, 5000) is False
        os.close(descriptor)
    log = filled(tmp_path, 10)
    monkeypatch.setattr("fastq_broker.log.files.is_resident", lambda descriptor, position, size: None)
    assert Files().read_if_cached(log.segments[0].log.handle().fd, SIZE, 0) is not None, "a system that does not tell"
    assert log.read(0, 1 << 20).is_cached()


def test_a_file_system_without_a_page_cache_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ZFS: nothing of it ever is in memory, as far as the kernel can tell, and what is read again and again is not there either."""
    log = filled(tmp_path, 90)
    monkeypatch.setattr("fastq_broker.log.files._uncached_devices", set())
    monkeypatch.setattr("fastq_broker.log.files.is_resident", lambda descriptor, position, size: False)
    cold = log.read(7, 5 * SIZE)
    assert cold.cold
    cold.warm()
    assert [record.offset for record in records_of(cold)] == [7, 8, 9, 10, 11]
    assert cold.is_cached() and output.is_cached(cold.fd, cold.position, cold.size)
    assert not log.read(7, 5 * SIZE).cold


def test_a_page_that_is_given_away_makes_no_file_system_without_a_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never asked again what of that disk is in memory, until the broker was started anew."""
    log = filled(tmp_path, 90)
    devices: set[int] = set()
    gone = [False] * LOOKS
    monkeypatch.setattr("fastq_broker.log.files._uncached_devices", devices)
    monkeypatch.setattr(
        "fastq_broker.log.files.is_resident",
        lambda descriptor, position, size: gone.pop() if size == 1 and gone else None,
    )
    fd = log.segments[0].log.handle().fd
    bring_in(fd, 0, SIZE)
    assert not gone and not devices
    gone[:] = [False] * (LOOKS + 1)
    bring_in(fd, 0, SIZE)
    assert devices == {os.fstat(fd).st_dev}


def test_threads_read_ahead_of_what_is_cold_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice: list[tuple[int, int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advice.append(given))
    files = FaultyFiles()
    log = filled(tmp_path, 90, files=files)
    log.read(7, 5 * SIZE)
    assert not advice
    files.plan(Fault("read", errno.EAGAIN, ".log", repeat=False))
    cold = log.read(7, 5 * SIZE)
    assert cold.cold and not advice
    cold.warm()
    expected = [
        (cold.fd, 0, 0, os.POSIX_FADV_RANDOM),
        (cold.fd, cold.position + cold.size, AHEAD_BYTES, os.POSIX_FADV_WILLNEED),
    ]
    assert advice == expected
    advice.clear()
    output._read_through(cold, cold.position, cold.size, [])
    assert advice == expected


def test_a_system_that_takes_no_advice_reads_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "no advice")

    files = FaultyFiles()
    log = filled(tmp_path, 90, files=files)
    for patch in (
        lambda: monkeypatch.setattr(os, "posix_fadvise", refuse),
        lambda: monkeypatch.delattr(os, "posix_fadvise"),
    ):
        patch()
        files.plan(Fault("read", errno.EAGAIN, ".log", repeat=False))
        cold = log.read(7, 5 * SIZE)
        assert cold.cold
        cold.warm()
        assert [record.offset for record in records_of(cold)] == [7, 8, 9, 10, 11]


def test_few_descriptors_serve_many_segments(tmp_path: Path) -> None:
    log = filled(tmp_path, 300, LogConfig(segment_bytes=5 * SIZE, index_interval_bytes=0), fd_budget=6)
    assert len(log.segments) >= 60
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for offset in [*range(300), *range(299, -1, -7)]:
        assert records_of(log.read(offset, 1))[0].offset == offset
    assert sum(holder.is_open() for holder in log.dir.budget._ring) <= 6
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 6


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    clock = StandingClock()
    log = filled(tmp_path, 9, LogConfig(segment_bytes=3 * SIZE, retention_bytes=0, file_delete_delay_ms=0), clock=clock)
    held = log.read(0, 1 << 20)
    assert apply_retention(log, clock()) == 3
    clock.advance(1)
    log.dir.tick()
    log.dir.flusher.wait()
    assert not (tmp_path / "t-0" / "00000000000000000000.log").exists()
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    assert [record.offset for record in records_of(held)] == [0, 1, 2]
    os.fstat(held.fd)


def test_deleted_segments_are_freed_in_the_background(tmp_path: Path) -> None:
    clock = StandingClock()
    log = filled(tmp_path, 9, LogConfig(segment_bytes=3 * SIZE, retention_bytes=0, file_delete_delay_ms=0), clock=clock)
    log.dir.flusher.wait()
    assert apply_retention(log, clock()) == 3
    clock.advance(1)
    log.dir.tick()
    left = list((tmp_path / "t-0").glob("*.deleted"))
    assert sum(path.stat().st_size for path in left) >= 9 * SIZE, "that waits for the disk, which the loop does not"
    log.dir.flusher.wait()
    assert not list((tmp_path / "t-0").glob("*.deleted"))


def test_a_corrupt_place_is_named_and_the_rest_is_served(tmp_path: Path) -> None:
    log = filled(tmp_path, 90, LogConfig(segment_bytes=30 * SIZE, index_interval_bytes=200))
    path = tmp_path / "t-0" / "00000000000000000000.log"
    with open(path, "r+b") as file:
        file.seek(10 * SIZE + 8)
        file.write(b"\xff\xff\xff\xff")  # the length of batch 10
    with pytest.raises(CorruptMessage) as caught:
        log.read(10, SIZE)
    assert (getattr(caught.value, "file"), getattr(caught.value, "position")) == (str(path), 10 * SIZE)  # noqa: B009
    assert [record.offset for record in records_of(log.read(8, 5 * SIZE))] == [8, 9]
    assert records_of(log.read(20, SIZE))[0].offset == 20
    assert records_of(log.read(45, SIZE))[0].offset == 45
    assert log.dir.offline is None


def test_an_index_of_rubbish_is_rebuilt_when_it_is_read(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, LogConfig(segment_bytes=30 * SIZE, index_interval_bytes=0))
    log = manager.create("t", 0, bytes(16))
    for number in range(60):
        log.append(one_batch([b"v%02d" % number]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    path = tmp_path / "t-0" / "00000000000000000000.index"
    good = path.read_bytes()
    path.write_bytes(b"\x00\x00\x00\x01\x7f\xff\xff\xff" * (len(good) // 8))
    reopened = open_manager(tmp_path, manager.default_config).get("t", 0)
    assert reopened is not None
    assert records_of(reopened.read(17, 1))[0].offset == 17
    assert path.read_bytes() == good


class TestTimes:
    def test_first_record_at_or_after_a_time(self, tmp_path: Path) -> None:
        log = filled(tmp_path, 90, LogConfig(segment_bytes=30 * SIZE, index_interval_bytes=200))
        for number in range(90):
            found = found_at(log, START_MS + number)
            assert found == (START_MS + number, number, 0)
        first = found_at(log, 0)
        assert first is not None and first.offset == 0
        assert found_at(log, START_MS + 90) is None
        log.delete_records_before(40)
        first = found_at(log, 0)
        assert first is not None and first.offset == 40

    @pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
    def test_inside_of_compressed_batches(self, tmp_path: Path, codec: int) -> None:
        log = open_manager(tmp_path).create("t", 0, bytes(16))
        log.append(one_batch([b"v"] * 10, timestamp_ms=START_MS, codec=codec), leader_epoch=2, now_ms=START_MS)
        assert found_at(log, START_MS + 7) == (START_MS + 7, 7, 2)

    def test_largest_timestamp(self, tmp_path: Path) -> None:
        log = open_manager(tmp_path, LogConfig(segment_bytes=3 * SIZE)).create("t", 0, bytes(16))
        assert log.largest_timestamp() == -1
        for timestamp in (5, 9, 7, 9, 1, 2):
            log.append(one_batch([b"v00"], timestamp_ms=timestamp), leader_epoch=0, now_ms=START_MS)
        assert log.largest_timestamp() == 9
        assert found_at(log, 9) == (9, 1, 0)

    def test_records_without_a_timestamp(self, tmp_path: Path) -> None:
        log = open_manager(tmp_path).create("t", 0, bytes(16))
        log.append(one_batch([b"v"], timestamp_ms=-1), leader_epoch=0, now_ms=START_MS)
        assert found_at(log, 0) is None
        assert log.largest_timestamp() == -1

    def test_the_largest_timestamp_is_no_files_time(self, tmp_path: Path) -> None:
        log = open_manager(tmp_path, LogConfig(segment_bytes=3 * SIZE)).create("t", 0, bytes(16))
        for timestamp in (-1, -1, -1, 7, 5, 7, -1, -1):
            log.append(one_batch([b"v00"], timestamp_ms=timestamp), leader_epoch=0, now_ms=START_MS)
        assert log.segments[0].largest_timestamp() > 7, "the time of its file, which retention goes by"
        assert log.largest_timestamp() == 7
        assert found_at(log, 7) == (7, 3, 0)
