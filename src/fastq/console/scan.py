"""A bounded walk through a topic: from where, what is looked for, and when it ends.

Rules: a scan ends at the ends that the partitions had when it began, or when it has found `limit` records, or looked at `records_max`,
or after `seconds_max`: it says which, and what it has not looked at: partitions without a leader, and from `latest` what lies before the
last records that it takes. What partitions with few records leave of those, the others have. From `latest`, where not all that fits can be
shown, it shows the newest of it: it looks at all of its records first, and holds back HELD_BYTES_MAX bytes at most. It reads no further
when nobody listens: who closes the generator closes the consumer.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastq.admin import OffsetSpec
from fastq.admin.core import look_up_topics
from fastq.admin.offsets import list_several
from fastq.console.clusters import API_TIMEOUT_S, Cluster
from fastq.console.decoding import Decoder, Row
from fastq.console.filters import Filter
from fastq.errors import UnknownTopicOrPartition
from fastq.metadata import TopicPartition
from fastq.words import counted

STARTS = ("latest", "earliest", "offset", "time")
LIMIT_MAX, LIMIT_DEFAULT = 1_000, 50
DOWNLOAD_MAX = 1_000_000
RECORDS_MAX, RECORDS_DEFAULT = 10_000_000, 200_000
SECONDS_MAX, DOWNLOAD_SECONDS_MAX = 60.0, 600.0
POLL_S, TELL_S = 0.3, 0.25
A_POLL = 2_000
ROWS_AT_ONCE, ROWS_BYTES_AT_ONCE = 50, 1 << 20
HELD_BYTES_MAX = 32 << 20
NAMED_MAX = 20
"""How many partitions are named where something is said of many."""
TURN_S = 0.02
"""How long records are looked at before other requests have their turn."""


@dataclass(frozen=True)
class Plan:
    """What is asked for, and by whom (empty: where nobody logs in). `place` is the offset or the time of a start; `partition` None: all."""

    topic: str
    partition: int | None = None
    start: str = "latest"
    place: int = 0
    until_ms: int | None = None
    limit: int = LIMIT_DEFAULT
    records_max: int = RECORDS_DEFAULT
    seconds_max: float = SECONDS_MAX
    read_committed: bool = False
    who: str = ""
    filter: Filter = field(default_factory=Filter)

    @property
    def takes_all(self) -> bool:
        """Whether every record between its places fits."""
        return self.filter.is_empty and self.until_ms is None


@dataclass
class Progress:
    """How far a scan is: `total` are the offsets that it would look at, `ended` why it has ended, empty until then. What it does not look
    at: `before` are the offsets that lie before its places, `gone` those asked for that are no more, `leaderless` the partitions that
    cannot be read."""

    total: int = 0
    before: int = 0
    gone: int = 0
    leaderless: tuple[int, ...] = ()
    scanned: int = 0
    found: int = 0
    offsets: int = 0
    seconds: float = 0.0
    ended: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the page."""
        return {
            "total": self.total,
            "done": self.offsets,
            "scanned": self.scanned,
            "found": self.found,
            "seconds": round(self.seconds, 1),
            "ended": self.ended,
        }


class Asked(NamedTuple):
    """Offsets of partitions, one mapping for each time that was asked about, and the partitions that have no leader to ask."""

    offsets: list[dict[TopicPartition, int]]
    leaderless: tuple[int, ...]


async def offsets_of(cluster: Cluster, plan: Plan, *times: int) -> Asked:
    """The offsets of some times, of all partitions or of the one that is asked for: one look at the topic, and then a request to each
    leader for each time, however many partitions there are. Raises the first error that stays."""
    described = await cluster.run(look_up_topics([plan.topic]))
    partitions = [part for part in described[plan.topic].result().partitions if plan.partition in (None, part.index)]
    if not partitions and plan.partition is not None:
        raise UnknownTopicOrPartition(topic=plan.topic, partition=plan.partition)
    places = [TopicPartition(plan.topic, part.index) for part in partitions if part.leader is not None]
    listed = await cluster.run(
        list_several(
            [dict.fromkeys(places, time) for time in times],
            read_committed=plan.read_committed,
            timeout_ms=int(API_TIMEOUT_S * 1000),
            known=described,
        )
    )
    return Asked(
        [{tp: found.offset for tp, found in one.results().items()} for one in listed],
        tuple(part.index for part in partitions if part.leader is None),
    )


class Bounds(NamedTuple):
    """The first and the end offset of each partition that has something to look at; the others as in `Progress`."""

    places: dict[TopicPartition, tuple[int, int]]
    before: int
    gone: int
    leaderless: tuple[int, ...]


async def bounds(cluster: Cluster, plan: Plan) -> Bounds:
    """What a scan looks at."""
    by_time = [plan.place] if plan.start == "time" else []
    (first, end, *found), leaderless = await offsets_of(cluster, plan, OffsetSpec.EARLIEST, OffsetSpec.LATEST, *by_time)
    begin, before, gone = first, 0, 0
    if found:
        begin = {tp: end[tp] if offset < 0 else offset for tp, offset in found[0].items()}
    elif plan.start == "offset":
        begin = {tp: max(first[tp], plan.place) for tp in end}
        gone = sum(max(0, first[tp] - plan.place) for tp in end)
    elif plan.start == "latest":
        wanted = min(plan.limit, plan.records_max) if plan.takes_all else plan.records_max
        each = _shares({tp: end[tp] - first[tp] for tp in end}, wanted)
        begin = {tp: end[tp] - each[tp] for tp in end}
        before = sum(begin.values()) - sum(first.values())
    return Bounds({tp: (begin[tp], end[tp]) for tp in end if begin[tp] < end[tp]}, before, gone, leaderless)


def _shares(sizes: Mapping[TopicPartition, int], wanted: int) -> dict[TopicPartition, int]:
    """How many of the last offsets of each partition are looked at, of `wanted` in all: equally many, where there are so many. There is one
    at least of each, or a record that came to the last of many partitions could never be seen."""
    shares = {}
    for left, tp in zip(range(len(sizes), 0, -1), sorted(sizes, key=lambda tp: sizes[tp]), strict=True):
        shares[tp] = min(sizes[tp], max(1, -(-wanted // left)))
        wanted -= shares[tp]
    return shares


async def scan(
    cluster: Cluster, plan: Plan, decoder: Decoder, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[list[Row], Progress]]:
    """Rows as they are found, and how far it is, several times a second; the last one has `ended`."""
    began = told = clock()
    progress = Progress()
    places, progress.before, progress.gone, progress.leaderless = await bounds(cluster, plan)
    progress.total = sum(end - begin for begin, end in places.values())
    rows: list[Row] = []
    rows_bytes = 0
    newest = _Newest(plan.limit) if plan.start == "latest" and not plan.takes_all and plan.limit <= LIMIT_MAX else None
    ends = {tp: end for tp, (_, end) in places.items()}
    if places:
        isolation = "read_committed" if plan.read_committed else "read_uncommitted"
        async with cluster.reader(plan.who, isolation_level=isolation) as consumer:
            consumer.assign(list(places))
            for tp, (begin, _) in places.items():
                consumer.seek(tp, begin)
            while not progress.ended:
                records = await consumer.poll(max_records=A_POLL, timeout=POLL_S)
                left_over, turn_ends = 0, clock() + TURN_S
                for number, record in enumerate(records, 1):
                    if record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                        continue
                    progress.scanned += 1
                    row = await matching(record, plan, decoder)
                    if row is not None:
                        progress.found += 1
                        if newest is not None:
                            newest.add(row)
                        else:
                            rows.append(row)
                            rows_bytes += row.size_bytes
                    now = clock()
                    is_late = now - began >= plan.seconds_max
                    is_full = newest is None and progress.found >= plan.limit
                    if is_late or is_full or progress.scanned >= plan.records_max:
                        left_over = len(records) - number
                        break
                    if rows_bytes >= ROWS_BYTES_AT_ONCE:
                        yield rows, progress
                        rows, rows_bytes, told = [], 0, clock()
                    if now >= turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = clock() + TURN_S
                now = clock()
                progress.seconds = now - began
                left = _left(consumer, ends) + left_over
                progress.offsets = max(progress.scanned, progress.total - left)
                progress.ended = _ended(plan, progress, left, is_full=newest is None and progress.found >= plan.limit)
                if rows and not progress.ended and (len(rows) >= ROWS_AT_ONCE or now - told > TELL_S):
                    yield rows, progress
                    rows, rows_bytes, told = [], 0, now
                elif not progress.ended and now - told > TELL_S:
                    yield [], progress
                    told = now
                await asyncio.sleep(0)  # other requests have their turn
    progress.ended = progress.ended or _all(progress)
    if newest is not None:
        rows = newest.rows()
        if len(rows) < progress.found:
            progress.ended += f"; these are the newest {len(rows):,} that fit"
    yield rows, progress


class _Newest:
    """The rows of the latest times, so many at most, and of HELD_BYTES_MAX bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: list[tuple[int, int, int, Row]] = []
        self._bytes = self._number = 0

    def add(self, row: Row) -> None:
        self._number += 1
        heapq.heappush(self._rows, (row.timestamp_ms, row.offset, self._number, row))
        self._bytes += row.size_bytes
        while len(self._rows) > self._limit or (self._bytes > HELD_BYTES_MAX and len(self._rows) > 1):
            self._bytes -= heapq.heappop(self._rows)[-1].size_bytes

    def rows(self) -> list[Row]:
        """The oldest first."""
        return [row for *_, row in sorted(self._rows)]


async def matching(record: Any, plan: Plan, decoder: Decoder) -> Row | None:
    """The row of a record that is looked for."""
    if plan.until_ms is not None and record.timestamp_ms > plan.until_ms:
        return None
    if decoder.is_raw and not plan.filter.may_fit(record):
        return None
    row = await decoder.row(record)
    return row if plan.filter.fits(row, text_checked=decoder.is_raw and plan.filter.is_of_bytes) else None


def _left(consumer: Any, ends: dict[TopicPartition, int]) -> int:
    """How many offsets are still to come."""
    partitions = consumer.metrics()["partitions"]
    left = 0
    for tp, end in ends.items():
        position = partitions[tp]["position"]
        left += end if position is None else max(0, end - position)
    return left


def _ended(plan: Plan, progress: Progress, left: int, *, is_full: bool) -> str:
    if not left:
        return _all(progress)
    if is_full:
        why = f"{plan.limit:,} found"
    elif progress.scanned >= plan.records_max:
        why = f"stopped after {plan.records_max:,} records"
    elif progress.seconds >= plan.seconds_max:
        why = f"stopped after {plan.seconds_max:.0f} s"
    else:
        return ""
    return "; not looked at: ".join([why, *filter(None, [without_leader(progress.leaderless)])])


def _all(progress: Progress) -> str:
    """What is said of a scan that came to its end: "all" means all that there is."""
    not_seen = []
    if progress.before:
        not_seen.append(f"what lies before these last records, {counted(progress.before, 'offset')}")
    if progress.gone:
        not_seen.append(f"{counted(progress.gone, 'offset')} that retention or a deletion has taken")
    if progress.leaderless:
        not_seen.append(without_leader(progress.leaderless))
    return f"not looked at: {'; '.join(not_seen)}" if not_seen else "all was looked at"


def without_leader(partitions: Sequence[int]) -> str:
    """Which partitions nobody leads, as a phrase; empty for none."""
    if not partitions:
        return ""
    named = ", ".join(map(str, partitions[:NAMED_MAX])) + (" and others" if len(partitions) > NAMED_MAX else "")
    one = len(partitions) == 1
    return f"{counted(len(partitions), 'partition')} ({named}), which {'has' if one else 'have'} no leader"
