"""What elections and placements look at: an image, and the rules that its features and its topics' settings make.

Rules: a view reads one image and never changes; plans take one where today's plans take the image. Settings in force are found once a
topic. Numbers of metadata.version are Kafka's (MetadataVersion). Source: ClusterControlManager, BrokerRegistration, DirectoryId,
ConfigurationControlManager.getTopicConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from fastq.errors import ErrorCode
from fastq.values import NamedTuple
from fastq_broker.controller import features
from fastq_broker.controller.image import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    Record,
    TopicImage,
)
from fastq_broker.controller.topics import Refused
from fastq_broker.topic_config import TopicDefaults

EPOCH_GROWS_ON_SHRINK_BELOW: Final = 12
"""Below 3.6-IV0 a leader epoch grows when the ISR shrinks (KAFKA-15021)."""
CONTROLLERS: Final = 15
"""From 3.7-IV0 on the metadata says which controllers there are, and what they support."""
DIRECTORIES: Final = 17
"""From 3.7-IV2 on replicas have directories."""
CORDONED: Final = 30
"""From 4.3-IV0 on the metadata says which directories take no new replica."""
RESERVED_DIRECTORIES: Final = 100
"""Ids of directories below this name none."""


class Located(NamedTuple):
    """A partition, with where it is."""

    topic: TopicImage
    number: int

    @property
    def partition(self) -> PartitionImage:
        """What the image says of it."""
        return self.topic.partitions[self.number]

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.number}"


class _Settings(NamedTuple):
    min_insync_replicas: int
    unclean: bool


class ControlView:
    """One image as the controller's plans see it. Immutable but for what it keeps of settings; used by one thread."""

    def __init__(self, image: MetadataImage, defaults: TopicDefaults) -> None:
        """`defaults`: the topics' settings where a topic overrides nothing, as this controller and the metadata set them."""
        self.image = image
        self.metadata_version = image.features.get(
            features.METADATA_VERSION, features.BOOTSTRAP[features.METADATA_VERSION]
        )
        self.elr = image.features.get(features.ELIGIBLE_LEADER_REPLICAS, 0) > 0
        """Whether replicas that left the ISR without missing a commit stay eligible (KIP-966)."""
        self._defaults = defaults
        self._settings: dict[str, _Settings] = {}

    def after(self, records: Sequence[Record]) -> ControlView:
        """The view once these records are applied: for a plan that goes on from what it has planned."""
        if not records:
            return self
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        image = self.image
        return ControlView(delta.apply(image.offset + len(records), image.epoch, image.timestamp_ms), self._defaults)

    # Brokers

    def check_broker_epoch(self, broker_id: int, epoch: int) -> BrokerImage:
        """The broker; Refused (STALE_BROKER_EPOCH) unless it is registered in that epoch."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise Refused(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} speaks in epoch {epoch} and is not registered; it has to register first",
            )
        if broker.epoch != epoch:
            raise Refused(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} is registered in epoch {broker.epoch}, and speaks in epoch {epoch}",
            )
        return broker

    def is_active(self, broker_id: int) -> bool:
        """Registered, not fenced, and not shutting down."""
        return self.image.is_active(broker_id)

    def has_directory(self, broker_id: int, partition: PartitionImage) -> bool:
        """Whether the directory of the broker's replica is online. A replica to be is where the broker will put it."""
        return self.is_online(broker_id, partition.directory_of(broker_id))

    def is_online(self, broker_id: int, directory: bytes) -> bool:
        """Whether a broker is registered and has a directory."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_online(directory)

    def default_directory(self, broker_id: int) -> bytes:
        """Where a new replica on the broker goes, as far as that is known before the broker says it."""
        if self.metadata_version < DIRECTORIES:
            return MIGRATING_DIRECTORY
        broker = self.image.brokers.get(broker_id)
        return UNASSIGNED_DIRECTORY if broker is None else broker.default_directory

    # Topics

    def min_isr(self, topic: TopicImage) -> int:
        """Replicas that must be in sync for a commit: min.insync.replicas, but never more than there are."""
        return min(self._settings_of(topic).min_insync_replicas, len(topic.partitions[0].replicas))

    def allows_unclean(self, topic: TopicImage) -> bool:
        """Whether a replica that missed commits may lead the topic's partitions when no other is there."""
        return self._settings_of(topic).unclean

    def _settings_of(self, topic: TopicImage) -> _Settings:
        found = self._settings.get(topic.name)
        if found is None:
            overrides = self.image.topic_configs(topic.name)
            values = self._defaults.resolve(overrides) if overrides else self._defaults.values
            found = _Settings(int(values["min.insync.replicas"]), bool(values["unclean.leader.election.enable"]))
            self._settings[topic.name] = found
        return found

    def partitions(self) -> Iterator[Located]:
        """Every partition, topic by topic."""
        return self.where(lambda partition: True)

    def where(self, wanted: Callable[[PartitionImage], bool]) -> Iterator[Located]:
        """The partitions of which this is so; of a million others nothing is made."""
        for topic in self.image.topics_by_name.values():
            for number, partition in enumerate(topic.partitions):
                if wanted(partition):
                    yield Located(topic, number)

    def in_sync(self, broker_id: int) -> Iterator[Located]:
        """Partitions that have the broker in their ISR."""
        return self.where(lambda partition: broker_id in partition.isr)

    def leads(self, broker_id: int) -> bool:
        """Whether the broker leads anything."""
        return any(self.where(lambda partition: partition.leader == broker_id))
