"""Consumers, blocking and asyncio, and what they hand out.

Rules: a name's module is imported when the name is first used, so that a process that needs the configuration alone, or the blocking
consumer alone, does not load the rest: Spark starts many such processes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastq._native.arrow import ArrowExport as ArrowExport
    from fastq._native.columns import ConsumerBatch as ConsumerBatch
    from fastq._native.consume import Record as Record
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
    from fastq.consumer.pool import AsyncConsumerPool as AsyncConsumerPool
    from fastq.consumer.pool import ConsumerPool as ConsumerPool
    from fastq.consumer.retry import RetryPolicy as RetryPolicy

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

_MODULES = {
    "ArrowExport": "fastq._native.arrow",
    "AsyncConsumer": "fastq.consumer.async_consumer",
    "AsyncConsumerPool": "fastq.consumer.pool",
    "Consumer": "fastq.consumer.consumer",
    "ConsumerBatch": "fastq._native.columns",
    "ConsumerConfig": "fastq.consumer.config",
    "ConsumerPool": "fastq.consumer.pool",
    "OffsetAndTimestamp": "fastq.consumer.offsets",
    "Record": "fastq._native.consume",
    "RetryPolicy": "fastq.consumer.retry",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fastq.consumer' has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "fastq.consumer.group")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
