"""The producer's background thread, where the machine has no more threads for a while."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastq import Producer


def test_a_thread_that_could_not_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    start = threading.Thread.start

    def not_at_first(thread: threading.Thread) -> None:
        if thread.name == "fastq-producer":
            tries.append(thread.name)
            if len(tries) == 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    producer: Any = Producer(bootstrap_servers="127.0.0.1:1")
    monkeypatch.setattr(threading.Thread, "start", not_at_first)
    try:
        for _ in range(3):
            producer._wake_background()
        assert len(tries) == 2 and producer._thread.is_alive()
    finally:
        producer.close(timeout=0)
