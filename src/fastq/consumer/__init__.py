"""Consumers, blocking and asyncio, and what they hand out.

Rules: a name's module is imported when the name is first used, so that a process that needs the configuration alone, or the blocking
consumer alone, does not load the rest: Spark starts many such processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.lazy import lazy_names

if TYPE_CHECKING:
    from fastq._native.arrow import ArrowExport as ArrowExport
    from fastq._native.columns import ConsumerBatch as ConsumerBatch
    from fastq._native.consume import Record as Record
    from fastq.consumer.async_consumer import AsyncBatches as AsyncBatches
    from fastq.consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from fastq.consumer.config import ConsumerConfig as ConsumerConfig
    from fastq.consumer.consumer import Consumer as Consumer
    from fastq.consumer.group import Assignor as Assignor
    from fastq.consumer.group import GroupMetadata as GroupMetadata
    from fastq.consumer.group import GroupTopics as GroupTopics
    from fastq.consumer.group import MemberSubscription as MemberSubscription
    from fastq.consumer.group import OffsetAndMetadata as OffsetAndMetadata
    from fastq.consumer.group import RebalanceListener as RebalanceListener
    from fastq.consumer.offsets import OffsetAndTimestamp as OffsetAndTimestamp
    from fastq.consumer.options import ConsumerOptions as ConsumerOptions
    from fastq.consumer.pool import AsyncConsumerPool as AsyncConsumerPool
    from fastq.consumer.pool import ConsumerPool as ConsumerPool
    from fastq.consumer.retry import RetryPolicy as RetryPolicy
    from fastq.consumer.tables import BatchStream as BatchStream
    from fastq.consumer.tables import TopicTable as TopicTable
    from fastq.consumer.tables import read_topic as read_topic

_WHERE = {
    "ArrowExport": "fastq._native.arrow",
    "Assignor": "fastq.consumer.group",
    "AsyncBatches": "fastq.consumer.async_consumer",
    "AsyncConsumer": "fastq.consumer.async_consumer",
    "AsyncConsumerPool": "fastq.consumer.pool",
    "BatchStream": "fastq.consumer.tables",
    "Consumer": "fastq.consumer.consumer",
    "ConsumerBatch": "fastq._native.columns",
    "ConsumerConfig": "fastq.consumer.config",
    "ConsumerOptions": "fastq.consumer.options",
    "ConsumerPool": "fastq.consumer.pool",
    "GroupMetadata": "fastq.consumer.group",
    "GroupTopics": "fastq.consumer.group",
    "MemberSubscription": "fastq.consumer.group",
    "OffsetAndMetadata": "fastq.consumer.group",
    "OffsetAndTimestamp": "fastq.consumer.offsets",
    "RebalanceListener": "fastq.consumer.group",
    "Record": "fastq._native.consume",
    "RetryPolicy": "fastq.consumer.retry",
    "TopicTable": "fastq.consumer.tables",
    "read_topic": "fastq.consumer.tables",
}

if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
