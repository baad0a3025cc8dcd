"""Recovery: what is read, what is cut off, what is rebuilt."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from forgetful_disk import ForgetfulFiles
from log_support import START_MS, crash, found_at, one_batch, open_manager, records_of

from fastq.errors import KafkaStorageError

SIZE = len(one_batch([b"v000"]))
CONFIG = LogConfig(segment_bytes=100 * SIZE, index_interval_bytes=5 * SIZE)


def fill(manager: LogManager, first: int, count: int) -> PartitionLog:
    log = manager.create("t", 0, bytes(16))
    for number in range(first, first + count):
        batch = one_batch([b"v%03d" % number], timestamp_ms=START_MS + number, producer_id=5, epoch=0, sequence=number)
        log.append(batch, leader_epoch=number // 50, now_ms=START_MS)
    return log


def reopen(directory: Path) -> PartitionLog:
    log = open_manager(directory, CONFIG).get("t", 0)
    assert log is not None
    return log


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def test_nothing_is_read_after_a_clean_stop(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    manager.close()
    log = reopen(tmp_path)
    assert not log.loaded
    assert (log.log_end_offset, log.recovery.bytes_read, log.recovery_point) == (250, 0, 250)


def test_only_what_lies_past_the_recovery_point_is_read(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 250)
    log.flush()
    manager.flusher.wait()
    fill(manager, 250, 30)
    manager.write_checkpoints(log.dir, wait=True)
    assert log.recovery_point == 250
    crash(manager)
    log = reopen(tmp_path)
    assert log.log_end_offset == 280
    # 30 batches, and at most an index interval and a batch before them.
    assert 30 * SIZE <= log.recovery.bytes_read <= (30 + 7) * SIZE
    assert log.recovery.cut == []
    entry = log.producers.get(5)
    assert entry is not None and entry.next_sequence == 280


@pytest.mark.parametrize("damage", ["torn", "flipped", "zeros", "rubbish"])
def test_a_damaged_tail_is_cut_off_and_reported(tmp_path: Path, damage: str) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    crash(manager)
    path = tmp_path / "t-0" / f"{200:020d}.log"
    with open(path, "r+b") as file:
        if damage == "torn":
            file.truncate(45 * SIZE + 20)
        elif damage == "flipped":
            file.seek(46 * SIZE - 1)
            file.write(b"!")
        else:
            file.seek(45 * SIZE)
            file.truncate()
            file.write(bytes(500) if damage == "zeros" else os.urandom(500))
    size = path.stat().st_size
    log = reopen(tmp_path)
    assert log.log_end_offset == 245
    assert log.recovery.cut == [(str(path), 45 * SIZE, size - 45 * SIZE)]
    assert path.stat().st_size == 45 * SIZE
    assert [record.value for record in records_of(log.read(243, 10_000))] == [b"v243", b"v244"]
    entry = log.producers.get(5)
    assert entry is not None and entry.next_sequence == 245
    log.append(one_batch([b"v245"], producer_id=5, epoch=0, sequence=245), leader_epoch=9, now_ms=START_MS)
    assert log.log_end_offset == 246


def test_segments_after_a_damaged_one_are_removed(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    crash(manager)  # no checkpoint: everything is checked
    with open(tmp_path / "t-0" / f"{100:020d}.log", "r+b") as file:
        file.seek(30 * SIZE + 70)
        file.write(b"!")
    log = reopen(tmp_path)
    assert (log.log_end_offset, len(log.segments)) == (130, 2)
    assert [place[1] for place in log.recovery.cut] == [30 * SIZE, 0]
    assert log.epochs.entries() == [(0, 0), (1, 50), (2, 100)]


def test_rebuilt_indexes_are_the_written_ones(tmp_path: Path) -> None:
    manager = open_manager(tmp_path / "a", CONFIG)
    fill(manager, 0, 250)
    manager.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "b" / "recovery-point-offset-checkpoint").unlink()
    for path in (tmp_path / "b" / "t-0").glob("*index"):
        path.write_bytes(os.urandom(60))
    recovered = open_manager(tmp_path / "b", CONFIG)
    log = recovered.get("t", 0)
    assert log is not None
    assert log.recovery.bytes_read >= 250 * SIZE
    recovered.close()
    assert contents(tmp_path / "b" / "t-0") == contents(tmp_path / "a" / "t-0")


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_a_missing_index_is_rebuilt(tmp_path: Path, suffix: str) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    manager.close()
    before = contents(tmp_path / "t-0")
    (tmp_path / "t-0" / f"{100:020d}.{suffix}").unlink()
    manager = open_manager(tmp_path, CONFIG)
    log = manager.get("t", 0)
    assert log is not None and log.log_end_offset == 250
    manager.close()
    assert contents(tmp_path / "t-0") == before


def test_preallocated_indexes_of_apache_kafka_are_understood(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 90)
    manager.close()
    for path in (tmp_path / "t-0").glob("*index"):
        with open(path, "r+b") as file:
            file.truncate(12 * 8 * 100)
    log = reopen(tmp_path)
    assert log.log_end_offset == 90
    assert [record.offset for record in records_of(log.read(77, 1))] == [77]
    assert found_at(log, START_MS + 33) == (START_MS + 33, 33, 0)
    for number in range(90, 100):
        log.append(one_batch([b"v%03d" % number]), leader_epoch=1, now_ms=START_MS)
    assert [record.offset for record in records_of(log.read(95, 1))] == [95]


def test_a_damaged_snapshot_is_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 250)
    manager.close()
    (tmp_path / "t-0" / f"{250:020d}.snapshot").write_bytes(b"rubbish")
    log = reopen(tmp_path)
    entry = log.producers.get(5)
    assert entry is not None and entry.next_sequence == 250
    assert len(entry.batches) == 5


@pytest.mark.parametrize("count", [0, 250])
def test_an_empty_file_of_leader_epochs_is_lost_where_there_are_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """Apache Kafka begins with an empty one, so that a directory of its has many; with records it is a lost one."""
    manager = open_manager(tmp_path, CONFIG)
    epochs = fill(manager, 0, count).epochs.entries()
    manager.close()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_bytes(b"")
    log = reopen(tmp_path)
    assert log.epochs.entries() == epochs
    told = f"{log.epochs.path} is missing or empty; the leader epochs are rebuilt from the log"
    assert [record.message for record in caplog.records] == [told][:count]


def test_epochs_of_another_time_give_way_to_the_batches_that_are_recovered(tmp_path: Path) -> None:
    """The log was cut back and went on in a new epoch; a crash has undone that, but for the file of the epochs."""
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 80)
    expected = log.epochs.entries()
    crash(manager)
    kept = (tmp_path / "t-0" / f"{0:020d}.log").read_bytes()
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, bytes(16))
    log.truncate_to(60)
    log.append(one_batch([b"other"], timestamp_ms=START_MS), leader_epoch=2, now_ms=START_MS)
    crash(manager)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(kept)
    log = reopen(tmp_path)
    log.load()
    assert (log.log_end_offset, log.epochs.entries()) == (80, expected)


@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
def test_a_name_that_a_killed_process_has_left_is_synced_by_the_next(tmp_path: Path, durability: str) -> None:
    files = ForgetfulFiles()
    root, left = tmp_path / "d", tmp_path / "left"
    open_manager(root, CONFIG, files=files).close()
    files.all_on_disk(root)
    config = replace(CONFIG, flush_messages=1 if durability == "fsync" else CONFIG.flush_messages)
    manager = open_manager(root, config, files=files)
    manager.create("t", 0, bytes(16))
    crash(manager)
    manager = open_manager(root, config, files=files)
    log = manager.create("t", 0, bytes(16))
    log.append(one_batch([b"kept"], timestamp_ms=START_MS), leader_epoch=0, now_ms=START_MS)
    log.flush()
    manager.flusher.wait()
    assert log.on_disk_offset == 1
    crash(manager)
    files.lose_power(root, left)
    assert (left / "t-0" / f"{0:020d}.log").stat().st_size > 0


def shared_log(root: Path, files: ForgetfulFiles, count: int) -> tuple[LogManager, PartitionLog]:
    """A log of a node among others, in segments of 20 batches, with so many batches of one record on disk."""
    manager = open_manager(root, replace(CONFIG, segment_bytes=20 * SIZE, flush_messages=1), files=files)
    log = manager.create("t", 0, bytes(16))
    log.load()
    log.share(True)
    for number in range(count):
        log.append(one_batch([b"v%03d" % number], timestamp_ms=START_MS), leader_epoch=0, now_ms=START_MS)
    log.flush()
    manager.flusher.wait()
    return manager, log


@pytest.mark.parametrize("full", [False, True])
def test_what_was_cut_off_before_a_roll_does_not_come_back_below_what_is_on_disk(tmp_path: Path, full: bool) -> None:
    files = ForgetfulFiles()
    root, left = tmp_path / "d", tmp_path / "left"
    manager, log = shared_log(root, files, 10)
    log.truncate_to(9)
    log.roll(START_MS)
    log.append(one_batch([b"kept"], timestamp_ms=START_MS), leader_epoch=3, now_ms=START_MS)
    log.durability.request(full=full)
    manager.flusher.wait()
    assert log.on_disk_offset == 10
    crash(manager)
    files.lose_power(root, left)
    log = reopen(left)
    assert (log.log_end_offset, records_of(log.read(9, 1 << 20))[0].value) == (10, b"kept")


def test_segments_that_were_cut_off_do_not_come_back_behind_what_is_on_disk(tmp_path: Path) -> None:
    files = ForgetfulFiles()
    root, left = tmp_path / "d", tmp_path / "left"
    manager, log = shared_log(root, files, 30)
    log.truncate_to(19)
    log.append(one_batch([b"kept"], timestamp_ms=START_MS), leader_epoch=3, now_ms=START_MS)
    log.durability.request(full=False)
    manager.flusher.wait()
    assert (log.on_disk_offset, len(log.segments)) == (20, 1)
    crash(manager)
    files.lose_power(root, left)
    log = reopen(left)
    assert (log.log_end_offset, records_of(log.read(19, 1 << 20))[0].value) == (20, b"kept")


def test_leftovers_of_an_interrupted_deletion_go(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 10)
    manager.close()
    leftovers = [tmp_path / "t-0" / name for name in (f"{5:020d}.log.deleted", "leader-epoch-checkpoint.tmp")]
    for path in leftovers:
        path.write_bytes(b"x")
    assert reopen(tmp_path).log_end_offset == 10
    assert not any(path.exists() for path in leftovers)


def test_whole_batches_of_an_old_format_are_not_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = open_manager(tmp_path, CONFIG)
    fill(manager, 0, 10)
    manager.create("other", 0, bytes(16)).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    crash(manager)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    old = struct.pack(">qiIbbq", 10, 26, 0, 1, 0, START_MS) + struct.pack(">ii", -1, -1) + b"\0\0\0\0"
    with open(path, "ab") as file:
        file.write(old)
    size = path.stat().st_size
    for _ in range(2):
        caplog.clear()
        manager = open_manager(tmp_path, CONFIG)
        assert f"{path}: batches of an old format at byte {10 * SIZE}" in caplog.text
        with pytest.raises(KafkaStorageError, match="old format"):
            manager.create("t", 0, bytes(16))
        with pytest.raises(KafkaStorageError, match="old format"):
            manager.logs["t", 0].append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        assert manager.offline_dirs == {}
        other = manager.create("other", 0, bytes(16))
        other.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
        manager.tick()
        manager.close()
        assert not (tmp_path / ".kafka_cleanshutdown").exists()  # or the next start would take the log as it is
        assert path.stat().st_size == size
    assert other.log_end_offset == 3
    manager = open_manager(tmp_path, CONFIG)
    assert manager.delete("t", 0)
    assert manager.create("t", 0, bytes(16)).log_end_offset == 0
    manager.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("clean", [True, False])
def test_preallocated_segments_end_where_their_batches_do(tmp_path: Path, clean: bool) -> None:
    manager = open_manager(tmp_path, replace(CONFIG, preallocate=True))
    fill(manager, 0, 130)
    active = tmp_path / "t-0" / f"{100:020d}.log"
    assert active.stat().st_size == 100 * SIZE
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size == 100 * SIZE
    manager.close() if clean else crash(manager)
    log = reopen(tmp_path)
    assert log.log_end_offset == 130
    assert active.stat().st_size == 30 * SIZE
    assert records_of(log.read(129, 1))[0].value == b"v129"


@pytest.mark.parametrize("field", [8, 16, 43])
def test_damage_before_the_last_index_entry_of_a_log_that_was_closed(tmp_path: Path, field: int) -> None:
    """The sequences of producers are filled up from batches that no recovery looks at: damage there costs these, not the log."""
    manager = open_manager(tmp_path, LogConfig(index_interval_bytes=0))
    log = manager.create("t", 0, bytes(16))
    for number in range(10):
        log.append(one_batch([b"v"], producer_id=5, epoch=0, sequence=number), leader_epoch=0, now_ms=START_MS)
    size = log.size_bytes // 10
    manager.close()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[8 * size + field] ^= 0x40
    path.write_bytes(raw)
    manager = open_manager(tmp_path)
    log = manager.logs["t", 0]
    assert log.log_end_offset == 10
    assert log.append(one_batch([b"v"], producer_id=5, epoch=0, sequence=9), leader_epoch=0, now_ms=START_MS).duplicate
    fresh = one_batch([b"v"], producer_id=5, epoch=0, sequence=10)
    assert log.append(fresh, leader_epoch=0, now_ms=START_MS).base_offset == 10


@pytest.mark.parametrize("clean", [False, True])
def test_what_comes_in_the_place_of_compacted_records_that_are_lost_counts_as_never_compacted(
    tmp_path: Path, clean: bool
) -> None:
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 0, 250)
    log.cleaned_offset = 200
    assert manager.close()
    os.truncate(tmp_path / "t-0" / f"{100:020d}.log", 50 * SIZE)
    (tmp_path / "t-0" / f"{200:020d}.log").unlink()
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    manager = open_manager(tmp_path, CONFIG)
    log = fill(manager, 150, 100)
    assert (log.log_end_offset, log.cleaned_offset) == (250, 150)
    assert manager.close()
    assert reopen(tmp_path).cleaned_offset == 150
