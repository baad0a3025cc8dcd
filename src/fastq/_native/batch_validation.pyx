"""What a broker demands of a record batch v2 before it is appended: header, checksum and every record that can be seen.

Rules
- Input is any contiguous bytes-like object; nothing is read past its end. A batch that is refused raises InvalidBatch with Kafka's
  error code.
- The CRC and the walk over the records are one pass, piece by piece, so that the walk finds its bytes in the fastest cache.
- Three walks with one meaning: of records that look like the one before (walk_alike), of usual ones (walk_plain), of any
  (walk_records). The faster ones leave what they do not know, and all that is wrong, to the next.
- Large batches are checked without the GIL; the caller must not resize or change the buffer then.
Source: Kafka's LogValidator and DefaultRecordBatch.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastq._native.batch_codec cimport GIL_RELEASE_BYTES, payload_of, verify
from fastq._native.bits cimport load_i64, unzigzag32
from fastq._native.crc32c cimport crc32c_update
from fastq._native.records cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    HEADER_BAD_MAGIC,
    HEADER_OK,
    HEADER_OLD_MAGIC,
    HEADER_TRUNCATED,
    BatchHeader,
    CBatchHeader,
    CRecord,
    batch_size,
    parse_header,
    parse_record,
    wrap_header,
    wrapping_add,
)


cdef enum:
    CODEC_MAX = 4                    # zstd
    RECORD_ERRORS_MAX = 100          # record errors that one InvalidBatch lists

    # Kafka's error codes, as InvalidBatch carries them.
    CORRUPT_MESSAGE = 2
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87

    PIECE_BYTES = 16 * 1024          # summed and then walked at a time: the walk finds them in the fastest cache
    PLAIN_HEAD_BYTES = 13            # of a record up to its key, when no number takes more than three bytes
    PLAIN_TIME_MAX = 1 << 20         # above any timestamp delta of three bytes
    PLAIN_RUN = 32                   # records without one like the last before that is tried again

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


# --- walks


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


cdef inline uint64_t first_bytes(int64_t count) noexcept nogil:
    """A mask of the first 1 to 8 bytes of a big-endian word."""
    return ~<uint64_t>0 << (64 - 8 * count)


cdef inline uint64_t offset_bits(uint64_t raw, int64_t size) noexcept nogil:
    """A varint of one to three bytes at the start of a big-endian word."""
    if size == 1:
        return raw << 56
    if size == 2:
        return (raw & 0x7F | 0x80) << 56 | (raw >> 7) << 48
    return (raw & 0x7F | 0x80) << 56 | (raw >> 7 & 0x7F | 0x80) << 48 | (raw >> 14) << 40


cdef void walk_alike(Walk* w, const uint8_t* like, const uint8_t* stop) noexcept nogil:
    """Go over the records that differ from the one at `like`, which was walked last, in offset, key and value alone.

    Sizes and time are compared as bytes, at twice walk_run's pace. The first other record, and the last ones, are left to walk_run.
    """
    cdef const uint8_t* p = w.p
    cdef const uint8_t* end = w.end
    cdef int64_t size = p - like
    cdef uint32_t raw
    cdef const uint8_t* middle = load_short(load_short(like, &raw) + 1, &raw)  # behind length, attributes and time: 3 to 7 bytes
    cdef const uint8_t* key_size = load_short(middle, &raw)
    cdef const uint8_t* key = load_short(key_size, &raw)
    cdef const uint8_t* value_size = key if raw & 1 else key + (raw >> 1)
    cdef int64_t offset_size = key_size - middle
    cdef int64_t middle_at = middle - like
    cdef int64_t value_at = value_size - like
    cdef int64_t index = w.index + 1
    cdef int64_t limit = min(w.count, <int64_t>1 << (7 * offset_size - 1))  # from there on offsets take another byte
    cdef uint64_t head, sizes, value, head_mask, middle_mask, value_mask, wrong
    if end - p < size + 8:
        return
    head_mask = first_bytes(middle_at)
    middle_mask = first_bytes(key - middle)
    value_mask = first_bytes(load_short(value_size, &raw) - value_size)
    head = <uint64_t>load_i64(like)
    sizes = <uint64_t>load_i64(middle) & ~first_bytes(offset_size)
    value = <uint64_t>load_i64(value_size)
    while index < limit and p < stop and end - p >= size + 8:
        wrong = (<uint64_t>load_i64(p) ^ head) & head_mask
        wrong |= (<uint64_t>load_i64(p + middle_at) ^ (sizes | offset_bits(<uint64_t>index << 1, offset_size))) & middle_mask
        wrong |= (<uint64_t>load_i64(p + value_at) ^ value) & value_mask
        if wrong | p[size - 1]:
            break
        p += size
        index += 1
    w.p = p
    w.index = index - 1


cdef const uint8_t* walk_run(Walk* w, const uint8_t* stop, int64_t limit) noexcept nogil:
    """Go over the records up to number `limit` that begin before `stop`, while they are right and of the usual kind.

    Usual: dense offsets, no headers, no number of more than three bytes. The answer is the last of them when all are, else NULL.
    """
    cdef const uint8_t* p = w.p
    cdef const uint8_t* start = p
    cdef const uint8_t* previous = NULL
    cdef const uint8_t* end = w.end
    cdef const uint8_t* last
    cdef int64_t index = w.index + 1
    cdef uint32_t longest_null = 0 if w.need_keys else 1  # null is 1, and its half, the bytes to follow, none
    cdef int64_t oldest = w.oldest if w.need_time else INT64_MIN
    cdef int64_t newest = w.newest if w.need_time else INT64_MAX
    cdef int64_t largest = w.max_timestamp
    cdef int64_t base = w.base_timestamp
    cdef int64_t timestamp
    cdef uint32_t raw
    while index < limit and start < stop and end - start >= PLAIN_HEAD_BYTES:
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
        previous = start
        start = last + 1
        index += 1
    w.p = start
    w.index = index - 1
    w.max_timestamp = largest
    return previous if index == limit else NULL


cdef void walk_plain(Walk* w, const uint8_t* stop) noexcept nogil:
    """Go over the records that begin before `stop` while they are right and of the usual kind: at twice walk_records' pace or more."""
    cdef int64_t run = 2
    cdef const uint8_t* last
    while w.index + 1 < w.count:
        last = walk_run(w, stop, min(w.count, w.index + 1 + run))
        if last == NULL:
            break
        start = w.p
        walk_alike(w, last, stop)
        run = PLAIN_RUN if w.p == start else 2


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


# --- judgements


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
    int64_t before_max_ms=9223372036854775807,
    int64_t after_max_ms=9223372036854775807,
    decompress=None,
    Py_ssize_t limit_bytes=268435456,  # batch_codec.DECOMPRESSED_BYTES_MAX: written out for the signature
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
