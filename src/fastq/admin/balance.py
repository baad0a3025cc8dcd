"""A plan that evens out replicas and leaders over nodes with few moves; a pure function over lists of replicas.

Rules of this file:
- In this order: no replica stays on a node that is drained; the replicas of a partition are in as many racks as they can be; nodes have
  equally many replicas, or one more; nodes lead equally many partitions, or one more. A later goal never costs an earlier one.
- Who can stay stays: a replica that comes takes the place in the list of the one that goes. Leaders change by the order of the list alone,
  which copies nothing; of two replicas that could go, the one goes that this plan brings anyway.
- Racks count once every node has one. A node that holds replicas and can take none (it is down) keeps what it has, unless it is drained.
- The number of a partition's replicas stays, unless another is asked for: what goes then is never the preferred leader where another
  can go; what comes is last in the list.
- Evening out goes along chains (a to b to c, where a to c is not possible) from a node to one that has at least two fewer, until
  there is none: then no choice among the same places is more even.
"""

from __future__ import annotations

import itertools
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
    *,
    replication_factor: int | None = None,
) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that change, with their new replicas, the preferred leader first.

    `racks`: the nodes that may take replicas, and the rack of each; `replication_factor`: how many replicas each partition is to have,
    None: as many as it has. ValueError where too few nodes are left for a partition's replicas.
    """
    plan = _Plan(partitions, racks, drained)
    if replication_factor is not None:
        plan.shrink(replication_factor)
    plan.drain()
    if replication_factor is not None:
        plan.grow(replication_factor)
    plan.spread()
    plan.even_replicas()
    plan.even_leaders()
    return {tp: tuple(replicas) for tp, replicas in sorted(plan.replicas.items()) if replicas != list(partitions[tp])}


def held_by_node(partitions: Mapping[TopicPartition, Sequence[int]]) -> Counter[int]:
    """How many replicas each node has."""
    return Counter(node for replicas in partitions.values() for node in replicas)


def led_by_node(partitions: Mapping[TopicPartition, Sequence[int]]) -> Counter[int]:
    """How many partitions each node is the preferred leader of."""
    return Counter(replicas[0] for replicas in partitions.values() if replicas)


Held = dict[TopicPartition, None]
"""Partitions in the order in which they came: of a set, a plan would be another one in each process."""


class _Plan:
    """The replicas as they are to be.

    `on` has the partitions of the nodes that may take replicas, always as `replicas` has them; `brought` are those of them that were not
    there before, `left` those that were there and are not any more.
    """

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
        self.on: dict[int, Held] = {node: {} for node in self.nodes}
        self.brought: dict[int, Held] = {node: {} for node in self.nodes}
        self.left: dict[int, Held] = {node: {} for node in self.nodes}
        for tp, replicas in self.replicas.items():
            for node in replicas:
                if node in self.on:
                    self.on[node][tp] = None

    def _in_rack_of(self, node: int, replicas: Sequence[int]) -> int:
        """How many replicas share a node's rack. A node without one is its own."""
        rack = self._rack.get(node)
        if rack is None:
            return replicas.count(node)
        return sum(self._rack.get(other) == rack for other in replicas)

    def _crowds(self, move: _Move) -> int:
        """How much more, or less, the partition's replicas share racks after a move: 0 is the same."""
        replicas = self.replicas[move.partition]
        rack = self._rack.get(move.source)
        if rack is not None and rack == self._rack.get(move.target):
            return 0
        return self._in_rack_of(move.target, replicas) - self._in_rack_of(move.source, replicas) + 1

    def _fits(self, move: _Move) -> bool:
        replicas = self.replicas[move.partition]
        return move.source in replicas and move.target not in replicas and self._crowds(move) <= 0

    def _move(self, move: _Move) -> None:
        tp, source, target = move
        replicas, before = self.replicas[tp], self.before[tp]
        replicas[replicas.index(source)] = target
        if source in self.on:
            del self.on[source][tp]
            if source in before:
                self.left[source][tp] = None
            else:
                del self.brought[source][tp]
        self.on[target][tp] = None
        if target in before:
            del self.left[target][tp]
        else:
            self.brought[target][tp] = None

    def _moves(self, tp: TopicPartition, sources: Sequence[int]) -> list[_Move]:
        """All ways to have another node in the place of one of some."""
        others = [node for node in self.nodes if node not in self.replicas[tp]]
        return [_Move(tp, source, target) for source in sources for target in others]

    def shrink(self, count: int) -> None:
        """No partition has more replicas: those go that have to anyway, or share a rack, or are on the fullest node."""
        for tp, replicas in self.replicas.items():
            while len(replicas) > count:

                def rank(node: int, replicas: Sequence[int] = replicas) -> tuple[bool, bool, int, int]:
                    held = len(self.on.get(node, ()))
                    return node not in self.on, node != replicas[0], self._in_rack_of(node, replicas), held

                node = max(replicas, key=rank)
                replicas.remove(node)
                if node in self.on:
                    del self.on[node][tp]
                    self.left[node][tp] = None

    def grow(self, count: int) -> None:
        """No partition has fewer replicas: they come where the fewest share a rack, and on the emptiest of these nodes."""
        if count > len(self.nodes):
            raise ValueError(
                f"{count} replicas take {count} nodes, and only {len(self.nodes)} of the nodes can have any"
            )
        for tp, replicas in self.replicas.items():
            while len(replicas) < count:
                others = [node for node in self.nodes if node not in replicas]
                node = min(others, key=lambda node: (self._in_rack_of(node, replicas), len(self.on[node])))
                replicas.append(node)
                self.on[node][tp] = None
                if node in self.before[tp]:
                    del self.left[node][tp]
                else:
                    self.brought[node][tp] = None

    def drain(self) -> None:
        """Every replica of a drained node goes to where it is least crowded, and to the emptiest of these."""
        for tp, replicas in self.replicas.items():
            for source in [node for node in replicas if node in self.drained]:
                moves = self._moves(tp, [source])
                if not moves:
                    raise ValueError(
                        f"{tp} has {len(replicas)} replicas, and only {len(self.nodes)} of the nodes can have any: "
                        f"drain fewer, or give it fewer in the same step (rebalance --replication-factor {len(self.nodes)})"
                    )
                self._move(min(moves, key=lambda move: (self._crowds(move), len(self.on[move.target]))))

    def spread(self) -> None:
        """Partitions whose replicas share a rack that they need not share."""
        for tp, replicas in self.replicas.items():
            while True:
                crowded = [node for node in replicas if node in self.on and self._in_rack_of(node, replicas) > 1]
                better = [move for move in self._moves(tp, crowded) if self._crowds(move) < 0]
                if not better:
                    break
                self._move(min(better, key=self._rank))

    def _rank(self, move: _Move) -> tuple[int, bool, int]:
        """What is best to do first: part most, take a replica that is on its way anyway, from a full node to an empty one."""
        fuller = len(self.on[move.target]) - len(self.on[move.source])
        return self._crowds(move), move.source in self.before[move.partition], fuller

    def even_replicas(self) -> None:
        """Chains of moves from a node with more replicas to one that has at least two fewer."""
        while True:
            chain = _chain({node: len(held) for node, held in self.on.items()}, self._replica_to)
            if chain is None or not self._go(chain):
                return

    def _replica_to(self, source: int, target: int) -> _Move | None:
        """The cheapest replica of a node that another can take: one that this plan brought, or takes back to where it was."""
        brought, left, on = self.brought[source], self.left[target], self.on[source]
        back = [tp for tp in left if tp in on]
        for tp in itertools.chain((tp for tp in back if tp in brought), brought, back, on):
            move = _Move(tp, source, target)
            if self._fits(move):
                return move
        return None

    def _go(self, chain: Sequence[_Move]) -> bool:
        """Take all moves of a chain; none, and False, where two of them are of one partition and do not go together."""
        done: list[_Move] = []
        for move in chain:
            if not self._fits(move):
                for gone in reversed(done):
                    self._move(_Move(gone.partition, gone.target, gone.source))
                return False
            self._move(move)
            done.append(move)
        return True

    def even_leaders(self) -> None:
        """Chains of partitions that another of their replicas leads."""
        led: dict[int, Held] = {node: {} for node in self.nodes}
        for tp, replicas in self.replicas.items():
            if replicas and replicas[0] in led:
                led[replicas[0]][tp] = None

        def leader_to(source: int, target: int) -> _Move | None:
            able = [tp for tp in led[source] if target in self.replicas[tp]]
            # One that changes anyway is no further line in the plan.
            changed = (tp for tp in able if self.replicas[tp] != self.before[tp])
            tp = next(itertools.chain(changed, able), None)
            return None if tp is None else _Move(tp, source, target)

        while (chain := _chain({node: len(held) for node, held in led.items()}, leader_to)) is not None:
            for tp, source, target in chain:
                replicas = self.replicas[tp]
                replicas.remove(target)
                replicas.insert(0, target)
                del led[source][tp]
                led[target][tp] = None


def _chain(counts: Mapping[int, int], move: Callable[[int, int], _Move | None]) -> list[_Move] | None:
    """The shortest chain of moves from the fullest node that has one to a node with at least two fewer; None when there is none."""
    fewest = min(counts.values(), default=0)
    futile: set[int] = set()  # what a fuller node reaches in vain, an emptier one does too
    for start in sorted(counts, key=lambda node: (-counts[node], node)):
        if counts[start] < fewest + 2:
            break
        if start in futile:
            continue
        came: dict[int, _Move | None] = {start: None}
        reached = deque([start])
        while reached:
            source = reached.popleft()
            for target in sorted(counts.keys() - came.keys() - futile, key=lambda node: (counts[node], node)):
                found = move(source, target)
                if found is None:
                    continue
                came[target] = found
                reached.append(target)
                if counts[target] <= counts[start] - 2:
                    return list(_back(came, target))[::-1]
        futile |= came.keys()
    return None


def _back(came: Mapping[int, _Move | None], node: int) -> Iterator[_Move]:
    """The moves that led to a node, the last one first."""
    while (move := came[node]) is not None:
        yield move
        node = move.source
