"""Fetched batches as columns: what the Arrow export builds on."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from fastq._native.consume cimport FetchedRecords, Record
from fastq._native.fetched_batches cimport RecordSpan

cdef struct Totals:
    # What a column of some rows needs.
    int64_t rows
    int64_t key_bytes
    int64_t key_nulls
    int64_t value_bytes
    int64_t value_nulls
    int64_t topic_bytes
    int64_t timestamp_nulls
    int64_t headers
    int64_t header_key_bytes
    int64_t header_value_bytes
    int64_t header_value_nulls

cdef struct BatchSpan:
    RecordSpan span                  # exactly the records of this batch
    int32_t part                     # index of its topic and partition
    int64_t first_row
    int64_t next_row
    Totals totals


cdef class ConsumerBatch:
    cdef list topics_of_parts        # str
    cdef list encoded_topics         # bytes
    cdef list partitions_of_parts    # int
    cdef list owners
    cdef list ends                   # by part: the offset after its last record here, -1 without any
    cdef list end_epochs             # and the leader epoch of that record
    cdef BatchSpan* spans
    cdef Py_ssize_t span_count
    cdef Py_ssize_t span_capacity
    cdef int64_t rows
    cdef int64_t topic_bytes_max     # of one span, as the topic's column has its name in each row
    cdef readonly int64_t size_bytes  # of keys, values and headers
    cdef const uint8_t** places      # of every row, made for the first index
    cdef dict columns
    cdef BatchSpan* reserve(self) except NULL
    cdef int add_span(self, FetchedRecords chunk, int32_t part) except -1
    cdef Record row_at(self, int64_t row)
    cdef int find_places(self) except -1
    cdef list per_part(self, list values)
    cdef object numbers(self, str name, bint wide, int which)
    cdef list objects(self, str name, int which)
