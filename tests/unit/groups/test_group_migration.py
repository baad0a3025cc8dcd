"""Members of the classic and of the consumer protocol in one group, and groups that change their kind while they live."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from fastq_broker.groups.classic_group import ClassicGroup
from fastq_broker.groups.classic_member import JoinRequest, JoinResult, SyncResult
from fastq_broker.groups.consumer_group import ConsumerGroup
from fastq_broker.groups.group import Committer
from fastq_broker.groups.migration import decode_assignment
from fastq_broker.groups.subscriptions import decode_subscription
from group_world import Consumer, Parts, World, assert_disjoint

from fastq._native.wire import DecodeError, Writer
from fastq.errors import (
    ErrorCode,
    GroupIdNotFound,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    UnknownMemberId,
)
from fastq.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

REBALANCE = 27


def subscription(topics: Sequence[str], owned: Parts = frozenset(), user_data: bytes | None = None) -> bytes:  # type: ignore[assignment]
    writer = Writer()
    writer.write_int16(1)
    names = sorted({name for name, _ in owned})
    ConsumerProtocolSubscription(
        topics=list(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(
                topic=name, partitions=[n for topic, n in owned if topic == name]
            )
            for name in names
        ],
    ).encode(writer, 1)
    return bytes(writer.getvalue())


def assignment(parts: Parts, user_data: bytes | None = None) -> bytes:
    writer = Writer()
    writer.write_int16(0)
    ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=[n for topic, n in parts if topic == name])
            for name in sorted({name for name, _ in parts})
        ],
        user_data=user_data,
    ).encode(writer, 0)
    return bytes(writer.getvalue())


class Classic:
    """An eager member of the classic protocol: it gives all up before it joins again; as leader it deals out like cards."""

    def __init__(self, world: World, name: str, topics: Sequence[str] = ("t",), **fields: Any) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.instance_id: str | None = fields.get("instance_id")
        self.rebalance_timeout_ms: int = fields.get("rebalance_timeout_ms", 60_000)
        self.user_data: bytes | None = fields.get("user_data")
        self.protocol: str = fields.get("protocol", "range")
        self.member_id = ""
        self.generation = -1
        self.owned: Parts = set()
        self.waiting = False
        self.dealt: Any = None
        """As a leader: the topics that it has dealt out."""
        self.errors: list[int] = []

    @property
    def who(self) -> Committer:
        return Committer(self.member_id, self.generation, self.instance_id)

    def join(self) -> None:
        self.owned = set()
        self.waiting = True
        self.dealt = None
        request = JoinRequest(
            self.member_id,
            self.instance_id,
            self.name,
            "/127.0.0.1",
            10_000,
            self.rebalance_timeout_ms,
            "consumer",
            ((self.protocol, subscription(self.topics)),),
        )
        self.world.shard.join("g", request, self._joined)

    def _joined(self, result: JoinResult) -> None:
        self.waiting = False
        if result.error == 79:
            self.member_id = result.member_id
            self.join()
        elif result.error:
            self._failed(result.error)
        else:
            self.member_id, self.generation = result.member_id, result.generation
            given = self._deal(result) if result.leader == result.member_id else {}
            self.waiting = True
            self.world.shard.sync("g", self.who, "consumer", result.protocol_name, given, self._synced)

    def _deal(self, result: JoinResult) -> dict[str, bytes]:
        topics = {member_id: decode_subscription(metadata).topics for member_id, _, metadata in result.members}
        dealt: dict[str, Parts] = {member_id: set() for member_id in topics}
        self.dealt = self.world.image.topics_by_name
        for name, topic in self.dealt.items():
            readers = sorted(member_id for member_id, names in topics.items() if name in names)
            for number in range(len(topic.partitions)):
                if readers:
                    dealt[readers[number % len(readers)]].add((name, number))
        return {member_id: assignment(parts, self.user_data) for member_id, parts in dealt.items()}

    def _synced(self, result: SyncResult) -> None:
        self.waiting = False
        if result.error:
            self._failed(result.error)
            return
        self.owned = {
            (item.topic, number)
            for item in decode_assignment(result.assignment).assigned_partitions
            for number in item.partitions
        }

    def _failed(self, error: int) -> None:
        self.errors.append(error)
        self.owned = set()
        if error != REBALANCE:
            self.member_id, self.generation = "", -1

    def beat(self) -> None:
        """A heartbeat, and what follows from its answer."""
        if self.waiting:
            return
        if self.generation < 0 or (self.errors and not self.owned and self.errors.pop()):
            self.join()
            return
        if self.dealt is not None and self.dealt is not self.world.image.topics_by_name:
            self.join()  # leaders watch the topics
            return
        error = self.world.shard.heartbeat("g", self.who)
        if error:
            self._failed(error)
            self.join()

    def leave(self) -> Any:
        self.owned = set()
        return self.world.shard.leave("g", [(self.member_id, self.instance_id)])


Members = Sequence[Any]


def settle(world: World, members: Members, times: int = 15) -> None:
    for _ in range(times):
        for member in members:
            member.beat()
            assert_disjoint(members)
        world.advance(500)


def everything(members: Members) -> Parts:
    return {part for member in members for part in member.owned}


@pytest.fixture
def world() -> World:
    made = World()
    made.topics(t=6)
    return made


ALL = {("t", number) for number in range(6)}


def test_a_live_group_goes_up_and_down_again(world: World) -> None:
    old = [Classic(world, "a"), Classic(world, "b")]
    settle(world, old)
    assert isinstance(world.groups["g"], ClassicGroup)
    assert everything(old) == ALL
    new = Consumer(world, "c")
    settle(world, [*old, new])
    assert isinstance(world.groups["g"], ConsumerGroup)
    assert [len(member.owned) for member in [*old, new]] == [2, 2, 2]
    assert world.group.classic_count == 2
    assert world.shard.leave("g", [(old[0].member_id, None)]) == [0]
    old.pop(0).owned = set()
    settle(world, [*old, new])
    assert everything([*old, new]) == ALL
    new.owned = set()
    world.beat(member_id="c", member_epoch=-1)
    group = world.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert old[0].member_id in group.members
    settle(world, old)
    assert old[0].owned == ALL
    assert group.state_name == "Stable"


def test_members_keep_their_partitions_through_an_upgrade(world: World) -> None:
    """What an old member has stays its own until the new target takes it away; nobody is fenced."""
    old = Classic(world, "a")
    settle(world, [old])
    response = world.join("c")
    assert world.parts(response) == set()
    member = world.group.members[old.member_id]
    assert member.classic is not None
    assert {number for numbers in member.assigned.values() for number in numbers} == set(range(6))
    assert world.shard.heartbeat("g", old.who) == REBALANCE
    assert world.group.check_commit(old.who, [("t", 0)], transactional=False, version=8) == 0
    stale = Committer(old.member_id, old.generation - 1, None)
    assert world.group.check_commit(stale, [("t", 0)], transactional=False, version=8) == 22


def test_who_waits_in_a_classic_rebalance_joins_the_consumer_group(world: World) -> None:
    old = [Classic(world, "a"), Classic(world, "b")]
    settle(world, old[:1])
    old[1].join()  # the first one has not heard of it
    assert old[1].waiting
    new = Consumer(world, "c")
    new.beat()
    assert old[1].errors == [REBALANCE]
    settle(world, [*old, new])
    assert [len(member.owned) for member in [*old, new]] == [2, 2, 2]


def test_an_upgrade_survives_a_new_coordinator(world: World) -> None:
    old, new = Classic(world, "a"), Consumer(world, "c")
    settle(world, [old])
    settle(world, [old, new])
    old.errors.clear()
    world.load()
    settle(world, [old, new])
    assert len(old.owned) == len(new.owned) == 3
    assert old.errors == []


def test_an_upgrade_that_cannot_be_written_leaves_the_classic_group(world: World) -> None:
    old = Classic(world, "a")
    settle(world, [old])
    world.refuse = KafkaStorageError("full")
    with pytest.raises(KafkaStorageError):
        world.join("c")
    world.refuse = None
    assert isinstance(world.groups["g"], ClassicGroup)
    assert world.shard.heartbeat("g", old.who) == 0


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_policies_that_forbid_the_way_up(policy: str) -> None:
    world = World(migration_policy=policy)
    world.topics(t=6)
    old = Classic(world, "a")
    settle(world, [old])
    with pytest.raises(GroupIdNotFound, match="migration"):
        world.join("c")
    assert world.shard.heartbeat("g", old.who) == 0


def test_groups_that_are_too_large_or_not_of_consumers_stay_classic() -> None:
    world = World(max_size=1)
    world.topics(t=6)
    settle(world, [Classic(world, "a"), Classic(world, "b")])
    with pytest.raises(GroupIdNotFound, match="members"):
        world.join("c")
    world.groups["g"].protocol_type = "connect"
    with pytest.raises(GroupIdNotFound, match="connect"):
        world.join("c")


def test_an_assignor_with_data_of_its_own_keeps_the_group_classic(world: World) -> None:
    settle(world, [Classic(world, "a", user_data=b"mine", protocol="mine")])
    with pytest.raises(GroupIdNotFound, match="assignor"):
        world.join("c")


def test_data_of_well_known_assignors_is_no_hindrance(world: World) -> None:
    old, new = Classic(world, "a", user_data=b"sticky", protocol="cooperative-sticky"), Consumer(world, "c")
    settle(world, [old])
    settle(world, [old, new])
    assert everything([old, new]) == ALL


def test_without_the_way_down_classic_members_stay_in_a_consumer_group() -> None:
    world = World(migration_policy="upgrade")
    world.topics(t=6)
    old, new = Classic(world, "a"), Consumer(world, "c")
    settle(world, [old])
    settle(world, [old, new])
    world.beat(member_id="c", member_epoch=-1)
    settle(world, [old])
    assert isinstance(world.groups["g"], ConsumerGroup)
    assert old.owned == ALL


def test_empty_groups_take_any_kind(world: World) -> None:
    old = Classic(world, "a")
    settle(world, [old])
    assert old.leave() == [0]
    world.advance(1000)
    new = Consumer(world, "c")
    settle(world, [new])
    assert new.owned == ALL
    assert world.group.classic_count == 0
    world.beat(member_id="c", member_epoch=-1)
    back = Classic(world, "b")
    settle(world, [back])
    assert isinstance(world.groups["g"], ClassicGroup)
    assert back.owned == ALL


def test_a_classic_member_joins_a_consumer_group(world: World) -> None:
    new, old = Consumer(world, "c"), Classic(world, "a")
    settle(world, [new])
    settle(world, [new, old])
    assert len(old.owned) == len(new.owned) == 3
    who = old.who
    assert world.shard.heartbeat("g", who) == 0
    assert world.shard.heartbeat("g", who._replace(generation=who.generation + 1)) == 22
    assert world.shard.heartbeat("g", who._replace(member_id="x")) == 25
    assert world.shard.heartbeat("g", Committer("c", new.epoch)) == 25  # it does not speak this protocol
    answers: list[SyncResult] = []
    world.shard.sync("g", who, "connect", "range", {}, answers.append)
    world.shard.sync("g", who, "consumer", "roundrobin", {}, answers.append)
    world.shard.sync("g", who, "consumer", "range", {}, answers.append)
    assert [answer.error for answer in answers] == [23, 23, 0]
    assert world.shard.leave("g", [("x", None), ("", "nobody"), ("c", None)]) == [25, 25, 25]
    with pytest.raises(UnknownMemberId):
        world.idle(old.member_id + "x", 1)


def test_a_classic_member_whose_leaving_cannot_be_written_stays(world: World) -> None:
    new, old = Consumer(world, "c"), Classic(world, "a")
    settle(world, [new])
    settle(world, [new, old])
    leaving = [(old.member_id, None), ("nobody", None)]
    world.refuse = NotEnoughReplicas("one of two")
    assert world.shard.leave("g", leaving) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.shard.heartbeat("g", old.who) == 0
    world.refuse = None
    assert world.shard.leave("g", leaving) == [0, 25]


def test_protocols_that_nobody_shares_are_refused(world: World) -> None:
    settle(world, [Consumer(world, "c")])
    answers: list[JoinResult] = []

    def join(protocol_type: str, *names: str, metadata: bytes = subscription(["t"])) -> int:
        protocols = tuple((name, metadata) for name in names)
        request = JoinRequest("", "i" + "".join(names), "x", "/h", 10_000, 10_000, protocol_type, protocols)
        world.shard.join("g", request, answers.append)
        return answers[-1].error

    assert join("connect", "range") == 23
    assert join("consumer") == 23
    assert join("consumer", "range", metadata=b"\0") == 23
    assert join("consumer", "range") == 0
    assert join("consumer", "sticky") == 23
    assert join("consumer", "sticky", "range") == 0


@pytest.mark.parametrize("is_refused", [False, True])
def test_classic_members_have_time_to_join_and_to_sync(world: World, is_refused: bool) -> None:
    new, old = Consumer(world, "c"), Classic(world, "a", rebalance_timeout_ms=3000)
    settle(world, [new])
    settle(world, [new, old])
    settle(world, [new, old, Consumer(world, "d")])
    member_id = old.member_id
    world.topics(t=7)
    new.beat()
    assert world.shard.heartbeat("g", old.who) == REBALANCE
    for _ in range(6):  # it goes on with its heartbeats, but does not join
        world.advance(499)
        new.beat()
        world.shard.heartbeat("g", old.who)
    assert member_id in world.group.members
    world.refuse = KafkaStorageError("disk") if is_refused else None
    world.advance(10)
    assert (member_id in world.group.members) is is_refused
    world.refuse = None
    world.advance(1000)
    assert member_id not in world.group.members


def test_a_classic_member_that_is_in_but_was_told_an_error_has_a_session_too(world: World) -> None:
    """Written, and then too few replicas had it: it was in the group for ever if it did not come again."""
    new, old = Consumer(world, "c"), Classic(world, "a")
    new.beat()
    waiting: list[Any] = []

    def append(records: Any, on_done: Any, **transaction: Any) -> None:
        World.append(world, records, lambda error: waiting.append(on_done))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "append", append)
        old.beat()
    (on_done,) = waiting
    on_done(NotEnoughReplicasAfterAppend("too few by now"))
    assert old.errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert [member.classic is not None for member in world.group.members.values()] == [False, True]
    for _ in range(6):
        new.beat()
        world.advance(2_000)
    assert list(world.group.members) == ["c"]


def test_a_static_member_changes_its_protocol_in_place(world: World) -> None:
    old = Classic(world, "a", instance_id="i")
    other = Classic(world, "b", instance_id="j")
    settle(world, [old, other])
    owned, old.owned = old.owned, set()
    new = Consumer(world, "c", instance_id="i")
    settle(world, [new, other])
    assert new.owned == owned
    assert set(world.group.instances) == {"i", "j"}
    assert world.shard.heartbeat("g", old.who) == 82
    # and back: the last member of the consumer protocol is replaced, so the group is a classic one again
    new.owned = set()
    back = Classic(world, "d", instance_id="i")
    settle(world, [back, other])
    assert isinstance(world.groups["g"], ClassicGroup)
    assert everything([back, other]) == ALL


@pytest.mark.parametrize("seed", range(25))
def test_no_partition_has_two_owners_whatever_they_speak(seed: int) -> None:
    """Members of both protocols come and go at random: never two owners, and in the end everything is shared out."""
    chance = random.Random(seed)
    world = World(assignment_interval_ms=chance.choice([0, 1000]))
    world.topics(t=chance.randint(1, 9))
    members: list[Any] = []
    for number in range(120):
        action = chance.random()
        if action < 0.1 and len(members) < 6:
            kind = chance.choice([Classic, Consumer])
            members.append(kind(world, f"m{number}", rebalance_timeout_ms=60_000))
        elif action < 0.15 and members:
            gone = members.pop(chance.randrange(len(members)))
            if isinstance(gone, Classic):
                gone.leave()
            elif gone.epoch:
                gone.owned.clear()
                world.beat(member_id=gone.member_id, member_epoch=-1)
        elif action < 0.18:
            world.topics(t=len(world.image.topics_by_name["t"].partitions) + 1)
        elif action < 0.25:
            world.advance(300)
        elif members:
            chance.choice(members).beat()
        assert_disjoint(members)
    settle(world, members, 60)
    count = len(world.image.topics_by_name["t"].partitions)
    assert everything(members) == ({("t", number) for number in range(count)} if members else set())
    assert max((len(member.owned) for member in members), default=0) <= -(-count // max(len(members), 1))


@pytest.mark.parametrize("said", [1, 3])
def test_a_subscription_without_what_came_after_version_0_is_read(said: int) -> None:
    short = said.to_bytes(2, "big") + ConsumerProtocolSubscription(topics=["t"], user_data=b"x").to_bytes(0)
    decoded = decode_subscription(short)
    assert (decoded.topics, decoded.user_data, decoded.owned_partitions) == (["t"], b"x", [])
    for wrong in (short[:-1], short + b"\0", b"\xff\xff" + short[2:], b""):
        with pytest.raises(DecodeError):
            decode_subscription(wrong)
