"""Write the archive of classes that the Java machines of tests start with: `python tools/spark_classes.py`, as `make test` runs it.

Tests start dozens of machines that live for seconds, and spend half of them on reading and checking the same classes of Spark. A machine
maps an archive of them instead. It is of one Java and of the jars that it was made with: with others, a machine passes over it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "broker")]

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""They compile quickly, not well, and collect garbage in one thread."""
# A machine that takes no archive, of whatever kind, starts without one and says nothing.
QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:disable -Xlog:all=error:stderr"
TIMEOUT_S = 300


def options() -> str:
    """Of the machines of tests, for SPARK_SUBMIT_OPTS, which has blanks of a path in quotation marks."""
    return f'{SHORT_LIVED} {QUIET} "-XX:SharedArchiveFile={ARCHIVE}"' if ARCHIVE.exists() else SHORT_LIVED


def main() -> None:
    """Write it in a process whose many lines are shown only where it fails. Tests do without it, so that nothing else fails then."""
    print("writing the classes that Spark's tests start with (a minute)", flush=True)
    with tempfile.TemporaryFile("w+") as lines:
        command = [sys.executable, __file__, "--here"]
        try:
            done = subprocess.run(command, stdout=lines, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False)
            problem = f"it ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"it did not end in {TIMEOUT_S} s"
        if problem or not ARCHIVE.exists():
            ARCHIVE.unlink(missing_ok=True)
            lines.seek(0)
            sys.exit(f"{lines.read()}\n{ARCHIVE} was not written: {problem or 'see above'}")


def write() -> None:
    """Do with Spark what tests do with it; its machine writes the archive when it ends."""
    from pyspark.sql import SparkSession

    from fastq.spark import ensure_java
    from fastq.spark.java import pyspark_version, session_defaults
    from fastq.testing import Broker

    ensure_java()
    ARCHIVE.unlink(missing_ok=True)
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(sys.path[:2]),
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_SUBMIT_OPTS=f'{SHORT_LIVED} {QUIET} "-XX:ArchiveClassesAtExit={ARCHIVE}"',
    )
    with Broker() as broker, tempfile.TemporaryDirectory() as directory:
        builder = SparkSession.builder.master("local[2]").appName("classes")
        for name, value in {
            **session_defaults(pyspark_version()),
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        place = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        source = {**place, "subscribe": "classes", "startingOffsets": "earliest"}
        rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS key")
        rows.write.format("fastq").mode("append").options(**place).option("topic", "classes").save()
        read = spark.read.format("fastq").options(**source).load()
        read.groupBy("key").count().orderBy("key").write.parquet(f"{directory}/counts")
        spark.read.parquet(f"{directory}/counts").join(rows, "key").collect()
        stream = spark.readStream.format("fastq").options(**source).load()
        (
            stream.writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(list))
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        machine = spark.sparkContext._gateway.proc
        spark.stop()
        machine.communicate()  # it ends with its input, and is not done before the archive is written


if __name__ == "__main__":
    write() if sys.argv[1:] else main()
