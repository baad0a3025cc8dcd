"""Arguments that cannot be meant are refused by name, at once, and break nothing for those that come after."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import fastq._native
from fastq import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerPool,
    Producer,
    RetryPolicy,
    TopicPartition,
)
from fastq.errors import ClientClosed, ConfigError, DeserializationError, InvalidTopic

NO_TOPICS = ["", "a b", "..", "x" * 300, "\ud800", "é"]


@pytest.mark.parametrize("name", NO_TOPICS)
def test_a_name_that_no_topic_has_leaves_the_producer_as_it_was(
    shared_broker: Any, new_topic_name: Any, name: str
) -> None:
    """One that cannot be encoded ended every metadata request that the producer made from then on."""
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers, max_block_ms=20_000) as producer:
        with pytest.raises(InvalidTopic):
            producer.send(name, b"x")
        with pytest.raises(InvalidTopic):
            producer.send_many(name, [b"x"])
        with pytest.raises(InvalidTopic):
            producer.partitions_for(name)
        assert producer.send(new_topic_name(), b"x").result(20).offset == 0


@pytest.mark.parametrize("partition", [1.5, "0", b"0", float("nan"), True, False])
def test_a_partition_is_an_int(shared_broker: Any, new_topic_name: Any, partition: Any) -> None:
    topic = new_topic_name()
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").result(20)
        with pytest.raises(TypeError, match="partition is an int"):
            producer.send(topic, b"x", partition=partition)
        with pytest.raises(TypeError, match="partition is an int"):
            producer.send_many(topic, [b"x"], partition=partition)
        with pytest.raises(TypeError, match="timestamp_ms is an int"):
            producer.send(topic, b"x", timestamp_ms=partition)
        with pytest.raises(TypeError, match="a timestamp is an int"):
            producer.send_many(topic, [b"x"], timestamps=[partition])
        with pytest.raises(TypeError, match="partition is an int"):
            producer.send(new_topic_name(), b"x", partition=partition)
    asyncio.run(_refused_by_the_asyncio_one(shared_broker.bootstrap_servers, topic, new_topic_name(), partition))


async def _refused_by_the_asyncio_one(servers: Any, known: str, unknown: str, partition: Any) -> None:
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        await producer.partitions_for(known)
        for topic in (known, unknown):
            with pytest.raises(TypeError, match="partition is an int"):
                await producer.send(topic, b"x", partition=partition)
            with pytest.raises(TypeError, match="partition is an int"):
                await producer.send_many(topic, [b"x"], partition=partition)


@pytest.mark.parametrize("callback", [None, 1, "print", b"", []])
def test_what_cannot_be_called_is_no_callback(shared_broker: Any, new_topic_name: Any, callback: Any) -> None:
    """Only the log heard of it, after the delivery."""
    with Producer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        topic = new_topic_name()
        for delivery in (producer.send(topic, b"x"), producer.send_many(topic, [b"x"]), producer.send_many(topic, [])):
            for _ in range(2):  # on its way, and done
                with pytest.raises(TypeError, match="a callback is a function"):
                    delivery.add_done_callback(callback)  # type: ignore[attr-defined]
                delivery.result(20)


@pytest.mark.parametrize("face", [Consumer, AsyncConsumer])
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        *((number, TypeError) for number in (True, 1.0, "5", b"5", float("nan"))),
        *((number, ValueError) for number in (0, -1, 2**63)),
    ],
)
def test_a_number_of_records_is_an_int(face: Any, number: Any, kind: type[Exception]) -> None:
    async def polled() -> None:
        consumer = face(bootstrap_servers="127.0.0.1:1")
        consumer.assign([TP])
        try:
            answer = consumer.poll(max_records=number, timeout=0)
            if isinstance(answer, Awaitable):
                await answer
        finally:
            closing = consumer.close(0)
            if isinstance(closing, Awaitable):
                await closing

    with pytest.raises(kind, match="max_records is"):
        asyncio.run(polled())


def test_more_records_than_there_can_be_are_all(shared_broker: Any, new_topic_name: Any) -> None:
    topic, servers = new_topic_name(), shared_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"1", b"2"]).result(20)
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        records = consumer.poll(max_records=2**63 - 1, timeout=20)
        assert [record.value for record in records] == [b"1", b"2"]


TP = TopicPartition("logs", 0)
WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "offsets of a list": (lambda admin: admin.list_offsets([TP]), TypeError, "a mapping is needed.*OffsetSpec.LATEST"),
    "offsets of a name": (lambda admin: admin.list_offsets("logs"), TypeError, "a mapping is needed"),
    "a time in words": (lambda admin: admin.list_offsets({TP: "latest"}), TypeError, "the time of logs-0 is an int"),
    "a time before all": (lambda admin: admin.list_offsets({TP: -9}), ValueError, "the time of logs-0 is -5 or more"),
    "to alter, a list": (lambda admin: admin.alter_group_offsets("g", [TP]), TypeError, "offsets: a mapping is needed"),
    "to alter, a str": (
        lambda admin: admin.alter_group_offsets("g", {TP: "5"}),
        TypeError,
        "logs-0: an offset is an int",
    ),
    "to alter, a bool": (lambda admin: admin.alter_group_offsets("g", {TP: True}), TypeError, "is an int, got True"),
    "to delete, a list": (lambda admin: admin.delete_records([TP]), TypeError, "offsets: a mapping is needed"),
    "to delete, a str": (lambda admin: admin.delete_records({TP: "5"}), TypeError, "logs-0: an offset is an int"),
    "to delete, below": (
        lambda admin: admin.delete_records({TP: -2}),
        ValueError,
        "logs-0: an offset is -1 or more",
    ),
    "topics by name": (lambda admin: admin.create_topics(["logs"]), TypeError, "a list of NewTopic is needed"),
    "one topic by name": (lambda admin: admin.create_topics("logs"), TypeError, "a list of NewTopic is needed"),
    "partitions of a list": (lambda admin: admin.create_partitions(["logs"]), TypeError, "totals: a mapping"),
    "so many partitions": (lambda admin: admin.create_partitions({"logs": True}), TypeError, "number of partitions"),
    "a topic of True": (lambda admin: admin.create_topic("logs", True), TypeError, "partitions: an int is expected"),
    "configs of a name": (lambda admin: admin.describe_configs("logs"), TypeError, "a list of ConfigResource"),
    "settings of a name": (lambda admin: admin.alter_configs({"logs": {}}), TypeError, "a list of ConfigResource"),
    "settings of a list": (lambda admin: admin.alter_configs([]), TypeError, "settings: a mapping is needed"),
    "changes of a list": (lambda admin: admin.incremental_alter_configs([]), TypeError, "settings: a mapping"),
    "names of bytes": (lambda admin: admin.delete_topics([b"logs"]), TypeError, "a name is a str, got b'logs'"),
    "names of numbers": (lambda admin: admin.describe_groups([1]), TypeError, "a name is a str, got 1"),
    "a group of a list": (
        lambda admin: admin.list_group_offsets(["g"]),
        TypeError,
        "the id of a group: a str is expected",
    ),
    "groups to alter": (
        lambda admin: admin.alter_group_offsets(["g"], {}),
        TypeError,
        "the id of a group: a str is expected",
    ),
    "features": (lambda admin: admin.update_features(["metadata.version"]), TypeError, "updates: a mapping"),
    "reassignments": (lambda admin: admin.alter_partition_reassignments([TP]), TypeError, "reassignments: a mapping"),
    "directories": (lambda admin: admin.alter_replica_log_dirs([1]), TypeError, "moves: a mapping"),
    "one setting of a name": (
        lambda admin: admin.set_config("logs", "retention.ms", "1"),
        TypeError,
        r"resource: a ConfigResource is needed, as in ConfigResource.topic\(\"logs\"\), got 'logs'",
    ),
    "directories of one broker": (
        lambda admin: admin.describe_log_dirs(1),
        TypeError,
        r"a list of ids, got 1: write \[1\]",
    ),
    "an election in words": (
        lambda admin: admin.elect_leaders("preferred"),
        TypeError,
        "ElectionType.PREFERRED or ElectionType.UNCLEAN, got 'preferred'",
    ),
    "a state that no group is in": (
        lambda admin: admin.list_groups(states=["stable", "Busy"]),
        ValueError,
        "no group is of the state 'Busy'; Kafka's are Empty, ",
    ),
    "a type of no group": (lambda admin: admin.list_groups(types=["simple"]), ValueError, "of the type 'simple'"),
    "quotas of a name": (
        lambda admin: admin.alter_client_quotas({"user": "alice"}),
        TypeError,
        "entities: a list of ClientQuotaEntity is needed",
    ),
    "quotas": (lambda admin: admin.alter_client_quotas(["alice"]), TypeError, "changes: a mapping"),
}


@pytest.mark.parametrize("face", [Admin, AsyncAdmin])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_an_admin_call_cannot_take_is_refused_before_anything_is_asked(wrong: str, face: Any) -> None:
    call, kind, words = WRONG[wrong]

    async def main() -> None:
        admin = face(bootstrap_servers="127.0.0.1:1")
        with pytest.raises(kind, match=words):
            result = call(admin)
            if inspect.isawaitable(result):
                await result
        closed = admin.close()
        if inspect.isawaitable(closed):
            await closed

    asyncio.run(main())


@pytest.mark.parametrize("number", [True, -1, 2**31, "0", None, 0.0])
def test_a_number_that_no_partition_has_is_refused(number: Any) -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        for ask in (consumer.assign, consumer.committed, consumer.end_offsets):
            with pytest.raises((TypeError, ValueError), match="partition"):
                ask([("logs", number)])
        with pytest.raises((TypeError, ValueError), match="partition"):
            consumer.assign([TopicPartition("logs", number)])
        consumer.assign({("logs", 0): "a mapping by partition"})
        assert consumer.assignment() == [TP]


def test_what_is_no_offset_or_time_is_refused_by_consumers() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        consumer.assign([TP])
        with pytest.raises(TypeError, match="an offset is an int, got True"):
            consumer.seek(TP, True)
        with pytest.raises(ValueError, match=r"an offset to commit is an int.*True"):
            consumer.commit({TP: True})
        with pytest.raises(TypeError, match="a time is an int of milliseconds since 1970, got True"):
            consumer.offsets_for_times({TP: True})
        with pytest.raises(TypeError, match="timestamps: a mapping is needed"):
            consumer.offsets_for_times([TP])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="partitions: a list of partitions is needed"):
            consumer.end_offsets(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="partitions: a list of partitions is needed"):
            consumer.committed("logs")


POLICIES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "attempts": ({"attempts": "3"}, TypeError, "attempts is an int, got '3'"),
    "no attempt": ({"attempts": 0}, ValueError, "attempts is 1 or more"),
    "a bool": ({"attempts": True}, TypeError, "attempts is an int"),
    "backoff": ({"backoff_ms": "100"}, TypeError, "backoff_ms is a number"),
    "nan": ({"backoff_max_ms": float("nan")}, ValueError, "backoff_max_ms is 0 or more"),
    "retry_on": ({"retry_on": "TimeoutError"}, TypeError, "retry_on is a tuple of exception classes"),
    "an instance": ({"retry_on": (TimeoutError(),)}, TypeError, "retry_on is a tuple of exception classes"),
    "a list": ({"retry_on": [TimeoutError]}, TypeError, "retry_on is a tuple of exception classes"),
    "a topic": ({"dead_letter_topic": "a b"}, InvalidTopic, "is no name of a topic"),
    "no topic": ({"dead_letter_topic": 5}, TypeError, "a topic is named by a str"),
}


@pytest.mark.parametrize("wrong", POLICIES)
def test_a_retry_policy_that_cannot_be_meant_is_refused(wrong: str) -> None:
    given, kind, words = POLICIES[wrong]
    with pytest.raises(kind, match=words):
        RetryPolicy(**given)
    assert RetryPolicy(retry_on=TimeoutError, dead_letter_topic="{topic}.dead") is not None  # type: ignore[arg-type]


POOLS: dict[str, tuple[dict[str, Any], str]] = {
    "workers": ({"workers": "4"}, "workers is an int, got '4'"),
    "a bool": ({"workers": True}, "workers is an int, got True"),
    "pending": ({"pending_max": 1.5}, "pending_max is an int"),
    "interval": ({"commit_interval_ms": "5"}, "commit_interval_ms is a number"),
    "drain": ({"drain_timeout": None}, "drain_timeout is a number"),
    "retry": ({"retry": 3}, "retry is a RetryPolicy"),
}


@pytest.mark.parametrize("wrong", POOLS)
def test_a_pool_that_cannot_be_meant_is_refused(wrong: str) -> None:
    given, words = POOLS[wrong]
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer, pytest.raises(TypeError, match=words):
        ConsumerPool(consumer, lambda record: None, **given)


ASKING: dict[str, Callable[[Consumer, Any], Any]] = {
    "assign": lambda consumer, tp: consumer.assign([tp]),
    "beginning_offsets": lambda consumer, tp: consumer.beginning_offsets([tp], timeout=5),
    "end_offsets": lambda consumer, tp: consumer.end_offsets([tp], timeout=5),
    "offsets_for_times": lambda consumer, tp: consumer.offsets_for_times({tp: 0}, timeout=5),
}


@pytest.mark.parametrize("call", ASKING)
@pytest.mark.parametrize("name", NO_TOPICS)
def test_a_partition_of_no_topic_is_refused_at_once(call: str, name: str) -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer, pytest.raises(InvalidTopic):
        ASKING[call](consumer, (name, 0))


@pytest.mark.parametrize("strategy", ["nope", "range, range", -1, b"", {}, object()])
def test_a_strategy_that_there_is_not_is_refused_without_a_group_too(strategy: Any) -> None:
    with pytest.raises(ConfigError, match="partition_assignment_strategy"):
        Consumer("logs", bootstrap_servers="127.0.0.1:1", partition_assignment_strategy=strategy)


@pytest.mark.parametrize("partitioner", ["", 0, b"", {}, []])
def test_a_partitioner_that_is_none_is_not_taken_for_the_default(partitioner: Any) -> None:
    with pytest.raises(ConfigError, match="partitioner"):
        Producer(bootstrap_servers="127.0.0.1:1", partitioner=partitioner)


@pytest.mark.parametrize("interceptors", [1, b"", {}, [object()], "builtins.object"])
def test_what_is_no_interceptor_is_refused(interceptors: Any) -> None:
    with pytest.raises(ConfigError, match="on_send"):
        Producer(bootstrap_servers="127.0.0.1:1", interceptors=interceptors)


def test_a_closed_producer_is_not_entered_again() -> None:
    """Its block would end with every send refused; the first line says it."""
    producer = Producer(bootstrap_servers="127.0.0.1:1")
    producer.close()
    with pytest.raises(ClientClosed), producer:
        pass


def test_a_deserializer_that_polls_is_refused(shared_broker: Any, new_topic_name: Any) -> None:
    """It got the records behind the one in hand, within itself, without end."""
    topic, servers = new_topic_name(), shared_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"1", b"2"]).result(20)

    def deserialize(value: bytes) -> Any:
        return consumer.poll(timeout=1)

    with (
        Consumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest", value_deserializer=deserialize
        ) as consumer,
        pytest.raises(DeserializationError, match="may not ask"),
    ):
        consumer.poll(timeout=20)


TWINS = [(Consumer, AsyncConsumer), (Producer, AsyncProducer), (Admin, AsyncAdmin)]
# What one face alone takes: a stream of Arrow is taken by what does not await.
ONE_FACE = {(Consumer, "read_batches_to_end"): {"columns", "headers"}}


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins[0].__name__)
def test_both_faces_take_the_same_arguments(twins: tuple[type, type]) -> None:
    blocking, asyncio_one = ({name for name in dir(face) if not name.startswith("_")} for face in twins)
    assert blocking | {"aclose"} == asyncio_one
    for name in sorted({*blocking, "__init__"}):
        taken = []
        for face in twins:
            member = getattr(face, name)
            left_out = ONE_FACE.get((face, name), set())
            given = inspect.signature(member).parameters.values() if callable(member) else ()
            taken.append([(one.name, one.kind, one.default) for one in given if one.name not in left_out])
        assert taken[0] == taken[1], f"{twins[0].__name__}.{name}"


UNBOUND: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (Producer.send, ("logs", b"x")),
    (Producer.send_many, ("logs", [b"x"])),
    (Producer.flush, ()),
    (Producer.close, ("logs",)),
    (AsyncProducer.send, ("logs", b"x")),
    (AsyncProducer.flush, ()),
    (Consumer.poll, ()),
]


@pytest.mark.parametrize(("method", "arguments"), UNBOUND, ids=lambda each: getattr(each, "__qualname__", ""))
def test_a_method_of_the_class_without_an_object_is_a_type_error(
    method: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """`Producer.send("logs", b"x")`: a pair of brackets forgotten."""
    with pytest.raises((TypeError, AttributeError)):
        method(*arguments)


def test_every_native_method_shows_its_signature_and_refuses_what_is_no_object_of_its_class() -> None:
    found = 0
    for module in pkgutil.iter_modules(fastq._native.__path__, "fastq._native."):
        for owner in vars(importlib.import_module(module.name)).values():
            for method in vars(owner).values() if isinstance(owner, type) else ():
                if owner.__module__ == module.name and isinstance(method, types.MethodDescriptorType):
                    assert method.__name__.startswith("__") or inspect.signature(method)
                    with pytest.raises((TypeError, AttributeError)):
                        method(object())
                    found += 1
    assert found > 100


def test_an_exit_stack_takes_the_clients(shared_broker: Any, new_topic_name: Any) -> None:
    topic = new_topic_name()
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(Producer(bootstrap_servers=shared_broker.bootstrap_servers))
        assert producer.send(topic, b"x").result(20).offset == 0
        consumer = stack.enter_context(
            Consumer(topic, bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest")
        )
        assert [record.value for record in consumer.read_to_end(timeout=20)] == [b"x"]
    with pytest.raises(ClientClosed):
        producer.send(topic, b"y")


@pytest.mark.parametrize(
    ("face", "call", "args"),
    [(AsyncConsumer, "poll", ()), (AsyncProducer, "partitions_for", ("t",)), (AsyncAdmin, "list_topics", ())],
)
def test_aclosing_closes(face: type, call: str, args: tuple[str, ...]) -> None:
    async def main() -> None:
        async with contextlib.aclosing(face(bootstrap_servers="127.0.0.1:1")) as client:
            pass
        with pytest.raises(ClientClosed):
            await getattr(client, call)(*args)

    asyncio.run(main())


@pytest.mark.parametrize("face", [Consumer, AsyncConsumer])
@pytest.mark.parametrize(
    ("call", "keyword", "words"),
    [
        ("poll", "timeout_ms", "timeout=, in seconds"),
        ("subscribe", "pattern", "re.compile"),
        ("commit", "offsets", "commit({partition: offset})"),
        ("poll", "no_such", "unexpected keyword argument 'no_such'"),
    ],
)
def test_keywords_of_other_clients_are_told_what_to_write(face: Any, call: str, keyword: str, words: str) -> None:
    async def called() -> None:
        consumer = face(bootstrap_servers="127.0.0.1:1", group_id="g")
        try:
            answer = getattr(consumer, call)(**{keyword: 1})
            if isinstance(answer, Awaitable):
                await answer
        finally:
            closing = consumer.close(0)
            if isinstance(closing, Awaitable):
                await closing

    with pytest.raises(TypeError, match=re.escape(words)):
        asyncio.run(called())
