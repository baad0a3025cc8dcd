"""Signals that stop something: what becomes of their handlers."""

from __future__ import annotations

import signal

import pytest

from fastq.consumer.interrupts import StopOnSignal


def test_a_signal_that_cannot_be_handled_leaves_the_others_as_they_were() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(OSError), StopOnSignal(object(), (signal.SIGUSR1, signal.SIGKILL)):
        raise AssertionError("it is not entered")
    assert signal.getsignal(signal.SIGUSR1) == before
