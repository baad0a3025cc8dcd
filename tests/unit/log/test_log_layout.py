"""The directory byte by byte, as Apache Kafka leaves one after a clean stop."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig
from fastq_broker.log.checkpoints import (
    CorruptCheckpoint,
    format_offsets,
    parse_epochs,
    parse_offsets,
    parse_partition_metadata,
)
from log_support import START_MS, one_batch, open_manager

from fastq._native.crc32c import crc32c

TOPIC_ID = bytes.fromhex("8f3b9c0a11f24a7e9d4455e6778899aa")
SIZE = len(one_batch([b"v"], producer_id=7, epoch=2, sequence=0))


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def snapshot(entries: list[tuple[int, ...]]) -> bytes:
    body = struct.pack(">i", len(entries)) + b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_directory_after_a_clean_stop(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=4 * SIZE, index_interval_bytes=SIZE)
    manager = open_manager(tmp_path, config)
    log = manager.create("events", 3, TOPIC_ID)
    manager.create("empty", 0, TOPIC_ID)
    stored = b""
    for number in range(6):
        batch = one_batch([b"v"], timestamp_ms=START_MS + number, producer_id=7, epoch=2, sequence=number)
        log.append(batch, leader_epoch=1 if number < 2 else 4, now_ms=START_MS)
        stored += batch  # stamped in place
    log.delete_records_before(1)
    manager.close()

    first, second = f"events-3/{0:020d}", f"events-3/{4:020d}"
    assert files_of(tmp_path) == {
        ".kafka_cleanshutdown": b'{"version": 0, "brokerEpoch": -1}',
        ".lock": b"",
        "recovery-point-offset-checkpoint": b"0\n2\nevents 3 6\nempty 0 0\n",
        "replication-offset-checkpoint": b"0\n2\nevents 3 6\nempty 0 0\n",
        "log-start-offset-checkpoint": b"0\n1\nevents 3 1\n",
        f"empty-0/{0:020d}.log": b"",
        f"empty-0/{0:020d}.index": b"",
        f"empty-0/{0:020d}.timeindex": b"",
        "empty-0/partition.metadata": b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(TOPIC_ID)[:22],
        f"{first}.log": stored[: 4 * SIZE],
        # More than an interval of bytes lies before the third batch, the entry's reset leaves one interval before the fourth.
        f"{first}.index": struct.pack(">ii", 2, 2 * SIZE),
        f"{first}.timeindex": struct.pack(">qi", START_MS + 2, 2) + struct.pack(">qi", START_MS + 3, 3),
        f"{second}.log": stored[4 * SIZE :],
        f"{second}.index": b"",
        f"{second}.timeindex": struct.pack(">qi", START_MS + 5, 1),
        f"{second}.snapshot": snapshot([(7, 2, 3, 3, 0, START_MS + 3, -1, -1)]),
        f"events-3/{6:020d}.snapshot": snapshot([(7, 2, 5, 5, 0, START_MS + 5, -1, -1)]),
        "events-3/leader-epoch-checkpoint": b"0\n2\n1 1\n4 2\n",
        "events-3/partition.metadata": b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(TOPIC_ID)[:22],
    }


def test_a_reopened_log_continues_the_same_files(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, TOPIC_ID)
    log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    manager.close()
    manager = open_manager(tmp_path)
    reopened = manager.get("t", 0)
    assert reopened is not None
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    reopened.append(one_batch([b"w"]), leader_epoch=0, now_ms=START_MS)
    assert reopened.topic_id == TOPIC_ID
    manager.close()
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size == 2 * len(one_batch([b"v"]))


class TestCheckpoints:
    def test_offsets_both_ways(self) -> None:
        offsets = {("a.b_c-d", 0): 5, ("x", 12): 1 << 40}
        assert parse_offsets("file", format_offsets(offsets)) == offsets

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "line 1"),
            (b"1\n0\n", "version 0"),
            (b"0\n", "line 2"),
            (b"0\nx\n", "line 2"),
            (b"0\n2\na 0 1\n", "promises 2"),
            (b"0\n1\na 0\n", "line 3"),
            (b"0\n1\na b 1\n", "line 3"),
        ],
    )
    def test_damage_is_named(self, data: bytes, message: str) -> None:
        with pytest.raises(CorruptCheckpoint, match=message):
            parse_offsets("file", data)

    def test_epochs_and_metadata(self) -> None:
        assert parse_epochs("f", b"0\n2\n1 0\n4 20\n") == [(1, 0), (4, 20)]
        with pytest.raises(CorruptCheckpoint, match="line 3"):
            parse_epochs("f", b"0\n1\n1\n")
        for bad in (b"", b"version: 1\ntopic_id: AAAA", b"version: 0\n", b"version: 0\ntopic_id: AAAA"):
            with pytest.raises(CorruptCheckpoint):
                parse_partition_metadata("f", bad)
