"""Walks over the batch headers of a segment file, and the slices that reads answer with.

Rules
- Nothing here changes a log: the functions take a handle and bounds, and may run in any thread.
- A scan that must not wait for a disk (`may_block=False`) raises WouldBlock at the first page that is not in memory.
- A walk that must not wait ends at WALK_BYTES_MAX: where an index leads, there is far less to go.
- Batches of magic 0 and 1 are walked too: their offset field is the last offset they hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fastq.values import NamedTuple

from .files import FileHandle, Files, bring_in

if TYPE_CHECKING:
    from .segment import Segment

# Base offset, batch length, leader epoch, magic, crc, attributes, last offset delta.
_BOUNDS = struct.Struct(">qiibIhi")
BOUNDS_BYTES: Final = _BOUNDS.size
HEADER_BYTES: Final = 61
MAGIC_POSITION: Final = 16
_LOG_OVERHEAD: Final = 12
_TIMESTAMP_POSITION: Final = {b"\1": 18, b"\2": 35}
"""Where the largest timestamp is, by magic: of magic 1, a message's own, or of compressed ones that of the message around them."""
_LENGTH_MIN: Final = 49
_OLD_LENGTH_MIN: Final = {0: 14, 1: 22}  # by magic
_WINDOW_BYTES: Final = 16 << 10
_WALK_WINDOWS: Final = 16
WALK_BYTES_MAX: Final = _WALK_WINDOWS * _WINDOW_BYTES
"""How much of small batches the event loop goes through for one read: 3 ms of it."""

_APPEND_BYTES_MAX: Final = 16 << 20
"""More than Apache Kafka's followers append at once, as long as nobody sets `replica.fetch.max.bytes` (1 MiB) to that."""


class CorruptSegment(Exception):
    """Bytes of a segment that are no batch: which file, where, and what was found."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class WildIndex(CorruptSegment):
    """What an index says is not borne out by its segment: which index, and where in the `.log` it leads."""


class WouldBlock(Exception):
    """The page that a scan needs is not in memory."""


class LongWalk(WouldBlock):
    """There is more to go through than the event loop has time for."""


class BatchBounds(NamedTuple):
    """Where a batch lies: offsets base_offset to last_offset, bytes position to end (exclusive)."""

    base_offset: int
    last_offset: int
    position: int
    end: int


def iter_bounds(
    files: Files, handle: FileHandle, position: int, end: int, *, may_block: bool = True
) -> Iterator[BatchBounds]:
    """Bounds of the batches from `position` (where one begins) up to `end`.

    Raises CorruptSegment where no batch can begin or one passes `end`, WouldBlock, OSError.
    """
    window = b""
    windows = 0
    window_start = position
    while position < end:
        at = position - window_start
        if at + BOUNDS_BYTES > len(window):
            window_start, at = position, 0
            want = min(_WINDOW_BYTES, end - position)
            if may_block:
                window = files.pread(handle.fd, want, position)
            else:
                windows += 1
                if windows > _WALK_WINDOWS:
                    raise LongWalk
                cached = files.read_if_cached(handle.fd, want, position)
                # What is cached may end inside a header, at a page's end: whether the file does is for who may wait to find out.
                if cached is None or len(cached) < min(BOUNDS_BYTES, want):
                    raise WouldBlock
                window = cached
            if len(window) < BOUNDS_BYTES:
                raise CorruptSegment(handle.path, position, f"{len(window)} bytes are too few for a batch header")
        base, length, _, magic, _, _, delta = _BOUNDS.unpack_from(window, at)
        if magic == 2:
            length_min, last_offset = _LENGTH_MIN, base + delta
        else:
            length_min, last_offset = _OLD_LENGTH_MIN.get(magic, NO_UPPER), base
        if length < length_min or base < 0 or last_offset < base:
            raise CorruptSegment(
                handle.path, position, f"no batch begins here (offset {base}, length {length}, magic {magic})"
            )
        batch_end = position + _LOG_OVERHEAD + length
        if batch_end > end:
            raise CorruptSegment(
                handle.path, position, f"the batch at offset {base} of {length + 12} bytes passes the end {end}"
            )
        yield BatchBounds(base, last_offset, position, batch_end)
        position = batch_end


def iter_starts(files: Files, handle: FileHandle, position: int, end: int) -> Iterator[tuple[BatchBounds, bytes]]:
    """`iter_bounds` with the bytes that each batch begins with, HEADER_BYTES or all that the file has; one read for many of them. Raises
    CorruptSegment, OSError."""
    window, start = b"", position
    for bounds in iter_bounds(files, handle, position, end):
        at = bounds.position - start
        if at + HEADER_BYTES > len(window):
            window, start, at = files.pread(handle.fd, _WINDOW_BYTES, bounds.position), bounds.position, 0
        yield bounds, window[at : at + HEADER_BYTES]


def batch_of_entry(files: Files, handle: FileHandle, offset: int, position: int, end: int) -> BatchBounds | None:
    """The batch to which an index entry leads, where the log bears it out: from there on one ends at its offset, as a rule the first.
    Apache Kafka up to 4.0.0 makes one entry of all that a follower appends at once: position of the first batch, offset of the last."""
    first = None
    with suppress(CorruptSegment):
        for bounds in iter_bounds(files, handle, position, end):
            first = first or bounds
            if bounds.last_offset >= offset or bounds.end - position > _APPEND_BYTES_MAX:
                return first if bounds.last_offset == offset else None
    return None


def is_old_format(header: bytes) -> bool:
    """Whether a batch that begins with these bytes, HEADER_BYTES or all that it has, is of magic 0 or 1."""
    return header[MAGIC_POSITION : MAGIC_POSITION + 1] < b"\2"


def largest_timestamp_in(header: bytes) -> int:
    """The largest timestamp of the batch that begins with these bytes, HEADER_BYTES or all that it has; -1 for none, as in magic 0."""
    at = _TIMESTAMP_POSITION.get(header[MAGIC_POSITION : MAGIC_POSITION + 1], NO_UPPER)
    return int.from_bytes(header[at : at + 8], "big", signed=True) if at + 8 <= len(header) else -1


def verify_start(files: Files, segment: Segment, position: int, offset: int, *, may_block: bool = True) -> None:
    """See that a batch begins where the index leads for `offset`, and not above it. Raises WildIndex, WouldBlock, OSError."""
    try:
        for first in iter_bounds(files, segment.log.handle(), position, segment.size, may_block=may_block):
            if first.base_offset > offset:
                reason = f"for offset {offset} it leads to the batch at offset {first.base_offset}"
                raise WildIndex(segment.index.path, position, reason)
            return
    except WildIndex:
        raise
    except CorruptSegment as error:
        raise WildIndex(segment.index.path, position, f"it leads to where no batch is: {error.reason}") from None


class LogSlice:
    """A run of whole batches in one segment file: bytes `position` to `position + size` of `file`.

    The descriptor stays open as long as the slice lives. Send it with `os.sendfile(socket, slice.fd, slice.position, slice.size)`.

    When `cold` is true the slice is not usable yet: finding its bounds, or reading it, would have waited for a disk.
    Call `warm()` in another thread first; it fixes the bounds and brings the pages into memory.
    A slice of no bytes has no file and is never cold.
    """

    __slots__ = ("_files", "_find", "_found", "file", "first_offset", "position", "size")

    def __init__(
        self,
        files: Files,
        file: FileHandle | None,
        position: int,
        size: int,
        first_offset: int,
        find: SliceQuery | None = None,
    ) -> None:
        self._files = files
        self._find = find
        self.file = file
        self.position = position
        self.size = size
        self.first_offset = first_offset
        """Offset the read asked for; the first batch may begin below it."""

    def __repr__(self) -> str:
        path = self.file.path if self.file else None
        return f"LogSlice({path!r}, position={self.position}, size={self.size}, cold={self.cold})"

    def __len__(self) -> int:
        return self.size

    @property
    def fd(self) -> int:
        """Descriptor to send from; -1 when the slice is empty."""
        return self.file.fd if self.file is not None else -1

    @property
    def cold(self) -> bool:
        """Whether the bounds are still to be found, by `warm()` in another thread."""
        return self._find is not None

    def is_cached(self) -> bool:
        """Whether sending will probably not wait for a disk: the first and the last page are in memory.

        Where the platform cannot tell, a slice counts as cached up to 64 KiB, which one read-ahead brings in.
        """
        if self._find is not None:
            return False
        if self.file is None or not self.size:
            return True
        answer = self._files.is_cached(self.file.fd, self.position, self.size)
        return self.size <= 64 << 10 if answer is None else answer

    def warm(self) -> None:
        """Fix the bounds and read the pages into memory; waits for the disk, so not for the event loop.

        Raises CorruptSegment, OSError.
        """
        file = self.file
        if file is None:
            return
        if self._find is not None:
            self.position, self.size = self._find.bounds_at_last()
            self._find = None
        bring_in(file.fd, self.position, self.size, self._files.pread)

    def read(self) -> bytes:
        """The bytes; waits for the disk. Raises CorruptSegment when the file ends early, OSError."""
        if self._find is not None and self.file is not None:
            self.position, self.size = self._find.bounds_at_last()
            self._find = None
        if self.file is None or not self.size:
            return b""
        data = self._files.pread(self.file.fd, self.size, self.position)
        if len(data) == self.size:
            return data
        chunks = [data]
        got = len(data)
        while got < self.size:
            data = self._files.pread(self.file.fd, self.size - got, self.position + got)
            if not data:
                raise CorruptSegment(self.file.path, self.position + got, "the file ends inside a slice")
            chunks.append(data)
            got += len(data)
        return b"".join(chunks)


class SliceQuery(NamedTuple):
    """How to find the bounds of a slice: fixed when the read was made, so that any thread can do it later."""

    files: Files
    handle: FileHandle
    offset: int
    """The first batch of the slice is the first one that ends at or above this offset."""
    start: int
    """A batch begins here, at or before that one."""
    cut: int
    """A batch begins here too, before the slice's largest possible end: the search for the end need not start earlier."""
    end: int
    """Where the last batch of the segment ends."""
    upper_offset: int
    """No batch that begins at or above this offset belongs to the slice."""
    max_bytes: int
    min_one_batch: bool
    segment: Segment
    indexed: bool
    """Whether it is the index that has told `start`."""

    def bounds_at_last(self) -> tuple[int, int]:
        """`bounds` in a thread that may wait: where the index is wild, which the segment remembers, without it."""
        try:
            return self.bounds(may_block=True)
        except WildIndex as error:
            self.segment.doubt = error
            return self._replace(start=0, cut=0).bounds(may_block=True)

    def bounds(self, *, may_block: bool) -> tuple[int, int]:
        """Position and size of the slice. Raises WouldBlock, WildIndex where `start` cannot be, CorruptSegment, OSError."""
        start = self.start
        try:
            for first in iter_bounds(self.files, self.handle, start, self.end, may_block=may_block):
                if first.last_offset >= self.offset:
                    break
            else:
                return self.end, 0
        except CorruptSegment as error:
            if error.position == start and start and self.indexed:
                raise WildIndex(
                    self.segment.index.path, start, f"it leads to where no batch is: {error.reason}"
                ) from None
            raise
        if first.base_offset > self.offset and first.position == start and start and self.indexed:
            reason = f"for offset {self.offset} it leads to the batch at offset {first.base_offset}"
            raise WildIndex(self.segment.index.path, start, reason)
        if first.base_offset >= self.upper_offset:
            return first.position, 0
        limit = first.position + self.max_bytes
        if first.end > limit:
            return first.position, first.end - first.position if self.min_one_batch else 0
        if limit >= self.end and self.upper_offset == NO_UPPER:
            return first.position, self.end - first.position
        end = first.end
        cut = max(end, self.cut)
        try:
            for batch in iter_bounds(self.files, self.handle, cut, self.end, may_block=may_block):
                if batch.end > limit or batch.base_offset >= self.upper_offset:
                    if batch.position == cut > end and batch.base_offset > self.upper_offset:
                        return self._without_cut(f"it leads past offset {self.upper_offset}", may_block)
                    end = max(end, batch.position)
                    break
                end = batch.end
        except CorruptSegment as error:  # what lies before it is served; the read that begins there reports it
            if error.position == cut > end:  # it is the index that has led there
                return self._without_cut(f"it leads to where no batch is: {error.reason}", may_block)
            end = max(end, error.position)
        return first.position, end - first.position

    def _without_cut(self, reason: str, may_block: bool) -> tuple[int, int]:
        self.segment.doubt = WildIndex(self.segment.index.path, self.cut, reason)
        return self._replace(cut=0).bounds(may_block=may_block)


NO_UPPER: Final = (1 << 63) - 1
