"""The producer's record memory as C types: what the send path and send_many build on.

Rules: everything here runs under the GIL, which is the only lock of the accumulator: an append holds it from the
room check to the last byte. `append` answers a code and never waits: who waits, and how, is the producer's decision.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastq._native.producer_batch cimport Batch, BatchOwner, PartitionState, TopicState

cdef enum:
    # Answers of append.
    APPENDED = 0
    NO_ROOM = 1             # buffer_memory (or the bound on buffered records) is used up
    TOO_LARGE = 2           # the record can never fit
    NO_PARTITION = 3        # of ProducerCore.store: the partition asked for is not known

    # Accumulator.slow: why send() cannot take the short way. One test of the whole word decides.
    SLOW_CLOSED = 1
    SLOW_FORKED = 2
    SLOW_SERIALIZERS = 4
    SLOW_INTERCEPTORS = 8
    SLOW_PARTITIONER = 16
    SLOW_SYNC = 32
    SLOW_NOT_STARTED = 64   # the asyncio producer has not met its event loop yet
    SLOW_NO_TRANSACTION = 128   # a transactional producer takes records only while a transaction is open
    SLOW_WAITING = 256      # of the asyncio producer: sends wait for their turn, and later ones go behind them

    # Accumulator.key_hash: which partition a key goes to.
    HASH_NONE = 0           # where keyless records go
    HASH_MURMUR2 = 1        # Kafka's default
    HASH_CRC32 = 2          # librdkafka's default; an empty key goes where keyless records go


cdef struct Appended:
    void* batch             # borrowed: the open batch of the partition
    int32_t index
    int64_t timestamp


@cython.final
cdef class Accumulator(BatchOwner):
    cdef public int slow
    cdef public bint attention
    cdef readonly bint held              # an open batch whose linger is over waits for the one before it, or for `look_at_s`
    cdef readonly double look_at_s       # nobody need look before, while something is in flight: 0 when nothing says so
    cdef readonly Py_ssize_t in_flight   # batches that were taken and not answered
    cdef int64_t watched_ns              # the same time while records wait for it, for a thread without the GIL
    cdef readonly object clock
    cdef readonly object to_compress     # closed batches whose filler has not compressed them yet
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
    cdef int key_hash
    cdef readonly Py_ssize_t wanted_bytes   # what the last append that answered NO_ROOM needs to be free; 0: a record's place
    cdef bint precise_clock
    cdef uint64_t random_state

    cdef uint32_t random(self) noexcept
    cdef TopicState find_topic(self, object name)
    cdef PartitionState pick_sticky(self, TopicState topic)
    cdef PartitionState pick(self, TopicState topic, const uint8_t* key, int32_t key_length)
    cdef bint is_keyless(self, Py_ssize_t key_length) noexcept
    cdef Py_ssize_t record_bytes_max(self) noexcept
    cdef int open_batch(self, PartitionState partition, Py_ssize_t need) except -1
    cdef int close_batch(self, PartitionState partition, bint full) except -1
    cdef bint fits(self, PartitionState partition, Py_ssize_t need) noexcept
    cdef int append(
        self, PartitionState partition, const uint8_t* key, int32_t key_length, const uint8_t* value,
        int32_t value_length, const uint8_t* headers, Py_ssize_t headers_size, int64_t timestamp, Appended* out,
    ) except -1
    cdef int no_more_in_flight(self) noexcept
    cdef int land(self, Batch batch) except -1
    cdef int _finish(self, Batch batch) except -1
