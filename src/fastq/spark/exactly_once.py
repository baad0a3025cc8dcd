"""Exactly-once writing: a transaction for each task and micro-batch, which remembers in itself that the batch is written.

How
- A task has the transactional id `fastq-spark-NAME-PARTITION`; NAME is the query's id, which outlives restarts, or a batch
  write's token. Before it writes, it asks for that id's next epoch, which fences off every earlier attempt at the same partition,
  zombies and speculative ones too, and has what they left open aborted.
- In the transaction it commits the batch id as the offset of partition PARTITION of PROGRESS_TOPIC for the group
  `fastq-spark-NAME`. So records and progress become visible together, and ordinary tools show how far the query is.
- An attempt that finds its batch committed writes nothing. It counts its rows against the committed ones, which are in the
  offset's metadata, because they must be the same.

Rules: the epoch is taken first and the progress read afterwards, so that nobody can commit in between. The progress topic never
has a record; it has partitions because an offset is refused for one that does not exist. The driver imports this file too, for
every micro-batch anew: clients are imported by the tasks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastq.errors import ConfigError, ErrorCode, FastqError, InvalidPartitions, KafkaError, TopicAlreadyExists
from fastq.producer.config import ProducerConfig
from fastq.spark.producers import TASK_DEFAULTS, Shipment, task_name
from fastq.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Self

    from fastq.producer import Producer
    from fastq.spark.options import SinkOptions
    from fastq.spark.sink import Sink, Written

PROGRESS_TOPIC = "__fastq_spark_batches"
PARTITIONS_AT_FIRST = 16
TOPIC_TIMEOUT_S = 30.0

DEFAULTS: Mapping[str, Any] = {**TASK_DEFAULTS, "transaction_timeout_ms": 900_000}
"""A transaction lasts as long as its task: the longest time that brokers allow by default."""

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class NotTheSameBatch(FastqError):
    """A batch that is committed, in part or whole, came again with other rows or other tasks: it is not written twice."""

    cure = "Make the query deterministic, or persist it before it is written; begin with a new checkpoint or token."
    default_message = "a batch that was committed came again with other rows"


@dataclass(frozen=True)
class Attempt:
    """Which part of which write a task does. `name`: the query's id or the token; a token's batch id is 0."""

    name: str
    batch_id: int
    partition: int

    @property
    def transactional_id(self) -> str:
        return f"fastq-spark-{self.name}-{self.partition}"

    @property
    def group(self) -> str:
        return f"fastq-spark-{self.name}"

    @classmethod
    def of_task(cls, options: SinkOptions, *, streaming: bool) -> Self:
        """The attempt that this process is at. Raises ConfigError where Spark does not say which it is."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise ConfigError("delivery=exactly-once works in tasks of Spark only")
        if not streaming:
            assert options.token is not None
            return cls(options.token, 0, context.partitionId())
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise ConfigError(
                f"delivery=exactly-once of a stream needs the properties {QUERY_ID} and {BATCH_ID} of its tasks, and this Spark "
                "sets none"
            )
        return cls(query, int(batch), context.partitionId())


@dataclass
class Content:
    """What a task wrote: enough to tell whether the same comes again. `size_bytes`: of all keys and values."""

    rows: int = 0
    size_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        self.rows += batch.num_rows
        for name in ("key", "value"):
            place = batch.schema.get_field_index(name)
            if place >= 0:
                self.size_bytes += pc.sum(pc.binary_length(batch.column(place))).as_py() or 0

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, counted as they pass."""
        for batch in batches:
            self.add(batch)
            yield batch

    def __str__(self) -> str:
        return f"{self.rows} rows with {self.size_bytes} bytes"


class Progress:
    """What the tasks of a query have committed: reads of its group, and the topic that they commit to.

    Thread rule: the task's thread. Holds connections until it is closed.
    """

    def __init__(self, config: ProducerConfig, group: str) -> None:
        from fastq.admin import Admin, AdminConfig

        values = config.as_dict()
        self._admin = Admin(AdminConfig(**{name: values[name] for name in AdminConfig.options() if name in values}))
        self._group = group

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._admin.close()

    def committed(self) -> dict[int, tuple[int, Content]]:
        """By partition: the last batch that its task has committed, and what that was. Waits for open transactions."""
        outcomes = self._admin.list_group_offsets(self._group, require_stable=True)
        found = {}
        for tp, outcome in outcomes.items():
            offset = outcome.result()
            if tp.topic == PROGRESS_TOPIC and offset is not None:
                found[tp.partition] = offset.offset, _content(offset.metadata)
        return found

    def make_room(self, partition: int) -> None:
        """See that the progress topic has a partition. Raises the broker's reason when it may not be made."""
        until = time.monotonic() + TOPIC_TIMEOUT_S
        while (count := self._partitions()) <= partition:
            try:
                wanted = max(PARTITIONS_AT_FIRST, 1 << partition.bit_length())
                if not count:
                    self._admin.create_topic(PROGRESS_TOPIC, wanted)
                else:
                    self._admin.create_partitions({PROGRESS_TOPIC: wanted})[PROGRESS_TOPIC].result()
            except (TopicAlreadyExists, InvalidPartitions):
                # Another task was faster; a broker may take a moment to learn of it.
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _partitions(self) -> int:
        try:
            return len(self._admin.describe_topic(PROGRESS_TOPIC).partitions)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return 0


def checked_config(client: Mapping[str, Any], transactional_id: str) -> ProducerConfig:
    """The configuration of a task's producer. Raises ConfigError for what does not go with transactions."""
    return ProducerConfig.from_mapping(DEFAULTS, **{**client, "transactional_id": transactional_id})


def send_once(sink: Sink, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write a task's rows in one transaction, unless they are written already.

    Promises: the records of a task and micro-batch are in the topics once, or not at all, for who reads with
    isolation.level=read_committed, however often Spark tries the task, runs it twice, or replays the batch after a crash of
    driver or workers. While a task is at it, such readers wait at its records.

    Cannot promise: that the tasks of a batch become visible together. Each does by itself, and a batch that fails for good
    leaves those of its tasks that had committed. It relies on Spark replaying a batch with the same rows in the same tasks:
    a source whose offsets stay, no random functions, the same number of partitions. Where rows or tasks are found to differ,
    NotTheSameBatch is raised and what is committed stays; tasks that had not committed before may have written by then.
    The broker forgets the transactional ids and offsets of a query that is stopped for long (transactional.id.expiration.ms,
    offsets.retention.minutes: 7 days); after that, a replay is written again. Two queries that were started from copies of one
    checkpoint have one id, and fence each other off.
    """
    from fastq.producer import Producer

    attempt = Attempt.of_task(sink.options, streaming=sink.streaming)
    config = checked_config(sink.client, attempt.transactional_id)
    with Progress(config, attempt.group) as progress:
        progress.make_room(attempt.partition)
        producer = Producer(config)
        try:
            written = _attempt(sink, attempt, producer, progress, batches)
        except BaseException:
            # An open transaction is aborted by the next attempt at the latest; what became of a commit, it finds out.
            producer.close(timeout=0)
            raise
        producer.close()
        settle()
        return written


def _attempt(
    sink: Sink, attempt: Attempt, producer: Producer, progress: Progress, batches: Iterable[pa.RecordBatch]
) -> Written:
    from fastq.metadata import TopicPartition
    from fastq.spark.sink import Written

    producer.init_transactions()
    committed = progress.committed()
    same_batch = tuple(sorted(number for number, (batch, _) in committed.items() if batch == attempt.batch_id))
    check_current(attempt, committed)
    content = Content()
    if attempt.partition in same_batch:
        for batch in batches:
            content.add(batch)
        check_same(attempt, committed[attempt.partition][1], content)
        return Written(attempt.partition, content.rows, skipped=True, committed=same_batch)
    shipment = Shipment(producer, f"the fastq sink, {task_name()}")
    with producer.transaction() as transaction:
        sink.ship(shipment, content.counted(batches))
        progress_to = {TopicPartition(PROGRESS_TOPIC, attempt.partition): (attempt.batch_id, _metadata(content))}
        transaction.send_offsets(progress_to, attempt.group)
    return Written(attempt.partition, shipment.finish(), committed=same_batch)


def check_current(attempt: Attempt, committed: Mapping[int, tuple[int, Content]]) -> None:
    """Raise NotTheSameBatch if a task of a later batch has committed: a batch begins when the one before is complete."""
    newest, number = max(((batch, number) for number, (batch, _) in committed.items()), default=(-1, -1))
    if newest > attempt.batch_id:
        raise NotTheSameBatch(
            f"partition {number} of {attempt.group} has committed batch {newest}, and this is batch {attempt.batch_id}: it is an "
            "attempt that outlived its time, or the query was started from an older checkpoint",
            hint=_HINT,
        )


def check_same(attempt: Attempt, before: Content, now: Content) -> None:
    """Raise NotTheSameBatch unless a batch that is committed has come again as it was."""
    if before != now:
        raise NotTheSameBatch(
            f"partition {attempt.partition} of {attempt.group} has committed batch {attempt.batch_id} with {before}, and it came "
            f"again with {now}: the query's number of tasks, its source or its code has changed in the middle of a batch",
            hint=_HINT,
        )


def check_tasks(tasks: Sequence[Written], batch_id: int) -> None:
    """On the driver, when all tasks have ended: raise NotTheSameBatch if an earlier attempt at the batch had other tasks.

    That is so where a task had committed that is not there any more, or that has no rows now: such a one does not look.
    """
    committed = {number for task in tasks for number in task.committed}
    gone = committed - {task.partition for task in tasks if task.rows}
    if gone:
        raise NotTheSameBatch(
            f"batch {batch_id} has rows in {sum(task.rows > 0 for task in tasks)} of {len(tasks)} tasks now, and an earlier attempt "
            f"at it has committed rows of partition {max(gone)}, which has none now: rows may be written twice, because the "
            "number of tasks has changed in the middle of a batch",
            hint=_HINT,
        )


_HINT = (
    "Go back to what the query was when the batch was begun; or, if the topics are right as they are, delete the group's "
    "offsets (fastq groups) and go on"
)


def _metadata(content: Content) -> str:
    return json.dumps({"rows": content.rows, "size_bytes": content.size_bytes})


def _content(metadata: str | None) -> Content:
    found = json.loads(metadata or "{}")
    return Content(int(found.get("rows", -1)), int(found.get("size_bytes", -1)))
