"""What arrives in a topic from now on: nothing is left out without being counted.

Rules: reading never waits for the browser. What it has not taken waits, WAITING_MAX records of WAITING_BYTES_MAX bytes at most; the oldest
of more go, and `left_out` counts them. A browser gets ROWS_MAX rows a TICK_S, so that a page stays usable whatever the rate. `seen` counts
all, `behind` is how far the reading itself is from the ends, and `trouble` why the cluster does not tell of those: nothing that comes is
not the same as nothing that is heard of.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from fastq.admin import OffsetSpec
from fastq.console.clusters import Cluster
from fastq.console.decoding import Decoder
from fastq.console.scan import TURN_S, Plan, matching, offsets_of
from fastq.errors import FastqError
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


class Tail:
    """Reads in a task of its own from `run`; `take` hands out what waits. One event loop."""

    def __init__(self, plan: Plan, decoder: Decoder, waiting_max: int = WAITING_MAX) -> None:
        self._plan = plan
        self._decoder = decoder
        self._waiting: deque[Any] = deque()
        self._waiting_max = waiting_max
        self._waiting_bytes = 0
        self.seen = self.matched = self.left_out = 0
        self.behind: int | None = None
        self.trouble = ""
        self.ready = False

    async def run(self, consumer: Any) -> None:
        """Read until cancelled."""
        while True:
            records = await consumer.poll(max_records=A_POLL, timeout=POLL_S)
            self.ready = True
            for place in range(0, len(records), LOOKED_AT_ONCE):
                await self.look(records[place : place + LOOKED_AT_ONCE])
                await asyncio.sleep(0)  # other requests have their turn
            lags = [lag for lag in consumer.lag().values() if lag is not None]
            self.behind = sum(lags) if lags else None

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
            "ready": self.ready,
            "trouble": self.trouble,
        }


def _size(record: Any) -> int:
    return len(record.key or b"") + len(record.value or b"")


async def follow(cluster: Cluster, plan: Plan, decoder: Decoder) -> AsyncIterator[dict[str, Any]]:
    """`take` several times a second, for TAIL_S at most."""
    # Of now, before anything is said to be followed.
    (ends,) = await offsets_of(cluster, plan, OffsetSpec.LATEST)
    places = list(ends)
    end = time.monotonic() + TAIL_S
    isolation = "read_committed" if plan.read_committed else "read_uncommitted"
    async with cluster.reader(plan.who, auto_offset_reset="latest", isolation_level=isolation) as consumer:
        consumer.assign(places)
        for tp, offset in ends.items():
            consumer.seek(tp, offset)
        tail = Tail(plan, decoder)
        reading = asyncio.create_task(tail.run(consumer))
        watching = asyncio.create_task(_watch(cluster, tail, places))
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


async def _watch(cluster: Cluster, tail: Tail, places: list[TopicPartition]) -> None:
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            ends = await cluster.admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST), timeout=WATCH_TIMEOUT_S)
            tail.trouble = str(next(iter(ends.errors.values()), ""))
        except FastqError as error:
            tail.trouble = str(error)
