"""A user's program with groups, transactions, pools and a schema registry, checked by mypy --strict and never run.

Rules: as in user_program.py: `assert_type` states what a user's editor shows; a change here is a change of the public API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import assert_type

from fastq import (
    Admin,
    AsyncConsumer,
    AsyncConsumerPool,
    AsyncProducer,
    Consumer,
    ConsumerPool,
    Producer,
    Record,
    RetryPolicy,
    TopicPartition,
)
from fastq.admin import ConfigEntry, ConfigResource, GroupListing, OffsetChange, OffsetReset, Outcomes, ResourceType
from fastq.consumer import (
    Assignor,
    ConsumerBatch,
    GroupMetadata,
    GroupTopics,
    MemberSubscription,
    OffsetAndMetadata,
    RebalanceListener,
)
from fastq.errors import FastqError, FatalTransactionError, MaxPollIntervalExceeded, RecordFailed
from fastq.schema_registry import AvroDeserializer, AvroSerializer, RegisteredSchema, Schema, SchemaRegistryClient
from fastq.testing import Broker, SchemaRegistry

PARTITION = TopicPartition("logs", 0)


class Listener(RebalanceListener):
    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert_type(partitions[0].topic, str)


class OneForAll(Assignor):
    name = "one-for-all"

    def assign(self, topics: GroupTopics, members: Mapping[str, MemberSubscription]) -> dict[str, list[TopicPartition]]:
        return {max(members): list(topics.partitions(topics.counts))}


def committed(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: FastqError | None) -> None:
    assert_type(error, FastqError | None)


def groups(servers: str) -> None:
    with Consumer(bootstrap_servers=servers, group_id="g", partition_assignment_strategy=[OneForAll]) as consumer:
        consumer.subscribe("logs", listener=Listener())
        consumer.subscribe(["logs"], on_assigned=lambda partitions: None, on_lost=lambda partitions: None)
        assert_type(consumer.assignment(), list[TopicPartition])
        assert_type(consumer.subscription(), list[str])
        assert_type(consumer.group_metadata(), GroupMetadata)
        assert_type(consumer.lag(), dict[TopicPartition, int | None])
        batch = consumer.poll_batch(timeout=1.0)
        assert_type(batch, ConsumerBatch)
        consumer.commit()
        consumer.commit(batch)
        consumer.commit({PARTITION: OffsetAndMetadata(5, "note")}, timeout=1.0)
        consumer.commit({("logs", 0): 5})
        consumer.commit_async(callback=committed)
        assert_type(consumer.committed([PARTITION]), dict[TopicPartition, OffsetAndMetadata | None])
        with consumer.stop_on_signal():
            for record in consumer:
                consumer.commit(record)
        try:
            consumer.poll()
        except MaxPollIntervalExceeded as error:
            assert_type(error.elapsed_s, float | None)
        consumer.wakeup()
        consumer.stop()
        consumer.pause(PARTITION)
        consumer.resume(PARTITION)
        consumer.unsubscribe()


def transactions(servers: str) -> None:
    with (
        Producer(bootstrap_servers=servers, transactional_id="t") as producer,
        Consumer("logs", bootstrap_servers=servers, group_id="g", enable_auto_commit=False) as consumer,
    ):
        producer.init_transactions()
        with producer.transaction() as transaction:
            producer.send("logs", b"line")
            transaction.send_offsets(consumer)
        try:
            producer.begin_transaction()
            producer.send_offsets_to_transaction({PARTITION: 5}, consumer.group_metadata())
            producer.commit_transaction(timeout=1.0)
        except FatalTransactionError:
            producer.close()
        except FastqError:
            producer.abort_transaction()


def pools(servers: str) -> None:
    policy = RetryPolicy(attempts=5, dead_letter_topic="{topic}-failed")

    def handle(record: Record) -> None:
        assert_type(record.value, Any | None)

    with (
        Consumer("logs", bootstrap_servers=servers, group_id="g", enable_auto_commit=False) as consumer,
        Producer(bootstrap_servers=servers) as producer,
    ):
        pool = ConsumerPool(consumer, handle, workers=4, order="key", retry=policy, producer=producer)
        ConsumerPool(consumer, handle_later)  # type: ignore[arg-type]  # nobody would await it
        assert_type(pool.pending, int)
        try:
            pool.run()
        except RecordFailed:
            pool.stop()


async def handle_later(record: Record) -> None: ...


def administration(servers: str) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        assert_type(admin.list_groups(states=["Stable"]), dict[str, GroupListing])
        admin.alter_group_offsets("g", {PARTITION: 5})[PARTITION].result()
        assert_type(admin.reset_group_offsets("g", OffsetReset.to_latest()), dict[TopicPartition, OffsetChange])
        admin.delete_groups(["g"])
        admin.remove_members("g", instance_ids=["one"])
        group = ConfigResource.group("g")
        admin.set_config(group, "consumer.session.timeout.ms", "50000")
        assert_type(admin.describe_configs([group]), Outcomes[ConfigResource, dict[str, ConfigEntry]])
        assert_type(admin.list_config_resources([ResourceType.GROUP]), list[ConfigResource])
        admin.abort_open_transaction(PARTITION, 5)


def schemas(servers: str, url: str) -> None:
    registry = SchemaRegistryClient(url, basic_auth=("user", "password"))
    assert_type(registry.latest("logs-value"), RegisteredSchema)
    assert_type(registry.register("logs-value", Schema('"long"')), int)
    serializer, deserializer = AvroSerializer(registry, '"long"'), AvroDeserializer(registry)
    assert_type(serializer.serialize("logs", 5), bytes)
    Producer(bootstrap_servers=servers, value_serializer=serializer)
    Consumer("logs", bootstrap_servers=servers, value_deserializer=deserializer)


def brokers() -> Iterator[str]:
    with Broker(in_memory=True) as broker, SchemaRegistry() as registry:
        broker.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=3)
        broker.delay("Fetch", seconds=0.2)
        broker.throttle("Produce", seconds=0.1, times=None)
        broker.disconnect("Heartbeat")
        assert_type(broker.change_leader("logs", 0), int)
        assert_type(broker.faults_left(), dict[str, list[tuple[str, int | None]]])
        assert_type(registry.url, str)
        yield broker.bootstrap_servers


async def asynchronous(servers: str) -> None:
    async with (
        AsyncProducer(bootstrap_servers=servers, transactional_id="t") as producer,
        AsyncConsumer("logs", bootstrap_servers=servers, group_id="g", enable_auto_commit=False) as consumer,
    ):
        async with producer.transaction() as transaction:
            await producer.send("logs", b"line")
            await transaction.send_offsets(consumer)
        await consumer.commit({PARTITION: 5})
        consumer.commit_async(callback=committed)
        assert_type(await consumer.committed([PARTITION]), dict[TopicPartition, OffsetAndMetadata | None])
        assert_type(consumer.group_metadata(), GroupMetadata)

        async def handle(record: Record) -> None:
            assert_type(record.topic, str)

        await AsyncConsumerPool(consumer, handle, workers=4, retry=RetryPolicy()).run()
