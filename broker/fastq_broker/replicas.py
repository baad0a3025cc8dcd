"""The partitions that this node hosts, as the request path looks them up: by topic name or id as bytes, then by number.

Rules
- The controller's image decides what is here; `Broker` applies each delta. Nothing else adds or removes.
- Two tables, by name and by id, hold the same replicas: requests name topics one way or the other, by their version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fastq.errors import ErrorCode, KafkaError

from .controller.image import MetadataImage
from .controller.topics import INTERNAL_TOPICS
from .replication.shared import Acknowledgement, Replication, SharedPartition

if TYPE_CHECKING:
    from .controller.image import PartitionImage
    from .fetch_session import FetchSession
    from .log import LogConfig, PartitionLog


class Replica:
    """One hosted partition: its log, and what the metadata says about it. Loop thread only.

    `sleepers` are the fetch sessions that need not look at it, with its key in each, until something here moves.

    Invariant: it is `shared` while the metadata places the partition on other nodes too, on a node that is one among others. One that is
    not takes what a foreign directory says of other nodes as it stands: nobody fetches from it, and who is in sync does not change.
    """

    __slots__ = (
        "_image",
        "_in_sync",
        "_replication",
        "_wanted_in_sync",
        "answers_later",
        "internal",
        "leader_epoch",
        "leader_id",
        "log",
        "mirrored",
        "partition",
        "shared",
        "sleepers",
        "synchronous",
        "topic",
        "topic_id",
        "under_min_isr",
        "unwoken",
    )

    def __init__(
        self, log: PartitionLog, topic: str, topic_id: bytes, partition: int, replication: Replication | None = None
    ) -> None:
        """`replication` is None on a node that runs alone."""
        self.log = log
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self._replication = replication
        self._wanted_in_sync = 1
        self._in_sync = (1, 1)  # how many are, of how many, as the metadata has it
        self.internal = topic in INTERNAL_TOPICS
        self.mirrored = False
        """Whether a mirror alone writes here; of the coordinators' topics nobody mirrors any, whatever their settings say."""
        self.leader_id = -1
        self.leader_epoch = -1
        self.shared: SharedPartition | None = None
        self.synchronous = False
        self.under_min_isr = False
        """Whether fewer are in sync than who asks for all demands."""
        self.answers_later = False
        """Whether a produce has to look at who has to have its records before it is answered."""
        self._image: PartitionImage | None = None
        self.sleepers: dict[FetchSession, tuple[bytes, int]] = {}
        self.unwoken = False
        """Whether there was no memory to wake some of them the last time."""
        log.on_advance(self.wake)

    @property
    def min_insync_replicas(self) -> int:
        """As the topic's settings have it, which may be more than there are replicas."""
        return self._wanted_in_sync

    def apply_config(self, config: LogConfig, min_insync_replicas: int) -> None:
        """Note what the request path needs of the topic's settings."""
        self.synchronous = config.synchronous
        self.mirrored = bool(config.mirror_source) and not self.internal
        self._wanted_in_sync = min_insync_replicas
        self.answers_later = self.synchronous or self.shared is not None
        if self.shared is not None:
            self.shared.configure(min_insync_replicas)
        else:
            self._judge_in_sync()

    def apply(self, image: PartitionImage) -> bool:
        """Follow the metadata; whether the leader epoch is another, so that who waits here has to look again.

        Raises KafkaStorageError when the epoch cannot be written down, or a log with followers cannot be read. Where that is for now only
        (ReplicaNotAvailable too) this is to be called again, and until then nobody is told that this node leads: it does not yet.
        """
        if image is not self._image:  # another partition of the topic has changed
            self.wake()
            self._image = image
        self._share(self._replication if len(image.replicas) > 1 else None)
        new_epoch = image.leader_epoch != self.leader_epoch
        if self.shared is None:
            if new_epoch:
                self.log.assign_leader_epoch(image.leader_epoch)
            self.leader_epoch, self.leader_id = image.leader_epoch, image.leader
            self._in_sync = len(image.isr), len(image.replicas)
            self._judge_in_sync()
            return new_epoch
        before = self.leader_epoch, self.leader_id
        self.leader_epoch, self.leader_id = image.leader_epoch, image.leader
        try:
            self.shared.apply(image)
        except (KafkaError, MemoryError):
            # That another node leads holds at once, whatever fails: what was taken from now on would be lost.
            led_here = self._replication is not None and image.leader == self._replication.node_id
            if led_here and self.log.failure is None and self.log.dir.offline is None:
                self.leader_epoch, self.leader_id = before
            raise
        return new_epoch

    def wake(self, _log: object = None) -> None:
        """What is here has moved, or who leads it, or who is in sync: sessions look at it again. A listener of the log."""
        if self.sleepers:
            problem: Exception | None = None
            self.unwoken = True
            for session, key in list(self.sleepers.items()):
                try:
                    session.woken(key, self)
                except Exception as error:  # the others wake all the same
                    problem = error
            if problem is not None:
                raise problem
            self.unwoken = False

    def _share(self, replication: Replication | None) -> None:
        if replication is not None:
            if self.shared is not None and not self.shared.is_whole:
                self._share(None)  # it was to end, and there was no memory for all of that: who waits is to be told
            if self.shared is None:
                self.shared = SharedPartition(self, replication)
        elif self.shared is not None:
            shared, self.shared = self.shared, None  # who is sent away may wait here again at once
            try:
                shared.end(shared=False)
            except BaseException:  # there may be no memory for all of it: it ends when this is said again
                self.shared = shared
                raise
        elif self.leader_epoch < 0:
            self.log.share(False)
        self.answers_later = self.synchronous or self.shared is not None

    def _judge_in_sync(self) -> None:
        in_sync, replicas = self._in_sync
        self.under_min_isr = in_sync < min(self._wanted_in_sync, replicas)

    def retire(self) -> None:
        """The partition is not here any more: whoever still holds the replica sees that. What there was no memory for is done when this is
        said again."""
        self.leader_id = -1
        self.wake()
        self.log.remove_listener(self.wake)
        if self.shared is not None:
            self.shared.end(shared=True)

    def wait_committed(self, offset: int, callback: Callable[[KafkaError | None], None]) -> Acknowledgement | None:
        """Call back once all who have to have the records below `offset` have them as safely as the settings promise, or with the
        error. What is answered can be given up, to `shared`."""
        if self.shared is not None:
            return self.shared.wait(offset, callback)
        self.log.wait_durable(offset, callback)
        return None

    def is_committed(self, offset: int) -> bool:
        """Whether the records below `offset` are known to be as safe as several nodes promise; of one node alone `wait_committed` tells."""
        return self.shared is not None and self.shared.machine.leads and self.log.high_watermark >= offset

    def is_followed(self, within_ms: int) -> bool:
        """Whether this node leads, by what its followers do and not by the metadata alone: all in sync have fetched so lately."""
        if self.shared is None:
            return True
        self.wake()  # who sleeps has fetched since it was last noted
        return self.shared.is_followed(within_ms)

    def epoch_error(self, requested: int) -> int:
        """0, or the error for a request that was made under another leader epoch; -1 asks for no check (KIP-320)."""
        if requested == -1 or requested == self.leader_epoch:
            return 0
        return ErrorCode.FENCED_LEADER_EPOCH if requested < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def follower_error(self, node_id: int, requested_epoch: int, broker_epoch: int) -> int:
        """0, or the error for a fetch in the name of a replica: see Partition.fetch_error."""
        if self.shared is not None:
            return self.shared.machine.fetch_error(node_id, requested_epoch, broker_epoch)
        return ErrorCode.UNKNOWN_LEADER_EPOCH if requested_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER


class ReplicaTable:
    """All replicas of a node. Loop thread only. Invariant: both tables hold the same replicas. `image` answers the metadata as of now,
    which knows what other nodes have."""

    def __init__(
        self,
        node_id: int,
        replication: Replication | None = None,
        image: Callable[[], MetadataImage] = MetadataImage,
    ) -> None:
        self.node_id = node_id
        self.replication = replication
        self._image = image
        self.by_name: dict[bytes, dict[int, Replica]] = {}
        self.by_id: dict[bytes, dict[int, Replica]] = {}
        self._without_log: set[tuple[bytes, int]] = set()

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self.by_name.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self.by_name.values()))

    def add(self, replica: Replica) -> None:
        partitions = self.by_name.setdefault(replica.topic.encode(), {})
        self.by_id[replica.topic_id] = partitions
        if self._without_log:
            self._without_log -= {(replica.topic.encode(), replica.partition), (replica.topic_id, replica.partition)}
        partitions[replica.partition] = replica  # what there is no memory for before is done when it is added again

    def get(self, topic: str, partition: int) -> Replica | None:
        return self.by_name.get(topic.encode(), {}).get(partition)

    def remove_topic(self, topic: str, topic_id: bytes) -> list[Replica]:
        """Take a topic out; answers its replicas, which are to be retired."""
        self.by_id.pop(topic_id, None)
        name = topic.encode()
        self._without_log = {key for key in self._without_log if key[0] not in (name, topic_id)}
        return list(self.by_name.pop(name, {}).values())

    def remove(self, replica: Replica) -> None:
        """Take one replica out that is retired, as other nodes have its partition now."""
        partitions = self.by_name.get(replica.topic.encode(), {})
        if partitions.get(replica.partition) is replica:
            del partitions[replica.partition]

    def note_failure(self, topic: str, topic_id: bytes, partition: int) -> None:
        """A partition is placed here, but its log cannot be opened."""
        self._without_log |= {(topic.encode(), partition), (topic_id, partition)}

    def leader(self, topic: str, partition: int) -> Replica | int:
        """The replica if this node leads the partition, else the error code to answer."""
        replica = self.get(topic, partition)
        if replica is None:
            return self.missing_error(topic.encode(), partition, by_id=False)
        return replica if replica.leader_id == self.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def missing_error(self, topic: bytes, partition: int, by_id: bool) -> int:
        """Why a lookup by name or id found nothing: what other nodes have is led elsewhere (ReplicaManager.getPartitionOrError)."""
        if (topic, partition) in self._without_log:
            return ErrorCode.KAFKA_STORAGE_ERROR
        image = self._image()
        if by_id:
            known = image.topic_of_id(topic)
            if known is None and topic not in self.by_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
        else:
            known = image.topic(topic.decode("utf-8", "replace"))
        if known is not None and 0 <= partition < len(known.partitions):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
