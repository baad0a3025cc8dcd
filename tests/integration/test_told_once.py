"""A coordinator of the consumer protocol tells an assignment once. Here it stands still again and again, and so does the member, whose
native thread then speaks for it: who hears the assignment is a matter of luck, and each member has its partitions in the end."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from consumer_lives import CONFIG

from fastq import Consumer
from fastq.testing import Broker


@contextmanager
def standing_still(broker: Broker, rng: random.Random) -> Iterator[None]:
    """The broker runs for a moment now and then."""
    over = threading.Event()

    def hold() -> None:
        while not over.is_set():
            os.kill(broker.pid, signal.SIGSTOP)
            over.wait(rng.uniform(0.05, 0.4))
            os.kill(broker.pid, signal.SIGCONT)
            over.wait(rng.uniform(0.001, 0.03))

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.soak
def test_members_have_their_partitions_whoever_heard_of_them(make_topic: Callable[..., str]) -> None:
    rng = random.Random(1)
    with Broker(config={**CONFIG, "group.consumer.session.timeout.ms": 15_000}, in_memory=True) as broker:
        for _ in range(40):
            topic = make_topic(broker.bootstrap_servers, 2)
            given = {"bootstrap_servers": broker.bootstrap_servers, "group_id": topic, "group_protocol": "consumer"}
            with Consumer(topic, **given) as first, Consumer(topic, **given) as second:

                def shared(first: Consumer = first, second: Consumer = second) -> bool:
                    return len(first.assignment()) == len(second.assignment()) == 1

                end = time.monotonic() + 60
                while len(first.assignment()) < 2:
                    assert time.monotonic() < end
                    first.poll(timeout=0.1)
                with standing_still(broker, rng):
                    still_until = time.monotonic() + 8
                    while not shared() and time.monotonic() < still_until:
                        for consumer in (first, second):
                            consumer.poll(timeout=rng.choice((0, 0.01, 0.05)))
                            ctypes.PyDLL(None).usleep(rng.randrange(300_000))  # no Python at all runs meanwhile
                end = time.monotonic() + 60
                while not shared():
                    assert time.monotonic() < end, (first.assignment(), second.assignment())
                    first.poll(timeout=0.05)
                    second.poll(timeout=0.05)
