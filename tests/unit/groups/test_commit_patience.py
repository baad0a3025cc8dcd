"""What waits until the replicas have what was written: commits, deletions, and who reads or asks again meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastq_broker.coordinator.errors import store_error
from fastq_broker.groups import consumer_groups, shard
from fastq_broker.groups.classic_group import ClassicGroup
from fastq_broker.groups.classic_member import JoinRequest, JoinResult, SyncResult
from fastq_broker.groups.consumer_change import GroupChange
from fastq_broker.groups.consumer_groups import ConsumerGroups
from fastq_broker.groups.group import Committer
from fastq_broker.groups.shard import Commit
from fastq_broker.log import FailureReports
from group_world import CLIENT, SlowWorld, World

from fastq.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    error_for_code,
)
from fastq.protocol.messages import ConsumerGroupHeartbeatRequest

TIMEOUT_MS = 5_000
AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
JOINING = {
    "member_epoch": 0,
    "rebalance_timeout_ms": 60_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


@pytest.fixture
def world() -> SlowWorld:
    return SlowWorld()


def commit(world: World, partition: int = 0, then: Callable[[], object] = lambda: None) -> list[int]:
    """A commit; the error that it is told, after which `then` is called."""
    told: list[int] = []

    def answer(errors: dict[tuple[str, int], int]) -> None:
        told.extend(errors.values())
        then()

    world.shard.commit(Commit("g", Committer(), [("t", partition, 1, -1, None)], 8), answer)
    return told


def read(world: World) -> list[int]:
    told: list[int] = []
    world.shard.when_durable(lambda error: told.append(0 if error is None else int(error.code)))
    return told


def test_who_reads_what_is_safe_is_answered_at_once(world: SlowWorld) -> None:
    commit(world)
    world.replicate()
    assert read(world) == [0]


def test_who_reads_waits_for_what_was_written_before_and_not_for_ever(world: SlowWorld) -> None:
    commit(world)
    told = read(world)
    assert told == []
    world.advance(TIMEOUT_MS - 1)
    late = read(world)
    assert told == late == []
    world.advance(1)
    assert (told, late) == ([ErrorCode.REQUEST_TIMED_OUT], [])
    world.replicate()
    assert (told, late) == ([ErrorCode.REQUEST_TIMED_OUT], [0])


def test_who_reads_hears_why_it_is_not_safe(world: SlowWorld) -> None:
    commit(world)
    told = [read(world), read(world)]
    world.replicate(KafkaStorageError("the disk is gone"))
    assert told == [[ErrorCode.KAFKA_STORAGE_ERROR]] * 2


def test_who_asks_again_and_again_leaves_nothing_behind(world: SlowWorld) -> None:
    commit(world)
    for _ in range(1000):
        told = read(world)
        world.advance(TIMEOUT_MS)
        assert told == [ErrorCode.REQUEST_TIMED_OUT]
    assert len(world.waiting) == 2, "the commit, and one for all who read"
    assert sum(len(line) for line in world.shard._readers._lines.values()) <= 2


@pytest.mark.parametrize("what", ["commit", "group", "offsets"])
def test_a_deletion_waits_no_longer_than_a_commit(world: SlowWorld, what: str) -> None:
    commit(world)
    world.replicate()
    told: list[int] = []
    if what == "group":
        world.shard.delete_group("g", told.append)
    elif what == "offsets":
        world.shard.delete_offsets("g", [("t", 0)], lambda error, errors: told.append(error))
    else:
        told = commit(world)
    world.advance(TIMEOUT_MS - 1)
    assert told == []
    world.advance(1)
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def ask(consumers: ConsumerGroups, **fields: Any) -> list[tuple[int, Any]]:
    told: list[tuple[int, Any]] = []
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", **fields)
    consumers.heartbeat(
        request,
        CLIENT,
        1,
        lambda answer, error: told.append((error.code if error else 0, answer and answer.assignment)),
    )
    return told


def test_a_heartbeat_that_is_sent_again_is_answered_when_the_first_is(world: SlowWorld) -> None:
    """It was answered at once, with an assignment that a crash could still undo."""
    first = ask(world.consumers, **JOINING)
    again = ask(world.consumers, **JOINING)
    assert first == again == []
    world.replicate()
    ((error, assignment),) = first
    assert error == 0 and assignment is not None
    assert again == first
    assert ask(world.consumers, **JOINING) == first


def test_who_commits_again_as_it_is_told_has_nobody_wait_longer(world: SlowWorld) -> None:
    again: list[list[int]] = []
    first = commit(world, then=lambda: again.append(commit(world)))
    world.advance(1)
    second = commit(world)
    world.advance(TIMEOUT_MS - 1)
    assert (first, second, again) == ([AWAY], [], [[]])
    world.advance(1)
    assert second == [AWAY]
    world.advance(TIMEOUT_MS - 1)
    assert again == [[AWAY]]


def join(world: World, instance_id: str | None = None) -> list[JoinResult]:
    told: list[JoinResult] = []
    protocols = (("range", b""),)
    request = JoinRequest("", instance_id, "client", "/host", 60_000, 60_000, "consumer", protocols, False, True)
    world.shard.join("g", request, told.append)
    world.advance(0)
    return told


def sync(world: World, joined: JoinResult, instance_id: str | None = None) -> list[SyncResult]:
    told: list[SyncResult] = []
    committer = Committer(joined.member_id, joined.generation, instance_id)
    world.shard.sync("g", committer, None, None, {joined.member_id: b"all"}, told.append)
    return told


def waiting_for_a_sync(world: SlowWorld) -> list[Any]:
    (joined,) = join(world)
    world.replicate()
    return sync(world, joined)


def waiting_for_a_static_join(world: SlowWorld) -> list[Any]:
    (joined,) = join(world, "i")
    synced = sync(world, joined, "i")
    world.replicate()
    assert synced[0].error == 0
    return join(world, "i")


def waiting_for_a_heartbeat(world: SlowWorld) -> list[Any]:
    return ask(world.consumers, **JOINING)


def waiting_for_a_commit(world: SlowWorld) -> list[Any]:
    return commit(world)


def waiting_to_read(world: SlowWorld) -> list[Any]:
    commit(world)
    return read(world)


def error_of(told: list[Any]) -> int:
    (answer,) = told
    return int(answer if isinstance(answer, int) else answer[0])


@pytest.mark.parametrize("ask_for", [waiting_for_a_sync, waiting_for_a_static_join, waiting_for_a_heartbeat])
def test_what_a_group_writes_waits_no_longer_than_a_commit(
    world: SlowWorld, ask_for: Callable[[SlowWorld], list[Any]]
) -> None:
    told = ask_for(world)
    world.advance(TIMEOUT_MS - 1)
    assert told == []
    world.advance(1)
    assert store_error(error_for_code(error_of(told), "")) == AWAY
    world.replicate()
    assert len(told) == 1


@pytest.mark.parametrize(
    "ask_for",
    [
        waiting_for_a_sync,
        waiting_for_a_static_join,
        waiting_for_a_heartbeat,
        waiting_for_a_commit,
        waiting_to_read,
    ],
)
def test_who_waits_is_told_that_the_partition_is_coordinated_elsewhere(
    world: SlowWorld, ask_for: Callable[[SlowWorld], list[Any]]
) -> None:
    """The timer that would have ended the wait is gone with the shard."""
    told = ask_for(world)
    assert told == []
    for timer in world.timers:  # its context is closed before
        timer.cancel()
    world.shard.unloaded()
    assert error_of(told) == ErrorCode.NOT_COORDINATOR
    world.replicate()
    assert len(told) == 1 and [timer for timer in world.timers if not timer.cancelled] == []


def no_memory(*_: Any) -> None:
    raise MemoryError("none left")


def test_one_that_cannot_be_told_keeps_no_other_from_hearing(world: SlowWorld) -> None:
    """Those behind it waited for ever: the timer that would have ended that is gone with the shard."""
    told: list[JoinResult] = []
    for group_id, answer in (("a", no_memory), ("b", told.append)):
        protocols = (("range", b""),)
        request = JoinRequest("", None, "client", "/host", 60_000, 60_000, "consumer", protocols, False, True)
        world.shard.join(group_id, request, answer)
    commit(world, then=no_memory)
    committed = commit(world)
    world.shard.unloaded()
    assert error_of(told) == error_of(committed) == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("moves", [False, True])
def test_a_member_that_cannot_be_told_takes_nothing_from_its_group(world: SlowWorld, moves: bool) -> None:
    """Those behind it were never answered, and nobody looked at them any more: they held the group for good."""
    told: list[JoinResult] = []
    for answer in (no_memory, told.append, told.append):
        request = JoinRequest("", None, "client", "/host", 60_000, 10_000, "consumer", (("range", b""),), False, True)
        world.shard.join("g", request, answer)
    world.replicate()
    if moves:
        world.shard.unloaded()
        assert [result.error for result in told] == [ErrorCode.NOT_COORDINATOR] * 2
        return
    world.advance(0)
    assert [result.error for result in told] == [0, 0]
    assert len(world.groups["g"].members) == 3
    world.advance(10_000)
    assert not world.groups["g"].members


def test_a_group_that_cannot_be_looked_at_for_a_moment_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its only timer was gone: a member that died kept its partitions until somebody joined."""
    monkeypatch.setattr(consumer_groups, "failures", FailureReports())
    world = World(session_timeout_ms=10_000)
    world.topics(t=2)
    world.join("a")
    with monkeypatch.context() as patch:
        patch.setattr(world.consumers, "_fence_in_parts", no_memory)
        world.advance(15_000)
    world.advance(1000)
    assert not world.group.members
    assert [record.exc_info is not None for record in caplog.records] == [True], "not a traceback a second"


def test_what_is_kept_while_another_group_is_written_is_told_at_once(world: SlowWorld) -> None:
    """An answer has the next request of its connection served, and what that waits for tells those before it: the members of that group
    waited until something else happened to it, and a group that was deleted so was there still."""
    synced = waiting_for_a_sync(world)
    request = JoinRequest("", None, "client", "/host", 60_000, 60_000, "consumer", (("range", b""),), False, True)
    joined: list[JoinResult] = []
    world.shard.join("other", request, joined.append)
    world.advance(0)
    append, deleted = world.append, list[int]()

    def append_and_tell(
        records: Sequence[tuple[bytes, bytes | None]], on_done: Callable[[Any], None], **transaction: Any
    ) -> None:
        append(records, on_done, **transaction)
        world.append = append  # type: ignore[method-assign]
        world.replicate()
        world.shard.delete_group("empty", deleted.append)

    world.shard.join("empty", request._replace(requires_member_id=True), lambda _: None)
    world.append = append_and_tell  # type: ignore[method-assign]
    leader = Committer(joined[0].member_id, joined[0].generation)
    of_other: list[SyncResult] = []
    world.shard.sync("other", leader, None, None, {}, of_other.append)
    assert [result.error for result in synced] == [result.error for result in of_other] == [0]
    world.replicate()
    assert deleted == [0] and "empty" not in world.groups


def test_who_completes_a_rebalance_hears_nothing_of_another_s_failure(world: SlowWorld) -> None:
    """It was told UNKNOWN_SERVER_ERROR, which ends a Java consumer, while the group counted on it."""
    (first,) = join(world)
    told: list[JoinResult] = []
    protocols = (("range", b""),)

    def ask(member_id: str, answer: Callable[[JoinResult], None]) -> None:
        request = JoinRequest(member_id, None, "client", "/host", 60_000, 60_000, "consumer", protocols, False, True)
        world.shard.join("g", request, answer)

    ask("", no_memory)
    ask(first.member_id, told.append)
    assert [result.error for result in told] == [0]
    with pytest.raises(MemoryError):
        ask("unknown", no_memory)  # of its own it does


@pytest.mark.parametrize("what", ["_arm", "_remove", "_prepare_rebalance", "_go", "_complete_join"])
def test_a_classic_group_that_cannot_be_looked_at_for_a_moment_is_looked_at_again(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A member that died kept its partitions until somebody joined, or had left a group that stayed as it was."""
    (joined,) = join(world)
    synced = sync(world, joined)
    world.replicate()
    assert synced[0].error == 0
    world.advance(20_000)
    assert world.shard.heartbeat("g", Committer(joined.member_id, joined.generation)) == 0
    world.advance(40_000 - 1)
    if what != "_arm":
        world.advance(20_000)
    with monkeypatch.context() as patch:
        patch.setattr(ClassicGroup, what, no_memory)
        world.advance(1)
    assert not world.groups["g"].is_empty
    world.advance(1000 if what != "_arm" else 20_000)
    world.replicate()
    assert world.groups["g"].is_empty


def test_members_are_told_to_join_where_one_has_left_and_there_was_no_memory_for_that(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[JoinResult] = []
    protocols = (("range", b""),)
    for timeout_ms in (10_000, 60_000):
        request = JoinRequest("", None, "client", "/host", 60_000, timeout_ms, "consumer", protocols, False, True)
        world.shard.join("g", request, joined.append)
    world.advance(0)
    leaves, stays = (Committer(result.member_id, result.generation) for result in joined)
    assignments = {result.member_id: b"" for result in joined}
    told: list[SyncResult] = []
    for committer in (leaves, stays):
        world.shard.sync("g", committer, None, None, assignments, told.append)
    world.replicate()
    assert [result.error for result in told] == [0, 0]
    monkeypatch.setattr(ClassicGroup, "_schedule_join", no_memory)
    with pytest.raises(MemoryError):
        world.shard.leave("g", [(leaves.member_id, None)])
    assert world.shard.heartbeat("g", stays) == 0
    monkeypatch.undo()
    assert world.shard.leave("g", [(leaves.member_id, None)]) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.shard.heartbeat("g", stays) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_for_which_no_timer_can_be_had_keeps_the_one_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(session_timeout_ms=10_000)
    world.topics(t=2)
    member = world.join("a")
    with monkeypatch.context() as patch:
        patch.setattr(world.consumers._context, "call_later", no_memory)
        with pytest.raises(MemoryError):
            world.consumers._wake_at(world.group, 1000)
    world.consumers._wake_at(world.group, 2000)
    (timer,) = [timer for timer in world.timers if not timer.cancelled]
    assert timer is world.group.timer
    world.advance(10_000)
    assert member is not None and not world.group.members


def test_who_waits_behind_one_for_whom_no_timer_can_be_had_is_told_with_the_next(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commit(world)
    world.advance(1)
    second = commit(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.shard._patience, "_call_later", no_memory)
        with pytest.raises(MemoryError):
            world.advance(TIMEOUT_MS - 1)
    assert (first, second) == ([AWAY], [])
    third = commit(world)
    world.advance(TIMEOUT_MS)
    assert (second, third) == ([AWAY], [AWAY])


@pytest.mark.parametrize(("owner", "what"), [(GroupChange, "refresh_target"), (ConsumerGroups, "commit")])
def test_a_target_that_cannot_be_worked_out_for_a_moment_is_later(
    monkeypatch: pytest.MonkeyPatch, owner: type, what: str
) -> None:
    world = World(assignment_interval_ms=1000)
    world.topics(t=2)
    world.join("a")
    world.join("b")
    with monkeypatch.context() as patch:
        patch.setattr(owner, what, no_memory)
        world.advance(1000)
    world.advance(1000)
    assert world.group.target_epoch == 2


def test_who_reads_hears_it_whatever_became_of_the_one_before(world: SlowWorld) -> None:
    commit(world)
    world.shard.when_durable(no_memory)
    told = read(world)
    world.replicate()
    assert told == [0]


def test_who_cannot_wait_for_what_was_written_keeps_no_other_from_reading_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All who came at the same end of the log behind it were told that it was not safe in time."""
    world = SlowWorld()
    commit(world)
    with monkeypatch.context() as patch:
        patch.setattr(world.shard._readers, "_when_durable", no_memory)
        with pytest.raises(MemoryError):
            read(world)
    told = read(world)
    world.replicate()
    assert told == [0]


@pytest.mark.parametrize("after", [False, True])
def test_an_assignment_that_cannot_be_written_for_a_moment_is_told_to_all_who_wait(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """They waited until their clients gave up: nothing told the group that it was not stored."""
    joined: list[JoinResult] = []
    request = JoinRequest("", None, "client", "/host", 60_000, 60_000, "consumer", (("range", b""),), False, True)
    for _ in range(2):
        world.shard.join("g", request, joined.append)
    world.advance(0)
    world.replicate()
    told: dict[str, list[int]] = {result.member_id: [] for result in joined}

    def ask(result: JoinResult) -> None:
        committer, answers = Committer(result.member_id, result.generation), told[result.member_id]
        world.shard.sync("g", committer, None, None, {}, lambda synced: answers.append(synced.error))

    leader, follower = sorted(joined, key=lambda result: result.member_id != result.leader)
    ask(follower)
    with monkeypatch.context() as patch:
        if after:  # it is in the log, and no timer can be had for the wait
            patch.setattr(world.shard._patience, "_call_later", no_memory)
        else:
            patch.setattr(shard, "group_record", no_memory)
        ask(leader)
    assert told == {leader.member_id: [AWAY], follower.member_id: [AWAY]}
    world.replicate()
    assert [len(answers) for answers in told.values()] == [1, 1]
    assert world.shard.heartbeat("g", Committer(follower.member_id, 1)) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("unloaded", None),
        (NotLeaderOrFollower("this node stopped leading"), None),
        (KafkaStorageError("the disk is gone"), "group g could not be stored"),
        ("too late", "group g was not known to be stored in time"),
    ],
)
def test_a_write_that_an_ordinary_move_ends_is_nothing_to_warn_of(
    world: SlowWorld,
    how: str | KafkaError,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(shard, "failures", FailureReports())
    told = waiting_for_a_sync(world)
    if isinstance(how, KafkaError):
        world.replicate(how)
    elif how == "unloaded":
        world.shard.unloaded()
    else:
        world.advance(TIMEOUT_MS)
    assert len(told) == 1
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines] == ([] if said is None else [said])


@pytest.mark.parametrize("again", ["leave", "expiry"])
def test_a_group_that_could_not_be_written_as_empty_is_so_later(world: SlowWorld, again: str) -> None:
    """Who left once more was told that there is no such member, and the next coordinator had it still."""
    commit(world)
    (joined,) = join(world)
    world.replicate()
    synced = sync(world, joined)
    world.replicate()
    assert synced[0].error == 0
    leaving = [(joined.member_id, None)]
    world.refuse = NotEnoughReplicas("too few in sync")
    assert world.shard.leave("g", leaving) == AWAY
    assert world.shard.leave("g", leaving) == AWAY
    world.refuse = None
    if again == "leave":
        assert world.shard.leave("g", leaving) == [ErrorCode.UNKNOWN_MEMBER_ID]
    else:
        world.shard.expire_offsets()
    written = len(world.log)
    world.replicate()
    assert world.shard.leave("g", leaving) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert len(world.log) == written, "once"
    world.load()
    assert world.groups["g"].is_empty
