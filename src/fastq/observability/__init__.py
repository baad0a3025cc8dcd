"""Watching the clients: their metrics for Prometheus, and OpenTelemetry spans of what is sent and consumed.

    exporter = PrometheusExporter()
    exporter.add("orders", producer)
    exporter.serve("127.0.0.1", 9400)

    producer = Producer(..., interceptors=[TracingProducerInterceptor()])        # needs the extra otel
    consumer = Consumer(..., interceptors=[TracingConsumerInterceptor()])

Rules: nothing here is imported by the clients, so it costs nothing until it is used. Metrics need no other package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.observability.prometheus import PrometheusExporter

if TYPE_CHECKING:
    from fastq.observability.tracing import TracingConsumerInterceptor as TracingConsumerInterceptor
    from fastq.observability.tracing import TracingProducerInterceptor as TracingProducerInterceptor

__all__ = ["PrometheusExporter", "TracingConsumerInterceptor", "TracingProducerInterceptor"]

if not TYPE_CHECKING:  # which would take any name for one of the package

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fastq.observability import tracing

        return getattr(tracing, name)
