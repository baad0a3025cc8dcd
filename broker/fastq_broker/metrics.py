"""What the broker counts, and how Prometheus reads it (text exposition format 0.0.4).

Rules
- Off unless `--metrics-listen` is given: then `MeteredRouter` is the broker's router, and adds two readings of the clock and
  a few additions to a request; records cost nothing.
- Everything that is a state (logs, connections, groups) is read when it is asked for, in one turn of the loop. Logs that nobody has
  touched since the start are loaded before that, in turns of LOAD_TURN_S, so that no sum lacks them, and others are served meanwhile.
- A broker with more than PARTITIONS_MAX partitions tells them by topic alone.
- A group's lag is told by its coordinator, of partitions that it leads or follows in sync: of others it knows no end. A sum that would
  leave some out is not told; how many they are, is.
- Names end in their unit, counters in `_total`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from fastq.errors import ErrorCode, KafkaError
from fastq.protocol.api import APIS

from .connection import Connection
from .controller.states import PartitionState, ReplicaState, partition_state, replica_state
from .groups.classic_group import ClassicGroup
from .metrics_kafka import tell_all
from .metrics_recent import Recent, waiting_by_api
from .metrics_topics import TopicTraffic
from .router import Deferred, Router

if TYPE_CHECKING:
    from fastq._native.fetch_path import PartitionData

    from .broker import Broker
    from .output import Part
    from .replicas import Replica
    from .router import Header, Result, Route

LATENCY_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
PARTITIONS_MAX = 2_000
GROUPS_MAX = 1_000
LOAD_TURN_S = 0.01
STUCK_S = 10.0
"""Housekeeping that is so late says that the loop does not turn."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Times over LATENCY_BUCKETS_S, and their sum."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class ApiStats:
    """The requests of one API. `buckets[i]` counts those of at most LATENCY_BUCKETS_S[i], the last one the rest.

    Of those that are answered later: `begun` is how long the handler took at first, `waited` how long it was until the answer after that,
    and `late` the whole. Those that are answered at once are in none of them: most are, and pay nothing for it.
    """

    __slots__ = (
        "begun",
        "buckets",
        "bytes_in",
        "bytes_out",
        "errors",
        "late",
        "partition_errors",
        "requests",
        "seconds",
        "waited",
    )

    def __init__(self) -> None:
        self.begun, self.waited, self.late = Histogram(), Histogram(), Histogram()
        self.requests = 0
        self.errors: dict[int, int] = {}
        self.partition_errors: dict[int, int] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)

    def answered(self, seconds: float, size: int) -> None:
        """Count an answer: from the request's last byte to when the answer goes to the socket."""
        self.requests += 1
        self.seconds += seconds
        self.bytes_out += size
        self.buckets[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1

    @property
    def local(self) -> tuple[list[int], float]:
        """How long handlers took until they had the answer, or left it to something that was still to come: counts and sum."""
        counts = zip(self.buckets, self.late.buckets, self.begun.buckets, strict=True)
        return [whole - late + begun for whole, late, begun in counts], (
            self.seconds - self.late.seconds + self.begun.seconds
        )

    def failed(self, code: int) -> None:
        """Count an error; UNKNOWN_SERVER_ERROR stands for a request that closed the connection."""
        self.errors[code] = self.errors.get(code, 0) + 1


class _Timed:
    """Stands between an answer that comes later and its connection, to count it."""

    __slots__ = ("_begun_s", "_connection", "_started", "stats")

    def __init__(self, connection: Connection, stats: ApiStats, started: float) -> None:
        self._connection, self.stats, self._started = connection, stats, started
        self._begun_s = perf_counter() - started
        stats.begun.add(self._begun_s)

    def complete(self, deferred: Deferred, response: bytes | list[Part] | None) -> None:
        seconds, stats = perf_counter() - self._started, self.stats
        stats.answered(seconds, _size(response))
        stats.late.add(seconds)
        stats.waited.add(seconds - self._begun_s)
        self._connection.complete(deferred, response)

    def fail(self, reason: str) -> None:
        self.stats.failed(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._connection.fail(reason)


def timed_for(pending: Deferred | None) -> ApiStats | None:
    """Where the answer that a connection waits for is going to be counted."""
    timed = None if pending is None else pending.answers_to
    return timed.stats if isinstance(timed, _Timed) else None


class MeteredRouter(Router):
    """The router of a broker that is asked for metrics. Loop thread only."""

    counts_fetches = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.stats: dict[int, ApiStats] = {}
        self.traffic = TopicTraffic()

    def rejected(self, topic: str, size_bytes: int) -> None:
        self.traffic.rejected(topic, size_bytes)

    def fetched(self, by_id: bool, follower: bool, results: Iterable[PartitionData]) -> None:
        self.traffic.fetched(by_id, follower, results)

    def dispatch(self, connection: Connection, buffer: bytearray, header: Header) -> Result:
        started = perf_counter()
        stats = self.stats.get(header[0])
        if stats is None:
            stats = self.stats.setdefault(header[0] if header[0] in APIS else -1, ApiStats())
        stats.bytes_in += header[5] - header[4]
        try:
            result = super().dispatch(connection, buffer, header)
        except Exception:
            stats.failed(ErrorCode.UNKNOWN_SERVER_ERROR)
            raise
        if isinstance(result, Deferred) and not result.answered:
            result.hand_over(_Timed(connection, stats, started))
        else:
            answer = result.answer if isinstance(result, Deferred) else result
            stats.answered(perf_counter() - started, _size(answer))
        return result

    def _encode(self, route: Route, header: Header, response: Any) -> bytes:
        """Errors of a whole request."""
        code = getattr(response, "error_code", 0)
        if code:
            self.stats[header[0]].failed(code)
        return super()._encode(route, header, response)

    def partition_failed(self, api_key: int, code: int) -> None:
        found = self.stats[api_key].partition_errors
        found[code] = found.get(code, 0) + 1


def _size(response: bytes | list[Part] | None) -> int:
    if isinstance(response, bytes):
        return len(response)
    if response is None:
        return 0
    return sum(len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size for part in response)


def _can_be_read(replica: Replica) -> bool:
    """Whether a partition's log is there to be asked: one that a full disk, or a shortage, keeps from being loaded is left out."""
    try:
        replica.log.load()
    except KafkaError:
        return False
    return True


# --- exposition ---


def _label(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Exposition:
    """Lines of the text format, one family after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(
        self,
        name: str,
        kind: str,
        meaning: str,
        samples: Iterable[tuple[Mapping[str, object], float]] | Iterable[tuple[Mapping[str, str], float]] | float,
    ) -> None:
        """A metric with its samples, each with its labels; or with one sample without any."""
        self._lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        if isinstance(samples, (int, float)):
            samples = [({}, samples)]
        self._lines += [self._sample(name, labels, value) for labels, value in samples]

    def histogram(
        self, name: str, meaning: str, samples: Iterable[tuple[Mapping[str, object], list[int], float]]
    ) -> None:
        """A histogram over LATENCY_BUCKETS_S: labels, counts of each bucket, and the sum."""
        self._lines += [f"# HELP {name} {meaning}", f"# TYPE {name} histogram"]
        for labels, buckets, total in samples:
            count = 0
            for bound, found in zip((*LATENCY_BUCKETS_S, "+Inf"), buckets, strict=True):
                count += found
                self._lines.append(self._sample(f"{name}_bucket", {**labels, "le": bound}, count))
            self._lines.append(self._sample(f"{name}_sum", labels, total))
            self._lines.append(self._sample(f"{name}_count", labels, count))

    @staticmethod
    def _sample(name: str, labels: Mapping[str, object], value: float) -> str:
        if not labels:
            return f"{name} {value}"
        shown = ",".join(f'{key}="{_label(item)}"' for key, item in labels.items())
        return f"{name}{{{shown}}} {value}"

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


class BrokerMetrics:
    """Reads a broker. Loop thread only."""

    def __init__(self, broker: Broker, router: MeteredRouter, lags_max: int = PARTITIONS_MAX) -> None:
        """`lags_max`: how many partitions' lag is told by group."""
        self._broker = broker
        self._router = router
        self._lags_max = lags_max
        self.begun_s = time()
        self.loop_lag = Histogram()
        self._recent = Recent(LATENCY_BUCKETS_S)
        broker.on_late = self.loop_lag.add
        self.started = False
        """Whether the broker's start is through."""

    def loading(self) -> Iterator[None]:
        """Load what nobody has touched since the start, as `text` does at once; yields where the loop is to have a turn. What cannot be
        loaded is left to `text`, which leaves it out."""
        replicas = self._broker.replicas
        until = perf_counter() + LOAD_TURN_S
        for replica in [replica for replica in replicas if not replica.log.loaded]:
            if perf_counter() >= until:
                yield
                until = perf_counter() + LOAD_TURN_S
            # One that went meanwhile has no files any more.
            if replicas.get(replica.topic, replica.partition) is replica:
                _can_be_read(replica)

    def text(self) -> str:
        """All metrics."""
        out = Exposition()
        out.family(
            "process_start_time_seconds", "gauge", "When the broker started, in seconds since 1970.", self.begun_s
        )
        self._requests(out)
        self._network(out)
        self._logs(out)
        self._groups(out)
        self._controller(out)
        tell_all(out, self._broker, self._router.stats, self._router.traffic, self._told_apart())
        pending = [found for each in self._broker.server.connections if (found := timed_for(each.pending)) is not None]
        self._recent.tell(out, self._router.stats, waiting_by_api(self._router.stats, pending))
        return out.text()

    def _told_apart(self) -> list[Replica]:
        """The partitions that are told one by one: all, or none where they are many."""
        replicas = self._broker.replicas
        if len(replicas) > PARTITIONS_MAX:
            return []
        found = [replica for replica in replicas if _can_be_read(replica)]
        return sorted(found, key=lambda replica: (replica.topic, replica.partition))

    def problem(self) -> str | None:
        """Why the broker is not ready, None when it is."""
        broker = self._broker
        if not self.started:
            progress = broker.logs.recovery
            return f"the broker is starting: {progress}" if progress.under_way else "the broker is starting"
        if broker.server.stopping:
            return "the broker is stopping"
        if broker.logs.offline_dirs:
            return f"log directories are offline: {', '.join(broker.logs.offline_dirs)}"
        return None

    def death(self) -> str | None:
        """Why nothing can be served, so that only another process would help; None while something is."""
        broker = self._broker
        offline = broker.logs.offline_dirs
        if len(offline) == len(broker.logs.dirs):
            return f"all log directories are offline: {', '.join(offline)}"
        late_s = broker.loop.time() - broker.housekept_s
        if self.started and not broker.server.stopping and late_s > STUCK_S:
            return f"the event loop was held up for {late_s:.0f} s"
        return None

    def _requests(self, out: Exposition) -> None:
        stats = [({"api": APIS[key].name if key in APIS else "unknown"}, s) for key, s in self._router.stats.items()]
        out.family("fastq_requests_total", "counter", "Requests answered.", [(a, s.requests) for a, s in stats])
        for name, meaning, attribute in (
            ("fastq_request_errors_total", "Requests that failed as a whole.", "errors"),
            (
                "fastq_partition_errors_total",
                "Partitions that Produce or Fetch answered an error for.",
                "partition_errors",
            ),
        ):
            errors = [
                ({**api, "error": ErrorCode(code).name}, count)
                for api, s in stats
                for code, count in getattr(s, attribute).items()
            ]
            out.family(name, "counter", meaning, errors)
        out.family("fastq_request_bytes_total", "counter", "Bytes of requests.", [(a, s.bytes_in) for a, s in stats])
        out.family("fastq_response_bytes_total", "counter", "Bytes of responses.", [(a, s.bytes_out) for a, s in stats])
        out.histogram(
            "fastq_request_seconds",
            "From a request's last byte to its answer, long polls and delayed answers included.",
            [(api, s.buckets, s.seconds) for api, s in stats],
        )
        out.histogram(
            "fastq_request_phase_seconds",
            "What of it was spent where: local, in the handler; remote, waiting for other nodes, the disk or records to come.",
            [
                sample
                for api, s in stats
                for sample in (
                    ({**api, "phase": "local"}, *s.local),
                    ({**api, "phase": "remote"}, s.waited.buckets, s.waited.seconds),
                )
            ],
        )
        out.histogram(
            "fastq_loop_lag_seconds",
            "How late the event loop's housekeeping began: what a request waits for its turn.",
            [({}, self.loop_lag.buckets, self.loop_lag.seconds)],
        )

    def _network(self, out: Exposition) -> None:
        listeners: dict[str, int] = {}
        for connection in self._broker.server.connections:
            listeners[connection.listener] = listeners.get(connection.listener, 0) + 1
        samples = [({"listener": name}, count) for name, count in sorted(listeners.items())]
        out.family("fastq_connections", "gauge", "Open connections.", samples)

    def _logs(self, out: Exposition) -> None:
        broker = self._broker
        topics: dict[str, list[int]] = {}
        for replica in sorted(broker.replicas, key=lambda replica: replica.topic):
            known = topics.setdefault(replica.topic, [0, 0, 0])
            known[0] += 1
            if _can_be_read(replica):
                known[1] += replica.log.size_bytes
                known[2] += replica.log.high_watermark
        for at, (name, meaning) in enumerate(
            (
                ("fastq_topic_partitions", "Partitions of a topic on this broker."),
                ("fastq_topic_log_bytes", "Bytes of a topic's records on this broker's disks."),
                ("fastq_topic_high_watermark_sum", "High watermarks of a topic's partitions, added up."),
            )
        ):
            out.family(name, "gauge", meaning, [({"topic": topic}, known[at]) for topic, known in topics.items()])
        few = self._told_apart()
        for name, meaning, attribute in (
            ("fastq_partition_high_watermark", "The offset before which records can be read.", "high_watermark"),
            (
                "fastq_partition_last_stable_offset",
                "The offset before which no transaction is open.",
                "last_stable_offset",
            ),
            ("fastq_partition_log_start_offset", "The first offset that is still there.", "log_start_offset"),
            ("fastq_partition_log_bytes", "Bytes of a partition's records on disk.", "size_bytes"),
        ):
            samples = [({"topic": r.topic, "partition": r.partition}, getattr(r.log, attribute)) for r in few]
            out.family(name, "gauge", meaning, samples)
        out.family("fastq_partitions", "gauge", "Partitions on this broker.", len(broker.replicas))
        led = [replica for replica in broker.replicas if replica.leader_id == broker.node_id]
        out.family("fastq_partitions_led", "gauge", "Partitions that this broker leads.", len(led))
        below = sum(replica.under_min_isr for replica in led)
        out.family(
            "fastq_partitions_under_min_isr",
            "gauge",
            "Partitions led by this broker with fewer replicas in sync than min.insync.replicas.",
            below,
        )
        self._gaps(out)
        out.family("fastq_log_dirs_offline", "gauge", "Log directories that failed.", len(broker.logs.offline_dirs))
        cleaner = broker.cleaner
        out.family("fastq_cleaner_rounds_total", "counter", "Rounds of log compaction.", cleaner.rounds_done)
        for name, meaning, value in (
            ("fastq_cleaner_bytes_read_total", "Bytes that compaction has read.", cleaner.bytes_read),
            ("fastq_cleaner_bytes_written_total", "Bytes that compaction has written.", cleaner.bytes_written),
            ("fastq_cleaner_seconds_total", "Time that rounds of compaction took.", cleaner.seconds),
        ):
            out.family(name, "counter", meaning, value)
        out.family("fastq_cleaner_busy", "gauge", "Whether a round of compaction is under way.", int(cleaner.busy))
        out.family(
            "fastq_cleaner_uncleanable_partitions",
            "gauge",
            "Logs that compaction leaves alone after a failure.",
            len(cleaner.uncleanable),
        )

    def _gaps(self, out: Exposition) -> None:
        """Where records are missing, which nobody else sees: whoever reads there passes over it."""
        missing = sorted(
            (replica.topic, replica.partition, count)
            for replica in self._broker.replicas
            if _can_be_read(replica) and (count := replica.log.missing_offsets)
        )
        out.family(
            "fastq_partitions_with_gaps",
            "gauge",
            "Partitions whose log on this broker lacks records that it had, as a loss of power may leave it.",
            len(missing),
        )
        out.family(
            "fastq_partition_missing_offsets",
            "gauge",
            "Offsets without the records that they had, of the partitions that lack some.",
            [({"topic": topic, "partition": number}, count) for topic, number, count in missing[:PARTITIONS_MAX]],
        )

    def _controller(self, out: Exposition) -> None:
        """What only the active controller of a cluster tells: the states of all partitions and replicas."""
        broker = self._broker
        if broker.cluster is None:
            return
        active = broker.controller.is_active
        out.family("fastq_controller_active", "gauge", "Whether this node is the active controller.", int(active))
        if not active:
            return
        image = broker.controller.image
        partitions = Counter[PartitionState](dict.fromkeys(PartitionState, 0))
        replicas = Counter[ReplicaState](dict.fromkeys(ReplicaState, 0))
        del partitions[PartitionState.NON_EXISTENT], replicas[ReplicaState.NON_EXISTENT]
        short = 0
        for topic in image.topics_by_name.values():
            for partition in topic.partitions:
                partitions[partition_state(partition)] += 1
                replicas.update(replica_state(image, partition, number) for number in partition.replicas)
                short += len(partition.isr) < len(partition.replicas)
        for name, meaning, counts in (
            ("fastq_controller_partitions", "Partitions of the cluster by state.", partitions),
            ("fastq_controller_replicas", "Replicas of the cluster by state.", replicas),
        ):
            out.family(name, "gauge", meaning, [({"state": state.value}, count) for state, count in counts.items()])
        out.family(
            "fastq_controller_under_replicated_partitions", "gauge", "Partitions with a replica out of sync.", short
        )
        brokers = Counter("fenced" if one.fenced else "active" for one in image.brokers.values())
        out.family(
            "fastq_controller_brokers",
            "gauge",
            "Registered brokers.",
            [({"state": state}, brokers[state]) for state in ("active", "fenced")],
        )

    def _groups(self, out: Exposition) -> None:
        states: dict[str, int] = {}
        lags: list[tuple[str, str, int, int]] = []
        untold: Counter[tuple[str, str]] = Counter()
        groups = 0
        for shard in self._broker.groups.runtime.shards():
            for group_id, group in shard.groups.items():
                states[group.state_name] = states.get(group.state_name, 0) + 1
                groups += 1
                if groups > GROUPS_MAX:
                    continue
                for (topic, partition), committed in sorted(shard.committed(group_id).items()):
                    end = self._known_end(topic, partition)
                    if end is None:
                        untold[group_id, topic] += 1
                    else:
                        lags.append((group_id, topic, partition, max(0, end - committed.offset)))
        classic = sum(
            isinstance(group, ClassicGroup)
            for shard in self._broker.groups.runtime.shards()
            for group in shard.groups.values()
        )
        out.family(
            "kafka_coordinator_group_groupmetadatamanager_numgroups",
            "gauge",
            "Classic groups coordinated here.",
            classic,
        )
        by_topic: dict[tuple[str, str], int] = {}
        for group_id, topic, _, lag in lags:
            if (group_id, topic) not in untold:
                by_topic[group_id, topic] = by_topic.get((group_id, topic), 0) + lag
        out.family("fastq_groups", "gauge", "Groups by state.", [({"state": s}, n) for s, n in sorted(states.items())])
        meaning = "Records that a group has not committed yet, by topic; not told where its coordinator lacks a partition of them in sync."
        for name, *labels in (
            ("fastq_group_lag_records", "group", "topic"),
            ("kminion_kafka_consumer_group_topic_lag", "group_id", "topic_name"),
        ):
            samples = [(dict(zip(labels, key, strict=True)), lag) for key, lag in sorted(by_topic.items())]
            out.family(name, "gauge", meaning, samples)
        few = lags if len(lags) <= self._lags_max else nlargest(self._lags_max, lags, key=lambda each: each[3])
        out.family(
            "kafka_consumergroup_lag",
            "gauge",
            "Records that a group has not committed yet, by partition that its coordinator has in sync; of those that lag most, if many.",
            [({"consumergroup": g, "topic": t, "partition": p}, lag) for g, t, p, lag in few],
        )
        out.family(
            "fastq_group_lag_untold_partitions",
            "gauge",
            "Partitions that a group has committed offsets of and whose lag is not told, as its coordinator does not have them in sync.",
            [({"group": group, "topic": topic}, count) for (group, topic), count in sorted(untold.items())],
        )

    def _known_end(self, topic: str, partition: int) -> int | None:
        """The offset before which records of a partition can be read, as this broker knows it; None where it does not: the partition is on
        others, its log cannot be read, or this replica is behind."""
        broker = self._broker
        replica = broker.replicas.get(topic, partition)
        if replica is None or not _can_be_read(replica):
            return None
        if replica.leader_id != broker.node_id:
            image = broker.controller.image.partition(topic, partition)
            if image is None or broker.node_id not in image.isr:
                return None
        return replica.log.high_watermark
