"""The worker threads of a pool, where the machine has no more of them."""

from __future__ import annotations

import threading

import pytest

from fastq import Consumer
from fastq.consumer import ConsumerPool


def test_workers_that_were_begun_end_where_one_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if thread.name.startswith("fastq-worker-"):
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
            begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with Consumer("t", bootstrap_servers="127.0.0.1:1") as consumer:
        with pytest.raises(RuntimeError, match="can't start"):
            ConsumerPool(consumer, lambda record: None, workers=3, drain_timeout=1).run()
        assert [thread.is_alive() for thread in begun] == [False, False]
