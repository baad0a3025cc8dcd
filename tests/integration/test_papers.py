"""benchmarks/papers runs: an experiment with tiny numbers, and the page out of whatever was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "benchmarks" / "papers" / "run.py"


def run(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(RUN), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_experiment_is_run_and_shown(tmp_path: Path) -> None:
    told = run("--quick", "--only", "jafka-2012", "--sides", "fastq", "--to", tmp_path)
    assert told.splitlines()[-1] == str(tmp_path / "papers.md")
    found = json.loads((tmp_path / "papers.json").read_text())["experiments"]
    assert set(found) == {"jafka-2012"}
    figures = found["jafka-2012"]["medians"]["fastq"]
    assert figures["batch 100"] > 0
    assert 90 < figures["batch 100 records a batch"] <= 100, "batches are of what was asked for; one may be the last"
    assert 0 < figures["batch 100 bytes beside each value"] < 15
    page = (tmp_path / "papers.md").read_text()
    assert "0.01 of the records said above" in page
    assert "![Jafka's promise](papers-jafka-2012.svg)" in page
    assert (tmp_path / "papers-jafka-2012.svg").read_text().lstrip().startswith("<?xml")


def test_results_of_other_experiments_stay(tmp_path: Path) -> None:
    sides = [
        "fastq",
        "Apache Kafka",
        "Apache Kafka, fastq's client",
        "Jafka",
        "RabbitMQ queue",
        "RabbitMQ stream",
        "RocketMQ",
    ]
    other = {
        "medians": {side: {"batch 1": 1000.0 * number, "read": 2.5} for number, side in enumerate(sides, 1)},
        "rounds": {},
        "left_out": {"Artemis": "no java"},
        "share": 1,
        "count": 3,
        "date": "then",
    }
    before = {"experiments": {"kafka-2011": other}, "machine": {"cores": "2"}}
    (tmp_path / "papers.json").write_text(json.dumps(before))
    run("--page", "--to", tmp_path)
    page = (tmp_path / "papers.md").read_text()
    assert "Measured on then; rounds: 3." in page
    assert "| messages/s sent, batches of 1 | 50,000 | 1,000 | 2,000 | 3,000 | 4,000 | 5,000 | 6,000 | 7,000 |" in page
    assert "Left out: Artemis: no java." in page
    plot = (tmp_path / "papers-kafka-2011.svg").read_text()
    assert all(colour in plot for colour in ("#1f77b4", "#d62728", "#999999")), "a colour a side, theirs in grey"
    assert page.count("Not measured on this machine yet") == 4
    assert json.loads((tmp_path / "papers.json").read_text()) == before


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(AssertionError, match="invalid choice"):
        run("--only", "linkedin-2015")
