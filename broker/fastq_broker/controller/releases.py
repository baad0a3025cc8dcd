"""Levels of metadata.version by their names, and the levels of all features that a release begins with.

Rules: Apache Kafka 4.3's (MetadataVersion, Feature). A release (`4.0`, `4.0.1`) stands for its last stable level.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fastq.errors import ConfigError
from fastq_broker.config_keys import shown
from fastq_broker.controller.features import ELIGIBLE_LEADER_REPLICAS, KRAFT_VERSION, METADATA_VERSION, SUPPORTED

_FIRST: Final = SUPPORTED[METADATA_VERSION][0]
# Releases in their order, and how many levels each has; 3.3 had others before it was stable.
_RELEASES: Final = {
    "3.3": range(3, 4),
    "3.4": range(1),
    "3.5": range(3),
    "3.6": range(3),
    "3.7": range(5),
    "3.8": range(1),
    "3.9": range(1),
    "4.0": range(4),
    "4.1": range(2),
    "4.2": range(2),
    "4.3": range(1),
}
_NAMES: Final = [f"{release}-IV{number}" for release, numbers in _RELEASES.items() for number in numbers]
LEVELS: Final[Mapping[str, int]] = MappingProxyType({name: _FIRST + at for at, name in enumerate(_NAMES)})
SCRAM_SINCE: Final = LEVELS["3.5-IV2"]
_CHANGES: Final = frozenset(
    LEVELS[name]
    for name in ("3.3-IV3", "3.4-IV0", "3.5-IV2", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV2", "4.0-IV1", "4.3-IV0")
)
"""The levels with which there are records, or fields of them, that the one below does not have (MetadataVersion.didMetadataChange)."""
_KRAFT_1_SINCE: Final = LEVELS["3.9-IV0"]
# The level of each feature from a metadata.version on, where nobody asks for another.
_DEFAULTS: Final = {
    "group.version": (LEVELS["4.0-IV0"], 1),
    "transaction.version": (LEVELS["4.0-IV2"], 2),
    ELIGIBLE_LEADER_REPLICAS: (LEVELS["4.1-IV0"], 1),
    "share.version": (LEVELS["4.2-IV0"], 1),
    "streams.version": (LEVELS["4.2-IV1"], 1),
}
# The metadata.version that a level above 0 needs.
_NEEDS: Final = {ELIGIBLE_LEADER_REPLICAS: LEVELS["4.0-IV1"]}


def name_of(level: int) -> str:
    """The name of a level of metadata.version."""
    return _NAMES[level - _FIRST]


def change_between(low: int, high: int) -> int | None:
    """The highest level above `low`, up to `high`, that has changed what the metadata holds; None where all of them hold the same."""
    return max((level for level in _CHANGES if low < level <= high), default=None)


def level_of(release: str) -> int:
    """The metadata.version of a release, or of a name of one. ConfigError."""
    wanted = ".".join(release.split(".")[:2])
    found = [level for name, level in LEVELS.items() if name == wanted or name.partition("-")[0] == wanted]
    if not found:
        raise ConfigError(
            f"metadata.version {shown(release)} is not known: it takes a release, as in 4.0, or one of {', '.join(_NAMES)}"
        )
    return found[-1]


def mapping_of(release: str | None = None) -> dict[str, int]:
    """The level of each feature that a release begins with, or the newest (Kafka's `kafka-features.sh version-mapping`). ConfigError."""
    metadata = LEVELS[_NAMES[-1]] if release is None else level_of(release)
    return {METADATA_VERSION: metadata, KRAFT_VERSION: int(metadata >= _KRAFT_1_SINCE), **_defaults_at(metadata)}


def _defaults_at(metadata: int) -> dict[str, int]:
    return {name: level if metadata >= since else 0 for name, (since, level) in _DEFAULTS.items()}


def levels_of(asked: Mapping[str, int], release: str | None = None, *, dynamic_quorum: bool) -> dict[str, int]:
    """All feature levels that a directory is formatted with: what is asked for, else what the release begins with.

    `dynamic_quorum`: its voters are in the log, which is kraft.version 1. ConfigError.
    """
    if METADATA_VERSION in asked and release is not None:
        raise ConfigError(
            f"both a release, {release}, and {METADATA_VERSION}={asked[METADATA_VERSION]} are asked for: leave one out"
        )
    for name, level in asked.items():
        if name not in SUPPORTED:
            raise ConfigError(f"feature {shown(name)} is not known: it takes one of {', '.join(sorted(SUPPORTED))}")
        low, high = SUPPORTED[name]
        if not low <= level <= high:
            raise ConfigError(f"{name}={level} is not allowed: it takes {low} to {high}")
    metadata = asked.get(METADATA_VERSION, LEVELS[_NAMES[-1]] if release is None else level_of(release))
    levels = _defaults_at(metadata) | {KRAFT_VERSION: int(dynamic_quorum), METADATA_VERSION: metadata, **asked}
    for name, needed in _NEEDS.items():
        if levels[name] and metadata < needed:
            raise ConfigError(
                f"{name}={levels[name]} is not allowed with {METADATA_VERSION}={metadata} ({name_of(metadata)}): it takes {needed} "
                f"({name_of(needed)}) or more"
            )
    if levels[KRAFT_VERSION] != int(dynamic_quorum):
        raise ConfigError(
            f"{KRAFT_VERSION}={levels[KRAFT_VERSION]} is not allowed: it is 1 where --standalone, --initial-controllers or "
            "--no-initial-controllers is given and controller.quorum.voters is not set, else 0; leave it out"
        )
    return levels
