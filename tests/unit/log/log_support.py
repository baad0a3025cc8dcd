"""What the log's tests share: a clock that stands still, managers without a lock or threads, batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from fastq_broker.log import LogConfig, LogManager, LogSlice, PartitionLog, TimestampOffset
from fastq_broker.log.durability import ROLL_FLUSH_DELAY_MS
from fastq_broker.log.flusher import ManualFlusher
from faulty_files import FaultyFiles

from fastq._native.records import DecodedRecord, build_batch, decode_records, iter_headers

START_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


class StandingClock:
    """Milliseconds that move only when told to."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        self.now_ms += ms
        return self.now_ms


def open_manager(
    directory: Path | list[Path],
    config: LogConfig | None = None,
    *,
    clock: StandingClock | None = None,
    files: FaultyFiles | None = None,
    **settings: object,
) -> LogManager:
    """A started manager whose flushes happen when its flusher is drained; timers count on `clock` too, unless `monotonic_ms` is given."""
    files = files or FaultyFiles()
    manager = LogManager(
        directory if isinstance(directory, list) else [directory],
        default_config=config or LogConfig(),
        clock=clock or StandingClock(),
        files=files,
        flusher=ManualFlusher(files),
        randomness=random.Random(7),
        **settings,  # type: ignore[arg-type]
    )
    manager.start()
    return manager


def reconfigure(manager: LogManager, topic: str, config: LogConfig) -> None:
    """Bring other settings of a topic into force, as a broker does: log by log."""
    for (name, _), log in manager.logs.items():
        if name == topic:
            log.apply_config(config)


def clock_of(manager: LogManager) -> StandingClock:
    """The clock of a manager that `open_manager` has made: of its timers too."""
    assert isinstance(manager.clock, StandingClock)
    return manager.clock


def flush_rolled(log: PartitionLog) -> None:
    """Do the flushes that rolls have asked for, which a broker begins some seconds later."""
    assert isinstance(log.clock, StandingClock)
    log.clock.advance(ROLL_FLUSH_DELAY_MS)
    log.dir.tick()
    log.clock.advance(-ROLL_FLUSH_DELAY_MS)
    log.dir.flusher.wait()


def crash(manager: LogManager) -> None:
    """End a manager as `kill -9` does: what was written stays, its descriptors are closed, nothing else is done."""
    manager.budget.close()
    manager.release_locks()


def one_batch(
    values: list[bytes],
    *,
    timestamp_ms: int = START_MS,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    transactional: bool = False,
) -> bytearray:
    return build_batch(
        [(timestamp_ms + number, b"key", value) for number, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        codec=codec,
        transactional=transactional,
    )


def records_of(data: LogSlice | bytes) -> list[DecodedRecord]:
    """All records of the whole batches in some bytes."""
    raw = data.read() if isinstance(data, LogSlice) else data
    found: list[DecodedRecord] = []
    for position, _ in iter_headers(raw, strict=True):
        found += decode_records(raw, position)
    return found


def found_at(log: PartitionLog, timestamp_ms: int) -> TimestampOffset | None:
    """The first record at or after a time, as ListOffsets looks for it."""
    since: int | None = 0
    while since is not None:
        query = log.timestamp_query(timestamp_ms, since)
        found = query.run()
        if found is not None:
            return found
        since = query.followed
    return None


class Loop:
    """An event loop as far as what a thread does for a log has need of one."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        self.calls.append(lambda: call(*arguments))

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Later(Executor):
    """A thread that is at work only when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: work(*args, **options)))
        return future

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for future, work in jobs:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
