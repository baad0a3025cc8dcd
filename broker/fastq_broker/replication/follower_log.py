"""What the follower's side of replication needs of a log.

Rules: all calls act at once on what the process sees; only `durable_end` says what a crash leaves. A call that the disk refuses raises
KafkaStorageError, and the log is of no use any more. Sources: UnifiedLog, LeaderEpochFileCache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fastq._native.records import iter_headers, read_header
from fastq.errors import KafkaError

if TYPE_CHECKING:
    from fastq._native.fetch import FetchedPartition

logger = logging.getLogger(__name__)


class FollowerLog(Protocol):
    """One partition's log on a node that follows. `PartitionLog` is one."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that is there."""

    @property
    def log_end_offset(self) -> int:
        """One above the last record."""

    @property
    def high_watermark(self) -> int:
        """What is known to be committed lies below."""

    @property
    def durable_end(self) -> int:
        """What this replica may say that it has: the log's end, with durability "fsync" as far as it is on disk."""

    @property
    def leader_epoch(self) -> int:
        """The latest leader epoch that the log knows of; -1 when it knows none."""

    @property
    def gap_offset(self) -> int | None:
        """Where records are missing in the middle of the log, as a loss of power may leave it; None: nowhere."""

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, offset): the largest epoch up to this one, and where it ends. For an epoch below all that are known, that epoch and where
        the first known one begins; (-1, -1) above the latest."""

    def append_as_follower(self, batches: memoryview, *, now_ms: int, gently: bool = False) -> int:
        """Append a leader's batches as they came; answers the log's new end. `gently`: what others do on this machine is more urgent.

        Raises CorruptMessage and InvalidRecord (offsets that do not follow), both before anything is written.
        """

    def truncate_to(self, offset: int) -> bool:
        """Remove all records at and above `offset`, whole batches at a time, and the leader epochs that begin there, those also where the
        log ends below. The high watermark is the log's end at most."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the log is empty and begins at `offset`."""

    def advance_as_follower(self, high_watermark: int, log_start_offset: int) -> None:
        """What the leader says: a high watermark within this log, which may lie below the last one, as a new leader learns it late; and its
        log start, that high watermark at most. A log's start only rises."""

    def wait_durable(self, offset: int, callback: Callable[[KafkaError | None], None]) -> None:
        """Call back once `durable_end` is `offset` or above, or the disk has failed; at once where it is so already."""


def go_back_to_gap(log: FollowerLog, partition: object, leader: object, *, in_sync: bool) -> None:
    """Have a log end where records are missing in its middle, so that what the leader has comes anew. Not one that is in sync, or eligible:
    were the others gone then, it would lead without what it has above the gap, which is committed. So only before the first fetch in a
    leader epoch, or of a process: a leader that has seen it at the end may have it in sync again before this node hears of that."""
    gap = log.gap_offset
    if gap is None:
        return
    what = "%s: records are missing from offset %d on in the middle of the log, as a loss of power has left it: "
    if in_sync:
        logger.warning(
            what
            + "it stays as it is, as the replica is in sync, or eligible: they come from %s when it follows anew and is neither, as "
            "after a restart of this node while others are in sync",
            partition,
            gap,
            leader,
        )
        return
    end = log.log_end_offset
    logger.warning(
        what + "it goes back there from %d, and what its leader, %s, has comes anew", partition, gap, end, leader
    )
    log.truncate_to(gap)


def go_back(log: FollowerLog, partition: object, leader: object, offset: int) -> None:
    """Have a log end at an offset at the latest, as its leader's."""
    if offset < log.log_end_offset:  # else no record goes, but leader epochs that have none
        logger.log(
            logging.WARNING if offset < log.high_watermark else logging.INFO,
            "%s: the log goes back from offset %d to %d, as its leader's, %s; its high watermark was %d",
            partition,
            log.log_end_offset,
            offset,
            leader,
            log.high_watermark,
        )
    log.truncate_to(offset)


def usable_records(part: FetchedPartition, leader_epoch: int) -> memoryview:
    """Of what a leader sent for a log: the whole batches up to the first of a later epoch. Raises CorruptMessage, DecodeError."""
    records = part.records
    if part.size_bytes and not part.whole_bytes:
        read_header(records)  # raises, and says what is wrong
    records = records[: part.whole_bytes]
    for position, header in iter_headers(records):
        if header.partition_leader_epoch > leader_epoch:
            return records[:position]
    return records
