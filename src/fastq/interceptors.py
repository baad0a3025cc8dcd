"""Interceptors: code that sees every record on its way out, and what became of it.

Rules, after Kafka's ProducerInterceptor: they run in the order in which they are given; an exception of one is logged, at a
bounded rate, and the record goes on as it was; `on_send` runs in the thread that calls send, before serializers and partitioner;
`on_acknowledgement` and `on_delivery` where callbacks run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastq.recurring import Recurring, more
from fastq.values import Value

if TYPE_CHECKING:
    from fastq.producer.delivery import RecordMetadata

logger = logging.getLogger("fastq.producer")


class ProducerRecord(Value):
    """A record on its way out. Change it with `dataclasses.replace`."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Base of interceptors; any of the methods may stay as it is."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """What is sent instead of `record`; most return it, or a copy with a header more."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """The record was delivered (`metadata`), or failed (`error`)."""

    def on_delivery(self, record: ProducerRecord, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """The same, with the record as it was after all interceptors; its `headers` are the object that was sent."""


def apply_on_send(
    interceptors: Iterable[ProducerInterceptor], record: ProducerRecord, recurring: Recurring
) -> ProducerRecord:
    """`record` after all interceptors."""
    for interceptor in interceptors:
        try:
            changed = interceptor.on_send(record)
            if isinstance(changed, ProducerRecord):
                record = changed
            elif (left_out := recurring.due((id(interceptor), "answer"))) is not None:
                logger.error(
                    "interceptor %r answered %r, not a ProducerRecord: ignored%s", interceptor, changed, more(left_out)
                )
        except Exception as error:
            message = "interceptor %r failed; the record goes on as it was"
            recurring.failed(logger, (id(interceptor), "on_send", type(error)), message, interceptor)
    return record


def apply_on_acknowledgement(
    interceptors: Iterable[ProducerInterceptor],
    record: ProducerRecord,
    metadata: RecordMetadata | None,
    error: BaseException | None,
    recurring: Recurring,
) -> None:
    """Tell all interceptors."""
    for interceptor in interceptors:
        try:
            interceptor.on_acknowledgement(metadata, error)
            # Who has no base class, as interceptors of other clients, need not know it.
            on_delivery = getattr(interceptor, "on_delivery", None)
            if on_delivery is not None:
                on_delivery(record, metadata, error)
        except Exception as failure:
            subject = (id(interceptor), "on_acknowledgement", type(failure))
            recurring.failed(logger, subject, "interceptor %r failed", interceptor)
