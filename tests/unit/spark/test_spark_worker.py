"""What Spark's workers set aside from their garbage collector, and nobody else does."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from fastq.spark import worker

IN_A_DAEMON = """
import gc
from fastq.spark.worker import settle
assert gc.get_freeze_count() == 0
settle()
first = gc.get_freeze_count()
assert first > 1000, first
more = [[] for _ in range(1000)]
settle()
assert gc.get_freeze_count() == first
"""


def test_once_in_a_child_of_the_daemon(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "daemon.py").write_text(IN_A_DAEMON)
    src = Path(worker.__file__).parents[2]
    path = [str(tmp_path), str(src)]
    run = f"import sys, runpy; sys.path[:0] = {path}; runpy.run_module('pyspark.daemon', run_name='__main__', alter_sys=True)"
    subprocess.run([sys.executable, "-c", run], check=True, timeout=60)


def test_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    worker.settle()
    assert gc.get_freeze_count() == before
    monkeypatch.delattr(sys.modules["__main__"], "__spec__", raising=False)  # an interactive session, an embedded one
    worker.settle()
    assert gc.get_freeze_count() == before
