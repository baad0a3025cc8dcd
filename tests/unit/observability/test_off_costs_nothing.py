"""What is not asked for costs nothing: no hook, wrapper, counter or reading of the clock is on the way of a record or a request.

Rules: nothing is timed. The interpreter itself says which functions a thread calls (sys.setprofile); each test that finds nothing
has a counterpart with the thing switched on, where the same probe finds it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from fastq_broker.broker import Broker
from fastq_broker.config import BrokerConfig
from fastq_broker.controller.topics import NewTopic
from fastq_broker.metrics import BrokerMetrics, MeteredRouter
from fastq_broker.router import Router
from fastq_broker.server import flexible_versions

import fastq.consumer.async_consumer
import fastq.consumer.consumer
from fastq import AsyncConsumer, AsyncProducer, Consumer, Producer
from fastq._native.accumulator import INTERCEPTORS, NOT_STARTED
from fastq._native.consume import FetchedRecords, Record, RecordIterator
from fastq._native.fetch import decode_fetch_response
from fastq._native.produce_path import scan_request
from fastq._native.producer_core import AsyncProducerCore, SyncProducerCore
from fastq._native.records import build_batch
from fastq.consumer.config import ConsumerConfig
from fastq.consumer.hooks import Hooks
from fastq.interceptors import ProducerInterceptor
from fastq.observability import PrometheusExporter
from fastq.protocol.frames import encode_request
from fastq.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    MetadataRequest,
    ProduceRequest,
)

NOWHERE = "127.0.0.1:1"
RECORDS = 100
CLOCKS = frozenset(
    {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time", "time_ns"}
)


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """The functions that `work` calls in this thread, Python's own and built-in ones that Python code calls, by name.

    Of extensions' functions those that Python calls are told of, not those that they call of each other; what they call of Python's is.
    """
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is not getattr(work, "__code__", None):
            found[frame.f_code.co_name] += 1
        elif event == "c_call" and argument is not sys.setprofile:
            found[argument.__name__] += 1

    gc.disable()  # whoever listens to the collector is not called by `work`
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


# --- what is loaded ---


def test_clients_load_nothing_of_it() -> None:
    loaded = modules_after(
        "from fastq import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer\n"
        f"Producer(bootstrap_servers={NOWHERE!r}).close(0)\n"
        f"Consumer('t', bootstrap_servers={NOWHERE!r}).close()"
    )
    assert "fastq.producer.producer" in loaded
    watching = ("fastq.observability", "opentelemetry", "prometheus_client", "http.server")
    assert not [name for name in loaded if name.startswith(watching)]


def test_metrics_of_clients_load_no_other_package() -> None:
    loaded = modules_after("import fastq.observability")
    assert "fastq.observability.prometheus" in loaded
    assert not [name for name in loaded if name.startswith(("opentelemetry", "prometheus_client"))]


def test_the_broker_loads_nothing_of_it() -> None:
    loaded = modules_after(
        "import fastq_broker.__main__, fastq_broker.broker, fastq_broker.router\n"
        "from importlib import import_module\n"
        "for name in fastq_broker.router.HANDLERS.values(): import_module(f'fastq_broker.handlers.{name}')"
    )
    assert "fastq_broker.handlers.produce" in loaded
    assert not [
        name for name in loaded if name.startswith(("fastq_broker.metrics", "http.server", "prometheus_client"))
    ]


# --- send ---


class Watching(ProducerInterceptor):
    """An interceptor that changes nothing."""


@pytest.fixture
def make_producer() -> Iterator[Callable[..., Producer]]:
    """Builds producers that know their topic and reach nobody, so that a batch stays open."""
    made: list[Producer] = []

    def make(**options: Any) -> Producer:
        producer = Producer(bootstrap_servers=NOWHERE, linger_ms=600_000, **options)
        producer.accumulator.update_topic("logs", 1)
        producer.send("logs", b"the first record, which begins the batch")
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout=0)


def sends(producer: Producer, count: int = RECORDS) -> Counter[str]:
    """What is called beside the native `send` itself."""

    def loop() -> None:
        for _ in range(count):
            producer.send("logs", b"value", b"key")

    found = calls_of(loop)
    assert found.pop("send") == count
    return found


def test_send_is_the_native_method_itself() -> None:
    assert Producer.send is SyncProducerCore.send
    assert AsyncProducer.send is AsyncProducerCore.send


def test_send_takes_the_short_way(make_producer: Callable[..., Producer]) -> None:
    assert make_producer().accumulator.slow == 0
    assert AsyncProducer(bootstrap_servers=NOWHERE).accumulator.slow == NOT_STARTED  # which its first send takes away
    assert make_producer(interceptors=[Watching()]).accumulator.slow == INTERCEPTORS


def test_send_calls_nothing(make_producer: Callable[..., Producer]) -> None:
    assert sends(make_producer()) == {}


def test_send_calls_nothing_more_for_an_exporter(make_producer: Callable[..., Producer]) -> None:
    exporter = PrometheusExporter()
    producer = make_producer()
    exporter.add("mine", producer)
    assert sends(producer) == {}
    assert "fastq_producer_buffered_records" in exporter.text()
    assert sends(producer) == {}  # and not behind a scrape either


def test_send_calls_an_interceptor(make_producer: Callable[..., Producer]) -> None:
    calls = sends(make_producer(interceptors=[Watching()]))
    assert calls["_send_slow"] == calls["on_send"] == RECORDS


def test_counters_go_with_batches(make_producer: Callable[..., Producer]) -> None:
    producer = make_producer()
    sends(producer)
    metrics = producer.metrics()
    assert (metrics["records_sent_total"], metrics["batches_total"], metrics["bytes_total"]) == (0, 0, 0)
    producer.accumulator.close_all()
    metrics = producer.metrics()
    assert (metrics["records_sent_total"], metrics["batches_total"]) == (RECORDS + 1, 1)
    assert metrics["bytes_total"] > 0


# --- iteration ---


def chunk(count: int) -> FetchedRecords:
    """What a fetch of one batch gives."""
    part = FetchResponse.PartitionData(
        partition_index=0, records=bytes(build_batch([(1, None, b"value", ())] * count, base_offset=0))
    )
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="logs", partitions=[part])])
    decoded = decode_fetch_response(bytearray(response.to_bytes(12)), 12)
    return FetchedRecords(decoded.partitions[0], "logs", 0, broker="nobody")


class Seeing:
    """An interceptor of a consumer that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen = 0
        self.idle = 0

    def on_consume(self, records: Sequence[Record]) -> None:
        self.seen += len(records)

    def on_idle(self) -> None:
        self.idle += 1


def iterates(hooks: Hooks) -> tuple[int, Counter[str]]:
    """Records of one chunk through these hooks: how many, and the calls on the way."""
    chunks = [chunk(RECORDS)]
    records: list[Record] = []

    def advance(_: FetchedRecords | None) -> FetchedRecords | None:
        return chunks.pop() if chunks else None

    iterator = RecordIterator(hooks.between(advance), hooks.transform)
    calls = calls_of(lambda: records.extend(iterator))
    return len(records), calls


def test_a_record_calls_nothing() -> None:
    count, calls = iterates(Hooks(ConsumerConfig.from_mapping({"bootstrap_servers": NOWHERE})))
    assert count == RECORDS
    assert calls == {"advance": 2, "pop": 1, "extend": 1}


def test_a_record_is_shown_to_an_interceptor() -> None:
    interceptor = Seeing()
    config = {"bootstrap_servers": NOWHERE, "interceptors": [interceptor]}
    count, calls = iterates(Hooks(ConsumerConfig.from_mapping(config)))
    assert count == interceptor.seen == calls["on_consume"] == RECORDS
    assert interceptor.idle == calls["tell_and_advance"] == 2


@pytest.mark.parametrize(
    ("module", "kind", "iterator"),
    [
        (fastq.consumer.consumer, Consumer, "RecordIterator"),
        (fastq.consumer.async_consumer, AsyncConsumer, "AsyncRecordIterator"),
    ],
)
def test_consumers_hand_their_own_method_to_the_iterator(
    module: Any, kind: Any, iterator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[Any, Any]] = []
    native = getattr(module, iterator)

    def noting(advance: Any, transform: Any, progress: Any) -> Any:
        given.append((advance, transform))
        return native(advance, transform, progress)

    monkeypatch.setattr(module, iterator, noting)
    plain = kind("t", bootstrap_servers=NOWHERE)
    watched = kind("t", bootstrap_servers=NOWHERE, interceptors=[Seeing()])
    begin = kind.__aiter__ if hasattr(kind, "__aiter__") else kind.__iter__
    iterators = [begin(plain), begin(watched)]  # made when somebody iterates
    assert len(iterators) == len(given)
    assert given[0] == (plain._advance, None)
    assert given[1][0] != watched._advance
    assert given[1][1] is not None
    for client in (plain, watched):
        closing = client.close()
        if inspect.isawaitable(closing):
            asyncio.run(_wait(closing))


async def _wait(closing: Any) -> None:
    await closing


# --- the broker ---


def served(tmp_path: Path, talk: Callable[[Broker], Awaitable[None]]) -> None:
    """Run a broker with a topic of one partition in this process."""

    async def main() -> None:
        config = {"log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"}
        broker = Broker(BrokerConfig.from_mapping(config), asyncio.get_running_loop())
        try:
            await broker.start()
            broker.router.versions()
            broker.controller.create_topics([NewTopic("logs", 1, 1)])
            broker.controller.settle()
            await talk(broker)
        finally:
            assert await broker.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def a_produce(topic: str = "logs") -> ProduceRequest:
    records = bytes(build_batch([(1, None, b"value", ())], base_offset=0))
    part = ProduceRequest.PartitionProduceData(index=0, records=records)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])


def a_fetch() -> FetchRequest:
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(max_bytes=1 << 20, topics=[FetchRequest.FetchTopic(topic="logs", partitions=[part])])


REQUESTS: list[tuple[Any, int]] = [
    (a_produce(), 9),
    (a_produce("missing"), 9),
    (a_fetch(), 12),
    (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
    (MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="logs")]), 9),
    (HeartbeatRequest(), 4),
]


def serves(broker: Broker, request: Any, version: int) -> Counter[str]:
    """The calls of one request between its last byte and its answer, the second time that it is made."""
    connection: Any = SimpleNamespace(peer=("127.0.0.1", 1), listener="PLAINTEXT", software=("", ""), state={})
    calls: Counter[str] = Counter()
    for _ in range(2):
        frame = bytearray(encode_request(1, "test", request, version))
        header = scan_request(frame, 0, len(frame), flexible_versions(), len(frame))
        assert header is not None
        calls = calls_of(lambda frame=frame, header=header: broker.router.dispatch(connection, frame, header))  # type: ignore[misc]
    return calls


def clock_calls(calls: Counter[str]) -> Counter[str]:
    return Counter({name: count for name, count in calls.items() if name in CLOCKS})


def test_a_request_reads_no_clock_to_be_measured(tmp_path: Path) -> None:
    async def talk(broker: Broker) -> None:
        assert type(broker.router) is Router
        for request, version in REQUESTS:
            # The broker's own clocks, once: for the time of an append, and for the age of a fetch session.
            own = {ProduceRequest: {"time_ns": 1}, FetchRequest: {"monotonic": 1}}.get(type(request), {})
            assert clock_calls(serves(broker, request, version)) == own, request
        plain = [serves(broker, request, version) for request, version in REQUESTS]
        broker.router = MeteredRouter(broker)
        for (request, version), without in zip(REQUESTS, plain, strict=True):
            more = serves(broker, request, version) - without
            assert more["perf_counter"] == 2, request
            assert more["answered"] == 1, request

    served(tmp_path, talk)


def test_a_failed_partition_is_told_to_nobody(tmp_path: Path) -> None:
    async def talk(broker: Broker) -> None:
        assert serves(broker, a_produce("missing"), 9)["partition_failed"] == 1
        assert calls_of(lambda: broker.router.partition_failed(0, 3)) == {"partition_failed": 1}
        assert set(vars(broker.router)) == set(vars(Router(broker)))  # and kept nowhere
        metered = MeteredRouter(broker)
        broker.router = metered
        serves(broker, a_produce("missing"), 9)
        assert metered.stats[0].partition_errors == {3: 2}

    served(tmp_path, talk)


def test_states_are_read_when_asked_for(tmp_path: Path) -> None:
    async def talk(broker: Broker) -> None:
        (replica,) = broker.replicas
        listeners = replica.log._listeners, list(broker.controller._listeners)
        assert len(replica.log._listeners) == 2  # the sessions that sleep, and the long polls that wait for records
        router = MeteredRouter(broker)
        metrics = BrokerMetrics(broker, router)
        assert 'fastq_topic_high_watermark_sum{topic="logs"} 0' in metrics.text()
        serves(broker, a_produce(), 9)
        assert 'fastq_topic_high_watermark_sum{topic="logs"} 2' in metrics.text()
        assert (replica.log._listeners, broker.controller._listeners) == listeners

    served(tmp_path, talk)
