"""Lets Spark find the format `fastq` by itself: it looks for modules named pyspark_* that have a DefaultSource."""

from fastq.spark.source import FastqDataSource as DefaultSource

__all__ = ["DefaultSource"]
