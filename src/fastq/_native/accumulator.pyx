"""The producer's accumulator: where the next record goes, the append itself, and the queues of closed batches.

A record is encoded once, straight into the open batch of its partition. Batches close when they are full or when their
linger is over, and keep their place in the partition's queue from then on, until the broker has answered.
Follows Kafka's RecordAccumulator; its BufferPool is buffer_pool, its ProducerBatch producer_batch.

Rules
- The GIL is the lock. Who looks at `incomplete` and `open_partitions` from Python has no lock against sends: one step of C at a time, as
  `list(...)` and `oldest()` are, never an iteration of Python's. Nothing between the room check and the last byte of an append runs Python code.
- Per record only the append; everything else is per batch and callable from Python.
- Making an object that the collector tracks may run a collection, and a __del__ that it runs may send. So nothing looked at before such
  a point is taken for granted after it.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastq._native.buffer_pool cimport BufferPool, rounded_capacity
from fastq._native.hashing cimport fastq_crc32, kafka_murmur2
from fastq._native.producer_batch cimport (
    BATCH_CLOSING,
    BATCH_DONE,
    BATCH_IN_FLIGHT,
    BATCH_OPEN,
    BATCH_READY,
    RECORD_OVERHEAD_MAX,
    Batch,
    BatchOwner,
    PartitionState,
    TopicState,
)
from fastq._native.records cimport BATCH_OVERHEAD_BYTES, record_body_size, write_record

import logging
from collections import deque
from contextlib import suppress

logger = logging.getLogger(__name__)

CLOSED = SLOW_CLOSED
FORKED = SLOW_FORKED
SERIALIZERS = SLOW_SERIALIZERS
INTERCEPTORS = SLOW_INTERCEPTORS
PARTITIONER = SLOW_PARTITIONER
SYNC = SLOW_SYNC
NOT_STARTED = SLOW_NOT_STARTED
NO_TRANSACTION = SLOW_NO_TRANSACTION
WAITING = SLOW_WAITING

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
      static inline int64_t fastq_monotonic_ns(void) {
          return (int64_t)GetTickCount64() * 1000000;
      }
      static inline void fastq_sleep_ns(int64_t ns) { Sleep((DWORD)((ns + 999999) / 1000000)); }
      #define fastq_store(where, what) InterlockedExchange64((where), (what))
      #define fastq_load(where) InterlockedCompareExchange64((where), 0, 0)
    #else
      #include <time.h>
      static inline int64_t fastq_monotonic_ns(void) {
          struct timespec t;
          clock_gettime(CLOCK_MONOTONIC, &t);
          return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
      }
      static inline void fastq_sleep_ns(int64_t ns) {
          struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
          nanosleep(&t, NULL);
      }
      #define fastq_store(where, what) __atomic_store_n((where), (what), __ATOMIC_RELAXED)
      #define fastq_load(where) __atomic_load_n((where), __ATOMIC_RELAXED)
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
    int64_t fastq_monotonic_ns() noexcept nogil
    void fastq_sleep_ns(int64_t ns) noexcept nogil
    void fastq_store(int64_t* where, int64_t what) noexcept nogil
    int64_t fastq_load(int64_t* where) noexcept nogil

# How far apart the sends of a stream without linger look after the network: doubled for each batch in flight up to the third, so that what
# a slow broker has not answered yet makes fewer and larger batches. One record in flight delays the next by less than it takes itself.
cdef double LOOK_APART_S = 25e-6
cdef enum:
    LOOK_DOUBLINGS_MAX = 3
    REST_NS = 400_000       # how long a resting thread sleeps at a time, and how long records may have waited when it steps in


@cython.final
cdef class Accumulator(BatchOwner):
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
        int key_hash=HASH_MURMUR2,
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
        self.key_hash = key_hash
        self.precise_clock = precise_clock
        self.clock = clock
        self.random_state = seed | 1
        self.to_compress = deque()
        self.open_partitions = {}
        self.incomplete = {}
        self.topics = {}

    # -- topics ---------------------------------------------------------------------------------------------------

    def topic(self, str name):
        """The state of a topic that update_topic has made known, or None."""
        return self.topics.get(name)

    def topic_names(self):
        return list(self.topics)

    def update_topic(self, str name, int32_t partition_count, *, codec=0):
        """Make a topic known, or follow its growth, or its being made anew with fewer partitions. Answers its TopicState.

        A partition that is gone keeps its batches and numbers in `TopicState.gone`, and goes on with them if it comes back.
        """
        cdef TopicState topic = self.topics.get(name)
        if topic is None:
            topic = TopicState(name, codec, self.batch_size_max)
        while len(topic.partitions) < partition_count:
            if topic.gone:
                topic.partitions.append(topic.gone.pop())
            else:
                topic.partitions.append(PartitionState(topic, len(topic.partitions), self.batch_size))
        if 0 < partition_count < len(topic.partitions):
            topic.partition_count = partition_count     # before the list is cut: who picks one goes by it
            topic.available = [partition for partition in topic.available if partition.index < partition_count]
            if topic.sticky is not None and topic.sticky.index >= partition_count:
                topic.sticky = None
            while len(topic.partitions) > partition_count:
                topic.gone.append(topic.partitions.pop())
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

    cdef bint is_keyless(self, Py_ssize_t key_length) noexcept:
        """Whether a key of this length (-1: null) has no say in where its record goes."""
        return key_length < 0 or self.key_hash == HASH_NONE or (key_length == 0 and self.key_hash == HASH_CRC32)

    cdef PartitionState pick(self, TopicState topic, const uint8_t* key, int32_t key_length):
        """The partition of a record: by the hash of its key, or the sticky one."""
        cdef uint32_t place
        if not self.is_keyless(key_length):
            if self.key_hash == HASH_MURMUR2:
                place = (kafka_murmur2(key, key_length) & 0x7FFFFFFF) % <uint32_t>topic.partition_count
            else:
                place = fastq_crc32(key, key_length) % <uint32_t>topic.partition_count
            return <PartitionState>PyList_GET_ITEM(topic.partitions, place)
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
            self.wanted_bytes = 0
            return NO_ROOM
        if timestamp < 0:
            batch.clocked |= batch.count == 0
            timestamp = fastq_now_ms(batch.count > 0 and batch.clocked and not self.precise_clock)
            if batch.clocked and timestamp < batch.base_timestamp:
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
        batch = Batch.__new__(Batch)    # a collection may run here, and send
        batch.created_s = self.clock()
        if partition.open_ is not None:
            self.close_batch(partition, True)
        if self.buffered_records >= self.records_max:
            self.wanted_bytes = 0
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
        batch.data = self.pool.take(capacity)
        if batch.data == NULL:
            self.wanted_bytes = capacity
            return NO_ROOM
        batch.capacity = capacity
        batch.limit = limit
        batch.accumulator = self
        batch.partition = partition
        batch.codec = partition.topic.codec
        try:
            self.incomplete[batch] = None
            self.open_partitions[partition] = None
        except BaseException:
            self.incomplete.pop(batch, None)
            batch.release()
            raise
        partition.open_ = batch
        self.attention = True
        if self.look_at_s:
            fastq_store(&self.watched_ns, <int64_t>(self.look_at_s * 1e9))
        return APPENDED

    cdef int close_batch(self, PartitionState partition, bint full) except -1:
        """Queue the open batch: full, or because its time has come. The batch size of the partition follows."""
        cdef Batch batch = partition.open_
        cdef TopicState topic = partition.topic
        cdef Py_ssize_t share
        if batch.codec:     # what may want memory first: the batch is open until it is in the queue
            self.to_compress.append(batch)
        self.mark_ready(partition)
        partition.queue.append(batch)
        batch.state_ = BATCH_CLOSING if batch.codec else BATCH_READY
        partition.open_ = None
        self.open_partitions.pop(partition, None)
        self.batches_total += 1
        self.full_total += full
        self.records_total += batch.count
        self.bytes_total += batch.used
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

    # -- batches --------------------------------------------------------------------------------------------------

    def oldest(self):
        """The batch that was begun first of those that have no fate yet, or None: in one step, as others may be sending."""
        for batch in self.incomplete:
            return batch
        return None

    def close_due(self, double now_s, double linger_s):
        """Close the batches whose linger is over. Answers when the next one is due, or None.

        One behind a batch that still waits to be sent is held back, and goes on filling until that is out: so a backlog leaves in
        large batches, where one of small ones would stay. So are all until `look_at_s`. `held` says whether there are such.
        """
        cdef bint early = now_s < self.look_at_s
        cdef PartitionState partition
        cdef list due = []
        cdef object next_at = None
        self.held = False
        self.tell(None)
        for partition in self.open_partitions:
            if partition.open_.created_s + linger_s > now_s:
                next_at = partition.open_.created_s + linger_s
                break
            if partition.queue or early:
                self.held = True
            else:
                due.append(partition)
        for partition in due:
            self.close_batch(partition, False)
        if not self.held:
            fastq_store(&self.watched_ns, 0)
        return next_at

    def looked(self, double now_s):
        """A send without linger has looked after the network, and somebody rests beside it: until when the next one need not, while
        something is in flight."""
        if self.in_flight:
            self.look_at_s = now_s + LOOK_APART_S * (1 << min(self.in_flight, LOOK_DOUBLINGS_MAX))
            if self.held:
                fastq_store(&self.watched_ns, <int64_t>(self.look_at_s * 1e9))

    def look_now(self):
        """Hold nothing back for the sake of larger batches: somebody waits."""
        self.no_more_in_flight()

    cdef int no_more_in_flight(self) noexcept:
        self.look_at_s = 0.0
        fastq_store(&self.watched_ns, 0)
        return 0

    def rest(self, double limit_s):
        """Sleep up to `limit_s` without the GIL; True at once when no send has come to look after what is held back."""
        cdef int64_t end = fastq_monotonic_ns() + <int64_t>(limit_s * 1e9)
        cdef int64_t now = 0
        cdef int64_t watched
        cdef bint left = False
        with nogil:
            while now < end and not left:
                fastq_sleep_ns(REST_NS)
                now = fastq_monotonic_ns()
                watched = fastq_load(&self.watched_ns)
                left = watched != 0 and now > watched + REST_NS
        return left

    def close_all(self):
        """Close every open batch: for flush, close, and callers who wait for room."""
        for partition in list(self.open_partitions):
            if (<PartitionState>partition).open_ is not None:
                self.close_batch(<PartitionState>partition, False)

    def take_head(self, PartitionState partition):
        """Move the first batch of the queue to the ones in flight and answer it."""
        cdef Batch batch = partition.queue[0]
        place = len(partition.in_flight)
        while place > 0 and _before(batch, <Batch>partition.in_flight[place - 1]):
            place -= 1
        partition.in_flight.insert(place, batch)    # first, as this may want memory
        partition.queue.popleft()
        batch.state_ = BATCH_IN_FLIGHT
        self.in_flight += 1
        return batch

    def requeue(self, Batch batch):
        """Take a batch out of flight and put it back in its place by sequence (first when it has none)."""
        cdef PartitionState partition = batch.partition
        cdef Py_ssize_t place = 0
        cdef Batch other
        if batch.state_ != BATCH_IN_FLIGHT:     # an answer that failed halfway is told as an error too: it is there already
            return
        if batch.base_sequence >= 0:
            for other in partition.queue:
                if other.base_sequence < 0 or not _before(other, batch):
                    break
                place += 1
        partition.queue.insert(place, batch)
        self.land(batch)
        batch.state_ = BATCH_READY
        self.mark_ready(partition)

    cdef int land(self, Batch batch) except -1:
        """Take a batch out of flight."""
        batch.partition.in_flight.remove(batch)
        self.in_flight -= 1
        if not self.in_flight:
            self.no_more_in_flight()
        return 0

    def split(self, Batch batch, object decompressor):
        """Replace a batch in the queue that its broker finds too large by its halves, at the same place.

        Halves with a codec are CLOSING, and in `to_compress`. MemoryError: the batch is in the queue as it was.
        """
        cdef PartitionState partition = batch.partition
        cdef dict incomplete
        cdef Batch child
        cdef list halves = batch.halve(decompressor)
        try:
            for child in halves:
                if child.state_ == BATCH_CLOSING:
                    self.to_compress.append(child)
            while True:     # a collection may run here, and send
                queue = deque(with_halves(partition.queue, batch, halves))
                incomplete = dict.fromkeys(with_halves(self.incomplete, batch, halves))
                if len(queue) == len(partition.queue) + 1 and len(incomplete) == len(self.incomplete) + 1:
                    break
        except BaseException:
            for child in halves:
                child.state_ = BATCH_DONE   # those in `to_compress` are passed over, and who compresses one releases it
                child.release()
            raise
        partition.queue = queue
        self.incomplete = incomplete
        batch.give_to(halves)
        self.attention = True
        return halves

    def complete(self, Batch batch, object error=None, int64_t base_offset=-1, int64_t log_append_time_ms=-1):
        """Give a batch its fate: acknowledged, or failed with `error`. A second call for the same batch does nothing, nor one for a
        batch that was split: its halves have theirs."""
        cdef PartitionState partition = batch.partition
        if batch.state_ == BATCH_DONE or batch.children is not None:
            return
        if batch.state_ == BATCH_IN_FLIGHT:
            self.land(batch)
        elif batch.state_ == BATCH_OPEN:
            partition.open_ = None
            self.open_partitions.pop(partition, None)
        else:
            with suppress(ValueError):
                partition.queue.remove(batch)
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
        if batch.callbacks:
            self.tell(batch)
        waiters = batch.waiters
        batch.waiters = None
        if waiters is not None:
            for wake in waiters:
                try:
                    wake()
                except Exception as error:  # one who cannot be told, as his event loop is closed, keeps no other waiting
                    with suppress(Exception):   # nor does the log, where there is no memory for it
                        logger.error("who waits for records of %s-%d cannot be told", batch.partition.topic.name,
                                     batch.partition.index, exc_info=error)
        if batch.parent is not None:
            batch.parent.children_pending -= 1
            if batch.parent.children_pending == 0:
                self._finish(batch.parent)
        return 0

    def has_room(self, Py_ssize_t wanted_bytes):
        """Whether what an append found no room for, its `wanted_bytes`, could be had now."""
        return (
            self.pool.used_bytes + wanted_bytes <= self.pool.limit_bytes and self.buffered_records < self.records_max
        )

    def has_ample_room(self, Py_ssize_t wanted_bytes):
        """Whether an eighth of the buffer is free as well: who had to wait waits until going on is worth it."""
        return self.has_room(wanted_bytes) and (
            not self.incomplete
            or (
                self.has_room(min(wanted_bytes + self.pool.limit_bytes // 8, self.pool.limit_bytes))
                and self.buffered_records <= self.records_max // 8 * 7
            )
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


cdef list with_halves(object batches, Batch batch, list halves):
    """`batches`, with the halves of one in its place."""
    cdef list found = list(batches)
    cdef Py_ssize_t place = found.index(batch)
    found[place:place + 1] = halves
    return found
