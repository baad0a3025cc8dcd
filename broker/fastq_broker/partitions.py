"""The partitions that the metadata places on this node: their logs and replicas follow each change of the image.

Rules
- A change is committed when it is heard of, so what is done to files follows at once: a deleted topic's go, settings by which retention
  or compaction deletes come into force. A loss of power brings nothing back without its records.
- The logs of a topic that the metadata does not know are left alone, and named at the start. Those of a partition that was given to other
  nodes while this one was down go then, as they do while it runs: the topic id on disk has to be the metadata's.
- A log that may lie in a directory that this node had and that is not here, or cannot be read, is not made anew: its partition is not
  served until the directory is back, or the topic is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import FastqError, KafkaError
from fastq.protocol.uuid import uuid_to_str

from .config_keys import ResourceType
from .controller import features
from .controller.image import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from .controller.view import DIRECTORIES
from .log import failures
from .replicas import Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .config_keys import ConfigValue
    from .controller import Controller, MetadataDelta, MetadataImage, TopicImage
    from .controller.image import PartitionImage
    from .log import LogDir, LogManager, PartitionLog
    from .purgatory import Purgatory
    from .replicas import ReplicaTable
    from .throttles import ReplicationThrottles

logger = logging.getLogger(__name__)

ATTACHED_PER_TURN = 200
"""Topics whose logs are attached before others get their turn."""
_LOGS_NAMED = 5
_ANY_DIRECTORY = (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY)


def _first_of(names: Sequence[str]) -> str:
    more = len(names) - _LOGS_NAMED
    return ", ".join(names[:_LOGS_NAMED]) + (f" and {more} more" if more > 0 else "")


class Partitions:
    """Keeps logs and replicas in step with the metadata. Loop thread only.

    Invariant once started: `replicas` holds one replica for each partition that the image places on this node, with its log in `logs`, or
    notes why it has none.
    """

    def __init__(
        self,
        controller: Controller,
        logs: LogManager,
        replicas: ReplicaTable,
        purgatory: Purgatory,
        throttles: ReplicationThrottles,
    ) -> None:
        self._controller = controller
        self._throttles = throttles
        self._logs = logs
        self._replicas = replicas
        self._purgatory = purgatory
        self.on_placed: Callable[[Replica, PartitionImage], object] = lambda replica, image: None
        """Hears of each replica that is here what the metadata says of its partition, at first and when that changes."""
        self.on_moving: Callable[[Replica, PartitionImage], object] = self._assign
        """Hears of a replica whose log is to be in another directory, or is not any more; the metadata is to know."""
        self._directories_missing = False
        self._elsewhere: set[tuple[bytes, int]] = set()  # topic id and number of those that lie in a missing directory
        self._kept_shut: set[str] = set()  # topics with a log that a shortage of descriptors or memory has kept shut
        self._retired_in_part: list[Replica] = []  # of deleted topics; there was no memory to tell who waits

    def find_logs(self) -> None:
        """Find the logs that are there; after a crash `LogManager.recover` has to follow. Raises KafkaStorageError, OSError."""
        image, defaults = self._controller.image, self._controller.topic_defaults
        self._logs.default_config = defaults.log_config
        self._logs.moves.on_changed = self._home_changed
        self._logs.moves.may_swap = self._is_home
        self._logs.find(
            {
                name: defaults.log_config_of(overrides)
                for (kind, name), overrides in image.configs.items()
                if kind == ResourceType.TOPIC
            }
        )

    async def start(self) -> None:
        """Take over the logs of the image's partitions, and make those that are not there."""
        image = self._controller.image
        self._find_missing(image)
        for number, topic in enumerate(image.topics_by_name.values(), 1):
            self._follow_topic(image, topic)
            if number % ATTACHED_PER_TURN == 0:
                await asyncio.sleep(0)
        self._give_up_moved(image)
        self._name_unknown(image)

    def _find_missing(self, image: MetadataImage) -> None:
        """Note the partitions whose logs are not here and may lie in a directory that is not here either. Which directory a log is in, the
        metadata knows of a node that had one when the topic was created."""
        pairs = zip(self._logs.dirs, self._controller.directory_ids, strict=False)
        missing = self._controller.missing_directories
        gone = missing.union(directory_id for log_dir, directory_id in pairs if log_dir.offline is not None)
        self._directories_missing = bool(gone)
        if not gone:
            return
        node_id, names = self._replicas.node_id, []
        for topic in image.topics_by_name.values():
            for number, partition in enumerate(topic.partitions):
                placed = node_id in partition.replicas and partition.directory_of(node_id) in {*gone, *_ANY_DIRECTORY}
                if placed and self._logs.get(topic.name, number) is None:
                    self._elsewhere.add((topic.topic_id, number))
                    names.append(f"{topic.name}-{number}")
        if names:
            logger.error(
                "%d partitions are not served (%s): their logs are in none of the log directories that can be read, and this node had "
                "others (directory ids %s): mount their disks, or name them in log.dirs again, and restart; or delete these topics if "
                "their records are to be given up",
                len(names),
                _first_of(names),
                ", ".join(map(uuid_to_str, sorted(gone))),
            )
        elif missing:
            self._controller.forget_directories()

    def _give_up_moved(self, image: MetadataImage) -> None:
        """Delete the logs of partitions that were given to other nodes while this one was down."""
        moved = [log for key, log in self._logs.logs.items() if self._is_elsewhere(image, *key, log)]
        if moved:
            logger.info(
                "%d logs are of partitions that were given to other nodes, and go: %s",
                len(moved),
                _first_of([log.name for log in moved]),
            )
        for log in moved:
            self._delete_log(log.topic, log.partition)

    def _is_elsewhere(self, image: MetadataImage, name: str, number: int, log: PartitionLog) -> bool:
        """Whether this is a log of the topic that the metadata knows by that name, and other nodes have its partition."""
        topic, partition = image.topic(name), image.partition(name, number)
        if topic is None or partition is None or self._replicas.node_id in partition.replicas:
            return False
        try:
            return self._logs.id_of(log) == topic.topic_id
        except OSError as error:
            logger.warning("%s is not placed here, and stays: its topic id cannot be read: %s", log.path, error)
            return False

    def _name_unknown(self, image: MetadataImage) -> None:
        unknown = [
            log.path
            for (topic, number), log in self._logs.logs.items()
            if (partition := image.partition(topic, number)) is None or self._replicas.node_id not in partition.replicas
        ]
        if unknown:
            logger.warning(
                "%d logs are of topics or topic ids that the metadata does not know, and stay as they are: %s; a deletion that was cut "
                "short leaves them, or a repair of the metadata: delete their directories when their records are not needed",
                len(unknown),
                _first_of(unknown),
            )

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow one change of the metadata."""
        for topic in delta.deleted_topics:
            failures.attempt(f"deleting topic {topic.name}", partial(self._delete, topic))
        for _, topic in delta.changed_topics:
            self._attempt_to_follow(image, topic)
        for name in self._altered(image, delta):
            failures.attempt(f"applying the settings of topic {name}", partial(self._apply_config, image, name))

    def open_again(self) -> bool:
        """Do what a shortage has kept from being done: open logs, lead partitions, tell who waits for what is gone; whether logs were
        opened."""
        self._retire_all()
        names, self._kept_shut = self._kept_shut, set()
        for name in names:
            topic = self._controller.image.topics_by_name.get(name)
            if topic is not None:
                self._attempt_to_follow(self._controller.image, topic)
        return bool(names)

    def _attempt_to_follow(self, image: MetadataImage, topic: TopicImage) -> None:
        """`_follow_topic`, whose failure concerns no other topic; for want of memory it is tried again, as nothing else may say so."""
        try:
            self._follow_topic(image, topic)
        except Exception as error:
            if isinstance(error, MemoryError):
                self._kept_shut.add(topic.name)
            failures.report(f"following topic {topic.name}", error)

    def _altered(self, image: MetadataImage, delta: MetadataDelta) -> list[str]:
        """The topics whose settings a change may have altered."""
        if any(kind == ResourceType.BROKER for kind, _ in delta.changed_configs):
            return list(image.topics_by_name)
        return [name for kind, name in delta.changed_configs if kind == ResourceType.TOPIC]

    def _follow_topic(self, image: MetadataImage, topic: TopicImage) -> None:
        """Create the logs of new partitions, and take over leaders and in-sync replicas."""
        overrides = image.topic_configs(topic.name)
        defaults = self._controller.topic_defaults
        values = defaults.resolve(overrides) if overrides else defaults.values
        for number, partition_image in enumerate(topic.partitions):
            replica = self._replicas.get(topic.name, number)
            if self._replicas.node_id not in partition_image.replicas:
                if replica is not None:
                    self._give_up(replica)
                continue
            if replica is None and (topic.topic_id, number) in self._elsewhere:
                self._replicas.note_failure(topic.name, topic.topic_id, number)
                continue
            if replica is None:
                config = defaults.log_config_of(overrides)
                try:
                    home = self._home_of(partition_image)
                    log = self._logs.create(topic.name, number, topic.topic_id, config, home)
                    if log.unmade and self._directories_missing:  # the next start must not look for it there
                        log.load()
                except FastqError as error:  # the others are served
                    failures.say(
                        logger.error, f"making {topic.name}-{number}", "%s-%d has no log: %s", topic.name, number, error
                    )
                    self._replicas.note_failure(topic.name, topic.topic_id, number)
                    self._try_again(topic, self._logs.get(topic.name, number))
                    continue
                replica = self._add_replica(log, topic, number, values)
            try:
                moved = replica.apply(partition_image)
            except KafkaError as error:  # the others are served
                failures.say(
                    logger.error,
                    f"following {replica.log.name}",
                    "%s cannot follow leader epoch %d: %s",
                    replica.log.name,
                    partition_image.leader_epoch,
                    error,
                )
                self._try_again(topic, replica.log)
                moved = True
            self.on_placed(replica, partition_image)
            if moved:
                self._purgatory.changed(replica)

    def _try_again(self, topic: TopicImage, log: PartitionLog | None) -> None:
        """Follow the topic once more, later, where it was a shortage: neither the log nor its directory has failed."""
        if log is not None and log.failure is None and log.dir.offline is None:
            self._kept_shut.add(topic.name)

    def _add_replica(
        self, log: PartitionLog, topic: TopicImage, number: int, values: Mapping[str, ConfigValue]
    ) -> Replica:
        """The table gets it once it is whole: one that is there is never made anew, whatever there was no memory for."""
        replica = Replica(log, topic.name, topic.topic_id, number, self._replicas.replication)
        advanced: Callable[[PartitionLog], None] | None = None
        try:
            replica.apply_config(log.config, int(values["min.insync.replicas"]))
            self._throttles.follow(replica, values)
            advanced = partial(self._purgatory.advanced, replica)
            log.on_advance(advanced)
            self._replicas.add(replica)
        except BaseException:
            log.remove_listener(replica.wake)
            if advanced is not None:
                log.remove_listener(advanced)
            raise
        return replica

    def _give_up(self, replica: Replica) -> None:
        """Other nodes have the partition now: its log goes."""
        self._retire(replica)
        self._replicas.remove(replica)  # not before: what there was no memory for is done again while it is there
        logger.info("%s is not placed here any more: its log goes", replica.log.name)
        self._delete_log(replica.topic, replica.partition)

    def _retire(self, replica: Replica) -> None:
        """Tell all who wait for a replica that it is not here any more."""
        replica.retire()
        self._throttles.forget(replica)
        self._purgatory.changed(replica)

    def _delete(self, topic: TopicImage) -> None:
        """Take a topic's replicas out of use, and have its logs deleted: also those that could not be loaded, which have no replica."""
        self._retired_in_part += self._replicas.remove_topic(topic.name, topic.topic_id)
        self._retire_all()
        for number in range(len(topic.partitions)):
            self._elsewhere.discard((topic.topic_id, number))
            self._delete_log(topic.name, number)

    def _retire_all(self) -> None:
        """Retire what deleted topics had here; what there is no memory for is done again, later."""
        for replica in list(self._retired_in_part):
            try:
                self._retire(replica)
            except Exception as error:
                failures.report(f"retiring {replica.log.name}", error)
                if isinstance(error, MemoryError):
                    continue
            self._retired_in_part.remove(replica)

    def _delete_log(self, topic: str, number: int) -> None:
        try:
            self._logs.delete(topic, number)
        except FastqError as error:
            logger.error("cannot delete %s-%d: %s", topic, number, error)

    def _apply_config(self, image: MetadataImage, topic: str) -> None:
        """Bring a topic's settings into force."""
        defaults = self._controller.topic_defaults
        overrides = image.topic_configs(topic)
        values = defaults.resolve(overrides)
        config = defaults.log_config_of(overrides)
        known = image.topic(topic)
        for number in range(len(known.partitions) if known is not None else 0):
            log = self._logs.get(topic, number)
            if log is not None:
                log.apply_config(config)
        for replica in self._replicas.by_name.get(topic.encode(), {}).values():
            replica.apply_config(config, int(values["min.insync.replicas"]))
            self._throttles.follow(replica, values)

    # -- directories

    def _home_of(self, image: PartitionImage) -> str | None:
        """The directory in which the metadata has this node's replica; None where it does not say, or that is not here."""
        pairs = zip(self._controller.directory_ids, self._logs.dirs, strict=False)
        found = {directory_id: log_dir.path for directory_id, log_dir in pairs}
        return found.get(image.directory_of(self._replicas.node_id))

    def _is_home(self, log: PartitionLog, log_dir: LogDir) -> bool:
        """Whether the metadata has a replica in a directory, or knows of none."""
        image = self._controller.image
        if image.features.get(features.METADATA_VERSION, 0) < DIRECTORIES:
            return True
        partition = image.partition(log.topic, log.partition)
        return partition is not None and self._home_of(partition) == log_dir.path

    def _home_changed(self, log: PartitionLog) -> None:
        replica = self._replicas.get(log.topic, log.partition)
        image = self._controller.image.partition(log.topic, log.partition)
        if replica is not None and image is not None:
            self.on_moving(replica, image)

    def _assign(self, replica: Replica, image: PartitionImage) -> None:
        """Have the metadata of a node that is alone know a replica's directory."""
        home = self._logs.moves.home(replica.log)
        directory_id = self._controller.directory_ids[self._logs.dirs.index(home)]
        if image.directory_of(self._replicas.node_id) != directory_id:
            self._controller.assign_directory(replica.topic_id, replica.partition, directory_id)
