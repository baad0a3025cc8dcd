"""What an experiment of a paper is, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Figures = dict[str, float]
Rounds = dict[str, list[Figures]]


@dataclass(frozen=True)
class Run:
    """How much is run: `share` of every number of records, so many rounds, only the sides that are named (none: all)."""

    rounds: int = 3
    share: float = 1.0
    sides: frozenset[str] = frozenset()
    stored_gb: float = 60

    def wants(self, side: str) -> bool:
        return not self.sides or side in self.sides

    def records(self, count: int, batch: int = 1) -> int:
        """The share of a number, whole batches, a few at least."""
        return max(int(count * self.share) // batch, 20) * batch


@dataclass(frozen=True)
class Experiment:
    """One thing that was measured: what was asked, what they had, what is run here, and how its figures are made."""

    name: str
    title: str
    source: str
    asked: str
    machine: str
    had: Mapping[str, Mapping[str, float]]
    """What they had: side -> figure -> number."""
    here: Sequence[str]
    """What is run here, and where it differs."""
    figure: str
    why: Sequence[str]
    """What makes the difference."""
    shown: Mapping[str, str]
    """figure -> the words for it, in the order of the page"""
    measure: Callable[[Run], Rounds]
    left_out: Callable[[Run], Mapping[str, str]] = field(default=lambda run: {})
    """Sides that cannot be run here -> why"""
