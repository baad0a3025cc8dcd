"""Disks that fail: full, broken, short writes. What was acknowledged is there afterwards, nothing else is."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.flusher import ManualFlusher
from faulty_files import Fault, FaultyFiles

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.errors import KafkaStorageError

NOW_MS = 1_700_000_000_000


def open_manager(directory: Path, files: FaultyFiles, config: LogConfig | None = None) -> LogManager:
    manager = LogManager(
        [directory],
        default_config=config or LogConfig(),
        files=files,
        flusher=ManualFlusher(files),
        clock=lambda: NOW_MS,
    )
    manager.start()
    return manager


def append(log: PartitionLog, value: bytes) -> int:
    return log.append(build_batch([(NOW_MS, None, value)]), leader_epoch=0, now_ms=NOW_MS).base_offset


def values(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        raw = log.read(offset, 1 << 20, upper_offset=log.high_watermark).read()
        for position, header in iter_headers(raw, strict=True):
            found += [record.value for record in decode_records(raw, position)]
            offset = header.next_offset
    return found


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("partial", [0, 1, 40, 70])
def test_a_batch_that_does_not_fit_is_cut_off_again_and_the_log_goes_on_when_there_is_room(
    tmp_path: Path, code: int, partial: int
) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files)
    log = manager.create("t", 0, bytes(16))
    append(log, b"kept")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    size = path.stat().st_size
    files.plan(Fault("write", code, ".log", partial=partial))
    for _ in range(3):
        with pytest.raises(KafkaStorageError) as caught:
            append(log, b"refused")
        text = str(caught.value)
        for part in ("writing a batch failed", str(tmp_path), errno.errorcode[code], "try it again", "ree space"):
            assert part in text
        assert "restart" not in text
        assert path.stat().st_size == size
        assert values(log) == [b"kept"]
    assert log.dir.refused_for_room == 3
    files.heal()
    append(log, b"more")
    assert values(log) == [b"kept", b"more"]
    assert manager.close() and (tmp_path / ".kafka_cleanshutdown").exists()
    log = open_manager(tmp_path, FaultyFiles()).logs["t", 0]
    assert values(log) == [b"kept", b"more"]


def test_a_sync_that_finds_no_room_takes_the_directory_offline(tmp_path: Path) -> None:
    """Pages may be gone by then: a later sync would say that all is well."""
    files = FaultyFiles()
    manager = open_manager(tmp_path, files, LogConfig(durability="fsync"))
    log = manager.create("t", 0, bytes(16))
    files.plan(Fault("sync", errno.ENOSPC, ".log"))
    append(log, b"v")
    failed: list[object] = []
    log.wait_durable(1, failed.append)
    manager.flusher.drain()
    assert "then restart the broker" in str(failed[0]) and manager.offline_dirs


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_indexes_without_room_wait_and_records_are_acknowledged(tmp_path: Path, durability: str) -> None:
    """What a load can make anew holds up neither records nor who waits for them to be on disk."""
    files = FaultyFiles()
    manager = open_manager(tmp_path, files, LogConfig(index_interval_bytes=0, durability=durability))
    log = manager.create("t", 0, bytes(16))
    for part in (".index", ".timeindex", ".snapshot"):
        files.plan(Fault("write", errno.ENOSPC, part))
    told: list[object] = []
    for number in range(1000):
        append(log, b"%d" % number)
    log.flush()
    log.wait_durable(1000, told.append)
    manager.flusher.wait()
    assert told == [None] and log.recovery_point == 0
    files.heal()
    manager.tick()
    manager.flusher.wait()
    assert log.recovery_point == 1000
    manager.release_locks()
    log = open_manager(tmp_path, FaultyFiles(), LogConfig(index_interval_bytes=0)).logs["t", 0]
    assert values(log) == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("partial", [0, 1, 40, 70])
def test_a_batch_that_cannot_be_written_is_cut_off_again(tmp_path: Path, partial: int) -> None:
    code = errno.EIO
    files = FaultyFiles()
    manager = open_manager(tmp_path, files)
    log = manager.create("t", 0, bytes(16))
    append(log, b"kept")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    size = path.stat().st_size
    files.plan(Fault("write", code, ".log", partial=partial))
    with pytest.raises(KafkaStorageError) as caught:
        append(log, b"lost")
    text = str(caught.value)
    for part in ("writing a batch failed", str(tmp_path), str(path)[-40:], errno.errorcode[code], "restart the broker"):
        assert part in text
    assert path.stat().st_size == size
    assert (log.log_end_offset, log.high_watermark) == (1, 1)
    assert values(log) == [b"kept"]  # what was acknowledged can still be read
    files.heal()
    with pytest.raises(KafkaStorageError):  # the directory stays offline until a restart
        append(log, b"refused")
    manager.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    log = open_manager(tmp_path, FaultyFiles()).logs["t", 0]
    assert values(log) == [b"kept"]
    assert log.recovery.cut == []


def test_a_failed_cut_is_made_up_for_by_recovery(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files)
    log = manager.create("t", 0, bytes(16))
    append(log, b"kept")
    files.plan(Fault("write", errno.ENOSPC, ".log", partial=30))
    files.plan(Fault("truncate", errno.EIO, ".log"))
    with pytest.raises(KafkaStorageError):
        append(log, b"lost")
    manager.close()
    log = open_manager(tmp_path, FaultyFiles()).logs["t", 0]
    assert values(log) == [b"kept"]
    assert [(cut[1] > 0, cut[2]) for cut in log.recovery.cut] == [(True, 30)]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_manager(tmp_path, files).create("t", 0, bytes(16))
    append(log, b"first")
    fault = files.plan(Fault("write", 0, ".log", partial=13, repeat=False))
    append(log, b"second" * 30)
    assert fault.struck == 1
    assert values(log) == [b"first", b"second" * 30]


def test_a_write_of_nothing_is_an_error_and_not_a_loop(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_manager(tmp_path, files).create("t", 0, bytes(16))
    append(log, b"first")
    files.plan(Fault("write", 0, ".log", partial=0))
    with pytest.raises(KafkaStorageError):
        append(log, b"second")
    assert values(log) == [b"first"]


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ("open", f"{1:020d}.log"),
        ("write", ".timeindex"),
        ("write", ".snapshot"),
        ("rename", ".snapshot"),
        ("truncate", "5.log"),
    ],
)
def test_a_roll_that_fails_acknowledges_nothing(tmp_path: Path, operation: str, part: str) -> None:
    files = FaultyFiles()
    size = len(build_batch([(NOW_MS, None, b"v")]))
    manager = open_manager(tmp_path, files, LogConfig(segment_bytes=5 * size))
    log = manager.create("t", 0, bytes(16))
    for _ in range(5):
        append(log, b"v")
    if operation == "truncate":  # only what a crash has left is cut
        (tmp_path / "t-0" / f"{5:020d}.log").write_bytes(b"left")
    files.plan(Fault(operation, errno.ENOSPC, "5.log" if operation == "open" else part))  # type: ignore[arg-type]
    with pytest.raises(KafkaStorageError):
        append(log, b"v")
    assert log.log_end_offset == 5
    assert values(log) == [b"v"] * 5
    manager.close()
    log = open_manager(tmp_path, FaultyFiles(), LogConfig(segment_bytes=5 * size)).logs["t", 0]
    assert values(log) == [b"v"] * 5
    assert append(log, b"more") == 5


def test_an_index_that_cannot_be_written_takes_its_batch_back(tmp_path: Path) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files, LogConfig(index_interval_bytes=0))
    log = manager.create("t", 0, bytes(16))
    files.plan(Fault("write", errno.EIO, ".index"))
    acknowledged = 0
    with pytest.raises(KafkaStorageError):
        while acknowledged < 10_000:
            append(log, b"%d" % acknowledged)
            acknowledged += 1
    assert 0 < acknowledged < 10_000
    assert log.log_end_offset == acknowledged
    manager.close()
    log = open_manager(tmp_path, FaultyFiles()).logs["t", 0]
    assert values(log) == [b"%d" % number for number in range(acknowledged)]


def test_a_directory_that_cannot_be_read_at_start_is_offline(tmp_path: Path) -> None:
    files = FaultyFiles()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    files.plan(Fault("open", errno.EACCES, "recovery-point"))
    with pytest.raises(KafkaStorageError, match="access"):
        open_manager(tmp_path, files)


def test_a_corrupt_checkpoint_costs_time_but_no_records(tmp_path: Path) -> None:
    manager = open_manager(tmp_path, FaultyFiles())
    log = manager.create("t", 0, bytes(16))
    append(log, b"v")
    manager.close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n7\nrubbish\n")
    assert values(open_manager(tmp_path, FaultyFiles()).logs["t", 0]) == [b"v"]


def test_random_faults_never_lose_what_was_acknowledged(tmp_path: Path, soak: bool) -> None:
    """A producer, a disk that fails at a random call, a restart: over and over on one log."""
    source = random.Random(5)
    acknowledged: list[bytes] = []
    config = LogConfig(segment_bytes=1500, index_interval_bytes=100, max_message_bytes=1000)
    for _ in range(2000 if soak else 80):
        files = FaultyFiles()
        manager = open_manager(tmp_path, files, config)
        log = manager.create("t", 0, bytes(16))
        assert values(log) == acknowledged
        operation = source.choice(["write", "write", "open", "truncate", "rename", "sync"])
        code = source.choice([errno.ENOSPC, errno.EIO])
        fault = Fault(operation, code, passes=source.randrange(60), partial=source.randrange(80))  # type: ignore[arg-type]
        files.plan(fault)
        try:
            for _ in range(60):
                value = source.randbytes(source.randrange(60))
                append(log, value)
                acknowledged.append(value)
                if source.random() < 0.05:
                    log.flush()
                    manager.flusher.drain()
        except KafkaStorageError:
            assert bool(manager.offline_dirs) == (code == errno.EIO or operation == "sync")
        if source.random() < 0.5:
            manager.close()
        else:
            manager.release_locks()
