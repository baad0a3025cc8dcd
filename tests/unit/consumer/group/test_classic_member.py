"""Members of the classic protocol against a coordinator of a few lines, under a seed: requests and answers get lost, the coordinator
moves, members come, go and are thrown out. At no time do two members of the group read a partition, and in the end all are read.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.group.assignors import find_assignors
from fastq.consumer.group.classic import ClassicMember, State
from fastq.consumer.group.coordinator import Coordinator
from fastq.consumer.group.membership import Change, ChangeKind, Subscription
from fastq.errors import ConnectionClosed, ErrorCode, FastqError, FencedInstanceId, GroupAuthorizationFailed
from fastq.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from fastq.net.troubles import Troubles
from fastq.protocol.messages import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

TOPICS = {"t": 5, "u": 2}
ANY_NODE, SEPARATE = 1, 100


@dataclass
class Entry:
    """A member as the coordinator knows it. `answer` is the request of it that waits."""

    metadata: dict[str, bytes]
    instance: str | None
    alive_until: float
    answer: Callable[[Any], None] | None = None
    joined: bool = False
    assignment: bytes = b""


@dataclass
class FakeGroup:
    """One group of Kafka's classic protocol, as plainly as it goes."""

    node: int = 1
    generation: int = 0
    state: str = "Empty"
    leader: str = ""
    protocol: str = ""
    members: dict[str, Entry] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    ids: Any = field(default_factory=itertools.count)
    refuse: int = 0  # an error code for every join

    def handle(self, request: Any, answer: Callable[[Any], None], now: float) -> None:
        getattr(self, f"_{type(request).__name__}")(request, answer, now)

    def tick(self, now: float) -> None:
        for member_id in [m for m, entry in self.members.items() if entry.answer is None and entry.alive_until < now]:
            self._remove(member_id)
        if self.state == "PreparingRebalance" and self.members and all(e.joined for e in self.members.values()):
            self._complete(now)

    def _remove(self, member_id: str) -> None:
        entry = self.members.pop(member_id, None)
        if entry is not None:
            if entry.answer is not None:
                entry.answer(ErrorCode.UNKNOWN_MEMBER_ID)
            self._prepare()

    def _prepare(self) -> None:
        if self.state == "PreparingRebalance":
            return
        self.state = "PreparingRebalance" if self.members else "Empty"
        for entry in self.members.values():
            entry.joined = False
            answer, entry.answer = entry.answer, None
            if answer is not None:
                answer(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    def _complete(self, now: float) -> None:
        self.generation += 1
        self.state, self.leader = "CompletingRebalance", min(self.members)
        shared = set.intersection(*(set(entry.metadata) for entry in self.members.values()))
        self.protocol = next(name for name in self.members[self.leader].metadata if name in shared)
        everybody = [
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=m, group_instance_id=e.instance, metadata=e.metadata[self.protocol]
            )
            for m, e in self.members.items()
        ]
        for member_id, entry in self.members.items():
            answer, entry.answer = entry.answer, None
            entry.alive_until = now + 10
            if answer is not None:
                answer(
                    JoinGroupResponse(
                        generation_id=self.generation,
                        protocol_name=self.protocol,
                        leader=self.leader,
                        member_id=member_id,
                        members=everybody if member_id == self.leader else [],
                    )
                )

    def _JoinGroupRequest(self, request: Any, answer: Callable[[Any], None], now: float) -> None:
        member_id = request.member_id
        if self.refuse:
            answer(JoinGroupResponse(error_code=self.refuse))
            return
        if not member_id:
            member_id = f"member-{next(self.ids)}"
            self.pending.add(member_id)
            answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
            return
        if member_id not in self.members and member_id not in self.pending:
            answer(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return
        self.pending.discard(member_id)
        metadata = {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}
        entry = self.members.setdefault(member_id, Entry(metadata, request.group_instance_id, now + 10))
        entry.metadata, entry.alive_until = metadata, now + 10
        self._prepare()
        entry.answer, entry.joined = answer, True

    def _known(self, request: Any) -> int:
        if request.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return 0 if request.generation_id == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _SyncGroupRequest(self, request: Any, answer: Callable[[Any], None], now: float) -> None:
        code = self._known(request) or (ErrorCode.REBALANCE_IN_PROGRESS if self.state == "PreparingRebalance" else 0)
        if code:
            answer(SyncGroupResponse(error_code=code))
            return
        entry = self.members[request.member_id]
        entry.alive_until = now + 10
        if self.state == "Stable":
            answer(SyncGroupResponse(assignment=entry.assignment))
            return
        entry.answer = answer
        if request.member_id == self.leader:
            self.state = "Stable"
            for given in request.assignments:
                self.members[given.member_id].assignment = bytes(given.assignment)
            for waiting in self.members.values():
                waits, waiting.answer = waiting.answer, None
                if waits is not None:
                    waits(SyncGroupResponse(assignment=waiting.assignment))

    def _HeartbeatRequest(self, request: Any, answer: Callable[[Any], None], now: float) -> None:
        code = self._known(request)
        if not code:
            self.members[request.member_id].alive_until = now + 10
            code = ErrorCode.REBALANCE_IN_PROGRESS if self.state == "PreparingRebalance" else 0
        answer(HeartbeatResponse(error_code=code))

    def _LeaveGroupRequest(self, request: Any, answer: Callable[[Any], None], now: float) -> None:
        for member in request.members:
            self._remove(member.member_id)
        answer(LeaveGroupResponse())


class World:
    """Virtual time, members, a coordinator, and a network that loses things."""

    def __init__(self, seed: int, strategies: tuple[str, ...], loss: float) -> None:
        self.rng, self.loss, self.now = random.Random(seed), loss, 0.0
        self.group = FakeGroup()
        self.strategies = strategies
        self.members: list[ClassicMember] = []
        self.haste = 0.7
        """How likely a step of a rebalance that was begun is done at a turn: a listener may take a while, and let all else go on."""
        self.steps: dict[ClassicMember, Change] = {}  # that applications are at
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.metadata = ClusterMetadata()
        self.metadata.nodes = {n: Node(n, "broker", n) for n in (1, 2)}
        self.set_partitions(TOPICS)

    def set_partitions(self, counts: dict[str, int]) -> None:
        self.metadata.topics = {
            name: TopicMetadata(name, partitions=tuple(PartitionMetadata(i, 1) for i in range(count)))
            for name, count in counts.items()
        }
        self.metadata.generation += 1

    def join(self, topics: tuple[str, ...] = ("t", "u"), **options: Any) -> ClassicMember:
        config = ConsumerConfig(group_id="g", max_poll_interval_ms=60_000, session_timeout_ms=10_000, **options)
        coordinator = Coordinator(
            "g",
            troubles=Troubles(logging.getLogger("fastq.consumer")),
            any_broker=lambda now: ANY_NODE,
            separate=lambda node: SEPARATE + node.node_id,
            backoff_ms=(50, 500),
            random=self.rng,
        )
        member = ClassicMember(config, coordinator, self.metadata, find_assignors(self.strategies), lambda topics: None)
        member.subscribe(Subscription(topics))
        self.members.append(member)
        return member

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay_s, next(self.order), callback))

    def send(self, outgoing: Outgoing) -> None:
        request = outgoing.build(3 if outgoing.api_key in (10, 13) else 5)
        told: list[bool] = []

        def done(response: Any, error: FastqError | None) -> None:
            if not told:
                told.append(True)
                outgoing.done(response, error, self.now)

        def fail() -> None:
            done(None, ConnectionClosed("lost"))

        def answer(response: Any) -> None:
            if isinstance(response, int):
                response = (JoinGroupResponse if outgoing.api_key == 11 else SyncGroupResponse)(error_code=response)
            if isinstance(response, SyncGroupResponse) and outgoing.api_key == 11:
                response = JoinGroupResponse(error_code=response.error_code)
            lost = self.rng.random() < self.loss
            self.later(self.rng.uniform(0.001, 0.1), fail if lost else lambda: done(response, None))

        def arrive() -> None:
            if self.rng.random() < self.loss:
                fail()
            elif outgoing.api_key == 10:
                answer(FindCoordinatorResponse(node_id=self.group.node, host="broker", port=self.group.node))
            elif outgoing.node_id != SEPARATE + self.group.node:
                kinds = {11: JoinGroupResponse, 12: HeartbeatResponse, 13: LeaveGroupResponse, 14: SyncGroupResponse}
                answer(kinds[outgoing.api_key](error_code=ErrorCode.NOT_COORDINATOR))
            else:
                self.group.handle(request, answer, self.now)

        self.later(self.rng.uniform(0.001, 0.05), arrive)

    def run(self, seconds: float, step: float = 0.05) -> None:
        end = self.now + seconds
        while self.now < end:
            for member in self.members:
                self.turn(member)
            self.now += step
            self.group.tick(self.now)
            while self.events and self.events[0][0] <= self.now:
                heapq.heappop(self.events)[2]()
            self.check()

    def turn(self, member: ClassicMember) -> None:
        member.poll(self.now)
        if member in self.steps and self.rng.random() < self.haste:
            member.carried_out(self.steps.pop(member))
        if member not in self.steps and (change := member.changes()) is not None:
            self.steps[member] = change
        for source in (member.coordinator, member):
            for outgoing in source.requests(self.now, lambda node_id: True):
                self.send(outgoing)

    def check(self) -> None:
        """Nobody reads what another member reads: those that were thrown out, and know it or not, apart."""
        owners: dict[TopicPartition, str] = {}
        for member in self.members:
            if member.member_id not in self.group.members or member.generation < 0:
                continue
            for tp in member.owned:
                assert tp not in owners, f"{tp} is read by {owners[tp]} and {member.member_id}"
                owners[tp] = member.member_id

    def settled(self) -> bool:
        alive = [member for member in self.members if member.state is not State.IDLE]
        owned = [tp for member in alive for tp in member.owned]
        wanted = {
            TopicPartition(t, i) for t, topic in self.metadata.topics.items() for i in range(len(topic.partitions))
        }
        return all(member.is_stable for member in alive) and sorted(owned) == sorted(wanted)

    def settle(self) -> None:
        self.loss = 0.0
        for _ in range(400):
            self.run(0.5)
            if self.settled():
                return
        raise AssertionError(f"no end: {[(m.member_id, m.state, m.owned) for m in self.members]}, {self.group}")


PROTOCOLS = [("range", "cooperative-sticky"), ("sticky",), ("roundrobin",), ("cooperative-sticky",)]


@pytest.mark.parametrize("strategies", PROTOCOLS)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_a_partition_has_one_reader(seed: int, strategies: tuple[str, ...]) -> None:
    world = World(seed, strategies, loss=0.05)
    rng = world.rng
    world.haste = rng.choice((0.7, 0.1, 0.01))
    for _ in range(12):
        what = rng.random()
        if what < 0.4 or len(world.members) < 2:
            world.join()
        elif what < 0.6:
            leaver = world.members.pop(rng.randrange(len(world.members)))
            for outgoing in leaver.leave("the test says so"):
                world.send(outgoing)
        elif what < 0.7:
            world.members.pop(rng.randrange(len(world.members)))  # killed: its session ends
        elif what < 0.8:
            world.group.node = 3 - world.group.node
        elif what < 0.9 and world.group.members:
            world.group._remove(rng.choice(list(world.group.members)))
        else:
            world.set_partitions({"t": len(world.metadata.topics["t"].partitions) + 1, "u": 2})
        world.run(rng.uniform(0.1, 8.0))
    if not world.members:
        world.join()
    world.settle()
    for member in world.members:
        assert member.group_topics == (["t", "u"] if member.member_id == world.group.leader else [])


def test_a_member_that_loses_its_place_while_its_listener_runs_reads_what_it_is_given_next() -> None:
    """The listener of its first assignment: there is nothing to lose yet, and the group would be joined again behind its back."""
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.haste = 0.0
    world.run(5.0)
    assert world.steps[member].kind is ChangeKind.ASSIGN
    world.group._remove(member.member_id)
    world.run(5.0)
    assert member.generation < 0, "not before the step is done"
    world.haste = 0.7
    world.settle()


def test_cooperative_members_keep_what_stays_theirs() -> None:
    world = World(1, ("cooperative-sticky",), 0.0)
    first = world.join()
    world.settle()
    world.join()
    before = set(first.owned)
    revoked: set[TopicPartition] = set()
    for _ in range(200):
        change = world.steps.get(first)
        if change is not None and change.kind is ChangeKind.REVOKE:
            revoked |= set(change.partitions)
        world.run(0.05)
        assert before - revoked <= first.owned
    assert len(first.owned) == 4 and len(revoked) == 3


def test_eager_members_give_everything_up_before_they_join() -> None:
    world = World(1, ("range",), 0.0)
    first = world.join()
    world.settle()
    assert len(first.owned) == 7
    world.join()
    world.run(20.0)
    assert world.settled() and len(first.owned) in (3, 4)


def test_a_member_whose_application_is_silent_leaves_and_comes_back() -> None:
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.settle()
    for outgoing in member.heartbeats(world.now + 61.0, lambda node_id: True):
        world.send(outgoing)
    change = member.changes()
    assert change is not None and change.kind is ChangeKind.LOSE and len(change.partitions) == 7
    world.settle()


@pytest.mark.parametrize("heard", [True, False])
def test_a_farewell_that_could_not_be_said_is_said_as_the_member_leaves(heard: bool) -> None:
    """Or its place is taken again under its id: others would wait for a member that is no more until its session ends."""
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.settle()
    out = member.heartbeats(world.now + 61.0, lambda node_id: heard)
    assert [outgoing.api_key for outgoing in out] == ([13] if heard else [])
    assert member.too_slow and member.generation < 0
    assert [outgoing.api_key for outgoing in member.leave("bye")] == ([] if heard else [13])


def test_errors_that_stay_and_errors_that_pass() -> None:
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.group.refuse = ErrorCode.GROUP_AUTHORIZATION_FAILED
    world.run(2.0)
    error = member.take_error()
    assert (
        isinstance(error, GroupAuthorizationFailed)
        and "group g" in str(error)
        and "Allow the principal READ" in str(error)
    )
    world.group.refuse = 0
    world.settle()
    world.group.refuse = ErrorCode.FENCED_INSTANCE_ID
    member.rejoin("the test says so")
    world.run(2.0)
    assert isinstance(member.take_error(), FencedInstanceId) and isinstance(member.take_error(), FencedInstanceId)
    assert member.state is State.FAILED and not member.owned


def test_a_commit_that_is_refused_makes_the_member_join_again() -> None:
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.settle()
    generation = member.generation
    member.lost_generation(ErrorCode.ILLEGAL_GENERATION)
    assert not member.may_commit
    world.settle()
    assert member.generation > generation and member.may_commit


def test_a_static_member_does_not_say_good_bye() -> None:
    world = World(1, ("range",), 0.0)
    member = world.join(group_instance_id="one")
    world.settle()
    assert member.leave("restart") == []
    dynamic = World(1, ("range",), 0.0)
    other = dynamic.join()
    dynamic.settle()
    assert [outgoing.api_key for outgoing in other.leave("bye")] == [13]


def member_id_again(request: Any, answer: Callable[[Any], None], now: float) -> None:
    answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="again"))


def not_available(request: Any, answer: Callable[[Any], None], now: float) -> None:
    answer(SyncGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))


def leader_of_nobody(request: Any, answer: Callable[[Any], None], now: float) -> None:
    answer(JoinGroupResponse(generation_id=1, protocol_name="range", leader="m", member_id="m", members=[]))


@pytest.mark.parametrize(
    ("api", "refuse"),
    [
        ("_JoinGroupRequest", member_id_again),
        ("_SyncGroupRequest", not_available),
        ("_JoinGroupRequest", leader_of_nobody),
    ],
)
def test_a_group_that_is_never_joined_is_asked_less_and_less_often(api: str, refuse: Any) -> None:
    """After the first seconds not more often than the longest back-off, of 0.5 s, says."""
    world = World(1, ("range",), 0.0)
    member = world.join()
    setattr(world.group, api, refuse)
    sent: list[int] = []
    send = world.send

    def counted(outgoing: Outgoing) -> None:
        sent.append(outgoing.api_key)
        send(outgoing)

    world.send = counted  # type: ignore[method-assign]
    world.run(5.0)
    sent.clear()
    world.run(20.0)
    assert 1 <= sent.count(11) <= 20 / 0.4
    if refuse is leader_of_nobody:
        assert "leaves it out of the members" in str(member.take_error())
    delattr(world.group, api)
    world.settle()


def test_a_farewell_does_not_wait_behind_a_join() -> None:
    world = World(1, ("range",), 0.0)
    first, second = world.join(), world.join()
    world.settle()
    assert first.leave("the test says so")[0].node_id == SEPARATE + world.group.node
    second.state = State.JOINING
    assert second.leave("the test says so")[0].node_id == world.group.node


def test_a_topic_that_was_not_there_when_the_group_was_assigned_is_read_when_it_is() -> None:
    """As one that is deleted and made again."""
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.settle()
    world.set_partitions({})
    world.run(20.0)
    assert not member.owned
    world.set_partitions(TOPICS)
    world.settle()
    assert member.owned


def test_who_could_not_run_for_longer_than_a_session_does_not_look_for_another_coordinator() -> None:
    """The native thread has kept the member alive; nobody has asked who could not be answered."""
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.settle()
    while member._beating or member.next_heartbeat(world.now) == 0:
        world.run(0.05)
    world.now += 11.0
    world.group.members[member.member_id].alive_until = world.now + 10.0
    (beat,) = member.heartbeats(world.now, lambda node_id: True)
    assert member.coordinator.known
    assert beat.api_key == 12
    for after_s, known in (
        (0.1, True),
        (9.9, True),
        (10.1, False),
    ):  # who was asked, and says nothing for so long, is not there
        assert member.heartbeats(world.now + after_s, lambda node_id: True) == []
        assert member.coordinator.known is known


def test_a_coordinator_that_cannot_be_asked_for_longer_than_a_session_is_looked_for() -> None:
    world = World(1, ("range",), 0.0)
    member = world.join()
    world.settle()
    assert member.heartbeats(world.now + 11.0, lambda node_id: False) == []
    assert not member.coordinator.known
