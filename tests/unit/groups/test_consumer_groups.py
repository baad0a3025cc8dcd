"""Groups of the consumer protocol against a log in memory and a clock that the tests move."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from fastq_broker.groups.consumer_member import MemberState
from fastq_broker.groups.group import Committer
from group_world import Consumer, World, assert_disjoint, owned_list, settle

from fastq.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    InvalidRequest,
    KafkaStorageError,
    MessageTooLarge,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)


@pytest.fixture
def world() -> World:
    made = World()
    made.topics(t=6, u=3)
    return made


# --- joining and sharing ---


def test_the_first_member_gets_everything_at_once(world: World) -> None:
    response = world.join("a")
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 1, 5000)
    assert world.parts(response) == {("t", number) for number in range(6)}
    assert world.group.state_name == "Stable"
    assert world.idle("a", 1).assignment is None


def test_a_second_member_waits_until_the_first_has_revoked(world: World) -> None:
    world.join("a")
    waiting = world.join("b")
    assert waiting.member_epoch == 2
    assert world.parts(waiting) == set()
    assert world.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    assert world.group.state_name == "Reconciling"
    kept = world.idle("a", 1)
    assert kept.member_epoch == 1  # until it says that it has revoked
    assert len(world.parts(kept)) == 3
    assert world.idle("b", 2).assignment is None
    acknowledged = world.beat(member_id="a", member_epoch=1, topic_partitions=owned_list(world, world.parts(kept)))
    assert acknowledged.member_epoch == 2
    given = world.idle("b", 2)
    assert world.parts(given) == {("t", number) for number in range(6)} - world.parts(kept)
    assert world.group.state_name == "Stable"


def test_members_settle_and_keep_what_they_had(world: World) -> None:
    consumers = [Consumer(world, name) for name in "abc"]
    settle(consumers)
    assert sorted(len(consumer.owned) for consumer in consumers) == [2, 2, 2]
    before = {consumer.member_id: consumer.owned for consumer in consumers[:2]}
    world.beat(member_id="c", member_epoch=-1)
    settle(consumers[:2])
    for consumer in consumers[:2]:
        assert len(consumer.owned) == 3
        assert before[consumer.member_id] <= consumer.owned


def test_the_broker_makes_an_id_for_a_client_of_version_0(world: World) -> None:
    response = world.beat(
        0, member_id="", member_epoch=0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert len(response.member_id) == 36
    assert world.beat(0, member_id=response.member_id, member_epoch=1).member_epoch == 1


def test_a_full_request_is_answered_in_full(world: World) -> None:
    parts = world.parts(world.join("a"))
    response = world.beat(
        member_id="a",
        member_epoch=1,
        rebalance_timeout_ms=5000,
        subscribed_topic_names=["t"],
        topic_partitions=owned_list(world, parts),
    )
    assert world.parts(response) == parts


def test_a_changed_subscription_takes_partitions_away_at_once(world: World) -> None:
    parts = world.parts(world.join("a", ["t", "u"]))
    assert len(parts) == 9
    response = world.beat(
        member_id="a", member_epoch=1, subscribed_topic_names=["u"], topic_partitions=owned_list(world, parts)
    )
    assert world.parts(response) == {("u", 0), ("u", 1), ("u", 2)}
    assert response.member_epoch == 1
    done = world.beat(member_id="a", member_epoch=1, topic_partitions=owned_list(world, {("u", 0), ("u", 1), ("u", 2)}))
    assert done.member_epoch == 2


def test_new_partitions_and_deleted_topics_reach_the_group(world: World) -> None:
    consumer = Consumer(world, "a", ["t", "u", "later"])
    consumer.beat()
    world.topics(t=8, later=1)
    settle([consumer])
    assert consumer.owned == {("t", number) for number in range(8)} | {("later", 0)}


def test_topics_of_others_do_not_concern_a_group(world: World) -> None:
    world.join("a")
    size = len(world.log)
    world.topics(t=6, u=9)
    assert world.idle("a", 1).member_epoch == 1
    assert len(world.log) == size


def test_idle_heartbeats_write_nothing(world: World) -> None:
    world.join("a")
    size = len(world.log)
    for _ in range(100):
        world.advance(5000)
        assert world.idle("a", 1).member_epoch == 1
    assert len(world.log) == size
    assert world.group.state_name == "Stable"


def test_a_group_has_one_timer_however_many_members(world: World) -> None:
    for number in range(100):
        world.join(f"m{number}")
    for _ in range(3):
        world.advance(5000)
        for number in range(100):
            world.join(f"m{number}")
    assert len([timer for timer in world.timers if not timer.cancelled]) == 1
    assert len(world.group.members) == 100


def test_range_is_chosen_by_the_members_that_ask_for_it(world: World) -> None:
    world.join("a", ["t", "u"], server_assignor="range")
    consumers = [Consumer(world, "a", ["t", "u"]), Consumer(world, "b", ["t", "u"], server_assignor="range")]
    settle(consumers)
    assert consumers[0].owned == {("t", 0), ("t", 1), ("t", 2), ("u", 0), ("u", 1)}
    assert world.group.preferred_assignor(["uniform", "range"]) == "range"


def test_the_target_is_worked_out_once_an_interval() -> None:
    world = World(assignment_interval_ms=1000)
    world.topics(t=6)
    world.join("a")  # the first assignment does not wait
    late = world.join("b")
    assert (late.member_epoch, world.parts(late)) == (1, set())
    assert world.group.state_name == "Assigning"
    world.advance(1000)
    assert world.group.state_name == "Reconciling"
    assert world.group.target_epoch == 2


class Punctual(Consumer):
    """A member that comes as often as it is told to, and at once when it has something to say."""

    def __init__(self, world: World, member_id: str) -> None:
        super().__init__(world, member_id)
        self.next_ms = world.clock_ms
        self.beats = 0
        self.interval_ms = 0

    def _ask(self) -> Any:
        response = super()._ask()
        self.beats += 1
        self.interval_ms = response.heartbeat_interval_ms
        return response

    def turn(self) -> None:
        if self.world.clock_ms >= self.next_ms:
            self.beat()
            self.next_ms = self.world.clock_ms + (1 if self.to_say else self.interval_ms)


def live(world: World, members: Sequence[Punctual], until_ms: int) -> None:
    while world.clock_ms < until_ms:
        for member in members:
            member.turn()
        assert_disjoint(members)
        world.advance(1)


@pytest.mark.parametrize("later_ms", [1, 100, 500, 999])
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("jump_ms", [0, -86_400_000, 86_400_000])
def test_who_joins_right_after_another_change_has_its_partitions_soon(
    leaves: bool, later_ms: int, jump_ms: int
) -> None:
    world = World(assignment_interval_ms=1000)
    world.topics(t=6)
    start_ms = world.clock_ms
    first = Punctual(world, "a")
    live(world, [first], start_ms + later_ms)
    if leaves:
        world.beat(member_id="a", member_epoch=-1)
    world.set_ahead_ms = jump_ms  # somebody sets the wall clock
    second = Punctual(world, "b")
    members = [second] if leaves else [first, second]
    while not second.owned:
        live(world, members, world.clock_ms + 1)
        # Where the clock is set between the two, who joined first may be told to come at the usual time: no later than that.
        assert world.clock_ms < start_ms + later_ms + (1500 if not jump_ms else 5500)
    live(world, members, world.clock_ms + 5000)
    assert [member.interval_ms for member in members] == [5000] * len(members)
    assert max(member.beats for member in members) < (12 if not jump_ms else 40)
    assert {len(member.owned) for member in members} == {6 // len(members)}


def test_a_member_that_waits_for_another_comes_soon_but_a_large_group_not_too_often(world: World) -> None:
    world.join("a")
    assert world.join("b").heartbeat_interval_ms == 250
    for number in range(100):
        world.join(f"c{number}")
    waiting = world.idle("c99", world.group.members["c99"].member_epoch)
    assert world.group.members["c99"].state is MemberState.STABLE and waiting.heartbeat_interval_ms == 5000
    waiting = world.idle("b", world.group.members["b"].member_epoch)
    assert world.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    assert waiting.heartbeat_interval_ms == 102 * 12
    for number in range(100, 500):
        world.join(f"c{number}")
    assert world.idle("b", world.group.members["b"].member_epoch).heartbeat_interval_ms == 5000


# --- errors ---


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"member_id": "a", "member_epoch": 0, "subscribed_topic_names": [], "topic_partitions": []}, "rebalance"),
        ({"member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 1, "topic_partitions": []}, "topics"),
        ({"member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 1, "subscribed_topic_names": []}, "empty list"),
        ({"member_id": "", "member_epoch": 1}, "member id"),
        ({"member_id": "", "member_epoch": -1}, "member id"),
        ({"member_id": "a", "member_epoch": -3}, "-3"),
        ({"member_id": "a", "member_epoch": -2}, "instance"),
        ({"member_id": "a", "member_epoch": 1, "instance_id": ""}, "instance"),
        ({"member_id": "a", "member_epoch": 1, "rack_id": ""}, "rack"),
    ],
)
def test_requests_that_contradict_themselves_are_invalid(world: World, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        world.beat(**fields)


def test_version_1_demands_the_clients_own_member_id(world: World) -> None:
    with pytest.raises(InvalidRequest, match="member id"):
        world.join("")


def test_unknown_groups_members_and_assignors(world: World) -> None:
    with pytest.raises(GroupIdNotFound):
        world.idle("a", 1)
    with pytest.raises(GroupIdNotFound):
        world.beat(member_id="a", member_epoch=-1)
    with pytest.raises(UnsupportedAssignor, match="uniform, range"):
        world.join("a", server_assignor="mine")
    world.join("a")
    with pytest.raises(UnknownMemberId):
        world.idle("b", 1)
    with pytest.raises(UnknownMemberId):
        world.beat(member_id="b", member_epoch=-1)


def test_epochs_that_do_not_fit_are_fenced(world: World) -> None:
    world.join("a")
    with pytest.raises(FencedMemberEpoch):
        world.idle("a", 2)
    kept = world.parts(world.join("a"))
    world.topics(t=7, u=3)
    assert world.idle("a", 1).member_epoch == 2
    # The answer with epoch 2 was lost: epoch 1 is good while it owns no more than it should, and says so.
    again = world.beat(member_id="a", member_epoch=1, topic_partitions=owned_list(world, kept))
    assert again.member_epoch == 2
    with pytest.raises(FencedMemberEpoch):
        world.idle("a", 1)
    with pytest.raises(FencedMemberEpoch):
        world.beat(member_id="a", member_epoch=1, topic_partitions=owned_list(world, kept | {("u", 0)}))


def test_a_fenced_member_joins_again_under_its_id(world: World) -> None:
    first = world.join("a")
    again = world.join("a")
    assert (again.member_epoch, world.parts(again)) == (first.member_epoch, world.parts(first))


def test_a_group_has_its_largest_size() -> None:
    world = World(max_size=2)
    world.topics(t=1)
    world.join("a")
    world.join("b")
    with pytest.raises(GroupMaxSizeReached):
        world.join("c")
    world.join("a")


def test_what_cannot_be_written_has_not_happened(world: World) -> None:
    world.join("a")
    world.refuse = KafkaStorageError("full")
    with pytest.raises(KafkaStorageError):
        world.join("b")
    assert set(world.group.members) == {"a"}
    world.advance(50_000)
    assert set(world.group.members) == {"a"}  # its session is over, but that cannot be written
    world.refuse = None
    world.advance(2_000)
    assert world.group.is_empty


# --- time ---


def test_a_silent_member_is_given_up_after_its_session(world: World) -> None:
    alive = Consumer(world, "a")
    settle([alive, Consumer(world, "b")])
    for _ in range(8):
        world.advance(5000)
        alive.beat()
    assert "b" in world.group.members
    world.advance(5000)
    assert set(world.group.members) == {"a"}
    assert world.group.group_epoch == 3
    world.advance(60_000)
    assert world.group.state_name == "Empty"


@pytest.mark.parametrize("batch_bytes_max", [400, 1000, 3000])
def test_silent_members_are_given_up_in_as_many_batches_as_it_takes(world: World, batch_bytes_max: int) -> None:
    for number in range(20):
        world.join(f"member-{number}")
    before = len(world.log)
    world.batch_bytes_max = 50  # not even one member
    world.advance(45_000)
    assert len(world.group.members) == 20 and len(world.log) == before
    world.batch_bytes_max = batch_bytes_max
    world.advance(1_000)
    assert world.group.is_empty
    world.load()
    assert world.group.is_empty


def test_a_pattern_that_stands_for_too_many_topics_keeps_those_it_had(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.join("a", None, subscribed_topic_regex="t.*")
    world.batch_bytes_max = 2000
    many = {f"t{number}-many": 1 for number in range(300)}
    world.topics(t=6, u=3, **many)
    with caplog.at_level("WARNING"):
        assert world.idle("a", 1).member_epoch == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "'t.*' stands for 301 topics" in line and "go on with the 1 that they had" in line
    assert (
        world.idle("a", 1).member_epoch == 1
        and sum(record.name.startswith("fastq_broker") for record in caplog.records) == 1
    ), "said once"
    # Who asks for it anew is refused, and nothing changes.
    before = list(world.log)
    with pytest.raises(MessageTooLarge):
        world.join("b", None, subscribed_topic_regex="t[0-9].*")
    assert world.log == before
    world.topics(t=6, u=3, t1=1)
    assert world.parts(world.idle("a", 1)) == {("t1", 0), *(("t", number) for number in range(6))}


def test_a_change_that_fits_no_batch_changes_nothing(world: World) -> None:
    world.join("a")
    before = list(world.log)
    world.batch_bytes_max = 100
    with pytest.raises(MessageTooLarge):
        world.join("b")
    assert world.log == before and set(world.group.members) == {"a"}
    world.batch_bytes_max = 1 << 20
    assert world.join("b").member_epoch == 2


@pytest.mark.parametrize("is_refused", [False, True])
def test_who_does_not_revoke_in_time_is_given_up(world: World, is_refused: bool) -> None:
    """Also where that cannot be written at once: the deadline had been forgotten by then, and the member stayed."""
    world.join("a")
    world.join("b", rebalance_timeout_ms=60_000)
    world.idle("a", 1)  # hears that it has to revoke within 5 s
    world.advance(4000)
    world.idle("a", 1)
    assert "a" in world.group.members
    world.refuse = KafkaStorageError("disk") if is_refused else None
    world.advance(1000)
    assert ("a" in world.group.members) is is_refused
    world.refuse = None
    world.advance(1000)
    assert set(world.group.members) == {"b"}
    assert len(world.parts(world.idle("b", 2))) == 6


def test_sessions_begin_anew_where_a_coordinator_loads(world: World) -> None:
    world.join("a")
    world.advance(44_000)
    world.load()
    world.advance(44_000)
    assert "a" in world.group.members
    world.advance(1_000)
    assert world.group.is_empty


# --- static members ---


def test_a_static_member_returns_to_its_partitions(world: World) -> None:
    first = world.join("a", instance_id="i")
    world.join("b")
    epoch = world.group.group_epoch
    assert world.beat(member_id="a", member_epoch=-2, instance_id="i").member_epoch == -2
    assert world.group.group_epoch == epoch
    world.advance(10_000)
    back = world.join("a2", instance_id="i")
    assert world.parts(back) < world.parts(first)  # the half that the target leaves it
    assert world.group.group_epoch == epoch
    assert set(world.group.members) == {"a2", "b"}
    with pytest.raises(FencedInstanceId):
        world.beat(member_id="a", member_epoch=1, instance_id="i")


def test_an_instance_in_use_is_not_released(world: World) -> None:
    world.join("a", instance_id="i")
    with pytest.raises(UnreleasedInstanceId):
        world.join("a2", instance_id="i")
    with pytest.raises(UnknownMemberId):
        world.beat(member_id="x", member_epoch=-2, instance_id="other")
    with pytest.raises(FencedInstanceId):
        world.beat(member_id="x", member_epoch=-2, instance_id="i")


def test_a_static_member_that_stays_away_is_given_up(world: World) -> None:
    world.join("a", instance_id="i")
    world.beat(member_id="a", member_epoch=-2, instance_id="i")
    world.advance(45_000)
    assert world.group.is_empty
    assert world.parts(world.join("b", instance_id="i"))


# --- patterns ---


def test_a_pattern_is_resolved_by_the_broker(world: World) -> None:
    response = world.join("a", None, subscribed_topic_regex="t|new.*")
    assert world.parts(response) == {("t", number) for number in range(6)}
    world.topics(t=6, u=3, new1=1, other=1)
    assert ("new1", 0) in world.parts(world.idle("a", 1))
    assert world.group.is_subscribed_to("new1")
    world.beat(member_id="a", member_epoch=2, subscribed_topic_regex="", subscribed_topic_names=["u"])
    assert world.group.regexes == {}


def test_a_pattern_that_is_none(world: World) -> None:
    with pytest.raises(InvalidRegularExpression):
        world.join("a", None, subscribed_topic_regex="(")
    assert world.groups == {}


# --- commits ---


def test_commits_are_checked_against_the_epoch_at_which_a_partition_was_assigned(world: World) -> None:
    world.join("a")
    world.topics(t=7, u=3)
    world.idle("a", 1)  # epoch 2 now, with partition 6 assigned in it
    group = world.group

    def check(epoch: int, *numbers: int, member_id: str = "a", version: int = 9, transactional: bool = False) -> int:
        parts = [("t", number) for number in numbers]
        return group.check_commit(
            Committer(member_id, epoch, None), parts, transactional=transactional, version=version
        )

    assert check(2, 0, 6) == 0
    assert check(1, 0) == 0
    assert check(1, 6) == 113
    assert check(1, 99) == 113
    assert check(3, 0) == 113
    assert check(-1, 0, member_id="") == 25
    assert check(2, 0, member_id="b") == 25
    assert check(2, 0, version=8) == 35
    assert check(2, 0, version=8, transactional=True) == 0
    # The same in a transaction: TxnOffsetCommit has another code for it.
    assert check(1, 0, transactional=True) == 0
    assert [check(1, 6, transactional=True), check(1, 99, transactional=True), check(3, 0, transactional=True)] == [
        22
    ] * 3
    assert check(-1, 0, member_id="", transactional=True) == 0
    assert group.check_fetch(Committer("a", 1)) == 113
    assert group.check_fetch(Committer("a", 2)) == 0
    assert group.check_fetch(Committer("", -1)) == 0
    assert group.check_fetch(Committer("b", 1)) == 25
    assert group.check_delete() == 68
    world.beat(member_id="a", member_epoch=-1)
    assert check(-1, 0, member_id="") == 0
    assert group.check_delete() == 0


def test_a_deleted_group_leaves_nothing(world: World) -> None:
    world.join("a", None, subscribed_topic_regex="t")
    world.beat(member_id="a", member_epoch=-1)
    world.append(world.group.tombstones(), lambda error: None)
    assert world.groups == {}
    left = dict(world.log)
    assert all(value is None for value in left.values())


# --- whole lives, at random ---


@pytest.mark.parametrize("seed", range(30))
def test_no_partition_has_two_owners_and_groups_settle(seed: int) -> None:
    """Members join, leave, die and change their topics, coordinators move, topics grow: never two owners; in the end all is shared."""
    chance = random.Random(seed)
    world = World(assignment_interval_ms=chance.choice([0, 1000]))
    world.topics(t=chance.randint(1, 12), u=chance.randint(0, 5))
    consumers: list[Consumer] = []
    for number in range(150):
        action = chance.random()
        if action < 0.08 and len(consumers) < 8:
            topics = chance.choice([["t"], ["u"], ["t", "u"]])
            consumers.append(Consumer(world, f"m{number}", topics, rebalance_timeout_ms=chance.choice([1000, 60_000])))
        elif action < 0.12 and consumers:
            gone = consumers.pop(chance.randrange(len(consumers)))
            if gone.epoch:
                world.beat(member_id=gone.member_id, member_epoch=-1)
        elif action < 0.14 and consumers:
            dead = consumers.pop(chance.randrange(len(consumers)))
            dead.owned.clear()  # it was killed; the coordinator will find out
        elif action < 0.17:
            world.topics(t=len(world.image.topics_by_name["t"].partitions) + 1, u=5)
        elif action < 0.2:
            world.load()
        elif action < 0.3:
            world.advance(chance.choice([100, 1000, 5000]))
        elif consumers:
            chance.choice(consumers).beat()
        drop_lost(world, consumers)
        assert_disjoint(consumers)
        assert_replayable(world)
    for _ in range(80):
        world.advance(900)
        drop_lost(world, consumers)
        for consumer in consumers:
            consumer.beat()
    for name in ("t", "u"):
        count = len(world.image.topics_by_name[name].partitions)
        if any(name in consumer.topics for consumer in consumers):
            owned = {part for consumer in consumers for part in consumer.owned if part[0] == name}
            assert owned == {(name, number) for number in range(count)}
    assert "g" not in world.groups or world.group.state_name in ("Stable", "Empty")


def drop_lost(world: World, consumers: Sequence[Consumer]) -> None:
    """A client that hears nothing for its session knows that its partitions are lost."""
    group = world.groups.get("g")
    for consumer in consumers:
        if consumer.epoch and (group is None or consumer.member_id not in group.members):
            consumer.owned, consumer.epoch = set(), 0


def assert_replayable(world: World) -> None:
    """The log, also a compacted one, gives the state that the coordinator has."""
    for log in (world.log, list(dict(reversed_unique(world.log)).items())):
        replayed = world.new_shard()
        for key, value in log:
            replayed.replay(key, value, world.clock_ms)
        groups: dict[str, Any] = replayed.groups
        assert groups.keys() == world.groups.keys()
        for group_id, group in groups.items():
            live = world.groups[group_id]
            for name in ("members", "targets", "owners", "instances", "group_epoch", "target_epoch", "topic_counts"):
                assert getattr(group, name) == getattr(live, name), name


def reversed_unique(log: Sequence[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """The last record of each key, in the order of the log: what compaction leaves."""
    last: dict[bytes, tuple[int, bytes | None]] = {key: (place, value) for place, (key, value) in enumerate(log)}
    return [(key, value) for key, (_, value) in sorted(last.items(), key=lambda item: item[1][0])]
