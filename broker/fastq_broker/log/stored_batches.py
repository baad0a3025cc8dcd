"""Batches as they lie in a log's files, read from a place on: what recovery and everything that is made again from the log goes by.

Rules
- Structure is checked here, checksums are only where it says so. Files are read in pieces of 1 MiB, and what was read is counted.
- A log of a broker that was upgraded may begin with batches of magic 0 and 1. They lie behind those of magic 2 too where the topic's format
  was set back for some time. What is told of producers, transactions and leader epochs is told by those of magic 2 alone.
Source: FileRecords, LogSegment.recover.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from fastq._native.crc32c import crc32c
from fastq._native.records import BatchHeader, read_header, verify_crc

from .files import FileHandle, Files
from .scan import (
    HEADER_BYTES,
    MAGIC_POSITION,
    NO_UPPER,
    BatchBounds,
    CorruptSegment,
    is_old_format,
    iter_starts,
    largest_timestamp_in,
)
from .segment import INT32_MAX, Segment

logger = logging.getLogger(__name__)

CRC_FROM: Final = 21
"""The checksum of a batch covers it from here on."""
_CHUNK_BYTES: Final = 1 << 20


class MuchToRead(Exception):
    """A log cannot be loaded with as little reading as there is time for; nothing was changed."""


@dataclass
class RecoveryReport:
    """What loading after a crash has done: bytes read, and (file, position, bytes cut off) where a log was cut."""

    bytes_read: int = 0
    cut: list[tuple[str, int, int]] = field(default_factory=list)
    on_read: Callable[[int], None] | None = None
    """Hears how many bytes were read, piece by piece; what it raises ends the loading."""
    bytes_max: int | None = None
    """How much there is time to read; None: all of it."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Where records are missing in the middle of the log, as a loss of power leaves it that has kept a later file and not an earlier one:
    the first offset without its record, and the next that is there."""
    damaged_at: int = NO_UPPER
    """The lowest offset at which a batch was passed over that is damaged: where the one before has ended, as its own may be wrong."""
    damaged_last: int = -1
    """And that of the last one."""
    damages: int = 0
    """How often that happened: one segment's end, and what comes first in the next, may be passed over at the same offset."""

    def read(self, size: int) -> None:
        """So many bytes more were read."""
        self.bytes_read += size
        if self.on_read is not None:
            self.on_read(size)

    def damaged(self, offset: int) -> None:
        """A damaged batch is passed over, at this offset."""
        self.damaged_at = min(self.damaged_at, offset)
        self.damaged_last = offset
        self.damages += 1

    def foresee(self, size: int) -> None:
        """About so many bytes are to be read; to be said before anything is changed. Raises MuchToRead."""
        if self.bytes_max is not None and size > self.bytes_max:
            raise MuchToRead


def iter_batches(
    files: Files, handle: FileHandle, position: int, end: int, report: RecoveryReport | None = None
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of the batches of magic 2 from `position` up to `end`.

    Raises CorruptSegment at the first place where no whole one lies. Checksums are the caller's to verify.
    """
    data = b""
    start = position  # where in the file `data` begins
    while position < end:
        at = position - start
        available = len(data) - at
        size = HEADER_BYTES
        if available >= 12:
            size = max(12 + struct.unpack_from(">i", data, at + 8)[0], HEADER_BYTES)
        if available < size and available < end - position:
            if size > end - position:
                raise CorruptSegment(handle.path, position, f"a batch of {size} bytes passes the file's end")
            data, start = files.pread(handle.fd, min(max(_CHUNK_BYTES, size), end - position), position), position
            if report is not None:
                report.read(len(data))
            if len(data) < min(size, end - position):
                raise CorruptSegment(handle.path, position, "the file ends early")
            continue
        try:
            header = read_header(data, at)
        except ValueError as error:
            raise CorruptSegment(handle.path, position, str(error)) from error
        size = header.size_bytes
        yield position, header, memoryview(data)[at : at + size]
        position += size


def iter_old_batches(
    files: Files, handle: FileHandle, position: int, end: int, report: RecoveryReport | None = None
) -> Iterator[tuple[BatchBounds, bytes]]:
    """(bounds, header) of the batches of magic 0 and 1 that lie from `position` on. Raises CorruptSegment, OSError."""
    for bounds, header in iter_starts(files, handle, position, end):
        if not is_old_format(header):
            return
        if report is not None:
            report.read(bounds.end - bounds.position)
        yield bounds, header


def iter_new_batches(
    files: Files, handle: FileHandle, position: int, end: int, report: RecoveryReport | None = None
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """As `iter_batches`, past the batches of magic 0 and 1 that may lie before and between them."""
    while True:
        for bounds, _ in iter_old_batches(files, handle, position, end, report):
            position = bounds.end
        try:
            for at, header, data in iter_batches(files, handle, position, end, report):
                yield at, header, data
                position = at + header.size_bytes
            return
        except CorruptSegment:
            if not _is_old_batch(files, handle, position, end):
                raise


def _is_old_batch(files: Files, handle: FileHandle, position: int, end: int) -> bool:
    """Whether a whole batch of magic 0 or 1 lies there: by its checksum, as one of magic 2 may be damaged. Raises OSError."""
    with suppress(CorruptSegment):
        for bounds, header in iter_starts(files, handle, position, end):
            at, crc = position + MAGIC_POSITION, 0
            while is_old_format(header) and at < bounds.end:
                data = files.pread(handle.fd, min(_CHUNK_BYTES, bounds.end - at), at)
                if not data:
                    return False
                at, crc = at + len(data), crc32(data, crc)
            return at == bounds.end and struct.unpack_from(">I", header, MAGIC_POSITION - 4)[0] == crc
    return False


def iter_verified(
    files: Files, segment: Segment, position: int, report: RecoveryReport
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of magic 2 of a segment from `position` on, without damaged ones, which are named in the log and noted in `report`.
    Raises CorruptSegment.

    Where one bit of the checksum is all that is wrong, it is the checksum that is damaged: to be so close to what the batch should have,
    three of the batch would have to be wrong, or five of a short one as markers are."""
    end = -1 if position else segment.base_offset
    for at, header, data in iter_new_batches(files, segment.log.handle(), position, segment.size, report):
        if verify_crc(data):
            yield header, data
            end = header.next_offset
            continue
        crc = crc32c(data[CRC_FROM:])
        believed = (header.crc ^ crc).bit_count() == 1
        if not believed:  # its offset may be wrong, too
            report.damaged(end if end >= 0 else min(header.base_offset, segment.base_offset + INT32_MAX))
        logger.error(
            "%s: the checksum of the batch at byte %d, offset %d, is wrong%s: what it says of producers and transactions is %s",
            segment.log.path,
            at,
            header.base_offset,
            " by one bit" if believed else "",
            "believed" if believed else "passed over",
        )
        if believed:
            yield header, memoryview(b"".join((data[: CRC_FROM - 4], crc.to_bytes(4, "big"), data[CRC_FROM:])))
            end = header.next_offset


def check_range(segment: Segment, position: int, batch: BatchHeader | BatchBounds) -> None:
    """The offset of a batch, which its checksum does not cover, must be one that the indexes of its segment can hold.

    Raises CorruptSegment."""
    if not 0 <= batch.last_offset - segment.base_offset <= INT32_MAX:
        raise CorruptSegment(
            segment.log.path,
            position,
            f"offset {batch.last_offset} is too far from the segment's first, {segment.base_offset}",
        )


def note_old_batches(
    files: Files, segment: Segment, handle: FileHandle, position: int, below: int, report: RecoveryReport
) -> tuple[int, int]:
    """Have a segment remember its batches of magic 0 and 1 from `position` on, as appends would, as far as they end below offset `below`.
    Answers where the last one ends, and the offset after it (-1: there was none). Raises CorruptSegment, OSError."""
    following = -1
    for bounds, header in iter_old_batches(files, handle, position, segment.size, report):
        if bounds.last_offset >= below:
            break
        check_range(segment, bounds.position, bounds)
        segment.note_batch(
            bounds.position, bounds.end - bounds.position, bounds.last_offset, largest_timestamp_in(header)
        )
        position, following = bounds.end, bounds.last_offset + 1
        if following >= below:  # what comes next may be torn
            break
    return position, following


def past_old_batches(
    files: Files, segment: Segment, position: int, offset: int, below: int, report: RecoveryReport
) -> tuple[int, int]:
    """(position, offset) of what follows the batches of magic 0 and 1 that lie from `position` on and end below offset `below`, which the
    segment remembers; as they were given where there is none, or none that can be read. Raises OSError."""
    with suppress(CorruptSegment):  # what lies there is for who goes on from there to refuse
        behind, following = note_old_batches(files, segment, segment.log.handle(), position, below, report)
        if following >= 0:
            return behind, following
    return position, offset


def past_old_run(
    files: Files, segment: Segment, position: int, offset: int, below: int, report: RecoveryReport
) -> tuple[int, int]:
    """The same where batches of magic 2 lie before. Raises OSError."""
    if offset < below and _is_old_batch(files, segment.log.handle(), position, segment.size):
        behind, following = past_old_batches(files, segment, position, offset, below, report)
        if following > offset:
            return behind, following
    return position, offset


def note_batches(files: Files, segment: Segment, handle: FileHandle, position: int, report: RecoveryReport) -> None:
    """Have a segment remember its batches from `position` on, as appends would. Raises CorruptSegment, OSError."""
    while True:
        position, _ = note_old_batches(files, segment, handle, position, NO_UPPER, report)
        try:
            for at, header, data in iter_batches(files, handle, position, segment.size, report):
                check_range(segment, at, header)
                segment.note_batch(at, len(data), header.last_offset, header.max_timestamp)
                position = at + len(data)
            return
        except CorruptSegment:
            if not _is_old_batch(files, handle, position, segment.size):
                raise


def rebuild_indexes(files: Files, segment: Segment, report: RecoveryReport) -> None:
    """Make both indexes of a segment anew from its batches, as far as they can be read."""
    segment.forget_indexes(0, segment.base_offset)
    try:
        note_batches(files, segment, segment.log.handle(), 0, report)
    except CorruptSegment as error:
        logger.error("rebuilding indexes: %s", error)
    segment.time_index.append_if_later(segment.max_timestamp, segment.max_timestamp_offset)
    segment.index.trim_if_room()
    segment.time_index.trim_if_room()
