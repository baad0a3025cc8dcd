"""Incremental fetch sessions (KIP-227): the broker remembers a client's partitions, the client sends what changed.

Rules
- Epoch 0 asks for a new session, -1 closes one or asks for none, any other continues one and must be the next in turn.
- An incremental answer leaves out a partition that has no records, no error and nothing new; errors are always resent.
- A partition whose reader has all there is, and has been told so, sleeps: it is not looked at until its log or its metadata has moved,
  which wakes it. So a fetch of a session of thousands of partitions costs what the few that are at work cost.
- A sleeping follower goes on fetching all the same: it had what there was as of its session's latest fetch, which the partition is told
  when it wakes.
- Partitions that brought records go to the end of the session's order, so that none starves under the size limits.
- Idleness counts on a monotonic clock.
- The cache is bounded: the session unused for longest gives way once it has been idle for EVICTION_MS; else there is no
  session, and the client goes on with full requests.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from fastq.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from fastq._native.fetch_path import FetchPartition, PartitionData

    from .replicas import Replica

    Key: TypeAlias = tuple[bytes, int]

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NEVER = -(1 << 62)
EVICTION_MS = 120_000
INT32_MAX = 2**31 - 1


class Waiting(Protocol):
    """A fetch that waits for something to read."""

    def woken(self, request: FetchPartition, replica: Replica) -> None:
        """This partition does not sleep any more."""


class FetchSession:
    """One reader's session. Loop thread only.

    Invariants: each of `partitions` is either in `awake` or in `asleep`, where it is among its replica's `sleepers`; `answered` has an
    entry (error, high watermark, log start) for a partition once it was in an answer; what sleeps was told, and read under
    `isolation_level` for the reader `replica`. `waiting` is the fetch being served, which hears of what wakes.
    """

    __slots__ = (
        "answered",
        "asleep",
        "awake",
        "epoch",
        "isolation_level",
        "last_used_ms",
        "partitions",
        "replica",
        "session_id",
        "used_before_ms",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(
        self, session_id: int, uses_topic_ids: bool, partitions: Iterable[FetchPartition], now_ms: int
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms
        self.used_before_ms = NEVER
        """By the last fetch but one."""
        self.partitions: dict[Key, FetchPartition] = {
            (request.topic, request.partition): request for request in partitions
        }
        self.awake = dict(self.partitions)
        self.asleep: dict[Key, Replica] = {}
        self.answered: dict[Key, tuple[int, int, int]] = {}
        self.isolation_level = 0
        self.replica = (-1, -1)
        """Node id and broker epoch of a follower; -1 where it is none."""
        self.waiting: Waiting | None = None

    def update(self, changed: Iterable[FetchPartition], forgotten: Iterable[Key]) -> None:
        """Take over what an incremental request says."""
        for request in changed:
            key = request.topic, request.partition
            self._rouse(key)
            self.partitions[key] = self.awake[key] = request
        for key in forgotten:
            self._rouse(key)
            self.partitions.pop(key, None)
            self.awake.pop(key, None)
            self.answered.pop(key, None)

    def begin(self, isolation_level: int, replica: tuple[int, int]) -> None:
        """A fetch of this reader: to another than before all may be news."""
        if (isolation_level, replica) != (self.isolation_level, self.replica):
            self.wake_all()
            self.isolation_level, self.replica = isolation_level, replica

    # -- sleep

    def sleep(self, request: FetchPartition, replica: Replica) -> None:
        """Its reader has all there is and knows it."""
        key = request.topic, request.partition
        if self.awake.pop(key, None) is not None:
            self.asleep[key] = replica
            replica.sleepers[self] = key

    def woken(self, key: Key, replica: Replica) -> None:
        """Something is new, or may be. Where there is no memory for that it sleeps on, until the next time."""
        request = self.awake[key] = self.partitions[key]
        del self.asleep[key], replica.sleepers[self]
        if self.replica[0] >= 0 and replica.shared is not None:
            replica.shared.slept(self.replica[0], self.last_used_ms, self.used_before_ms)
        if self.waiting is not None:
            self.waiting.woken(request, replica)

    def _rouse(self, key: Key) -> None:
        """Let a partition sleep no more, without a word to anybody but its replica."""
        replica = self.asleep.get(key)
        if replica is not None:
            self.woken(key, replica)

    def wake_all(self) -> None:
        """Look at everything with the next fetch."""
        for key in list(self.asleep):
            self._rouse(key)

    # -- answers

    def remember(self, results: Iterable[PartitionData]) -> None:
        """Note what a full answer says, to leave out what does not change."""
        for result in results:
            self.answered[result.topic, result.partition] = _state(result)

    def filter(self, results: list[PartitionData]) -> list[PartitionData]:
        """The part of an answer that is news to the client, in order, topics as neighbours; notes what it says."""
        news: list[PartitionData] = []
        for result in results:
            key = (result.topic, result.partition)
            state = _state(result)
            if result.records is not None:
                request = self.awake.pop(key, None)
                if request is not None:
                    self.awake[key] = request
            elif result.error_code == 0 and result.diverging_epoch is None and self.answered.get(key) == state:
                continue
            self.answered[key] = state
            news.append(result)
        return group_by_topic(news)


NOTHING_KNOWN = (0, -1, -1)


def _state(result: PartitionData) -> tuple[int, int, int]:
    """What a client knows of a partition besides its records. Who is told where the logs part makes use of nothing else, so that it
    would not hear of a high watermark that stays as it is."""
    if result.diverging_epoch is not None:
        return NOTHING_KNOWN
    return result.error_code, result.high_watermark, result.log_start_offset


def group_by_topic(results: list[PartitionData]) -> list[PartitionData]:
    """The same results with each topic's as neighbours, topics in the order of their first."""
    by_topic: dict[bytes, list[PartitionData]] = {}
    for result in results:
        by_topic.setdefault(result.topic, []).append(result)
    if len(by_topic) == 1:
        return results
    return [result for group in by_topic.values() for result in group]


class FetchContext:
    """How to serve one fetch request: what to read, and how to cut the answer. `error_code` other than 0 is the whole answer."""

    __slots__ = (
        "_cache",
        "_now_ms",
        "error_code",
        "incremental",
        "partitions",
        "session",
        "uses_topic_ids",
        "wants_session",
    )

    def __init__(
        self,
        cache: FetchSessionCache,
        partitions: list[FetchPartition],
        *,
        session: FetchSession | None = None,
        incremental: bool = False,
        wants_session: bool = False,
        uses_topic_ids: bool = False,
        now_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self._cache = cache
        self._now_ms = now_ms
        self.partitions = partitions
        self.session = session
        self.incremental = incremental
        self.wants_session = wants_session
        self.uses_topic_ids = uses_topic_ids
        self.error_code = error_code

    def look(self, isolation_level: int, replica: tuple[int, int]) -> None:
        """See what is to be read now for this reader (a follower's node id and broker epoch, -1 where it is none): in a session what is
        awake."""
        session = self.session
        if session is not None:
            session.begin(isolation_level, replica)
            self.partitions = list(session.awake.values())

    def answer(self, results: list[PartitionData]) -> tuple[int, list[PartitionData]]:
        """The session id and the results to send; called once, when the answer goes out."""
        if self.session is not None:
            return self.session.session_id, self.session.filter(results)
        if self.wants_session:
            session = self._cache.create(self.uses_topic_ids, self.partitions, self._now_ms)
            if session is not None:
                session.remember(results)
                return session.session_id, results
        return NO_SESSION, results


class FetchSessionCache:
    """All fetch sessions of a broker, the least recently used first. Loop thread only.

    Invariant: at most `slots` sessions.
    """

    def __init__(self, slots: int, random_id: Callable[[], int] = lambda: random.randint(1, INT32_MAX)) -> None:
        self.slots = slots
        self.sessions: dict[int, FetchSession] = {}
        self._random_id = random_id

    def begin(
        self,
        session_id: int,
        epoch: int,
        partitions: list[FetchPartition],
        forgotten: list[Key],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        """Classify a request as Kafka's FetchManager does, and update its session."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id in self.sessions:
                self._end(session_id)
            wants = epoch == INITIAL_EPOCH and bool(partitions)
            return FetchContext(self, partitions, wants_session=wants, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        session = self.sessions.get(session_id)
        if session is None:
            return FetchContext(self, [], error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchContext(self, [], error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext(self, [], error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(partitions, forgotten)
        session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        session.used_before_ms, session.last_used_ms = session.last_used_ms, now_ms
        del self.sessions[session_id]
        if not session.partitions:  # and so nothing sleeps
            return FetchContext(self, [])  # nothing is left of it: closed, as Kafka does
        self.sessions[session_id] = session
        return FetchContext(self, list(session.awake.values()), session=session, incremental=True)

    def create(self, uses_topic_ids: bool, partitions: list[FetchPartition], now_ms: int) -> FetchSession | None:
        """A new session, or None when the cache is full of sessions in use."""
        if len(self.sessions) >= self.slots:
            if self.slots <= 0:
                return None
            oldest = next(iter(self.sessions.values()))
            if now_ms - oldest.last_used_ms < EVICTION_MS:
                return None
            self._end(oldest.session_id)
        session_id = self._random_id()
        while session_id in self.sessions:
            session_id = self._random_id()
        session = FetchSession(session_id, uses_topic_ids, partitions, now_ms)
        self.sessions[session_id] = session
        return session

    def _end(self, session_id: int) -> None:
        session = self.sessions.pop(session_id)
        session.waiting = None
        session.wake_all()  # no replica knows it any more
