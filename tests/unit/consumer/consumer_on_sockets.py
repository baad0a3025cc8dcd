"""Consumers of a small cluster of our own, over real sockets, and what it is filled with."""

from __future__ import annotations

from typing import Any

from consumer_fakes import SocketCluster

from fastq import AsyncConsumer, Consumer


def fill(cluster: SocketCluster, topic: str = "logs", partitions: int = 2, batches: int = 5, rows: int = 4) -> int:
    """Batches of rows whose value is their offset; how many rows there are."""
    for log in cluster.create(topic, partitions):
        for _ in range(batches):
            log.append([(b"k", b"%d" % (log.end + n)) for n in range(rows)])
    return partitions * batches * rows


def consumer(cluster: SocketCluster, *topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, **{"bootstrap_servers": cluster.bootstrap, "auto_offset_reset": "earliest", **options})


def async_consumer(cluster: SocketCluster, *topics: str, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(
        *topics, **{"bootstrap_servers": cluster.bootstrap, "auto_offset_reset": "earliest", **options}
    )


def in_order(records: Any, count: int) -> None:
    """Every record once, in order within its partition."""
    seen: dict[int, list[int]] = {}
    for record in records:
        assert record.value == b"%d" % record.offset
        seen.setdefault(record.partition, []).append(record.offset)
    assert sum(map(len, seen.values())) == count
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())
