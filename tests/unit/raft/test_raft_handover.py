"""A leader that says that it goes is waited for no more by those who have heard it, whatever else of it arrives later."""

from __future__ import annotations

from random import Random

import pytest
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import Answer, EndEpoch, Vote
from fastq_broker.raft.roles import Role
from raft_setting import ME, B, C, Setting, T, from_leader
from raft_world import Member, World

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


def stop(world: World, leader: Member, machine: RaftMachine) -> bool:
    """End a leader once it has told the others, or after most of an election's time; whether it has."""
    machine.stop(world.now)
    world.turn(leader)
    told = world.run(0.9, lambda: machine.role is Role.RESIGNED and machine.may_end)
    leader.crash()
    return told


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_late_twice_or_never_another_leads_soon(seed: int) -> None:
    """Nobody waits for the silence of who has said that it goes, by a stop or not, whether it comes back in between or not."""
    rng = Random(seed)
    world = World(seed, rng.choice([3, 5]), fetch_timeout_s=LONG_S)
    world.doubled, world.loss = rng.choice([0.2, 0.6]), rng.choice([0.0, 0.05])
    world.delay_s = rng.choice([(0.0002, 0.002), (0.001, 0.1)])
    world.start()
    away: Member | None = None
    for number in range(25):
        assert world.run(30.0, lambda: world.leader is not None), f"nobody leads: {number} handed over"
        if away is not None:
            world.cut.clear()
            away.start()
            away = None
        world.append(b"%d" % number)
        world.run(rng.uniform(0.0, 0.5))
        leader = world.leader
        if leader is None or leader.machine is None:
            continue
        if rng.random() < 0.5:
            leader.machine.resign(leader.machine.epoch, world.now)
            world.turn(leader)
            continue
        if stop(world, leader, leader.machine) and rng.random() < 0.7:
            away = leader  # with its machine, which refuses nobody, until another leads
            world.part([leader.key.node_id], world.members.keys() - {leader.key.node_id})
        else:
            world.at(rng.uniform(0.0, 3.0), leader.start)
    world.loss = 0.0
    for _ in range(30):
        world.append(b"last")
        if world.run(1.0, lambda: world.committed[-1].value == b"last"):
            return
    raise AssertionError("nothing is committed any more")
