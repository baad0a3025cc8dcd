"""What is due is seen to, whatever else the connections' clock is set for."""

import sys
import threading
import time

import pytest

from fastq import Producer


def test_a_tick_in_between_does_not_forget_a_lingering_batch(shared_broker, new_topic_name):
    topic = new_topic_name()
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=400) as producer:
        producer.partitions_for(topic)
        core = producer._parts.core
        with producer._driver.lock:  # so that no other turn comes in between
            producer.send(topic, b"x")
            producer._step()
            due = min(batch.created_s for batch in producer.accumulator.incomplete) + 0.4
            core.tick(time.monotonic())
            assert core.deadline <= due
        producer.flush(10)


def test_short_waits_of_transactions_end(shared_broker, new_topic_name):
    """A wait that is over between two looks at the clock."""
    topic = new_topic_name()
    with Producer(
        bootstrap_servers=shared_broker.bootstrap_servers, transactional_id=topic, max_block_ms=5000
    ) as producer:
        for number in range(300):
            producer._parts.transactions.hold.hold_s = number % 10 * 0.0001
            with producer.transaction():
                producer.send(topic, b"x")
        assert producer.metrics()["transactions_committed_total"] == 300


class Counting(Producer):
    """Counts the turns that sends take."""

    turns = 0

    def _attend(self):
        self.turns += 1
        super()._attend()


def test_a_stream_without_linger_does_not_take_a_turn_a_record(shared_broker, new_topic_name):
    """Records that come faster than a broker answers, but not so fast that they fill batches."""
    topic, count = new_topic_name(), 50_000
    with Counting(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0) as producer:
        producer.partitions_for(topic)
        for _ in range(count):
            producer.send(topic, b"x")
            next_at = time.perf_counter() + 10e-6
            while time.perf_counter() < next_at:
                pass
        producer.flush(30)
        assert producer.turns < count / 2


@pytest.mark.parametrize("burst", [2, 7, 300, 20_000])
def test_what_a_burst_without_linger_leaves_behind_goes_by_itself(shared_broker, new_topic_name, burst):
    topic = new_topic_name()
    done = threading.Semaphore(0)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=0) as producer:
        producer.partitions_for(topic)
        for _ in range(20):
            for _ in range(burst - 1):
                producer.send(topic, b"x")
            producer.send(topic, b"last").add_done_callback(lambda _delivery: done.release())
            assert done.acquire(timeout=30)  # no other call of the producer


def test_the_background_thread_looks_while_others_send(shared_broker, new_topic_name, caplog):
    """Its look at the oldest batch, between two appends of another thread that begin batches: it failed, and lingering records stayed."""
    topic, interval = new_topic_name(), sys.getswitchinterval()
    with Producer(
        bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=1, batch_size=100, compression_type="none"
    ) as producer:
        producer.partitions_for(topic)
        sender, stop = producer._parts.sender, threading.Event()

        def look():
            while not stop.is_set():
                sender._expire(0.0)

        failed = []
        thread = threading.Thread(target=lambda: failed.extend(raised(look)))
        sys.setswitchinterval(1e-6)
        try:
            thread.start()
            for _ in range(20_000):
                producer.send(topic, b"x" * 60)
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            thread.join()
        producer.flush(30)
    assert not failed
    assert not [record for record in caplog.records if "background thread failed" in record.getMessage()]


def raised(work):
    try:
        work()
    except Exception as error:
        return [error]
    return []


def test_the_background_thread_goes_on_after_an_error(shared_broker, new_topic_name, caplog, monkeypatch):
    topic = new_topic_name()
    monkeypatch.setattr("fastq.producer.background.FAILED_PAUSE_S", 0.01)
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers, linger_ms=5) as producer:
        producer.partitions_for(topic)
        run, errors = producer._parts.sender.run, [ValueError("unforeseen")]

        def broken(now):
            if errors and threading.current_thread() is producer._thread:
                raise errors.pop()
            return run(now)

        producer._parts.sender.run = broken
        done = threading.Event()
        producer.send(topic, b"x").add_done_callback(lambda _delivery: done.set())
        assert done.wait(30)  # no other call of the producer
    assert not errors
    (record,) = (record for record in caplog.records if record.name == "fastq.producer" and record.exc_info)
    assert record.getMessage().startswith("the producer's background thread failed")
