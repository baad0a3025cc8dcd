"""The front end: sends a workload's events to their topics at a rate, and the closing records at the end.

Rules: all events of a tick are acknowledged before the next tick begins, so no partition is more than a tick of event time
behind another, and a watermark that waits longer than a tick drops nothing, however late the jobs are. What was sent is
known exactly: `sent` counts the acknowledged events of each partition, without the closing records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import groupby

from fastq import Admin, Producer, TopicPartition
from fastq.admin import NewTopic
from fastq.errors import TopicAlreadyExists
from pipeline.workload import ALERTS, CLOSING, COUNTS, Event, Replay

KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}  # events may be years old
ACKNOWLEDGED_WITHIN_S = 60.0


def create_topics(servers: str, replay: Replay) -> None:
    """The topics of the events and of the results; those that are there stay as they are."""
    topics = [NewTopic(name=name, partitions=count, configs=KEEP) for name, count in replay.topics.items()]
    compacted = {"cleanup.policy": "compact", **KEEP}
    topics += [NewTopic(name=name, partitions=2, configs=compacted) for name in (COUNTS, ALERTS)]
    with Admin(bootstrap_servers=servers) as admin:
        for outcome in admin.create_topics(topics).values():
            if outcome.error is not None and not isinstance(outcome.error, TopicAlreadyExists):
                raise outcome.error


class FrontEnd(threading.Thread):
    """Replays in a thread of its own, in about `seconds`; `join` it, then ask `failed`.

    With `waits` it sends the first tick, and the others when `go` is set: a query's first batch takes seconds, whatever is in it.
    `sent` and `progress` (0 to 1) may be read by others at any time; only this thread changes them.
    """

    def __init__(self, servers: str, replay: Replay, seconds: float, *, waits: bool = False) -> None:
        super().__init__(name="front end", daemon=True)
        self.servers = servers
        self.replay = replay
        self.seconds = seconds
        self.sent: Counter[TopicPartition] = Counter()
        self.go = threading.Event()
        if not waits:
            self.go.set()
        self.progress = 0.0
        self.took_s = 0.0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with Producer(bootstrap_servers=self.servers, acks="all", linger_ms=0, compression_type="lz4") as producer:
                self._replay(producer)
                self._close_partitions(producer)
        except BaseException as error:
            self.failed = error

    def _replay(self, producer: Producer) -> None:
        ticks = list(self.replay.ticks())
        self._send(producer, ticks[0])
        self.go.wait()
        start = time.monotonic()
        for number, events in enumerate(ticks[1:], 2):
            self._send(producer, events)
            self.progress = number / len(ticks)
            time.sleep(max(0.0, start + self.seconds * self.progress - time.monotonic()))
        self.progress, self.took_s = 1.0, time.monotonic() - start

    def _send(self, producer: Producer, events: list[Event]) -> None:
        deliveries = []
        for topic, of_topic in groupby(sorted(events, key=lambda event: event.topic), key=lambda event: event.topic):
            _, keys, values, times = zip(*of_topic, strict=True)
            deliveries.append((topic, producer.send_many(topic, values, keys=keys, timestamps=times)))
        producer.flush(ACKNOWLEDGED_WITHIN_S)
        for topic, delivery in deliveries:
            for partition, offsets in delivery.result(ACKNOWLEDGED_WITHIN_S).offsets.items():
                self.sent[TopicPartition(topic, partition)] += sum(map(len, offsets))

    def _close_partitions(self, producer: Producer) -> None:
        deliveries = [
            producer.send(topic, b"", key=CLOSING, partition=partition, timestamp_ms=self.replay.closing_ms)
            for topic, partitions in self.replay.topics.items()
            for partition in range(partitions)
        ]
        for delivery in deliveries:
            delivery.result(ACKNOWLEDGED_WITHIN_S)
