"""Whole clusters of real brokers on virtual time: they are the same each time."""

from __future__ import annotations

from simulation.scenario import first_record, simulate


def test_three_brokers_replicate_a_record_and_are_the_same_each_time() -> None:
    first, second = (simulate(4, first_record) for _ in range(2))
    assert first.problem is None, "\n".join(first.story)
    assert first.records >= 1
    assert (first.story, first.print, first.steps) == (second.story, second.print, second.steps)
