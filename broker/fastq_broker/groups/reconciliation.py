"""The way of one member from what it has to what the target assignment gives it (KIP-848).

Rules
- Pure: a member, the target and who owns what go in, the member's next state comes out.
- A partition is taken from its owner before it is given to another: a member is told to revoke, says that it did by what it owns,
  and only then may the next one have it. So no partition has two owners.
- A member leaves its epoch for the target's once nothing is left to revoke. Partitions that others still have follow when they
  are free (UNRELEASED_PARTITIONS).
- What a member is not subscribed to any more is taken from it at once, even while the target is not worked out anew.

| state                 | condition                                | next                                         |
|-----------------------|------------------------------------------|----------------------------------------------|
| STABLE                | epoch is the target's                    | stays; gives up what it no longer subscribes |
| STABLE                | epoch is older                           | steps on                                     |
| UNREVOKED_PARTITIONS  | still owns some of what it shall revoke  | stays; gives up what it no longer subscribes |
| UNREVOKED_PARTITIONS  | owns none of it                          | steps on                                     |
| UNRELEASED_PARTITIONS | any                                      | steps on                                     |
| UNKNOWN               | says that it owns nothing                | steps on, in the target's epoch              |
| UNKNOWN               | otherwise                                | FENCED_MEMBER_EPOCH                          |

"Steps on": with something to revoke, UNREVOKED_PARTITIONS in its old epoch; else the target's epoch, UNRELEASED_PARTITIONS while
others have partitions of its target, STABLE when not. Source: CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

from fastq.errors import FencedMemberEpoch
from fastq.values import NamedTuple

from .consumer_member import NONE_PARTITIONS, Member, MemberState, copied

if TYPE_CHECKING:
    from .assignors import Assignment
    from .consumer_member import Epochs

Owned: TypeAlias = "Mapping[bytes, Collection[int]]"
"""What a member says that it owns: topic id to partitions."""


class Target(NamedTuple):
    """A target assignment, of one member."""

    epoch: int
    partitions: Assignment


def reconcile(
    member: Member,
    target: Target,
    *,
    subscribed: Collection[bytes],
    owner_of: Callable[[bytes, int], str | None],
    owned: Owned | None,
    subscription_changed: bool,
) -> Member:
    """The member's next state; the same object when it stays as it is.

    `subscribed` are the ids of its topics, `owner_of` answers the member id that a partition is assigned to or being
    revoked from, and `owned` is what the member said with this heartbeat (None: it said nothing).
    """
    state = member.state
    if state is MemberState.STABLE and member.member_epoch == target.epoch:
        return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    if state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking):
        return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    if state is MemberState.UNKNOWN:
        if owned is None or any(owned.values()):
            raise FencedMemberEpoch(
                f"member {member.member_id} is in a state that this broker does not know; it must give up all its partitions "
                "and join again"
            )
        member = copied(member, member_epoch=target.epoch)
    return _step(member, target, subscribed, owner_of, owned)


def _step(
    member: Member,
    target: Target,
    subscribed: Collection[bytes],
    owner_of: Callable[[bytes, int], str | None],
    owned: Owned | None,
) -> Member:
    """Go as far towards the target as others let it."""
    kept: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    wanted: dict[bytes, list[int]] = {}
    unreleased = False
    for topic_id in {**target.partitions, **member.assigned}:
        goal = target.partitions.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        for partition, epoch in member.assigned.get(topic_id, NONE_PARTITIONS).items():
            side = kept if partition in goal else revoking
            side.setdefault(topic_id, {})[partition] = epoch
        for partition in goal:
            if partition in kept.get(topic_id, NONE_PARTITIONS):
                continue
            owner = owner_of(topic_id, partition)
            if owner is None or owner == member.member_id:  # its own: it has just revoked it
                wanted.setdefault(topic_id, []).append(partition)
            else:
                unreleased = True
    if revoking and _owns_any(owned, revoking):
        return copied(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
    for topic_id, partitions in wanted.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target.epoch))
    return member.with_epoch(
        target.epoch,
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        assigned=kept,
        revoking={},
    )


def _drop_unsubscribed(member: Member, subscribed: Collection[bytes], owned: Owned | None) -> Member:
    """Take away the topics that the member is not subscribed to; its epoch stays."""
    dropped = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    kept = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id in subscribed}
    revoking = {**member.revoking}
    for topic_id, partitions in dropped.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
    if _owns_any(owned, revoking):
        return copied(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
    return copied(member, assigned=kept)


def _owns_any(owned: Owned | None, epochs: Epochs) -> bool:
    """Whether a member (still) owns any of these. One that says nothing may own all of them."""
    if owned is None:
        return True
    return any(
        partition in epochs[topic_id]
        for topic_id, partitions in owned.items()
        if topic_id in epochs
        for partition in partitions
    )


def is_subset(owned: Owned | None, epochs: Epochs) -> bool:
    """Whether all that a member says it owns is assigned to it. One that says nothing might own more."""
    if owned is None:
        return False
    return all(
        partition in epochs.get(topic_id, NONE_PARTITIONS)
        for topic_id, partitions in owned.items()
        for partition in partitions
    )
