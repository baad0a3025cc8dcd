"""The client's core without I/O: which brokers there are, how they are reached, what is sent to whom, and when to act.

Rules of this file:
- No sockets, no threads, no sleeping, no clock of its own: bytes, events and `now` come in; effects, buffers and a deadline
  come out. A driver (`blocking.py`, `aio.py`, or the simulator of the tests) does what the effects say.
- Every request is completed exactly once. Completions are queued and run by the driver between events, never from inside
  `send`, so a callback may call anything of the core.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from fastq.config import ClientConfig
from fastq.errors import BrokerNotAvailable, ClientClosed, ConnectionClosed, FastqError, ProtocolError
from fastq.metadata import ClusterMetadata, Node
from fastq.net import diagnosis
from fastq.net.addresses import Address, Endpoint, is_literal, lookup
from fastq.net.backoff import backoff_s
from fastq.net.connection import Connection, ConnectionSettings
from fastq.net.metadata_updater import MetadataUpdater
from fastq.net.outages import SHORT_LIFE_S, SLOW_S, Outages
from fastq.net.peers import NEVER, Close, Connect, Peer, Resolve, broker_id, separate_id, take_over, whom_to_ask
from fastq.net.requests import Done, EncodedRequest, PendingRequest, VersionedRequest, with_quota
from fastq.net.timers import Timer, Timers
from fastq.net.troubles import Troubles
from fastq.protocol.api import ApiKey, api_name
from fastq.protocol.message import Message
from fastq.protocol.negotiation import BrokerVersions

__all__ = ["ClientCore", "EncodedRequest", "Timer", "VersionedRequest"]

logger = logging.getLogger("fastq.net")

OUTGOING_BYTES_MAX = 16 * 1024 * 1024
"""`can_send` is false for a broker while so many bytes wait for its socket: more would only take memory."""
OFFERED_BY_ALL = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA)
"""Without these nothing is a broker for clients."""
NODES_GRACE_S = 5.0
"""How long a node may be away before another one's log says that it cannot be reached."""


class ClientCore(Timers):
    """The state of one client. Not thread-safe: whoever holds the driver's lock (or runs in its loop) may touch it.

    For clients: `send`, `can_send`, `in_flight`, `api_version`, `least_loaded`, `call_at`, `metadata`, `watch_topics`,
    `request_metadata_update`. For drivers: `effects`, `writable`, `resolved`, `tick`, `deadline`, `run_callbacks`, `close`.

    `on_close` holds calls to make when the core is closed, by whoever registered them. `features` are the levels that the
    cluster has finalized, as the brokers that were connected said (KIP-584).

    `deadline` is a lower bound of the time at which `tick` has something to do: ticking early is harmless.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        allow_auto_topic_creation: bool = False,
        asks_metadata: bool = True,
        origin: str = diagnosis.ADVERTISED,
    ) -> None:
        """`asks_metadata` False: for who knows where to send, as nodes of a cluster among themselves do; no bootstrap server is asked, and
        of other nodes that are away for a moment nothing is said. `origin`: what the log says of where addresses come from."""
        self.config = config
        self.clock = clock
        self._request_timeout_s = config.request_timeout_ms / 1000
        self.random = random if random is not None else Random()
        self.metadata = ClusterMetadata()
        self.effects: list[Resolve | Connect | Close] = []
        self.writable: dict[Connection, None] = {}
        self.completions: deque[tuple[Done, Any, FastqError | None]] = deque()
        self.deadline = 0.0
        self.ready_total = 0  # connections that became ready: with `metadata.generation`, what lets something be sent that could not be
        self.closed = self._ended = False
        self.on_close: dict[object, Callable[[], object]] = {}
        self.last_error: FastqError | None = None
        self.features: dict[str, int] = {}
        self._features_epoch = -1
        context = None
        if config.uses_tls:
            from fastq.net.tls import client_context

            context = client_context(config)
        self._settings = ConnectionSettings(config, context)
        Timers.__init__(self)
        self._bootstrap = {-1 - i: Peer(-1 - i, address) for i, address in enumerate(config.addresses)}
        self._peers: dict[int, Peer] = dict(self._bootstrap)
        self.troubles = Troubles(logger)  # of operations; who does more has its own
        self._outages = Outages(0.0 if asks_metadata else NODES_GRACE_S)
        self._bootstrap_addresses = frozenset(config.addresses)
        self._words_of_origin = origin
        self._asks_metadata = asks_metadata
        self._doubted: set[int] = set()  # nodes whose last answer lacked some of OFFERED_BY_ALL
        self.metadata_updater = MetadataUpdater(self, allow_auto_topic_creation, asks_metadata)

    # -- for clients -----------------------------------------------------------------------------------------------------

    def watch_topics(self, names: Iterable[str]) -> None:
        """Keep these topics in `metadata`; asks for those that are not known yet."""
        self.metadata_updater.watch(names)

    def unwatch_topics(self, names: Iterable[str]) -> None:
        """Drop topics that nobody needs any more."""
        self.metadata_updater.unwatch(names)

    def watch_all_topics(self) -> None:
        """Keep all topics of the cluster in `metadata`."""
        self.metadata_updater.watch_all()

    def request_metadata_update(self, reason: str) -> None:
        """Ask for fresh metadata as soon as the back-off allows; `reason` goes to the debug log."""
        self.metadata_updater.request(reason)

    def send(
        self,
        node_id: int,
        request: Message | EncodedRequest | VersionedRequest,
        on_done: Done,
        *,
        timeout_s: float | None = None,
        versions: tuple[int, int] | None = None,
        anywhere: bool = False,
    ) -> None:
        """Send a request to a broker; `on_done(response, error)` is called once, in a later turn of the driver.

        Without a connection, the request waits for one, and fails with its attempt. `timeout_s` (default
        `request_timeout_ms`) covers the wait for the connection and for the response; a request that times out takes its
        connection with it. `versions` narrows the versions that may be negotiated. `anywhere`: any broker could answer it, so it goes to
        whichever is connected first, and what the answer says of a quota is heeded here.
        """
        now = self.clock()
        deadline = now + (self._request_timeout_s if timeout_s is None else timeout_s)
        pending = PendingRequest(request, on_done, deadline, versions, anywhere)
        if deadline < self.deadline:
            self.deadline = deadline
        peer = self._peers.get(node_id)
        connection = None if peer is None else peer.connection
        if connection is not None and connection.is_ready:
            self._send_now(connection, pending, now)
        elif self.closed:
            self._fail(pending, ClientClosed())
        elif peer is None:
            known = ", ".join(str(node) for node in self.metadata.nodes.values()) or "none"
            self._fail(pending, BrokerNotAvailable(f"no broker with id {node_id}", hint=f"Known are: {known}"))
        else:
            self._start(peer, now)
            peer.queue.append(pending)  # the last that asks for memory: what raises has not been taken
            if peer.is_idle:
                self._fail_queue(peer, peer.last_error or ConnectionClosed(broker=peer.label), now)

    def can_send(self, node_id: int, now: float | None = None) -> bool:
        """Whether a request would go out at once; when there is no connection, one is started (back-off permitting)."""
        peer = self._peers.get(node_id)
        if peer is None or self.closed:
            return False
        connection = peer.connection
        if connection is not None and connection.is_ready:
            if connection.paused or connection.outgoing_bytes >= OUTGOING_BYTES_MAX:
                return False
            return not peer.throttled_until or (self.clock() if now is None else now) >= peer.throttled_until
        now = self.clock() if now is None else now
        self._start(peer, now)
        if peer.is_idle and peer.failures and node_id >= 0:
            self.metadata_updater.seek(now, now - peer.away_since)
        return False

    def idle_connection(self, node_id: int) -> Connection | None:
        """The connection to a broker on which nothing is on its way, if there is one and it may be sent to at once."""
        peer = self._peers.get(node_id)
        if peer is None or peer.connection is None or (peer.throttled_until and peer.throttled_until > self.clock()):
            return None
        return peer.connection if peer.connection.is_idle else None

    def separate(self, node: Node) -> int:
        """The id of a connection of its own to a broker, for what must not wait behind the requests of others, or would have
        them wait: the coordinator of a group. It follows the broker when its address changes, and ends with it."""
        node_id, address = separate_id(node.node_id), Address(node.host, node.port)
        peer = self._peers.get(node_id)
        if peer is None or peer.address != address:
            if peer is not None:
                self._drop(peer, self.clock())
            self._peers[node_id] = Peer(node_id, address)
        return node_id

    def knows(self, node_id: int) -> bool:
        """Whether there is a broker, or a connection apart, of this id."""
        return node_id in self._peers

    def peer_address(self, node_id: int) -> tuple[str, int]:
        """The IP address and port that the connection to a broker leads to; raises ConnectionClosed while there is none."""
        peer = self._peers.get(node_id)
        if peer is None or peer.transport is None:
            raise ConnectionClosed("not connected", broker=self.broker_label(node_id))
        return peer.reached

    def round_trip_s(self, node_id: int) -> float:
        """How long the way to a broker and back is; 0 where that is not known."""
        peer = self._peers.get(node_id)
        return 0.0 if peer is None else peer.round_trip_s

    def failed_since(self, node_id: int, when: float) -> bool:
        """Whether an attempt to connect to this broker that began at `when` or later has failed, and nothing has come of it yet."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.is_idle and peer.failures > 0 and peer.attempt_at >= when

    def is_connecting(self, node_id: int) -> bool:
        """Whether a connection to this broker is being made."""
        peer = self._peers.get(node_id)
        return peer is not None and not peer.is_idle and peer.ready_connection is None

    def in_flight(self, node_id: int) -> int:
        """How many requests to this broker wait for a response or for the connection."""
        peer = self._peers.get(node_id)
        return 0 if peer is None else peer.load

    def api_version(
        self, node_id: int, api_key: int, *, min_version: int | None = None, max_version: int | None = None
    ) -> int:
        """The version of an API to speak with a broker that `can_send`; raises UnsupportedVersion, or ConnectionClosed
        while there is no connection to it."""
        peer = self._peers.get(node_id)
        if peer is None or peer.connection is None or peer.connection.versions is None:
            raise ConnectionClosed("not connected", broker=self.broker_label(node_id))
        return peer.connection.versions.pick(api_key, min_version, max_version)

    def supports(self, node_id: int, api_key: int, version: int = 0) -> bool:
        """Whether this version of an API, or a later one, is shared with a connected broker."""
        peer = self._peers.get(node_id)
        connection = peer.connection if peer is not None else None
        versions = connection.versions if connection is not None else None
        return versions is not None and versions.supports(api_key, version)

    def broker_versions(self, node_id: int) -> dict[int, tuple[int, int]]:
        """The first and last version of every API of a connected broker; empty while not connected."""
        peer = self._peers.get(node_id)
        if peer is None or peer.connection is None or peer.connection.versions is None:
            return {}
        return dict(peer.connection.versions.ranges)

    def broker_label(self, node_id: int) -> str:
        """What messages call this broker: `host:port (node 1)`."""
        peer = self._peers.get(node_id)
        return peer.label if peer is not None else f"node {node_id}"

    def throttle(self, node_id: int, seconds: float, now: float) -> None:
        """Do not send to this broker for a while, as its answer asked (KIP-219)."""
        peer = self._peers.get(node_id)
        if peer is not None:
            peer.throttled_until = max(peer.throttled_until, now + seconds)
            self.call_at(peer.throttled_until, lambda now: self._unmuted(peer, now))  # a turn for the driver, too

    def _unmuted(self, peer: Peer, now: float) -> None:
        """A quota may be over: others were to be asked in its broker's place, who may be silent."""
        if peer.ready_connection is not None and now >= peer.throttled_until:
            self._send_waiting(peer, peer.ready_connection, now)

    def throttled_until(self, node_id: int) -> float:
        """When this broker may be sent to again, as an answer asked; in the past where none does."""
        peer = self._peers.get(node_id)
        return 0.0 if peer is None else peer.throttled_until

    def least_loaded(self, now: float) -> int | None:
        """The broker to ask what any broker can answer: a connected one with little to do, else one that is being
        connected, another one beside it where that takes long; None while all back off. Known brokers come before bootstrap servers
        (KIP-899)."""
        peer = whom_to_ask(self._candidates(), now, self.random)
        return None if peer is None else peer.node_id

    def next_attempt_at(self) -> float:
        """When the first broker's back-off ends."""
        return min((peer.retry_at for peer in self._candidates() if peer.is_idle), default=NEVER)

    def hopeless(self) -> FastqError | None:
        """The error to give up with at once, because waiting will not mend it: every server that could be asked has
        failed, and none of them in a way that passes (authentication, TLS, not Kafka, versions, a name that never led to it)."""
        candidates, peers = self._candidates(), self._peers.values()
        if any(peer.ready_connection is not None or not peer.is_final(peer.last_error, peers) for peer in candidates):
            return None
        return next((peer.last_error for peer in candidates), None)

    def unreachable(self) -> FastqError | None:
        """Why no broker can be asked at the moment; None when one is connected, or when no attempt has failed or taken long."""
        return self._why_none(self._candidates())

    def why_not(self, node_id: int) -> FastqError | None:
        """The same of one broker."""
        peer = self._peers.get(node_id)
        return None if peer is None else self._why_none([peer])

    def _why_none(self, candidates: list[Peer]) -> FastqError | None:
        if any(peer.ready_connection is not None for peer in candidates):
            return None
        failed = next((peer.last_error for peer in candidates if peer.last_error is not None), None)
        now = self.clock()
        return failed or next(
            (self._waiting(peer, now) for peer in candidates if not peer.is_idle and now >= peer.attempt_at + SLOW_S),
            None,
        )

    # -- for drivers -----------------------------------------------------------------------------------------------------

    def take_effects(self) -> list[Resolve | Connect | Close]:
        """What the driver has to do now."""
        effects, self.effects = self.effects, []
        return effects

    def run_callbacks(self) -> int:
        """Run the completions that are due; how many there were.

        One that raises is logged and stops nothing else; it is called once more, with an error, so that who waits for it fails.
        """
        count, completions = 0, self.completions
        while completions:
            on_done, response, error = completions.popleft()
            count += 1
            try:
                on_done(response, error)
            except Exception as raised:
                logger.exception("a completion callback failed")
                if error is None:
                    self._fail_completion(on_done, raised)
        return count

    @staticmethod
    def _fail_completion(on_done: Done, raised: Exception) -> None:
        try:
            on_done(
                None,
                ProtocolError(f"an answer could not be made use of: {raised!r}", hint="Please report it", cause=raised),
            )
        except Exception:
            logger.exception("a completion callback failed with an error too")

    def resolved(self, effect: Resolve, endpoints: list[Endpoint] | None, error: OSError | None) -> None:
        """The look-up of a Resolve effect is done; late and repeated answers are ignored."""
        peer, now = effect.peer, self.clock()
        if peer.resolving is not effect or self.closed:
            return
        peer.resolving, peer.resolve_deadline = None, NEVER
        if endpoints:
            peer.endpoints = deque(endpoints)
            self._connect(peer, now)
        else:
            self._not_resolved(peer, diagnosis.name_not_resolved(peer.label, error or "no address"), now)

    def tick(self, now: float) -> int:
        """Do what is due: time-outs, timers, idle connections, metadata. Sets `deadline` anew; how many timers ran."""
        self.deadline = NEVER
        try:
            for peer in list(self._peers.values()):
                self._tick_peer(peer, now)
            self.metadata_updater.tick(now)
            ran = self._run_timers(now)
            self.deadline = min(self.deadline, self._next_deadline())
        except BaseException:  # there may be no memory for it, or an interrupt: the rest is due all the same
            self.deadline = now
            raise
        return ran

    def close(self) -> None:
        """Close every connection; what is not done fails with ClientClosed. Idempotent: what there is no memory for, the next one does."""
        if self._ended:
            return
        self.closed, now, error = True, self.clock(), ClientClosed()
        for peer in self._peers.values():
            peer.resolving = None
            self._fail_queue(peer, error, now)
            if peer.connection is not None:
                peer.connection.close(error, now)
        self._timers.clear()
        for callback in list(self.on_close.values()):
            callback()
        self._ended = True

    # -- from connections ------------------------------------------------------------------------------------------------

    def doubt(self, connection: Connection, versions: BrokerVersions) -> FastqError | None:
        """What keeps a connection from being used: its broker does not offer what every broker does. That is what a damaged answer
        looks like, so it is asked once more; the same again is how it is there, and whoever needs what is not offered is told so."""
        missing = [api_name(key) for key in OFFERED_BY_ALL if not versions.supports(key)]
        if not missing or not self._asks_metadata or connection.node_id in self._doubted:
            self._doubted.discard(connection.node_id)
            return None
        self._doubted.add(connection.node_id)
        return diagnosis.doubtful_versions(connection.broker, missing)

    def connection_ready(self, connection: Connection, now: float) -> None:
        """A connection has all its phases behind it: send what waits."""
        peer = self._peers.get(connection.node_id)
        if peer is None or peer.connection is not connection:
            return
        peer.failures, peer.last_error, peer.ready_at = 0, None, now
        self.last_error = None
        self.ready_total += 1
        self._outages.ready(peer.address, peer.label, now)
        if self._outages.knows(peer.address):
            self.call_at(now + SHORT_LIFE_S, lambda now: self._look_at_life(peer, connection, now))
        logger.debug("connected to %s", peer.label)
        if connection.versions is not None and connection.versions.features_epoch > self._features_epoch:
            self.features, self._features_epoch = connection.versions.features, connection.versions.features_epoch
        self._send_waiting(peer, connection, now)
        self.deadline = min(self.deadline, now)

    def connection_closed(self, connection: Connection, error: FastqError, now: float) -> None:
        """A connection ended, by either side: try the next address, or back off."""
        self.effects.append(Close(connection))  # first, as there may be no memory for it: it has not ended then
        self.writable.pop(connection, None)
        peer = self._peers.get(connection.node_id)
        if peer is None or peer.connection is not connection:
            return
        peer.connection = None
        if not connection.reached_ready and not self.closed and peer.endpoints and not diagnosis.is_permanent(error):
            logger.debug("%s; trying the next address", error)
            self._connect(peer, now)
            return
        if not self.closed:
            if connection.reached_ready and isinstance(error, ConnectionClosed):
                self._outages.closed(peer.address, error, now - peer.ready_at, now)
            else:
                self._outages.failed(
                    peer.address,
                    error,
                    now,
                    note=self._origin(peer),
                    final=peer.is_final(error, self._peers.values()),
                    was_ready=connection.reached_ready,
                )
        self._attempt_failed(peer, error, now)

    # -- own -------------------------------------------------------------------------------------------------------------

    def _candidates(self) -> list[Peer]:
        known = [peer for node_id, peer in self._peers.items() if node_id in self.metadata.nodes]
        if not known:
            return list(self._bootstrap.values())
        lost = self.metadata_updater.is_overdue or all(peer.failures for peer in known)
        if lost and self.config.metadata_recovery_strategy == "rebootstrap":
            return known + list(self._bootstrap.values())
        return known

    def _send_now(self, connection: Connection, pending: PendingRequest, now: float) -> None:
        try:
            if pending.anywhere:  # who sent it does not know whom it went to
                pending = with_quota(pending, lambda s: self.throttle(connection.node_id, s, self.clock()))
            connection.send(pending, now)
        except Exception as error:  # who waits would wait in vain
            self._fail(pending, diagnosis.not_sent(connection.broker, api_name(pending.api_key), error))

    def _send_waiting(self, peer: Peer, connection: Connection, now: float) -> None:
        if peer in self._candidates():
            take_over(self._peers.values(), peer)
        while peer.queue and peer.connection is connection and connection.is_ready:
            self._send_now(connection, peer.queue.popleft(), now)

    def _fail(self, pending: PendingRequest, error: FastqError) -> None:
        self.completions.append((pending.on_done, None, error))
        self.deadline = min(self.deadline, self.clock())

    def _fail_queue(self, peer: Peer, error: FastqError, now: float) -> None:
        while peer.queue:
            self._fail(peer.queue[0], error)
            peer.queue.popleft()

    def _start(self, peer: Peer, now: float) -> None:
        """Begin an attempt to connect, unless one is under way or the back-off forbids it."""
        if self.closed or not peer.is_idle or now < peer.retry_at:
            return
        peer.attempt_at = now
        self.call_at(now + SLOW_S, lambda then: self._look_at_attempt(peer, now, then))
        if is_literal(peer.address.host):
            peer.endpoints = deque(lookup(peer.address))
            self._connect(peer, now)
        else:
            peer.resolving = Resolve(peer, peer.address)
            peer.resolve_deadline = now + self._settings.phase_timeout_s
            self.effects.append(peer.resolving)
            self.deadline = min(self.deadline, peer.resolve_deadline)

    def _connect(self, peer: Peer, now: float) -> None:
        endpoint = peer.endpoints.popleft()
        config = self.config
        timeout_ms = min(
            config.socket_connection_setup_timeout_ms * 2.0 ** min(peer.failures, 16),
            max(config.socket_connection_setup_timeout_max_ms, config.socket_connection_setup_timeout_ms),
        )
        connection = Connection(
            self, self._settings, peer.node_id, peer.label, peer.address.host, now, timeout_ms / 1000
        )
        peer.connection = connection
        self.effects.append(Connect(connection, endpoint))
        self.deadline = min(self.deadline, connection.phase_deadline)

    def _look_at_attempt(self, peer: Peer, began: float, now: float, again: bool = False) -> None:
        """An attempt began SLOW_S ago: the log says so if it is still under way, and what any broker can answer does not wait for it
        alone. Looked at again as long as it is: of the others some may have been backing off, and some are slow themselves."""
        if peer.is_idle or peer.ready_connection is not None or peer.attempt_at != began or self.closed:
            return
        self.call_at(now + SLOW_S, lambda then: self._look_at_attempt(peer, began, then, True))
        if not again:
            self._outages.slow(peer.address, self._waiting(peer, now), now, note=self._origin(peer))
        other = whom_to_ask(self._candidates(), now, self.random)
        if other is not None and any(pending.anywhere for pending in peer.queue):
            self._start(other, now)

    def _look_at_life(self, peer: Peer, connection: Connection, now: float) -> None:
        """A connection to a broker that had closed others was ready SHORT_LIFE_S ago."""
        if peer.connection is connection:
            self._outages.lasting(peer.address, peer.label, now)

    def _waiting(self, peer: Peer, now: float) -> FastqError:
        """What an attempt that is under way waits for."""
        phase = "resolve" if peer.connection is None else peer.connection.phase
        return diagnosis.timed_out(peer.label, phase, now - peer.attempt_at)

    def _origin(self, peer: Peer) -> str:
        """What to say of an address that the user has not given."""
        if peer.node_id < 0 or peer.address in self._bootstrap_addresses:
            return ""
        return self._words_of_origin

    def _not_resolved(self, peer: Peer, error: FastqError, now: float) -> None:
        self._outages.failed(
            peer.address, error, now, note=self._origin(peer), final=peer.is_final(error, self._peers.values())
        )
        self._attempt_failed(peer, error, now)

    def _attempt_failed(self, peer: Peer, error: FastqError, now: float) -> None:
        config = self.config
        peer.failures += 1
        if peer.failures == 1:
            peer.away_since = now
        peer.last_error = self.last_error = error
        pause = backoff_s(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, peer.failures, self.random)
        peer.retry_at = now + pause
        logger.debug("%s; next attempt in %.3f s", error, pause)
        self._fail_queue(peer, error, now)
        if not self.closed and peer.node_id >= 0:
            self.request_metadata_update("a connection failed")
        self.deadline = min(self.deadline, now)

    def _tick_peer(self, peer: Peer, now: float) -> None:
        if peer.resolving is not None and now >= peer.resolve_deadline:
            peer.resolving = None
            self._not_resolved(peer, diagnosis.timed_out(peer.label, "resolve", self._settings.phase_timeout_s), now)
        connection = peer.connection
        if connection is not None:
            connection.expire(now)
            if now >= peer.idle_at(self.config.connections_max_idle_ms):
                peer.connection = None
                connection.close(diagnosis.retired(peer.label), now)
        for pending in [pending for pending in peer.queue if pending.deadline <= now]:
            peer.queue.remove(pending)
            # What ended a connection that was ready, an answer that did not come, is of another request.
            last = peer.last_error if getattr(peer.last_error, "phase", None) != "ready" else None
            self._fail(pending, last or diagnosis.not_ready(peer.label))

    def _next_deadline(self) -> float:
        deadline, idle_ms = self.metadata_updater.deadline, self.config.connections_max_idle_ms
        if self._timers:
            deadline = min(deadline, self._timers[0][0])
        for peer in self._peers.values():
            deadline = min(deadline, peer.resolve_deadline if peer.resolving is not None else NEVER)
            if peer.connection is not None:
                deadline = min(deadline, peer.connection.deadline, peer.idle_at(idle_ms))
            for pending in peer.queue:
                deadline = min(deadline, pending.deadline)
        return deadline

    def metadata_changed(self, now: float) -> None:
        """The updater took over an answer: follow the brokers that came, moved or left."""
        nodes = self.metadata.nodes
        for node_id, node in nodes.items():
            peer, address = self._peers.get(node_id), Address(node.host, node.port)
            if peer is None:
                self._peers[node_id] = Peer(node_id, address)
            elif peer.address != address:
                self._drop(peer, now)
                self._peers[node_id] = Peer(node_id, address)
            if separate_id(node_id) in self._peers:
                self.separate(node)
        for node_id in [node_id for node_id in self._peers if node_id >= 0 and broker_id(node_id) not in nodes]:
            self._drop(self._peers.pop(node_id), now)

    def _drop(self, peer: Peer, now: float) -> None:
        error = ConnectionClosed("the broker left the cluster or moved", broker=peer.label, phase="ready")
        connection, peer.connection, peer.resolving = peer.connection, None, None
        if connection is not None:
            connection.close(error, now)
        self._fail_queue(peer, error, now)
