"""What the nodes of a cluster tell of groups' lag: a coordinator tells what it can know, and says how much that it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from nodes import free_ports, running
from prometheus_client.parser import text_string_to_metric_families

from fastq import Admin, Producer, TopicPartition

LAGS = ("fastq_group_lag_records", "kminion_kafka_consumer_group_topic_lag", "fastq_group_lag_untold_partitions")
PARTITIONS = (0, 1, 2)


def lags_of(port: int) -> dict[tuple[str, ...], float]:
    """Of one node: what it tells of groups' lag, by the metric's name and the labels' values."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in (*LAGS, "kafka_consumergroup_lag")
    }


def eventually(found: Callable[[], dict[tuple[str, ...], float]], wanted: dict[tuple[str, ...], float]) -> None:
    """Followers hear of what is committed a moment after their leaders."""
    until = time.monotonic() + 20
    while (seen := found()) != wanted and time.monotonic() < until:
        time.sleep(0.1)
    assert seen == wanted


def test_a_topic_that_is_partly_on_other_nodes_has_no_sum_that_leaves_them_out(tmp_path: Path) -> None:
    port = free_ports(9)
    with running(tmp_path, port, 5000, "--metrics-listen", f"127.0.0.1:{port + 6}") as nodes:
        nodes.ready()
        with Admin(bootstrap_servers=nodes.bootstrap) as admin, Producer(bootstrap_servers=nodes.bootstrap) as producer:
            admin.create_topic("spread", replica_assignments={0: [1], 1: [2], 2: [3]})
            admin.create_topic("whole", replica_assignments={at: [1, 2, 3] for at in PARTITIONS})
            places = [TopicPartition(topic, partition) for topic in ("spread", "whole") for partition in PARTITIONS]
            for place in places:
                for number in range(5):
                    producer.send(place.topic, b"%d" % number, partition=place.partition).result(20)
            admin.alter_group_offsets("slow", dict.fromkeys(places, 2)).results()
            (group,) = admin.describe_groups(["slow"]).results().values()
            assert group.coordinator is not None
            here = group.coordinator.node_id
        for node in (1, 2, 3):
            told = {}
            if node == here:
                told = {(name, "slow", "whole"): 9.0 for name in LAGS[:2]}
                told |= {("kafka_consumergroup_lag", "slow", "whole", str(at)): 3.0 for at in PARTITIONS}
                told["kafka_consumergroup_lag", "slow", "spread", str(here - 1)] = 3.0
                told[LAGS[2], "slow", "spread"] = 2.0
            eventually(lambda at=port + 5 + node: lags_of(at), told)
