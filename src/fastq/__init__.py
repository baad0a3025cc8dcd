"""fastq: a Kafka-protocol client for Python whose hot paths are native.

Rules: this file names the public API and nothing else. A name's room is imported when the name is first used,
so that ``import fastq`` costs milliseconds and a consumer never loads the producer.
"""

from __future__ import annotations

from fastq.lazy import lazy_names

TYPE_CHECKING = False  # type checkers take it for True; the typing module would be most of what this import costs
if TYPE_CHECKING:
    from fastq.admin import Admin as Admin
    from fastq.admin import AsyncAdmin as AsyncAdmin
    from fastq.consumer import AsyncConsumer as AsyncConsumer
    from fastq.consumer import AsyncConsumerPool as AsyncConsumerPool
    from fastq.consumer import Consumer as Consumer
    from fastq.consumer import ConsumerPool as ConsumerPool
    from fastq.consumer import Record as Record
    from fastq.consumer import RetryPolicy as RetryPolicy
    from fastq.consumer import read_topic as read_topic
    from fastq.errors import FastqError as FastqError
    from fastq.errors import KafkaError as KafkaError
    from fastq.metadata import TopicPartition as TopicPartition
    from fastq.producer import AsyncProducer as AsyncProducer
    from fastq.producer import Producer as Producer
    from fastq.producer import RecordMetadata as RecordMetadata

__version__ = "0.1.0"

_WHERE = {
    "Admin": "fastq.admin",
    "AsyncAdmin": "fastq.admin",
    "AsyncConsumer": "fastq.consumer",
    "AsyncConsumerPool": "fastq.consumer",
    "AsyncProducer": "fastq.producer",
    "Consumer": "fastq.consumer",
    "ConsumerPool": "fastq.consumer",
    "FastqError": "fastq.errors",
    "KafkaError": "fastq.errors",
    "Producer": "fastq.producer",
    "Record": "fastq.consumer",
    "RecordMetadata": "fastq.producer",
    "RetryPolicy": "fastq.consumer",
    "TopicPartition": "fastq.metadata",
    "read_topic": "fastq.consumer",
}

if not TYPE_CHECKING:  # which would take any name for one of the package
    __getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
    __all__ += ["__version__"]
