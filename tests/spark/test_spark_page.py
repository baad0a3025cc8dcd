"""docs/spark.md: its Python programs run as they stand, one after the other, and its tables have every option.

Rules: a block is taken from the file, never copied; only the address of the broker differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastq.spark.options import OPTIONS, Scope
from fastq.testing import Broker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
PROGRAM = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
TABLES = re.findall(r"\| option of the (source|sink) .*?\n\|[-|]+\n(.*?)\n\n", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_programs_of_the_page_run(tmp_path: Path, spark_environment: dict[str, str]) -> None:
    assert PROGRAM.count("format(") >= 6
    config = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 4}
    with Broker(data_dir=tmp_path / "data", config=config) as broker:
        program = tmp_path / "program.py"
        ask = """
print("Unix sockets:", spark.conf.get("spark.python.unix.domain.socket.enabled"))
for check in ("null_check_for_get", "unsafe_memory_access"):
    print(check, spark._jvm.java.lang.System.getProperty(f"arrow.enable_{check}"))
"""
        program.write_text(f"{PROGRAM.replace('127.0.0.1:9092', broker.bootstrap_servers)}\n{ask}\n")
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={**os.environ, **spark_environment},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    for said in (
        "['key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType']",
        "10 customers",
        "500 values from offset 500 on, read by 4 tasks",
        "1000 records\n",
        "1000 records sent by Arrow batches",
        "orders-0 is at 1000 of 1000 lag 0",
        "committed=1000",
        "Unix sockets: true",
        "null_check_for_get false",
        "unsafe_memory_access true",
    ):
        assert said in done.stdout


@pytest.mark.parametrize(("side", "scope"), [("source", Scope.SOURCE), ("sink", Scope.SINK)])
def test_the_tables_have_every_option_and_no_other(side: str, scope: Scope) -> None:
    (table,) = (table for name, table in TABLES if name == side)
    shown = {name for row in table.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    assert shown == {option.name for option in OPTIONS if option.scope & scope} | {"kafka.bootstrap.servers"}
