"""Message sets of the formats before record batches, v0 and v1: reading only.

Rules
- As everywhere: bounds first, DecodeError for what is malformed, nothing read past the end.
- A message set ends where the bytes end, before a message that is cut off, or where another format begins.
- A compressed message wraps a message set of the same version, which must not be compressed again and not be empty.
Every message, big-endian (Kafka's LegacyRecord; crc is zlib's CRC-32 of all that follows it):
    offset 8, size 4 of what follows, crc 4, magic 1 (0 or 1), attributes 1 (bits 0-2 codec, bit 3 log-append time),
    in v1 timestamp 8, key length 4 (-1 null), key, value length 4 (-1 null), value
Offsets inside a wrapper are absolute in v0; in v1 they are relative, and the wrapper has the absolute one of the last.
"""

from zlib import crc32 as _crc32

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t

from fastq._native.batch_codec cimport DecodedRecord, nullable
from fastq._native.bits cimport load_i32, load_i64, load_u32
from fastq._native.records cimport wrapping_add

from fastq._native.batch_codec import DECOMPRESSED_BYTES_MAX as _DECOMPRESSED_BYTES_MAX

cdef enum:
    ENTRY_OVERHEAD = 12          # offset and size
    MAGIC_AT = 16
    SIZE_MIN_V0 = 14             # crc, magic, attributes, two lengths
    SIZE_MIN_V1 = 22             # and the timestamp
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    LZ4 = 3
    NO_WRAPPER = -1

cdef struct Message:
    int64_t offset
    int32_t size
    uint32_t crc
    int8_t magic
    uint8_t attributes
    int64_t timestamp
    int32_t key_length
    const uint8_t* key
    int32_t value_length
    const uint8_t* value


cdef int malformed(expected, Py_ssize_t position, detail) except -1:
    """The cold end of every check."""
    from fastq._native.wire import DecodeError

    raise DecodeError(expected, position, detail, "a message set")


cdef const uint8_t* take_nullable(
    const uint8_t* p, const uint8_t* end, const uint8_t** data, int32_t* length
) noexcept nogil:
    """Read an int32 length and that many bytes; NULL when it is below -1 or reaches past `end`."""
    if end - p < 4:
        return NULL
    length[0] = load_i32(p)
    p += 4
    data[0] = p
    if length[0] < -1 or length[0] > end - p:
        return NULL
    return p + length[0] if length[0] > 0 else p


cdef Py_ssize_t take_message(const uint8_t* start, Py_ssize_t position, Py_ssize_t end, Message* m) except -1:
    """Read the message at `position`; answers the position after it, 0 when it is cut off or of another format."""
    cdef const uint8_t* p = start + position
    cdef const uint8_t* stop
    if end - position <= MAGIC_AT:
        return 0
    m.magic = <int8_t>p[MAGIC_AT]
    if m.magic != 0 and m.magic != 1:
        return 0
    m.offset = load_i64(p)
    m.size = load_i32(p + 8)
    if m.size < (SIZE_MIN_V1 if m.magic else SIZE_MIN_V0):
        malformed("a message size that fits its version", position + 8, f"got {m.size}")
    if m.size > end - position - ENTRY_OVERHEAD:
        return 0
    stop = p + ENTRY_OVERHEAD + m.size
    m.crc = load_u32(p + 12)
    m.attributes = p[17]
    p += 18
    m.timestamp = -1
    if m.magic == 1:
        m.timestamp = load_i64(p)
        p += 8
    m.key = m.value = NULL
    m.key_length = m.value_length = -1
    p = take_nullable(p, stop, &m.key, &m.key_length)
    if p != NULL:
        p = take_nullable(p, stop, &m.value, &m.value_length)
    if p == NULL or p != stop:
        malformed("a key and a value that fill their message", position, f"a message of {m.size} bytes has others")
    return position + ENTRY_OVERHEAD + m.size


cdef DecodedRecord record_of(const Message* m):
    cdef DecodedRecord record = DecodedRecord.__new__(DecodedRecord)
    record.offset = m.offset
    record.timestamp_ms = m.timestamp
    record.timestamp_type = -1 if m.magic == 0 else (1 if m.attributes & LOG_APPEND_TIME else 0)
    record.key = nullable(m.key, m.key_length)
    record.value = nullable(m.value, m.value_length)
    record.headers = []
    return record


cdef Py_ssize_t read_set(
    data, Py_ssize_t start, Py_ssize_t end, int wrapper_magic, list out, _Options options
) except -1:
    """Append the records of `data[start:end]` to `out`; answers where the set ends. In a wrapper it must fill it."""
    cdef Py_buffer view
    cdef Message m
    cdef Py_ssize_t position = start
    cdef Py_ssize_t after
    cdef const uint8_t* p
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        while position < end:
            after = take_message(p, position, end, &m)
            if after == 0:
                break
            if wrapper_magic != NO_WRAPPER and m.magic != wrapper_magic:
                malformed(f"wrapped messages of version {wrapper_magic}", position, f"got {m.magic}")
            if options.check_crc and _crc32(slice_of(data, position + MAGIC_AT, after)) != m.crc:
                malformed(f"a message whose CRC is {m.crc:#010x}", position + 12, "it has another")
            if not m.attributes & CODEC_MASK:
                out.append(record_of(&m))
            elif wrapper_magic != NO_WRAPPER:
                malformed("wrapped messages without compression", position, "one is compressed again")
            else:
                unwrap(&m, position, out, options)
            position = after
    finally:
        PyBuffer_Release(&view)
    if wrapper_magic != NO_WRAPPER and position != end:
        malformed("whole messages in a wrapper", position, f"{end - position} bytes are left")
    return position


cdef int unwrap(const Message* m, Py_ssize_t position, list out, _Options options) except -1:
    """Append the records that the compressed message `m` wraps, with their absolute offsets and timestamps."""
    cdef DecodedRecord record
    cdef int codec = m.attributes & CODEC_MASK
    cdef list records = []
    cdef int64_t base
    if m.value_length < 0:
        malformed("a compressed message set", position, "the message has no value")
    packed = nullable(m.value, m.value_length)
    if codec == LZ4 and m.magic == 0:
        plain = unpack_lz4_v0(packed, options)
    else:
        plain = options.decompress(codec, packed, options.limit_bytes)
    read_set(plain, 0, len(plain), m.magic, records, options)
    if not records:
        malformed("messages in a wrapper", position, "it is empty")
    if m.magic == 1:
        base = wrapping_add(m.offset, -(<DecodedRecord>records[len(records) - 1]).offset)
        for record in records:
            record.offset = wrapping_add(base, record.offset)
            if m.attributes & LOG_APPEND_TIME:
                record.timestamp_ms = m.timestamp
                record.timestamp_type = 1
    out.extend(records)
    return 0


@cython.final
cdef class _Options:
    """What one call of decode_message_set was asked for."""

    cdef object decompress
    cdef Py_ssize_t limit_bytes
    cdef bint check_crc


cdef object slice_of(data, Py_ssize_t start, Py_ssize_t end):
    view = memoryview(data)
    return (view if view.format == "B" else view.cast("B"))[start:end]



def decode_message_set(
    data,
    Py_ssize_t start=0,
    end=None,
    decompress=None,
    *,
    bint check_crc=True,
    Py_ssize_t limit_bytes=_DECOMPRESSED_BYTES_MAX,
):
    """All records of the message set in `data[start:end]`, as DecodedRecord, and the position at which it ends.

    That is `end`, or where a message is cut off, or where another format begins (then read on with records).
    `decompress(codec, data, limit_bytes)` is fastq.compression's unless given; a wrapper that would unpack to more than
    `limit_bytes` is refused. Raises DecodeError for a malformed message, a wrong CRC unless `check_crc` is off, and MissingPackage
    where what a compressed one needs is not installed.
    """
    cdef _Options options = _Options()
    cdef list records = []
    cdef Py_ssize_t size = memoryview(data).nbytes
    cdef Py_ssize_t stop = size if end is None else end
    if not 0 <= start <= stop <= size:
        raise ValueError(f"range {start}:{stop} is outside of a buffer of {size} bytes")
    if decompress is None:
        from fastq.compression import decompress
    options.decompress = decompress
    options.limit_bytes = limit_bytes
    options.check_crc = check_crc
    position = read_set(data, start, stop, NO_WRAPPER, records, options)
    return records, position


# --- LZ4 in v0


cdef object unpack_lz4_v0(bytes frame, _Options options):
    """Clients of v0 computed the descriptor's checksum over the magic as well (KAFKA-3160): put the right one in.

    Frame: magic 4, flags 1 (bit 3: content size 8 follows), block descriptor 1, checksum 1.
    """
    cdef Py_ssize_t at
    cdef const uint8_t* p = frame
    at = 14 if len(frame) > 4 and p[4] & 0x08 else 6
    if len(frame) <= at:
        return options.decompress(LZ4, frame, options.limit_bytes)
    missing = None
    try:
        from xxhash import xxh32_intdigest  # here alone: who reads nothing so old has no use of it
    except ImportError as error:
        missing = error
    if missing is not None:
        return unpack_lz4_as_it_stands(frame, options, missing)
    fixed = bytearray(frame)
    fixed[at] = xxh32_intdigest(frame[4:at]) >> 8 & 0xFF
    return options.decompress(LZ4, fixed, options.limit_bytes)


cdef object unpack_lz4_as_it_stands(bytes frame, _Options options, object missing):
    """Without the package for the right checksum, which later clients have written."""
    from fastq._native.wire import DecodeError
    from fastq.errors import MissingPackage

    try:
        return options.decompress(LZ4, frame, options.limit_bytes)
    except DecodeError as error:
        if "headerChecksum" not in str(error):
            raise
    raise MissingPackage.needed(
        "an LZ4 message of format v0 whose header has the checksum of old clients", "xxhash", missing
    ) from missing
