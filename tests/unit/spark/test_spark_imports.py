"""What each of Spark's Python processes loads: it starts many of them, and waits for each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

REPORT = """
import json, sys
import pyspark.sql.datasource
{code}
print(json.dumps([name for name in sys.modules if name.startswith(("fastq", "asyncio"))]))
"""


def loaded(code: str) -> set[str]:
    """The modules of fastq, and of asyncio, after some code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(code=code)], capture_output=True, text=True, check=True, timeout=100
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


OPTIONS = "{'kafka.bootstrap.servers': 'h:1', 'subscribe': 't'}"


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        # The search for data sources, in every session, whether it uses this one or not.
        ("import pyspark_fastq", {"fastq.config", "fastq.consumer", "fastq.admin", "fastq.net", "fastq.producer"}),
        # load(): options and schema.
        (
            f"import pyspark_fastq; pyspark_fastq.DefaultSource({OPTIONS}).schema()",
            {"fastq.consumer.consumer", "fastq.consumer.group", "fastq.admin", "fastq.net.core", "fastq.producer"},
        ),
        # A task that reads.
        (
            "import fastq.spark.read; from fastq.consumer import Consumer",
            {"fastq.admin", "fastq.producer", "fastq.consumer.async_consumer", "fastq.consumer.pool"},
        ),
    ],
)
def test_a_process_loads_what_it_needs(code: str, left_out: set[str]) -> None:
    found = loaded(code)
    assert {name for name in found if name.startswith("fastq.spark")}
    assert not {name for name in found for out in left_out if name == out or name.startswith(f"{out}.")}
