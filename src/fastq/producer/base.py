"""What the blocking and the asyncio producer share: how one is put together, prepared records, metrics.

Rules: nothing here waits. The parts are an Accumulator (records), a ClientCore (connections) and a Sender between them.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fastq import compression
from fastq._native.accumulator import (
    CLOSED,
    FORKED,
    INTERCEPTORS,
    NO_TRANSACTION,
    PARTITIONER,
    SERIALIZERS,
    SYNC,
    Accumulator,
)
from fastq._native.producer_batch import Batch, TopicState
from fastq._native.producer_core import DeliveryBase, pairs_of
from fastq.callbacks import unfinished
from fastq.errors import (
    BufferTimeout,
    ClientClosed,
    FastqError,
    ForkedClient,
    TransactionAborted,
    TransactionStateError,
    error_for_code,
)
from fastq.interceptors import ProducerRecord, apply_on_acknowledgement, apply_on_send
from fastq.metrics import ProducerMetrics
from fastq.net.core import ClientCore
from fastq.producer import lifetime
from fastq.producer.config import ProducerConfig
from fastq.producer.failures import Failures
from fastq.producer.partitioners import choose_partition
from fastq.producer.sender import Sender, SenderSettings
from fastq.producer.transactions import Transactions
from fastq.recurring import Recurring
from fastq.serializers import serialize
from fastq.values import NamedTuple, replace

logger = logging.getLogger("fastq.producer")


class Prepared(NamedTuple):
    """A record whose key and value are bytes-like: what the native send takes."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int | None
    timestamp_ms: int | None


class Parts:
    """The parts of one producer, put together from its configuration."""

    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self._recurring = Recurring()  # what callbacks and interceptors fail with
        self._told_of_transaction = False  # that it was open at the end, with all its records
        self._told_of_callback = False  # that one was a coroutine function: said once
        batch_bytes, batch_bytes_max = config.batch_bytes
        self.core = ClientCore(config, allow_auto_topic_creation=config.allow_auto_create_topics)
        self.accumulator = Accumulator(
            buffer_memory=config.buffer_memory,
            batch_size=batch_bytes,
            batch_size_max=batch_bytes_max,
            max_request_size=config.max_request_size,
            clock=time.monotonic,
            seed=random.getrandbits(63),
            records_max=config.buffer_records_max,
            batch_records_max=config.batch_records_max,
            adaptive_partitioning=config.partitioner_adaptive_partitioning_enable,
            key_hash=config.key_hash,
            precise_clock=config.linger_ms == 0,
        )
        self.accumulator.slow = (
            (SERIALIZERS if config.key_serializer is not None or config.value_serializer is not None else 0)
            | (INTERCEPTORS if config.interceptors else 0)
            | (PARTITIONER if config.asks_partitioner else 0)
            | (SYNC if config.wait_for_delivery else 0)
        )
        compression.check_codec(config.codec)
        self.compressor = partial(_compress, level=config.codec_level)
        self.transactions = self._transactions()
        self.failures = Failures()
        self.sender = Sender(self.core, self.accumulator, self._settings(), self.transactions, self.failures)
        _alive.add(self)

    def _settings(self) -> SenderSettings:
        config = self.config
        return SenderSettings(
            acks=int(config.acks),
            idempotent=config.is_idempotent,
            max_in_flight=config.max_in_flight_requests_per_connection,
            max_request_size=config.max_request_size,
            request_timeout_s=config.request_timeout_ms / 1000,
            delivery_timeout_s=config.delivery_timeout_ms / 1000,
            retries=config.retries,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
            codec_of=config.codec_of,
        )

    def _transactions(self) -> Transactions | None:
        config = self.config
        if config.transactional_id is None:
            return None
        return Transactions(
            self.core,
            self.accumulator,
            config.transactional_id,
            timeout_ms=config.transaction_timeout_ms,
            request_timeout_s=config.request_timeout_ms / 1000,
            retry_backoff_ms=config.retry_backoff_ms,
            retry_backoff_max_ms=config.retry_backoff_max_ms,
        )

    # -- records --------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise ClientClosed or ForkedClient when that is so, and what keeps a transactional producer from sending."""
        slow = self.accumulator.slow
        if slow & FORKED:
            raise ForkedClient()
        if slow & CLOSED:
            raise ClientClosed("the producer is closed: the record was not accepted")
        if slow & NO_TRANSACTION and self.transactions is not None:
            self.transactions.check_send()

    @property
    def transaction(self) -> int:
        """Which transaction it is: how many have ended before."""
        transactions = self.transactions
        return 0 if transactions is None else transactions.committed_total + transactions.aborted_total

    def is_over(self, sent_in: int) -> bool:
        """Whether the transaction `sent_in` takes no more records."""
        return self.transactions is not None and bool(
            self.accumulator.slow & NO_TRANSACTION or sent_in != self.transaction
        )

    def check_going_on(self, sent_in: int) -> None:
        """The same for a call in whose middle others had their turn, as while its serializer ran: a close ends it too."""
        if self.accumulator.slow & CLOSED and not self.accumulator.slow & FORKED:
            raise ClientClosed("the producer was closed in the middle of the call: the record was not accepted")
        self.check_transaction(sent_in)

    def check_transaction(self, sent_in: int) -> None:
        """Raise what keeps a record that was taken before, perhaps before the producer was closed, from going in: it is of the
        transaction `sent_in`, and of no later one."""
        if self.accumulator.slow & FORKED:
            raise ForkedClient()
        transactions = self.transactions
        if transactions is None:
            return
        if sent_in == self.transaction:
            if self.accumulator.slow & NO_TRANSACTION:
                transactions.check_send()
        else:
            raise TransactionStateError(
                "the record was not written: the transaction that it was sent in ended before it was in",
                transactional_id=transactions.transactional_id,
                hint="Send it again in the next one",
            )

    def metadata_watch(self) -> Callable[[], bool]:
        """A predicate: whether something about the metadata or the connections has changed since now."""

        def state() -> tuple[object, ...]:
            core = self.core
            return (
                core.metadata.generation,
                core.metadata_updater.failures,
                core.metadata_updater.successes,
                core.last_error,
            )

        seen = state()
        return lambda: state() != seen

    def check_open(self) -> None:
        """Raise ClientClosed or ForkedClient when that is so."""
        if self.accumulator.slow & FORKED:
            raise ForkedClient()
        if self.accumulator.slow & CLOSED:
            raise ClientClosed()

    def intercept(self, record: ProducerRecord) -> ProducerRecord:
        """The record after the interceptors, who may read its headers."""
        headers = kept_headers(record.headers)
        if headers is not record.headers:
            record = replace(record, headers=headers)
        return apply_on_send(self.config.interceptors, record, self._recurring)

    def prepare(self, record: ProducerRecord, topic: TopicState) -> Prepared:
        """Serialize a record and ask the partitioner. Raises SerializationError, and what a partitioner raises."""
        config = self.config
        key = serialize(config.key_serializer, record.topic, record.key, "key")
        value = serialize(config.value_serializer, record.topic, record.value, "value")
        index = record.partition
        if index is None and config.asks_partitioner:
            index = choose_partition(
                config.partitioner,
                record.topic,
                record.key,
                key,
                record.value,
                value,
                range(len(topic.partitions)),
                [partition.index for partition in topic.available],
            )
        return Prepared(record.topic, value, key, record.headers, index, record.timestamp_ms)

    def acknowledge(self, record: ProducerRecord, delivery: DeliveryBase) -> None:
        """Tell the interceptors what became of a record."""
        error = delivery.exception()  # type: ignore[attr-defined]
        metadata = None if error is not None else delivery.result()  # type: ignore[attr-defined]
        apply_on_acknowledgement(self.config.interceptors, record, metadata, error, self._recurring)

    def acknowledge_later(self, record: ProducerRecord, delivery: DeliveryBase) -> None:
        """Have the interceptors hear what becomes of a record that is in. Where there is no memory for that they do not, and the send has
        not failed: who is told so sends the record again."""
        try:
            delivery.add_done_callback(partial(self.acknowledge, record))
        except MemoryError:
            try:
                logger.exception("the interceptors will not hear what becomes of a record of topic %s", record.topic)
            except MemoryError:
                pass

    def abandon(self, why: str) -> None:
        """Fail what has no fate yet, at the end of the producer, and say how much that was."""
        error = ClientClosed(f"the record was not delivered: {why}")
        lost = self.accumulator.abort(error)
        if not self._told_of_transaction:
            self.failures.count(lost, error)
        report_lost(lost, why)

    def tell_open_transaction(self, waiting: int) -> None:
        """At the end of the producer: its open transaction is aborted, and nobody has asked for that. `waiting`: its records that are not
        in yet, and of which nobody hears."""
        transactions = self.transactions
        if transactions is not None and (left := transactions.records_left + waiting):
            error = TransactionAborted(
                "the producer was closed while its transaction was open",
                transactional_id=transactions.transactional_id,
                cause=transactions.error,
                hint="End it before: `with producer.transaction()` does, commit_transaction() or abort_transaction()",
            )
            self.failures.note(left, error, time.monotonic())
            self._told_of_transaction = True

    def refused(self, record: ProducerRecord, error: BaseException) -> None:
        """Tell the interceptors that a record was not accepted."""
        apply_on_acknowledgement(self.config.interceptors, record, None, error, self._recurring)

    # -- batches --------------------------------------------------------------------------------------------------

    def compress_pending(self) -> None:
        """Compress the closed batches that wait for it; the compressors release the GIL."""
        pending = self.accumulator.to_compress
        while pending:
            try:
                batch: Batch = pending.popleft()
            except IndexError:
                return
            try:
                batch.compress(self.compressor)
            except Exception as error:
                message = "compression with %s failed; the batch is sent without"
                self._recurring.failed(logger, ("compression", type(error)), message, self.config.compression_type)

    def run_callbacks_of(self, batch: Batch) -> None:
        """Run the callbacks of a completed batch. An exception in one is logged, at a bounded rate, and stops nothing."""
        self.run_callbacks(iter(batch.take_callbacks()))

    def run_callbacks(self, due: Iterator[tuple[int, Callable[[Any], Any], Any]]) -> None:
        """The same for those that an iterator has left: what ends this early, an interrupt, leaves it at the next one."""
        for _index, callback, argument in due:
            try:
                answer = callback(argument)
                error = (
                    None
                    if answer is None
                    else unfinished(answer, callback, "the delivery callback", "Nobody awaits it")
                )
                if error is not None and not self._told_of_callback:
                    self._told_of_callback = True
                    logger.error("%s", error)
            except (Exception, SystemExit) as error:
                # It ends the program where that can be: not in a thread of ours, and not when the rest is to be delivered at its end.
                if (
                    isinstance(error, SystemExit)
                    and threading.current_thread() is threading.main_thread()
                    and not lifetime.is_ending()
                ):
                    raise
                self._recurring.failed(logger, ("callback", type(error)), "a delivery callback failed")

    # -- errors ---------------------------------------------------------------------------------------------------

    def no_room(self, topic: str) -> BufferTimeout:
        """The error of a send that found no room within max_block_ms."""
        accumulator, pool = self.accumulator, self.accumulator.pool
        refused = (batch.last_error for batch in list(accumulator.incomplete) if batch.last_error is not None)
        from fastq.words import counted

        setting, full = "buffer_memory", f"{pool.used_bytes} of buffer_memory={pool.limit_bytes} bytes"
        if self.config.buffer_records_max and not accumulator.wanted_bytes:  # but a record's place
            setting = "buffer_records_max"
            full = f"{accumulator.buffered_records} of buffer_records_max={self.config.buffer_records_max} records"
        return BufferTimeout(
            f"no room for a record within max_block_ms={self.config.max_block_ms}: {full} wait for the brokers in "
            f"{counted(len(accumulator.incomplete), 'batch')}",
            topic=topic,
            cause=next(refused, None) or self.sender.why() or self.core.last_error,
            hint=f"Send less, or raise {setting} or max_block_ms",
        )

    def no_metadata(self, topic: str) -> FastqError:
        """The error of a send whose topic did not become known within max_block_ms."""
        known = self.core.metadata.topic(topic)
        if known is not None and known.error:
            return error_for_code(known.error, topic=topic, hint="Create the topic, or check its name")
        return BufferTimeout(
            f"no metadata of the topic within max_block_ms={self.config.max_block_ms}",
            topic=topic,
            cause=self.core.last_error,
            hint=f"Check bootstrap_servers={','.join(self.config.bootstrap_servers)}",
        )

    def no_partition(self, topic: str, index: int, count: int) -> Exception:
        """The error of a send to a partition that the topic does not have, or that none can have."""
        if index < 0:
            return ValueError(
                f"partition is a number from 0 to {count - 1} for topic {topic}, or None to have one chosen, got {index}"
            )
        has = "one partition, 0" if count == 1 else f"partitions 0 to {count - 1}"
        return error_for_code(3, f"the topic has {has}", topic=topic, partition=index)

    # -- metrics --------------------------------------------------------------------------------------------------

    def metrics(self) -> ProducerMetrics:
        """Counters since the start, and what waits now; units are in the names."""
        accumulator, sender = self.accumulator, self.sender
        batches = max(accumulator.batches_total, 1)
        return {
            "records_sent_total": accumulator.records_total,
            "batches_total": accumulator.batches_total,
            "bytes_total": accumulator.bytes_total,
            "requests_total": sender.requests_total,
            "retries_total": sender.retries_total,
            "record_errors_total": sender.errors_total,
            "epoch_bumps_total": sender.identity.epoch_bumps,
            "transactions_committed_total": self.transactions.committed_total if self.transactions is not None else 0,
            "transactions_aborted_total": self.transactions.aborted_total if self.transactions is not None else 0,
            "records_per_batch_avg": accumulator.records_total / batches,
            "batch_bytes_avg": accumulator.bytes_total / batches,
            "buffered_records": accumulator.buffered_records,
            "buffer_used_bytes": accumulator.pool.used_bytes,
            "buffer_free_bytes": accumulator.pool.limit_bytes - accumulator.pool.used_bytes,
            "batches_incomplete": len(accumulator.incomplete),
        }


def kept_headers(headers: Any) -> Any:
    """Headers that can be read more than once."""
    if headers is None or isinstance(headers, list | tuple | Mapping) or hasattr(headers, "items"):
        return headers
    return tuple(pairs_of(headers))


def _compress(codec: int, data: Any, *, level: int | None) -> bytes:
    return compression.compress(codec, data, level)


def report_lost(lost: int, why: str) -> None:
    """Say loudly that records were not delivered: in the log, and on stderr where the log goes somewhere else, which a program that
    ends may not show. A log without a handler is on stderr by itself.
    """
    if lost:
        from fastq.words import counted

        what = f"{counted(lost, 'record')} {'was' if lost == 1 else 'were'} not delivered: {why}"
        logger.error("%s", what)
        if not logger.hasHandlers() or (logger.isEnabledFor(logging.ERROR) and _log_is_on_stderr()):
            return
        try:
            os.write(2, f"fastq: {what}\n".encode())
        except OSError:
            pass


def _log_is_on_stderr() -> bool:
    """Whether a handler of the log shows errors on standard error, or in the same file as that is."""
    source: logging.Logger | None = logger
    while source is not None:
        if any(handler.level <= logging.ERROR and _is_stderr(handler) for handler in source.handlers):
            return True
        source = source.parent if source.propagate else None
    return False


def _is_stderr(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    if stream is None:
        return False
    try:
        return stream is sys.stderr or os.path.sameopenfile(stream.fileno(), 2)
    except (AttributeError, TypeError, ValueError, OSError):  # in memory, or closed
        return False


_alive: weakref.WeakSet[Parts] = weakref.WeakSet()


def _mark_forked() -> None:
    for parts in list(_alive):
        parts.accumulator.slow |= FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
