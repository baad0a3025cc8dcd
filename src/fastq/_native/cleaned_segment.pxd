"""A cleaned segment as C types, and the growing buffer that it and batches on their way into it are written to."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

cdef struct Buffer:
    uint8_t* data
    Py_ssize_t used
    Py_ssize_t room

cdef int grow(Buffer* buffer, int64_t size) except -1


cdef inline uint8_t* reserve(Buffer* buffer, int64_t size) except NULL:
    """Room for `size` more bytes; the caller raises `used`."""
    if buffer.used + size > buffer.room:
        grow(buffer, size)
    return buffer.data + buffer.used


@cython.final
cdef class SegmentWriter:
    cdef Buffer log
    cdef Buffer index
    cdef Buffer time_index
    cdef int64_t bytes_since_entry
    cdef int64_t last_entry_timestamp
    cdef readonly int64_t base_offset
    cdef readonly int64_t index_interval_bytes
    cdef readonly int64_t size
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t end_offset

    cdef int note(self, int64_t size, int64_t last_offset, int64_t max_timestamp) except -1
    cdef int append_time(self) except -1
