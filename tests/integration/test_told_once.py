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
from consumer_lives import CONFIG, committed, filled, options

from fastq import Consumer, TopicPartition
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


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config=CONFIG, in_memory=True) as running:
        yield running


@contextmanager
def whose_thread_hears_first(broker: Broker, topic: str, lost: list[TopicPartition]) -> Iterator[Consumer]:
    """A member with one partition of two, as its thread is about to be told of the other. The coordinator stands still for a
    while yet, and has to read, in this order: that the other member leaves, and a heartbeat of the thread."""
    given = options(broker, topic, "consumer", enable_auto_commit=False)
    with Consumer(**given) as consumer, Consumer(topic, **given) as other:
        consumer.subscribe(topic, on_lost=lost.extend)
        end = time.monotonic() + 60
        while not len(consumer.assignment()) == len(other.assignment()) == 1:
            assert time.monotonic() < end
            consumer.poll(timeout=0.05)
            other.poll(timeout=0.05)
        while consumer.position(consumer.assignment()[0]) < 10:
            assert time.monotonic() < end
            consumer.poll(timeout=0.05)
        thread_speaks(consumer)  # over a connection that the broker has accepted
        while consumer.poll(timeout=0.05):
            assert time.monotonic() < end
        assert other._liveness is not None
        other._liveness.close()
        os.kill(broker.pid, signal.SIGSTOP)
        go_on = threading.Timer(0.8, os.kill, (broker.pid, signal.SIGCONT))
        leaves = threading.Thread(target=other.close)
        try:
            go_on.start()
            leaves.start()
            thread_speaks(consumer)
            yield consumer
        finally:
            go_on.join()
            leaves.join()


def thread_speaks(consumer: Consumer) -> None:
    """The native thread sends a heartbeat, as no other is sent."""
    assert consumer._liveness is not None and consumer._liveness._thread is not None
    thread, end = consumer._liveness._thread, time.monotonic() + 60
    with consumer._driver.lock:
        sent = thread.sent
        while thread.sent == sent:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_member_whose_native_thread_hears_of_an_epoch_first_keeps_its_partitions(
    broker: Broker, make_topic: Callable[..., str]
) -> None:
    """Its own heartbeat, which the coordinator reads after that of the thread, is of the epoch before."""
    lost: list[TopicPartition] = []
    with whose_thread_hears_first(broker, filled(broker, make_topic), lost) as consumer:
        end = time.monotonic() + 60
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < end
            consumer.poll(timeout=0.05)
    assert lost == []


def test_a_commit_in_the_epoch_before_that_of_which_a_native_thread_hears_is_made(
    broker: Broker, make_topic: Callable[..., str]
) -> None:
    lost: list[TopicPartition] = []
    topic = filled(broker, make_topic)
    with whose_thread_hears_first(broker, topic, lost) as consumer:
        (mine,) = consumer.assignment()
        consumer.commit()
        assert committed(broker, topic)[mine] == 10
    assert lost == []


@pytest.mark.soak
def test_members_have_their_partitions_whoever_heard_of_them(make_topic: Callable[..., str]) -> None:
    rng = random.Random(1)
    with Broker(config={**CONFIG, "group.consumer.session.timeout.ms": 15_000}, in_memory=True) as broker:
        for _ in range(40):
            topic = make_topic(broker.bootstrap_servers, 2)
            given = {"bootstrap_servers": broker.bootstrap_servers, "group_id": topic, "group_protocol": "consumer"}
            lost: list[TopicPartition] = []
            with Consumer(**given) as first, Consumer(**given) as second:
                first.subscribe(topic, on_lost=lost.extend)
                second.subscribe(topic, on_lost=lost.extend)

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
            assert lost == [], "no session has ended: the coordinator knows them all the time"
