"""Record batch v2 for Python: read headers, validate, stamp; rows in and out are batch_codec's, offered here too.

Rules
- Input is any contiguous bytes-like object; nothing is read past its end and no allocation exceeds what its bytes
  justify. Bad bytes raise DecodeError; a batch that a broker must refuse raises InvalidBatch with Kafka's error code.
- Stamping works in place: base offset and leader epoch lie outside the CRC, the maximum timestamp does not.
- Checksums and record walks of large batches run without the GIL; the caller must not resize or change the buffer then.
The byte layout is in records.pxd.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN
from libc.string cimport memset

from fastq._native.bits cimport unzigzag32
from fastq._native.batch_codec cimport GIL_RELEASE_BYTES, decode_error, header_error, locate, payload_of, verify

from fastq._native.batch_codec import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_KRAFT_VERSION,
    CONTROL_KRAFT_VOTERS,
    CONTROL_LEADER_CHANGE,
    CONTROL_SNAPSHOT_FOOTER,
    CONTROL_SNAPSHOT_HEADER,
    DECOMPRESSED_BYTES_MAX,
    ControlRecord,
    DecodedRecord,
    build_batch,
    build_transaction_marker,
    decode_control_record,
    decode_records,
    encode_control_key,
    recompress,
)

BATCH_OVERHEAD = BATCH_OVERHEAD_BYTES

cdef enum:
    CODEC_MAX = 4                    # zstd
    RECORD_ERRORS_MAX = 100          # record errors that one InvalidBatch lists
    SEQUENCE_NONE = -1

    # Kafka's error codes, as InvalidBatch carries them.
    CORRUPT_MESSAGE = 2
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87

    PIECE_BYTES = 16 * 1024          # summed and then walked at a time: the walk finds them in the fastest cache
    PLAIN_HEAD_BYTES = 13            # of a record up to its key, when no number takes more than three bytes
    PLAIN_TIME_MAX = 1 << 20         # above any timestamp delta of three bytes

    # Answers of walk_records.
    WALK_OK = 0
    WALK_MALFORMED = 1
    WALK_BYTES_LEFT = 2
    WALK_OFFSET_DELTA = 3
    WALK_NO_KEY = 4                  # this one and the next leave the walk able to go on
    WALK_TIMESTAMP = 5
    WALK_PAUSED = 6
    WALK_BAD_CRC = 7

# For walks of nothing: so that no pointer is NULL.
cdef const uint8_t* EMPTY = <const uint8_t*>b""


class InvalidBatch(ValueError):
    """A batch that a broker must not append. Source: Kafka's LogValidator.

    `error_code` is Kafka's (2 corrupt, 32 timestamp, 76 codec, 87 record); `record_index` is the first record at fault,
    -1 when it is the batch; `record_errors` lists (index, message) of records at fault, the first hundred at most.
    """

    def __init__(self, reason, record_index=-1, error_code=INVALID_RECORD, record_errors=()):
        super().__init__(reason, record_index, error_code, record_errors)
        self.reason = reason
        self.record_index = record_index
        self.error_code = error_code
        self.record_errors = list(record_errors)

    def __str__(self):
        return self.reason if self.record_index < 0 else f"{self.reason} (record {self.record_index} of the batch)"


cdef int invalid(int code, str reason, int64_t record_index=-1) except -1:
    """The cold end of every check of the validator."""
    raise InvalidBatch(reason, record_index, code)


# --- headers


@cython.final
cdef class BatchHeader:
    """The 61 bytes before the records of a batch, as they were when read: no reference to the buffer stays.

    `records_max_timestamp` is the largest timestamp that validate_batch saw in the records, -1 when it walked none.
    """

    def __cinit__(self):
        memset(&self.fields, 0, sizeof(CBatchHeader))
        self.records_max_timestamp = -1

    def __init__(self):
        raise TypeError("batch headers come from read_header, iter_headers and validate_batch")

    @property
    def base_offset(self):
        return self.fields.base_offset

    @property
    def batch_length(self):
        """Bytes after the length field."""
        return self.fields.batch_length

    @property
    def partition_leader_epoch(self):
        return self.fields.partition_leader_epoch

    @property
    def magic(self):
        return self.fields.magic

    @property
    def crc(self):
        return self.fields.crc

    @property
    def attributes(self):
        return self.fields.attributes

    @property
    def last_offset_delta(self):
        return self.fields.last_offset_delta

    @property
    def base_timestamp(self):
        """Milliseconds since 1970 that timestamp deltas count from; the delete horizon where there is one."""
        return self.fields.base_timestamp

    @property
    def max_timestamp(self):
        """Milliseconds since 1970; -1 for none. With log-append time, the time of every record."""
        return self.fields.max_timestamp

    @property
    def producer_id(self):
        """-1 for a producer that is not idempotent."""
        return self.fields.producer_id

    @property
    def producer_epoch(self):
        return self.fields.producer_epoch

    @property
    def base_sequence(self):
        return self.fields.base_sequence

    @property
    def record_count(self):
        return self.fields.record_count

    @property
    def size_bytes(self):
        """Bytes of the whole batch, header included."""
        return LOG_OVERHEAD_BYTES + <int64_t>self.fields.batch_length

    @property
    def last_offset(self):
        return <object>self.fields.base_offset + self.fields.last_offset_delta

    @property
    def next_offset(self):
        """The offset after the batch's last."""
        return <object>self.fields.base_offset + self.fields.last_offset_delta + 1

    @property
    def codec(self):
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.fields.attributes & ATTRIBUTE_CODEC

    @property
    def timestamp_type(self):
        """0 create time, 1 log-append time."""
        return 1 if self.fields.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0

    @property
    def is_transactional(self):
        return bool(self.fields.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self):
        return bool(self.fields.attributes & ATTRIBUTE_CONTROL)

    @property
    def has_delete_horizon(self):
        return bool(self.fields.attributes & ATTRIBUTE_DELETE_HORIZON)

    @property
    def last_sequence(self):
        """The sequence number of the last record, wrapping from 2^31 - 1 to 0; -1 when the batch has none."""
        if self.fields.base_sequence == SEQUENCE_NONE:
            return -1
        return (<int64_t>self.fields.base_sequence + self.fields.last_offset_delta) & INT32_MAX

    def __repr__(self):
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"record_count={self.record_count}, size_bytes={self.size_bytes}, codec={self.codec}, "
            f"leader_epoch={self.partition_leader_epoch}, producer_id={self.producer_id}, "
            f"producer_epoch={self.producer_epoch}, base_sequence={self.base_sequence}, "
            f"max_timestamp={self.max_timestamp}, attributes={self.attributes:#x})"
        )


cdef BatchHeader wrap_header(const CBatchHeader* h):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.fields = h[0]
    return header


def read_header(data, Py_ssize_t position=0):
    """The header of the whole batch at `position`; DecodeError when it is truncated or not of magic 2. No CRC check."""
    cdef Py_buffer view
    cdef CBatchHeader h
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        locate(&view, position, &h)
    finally:
        PyBuffer_Release(&view)
    return wrap_header(&h)


@cython.final
cdef class HeaderIterator:
    """Steps from batch to batch. The buffer is held only during a step, so it may be resized in between."""

    cdef object data
    cdef Py_ssize_t position
    cdef bint strict

    def __cinit__(self, data, Py_ssize_t start, bint strict):
        self.data = data
        self.position = start
        self.strict = strict

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_buffer view
        cdef CBatchHeader h
        cdef const uint8_t* p
        cdef Py_ssize_t position = self.position
        cdef int answer
        PyObject_GetBuffer(self.data, &view, PyBUF_SIMPLE)
        try:
            if position < 0 or position > view.len:
                decode_error("a position inside of the buffer", position, f"it has {view.len} bytes")
            p = <const uint8_t*>view.buf
            answer = HEADER_TRUNCATED if position == view.len else parse_header(p + position, p + view.len, &h)
            if answer == HEADER_TRUNCATED and (position == view.len or not self.strict):
                raise StopIteration
            if answer != HEADER_OK:
                header_error(answer, &h, position, view.len - position)
        finally:
            PyBuffer_Release(&view)
        self.position += LOG_OVERHEAD_BYTES + <Py_ssize_t>h.batch_length
        return position, wrap_header(&h)


def iter_headers(data, Py_ssize_t start=0, bint strict=False):
    """Yield (position, BatchHeader) of each batch from `start` on.

    Ends before a truncated batch, as a fetch response may have at its tail; with `strict` that is a DecodeError, as
    bytes that are no batch of magic 2 always are.
    """
    return HeaderIterator(data, start, strict)


# --- checksums and stamps


def verify_crc(data, Py_ssize_t position=0):
    """Whether the checksum of the whole batch at `position` is right; DecodeError when there is no whole batch."""
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef const uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = locate(&view, position, &h)
        return bool(verify(p, batch_size(&h)))
    finally:
        PyBuffer_Release(&view)


def stamp(data, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch):
    """Set base offset and leader epoch of the batch at `position`, in place; the CRC does not cover them.

    `data` must be writable. Raises DecodeError when there is no whole batch.
    """
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        p = <uint8_t*>locate(&view, position, &h)
        store_i64(p, base_offset)
        store_i32(p + 12, leader_epoch)
    finally:
        PyBuffer_Release(&view)


cdef int stamp_timestamp(data, Py_ssize_t position, bint log_append, int64_t timestamp) except -1:
    """Set timestamp type and maximum timestamp, and the CRC when that changed something."""
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef uint8_t* p
    cdef int16_t attributes
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        p = <uint8_t*>locate(&view, position, &h)
        attributes = h.attributes & ~ATTRIBUTE_LOG_APPEND_TIME
        if log_append:
            attributes |= ATTRIBUTE_LOG_APPEND_TIME
        if attributes == h.attributes and timestamp == h.max_timestamp:
            return 0
        store_i16(p + ATTRIBUTES_POSITION, attributes)
        store_i64(p + MAX_TIMESTAMP_POSITION, timestamp)
        with nogil:
            seal_batch(p, batch_size(&h))
    finally:
        PyBuffer_Release(&view)
    return 0


def stamp_log_append_time(data, Py_ssize_t position, int64_t now_ms):
    """Give every record of the batch at `position` the time `now_ms`: attribute bit 3, maximum timestamp, new CRC."""
    stamp_timestamp(data, position, True, now_ms)


def stamp_max_timestamp(data, Py_ssize_t position, int64_t max_timestamp):
    """Correct the maximum timestamp of a batch with create time, and its CRC; nothing is written when it is right.

    Kafka's broker does this with `records_max_timestamp` instead of refusing a batch whose header is wrong.
    """
    stamp_timestamp(data, position, False, max_timestamp)


# --- validation


cdef struct Walk:
    # Where a walk over records stands, what it demands, and what it saw.
    const uint8_t* p
    const uint8_t* end
    int64_t index
    int64_t count
    int64_t last_offset_delta
    int64_t previous_delta
    bint dense               # offset deltas are 0, 1, 2 ...; else they ascend, as a compacted batch's do
    bint plain               # whether records of the usual kind are still to be expected
    bint need_keys
    bint need_time
    int64_t base_timestamp
    int64_t oldest           # bounds of timestamps, inclusive
    int64_t newest
    int64_t timestamp        # of the record at `index`
    int64_t max_timestamp


cdef void start_walk(Walk* w, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Stand before the first of the records at `p`."""
    w.p = p
    w.end = end
    w.index = w.previous_delta = w.max_timestamp = -1
    w.plain = w.dense and -PLAIN_TIME_MAX < w.base_timestamp < INT64_MAX - PLAIN_TIME_MAX


cdef inline bint add_overflows(int64_t a, int64_t b) noexcept nogil:
    return (b > 0 and a > INT64_MAX - b) or (b < 0 and a < INT64_MIN - b)


cdef inline const uint8_t* load_short(const uint8_t* p, uint32_t* raw) noexcept nogil:
    """Read an unsigned varint of at most three bytes, which must be there; NULL when it is longer."""
    if p[0] < 0x80:
        raw[0] = p[0]
        return p + 1
    if p[1] < 0x80:
        raw[0] = (p[0] & 0x7F) | (<uint32_t>p[1] << 7)
        return p + 2
    if p[2] < 0x80:
        raw[0] = (p[0] & 0x7F) | (<uint32_t>(p[1] & 0x7F) << 7) | (<uint32_t>p[2] << 14)
        return p + 3
    return NULL


cdef void walk_plain(Walk* w, const uint8_t* stop) noexcept nogil:
    """Go over the records that begin before `stop` while they are right and of the usual kind: at twice walk_records' pace.

    Usual: dense offsets, no headers, no number of more than three bytes. The first other record is left to walk_records.
    """
    cdef const uint8_t* p = w.p
    cdef const uint8_t* start = p
    cdef const uint8_t* end = w.end
    cdef const uint8_t* last
    cdef int64_t index = w.index + 1
    cdef int64_t count = w.count
    cdef uint32_t longest_null = 0 if w.need_keys else 1  # null is 1, and its half, the bytes to follow, none
    cdef int64_t oldest = w.oldest if w.need_time else INT64_MIN
    cdef int64_t newest = w.newest if w.need_time else INT64_MAX
    cdef int64_t largest = w.max_timestamp
    cdef int64_t base = w.base_timestamp
    cdef int64_t timestamp
    cdef uint32_t raw
    while index < count and start < stop and end - start >= PLAIN_HEAD_BYTES:
        p = load_short(start, &raw)
        if p == NULL or raw & 1 or <int64_t>(raw >> 1) > end - p:
            break
        last = p + (raw >> 1) - 1
        p = load_short(p + 1, &raw)
        if p == NULL:
            break
        timestamp = base + unzigzag32(raw)
        if timestamp < oldest or timestamp > newest:
            break
        p = load_short(p, &raw)
        if p == NULL or raw != <uint64_t>index << 1:
            break
        p = load_short(p, &raw)
        if p == NULL or (raw & 1 and raw > longest_null) or <int64_t>(raw >> 1) > end - p - 3:
            break
        p = load_short(p + (raw >> 1), &raw)
        if p == NULL or (raw & 1 and raw > 1) or <int64_t>(raw >> 1) != last - p or last[0]:
            break
        if timestamp > largest:
            largest = timestamp
        start = last + 1
        index += 1
    w.p = start
    w.index = index - 1
    w.max_timestamp = largest


cdef int walk_records(Walk* w, const uint8_t* stop) noexcept nogil:
    """Check the records from where `w` stands to the end, or to the first at fault (then `index` is its number).

    After WALK_NO_KEY and WALK_TIMESTAMP another call goes on behind that record; WALK_PAUSED is the answer before a record that
    begins at or behind `stop`.
    """
    cdef CRecord record
    cdef bint bad_time
    cdef const uint8_t* start
    while w.index + 1 < w.count:
        if w.plain:
            start = w.p
            walk_plain(w, stop)
            w.plain = w.p != start  # where one is unusual, its neighbours are
            if w.index + 1 == w.count:
                break
        if w.p >= stop and stop < w.end:
            return WALK_PAUSED
        w.index += 1
        w.p = parse_record(w.p, w.end, &record)
        if w.p == NULL:
            return WALK_MALFORMED
        if w.dense:
            if record.offset_delta != w.index:
                return WALK_OFFSET_DELTA
        elif record.offset_delta <= w.previous_delta or record.offset_delta > w.last_offset_delta:
            return WALK_OFFSET_DELTA
        w.previous_delta = record.offset_delta
        bad_time = add_overflows(w.base_timestamp, record.timestamp_delta)
        w.timestamp = wrapping_add(w.base_timestamp, record.timestamp_delta)
        if w.need_time and w.timestamp != -1 and not w.oldest <= w.timestamp <= w.newest:
            bad_time = True
        if bad_time:
            return WALK_TIMESTAMP
        if w.timestamp > w.max_timestamp:
            w.max_timestamp = w.timestamp
        if w.need_keys and record.key_length < 0:
            return WALK_NO_KEY
    w.index = -1
    return WALK_OK if w.p == w.end else WALK_BYTES_LEFT


cdef int check_walk(Walk* w) except -1:
    """Walk to the end and raise what is wrong: at once where the rest cannot be trusted, else after the last record."""
    cdef int answer
    cdef int code = INVALID_RECORD
    errors = []
    while True:
        if w.end - w.p < GIL_RELEASE_BYTES:
            answer = walk_records(w, w.end)
        else:
            with nogil:
                answer = walk_records(w, w.end)
        if answer == WALK_OK:
            break
        if answer == WALK_MALFORMED:
            invalid(INVALID_RECORD, "a record is malformed, or there are fewer than the header says", w.index)
        if answer == WALK_BYTES_LEFT:
            invalid(INVALID_RECORD, "the batch holds bytes behind the last record that its header counts")
        if answer == WALK_OFFSET_DELTA:
            invalid(INVALID_RECORD, f"the offset delta of record {w.index} is out of line", w.index)
        if answer == WALK_TIMESTAMP:
            code = INVALID_TIMESTAMP
            errors.append((w.index, f"timestamp {w.timestamp} is outside of {w.oldest} to {w.newest}"))
        else:
            errors.append((w.index, "a compacted topic takes no record without a key"))
        if len(errors) == RECORD_ERRORS_MAX:
            break
    if errors:
        raise InvalidBatch(errors[0][1], errors[0][0], code, errors)
    return 0


cdef int sum_and_walk(Walk* w, const uint8_t* p, const CBatchHeader* h) noexcept nogil:
    """CRC and records of the uncompressed batch at `p` in one pass: WALK_OK, WALK_BAD_CRC or what the walk has met first."""
    cdef const uint8_t* at = p + ATTRIBUTES_POSITION
    cdef const uint8_t* end = p + batch_size(h)
    cdef int64_t size
    cdef uint32_t crc = 0
    cdef int answer = WALK_PAUSED
    start_walk(w, p + BATCH_OVERHEAD_BYTES, end)
    while at < end:
        size = min(<int64_t>PIECE_BYTES, <int64_t>(end - at))
        crc = crc32c_update(crc, at, <size_t>size)
        at += size
        if answer == WALK_PAUSED:
            answer = walk_records(w, at)
    return answer if crc == h.crc else WALK_BAD_CRC


cdef int refuse_header(int answer, const CBatchHeader* h, Py_ssize_t available) except -1:
    """Kafka sees no batch where one is cut off, and corruption in a length or magic that cannot be."""
    if answer == HEADER_TRUNCATED:
        return invalid(INVALID_RECORD, f"one whole batch expected, {available} bytes are there")
    if answer == HEADER_OLD_MAGIC:
        return invalid(INVALID_RECORD, f"magic is {h.magic}, only record batches of magic 2 are taken")
    if answer == HEADER_BAD_MAGIC:
        return invalid(CORRUPT_MESSAGE, f"magic is {h.magic}, which no version of the format has")
    return invalid(CORRUPT_MESSAGE, f"batch length {h.batch_length} is below {BATCH_LENGTH_MIN}")


cdef int check_client_header(const CBatchHeader* h) except -1:
    """What Kafka's LogValidator demands of a batch that a client made."""
    if h.record_count <= 0:
        invalid(INVALID_RECORD, f"the batch says that it holds {h.record_count} records")
    if h.last_offset_delta != h.record_count - 1:
        invalid(INVALID_RECORD, f"last offset delta {h.last_offset_delta} does not fit {h.record_count} records")
    if h.attributes & ATTRIBUTE_CONTROL:
        invalid(INVALID_RECORD, "clients are not allowed to write control batches")
    if h.producer_id >= 0 and h.base_sequence < 0:
        invalid(INVALID_RECORD, f"base sequence {h.base_sequence} of producer {h.producer_id} is below zero")
    if h.producer_id >= 0 and h.producer_epoch < 0:
        invalid(INVALID_RECORD, f"epoch {h.producer_epoch} of producer {h.producer_id} is below zero")
    if h.attributes & ATTRIBUTE_TRANSACTIONAL and h.producer_id < 0:
        invalid(INVALID_RECORD, "a transactional batch needs a producer id")
    if h.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        invalid(INVALID_TIMESTAMP, "a producer may not set the timestamp type to log-append time", 0)
    return 0


cdef int check_stored_header(const CBatchHeader* h) except -1:
    """What holds of every batch in a log, one that compaction has thinned out or emptied among them."""
    if h.last_offset_delta < 0 or h.record_count < 0 or h.record_count > <int64_t>h.last_offset_delta + 1:
        invalid(INVALID_RECORD, f"{h.record_count} records do not fit last offset delta {h.last_offset_delta}")
    return 0


def validate_batch(
    data,
    Py_ssize_t position=0,
    end=None,
    *,
    bint compacted=False,
    bint from_client=True,
    bint check_crc=True,
    int timestamp_type=0,
    int64_t now_ms=-1,
    int64_t before_max_ms=INT64_MAX,
    int64_t after_max_ms=INT64_MAX,
    decompress=None,
    Py_ssize_t limit_bytes=DECOMPRESSED_BYTES_MAX,
):
    """Check the one batch that fills `data[position:end]` as a broker must, and return its header.

    Uncompressed records are walked: structure, count, offset deltas, keys when `compacted`, timestamps. Of a compressed
    batch only header and CRC are checked, unless `decompress(codec, data, limit_bytes)` is given. Timestamps must lie
    within `before_max_ms` before and `after_max_ms` after `now_ms`, unless that is -1 or `timestamp_type` is 1
    (log-append time). `from_client=False` allows what a log may hold: control batches, offset gaps, no records.
    `end` None is the buffer's end. Raises InvalidBatch. Source: Kafka's LogValidator and DefaultRecordBatch.
    """
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef const uint8_t* p
    cdef BatchHeader header
    cdef Walk w
    cdef Py_ssize_t stop
    cdef int answer
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        stop = view.len if end is None else end
        if not 0 <= position <= stop <= view.len:
            raise ValueError(f"range {position}:{stop} is outside of a buffer of {view.len} bytes")
        p = <const uint8_t*>view.buf + position
        answer = parse_header(p, p + (stop - position), &h)
        if answer != HEADER_OK:
            refuse_header(answer, &h, stop - position)
        w.count = h.record_count
        w.last_offset_delta = h.last_offset_delta
        w.dense = from_client
        w.need_keys = compacted and not h.attributes & ATTRIBUTE_CONTROL
        w.need_time = now_ms >= 0 and timestamp_type == 0
        w.base_timestamp = h.base_timestamp
        w.oldest = now_ms - before_max_ms if not add_overflows(now_ms, -before_max_ms) else INT64_MIN
        w.newest = now_ms + after_max_ms if not add_overflows(now_ms, after_max_ms) else INT64_MAX
        answer = check_bytes(&w, p, &h) if check_crc else WALK_PAUSED
        if batch_size(&h) != stop - position:
            invalid(INVALID_RECORD, f"one batch expected, {stop - position - batch_size(&h)} bytes follow it")
        if h.attributes & ATTRIBUTE_CODEC > CODEC_MAX:
            invalid(UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {h.attributes & ATTRIBUTE_CODEC} is unknown")
        if from_client:
            check_client_header(&h)
        else:
            check_stored_header(&h)
        header = wrap_header(&h)
        if answer != WALK_OK:  # not walked yet, or something is wrong, which another walk tells in full
            walk_payload(&w, data, position, p, &h, decompress, limit_bytes)
        header.records_max_timestamp = w.max_timestamp
        return header
    finally:
        PyBuffer_Release(&view)


cdef int check_bytes(Walk* w, const uint8_t* p, const CBatchHeader* h) except -1:
    """Check the CRC of the batch at `p`. Uncompressed records are walked meanwhile: WALK_OK when nothing is wrong with them."""
    cdef int answer
    if h.attributes & ATTRIBUTE_CODEC:
        answer = WALK_PAUSED if verify(p, batch_size(h)) else WALK_BAD_CRC
    elif batch_size(h) < GIL_RELEASE_BYTES:
        answer = sum_and_walk(w, p, h)
    else:
        with nogil:
            answer = sum_and_walk(w, p, h)
    if answer == WALK_BAD_CRC:
        invalid(CORRUPT_MESSAGE, f"the CRC of the batch is not {h.crc:#010x}")
    return answer


cdef int walk_payload(
    Walk* w,
    data,
    Py_ssize_t position,
    const uint8_t* p,
    const CBatchHeader* h,
    decompress,
    Py_ssize_t limit_bytes,
) except -1:
    """Walk the records of the batch at `p`, decompressed first where that is asked for."""
    cdef int codec = h.attributes & ATTRIBUTE_CODEC
    cdef const uint8_t* start
    cdef Py_buffer view
    start_walk(w, p + BATCH_OVERHEAD_BYTES, p + batch_size(h))
    if codec == 0:
        check_walk(w)
    elif decompress is None:
        return 0
    else:
        payload = payload_of(data, position, h)
        try:
            plain = decompress(codec, payload, limit_bytes)
        except ValueError as error:
            raise InvalidBatch(f"the records cannot be decompressed: {error}", -1, CORRUPT_MESSAGE) from error
        PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE)
        try:
            start = <const uint8_t*>view.buf if view.len else EMPTY
            start_walk(w, start, start + view.len)
            check_walk(w)
        finally:
            PyBuffer_Release(&view)
    return 0
