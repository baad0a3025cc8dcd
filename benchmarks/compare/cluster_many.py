"""Many partitions, and much to catch up with: three fastq nodes against three of Apache Kafka, as `cluster.py` starts both.

    python benchmarks/compare/cluster_many.py [--rounds 1] [--quick] [--only fastq|apache-kafka] [--part partitions|catch-up]

Rules
- `partitions`: 10,000 of three replicas, min.insync.replicas 2. Created: from the call until a record was acknowledged by all in each.
  A node is killed, not the active controller: until a record was acknowledged in each partition that it led. A node is stopped: from
  its end, which has it started again, until all have three replicas in sync again (fastq's supervisor waits a second; that counts).
- `catch-up`: 20 GiB in six partitions on one node; a second one is made their replica, and has everything to fetch. The rate is that of
  the bytes until all are in sync. Meanwhile 5,000 records a second go to another topic of the same leader, with a replica that is not the
  one that catches up; their p99 before is the undisturbed one. By turns they are sent in 500 requests of raw bytes, whose waits are the
  leader's, and by fastq's producer, one by one: it shares two cores with three nodes, so what it waits for a core is in its waits. A p99
  is the median of those of the turns, before and meanwhile: what a machine does now and then, as after 20 GiB, is in one or two of them.
- A part in which a side does not come to the end of a step within a quarter of an hour is given up; what it had reached is kept, and
  `given_up_s` says how long it had for the step. What ended sooner, for another reason, is "not measured".
- With `--only` or `--part`, what is measured takes its place in what was saved, and the rest of that stays.
- `--quick` is for looking whether it runs: less of all, nothing is saved.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from functools import partial
from statistics import median

from support import RESULTS, cpu_seconds, interleave, medians, save, touch_memory

# isort: split
from cluster import (
    LOOK_S,
    NODES,
    TOPIC_CONFIG,
    Cluster,
    KafkaNodes,
    active_controller,
    addresses,
    all_pids,
    bulk,
    leaders,
    patiently,
    percentile_ms,
    request_waits,
    started,
    waits,
)

from fastq import Admin, Producer

SIDES = ("fastq", "apache-kafka")
PARTS = ("partitions", "catch-up")
TOPICS, PARTITIONS = 10, 1_000
BEHIND_BYTES = 20 << 30
BULK_PARTITIONS = 6
TURN_S = 2.5
LONG_MS = 900_000
"""How long a step may take."""


class Part:
    """What is measured of a part of a side, step by step."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        self.begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Of the step."""
        return time.perf_counter() - self.begun

    def end(self, figure: str) -> None:
        self.figures[figure] = self.seconds
        print(f"  {figure} {self.figures[figure]:.3g}", flush=True)
        self.begin()


def _admin(cluster: Cluster) -> Admin:
    return Admin(bootstrap_servers=cluster.servers, request_timeout_ms=LONG_MS, default_api_timeout_ms=LONG_MS)


def _one_each(cluster: Cluster, places: list[tuple[str, int]]) -> None:
    """A record to each of the partitions, acknowledged by all."""
    with Producer(
        bootstrap_servers=cluster.servers,
        acks="all",
        batch_size=1024,
        delivery_timeout_ms=LONG_MS,
        request_timeout_ms=LONG_MS // 2,
        max_block_ms=LONG_MS,
    ) as producer:
        for sent in [producer.send(topic, b"record", partition=partition) for topic, partition in places]:
            sent.result(LONG_MS / 1e3)


def _wait_in_sync(cluster: Cluster, topics: list[str], replicas: int) -> None:
    """Until every partition of the topics has so many replicas, all in sync."""

    def look() -> None:
        with _admin(cluster) as admin:
            for name, found in admin.describe_topics(topics).items():
                for each in found.result().partitions:
                    if not len(each.isr) == len(each.replicas) == replicas:
                        raise OSError(f"{name}-{each.index} is not in sync")

    patiently(look, LONG_MS / 1e3)


def many_partitions(cluster: Cluster, per_topic: int, part: Part) -> None:
    topics = [f"many-{number}" for number in range(TOPICS)]
    places = [(topic, partition) for topic in topics for partition in range(per_topic)]
    patiently(lambda: active_controller(cluster.servers))

    def all_nodes() -> None:
        with Admin(bootstrap_servers=cluster.servers) as admin:
            if len(admin.describe_cluster().nodes) < len(NODES):
                raise OSError("a node is missing")

    patiently(all_nodes)
    part.begin()
    with _admin(cluster) as admin:
        for topic in topics:
            admin.create_topic(topic, per_topic, len(NODES), configs=TOPIC_CONFIG)
    _one_each(cluster, places)
    part.end("create_s")
    _wait_in_sync(cluster, topics, len(NODES))

    controller = active_controller(cluster.servers)
    node = next(each for each in NODES if each != controller)
    led = [
        (topic, partition)
        for topic in topics
        for partition, leader in leaders(cluster.servers, topic).items()
        if leader == node
    ]
    part.begin()
    cluster.kill(node)
    _one_each(cluster, led)
    part.end("fail_over_s")
    cluster.start(node)
    patiently(all_nodes)
    _wait_in_sync(cluster, topics, len(NODES))

    controller = active_controller(cluster.servers)
    node = next(each for each in NODES if each != controller)
    cluster.end(node)
    part.begin()
    cluster.start(node)
    patiently(all_nodes)
    _wait_in_sync(cluster, topics, len(NODES))
    part.end("restart_s")


def catch_up(cluster: Cluster, behind_bytes: int, turns: int, part: Part) -> None:
    leader, follower, other = NODES

    def create() -> None:
        with Admin(bootstrap_servers=cluster.servers) as admin:
            assignments = {partition: [leader] for partition in range(BULK_PARTITIONS)}
            admin.create_topic("bulk", replica_assignments=assignments)
            admin.create_topic("live", replica_assignments={0: [leader, other]}, configs=TOPIC_CONFIG)

    patiently(create)
    bulk(cluster, behind_bytes)
    os.sync()
    address = addresses(cluster.servers)[leader]
    waits(cluster.servers, "live", 2)

    def turn(found: dict[str, list[float]]) -> None:
        found["client_"].append(percentile_ms(waits(cluster.servers, "live", TURN_S), 0.99))
        found[""].append(percentile_ms(request_waits(address, "live", TURN_S), 0.99))

    before: dict[str, list[float]] = {"": [], "client_": []}
    during: dict[str, list[float]] = {"": [], "client_": []}
    for _ in range(turns):
        turn(before)
    cpu = sum(map(cpu_seconds, all_pids(cluster)))
    part.begin()
    with Admin(bootstrap_servers=cluster.servers) as admin:
        moves = {("bulk", partition): [leader, follower] for partition in range(BULK_PARTITIONS)}
        for outcome in admin.alter_partition_reassignments(moves).values():
            outcome.result()
        while admin.list_partition_reassignments([("bulk", partition) for partition in range(BULK_PARTITIONS)]):
            turn(during)
            if part.seconds > LONG_MS / 1e3:
                raise TimeoutError("it has not caught up")
            time.sleep(LOOK_S)
    seconds = part.seconds
    cpu = sum(map(cpu_seconds, all_pids(cluster))) - cpu
    part.figures |= {
        "MB_per_s": behind_bytes / 1e6 / seconds,
        "cpu_s_per_GB": cpu / (behind_bytes / 1e9),
    }
    for whose in before:
        undisturbed, disturbed = median(before[whose]), median(during[whose])
        part.figures |= {
            f"{whose}undisturbed_p99_ms": undisturbed,
            f"{whose}meanwhile_p99_ms": disturbed,
            f"{whose}p99_ratio": disturbed / undisturbed,
        }


SHOWN: Mapping[str, str] = {
    "create_s": "10,000 partitions of three replicas: made, and a record in each, s",
    "fail_over_s": "a node is killed: a record in each partition that it led, s",
    "restart_s": "a node is started again: all in sync, s",
    "MB_per_s": "20 GiB behind: MB/s until in sync",
    "cpu_s_per_GB": "the same, CPU-seconds a GB, the producer's records with it",
    "undisturbed_p99_ms": "its leader, 500 requests of ten records a second before: p99, ms",
    "meanwhile_p99_ms": "and meanwhile: p99, ms",
    "p99_ratio": "meanwhile / before",
    "client_undisturbed_p99_ms": "the same records one by one from a Python client, before: p99, ms",
    "client_meanwhile_p99_ms": "and meanwhile: p99, ms",
    "client_p99_ratio": "meanwhile / before",
}


def measure(side: str, what: str, quick: bool) -> dict[str, float]:
    touch_memory()
    with started(side) as (cluster, _):
        part = Part()
        try:
            if what == "partitions":
                many_partitions(cluster, PARTITIONS // 10 if quick else PARTITIONS, part)
            else:
                catch_up(cluster, BEHIND_BYTES // 20 if quick else BEHIND_BYTES, 2 if quick else 8, part)
        except Exception as error:  # of whichever client call met it
            part.end("given_up_s")
            print(f"  {side} is given up: {error!r}", flush=True)
    return part.figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=SIDES)
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args()
    KafkaNodes.patience_s = LONG_MS / 1e3
    sides = [options.only] if options.only else SIDES
    saved = RESULTS / "cluster_many.json"
    kept = json.loads(saved.read_text())["rounds"] if saved.exists() else {}
    for part in [options.part] if options.part else PARTS:
        work = {side: partial(measure, side, part, options.quick) for side in sides}
        for side, rounds in interleave(work, 1 if options.quick else options.rounds).items():
            kept.setdefault(side, {})[part] = rounds
    middle = {
        side: dict(pair for rounds in parts.values() for pair in medians(rounds).items())
        for side, parts in kept.items()
    }
    for key, words in SHOWN.items():
        print(f"{words:<68}", "  ".join(f"{side} {found[key]:,.3g}" for side, found in middle.items() if key in found))
    if not options.quick:
        ours, theirs = (middle.get(side, {}) for side in SIDES)
        ratio = {key: ours[key] / theirs[key] for key in SHOWN if key in ours and key in theirs}
        print(save("cluster_many", {"medians": middle, "ratio": ratio, "rounds": kept}))


if __name__ == "__main__":
    main()
