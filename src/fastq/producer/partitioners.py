"""Partitioners of one's own, and Kafka's default as a function.

The default needs none of this: keyed records go by murmur2 of the key, keyless ones to a sticky partition, in native code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from typing_extensions import Buffer

from fastq._native.hashing import partition_for_key


class TopicPartitioner(Protocol):
    """What `partitioner=` takes as an object. It may be called from several threads."""

    def partition(
        self, topic: str, key: Any, key_bytes: Buffer | None, value: Any, value_bytes: Buffer | None,
        partitions: Sequence[int], available: Sequence[int],
    ) -> int | None:  # fmt: skip
        """The partition of a record; None leaves it to the default.

        `partitions` are all partitions of the topic, `available` those that have a leader.
        """
        ...


Partitioner: TypeAlias = "TopicPartitioner | Callable[[Buffer | None, Sequence[int], Sequence[int]], int | None]"
"""An object with `partition(...)`, or a function of (key bytes, all partitions, available partitions)."""


def choose_partition(
    partitioner: Partitioner, topic: str, key: Any, key_bytes: Buffer | None, value: Any, value_bytes: Buffer | None,
    partitions: Sequence[int], available: Sequence[int],
) -> int | None:  # fmt: skip
    """Ask a partitioner of either kind."""
    if callable(partitioner):
        return partitioner(key_bytes, partitions, available)
    return partitioner.partition(topic, key, key_bytes, value, value_bytes, partitions, available)


class Murmur2Partitioner:
    """Kafka's default for keyed records, for use within a partitioner of one's own."""

    def __call__(self, key_bytes: Buffer | None, partitions: Sequence[int], available: Sequence[int]) -> int | None:
        """The partition of the key; None without a key."""
        return None if key_bytes is None else partition_for_key(bytes(key_bytes), len(partitions))


class RoundRobinPartitioner:
    """Each record to the next available partition, whatever its key."""

    def __init__(self) -> None:
        self._turn = 0

    def __call__(self, key_bytes: Buffer | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        """The next partition."""
        choices = available or partitions
        self._turn += 1
        return choices[self._turn % len(choices)]
