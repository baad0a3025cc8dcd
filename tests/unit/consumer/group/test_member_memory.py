"""Where there is no memory for a moment, whichever, a member of a group asks what it wanted to ask later: it waits for no answer to what
was never sent, and no partition has two readers."""

from __future__ import annotations

import logging
import random
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
from consumer_protocol_harness import Harness, T
from failing_allocations import AllocationsFail

from fastq import Consumer
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.group import classic as classic_member
from fastq.consumer.group.assignors import find_assignors
from fastq.consumer.group.classic import ClassicMember, State
from fastq.consumer.group.commits import Commit, CommittedQuery, Committer
from fastq.consumer.group.coordinator import Coordinator
from fastq.consumer.group.membership import Subscription
from fastq.consumer.group.subscription import encode_assignment
from fastq.errors import ErrorCode, FastqError, ProtocolError
from fastq.metadata import (
    ZERO_UUID,
    ClusterMetadata,
    GroupMetadata,
    Node,
    OffsetAndMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from fastq.net.troubles import Troubles
from fastq.protocol.messages import JoinGroupResponse, SyncGroupResponse

# Of generators that end by it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ALLOCATIONS = 200
"""More than any of these takes."""
COMMIT, FETCH_OFFSETS, JOIN, HEARTBEAT, SYNC = 8, 9, 11, 12, 14
TPS = [TopicPartition("t", index) for index in range(2)]


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log record that there is no memory for is an error of the interpreter's."""
    monkeypatch.setattr(logging.getLogger("fastq.consumer"), "disabled", True)


def yes(node_id: int) -> bool:
    return True


def coordinator() -> Coordinator:
    found = Coordinator(
        "g",
        troubles=Troubles(logging.getLogger("fastq.consumer")),
        any_broker=lambda now: 1,
        separate=lambda node: node.node_id,
        backoff_ms=(1, 1),
        random=random.Random(1),
    )
    found.node_id, found.node = 7, Node(7, "broker", 9092)
    return found


def classic(strategy: str = "range") -> ClassicMember:
    metadata = ClusterMetadata()
    metadata.topics = {"t": TopicMetadata("t", partitions=(PartitionMetadata(0, 1), PartitionMetadata(1, 1)))}
    config = ConsumerConfig(group_id="g")
    member = ClassicMember(config, coordinator(), metadata, find_assignors([strategy]), lambda topics: None)
    member.subscribe(Subscription(("t",)))
    return member


def asked(member: Any, now: float, sent: deque[Outgoing]) -> None:
    for outgoing in member.requests(now, yes):
        sent.append(outgoing)  # there is room in it


def join(member: ClassicMember) -> None:
    """It leads a group of its own."""
    sent = deque[Outgoing]()
    asked(member, 0.0, sent)
    joining: Any = sent.pop().build(5)
    alone = JoinGroupResponse.JoinGroupResponseMember(member_id="m", metadata=joining.protocols[0].metadata)
    name = joining.protocols[0].name
    answer = JoinGroupResponse(generation_id=1, protocol_name=name, leader="m", member_id="m", members=[alone])
    member._joined(member._attempt, answer, None, 0.0)


def sync(member: ClassicMember) -> None:
    asked(member, 0.0, deque())
    member._synced(member._attempt, SyncGroupResponse(assignment=encode_assignment(TPS)), None, 0.0)


@pytest.mark.parametrize("api", [JOIN, SYNC, HEARTBEAT])
def test_a_classic_member_asks_what_it_has_not_asked(api: int) -> None:
    outcomes = []
    for first in range(ALLOCATIONS):
        member, sent, now = classic(), deque[Outgoing](), 0.0
        if api != JOIN:
            join(member)
        if api == HEARTBEAT:
            sync(member)
            now = 4.0
        with suppress(MemoryError), AllocationsFail(first):
            asked(member, now, sent)
        outcomes.append(len(sent))
        asked(member, now, sent)
        assert [outgoing.api_key for outgoing in sent] == [api], f"allocation {first}"
        if api == SYNC:
            assert not member.take_error()
            (assigned,) = sent[0].build(5).assignments  # type: ignore[union-attr]
            assert assigned.assignment == encode_assignment(TPS), f"allocation {first}"
    assert 0 in outcomes and outcomes[-1]


def test_a_heartbeat_goes_out_where_there_is_no_memory_for_the_join_after_it() -> None:
    both = 0
    for first in range(ALLOCATIONS):
        member, sent = classic("cooperative-sticky"), deque[Outgoing]()
        join(member)
        sync(member)
        member.state = State.UNJOINED
        member._changes.clear()
        with suppress(MemoryError), AllocationsFail(first):
            asked(member, 4.0, sent)
        both += len(sent) == 2
        asked(member, 4.0, sent)
        assert [outgoing.api_key for outgoing in sent] == [HEARTBEAT, JOIN], f"allocation {first}"
    assert 0 < both < ALLOCATIONS


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_what_fails_as_an_assignment_is_taken_in_leaves_no_reader_that_joins_with_it(strategy: str) -> None:
    """The answer is told once more, as an error, as the network's core does it."""
    outcomes = []
    for first in range(ALLOCATIONS):
        member = classic(strategy)
        join(member)
        asked(member, 0.0, deque())
        attempt, answer = member._attempt, SyncGroupResponse(assignment=encode_assignment(TPS))
        try:
            with AllocationsFail(first):
                member._synced(attempt, answer, None, 0.0)
            outcomes.append(True)
        except MemoryError:
            outcomes.append(False)
            member._synced(attempt, None, ProtocolError("no memory"), 0.0)
        steps = [step.kind.name for step in member._changes]
        assert (member.state is State.STABLE) == (steps == ["ASSIGN"]), f"allocation {first}"
        assert member.state in (State.STABLE, State.UNJOINED)
    assert set(outcomes) == {True, False} and outcomes[-1]


def test_a_member_that_there_is_no_memory_to_speak_of_has_its_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as one that was refused, and joined again, with what it was to give up first."""
    member = classic()
    join(member)
    asked(member, 0.0, deque())

    def no_memory(*_: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(classic_member.logger, "info", no_memory)
    attempt = member._attempt
    with pytest.raises(MemoryError):
        member._synced(attempt, SyncGroupResponse(assignment=encode_assignment(TPS)), None, 0.0)
    member._synced(attempt, None, ProtocolError("no memory"), 0.0)
    assert member.state is State.STABLE and [step.kind.name for step in member._changes] == ["ASSIGN"]


@pytest.mark.parametrize("state", ["joining", "acknowledging", "too slow"])
def test_a_member_of_the_consumer_protocol_says_what_it_has_not_said(state: str) -> None:
    outcomes = []
    for first in range(ALLOCATIONS):
        harness, sent = Harness(), deque[Outgoing]()
        member = harness.member
        if state == "joining":
            member.subscribe(Subscription(("t",)))
        else:
            harness.join("t", assigned={T: [0]})
            member.poll(harness.now)
            harness.later()
            harness.beat()
            harness.answer(epoch=2, assigned={T: [0, 1]})
            harness.carry_out()
        if state == "too slow":
            harness.later(301)
        with suppress(MemoryError), AllocationsFail(first):
            asked(member, harness.now, sent)
        outcomes.append(len(sent))
        asked(member, harness.now, sent)
        assert len(sent) == 1, f"allocation {first}"
        said: Any = sent[0].build(1)
        assert said.member_epoch == {"joining": 0, "acknowledging": 2, "too slow": -1}[state], f"allocation {first}"
        if state == "acknowledging":
            assert [part.partitions for part in said.topic_partitions] == [[0, 1]], f"allocation {first}"
    assert 0 in outcomes and outcomes[-1]


def test_an_assignment_that_there_was_no_memory_to_take_in_is_asked_for_again() -> None:
    """The heartbeats after it said nothing that was news, so that the coordinator had no reason to repeat it."""
    outcomes = []
    for first in range(ALLOCATIONS):
        harness = Harness()
        harness.join("t", assigned={T: [0]})
        harness.later()
        harness.beat()
        try:
            with AllocationsFail(first):
                harness.answer(epoch=2, assigned={T: [0, 1]})
            outcomes.append(True)
        except MemoryError:
            outcomes.append(False)
            if harness.sent:
                continue  # it was the answer that could not be made
        if harness.member._target == {(T, 0), (T, 1)}:
            continue
        harness.later()
        request = harness.beat()
        assert request is not None and request.rebalance_timeout_ms > 0, f"allocation {first}"
        assert request.subscribed_topic_names == ["t"] and request.topic_partitions is not None
    assert set(outcomes) == {True, False} and outcomes[-1]


def test_a_group_that_joins_and_commits_does_both_whichever_allocation_fails() -> None:
    """What was made already counted as sent, and went nowhere."""
    outcomes = []
    for first in range(ALLOCATIONS):
        with Consumer(group_id="g", bootstrap_servers="127.0.0.1:1", group_protocol="classic") as consumer:
            session = consumer._group
            assert session is not None
            session._protocol, session.subscribed, session.polled = "classic", True, True
            session._subscription = Subscription(("t",))
            node = Node(1, "127.0.0.1", 1)
            session.coordinator.node_id, session.coordinator.node = consumer._core.separate(node), node
            session.membership = session._begin_member()
            query = session._query = CommittedQuery(session.coordinator, TPS)
            who, sent = GroupMetadata("g"), deque[Outgoing]()
            for tp in TPS:
                session.committer.add({tp: OffsetAndMetadata(1)}, who, consumer._core.clock() + 1000)
            with suppress(MemoryError), AllocationsFail(first):
                for outgoing in session.requests(0.0, yes):
                    sent.append(outgoing)
            outcomes.append(len(sent))
            sent.extend(session.requests(0.0, yes))
            assert [each.api_key for each in sent] == [JOIN, FETCH_OFFSETS, COMMIT], f"allocation {first}"
            session._query, query.error = None, FastqError("over")
            session.committer.fail_all(FastqError("over"))
            session.membership = None
    assert {0, 1, 2, 3} <= set(outcomes)


def committer(told: list[int]) -> Committer:
    return Committer(
        coordinator(), lambda code, who: told.append(code), lambda who: None, lambda offsets: None, lambda tp: False,
        lambda tp: ZERO_UUID, lambda node_id: None,
    )  # fmt: skip


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_commit_ends_or_is_sent_again_whichever_allocation_fails_at_its_answer(code: int) -> None:
    """The answer is told once more, as an error, as the network's core does it; those not come to were forgotten."""
    outcomes = []
    for first in range(ALLOCATIONS):
        commits = committer([])
        made: list[Commit] = [commits.add({tp: OffsetAndMetadata(1)}, GroupMetadata("g", 1, "m"), 1e9) for tp in TPS]
        (outgoing,) = commits.requests(0.0, yes)
        codes = dict.fromkeys(TPS, int(code))
        try:
            with AllocationsFail(first):
                outgoing.done(codes, None, 0.0)
            outcomes.append(True)
        except MemoryError:
            outcomes.append(False)
            outgoing.done(None, ProtocolError("no memory"), 0.0)
        again = [commit for commit in made if not commit.finished]
        assert not again or list(commits._waiting) == again, f"allocation {first}"
        assert commits.busy == bool(again)
    assert set(outcomes) == {True, False} and outcomes[-1]


def test_commits_whose_time_is_over_are_told_so_whichever_allocation_fails() -> None:
    for first in range(ALLOCATIONS):
        commits = committer([])
        made = [commits.add({tp: OffsetAndMetadata(1)}, GroupMetadata("g", 1, "m"), 1.0) for tp in TPS]
        with suppress(MemoryError), AllocationsFail(first):
            commits.requests(2.0, yes)
        commits.requests(2.0, yes)
        assert all(commit.finished for commit in made), f"allocation {first}"
