"""Server-side assignors of the consumer group protocol (KIP-848): `uniform` and `range`.

Rules
- Pure functions of the members (subscribed topics, present target) and of the topics' partition counts; the same input gives
  the same answer, whatever the order of sets. A topic that does not exist has no partitions, so it is not in the counts.
- Every partition of a topic that somebody subscribes to goes to exactly one member that subscribes to it.
- uniform: balance before stickiness. No chain of moves could make the loads more even; in a group where all
  subscribe to the same topics the loads differ by one at most, and no fewer partitions could have moved.
- range: each topic for itself. Loads of a topic differ by one at most; what a member keeps are its lowest partitions, so that
  co-partitioned topics stay together. A member keeps what fits its share.
- Racks are not looked at, as in Kafka 4.x: its server-side assignors have no rack awareness.
Source: UniformAssignor, RangeAssignor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from fastq.values import NamedTuple

Partitions: TypeAlias = "frozenset[int]"
Assignment: TypeAlias = "Mapping[bytes, Partitions]"
"""Topic id to partitions; a topic without partitions is left out."""
Assignor: TypeAlias = "Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Assignment]]"


class MemberSpec(NamedTuple):
    """What an assignor knows of a member: the ids of the topics it subscribes to, and its present target."""

    topics: frozenset[bytes]
    target: Assignment


def assign_uniform(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """An assignment as even as can be over all topics together; one entry a member, also for those without partitions."""
    existing = frozenset(partition_counts)
    subscriptions = {member_id: spec.topics & existing for member_id, spec in members.items()}
    way: type[_Uniform] = _Homogeneous if len(set(subscriptions.values())) <= 1 else _Heterogeneous
    draft = way(members, subscriptions, partition_counts)
    draft.keep()
    draft.fill()
    return draft.result()


def assign_range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """An assignment where each topic is spread for itself; one entry a member, also for those without partitions."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            if topic_id in partition_counts:
                subscribers.setdefault(topic_id, []).append(member_id)
    result: dict[str, dict[bytes, Partitions]] = {member_id: {} for member_id in members}
    for topic_id, member_ids in subscribers.items():
        owned = {member_id: members[member_id].target.get(topic_id, frozenset()) for member_id in member_ids}
        for member_id, partitions in _range_of_topic(owned, partition_counts[topic_id]).items():
            if partitions:
                result[member_id][topic_id] = frozenset(partitions)
    return dict(result)


def _range_of_topic(owned: Mapping[str, Partitions], count: int) -> dict[str, list[int]]:
    """The partitions 0 to `count` - 1 among the members of `owned`, given what they have now."""
    share, extras = divmod(count, len(owned))
    kept: dict[str, list[int]] = {}
    taken: set[int] = set()
    for member_id, partitions in owned.items():
        usable = sorted(number for number in partitions if number < count and number not in taken)
        size = share
        if len(usable) > share and extras > 0:
            size += 1
            extras -= 1
        kept[member_id] = usable[:size]
        taken.update(kept[member_id])
    free = [number for number in range(count) if number not in taken]
    position = 0
    for partitions_kept in kept.values():
        missing = share - len(partitions_kept)
        if missing >= 0 and extras > 0:
            missing += 1
            extras -= 1
        if missing > 0:
            partitions_kept.extend(free[position : position + missing])
            position += missing
    return kept


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


class _Uniform:
    """The common part of both ways of `uniform`: who owns what in the draft, and what is still free."""

    def __init__(
        self,
        members: Mapping[str, MemberSpec],
        subscriptions: Mapping[str, frozenset[bytes]],
        partition_counts: Mapping[bytes, int],
    ) -> None:
        self.members = members
        self.subscriptions = subscriptions
        self.member_ids = sorted(members)
        self.owned: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in self.member_ids}
        self.load = dict.fromkeys(self.member_ids, 0)
        subscribed: frozenset[bytes] = frozenset[bytes]().union(*subscriptions.values())
        self.free: dict[bytes, set[int]] = {
            topic_id: set(range(partition_counts[topic_id])) for topic_id in sorted(subscribed)
        }

    def keep(self) -> None:
        """Let members keep what they have, as far as the rules allow."""
        raise NotImplementedError

    def fill(self) -> None:
        """Give away what is free, and even out."""
        raise NotImplementedError

    def give(self, member_id: str, topic_id: bytes, number: int) -> None:
        self.free[topic_id].discard(number)
        self.owned[member_id].setdefault(topic_id, set()).add(number)
        self.load[member_id] += 1

    def still_valid(self, member_id: str) -> list[tuple[bytes, int]]:
        """What the member has now and might keep: subscribed, existing, and not kept by another one; in order."""
        subscribed = self.subscriptions[member_id]
        return [
            (topic_id, number)
            for topic_id, numbers in sorted(self.members[member_id].target.items())
            if topic_id in subscribed
            for number in sorted(numbers)
            if number in self.free[topic_id]
        ]

    def result(self) -> dict[str, Assignment]:
        return {
            member_id: {topic_id: frozenset(numbers) for topic_id, numbers in topics.items() if numbers}
            for member_id, topics in self.owned.items()
        }


class _Homogeneous(_Uniform):
    """All members subscribe to the same topics: each gets its share, and the first comers with more keep one more."""

    def keep(self) -> None:
        if not self.member_ids:
            return
        total = sum(len(numbers) for numbers in self.free.values())
        self.share, self.extras = divmod(total, len(self.member_ids))
        for member_id in self.member_ids:
            usable = self.still_valid(member_id)
            size = self.share
            if len(usable) > self.share and self.extras > 0:
                size += 1
                self.extras -= 1
            for topic_id, number in usable[:size]:
                self.give(member_id, topic_id, number)

    def fill(self) -> None:
        free = deque((topic_id, number) for topic_id, numbers in self.free.items() for number in sorted(numbers))
        for member_id in self.member_ids:
            missing = self.share - self.load[member_id]
            if missing >= 0 and self.extras > 0:
                missing += 1
                self.extras -= 1
            for _ in range(missing):
                self.give(member_id, *free.popleft())


class _Heterogeneous(_Uniform):
    """Members differ in their topics: keep all, give what is free to the least loaded, then move along chains.

    A chain takes a partition from a member to a second one that may have it, one of its partitions to a third, and so on.
    As long as the last one of some chain has two partitions less than the first, a move along it evens the loads; where there is
    none left, no assignment is more even.
    """

    def keep(self) -> None:
        for member_id in self.member_ids:
            for topic_id, number in self.still_valid(member_id):
                self.give(member_id, topic_id, number)

    def fill(self) -> None:
        self.subscribers: dict[bytes, list[str]] = {topic_id: [] for topic_id in self.free}
        for member_id in self.member_ids:
            for topic_id in self.subscriptions[member_id]:
                self.subscribers[topic_id].append(member_id)
        # Topics with few subscribers first: they leave the least choice.
        for topic_id in sorted(self.free, key=lambda topic_id: (len(self.subscribers[topic_id]), topic_id)):
            for number in sorted(self.free[topic_id]):
                member_id = min(self.subscribers[topic_id], key=lambda one: (self.load[one], one))
                self.give(member_id, topic_id, number)
        while self._even_out():
            pass

    def _even_out(self) -> bool:
        """Move along one chain; whether there was one."""
        settled: set[str] = set()
        for member_id in sorted(self.member_ids, key=lambda one: (-self.load[one], one)):
            if member_id in settled:
                continue
            found = self._chain_from(member_id, settled)
            if found:
                for giver, topic_id, taker in found:
                    self._move(giver, topic_id, taker)
                return True
        return False

    def _chain_from(self, start: str, settled: set[str]) -> list[tuple[str, bytes, str]]:
        """The steps of a shortest chain to a member with two partitions less; empty when there is none.

        All that is reached in vain is settled: members with smaller loads that start there later reach nothing else.
        """
        came_from: dict[str, tuple[str, bytes] | None] = {start: None}
        queue = deque([start])
        topics_seen: set[bytes] = set()
        while queue:
            giver = queue.popleft()
            for topic_id, numbers in self.owned[giver].items():
                if not numbers or topic_id in topics_seen:
                    continue
                topics_seen.add(topic_id)
                for taker in self.subscribers[topic_id]:
                    if taker in came_from:
                        continue
                    came_from[taker] = (giver, topic_id)
                    if self.load[taker] <= self.load[start] - 2:
                        return _steps(came_from, taker)
                    queue.append(taker)
        settled.update(came_from)
        return []

    def _move(self, giver: str, topic_id: bytes, taker: str) -> None:
        """Move one partition; one that the taker has now is best, as then nothing moves at all, else the giver's last one."""
        numbers = self.owned[giver][topic_id]
        before = self.members[taker].target.get(topic_id, frozenset())
        number = max(numbers & before or numbers - self.members[giver].target.get(topic_id, frozenset()) or numbers)
        numbers.discard(number)
        self.load[giver] -= 1
        self.give(taker, topic_id, number)


def _steps(came_from: Mapping[str, tuple[str, bytes] | None], last: str) -> list[tuple[str, bytes, str]]:
    """The chain that ends at `last` as (giver, topic id, taker)."""
    steps = []
    taker = last
    while (step := came_from[taker]) is not None:
        steps.append((step[0], step[1], taker))
        taker = step[0]
    return steps
