"""Rows to record batch v2 and back: the general, safe way, for the broker, tools and tests.

Rules
- A row is (timestamp_ms, key, value, headers); null keys and values are None, headers (key, value) pairs in order.
- Decoding trusts nothing: lengths are checked against the bytes at hand before they are used, CRC included.
- Lengths on the wire are int32: a record or a batch beyond that is a ValueError before anything is copied.
The producer and the consumer have faster ways of their own; the byte layout is in records.pxd.
"""

from collections import namedtuple

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, uint32_t
from libc.string cimport memset

from fastq._native.bits cimport load_i16, load_i32, store_varint
from fastq._native.records cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    HEADER_BAD_LENGTH,
    HEADER_OK,
    HEADER_OLD_MAGIC,
    HEADER_TRUNCATED,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    CRecord,
    CRecordHeader,
    batch_size,
    crc_matches,
    parse_header,
    parse_record,
    parse_record_header,
    record_body_size,
    record_header_size,
    record_size,
    seal_batch,
    wrapping_add,
    write_header,
    write_record,
    write_record_header,
)

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024   # what one batch may unpack to unless the caller says otherwise

# Types of control records (org.apache.kafka.common.record.ControlRecordType).
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_LEADER_CHANGE = 2
CONTROL_SNAPSHOT_HEADER = 3
CONTROL_SNAPSHOT_FOOTER = 4
CONTROL_KRAFT_VERSION = 5
CONTROL_KRAFT_VOTERS = 6

ControlRecord = namedtuple("ControlRecord", ("type", "version", "coordinator_epoch"))
ControlRecord.__doc__ = "What a control record says; `coordinator_epoch` is -1 where the type is not abort or commit."

# For walks of nothing: so that no pointer is NULL.
cdef const uint8_t* EMPTY = <const uint8_t*>b""


# --- shared with records


cdef int decode_error(expected, Py_ssize_t position, detail) except -1:
    """The cold end of every decoder's check."""
    from fastq._native.wire import DecodeError

    raise DecodeError(expected, position, detail, "a record batch")


cdef int header_error(int answer, const CBatchHeader* h, Py_ssize_t position, Py_ssize_t available) except -1:
    if answer == HEADER_TRUNCATED:
        return decode_error("a whole record batch", position, f"only {available} bytes are left")
    if answer == HEADER_BAD_LENGTH:
        return decode_error(f"a batch length of {BATCH_LENGTH_MIN} or more", position + 8, f"got {h.batch_length}")
    if answer == HEADER_OLD_MAGIC:
        return decode_error("a record batch of magic 2", position + MAGIC_POSITION, f"got a v{h.magic} message set")
    return decode_error("a record batch of magic 2", position + MAGIC_POSITION, f"got {h.magic}")


cdef const uint8_t* locate(Py_buffer* view, Py_ssize_t position, CBatchHeader* h) except NULL:
    cdef const uint8_t* p = <const uint8_t*>view.buf if view.len else EMPTY
    cdef int answer
    if position < 0 or position > view.len:
        decode_error("a position inside of the buffer", position, f"it has {view.len} bytes")
    answer = parse_header(p + position, p + view.len, h)
    if answer != HEADER_OK:
        header_error(answer, h, position, view.len - position)
    return p + position


cdef object payload_of(data, Py_ssize_t position, const CBatchHeader* h):
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    return view[position + BATCH_OVERHEAD_BYTES : position + <Py_ssize_t>batch_size(h)]


cdef int verify(const uint8_t* p, int64_t size) except -1:
    cdef bint good
    if size < GIL_RELEASE_BYTES:
        return crc_matches(p, size)
    with nogil:
        good = crc_matches(p, size)
    return good


cdef object default_decompress():
    from fastq.compression import decompress

    return decompress


cdef object default_compress():
    from fastq.compression import compress

    return compress


# --- batch to rows


@cython.final
cdef class DecodedRecord:
    """One record: `timestamp_ms` -1 for none, `key` and `value` nullable, `headers` a list of (str, nullable bytes).

    `timestamp_type` is 0 for create time, 1 for log-append time, -1 for a v0 message, which has no timestamp.
    Header keys that are not UTF-8 keep their bytes as surrogate escapes, which build_batch turns back.
    """

    def __init__(self):
        raise TypeError("decoded records come from decode_records")

    def __eq__(self, other):
        if not isinstance(other, DecodedRecord):
            return NotImplemented
        return self.row() == other.row() and self.offset == other.offset

    def __repr__(self):
        return (
            f"DecodedRecord(offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def row(self):
        """(timestamp_ms, key, value, headers), as build_batch takes it."""
        return self.timestamp_ms, self.key, self.value, self.headers


cdef object nullable(const uint8_t* data, int32_t length):
    return None if length < 0 else PyBytes_FromStringAndSize(<const char*>data, length)


cdef list headers_of(const CRecord* record):
    cdef CRecordHeader header
    cdef const uint8_t* p = record.headers
    cdef int32_t i
    cdef list headers = []
    memset(&header, 0, sizeof(header))   # the compiler does not see that it is set wherever it is read
    for i in range(record.header_count):
        p = parse_record_header(p, record.end, &header)
        if p == NULL:
            raise AssertionError("parse_record has walked these headers")
        key = PyUnicode_DecodeUTF8(<const char*>header.key, header.key_length, "surrogateescape")
        headers.append((key, nullable(header.value, header.value_length)))
    return headers


cdef list rows_of(const uint8_t* p, const uint8_t* end, const CBatchHeader* h, Py_ssize_t position):
    """The records between `p` and `end`, which must be as many as the header says and fill the place."""
    cdef CRecord record
    cdef DecodedRecord row
    cdef int32_t i
    cdef list rows = []
    for i in range(h.record_count):
        p = parse_record(p, end, &record)
        if p == NULL:
            decode_error(f"{h.record_count} records", position, f"record {i} is malformed or cut off")
        row = DecodedRecord.__new__(DecodedRecord)
        row.offset = wrapping_add(h.base_offset, record.offset_delta)
        row.timestamp_type = 1 if h.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
        if row.timestamp_type:
            row.timestamp_ms = h.max_timestamp
        else:
            row.timestamp_ms = wrapping_add(h.base_timestamp, record.timestamp_delta)
        row.key = nullable(record.key, record.key_length)
        row.value = nullable(record.value, record.value_length)
        row.headers = headers_of(&record)
        rows.append(row)
    if p != end:
        decode_error(f"no bytes behind {h.record_count} records", position, f"{end - p} are left")
    return rows


def decode_records(
    data, Py_ssize_t position=0, decompress=None, *, bint check_crc=True, Py_ssize_t limit_bytes=DECOMPRESSED_BYTES_MAX
):
    """All records of the whole batch at `position`, in order, as a list of DecodedRecord.

    `decompress(codec, data, limit_bytes)` is fastq.compression's unless given; records that would unpack to more than
    `limit_bytes` are refused. Raises DecodeError for whatever is not a batch, its CRC unless `check_crc` is off.
    """
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef const uint8_t* p
    cdef int codec
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = locate(&view, position, &h)
        if h.record_count < 0:
            decode_error("a record count", position + 57, f"got {h.record_count}")
        if check_crc and not verify(p, batch_size(&h)):
            decode_error(f"records whose CRC is {h.crc:#010x}", position + ATTRIBUTES_POSITION, "they have another")
        codec = h.attributes & ATTRIBUTE_CODEC
        if codec == 0:
            return rows_of(p + BATCH_OVERHEAD_BYTES, p + batch_size(&h), &h, position)
    finally:
        PyBuffer_Release(&view)
    plain = (decompress or default_decompress())(codec, payload_of(data, position, &h), limit_bytes)
    PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf if view.len else EMPTY
        return rows_of(p, p + view.len, &h, position)
    finally:
        PyBuffer_Release(&view)


# --- rows to batch


cdef struct Field:
    # A nullable bytes-like object as bytes; `view` is held while `held`.
    const uint8_t* data
    int32_t length
    bint held
    Py_buffer view


cdef struct Building:
    # What the rows written so far say about the batch.
    int64_t base_timestamp       # -1 with no rows yet and none given
    bint base_known
    int64_t max_timestamp
    int64_t last_delta
    int64_t count


cdef int too_long(str what, int64_t size) except -1:
    raise ValueError(f"{what} takes {size} bytes, a record batch holds at most {INT32_MAX}")


cdef int open_field(Field* field, value) except -1:
    """Point `field` at the bytes of `value`; close_field must follow, whatever happens."""
    field.held = False
    if value is None:
        field.data = NULL
        field.length = -1
        return 0
    if PyBytes_CheckExact(value):
        if PyBytes_GET_SIZE(value) > INT32_MAX:
            too_long("a key or value", PyBytes_GET_SIZE(value))
        field.data = <const uint8_t*>PyBytes_AS_STRING(value)
        field.length = <int32_t>PyBytes_GET_SIZE(value)
        return 0
    PyObject_GetBuffer(value, &field.view, PyBUF_SIMPLE)
    field.held = True
    if field.view.len > INT32_MAX:
        too_long("a key or value", field.view.len)
    field.data = <const uint8_t*>field.view.buf
    field.length = <int32_t>field.view.len
    return 0


cdef void close_field(Field* field) noexcept:
    if field.held:
        PyBuffer_Release(&field.view)
        field.held = False


cdef bytes encode_headers(headers):
    """Varint count and headers; raises TypeError for a null key, ValueError beyond int32."""
    cdef int64_t size = 5
    cdef uint8_t* p
    cdef uint8_t* start
    cdef bytes out, key
    cdef list pairs = []
    for name, value in headers:
        key = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else bytes(memoryview(name))
        value = None if value is None else bytes(memoryview(value))
        if len(key) > INT32_MAX or (value is not None and len(value) > INT32_MAX):
            too_long("a header", max(len(key), 0 if value is None else len(value)))
        size += record_header_size(<int32_t>len(key), -1 if value is None else <int32_t>len(value))
        pairs.append((key, value))
    if size > INT32_MAX:
        too_long("the headers of one record", size)
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    start = <uint8_t*>PyBytes_AS_STRING(out)
    p = store_varint(start, len(pairs))
    for key, value in pairs:
        if value is None:
            p = write_record_header(p, <const uint8_t*>PyBytes_AS_STRING(key), <int32_t>len(key), NULL, -1)
        else:
            p = write_record_header(
                p,
                <const uint8_t*>PyBytes_AS_STRING(key),
                <int32_t>len(key),
                <const uint8_t*>PyBytes_AS_STRING(value),
                <int32_t>len(value),
            )
    return out[: p - start]


cdef Py_ssize_t append_row(bytearray out, Py_ssize_t used, Building* b, int64_t delta, row) except -1:
    """Write one row behind the `used` bytes of `out`, growing it, and return how many are used then."""
    cdef Field key, value
    cdef bytes headers = None
    cdef const uint8_t* headers_data = NULL
    cdef int64_t headers_size = 1
    cdef int64_t timestamp, timestamp_delta, body, whole
    cdef uint8_t* p
    fields = row if isinstance(row, tuple) else tuple(row)
    if not 3 <= len(fields) <= 4:
        raise ValueError(f"a row is (timestamp_ms, key, value, headers), got {len(fields)} fields")
    timestamp = fields[0]
    if timestamp < -1:
        raise ValueError(f"timestamp_ms must be -1 (none) or above, got {timestamp}")
    if len(fields) == 4 and fields[3]:
        headers = encode_headers(fields[3])
        headers_data = <const uint8_t*>PyBytes_AS_STRING(headers)
        headers_size = PyBytes_GET_SIZE(headers)
    if not b.base_known:
        b.base_timestamp = timestamp
        b.base_known = True
    if b.base_timestamp < 0 and timestamp > INT64_MAX + b.base_timestamp:
        raise ValueError(f"timestamp {timestamp} is too far from the batch's base timestamp {b.base_timestamp}")
    timestamp_delta = timestamp - b.base_timestamp
    key.held = value.held = False
    try:
        open_field(&key, fields[1])
        open_field(&value, fields[2])
        body = record_body_size(timestamp_delta, <int32_t>delta, key.length, value.length, headers_size)
        whole = record_size(body)
        if body > INT32_MAX:
            too_long("a record", body)
        if used + whole - LOG_OVERHEAD_BYTES > INT32_MAX:
            too_long("a record batch", used + whole)
        if used + whole > PyByteArray_GET_SIZE(out):
            PyByteArray_Resize(out, <Py_ssize_t>(used + whole) * 2)
        p = <uint8_t*>PyByteArray_AS_STRING(out) + used
        write_record(
            p,
            body,
            timestamp_delta,
            <int32_t>delta,
            key.data,
            key.length,
            value.data,
            value.length,
            headers_data,
            headers_size,
        )
    finally:
        close_field(&key)
        close_field(&value)
    if timestamp > b.max_timestamp:
        b.max_timestamp = timestamp
    return used + <Py_ssize_t>whole


cdef bytearray append_rows(records, offset_deltas, Building* b):
    """A bytearray of 61 free bytes and the encoded records."""
    cdef bytearray out = bytearray(4096)
    cdef Py_ssize_t used = BATCH_OVERHEAD_BYTES
    cdef int64_t delta
    deltas = None if offset_deltas is None else iter(offset_deltas)
    for row in records:
        if deltas is None:
            delta = b.count
        else:
            given = next(deltas, None)
            if given is None:
                raise ValueError(f"{b.count} offset deltas for more records")
            delta = given
        if delta <= b.last_delta or delta > INT32_MAX:
            raise ValueError(f"offset delta {delta} must be above {b.last_delta} and at most {INT32_MAX}")
        used = append_row(out, used, b, delta, row)
        b.last_delta = delta
        b.count += 1
    if deltas is not None and next(deltas, None) is not None:
        raise ValueError(f"more offset deltas than the {b.count} records")
    PyByteArray_Resize(out, used)
    return out


cdef bytearray with_payload(bytearray plain, int codec, compress, level):
    """`plain` with what follows its first 61 bytes compressed."""
    if codec == 0:
        return plain
    if not 0 < codec <= ATTRIBUTE_CODEC:
        raise ValueError(f"codec must be 0 to 4, got {codec}")
    with memoryview(plain) as view, view[BATCH_OVERHEAD_BYTES:] as payload:
        packed = (compress or default_compress())(codec, payload, level)
    if len(packed) > INT32_MAX - BATCH_LENGTH_MIN:
        too_long("a compressed record batch", len(packed) + BATCH_OVERHEAD_BYTES)
    out = bytearray(BATCH_OVERHEAD_BYTES)
    out += packed
    return out


def build_batch(
    records,
    *,
    int64_t base_offset=0,
    int32_t leader_epoch=-1,
    int codec=0,
    compress=None,
    level=None,
    int timestamp_type=0,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    bint transactional=False,
    bint control=False,
    offset_deltas=None,
    last_offset_delta=None,
    base_timestamp=None,
    max_timestamp=None,
    delete_horizon_ms=None,
):
    """A record batch v2 of `records`, rows of (timestamp_ms, key, value, headers), the headers optional.

    `compress(codec, data, level)` is fastq.compression's unless given. `offset_deltas`, ascending, are 0, 1, 2 ...
    unless given; `last_offset_delta` is the last of them unless given, as compaction keeps it, and needed where there
    are no records. Timestamps count from the first record's, from `base_timestamp`, or from `delete_horizon_ms`, which
    also sets its attribute bit. `timestamp_type` 1 makes `max_timestamp` everyone's time. Keys and values are any
    bytes-like object or None. Raises ValueError for what the format cannot hold, TypeError for what is not bytes.
    """
    cdef CBatchHeader h
    cdef Building b
    cdef bytearray out
    b.count = 0
    b.last_delta = b.max_timestamp = b.base_timestamp = -1
    anchor = base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    b.base_known = anchor is not None
    if b.base_known:
        b.base_timestamp = anchor
        if b.base_timestamp < -1:
            raise ValueError(f"the base timestamp must be -1 (none) or above, got {anchor}")
    if timestamp_type not in (0, 1):
        raise ValueError(f"timestamp_type must be 0 (create) or 1 (log append), got {timestamp_type}")
    out = append_rows(records, offset_deltas, &b)
    if b.count == 0 and last_offset_delta is None:
        raise ValueError("a batch without records needs last_offset_delta")
    h.last_offset_delta = b.last_delta if last_offset_delta is None else last_offset_delta
    if h.last_offset_delta < b.last_delta or h.last_offset_delta < 0:
        raise ValueError(f"last_offset_delta {h.last_offset_delta} is below the last record's {b.last_delta}")
    out = with_payload(out, codec, compress, level)
    h.attributes = (
        codec
        | (ATTRIBUTE_LOG_APPEND_TIME if timestamp_type else 0)
        | (ATTRIBUTE_TRANSACTIONAL if transactional else 0)
        | (ATTRIBUTE_CONTROL if control else 0)
        | (ATTRIBUTE_DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    h.base_offset = base_offset
    h.partition_leader_epoch = leader_epoch
    h.magic = 2
    h.base_timestamp = b.base_timestamp
    h.max_timestamp = b.max_timestamp if max_timestamp is None else max_timestamp
    h.producer_id = producer_id
    h.producer_epoch = producer_epoch
    h.base_sequence = base_sequence
    h.record_count = <int32_t>b.count
    finish(out, &h)
    return out


cdef int finish(bytearray out, CBatchHeader* h) except -1:
    """Write the header of the batch that fills `out`, with length and CRC."""
    cdef uint8_t* p = <uint8_t*>PyByteArray_AS_STRING(out)
    h.batch_length = <int32_t>(len(out) - LOG_OVERHEAD_BYTES)
    h.crc = 0
    write_header(p, h)
    seal_batch(p, len(out))
    return 0


def recompress(
    data,
    Py_ssize_t position,
    int codec,
    *,
    level=None,
    compress=None,
    decompress=None,
    Py_ssize_t limit_bytes=DECOMPRESSED_BYTES_MAX,
):
    """A copy of the whole batch at `position`, its records compressed by `codec`: nothing else but the CRC changes.

    As a broker does whose topic demands another codec. Raises DecodeError as decode_records does; no CRC check.
    """
    cdef Py_buffer view
    cdef CBatchHeader h
    cdef bytearray out
    cdef int from_codec
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        locate(&view, position, &h)
    finally:
        PyBuffer_Release(&view)
    from_codec = h.attributes & ATTRIBUTE_CODEC
    payload = payload_of(data, position, &h)
    out = bytearray(BATCH_OVERHEAD_BYTES)
    out += (decompress or default_decompress())(from_codec, payload, limit_bytes) if from_codec else payload
    out = with_payload(out, codec, compress, level)
    h.attributes = (h.attributes & ~ATTRIBUTE_CODEC) | codec
    finish(out, &h)
    return out


# --- control records


def encode_control_key(control_type, version=0):
    """Key of a control record: version 2, type 2."""
    return version.to_bytes(2, "big", signed=True) + control_type.to_bytes(2, "big", signed=True)


def build_transaction_marker(
    int16_t control_type,
    *,
    int64_t producer_id,
    int16_t producer_epoch,
    int32_t coordinator_epoch,
    int64_t timestamp_ms,
    int64_t base_offset=0,
    int32_t leader_epoch=-1,
):
    """The control batch that ends a transaction: CONTROL_ABORT or CONTROL_COMMIT. Source: EndTransactionMarker."""
    if control_type not in (CONTROL_ABORT, CONTROL_COMMIT):
        raise ValueError(f"a transaction ends with CONTROL_ABORT (0) or CONTROL_COMMIT (1), got {control_type}")
    value = b"\x00\x00" + (<object>coordinator_epoch).to_bytes(4, "big", signed=True)
    return build_batch(
        [(timestamp_ms, encode_control_key(control_type), value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_control_record(bytes key, bytes value):
    """What the control record with this key and value says; DecodeError when either is too short or null."""
    cdef const uint8_t* p
    cdef int16_t control_type
    if key is None or len(key) < 4:
        decode_error("a control key of 4 bytes", 0, f"got {key!r}")
    p = <const uint8_t*>PyBytes_AS_STRING(key)
    if load_i16(p) < 0:
        decode_error("a control key of version 0 or above", 0, f"got {key!r}")
    control_type = load_i16(p + 2)
    if control_type not in (CONTROL_ABORT, CONTROL_COMMIT):
        return ControlRecord(control_type, load_i16(p), -1)
    if value is None or len(value) < 6:
        decode_error("an end-transaction marker of 6 bytes", 0, f"got {value!r}")
    return ControlRecord(control_type, load_i16(p), load_i32(<const uint8_t*>PyBytes_AS_STRING(value) + 2))
