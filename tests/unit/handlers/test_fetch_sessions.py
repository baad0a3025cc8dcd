"""Fetches of a session read what has moved and nothing else: after each one the client knows what a full fetch would tell it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.config import BrokerConfig
from fastq_broker.fetch_session import FetchSessionCache
from fastq_broker.handlers import fetch
from fastq_broker.log import LogManager
from fastq_broker.replicas import Replica, ReplicaTable

from fastq._native.records import build_batch, iter_headers
from fastq._native.wire import Writer
from fastq.protocol.frames import decode_response
from fastq.protocol.messages import FetchRequest

NOW_MS = 1_700_000_000_000
VERSION = 12  # topics by name
TOPIC = "t"


class World:
    """Some partitions, and one client with a session that keeps what it was told."""

    def __init__(self, directory: Path, partitions: int, isolation_level: int = 0) -> None:
        self.manager = LogManager([directory], clock=lambda: NOW_MS)
        self.manager.start()
        self.replicas = ReplicaTable(1)
        self.broker: Any = SimpleNamespace(
            node_id=1,
            clock=lambda: NOW_MS,
            monotonic_ms=lambda: 0,
            config=BrokerConfig.from_mapping({}),
            replicas=self.replicas,
            fetch_sessions=FetchSessionCache(10),
            read_ahead=SimpleNamespace(run=lambda work, done: (work(), done())),  # memory may be short, and pages cold
            router=SimpleNamespace(partition_failed=lambda api, code: None, counts_fetches=False),
        )
        self.isolation_level = isolation_level
        self.make(partitions)
        self.offsets = dict.fromkeys(range(partitions), 0)
        self.known: dict[int, tuple[int, int, int]] = {}
        self.session_id = self.epoch = 0
        self.moved: list[int] = []
        """Partitions that the last fetch brought records of: the next one asks from where they end."""

    def make(self, partitions: int) -> None:
        for number in range(partitions):
            log = self.manager.create(TOPIC, number, bytes(16))
            replica = Replica(log, TOPIC, bytes(16), number)
            replica.leader_id, replica.leader_epoch = 1, 0
            self.replicas.add(replica)

    def delete(self) -> None:
        for replica in self.replicas.remove_topic(TOPIC, bytes(16)):
            replica.retire()
            self.manager.delete(TOPIC, replica.partition)

    def append(self, number: int, *, producer_id: int = -1) -> None:
        transactional = producer_id >= 0
        batch = build_batch(
            [(NOW_MS, b"k", b"v" * 50)],
            producer_id=producer_id,
            producer_epoch=0 if transactional else -1,
            base_sequence=0 if transactional else -1,
            transactional=transactional,
        )
        self.manager.logs[TOPIC, number].append(batch, leader_epoch=0, now_ms=NOW_MS, transaction_version=1)

    def commit(self, number: int, producer_id: int) -> None:
        self.manager.logs[TOPIC, number].append_transaction_marker(
            producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commit=True, leader_epoch=0, now_ms=NOW_MS
        )

    def fetch(
        self, changed: list[int] | None = None, forgotten: list[int] | None = None, max_bytes: int = 1 << 20
    ) -> None:
        """One fetch that waits for nothing; the client takes over what it says."""
        asked = list(self.offsets) if not self.epoch else changed or []
        partitions = [
            FetchRequest.FetchPartition(partition=n, fetch_offset=self.offsets[n], partition_max_bytes=1 << 20)
            for n in asked
        ]
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self.isolation_level,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=partitions)] if partitions else [],
            forgotten_topics_data=[FetchRequest.ForgottenTopic(topic=TOPIC, partitions=forgotten)] if forgotten else [],
        )
        writer = Writer()
        request.encode(writer, VERSION)
        frame = bytearray(writer.getvalue())
        connection: Any = SimpleNamespace(listener="L", peer=("", 0))
        parts: Any = fetch.handle_frame(connection, self.broker, frame, (1, VERSION, 7, None, 0, len(frame)))
        raw = b"".join(part if isinstance(part, bytes) else part.read() for part in parts)
        response: Any = decode_response(raw[4:], 1, VERSION)[1]
        assert response.error_code == 0
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        self.moved = []
        for topic in response.responses:
            for answer in topic.partitions:
                number = answer.partition_index
                self.known[number] = answer.error_code, answer.high_watermark, answer.log_start_offset
                if answer.records:
                    self.offsets[number] = self.end_of(answer.records)
                    self.moved.append(number)

    @staticmethod
    def end_of(records: bytes) -> int:
        return max(header.last_offset for _, header in iter_headers(records, strict=True)) + 1

    def truth(self) -> dict[int, tuple[int, int, int]]:
        told = {}
        for number in self.offsets:
            replica = self.replicas.get(TOPIC, number)
            if replica is None:
                told[number] = 3, -1, -1
            elif (
                self.offsets[number] < replica.log.log_start_offset or self.offsets[number] > replica.log.log_end_offset
            ):
                told[number] = 1, -1, -1
            else:
                told[number] = 0, replica.log.high_watermark, replica.log.log_start_offset
        return told

    def drained(self) -> bool:
        for number, offset in self.offsets.items():
            replica = self.replicas.get(TOPIC, number)
            if replica is not None:
                log = replica.log
                if (
                    log.log_start_offset
                    <= offset
                    < (log.last_stable_offset if self.isolation_level else log.high_watermark)
                ):
                    return False
        return True


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    found: list[int] = []
    read_one = fetch._Fetch._read_one

    def counted(self: Any, replica: Replica, *rest: Any) -> Any:
        found.append(replica.partition)
        return read_one(self, replica, *rest)

    monkeypatch.setattr(fetch._Fetch, "_read_one", counted)
    yield found


def test_partitions_that_have_not_moved_are_not_read(tmp_path: Path, reads: list[int]) -> None:
    world = World(tmp_path, 50)
    world.fetch()
    world.fetch()
    assert len(reads) == 100, "the second one finds that all is known"
    reads.clear()
    world.fetch()
    assert reads == []
    world.append(7)
    world.fetch()
    assert (reads, world.offsets[7], world.moved) == ([7], 1, [7])
    reads.clear()
    world.fetch(changed=[7])
    world.fetch()
    assert reads == [7]
    assert world.known == world.truth()


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("seed", range(10))
def test_a_client_of_a_session_knows_what_a_full_fetch_would_tell(
    tmp_path: Path, seed: int, isolation_level: int
) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, 6, isolation_level)
    producers = iter(range(1, 10_000))
    open_now: list[tuple[int, int]] = []
    deleted = False
    world.fetch()
    for _ in range(200):
        number = rng.randrange(6)
        change = rng.choice(["append"] * 6 + ["begin", "end", "start", "epoch", "topic", "forget", "isolation"])
        if deleted and change != "topic":
            change = "topic" if rng.random() < 0.3 else "none"
        if change == "append":
            world.append(number)
        elif change == "begin":
            open_now.append((number, next(producers)))
            world.append(number, producer_id=open_now[-1][1])
        elif change == "end" and open_now:
            world.commit(*open_now.pop(rng.randrange(len(open_now))))
        elif change == "start":
            log = world.manager.logs[TOPIC, number]
            log.delete_records_before(rng.randint(log.log_start_offset, log.high_watermark))
        elif change == "epoch":
            replica = world.replicas.get(TOPIC, number)
            assert replica is not None
            replica.leader_epoch += 1
        elif change == "topic":
            world.make(6) if deleted else world.delete()
            deleted = not deleted
            open_now.clear()
        elif change == "forget":
            world.fetch(forgotten=[number])
            world.fetch(changed=[number])
        elif change == "isolation":
            world.isolation_level ^= 1
        world.fetch(changed=world.moved, max_bytes=rng.choice([1, 1 << 20]))
        for _ in range(30):  # until nothing is left to be read
            if world.drained() and not world.moved:
                break
            world.fetch(changed=world.moved)
        assert world.drained()
        lost = [n for n, (code, _, _) in world.truth().items() if code == 1]
        for lost_number in lost:
            log = world.manager.logs[TOPIC, lost_number]
            world.offsets[lost_number] = log.log_start_offset
        for _ in range(30):
            if not lost and not world.moved and world.drained():
                break
            world.fetch(changed=lost + world.moved)
            lost = []
        assert world.known == world.truth()
