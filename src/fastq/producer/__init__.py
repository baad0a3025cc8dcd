"""Producing records: Producer, AsyncProducer, and what they answer.

Rules: names are imported when they are first used, so that the asyncio side costs a blocking program nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.lazy import lazy_names

if TYPE_CHECKING:
    from fastq._native.producer_core import AsyncDelivery as AsyncDelivery
    from fastq._native.producer_core import Delivery as Delivery
    from fastq._native.send_many import ManyDelivery as ManyDelivery
    from fastq.producer.async_producer import AsyncProducer as AsyncProducer
    from fastq.producer.config import ProducerConfig as ProducerConfig
    from fastq.producer.delivery import RecordMetadata as RecordMetadata
    from fastq.producer.delivery import SendManyError as SendManyError
    from fastq.producer.delivery import SendManyResult as SendManyResult
    from fastq.producer.options import ProducerOptions as ProducerOptions
    from fastq.producer.partitioners import Crc32Partitioner as Crc32Partitioner
    from fastq.producer.partitioners import Murmur2Partitioner as Murmur2Partitioner
    from fastq.producer.partitioners import RandomPartitioner as RandomPartitioner
    from fastq.producer.partitioners import RoundRobinPartitioner as RoundRobinPartitioner
    from fastq.producer.producer import Producer as Producer
    from fastq.producer.transaction_calls import AsyncTransaction as AsyncTransaction
    from fastq.producer.transaction_calls import Transaction as Transaction

_WHERE = {
    "AsyncDelivery": "fastq._native.producer_core",
    "AsyncProducer": "fastq.producer.async_producer",
    "AsyncTransaction": "fastq.producer.transaction_calls",
    "Crc32Partitioner": "fastq.producer.partitioners",
    "Delivery": "fastq._native.producer_core",
    "ManyDelivery": "fastq._native.send_many",
    "Murmur2Partitioner": "fastq.producer.partitioners",
    "Producer": "fastq.producer.producer",
    "ProducerConfig": "fastq.producer.config",
    "ProducerOptions": "fastq.producer.options",
    "RandomPartitioner": "fastq.producer.partitioners",
    "RecordMetadata": "fastq.producer.delivery",
    "RoundRobinPartitioner": "fastq.producer.partitioners",
    "SendManyError": "fastq.producer.delivery",
    "SendManyResult": "fastq.producer.delivery",
    "Transaction": "fastq.producer.transaction_calls",
}

if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
