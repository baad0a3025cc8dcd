"""Replication quotas at work, each way: real logs, handlers, fetchers and rates, on virtual time. Replicas that are out of sync get what
the rate allows, those in sync get all, and a rate that is changed or taken away counts from the next fetch on."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastq_broker.log.byte_rate import UNBOUNDED, ByteRate
from fastq_broker.throttles import FOLLOWER_REPLICAS, LEADER_REPLICAS, Throttle
from fetcher_world import T0, T1, MemoryLog, fetches, log_of, pair
from shared_bench import TOPIC_ID, Bench

VALUE = bytes(range(250)) * 4
KEY = TOPIC_ID, 0
SIDES = pytest.mark.parametrize("side", ["leader", "follower"])


def throttle_of(bench: Bench, side: str) -> Throttle:
    throttles = bench.nodes[1 if side == "leader" else 2].throttles
    return throttles.leader if side == "leader" else throttles.follower


def behind(directory: Path, side: str, bytes_per_s: float, listed: list[str], records: int = 40) -> Bench:
    """Node 2 is out of sync, and so many batches behind, which it gets one by one."""
    bench = Bench(directory, partition_bytes_max=1)
    bench.publish(isr=(1,))
    for _ in range(records):
        assert bench.nodes[1].produce(VALUE, acks=1).code == 0
    for node in bench.nodes.values():
        values = {LEADER_REPLICAS: listed, FOLLOWER_REPLICAS: listed}
        node.throttles.follow(node.replica, values)
    throttle_of(bench, side).rate.bytes_per_s_max = bytes_per_s
    return bench


def seconds_to_catch_up(bench: Bench) -> float:
    begin, (first, second) = bench.loop.now, (bench.nodes[1].log, bench.nodes[2].log)
    while second.log_end_offset < first.log_end_offset:
        assert bench.loop.now < begin + 1000
        bench.settle()
    return bench.loop.now - begin


@SIDES
@pytest.mark.parametrize("listed", [["*"], ["0:1", "0:2"], ["1:1", "0:2", "0:1"]])
def test_a_replica_out_of_sync_gets_what_the_rate_allows(tmp_path: Path, side: str, listed: list[str]) -> None:
    bench = behind(tmp_path, side, 2000, listed)
    took_s = seconds_to_catch_up(bench)
    assert 0.7 < bench.nodes[1].log.size_bytes / 2000 / took_s < 1.4
    bench.settle()
    assert bench.placed.isr == (1, 2)
    assert bench.nodes[2].values() == bench.nodes[1].values()


@SIDES
@pytest.mark.parametrize("listed", [[], ["1:1", "1:2"], ["0:3"]])
def test_what_no_setting_names_is_not_held_back(tmp_path: Path, side: str, listed: list[str]) -> None:
    bench = behind(tmp_path, side, 1, listed)
    assert seconds_to_catch_up(bench) < 10
    assert throttle_of(bench, side).rate.rate(bench.loop.now) == 0


@SIDES
def test_a_replica_in_sync_is_never_held_back(tmp_path: Path, side: str) -> None:
    bench = behind(tmp_path, side, UNBOUNDED, ["*"], records=1)
    seconds_to_catch_up(bench)
    bench.settle()
    assert bench.placed.isr == (1, 2)
    throttle = throttle_of(bench, side)
    throttle.rate.bytes_per_s_max = 1
    for _ in range(5):
        answer = bench.nodes[1].produce(VALUE, VALUE)
        bench.settle()
        assert answer.done and answer.code == 0
    assert KEY in throttle.throttled()  # its bytes count all the same
    assert bench.placed.isr == (1, 2)


@SIDES
def test_a_rate_that_is_taken_away_or_raised_counts_at_once(tmp_path: Path, side: str) -> None:
    bench = behind(tmp_path, side, 0, ["*"])
    for _ in range(15):
        bench.settle()
    end = bench.nodes[2].log.log_end_offset
    assert 0 < end <= 2  # one a window of time
    throttle_of(bench, side).rate.bytes_per_s_max = 4000
    for _ in range(10):
        bench.settle()
    assert 15 <= bench.nodes[2].log.log_end_offset < 40
    throttle_of(bench, side).rate.bytes_per_s_max = UNBOUNDED
    assert seconds_to_catch_up(bench) < 6


@SIDES
def test_a_partition_that_is_named_no_more_is_free(tmp_path: Path, side: str) -> None:
    bench = behind(tmp_path, side, 0, ["*"])
    for _ in range(3):
        bench.settle()
    assert bench.nodes[2].log.log_end_offset == 1
    for node in bench.nodes.values():
        node.throttles.follow(node.replica, {LEADER_REPLICAS: ["1:1"], FOLLOWER_REPLICAS: []})
    assert seconds_to_catch_up(bench) < 10


def test_another_leader_has_a_rate_of_its_own(tmp_path: Path) -> None:
    """The one that was above it leads no more: what it has sent is none of the next one's."""
    bench = behind(tmp_path, "leader", UNBOUNDED, ["*"], records=10)
    seconds_to_catch_up(bench)
    bench.settle()
    throttle_of(bench, "leader").rate.bytes_per_s_max = 0
    bench.elect(2, (2,))
    for _ in range(10):
        assert bench.nodes[2].produce(VALUE, acks=1).code == 0
    for _ in range(20):
        bench.settle()
    assert bench.nodes[1].log.log_end_offset == bench.nodes[2].log.log_end_offset == 20
    assert bench.placed.isr == (1, 2)


def test_a_held_back_fetcher_sleeps_until_it_asks_again() -> None:
    """No more looks than fetches, and one a second; what is not held back goes on meanwhile."""
    leader_log, mine = log_of(*[0] * 20), MemoryLog()
    now = [100.0]
    throttle = Throttle(ByteRate(), lambda: now[0])
    follower = pair(leader_log, mine, 0, quota=throttle, partition_bytes_max=1)
    throttle.keys.add(T0.key)
    throttle.rate.bytes_per_s_max = 20
    looks = 0
    while mine.log_end_offset < 20:
        follower.step()
        looks += 1
        now[0] = follower.now = max(follower.now, follower.machine.next_wakeup(follower.now))
    took_s = now[0] - 100
    assert mine.data == leader_log.data
    assert 0.7 < len(mine.data) / 20 / took_s < 1.4
    assert looks <= len(fetches(follower)) + took_s + 1
    other, copy = log_of(0, 0, 0), MemoryLog()
    leader_log.append(0, b"more")
    follower.machine.partitions[T0.key].lag = 1
    follower.leader.lead(T1, other, 0)
    follower.follow(T1, copy, 0)
    follower.steps(4)
    assert (mine.log_end_offset, copy.log_end_offset) == (20, 3)
