"""One measured loop of a fastq client, watched or not, in a process of its own: prints its figures as one JSON line.

    python benchmarks/compare/observability_runs.py send off --bootstrap 127.0.0.1:9092 --topic t --records 1000000

Rules: the loops are those of client_runs.py, word for word the same on every side; only what stands beside them differs:

    absent     nothing of fastq.observability is loaded
    off        all of it is loaded, and not used
    metrics    a PrometheusExporter has the client, and is read once a second
    tracing    every record has a span of OpenTelemetry's SDK, which is exported nowhere
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from client_runs import VALUE, Clock, iterate

SCRAPE_S = 1.0


@contextmanager
def scraped(client: Any) -> Iterator[None]:
    """Read a client's metrics as Prometheus would."""
    from fastq.observability import PrometheusExporter

    exporter, done = PrometheusExporter(), threading.Event()
    exporter.add("bench", client)

    def scrape() -> None:
        while not done.wait(SCRAPE_S):
            exporter.text()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def unwatched(client: Any) -> Iterator[None]:
    yield


def interceptor(kind: str) -> Any:
    from opentelemetry.sdk.trace import TracerProvider

    from fastq.observability import TracingConsumerInterceptor, TracingProducerInterceptor

    made = TracingProducerInterceptor if kind == "send" else TracingConsumerInterceptor
    return made(tracer_provider=TracerProvider())


def send(options: argparse.Namespace, watch: Callable[[Any], Any], **config: Any) -> dict[str, float]:
    from fastq import Producer

    with Producer(bootstrap_servers=options.bootstrap, acks="all", **config) as producer, watch(producer):
        producer.send(options.topic, VALUE).result(10)
        send, topic, count, value = producer.send, options.topic, options.records, VALUE
        with Clock() as clock:
            for _ in range(count):
                send(topic, value)
            producer.flush()
    return clock.figures(count)


def consume(options: argparse.Namespace, watch: Callable[[Any], Any], **config: Any) -> dict[str, float]:
    from fastq import Consumer

    with (
        Consumer(
            options.topic, bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", **config
        ) as consumer,
        watch(consumer),
    ):
        return iterate(consumer, options.records)


LOOPS = {"send": send, "consume": consume}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("side", choices=("absent", "off", "metrics", "tracing"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    config: dict[str, Any] = {}
    if options.side == "tracing":
        config["interceptors"] = [interceptor(options.loop)]
    elif options.side != "absent":
        import fastq.observability.prometheus
        import fastq.observability.tracing  # noqa: F401
    watch = scraped if options.side == "metrics" else unwatched
    figures = LOOPS[options.loop](options, watch, **config)
    if options.side == "absent" and any(name.startswith("fastq.observability") for name in sys.modules):
        raise RuntimeError(
            "fastq.observability is loaded, though nobody has asked for it: the other sides compare with that"
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
