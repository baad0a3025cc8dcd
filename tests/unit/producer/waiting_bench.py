"""What tests of sends that wait share: an asyncio producer that runs one coroutine, metadata that is held back, and what was committed."""

import asyncio
import contextlib
import threading

from fastq import Consumer
from fastq.producer import AsyncProducer


def committed(broker, topic):
    """Values that readers of committed records get."""
    with Consumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        return [record.value for record in consumer.read_to_end()]


def run(main, broker, **options):
    async def whole():
        options.setdefault("transactional_id", f"waits-{main.__qualname__}")
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            return await asyncio.wait_for(main(producer), 40)

    return asyncio.run(whole())


@contextlib.contextmanager
def no_metadata(producer):
    """No topic is known while the block runs, whatever the broker answers."""
    sender = producer._parts.sender
    there, sender.topic_ready = sender.topic_ready, lambda *_: None
    try:
        yield
    finally:
        sender.topic_ready = there


@contextlib.contextmanager
def sent_by_another(producer, topic, value):
    """A send of another thread waits for the topic's metadata; what it raised is in the list, once the block and it are over."""
    raised = []

    def send():
        try:
            producer.send(topic, value)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    with no_metadata(producer):
        thread.start()
        while topic not in producer._parts.core.metadata_updater._topics:
            thread.join(0.01)
        yield raised
    thread.join(20)
