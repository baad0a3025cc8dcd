"""The walk over the batches of a fetched partition: what is opened, skipped, refused.

Rules
- A batch is opened when its first record is wanted: checksum, aborted transactions, decompression. So a prefetched
  response costs what was received, and one decompressed batch a partition.
- `position` only moves past what was handed out or holds nothing for the caller. Whatever raises leaves it where it
  is, so that the next call raises again: nothing is skipped in silence.
- Offsets may have gaps (compaction, control batches, aborted transactions); a batch may begin below the position.
- Everything here is per batch: records are taken off the span where they are made (consume, columns).
Sources: Kafka's CompletedFetch and DefaultRecordBatch.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from fastq._native.batch_codec cimport GIL_RELEASE_BYTES
from fastq._native.bits cimport load_i16, load_i32, load_i64
from fastq._native.fetch cimport FetchedPartition
from fastq._native.records cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OVERHEAD_BYTES,
    HEADER_BAD_LENGTH,
    HEADER_OK,
    HEADER_OLD_MAGIC,
    HEADER_TRUNCATED,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    CBatchHeader,
    CRecord,
    crc_matches,
    parse_header,
    parse_record,
)

cdef enum:
    RECORD_BYTES_MIN = 7             # length, attributes, two deltas, null key, null value, no headers
    CONTROL_KEY_BYTES = 4            # version, type
    CONTROL_TYPE_ABORT = 0
    LEGACY_BYTES_MIN = 26            # offset, size, crc, magic, attributes, two lengths


cdef class FetchedBatches:
    """The batches of one partition of one fetch response, from `position` on; `span` is what is left of the open one, or the empty
    rest of the last one. `leader_epoch`: of the record before `position`, -1 when unknown.

    Invariants: `position` only grows, from the fetch offset to `end_position`; the span belongs to the batch before
    `p`; records at or above `limit` are left where they are. Thread rule: one thread at a time; the GIL is released
    while a checksum is computed and nothing else may use the object then.
    """

    def __init__(self, FetchedPartition part not None, str topic not None, int64_t position, *, bint check_crcs=True,
                 bint read_committed=False, Py_ssize_t decompressed_bytes_max=1 << 28, str broker="",
                 int32_t leader_epoch=-1):
        cdef Py_buffer view
        self.before_epoch = leader_epoch
        self.span.base_offset = INT64_MAX
        self.topic = topic
        self.partition = part.partition
        self.position = position
        # Bytes that are no batch, and batches that all end before what was asked for, are an error that must not pass as the end: there is
        # one offset to go, always.
        self.is_behind = part.whole_bytes > 0 and part.next_offset <= position
        self.end_position = position + (part.size_bytes > 0) if self.is_behind or not part.whole_bytes else part.next_offset
        self.size_bytes = part.size_bytes
        self.broker = broker
        self.limit = INT64_MAX
        self.check_crcs = check_crcs
        self.read_committed = read_committed
        self.decompressed_bytes_max = decompressed_bytes_max
        self.aborted = sorted(part.aborted or (), key=_first_offset, reverse=True) if read_committed else []
        self.aborting = set()
        PyObject_GetBuffer(part.buffer, &view, PyBUF_SIMPLE)
        self.buffer = memoryview(part.buffer)
        self.start = part.start
        self.base = self.p = <const uint8_t*>view.buf + part.start
        self.end = self.p + (part.whole_bytes or part.size_bytes)
        PyBuffer_Release(&view)

    @property
    def exhausted(self):
        """True when nothing is left, or nothing below `limit`."""
        return self.position >= self.end_position or self.position >= self.limit

    cdef int32_t epoch_before(self, int64_t offset) noexcept:
        """The leader epoch of the record before `offset`, which is the position, or that of the record handed out last."""
        return self.span.leader_epoch if offset > self.span.base_offset else self.before_epoch

    @property
    def position_epoch(self):
        """The leader epoch of the record before `position`, -1 when it is not known."""
        return self.epoch_before(self.position)

    cdef int corrupt(self, str reason) except -1:
        """The cold end of every check. Nothing more comes of this chunk: its position is where to fetch again."""
        from fastq.errors import CorruptRecord
        self.broken = True
        self.span.count = 0
        self.last = NULL
        self.owner = None
        raise CorruptRecord(
            f"corrupt batch in {self.topic}-{self.partition} at offset {self.position}, fetched from {self.broker}: "
            f"{reason}; the fetch is repeated by the next call; when the error stays, the log of the broker is damaged: "
            f"seek past the batch to go on",
            broker=self.broker, topic=self.topic, partition=self.partition, offset=self.position,
        )

    cdef int skip_batch(self, const CBatchHeader* h) except -1:
        """Go past a batch that holds nothing for the caller."""
        self.before_epoch = h.partition_leader_epoch
        self.span.base_offset = INT64_MAX
        self.p += LOG_OVERHEAD_BYTES + <int64_t>h.batch_length
        if h.base_offset + h.last_offset_delta >= self.position:
            self.position = h.base_offset + h.last_offset_delta + 1
        return 0

    cdef bint in_aborted_transaction(self, const CBatchHeader* h) except? -1:
        """True for a batch of a transaction that was aborted; keeps the list of those that are open here."""
        cdef CRecord r
        cdef const uint8_t* end = self.p + LOG_OVERHEAD_BYTES + h.batch_length
        while self.aborted and self.aborted[len(self.aborted) - 1][1] <= h.base_offset + h.last_offset_delta:
            self.aborting.add(self.aborted.pop()[0])
        if not self.aborting or not h.attributes & ATTRIBUTE_TRANSACTIONAL or h.producer_id not in self.aborting:
            return False
        if h.attributes & ATTRIBUTE_CONTROL:
            if (
                parse_record(self.p + BATCH_OVERHEAD_BYTES, end, &r) != NULL
                and r.key_length >= CONTROL_KEY_BYTES
                and load_i16(r.key + 2) == CONTROL_TYPE_ABORT
            ):
                self.aborting.discard(h.producer_id)
        return True

    cdef int open_batch(self) except -1:
        """Open the next batch that holds something at or above the position: 1, or 0 at the end or at the limit."""
        cdef CBatchHeader h
        cdef int status
        cdef bint intact
        cdef int64_t size
        while not self.broken:
            status = parse_header(self.p, self.end, &h)
            if status == HEADER_TRUNCATED:
                if self.p != self.end:
                    self.corrupt(f"{self.end - self.p} bytes that are no whole batch")
                if self.is_behind and self.position < self.limit:
                    self.corrupt("all batches end before the offset asked for")
                self.position = max(self.position, min(self.end_position, self.limit))
                return 0
            if status == HEADER_OLD_MAGIC:
                if self.open_legacy():
                    return 1
                continue
            if status != HEADER_OK:
                self.corrupt(f"batch length {h.batch_length} is too small" if status == HEADER_BAD_LENGTH
                             else f"unknown magic {h.magic}")
            if h.base_offset < 0 or h.last_offset_delta < 0 or h.base_offset >= INT64_MAX - h.last_offset_delta:
                self.corrupt(f"base offset {h.base_offset}, last offset delta {h.last_offset_delta}")
            if h.base_offset >= self.limit:
                self.position = max(self.position, self.limit)
                return 0
            size = LOG_OVERHEAD_BYTES + <int64_t>h.batch_length
            if self.check_crcs:
                if size < GIL_RELEASE_BYTES:
                    intact = crc_matches(self.p, size)
                else:
                    with nogil:
                        intact = crc_matches(self.p, size)
                if not intact:
                    self.corrupt(f"the checksum of the batch at offset {h.base_offset} ({size} bytes) is wrong")
            if self.read_committed and self.in_aborted_transaction(&h) or h.attributes & ATTRIBUTE_CONTROL:
                self.skip_batch(&h)
                continue
            if h.base_offset + h.last_offset_delta < self.position:
                self.skip_batch(&h)
                continue
            self.open_span(&h, size)
            self.p += size
            return 1
        return 0

    cdef int open_span(self, const CBatchHeader* h, int64_t size) except -1:
        """Point the span at the records of the batch at `p`, decompressed."""
        cdef int codec = h.attributes & ATTRIBUTE_CODEC
        cdef object owner = self.buffer
        cdef RecordSpan span
        span.p = self.p + BATCH_OVERHEAD_BYTES
        span.end = self.p + size
        if codec != 0:
            owner = self.decompress(codec, self.start + (self.p - self.base) + BATCH_OVERHEAD_BYTES,
                                    size - BATCH_OVERHEAD_BYTES)
            span.p = <const uint8_t*>PyBytes_AS_STRING(owner)
            span.end = span.p + PyBytes_GET_SIZE(owner)
        if (
            h.record_count < 0 or h.record_count > <int64_t>h.last_offset_delta + 1
            or <int64_t>h.record_count * RECORD_BYTES_MIN > span.end - span.p
        ):
            self.corrupt(f"record count {h.record_count} in {span.end - span.p} bytes and {h.last_offset_delta + 1} offsets")
        self.before_epoch = self.epoch_before(self.position)
        span.base_offset = h.base_offset
        span.base_timestamp = h.base_timestamp
        span.append_timestamp = h.max_timestamp
        span.next_offset = h.base_offset + h.last_offset_delta + 1
        span.leader_epoch = h.partition_leader_epoch
        span.timestamp_type = 1 if h.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
        span.count = h.record_count
        self.owner = owner
        self.span = span
        self.last = NULL
        return 0

    cdef bytes decompress(self, int codec, Py_ssize_t start, Py_ssize_t size):
        """The bytes of a compressed batch body; CorruptRecord when they cannot be had within the bound, MissingPackage without their
        codec's library.
        """
        from fastq._native.wire import DecodeError
        from fastq.compression import decompress
        from fastq.errors import MissingPackage
        try:
            return bytes(decompress(codec, self.buffer[start:start + size], self.decompressed_bytes_max))
        except DecodeError as error:
            self.corrupt(f"{error}")
        except MissingPackage as error:
            raise self.placed(error) from error.cause

    cdef object placed(self, object error):
        """An error of this process, with where it happened. The chunk stays as it is: the next call tries the same batch."""
        return error.with_context(broker=self.broker, topic=self.topic, partition=self.partition, offset=self.position)

    cdef int open_legacy(self) except -1:
        """Open the v0 or v1 message (or wrapper of several) at `p`, rewritten as the body of a v2 batch: 1, or 0 when
        all of it lies below the position. Old logs are rare, so this goes through Python rows.
        """
        from fastq._native.legacy import decode_message_set
        from fastq._native.records import build_batch
        from fastq._native.wire import DecodeError
        from fastq.errors import MissingPackage
        cdef Py_ssize_t start = self.start + (self.p - self.base)
        cdef int64_t size = LOG_OVERHEAD_BYTES + <int64_t>load_i32(self.p + 8)
        cdef RecordSpan span
        if size < LEGACY_BYTES_MIN or size > self.end - self.p:
            self.corrupt(f"a message of {size} bytes in {self.end - self.p}")
        if load_i64(self.p) < self.position:
            self.p += size
            return 0
        try:
            rows, _ = decode_message_set(self.buffer, start, start + size, check_crc=self.check_crcs,
                                         limit_bytes=self.decompressed_bytes_max)
        except DecodeError as error:
            self.corrupt(f"{error}")
        except MissingPackage as error:
            raise self.placed(error) from error.cause
        if not rows:
            self.corrupt("a wrapper without messages")
        base_offset, base_timestamp = rows[0].offset, rows[0].timestamp_ms
        deltas = [row.offset - base_offset for row in rows]
        try:
            owner = bytes(build_batch([(row.timestamp_ms, row.key, row.value) for row in rows], base_offset=base_offset,
                                      offset_deltas=deltas, base_timestamp=base_timestamp)[BATCH_OVERHEAD_BYTES:])
        except (ValueError, OverflowError) as error:
            self.corrupt(f"{error}")
        span.p = <const uint8_t*>PyBytes_AS_STRING(owner)
        span.end = span.p + PyBytes_GET_SIZE(owner)
        self.before_epoch = self.epoch_before(self.position)
        span.base_offset = base_offset
        span.base_timestamp = span.append_timestamp = base_timestamp
        span.next_offset = rows[len(rows) - 1].offset + 1
        span.leader_epoch = -1
        span.timestamp_type = -1 if self.p[MAGIC_POSITION] == 0 else (self.p[MAGIC_POSITION + 1] >> 3) & 1
        span.count = len(rows)
        self.owner = owner
        self.span = span
        self.last = NULL
        self.p += size
        return 1

    cdef bint drop_below_position(self) except? -1:
        """Move the open span to its first record at or above the position; False when it has none."""
        cdef CRecord r
        cdef const uint8_t* p
        while self.span.count > 0:
            p = parse_record(self.span.p, self.span.end, &r)
            if p == NULL:
                self.corrupt(f"a record of the batch at offset {self.span.base_offset} is malformed")
            if self.span.base_offset + r.offset_delta >= self.position:
                return True
            self.span.p = p
            self.span.count -= 1
        return False

    cdef int close_span(self) except -1:
        """After the last record of a batch: nothing may be left, and the position moves behind its gaps."""
        if self.span.p != self.span.end:
            self.corrupt(f"{self.span.end - self.span.p} bytes follow the last record of the batch at offset "
                         f"{self.span.base_offset}")
        if self.span.next_offset > self.position:
            self.position = min(self.span.next_offset, max(self.position, self.limit))
        return 0


def _first_offset(aborted):
    """Sort key of (producer id, first offset)."""
    return aborted[1]
