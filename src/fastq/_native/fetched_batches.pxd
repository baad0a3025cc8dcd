"""The walk over the batches of one fetched partition, and the open batch as a span that records are taken off."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from fastq._native.records cimport CBatchHeader, CRecord

cdef struct RecordSpan:
    # What is left to hand out of one decompressed batch.
    const uint8_t* p
    const uint8_t* end
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_timestamp     # of all records, when timestamp_type is 1
    int64_t next_offset          # the offset after the batch
    int32_t leader_epoch
    int32_t count                # records not handed out yet
    int8_t timestamp_type        # -1 none, 0 create time, 1 log append time


cdef inline int64_t timestamp_of(const RecordSpan* span, const CRecord* r) noexcept nogil:
    return span.base_timestamp + r.timestamp_delta if span.timestamp_type == 0 else span.append_timestamp


cdef class FetchedBatches:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t position
    cdef readonly int64_t end_position
    cdef readonly Py_ssize_t size_bytes
    cdef readonly str broker
    cdef public int64_t limit
    cdef object buffer
    cdef object owner            # keeps the span's bytes alive
    cdef const uint8_t* base
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef RecordSpan span
    cdef readonly bint broken    # found corrupt: nothing more comes of it, it is to be fetched again
    cdef const uint8_t* last     # where the record handed out last begins
    cdef bint is_behind          # all batches end before the position that they were fetched for
    cdef bint check_crcs
    cdef bint read_committed
    cdef Py_ssize_t decompressed_bytes_max
    cdef list aborted
    cdef set aborting
    cdef Py_ssize_t start        # of the records in the buffer
    cdef int32_t before_epoch    # leader epoch of what lies before the span
    cdef int32_t epoch_before(self, int64_t offset) noexcept
    cdef int skip_batch(self, const CBatchHeader* h) except -1
    cdef bint in_aborted_transaction(self, const CBatchHeader* h) except? -1
    cdef int open_span(self, const CBatchHeader* h, int64_t size) except -1
    cdef int close_span(self) except -1
    cdef int open_batch(self) except -1
    cdef int open_legacy(self) except -1
    cdef bint drop_below_position(self) except? -1
    cdef bytes decompress(self, int codec, Py_ssize_t start, Py_ssize_t size)
    cdef object placed(self, object error)
    cdef int corrupt(self, str reason) except -1
