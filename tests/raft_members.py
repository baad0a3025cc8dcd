"""A member of a metadata quorum on real files and loopback sockets, which does nothing but follow it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from fastq_broker.controller.records import encode_record
from fastq_broker.controller.snapshot import write_snapshot
from fastq_broker.controller.storage import METADATA_TOPIC
from fastq_broker.log.config import LogConfig
from fastq_broker.log.files import FdBudget, Files
from fastq_broker.log.flusher import ManualFlusher
from fastq_broker.log.log_dir import LogDir
from fastq_broker.log.partition_log import PartitionLog
from fastq_broker.log.reserve import Reserve
from fastq_broker.raft.driver import QuorumDriver
from fastq_broker.raft.machine import RaftMachine
from fastq_broker.raft.messages import SnapshotId
from fastq_broker.raft.roles import Committed, RaftConfig, Role
from fastq_broker.raft.serving import QuorumRouter
from fastq_broker.raft.storage import DiskLog, DiskVotes, first_offset
from fastq_broker.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from fastq_broker.server import Limits, Server
from fastq_broker.surroundings import system_clock

from fastq.config import ClientConfig
from fastq.protocol.messages import FeatureLevelRecord

LISTENER = "CONTROLLER"
VALUE = encode_record(FeatureLevelRecord(name="metadata.version", feature_level=30), 30)


PATIENT = {"fetch_timeout_s": 30.0}


class Disk:
    """A directory with a metadata log in it, opened."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        path.mkdir(parents=True, exist_ok=True)
        files = files or Files()
        self.flusher = ManualFlusher(files)
        self.dir = LogDir(str(path.parent), files, FdBudget(64), self.flusher, monotonic_ms=lambda: 0)
        self.partition = PartitionLog(
            self.dir,
            str(path),
            METADATA_TOPIC,
            0,
            config=LogConfig(durability="fsync", retention_ms=-1, max_message_bytes=1 << 24),
            clock=system_clock,  # a record of 1970 among today's has every member begin a new segment
            log_start_offset=first_offset(path),
            clean=False,
        )
        self.partition.load()
        self.reserve = Reserve(path.parent, files, lambda: 0)
        self.log = DiskLog(self.partition, system_clock, self.reserve)

    def close(self) -> None:
        self.partition.close()
        self.flusher.wait()


class Member:
    """A controller that does nothing but follow its quorum."""

    def __init__(self, node_id: int, path: Path, **options: Any) -> None:
        self.options = {"cluster_id": "c", "election_timeout_s": 0.2, "fetch_timeout_s": 0.6, **options}
        self.key = ReplicaKey(node_id, bytes([node_id]) * 16)
        self.path = path / str(node_id) / f"{METADATA_TOPIC}-0"
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.loop, Limits())
        self.news: list[Any] = []
        self.driver: QuorumDriver | None = None

    async def bind(self) -> int:
        return await self.server.bind("127.0.0.1", 0, name=LISTENER)

    def start(self, voters: VoterSet) -> None:
        """Open the log, and take part."""
        self.disk = Disk(self.path)
        voter = voters.voter(self.key.node_id)
        assert voter is not None
        config = RaftConfig(key=self.key, endpoints=voter.endpoints, **self.options)
        machine: list[RaftMachine] = []
        votes = DiskVotes(
            self.path,
            config.cluster_id,
            lambda: machine[0].history.kraft_version,
            lambda: machine[0].voters.ids,
            self.disk.reserve,
        )
        machine.append(RaftMachine(config, self.disk.log, votes, voters, Random(self.key.node_id)))
        self.driver = QuorumDriver(
            machine[0], self.disk.partition, self.loop, self.news.append, self.news.append, config=ClientConfig
        )
        ports = SimpleNamespace(
            config=SimpleNamespace(non_produce_request_max_bytes=8 << 20), loop=self.loop, node_id=self.key.node_id
        )
        self.driver.start()
        self.server.serve(QuorumRouter(ports, self.driver))  # type: ignore[arg-type]
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


async def until(what: Callable[[], bool]) -> None:
    for _ in range(6000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in a minute")


@asynccontextmanager
async def quorum(path: Path, **options: Any) -> AsyncIterator[list[Member]]:
    """Three members that vote, under `path`; `options` are those of RaftConfig. Where none is to lose its place to another, however busy
    the machine is, they have `PATIENT`."""
    members = [Member(node_id, path, **options) for node_id in (1, 2, 3)]
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


async def led(members: list[Member], records: int) -> tuple[Member, int]:
    """The leader, once there is one, and the end of so many records that all have heard of as committed."""
    await until(lambda: any(member.leads for member in members))
    leader = next(member for member in members if member.leads)
    end = leader.append(records)
    await until(lambda: all(Committed(end) in member.news for member in members))
    return leader, end


def without_log(member: Member) -> VoterSet:
    """A member's disk is another one, empty. Answers its voters."""
    assert member.driver is not None
    voters = member.driver.machine.voters
    member.driver.close()
    member.driver = None
    member.disk.close()
    shutil.rmtree(member.path)
    member.news.clear()
    return voters


def snapshot_at(leader: Member, end: int) -> SnapshotId:
    """A snapshot of what the leader has below `end`."""
    assert leader.driver is not None
    snapshot = SnapshotId(end, leader.driver.machine.epoch)
    write_snapshot(
        leader.path / snapshot.file_name,
        [VALUE],
        epoch=snapshot.epoch,
        timestamp_ms=5,
        last_timestamp_ms=5,
        kraft_version=None,
        voters=None,
    )
    leader.disk.log.snapshots_changed()
    return snapshot
