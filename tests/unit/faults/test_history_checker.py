"""The history checker finds each anomaly that it is there for, and nothing in a history without one."""

from __future__ import annotations

import pytest
from history import ABORTED, ACKNOWLEDGED, COMMITTED, REFUSED, UNKNOWN, History, check

FINAL = [(0, 0, 1), (0, 1, 2), (0, 3, 3), (1, 0, 4)]


def test_a_sound_history_has_none() -> None:
    history = History(
        sends=[(1, ACKNOWLEDGED, (0, 0)), (2, ACKNOWLEDGED, (0, None)), (9, UNKNOWN, None), (8, REFUSED, None)],
        transactions=[((2, 3), COMMITTED), ((6, 7), ABORTED), ((4,), UNKNOWN), ((5,), UNKNOWN)],
        polls=[("a/1", 0, 0, 1), ("a/1", 0, 1, 2), ("a/1", 0, 3, 3), ("a/2", 0, 1, 2), ("a/1", 1, 0, 4)],
        final=FINAL,
    )
    assert check(history) == []


@pytest.mark.parametrize(
    ("history", "word"),
    [
        (History(final=[*FINAL, (1, 1, 1)]), "2 times"),
        (History(sends=[(7, ACKNOWLEDGED, (0, 2))], final=FINAL), "lost write"),
        (History(sends=[(1, ACKNOWLEDGED, (0, 2))], final=FINAL), "lies at"),
        (History(sends=[(1, ACKNOWLEDGED, (1, None))], final=FINAL), "lies at"),
        (History(sends=[(1, REFUSED, None)], final=FINAL), "refused"),
        (History(transactions=[((1, 7), COMMITTED)], final=FINAL), "lost write"),
        (History(transactions=[((1, 7), ABORTED)], final=FINAL), "G1a"),
        (History(transactions=[((1, 7), UNKNOWN)], final=FINAL), "torn"),
        (History(polls=[("a", 0, 2, 7)], final=FINAL), "nothing committed"),
        (History(polls=[("a", 0, 1, 7)], final=FINAL), "two values"),
        (History(polls=[("a", 0, 1, 2), ("a", 0, 0, 1)], final=FINAL), "went back"),
        (History(polls=[("a", 0, 0, 1), ("a", 0, 3, 3)], final=FINAL), "skipped"),
    ],
)
def test_each_anomaly_is_found(history: History, word: str) -> None:
    (anomaly,) = check(history)
    assert word in anomaly
