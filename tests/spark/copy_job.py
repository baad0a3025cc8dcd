"""A program of its own for tests that kill it: copies a topic by a streaming query, with all there was when it started, and ends.

    python copy_job.py SERVERS SOURCE TARGET CHECKPOINT DELIVERY

Rules: each record that it writes says where it was read, so that a reader of the target can tell what is missing or double. Small
micro-batches, so that there are many points at which it can be killed; a task is tried four times, as on a cluster.
"""

from __future__ import annotations

import sys

from fastq.spark import session
from fastq.spark.java import pyspark_version

BATCH_RECORDS = 4000
WHERE_READ = "concat(cast(partition as string), ':', cast(offset as string), ':', cast(value as string)) as value"


def main(servers: str, source: str, target: str, checkpoint: str, delivery: str) -> None:
    config = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": False,
        "spark.sql.shuffle.partitions": 2,
    }
    spark = session("copy", master="local[2,4]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.format("fastq").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    if pyspark_version() >= (4, 2):  # before, a micro-batch takes all there is
        stream = stream.option("maxOffsetsPerTrigger", BATCH_RECORDS)
    rows = stream.option("startingOffsets", "earliest").load()
    sink = rows.selectExpr("key", WHERE_READ).writeStream.format("fastq").option("kafka.bootstrap.servers", servers)
    sink = sink.option("topic", target).option("delivery", delivery).option("checkpointLocation", checkpoint)
    sink.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
