"""The metrics of clients in Prometheus' text format, over HTTP or within a prometheus_client registry.

Rules
- A metric is `fastq_producer_...` or `fastq_consumer_...` with the label `client`, the name under which the client was added; those of
  partitions have `topic` and `partition` too. Names end in `_total` for counters.
- Clients are asked when somebody scrapes, from that thread: `metrics()` only reads counters. One that fails is left out.
- Clients are held weakly: one that is gone is no longer told of.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from fastq.metrics import CONSUMER_MEANINGS, PARTITION_MEANINGS, PRODUCER_MEANINGS, ConsumerMetrics, ProducerMetrics

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("fastq.observability")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONSUMER_COUNTERS = ("fetches", "fetch_errors", "fetched_bytes", "skipped_records")


class Client(Protocol):
    """A producer or a consumer, of either kind."""

    def metrics(self) -> ProducerMetrics | ConsumerMetrics: ...


class Family(NamedTuple):
    """A metric with its samples, as (labels, value)."""

    name: str
    kind: str
    meaning: str
    samples: list[tuple[dict[str, str], float]]


class PrometheusExporter:
    """A set of clients and what Prometheus reads of them. Thread-safe.

    Also a collector of prometheus_client: `REGISTRY.register(exporter)`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, weakref.ref[Client]] = {}
        self._server: ThreadingHTTPServer | None = None

    def add(self, name: str, client: Client) -> None:
        """Tell of a client under a name, in place of an earlier one of that name. TypeError for what has no metrics()."""
        if not callable(getattr(client, "metrics", None)):
            raise TypeError(f"a client with metrics() is expected, a producer or a consumer, got {client!r}")
        with self._lock:
            self._clients[name] = weakref.ref(client)

    def remove(self, name: str) -> None:
        """Tell of it no more."""
        with self._lock:
            self._clients.pop(name, None)

    def families(self) -> list[Family]:
        """Every metric of every client that is left."""
        found: dict[str, Family] = {}
        for name, metrics in self._read():
            consumer = "partitions" in metrics
            for metric, kind, meaning, labels, value in _of_consumer(metrics) if consumer else _of_producer(metrics):
                family = found.setdefault(metric, Family(metric, kind, meaning, []))
                family.samples.append(({"client": name, **labels}, value))
        return [found[metric] for metric in sorted(found)]

    def text(self) -> str:
        """The text exposition format 0.0.4."""
        return text_of(self.families())

    def collect(self) -> Iterator[Any]:
        """For prometheus_client, which has to be installed for this."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self.families():
            if not family.samples:
                continue
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.meaning, labels=list(family.samples[0][0]))
            for labels, value in family.samples:
                metric.add_metric(list(labels.values()), value)
            yield metric

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Answer every GET with the text, in a daemon thread; the port, a free one for 0. OSError when it is taken, which names it."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                body = exporter.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are no news."""

        if self._server is not None:
            raise RuntimeError("the exporter serves already; close it first")
        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            reason = f"metrics cannot be served at {host}:{port}: {error.strerror or error}; choose another port, or 0 for a free one"
            raise OSError(error.errno, reason) from error
        threading.Thread(target=self._server.serve_forever, name="fastq-metrics", daemon=True).start()
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _read(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with self._lock:
            clients = dict(self._clients)
        for name, reference in clients.items():
            client = reference()
            if client is None:
                with self._lock:
                    if self._clients.get(name) is reference:
                        del self._clients[name]
                continue
            try:
                yield name, cast("Mapping[str, Any]", client.metrics())
            except Exception:
                logger.exception("the metrics of %s could not be read", name)


def text_of(families: Iterable[Family]) -> str:
    """Metrics in the text exposition format 0.0.4."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.meaning}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.samples:
            shown = ",".join(f'{key}="{_escaped(item)}"' for key, item in labels.items())
            lines.append(f"{family.name}{{{shown}}} {value}")
    return "\n".join([*lines, ""])


Sample = tuple[str, str, str, dict[str, str], float]
"""Name, kind, meaning, labels, value."""


def _of_producer(metrics: Mapping[str, Any]) -> Iterator[Sample]:
    for key, value in metrics.items():
        kind = "counter" if key.endswith("_total") else "gauge"
        yield f"fastq_producer_{key}", kind, PRODUCER_MEANINGS.get(key, key), {}, value


def _of_consumer(metrics: Mapping[str, Any]) -> Iterator[Sample]:
    for key, value in metrics.items():
        if key == "partitions" or not isinstance(value, (int, float)):
            continue
        meaning = CONSUMER_MEANINGS.get(key, key)
        if key in CONSUMER_COUNTERS:
            yield f"fastq_consumer_{key}_total", "counter", meaning, {}, value
        else:
            yield f"fastq_consumer_{key}", "gauge", meaning, {}, value
    for (topic, partition), state in metrics["partitions"].items():
        labels = {"topic": topic, "partition": str(partition)}
        for key, value in state.items():
            if value is not None:
                meaning = PARTITION_MEANINGS.get(key, key)
                yield f"fastq_consumer_partition_{key}", "gauge", meaning, labels, value


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
