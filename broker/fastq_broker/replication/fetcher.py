"""The follower's side of replication: one fetcher, which follows some partitions of one leader. Sans-I/O.

    add -> FETCH <-> LATEST -> EARLIEST -> FETCH            out of range: where does the leader's log end, where does it begin?
             |          |          |
             +----------+----------+-> STOPPED -> add       fenced at its own epoch, or the disk has failed

Rules
- Calls take what happened and the time, in seconds of a monotonic clock; `poll` answers what is to be done. The logs are touched at once.
- One request is on its way at most. A partition's answer counts only for the very `Position` that was asked for: whatever has moved the
  partition since, as a truncation, a new leader epoch, or going and coming back, has made another (KAFKA-18991, KAFKA-18723).
- A fetch says what this replica has, so it goes out once that is on disk, for logs that are to be synced (`durable_end`).
- Where the leader sees another history it says so in its answer, and nothing else of that answer counts. Epochs that only one of the two
  has are cut off one after the other, a fetch for each.
- Batches of a later epoch than the fetch's are not taken: they belong to a leader that this node has not heard of.
- An error costs its partition a pause, a lost request costs the fetcher one. Pauses end with a new leader epoch. A fetch that goes out
  meanwhile waits at its leader no longer than until the first pause is over: Kafka's holds who has paused up for replica.fetch.wait.max.ms.
Sources: AbstractFetcherThread, ReplicaFetcherThread, RemoteLeaderEndPoint; KIP-101, KIP-227, KIP-279, KIP-595, KIP-903.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import TypeVar

from fastq._native.fetch import FetchedPartition, FetchedResponse
from fastq._native.records import read_header, verify_crc
from fastq._native.wire import DecodeError
from fastq.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError, error_for_code
from fastq.values import NamedTuple, Value
from fastq_broker.log.files import UNREADABLE, passes
from fastq_broker.replication.catch_up import CATCH_UP_PAUSE_S, CatchUp
from fastq_broker.replication.fetcher_session import FetchPlan, FollowerSession, Key, Position, ReplicaPartition, Wanted
from fastq_broker.replication.follower_log import FollowerLog, go_back, go_back_to_gap, usable_records
from fastq_broker.replication.follower_quota import FollowerQuota, NoQuota

logger = logging.getLogger(__name__)

NEVER = float("inf")
NO_EPOCH = -1
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
LOG_STARTS_S = 1.0
"""How often logs are asked whether retention has moved their start, which the leader wants to know."""
ON_THE_WAY = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors while the news of a topic, or of a leader, is still on its way to it: it is asked again soon, and then later and later."""
SOON_S = 0.02
SESSION_ERRORS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


class Phase(Enum):
    """What a partition waits for."""

    FETCH = "fetch"
    LATEST = "latest"
    EARLIEST = "earliest"
    UNREAD = "unread"
    STOPPED = "stopped"


class Followed:
    """One partition of a fetcher. `lag`: records below the leader's high watermark that are not here, None while not known;
    `problem`: the last error, until something went well; `lost`: the leader's range did not say where to go on; `soon_s`: when it is
    asked again whether the news has come to the leader; `cut_to`: where the leader had the log cut off last."""

    __slots__ = ("cut_to", "lag", "log", "lost", "partition", "phase", "position", "problem", "retry_at", "soon_s")

    def __init__(self, partition: ReplicaPartition, log: FollowerLog) -> None:
        self.partition = partition
        self.log = log
        self.position = Position(-1, NO_EPOCH, NO_EPOCH)
        self.phase = Phase.FETCH
        self.retry_at = 0.0
        self.lag: int | None = None
        self.problem = ""
        self.lost = False
        self.soon_s = SOON_S
        self.cut_to = -1


class FetcherConfig(Value, kw_only=True):
    """Who follows, and Kafka's `replica.fetch.wait.max.ms`, `.min.bytes`, `.max.bytes`, `.response.max.bytes`, `.backoff.ms`; the pause
    between the fetches of who is far behind."""

    replica_id: int
    wait_ms: int = 500
    min_bytes: int = 1
    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    backoff_s: float = 1.0
    catch_up_pause_s: float = CATCH_UP_PAUSE_S


class SendFetch(NamedTuple):
    """Fetch; `fetched` or `failed` with this number. `wait_ms`: how long the leader may wait for records; `bytes_max`: of the answer."""

    number: int
    plan: FetchPlan
    wait_ms: int
    bytes_max: int


class SendListOffsets(NamedTuple):
    """Ask where logs of the leader begin or end; `listed` or `failed` with this number. Partitions with their leader epochs."""

    number: int
    timestamp: int
    partitions: list[tuple[ReplicaPartition, int]]


class AwaitDurable(NamedTuple):
    """Poll again once this log is on disk up to there."""

    log: FollowerLog
    offset: int


Effect = SendFetch | SendListOffsets | AwaitDurable
Said = TypeVar("Said")


class ReplicaFetcher:
    """Thread rule: one thread. `leader` is its name in messages, `way_s` how far it is, there and back; `now_ms` is wall-clock time, for
    logs.

    Invariants: every partition whose wish may differ from what the session knows is in `_changed`, or in `_waiting` (it has a `retry_at`),
    `_syncing` (until when others wait for its disk) or `_throttled`, each in the order of events, so that a seed says all;
    `_asked` are the positions of a ListOffsets on its way.
    """

    def __init__(
        self, config: FetcherConfig, leader: str, now_ms: Callable[[], int], quota: FollowerQuota | None = None
    ) -> None:
        self.config = config
        self.partitions: dict[Key, Followed] = {}
        self.leader = leader
        self.way_s = 0.0
        self._now_ms = now_ms
        self._quota = NoQuota() if quota is None else quota
        self._session = FollowerSession()
        self._effects: list[Effect] = []
        self._changed: dict[Key, None] = {}
        self._waiting: dict[Key, None] = {}
        self._syncing: dict[Key, float] = {}
        self._throttled: dict[Key, None] = {}
        self._ranging: dict[Key, Followed] = {}
        self._asked: dict[Key, Position] | None = None
        self._number = 0
        self._in_flight = False
        self._catch_up = CatchUp(config.catch_up_pause_s)
        self._retry_at = 0.0
        self._throttle_at = NEVER
        self._log_starts_at = 0.0

    # -- what is followed

    @property
    def in_flight(self) -> bool:
        """Whether a request is on its way."""
        return self._in_flight

    @property
    def is_behind(self) -> bool:
        """Whether there is much to catch up with."""
        return self._catch_up.is_behind

    def add(
        self, partition: ReplicaPartition, leader_epoch: int, log: FollowerLog, now: float, *, in_sync: bool = False
    ) -> None:
        """Follow a partition of this leader from its log's end on; a log that knows no epoch goes back to its high watermark first.

        `in_sync`: the replica is, or is eligible, as far as anybody knows: no quota holds its first fetch back, or it would fall out for
        that, and it does not go back to a gap. One that is followed already in this leader epoch goes on as it is, unless it was stopped.
        """
        key = partition.key
        known = self.partitions.pop(key, None)
        if (
            known is not None
            and known.log is log
            and known.position.leader_epoch == leader_epoch
            and known.phase is not Phase.STOPPED
        ):
            self.partitions[key] = known
            return
        self._forget(key)
        state = self.partitions[key] = Followed(partition, log)
        state.lag = 0 if in_sync else None
        self._begin(state, leader_epoch, now)

    def _begin(self, state: Followed, leader_epoch: int, now: float) -> None:
        """See where the log ends, which may load it: what a shortage, or its recovery, keeps from that is done once the pause is over."""
        log = state.log
        try:
            if log.leader_epoch == NO_EPOCH and log.high_watermark < log.log_end_offset:
                self._truncate_to(state, log.high_watermark)
            go_back_to_gap(log, state.partition, self.leader, in_sync=state.lag == 0)
            self._go_on(state, leader_epoch, now)
        except UNREADABLE as error:
            self._unread(state, error, leader_epoch, now)

    def _unread(self, state: Followed, error: KafkaError | MemoryError, leader_epoch: int, now: float) -> None:
        """The log cannot be read, or written to; where that passes it is begun with anew, as it may end elsewhere by then."""
        if not passes(error):
            self._stop(state, str(error))
        elif self._follows(state):
            position, key = Position(-1, leader_epoch, NO_EPOCH), state.partition.key
            self._changed[key] = None
            self._waiting[key] = None  # until now, at the least: there may be no memory for a pause
            state.phase, state.position = Phase.UNREAD, position
            self._syncing.pop(key, None)
            self._pause(state, str(error) or "there is no memory for it", now)

    def _can_read(self, state: Followed, now: float) -> bool:
        """Whether the log is loaded, which a shortage may have left half done since."""
        try:
            return state.log.log_start_offset >= 0
        except UNREADABLE as error:
            self._unread(state, error, state.position.leader_epoch, now)
            return False

    def remove(self, keys: Iterable[Key]) -> None:
        """Follow these no more; answers that are on their way say nothing of them."""
        for key in keys:
            if key in self.partitions:
                self._changed[key] = None  # first: there may be no memory for it, and the leader is to hear of it
                del self.partitions[key]
                self._forget(key)
        if not self.partitions:
            self._catch_up.begin()

    def _forget(self, key: Key) -> None:
        self._waiting.pop(key, None)
        self._throttled.pop(key, None)
        self._syncing.pop(key, None)
        self._ranging.pop(key, None)

    # -- what to send, and when

    def poll(self, now: float) -> list[Effect]:
        """What is to be done now."""
        if not self._in_flight:
            self._retry_at = max(self._retry_at, now + self._catch_up.rest_s())
            if now >= self._retry_at:
                self._wake(now)
                if not self._list_offsets(now):
                    self._fetch(now)
        effects, self._effects = self._effects, []
        return effects

    def next_wakeup(self, now: float) -> float:
        """When to poll again, if nothing happens before; never while an answer is waited for."""
        if self._in_flight:
            return NEVER
        if self._is_held(now):  # of what has come to the disk during a pause nobody tells again
            return self._retry_at if self._retry_at > now else min(self._syncing.values())
        due = [self.partitions[key].retry_at for key in self._waiting]
        wait_s = max(self.config.wait_ms, 1) / 1000
        # The disk tells, unless there was no memory to have it tell.
        due += [at if at > now else now + wait_s for at in self._syncing.values()]
        if self._throttled:
            due.append(self._throttle_at)
        if self._changed or self._session.known:
            due.append(now)
        return max(min(due, default=NEVER), self._retry_at)

    def _is_held(self, now: float) -> bool:
        """Whether something that came is on its way to disk: its next fetch is worth the wait of the others."""
        return bool(self._syncing) and now < min(self._syncing.values())

    def _wake(self, now: float) -> None:
        """Note whose pause or sync is over."""
        over = [key for key in self._waiting if now >= self.partitions[key].retry_at]
        for key in over:  # in one list or the other at each moment: there may be no memory for the next step
            self._changed[key] = None
            state = self.partitions.get(key)  # the directory of one before it may have failed
            if state is not None and state.phase is Phase.UNREAD:
                self._begin(state, state.position.leader_epoch, now)
            if state is None or (now >= state.retry_at and state.phase is not Phase.UNREAD):
                self._waiting.pop(key, None)
        for key in list(self._syncing):
            state = self.partitions.get(key)
            if state and self._can_read(state, now) and state.log.durable_end >= state.log.log_end_offset:
                self._changed[key] = None
                del self._syncing[key]

    def _ask(self, effect: SendFetch | SendListOffsets, asked: dict[Key, Position] | None) -> None:
        """Have it asked: it is on its way once it is sure to be, as nobody answers what there was no memory to say."""
        self._effects.append(effect)
        self._number = effect.number
        self._in_flight = True
        self._asked = asked

    def _list_offsets(self, now: float) -> bool:
        """Ask where the leader's logs end, or begin; whether there was anything to ask."""
        for phase, timestamp in ((Phase.LATEST, LATEST_TIMESTAMP), (Phase.EARLIEST, EARLIEST_TIMESTAMP)):
            due = [state for state in self._ranging.values() if state.phase is phase and now >= state.retry_at]
            if due:
                asked = {state.partition.key: state.position for state in due}
                partitions = [(state.partition, state.position.leader_epoch) for state in due]
                self._ask(SendListOffsets(self._number + 1, timestamp, partitions), asked)
                return True
        return False

    def _fetch(self, now: float) -> None:
        """Fetch what may be fetched."""
        if self._is_held(now):
            return
        if now >= self._log_starts_at:
            self._log_starts_at = now + LOG_STARTS_S
            for key, wanted in self._session.known.items():
                followed = self.partitions.get(key)
                if followed is None or not self._can_read(followed, now):
                    continue
                if followed.log.log_start_offset != wanted.log_start_offset:
                    self._changed[key] = None
        throttled = self._quota.throttled()
        self._changed |= self._throttled | dict.fromkeys(key for key in throttled if key in self.partitions)
        self._throttled.clear()
        wishes = {key: self._wanted(key, throttled, now) for key in list(self._changed)}  # which may take others away
        try:
            self._ask_for({key: wish if key in self.partitions else None for key, wish in wishes.items()}, now)
        except BaseException:
            self._session.restart()  # what it counts as told was told to nobody
            raise
        self._changed = {key: None for key in self._changed if key not in wishes}

    def _ask_for(self, wishes: Mapping[Key, Wanted | None], now: float) -> None:
        plan = self._session.plan(wishes)
        self._throttle_at = now + self.config.backoff_s
        if plan is not None:
            bytes_max = self._catch_up.bytes_max(self.config.response_bytes_max, self.way_s)
            self._ask(SendFetch(self._number + 1, plan, self._wait_ms(now), bytes_max), None)
        elif not self._throttled and not self._syncing:  # those come yet
            self._catch_up.begin()

    def _wait_ms(self, now: float) -> int:
        """How long the leader may wait for records: whose pause is over then is not to wait for those that nobody writes to."""
        pauses_s = (self.partitions[key].retry_at - now for key in self._waiting)
        return math.ceil(min(self.config.wait_ms, 1000 * min(pauses_s, default=NEVER)))

    def _wanted(self, key: Key, throttled: Collection[Key], now: float) -> Wanted | None:
        state = self.partitions.get(key)
        if state is None or state.phase is not Phase.FETCH or key in self._waiting or key in self._syncing:
            return None
        if state.lag != 0 and key in throttled:
            self._throttled[key] = None
            return None
        return Wanted(state.position, state.log.log_start_offset) if self._can_read(state, now) else None

    # -- answers

    def _is_asked(self, number: int) -> bool:
        """Whether this request is the one on its way; it is no more."""
        if not self._in_flight or number != self._number:
            return False
        self._in_flight = False
        return True

    def failed(self, number: int, now: float) -> None:
        """A request got no answer."""
        if self._is_asked(number):
            self._session.restart()
            self._catch_up.begin()
            self._retry_at = now + self.config.backoff_s

    def fetched(self, number: int, response: FetchedResponse, now: float) -> None:
        """The answer to a fetch."""
        if not self._is_asked(number):
            return
        session, code = self._session, response.error_code
        if code:
            session.lost(known=code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if code not in SESSION_ERRORS or session.losses > 1:
                logger.warning("replica fetch refused: %s", error_for_code(code, broker=self.leader, api="Fetch"))
                self._catch_up.begin()
                self._retry_at = now + self.config.backoff_s
            return
        session.answered(response.session_id)
        self._catch_up.begin()
        try:
            for part in response.partitions:
                assert part.topic_id is not None  # replicas fetch by topic id
                key = part.topic_id, part.partition
                wanted, state = session.known.get(key), self.partitions.get(key)
                if wanted is None:
                    logger.warning("%s answered a replica fetch with a partition that was not asked for", self.leader)
                    session.restart()
                    self._retry_at = now + self.config.backoff_s
                elif state is not None and state.position is wanted.position and state.phase is Phase.FETCH:
                    self._answered(state, part, now)
        except BaseException:
            session.restart()  # the leader would not tell again what it has told of the others
            raise

    def _answered(self, state: Followed, part: FetchedPartition, now: float) -> None:
        code = part.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(state, now)
        elif code:
            self._refused(state, code, now)
        elif part.diverging_epoch >= 0:
            self._guarded(self._diverged, state, part, now)
        else:
            self._guarded(self._append, state, part, now)

    def _guarded(self, take: Callable[[Followed, Said, float], None], state: Followed, said: Said, now: float) -> None:
        """Take an answer in. What is wrong with it may pass, as a shortage or a recovery; one partition holds up no other."""
        try:
            take(state, said, now)
        except (CorruptMessage, InvalidRecord, DecodeError) as error:
            self._pause(state, f"what {self.leader} sent cannot be appended: {error}", now)
        except UNREADABLE as error:
            self._unread(state, error, state.position.leader_epoch, now)
        except SystemError as error:  # the interpreter's word for some allocations that fail, as of a call's
            self._unread(state, MemoryError(str(error)), state.position.leader_epoch, now)
        except Exception as error:
            logger.exception("following %s failed", state.partition)
            self._stop(state, repr(error))

    def _refused(self, state: Followed, code: int, now: float) -> None:
        """An error in place of an answer."""
        error = error_for_code(code, broker=self.leader, topic=state.partition.topic, partition=state.partition.number)
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            self._stop(state, f"{error}; it goes on with the next leader epoch", logging.INFO)
        elif code in ON_THE_WAY and state.soon_s < self.config.backoff_s:
            delay_s, state.soon_s = state.soon_s, 2 * state.soon_s
            self._pause(state, str(error), now, logging.DEBUG, delay_s)
            state.problem = ""  # worth a line once it lasts
        else:
            self._pause(state, str(error), now)

    def _pause(
        self, state: Followed, problem: str, now: float, level: int = logging.WARNING, delay_s: float | None = None
    ) -> None:
        """Leave a partition out for a while: `delay_s`, or replica.fetch.backoff.ms."""
        if not self._follows(state):
            return
        level = logging.DEBUG if problem == state.problem else level
        delay_s = self.config.backoff_s if delay_s is None else delay_s
        logger.log(level, "%s is not fetched for %.2g s: %s", state.partition, delay_s, problem)
        state.problem = problem
        state.retry_at = now + delay_s
        self._waiting[state.partition.key] = None
        self._changed[state.partition.key] = None

    def _follows(self, state: Followed) -> bool:
        """Whether the partition is still followed: a directory that fails takes its logs away in the middle of an answer."""
        return self.partitions.get(state.partition.key) is state

    def _stop(self, state: Followed, problem: str, level: int = logging.ERROR) -> None:
        if not self._follows(state):
            return
        logger.log(level, "%s is followed no more: %s", state.partition, problem)
        key = state.partition.key
        self._changed[key] = None
        state.phase = Phase.STOPPED
        state.problem = problem
        self._forget(key)

    def _go_on(self, state: Followed, leader_epoch: int, now: float) -> None:
        """Fetch from where the log ends now."""
        log, key = state.log, state.partition.key
        position = Position(log.log_end_offset, leader_epoch, log.leader_epoch)
        self._changed[key] = None
        if log.durable_end < log.log_end_offset:
            self._syncing[key] = now + self.config.wait_ms / 1000
            self._effects.append(AwaitDurable(log, log.log_end_offset))
        state.phase, state.position = Phase.FETCH, position
        self._ranging.pop(key, None)

    # -- records

    def _append(self, state: Followed, part: FetchedPartition, now: float) -> None:
        log, position = state.log, state.position
        if log.log_end_offset != position.offset:
            self._go_on(state, position.leader_epoch, now)
            raise InvalidRecord(
                f"its log ends at {log.log_end_offset}, not where it was fetched, at {position.offset}",
                topic=state.partition.topic,
                partition=state.partition.number,
            )
        records = usable_records(part, position.leader_epoch)
        lacked = state.lag
        if len(records):
            self._make_room(log, records, part.log_start_offset)
            log.append_as_follower(records, now_ms=self._now_ms(), gently=state.lag != 0)
            self._quota.record(state.partition.key, len(records))
        if part.high_watermark >= 0:
            high_watermark = max(log.log_start_offset, min(part.high_watermark, log.log_end_offset))
            log.advance_as_follower(high_watermark, min(part.log_start_offset, high_watermark))
        state.lag = max(0, part.high_watermark - log.log_end_offset)
        self._catch_up.took(log.log_end_offset - position.offset, lacked, state.lag)
        if len(records):
            self._go_on(state, position.leader_epoch, now)
        elif part.size_bytes:
            self._pause(state, f"its next batch is of a later leader epoch than {position.leader_epoch}", now)
            return
        state.problem, state.lost, state.soon_s = "", False, SOON_S

    @staticmethod
    def _make_room(log: FollowerLog, records: memoryview, leader_start: int) -> None:
        """The leader's log may start within a batch. A log that is empty begins with that batch, and so does one that ends there: what it
        has lies below the leader's start, and may be another history, whose epochs the leader has forgotten."""
        first, end = read_header(records), log.log_end_offset
        starts_here = end <= max(log.log_start_offset, leader_start)
        if starts_here and first.base_offset < end <= first.last_offset and verify_crc(records):
            log.truncate_fully_and_start_at(first.base_offset)

    # -- another history

    def _diverged(self, state: Followed, part: FetchedPartition, now: float) -> None:
        """The leader's history leaves this one's with `diverging_epoch`, which ends there at `diverging_end_offset`."""
        log, before = state.log, state.position
        epoch, end = part.diverging_epoch, part.diverging_end_offset
        if end < 0:
            raise InvalidRecord(f"leader epoch {epoch} diverges, and ends at {end}")
        own_epoch, own_end = log.epoch_end_offset(epoch)
        if own_epoch == NO_EPOCH:
            offset = min(end, log.log_end_offset)
        elif own_epoch == epoch:
            offset = min(own_end, end)
        else:
            offset = own_end  # the leader is asked again of the epoch before
        self._truncate_to(state, offset)
        self._go_on(state, before.leader_epoch, now)
        if state.position == before:
            self._pause(state, f"the leader's epoch {epoch} ends at {end}, which takes nothing off this log", now)
        elif offset == state.cut_to:
            self._pause(
                state,
                f"the leader sends what comes after offset {end} and says that its epoch {epoch} ends there: its leader epochs are not "
                "those of its records; if this goes on, have another replica lead, stop that node and delete its leader-epoch-checkpoint",
                now,
            )
        state.cut_to = offset

    def _truncate_to(self, state: Followed, offset: int) -> None:
        go_back(state.log, state.partition, self.leader, offset)

    # -- out of range

    def _out_of_range(self, state: Followed, now: float) -> None:
        key = state.partition.key
        self._ranging[key] = state
        self._changed[key] = None
        state.phase = Phase.LATEST  # not before: who is neither fetched nor asked about is followed no more
        if state.lost:
            self._pause(state, f"its log's end {state.position.offset} is out of the leader's range", now)
        state.lost = True

    def listed(self, number: int, answers: Mapping[tuple[str, int], tuple[int, int]], now: float) -> None:
        """The answer to a SendListOffsets: error code and offset, by topic and number."""
        asked = self._asked
        if not self._is_asked(number) or asked is None:
            return
        for key, position in asked.items():
            state = self.partitions.get(key)
            if state is None or state.position is not position:
                continue
            code, offset = answers.get((state.partition.topic, state.partition.number), (-1, -1))
            if code == 0 and offset < 0:
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            if code:
                self._refused(state, code, now)
            elif state.phase is Phase.LATEST:
                self._guarded(self._leader_ends, state, offset, now)
            else:
                self._guarded(self._leader_starts, state, offset, now)

    def _leader_ends(self, state: Followed, end: int, now: float) -> None:
        """An unclean election may leave the leader with a shorter log."""
        if end < state.log.log_end_offset:
            self._truncate_to(state, end)
            state.lag = 0
            self._go_on(state, state.position.leader_epoch, now)
        else:
            state.phase = Phase.EARLIEST

    def _leader_starts(self, state: Followed, start: int, now: float) -> None:
        """Of a log that lies below the leader's start nothing is left there."""
        log = state.log
        if start > log.log_end_offset:
            logger.warning(
                "%s: the log ends at offset %d, below the leader's first, %d: it begins there anew",
                state.partition,
                log.log_end_offset,
                start,
            )
            log.truncate_fully_and_start_at(start)
        self._go_on(state, state.position.leader_epoch, now)
