"""Apache Kafka's own files against ours: the same batches make the same bytes, and either side's directory is the other's."""

from __future__ import annotations

import random
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import apache_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fastq_broker.log import LogConfig, LogManager, PartitionLog

from fastq._native.records import build_batch, decode_records, iter_headers

pytestmark = pytest.mark.kafka

TOPIC = "files"
RECORDS = 6000
SETTINGS = {"segment.bytes": str(1 << 20), "index.interval.bytes": "3000"}
CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=3000)


@pytest.fixture(scope="module")
def kafka_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of an Apache Kafka that has been stopped cleanly, with a topic of several segments."""
    reason = apache_kafka.available()
    if reason is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("kafka") / "data"
    with apache_kafka.ApacheKafka(directory, heap="512m") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(30)
        source = random.Random(3)
        now_ms = time.time_ns() // 1_000_000
        for codec in ("none", "zstd", "gzip"):
            settings = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 2, "batch.size": 9000}
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
            for number in range(RECORDS // 3):
                value = source.randbytes(source.randrange(900))
                producer.produce(TOPIC, value, key=b"%d" % number, timestamp=now_ms - source.randrange(10**6))
            assert producer.flush(60) == 0
        kafka.stop()
        yield directory


def open_log(directory: Path) -> tuple[LogManager, PartitionLog]:
    manager = LogManager([directory], default_config=CONFIG)
    manager.start()
    log = manager.get(TOPIC, 0)
    assert log is not None
    return manager, log


def producers_of(snapshot: Path) -> list[tuple[int, ...]]:
    """The producers of a snapshot, sorted, but for the time when they were last seen, which is the broker's with us."""
    data = snapshot.read_bytes()
    assert data[:2] == b"\x00\x01"
    return sorted(entry[:5] + entry[6:] for entry in struct.iter_unpack(">qhiqiqiq", data[10:]))


def test_the_same_batches_make_the_same_files(kafka_data: Path, tmp_path: Path) -> None:
    theirs = kafka_data / f"{TOPIC}-0"
    manager = LogManager([tmp_path], default_config=CONFIG)
    manager.start()
    log = manager.create(TOPIC, 0, bytes(16), CONFIG)
    for path in sorted(theirs.glob("*.log")):
        log.append_as_follower(path.read_bytes(), now_ms=manager.clock())
    manager.close()
    ours = tmp_path / f"{TOPIC}-0"
    names = sorted(path.name for path in theirs.iterdir() if path.name != "partition.metadata")
    assert sorted(path.name for path in ours.iterdir() if path.name != "partition.metadata") == names
    assert sum(name.endswith(".log") for name in names) >= 3
    for name in names:
        read = producers_of if name.endswith(".snapshot") else Path.read_bytes
        assert read(ours / name) == read(theirs / name), name


def test_a_directory_of_apache_kafka_goes_on_here_and_back(kafka_data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "data"
    shutil.copytree(kafka_data, moved)
    manager, log = open_log(moved)
    assert not log.loaded
    assert log.log_end_offset == RECORDS
    assert log.recovery.bytes_read == 0
    assert len(log.producers) == 3
    read = 0
    while read < RECORDS:
        raw = log.read(read, 1 << 20).read()
        for position, header in iter_headers(raw, strict=True):
            assert next(record.offset for record in decode_records(raw, position)) == read
            read = header.next_offset
    now_ms = manager.clock()
    log.append(build_batch([(now_ms, b"k", b"from here")]), leader_epoch=log.leader_epoch, now_ms=now_ms)
    manager.close()
    files = [
        path for path in sorted((moved / f"{TOPIC}-0").iterdir()) if path.suffix in (".log", ".index", ".timeindex")
    ]
    dump = apache_kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), "--deep-iteration"
    ).stdout
    assert f"baseOffset: {RECORDS} lastOffset: {RECORDS}" in dump
    for complaint in ("isvalid: false", "ismatch", "out of order", "not found"):
        assert complaint not in dump


def test_indexes_that_apache_kafka_left_in_a_crash_are_recovered(kafka_data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "data"
    shutil.copytree(kafka_data, moved)
    (moved / ".kafka_cleanshutdown").unlink()
    before = {path.name: path.read_bytes() for path in (moved / f"{TOPIC}-0").glob("*index")}
    for path in sorted((moved / f"{TOPIC}-0").glob("*index"))[-2:]:
        with open(path, "r+b") as file:
            file.truncate(10 << 20 if path.suffix == ".index" else (10 << 20) // 12 * 12)
    manager, log = open_log(moved)
    assert log.log_end_offset == RECORDS
    manager.close()
    assert {path.name: path.read_bytes() for path in (moved / f"{TOPIC}-0").glob("*index")} == before
