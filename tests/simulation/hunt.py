"""Looks for a seed that finds a mistake in the broker.

Rules: a seed finds it that fails with the mistake, in the words that it should fail with, and without it does not; where a trouble that
lasts is what finds it, it does not fail without that either. A seed tells another story after each change of the broker, so that the one
of the table is tried first, and then others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulation.mutations import MUTATIONS, mistaken
from simulation.scenario import Outcome, run_seed
from simulation.world import World


def hunt(name: str, seeds: Iterable[int]) -> Outcome | None:
    """What the first seed that finds it ends with; None where none of them does."""
    for seed in dict.fromkeys([MUTATIONS[name].seed, *seeds]):
        outcome = _found(name, seed)
        if outcome is not None:
            return outcome
    return None


def _found(name: str, seed: int) -> Outcome | None:
    mutation = MUTATIONS[name]
    if mutation.trouble and not World(seed).has(mutation.trouble):
        return None
    with mistaken(name):
        outcome = run_seed(seed)
        if outcome.problem is None or not re.search(mutation.words, outcome.problem):
            return None
        if mutation.trouble and run_seed(seed, without={mutation.trouble}).problem is not None:
            return None
    return None if run_seed(seed).problem is not None else outcome
