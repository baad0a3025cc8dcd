"""The fetcher against a fake cluster, under a seed: every record once, in order, whatever happens in between."""

import random
from collections import Counter
from itertools import repeat

import pytest
from consumer_fakes import FakeCluster, FakeLog
from virtual_time import BATCH_BYTES, VirtualTime

from fastq._native.columns import ConsumerBatch
from fastq._native.consume import FetchedRecords
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.fetcher import Fetcher
from fastq.errors import ConnectionClosed
from fastq.metadata import ClusterMetadata, TopicPartition
from fastq.protocol.messages import FetchRequest, FetchResponse

BOUND = 4000
PART_BYTES = 700


def fill(log: FakeLog, rng: random.Random, batches: int) -> None:
    """Batches of all kinds: plain, compressed, compacted, committed and aborted transactions, interleaved markers."""
    for _ in range(batches):
        rows = [(rng.choice([None, b"k%d" % n]), rng.randbytes(rng.randrange(40))) for n in range(rng.randrange(1, 6))]
        kind = rng.randrange(6)
        if kind < 2:
            log.append(rows, codec=rng.choice([0, 0, 1, 4]))
        elif kind == 2:
            gaps = sorted(rng.sample(range(12), len(rows)))
            log.append(rows, gaps=gaps, last_offset_delta=rng.randrange(gaps[-1], 14))
        else:
            log.transaction(rng.randrange(3), [rows, rows[:1]], commit=kind == 3)


class Simulation:
    """Clock, network and user of one fetcher."""

    def __init__(self, seed: int, read_committed: bool, version: int) -> None:
        self.rng = random.Random(seed)
        self.read_committed, self.version = read_committed, version
        self.cluster = FakeCluster((1, 2, 3), self.rng)
        self.cluster.create("a", 3)
        self.cluster.create("b", 1)
        for log in self.cluster.logs.values():
            fill(log, self.rng, self.rng.randrange(0, 25))
        self.metadata = ClusterMetadata()
        self.refresh()
        self.now = 0.0
        config = ConsumerConfig(
            auto_offset_reset="earliest",
            prefetch_bytes_max=BOUND,
            max_partition_fetch_bytes=PART_BYTES,
            fetch_max_bytes=2000,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
        )
        self.fetcher = Fetcher(config, self.metadata, wall_clock_ms=lambda: 0, rng=self.rng)
        self.fetcher.assign(self.cluster.logs)
        self.flying: list[tuple[float, object, object]] = []
        self.expected = dict.fromkeys(self.cluster.logs, 0)
        self.held: FetchedRecords | None = None  # as an iterator holds one, of which it takes records in its own time
        self.largest = 0

    def refresh(self) -> None:
        self.metadata.update(self.cluster.metadata())

    def send(self) -> None:
        fetching = [out.node_id for _, out, _ in self.flying if out.api_key == 1]
        for out in self.fetcher.requests(self.now, lambda node: self.rng.random() < 0.9):
            version = self.version
            if out.api_key == 1:
                assert out.node_id not in fetching, "two fetches in flight at one broker"
                fetching.append(out.node_id)
                version = self.fetcher.fetch_version(version)
                body = out.build(version)
                assert isinstance(body, bytes)
                request = FetchRequest.from_bytes(body, version)
            else:
                request, version = out.build(-1), 4
            self.flying.append((self.now + self.rng.random() * 0.1, out, (request, version)))
        if self.fetcher.wants_metadata and self.rng.random() < 0.5:
            self.fetcher.wants_metadata = None
            self.refresh()

    def deliver(self, faults: bool) -> None:
        due = [item for item in self.flying if item[0] <= self.now]
        self.flying = [item for item in self.flying if item[0] > self.now]
        for _, out, (request, version) in due:
            if faults and self.rng.random() < 0.05:
                # The broker may have seen it or not.
                if self.rng.random() < 0.5:
                    self.cluster.handle(out.node_id, request, version)
                out.done(None, ConnectionClosed(broker="fake"), self.now)
                continue
            response = self.cluster.handle(out.node_id, request, version)
            if isinstance(response, FetchResponse):
                body = bytearray(response.to_bytes(version))
                self.largest = max(self.largest, len(body))
                out.done(out.decode(body, version), None, self.now)
            else:
                out.done(response, None, self.now)

    def take(self) -> None:
        if self.held is not None:
            tp = TopicPartition(self.held.topic, self.held.partition)
            self.check(tp, self.held.take(self.rng.randrange(1, 3)))
            self.held = self.held if self.rng.random() < 0.8 else None
        until, partitions = self.fetcher.until, self.fetcher.partitions
        pending = None if until is None else {tp: end for tp, end in until.items() if partitions[tp].position < end}
        chunk = self.fetcher.next_chunk(pending)
        if chunk is None:
            return
        tp = TopicPartition(chunk.topic, chunk.partition)
        assert not partitions[tp].paused and (pending is None or tp in pending)
        if self.rng.random() < 0.1:
            self.held = chunk
            return
        if self.rng.random() < 0.3:
            batch = ConsumerBatch()
            batch.add(chunk)
            records = list(batch)
        else:
            records = chunk.take(self.rng.randrange(1, 9))
        self.fetcher.release(chunk)
        self.check(tp, records)

    def check(self, tp: TopicPartition, records: list) -> None:
        rows = [row for row in self.cluster.logs[tp].visible(self.read_committed) if row[0] >= self.expected[tp]]
        got = [(record.offset, record.key, record.value) for record in records]
        assert got == rows[: len(got)], f"{tp} from {self.expected[tp]}"
        if got:
            self.expected[tp] = got[-1][0] + 1
            assert self.fetcher.partitions[tp].position >= self.expected[tp]

    def disturb(self) -> None:
        tp = self.rng.choice(list(self.cluster.logs))
        log, state = self.cluster.logs[tp], self.fetcher.partitions[tp]
        what = self.rng.randrange(8)
        if what == 0:
            log.leader, log.epoch = self.rng.choice([1, 2, 3]), log.epoch + 1
        elif what == 1:
            fill(log, self.rng, 2)
        elif what == 2:
            self.cluster.sessions.clear()
        elif what == 3:
            state.paused = not state.paused
            self.held = None
        elif what == 4:
            offset = self.rng.randrange(log.end + 1)
            self.fetcher.seek(tp, offset)
            self.expected[tp] = offset
        elif what == 5:
            self.fetcher.reset(tp, -2)
            self.expected[tp] = 0
        elif what == 6:
            ends = {tp: self.rng.randrange(log.end + 1) for tp, log in self.cluster.logs.items()}
            self.fetcher.until = self.rng.choice([None, ends, {tp: ends[tp]}])
        else:
            self.refresh()

    def turn(self, faults: bool) -> None:
        self.now += self.rng.random() * 0.05
        self.send()
        self.deliver(faults)
        if self.rng.random() < 0.5:
            self.send()
        self.take()
        assert self.fetcher.take_error() is None
        fetcher = self.fetcher
        assert fetcher.buffered_bytes == sum(state.buffered_bytes for state in fetcher.partitions.values())
        # One batch larger than what is left may come from each broker.
        assert fetcher.buffered_bytes <= BOUND + 3 * 800
        assert fetcher.reserved_bytes >= 0


def stop(sim: Simulation, seed: int) -> None:
    """Let one partition be read alone, up to an end: whatever there is of the others, it comes there."""
    tp = sim.rng.choice(list(sim.cluster.logs))
    sim.fetcher.until = {tp: sim.cluster.logs[tp].end}
    for state in sim.fetcher.partitions.values():
        state.paused = state.tp != tp and seed % 3 == 0
    sim.held = None
    for _ in range(1500):
        sim.turn(faults=False)
        if sim.rng.random() < 0.05:
            sim.refresh()
        if sim.fetcher.partitions[tp].position >= sim.cluster.logs[tp].end:
            return
    raise AssertionError(f"{tp} stands still at {sim.fetcher.partitions[tp].position} of {sim.cluster.logs[tp].end}")


@pytest.mark.parametrize("seed", range(60))
def test_every_record_once_and_in_order(seed: int) -> None:
    sim = Simulation(seed, read_committed=seed % 2 == 0, version=[4, 7, 11, 12, 13, 16, 18][seed % 7])
    for _ in range(150):
        sim.turn(faults=True)
        if sim.rng.random() < 0.15:
            sim.disturb()
    stop(sim, seed)
    sim.fetcher.until = None
    for state in sim.fetcher.partitions.values():
        state.paused = False
    for _ in range(3000):
        sim.turn(faults=False)
        if sim.rng.random() < 0.05:
            sim.refresh()
        ends = {tp: log.end for tp, log in sim.cluster.logs.items()}
        if all(sim.fetcher.partitions[tp].position == end for tp, end in ends.items()):
            break
    for tp, log in sim.cluster.logs.items():
        assert sim.fetcher.partitions[tp].position == log.end
        assert not [row for row in log.visible(sim.read_committed) if row[0] >= sim.expected[tp]]
    assert sim.fetcher.buffered_bytes == 0 or sim.fetcher.next_chunk() is None
    if sim.version >= 7:
        assert sim.cluster.incremental_fetches > 0


def test_partitions_take_turns_at_a_broker_that_keeps_no_session() -> None:
    """It fills its answer in the order in which they are asked for, and all have more than there is room for."""
    time = VirtualTime(
        max_partition_fetch_bytes=BATCH_BYTES,
        fetch_max_bytes=20 * BATCH_BYTES,
        prefetch_bytes_max=26 * BATCH_BYTES,
    )
    time.cluster.create("a", 38)
    time.cluster.session_ids = repeat(0)  # type: ignore[assignment]
    time.metadata.update(time.cluster.metadata())
    for log in time.cluster.logs.values():
        for _ in range(50):
            log.append([(None, bytes(BATCH_BYTES - 80))])
    time.fetcher.assign(time.cluster.logs)
    handed: Counter[int] = Counter()
    while len(handed) < 40:
        time.run(0.001)
        chunk = time.fetcher.next_chunk()
        assert chunk is not None
        chunk.take(100)
        time.fetcher.release(chunk)
        handed[chunk.partition] += 1
        assert handed[chunk.partition] < 3
    assert time.fetcher.partitions.keys() == time.cluster.logs.keys()


def test_brokers_take_turns_where_one_has_a_partition_without_records() -> None:
    """That one is always the first to be asked for, and its broker has more than there is room for."""
    time = VirtualTime(
        max_partition_fetch_bytes=BATCH_BYTES,
        fetch_max_bytes=20 * BATCH_BYTES,
        prefetch_bytes_max=8 * BATCH_BYTES,
    )
    time.cluster.nodes[2] = ("127.0.0.1", 9002)
    time.cluster.create("a", 19)
    time.cluster.session_ids = repeat(0)  # type: ignore[assignment]
    for tp, log in time.cluster.logs.items():
        log.leader = 1 if tp.partition <= 10 else 2
        for _ in range(50 if tp.partition > 0 else 0):
            log.append([(None, bytes(BATCH_BYTES - 80))])
    time.metadata.update(time.cluster.metadata())
    time.fetcher.assign(time.cluster.logs)
    handed: Counter[int] = Counter()
    for _ in range(100):
        time.run(0.001)
        chunk = time.fetcher.next_chunk()
        assert chunk is not None
        chunk.take(100)
        time.fetcher.release(chunk)
        handed[chunk.partition] += 1
    assert set(handed) == set(range(1, 21))
    assert max(handed.values()) <= 3 * min(handed.values())
