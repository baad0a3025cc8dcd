"""The partitions that a consumer has, where each of them stands, and how that is found out. Sans-I/O.

Rules
- A partition's answer counts only if its generation is still the one that asked: seek, assign and reset drop the rest.
- An error of a partition is raised once, by the next call of the user; the partition is then tried again after a pause,
  or not until a seek when trying again cannot help. One that may pass is not raised: the log tells of it when it lasts (`troubles`).
Source: Kafka's OffsetsRequestManager and SubscriptionState.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial

from fastq.consumer.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ConsumerConfig
from fastq.consumer.effects import Outgoing
from fastq.consumer.offsets import (
    LEADER_EPOCH_API,
    LIST_OFFSETS_API,
    MOVED,
    epoch_ends_answered,
    leader_epochs_request,
    list_offsets_request,
    offsets_answered,
)
from fastq.consumer.partition import PartitionState, Phase
from fastq.errors import (
    ErrorCode,
    FastqError,
    KafkaError,
    LeaderNotAvailable,
    OffsetOutOfRange,
    ProtocolError,
    UnsupportedVersion,
    error_for_code,
)
from fastq.metadata import ZERO_UUID, ClusterMetadata, TopicPartition
from fastq.net.backoff import backoff_s
from fastq.net.diagnosis import no_leader
from fastq.net.troubles import Troubles
from fastq.protocol.messages import (
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)

logger = logging.getLogger("fastq.consumer")

MOVED_BACKOFF_MS = 20
"""The first pause where a leader that was named refuses: it hears of its office a moment later than others."""


class AssignedPartitions:
    """Invariants: `buffered_bytes` is the sum over the partitions; `_order` holds every assigned partition once, the one handed out last
    at its end; so does `_fetch_order`, the one that records came for last at its end. Thread rule: under the driver's lock.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        metadata: ClusterMetadata,
        wall_clock_ms: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.buffered_bytes = 0
        self.wants_metadata: str | None = None  # why, when a refresh would help
        self.troubles = Troubles(logger)  # of this consumer: its group's too
        # Whose topics are others by now, until the group's session has heard of it.
        self.made_anew: set[TopicPartition] = set()
        self._wall_clock_ms = wall_clock_ms
        self._random = rng
        self._order: deque[PartitionState] = deque()
        # Not `partitions`, which metrics() of another thread may go through; and what moves in it needs no memory.
        self._fetch_order: OrderedDict[PartitionState, None] = OrderedDict()
        self._errors: deque[FastqError] = deque()
        self._questions: Counter[int] = Counter()  # on their way about where to begin or go on, by node
        self._generation = -1  # of the metadata that was looked at last

    # -- what the user decides

    def assign(self, partitions: Iterable[TopicPartition], initial: Phase = Phase.RESET) -> None:
        """Replace the assignment; partitions that stay keep their position and what is prefetched. `initial`: what the others
        need first, RESET or COMMITTED."""
        wanted, fetch_bytes = dict.fromkeys(partitions), self.config.max_partition_fetch_bytes
        gone = [state for tp, state in self.partitions.items() if tp not in wanted]
        fresh = [PartitionState(tp, fetch_bytes, initial) for tp in wanted if tp not in self.partitions]
        try:
            for state in fresh:
                self._order.append(state)
                self._fetch_order[state] = None
                self.partitions[state.tp] = state
        except BaseException:  # no memory: it is done as a whole, or not at all
            for state in fresh:
                self.partitions.pop(state.tp, None)
                self._fetch_order.pop(state, None)
                if state in self._order:
                    self._order.remove(state)
            raise
        for state in gone:
            del self.partitions[state.tp], self._fetch_order[state]
            state.generation += 1
            self.buffered_bytes -= state.drop_chunks()
            self._order.remove(state)
            self.troubles.forget(state.tp)
        self._generation = -1

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Go on at `offset`: what is prefetched or on its way is dropped. With the leader epoch of the record before it, the leader is
        asked first whether that record is still there (KIP-320)."""
        state = self.partitions[tp]
        self.buffered_bytes -= state.move(offset, leader_epoch)
        if leader_epoch >= 0:
            state.phase = Phase.VALIDATE
        else:
            state.sought = True

    def go_back(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Go on at `offset`, which was read a moment ago."""
        self.buffered_bytes -= self.partitions[tp].move(offset, leader_epoch)

    def fetch_again(self, state: PartitionState) -> None:
        """Let go of what is prefetched of a partition, or on its way: it is fetched again, from the position on."""
        offset, epoch, left = state.position, state.position_epoch, self.buffered_bytes - state.buffered_bytes
        phase = Phase.VALIDATE if state.phase is Phase.VALIDATE and epoch >= 0 else Phase.FETCH
        state.move(offset, epoch)  # the last that asks for memory
        state.phase = phase
        self.buffered_bytes = left

    def forget_position(self, tp: TopicPartition) -> None:
        """Go on at what the group has committed, once that is known; what is prefetched or on its way is dropped."""
        self.buffered_bytes -= self.partitions[tp].forget_position()

    def reset(self, tp: TopicPartition, timestamp: int | None) -> None:
        """Go on at the offset of `timestamp`, as ListOffsets understands it; None for what the policy says."""
        state = self.partitions[tp]
        self.buffered_bytes -= state.move(-1)
        state.begin_reset(timestamp)

    # -- errors and pauses

    def add_error(self, error: FastqError) -> None:
        """Something for the next call to raise."""
        self._errors.append(error)

    def take_error(self) -> FastqError | None:
        """The oldest error that was not raised yet."""
        return self._errors.popleft() if self._errors else None

    def _pause(self, state: PartitionState, now: float) -> None:
        """Leave a partition alone for a while."""
        state.attempts += 1
        state.retry_at = now + self._pause_s(state)

    def _pause_s(self, state: PartitionState) -> float:
        """How long one that has failed is left alone. Of another leader it is not known that it refuses."""
        if not state.moves:
            return self._backoff_s(state.attempts)
        config = self.config
        first_ms = min(config.retry_backoff_ms, MOVED_BACKOFF_MS)
        return backoff_s(first_ms, config.retry_backoff_max_ms, max(state.attempts, state.moves) - 1, self._random)

    def _refused(self, state: PartitionState, now: float) -> None:
        """An offset is not to be had where it was asked for: the first time it is asked for elsewhere at once, then after pauses. What
        is found out about it meanwhile does not end them: only a fetch that works does."""
        state.refusals += 1
        state.retry_at = now + self._backoff_s(state.refusals - 1)

    def _backoff_s(self, failures: int) -> float:
        return backoff_s(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, failures, self._random)

    def _broker(self, node_id: int) -> str:
        node = self.metadata.nodes.get(node_id)
        return f"node {node_id}" if node is None else str(node)

    def _unanswered(self, state: PartitionState, what: str, error: FastqError | None, now: float) -> None:
        """Nothing was answered about a partition: it is asked for again."""
        self._no_answer(what, error)
        self._pause(state, now)
        if error is None:
            left_out = ProtocolError(
                f"{what}: an answer leaves it out", topic=state.tp.topic, partition=state.tp.partition
            )
            self.troubles.failed(state.tp, "read", left_out, now)

    def _no_answer(self, what: str, error: FastqError | None) -> None:
        """A request got no answer: it is sent again; but an answer that is rubbish is for the user to know."""
        self.wants_metadata = f"{what}: {error}"
        if isinstance(error, ProtocolError) and not any(isinstance(known, ProtocolError) for known in self._errors):
            self._errors.append(error)

    def _leaderless(self, state: PartitionState, now: float) -> None:
        """There is nobody to ask about a partition. That it is not there at all is TopicWatch's to say."""
        self.wants_metadata = f"{state.tp} has no known leader"
        if self.metadata.partition(*state.tp) is not None:
            why = partial(no_leader, self.metadata, *state.tp)
            self.troubles.failed(state.tp, "read", why, now, cause=LeaderNotAvailable)

    def _passing(self, node_id: int, state: PartitionState, code: int, what: str, now: float) -> None:
        """A broker has answered with what may pass: somebody else leads, or will."""
        self.wants_metadata = f"{error_for_code(code).name} for {state.tp}"
        self.troubles.failed(state.tp, "read", partial(self._error, node_id, state, code, what), now, cause=code)

    def _report(self, node_id: int, state: PartitionState, code: int, what: str) -> None:
        """Have an error raised, once: the retries that fail alike say nothing new."""
        if state.reported != code:
            state.reported = code
            self._errors.append(self._error(node_id, state, code, what))

    def _error(self, node_id: int, state: PartitionState, code: int, what: str) -> KafkaError:
        return error_for_code(
            code, what, broker=self._broker(node_id), topic=state.tp.topic, partition=state.tp.partition
        )

    def _out_of_range(self, node_id: int, state: PartitionState, offset: int, now: float) -> None:
        if state.preferred_replica >= 0:
            # A follower may lag: ask the leader.
            state.preferred_replica = -1
            self._refused(state, now)
            what = f"a follower, which is to be read from, has no offset {offset} (yet)"
            refused = partial(self._error, node_id, state, ErrorCode.OFFSET_OUT_OF_RANGE, what)
            self.troubles.failed(state.tp, "read", refused, now, cause=ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        if self.config.auto_offset_reset == "none":
            state.phase = Phase.FAILED
            self._errors.append(
                self._error(
                    node_id,
                    state,
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is not in the log and auto_offset_reset='none': seek() to go on",
                )
            )
            return
        state.begin_reset(None)
        state.began = None  # nor is that where the log is read from now on
        self._refused(state, now)
        # Each time that it is refused twice as often: a log may answer an offset that it then refuses, for hours.
        if state.refusals & (state.refusals - 1) == 0:
            logger.warning(
                "%s refuses offset %d of %s-%d, which is not in the log (any more)%s: going on at auto_offset_reset=%s",
                self._broker(node_id),
                offset,
                *state.tp,
                f", {state.refusals} times by now" if state.refusals > 1 else "",
                self.config.auto_offset_reset,
            )

    # -- where to begin, and whether that is still there

    def _may_reset(self, state: PartitionState) -> bool:
        """False, and an error, for a partition without an offset under the policy none."""
        if state.reset_timestamp is None:
            state.reset_timestamp = self.config.reset_timestamp(self._wall_clock_ms())
        if state.reset_timestamp is not None:
            return True
        state.phase = Phase.FAILED
        self._errors.append(
            OffsetOutOfRange(
                f"no offset for {state.tp.topic}-{state.tp.partition} and auto_offset_reset='none': seek() first",
                topic=state.tp.topic,
                partition=state.tp.partition,
            )
        )
        return False

    def _list_offsets(self, node_id: int, states: list[PartitionState]) -> Outgoing:
        """Where to begin, for partitions without an offset."""
        asked = {state.tp: (state, state.generation) for state in states}
        request = list_offsets_request(
            ((state.tp, state.leader_epoch, state.reset_timestamp or 0) for state in states), self.config.read_committed
        )

        def done(response: ListOffsetsResponse | None, error: FastqError | None, now: float) -> None:
            self._questions[node_id] -= 1
            answers = {} if response is None else offsets_answered(response)
            for tp, (state, generation) in asked.items():
                if state.generation != generation or state.phase is not Phase.RESET:
                    continue
                state.requested = False
                answer = answers.get(tp)
                if answer is None:
                    self._unanswered(state, f"no offset for {tp}", error, now)
                elif answer.error_code != 0:
                    self._reset_error(node_id, state, answer.error_code, now)
                else:
                    self._found_offset(state, answer, now)

        return self._asking(states, Outgoing(node_id, LIST_OFFSETS_API, lambda version: request, None, done))

    def _asking(self, states: list[PartitionState], outgoing: Outgoing) -> Outgoing:
        """A question counts as sent."""
        each = iter(states)
        self._questions[outgoing.node_id] += 1  # the last that asks for memory
        for state in each:
            state.requested = True
        return outgoing

    def _found_offset(
        self, state: PartitionState, answer: ListOffsetsResponse.ListOffsetsPartitionResponse, now: float
    ) -> None:
        if answer.offset < 0:
            # No record is that young: everything there is, is older. Begin at the end, as a duration means to.
            at_end = state.reset_timestamp == LATEST_TIMESTAMP
            state.begin_reset(LATEST_TIMESTAMP)
            if at_end:  # and a log without an end has one later
                self._pause(state, now)
            return
        state.fetch_offset = answer.offset
        state.offset_epoch = answer.leader_epoch
        state.phase = Phase.FETCH
        state.attempts = 0
        logger.debug("%s-%d goes on at offset %d", *state.tp, answer.offset)

    def _reset_error(self, node_id: int, state: PartitionState, code: int, now: float) -> None:
        self._pause(state, now)
        what = "its offset could not be learned"
        if code in MOVED:
            self._passing(node_id, state, code, what, now)
        else:
            self._report(node_id, state, code, what)

    def _check_leaders(self, now: float) -> None:
        """The metadata changed: offsets that were read under an older leader epoch are to be checked, and a pause that an older leader
        was the reason of is over."""
        anew: dict[str, dict[int, int]] = {}
        for state in self.partitions.values():
            topic = self.metadata.topic(state.tp.topic)
            if topic is not None and topic.topic_id not in (state.topic_id, ZERO_UUID):
                if state.topic_id != ZERO_UUID:
                    self._made_anew(state, anew)
                state.topic_id = topic.topic_id
            found = self.metadata.partition(*state.tp)
            if found is None or found.leader_epoch <= state.leader_epoch:
                continue
            if state.phase is Phase.FETCH and state.leader_epoch >= 0:
                # What the leader before may still answer is not waited for: it may stand still.
                state.generation += 1
                state.requested = False
                if state.offset_epoch >= 0:
                    state.phase = Phase.VALIDATE
            state.leader_epoch = found.leader_epoch
            state.preferred_replica = -1
            if state.attempts and not state.refusals:
                state.moves += 1
                state.retry_at = min(state.retry_at, now + self._pause_s(state))
        for name, read in anew.items():
            logger.warning(
                "%s was deleted and made anew, after these partitions of it were read up to these offsets: %s; going on at the beginning "
                "of their new logs",
                name,
                ", ".join(f"{partition}: {offset}" for partition, offset in sorted(read.items())),
            )

    def _made_anew(self, state: PartitionState, anew: dict[str, dict[int, int]]) -> None:
        """The topic was deleted and another has its name: where the old one was read up to says nothing about the new one, of which all
        is to be read, as nothing of it was. Kafka's own consumer goes on at the old offset; so records are passed over."""
        self.made_anew.add(state.tp)
        state.leader_epoch = -1
        state.began = None
        if state.phase is Phase.COMMITTED:
            return
        if state.phase is Phase.RESET:
            state.generation += 1
            state.requested = False
            return
        read = state.position
        if state.sought and state.phase is Phase.FETCH:  # a number, and nothing of the old topic was read at it
            self.buffered_bytes -= state.move(read)
            state.sought = True
            return
        self.buffered_bytes -= state.move(-1)
        if self.config.auto_offset_reset == "none":
            state.fetch_offset = read  # as after any other offset that is not there
            state.phase = Phase.FAILED
            self._errors.append(
                OffsetOutOfRange(
                    f"{state.tp.topic}-{state.tp.partition} was deleted and made anew, after it was read up to offset {read}, and "
                    "auto_offset_reset='none': seek() to go on",
                    topic=state.tp.topic,
                    partition=state.tp.partition,
                )
            )
            return
        state.begin_reset(EARLIEST_TIMESTAMP)
        if self.metadata.partition(*state.tp) is not None:
            anew.setdefault(state.tp.topic, {})[state.tp.partition] = read

    def _check_epochs(self, node_id: int, states: list[PartitionState]) -> Outgoing:
        """Ask the new leader where the epoch of the last record read ended: before it, that record is gone."""
        asked = {state.tp: (state, state.generation) for state in states}
        request = leader_epochs_request((state.tp, state.leader_epoch, state.offset_epoch) for state in states)

        def done(response: OffsetForLeaderEpochResponse | None, error: FastqError | None, now: float) -> None:
            self._questions[node_id] -= 1
            answers = {} if response is None else epoch_ends_answered(response)
            for tp, (state, generation) in asked.items():
                if state.generation != generation or state.phase is not Phase.VALIDATE:
                    continue
                state.requested = False
                answer = answers.get(tp)
                if answer is None and isinstance(error, UnsupportedVersion):
                    state.phase = Phase.FETCH  # a broker that cannot tell
                elif answer is None:
                    self._unanswered(state, f"{tp} could not be checked against its new leader", error, now)
                elif answer.error_code != 0:
                    self._reset_error(node_id, state, answer.error_code, now)
                else:
                    self._checked(node_id, state, answer.leader_epoch, answer.end_offset)

        return self._asking(states, Outgoing(node_id, LEADER_EPOCH_API, lambda version: request, None, done))

    def _checked(self, node_id: int, state: PartitionState, epoch: int, end_offset: int) -> None:
        """The new leader's answer: go on, or the log was cut below where we stand."""
        state.phase = Phase.FETCH
        state.attempts = 0
        if end_offset >= state.fetch_offset:
            return
        if end_offset >= 0:
            message = (
                f"the log of {state.tp.topic}-{state.tp.partition} was truncated to offset {end_offset} when its leader "
                f"changed; records up to {state.fetch_offset} had been read"
            )
        else:
            message = (
                f"the leader of {state.tp.topic}-{state.tp.partition} does not know leader epoch {state.offset_epoch}, in "
                f"which records up to {state.fetch_offset} had been read: the topic was made anew, or is another cluster's"
            )
        if self.config.auto_offset_reset == "none":
            state.phase = Phase.FAILED
            self._errors.append(
                self._error(node_id, state, ErrorCode.OFFSET_OUT_OF_RANGE, f"{message}: seek() to go on")
            )
            return
        where = "there" if end_offset >= 0 else f"at auto_offset_reset={self.config.auto_offset_reset}"
        logger.warning("%s; going on %s", message, where)
        if end_offset < 0:
            # The leader knows nothing of that epoch: only the policy can say where to go on.
            self.reset(state.tp, None)
        else:
            self.buffered_bytes -= state.move(min(state.position, end_offset), epoch)
