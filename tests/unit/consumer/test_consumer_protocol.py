"""The member of a KIP-848 group, without I/O: what its heartbeats say, and what it tells the application."""

from __future__ import annotations

import itertools

import pytest
from consumer_protocol_harness import Harness, T, U, owned, parts

from fastq.consumer.group.consumer_protocol_states import TRANSITIONS, State
from fastq.consumer.group.membership import Change, ChangeKind, Subscription
from fastq.errors import (
    ConnectionClosed,
    ErrorCode,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from fastq.metadata import TopicPartition
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, MetadataResponse


def test_a_member_joins_reconciles_and_says_so() -> None:
    harness = Harness(assignor="range")
    member = harness.member
    assert harness.beat() is None
    member.subscribe(Subscription(("u", "t")))
    request = harness.beat()
    assert request == ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member.member_id,
        member_epoch=0,
        rack_id="r1",
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=["t", "u"],
        server_assignor="range",
        topic_partitions=[],
    )
    assert len(member.member_id) == 22
    assert harness.beat() is None  # one at a time
    assert member.generation == -1
    assert not member.may_commit
    harness.answer(epoch=3, assigned={T: [0, 1], U: [2]})
    assert (member.generation, member.state) == (3, State.RECONCILING)
    change = member.changes()
    assert change == Change(ChangeKind.ASSIGN, (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2)))
    assert member.owned == frozenset()
    assert harness.beat() is None
    member.carried_out(change)
    assert member.owned == owned(("t", 0), ("t", 1), ("u", 2))
    request = harness.beat()
    assert request is not None
    assert (parts(request), request.subscribed_topic_names, request.rack_id) == ({T: [0, 1], U: [2]}, None, None)
    assert request.rebalance_timeout_ms == -1
    assert member.is_stable
    harness.answer(epoch=3)
    assert harness.beat() is None
    harness.later()
    # What is known is not said again.
    assert harness.beat() == ConsumerGroupHeartbeatRequest(group_id="g", member_id=member.member_id, member_epoch=3)


def test_what_stays_is_not_touched() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0, 1, 2]})
    harness.later()
    harness.beat()
    harness.answer(epoch=1, assigned={T: [1, 2]})
    assert harness.member.may_commit
    assert harness.carry_out() == [Change(ChangeKind.REVOKE, (TopicPartition("t", 0),))]
    request = harness.beat()
    assert request is not None
    assert parts(request) == {T: [1, 2]}
    harness.answer(epoch=2, assigned={T: [1, 2, 5]})
    assert harness.carry_out() == [Change(ChangeKind.ASSIGN, (TopicPartition("t", 5),))]
    request = harness.beat()
    assert request is not None
    assert (request.member_epoch, parts(request)) == (2, {T: [1, 2, 5]})


def test_an_assignment_that_moves_is_carried_out_in_order() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]})
    harness.later()
    harness.beat()
    harness.answer(assigned={T: [3]})
    kinds = [(change.kind, change.partitions[0].partition) for change in harness.carry_out()]
    assert kinds == [(ChangeKind.REVOKE, 0), (ChangeKind.ASSIGN, 3)]


def test_no_partitions_at_all_is_an_assignment() -> None:
    harness = Harness()
    harness.member.subscribe(Subscription(("t",)))
    harness.beat()
    harness.answer(assigned={})
    assert harness.member.is_stable
    assert harness.member.changes() is None
    assert harness.beat() is None


def test_topics_unknown_here_are_assigned_when_the_metadata_has_them() -> None:
    harness = Harness("t")
    harness.member.subscribe(Subscription(("t", "u")))
    harness.beat()
    harness.answer(assigned={T: [0], U: [1]})
    assert harness.carry_out() == [Change(ChangeKind.ASSIGN, (TopicPartition("t", 0),))]
    assert harness.member.wants_metadata is not None
    request = harness.beat()
    assert request is not None
    assert parts(request) == {T: [0]}
    assert not harness.member.is_stable
    harness.answer()
    assert harness.beat() is None  # nothing new to say
    harness.metadata.update(MetadataResponse(topics=[]))
    update = MetadataResponse.MetadataResponseTopic(name="u", topic_id=U, partitions=[])
    harness.metadata.update(MetadataResponse(topics=[update]))
    assert harness.carry_out() == [Change(ChangeKind.ASSIGN, (TopicPartition("u", 1),))]
    request = harness.beat()
    assert request is not None
    assert parts(request) == {T: [0], U: [1]}
    harness.answer()
    assert harness.member.is_stable


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_loses_all_and_joins_again_under_its_id(code: int) -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0, 1]}, epoch=9)
    member_id = harness.member.member_id
    harness.later()
    harness.refused(code)
    assert not harness.member.may_commit
    assert harness.beat() is None
    assert harness.carry_out() == [Change(ChangeKind.LOSE, (TopicPartition("t", 0), TopicPartition("t", 1)))]
    assert harness.beat() is None  # after a pause
    harness.later(1)
    request = harness.beat()
    assert request is not None
    assert (request.member_epoch, request.member_id, parts(request)) == (0, member_id, {})
    assert request.subscribed_topic_names == ["t"]
    harness.answer(epoch=12, assigned={T: [1]})
    assert harness.carry_out() == [Change(ChangeKind.ASSIGN, (TopicPartition("t", 1),))]


def test_fenced_in_the_middle_of_a_change() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0, 1]})
    harness.later()
    harness.beat()
    harness.answer(assigned={T: [0]})
    assert harness.member.changes() == Change(ChangeKind.REVOKE, (TopicPartition("t", 1),))
    harness.later()
    harness.refused(ErrorCode.FENCED_MEMBER_EPOCH)
    assert harness.carry_out() == [Change(ChangeKind.LOSE, (TopicPartition("t", 0), TopicPartition("t", 1)))]


def test_fenced_while_an_assignment_is_carried_out() -> None:
    harness = Harness()
    harness.member.subscribe(Subscription(("t",)))
    harness.beat()
    harness.answer(assigned={T: [0]})
    change = harness.member.changes()
    assert change is not None
    harness.later()
    request = harness.beat()
    assert request is not None
    assert parts(request) == {T: [0]}  # it may be read already
    harness.answer(ErrorCode.UNKNOWN_MEMBER_ID)
    harness.member.carried_out(change)
    assert harness.carry_out() == [Change(ChangeKind.LOSE, (TopicPartition("t", 0),))]


def test_commits_report_what_heartbeats_would_find_later() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]})
    harness.member.lost_generation(ErrorCode.STALE_MEMBER_EPOCH)
    assert harness.beat() is not None  # at once, and it brings the new epoch
    harness.answer(epoch=2)
    assert harness.member.generation == 2
    harness.member.lost_generation(ErrorCode.UNKNOWN_MEMBER_ID)
    assert [change.kind for change in harness.carry_out()] == [ChangeKind.LOSE]


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_for(code: int) -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]})
    harness.later()
    harness.beat()
    harness.answer(code)
    assert harness.coordinator.reasons
    harness.later(1)
    assert harness.beat() is None
    harness.coordinator.known, harness.coordinator.node_id = True, 8
    request = harness.beat()
    assert harness.sent[0].node_id == 8
    # The new one is told all, with the epoch of a member.
    assert request is not None
    assert (request.member_epoch, parts(request), request.subscribed_topic_names) == (1, {T: [0]}, ["t"])


def test_a_lost_connection_keeps_the_assignment() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]})
    harness.later()
    harness.beat()
    harness.sent.pop().done(None, ConnectionClosed("gone"), harness.now)
    assert harness.coordinator.reasons
    assert harness.member.take_error() is None
    assert harness.member.owned == owned(("t", 0))


def test_repeated_errors_are_retried_with_pauses() -> None:
    harness = Harness()
    harness.member.subscribe(Subscription(("t",)))
    for failures in range(1, 4):
        assert harness.beat() is not None
        harness.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert harness.beat() is None
        assert harness.member.next_wakeup(harness.now) == pytest.approx(0.1 * failures)
        harness.later(0.1 * failures + 0.001)
    assert harness.beat() is not None


def test_errors_for_good_and_errors_that_pass() -> None:
    harness = Harness(group_instance_id="one")
    harness.member.subscribe(Subscription(("t",)))
    harness.beat()
    harness.answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(harness.member.take_error(), TopicAuthorizationFailed)
    harness.later(1)
    assert harness.beat() is not None
    harness.answer(ErrorCode.UNRELEASED_INSTANCE_ID)
    error = harness.member.take_error()
    assert isinstance(error, UnreleasedInstanceId)
    assert "'one'" in str(error) or "one" in str(error)
    assert harness.member.member_id in str(error)
    harness.later(1000)
    assert harness.beat() is None
    assert harness.member.state is State.FATAL
    assert harness.member.take_error() is error  # told as often as it is asked: silence would look like an empty topic
    # A new subscription is a new attempt.
    harness.member.subscribe(Subscription(("t", "u")))
    assert harness.beat() is not None
    harness.answer(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert isinstance(harness.member.take_error(), GroupAuthorizationFailed)


@pytest.mark.parametrize("by_version", [True, False])
def test_a_broker_without_the_protocol_is_told_apart(by_version: bool) -> None:
    harness = Harness()
    harness.member.subscribe(Subscription(("t",)))
    harness.beat()
    if by_version:
        harness.sent.pop().done(None, UnsupportedVersion("no ConsumerGroupHeartbeat"), harness.now)
    else:
        harness.answer(ErrorCode.UNSUPPORTED_VERSION)
    assert isinstance(harness.member.unsupported, UnsupportedVersion)


def test_patterns_are_the_coordinators_business() -> None:
    harness = Harness()
    harness.member.subscribe(Subscription(("t",), "t.*"))
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("(?:t.*)(?s:.*)", [])
    assert harness.member.wants_all_topics
    harness.answer(assigned={})
    # Another subscription replaces it.
    harness.member.subscribe(Subscription(("u",)))
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("", ["u"])
    assert not harness.member.wants_all_topics


def test_patterns_that_the_coordinator_cannot_read_are_matched_here() -> None:
    harness = Harness()
    harness.member.subscribe(Subscription(("t",), "(?=t)."))
    harness.beat()
    harness.answer(ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert harness.member.take_error() is None
    harness.later(1)
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == ("", ["t"])


@pytest.mark.parametrize(
    ("pattern", "excluded", "named"), [(".*", True, True), (".*", False, False), ("^_", True, True)]
)
def test_patterns_pass_over_internal_topics(pattern: str, excluded: bool, named: bool) -> None:
    harness = Harness(exclude_internal_topics=excluded)
    harness.member.subscribe(Subscription(("t",), pattern))
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_names == ["t"]) is named
    assert (request.subscribed_topic_regex is None) is named


def test_version_0_knows_no_patterns() -> None:
    harness = Harness(version=0)
    harness.member.subscribe(Subscription(("t",), "t.*"))
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_regex, request.subscribed_topic_names) == (None, ["t"])


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -2)])
def test_leaving(instance: str | None, epoch: int) -> None:
    harness = Harness(group_instance_id=instance)
    harness.join("t", assigned={T: [0]})
    out = harness.member.leave("the consumer closes")
    assert len(out) == 1
    request = out[0].build(1)
    assert request == ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=harness.member.member_id, member_epoch=epoch, instance_id=instance
    )
    out[0].done(ConsumerGroupHeartbeatResponse(member_epoch=epoch), None, harness.now)
    assert harness.member.state is State.UNSUBSCRIBED
    harness.later(1000)
    assert harness.beat() is None
    assert harness.member.generation == -1


def test_unsubscribing_and_subscribing_again() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]})
    harness.member.subscribe(Subscription())
    request = harness.beat()
    assert request is not None
    assert request.member_epoch == -1
    harness.member.subscribe(Subscription(("u",)))
    harness.answer(epoch=-1)
    request = harness.beat()
    assert request is not None
    assert (request.member_epoch, request.subscribed_topic_names) == (0, ["u"])


def test_leaving_before_joining_says_nothing() -> None:
    harness = Harness()
    assert harness.member.leave("never joined") == []
    harness.member.subscribe(Subscription(("t",)))
    assert harness.member.leave("not yet") == []
    assert harness.beat() is None


def test_an_application_that_does_not_poll_leaves_and_comes_back() -> None:
    harness = Harness(max_poll_interval_ms=60_000)
    harness.member.poll(harness.now)
    harness.join("t", assigned={T: [0]}, epoch=4)
    for _ in range(11):
        harness.later()
        out = harness.member.heartbeats(harness.now, lambda node: True)
        assert len(out) == 1
        out[0].build(1)
        out[0].done(ConsumerGroupHeartbeatResponse(member_epoch=4, heartbeat_interval_ms=5000), None, harness.now)
    harness.later()
    out = harness.member.heartbeats(harness.now, lambda node: True)
    farewell = out[0].build(1)
    assert isinstance(farewell, ConsumerGroupHeartbeatRequest)
    assert farewell.member_epoch == -1
    assert harness.member.heartbeats(harness.now, lambda node: True) == []
    assert harness.member.changes() is None  # told when the application comes back
    assert not harness.member.may_commit
    assert harness.member.too_slow
    harness.later(100)
    harness.member.poll(harness.now)
    assert harness.carry_out() == [Change(ChangeKind.LOSE, (TopicPartition("t", 0),))]
    request = harness.beat()
    assert request is not None
    assert request.member_epoch == 0


def test_what_a_heartbeat_thread_heard() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.member.overheard(ConsumerGroupHeartbeatResponse(member_epoch=4, heartbeat_interval_ms=5000), harness.now)
    assert harness.beat() is None
    harness.member.overheard(ConsumerGroupHeartbeatResponse(member_epoch=6, heartbeat_interval_ms=5000), harness.now)
    request = harness.beat()
    assert request is not None
    assert (request.member_epoch, parts(request), request.subscribed_topic_names) == (6, {T: [0]}, ["t"])
    harness.answer(epoch=6)
    # An error is not believed before it was heard on the own connection.
    harness.member.overheard(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH), harness.now)
    assert harness.member.owned == owned(("t", 0))
    assert harness.beat() is not None


GIVEN = ConsumerGroupHeartbeatResponse.Assignment(
    topic_partitions=[ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=T, partitions=[0])]
)


def test_what_a_heartbeat_thread_heard_while_a_heartbeat_was_on_its_way() -> None:
    """The coordinator tells an assignment once: here to the thread, and the member's own heartbeat was answered before."""
    harness = Harness()
    harness.join("t", assigned={}, epoch=4)
    harness.later()
    assert harness.beat() is not None
    given = ConsumerGroupHeartbeatResponse(member_epoch=4, heartbeat_interval_ms=5000, assignment=GIVEN)
    harness.member.overheard(given, harness.now)
    harness.answer(epoch=4)
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_names, parts(request), request.rebalance_timeout_ms) == (["t"], {}, 300_000)
    harness.answer(epoch=4, assigned={T: [0]})
    harness.carry_out()
    assert harness.member.owned == owned(("t", 0))
    request = harness.beat()
    assert request is not None
    assert (request.subscribed_topic_names, parts(request)) == (None, {T: [0]})


def test_what_a_heartbeat_thread_should_have_heard_is_asked_for_until_it_cannot_be_told_any_more() -> None:
    harness = Harness()
    harness.join("t", assigned={T: [0]}, epoch=4)
    harness.member.overheard(None, harness.now)
    assert harness.beat() is None  # in its time: the coordinator may be gone
    said = []
    for _ in range(5):
        harness.later()
        request = harness.beat()
        assert request is not None
        said.append((request.subscribed_topic_names, parts(request)))
        harness.answer(epoch=4)
    assert said == [(["t"], {T: [0]})] * 3 + [(None, None)] * 2


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(State)
    reachable = {State.UNSUBSCRIBED}
    while (more := {after for state in reachable for after in TRANSITIONS[state]} | reachable) != reachable:
        reachable = more
    assert reachable == set(State)


@pytest.mark.parametrize("after_s", [0.05, 0.4, 1.0, 3.0, 7.0])
def test_who_was_given_nothing_yet_asks_soon(after_s: float) -> None:
    """As Apache Kafka answers a join: empty, while another member has not let go; and tells of more at the next heartbeat only."""
    harness = Harness("t")
    harness.member.subscribe(Subscription(("t",)))
    assert harness.beat() is not None
    harness.answer(epoch=3, assigned={})
    joined, heartbeats = harness.now, 0
    while not harness.member.owned:
        harness.carry_out()
        wait = harness.member.next_wakeup(harness.now)
        assert wait is not None
        harness.later(wait)
        if harness.beat() is not None:
            heartbeats += 1
            harness.answer(epoch=3, assigned={T: [0]} if harness.now >= joined + after_s else None)
            harness.carry_out()
    assert harness.now - joined <= max(after_s * 1.5, after_s + 0.1) + 0.001
    assert heartbeats < 20
    # And then as it was told to.
    harness.beat()
    harness.answer(epoch=3)
    assert harness.member.next_wakeup(harness.now) == pytest.approx(5.0, abs=0.2)


def test_who_is_to_have_nothing_asks_soon_for_a_while_only() -> None:
    harness = Harness("t")
    harness.member.subscribe(Subscription(("t",)))
    harness.beat()
    harness.answer(epoch=3, assigned={})
    sent: list[float] = []
    while harness.now < 200.0:
        harness.carry_out()
        harness.later(harness.member.next_wakeup(harness.now) or 0.001)
        if harness.beat() is not None:
            sent.append(harness.now)
            harness.answer(epoch=3)
    assert sum(at < 115.0 for at in sent) < 30
    assert all(later - before > 4.9 for before, later in itertools.pairwise(sent) if before > 116.0)
