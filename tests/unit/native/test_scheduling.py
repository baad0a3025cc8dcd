"""Slices of the scheduler: asked for, read back from the kernel, and given back."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from thread_slices import KNOWS_SLICES, slice_us

from fastq._native.scheduling import SLICE_US_MAX, set_slice_us


def in_a_thread(*steps: int) -> list[tuple[bool, int, int]]:
    """What was answered, what the kernel tells then, and the nice value, after each request."""
    found: list[tuple[bool, int, int]] = []

    def work() -> None:
        for step in steps:
            taken = set_slice_us(step)
            found.append((taken, slice_us() if KNOWS_SLICES else step, os.getpriority(os.PRIO_PROCESS, 0)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


def test_a_thread_has_the_slice_that_it_asked_for_and_then_its_own() -> None:
    before, nice = slice_us() if KNOWS_SLICES else 0, os.getpriority(os.PRIO_PROCESS, 0)
    expected = [20_000, SLICE_US_MAX, before]
    can = sys.platform == "linux"
    assert in_a_thread(20_000, SLICE_US_MAX, 0) == [(can, each, nice) for each in expected]
    assert not KNOWS_SLICES or slice_us() == before  # of no other thread


def test_a_thread_with_another_policy_is_left_alone() -> None:
    found: list[tuple[bool, int]] = []

    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        found.append((set_slice_us(20_000), os.sched_getscheduler(0)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, os.SCHED_IDLE)]


@pytest.mark.parametrize("slice_us", [-1, SLICE_US_MAX + 1])
def test_a_slice_that_no_kernel_takes_is_refused(slice_us: int) -> None:
    with pytest.raises(ValueError, match=f"0 to {SLICE_US_MAX} us long, got {slice_us}"):
        set_slice_us(slice_us)
