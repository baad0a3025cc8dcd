"""Where the replicas of new partitions go: striped over racks, and over the brokers of each rack.

Rules: racks are sorted, brokers without one are a rack of their own, and both begin at a random place. Each partition begins one rack
further and takes from each rack one broker further on than the partition before. It leads from an unfenced broker, of the first rack from
there that has one; the other replicas come from the racks in turn, unfenced brokers of a rack before its fenced ones. After as many
partitions as there are unfenced brokers all is shuffled, so that not the same sets come again. Randomness is a parameter.
Source: StripedReplicaPlacer (KIP-36, KIP-1066).
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from fastq_broker.controller.image import BrokerImage


class CannotPlace(Exception):
    """There are not the brokers for as many replicas."""


class _Ring:
    """Brokers in turn: each partition (`turn`) begins one further, and meets each of them once."""

    def __init__(self, brokers: list[int], random: Random) -> None:
        self.brokers = sorted(brokers)
        self._offset = random.randrange(len(brokers)) if brokers else 0
        self._turn = 0
        self._taken = 0

    def next(self, turn: int) -> int | None:
        size = len(self.brokers)
        if not size:
            return None
        if turn != self._turn:
            self._turn = turn
            self._taken = 0
            self._offset = (self._offset + 1) % size
        if self._taken == size:
            return None
        self._taken += 1
        return self.brokers[(self._offset + self._taken - 1) % size]


class _Rack:
    """The brokers of one rack, fenced ones apart."""

    def __init__(self, brokers: list[BrokerImage], random: Random) -> None:
        self.fenced = _Ring([broker.broker_id for broker in brokers if broker.fenced], random)
        self.unfenced = _Ring([broker.broker_id for broker in brokers if not broker.fenced], random)

    def next(self, turn: int) -> int | None:
        found = self.unfenced.next(turn)
        return self.fenced.next(turn) if found is None else found

    def shuffle(self, random: Random) -> None:
        random.shuffle(self.fenced.brokers)
        random.shuffle(self.unfenced.brokers)


class _Placer:
    """The state that goes from partition to partition of one request."""

    def __init__(self, brokers: list[BrokerImage], random: Random) -> None:
        by_rack: dict[str | None, list[BrokerImage]] = {}
        for broker in brokers:
            by_rack.setdefault(broker.rack, []).append(broker)
        names = sorted(by_rack, key=lambda name: (name is not None, name or ""))
        self._racks = [_Rack(by_rack[name], random) for name in names]
        self._sorted = tuple(self._racks)
        self._unfenced = sum(not broker.fenced for broker in brokers)
        self._offset = random.randrange(len(names))
        self._random = random
        self._turn = 0

    def place(self, factor: int) -> tuple[int, ...]:
        if self._turn == self._unfenced > 1:
            self._random.shuffle(self._racks)
            for rack in self._sorted:
                rack.shuffle(self._random)
            self._turn = 0  # Kafka's count: a ring that nobody took from since a turn of that number goes on with it
        count = len(self._racks)
        first = self._offset % count
        while (leader := self._racks[first].unfenced.next(self._turn)) is None:
            first = (first + 1) % count
        replicas = [leader]
        passed: int | None = first  # the leader's rack has given its broker of the first round
        at = self._offset % count
        while len(replicas) < factor:
            if at == passed:
                passed = None
            elif (found := self._racks[at].next(self._turn)) is not None:
                replicas.append(found)
            at = (at + 1) % count
        self._turn += 1
        self._offset += 1
        return tuple(replicas)


def place(brokers: Iterable[BrokerImage], count: int, factor: int, random: Random) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, the leader to be first. Raises CannotPlace.

    Brokers that shut down or have all directories cordoned take none; fenced ones only where there are not enough others.
    """
    usable = [broker for broker in brokers if broker.takes_replicas]
    if all(broker.fenced for broker in usable):
        raise CannotPlace(
            "no broker is there that is neither fenced nor shutting down nor has all its directories cordoned"
        )
    if factor > len(usable):
        raise CannotPlace(
            f"The target replication factor of {factor} cannot be reached because only {len(usable)} broker(s) are registered "
            "that do not shut down and have a directory that is not cordoned"
        )
    placer = _Placer(usable, random)
    return [placer.place(factor) for _ in range(count)]
