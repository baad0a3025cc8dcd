"""A batch of the producer's, its partition and its topic as C types: what the accumulator and the send path work on."""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from fastq._native.buffer_pool cimport BufferPool
from fastq._native.records cimport CRecord

cdef enum:
    # States of a batch, in order.
    BATCH_OPEN = 0          # records are being appended
    BATCH_CLOSING = 1       # closed, its place in the queue taken, waiting for its filler to compress it
    BATCH_READY = 2         # may be sent
    BATCH_IN_FLIGHT = 3     # handed to a connection
    BATCH_DONE = 4          # acknowledged, failed, or replaced by the two halves of a split

    # Most bytes of a record beside key, value and headers: five varints of up to 5 bytes, one of 10, and attributes.
    RECORD_OVERHEAD_MAX = 36


cdef class Batch


cdef class BatchOwner:
    cdef readonly BufferPool pool
    cdef public object wait_done         # (batch, timeout_s) -> None: how a blocking client waits for a batch
    cdef readonly object ready           # partitions with closed batches, in the order in which they became ready
    cdef readonly object callbacks       # completed batches whose callbacks have not run
    cdef Batch untold                    # the first of those that there was no memory to put there
    cdef int tell(self, Batch batch) except -1
    cpdef mark_ready(self, PartitionState partition)


@cython.final
cdef class Batch:
    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t limit           # appends stop here; at most `capacity`
    cdef Py_ssize_t used            # header included
    cdef uint8_t header[61]         # the batch header once `payload` holds the records
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp_
    cdef bint clocked               # the base timestamp is when its record was sent, and was not asked for
    cdef int32_t count
    cdef int state_
    cdef int exports
    cdef BatchOwner accumulator
    cdef readonly PartitionState partition
    cdef readonly bytes payload     # compressed records; None while they are in `data`
    cdef readonly int codec
    cdef readonly double created_s
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly bint sealed            # the header in memory says what the fields say
    cdef public int attempts
    cdef public bint in_doubt       # sent, and no answer has said for certain that it was not written
    cdef public double retry_at_s
    cdef public object last_error
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly object error
    cdef public object record_errors
    cdef list callbacks
    cdef Batch next_untold
    cdef list waiters
    cdef readonly Batch parent
    cdef readonly list children
    cdef int children_pending
    cdef int32_t first_in_parent

    cdef void release(self) noexcept
    cdef void seal(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint transactional) noexcept
    cdef int take_payload(self, bytes payload, Py_ssize_t size) except -1
    cdef Batch leaf(self, int32_t* index)
    cdef int give_to(self, list halves) except -1
    cdef Batch new_child(self, Py_ssize_t size, list halves)
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
    cdef public bint unresolved         # a batch in doubt was given up: nothing new is numbered until it is known what became of it
    cdef public int gap_sequence        # from this one on nothing can be written under this epoch; -1: no such
    cdef public object many             # the send_many call that appended last, and its segment number
    cdef public int many_segment


@cython.final
cdef class TopicState:
    cdef readonly str name
    cdef readonly bytes encoded_name
    cdef public bytes topic_id
    cdef readonly list partitions
    cdef readonly list gone             # partitions that the topic had before it was made anew, the first of them last
    cdef public list available          # partitions with a leader: where keyless records go
    cdef int32_t partition_count
    cdef PartitionState sticky
    cdef Py_ssize_t sticky_bytes
    cdef readonly int codec
    cdef public double compression_ratio
    cdef public Py_ssize_t batch_bytes_max


cdef int check_callback(object callback) except -1
