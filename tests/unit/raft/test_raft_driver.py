"""Three members of a quorum on real files and loopback sockets: they elect, replicate, lose one and go on."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from fastq_broker.log import failures
from fastq_broker.raft.log import Vote
from fastq_broker.raft.roles import Became, Committed, LoadSnapshot, RaftFatal, Role
from raft_members import led, quorum, snapshot_at, until, without_log

from fastq.errors import KafkaStorageError
from fastq.net import core


def test_a_voter_that_is_away_is_told_as_a_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "NODES_GRACE_S", 0.0)

    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            await next(member for member in members if member.leads).stop()
            await until(lambda: "refused the connection" in caplog.text)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    line = next(record.getMessage() for record in caplog.records if "refused" in record.getMessage())
    assert "the address is a controller's (from controller.quorum.voters or" in line and "advertised" not in line


def test_three_members_elect_replicate_and_lose_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            leader = next(member for member in members if member.leads)
            end = leader.append(100)
            await until(lambda: all(Committed(end) in member.news for member in members))
            first = leader.disk.log.read(0, 1 << 20)
            assert all(member.disk.log.read(0, 1 << 20) == first for member in members)
            await leader.stop()
            rest = [member for member in members if member is not leader]
            await until(lambda: any(member.leads for member in rest))
            second = next(member for member in rest if member.leads)
            end = second.append(10)
            await until(lambda: all(Committed(end) in member.news for member in rest))
            assert second.disk.log.read(0, 1 << 20)[: len(first)] == first
            led = [
                news
                for member in members
                for news in member.news
                if isinstance(news, Became) and news.role is Role.LEADER
            ]
            assert len({news.epoch for news in led}) == len(led) >= 2

    asyncio.run(scenario())


def test_who_is_elected_after_a_slow_disk_had_kept_that_it_leads_stays_in_the_quorum(tmp_path: Path) -> None:
    """Its first record had its log say that it goes on, and that had it see in the middle of its election that nobody had fetched from it
    for too long: it resigned there, and failed inside."""

    def slow_once(driver: Any) -> None:
        machine, write, now, late_s = driver.machine, driver.machine._store.write, driver.now, [0.0]

        def slowly(*given: Any) -> None:
            write(*given)
            won = machine.role is Role.CANDIDATE and len(machine.granted) >= machine.voters.majority
            if won and not late_s[0]:
                late_s[0] = 60.0

        machine._store.write = slowly
        driver.now = driver._turns._now = lambda: now() + late_s[0]

    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            leader = next(member for member in members if member.leads)
            rest = [member for member in members if member is not leader]
            for member in rest:
                assert member.driver is not None
                slow_once(member.driver)
            await leader.stop()
            await until(lambda: any(member.leads for member in rest))
            second = next(member for member in rest if member.leads)
            end = second.append(1)
            await until(lambda: all(Committed(end) in member.news for member in rest))
            assert not [news for member in rest for news in member.news if isinstance(news, RaftFatal)]

    asyncio.run(scenario())


def test_a_leader_that_stops_is_followed_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            leader = next(member for member in members if member.leads)
            end = leader.append(1)
            await until(lambda: all(Committed(end) in member.news for member in members))
            assert leader.driver is not None
            leader.driver.machine.stop(leader.driver.now())
            leader.driver.turn()
            await until(lambda: leader.driver is not None and leader.driver.machine.may_end)
            await until(lambda: any(member.leads for member in members if member is not leader))

    asyncio.run(scenario())


def test_a_member_with_an_empty_disk_begins_with_a_snapshot_of_a_leader_whose_log_is_whole(tmp_path: Path) -> None:
    """Its log begins anew at the snapshot's end, and what it asks for next is of the epoch that is below."""

    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            leader, end = await led(members, 10)
            empty = next(member for member in members if member is not leader)
            voters = without_log(empty)
            snapshot = snapshot_at(leader, end)
            empty.start(voters)
            end = leader.append(5)
            await until(lambda: Committed(end) in empty.news or any(isinstance(it, RaftFatal) for it in empty.news))
            assert LoadSnapshot(snapshot) in empty.news and Committed(end) in empty.news
            assert (empty.disk.log.start, empty.disk.log.end, leader.disk.log.start) == (snapshot.end_offset, end, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("file", ["the log", "quorum-state"])
def test_a_member_whose_disk_fails_leaves_says_so_once_and_votes_for_nobody(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_given: Any) -> None:
        raise KafkaStorageError("it fails") if file == "the log" else OSError(errno.EIO, "it fails")

    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            leader = next(member for member in members if member.leads)
            await until(lambda: all(Committed(leader.disk.log.end) in member.news for member in members))
            broken, other = (member for member in members if member is not leader)
            assert broken.driver is not None
            if file == "the log":
                broken.driver.machine.log.append = fails  # type: ignore[method-assign]
                end = leader.append(1)
                await until(lambda: Committed(end) in other.news)
            else:
                broken.driver.machine._store.write = fails  # type: ignore[method-assign]
                await leader.stop()
            await until(lambda: any(isinstance(news, RaftFatal) for news in broken.news))
            assert broken.driver.closed
            if file == "quorum-state":  # two of three are left, and one of them has no vote
                assert other.driver is not None
                machine = other.driver.machine
                for _ in range(3):  # as often as it asks
                    await until(lambda: machine.role is Role.PROSPECTIVE)
                    asked_until = machine._deadline
                    await until(lambda: machine._deadline != asked_until)  # noqa: B023
                assert not other.leads

    asyncio.run(scenario())
    assert [record.message for record in caplog.records if "cannot be written" in record.message]
    assert not [record.message for record in caplog.records if record.exc_info]


def test_a_member_whose_disk_is_full_goes_on_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It votes for nobody meanwhile, and says so; what it has promised before stands."""
    failures._places.clear()  # what was said by others of this process

    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            leader = next(member for member in members if member.leads)
            await until(lambda: all(Committed(leader.disk.log.end) in member.news for member in members))
            full, other = (member for member in members if member is not leader)
            assert full.driver is not None
            write, asked = full.driver.machine._store.write, []

            def refuse(vote: Vote) -> None:
                asked.append(vote)
                raise OSError(errno.ENOSPC, "No space left on device", "quorum-state")

            full.driver.machine._store.write = refuse  # type: ignore[method-assign]
            await leader.stop()
            await until(lambda: len(asked) > 2)
            assert not other.leads and not full.leads and not full.driver.closed
            full.driver.machine._store.write = write  # type: ignore[method-assign]
            await until(lambda: other.leads or full.leads)
            (other if other.leads else full).append(3)
            # Up to the end, wherever that is: where they are slow the other one is elected, and begins its epoch with a record.
            await until(lambda: len({Committed(member.disk.log.end) for member in (full, other)}) == 1)
            await until(lambda: all(Committed(member.disk.log.end) in member.news for member in (full, other)))

    asyncio.run(scenario())
    said = [record.message for record in caplog.records if "takes no part in elections" in record.message]
    assert len(said) == 1 and "quorum-state" in said[0]
    assert not [record.message for record in caplog.records if record.exc_info]


def test_elections_that_nobody_can_take_are_said_once_a_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each election of those who cannot begin an epoch was an error in the log: several a second, for as long as that lasted."""
    failures._places.clear()

    def short(*_given: Any) -> None:
        raise KafkaStorageError("it is short") from OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        async with quorum(tmp_path) as members:
            await until(lambda: any(member.leads for member in members))
            leader = next(member for member in members if member.leads)
            rest = [member for member in members if member is not leader]
            machines = [member.driver.machine for member in rest if member.driver is not None]
            for machine in machines:
                machine.log.append_leader_change = short  # type: ignore[method-assign]
            before = machines[0].epoch
            await leader.stop()
            await until(lambda: machines[0].epoch > before + 4)

    asyncio.run(scenario())
    said = [record.message for record in caplog.records if "and resigns" in record.message]
    assert 1 <= len(said) <= 2 and "it is short" in said[0]
