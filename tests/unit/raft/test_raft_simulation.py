"""Quorums that lose messages, memory, nodes and each other: what is committed stays, and they go on."""

from __future__ import annotations

from random import Random

import pytest
from fastq_broker.raft.messages import RemoveVoter
from fastq_broker.raft.roles import Role
from raft_world import World


def test_a_lonely_voter_leads_at_once() -> None:
    world = World(1, 1)
    world.start()
    assert world.leader is not None
    world.append(b"a")
    assert world.run(1.0, lambda: len(world.committed) == 2)
    assert world.now < 0.1


@pytest.mark.parametrize("seed", range(10))
def test_three_voters_elect_and_commit(seed: int) -> None:
    world = World(seed, 3, observers=1)
    world.start()
    assert world.run(5.0, lambda: world.leader is not None)
    for number in range(50):
        world.append(b"%d" % number)
        world.run(0.01)
    assert world.run(
        2.0, lambda: all(m.machine is not None and m.machine.high_watermark == 51 for m in world.members.values())
    )
    assert len(world.leaders) == 1
    assert [entry.value for entry in world.committed[1:]] == [b"%d" % number for number in range(50)]


def test_an_idle_quorum_is_quiet() -> None:
    world = World(3, 3)
    world.start()
    world.run(10.0)
    before = world.sent
    world.run(60.0)
    assert world.sent - before <= 2 * 60 / 0.5 + 10  # a fetch of each follower every half second, and no more
    assert len(world.leaders) == 1


def test_one_without_room_votes_for_nobody_and_leads_nobody_until_it_has_some() -> None:
    world = World(5, 3)
    world.start()
    assert world.run(5.0, lambda: world.leader is not None)
    world.append(b"a")
    world.run(1.0)
    first = world.leader
    assert first is not None and first.machine is not None
    full = next(member for member in world.members.values() if member is not first)
    full.disk.full = True
    kept = full.votes.kept
    first.crash()
    assert not world.run(30.0, lambda: world.leader is not None)  # of three one is gone, and one cannot vote
    assert full.machine is not None and full.votes.kept == kept
    full.disk.full = False
    assert world.run(10.0, lambda: world.leader is not None)
    first.start()
    leader = world.leader
    assert leader is not None and leader.machine is not None
    leader.disk.full = True
    assert world.append(b"b") is None  # it resigns, and another one leads
    assert world.run(10.0, lambda: world.leader not in (None, leader))
    done = world.append(b"c")
    assert done is not None
    for member in world.members.values():
        member.disk.full = False
    assert world.run(
        20.0, lambda: all(m.machine is not None and m.machine.high_watermark > done for m in world.members.values())
    )


@pytest.mark.parametrize("forgets", [False, True])
def test_one_without_any_room_starts_again_and_follows(forgets: bool) -> None:
    """It writes nothing at its start that it has not written before, or that its log does not say."""
    world = World(7, 3)
    world.start()
    assert world.run(5.0, lambda: world.leader is not None)
    assert world.append(b"a") is not None
    assert world.run(
        5.0, lambda: all(m.machine is not None and m.machine.high_watermark == 2 for m in world.members.values())
    )
    for member in list(world.members.values()):  # a leader, and those who follow it
        if forgets:
            member.votes.kept = None
        member.crash()
        member.disk.full = True
        member.start()
        machine = member.machine
        assert machine is not None and (machine.epoch, machine.role) != (0, Role.LEADER)
        world.run(30.0)
        assert member.machine is machine
        member.disk.full = False
        assert world.run(30.0, lambda: world.leader is not None)
    done = world.append(b"b")
    assert done is not None
    assert world.run(
        20.0, lambda: all(m.machine is not None and m.machine.high_watermark > done for m in world.members.values())
    )


def change_voters(world: World, rng: Random) -> None:
    """One is removed, and comes back by itself; or one loses its disk, where all that is committed is on every other one."""
    leader = world.leader
    if leader is None or leader.machine is None:
        return
    voters = leader.machine.voters
    if not {voter.key for voter in voters} <= {member.key for member in world.members.values()}:
        return  # one has lost its disk: to take away another one now is what nobody should do
    if rng.random() < 0.5:
        gone = rng.choice(list(voters)).key
        leader.machine.remove_voter(RemoveVoter("c", gone), world.now, lambda answer: None)
        world.turn(leader)
        return
    one = rng.choice(list(world.members.values()))
    others = [member for member in world.members.values() if member is not one]
    committed = leader.machine.history.voters_offset < leader.machine.high_watermark
    if len(voters) >= 3 and committed and all(member.log.durable_end >= len(world.committed) for member in others):
        one.wipe()


def finalize(world: World) -> bool:
    """Have the log name the voters, where they were configured; whether it does."""
    leader = world.leader
    if leader is None or leader.machine is None:
        return False
    done = leader.machine.finalize_version(world.now).error == 0
    world.turn(leader)
    return done


def live_through(seed: int, rounds: int, *, joining: bool = False, raising: bool = False) -> World:
    """Every kind of trouble in turn; then none any more, and they go on. `joining`: voters come and go, and lose their disks; `raising`:
    so they do once kraft.version is 1, and were configured before."""
    rng = Random(seed)
    count = rng.choice((3, 3, 3, 5))
    if raising:
        world = World(seed, count, joins=True)
    else:
        world = World(seed, count, observers=0 if joining else rng.randrange(2), joining=joining)
    world.loss = rng.choice((0.0, 0.0, 0.02, 0.1))
    world.delay_s = (0.0001, rng.choice((0.002, 0.05, 0.4)))
    world.flush_s = (0.0001, rng.choice((0.002, 0.1, 2.0)))
    world.doubled = 0.4 * (seed % 2)
    world.start()
    nodes = sorted(world.members)
    for number in range(rounds):
        what = rng.random()
        members = [world.members[node] for node in nodes]
        if what < 0.04:
            rng.choice(members).crash()
        elif what < 0.06:
            for member in members:  # the power goes
                member.crash()
        elif what < 0.16:
            for member in members:
                if member.machine is None and rng.random() < 0.7:
                    member.start()
        elif what < 0.24:
            rng.shuffle(nodes)
            split = rng.randrange(1, len(nodes))
            world.part(nodes[:split], nodes[split:])
        elif what < 0.28:
            world.cut = {(a, b) for a in nodes for b in nodes if rng.random() < 0.3}  # one way, too
        elif what < 0.36:
            world.cut = set()
        elif what < 0.40:
            member = rng.choice(members)
            if member.machine is not None:
                member.log.make_snapshot(member.machine.high_watermark)
        elif what < 0.42 and world.leader is not None and world.leader.machine is not None:
            world.leader.machine.resign(world.leader.machine.epoch, world.now)
            world.turn(world.leader or members[0])
        elif what < 0.45:
            full = rng.choice(members).disk
            full.full = not full.full
        elif (joining or raising) and what < 0.53:
            change_voters(world, rng)
        elif raising and what < 0.73:
            finalize(world)
        for member in members:
            if member.machine is not None and member.machine.role is Role.LEADER:  # who has lost touch, too
                values = [b"%d of %d" % (number, member.key.node_id)] * rng.randrange(4)
                while values and member.machine.role is Role.LEADER and world.tell(member, values.pop()):
                    pass
        world.run(rng.choice((0.0005, 0.003, 0.05, 0.5, 1.5, 3.0)))
    world.cut, world.loss, world.delay_s, world.flush_s = set(), 0.0, (0.0001, 0.001), (0.0001, 0.001)
    world.doubled = 0.0
    for member in world.members.values():
        member.disk.full = False
    for member in world.members.values():
        if member.machine is None:
            member.start()
    world.run(20.0)
    done = world.append(b"the end")
    assert done is not None, "nobody leads"
    assert world.run(
        10.0, lambda: all(m.machine is not None and m.machine.high_watermark > done for m in world.members.values())
    )
    assert sum(m.machine is not None and m.machine.role is Role.LEADER for m in world.members.values()) == 1
    return world


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_one_history(seed: int) -> None:
    live_through(seed, 150)


@pytest.mark.parametrize("seed", range(16))
def test_voters_come_and_go_and_there_is_one_history(seed: int) -> None:
    world = live_through(seed, 150, joining=True)
    world.run(30.0)
    assert world.leader is not None and world.leader.machine is not None
    assert world.leader.machine.voters.ids == set(world.members)  # all have joined again
    assert {voter.key for voter in world.leader.machine.voters} == {member.key for member in world.members.values()}


@pytest.mark.parametrize("seed", range(8))
def test_voters_that_were_configured_come_and_go_later_and_there_is_one_history(seed: int) -> None:
    world = live_through(seed, 150, raising=True)
    assert world.run(30.0, lambda: finalize(world))
    world.run(30.0)
    assert world.leader is not None and world.leader.machine is not None
    keys = {member.key for member in world.members.values()}
    for member in world.members.values():
        assert member.machine is not None and member.machine.history.kraft_version == 1
        assert {voter.key for voter in member.machine.voters} == keys


@pytest.mark.soak
def test_whatever_happens_one_history_for_long() -> None:
    for seed in range(1000, 3000):
        live_through(seed, 200, joining=seed % 3 == 0, raising=seed % 3 == 1)
