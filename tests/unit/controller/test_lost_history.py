"""A metadata log of a history that has lost, beside a snapshot of the one that has won."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastq_broker.controller.inspection import inspect, judge
from fastq_broker.controller.snapshot import list_snapshots
from fastq_broker.raft.messages import SnapshotId
from test_damage import Cluster


@pytest.mark.parametrize("later", [0, 1])
def test_a_log_of_a_history_that_has_lost_is_not_kept_behind_a_snapshot_of_another(tmp_path: Path, later: int) -> None:
    """The snapshot was fetched, and its log had not begun yet: the epochs tell it, however far the log of before reaches."""
    cluster = Cluster(tmp_path)
    latest = list_snapshots(cluster.meta)[-1]
    fetched = SnapshotId(latest.end_offset, latest.epoch + later)
    (cluster.meta / latest.file_name).rename(cluster.meta / fetched.file_name)
    found = inspect(cluster.meta, stopped_cleanly=False, quorum_epoch=9)
    verdict = judge(found, broker_epoch=-1, quorum_epoch=9, alone=False)
    assert (verdict.begin_at, verdict.keeps) == ((fetched.end_offset, False) if later else (None, True))
    assert not verdict.losses and found.end_offset > fetched.end_offset
