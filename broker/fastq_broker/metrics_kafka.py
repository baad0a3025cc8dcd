"""The broker's figures under the names that dashboards and alerts for Apache Kafka know: those that Strimzi's rules for the JMX exporter
make of Kafka's MBeans, lower case, and those of the common exporters of groups' lag. Beside them what any process tells.

Rules
- A name has the meaning that it has there; what is not known here is not told, rather than told as 0.
- Everything is read when it is asked for, in one turn of the loop; what takes a walk over all partitions of the cluster is told by the
  active controller alone, by partition and group within the same bounds as elsewhere.
- What lies within a minute is told by metrics_recent.py.
Sources: kafka.server.ReplicaManager, KafkaController, BrokerTopicMetrics, RequestChannel; Strimzi's kafka-metrics; kminion.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from fastq.errors import KafkaError
from fastq.net.connection import SOFTWARE_VERSION
from fastq.protocol.api import APIS
from fastq.values import NamedTuple

from .metrics_topics import TopicTraffic, tell_topics

if TYPE_CHECKING:
    from .broker import Broker
    from .metrics import ApiStats, Exposition
    from .replicas import Replica

PRODUCE, FETCH = 0, 1


class _Led(NamedTuple):
    """Partitions that this node leads, by what is wrong with them."""

    all: int
    under_replicated: int
    under_min_isr: int
    at_min_isr: int
    reassigning: int


def tell_all(
    out: Exposition,
    broker: Broker,
    stats: Mapping[int, ApiStats],
    traffic: TopicTraffic,
    replicas: Sequence[Replica],
) -> None:
    """All of them; `replicas` are those that are told one by one, and `traffic` is brought up to date."""
    _process(out, broker)
    _replica_manager(out, broker)
    traffic.look(broker.replicas)
    _requests(out, stats, traffic)
    _controller(out, broker)
    _raft(out, broker)
    labels = [({"topic": r.topic, "partition": r.partition}, r.log) for r in replicas]
    for name, meaning, attribute in (
        ("kafka_log_log_size", "Bytes of a partition's records on disk.", "size_bytes"),
        ("kafka_log_log_logendoffset", "The offset of the next record.", "log_end_offset"),
        ("kafka_log_log_logstartoffset", "The first offset that is still there.", "log_start_offset"),
    ):
        out.family(name, "gauge", meaning, [(each, getattr(log, attribute)) for each, log in labels])
    _partitions(out, broker, [replica for replica in replicas if replica.leader_id == broker.node_id])


def _partitions(out: Exposition, broker: Broker, led: Sequence[Replica]) -> None:
    """What the leader of a partition tells of its replicas."""
    image = broker.controller.image
    found = [
        ({"topic": replica.topic, "partition": replica.partition}, replica, partition)
        for replica in led
        if (partition := image.partition(replica.topic, replica.partition)) is not None
    ]
    for name, meaning, attribute in (
        ("kafka_cluster_partition_replicascount", "Replicas of a partition, by its leader.", "replicas"),
        ("kafka_cluster_partition_insyncreplicascount", "Those of them that are in sync.", "isr"),
        (
            "fastq_partition_eligible_replicas",
            "Those out of sync that may still lead, as they have all that is committed.",
            "eligible_leader_replicas",
        ),
    ):
        samples = [(labels, len(getattr(partition, attribute))) for labels, _, partition in found]
        out.family(name, "gauge", meaning, samples)
    lags = [(labels, replica.log.high_watermark - replica.log.last_stable_offset) for labels, replica, _ in found]
    meaning = "Records that readers of what is committed cannot have yet, as a transaction is open."
    out.family("kafka_cluster_partition_laststableoffsetlag", "gauge", meaning, lags)


def _process(out: Exposition, broker: Broker) -> None:
    import platform

    labels = {"version": SOFTWARE_VERSION, "python": platform.python_version(), "system": sys.platform}
    out.family("fastq_build_info", "gauge", "What runs here; always 1.", [(labels, 1)])
    times = os.times()
    out.family(
        "process_cpu_seconds_total", "counter", "User and system time of the process.", times.user + times.system
    )
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        out.family("process_resident_memory_bytes", "gauge", "Resident memory.", pages * os.sysconf("SC_PAGE_SIZE"))
        out.family("process_open_fds", "gauge", "Open files.", len(os.listdir("/proc/self/fd")))
        import resource  # Windows has none, and no /proc either

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY:
            out.family("process_max_fds", "gauge", "How many files may be open.", limit)
    except (OSError, ValueError):  # no Linux
        pass
    late_s = max(0.0, broker.loop.time() - broker.housekept_s)
    out.family(
        "fastq_loop_seconds_since_housekeeping", "gauge", "Grows beyond seconds where the loop is held up.", late_s
    )
    offline = sum(log_dir.offline is not None for log_dir in broker.logs.dirs)
    out.family("kafka_log_logmanager_offlinelogdirectorycount", "gauge", "Log directories that failed.", offline)
    cordoned = len(broker.logs.cordoned)
    out.family(
        "kafka_log_logmanager_cordonedlogdirectorycount", "gauge", "Log directories that get no new replicas.", cordoned
    )
    _space(out, broker)


def _space(out: Exposition, broker: Broker) -> None:
    """What the last look at the disks has found: a scrape waits for none."""
    looks = broker.space.looks.items()
    for name, meaning, attribute in (
        ("fastq_log_dir_free_bytes", "Free space of a log directory's file system.", "space.free_bytes"),
        ("fastq_log_dir_size_bytes", "Size of a log directory's file system.", "space.size_bytes"),
        (
            "fastq_log_dir_space_level",
            "0: there is room; 1: less than disk.warn.free.bytes; 2: less than disk.refuse.free.bytes, clients' records are refused.",
            "level",
        ),
        ("fastq_log_dir_ballast_bytes", "Of disk.ballast.bytes, what is there.", "ballast_bytes"),
    ):
        out.family(
            name,
            "gauge",
            meaning,
            [({"dir": path}, int(attrgetter(attribute)(look))) for path, look in looks],
        )
    out.family(
        "fastq_log_dir_full_total",
        "counter",
        "Operations that a full disk has refused.",
        [({"dir": log_dir.path}, log_dir.refused_for_room) for log_dir in broker.logs.dirs],
    )


def _led(broker: Broker) -> _Led:
    count = under_replicated = under_min = at_min = reassigning = 0
    image = broker.controller.image
    for replica in broker.replicas:
        if replica.leader_id != broker.node_id:
            continue
        count += 1
        partition = image.partition(replica.topic, replica.partition)
        if partition is None:
            continue
        in_sync, wanted = len(partition.isr), min(replica.min_insync_replicas, len(partition.replicas))
        under_replicated += in_sync < len(partition.replicas)
        under_min += in_sync < wanted
        at_min += in_sync == wanted
        reassigning += bool(partition.adding_replicas or partition.removing_replicas)
    return _Led(count, under_replicated, under_min, at_min, reassigning)


def _replica_manager(out: Exposition, broker: Broker) -> None:
    led = _led(broker)
    offline = sum(replica.log.dir.offline is not None for replica in broker.replicas)
    for name, meaning, value in (
        ("kafka_server_replicamanager_partitioncount", "Partitions on this broker.", len(broker.replicas)),
        ("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.", led.all),
        (
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Partitions led here with a replica out of sync.",
            led.under_replicated,
        ),
        (
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Partitions led here that refuse acks=all.",
            led.under_min_isr,
        ),
        (
            "kafka_server_replicamanager_atminisrpartitioncount",
            "Partitions led here that refuse acks=all if one more is lost.",
            led.at_min_isr,
        ),
        ("kafka_server_replicamanager_reassigningpartitions", "Partitions led here that move.", led.reassigning),
        ("kafka_server_replicamanager_offlinereplicacount", "Replicas in log directories that failed.", offline),
    ):
        out.family(name, "gauge", meaning, value)
    replication = broker.replicas.replication
    if replication is not None:
        out.family(
            "kafka_server_replicamanager_isrshrinks_total",
            "counter",
            "Replicas out of sync, by leader.",
            replication.shrunk,
        )
        out.family(
            "kafka_server_replicamanager_isrexpands_total",
            "counter",
            "Replicas back in sync, by leader.",
            replication.expanded,
        )
        refused = replication.refused
        out.family(
            "kafka_server_replicamanager_failedisrupdates_total",
            "counter",
            "Changes of ISRs that the controller refused.",
            refused,
        )
        lag = 0 if broker.cluster is None else broker.cluster.lag_max
        out.family("kafka_server_replicafetchermanager_maxlag", "gauge", "Records that a replica here lacks.", lag)


def _requests(out: Exposition, stats: Mapping[int, ApiStats], traffic: TopicTraffic) -> None:
    requests = [({"request": APIS[key].name}, found) for key, found in stats.items() if key in APIS]
    out.family(
        "kafka_network_requestmetrics_requests_total",
        "counter",
        "Requests answered.",
        [(labels, found.requests) for labels, found in requests],
    )
    errors = [(labels, sum(found.errors.values()) + sum(found.partition_errors.values())) for labels, found in requests]
    out.family("kafka_network_requestmetrics_errors_total", "counter", "Errors in answers.", errors)
    for key, kind, requests_name, failed_name in (
        (
            PRODUCE,
            "produce",
            "kafka_server_brokertopicmetrics_totalproducerequests_total",
            "kafka_server_brokertopicmetrics_failedproducerequests_total",
        ),
        (
            FETCH,
            "fetch",
            "kafka_server_brokertopicmetrics_totalfetchrequests_total",
            "kafka_server_brokertopicmetrics_failedfetchrequests_total",
        ),
    ):
        found = stats.get(key)
        counts = (0, 0)
        if found is not None:
            counts = found.requests, sum(found.errors.values()) + sum(found.partition_errors.values())
        out.family(requests_name, "counter", f"Requests to {kind}.", counts[0])
        out.family(failed_name, "counter", f"Partitions that failed to {kind}.", counts[1])
    produced, fetched = stats.get(PRODUCE), stats.get(FETCH)
    tell_topics(out, traffic, 0 if produced is None else produced.bytes_in, 0 if fetched is None else fetched.bytes_out)


def _controller(out: Exposition, broker: Broker) -> None:
    active = broker.controller.is_active
    out.family(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "gauge",
        "1 at the active controller; the sum is 1.",
        int(active),
    )
    unclean = 0 if broker.cluster is None else broker.cluster.unclean_elections
    out.family(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "counter",
        "Partitions that got a leader which may lack what was committed, as a controller has seen since its start: data may be lost.",
        unclean,
    )
    if not active:
        return
    image = broker.controller.image
    partitions = offline = elsewhere = 0
    for topic in image.topics_by_name.values():
        partitions += len(topic.partitions)
        offline += sum(partition.leader < 0 for partition in topic.partitions)
        elsewhere += sum(partition.leader != partition.replicas[0] for partition in topic.partitions)
    fenced = sum(one.fenced for one in image.brokers.values())
    for name, meaning, value in (
        ("kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster.", len(image.topics_by_name)),
        ("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of the cluster.", partitions),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without a leader.", offline),
        (
            "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
            "Partitions that another leads than their first replica.",
            elsewhere,
        ),
        ("kafka_controller_kafkacontroller_activebrokercount", "Brokers that serve.", len(image.brokers) - fenced),
        ("kafka_controller_kafkacontroller_fencedbrokercount", "Brokers that are registered and do not serve.", fenced),
    ):
        out.family(name, "gauge", meaning, value)


def _raft(out: Exposition, broker: Broker) -> None:
    if not hasattr(broker.controller, "quorum"):  # the start is not so far
        return
    quorum = broker.controller.quorum
    for name, meaning, value in (
        (
            "kafka_server_raftmetrics_current_leader",
            "The node that leads the metadata quorum; -1 while there is none.",
            quorum.leader_id,
        ),
        ("kafka_server_raftmetrics_current_epoch", "Epoch of the metadata quorum.", quorum.epoch),
        (
            "kafka_server_raftmetrics_high_watermark",
            "The metadata log up to where it is committed.",
            quorum.high_watermark,
        ),
    ):
        out.family(name, "gauge", meaning, value)
    try:
        end: int | None = quorum.end_offset
    except KafkaError:  # a shortage has left the log half cut: the rest is told all the same
        end = None
    if end is not None:
        out.family("kafka_server_raftmetrics_log_end_offset", "gauge", "Where the metadata log of this node ends.", end)
    mean_ms = quorum.commit_times.mean_ms()
    if mean_ms is not None:
        meaning = "Milliseconds until a change of the metadata that this node wrote was committed, the mean of the last minute."
        out.family("kafka_server_raftmetrics_commit_latency_avg", "gauge", meaning, mean_ms)
    leadership = quorum.driver.machine.leadership
    if leadership is not None and end is not None:
        lags = [
            ({"voter": each.key.node_id}, end - each.end)
            for each in leadership.others.values()
            if each.end >= 0 and quorum.voters.has(each.key)
        ]
        out.family(
            "fastq_quorum_voter_lag_records", "gauge", "Metadata records that a voter lacks, by its leader.", lags
        )
