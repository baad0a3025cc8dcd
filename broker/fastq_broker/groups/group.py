"""What all kinds of groups have in common: the questions that offsets, listings and deletions ask them.

A group id has one kind at a time: `classic` (JoinGroup and SyncGroup) or `consumer` (KIP-848). Source: Kafka's Group interface.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fastq.values import NamedTuple

if TYPE_CHECKING:
    from fastq_broker.coordinator.shard import CoordinatorRecord


UNKNOWN_MEMBER = ""
NO_GENERATION = -1


class Committer(NamedTuple):
    """Who commits or fetches offsets: all three empty (`""`, -1, None) for an admin client or a consumer without group management."""

    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    """The generation of a classic group, the member's epoch of a consumer group."""
    instance_id: str | None = None


class Group(Protocol):
    """One group, of either kind. Error codes are answered, 0 for none."""

    group_id: str

    @property
    def kind(self) -> str:
        """`classic` or `consumer`, as ListGroups tells it."""

    @property
    def state_name(self) -> str:
        """The state as Kafka's tools show it."""

    @property
    def listed_protocol_type(self) -> str:
        """The protocol type as ListGroups tells it."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members (pending ones of the classic protocol do not count)."""

    def check_commit(
        self, committer: Committer, topic_partitions: Iterable[tuple[str, int]], *, transactional: bool, version: int
    ) -> int:
        """Whether offsets of these partitions may be committed; `version` is that of the request."""

    def note_commit(self, committer: Committer, now_ms: int) -> None:
        """A commit has been accepted: it shows that the member is alive (`now_ms` is monotonic)."""

    def check_fetch(self, committer: Committer) -> int:
        """Whether offsets may be read."""

    def check_delete(self) -> int:
        """Whether the group may be deleted."""

    def check_offset_delete(self) -> int:
        """Whether single offsets may be deleted at all; those of subscribed topics may not."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic, as far as the group knows."""

    def offsets_expire_after(self, commit_timestamp_ms: int) -> int | None:
        """The time from which the retention of an offset counts, given when it was committed; None: it does not expire now."""

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that delete the group, its offsets aside."""
