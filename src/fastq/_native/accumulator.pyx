"""The producer's record memory: open batches, a bounded pool of buffers, the queues of closed batches.

A record is encoded once, straight into the open batch of its partition. Batches close when they are full or when their
linger is over, keep their place in the partition's queue from then on, and give their buffer back when the broker has
answered and no connection holds a view of it any more. Follows Kafka's RecordAccumulator, BufferPool and ProducerBatch.

Rules
- The GIL is the lock. Nothing between the room check and the last byte of an append runs Python code.
- Per record only the append; everything else is per batch and callable from Python.
- `used_bytes` of the pool counts open, queued and in-flight memory; free buffers are kept for reuse (fresh memory is
  slow to touch) inside the same bound.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.list cimport PyList_GET_ITEM
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastq._native.crc32c cimport crc32c_update
from fastq._native.hashing cimport kafka_murmur2
from fastq._native.bits cimport size_varint, store_u32
from fastq._native.records cimport (
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD_BYTES,
    CRC_POSITION,
    LOG_OVERHEAD_BYTES,
    CBatchHeader,
    CRecord,
    parse_record,
    record_body_size,
    record_size,
    write_header,
    write_record,
)

from collections import deque

OPEN = BATCH_OPEN
CLOSING = BATCH_CLOSING
READY = BATCH_READY
IN_FLIGHT = BATCH_IN_FLIGHT
DONE = BATCH_DONE
CLOSED = SLOW_CLOSED
FORKED = SLOW_FORKED
SERIALIZERS = SLOW_SERIALIZERS
INTERCEPTORS = SLOW_INTERCEPTORS
PARTITIONER = SLOW_PARTITIONER
SYNC = SLOW_SYNC
NOT_STARTED = SLOW_NOT_STARTED
NO_TRANSACTION = SLOW_NO_TRANSACTION

# Uncompressed bytes that one batch may take however well its topic compresses.
cdef Py_ssize_t RAW_BYTES_MAX = 1024 * 1024

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_WIN32)
      #include <windows.h>
      static inline int64_t fastq_now_ms(int coarse) {
          FILETIME ft; ULARGE_INTEGER u;
          (void)coarse;
          GetSystemTimeAsFileTime(&ft);
          u.LowPart = ft.dwLowDateTime; u.HighPart = ft.dwHighDateTime;
          return (int64_t)(u.QuadPart / 10000) - 11644473600000LL;
      }
    #else
      #include <time.h>
      #ifndef CLOCK_REALTIME_COARSE
        #define CLOCK_REALTIME_COARSE CLOCK_REALTIME
      #endif
      static inline int64_t fastq_now_ms(int coarse) {
          struct timespec t;
          clock_gettime(coarse ? CLOCK_REALTIME_COARSE : CLOCK_REALTIME, &t);
          return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
      }
    #endif
    """
    int64_t fastq_now_ms(int coarse) noexcept nogil


cdef int64_t now_ms() noexcept nogil:
    """Milliseconds since the epoch, exact."""
    return fastq_now_ms(0)


cdef inline int size_class(Py_ssize_t capacity) noexcept nogil:
    cdef int order = POOL_CLASS_MIN
    while (<Py_ssize_t>1 << order) < capacity:
        order += 1
    return order


cdef inline bint is_pooled(Py_ssize_t capacity) noexcept nogil:
    return (
        (<Py_ssize_t>1 << POOL_CLASS_MIN) <= capacity <= (<Py_ssize_t>1 << POOL_CLASS_MAX)
        and capacity & (capacity - 1) == 0
    )


cdef inline Py_ssize_t rounded_capacity(Py_ssize_t size) noexcept nogil:
    """What the pool hands out for `size` bytes: a power of two up to 2 MiB, then multiples of 64 KiB."""
    cdef int order
    if size > <Py_ssize_t>1 << POOL_CLASS_MAX:
        return (size + 0xFFFF) & ~<Py_ssize_t>0xFFFF
    order = size_class(size)
    return <Py_ssize_t>1 << order


@cython.final
cdef class BufferPool:
    """Buffers of a few sizes under one bound.

    Invariant: used_bytes + free_bytes <= limit_bytes, except while a split holds both halves and their parent.
    """

    def __cinit__(self, Py_ssize_t limit_bytes):
        self.limit_bytes = limit_bytes

    def __dealloc__(self):
        self.trim(0)

    cdef uint8_t* take(self, Py_ssize_t capacity, bint force=False) noexcept:
        """A buffer of `capacity` bytes (as rounded_capacity answered); NULL when the bound or the machine says no."""
        cdef uint8_t* buffer
        cdef int order
        if self.used_bytes + capacity > self.limit_bytes and not force:
            return NULL
        if is_pooled(capacity):
            order = size_class(capacity)
            buffer = self.free_lists[order]
            if buffer != NULL:
                memcpy(&self.free_lists[order], buffer, sizeof(void*))
                self.free_bytes -= capacity
                self.used_bytes += capacity
                return buffer
        if self.used_bytes + self.free_bytes + capacity > self.limit_bytes:
            self.trim(max(self.limit_bytes - self.used_bytes - capacity, 0))
        buffer = <uint8_t*>malloc(capacity)
        if buffer != NULL:
            self.used_bytes += capacity
        return buffer

    cdef void give(self, uint8_t* buffer, Py_ssize_t capacity) noexcept:
        cdef int order
        self.used_bytes -= capacity
        if (
            not is_pooled(capacity)
            or self.used_bytes + self.free_bytes + capacity > self.limit_bytes
        ):
            free(buffer)
            return
        order = size_class(capacity)
        memcpy(buffer, &self.free_lists[order], sizeof(void*))
        self.free_lists[order] = buffer
        self.free_bytes += capacity

    cdef void trim(self, Py_ssize_t keep_bytes) noexcept:
        """Free kept buffers, small ones first, until at most `keep_bytes` are kept."""
        cdef uint8_t* buffer
        cdef int order
        for order in range(POOL_CLASS_MIN, POOL_CLASS_MAX + 1):
            while self.free_bytes > keep_bytes and self.free_lists[order] != NULL:
                buffer = self.free_lists[order]
                memcpy(&self.free_lists[order], buffer, sizeof(void*))
                free(buffer)
                self.free_bytes -= <Py_ssize_t>1 << order


@cython.final
cdef class Batch:
    """Records of one partition that travel together, and afterwards their fate.

    Invariants: states only go up (but IN_FLIGHT back to READY for a retry); records, their count and their sequence
    never change once READY; `data` is given back when DONE and `exports` is zero; a split batch is DONE when both
    halves are. Thread rule: any thread, under the GIL.
    """

    def __cinit__(self):
        self.used = BATCH_OVERHEAD_BYTES
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.base_offset = -1
        self.log_append_time_ms = -1

    def __dealloc__(self):
        if self.data != NULL:
            free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self.payload is not None:
            PyBuffer_FillInfo(view, self, self.header, BATCH_OVERHEAD_BYTES, 1, flags)
        elif self.data != NULL:
            PyBuffer_FillInfo(view, self, self.data, self.used, 1, flags)
        else:
            raise BufferError("this batch has given its memory back")
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1
        if self.exports == 0 and self.state_ == BATCH_DONE:
            self.release()

    def __len__(self):
        return self.count

    def __repr__(self):
        return (
            f"<Batch {self.partition.topic.name}-{self.partition.index} records={self.count} state={self.state_} "
            f"sequence={self.base_sequence} attempts={self.attempts}>"
        )

    @property
    def state(self):
        return self.state_

    @property
    def done(self):
        return self.state_ == BATCH_DONE

    @property
    def size_bytes(self):
        """Bytes of the batch on the wire, header included."""
        return self.used if self.payload is None else BATCH_OVERHEAD_BYTES + len(self.payload)

    @property
    def max_timestamp(self):
        return self.max_timestamp_

    def buffers(self):
        """The batch as it goes to the wire, without a copy."""
        if self.payload is None:
            return [memoryview(self)]
        return [memoryview(self), self.payload]

    def stamp(self, int64_t producer_id, int producer_epoch, int32_t base_sequence, bint transactional=False):
        """Write the header with this identity (-1, -1, -1 for none) and the checksum over everything."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.seal(producer_id, producer_epoch, base_sequence, transactional)
        self.sealed = True

    def renumber(self, int64_t producer_id, int producer_epoch, int32_t base_sequence):
        """Give the batch another identity; its memory, which a connection may be sending, follows at the next stamp."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.sequence_reset = True
        self.sealed = False

    cdef void seal(
        self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint transactional
    ) noexcept:
        cdef CBatchHeader h
        cdef uint8_t* p = self.data if self.payload is None else self.header
        cdef const uint8_t* records = self.data + BATCH_OVERHEAD_BYTES
        cdef Py_ssize_t size = self.used - BATCH_OVERHEAD_BYTES
        cdef uint32_t crc
        if self.payload is not None:
            records = self.payload
            size = len(self.payload)
        h.base_offset = 0
        h.batch_length = <int32_t>(size + BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES)
        h.partition_leader_epoch = -1
        h.magic = 2
        h.crc = 0
        h.attributes = self.codec | (ATTRIBUTE_TRANSACTIONAL if transactional else 0)
        h.last_offset_delta = self.count - 1
        h.base_timestamp = self.base_timestamp
        h.max_timestamp = self.max_timestamp_
        h.producer_id = producer_id
        h.producer_epoch = producer_epoch
        h.base_sequence = base_sequence
        h.record_count = self.count
        write_header(p, &h)
        with nogil:
            crc = crc32c_update(0, p + ATTRIBUTES_POSITION, BATCH_OVERHEAD_BYTES - ATTRIBUTES_POSITION)
            crc = crc32c_update(crc, records, size)
        store_u32(p + CRC_POSITION, crc)

    def compress(self, object compressor):
        """Compress a CLOSING batch with `compressor(codec, view) -> bytes` and make it READY, whatever happens.

        Records that do not get smaller stay as they are; an exception of the compressor passes on after that.
        """
        cdef bytes payload = None
        cdef Py_ssize_t size = self.used - BATCH_OVERHEAD_BYTES
        if self.state_ != BATCH_CLOSING or self.data == NULL:
            return
        self.exports += 1   # the memory stays while the compressor runs without the GIL, even if the batch expires
        try:
            view = PyMemoryView_FromMemory(<char*>self.data + BATCH_OVERHEAD_BYTES, size, PyBUF_READ)
            payload = compressor(self.codec, view)
            view.release()
        finally:
            self.exports -= 1
            if self.state_ == BATCH_DONE:
                self.release()
            else:
                self.take_payload(payload, size)

    cdef int take_payload(self, bytes payload, Py_ssize_t size) except -1:
        if payload is not None and len(payload) < size:
            self.partition.topic.observe_ratio(len(payload) / <double>size)
            self.accumulator.pool.give(self.data, self.capacity)
            self.accumulator.pool.used_bytes += len(payload)
            self.data = NULL
            self.payload = payload
        else:
            if payload is not None:
                self.partition.topic.observe_ratio(1.0)
            self.codec = 0
        self.state_ = BATCH_READY
        self.accumulator.mark_ready(self.partition)
        return 0

    cdef void release(self) noexcept:
        if self.exports:
            return
        if self.data != NULL:
            self.accumulator.pool.give(self.data, self.capacity)
            self.data = NULL
        if self.payload is not None:
            self.accumulator.pool.used_bytes -= len(self.payload)
            self.payload = None

    cdef Batch leaf(self, int32_t* index):
        """The batch that carried record `index` in the end, and its index there."""
        cdef Batch batch = self
        cdef Batch child
        while batch.children is not None:
            for child in batch.children:
                if index[0] < child.first_in_parent + child.count:
                    index[0] -= child.first_in_parent
                    batch = child
                    break
        return batch

    def add_callback(self, int32_t index, object callback, object argument):
        """Have `callback(argument)` run once the batch is DONE; at once queued when it is."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback, argument))
        if self.state_ == BATCH_DONE and len(self.callbacks) == 1:
            self.accumulator.callbacks.append(self)

    def take_callbacks(self):
        """The callbacks that have not run, as (index, callback, argument)."""
        cdef list callbacks = self.callbacks
        self.callbacks = None
        return callbacks or []

    def add_waiter(self, object wake):
        """Have `wake()` called, from whichever thread completes the batch; at once when it is DONE."""
        if self.state_ == BATCH_DONE:
            wake()
            return
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(wake)

    def remove_waiter(self, object wake):
        if self.waiters is not None and wake in self.waiters:
            self.waiters.remove(wake)

    def outcome(self, int32_t index):
        """(error, offset) of a record of a DONE batch; the offset is -1 when the broker was not asked for one."""
        cdef Batch batch = self.leaf(&index)
        if batch.error is not None:
            return batch.error, -1
        return None, batch.base_offset + index if batch.base_offset >= 0 else -1

    def split(self, object decompressor):
        """Two batches with half of the bytes each, in order, that carry this one's sequence on; for MESSAGE_TOO_LARGE.

        `decompressor(codec, data) -> bytes`. The batch must hold two records or more. Its callbacks and waiters stay
        with it: it is DONE when both halves are.
        """
        cdef bytes raw = None
        cdef const uint8_t* p = self.data + BATCH_OVERHEAD_BYTES
        cdef const uint8_t* end = self.data + self.used
        cdef const uint8_t* following
        cdef Py_ssize_t half
        cdef CRecord record
        cdef Batch child = None
        cdef int32_t sequence = self.base_sequence
        if self.payload is not None:
            raw = decompressor(self.codec, self.payload)
            p = raw
            end = p + len(raw)
        half = (end - p) // 2
        self.children = []
        while p < end:
            following = parse_record(p, end, &record)
            if following == NULL:
                raise ValueError("a batch of ours does not decode: memory was overwritten")
            if child is None:
                child = self.new_child(max(following - p, half))
            elif len(self.children) == 1 and child.used - BATCH_OVERHEAD_BYTES + (following - p) > half:
                child = self.new_child(end - p)
            child.copy_record(&record)
            p = following
        for child in self.children:
            if sequence >= 0:
                child.producer_id = self.producer_id
                child.producer_epoch = self.producer_epoch
                child.base_sequence = sequence
                child.sequence_reset = self.sequence_reset
                sequence = advance_sequence(sequence, child.count)
            child.codec = self.codec
            child.state_ = BATCH_READY if child.codec == 0 else BATCH_CLOSING
        self.children_pending = len(self.children)
        self.release()
        return list(self.children)

    cdef Batch new_child(self, Py_ssize_t size):
        cdef Batch child = Batch.__new__(Batch)
        child.accumulator = self.accumulator
        child.partition = self.partition
        child.parent = self
        child.base_timestamp = self.base_timestamp
        child.max_timestamp_ = self.base_timestamp
        child.created_s = self.created_s
        child.attempts = self.attempts
        child.capacity = rounded_capacity(size + BATCH_OVERHEAD_BYTES + RECORD_OVERHEAD_MAX)
        child.limit = child.capacity
        child.data = self.accumulator.pool.take(child.capacity, True)
        if child.data == NULL:
            raise MemoryError(f"{child.capacity} bytes to split a batch")
        if self.children:
            child.first_in_parent = (<Batch>self.children[0]).count
        self.children.append(child)
        return child

    cdef int copy_record(self, const CRecord* record) except -1:
        cdef int64_t body
        cdef const uint8_t* headers = record.headers - size_varint(record.header_count)
        cdef int64_t headers_size = record.end - headers
        body = record_body_size(
            record.timestamp_delta, self.count, record.key_length, record.value_length, headers_size
        )
        if self.used + record_size(body) > self.capacity:
            raise MemoryError("the half of a split batch is too small")
        write_record(
            self.data + self.used, body, record.timestamp_delta, self.count, record.key, record.key_length,
            record.value, record.value_length, headers, headers_size,
        )
        self.used += record_size(body)
        self.count += 1
        self.max_timestamp_ = max(self.max_timestamp_, self.base_timestamp + record.timestamp_delta)
        return 0


cpdef int32_t advance_sequence(int32_t sequence, int32_t count) noexcept:
    """The sequence `count` records after `sequence`: it wraps to 0 after 2147483647."""
    cdef int64_t following = <int64_t>sequence + count
    return <int32_t>(following if following <= INT32_MAX else following - INT32_MAX - 1)


@cython.final
cdef class PartitionState:
    """What the producer knows of one partition: its open batch, its queue, its sequence numbers.

    Invariants: `in_flight` is sorted by sequence; `queue` is too, as far as its batches have one; a partition with a
    batch in `queue` that may be sent is in Accumulator.ready.
    """

    def __cinit__(self, TopicState topic, int32_t index, Py_ssize_t target_bytes):
        self.topic = topic
        self.index = index
        self.queue = deque()
        self.in_flight = []
        self.target_bytes = target_bytes
        self.leader_id = -1
        self.leader_epoch = -1
        self.producer_id = -1
        self.producer_epoch = -1
        self.last_acked_sequence = -1
        self.last_acked_offset = -1

    def __repr__(self):
        return f"<PartitionState {self.topic.name}-{self.index}>"

    @property
    def open(self):
        return self.open_

    @property
    def batch_bytes_target(self):
        """Bytes at which the next batch closes, before compression is taken into account."""
        return self.target_bytes


@cython.final
cdef class TopicState:
    """One topic: its partitions, where its keyless records go at the moment, how well it compresses."""

    def __cinit__(self, str name, int codec, Py_ssize_t batch_bytes_max):
        self.name = name
        self.encoded_name = name.encode()
        self.topic_id = bytes(16)
        self.partitions = []
        self.available = []
        self.codec = codec
        self.compression_ratio = 1.0
        self.batch_bytes_max = batch_bytes_max

    def observe_ratio(self, double ratio):
        """Follow the compression ratio: upwards at once (a batch too large must be split), downwards slowly."""
        if ratio > self.compression_ratio:
            self.compression_ratio = ratio
        else:
            self.compression_ratio += (ratio - self.compression_ratio) / 4


@cython.final
cdef class Accumulator:
    """Open batches, queues and memory of one producer.

    Invariants: `incomplete` holds every batch that has records and no fate; `open_partitions` exactly the partitions
    with an open batch, oldest first; a closed batch is in its partition's queue, in flight, or DONE.
    Thread rule: any thread, under the GIL. It never waits and never calls back, but `clock()` once per batch.
    """

    def __cinit__(
        self,
        *,
        Py_ssize_t buffer_memory,
        Py_ssize_t batch_size,
        Py_ssize_t batch_size_max,
        Py_ssize_t max_request_size,
        object clock,
        uint64_t seed,
        int64_t records_max=0,
        int32_t batch_records_max=0,
        bint adaptive_partitioning=True,
        bint ignore_keys=False,
        bint precise_clock=False,
    ):
        self.pool = BufferPool(buffer_memory)
        self.batch_size = batch_size
        self.batch_size_max = max(batch_size, min(batch_size_max, buffer_memory // 4))
        self.max_request_size = max_request_size
        self.raw_bytes_max = min(RAW_BYTES_MAX, max(buffer_memory // 4, batch_size))
        self.records_max = records_max if records_max > 0 else (<int64_t>1 << 62)
        self.batch_records_max = batch_records_max if batch_records_max > 0 else INT32_MAX
        self.adaptive = adaptive_partitioning
        self.ignore_keys = ignore_keys
        self.precise_clock = precise_clock
        self.clock = clock
        self.random_state = seed | 1
        self.ready = deque()
        self.to_compress = deque()
        self.callbacks = deque()
        self.open_partitions = {}
        self.incomplete = {}
        self.topics = {}

    # -- topics ---------------------------------------------------------------------------------------------------

    def topic(self, str name):
        """The state of a topic that update_topic has made known, or None."""
        return self.topics.get(name)

    def topic_names(self):
        return list(self.topics)

    def update_topic(self, str name, int32_t partition_count, *, int codec=0):
        """Make a topic known, or follow its growth; partitions never become fewer. Answers its TopicState."""
        cdef TopicState topic = self.topics.get(name)
        if topic is None:
            topic = TopicState(name, codec, self.batch_size_max)
        while len(topic.partitions) < partition_count:
            topic.partitions.append(PartitionState(topic, len(topic.partitions), self.batch_size))
        topic.partition_count = len(topic.partitions)
        if partition_count > 0:
            self.topics[name] = topic
        return topic

    cdef uint32_t random(self) noexcept:
        cdef uint64_t x = self.random_state
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
        self.random_state = x
        return <uint32_t>(x >> 32)

    cdef TopicState find_topic(self, object name):
        cdef TopicState topic = self.topics.get(name)
        if topic is not None and type(name) is str:
            self.last_name = <str>name
            self.last_topic = topic
        return topic

    cdef PartitionState pick_sticky(self, TopicState topic):
        """Choose where keyless records go next: at random, less often where the queue is long (KIP-794)."""
        cdef list choices = topic.available if topic.available else topic.partitions
        cdef Py_ssize_t n = len(choices)
        cdef Py_ssize_t longest = 0
        cdef int64_t total = 0
        cdef int64_t chosen
        cdef PartitionState partition
        topic.sticky_bytes = 0
        if self.adaptive and n > 1:
            for partition in choices:
                longest = max(longest, len(partition.queue))
            for partition in choices:
                total += longest + 1 - <int64_t>len(partition.queue)
            chosen = self.random() % total
            for partition in choices:
                chosen -= longest + 1 - <int64_t>len(partition.queue)
                if chosen < 0:
                    break
        else:
            partition = choices[self.random() % n]
        topic.sticky = partition
        return partition

    cdef PartitionState pick(self, TopicState topic, const uint8_t* key, int32_t key_length):
        """The partition of a record by Kafka's default: murmur2 of the key, or the sticky one."""
        if key_length >= 0 and not self.ignore_keys:
            return <PartitionState>PyList_GET_ITEM(
                topic.partitions, <int32_t>(kafka_murmur2(key, key_length) & 0x7FFFFFFF) % topic.partition_count
            )
        if topic.sticky is not None:
            return topic.sticky
        return self.pick_sticky(topic)

    # -- appending ------------------------------------------------------------------------------------------------

    cdef Py_ssize_t record_bytes_max(self) noexcept:
        """Most bytes that key, value and headers of one record may take together."""
        return min(self.max_request_size, self.pool.limit_bytes, INT32_MAX) - BATCH_OVERHEAD_BYTES - RECORD_OVERHEAD_MAX

    cdef bint fits(self, PartitionState partition, Py_ssize_t need) noexcept:
        """True when a record of `need` bytes goes into the open batch of `partition`."""
        cdef Batch batch = partition.open_
        return (
            batch is not None
            and batch.used + need <= batch.limit
            and batch.count < self.batch_records_max
            and self.buffered_records < self.records_max
        )

    cdef int append(
        self, PartitionState partition, const uint8_t* key, int32_t key_length, const uint8_t* value,
        int32_t value_length, const uint8_t* headers, Py_ssize_t headers_size, int64_t timestamp, Appended* out,
    ) except -1:
        """Encode one record into the open batch of `partition`, which is begun or replaced as needed.

        Lengths of -1 are null; `headers` NULL with size 1 is none; a timestamp below 0 means now.
        """
        cdef Batch batch = partition.open_
        cdef Py_ssize_t need = headers_size + RECORD_OVERHEAD_MAX
        cdef int64_t body
        cdef int64_t delta
        cdef uint8_t* p
        cdef int code
        if key_length > 0:
            need += key_length
        if value_length > 0:
            need += value_length
        if batch is None or batch.used + need > batch.limit or batch.count >= self.batch_records_max:
            code = self.open_batch(partition, need)
            if code != APPENDED:
                return code
            batch = partition.open_
        if self.buffered_records >= self.records_max:
            return NO_ROOM
        if timestamp < 0:
            timestamp = fastq_now_ms(batch.count > 0 and not self.precise_clock)
            if timestamp < batch.base_timestamp:
                timestamp = batch.base_timestamp
        if batch.count == 0:
            batch.base_timestamp = timestamp
            batch.max_timestamp_ = timestamp
        elif timestamp > batch.max_timestamp_:
            batch.max_timestamp_ = timestamp
        delta = timestamp - batch.base_timestamp
        body = record_body_size(delta, batch.count, key_length, value_length, headers_size)
        p = write_record(
            batch.data + batch.used, body, delta, batch.count, key, key_length, value, value_length,
            headers, headers_size,
        )
        batch.used = p - batch.data
        out.batch = <void*>batch
        out.index = batch.count
        out.timestamp = timestamp
        batch.count += 1
        self.buffered_records += 1
        return APPENDED

    cdef int open_batch(self, PartitionState partition, Py_ssize_t need) except -1:
        """Close the open batch, if there is one, and begin another with room for `need` bytes of record."""
        cdef Batch batch
        cdef Py_ssize_t limit
        cdef Py_ssize_t capacity
        if need > self.record_bytes_max() + RECORD_OVERHEAD_MAX:
            return TOO_LARGE
        if partition.open_ is not None:
            self.close_batch(partition, True)
        if self.buffered_records >= self.records_max:
            return NO_ROOM
        limit = partition.target_bytes
        if partition.topic.codec:
            limit = max(limit, min(<Py_ssize_t>(limit / (partition.topic.compression_ratio * 1.05)), self.raw_bytes_max))
        if limit > partition.topic.batch_bytes_max and not partition.topic.codec:
            limit = partition.topic.batch_bytes_max
        limit = max(min(limit, self.pool.limit_bytes), BATCH_OVERHEAD_BYTES + need)
        capacity = rounded_capacity(limit)
        if capacity > self.pool.limit_bytes and limit <= self.pool.limit_bytes:
            capacity = limit
        batch = Batch.__new__(Batch)
        batch.data = self.pool.take(capacity)
        if batch.data == NULL:
            return NO_ROOM
        batch.capacity = capacity
        batch.limit = limit
        batch.accumulator = self
        batch.partition = partition
        batch.codec = partition.topic.codec
        batch.created_s = self.clock()
        partition.open_ = batch
        self.open_partitions[partition] = None
        self.incomplete[batch] = None
        self.attention = True
        return APPENDED

    cdef int close_batch(self, PartitionState partition, bint full) except -1:
        """Queue the open batch: full, or because its time has come. The batch size of the partition follows."""
        cdef Batch batch = partition.open_
        cdef TopicState topic = partition.topic
        cdef Py_ssize_t share
        partition.open_ = None
        self.open_partitions.pop(partition, None)
        partition.queue.append(batch)
        self.batches_total += 1
        self.full_total += full
        self.records_total += batch.count
        self.bytes_total += batch.used
        if batch.codec:
            batch.state_ = BATCH_CLOSING
            self.to_compress.append(batch)
        else:
            batch.state_ = BATCH_READY
            self.mark_ready(partition)
        # What a batch may take of the memory when it is short: the open batches together a quarter. That a backlog fills the
        # memory is no reason for smaller batches: they would only add to it.
        share = self.pool.limit_bytes // (4 * (len(self.open_partitions) + 1))
        if full and (self.pool.used_bytes < self.pool.limit_bytes // 2 or partition.target_bytes * 2 <= share):
            partition.target_bytes = min(max(partition.target_bytes * 2, 1), self.batch_size_max)
        elif not full and batch.used < partition.target_bytes // 4:
            partition.target_bytes = max(partition.target_bytes // 2, self.batch_size)
        elif self.pool.used_bytes > self.pool.limit_bytes // 4 * 3 and partition.target_bytes > share:
            partition.target_bytes = max(partition.target_bytes // 2, share, self.batch_size)
        if partition is topic.sticky:
            topic.sticky_bytes += batch.used
            if topic.sticky_bytes >= self.batch_size:
                topic.sticky = None
        self.attention = True
        return 0

    cpdef mark_ready(self, PartitionState partition):
        """Put a partition among those that the sender looks at."""
        if not partition.in_ready:
            partition.in_ready = True
            self.ready.append(partition)

    # -- batches --------------------------------------------------------------------------------------------------

    def close_due(self, double now_s, double linger_s):
        """Close the batches whose linger is over. Answers when the next one is due, or None."""
        cdef PartitionState partition
        while self.open_partitions:
            partition = next(iter(self.open_partitions))
            if partition.open_.created_s + linger_s > now_s:
                return partition.open_.created_s + linger_s
            self.close_batch(partition, False)
        return None

    def close_all(self):
        """Close every open batch: for flush, close, and callers who wait for room."""
        for partition in list(self.open_partitions):
            if (<PartitionState>partition).open_ is not None:
                self.close_batch(<PartitionState>partition, False)

    def take_head(self, PartitionState partition):
        """Move the first batch of the queue to the ones in flight and answer it."""
        cdef Batch batch = partition.queue.popleft()
        batch.state_ = BATCH_IN_FLIGHT
        place = len(partition.in_flight)
        while place > 0 and _before(batch, <Batch>partition.in_flight[place - 1]):
            place -= 1
        partition.in_flight.insert(place, batch)
        return batch

    def requeue(self, Batch batch):
        """Take a batch out of flight and put it back in its place by sequence (first when it has none)."""
        cdef PartitionState partition = batch.partition
        cdef Py_ssize_t place = 0
        cdef Batch other
        partition.in_flight.remove(batch)
        batch.state_ = BATCH_READY
        if batch.base_sequence >= 0:
            for other in partition.queue:
                if other.base_sequence < 0 or not _before(other, batch):
                    break
                place += 1
        partition.queue.insert(place, batch)
        self.mark_ready(partition)

    def split(self, Batch batch, object decompressor):
        """Replace a batch that its broker finds too large by its halves, at the same place of the queue.

        Halves with a codec are CLOSING: the caller compresses them.
        """
        cdef PartitionState partition = batch.partition
        self.requeue(batch)
        place = partition.queue.index(batch)
        children = batch.split(decompressor)
        del partition.queue[place]
        for child in reversed(children):
            partition.queue.insert(place, child)
        del self.incomplete[batch]
        self.incomplete.update(dict.fromkeys(children))
        self.incomplete = dict.fromkeys(sorted(self.incomplete, key=_age))
        self.attention = True
        return children

    def complete(self, Batch batch, object error=None, int64_t base_offset=-1, int64_t log_append_time_ms=-1):
        """Give a batch its fate: acknowledged, or failed with `error`. A second call for the same batch does nothing."""
        cdef PartitionState partition = batch.partition
        if batch.state_ == BATCH_DONE:
            return
        if batch.state_ == BATCH_IN_FLIGHT:
            partition.in_flight.remove(batch)
        elif batch.state_ == BATCH_OPEN:
            partition.open_ = None
            self.open_partitions.pop(partition, None)
        else:
            try:
                partition.queue.remove(batch)
            except ValueError:
                pass
        batch.error = error
        batch.base_offset = base_offset
        batch.log_append_time_ms = log_append_time_ms
        self.incomplete.pop(batch, None)
        self.buffered_records -= batch.count
        self._finish(batch)

    cdef int _finish(self, Batch batch) except -1:
        cdef list waiters
        batch.state_ = BATCH_DONE
        batch.release()
        if batch.callbacks is not None:
            self.callbacks.append(batch)
        waiters = batch.waiters
        batch.waiters = None
        if waiters is not None:
            for wake in waiters:
                wake()
        if batch.parent is not None:
            batch.parent.children_pending -= 1
            if batch.parent.children_pending == 0:
                self._finish(batch.parent)
        return 0

    def has_room(self, Py_ssize_t need):
        """Whether a batch for a record of `need` bytes could be begun now."""
        cdef Py_ssize_t capacity = rounded_capacity(max(need + BATCH_OVERHEAD_BYTES, self.batch_size_max))
        return (
            self.pool.used_bytes + min(capacity, self.pool.limit_bytes) <= self.pool.limit_bytes
            and self.buffered_records < self.records_max
        )

    def has_ample_room(self, Py_ssize_t need):
        """Whether an eighth of the buffer is free as well: who had to wait waits until going on is worth it."""
        return not self.incomplete or (
            self.has_room(need + self.pool.limit_bytes // 8) and self.buffered_records <= self.records_max // 8 * 7
        )

    def abort(self, object error):
        """Fail every batch that has no fate yet; answers how many records that were."""
        lost = 0
        for batch in list(self.incomplete):
            lost += (<Batch>batch).count
            self.complete(batch, error)
        return lost


cdef bint _before(Batch a, Batch b) noexcept:
    """Sequence order, across the wrap at 2^31; batches without a sequence keep the order they have."""
    if a.base_sequence < 0 or b.base_sequence < 0 or a.base_sequence == b.base_sequence:
        return False
    return ((<uint32_t>b.base_sequence - <uint32_t>a.base_sequence) & 0x7FFFFFFF) < 0x40000000


def _age(Batch batch):
    return batch.created_s
