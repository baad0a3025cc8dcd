"""The slow, obvious cleaner: batches as lists of records, the latest offsets in a dict, transactions known by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fastq_broker.log import CleanerConfig, LogCleaner, LogManager, PartitionLog
from fastq_broker.log.cleaner import Failure, parse_answer
from fastq_broker.log.cleaner_job import CleaningJob, CleaningResult
from fastq_broker.log.cleaner_worker import answer
from fastq_broker.log.files import Files

from fastq._native.records import decode_records, iter_headers


class DirectWorker:
    """Does the round at once, in this process, through the worker's own entrance."""

    def __init__(self, job: CleaningJob, files: Files | None = None) -> None:
        import os

        self.job = job
        self._outcome = parse_answer(answer(job.encode(), os.getppid(), files).encode(), 0)

    def poll(self) -> CleaningResult | Failure | None:
        return self._outcome

    def close(self) -> None:
        pass


def cleaner_of(manager: LogManager, **settings: object) -> LogCleaner:
    return LogCleaner(
        manager,
        CleanerConfig(backoff_ms=0, **settings),  # type: ignore[arg-type]
        start_worker=lambda job: DirectWorker(job, manager.files),
    )


def run(cleaner: LogCleaner, now_ms: int) -> int:
    """Run rounds until there is nothing left to do; answers how many."""
    before = cleaner.rounds_done
    idle = 0
    for _ in range(200):
        cleaner.tick(now_ms)
        cleaner.manager.flusher.drain()
        idle = 0 if cleaner.busy else idle + 1
        if idle == 2:
            break
    assert not cleaner.busy
    return cleaner.rounds_done - before


@dataclass(eq=False)
class Transaction:
    """A transaction of the model, by identity."""

    producer_id: int
    aborted: bool | None = None


@dataclass
class Row:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


@dataclass
class Batch:
    """A stored batch as the model knows it."""

    base_offset: int
    last_offset: int
    producer_id: int
    epoch: int
    base_sequence: int
    control: bool
    codec: int
    rows: list[Row]
    horizon_ms: int | None = None
    transaction: Transaction | None = None

    def seen(self) -> tuple[object, ...]:
        """What can be compared with a stored batch. An emptied one has no codec."""
        rows = [(r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for r in self.rows]
        codec = self.codec if rows else 0
        transactional = self.transaction is not None
        fields = (self.base_offset, self.last_offset, self.producer_id, self.epoch, self.base_sequence)
        return (*fields, self.control, transactional, codec, self.horizon_ms, rows)


def stored_batches(log: PartitionLog) -> list[Batch]:
    """All batches of a log, from its files; the transaction of those that have one is a new one, to compare with."""
    found = []
    for segment in log.segments:
        raw = log.files.read_file(segment.log.path)
        for position, header in iter_headers(raw, strict=True):
            rows = [Row(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(raw, position)]
            found.append(
                Batch(
                    header.base_offset,
                    header.last_offset,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.is_control,
                    int(header.codec),
                    rows,
                    header.base_timestamp if header.has_delete_horizon else None,
                    Transaction(header.producer_id) if header.is_transactional else None,
                )
            )
    return found


def model_clean(
    batches: list[Batch],
    *,
    job: CleaningJob,
    end_offset: int,
) -> list[Batch]:
    """What a round leaves, given how far its map had reached."""
    latest: dict[bytes, int] = {}
    for batch in batches:
        if batch.control or (batch.transaction is not None and batch.transaction.aborted):
            continue
        for row in batch.rows:
            if row.key is not None and job.dirty_offset <= row.offset < end_offset:
                latest[row.key] = row.offset
    # Segments are cleaned whole.
    cleaned_to = min((base for base, _ in job.segments if base >= end_offset), default=job.upper_offset)
    last_offsets = {producer_id: (last, epoch) for producer_id, last, epoch in job.last_offsets}
    seen: set[Transaction] = set()
    left = []
    for batch in batches:
        if batch.base_offset >= cleaned_to:
            left.append(batch)
            continue
        after = _clean_batch(batch, latest, seen, job, end_offset)
        last, epoch = last_offsets.get(batch.producer_id, (-1, -1))
        is_last = batch.producer_id in last_offsets and (
            last == batch.last_offset if last >= 0 else batch.control and epoch == batch.epoch
        )
        if after.rows:
            left.append(after)
        elif is_last or batch.last_offset + 1 == job.upper_offset:
            left.append(replace(after, horizon_ms=None))
    return left


def _clean_batch(
    batch: Batch, latest: dict[bytes, int], seen: set[Transaction], job: CleaningJob, end_offset: int
) -> Batch:
    passed = batch.horizon_ms is not None and batch.horizon_ms <= job.now_ms
    horizon = job.now_ms + job.delete_retention_ms
    if batch.control:
        assert batch.transaction is not None
        if batch.transaction in seen or not batch.rows:
            return batch
        if passed:
            return replace(batch, rows=[])
        return replace(batch, horizon_ms=horizon if batch.horizon_ms is None else batch.horizon_ms)
    if batch.transaction is not None:
        seen.add(batch.transaction)
        if batch.transaction.aborted:
            return replace(batch, rows=[])
    rows = []
    for row in batch.rows:
        if row.offset < end_offset and (
            row.key is None or row.offset < latest.get(row.key, -1) or (row.value is None and passed)
        ):
            continue
        rows.append(row)
    tombstones = any(row.value is None for row in rows)
    return replace(
        batch, rows=rows, horizon_ms=horizon if tombstones and batch.horizon_ms is None else batch.horizon_ms
    )


def live_values(batches: list[Batch]) -> dict[bytes, bytes]:
    """What a reader of the committed records ends up with: the latest value of each key that was not deleted."""
    values: dict[bytes, bytes] = {}
    for batch in batches:
        if batch.control or (batch.transaction is not None and batch.transaction.aborted is not False):
            continue
        for row in batch.rows:
            if row.key is None:
                continue
            values.pop(row.key, None)
            if row.value is not None:
                values[row.key] = row.value
    return values
