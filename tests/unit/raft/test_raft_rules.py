"""The rules of the quorum one by one, as Apache Kafka's nodes keep them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fastq_broker.raft.log import Vote as Kept
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import (
    Answer,
    BeginEpoch,
    EndEpoch,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    SnapshotId,
    UpdateVoter,
    Vote,
    VoterAnswer,
)
from fastq_broker.raft.roles import Became, Committed, LoadSnapshot, RaftConfig, RaftFatal, Role, Send
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from raft_world import Entry, MemoryLog, MemoryVotes

from fastq.errors import ErrorCode, NotLeaderOrFollower

ME, B, C = (ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3))
PLACES = {key.node_id: Endpoint("h", key.node_id) for key in (ME, B, C)}
VOTERS = VoterSet(Voter(key, {"CONTROLLER": PLACES[key.node_id]}) for key in (ME, B, C))
T = 1000.0


class Setting:
    """A machine of node 1 of three, its log of `epochs` (one a record), all on disk, and what it does."""

    def __init__(
        self, *epochs: int, kept: Kept | None = None, voters: VoterSet = VOTERS, at: float = T, **options: Any
    ) -> None:
        self.log, self.votes = MemoryLog(), MemoryVotes()
        self.log.entries = [Entry(offset, epoch, b"v") for offset, epoch in enumerate(epochs)]
        self.log.durable_end = len(epochs)
        self.votes.kept = kept
        config = RaftConfig(key=ME, cluster_id="c", endpoints={"CONTROLLER": PLACES[1]}, **options)
        self.now = at
        self.asked: list[Send] = []
        self.machine = RaftMachine(config, self.log, self.votes, voters, Random(1))
        self.machine.start(at)

    def poll(self, now: float) -> list[Any]:
        return self.machine.poll(now)

    def sent(self, now: float) -> list[Send]:
        return [effect for effect in self.poll(now) if isinstance(effect, Send)]

    def vote(self, **fields: Any) -> Answer:
        ask = Vote("c", 5, B, ME, 4, 100, False)._replace(**fields)
        return self.machine.vote(ask, T)

    def fetch(self, **fields: Any) -> list[Fetched]:
        """The answers that there are at once."""
        ask = Fetch("c", self.machine.epoch, B, 0, 0, -1, 0.5, 1 << 20)._replace(**fields)
        answers: list[Fetched] = []
        self.machine.fetch(ask, self.now, answers.append)
        return answers

    def lead(self) -> float:
        """Win an election; the time after it."""
        now = T
        while self.machine.role is not Role.LEADER:
            now += 0.5
            for send in self.sent(now):
                if isinstance(send.ask, Vote):
                    self.machine.answered(send.link, send.ask, Answer(0, -1, send.ask.epoch, None, True), now)
        self.disk(now)
        self.now = now
        return now

    def disk(self, now: float) -> None:
        self.log.durable_end = self.log.end
        self.machine.flushed(now)

    def follow(self, epoch: int = 5, leader: ReplicaKey = B) -> None:
        answer = self.machine.begin_epoch(
            BeginEpoch("c", epoch, leader.node_id, ME, {"CONTROLLER": PLACES[leader.node_id]}), T
        )
        assert answer.error == 0

    def asks(self, now: float = T) -> Send:
        """What the follower asks its leader, after it has told it where it listens."""
        (send,) = self.asked or self.sent(now)
        self.asked = []
        if isinstance(send.ask, UpdateVoter):
            self.machine.answered(send.link, send.ask, VoterAnswer(0, self.machine.leader_id, self.machine.epoch), now)
            (send,) = self.sent(now)
        return send

    def fetched(self, answer: Fetched, now: float = T) -> list[Any]:
        """Have the follower ask, and answer it; what it does then."""
        send = self.asks(now)
        assert isinstance(send.ask, Fetch)
        self.machine.answered(send.link, send.ask, answer, now)
        effects = self.poll(now)
        self.asked = [effect for effect in effects if isinstance(effect, Send)]
        return [effect for effect in effects if not isinstance(effect, Send)]


def from_leader(epoch: int = 5, **fields: Any) -> Fetched:
    return Fetched(0, 2, epoch, PLACES[2])._replace(**fields)


def packed(*entries: Entry) -> bytes:
    log = MemoryLog()
    log.entries = list(entries)
    return log.read(0, 1 << 20)


# -- where a member begins


@pytest.mark.parametrize(
    ("kept", "epochs", "role", "epoch", "leader"),
    [
        (None, (), Role.UNATTACHED, 0, -1),
        (None, (1, 4), Role.UNATTACHED, 4, -1),
        (Kept(3, 2), (1, 4), Role.UNATTACHED, 4, -1),  # the log knows more than the vote
        (Kept(4, 1), (1, 4), Role.RESIGNED, 4, 1),
        (Kept(4, -1, ME), (1,), Role.CANDIDATE, 4, -1),
        (Kept(4, 2), (1,), Role.FOLLOWER, 4, 2),
        (Kept(4, 9), (1,), Role.UNATTACHED, 4, -1),  # nobody says where node 9 is
        (Kept(4, -1, B), (1,), Role.UNATTACHED, 4, -1),
    ],
)
def test_a_member_begins_as_it_ended(
    kept: Kept | None, epochs: tuple[int, ...], role: Role, epoch: int, leader: int
) -> None:
    machine = Setting(*epochs, kept=kept).machine
    assert (machine.role, machine.epoch, machine.leader_id) == (role, epoch, leader)


def test_an_only_voter_leads_at_once_whatever_it_was() -> None:
    alone = VoterSet([Voter(ME, {"CONTROLLER": PLACES[1]})])
    for kept in (None, Kept(4, 1), Kept(4, -1, ME), Kept(4, 2)):
        setting = Setting(1, 4, kept=kept, voters=alone)
        setting.poll(T)
        assert setting.machine.role is Role.LEADER and setting.votes.kept is not None
        assert setting.votes.kept.leader_id == 1 and setting.machine.high_watermark == -1
        setting.disk(T)
        assert setting.machine.high_watermark == 3


# -- votes


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"end_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_epoch": 5}, ErrorCode.INVALID_REQUEST),  # of the epoch that it stands for there are no records
        ({"last_epoch": 6, "pre": True}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 3, "last_epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"voter": B}, ErrorCode.INVALID_VOTER_KEY),
        ({"voter": ReplicaKey(1, b"x" * 16)}, ErrorCode.INVALID_VOTER_KEY),
    ],
)
def test_votes_that_are_not_for_this_member(fields: dict[str, Any], error: ErrorCode) -> None:
    setting = Setting(1, 4)
    before = setting.votes.kept
    answer = setting.vote(**fields)
    assert answer.error == error and not answer.granted
    if error == ErrorCode.INVALID_VOTER_KEY:  # the epoch is believed all the same
        assert setting.machine.epoch == 5 and setting.votes.kept == Kept(5)
    else:
        assert setting.votes.kept == before


def test_a_vote_is_on_disk_and_is_not_changed() -> None:
    setting = Setting(1, 4)
    assert setting.vote(epoch=5).granted and setting.votes.kept == Kept(5, -1, B)
    assert setting.vote(epoch=5).granted  # it asks again
    assert not setting.vote(epoch=5, candidate=C).granted
    assert not setting.vote(epoch=5, candidate=ReplicaKey(2, b"x" * 16)).granted  # another directory is another replica
    assert setting.vote(epoch=6, candidate=C).granted and setting.votes.kept == Kept(6, -1, C)


@pytest.mark.parametrize(("last", "end", "granted"), [(4, 2, True), (4, 1, False), (3, 100, False), (4, 3, True)])
@pytest.mark.parametrize("pre", [False, True])
def test_who_knows_less_gets_no_vote(last: int, end: int, granted: bool, pre: bool) -> None:
    setting = Setting(1, 4)
    assert setting.vote(last_epoch=last, end_offset=end, pre=pre).granted == granted


def test_a_pre_vote_promises_nothing() -> None:
    setting = Setting(1, 4)
    assert setting.vote(pre=True).granted
    assert setting.vote(pre=True, candidate=C).granted
    assert setting.votes.kept == Kept(5)


def test_a_follower_that_hears_its_leader_would_not_vote() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    assert setting.vote(epoch=5, pre=True).granted and not setting.vote(epoch=5).granted
    setting.fetched(from_leader())
    assert not setting.vote(epoch=5, pre=True).granted


def test_a_leader_votes_for_nobody_in_its_epoch() -> None:
    setting = Setting(1, 4)
    setting.lead()
    epoch = setting.machine.epoch
    for pre in (False, True):
        assert not setting.vote(epoch=epoch, pre=pre).granted
    assert setting.vote(epoch=epoch + 1, last_epoch=epoch).granted and setting.machine.role is Role.UNATTACHED


def test_a_majority_that_would_vote_comes_before_a_new_epoch() -> None:
    setting = Setting(1, 4)
    sends = setting.sent(T + 2)
    assert setting.machine.role is Role.PROSPECTIVE and setting.machine.epoch == 4
    assert [(send.link, send.ask.pre, send.ask.epoch) for send in sends if isinstance(send.ask, Vote)] == [
        (2, True, 4),
        (3, True, 4),
    ]
    setting.machine.answered(2, sends[0].ask, Answer(0, -1, 4, None, True), T + 2)
    assert setting.machine.role is Role.CANDIDATE and setting.votes.kept == Kept(5, -1, ME)
    assert {send.ask.epoch for send in setting.sent(T + 2)} == {5}


def test_who_is_refused_waits_and_spends_no_epoch() -> None:
    setting = Setting(1, 4)
    for send in setting.sent(T + 2):
        setting.machine.answered(send.link, send.ask, Answer(0, -1, 4), T + 2)
    assert setting.machine.role is Role.UNATTACHED and setting.machine.epoch == 4


def test_who_knows_no_pre_votes_is_asked_for_a_vote() -> None:
    setting = Setting(1, 4)
    send = setting.sent(T + 2)[0]
    setting.machine.answered(send.link, send.ask, None, T + 2, unsupported=True)
    assert setting.machine.role is Role.CANDIDATE and setting.machine.epoch == 5


# -- a leader's beginning and end


def test_a_leader_is_followed_before_the_voters_key_is_judged() -> None:
    setting = Setting(1, 4)
    ask = BeginEpoch("c", 5, 2, ReplicaKey(1, b"x" * 16), {"CONTROLLER": PLACES[2]})
    assert setting.machine.begin_epoch(ask, T).error == ErrorCode.INVALID_VOTER_KEY
    assert (setting.machine.role, setting.machine.leader_id) == (Role.FOLLOWER, 2)
    assert setting.machine.begin_epoch(ask._replace(leader_id=3), T).error == ErrorCode.INVALID_REQUEST
    assert setting.machine.begin_epoch(ask._replace(epoch=4), T).error == ErrorCode.FENCED_LEADER_EPOCH
    assert setting.machine.begin_epoch(ask._replace(cluster_id="x"), T).error == ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize(
    ("successors", "wait_s"), [((ME, C), 0.0), ((C, ME), 0.5), ((C, B, ME), 0.5), ((C, B), 1.0), ((), 1.0)]
)
def test_successors_stand_one_after_the_other(successors: tuple[ReplicaKey, ...], wait_s: float) -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    setting.poll(T)
    assert setting.machine.end_epoch(EndEpoch("c", 5, 2, successors, {}), T).error == 0
    assert wait_s == 0 or not [effect for effect in setting.poll(T + wait_s - 0.01) if isinstance(effect, Became)]
    assert setting.poll(T + wait_s + 0.001) and setting.machine.role is Role.PROSPECTIVE


def test_a_leader_that_goes_names_those_that_have_most() -> None:
    setting = Setting(1, 4)
    now = setting.lead()
    setting.fetch(replica=C, offset=3, last_epoch=setting.machine.epoch)
    setting.fetch(replica=B, offset=2, last_epoch=4)
    setting.machine.stop(now)
    sends = setting.sent(now)
    assert {send.link for send in sends} == {2, 3}
    assert isinstance(sends[0].ask, EndEpoch) and sends[0].ask.successors == (C, B)
    assert not setting.machine.may_end
    for send in sends:
        setting.machine.answered(send.link, send.ask, Answer(0, 1, setting.machine.epoch), now)
    assert setting.machine.may_end
    setting.poll(now + 60)
    assert setting.machine.role is Role.UNATTACHED  # and it does not stand again


# -- records


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "x"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_epoch": 99}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 99}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_fetches_that_cannot_be_answered(fields: dict[str, Any], error: ErrorCode) -> None:
    setting = Setting(1, 4)
    setting.lead()
    (answer,) = setting.fetch(**fields)
    assert answer.error == error and (answer.leader_id, answer.epoch) == (1, 5) and answer.endpoint == PLACES[1]


def test_a_follower_answers_no_fetch() -> None:
    setting = Setting(1, 4)
    setting.follow(5)
    (answer,) = setting.fetch(epoch=5)
    assert (answer.error, answer.leader_id, answer.endpoint) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, PLACES[2])
    with pytest.raises(NotLeaderOrFollower, match="node 1 does not lead the metadata quorum in epoch 5"):
        setting.machine.append([b"x"])


@pytest.mark.parametrize(
    ("offset", "last", "expected"),
    [
        (2, 4, None),
        (3, 4, EpochEnd(4, 2)),  # more of epoch 4 than there is
        (2, 3, EpochEnd(1, 1)),  # of an epoch that is not there
        (1, 1, None),
        (2, 0, EpochEnd(0, 0)),
        (9, 5, EpochEnd(5, 3)),
    ],
)
def test_where_logs_part_is_told(offset: int, last: int, expected: EpochEnd | None) -> None:
    setting = Setting(1, 4)
    setting.lead()
    (answer,) = setting.fetch(offset=offset, last_epoch=last)
    assert (answer.error, answer.diverging) == (0, expected) and (answer.records == b"") == (expected is not None)


def test_only_what_agrees_says_how_far_a_replica_is() -> None:
    setting = Setting(1, 4)
    setting.lead()
    setting.fetch(offset=3, last_epoch=4)
    assert setting.machine.high_watermark == -1
    setting.fetch(offset=3, last_epoch=5)
    assert setting.machine.high_watermark == 3


def test_an_observer_is_not_counted() -> None:
    setting = Setting(1, 4)
    setting.lead()
    setting.fetch(replica=ReplicaKey(7, b"7" * 16), offset=3, last_epoch=5)
    setting.fetch(replica=ReplicaKey(2, b"x" * 16), offset=3, last_epoch=5)  # node 2 with another directory
    assert setting.machine.high_watermark == -1


def test_older_records_are_committed_with_one_of_this_epoch_only() -> None:
    setting = Setting(1, 4)
    setting.lead()
    setting.fetch(offset=2, last_epoch=4)
    assert setting.machine.high_watermark == -1  # though two of three have both
    setting.fetch(offset=3, last_epoch=5)
    assert setting.machine.high_watermark == 3


def test_a_leaders_own_records_count_once_they_are_on_disk() -> None:
    setting = Setting(1, 4)
    now = setting.lead()
    setting.machine.append([b"x"])
    setting.fetch(offset=4, last_epoch=5)
    assert setting.machine.high_watermark == 3
    setting.disk(now)
    assert setting.machine.high_watermark == 4


def test_a_waiting_fetch_hears_of_records_and_of_what_is_committed() -> None:
    setting = Setting(1, 4)
    now = setting.lead()
    assert setting.fetch(offset=3, last_epoch=5, high_watermark=-1)[0].high_watermark == 3
    answers: list[Fetched] = []
    ask = Fetch("c", 5, B, 3, 5, 3, 0.5, 1 << 20)
    setting.machine.fetch(ask, now, answers.append)
    setting.poll(now + 0.4)
    assert answers == []
    setting.machine.append([b"x"])
    assert answers[0].records != b""
    setting.machine.fetch(ask._replace(offset=4), now, answers.append)
    setting.disk(now)
    assert answers[1].high_watermark == 4 and answers[1].records == b""
    setting.machine.fetch(ask._replace(offset=4, high_watermark=4), now, answers.append)
    setting.poll(now + 0.6)
    assert answers[2].error == 0 and len(answers) == 3
    setting.machine.fetch(ask._replace(offset=4, high_watermark=4), now, answers.append)
    setting.machine.resign(5, now)
    assert answers[3].error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_without_a_majority_resigns() -> None:
    """KAFKA-15489: it went on for ever, and took records that nobody would keep."""
    setting = Setting(1, 4)
    now = setting.lead()
    ask = Fetch("c", 5, B, 3, 5, 3, 0.0, 1)
    for step in range(5):
        setting.machine.fetch(ask, now + step, lambda answer: None)
        setting.poll(now + step)
        assert setting.machine.role is Role.LEADER
    setting.poll(now + 6.9)
    assert setting.machine.role is Role.LEADER
    setting.poll(now + 7.1)
    assert setting.machine.role is Role.RESIGNED


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


def with_snapshot() -> Setting:
    """A leader whose log begins at 3, behind a snapshot; another one ends at 4."""
    setting = Setting(1, 1, 2, 2, 4)
    setting.log.make_snapshot(3)
    setting.log.held[SnapshotId(4, 2)] = setting.log.history(4)
    setting.lead()
    return setting


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
