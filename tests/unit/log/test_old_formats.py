"""Segments with messages of magic 0 and 1, which brokers before Apache Kafka 0.11 have written: found by time, their indexes kept."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.scan import WildIndex
from faulty_files import FaultyFiles
from log_support import START_MS, TOPIC_ID, crash, found_at, one_batch, open_manager

from fastq._native.crc32c import crc32c
from fastq._native.legacy import decode_message_set
from fastq._native.records import stamp
from fastq.compression import Codec, compress
from fastq.errors import KafkaStorageError

COUNT = 60
NO_PRODUCERS = struct.pack(">hIi", 1, crc32c(bytes(4)), 0)
CONFIG = LogConfig(index_interval_bytes=200, message_timestamp_after_max_ms=1 << 40)


def message(offset: int, timestamp_ms: int, value: bytes, *, magic: int = 1, codec: int = 0) -> bytes:
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", timestamp_ms) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def packed(last_offset: int, messages: Iterable[bytes]) -> bytes:
    timestamp_ms = START_MS + last_offset
    return message(last_offset, timestamp_ms, compress(Codec.GZIP, b"".join(messages)), codec=Codec.GZIP)


def old_log(directory: Path, batches: bytes, next_offset: int, *, entry: tuple[int, int] | None = None) -> LogManager:
    """A broker with a directory as Apache Kafka's last one that took such has stopped with it; its time index has one `entry` or none."""
    (directory / "t-0").mkdir()
    segment = directory / "t-0" / f"{0:020d}"
    segment.with_suffix(".log").write_bytes(batches)
    segment.with_suffix(".index").write_bytes(b"")
    segment.with_suffix(".timeindex").write_bytes(struct.pack(">qi", *entry) if entry else b"")
    (directory / "t-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    (directory / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n")
    (directory / "t-0" / f"{next_offset:020d}.snapshot").write_bytes(NO_PRODUCERS)
    (directory / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {next_offset}\n")
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    return open_manager(directory, CONFIG)


def log_of(manager: LogManager) -> PartitionLog:
    log = manager.create("t", 0, TOPIC_ID)
    assert log.log_end_offset >= COUNT
    return log


def single(magic: int) -> bytes:
    return b"".join(message(n, START_MS + n, b"v", magic=magic) for n in range(COUNT))


def wrapped() -> bytes:
    """Compressed by tens."""
    return b"".join(
        packed(first + 9, (message(n, START_MS + first + n, b"v") for n in range(10))) for first in range(0, COUNT, 10)
    )


@pytest.mark.parametrize("batches", [single(1), wrapped()], ids=["single", "compressed"])
@pytest.mark.parametrize("index", ["whole", "empty", "missing"])
def test_messages_of_magic_1_are_found_by_time(
    tmp_path: Path, batches: bytes, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    entry = (START_MS + COUNT - 1, COUNT - 1) if index == "whole" else None
    manager = old_log(tmp_path, batches, COUNT, entry=entry)
    if index == "missing":
        (tmp_path / "t-0" / f"{0:020d}.timeindex").unlink()
    log = log_of(manager)
    log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000), leader_epoch=3, now_ms=START_MS)
    for ms in (0, 1, 23, 30, COUNT - 1):
        assert found_at(log, START_MS + ms) == (START_MS + ms, ms, -1)
    assert found_at(log, START_MS + COUNT) == (START_MS + 1000, COUNT, 3)
    assert log.largest_timestamp() == START_MS + 1000
    records = decode_message_set(log.read(0, 1 << 20).read())[0]
    assert [record.offset for record in records] == list(range(COUNT))
    assert "wild" in caplog.text if index == "empty" else "wild" not in caplog.text
    assert "ERROR" not in caplog.text
    manager.close()
    manager = open_manager(tmp_path, CONFIG)
    assert found_at(log_of(manager), START_MS + 23) == (START_MS + 23, 23, -1)
    manager.close()


def test_messages_of_magic_0_have_no_time_and_no_wild_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = old_log(tmp_path, single(0), COUNT)
    log = log_of(manager)
    assert log.segments[0].first_timestamp() == -1
    for ms in (0, 30, 1 << 40):
        assert found_at(log, START_MS + ms) is None
    assert found_at(log, 0) is None
    assert (log.segments[0].rebuilt_ms, caplog.text) == (None, "")
    log.append(one_batch([b"v"]), leader_epoch=3, now_ms=START_MS)
    assert found_at(log, START_MS) == (START_MS, COUNT, 3)
    manager.close()


def test_indexes_are_made_again_from_all_formats(tmp_path: Path) -> None:
    batches = single(1)
    manager = old_log(tmp_path, batches, COUNT, entry=(START_MS + COUNT - 1, COUNT - 1))
    log = log_of(manager)
    for number in range(30):
        log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000 + number), leader_epoch=3, now_ms=START_MS)
    log.segments[0].doubt = WildIndex(log.segments[0].index.path, 0, "as a test says")
    for offset in range(log.log_end_offset):
        piece = log.read(offset, 1).read()
        assert struct.unpack_from(">q", piece)[0] == offset
    assert log.segments[0].rebuilt_ms is not None
    assert log.segments[0].index.entry_count > len(batches) // 400
    crash(manager)


def flush(manager: LogManager, log: PartitionLog) -> None:
    """Have all of a log synced, and its recovery point at its end written down."""
    log.flush()
    log.dir.flusher.wait()
    manager.write_checkpoints(log.dir, wait=True)


def crash_and_open(manager: LogManager, directory: Path) -> tuple[LogManager, PartitionLog]:
    crash(manager)
    manager = open_manager(directory, CONFIG)
    return manager, log_of(manager)


ALL_OLD = pytest.mark.parametrize(
    "batches", [single(0), single(1), wrapped()], ids=["magic-0", "magic-1", "compressed"]
)


@ALL_OLD
@pytest.mark.parametrize("flushed", [False, True])
def test_what_lies_behind_old_messages_is_recovered(
    tmp_path: Path, batches: bytes, flushed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = old_log(tmp_path, batches, COUNT)
    log = log_of(manager)
    for number in range(20):
        if flushed and number == 10:
            flush(manager, log)
        log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000 + number), leader_epoch=3, now_ms=START_MS)
    data, epochs = log.read(0, 1 << 20).read(), log.epochs.entries()
    manager, log = crash_and_open(manager, tmp_path)
    assert (log.log_end_offset, log.read(0, 1 << 20).read(), log.epochs.entries()) == (COUNT + 20, data, epochs)
    assert found_at(log, START_MS + 1010) == (START_MS + 1010, COUNT + 10, 3)
    if b"\x01" in batches[16:17]:
        assert found_at(log, START_MS + 23) == (START_MS + 23, 23, -1)
    assert log.segments[0].index.entry_count > 5
    assert log.segments[0].doubt is None
    assert "ERROR" not in caplog.text
    crash(manager)


def test_old_messages_above_the_recovery_point_are_not_believed(tmp_path: Path) -> None:
    manager = old_log(tmp_path, single(1), COUNT)
    crash(manager)
    (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {COUNT - 1}\n")
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    manager = open_manager(tmp_path, CONFIG)
    with pytest.raises(KafkaStorageError, match="batches of an old format at byte"):
        manager.create("t", 0, TOPIC_ID)
    assert (tmp_path / "t-0" / f"{0:020d}.log").read_bytes() == single(1)
    crash(manager)


@ALL_OLD
def test_a_log_is_cut_behind_old_messages(tmp_path: Path, batches: bytes, caplog: pytest.LogCaptureFixture) -> None:
    manager = old_log(tmp_path, batches, COUNT)
    log = log_of(manager)
    for number in range(3):
        log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000 + number), leader_epoch=3, now_ms=START_MS)
    log.truncate_to(COUNT + 1)
    assert (log.log_end_offset, log.largest_timestamp()) == (COUNT + 1, START_MS + 1000)
    log.truncate_to(COUNT)
    assert log.read(0, 1 << 20).read() == batches
    assert "ERROR" not in caplog.text
    crash(manager)


def transactions_of(log: PartitionLog) -> tuple[int, list[tuple[int, ...]]]:
    return log.last_stable_offset, [tuple(one) for one in log.aborted_transactions(0, log.log_end_offset)]


@pytest.mark.parametrize("lost", ["snapshots", "aborts", "epochs", "all"])
@pytest.mark.parametrize("clean", [False, True])
def test_what_is_lost_beside_old_messages_is_made_again_from_what_follows(
    tmp_path: Path, lost: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = old_log(tmp_path, single(1), COUNT)
    log = log_of(manager)
    for producer_id in (7, 8, 9):  # the first is aborted, the others stay open
        batch = one_batch([b"v"], producer_id=producer_id, epoch=0, sequence=0, transactional=True)
        log.append(batch, leader_epoch=3, now_ms=START_MS, from_client=False)
        if producer_id == 7:
            log.append_transaction_marker(
                producer_id=7, producer_epoch=0, coordinator_epoch=1, commit=False, leader_epoch=3, now_ms=START_MS
            )
    flush(manager, log)
    known, epochs = transactions_of(log), log.epochs.entries()
    assert known == (COUNT + 2, [(7, COUNT, COUNT + 1, COUNT + 2)])
    if clean:
        manager.close()
    else:
        crash(manager)
    directory = tmp_path / "t-0"
    if lost in ("snapshots", "all"):
        for snapshot in directory.glob("*.snapshot"):
            snapshot.unlink()
    if lost in ("aborts", "all"):
        (directory / f"{0:020d}.txnindex").write_bytes(b"torn")
    if lost in ("epochs", "all"):
        (directory / "leader-epoch-checkpoint").unlink()
    manager = open_manager(tmp_path, CONFIG)
    log = log_of(manager)
    assert (transactions_of(log), log.epochs.entries()) == (known, epochs)
    assert "rebuilding" not in caplog.text
    assert "replaying" not in caplog.text
    (directory / f"{0:020d}.txnindex").write_bytes(b"torn")
    assert transactions_of(log) == known
    assert "rebuilding" not in caplog.text
    crash(manager)


@ALL_OLD
@pytest.mark.parametrize("size", [5, 40, 70])
def test_a_torn_batch_behind_old_messages_is_cut_off(tmp_path: Path, batches: bytes, size: int) -> None:
    manager = old_log(tmp_path, batches, COUNT)
    log = log_of(manager)
    log.append(one_batch([b"v" * 50]), leader_epoch=3, now_ms=START_MS)
    with open(log.segments[0].log.path, "r+b") as file:
        file.truncate(len(batches) + size)
    manager, log = crash_and_open(manager, tmp_path)
    assert (log.log_end_offset, log.read(0, 1 << 20).read()) == (COUNT, batches)
    crash(manager)


def split(directory: Path, at: int) -> None:
    """Have the messages from offset `at` on, all of one size, and what follows them in a segment of their own."""
    first = directory / "t-0" / f"{0:020d}.log"
    data, size = first.read_bytes(), len(single(1)) // COUNT
    first.write_bytes(data[: at * size])
    first.with_name(f"{at:020d}.log").write_bytes(data[at * size :])
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).write_bytes(b"")
        first.with_name(f"{at:020d}{suffix}").write_bytes(b"")


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("problem", ["damage", "cut", "point"])
def test_a_log_that_ends_below_its_recovery_point_is_recovered_behind_old_messages(
    tmp_path: Path, problem: str, segments: int, caplog: pytest.LogCaptureFixture
) -> None:
    manager = old_log(tmp_path, single(1), COUNT)
    log = log_of(manager)
    ends = []
    for number in range(20):
        log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000 + number), leader_epoch=3, now_ms=START_MS)
        ends.append(log.segments[0].size)
    flush(manager, log)
    data, path = log.read(0, 1 << 20).read(), Path(log.segments[0].log.path)
    crash(manager)
    kept, end = ends[-1], COUNT + 20
    if problem == "point":
        (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {COUNT + 40}\n")
    else:
        kept, end = ends[-2], COUNT + 19
        path.write_bytes(data[:kept] if problem == "cut" else data[:-1] + b"!")
    if segments == 2:
        split(tmp_path, COUNT // 2)
    for _ in range(2):
        manager = open_manager(tmp_path, CONFIG)
        log = log_of(manager)
        assert log.log_end_offset == end
        assert b"".join(log.files.read_file(segment.log.path) for segment in log.segments) == data[:kept]
        assert log.epochs.entries() == [(3, COUNT)]
        assert found_at(log, START_MS + 23) == (START_MS + 23, 23, -1)
        crash(manager)
    assert f"ends at offset {end}, below its recovery point" in caplog.text


def test_aborts_of_a_log_that_is_refused_for_its_old_messages_stay(tmp_path: Path) -> None:
    manager = old_log(tmp_path, single(1), COUNT)
    crash(manager)
    aborts = tmp_path / "t-0" / f"{0:020d}.txnindex"
    aborts.write_bytes(struct.pack(">hqqqq", 0, 7, COUNT, COUNT + 1, COUNT + 2))
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    manager = open_manager(tmp_path, CONFIG)
    with pytest.raises(KafkaStorageError, match="nothing was cut off"):
        manager.create("t", 0, TOPIC_ID)
    assert aborts.stat().st_size == 34
    crash(manager)


def test_many_old_messages_take_one_read(tmp_path: Path) -> None:
    manager = old_log(tmp_path, single(1), COUNT)
    for suffix in (".index", ".timeindex"):
        (tmp_path / "t-0" / f"{0:020d}{suffix}").unlink()
    files = manager.dirs[0].files
    assert isinstance(files, FaultyFiles)
    before = files.calls.get("read", 0)
    log = log_of(manager)
    assert log.segments[0].index.entry_count > 5
    assert files.calls["read"] - before < COUNT // 2
    crash(manager)


def mixed() -> bytes:
    """Of a topic whose format was set back for some time."""
    batches = b""
    for offset in range(COUNT):
        batch = bytearray(message(offset, START_MS + offset, b"v"))
        if offset // (COUNT // 4) % 2:
            batch = one_batch([b"v"], timestamp_ms=START_MS + offset)
            stamp(batch, 0, offset, 3)
        batches += batch
    return batches


def are_found(log: PartitionLog) -> None:
    for ms in (7, 23, 38, 53):
        assert found_at(log, START_MS + ms) == (START_MS + ms, ms, 3 if ms // (COUNT // 4) % 2 else -1)


@pytest.mark.parametrize("problem", [None, "damage"])
@pytest.mark.parametrize("interval", [200, 1 << 20])
def test_old_messages_behind_new_ones_are_recovered_below_the_recovery_point(
    tmp_path: Path, interval: int, problem: str | None
) -> None:
    """They need not be checked there, nor can they."""
    manager = old_log(tmp_path, mixed(), COUNT)
    log = log_of(manager)
    log.apply_config(replace(CONFIG, index_interval_bytes=interval))
    for number in range(20):
        log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000 + number), leader_epoch=3, now_ms=START_MS)
    flush(manager, log)
    data, path = log.read(0, 1 << 20).read(), Path(log.segments[0].log.path)
    crash(manager)
    kept, end = len(data), COUNT + 20
    if problem == "damage":
        kept, end = len(data) - len(one_batch([b"v"])), end - 1
        path.write_bytes(data[:-1] + b"!")
    for _ in range(2):
        manager = open_manager(tmp_path, CONFIG)
        log = log_of(manager)
        assert (log.log_end_offset, log.read(0, 1 << 20).read()) == (end, data[:kept])
        are_found(log)
        crash(manager)


@pytest.mark.parametrize("point", [COUNT // 2, COUNT // 2 + 1])
def test_old_messages_behind_new_ones_above_the_recovery_point_are_not_believed(tmp_path: Path, point: int) -> None:
    half = COUNT // 2
    new = one_batch([b"v"], timestamp_ms=START_MS)
    stamp(new, 0, half - 1, 3)
    old = [message(n, START_MS + n, b"v") for n in range(COUNT)]
    data = b"".join([*old[: half - 1], bytes(new), *old[half:]])
    manager = old_log(tmp_path, data, COUNT)
    crash(manager)
    (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {point}\n")
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    manager = open_manager(tmp_path, CONFIG)
    with pytest.raises(KafkaStorageError, match="batches of an old format at byte"):
        manager.create("t", 0, TOPIC_ID)
    assert (tmp_path / "t-0" / f"{0:020d}.log").read_bytes() == data
    crash(manager)


@pytest.mark.parametrize("cut", [COUNT, COUNT - 5, COUNT // 2 + 5])
def test_indexes_and_cuts_know_old_messages_behind_new_ones(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    manager = old_log(tmp_path, mixed(), COUNT)
    crash(manager)
    for suffix in (".index", ".timeindex"):
        (tmp_path / "t-0" / f"{0:020d}{suffix}").unlink()
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    manager = open_manager(tmp_path, CONFIG)
    log = log_of(manager)
    log.append(one_batch([b"v"], timestamp_ms=START_MS + 1000), leader_epoch=3, now_ms=START_MS)
    are_found(log)
    assert log.segments[0].index.last()[0] >= COUNT - 10
    log.truncate_to(cut)
    assert log.log_end_offset == cut
    assert log.append(one_batch([b"v"]), leader_epoch=4, now_ms=START_MS).base_offset == cut
    assert "ERROR" not in caplog.text
    assert log.dir.offline is None
    crash(manager)


def test_a_batch_whose_format_is_damaged_is_no_old_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is named, as all damage is, and indexes lead on behind it."""
    manager = open_manager(tmp_path, CONFIG)
    log = manager.create("t", 0, TOPIC_ID)
    ends = []
    for number in range(20):
        log.append(one_batch([b"v"], timestamp_ms=START_MS + number), leader_epoch=3, now_ms=START_MS)
        ends.append(log.segments[0].size)
    assert manager.close()
    path = Path(log.segments[0].log.path)
    data = bytearray(path.read_bytes())
    data[ends[9] + 16] = 0
    path.write_bytes(data)
    (tmp_path / "t-0" / f"{0:020d}.timeindex").unlink()
    manager = open_manager(tmp_path, CONFIG)
    manager.create("t", 0, TOPIC_ID).load()
    assert f"rebuilding indexes: {path}: at byte {ends[9]}" in caplog.text
    crash(manager)
