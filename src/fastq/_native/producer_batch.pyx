"""A batch of the producer's from the first record to its fate, and the partition and topic that it is for.

Rules
- The header is written when the batch gets its identity, and once more when that changes; the records never are.
- A batch gives its memory back when the broker has answered and no connection holds a view of it any more.
- What a batch asks of its accumulator is in BatchOwner. Everything here is per batch: the accumulator appends.
Source: Kafka's ProducerBatch.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from fastq._native.bits cimport store_u32
from fastq._native.buffer_pool cimport rounded_capacity
from fastq._native.crc32c cimport crc32c_update
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


cdef int check_callback(object callback) except -1:
    """Raises TypeError for what cannot be called: what is done would find that out, where only the log hears of it."""
    if not callable(callback):
        raise TypeError(f"a callback is a function, called with the delivery once it is done, got {callback!r}")
    return 0


cdef class BatchOwner:
    """The side of an accumulator that its batches know: their memory, and queues for what became of them.

    Thread rule: any thread, under the GIL.
    """

    def __cinit__(self):
        self.ready = deque()
        self.callbacks = deque()

    cpdef mark_ready(self, PartitionState partition):
        """Put a partition among those that the sender looks at."""
        if not partition.in_ready:
            self.ready.append(partition)
            partition.in_ready = True

    cdef int tell(self, Batch batch) except -1:
        """Have the callbacks of a completed batch run, behind those of which there was no memory for that; None: theirs alone."""
        cdef Batch other
        cdef bint told = batch is None
        try:
            while self.untold is not None:
                self.callbacks.append(self.untold)
                other = self.untold
                self.untold = other.next_untold
                other.next_untold = None
            if not told:
                self.callbacks.append(batch)
                told = True
        except MemoryError:
            pass
        if told:
            return 0
        other = self.untold
        if other is None:
            self.untold = batch
            return 0
        while other.next_untold is not None:
            other = other.next_untold
        other.next_untold = batch
        return 0


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
        """Give a batch that no broker has another identity; its memory, which a connection may still export, follows at the next
        stamp."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.in_doubt = False
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
            try:
                payload = compressor(self.codec, view)
            finally:
                view.release()      # who keeps the error has it too, longer than the memory is this batch's
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
        if self.exports or self.accumulator is None:  # None: emptied by a collection, after which a view goes too
            return
        cdef BufferPool pool = self.accumulator.pool
        if pool is None:  # its owner was emptied first
            return
        if self.data != NULL:
            pool.give(self.data, self.capacity)
            self.data = NULL
        if self.payload is not None:
            pool.used_bytes -= len(self.payload)
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
        cdef tuple entry = (index, callback, argument)
        cdef list fresh
        if self.callbacks is None:
            fresh = []
            if self.callbacks is None:      # a collection may have run at either, and another thread with it
                self.callbacks = fresh
        self.callbacks.append(entry)
        if self.state_ == BATCH_DONE and len(self.callbacks) == 1:
            self.accumulator.tell(self)

    def take_callbacks(self):
        """The callbacks that have not run, as (index, callback, argument)."""
        cdef list fresh = []
        cdef list taken = self.callbacks
        if taken is None:
            return fresh
        self.callbacks = fresh
        return taken

    def add_waiter(self, object wake):
        """Have `wake()` called, from whichever thread completes the batch; at once when it is DONE."""
        cdef list fresh = [] if self.waiters is None else self.waiters
        if self.state_ == BATCH_DONE:       # looked at last: a collection may have run, and another thread with it
            wake()
            return
        if self.waiters is None:
            self.waiters = fresh
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

    def halve(self, object decompressor):
        """Two batches with half of the bytes each, in order, that carry this one's sequence on, as a list; for MESSAGE_TOO_LARGE.

        `decompressor(codec, data) -> bytes`. The batch must hold two records or more. Nothing of it is changed before the halves
        are its own: `give_to`. Those with a codec are CLOSING: somebody is to compress them.
        """
        cdef bytes raw = None
        cdef const uint8_t* p = self.data + BATCH_OVERHEAD_BYTES
        cdef const uint8_t* end = self.data + self.used
        cdef const uint8_t* following
        cdef Py_ssize_t half
        cdef CRecord record
        cdef Batch child = None
        cdef list halves = []
        cdef int32_t sequence = self.base_sequence
        if self.payload is not None:
            raw = decompressor(self.codec, self.payload)
            p = raw
            end = p + len(raw)
        half = (end - p) // 2
        try:
            while p < end:
                following = parse_record(p, end, &record)
                if following == NULL:
                    raise ValueError("a batch of ours does not decode: memory was overwritten")
                if child is None:
                    child = self.new_child(max(following - p, half), halves)
                elif len(halves) == 1 and child.used - BATCH_OVERHEAD_BYTES + (following - p) > half:
                    child = self.new_child(end - p, halves)
                child.copy_record(&record)
                p = following
        except BaseException:
            for child in halves:
                child.release()
            raise
        for child in halves:
            if sequence >= 0:
                child.producer_id = self.producer_id
                child.producer_epoch = self.producer_epoch
                child.base_sequence = sequence
                sequence = advance_sequence(sequence, child.count)
            child.codec = self.codec
            child.state_ = BATCH_READY if child.codec == 0 else BATCH_CLOSING
        return halves

    cdef int give_to(self, list halves) except -1:
        """From here on a record's fate is that of its half. Callbacks and waiters stay: the batch is DONE when both halves are."""
        self.children = halves
        self.children_pending = <int>len(halves)
        self.release()
        return 0

    cdef Batch new_child(self, Py_ssize_t size, list halves):
        cdef Batch child = Batch.__new__(Batch)
        halves.append(child)
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
        if len(halves) > 1:
            child.first_in_parent = (<Batch>halves[0]).count
        return child

    cdef int copy_record(self, const CRecord* record) except -1:
        cdef int64_t body
        cdef const uint8_t* headers = record.header_block
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
        self.gap_sequence = -1

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
        self.gone = []
        self.codec = codec
        self.compression_ratio = 1.0
        self.batch_bytes_max = batch_bytes_max

    def observe_ratio(self, double ratio):
        """Follow the compression ratio: upwards at once (a batch too large must be split), downwards slowly."""
        if ratio > self.compression_ratio:
            self.compression_ratio = ratio
        else:
            self.compression_ratio += (ratio - self.compression_ratio) / 4
