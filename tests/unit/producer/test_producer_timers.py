"""What is due is seen to, whatever else the connections' clock is set for."""

import time

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
