"""The group coordinator of a broker: which shard a group is in, and the settings and timers of all shards.

Rules: shards are made by leadership of `__consumer_offsets` (see coordinator.runtime). What is asked of all groups at once (lists,
expiry, deleted topics) asks the loaded shards. Offsets of a deleted topic go after its deletion is committed: else a topic of that
name would be read from where the older one was left. What was not loaded then finds them by the topic's id, which an offset is kept
with: the metadata of who loads is never older than that of whoever wrote, as leadership is given in its order. Offsets without an id
(value version 1, logs of older brokers) are gone from this node's disk before a topic of that name is made here, and what is not
loaded yet has none of topics that are younger than the begin of its load. Source: GroupCoordinatorService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastq.errors import ErrorCode, KafkaError, error_for_code
from fastq.values import replace
from fastq_broker import group_config
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.topics import OFFSETS_TOPIC
from fastq_broker.coordinator import CoordinatorRuntime, ShardContext
from fastq_broker.log import failures
from fastq_broker.turns import Repeated

from .classic_state import Settings
from .consumer_change import ConsumerGroupSettings
from .offsets import NO_ID, NamedId
from .shard import GroupShard, ShardSettings

if TYPE_CHECKING:
    from fastq_broker.config import BrokerConfig
    from fastq_broker.controller import MetadataDelta, MetadataImage
    from fastq_broker.log import PartitionLog
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica

    from .group import Group

logger = logging.getLogger(__name__)

FOLLOWED_MS = 2_000
"""A follower that has nothing to fetch asks twice a second, and its last fetch but one counts. No session should be shorter."""

A = TypeVar("A")
R = TypeVar("R")


class GroupCoordinator:
    """All groups that this node coordinates. Loop thread only."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.settings = shard_settings(ports.config)
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(ports, OFFSETS_TOPIC, self._make_shard)
        interval_ms = ports.config.offsets_retention_check_interval_ms
        self._expiry = Repeated(ports.loop, interval_ms / 1000, self.expire_offsets)
        self._settings_of: dict[str, ConsumerGroupSettings] = {}
        self._before_load: dict[int, MetadataImage] = {}
        """The metadata as it was when the load of a partition began, for those that are not loaded."""
        self._leaving: list[_Leaving] = []
        ports.controller.subscribe(self._metadata_changed)
        ports.controller.before_creation = self._before_creation

    def _make_shard(self, context: ShardContext) -> GroupShard:
        return GroupShard(
            context,
            self.settings,
            lambda: self._ports.image,
            self.settings_of,
            partial(self._gone, context.partition),
            partial(self._is_surely_here, context.replica),
        )

    def _is_surely_here(self, replica: Replica) -> bool:
        """Whether no other node leads a partition by now: a controller would have said so, or its followers would follow no more."""
        cluster = self._ports.cluster
        return cluster is None or cluster.is_heard or replica.is_followed(FOLLOWED_MS)

    # --- life ---

    def follow(self) -> None:
        """Leadership may have changed: load and unload."""
        self._expiry.start()
        self.runtime.follow()
        loading, image = self.runtime.not_loaded(), self._ports.image
        self._before_load = {partition: self._before_load.get(partition, image) for partition in loading}

    def close(self) -> None:
        """The broker stops: who waits is turned away."""
        self._expiry.close()
        self.runtime.close()

    # --- groups ---

    @property
    def serves_consumer_protocol(self) -> bool:
        """Whether groups of KIP-848 are served: the feature is finalized, and the configuration does not turn them off."""
        finalized = self._ports.controller.finalized_features.get("group.version", 0)
        return finalized >= 1 and "consumer" in self._ports.config.group_coordinator_rebalance_protocols

    def shard(self, group_id: str) -> GroupShard:
        """The shard of a group. Raises CoordinatorNotAvailable, NotCoordinator, CoordinatorLoadInProgress."""
        return self.runtime.shard_for(group_id)

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that a group is in."""
        return self.runtime.partition_for(group_id)

    @property
    def loading(self) -> bool:
        """Whether a partition is not loaded yet: a list of all groups would be short."""
        return self.runtime.loading

    def groups(self) -> Iterator[Group]:
        """All groups that are loaded here, of both kinds."""
        return (group for shard in self.runtime.shards() for group in shard.groups.values())

    def join_error(self, group_id: str, session_timeout_ms: int) -> int:
        """Why a JoinGroup cannot be right, whatever its group says."""
        config = self._ports.config
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def answer(self, ask: Callable[[Callable[[A], None]], object], respond: Callable[[A], R]) -> R | Awaitable[R]:
        """Call `ask(answer)`; what `answer` is told makes the response: at once, or awaited when it comes later.

        A client that goes away meanwhile cancels the awaitable; what comes then is dropped.
        """
        got: list[A] = []
        waiting: list[asyncio.Future[A]] = []

        def take(result: A) -> None:
            if not waiting:
                got.append(result)
            elif not waiting[0].done():
                waiting[0].set_result(result)

        ask(take)
        if got:
            return respond(got[0])
        waiting.append(self._ports.loop.create_future())

        async def later() -> R:
            return respond(await waiting[0])

        return later()

    def once_durable(
        self, group_ids: Iterable[str], respond: Callable[[Mapping[str, KafkaError]], R]
    ) -> R | Awaitable[R]:
        """Respond once all that was written so far for these groups is as durable as their logs promise, or with the errors, by group, that
        keep it from becoming so, in time: what an answer tells must not be undone by a crash."""
        waiting: dict[GroupShard, list[str]] = {}
        for group_id in group_ids:
            shard = self.runtime.shard_of(self.runtime.partition_for(group_id))
            if shard is not None:
                waiting.setdefault(shard, []).append(group_id)

        def ask(take: Callable[[Mapping[str, KafkaError]], None]) -> None:
            left, errors = len(waiting), dict[str, KafkaError]()

            def done(groups: list[str], error: KafkaError | None) -> None:
                nonlocal left
                left -= 1
                if error is not None:
                    errors.update(dict.fromkeys(groups, error))
                if left <= 0:
                    take(errors)

            for shard, groups in waiting.items():
                shard.when_durable(partial(done, groups))
            if not waiting:
                take(errors)

        return self.answer(ask, respond)

    def settings_of(self, group_id: str) -> ConsumerGroupSettings:
        """What holds for one group of the consumer protocol: its own settings, else the broker's as altered."""
        overrides = self._ports.image.configs_of(ResourceType.GROUP, group_id)
        if not overrides:
            group_id = ""  # no group's id, so it stands for all those without settings of their own
        known = self._settings_of.get(group_id)
        if known is None:
            values = group_config.in_force(overrides, self._ports.controller.layers)
            known = self._settings_of[group_id] = replace(
                self.settings.consumer,
                session_timeout_ms=values[group_config.SESSION],
                heartbeat_interval_ms=values[group_config.HEARTBEAT],
                assignment_interval_ms=values[group_config.ASSIGNMENT],
            )
        return known

    # --- upkeep ---

    def expire_offsets(self) -> int:
        """Delete the offsets and groups whose time is over; answers how many records that took."""
        count = 0
        for shard in self.runtime.shards():
            try:
                count += shard.expire_offsets()
            except Exception:
                logger.exception("partition %d: expiring offsets failed", shard.context.partition)
        if count:
            logger.info("%d records of expired offsets and groups were deleted", count)
        return count

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Topics that are gone take their offsets along; groups that read what has changed look at it again."""
        altered = {name for kind, name in delta.changed_configs if kind == ResourceType.GROUP}
        if altered or any(kind == ResourceType.BROKER for kind, _ in delta.changed_configs):
            self._settings_of.clear()
        for shard in self.runtime.shards():
            place = f"following the metadata in the groups of partition {shard.context.partition}"
            failures.attempt(place, partial(shard.consumer.metadata_changed, delta))
            if altered:
                failures.attempt(place, partial(shard.consumer.settings_changed, altered))
        deleted = frozenset(topic.name for topic in delta.deleted_topics) - {OFFSETS_TOPIC}
        if deleted:
            leaving = _Leaving(deleted, set(self.runtime.not_loaded()))
            self._leaving.append(leaving)
            asked = [shard for shard in self.runtime.shards() if self._can_be_read(leaving, shard.context.replica.log)]
            self._wait_until_gone(leaving, [log for shard in asked if (log := self._delete(leaving, shard, deleted))])
            self._forget_left()

    def _gone(self, partition: int, topics: Set[NamedId]) -> Set[NamedId]:
        """Which of the topics that a partition has just loaded offsets of are no more, or others by now: they were deleted while nobody
        coordinated their groups, or this was loading."""
        now = self._ports.image
        before = self._before_load.pop(partition, now)

        def is_there(name: str, topic_id: bytes) -> bool:
            found = now.topic(name)
            if found is None:
                return False
            older = before.topic(name)
            return topic_id == found.topic_id or (
                topic_id == NO_ID and older is not None and older.topic_id == found.topic_id
            )

        return {named for named in topics if not is_there(*named)}

    @staticmethod
    def _can_be_read(leaving: _Leaving, log: PartitionLog) -> bool:
        """Whether a log is loaded, or can be. Without descriptors or memory it refuses tombstones too, which have to follow."""
        try:
            log.load()
        except KafkaError:
            leaving.unread.add(log.partition)
            return False
        return True

    @staticmethod
    def _delete(leaving: _Leaving, shard: GroupShard, topics: frozenset[str]) -> PartitionLog | None:
        """Delete what a shard has of topics that are gone; answers its log where there was any. What cannot be written has to follow,
        unless its id tells it from what a younger topic of that name has."""
        try:
            if not shard.topics_deleted(topics):
                return None
        except Exception as error:
            failures.report(f"deleting offsets of deleted topics in {shard.context.partition}", error)
            leaving.unread.add(shard.context.partition)
            return None
        if any(name in topics and topic_id == NO_ID for name, topic_id in shard.offsets.topics()):
            leaving.unread.add(shard.context.partition)
        return shard.context.replica.log

    def _delete_unread(self, leaving: _Leaving) -> None:
        """What could not be deleted, as its log could not be read or written to, is once more. Raises KafkaStorageError where it still
        cannot be."""
        image = self._ports.image
        # The others another node has made.
        gone = frozenset(name for name in leaving.names if image.topic(name) is None)
        for partition in sorted(leaving.unread):
            shard = self.runtime.shard_of(partition)
            if shard is not None:  # else another node's to delete, or found at its next load
                log = shard.context.replica.log
                if self._can_be_read(leaving, log):
                    leaving.unread.discard(partition)
                    self._delete(leaving, shard, gone)
                    self._wait_until_gone(leaving, [log])
                if partition in leaving.unread:
                    raise _not_gone(leaving, log.topic, partition)
            leaving.unread.discard(partition)

    def _wait_until_gone(self, leaving: _Leaving, logs: Iterable[PartitionLog]) -> None:
        """Wait until what these logs have by now is on disk."""
        ends = {log: log.log_end_offset for log in logs if self._can_be_read(leaving, log)}
        leaving.logs.update(ends)
        for log, end in ends.items():
            log.durability.wait(end, partial(self._offsets_gone, leaving, log))

    def _follow_loads(self, leaving: _Leaving) -> None:
        """What was loading when topics were deleted has forgotten their offsets when it is loaded; that has to get to the disk too."""
        loaded = leaving.loading - set(self.runtime.not_loaded())
        leaving.loading -= loaded
        shards = [self.runtime.shard_of(partition) for partition in loaded]
        self._wait_until_gone(leaving, [shard.context.replica.log for shard in shards if shard is not None])

    def _offsets_gone(self, leaving: _Leaving, log: PartitionLog, error: KafkaError | None) -> None:
        """What a log had of these topics is gone from the disk, or the log is; with an error it is asked for again when one of them is
        made."""
        if error is None or log.durability.deleted is not None:
            leaving.logs.pop(log, None)
            self._forget_left()

    def _forget_left(self) -> None:
        self._leaving = [leaving for leaving in self._leaving if leaving.logs or leaving.loading or leaving.unread]

    def _before_creation(self, names: frozenset[str]) -> None:
        """Have offsets of older topics of these names gone from the disk, in this call. Raises KafkaStorageError."""
        for leaving in [leaving for leaving in self._leaving if leaving.names & names]:
            self._follow_loads(leaving)
            self._delete_unread(leaving)
            for partition in leaving.loading:
                raise _not_gone(leaving, OFFSETS_TOPIC, partition)
            for log, end in list(leaving.logs.items()):
                if not (self._can_be_read(leaving, log) and log.flushed_now(end)):
                    raise _not_gone(leaving, log.topic, log.partition)
        self._forget_left()


class _Leaving:
    """Deleted topics, and the logs that their offsets are not gone from on disk, each with the offset behind its tombstones. `loading` are
    the partitions that were not loaded then, and may have such offsets; `unread` those whose log could not be read, or written to."""

    __slots__ = ("loading", "logs", "names", "unread")

    def __init__(self, names: frozenset[str], loading: set[int]) -> None:
        self.names = names
        self.logs: dict[PartitionLog, int] = {}
        self.loading = loading
        self.unread: set[int] = set()


def _not_gone(leaving: _Leaving, topic: str, partition: int) -> KafkaError:
    return error_for_code(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"offsets that groups have committed for a deleted topic of that name (one of {', '.join(sorted(leaving.names))}) "
        f"are {'still being loaded' if partition in leaving.loading else 'not deleted from the disk yet'}; try it again",
        topic=topic,
        partition=partition,
    )


def shard_settings(config: BrokerConfig) -> ShardSettings:
    """What the broker's configuration says about groups."""
    return ShardSettings(
        Settings(config.group_initial_rebalance_delay_ms, config.group_max_size),
        consumer_settings(config),
        config.offset_metadata_max_bytes,
        config.offsets_retention_minutes * 60_000,
        config.offsets_commit_timeout_ms,
    )


def consumer_settings(config: BrokerConfig) -> ConsumerGroupSettings:
    """What the broker's configuration says about groups of the consumer protocol."""
    return ConsumerGroupSettings(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        max_size=config.group_consumer_max_size,
        assignors=tuple(config.group_consumer_assignors),
        migration_policy=config.group_consumer_migration_policy,
        assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        classic_max_size=config.group_max_size,
    )
