"""Compaction against the slow, obvious cleaner: random logs of all codecs with transactions, tombstones and restarts, several rounds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from cleaner_support import Batch, DirectWorker, Row, Transaction, live_values, model_clean, stored_batches
from fastq_broker.log import CleanerConfig, LogCleaner, LogConfig, LogManager, PartitionLog
from fastq_broker.log.cleaner_job import CleaningJob
from fastq_broker.log.stored_batches import RecoveryReport, rebuild_indexes
from log_support import StandingClock, crash, flush_rolled, found_at, open_manager

from fastq._native.records import build_batch, decode_records, iter_headers
from fastq.errors import KafkaError

SEEDS = range(6)
STEPS = 260


class Player:
    """Appends random batches to a log and to a model, compacts both now and then, and compares them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = source = random.Random(seed)
        self.directory = directory
        self.clock = StandingClock()
        self.config = LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=source.choice([1500, 4000, 20_000]),
            index_interval_bytes=source.choice([0, 200, 4096]),
            segment_index_bytes=source.choice([120, 10_000]),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=source.choice([0, 50, 500]),
            message_timestamp_type=source.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            file_delete_delay_ms=0,
        )
        self.map_bytes = source.choice([24 * 6, 24 * 40, 1 << 20])
        self.batches: list[Batch] = []
        self.history: dict[int, Row] = {}
        self.open_transactions: dict[int, Transaction] = {}
        self.sequences: dict[int, int] = {}
        self.jobs: list[CleaningJob] = []
        self.rounds = 0
        self.open()
        self.log: PartitionLog = self.manager.create("t", 0, bytes(16), self.config)

    def open(self) -> None:
        self.manager: LogManager = open_manager(self.directory, self.config, clock=self.clock)
        config = CleanerConfig(
            backoff_ms=0, dedupe_buffer_bytes=self.map_bytes, dedupe_load_factor=self.random.choice([0.5, 1])
        )
        self.cleaner = LogCleaner(self.manager, config, start_worker=self.start_worker)

    def start_worker(self, job: CleaningJob) -> DirectWorker:
        self.jobs.append(job)
        return DirectWorker(job, self.manager.files)

    # -- operations

    def note(self, base_offset: int, transaction: Transaction | None) -> None:
        """Take over what the log has stored of the latest append."""
        flush_rolled(self.log)
        raw = self.log.read(base_offset, 1 << 20).read()
        for position, header in iter_headers(raw, strict=True):
            rows = [Row(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(raw, position)]
            batch = Batch(
                header.base_offset,
                header.last_offset,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.is_control,
                int(header.codec),
                rows,
                None,
                transaction,
            )
            self.batches.append(batch)
            self.history.update((row.offset, row) for row in rows)

    def rows(self) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
        source = self.random
        found = []
        for _ in range(source.choice([1, 1, 3, 40])):
            key = None if source.random() < 0.01 else b"key-%d" % source.randrange(25)
            value = None if source.random() < 0.15 else source.randbytes(source.randrange(30))
            headers = [("h", b"x"), ("null", None)] if source.random() < 0.1 else []
            found.append((self.clock() + source.randrange(-5, 5), key, value, headers))
        return found

    def append(self, producer_id: int, transaction: Transaction | None) -> None:
        rows = self.rows()
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        batch = build_batch(
            rows,
            codec=self.random.choice([0, 0, 1, 2, 3, 4]),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=transaction is not None,
        )
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(rows)
        now = self.clock()
        if any(key is None for _, key, _, _ in rows):  # from before the topic was compacted, when nobody asked for keys
            self.log.apply_config(replace(self.config, cleanup_policy=frozenset({"delete"})))
        result = self.log.append(batch, leader_epoch=0, now_ms=now, from_client=False)
        self.log.apply_config(self.config)
        self.note(result.base_offset, transaction)

    def do_append(self) -> None:
        self.append(self.random.choice([-1, -1, 1, 2, 3]), None)

    def do_transactional(self) -> None:
        producer_id = self.random.choice([11, 12, 13])
        transaction = self.open_transactions.setdefault(producer_id, Transaction(producer_id))
        self.append(producer_id, transaction)

    def do_end(self) -> None:
        if not self.open_transactions:
            return
        producer_id = self.random.choice(list(self.open_transactions))
        transaction = self.open_transactions.pop(producer_id)
        transaction.aborted = self.random.random() < 0.5
        result = self.log.append_transaction_marker(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=1,
            commit=not transaction.aborted,
            leader_epoch=0,
            now_ms=self.clock(),
        )
        self.note(result.base_offset, transaction)

    def do_roll(self) -> None:
        self.log.roll(self.clock())
        flush_rolled(self.log)

    def do_wait(self) -> None:
        self.clock.advance(self.random.choice([10, 200, 1000]))

    def do_restart(self) -> None:
        if self.random.random() < 0.5:
            self.cleaner.close()
            self.manager.close()
        else:
            self.manager.flusher.wait()
            self.manager.write_checkpoints(self.manager.dirs[0], wait=True)
            crash(self.manager)
        cleaned = self.log.cleaned_offset
        self.open()
        log = self.manager.get("t", 0)
        assert log is not None
        self.log = log
        assert log.cleaned_offset == cleaned

    def do_clean(self) -> None:
        """One round, and the same with the model."""
        self.manager.flusher.wait()
        expected_values = live_values(self.batches)
        before = len(self.jobs)
        self.cleaner.tick(self.clock())  # looks at the logs, and starts a round
        if len(self.jobs) == before:
            return
        while self.cleaner.busy:
            self.cleaner.tick(self.clock())
            if len(self.jobs) > before + 1:
                raise AssertionError("a second round began before the first had ended")
            self.manager.flusher.drain()
        assert not self.cleaner.uncleanable
        job, end_offset = self.jobs[-1], self.log.cleaned_offset
        assert job.dirty_offset < end_offset <= job.upper_offset
        self.batches = model_clean(self.batches, job=job, end_offset=end_offset)
        self.rounds += 1
        assert live_values(self.batches) == expected_values
        self.check()

    # -- comparisons

    def check(self) -> None:
        stored = stored_batches(self.log)
        assert [batch.seen() for batch in stored] == [batch.seen() for batch in self.batches]
        for batch in stored:
            for row in batch.rows:
                assert row == self.history[row.offset]
        self.check_aborted()
        self.check_reads()
        self.check_times()

    def check_aborted(self) -> None:
        """The transaction indexes tell exactly of the aborted transactions whose marker counts."""
        entries = self.log.aborted_transactions(0, self.log.log_end_offset)
        indexed = {(entry.producer_id, entry.last_offset) for entry in entries}
        for batch in self.batches:
            if not batch.control or batch.transaction is None or not batch.transaction.aborted:
                continue
            data = any(b.transaction is batch.transaction and not b.control for b in self.batches)
            if data:
                assert (batch.producer_id, batch.last_offset) in indexed

    def check_reads(self) -> None:
        """A read from any offset begins with the first batch that ends at or above it."""
        for _ in range(4):
            offset = self.random.randint(0, self.log.log_end_offset)
            raw = self.log.read(offset, 1 << 20).read()
            first = next((header.base_offset for _, header in iter_headers(raw)), None)
            expected = next((b.base_offset for b in self.batches if b.last_offset >= offset), None)
            assert first == expected

    def check_times(self) -> None:
        """Searches by time find what a walk finds, and the indexes are those that the batches make."""
        rows = [row for batch in self.batches for row in batch.rows]
        for _ in range(3):
            target = self.random.choice(rows).timestamp_ms if rows else 0
            found = found_at(self.log, target)
            expected = next((row.offset for row in rows if row.timestamp_ms >= target), None)
            assert (found.offset if found else None) == expected
        for segment in self.log.segments:
            if segment.base_offset >= self.log.cleaned_offset:
                break
            paths = segment.index.path, segment.time_index.path
            cleaned = [self.log.files.read_file(path) for path in paths]
            rebuild_indexes(self.log.files, segment, RecoveryReport())
            assert [self.log.files.read_file(path) for path in paths] == cleaned

    def play(self) -> None:
        operations = [
            (self.do_append, 12),
            (self.do_transactional, 6),
            (self.do_end, 4),
            (self.do_roll, 2),
            (self.do_wait, 3),
            (self.do_restart, 1),
            (self.do_clean, 3),
        ]
        choices, weights = zip(*operations, strict=True)
        for _ in range(STEPS):
            self.random.choices(choices, weights)[0]()
        self.finish()

    def finish(self) -> None:
        """End all transactions, let all horizons pass: what is left is one record a key, and nothing that was deleted."""
        while self.open_transactions:
            self.do_end()
        for _ in range(60):
            self.append(-1, None)
            self.do_roll()
            self.clock.advance(10_000)
            self.do_clean()
        assert self.rounds > 30


def play(directory: Path, seed: int) -> None:
    player = Player(directory, seed)
    try:
        player.play()
    except (AssertionError, KafkaError) as error:
        raise AssertionError(f"seed {seed}") from error
    player.cleaner.close()
    player.manager.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_compaction_leaves_what_the_obvious_one_leaves(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed)


@pytest.mark.soak
def test_many_logs_are_left_as_the_obvious_one_leaves_them(tmp_path: Path, soak: bool) -> None:
    for seed in range(100, 500 if soak else 120):
        play(tmp_path / str(seed), seed)
