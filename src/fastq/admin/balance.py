"""A plan that evens out replicas and leaders over nodes with few moves; a pure function over lists of replicas.

Rules of this file:
- In this order: no replica stays on a node that is drained; the replicas of a partition are in as many racks as they can be; nodes have
  equally many replicas, or one more; nodes lead equally many partitions, or one more. A later goal never costs an earlier one.
- Who can stay stays: a replica that comes takes the place in the list of the one that goes. Leaders change by the order of the list alone,
  which copies nothing; of two replicas that could go, the one goes that this plan brings anyway.
- Racks count once every node has one. A node that holds replicas and can take none (it is down) keeps what it has, unless it is drained.
- The number of a partition's replicas stays.
- Evening out goes along chains (a to b to c, where a to c is not possible) from a node to one that has at least two fewer, until
  there is none: then no choice among the same places is more even.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fastq.metadata import TopicPartition


class _Move(NamedTuple):
    """A replica of a partition from one node to another."""

    partition: TopicPartition
    source: int
    target: int


def plan_balance(
    partitions: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    drained: Collection[int] = (),
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that change, with their new replicas, the preferred leader first.

    `racks`: the nodes that may take replicas, and the rack of each. ValueError where too few nodes are left for a partition's replicas.
    """
    plan = _Plan(partitions, racks, drained)
    plan.drain()
    plan.spread()
    plan.even_replicas()
    plan.even_leaders()
    return {tp: tuple(replicas) for tp, replicas in sorted(plan.replicas.items()) if replicas != list(partitions[tp])}


class _Plan:
    """The replicas as they are to be. `counts` and `on` are of the nodes that may take replicas, and always those of `replicas`."""

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Sequence[int]],
        racks: Mapping[int, str | None],
        drained: Collection[int],
    ) -> None:
        self.before = {tp: list(replicas) for tp, replicas in partitions.items()}
        self.replicas = {tp: list(replicas) for tp, replicas in sorted(partitions.items())}
        self.drained = frozenset(drained)
        self.nodes = sorted(set(racks) - self.drained)
        in_racks = all(racks[node] is not None for node in self.nodes)
        self._rack: Mapping[int, str | None] = racks if in_racks else {}
        self.on: dict[int, set[TopicPartition]] = {node: set() for node in self.nodes}
        for tp, replicas in self.replicas.items():
            for node in replicas:
                if node in self.on:
                    self.on[node].add(tp)

    def crowding(self, replicas: Sequence[int]) -> int:
        """How much the replicas share racks: the sum of the squares of how many are in each. A node without one is its own."""
        shared = Counter(self._rack.get(node) or node for node in replicas)
        return sum(count * count for count in shared.values())

    def _replaced(self, move: _Move) -> list[int]:
        return [move.target if node == move.source else node for node in self.replicas[move.partition]]

    def _move(self, move: _Move) -> None:
        self.replicas[move.partition] = self._replaced(move)
        if move.source in self.on:
            self.on[move.source].remove(move.partition)
        self.on[move.target].add(move.partition)

    def _others(self, tp: TopicPartition) -> list[int]:
        """The nodes that a replica of a partition could go to."""
        return [node for node in self.nodes if node not in self.replicas[tp]]

    def drain(self) -> None:
        """Every replica of a drained node goes to where it is least crowded, and to the emptiest of these."""
        for tp, replicas in self.replicas.items():
            for source in [node for node in replicas if node in self.drained]:
                moves = [_Move(tp, source, target) for target in self._others(tp)]
                if not moves:
                    raise ValueError(
                        f"{tp} has {len(replicas)} replicas, and only {len(self.nodes)} of the nodes can have any: "
                        "drain fewer, or give it fewer replicas first"
                    )
                self._move(
                    min(moves, key=lambda move: (self.crowding(self._replaced(move)), len(self.on[move.target])))
                )

    def spread(self) -> None:
        """Partitions whose replicas share a rack that they need not share."""
        for tp in self.replicas:
            while True:
                now = self.crowding(self.replicas[tp])
                moves = [
                    _Move(tp, source, target)
                    for source in self.replicas[tp]
                    if source in self.on
                    for target in self._others(tp)
                ]
                better = [move for move in moves if self.crowding(self._replaced(move)) < now]
                if not better:
                    break
                self._move(
                    min(
                        better,
                        key=lambda move: (
                            self.crowding(self._replaced(move)),
                            move.source in self.before[move.partition],
                            len(self.on[move.target]) - len(self.on[move.source]),
                        ),
                    )
                )

    def even_replicas(self) -> None:
        """Chains of moves from a node with more replicas to one that has at least two fewer."""
        while True:
            counts = {node: len(held) for node, held in self.on.items()}
            chain = _chain(counts, self._replica_to)
            if chain is None or not self._go(chain):
                return

    def _replica_to(self, source: int, target: int) -> _Move | None:
        """The cheapest replica of a node that another can take: one that this plan brought, or takes back to where it was."""
        best, best_cost = None, 3
        for tp in self.on[source]:
            move = _Move(tp, source, target)
            if target in self.replicas[tp]:
                continue
            cost = (source in self.before[tp]) + (target not in self.before[tp])
            if (cost, tp) >= (best_cost, best.partition if best is not None else tp):
                continue
            if self.crowding(self._replaced(move)) <= self.crowding(self.replicas[tp]):
                best, best_cost = move, cost
        return best

    def _go(self, chain: Sequence[_Move]) -> bool:
        """Take all moves of a chain; none, and False, where two of them are of one partition and do not go together."""
        before = {move.partition: self.crowding(self.replicas[move.partition]) for move in chain}
        done: list[_Move] = []
        for move in chain:
            replicas = self.replicas[move.partition]
            fits = move.source in replicas and move.target not in replicas
            if not fits or self.crowding(self._replaced(move)) > before[move.partition]:
                for gone in reversed(done):
                    self._move(_Move(gone.partition, gone.target, gone.source))
                return False
            self._move(move)
            done.append(move)
        return True

    def even_leaders(self) -> None:
        """Chains of partitions that another of their replicas leads."""
        led: dict[int, set[TopicPartition]] = {node: set() for node in self.nodes}
        for tp, replicas in self.replicas.items():
            if replicas and replicas[0] in led:
                led[replicas[0]].add(tp)

        def leader_to(source: int, target: int) -> _Move | None:
            able = led[source] & self.on[target]
            # One that changes anyway is no further line in the plan.
            tp = min(able, key=lambda tp: (self.replicas[tp] == self.before[tp], tp), default=None)
            return None if tp is None else _Move(tp, source, target)

        while (chain := _chain({node: len(held) for node, held in led.items()}, leader_to)) is not None:
            for tp, source, target in chain:
                replicas = self.replicas[tp]
                replicas.remove(target)
                replicas.insert(0, target)
                led[source].remove(tp)
                led[target].add(tp)


def _chain(counts: Mapping[int, int], move: Callable[[int, int], _Move | None]) -> list[_Move] | None:
    """The shortest chain of moves from the fullest node that has one to a node with at least two fewer; None when there is none."""
    for start in sorted(counts, key=lambda node: (-counts[node], node)):
        came: dict[int, _Move | None] = {start: None}
        reached = deque([start])
        while reached:
            source = reached.popleft()
            for target in sorted(counts.keys() - came.keys(), key=lambda node: (counts[node], node)):
                found = move(source, target)
                if found is None:
                    continue
                came[target] = found
                reached.append(target)
                if counts[target] <= counts[start] - 2:
                    return list(_back(came, target))[::-1]
    return None


def _back(came: Mapping[int, _Move | None], node: int) -> Iterator[_Move]:
    """The moves that led to a node, the last one first."""
    while (move := came[node]) is not None:
        yield move
        node = move.source
