"""What clients see of three nodes that are killed, paused for longer than their session, cut off and out of disk: nothing
lost or doubled."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from trouble import KINDS, go

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of a process that runs, and namespaces")


@pytest.mark.slow
@pytest.mark.timeout(400)  # longer than PATIENCE_S: what was not read is told, then
def test_nothing_is_lost_whatever_happens_to_a_node(tmp_path: Path) -> None:
    go(tmp_path, ["pause", "apart", "failing syncs", "full disk", "failing writes"], Random(1))


@pytest.mark.slow
def test_a_node_whose_disk_is_full_comes_back_without_a_restart(tmp_path: Path) -> None:
    """Each in turn is out of room, whatever it leads: partitions, coordinators, the metadata."""
    go(tmp_path, ["full disk"] * 4, Random(3))
    said = "".join(path.read_text() for path in tmp_path.glob("node-*.log"))
    assert "could not read or write its disk" in said and "No space left" in said


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_whatever_happens_to_nodes_for_long(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    settings = {"durability": "fsync"} if seed == 2 else {}
    go(tmp_path, random.choices(KINDS, k=40), random, "consumer" if seed == 1 else "classic", **settings)
