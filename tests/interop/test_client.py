"""The fastq client against each kind of broker: ours, and Apache Kafka under `make interop-kafka`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import pytest
from waiting import until

from fastq import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, KafkaError, Producer, TopicPartition
from fastq.admin import ConfigResource, ConfigSource, OffsetSpec, ResourceType
from fastq.errors import InvalidConfig

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BASE_MS = 1_700_000_000_000
METADATA_TIMEOUT_S = 60.0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["all", 1])
def test_round_trip_with_every_codec(servers: str, make_topic: Callable[..., str], codec: str, acks: object) -> None:
    topic = make_topic(servers, partitions=2)
    values = [f"value {number} ".encode() * 10 for number in range(1000)]
    with Producer(bootstrap_servers=servers, compression_type=codec, acks=acks) as producer:
        sent = [producer.send(topic, value, key=b"k%d" % (number % 7)) for number, value in enumerate(values)]
        producer.flush()
        places = [delivery.result(10) for delivery in sent]
    expected = {(place.partition, place.offset): value for place, value in zip(places, values, strict=True)}
    assert len(expected) == 1000
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        found: dict[tuple[int, int], bytes | None] = {}
        while len(found) < 1000:  # acks=1 is before followers have it: until then the end is where it was
            found |= {(record.partition, record.offset): record.value for record in consumer.poll(timeout=60.0)}
    assert found == expected


def test_acks_0_arrives(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers, acks=0) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number)
        producer.flush()
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        found = [record.value for record in consumer.poll(max_records=100, timeout=60.0)]
        while len(found) < 100:
            found += [record.value for record in consumer.poll(max_records=100, timeout=60.0)]
    assert found == [b"%d" % number for number in range(100)]


def test_headers_timestamps_nulls_and_empties(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, None, key=b"tombstone", timestamp_ms=BASE_MS)
        producer.send(topic, b"", key=b"")
        producer.send(topic, b"v", headers=[("a", b"1"), ("a", None), ("b", b"")])
        producer.send(topic, bytearray(b"bytes"), key=memoryview(b"like"))
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        tombstone, empty, headed, like = consumer.read_to_end()
    assert (tombstone.value, tombstone.key, tombstone.timestamp_ms) == (None, b"tombstone", BASE_MS)
    assert (empty.value, empty.key) == (b"", b"")
    assert (headed.key, list(headed.headers)) == (None, [("a", b"1"), ("a", None), ("b", b"")])
    assert (like.key, like.value) == (b"like", b"bytes")
    assert abs(empty.timestamp_ms - time.time() * 1e3) < 60_000


def test_send_many_and_poll_batch(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers, partitions=3)
    values = [b"value %d" % number for number in range(50_000)]
    keys = [b"key %d" % (number % 100) for number in range(50_000)]
    with Producer(bootstrap_servers=servers) as producer:
        delivered = producer.send_many(topic, values, keys=keys).result(30)
    assert delivered.count == sum(len(part) for parts in delivered.offsets.values() for part in parts) == 50_000
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        pairs: list[tuple[bytes, bytes]] = []
        while len(pairs) < 50_000:
            batch = consumer.poll_batch(timeout=60.0)
            assert len(batch)
            pairs += zip(batch.keys, batch.values, strict=True)
    assert sorted(pairs) == sorted(zip(keys, values, strict=True))


def test_arrow_out(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"a", None, b"c"], keys=[None, b"k", b""]).result(10)
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        table = consumer.poll_batch(timeout=60.0).to_arrow()
    assert table.column("value").to_pylist() == [b"a", None, b"c"]
    assert table.column("key").to_pylist() == [None, b"k", b""]
    assert table.column("offset").to_pylist() == [0, 1, 2]


def test_seek_pause_and_offsets(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers)
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, timestamp_ms=BASE_MS + number * 1000)
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 100}
        assert consumer.offsets_for_times({partition: BASE_MS + 41_500})[partition].offset == 42
        consumer.seek(partition, 90)
        assert [record.offset for record in consumer.poll(max_records=5, timeout=60.0)] == [90, 91, 92, 93, 94]
        assert consumer.position(partition) == 95
        consumer.pause(partition)
        assert consumer.poll(timeout=0.3) == []
        consumer.resume(partition)
        assert consumer.poll(max_records=1, timeout=60.0)[0].offset == 95
        consumer.seek_to_end(partition)
        assert consumer.poll(timeout=0.3) == []
        consumer.seek_to_beginning(partition)
        assert consumer.poll(max_records=1, timeout=60.0)[0].offset == 0


def test_asyncio_round_trip(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers, partitions=2)

    async def main() -> list[bytes | None]:
        async with AsyncProducer(bootstrap_servers=servers, compression_type="lz4") as producer:
            deliveries = [await producer.send(topic, b"%d" % number) for number in range(2000)]
            places = {(await delivery).offset for delivery in deliveries}
            assert places
        found = []
        async with AsyncConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                found.append(record.value)
                if len(found) == 2000:
                    break
        return found

    assert sorted(asyncio.run(main())) == sorted(b"%d" % number for number in range(2000))


def test_admin(servers: str, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(name, partitions=2, replication_factor=1, configs={"retention.ms": "12345"})
        with pytest.raises(KafkaError, match=r"already exists|TOPIC_ALREADY_EXISTS"):
            admin.create_topic(name, partitions=2, replication_factor=1)
        until(lambda: name in admin.list_topics())
        admin.create_partitions({name: 4}).results()
        until(lambda: len(admin.describe_topic(name).partitions) == 4)
        cluster = admin.describe_cluster()
        assert cluster.nodes
        with Producer(bootstrap_servers=servers) as producer:
            for _ in range(10):
                producer.send(name, b"v", partition=0)
        partition = TopicPartition(name, 0)
        assert admin.delete_records({partition: 4}).results() == {partition: 4}
        assert admin.list_offsets({partition: OffsetSpec.EARLIEST}).results()[partition].offset == 4
        admin.delete_topic(name)


def test_settings_of_a_group(servers: str, new_topic_name: Callable[[], str]) -> None:
    group = ConfigResource.group(f"group-{new_topic_name()}")
    name = "consumer.session.timeout.ms"
    with Admin(bootstrap_servers=servers) as admin:
        before = admin.describe_configs([group])[group].result()
        assert (before[name].value, before[name].source) == ("45000", ConfigSource.DEFAULT_CONFIG)
        admin.set_config(group, name, "50000")
        deadline = time.monotonic() + METADATA_TIMEOUT_S
        while (entry := admin.describe_configs([group])[group].result()[name]).value != "50000":
            assert time.monotonic() < deadline
        assert entry.source == ConfigSource.DYNAMIC_GROUP_CONFIG
        assert group in admin.list_config_resources([ResourceType.GROUP])
        assert {group, ConfigResource.broker(1)} <= set(admin.list_config_resources())
        with pytest.raises(InvalidConfig, match=re.escape("group.consumer.max.session.timeout.ms")):
            admin.set_config(group, name, "60001")
        admin.set_config(group, name, None)
        while group in admin.list_config_resources([ResourceType.GROUP]):
            assert time.monotonic() < deadline


def test_async_admin(servers: str, new_topic_name: Callable[[], str]) -> None:
    name = new_topic_name()

    async def main() -> None:
        async with AsyncAdmin(bootstrap_servers=servers) as admin:
            await admin.create_topic(name, partitions=1, replication_factor=1)
            deadline = time.monotonic() + METADATA_TIMEOUT_S
            while name not in await admin.list_topics():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            await admin.delete_topic(name)

    asyncio.run(main())


def test_idempotent_producer_has_no_gap_and_no_double(servers: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(servers)
    with Producer(bootstrap_servers=servers, batch_size=1000, linger_ms=0) as producer:
        for number in range(20_000):
            producer.send(topic, b"%d" % number)
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.read_to_end()] == [b"%d" % number for number in range(20_000)]
