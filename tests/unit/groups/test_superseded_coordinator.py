"""A coordinator that was cut off: its groups may be elsewhere by now, with members and offsets that it knows nothing of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.groups.classic_member import JoinRequest
from fastq_broker.groups.classic_state import Settings
from fastq_broker.groups.group import Committer
from fastq_broker.groups.shard import Commit, GroupShard, ShardSettings
from fastq_broker.replicas import Replica
from group_world import CLIENT, World

from fastq.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, ErrorCode, FencedMemberEpoch, KafkaError
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE


class CutOff(World):
    """`sure`: whether nobody else can coordinate by now."""

    sure = True

    def new_shard(self) -> GroupShard:
        settings = ShardSettings(Settings(initial_rebalance_delay_ms=0), self.settings)
        return GroupShard(self, settings, lambda: self.image, is_surely_here=lambda: self.sure)  # type: ignore[arg-type]

    def ask(self, group_id: str, member_id: str = "", instance_id: str | None = None) -> tuple[int, str]:
        """A JoinGroup: error and member id."""
        answers: list[Any] = []
        protocols = (("range", b""),)
        request = JoinRequest(
            member_id, instance_id, "client", "/host", 10_000, 10_000, "consumer", protocols, False, False
        )
        self.shard.join(group_id, request, answers.append)
        self.advance(0)
        (answer,) = answers
        return answer.error, answer.member_id


@pytest.fixture
def world() -> CutOff:
    world = CutOff()
    world.topics(t=1)
    return world


@pytest.mark.parametrize("sure", [True, False])
def test_what_ends_a_membership_is_said_by_who_surely_coordinates(world: CutOff, sure: bool) -> None:
    """The member has joined again elsewhere, with the same instance id: here it is the one of before that is known."""
    error, first = world.ask("g", instance_id="i")
    assert not error
    world.sure = sure
    now = Committer("i-of-now", 3, "i")

    def told(code: ErrorCode) -> int:
        return code if sure else AWAY

    assert world.shard.heartbeat("g", Committer(first, 1, "i")) in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    assert world.shard.heartbeat("g", now) == told(ErrorCode.FENCED_INSTANCE_ID)
    assert world.shard.heartbeat("unheard-of", now) == told(ErrorCode.UNKNOWN_MEMBER_ID)
    assert world.ask("g", "i-of-now", "i")[0] == told(ErrorCode.FENCED_INSTANCE_ID)
    synced: list[int] = []
    for committer in (now, Committer(first, 3, "i")):
        world.shard.sync("g", committer, None, None, {}, lambda result: synced.append(result.error))
    assert synced == [told(ErrorCode.FENCED_INSTANCE_ID), told(ErrorCode.ILLEGAL_GENERATION)]
    assert world.shard.leave("g", [("i-of-now", "i")]) == [told(ErrorCode.FENCED_INSTANCE_ID)]
    committed: list[dict[tuple[str, int], int]] = []
    entry = ("t", 0, 5, -1, None)
    for group_id, committer in (("g", now), ("g", Committer(first, 3, "i")), ("unheard-of", now)):
        world.shard.commit(Commit(group_id, committer, [entry], 8), committed.append)
    wrong = [ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION]
    assert committed == [{("t", 0): told(code)} for code in wrong]


def test_what_is_written_is_answered_as_ever(world: CutOff) -> None:
    """Those in sync have it by then, so that nobody else coordinates without it."""
    world.sure = False
    committed: list[dict[tuple[str, int], int]] = []
    world.shard.commit(Commit("g", Committer(), [("t", 0, 5, -1, None)], 8), committed.append)
    assert committed == [{("t", 0): 0}]


def test_offsets_of_before_are_not_told(world: CutOff) -> None:
    """A member would go back to what others have read since."""
    world.shard.commit(Commit("g", Committer(), [("t", 0, 5, -1, None)], 8), lambda errors: None)
    assert world.shard.fetch_error("g", Committer()) == 0
    world.sure = False
    assert world.shard.fetch_error("g", Committer()) == AWAY
    assert world.shard.fetch_error("unheard-of", Committer()) == AWAY


@pytest.mark.parametrize("sure", [True, False])
def test_a_member_of_the_consumer_protocol_is_not_fenced_by_an_epoch_of_before(world: CutOff, sure: bool) -> None:
    world.join("m")
    world.sure = sure
    answers: list[KafkaError | None] = []
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=9)
    with pytest.raises(FencedMemberEpoch if sure else CoordinatorNotAvailable):
        world.shard.consumer_heartbeat(request, CLIENT, 1, lambda response, error: answers.append(error))
    assert answers == []


@pytest.mark.parametrize(
    ("heard", "followed", "sure"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_a_broker_is_sure_by_its_controller_or_by_its_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool, followed: bool, sure: bool
) -> None:
    """Without a quorum groups go on, as long as those in sync follow."""

    async def loaded(broker: Broker) -> GroupShard:
        while True:
            try:
                return broker.groups.shard("g")
            except (CoordinatorNotAvailable, CoordinatorLoadInProgress):
                await asyncio.sleep(0.005)

    async def main() -> None:
        config = BrokerConfig.from_mapping({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
        broker = Broker(config, asyncio.get_running_loop())
        await broker.start()
        try:
            shard = await asyncio.wait_for(loaded(broker), 30)
            assert shard.fetch_error("g", Committer()) == 0, "a node that is alone has nobody beside it"
            monkeypatch.setattr(Replica, "is_followed", lambda self, within_ms: followed)
            broker.cluster = SimpleNamespace(is_heard=heard)  # type: ignore[assignment]
            assert (shard.fetch_error("g", Committer()) == 0) == sure
        finally:
            broker.cluster = None
            assert await broker.close()

    asyncio.run(main())


class Slow(CutOff):
    """What is written waits until `keep` says that the replicas have it."""

    def append(self, records: Any, on_done: Any, **transaction: Any) -> None:
        super().append(records, self._later(on_done), **transaction)

    def append_in_parts(self, records: Any, on_done: Any, **transaction: Any) -> None:
        super().append_in_parts(records, self._later(on_done), **transaction)

    def _later(self, on_done: Any) -> Any:
        return lambda error: self.waiting.append(on_done) if error is None else on_done(error)

    def load(self) -> None:
        self.waiting: list[Any] = []
        super().load()

    def keep(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None)

    def commit(self, offset: int) -> list[int]:
        """What a commit is answered, once it is."""
        errors: list[int] = []
        commit = Commit("g", Committer(), [("t", 0, offset, -1, None)], 8)
        self.shard.commit(commit, lambda told: errors.extend(told.values()))
        return errors


def test_a_commit_waits_for_the_replicas_and_not_for_ever() -> None:
    """Who is cut off from them sends its members to look for the coordinator anew (offsets.commit.timeout.ms)."""
    world = Slow()
    world.topics(t=1)
    first, kept = world.commit(1), world.commit(2)
    world.waiting.pop()(None)
    assert (first, kept) == ([], [ErrorCode.NONE])
    world.advance(4_000)
    second = world.commit(3)
    world.advance(1_000)
    assert (first, second) == ([AWAY], [])
    world.keep()
    assert (first, second) == ([AWAY], [ErrorCode.NONE]), "one answer each"
    world.advance(60_000)
    third = world.commit(4)
    world.advance(4_999)
    assert third == []
    world.advance(1)
    assert third == [AWAY]
    assert not [timer for timer in world.timers if not timer.cancelled]
