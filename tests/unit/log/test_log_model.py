"""The log against a naive model in memory: random appends, transactions, reads, rolls, truncations, deletions, changes of settings,
shortages, crashes and restarts. After each step the offsets stand in their order, and nobody waits for more than the settings promise."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.config import UNLIMITED
from fastq_broker.log.retention import apply_retention
from fastq_broker.log.segment import LOG_SUFFIX
from faulty_files import Fault, FaultyFiles, Operation
from log_support import StandingClock, crash, found_at, one_batch, open_manager, reconfigure, records_of

from fastq.errors import KafkaError, KafkaStorageError, OffsetOutOfRange

STEPS = 150
SEEDS = range(12)
SHORT: list[Operation] = ["open", "write", "allocate", "allocate", "truncate", "unlink", "rename"]


@dataclass
class Transaction:
    """One of a model's: where its first record lies and where its marker, -1 while there is none."""

    producer_id: int
    first: int
    marker: int = -1
    aborted: bool = False


class Model:
    """A log as a list: (offset, value, timestamp) of each record, where each batch begins, and the transactions in it.

    The value of a marker is None: which bytes it has is the log's.
    """

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes | None, int]] = []
        self.transactions: list[Transaction] = []
        self.batches: list[int] = []
        self.start = 0
        self.end = 0

    def append(self, values: list[bytes] | list[None], timestamp: int) -> None:
        self.batches.append(self.end)
        for number, value in enumerate(values):
            self.records.append((self.end + number, value, timestamp + number))
        self.end += len(values)

    def truncate(self, offset: int) -> int:
        """Batches are removed whole: the one that holds `offset` goes too."""
        begin = max((b for b in self.batches if b <= offset), default=0)
        if begin != offset and any(record[0] >= offset for record in self.records):
            offset = begin
        self.records = [record for record in self.records if record[0] < offset]
        self.batches = [b for b in self.batches if b < offset]
        self.end = min(self.end, offset)
        self.start = min(self.start, self.end)
        self.transactions = [txn for txn in self.transactions if txn.first < offset]
        for txn in self.transactions:
            if txn.marker >= offset:
                txn.marker, txn.aborted = -1, False
        return offset

    def open_transaction(self, producer_id: int) -> Transaction | None:
        return next((txn for txn in self.transactions if txn.producer_id == producer_id and txn.marker < 0), None)

    def first_unstable(self, watermark: int) -> int | None:
        return min((txn.first for txn in self.transactions if txn.marker < 0 or txn.marker >= watermark), default=None)

    def readable(self, offset: int) -> list[tuple[int, bytes | None]]:
        begin = max((b for b in self.batches if b <= offset), default=offset)
        return [(record[0], record[1]) for record in self.records if record[0] >= begin]


class Player:
    """Plays random operations on a log and the model, and compares them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.clock = StandingClock()
        self.files = FaultyFiles()
        self.model = Model()
        self.config = LogConfig(
            segment_bytes=self.random.choice([2000, 6000, 50_000]),
            index_interval_bytes=self.random.choice([0, 150, 1000]),
            segment_index_bytes=self.random.choice([80, 10_000]),
            retention_bytes=self.random.choice([-1, 5000, 20_000]),
            retention_ms=-1,
            file_delete_delay_ms=1000,
            durability=self.random.choice(["page-cache", "fsync"]),
            max_message_bytes=2000,
            preallocate=self.random.random() < 0.3,
        )
        self.sequence = 0
        self.epoch = 0
        self.last_batch: tuple[list[bytes], int, int] | None = None
        self.producer_ids = iter(range(1000, 1_000_000))
        self.told: list[tuple[int, KafkaError | None]] = []  # who has heard of its append: the offset after it
        self.waiting: list[int] = []
        self.manager: LogManager = self.open()
        self.log: PartitionLog = self.manager.create("t", 0, bytes(16))

    def open(self) -> LogManager:
        return open_manager(self.directory, self.config, clock=self.clock, files=self.files)

    def reopen(self) -> None:
        self.manager = self.open()
        log = self.manager.get("t", 0)
        assert log is not None
        self.log = log

    def settle(self) -> None:
        self.manager.flusher.wait()

    # -- operations

    def do_append(self) -> None:
        values = [self.random.randbytes(self.random.randrange(120)) for _ in range(self.random.randint(1, 4))]
        timestamp = self.clock.advance(self.random.randrange(5))
        batch = one_batch(
            values,
            timestamp_ms=timestamp,
            producer_id=77,
            epoch=self.epoch,
            sequence=self.sequence,
            codec=self.random.choice([0, 0, 1, 4]),
        )
        result = self.log.append(batch, leader_epoch=self.random.choice([0, 0, 1]), now_ms=timestamp)
        assert (result.base_offset, result.duplicate) == (self.model.end, False)
        self.last_batch = (values, self.sequence, result.base_offset)
        self.sequence += len(values)
        self.model.append(values, timestamp)
        self.wait()

    def wait(self) -> None:
        end = self.model.end
        self.waiting.append(end)
        self.log.wait_durable(end, lambda error: self.told.append((end, error)))

    def do_short_append(self) -> None:
        """An append that lacks room, memory or descriptors at any of its steps: it is done, or has changed nothing."""
        fault = Fault(
            self.random.choice(SHORT),
            self.random.choice([errno.ENOSPC, errno.EMFILE, errno.ENOMEM]),
            passes=self.random.randrange(4),
            repeat=self.random.random() < 0.5,
            partial=self.random.choice([0, 9]),
        )
        if self.random.random() < 0.7:  # it begins a segment
            self.log.apply_config(replace(self.config, segment_bytes=max(2000, self.log.active_segment.size)))
        self.files.plan(fault)
        try:
            self.do_append()
        except KafkaStorageError:
            assert fault.struck
        self.files.heal()
        self.log.apply_config(self.config)
        self.tick()
        assert not self.manager.offline_dirs

    def do_transaction(self) -> None:
        """Begin a transaction, go on with one, or end one."""
        timestamp = self.clock.advance(self.random.randrange(5))
        open_now = [txn for txn in self.model.transactions if txn.marker < 0]
        if open_now and self.random.random() < 0.6:
            txn = self.random.choice(open_now)
            aborted = self.random.random() < 0.5
            self.log.append_transaction_marker(
                producer_id=txn.producer_id,
                producer_epoch=0,
                coordinator_epoch=1,
                commit=not aborted,
                leader_epoch=0,
                now_ms=timestamp,
            )
            # One whose first records retention took away, and a crash the snapshots, is not known any more.
            txn.marker, txn.aborted = self.model.end, aborted
            self.model.append([None], timestamp)
        else:
            producer_id = next(self.producer_ids)
            batch = one_batch(
                [b"t"], timestamp_ms=timestamp, producer_id=producer_id, epoch=0, sequence=0, transactional=True
            )
            self.log.append(batch, leader_epoch=0, now_ms=timestamp, transaction_version=1)
            self.model.transactions.append(Transaction(producer_id, self.model.end))
            self.model.append([b"t"], timestamp)
        self.wait()

    def do_change_settings(self) -> None:
        choose = self.random.choice
        self.config = replace(
            self.config,
            durability=choose(["page-cache", "fsync"]),
            flush_messages=choose([1, 3, UNLIMITED, UNLIMITED]),
            flush_ms=choose([0, 1000, UNLIMITED]),
            segment_bytes=choose([2000, 6000, 50_000]),
            segment_ms=choose([5, 1 << 40]),
            segment_index_bytes=choose([80, 10_000]),
            index_interval_bytes=choose([0, 150, 1000]),
            retention_bytes=choose([-1, 5000, 20_000]),
            preallocate=choose([False, False, True]),
        )
        reconfigure(self.manager, "t", self.config)

    def do_drain(self) -> None:
        self.manager.flusher.drain()

    def do_duplicate(self) -> None:
        if self.last_batch is None:
            return
        values, sequence, offset = self.last_batch
        batch = one_batch(values, timestamp_ms=self.clock(), producer_id=77, epoch=self.epoch, sequence=sequence)
        result = self.log.append(batch, leader_epoch=0, now_ms=self.clock())
        assert (result.base_offset, result.duplicate) == (offset, True)

    def do_read(self) -> None:
        self.settle()
        offset = self.random.randint(self.model.start, self.model.end)
        max_bytes = self.random.choice([1, 300, 3000, 1 << 20])
        upper = self.random.choice([None, self.random.randint(0, self.model.end)])
        got = records_of(self.log.read(offset, max_bytes, upper_offset=upper))
        expected = self.model.readable(offset)
        limit = self.model.end if upper is None else upper
        if offset >= limit:
            assert got == []
            return
        assert got, f"nothing read at {offset} of {self.model.start} to {self.model.end}"
        markers = {txn.marker for txn in self.model.transactions}
        values = [(record.offset, None if record.offset in markers else record.value) for record in got]
        assert values == expected[: len(got)]
        assert got[0].offset <= offset <= got[-1].offset
        assert all(record.offset < limit for record in got) or got[0].offset < limit

    def do_read_out_of_range(self) -> None:
        with pytest.raises(OffsetOutOfRange):
            self.log.read(self.model.end + 1 + self.random.randrange(5), 100)

    def do_find_time(self) -> None:
        if not self.model.records:
            return
        target = self.random.choice(self.model.records)[2] + self.random.choice([-1, 0, 1])
        found = found_at(self.log, target)
        expected = next((r for r in self.model.records if r[2] >= target and r[0] >= self.model.start), None)
        assert (found and (found.offset, found.timestamp_ms)) == (expected and (expected[0], expected[2])), (
            f"time {target}"
        )

    def do_truncate(self) -> None:
        self.settle()
        offset = self.random.randint(self.model.start, self.model.end)
        self.log.truncate_to(offset)
        self.model.truncate(offset)
        self.new_epoch()

    def do_delete_records(self) -> None:
        self.settle()
        offset = self.random.randint(self.model.start, self.model.end)
        assert self.log.delete_records_before(offset) == offset
        self.model.start = offset

    def do_retention(self) -> None:
        self.settle()
        apply_retention(self.log, self.clock())
        self.note_retention()
        if self.config.retention_bytes >= 0:
            assert self.log.size_bytes - self.log.segments[0].size <= self.config.retention_bytes

    def tick(self) -> None:
        self.clock.advance(70_000)
        self.manager.tick()
        self.note_retention()

    def note_retention(self) -> None:
        self.settle()
        assert self.log.log_start_offset >= self.model.start
        self.model.start = self.log.log_start_offset
        self.model.records = [r for r in self.model.records if r[0] >= self.log.segments[0].base_offset]
        self.model.batches = [b for b in self.model.batches if b >= self.log.segments[0].base_offset]

    def do_tick(self) -> None:
        self.tick()

    def do_flush(self) -> None:
        self.log.flush()
        self.settle()
        assert self.log.recovery_point == self.model.end

    def forget_waiters(self) -> None:
        self.told.clear()
        self.waiting.clear()

    def do_restart(self) -> None:
        self.manager.close()
        self.forget_waiters()
        self.reopen()
        assert not self.log.loaded
        self.check()

    def do_kill(self) -> None:
        """The process dies; the operating system goes on."""
        self.tick()
        active = self.log.active_segment
        room = os.path.getsize(active.log.path) - active.size  # which it was made with
        crash(self.manager)
        self.forget_waiters()
        self.reopen()
        assert self.log.recovery.cut == ([(active.log.path, active.size, room)] if room else [])
        self.check()

    def do_power_loss(self) -> None:
        """What has not been synced is lost, in part or whole, or replaced by rubbish."""
        self.tick()
        kept = self.log.on_disk_offset
        visible = self.log.high_watermark
        crash(self.manager)
        self.forget_waiters()
        folder = self.directory / "t-0"
        for name in sorted(os.listdir(folder)):
            self.tear(os.path.join(folder, name))
        self.reopen()
        end = self.log.log_end_offset
        assert kept <= end
        if end > self.model.end or self.log.log_start_offset == end:
            # Records were lost below the log start offset of DeleteRecords: the log begins anew there.
            assert end == self.model.start
            self.model.truncate(end)
            self.model.end = self.model.start = end
        assert end <= self.model.end
        if self.config.synchronous:
            assert end >= visible
        self.model.truncate(end)
        assert self.model.end == end
        self.new_epoch()
        self.check()

    def tear(self, path: str) -> None:
        if not path.endswith((".log", "index")):
            return
        size, safe = os.path.getsize(path), self.files.synced.get(path, 0)
        if size <= safe:
            return
        keep = self.random.randint(safe, size)
        with open(path, "r+b") as file:
            file.truncate(keep)
            if self.random.random() < 0.3:
                file.seek(keep)
                file.write(self.random.choice([bytes(50), self.random.randbytes(50)]))

    def new_epoch(self) -> None:
        """After records were lost the producer starts over, as its sequence would show a gap."""
        self.epoch += 1
        self.sequence = 0
        self.last_batch = None

    # -- checks

    def check(self) -> None:
        self.settle()
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.high_watermark == model.end
        self.check_offsets()
        assert self.waiting == []
        got: list[tuple[int, bytes | None]] = []
        offset = model.start
        while offset < model.end:
            records = records_of(log.read(offset, 1000))
            got += [(record.offset, record.value) for record in records if record.offset >= offset]
            offset = records[-1].offset + 1
        markers = {txn.marker for txn in model.transactions}
        got = [(at, None if at in markers else value) for at, value in got]
        assert got == [(r[0], r[1]) for r in model.records if r[0] >= model.start]
        sizes = [(segment.size, os.path.getsize(segment.log.path)) for segment in log.segments]
        assert all(known == found for known, found in sizes[:-1])
        assert sizes[-1][0] <= sizes[-1][1]  # it may have been made with all its room
        names = [name for name in os.listdir(log.path) if name.endswith(LOG_SUFFIX)]
        assert sorted(names) == [os.path.basename(segment.log.path) for segment in log.segments]

    def check_offsets(self) -> None:
        """What holds after each step, with syncs in flight too."""
        log, model = self.log, self.model
        stable, watermark = log.last_stable_offset, log.high_watermark
        assert log.log_start_offset <= stable <= watermark <= log.log_end_offset == model.end
        assert log.recovery_point <= log.on_disk_offset <= log.log_end_offset
        first = model.first_unstable(watermark)
        if first is None:
            assert stable == watermark
        elif first >= log.segments[0].base_offset:  # else a crash may have taken the memory of it, with its records
            assert stable == min(max(first, log.log_start_offset), watermark)
        for end, error in self.told:
            assert error is None or end > log.log_end_offset
            self.waiting.remove(end)
        self.told.clear()
        if not log.config.synchronous:
            assert (watermark, self.waiting) == (model.end, [])
        else:
            assert all(end > log.on_disk_offset for end in self.waiting)
        if stable > log.log_start_offset:
            self.check_aborted(self.random.randrange(log.log_start_offset, stable), stable)

    def check_aborted(self, first: int, upper: int) -> None:
        """The aborted transactions that a reader of this range needs are told, and none that ended before it."""
        told = {(txn.producer_id, txn.first_offset) for txn in self.log.aborted_transactions(first, upper)}
        oldest = self.log.segments[0].base_offset
        needed = {
            (txn.producer_id, txn.first)
            for txn in self.model.transactions
            if txn.aborted and oldest <= txn.first < upper and txn.marker >= first
        }
        assert needed <= told
        possible = {(txn.producer_id, txn.first) for txn in self.model.transactions if txn.aborted}
        assert told <= possible

    def play(self, steps: int) -> None:
        operations = [
            (40, self.do_append),
            (5, self.do_short_append),
            (15, self.do_transaction),
            (4, self.do_change_settings),
            (6, self.do_drain),
            (5, self.do_duplicate),
            (15, self.do_read),
            (3, self.do_read_out_of_range),
            (5, self.do_find_time),
            (2, self.do_truncate),
            (1, self.do_delete_records),
            (2, self.do_retention),
            (2, self.do_tick),
            (2, self.do_flush),
            (2, self.do_restart),
            (2, self.do_kill),
            (2, self.do_power_loss),
        ]
        weights = [weight for weight, _ in operations]
        for _ in range(steps):
            operation = self.random.choices(operations, weights)[0][1]
            operation()
            self.check_offsets()
        self.check()
        self.manager.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_operations_leave_what_the_model_says(tmp_path: Path, seed: int) -> None:
    Player(tmp_path, seed).play(STEPS)


@pytest.mark.soak
def test_many_seeds(tmp_path: Path, soak: bool) -> None:
    for seed in range(100, 1100 if soak else 130):
        try:
            Player(tmp_path / str(seed), seed).play(400)
        except (AssertionError, KafkaError) as error:
            raise AssertionError(f"seed {seed}") from error
