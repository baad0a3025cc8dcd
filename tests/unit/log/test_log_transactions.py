"""The transaction bits: last stable offset, markers, the index of aborted transactions."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, PartitionLog
from fastq_broker.log.faults import FaultyFiles
from log_support import START_MS, crash, one_batch, open_manager

from fastq.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber, TransactionCoordinatorFenced


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
