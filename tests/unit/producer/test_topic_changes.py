"""Topics that get partitions, or are made anew with fewer, while a producer has them: nobody waits for metadata_max_age_ms."""

import asyncio
from functools import partial

import pyarrow
import pytest

from fastq import Admin, Consumer
from fastq.errors import UnknownTopicOrPartition
from fastq.interceptors import ProducerInterceptor
from fastq.producer import AsyncProducer
from fastq.producer.calls import Wait
from fastq.producer.delivery import SendManyError


@pytest.fixture
def admin(shared_broker):
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        yield admin


def add_partitions(admin, topic):
    """Four, from now on."""
    admin.create_partitions({topic: 4})[topic].result()


def stored(broker, topic):
    """Partition and value of each record; of any number of nodes, whose files a test would have to find."""
    with Consumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        return [(record.partition, record.value) for record in consumer.read_to_end()]


def run(main, broker, **options):
    async def whole():
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
            return await asyncio.wait_for(main(producer), 40)

    return asyncio.run(whole())


ROWS = {
    "list": lambda count: {"values": [b"x"] * count, "partition": 3},
    "table": lambda count: {
        "values": pyarrow.table({"value": [b"x"] * count, "partition": [i % 4 for i in range(count)]})
    },
}


@pytest.mark.parametrize("rows", ["list", "table"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_send_many_takes_partitions_that_were_added(make, make_topic, shared_broker, admin, asynchronous, rows):
    topic = make_topic(shared_broker.bootstrap_servers, 1)
    widen = partial(add_partitions, admin, topic)
    given = ROWS[rows](100)

    async def main(producer):
        await (await producer.send(topic, b"x"))
        await asyncio.to_thread(widen)
        assert (await (await producer.send_many(topic, **given))).count == 100
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
            await producer.send_many(topic, [b"x"], partition=99)
        with pytest.raises(ValueError, match="got -1"):
            await producer.send_many(topic, [b"x"], partition=-1)

    if asynchronous:
        run(main, shared_broker)
        return
    producer = make()
    producer.send(topic, b"x").result(10)
    widen()
    assert producer.send_many(topic, **given).result(10).count == 100
    with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
        producer.send_many(topic, [b"x"], partition=99)
    with pytest.raises(ValueError, match="got -1"):
        producer.send_many(topic, [b"x"], partition=-1)


class LateAnswer:
    """The next answer with metadata of a producer is held back: it comes when metadata is asked for a partition, from before that."""

    def __init__(self, producer):
        self.core, self.held = producer._parts.core, []
        self.updater = self.core.metadata_updater
        self.done, self.updater._done = self.updater._done, lambda *answer: self.held.append(answer)
        self.ask, self.core.request_metadata_update = self.core.request_metadata_update, self.asked
        self.ask("the test wants an old answer")

    def asked(self, reason):
        self.ask(reason)
        self.updater._done = self.done
        while self.held:
            self.done(*self.held.pop())

    def here(self):
        """A call for `_run`, which ends when it is there."""
        yield Wait(lambda: bool(self.held), 20)
        assert self.held


@pytest.mark.parametrize("call", ["send", "send_many"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_metadata_that_was_asked_for_before_does_not_decide(make, make_topic, shared_broker, admin, asynchronous, call):
    """An answer that was on its way when the partition was asked for may be from before there was one."""
    topic = make_topic(shared_broker.bootstrap_servers, 1)
    widen = partial(add_partitions, admin, topic)
    value = b"x" if call == "send" else [b"x"]

    async def main(producer):
        await producer.partitions_for(topic)
        late = LateAnswer(producer)
        await producer._run(late.here())
        await asyncio.to_thread(widen)
        await (await getattr(producer, call)(topic, value, partition=3))

    if asynchronous:
        run(main, shared_broker)
    else:
        producer = make()
        producer.partitions_for(topic)
        late = LateAnswer(producer)
        producer._run(late.here())
        widen()
        getattr(producer, call)(topic, value, partition=3).result(10)
    assert stored(shared_broker, topic) == [(3, b"x")]


@pytest.mark.parametrize("call", ["keys", "no keys", "send_many", "send_many without keys"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_topic_made_anew_with_fewer_partitions_takes_every_key(
    make, make_topic, shared_broker, admin, asynchronous, call
):
    """Of what was sent before the producer heard of it, each is delivered or fails by its partition's end, and none is forgotten."""
    topic = make_topic(shared_broker.bootstrap_servers, 20)
    keys = [b"key-%d" % i for i in range(60)]
    gone = "made anew with 6 partitions"

    def make_anew():
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=6)

    def calls(value):
        """What is sent: one record a call, or all of them in one."""
        if call == "send_many":
            return [("send_many", ([value] * len(keys),), {"keys": keys})]
        if call == "send_many without keys":
            return [("send_many", ([value] * len(keys),), {})]
        return [("send", (value,), {} if call == "no keys" else {"key": key}) for key in keys]

    def errors_of(error):
        """One for each record that failed."""
        if isinstance(error, SendManyError):
            return [each for each, positions in error.failures for _ in positions]
        return [error] if isinstance(error, Exception) else []

    async def main(producer):
        async def send(value):
            return [await getattr(producer, name)(topic, *given, **more) for name, given, more in calls(value)]

        await asyncio.gather(*await send(b"before"))
        await asyncio.to_thread(make_anew)
        found = await asyncio.gather(*await send(b"meanwhile"), return_exceptions=True)
        await asyncio.gather(*await send(b"after"))
        return [each for error in found for each in errors_of(error)]

    if asynchronous:
        lost = run(main, shared_broker)
    else:
        producer = make()

        def send(value):
            return [getattr(producer, name)(topic, *given, **more) for name, given, more in calls(value)]

        for delivery in send(b"before"):
            delivery.result(20)
        make_anew()
        lost = [each for delivery in send(b"meanwhile") for each in errors_of(delivery.exception(30))]
        for delivery in send(b"after"):
            delivery.result(20)
    # Without keys all may go to a partition that is still there.
    assert lost or call in ("no keys", "send_many without keys")
    assert all(isinstance(error, UnknownTopicOrPartition) and gone in str(error) for error in lost)
    values = [value for _, value in stored(shared_broker, topic)]
    assert (values.count(b"after"), values.count(b"meanwhile"), values.count(b"before")) == (60, 60 - len(lost), 0)


class Astray(ProducerInterceptor):
    """Sends records to a topic that cannot be had, and hears of them."""

    def __init__(self, topic):
        self.topic, self.heard = topic, []

    def on_send(self, record):
        import dataclasses

        return dataclasses.replace(record, topic=self.topic) if record.value == b"astray" else record

    def on_delivery(self, record, metadata, error):
        self.heard.append((record.value, error))


@pytest.mark.parametrize("other", ["nowhere", "no/name", None])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_interceptors_hear_of_a_row_whose_topic_cannot_be_had(make, topic, shared_broker, asynchronous, other):
    watcher = Astray(other)
    given = {"interceptors": [watcher], "max_block_ms": 300, "allow_auto_create_topics": False}
    make().send(topic, b"made").result(10)

    async def main(producer):
        with pytest.raises(Exception) as caught:
            await producer.send_many(topic, [b"here", b"astray", b"never read"])
        await producer.flush(10)
        return caught.value

    if asynchronous:
        error = run(main, shared_broker, **given)
    else:
        producer = make(**given)
        with pytest.raises(Exception) as caught:
            producer.send_many(topic, [b"here", b"astray", b"never read"])
        producer.flush(10)
        error = caught.value
    assert error.accepted == 1
    assert sorted(watcher.heard) == [(b"astray", error), (b"here", None)]
