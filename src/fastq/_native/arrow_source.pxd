"""Arrow arrays as a source of records: the C data interface's structs and a typed view of one column."""

from libc.stdint cimport int32_t, int64_t, uint8_t
cimport cython

from fastq._native.producer_core cimport Field


cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept
    void* private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept
    void* private_data

cdef struct ArrowArrayStream:
    int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept
    int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept
    const char* (*get_last_error)(ArrowArrayStream*) noexcept
    void (*release)(ArrowArrayStream*) noexcept
    void* private_data

cdef enum ColumnKind:
    COLUMN_ABSENT = 0
    COLUMN_NULL = 1
    COLUMN_BINARY32 = 2
    COLUMN_BINARY64 = 3
    COLUMN_VIEW = 4
    COLUMN_INT16 = 5
    COLUMN_INT32 = 6
    COLUMN_INT64 = 7
    COLUMN_TIME_S = 8
    COLUMN_TIME_MS = 9
    COLUMN_TIME_US = 10
    COLUMN_TIME_NS = 11
    COLUMN_HEADERS32 = 12
    COLUMN_HEADERS64 = 13

cdef struct Column:
    ColumnKind kind
    int64_t child               # place among the children of a struct; -1: the array itself
    const ArrowArray* array     # of the current chunk


@cython.final
cdef class ArrowSource:
    cdef ArrowSchema schema
    cdef ArrowArray chunk
    cdef ArrowArrayStream* stream       # NULL for a single array
    cdef object owner
    cdef bint single_pending
    cdef int64_t row
    cdef readonly bint is_table
    cdef Column value
    cdef Column key
    cdef Column headers
    cdef Column partition
    cdef Column timestamp
    cdef ColumnKind header_key
    cdef ColumnKind header_value

    cdef int advance(self) except -1
    cdef int load(self) except -1
    cdef int bind(self) except -1
    cdef int64_t place(self, Column* column) noexcept
    cdef int field(self, Column* column, Field* field) except -1
    cdef object integer(self, Column* column)
    cdef const ArrowArray* header_entries(self, int64_t* start, int64_t* end) except? NULL
    cdef object header_list(self)
    cdef bytes header_bytes(self)
    cdef Column column(self, const char* name, str kinds)
