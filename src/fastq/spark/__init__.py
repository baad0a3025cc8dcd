"""fastq in Spark: the format `fastq` for reading and writing, and a producer for `foreachPartition`.

    df = spark.read.format("fastq").option("kafka.bootstrap.servers", servers).option("subscribe", "logs").load()

Rules: this file names the public API; a name's module is imported when the name is first used, so that a Python worker of Spark
pays only for what its task needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.lazy import lazy_names

if TYPE_CHECKING:
    from fastq.spark.exactly_once import NotTheSameBatch as NotTheSameBatch
    from fastq.spark.foreach import ForeachPartitionProducer as ForeachPartitionProducer
    from fastq.spark.foreach import foreach_partition_arrow as foreach_partition_arrow
    from fastq.spark.frame import read_topics as read_topics
    from fastq.spark.java import SparkUnavailable as SparkUnavailable
    from fastq.spark.java import ensure_java as ensure_java
    from fastq.spark.java import session as session
    from fastq.spark.listener import OffsetCommitListener as OffsetCommitListener
    from fastq.spark.offsets import DataLoss as DataLoss
    from fastq.spark.producers import NotDelivered as NotDelivered
    from fastq.spark.query_lag import QueryLag as QueryLag
    from fastq.spark.query_lag import lag as lag
    from fastq.spark.records import WrongSchema as WrongSchema
    from fastq.spark.source import FastqDataSource as FastqDataSource

_WHERE = {
    "DataLoss": "fastq.spark.offsets",
    "FastqDataSource": "fastq.spark.source",
    "ForeachPartitionProducer": "fastq.spark.foreach",
    "NotDelivered": "fastq.spark.producers",
    "NotTheSameBatch": "fastq.spark.exactly_once",
    "OffsetCommitListener": "fastq.spark.listener",
    "QueryLag": "fastq.spark.query_lag",
    "SparkUnavailable": "fastq.spark.java",
    "WrongSchema": "fastq.spark.records",
    "ensure_java": "fastq.spark.java",
    "foreach_partition_arrow": "fastq.spark.foreach",
    "lag": "fastq.spark.query_lag",
    "read_topics": "fastq.spark.frame",
    "session": "fastq.spark.java",
}

if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
