"""Record batch v2 as C structs and inline functions: what the accumulator, the fetch path and the broker build on.

Rules: no Python objects, no exceptions, no GIL. Parsers take ``end`` and never read past it; writers trust that the
caller has reserved what the size functions answered. A length of -1 is null. Source: Kafka's DefaultRecordBatch and
DefaultRecord.

    batch    0  base offset 8           17  crc32c 4 (of all that follows it)   43  producer id 8
             8  batch length 4          21  attributes 2                        51  producer epoch 2
            12  partition leader epoch 4  23  last offset delta 4                 53  base sequence 4
            16  magic 1 (= 2)           27  base timestamp 8                    57  record count 4
                                        35  max timestamp 8                     61  records, maybe compressed
    record   varint body size, attributes 1, varint timestamp delta, varint offset delta,
             varint key length, key, varint value length, value,
             varint header count, then each header: varint key length, key, varint value length, value
"""

cimport cython
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastq._native.bits cimport (
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    load_varint32,
    load_varint64,
    size_varint,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
    store_varint,
)
from fastq._native.crc32c cimport crc32c_update

cdef enum:
    BATCH_OVERHEAD_BYTES = 61
    LOG_OVERHEAD_BYTES = 12          # base offset and batch length, which the batch length does not count
    BATCH_LENGTH_MIN = 49            # BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES
    MAGIC_POSITION = 16
    CRC_POSITION = 17
    ATTRIBUTES_POSITION = 21
    MAX_TIMESTAMP_POSITION = 35

    ATTRIBUTE_CODEC = 0x07
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20
    ATTRIBUTE_DELETE_HORIZON = 0x40

    # Answers of parse_header.
    HEADER_OK = 0
    HEADER_TRUNCATED = 1             # the bytes end before the batch does
    HEADER_BAD_LENGTH = 2            # batch length below the smallest possible
    HEADER_OLD_MAGIC = 3             # a v0 or v1 message set: see legacy
    HEADER_BAD_MAGIC = 4             # no format we know

cdef struct CBatchHeader:
    int64_t base_offset
    int32_t batch_length             # bytes after this field: the batch takes 12 more
    int32_t partition_leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count

cdef struct CRecord:
    int32_t size                     # of the body, without its length varint
    int8_t attributes
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length               # -1: null
    const uint8_t* key
    int32_t value_length             # -1: null
    const uint8_t* value
    int32_t header_count
    const uint8_t* header_block      # the count and the headers, as they are stored
    const uint8_t* headers           # first header: walk with parse_record_header up to `end`
    const uint8_t* end               # first byte after the record

cdef struct CRecordHeader:
    int32_t key_length
    const uint8_t* key
    int32_t value_length             # -1: null
    const uint8_t* value


cdef inline int parse_header(const uint8_t* p, const uint8_t* end, CBatchHeader* h) noexcept nogil:
    """Read a batch header at `p`: HEADER_OK means that the whole batch lies before `end` (counts are not judged).

    After HEADER_TRUNCATED the fields are set only when 61 bytes were there; after the other answers those before `crc`.
    """
    cdef int64_t available = end - p
    if available < MAGIC_POSITION + 1:
        return HEADER_TRUNCATED
    h.base_offset = load_i64(p)
    h.batch_length = load_i32(p + 8)
    h.partition_leader_epoch = load_i32(p + 12)
    h.magic = <int8_t>p[MAGIC_POSITION]
    if h.magic != 2:
        return HEADER_OLD_MAGIC if h.magic == 0 or h.magic == 1 else HEADER_BAD_MAGIC
    if h.batch_length < BATCH_LENGTH_MIN:
        return HEADER_BAD_LENGTH
    if available < BATCH_OVERHEAD_BYTES:
        return HEADER_TRUNCATED
    h.crc = load_u32(p + CRC_POSITION)
    h.attributes = load_i16(p + ATTRIBUTES_POSITION)
    h.last_offset_delta = load_i32(p + 23)
    h.base_timestamp = load_i64(p + 27)
    h.max_timestamp = load_i64(p + MAX_TIMESTAMP_POSITION)
    h.producer_id = load_i64(p + 43)
    h.producer_epoch = load_i16(p + 51)
    h.base_sequence = load_i32(p + 53)
    h.record_count = load_i32(p + 57)
    if available - LOG_OVERHEAD_BYTES < h.batch_length:
        return HEADER_TRUNCATED
    return HEADER_OK


cdef inline void write_header(uint8_t* p, const CBatchHeader* h) noexcept nogil:
    """Write the 61 bytes of `h`, its crc included (seal_batch computes that one)."""
    store_i64(p, h.base_offset)
    store_i32(p + 8, h.batch_length)
    store_i32(p + 12, h.partition_leader_epoch)
    p[MAGIC_POSITION] = <uint8_t>h.magic
    store_u32(p + CRC_POSITION, h.crc)
    store_i16(p + ATTRIBUTES_POSITION, h.attributes)
    store_i32(p + 23, h.last_offset_delta)
    store_i64(p + 27, h.base_timestamp)
    store_i64(p + MAX_TIMESTAMP_POSITION, h.max_timestamp)
    store_i64(p + 43, h.producer_id)
    store_i16(p + 51, h.producer_epoch)
    store_i32(p + 53, h.base_sequence)
    store_i32(p + 57, h.record_count)


cdef inline const uint8_t* parse_bytes(
    const uint8_t* p, const uint8_t* end, const uint8_t** data, int32_t* length
) noexcept nogil:
    """Read a varint length and that many bytes; -1 is null, below it or past `end` is NULL."""
    p = load_varint32(p, end, length)
    if p == NULL or length[0] < -1 or length[0] > end - p:
        return NULL
    if length[0] < 0:
        data[0] = NULL
        return p
    data[0] = p
    return p + length[0]


cdef inline const uint8_t* parse_record_header(
    const uint8_t* p, const uint8_t* end, CRecordHeader* header
) noexcept nogil:
    """Read one header of a record and answer the place after it; NULL when malformed (a null key is)."""
    p = parse_bytes(p, end, &header.key, &header.key_length)
    if p == NULL or header.key_length < 0:
        return NULL
    return parse_bytes(p, end, &header.value, &header.value_length)


cdef inline const uint8_t* parse_record(const uint8_t* p, const uint8_t* end, CRecord* record) noexcept nogil:
    """Read the record at `p` and answer the place after it; NULL when it is malformed or does not end before `end`.

    Headers are walked here too, so that walking them again cannot fail.
    """
    cdef CRecordHeader header
    cdef const uint8_t* stop
    cdef int32_t i
    p = load_varint32(p, end, &record.size)
    if p == NULL or record.size < 1 or record.size > end - p:
        return NULL
    stop = p + record.size
    record.end = stop
    record.attributes = <int8_t>p[0]
    p = load_varint64(p + 1, stop, &record.timestamp_delta)
    if p == NULL:
        return NULL
    p = load_varint32(p, stop, &record.offset_delta)
    if p == NULL:
        return NULL
    p = parse_bytes(p, stop, &record.key, &record.key_length)
    if p == NULL:
        return NULL
    p = parse_bytes(p, stop, &record.value, &record.value_length)
    if p == NULL:
        return NULL
    record.header_block = p
    p = load_varint32(p, stop, &record.header_count)
    if p == NULL or record.header_count < 0:
        return NULL
    record.headers = p
    for i in range(record.header_count):
        p = parse_record_header(p, stop, &header)
        if p == NULL:
            return NULL
    return stop if p == stop else NULL


cdef inline int64_t bytes_size(int32_t length) noexcept nogil:
    """Bytes of a nullable field with its varint length; `length` is -1 for null."""
    return size_varint(length) + (<int64_t>length if length > 0 else 0)


cdef inline int64_t record_body_size(
    int64_t timestamp_delta, int32_t offset_delta, int32_t key_length, int32_t value_length, int64_t headers_size
) noexcept nogil:
    """Bytes of a record after its length varint. `headers_size` counts the header count too: 1 for no headers.

    Above INT32_MAX the record cannot be written: the caller must look.
    """
    return (
        1
        + size_varint(timestamp_delta)
        + size_varint(offset_delta)
        + bytes_size(key_length)
        + bytes_size(value_length)
        + headers_size
    )


cdef inline int64_t record_size(int64_t body_size) noexcept nogil:
    """Bytes of a whole record whose body takes `body_size`."""
    return size_varint(body_size) + body_size


cdef inline uint8_t* write_bytes(uint8_t* p, const uint8_t* data, int32_t length) noexcept nogil:
    """Write a nullable field: varint length (-1 for null), bytes. Answers the place after it."""
    p = store_varint(p, length)
    if length > 0:
        memcpy(p, data, length)
        p += length
    return p


cdef inline uint8_t* write_record_fields(
    uint8_t* p,
    int64_t body_size,
    int64_t timestamp_delta,
    int32_t offset_delta,
    const uint8_t* key,
    int32_t key_length,
    const uint8_t* value,
    int32_t value_length,
) noexcept nogil:
    """Write a record up to its value; header count (store_varint) and write_record_header are to follow."""
    p = store_varint(p, body_size)
    p[0] = 0
    p = store_varint(p + 1, timestamp_delta)
    p = store_varint(p, offset_delta)
    p = write_bytes(p, key, key_length)
    return write_bytes(p, value, value_length)


cdef inline uint8_t* write_record(
    uint8_t* p,
    int64_t body_size,
    int64_t timestamp_delta,
    int32_t offset_delta,
    const uint8_t* key,
    int32_t key_length,
    const uint8_t* value,
    int32_t value_length,
    const uint8_t* headers,
    int64_t headers_size,
) noexcept nogil:
    """Write a whole record and answer the place after it.

    `headers` are encoded bytes: varint count, then the headers; NULL (with `headers_size` 1) for none.
    """
    p = write_record_fields(
        p, body_size, timestamp_delta, offset_delta, key, key_length, value, value_length
    )
    if headers == NULL:
        p[0] = 0
        return p + 1
    memcpy(p, headers, headers_size)
    return p + headers_size


cdef inline int64_t record_header_size(int32_t key_length, int32_t value_length) noexcept nogil:
    """Bytes of one header of a record."""
    return bytes_size(key_length) + bytes_size(value_length)


cdef inline uint8_t* write_record_header(
    uint8_t* p, const uint8_t* key, int32_t key_length, const uint8_t* value, int32_t value_length
) noexcept nogil:
    """Write one header of a record and answer the place after it; the key cannot be null."""
    return write_bytes(write_bytes(p, key, key_length), value, value_length)


cdef inline void seal_batch(uint8_t* p, int64_t size) noexcept nogil:
    """Set batch length and crc of the whole batch of `size` bytes at `p`: at least 61, at most INT32_MAX."""
    store_i32(p + 8, <int32_t>(size - LOG_OVERHEAD_BYTES))
    store_u32(p + CRC_POSITION, crc32c_update(0, p + ATTRIBUTES_POSITION, <size_t>(size - ATTRIBUTES_POSITION)))


cdef inline bint crc_matches(const uint8_t* p, int64_t size) noexcept nogil:
    """Whether the crc of the whole batch of `size` bytes at `p` is right."""
    return load_u32(p + CRC_POSITION) == crc32c_update(0, p + ATTRIBUTES_POSITION, <size_t>(size - ATTRIBUTES_POSITION))


cdef inline int64_t batch_size(const CBatchHeader* h) noexcept nogil:
    """Bytes of the whole batch, header included."""
    return LOG_OVERHEAD_BYTES + <int64_t>h.batch_length


cdef inline int64_t wrapping_add(int64_t a, int64_t b) noexcept nogil:
    """a + b as Java adds: timestamps and offsets of a hostile batch may overflow."""
    return <int64_t>(<uint64_t>a + <uint64_t>b)


@cython.final
cdef class BatchHeader:
    cdef CBatchHeader fields
    cdef readonly int64_t records_max_timestamp


cdef BatchHeader wrap_header(const CBatchHeader* h)
