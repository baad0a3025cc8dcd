"""What a log takes from a mirror: batches of another cluster, at the offsets that they have there; and the end of that.

Rules
- A batch comes as it is there, but for the leader epoch in its header, which is this cluster's: its checksum does not cover it.
- What is appended follows the log's end, with a gap perhaps (compaction leaves some). Who is mistaken about the end is told where it is,
  and nothing is written: so whoever mirrors keeps no account of what is here, and cannot have anything here twice.
- A mirror is a client in one thing: where there is no room for clients' records, there is none for its batches. An end is the broker's own.
- Records, producers and transactions are not judged: the source's leader has done it. What is known of producers follows from the batches.
- An end aborts the transactions that are open, whose coordinator is in the source, and makes the log forget the source's producers: their
  ids mean others here. It is written into the log, as a commit of `BORDER_PRODUCER_ID`, so that followers and recovery forget them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq._native.records import CONTROL_ABORT, CONTROL_COMMIT, build_transaction_marker, iter_headers, stamp
from fastq._native.wire import DecodeError
from fastq.errors import ErrorCode, error_for_code

from .producer_state import BORDER_PRODUCER_ID

if TYPE_CHECKING:
    from .partition_log import PartitionLog

OFFSET_MAX = 1 << 62
"""What no cluster comes near: so that what follows, as the markers of an end, has offsets of 64 bits too."""


def append_mirrored(
    log: PartitionLog, batches: bytearray | memoryview, *, offset: int, leader_epoch: int, now_ms: int
) -> int:
    """Append batches (writable: epochs are stamped into them) of which `offset` is what the mirror takes for the log's end; the new end.

    Raises OffsetOutOfRange where the log ends elsewhere, InvalidRecord for offsets that do not follow, CorruptMessage, KafkaStorageError.
    """
    check_end(log, offset)
    if log.dir.refusal is not None:
        log.dir.check_append(from_client=True)
    view = memoryview(batches)
    try:
        for position, header in iter_headers(view, strict=True):
            if header.last_offset > OFFSET_MAX:
                raise error_for_code(
                    ErrorCode.INVALID_RECORD,
                    f"a batch ends at offset {header.last_offset}, and a log takes offsets up to {OFFSET_MAX}",
                    topic=log.topic,
                    partition=log.partition,
                )
            stamp(view, position, header.base_offset, leader_epoch)
    except DecodeError as error:
        raise error_for_code(ErrorCode.CORRUPT_MESSAGE, str(error), topic=log.topic, partition=log.partition) from None
    if leader_epoch > log.leader_epoch:
        log.assign_leader_epoch(leader_epoch)
    return log.append_as_follower(view, now_ms=now_ms)


def check_end(log: PartitionLog, offset: int) -> None:
    """Raises OffsetOutOfRange where the log does not end at `offset`."""
    if offset != log.log_end_offset:
        raise error_for_code(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log ends at offset {log.log_end_offset}, and {offset} was taken for its end",
            topic=log.topic,
            partition=log.partition,
        )


def end_mirror(log: PartitionLog, *, leader_epoch: int, now_ms: int) -> int:
    """Abort what is open, and forget the producers; where the log ends then. Done again it writes nothing. Raises KafkaStorageError."""
    if not len(log.producers):
        return log.log_end_offset
    for producer_id, epoch, coordinator_epoch in log.producers.open_transactions():
        marker = build_transaction_marker(
            CONTROL_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=max(coordinator_epoch, 0),
            timestamp_ms=now_ms,
        )
        log.append(marker, leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)
    border = build_transaction_marker(
        CONTROL_COMMIT, producer_id=BORDER_PRODUCER_ID, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms
    )
    log.append(border, leader_epoch=leader_epoch, now_ms=now_ms, from_client=False)
    return log.log_end_offset
