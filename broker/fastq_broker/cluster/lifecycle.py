"""The life of a broker, as its controller is told of it.

    STARTING                      register; heartbeats 10 ms apart that want the fence to stay -> RECOVERY when the metadata is caught up
    RECOVERY                      logs are loaded, then heartbeats want the fence to go        -> RUNNING when it is gone: ports open
    RUNNING                       heartbeats                                                   -> PENDING_CONTROLLED_SHUTDOWN
    PENDING_CONTROLLED_SHUTDOWN   heartbeats that want to go, while leaderships move           -> SHUTTING_DOWN when the controller says now
    SHUTTING_DOWN                 nothing is sent any more

Rules
- One question is on its way at a time. What happens meanwhile has the next one follow at once, unless this one fails.
- A question that fails, for whatever reason, is asked again after the heartbeat's interval. The reason is said once, and then each minute.
- STALE_BROKER_EPOCH, when the metadata has another incarnation of this id: another process took its place while this one was silent. It
  registers again, which the controller refuses until the other one's session is over, whatever place they advertise, so that two do not
  take turns (Kafka sends heartbeats in vain until it is started again). A broker that the metadata does not have any more was unregistered
  on purpose, and stays out until it is started again.
- The first registration has to succeed in time; then the controller may be away for as long as it is.
- A failed directory is told in each heartbeat. If no controller has heard of it in time, if it holds the metadata, or if it was the last
  one, the process must end: who leads from such a disk must not be believed to be well.
- A broker that does not run has nothing to hand over: it is shut down at once. So is one whose epoch is stale (Kafka goes on asking).

Sources: KIP-631, KIP-858, KIP-966 (previous broker epoch), BrokerLifecycleManager, BrokerServer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum

from fastq.errors import ErrorCode, FastqError, error_for_code
from fastq.protocol.message import Message
from fastq.protocol.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from fastq.protocol.uuid import uuid_to_str
from fastq.values import NamedTuple, Value
from fastq_broker.log.failures import REPORT_INTERVAL_S

logger = logging.getLogger(__name__)

NEVER = float("inf")
NO_EPOCH = -1
HEARD_INTERVALS = 1.5
STARTING_INTERVAL_S = 0.01
"""Between heartbeats until the metadata is caught up: with nothing to recover, a start is quicker by it."""
FIRST_SHUTDOWN_INTERVAL_S = 0.05
"""After the first answer to a wish to go: a broker that leads little can go soon."""


_REFUSED_REGISTRATIONS: Mapping[int, str] = {
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: "Another process with the same node.id is alive, or was until a moment ago: give this one an "
    "id of its own, or stop the other; it is tried again",
    ErrorCode.UNSUPPORTED_VERSION: "The cluster has finalized a feature at a level that this release does not support; the active "
    "controller's log says which",
    ErrorCode.INVALID_REGISTRATION: "The active controller's log says what it does not take: a log directory's id that another broker has, "
    "for one, because a directory was copied with its meta.properties",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "Its controllers are another cluster's: see controller.quorum.bootstrap.servers, or the log "
    "directories' meta.properties",
}


class BrokerState(Enum):
    """What a broker does; the values are Kafka's, of its metric BrokerState."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class ListenerAddress(NamedTuple):
    """A listener as it is advertised; `security_protocol` by Kafka's number (0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL)."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class LifecycleConfig(Value, kw_only=True):
    """Who this broker is, what it can, and its patience, in seconds.

    `incarnation_id` is drawn anew for each start of the process. `log_dirs` are the ids of all directories that could be opened,
    `metadata_dir` the one among them that holds the metadata log, if any. `previous_epoch` is the one that the clean-shutdown files of all
    directories agree on, or -1. `session_timeout_s` is broker.session.timeout.ms: a question is tried for half of it.
    """

    node_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: Sequence[ListenerAddress]
    features: Mapping[str, tuple[int, int]]
    log_dirs: Sequence[bytes]
    rack: str | None = None
    metadata_dir: bytes | None = None
    previous_epoch: int = NO_EPOCH
    registration_timeout_s: float = 60.0
    heartbeat_interval_s: float = 2.0
    session_timeout_s: float = 9.0
    directory_failure_timeout_s: float = 30.0
    shutdown_timeout_s: float = 300.0

    @property
    def request_timeout_s(self) -> float:
        """How long a registration or heartbeat is tried before it has failed."""
        return self.session_timeout_s / 2


Request = BrokerRegistrationRequest | BrokerHeartbeatRequest
Response = BrokerRegistrationResponse | BrokerHeartbeatResponse


class Send(NamedTuple):
    """Ask the active controller, within `timeout_s`, and tell `answered`."""

    request: Message
    timeout_s: float


class StateChanged(NamedTuple):
    """The broker is in another state."""

    state: BrokerState


class OpenPorts(NamedTuple):
    """Clients may come: said once."""


class Halt(NamedTuple):
    """This process must end now, with nothing handed over."""

    reason: str


Effect = Send | StateChanged | OpenPorts | Halt


class BrokerLifecycle:
    """One broker's life, without I/O. Invariants: at most one question is on its way; nothing is sent once it is SHUTTING_DOWN."""

    def __init__(self, config: LifecycleConfig) -> None:
        self.config = config
        self.state = BrokerState.NOT_RUNNING
        self.epoch = NO_EPOCH
        """The broker epoch of the latest registration."""
        self._metadata_offset = -1
        self._registered = False
        self._holder: bytes | None = None
        """The incarnation that is registered, as far as the metadata is known here."""
        self._ready = False
        self._offline: dict[bytes, float] = {}
        """Failed directories; until when the controller must have heard of each, NEVER once it has."""
        self._cordoned: frozenset[bytes] | None = None
        self._asked: tuple[Request, frozenset[bytes], float] | None = None
        """What is on its way, the failed directories that it tells of, and since when."""
        self._at_once = False
        """Something happened meanwhile that the next question is to tell."""
        self._send_at = NEVER
        self._register_until = NEVER
        self._shut_down_until = NEVER
        self._shutdown_answered = False
        self._said: type[FastqError] | None = None
        """Why the last question failed, as the log has it; said again from `_say_at` on."""
        self._say_at = NEVER
        self._heard_at = -NEVER
        """When the last heartbeat was sent that a controller has answered as that of its broker: the answer may be read much later, by a
        process that stood still meanwhile."""
        self._effects: list[Effect] = []

    # -- what happens

    def start(self, now: float) -> None:
        """Begin: listeners are bound, directories open, the metadata is being read."""
        config = self.config
        self._enter(BrokerState.STARTING)
        self._register_until = now + config.registration_timeout_s
        self._send_at = now
        logger.info(
            "broker %d, incarnation %s, joins cluster %s",
            config.node_id,
            uuid_to_str(config.incarnation_id),
            config.cluster_id,
        )

    def metadata_at(self, offset: int) -> None:
        """The metadata is applied here up to and with the record at this offset."""
        self._metadata_offset = max(self._metadata_offset, offset)

    def loaded(self, now: float) -> None:
        """Logs are loaded and coordinators follow: clients could be served."""
        self._ready = True
        self._soon(now)

    def registration_in_metadata(self, incarnation_id: bytes | None, has_directories: bool, now: float) -> None:
        """What the metadata has of this node's id was changed: the incarnation that is registered, None for none, and whether the
        registration names log directories. One of this incarnation that does not, because it is from before they had ids, is made again
        (BrokerRegistrationTracker); to be called without directories only where the metadata's version knows of them (KIP-858)."""
        self._holder = incarnation_id
        if incarnation_id == self.config.incarnation_id and not has_directories:
            self._registered = False
            self._soon(now)

    def directory_failed(self, directory: bytes, now: float) -> None:
        """A log directory went offline."""
        if directory in self._offline:
            return
        self._offline[directory] = now + self.config.directory_failure_timeout_s
        shown = uuid_to_str(directory)
        if directory == self.config.metadata_dir:
            self._halt(f"log directory {shown} failed, which holds the metadata log")
        elif not set(self.config.log_dirs) - set(self._offline):
            self._halt(f"log directory {shown} failed, and it was the last one")
        elif self._registered:
            self._soon(now)

    def directories_cordoned(self, directories: frozenset[bytes], now: float) -> None:
        """These directories take no new replicas; to be called once the metadata's version knows of that, and told for each
        change."""
        if directories == (self._cordoned or frozenset()):  # none is what is taken for granted of a new registration
            return
        self._cordoned = directories
        if self._registered:
            self._soon(now)

    def shut_down(self, now: float) -> None:
        """Hand over what is led here, then stop; repeated, it changes nothing."""
        if self.state is BrokerState.RUNNING:
            self._enter(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
            self._shut_down_until = now + self.config.shutdown_timeout_s
            self._soon(now)
        elif self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self.stop()

    def stop(self) -> None:
        """Stop without handing over."""
        if self.state is not BrokerState.SHUTTING_DOWN:
            self._enter(BrokerState.SHUTTING_DOWN)
            self._send_at = self._register_until = self._shut_down_until = NEVER
            self._asked = None

    def answered(self, request: Request, response: Response | None, error: FastqError | None, now: float) -> None:
        """What has come of a Send."""
        if self._asked is None or self._asked[0] is not request:
            return
        (_, told, asked_at), self._asked = self._asked, None
        if response is not None and response.error_code == ErrorCode.NONE:
            self._said = None
        if response is None:
            self._failed(error or FastqError("no answer came"), now)
        elif response.error_code != ErrorCode.NONE:
            self._refused(response.error_code, now)
        elif isinstance(response, BrokerRegistrationResponse):
            self._registered_at(response.broker_epoch, now)
        else:
            for directory in told:
                self._offline[directory] = NEVER
            self._heartbeat_answered(response, asked_at, now)

    # -- what comes of it

    def poll(self, now: float) -> list[Effect]:
        """What is to be done now."""
        if now >= self._register_until:
            self._halt(
                f"broker {self.config.node_id} was not registered within {self.config.registration_timeout_s:g} s: "
                "is there an active controller, and does it know no other process of this id?"
            )
        if now >= min(self._offline.values(), default=NEVER):
            self._halt_untold(now)
        if now >= self._shut_down_until:
            logger.warning(
                "broker %d stops without having handed everything over: no controller has let it go for %g s",
                self.config.node_id,
                self.config.shutdown_timeout_s,
            )
            self.stop()
        if now >= self._send_at:
            self._send(now)
        effects, self._effects = self._effects, []
        return effects

    def next_wakeup(self) -> float:
        """When `poll` is to be called at the latest, if nothing happens."""
        if self.state is BrokerState.SHUTTING_DOWN:
            return NEVER
        return min(self._send_at, self._register_until, self._shut_down_until, *self._offline.values())

    def _enter(self, state: BrokerState) -> None:
        logger.info("broker %d: %s after %s", self.config.node_id, state.name, self.state.name)
        self.state = state
        self._effects.append(StateChanged(state))

    def _halt(self, reason: str) -> None:
        if self.state is not BrokerState.SHUTTING_DOWN:
            self.stop()
            self._effects.append(Halt(reason))

    def _halt_untold(self, now: float) -> None:
        untold = [directory for directory, until in self._offline.items() if now >= until]
        self._offline.update(dict.fromkeys(untold, NEVER))
        self._halt(
            f"log directory {uuid_to_str(untold[0])} failed, and no controller has heard of it for "
            f"{self.config.directory_failure_timeout_s:g} s"
        )

    def _soon(self, now: float) -> None:
        """Ask at once, or as soon as what is on its way is answered."""
        if self.state in (BrokerState.NOT_RUNNING, BrokerState.SHUTTING_DOWN):
            return
        if self._asked is not None:
            self._at_once = True
        else:
            self._send_at = now

    def _next(self, after_s: float, now: float) -> None:
        self._send_at = now if self._at_once else now + after_s
        self._at_once = False

    def _send(self, now: float) -> None:
        self._send_at = NEVER
        request = self._heartbeat() if self._registered else self._registration()
        told = frozenset(self._offline) if self._registered else frozenset[bytes]()
        self._asked = (request, told, now)
        self._effects.append(Send(request, self.config.request_timeout_s))

    def _registration(self) -> BrokerRegistrationRequest:
        config = self.config
        return BrokerRegistrationRequest(
            broker_id=config.node_id,
            cluster_id=config.cluster_id,
            incarnation_id=config.incarnation_id,
            listeners=[
                BrokerRegistrationRequest.Listener(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in config.listeners
            ],
            features=[
                BrokerRegistrationRequest.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in config.features.items()
            ],
            rack=config.rack,
            log_dirs=sorted(config.log_dirs),
            previous_broker_epoch=config.previous_epoch,
        )

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        caught_up = self.state is not BrokerState.STARTING
        return BrokerHeartbeatRequest(
            broker_id=self.config.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata_offset,
            want_fence=not self._ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=list(self._offline),
            cordoned_log_dirs=sorted(self._cordoned) if caught_up and self._cordoned is not None else None,
        )

    def _failed(self, error: FastqError, now: float) -> None:
        self._at_once = False
        self._next(self.config.heartbeat_interval_s, now)
        if type(error) is not self._said or now >= self._say_at:
            self._said, self._say_at = type(error), now + REPORT_INTERVAL_S
            logger.warning(
                "broker %d, %s, is not heard by the controller: %s", self.config.node_id, self.state.name, error
            )

    def _refused(self, code: int, now: float) -> None:
        hint = None
        if code == ErrorCode.STALE_BROKER_EPOCH:
            if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:  # it leads nothing any more
                self.stop()
                return
            hint = (
                f"Epoch {self.epoch} is not the registered one: was broker {self.config.node_id} unregistered? Then it serves no partition "
                "any more: stop it, or start it again to have it register anew"
            )
            if self._holder not in (None, self.config.incarnation_id):
                self._registered = False
                hint = f"Another process with node.id {self.config.node_id} has registered meanwhile: this one waits for its end"
        elif not self._registered:
            hint = _REFUSED_REGISTRATIONS.get(code)
        self._failed(error_for_code(code, hint=hint), now)

    def _registered_at(self, epoch: int, now: float) -> None:
        self.epoch, self._registered, self._register_until = epoch, True, NEVER
        logger.info("broker %d is registered with epoch %d", self.config.node_id, epoch)
        self._next(0.0, now)

    def is_heard(self, now: float) -> bool:
        """Whether a controller has answered what was asked lately: else others may have been given what this broker thinks is its own."""
        return now - self._heard_at <= HEARD_INTERVALS * self.config.heartbeat_interval_s

    def _heartbeat_answered(self, response: BrokerHeartbeatResponse, asked_at: float, now: float) -> None:
        self._heard_at = asked_at
        interval_s = self.config.heartbeat_interval_s
        if self.state is BrokerState.STARTING:
            interval_s = STARTING_INTERVAL_S
            if response.is_caught_up:
                self._enter(BrokerState.RECOVERY)
        elif self.state is BrokerState.RECOVERY:
            if not response.is_fenced:
                self._enter(BrokerState.RUNNING)
                self._effects.append(OpenPorts())
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if response.should_shut_down:
                self.stop()
                return
            if not self._shutdown_answered:
                self._shutdown_answered = True
                interval_s = FIRST_SHUTDOWN_INTERVAL_S
        self._next(interval_s, now)
