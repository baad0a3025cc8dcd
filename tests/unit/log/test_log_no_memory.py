"""An append that fails inside, at each of its steps in turn: the log has all of what it was given or nothing of it, what is appended next
lies where its offset says, and a start after a crash finds the same.

A step is an allocation, of the interpreter or of what is native.
"""

from __future__ import annotations

import os
import select
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path

import pytest
from failing_allocations import AllocationsFail
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.files import READ, FileHandle, Files
from fastq_broker.log.flusher import wait_readable
from fastq_broker.log.native_flusher import NativeFlusher
from log_support import START_MS, crash, one_batch, open_manager

from fastq._native.records import CONTROL_ABORT, build_transaction_marker, iter_headers, stamp
from fastq.errors import KafkaStorageError

PRODUCER = 7


def fails(call: Callable[[], object], at: int, count: int = 1) -> bool:
    """Whether a call ends with an error where `count` allocations fail from its number `at` on, counted from 1 (0: none does)."""
    try:
        with AllocationsFail(at, count) if at else nullcontext():
            call()
    except (MemoryError, KafkaStorageError):
        return True
    return False


def of_producer(sequence: int, *, transactional: bool = False) -> bytearray:
    return one_batch([b"p" * 50] * 2, producer_id=PRODUCER, epoch=0, sequence=sequence, transactional=transactional)


def write(log: PartitionLog, batch: bytearray, *, epoch: int = 2) -> None:
    log.append(batch, leader_epoch=epoch, now_ms=START_MS, transaction_version=1)


def end_transaction(log: PartitionLog, *, commit: bool) -> None:
    log.append_transaction_marker(
        producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, commit=commit, leader_epoch=2, now_ms=START_MS
    )


def replicated() -> bytes:
    """What a leader has: a transaction that is aborted, an idempotent batch and a plain one, each of an epoch of its own."""
    marker = build_transaction_marker(
        CONTROL_ABORT, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS
    )
    data, offset = bytearray(), 6
    for epoch, batch in enumerate([of_producer(2, transactional=True), marker, of_producer(4), one_batch([b"r"])], 2):
        stamp(batch, 0, offset, epoch)
        offset += next(header for _, header in iter_headers(batch)).last_offset_delta + 1
        data += batch
    return bytes(data)


def replicate(log: PartitionLog) -> None:
    log.append_as_follower(replicated(), now_ms=START_MS)


CALLS: dict[str, Callable[[PartitionLog], object]] = {
    "plain": lambda log: write(log, one_batch([b"a", b"b"])),
    "idempotent": lambda log: write(log, of_producer(2)),
    "transactional": lambda log: write(log, of_producer(2, transactional=True)),
    "commit": lambda log: end_transaction(log, commit=True),
    "abort": lambda log: end_transaction(log, commit=False),
    "follower": replicate,
}
ENDS = {"plain": 2, "idempotent": 2, "transactional": 2, "commit": 1, "abort": 1, "follower": 6}
"""How many offsets each takes, behind the 6 that there are."""


def content(log: PartitionLog) -> bytes:
    found, at = bytearray(), 0
    while at < log.log_end_offset:
        data = log.read(at, 1 << 20).read()
        at = max(header.next_offset for _, header in iter_headers(data, strict=True))
        found += data
    return bytes(found)


def state(log: PartitionLog) -> tuple[object, ...]:
    """What must be the same however the log came by it."""
    producer = log.producers.get(PRODUCER)
    assert producer is not None
    aborted = [(one.producer_id, one.first_offset, one.last_offset) for one in log.aborted_transactions(0, 1 << 30)]
    return (
        content(log),
        log.log_end_offset,
        [log.epoch_end_offset(epoch) for epoch in range(8)],
        (producer.next_sequence, producer.txn_first_offset),
        aborted,
        log.last_stable_offset,
        sum(os.stat(segment.log.path).st_size for segment in log.segments),
    )


def begin(manager: LogManager, *, in_transaction: bool) -> PartitionLog:
    log = manager.create("t", 0, bytes(16))
    for batch in (one_batch([b"f"] * 2), of_producer(0, transactional=in_transaction), one_batch([b"f"] * 2)):
        write(log, batch, epoch=1)
    return log


def go_on(log: PartitionLog, kind: str, end: int) -> None:
    """Once there is memory again, what a client, or a follower, does."""
    if kind == "follower":
        data = replicated()
        rest = next((at for at, header in iter_headers(data) if header.base_offset == log.log_end_offset), len(data))
        log.append_as_follower(data[rest:], now_ms=START_MS)
    elif log.log_end_offset < end or kind in ("idempotent", "transactional"):  # these are known when they come again
        CALLS[kind](log)
    assert log.log_end_offset == end


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test run in a process of its own, in which no other thread is refused memory, and with which goes what was not given back."""

    @wraps(test)
    def run(**given: object) -> None:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                test(**given)
            except BaseException:
                os.write(writer, traceback.format_exc().encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as told:
            problem = told.read().decode()
        _, status = os.waitpid(child, 0)
        assert (status, problem) == (0, ""), problem

    return run


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("kind", CALLS)
@alone
def test_an_append_that_fails_inside_is_there_or_is_not(tmp_path: Path, kind: str, rolls: bool) -> None:
    in_transaction = kind in ("transactional", "commit", "abort")
    config, reference, steps, quiet = LogConfig(index_interval_bytes=1), None, 0, 0
    for step in range(10_000):  # at 0 nothing fails
        directory = tmp_path / str(step)
        directory.mkdir()
        manager = open_manager(directory, config)
        log = begin(manager, in_transaction=in_transaction)
        if rolls:
            log.apply_config(replace(config, segment_bytes=log.size_bytes))
        before = content(log)
        failed = fails(partial(CALLS[kind], log), step)
        if reference is None:
            assert log.log_end_offset > 6 and (len(log.segments) > 1) == rolls
            reference = content(log)
        left = content(log)
        assert left.startswith(before) and reference.startswith(left), step
        assert log.dir.offline is None, step
        go_on(log, kind, 6 + ENDS[kind])
        assert content(log) == reference, step
        write(log, one_batch([b"next"]), epoch=6)
        known = state(log)
        crash(manager)
        manager = open_manager(directory, config)
        log = manager.create("t", 0, bytes(16))
        assert state(log) == known, step
        crash(manager)
        steps += failed
        quiet = 0 if failed else quiet + 1
        if quiet > 20:  # some do without what they were refused
            assert steps > 5
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("kind", CALLS)
@alone
def test_an_append_for_which_memory_stays_short_is_there_or_is_not(tmp_path: Path, kind: str) -> None:
    """What it has written cannot be taken back then, nor can be said what is wrong: nothing goes behind it before the next start."""
    config, reference, offline, quiet = LogConfig(index_interval_bytes=1), None, 0, 0
    for step in range(10_000):
        directory = tmp_path / str(step)
        directory.mkdir()
        manager = open_manager(directory, config)
        log = begin(manager, in_transaction=kind in ("transactional", "commit", "abort"))
        before = content(log)
        failed = fails(partial(CALLS[kind], log), step, 40)
        reference = reference or content(log)
        if log.dir.offline is not None:
            offline += 1
            manager.tick()
            assert manager.offline_dirs == {log.dir.path: log.dir.offline}, step
            with pytest.raises(KafkaStorageError):
                write(log, one_batch([b"next"]), epoch=6)
            manager.close()
            manager = open_manager(directory, config)
            log = manager.create("t", 0, bytes(16))
        left = content(log)
        assert left.startswith(before) and reference.startswith(left), step
        go_on(log, kind, 6 + ENDS[kind])
        assert content(log) == reference, step
        write(log, one_batch([b"next"]), epoch=6)
        known = state(log)
        crash(manager)
        manager = open_manager(directory, config)
        assert state(manager.create("t", 0, bytes(16))) == known, step
        crash(manager)
        quiet = 0 if failed else quiet + 1
        if quiet > 20:
            assert offline
            return
    raise AssertionError("it never ends")


def teller(told: list[int], number: int) -> Callable[[OSError | None], None]:
    """Whoever waits for a job, in the memory that there is."""

    def tell(error: OSError | None) -> None:
        told[number] += error is None

    return tell


@pytest.mark.parametrize("count", [1, 3, 200])
@alone
def test_every_job_that_has_ended_is_told_of_once_whatever_memory_there_was_to_hear_of_it(
    tmp_path: Path, count: int
) -> None:
    """Those of other logs are among them: what is on disk would never count as such."""
    flusher, directory = NativeFlusher(1), FileHandle(Files(), str(tmp_path), READ)
    short, quiet = 0, 0
    for step in range(10_000):
        told = [0] * 100
        for number in range(len(told)):
            flusher.submit([directory], teller(told, number))
        while flusher._threads.ended() < len(told):
            wait_readable(flusher.fileno())
        flusher._threads.again()
        failed = fails(flusher.drain, step, count)
        assert max(told) <= 1, step
        left = not all(told)
        if left:
            short += 1
            ready = select.poll()
            ready.register(flusher.fileno(), select.POLLIN)
            assert ready.poll(0), step
            flusher.drain()
        assert told == [1] * len(told), step
        quiet = 0 if failed or left else quiet + 1
        if quiet > 20:
            assert short > 5
            flusher.close()
            return
    raise AssertionError("it never ends")
