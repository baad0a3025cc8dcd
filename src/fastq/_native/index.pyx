"""Search in a segment's sparse indexes, over any bytes-like object: a mapped file, bytes, a part of either.

Rules
- Nothing is copied or kept: the buffer is held during the call only.
- `count` says how many entries are real, since Kafka preallocates index files and pads them with zeros; without it
  every whole entry of the buffer counts.
- Entries ascend; a search answers the last entry that is not above its target, or None when even the first one is.
Both formats are big-endian and have no header (Kafka's OffsetIndex and TimeIndex):
    .index      8 bytes: offset relative to the segment's base offset 4, position in the log file 4
    .timeindex  12 bytes: timestamp 8, offset relative to the base offset 4 of the last record up to that timestamp
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t

from fastq._native.bits cimport load_i32, load_i64

cdef enum:
    OFFSET_ENTRY = 8
    TIME_ENTRY = 12

OFFSET_ENTRY_BYTES = OFFSET_ENTRY
TIME_ENTRY_BYTES = TIME_ENTRY


cdef Py_ssize_t entries_of(Py_buffer* view, Py_ssize_t entry_bytes, count) except -1:
    """How many entries to search; ValueError when `count` is more than the buffer holds."""
    cdef Py_ssize_t whole = view.len // entry_bytes
    cdef Py_ssize_t wanted
    if count is None:
        return whole
    wanted = count
    if not 0 <= wanted <= whole:
        raise ValueError(f"entry count {wanted} is outside of 0 to {whole}, what {view.len} bytes hold")
    return wanted


cdef Py_ssize_t last_offset_entry(const uint8_t* p, Py_ssize_t count, int64_t relative_offset) noexcept nogil:
    """Number of the last entry whose relative offset is at most that; -1 for none."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = count
    cdef Py_ssize_t middle
    while low < high:
        middle = low + (high - low) // 2
        if load_i32(p + middle * OFFSET_ENTRY) <= relative_offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef Py_ssize_t last_time_entry(const uint8_t* p, Py_ssize_t count, int64_t timestamp) noexcept nogil:
    """Number of the last entry whose timestamp is at most that; -1 for none."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = count
    cdef Py_ssize_t middle
    while low < high:
        middle = low + (high - low) // 2
        if load_i64(p + middle * TIME_ENTRY) <= timestamp:
            low = middle + 1
        else:
            high = middle
    return low - 1


def lookup_offset(data, int64_t relative_offset, count=None):
    """(relative offset, position) of the last `.index` entry at or below `relative_offset`; None when there is none.

    Raises ValueError when `count` is more than `data` holds.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef Py_ssize_t at
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        at = last_offset_entry(p, entries_of(&view, OFFSET_ENTRY, count), relative_offset)
        if at < 0:
            return None
        p += at * OFFSET_ENTRY
        return load_i32(p), load_i32(p + 4)
    finally:
        PyBuffer_Release(&view)


def lookup_timestamp(data, int64_t timestamp, count=None):
    """(timestamp, relative offset) of the last `.timeindex` entry at or below `timestamp` (ms); None if there is none.

    Records at or after `timestamp` lie behind that offset. Raises ValueError when `count` is more than `data` holds.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef Py_ssize_t at
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        at = last_time_entry(p, entries_of(&view, TIME_ENTRY, count), timestamp)
        if at < 0:
            return None
        p += at * TIME_ENTRY
        return load_i64(p), load_i32(p + 8)
    finally:
        PyBuffer_Release(&view)


def offset_entry(data, Py_ssize_t number, count=None):
    """Entry `number` of an `.index`: (relative offset, position). IndexError outside of 0 to count - 1."""
    cdef Py_buffer view
    cdef const uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= number < entries_of(&view, OFFSET_ENTRY, count):
            raise IndexError(f"offset index has no entry {number}")
        p = <const uint8_t*>view.buf + number * OFFSET_ENTRY
        return load_i32(p), load_i32(p + 4)
    finally:
        PyBuffer_Release(&view)


def time_entry(data, Py_ssize_t number, count=None):
    """Entry `number` of a `.timeindex`: (timestamp, relative offset). IndexError outside of 0 to count - 1."""
    cdef Py_buffer view
    cdef const uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= number < entries_of(&view, TIME_ENTRY, count):
            raise IndexError(f"time index has no entry {number}")
        p = <const uint8_t*>view.buf + number * TIME_ENTRY
        return load_i64(p), load_i32(p + 8)
    finally:
        PyBuffer_Release(&view)
