"""Producers that nobody has any more, and nobody has closed: what they have is delivered, and nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from stored_log import Log

from fastq import AsyncProducer, Producer
from fastq.errors import ConfigError
from fastq.producer import lifetime

pytestmark = pytest.mark.filterwarnings("ignore:.*was dropped without close")


@pytest.fixture
def without_collections():
    """The end of a producer is that of its last reference, not some later collection."""
    gc.disable()
    yield
    gc.enable()


def check_gone(producer: weakref.ref[Any], thread: threading.Thread | None) -> None:
    if thread is not None:
        thread.join(20)
        assert not thread.is_alive()
    assert producer() is None and not any(found() is None for found in lifetime._open.values())


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("linger_ms", [0, 5, 60_000])
def test_what_is_undelivered_is_delivered(shared_broker, topic, without_collections, linger_ms, flushed):
    producer = Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=linger_ms, batch_size=1000)
    deliveries = [producer.send(topic, b"%d" % i, partition=0) for i in range(200)]
    if flushed:
        producer.flush(20)
    driver, thread, reference = producer._driver, producer._thread, weakref.ref(producer)
    del producer
    assert [delivery.result(20).offset for delivery in deliveries] == list(range(200))
    check_gone(reference, thread)
    assert driver._closed and not driver._sockets
    called = []
    deliveries[0].add_done_callback(called.append)  # nobody is left to run it but this thread
    assert called == [deliveries[0]]


def test_one_that_has_sent_nothing_is_closed_at_once(shared_broker, make_topic, without_collections):
    topic = make_topic(shared_broker.bootstrap_servers, 2)
    for use in (lambda producer: None, lambda producer: producer.partitions_for(topic)):
        producer = Producer(bootstrap_servers=shared_broker.bootstrap_servers)
        use(producer)
        driver, reference = producer._driver, weakref.ref(producer)
        with pytest.warns(ResourceWarning, match="<Producer .* was dropped without close"):
            del producer
        check_gone(reference, None)
        assert driver._closed and not driver._sockets


class ClosesItself(Producer):
    """A class of a user's, whose end does what `close` does too."""

    def __del__(self) -> None:
        super().__del__()
        self.close()


def test_one_that_closes_itself_at_its_end_waits_for_nobody(without_collections):
    def drop() -> None:
        producer = ClosesItself(bootstrap_servers="127.0.0.1:1")
        del producer
        ended.set()

    ended = threading.Event()
    threading.Thread(target=drop, daemon=True).start()
    assert ended.wait(20)


def test_callbacks_run_and_may_send(shared_broker, topic):
    """As one that sends a record that was refused to another topic; it keeps the producer until its batch is done."""
    producer: Any = Producer(bootstrap_servers=shared_broker.bootstrap_servers)
    done, thread = threading.Event(), None

    def again(delivery, producer=producer):
        producer.send(topic, b"second").add_done_callback(lambda _delivery: done.set())

    producer.send(topic, b"first").add_done_callback(again)
    thread, reference = producer._thread, weakref.ref(producer)
    del producer, again
    assert done.wait(20)
    gc.collect()
    check_gone(reference, thread)
    assert [record.value for record in Log(shared_broker, topic).partitions()[0]] == [b"first", b"second"]


@pytest.mark.parametrize("used", [False, True])
def test_what_is_sent_by_a_collection_that_ends_it_is_delivered(shared_broker, topic, used):
    """The collection may end the producer before what sends with it."""

    class Sends:
        def __init__(self, producer):
            self.producer = producer
            self.myself = self

        def __del__(self):
            deliveries.append(self.producer.send(topic, b"farewell"))

    producer: Any = Producer(bootstrap_servers=shared_broker.bootstrap_servers)
    producer.partitions_for(topic)
    if used:
        producer.send(topic, b"before").result(20)
    deliveries: list[Any] = []
    around = [Sends(producer) for _ in range(3)]
    reference, producer.around = weakref.ref(producer), around
    del around, producer
    end = time.monotonic() + 20
    while len(deliveries) < 3 and time.monotonic() < end:  # the thread has a reference of its own now and then
        gc.collect()
    assert sorted(delivery.result(20).offset for delivery in deliveries) == [used, used + 1, used + 2]
    assert reference() is None  # what a collection has ended and somebody keeps has lost its weak references
    assert lifetime._dropped
    for found in list(lifetime._dropped.values()):
        found()._thread.join(20)
    assert not lifetime._dropped


def test_an_open_transaction_is_aborted(shared_broker, topic):
    producer: Any = Producer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=topic)
    producer.begin_transaction()
    producer.send(topic, b"undecided").result(20)
    thread, reference, transactions = producer._thread, weakref.ref(producer), producer._parts.transactions
    del producer
    check_gone(reference, thread)
    assert transactions.aborted_total == 1


def test_without_a_thread_the_exit_delivers(shared_broker, topic, monkeypatch):
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    producer: Any = Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=60_000)
    producer.partitions_for(topic)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        delivery = producer.send(topic, b"x")
    reference, key = weakref.ref(producer), id(producer)
    del producer
    kept: Any = lifetime._open[key]()
    assert kept is reference() is not None
    kept._close_at_exit()
    assert delivery.result(0).offset == 0
    del kept
    check_gone(reference, None)


def test_without_a_thread_the_next_producer_sees_to_it(shared_broker, topic, monkeypatch):
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    producer: Any = Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=60_000)
    producer.partitions_for(topic)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_more)
        delivery = producer.send(topic, b"x")
    reference = weakref.ref(producer)
    del producer
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers):
        thread = reference()._thread
        assert delivery.result(20).offset == 0
        check_gone(reference, thread)


@pytest.mark.parametrize("delivered", [True, False])
def test_asyncio(shared_broker, topic, capfd, delivered):
    async def main():
        producer = AsyncProducer(
            bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0 if delivered else 60_000
        )
        delivery = await producer.send(topic, b"x")
        if delivered:
            await delivery
        return weakref.ref(producer)

    with pytest.warns(ResourceWarning, match="<AsyncProducer .* was dropped without close"):
        reference = asyncio.run(main())
        gc.collect()
    check_gone(reference, None)
    assert ("1 record was not delivered" in capfd.readouterr().err) is not delivered


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_does_not_keep_the_end_from_running(shared_broker, topic):
    """Sent by the system between any two lines, `__del__`'s first among them: what was accepted is delivered all the same."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    deliveries = []
    try:
        for delay_us in range(0, 400, 10):
            with contextlib.suppress(KeyboardInterrupt):
                producer: Any = Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=60_000)
                deliveries.append(producer.send(topic, b"x", partition=0))
                signal.setitimer(signal.ITIMER_REAL, delay_us / 1e6 + 1e-6)
                del producer
                time.sleep(0.001)  # a wait on a lock, in Python, may be interrupted with the lock half taken
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sorted(delivery.result(20).offset for delivery in deliveries) == list(range(len(deliveries)))
    gc.collect()
    for found in list(lifetime._dropped.values()):
        found()._thread.join(20)
    assert not lifetime._dropped


def test_what_failed_in_init_has_no_end():
    with pytest.raises(ConfigError):
        Producer(linger_ms="soon")  # type: ignore[arg-type]  # what is tested


def test_one_that_outlives_the_modules_lets_the_interpreter_end(shared_broker, topic):
    """What a class keeps alive is collected last, when the names of modules are None: the process had turned for ever."""
    program = f"""
        from fastq import Producer
        from fastq.net.blocking import BlockingDriver

        producer = Producer(bootstrap_servers={shared_broker.bootstrap_servers!r})
        BlockingDriver.kept = lambda: producer
        producer.send({topic!r}, b"said", partition=0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=30, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Log(shared_broker, topic).values() == [b"said"]


def test_one_that_another_thread_closes_meanwhile_leaves_the_others_to_the_end(monkeypatch):
    """The hook at exit looks whether there is one, and then it is gone; what was left to a thread is seen to behind that."""
    told = []

    class Closing(dict):
        def __bool__(self):
            there = len(self) > 0
            if told:
                self.clear()
            return there

    left = SimpleNamespace(_close_at_exit=lambda: told.append("left"))
    monkeypatch.setattr(lifetime, "_ending", False)
    monkeypatch.setattr(lifetime, "_open", Closing({2: lambda: left, 1: lambda: left}))
    lifetime.close_all()
    assert list(lifetime._open) == [1] and told == ["left"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_child_of_a_process_that_ends_goes_on(monkeypatch):
    """A sys.exit() in a callback of its main thread ends it."""
    monkeypatch.setattr(lifetime, "_ending", True)
    pid = os.fork()
    if pid == 0:
        os._exit(int(lifetime.is_ending()))
    assert os.waitpid(pid, 0)[1] == 0


def test_where_no_thread_can_be_had_it_is_said_that_nobody_closes_at_exit(monkeypatch, caplog):
    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    for _ in range(2):  # the next to ask tries again
        lifetime._close_behind_threads()
    assert [record.message[:44] for record in caplog.records] == ["there is no thread to close producers at exi"] * 2


def test_without_a_thread_to_close_at_exit_the_next_producer_tries_it_again(monkeypatch, caplog):
    """In a process of multiprocessing whose main thread has ended: the first one was the only one to try."""

    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    def ended(hook):
        raise RuntimeError("can't register atexit after shutdown")

    begun = []
    monkeypatch.setitem(sys.modules, "multiprocessing.process", SimpleNamespace(parent_process=lambda: 1))
    monkeypatch.setattr(threading, "_register_atexit", ended)
    monkeypatch.setattr(lifetime, "_pid_with_hook", -1)
    monkeypatch.setattr(lifetime, "_closer_place", threading.Lock())
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    lifetime._see_to_the_end()
    assert "there is no thread to close producers at exit" in caplog.text
    monkeypatch.setattr(threading.Thread, "start", lambda thread: begun.append(thread.name))
    for _ in range(2):
        lifetime._see_to_the_end()
    assert begun == ["fastq-at-exit"]
