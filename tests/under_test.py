"""The broker that tests share: one node, or with FASTQ_NODES=3 (`make test-nodes`) a cluster of three.

Rules: who takes one of the fixtures `shared_broker` and `quick_broker` runs against both, but for what is marked `one_node`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fastq.testing import Broker, Cluster


def broker_under_test(data_dir: Path, config: Mapping[str, object] | None = None) -> Broker | Cluster:
    """It has `bootstrap_servers`, and is a context manager."""
    nodes = int(os.environ.get("FASTQ_NODES", "1"))
    return Broker(data_dir, config) if nodes == 1 else Cluster(nodes, data_dir, config)
