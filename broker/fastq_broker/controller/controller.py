"""The controller: a quorum of one over `__cluster_metadata-0`, and the changes it makes to the cluster's metadata.

A change is planned against the image (`topics`, `config_changes`), written to the log as one batch, applied to the image and
told to the listeners, all before the call returns. It is durable once `flushed` says so; whoever acknowledges a change to
a client waits for that.

Start: read `quorum-state`, the latest snapshot and the log behind it; take the next epoch, persist it, and write a leader
change record; on an empty log write the bootstrap records, too. Source: KRaft (KIP-595, KIP-630, KIP-853), QuorumController.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from fastq.errors import ConfigError, KafkaStorageError, NotLeaderOrFollower, UnknownTopicOrPartition
from fastq.protocol.messages import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from fastq.protocol.uuid import random_uuid
from fastq_broker import fail_closed
from fastq_broker.config import BrokerConfig, Listener
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import config_changes, feature_changes, features, quotas, scram, topics
from fastq_broker.controller.feature_changes import FeatureUpdate
from fastq_broker.controller.image import (
    NO_LEADER,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    Record,
)
from fastq_broker.controller.metadata_log import Effect, MetadataLog
from fastq_broker.controller.quotas import QuotaChange
from fastq_broker.controller.records import PRODUCER_ID_BLOCK, encode_record
from fastq_broker.controller.scram import ScramDeletion, ScramUpsertion
from fastq_broker.controller.storage import clean_shutdown_epoch
from fastq_broker.controller.topics import CreatedTopic, NewPartitions, NewTopic, Result
from fastq_broker.log import LogDir, failures
from fastq_broker.topic_config import BrokerLayers, TopicDefaults

logger = logging.getLogger(__name__)

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

Listen = Callable[[MetadataImage, MetadataDelta], None]
R = TypeVar("R", bound=Result)


def _refused_by_disk(results: list[R], error: KafkaStorageError) -> list[R]:
    refusal = topics.Refused(error.code, str(error))
    return [result.refused(refusal) for result in results]


@dataclass(frozen=True)
class ProducerIds:
    """A block of producer ids that nobody else was or will be given."""

    first: int
    count: int


class Controller:
    """The metadata of the cluster, and the only one that changes it.

    Invariant: `image` is what the log says up to its end. Listeners are called in the order of `subscribe`, with the image
    after the change and the delta that led to it. Used by the event loop's thread only; `flushed` may be awaited there.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Callable[[], int],
        monotonic_ms: Callable[[], int] | None = None,
        log_dir: LogDir | None = None,
    ) -> None:
        """`clock` gives the time in ms since 1970, `monotonic_ms` is for intervals (None: `clock`).

        `log_dir` is the broker's object of metadata.log.dir, whose flusher the broker drains; None: one of the controller's own, which
        syncs in the caller's thread.
        """
        self.config = config
        self.node_id = config.node_id
        self.clock = clock
        self.image = MetadataImage()
        self.epoch = 0
        self.broker_epoch = -1
        self.unprotected: Sequence[str] = ()
        """What of the metadata would protect, is not honoured and may be ignored."""
        self._log = MetadataLog(config, clock=clock, monotonic_ms=monotonic_ms or clock, log_dir=log_dir)
        self._clean_epoch = -1
        self._listeners: list[Listen] = []
        self.before_creation: Callable[[frozenset[str]], None] = lambda names: None
        """Called before topics of these names are made: what is left of older topics of a name goes first, on disk too. Raises
        KafkaStorageError."""
        self._defaults: TopicDefaults | None = None
        self._defaults_configs: tuple[Mapping[str, str | None], Mapping[str, str | None]] | None = None
        self._next_producer_id = 0
        self._producer_ids_end = 0

    # Life

    def open(self) -> MetadataImage:
        """Format what is new, replay what is there, and become the leader of the next epoch.

        Comes before the logs are started, which takes away the marks of a clean stop that are looked for here.
        ConfigError when the directories belong to another node, cluster or quorum, need features that this node
        lacks, or have what would protect and is not honoured; MetadataError when the log is damaged. Listeners hear of
        everything found, as one delta from nothing.
        """
        self._clean_epoch = clean_shutdown_epoch([Path(directory) for directory in self.config.log_dirs])
        delta = MetadataDelta(MetadataImage(cluster_id=self._log.open(self._clean_epoch)))
        self._log.replay(delta)
        last = self._log.last
        self.image = first = delta.apply(last.offset, last.epoch, last.timestamp_ms)
        bootstrap: Sequence[Record] = ()
        if features.METADATA_VERSION not in self.image.features:
            bootstrap = self._log.bootstrap_records
            planned = MetadataDelta(self.image)
            for record in bootstrap:
                planned.replay(record)
            first = planned.apply(last.offset, last.epoch, last.timestamp_ms)
        problems = features.unsupported({**first.features, features.KRAFT_VERSION: self._log.kraft_version or 0})
        if problems:
            raise ConfigError(f"{self._log.directory} cannot be opened: {'; '.join(problems)}")
        self.unprotected = fail_closed.unprotected(first, self.config.insecure_ignore)
        self.epoch = self._log.begin_epoch()
        self._publish(delta)
        if self._log.in_transaction:
            # Whoever reads this log next must not take what follows for a part of it.
            self._commit([AbortTransactionRecord(reason="the controller restarted")])
        if bootstrap:
            self._commit(self._first_change(bootstrap))
        return self.image

    def register_broker(self, listeners: Sequence[Listener]) -> int:
        """Register this broker with the addresses it advertises, unfence it, and let it lead what it can.

        Answers the broker's epoch. A partition's leader epoch goes up where the last stop was not clean, or nobody led.
        """
        before = self.image.brokers.get(self.node_id)
        epoch = self._log.end_offset
        self._commit([self._registration(listeners, epoch)])
        self.broker_epoch = epoch
        unfence = BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=epoch, fenced=-1)
        self._commit([unfence, *self._elections(bump=before is not None and before.epoch != self._clean_epoch)])
        return epoch

    def close(self) -> None:
        """Fence this broker, so that whoever opens the directory next need not wait for it; write everything to disk."""
        registered = self.image.brokers.get(self.node_id)
        if registered is not None and registered.epoch == self.broker_epoch and not self._log.offline:
            fence = BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=self.broker_epoch, fenced=1)
            self._commit([fence])
        self._log.close()

    def subscribe(self, listener: Listen) -> None:
        """Call `listener(image, delta)` after each change from now on."""
        self._listeners.append(listener)

    def tick(self, now_ms: int) -> None:
        """Write a snapshot when enough was written or enough time has passed, and drop what it makes superfluous."""
        self._log.tick(self.image, now_ms)

    async def flushed(self) -> None:
        """Wait until every change made so far is on disk. Calls at the same time share a flush."""
        await self._log.flushed()

    async def durable(self, results: list[R]) -> list[R]:
        """The results of a request's changes once they are on disk; where the disk fails, each says so instead of success."""
        try:
            await self.flushed()
        except KafkaStorageError as error:
            return _refused_by_disk(results, error)
        return results

    def when_durable(self, effect: Effect) -> None:
        """Call `effect` with None once every change made so far is on disk, or with the error that keeps them from it.

        Effects run in the order in which they were asked for. What cannot be taken back (files that go, records that retention deletes)
        is an effect: after a loss of power the change that it follows from must still be there.
        """
        self._log.when_durable(effect)

    def settle(self) -> None:
        """Have every change made so far on disk, and its effects done, before this returns. KafkaStorageError when the disk fails."""
        self._log.settle()

    # Changes: results in the order of the items; an item's error stops no other item.

    def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create topics, or (`validate_only`) say which of them could be created."""
        results, records = topics.plan_create(self.image, self.config, wanted)
        if records and not validate_only:
            try:
                self.before_creation(frozenset(topic.name for topic in wanted))
            except KafkaStorageError as error:
                return _refused_by_disk(results, error)
        return self._commit_whole(validate_only, results, records)

    def delete_topics(self, topic_ids: Sequence[bytes]) -> list[Result]:
        """Delete topics by id; an id that is not there is UNKNOWN_TOPIC_ID."""
        return self._commit_whole(False, *topics.plan_delete(self.image, topic_ids))

    def create_partitions(self, wanted: Sequence[NewPartitions], *, validate_only: bool = False) -> list[Result]:
        """Let topics grow to a number of partitions; fewer, or as many as there are, is INVALID_PARTITIONS."""
        return self._commit_whole(validate_only, *topics.plan_partitions(self.image, wanted))

    def alter_configs(
        self, wanted: Sequence[config_changes.ResourceChange], *, validate_only: bool = False
    ) -> list[Result]:
        """Both forms: a change says itself whether it replaces (AlterConfigs) or adds (IncrementalAlterConfigs)."""
        return self._commit_whole(validate_only, *config_changes.plan_changes(self.image, wanted, self.layers))

    incremental_alter_configs = alter_configs

    def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Finalize other levels of features, all of them or none. Raises Refused."""
        records = feature_changes.plan_features(self.node_id, self.finalized_features, updates)
        if records and not validate_only:
            self._commit(records)

    def alter_quotas(self, changes: Sequence[QuotaChange], *, validate_only: bool = False) -> list[Result]:
        """Take quotas away; to set one is refused, because none is enforced."""
        return self._commit_whole(validate_only, *quotas.plan_quotas(self.image, changes))

    def alter_scram(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> Mapping[str, Result]:
        """Take credentials away, by user; to set one is refused, because no listener asks for it."""
        results, records = scram.plan_scram(self.image, deletions, upsertions)
        return dict(zip(results, self._commit_whole(False, list(results.values()), records), strict=True))

    def bump_leader_epoch(self, topic: str, partition: int) -> int:
        """Elect this node again as the leader of a partition it leads, so that its epoch grows; the new epoch.

        Clients meet it as a change of leaders. KafkaError when there is no such partition, or another leads it.
        """
        found = self.image.topics_by_name.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            raise UnknownTopicOrPartition(topic=topic, partition=partition)
        if not self._may_lead(found.partitions[partition]):
            raise NotLeaderOrFollower(topic=topic, partition=partition)
        self._commit([self._election(found.topic_id, partition, found.partitions[partition])])
        return self.image.topics_by_name[topic].partitions[partition].leader_epoch

    def allocate_producer_ids(self) -> ProducerIds:
        """The next block of producer ids. Await `flushed` before one is given away."""
        first = self.image.next_producer_id
        record = ProducerIdsRecord(
            broker_id=self.node_id, broker_epoch=self.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
        )
        self._commit([record])
        return ProducerIds(first, PRODUCER_ID_BLOCK)

    def next_producer_id(self) -> int:
        """One producer id from this broker's block; a new block is allocated when it is used up."""
        if self._next_producer_id == self._producer_ids_end:
            block = self.allocate_producer_ids()
            self._next_producer_id, self._producer_ids_end = block.first, block.first + block.count
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # What the image means

    @property
    def cluster_id(self) -> str:
        """22 characters of base64url, the same in every directory of the cluster."""
        return self.image.cluster_id

    @property
    def directory_ids(self) -> Sequence[bytes]:
        """The ids of this node's log directories, in the order of log.dirs."""
        return self._log.directory_ids

    @property
    def log(self) -> MetadataLog:
        """The metadata log, for its offsets, voters and snapshots."""
        return self._log

    @property
    def finalized_features(self) -> Mapping[str, int]:
        """Finalized levels for ApiVersions; their epoch is the image's offset."""
        if self._log.kraft_version:
            return {**self.image.features, features.KRAFT_VERSION: self._log.kraft_version}
        return self.image.features

    @property
    def layers(self) -> BrokerLayers:
        """The broker's settings, from the strongest to the file."""
        image = self.image
        return BrokerLayers(
            self.config,
            image.configs_of(ResourceType.BROKER, str(self.node_id)),
            image.configs_of(ResourceType.BROKER, ""),
        )

    @property
    def topic_defaults(self) -> TopicDefaults:
        """Topic settings in force where a topic overrides nothing; changes with the broker's dynamic settings."""
        layers = self.layers
        if self._defaults is None or (layers.this_broker, layers.all_brokers) != self._defaults_configs:
            self._defaults = TopicDefaults(layers)
            self._defaults_configs = (layers.this_broker, layers.all_brokers)
        return self._defaults

    # Inside

    def _commit_whole(self, validate_only: bool, results: list[R], records: Sequence[Record]) -> list[R]:
        """Make a request's changes in one batch, so that a crash leaves all or none of them; refuse them all where it has no room."""
        values = self._encoded(records)
        try:
            topics.check_size(values)
        except topics.Refused as refusal:
            return [result.refused(refusal) for result in results]
        if records and not validate_only:
            try:
                self._commit(records, values)
            except KafkaStorageError as error:  # nothing was changed: the batch is written before the image is replaced
                return _refused_by_disk(results, error)
        return results

    def _encoded(self, records: Sequence[Record]) -> list[bytes]:
        version = self.image.features.get(features.METADATA_VERSION, features.BOOTSTRAP[features.METADATA_VERSION])
        return [encode_record(record, version) for record in records]

    def _commit(self, records: Sequence[Record], values: Sequence[bytes] | None = None) -> None:
        """Write, apply, tell. The delta is built first: records that do not fit are never written."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        if values is None:
            values = self._encoded(records)
        now_ms = self.clock()
        image = delta.apply(self._log.end_offset + len(values) - 1, self.epoch, now_ms)
        self._log.append(values, now_ms)
        self.image = image
        self._publish(delta)

    def _publish(self, delta: MetadataDelta) -> None:
        for listener in self._listeners:  # the change is made: one that fails does not keep it from the others
            failures.attempt("following a change of the metadata", partial(listener, self.image, delta))

    def _first_change(self, bootstrap: Sequence[Record]) -> list[Record]:
        """What a new cluster begins with, as one change, as Kafka writes it."""
        records = list(bootstrap)
        if any(
            isinstance(record, FeatureLevelRecord) and record.name == features.ELIGIBLE_LEADER_REPLICAS
            for record in records
        ):
            # Eligible leader replicas need one min.insync.replicas for the whole cluster (KIP-966).
            value = str(self.config.min_insync_replicas)
            records.append(
                ConfigRecord(
                    resource_type=int(ResourceType.BROKER), resource_name="", name="min.insync.replicas", value=value
                )
            )
        return [BeginTransactionRecord(name="Bootstrap records"), *records, EndTransactionRecord()]

    def _registration(self, listeners: Sequence[Listener], epoch: int) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(
            broker_id=self.node_id,
            incarnation_id=random_uuid(),
            broker_epoch=epoch,
            end_points=[
                RegisterBrokerRecord.BrokerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=SECURITY_PROTOCOLS[listener.security_protocol],
                )
                for listener in listeners
            ],
            features=[
                RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in features.SUPPORTED.items()
            ],
            rack=self.config.broker_rack,
            fenced=True,
            log_dirs=sorted(self._log.directory_ids),
        )

    def _elections(self, *, bump: bool) -> list[Record]:
        """Changes that make this node the leader of its partitions that have none, or (`bump`) begin a new epoch in all."""
        found: list[Record] = []
        for topic in self.image.topics_by_name.values():
            for number, partition in enumerate(topic.partitions):
                if self._may_lead(partition) and (bump or partition.leader == NO_LEADER):
                    found.append(self._election(topic.topic_id, number, partition))
        return found

    def _may_lead(self, partition: PartitionImage) -> bool:
        """Whether this node has what was committed: it is in sync, or eligible, or the last that was."""
        if partition.leader not in (NO_LEADER, self.node_id):
            return False
        if self.node_id in partition.isr or self.node_id in partition.eligible_leader_replicas:
            return True
        nobody = not partition.isr and not partition.eligible_leader_replicas
        return nobody and partition.last_known_elr == (self.node_id,)

    def _election(self, topic_id: bytes, number: int, partition: PartitionImage) -> PartitionChangeRecord:
        record = PartitionChangeRecord(partition_id=number, topic_id=topic_id, leader=self.node_id)
        if partition.isr != (self.node_id,):
            record.isr = [self.node_id]
        if partition.eligible_leader_replicas:
            record.eligible_leader_replicas = []
        if partition.last_known_elr:
            record.last_known_elr = []
        return record
