"""Groups and transactions: commits and transactions against confluent-kafka on one fastq broker, and what groups cost it.

    python benchmarks/compare/coordination.py [--rounds 5]

Rules: commits and transactions are runs of their own process (coordination_runs.py), in turn. The rebalance and the idle
members are made of plain requests, so that no client's work is what is measured: CPU is the broker process's own. The members
of a group sit on connections of their own, as a join holds its connection up; a connection carries a member of every group.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from support import Target, cpu_seconds, fastq_broker, interleave, medians, save

from fastq import Admin, Producer
from fastq.config import ClientConfig
from fastq.consumer.group.assignors import GroupTopics
from fastq.consumer.group.sticky import StickyAssignor
from fastq.consumer.group.subscription import MemberSubscription
from fastq.net.client import AsyncClient
from fastq.net.operations import ANY, Coordinator
from fastq.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    SyncGroupRequest,
)
from fastq.testing import Broker

RUNS = Path(__file__).with_name("coordination_runs.py")
COUNTS = {"commits": 5_000, "transactions": 600}
MEMBERS = 100
GROUPS = 100
PARTITIONS = 1_000
SESSION_MS = 45_000
CLASSIC_INTERVAL_S = 3.0
MEMBER_ID_REQUIRED = 79
LOADING = (14, 15, 16)


def measure(target: Target, what: str, library: str, topic: str) -> dict[str, float]:
    command = [sys.executable, str(RUNS), what, library, "--bootstrap", target.bootstrap_servers, "--topic", topic]
    done = subprocess.run([*command, "--count", str(COUNTS[what])], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{what} of {library} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


class Member:
    """A member of a classic group, on a connection that it shares with members of other groups."""

    def __init__(self, client: AsyncClient, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.member_id = ""
        self.generation = -1

    async def call(self, request: Any) -> Any:
        return await self.client.call(Coordinator("group", self.group_id), request, 60.0)

    async def join(self, metadata: bytes) -> bool:
        """Join; whether it leads."""
        while True:
            request = JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=60_000,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
            )
            answer = await self.call(request)
            self.member_id = answer.member_id or self.member_id
            if answer.error_code in LOADING:
                await asyncio.sleep(0.1)
            elif answer.error_code != MEMBER_ID_REQUIRED:
                break
        if answer.error_code:
            raise RuntimeError(f"join of {self.group_id}: error {answer.error_code}")
        self.generation = answer.generation_id
        self.members = [member.member_id for member in answer.members]
        return bool(answer.leader == self.member_id)

    async def sync(self, assignments: dict[str, bytes]) -> None:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in assignments.items()
            ],
        )
        answer = await self.call(request)
        if answer.error_code:
            raise RuntimeError(f"sync of {self.group_id}: error {answer.error_code}")

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id=self.group_id, generation_id=self.generation, member_id=self.member_id)
        return int((await self.call(request)).error_code)


class NewMember:
    """A member of a KIP-848 group, idle."""

    def __init__(self, client: AsyncClient, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.interval_s = 5.0

    async def heartbeat(self, topics: list[str] | None = None) -> int:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if topics else -1,
            subscribed_topic_names=topics,
            topic_partitions=[] if topics else None,
        )
        answer = await self.client.call(Coordinator("group", self.group_id), request, 60.0)
        if answer.error_code == 0:
            self.epoch, self.interval_s = answer.member_epoch, answer.heartbeat_interval_ms / 1000
        return int(answer.error_code)


async def rebalance(group: list[Member], assignment_bytes: int, turn: int = 0) -> None:
    """One rebalance of a group: all join (with another subscription each turn), the leader hands out the assignments, all sync."""
    metadata = b"\0\1" + b"%098d" % turn
    leads = await asyncio.gather(*[member.join(metadata) for member in group])
    leader = group[leads.index(True)]
    shares = dict.fromkeys(leader.members, b"a" * assignment_bytes)
    await asyncio.gather(*[member.sync(shares if member is leader else {}) for member in group])


async def connect(target: Target, count: int) -> list[AsyncClient]:
    config = ClientConfig(bootstrap_servers=target.bootstrap_servers)
    clients = [AsyncClient(config) for _ in range(count)]
    await asyncio.gather(*[client.call(ANY, MetadataRequest(topics=[]), 30.0) for client in clients])
    return clients


async def rebalances(target: Target, rounds: int) -> dict[str, float]:
    """The broker's CPU of a rebalance of 100 members over 1,000 partitions (ten a member in the assignments)."""
    clients = await connect(target, MEMBERS)
    group = [Member(client, "rebalanced") for client in clients]
    assignment_bytes = 20 + PARTITIONS // MEMBERS * 4
    await rebalance(group, assignment_bytes)
    found = []
    for turn in range(rounds):
        before = cpu_seconds(target.pid)
        for number in range(10):  # a clock tick is 10 ms
            await rebalance(group, assignment_bytes, 1 + turn * 10 + number)
        found.append((cpu_seconds(target.pid) - before) / 10)
    for client in clients:
        await client.close()
    return {"members": MEMBERS, "cpu_s": statistics.median(found)}


def sticky_assignment(rounds: int) -> dict[str, float]:
    """The client's sticky assignor: what the leader computes when ten of 100 members leave 1,000 partitions; `moved` are partitions
    that somebody else has afterwards, `minimum` those whose owner is gone."""
    topics = GroupTopics({f"t{number}": PARTITIONS // 10 for number in range(10)})
    names = tuple(topics.counts)
    members = [f"m{number:03}" for number in range(MEMBERS)]
    owned = StickyAssignor().assign(topics, {member: MemberSubscription(names) for member in members})
    staying = {member: MemberSubscription(names, tuple(owned[member]), 1) for member in members[: MEMBERS - 10]}
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        found = StickyAssignor().assign(topics, staying)
        seconds.append(time.perf_counter() - started)
    moved = sum(len(set(found[member]) - set(owned[member])) for member in staying)
    return {
        "s": statistics.median(seconds),
        "moved": moved,
        "minimum": PARTITIONS - sum(len(owned[m]) for m in staying),
    }


async def idle_members(target: Target, topic: str, seconds: float) -> dict[str, float]:
    """10,000 members in 100 groups, half of them KIP-848: CPU share of the broker and heartbeats that failed or were late."""
    clients = await connect(target, MEMBERS)
    classic = [[Member(client, f"classic-{number}") for client in clients] for number in range(GROUPS // 2)]
    for group in classic:  # in turn, as a join holds up what follows it on its connection
        await rebalance(group, 60)
    members: list[Member | NewMember] = [member for group in classic for member in group]
    for number in range(GROUPS // 2):
        new = [NewMember(client, f"new-{number}") for client in clients]
        await asyncio.gather(*[member.heartbeat([topic]) for member in new])
        members += new
    errors: dict[int, int] = {}
    sent = late = 0

    async def live(member: Member | NewMember, phase: float, end: float) -> None:
        nonlocal sent, late
        interval = CLASSIC_INTERVAL_S if isinstance(member, Member) else member.interval_s
        due = time.perf_counter() + phase * interval
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            code = await member.heartbeat()
            sent += 1
            late += time.perf_counter() - due > interval
            errors[code] = errors.get(code, 0) + 1
            due += interval

    start = time.perf_counter()
    cpu = cpu_seconds(target.pid)
    await asyncio.gather(*[live(member, i / len(members), start + seconds) for i, member in enumerate(members)])
    took = time.perf_counter() - start
    cpu = cpu_seconds(target.pid) - cpu
    for client in clients:
        await client.close()
    refused = sum(count for code, count in errors.items() if code)
    return {
        "members": len(members),
        "heartbeats_per_s": sent / took,
        "cpu_share": cpu / took,
        "late": late,
        "refused": refused,
    }


def start_to_acknowledged(rounds: int) -> dict[str, float]:
    """Seconds from the start of a `fastq.testing` broker to the first acknowledged record."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("first", b"record").result(10)
            found.append(time.perf_counter() - start)
    return {"seconds": statistics.median(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Groups and transactions, measured.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="of the idle members")
    options = parser.parse_args()
    document: dict[str, Any] = {"testing broker": start_to_acknowledged(options.rounds)}
    print(document)
    with fastq_broker(**{"group.initial.rebalance.delay.ms": 200}) as target:
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1, replication_factor=1)
        for what in COUNTS:
            sides = {
                library: (lambda what=what, library=library: measure(target, what, library, "t"))
                for library in ("fastq", "confluent")
            }
            rounds = interleave(sides, options.rounds)
            middle = {library: medians(rows) for library, rows in rounds.items()}
            ratio = middle["fastq"]["per_s"] / middle["confluent"]["per_s"]
            document[what] = {"medians": middle, "ratio": ratio, "rounds": rounds}
            print(f"  => {what}: {ratio:.2f}x")
        document["rebalance"] = asyncio.run(rebalances(target, options.rounds))
        print(document["rebalance"])
        document["sticky assignor"] = sticky_assignment(options.rounds)
        print(document["sticky assignor"])
        document["idle members"] = asyncio.run(idle_members(target, "t", options.seconds))
        print(document["idle members"])
    print(save("coordination", document))


if __name__ == "__main__":
    main()
