"""README's programs run as they stand, one after another, against a broker at the address that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_programs import blocks_of, run_blocks

from fastq.testing import Broker


@pytest.mark.slow
def test_every_program_of_the_readme_runs(tmp_path: Path) -> None:
    blocks = blocks_of("README.md")
    assert len(blocks) >= 3
    with Broker(data_dir=tmp_path / "data") as broker:
        run_blocks(blocks, broker.bootstrap_servers, tmp_path)
