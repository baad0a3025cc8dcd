"""Operations of several requests, written once as generators and run by either driver.

An operation is a generator that yields effects and is sent their outcomes:

    response = yield Call(CONTROLLER, request)      # or the call's error is thrown in
    outcomes = yield [Call(...), Call(...)]         # in parallel; a list of responses and errors, in order
    again = yield Retry(error)                      # waits for the back-off; False when the time or the retries are used up

Rules of this file:
- A broker that an answer says is throttled by a quota is asked again after that time (KIP-219).
- Connection failures and time-outs of a call are retried here, on another broker where any will do; error codes inside of a
  response are the operation's to judge. A broker that was found to lead or to coordinate is tried once: its place may be another's.
- An operation ends by its deadline. Of calls in parallel each has its answer or its own last error then; a call that is alone, and each
  that is made later, raises `OutOfTime`, which has the error that explains why it took so long. An operation that has settled some of
  what was asked answers with that instead.
- Nothing of an operation goes on behind its end: look-ups and pauses end with it.
- A coordinator is looked up for each call anew (nothing is cached): that it has moved is the error code of the answer, which
  the operation judges, and `Retry` looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from fastq.errors import (
    BrokerNotAvailable,
    ClientClosed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionTimeout,
    ErrorCode,
    FastqError,
    KafkaError,
    ProtocolError,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_for_code,
)
from fastq.metadata import Node, TopicPartition
from fastq.net.backoff import backoff_s
from fastq.net.coordinators import GROUP, TRANSACTION, coordinator_answers, coordinator_request
from fastq.net.core import ClientCore, Timer
from fastq.net.diagnosis import muted, no_leader
from fastq.net.outages import SLOW_S
from fastq.net.requests import EncodedRequest, VersionedRequest
from fastq.protocol import messages as m
from fastq.protocol.api import ApiKey
from fastq.protocol.message import Message

T = TypeVar("T")
logger = logging.getLogger("fastq.net")


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """Whichever broker has least to do."""


@dataclass(frozen=True, slots=True)
class Controller:
    """The broker that the metadata names as the controller."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker, by id."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Found:
    """The broker that was just found to have a `role`, as of a leader or a coordinator: ConnectionFailed, after one try, where it cannot be
    reached or has left the cluster, as whoever found it is to look again, or has others to tell of. What was sent on a connection that had
    ended unnoticed is no try."""

    node_id: int
    role: str


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition."""

    topic: str
    partition: int


CoordinatorKind: TypeAlias = Literal["group", "transaction"]


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The coordinator of a group, or of a transactional id."""

    kind: CoordinatorKind
    id: str


Route: TypeAlias = "AnyBroker | Controller | Broker | Found | Leader | Coordinator"
ANY, CONTROLLER = AnyBroker(), Controller()

COORDINATOR_KEY_TYPES: dict[CoordinatorKind, int] = {"group": GROUP, "transaction": TRANSACTION}
COORDINATOR_ERRORS = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""What a coordinator that loads, starts or has moved answers: look it up again and ask again; nothing was done."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the broker that `route` means at that moment."""

    route: Route
    request: Message | EncodedRequest | VersionedRequest
    versions: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait before the next attempt, because of `error`; fresh metadata is asked for meanwhile."""

    error: FastqError


class OutOfTime(Exception):
    """What a call raises from the operation's deadline on: it may return what it has by then. `error`: what it ends with otherwise."""

    def __init__(self, error: FastqError) -> None:
        super().__init__(error)
        self.error = error


REFUSALS_MAX = 50  # an operation that so many tries were refused of, one after the other, does not end by itself
TOLD_AGAIN_S = 0.1  # behind the deadline, an end that could not be told at it


Effect: TypeAlias = "Call | list[Call] | Retry"
Operation: TypeAlias = Generator[Effect, Any, T]


def single(call: Call) -> Operation[Any]:
    """The operation of one call; its response."""
    response = yield call
    return response


def ask_nodes(calls: list[Call]) -> Operation[list[Any]]:
    """Calls in parallel, for who asks nodes about parts of one thing: the responses, and errors, in order. Raises the first of these where
    not one of the nodes could be reached, which says nothing of the parts."""
    answers: list[Any] = yield calls
    if answers and all(isinstance(answer, ConnectionFailed) for answer in answers):
        raise answers[0]
    return answers


def find_coordinators(kind: CoordinatorKind, ids: list[str]) -> Operation[dict[str, Node | FastqError]]:
    """The coordinator of each id, or why there is none at the moment: one request, or one an id before version 4 (KIP-699)."""
    first: m.FindCoordinatorResponse = yield Call(ANY, *_find_coordinator(kind, ids))
    found = _coordinators(kind, first, ids)
    if not first.coordinators and ids:
        answers = yield [Call(ANY, *_find_coordinator(kind, [id_])) for id_ in ids[1:]]
        for id_, answer in zip(ids[1:], answers, strict=True):
            if isinstance(answer, FastqError):
                found[id_] = answer
            else:  # of a newer broker than the first one perhaps
                found.update(_coordinators(kind, answer, [id_]))
    return found


def _find_coordinator(kind: CoordinatorKind, ids: list[str]) -> tuple[VersionedRequest, tuple[int, int]]:
    key_type = COORDINATOR_KEY_TYPES[kind]
    # Version 0 knows groups only.
    return VersionedRequest(ApiKey.FIND_COORDINATOR, coordinator_request(key_type, ids)), (min(key_type, 1), 32767)


def _coordinators(
    kind: CoordinatorKind, response: m.FindCoordinatorResponse, ids: list[str]
) -> dict[str, Node | FastqError]:
    """What one answer says of them."""
    found: dict[str, Node | FastqError] = {}
    for id_, answer in coordinator_answers(COORDINATOR_KEY_TYPES[kind], response, ids).items():
        if isinstance(answer, ProtocolError):
            found[id_] = answer
        elif answer.error_code:
            name = "group" if kind == "group" else "transactional_id"
            found[id_] = error_for_code(answer.error_code, answer.error_message or None, **{name: id_})
        else:
            found[id_] = Node(answer.node_id, answer.host, answer.port)
    return found


def find_coordinator(kind: CoordinatorKind, id_: str) -> Operation[Node]:
    """The coordinator of one id, waited for while it starts or moves; raises what FindCoordinator answers otherwise."""
    while True:
        found = yield from find_coordinators(kind, [id_])
        answer = found[id_]
        if isinstance(answer, Node):
            return answer
        if not isinstance(answer, KafkaError) or answer.code not in COORDINATOR_ERRORS or not (yield Retry(answer)):
            raise answer


class _CallRun:
    """One call until it has a response or an error that trying again does not mend."""

    __slots__ = (
        "_asked",
        "_call",
        "_core",
        "_done",
        "_error",
        "_failures",
        "_node_id",
        "_on_done",
        "_operation",
        "_retries_max",
        "_sent_at",
        "_was_connected",
        "_within",
    )

    def __init__(
        self,
        operation: OperationRun[Any],
        call: Call,
        on_done: Callable[[Any, FastqError | None], object],
    ) -> None:
        self._operation, self._core, self._call, self._on_done = operation, operation.core, call, on_done
        self._retries_max = 0 if isinstance(call.route, Found) else operation.core.config.retries
        self._failures = 0
        self._node_id: int | None = None  # whose answer it is; of what any broker can answer the core knows that
        self._asked = operation.core.metadata_updater.requests
        self._error: FastqError | None = None
        # The look-up of a coordinator, or what is asked of it then.
        self._within: OperationRun[Node] | _CallRun | None = None
        self._was_connected = self._done = False
        self._sent_at = operation.deadline

    def attempt(self, now: float) -> None:
        """Send the request to the broker of the moment, or wait until there is one."""
        if self._done or self._operation.done:
            return
        try:
            self._attempt(now)
        except FastqError as error:
            self._finish(None, error)
        except Exception as error:  # no memory: who waits for it would wait until the deadline
            self._operation.fail(error)

    def _attempt(self, now: float) -> None:
        core = self._core
        hopeless = core.hopeless()
        if hopeless is not None:
            self._finish(None, hopeless)
            return
        if isinstance(self._call.route, Coordinator):
            self._find_coordinator(self._call.route, now)
            return
        node_id = self._node(now)
        if node_id is None:
            if isinstance(self._call.route, AnyBroker):
                core.call_at(max(core.next_attempt_at(), now + 0.001), self.attempt)
            else:
                self._wait_for_metadata(now)
            return
        anywhere, until = isinstance(self._call.route, AnyBroker), core.throttled_until(node_id)
        if until > now:
            self._error = muted(core, node_id)
            again = max(core.next_attempt_at(), now + SLOW_S)  # another one may be asked then
            core.call_at(min(until, again) if anywhere else until, self.attempt)
            return
        self._node_id = None if anywhere else node_id
        self._was_connected, self._sent_at = bool(core.broker_versions(node_id)), now
        # A request that is out of time takes its connection along: a broker answers in order, so whatever is sent
        # after it would wait as well (as KafkaAdminClient does).
        timeout_s = min(core.config.request_timeout_ms / 1000, max(0.0, self._operation.deadline - now))
        core.send(
            node_id,
            self._call.request,
            self._received,
            timeout_s=timeout_s,
            versions=self._call.versions,
            anywhere=anywhere,
        )

    def _find_coordinator(self, route: Coordinator, now: float) -> None:
        """Look the coordinator up and send there; after a failed connection it is looked up again."""

        def found(node: Node | None, error: BaseException | None) -> None:
            self._within = None
            if node is None:
                self._finish(None, error if isinstance(error, FastqError) else UnknownServerError(cause=error))
            else:
                at_node = replace(self._call, route=Found(node.node_id, f"the coordinator of {route.kind} {route.id}"))
                self._within = run = _CallRun(self._operation, at_node, self._received)
                run.attempt(self._core.clock())

        self._within = OperationRun(
            self._core, find_coordinator(route.kind, route.id), max(0.0, self._operation.deadline - now), found
        )

    @property
    def last_error(self) -> FastqError | None:
        """Why it has not been answered yet."""
        return (self._within.last_error if self._within is not None else None) or self._error

    def give_up(self, error: FastqError) -> None:
        """The time is over: it fails with its own last error, or with `error` where it has none."""
        self._finish(None, self.last_error or error)
        self.cancel()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._done = True
        within, self._within = self._within, None
        if within is not None:
            within.cancel()

    def _wait_for_metadata(self, now: float) -> None:
        """Try again after the next answer, and in any case after a while: no broker may be there to ask."""
        waiters: list[Timer] = []

        def again(now: float) -> None:
            for waiter in waiters:
                waiter.cancel()
            self.attempt(now)

        waiters.append(self._core.after_metadata(again))
        waiters.append(self._core.call_at(now + max(0.1, self._pause()), again))

    def _node(self, now: float) -> int | None:
        route, core = self._call.route, self._core
        if isinstance(route, AnyBroker):
            return core.least_loaded(now)
        if isinstance(route, (Broker, Found)):
            # Nothing is known right after the start, and a broker may have joined since: ask once before giving up. An answer that was on
            # its way by then tells of before.
            if route.node_id in core.metadata.nodes or core.metadata_updater.answered > self._asked:
                return route.node_id
        elif isinstance(route, Controller):
            if core.metadata.controller is not None:
                return core.metadata.controller_id
        elif isinstance(route, Leader):
            self._operation.look_at(route.topic)
            leader = core.metadata.leader(route.topic, route.partition)
            if leader is not None:
                return leader.node_id
            known = core.metadata.topic(route.topic)
            if known is not None and known.error == UnknownTopicOrPartition.code:
                self._failed(UnknownTopicOrPartition(topic=route.topic, partition=route.partition))
            elif known is not None:
                error = no_leader(core.metadata, route.topic, route.partition)
                self._failed(error)
                self._operation.held_up(error, str(TopicPartition(route.topic, route.partition)), "asked about")
        core.request_metadata_update(f"looking for {route}")
        return None

    def _pause(self) -> float:
        config = self._core.config
        return backoff_s(
            config.retry_backoff_ms, config.retry_backoff_max_ms, max(1, self._failures), self._core.random
        )

    def _received(self, response: Any, error: FastqError | None) -> None:
        operation = self._operation
        node_id, self._within = self._node_id, None
        if error is None and node_id is not None and (throttle_ms := getattr(response, "throttle_time_ms", 0)) > 0:
            self._core.throttle(node_id, throttle_ms / 1000, self._core.clock())
        if self._done:
            return
        last_moment = self._core.config.retry_backoff_max_ms / 1000
        if isinstance(error, ConnectionTimeout) and self._sent_at + last_moment > operation.deadline:
            # Sent in the operation's last moment, it had no time to be answered: what came before says more.
            error = self._error or (operation.last_error if operation.is_single else None) or error
        route = self._call.route
        if isinstance(route, Found) and isinstance(error, BrokerNotAvailable):
            error = ConnectionFailed(f"node {route.node_id}, {route.role}, has left the cluster")
        # A connection may have ended long ago, unnoticed: that was no try, and says nothing of the broker.
        stale = self._was_connected and isinstance(error, ConnectionClosed)
        retries_max = min(1, self._core.config.retries) if stale and isinstance(route, Found) else self._retries_max
        if error is None or not error.retriable or self._failures >= retries_max:
            self._finish(response, error)
            return
        self._failures += 1
        self._failed(error)
        if not operation.done:
            self._core.call_at(self._core.clock() + self._pause(), self.attempt)

    def _failed(self, error: FastqError) -> None:
        self._error = error
        self._operation.call_failed(error)

    def _finish(self, response: Any, error: FastqError | None) -> None:
        if not self._done:
            self._done = True
            self._on_done(response, error)


class OperationRun(Generic[T]):
    """An operation under way; thread rule as the core's. `on_done(result, error)` is called once, unless it is cancelled; they are in
    `result` and `error` too, from when it is `done`, as there may be no memory for a call. Topics whose leaders it needs are in the
    metadata until its end.

    Invariant: `_calls` are those of `_effect`, which is what the operation waits for.
    """

    def __init__(
        self,
        core: ClientCore,
        operation: Operation[T],
        timeout_s: float,
        on_done: Callable[[T | None, BaseException | None], object],
    ) -> None:
        self.core = core
        self.done = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.last_error: FastqError | None = None
        self._operation = operation
        self._on_done = on_done
        self._retries = 0
        self._looked_at: set[str] = set()
        self._timeout_s = timeout_s
        self._effect: Effect | None = None
        self._calls: list[_CallRun] = []
        self._late: OutOfTime | None = None  # from the deadline on
        self._refusals = 0
        self.deadline = core.clock() + timeout_s
        # A little later than the requests' own time-outs, whose errors say more.
        self._timer: Timer = core.call_at(self.deadline + 0.005, self._timed_out)
        core.on_close[self] = lambda: self._tell() if self.done else self._finish(None, ClientClosed())
        core.call_at(core.clock(), lambda _now: self._step(None, None))

    def cancel(self) -> None:
        """Forget the operation; what it has sent may still happen."""
        if not self.done:
            self.done = True
            self._timer.cancel()
            self.core.on_close.pop(self, None)
            self._clean_up()
            self._operation.close()

    def fail(self, error: Exception) -> None:
        """End with an error that is nobody's answer, as where there is no memory to ask."""
        self._finish(None, error)

    def _step(self, value: Any, error: BaseException | None) -> None:
        if self.done:
            return
        self._effect, self._calls = None, []
        try:
            effect = self._operation.send(value) if error is None else self._operation.throw(error)
            self._perform(effect)
        except StopIteration as stop:
            self._finish(stop.value, None)
        except OutOfTime as late:
            self._finish(None, late.error)
        except Exception as raised:
            self._finish(None, raised)

    def _perform(self, effect: Effect) -> None:
        now = self.core.clock()
        self._effect = effect
        if isinstance(effect, Retry):
            self._retry(effect, now)
        elif isinstance(effect, list) and not effect:
            self._step([], None)
        elif self._late is not None:
            self._refuse(self._late.error)
            self._step(None, self._late)
        elif isinstance(effect, Call):
            self._refusals = 0
            self._calls = [_CallRun(self, effect, self._step)]
            self._calls[0].attempt(now)
        else:
            self._perform_all(effect, now)

    def _perform_all(self, calls: list[Call], now: float) -> None:
        outcomes: list[Any] = [None] * len(calls)
        left = len(calls)

        def collect(index: int) -> Callable[[Any, FastqError | None], None]:
            def done(response: Any, error: FastqError | None) -> None:
                nonlocal left
                outcomes[index] = response if error is None else error
                left -= 1
                if left == 0:
                    self._step(outcomes, None)

            return done

        self._refusals = 0
        self._calls = [_CallRun(self, call, collect(index)) for index, call in enumerate(calls)]
        for call in self._calls:
            call.attempt(now)

    def look_at(self, topic: str) -> None:
        """The leader of a partition of this topic is needed."""
        if topic not in self._looked_at:
            self.core.metadata_updater.look_at([topic])
            self._looked_at.add(topic)

    @property
    def is_single(self) -> bool:
        """Whether one call is under way, and none in parallel: the error of one explains none of the others."""
        return isinstance(self._effect, Call)

    def call_failed(self, error: FastqError) -> None:
        """A call is tried again because of this."""
        if self.is_single:
            self.last_error = error

    def held_up(self, error: FastqError, name: str, doing: str) -> None:
        """Nobody can answer now: it is tried again, and the log says so when that lasts."""
        self.core.troubles.failed(self, doing, error, self.core.clock(), name=name)

    def _retry(self, effect: Retry, now: float) -> None:
        config = self.core.config
        self.last_error = effect.error
        self.held_up(effect.error, "a request", "answered")
        self._retries += 1
        pause = backoff_s(config.retry_backoff_ms, config.retry_backoff_max_ms, self._retries, self.core.random)
        if self._retries > config.retries or now + pause >= self.deadline:
            self._refuse(effect.error)
            self._step(False, None)
            return
        self.core.request_metadata_update("an operation is retried")
        self.core.call_at(now + pause, lambda _now: self._step(True, None))

    def _refuse(self, error: FastqError) -> None:
        self._refusals += 1
        if self._refusals > REFUSALS_MAX:
            raise error

    def _timed_out(self, _now: float) -> None:
        if self.done:
            self._tell()
            return
        try:
            # Behind what has come in, and behind the time-outs of requests that are told in this very turn.
            self.core.completions.append((self._end, None, None))
        except MemoryError as error:
            self.fail(error)

    def _end(self, _response: Any, _error: FastqError | None) -> None:
        """The deadline has passed: the operation may make something of what it has."""
        if self.done:
            return
        try:
            calls, effect = self._calls, self._effect
            error = next((call.last_error for call in calls if call.last_error is not None), self.last_error)
            other = self.core.last_error
            if other is None:
                other = ConnectionTimeout(f"the operation did not finish within {self._timeout_s:.3g} s")
            self._late = OutOfTime(error or other)
            if isinstance(effect, list):
                for call in calls:
                    call.give_up(other)
            else:
                for call in calls:
                    call.cancel()
                if isinstance(effect, Retry):
                    self._step(False, None)
                else:
                    self._step(None, self._late)
        except Exception as raised:
            self._finish(None, raised)

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        if not self.done:
            self.done, self.result, self.error = True, result, error
            try:
                if error is None:
                    self.core.troubles.over(self, self.core.clock())
                self._clean_up()
                self._operation.close()
            except Exception:
                logger.exception("an operation could not be ended")
            self._tell()

    def _tell(self) -> None:
        """Say what has come of it; where there is no memory for that, again at the deadline, soon after it, and at the close."""
        if self._timer.callback is None:
            with suppress(MemoryError):  # there may be enough to say it
                self._timer = self.core.call_at(self.core.clock() + TOLD_AGAIN_S, self._timed_out)
        self._on_done(self.result, self.error)
        self._timer.cancel()
        self.core.on_close.pop(self, None)

    def _clean_up(self) -> None:
        for call in self._calls:
            call.cancel()
        self._calls = []
        self.core.troubles.forget(self)
        self.core.metadata_updater.look_away(self._looked_at)
