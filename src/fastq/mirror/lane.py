"""A lane: some partitions of the source, copied by one transactional producer, one transaction after the other.

Rules
- A lane begins by initialising its transactional id, which fences whoever had it before, and then reads its progress: nothing is copied
  twice, whenever the other was killed. It ends, and begins anew after a pause, at each error that is not of one partition.
- The progress of a partition goes into the transaction with its records. Whatever is not committed is not done.
- A partition with an error is left out, with the reason in `failed`, and tried again after RETRY_S; the others go on. One whose next
  records are gone, where that is not to be passed over, is left out until it is another topic or the process is another.
- Topics are told apart by their ids, on both sides: what is read is of the topic that the progress is of, and what was copied to a
  topic of the target that was deleted is copied again to its successor.
- Keys, values, headers and timestamps go from the fetched bytes into the batch to be sent, natively; no object a record.
- Thread rule: `run` is the body of a thread of its own; `stop` and the attributes may be used by others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from fastq._native.columns import ConsumerBatch
from fastq._native.send_many import ManyDelivery
from fastq.consumer import Consumer
from fastq.errors import (
    ErrorCode,
    FastqError,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    TransactionError,
    WakeupError,
)
from fastq.metadata import TopicPartition
from fastq.mirror.config import MirrorConfig
from fastq.mirror.history import lost_from, marks_of
from fastq.mirror.names import state_topic
from fastq.mirror.progress import (
    Mark,
    MirrorGap,
    MirrorStopped,
    Progress,
    Run,
    TargetCut,
    is_another,
    merged,
    place_to_start,
)
from fastq.mirror.state import (
    OFFSETS_ALONE_S,
    Stopped,
    consumer_at,
    offsets_of,
    progress_key,
    read_state,
    with_open_transactions,
)
from fastq.mirror.topics import Mirrored
from fastq.producer import Producer, SendManyError
from fastq.producer.config import ProducerConfig
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.mirror")

COLUMNS = ("key", "value", "timestamp", "headers")
POLL_S = 0.2
IDLE_COMMIT_S = 1.0
RETRY_S = 30.0
AGREE_S = 0.5
PAUSE_S, PAUSE_MAX_S = 0.2, 10.0
FOREVER_S = float("inf")
RECORD_BYTES_MAX = 100 * 1024 * 1024
BUFFER_BYTES = RECORD_BYTES_MAX + 16 * 1024 * 1024
TRANSACTION_SPARE_MS = 60_000
PREFETCH_BYTES = 16 * 1024 * 1024
OF_THE_TRANSACTION = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What a partition is answered with and is not its own trouble: the lane begins anew, and leaves nothing out."""


class Work(NamedTuple):
    """What is to be mirrored, all lanes' together; a new version whenever it is another."""

    version: int
    partitions: Mapping[TopicPartition, Mirrored]


class Counts:
    """What a lane has copied since it was made; written by its thread alone. A chunk is what came of one partition at once: its latency
    is the age of its last record, by its own time, when it was in the target."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.pulled_bytes = 0
        self.transactions = 0
        self.transactions_s = 0.0
        self.chunks = 0
        self.latency_s = 0.0
        self.failures = 0
        self.lag: Mapping[TopicPartition, int | None] = {}

    def add(self, other: Counts) -> None:
        """Count what another has done too."""
        self.records += other.records
        self.bytes += other.bytes
        self.pulled_bytes += other.pulled_bytes
        self.transactions += other.transactions
        self.transactions_s += other.transactions_s
        self.chunks += other.chunks
        self.latency_s += other.latency_s
        self.failures += other.failures

    def add_chunk(self, records: int, size: int, newest_ms: int) -> None:
        """Count what is in the target now, whose last record has this time (ms); below 0: none of its own."""
        self.records += records
        self.bytes += size
        if newest_ms >= 0:
            self.chunks += 1
            self.latency_s += max(time.time() - newest_ms / 1000, 0.0)


class Failure(NamedTuple):
    """Why a partition is left out, and until when (on the lane's clock)."""

    reason: str
    until: float


class _Sent(NamedTuple):
    """Records of one partition that were handed to the producer."""

    partition: TopicPartition
    first: int
    next_offset: int
    mark: Mark
    size: int
    is_run: bool  # its offsets have no gap
    delivery: ManyDelivery


class Lane:
    """Invariants: `_progress` is what is committed; a partition is assigned to the consumer, or in `failed`, or not to be mirrored."""

    def __init__(
        self,
        number: int,
        config: MirrorConfig,
        work: Callable[[], Work],
        mine: Callable[[TopicPartition], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number = number
        self.counts = Counts()
        self.failed: dict[TopicPartition, Failure] = {}
        self.over: Exception | None = None  # why it has ended by itself, which the others cannot mend
        self._config, self._work, self._mine, self._clock = config, work, mine, clock
        self._state_topic = state_topic(config.source.alias)
        # Until the survey has seen what there is now.
        self._look_s = 2 * config.options.refresh_interval_ms / 1000 + AGREE_S
        self._stop = threading.Event()
        self._wakes: list[Callable[[], object]] = []  # each ends something that waits for the source
        self._progress: dict[TopicPartition, Progress] = {}
        self._targets: dict[TopicPartition, str] = {}
        # Of whose progress the target does not know yet, though no record was copied.
        self._changed: set[TopicPartition] = set()
        self._untimed: set[TopicPartition] = set()  # with records that have no time of their own
        self._cut: set[TopicPartition] = set()  # whose target was seen to end before what is known to be there
        self._silent: set[TopicPartition] = set()  # whose offsets nobody told when they were asked for last
        self._idle_since = 0.0
        self._seen: Mapping[TopicPartition, Mirrored] = {}  # what was to be copied when failures were noted

    # -- its life

    def stop(self) -> None:
        """End after the transaction at hand. The source is not waited for, which may be away."""
        self._stop.set()
        for wake in list(self._wakes):
            wake()

    def _ended_by_stop(self, wake: Callable[[], object]) -> None:
        """Something is about to wait for the source, which `wake` ends; that may be called later than it is needed."""
        self._wakes.append(wake)
        if self._stop.is_set():
            wake()

    def run(self) -> None:
        """Copy until `stop`."""
        pause_s = PAUSE_S
        while not self._stop.is_set():
            transactions = self.counts.transactions
            try:
                self._copy()
            except MirrorStopped as error:
                self.over = error
                return
            except FastqError as error:
                if self._stop.is_set():
                    return
                self.counts.failures += 1
                pause_s = PAUSE_S if self.counts.transactions > transactions else min(pause_s * 2, PAUSE_MAX_S)
                logger.warning("lane %d begins anew in %g s: %s", self.number, pause_s, error)
                self._stop.wait(pause_s)
            except Exception as error:
                # A defect of ours: a lane that ended with nobody told would look as if nothing came.
                logger.exception("lane %d has ended", self.number)
                self.over = error
                return

    def _copy(self) -> None:
        """From fencing off who was here before to an error or `stop`."""
        config = self._config
        level = "read_committed" if config.options.read_committed else "read_uncommitted"
        with opened_producer(config, self.number) as producer:
            producer.init_transactions()
            if self._stop.is_set():
                return
            state = read_state(config.target, self._state_topic, [self.number])
            if self.number in state.stopped:
                raise stopped_error(config, state.stopped[self.number])
            self._progress = dict(state.progress)
            self._targets, self._changed, version = {}, set(), -1
            with consumer_at(
                config.source,
                isolation_level=level,
                auto_offset_reset="none",
                prefetch_bytes_max=config.source.consumer.get("prefetch_bytes_max", PREFETCH_BYTES),
            ) as consumer:
                self._wakes = [consumer.wakeup]
                while not self._stop.is_set():
                    work = self._work()
                    if work.version != version or self._is_due():
                        self._follow(consumer, work)
                        version = work.version
                    self._transaction(producer, consumer)
                    self.counts.lag = consumer.lag()

    # -- which partitions

    def _is_due(self) -> bool:
        now = self._clock()
        return any(failure.until <= now for failure in self.failed.values())

    def _follow(self, consumer: Consumer, work: Work) -> None:
        """Read what is to be mirrored by this lane, and is not left out at the moment."""
        wanted = self._not_left_out(work)
        for tp, progress in self._progress.items():
            if tp in self._targets and tp in wanted and is_other_place(progress, wanted[tp]):
                del self._targets[tp]  # another topic of that name, here or there: placed anew
        fresh = [tp for tp in wanted if tp not in self._targets]
        self._targets = {tp: mirrored.topic for tp, mirrored in wanted.items() if tp in self._targets}
        if fresh:
            self._targets |= self._placed(consumer, {tp: wanted[tp] for tp in fresh})
        else:
            consumer.assign(self._targets)

    def _not_left_out(self, work: Work) -> dict[TopicPartition, Mirrored]:
        """What is to be mirrored by this lane now; what has failed is forgotten when that is over, or the topic is another."""
        now, known = self._clock(), {tp: mirrored for tp, mirrored in work.partitions.items() if self._mine(tp)}
        self.failed = {
            tp: failure
            for tp, failure in self.failed.items()
            if tp in known and failure.until > now and self._seen.get(tp) == known[tp]
        }
        self._seen = known
        return {tp: mirrored for tp, mirrored in known.items() if tp not in self.failed}

    def _placed(self, consumer: Consumer, fresh: Mapping[TopicPartition, Mirrored]) -> dict[TopicPartition, str]:
        """Assign these beside those that are read, each where it is to go on; those that can be read."""
        options = self._config.options
        begins, found, missing = offsets_of(consumer, fresh, *self._patience(fresh, bool(self._targets)))
        self._silent = self._silent.difference(fresh).union(missing)
        for tp, error in missing.items():
            self._leave_out(tp, error, RETRY_S)
        ends = with_open_transactions(self._config.source, self._progress, found, self._ended_by_stop)
        marks = marks_of(self._progress, {tp: fresh[tp].topic_id for tp in begins if tp not in missing})
        lost = lost_from(self._config.source, marks, begins, ends, opened=self._ended_by_stop)
        del self._wakes[1:]
        placed: dict[TopicPartition, str] = {}
        for tp, mirrored in fresh.items():
            if tp in missing:
                continue
            if is_another(mirrored.topic_id, _topic_id(consumer, tp)):
                self._wait_to_agree(consumer, tp)
                continue
            lost_at = lost.get(tp)
            if isinstance(lost_at, FastqError):
                self._leave_out(tp, lost_at, RETRY_S)
                continue
            before = self._progress.get(tp)
            if before is not None and tp in self._cut:
                before = self._uncut(tp, before, mirrored)
            try:
                start = place_to_start(
                    before,
                    mirrored.topic_id,
                    begins[tp],
                    ends[tp],
                    start=options.start,
                    on_gap=options.on_gap,
                    target_id=mirrored.target_id,
                    lost=lost_at,
                )
            except MirrorGap as error:
                self._leave_out(tp, error.with_context(topic=tp.topic, partition=tp.partition), FOREVER_S)
                continue
            if start.why:
                logger.warning("%s: %s; it goes on at offset %d", tp, start.why, start.offset)
            placed[tp] = mirrored.topic
            self._progress[tp] = Progress.begun(before, start, mirrored.topic_id, mirrored.target_id)
            if self._progress[tp] != before:
                self._changed.add(tp)  # "latest" is a place of its own each time it is asked for
        consumer.assign([*self._targets, *placed])
        for tp in placed:
            consumer.seek(tp, self._progress[tp].next_offset)
        return placed

    def _patience(self, fresh: Mapping[TopicPartition, object], others: bool) -> tuple[float | None, bool]:
        """How long to wait for the offsets of these, and whether it is the cluster where none comes, as there are no `others` that are
        copied: those wait for it too, so what was silent the last time does not keep them for as long again."""
        return (OFFSETS_ALONE_S if others and self._silent.issuperset(fresh) else None), not others

    def _wait_to_agree(self, consumer: Consumer, tp: TopicPartition) -> None:
        """The topic is another to the consumer than to the survey, which one of both has not heard of yet: its offsets say nothing."""
        consumer._fetcher.wants_metadata = f"{tp.topic} was made anew, perhaps"
        self.failed[tp] = Failure("the topic was deleted and made anew", self._clock() + AGREE_S)

    def _uncut(self, tp: TopicPartition, before: Progress, mirrored: Mirrored) -> Progress:
        """Of the same topic it is the target that has lost records: where those are that are left is not known any more."""
        self._cut.discard(tp)
        if is_another(before.target_id, mirrored.target_id):
            return before
        logger.error(
            "%s: %s has lost records that were copied to it; they are not copied again. To have them, delete the topic there",
            tp, mirrored.topic,
        )  # fmt: skip
        return before._replace(runs=())

    def _leave_out(self, tp: TopicPartition, error: FastqError, seconds: float) -> None:
        logger.error("%s is not mirrored%s: %s", tp, "" if seconds == FOREVER_S else " for now", error)
        self.failed[tp] = Failure(str(error), self._clock() + seconds)

    # -- copying

    def _transaction(self, producer: Producer, consumer: Consumer) -> None:
        """Copy what comes within an interval, at most so many bytes, and commit it; wait a little where nothing comes."""
        options = self._config.options
        part = self._next(consumer, POLL_S)
        if part is None:
            self._commit_positions(producer, consumer)
            return
        begin, size = self._clock(), 0
        end = begin + options.transaction_interval_ms / 1000
        sent: list[_Sent] = []
        producer.begin_transaction()
        while part is not None:
            sent.append(self._send(producer, part))
            size += part.size_bytes
            left_s = end - self._clock()
            if size >= options.transaction_bytes or left_s <= 0 or self._stop.is_set():
                break
            part = self._next(consumer, left_s)
        self._commit(producer, self._delivered(sent))
        self.counts.transactions_s += self._clock() - begin
        for item in sent:
            self.counts.add_chunk(len(item.delivery), item.size, item.mark.time_ms)

    def _next(self, consumer: Consumer, timeout_s: float) -> ConsumerBatch | None:
        """Records of one partition, or None when none came in time. What is wrong with one partition is not the others' trouble."""
        if not self._targets:
            self._stop.wait(min(timeout_s, POLL_S))
            return None
        try:
            batch = consumer._poll_chunk(timeout_s)
        except WakeupError:  # to stop, once what is here is committed
            return None
        except FastqError as error:
            if error.topic is None or error.partition is None:
                raise
            tp = TopicPartition(error.topic, error.partition)
            if tp not in self._targets:
                raise
            del self._targets[tp]
            if not isinstance(error, OffsetOutOfRange):  # else it is placed anew at once, or left out there
                self._leave_out(tp, error, RETRY_S)
                consumer.assign(self._targets)
            else:
                self.failed[tp] = Failure(str(error), self._clock())
            return None
        if not len(batch):
            return None
        (place, *_) = batch.next_offsets
        tp = TopicPartition(*place)
        if is_another(self._progress[tp].topic_id, _topic_id(consumer, tp)):
            del self._targets[tp]
            self._wait_to_agree(consumer, tp)
            consumer.assign(self._targets)
            return None
        return batch

    def _send(self, producer: Producer, batch: ConsumerBatch) -> _Sent:
        ((topic, partition), (next_offset, epoch)), *_ = batch.next_positions.items()
        tp, offsets = TopicPartition(topic, partition), batch.offsets
        mark = Mark(offsets[-1] + 1, epoch, batch.timestamps[-1])
        name = self._targets[tp]
        try:
            if tp in self._untimed:
                times = [time if time >= 0 else None for time in batch.timestamps]
                delivery = producer.send_many(name, batch.values, batch.keys, batch.headers, partition, times)
            else:
                delivery = producer.send_many(name, batch.arrow(COLUMNS, headers=True), partition=partition)
        except MessageTooLarge as error:
            self._leave_out(tp, self._too_large(tp, error), RETRY_S)
            raise
        except ValueError as error:
            if tp in self._untimed or min(batch.timestamps) >= 0:
                raise
            self._untimed.add(tp)  # rare: not looked for in what everybody sends
            raise FastqError(
                f"{tp} has records without a time; they get the time of the copying", cause=error
            ) from None
        is_run = offsets[-1] - offsets[0] + 1 == len(batch)
        return _Sent(tp, offsets[0], next_offset, mark, batch.size_bytes, is_run, delivery)

    def _too_large(self, tp: TopicPartition, error: FastqError) -> FastqError:
        """A record that the source has is larger than the target takes, as it is sent: what is to be set there."""
        side, name = self._config.target, self._targets.get(tp, tp.topic)
        codec = {**side.common, **side.producer}.get("compression_type", "none")
        why = "as it is sent, with compression.type=" + str(codec)
        compress = (
            'set producer.compression.type = "zstd" in [target]: it came compressed, perhaps; or '
            if codec == "none"
            else ""
        )
        return MessageTooLarge(
            f"a record of it is larger than {side.alias} takes for {name}, {why}",
            hint=f"{compress}fastq configs set --topic {name} max.message.bytes=... in {side.alias}",
            cause=error,
        )

    def _delivered(self, sent: Sequence[_Sent]) -> dict[TopicPartition, Progress]:
        """Wait for the answers; how far each partition is with them."""
        runs: dict[TopicPartition, list[Run]] = {}
        last: dict[TopicPartition, _Sent] = {}
        failed: SendManyError | None = None
        for item in sent:
            try:
                ranges = item.delivery.result().offsets.get(item.partition.partition, ())
            except SendManyError as error:
                failed = failed or error
                if item.partition not in self.failed and any(is_of_the_partition(why) for why, _ in error.failures):
                    too_large = next((why for why, _ in error.failures if isinstance(why, MessageTooLarge)), None)
                    told = error if too_large is None else self._too_large(item.partition, too_large)
                    self._leave_out(item.partition, told, RETRY_S)
                continue
            found = runs.setdefault(item.partition, [])
            place = item.first
            for targets in ranges:
                if targets.start >= 0:  # else the broker had the batch already, and does not say where
                    found.append(Run(place, targets.start, len(targets) if item.is_run else 1))
                place += len(targets)
                if not item.is_run:
                    break
            last[item.partition] = item
        if failed is not None:
            raise failed
        for tp, of_partition in runs.items():
            if of_partition and of_partition[0].target < self._progress[tp].target_end:
                self._cut.add(tp)
                self.failed[tp] = Failure("the target lost records", self._clock() + self._look_s)
                raise TargetCut(
                    f"{tp}: its next record got offset {of_partition[0].target} in the target, where offsets up to "
                    f"{self._progress[tp].target_end} were used: the topic there was made anew, or cut"
                )
        return {
            tp: self._progress[tp].advanced(last[tp].next_offset, merged(found), last[tp].mark)
            for tp, found in runs.items()
        }

    def _commit(self, producer: Producer, progress: Mapping[TopicPartition, Progress]) -> None:
        """Commit the open transaction with the progress of what is in it."""
        for tp in {*progress, *self._changed}:
            value = progress.get(tp) or self._progress[tp]
            producer.send(self._state_topic, value.to_json(), progress_key(tp), partition=self.number)
        producer.commit_transaction()
        self._progress |= progress
        self._changed = set()
        self.counts.transactions += 1
        self._idle_since = self._clock()

    def _commit_positions(self, producer: Producer, consumer: Consumer) -> None:
        """Nothing came: write down where partitions begin, and how far they are over offsets without a record to copy."""
        now = self._clock()
        if now - self._idle_since < IDLE_COMMIT_S and not self._changed:
            return
        self._idle_since = now
        moved: dict[TopicPartition, Progress] = {}
        for tp, at in consumer.metrics()["partitions"].items():
            position = at["position"]
            if tp in self._targets and position is not None and position > self._progress[tp].next_offset:
                moved[tp] = self._progress[tp].advanced(position, ())
        if moved or self._changed:
            producer.begin_transaction()
            self._commit(producer, moved)


def ending_producer(config: MirrorConfig, lane: int) -> Producer[bytes, bytes]:
    """That of a lane, to write down its end with: one record, of which each partition makes some fifty bytes."""
    # A level of the target's is of its own codec, and topics to compress are those of its records.
    return opened_producer(config, lane, compression_type="gzip", compression_level=None, compressed_topics=())


def opened_producer(config: MirrorConfig, lane: int, **more: object) -> Producer[bytes, bytes]:
    """The producer of a lane; the one that was made last counts. `more`: settings that win, by today's names."""
    transactional_id = f"fastq-mirror.{config.source.alias}.{config.target.alias}.{lane}"
    settings = {
        "max_request_size": RECORD_BYTES_MAX,
        "buffer_memory": BUFFER_BYTES,
        "batch_bytes_max": 1_000_000,
        "linger_ms": 5.0,
        "transaction_timeout_ms": config.options.transaction_interval_ms + TRANSACTION_SPARE_MS,
    }
    own = {"transactional_id": transactional_id, "allow_auto_create_topics": False}
    given = {**config.target.common, **config.target.producer, **own}
    # Each under the names it has been given by: an older one of a setting that has a value here too is the target's word.
    return Producer(ProducerConfig.from_mapping(settings, **given).replace(**more))


def is_other_place(progress: Progress, mirrored: Mirrored) -> bool:
    """Whether a partition is another now, of the source or of the target, than the one that was copied."""
    return progress.topic_id != mirrored.topic_id or is_another(progress.target_id, mirrored.target_id)


def is_of_the_partition(error: FastqError) -> bool:
    """Whether records of the other partitions could be sent all the same."""
    if isinstance(error, KafkaError):
        return error.code not in OF_THE_TRANSACTION
    return not isinstance(error, TransactionError)


def _topic_id(consumer: Consumer, tp: TopicPartition) -> str:
    """Of the topic that the consumer reads under that name; "" while it is not known."""
    topic = consumer._fetcher.metadata.topic(tp.topic)
    return "" if topic is None else topic.topic_id.hex()


def stopped_error(config: MirrorConfig, stopped: Stopped) -> MirrorStopped:
    when = datetime.fromtimestamp(stopped.time_ms / 1000, timezone.utc).isoformat(timespec="seconds")
    source, target = config.source.alias, config.target.alias
    if config.options.names == "identity":
        hint = f"fastq mirror fail-back prepares a mirror from {target} to {source}"
    else:
        hint = f'there is no way back to {source} from topics with other names there (names = "{config.options.names}")'
    return MirrorStopped(
        f"the mirror from {source} to {target} was failed over at {when}: {target} is written to by others now",
        hint=hint,
    )
