"""Cutting the bytes of a connection into responses.

A response on the wire is a 4-byte big-endian size and that many bytes, which begin with the correlation id.

Rules of this file:
- Every response is handed out in memory of its own, so views of it stay valid for as long as somebody keeps them.
- Small responses are received many at a time into one chunk and copied out. A response over CHUNK_BYTES gets a
  buffer of its exact size, and the rest of it is received straight into that buffer.
- No memory is taken for a size over the bound, nor for a negative one.
"""

from __future__ import annotations

from fastq._native.buffers import uncleared

CHUNK_BYTES = 64 * 1024


class FrameSizeError(ValueError):
    """The size at a frame's start is out of bounds; `head` holds what bytes there are, from the size on."""

    def __init__(self, size: int, limit: int, head: bytes) -> None:
        super().__init__(f"a response of {size} bytes announced, at most {limit} are accepted")
        self.size, self.limit, self.head = size, limit, head


class FrameReceiver:
    """Buffers to receive into, and the complete frames that come of it. Not thread-safe: the driver's turn only.

    `limit` bounds the size of the frames that begin from now on.

    Invariants: either `_body` is None and the chunk holds the unparsed bytes [0, _end), less than one frame; or the
    chunk is empty and `_body` is a large frame of which `_filled` bytes are there.
    """

    __slots__ = ("_body", "_chunk", "_end", "_filled", "limit")

    def __init__(self, frame_bytes_max: int) -> None:
        self.limit = frame_bytes_max
        self._chunk = memoryview(bytearray(CHUNK_BYTES + 4))
        self._end = 0
        self._body: memoryview | None = None
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._chunk[self._end :] if self._end else self._chunk

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._body is not None or self._end > 0

    @property
    def head(self) -> bytes:
        """The first bytes of the incomplete frame in the chunk, for a diagnosis."""
        return bytes(self._chunk[: min(self._end, 64)])

    def buffer_updated(self, count: int) -> list[memoryview]:
        """`count` bytes were received into the last buffer; the frames that are now complete, without their size field.

        Raises FrameSizeError; the stream is of no use after that.
        """
        body = self._body
        if body is not None:
            self._filled += count
            if self._filled < len(body):
                return []
            self._body = None
            return [body]
        return self._cut(self._end + count)

    def _cut(self, end: int) -> list[memoryview]:
        chunk, frames, position = self._chunk, [], 0
        while end - position >= 4:
            size = int.from_bytes(chunk[position : position + 4], "big", signed=True)
            if not 4 <= size <= self.limit:
                raise FrameSizeError(size, self.limit, bytes(chunk[position : min(end, position + 64)]))
            start, available = position + 4, end - position - 4
            if size <= available:
                frames.append(memoryview(bytes(chunk[start : start + size])))
                position = start + size
            elif size > CHUNK_BYTES:
                self._body = memoryview(uncleared(size))
                self._body[:available] = chunk[start:end]
                self._filled, position = available, end
            else:
                break
        rest = end - position
        if rest and position:
            # memoryview assignment of overlapping ranges behaves as memmove.
            chunk[:rest] = chunk[position:end]
        self._end = rest
        return frames
