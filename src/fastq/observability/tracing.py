"""OpenTelemetry spans of records that are sent and consumed, with the context carried in the headers (extra `otel`).

Rules
- Names and attributes follow OpenTelemetry's conventions for messaging and Kafka.
- A send's span ends when the record is acknowledged or has failed. Its context goes into the headers, by the propagator that
  is set up (W3C's traceparent unless it says otherwise); so this interceptor comes last of those that touch headers.
- In iteration a record's span is current while the loop's body runs, and ends when the loop asks for more. A list of records of
  `poll` gets one span that links to where each came from; `process(record)` makes a span for one of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context, propagate, trace
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from fastq.interceptors import ProducerInterceptor, ProducerRecord

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context

    from fastq.consumer import Record
    from fastq.producer import RecordMetadata

LIBRARY = "fastq"
OPEN_SPANS_MAX = 100_000
"""Spans of records on their way; where more are, the oldest ends without its outcome."""
LINKS_MAX = 128

HeaderList = list[tuple[str, Any]]


class _Set(Setter[HeaderList]):
    def set(self, carrier: HeaderList, key: str, value: str) -> None:
        carrier[:] = [(name, data) for name, data in carrier if name != key]
        carrier.append((key, value.encode()))


class _Get(Getter[Sequence[tuple[str, Any]]]):
    def get(self, carrier: Sequence[tuple[str, Any]], key: str) -> list[str] | None:
        found = [
            bytes(value).decode("utf-8", "replace") for name, value in carrier if name == key and value is not None
        ]
        return found or None

    def keys(self, carrier: Sequence[tuple[str, Any]]) -> list[str]:
        return [name for name, _ in carrier]


_SET, _GET = _Set(), _Get()


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer(LIBRARY, tracer_provider=provider)


def _attributes(operation: str, topic: str, key: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if isinstance(key, (str, int)):
        found["messaging.kafka.message.key"] = str(key)
    elif isinstance(key, (bytes, bytearray)) and key.isascii():
        found["messaging.kafka.message.key"] = key.decode("ascii")
    return found


class TracingProducerInterceptor(ProducerInterceptor):
    """A span of kind PRODUCER for each record. Thread-safe.

    `tracer_provider`: None takes the global one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = _tracer(tracer_provider)
        self._lock = threading.Lock()
        # By the identity of the headers that were made here, and are kept so that it stays theirs.
        self._open: OrderedDict[int, tuple[HeaderList, Span]] = OrderedDict()

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        given = record.headers or ()
        headers: HeaderList = list(given.items() if isinstance(given, Mapping) else given)
        attributes = _attributes("send", record.topic, record.key)
        if record.partition is not None:
            attributes["messaging.destination.partition.id"] = str(record.partition)
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        span = self._tracer.start_span(f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        propagate.inject(headers, context=trace.set_span_in_context(span), setter=_SET)
        with self._lock:
            self._open[id(headers)] = (headers, span)
            late = self._open.popitem(last=False)[1][1] if len(self._open) > OPEN_SPANS_MAX else None
        if late is not None:
            late.end()
        return ProducerRecord(record.topic, record.value, record.key, headers, record.partition, record.timestamp_ms)

    def on_delivery(self, record: ProducerRecord, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        with self._lock:
            found = self._open.pop(id(record.headers), None)
        if found is None:
            return
        span = found[1]
        if metadata is not None:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
            if metadata.offset >= 0:
                span.set_attribute("messaging.kafka.offset", metadata.offset)
        elif error is not None:
            _note(span, error)
        span.end()


class TracingConsumerInterceptor:
    """Spans of kind CONSUMER. One for each consumer; used by the thread, or the task, that consumes.

    `tracer_provider`: None takes the global one. `group_id` is told with each span where it is given.
    Invariant: `_current` is the span of the record that the loop's body has, with what undoes its being current.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, group_id: str | None = None) -> None:
        self._tracer = _tracer(tracer_provider)
        self._group_id = group_id
        self._current: tuple[Span, Token[Context]] | None = None

    def on_consume(self, records: Sequence[Record]) -> None:
        """Begin the span of one record, or tell of several."""
        self.on_idle()
        if len(records) == 1:
            span = self._start(records[0])
            self._current = (span, context.attach(trace.set_span_in_context(span)))
        elif records:
            self._tell(records)

    def on_idle(self) -> None:
        """The record that was handed out last has been handled."""
        current, self._current = self._current, None
        if current is not None:
            span, token = current
            span.end()
            # In another task than the one that began it there is nothing to undo: each has a context of its own.
            context.detach(token)

    def close(self) -> None:
        """The consumer is closed: as `on_idle`."""
        self.on_idle()

    @contextmanager
    def process(self, record: Record) -> Iterator[Span]:
        """A span for one record of a list, current inside of the block; an exception is noted and goes on."""
        with trace.use_span(self._start(record), end_on_exit=True) as span:
            yield span

    def _start(self, record: Record) -> Span:
        attributes = _attributes("process", record.topic, record.key)
        attributes["messaging.destination.partition.id"] = str(record.partition)
        attributes["messaging.kafka.offset"] = record.offset
        if self._group_id is not None:
            attributes["messaging.consumer.group.name"] = self._group_id
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        origin = propagate.extract(record.headers, getter=_GET)
        return self._tracer.start_span(
            f"process {record.topic}", context=origin, kind=SpanKind.CONSUMER, attributes=attributes
        )

    def _tell(self, records: Sequence[Record]) -> None:
        origins = (
            trace.get_current_span(propagate.extract(record.headers, getter=_GET)).get_span_context()
            for record in records[:LINKS_MAX]
        )
        topics = {record.topic for record in records}
        attributes = _attributes("receive", topics.pop() if len(topics) == 1 else "", None)
        attributes["messaging.batch.message_count"] = len(records)
        name = f"receive {attributes['messaging.destination.name']}".rstrip()
        links = [Link(origin) for origin in origins if origin.is_valid]
        self._tracer.start_span(name, kind=SpanKind.CONSUMER, attributes=attributes, links=links).end()


def _note(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.set_attribute("error.type", type(error).__qualname__)
