"""What stands between a fetched record and the user: deserializers and interceptors.

Rules: called once a record, in order, deserializers first; a deserializer gets (topic, headers, data) and is not asked about
null. `on_deserialization_error` says what becomes of a record that one cannot read; those that are left out are said in the log, at a
bounded rate. What a deserializer has to load first, as a
schema that is new, is no such error: LoadingWouldBlock comes out where an event loop runs, and the record comes again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from fastq._native.consume import Record
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.deserializers import Deserializer, Headers, TopicDeserializer
from fastq.errors import DeserializationError, FastqError, LoadingWouldBlock
from fastq.recurring import LOGGED_CHARACTERS_MAX, Recurring, more
from fastq.values import NamedTuple

logger = logging.getLogger("fastq.consumer")

F = TypeVar("F", bound=Callable[..., Any])
Transform = Callable[[Record], "Record | None"]


class Original(NamedTuple):
    """A record as the broker has it, and why it could not be read, if so."""

    record: Record
    error: DeserializationError | None


Originals: TypeAlias = "dict[tuple[str, int, int], Original]"
"""By topic, partition and offset."""


def _function_of(deserializer: Deserializer[Any] | None) -> Callable[[str, Headers, bytes], Any] | None:
    """A deserializer of either kind as a function of topic, headers and data."""
    if deserializer is None:
        return None
    if isinstance(deserializer, TopicDeserializer):
        return deserializer.deserialize
    function = deserializer
    return lambda topic, headers, data: function(data)


class Hooks:
    """The deserializers and interceptors of one consumer. `transform` is None when there are none: the fast path.

    `missing` is what a deserializer has to have loaded before the next record, None for nothing; `not_loaded` is why that failed, and
    makes it an error of the record.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self._key = _function_of(config.key_deserializer)
        self._value = _function_of(config.value_deserializer)
        self._on_error = config.on_deserialization_error
        self.interceptors: tuple[Any, ...] = config.interceptors
        self.skipped = 0
        self._recurring = Recurring()  # records that cannot be read, by topic, and what interceptors fail with
        self.missing: LoadingWouldBlock | None = None
        self.not_loaded: Exception | None = None
        deserializes = self._key is not None or self._value is not None
        self.deserialize: Transform | None = self._deserialize if deserializes else None
        self.transform: Transform | None = self._each if self.interceptors else self.deserialize

    def _deserialize(self, record: Record) -> Record | None:
        key, value, part = record.key, record.value, "key"
        try:
            if self._key is not None and key is not None:
                key = self._key(record.topic, record.headers, key)
            part = "value"
            if self._value is not None and value is not None:
                value = self._value(record.topic, record.headers, value)
        except Exception as problem:
            error: Exception = problem
            if isinstance(problem, LoadingWouldBlock):
                if self.not_loaded is None:
                    self.missing = problem
                    raise
                error, self.not_loaded = self.not_loaded, None
            if self._on_error == "raw":
                return record
            if self._on_error == "skip":
                self.skipped += 1
                self._say_skipped(record, part, error)
                return None
            failure = DeserializationError(
                f"the {part} of {record.topic}-{record.partition} at offset {record.offset} could not be deserialized: {error!r}",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                raw=record,
                hint="The next call goes on after it",
            )
            # A registry or a file that cannot be reached may be there again; bytes that cannot be read stay as they are.
            failure.retriable = isinstance(error, OSError) or (isinstance(error, FastqError) and error.retriable)
            raise failure from error
        return record.replace(key=key, value=value)

    def _say_skipped(self, record: Record, part: str, error: Exception) -> None:
        left_out = self._recurring.due(record.topic)
        if left_out is not None:
            logger.warning(
                "%s-%d at offset %d is skipped, as on_deserialization_error=skip has it: its %s could not be deserialized: %.*r%s",
                record.topic,
                record.partition,
                record.offset,
                part,
                LOGGED_CHARACTERS_MAX,
                error,
                more(left_out, " of this topic"),
            )

    @contextlib.contextmanager
    def keeping_originals(self) -> Iterator[Originals]:
        """Have `deserialize` keep every record as it came, meanwhile, and hand out as it is one that cannot be read, with its error kept
        beside it. Who asks for this empties what is yielded."""
        originals: Originals = {}
        read = self.deserialize
        if read is None:
            yield originals
            return

        def keep(record: Record) -> Record | None:
            place = record.topic, record.partition, record.offset
            try:
                made = read(record)
            except DeserializationError as error:
                originals[place] = Original(record, error)
                return record
            if made is not None:
                originals[place] = Original(record, None)
            return made

        self.deserialize = keep
        try:
            yield originals
        finally:
            self.deserialize = read

    def _each(self, record: Record) -> Record | None:
        """One record through everything, for iteration."""
        read = record if self.deserialize is None else self.deserialize(record)
        if read is None:
            return None
        seen = self.intercept([read])
        return seen[0] if seen else None

    async def load(self) -> None:
        """Load what is missing, in a thread. What fails is for the next record to say."""
        missing, self.missing = self.missing, None
        if missing is None:
            return
        if missing.load is None:
            raise missing
        import asyncio

        try:
            await asyncio.to_thread(missing.load)
        except Exception as error:  # of a registry, or whatever a deserializer of the program's own loads from
            self.not_loaded = error

    def between(self, advance: F) -> F:
        """`advance`, which an iterator calls when it has no more records at hand, telling the interceptors first.

        Those that care have a method `on_idle()`: the record that was handed out last has been handled.
        """
        told = [interceptor.on_idle for interceptor in self.interceptors if hasattr(interceptor, "on_idle")]
        if not told:
            return advance

        def tell_and_advance(*arguments: Any) -> Any:
            for on_idle in told:
                try:
                    on_idle()
                except Exception as error:
                    self._recurring.failed(logger, (id(on_idle), type(error)), "interceptor failed in %r", on_idle)
            return advance(*arguments)

        return cast("F", tell_and_advance)

    def intercept(self, records: list[Record]) -> list[Record]:
        """Show records to the interceptors, each of which may answer others; what one raises is logged."""
        for interceptor in self.interceptors:
            try:
                answer: Sequence[Record] | None = interceptor.on_consume(records)
            except Exception as error:
                message = "interceptor %r failed in on_consume"
                self._recurring.failed(logger, (id(interceptor), type(error)), message, interceptor)
                continue
            if answer is not None:
                records = list(answer)
        return records

    def close(self) -> None:
        """Tell the interceptors that the consumer closes."""
        for interceptor in self.interceptors:
            close = getattr(interceptor, "close", None)
            if close is not None:
                try:
                    close()
                except Exception:
                    logger.exception("interceptor %r failed in close", interceptor)
