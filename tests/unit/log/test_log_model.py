"""The log against a naive model in memory: random appends, reads, rolls, truncations, deletions, crashes and restarts."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.faults import FaultyFiles
from fastq_broker.log.retention import apply_retention
from log_support import StandingClock, crash, one_batch, open_manager, records_of

from fastq.errors import KafkaError, OffsetOutOfRange

STEPS = 150
SEEDS = range(12)


class Model:
    """A log as a list: (offset, value, timestamp) of each record, and where each batch begins."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, int]] = []
        self.batches: list[int] = []
        self.start = 0
        self.end = 0

    def append(self, values: list[bytes], timestamp: int) -> None:
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
        return offset

    def readable(self, offset: int) -> list[tuple[int, bytes]]:
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
        )
        self.sequence = 0
        self.epoch = 0
        self.last_batch: tuple[list[bytes], int, int] | None = None
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
        assert [(record.offset, record.value) for record in got] == expected[: len(got)]
        assert got[0].offset <= offset <= got[-1].offset
        assert all(record.offset < limit for record in got) or got[0].offset < limit

    def do_read_out_of_range(self) -> None:
        with pytest.raises(OffsetOutOfRange):
            self.log.read(self.model.end + 1 + self.random.randrange(5), 100)

    def do_find_time(self) -> None:
        if not self.model.records:
            return
        target = self.random.choice(self.model.records)[2] + self.random.choice([-1, 0, 1])
        found = self.log.offset_for_timestamp(target)
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
            assert self.log.size_bytes <= self.config.retention_bytes + self.config.segment_bytes

    def tick(self) -> None:
        self.manager.tick(self.clock.advance(70_000))
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

    def do_restart(self) -> None:
        self.manager.close()
        self.reopen()
        assert not self.log.loaded
        self.check()

    def do_kill(self) -> None:
        """The process dies; the operating system goes on."""
        self.tick()
        crash(self.manager)
        self.reopen()
        assert self.log.recovery.cut == []
        self.check()

    def do_power_loss(self) -> None:
        """What has not been synced is lost, in part or whole, or replaced by rubbish."""
        self.tick()
        kept = self.log.on_disk_offset
        visible = self.log.high_watermark
        crash(self.manager)
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
        if self.config.durability == "fsync":
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
        assert log.last_stable_offset == model.end
        got: list[tuple[int, bytes | None]] = []
        offset = model.start
        while offset < model.end:
            records = records_of(log.read(offset, 1000))
            got += [(record.offset, record.value) for record in records if record.offset >= offset]
            offset = records[-1].offset + 1
        assert got == [(r[0], r[1]) for r in model.records if r[0] >= model.start]
        assert log.size_bytes == sum(os.path.getsize(segment.log.path) for segment in log.segments)

    def play(self, steps: int) -> None:
        operations = [
            (40, self.do_append),
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
