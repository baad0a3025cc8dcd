"""One request and its response: what is sent, who is told, and the bytes of the header.

Request header (version 1, and 2 with the last byte): size 4, api key 2, api version 2, correlation id 4, client id
(2 + n), tagged fields 1 (always empty). Response header: correlation id 4, and in version 1 tagged fields.

Rules of this file
- A body given as buffers is not copied, unless the whole request has at most JOINED_BYTES: then it goes out as one buffer, which is
  cheaper than a list of pieces.
- Which versions have the flexible headers is the caller's to say: `first_flexible[api_key]` is the first one, 255 for never.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, uint8_t
from libc.string cimport memcpy

from fastq._native.bits cimport load_i32, store_i16, store_i32
from fastq._native.cursor cimport Cursor, skip_tags

JOINED_BYTES = 1024

cdef enum:
    JOINED = 1024
    NEVER_FLEXIBLE = 255
    SIZE_BYTES = 4
    FIXED_BYTES = 14         # of a request's header, its size included, without client id and tagged fields


@cython.final
cdef class EncodedRequest:
    """A request whose body is already bytes, for the hot paths.

    `buffers` go out in order, without a copy; they must not change until the request is done. `decode` gets the body
    of the response as a memoryview over memory of its own and returns what `on_done` gets; a `DecodeError` of it
    closes the connection. Without `expects_response` (Produce with acks=0) the request is done once its last byte is
    with the operating system.
    """

    cdef readonly int api_key
    cdef readonly int version
    cdef readonly object buffers
    cdef readonly object decode
    cdef readonly bint expects_response

    def __init__(self, int api_key, int version, buffers, decode, bint expects_response=True):
        self.api_key = api_key
        self.version = version
        self.buffers = buffers
        self.decode = decode
        self.expects_response = expects_response


@cython.final
cdef class PendingRequest:
    """A request on its way. `deadline` is on the core's clock; `versions` narrows what may be negotiated. `anywhere`: any broker could
    answer it."""

    cdef readonly object request
    cdef readonly object on_done
    cdef readonly double deadline
    cdef readonly object versions
    cdef readonly bint anywhere
    cdef readonly int api_key
    cdef public int version
    cdef public int correlation_id
    cdef public double sent_at

    def __init__(self, request, on_done, double deadline, versions=None, bint anywhere=False):
        self.request = request
        self.on_done = on_done
        self.deadline = deadline
        self.versions = versions
        self.anywhere = anywhere
        self.api_key = (<EncodedRequest>request).api_key if type(request) is EncodedRequest else request.API_KEY
        self.version = -1
        self.correlation_id = -1
        self.sent_at = 0.0


cdef inline bint is_flexible(int api_key, int version, bytes first_flexible) noexcept:
    cdef int first = NEVER_FLEXIBLE
    if 0 <= api_key < PyBytes_GET_SIZE(first_flexible):
        first = <uint8_t>PyBytes_AS_STRING(first_flexible)[api_key]
    return first != NEVER_FLEXIBLE and version >= first


cdef Py_ssize_t size_of(object buffer) except -1:
    cdef Py_buffer view
    if type(buffer) is bytes:
        return PyBytes_GET_SIZE(buffer)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.len


def frame_request(
    int16_t api_key, int16_t version, int32_t correlation_id, bytes client_id not None, bytes first_flexible not None, buffers
):
    """The whole request, as a list of buffers to write in order, and their size in bytes. ValueError for more than a size can say."""
    cdef bint flexible = is_flexible(api_key, version, first_flexible)
    cdef Py_ssize_t client_id_bytes = PyBytes_GET_SIZE(client_id)
    cdef Py_ssize_t header_bytes = FIXED_BYTES + client_id_bytes + flexible
    cdef Py_ssize_t size = header_bytes
    cdef object frame
    cdef uint8_t* p
    for buffer in buffers:
        size += size_of(buffer)
    if size - SIZE_BYTES > 0x7FFFFFFF:
        raise ValueError(f"a request of {size} bytes is larger than its size field can say")
    frame = PyBytes_FromStringAndSize(NULL, size if size <= JOINED else header_bytes)
    p = <uint8_t*>PyBytes_AS_STRING(frame)
    store_i32(p, <int32_t>(size - SIZE_BYTES))
    store_i16(p + 4, api_key)
    store_i16(p + 6, version)
    store_i32(p + 8, correlation_id)
    store_i16(p + 12, <int16_t>client_id_bytes)
    memcpy(p + FIXED_BYTES, PyBytes_AS_STRING(client_id), client_id_bytes)
    if flexible:
        p[header_bytes - 1] = 0
    if size > JOINED:
        return [frame, *buffers], size
    p += header_bytes
    for buffer in buffers:
        p = put_buffer(p, buffer)
    return [frame], size


cdef uint8_t* put_buffer(uint8_t* p, object buffer) except NULL:
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    memcpy(p, view.buf, view.len)
    PyBuffer_Release(&view)
    return p + view.len


def response_start(frame, int32_t correlation_id, int api_key, int version, bytes first_flexible not None):
    """Where the body begins in a response (without its size) to the request of this correlation id. Raises DecodeError."""
    cdef Py_buffer view
    cdef Cursor c
    cdef const uint8_t* base
    cdef int32_t found
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t*>view.buf
        if view.len < 4:
            fail("a correlation id", 0, f"{view.len} bytes")
        found = load_i32(base)
        if found != correlation_id:
            fail(f"correlation id {correlation_id}", 0, f"{found}")
        c.p = base + 4
        c.end = base + view.len
        c.failed = False
        if is_flexible(api_key, version, first_flexible):
            skip_tags(&c)
        if c.failed:
            fail("tagged fields", 4, f"{view.len} bytes")
        return c.p - base
    finally:
        PyBuffer_Release(&view)


cdef object fail(str expected, Py_ssize_t position, str detail):
    """Raise DecodeError; kept out of line, as it is never on the hot path."""
    from fastq._native.wire import DecodeError
    raise DecodeError(expected, position, detail, "response header")
