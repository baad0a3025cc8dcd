"""What is due is seen to, whatever else the connections' clock is set for."""

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
