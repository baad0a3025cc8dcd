"""Reading a partition of a coordinator's topic back into its shard, in slices that do not block the loop.

Rules
- A slice is read, a bounded number of its records replayed, and the loop has its turn; what is not in memory is read in a thread.
- The end is looked at again after each slice, so that what is appended meanwhile (transaction markers) is read too.
- A record that cannot be read or understood is logged with file and position and left out; what the disk refuses is tried
  again by the caller.
Source: CoordinatorLoaderImpl.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fastq._native.batch_validation import InvalidBatch
from fastq._native.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
    decode_control_record,
    decode_records,
    iter_headers,
)
from fastq._native.wire import DecodeError
from fastq.compression import decompress
from fastq.errors import CorruptMessage, KafkaError

if TYPE_CHECKING:
    from fastq_broker.log import PartitionLog
    from fastq_broker.log.scan import LogSlice
    from fastq_broker.output import ReadAhead

    from .shard import Shard

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 256 << 10
RECORDS_PER_TURN: Final = 500


async def replay_log(log: PartitionLog, shard: Shard, read_ahead: ReadAhead, stopped: Callable[[], bool]) -> int:
    """Replay a log from its start to its end into a shard; answers how many records. Ends early once `stopped` says so.

    Raises KafkaError, OSError for a disk that fails, MissingPackage for batches that cannot be opened here: the shard is of no use then.
    """
    count = replayed = 0
    offset = log.log_start_offset
    while not stopped() and offset < log.log_end_offset:
        try:
            found = log.read(offset, SLICE_BYTES)
            if found.cold or not found.is_cached():
                data = await read_ahead.call(found.read)
            else:
                data = found.read()
        except CorruptMessage as error:  # logged by the log, with file and position
            offset = _next_segment(log, offset)
            logger.error("%s: loading goes on at offset %d after: %s", log.name, offset, error)
            continue
        reached = offset
        try:
            for position, header in iter_headers(data):
                reached = header.next_offset
                if header.last_offset < offset:
                    continue
                count += _replay_batch(log, shard, data, position, header, found)
                if count - replayed >= RECORDS_PER_TURN:
                    replayed = count
                    await asyncio.sleep(0)
        except DecodeError as error:  # no batch begins there: where the next one does, nobody can tell
            damaged, offset = reached, _next_segment(log, reached)
            path = found.file.path if found.file is not None else log.path
            logger.error(
                "%s: what follows at offset %d in %s (read from byte %d on) is damaged: %s; loading goes on at offset %d",
                log.name,
                damaged,
                path,
                found.position,
                error,
                offset,
            )
            continue
        offset = reached if reached > offset else _next_segment(log, offset)
        await asyncio.sleep(0)
    return count


def _replay_batch(
    log: PartitionLog, shard: Shard, data: bytes, position: int, header: BatchHeader, found: LogSlice
) -> int:
    """Replay one batch; answers its records."""
    try:
        records = decode_records(data, position, decompress)
    except (DecodeError, InvalidBatch, KafkaError, ValueError) as error:
        _left_out(log, found, position, header.base_offset, error)
        return 0
    producer_id = header.producer_id if header.is_transactional else -1
    for record in records:
        try:
            if header.is_control:
                marker = decode_control_record(record.key, record.value)
                if marker.type in (CONTROL_ABORT, CONTROL_COMMIT):
                    shard.replay_marker(header.producer_id, header.producer_epoch, marker.type == CONTROL_COMMIT)
            elif record.key is None:
                _left_out(log, found, position, record.offset, ValueError("the record has no key"))
            elif producer_id >= 0:
                shard.replay(record.key, record.value, record.timestamp_ms, producer_id, header.producer_epoch)
            else:
                shard.replay(record.key, record.value, record.timestamp_ms)
        except MemoryError:  # nothing is wrong with the record: it is loaded again
            raise
        except Exception as error:  # one record must not keep all groups or transactions of the partition away
            _left_out(log, found, position, record.offset, error)
    return len(records)


def _left_out(log: PartitionLog, found: LogSlice, position: int, offset: int, error: Exception) -> None:
    path = found.file.path if found.file is not None else log.path
    logger.error(
        "%s: the record at offset %d (%s, batch at byte %d) is left out: %s",
        log.name,
        offset,
        path,
        found.position + position,
        error,
        exc_info=None if isinstance(error, (ValueError, KafkaError)) else error,
    )


def _next_segment(log: PartitionLog, offset: int) -> int:
    """Where the segment after the one with `offset` begins; the log's end behind the last."""
    later = [segment.base_offset for segment in log.segments if segment.base_offset > offset]
    return min(later, default=log.log_end_offset)
