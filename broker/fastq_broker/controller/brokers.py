"""Brokers of the cluster: what registers, fences and unfences them, and what that does to partitions.

Rules
- Partition changes of a registration come first and its RegisterBrokerRecord last, so that a registration that was cut in two is made
  again whole. A fence is the partition changes, then the broker's; an unfence the broker's, then elections.
- A broker's epoch is the offset that is next when it registers. The same incarnation keeps its epoch and stays fenced or not.
- With ELR, a broker that does not say with which epoch it last stopped cleanly may have lost records: it leaves every ISR and ELR.
  A machine that has not been booted since would not be proof enough that nothing is lost: a volume that was set back to a copy of it while
  it was written, or that came back after failed writes, looks the same; a clean stop's mark is not in such a copy, or has an older epoch.
- `Sessions` is what only the leader of the quorum knows, and only in memory. A leader that is new knows nobody's last heartbeat: each
  unfenced broker gets a whole session.
Source: ClusterControlManager, BrokerHeartbeatManager, BrokerHeartbeatTracker, ReplicationControlManager.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fastq.errors import ErrorCode
from fastq.protocol.messages import (
    BrokerHeartbeatRequest,
    BrokerRegistrationChangeRecord,
    BrokerRegistrationRequest,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from fastq.protocol.uuid import uuid_to_str
from fastq.values import NamedTuple
from fastq_broker.controller import elections, features
from fastq_broker.controller import view as control
from fastq_broker.controller.image import BrokerImage, MetadataImage, Record
from fastq_broker.controller.topics import Refused, Result
from fastq_broker.controller.view import ControlView

logger = logging.getLogger(__name__)

FENCE, UNFENCE = 1, -1
IN_CONTROLLED_SHUTDOWN = 1
EVERY_OFFSET: Final = (1 << 63) - 1
SESSION_TICKS: Final = 8
"""How often in a session somebody looks for one that is over."""
DISPLACED_MAX = 8
"""How many former incarnations of an id are remembered: as many processes as may take it for theirs at a time."""

_CLEAN_SHUTDOWN_SINCE = 3
"""Version of BrokerRegistration from which on it says how the broker stopped."""


@dataclass(frozen=True)
class Registered(Result):
    """A broker registered; `epoch` is its own until it registers anew."""

    epoch: int = -1


@dataclass(frozen=True)
class HeartbeatResult(Result):
    """What a broker is told, and whether it is on its way out (`in_controlled_shutdown`), which `Sessions.heartbeat` wants to know."""

    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    in_controlled_shutdown: bool = False


class BrokerState(NamedTuple):
    """What `Sessions` knows of a broker, for one heartbeat."""

    registered_at: int
    """No less than the offset of its RegisterBrokerRecord."""
    shutdown_at: int
    """The end of the batch that took its leaderships away; -1: it does not shut down."""
    lowest_active: int
    """The least metadata offset that an active broker has said."""


# Registration


def plan_registration(
    view: ControlView,
    request: BrokerRegistrationRequest,
    *,
    version: int,
    epoch: int,
    finalized: Mapping[str, int],
    is_live: bool,
) -> tuple[Registered, list[Record]]:
    """BrokerRegistration in the `version` it came in. `epoch`: the next offset; `finalized`: levels of all features, kraft.version too.

    `is_live`: whether the registration that the image has is in use (`Sessions.is_live`): it is kept from other incarnations.
    """
    try:
        broker = view.image.brokers.get(request.broker_id)
        _check_registration(view, request, broker, finalized, is_live)
    except Refused as refused:
        return Registered(refused.error, refused.message), []
    record = _register_record(view, request)
    if broker is not None and broker.incarnation_id == request.incarnation_id:
        record.broker_epoch = broker.epoch
        record.fenced = broker.fenced
        record.in_controlled_shutdown = broker.in_controlled_shutdown
        return Registered(epoch=broker.epoch), [record]
    record.broker_epoch = epoch
    clean = version >= _CLEAN_SHUTDOWN_SINCE and broker is not None and request.previous_broker_epoch == broker.epoch
    stopped = elections.broker_leaves if clean else elections.broker_lost_records
    return Registered(epoch=epoch), [*stopped(view, request.broker_id), record]


def _check_registration(
    view: ControlView,
    request: BrokerRegistrationRequest,
    broker: BrokerImage | None,
    finalized: Mapping[str, int],
    is_live: bool,
) -> None:
    broker_id, image = request.broker_id, view.image
    if broker_id < 0:  # which says everywhere that there is nobody
        raise Refused(ErrorCode.INVALID_REGISTRATION, f"{broker_id} is no broker's id")
    if request.cluster_id != image.cluster_id:
        raise Refused(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {broker_id} belongs to the cluster {request.cluster_id}, this is {image.cluster_id}: check its controllers' addresses",
        )
    if broker is not None and is_live and broker.incarnation_id != request.incarnation_id:
        raise Refused(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another broker {broker_id} is there, in epoch {broker.epoch}, and is heard; where that is this one before it was restarted, "
            "it is let in once that session is over; where it is another process, give one of them a node.id of its own",
        )
    if request.is_migrating_zk_broker:
        raise Refused(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"broker {broker_id} comes from ZooKeeper, which this controller does not take",
        )
    if view.metadata_version >= control.DIRECTORIES:
        _check_directories(image, broker_id, request.log_dirs)
    _check_features(request, finalized)


def _check_directories(image: MetadataImage, broker_id: int, directories: list[bytes]) -> None:
    problem = ""
    reserved = [found for found in directories if int.from_bytes(found, "big") < control.RESERVED_DIRECTORIES]
    taken = {found: other.broker_id for other in image.brokers.values() for found in other.directories}
    foreign = [found for found in directories if taken.get(found, broker_id) != broker_id]
    if not directories:
        problem = "names no log directory"
    elif reserved:
        problem = f"names the log directory id {uuid_to_str(reserved[0])}, which is reserved"
    elif len(set(directories)) != len(directories):
        problem = "names a log directory twice"
    elif foreign:
        problem = (
            f"names the log directory {uuid_to_str(foreign[0])}, which is broker {taken[foreign[0]]}'s: a directory was copied with "
            "its meta.properties"
        )
    if problem:
        raise Refused(ErrorCode.INVALID_REGISTRATION, f"broker {broker_id} {problem}")


def _check_features(request: BrokerRegistrationRequest, finalized: Mapping[str, int]) -> None:
    """Every finalized level lies in the range that the broker gives; a feature that it does not name it has at 0 only."""
    ranges = {item.name: (item.min_supported_version, item.max_supported_version) for item in request.features}
    for name in [*ranges, *(name for name in finalized if name not in ranges)]:
        if name == features.METADATA_VERSION and name not in ranges:
            continue
        lowest, highest = ranges.get(name, (0, 0))
        level = finalized.get(name, 0)
        if not lowest <= level <= highest:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"broker {request.broker_id} supports {name} {lowest} to {highest}, the cluster has finalized {level}",
            )
    if features.METADATA_VERSION not in ranges:
        raise Refused(
            ErrorCode.INVALID_REGISTRATION,
            f"broker {request.broker_id} does not say which {features.METADATA_VERSION} it supports",
        )


def _register_record(view: ControlView, request: BrokerRegistrationRequest) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            RegisterBrokerRecord.BrokerEndpoint(
                name=item.name, host=item.host, port=item.port, security_protocol=item.security_protocol
            )
            for item in request.listeners
        ],
        features=[
            RegisterBrokerRecord.BrokerFeature(
                name=item.name,
                min_supported_version=item.min_supported_version,
                max_supported_version=item.max_supported_version,
            )
            for item in request.features
        ],
        rack=request.rack,
        fenced=True,
        log_dirs=list(request.log_dirs) if view.metadata_version >= control.DIRECTORIES else [],
    )


def plan_unregistration(view: ControlView, broker_id: int) -> tuple[Result, list[Record]]:
    """UnregisterBroker: it is no replica's broker in sync any more, and not registered. One that lives is told 77 from now on."""
    broker = view.image.brokers.get(broker_id)
    if broker is None:
        return Result(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"), []
    changes = elections.broker_lost_records(view, broker_id)
    return Result(), [*changes, UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)]


# Heartbeats


def plan_fence(view: ControlView, broker_id: int) -> list[Record]:
    """Take a broker out of every ISR and leadership, then fence it. It is registered."""
    epoch = view.image.brokers[broker_id].epoch
    fence = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=FENCE)
    return [*elections.broker_leaves(view, broker_id), fence]


def plan_heartbeat(
    view: ControlView, request: BrokerHeartbeatRequest, state: BrokerState
) -> tuple[HeartbeatResult, list[Record]]:
    """BrokerHeartbeat: what the broker is told, and what changes."""
    try:
        broker = view.check_broker_epoch(request.broker_id, request.broker_epoch)
    except Refused as refused:
        return HeartbeatResult(refused.error, refused.message), []
    answer, records = _next_state(view, request, broker, state)
    if view.metadata_version >= control.DIRECTORIES and request.offline_log_dirs:
        records += plan_offline_directories(view.after(records), broker.broker_id, request.offline_log_dirs)
    if view.metadata_version >= control.CORDONED:
        records += plan_cordons(broker, request.cordoned_log_dirs)
    return answer, records


def _next_state(
    view: ControlView, request: BrokerHeartbeatRequest, broker: BrokerImage, state: BrokerState
) -> tuple[HeartbeatResult, list[Record]]:
    caught_up = request.current_metadata_offset >= state.registered_at
    stays = HeartbeatResult(is_caught_up=caught_up, is_fenced=broker.fenced)
    fenced = HeartbeatResult(is_caught_up=caught_up)
    leave_now = HeartbeatResult(is_caught_up=caught_up, should_shut_down=True)
    leaving = HeartbeatResult(is_caught_up=caught_up, is_fenced=False, in_controlled_shutdown=True)
    if state.shutdown_at >= 0 and not broker.fenced:
        if view.leads(broker.broker_id) or state.shutdown_at > state.lowest_active:
            return leaving, []
        return leave_now, plan_fence(view, broker.broker_id)
    if broker.fenced:
        if request.want_shut_down:
            return leave_now, plan_fence(view, broker.broker_id)
        if request.want_fence or not caught_up:
            return stays, []
        return HeartbeatResult(is_caught_up=True, is_fenced=False), _unfence(view, broker)
    if request.want_fence:
        return leave_now if request.want_shut_down else fenced, plan_fence(view, broker.broker_id)
    if not request.want_shut_down:
        return stays, []
    if view.leads(broker.broker_id):
        return leaving, _begin_shutdown(view, broker)
    return leave_now, plan_fence(view, broker.broker_id)


def _unfence(view: ControlView, broker: BrokerImage) -> list[Record]:
    unfence = BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=UNFENCE)
    return [unfence, *elections.broker_joins(view, broker.broker_id)]


def _begin_shutdown(view: ControlView, broker: BrokerImage) -> list[Record]:
    records: list[Record] = []
    if not broker.in_controlled_shutdown:  # a leader of the quorum before this one may have written it
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id,
                broker_epoch=broker.epoch,
                in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN,
            )
        )
    return records + elections.broker_leaves(view, broker.broker_id)


def plan_offline_directories(view: ControlView, broker_id: int, offline: list[bytes]) -> list[Record]:
    """Log directories of a broker that have failed: its replicas there leave their ISRs, and the broker has the others only."""
    broker = view.image.brokers[broker_id]
    gone = {directory for directory in broker.directories if directory in offline}
    if not gone:
        return []
    hit = view.where(lambda partition: not gone.isdisjoint(partition.directories))
    left = [directory for directory in broker.directories if directory not in gone]
    change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, log_dirs=left)
    return [*elections.partition_changes(view, hit, leaving=broker_id), change]


def plan_cordons(broker: BrokerImage, cordoned: list[bytes] | None) -> list[Record]:
    """Which log directories of a broker get no new replicas; nothing while it does not know that yet (None)."""
    if cordoned is None or set(cordoned) == set(broker.cordoned_directories):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]


# Sessions


@dataclass
class _Session:
    epoch: int
    registered_at: int
    registration: tuple[object, ...]
    is_fenced: bool
    incarnation_id: bytes
    displaced: tuple[bytes, ...] = ()
    """The last incarnations of this id before it, as far as this node has led meanwhile."""
    contact_ms: int | None = None
    """When it was last heard in this epoch; None: not since it registered, or its session is over."""
    spoke_ms: int | None = None
    """The same, where its registration counts as well: what those go by that it has displaced."""
    was_heard: bool = False
    """Whether it was heard in this epoch, and since this node leads."""
    link: object = None
    """What it was last heard over, where that can break."""
    gone_at_ms: int | None = None
    """When its session is over because that has broken; None while it has not."""
    metadata_offset: int = -1
    shutdown_at: int = -1

    @property
    def is_active(self) -> bool:
        """Not fenced, and not shutting down."""
        return not self.is_fenced and self.shutdown_at < 0


@dataclass
class Sessions:
    """Who of the registered brokers was heard when, and how far their shutdowns are. The leader of the quorum has one, made anew each time.

    Invariants: a session for each registered broker, of its present epoch; one that is not fenced has a time at which it ends. What came
    in an older epoch, or in one that never was, counts for nothing. `_active` counts the sessions that are. Thread rule: one thread. Times
    are ms of one monotonic clock.
    """

    timeout_ms: int
    """broker.session.timeout.ms."""
    _brokers: dict[int, _Session] = field(default_factory=dict)
    _active: Counter[int] = field(default_factory=Counter)
    """How many active brokers are at each metadata offset: their least is asked for with every heartbeat."""

    @property
    def tick_ms(self) -> int:
        """How often to ask `expired` at least."""
        return max(1, self.timeout_ms // SESSION_TICKS)

    def next_look(self, now_ms: int) -> int:
        """When to ask `expired` again, where nobody has expired: who is gone by then without being heard has not a tick more."""
        gone = (session.gone_at_ms for session in self._brokers.values() if session.gone_at_ms is not None)
        return min((now_ms + self.tick_ms, *gone))

    def follow(self, image: MetadataImage, now_ms: int) -> None:
        """Take what an image says: at once when this node becomes leader, then with each change of a broker.

        A broker that is unfenced and was never heard gets a whole session, or one that died while leaders changed would stay for good
        (KAFKA-18138).
        """
        for gone in self._brokers.keys() - image.brokers.keys():
            del self._brokers[gone]
        for broker_id, broker in image.brokers.items():
            session = self._brokers.get(broker_id)
            registration = (broker.endpoints, broker.features, broker.rack)
            if session is None or session.epoch != broker.epoch:
                before = () if session is None else (*session.displaced, session.incarnation_id)[-DISPLACED_MAX:]
                session = self._brokers[broker_id] = _Session(
                    broker.epoch, image.offset, registration, broker.fenced, broker.incarnation_id, before
                )
                session.spoke_ms = now_ms
            if session.registration != registration:
                session.registration = registration
                session.registered_at = image.offset
            session.is_fenced = broker.fenced
            if broker.fenced:
                session.shutdown_at = -1
            elif session.contact_ms is None:
                session.contact_ms = now_ms
        self._active = Counter(session.metadata_offset for session in self._brokers.values() if session.is_active)

    def heard(self, broker_id: int, epoch: int, now_ms: int, link: object = None) -> None:
        """A heartbeat came in, whatever is made of it: also before it is handled, or where that takes too long. `link` is what it came
        over; None for what cannot break."""
        session = self._brokers.get(broker_id)
        if session is not None and session.epoch == epoch:
            session.contact_ms = session.spoke_ms = now_ms
            session.link, session.gone_at_ms, session.was_heard = link, None, True

    def is_live(self, broker_id: int, incarnation_id: bytes, now_ms: int) -> bool:
        """Whether the broker that is registered keeps its id from another incarnation: it was heard within a session's time, and what it
        was heard over still stands, or it broke a moment ago. One that it has displaced waits also where it has only registered yet, and
        whatever has broken until it is fenced: two that live would take turns."""
        session = self._brokers.get(broker_id)
        if session is None:
            return False
        if incarnation_id in session.displaced:
            return session.spoke_ms is not None and session.spoke_ms + self.timeout_ms >= now_ms
        return not self._is_over(session, now_ms)

    def is_silent(self, broker_id: int, incarnation_id: bytes, silent_ms: int, now_ms: int) -> bool:
        """Whether the broker that is registered has said nothing for so long (to a leader that is new, since it leads), or what it was
        heard over has broken: what another incarnation of its id, in its place, may take for its end. Not one that it has displaced."""
        session = self._brokers.get(broker_id)
        if session is None:
            return True
        if incarnation_id in session.displaced:
            return False
        return session.contact_ms is None or session.gone_at_ms is not None or session.contact_ms + silent_ms < now_ms

    def unheard(self) -> list[tuple[int, int]]:
        """Id and epoch of the brokers that have a session only because the metadata has them."""
        return [
            (broker_id, session.epoch)
            for broker_id, session in self._brokers.items()
            if session.contact_ms is not None and not session.was_heard and not session.is_fenced
        ]

    def state(self, broker_id: int) -> BrokerState:
        """What a heartbeat of a registered broker is judged by; for one that is not registered, nothing that matters."""
        session = self._brokers.get(broker_id)
        if session is None:
            return BrokerState(EVERY_OFFSET, -1, EVERY_OFFSET)
        return BrokerState(session.registered_at, session.shutdown_at, min(self._active, default=EVERY_OFFSET))

    def heartbeat(self, request: BrokerHeartbeatRequest, result: HeartbeatResult, end_offset: int) -> None:
        """A heartbeat was granted, and the records of it (if there were any) end at this offset: the log's end after them."""
        session = self._brokers.get(request.broker_id)
        if result.error or session is None or session.epoch != request.broker_epoch:
            return
        if session.is_active:
            self._active[session.metadata_offset] -= 1
            if not self._active[session.metadata_offset]:
                del self._active[session.metadata_offset]
        session.metadata_offset = request.current_metadata_offset
        if result.in_controlled_shutdown and session.shutdown_at < 0:
            session.shutdown_at = end_offset
        if session.is_active:
            self._active[session.metadata_offset] += 1
        if result.should_shut_down:  # it stops now, and may be back before a session's time
            session.contact_ms = session.spoke_ms = None

    def expired(self, now_ms: int) -> int | None:
        """One broker to fence (`plan_fence`), the one unheard for longest; None when all sessions go on.

        One at a time: what fencing it does is seen before the next one is. Its session is over then; where the fence fails, `follow` gives
        it another one.
        """
        over = [
            (session.contact_ms, broker_id)
            for broker_id, session in self._brokers.items()
            if session.contact_ms is not None and self._is_over(session, now_ms)
        ]
        for contact_ms, broker_id in sorted(over):
            session = self._brokers[broker_id]
            broken = session.gone_at_ms is not None
            session.contact_ms = session.spoke_ms = session.gone_at_ms = None
            if not session.is_fenced:
                logger.info(
                    "broker %d in epoch %d is fenced: it was last heard %d ms ago, %s",
                    broker_id,
                    session.epoch,
                    now_ms - contact_ms,
                    "and its connection is closed" if broken else f"a session takes {self.timeout_ms}",
                )
                return broker_id
        return None

    def broken(self, broker_id: int, epoch: int, link: object, gone_at_ms: int) -> bool:
        """What the broker was heard over has broken: its session is over at `gone_at_ms`, unless it is heard before. False where it has
        been heard over another link since, or has no session."""
        session = self._brokers.get(broker_id)
        if session is None or session.epoch != epoch or session.link is not link or session.contact_ms is None:
            return False
        session.gone_at_ms = gone_at_ms
        return True

    def _is_over(self, session: _Session, now_ms: int) -> bool:
        if session.contact_ms is None or session.contact_ms + self.timeout_ms < now_ms:
            return True
        return session.gone_at_ms is not None and now_ms >= session.gone_at_ms
