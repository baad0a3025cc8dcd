"""fastq in Spark: the format `fastq` for reading and writing, and a producer for `foreachPartition`.

    df = spark.read.format("fastq").option("kafka.bootstrap.servers", servers).option("subscribe", "logs").load()

Rules: this file names the public API; a name's module is imported when the name is first used, so that a Python worker of Spark
pays only for what its task needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastq.spark.java import SparkUnavailable as SparkUnavailable
    from fastq.spark.java import ensure_java as ensure_java
    from fastq.spark.java import session as session
    from fastq.spark.listener import OffsetCommitListener as OffsetCommitListener
    from fastq.spark.offsets import DataLoss as DataLoss
    from fastq.spark.query_lag import QueryLag as QueryLag
    from fastq.spark.query_lag import lag as lag
    from fastq.spark.source import FastqDataSource as FastqDataSource

_MODULES = {
    "DataLoss": "offsets",
    "FastqDataSource": "source",
    "OffsetCommitListener": "listener",
    "QueryLag": "query_lag",
    "SparkUnavailable": "java",
    "ensure_java": "java",
    "lag": "query_lag",
    "session": "java",
}

__all__ = [
    "DataLoss",
    "FastqDataSource",
    "OffsetCommitListener",
    "QueryLag",
    "SparkUnavailable",
    "ensure_java",
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
