"""A fetcher under a clock that jumps: brokers that hold a fetch back as real ones do, or do not, and every request counted."""

from __future__ import annotations

import random
from typing import Any

from consumer_fakes import FakeCluster, FakeLog

from fastq.consumer.config import ConsumerConfig
from fastq.consumer.fetcher import FETCH_API, Fetcher
from fastq.metadata import ClusterMetadata, TopicPartition
from fastq.protocol.messages import FetchRequest, FetchResponse

A, B = TopicPartition("a", 0), TopicPartition("a", 1)
BATCH_BYTES = 400


class VirtualTime:
    """One fetcher and one broker, unless a test adds some; the clock jumps to whatever comes next. `patient`: the broker waits as long as
    it is asked to."""

    def __init__(self, *, patient: bool = True, **options: Any) -> None:
        self.cluster = FakeCluster((1,))
        self.logs: list[FakeLog] = self.cluster.create("a", 2)
        self.metadata = ClusterMetadata()
        self.metadata.update(self.cluster.metadata())
        self.now = 0.0
        self.patient = patient
        config = ConsumerConfig(
            **{"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 3 * BATCH_BYTES, **options}
        )
        self.fetcher = Fetcher(config, self.metadata, wall_clock_ms=lambda: 0, rng=random.Random(1))
        self.fetcher.assign([A, B])
        self.flying: list[tuple[float, Any, Any]] = []
        self.sent: list[tuple[float, int]] = []

    def fill(self, tp: TopicPartition, batches: int) -> None:
        """Batches of about BATCH_BYTES."""
        for _ in range(batches):
            self.logs[tp.partition].append([(None, b"v" * (BATCH_BYTES - 80))])

    def run(self, seconds: float) -> int:
        """So much virtual time; the number of requests sent in it."""
        end, before = self.now + seconds, len(self.sent)
        while True:
            for out in self.fetcher.requests(self.now, lambda node: True):
                self._send(out)
                assert len(self.sent) - before < 20_000, "requests without end"
            due = [at for at, _, _ in self.flying]
            wakeup = self.fetcher.next_wakeup(self.now)
            if wakeup is not None:
                assert wakeup > 0
                due.append(self.now + wakeup)
            following = min(due, default=end)
            if following >= end:
                self.now = end
                return len(self.sent) - before
            self.now = following
            for flight in [flight for flight in self.flying if flight[0] <= self.now]:
                self.flying.remove(flight)
                flight[1].done(flight[2], None, self.now)

    def _send(self, out: Any) -> None:
        self.sent.append((self.now, out.api_key))
        wait_s, version = 0.0, 4
        if out.api_key == FETCH_API:
            version = 13
            request = FetchRequest.from_bytes(out.build(version), version)
            response = self.cluster.handle(out.node_id, request, version)
            if self.patient and not response.responses:
                wait_s = request.max_wait_ms / 1000
            assert isinstance(response, FetchResponse)
            response = out.decode(bytearray(response.to_bytes(version)), version)
        else:
            response = self.cluster.handle(out.node_id, out.build(version), version)
        self.flying.append((self.now + 0.0002 + wait_s, out, response))

    def drain(self, tp: TopicPartition) -> int:
        """The application takes all of a partition that is at hand."""
        records = 0
        while chunk := self.fetcher.next_chunk({tp: 2**62}):
            records += len(chunk.take(1000))
            self.fetcher.release(chunk)
        return records
