"""The group coordinator of a broker: which shard a group is in, and the settings and timers of all shards.

Rules: shards are made by leadership of `__consumer_offsets` (see coordinator.runtime). What is asked of all groups at once (lists,
expiry, deleted topics) asks the loaded shards. Source: GroupCoordinatorService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from fastq_broker import group_config
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller.topics import OFFSETS_TOPIC
from fastq_broker.coordinator import CoordinatorRuntime, ShardContext

from .classic_state import Settings
from .consumer_change import ConsumerGroupSettings
from .group import INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, NONE
from .shard import GroupShard, ShardSettings

if TYPE_CHECKING:
    from fastq.errors import KafkaError
    from fastq_broker.broker import Broker
    from fastq_broker.config import BrokerConfig
    from fastq_broker.controller import MetadataDelta, MetadataImage

logger = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")


class GroupCoordinator:
    """All groups that this node coordinates. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.settings = shard_settings(broker.config)
        self.runtime: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(broker, OFFSETS_TOPIC, self._make_shard)
        self._expiry: asyncio.TimerHandle | None = None
        self._settings_of: dict[str, ConsumerGroupSettings] = {}
        broker.controller.subscribe(self._metadata_changed)

    def _make_shard(self, context: ShardContext) -> GroupShard:
        return GroupShard(context, self.settings, lambda: self._broker.controller.image, self.settings_of)

    # --- life ---

    def follow(self) -> None:
        """Leadership may have changed: load and unload."""
        if self._expiry is None:
            self._schedule_expiry()
        self.runtime.follow()

    def close(self) -> None:
        """The broker stops: who waits is turned away."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.runtime.close()

    # --- groups ---

    @property
    def serves_consumer_protocol(self) -> bool:
        """Whether groups of KIP-848 are served: the feature is finalized, and the configuration does not turn them off."""
        finalized = self._broker.controller.finalized_features.get("group.version", 0)
        return finalized >= 1 and "consumer" in self._broker.config.group_coordinator_rebalance_protocols

    def shard(self, group_id: str) -> GroupShard:
        """The shard of a group. Raises CoordinatorNotAvailable, NotCoordinator, CoordinatorLoadInProgress."""
        return self.runtime.shard_for(group_id)

    def join_error(self, group_id: str, session_timeout_ms: int) -> int:
        """Why a JoinGroup cannot be right, whatever its group says."""
        config = self._broker.config
        if not group_id:
            return INVALID_GROUP_ID
        if not config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms:
            return INVALID_SESSION_TIMEOUT
        return NONE

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
        waiting.append(self._broker.loop.create_future())

        async def later() -> R:
            return respond(await waiting[0])

        return later()

    def once_durable(self, group_ids: Iterable[str], respond: Callable[[KafkaError | None], R]) -> R | Awaitable[R]:
        """Respond once all that was written so far for these groups is as durable as their log promises, or with the error that
        keeps it from becoming so: what an answer tells must not be undone by a crash."""
        found = {self.runtime.shard_of(self.runtime.partition_for(group_id)) for group_id in group_ids}
        contexts = [shard.context for shard in found if shard is not None]

        def ask(take: Callable[[KafkaError | None], None]) -> None:
            left, failed = len(contexts), None

            def done(error: KafkaError | None) -> None:
                nonlocal left, failed
                left, failed = left - 1, failed or error
                if left <= 0:
                    take(failed)

            for context in contexts:
                context.when_durable(done)
            if not contexts:
                take(None)

        return self.answer(ask, respond)

    def settings_of(self, group_id: str) -> ConsumerGroupSettings:
        """What holds for one group of the consumer protocol: its own settings, else the broker's as altered."""
        overrides = self._broker.controller.image.configs_of(ResourceType.GROUP, group_id)
        if not overrides:
            group_id = ""  # no group's id, so it stands for all those without settings of their own
        known = self._settings_of.get(group_id)
        if known is None:
            values = group_config.in_force(overrides, self._broker.controller.layers)
            known = self._settings_of[group_id] = replace(
                self.settings.consumer,
                session_timeout_ms=values[group_config.SESSION],
                heartbeat_interval_ms=values[group_config.HEARTBEAT],
                assignment_interval_ms=values[group_config.ASSIGNMENT],
            )
        return known

    # --- upkeep ---

    def _schedule_expiry(self) -> None:
        interval_ms = self._broker.config.offsets_retention_check_interval_ms
        self._expiry = self._broker.loop.call_later(interval_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._schedule_expiry()
        self.expire_offsets()

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
            shard.consumer.metadata_changed(delta)
            if altered:
                shard.consumer.settings_changed(altered)
        deleted = frozenset(topic.name for topic in delta.deleted_topics) - {OFFSETS_TOPIC}
        if deleted:
            for shard in self.runtime.shards():
                shard.topics_deleted(deleted)


def shard_settings(config: BrokerConfig) -> ShardSettings:
    """What the broker's configuration says about groups."""
    return ShardSettings(
        Settings(config.group_initial_rebalance_delay_ms, config.group_max_size),
        consumer_settings(config),
        config.offset_metadata_max_bytes,
        config.offsets_retention_minutes * 60_000,
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
