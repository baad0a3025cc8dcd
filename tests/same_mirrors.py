"""Mirrors with the same offsets between two brokers of a module's, and what is looked at in them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mirrors import batches_of
from waiting import until

from fastq import Admin, TopicPartition
from fastq.admin import OffsetSpec
from fastq.errors import UnknownTopicOrPartition
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.lane import Failure
from fastq.mirror.mirror import Mirror
from fastq.mirror.state import consumer_at
from fastq.testing import Broker

_numbers = itertools.count()


@contextmanager
def two_brokers() -> Iterator[tuple[Broker, Broker]]:
    soon = {"group.initial.rebalance.delay.ms": 0, "log.cleaner.backoff.ms": 100}
    with Broker(in_memory=True, config=soon) as source, Broker(in_memory=True, config=soon) as target:
        yield source, target


def same(brokers: tuple[Broker, Broker], name: str, number: int | None = None, **options: Any) -> MirrorConfig:
    """A mirror of its own, for tests share the brokers; `number`: of an earlier one."""
    number = next(_numbers) if number is None else number
    sides = [
        {"alias": f"{a}{number}", "bootstrap.servers": broker.bootstrap_servers}
        for a, broker in zip("AB", brokers, strict=True)
    ]
    mirror = {
        "lanes": 2,
        "refresh_interval_ms": 200,
        "heartbeat_interval_ms": 0,
        "offsets": "same",
        "names": "identity",
    }
    return parse_config({"source": sides[0], "target": sides[1], "mirror": {"topics": [name], **mirror, **options}})


def read(config: MirrorConfig, side: str, topic: str, level: str = "read_uncommitted") -> list[Any]:
    where = config.source if side == "source" else config.target
    with consumer_at(where, isolation_level=level, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return list(consumer.read_to_end())


def values(config: MirrorConfig, side: str, topic: str, level: str) -> list[bytes | None]:
    return [record.value for record in read(config, side, topic, level)]


def stable_end(config: MirrorConfig, side: str, topic: str) -> int:
    """The last stable offset of the first partition; -1 where there is no such topic."""
    where = config.source if side == "source" else config.target
    tp = TopicPartition(topic, 0)
    with Admin(where.common) as admin:
        if topic not in admin.list_topics():
            return -1
        return admin.list_offsets({tp: OffsetSpec.LATEST}, read_committed=True)[tp].result().offset


def left_out(mirror: Mirror, tp: TopicPartition) -> list[Failure]:
    return [lane.failed[tp] for lane in list(mirror.lanes.values()) if tp in lane.failed]


def written(config: MirrorConfig) -> str:
    """A file that says what a configuration says."""
    options = config.options
    lines = [
        "heartbeat_interval_ms = 0",
        f'offsets = "same"\nnames = "identity"\nlanes = 2\ntopics = ["{options.topics[0].pattern}"]',
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
        for name, side in (("source", config.source), ("target", config.target)):
            file.write(f'[{name}]\nalias = "{side.alias}"\nbootstrap.servers = "{side.common["bootstrap_servers"]}"\n')
        file.write("[mirror]\n" + "\n".join(lines) + "\n")
    return file.name


def wait_for_same(config: MirrorConfig, topic: str, partitions: int = 1) -> None:
    """Wait until the target has what the source has now, byte for byte but for the epochs."""
    expected = [batches_of(config, "source", topic, p) for p in range(partitions)]
    assert any(expected)

    def there() -> bool:
        try:
            return [batches_of(config, "target", topic, p) for p in range(partitions)] == expected
        except UnknownTopicOrPartition:  # it is not made yet, or the node that is asked has not heard of it
            return False

    until(there)


def ends_of(config: MirrorConfig, topic: str) -> int:
    with Admin(config.target.common) as admin:
        return (
            admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.LATEST})[TopicPartition(topic, 0)].result().offset
        )
