"""The producer's record memory as C types: what the send path and send_many build on.

Rules: everything here runs under the GIL, which is the only lock of the accumulator: an append holds it from the
room check to the last byte. `append` answers a code and never waits: who waits, and how, is the producer's decision.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
cimport cython

from fastq._native.records cimport CRecord

cdef enum:
    # States of a batch, in order.
    BATCH_OPEN = 0          # records are being appended
    BATCH_CLOSING = 1       # closed, its place in the queue taken, waiting for its filler to compress it
    BATCH_READY = 2         # may be sent
    BATCH_IN_FLIGHT = 3     # handed to a connection
    BATCH_DONE = 4          # acknowledged, failed, or replaced by the two halves of a split

    # Answers of append.
    APPENDED = 0
    NO_ROOM = 1             # buffer_memory (or the bound on buffered records) is used up
    TOO_LARGE = 2           # the record can never fit

    # Accumulator.slow: why send() cannot take the short way. One test of the whole word decides.
    SLOW_CLOSED = 1
    SLOW_FORKED = 2
    SLOW_SERIALIZERS = 4
    SLOW_INTERCEPTORS = 8
    SLOW_PARTITIONER = 16
    SLOW_SYNC = 32
    SLOW_NOT_STARTED = 64   # the asyncio producer has not met its event loop yet
    SLOW_NO_TRANSACTION = 128   # a transactional producer takes records only while a transaction is open

    # Most bytes of a record beside key, value and headers: five varints of up to 5 bytes, one of 10, and attributes.
    RECORD_OVERHEAD_MAX = 36

    POOL_CLASS_MIN = 12     # smallest pooled buffer: 4 KiB
    POOL_CLASS_MAX = 21     # largest: 2 MiB


@cython.final
cdef class BufferPool:
    cdef readonly Py_ssize_t limit_bytes
    cdef readonly Py_ssize_t used_bytes
    cdef readonly Py_ssize_t free_bytes
    cdef uint8_t* free_lists[POOL_CLASS_MAX + 1]
    cdef uint8_t* take(self, Py_ssize_t capacity, bint force=*) noexcept
    cdef void give(self, uint8_t* buffer, Py_ssize_t capacity) noexcept
    cdef void trim(self, Py_ssize_t keep_bytes) noexcept


@cython.final
cdef class Batch:
    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t limit           # appends stop here; at most `capacity`
    cdef Py_ssize_t used            # header included
    cdef uint8_t header[61]         # the batch header once `payload` holds the records
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp_
    cdef int32_t count
    cdef int state_
    cdef int exports
    cdef Accumulator accumulator
    cdef readonly PartitionState partition
    cdef readonly bytes payload     # compressed records; None while they are in `data`
    cdef readonly int codec
    cdef readonly double created_s
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly bint sequence_reset    # numbered anew, under a new epoch, at least once
    cdef readonly bint sealed            # the header in memory says what the fields say
    cdef public int attempts
    cdef public double retry_at_s
    cdef public object last_error
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly object error
    cdef public object record_errors
    cdef list callbacks
    cdef list waiters
    cdef readonly Batch parent
    cdef readonly list children
    cdef int children_pending
    cdef int32_t first_in_parent

    cdef void release(self) noexcept
    cdef void seal(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint transactional) noexcept
    cdef int take_payload(self, bytes payload, Py_ssize_t size) except -1
    cdef Batch leaf(self, int32_t* index)
    cdef Batch new_child(self, Py_ssize_t size)
    cdef int copy_record(self, const CRecord* record) except -1


@cython.final
cdef class PartitionState:
    cdef readonly TopicState topic
    cdef readonly int32_t index
    cdef Batch open_
    cdef readonly object queue          # closed batches that are not in flight, oldest first
    cdef readonly list in_flight        # batches handed to a connection, by sequence
    cdef Py_ssize_t target_bytes
    cdef public bint in_ready
    cdef public int leader_id
    cdef public int leader_epoch
    cdef public int64_t producer_id
    cdef public int producer_epoch
    cdef public int next_sequence
    cdef public int last_acked_sequence
    cdef public int64_t last_acked_offset
    cdef public bint unresolved
    cdef public object many             # the send_many call that appended last, and its segment number
    cdef public int many_segment


@cython.final
cdef class TopicState:
    cdef readonly str name
    cdef readonly bytes encoded_name
    cdef public bytes topic_id
    cdef readonly list partitions
    cdef public list available          # partitions with a leader: where keyless records go
    cdef int32_t partition_count
    cdef PartitionState sticky
    cdef Py_ssize_t sticky_bytes
    cdef readonly int codec
    cdef public double compression_ratio
    cdef public Py_ssize_t batch_bytes_max


cdef struct Appended:
    void* batch             # borrowed: the open batch of the partition
    int32_t index
    int64_t timestamp


@cython.final
cdef class Accumulator:
    cdef readonly BufferPool pool
    cdef public int slow
    cdef public bint attention
    cdef readonly object clock
    cdef public object wait_done         # (batch, timeout_s) -> None: how a blocking client waits for a batch
    cdef readonly object ready           # partitions with closed batches, in the order in which they became ready
    cdef readonly object to_compress     # closed batches whose filler has not compressed them yet
    cdef readonly object callbacks       # completed batches whose callbacks have not run
    cdef readonly dict open_partitions   # partition -> None, in the order in which the open batches were begun
    cdef readonly dict incomplete        # batch -> None, in the order in which they were begun
    cdef dict topics
    cdef str last_name
    cdef TopicState last_topic
    cdef readonly Py_ssize_t batch_size
    cdef readonly Py_ssize_t batch_size_max
    cdef readonly Py_ssize_t max_request_size
    cdef Py_ssize_t raw_bytes_max
    cdef readonly int32_t batch_records_max
    cdef readonly int64_t records_max
    cdef readonly int64_t buffered_records
    cdef readonly int64_t records_total
    cdef readonly int64_t batches_total
    cdef readonly int64_t full_total     # batches that closed because they were full
    cdef readonly int64_t bytes_total
    cdef bint adaptive
    cdef bint ignore_keys
    cdef bint precise_clock
    cdef uint64_t random_state

    cdef uint32_t random(self) noexcept
    cdef TopicState find_topic(self, object name)
    cdef PartitionState pick_sticky(self, TopicState topic)
    cdef PartitionState pick(self, TopicState topic, const uint8_t* key, int32_t key_length)
    cdef Py_ssize_t record_bytes_max(self) noexcept
    cdef int open_batch(self, PartitionState partition, Py_ssize_t need) except -1
    cdef int close_batch(self, PartitionState partition, bint full) except -1
    cdef bint fits(self, PartitionState partition, Py_ssize_t need) noexcept
    cdef int append(
        self, PartitionState partition, const uint8_t* key, int32_t key_length, const uint8_t* value,
        int32_t value_length, const uint8_t* headers, Py_ssize_t headers_size, int64_t timestamp, Appended* out,
    ) except -1
    cpdef mark_ready(self, PartitionState partition)
    cdef int _finish(self, Batch batch) except -1

cdef int64_t now_ms() noexcept nogil
