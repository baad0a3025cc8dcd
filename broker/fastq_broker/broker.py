"""A broker node: configuration, controller, logs and network, wired together.

Rules
- The controller's image decides which partitions are here; each delta creates, changes and deletes logs and replicas.
- Order of a start: directories are locked, addresses bound, metadata replayed, this node registered, logs attached, and only then
  is a connection accepted. A stop answers and closes connections, then closes the metadata (which fences this node, and
  syncs by the logs' flusher), then the logs, and ends with the marker of a clean shutdown.
- Work that is not a request (retention, compaction, flushes, checkpoints, snapshots) runs in `_housekeep`, in bounded pieces.
- The clock is a parameter: milliseconds since 1970.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from fastq.errors import FastqError

from .config_keys import ResourceType
from .controller import Controller
from .fetch_session import FetchSessionCache
from .groups.service import GroupCoordinator
from .log import LogCleaner, LogManager
from .purgatory import Purgatory
from .replicas import Replica, ReplicaTable
from .router import Router
from .server import Limits, ListenError, Server
from .topic_config import cleaner_config
from .transactions import TransactionCoordinator

if TYPE_CHECKING:
    from .config import BrokerConfig, Listener
    from .controller import MetadataDelta, MetadataImage, TopicImage
    from .coordinator import CoordinatorRuntime
    from .log import LogDir, PartitionLog

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 0.1
PRELOAD_S = 0.05
"""After the start, the handlers of all APIs are loaded: the first client shall not wait for that."""


class StartFailed(Exception):
    """The broker cannot start; the message says why and what to do."""


class Coordinator(Protocol):
    """A part of the broker whose state lives in an internal topic."""

    @property
    def runtime(self) -> CoordinatorRuntime[Any]:
        """Its shards."""

    def follow(self) -> None:
        """Leadership may have changed: load and unload."""

    def close(self) -> None:
        """The broker stops."""


def system_clock() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker:
    """One node. Loop thread only.

    Invariants once started: `replicas` holds one replica for each partition that the image places on this node, with its log in `logs`;
    `listening` are the addresses it serves, `advertised_listeners` those it tells.
    """

    def __init__(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], int] = system_clock
    ) -> None:
        self.config = config
        self.loop = loop
        self.clock = clock
        self.node_id = config.node_id
        self.replicas = ReplicaTable(config.node_id)
        self.purgatory = Purgatory(loop)
        self.fetch_sessions = FetchSessionCache(config.max_incremental_fetch_session_cache_slots)
        self.router = Router(self)
        self.server = Server(loop, self.router, _limits(config))
        self.read_ahead = self.server.read_ahead
        self.logs = LogManager(
            config.log_dirs,
            clock=clock,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            producer_expiration_ms=config.producer_id_expiration_ms,
            producer_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        )
        self.cleaner = LogCleaner(self.logs)
        self.controller = Controller(config, clock=clock, log_dir=self._metadata_dir())
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.coordinators: list[Coordinator] = [self.groups, self.transactions]
        """What follows the leadership of internal topics, and is closed before connections are: it answers who waits."""
        self.advertised_listeners: list[Listener] = []
        self.listening: list[str] = []
        self._housekeeper: asyncio.TimerHandle | None = None
        self._opened: list[Callable[[], None]] = []
        """How to close what a start has opened so far. What was not opened must not be closed: that writes checkpoints."""

    async def start(self) -> None:
        """Start serving. Raises StartFailed, ConfigError."""
        try:
            self.logs.lock()
            await self._bind()
            self.logs.attach(self.loop)
            self.controller.open()
            self._opened.append(self.controller.close)
            self.controller.register_broker(self.advertised_listeners)
            self._attach_logs()
            for coordinator in self.coordinators:
                coordinator.follow()
            await self.server.serve()
        except ListenError as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            raise StartFailed(f"cannot open the data directory: {error}") from error
        self._housekeep()
        self.loop.call_later(PRELOAD_S, self.router.versions)

    async def close(self) -> bool:
        """Answer what is in progress, close connections, write everything down; whether that went well.

        Safe after a failed start.
        """
        if self._housekeeper is not None:
            self._housekeeper.cancel()
        self.purgatory.end_all()
        for coordinator in self.coordinators:
            coordinator.close()
        await self.server.stop()
        opened, self._opened = self._opened, []
        clean = True
        for close in opened:
            try:
                close()
            except Exception:
                logger.exception("the stop was not clean; the next start recovers")
                clean = False
        return clean

    def _metadata_dir(self) -> LogDir | None:
        """The log directory that holds the metadata log, where it is one of log.dirs: they share its flusher and its fate."""
        wanted = os.path.abspath(self.config.metadata_log_dir)
        return next((log_dir for log_dir in self.logs.dirs if log_dir.path == wanted), None)

    # --- addresses ---

    async def _bind(self) -> None:
        """Bind all listeners; advertise the port that was picked where none was named."""
        ports: dict[str, int] = {}
        for listener in self.config.listeners:
            ports[listener.name] = await self.server.bind(listener.host, listener.port, name=listener.name)
            host = f"[{listener.host}]" if ":" in listener.host else listener.host or "*"
            self.listening.append(f"{host}:{ports[listener.name]}")
        self.advertised_listeners = [
            listener if listener.port else replace(listener, port=ports.get(listener.name, 0))
            for listener in self.config.advertised_listeners
        ]

    # --- metadata to logs ---

    def _attach_logs(self) -> None:
        """Open a log for each partition of the image that is placed here."""
        image = self.controller.image
        defaults = self.controller.topic_defaults
        self.logs.default_config = defaults.log_config
        self.cleaner.apply_config(cleaner_config(defaults.layers))
        self.logs.start(
            {
                name: defaults.log_config_of(overrides)
                for (kind, name), overrides in image.configs.items()
                if kind == ResourceType.TOPIC
            }
        )
        self._opened.append(self.cleaner.close)
        self._opened.append(lambda: self.logs.close(broker_epoch=self.controller.broker_epoch))
        for topic in image.topics_by_name.values():
            self._apply_topic(image, topic)
        self.controller.subscribe(self._metadata_changed)

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow one committed change of the metadata."""
        for topic in delta.deleted_topics:
            self._delete_topic(topic)
        for _, topic in delta.changed_topics:
            self._apply_topic(image, topic)
        changed = set(delta.changed_configs)
        if any(kind == ResourceType.BROKER for kind, _ in changed):
            self.cleaner.apply_config(cleaner_config(self.controller.topic_defaults.layers))
            for topic in image.topics_by_name.values():
                self._apply_config(image, topic.name)
        else:
            for kind, name in changed:
                if kind == ResourceType.TOPIC:
                    self._apply_config(image, name)
        for coordinator in self.coordinators:
            coordinator.follow()

    def _apply_topic(self, image: MetadataImage, topic: TopicImage) -> None:
        """Create the logs of new partitions and take over leaders and in-sync replicas."""
        overrides = image.topic_configs(topic.name)
        defaults = self.controller.topic_defaults
        values = defaults.resolve(overrides) if overrides else defaults.values
        min_insync_replicas = int(values["min.insync.replicas"])
        for number, partition_image in enumerate(topic.partitions):
            if self.node_id not in partition_image.replicas:
                continue
            replica = self.replicas.get(topic.name, number)
            if replica is None:
                try:
                    log = self.logs.create(topic.name, number, topic.topic_id, defaults.log_config_of(overrides))
                except FastqError as error:  # the others are served
                    logger.error("%s-%d has no log: %s", topic.name, number, error)
                    self.replicas.note_failure(topic.name, topic.topic_id, number)
                    continue
                replica = self._add_replica(log, topic, number)
                replica.apply_config(log.config, min_insync_replicas)
            if replica.leader_epoch != partition_image.leader_epoch:
                replica.log.assign_leader_epoch(partition_image.leader_epoch)
                replica.leader_epoch = partition_image.leader_epoch
                self.purgatory.changed(replica)
            replica.leader_id = partition_image.leader
            replica.isr_size = len(partition_image.isr)
            replica.followers = frozenset(partition_image.replicas) - {self.node_id}

    def _add_replica(self, log: PartitionLog, topic: TopicImage, number: int) -> Replica:
        replica = Replica(log, topic.name, topic.topic_id, number)
        self.replicas.add(replica)
        log.on_advance(partial(self.purgatory.advanced, replica))
        return replica

    def _delete_topic(self, topic: TopicImage) -> None:
        """Remove a topic's replicas, and its logs: also those that could not be loaded, which have no replica."""
        for replica in self.replicas.remove_topic(topic.name, topic.topic_id):
            self.purgatory.changed(replica)
        for number in range(len(topic.partitions)):
            try:
                self.logs.delete(topic.name, number)
            except FastqError as error:
                logger.error("cannot delete %s-%d: %s", topic.name, number, error)

    def _apply_config(self, image: MetadataImage, topic: str) -> None:
        """Use a topic's settings as they are now."""
        overrides = image.topic_configs(topic)
        defaults = self.controller.topic_defaults
        values = defaults.resolve(overrides)
        config = defaults.log_config_of(overrides)
        self.logs.update_config(topic, config)
        for replica in self.replicas.by_name.get(topic.encode(), {}).values():
            replica.apply_config(config, int(values["min.insync.replicas"]))

    # --- housekeeping ---

    def _housekeep(self) -> None:
        """A bounded piece of what is not a request; an error in it is logged and stops nothing."""
        self._housekeeper = self.loop.call_later(HOUSEKEEPING_S, self._housekeep)
        now_ms = self.clock()
        try:
            self.logs.tick(now_ms)
            self.cleaner.tick(now_ms)
            self.controller.tick(now_ms)
        except Exception:
            logger.exception("housekeeping failed")


def _limits(config: BrokerConfig) -> Limits:
    """The server's limits, from what DescribeConfigs tells."""
    return Limits(
        send_buffer_bytes=config.socket_send_buffer_bytes,
        receive_buffer_bytes=config.socket_receive_buffer_bytes,
        backlog=config.socket_listen_backlog_size,
        request_bytes_max=config.socket_request_max_bytes,
        non_produce_request_bytes_max=config.non_produce_request_max_bytes,
        queued_bytes_max=config.queued_max_request_bytes,
        connections_max=config.max_connections,
        connections_max_per_ip=config.max_connections_per_ip,
        connections_max_per_ip_overrides=config.max_connections_per_ip_overrides,
        idle_ms=config.connections_max_idle_ms,
    )
