"""What a log takes from a client: the checks before an append, and what the broker changes in a batch.

Rules
- Of an uncompressed batch every record is walked; of a compressed one only header and checksum are looked at, unless the topic is
  compacted, which needs the keys, or has a `compression.type` of its own: then the batch is walked, and stored in that codec. Walked
  is, too, what has a header that cannot be right: retention, searches and offsets rest on it. Some clients leave the largest timestamp
  unset, and leave it to the broker, as Kafka's opens every batch: where the codec's package is not installed it is the broker's time, or
  none where the first record has none.
- Nothing here touches the log: a refused batch leaves no trace. Source: LogValidator, UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from fastq._native.batch_validation import InvalidBatch, validate_batch
from fastq._native.records import (
    BatchHeader,
    read_header,
    recompress,
    stamp_log_append_time,
    stamp_max_timestamp,
)
from fastq.compression import Codec, codec_by_name, decompress
from fastq.errors import ErrorCode, KafkaError, MissingPackage, UnsupportedCompressionType, error_for_code

from .config import LogConfig

_UNCOMPRESSED: Final = frozenset({"uncompressed", "none"})
_RECORDS_PER_BYTE_MAX: Final = 8
"""Compressed records for each byte of a batch, above which its count is not believed. The densest that a codec reaches, with records of
nothing but their offsets, is 1.3."""


class Admission:
    """The checks of one partition under one configuration; immutable, so a change of settings makes another."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_compacted",
        "_config",
        "_decompress",
        "_partition",
        "_topic",
        "log_append_time",
    )

    def __init__(self, topic: str, partition: int, config: LogConfig) -> None:
        self._topic = topic
        self._partition = partition
        self._config = config
        self.log_append_time = 1 if config.message_timestamp_type == "LogAppendTime" else 0
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._compacted = config.compacted
        self._decompress = decompress if self._compacted else None
        name = config.compression_type
        if name == "producer":
            self._codec = -1
        else:
            self._codec = int(Codec.NONE) if name in _UNCOMPRESSED else int(codec_by_name(name))

    def validate(
        self, batch: bytearray | memoryview, now_ms: int, from_client: bool, transaction_version: int = -1
    ) -> BatchHeader:
        """Judge the one batch that fills `batch`. The broker's own batches are checked for structure only.

        Raises MessageTooLarge, CorruptMessage, InvalidRecord and InvalidTimestamp (with `record_errors`), UnsupportedCompressionType
        where a batch has to be opened and its codec's package is not installed,
        InvalidTxnState for a client's transactional batch that belongs to no open transaction (`transaction_version` -1).
        """
        size = len(batch)
        if from_client and size > self._config.max_message_bytes:
            self._too_large(size)
        header = self._judge(batch, now_ms, from_client, self._decompress)
        if from_client:
            if header.base_offset:
                self.invalid_record(f"the base offset of a produced batch must be 0, got {header.base_offset}")
            if header.is_transactional and transaction_version < 0:
                # Nobody would end its transaction, which would hold the last stable offset for good.
                self._fail(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {header.producer_id} epoch {header.producer_epoch} sent a transactional batch, but has no open "
                    "transaction with this partition: its request named no transactional id",
                )
        return header

    def prepare(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int, from_client: bool
    ) -> tuple[bytearray | memoryview, int]:
        """(batch, largest timestamp): the batch in the topic's codec and with the times that the topic demands.

        Raises InvalidTimestamp, InvalidRecord, CorruptMessage when the records cannot be decompressed, MessageTooLarge,
        UnsupportedCompressionType where the package of either codec is not installed.
        """
        walked = not header.codec or self._decompress is not None
        largest, seen = header.max_timestamp, header.records_max_timestamp
        if from_client:
            encode = self._codec >= 0 and header.codec != self._codec
            if not walked and (encode or self._lacks_time(header) or _is_too_dense(header)):
                # What is encoded is the broker's own work then, so it is judged like any that the broker opens.
                try:
                    seen = self._judge(batch, now_ms, from_client, decompress).records_max_timestamp
                except UnsupportedCompressionType:
                    if encode or _is_too_dense(header):
                        raise
                    seen = -1  # as its first record, where that has no time
                    if header.base_timestamp >= 0:
                        seen = max(header.base_timestamp, now_ms)
                        self._check_time(seen, now_ms)
                walked = True
            if encode:
                batch = self._recompress(batch)
                if len(batch) > self._config.max_message_bytes:
                    self._too_large(len(batch))
        if self.log_append_time:
            stamp_log_append_time(batch, 0, now_ms)
            return batch, now_ms
        if from_client and seen != largest:
            if walked:  # the records are right, the header is not
                largest = seen
                stamp_max_timestamp(batch, 0, largest)
            else:
                self._check_time(largest, now_ms)
        return batch, largest

    def _lacks_time(self, header: BatchHeader) -> bool:
        """Whether the largest timestamp of a batch that has not been opened is unset, or cannot be right."""
        largest = header.max_timestamp
        return (largest < header.base_timestamp or largest < 0) and not self.log_append_time

    def check_segment_size(self, size: int) -> None:
        """Raises RecordListTooLarge for a batch that fits into no segment."""
        if size > self._config.segment_bytes:
            self._fail(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes does not fit into a segment of {self._config.segment_bytes} bytes (segment.bytes)",
            )

    def _judge(
        self, batch: bytearray | memoryview, now_ms: int, from_client: bool, unpack: Callable[..., bytes] | None
    ) -> BatchHeader:
        """The header of a batch that passes its checks; compressed records are looked at if there is an `unpack` for them."""
        try:
            return validate_batch(
                batch,
                0,
                len(batch),
                from_client=from_client,
                compacted=self._compacted,
                timestamp_type=self.log_append_time,
                now_ms=now_ms if from_client else -1,
                before_max_ms=self._before_max_ms,
                after_max_ms=self._after_max_ms,
                decompress=unpack,
            )
        except InvalidBatch as error:
            raise self.refusal(error) from None
        except MissingPackage as error:
            self._without_codec(error, batch)

    def _recompress(self, batch: bytearray | memoryview) -> bytearray:
        config = self._config
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        try:
            return recompress(batch, 0, self._codec, level=levels.get(Codec(self._codec)))
        except ValueError as error:
            self._fail(ErrorCode.CORRUPT_MESSAGE, f"the records cannot be decompressed: {error}")
        except MissingPackage as error:
            self._without_codec(error, batch)

    # -- refusals

    def refusal(self, error: InvalidBatch) -> KafkaError:
        """The protocol's error for a batch that failed its checks."""
        return error_for_code(
            error.error_code,
            str(error),
            topic=self._topic,
            partition=self._partition,
            record_errors=error.record_errors or None,
        )

    def invalid_record(self, message: str) -> NoReturn:
        """Raises InvalidRecord."""
        self._fail(ErrorCode.INVALID_RECORD, message)

    def corrupt(self, message: str) -> NoReturn:
        """Raises CorruptMessage."""
        self._fail(ErrorCode.CORRUPT_MESSAGE, message)

    def _fail(self, code: ErrorCode, message: str) -> NoReturn:
        raise error_for_code(code, message, topic=self._topic, partition=self._partition)

    def _without_codec(self, error: MissingPackage, batch: bytearray | memoryview) -> NoReturn:
        if self._compacted:
            why = "of a compacted topic are opened for their keys"
        elif self._codec >= 0 and read_header(batch).codec != self._codec:
            why = "are stored as the topic's compression.type says"
        else:
            header = read_header(batch)
            why = f"whose header cannot be right are opened, this one has {header.record_count} records in {len(batch)} bytes"
        self._fail(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"batches {why}, and on the broker {error.message}: {error.hint}"
        )

    def _too_large(self, size: int) -> NoReturn:
        self._fail(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes is above the topic's max.message.bytes {self._config.max_message_bytes}: "
            "send smaller batches or raise the topic's limit",
        )

    def _check_time(self, timestamp: int, now_ms: int) -> None:
        if not -self._before_max_ms <= timestamp - now_ms <= self._after_max_ms:
            self._fail(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp} is not within {self._before_max_ms} ms before and {self._after_max_ms} ms after "
                f"the broker's time {now_ms} (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
            )


def _is_too_dense(header: BatchHeader) -> bool:
    """Whether a batch says more records than any codec could hold in its bytes."""
    return header.record_count > _RECORDS_PER_BYTE_MAX * header.size_bytes
