"""A cluster's metadata in a test's few words: brokers and partitions by name, records applied as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastq_broker.config import BrokerConfig
from fastq_broker.controller import features
from fastq_broker.controller.image import MetadataDelta, MetadataImage, PartitionImage, Record
from fastq_broker.controller.view import ControlView, Located
from fastq_broker.topic_config import BrokerLayers, TopicDefaults

from fastq.protocol import messages as m

CLUSTER = "cluster-of-the-tests-x"
LATEST = 30
DEFAULTS = TopicDefaults(BrokerLayers(BrokerConfig.from_mapping({"log.dirs": "/nowhere"})))


def directory_id(broker_id: int, number: int = 0) -> bytes:
    """The id of a broker's directory."""
    return (broker_id * 1000 + number + 100).to_bytes(16, "big")


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"_")


class Cluster:
    """Metadata that grows by records; `view` is what plans take."""

    def __init__(self, *, elr: bool = True, level: int = LATEST, min_isr: int = 1) -> None:
        self.image = MetadataImage(cluster_id=CLUSTER)
        self.apply(m.FeatureLevelRecord(name=features.METADATA_VERSION, feature_level=level))
        if elr:
            self.apply(m.FeatureLevelRecord(name=features.ELIGIBLE_LEADER_REPLICAS, feature_level=1))
        self.min_isr = min_isr

    @property
    def view(self) -> ControlView:
        return ControlView(self.image, DEFAULTS)

    def apply(self, *records: Record) -> list[Record]:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + len(records), 1, 0)
        return list(records)

    def broker(
        self, broker_id: int, *, fenced: bool = False, shutting: bool = False, directories: int = 1, **more: Any
    ) -> None:
        """Register a broker in the epoch 100 + its id."""
        fields: dict[str, Any] = {
            "broker_id": broker_id,
            "incarnation_id": b"%016d" % broker_id,
            "broker_epoch": 100 + broker_id,
            "rack": None,
            "fenced": fenced,
            "in_controlled_shutdown": shutting,
            "log_dirs": [directory_id(broker_id, number) for number in range(directories)],
        }
        self.apply(m.RegisterBrokerRecord(**{**fields, **more}))

    def brokers(self, *ids: int) -> None:
        for broker_id in ids:
            self.broker(broker_id)

    def partition(
        self, name: str = "t", *, replicas: Sequence[int], isr: Sequence[int] | None = None, **more: Any
    ) -> Located:
        """A topic with one partition more. Without a leader given, the first of the ISR leads."""
        if self.image.topic(name) is None:
            self.apply(m.TopicRecord(name=name, topic_id=topic_id(name)))
            self.config(name, "min.insync.replicas", str(self.min_isr))
        isr = list(replicas if isr is None else isr)
        fields: dict[str, Any] = {
            "leader": isr[0] if isr else -1,
            "leader_epoch": 10,
            "partition_epoch": 20,
            "removing_replicas": [],
            "adding_replicas": [],
            "directories": [directory_id(replica) for replica in replicas],
        }
        number = len(self.image.topics_by_name[name].partitions)
        self.apply(
            m.PartitionRecord(
                topic_id=topic_id(name), partition_id=number, replicas=list(replicas), isr=isr, **{**fields, **more}
            )
        )
        return self.located(name, number)

    def config(self, name: str, key: str, value: str | None) -> None:
        self.apply(m.ConfigRecord(resource_type=2, resource_name=name, name=key, value=value))

    def located(self, name: str = "t", number: int = 0) -> Located:
        return Located(self.image.topics_by_name[name], number)

    def state(self, name: str = "t", number: int = 0) -> PartitionImage:
        return self.image.topics_by_name[name].partitions[number]


def change_of(name: str = "t", number: int = 0, **fields: Any) -> m.PartitionChangeRecord:
    """The record of a change, with nothing else in it."""
    return m.PartitionChangeRecord(topic_id=topic_id(name), partition_id=number, **fields)
