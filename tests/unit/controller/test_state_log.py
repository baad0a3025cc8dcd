"""What the active controller's log has of partitions that lose their leaders."""

from __future__ import annotations

import asyncio
import logging

import pytest
from control_world import Cluster
from fastq_broker.controller import MetadataDelta, brokers
from fastq_broker.controller.state_log import LINES_MAX, PIECE, StateLog


@pytest.mark.parametrize(("partitions", "active"), [(3, True), (LINES_MAX + 5, True), (2 * PIECE, True), (3, False)])
def test_a_fence_is_a_line_a_partition_up_to_a_bound(
    partitions: int, active: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.brokers(1, 2)
        for number in range(partitions):
            cluster.partition(f"t{number}", replicas=[1], isr=[1])
        log = StateLog(cluster.image, lambda: active, asyncio.get_running_loop())
        before = cluster.image
        cluster.apply(*brokers.plan_fence(cluster.view, 1))
        log.changed(cluster.image, MetadataDelta.between(before, cluster.image))
        for _ in range(partitions // PIECE * 3 + 3):
            await asyncio.sleep(0)

    caplog.set_level(logging.DEBUG, "fastq_broker.state_change")
    asyncio.run(scenario())
    loud = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    quiet = [each for each in caplog.records if each.levelno == logging.DEBUG]
    if not active:
        assert not loud and not quiet
        return
    told = min(partitions, LINES_MAX)
    assert all("from=OnlinePartition to=OfflinePartition cause=broker-1-fenced" in line for line in loud[:told])
    more = partitions - LINES_MAX
    assert loud[told:] == (
        [f"{more} partitions more went between Online and Offline by this change"] if more > 0 else []
    )
    assert len(quiet) == partitions + max(more, 0)  # the replicas, and what was too much
