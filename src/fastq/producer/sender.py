"""The sender: from queues of closed batches to Produce requests, and from answers to the fate of batches. Sans-I/O.

Rules, after Kafka's Sender:
- `run` is one turn: expire, look at the metadata, drain. It sends through the core and never waits.
- A request holds at most one batch of a partition, and never more than max_request_size, unless one batch alone does.
- The next request begins where one was full: else a partition that always has batches would leave no room to those behind it.
- At most `max_in_flight` requests a broker, and batches a partition.
- A batch gets its sequence when it is drained first (see identity.py) and keeps its order through retries.
- Who is told that somebody else leads sends there at once (KIP-951, KAFKA-15415); if that does not help, after pauses that begin small.
- Every batch is completed exactly once: by its answer, by a fatal error, or by delivery_timeout_ms.
- What holds batches back for long is told by `troubles`, and is the cause of a time-out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastq import compression
from fastq._native.accumulator import Accumulator
from fastq._native.producer_batch import CLOSING, DONE, IN_FLIGHT, OPEN, Batch, PartitionState, TopicState
from fastq.errors import (
    DeliveryTimeout,
    ErrorCode,
    FastqError,
    KafkaError,
    LeaderNotAvailable,
    ProtocolError,
    UnsupportedVersion,
    error_for_code,
)
from fastq.metadata import ZERO_UUID
from fastq.net.backoff import backoff_s
from fastq.net.core import ClientCore, EncodedRequest
from fastq.net.diagnosis import no_leader
from fastq.net.troubles import Troubles
from fastq.producer.failures import Failures
from fastq.producer.identity import ProducerIdentity, error_is_retriable
from fastq.producer.outcomes import in_doubt, leaves_in_doubt, maybe_written
from fastq.producer.produce_codec import (
    API_KEY,
    MAX_VERSION,
    MIN_VERSION,
    TOPIC_ID_VERSION,
    PartitionAnswer,
    ProduceAnswer,
    decode_produce,
    encode_produce,
)
from fastq.producer.producer_id import LOOK_AGAIN_S, ProducerIdRequests
from fastq.producer.transactions import Transactions
from fastq.protocol.api import ApiKey
from fastq.values import Value

logger = logging.getLogger("fastq.producer")

DECOMPRESSED_BYTES_MAX = 2**31 - 1
ZSTD = int(compression.Codec.ZSTD)
ZSTD_VERSION = 7
"""Of Produce: the first that may carry it."""
MOVED_BACKOFF_MS = 20
"""The first pause where a leader that was named refuses: it hears of its office a moment later than others."""


class SenderSettings(Value, kw_only=True):
    """What the sender needs of the configuration; times in seconds. `codec_of` is the codec of a topic."""

    acks: int
    idempotent: bool
    max_in_flight: int
    max_request_size: int
    request_timeout_s: float
    delivery_timeout_s: float
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    codec_of: Callable[[str], int] = lambda topic: 0


class Sender:
    """Drains an accumulator into a core.

    Invariants: a batch IN_FLIGHT belongs to exactly one request; `work` is True whenever a turn could do something
    that the last one could not. Thread rule: `run` and the completions belong to whoever holds the driver.
    """

    def __init__(
        self,
        core: ClientCore,
        accumulator: Accumulator,
        settings: SenderSettings,
        transactions: Transactions | None = None,
        failures: Failures | None = None,
    ) -> None:
        self.failures = failures if failures is not None else Failures()
        self.core = core
        self.accumulator = accumulator
        self.settings = settings
        self.transactions = transactions
        self.troubles = Troubles(logger) if transactions is None else transactions.troubles
        self.identity = ProducerIdentity() if transactions is None else transactions.identity
        if transactions is not None:
            transactions.wake = self._has_work
        self.work = True
        self.requests_total = 0
        self.retries_total = 0
        self.errors_total = 0
        self._lost_partitions: set[PartitionState] = set()  # of topics that were made anew with fewer
        self._moved: set[PartitionState] = set()  # that have another leader, and nothing came through yet
        self._drain_from: dict[int, PartitionState] = {}  # by broker: the first that its last request had no room for
        self._generation = -1
        self._producer_id = ProducerIdRequests(core, settings, self.identity, self.troubles)
        self._next_at: float | None = None

    def _has_work(self) -> None:
        self.work = True

    # -- topics ---------------------------------------------------------------------------------------------------

    def topic_ready(self, name: str, asked: int = -1) -> TopicState | None:
        """The state of a topic once its partitions are known; None before. Raises an error that waiting cannot mend.

        `asked`: how many requests there had been when the caller began. An error that answers one of these is asked for anew: the topic
        may have been allowed or made since, and nothing else would ask before metadata_max_age_ms is over.
        """
        metadata = self.core.metadata.topic(name)
        if metadata is None:
            return None
        if metadata.error and not error_is_retriable(metadata.error):
            error = error_for_code(metadata.error, topic=name)
            if self.core.metadata_updater.answered > asked:
                raise error
            self.core.request_metadata_update(f"{error.name} of {name}, a while ago")
            return None
        if not metadata.partitions:
            return None
        topic = self.accumulator.update_topic(name, len(metadata.partitions), codec=self.settings.codec_of(name))
        self._follow(topic)
        return topic

    def _follow_metadata(self) -> None:
        metadata = self.core.metadata
        if self._generation == metadata.generation:
            return
        self._generation = metadata.generation
        for name in self.accumulator.topic_names():
            known = metadata.topic(name)
            if known is not None and known.partitions:
                self._follow(self.accumulator.update_topic(name, len(known.partitions)))

    def _follow(self, topic: TopicState) -> None:
        known = self.core.metadata.topic(topic.name)
        if known is None:
            return
        if topic.topic_id != known.topic_id and ZERO_UUID not in (topic.topic_id, known.topic_id):
            self._made_anew(topic)
            self.identity.made_anew(topic, known.topic_id)
        topic.topic_id = known.topic_id
        for partition in topic.gone:
            partition.leader_id = -1
        for partition, entry in zip(topic.partitions, known.partitions, strict=False):
            moved = entry.leader_id not in (-1, partition.leader_id)
            partition.leader_id, partition.leader_epoch = entry.leader_id, entry.leader_epoch
            if moved and (partition.queue or partition.in_flight):
                self._moved.add(partition)
                for batch in partition.queue:
                    batch.retry_at_s = min(batch.retry_at_s, self.core.clock() + self._pause_s(batch))
        topic.available = [partition for partition in topic.partitions if partition.leader_id >= 0]

    def _made_anew(self, topic: TopicState) -> None:
        """The topic was deleted and made again: records of partitions that it does not have now have nowhere to go."""
        self._lost_partitions.difference_update(topic.partitions)
        self._lost_partitions.update(topic.gone)
        for partition in topic.gone:
            waiting = [*partition.queue] if partition.open is None else [*partition.queue, partition.open]
            for batch in waiting:
                self._give_up(batch, self._no_such_partition(partition))

    @staticmethod
    def _no_such_partition(partition: PartitionState) -> FastqError:
        topic = partition.topic
        return error_for_code(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the topic was made anew with {len(topic.partitions)} partitions",
            topic=topic.name,
            partition=partition.index,
        )

    # -- the turn -------------------------------------------------------------------------------------------------

    def run(self, now: float) -> float | None:
        """Do what can be done now; answers when the next turn is due without any event, or None."""
        self.work = False
        self._next_at = None
        try:
            self._run(now)
        except BaseException:  # no memory: what was not come to is for the next turn
            self.work = True
            raise
        return self._next_at

    def _run(self, now: float) -> None:
        self._expire(now)
        self._follow_metadata()
        if self.transactions is not None:
            self._step_transactions(self.transactions, now)
        elif self.settings.idempotent:
            self.identity.step()
            if not self.identity.is_known and self.accumulator.incomplete:
                self._due(self._producer_id.step(now, self._identified))
        if self.accumulator.ready:
            self._drain(now)
            if self.transactions is not None:  # the drain may have met partitions that have to be added first
                self._step_transactions(self.transactions, now)

    def _step_transactions(self, transactions: Transactions, now: float) -> None:
        self._due(transactions.step(now))

    def _due(self, when: float | None) -> None:
        if when is not None and (self._next_at is None or when < self._next_at):
            self._next_at = when

    def _expire(self, now: float) -> None:
        """Fail what has waited for delivery_timeout_ms since its first record."""
        timeout = self.settings.delivery_timeout_s
        while (batch := self.accumulator.oldest()) is not None:
            if batch.created_s + timeout > now:
                self._due(batch.created_s + timeout)
                return
            from fastq.words import counted

            sent = ("never sent", "sent once")[batch.attempts] if batch.attempts < 2 else f"sent {batch.attempts} times"
            held, cause = self._held_back(batch, now)
            error = DeliveryTimeout(
                f"{counted(len(batch), 'record')} for {_name(batch.partition)} {'was' if len(batch) == 1 else 'were'} not acknowledged "
                f"within delivery_timeout_ms={timeout * 1000:.0f}: the batch was {sent}{held}",
                topic=batch.partition.topic.name,
                partition=batch.partition.index,
                cause=cause,
            )
            self._give_up(batch, error)
            self.work = True

    def _held_back(self, batch: Batch, now: float) -> tuple[str, FastqError | None]:
        """What has kept a batch from being acknowledged, in words where it is more than its last error, and the cause."""
        partition, last = batch.partition, batch.last_error
        if partition.leader_id < 0:
            trouble = self.troubles.open.get(partition)
            since = "" if trouble is None else f" for {now - trouble.since:.1f} s"
            why = no_leader(self.core.metadata, partition.topic.name, partition.index)
            if last is not None:
                why = why.with_context(cause=last)
            return f", and no leader of it has been known{since}", why
        if last is not None:
            return "", last
        if self.settings.idempotent and not self.identity.is_known:
            return ", as there is no producer id", self.why() or self.core.unreachable()
        if self.transactions is not None and self.transactions.last_error is not None:
            return "", self.transactions.last_error
        return "", self.core.why_not(partition.leader_id)

    def why(self) -> FastqError | None:
        """What holds batches back, of one of the things that do."""
        return next((trouble.why() for trouble in self.troubles), None)

    def _drain(self, now: float) -> None:
        """Send the first batches of the ready partitions, request by request, until brokers or batches run out."""
        by_node: dict[int, list[PartitionState]] = {}
        ready = self.accumulator.ready
        for _ in range(len(ready)):
            partition: PartitionState = ready[0]
            if not partition.queue:
                ready.popleft()
                partition.in_ready = False
                if partition.queue:  # closed by another thread meanwhile
                    self.accumulator.mark_ready(partition)
                continue
            ready.rotate(-1)  # it is in there whatever fails
            if partition.leader_id < 0:
                self._leaderless(partition, now)
            else:
                by_node.setdefault(partition.leader_id, []).append(partition)
        for node_id, partitions in by_node.items():
            if self.core.can_send(node_id, now):
                self._drain_node(node_id, partitions, now)
            else:
                self._due(now + LOOK_AGAIN_S)

    def _leaderless(self, partition: PartitionState, now: float) -> None:
        name = _name(partition)
        self.core.request_metadata_update(f"no leader for {name}")
        why = partial(no_leader, self.core.metadata, partition.topic.name, partition.index)
        self.troubles.failed(partition, "written to", why, now, name=name, cause=LeaderNotAvailable)

    def _drain_node(self, node_id: int, partitions: list[PartitionState], now: float) -> None:
        in_flight = self.core.in_flight(node_id)
        first = self._drain_from.get(node_id)
        if first is not None and first in partitions:
            place = partitions.index(first)
            partitions = partitions[place:] + partitions[:place]
        while partitions and in_flight < self.settings.max_in_flight:
            batches: list[Batch] = []
            try:
                partitions = self._send_next(node_id, partitions, batches, now)
            except BaseException:  # no memory: what is in flight has a request
                for batch in batches:
                    if batch.state == IN_FLIGHT:
                        batch.attempts -= 1
                        self.accumulator.requeue(batch)
                raise
            if not batches:
                return
            in_flight += 1
            if not self.core.can_send(node_id, now):
                return

    def _send_next(
        self, node_id: int, partitions: list[PartitionState], batches: list[Batch], now: float
    ) -> list[PartitionState]:
        """Send one request, of `batches`, which are none where no partition may be drained; answers whose turn is next."""
        size = 0
        passed_over: list[PartitionState] = []
        waiting: list[PartitionState] = []
        for place, partition in enumerate(partitions):
            if not self._may_drain(partition, now):
                continue
            head: Batch = partition.queue[0]
            if batches and size + head.size_bytes > self.settings.max_request_size:
                passed_over = partitions[place:]
                break
            batches.append(head)
            self._take(partition)
            size += head.size_bytes
            if partition.queue:
                waiting.append(partition)
        following = passed_over + waiting
        if batches:
            if passed_over:
                self._drain_from[node_id] = passed_over[0]
            else:
                self._drain_from.pop(node_id, None)
            self._send(node_id, batches)  # last: what fails behind it would have them sent again
        return following

    def _may_drain(self, partition: PartitionState, now: float) -> bool:
        if not partition.queue or len(partition.in_flight) >= self.settings.max_in_flight:
            return False
        head: Batch = partition.queue[0]
        if head.state == CLOSING:
            return False
        if head.retry_at_s > now:
            self._due(head.retry_at_s)
            return False
        return not self.settings.idempotent or self.identity.may_drain(partition)

    def _take(self, partition: PartitionState) -> None:
        batch = self.accumulator.take_head(partition)
        batch.attempts += 1
        if self.settings.idempotent:
            self.identity.number(batch)
        elif not batch.sealed:
            batch.stamp(-1, -1, -1)

    def _send(self, node_id: int, batches: list[Batch]) -> None:
        oldest, newest = MIN_VERSION, MAX_VERSION
        for batch in batches:
            if batch.partition.topic.topic_id == ZERO_UUID:
                newest = TOPIC_ID_VERSION - 1
            if batch.codec == ZSTD:
                oldest = ZSTD_VERSION
        transactions, transactional_id = self.transactions, None
        if transactions is not None:
            transactional_id = transactions.transactional_id
            oldest = max(oldest, transactions.produce_version_min)
            newest = min(newest, transactions.produce_version_max)
        try:
            version = self.core.api_version(node_id, API_KEY, min_version=oldest, max_version=newest)
        except FastqError as error:
            self._failed(batches, error)
            return
        acks, timeout_ms = self.settings.acks, int(self.settings.request_timeout_s * 1000)
        body = encode_produce(version, acks, timeout_ms, batches, transactional_id)
        request = EncodedRequest(API_KEY, version, body, partial(decode_produce, version=version), acks != 0)
        self.requests_total += 1
        # By what the answer will name them: until then the topic may have been made anew, under another id.
        named = version < TOPIC_ID_VERSION
        self.identity.by_name |= named
        places = [
            ((b.partition.topic.name if named else b.partition.topic.topic_id), b.partition.index) for b in batches
        ]
        self.core.send(
            node_id,
            request,
            partial(self._answered, node_id, batches, places),
            timeout_s=self.settings.request_timeout_s,
        )

    # -- answers --------------------------------------------------------------------------------------------------

    def _answered(
        self,
        node_id: int,
        batches: list[Batch],
        places: list[tuple[str | bytes, int]],
        answer: ProduceAnswer | None,
        error: FastqError | None,
    ) -> None:
        self.work = True
        if self.transactions is not None:
            self.transactions.hold.answered(self.core.clock())
        if error is not None:
            self._failed(batches, error)
            return
        named: Mapping[tuple[str | bytes, int], PartitionAnswer] = {}
        if answer is not None:
            if answer.throttle_time_ms > 0:
                self.core.throttle(node_id, answer.throttle_time_ms / 1000, self.core.clock())
            named = {(entry.topic, entry.partition): entry for entry in answer.partitions}
        label = self.core.broker_label(node_id)
        failure: Exception | None = None
        for batch, place in zip(batches, places, strict=True):
            try:
                if answer is None:  # acks=0: the request has left
                    self._came_through(batch)
                    self.accumulator.complete(batch)
                else:
                    self._told(batch, named.get(place), answer, label)
            except Exception as error:  # the others have their answers all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def _told(self, batch: Batch, found: PartitionAnswer | None, answer: ProduceAnswer, label: str) -> None:
        """What a broker says of one batch."""
        if found is None:
            problem = ProtocolError(
                "a Produce response leaves a partition out",
                broker=label,
                api="Produce",
                topic=batch.partition.topic.name,
                partition=batch.partition.index,
            )
            self._settle(batch, problem, -1)
        elif found.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledge(batch, found)
        else:
            self._refused(batch, found, answer, label)

    def _acknowledge(self, batch: Batch, answer: PartitionAnswer) -> None:
        if self.settings.idempotent and batch.state != DONE:
            self.identity.acknowledged(batch)
        self._came_through(batch)
        offset = answer.base_offset if answer.error_code == 0 else -1
        self.accumulator.complete(batch, None, offset, answer.log_append_time_ms)

    def _came_through(self, batch: Batch) -> None:
        self._moved.discard(batch.partition)
        if self.troubles:
            self.troubles.over(batch.partition, self.core.clock())

    def _refused(self, batch: Batch, answer: PartitionAnswer, whole: ProduceAnswer, label: str) -> None:
        partition = batch.partition
        batch.record_errors = answer.record_errors
        error = error_for_code(
            answer.error_code, answer.message, broker=label, topic=partition.topic.name, partition=partition.index
        )
        if (
            answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
            and len(batch) > 1
            and not batch.in_doubt
            and batch.state != DONE
        ):
            self._split(batch, error)
            return
        if error.refresh_metadata:
            if answer.leader_id >= 0 and self.core.metadata.update_leader(
                partition.topic.name, partition.index, answer.leader_id, answer.leader_epoch, whole.nodes
            ):
                self._follow_metadata()
            self.core.request_metadata_update(f"{error.name} for {partition.topic.name}-{partition.index}")
        self._settle(batch, error, answer.log_start_offset)

    def _failed(self, batches: list[Batch], error: FastqError) -> None:
        """A whole request failed: by its connection, its time-out, or before it was sent."""
        if error.retriable:
            self.core.request_metadata_update(f"a Produce request failed: {error}")
        for batch in batches:
            self._settle(batch, error, -1)

    def _settle(self, batch: Batch, error: FastqError, log_start_offset: int) -> None:
        """Retry a batch or give it up. One that was split is in its halves by now, and one in its queue goes again, whatever failed behind
        that."""
        if batch.state == DONE or batch.children is not None:
            if self.settings.idempotent:
                if batch.children is not None:
                    self.identity.was_split(batch, batch.children)
                self.work = True
            return
        if batch.state != IN_FLIGHT:
            if batch.retry_at_s <= self.core.clock():
                batch.last_error, batch.retry_at_s = error, self.core.clock() + self._pause_s(batch)
            self.accumulator.mark_ready(batch.partition)
            return
        batch.last_error = error
        batch.in_doubt = batch.in_doubt or leaves_in_doubt(error)
        if batch.partition in self._lost_partitions:
            self.accumulator.requeue(batch)
            self._give_up(batch, self._no_such_partition(batch.partition))
            return
        if batch.attempts <= self.settings.retries and self._may_retry(batch, error, log_start_offset):
            pause = self._pause_s(batch)
            batch.retry_at_s = self.core.clock() + pause
            self.retries_total += 1
            if isinstance(error, KafkaError):  # what is wrong with connections is told where they are made
                place = batch.partition
                self.troubles.failed(place, "written to", error, self.core.clock(), name=_name(place))
            logger.debug("%r goes again in %.3f s: %s", batch, pause, error)
            self.accumulator.requeue(batch)
        else:
            self.accumulator.requeue(batch)
            self._give_up(batch, error)

    def _pause_s(self, batch: Batch) -> float:
        """How long a batch waits after its last attempt. Of another leader it is not known that it refuses."""
        settings, error = self.settings, batch.last_error
        if batch.partition in self._moved:
            first_ms = min(settings.retry_backoff_ms, MOVED_BACKOFF_MS)
            return backoff_s(first_ms, settings.retry_backoff_max_ms, batch.attempts - 1, self.core.random)
        if self.transactions is not None and error is not None:
            return self.transactions.pause_s(error, batch.attempts)
        return backoff_s(settings.retry_backoff_ms, settings.retry_backoff_max_ms, batch.attempts, self.core.random)

    def _may_retry(self, batch: Batch, error: FastqError, log_start_offset: int) -> bool:
        if isinstance(error, KafkaError) and not isinstance(error, UnsupportedVersion):
            if self.settings.idempotent:
                return self.identity.may_retry(batch, int(error.code), log_start_offset)
            return error.retriable
        return error.retriable

    def _give_up(self, batch: Batch, error: FastqError) -> None:
        self.errors_total += len(batch)
        doubt = maybe_written(batch)
        if doubt:
            error = in_doubt(error)
        if self.settings.idempotent and batch.state != OPEN:
            self.identity.failed(batch, maybe_written=doubt)
        self.accumulator.complete(batch, error)
        partition = batch.partition
        if not (partition.queue or partition.in_flight or partition.open):
            self.troubles.rest(partition)  # it may be well by the time that there is something for it
        if not self.accumulator.incomplete:
            self.troubles.rest(ApiKey.INIT_PRODUCER_ID)
        if self.transactions is not None:
            self.transactions.batch_failed(error)
        else:
            self.failures.note(len(batch), error, self.core.clock())

    def _split(self, batch: Batch, error: FastqError) -> None:
        """Halve a batch that is above the topic's max.message.bytes, as `error` says, and the size of those that follow."""
        topic, size_bytes = batch.partition.topic, batch.size_bytes
        self.accumulator.requeue(batch)  # where that fails the answer is told as an error, and the batch settled by it
        batch.attempts -= 1
        try:
            halves = self.accumulator.split(batch, _decompress)
        except MemoryError:  # it is refused once more, and split then
            logger.warning("%r is too large for its topic, and there is no memory to halve it: tried again", batch)
            pause_s = backoff_s(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms, 1, self.core.random)
            batch.retry_at_s = self.core.clock() + pause_s
            return
        except Exception as raised:  # and so it would each time
            why = ProtocolError(f"the batch cannot be halved: {raised!r}", hint="Please report it", cause=raised)
            self._give_up(batch, error.with_context(cause=why))
            return
        logger.info("%r is too large for its topic: sent again in halves", batch)
        topic.batch_bytes_max = max(min(topic.batch_bytes_max, size_bytes) // 2, 1024)
        topic.compression_ratio = 1.0
        if self.settings.idempotent:
            self.identity.was_split(batch, halves)

    def _identified(self, error: FastqError | None) -> None:
        """A broker was asked for a producer id: without one, for good, nothing can be sent."""
        self.work = True
        if error is not None:
            for batch in list(self.accumulator.incomplete):
                self._give_up(batch, error)


def _name(partition: PartitionState) -> str:
    return f"{partition.topic.name}-{partition.index}"


def _decompress(codec: int, data: Any) -> bytes:
    return compression.decompress(compression.Codec(codec), data, DECOMPRESSED_BYTES_MAX)
