"""What is kept of the micro benches: the figures, without the time of every single round, which are tens of megabytes."""

from __future__ import annotations

from typing import Any


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Called with what is about to be written."""
    for bench in output_json["benchmarks"]:
        bench["stats"].pop("data", None)
