"""Mirrors between two brokers of a test: how they are configured and run, and what has arrived."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from waiting import until

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq._native.records import iter_headers
from fastq.admin import ConfigResource, OffsetSpec
from fastq.errors import FastqError, OffsetOutOfRange
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.mirror import Mirror
from fastq.mirror.same import MIRROR_SOURCE
from fastq.mirror.source_reader import SourceReader, Wanted
from fastq.mirror.target_writer import CUT, Ask, TargetWriter
from fastq.testing import Broker, Cluster

WAIT_S = 30.0


def configured(
    brokers: tuple[Broker | Cluster, Broker | Cluster],
    topics: list[str],
    alias: str = "A",
    target_alias: str = "B",
    **options: Any,
) -> MirrorConfig:
    source, target = brokers
    return parse_config(
        {
            "source": {"alias": alias, "bootstrap": {"servers": source.bootstrap_servers}},
            "target": {"alias": target_alias, "bootstrap": {"servers": target.bootstrap_servers}},
            "mirror": {"topics": topics, "lanes": 2, "refresh_interval_ms": 200, **options},
        }
    )


@contextmanager
def running(config: MirrorConfig) -> Iterator[Mirror]:
    mirror = Mirror(config)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            mirror.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield mirror
    finally:
        mirror.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        if failed:  # which is why what was waited for did not come, where that has failed
            raise failed[0]


def made(broker: Broker, name: str, *values: bytes, partitions: int = 1, **configs: str) -> None:
    """A topic with these values in partition 0."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topic(name, partitions, configs={key.replace("_", "."): value for key, value in configs.items()})
    if values:
        sent(broker, name, *values)


def sent(broker: Broker, name: str, *values: bytes) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(name, list(values), partition=0).result()


def records_of(broker: Broker | Cluster, topic: str) -> list[Any]:
    """All that is committed in a topic: partition, timestamp, key, value, headers, in the order of each partition."""
    with Consumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
    ) as consumer:
        found = [(r.partition, r.timestamp_ms, r.key, r.value, r.headers) for r in consumer.read_to_end()]
    return sorted(found, key=lambda record: record[0])


def wait_for_records(broker: Broker, topic: str, expected: list[Any]) -> None:
    def there() -> bool:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            if topic not in admin.list_topics():
                return False
        return len(records_of(broker, topic)) >= len(expected)

    until(there)
    assert records_of(broker, topic) == expected


def values_of(broker: Broker | Cluster, topic: str) -> list[bytes | None]:
    """The values that are committed in a topic, partition after partition; none where there is no such topic."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        if topic not in admin.list_topics():
            return []
    return [record[3] for record in records_of(broker, topic)]


def batches_of(config: MirrorConfig, side: str, topic: str, partition: int) -> list[tuple[int, int, bytes]]:
    """What lies in a partition of a side, up to its high watermark: first and last offset of each batch, and the bytes behind its epoch."""
    tp, found = TopicPartition(topic, partition), []
    where = config.source if side == "source" else config.target
    with Admin(where.common) as admin:
        topic_id = admin.describe_topic(topic).topic_id
        offset = admin.list_offsets({tp: OffsetSpec.EARLIEST})[tp].result().offset
    reader = SourceReader(where)
    try:
        while True:
            answer = reader.fetch({tp: Wanted(topic_id, offset)}, 0)[tp]
            if isinstance(answer, OffsetOutOfRange):  # it was cut off while it was read
                return found
            if isinstance(answer, FastqError):  # its leader is not known yet
                assert answer.retriable, answer
                time.sleep(0.05)
                continue
            if answer.next_offset == offset:
                return found
            for position, header in iter_headers(answer.records):
                batch = bytes(answer.records[position : position + header.size_bytes])
                found.append((header.base_offset, header.last_offset, batch[16:]))
            offset = answer.next_offset
    finally:
        reader.close()


def cut_off(config: MirrorConfig, admin: Admin, tp: TopicPartition, offset: int) -> None:
    """Have the source lose what it has from `offset` on."""
    topic = ConfigResource.topic(tp.topic)
    admin.set_configs(topic, {MIRROR_SOURCE: "x/y/z"})
    ask = Ask(admin.describe_topic(tp.topic).topic_id, "x/y/z", offset, operation=CUT)
    with closing(TargetWriter(config.source)) as writer:
        until(lambda: writer.ask({tp: ask})[tp].error is None)
    admin.set_configs(topic, {MIRROR_SOURCE: None})
