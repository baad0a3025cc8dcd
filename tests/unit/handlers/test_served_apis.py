"""What DESIGN.md says about the APIs that are served, and about those that are not, against the router and Kafka's table."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from fastq_broker.router import HANDLERS

from fastq.protocol.api import APIS

DESIGN = (Path(__file__).resolve().parents[3] / "DESIGN.md").read_text()


def test_design_names_every_served_version() -> None:
    (text,) = re.findall(r"^Served now: (.*?)\.\n\n", DESIGN, re.DOTALL | re.MULTILINE)
    said = {}
    for item in " ".join(text.split()).split(", "):
        name, _, bounds = item.partition(" ")
        lowest, _, highest = bounds.partition("-")
        said[name] = (int(lowest), int(highest or lowest))
    served = {
        APIS[key].name: import_module(f"fastq_broker.handlers.{module}").VERSIONS for key, module in HANDLERS.items()
    }
    assert said == served


def test_design_names_every_other_api_of_kafkas_brokers() -> None:
    table = DESIGN[DESIGN.index("| not served |") :].split("\n\n")[0]
    rows = table.splitlines()[2:]
    named = [name for row in rows for name in row.split("|")[1].strip().split(", ")]
    others = [info.name for key, info in APIS.items() if "broker" in info.listeners and key not in HANDLERS]
    assert sorted(named) == sorted(others)
    assert all(row.split("|")[2].strip() for row in rows)
