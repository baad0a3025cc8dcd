"""Whole clusters of real brokers on virtual time: the same each time, well after all that befell them, and not where the code is wrong."""

from __future__ import annotations

import pytest

from simulation.mutations import MUTATIONS, mistaken
from simulation.scenario import first_record, run_seed, simulate


def test_three_brokers_replicate_a_record_and_are_the_same_each_time() -> None:
    first, second = (simulate(4, first_record) for _ in range(2))
    assert first.problem is None, "\n".join(first.story)
    assert first.records >= 1
    assert (first.story, first.print, first.steps) == (second.story, second.print, second.steps)


@pytest.mark.parametrize("seed", range(2))
def test_a_cluster_is_well_after_all_that_befell_it(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.problem is None, f"make simulate SEED={seed} SEEDS=1\n" + "\n".join(outcome.story)
    assert outcome.records > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_in_the_broker_is_found(name: str) -> None:
    with mistaken(name) as mutation:
        outcome = run_seed(mutation.seed)
    assert outcome.problem is not None
