"""Three members of a quorum on real files and loopback sockets: they elect, replicate, lose one and go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.raft.driver import QuorumDriver
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.roles import Became, Committed, RaftConfig, Role
from fastq_broker.raft.serving import QuorumRouter
from fastq_broker.raft.storage import DiskVotes
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from fastq_broker.server import Limits, Server
from test_raft_storage import VALUE, Disk

from fastq.config import ClientConfig

LISTENER = "CONTROLLER"


class Late:
    """A router that is there once the ports of all members are known."""

    router: QuorumRouter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.router, name)


class Member:
    """A controller that does nothing but follow its quorum."""

    def __init__(self, node_id: int, path: Path) -> None:
        self.key = ReplicaKey(node_id, bytes([node_id]) * 16)
        self.path = path / str(node_id) / f"{METADATA_TOPIC}-0"
        self.late = Late()
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.loop, self.late, Limits())  # type: ignore[arg-type]
        self.news: list[Any] = []
        self.driver: QuorumDriver | None = None

    async def bind(self) -> int:
        return await self.server.bind("127.0.0.1", 0, name=LISTENER)

    def start(self, voters: VoterSet) -> None:
        """Open the log, and take part."""
        self.disk = Disk(self.path)
        voter = voters.voter(self.key.node_id)
        assert voter is not None
        config = RaftConfig(
            key=self.key, cluster_id="c", endpoints=voter.endpoints, election_timeout_s=0.2, fetch_timeout_s=0.6
        )
        machine: list[RaftMachine] = []
        votes = DiskVotes(self.path, "c", lambda: machine[0].history.kraft_version, lambda: machine[0].voters.ids)
        machine.append(RaftMachine(config, self.disk.log, votes, voters, Random(self.key.node_id)))
        self.driver = QuorumDriver(
            machine[0], self.disk.partition, ClientConfig(), self.loop, self.news.append, self.news.append
        )
        ports = SimpleNamespace(
            config=SimpleNamespace(non_produce_request_max_bytes=8 << 20), loop=self.loop, node_id=self.key.node_id
        )
        self.late.router = QuorumRouter(ports, self.driver)  # type: ignore[arg-type]
        self.driver.start()
        self.server.serve()
        self.loop.call_later(0.001, self.sync)

    def sync(self) -> None:
        """The disk is done, again and again."""
        if self.driver is not None:
            self.disk.flusher.wait()
            self.loop.call_later(0.001, self.sync)

    async def stop(self) -> None:
        if self.driver is not None:
            self.driver.close()
            self.driver = None
            self.disk.close()
        await self.server.stop()

    @property
    def leads(self) -> bool:
        return self.driver is not None and self.driver.machine.role is Role.LEADER

    def append(self, count: int) -> int:
        """Records at the leader; the offset behind them."""
        assert self.driver is not None
        self.driver.machine.append([VALUE] * count)
        self.driver.turn()
        return self.disk.log.end


@asynccontextmanager
async def quorum(path: Path) -> AsyncIterator[list[Member]]:
    members = [Member(node_id, path) for node_id in (1, 2, 3)]
    ports = [await member.bind() for member in members]
    voters = VoterSet(
        Voter(ReplicaKey(member.key.node_id), {LISTENER: Endpoint("127.0.0.1", port)})
        for member, port in zip(members, ports, strict=True)
    )
    try:
        for member in members:
            member.start(voters)
        yield members
    finally:
        for member in members:
            await member.stop()


async def until(what: Callable[[], bool]) -> None:
    for _ in range(6000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in a minute")


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
