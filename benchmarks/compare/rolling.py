"""A rolling restart of ten members: for how long partitions are not read, those that change hands and those that stay.

    python benchmarks/compare/rolling.py [--members 10]

Rules: a record goes to each partition every few milliseconds; the pause of a partition is the longest time between two of its
records being handled, step by step of the restart. All members are asyncio consumers of one process, so a pause holds the loop's
own delays too. Range stops everybody at each step; it is there to compare with.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from support import Target, apache_kafka, fastq_broker, medians, save

from fastq import Admin, AsyncConsumer, AsyncProducer, Record

PARTITIONS, EVERY_S = 20, 0.005
KINDS: dict[str, dict[str, Any]] = {
    "range": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative-sticky": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "KIP-848": {"group_protocol": "consumer"},
}
SETTINGS: dict[str, Any] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
}


class Member:
    """A consumer and the task that reads it; `seen` is told of each record."""

    def __init__(self, seen: Callable[[Member, Record], None], topic: str, **options: Any) -> None:
        self.consumer = AsyncConsumer(topic, auto_offset_reset="earliest", **options)
        self.task = asyncio.create_task(self.read(seen))

    async def read(self, seen: Callable[[Member, Record], None]) -> None:
        async for record in self.consumer:
            seen(self, record)

    @property
    def count(self) -> int:
        return len(self.consumer.assignment())

    async def close(self) -> None:
        self.consumer.stop()
        await self.task
        await self.consumer.commit()
        await self.consumer.close()


class Pauses:
    """Who read each partition last, and when; the longest pause of each partition since `start`."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[Member, float]] = {}
        self.longest: dict[int, tuple[float, bool]] = {}
        self.offsets: dict[int, set[int]] = {index: set() for index in range(PARTITIONS)}
        self.doubled = 0

    def seen(self, member: Member, record: Record) -> None:
        now = time.perf_counter()
        known = self.last.get(record.partition)
        if known is not None:
            longest, moved = self.longest.get(record.partition, (0.0, False))
            self.longest[record.partition] = max(longest, now - known[1]), moved or known[0] is not member
        self.last[record.partition] = member, now
        offsets = self.offsets[record.partition]
        self.doubled += record.offset in offsets
        offsets.add(record.offset)

    def step(self) -> tuple[list[float], list[float]]:
        """The pauses of a step that has ended, in ms: of partitions that moved, of those that did not."""
        moved = [pause * 1000 for pause, has_moved in self.longest.values() if has_moved]
        stayed = [pause * 1000 for pause, has_moved in self.longest.values() if not has_moved]
        self.longest.clear()
        return moved, stayed


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("the group does not come to rest within a minute")


async def restart(servers: str, topic: str, count: int, options: dict[str, Any]) -> dict[str, float]:
    pauses, stop = Pauses(), asyncio.Event()
    given = {"bootstrap_servers": servers, "group_id": topic, "heartbeat_interval_ms": 500, **options}

    async def produce() -> None:
        async with AsyncProducer(bootstrap_servers=servers, linger_ms=0) as producer:
            while not stop.is_set():
                for partition in range(PARTITIONS):
                    await producer.send(topic, b"x", partition=partition)
                await asyncio.sleep(EVERY_S)

    members = [Member(pauses.seen, topic, **given) for _ in range(count)]
    await until(lambda: sorted(member.count for member in members) == [PARTITIONS // count] * count)
    writer = asyncio.create_task(produce())
    await until(lambda: len(pauses.last) == PARTITIONS)
    await asyncio.sleep(1)
    moved: list[float] = []
    stayed: list[float] = []
    pauses.step()
    for _ in range(count):
        for change in ("leave", "join"):
            if change == "leave":
                await members.pop(0).close()
            else:
                members.append(Member(pauses.seen, topic, **given))
            await until(lambda: sum(member.count for member in members) == PARTITIONS and all(m.count for m in members))
            await asyncio.sleep(0.5)
            for found, more in zip((moved, stayed), pauses.step(), strict=True):
                found += more
    stop.set()
    await writer
    await asyncio.sleep(0.5)
    for member in members:
        await member.close()
    return {
        "moved": len(moved),
        "moved_pause_ms_p50": statistics.median(moved),
        "moved_pause_ms_max": max(moved),
        "stayed_pause_ms_p50": statistics.median(stayed) if stayed else 0.0,
        "stayed_pause_ms_max": max(stayed, default=0.0),
        "doubled": pauses.doubled,
        "lost": sum(max(offsets) + 1 - len(offsets) for offsets in pauses.offsets.values()),
    }


async def joins(servers: str, topic: str) -> dict[str, float]:
    """Members of KIP-848, with the brokers' own intervals, that join a group within a second of one another: how long the slowest
    waits for its first record, from its beginning."""
    began: list[float] = []
    first: dict[int, float] = {}
    stop = asyncio.Event()

    async def produce() -> None:
        async with AsyncProducer(bootstrap_servers=servers, linger_ms=0) as producer:
            while not stop.is_set():
                for partition in range(PARTITIONS):
                    await producer.send(topic, b"x", partition=partition)
                await asyncio.sleep(EVERY_S)

    def seen(member: Member, record: Record) -> None:
        first.setdefault(members.index(member), time.perf_counter())

    writer = asyncio.create_task(produce())
    members: list[Member] = []
    for pause in (0.0, 4.0, 0.3, 0.3, 0.3):  # the first is at rest when the others come
        await asyncio.sleep(pause)
        began.append(time.perf_counter())
        members.append(Member(seen, topic, bootstrap_servers=servers, group_id=topic, group_protocol="consumer"))
    await until(lambda: len(first) == len(members))
    stop.set()
    await writer
    for member in members:
        await member.close()
    waits = [first[index] - begin for index, begin in enumerate(began)]
    return {"alone_s": waits[0], "slowest_s": max(waits[1:])}


def measure_joins(target: Target, round_: int) -> dict[str, float]:
    topic = f"joins-{round_}"
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
    return asyncio.run(joins(target.bootstrap_servers, topic))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=10)
    members = parser.parse_args().members
    results: dict[str, dict[str, float]] = {}
    with fastq_broker(**SETTINGS) as target:
        for kind, options in KINDS.items():
            topic = f"rolling-{kind.lower()}"
            with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
            results[kind] = asyncio.run(restart(target.bootstrap_servers, topic, members, options))
            print(kind, {name: round(value, 1) for name, value in results[kind].items()}, flush=True)
    for open_ in (fastq_broker, apache_kafka):
        with open_() as target:
            results[f"joins, {target.name}"] = medians([measure_joins(target, round_) for round_ in range(3)])
            print(f"joins, {target.name}", results[f"joins, {target.name}"], flush=True)
    print(save("rolling", results))


if __name__ == "__main__":
    main()
