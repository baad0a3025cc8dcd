"""docs/reference/metrics.md has what a cluster tells: each metric with its kind, its labels and its meaning, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from reference_metrics import Metric, broker_metrics
from reference_words import cell

from fastq import Consumer, Producer
from fastq.errors import FastqError
from fastq.testing import Broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
CLUSTER_ONLY = re.compile(
    r"fastq_controller_|kafka_server_replicafetchermanager_|kafka_server_replicamanager_(isr|failedisr)"
)


def told() -> dict[str, tuple[str, str, set[str]]]:
    """Kind, meaning and labels by name, of a broker that was written to and read from, and that refused something."""
    with Broker(in_memory=True, metrics=True) as broker:
        servers = broker.bootstrap_servers
        with Producer(bootstrap_servers=servers, max_block_ms=5_000) as producer:
            producer.send("watched", b"line").result(timeout=10)
            broker.fail("Produce", error="MESSAGE_TOO_LARGE")
            try:
                producer.send("watched", b"refused").result(timeout=10)
            except FastqError:
                pass
        with Consumer("watched", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest") as consumer:
            next(iter(consumer))
            consumer.commit()
        text = urlopen(f"{broker.metrics_url}/metrics").read().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    meanings = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in kinds}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in kinds else re.sub(r"_(bucket|sum|count|total)$", "", sample.name)
            labels[name] |= {*sample.labels} - {"le"}
    return {name: (kind, meanings[name], labels[name]) for name, kind in kinds.items()}


def test_the_page_has_what_a_broker_tells() -> None:
    known = {metric.name: metric for metric in broker_metrics()}
    page = PAGE.read_text(encoding="utf-8")
    found = told()
    assert {*found} == {name for name in known if not CLUSTER_ONLY.match(name)}
    for name, (kind, meaning, labels) in found.items():
        metric = known[name]
        assert isinstance(metric, Metric)
        assert (metric.kind, metric.meaning) == (kind, meaning)
        assert labels <= {*metric.labels}, name
        assert labels == {*metric.labels} or not labels, f"{name}: samples with {labels}, the page says {metric.labels}"
        assert f"| `{name}` | {cell(meaning)} | {kind} |" in page
