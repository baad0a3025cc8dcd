"""Consumers, blocking and asyncio, and what they hand out."""

from fastq._native.arrow import ArrowExport
from fastq._native.columns import ConsumerBatch
from fastq._native.consume import Record
from fastq.consumer.async_consumer import AsyncConsumer
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.consumer import Consumer
from fastq.consumer.group import (
    Assignor,
    GroupMetadata,
    GroupTopics,
    MemberSubscription,
    OffsetAndMetadata,
    RebalanceListener,
)
from fastq.consumer.offsets import OffsetAndTimestamp
from fastq.consumer.pool import AsyncConsumerPool, ConsumerPool
from fastq.consumer.retry import RetryPolicy

__all__ = [
    "ArrowExport",
    "Assignor",
    "AsyncConsumer",
    "AsyncConsumerPool",
    "Consumer",
    "ConsumerBatch",
    "ConsumerConfig",
    "ConsumerPool",
    "GroupMetadata",
    "GroupTopics",
    "MemberSubscription",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RebalanceListener",
    "Record",
    "RetryPolicy",
]
