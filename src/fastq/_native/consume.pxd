"""Records as the consumer hands them out, as C types."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from fastq._native.fetched_batches cimport FetchedBatches, RecordSpan
from fastq._native.heartbeat cimport Progress
from fastq._native.records cimport CRecord

cdef class Record:
    cdef readonly object topic
    cdef readonly object key
    cdef readonly object value
    cdef object header_bytes     # None, encoded bytes, or the decoded tuple
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly int8_t timestamp_type


cdef Record new_record(object topic, int32_t partition, const RecordSpan* span, const CRecord* r)
cdef tuple decode_headers(const uint8_t* p, const uint8_t* end, int32_t count)


cdef class FetchedRecords(FetchedBatches):
    cdef readonly bint taking    # a `take` is under way
    cdef Record next_record(self)
    cdef list take_records(self, Py_ssize_t count_max, object transform, bint quiet)


cdef class RecordIterator:
    cdef object __weakref__
    cdef FetchedRecords chunk
    cdef Progress progress
    cdef object advance
    cdef object transform
