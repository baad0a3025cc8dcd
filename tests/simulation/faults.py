"""What may befall a cluster, when, and how often: drawn from the seed alone."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from simulation.world import World

if TYPE_CHECKING:
    from simulation.node import Node

NODES = 3
FAULTS_S = 12.0
"""How long faults befall a cluster."""
RELIEF = 0.35
"""How many of them mend what is cut, or start who is down."""
KINDS = {
    "kill": 4,
    "power": 3,
    "kill all": 1,
    "stop": 2,
    "stand still": 3,
    "isolate": 3,
    "isolate from nodes": 3,
    "one way": 4,
    "part": 2,
    "slow": 2,
    "resets": 2,
    "clock": 1,
    "client away": 1,
    "disk error": 2,
    "disk full": 1,
    "restart": 2,
    "restart at a vote": 2,
    "power at a commit": 1,
}
"""What may befall it, and how often. What comes "at" something waits for that: the others reach one node alone, which votes, is killed and
started at once; all lose power where something was just committed. A node that lost power lost what was not synced, where the topic's
records are synced before they are acknowledged; else its process was killed."""
POWER = {
    "power of one": 6,
    "isolate": 2,
    "isolate from nodes": 2,
    "one way": 3,
    "part": 1,
    "slow": 2,
    "stand still": 2,
    "resets": 2,
    "client away": 1,
}
"""What befalls a cluster that acknowledges what is on no disk yet: power goes where all have everything, one node at a time. Whatever
else ends a process meanwhile may cost records."""
POWER_SEEDS = 0.15
FAILS_EACH_S = 3.0
"""How often one of two log directories fails."""


class Fault(NamedTuple):
    """What befalls the cluster at a time; `numbers` say whom, and for how long, drawn once: to leave one out changes no other."""

    at: float
    kind: str
    first: int
    second: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s {self.kind} (node {self.first}, node {self.second}, {self.seconds:.2f} s)"


class Moment:
    """A while after what `look` sees changes; None is nothing seen."""

    def __init__(self, look: Callable[[], Any], delay_s: float) -> None:
        self._look, self._delay_s = look, delay_s
        self._seen: Any = None
        self._at = inf

    def has_come(self, now: float) -> bool:
        seen = self._look()
        if seen is not None and self._seen is not None and seen != self._seen and self._at == inf:
            self._at = now + self._delay_s
        self._seen = seen
        return now >= self._at


def vote_of(node: Node) -> Any:
    """In which epoch it has voted for another, and for whom."""
    broker = node.broker
    if broker is None or not hasattr(broker.controller, "quorum"):
        return None
    machine = broker.controller.quorum.driver.machine
    voted = machine.voted
    return (-1, None) if voted is None or voted.node_id == node.node_id else (machine.epoch, voted)


def watermarks_of(node: Node) -> Any:
    """What it knows of as committed, of the metadata and of all that it leads."""
    broker = node.broker
    if broker is None or not hasattr(broker.controller, "quorum"):
        return None
    led = [each.log.high_watermark for each in broker.replicas if each.shared is not None and each.shared.machine.leads]
    return broker.controller.quorum.driver.machine.high_watermark, sum(led)


def faults_of(seed: int) -> list[Fault]:
    """What befalls the cluster of a seed."""
    random = Random(f"{seed} faults")
    pace_s = random.choice((0.15, 0.5, 1.5))
    weights = POWER if Random(f"{seed} power").random() < POWER_SEEDS else KINDS
    kinds = list(weights)
    if random.random() < 0.5:  # a few kinds, again and again
        kinds = random.sample(kinds, 3)
    at, faults = random.uniform(0.0, 1.0), []
    while at < FAULTS_S:
        relief = random.random() < RELIEF
        kind = (
            random.choice(("mend", "start")) if relief else random.choices(kinds, [weights[each] for each in kinds])[0]
        )
        first, second = random.randrange(1, NODES + 1), random.randrange(1, NODES + 1)
        faults.append(Fault(round(at, 3), kind, first, second, round(random.uniform(0.05, 4.0), 3)))
        at += random.uniform(0.0, 2 * pace_s)
    random = Random(f"{seed} directories that fail")
    at = random.uniform(0.0, FAILS_EACH_S) if World(seed).has("directories") else FAULTS_S
    while at < FAULTS_S:
        node = random.randrange(1, NODES + 1)
        faults.append(Fault(round(at, 3), "directory fails", node, node, round(random.uniform(0.05, 2.0), 3)))
        at += random.uniform(0.0, 2 * FAILS_EACH_S)
    return sorted(faults, key=lambda fault: fault.at)
