"""OpenTelemetry spans from a producer to a consumer, through a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq.errors import KafkaError, SerializationError
from fastq.interceptors import ProducerInterceptor, ProducerRecord
from fastq.observability import TracingConsumerInterceptor, TracingProducerInterceptor, tracing
from fastq.testing import Broker

Name = Callable[[], str]


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name.startswith(name)]


def test_a_trace_from_send_to_loop(
    shared_broker: Broker, new_topic_name: Name, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    topic, servers = new_topic_name(), shared_broker.bootstrap_servers
    tracer = provider.get_tracer("test")
    out, into = TracingProducerInterceptor(provider), TracingConsumerInterceptor(provider, group_id="billing")
    with Producer(bootstrap_servers=servers, interceptors=[out]) as producer:
        with tracer.start_as_current_span("request") as request:
            producer.send(topic, b"a", key=b"k", headers=[("mine", b"1")], partition=0)
        producer.send(topic, None, partition=0)
        producer.flush(20)
    first, second = named(spans, "send ")
    assert first.parent is not None and first.parent.span_id == request.get_span_context().span_id
    assert (first.kind, first.status.status_code) == (SpanKind.PRODUCER, StatusCode.UNSET)
    assert first.attributes is not None and second.attributes is not None
    assert first.attributes["messaging.kafka.offset"] == 0 and first.attributes["messaging.kafka.message.key"] == "k"
    assert second.attributes["messaging.kafka.message.tombstone"] is True and second.parent is None
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest", interceptors=[into]) as consumer:
        for record in consumer.read_to_end():
            current = trace.get_current_span()
            assert current.get_span_context().trace_id in (first.context.trace_id, second.context.trace_id)
            assert dict(record.headers).get("mine") == (b"1" if record.offset == 0 else None)
            with tracer.start_as_current_span("inside"):
                pass
        assert not trace.get_current_span().get_span_context().is_valid, "after the loop nothing is current"
    processed, last = named(spans, "process ")
    assert processed.parent is not None and processed.parent.span_id == first.context.span_id
    assert processed.context.trace_id == request.get_span_context().trace_id
    assert last.parent is not None and last.parent.span_id == second.context.span_id
    assert processed.attributes is not None
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    assert [span.parent.span_id for span in named(spans, "inside") if span.parent] == [
        processed.context.span_id,
        last.context.span_id,
    ]


def test_lists_of_records(
    shared_broker: Broker, new_topic_name: Name, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    topic, servers = new_topic_name(), shared_broker.bootstrap_servers
    with Producer(bootstrap_servers=servers, interceptors=[TracingProducerInterceptor(provider)]) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number, partition=0)
    into = TracingConsumerInterceptor(provider)
    with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest", interceptors=[into]) as consumer:
        records = consumer.poll(timeout=20)
        assert len(records) == 3 and not trace.get_current_span().get_span_context().is_valid
        with pytest.raises(RuntimeError, match="on purpose"), into.process(records[1]) as span:
            assert trace.get_current_span() is span
            raise RuntimeError("on purpose")
    (received,) = named(spans, "receive ")
    sent = [span.context.span_id for span in named(spans, "send ")]
    assert [link.context.span_id for link in received.links] == sent
    (processed,) = named(spans, "process ")
    assert processed.parent is not None and processed.parent.span_id == sent[1]
    assert processed.status.status_code is StatusCode.ERROR and processed.events[0].name == "exception"


def test_asyncio(
    shared_broker: Broker, new_topic_name: Name, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    topic, servers = new_topic_name(), shared_broker.bootstrap_servers

    async def run() -> None:
        async with AsyncProducer(
            bootstrap_servers=servers, interceptors=[TracingProducerInterceptor(provider)]
        ) as producer:
            delivery = await producer.send(topic, b"a", headers={"mine": b"1"}, partition=0)
            await delivery
        async with AsyncConsumer(
            topic,
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            interceptors=[TracingConsumerInterceptor(provider)],
        ) as consumer:
            async for record in consumer:
                inside = trace.get_current_span().get_span_context()
                assert inside.trace_id == named(spans, "send ")[0].context.trace_id
                assert [key for key, _ in record.headers] == ["mine", "traceparent"]
                break

    asyncio.run(run())
    assert len(named(spans, "process ")) == 1


def test_what_fails_is_noted(new_topic_name: Name, provider: TracerProvider, spans: InMemorySpanExporter) -> None:
    with (
        Broker(in_memory=True) as broker,
        Producer(
            bootstrap_servers=broker.bootstrap_servers, interceptors=[TracingProducerInterceptor(provider)]
        ) as out,
    ):
        broker.fail("Produce", error="POLICY_VIOLATION")
        with pytest.raises(KafkaError):
            out.send("refused", b"x").result(20)
        with pytest.raises(SerializationError):
            out.send("refused", 3)  # type: ignore[arg-type]
    failed = named(spans, "send ")
    assert [span.status.status_code for span in failed] == [StatusCode.ERROR] * 2
    assert failed[0].attributes is not None and failed[0].attributes["error.type"] == "PolicyViolation"


def test_spans_that_nobody_ends_are_bounded(
    provider: TracerProvider, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "OPEN_SPANS_MAX", 3)
    interceptor = TracingProducerInterceptor(provider)
    records = [interceptor.on_send(ProducerRecord("t", number)) for number in range(5)]
    assert len(spans.get_finished_spans()) == 2
    interceptor.on_delivery(records[0], None, None)
    interceptor.on_delivery(records[4], None, None)
    assert len(spans.get_finished_spans()) == 3


def test_interceptors_hear_of_their_record(shared_broker: Broker, new_topic_name: Name) -> None:
    heard: list[tuple[object, int]] = []

    class Listener(ProducerInterceptor):
        def on_delivery(self, record: ProducerRecord, metadata: object, error: object) -> None:
            heard.append((record.value, metadata.offset))  # type: ignore[attr-defined]

    class Plain:
        """As other clients' interceptors are: without the newer method."""

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record

        def on_acknowledgement(self, metadata: object, error: object) -> None:
            heard.append(("plain", -1))

    with Producer(bootstrap_servers=shared_broker.bootstrap_servers, interceptors=[Plain(), Listener()]) as producer:
        topic = new_topic_name()
        for number in range(2):
            producer.send(topic, b"%d" % number, partition=0).result(20)
    assert heard == [("plain", -1), (b"0", 0), ("plain", -1), (b"1", 1)]
