"""The partitions that the metadata places on this node: their logs and replicas follow each change of the image.

Rules
- What is in memory follows at once: a deleted topic is not served any more, a new one is.
- What is done to files, and cannot be taken back, follows once the change is on disk (`Controller.when_durable`): a deleted topic's files
  go, settings by which retention or compaction deletes come into force. Else a loss of power would bring a topic back without its records.
- Records of a new log count as on disk only when the record of its topic is.
- The logs of a topic that the metadata does not know are left alone, and named at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from fastq.errors import FastqError, KafkaError

from .config_keys import ResourceType
from .log import failures
from .replicas import Replica

if TYPE_CHECKING:
    from .controller import Controller, MetadataDelta, MetadataImage, TopicImage
    from .log import LogManager, PartitionLog
    from .purgatory import Purgatory
    from .replicas import ReplicaTable
    from .topic_config import TopicDefaults

logger = logging.getLogger(__name__)

ATTACHED_PER_TURN = 200
"""Topics whose logs are attached before others get their turn."""
_UNKNOWN_LOGS_NAMED = 5


class Partitions:
    """Keeps logs and replicas in step with the metadata. Loop thread only.

    Invariant once started: `replicas` holds one replica for each partition that the image places on this node, with its log in `logs`, or
    notes why it has none.
    """

    def __init__(self, controller: Controller, logs: LogManager, replicas: ReplicaTable, purgatory: Purgatory) -> None:
        self._controller = controller
        self._logs = logs
        self._replicas = replicas
        self._purgatory = purgatory
        self._kept_shut: set[str] = set()  # topics with a log that a shortage of descriptors or memory has kept shut
        logs.settle = controller.settle

    def find_logs(self) -> None:
        """Find the logs that are there; after a crash `LogManager.recover` has to follow. Raises KafkaStorageError, OSError."""
        image, defaults = self._controller.image, self._controller.topic_defaults
        self._logs.default_config = defaults.log_config
        self._logs.find(
            {
                name: defaults.log_config_of(overrides)
                for (kind, name), overrides in image.configs.items()
                if kind == ResourceType.TOPIC
            }
        )

    async def start(self) -> None:
        """Take over the logs of the image's partitions, which is on disk, and make those that are not there."""
        image = self._controller.image
        for number, topic in enumerate(image.topics_by_name.values(), 1):
            self._follow_topic(image, topic, None)
            if number % ATTACHED_PER_TURN == 0:
                await asyncio.sleep(0)
        self._name_unknown(image)

    def _name_unknown(self, image: MetadataImage) -> None:
        unknown = [log.path for (topic, _), log in self._logs.logs.items() if topic not in image.topics_by_name]
        if unknown:
            more = len(unknown) - _UNKNOWN_LOGS_NAMED
            logger.warning(
                "%d logs are of topics that the metadata does not know, and stay as they are: %s%s; a deletion that was cut short leaves "
                "them, or a repair of the metadata: delete their directories when their records are not needed",
                len(unknown),
                ", ".join(unknown[:_UNKNOWN_LOGS_NAMED]),
                f" and {more} more" if more > 0 else "",
            )

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow one change of the metadata, which is not on disk yet."""
        retired: list[tuple[str, int]] = []
        for topic in delta.deleted_topics:
            failures.attempt(f"deleting topic {topic.name}", partial(self._retire, topic, retired))
        created: list[PartitionLog] = []
        for _, topic in delta.changed_topics:
            work = partial(self._follow_topic, image, topic, created)
            failures.attempt(f"following topic {topic.name}", work)
        topics = self._altered(image, delta)
        if retired or created or topics:
            defaults = self._controller.topic_defaults

            def carry_out(error: KafkaError | None) -> None:
                for log in created:
                    failures.attempt(f"making {log.name}", partial(self._logs.confirm, log, error))
                if error is None:
                    self._bury(retired)
                    self._apply_configs(image, defaults, topics)

            self._controller.when_durable(carry_out)

    def open_again(self) -> None:
        """Open the logs that a shortage has kept shut."""
        names, self._kept_shut = self._kept_shut, set()
        for name in names:
            topic = self._controller.image.topics_by_name.get(name)
            if topic is not None:
                self._follow_topic(self._controller.image, topic, [])

    def _altered(self, image: MetadataImage, delta: MetadataDelta) -> list[str]:
        """The topics whose settings a change may have altered."""
        if any(kind == ResourceType.BROKER for kind, _ in delta.changed_configs):
            return list(image.topics_by_name)
        return [name for kind, name in delta.changed_configs if kind == ResourceType.TOPIC]

    def _follow_topic(self, image: MetadataImage, topic: TopicImage, created: list[PartitionLog] | None) -> None:
        """Create the logs of new partitions (which are put into `created`; None: their topic is on disk) and take over leaders and
        in-sync replicas."""
        overrides = image.topic_configs(topic.name)
        defaults = self._controller.topic_defaults
        values = defaults.resolve(overrides) if overrides else defaults.values
        min_insync_replicas = int(values["min.insync.replicas"])
        for number, partition_image in enumerate(topic.partitions):
            if self._replicas.node_id not in partition_image.replicas:
                continue
            replica = self._replicas.get(topic.name, number)
            if replica is None:
                config = defaults.log_config_of(overrides)
                try:
                    log = self._logs.create(topic.name, number, topic.topic_id, config, decided=created is None)
                except FastqError as error:  # the others are served
                    logger.error("%s-%d has no log: %s", topic.name, number, error)
                    self._replicas.note_failure(topic.name, topic.topic_id, number)
                    known = self._logs.get(topic.name, number)
                    if known is not None and known.failure is None and known.dir.offline is None:
                        self._kept_shut.add(topic.name)
                    continue
                if created is not None:
                    created.append(log)
                replica = self._add_replica(log, topic, number)
                replica.apply_config(log.config, min_insync_replicas)
            try:
                moved = replica.apply(partition_image)
            except KafkaError as error:  # the others are served
                logger.error(
                    "%s cannot follow leader epoch %d: %s", replica.log.name, partition_image.leader_epoch, error
                )
                moved = True
            if moved:
                self._purgatory.changed(replica)

    def _add_replica(self, log: PartitionLog, topic: TopicImage, number: int) -> Replica:
        replica = Replica(log, topic.name, topic.topic_id, number, self._replicas.replication)
        self._replicas.add(replica)
        log.on_advance(partial(self._purgatory.advanced, replica))
        return replica

    def _retire(self, topic: TopicImage, retired: list[tuple[str, int]]) -> None:
        """Take a topic's replicas out of use, and its logs: also those that could not be loaded, which have no replica."""
        for replica in self._replicas.remove_topic(topic.name, topic.topic_id):
            self._purgatory.changed(replica)
        numbers = range(len(topic.partitions))
        retired.extend((topic.name, number) for number in numbers if self._logs.retire(topic.name, number))

    def _bury(self, retired: Iterable[tuple[str, int]]) -> None:
        for name, number in retired:
            try:
                self._logs.bury(name, number)
            except FastqError as error:
                logger.error("cannot delete %s-%d: %s", name, number, error)

    def _apply_configs(self, image: MetadataImage, defaults: TopicDefaults, topics: Iterable[str]) -> None:
        """Bring the settings of an image into force, which is on disk, for the topics that are still there."""
        now = self._controller.image.topics_by_name
        for name in topics:
            topic, current = image.topics_by_name.get(name), now.get(name)
            if topic is not None and current is not None and topic.topic_id == current.topic_id:
                work: Callable[[], None] = partial(self._apply_config, image, defaults, name)
                failures.attempt(f"applying the settings of topic {name}", work)

    def _apply_config(self, image: MetadataImage, defaults: TopicDefaults, topic: str) -> None:
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
