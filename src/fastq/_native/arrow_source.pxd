"""Arrow arrays as a source of records: a typed view of one column of the current chunk."""

from libc.stdint cimport int64_t, uint8_t
cimport cython

from fastq._native.arrow_abi cimport ArrowArray, ArrowArrayStream, ArrowSchema
from fastq._native.producer_core cimport Field

cdef enum ColumnKind:
    COLUMN_ABSENT = 0
    COLUMN_NULL = 1
    COLUMN_BYTES32 = 2          # bytes or text
    COLUMN_BYTES64 = 3
    COLUMN_BYTES_VIEW = 4
    COLUMN_BYTES_FIXED = 5
    COLUMN_INT8 = 6
    COLUMN_INT16 = 7
    COLUMN_INT32 = 8
    COLUMN_INT64 = 9
    COLUMN_UINT8 = 10
    COLUMN_UINT16 = 11
    COLUMN_UINT32 = 12
    COLUMN_UINT64 = 13
    COLUMN_TIME_S = 14
    COLUMN_TIME_MS = 15
    COLUMN_TIME_US = 16
    COLUMN_TIME_NS = 17
    COLUMN_LIST32 = 18          # lists of headers; a map is one of these
    COLUMN_LIST64 = 19
    COLUMN_LIST_VIEW32 = 20
    COLUMN_LIST_VIEW64 = 21
    COLUMN_LIST_FIXED = 22
    COLUMN_STRUCT = 23          # a header
    COLUMN_DICTIONARY = 24      # from here on: entries point at those of `inner`
    COLUMN_RUNS = 25

cdef struct Column:
    ColumnKind kind
    ColumnKind index            # of a dictionary's indices, or of the ends of runs
    int64_t child               # place among the columns of a table; -1: the array itself
    int64_t width               # of a fixed-size value (bytes) or list (entries)
    Column* inner               # values of a dictionary or of runs, entries of a list, key of a header; owned
    Column* second              # value of a header; owned
    # Of the current chunk:
    const ArrowArray* array
    int64_t base                # where entry 0 lies in the buffers
    int64_t length              # how many entries there are
    const uint8_t* validity     # NULL: nothing is null
    const uint8_t* offsets      # what says where entries are: offsets, views, indices, ends of runs; else the numbers themselves
    const uint8_t* data         # bytes, or the sizes of list views
    int64_t runs
    int64_t run                 # where the last search ended


@cython.final
cdef class ArrowSource:
    cdef ArrowSchema schema
    cdef ArrowArray chunk
    cdef ArrowArrayStream stream        # its release is NULL for a single array, and at the end
    cdef bint single_pending
    cdef int64_t row                    # in the chunk
    cdef int64_t rows_before            # in the chunks before it
    cdef const uint8_t* validity        # of a table's rows as a whole
    cdef readonly bint is_table
    cdef Column value
    cdef Column key
    cdef Column headers
    cdef Column partition
    cdef Column timestamp

    cdef int advance(self) except -1
    cdef int take_stream(self, object capsule) except -1
    cdef int take_array(self, object schema_capsule, object array_capsule) except -1
    cdef void release_chunk(self) noexcept
    cdef void release_stream(self) noexcept
    cdef int fail(self, str what, int code) except -1
    cdef int load(self) except -1
    cdef int bind_columns(self) except -1
    cdef int bind(self) except -1
    cdef int bind_child(self, Column* column, str name) except -1
    cdef int field(self, Column* column, Field* field) except -1
    cdef object integer(self, Column* column)
    cdef int header_span(self, Column** entries, int64_t* start, int64_t* end) except -1
    cdef int header_at(self, Column* entries, int64_t i, Field* key, Field* value) except -1
    cdef object header_list(self)
    cdef bytes header_bytes(self)
    cdef int column(self, Column* found, const char* name, str wanted) except -1
