"""A node among others: its place in the metadata quorum, its life under the active controller, whom it follows, what it forwards.

Rules
- A start goes: the controller's listener is bound and served, the metadata log opened, the broker registered, the metadata caught up; then
  the owner loads its logs and says so (`loaded`), and clients may come once the controller has taken the fence away.
- A node that is a controller only has no life as a broker: it is open once its listener is served.
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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastq.config import ClientConfig
from fastq.errors import FastqError, error_for_code
from fastq.metadata import Node
from fastq.protocol.messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    DescribeQuorumRequest,
)
from fastq.values import NamedTuple
from fastq_broker import fail_closed
from fastq_broker.cluster import Halted, own_configs, settings
from fastq_broker.cluster.controller_channel import ControllerChannel, leader_of
from fastq_broker.cluster.directories import DirectoryAssignments
from fastq_broker.cluster.driver import LifeDriver
from fastq_broker.cluster.forwarding import FORWARDED_KEYS, ClientRequest, Forwarder, Principal
from fastq_broker.cluster.lifecycle import BrokerLifecycle, BrokerState, Halt, OpenPorts, StateChanged
from fastq_broker.cluster.peers import Peers
from fastq_broker.cluster.registration import ControllerRegistration
from fastq_broker.cluster.topic_maker import TopicMaker
from fastq_broker.controller import features
from fastq_broker.controller.cluster_control import ClusterControl
from fastq_broker.controller.serving import ControllerRouter
from fastq_broker.controller.state_log import StateLog
from fastq_broker.controller.states import unclean_elections
from fastq_broker.controller.view import CORDONED, DIRECTORIES
from fastq_broker.log import failures
from fastq_broker.replication.alter_driver import AlterPartitionDriver
from fastq_broker.replication.fetcher_driver import Assignment, NodeState, ReplicaFetchers
from fastq_broker.replication.fetcher_session import ReplicaPartition
from fastq_broker.replication.partition import NOBODY
from fastq_broker.replication.shared import Replication
from fastq_broker.server import Limits, Server
from fastq_broker.transactions.elsewhere import Elsewhere
from fastq_broker.transactions.marker_sender import MarkerSender
from fastq_broker.turns import Repeated

if TYPE_CHECKING:
    from fastq.protocol.message import Message
    from fastq_broker.cluster.peers import Ask
    from fastq_broker.config import Listener
    from fastq_broker.controller import MetadataDelta, MetadataImage
    from fastq_broker.controller.image import PartitionImage
    from fastq_broker.descriptors import DescriptorCount
    from fastq_broker.log import LogDir
    from fastq_broker.ports import Ports
    from fastq_broker.replicas import Replica
    from fastq_broker.router import Header, RequestContext

logger = logging.getLogger(__name__)

Handle = Callable[[Any, Any], Any]
"""A handler of a client's request, with its context."""
QUORUM_LOST_S = 5.0
RESIGN_S = 2.0
"""How long a controller that leads waits at its stop for the others to know."""
LOOK_S = 0.01
TICK_S = 0.1
LISTENS_S = 2.0
"""How long a broker is waited for that is only asked whether it listens."""
PRODUCER_IDS_S = 30.0


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

    def __init__(self, ports: Ports, descriptors: DescriptorCount) -> None:
        """`descriptors` are those of connections to the controller."""
        self._ports = ports
        self._descriptors = descriptors
        self._config = config = ports.config
        self._loop = ports.loop
        self._here = ports.surroundings
        self.is_controller = "controller" in config.process_roles
        self.is_broker = "broker" in config.process_roles
        self.bound: dict[str, int] = {}
        """The ports of the controller's listeners, once open."""
        self.replication = Replication(
            config.node_id,
            lambda node_id: ports.image.brokers.get(node_id),
            ports.monotonic_ms,
            lag_max_ms=config.replica_lag_time_max_ms,
            follow=self._follow,
        )
        self.controller_versions: Callable[[], dict[int, tuple[int, int]]] = dict
        """The versions of the active controller; empty while none is connected."""
        self.on_halt: Callable[[str], object] = lambda reason: None
        """Hears why this node must end now."""
        self.control: ClusterControl | None = None
        self.unclean_elections = 0
        """Partitions that got a leader which may lack what was committed, since this controller started."""
        self.life: LifeDriver[BrokerLifecycle] | None = None
        self.forwarder: Forwarder
        self.marker_sender: MarkerSender
        self.elsewhere: Elsewhere
        self._incarnation = self._here.new_id()
        self._registration: LifeDriver[ControllerRegistration] | None = None
        self._server: Server | None = None
        self._router: ControllerRouter | None = None
        self._channels: list[ControllerChannel] = []
        self._peers: list[Peers] = []
        self._requests: ControllerChannel
        self._fetchers: ReplicaFetchers | None = None
        self._alter: AlterPartitionDriver | None = None
        self._directories: DirectoryAssignments | None = None
        self._directory_ids: dict[str, bytes] = {}
        """By the path of the log directory."""
        self._cordoned: frozenset[bytes] = frozenset()
        self._followed: dict[tuple[bytes, int], _Followed] = {}
        self.topics = TopicMaker(self.ask, lambda: ports.image, self._loop)
        self._caught_up: asyncio.Future[None] = self._loop.create_future()
        self._unfenced: asyncio.Future[None] = self._loop.create_future()
        self._stopped = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self._ticker = Repeated(self._loop, TICK_S, self._tick)
        self._check_at_ms = 0
        self._opened = self._closed = False

    @property
    def broker_epoch(self) -> int:
        """That of the registration; -1 before it."""
        return -1 if self.life is None else self.life.machine.epoch

    # -- the start

    async def open(self, listeners: Sequence[Listener]) -> None:
        """Take part in the quorum, and register as a broker, where it is one, with these listeners.

        Raises ListenError, ConfigError, MetadataError, OSError.
        """
        config, controller, bound = self._config, self._ports.controller, self.bound
        if self.is_controller:
            self._server = Server(self._loop, Limits(), self._descriptors, self._here)
            for listener in config.controller_listeners:
                bound[listener.name] = await self._server.bind(listener.host, listener.port, name=listener.name)
        controller.subscribe(self._metadata_changed)
        controller.open(
            loop=self._loop, ports=bound, client_config=partial(self._client, "raft"), on_fatal=self._left_quorum
        )
        if self._server is not None:
            controller.subscribe(StateLog(controller.image, lambda: controller.is_active, self._loop).changed)
            controller.subscribe(self._count_elections)
            self.control = ClusterControl(controller)
            self.control.on_term = self._look_for_the_gone
            self._router = ControllerRouter(self._ports, controller, self.control)
            self._server.serve(self._router)
        if self.is_controller:
            self._register_controller()
        if self.is_broker:
            self._connect(listeners)
        self._tell_life(self._ports.image)
        self._opened = True
        for driver in (self.life, self._registration):
            if driver is not None:
                driver.start()
        self._ticker.start()
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
            self._here,
        )
        self._channels.append(channel)
        return channel

    def _ask_peers(self, purpose: str) -> Ask:
        peers = Peers(self._place_of, self._client(purpose), self._loop, self._here)
        self._peers.append(peers)
        return peers.ask

    def _place_of(self, node_id: int) -> Node | None:
        """Where another broker listens for those of its cluster; None where the metadata does not say."""
        broker = self._ports.image.brokers.get(node_id)
        place = None if broker is None else broker.endpoint(self._config.inter_broker_listener_name)
        return None if place is None else Node(node_id, place.host, place.port)

    def _register_controller(self) -> None:
        registration = ControllerRegistration(
            settings.registration_config(self._config, self._incarnation, self.bound), self._here.random
        )
        self._registration = LifeDriver(registration, self._channel("registration"), self._loop, lambda effect: None)

    def _connect(self, listeners: Sequence[Listener]) -> None:
        """All by which a broker speaks with the active controller and with other brokers."""
        config, controller, loop = self._config, self._ports.controller, self._loop
        directories = list(controller.directory_ids)
        metadata_dir = controller.quorum.voter_directory
        machine = BrokerLifecycle(
            settings.lifecycle_config(
                config,
                cluster_id=controller.cluster_id,
                incarnation_id=self._incarnation,
                listeners=listeners,
                log_dirs=directories,
                metadata_dir=metadata_dir if metadata_dir in directories else None,
                previous_epoch=controller.clean_epoch,
            )
        )
        heartbeats = self._channel("heartbeats")  # the one that is always connected
        self.controller_versions = heartbeats.versions
        self.life = LifeDriver(machine, heartbeats, loop, self._life_news)
        self.forwarder = Forwarder(self._channel(settings.FORWARDING), loop)
        self._requests = self._channel("requests")
        self._alter = AlterPartitionDriver(
            self.replication, self._channel("alter-partition"), loop, lambda: self.broker_epoch
        )
        self._directory_ids = {
            log_dir.path: directory for log_dir, directory in zip(self._ports.logs.dirs, directories, strict=True)
        }
        self._directories = DirectoryAssignments(
            config.node_id, self._channel("directories"), loop, lambda: self.broker_epoch
        )
        self._fetchers = ReplicaFetchers(
            settings.fetcher_config(config),
            self._client("fetcher").replace(request_timeout_ms=config.replica_socket_timeout_ms),
            loop,
            NodeState(lambda: self.broker_epoch, lambda: self._level(self._ports.image)),
            now_ms=self._ports.clock,
            quota=self._ports.throttles.follower,
            count=config.num_replica_fetchers,
            surroundings=self._here,
        )
        self.marker_sender = MarkerSender(self._ask_peers("markers"), loop.call_soon)
        self.elsewhere = Elsewhere(self._ask_peers("transactions"), loop, config, self._ports.replicas)
        self._ports.logs.on_dir_offline = self._directory_failed

    async def caught_up(self) -> None:
        """Wait until the broker is registered and knows all metadata as of then; a controller only has what it has. Raises Halted, and
        ConfigError for metadata that asks for a protection which is not honoured; what asks for one later is a warning."""
        if self.is_broker:
            await self._caught_up
        controller = self._ports.controller
        controller.unprotected = fail_closed.unprotected(controller.image, self._config.insecure_ignore)
        controller.subscribe(fail_closed.Watch(controller.image).changed)

    async def loaded(self) -> None:
        """Logs are loaded: say so, and wait until the controller takes the fence away. Raises Halted."""
        assert self.life is not None
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
        if self.life is None or self._closed:
            return
        self.life.machine.shut_down(self.life.now())
        self.life.turn()
        machine = self._ports.controller.quorum.driver.machine
        led_at = self._loop.time()
        while not self._stopped.is_set():
            if machine.hears_leader:  # one that is gone may be the last known for as long as there is no other
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
        if self.life is not None and not self._closed:
            self.life.machine.stop()
            self.life.turn()

    async def close(self) -> None:
        """Follow nobody, ask nothing, and let go of the lead of the quorum. Idempotent; the controller itself is closed by its owner."""
        if self._closed:
            return
        self._closed = True
        self._fail(Halted("this node stops"))
        self._ticker.close()
        for task in self._asking:
            task.cancel()
        if self._opened:
            for driver in (self.life, self._registration):
                if driver is not None:
                    driver.close()
            for part in (self._alter, self._directories, self._fetchers):
                if part is not None:
                    part.close()
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
        self.topics.metadata_changed(image)
        moved = [followed for followed in self._followed.values() if followed.leader in delta.changed_brokers]
        if moved:
            failures.attempt("following leaders that moved", partial(self._fetch, moved))

    def _tell_life(self, image: MetadataImage) -> None:
        """What the metadata has of this node."""
        if self.life is not None:
            life = self.life.machine
            life.metadata_at(image.offset)
            own = image.brokers.get(self._config.node_id)
            has_directories = own is None or bool(own.directories) or self._level(image) < DIRECTORIES
            life.registration_in_metadata(None if own is None else own.incarnation_id, has_directories, self.life.now())
            if self._level(image) >= CORDONED:
                life.directories_cordoned(self._cordoned, self.life.now())
            if self._opened:
                self.life.turn()
        if self._registration is not None:
            known: Any = image.kept.get(("controller", self._config.node_id))
            self._registration.machine.metadata(
                self._level(image), None if known is None else known.incarnation_id, self._registration.now()
            )
            if self._opened:
                self._registration.turn()

    def cordon(self, paths: Iterable[str]) -> None:
        """These log directories get no new replicas, as the active controller is to know."""
        cordoned = frozenset(self._directory_ids[path] for path in paths)
        if cordoned != self._cordoned:  # none are, at first
            self._cordoned = cordoned
            self._tell_life(self._ports.image)

    @staticmethod
    def _level(image: MetadataImage) -> int:
        return image.features.get(features.METADATA_VERSION, 0)

    def _directory_failed(self, log_dir: LogDir) -> None:
        lost = [followed.replica for followed in self._followed.values() if followed.replica.log.dir is log_dir]
        for replica in lost:
            self._follow(replica, NOBODY, NOBODY)
        directory = self._directory_ids.get(log_dir.path)
        if directory is not None and self.life is not None:
            self.life.machine.directory_failed(directory, self.life.now())
            self.life.turn()

    def _tick(self) -> None:
        """What is due from time to time, from the first registration on: clients are not served yet then."""
        now_ms = self._ports.monotonic_ms()
        if self.control is not None:
            failures.attempt("looking after the cluster", partial(self.control.tick, now_ms))
        if now_ms >= self._check_at_ms:
            self._check_at_ms = now_ms + self._config.replica_lag_time_max_ms // 2
            failures.attempt("looking who is in sync", self.replication.check)

    def placed(self, replica: Replica, image: PartitionImage) -> None:
        """A replica is here, and the metadata has its partition so: have it know the directory."""
        if self._directories is not None and self._level(self._ports.image) >= DIRECTORIES:
            directory = self._directory_ids.get(self._ports.logs.moves.home(replica.log).path)
            if directory is not None:
                key = replica.topic_id, replica.partition
                self._directories.note(key, directory, image.directory_of(self._config.node_id))

    def _look_for_the_gone(self) -> None:
        """This node is the active controller now: brokers that it does not hear, and in whose place nobody listens, are gone."""
        patience_s = self._config.broker_disconnect_timeout_ms / 1000
        if patience_s >= 0:
            self._loop.call_later(patience_s, self._ask_the_unheard)

    def _ask_the_unheard(self) -> None:
        for broker_id, epoch in [] if self.control is None or self._closed else self.control.unheard():
            place = self._place_of(broker_id)
            if place is not None and broker_id != self._config.node_id:
                task = self._loop.create_task(self._ask_whether_there(place, epoch))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _ask_whether_there(self, place: Node, epoch: int) -> None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(place.host, place.port), LISTENS_S)
            writer.close()
        except ConnectionRefusedError:
            if self.control is not None:
                self.control.broken(place.node_id, epoch, None)
        except (OSError, asyncio.TimeoutError):
            pass  # that says nothing

    def _count_elections(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.unclean_elections += unclean_elections(delta.changed_topics)

    @property
    def is_heard(self) -> bool:
        """Whether the controller has answered this broker lately; while it has not, another one may have its leaderships."""
        return self.life is not None and self.life.machine.is_heard(self.life.now())

    # -- whom to follow

    @property
    def lag_max(self) -> int:
        """Records that the replica of this node lacks which is furthest behind its leader."""
        return 0 if self._fetchers is None else self._fetchers.lag_max

    def _follow(self, replica: Replica, leader: int, epoch: int) -> None:
        key = replica.topic_id, replica.partition
        if leader == NOBODY or replica.log.dir.offline is not None:  # who fetches is in sync, until it fails to write
            if self._fetchers is not None:
                self._fetchers.unfollow([key])
            self._followed.pop(key, None)  # last: what there is no memory for is done again
            return
        self._followed[key] = followed = _Followed(replica, leader, epoch)
        self._fetch([followed])

    def _may_lead(self, replica: Replica) -> bool:
        """Whether it is in sync, or eligible: others count on its having all that is committed."""
        topic = self._ports.image.topics_by_id.get(replica.topic_id)
        partition = None if topic is None else topic.partitions[replica.partition]
        return partition is not None and self._config.node_id in (*partition.isr, *partition.eligible_leader_replicas)

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
            assignments.append(Assignment(partition, place, epoch, replica.log, self._may_lead(replica)))
        self._fetchers.follow(assignments)

    # -- what clients ask of the active controller

    def forwards(self, api_key: int, request: Any) -> bool:
        """Whether a client's request is the active controller's to serve. What concerns this process alone, loggers, is not."""
        if api_key not in FORWARDED_KEYS:
            return False
        if api_key == DescribeQuorumRequest.API_KEY and not self._ports.controller.quorum.driver.machine.hears_leader:
            return False  # who asks wants to know just that
        if api_key not in own_configs.ALTERS_CONFIGS:
            return True
        return not all(map(own_configs.is_logger, request.resources))

    def forward(
        self, context: RequestContext, header: Header, buffer: bytearray, request: Any, handle: Handle
    ) -> Awaitable[Message | None]:
        """The active controller's answer to a client's request, with that of `handle` to what of it concerns this process; None where it
        does not know that version."""
        api_key, version, correlation_id, client_id, start, end = header
        body = bytes(memoryview(buffer)[start:end])
        client = ClientRequest(
            api_key, version, correlation_id, client_id, body, Principal(), _address_of(context.peer)
        )
        if api_key in own_configs.ALTERS_CONFIGS:
            parts = own_configs.split(request, self._ports.image, self._ports.controller.layers)
            if parts.loggers or parts.answer.responses:
                return own_configs.answered(client, request, parts, partial(handle, context), self.forwarder)
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
        response: AllocateProducerIdsResponse = await self.ask(request, PRODUCER_IDS_S)
        if response.error_code:
            raise error_for_code(response.error_code, "no producer ids were given out by the controller")
        return response.producer_id_start, response.producer_id_len


def _address_of(peer: Any) -> str:
    """A client's IP address; a client of a Unix socket has this host's."""
    return str(peer[0]).partition("%")[0] if isinstance(peer, tuple) and peer else "127.0.0.1"


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
