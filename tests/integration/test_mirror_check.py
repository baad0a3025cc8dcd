"""`fastq mirror check` finds what is another in the target, and calls nothing another that a running mirror copies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mirrors import configured, cut_off, records_of, running, values_of, wait_for_records
from waiting import until

from fastq import Admin, Producer, TopicPartition
from fastq.mirror import comparison
from fastq.mirror.comparison import Comparison, Far, compare_all
from fastq.mirror.config import MirrorConfig
from fastq.mirror.failover import fail_over
from fastq.testing import Broker

pytestmark = pytest.mark.one_node  # it is between two brokers of its own, one node each

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    soon = {"group.initial.rebalance.delay.ms": 0}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        yield source, target


def made(broker: Broker, name: str, **configs: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(name, 1, configs={key.replace("_", "."): value for key, value in configs.items()})


def send(broker: Broker, name: str, value: bytes | None, key: bytes | None = None, **of: Any) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(name, value, key, partition=0, **of).result()


def checked(config: MirrorConfig, name: str) -> Comparison:
    (found,) = compare_all(config, [name])
    return found


def mirrored(brokers: tuple[Broker, Broker], config: MirrorConfig, name: str) -> None:
    with running(config):
        wait_for_records(brokers[1], f"A.{name}", records_of(brokers[0], name))


@pytest.mark.parametrize("configs", [{}, COMPACTED], ids=["deleted", "compacted"])
def test_what_the_target_has_behind_the_last_record_is_a_difference(
    brokers: tuple[Broker, Broker], new_topic_name: Any, configs: dict[str, str]
) -> None:
    source, target = brokers
    name = new_topic_name()
    config = configured(brokers, [name])
    made(source, name, **configs)
    send(source, name, b"last", b"k")
    mirrored(brokers, config, name)
    assert (checked(config, name).result, checked(config, name).compared) == ("same", 1)
    send(target, f"A.{name}", b"last", b"k")  # as a transaction that is copied twice
    found = checked(config, name)
    assert found.result == "differs", found
    assert ("k" if configs else "offset 2 that was not copied") in (found.detail or "")


def test_the_last_records_of_keys_are_compared_whole(brokers: tuple[Broker, Broker], new_topic_name: Any) -> None:
    source, target = brokers
    name = new_topic_name()
    config = configured(brokers, [name])
    made(source, name, **COMPACTED)
    of = {"timestamp_ms": 1_700_000_000_000, "headers": [("a", b"bc"), ("n", None)]}
    for key in (b"headers", b"time", b"gone"):
        send(source, name, b"value", key, **of)
    send(source, name, None, b"gone", **of)
    mirrored(brokers, config, name)
    for other in (
        {"key": b"headers", "headers": [("ab", b"c"), ("n", None)]},
        {"key": b"headers", "headers": [("a", b"bc"), ("n", b"")]},
        {"key": b"time", "timestamp_ms": 1_700_000_000_001},
    ):
        send(target, f"A.{name}", b"value", **{**of, **other})
        found = checked(config, name)
        assert found.result == "differs" and str(other["key"]) in (found.detail or ""), other
        send(target, f"A.{name}", b"value", other["key"], **of)
        assert checked(config, name).result == "same", "the last record of each key counts"


@pytest.mark.parametrize("configs", [{}, COMPACTED], ids=["deleted", "compacted"])
@pytest.mark.parametrize("offsets", ["translated", "same"])
def test_what_is_copied_meanwhile_is_compared_as_well(
    brokers: tuple[Broker, Broker],
    new_topic_name: Any,
    monkeypatch: pytest.MonkeyPatch,
    configs: dict[str, str],
    offsets: str,
) -> None:
    source, target = brokers
    name = new_topic_name()
    alias = f"A{offsets}{len(configs)}"
    config = configured(brokers, [name], alias=alias, offsets=offsets)
    made(source, name, **configs)
    send(source, name, b"before", b"k")
    bounds = comparison._bounds

    def late(*arguments: Any) -> tuple[int, int, int]:
        """What the mirror brings after it was asked how far it is."""
        found = bounds(*arguments)
        for value in (b"meanwhile", b"once more"):
            send(source, name, value, b"k")
        until(lambda: values_of(target, f"{alias}.{name}")[-1:] == [b"once more"])
        return found

    with running(config):
        until(lambda: values_of(target, f"{alias}.{name}") == [b"before"])
        monkeypatch.setattr(comparison, "_bounds", late)
        found = checked(config, name)
    assert (found.result, found.compared) == ("same", 1 if configs else 3), found


def test_what_others_write_after_a_fail_over_is_none_of_the_mirrors(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source, target = brokers
    name = new_topic_name()
    config = configured(brokers, [name], alias="over")
    made(source, name)
    send(source, name, b"copied")
    with running(config):
        until(lambda: values_of(target, f"over.{name}") == [b"copied"])
    fail_over(config)
    send(target, f"over.{name}", b"anybody's")
    assert (checked(config, name).result, checked(config, name).compared) == ("same", 1)


def test_a_source_that_has_lost_what_was_copied_is_a_difference_at_once(
    brokers: tuple[Broker, Broker], new_topic_name: Any
) -> None:
    source = brokers[0]
    name = new_topic_name()
    config = configured(brokers, [name])
    made(source, name)
    for value in (b"kept", b"lost"):
        send(source, name, value)
    mirrored(brokers, config, name)
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        cut_off(config, admin, TopicPartition(name, 0), 1)
    found = checked(config, name)
    assert found.result == "differs" and "the source ends at offset 1" in (found.detail or "")


class Noting(Far):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, int]] = []

    def at(self, position: int) -> None:
        super().at(position)
        self.noted.append((self.partitions, self.offsets))


@pytest.mark.parametrize("configs", [{}, COMPACTED], ids=["deleted", "compacted"])
def test_how_far_it_is_within_a_partition_is_told(
    brokers: tuple[Broker, Broker], new_topic_name: Any, configs: dict[str, str]
) -> None:
    """Of two topics, one of which has batches for many polls, and begins behind offset 0."""
    source, _ = brokers
    long, short = sorted([new_topic_name(), new_topic_name()])
    config = configured(brokers, [long, short])
    for name, count in ((long, 300), (short, 1)):
        made(source, name, **configs)
        with Producer(bootstrap_servers=source.bootstrap_servers, linger_ms=0, compression_type="none") as producer:
            for n in range(count):
                producer.send(name, bytes(20_000), b"%d" % n, partition=0).result()
    with running(config):
        for name in (long, short):
            wait_for_records(brokers[1], f"A.{name}", records_of(source, name))
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        if not configs:
            admin.delete_records({TopicPartition(long, 0): 10}).results()
    far = Noting()
    assert [found.result for found in compare_all(config, [long, short], far)] == ["same", "same"]
    offsets = 301 if configs else 291
    within = [at for partitions, at in far.noted if partitions == 0]
    assert len(set(within)) > 2 and within == sorted(within) and within[-1] == offsets - 1
    assert far.noted[-1] == (1, offsets)
    assert (far.partitions, far.partitions_in_all, far.offsets, far.offsets_in_all) == (2, 2, offsets, offsets)
    # What is not there any more is done at once.
    with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
        admin.delete_topic(long)
    far = Noting()
    assert [found.result for found in compare_all(config, [long, short], far)] == ["unknown", "same"]
    assert (far.partitions, far.partitions_in_all, far.offsets, far.offsets_in_all) == (2, 2, 1, 1)
