"""How a node asks the active controller, whichever that is at the time.

Rules
- One question is on its way at a time, in the order asked; what has to be asked again comes before the others.
- Whom to ask is looked up for every question, in what raft knows. Without a leader, or without knowing where it listens, questions wait.
- An answer with NOT_CONTROLLER anywhere in it, and a connection that fails, are no answers: the question is asked again. So it is where
  there is nothing to ask it with for a moment, as no memory or descriptor.
- A question that has waited for its time without being answered ends with REQUEST_TIMED_OUT; one that is on its way is waited for, and
  asked of the next leader once that one is known: the one before may stand still with its connection open. One that `moves_on` is at once,
  any other after REPLACED_S: who leads no more and is well has answered by then, and what it did is not asked for twice.
- What asking again does not mend ends at once: no shared version, a refused identity, a request that cannot be encoded.
- Who is the active controller itself asks by a call, with the same message in and out.

A channel has a connection of its own, so who must not wait behind others has a channel of its own: Kafka has one each for heartbeats,
forwarded requests, AlterPartition and AssignReplicasToDirs. Source: NodeToControllerChannelManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from fastq.config import ClientConfig
from fastq.errors import (
    ClientClosed,
    ConnectionFailed,
    ConnectionTimeout,
    ErrorCode,
    FastqError,
    KafkaError,
    UnknownServerError,
    UnsupportedVersion,
    error_for_code,
)
from fastq.metadata import Node
from fastq.net.aio import AsyncDriver
from fastq.net.requests import VersionedRequest
from fastq.protocol.api import APIS, api_name
from fastq.protocol.message import Message, Struct
from fastq.values import NamedTuple, Value
from fastq_broker.log import failures
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.voters import Endpoint
from fastq_broker.surroundings import Surroundings
from fastq_broker.turns import NEVER, Turns

logger = logging.getLogger(__name__)

FORWARD_TIMEOUT_S = 25.0
"""How long a client's request is tried: less than the 30 s that clients wait (request.timeout.ms), so that the answer says why nothing
was done. Kafka's forwarding channel tries for 60 s, and its clients hear nothing."""

REPLACED_S = 2.0
"""How long who was asked may take to answer once another one leads, where being asked twice may be told: a topic is there already."""

LATE_S = 2.0
"""How long who is asked may take to answer at the least, where a question has waited behind others for nearly all of its time."""

Request = Message | VersionedRequest
"""A request that depends on the version is made anew each time it is asked (KAFKA-15353: a resent AlterPartition had lost its ISR)."""

Done = Callable[[Any, FastqError | None], object]
"""Called once, with the response and None, or with None and the error."""


class Leader(NamedTuple):
    """Who leads the metadata quorum, as raft knows: -1 while nobody does; `endpoint` None while it is not known where that one listens."""

    node_id: int
    epoch: int
    endpoint: Endpoint | None


def leader_of(machine: RaftMachine) -> Leader:
    """The leader as a member or observer of the quorum knows it: where the voters' set has it, not where it registered itself."""
    return Leader(machine.leader_id, machine.epoch, machine.leader_endpoint)


class Question(NamedTuple):
    """A request to the active controller, and until when it may wait for its turn."""

    number: int
    request: Request
    done: Done
    until: float
    timeout_s: float
    versions: tuple[int, int] | None
    moves_on: bool


class Send(NamedTuple):
    """Ask this node, over a connection; it has `timeout_s` to answer."""

    question: Question
    node_id: int
    endpoint: Endpoint
    timeout_s: float


class Call(NamedTuple):
    """This node is the one to ask."""

    question: Question
    timeout_s: float


class Finish(NamedTuple):
    """A question is through."""

    question: Question
    response: Any
    error: FastqError | None


Effect = Send | Call | Finish


class ChannelConfig(Value, kw_only=True):
    """Who asks, and its patience, in seconds. `answer_timeout_s` is Kafka's controller.socket.timeout.ms; `look_s` is how often a leader
    that is not there is looked for; `retry_backoff_s` the pause before a question is asked again. `moves_on`: its questions do no
    harm when they are asked twice, if nothing else is said with one."""

    node_id: int
    name: str
    answer_timeout_s: float = 30.0
    look_s: float = 0.1
    retry_backoff_s: float = 0.05
    moves_on: bool = False


class ChannelMachine:
    """What to ask, whom and when. Invariants: at most one question is on its way; each is finished exactly once."""

    def __init__(self, config: ChannelConfig, leader: Callable[[], Leader]) -> None:
        self.config = config
        self._leader = leader
        self._waiting: deque[Question] = deque()
        self._under_way: Question | None = None
        self._failed: Question | None = None  # it is through, and there was no memory for what has become of it
        self._asked: int | None = None  # the node that the question on its way was sent to
        self._replaced_at = NEVER  # when another one was first seen to lead
        self._wait_until = 0.0
        self._effects: list[Effect] = []
        self._numbers = 0
        self.closed = False

    def __len__(self) -> int:
        """How many questions have no answer yet."""
        return len(self._waiting) + (self._under_way is not None)

    def ask(
        self,
        request: Request,
        done: Done,
        now: float,
        *,
        timeout_s: float = NEVER,
        versions: tuple[int, int] | None = None,
        moves_on: bool = False,
    ) -> None:
        """Put a question. `timeout_s`: how long it is tried, from now on. `moves_on`: this one may be asked twice, on any channel."""
        self._numbers += 1
        moves_on = moves_on or self.config.moves_on
        question = Question(self._numbers, request, done, now + timeout_s, timeout_s, versions, moves_on)
        if self.closed:
            self._effects.append(Finish(question, None, ClientClosed()))
        else:
            self._waiting.append(question)

    def answered(self, question: Question, response: Any, error: FastqError | None, now: float) -> None:
        """What has come of a Send or Call. One that cannot be read is an error: what was asked for may be done."""
        if question is not self._under_way:
            return  # it was given up when the channel was closed
        try:
            if error is None and holds_error(response, ErrorCode.NOT_CONTROLLER):
                self._again(question, now, "it is not the active controller")
            elif error is not None and passes(error):
                self._again(question, now, str(error))
            else:
                self._effects.append(Finish(question, response, error))
        except Exception as problem:
            self._failed = question  # the next poll says so, where it cannot be said here
            name = api_name(question.request.API_KEY)
            failures.report(f"{self.config.name}: reading the answer to {name}", problem)
            self._effects.append(_unread(question, repr(problem)))
        self._under_way = None

    def unasked(self, question: Question, now: float, why: str) -> None:
        """A Send or Call could not be made, or failed inside and is on its way all the same: what comes of that is of another question."""
        if question is self._under_way:
            self._failed = question
            self._ask_anew(question, now, why)

    def _ask_anew(self, question: Question, now: float, why: str) -> None:
        self._numbers += 1
        self._again(question._replace(number=self._numbers), now, why)
        self._under_way = None

    def _again(self, question: Question, now: float, why: str) -> None:
        logger.debug("%s: %s is asked again: %s", self.config.name, api_name(question.request.API_KEY), why)
        self._wait_until = now + self.config.retry_backoff_s
        self._waiting.appendleft(question)

    def poll(self, now: float) -> list[Effect]:
        """What is to be done now."""
        if self._failed is not None and self._failed is self._under_way:
            self._effects.append(_unread(self._failed, "there was no memory for it"))
            self._under_way = None
        if not self.closed:
            self._expire(now)
            self._move_on(now)
            if self._waiting and self._under_way is None and now >= self._wait_until:
                self._ask_next(now)
        effects, self._effects = self._effects, []
        return effects

    def undone(self, effects: list[Effect]) -> None:
        """These are to be done with the next poll."""
        effects.extend(self._effects)
        self._effects = effects

    def _move_on(self, now: float) -> None:
        """Wait no more for a node that leads no more."""
        question, leader = self._under_way, self._leader()
        if question is None or self._asked is None or leader.node_id < 0 or leader.node_id == self._asked:
            self._replaced_at = NEVER
            return
        self._replaced_at = min(self._replaced_at, now)
        if question.moves_on or now >= self._replaced_at + REPLACED_S:
            self._ask_anew(question, now, f"node {leader.node_id} leads now")  # a late answer is of another question
            self._replaced_at = NEVER  # of who is asked next
            self._wait_until = now

    def _expire(self, now: float) -> None:
        for question in [each for each in self._waiting if now >= each.until]:
            leader = self._leader()
            error = error_for_code(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{api_name(question.request.API_KEY)} was not answered by an active controller in {question.timeout_s:g} s",
                hint=_who(leader),
            )
            self._effects.append(Finish(question, None, error))
            self._waiting.remove(question)

    def _ask_next(self, now: float) -> None:
        leader = self._leader()
        question = self._waiting[0]
        left_s = max(question.until - now, LATE_S)
        timeout_s = min(self.config.answer_timeout_s, question.timeout_s, left_s)
        if leader.node_id == self.config.node_id:
            self._asked = None
            self._effects.append(Call(question, timeout_s))
        elif leader.endpoint is not None:
            self._asked = leader.node_id
            self._effects.append(Send(question, leader.node_id, leader.endpoint, timeout_s))
        else:
            self._wait_until = now + self.config.look_s
            return
        self._under_way = self._waiting.popleft()

    def next_wakeup(self, now: float) -> float:
        """When `poll` is to be called at the latest, if nothing happens after one at `now`."""
        if self.closed:
            return NEVER
        due = min((question.until for question in self._waiting), default=NEVER)
        if self._under_way is not None:
            return due if self._asked is None else min(due, now + self.config.look_s)
        return min(due, max(self._wait_until, now)) if self._waiting else due

    def close(self) -> None:
        """Ask no more; what has no answer ends with ClientClosed, at the next `poll`."""
        if self.closed:
            return
        self.closed = True
        given_up = [*([self._under_way] if self._under_way is not None else []), *self._waiting]
        self._under_way = None
        self._waiting.clear()
        self._effects += [Finish(question, None, ClientClosed()) for question in given_up]


def _unread(question: Question, why: str) -> Finish:
    text = f"the answer to {api_name(question.request.API_KEY)} could not be read: {why}"
    return Finish(question, None, UnknownServerError(text))


def _who(leader: Leader) -> str:
    if leader.node_id < 0:
        return (
            "The metadata quorum has no leader: is a majority of the controllers running, and do they reach each other?"
        )
    place = (
        "at a place that is not known"
        if leader.endpoint is None
        else f"at {leader.endpoint.host}:{leader.endpoint.port}"
    )
    return (
        f"The leader of the metadata quorum that was heard of last is node {leader.node_id}, {place}, in epoch {leader.epoch}: "
        "does it run?"
    )


def passes(error: FastqError) -> bool:
    """Whether an error is of a connection that may be better the next time, and so no answer."""
    return isinstance(error, ConnectionFailed) and not isinstance(error, UnsupportedVersion)


def holds_error(response: object, code: int) -> bool:
    """Whether an error code stands anywhere in a response (AbstractResponse.errorCounts)."""
    return any(found == code for found in _error_codes(response))


def _error_codes(value: object) -> Iterator[int]:
    if isinstance(value, list):
        for item in value:
            yield from _error_codes(item)
    elif isinstance(value, Struct):
        for name in value.__slots__:
            field = getattr(value, name)
            if name.endswith("error_code"):
                yield field
            elif isinstance(field, list | Struct):
                yield from _error_codes(field)


class ControllerChannel:
    """A channel at work in an event loop. Loop thread only. `local(request)` answers when this node is the active controller."""

    def __init__(
        self,
        config: ChannelConfig,
        leader: Callable[[], Leader],
        local: Callable[[Message], Awaitable[Message]] | None,
        client: ClientConfig,
        loop: asyncio.AbstractEventLoop,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`local` None: this node is never a controller. `surroundings` None: those of this machine."""
        self.machine = ChannelMachine(config, leader)
        self._leader = leader
        self._local = local
        self._loop = loop
        self._core = (surroundings or Surroundings()).client(client, of_controllers=True)
        self._network = AsyncDriver(self._core, loop)
        self._calls: set[asyncio.Task[None]] = set()
        self._turns = Turns(loop, self.now, self._work, self.machine.next_wakeup)

    def now(self) -> float:
        """Seconds, on the clock that the machine is given."""
        return self._core.clock()

    def ask(
        self,
        request: Request,
        done: Done,
        *,
        timeout_s: float = NEVER,
        versions: tuple[int, int] | None = None,
        moves_on: bool = False,
    ) -> None:
        """Ask the active controller; `done(response, error)` is called once, later."""
        self.machine.ask(request, done, self.now(), timeout_s=timeout_s, versions=versions, moves_on=moves_on)
        self._turns.soon()

    def versions(self) -> dict[int, tuple[int, int]]:
        """The APIs of the controller that is connected, by key; empty while none is, or when this node is the one."""
        leader = self._leader()
        if leader.endpoint is None:
            return {}
        return self._core.broker_versions(self._core.separate(_node(leader.node_id, leader.endpoint)))

    def close(self) -> None:
        """Ask no more; what has no answer ends with ClientClosed. Idempotent."""
        if self.machine.closed:
            return
        self.machine.close()
        for call in self._calls:
            call.cancel()
        self._network.close()
        self._turns.turn()  # not the last one: who asks from now on is told, too

    def _work(self, now: float) -> None:
        effects = self.machine.poll(now)
        try:
            while effects:
                self._perform(effects.pop(0))
        finally:
            if effects:
                self.machine.undone(effects)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Finish):
            try:
                effect.question.done(effect.response, effect.error)
            except Exception as error:
                failures.report(f"{self.machine.config.name}: making use of an answer", error)
            return
        try:
            if isinstance(effect, Send):
                self._send(effect)
            else:
                self._begin_call(effect)
        except Exception as error:
            name = api_name(effect.question.request.API_KEY)
            failures.report(f"{self.machine.config.name}: asking {name}", error)
            self.machine.unasked(effect.question, self.now(), f"it could not be asked: {error!r}")
            self._turns.turn()

    def _send(self, effect: Send) -> None:
        question = effect.question

        def done(response: Any, error: FastqError | None) -> None:
            self._answered(question, response, error)

        self._network.kick()  # where there is no memory for the turn, nothing is sent
        self._core.send(
            self._core.separate(_node(effect.node_id, effect.endpoint)),
            question.request,
            done,
            timeout_s=effect.timeout_s,
            versions=question.versions,
        )

    def _begin_call(self, effect: Call) -> None:
        call = self._call(effect)
        try:
            task = self._loop.create_task(call)
        except Exception:
            call.close()
            raise
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, effect: Call) -> None:
        question, config = effect.question, self.machine.config
        response: Any = None
        error: FastqError | None = None
        try:
            if self._local is None:
                raise ConnectionFailed(
                    f"node {config.node_id} is said to lead the metadata quorum, and is no controller"
                )
            response = await asyncio.wait_for(self._local(_message(question.request)), effect.timeout_s)
        except asyncio.TimeoutError:
            error = ConnectionTimeout(f"this node's controller did not answer in {effect.timeout_s:g} s")
        except KafkaError as problem:
            moved = problem.code == ErrorCode.NOT_CONTROLLER
            error = ConnectionFailed(str(problem)) if moved else problem
        except FastqError as problem:
            error = problem
        except Exception as problem:
            logger.exception("%s: this node's controller failed", config.name)
            error = UnknownServerError(f"this node's controller failed: {problem}", cause=problem)
        self._answered(question, response, error)

    def _answered(self, question: Question, response: Any, error: FastqError | None) -> None:
        try:
            self.machine.answered(question, response, error, self.now())
        finally:
            self._turns.turn()


def _message(request: Request) -> Message:
    """What a controller in this process is asked: no version is to be agreed upon."""
    if not isinstance(request, VersionedRequest):
        return request
    return request.build(APIS[request.API_KEY].max_stable_version)


def _node(node_id: int, endpoint: Endpoint) -> Node:
    return Node(node_id, endpoint.host, endpoint.port)
