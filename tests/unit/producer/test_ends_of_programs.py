"""Programs that end with a producer left open, in odd ways: what was accepted is delivered, and what is not is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from fastq import read_topic

COUNT = 100
SEND = "[producer.send(topic, b'%d' % n) for n in range(100)]"


@pytest.fixture
def servers(shared_broker: Any) -> str:
    return str(shared_broker.bootstrap_servers)


@pytest.fixture
def topic(servers: str, make_topic: Callable[..., str]) -> str:
    return make_topic(servers, 1)


def run(servers: str, topic: str, program: str, client: str = "Producer") -> subprocess.CompletedProcess[str]:
    """A program whose producer lingers for longer than anything here takes."""
    begin = f"""
        import asyncio, atexit, builtins, multiprocessing, sys, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from fastq import AsyncProducer, Producer
        topic = {topic!r}
        def made(**options):
            return {client}(**{{"bootstrap_servers": {servers!r}, "linger_ms": 60000, **options}})
    """
    text = textwrap.dedent(begin) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], timeout=60, capture_output=True, text=True)


def count(servers: str, topic: str) -> int:
    return sum(map(len, read_topic(topic, bootstrap_servers=servers)))


ENDS = {
    "a thread that Python waits for sends on": f"""
        producer = made()
        def work():
            threading.main_thread().join()
            {SEND}
        threading.Thread(target=work).start()
    """,
    "an executor has tasks left": """
        producer, executor = made(), ThreadPoolExecutor(2)
        for n in range(100):
            executor.submit(producer.send, topic, b"%d" % n)
    """,
    "a hook at exit sends": f"""
        producer = made()
        atexit.register(lambda: {SEND})
    """,
    "a process of multiprocessing ends": f"""
        def work():
            global producer
            producer = made()
            {SEND}
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
    """,
    "a thread of a process of multiprocessing makes one when the main thread has ended": f"""
        def work():
            def late():
                global producer
                threading.main_thread().join()
                producer = made()
                {SEND}
            threading.Thread(target=late).start()
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
    """,
    "a process of multiprocessing is made when the main thread has ended": f"""
        def work():
            producer = made()
            time.sleep(0.3)
            {SEND}
            producer.flush()
        def late():
            threading.main_thread().join()
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join()
        threading.Thread(target=late).start()
    """,
    "a daemon thread makes a process of multiprocessing, whose thread sends when its main thread has ended": f"""
        def work():
            def late():
                global producer
                threading.main_thread().join()
                producer = made()
                {SEND}
            made().close()
            threading.Thread(target=late, daemon=False).start()
        def fork():
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join()
        thread = threading.Thread(target=fork, daemon=True)
        thread.start()
        thread.join()
    """,
    "a thread of a process of multiprocessing is being started as those that Python waits for are looked at": f"""
        def work():
            def late():
                global producer
                threading.main_thread().join()
                begun = threading.Thread()
                threading._limbo[begun] = begun
                producer = made()
                {SEND}
                time.sleep(0.3)
                del threading._limbo[begun]
            threading.Thread(target=late).start()
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
    """,
    "a thread of a process of multiprocessing joins all others when its main thread has ended": f"""
        def work():
            def late():
                global producer
                threading.main_thread().join()
                producer = made()
                {SEND}
                for thread in threading.enumerate():
                    if not thread.daemon and thread is not threading.current_thread():
                        thread.join()
            threading.Thread(target=late).start()
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
    """,
    "a thread exits": f"""
        producer = made()
        def work():
            threading.main_thread().join()
            {SEND}
            sys.exit(1)
        threading.Thread(target=work).start()
    """,
}


@pytest.mark.parametrize("end", ENDS)
def test_what_was_accepted_is_delivered(servers: str, topic: str, end: str) -> None:
    done = run(servers, topic, ENDS[end])
    assert count(servers, topic) == COUNT, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_a_callback_that_exits_ends_no_delivery_of_others(servers: str, topic: str, linger_ms: int) -> None:
    """Whoever runs it: a thread of ours goes on, and a program that ends already does not end before the rest is delivered."""
    program = f"""
        producer, sending = made(linger_ms={linger_ms}), True
        def leave(_):
            # A delivery that was done when its callback was added calls it in the program's own thread, which sends no more then.
            if not sending or threading.current_thread() is not threading.main_thread():
                sys.exit(3)
        for n in range(100):
            producer.send(topic, b"%d" % n).add_done_callback(leave)
        sending = False
    """
    done = run(servers, topic, program)
    assert count(servers, topic) == COUNT, done.stderr
    assert "a delivery callback failed" in done.stderr


def test_a_callback_that_exits_ends_the_program_in_its_own_thread(servers: str, topic: str) -> None:
    program = """
        producer = made()
        producer.send(topic, b"").add_done_callback(lambda _: sys.exit(3))
        [producer.send(topic, b"") for _ in range(99)]
        producer.flush()
        print("went on")
    """
    done = run(servers, topic, program)
    # The background thread may have been faster: then it is told, and the program goes on.
    assert done.returncode == 3 if "went on" not in done.stdout else "a delivery callback failed" in done.stderr
    assert count(servers, topic) == COUNT, done.stderr


@pytest.mark.parametrize("kept", ["", "builtins.producer = producer"])
@pytest.mark.parametrize("waits", ["", "await producer.partitions_for(topic)"])
def test_what_an_asyncio_producer_could_not_send_is_told_once(servers: str, topic: str, kept: str, waits: str) -> None:
    """Its loop is over; the records wait in the accumulator, or for the topic's metadata, as all of them do at first."""
    program = f"""
        async def main():
            producer = made()
            {kept}
            {waits}
            {SEND}
        asyncio.run(main())
    """
    done = run(servers, topic, program, "AsyncProducer")
    assert done.stderr.count("100 records were not delivered: the AsyncProducer was not closed") == 1, done.stderr


def test_an_asyncio_producer_of_a_thread_that_python_waits_for_goes_on(servers: str, topic: str) -> None:
    """A process of multiprocessing runs the hook before it waits for its threads."""
    program = """
        def work():
            begun = threading.Event()
            async def main():
                async with made() as producer:
                    await producer.partitions_for(topic)
                    begun.set()
                    while threading.main_thread().is_alive():
                        await asyncio.sleep(0.01)
                    for n in range(100):
                        await producer.send(topic, b"%d" % n)
            threading.Thread(target=lambda: asyncio.run(main())).start()
            begun.wait()
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
    """
    done = run(servers, topic, program, "AsyncProducer")
    assert (count(servers, topic), done.stderr) == (COUNT, "")


@pytest.mark.parametrize(("made_late", "outer"), [(False, ""), (True, ""), (False, "made()")])
def test_what_an_asyncio_producer_of_such_a_thread_could_not_send_is_told_once(
    servers: str, topic: str, made_late: bool, outer: str
) -> None:
    """Also in a process whose parent is one of multiprocessing, and had producers: their hooks are the child's too."""
    program = f"""
        async def end_of_main_thread():
            while threading.main_thread().is_alive():
                await asyncio.sleep(0.01)
        def work():
            begun = threading.Event()
            async def main():
                if {made_late}:
                    begun.set()
                    await end_of_main_thread()
                producer = made()
                await producer.partitions_for(topic)
                begun.set()
                await end_of_main_thread()
                {SEND}
            threading.Thread(target=lambda: asyncio.run(main())).start()
            begun.wait()
        def process(target):
            process = multiprocessing.get_context("fork").Process(target=target)
            process.start()
            process.join()
        def parent():
            {outer}
            process(work)
        process(parent if {outer!r} else work)
    """
    done = run(servers, topic, program, "AsyncProducer")
    assert done.stderr.count("100 records were not delivered: the AsyncProducer was not closed") == 1, done.stderr
