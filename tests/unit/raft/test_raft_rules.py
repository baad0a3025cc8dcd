"""The rules of the quorum one by one, as Apache Kafka's nodes keep them: votes, who leads, and records as the leader has them."""

from __future__ import annotations

from typing import Any

import pytest
from fastq_broker.raft.log import Vote as Kept
from fastq_broker.raft.messages import Answer, BeginEpoch, EndEpoch, EpochEnd, Fetch, Fetched, Vote
from fastq_broker.raft.roles import Became, Role
from fastq_broker.raft.voters import ReplicaKey, Voter, VoterSet
from raft_setting import ME, PLACES, B, C, Setting, T, from_leader

from fastq.errors import ErrorCode, NotLeaderOrFollower

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


def test_a_leader_that_goes_waits_for_nobody_who_is_gone_but_for_who_does_not_answer() -> None:
    setting = Setting(1, 4)
    now = setting.lead()
    setting.machine.stop(now)
    first, second = setting.sent(now)
    setting.machine.answered(first.link, first.ask, None, now, refused=True)
    setting.machine.answered(second.link, second.ask, None, now)
    assert not setting.machine.may_end
    now += setting.machine.config.retry_backoff_s
    (again,) = setting.sent(now)
    assert again.link == second.link
    setting.machine.answered(again.link, again.ask, None, now, refused=True)
    assert setting.machine.may_end


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
