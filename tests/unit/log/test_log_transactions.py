"""The transaction bits: last stable offset, markers, the index of aborted transactions."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog
from fastq_broker.log.retention import apply_retention
from faulty_files import Fault, FaultyFiles
from log_support import START_MS, crash, one_batch, open_manager, records_of

from fastq._native.crc32c import crc32c
from fastq.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaStorageError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)


def send(log: PartitionLog, producer_id: int, sequence: int, *, transactional: bool = True) -> int:
    batch = one_batch([b"v"], producer_id=producer_id, epoch=0, sequence=sequence, transactional=transactional)
    return log.append(batch, leader_epoch=0, now_ms=START_MS, from_client=not transactional).base_offset


def end(log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 5) -> int:
    return log.append_transaction_marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        commit=commit,
        leader_epoch=0,
        now_ms=START_MS,
    ).base_offset


def test_the_stable_offset_waits_for_the_earliest_open_transaction(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    assert [send(log, 1, 0), send(log, 2, 0), send(log, 1, 1)] == [0, 1, 2]
    assert (log.last_stable_offset, log.high_watermark) == (0, 3)
    end(log, 1, commit=True)
    assert log.last_stable_offset == 1
    end(log, 2, commit=False)
    assert (log.last_stable_offset, log.log_end_offset) == (5, 5)
    assert [tuple(entry) for entry in log.aborted_transactions(0, 5)] == [(2, 1, 4, 5)]
    assert log.aborted_transactions(0, 1) == []
    raw = (tmp_path / "t-0" / "00000000000000000000.txnindex").read_bytes()
    assert raw == struct.pack(">hqqqq", 0, 2, 1, 4, 5)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_client_cannot_open_a_transaction_that_nobody_would_end(tmp_path: Path, codec: int) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    send(log, 1, 0, transactional=False)
    for producer_id, sequence in ((1, 1), (2, 0)):
        batch = one_batch([b"v"], producer_id=producer_id, epoch=0, sequence=sequence, codec=codec, transactional=True)
        with pytest.raises(InvalidTxnState, match="has no open transaction") as caught:
            log.append(batch, leader_epoch=0, now_ms=START_MS)
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
    send(log, 1, 1, transactional=False)
    assert (log.last_stable_offset, log.log_end_offset) == (2, 2)


def test_refusals(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    send(log, 1, 0)
    with pytest.raises(InvalidTxnState):
        send(log, 1, 1, transactional=False)
    end(log, 1, commit=True, epoch=3, coordinator_epoch=5)
    with pytest.raises(InvalidProducerEpoch):
        end(log, 1, commit=True, epoch=2)
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, 1, commit=True, epoch=3, coordinator_epoch=4)


@pytest.mark.parametrize("clean", [True, False])
def test_open_and_aborted_transactions_survive(tmp_path: Path, clean: bool) -> None:
    config = LogConfig(segment_bytes=300)
    manager = open_manager(tmp_path, config)
    log = manager.create("t", 0, bytes(16))
    send(log, 1, 0)
    for sequence in range(4):
        send(log, 2, sequence)
    end(log, 2, commit=False)
    before = log.aborted_transactions(0, 100)
    assert before and len(log.segments) > 1
    manager.close() if clean else crash(manager)
    reopened = open_manager(tmp_path, config).get("t", 0)
    assert reopened is not None
    assert reopened.last_stable_offset == 0
    assert reopened.aborted_transactions(0, 100) == before
    end(reopened, 1, commit=True)
    assert reopened.last_stable_offset == reopened.log_end_offset == 7


def test_truncation_takes_aborts_back(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    send(log, 1, 0)
    marker = end(log, 1, commit=False)
    assert log.truncate_to(marker)
    assert (log.last_stable_offset, log.aborted_transactions(0, 10)) == (0, [])
    end(log, 1, commit=False)
    assert len(log.aborted_transactions(0, 10)) == 1


@pytest.mark.parametrize("anew", ["rolled", "begun anew", "made by the load"])
def test_a_new_segment_has_no_aborts_of_one_whose_removal_a_crash_cut_short(tmp_path: Path, anew: str) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    send(log, 1, 0, transactional=False)
    log.roll(START_MS)
    send(log, 2, 0)
    end(log, 2, commit=False)
    assert log.flushed_now(3)
    log.flush()
    log.dir.flusher.wait()
    left = {path: path.read_bytes() for path in (tmp_path / "t-0").glob(f"{1:020d}.*") if path.suffix != ".log"}
    assert {path.suffix for path in left} >= {".index", ".timeindex", ".txnindex"}
    log.truncate_to(1)
    crash(manager)
    for path, data in left.items():
        path.write_bytes(data)
    if anew == "made by the load":
        (tmp_path / "t-0" / f"{0:020d}.log").unlink()
        (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    if anew == "begun anew":
        log.truncate_fully_and_start_at(1)
    elif anew == "rolled":
        log.roll(START_MS)
    assert log.active_segment.base_offset == 1
    send(log, 3, 0, transactional=False)
    send(log, 2, 0)
    end(log, 2, commit=True)
    assert (log.aborted_transactions(0, 4), log.last_stable_offset) == ([], 4)
    manager.close()
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    assert (log.aborted_transactions(0, 4), log.last_stable_offset, log.log_end_offset) == ([], 4, 4)


@pytest.mark.parametrize("stop", ["none", "clean", "crash"])
def test_the_recovery_point_passes_only_aborts_that_are_on_disk(tmp_path: Path, stop: str) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files=files)
    log = manager.create("t", 0, bytes(16))
    send(log, 1, 0)
    log.flush()
    manager.flusher.wait()
    end(log, 1, commit=False)
    path = str(tmp_path / "t-0" / f"{0:020d}.txnindex")
    assert path not in files.synced
    if stop == "clean":
        manager.close()
    elif stop == "crash":  # recovery makes the entry again: that one has to be synced too
        crash(manager)
        manager = open_manager(tmp_path, files=files)
        log = manager.logs["t", 0]
        assert log.recovery_point < log.log_end_offset
        assert path not in files.synced
    if stop != "clean":
        log.flush()
        manager.flusher.wait()
    assert log.recovery_point == log.log_end_offset == 2
    assert files.synced[path] == 34


def test_a_producer_that_is_not_known_starts_at_0_under_version_2(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))

    def append(sequence: int, version: int, producer_id: int) -> int:
        batch = one_batch([b"v"], producer_id=producer_id, epoch=0, sequence=sequence, transactional=True)
        return log.append(batch, leader_epoch=0, now_ms=START_MS, transaction_version=version).base_offset

    with pytest.raises(OutOfOrderSequenceNumber, match="expected sequence 0"):
        append(5, 2, producer_id=1)
    assert append(5, 1, producer_id=1) == 0
    assert append(0, 2, producer_id=2) == 1
    assert append(1, 2, producer_id=2) == 2


def test_under_version_2_a_marker_has_an_epoch_above_its_records(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))

    def mark(epoch: int) -> int:
        return log.append_transaction_marker(
            producer_id=1,
            producer_epoch=epoch,
            coordinator_epoch=0,
            commit=True,
            leader_epoch=0,
            now_ms=START_MS,
            transaction_version=2,
        ).base_offset

    send(log, 1, 0)
    with pytest.raises(InvalidProducerEpoch, match="in the transaction that is open now"):
        mark(0)
    assert log.last_stable_offset == 0
    assert mark(1) == 1
    assert mark(1) == 2, "a coordinator that has been restarted writes it again"
    assert log.last_stable_offset == 3


def test_the_stable_offset_is_never_below_the_start_of_the_log(tmp_path: Path) -> None:
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    send(log, 1, 0)
    for sequence in range(5):
        send(log, 2, sequence, transactional=False)
    seen: list[int] = []
    log.on_advance(lambda moved: seen.append(moved.last_stable_offset))
    assert log.last_stable_offset == 0
    log.delete_records_before(4)
    assert (log.log_start_offset, log.last_stable_offset) == (4, 4)
    assert seen == [4], "readers that wait for the stable offset are told"
    assert log.read(4, 1000, upper_offset=log.last_stable_offset).size == 0, "latest is an offset that can be fetched"
    log.delete_records_before(-1)
    assert (log.log_start_offset, log.last_stable_offset, log.high_watermark) == (6, 6, 6)
    send(log, 2, 5, transactional=False)
    assert (log.last_stable_offset, log.high_watermark) == (6, 7), "the transaction is open still"
    manager.close()
    reopened = open_manager(tmp_path).logs["t", 0]
    assert (reopened.log_start_offset, reopened.last_stable_offset) == (6, 6)
    end(reopened, 1, commit=False)
    assert reopened.last_stable_offset == reopened.high_watermark == 8


def test_retention_takes_the_stable_offset_along(tmp_path: Path) -> None:
    log = open_manager(tmp_path, LogConfig(segment_bytes=200, retention_bytes=200)).create("t", 0, bytes(16))
    send(log, 1, 0)
    for sequence in range(10):
        send(log, 2, sequence, transactional=False)
    assert apply_retention(log, START_MS) > 0
    assert 0 < log.log_start_offset == log.last_stable_offset < log.high_watermark


def test_a_marker_that_is_cut_off_leaves_its_transaction_open(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    for producer_id in (1, 2):
        send(log, producer_id, 0)
    marker = end(log, 1, commit=True)
    end(log, 2, commit=True)
    assert log.last_stable_offset == 4
    assert log.truncate_to(marker)
    assert (log.last_stable_offset, log.high_watermark) == (0, 2)


def test_a_log_that_begins_anew_knows_no_transaction(tmp_path: Path) -> None:
    log = open_manager(tmp_path).create("t", 0, bytes(16))
    send(log, 1, 0)
    log.flush()  # writes a snapshot with the open transaction
    log.truncate_fully_and_start_at(50)
    send(log, 2, 0, transactional=False)
    assert (log.last_stable_offset, len(log.producers)) == (51, 1)


def test_a_slice_is_told_its_own_aborted_transactions_and_no_later_ones(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_manager(tmp_path, LogConfig(segment_bytes=1000, index_interval_bytes=0), files=files).create(
        "t", 0, bytes(16)
    )
    held = 5000  # is aborted last of all, though it began before the others
    send(log, held, 0)
    for producer_id in range(1, 101):
        send(log, producer_id, 0)
        end(log, producer_id, commit=False)
    end(log, held, commit=False)
    assert len(log.segments) > 10
    assert log.last_stable_offset == log.log_end_offset
    for offset in (0, 7, 100, 150, 201):
        piece = log.read(offset, 300, upper_offset=log.last_stable_offset)
        last = max(record.offset for record in records_of(piece))
        upper = log.upper_offset_of(piece)
        assert last < upper <= last + 2, "as near as the index tells"
        told = {entry.producer_id for entry in log.aborted_transactions(offset, upper)}
        inside = {producer for producer in range(1, 101) if 2 * producer - 1 < upper and 2 * producer >= offset}
        assert told == inside | {held}


def test_later_segments_are_asked_only_while_they_may_hold_more(tmp_path: Path) -> None:
    files = FaultyFiles()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=0)
    log = open_manager(tmp_path, config, files=files).create("t", 0, bytes(16))
    for producer_id in range(100):
        send(log, producer_id, 0)
        end(log, producer_id, commit=False)
    assert len(log.segments) > 10
    log.aborted_transactions(0, log.last_stable_offset)  # what was kept in memory is written
    for offset in (0, 50, 100):
        opened = files.calls["open"]
        told = {entry.producer_id for entry in log.aborted_transactions(offset, offset + 1)}
        assert told == {offset // 2}
        assert files.calls["open"] - opened <= 2, "this segment's file, or the next one's too where it ends between"


def test_no_index_is_opened_where_nothing_was_aborted(tmp_path: Path) -> None:
    files = FaultyFiles()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=0)
    log = open_manager(tmp_path, config, files=files).create("t", 0, bytes(16))
    for sequence in range(200):
        send(log, 1, sequence, transactional=False)
    assert len(log.segments) > 10
    assert log.aborted_transactions(0, log.last_stable_offset) == []
    opened = files.calls["open"]
    assert log.aborted_transactions(0, log.last_stable_offset) == []
    assert files.calls["open"] == opened
    send(log, 2, 0)
    end(log, 2, commit=False)
    assert [entry.producer_id for entry in log.aborted_transactions(0, log.last_stable_offset)] == [2]
    assert files.calls["open"] == opened + 2, "the file was written, and read again"


def test_an_index_of_aborts_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    log = open_manager(tmp_path, files=files).create("t", 0, bytes(16))
    for producer_id in (1, 2):
        send(log, producer_id, 0)
        end(log, producer_id, commit=False)
    path = tmp_path / "t-0" / f"{0:020d}.txnindex"
    data = bytearray(path.read_bytes())
    data[34 + 1] = 9
    path.write_bytes(data)
    assert [entry.producer_id for entry in log.aborted_transactions(0, 4)] == [1, 2]
    assert (
        f"{path.name} is damaged, it is made again from the segment: at byte 34, the entry has version 9" in caplog.text
    )
    path.write_bytes(data)  # again so soon
    with pytest.raises(CorruptMessage, match=r"txnindex: at byte 34: the entry has version 9, expected 0"):
        log.aborted_transactions(0, 4)
    files.plan(Fault("open", errno.EIO, ".txnindex"))
    with pytest.raises(KafkaStorageError, match="reading the transaction index failed"):
        log.aborted_transactions(0, 4)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("what", ["checksum", "length"])
@pytest.mark.parametrize("place", ["first", "marker", "last"])
@pytest.mark.parametrize("index", ["whole", "torn"])
def test_any_batch_may_be_damaged_beside_the_index_of_aborts(
    tmp_path: Path, clean: bool, what: str, place: str, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A log is opened with what is left, and says what is not; where an abort is still to be read, it is told."""
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    places = {}
    for place_of, producer_id in (("first", 1), ("marker", 2), ("last", 3)):
        if place_of != "marker":
            places[place_of] = log.size_bytes
        send(log, producer_id, 0)
        if place_of == "marker":
            places[place_of] = log.size_bytes
        end(log, producer_id, commit=False)
    path = tmp_path / "t-0" / f"{0:020d}"
    manager.close() if clean else crash(manager)
    for snapshot in tmp_path.glob("t-0/*.snapshot"):
        snapshot.unlink()
    raw = bytearray(path.with_suffix(".log").read_bytes())
    raw[places[place] + (20 if what == "checksum" else 8)] ^= 0x40
    path.with_suffix(".log").write_bytes(raw)
    if index == "torn":
        with open(path.with_suffix(".txnindex"), "r+b") as file:
            file.truncate(50)
    reopened = open_manager(tmp_path)
    assert reopened.dirs[0].offline is None
    log = reopened.logs["t", 0]
    if not clean:
        assert log.log_end_offset == {"first": 0, "marker": 3, "last": 4}[place]
    elif what == "checksum":
        assert log.log_end_offset == 6
        told = {txn.producer_id for txn in log.aborted_transactions(0, 6)}
        assert told >= ({1, 2, 3} if index == "whole" else {1, 2, 3} - {{"first": 1, "marker": 2, "last": 3}[place]})
    assert not (clean and index == "torn" and what == "checksum") or str(path.with_suffix(".log")) in caplog.text


@pytest.mark.parametrize("clean", [False, True])
def test_a_marker_that_says_nothing_cuts_nothing_off(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right, so that another program wrote it: what follows is kept, and its transaction stays open."""
    manager = open_manager(tmp_path)
    log = manager.create("t", 0, bytes(16))
    send(log, 1, 0)
    at = log.size_bytes
    end(log, 1, commit=True)
    size = log.size_bytes - at
    send(log, 2, 0, transactional=False)
    manager.close() if clean else crash(manager)
    for snapshot in tmp_path.glob("t-0/*.snapshot"):
        snapshot.unlink()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[at + 61 + 5] = 0xFF  # the version of the control record's key
    raw[at + 17 : at + 21] = struct.pack(">I", crc32c(raw[at + 21 : at + size]))
    path.write_bytes(raw)
    log = open_manager(tmp_path).logs["t", 0]
    assert (log.last_stable_offset, log.log_end_offset) == (0, 3)
    assert "the control record at offset 1 cannot be read" in caplog.text


@pytest.mark.parametrize("others", [0, 40])
def test_an_abort_that_has_no_room_until_the_stop_is_found_by_the_next_start(tmp_path: Path, others: int) -> None:
    """However many logs there are: many are synced at once, which says nothing of what was not written."""
    files = FaultyFiles()
    manager = open_manager(tmp_path, LogConfig(index_interval_bytes=100), files=files)
    log = manager.create("t", 0, bytes(16))
    for number in range(1, others + 1):
        manager.create("t", number, bytes(16)).append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    send(log, 5, 0)
    end(log, 5, commit=False)
    send(log, 5, 1)
    files.plan(Fault("write", errno.ENOSPC, ".txnindex"))
    end(log, 5, commit=False)
    for _ in range(5):  # of what lies far below the recovery point nothing is read
        log.append(one_batch([b"v"]), leader_epoch=0, now_ms=START_MS)
    assert len(log.aborted_transactions(0, 4)) == 2
    assert not manager.close()
    files.heal()
    again = open_manager(tmp_path, files=files)
    found = again.get("t", 0)
    assert found is not None and len(found.aborted_transactions(0, 4)) == 2
    assert again.close()
