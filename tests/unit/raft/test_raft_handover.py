"""A leader that says that it goes is waited for no more by those who have heard it, whatever else of it arrives later."""

from __future__ import annotations

from fastq_broker.raft.messages import Answer, EndEpoch, Vote
from fastq_broker.raft.roles import Role
from test_raft_rules import ME, B, C, Setting, T, from_leader

from fastq.errors import ErrorCode

LONG_S = 600.0


def told() -> Setting:
    """Node 1 has fetched from node 2, which says that it goes: node 1 stands first."""
    setting = Setting(1, 4, fetch_timeout_s=LONG_S)
    setting.follow(5)
    setting.fetched(from_leader())
    assert not setting.vote(pre=True, candidate=C).granted
    assert setting.machine.end_epoch(EndEpoch("c", 5, B.node_id, (ME, C), {}), T).error == ErrorCode.NONE
    return setting


def test_who_has_heard_it_would_vote_for_another() -> None:
    assert told().vote(pre=True, candidate=C).granted


def test_what_it_had_sent_before_gives_it_no_time() -> None:
    setting = Setting(1, 4, fetch_timeout_s=LONG_S)
    setting.follow(5)
    send = setting.asks()
    setting.machine.end_epoch(EndEpoch("c", 5, B.node_id, (ME, C), {}), T)
    setting.machine.answered(send.link, send.ask, from_leader(), T)
    assert setting.vote(pre=True, candidate=C).granted
    setting.poll(T + 0.001)
    assert setting.machine.role is Role.PROSPECTIVE


def test_who_loses_the_election_after_it_stands_again_soon() -> None:
    """The other had not heard it yet, and refused; or has what this one lacks."""
    setting = told()
    now = T
    for _ in range(3):
        votes = [send for send in setting.sent(now) if isinstance(send.ask, Vote)]
        assert setting.machine.role is Role.PROSPECTIVE and {send.link for send in votes} == {2, 3}
        for send in votes:
            setting.machine.answered(send.link, send.ask, Answer(0, B.node_id, 5, None, False), now)
        assert setting.machine.role is Role.FOLLOWER
        now += 2 * setting.machine.config.election_timeout_s


def test_the_next_leader_has_its_time() -> None:
    setting = told()
    setting.follow(6, C)
    setting.poll(T + LONG_S - 1)
    assert setting.machine.role is Role.FOLLOWER
