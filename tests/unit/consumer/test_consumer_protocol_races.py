"""The member of a KIP-848 group, without I/O, when what it hears is of another moment: answers that come late, were another's, or did not
come at all."""

from __future__ import annotations

import pytest
from consumer_protocol_harness import Harness, T, owned, parts

from fastq import Consumer
from fastq.consumer.group.consumer_protocol_states import State
from fastq.consumer.group.membership import Change, ChangeKind, Subscription
from fastq.errors import ConnectionClosed, ErrorCode
from fastq.metadata import GroupMetadata, TopicPartition
from fastq.protocol.messages import ConsumerGroupHeartbeatResponse


def test_an_epoch_that_a_heartbeat_thread_was_told_first_takes_nothing_from_the_member() -> None:
    """The coordinator lets the epoch before through, but only with what the member owns, which most heartbeats do not say."""
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.later()
    request = harness.beat()
    assert request is not None and parts(request) is None
    harness.answer(ErrorCode.FENCED_MEMBER_EPOCH)
    assert harness.member.may_commit and harness.carry_out() == []
    request = harness.beat()
    assert request is not None, "at once"
    assert (request.member_epoch, parts(request), request.subscribed_topic_names) == (4, {T: [0]}, ["t"])
    harness.answer(epoch=5, assigned={T: [0, 1]})
    assert harness.carry_out() == [Change(ChangeKind.ASSIGN, (TopicPartition("t", 1),))]


def test_who_said_all_and_is_refused_for_its_epoch_has_lost_its_place() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.later()
    for state in (State.STABLE, State.FENCED):
        assert harness.beat() is not None
        harness.answer(ErrorCode.FENCED_MEMBER_EPOCH)
        assert harness.member.state is state
    assert harness.carry_out() == [Change(ChangeKind.LOSE, (TopicPartition("t", 0),))]


def test_who_said_all_in_an_epoch_that_others_know_better_asks_in_that() -> None:
    """What the thread has heard is listened to between the answer and the next heartbeat."""
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.member.overheard(None, harness.now)
    harness.later()
    request = harness.beat()
    assert request is not None and parts(request) == {T: [0]}
    harness.answer(ErrorCode.FENCED_MEMBER_EPOCH)
    for epoch in (5, 6):
        heard = ConsumerGroupHeartbeatResponse(member_epoch=epoch, heartbeat_interval_ms=5000)
        harness.member.overheard(heard, harness.now)
    request = harness.beat()
    assert request is not None and (request.member_epoch, parts(request)) == (6, {T: [0]})
    harness.answer(epoch=6)
    assert harness.carry_out() == []


def test_an_answer_of_before_does_not_bring_an_older_epoch_back() -> None:
    """A commit in that one would be refused."""
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.later()
    assert harness.beat() is not None
    harness.member.overheard(ConsumerGroupHeartbeatResponse(member_epoch=5, heartbeat_interval_ms=5000), harness.now)
    harness.answer(epoch=4)
    assert harness.member.generation == 5


def test_a_heartbeat_of_its_own_that_was_lost_may_be_told_the_assignment_later() -> None:
    """A coordinator that stood still reads what lies on both connections, in any order: the one that is closed may be told."""
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.later()
    assert harness.beat() is not None
    harness.sent.pop().done(None, ConnectionClosed("reset"), harness.now)
    harness.coordinator.known = True
    said = []
    for _ in range(6):
        harness.later()
        request = harness.beat()
        assert request is not None
        said.append((request.subscribed_topic_names, parts(request)))
        harness.answer(epoch=4)
    assert said == [(["t"], {T: [0]})] * 3 + [(None, None)] * 3


def test_what_is_lost_in_one_life_may_be_told_in_the_next() -> None:
    """Under the same member id, and perhaps in the same epoch."""
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.later()
    assert harness.beat() is not None
    lost = harness.sent.pop()
    harness.member.overdue()
    harness.member.poll(harness.now)
    harness.member.overheard(None, harness.now)
    harness.carry_out()
    assert harness.beat() is not None
    lost.done(None, ConnectionClosed("reset"), harness.now)
    harness.answer(epoch=4, assigned={T: [0]})
    harness.carry_out()
    for _ in range(2):
        request = harness.beat()
        assert request is not None
        assert (request.subscribed_topic_names, parts(request)) == (["t"], {T: [0]})
        harness.answer(epoch=4)
        harness.later()


@pytest.mark.parametrize("how", ["all is said", "it was lost", "no pattern of the coordinator's"])
def test_a_pattern_that_is_not_wanted_any_more_is_taken_back_whatever_is_lost(how: str) -> None:
    """What a heartbeat leaves out stays as it was: who says all has to say that there is none."""
    harness = Harness()
    harness.member.subscribe(Subscription(("t",), "t.*"))
    assert harness.beat() is not None
    harness.answer(epoch=4, assigned={T: [0]})
    harness.carry_out()
    assert harness.beat() is not None
    harness.answer(epoch=4)
    if how == "all is said":
        harness.member.overheard(None, harness.now)
    harness.member.subscribe(Subscription(("t", "u"), None if how != "no pattern of the coordinator's" else "(?=t|u)"))
    harness.later()
    request = harness.beat()
    if how != "all is said":
        if how == "it was lost":
            harness.sent.pop().done(None, ConnectionClosed("reset"), harness.now)
        else:
            harness.answer(ErrorCode.INVALID_REGULAR_EXPRESSION)
        harness.coordinator.known = True
        harness.later()
        request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("", ["t", "u"])
    harness.answer(epoch=5)
    harness.later(30)
    request = harness.beat()
    harness.answer(epoch=5)
    harness.later()
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == (None, None)


def test_a_commit_that_is_behind_has_the_member_ask_for_the_epoch_with_all_it_owns() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.later()
    assert harness.beat() is not None
    harness.member.lost_generation(ErrorCode.STALE_MEMBER_EPOCH)
    harness.answer(epoch=4)
    request = harness.beat()
    assert request is not None, "what was on its way was answered before"
    assert (parts(request), request.subscribed_topic_names) == ({T: [0]}, ["t"])
    harness.answer(epoch=5)
    assert harness.member.generation == 5


def test_which_commits_may_be_made_in_the_epoch_of_now() -> None:
    harness = Harness()
    with Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1") as consumer:
        session = consumer._group
        assert session is not None
        session.membership = member = harness.member
        harness.join("t", assigned={T: [0, 1]}, epoch=4)
        mine, other = [TopicPartition("t", 0)], [TopicPartition("t", 1)]
        who = GroupMetadata("g", 4, member.member_id)
        assert session._restamped(who, mine) == who, "a newer one is not known yet"
        harness.later()
        harness.beat()
        harness.answer(epoch=4, assigned={T: [0]})
        harness.carry_out()
        harness.beat()
        harness.answer(epoch=6)
        assert session._restamped(who, mine) == who._replace(generation_id=6)
        assert session._restamped(who, other) is None, "another may have read on"
        member.lost_generation(ErrorCode.UNKNOWN_MEMBER_ID)
        assert session._restamped(who, mine) is None
        harness.carry_out()
        harness.later()
        harness.beat()
        harness.answer(epoch=9, assigned={T: [0]})
        harness.carry_out()
        assert member.owned == owned(("t", 0))
        assert session._restamped(who, mine) is None, "another may have read on meanwhile"
        assert session._restamped(who._replace(generation_id=9), mine) is not None
        session.membership = None


@pytest.mark.parametrize(
    ("what", "says_so"),
    [
        ("lost", True),
        ("refused for its epoch", True),
        ("too slow, and not heard", True),
        ("too slow", False),
        ("failed for good", True),
        ("never taken", False),
        ("unknown", False),
        ("nothing", False),
    ],
)
def test_who_leaves_and_may_be_in_the_group_says_so(what: str, says_so: bool) -> None:
    """An answer that is lost leaves a member behind, which others would wait for until its session ends; its id is made here."""
    harness = Harness()
    harness.member.subscribe(Subscription(("t",)))
    if what == "lost":
        assert harness.beat() is not None
        harness.sent.pop().done(None, ConnectionClosed("reset"), harness.now)
        harness.coordinator.known = True
    elif what == "never taken":
        harness.refused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif what != "nothing":
        harness.join("t", assigned={T: [0]}, epoch=4)
        harness.member.poll(harness.now)
        harness.later()
        if what.startswith("too slow"):
            harness.later(300)
            harness.coordinator.known = what == "too slow"
            assert len(harness.member.heartbeats(harness.now, lambda node: True)) == harness.coordinator.known
            harness.coordinator.known = True
            assert harness.member.state is State.LEFT
        elif what == "failed for good":
            harness.refused(ErrorCode.UNKNOWN_SERVER_ERROR)
            assert harness.member.state is State.FATAL
        else:
            harness.refused(ErrorCode.UNKNOWN_MEMBER_ID if what == "unknown" else ErrorCode.FENCED_MEMBER_EPOCH)
    farewells = [outgoing.build(1).member_epoch for outgoing in harness.member.leave("the test")]
    assert farewells == ([-1] if says_so else [])
