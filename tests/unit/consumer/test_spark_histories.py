"""A range of Spark's whose leader was elected without all of the log: its records are lost, and those in their places are others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from consumer_fakes import SocketCluster

from fastq.consumer import Consumer
from fastq.errors import OffsetOutOfRange
from fastq.metadata import TopicPartition
from fastq.spark import read
from fastq.spark.offsets import DataLoss
from fastq.spark.options import SourceOptions
from fastq.spark.planning import OffsetRange

TP, ROWS = TopicPartition("logs", 0), 2000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketCluster]:
    monkeypatch.setattr(read, "_cache", read.ConsumerCache())
    made = SocketCluster((1, 2))
    made.tells_epochs = True
    (log,) = made.create("logs", 1)
    while log.end < ROWS:
        log.append([(None, b"v%d" % (log.end + n)) for n in range(10)])
    yield made
    made.close()


def elect(cluster: SocketCluster, kept: int, rows: int) -> None:
    """Another leader, which has the log up to `kept` alone, and gets other records up to `rows`."""
    log = cluster.logs[TP]
    log.entries = [entry for entry in log.entries if entry.last < kept]
    log.end = kept
    log.leader, log.epoch = 3 - log.leader, log.epoch + 1
    while log.end < rows:
        log.append([(None, b"other")] * 10)


def task(cluster: SocketCluster, fail: bool) -> tuple[SourceOptions, OffsetRange]:
    """A task that is planned before any election, which fetches little at a time."""
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": "logs",
        "kafka.max.partition.fetch.bytes": "5000",
        "kafka.prefetch.bytes.max": "20000",
        "failOnDataLoss": str(fail).lower(),
    }
    return SourceOptions.parse(given), OffsetRange(TP, 0, ROWS, epoch=cluster.logs[TP].epoch)


@pytest.mark.parametrize("rows", [0, ROWS * 2])
@pytest.mark.parametrize("kept", [50, ROWS - 50])
@pytest.mark.parametrize("warm", [True, False])
def test_records_that_a_leader_has_not_are_lost(cluster: SocketCluster, kept: int, rows: int, warm: bool) -> None:
    options, wanted = task(cluster, fail=True)
    batches = read.read_range(options, ["value"], wanted)
    seen = next(batches).column("value").to_pylist() if warm else []
    elect(cluster, kept, rows)
    # Who hears of it first says so: the look at the new leader, the fetch, or the check of what was read.
    said = f"has it up to offset {kept} only|which goes from 0 to {kept}\\.|was truncated to offset {kept} "
    with pytest.raises(DataLoss, match=said):
        seen += [value for batch in batches for value in batch.column("value").to_pylist()]
    assert b"other" not in seen


@pytest.mark.parametrize("fail", [True, False])
def test_a_loss_that_is_told_twice_is_one(cluster: SocketCluster, fail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition's own check against its new leader may end while the loss that the reader has met is looked into."""
    look_up, told = Consumer.beginning_offsets, []

    def beginning_offsets(self: Consumer, *args: Any, **options: Any) -> dict[TopicPartition, int]:
        if not told:
            told.append(1)
            self._fetcher._errors.append(OffsetOutOfRange("truncated", topic=TP.topic, partition=TP.partition))
        return look_up(self, *args, **options)

    monkeypatch.setattr(Consumer, "beginning_offsets", beginning_offsets)
    options, wanted = task(cluster, fail=fail)
    elect(cluster, 50, 0)
    with pytest.raises(DataLoss, match="up to offset 50 only") if fail else nullcontext():
        found = [
            value for batch in read.read_range(options, ["value"], wanted) for value in batch.column(0).to_pylist()
        ]
        assert found == [b"v%d" % n for n in range(50)]
    assert told


@pytest.mark.parametrize("kept", [50, ROWS - 50])
def test_a_loss_that_is_let_pass_goes_on_with_what_is_there(
    cluster: SocketCluster, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    options, wanted = task(cluster, fail=False)
    elect(cluster, kept, 0)
    found = [value for batch in read.read_range(options, ["value"], wanted) for value in batch.column(0).to_pylist()]
    assert found == [b"v%d" % n for n in range(kept)]
    assert f"up to offset {kept} only" in caplog.text


def test_a_leader_that_has_all_is_as_good_as_the_one_before(cluster: SocketCluster) -> None:
    options, wanted = task(cluster, fail=True)
    elect(cluster, ROWS, ROWS + 100)
    assert sum(len(batch) for batch in read.read_range(options, ["value"], wanted)) == ROWS
