"""MirrorMaker 2's own client in a target that our mirror writes; and the mirror from Apache Kafka to ours and back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_kafka
import pytest
from mirrors import batches_of

from fastq import Admin, Consumer, Producer, TopicPartition
from fastq.admin import ConfigResource
from fastq.errors import ConfigError, FastqError
from fastq.mirror import survey
from fastq.mirror.config import MirrorConfig, parse_config
from fastq.mirror.failover import reversed_config
from fastq.mirror.mirror import Mirror
from fastq.mirror.survey import Survey
from fastq.mirror.topics import Changes
from fastq.testing import Broker

pytestmark = [pytest.mark.one_node, pytest.mark.kafka]  # beside one node of Apache Kafka

WAIT_S = 60.0


@contextmanager
def mirrored(config: MirrorConfig) -> Iterator[Mirror]:
    mirror = Mirror(config)
    thread = threading.Thread(target=mirror.run)
    thread.start()
    try:
        yield mirror
    finally:
        mirror.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def configured(source: str, target: str, topic: str) -> MirrorConfig:
    return parse_config(
        {
            "source": {"alias": "A", "bootstrap.servers": source},
            "target": {"alias": "B", "bootstrap.servers": target},
            "mirror": {
                "topics": [topic], "lanes": 2, "refresh_interval_ms": 200, "group_interval_ms": 200, "groups": [topic],
                "replication_factor": 1,
            },
        }
    )  # fmt: skip


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            if what():
                return
        except FastqError:
            pass  # a topic that is not there yet
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.2)


def values(servers: str, topic: str) -> list[tuple[int, bytes | None, bytes | None, int]]:
    settings = {"bootstrap_servers": servers, "isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(topic, **settings) as consumer:
        return [(r.partition, r.key, r.value, r.timestamp_ms) for r in consumer.read_to_end()]


@pytest.mark.parametrize("way", ["from Apache Kafka", "to Apache Kafka"])
def test_records_and_groups_go_between_apache_kafka_and_ours(
    kafka_servers: str, way: str, new_topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic_name()
    changed: list[bool] = []
    carry_out = Survey.carry_out

    def carried_out(which: Survey, changes: Changes) -> bool:
        changed.append(carry_out(which, changes))
        return changed[-1]

    monkeypatch.setattr(Survey, "carry_out", carried_out)
    monkeypatch.setattr(survey, "CONFIGS_EVERY", 1)
    with Broker(in_memory=True) as ours:
        source, target = kafka_servers, ours.bootstrap_servers
        configs = {"min.cleanable.dirty.ratio": "0.0001"}  # 1.0E-4 to Apache Kafka
        if way == "to Apache Kafka":
            source, target = target, source
            configs["durability"] = "fsync"  # which Apache Kafka does not know
        with Admin(bootstrap_servers=source) as admin:
            admin.create_topic(topic, 2, 1, configs=configs)
            with Producer(bootstrap_servers=source, transactional_id=topic) as producer:
                for i in range(20):
                    producer.begin_transaction()
                    for k in range(10):
                        producer.send(topic, b"%d" % i, b"%d" % k, partition=i % 2)
                    producer.abort_transaction() if i % 5 == 0 else producer.commit_transaction()
            expected = values(source, topic)
            admin.alter_group_offsets(topic, {TopicPartition(topic, 0): 40}).results()
        with mirrored(configured(source, target, topic)), Admin(bootstrap_servers=target) as there:
            wait_for(lambda: sorted(values(target, f"A.{topic}")) == sorted(expected))
            at = TopicPartition(f"A.{topic}", 0)
            wait_for(lambda: there.list_group_offsets(topic, [at])[at].result() is not None)
            wait_for(
                lambda: len(values(target, "A.checkpoints.internal")) > 0 and len(values(target, "A.heartbeats")) > 0
            )
            found = there.list_group_offsets(topic, [at])[at].result()
            told = _asked_of_mirror_maker(target, topic)
            there_configs = there.describe_configs([ConfigResource.topic(f"A.{topic}")])[
                ConfigResource.topic(f"A.{topic}")
            ]
            seen = len(changed)
            wait_for(lambda: len(changed) >= seen + 3)
            assert not any(changed[seen + 1 :]), "nothing is left to change"
        assert float(there_configs.result()["min.cleanable.dirty.ratio"].value or "") == 0.0001
        assert found is not None
        assert told["offsets"] == f"{{A.{topic}-0={found.offset}}}"
        assert told["upstream"] == "[A]" and told["hops"] == "1"
        assert "A.checkpoints.internal" in told["checkpoints"] and "A.heartbeats" in told["heartbeats"]
        assert f"A.{topic}" in told["remote"]


def test_batches_of_apache_kafka_keep_their_offsets(kafka_servers: str, new_topic_name: Callable[[], str]) -> None:
    topic = new_topic_name()
    with Broker(in_memory=True) as ours:
        options = {
            "topics": [topic],
            "lanes": 2,
            "refresh_interval_ms": 200,
            "group_interval_ms": 200,
            "groups": [topic],
        }
        config = parse_config(
            {
                "source": {"alias": "A", "bootstrap.servers": kafka_servers},
                "target": {"alias": "B", "bootstrap.servers": ours.bootstrap_servers},
                "mirror": {**options, "offsets": "same", "names": "identity", "replication_factor": 1},
            }
        )
        at = TopicPartition(topic, 0)
        with Admin(bootstrap_servers=kafka_servers) as admin, Admin(bootstrap_servers=ours.bootstrap_servers) as there:
            admin.create_topic(topic, 2, 1)
            with Producer(bootstrap_servers=kafka_servers, transactional_id=topic, compression_type="zstd") as producer:
                for i in range(20):
                    producer.begin_transaction()
                    for k in range(10):
                        producer.send(topic, b"%d" % i, b"%d" % k, partition=i % 2)
                    producer.abort_transaction() if i % 5 == 0 else producer.commit_transaction()
            admin.alter_group_offsets(topic, {at: 40}).results()
            with mirrored(config):
                wait_for(lambda: topic in there.list_topics())
                for partition in range(2):
                    expected = batches_of(config, "source", topic, partition)
                    wait_for(lambda p=partition, e=expected: batches_of(config, "target", topic, p) == e != [])  # type: ignore[misc]
                wait_for(lambda: there.list_group_offsets(topic, [at])[at].result() is not None)
            assert there.list_group_offsets(topic, [at])[at].result().offset == 40  # type: ignore[union-attr]
            assert values(kafka_servers, topic) == values(ours.bootstrap_servers, topic)
        with pytest.raises(ConfigError, match="needs a fastq broker as the target"):
            Mirror(reversed_config(config)).run()


def _asked_of_mirror_maker(servers: str, group: str) -> dict[str, str]:
    source = Path(__file__).with_name("MirrorClients.java")
    command = ["java", "-Xmx256m", "-cp", apache_kafka.class_path(), str(source), servers, group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    sys.stderr.write(done.stderr)
    assert done.returncode == 0
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
