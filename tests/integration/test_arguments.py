"""Arguments of a wrong kind, against a real broker: each is refused at once, in words, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastq import Admin, AsyncConsumer, Consumer, TopicPartition, read_topic
from fastq.admin import NewTopic, OffsetReset, OffsetSpec
from fastq.errors import InvalidRequest
from fastq.testing import Broker


@pytest.fixture
def topic(shared_broker: Broker, new_topic_name: Callable[[], str]) -> Iterator[str]:
    name = new_topic_name()
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=2)
        yield name
        admin.delete_topic(name)


CONSUMER_CALLS: list[tuple[Callable[[Any, str], Any], str]] = [
    (lambda consumer, topic: consumer.assign(topic), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.assign(None), r"got None; assign\(\[\]\) reads nothing"),  # type: ignore[arg-type]  # what is tested
    (lambda consumer, topic: consumer.assign([topic]), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.assign([(topic, "0")]), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.assign([TopicPartition(topic, "0")]), "a pair .topic, number., got"),  # type: ignore[arg-type]  # what is tested
    (lambda consumer, topic: consumer.pause(topic), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.end_offsets([topic]), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.committed([topic]), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.assign(topic, 0), r"assign\('[^']*', 0\): it takes one list of partitions"),
    (
        lambda consumer, topic: consumer.seek(topic, 0, 3),
        r"seek\('[^']*', 0, 3\): it takes a partition, which .* a pair of topic",
    ),
    (lambda consumer, topic: consumer.position(topic, 0), "a pair .topic, number., got"),
    (lambda consumer, topic: consumer.seek((topic, 0), 1.5), "an offset is an int, got 1.5"),
    (lambda consumer, topic: consumer.seek((topic, 0), "1"), "an offset is an int, got '1'"),
    (lambda consumer, topic: consumer.offsets_for_times({(topic, 0): 1.5}), "a time is an int of milliseconds"),
    (lambda consumer, topic: consumer.commit(5), "commit takes records, a batch or offsets"),
]


@pytest.mark.parametrize(("call", "words"), CONSUMER_CALLS, ids=range(len(CONSUMER_CALLS)))
def test_of_a_consumer(shared_broker: Broker, topic: str, call: Callable[[Any, str], Any], words: str) -> None:
    settings = {"bootstrap_servers": shared_broker.bootstrap_servers, "group_id": topic, "enable_auto_commit": False}
    with Consumer(**settings) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(TypeError, match=words):
            call(consumer, topic)
        assert consumer.assignment() == [(topic, 0)]

    async def same() -> None:
        async with AsyncConsumer(**settings) as consumer:
            await _answered(consumer.assign([(topic, 0)]))
            with pytest.raises(TypeError, match=words):
                await _answered(call(consumer, topic))

    asyncio.run(same())


async def _answered(found: Any) -> Any:
    return await found if hasattr(found, "__await__") else found


def test_of_an_admin(shared_broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        for number in (2.5, "2"):
            with pytest.raises(TypeError, match=f"partitions: an int is expected, got {number!r}"):
                admin.create_topic(f"{topic}-x", partitions=number)  # type: ignore[arg-type]  # what is tested
            with pytest.raises(TypeError, match="the number of partitions: an int is expected"):
                admin.create_partitions({topic: number})  # type: ignore[dict-item]  # what is tested
        with pytest.raises(TypeError, match="the name of a topic: a str is expected, got 5"):
            admin.create_topic(5)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(TypeError, match="configs: a mapping is expected"):
            NewTopic(name=topic, configs=["retention.ms=1"])  # type: ignore[arg-type]  # what is tested
        with pytest.raises(TypeError, match="a list of names is needed, and a name is a str, got 5"):
            admin.delete_topic(5, timeout=600)  # type: ignore[arg-type]  # what is tested
        # What nobody has looked at before fails in the encoder: the call ends with that, and not with its time-out.
        with pytest.raises(InvalidRequest, match=r"not sent: .*length 40000 is longer than the wire's 32767"):
            admin.delete_topic("t" * 40_000, timeout=600)
        assert topic in admin.list_topics(), "and the connection goes on"


ADMIN_CALLS: dict[str, Callable[[Admin, Any], Any]] = {
    "list_offsets": lambda admin, tp: admin.list_offsets({tp: OffsetSpec.LATEST}),
    "delete_records": lambda admin, tp: admin.delete_records({tp: 0}),
    "describe_producers": lambda admin, tp: admin.describe_producers([tp]),
    "list_group_offsets": lambda admin, tp: admin.list_group_offsets("group", [tp]),
    "alter_group_offsets": lambda admin, tp: admin.alter_group_offsets("group", {tp: 0}),
    "group_lag": lambda admin, tp: admin.group_lag("group", [tp]),
    "reset_group_offsets": lambda admin, tp: admin.reset_group_offsets(
        "group", OffsetReset.to_latest(), partitions=[tp]
    ),
    "delete_group_offsets": lambda admin, tp: admin.delete_group_offsets("group", [tp]),
}


def test_a_partition_is_the_same_to_an_admin_as_to_a_consumer(shared_broker: Broker, topic: str) -> None:
    """A name was taken apart (not enough values to unpack), a pair had no attribute topic."""
    with Admin(bootstrap_servers=shared_broker.bootstrap_servers) as admin:
        for name, call in ADMIN_CALLS.items():
            assert list(call(admin, (topic, 0))) == [TopicPartition(topic, 0)], name
            for wrong in (topic, "t0", (topic, "0")):
                with pytest.raises(TypeError, match=r"a pair \(topic, number\), got"):
                    call(admin, wrong)
        for abort in (admin.abort_open_transaction, lambda tp, offset: admin.abort_transaction(tp, 1, 0, offset)):
            with pytest.raises(TypeError, match=r"a pair \(topic, number\), got"):
                abort(topic, 0)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(TypeError, match="is an OffsetReset"):
            admin.reset_group_offsets("group", OffsetSpec.LATEST)  # type: ignore[arg-type]  # what is tested


def test_one_name_as_columns(shared_broker: Broker, topic: str) -> None:
    with pytest.raises(ValueError, match=r"columns is a list of names, got 'value': write \['value'\]"):
        read_topic(topic, columns="value", bootstrap_servers=shared_broker.bootstrap_servers)
