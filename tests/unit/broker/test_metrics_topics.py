"""Records and bytes by topic: worked out from how far logs have grown, against what was appended."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker import metrics_topics
from fastq_broker.log import LogConfig, LogManager
from fastq_broker.log.mirrored import append_mirrored
from fastq_broker.metrics import Exposition, Histogram
from fastq_broker.metrics_http import Answer, _Peer
from fastq_broker.metrics_topics import REST, TopicTraffic, tell_topics
from fastq_broker.replicas import Replica, ReplicaTable
from prometheus_client.parser import text_string_to_metric_families

from fastq._native.records import build_batch, stamp

NOW_MS = 1_700_000_000_000


class World:
    """A broker's logs, and what was appended to each topic."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.manager = LogManager([directory], default_config=LogConfig(**settings), clock=lambda: NOW_MS)
        self.manager.start()
        self.table = ReplicaTable(1)
        self.traffic = TopicTraffic()
        self.appended: dict[str, list[int]] = {}

    def add(self, topic: str, leader: int = 1) -> Replica:
        log = self.manager.create(topic, 0, topic.encode().ljust(16, b"\0"))
        replica = Replica(log, topic, topic.encode().ljust(16, b"\0"), 0)
        replica.leader_id = leader
        self.table.add(replica)
        return replica

    def append(self, topic: str, count: int, size: int) -> None:
        replica = self.table.get(topic, 0)
        assert replica is not None
        batch = build_batch([(NOW_MS, None, b"v" * size)] * count)
        known = self.appended.setdefault(topic, [0, 0])
        known[0] += count
        known[1] += len(batch)
        replica.log.append(batch, leader_epoch=0, now_ms=NOW_MS)

    def told(self) -> dict[str, tuple[int, int]]:
        self.traffic.look(self.table)
        return {topic: (each.records_in, each.bytes_in) for topic, each in self.traffic.told()[1].items()}


def test_what_was_appended_is_told_over_rolls_and_after_each_look(tmp_path: Path) -> None:
    world, rng = World(tmp_path, segment_bytes=2000), random.Random(3)
    for topic in ("a", "b"):
        world.add(topic)
    for _ in range(60):
        for _ in range(rng.randrange(8)):
            world.append(rng.choice("ab"), rng.randrange(1, 5), rng.randrange(300))
        assert world.told() == {topic: tuple(world.appended[topic]) for topic in sorted(world.appended)}


def test_what_retention_or_a_truncation_takes_is_not_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path, segment_bytes=500)
    log = world.add("a").log
    for _ in range(10):
        world.append("a", 1, 100)
    before = world.told()["a"]
    log.drop_oldest(len(log.segments) - 1)
    assert world.told()["a"] == before
    world.append("a", 1, 100)
    assert world.told()["a"] == tuple(world.appended["a"])
    log.truncate_to(log.log_end_offset - 1)
    assert world.told()["a"] == tuple(world.appended["a"])


@pytest.mark.parametrize("seen_empty", [False, True])
def test_offsets_that_a_mirror_begins_above_are_no_records(tmp_path: Path, seen_empty: bool) -> None:
    world = World(tmp_path)
    log = world.add("a").log
    if seen_empty:
        world.told()
    batch = build_batch([(NOW_MS, None, b"v")] * 3)
    stamp(batch, 0, 1_000_000, 5)
    append_mirrored(log, batch, offset=0, leader_epoch=0, now_ms=NOW_MS)
    log.raise_start(1_000_000)
    assert world.told()["a"] == (3, len(batch))


def test_what_was_there_before_the_start_is_not_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add("a")
    world.append("a", 3, 10)
    world.manager.close()
    world = World(tmp_path)
    replica = world.add("a")
    assert world.told() == {}, "and it is not loaded for it"
    assert not replica.log.loaded
    replica.log.load()
    world.told()
    world.append("a", 2, 10)
    assert world.told()["a"] == tuple(world.appended["a"])


def test_a_follower_has_it_from_its_leader(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add("a", leader=2)
    world.append("a", 2, 10)
    world.told()
    total, topics = world.traffic.told()
    assert (total.bytes_in, total.records_in, total.replication_in) == (0, 0, world.appended["a"][1])
    assert topics["a"].replication_in == world.appended["a"][1]


def test_what_fetches_get_is_counted_by_name_and_by_id(tmp_path: Path) -> None:
    world = World(tmp_path)
    replica = world.add("abcdefghijklmnop")  # 16 letters, as an id has bytes
    piece = SimpleNamespace(size=7)
    answers: Any = [
        SimpleNamespace(topic=replica.topic.encode(), records=piece),
        SimpleNamespace(topic=b"b", records=None),
    ]
    by_id: Any = [SimpleNamespace(topic=replica.topic_id, records=piece), SimpleNamespace(topic=b"gone", records=piece)]
    world.traffic.fetched(False, False, answers)
    world.traffic.fetched(True, False, by_id)
    world.traffic.fetched(True, True, by_id)
    world.traffic.look(world.table)
    total, topics = world.traffic.told()
    assert (total.bytes_out, total.replication_out) == (14, 7)
    assert topics[replica.topic].bytes_out == 14


def test_few_topics_are_told_apart_and_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_topics, "TOPICS_MAX", 3)
    world = World(tmp_path)
    names = [f"t{number}" for number in range(6)]
    for number, name in enumerate(names):
        world.add(name)
        world.append(name, number + 1, 10)
    assert list(world.told()) == ["t3", "t4", "t5", REST]
    for _ in range(9):
        world.append("t0", 100, 10)
    told = world.told()
    assert list(told) == ["t3", "t4", "t5", REST]
    assert told[REST] == tuple(map(sum, zip(*(world.appended[name] for name in names[:3]), strict=True)))
    out = Exposition()
    tell_topics(out, world.traffic, 5000, 6000)
    found = {
        (sample.name, sample.labels.get("topic")): sample.value
        for family in text_string_to_metric_families(out.text())
        for sample in family.samples
    }
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    assert found[name, None] == sum(count for count, _ in world.appended.values())
    assert found[name, "t5"] == 6 and (name, "t0") not in found
    assert found["kafka_server_brokertopicmetrics_bytesin_total", None] == 5000
    world.table.remove_topic("t5", b"t5".ljust(16, b"\0"))
    assert list(world.told()) == ["t0", "t3", "t4", REST], "the busiest one has the place of one that is gone"


def test_no_sum_goes_back_when_topics_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus takes what is smaller for a restart, and all of it for new: a deleted topic was a peak in the rate of all."""
    monkeypatch.setattr(metrics_topics, "TOPICS_MAX", 2)
    world, rng, names = World(tmp_path), random.Random(5), [f"t{number}" for number in range(7)]
    for name in names:
        world.add(name)
    before = (0, 0)
    while names:
        for name in names:
            world.append(name, rng.randrange(1, 9), 10)
        told = world.told()
        total, _ = world.traffic.told()
        appended = tuple(map(sum, zip(*world.appended.values(), strict=True)))
        assert (total.records_in, total.bytes_in) == appended
        assert tuple(map(sum, zip(*told.values(), strict=True))) <= appended, "none is told twice"
        assert told[REST][0] >= before[0] and told[REST][1] >= before[1]
        before = told[REST]
        gone = names.pop(rng.randrange(len(names)))
        world.table.remove_topic(gone, gone.encode().ljust(16, b"\0"))
    world.told()
    assert world.traffic.told()[0].records_in == sum(count for count, _ in world.appended.values())


def test_histograms_over_the_same_buckets() -> None:
    lag = Histogram()
    for seconds in (0.0, 0.0001, 0.3, 11.0):
        lag.add(seconds)
    assert (sum(lag.buckets), lag.buckets[0], lag.buckets[-1], lag.seconds) == (4, 2, 1, pytest.approx(11.3001))


def test_a_directory_whose_name_is_no_text_is_told_all_the_same() -> None:
    class Transport:
        written = b""

        def write(self, data: bytes) -> None:
            self.written += data

        def close(self) -> None:
            pass

    transport = Transport()
    peer = _Peer(SimpleNamespace())  # type: ignore[arg-type]
    peer._transport = transport  # type: ignore[assignment]
    peer._send(Answer("200 OK", 'free{dir="/\udcff"} 1\n'), True)
    assert transport.written.endswith(b'\r\n\r\nfree{dir="/?"} 1\n')
