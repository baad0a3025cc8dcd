"""A shortage amid a cut, or amid a compacted segment's swap: no directory goes offline, and the log is what it should be when it is touched
next, after a crash too."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.half_done import RETRY_MS_MAX
from faulty_files import Fault, FaultyFiles, Operation

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.errors import KafkaStorageError, NotLeaderOrFollower

START_MS = 1_700_000_000_000
OPERATIONS: list[Operation] = ["open", "write", "truncate", "rename", "unlink", "read", "list"]
PASSES_MAX = 60
WHOLE, BELOW = 40, 4


class Clock:
    """One that goes on when it is told to."""

    ms = START_MS

    def __call__(self) -> int:
        return self.ms


def opened(directory: Path, durability: str, clock: Clock) -> tuple[LogManager, PartitionLog, FaultyFiles]:
    files = FaultyFiles()
    config = LogConfig(segment_bytes=700, index_interval_bytes=100, durability=durability, file_delete_delay_ms=50)
    manager = LogManager([directory], default_config=config, files=files, flusher=ManualFlusher(files), clock=clock)
    manager.start()
    return manager, manager.create("t", 0, bytes(16)), files


def write(log: PartitionLog, count: int, epoch: int) -> None:
    for _ in range(count):
        number = log.log_end_offset
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number} if number % 3 == 0 else {}
        batch = build_batch([(START_MS, None, b"%d-%d" % (epoch, number) + b"v" * 30)], **producer)
        log.append(batch, leader_epoch=epoch, now_ms=START_MS, from_client=False)


def content(log: PartitionLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        raw = log.read(offset, 1 << 20).read()
        for position, header in iter_headers(raw, strict=True):
            found.append(decode_records(raw, position)[0].value)
            offset = header.next_offset
    return found


def state(log: PartitionLog) -> tuple[object, ...]:
    producer = log.producers.get(7)
    return (
        content(log),
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        [log.epoch_end_offset(epoch) for epoch in range(8)],
        None if producer is None else producer.next_sequence,
    )


def cut(log: PartitionLog, at: int) -> None:
    if at > WHOLE:
        log.truncate_fully_and_start_at(at)
    else:
        log.truncate_to(at)


@pytest.mark.parametrize(
    ("code", "repeat", "durability", "shared"),
    [
        (errno.EMFILE, True, "page-cache", True),
        (errno.ENOMEM, False, "fsync", False),
        pytest.param(errno.EMFILE, True, "fsync", False, marks=pytest.mark.soak),
        pytest.param(errno.ENOMEM, False, "page-cache", True, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("at", [7, WHOLE - 1, WHOLE + 20, BELOW])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_cut_that_a_shortage_interrupts_is_finished(
    tmp_path: Path, code: int, operation: Operation, repeat: bool, at: int, durability: str, shared: bool
) -> None:
    expected: tuple[object, ...] | None = None
    interrupted = 0
    for passes in range(PASSES_MAX):
        directory = tmp_path / str(passes)
        directory.mkdir()
        clock = Clock()
        manager, log, files = opened(directory, durability, clock)
        log.share(shared)
        if at == BELOW:
            log.truncate_fully_and_start_at(BELOW + 5)
        for epoch in range(4):
            write(log, (WHOLE - log.log_end_offset) // (4 - epoch), epoch)
            if epoch < 3:
                log.flush()
                manager.flusher.wait()
        log.advance_high_watermark(WHOLE - 5)
        log.flush()
        told: list[object] = []
        cut_off: list[object] = []
        log.wait_durable(WHOLE - 2 if at == WHOLE - 1 else 5, told.append)
        log.wait_durable(WHOLE, cut_off.append)
        fault = files.plan(Fault(operation, code, "t-0", passes=passes - 1 if expected else 10_000, repeat=repeat))
        half_done = False
        try:
            cut(log, at)
        except KafkaStorageError:
            assert fault.struck and not manager.offline_dirs
            half_done = not log.loaded
            interrupted += half_done
            for _ in range(3):
                manager.tick()
                manager.flusher.wait()
                assert not manager.offline_dirs, passes
            files.heal()
            clock.ms += RETRY_MS_MAX
            if log.log_end_offset == WHOLE:  # nothing was changed
                cut(log, at)
        files.heal()
        manager.flusher.wait()
        found = state(log)
        expected = expected or found
        assert found == expected, passes
        write(log, 5, 5)
        log.flush()
        manager.tick()
        manager.flusher.wait()
        assert told == [None]
        (error,) = cut_off
        assert isinstance(error, NotLeaderOrFollower) or shared or at > WHOLE or not half_done, passes
        assert log.on_disk_offset == log.log_end_offset == at + 5
        known = state(log)
        assert not manager.offline_dirs
        manager.budget.close()
        manager.release_locks()
        manager, log, files = opened(directory, durability, clock)
        log.share(shared)
        log.advance_high_watermark(at + 5 if not shared else known[3])  # type: ignore[arg-type]
        assert state(log)[:3] == known[:3] and state(log)[4:] == known[4:], passes
        assert log.gap_offset is None
        manager.budget.close()
        manager.release_locks()
        shutil.rmtree(directory)
        if passes and not fault.struck:
            assert interrupted or operation != "rename" or at == WHOLE - 1
            return
    raise AssertionError("it never ends")
