"""fastq in Spark: the format `fastq` for reading and writing, and a producer for `foreachPartition`.

    df = spark.read.format("fastq").option("kafka.bootstrap.servers", servers).option("subscribe", "logs").load()

Rules: this file names the public API; a name's module is imported when the name is first used, so that a Python worker of Spark
pays only for what its task needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastq.spark.exactly_once import NotTheSameBatch as NotTheSameBatch
    from fastq.spark.foreach import ForeachPartitionProducer as ForeachPartitionProducer
    from fastq.spark.foreach import foreach_partition_arrow as foreach_partition_arrow
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

_MODULES = {
    "DataLoss": "offsets",
    "FastqDataSource": "source",
    "ForeachPartitionProducer": "foreach",
    "NotDelivered": "producers",
    "NotTheSameBatch": "exactly_once",
    "OffsetCommitListener": "listener",
    "QueryLag": "query_lag",
    "SparkUnavailable": "java",
    "WrongSchema": "records",
    "ensure_java": "java",
    "foreach_partition_arrow": "foreach",
    "lag": "query_lag",
    "session": "java",
}

__all__ = [
    "DataLoss",
    "FastqDataSource",
    "ForeachPartitionProducer",
    "NotDelivered",
    "NotTheSameBatch",
    "OffsetCommitListener",
    "QueryLag",
    "SparkUnavailable",
    "WrongSchema",
    "ensure_java",
    "foreach_partition_arrow",
    "lag",
    "session",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'fastq.spark' has no attribute {name!r}")
    value = getattr(import_module(f"fastq.spark.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
