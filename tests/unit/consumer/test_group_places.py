"""What a member says of itself and of what it wants, and where partitions begin that are subscribed to once more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_protocol_harness import Harness, T, U

from fastq import AsyncConsumer, Consumer
from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from fastq.consumer.group.classic import ClassicMember, State
from fastq.consumer.group.coordinator import TAKEN
from fastq.consumer.group.membership import Change, ChangeKind, Subscription, subscription_of
from fastq.consumer.offsets import OffsetQuery
from fastq.consumer.topic_watch import TopicWatch
from fastq.errors import ErrorCode, NotAssigned, TopicAuthorizationFailed
from fastq.metadata import ClusterMetadata, GroupMetadata, TopicPartition
from fastq.protocol.messages import MetadataResponse

TP = TopicPartition("t", 0)


def test_a_member_that_has_lost_its_place_is_named_by_it_until_it_has_another() -> None:
    with Consumer("t", group_id="g", group_protocol="classic", bootstrap_servers="127.0.0.1:1") as consumer:
        session = consumer._group
        assert session is not None
        session._protocol = "classic"
        member: Any = session._make_member()
        session.membership = member
        assert session.group_metadata() == GroupMetadata("g")
        member.member_id, member.generation, member.state, member.owned = "m", 7, State.STABLE, frozenset([TP])
        member.overdue()
        assert session.group_metadata() == GroupMetadata("g", 7, "m")
        assert member.who == GroupMetadata("g"), "it joins as nobody"
        member.leave("the test")
        assert session.group_metadata() == GroupMetadata("g")


@pytest.mark.parametrize("how", ["too slow", "fenced", "told by a commit", "given up"])
def test_a_member_of_the_consumer_protocol_is_named_by_the_epoch_that_it_has_lost(how: str) -> None:
    harness = Harness()
    with Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1") as consumer:
        session = consumer._group
        assert session is not None
        session.membership = member = harness.member
        harness.join("t", assigned={T: [0]}, epoch=9)
        place = GroupMetadata("g", 9, member.member_id)
        assert session.group_metadata() == place
        if how == "too slow":
            member.overdue()
        elif how == "told by a commit":
            member.lost_generation(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            harness.later()
            harness.refused(ErrorCode.FENCED_MEMBER_EPOCH if how == "fenced" else ErrorCode.GROUP_AUTHORIZATION_FAILED)
        assert session.group_metadata() == place, "a generation of -1 is taken by the coordinator of an empty group"
        assert member.generation == -1, "it joins with nothing"
        if how == "given up":
            return
        member.poll(harness.now)
        harness.carry_out()
        harness.later()
        harness.beat()
        assert session.group_metadata() == place, "not before it has another"
        harness.answer(epoch=12, assigned={T: [0]})
        assert session.group_metadata() == GroupMetadata("g", 12, member.member_id)


def test_a_member_whose_protocol_is_refused_loses_what_it_has_before_it_falls_back() -> None:
    """It read on beside the new owner, and committed over it."""
    harness, lost = Harness(), list[TopicPartition]()
    with Consumer(group_id="g", bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=60_000) as consumer:
        consumer.subscribe("t", on_lost=lost.extend)
        session = consumer._group
        assert session is not None
        session._protocol = "consumer"
        session.membership = member = harness.member
        member.subscribe(Subscription(("t",)))
        harness.beat()
        harness.answer(epoch=9, assigned={T: [0]})
        change = member.changes()
        assert change is not None
        session.apply(change)
        member.carried_out(change)
        harness.beat()
        harness.answer(ErrorCode.UNSUPPORTED_VERSION)
        place = GroupMetadata("g", 9, member.member_id)
        assert list(session.requests(harness.now, lambda node: False)) == []
        assert session.take_error() is None and session.group_metadata() == place
        assert consumer.poll(timeout=0) == []
        assert lost == [TP] and consumer.assignment() == []
        assert not list(session.requests(harness.now, lambda node: False))
        assert isinstance(session.membership, ClassicMember)
        assert session.group_metadata() == place, "until it is in another generation"
        assert session.take_error() is None
        session.apply(Change(ChangeKind.ASSIGN, (TopicPartition("t", 1),)))
        assert consumer.assignment() == [TopicPartition("t", 1)]


def test_a_topic_that_the_refused_member_misses_is_no_trouble_of_the_classic_one() -> None:
    harness = Harness("t")
    with Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=60_000) as consumer:
        session = consumer._group
        assert session is not None
        session._protocol = "consumer"
        session.membership = member = harness.member
        member.subscribe(Subscription(("t", "u")))
        for code in (0, 0, ErrorCode.UNSUPPORTED_VERSION):
            harness.later()
            harness.beat()
            harness.answer(code, epoch=9, assigned={U: [0]})
            assert not list(session.requests(harness.now, lambda node: False))
            missing = [doing for _, doing in session.coordinator.troubles.open]  # type: ignore[misc]
            assert (TAKEN in missing) == (code == 0)
        assert isinstance(session.membership, ClassicMember)


def test_a_member_that_the_coordinator_takes_at_last_does_not_fall_back() -> None:
    """It was refused, and subscribes to something else before it has lost what it had."""
    harness = Harness()
    with Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=60_000) as consumer:
        session = consumer._group
        assert session is not None
        session._protocol = "consumer"
        session.membership = member = harness.member
        harness.join("t", assigned={T: [0]}, epoch=9)
        harness.later()
        harness.beat()
        harness.answer(ErrorCode.UNSUPPORTED_VERSION)
        member.subscribe(Subscription(("t", "u")))
        harness.later()
        assert harness.beat() is None, "it joins with nothing: not before the application has heard of its loss"
        assert [change.kind for change in harness.carry_out()] == [ChangeKind.LOSE]
        harness.beat()
        harness.answer(epoch=12, assigned={T: [0]})
        harness.carry_out()
        assert member.owned == {TP}
        assert not list(session.requests(harness.now, lambda node: False))
        assert session.membership is member


LEAVES = [
    "fenced",
    "too slow",
    "too slow, as the native thread knows",
    "too slow, as nobody knows",
    "reset",
    "still a member",
]


def member_that_is(how: str, consumer: Any) -> None:
    """Have the consumer be a member that reads a partition, or that has lost it without having been told."""
    harness, session = Harness(), consumer._group
    member: Any = harness.member
    if how == "reset":
        session._protocol = "classic"
        member = session._make_member()
        member.member_id, member.generation, member.state, member.owned = "m", 7, State.STABLE, frozenset([TP])
        member._reset(ErrorCode.UNKNOWN_MEMBER_ID)
    else:
        session._protocol = "consumer"
        harness.join("t", assigned={T: [0]}, epoch=9)
    session.membership = member
    if how == "fenced":
        harness.later()
        harness.refused(ErrorCode.FENCED_MEMBER_EPOCH)
    elif how == "too slow":
        member.overdue()
    elif how == "too slow, as the native thread knows":
        consumer._liveness._gave_up = True
    elif how == "too slow, as nobody knows":
        member.poll(consumer._core.clock() - 301)


@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("ends", [Consumer.close, Consumer.unsubscribe])
def test_a_member_that_leaves_loses_what_it_has_no_place_for(how: str, ends: Callable[[Consumer], None]) -> None:
    """To hear that it is revoked is to commit for it, over the new owner."""
    lost, revoked = list[TopicPartition](), list[TopicPartition]()
    with Consumer(group_id="g", bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=60_000) as consumer:
        consumer.subscribe("t", on_lost=lost.extend, on_revoked=revoked.extend)
        member_that_is(how, consumer)
        ends(consumer)
    assert (lost, revoked) == (([], [TP]) if how == "still a member" else ([TP], []))


@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("ends", [AsyncConsumer.close, AsyncConsumer.unsubscribe])
def test_so_does_one_of_asyncio(how: str, ends: Callable[[AsyncConsumer], Awaitable[None]]) -> None:
    lost, revoked = list[TopicPartition](), list[TopicPartition]()

    async def main() -> None:
        options: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "reconnect_backoff_ms": 60_000}
        async with AsyncConsumer(group_id="g", enable_auto_commit=False, **options) as consumer:
            consumer.subscribe("t", on_lost=lost.extend, on_revoked=revoked.extend)
            consumer._start()
            member_that_is(how, consumer)
            await ends(consumer)

    asyncio.run(main())
    assert (lost, revoked) == (([], [TP]) if how == "still a member" else ([TP], []))


def test_a_commit_before_the_first_call_for_records_is_told_what_to_do() -> None:
    with Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1") as consumer:
        with pytest.raises(NotAssigned, match=r"topic t, partition 0.*Call poll\(\) or iterate first"):
            consumer.commit({TP: 5})
        consumer.poll(timeout=0)
        with pytest.raises(NotAssigned, match="It may belong to another member"):
            consumer.commit({TP: 5})


@pytest.mark.parametrize(
    ("pattern", "said", "is_ours"),
    [
        (re.compile("a.*"), "a.*", False),
        (re.compile("a.*", re.IGNORECASE), "(?i)a.*", False),
        (re.compile("(?i)a.*"), "(?i)a.*", False),
        (re.compile("(?i)a.*", re.IGNORECASE), "(?i)a.*", False),
        (re.compile("a.*", re.IGNORECASE | re.DOTALL | re.MULTILINE), "(?ism)a.*", False),
        (re.compile("a . *", re.VERBOSE), "a . *", True),
        (re.compile("a.*", re.ASCII | re.IGNORECASE), "(?i)a.*", True),
    ],
)
def test_the_flags_of_a_pattern_are_said(pattern: re.Pattern[str], said: str, is_ours: bool) -> None:
    assert subscription_of(("abc",), pattern) == Subscription(("abc",), said, is_ours)
    with Consumer(pattern, group_id="g", bootstrap_servers="127.0.0.1:1") as consumer:
        session = consumer._group
        assert session is not None
        session._protocol = "consumer"
        member: Any = session._make_member()
        member.subscribe(subscription_of(("abc",), pattern))
        told = member._say(1, frozenset())
        assert (told.regex, told.topics) == ((None, ("abc",)) if is_ours else (f"(?:{said})(?s:.*)", ()))


class Fetched:
    """A fetcher's assignment."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, None] = {}
        self.begun: list[tuple[TopicPartition, int]] = []

    def assign(self, wanted: list[TopicPartition]) -> None:
        self.partitions = dict.fromkeys(wanted)

    def reset(self, tp: TopicPartition, timestamp: int) -> None:
        self.begun.append((tp, timestamp))


def test_only_partitions_made_meanwhile_begin_at_their_beginning() -> None:
    counts = {"a": 1, "b": 1}
    metadata = SimpleNamespace(
        generation=0,
        topic=lambda name: SimpleNamespace(
            error=0, partitions=[SimpleNamespace(index=index) for index in range(counts[name])]
        ),
    )
    core: Any = SimpleNamespace(metadata=metadata, watch_topics=len, metadata_updater=SimpleNamespace(keep=len))
    fetcher: Any = Fetched()
    watch = TopicWatch(core, fetcher, None)
    for names in (("a",), ("b",), ("a",), (), ("a", "b")):
        watch.read(names)
        watch.follow(0.0)
    watch.read_assigned(("a",))
    watch.read(("a",))
    watch.follow(0.0)
    assert fetcher.begun == []
    counts["a"], metadata.generation = 2, 1
    watch.follow(0.0)
    assert fetcher.begun == [(TopicPartition("a", 1), EARLIEST_TIMESTAMP)]


def test_offsets_of_a_topic_that_one_may_not_see_are_refused_at_once() -> None:
    metadata = ClusterMetadata()
    refused = MetadataResponse.MetadataResponseTopic(name="t", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    metadata.update(MetadataResponse(topics=[refused]))
    troubles: Any = SimpleNamespace(failed=lambda *_, **__: None, forget=lambda *_: None)
    updater: Any = SimpleNamespace(requests=3, answered=2)
    query = OffsetQuery(metadata, updater, {TP: LATEST_TIMESTAMP}, False, troubles)
    assert query.requests(0.0, lambda node: True) == []
    assert not query.finished and query.wants_metadata, "what was said before is asked for again"
    metadata.update(MetadataResponse(topics=[refused]))
    updater.answered = 3
    assert query.requests(1.0, lambda node: True) == []
    assert not query.finished, "an answer that was on its way tells of before"
    updater.answered = 4
    assert query.requests(2.0, lambda node: True) == []
    assert query.finished
    with pytest.raises(TopicAuthorizationFailed, match="topic t"):
        query.answers([TP])


@pytest.mark.parametrize("face", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_who_subscribes_to_a_pattern_keeps_what_it_reads_of_it(face: type[Any], protocol: str) -> None:
    """Until all topics are known: what it gave up by then it was given anew, once they were."""
    strategy = ("cooperative-sticky",)
    consumer = face("t", "u", group_id="g", bootstrap_servers="127.0.0.1:1", partition_assignment_strategy=strategy)
    part = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
    topic = MetadataResponse.MetadataResponseTopic
    consumer._core.metadata.update(MetadataResponse(topics=[topic(name=name, partitions=[part]) for name in "tu"]))
    assert not consumer._core.metadata.has_all_topics
    session = consumer._group
    session._protocol = protocol
    session.membership = member = session._begin_member()
    if protocol == "classic":
        member.state, member.generation = State.STABLE, 1
        member.owned = frozenset({TopicPartition("t", 0), TopicPartition("u", 0)})
    consumer.subscribe(re.compile("[tv]"))
    assert member._subscription == Subscription(("t",), "[tv]")
    assert consumer._watch.names == ("t",)
    if protocol == "classic":
        assert member.changes() == Change(ChangeKind.REVOKE, (TopicPartition("u", 0),))
    session.membership, consumer._closed = None, True


@pytest.mark.parametrize("face", [Consumer, AsyncConsumer])
def test_who_asks_for_records_long_after_it_was_made_was_not_too_slow(face: type[Any]) -> None:
    """The first call ends as its member begins, and the thread of heartbeats looks before the next one."""
    consumer = face("t", group_id="g", bootstrap_servers="127.0.0.1:1")
    session, now = consumer._group, consumer._core.clock() + 600.0
    consumer._core.clock = lambda: now
    consumer._asking += 1
    consumer._follow_life()
    consumer._asking -= 1
    session._protocol = "classic"
    session.membership = member = session._begin_member()
    consumer._follow_life()
    assert not consumer._progress.stopped
    assert consumer._liveness.asked(member, None) is None
    session.membership, consumer._closed = None, True


def test_a_member_whose_share_is_to_come_has_nothing_to_seek_in() -> None:
    """Between the answers to JoinGroup and SyncGroup, and until a call asks for records: it read from elsewhere and did not know."""
    consumer = Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1")
    session: Any = consumer._group
    session._protocol = "classic"
    session.membership = member = session._begin_member()
    member.generation = 1
    for member.state in (State.SYNCING, State.STABLE):
        with pytest.raises(NotAssigned, match=r"call poll\(\) before"):
            consumer.seek_to_beginning()
        member._changes.append(Change(ChangeKind.ASSIGN, ()))
    session.apply(member.changes())
    consumer.seek_to_beginning()  # in on_assigned, which is called for no partitions, too
    member._changes.clear()
    consumer.seek_to_beginning()
    member.state = State.PREPARING
    consumer.seek_to_beginning()
    session.membership, consumer._closed = None, True
