"""Records and bytes by topic, under Kafka's names (BrokerTopicMetrics).

Rules
- What comes in is not counted, it is worked out when somebody asks: how far each log has grown since. So a produce pays nothing. What was
  written and deleted again between two looks is missed.
- What goes out is counted by the answer, once a partition that has something, and only where metrics are asked for.
- The TOPICS_MAX topics that were busiest when they were first seen are told one by one and stay so, the rest as one, under REST.
- No counter but that of a topic that is gone goes back: it would be taken for a restart, and what is left for new. So the sums keep what
  topics had that were deleted or moved away.
- As with Kafka, the sample without a topic is that of all of them: who adds up leaves one or the other out (topic="").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fastq.values import NamedTuple

if TYPE_CHECKING:
    from fastq._native.fetch_path import PartitionData

    from .log import PartitionLog
    from .metrics import Exposition
    from .replicas import Replica, ReplicaTable

TOPICS_MAX: Final = 500
REST: Final = "*"
"""No topic has this name."""


class Traffic:
    """Of one topic on this broker, since it started."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "rejected", "replication_in", "replication_out")

    def __init__(self) -> None:
        self.bytes_in = self.records_in = self.bytes_out = self.replication_in = self.replication_out = (
            self.rejected
        ) = 0

    def add(self, other: Traffic) -> None:
        """Take another's figures in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Seen(NamedTuple):
    """Where a log's active segment began and ended, and where the log did."""

    base: int
    size: int
    end: int


def _place(log: PartitionLog) -> _Seen:
    active = log.active_segment
    return _Seen(active.base_offset, active.size, log.log_end_offset)


def written_since(log: PartitionLog, seen: _Seen) -> int:
    """Bytes that were appended since then, of what is still there."""
    size = 0
    for segment in log.segments_from(seen.base):
        if segment.base_offset >= seen.base:  # else that one was cut off
            size += segment.size - (seen.size if segment.base_offset == seen.base else 0)
    return max(0, size)


class TopicTraffic:
    """The figures of all topics. Loop thread only. Invariant: `_told` has at most TOPICS_MAX names, of topics that are known."""

    def __init__(self) -> None:
        self._topics: dict[str, Traffic] = {}
        self._told: set[str] = set()
        self._among_rest: set[str] = set()
        self._gone, self._rest = Traffic(), Traffic()
        """What topics had that are no more, or are told apart by now: those told, and those among the rest."""
        self._seen: dict[PartitionLog, _Seen] = {}
        self._fetched: dict[tuple[bool, bytes, bool], int] = {}
        """Bytes by whether the topic is named by its id, how it is named, and whether a follower has them."""

    def fetched(self, by_id: bool, follower: bool, results: Iterable[PartitionData]) -> None:
        """Count what an answer to a fetch has."""
        counts = self._fetched
        for result in results:
            if result.records is not None:
                key = by_id, result.topic, follower
                counts[key] = counts.get(key, 0) + result.records.size

    def rejected(self, topic: str, size_bytes: int) -> None:
        """Count a batch that was refused for its size."""
        self._of(topic).rejected += size_bytes

    def look(self, replicas: ReplicaTable) -> None:
        """Bring the figures up to date."""
        counts, self._fetched = self._fetched, {}
        for (by_id, key, follower), size in counts.items():
            hosted = (replicas.by_id if by_id else replicas.by_name).get(key)
            if hosted:
                traffic = self._of(next(iter(hosted.values())).topic)
                if follower:
                    traffic.replication_out += size
                else:
                    traffic.bytes_out += size
        seen: dict[PartitionLog, _Seen] = {}
        there = set()
        for replica in replicas:
            there.add(replica.topic)
            if replica.log.loaded:  # one that is not has not grown
                seen[replica.log] = self._look_at(replica, replicas.node_id)
        self._seen = seen
        for topic in self._topics.keys() - there:
            (self._gone if topic in self._told else self._rest).add(self._topics.pop(topic))
        self._told &= there
        self._among_rest &= there

    def _look_at(self, replica: Replica, node_id: int) -> _Seen:
        log = replica.log
        now, before = _place(log), self._seen.get(log)
        if before is None and not log.durability.is_new:
            return now
        if before is None:
            first = log.segments[0].base_offset
            before = _Seen(first, 0, first)
        if now != before:
            traffic, size = self._of(replica.topic), written_since(log, before)
            if replica.leader_id == node_id:
                traffic.bytes_in += size
                # A mirror's first batch may lie far above the end, and the log begins there then.
                traffic.records_in += max(0, now.end - max(before.end, log.log_start_offset))
            else:
                traffic.replication_in += size
        return now

    def _of(self, topic: str) -> Traffic:
        return self._topics.setdefault(topic, Traffic())

    def told(self) -> tuple[Traffic, dict[str, Traffic]]:
        """The figures of all topics, and those of each that is told apart, the rest among them where there is one."""
        room = TOPICS_MAX - len(self._told)
        if room:
            others = sorted(
                self._topics.keys() - self._told,
                key=lambda topic: (-self._topics[topic].bytes_in - self._topics[topic].bytes_out, topic),
            )
            for topic in others[:room]:
                if topic in self._among_rest:  # which keeps what was told there
                    self._rest.add(self._topics[topic])
                    self._topics[topic] = Traffic()
            self._told.update(others[:room])
        self._among_rest = set(self._topics.keys() - self._told)
        total, rest = Traffic(), Traffic()
        rest.add(self._rest)
        for topic in self._among_rest:
            rest.add(self._topics[topic])
        found = {topic: self._topics[topic] for topic in sorted(self._told)}
        for traffic in (self._gone, rest, *found.values()):
            total.add(traffic)
        if self._among_rest or any(getattr(rest, name) for name in Traffic.__slots__):
            found[REST] = rest
        return total, found


def tell_topics(out: Exposition, traffic: TopicTraffic, bytes_in: int, bytes_out: int) -> None:
    """Kafka's families. `bytes_in` and `bytes_out` are those of requests and answers, which include what is no record."""
    total, topics = traffic.told()
    for name, meaning, all_of_it, attribute in (
        ("kafka_server_brokertopicmetrics_messagesin_total", "Records of producers", total.records_in, "records_in"),
        ("kafka_server_brokertopicmetrics_bytesin_total", "Bytes of producers", bytes_in, "bytes_in"),
        ("kafka_server_brokertopicmetrics_bytesout_total", "Bytes to consumers", bytes_out, "bytes_out"),
        (
            "kafka_server_brokertopicmetrics_bytesrejected_total",
            "Bytes of producers' batches that were too large",
            total.rejected,
            "rejected",
        ),
        (
            "kafka_server_brokertopicmetrics_replicationbytesin_total",
            "Bytes from leaders",
            total.replication_in,
            "replication_in",
        ),
        (
            "kafka_server_brokertopicmetrics_replicationbytesout_total",
            "Bytes to followers",
            total.replication_out,
            "replication_out",
        ),
    ):
        out.family(
            name,
            "counter",
            f"{meaning}, by topic; without a topic: of all of them.",
            [({}, all_of_it), *[({"topic": topic}, getattr(each, attribute)) for topic, each in topics.items()]],
        )
