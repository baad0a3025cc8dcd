"""The offline load: everything that is there by now goes into Parquet, partitioned by date and source.

    python -m pipeline.offline --servers 127.0.0.1:9092 --home pipeline-data

Rules: a run loads what came since the one before and ends. Every row has its topic, partition and offset, and the position
of the load is kept in the folder of the data: neither can get lost without the other, and a rerun neither loses nor doubles
a row. Spark lists the files of finished batches beside them; files of a batch that was killed are not on that list and are
removed before the next load, so that every reader of the folder sees each row once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from pipeline.jobs import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def remove_unfinished(spark: SparkSession, warehouse: Path) -> int:
    """Remove the files of batches that did not finish; how many there were."""
    finished: set[Path] = set()
    if (warehouse / "_spark_metadata").is_dir():
        # With a schema, as there may be no file from which to learn one.
        table = spark.read.schema("offset long").parquet(str(warehouse))
        finished = {Path(unquote(urlparse(uri).path)) for uri in table.inputFiles()}
    files = [path for path in warehouse.rglob("*.parquet") if not path.relative_to(warehouse).parts[0].startswith("_")]
    strays = [path for path in files if path not in finished]
    for path in strays:
        path.unlink()
    return len(strays)


def main() -> None:
    job = Job("offline")
    warehouse = job.home / "warehouse"
    strays = remove_unfinished(job.spark, warehouse)
    if strays:
        print(f"removed {strays} files of a load that did not finish", flush=True)
    query = (
        job.workload.stored(job.source())
        .writeStream.format("parquet")
        .queryName("offline")
        .partitionBy("date", "source")
        .option("path", str(warehouse))
        .option("checkpointLocation", str(warehouse / "_checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    job.end(query)
    print(f"loaded {rows:,} rows", flush=True)


if __name__ == "__main__":
    main()
