"""A node among others: its place in the metadata quorum, its life under the active controller, whom it follows, what it forwards.

Rules
- A start goes: the controller's listener is bound and served, the metadata log opened, the broker registered, the metadata caught up; then
  the owner loads its logs and says so (`loaded`), and clients may come once the controller has taken the fence away.
- A stop goes the other way round: leaderships are handed over while requests are served; then nothing is followed or asked any more, and
  a controller that leads lets go of the lead. Where the quorum has no leader for QUORUM_LOST_S there is nobody to hand over to.
- Each purpose has a channel of its own to the active controller, and connections of its own to the other brokers, so that none waits
  behind another's questions.
Source: BrokerServer, ControllerServer, SharedServer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fastq.config import ClientConfig
from fastq.errors import ErrorCode, FastqError, KafkaError, error_for_code
from fastq.metadata import Node
from fastq.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterConfigsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    IncrementalAlterConfigsRequest,
)
from fastq.protocol.uuid import random_uuid
from fastq_broker import fail_closed
from fastq_broker.cluster import Halted, settings
from fastq_broker.cluster.controller_channel import ControllerChannel, leader_of
from fastq_broker.cluster.driver import LifeDriver
from fastq_broker.cluster.forwarding import FORWARDED_KEYS, ClientRequest, Forwarder, Principal
from fastq_broker.cluster.lifecycle import BrokerLifecycle, BrokerState, Halt, OpenPorts, StateChanged
from fastq_broker.cluster.peers import Peers
from fastq_broker.cluster.registration import ControllerRegistration
from fastq_broker.config_keys import ResourceType
from fastq_broker.controller import features
from fastq_broker.controller.cluster_control import ClusterControl
from fastq_broker.controller.serving import ControllerRouter
from fastq_broker.log import failures
from fastq_broker.replication.alter_driver import AlterPartitionDriver
from fastq_broker.replication.fetcher import ReplicaPartition
from fastq_broker.replication.fetcher_driver import Assignment, NodeState, ReplicaFetchers
from fastq_broker.replication.partition import NOBODY
from fastq_broker.replication.shared import Replication
from fastq_broker.server import Limits, Server
from fastq_broker.transactions.elsewhere import Elsewhere
from fastq_broker.transactions.marker_sender import MarkerSender

if TYPE_CHECKING:
    from fastq.protocol.message import Message
    from fastq_broker.cluster.peers import Ask
    from fastq_broker.config import Listener
    from fastq_broker.controller import MetadataDelta, MetadataImage, NewTopic
    from fastq_broker.log import LogDir
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica
    from fastq_broker.router import Header, RequestContext

logger = logging.getLogger(__name__)

_ALTERS_CONFIGS = (AlterConfigsRequest.API_KEY, IncrementalAlterConfigsRequest.API_KEY)
QUORUM_LOST_S = 5.0
RESIGN_S = 2.0
"""How long a controller that leads waits at its stop for the others to know."""
LOOK_S = 0.01
TICK_S = 0.1
CONTROLLER_CONNECTIONS = 256
CREATE_TIMEOUT_MS = 30_000
TOPIC_WAIT_S = 5.0
"""How long a topic that the controller has made may take to be known here."""
DIRECTORIES_SINCE = 17
"""Level of metadata.version from which on registrations name log directories (KIP-858)."""


class _Followed(NamedTuple):
    """A partition whose leader is another node."""

    replica: Replica
    leader: int
    epoch: int


class ClusterNode:
    """What a node does because it is one of several. Loop thread only.

    Invariants once open: `life` runs until `close`; `_followed` are the partitions whose leader, as the metadata has it, is another node,
    and each of them is fetched where that node's listener for brokers is known.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._config = config = ports.config
        self._loop = ports.loop
        self.is_controller = "controller" in config.process_roles
        self.replication = Replication(
            config.node_id,
            lambda node_id: ports.image.brokers.get(node_id),
            ports.monotonic_ms,
            lag_max_ms=config.replica_lag_time_max_ms,
            follow=self._follow,
        )
        self.on_halt: Callable[[str], object] = lambda reason: None
        """Hears why this node must end now."""
        self.control: ClusterControl | None = None
        self.life: LifeDriver[BrokerLifecycle]
        self.forwarder: Forwarder
        self.marker_sender: MarkerSender
        self.elsewhere: Elsewhere
        self._incarnation = random_uuid()
        self._registration: LifeDriver[ControllerRegistration] | None = None
        self._server: Server | None = None
        self._router: ControllerRouter | None = None
        self._channels: list[ControllerChannel] = []
        self._peers: list[Peers] = []
        self._requests: ControllerChannel
        self._fetchers: ReplicaFetchers | None = None
        self._alter: AlterPartitionDriver | None = None
        self._followed: dict[tuple[bytes, int], _Followed] = {}
        self._creating: dict[str, asyncio.Future[ErrorCode]] = {}
        self._caught_up: asyncio.Future[None] = self._loop.create_future()
        self._unfenced: asyncio.Future[None] = self._loop.create_future()
        self._stopped = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._check_at_ms = 0
        self._opened = self._closed = False

    @property
    def broker_epoch(self) -> int:
        """That of the registration; -1 before it."""
        return self.life.machine.epoch if self._opened else -1

    # -- the start

    async def open(self, listeners: Sequence[Listener]) -> None:
        """Take part in the quorum, and register as a broker with these listeners.

        Raises ListenError, ConfigError, MetadataError, OSError.
        """
        config, controller = self._config, self._ports.controller
        bound: dict[str, int] = {}
        if self.is_controller:
            self._server = Server(self._loop, _NotYet(), Limits(descriptors_max=CONTROLLER_CONNECTIONS))  # type: ignore[arg-type]
            for listener in config.controller_listeners:
                bound[listener.name] = await self._server.bind(listener.host, listener.port, name=listener.name)
        controller.subscribe(self._metadata_changed)
        self._make_life(listeners, bound)
        controller.open(loop=self._loop, ports=bound, client_config=partial(self._client, "raft"))
        controller.quorum.on_fatal = self._left_quorum
        if self._server is not None:
            self.control = ClusterControl(controller)
            self._router = ControllerRouter(self._ports, controller, self.control)
            self._server.router = self._router
            self._server.serve()
        self._connect()
        self._opened = True
        self.life.start()
        if self._registration is not None:
            self._registration.start()
        self._tick()

    def _client(self, purpose: str) -> ClientConfig:
        config = self._config
        return ClientConfig(
            client_id=f"broker-{config.node_id}-{purpose}", reconnect_backoff_ms=20, reconnect_backoff_max_ms=1000
        )

    def _channel(self, purpose: str) -> ControllerChannel:
        quorum = self._ports.controller.quorum

        async def local(request: Any) -> Any:
            assert self._router is not None
            return await self._router.serve(request)

        channel = ControllerChannel(
            settings.channel_config(self._config, purpose),
            lambda: leader_of(quorum.driver.machine),
            local if self.is_controller else None,
            self._client(purpose),
            self._loop,
        )
        self._channels.append(channel)
        return channel

    def _ask_peers(self, purpose: str) -> Ask:
        peers = Peers(self._place_of, self._client(purpose), self._loop)
        self._peers.append(peers)
        return peers.ask

    def _place_of(self, node_id: int) -> Node | None:
        """Where another broker listens for those of its cluster; None where the metadata does not say."""
        broker = self._ports.image.brokers.get(node_id)
        place = None if broker is None else broker.endpoint(self._config.inter_broker_listener_name)
        return None if place is None else Node(node_id, place.host, place.port)

    def _make_life(self, listeners: Sequence[Listener], bound: dict[str, int]) -> None:
        self._listeners, self._bound = listeners, bound

    def _connect(self) -> None:
        """All that speaks with the active controller and with leaders."""
        config, controller, loop = self._config, self._ports.controller, self._loop
        directories = list(controller.directory_ids)
        metadata_dir = controller.quorum.voter_directory
        machine = BrokerLifecycle(
            settings.lifecycle_config(
                config,
                cluster_id=controller.cluster_id,
                incarnation_id=self._incarnation,
                listeners=self._listeners,
                log_dirs=directories,
                metadata_dir=metadata_dir if metadata_dir in directories else None,
                previous_epoch=controller.clean_epoch,
            )
        )
        self.life = LifeDriver(machine, self._channel("heartbeats"), loop, self._life_news)
        self.forwarder = Forwarder(self._channel("forwarding"), loop)
        self._requests = self._channel("requests")
        if self.is_controller:
            registration = ControllerRegistration(
                settings.registration_config(config, self._incarnation, self._bound), random.Random()
            )
            self._registration = LifeDriver(registration, self._channel("registration"), loop, lambda effect: None)
        self._alter = AlterPartitionDriver(
            self.replication, self._channel("alter-partition"), loop, lambda: self.broker_epoch
        )
        self._fetchers = ReplicaFetchers(
            settings.fetcher_config(config),
            self._client("fetcher").replace(request_timeout_ms=config.replica_socket_timeout_ms),
            loop,
            NodeState(lambda: self.broker_epoch, lambda: self._level(self._ports.image)),
            now_ms=self._ports.clock,
            count=config.num_replica_fetchers,
        )
        self.marker_sender = MarkerSender(self._ask_peers("markers"), loop.call_soon)
        self.elsewhere = Elsewhere(self._ask_peers("transactions"), loop, config, self._ports.replicas)
        self._ports.logs.on_dir_offline = self._directory_failed
        self._tell_life(self._ports.image)

    async def caught_up(self) -> None:
        """Wait until the broker is registered and knows all metadata as of then. Raises Halted, and ConfigError for metadata that asks for
        a protection which is not honoured."""
        await self._caught_up
        controller = self._ports.controller
        controller.unprotected = fail_closed.unprotected(controller.image, self._config.insecure_ignore)

    async def loaded(self) -> None:
        """Logs are loaded: say so, and wait until the controller takes the fence away. Raises Halted."""
        self.life.machine.loaded(self.life.now())
        self.life.turn()
        await self._unfenced

    def stop_start(self) -> None:
        """Have who waits for the start give up."""
        self._fail(Halted("stopped before it was ready"))

    def _fail(self, error: Halted) -> None:
        for future in (self._caught_up, self._unfenced):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting

    def _left_quorum(self, reason: str) -> None:
        self._stopped.set()  # there is nobody to hand over to
        self._fail(Halted(reason))
        self.on_halt(reason)

    def _life_news(self, effect: Any) -> None:
        if isinstance(effect, OpenPorts):
            _set(self._unfenced)
        elif isinstance(effect, Halt):
            logger.critical("%s: this node ends", effect.reason)
            self._stopped.set()
            self._fail(Halted(effect.reason))
            self.on_halt(effect.reason)
        elif isinstance(effect, StateChanged):
            if effect.state is BrokerState.RECOVERY:
                _set(self._caught_up)
            elif effect.state is BrokerState.SHUTTING_DOWN:
                self._stopped.set()

    # -- the stop

    async def shut_down(self) -> None:
        """Hand over what is led here, while requests are served."""
        if not self._opened or self._closed:
            return
        self.life.machine.shut_down(self.life.now())
        self.life.turn()
        machine = self._ports.controller.quorum.driver.machine
        led_at = self._loop.time()
        while not self._stopped.is_set():
            if machine.leader_id >= 0:
                led_at = self._loop.time()
            elif self._loop.time() - led_at > QUORUM_LOST_S:
                logger.warning(
                    "the metadata quorum has had no leader for %g s: this node stops without handing over what it leads",
                    QUORUM_LOST_S,
                )
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), LOOK_S)

    def hurry(self) -> None:
        """Hand over nothing more: who stops waits for no controller."""
        if self._opened and not self._closed:
            self.life.machine.stop()
            self.life.turn()

    async def close(self) -> None:
        """Follow nobody, ask nothing, and let go of the lead of the quorum. Idempotent; the controller itself is closed by its owner."""
        if self._closed:
            return
        self._closed = True
        self._fail(Halted("this node stops"))
        if self._ticker is not None:
            self._ticker.cancel()
        if self._opened:
            self.life.close()
            if self._registration is not None:
                self._registration.close()
            if self._alter is not None:
                self._alter.close()
            if self._fetchers is not None:
                self._fetchers.close()
            for channel in self._channels:
                channel.close()
            for peers in self._peers:
                peers.close()
            await self._resign()
        if self._server is not None:
            await self._server.stop()

    async def _resign(self) -> None:
        driver = self._ports.controller.quorum.driver
        if driver.closed or not self.is_controller:
            return
        driver.machine.stop(driver.now())
        driver.turn()
        for _ in range(int(RESIGN_S / LOOK_S)):
            if driver.closed or driver.machine.may_end:
                return
            await asyncio.sleep(LOOK_S)

    # -- what happens

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if not self._opened:
            return
        self._tell_life(image)
        moved = [followed for followed in self._followed.values() if followed.leader in delta.changed_brokers]
        if moved:
            failures.attempt("following leaders that moved", partial(self._fetch, moved))

    def _tell_life(self, image: MetadataImage) -> None:
        """What the metadata has of this node."""
        life = self.life.machine
        life.metadata_at(image.offset)
        own = image.brokers.get(self._config.node_id)
        has_directories = own is None or bool(own.directories) or self._level(image) < DIRECTORIES_SINCE
        life.registration_in_metadata(None if own is None else own.incarnation_id, has_directories, self.life.now())
        if self._opened:
            self.life.turn()
        if self._registration is not None:
            known: Any = image.kept.get(("controller", self._config.node_id))
            self._registration.machine.metadata(
                self._level(image), None if known is None else known.incarnation_id, self._registration.now()
            )
            if self._opened:
                self._registration.turn()

    @staticmethod
    def _level(image: MetadataImage) -> int:
        return image.features.get(features.METADATA_VERSION, 0)

    def _directory_failed(self, log_dir: LogDir) -> None:
        directories = dict(zip(self._config.log_dirs, self._ports.controller.directory_ids, strict=True))
        directory = directories.get(log_dir.path)
        if directory is not None:
            self.life.machine.directory_failed(directory, self.life.now())
            self.life.turn()

    def _tick(self) -> None:
        """What is due from time to time, from the first registration on: clients are not served yet then."""
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now_ms = self._ports.monotonic_ms()
        if self.control is not None:
            failures.attempt("looking after the cluster", partial(self.control.tick, now_ms))
        if now_ms >= self._check_at_ms:
            self._check_at_ms = now_ms + self._config.replica_lag_time_max_ms // 2
            failures.attempt("looking who is in sync", self.replication.check)

    # -- whom to follow

    def _follow(self, replica: Replica, leader: int, epoch: int) -> None:
        key = replica.topic_id, replica.partition
        if leader == NOBODY:
            if self._followed.pop(key, None) is not None and self._fetchers is not None:
                self._fetchers.unfollow([key])
            return
        self._followed[key] = followed = _Followed(replica, leader, epoch)
        self._fetch([followed])

    def _fetch(self, all_followed: Iterable[_Followed]) -> None:
        if self._fetchers is None or self._closed:
            return
        assignments = []
        for replica, leader, epoch in all_followed:
            place = self._place_of(leader)
            if place is None:
                failures.say(
                    logger.warning,
                    "following",
                    "%s-%d cannot be followed: the metadata has no listener %s of its leader, node %d",
                    replica.topic,
                    replica.partition,
                    self._config.inter_broker_listener_name,
                    leader,
                )
                continue
            partition = ReplicaPartition(replica.topic, replica.topic_id, replica.partition)
            assignments.append(Assignment(partition, place, epoch, replica.log))
        self._fetchers.follow(assignments)

    # -- what clients ask of the active controller

    def forwards(self, api_key: int, request: Any) -> bool:
        """Whether a client's request is the active controller's to serve. What concerns this process alone, loggers, is not."""
        if api_key not in FORWARDED_KEYS:
            return False
        if api_key not in _ALTERS_CONFIGS:
            return True
        return not all(item.resource_type == ResourceType.BROKER_LOGGER for item in request.resources)

    def forward(self, context: RequestContext, header: Header, buffer: bytearray) -> Awaitable[Message | None]:
        """The active controller's answer to a client's request; None where it does not know that version."""
        api_key, version, correlation_id, client_id, start, end = header
        body = bytes(memoryview(buffer)[start:end])
        client = ClientRequest(
            api_key, version, correlation_id, client_id, body, Principal(), _address_of(context.peer)
        )
        return self.forwarder.forward(client)

    # -- what this node asks of the active controller

    def ask(self, request: Any, timeout_s: float) -> asyncio.Future[Any]:
        """The response to a request of this node's own. Raises what the channel ends with."""
        answered: asyncio.Future[Any] = self._loop.create_future()

        def done(response: Any, error: FastqError | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(response)
            else:
                answered.set_exception(error)

        self._requests.ask(request, done, timeout_s=timeout_s)
        return answered

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids: the first, and how many. Raises KafkaError."""
        request = AllocateProducerIdsRequest(broker_id=self._config.node_id, broker_epoch=self.broker_epoch)
        response: AllocateProducerIdsResponse = await self.ask(request, CREATE_TIMEOUT_MS / 1000)
        if response.error_code:
            raise error_for_code(response.error_code, "no producer ids were given out by the controller")
        return response.producer_id_start, response.producer_id_len

    def create_topics(self, wanted: Sequence[NewTopic]) -> Awaitable[dict[str, ErrorCode]]:
        """Have topics created that somebody has named, and wait until they are known here; by name, what kept it from it. Who asks for a
        topic that is being created waits with the first one."""
        new = [topic for topic in wanted if topic.name not in self._creating]
        for topic in new:
            self._creating[topic.name] = self._loop.create_future()
        waiting = {topic.name: self._creating[topic.name] for topic in wanted}
        if new:
            task = self._loop.create_task(self._create(new))
            task.add_done_callback(lambda done: done.exception())
        return _AllOf(waiting)

    async def _create(self, wanted: Sequence[NewTopic]) -> None:
        codes = {topic.name: ErrorCode.LEADER_NOT_AVAILABLE for topic in wanted}
        try:
            request = CreateTopicsRequest(topics=[_creatable(topic) for topic in wanted], timeout_ms=CREATE_TIMEOUT_MS)
            response: CreateTopicsResponse = await self.ask(request, CREATE_TIMEOUT_MS / 1000)
            for result in response.topics:
                code = ErrorCode(result.error_code)
                codes[result.name] = ErrorCode.NONE if code == ErrorCode.TOPIC_ALREADY_EXISTS else code
                if codes[result.name]:
                    logger.warning("cannot create %s: %s", result.name, result.error_message)
            await self._known([name for name, code in codes.items() if not code])
        except KafkaError as error:
            codes = dict.fromkeys(codes, ErrorCode.LEADER_NOT_AVAILABLE)
            logger.warning("cannot create %s: %s", ", ".join(codes), error)
        finally:
            for name, code in codes.items():
                future = self._creating.pop(name)
                if not future.done():
                    future.set_result(code)

    async def _known(self, names: Sequence[str]) -> None:
        for _ in range(int(TOPIC_WAIT_S / LOOK_S)):
            if all(name in self._ports.image.topics_by_name for name in names):
                return
            await asyncio.sleep(LOOK_S)


class _AllOf:
    """The outcomes of what goes on whether or not anybody awaits them."""

    def __init__(self, waiting: dict[str, asyncio.Future[ErrorCode]]) -> None:
        self._waiting = waiting

    def __await__(self) -> Generator[Any, None, dict[str, ErrorCode]]:
        return self._collect().__await__()

    async def _collect(self) -> dict[str, ErrorCode]:
        return {name: await asyncio.shield(future) for name, future in self._waiting.items()}


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
    )


def _address_of(peer: Any) -> str:
    """A client's IP address; a client of a Unix socket has this host's."""
    return str(peer[0]).partition("%")[0] if isinstance(peer, tuple) and peer else "127.0.0.1"


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _NotYet:
    """Stands where a router will be once the metadata log is open; nobody is served before."""
