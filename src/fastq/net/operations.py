"""Operations of several requests, written once as generators and run by either driver.

An operation is a generator that yields effects and is sent their outcomes:

    response = yield Call(CONTROLLER, request)      # or the call's error is thrown in
    outcomes = yield [Call(...), Call(...)]         # in parallel; a list of responses and errors, in order
    again = yield Retry(error)                      # waits for the back-off; False when the time or the retries are used up

Rules of this file:
- Connection failures and time-outs of a call are retried here, on another broker where any will do; error codes inside of a
  response are the operation's to judge.
- An operation ends by its deadline, with the last error that explains why it took so long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from fastq.errors import ClientClosed, ConnectionTimeout, FastqError, UnknownTopicOrPartition
from fastq.net.backoff import backoff_s
from fastq.net.core import ClientCore, Timer
from fastq.net.requests import EncodedRequest, VersionedRequest
from fastq.protocol.message import Message

T = TypeVar("T")


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
class Leader:
    """The leader of a partition."""

    topic: str
    partition: int


Route: TypeAlias = "AnyBroker | Controller | Broker | Leader"
ANY, CONTROLLER = AnyBroker(), Controller()


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


Effect: TypeAlias = "Call | list[Call] | Retry"
Operation: TypeAlias = Generator[Effect, Any, T]


def single(call: Call) -> Operation[Any]:
    """The operation of one call; its response."""
    response = yield call
    return response


class _CallRun:
    """One call until it has a response or an error that trying again does not mend."""

    __slots__ = ("_asked", "_call", "_core", "_done", "_failures", "_on_done", "_operation")

    def __init__(
        self,
        operation: OperationRun[Any],
        call: Call,
        on_done: Callable[[Any, FastqError | None], object],
    ) -> None:
        self._operation, self._core, self._call, self._on_done = operation, operation.core, call, on_done
        self._failures = 0
        self._asked = operation.core.metadata_updater.successes
        self._done = False

    def attempt(self, now: float) -> None:
        """Send the request to the broker of the moment, or wait until there is one."""
        if self._done or self._operation.done:
            return
        core = self._core
        hopeless = core.hopeless()
        if hopeless is not None:
            self._finish(None, hopeless)
            return
        node_id = self._node(now)
        if node_id is None:
            if isinstance(self._call.route, AnyBroker):
                core.call_at(max(core.next_attempt_at(), now + 0.001), self.attempt)
            else:
                self._wait_for_metadata(now)
            return
        # A request that is out of time takes its connection along: a broker answers in order, so whatever is sent
        # after it would wait as well (as KafkaAdminClient does).
        timeout_s = min(core.config.request_timeout_ms / 1000, max(0.0, self._operation.deadline - now))
        core.send(node_id, self._call.request, self._received, timeout_s=timeout_s, versions=self._call.versions)

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
        if isinstance(route, Broker):
            # Nothing is known right after the start, and a broker may have joined since: ask once before giving up.
            if route.node_id in core.metadata.nodes or core.metadata_updater.successes > self._asked:
                return route.node_id
        elif isinstance(route, Controller):
            if core.metadata.controller is not None:
                return core.metadata.controller_id
        else:
            core.watch_topics([route.topic])
            leader = core.metadata.leader(route.topic, route.partition)
            if leader is not None:
                return leader.node_id
            known = core.metadata.topic(route.topic)
            if known is not None and known.error == UnknownTopicOrPartition.code:
                self._operation.last_error = UnknownTopicOrPartition(topic=route.topic, partition=route.partition)
        core.request_metadata_update(f"looking for {route}")
        return None

    def _pause(self) -> float:
        config = self._core.config
        return backoff_s(
            config.retry_backoff_ms, config.retry_backoff_max_ms, max(1, self._failures), self._core.random
        )

    def _received(self, response: Any, error: FastqError | None) -> None:
        if error is None or not error.retriable or self._failures >= self._core.config.retries:
            self._finish(response, error)
            return
        self._failures += 1
        self._operation.last_error = error
        if not self._operation.done:
            self._core.call_at(self._core.clock() + self._pause(), self.attempt)

    def _finish(self, response: Any, error: FastqError | None) -> None:
        if not self._done:
            self._done = True
            self._on_done(response, error)


class OperationRun(Generic[T]):
    """An operation under way; thread rule as the core's. `on_done(result, error)` is called once, unless it is cancelled."""

    def __init__(
        self,
        core: ClientCore,
        operation: Operation[T],
        timeout_s: float,
        on_done: Callable[[T | None, BaseException | None], object],
    ) -> None:
        self.core = core
        self.done = False
        self.last_error: FastqError | None = None
        self._operation = operation
        self._on_done = on_done
        self._retries = 0
        self._timeout_s = timeout_s
        self.deadline = core.clock() + timeout_s
        # A little later than the requests' own time-outs, whose errors say more.
        self._timer: Timer = core.call_at(self.deadline + 0.005, self._timed_out)
        core.on_close[self] = lambda: self._finish(None, ClientClosed())
        core.call_at(core.clock(), lambda _now: self._step(None, None))

    def cancel(self) -> None:
        """Forget the operation; what it has sent may still happen."""
        if not self.done:
            self.done = True
            self._clean_up()
            self._operation.close()

    def _step(self, value: Any, error: BaseException | None) -> None:
        if self.done:
            return
        try:
            effect = self._operation.send(value) if error is None else self._operation.throw(error)
        except StopIteration as stop:
            self._finish(stop.value, None)
        except Exception as raised:
            self._finish(None, raised)
        else:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        now = self.core.clock()
        if isinstance(effect, Retry):
            self._retry(effect, now)
        elif isinstance(effect, Call):
            _CallRun(self, effect, self._step).attempt(now)
        else:
            self._perform_all(effect, now)

    def _perform_all(self, calls: list[Call], now: float) -> None:
        outcomes: list[Any] = [None] * len(calls)
        left = len(calls)
        if not calls:
            self._step([], None)

        def collect(index: int) -> Callable[[Any, FastqError | None], None]:
            def done(response: Any, error: FastqError | None) -> None:
                nonlocal left
                outcomes[index] = response if error is None else error
                left -= 1
                if left == 0:
                    self._step(outcomes, None)

            return done

        for index, call in enumerate(calls):
            _CallRun(self, call, collect(index)).attempt(now)

    def _retry(self, effect: Retry, now: float) -> None:
        config = self.core.config
        self.last_error = effect.error
        self._retries += 1
        pause = backoff_s(config.retry_backoff_ms, config.retry_backoff_max_ms, self._retries, self.core.random)
        if self._retries > config.retries or now + pause >= self.deadline:
            self._step(False, None)
            return
        self.core.request_metadata_update("an operation is retried")
        self.core.call_at(now + pause, lambda _now: self._step(True, None))

    def _timed_out(self, _now: float) -> None:
        error = self.last_error or self.core.last_error
        if error is None:
            error = ConnectionTimeout(f"the operation did not finish within {self._timeout_s:.3g} s")
        self._operation.close()
        self._finish(None, error)

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        if not self.done:
            self.done = True
            self._clean_up()
            self._on_done(result, error)

    def _clean_up(self) -> None:
        self._timer.cancel()
        self.core.on_close.pop(self, None)
