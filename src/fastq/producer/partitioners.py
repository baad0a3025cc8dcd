"""Partitioners of one's own, and Kafka's default as a function.

The default needs none of this: keyed records go by murmur2 of the key, keyless ones to a sticky partition, in native code.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fastq._native.hashing import partition_for_key
from fastq.values import Value

if TYPE_CHECKING:
    from typing_extensions import Buffer


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


class Murmur2Partitioner(Value):
    """Kafka's default for keyed records, for use within a partitioner of one's own. `nulls`: hash null keys as empty ones."""

    nulls: bool = False

    def __call__(self, key_bytes: Buffer | None, partitions: Sequence[int], available: Sequence[int]) -> int | None:
        """The partition of the key; None without a key."""
        if key_bytes is None and not self.nulls:
            return None
        return partition_for_key(key_bytes or b"", len(partitions))


class Crc32Partitioner(Value):
    """librdkafka's by CRC32 of the key: with `empty=False` its default, where null and empty keys go as keyless records do here.

    As a producer's `partitioner` that default is native and costs no call a record.
    """

    empty: bool = False

    def __call__(self, key_bytes: Buffer | None, partitions: Sequence[int], available: Sequence[int]) -> int | None:
        """The partition of the key; None where it has no say."""
        key = b"" if key_bytes is None else bytes(key_bytes)
        return zlib.crc32(key) % len(partitions) if key or self.empty else None


class RandomPartitioner(Value):
    """Any available partition, whatever the key."""

    def __call__(self, key_bytes: Buffer | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        """One at random."""
        return random.choice(available or partitions)


class RoundRobinPartitioner:
    """Each record to the next available partition, whatever its key."""

    def __init__(self) -> None:
        self._turn = 0

    def __call__(self, key_bytes: Buffer | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        """The next partition."""
        choices = available or partitions
        self._turn += 1
        return choices[self._turn % len(choices)]


BY_NAME: Mapping[str, Callable[[], Partitioner | None]] = {
    "default": lambda: None,
    "murmur2_random": lambda: None,
    "murmur2": lambda: Murmur2Partitioner(nulls=True),
    "consistent_random": Crc32Partitioner,
    "consistent": lambda: Crc32Partitioner(empty=True),
    "random": RandomPartitioner,
    "round_robin": RoundRobinPartitioner,
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": RoundRobinPartitioner,
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": lambda: None,
}
"""What `partitioner` may be as a name: librdkafka's names (murmur2_random is Java's default and ours), and Java's classes."""
