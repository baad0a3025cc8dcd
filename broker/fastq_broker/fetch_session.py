"""Incremental fetch sessions (KIP-227): the broker remembers a client's partitions, the client sends what changed.

Rules
- Epoch 0 asks for a new session, -1 closes one or asks for none, any other continues one and must be the next in turn.
- An incremental answer leaves out a partition that has no records, no error and nothing new; errors are always resent.
- Of a partition whose reader has all there is, and has been told so, nothing is read until the log or its leader has moved: a session of
  hundreds of partitions reads the few that are at work.
- Partitions that brought records go to the end of the session's order, so that none starves under the size limits.
- Idleness counts on a monotonic clock.
- The cache is bounded: the session unused for longest gives way once it has been idle for EVICTION_MS; else there is no
  session, and the client goes on with full requests.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

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
EVICTION_MS = 120_000
INT32_MAX = 2**31 - 1


class Settled:
    """A partition as it was when its reader had all of it: nothing is new there while `holds` says so."""

    __slots__ = (
        "_high_watermark",
        "_last_stable_offset",
        "_leader_epoch",
        "_leader_id",
        "_log",
        "_log_start_offset",
        "replica",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._log = log = replica.log
        self._high_watermark = log.high_watermark
        self._last_stable_offset = log.last_stable_offset
        self._log_start_offset = log.log_start_offset
        self._leader_epoch = replica.leader_epoch
        self._leader_id = replica.leader_id

    def holds(self) -> bool:
        """Whether a read would find what the last one has found. A replica that is gone has no leader."""
        log, replica = self._log, self.replica
        return (
            log.high_watermark == self._high_watermark
            and log.last_stable_offset == self._last_stable_offset
            and log.log_start_offset == self._log_start_offset
            and replica.leader_epoch == self._leader_epoch
            and replica.leader_id == self._leader_id
        )


class FetchSession:
    """One client's session. Loop thread only.

    Invariants: `answered` has an entry (error, high watermark, log start) for a partition once it was in an answer; `settled` has entries
    for requests in `partitions` alone, each told to the client, and read under `isolation_level`.
    """

    __slots__ = (
        "answered",
        "epoch",
        "isolation_level",
        "last_used_ms",
        "partitions",
        "session_id",
        "settled",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, uses_topic_ids: bool, partitions: Iterable[FetchPartition], now_ms: int
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms
        self.partitions: dict[Key, FetchPartition] = {
            (request.topic, request.partition): request for request in partitions
        }
        self.answered: dict[Key, tuple[int, int, int]] = {}
        self.settled: dict[FetchPartition, Settled] = {}
        self.isolation_level = 0

    def update(self, changed: Iterable[FetchPartition], forgotten: Iterable[Key]) -> None:
        """Take over what an incremental request says."""
        partitions, settled = self.partitions, self.settled
        for request in changed:
            key = request.topic, request.partition
            settled.pop(partitions.get(key, request), None)
            partitions[key] = request
        for key in forgotten:
            known = partitions.pop(key, None)
            if known is not None:
                settled.pop(known, None)
            self.answered.pop(key, None)

    def settled_under(self, isolation_level: int) -> dict[FetchPartition, Settled]:
        """What need not be read again by a request of this isolation level."""
        if isolation_level != self.isolation_level:
            self.isolation_level = isolation_level
            self.settled.clear()
        return self.settled

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
                request = self.partitions.pop(key, None)
                if request is not None:
                    self.partitions[key] = request
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
            if session_id != NO_SESSION:
                self.sessions.pop(session_id, None)
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
        session.last_used_ms = now_ms
        del self.sessions[session_id]
        if not session.partitions:
            return FetchContext(self, [])  # nothing is left of it: closed, as Kafka does
        self.sessions[session_id] = session
        return FetchContext(self, list(session.partitions.values()), session=session, incremental=True)

    def create(self, uses_topic_ids: bool, partitions: list[FetchPartition], now_ms: int) -> FetchSession | None:
        """A new session, or None when the cache is full of sessions in use."""
        if len(self.sessions) >= self.slots:
            if self.slots <= 0:
                return None
            oldest = next(iter(self.sessions.values()))
            if now_ms - oldest.last_used_ms < EVICTION_MS:
                return None
            del self.sessions[oldest.session_id]
        session_id = self._random_id()
        while session_id in self.sessions:
            session_id = self._random_id()
        session = FetchSession(session_id, uses_topic_ids, partitions, now_ms)
        self.sessions[session_id] = session
        return session
