"""Admin calls beside a node that stops in the middle, and is in the metadata still: what the others have to tell is told."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from nodes import COUNT, Nodes, children, free_ports, running

from fastq import Admin, TopicPartition
from fastq.admin import ConfigResource, OffsetSpec
from fastq.console.picture import disks, ends_of, replica_sizes
from fastq.errors import ConnectionTimeout, FastqError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SESSION_MS = 600_000
"""As long as a node that says nothing stays in the metadata."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running(tmp_path_factory.mktemp("cluster") / "data", free_ports(2 * COUNT), SESSION_MS) as nodes:
        nodes.ready()
        yield nodes


@pytest.fixture
def admin(nodes: Nodes) -> Iterator[Admin]:
    with Admin(bootstrap_servers=nodes.servers, request_timeout_ms=1000) as admin:
        yield admin


def test_beside_a_node_that_stops(nodes: Nodes, admin: Admin) -> None:
    leader = admin.describe_quorum().leader_id
    stopped = next(node for node in (1, 2, 3) if node != leader)
    others = sorted({1, 2, 3} - {stopped})
    replicas = {index: [1 + index, *(node for node in (1, 2, 3) if node != 1 + index)] for index in range(3)}
    admin.create_topic("told", replica_assignments=replicas)
    places = {TopicPartition("told", index): 1 + index for index in range(3)}
    admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST)).results()
    admin.describe_log_dirs().results()
    pid = children(nodes.process.pid)[f"node-{stopped}"]
    os.kill(pid, signal.SIGSTOP)
    try:
        _some_are_told(admin, stopped, others)
        for operation in (ends_of(places), replica_sizes((1, 2, 3), {"told": [0, 1, 2]}), disks((1, 2, 3))):
            shown: Any = admin._client.run(operation, 60.0)
            assert list(shown.silent) == [stopped] and isinstance(shown.silent[stopped], ConnectionTimeout)
        ends = admin._client.run(ends_of(places)).found
        assert [node for tp, node in places.items() if ends[tp].end == 0] == others
    finally:
        os.kill(pid, signal.SIGCONT)
    assert not admin.describe_log_dirs().errors, "it is back"


def _some_are_told(admin: Admin, stopped: int, others: list[int]) -> None:
    """An outcome for each, where the whole call failed."""
    found: dict[int, FastqError] = admin.describe_log_dirs((1, 2, 3), timeout=4.0).errors
    assert list(found) == [stopped] and isinstance(found[stopped], ConnectionTimeout)
    settings = admin.describe_configs([ConfigResource.broker(node) for node in (1, 2, 3)], timeout=4.0)
    assert [resource.name for resource in settings.errors] == [str(stopped)]
    offsets = admin.list_offsets({TopicPartition("told", i): OffsetSpec.LATEST for i in range(3)}, timeout=4.0)
    assert [1 + tp.partition for tp, outcome in offsets.items() if outcome.error is None] == others
