"""The rules of the quorum for who follows, and for snapshots, one by one, as Apache Kafka's nodes keep them."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.raft.log import Vote as Kept
from fastq_broker.raft.messages import (
    BeginEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    SnapshotId,
    UpdateVoter,
)
from fastq_broker.raft.roles import Committed, Link, LoadSnapshot, RaftFatal, Role, Send
from fastq_broker.raft.voters import VoterSet
from raft_setting import ME, PLACES, VOTERS, B, C, Setting, T, from_leader, packed, with_snapshot
from raft_world import Entry

from fastq.errors import ErrorCode

# -- the follower


def test_a_follower_asks_for_more_once_what_it_has_is_on_disk() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    assert setting.fetched(from_leader(records=packed(Entry(2, 5, b"x")))) == [] and not setting.asked
    assert setting.log.end == 3
    setting.disk(T)
    send = setting.asks()
    assert isinstance(send.ask, Fetch) and (send.ask.offset, send.ask.last_epoch) == (3, 5)


def test_batches_of_a_later_epoch_are_left() -> None:
    """KAFKA-18723: what a leader of a later epoch has written came with an answer of an earlier one."""
    setting = Setting(1, 4)
    setting.follow(5)
    setting.fetched(from_leader(records=packed(Entry(2, 5, b"x"), Entry(3, 6, b"y"))))
    assert setting.log.end == 3


def test_an_answer_of_an_earlier_epoch_says_nothing() -> None:
    """KAFKA-18991: its divergence cut what is committed by now."""
    setting = Setting(1, 4)
    setting.follow(5)
    send = setting.asks()
    setting.follow(6, C)
    setting.machine.answered(send.link, send.ask, from_leader(5, diverging=EpochEnd(1, 1)), T)
    setting.poll(T)
    assert setting.log.end == 2


def test_a_log_is_cut_where_it_parts_from_the_leaders() -> None:
    setting = Setting(1, 1, 3, 3)
    setting.follow(5)
    setting.fetched(from_leader(diverging=EpochEnd(2, 9)))  # of epoch 2 there is nothing here: what is older stays
    assert setting.log.end == 2
    setting = Setting(1, 1, 3, 3)
    setting.follow(5)
    setting.fetched(from_leader(diverging=EpochEnd(3, 3)))
    assert setting.log.end == 3


def test_what_is_committed_is_not_cut_and_does_not_go_back() -> None:
    setting = Setting(1, 1, 3, 3)
    setting.follow(5)
    setting.fetched(from_leader(high_watermark=3))
    assert setting.machine.high_watermark == 3
    with pytest.raises(RaftFatal, match="has another metadata log from offset 2 on: up to 3 was committed"):
        setting.fetched(from_leader(diverging=EpochEnd(1, 2)))
    setting = Setting(1, 1, 3, 3)
    setting.follow(5)
    setting.fetched(from_leader(high_watermark=9))
    assert setting.machine.high_watermark == 4  # no more than what is here
    with pytest.raises(RaftFatal, match="committed up to 2: 4 was committed before"):
        setting.fetched(from_leader(high_watermark=2))


def test_damaged_records_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(1, 4)
    setting.follow(5)

    def damaged(records: bytes, epoch: int) -> int:
        raise ValueError("its checksum is wrong")

    monkeypatch.setattr(setting.log, "append", damaged)
    setting.fetched(from_leader(records=b"?"))
    assert {send.link for send in setting.asked} <= {-2, -3, -4}  # perhaps another one knows a better leader
    assert setting.log.end == 2


def test_a_silent_leader_is_given_up() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    setting.fetched(from_leader())
    setting.poll(T + 1.9)
    assert setting.machine.role is Role.FOLLOWER
    setting.poll(T + 2.1)
    assert (setting.machine.role, setting.machine.leader_id) == (Role.PROSPECTIVE, 2)


def lose_answers(setting: Setting, send: Send, times: int) -> None:
    """Each is asked for again as soon as the machine wakes, which is after a link's pause."""
    now = T
    for _ in range(times):
        setting.machine.answered(send.link, send.ask, None, now)
        assert setting.sent(now) == []
        now, before = setting.machine.next_wakeup(now), now
        assert now <= before + 0.1, "it waits for the end of a time-out, and asks nobody"
        (send,) = setting.sent(now)


def test_where_there_is_nobody_else_the_leader_is_asked_again_for_each_answer_that_is_lost() -> None:
    """A toss of a coin went against it half the time, and then nobody was asked until the fetch time-out was over."""
    setting = Setting(1, 2, voters=VoterSet(voter for voter in VOTERS if voter.key != C))
    setting.follow()
    lose_answers(setting, setting.asks(), 20)

    snapshot = Setting()
    snapshot.machine.begin_epoch(BeginEpoch("c", 5, 2, ME, {"CONTROLLER": PLACES[2]}), T)
    snapshot.fetched(from_leader(snapshot=SnapshotId(4, 2)))
    send = snapshot.asks()
    assert isinstance(send.ask, FetchSnapshot)
    lose_answers(snapshot, send, 20)


def test_where_others_are_busy_the_leader_is_asked_again_too() -> None:
    setting = Setting(1, 2)
    setting.follow()
    send = setting.asks()
    for _ in range(20):
        setting.machine.answered(send.link, send.ask, None, T)
        for number in (-2, -3):
            setting.machine._links[number] = Link(PLACES[3], None, T + 1.9)
        setting.sent(T)
        (send,) = setting.sent(T + 0.02)
        assert send.link == 2


def test_what_a_voter_asks_for_itself_waits_for_a_link_that_can_take_it() -> None:
    """It was said to have been asked where it was not, and came two seconds later."""
    setting = Setting(1, 2, fetch_timeout_s=20.0)
    setting.follow()
    (send,) = setting.sent(T)
    assert isinstance(send.ask, UpdateVoter)
    setting.machine.answered(send.link, send.ask, None, T)
    setting.machine._links[2].until = T + 2.5
    (other,) = setting.sent(T + 2.1)  # for a leader
    assert other.link != 2 and isinstance(other.ask, Fetch)
    setting.machine.answered(other.link, other.ask, None, T + 2.2)
    (send,) = setting.sent(T + 2.5)
    assert send.link == 2 and isinstance(send.ask, UpdateVoter)


def test_another_cluster_is_not_asked_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    setting.fetched(Fetched(ErrorCode.INCONSISTENT_CLUSTER_ID, -1, -1))
    assert {send.link for send in setting.asked} <= {-2, -3, -4}
    assert "h:2 refuses a Fetch of node 1 in epoch 5: INCONSISTENT_CLUSTER_ID" in caplog.text


def test_another_process_of_the_same_id_that_leads_is_named(caplog: pytest.LogCaptureFixture) -> None:
    led = Setting(1, 4, kept=Kept(4, 1))  # what others say is of its own time
    led.machine.answered(-2, Fetch("c", 4, ME, 2, 4, -1, 0.5, 1 << 20), Fetched(0, 1, 4), T)
    setting = Setting(1, 4)
    setting.follow(5)
    assert not caplog.messages
    setting.fetched(Fetched(0, 1, 7))
    (line,) = caplog.messages
    assert (
        "node 1 leads the metadata quorum in epoch 7" in line
        and "same node.id: stop it and give it an id that no" in line
    )


def test_a_leader_is_heard_once_it_has_answered_and_not_after_its_silence() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    heard = [setting.machine.hears_leader]
    setting.fetched(from_leader())
    heard.append(setting.machine.hears_leader)
    setting.poll(T + 10)
    heard.append(setting.machine.hears_leader)
    setting = Setting(1, 4)
    setting.lead()
    assert [*heard, setting.machine.hears_leader] == [False, True, False, True]


# -- snapshots


@pytest.mark.parametrize(
    ("offset", "last", "snapshot"),
    [(0, 0, True), (2, 1, True), (3, 2, False), (3, 1, True), (4, 1, True), (5, 4, False)],
)
def test_who_is_behind_the_log_gets_the_latest_snapshot(offset: int, last: int, snapshot: bool) -> None:
    (answer,) = with_snapshot().fetch(offset=offset, last_epoch=last)
    assert answer.snapshot == (SnapshotId(4, 2) if snapshot else None)


def test_a_snapshot_is_had_in_pieces() -> None:
    leader = with_snapshot()
    follower = Setting(fetch_bytes_max=40)
    follower.machine.begin_epoch(BeginEpoch("c", 5, 2, ME, {"CONTROLLER": PLACES[2]}), T)
    follower.fetched(from_leader(snapshot=SnapshotId(4, 2)))
    effects: list[Any] = []
    pieces = 0
    follower.machine.effects.clear()
    for number in range(50):
        now = T + number
        follower.machine._links.clear()
        follower.machine._fetching = None
        send = follower.asks(now)
        if not isinstance(send.ask, FetchSnapshot):
            break
        answer = leader.machine.fetch_snapshot(send.ask._replace(epoch=leader.machine.epoch), now)
        pieces += 1
        follower.machine.answered(send.link, send.ask, answer._replace(leader_id=2, epoch=5), now)
        effects += [effect for effect in follower.machine.effects if not isinstance(effect, Send)]
        follower.machine.effects = [effect for effect in follower.machine.effects if isinstance(effect, Send)]
    assert pieces > 2 and effects == [LoadSnapshot(SnapshotId(4, 2)), Committed(4)]
    assert (follower.log.start, follower.log.end, follower.log.last_epoch) == (4, 4, 2)
    assert follower.log.history(4) == leader.log.history(4)


def test_a_snapshot_that_is_damaged_on_its_way_is_had_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = with_snapshot()
    wanted = SnapshotId(4, 2)
    whole = leader.log.read_snapshot(wanted, 0, 1 << 20)
    follower = Setting(fetch_bytes_max=40)
    finish = follower.log.finish_snapshot

    def checked(snapshot: SnapshotId) -> None:
        if follower.log.incoming[snapshot] != whole:
            del follower.log.incoming[snapshot]
            raise ValueError("its batch at 40 has another CRC")
        finish(snapshot)

    monkeypatch.setattr(follower.log, "finish_snapshot", checked)
    machine = follower.machine
    machine.begin_epoch(BeginEpoch("c", 5, 2, ME, {"CONTROLLER": PLACES[2]}), T)
    follower.fetched(from_leader(snapshot=wanted))
    positions: list[int] = []
    now = T
    while follower.log.start == 0 and now < T + 60:
        now += 0.25
        for send in follower.sent(now):
            if isinstance(send.ask, Fetch):
                machine.answered(send.link, send.ask, from_leader(snapshot=wanted), now)
            elif isinstance(send.ask, FetchSnapshot):
                answer = leader.machine.fetch_snapshot(send.ask._replace(epoch=leader.machine.epoch), now)
                positions.append(send.ask.position)
                if len(positions) == 2:
                    answer = answer._replace(data=bytes(len(answer.data)))
                machine.answered(send.link, send.ask, answer._replace(leader_id=2, epoch=5), now)
    assert positions == sorted(positions[: len(positions) // 2]) * 2 and positions.count(0) == 2
    assert (follower.log.start, follower.log.end, follower.log.last_epoch) == (4, 4, 2)
    assert follower.log.history(4) == leader.log.history(4)
    assert "of node 2 is not whole: its batch at 40 has another CRC" in caplog.text and machine.leader_id == 2


@pytest.mark.parametrize(
    ("snapshot", "position", "error"),
    [
        (SnapshotId(4, 9), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (SnapshotId(0, 0), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (SnapshotId(4, 2), -1, ErrorCode.POSITION_OUT_OF_RANGE),
        (SnapshotId(4, 2), 10_000, ErrorCode.POSITION_OUT_OF_RANGE),
    ],
)
def test_snapshots_that_are_not_there(snapshot: SnapshotId, position: int, error: ErrorCode) -> None:
    leader = with_snapshot()
    answer = leader.machine.fetch_snapshot(FetchSnapshot("c", 5, B, snapshot, position, 100), T)
    assert isinstance(answer, FetchedSnapshot) and answer.error == error


def test_a_snapshot_that_is_gone_is_looked_for_again() -> None:
    follower = Setting()
    follower.machine.begin_epoch(BeginEpoch("c", 5, 2, ME, {"CONTROLLER": PLACES[2]}), T)
    follower.fetched(from_leader(snapshot=SnapshotId(4, 2)))
    send = follower.asks()
    assert isinstance(send.ask, FetchSnapshot)
    gone = FetchedSnapshot(ErrorCode.SNAPSHOT_NOT_FOUND, 2, 5, PLACES[2])
    follower.machine.answered(send.link, send.ask, gone, T)
    assert isinstance(follower.asks(T + 0.1).ask, Fetch)


def test_a_leader_in_whose_place_nobody_listens_is_not_waited_for() -> None:
    setting = Setting(1, 2)
    setting.follow()
    setting.fetched(from_leader())
    assert not setting.vote(epoch=5, pre=True, candidate=C, last_epoch=2, end_offset=2).granted
    send = setting.asks()
    setting.machine.answered(send.link, send.ask, None, T)  # no answer, for any reason
    assert not setting.vote(epoch=5, pre=True, candidate=C, last_epoch=2, end_offset=2).granted
    again, now = None, T
    while again is None:  # it asks others too
        now += 0.03
        for one in setting.sent(now):
            if one.link == 2:
                again = one
            else:
                setting.machine.answered(one.link, one.ask, None, now)
    assert now < T + 1, "well before the fetch time-out"
    setting.machine.answered(again.link, again.ask, None, now, refused=True)
    assert setting.vote(epoch=5, pre=True, candidate=C, last_epoch=2, end_offset=2).granted
    setting.poll(now + 0.09)
    assert setting.machine.role is Role.FOLLOWER
    setting.poll(now + 0.21)
    assert setting.machine.role is Role.PROSPECTIVE and setting.machine.epoch == 5
