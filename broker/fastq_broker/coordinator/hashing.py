"""Which partition of a coordinator's topic a group or a transactional id belongs to, as Kafka's clients and tools reckon it.

Source: java.lang.String.hashCode, Utils.abs, GroupCoordinatorService.partitionFor, TransactionStateManager.partitionFor.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=10_000)
def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, as a signed 32-bit number. Asked with every request, so it is remembered."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of(key: str, count: int) -> int:
    """The partition of `count` that coordinates `key`. The one number that has no absolute value in Java counts as 0."""
    value = abs(java_hash(key))
    return 0 if value == 1 << 31 else value % count
