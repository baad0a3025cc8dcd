"""The programs of docs/guides run as they stand; those whose first line names a file of tests run under pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_programs import ROOT, blocks_of, run_blocks

from fastq.testing import Broker

ELSEWHERE = ("binary.md", "console.md", "security.md")
"""Guides that are tried by tests of their own: one file and a console are not ours to program, and security wants certificates."""
GUIDES = sorted(path.name for path in (ROOT / "docs" / "guides").glob("*.md") if path.name not in ELSEWHERE)


def named(block: str) -> str | None:
    found = re.match(r"# (test_\w+\.py)\n", block)
    return found and found[1]


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_every_program_of_a_guide_runs(guide: str, tmp_path: Path) -> None:
    blocks = blocks_of(f"docs/guides/{guide}")
    assert len(blocks) >= 2
    with Broker(data_dir=tmp_path / "data", config={"group.initial.rebalance.delay.ms": 0}) as broker:
        run_blocks([block for block in blocks if not named(block)], broker.bootstrap_servers, tmp_path)
    tests = {tmp_path / name: block for block in blocks if (name := named(block))}
    for path, block in tests.items():
        path.write_text(block)
    if tests:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_program_of_the_first_page_runs(tmp_path: Path) -> None:
    blocks = blocks_of("docs/index.md")
    assert blocks
    with Broker(data_dir=tmp_path / "data") as broker:
        run_blocks(blocks, broker.bootstrap_servers, tmp_path)


@pytest.mark.slow
def test_the_file_of_the_guide_starts_a_broker(tmp_path: Path) -> None:
    (text,) = re.findall(r"```properties\n(.*?)```", (ROOT / "docs/guides/broker.md").read_text(), re.DOTALL)
    config = tmp_path / "server.properties"
    config.write_text(text.replace("127.0.0.1:9092", "127.0.0.1:0"))
    command = [sys.executable, "-m", "fastq_broker", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            assert " ready on " in process.stdout.readline()
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "WARNING" not in errors, "the guide's file has nothing that is passed over"


def test_every_guide_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for guide in [*GUIDES, *ELSEWHERE]:
        assert f"docs/guides/{guide}" in readme
