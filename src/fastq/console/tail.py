"""What arrives in a topic from now on: nothing is left out without being counted.

Rules: reading never waits for the browser. What it has not taken waits, WAITING_MAX records of WAITING_BYTES_MAX bytes at most; the oldest
of more go, and `left_out` counts them. A browser gets ROWS_MAX rows a TICK_S, so that a page stays usable whatever the rate. `seen` counts
all, `behind` is how far the reading itself is from the ends, `gone` the offsets that retention took before they were read, and `trouble`
what is not heard of: nothing that comes is not the same as that. Partitions that are added while a topic is followed are read from their
first record; one that had no leader, once it has one, from the first record of a time after the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from fastq.admin import OffsetSpec
from fastq.console.clusters import Cluster
from fastq.console.decoding import Decoder
from fastq.console.scan import TURN_S, Plan, matching, offsets_of, without_leader
from fastq.errors import FastqError, OffsetOutOfRange
from fastq.metadata import TopicPartition

WAITING_MAX = 1_000
WAITING_BYTES_MAX = 16 << 20
ROWS_MAX = 100
TICK_S = 0.25
WATCH_S, WATCH_TIMEOUT_S = 5.0, 5.0
"""How often the cluster is asked whether it is there while a topic is followed, and for how long."""
POLL_S = 0.2
A_POLL = 5_000
LOOKED_AT_ONCE = 500
TAIL_S = 3600.0

StartOf = Callable[[TopicPartition], Awaitable[int]]


class Tail:
    """Reads in a task of its own from `run`; `take` hands out what waits. One event loop."""

    def __init__(self, plan: Plan, decoder: Decoder, waiting_max: int = WAITING_MAX) -> None:
        self._plan = plan
        self._decoder = decoder
        self._waiting: deque[Any] = deque()
        self._waiting_max = waiting_max
        self._waiting_bytes = 0
        self._coming: dict[TopicPartition, int] = {}
        self.seen = self.matched = self.left_out = self.gone = 0
        self.behind: int | None = None
        self.trouble = ""
        self.ready = False

    def add(self, places: Mapping[TopicPartition, int]) -> None:
        """Read further partitions, each from an offset: with the next round, as a consumer is not changed while it polls."""
        self._coming.update(places)

    async def run(self, consumer: Any, start_of: StartOf) -> None:
        """Read until cancelled. `start_of` tells where a partition begins now."""
        while True:
            if self._coming:
                coming, self._coming = self._coming, {}
                consumer.assign([*consumer.assignment(), *coming])
                for tp, offset in coming.items():
                    consumer.seek(tp, offset)
            if not consumer.assignment():  # nobody leads any of it
                await asyncio.sleep(POLL_S)
                continue
            try:
                records = await consumer.poll(max_records=A_POLL, timeout=POLL_S)
            except OffsetOutOfRange as error:
                await self._go_on(consumer, TopicPartition(str(error.topic), int(error.partition or 0)), start_of)
                continue
            self.ready = True
            for place in range(0, len(records), LOOKED_AT_ONCE):
                await self.look(records[place : place + LOOKED_AT_ONCE])
                await asyncio.sleep(0)  # other requests have their turn
            lags = [lag for lag in consumer.lag().values() if lag is not None]
            self.behind = sum(lags) if lags else None

    async def _go_on(self, consumer: Any, tp: TopicPartition, start_of: StartOf) -> None:
        """Where the log is no more what it was: at its beginning, behind what retention took, which is counted. What ends before the place
        is most likely the log of a topic that was made anew, whose records are all new."""
        at = consumer.metrics()["partitions"][tp]["position"] or 0
        begin = await start_of(tp)
        self.gone += max(0, begin - at)
        consumer.seek(tp, begin)

    async def look(self, records: list[Any]) -> None:
        """Keep those that fit. Without a filter the record itself waits, so that what is never shown is never decoded."""
        self.seen += len(records)
        if self._plan.filter.is_empty:
            for record in records:
                self._keep(record)
        else:
            turn_ends = time.monotonic() + TURN_S
            for record in records:
                if time.monotonic() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + TURN_S
                if await matching(record, self._plan, self._decoder) is not None:
                    self._keep(record)

    def _keep(self, record: Any) -> None:
        self.matched += 1
        self._waiting.append(record)
        self._waiting_bytes += _size(record)
        while len(self._waiting) > self._waiting_max or self._waiting_bytes > WAITING_BYTES_MAX:
            if len(self._waiting) == 1:
                return  # one that is larger by itself is shown
            self._next()
            self.left_out += 1

    def _next(self) -> Any:
        record = self._waiting.popleft()
        self._waiting_bytes -= _size(record)
        return record

    async def take(self, count_max: int = ROWS_MAX) -> dict[str, Any]:
        """The next rows and the counts. `shown` + `left_out` + what waits = `matched`."""
        records = [self._next() for _ in range(min(count_max, len(self._waiting)))]
        rows = []
        for record in records:
            rows.append((await self._decoder.row(record)).to_json())
            await asyncio.sleep(0)  # a row may be of a megabyte
        return {
            "rows": rows,
            "seen": self.seen,
            "matched": self.matched,
            "left_out": self.left_out,
            "waiting": len(self._waiting),
            "behind": self.behind,
            "gone": self.gone,
            "ready": self.ready,
            "trouble": self.trouble,
        }


def _size(record: Any) -> int:
    return len(record.key or b"") + len(record.value or b"")


async def follow(cluster: Cluster, plan: Plan, decoder: Decoder) -> AsyncIterator[dict[str, Any]]:
    """`take` several times a second, for TAIL_S at most."""
    began_ms = int(time.time() * 1000)
    # Of now, before anything is said to be followed.
    (ends,), leaderless = await offsets_of(cluster, plan, OffsetSpec.LATEST)
    end = time.monotonic() + TAIL_S
    isolation = "read_committed" if plan.read_committed else "read_uncommitted"

    async def start_of(tp: TopicPartition) -> int:
        return (await cluster.admin.list_offsets({tp: OffsetSpec.EARLIEST}))[tp].result().offset

    async with cluster.reader(plan.who, auto_offset_reset="none", isolation_level=isolation) as consumer:
        consumer.assign(list(ends))
        for tp, offset in ends.items():
            consumer.seek(tp, offset)
        tail = Tail(plan, decoder)
        tail.trouble = without_leader(leaderless)
        reading = asyncio.create_task(tail.run(consumer, start_of))
        watching = asyncio.create_task(_watch(cluster, plan, tail, set(ends), set(leaderless), began_ms))
        try:
            while time.monotonic() < end:
                yield await tail.take()
                await asyncio.wait([reading], timeout=TICK_S)
                if reading.done():
                    reading.result()
        finally:
            for task in (reading, watching):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


async def _watch(
    cluster: Cluster, plan: Plan, tail: Tail, places: set[TopicPartition], leaderless: set[int], began_ms: int
) -> None:
    """Ask the leaders whether they are there, and follow what was not there when the tail began. `places` are followed, `leaderless` had
    nobody who knew their end."""
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            (ends, starts, since), without = await asyncio.wait_for(
                offsets_of(cluster, plan, OffsetSpec.LATEST, OffsetSpec.EARLIEST, began_ms), WATCH_TIMEOUT_S
            )
        except asyncio.TimeoutError:
            tail.trouble = f"the cluster did not answer within {WATCH_TIMEOUT_S:.0f} s"
            continue
        except FastqError as error:
            tail.trouble = str(error)
            continue
        tail.trouble = without_leader(without)
        coming = {}
        for tp in ends.keys() - places:
            known = tp.partition in leaderless  # it was there, with records of before
            coming[tp] = starts[tp] if not known else ends[tp] if since[tp] < 0 else since[tp]
        tail.add(coming)
        places.update(coming)
