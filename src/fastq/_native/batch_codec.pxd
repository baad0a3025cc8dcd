"""What batch_codec shares with records: finding a batch in a buffer, its payload, its checksum, the cold raisers."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from fastq._native.records cimport CBatchHeader

cdef enum:
    GIL_RELEASE_BYTES = 64 * 1024    # below it, work ends before a release of the GIL would

cdef int decode_error(expected, Py_ssize_t position, detail) except -1
cdef int header_error(int answer, const CBatchHeader* h, Py_ssize_t position, Py_ssize_t available) except -1
# Where in `view` the whole batch at `position` begins; raises DecodeError when there is none.
cdef const uint8_t* locate(Py_buffer* view, Py_ssize_t position, CBatchHeader* h) except NULL
# A memoryview of what follows the 61 bytes of the batch at `position` of `data`.
cdef object payload_of(data, Py_ssize_t position, const CBatchHeader* h)
# crc_matches, without the GIL when the batch is large.
cdef int verify(const uint8_t* p, int64_t size) except -1
# `length` bytes at `data` as bytes; None when it is below zero.
cdef object nullable(const uint8_t* data, int32_t length)


@cython.final
cdef class DecodedRecord:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly list headers
