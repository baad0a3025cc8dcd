"""Batches as they lie in a log's files, read from a place on: what recovery and everything that is made again from the log goes by.

Rules: structure is checked here, checksums are only where it says so. Files are read in pieces of 1 MiB, and what was read is counted.
Source: FileRecords, LogSegment.recover.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fastq._native.records import BatchHeader, read_header, verify_crc

from .files import FileHandle, Files
from .scan import HEADER_BYTES, BatchBounds, CorruptSegment, is_old_format, iter_bounds, largest_timestamp_in
from .segment import INT32_MAX, Segment

logger = logging.getLogger(__name__)

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

    def read(self, size: int) -> None:
        """So many bytes more were read."""
        self.bytes_read += size
        if self.on_read is not None:
            self.on_read(size)

    def foresee(self, size: int) -> None:
        """About so many bytes are to be read; to be said before anything is changed. Raises MuchToRead."""
        if self.bytes_max is not None and size > self.bytes_max:
            raise MuchToRead


def iter_batches(
    files: Files, handle: FileHandle, position: int, end: int, report: RecoveryReport | None = None
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of the batches from `position` up to `end`.

    Raises CorruptSegment at the first place where no whole batch lies. Checksums are the caller's to verify.
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


def iter_verified(
    files: Files, segment: Segment, position: int, report: RecoveryReport | None = None
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a segment from `position` on, without damaged ones, which are named in the log. Raises CorruptSegment."""
    for at, header, data in iter_batches(files, segment.log.handle(), position, segment.size, report):
        if verify_crc(data):
            yield header, data
        else:
            logger.error(
                "%s: the checksum of the batch at byte %d, offset %d, is wrong: what it says of producers and transactions is passed over",
                segment.log.path,
                at,
                header.base_offset,
            )


def check_range(segment: Segment, position: int, batch: BatchHeader | BatchBounds) -> None:
    """The offset of a batch, which its checksum does not cover, must be one that the indexes of its segment can hold.

    Raises CorruptSegment."""
    if not 0 <= batch.last_offset - segment.base_offset <= INT32_MAX:
        raise CorruptSegment(
            segment.log.path,
            position,
            f"offset {batch.last_offset} is too far from the segment's first, {segment.base_offset}",
        )


def note_old_batches(files: Files, segment: Segment, handle: FileHandle, position: int, report: RecoveryReport) -> int:
    """Have a segment remember its batches of magic 0 and 1 from `position` on, as appends would, and answer where those of magic 2 begin,
    which only follow them. Raises CorruptSegment, OSError."""
    for bounds in iter_bounds(files, handle, position, segment.size):
        header = files.pread(handle.fd, HEADER_BYTES, bounds.position)
        if not is_old_format(header):
            return bounds.position
        size = bounds.end - bounds.position
        report.read(size)
        check_range(segment, bounds.position, bounds)
        segment.note_batch(bounds.position, size, bounds.last_offset, largest_timestamp_in(header))
    return segment.size
