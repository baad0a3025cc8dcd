"""The thread of a consumer's heartbeats, where the machine has no more threads for a while."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fastq import Consumer


def test_a_thread_that_could_not_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def fail(thread: threading.Thread) -> None:
        tries.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    consumer: Any = Consumer("t", bootstrap_servers="127.0.0.1:1")
    monkeypatch.setattr(consumer, "_group", SimpleNamespace(membership=object()))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            consumer._keep_alive()
    assert tries == ["fastq-heartbeat"] * 2
    monkeypatch.undo()
    consumer.close()
