"""One cleaned segment while it is written: the bytes of its log, and of the two indexes that appends would have given it.

Rules: nothing here opens files; whoever writes batches puts them behind `log.used` and then has `note` account for them.
Source: Kafka's LogSegment.append; the indexes' entries are as offset_index.py and time_index.py describe them.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc

from fastq._native.bits cimport store_i32, store_i64

cdef enum:
    INDEX_ENTRY_BYTES = 8
    TIME_INDEX_ENTRY_BYTES = 12


cdef int grow(Buffer* buffer, int64_t size) except -1:
    """Have room for `size` more bytes, and for as many again as are there."""
    cdef uint8_t* grown
    cdef Py_ssize_t room = <Py_ssize_t>max(buffer.used + size, 2 * buffer.room, 4096)
    grown = <uint8_t*>realloc(buffer.data, room)
    if grown == NULL:
        raise MemoryError(f"no memory for {room} bytes of a cleaned segment")
    buffer.data = grown
    buffer.room = room
    return 0


cdef bytes take_all(Buffer* buffer):
    taken = PyBytes_FromStringAndSize(<const char*>buffer.data, buffer.used)
    buffer.used = 0
    return taken


@cython.final
cdef class SegmentWriter:
    """The bytes of one cleaned segment and of its two indexes, with the entries that appends would have made.

    `size` counts the bytes of the log so far, taken or not; `max_timestamp` (-1: none) and `max_timestamp_offset` are as Segment's.
    `end_offset` is one above the last batch, the base offset while there is none.
    """

    def __init__(self, int64_t base_offset, int64_t index_interval_bytes):
        self.base_offset = self.max_timestamp_offset = self.end_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.max_timestamp = self.last_entry_timestamp = -1

    def __dealloc__(self):
        free(self.log.data)
        free(self.index.data)
        free(self.time_index.data)

    @property
    def pending_bytes(self):
        """Bytes of the log that wait for `take`."""
        return self.log.used

    def take(self):
        """The bytes of the log that were not taken yet."""
        return take_all(&self.log)

    def finish(self):
        """Both indexes, (offset index, time index), with the last entry that a segment gets when it is rolled."""
        self.append_time()
        return take_all(&self.index), take_all(&self.time_index)

    cdef int note(self, int64_t size, int64_t last_offset, int64_t max_timestamp) except -1:
        """Account for a batch that was written behind the others (Segment.note_batch)."""
        cdef uint8_t* p
        if self.size + size > INT32_MAX or last_offset - self.base_offset > INT32_MAX:
            raise OverflowError(f"the cleaned segment at offset {self.base_offset} would pass what an index can tell")
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_entry > self.index_interval_bytes:
            p = reserve(&self.index, INDEX_ENTRY_BYTES)
            store_i32(p, <int32_t>(last_offset - self.base_offset))
            store_i32(p + 4, <int32_t>self.size)
            self.index.used += INDEX_ENTRY_BYTES
            self.append_time()
            self.bytes_since_entry = 0
        self.bytes_since_entry += size
        self.size += size
        self.end_offset = last_offset + 1
        self.log.used += <Py_ssize_t>size
        return 0

    cdef int append_time(self) except -1:
        cdef uint8_t* p
        if self.max_timestamp > self.last_entry_timestamp:
            p = reserve(&self.time_index, TIME_INDEX_ENTRY_BYTES)
            store_i64(p, self.max_timestamp)
            store_i32(p + 8, <int32_t>(self.max_timestamp_offset - self.base_offset))
            self.time_index.used += TIME_INDEX_ENTRY_BYTES
            self.last_entry_timestamp = self.max_timestamp
        return 0
