"""Followers with real logs: drawn histories that part somewhere, the leader's with its beginning deleted. All end with the leader's bytes,
also after another start."""

from __future__ import annotations

import random
from pathlib import Path
from random import Random

import pytest
from fastq_broker.log import LogConfig, LogManager, PartitionLog
from fastq_broker.log.files import Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.replication.fetcher_session import ReplicaPartition
from fastq_broker.replication.follower_log import FollowerLog
from fetcher_world import Follower, MemoryLog

from fastq._native.records import iter_headers

NAME = ReplicaPartition("t", bytes([7]) * 16, 0)


def open_manager(path: Path, config: LogConfig) -> LogManager:
    files = Files()
    manager = LogManager(
        [path],
        default_config=config,
        clock=lambda: 5,
        files=files,
        flusher=ManualFlusher(files),
        randomness=random.Random(7),
    )
    manager.start()
    return manager


def grow(log: MemoryLog, rng: Random, epochs: list[int]) -> None:
    for epoch in epochs:
        for _ in range(rng.randint(0, 6)):
            log.append(epoch, *[b"%d" % rng.getrandbits(32) * 10] * rng.randint(1, 3))


def histories(rng: Random) -> tuple[MemoryLog, MemoryLog, int]:
    """The leader's, one of a follower that parts from it, and the leader's epoch. An epoch has one leader, so one history."""
    leader, follower = MemoryLog(), MemoryLog()
    common = sorted(rng.sample(range(4), rng.randint(0, 3)))
    grow(leader, rng, common)
    for batch in leader.batches:
        follower.append_as_follower(memoryview(batch.data), now_ms=5)
    committed = leader.log_end_offset
    later = list(range(4, 9))
    mine = sorted(rng.sample(later, rng.randint(0, 5)))
    if common:
        grow(rng.choice([leader, follower]), rng, common[-1:])
    grow(leader, rng, mine)
    grow(follower, rng, [epoch for epoch in later if epoch not in mine])
    leader.append(10, b"the first of its epoch")
    leader.high_watermark = leader.log_end_offset
    if committed and rng.random() < 0.5:
        leader.delete_before(rng.randint(0, leader.log_end_offset))
    follower.high_watermark = rng.randint(0, committed)
    return leader, follower, 10


@pytest.mark.parametrize(("durability", "seeds"), [("page-cache", 12), ("fsync", 6)])
def test_real_logs_end_with_the_leaders_bytes(tmp_path: Path, durability: str, seeds: int, soak: bool) -> None:
    config = LogConfig(segment_bytes=700, durability=durability)
    for seed in range(300 if soak else seeds):
        rng = Random(seed)
        leader, history, epoch = histories(rng)
        manager = open_manager(tmp_path / str(seed), config)
        log: PartitionLog = manager.create("t", 0, NAME.topic_id)
        log.share(True)
        if history.batches:
            log.append_as_follower(history.data, now_ms=5)
        if rng.random() < 0.3:
            log.assign_leader_epoch(9)  # it led, and wrote nothing
        log.advance_high_watermark(history.high_watermark)
        followed: FollowerLog = log
        follower = Follower(partition_bytes_max=rng.choice([1, 1000, 1 << 20]))
        follower.leader.lead(NAME, leader, epoch)
        follower.follow(NAME, followed, epoch)
        for _ in range(60):
            log.dir.flusher.wait()
            follower.step()
        start = leader.log_start_offset
        assert bytes_of(log, start) == leader.data, f"seed {seed}"
        assert (log.log_start_offset, log.high_watermark) == (start, leader.high_watermark), f"seed {seed}"
        assert [entry for entry in log.epochs.entries() if entry[1] >= start] == leader.epochs, f"seed {seed}"
        manager.close()
        again = open_manager(tmp_path / str(seed), config)
        log = again.logs["t", 0]
        log.share(True)
        assert (log.leader_epoch, log.log_end_offset) == (epoch, leader.log_end_offset), f"seed {seed}"
        assert bytes_of(log, start) == leader.data, f"seed {seed}"
        again.close()


def bytes_of(log: PartitionLog, offset: int) -> bytes:
    """All batches from the one with this offset on."""
    found = b""
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20).read()
        found += data
        offset = max(header.next_offset for _, header in iter_headers(data))
    return found
