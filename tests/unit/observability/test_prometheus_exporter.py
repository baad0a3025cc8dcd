"""The clients' metrics as Prometheus and prometheus_client read them."""

from __future__ import annotations

import gc
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fastq import Consumer, Producer, TopicPartition
from fastq.metrics import ConsumerMetrics, PartitionMetrics, ProducerMetrics
from fastq.observability import PrometheusExporter


class Fake:
    """A client with metrics."""

    def __init__(self, metrics: Any) -> None:
        self._metrics = metrics

    def metrics(self) -> Any:
        if isinstance(self._metrics, Exception):
            raise self._metrics
        return self._metrics


def consumer_metrics() -> ConsumerMetrics:
    parts: dict[TopicPartition, PartitionMetrics] = {
        TopicPartition('odd"one', 0): {"position": 5, "end_offset": 9, "lag": 4, "buffered_bytes": 0},
        TopicPartition("new", 3): {"position": None, "end_offset": None, "lag": None, "buffered_bytes": 7},
    }
    return {
        "fetches": 3,
        "fetch_errors": 1,
        "fetched_bytes": 100,
        "buffered_bytes": 7,
        "skipped_records": 2,
        "partitions": parts,
    }


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels."""
    return {
        (sample.name, ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_has_no_metrics_is_refused() -> None:
    with pytest.raises(TypeError, match=r"metrics\(\) is expected.*object"):
        PrometheusExporter().add("x", object())  # type: ignore[arg-type]  # what is tested


def test_a_consumer() -> None:
    exporter, client = PrometheusExporter(), Fake(consumer_metrics())
    exporter.add("mine", client)
    assert parsed(exporter.text()) == {
        ("fastq_consumer_fetches_total", "client=mine"): 3,
        ("fastq_consumer_fetch_errors_total", "client=mine"): 1,
        ("fastq_consumer_fetched_bytes_total", "client=mine"): 100,
        ("fastq_consumer_buffered_bytes", "client=mine"): 7,
        ("fastq_consumer_skipped_records_total", "client=mine"): 2,
        ("fastq_consumer_partition_position", 'client=mine,partition=0,topic=odd"one'): 5,
        ("fastq_consumer_partition_end_offset", 'client=mine,partition=0,topic=odd"one'): 9,
        ("fastq_consumer_partition_lag", 'client=mine,partition=0,topic=odd"one'): 4,
        ("fastq_consumer_partition_buffered_bytes", 'client=mine,partition=0,topic=odd"one'): 0,
        ("fastq_consumer_partition_buffered_bytes", "client=mine,partition=3,topic=new"): 7,
    }


def test_real_clients_have_the_keys_that_are_typed() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1") as producer, Consumer(bootstrap_servers="127.0.0.1:1") as consumer:
        assert set(producer.metrics()) == set(ProducerMetrics.__annotations__)
        assert set(consumer.metrics()) >= set(ConsumerMetrics.__annotations__)
        exporter = PrometheusExporter()
        exporter.add("out", producer)
        exporter.add("in", consumer)
        found = parsed(exporter.text())
        assert found["fastq_producer_records_sent_total", "client=out"] == 0
        assert found["fastq_producer_buffer_free_bytes", "client=out"] > 0
        assert found["fastq_consumer_fetches_total", "client=in"] == 0


def test_two_clients_share_a_family_and_a_broken_one_is_left_out() -> None:
    exporter = PrometheusExporter()
    clients = {"a": Fake({"retries_total": 1}), "b": Fake({"retries_total": 2}), "c": Fake(RuntimeError("on purpose"))}
    for name, client in clients.items():
        exporter.add(name, client)
    (family,) = exporter.families()
    assert (family.kind, family.samples) == ("counter", [({"client": "a"}, 1), ({"client": "b"}, 2)])
    exporter.remove("a")
    exporter.remove("a")
    assert [labels["client"] for labels, _ in exporter.families()[0].samples] == ["b"]


def test_clients_that_are_gone_are_forgotten() -> None:
    exporter = PrometheusExporter()
    client = Fake({"retries_total": 1})
    exporter.add("gone", client)
    assert exporter.families()
    del client
    gc.collect()
    assert exporter.families() == [] and exporter.text() == ""


def test_as_a_collector_it_says_the_same() -> None:
    exporter, client = PrometheusExporter(), Fake(consumer_metrics())
    exporter.add("mine", client)
    registry = CollectorRegistry()
    registry.register(exporter)
    assert parsed(generate_latest(registry).decode()) == parsed(exporter.text())


def test_over_http() -> None:
    client = Fake({"retries_total": 1})
    with PrometheusExporter() as exporter:
        exporter.add("mine", client)
        port = exporter.serve()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert response.read().decode() == exporter.text()
        with pytest.raises(RuntimeError, match="serves already"):
            exporter.serve()
    exporter.close()


def test_a_port_that_is_taken_is_named() -> None:
    first, second = PrometheusExporter(), PrometheusExporter()
    try:
        port = first.serve()
        with pytest.raises(OSError, match=f"metrics cannot be served at 127.0.0.1:{port}: .*; choose another port"):
            second.serve(port=port)
        assert second.serve() != port, "and it may be tried again"
    finally:
        first.close()
        second.close()
