"""A broker node: configuration, controller, logs and network, wired together.

Rules
- The controller's image decides which partitions are here; `partitions` has logs and replicas follow it.
- Order of a start: addresses are bound (before that nothing is made on the disk), directories locked, metadata replayed, this node
  registered, logs attached, and only then is a connection accepted. One that fails ends what it has begun.
- A stop answers and closes connections, then closes the metadata (which fences this node, and syncs by the logs' flusher), then the
  logs, and ends with the marker of a clean shutdown.
- One of several (`cluster`) hands over what it leads first. What it may serve is the active controller's to say. One that is a controller
  only has no logs but the metadata's, and serves no clients.
- Work that is not a request (retention, compaction, flushes, checkpoints, snapshots) runs in `_housekeep`, in bounded pieces.
- Time, randomness, disk, network and threads are parameters (`surroundings.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from fastq.errors import FastqError

from .cluster import Halted
from .config_cluster import is_among_others
from .config_keys import ResourceType
from .controller import Controller, MetadataDelta
from .descriptors import DescriptorCount, plan_descriptors, raise_limit
from .fail_closed import warning_of
from .fetch_session import INT32_MAX, FetchSessionCache
from .groups.service import GroupCoordinator
from .listeners import ListenError
from .log import LogCleaner, LogManager, failures
from .log.byte_rate import ByteRate
from .log.log_dir import advice_for
from .log.recovery_progress import RecoveryStopped
from .log.space import SpaceGuard
from .mirror_sources import MirrorSources
from .partitions import Partitions
from .ports import Ports
from .producer_ids import ProducerIdPool
from .purgatory import Purgatory
from .replicas import ReplicaTable
from .router import Router
from .server import Limits, Server
from .surroundings import Surroundings
from .throttles import MOVES_RATE, ReplicationThrottles, bound_of
from .topic_config import BrokerLayers, cleaner_config, cordoned_dirs, space_marks
from .transactions import TransactionCoordinator
from .turns import Repeated

if TYPE_CHECKING:
    from .cluster.node import ClusterNode
    from .config import BrokerConfig, Listener
    from .controller import MetadataImage
    from .coordinator import CoordinatorRuntime
    from .descriptors import DescriptorPlan
    from .log import LogDir

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 0.1
LOOKED_UP_S = 0.05
"""uvloop looks up the address of each connection in a thread of its own, numbers too: one that is given up has to end before the loop."""
PRELOAD_S = 0.05
"""After the start, the handlers of all APIs are loaded: the first client shall not wait for that."""


class StartFailed(Exception):
    """The broker cannot start; the message says why and what to do."""


class StartStopped(StartFailed):
    """The start was told to stop."""


class Coordinator(Protocol):
    """A part of the broker whose state lives in an internal topic."""

    @property
    def runtime(self) -> CoordinatorRuntime[Any]:
        """Its shards."""

    def follow(self) -> None:
        """Leadership may have changed: load and unload."""

    def close(self) -> None:
        """The broker stops."""


class Broker(Ports):
    """One node. Loop thread only.

    Invariants once started: `replicas` holds one replica for each partition that the image places on this node, with its log in `logs`;
    `listening` are the addresses it serves, `advertised_listeners` those it tells.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        surroundings: Surroundings | None = None,
        descriptors: DescriptorPlan | None = None,
    ) -> None:
        """`surroundings`: None for this machine. `descriptors` is how the process divides its descriptors (None: by its limit as it is).
        Raises OSError for want of descriptors or threads."""
        descriptors = descriptors or plan_descriptors(raise_limit(), logs="broker" in config.process_roles)
        self.surroundings = here = surroundings or Surroundings()
        self.config = config
        self.loop = loop
        self.clock = here.clock
        self.monotonic_ms = here.monotonic_ms
        self.node_id = config.node_id
        shared = DescriptorCount(descriptors.connections)
        self._reserve: DescriptorCount | None = None
        """Of the connections of other nodes, where they have listeners that are not for clients."""
        if len(config.listeners) > 1 or is_among_others(config):
            shared = DescriptorCount(descriptors.connections - descriptors.reserve)
            self._reserve = DescriptorCount(descriptors.reserve, beyond=shared)
        self.cluster = self._make_cluster()
        self.replicas = ReplicaTable(
            config.node_id, None if self.cluster is None else self.cluster.replication, lambda: self.image
        )
        self.purgatory = Purgatory(loop)
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, lambda: here.random.randint(1, INT32_MAX)
        )
        self.router = Router(self)
        self.server = Server(loop, _limits(config), shared, here)
        self.read_ahead = self.server.read_ahead
        self.throttles = ReplicationThrottles(config, here.monotonic_ms)
        self.mirror_sources = MirrorSources(config.mirror_sources, loop, here)
        self.logs = LogManager(
            config.log_dirs,
            clock=here.clock,
            monotonic_ms=here.monotonic_ms,
            files=here.files,
            flusher=here.flusher,
            randomness=here.random,
            threads=here.threads,
            fd_budget=descriptors.files,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            watermark_interval_ms=None
            if self.cluster is None
            else config.replica_high_watermark_checkpoint_interval_ms,
            producer_expiration_ms=config.producer_id_expiration_ms,
            producer_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        )
        self.logs.moves.threads = config.num_replica_alter_log_dirs_threads
        self.logs.moves.rate = ByteRate(
            windows=config.alter_log_dirs_replication_quota_window_num,
            window_s=config.alter_log_dirs_replication_quota_window_size_seconds,
        )
        self.cleaner = LogCleaner(self.logs)
        self.controller = Controller(
            config,
            clock=here.clock,
            monotonic_ms=here.monotonic_ms,
            log_dir=self._metadata_dir(),
            files=self.logs.files,
            budget=self.logs.budget,
            surroundings=here,
        )
        self.space = self._guard_space(here)
        self.space.apply(space_marks(BrokerLayers(config)))
        self.partitions = Partitions(self.controller, self.logs, self.replicas, self.purgatory, self.throttles)
        if self.cluster is not None:
            self.partitions.on_placed = self.partitions.on_moving = self.cluster.placed
        self.producer_ids = ProducerIdPool(
            self._allocate_producer_ids if self.cluster is None else self.cluster.allocate_producer_ids
        )
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.coordinators: list[Coordinator] = [self.groups, self.transactions]
        """What follows the leadership of internal topics, and is closed before connections are: it answers who waits."""
        self.advertised_listeners: list[Listener] = []
        self.listening: list[str] = []
        self._housekeeper: Repeated | None = None
        self._giving_up = False
        self.housekept_s = loop.time()
        """When housekeeping was last done, on the loop's clock."""
        self.on_late: Callable[[float], object] = lambda seconds: None
        """Hears each time by how many seconds the loop was late for it."""
        self._opened: list[Callable[[], bool | None]] = []
        """How to close what a start has opened so far (False: not cleanly, which has been said). What was not opened must not be closed:
        that writes checkpoints."""

    async def start(self) -> None:
        """Start serving; while logs are recovered, in a thread, the loop goes on. Raises StartFailed, ConfigError: then all is closed."""
        try:
            await self._start()
        except BaseException:
            self.stop_start()
            await self.close()
            raise

    async def _start(self) -> None:
        try:
            await self._bind()
            self.logs.lock(self.config.metadata_log_dir)
            self.space.look_now()
            self.logs.attach(self.loop)
            await self._know_metadata()
            unprotected = [*self.config.unprotected, *self.controller.unprotected]
            if unprotected:
                logger.warning("%s", warning_of(unprotected))
            if self.cluster is None or self.cluster.is_broker:
                await self._attach_logs()
                for coordinator in self.coordinators:
                    coordinator.follow()
                if self.cluster is not None:
                    await self.cluster.loaded()
                self.server.serve(self.router)
        except Halted as error:
            if self._giving_up:
                raise StartStopped("stopped before it was ready") from None
            raise StartFailed(str(error)) from error
        except RecoveryStopped:
            raise StartStopped("stopped before it was ready: the next start recovers the logs again") from None
        except ListenError as error:
            raise StartFailed(str(error)) from error
        except OSError as error:
            raise StartFailed(f"cannot open the data directory: {error}; {advice_for(error)}") from error
        self._housekeep()
        self._housekeeper = Repeated(self.loop, HOUSEKEEPING_S, self._housekeep)
        self._housekeeper.start()
        self.loop.call_later(PRELOAD_S, failures.attempt, "loading the handlers", self.router.versions)

    def _make_cluster(self) -> ClusterNode | None:
        if not is_among_others(self.config):
            for listener in self.config.controller_listeners:
                logger.info(
                    "%s is not served: this node is alone in its quorum; it is among others, and serves them there, once "
                    "controller.quorum.bootstrap.servers names others beside it",
                    listener,
                )
            return None
        from .cluster.node import ClusterNode  # a node that is alone has no need of it

        assert self._reserve is not None
        return ClusterNode(self, self._reserve)

    async def _know_metadata(self) -> None:
        """Open the metadata, and have this broker in it."""
        cluster = self.cluster
        if cluster is None:
            await self.read_ahead.call(self.controller.read)
            if self._giving_up:
                raise StartStopped("stopped before it was ready")
            self.controller.open()
            self._opened.append(self.controller.close)
            self.controller.register_broker(self.advertised_listeners)
            return
        await cluster.open(self.advertised_listeners)
        self._opened.append(self.controller.close)
        if not cluster.is_broker:
            hosts = {listener.name: listener.host for listener in self.config.controller_listeners}
            self.listening += [f"{_shown(hosts[name])}:{port}" for name, port in cluster.bound.items()]
        await cluster.caught_up()

    def stop_start(self) -> None:
        """Have a start that is under way end soon, with StartStopped, unless it is nearly through."""
        self._giving_up = True
        self.logs.recovery.stop()
        if self.cluster is not None:
            self.cluster.stop_start()

    @property
    def broker_epoch(self) -> int:
        """That of this broker's registration; -1 before it."""
        return self.controller.broker_epoch if self.cluster is None else self.cluster.broker_epoch

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        block = self.controller.allocate_producer_ids()
        await self.controller.flushed()
        return block.first, block.count

    async def close(self) -> bool:
        """Answer what is in progress, close connections, write everything down; whether that went well.

        Idempotent, and safe without a start.
        """
        if self.cluster is not None:
            await self.cluster.shut_down()
        if self._housekeeper is not None:
            self._housekeeper.close()
        self.space.close()
        self.purgatory.end_all()
        self.mirror_sources.close()
        for coordinator in self.coordinators:
            coordinator.close()
        await self.server.stop()
        if self.cluster is not None:
            await self.cluster.close()
        opened, self._opened = self._opened, []
        clean = True
        for close in opened:
            try:
                clean &= close() is not False
            except (FastqError, OSError) as error:  # the disk
                logger.error("the stop was not clean: %s; the next start recovers", error)
                clean = False
            except Exception:
                logger.exception("the stop was not clean; the next start recovers")
                clean = False
        self.logs.abandon()  # what a start has that came to nothing
        if self.cluster is not None:
            await asyncio.sleep(LOOKED_UP_S)
        return clean

    def on_halt(self, hear: Callable[[str], object]) -> None:
        """Call `hear(reason)` when this node must end by itself, as one among others may have to."""
        if self.cluster is not None:
            self.cluster.on_halt = hear

    def hurry(self) -> bool:
        """Hand over nothing more in a `close` that is under way; False where there is nobody to hand over to."""
        if self.cluster is None:
            return False
        self.cluster.hurry()
        return True

    def _metadata_dir(self) -> LogDir | None:
        """The log directory that holds the metadata log, where it is one of log.dirs: they share its flusher and its fate."""
        wanted = os.path.realpath(self.config.metadata_log_dir)
        return next((log_dir for log_dir in self.logs.dirs if os.path.realpath(log_dir.path) == wanted), None)

    def _guard_space(self, here: Surroundings) -> SpaceGuard:
        """Who looks after the room on the disks: on that of the metadata too, where it is another."""
        dirs = self.logs.dirs
        metadata_dirs = [] if self.controller.log_dir in dirs else [self.controller.log_dir]
        if self.cluster is not None and not self.cluster.is_broker:
            dirs, metadata_dirs = [], [*dirs, *metadata_dirs]
        return SpaceGuard(dirs, here.monotonic_ms, here.threads, metadata_dirs)

    # --- addresses ---

    async def _bind(self) -> None:
        """Bind all listeners; advertise the port that was picked where none was named."""
        ports: dict[str, int] = {}
        for listener in self.config.listeners:
            for_nodes = len(self.config.listeners) > 1 and listener.name == self.config.inter_broker_listener_name
            ports[listener.name] = await self.server.bind(
                listener.host, listener.port, name=listener.name, reserve=self._reserve if for_nodes else None
            )
            self.listening.append(f"{_shown(listener.host)}:{ports[listener.name]}")
        self.advertised_listeners = [
            listener if listener.port else replace(listener, port=ports.get(listener.name, 0))
            for listener in self.config.advertised_listeners
        ]

    # --- what follows the metadata ---

    async def _attach_logs(self) -> None:
        """Open a log for each partition of the image that is placed here."""
        self._apply_config()
        self.partitions.find_logs()
        if self.logs.recovery.under_way:
            await self.controller.flushed()  # its log shares the descriptor budget with those that a thread loads now
            await self.read_ahead.call(self.logs.recover)
        self._opened.append(self.cleaner.close)
        self._opened.append(lambda: self.logs.close(broker_epoch=self.broker_epoch))
        known = self.controller.image
        await self.partitions.start()
        if self.controller.image is not known:  # others go on changing it
            latest = self.controller.image
            self.partitions.metadata_changed(latest, MetadataDelta.between(known, latest))
        self.controller.subscribe(self._metadata_changed)

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow one committed change of the metadata."""
        failures.attempt("following the partitions", partial(self.partitions.metadata_changed, image, delta))
        if any(kind == ResourceType.BROKER for kind, _ in delta.changed_configs):
            self._apply_config()
        self._coordinate()

    def _apply_config(self) -> None:
        """Heed the settings of the broker that may be altered while it runs, those that are no defaults of topics."""
        layers = self.controller.topic_defaults.layers
        self.cleaner.apply_config(cleaner_config(layers))
        self.throttles.apply_config(layers)
        self.space.apply(space_marks(layers))
        self.logs.moves.rate.bytes_per_s_max = bound_of(layers, MOVES_RATE)
        self._cordon(cordoned_dirs(layers))

    def _cordon(self, paths: frozenset[str]) -> None:
        """These log directories get no new replicas: no log is made there, and the controller places none where there are no others."""
        if paths != self.logs.cordoned:
            logger.info(
                "cordoned are now the log directories %s", ", ".join(sorted(paths)) or "of no name: all get replicas"
            )
        self.logs.cordoned = paths
        if self.cluster is not None:
            self.cluster.cordon(paths)
        else:  # a change of the metadata is no time for the next one
            self.loop.call_soon(failures.attempt, "telling of cordoned log directories", self.controller.cordon)

    def _coordinate(self) -> None:
        """Have the coordinators see what this node leads now."""
        for coordinator in self.coordinators:
            failures.attempt(f"following the leadership of {type(coordinator).__name__}", coordinator.follow)

    # --- housekeeping ---

    def _housekeep(self) -> None:
        """A bounded piece of what is not a request; an error in one part is logged, at a bounded rate, and stops no other."""
        now_s = self.loop.time()
        if self._housekeeper is not None:
            self.on_late(max(0.0, now_s - self.housekept_s - HOUSEKEEPING_S))
        self.housekept_s = now_s
        now_ms = self.clock()
        failures.attempt("looking after the room on the disks", self.space.tick)
        failures.attempt("housekeeping of the logs", self.logs.tick)
        failures.attempt("housekeeping of the cleaner", partial(self.cleaner.tick, now_ms))
        failures.attempt("housekeeping of the controller", partial(self.controller.tick, now_ms))
        failures.attempt("opening logs again", self._open_again)

    def _open_again(self) -> None:
        if self.partitions.open_again():
            self._coordinate()


def _shown(host: str) -> str:
    """The host of a listener, as an address has it."""
    return f"[{host}]" if ":" in host else host or "*"


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
