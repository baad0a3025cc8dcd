"""`spark-submit` of a job with a packed environment to a master with two workers, each a process with a folder of its own.

Rules: the command is that of docs/spark.md, but for the master. The environment has copies of what fastq brings; PySpark and PyArrow,
which are the same hundreds of megabytes everywhere, are links. No import path leads to the sources: a worker that finds fastq
found it in the archive. Spark's home is a folder of links, because its workers write below it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from fastq import Producer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
PACKED = ("fastq", "pyspark_fastq", "snappy", "cramjam", "lz4", "zstandard", "typing_extensions")
LINKED = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "pandas", "dateutil", "six", "pytz")
RECORDS = 20_000

JOB = """
import json, os, sys
import fastq
from fastq.spark import ForeachPartitionProducer, session

servers, source, target, report = sys.argv[1:]
spark = session("packed")
options = {"kafka.bootstrap.servers": servers, "subscribe": source, "minPartitions": "4"}
rows = spark.read.format("fastq").options(**options).load()
rows.select("key", "value").write.format("fastq").options(**{"kafka.bootstrap.servers": servers, "topic": target}).mode("append").save()
rows.foreachPartition(ForeachPartitionProducer(target, bootstrap_servers=servers, key="key", value="value"))

def where(batches):
    import pyarrow, fastq
    found = sum(batch.num_rows for batch in batches)
    yield pyarrow.RecordBatch.from_pydict({"place": [fastq.__file__], "pid": [os.getppid()], "rows": [found]})

places = rows.mapInArrow(where, "place string, pid long, rows long").collect()
copy = spark.read.format("fastq").options(**{"kafka.bootstrap.servers": servers, "subscribe": target}).load()
found = {
    "driver": fastq.__file__,
    "places": sorted({row.place for row in places}),
    "executors": len({row.pid for row in places}),
    "rows": sum(row.rows for row in places),
    "copied": copy.count(),
    "values": copy.select("value").distinct().count(),
}
with open(report, "w") as file:
    json.dump(found, file)
spark.stop()
"""


def pack(folder: Path) -> Path:
    """`folder`/environment, a virtual environment with fastq in it, and the archive of it."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in PACKED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        if origin.name == "__init__.py":
            shutil.copytree(
                origin.parent, packages / name, ignore=shutil.ignore_patterns("__pycache__", "*.c", "*.pyx")
            )
        else:
            shutil.copy(origin, packages)
    installed = Path(pyspark.__file__).parents[1]
    for name in LINKED:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    for module in installed.glob("six.py"):
        shutil.copy(module, packages)
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        for entry in environment.iterdir():
            out.add(entry, entry.name)
    return archive


@pytest.mark.soak
@pytest.mark.timeout(1000)
def test_a_packed_environment_on_a_cluster_of_two(
    bootstrap_servers: str, make_topic: Callable[..., str], spark_environment: dict[str, str], tmp_path: Path
) -> None:
    source, target = make_topic(bootstrap_servers, 2), make_topic(bootstrap_servers, 2)
    with Producer(bootstrap_servers=bootstrap_servers, compression_type="zstd") as producer:
        producer.send_many(source, [b"%d" % number for number in range(RECORDS)])
    pack(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    (python,) = re.findall(r"^export PYSPARK_PYTHON=(\S+)$", PAGE, re.MULTILINE)
    (line,) = re.findall(r"^spark-submit --master spark://master:7077 (.*)$", PAGE, re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {name: value for name, value in spark_environment.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": python, "SPARK_HOME": str(home)}
    del environment["PYSPARK_DRIVER_PYTHON"]
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    for setting in ("spark.ui.enabled=false", "spark.driver.memory=1g", "spark.driver.host=127.0.0.1"):
        command += ["--conf", setting]
    command += [*shlex.split(line), bootstrap_servers, source, target, "report.json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["driver"].startswith(str(tmp_path / "environment"))
    assert found["places"]
    for place in found["places"]:
        assert "/environment/lib/" in place
        # The archive of it, unpacked where the executor runs.
        assert not place.startswith(str(tmp_path / "environment"))
    assert found["executors"] == 2
    assert (found["rows"], found["copied"], found["values"]) == (RECORDS, 2 * RECORDS, RECORDS)
