"""Compaction of a log in two passes: the latest offset of each key, then the batches without the records that a later one replaces.

Rules
- Two passes over stored batches, as they lie in the file: `index_batches` fills an OffsetMap with the dirty part, BatchFilter copies what
  stays into a SegmentWriter. Offsets, order and each batch's base and last offset never change.
- A record goes when a later one of its key is known; a tombstone or a transaction's marker when its delete horizon has passed; the
  records of aborted transactions always. A batch stays, emptied, where it is its producer's last or the last of the round.
- Nothing here opens files or reads clocks. One thread; what it does belongs into a process of its own.
Source: Kafka's Cleaner, MemoryRecords.filterTo, CleanedTransactionMetadata; delete horizons are KIP-534.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from fastq._native.batch_codec cimport decode_error, header_error
from fastq._native.bits cimport (
    MAX_VARINT32,
    MAX_VARINT64,
    load_i16,
    load_varint32,
    load_varint64,
    size_varint,
    store_varint,
)
from fastq._native.cleaned_segment cimport Buffer, SegmentWriter, reserve
from fastq._native.offset_map cimport OffsetMap
from fastq._native.records cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD_BYTES,
    HEADER_OK,
    HEADER_OLD_MAGIC,
    HEADER_TRUNCATED,
    LOG_OVERHEAD_BYTES,
    CBatchHeader,
    CRecord,
    batch_size,
    crc_matches,
    parse_header,
    parse_record,
    seal_batch,
    wrapping_add,
    write_header,
)

from fastq._native.batch_codec import DECOMPRESSED_BYTES_MAX as _UNPACKED_BYTES_MAX

cdef enum:
    WINDOW = 32                      # records whose slots are fetched into the cache together

    MARKER_ABORT = 0
    MARKER_COMMIT = 1
    MARKER_NONE = -1                 # a control batch that was emptied before

# For walks of nothing: so that no pointer is NULL.
cdef const uint8_t* EMPTY = <const uint8_t*>b""

cdef struct Candidate:
    # A record on its way through a pass.
    const uint8_t* start
    const uint8_t* end
    uint64_t first
    uint64_t second
    int64_t offset
    int64_t timestamp_delta
    bint has_key
    bint has_value

cdef struct Span:
    # Kept bytes of records.
    const uint8_t* start
    const uint8_t* end


class OldFormat(ValueError):
    """A batch of magic 0 or 1, which has no place for a delete horizon: such a log is not compacted."""


# --- transactions


@cython.final
cdef class TransactionFilter:
    """Which batches belong to aborted transactions, and which markers end a transaction of which nothing is left.

    `aborted` are (producer id, first offset, last offset, last stable offset) of all that reach into the range; batches come in order.
    Only transactions that have ended lie in it: the range ends at or below the last stable offset.
    """

    cdef list aborted
    cdef Py_ssize_t next_aborted
    cdef dict ongoing_aborted        # producer id -> [entry, whether a batch of it was seen]
    cdef set ongoing_committed       # producer ids
    cdef list kept

    def __init__(self, aborted):
        self.aborted = sorted(aborted, key=lambda entry: entry[1])
        self.ongoing_aborted = {}
        self.ongoing_committed = set()
        self.kept = []

    def take_kept(self):
        """Aborted transactions whose marker stays, since the last call: the entries of a segment's transaction index."""
        kept, self.kept = self.kept, []
        return kept

    cdef int begin(self, int64_t last_offset) except -1:
        """Take up the aborted transactions that begin at or below an offset."""
        while self.next_aborted < len(self.aborted):
            entry = self.aborted[self.next_aborted]
            if entry[1] > last_offset:
                break
            self.ongoing_aborted.setdefault(entry[0], [entry, False])
            self.next_aborted += 1
        return 0

    cdef int data_batch(self, const CBatchHeader* h) except -1:
        """Whether a transactional batch was aborted."""
        self.begin(h.base_offset + h.last_offset_delta)
        ongoing = self.ongoing_aborted.get(h.producer_id)
        if ongoing is None:
            self.ongoing_committed.add(h.producer_id)
            return 0
        ongoing[1] = True
        return 1

    cdef int control_batch(self, const CBatchHeader* h, int marker) except -1:
        """Whether a control batch is needed no more: nothing of its transaction was seen before it."""
        self.begin(h.base_offset + h.last_offset_delta)
        if marker == MARKER_NONE:
            return 1
        if marker == MARKER_COMMIT:
            if h.producer_id not in self.ongoing_committed:
                return 1
            self.ongoing_committed.discard(h.producer_id)
            return 0
        if marker != MARKER_ABORT:
            return 0
        ongoing = self.ongoing_aborted.pop(h.producer_id, None)
        if ongoing is None or not ongoing[1]:
            return 1
        self.kept.append(ongoing[0])
        return 0


# --- batches


cdef int malformed(const CBatchHeader* h, int64_t position, int64_t index) except -1:
    return decode_error(f"{h.record_count} records", position, f"record {index} is malformed or cut off")


cdef int open_batch(const uint8_t* p, const uint8_t* end, CBatchHeader* h, int64_t position) except -1:
    """Read and check the header at `p`; 0 when the batch does not end before `end`. Raises DecodeError, OldFormat."""
    cdef int answer = parse_header(p, end, h)
    if answer == HEADER_TRUNCATED:
        return 0
    if answer == HEADER_OLD_MAGIC:
        raise OldFormat(f"the batch at byte {position} has magic {h.magic}")
    if answer != HEADER_OK:
        header_error(answer, h, position, end - p)
    if h.record_count < 0 or h.last_offset_delta < 0 or h.base_offset < 0:
        decode_error(
            "a batch with offsets and a count",
            position,
            f"got offset {h.base_offset}, delta {h.last_offset_delta}, count {h.record_count}",
        )
    if not crc_matches(p, batch_size(h)):
        decode_error(f"records whose CRC is {h.crc:#010x}", position + ATTRIBUTES_POSITION, "they have another")
    return 1


cdef bytes unpack(const uint8_t* p, const CBatchHeader* h):
    from fastq.compression import decompress

    packed = PyBytes_FromStringAndSize(
        <const char*>p + BATCH_OVERHEAD_BYTES, <Py_ssize_t>batch_size(h) - BATCH_OVERHEAD_BYTES
    )
    return decompress(h.attributes & ATTRIBUTE_CODEC, packed, _UNPACKED_BYTES_MAX)


cdef int marker_of(const uint8_t* p, const uint8_t* end, const CBatchHeader* h, int64_t position) except -2:
    """The type of a control batch's first record, MARKER_NONE when it has none."""
    cdef CRecord record
    if not h.record_count:
        return MARKER_NONE
    if parse_record(p, end, &record) == NULL or record.key_length < 4:
        malformed(h, position, 0)
    return load_i16(record.key + 2)


cdef const uint8_t* parse_window(
    OffsetMap offsets, const uint8_t* p, const uint8_t* end, const CBatchHeader* h, int count, Candidate* window
) noexcept:
    """Read `count` records, hash their keys and have their slots of the map fetched; NULL when one is malformed."""
    cdef CRecord record
    cdef Candidate* c
    cdef int i
    for i in range(count):
        c = &window[i]
        c.start = p
        p = parse_record(p, end, &record)
        if p == NULL:
            return NULL
        c.end = p
        c.offset = wrapping_add(h.base_offset, record.offset_delta)
        c.timestamp_delta = record.timestamp_delta
        c.has_value = record.value_length >= 0
        c.has_key = record.key_length >= 0
        if c.has_key:
            offsets.hash_bytes(record.key, record.key_length, &c.first, &c.second)
            offsets.prefetch(c.first)
    return p


# --- the first pass


def index_batches(
    OffsetMap offsets not None, TransactionFilter transactions not None, data, int64_t position, int64_t start_offset
):
    """Put the keys of the whole batches in `data` into the map, those at or above `start_offset`: (bytes taken, whether it is full).

    `position` is where in its file `data` begins, for errors. Once the map is full, `latest_offset` is that of the last record in it.
    Records of aborted transactions and of control batches count for nothing. Raises DecodeError, OldFormat.
    """
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef Py_ssize_t taken = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf if view.len else EMPTY
        end = p + view.len
        while open_batch(p, end, &h, position + taken):
            if not index_batch(offsets, transactions, p, &h, position + taken, start_offset):
                return taken, True
            taken += <Py_ssize_t>batch_size(&h)
            p += batch_size(&h)
        return taken, False
    finally:
        PyBuffer_Release(&view)


cdef int index_batch(
    OffsetMap offsets,
    TransactionFilter transactions,
    const uint8_t* p,
    const CBatchHeader* h,
    int64_t position,
    int64_t start_offset,
) except -1:
    """Take one batch into the map; 0 when it became full."""
    cdef Candidate window[WINDOW]
    cdef bytes plain
    cdef const uint8_t* at = p + BATCH_OVERHEAD_BYTES
    cdef const uint8_t* end = p + batch_size(h)
    cdef int64_t last_offset = h.base_offset + h.last_offset_delta
    cdef int32_t done = 0
    cdef int count, i
    cdef bint wanted = last_offset >= start_offset
    if h.attributes & (ATTRIBUTE_CODEC):
        plain = unpack(p, h)
        at = <const uint8_t*>PyBytes_AS_STRING(plain)
        end = at + len(plain)
    if h.attributes & ATTRIBUTE_CONTROL:
        transactions.control_batch(h, marker_of(at, end, h, position))
        wanted = False
    elif h.attributes & ATTRIBUTE_TRANSACTIONAL and transactions.data_batch(h):
        wanted = False
    while wanted and done < h.record_count:
        count = min(WINDOW, h.record_count - done)
        at = parse_window(offsets, at, end, h, count, window)
        if at == NULL:
            malformed(h, position, done)
        for i in range(count):
            if window[i].has_key and window[i].offset >= start_offset:
                if not offsets.store(window[i].first, window[i].second, window[i].offset):
                    return 0
                offsets.latest_offset = window[i].offset
        done += count
    if last_offset >= start_offset:
        offsets.advance(last_offset)
    return 1


# --- the second pass


@cython.final
cdef class BatchFilter:
    """Copies stored batches without what compaction removes.

    `last_offsets` maps producer ids to (last offset of the producer's data, -1: none; epoch). `upper_offset` is where the round ends: the
    batch before it stays, so that the place is not lost. Times in ms. The counters are of all calls.
    """

    cdef OffsetMap offsets
    cdef TransactionFilter transactions
    cdef dict last_offsets
    cdef int64_t now_ms
    cdef int64_t delete_retention_ms
    cdef int64_t upper_offset
    cdef Span* spans
    cdef Py_ssize_t span_count
    cdef Py_ssize_t span_room
    cdef int32_t kept_count
    cdef bint kept_tombstone
    cdef int64_t kept_timestamp
    cdef readonly int64_t batches_read
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept
    cdef readonly int64_t keyless_records

    def __init__(
        self,
        OffsetMap offsets not None,
        TransactionFilter transactions not None,
        *,
        int64_t now_ms,
        int64_t delete_retention_ms,
        int64_t upper_offset,
        dict last_offsets not None,
    ):
        self.offsets = offsets
        self.transactions = transactions
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.upper_offset = upper_offset
        self.last_offsets = last_offsets

    def __dealloc__(self):
        free(self.spans)

    def feed(self, data, int64_t position, SegmentWriter out not None):
        """Filter the whole batches in `data` into `out`; answers the bytes taken.

        `position` is where in its file `data` begins, for errors. Raises DecodeError (checksums too), OldFormat, OverflowError.
        """
        cdef Py_buffer view
        cdef CBatchHeader h
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef Py_ssize_t taken = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            p = <const uint8_t*>view.buf if view.len else EMPTY
            end = p + view.len
            while open_batch(p, end, &h, position + taken):
                self.filter_batch(p, &h, position + taken, out)
                taken += <Py_ssize_t>batch_size(&h)
                p += batch_size(&h)
            return taken
        finally:
            PyBuffer_Release(&view)

    cdef int filter_batch(
        self, const uint8_t* p, const CBatchHeader* h, int64_t position, SegmentWriter out
    ) except -1:
        cdef const uint8_t* records = p + BATCH_OVERHEAD_BYTES
        cdef const uint8_t* end = p + batch_size(h)
        cdef bint control = h.attributes & ATTRIBUTE_CONTROL
        cdef bint dispensable = False    # all of the batch's records, as far as transactions go
        cdef bint discarded
        cdef bytes plain
        if h.attributes & ATTRIBUTE_CODEC:
            plain = unpack(p, h)
            records = <const uint8_t*>PyBytes_AS_STRING(plain)
            end = records + len(plain)
        if control:
            dispensable = self.transactions.control_batch(h, marker_of(records, end, h, position))
            discarded = dispensable and h.attributes & ATTRIBUTE_DELETE_HORIZON and h.base_timestamp <= self.now_ms
        else:
            if h.attributes & ATTRIBUTE_TRANSACTIONAL:
                dispensable = self.transactions.data_batch(h)
            discarded = dispensable
        self.batches_read += 1
        self.records_read += h.record_count
        self.select(records, end, h, position, control, discarded)
        self.records_kept += self.kept_count
        if not self.kept_count:
            return self.write_empty(h, out) if self.must_stay(h, control) else 0
        if not h.attributes & ATTRIBUTE_DELETE_HORIZON and (self.kept_tombstone or (control and dispensable)):
            return self.write_with_horizon(h, out)
        if self.kept_count == h.record_count:
            memcpy(reserve(&out.log, batch_size(h)), p, batch_size(h))
            return out.note(batch_size(h), h.base_offset + h.last_offset_delta, h.max_timestamp)
        return self.write_rest(h, out)

    cdef bint must_stay(self, const CBatchHeader* h, bint control) except -1:
        """Whether an empty batch is kept: for a producer's sequence and epoch, or as the last one of the round."""
        cdef int64_t last_offset = h.base_offset + h.last_offset_delta
        if last_offset + 1 == self.upper_offset:
            return True
        last = self.last_offsets.get(h.producer_id) if h.producer_id >= 0 else None
        if last is None:
            return False
        if last[0] >= 0:
            return last[0] == last_offset
        return control and last[1] == h.producer_epoch

    # -- which records stay

    cdef int select(
        self, const uint8_t* p, const uint8_t* end, const CBatchHeader* h, int64_t position, bint control, bint discarded
    ) except -1:
        """Find the spans of the records that stay, their number, largest timestamp, and whether one is a tombstone."""
        cdef Candidate window[WINDOW]
        cdef int32_t done = 0
        cdef int count, i
        # A tombstone may go once the horizon of its batch has passed.
        cdef bint expired = h.attributes & ATTRIBUTE_DELETE_HORIZON and h.base_timestamp <= self.now_ms
        self.span_count = self.kept_count = 0
        self.kept_tombstone = False
        self.kept_timestamp = INT64_MIN
        while done < h.record_count:
            count = min(WINDOW, h.record_count - done)
            p = parse_window(self.offsets, p, end, h, count, window)
            if p == NULL:
                malformed(h, position, done)
            done += count
            if discarded:
                continue
            for i in range(count):
                if control or self.stays(&window[i], expired):
                    self.keep(&window[i], control)
        if p != end:
            decode_error(f"no bytes behind {h.record_count} records", position, f"{end - p} are left")
        return 0

    cdef inline bint stays(self, const Candidate* c, bint expired) noexcept:
        if c.offset > self.offsets.latest_offset:
            return True
        if not c.has_key:
            self.keyless_records += 1
            return False
        if not c.has_value and expired:
            return False
        return c.offset >= self.offsets.find(c.first, c.second)

    cdef int keep(self, const Candidate* c, bint control) except -1:
        cdef Span* grown
        cdef Py_ssize_t room
        self.kept_count += 1
        if not c.has_value and not control:
            self.kept_tombstone = True
        if c.timestamp_delta > self.kept_timestamp:
            self.kept_timestamp = c.timestamp_delta
        if self.span_count and self.spans[self.span_count - 1].end == c.start:
            self.spans[self.span_count - 1].end = c.end
            return 0
        if self.span_count == self.span_room:
            room = max(64, 2 * self.span_room)
            grown = <Span*>realloc(self.spans, room * sizeof(Span))
            if grown == NULL:
                raise MemoryError("no memory for the records of a batch")
            self.spans = grown
            self.span_room = room
        self.spans[self.span_count].start = c.start
        self.spans[self.span_count].end = c.end
        self.span_count += 1
        return 0

    # -- writing what stays

    cdef int write_empty(self, const CBatchHeader* h, SegmentWriter out) except -1:
        """A batch without records, as DefaultRecordBatch.writeEmptyHeader leaves it: no codec, no base timestamp, no horizon."""
        cdef CBatchHeader fields = h[0]
        fields.attributes &= ~(ATTRIBUTE_CODEC | ATTRIBUTE_DELETE_HORIZON)
        fields.base_timestamp = -1
        fields.record_count = 0
        return self.write_batch(&fields, NULL, 0, out)

    cdef int write_rest(self, const CBatchHeader* h, SegmentWriter out) except -1:
        """The spans under the batch's own base timestamp: the bytes of the records stay as they are."""
        cdef CBatchHeader fields = h[0]
        cdef Buffer plain
        cdef int64_t size = 0
        cdef Py_ssize_t i
        for i in range(self.span_count):
            size += self.spans[i].end - self.spans[i].start
        self.set_count(&fields)
        plain.data = NULL
        plain.used = plain.room = 0
        try:
            reserve(&plain, size)
            for i in range(self.span_count):
                memcpy(plain.data + plain.used, self.spans[i].start, self.spans[i].end - self.spans[i].start)
                plain.used += self.spans[i].end - self.spans[i].start
            return self.write_batch(&fields, plain.data, size, out)
        finally:
            free(plain.data)

    cdef int write_with_horizon(self, const CBatchHeader* h, SegmentWriter out) except -1:
        """The spans with the delete horizon as base timestamp, which every record's timestamp then counts from."""
        cdef CBatchHeader fields = h[0]
        cdef Buffer plain
        cdef const uint8_t* p
        cdef Py_ssize_t i
        self.set_count(&fields)
        fields.attributes |= ATTRIBUTE_DELETE_HORIZON
        fields.base_timestamp = self.now_ms + self.delete_retention_ms
        plain.data = NULL
        plain.used = plain.room = 0
        try:
            for i in range(self.span_count):
                p = self.spans[i].start
                while p < self.spans[i].end:
                    p = rebase(p, self.spans[i].end, h.base_timestamp - fields.base_timestamp, &plain)
            return self.write_batch(&fields, plain.data, plain.used, out)
        finally:
            free(plain.data)

    cdef void set_count(self, CBatchHeader* fields) noexcept:
        fields.record_count = self.kept_count
        if not fields.attributes & ATTRIBUTE_LOG_APPEND_TIME:
            fields.max_timestamp = wrapping_add(fields.base_timestamp, self.kept_timestamp)

    cdef int write_batch(self, CBatchHeader* fields, const uint8_t* records, int64_t size, SegmentWriter out) except -1:
        cdef int codec = fields.attributes & ATTRIBUTE_CODEC
        cdef bytes packed
        cdef uint8_t* p
        if codec:
            from fastq.compression import compress

            packed = compress(codec, PyBytes_FromStringAndSize(<const char*>records, <Py_ssize_t>size))
            records = <const uint8_t*>PyBytes_AS_STRING(packed)
            size = len(packed)
        if size > INT32_MAX - BATCH_OVERHEAD_BYTES:
            raise OverflowError(f"the cleaned batch at offset {fields.base_offset} would take {size} bytes")
        p = reserve(&out.log, BATCH_OVERHEAD_BYTES + size)
        fields.batch_length = <int32_t>(BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES + size)
        fields.crc = 0
        write_header(p, fields)
        if size:
            memcpy(p + BATCH_OVERHEAD_BYTES, records, size)
        seal_batch(p, BATCH_OVERHEAD_BYTES + size)
        return out.note(BATCH_OVERHEAD_BYTES + size, fields.base_offset + fields.last_offset_delta, fields.max_timestamp)


cdef const uint8_t* rebase(const uint8_t* p, const uint8_t* end, int64_t shift, Buffer* out) except NULL:
    """Copy one record, its timestamp delta raised by `shift`; answers the place after it."""
    cdef int32_t size = 0
    cdef int64_t delta = 0
    cdef int64_t body
    cdef const uint8_t* rest
    cdef const uint8_t* stop
    cdef uint8_t* to
    p = load_varint32(p, end, &size)
    stop = p + size
    rest = load_varint64(p + 1, stop, &delta)
    if p == NULL or rest == NULL:
        raise AssertionError("parse_record has read this record")
    delta = wrapping_add(delta, shift)
    body = 1 + size_varint(delta) + (stop - rest)
    if body > INT32_MAX:
        raise OverflowError(f"a record would take {body} bytes with its delete horizon")
    to = reserve(out, MAX_VARINT32 + MAX_VARINT64 + 1 + (stop - rest))
    to = store_varint(to, body)
    to[0] = p[0]
    to = store_varint(to + 1, delta)
    memcpy(to, rest, stop - rest)
    out.used = to + (stop - rest) - out.data
    return stop
