"""One partition's part of a fetch response, for the native code that walks its records."""

from libc.stdint cimport int16_t, int32_t, int64_t


cdef class FetchedPartition:
    cdef readonly object topic
    cdef readonly bytes topic_id
    cdef readonly int32_t partition
    cdef readonly int16_t error_code
    cdef readonly int64_t high_watermark
    cdef readonly int64_t last_stable_offset
    cdef readonly int64_t log_start_offset
    cdef readonly int32_t diverging_epoch
    cdef readonly int64_t diverging_end_offset
    cdef readonly int32_t current_leader_id
    cdef readonly int32_t current_leader_epoch
    cdef readonly int32_t preferred_read_replica
    cdef readonly list aborted
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t size_bytes
    cdef readonly Py_ssize_t whole_bytes
    cdef readonly int64_t next_offset
    cdef readonly int32_t last_leader_epoch
    cdef object buffer
