"""Segments with messages of magic 0 and 1, which brokers before Apache Kafka 0.11 have written: found by time, their indexes kept."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.scan import WildIndex
from log_support import START_MS, TOPIC_ID, crash, found_at, one_batch, open_manager

from fastq._native.crc32c import crc32c
from fastq._native.legacy import decode_message_set
from fastq.compression import Codec, compress

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
