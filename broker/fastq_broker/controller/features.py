"""Feature levels: what this node supports, and what a newly formatted directory is finalized at.

Rules: levels are Kafka 4.3's numbers (MetadataVersion, Feature). A directory whose finalized level lies outside the
supported range is refused, never changed. Levels for share and streams groups are supported, so that a directory of
Apache Kafka opens here, but a directory formatted here leaves them at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"

# name: (lowest, highest) level this node can work at. 7 is 3.3-IV3, the first of KRaft; 30 is 4.3-IV0.
SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    METADATA_VERSION: (7, 30),
    KRAFT_VERSION: (0, 1),
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
    "group.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
# What a directory is formatted with, in the order of the bootstrap records: metadata.version comes first.
BOOTSTRAP: Final[Mapping[str, int]] = {
    METADATA_VERSION: 30,
    ELIGIBLE_LEADER_REPLICAS: 1,
    "group.version": 1,
    "transaction.version": 2,
}


def unsupported(finalized: Mapping[str, int]) -> list[str]:
    """What of the finalized levels this node cannot work at, in words; empty when it can work at all of them."""
    problems = []
    for name, level in finalized.items():
        lowest, highest = SUPPORTED.get(name, (0, 0))
        if level != 0 and not lowest <= level <= highest:
            problems.append(f"{name} is finalized at {level}, this node supports {lowest} to {highest}")
    return problems
