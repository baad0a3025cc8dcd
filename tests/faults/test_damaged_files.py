"""Files of a log directory that somebody has removed, damaged or replaced: nothing is lost, or it is refused by name and with advice."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.files import Files
from fastq_broker.log.flusher import Flusher, ManualFlusher, open_flusher
from faulty_files import Fault, FaultyFiles

from fastq._native.records import build_batch, decode_records, iter_headers, verify_crc
from fastq.errors import KafkaError

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=1)
COUNT = 12


def open_manager(directory: Path, files: Files | None = None, flusher: Flusher | None = None) -> LogManager:
    files = files or FaultyFiles()
    manager = LogManager(
        [directory], default_config=CONFIG, files=files, flusher=flusher or ManualFlusher(files), clock=lambda: NOW_MS
    )
    manager.start()
    return manager


def append(log: PartitionLog, number: int, epoch: int) -> None:
    batch = build_batch(
        [(NOW_MS + number, None, b"%d" % number)], producer_id=7, producer_epoch=0, base_sequence=number
    )
    log.append(batch, leader_epoch=epoch, now_ms=NOW_MS)


def values(log: PartitionLog, offset: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while offset < log.high_watermark:
        raw = log.read(offset, 1 << 20, upper_offset=log.high_watermark).read()
        for position, header in iter_headers(raw, strict=True):
            found += [record.value for record in decode_records(raw, position) if record.offset >= offset]
            offset = header.next_offset
    return found


def fill(directory: Path, *, clean: bool) -> None:
    manager = open_manager(directory)
    log = manager.create("t", 0, TOPIC_ID)
    for number in range(COUNT):
        append(log, number, epoch=number // 5)
    log.flush()
    manager.flusher.wait()
    manager.write_checkpoints(manager.dirs[0], wait=True)
    if clean:
        manager.close()
    else:
        manager.release_locks()


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how in ("gone", "directory"):
        path.unlink()
        if how == "directory":
            path.mkdir()
    elif how == "flipped":
        at = len(data) // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])
    elif how == "noise":
        path.write_bytes(bytes((7 * at + 3) % 251 for at in range(len(data) or 20)))
    else:
        path.write_bytes(data[: len(data) // 2] if how == "half" else b"")


SMALL = [
    "t-0/leader-epoch-checkpoint",
    "t-0/partition.metadata",
    "t-0/*.snapshot",
    "t-0/*.index",
    "t-0/*.timeindex",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["gone", "directory", "flipped", "noise", "half", "empty"])
@pytest.mark.parametrize("name", SMALL)
def test_small_files_cost_no_record(tmp_path: Path, name: str, how: str, clean: bool) -> None:
    fill(tmp_path, clean=clean)
    paths = sorted(tmp_path.glob(name))
    for path in paths:
        damage(path, how)
    try:
        manager = open_manager(tmp_path)
        log = manager.create("t", 0, TOPIC_ID)
        assert values(log) == [b"%d" % number for number in range(COUNT)]
        for offset in range(COUNT):
            assert values(log, offset)[0] == b"%d" % offset
        append(log, COUNT, epoch=2)
    except KafkaError as error:
        assert how == "directory", error
        assert any(str(path) in str(error) for path in paths), error
        assert "move it away" in str(error)
        return
    if not (how == "flipped" and "epoch" in name):  # a number that is another number cannot be told
        assert [log.epoch_end_offset(epoch)[1] for epoch in range(3)] == [5, 10, COUNT + 1]
    manager.close()
    assert not manager.offline_dirs
    log = open_manager(tmp_path).create("t", 0, TOPIC_ID)
    assert values(log) == [b"%d" % number for number in range(COUNT + 1)]
    assert log.dir.offline is None


@pytest.mark.parametrize("name", [*SMALL[:2], "t-0/*.log", "t-0/*.index", SMALL[5]])
def test_what_may_not_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    fill(tmp_path, clean=False)
    path = str(sorted(tmp_path.glob(name))[-1])
    files = FaultyFiles()
    files.plan(Fault("open", errno.EACCES, path))
    manager = LogManager(
        [tmp_path], default_config=CONFIG, files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS
    )
    with pytest.raises(KafkaError) as caught:
        try:
            manager.start()
            manager.create("t", 0, TOPIC_ID)
        finally:
            manager.release_locks()
    assert path in str(caught.value)
    assert "read and write access" in str(caught.value)
    log = open_manager(tmp_path).create("t", 0, TOPIC_ID)
    assert values(log) == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("gone", ["directory", "files", "in between"])
def test_a_deleted_directory_that_is_gone_is_done(tmp_path: Path, gone: str, native: bool) -> None:
    files = Files() if native else FaultyFiles()
    flusher = open_flusher(files) if native else ManualFlusher(files)
    manager = open_manager(tmp_path, files, flusher)
    append(manager.create("t", 0, TOPIC_ID), 0, 0)
    append(manager.create("u", 0, TOPIC_ID), 0, 0)
    manager.delete("t", 0)
    (path,) = tmp_path.glob("t-*-delete")
    if gone == "files":
        for item in path.iterdir():
            item.unlink()
    elif gone == "directory":
        shutil.rmtree(path)
    manager.monotonic_ms = lambda: NOW_MS + 120_000
    if gone == "in between":
        manager.dirs[0]._remove([str(item) for item in path.iterdir()], str(path / "never"))
        shutil.rmtree(path, ignore_errors=True)  # both remove the same files at the same time
    manager.tick()
    manager.flusher.wait()
    assert not path.exists()
    assert not manager.offline_dirs
    append(manager.logs["u", 0], 1, 0)
    manager.close()


@pytest.mark.parametrize("native", [True, False])
def test_a_deleted_directory_that_somebody_has_put_something_into_stays(
    tmp_path: Path, native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files() if native else FaultyFiles()
    manager = open_manager(tmp_path, files, open_flusher(files) if native else ManualFlusher(files))
    append(manager.create("t", 0, TOPIC_ID), 0, 0)
    manager.delete("t", 0)
    (path,) = tmp_path.glob("t-*-delete")
    (path / "mine").mkdir()
    (path / "mine" / "too").touch()
    manager.monotonic_ms = lambda: NOW_MS + 120_000
    manager.tick()
    manager.flusher.wait()
    assert not manager.offline_dirs
    assert f"{path} cannot be deleted" in caplog.text
    manager.close()


def test_a_live_directory_that_is_gone_can_be_deleted(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    append(manager.create("t", 0, TOPIC_ID), 0, 0)
    shutil.rmtree(tmp_path / "t-0")
    assert manager.delete("t", 0)
    assert not manager.offline_dirs
    append(manager.create("t", 0, bytes(16)), 0, 0)
    manager.close()
    assert not manager.offline_dirs


def test_a_temporary_checkpoint_that_is_gone_is_written_again(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    append(manager.create("t", 0, TOPIC_ID), 0, 0)
    manager.write_checkpoints(manager.dirs[0], wait=False)
    for path in tmp_path.glob("*.tmp"):
        path.unlink()
    manager.flusher.wait()
    assert not manager.offline_dirs
    manager.write_checkpoints(manager.dirs[0], wait=False)
    manager.flusher.wait()
    assert (tmp_path / "recovery-point-offset-checkpoint").exists()


TXN_COUNT = 12


def fill_transactions(directory: Path, *, clean: bool) -> list[tuple[int, int, int]]:
    """A log whose segments hold aborted transactions, and one that begins in a segment and ends in a later one; what was aborted."""
    manager = open_manager(directory)
    log = manager.create("t", 0, TOPIC_ID)
    for number in range(TXN_COUNT):
        for producer_id in (100, 200 + number):  # 100 goes on over all of the segments
            batch = build_batch(
                [(NOW_MS, None, b"v" * 60)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number if producer_id == 100 else 0,
                transactional=True,
            )
            log.append(batch, leader_epoch=0, now_ms=NOW_MS, from_client=False)
        end_transaction(log, 200 + number, commit=number % 3 == 0)
    end_transaction(log, 100, commit=False)
    append(log, 0, 0)
    assert len(log.segments) > 4
    wanted = aborted_in(log)
    assert len(wanted) == 1 + TXN_COUNT * 2 // 3
    log.flush()
    manager.flusher.wait()
    manager.write_checkpoints(manager.dirs[0], wait=True)
    if clean:
        manager.close()
    else:
        manager.release_locks()
    return wanted


def end_transaction(log: PartitionLog, producer_id: int, *, commit: bool) -> None:
    log.append_transaction_marker(
        producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commit=commit, leader_epoch=0, now_ms=NOW_MS
    )


def aborted_in(log: PartitionLog) -> list[tuple[int, int, int]]:
    found = log.aborted_transactions(log.log_start_offset, log.last_stable_offset)
    return sorted((entry.producer_id, entry.first_offset, entry.last_offset) for entry in found)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["noise", "cut", "empty", "version", "snapshots"])
def test_aborted_transactions_are_found_again(tmp_path: Path, how: str, clean: bool) -> None:
    """Their records would be read as committed ones. Files that are gone are not missed, nor by Apache Kafka: there may have been none."""
    wanted = fill_transactions(tmp_path, clean=clean)
    paths = sorted(tmp_path.glob("t-0/*.txnindex"))
    assert len(paths) > 3
    for path in paths:
        if how in ("version", "snapshots"):
            data = path.read_bytes()
            path.write_bytes(b"\0\x07" + data[2:])
        elif how == "cut":
            path.write_bytes(path.read_bytes()[:-5])
        else:
            damage(path, how)
    if how == "snapshots":  # the producers at a segment's begin have to come from the segments before it
        for path in tmp_path.glob("t-0/*.snapshot"):
            damage(path, "flipped")
    for _ in range(2):
        manager = open_manager(tmp_path)
        log = manager.create("t", 0, TOPIC_ID)
        assert aborted_in(log) == wanted
        assert not manager.offline_dirs
        manager.close()


def test_damage_of_a_transaction_index_in_use_is_no_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = fill_transactions(tmp_path, clean=True)
    log = open_manager(tmp_path).create("t", 0, TOPIC_ID)
    assert aborted_in(log)
    path = sorted(tmp_path.glob("t-0/*.txnindex"))[1]
    path.write_bytes(b"\0\x07" + path.read_bytes()[2:])
    assert aborted_in(log) == wanted
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"{path} is damaged") and "the entry has version 7, expected 0" in line


@pytest.mark.parametrize("clean", [True, False])
def test_bits_that_flip_within_records_are_told_and_lose_no_other_record(tmp_path: Path, clean: bool) -> None:
    """Below the recovery point nothing is cut: the batch is there, and its checksum says that it is not what was written."""
    fill(tmp_path, clean=clean)
    first = tmp_path / "t-0" / f"{0:020d}.log"
    whole = first.read_bytes()
    batches = list(iter_headers(whole, strict=True))
    assert len(batches) > 2
    for position, header in batches[1:]:
        for place in (position + 61, position + 66, position + header.size_bytes - 1):
            data = bytearray(whole)
            data[place] ^= 4
            first.write_bytes(data)
            manager = open_manager(tmp_path)
            log = manager.create("t", 0, TOPIC_ID)
            assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
            raw = log.read(0, 1 << 20, upper_offset=COUNT).read()
            bad = [at for at, _ in iter_headers(raw, strict=True) if not verify_crc(raw, at)]
            assert bad == [position]
            append(log, COUNT, epoch=2)
            assert log.log_end_offset == COUNT + 1
            log.truncate_to(COUNT)
            manager.close() if clean else manager.release_locks()
    first.write_bytes(whole)
    assert values(open_manager(tmp_path).create("t", 0, TOPIC_ID)) == [b"%d" % number for number in range(COUNT)]


def test_an_entry_above_the_end_is_another_logs(tmp_path: Path) -> None:
    """A recovery point above the end: all of the log is checked, not only what lies above the point."""
    fill(tmp_path, clean=False)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 1000\n")
    first = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(first.read_bytes())
    data[-3] ^= 1
    first.write_bytes(data)
    log = open_manager(tmp_path).create("t", 0, TOPIC_ID)
    found = values(log)
    assert found == [b"%d" % number for number in range(len(found))]
    assert 0 < len(found) < COUNT


def test_of_two_directories_of_a_name_the_topics_own_is_served(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old, clean=True)
    for item in (old / "t-0").iterdir():
        item.chmod(0o644)
    (old / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    fill(new, clean=True)
    files = FaultyFiles()
    manager = LogManager(
        [old, new], default_config=CONFIG, files=files, flusher=ManualFlusher(files), clock=lambda: NOW_MS
    )
    manager.start()
    log = manager.create("t", 0, TOPIC_ID)
    assert log.dir.path == str(new)
    assert values(log) == [b"%d" % number for number in range(COUNT)]
    assert list(old.glob("t-0.*-stray"))


def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path) -> None:
    """Opening one waits for a writer: the loop stood still at the first fetch of that log."""
    os.mkfifo(tmp_path / "leader-epoch-checkpoint")
    with pytest.raises(OSError, match="seek") as caught:
        Files().read_file(str(tmp_path / "leader-epoch-checkpoint"))
    assert caught.value.filename == str(tmp_path / "leader-epoch-checkpoint")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["gone", "empty"])
@pytest.mark.parametrize("which", [0, -1])
def test_a_segment_that_is_gone_is_named(
    tmp_path: Path, which: int, how: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records are passed over by who reads, as Apache Kafka passes over them; but not in silence."""
    fill(tmp_path, clean=clean)
    paths = sorted(tmp_path.glob("t-0/*.log"))
    assert len(paths) == 2
    damage(paths[which], how)
    log = open_manager(tmp_path).create("t", 0, TOPIC_ID)
    assert log.dir.offline is None
    assert len(values(log, log.log_start_offset)) < COUNT
    told = [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
    assert any(str(paths[which]) in line or f"{log.path} ends at offset" in line for line in told), told
