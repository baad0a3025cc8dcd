"""fastq in Spark: the format `fastq` for reading and writing, and a producer for `foreachPartition`.

    df = spark.read.format("fastq").option("kafka.bootstrap.servers", servers).option("subscribe", "logs").load()

Rules: this file names the public API; a name's module is imported when the name is first used, so that a Python worker of Spark
pays only for what its task needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastq.spark.offsets import DataLoss as DataLoss
    from fastq.spark.source import FastqDataSource as FastqDataSource

_MODULES = {
    "DataLoss": "offsets",
    "FastqDataSource": "source",
}

__all__ = ["DataLoss", "FastqDataSource"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'fastq.spark' has no attribute {name!r}")
    value = getattr(import_module(f"fastq.spark.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
