"""The programs of docs/migrating.md run as they stand, those for the other clients and those for fastq."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_programs import blocks_of, run_blocks

from fastq.testing import Broker


@pytest.mark.slow
def test_every_program_of_the_page_runs(tmp_path: Path) -> None:
    blocks = blocks_of("docs/migrating.md")
    assert len(blocks) >= 16
    with Broker(data_dir=tmp_path / "data", config={"group.initial.rebalance.delay.ms": 0}) as broker:
        run_blocks(blocks, broker.bootstrap_servers, tmp_path)
