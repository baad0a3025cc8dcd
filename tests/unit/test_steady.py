"""What `make steady` reads from a run of the tests, and what it writes down."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import steady  # isort: skip

PRINTED = """
FAILED tests/unit/log/test_a.py::test_b[1] - AssertionError: assert 3 passed in 2
===== 1 failed, 4120 passed, 3 warnings in 201.02s (0:03:21) =====
1 passed in the middle of a line
840 passed, 1 warning in 300.00s (0:05:00)
ERROR tests/spark/test_c.py - OSError
================== 1 error in 3.10s ==================
"""


def test_all_parts_of_a_run_are_counted_and_who_failed_is_named():
    outcome = steady.Outcome(PRINTED.splitlines())
    assert (outcome.passed, outcome.parts) == (4960, 3)
    assert outcome.words(2) == "4960 passed, failed: tests/unit/log/test_a.py::test_b[1], tests/spark/test_c.py"
    assert steady.Outcome(["===== 12 passed in 1.00s ====="]).words(0) == "12 passed"


def test_a_run_that_ends_before_a_test_did_is_none_that_passed():
    assert "failed: nobody, but make ended with 137" in steady.Outcome([]).words(137)


def test_a_run_is_added_and_the_first_line_counts_anew():
    one = steady.written_down("2026-01-01 00:00 abcd: 7 passed", "")
    two = steady.written_down("2026-01-02 00:00 abce: 6 passed, failed: tests/x.py::y", one)
    assert two.splitlines() == [
        "# make test, run 2 times, each the first try: 1 times all passed",
        "2026-01-01 00:00 abcd: 7 passed",
        "2026-01-02 00:00 abce: 6 passed, failed: tests/x.py::y",
    ]
