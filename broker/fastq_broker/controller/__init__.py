"""The controller of the cluster: its metadata as an image, its changes as records in `__cluster_metadata-0`."""

from fastq_broker.controller.changes import ProducerIds
from fastq_broker.controller.controller import Controller
from fastq_broker.controller.image import (
    BrokerImage,
    Endpoint,
    MetadataDelta,
    MetadataError,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from fastq_broker.controller.topics import CreatedTopic, NewPartitions, NewTopic, Result

__all__ = [
    "BrokerImage",
    "Controller",
    "CreatedTopic",
    "Endpoint",
    "MetadataDelta",
    "MetadataError",
    "MetadataImage",
    "NewPartitions",
    "NewTopic",
    "PartitionImage",
    "ProducerIds",
    "Result",
    "TopicImage",
]
