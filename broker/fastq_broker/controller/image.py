"""The state of the cluster's metadata: an immutable image, and the delta that turns one image into the next.

Rules: an image and everything in it is never changed once it is published, so it may be kept and read from anywhere. A
delta takes records in log order and is applied once; sections that no record touched are shared with the image
before, so a change of one topic copies two dictionaries of references and that topic, nothing more. Replaying a whole log
is one delta. Records that nothing here acts upon yet (ACLs, SCRAM, tokens, quotas, controllers) are kept as they
came, so that a snapshot loses nothing. Source: MetadataImage, MetadataDelta, PartitionRegistration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from fastq.errors import FastqError
from fastq.values import NamedTuple
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.features import ELIGIBLE_LEADER_REPLICAS

# A decoded metadata record: a generated message of `fastq.protocol.messages`.
Record = Any

NO_LEADER = -1
# In a PartitionChangeRecord: the leader stays as it is.
NO_LEADER_CHANGE = -2
# Directory ids below 100 name no directory (DirectoryId): one that is not known because the record is older than directories are, one
# that the broker has yet to choose, and one that is known to be lost.
MIGRATING_DIRECTORY = bytes(16)
UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
LOST_DIRECTORY = bytes(15) + b"\x02"


class MetadataError(FastqError):
    """Records that do not fit the image they are applied to; the log is damaged or comes from somewhere else."""


class Endpoint(NamedTuple):
    """An address of a broker or controller, by the name of its listener."""

    name: str
    host: str
    port: int
    security_protocol: int


class BrokerImage(NamedTuple):
    """A registered broker. A fenced one takes no leadership and is not told to clients."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    cordoned_directories: tuple[bytes, ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address on the listener of that name; None when the broker does not have it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener), None)

    @property
    def default_directory(self) -> bytes:
        """Where a new replica goes: the broker's only directory. One that has several says later where it put the replica."""
        if not self.directories:
            return MIGRATING_DIRECTORY
        return self.directories[0] if len(self.directories) == 1 else UNASSIGNED_DIRECTORY

    def is_online(self, directory: bytes) -> bool:
        """Whether the broker has the directory. One that is yet to be chosen counts, and so does any of a broker that names none."""
        if directory in (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY):
            return True
        return directory != LOST_DIRECTORY and (not self.directories or directory in self.directories)

    @property
    def takes_replicas(self) -> bool:
        """Whether new replicas may be placed here: not while it shuts down, nor with all directories cordoned (KIP-1066)."""
        cordoned = bool(self.directories) and set(self.directories) <= set(self.cordoned_directories)
        return not self.in_controlled_shutdown and not cordoned


class PartitionImage(NamedTuple):
    """One partition: who leads it, in which epoch, and where its replicas are. `leader` -1: nobody."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: int = 0

    @property
    def has_eligible_alone(self) -> bool:
        """Whether nobody is in sync, and the metadata still says who can lead it next."""
        return not self.isr and bool(self.eligible_leader_replicas or self.last_known_elr)

    def directory_of(self, broker_id: int) -> bytes:
        """The directory of a broker's replica; UNASSIGNED where it has none."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(broker_id, UNASSIGNED_DIRECTORY)


class TopicImage(NamedTuple):
    """A topic; the partition's number is its place in `partitions`."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]


_EMPTY: Mapping[Any, Any] = MappingProxyType({})
ResourceKey = tuple[int, str]


class MetadataImage(NamedTuple):
    """All metadata up to and including the record at `offset`, written in the quorum's `epoch`. Immutable."""

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = 0
    cluster_id: str = ""
    features: Mapping[str, int] = _EMPTY
    brokers: Mapping[int, BrokerImage] = _EMPTY
    topics_by_name: Mapping[str, TopicImage] = _EMPTY
    topics_by_id: Mapping[bytes, TopicImage] = _EMPTY
    configs: Mapping[ResourceKey, Mapping[str, str]] = _EMPTY
    next_producer_id: int = 0
    producer_ids_owner: tuple[int, int] = (-1, -1)
    kept: Mapping[Hashable, Record] = _EMPTY

    def topic(self, name: str) -> TopicImage | None:
        """The topic of that name; None when there is none."""
        return self.topics_by_name.get(name)

    def topic_of_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic of that id; None when there is none."""
        return self.topics_by_id.get(topic_id)

    def partition(self, name: str, partition: int) -> PartitionImage | None:
        """One partition; None when topic or number does not exist."""
        topic = self.topics_by_name.get(name)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def configs_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The overrides of one resource; empty where there are none. A broker's name is its id, "" means all."""
        return self.configs.get((int(resource_type), name), _EMPTY)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The overrides of one topic, as the texts that were set."""
        return self.configs_of(ResourceType.TOPIC, name)

    @property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics_by_name.values())

    def is_active(self, broker_id: int) -> bool:
        """Whether the broker is registered, not fenced, and not shutting down: it may lead, and be in sync."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def controllers(self) -> Iterator[Record]:
        """The registrations of controllers (RegisterControllerRecord)."""
        return (record for key, record in self.kept.items() if isinstance(key, tuple) and key[0] == "controller")

    def live_brokers(self) -> Iterator[BrokerImage]:
        """Brokers that are not fenced."""
        return (broker for broker in self.brokers.values() if not broker.fenced)


class _TopicDraft:
    """A topic under change: its partitions by number."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: dict[int, PartitionImage]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    def finish(self) -> TopicImage:
        count = len(self.partitions)
        try:
            partitions = tuple([self.partitions[number] for number in range(count)])
        except KeyError as missing:
            raise MetadataError(
                f"topic {self.name} has {count} partitions but none of number {missing.args[0]}"
            ) from None
        return TopicImage(self.name, self.topic_id, partitions)


class MetadataDelta:
    """Changes since `image`, taken from records in log order with `replay`, turned into the next image by `apply`.

    After `apply` it tells listeners what changed: `changed_topics` (before or None, after), `deleted_topics`,
    `changed_configs`, `changed_brokers`, `features_changed`. Used by one thread.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.changed_topics: list[tuple[TopicImage | None, TopicImage]] = []
        self.deleted_topics: list[TopicImage] = []
        self.changed_configs: set[ResourceKey] = set()
        self.changed_brokers: set[int] = set()
        self.features_changed = False
        self._drafts: dict[bytes, _TopicDraft] = {}
        self._deleted: dict[bytes, TopicImage] = {}
        self._configs: dict[ResourceKey, dict[str, str]] = {}
        self._brokers: dict[int, BrokerImage | None] = {}
        self._features: dict[str, int] = {}
        self._kept: dict[Hashable, Record | None] = {}
        self._next_producer_id = image.next_producer_id
        self._producer_ids_owner = image.producer_ids_owner

    @classmethod
    def between(cls, old: MetadataImage, new: MetadataImage) -> MetadataDelta:
        """What a listener who knows `old` has to hear to know `new`; for a delta that is told only, and takes no more records."""
        delta = cls(old)
        for topic_id, topic in new.topics_by_id.items():
            before = old.topics_by_id.get(topic_id)
            if before != topic:
                delta.changed_topics.append((before, topic))
        delta.deleted_topics = [topic for key, topic in old.topics_by_id.items() if key not in new.topics_by_id]
        delta.changed_configs = {
            key for key in {*old.configs, *new.configs} if old.configs.get(key) != new.configs.get(key)
        }
        delta.changed_brokers = {
            key for key in {*old.brokers, *new.brokers} if old.brokers.get(key) != new.brokers.get(key)
        }
        delta.features_changed = old.features != new.features
        return delta

    def replay(self, record: Record) -> None:
        """Take one record; MetadataError when it does not fit."""
        handler = _HANDLERS.get(record.API_KEY)
        if handler is None:
            raise MetadataError(f"metadata record type {record.API_KEY} is not known")
        handler(self, record)

    def apply(self, offset: int, epoch: int, timestamp_ms: int) -> MetadataImage:
        """The image after all records taken so far, the last of them at `offset`."""
        old = self.image
        by_name, by_id = self._apply_topics()
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms,
            cluster_id=old.cluster_id,
            features=self._apply_features(),
            brokers=_merged(old.brokers, self._brokers),
            topics_by_name=by_name,
            topics_by_id=by_id,
            configs=self._apply_configs(),
            next_producer_id=self._next_producer_id,
            producer_ids_owner=self._producer_ids_owner,
            kept=_merged(old.kept, self._kept),
        )

    def _apply_topics(self) -> tuple[Mapping[str, TopicImage], Mapping[bytes, TopicImage]]:
        old = self.image
        if not self._drafts and not self._deleted:
            return old.topics_by_name, old.topics_by_id
        by_name = dict(old.topics_by_name)
        by_id = dict(old.topics_by_id)
        for topic_id, topic in self._deleted.items():
            self.deleted_topics.append(topic)
            del by_id[topic_id]
            del by_name[topic.name]
        for topic_id, draft in self._drafts.items():
            topic = draft.finish()
            self.changed_topics.append((old.topics_by_id.get(topic_id), topic))
            by_id[topic_id] = by_name[topic.name] = topic
        return MappingProxyType(by_name), MappingProxyType(by_id)

    def _apply_configs(self) -> Mapping[ResourceKey, Mapping[str, str]]:
        if not self._configs:
            return self.image.configs
        configs = dict(self.image.configs)
        for key, values in self._configs.items():
            self.changed_configs.add(key)
            if values:
                configs[key] = MappingProxyType(values)
            else:
                configs.pop(key, None)
        return MappingProxyType(configs)

    def _apply_features(self) -> Mapping[str, int]:
        if not self._features:
            return self.image.features
        self.features_changed = True
        merged = {**self.image.features, **self._features}
        return MappingProxyType({name: level for name, level in merged.items() if level != 0})

    # Records, one method a kind.

    def _draft(self, topic_id: bytes) -> _TopicDraft:
        draft = self._drafts.get(topic_id)
        if draft is None:
            topic = self.image.topics_by_id.get(topic_id)
            if topic is None or topic_id in self._deleted:
                raise MetadataError(f"a record names the topic id {topic_id.hex()}, which does not exist")
            draft = _TopicDraft(topic.name, topic_id, dict(enumerate(topic.partitions)))
            self._drafts[topic_id] = draft
        return draft

    def _topic(self, record: Record) -> None:
        self._drafts[record.topic_id] = _TopicDraft(record.name, record.topic_id, {})

    def _partition(self, record: Record) -> None:
        replicas = tuple(record.replicas)
        directories = tuple(record.directories) or (MIGRATING_DIRECTORY,) * len(replicas)
        isr = tuple(record.isr)
        self._draft(record.topic_id).partitions[record.partition_id] = PartitionImage(
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            replicas,
            replicas if isr == replicas else isr,
            directories,
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
            record.leader_recovery_state,
        )

    def _partition_change(self, record: Record) -> None:
        draft = self._draft(record.topic_id)
        partition = draft.partitions.get(record.partition_id)
        if partition is None:
            raise MetadataError(f"a change names partition {record.partition_id} of {draft.name}, which does not exist")
        draft.partitions[record.partition_id] = changed_partition(partition, record)

    def _remove_topic(self, record: Record) -> None:
        draft = self._drafts.pop(record.topic_id, None)
        topic = self.image.topics_by_id.get(record.topic_id)
        if topic is None and draft is None:
            raise MetadataError(f"a record removes the topic id {record.topic_id.hex()}, which does not exist")
        name = topic.name if topic is not None else draft.name if draft is not None else ""
        if topic is not None:
            self._deleted[record.topic_id] = topic
        key = (int(ResourceType.TOPIC), name)
        if key in self.image.configs or key in self._configs:
            self._configs[key] = {}

    def _config(self, record: Record) -> None:
        key = (record.resource_type, record.resource_name)
        values = self._configs.get(key)
        if values is None:
            values = self._configs[key] = dict(self.image.configs.get(key, _EMPTY))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value

    def _register_broker(self, record: Record) -> None:
        self.changed_brokers.add(record.broker_id)
        self._brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(item.name, item.host, item.port, item.security_protocol) for item in record.end_points),
            tuple((item.name, item.min_supported_version, item.max_supported_version) for item in record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            tuple(record.cordoned_log_dirs or ()),
        )

    def _registered(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._brokers[broker_id] if broker_id in self._brokers else self.image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise MetadataError(f"a record names broker {broker_id} in epoch {epoch}, the image has {broker}")
        self.changed_brokers.add(broker_id)
        return broker

    def _unregister_broker(self, record: Record) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        self._brokers[record.broker_id] = None

    def _fence_broker(self, record: Record) -> None:
        self._brokers[record.id] = self._registered(record.id, record.epoch)._replace(fenced=True)

    def _unfence_broker(self, record: Record) -> None:
        self._brokers[record.id] = self._registered(record.id, record.epoch)._replace(fenced=False)

    def _change_broker(self, record: Record) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        if record.fenced != 0:
            broker = broker._replace(fenced=record.fenced > 0)
        if record.in_controlled_shutdown != 0:
            broker = broker._replace(in_controlled_shutdown=record.in_controlled_shutdown > 0)
        if record.log_dirs:
            broker = broker._replace(directories=tuple(record.log_dirs))
        if record.cordoned_log_dirs is not None:
            broker = broker._replace(cordoned_directories=tuple(record.cordoned_log_dirs))
        self._brokers[record.broker_id] = broker

    def _feature(self, record: Record) -> None:
        """Without a level, eligible replicas are gone on every node: snapshots leave them out, and who has followed the records must not
        find them again at the next level. No partition's epoch counts it: Apache Kafka's nodes do not."""
        self._features[record.name] = record.feature_level
        if record.name == ELIGIBLE_LEADER_REPLICAS and not record.feature_level:
            self._drop_eligible("", lambda found: found._replace(eligible_leader_replicas=(), last_known_elr=()))

    def _producer_ids(self, record: Record) -> None:
        self._next_producer_id = record.next_producer_id
        self._producer_ids_owner = (record.broker_id, record.broker_epoch)

    def _nothing(self, record: Record) -> None:
        """NoOp, the record of the migration from ZooKeeper, and the ends of a transaction that is taken as a whole."""

    def _clear_elr(self, record: Record) -> None:
        """Counts as a change of each partition that has such replicas."""
        self._drop_eligible(record.topic_name, _without_elr)

    def _drop_eligible(self, topic_name: str, without: Callable[[PartitionImage], PartitionImage]) -> None:
        """Of a topic, or of all (no name): topics that this delta makes are among them."""
        names = {topic.topic_id: topic.name for topic in self.image.topics_by_name.values()}
        names |= {topic_id: draft.name for topic_id, draft in self._drafts.items()}
        for topic_id, name in names.items():
            if topic_id in self._deleted or topic_name not in ("", name):
                continue
            drafted = self._drafts.get(topic_id)
            partitions = drafted.partitions.values() if drafted else self.image.topics_by_id[topic_id].partitions
            if any(partition.eligible_leader_replicas or partition.last_known_elr for partition in partitions):
                draft = self._draft(topic_id)
                draft.partitions = {number: without(found) for number, found in draft.partitions.items()}

    def keep(self, key: Hashable, record: Record | None) -> None:
        """Keep a record as it came under `key`, or forget it."""
        self._kept[key] = record


def changed_partition(partition: PartitionImage, record: Record) -> PartitionImage:
    """The partition after a PartitionChangeRecord: a leader given bumps its epoch, any change the partition epoch."""
    leader = partition.leader
    leader_epoch = partition.leader_epoch
    if record.leader != NO_LEADER_CHANGE:
        leader = record.leader
        leader_epoch += 1
    replicas = partition.replicas if record.replicas is None else tuple(record.replicas)
    directories = partition.directories
    if record.directories:
        directories = tuple(record.directories)
    elif record.replicas is not None:
        known = dict(zip(partition.replicas, partition.directories, strict=False))
        directories = tuple(known.get(replica, UNASSIGNED_DIRECTORY) for replica in replicas)
    recovery = partition.leader_recovery_state if record.leader_recovery_state < 0 else record.leader_recovery_state
    return PartitionImage(
        leader,
        leader_epoch,
        partition.partition_epoch + 1,
        replicas,
        _changed(partition.isr, record.isr),
        directories,
        _changed(partition.removing_replicas, record.removing_replicas),
        _changed(partition.adding_replicas, record.adding_replicas),
        _changed(partition.eligible_leader_replicas, record.eligible_leader_replicas),
        _changed(partition.last_known_elr, record.last_known_elr),
        recovery,
    )


def _without_elr(partition: PartitionImage) -> PartitionImage:
    if not partition.eligible_leader_replicas and not partition.last_known_elr:
        return partition
    return partition._replace(
        eligible_leader_replicas=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
    )


def _changed(old: tuple[int, ...], new: list[int] | None) -> tuple[int, ...]:
    return old if new is None else tuple(new)


def _merged(old: Mapping[Any, Any], changes: Mapping[Any, Any | None]) -> Mapping[Any, Any]:
    """`old` with the changes; None removes."""
    if not changes:
        return old
    merged = {**old, **changes}
    return MappingProxyType({key: value for key, value in merged.items() if value is not None})


def _keep(
    key_of: Callable[[Record], Hashable], removes: Callable[[Record], bool]
) -> Callable[[MetadataDelta, Record], None]:
    def handle(delta: MetadataDelta, record: Record) -> None:
        delta.keep(key_of(record), None if removes(record) else record)

    return handle


def _never(record: Record) -> bool:
    return False


def _always(record: Record) -> bool:
    return True


def _quota_key(record: Record) -> Hashable:
    entity = tuple(sorted((item.entity_type, item.entity_name or "") for item in record.entity))
    return "quota", entity, record.key


# By record type (API_KEY of the generated message).
_HANDLERS: Mapping[int, Callable[[MetadataDelta, Record], None]] = {
    0: MetadataDelta._register_broker,
    1: MetadataDelta._unregister_broker,
    2: MetadataDelta._topic,
    3: MetadataDelta._partition,
    4: MetadataDelta._config,
    5: MetadataDelta._partition_change,
    7: MetadataDelta._fence_broker,
    8: MetadataDelta._unfence_broker,
    9: MetadataDelta._remove_topic,
    10: _keep(lambda record: ("token", record.token_id), _never),
    11: _keep(lambda record: ("scram", record.name, record.mechanism), _never),
    12: MetadataDelta._feature,
    14: _keep(_quota_key, lambda record: bool(record.remove)),
    15: MetadataDelta._producer_ids,
    17: MetadataDelta._change_broker,
    18: _keep(lambda record: ("acl", record.id), _never),
    19: _keep(lambda record: ("acl", record.id), _always),
    20: MetadataDelta._nothing,
    21: MetadataDelta._nothing,
    23: MetadataDelta._nothing,
    24: MetadataDelta._nothing,
    25: MetadataDelta._nothing,
    22: _keep(lambda record: ("scram", record.name, record.mechanism), _always),
    26: _keep(lambda record: ("token", record.token_id), _always),
    27: _keep(lambda record: ("controller", record.controller_id), _never),
    28: MetadataDelta._clear_elr,
}
