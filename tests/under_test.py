"""The broker that tests share: one node, or with FASTQ_NODES=3 (`make test-nodes`) a cluster of three.

Rules: who takes one of the fixtures `shared_broker`, `quick_broker` and `one_coordinator`, or is marked `any_nodes` and has brokers of
its own from here, runs against both, but for what is marked `one_node`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastq.testing import Broker, Cluster

ONE_COORDINATOR = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
"""All groups have the same coordinator, and all transactions, however many nodes there are."""


def broker_under_test(
    data_dir: Path | None = None, config: Mapping[str, object] | None = None, **options: Any
) -> Broker | Cluster:
    """It has `bootstrap_servers`, `kill`, `start`, `stop`, `restart`, `log`, and is a context manager."""
    nodes = int(os.environ.get("FASTQ_NODES", "1"))
    return Broker(data_dir, config, **options) if nodes == 1 else Cluster(nodes, data_dir, config, **options)


def nodes_of(broker: Broker | Cluster) -> tuple[Broker, ...]:
    """Its nodes: itself, where there is one."""
    return broker.nodes if isinstance(broker, Cluster) else (broker,)


def wait_in_sync(broker: Broker | Cluster) -> None:
    """Until every replica has everything."""
    if isinstance(broker, Cluster):
        broker.wait_in_sync()


def leader_of(broker: Broker | Cluster, topic: str, partition: int = 0) -> Broker:
    """The node that leads a partition: itself, where there is one."""
    return broker.leader(topic, partition) if isinstance(broker, Cluster) else broker
