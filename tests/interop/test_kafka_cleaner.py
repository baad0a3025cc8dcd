"""Compaction beside Apache Kafka's: the same log, cleaned by both, holds the same batches; its tools read what ours has cleaned."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import apache_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fastq_broker.log import CleanerConfig, LogCleaner, LogConfig, LogManager, PartitionLog
from fastq_broker.log.checkpoints import read_offsets
from fastq_broker.log.files import Files

from fastq._native.records import build_batch, decode_records, iter_headers

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(apache_kafka.available() is not None, reason=str(apache_kafka.available())),
]

TOPIC = "compacted"
SEGMENT_MS = 60_000
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), segment_ms=SEGMENT_MS, min_cleanable_dirty_ratio=0.0)
NEVER = {"log.cleaner.min.cleanable.ratio": "1"}
SOON = {"log.cleaner.min.cleanable.ratio": "0.0001", "log.cleaner.backoff.ms": "100"}


def fill(servers: str) -> None:
    """Records of all codecs, plain, idempotent and in transactions of both ends; times that make a segment a minute."""
    source = random.Random(8)
    clock = time.time_ns() // 1_000_000 - 40 * SEGMENT_MS
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd", "none")):
        settings: dict[str, object] = {"bootstrap.servers": servers, "compression.type": codec, "batch.size": 4000}
        if number % 2:
            settings["transactional.id"] = f"txn-{number}"
        producer = Producer({**settings, "enable.idempotence": bool(number)})
        if number % 2:
            producer.init_transactions(30)
        for part in range(8):
            if number % 2:
                producer.begin_transaction()
            for _ in range(80):
                clock += source.randrange(1500)
                value = None if source.random() < 0.1 else source.randbytes(source.randrange(200))
                producer.produce(TOPIC, value, key=b"key-%d" % source.randrange(60), timestamp=clock)
            assert producer.flush(30) == 0
            if number % 2:
                (producer.abort_transaction if part % 3 == 1 else producer.commit_transaction)(30)


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of an Apache Kafka, stopped cleanly, with a compacted topic that was never cleaned."""
    directory = tmp_path_factory.mktemp("kafka") / "data"
    with apache_kafka.ApacheKafka(directory, properties=NEVER, heap="512m") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        config = {"cleanup.policy": "compact", "segment.ms": str(SEGMENT_MS)}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
        fill(kafka.bootstrap_servers)
        kafka.stop()
    yield directory


def clean_here(directory: Path) -> tuple[LogManager, PartitionLog]:
    manager = LogManager([directory], default_config=CONFIG)
    manager.start()
    log = manager.get(TOPIC, 0)
    assert log is not None
    log.load()
    cleaner = LogCleaner(manager, CleanerConfig(backoff_ms=0))
    deadline = time.monotonic() + 60
    while not cleaner.rounds_done:
        assert time.monotonic() < deadline
        cleaner.tick(manager.clock())
        manager.flusher.drain()
        time.sleep(0.01)
    cleaner.close()
    return manager, log


def clean_there(directory: Path) -> None:
    with apache_kafka.ApacheKafka(directory, properties=SOON, heap="512m", format_storage=False) as kafka:
        deadline = time.monotonic() + 90
        while (TOPIC, 0) not in read_offsets(Files(), str(directory), "cleaner-offset-checkpoint"):
            assert time.monotonic() < deadline, kafka.log_text()[-2000:]
            time.sleep(0.2)
        kafka.stop()


def batches_of(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """What can be compared of each segment: all but the base time that deltas count from, and the moment of a horizon."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for path in sorted((directory / f"{TOPIC}-0").glob("*.log")):
        raw = path.read_bytes()
        found[path.name] = [
            (
                header.base_offset,
                header.last_offset,
                header.partition_leader_epoch,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.is_control,
                header.is_transactional,
                header.has_delete_horizon,
                header.codec,
                header.max_timestamp,
                [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(raw, position)],
            )
            for position, header in iter_headers(raw, strict=True)
        ]
    return found


def test_both_cleaners_leave_the_same(dirty: Path, tmp_path: Path) -> None:
    ours, theirs = (Path(shutil.copytree(dirty, tmp_path / name)) for name in ("ours", "theirs"))
    manager, log = clean_here(ours)
    cleaned_offset = log.cleaned_offset
    manager.close()
    clean_there(theirs)
    assert read_offsets(Files(), str(theirs), "cleaner-offset-checkpoint")[TOPIC, 0] == cleaned_offset
    before, found, expected = batches_of(dirty), batches_of(ours), batches_of(theirs)
    assert sum(map(len, found.values())) < sum(map(len, before.values())) / 2
    assert found == expected
    for path in (theirs / f"{TOPIC}-0").glob("*.txnindex"):
        if path.stat().st_size:
            assert (ours / f"{TOPIC}-0" / path.name).read_bytes() == path.read_bytes()
    assert any(row[8] for rows in found.values() for row in rows), "no tombstone has got its horizon"


def test_apache_kafkas_tools_read_what_was_cleaned_here(dirty: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(dirty, tmp_path / "data"))
    manager, log = clean_here(directory)
    now_ms = manager.clock()
    log.append(build_batch([(now_ms, b"k", b"afterwards")]), leader_epoch=log.leader_epoch, now_ms=now_ms)
    log.roll(now_ms)
    end = log.log_end_offset
    manager.close()
    suffixes = (".log", ".index", ".timeindex", ".txnindex")
    files = [path for path in sorted((directory / f"{TOPIC}-0").iterdir()) if path.suffix in suffixes]
    dump = apache_kafka.run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), "--deep-iteration"
    ).stdout
    assert f"lastOffset: {end - 1}" in dump
    assert "deleteHorizonMs: OptionalLong[" in dump
    for complaint in ("isvalid: false", "ismatch", "out of order", "not found"):
        assert complaint not in dump
