"""A mirror with the same offsets whose target fetches from the source by itself: it has what it would have without, whatever happens."""

from __future__ import annotations

import itertools
import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from mirrors import batches_of, cut_off, running
from same_mirrors import ends_of, left_out, same, stable_end, values, wait_for_same, written
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq._native.records import build_batch
from fastq.admin import ConfigResource
from fastq.errors import FastqError, LeaderNotAvailable
from fastq.mirror import lane, pulls, same_lane
from fastq.mirror.config import MirrorConfig
from fastq.mirror.failover import fail_over
from fastq.mirror.names import state_topic
from fastq.mirror.pulls import Said
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.source_reader import Fetched, SourceReader, Wanted
from fastq.mirror.state import read_state
from fastq.mirror.target_puller import Outcomes, Pull, Pulled, TargetPuller
from fastq.mirror.target_writer import Ask, TargetWriter
from fastq.testing import Broker, Cluster

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each

FIRST, MIRRORS = 5000, 40
"""Numbers of mirrors whose sources the target is told of."""
SOON = {"group.initial.rebalance.delay.ms": 0, "log.cleaner.backoff.ms": 100, "group.min.session.timeout.ms": 500}
VALUES = [os.urandom(5_000) for _ in range(64)]
"""Of which no codec makes less."""
_numbers = itertools.count(FIRST)


def told_of(source: Broker | Cluster) -> dict[str, object]:
    aliases = (f"A{number}" for number in range(FIRST, FIRST + MIRRORS))
    return {f"mirror.pull.{alias}.bootstrap.servers": source.bootstrap_servers for alias in aliases}


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with (
        Broker(in_memory=True, config=SOON) as source,
        Broker(in_memory=True, config={**SOON, **told_of(source)}) as target,
    ):
        yield source, target


class Seen:
    """What the target was asked to pull, and what came of it."""

    def __init__(self) -> None:
        self.outcomes: list[Pulled | FastqError] = []
        self.asked = 0

    @property
    def bytes(self) -> int:
        return sum(found.bytes for found in self.outcomes if isinstance(found, Pulled))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """With much that is little, and pauses that are short."""
    found, pull = Seen(), TargetPuller.pull

    def spied(puller: TargetPuller, wanted: dict[TopicPartition, Pull], bytes_max: int) -> Outcomes:
        found.asked += 1
        outcomes = pull(puller, wanted, bytes_max)
        found.outcomes += outcomes.values()
        return outcomes

    monkeypatch.setattr(TargetPuller, "pull", spied)
    monkeypatch.setattr(pulls, "MUCH_BYTES", 1)
    monkeypatch.setattr(pulls, "SOON_S", 0.05)
    monkeypatch.setattr(pulls, "AGAIN_S", 0.5)
    monkeypatch.setattr(pulls, "SAID", Said())
    for module in (lane, same_lane):
        monkeypatch.setattr(module, "RETRY_S", 0.5)
    return found


def mirrored(brokers: Any, name: str, number: int | None = None, **options: Any) -> MirrorConfig:
    return same(brokers, name, next(_numbers) if number is None else number, **options)


def number_of(config: MirrorConfig) -> int:
    return int(config.source.alias[1:])


def made(source: Broker | Cluster, name: str, partitions: int = 1, mebibytes: int = 16, **settings: Any) -> int:
    """A topic of so much, in batches of about 100 kB; how many records a partition has."""
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        replicas = 3 if isinstance(source, Cluster) else 1
        admin.create_topic(name, partitions, replicas, configs={"segment.bytes": "4194304"})
    return sent(source, name, partitions, mebibytes, **settings)


def sent(source: Broker | Cluster, name: str, partitions: int = 1, mebibytes: int = 16, **settings: Any) -> int:
    count = mebibytes * 1024 * 1024 // 5_000 // partitions
    options = {"bootstrap_servers": source.bootstrap_servers, "batch_bytes_max": 100_000, **settings}
    with Producer(**options) as producer:
        for partition in range(partitions):
            for begin in range(0, count, len(VALUES)):
                producer.send_many(name, VALUES[: count - begin], partition=partition)
    return count


@contextmanager
def slow(source: Broker, seconds: float = 0.1) -> Iterator[None]:
    """So that what happens happens in the middle."""
    source.delay("Fetch", seconds=seconds, times=None)
    try:
        yield
    finally:
        source.clear_faults()


def end_of(config: MirrorConfig, name: str) -> int:
    """Where the target's first partition ends; -1 where there is none."""
    with suppress(FastqError):
        return ends_of(config, name)
    return -1


def pulled_some(seen: Seen, count: int = 1) -> Callable[[], bool]:
    return lambda: sum(isinstance(found, Pulled) and found.bytes > 0 for found in seen.outcomes) >= count


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_the_target_has_what_the_source_has_and_the_mirror_carries_little_of_it(
    brokers: tuple[Broker, Broker], new_topic_name: Any, codec: str, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastq.mirror")
    source, _ = brokers
    name = new_topic_name()
    count = made(source, name, 3, 48, compression_type=codec)
    config = mirrored(brokers, name)
    with running(config) as mirror:
        wait_for_same(config, name, 3)
        assert seen.bytes > 24 << 20, "the most of it"
        until(lambda: mirror.records == 3 * count, what="what was pulled is counted")
        assert 48 << 20 <= mirror.totals.bytes < 60 << 20
        assert mirror.totals.pulled_bytes == seen.bytes
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            producer.send(name, b"one more", partition=1).result()
        wait_for_same(config, name, 3)
    assert all(isinstance(found, Pulled) and found.error is found.source_error is None for found in seen.outcomes)
    assert [m for m in caplog.messages if "fetches from" in m] == [
        f"{config.target.alias} fetches from {config.source.alias} by itself what has much to come"
    ]


@pytest.mark.parametrize("batch_bytes", [16_000, 1_000_000])
def test_of_what_the_target_fetches_by_itself_the_mirror_reads_a_sample_first(
    brokers: tuple[Broker, Broker], new_topic_name: Any, batch_bytes: int, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = brokers
    name, partitions = new_topic_name(), 8
    made(source, name, partitions, 160, batch_bytes_max=batch_bytes)
    monkeypatch.setattr(pulls, "MUCH_BYTES", 8 << 20)
    config = mirrored(brokers, name)
    with running(config) as mirror:
        wait_for_same(config, name, partitions)
        through = mirror.totals.bytes - seen.bytes
    sample = max(64 << 10, batch_bytes + 100_000)
    rest = (64 << 10) + batch_bytes
    assert through < partitions * (sample + rest), "a sample of each, and what is left in the end"


def test_transactions_and_what_they_have_aborted_are_the_same(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen
) -> None:
    source, _ = brokers
    name = new_topic_name()
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.create_topic(name, 1)
    with Producer(bootstrap_servers=source.bootstrap_servers, transactional_id=name) as producer:
        for i in range(120):
            producer.begin_transaction()
            producer.send_many(name, [b"%d" % i, *VALUES[:30]], partition=0)
            producer.commit_transaction() if i % 3 else producer.abort_transaction()
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        config = mirrored(brokers, name)
        with running(config):
            wait_for_same(config, name)
            ends = [stable_end(config, side, name) for side in ("source", "target")]
            assert ends[0] == ends[1]
            producer.abort_transaction()
            wait_for_same(config, name)
    assert pulled_some(seen)()
    for level in ("read_committed", "read_uncommitted"):
        assert values(config, "target", name, level) == values(config, "source", name, level)


def test_gaps_of_compaction_stay(brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen) -> None:
    source, _ = brokers
    name, rng, offset = new_topic_name(), random.Random(4), 0
    tp, topic = TopicPartition(name, 0), ConfigResource.topic(name)
    config = mirrored(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin, closing(TargetWriter(config.source)) as writer:
        topic_id = admin.create_topic(name, 1, configs={MIRROR_SOURCE: "x/y/z"}).topic_id
        for _ in range(16):  # as a mirror of something compacted has it
            data, begin = bytearray(), offset
            for _ in range(20):
                offset += rng.choice((0, 0, 1, 50))
                data += build_batch([(1, None, rng.choice(VALUES)) for _ in range(10)], base_offset=offset)
                offset += 10
            ask = Ask(topic_id, "x/y/z", begin, records=memoryview(data))
            assert writer.ask_until({tp: ask}, lambda: None, 20)[tp].error is None
        admin.set_configs(topic, {MIRROR_SOURCE: None})
    with running(config):
        wait_for_same(config, name)
    assert pulled_some(seen)()


def epochs_of(config: MirrorConfig, name: str) -> list[tuple[int, int]]:
    """The source's leader epochs, each with its first offset, as its batches say."""
    tp, offset = TopicPartition(name, 0), 0
    found: list[tuple[int, int]] = []
    with Admin(config.source.common) as admin, closing(SourceReader(config.source)) as reader:
        topic_id = admin.describe_topic(name).topic_id
        while True:
            answer = reader.fetch({tp: Wanted(topic_id, offset)}, 0)[tp]
            if isinstance(answer, LeaderNotAvailable):
                continue
            assert isinstance(answer, Fetched), answer
            if answer.next_offset == offset:
                return found
            found += [epoch for epoch in answer.epochs if not found or epoch[0] > found[-1][0]]
            offset = answer.next_offset


def test_each_epoch_of_the_source_is_written_down_before_it_is_pulled(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen
) -> None:
    source, _ = brokers
    name = new_topic_name()
    made(source, name, mebibytes=8)
    for _ in range(5):
        source.change_leader(name)
        sent(source, name, mebibytes=8)
    config = mirrored(brokers, name)
    expected = epochs_of(config, name)
    assert len(expected) == 6
    with running(config):
        wait_for_same(config, name)
    later = [found.later_epoch for found in seen.outcomes if isinstance(found, Pulled) and found.later_epoch >= 0]
    assert later and set(later) <= {epoch for epoch, _ in expected}
    state = read_state(config.target, state_topic(config.source.alias), range(2))
    assert list(state.epochs[TopicPartition(name, 0)].starts) == expected


def test_leaders_of_both_sides_that_begin_anew_in_the_middle_end_nothing(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen
) -> None:
    source, target = brokers
    name = new_topic_name()
    count = made(source, name, mebibytes=40)
    config = mirrored(brokers, name)
    with slow(source), running(config):
        for share in (0.2, 0.4, 0.6):
            until(lambda share=share: end_of(config, name) > count * share)  # type: ignore[misc]
            source.change_leader(name)
            target.change_leader(name)
        wait_for_same(config, name)
    assert pulled_some(seen)()


@pytest.mark.parametrize("on_gap", ["stop", "continue"])
def test_a_source_that_loses_records_in_the_middle_is_noticed(
    brokers: tuple[Broker, Broker], new_topic_name: Any, on_gap: str, seen: Seen
) -> None:
    source, _ = brokers
    name = new_topic_name()
    tp, count = TopicPartition(name, 0), made(source, name, mebibytes=40)
    config = mirrored(brokers, name, on_gap=on_gap)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin, slow(source), running(config) as mirror:
        until(lambda: end_of(config, name) > count // 3 and pulled_some(seen)())
        cut_off(config, admin, tp, 100)
        if on_gap == "stop":
            until(lambda: any("lost what it had from offset" in f.reason for f in left_out(mirror, tp)))
            before = batches_of(config, "target", name, 0)
            assert before[-1][1] > 100
        else:
            sent(source, name, mebibytes=12)
            wait_for_same(config, name)


def test_a_source_topic_that_is_made_anew_in_the_middle_is_noticed(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen
) -> None:
    source, target = brokers
    name = new_topic_name()
    tp, count = TopicPartition(name, 0), made(source, name, mebibytes=40)
    config = mirrored(brokers, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin, running(config) as mirror:
        with slow(source):
            until(lambda: end_of(config, name) > count // 4 and pulled_some(seen)())
            admin.delete_topics([name]).results()
            until(lambda: name not in admin.list_topics())
            made(source, name, mebibytes=12)
        until(lambda: any("made anew. Delete it in the target" in f.reason for f in left_out(mirror, tp)))
        with Admin(bootstrap_servers=target.bootstrap_servers) as there:
            there.delete_topics([name]).results()
        wait_for_same(config, name)


def test_a_target_topic_that_is_deleted_in_the_middle_is_copied_anew(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen
) -> None:
    source, target = brokers
    name = new_topic_name()
    count = made(source, name, mebibytes=40)
    config = mirrored(brokers, name)
    with Admin(bootstrap_servers=target.bootstrap_servers) as there, running(config):
        with slow(source):
            until(lambda: end_of(config, name) > count // 4 and pulled_some(seen)())
            there.delete_topics([name]).results()
        wait_for_same(config, name)
    assert end_of(config, name) == count


def test_a_fail_over_in_the_middle_ends_it(brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen) -> None:
    source, target = brokers
    name = new_topic_name()
    count = made(source, name, mebibytes=40)
    config = mirrored(brokers, name)
    with slow(source):
        with suppress(FastqError), running(config):
            until(lambda: end_of(config, name) > count // 4 and pulled_some(seen)())
            fail_over(config)
            end = end_of(config, name)
            with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
                producer.send(name, b"mine", partition=0).result()
        assert end < end_of(config, name) <= end + 2


@pytest.mark.parametrize(
    "fault",
    ["THROTTLING_QUOTA_EXCEEDED", "RESOURCE_NOT_FOUND", "UNKNOWN_SERVER_ERROR", "NOT_LEADER_OR_FOLLOWER", "hangs up"],
)
def test_a_target_that_refuses_to_pull_is_copied_to(
    brokers: tuple[Broker, Broker], new_topic_name: Any, fault: str, seen: Seen
) -> None:
    source, target = brokers
    name = new_topic_name()
    count = made(source, name, mebibytes=24)
    config = mirrored(brokers, name)
    if fault == "hangs up":
        target.disconnect("MirrorPull", times=3)
    else:
        target.fail("MirrorPull", error=fault, times=None)
    try:
        with running(config) as mirror:
            wait_for_same(config, name)
            assert mirror.records == count or fault == "hangs up"
    finally:
        target.clear_faults()
    assert seen.asked and (not seen.bytes or fault == "hangs up")


def test_whatever_the_source_refuses_the_target_is_copied_by_the_mirror(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = brokers
    name = new_topic_name()
    count = made(source, name, mebibytes=80)
    config = mirrored(brokers, name)
    monkeypatch.setattr(pulls, "PULL_BYTES", 1)
    monkeypatch.setattr(pulls, "SOON_S", 0.0)
    monkeypatch.setattr(pulls, "AGAIN_S", 0.0)
    target.delay("MirrorPull", seconds=0.1, times=None)  # what fails then fails for the target
    refusals = ["KAFKA_STORAGE_ERROR", "NOT_LEADER_OR_FOLLOWER", "OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_ID", ""]
    try:
        with running(config):
            for error in refusals:
                asked = seen.asked
                until(lambda asked=asked: seen.asked > asked)  # type: ignore[misc]
                source.fail("Fetch", error=error) if error else source.disconnect("Fetch")
            until(lambda: end_of(config, name) == count)
            source.clear_faults()
            wait_for_same(config, name)
    finally:
        source.clear_faults()
        target.clear_faults()
    assert sum(found.source_error is not None for found in seen.outcomes if isinstance(found, Pulled)) >= 3


def test_a_target_that_was_not_told_of_the_source_says_so_once(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastq.mirror")
    source, _ = brokers
    name = new_topic_name()
    count = made(source, name, 4, 64)
    config = same(brokers, name)  # of another number
    with running(config) as mirror:
        wait_for_same(config, name, 4)
        assert mirror.records == 4 * count
    (said,) = [record for record in caplog.records if "by itself" in record.getMessage()]
    assert said.levelname == "INFO"
    assert f"mirror.pull.{config.source.alias}.bootstrap.servers is not set" in said.getMessage()
    assert seen.asked and not seen.bytes


def test_a_target_that_cannot_reach_the_source_is_warned_of_and_copied_to(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    source, another = brokers
    name = new_topic_name()
    made(source, name, mebibytes=16)
    number = next(_numbers)
    alias = f"mirror.pull.A{number}.bootstrap.servers"
    for servers, words in (
        ("127.0.0.1:1", "NETWORK_EXCEPTION"),
        (another.bootstrap_servers, "INCONSISTENT_CLUSTER_ID"),
    ):
        caplog.clear()
        with Broker(in_memory=True, config={**SOON, alias: servers}) as target:
            config = mirrored((source, target), name, number)
            with running(config):
                wait_for_same(config, name)
        (said,) = [record for record in caplog.records if "was told how to fetch" in record.getMessage()]
        assert said.levelname == "WARNING" and words in said.getMessage()
        pulls.SAID = Said()
    assert not seen.bytes


def test_a_mirror_that_stops_in_the_middle_waits_for_nobody(
    brokers: tuple[Broker, Broker], new_topic_name: Any, seen: Seen
) -> None:
    source, target = brokers
    name = new_topic_name()
    made(source, name, mebibytes=24)
    config = mirrored(brokers, name)
    target.delay("MirrorPull", seconds=20.0, times=None)
    try:
        with running(config) as mirror:
            until(lambda: seen.asked > 0)
            threading.Timer(0.0, mirror.stop).start()
            until(lambda: not any(t.name.startswith("fastq-mirror-pull") for t in threading.enumerate()), 10.0)
    finally:
        target.clear_faults()
    with running(config):
        wait_for_same(config, name)


def started(path: str) -> subprocess.Popen[bytes]:
    code = (
        "from fastq.mirror import pulls; pulls.MUCH_BYTES = 1; from fastq.cli import main; main(['mirror', '--config', "
    )
    return subprocess.Popen([sys.executable, "-c", f"{code}{path!r}])"])


@pytest.mark.slow
def test_a_mirror_that_is_killed_in_the_middle_has_lost_and_doubled_nothing(new_topic_name: Any, seen: Seen) -> None:
    name = new_topic_name()
    with Broker(config=SOON) as source, Broker(config={**SOON, **told_of(source)}) as target:
        count = made(source, name, 2, 80)
        config = mirrored((source, target), name)
        path = written(config)
        with slow(source, 0.05):
            for share in (0.1, 0.3, 0.5):
                process = started(path)
                try:
                    until(lambda share=share: end_of(config, name) > count * share)  # type: ignore[misc]
                finally:
                    process.kill()
                    process.wait()
        process = started(path)
        try:
            wait_for_same(config, name, 2)
        finally:
            process.kill()
            process.wait()
        os.unlink(path)


@pytest.mark.slow
def test_sources_and_targets_that_are_killed_in_the_middle_have_the_same_in_the_end(
    new_topic_name: Any, seen: Seen
) -> None:
    name = new_topic_name()
    with Broker(config=SOON) as source, Broker(config={**SOON, **told_of(source)}) as target:
        count = made(source, name, 2, 80)
        config = mirrored((source, target), name)
        with running(config):
            for share, broker in ((0.1, target), (0.3, source), (0.5, target), (0.6, source)):
                with slow(source, 0.05):
                    until(lambda share=share: end_of(config, name) > count * share)  # type: ignore[misc]
                broker.kill()
                broker.start()
            wait_for_same(config, name, 2)
    assert pulled_some(seen)()


@pytest.mark.slow
def test_between_clusters_of_three_whose_leaders_change_it_has_the_same(new_topic_name: Any, seen: Seen) -> None:
    name = new_topic_name()
    with Cluster(3, config=SOON) as source, Cluster(3, config={**SOON, **told_of(source)}) as target:
        made(source, name, 3, 60)
        config = mirrored((source, target), name, replication_factor=3)
        with running(config):
            until(lambda: end_of(config, name) > 0)
            for partition in range(3):
                target.change_leader(name, partition)
                source.change_leader(name, partition)
                sent(source, name, 3, 30)
            target.leader(name, 0).kill()
            sent(source, name, 3, 30)
            wait_for_same(config, name, 3)
    assert pulled_some(seen)()
