"""Cutting the bytes of a connection into responses.

A response on the wire is a 4-byte big-endian size and that many bytes, which begin with the correlation id.

Rules of this file:
- Every response is handed out in memory of its own, so views of it stay valid for as long as somebody keeps them.
- Small responses are received many at a time into one chunk and copied out. A response over CHUNK_BYTES gets a
  buffer of its exact size, and the rest of it is received straight into that buffer.
- No memory is taken for a size over the bound, nor for a negative one.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memmove

from fastq._native.bits cimport load_i32
from fastq._native.kept_memory cimport KeptBuffer

cdef extern from "exchange.h":
    int exchange_frames(
        int fd, const uint8_t* out, size_t out_size, uint8_t* into, size_t into_size, int64_t wait_ns, size_t* sent, size_t* received
    ) nogil

CHUNK_BYTES = 64 * 1024

cdef enum:
    CHUNK = 64 * 1024
    SIZE_BYTES = 4       # of the size field, and the least that a size may be: the correlation id
    HEAD_BYTES_MAX = 64  # of what is kept of a frame for a diagnosis


class FrameSizeError(ValueError):
    """The size at a frame's start is out of bounds; `head` holds what bytes there are, from the size on."""

    def __init__(self, size, limit, head):
        super().__init__(f"a response of {size} bytes announced, at most {limit} are accepted")
        self.size, self.limit, self.head = size, limit, head


@cython.final
cdef class FrameReceiver:
    """Buffers to receive into, and the complete frames that come of it. Not thread-safe: the driver's turn only.

    `limit` bounds the size of the frames that begin from now on.

    Invariants: either `_body` is None and the chunk holds the unparsed bytes [0, _end), less than one frame; or the
    chunk is empty and `_body` is a large frame of which `_filled` bytes are there. The chunk never changes its place.
    """

    cdef public int64_t limit
    cdef readonly bint is_broken  # what follows the frames that were answered last is none, or has no memory: the next call says so
    cdef object _chunk            # a memoryview of the chunk, which keeps it where it is
    cdef uint8_t* _data           # its first byte
    cdef Py_ssize_t _end
    cdef object _body             # a memoryview
    cdef Py_ssize_t _body_bytes
    cdef Py_ssize_t _filled

    def __init__(self, int64_t frame_bytes_max):
        cdef bytearray chunk = bytearray(CHUNK + SIZE_BYTES)
        self.limit = frame_bytes_max
        self._chunk = memoryview(chunk)
        self._data = <uint8_t*>PyByteArray_AS_STRING(chunk)
        self._end = 0
        self._body = None
        self._body_bytes = self._filled = 0

    def get_buffer(self):
        """Where the next bytes go; never empty."""
        if self._body is not None:
            return self._body[self._filled:]
        return self._chunk[self._end:] if self._end else self._chunk

    @property
    def is_mid_frame(self):
        """Whether a frame has begun and is not complete."""
        return self._body is not None or self._end > 0

    @property
    def awaited_bytes(self):
        """How many bytes of a large frame are not there yet; 0 outside one."""
        return self._body_bytes - self._filled if self._body is not None else 0

    @property
    def head(self):
        """The first bytes of the incomplete frame in the chunk, for a diagnosis."""
        return self._data[:min(self._end, HEAD_BYTES_MAX)]

    def buffer_updated(self, Py_ssize_t count):
        """`count` bytes were received into the last buffer; the frames that are now complete, without their size field.

        Raises FrameSizeError where none follows, and MemoryError where there is no memory for it, once the frames before it have been
        answered: `is_broken` then says that. After a MemoryError nothing is lost: a call of 0 bytes tries again.
        """
        cdef object body = self._body
        cdef list whole
        if count < 0 or count > (self._body_bytes - self._filled if body is not None else CHUNK + SIZE_BYTES - self._end):
            raise ValueError(f"{count} bytes cannot have been received into that buffer")
        if body is None:
            return self._cut(self._end + count)
        self._filled += count
        if self._filled < self._body_bytes:
            return []
        whole = [body]
        self._body = None
        return whole

    def exchange(self, int descriptor, bytes request not None, double wait_s):
        """Write a request to a non-blocking socket, and receive into the buffer until a whole frame is there, at most for `wait_s`.

        Answers (bytes written, bytes received, errno of what failed or 0, -1 when the other side has closed); the caller says
        `buffer_updated` of what was received. ValueError in the middle of a frame.
        """
        cdef size_t sent, received
        cdef int error
        cdef const uint8_t* out = <const uint8_t*>PyBytes_AS_STRING(request)
        cdef size_t out_size = PyBytes_GET_SIZE(request)
        cdef int64_t wait_ns = <int64_t>(wait_s * 1e9)
        if self.is_mid_frame:
            raise ValueError("an answer is on its way already")
        with nogil:
            error = exchange_frames(descriptor, out, out_size, self._data, CHUNK + SIZE_BYTES, wait_ns, &sent, &received)
        return sent, received, error

    cdef list _cut(self, Py_ssize_t end):
        cdef list frames
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t available
        cdef int32_t size
        self.is_broken = False
        self._end = end
        frames = []
        while end - position >= SIZE_BYTES:
            size = load_i32(self._data + position)
            if size < SIZE_BYTES or size > self.limit:
                if frames:
                    self.is_broken = True
                    break
                raise FrameSizeError(size, self.limit, self._data[position:min(end, position + HEAD_BYTES_MAX)])
            available = end - position - SIZE_BYTES
            try:
                if size <= available:
                    frames.append(memoryview(PyBytes_FromStringAndSize(<char*>self._data + position + SIZE_BYTES, size)))
                    position += SIZE_BYTES + size
                elif size > CHUNK:
                    self._begin_body(size, self._data + position + SIZE_BYTES, available)
                    position = end
                else:
                    break
            except MemoryError:
                if not frames:
                    raise
                self.is_broken = True
            if self.is_broken:
                break
        if end > position > 0:
            memmove(self._data, self._data + position, end - position)
        self._end = end - position
        return frames

    cdef int _begin_body(self, Py_ssize_t size, const uint8_t* start, Py_ssize_t available) except -1:
        """Take memory for a large frame, and what is there of it. It is not cleared: all of it will be received."""
        cdef KeptBuffer body = KeptBuffer(size)
        memcpy(body.data, start, available)
        self._body = memoryview(body)
        self._body_bytes = size
        self._filled = available
        return 0
