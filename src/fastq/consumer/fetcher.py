"""The fetcher: what to ask of whom for the assigned partitions, and what is ready to be handed out. Sans-I/O.

Rules
- `requests(now, ...)` answers what to send; every answer comes back through the `done` of its request, in any order.
- One fetch in flight a broker, within its session. The next one goes out as soon as the answer is here, before any of its
  records is handed out, for the partitions that have room.
- While nothing arrives, requests are few, whatever a broker does: an answer without news that came before its time, an offset that is
  refused again and again, a session that is never known, each is followed by a pause that grows (test_fetch_budget counts).
- Partitions are asked for in turns, those that records came for last behind the others: a broker without a session fills its answer in
  the order of the request.
- Everything prefetched, and everything that a fetch on its way may bring, stays below `prefetch_bytes_max`. What may not be handed out
  (of a paused partition, or outside of `until`) keeps no other partition from being fetched: it is let go of, and fetched again later.
- A partition's answer counts only if its generation is still the one that asked: seek, assign and reset drop the rest.
Source: Kafka's Fetcher.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial

from fastq._native.consume import FetchedRecords
from fastq._native.fetch import FetchedPartition, FetchedResponse, decode_fetch_response
from fastq._native.fetch_request import encode_fetch_request
from fastq.consumer.assigned import AssignedPartitions
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.offsets import MOVED
from fastq.consumer.partition import PartitionState, Phase
from fastq.consumer.session import FINAL_EPOCH, FetchSession, Wanted
from fastq.errors import (
    ConnectionFailed,
    ErrorCode,
    FastqError,
    KafkaError,
    error_for_code,
)
from fastq.metadata import ClusterMetadata, Node, TopicPartition
from fastq.net.backoff import backoff_s
from fastq.net.diagnosis import request_timed_out

logger = logging.getLogger("fastq.consumer")

TOPIC_IDS_FROM = 13
FETCH_API = 1
NO_ID = bytes(16)
END_BYTES_MAX = 2**31 - 1  # of a fetch that asks for nothing
# How long to wait for a connection to the replica that a leader recommended, before asking the leader again.
REPLICA_PATIENCE_S = 2.0
# A partition may be fetched while it holds less than this many fetches' worth: one is read while the next comes.
CHUNKS_AHEAD = 2
# A fetch waits until one part in so many of prefetch_bytes_max is free, as many small ones cost more than a few large ones: while
# something is at hand, which makes room as it is handed out; and while nothing is, so that somebody may be waiting.
ROOM_BESIDE, ROOM_AT_LEAST = 4, 16
NO_LIMIT = 2**63 - 1
# A fetch that is not answered so long after it should have been waits for a broker that stands still.
LATE_S = 1.0
# The first pause after an answer without news that was not waited for; it doubles up to fetch_max_wait_ms.
QUIET_MS = 10

NOT_SENT = ConnectionFailed("the request was not sent: there was no memory for it")
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fetcher(AssignedPartitions):
    """Fetches all assigned partitions of one consumer.

    Invariants: `reserved_bytes` is what the fetches on their way may bring; `made_room` says that something was let go of since `requests`
    last looked, so that a fetch may go out that had no room then. Thread rule: under the driver's lock.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        metadata: ClusterMetadata,
        *,
        wall_clock_ms: Callable[[], int],
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(config, metadata, wall_clock_ms, rng or random.Random())
        self.reserved_bytes = 0
        self.made_room = False
        # Fetch nothing at or above these offsets, nor other partitions.
        self.until: Mapping[TopicPartition, int] | None = None
        self.counters: defaultdict[str, int] = defaultdict(int)
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: dict[int, float] = {}  # nodes, and since when
        self._asked_at: dict[int, float] = {}  # nodes, and when last: who had no room left is the first to have some
        # Recommended replicas that cannot be sent to, and since when, or until when they are not to be.
        self._unreachable: dict[int, float] = {}

    # -- what is ready

    def next_chunk(self, only: Mapping[TopicPartition, int] | None = None) -> FetchedRecords | None:
        """The records to hand out next, of the partition that waited longest; the caller takes them in place.

        `only`: the partitions that count, and the offset before which each of them ends; None for all, without an end.
        """
        for _ in range(2 * len(self._order)):
            state = self._order[0]
            if not state.paused and (only is None or state.tp in only):
                dropped = self._drop_exhausted(state)
                if state.chunks and not dropped:
                    chunk = state.chunks[0]
                    chunk.limit = NO_LIMIT if only is None else only[state.tp]
                    return chunk
            self._order.rotate(-1)
        return None

    def release(self, chunk: FetchedRecords) -> None:
        """`chunk` is used up, as far as its limit allows: the next partition's turn."""
        state = self.partitions.get(TopicPartition(chunk.topic, chunk.partition))
        if state is not None and self._drop_exhausted(state) and self._order[0] is state:
            self._order.rotate(-1)

    def _drop_exhausted(self, state: PartitionState) -> bool:
        """Let go of what is used up, and of what is corrupt, which is fetched again; whether there was any."""
        if not state.chunks:
            return False
        before = len(state.chunks)
        if state.chunks[0].broken:
            self.made_room = True
            self.fetch_again(state)
        while state.chunks and state.chunks[0].position >= state.chunks[0].end_position:
            chunk = state.chunks.popleft()
            state.buffered_bytes -= chunk.size_bytes
            self.buffered_bytes -= chunk.size_bytes
            self.made_room = True
        return len(state.chunks) < before

    def next_wakeup(self, now: float) -> float | None:
        """Seconds until a partition, or a broker, that is left alone for a while is to be asked again; None when none is."""
        waiting = [state.retry_at - now for state in self.partitions.values() if state.retry_at > now]
        waiting += [session.quiet_until - now for session in self._sessions.values() if session.quiet_until > now]
        waiting += [
            late_at - now if (late_at := self._late_at(sent_at)) > now else LATE_S
            for sent_at in self._in_flight.values()
        ]
        return min(waiting) if waiting else None

    # -- what to send

    def requests(self, now: float, can_send: Callable[[int], bool]) -> list[Outgoing]:
        """Requests to send now. `can_send(node_id)` says whether that broker is ready for one."""
        self.made_room = False
        if self.metadata.generation != self._generation:
            self._generation = self.metadata.generation
            self._check_leaders(now)
        self._tell_late(now)
        due = [state for state in self._fetch_order if not (state.requested or state.retry_at > now)]
        if not due:
            return []
        resets: defaultdict[int, list[PartitionState]] = defaultdict(list)
        checks: defaultdict[int, list[PartitionState]] = defaultdict(list)
        fetches: defaultdict[int, list[PartitionState]] = defaultdict(list)
        full: set[int] = set()
        for state in due:
            if state.phase is Phase.FAILED or state.phase is Phase.COMMITTED:
                continue
            node_id = self._node_of(state, now)
            if node_id < 0:
                self._leaderless(state, now)
            elif state.phase is Phase.RESET:
                if self._may_reset(state):
                    resets[node_id].append(state)
            elif state.phase is Phase.VALIDATE:
                checks[node_id].append(state)
            elif not state.paused and (self.until is None or state.fetch_offset < self.until.get(state.tp, 0)):
                if state.buffered_bytes < CHUNKS_AHEAD * state.fetch_bytes:
                    fetches[node_id].append(state)
                else:
                    full.add(node_id)
        out: list[Outgoing] = []
        try:
            self._ask(out, resets, checks, now, can_send)
            self._ask_for_records(out, fetches, full, now, can_send)
        except BaseException:  # no memory: what was made counts as sent, and is not to be waited for
            for outgoing in out:
                outgoing.done(None, NOT_SENT, now)
            raise
        return out

    def _ask(
        self,
        out: list[Outgoing],
        resets: Mapping[int, list[PartitionState]],
        checks: Mapping[int, list[PartitionState]],
        now: float,
        can_send: Callable[[int], bool],
    ) -> None:
        """Where to begin, and whether that is still there."""
        for ask, questions in ((self._list_offsets, resets), (self._check_epochs, checks)):
            for node_id, states in questions.items():
                if can_send(node_id):
                    _add(out, ask(node_id, states), now)

    def _ask_for_records(
        self,
        out: list[Outgoing],
        fetches: Mapping[int, list[PartitionState]],
        full: set[int],
        now: float,
        can_send: Callable[[int], bool],
    ) -> None:
        for node_id, states in sorted(fetches.items(), key=lambda fetch: self._asked_at.get(fetch[0], 0.0)):
            if node_id in self._in_flight or self._is_quiet(node_id, states, now):
                continue
            if not can_send(node_id):
                self._miss_replica(node_id, states, now)
            else:
                self._unreachable.pop(node_id, None)
                fetch = self._fetch(node_id, states, len(fetches), node_id in full or self._questions[node_id] > 0, now)
                if fetch is not None:
                    _add(out, fetch, now)

    def _node_of(self, state: PartitionState, now: float) -> int:
        """The broker to ask: the leader, or for fetches the replica that it recommended (KIP-392)."""
        if state.preferred_replica >= 0 and state.phase is Phase.FETCH:
            if now < state.preferred_until and state.preferred_replica in self.metadata.nodes:
                return state.preferred_replica
            state.preferred_replica = -1
        leader = self.metadata.leader(*state.tp)
        return -1 if leader is None else leader.node_id

    def _miss_replica(self, node_id: int, states: list[PartitionState], now: float) -> None:
        """A recommended replica that cannot be reached for a while is given up: the leader knows who is there."""
        recommended = [state for state in states if state.preferred_replica == node_id]
        if recommended and now >= self._unreachable.setdefault(node_id, now) + REPLICA_PATIENCE_S:
            del self._unreachable[node_id]
            self.wants_metadata = f"node {node_id}, a replica to fetch from, cannot be reached"
            for state in recommended:
                state.preferred_replica = -1

    def _is_quiet(self, node_id: int, states: list[PartitionState], now: float) -> bool:
        """Whether a broker had nothing new of just these partitions a moment ago, and did not wait for it."""
        session = self._sessions.get(node_id)
        if session is None or now >= session.quiet_until:
            return False
        return all(state.fetch_offset == state.quiet_offset for state in states)

    # -- fetching

    def _tell_late(self, now: float) -> None:
        """Have it known which brokers do not answer, as long as anything is to be read from them."""
        for node_id, sent_at in self._in_flight.items():
            if now >= self._late_at(sent_at):
                late = request_timed_out(self._broker(node_id), "Fetch", now - sent_at)
                self.troubles.failed(node_id, "read from", late, now, name=self._broker(node_id))
        for subject in [subject for subject in self.troubles.open if isinstance(subject, int)]:
            if subject not in self._in_flight and all(
                self._node_of(state, now) != subject for state in self.partitions.values()
            ):
                self.troubles.rest(subject)

    def _late_at(self, sent_at: float) -> float:
        """When the answer to a fetch that was sent then is late."""
        return sent_at + self.config.fetch_max_wait_ms / 1000 + LATE_S

    def _fetch(
        self, node_id: int, states: list[PartitionState], nodes: int, others_follow: bool, sent_at: float
    ) -> Outgoing | None:
        """The next fetch from a broker, or None when the memory bound leaves no room for it."""
        config = self.config
        room = self._room()
        if not room:
            return None
        reserved = min(config.fetch_max_bytes, room // nodes or 1, sum(state.fetch_bytes for state in states))
        wanted: dict[TopicPartition, Wanted] = {}
        asked: list[tuple[PartitionState, int, int]] = []
        by_id = True
        for state in states:
            topic = self.metadata.topic(state.tp.topic)
            topic_id = NO_ID if topic is None else topic.topic_id
            by_id = by_id and topic_id != NO_ID
            bytes_max = min(state.fetch_bytes, reserved)
            wanted[state.tp] = Wanted(topic_id, state.fetch_offset, state.leader_epoch, bytes_max)
            asked.append((state, state.generation, state.fetch_offset))
        session, all_reserved = self._sessions.setdefault(node_id, FetchSession()), self.reserved_bytes + reserved
        # While others have something ready, or will be fetched once a question is answered, a long poll for these would hold those up.
        wait_ms = 0 if others_follow else config.fetch_max_wait_ms

        def build(version: int) -> bytes:
            session_id, epoch, send, forgotten = session.plan(wanted, by_id and version >= TOPIC_IDS_FROM)
            return encode_fetch_request(
                version,
                wait_ms,
                config.fetch_min_bytes if wait_ms else 0,
                reserved,
                1 if config.read_committed else 0,
                session_id,
                epoch,
                send,
                forgotten,
                config.client_rack,
            )

        def done(response: FetchedResponse | None, error: FastqError | None, now: float) -> None:
            others_reserved = self.reserved_bytes - reserved
            if self._in_flight.pop(node_id, None) is not None:  # and not told a second time, as the first one failed
                self.reserved_bytes = others_reserved
            if self.troubles and error is None:
                self.troubles.over(node_id, now)
            for state, generation, _ in asked:
                if state.generation == generation:
                    state.requested = False
            if response is None or error is not None:
                self._fetch_lost(session, asked, error, now)
            elif self._fetched(node_id, session, asked, response, now):
                session.quiets = 0
            else:
                self._no_news(session, asked, sent_at, now)

        outgoing = Outgoing(node_id, FETCH_API, build, decode_fetch_response, done)
        self._asked_at[node_id], each = sent_at, iter(states)
        self._in_flight[node_id] = sent_at  # the last that asks for memory: it counts as sent from here on
        self.reserved_bytes = all_reserved
        for state in each:
            state.requested = True
        return outgoing

    def _room(self) -> int:
        """The bytes that a fetch may bring now, 0 when it is to wait for room."""
        most = self.config.prefetch_bytes_max
        room = most - self.buffered_bytes - self.reserved_bytes
        if room >= max(1, most // ROOM_BESIDE):
            return room
        if any(map(self._may_take, self.partitions.values())):
            return 0
        least = max(1, most // ROOM_AT_LEAST)
        if room < least:
            room += self._let_go(max(1, most // ROOM_BESIDE) - room)
        return room if room >= least else 0

    def _may_take(self, state: PartitionState) -> bool:
        """Whether anything is prefetched of a partition that may be handed out now."""
        if not state.chunks or state.paused:
            return False
        return self.until is None or state.position < self.until.get(state.tp, 0)

    def _let_go(self, enough: int) -> int:
        """Let go of what is prefetched and may not be handed out now, of one partition after the other until that is enough; answers how
        many bytes it was. None of them is fetched before that changes, for the same reason."""
        before = self.buffered_bytes
        for state in reversed(self._order):  # what would be handed out last comes first
            if before - self.buffered_bytes >= enough:
                break
            if state.chunks and not self._may_take(state):
                self._drop_exhausted(state)
                if state.chunks:
                    self.fetch_again(state)
        return before - self.buffered_bytes

    def fetch_version(self, version: int) -> int:
        """The version to use where `version` was negotiated: 12 while a topic's id is not known."""
        if version >= TOPIC_IDS_FROM:
            for tp in self.partitions:
                topic = self.metadata.topic(tp.topic)
                if topic is None or topic.topic_id == NO_ID:
                    return TOPIC_IDS_FROM - 1
        return version

    def _fetch_lost(
        self,
        session: FetchSession,
        asked: list[tuple[PartitionState, int, int]],
        error: FastqError | None,
        now: float,
    ) -> None:
        """No answer: the session is in doubt, and so is the leader."""
        session.restart()
        self.counters["fetch_errors"] += 1
        self._no_answer("a fetch failed", error)
        for state, generation, _ in asked:
            if state.generation == generation:
                if isinstance(error, KafkaError):  # what is wrong with connections is told where they are made
                    self.troubles.failed(state.tp, "read", error, now)
                state.preferred_replica = -1
                self._pause(state, now)

    def _fetched(
        self,
        node_id: int,
        session: FetchSession,
        asked: list[tuple[PartitionState, int, int]],
        response: FetchedResponse,
        now: float,
    ) -> bool:
        """Take an answer in; whether there was any news in it."""
        self.counters["fetches"] += 1
        self.counters["fetched_bytes"] += response.size_bytes
        throttle_ms = response.throttle_time_ms
        if throttle_ms > 0:  # that it cannot be sent to until then does not make it one that cannot be reached
            self._unreachable[node_id] = now + throttle_ms / 1000
        code = response.error_code
        if code != 0:
            session.lost()
            # A broker forgets sessions as it likes; but not a new one at once.
            if code not in SESSION_ERRORS or session.losses > 1:
                self._fetch_lost(session, asked, error_for_code(code, broker=self._broker(node_id)), now)
            return True
        is_full = session.is_full
        session.answered(response.session_id)
        news = False
        stray: FetchedPartition | None = None
        expected = {state.tp: (state, gen, offset) for state, gen, offset in asked}
        for part in response.partitions:
            name = part.topic if part.topic is not None else self._topic_of(part.topic_id)
            found = expected.pop(TopicPartition(name, part.partition), None) if name is not None else None
            if found is None:  # not asked for, or there a second time: that would be the same records once more
                stray = part
                continue
            news = news or part.size_bytes > 0 or part.error_code != 0 or part.preferred_read_replica >= 0
            state, generation, offset = found
            if state.generation != generation or state.phase is not Phase.FETCH:
                continue
            if part.error_code == 0:
                self._take(node_id, state, offset, part, now)
            else:
                self._learn_leader(state.tp, part, response)
                self._partition_error(node_id, state, offset, part.error_code, now)
        # A broker that throttles who asks may answer with nothing at all, as Apache Kafka does.
        is_empty = throttle_ms > 0 and not response.partitions
        if stray is not None or (is_full and expected and not is_empty):
            self._misanswered(node_id, session, stray, list(expected))
        else:
            session.misanswers = 0
        return news

    def _misanswered(
        self, node_id: int, session: FetchSession, stray: FetchedPartition | None, missing: list[TopicPartition]
    ) -> None:
        """An answer has partitions that were not asked for, or leaves out some of a full fetch: begin a new session. Said from the second
        in a row on, as a topic that is made anew has one, and each time that it were twice as many."""
        session.restart()
        session.misanswers += 1
        if session.misanswers < 2 or session.misanswers & (session.misanswers - 1):
            return
        came = ""
        if stray is not None:
            name = stray.topic or self._topic_of(stray.topic_id) or f"topic id {(stray.topic_id or NO_ID).hex()}"
            came = f" has {name}-{stray.partition} without being asked, or twice"
        if missing:
            came += f"{' and' if came else ''} leaves {missing[0]} and {len(missing) - 1} more out"
        logger.warning(
            "a Fetch answer of %s%s, %d times in a row by now: what is not as asked is dropped, and asked for again; report this to "
            "whoever runs the broker",
            self._broker(node_id),
            came,
            session.misanswers,
        )

    def _no_news(
        self, session: FetchSession, asked: list[tuple[PartitionState, int, int]], sent_at: float, now: float
    ) -> None:
        """Nothing came. An answer that waited for it is asked for again at once; of one that did not, as it was told not to or as the
        broker would not, the next one is put off, so long as the same is asked."""
        most_ms = max(QUIET_MS, self.config.fetch_max_wait_ms)
        if now - sent_at >= most_ms / 2000:
            session.quiets = 0
            return
        session.quiets += 1
        session.quiet_until = now + backoff_s(QUIET_MS, most_ms, session.quiets, self._random)
        for state, _, offset in asked:
            state.quiet_offset = offset

    def _learn_leader(self, tp: TopicPartition, part: FetchedPartition, response: FetchedResponse) -> None:
        """A broker that no longer leads may say who does (KIP-951)."""
        if part.current_leader_id >= 0:
            nodes = [Node(*node) for node in response.nodes]
            self.metadata.update_leader(*tp, part.current_leader_id, part.current_leader_epoch, nodes)

    def _topic_of(self, topic_id: bytes | None) -> str | None:
        return None if topic_id is None else self.metadata.topic_name(topic_id)

    def _take(self, node_id: int, state: PartitionState, offset: int, part: FetchedPartition, now: float) -> None:
        """Keep what came for a partition, and move its fetch offset behind it."""
        config = self.config
        state.attempts = state.moves = 0
        state.high_watermark = part.high_watermark
        state.last_stable_offset = part.last_stable_offset
        state.log_start_offset = part.log_start_offset
        if part.preferred_read_replica >= 0 and part.preferred_read_replica != node_id:
            known = part.preferred_read_replica in self.metadata.nodes
            if not known:
                what = f"node {part.preferred_read_replica}, a replica to fetch from, is not known"
                self.wants_metadata = what
                nobody = partial(self._error, node_id, state, ErrorCode.REPLICA_NOT_AVAILABLE, what)
                self.troubles.failed(state.tp, "read", nobody, now, cause=ErrorCode.REPLICA_NOT_AVAILABLE)
            if state.preferred_replica >= 0 or not known:
                # One that sends on to another, or to nobody: not round and round.
                self._refused(state, now)
            state.preferred_replica = part.preferred_read_replica if known else -1
            state.preferred_until = now + config.metadata_max_age_ms / 1000
            return
        state.refusals = 0
        state.sought = False
        if self.troubles.open:
            self.troubles.over(state.tp, now)
        if part.size_bytes == 0:
            state.reported = 0
            return
        if part.whole_bytes == 0 and _is_cut(part.records):
            self._enlarge(node_id, state, offset, now)
            return
        chunk = FetchedRecords(
            part,
            state.tp.topic,
            offset,
            check_crcs=config.check_crcs,
            read_committed=config.read_committed,
            decompressed_bytes_max=config.decompressed_batch_bytes_max,
            broker=self._broker(node_id),
            leader_epoch=state.offset_epoch,
        )
        buffered, of_all = state.buffered_bytes + chunk.size_bytes, self.buffered_bytes + chunk.size_bytes
        following, epoch = part.next_offset, part.last_leader_epoch
        state.chunks.append(chunk)  # the last that asks for memory: none of it is kept, or all
        self._fetch_order.move_to_end(state)
        state.buffered_bytes, self.buffered_bytes = buffered, of_all
        if following > offset:
            state.reported = 0
            state.fetch_offset, state.offset_epoch = following, epoch
        else:
            # Nothing that can be hopped over: the chunk raises when its turn comes, and is fetched again then.
            state.fetch_bytes = config.max_partition_fetch_bytes
            self._pause(state, now)

    def _enlarge(self, node_id: int, state: PartitionState, offset: int, now: float) -> None:
        """Not even one whole batch came, from a broker that cuts the first one too: ask for more."""
        if state.fetch_bytes < self.config.fetch_max_bytes:
            state.fetch_bytes = min(2 * state.fetch_bytes, self.config.fetch_max_bytes)
            return
        self._pause(state, now)
        what = f"the batch at offset {offset} does not fit a fetch of {state.fetch_bytes} bytes; raise fetch_max_bytes"
        self._report(node_id, state, ErrorCode.RECORD_LIST_TOO_LARGE, what)

    def _partition_error(self, node_id: int, state: PartitionState, offset: int, code: int, now: float) -> None:
        """A partition could not be fetched."""
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(node_id, state, offset, now)
            return
        self._pause(state, now)
        state.preferred_replica = -1
        what = f"the fetch at offset {offset} failed"
        if code in MOVED:
            self._passing(node_id, state, code, what, now)
        else:
            self._report(node_id, state, code, what)

    def closing_requests(self, can_send: Callable[[int], bool]) -> list[Outgoing]:
        """Fetches that end the sessions, for a polite close."""
        out = []
        for node_id, session in self._sessions.items():
            if session.session_id and node_id not in self._in_flight and can_send(node_id):
                ask = partial(_ending, session.session_id)
                out.append(Outgoing(node_id, FETCH_API, ask, decode_fetch_response, lambda response, error, now: None))
        return out


def _add(out: list[Outgoing], outgoing: Outgoing, now: float) -> None:
    try:
        out.append(outgoing)
    except MemoryError:  # it counts as sent
        outgoing.done(None, NOT_SENT, now)
        raise


def _ending(session_id: int, version: int) -> bytes:
    """The fetch that ends a session."""
    return encode_fetch_request(version, 0, 0, END_BYTES_MAX, 0, session_id, FINAL_EPOCH, {}, {}, "")


def _is_cut(records: memoryview) -> bool:
    """True when the bytes end before their first batch does, and look like a batch as far as they go."""
    if len(records) < 17:
        return True
    length = int.from_bytes(records[8:12], "big", signed=True)
    return records[16] <= 2 and length > 0 and 12 + length > len(records)
