"""A broker, its channel and three controllers in one process on virtual time, drawn from one seed: controllers die, move, answer late, and
forget what was not committed; the broker's processes are killed, and some hang for a while and wake up when another has taken their place.

The controllers are a slow, obvious model of ClusterControlManager, or the plans of our own: one committed history, of which the leader at
the time appends. After
every step: of all processes of the broker, at most one that runs is the registered one; a process is told no epoch but its own; and only
who the history unfenced has opened its ports.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from fastq_broker.cluster import controller_channel as channel
from fastq_broker.cluster import lifecycle
from fastq_broker.cluster.controller_channel import ChannelConfig, ChannelMachine, Finish, Leader
from fastq_broker.cluster.lifecycle import BrokerLifecycle, BrokerState, LifecycleConfig, ListenerAddress
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.brokers import (
    FENCE,
    UNFENCE,
    Sessions,
    plan_fence,
    plan_heartbeat,
    plan_registration,
)
from fastq_broker.controller.image import MetadataImage
from fastq_broker.controller.view import ControlView
from fastq_broker.raft.voters import Endpoint
from fastq_broker.topic_config import BrokerLayers, TopicDefaults

from fastq.errors import ConnectionClosed, ConnectionTimeout, ErrorCode, FastqError
from fastq.protocol.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationChangeRecord,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegisterBrokerRecord,
)

BROKER = 1
CONTROLLERS = (101, 102, 103)
SESSION_S = 9.0
FIRST_EPOCH = 10
SUPPORTED_LEVELS = {"metadata.version": 30}
DEFAULTS = TopicDefaults(BrokerLayers(BrokerConfig.from_mapping({"log.dirs": "/nowhere"})))


class Record(NamedTuple):
    """What the metadata log has of the broker."""

    kind: str  # "register", "again" (the same incarnation), "unfence", "fence", "leave"
    incarnation: bytes
    epoch: int


class Registered(NamedTuple):
    """The broker as a history leaves it."""

    incarnation: bytes
    epoch: int
    fenced: bool
    leaving: bool


def outcome(history: list[Record]) -> Registered | None:
    found: Registered | None = None
    for record in history:
        if record.kind == "register":
            found = Registered(record.incarnation, record.epoch, True, False)
        else:
            assert found is not None and found.epoch == record.epoch, "a record of an epoch that is over"
            fenced = {"fence": True, "unfence": False}.get(record.kind, found.fenced)
            found = found._replace(fenced=fenced, leaving=record.kind == "leave")
    return found


class Controller:
    """A controller: it leads while the world says so, and learns of its end a little later."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.node_id = world, node_id
        self.up = True
        self.leads = 0  # the epoch in which it believes to lead
        self.appended: list[Record] = []
        self.contacts: dict[int, float] = {}

    def lead(self, epoch: int) -> None:
        self.leads, self.appended = epoch, list(self.world.history)
        self.contacts = {}
        found = outcome(self.appended)
        if found is not None and not found.fenced:
            self.contacts[found.epoch] = self.world.now

    def crash(self) -> None:
        self.up, self.leads = False, 0

    def alive(self, found: Registered) -> bool:
        """Whether the session of a registration runs."""
        return self.world.now < self.contacts.get(found.epoch, -1e9) + SESSION_S

    def expire(self) -> None:
        found = outcome(self.appended) if self.leads else None
        if found is not None and not found.fenced and not self.alive(found):
            self.append([Record("fence", found.incarnation, found.epoch)], lambda: None)

    def append(self, records: list[Record], then: Callable[[], object]) -> None:
        """Commit, if it still leads when that is due."""
        self.appended += records
        end, epoch, world = len(self.appended), self.leads, self.world

        def commit() -> None:
            if world.epoch == epoch and world.leader is self:
                world.commit(self.appended[:end])
                then()

        world.at(world.random.uniform(0.001, 0.05), commit)

    def serve(self, request: Any, answer: Callable[[Any], object]) -> None:
        registers = isinstance(request, BrokerRegistrationRequest)
        kind: Any = BrokerRegistrationResponse if registers else BrokerHeartbeatResponse
        if not self.leads:
            answer(kind(error_code=ErrorCode.NOT_CONTROLLER))
        elif registers:
            self.register(request, answer)
        else:
            self.heartbeat(request, answer)

    def register(self, request: BrokerRegistrationRequest, answer: Callable[[Any], object]) -> None:
        found = outcome(self.appended)
        if found is not None and found.incarnation != request.incarnation_id and self.alive(found):
            answer(BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION))
            return
        same = found is not None and found.incarnation == request.incarnation_id
        epoch = found.epoch if same and found is not None else len(self.appended) + FIRST_EPOCH
        self.contacts[epoch] = self.world.now
        records = [] if same else [Record("register", request.incarnation_id, epoch)]
        self.append(records, lambda: answer(BrokerRegistrationResponse(broker_epoch=epoch)))

    def heartbeat(self, request: BrokerHeartbeatRequest, answer: Callable[[Any], object]) -> None:
        found = outcome(self.appended)
        if found is None or found.epoch != request.broker_epoch:
            answer(BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
            return
        self.contacts[found.epoch] = self.world.now
        caught_up = request.current_metadata_offset >= found.epoch
        records = []
        if request.want_shut_down and not found.fenced:
            kind = "fence" if found.leaving else "leave"
            records = [Record(kind, found.incarnation, found.epoch)]
        elif found.fenced and not request.want_fence and caught_up:
            records = [Record("unfence", found.incarnation, found.epoch)]
        after = outcome([*self.appended, *records])
        assert after is not None
        done = request.want_shut_down and after.fenced
        self.append(
            records,
            lambda: answer(
                BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=after.fenced, should_shut_down=done)
            ),
        )


class PlannedController(Controller):
    """The same with the plans and sessions of our own controller."""

    def lead(self, epoch: int) -> None:
        super().lead(epoch)
        image = MetadataImage(cluster_id="c", offset=FIRST_EPOCH - 1)
        self.view = ControlView(image, DEFAULTS).after(self.world.records)
        self.planned = list(self.world.records)
        self.sessions = Sessions(int(SESSION_S * 1000))
        self.sessions.follow(self.view.image, self.now_ms)

    @property
    def now_ms(self) -> int:
        return int(self.world.now * 1000)

    def plan(self, records: Sequence[Any], then: Callable[[], object]) -> None:
        self.view = self.view.after(records)
        self.sessions.follow(self.view.image, self.now_ms)
        self.planned += records
        told = [self.short(record) for record in records]
        end = len(self.planned)

        def committed() -> None:
            self.world.records = self.planned[:end]
            then()

        self.append(told, committed)

    def short(self, record: Any) -> Record:
        """What a record of the metadata says in this world's words."""
        if isinstance(record, RegisterBrokerRecord):
            found = outcome(self.appended)
            again = found is not None and found.epoch == record.broker_epoch
            return Record("again" if again else "register", record.incarnation_id, record.broker_epoch)
        assert isinstance(record, BrokerRegistrationChangeRecord)
        kind = {FENCE: "fence", UNFENCE: "unfence"}.get(record.fenced, "leave")
        return Record(kind, self.view.image.brokers[BROKER].incarnation_id, record.broker_epoch)

    def expire(self) -> None:
        gone = self.sessions.expired(self.now_ms) if self.leads else None
        if gone is not None:
            self.plan(plan_fence(self.view, gone), lambda: None)

    def register(self, request: BrokerRegistrationRequest, answer: Callable[[Any], object]) -> None:
        result, records = plan_registration(
            self.view,
            request,
            version=4,
            epoch=self.view.image.offset + 1,
            finalized=SUPPORTED_LEVELS,
            is_live=self.sessions.is_live(BROKER, request.incarnation_id, self.now_ms),
        )
        response = BrokerRegistrationResponse(error_code=result.error, broker_epoch=result.epoch)
        self.plan(records, lambda: answer(response))

    def heartbeat(self, request: BrokerHeartbeatRequest, answer: Callable[[Any], object]) -> None:
        self.sessions.heard(BROKER, request.broker_epoch, self.now_ms)
        result, records = plan_heartbeat(self.view, request, self.sessions.state(BROKER))
        self.sessions.heartbeat(request, result, self.view.image.offset + len(records) + 1)
        response = BrokerHeartbeatResponse(
            error_code=result.error,
            is_caught_up=result.is_caught_up,
            is_fenced=result.is_fenced,
            should_shut_down=result.should_shut_down,
        )
        self.plan(records, lambda: answer(response))


class Process:
    """One process of the broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.incarnation = world.random.randbytes(16)
        self.life = BrokerLifecycle(
            LifecycleConfig(
                node_id=BROKER,
                cluster_id="c",
                incarnation_id=self.incarnation,
                listeners=[ListenerAddress("PLAINTEXT", "h", 9092)],
                features={"metadata.version": (7, 30)},
                log_dirs=[b"d" * 16],
            )
        )
        self.channel = ChannelMachine(ChannelConfig(node_id=BROKER, name="heartbeat"), lambda: world.known)
        self.dead = False
        self.hangs_until = 0.0
        self.ports = 0
        self.asked: int | None = None  # the controller that the question on its way was sent to
        self.sends = 0
        self.woken = float("inf")
        self.life.start(world.now)
        self.turn()

    def event(self, call: Callable[[], object]) -> None:
        """Have something happen in this process, when it does not hang, and while it lives."""
        if self.dead:
            return
        if self.world.now < self.hangs_until:
            self.world.at(self.hangs_until - self.world.now, lambda: self.event(call))
            return
        call()
        self.turn()

    def turn(self) -> None:
        world = self.world
        again = True
        while again and not self.dead:
            again = False
            for effect in self.life.poll(world.now):
                again = True
                self.perform(effect)
            for asked in self.channel.poll(world.now):
                again = True
                if isinstance(asked, Finish):
                    self.life.answered(asked.question.request, asked.response, asked.error, world.now)  # type: ignore[arg-type]
                else:
                    self.send(asked)
        due = min(self.life.next_wakeup(), self.channel.next_wakeup(world.now))
        if due < float("inf") and not self.woken <= due:
            self.woken = due
            world.at(max(due - world.now, 1e-6), lambda: self.wake(due))

    def follow(self) -> None:
        """Apply the metadata as it is."""
        found = outcome(self.world.history)
        self.life.metadata_at(len(self.world.history) + FIRST_EPOCH)
        self.life.registration_in_metadata(None if found is None else found.incarnation, True, self.world.now)

    def wake(self, due: float) -> None:
        if self.woken == due:
            self.woken = float("inf")
        self.event(lambda: None)

    def perform(self, effect: Any) -> None:
        world = self.world
        if isinstance(effect, lifecycle.Send):
            self.channel.ask(effect.request, lambda *_: None, world.now, timeout_s=effect.timeout_s)
        elif isinstance(effect, lifecycle.StateChanged) and effect.state is BrokerState.RECOVERY:
            world.at(world.random.uniform(0, 3), lambda: self.event(lambda: self.life.loaded(world.now)))
        elif isinstance(effect, lifecycle.OpenPorts):
            self.ports += 1
            assert any(r.kind == "unfence" and r.incarnation == self.incarnation for r in world.history)
        elif isinstance(effect, lifecycle.Halt):
            self.dead = True
            world.halts += 1

    def send(self, effect: channel.Send | channel.Call) -> None:
        """Over a network that delays, loses and cuts off; what takes too long ends the connection."""
        world, question = self.world, effect.question
        assert isinstance(effect, channel.Send) and self.asked != effect.node_id, "two questions on their way"
        self.asked, self.sends = effect.node_id, self.sends + 1
        number = self.sends
        target = world.controllers[effect.node_id]
        state = {"done": False}

        def done(response: Any, error: FastqError | None) -> None:
            if not state["done"]:
                state["done"] = True
                self.event(lambda: took(response, error))

        def took(response: Any, error: FastqError | None) -> None:
            if number == self.sends:  # it was not asked of the next controller
                self.asked = None
            if isinstance(response, BrokerRegistrationResponse) and response.error_code == 0:
                owner = [r for r in world.history if r.kind == "register" and r.epoch == response.broker_epoch]
                assert [record.incarnation for record in owner] == [self.incarnation], "another's epoch"
            self.channel.answered(question, response, error, world.now)

        def arrive() -> None:
            if not target.up:
                done(None, ConnectionClosed())
            elif world.random.random() >= world.loss:
                target.serve(question.request, reply)

        def reply(response: Any) -> None:
            if world.random.random() < world.loss:
                return  # it is late for ever
            late = effect.timeout_s * 1.5 * world.random.random() if world.random.random() < world.loss else 0.0
            world.at(late + world.delay(), lambda: done(response, None))

        world.at(world.delay(), arrive)
        world.at(effect.timeout_s, lambda: done(None, ConnectionTimeout()))


class World:
    """`loss`: share of messages that are lost, and of answers that are late."""

    def __init__(self, seed: int, controller: type[Controller] = Controller) -> None:
        self.random = Random(seed)
        self.now, self.loss = 0.0, 0.0
        self.due: list[tuple[float, int, Callable[[], object]]] = []
        self.order = itertools.count()
        self.history: list[Record] = []
        self.epoch = 0
        self.leader: Controller | None = None
        self.known = Leader(-1, 0, None)  # what raft tells the broker, some time later
        self.records: list[Any] = []
        """The history as our own controllers write it."""
        self.controllers = {node_id: controller(self, node_id) for node_id in CONTROLLERS}
        self.processes: list[Process] = []
        self.halts = 0
        self.steps = 0

    def at(self, delay_s: float, call: Callable[[], object]) -> None:
        heapq.heappush(self.due, (self.now + delay_s, next(self.order), call))

    def delay(self) -> float:
        return self.random.uniform(0.0005, 0.01)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        end = self.now + seconds
        while self.due and self.due[0][0] <= end:
            self.now, _, call = heapq.heappop(self.due)
            call()
            self.steps += 1
            self.check()
            if until():
                return True
        self.now = end
        return until()

    def check(self) -> None:
        found = outcome(self.history)
        running = [
            process
            for process in self.processes
            if not process.dead
            and process.life.state is BrokerState.RUNNING
            and found is not None
            and (process.life.epoch, process.incarnation) == (found.epoch, found.incarnation)
        ]
        assert len(running) <= 1, "two live registrations"
        for process in self.processes:
            assert process.ports <= 1

    def commit(self, history: list[Record]) -> None:
        assert history[: len(self.history)] == self.history or len(history) <= len(self.history), "history changed"
        if len(history) > len(self.history):
            self.history = history
            for process in self.processes:
                self.at(self.delay(), lambda process=process: process.event(process.follow))  # type: ignore[misc]

    # -- what happens to controllers and processes

    def elect(self, node_id: int | None = None) -> None:
        """Another controller leads; the last one hears of it later, the broker too. What was not committed is forgotten."""
        old = self.leader
        candidates = [each for each in self.controllers.values() if each.up]
        if not candidates:
            self.leader = None
            return
        self.epoch += 1
        self.leader = self.random.choice(candidates) if node_id is None else self.controllers[node_id]
        self.leader.lead(self.epoch)
        if old is not None and old is not self.leader:
            epoch = old.leads
            self.at(self.random.uniform(0, 3), lambda: self.depose(old, epoch))
        news = Leader(self.leader.node_id, self.epoch, Endpoint("h", self.leader.node_id))
        hidden = self.random.random() < 0.3  # for a while nobody is known
        if hidden:
            self.known = Leader(-1, self.epoch, None)
        self.at(self.random.uniform(0, 2), lambda: self.tell(news))

    def tell(self, news: Leader) -> None:
        if news.epoch >= self.known.epoch:
            self.known = news

    @staticmethod
    def depose(old: Controller, epoch: int) -> None:
        if old.leads == epoch:
            old.leads = 0

    def kill_controller(self) -> None:
        victim = self.random.choice(list(self.controllers.values()))
        victim.crash()
        self.at(self.random.uniform(1, 20), lambda: setattr(victim, "up", True))
        if victim is self.leader:
            self.at(self.random.uniform(0.5, 4), self.elect)

    def tick(self) -> None:
        """Sessions run out; without a leader, somebody stands for election."""
        if self.leader is None or not self.leader.up:
            self.elect()
        for controller in self.controllers.values():
            if controller.up:
                controller.expire()
        self.at(1.0, self.tick)

    def start_process(self) -> Process:
        process = Process(self)
        self.processes.append(process)
        process.event(process.follow)
        return process

    def restart_process(self, *, hang_s: float = 0.0) -> None:
        """The broker is started anew; the old process is killed, or hangs for a while and does not know."""
        old = self.processes[-1]
        if hang_s:
            old.hangs_until = self.now + hang_s
        else:
            old.dead = True
        self.start_process()

    def watch(self) -> None:
        """Somebody starts a broker again that has halted."""
        if self.processes[-1].dead or self.processes[-1].life.state is BrokerState.SHUTTING_DOWN:
            self.start_process()
        self.at(1.0, self.watch)
