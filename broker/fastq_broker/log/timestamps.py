"""Searching a log by time. Nothing here changes a log, so a search may run in any thread."""

from __future__ import annotations

from typing import NamedTuple

from fastq._native.records import decode_records, read_header

from .files import FileHandle, Files
from .scan import HEADER_BYTES, BatchBounds, CorruptSegment, iter_bounds


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class TimestampQuery(NamedTuple):
    """Where to look for the first record at or after a time: handles, batch positions to begin at, and ends, in log order."""

    files: Files
    timestamp_ms: int
    start_offset: int
    places: tuple[tuple[FileHandle, int, int], ...]

    def run(self) -> TimestampOffset | None:
        """The record, or None. Decompresses one batch where needed. Raises CorruptSegment, OSError."""
        for handle, position, end in self.places:
            for bounds in iter_bounds(self.files, handle, position, end):
                if bounds.last_offset < self.start_offset:
                    continue
                found = self._in_batch(handle, bounds)
                if found is not None:
                    return found
        return None

    def _in_batch(self, handle: FileHandle, bounds: BatchBounds) -> TimestampOffset | None:
        raw = self.files.pread(handle.fd, HEADER_BYTES, bounds.position)
        if int.from_bytes(raw[35:43], "big", signed=True) < self.timestamp_ms:
            return None
        data = self.files.pread(handle.fd, bounds.end - bounds.position, bounds.position)
        try:
            header = read_header(data)
            records = decode_records(data)
        except ValueError as error:
            raise CorruptSegment(handle.path, bounds.position, str(error)) from error
        for record in records:
            if record.timestamp_ms >= self.timestamp_ms and record.offset >= self.start_offset:
                return TimestampOffset(record.timestamp_ms, record.offset, header.partition_leader_epoch)
        return None
