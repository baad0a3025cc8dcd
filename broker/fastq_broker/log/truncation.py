"""Cutting a log back: to an offset, as a follower does that has diverged, or altogether.

Rules
- Batches go whole: the one that holds the offset goes too.
- Producers and leader epochs are set back with the records; the recovery point and the high watermark never lie past the end. A log that
  begins anew has its high watermark there. A marker that was cut off leaves its transaction open again.
Source: UnifiedLog.truncateTo, truncateFullyAndStartAt.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from fastq.values import NamedTuple

from .files import Files
from .recovery import find_end, is_offset_file, start_anew
from .scan import iter_bounds
from .segment import SNAPSHOT_SUFFIX, Segment
from .stored_batches import RecoveryReport, note_batches
from .stored_producers import load_producers

if TYPE_CHECKING:
    from .partition_log import PartitionLog


class Cut(NamedTuple):
    """Where a log is cut: `offset`, how many segments are `kept`, the position in the last of them, and the snapshots of producers
    that there are."""

    offset: int
    kept: int
    position: int
    snapshots: list[int]


def find_cut(log: PartitionLog, offset: int) -> Cut:
    """Where to cut a log so that the records at and above `offset` go, which lies within its segments. Changes nothing, so that it may be
    tried again. Raises OSError, ReplicaNotAvailable while an index is made that it needs."""
    count = len(log.segments)
    while log.segments[count - 1].base_offset > offset or (log.segments[count - 1].base_offset == offset and count > 1):
        count -= 1
    segment = log.segments[count - 1]
    position = log.verified_position(segment, offset)
    for bounds in iter_bounds(log.files, segment.log.handle(), position, segment.size):
        if bounds.last_offset >= offset:
            position = bounds.position
            break
        position = bounds.end
    return Cut(offset, count, position, producer_snapshots(log))


def truncate_log(log: PartitionLog, cut: Cut) -> None:
    """Remove what lies behind a cut. Raises OSError: the log is half cut then, at some place behind the cut or there."""
    offset, kept, position, snapshots = cut
    segments = list(log.segments)
    while len(segments) > kept:
        gone = segments.pop()
        log.remove_files(gone)  # with the snapshot of its name
        snapshots = [snapshot for snapshot in snapshots if snapshot != gone.base_offset]
    segment = segments[-1]
    segment.forget_indexes(position, offset)
    segment.log.truncate(position)
    segment.forget_aborts(offset)
    end = find_end(log.files, segment)
    if end is None:  # an entry that is left is wild
        segment.forget_indexes(0, segment.base_offset)
        end = find_end(log.files, segment)
    if end is None:
        raise OSError(errno.EIO, "the rest of the segment cannot be read", segment.log.path)
    _note_tail(log.files, segment)
    _finish_truncation(log, segments, end, min(log.log_start_offset, end), min(log.high_watermark, end), end, snapshots)
    log.durability.truncated(end)


def _note_tail(files: Files, segment: Segment) -> None:
    """Take the timestamps of the batches after the last index entry, and the cadence of index entries, from the file."""
    position = segment.index.last()[1]
    segment.forget_indexes(position, segment.base_offset if not position else segment.index.last()[0])
    note_batches(files, segment, segment.log.handle(), position, RecoveryReport())


def producer_snapshots(log: PartitionLog) -> list[int]:
    """The offsets of the snapshots of producers in a log's directory, the lowest first. Raises OSError."""
    names = log.files.listdir(log.path)
    return sorted(int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if is_offset_file(name, SNAPSHOT_SUFFIX))


def truncate_fully(log: PartitionLog, offset: int, snapshots: list[int], fresh: Segment | None) -> None:
    """Remove all records; the log begins anew at `offset`. `snapshots` are those that `producer_snapshots` has found, `fresh` what
    `first_segment` has made. Raises OSError: the log is half cut then."""
    segments = start_anew(log, log.segments, offset, fresh)
    log.epochs.clear()
    _finish_truncation(log, segments, offset, offset, offset, -1, snapshots)
    log.durability.emptied(offset)


def _finish_truncation(
    log: PartitionLog,
    segments: list[Segment],
    end: int,
    start: int,
    watermark: int,
    snapshots_to: int,
    snapshots: list[int],
) -> None:
    """Set everything back to `end`; of the producers, what snapshots up to `snapshots_to` and the records after them say."""
    epochs, producers = log.epochs, log.producers
    epochs.truncate_from_end(end)
    for snapshot in snapshots:
        if snapshot > snapshots_to:
            log.files.remove_if_exists(os.path.join(log.path, f"{snapshot:020d}{SNAPSHOT_SUFFIX}"))
    load_producers(log, producers, segments, [snapshot for snapshot in snapshots if snapshot <= snapshots_to], end)
    log.install(segments, epochs, producers, end, start, watermark)
    log.recovery_point = min(log.recovery_point, end)
    log.cleaned_offset = min(log.cleaned_offset, end)
    log.truncations += 1
