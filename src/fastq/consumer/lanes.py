"""Records between a consumer and its workers: who may take which, and what may be committed. No threads, no I/O.

Rules
- A lane is what has to stay in order: a partition, a key of a partition, or one record. One record of a lane is with a worker at a
  time; a lane waits in `_ready` exactly while it has records, none of them with a worker or in a pause.
- A partition's commit offset is that of its first record that is not done: there are no gaps below it.
- Before a partition is given up, its gaps are closed where that can be: what waits below a record that has begun is done too, or that
  one would be done again by whoever reads on at the commit. What is behind a pause, or was not reached, is dropped.
- A partition that is given up leaves nothing behind: its waiting records are dropped, and what workers still do for it counts
  no more.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastq._native.consume import Record
from fastq.metadata import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from fastq.consumer.hooks import Original, Originals

ORDERS = ("partition", "key", "none")


class Progress:
    """Which offsets of a partition are done. Invariant: `_open` has the offsets from the first that is not done on, in order, each
    with its leader epoch; `offset` is where the first of them is, or where the consumer is when all are done; `leader_epoch` is that of
    the last record that is done before it, -1 when unknown."""

    __slots__ = ("_done", "_open", "committed", "leader_epoch", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.committed = offset
        self.leader_epoch = -1
        self._open: deque[tuple[int, int]] = deque()
        self._done: set[int] = set()

    @property
    def pending(self) -> int:
        """How many records are not done."""
        return len(self._open) - len(self._done)

    @property
    def highest_done(self) -> int:
        """The last offset that is done above one that is not; -1 where there is no such gap."""
        return max(self._done, default=-1)

    def begin(self, offset: int, leader_epoch: int = -1) -> None:
        """A record was handed over."""
        if not self._open:
            self.offset = offset
        self._open.append((offset, leader_epoch))

    def end(self, offset: int) -> None:
        """It is done."""
        self._done.add(offset)
        while self._open and self._open[0][0] in self._done:
            done, self.leader_epoch = self._open.popleft()
            self._done.discard(done)
            self.offset = self._open[0][0] if self._open else done + 1

    def reached(self, place: OffsetAndMetadata) -> None:
        """There is no record between those that were handed over and `place`: what lies there is for no application."""
        if not self._open and place.offset > self.offset:
            self.offset, self.leader_epoch = place.offset, place.leader_epoch


class Task:
    """One record on its way through a worker. `attempts`: how often it was tried. `original`: the record before deserializers, None
    where there are none; while it could not be read, `record` is it."""

    __slots__ = ("attempts", "lane", "original", "progress", "record")

    def __init__(self, record: Record, lane: Lane, progress: Progress, original: Original | None = None) -> None:
        self.record = record
        self.original = original
        self.lane = lane
        self.progress = progress
        self.attempts = 0


class Lane:
    """Records that have to stay in order."""

    __slots__ = ("key", "tasks")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.tasks: deque[Task] = deque()


class Lanes:
    """All records that were handed over and are not done. Not thread-safe: the pool has the lock."""

    def __init__(self, order: str, *, clock: Callable[[], float]) -> None:
        if order not in ORDERS:
            raise ValueError(f"order is one of {', '.join(ORDERS)}, got {order!r}")
        self.order = order
        self.progress: dict[TopicPartition, Progress] = {}
        self.pending = 0  # handed over, not done, and not dropped
        self._clock = clock
        self._lanes: dict[Any, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._pausing: list[tuple[float, int, Lane]] = []
        self._numbers = itertools.count()
        self._running: set[Task] = set()  # with a worker

    def add(self, records: Iterable[Record], originals: Originals | None = None) -> None:
        """Hand records over, in the order of their offsets. `originals`: those of them that went through deserializers."""
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            progress = self.progress.get(tp)
            if progress is None:
                progress = self.progress[tp] = Progress(record.offset)
            progress.begin(record.offset, record.leader_epoch)
            key = self._key_of(tp, record)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(key)
                self._ready.append(lane)
            original = originals.get((record.topic, record.partition, record.offset)) if originals else None
            lane.tasks.append(Task(record, lane, progress, original))
            self.pending += 1

    def _key_of(self, tp: TopicPartition, record: Record) -> Any:
        if self.order == "partition":
            return tp
        if self.order == "key" and record.key is not None:
            try:
                return tp, hash(record.key), record.key
            except TypeError:  # a deserialized key that cannot be compared by value
                return tp, repr(record.key)
        return tp, record.offset

    def take(self) -> Task | None:
        """A record to work on now, or None."""
        now = self._clock()
        while self._pausing and self._pausing[0][0] <= now:
            self._ready.append(heapq.heappop(self._pausing)[2])
        while self._ready:
            lane = self._ready.popleft()
            if lane.tasks:
                self._running.add(lane.tasks[0])
                return lane.tasks[0]
        return None

    def wait_s(self) -> float | None:
        """Seconds until a pause ends; None when none is under way."""
        return max(0.0, self._pausing[0][0] - self._clock()) if self._pausing else None

    def again(self, task: Task, pause_s: float) -> None:
        """Try a record again after a pause; what is behind it in its lane waits."""
        self._running.discard(task)
        if task.lane.tasks:
            heapq.heappush(self._pausing, (self._clock() + pause_s, next(self._numbers), task.lane))

    def park(self, task: Task) -> None:
        """A record will never be done: neither is what is behind it in its lane."""
        self._running.discard(task)

    def done(self, task: Task) -> None:
        """A record is done."""
        self._running.discard(task)
        lane = task.lane
        if not lane.tasks or lane.tasks[0] is not task:
            return  # its partition was given up
        lane.tasks.popleft()
        task.progress.end(task.record.offset)
        self.pending -= 1
        if lane.tasks:
            self._ready.append(lane)
        else:
            del self._lanes[lane.key]

    def running(self, partitions: Iterable[TopicPartition] | None = None) -> int:
        """How many records of these partitions (None: of all) are with a worker."""
        if partitions is None:
            return len(self._running)
        wanted = set(partitions)
        return sum((task.record.topic, task.record.partition) in wanted for task in self._running)

    def drop_waiting(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Forget the records of these partitions (None: of all) that are with no worker. They stay not done."""
        gone = set(self.progress if partitions is None else partitions)
        for lane in list(self._lanes.values()):
            first = lane.tasks[0]
            if (first.record.topic, first.record.partition) not in gone:
                continue
            kept = 1 if first in self._running else 0
            self.pending -= len(lane.tasks) - kept
            while len(lane.tasks) > kept:
                lane.tasks.pop()
            if not kept:
                del self._lanes[lane.key]

    def close_gaps(self, partitions: Iterable[TopicPartition]) -> bool:
        """Have workers do first, of these partitions, what lets a commit reach past all that has begun, and forget the rest of what
        waits. To be called again after each record, until it answers False: there is nothing more to wait for."""
        gone = set(partitions)
        reach = {tp: progress.highest_done for tp, progress in self.progress.items() if tp in gone}
        for task in self._running:
            tp = TopicPartition(task.record.topic, task.record.partition)
            if tp in reach:
                reach[tp] = max(reach[tp], task.record.offset)
        lanes: list[tuple[TopicPartition, Lane]] = []
        ready = set(map(id, self._ready))
        for lane in self._lanes.values():
            first = lane.tasks[0]
            tp = TopicPartition(first.record.topic, first.record.partition)
            if tp in gone:
                lanes.append((tp, lane))
                if first not in self._running and id(lane) not in ready:  # a pause, or parked: no commit gets past it
                    reach[tp] = min(reach[tp], first.record.offset)
        found = False
        for tp, lane in lanes:
            while lane.tasks and lane.tasks[-1].record.offset >= reach[tp] and lane.tasks[-1] not in self._running:
                lane.tasks.pop()
                self.pending -= 1
            found = found or bool(lane.tasks)
            if not lane.tasks:
                del self._lanes[lane.key]
        urgent = {id(lane) for _, lane in lanes}
        self._ready = deque(
            sorted((lane for lane in self._ready if lane.tasks), key=lambda lane: id(lane) not in urgent)
        )
        return found

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are somebody else's now: nothing of them counts any more."""
        gone = set(partitions)
        self.drop_waiting(gone)
        for task in [task for task in self._running if (task.record.topic, task.record.partition) in gone]:
            self._running.discard(task)
            task.lane.tasks.clear()
            self.pending -= 1
            self._lanes.pop(task.lane.key, None)
        for tp in gone:
            self.progress.pop(tp, None)

    def reached(self, places: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Where the consumer is, by partition, all that it has handed out having been added: ends of transactions and what compaction
        left of batches have offsets too, and a partition that is done lags behind by none."""
        for tp, progress in self.progress.items():
            place = places.get(tp)
            if place is not None:
                progress.reached(place)

    def commits(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit: of partitions that have got further since `committed` was last told."""
        return {
            tp: OffsetAndMetadata(progress.offset, "", progress.leader_epoch)
            for tp, progress in self.progress.items()
            if progress.offset > progress.committed
        }

    def committed(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """These were committed."""
        for tp, place in offsets.items():
            progress = self.progress.get(tp)
            if progress is not None:
                progress.committed = max(progress.committed, place.offset)
