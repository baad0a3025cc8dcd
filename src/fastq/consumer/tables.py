"""A topic, or what a consumer has left of its own, as a table: batches of columns up to an end that is fixed before.

Rules: read in pieces, so memory is bounded by prefetch_bytes_max and one piece; takers of Arrow streams (pyarrow, Polars, pandas, DuckDB)
take the objects here as they are. Keys and values are bytes, deserializers do not see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fastq._native.arrow import COLUMN_NAMES, ArrowExport
from fastq._native.batch_stream import make_stream
from fastq._native.columns import ConsumerBatch
from fastq.consumer.calls import Ends
from fastq.consumer.config import LATEST_TIMESTAMP
from fastq.consumer.offsets import epochs_of, offsets_of
from fastq.errors import ConfigError
from fastq.metadata import TopicPartition

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Self, Unpack

    from fastq.consumer.consumer import Consumer
    from fastq.consumer.options import ConsumerOptions

Bound: TypeAlias = "str | datetime | Mapping[int, int]"


def chosen_columns(columns: Iterable[str] | None, headers: bool = False) -> list[str]:
    """The columns to export: all but headers unless they are named. Raises ValueError for one that there is not."""
    names = [name for name in COLUMN_NAMES if name != "headers"] if columns is None else list(columns)
    if isinstance(columns, str):
        raise ValueError(f"columns is a list of names, got {columns!r}: write [{columns!r}]")
    if headers and "headers" not in names:
        names.append("headers")
    ArrowExport(ConsumerBatch(), names)
    return names


class _Taker:
    """What takers of Arrow data ask for, over `__arrow_c_stream__`."""

    _columns: list[str]

    def __arrow_c_schema__(self) -> object:
        """The schema as an Arrow capsule."""
        return ArrowExport(ConsumerBatch(), self._columns).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The data as an Arrow stream capsule, an array a batch."""
        raise NotImplementedError

    def to_arrow(self) -> Any:  # pyarrow is optional, and untyped
        """All of it as a pyarrow.Table, in memory. Raises ImportError, naming the extra, where pyarrow is not installed."""
        try:
            from pyarrow import RecordBatchReader  # type: ignore[import-untyped]  # it has no stubs
        except ImportError:
            raise ImportError(
                "to_arrow() needs pyarrow: pip install pyarrow; Polars, pandas and DuckDB take this object itself"
            ) from None
        return RecordBatchReader.from_stream(self).read_all()


class BatchStream(_Taker):
    """Batches up to an end, once: iterate over it, or hand it to a taker of Arrow streams.

    Invariants: what was read is not read again; a second taker is refused. An error leaves it where it is, and the next call goes on there;
    behind its end, or `close`, there is nothing. Thread rule: that of its consumer, one thread at a time.
    """

    def __init__(
        self,
        advance: Callable[[], ConsumerBatch | None],
        columns: list[str],
        done: Callable[[], object] | None = None,
    ) -> None:
        self._advance = advance
        self._columns = columns
        self._done = done
        self._exported = False
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerBatch:
        """The next batch, which is not empty."""
        while not self._ended:
            batch = self._advance()
            if batch is None:
                self.close()
            elif len(batch):
                return batch
        raise StopIteration

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """What was not iterated over yet, as an Arrow stream capsule, an array a batch. Raises RuntimeError the second time."""
        if self._exported:
            raise RuntimeError("this stream was taken already, and is read once: ask for another one")
        self._exported = True
        return make_stream(lambda: next(self, None), self._columns, self.close)

    def close(self) -> None:
        """Let go of what it reads from. Idempotent."""
        self._ended = True
        done, self._done = self._done, None
        if done is not None:
            done()

    def __del__(self) -> None:
        self.close()


class TopicTable(_Taker):
    """The records of a topic between two bounds, which are offsets since `read_topic` was called: read anew, and alike but for what
    retention or compaction has taken meanwhile, by every taker. UnknownTopicId for who takes it when the topic was deleted and made anew,
    OffsetOutOfRange when a leader was elected that has not all of it.

    starts, ends: by partition, the first offset and the one after the last. Thread rule: any thread; each taker has its own consumer.
    """

    def __init__(
        self,
        topic: str,
        starts: dict[TopicPartition, int],
        ends: Ends,
        columns: list[str],
        options: Mapping[str, Any],
    ) -> None:
        self.topic = topic
        self.starts = starts
        self.ends = ends
        self._columns = columns
        self._options = options

    def __iter__(self) -> BatchStream:
        """Batches of records, in order within their partition. `close` of the iterator, or its end, lets go of its connections."""
        return self._open()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All of it as an Arrow stream capsule, an array a batch."""
        return self._open().__arrow_c_stream__()

    def _open(self) -> BatchStream:
        from fastq.consumer.consumer import Consumer

        consumer = Consumer(**self._options)
        consumer.assign(tp for tp, end in self.ends.items() if self.starts[tp] < end)
        for tp in consumer.assignment():
            consumer.seek(tp, self.starts[tp])
        ends = self.ends.anew()
        return BatchStream(lambda: consumer._batch_before(ends), self._columns, consumer.close)

    def __repr__(self) -> str:
        from fastq.words import counted  # which loads datetime

        count = sum(max(0, end - self.starts[tp]) for tp, end in self.ends.items())
        size = f"{counted(len(self.ends), 'partition')}, {counted(count, 'offset')}"
        return f"TopicTable({self.topic}, {size}, columns {', '.join(self._columns)})"


def read_topic(
    topic: str,
    *,
    columns: Iterable[str] | None = None,
    headers: bool = False,
    partitions: Iterable[int] | None = None,
    start: Bound = "earliest",
    end: Bound = "latest",
    **options: Unpack[ConsumerOptions],
) -> TopicTable:
    """The records of a topic as a table: `polars.DataFrame(read_topic("logs", bootstrap_servers=...))`,
    `pyarrow.table(...)`, `pandas.DataFrame.from_arrow(...)`, or by its variable's name in
    DuckDB's SQL. Read when it is taken, in pieces, by each taker anew; iterating gives the pieces (ConsumerBatch).

    columns: of key, value, topic, partition, offset, timestamp, timestampType, headers (None: all but headers, which `headers` adds).
    partitions: their numbers, None for all. start: "earliest"; a datetime with its time zone: the first records at or after it; or the
    first offset of each partition, {partition: offset}. end: "latest", which is the end at this moment; a datetime: before the first
    records at or after it; or {partition: offset}, without that offset. A partition that a mapping leaves out begins at the earliest, or
    ends at the latest. options: the connection's, and isolation_level="read_committed".

    Raises UnknownTopicOrPartition (the topic is not created), ValueError for a bound or column that there is not, ConfigError for an
    option that would have no effect, as a deserializer: keys and values are bytes.
    """
    from fastq.consumer.consumer import Consumer

    given: dict[str, Any] = {**options}
    if given.get("group_id") is not None:
        raise ConfigError("read_topic commits nothing and is no member: leave group_id out")
    for name in ("key_deserializer", "value_deserializer"):
        if given.get(name) is not None:
            raise ConfigError(f"read_topic hands out keys and values as bytes: leave {name} out, and decode the column")
    if given.get("auto_offset_reset", "earliest") != "earliest":
        raise ConfigError(
            f"read_topic begins where `start` says: leave auto_offset_reset={given['auto_offset_reset']!r} out"
        )
    names = chosen_columns(columns, headers)
    if isinstance(partitions, (int, str)):
        raise TypeError(f"partitions is a list of numbers, got {partitions!r}: write [{partitions}]")
    given.update(allow_auto_create_topics=False, auto_offset_reset="earliest")
    with Consumer(topic, **given) as consumer:
        known = sorted(consumer._found_partitions())
        topic_ids = consumer._topic_ids(known)
        tps = known if partitions is None else [TopicPartition(topic, index) for index in partitions]
        found = consumer._call(consumer._ask(dict.fromkeys(tps, LATEST_TIMESTAMP), None))
        last = offsets_of(found)
        starts = _offsets(consumer, tps, start, "start", consumer.beginning_offsets)
        ends = _offsets(consumer, tps, end, "end", lambda tps: {tp: last[tp] for tp in tps})
        if not (isinstance(start, str) and isinstance(end, str)):
            first = consumer.beginning_offsets(tps)
            starts = {tp: max(offset, first[tp]) for tp, offset in starts.items()}
            ends = {tp: min(offset, last[tp]) for tp, offset in ends.items()}
    return TopicTable(topic, starts, Ends(ends, topic_ids, epochs_of(found)), names, given)


def _offsets(
    consumer: Consumer,
    tps: list[TopicPartition],
    bound: Bound,
    name: str,
    default: Callable[[Iterable[TopicPartition]], dict[TopicPartition, int]],
) -> dict[TopicPartition, int]:
    """A bound as offsets by partition."""
    if isinstance(bound, str) and bound == {"start": "earliest", "end": "latest"}[name]:
        return default(tps)
    from datetime import datetime

    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise ValueError(f"{name}={bound!r}: a datetime with its time zone, as datetime(..., tzinfo=timezone.utc)")
        found = consumer.offsets_for_times({tp: max(round(bound.timestamp() * 1000), 0) for tp in tps})
        ends = consumer.end_offsets(tps)
        return {tp: ends[tp] if place is None else place.offset for tp, place in found.items()}
    if isinstance(bound, Mapping):
        numbers = {tp.partition for tp in tps}
        for index, offset in bound.items():
            if index not in numbers:
                raise ValueError(
                    f"{name}={bound!r}: partition {index!r} is not read; those that are: {sorted(numbers)}"
                )
            if not isinstance(offset, int) or offset < 0:
                raise ValueError(f"{name}={bound!r}: an offset is an int of 0 or more, got {offset!r}")
        return {tp: bound.get(tp.partition, offset) for tp, offset in default(tps).items()}
    word = "'earliest'" if name == "start" else "'latest'"
    raise ValueError(f"{name}={bound!r}: {word}, a datetime with its time zone, or a mapping of partitions to offsets")
