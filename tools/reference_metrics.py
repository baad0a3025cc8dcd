"""The page of metrics: name, kind, labels and meaning of each that Prometheus can read, from the code that tells them.

Rules: the sources are read, not run. A metric is a call of `out.family` or `out.histogram`, or a `Family`, with its name, kind and
meaning as texts, constants of the module, or variables of a loop over a tuple of texts. Labels are the keys of the dictionaries
that its samples are made of. `tests/integration/test_metrics_page.py` compares the page with what a cluster tells.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reference_words import cell, table

ROOT = Path(__file__).resolve().parents[1]
BROKER = (
    "broker/fastq_broker/metrics.py",
    "broker/fastq_broker/metrics_kafka.py",
    "broker/fastq_broker/metrics_recent.py",
    "broker/fastq_broker/metrics_topics.py",
)
MIRROR = "src/fastq/mirror/metrics.py"
Texts = dict[str, str | list[str]]


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> Iterator[str]:
    yield from (
        "What Prometheus reads of each side, and how to have it read: [metrics and tracing](../guides/observability.md).",
        "",
    )
    yield "Counters end in `_total` and count since the process, or the client, began; bytes, seconds and records are in the names."
    for heading, about, found in (
        (
            "Of a broker",
            "Served under `/metrics` with `--metrics-listen`. `kafka_...` are the names that dashboards for Apache Kafka ask for. "
            "Those of partitions are told while a broker has 2,000 or fewer, those of groups of the first 1,000; "
            "`fastq_controller_...` in a cluster alone, the states in them by its active controller.",
            broker_metrics(),
        ),
        (
            "Of a producer",
            "Of `PrometheusExporter`; the keys of `Producer.metrics()` are these without `fastq_producer_`.",
            producer_metrics(),
        ),
        ("Of a consumer", "Of `PrometheusExporter`; `Consumer.metrics()` has the same.", consumer_metrics()),
        ("Of a mirror", "Served with `fastq mirror --metrics`.", mirror_metrics()),
    ):
        yield from ("", f"## {heading}", "", about, "")
        rows = (
            (f"`{m.name}`", cell(m.meaning), m.kind, ", ".join(f"`{each}`" for each in m.labels)) for m in sorted(found)
        )
        yield from table(("metric", "what it is", "kind", "labels"), rows)


def producer_metrics() -> list[Metric]:
    from fastq.metrics import PRODUCER_MEANINGS, ProducerMetrics
    from fastq.observability.prometheus import _of_producer

    told = _of_producer(dict.fromkeys(ProducerMetrics.__annotations__, 0))
    assert set(PRODUCER_MEANINGS) == set(ProducerMetrics.__annotations__)
    return [Metric(name, kind, ("client", *labels), meaning) for name, kind, meaning, labels, _ in told]


def consumer_metrics() -> list[Metric]:
    from fastq.metadata import TopicPartition
    from fastq.metrics import CONSUMER_MEANINGS, PARTITION_MEANINGS, ConsumerMetrics, PartitionMetrics
    from fastq.observability.prometheus import _of_consumer

    assert set(CONSUMER_MEANINGS) == set(ConsumerMetrics.__annotations__)
    assert set(PARTITION_MEANINGS) == set(PartitionMetrics.__annotations__)
    partitions = {TopicPartition("t", 0): dict.fromkeys(PartitionMetrics.__annotations__, 0)}
    told = _of_consumer({**dict.fromkeys(ConsumerMetrics.__annotations__, 0), "partitions": partitions})
    return [Metric(name, kind, ("client", *labels), meaning) for name, kind, meaning, labels, _ in told]


def mirror_metrics() -> list[Metric]:
    from fastq.mirror.metrics import OF_PARTITIONS, OF_PROCESS

    sides = ("source", "target")
    found = [
        Metric(f"fastq_mirror_{name}", "gauge", (*sides, "topic", "partition"), meaning)
        for name, meaning, _ in OF_PARTITIONS
    ]
    found += [Metric(f"fastq_mirror_{name}", "counter", sides, meaning) for name, meaning, _ in OF_PROCESS]
    module = ast.parse((ROOT / MIRROR).read_text())
    for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
        known = {
            node.targets[0].id: node.value
            for node in function.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        known |= {
            each.targets[0].id: each.value
            for node in ast.walk(function)
            if isinstance(node, ast.If)
            for each in node.body
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
        }
        for call in (
            node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ):
            if call.func.id not in ("_one", "Family") or isinstance(call.args[0], ast.JoinedStr):
                continue
            if isinstance(call.args[0], ast.Name) and call.args[0].id not in known:
                continue  # of one of the tables above
            name, kind, meaning = (
                text_of(known.get(arg.id, arg) if isinstance(arg, ast.Name) else arg, {}) for arg in call.args[:3]
            )
            labels = () if call.func.id == "_one" else ("topic", "partition")
            full = name if name.startswith("fastq_mirror_") else f"fastq_mirror_{name}"
            found.append(Metric(full, kind, (*sides, *labels), meaning))
    return found


def broker_metrics() -> list[Metric]:
    found: dict[str, Metric] = {}
    for path in BROKER:
        module = ast.parse((ROOT / path).read_text())
        constants: Texts = {
            node.targets[0].id: node.value.value
            for node in module.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }
        for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
            for metric in _of_body(function.body, constants, _bound(function)):
                found[metric.name] = metric
    return list(found.values())


def _of_body(body: list[ast.stmt], texts: Texts, bound: dict[str, list[ast.expr]]) -> Iterator[Metric]:
    """The metrics of statements, those in a loop over texts once a turn."""
    for node in body:
        if isinstance(node, ast.For):
            for turn in _turns(node, texts):
                yield from _of_body(node.body, {**texts, **turn}, bound)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _of_body([*node.body, *getattr(node, "orelse", [])], texts, bound)
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        ):
            if isinstance(node.value.value, str):
                texts = {**texts, node.targets[0].id: node.value.value}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            method = getattr(call.func, "attr", "")
            if method == "family":
                name, kind, meaning = (text_of(arg, texts) for arg in call.args[:3])
            elif method == "histogram":
                (name, meaning), kind = (text_of(arg, texts) for arg in call.args[:2]), "histogram"
            else:
                continue
            samples = call.args[-1]
            # One number of several.
            labels = [] if isinstance(samples, ast.Subscript) else _labels(samples, texts, bound, set())
            yield Metric(name, kind, tuple(dict.fromkeys(labels)), meaning)


def _turns(loop: ast.For, texts: Texts) -> Iterator[Texts]:
    """What each turn of a loop over a tuple gives to its variables that are texts; one turn that gives nothing for other loops."""
    target, over = loop.target, loop.iter
    if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "enumerate":
        over = over.args[0]
        target = target.elts[1] if isinstance(target, ast.Tuple) else target
    if not isinstance(over, ast.Tuple) or not isinstance(target, ast.Tuple):
        yield {}
        return
    for item in over.elts:
        given: Texts = {}
        if not isinstance(item, ast.Tuple):
            continue
        for at, name in enumerate(target.elts):
            if isinstance(name, ast.Starred) and isinstance(name.value, ast.Name):
                given[name.value.id] = [text_of(each, texts) for each in item.elts[at:]]
            elif isinstance(name, ast.Name) and isinstance(item.elts[at], ast.Constant | ast.JoinedStr):
                given[name.id] = text_of(item.elts[at], texts)
        yield given


def text_of(node: ast.expr, texts: Texts) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return str(texts[node.id])
    if isinstance(node, ast.BinOp):
        return text_of(node.left, texts) + text_of(node.right, texts)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            text_of(part.value if isinstance(part, ast.FormattedValue) else part, texts) for part in node.values
        )
    raise ValueError(f"a metric's text in a form that the page's generator does not know: {ast.unparse(node)}")


def _bound(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """What the names of a function are made of: assignments, and what loops and comprehensions go over."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.comprehension):
            pairs = [(node.target, node.iter)]
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "append"
            and isinstance(node.func, ast.Attribute)
        ):
            pairs = [(node.func.value, node.args[0])]
        for target, value in pairs:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and value is not None:
                    found.setdefault(name.id, []).append(value)
    return found


def _labels(node: ast.expr, texts: Texts, bound: dict[str, list[ast.expr]], seen: set[str]) -> Iterator[str]:
    """The keys of the dictionaries that samples are made of."""
    for each in ast.walk(node):
        if isinstance(each, ast.Dict):
            for key in each.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            given = texts.get(each.id)
            if isinstance(given, list):
                yield from given
            elif each.id not in seen:
                seen.add(each.id)
                for value in bound.get(each.id, []):
                    yield from _labels(value, texts, bound, seen)
