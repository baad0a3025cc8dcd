"""The changes of the metadata that are asked for: what is planned against `pending`, and written as one change.

Rules
- Results are in the order of the items; an item's error stops no other item.
- Nothing is written for `validate_only`. What is written counts once it is committed: who asked awaits `durable` or `flushed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fastq.errors import KafkaError, KafkaStorageError, NotController, NotLeaderOrFollower, UnknownTopicOrPartition
from fastq.protocol.messages import AssignReplicasToDirsRequest, ProducerIdsRecord
from fastq.values import Value
from fastq_broker.config import BrokerConfig
from fastq_broker.controller import alone, config_changes, elections, feature_changes, quotas, scram, topics
from fastq_broker.controller.assign_directories import plan_assignments
from fastq_broker.controller.feature_changes import FeatureUpdate
from fastq_broker.controller.image import MetadataImage, Record
from fastq_broker.controller.quorum import MetadataQuorum
from fastq_broker.controller.quotas import QuotaChange
from fastq_broker.controller.records import PRODUCER_ID_BLOCK
from fastq_broker.controller.scram import ScramDeletion, ScramUpsertion
from fastq_broker.controller.topics import CreatedTopic, NewPartitions, NewTopic, Result
from fastq_broker.controller.view import ControlView
from fastq_broker.surroundings import Surroundings
from fastq_broker.topic_config import BrokerLayers

R = TypeVar("R", bound=Result)


def _not_made(results: list[R], error: KafkaError) -> list[R]:
    """The same results, each refused for this error but those that were refused already."""
    refusal = topics.Refused(error.code, str(error))
    return [result.refused(refusal) for result in results]


class ProducerIds(Value):
    """A block of producer ids that nobody else was or will be given."""

    first: int
    count: int


class Changes:
    """The part of a Controller that plans changes; see there for what the attributes are. Event-loop thread only."""

    before_creation: Callable[[frozenset[str]], None]
    broker_epoch: int
    config: BrokerConfig
    image: MetadataImage
    node_id: int
    pending: MetadataImage
    quorum: MetadataQuorum
    _here: Surroundings

    @property
    def pending_features(self) -> Mapping[str, int]:
        raise NotImplementedError

    @property
    def view(self) -> ControlView:
        raise NotImplementedError

    def view_of(self, image: MetadataImage) -> ControlView:
        raise NotImplementedError

    async def flushed(self) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        raise NotImplementedError

    def _check_active(self) -> None:
        raise NotImplementedError

    def _commit(self, records: Sequence[Record], values: Sequence[bytes] | None = None) -> None:
        raise NotImplementedError

    def _encoded(self, records: Sequence[Record]) -> list[bytes]:
        raise NotImplementedError

    def _layers_of(self, image: MetadataImage) -> BrokerLayers:
        raise NotImplementedError

    def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create topics, or (`validate_only`) say which of them could be created."""
        results, records = topics.plan_create(self.pending, self.config, wanted, self._here.random, self._here.new_id)
        if records and not validate_only:
            names = frozenset(topic.name for topic in wanted)
            try:
                if any(name in self.image.topics_by_name and name not in self.pending.topics_by_name for name in names):
                    self.settle()  # the deletion of an older one takes effect first
                self.before_creation(names)
            except (KafkaStorageError, NotController) as error:
                return _not_made(results, error)
        return self._commit_whole(validate_only, results, records)

    def delete_topics(self, topic_ids: Sequence[bytes]) -> list[Result]:
        """Delete topics by id; an id that is not there is UNKNOWN_TOPIC_ID."""
        return self._commit_whole(False, *topics.plan_delete(self.pending, topic_ids))

    def create_partitions(self, wanted: Sequence[NewPartitions], *, validate_only: bool = False) -> list[Result]:
        """Let topics grow to a number of partitions; fewer, or as many as there are, is INVALID_PARTITIONS."""
        return self._commit_whole(validate_only, *topics.plan_partitions(self.pending, wanted, self._here.random))

    def alter_configs(
        self, wanted: Sequence[config_changes.ResourceChange], *, validate_only: bool = False, forwarded: bool = False
    ) -> list[Result]:
        """Both forms: a change says itself whether it replaces (AlterConfigs) or adds (IncrementalAlterConfigs). `forwarded`: the broker
        that a client asked has judged what only it can."""
        layers = self._layers_of(self.pending)
        results, records = config_changes.plan_changes(self.pending, wanted, layers, forwarded=forwarded)
        records += elections.clear_elr(self.view_of(self.view.after(records).image), records)
        return self._commit_whole(validate_only, results, records)

    incremental_alter_configs = alter_configs

    def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Finalize other levels of features, all of them or none. Raises Refused; NotController, KafkaStorageError."""
        others = feature_changes.members(self.pending, self.quorum.voters.ids - {self.node_id})
        plan = feature_changes.plan_features(self.node_id, self.pending_features, updates, others)
        feature_changes.check_eligible(self.pending, updates)
        if plan.raises_kraft_version:
            self._check_active()
            feature_changes.check_voters(self.quorum.finalize_kraft_version(validate_only=validate_only))
        safety = feature_changes.eligible_safety(self.pending, updates, self.config.min_insync_replicas)
        records = [*safety, *plan.records]
        if records and not validate_only:
            self._commit(records)

    def alter_quotas(self, changes: Sequence[QuotaChange], *, validate_only: bool = False) -> list[Result]:
        """Take quotas away; to set one is refused, because none is enforced."""
        return self._commit_whole(validate_only, *quotas.plan_quotas(self.pending, changes))

    def alter_scram(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> Mapping[str, Result]:
        """Take credentials away, by user; to set one is refused, because no listener asks for it."""
        results, records = scram.plan_scram(self.pending, deletions, upsertions)
        return dict(zip(results, self._commit_whole(False, list(results.values()), records), strict=True))

    def bump_leader_epoch(self, topic: str, partition: int) -> int:
        """Elect this node again as the leader of a partition it leads, so that its epoch grows; the new epoch.

        Clients meet it as a change of leaders. KafkaError when there is no such partition, or another leads it.
        """
        found = self.pending.topics_by_name.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            raise UnknownTopicOrPartition(topic=topic, partition=partition)
        if not alone.may_lead(found.partitions[partition], self.node_id):
            raise NotLeaderOrFollower(topic=topic, partition=partition)
        self._commit([alone.election(found.topic_id, partition, found.partitions[partition], self.node_id)])
        return self.pending.topics_by_name[topic].partitions[partition].leader_epoch

    def assign_directory(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """This node, which is alone, has its replica of a partition in this directory, where the metadata has any."""
        kind = AssignReplicasToDirsRequest
        topic = kind.TopicData(topic_id=topic_id, partitions=[kind.PartitionData(partition_index=partition)])
        request = kind(
            broker_id=self.node_id,
            broker_epoch=self.broker_epoch,
            directories=[kind.DirectoryData(id=directory_id, topics=[topic])],
        )
        records = plan_assignments(self.view, request)[1]
        if records:
            self._commit(records)

    def allocate_producer_ids(self) -> ProducerIds:
        """The next block of producer ids. Await `flushed` before one is given away."""
        first = self.pending.next_producer_id
        record = ProducerIdsRecord(
            broker_id=self.node_id, broker_epoch=self.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
        )
        self._commit([record])
        return ProducerIds(first, PRODUCER_ID_BLOCK)

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
            except (KafkaStorageError, NotController) as error:  # nothing was written
                return _not_made(results, error)
        return results

    async def durable(self, results: list[R]) -> list[R]:
        """The results of a request's changes once they are committed; where that fails, each says so instead of success."""
        try:
            await self.flushed()
        except (KafkaStorageError, NotController) as error:
            return _not_made(results, error)
        return results
