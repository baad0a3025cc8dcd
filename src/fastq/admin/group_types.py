"""What the admin clients say about groups and their offsets, and how offsets are to be reset.

Rules of this file: as in `types.py`: names are Kafka's, a list is a tuple, what a broker does not say is None.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from fastq.metadata import Node, OffsetAndMetadata, TopicPartition

__all__ = [
    "CommittedOffset",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "OffsetChange",
    "OffsetReset",
    "PartitionLag",
]


GROUP_TYPES = ("classic", "consumer", "share", "streams")
GROUP_STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "NotReady",
    "Dead",
)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group by id.

    `state`: one of GROUP_STATES ("Assigning" and "Reconciling" of the consumer type, "NotReady" of streams); None before Kafka 2.6.
    `type`: one of GROUP_TYPES ("consumer" is KIP-848's); None before 3.8.
    `protocol_type` is "consumer" for consumers, "connect" for Kafka Connect, "" for a group that has offsets only.
    """

    group_id: str
    protocol_type: str
    state: str | None
    type: str | None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    `assignment` is empty for members that are no consumers, of which `metadata` and `raw_assignment` have the bytes.
    `member_epoch`, `rack_id`, `subscribed_topics`, `subscribed_regex` and `target_assignment` (where the group is heading) are told
    by the consumer type alone; of the classic type `subscribed_topics` is read from `metadata`.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target_assignment: tuple[TopicPartition, ...] | None = None
    member_epoch: int | None = None
    rack_id: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str | None = None
    metadata: bytes = b""
    raw_assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members. `type` is "classic" or "consumer"; the epochs are of the latter. `assignor` is "" without one."""

    group_id: str
    type: Literal["classic", "consumer"]
    state: str
    protocol_type: str
    assignor: str
    members: tuple[GroupMember, ...]
    coordinator: Node
    group_epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it has members, so that offsets cannot be changed from outside."""
        return self.state not in ("Empty", "Dead")


CommittedOffset = OffsetAndMetadata
"""An offset as a group has committed it, by the name that it has here."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition. `committed` is None, and so is `lag`, where it has committed nothing."""

    committed: int | None
    start: int
    end: int

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end; never below zero."""
        return None if self.committed is None else max(0, self.end - self.committed)


ResetKind = Literal["earliest", "latest", "time", "shift", "current", "offset", "offsets"]


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where a group's offsets are to go (KIP-122); made by the class methods.

    An offset outside of what the partition holds becomes the nearest that it does hold.
    """

    kind: ResetKind
    value: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def to_earliest(cls) -> OffsetReset:
        """The first record that is there."""
        return cls("earliest")

    @classmethod
    def to_latest(cls) -> OffsetReset:
        """The end: only what comes from now on."""
        return cls("latest")

    @classmethod
    def to_datetime(cls, when: datetime | int) -> OffsetReset:
        """The first record at or after a time (milliseconds since the epoch, or a datetime; without a zone it is local)."""
        return cls("time", int(when.timestamp() * 1000) if isinstance(when, datetime) else when)

    @classmethod
    def by_duration(cls, duration: timedelta, *, now_ms: int | None = None) -> OffsetReset:
        """The first record of the last `duration`. Counted from this machine's clock, or from `now_ms`."""
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        return cls("time", now_ms - int(duration.total_seconds() * 1000))

    @classmethod
    def shift_by(cls, records: int) -> OffsetReset:
        """So many offsets further, or back where it is negative, from what is committed."""
        return cls("shift", records)

    @classmethod
    def to_current(cls) -> OffsetReset:
        """What is committed now, and the end where nothing is: writes down a start for every partition."""
        return cls("current")

    @classmethod
    def to_offset(cls, offset: int) -> OffsetReset:
        """One offset for all partitions."""
        return cls("offset", offset)

    @classmethod
    def to_offsets(cls, offsets: Mapping[TopicPartition, int]) -> OffsetReset:
        """An offset for each partition, as from a file; others stay as they are."""
        return cls("offsets", offsets=dict(offsets))


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does, or would do, to one partition. `before` is None where nothing was committed."""

    before: int | None
    after: int
    start: int
    end: int
    clamped: bool = False
    """The offset asked for is not there, and `after` is the nearest that is."""
