"""Groups and transactions: commits and transactions against confluent-kafka on one fastq broker, and what groups cost it.

    python benchmarks/compare/coordination.py [--rounds 5] [--quick]

Rules: commits and transactions are runs of their own process (coordination_runs.py), in turn, the peer's with its defaults and with
what is best for it, of which the faster one counts. The rebalance and the idle
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
LIBRARIES = ("fastq", "confluent", "confluent-best")
COUNTS = {"commits": 5_000, "transactions": 600}
MEMBERS = 100
GROUPS = 100
PARTITIONS = 1_000
SESSION_MS = 45_000
SETTLE_S = 20.0
"""Of the idle members: four of the longest intervals, so that each has been told of its usual one."""
ALLOWED = 10
"""Heartbeats that may be late, refused or hurried: what a pause of the machine does to a few."""
MEMBER_ID_REQUIRED = 79
LOADING = (14, 15, 16)


def measure(target: Target, what: str, library: str, topic: str, count: int) -> dict[str, float]:
    command = [sys.executable, str(RUNS), what, library, "--bootstrap", target.bootstrap_servers, "--topic", topic]
    done = subprocess.run([*command, "--count", str(count)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{what} of {library} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


class Member:
    """A member of a classic group, on a connection that it shares with members of other groups."""

    IDLE_INTERVAL_S = 3.0
    interval_s = IDLE_INTERVAL_S

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

    IDLE_INTERVAL_S = 5.0

    def __init__(self, client: AsyncClient, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.interval_s = self.IDLE_INTERVAL_S

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
    """10,000 members in 100 groups, half of them KIP-848: CPU share of the broker, heartbeats that were refused or late, and those that
    came sooner than idle ones do. Who has just joined is told to come sooner, and keeps to what it was told last: they live for a while
    before it counts."""
    clients = await connect(target, MEMBERS)
    classic = [[Member(client, f"classic-{number}") for client in clients] for number in range(GROUPS // 2)]
    for group in classic:  # in turn, as a join holds up what follows it on its connection
        await rebalance(group, 60)
    members: list[Member | NewMember] = [member for group in classic for member in group]
    for number in range(GROUPS // 2):
        new = [NewMember(client, f"new-{number}") for client in clients]
        await asyncio.gather(*[member.heartbeat([topic]) for member in new])
        members += new
    begin = time.perf_counter()
    counted_from, end = begin + SETTLE_S, begin + SETTLE_S + seconds
    sent = late = refused = hurried = 0

    async def live(member: Member | NewMember, phase: float) -> None:
        nonlocal sent, late, refused, hurried
        due = begin + phase * member.interval_s
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            interval_s = member.interval_s
            code = await member.heartbeat()
            if due >= counted_from:
                sent += 1
                late += time.perf_counter() - due > interval_s
                refused += code != 0
                hurried += interval_s < member.IDLE_INTERVAL_S
            due += member.interval_s

    async def cpu_at(moment: float) -> float:
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        return cpu_seconds(target.pid)

    before, after, *_ = await asyncio.gather(
        cpu_at(counted_from), cpu_at(end), *[live(member, at / len(members)) for at, member in enumerate(members)]
    )
    for client in clients:
        await client.close()
    return {
        "members": len(members),
        "heartbeats_per_s": sent / seconds,
        "cpu_share": (after - before) / seconds,
        "late": late,
        "refused": refused,
        "hurried": hurried,
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
    parser.add_argument("--quick", action="store_true", help="to see whether it runs: less of all, nothing is saved")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 5
    counts = {what: count // 10 if options.quick else count for what, count in COUNTS.items()}
    document: dict[str, Any] = {"testing broker": start_to_acknowledged(options.rounds)}
    print(document)
    with fastq_broker(**{"group.initial.rebalance.delay.ms": 200}) as target:
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1, replication_factor=1)
        for what in COUNTS:
            sides = {
                library: (lambda what=what, library=library: measure(target, what, library, "t", counts[what]))
                for library in LIBRARIES
            }
            rounds = interleave(sides, options.rounds)
            middle = {library: medians(rows) for library, rows in rounds.items()}
            ratio = middle["fastq"]["per_s"] / max(middle[peer]["per_s"] for peer in LIBRARIES[1:])
            document[what] = {"medians": middle, "ratio": ratio, "rounds": rounds}
            print(f"  => {what}: {ratio:.2f}x")
        document["rebalance"] = asyncio.run(rebalances(target, options.rounds))
        print(document["rebalance"])
        document["sticky assignor"] = sticky_assignment(options.rounds)
        print(document["sticky assignor"])
        idle = asyncio.run(idle_members(target, "t", options.seconds))
        print(idle)
    were_idle = idle["late"] + idle["refused"] + idle["hurried"] <= ALLOWED
    if were_idle:
        document["idle members"] = idle
    if not options.quick:
        print(save("coordination", document))
    if not were_idle:
        raise SystemExit(f"no figure of idle members: more than {ALLOWED} heartbeats were late, refused or hurried")


if __name__ == "__main__":
    main()
