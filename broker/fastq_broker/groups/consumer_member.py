"""A member of a consumer group (KIP-848), as the group's records say: immutable, replaced as a whole.

Source: ConsumerGroupMember, MemberState.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from fastq.values import Value

Epochs: TypeAlias = "Mapping[bytes, Mapping[int, int]]"
"""Topic id to partition to the epoch at which it was assigned. Topics without partitions are left out."""

NONE_ASSIGNED: Final[Epochs] = MappingProxyType({})
LEAVE_EPOCH: Final = -1
"""The member epoch by which a member leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch by which a static member leaves for a while: its partitions wait for its return, up to the session time-out."""


class MemberState(IntEnum):
    """Where a member is on its way to the target assignment. The numbers are those of the records."""

    STABLE = 1
    """It has what its epoch gives it."""
    UNREVOKED_PARTITIONS = 2
    """It was told to give partitions up, and has not said that it did."""
    UNRELEASED_PARTITIONS = 3
    """It waits for partitions that others still have."""
    UNKNOWN = 127
    """A state that a later version wrote; the member must start from scratch."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ClassicProtocol(Value):
    """A protocol (assignor) that a member of the classic protocol offers, with its embedded subscription."""

    name: str
    metadata: bytes


class ClassicMember(Value):
    """What a member that speaks the classic protocol brings into a consumer group."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True)
class Member:
    """One member. The first block is its metadata record, the second its current assignment record.

    Invariant: `assigned` and `revoking` are disjoint; `revoking` is empty unless the state is UNREVOKED_PARTITIONS.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMember | None = None

    member_epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Epochs = field(default_factory=lambda: NONE_ASSIGNED)
    revoking: Epochs = field(default_factory=lambda: NONE_ASSIGNED)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it has all that the target assignment of that epoch gives it."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def holds(self, topic_id: bytes, partition: int) -> int | None:
        """The epoch at which a partition was assigned to it; None when it does not have it."""
        for epochs in (self.assigned, self.revoking):
            found = epochs.get(topic_id, NONE_PARTITIONS).get(partition)
            if found is not None:
                return found
        return None

    def with_epoch(self, epoch: int, **changes: Any) -> Member:
        """A copy in another epoch: the one before is remembered where it changes."""
        if epoch != self.member_epoch:
            changes["previous_epoch"] = self.member_epoch
        return copied(self, member_epoch=epoch, **changes)

    def same_metadata(self, other: Member) -> bool:
        """Whether the metadata record would be the same."""
        return all(getattr(self, name) == getattr(other, name) for name in METADATA)

    def same_assignment(self, other: Member) -> bool:
        """Whether the current assignment record would be the same."""
        return all(getattr(self, name) == getattr(other, name) for name in ASSIGNMENT)


NONE_PARTITIONS: Final[Mapping[int, int]] = MappingProxyType({})
METADATA: Final = (
    "instance_id",
    "rack_id",
    "client_id",
    "client_host",
    "topic_names",
    "topic_regex",
    "rebalance_timeout_ms",
    "server_assignor",
    "classic",
)
ASSIGNMENT: Final = ("member_epoch", "previous_epoch", "state", "assigned", "revoking")


def copied(member: Member, **changes: Any) -> Member:
    """`dataclasses.replace` without its checks: heartbeats go through here."""
    made = object.__new__(Member)
    made.__dict__.update(member.__dict__)
    made.__dict__.update(changes)
    return made
