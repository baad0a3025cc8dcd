"""Fetch responses: found where they were received, decoded without touching a record.

Rules
- Versions 4 to 18; the generated FetchResponse is the oracle of every one of them (see the tests).
- Records are not copied: a partition knows where its bytes lie in the response, which it keeps alive.
- Batches are only hopped over here, to learn the offset that follows them, so that the next fetch can go out before
  a record is looked at; checksums and records are judged when they are handed out (fastq._native.consume).
- Whatever is malformed raises DecodeError.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t

from fastq._native.bits cimport load_i32, load_i64
from fastq._native.cursor cimport (
    Cursor,
    cursor_fail,
    skip_tags,
    take,
    take_bytes,
    take_count,
    take_i16,
    take_i32,
    take_i64,
    take_string,
    take_uvarint,
)
from fastq._native.records cimport (
    BATCH_OVERHEAD_BYTES,
    HEADER_OK,
    HEADER_OLD_MAGIC,
    LOG_OVERHEAD_BYTES,
    CBatchHeader,
    parse_header,
)

cdef enum:
    VERSION_MIN = 4
    VERSION_MAX = 18
    LOG_START_OFFSET_FROM = 5
    SESSIONS_FROM = 7
    PREFERRED_REPLICA_FROM = 11
    FLEXIBLE_FROM = 12
    TOPIC_IDS_FROM = 13
    NODE_ENDPOINTS_FROM = 16

    TAG_DIVERGING_EPOCH = 0
    TAG_CURRENT_LEADER = 1
    TAG_NODE_ENDPOINTS = 0


cdef int fail(str message) except -1:
    """Raise DecodeError; kept out of line, as it is never on the hot path."""
    from fastq._native.wire import DecodeError
    raise DecodeError("a fetch response", 0, message)


@cython.final
cdef class FetchedPartition:
    """One partition of a fetch response.

    `start` and `size_bytes` say where its records lie in the response; `whole_bytes` counts those of the batches that
    are complete; `next_offset` is the offset after them and `last_leader_epoch` that of the last (-1 when there is none).
    Fields that the version does not have are -1; `topic` is None from version 13 on, `topic_id` None before. `aborted` is
    the list of (producer id, first offset) of aborted transactions, or None.
    """

    @property
    def records(self):
        """The record bytes, a view of the response."""
        return memoryview(self.buffer)[self.start:self.start + self.size_bytes]

    def __repr__(self):
        return (
            f"FetchedPartition(topic={self.topic!r}, partition={self.partition}, error_code={self.error_code}, "
            f"high_watermark={self.high_watermark}, size_bytes={self.size_bytes})"
        )


@cython.final
cdef class FetchedResponse:
    """A decoded fetch response. `nodes` lists (node id, host, port, rack or None) of leaders that moved (version 16+)."""

    cdef readonly int32_t throttle_time_ms
    cdef readonly int16_t error_code
    cdef readonly int32_t session_id
    cdef readonly list partitions
    cdef readonly list nodes
    cdef readonly Py_ssize_t size_bytes

    def __repr__(self):
        return (
            f"FetchedResponse(error_code={self.error_code}, session_id={self.session_id}, "
            f"partitions={self.partitions!r})"
        )


cdef object text(const uint8_t* p, int32_t length, Cursor* c):
    """A string that must not be null, as str."""
    if p == NULL:
        cursor_fail(c)
        return None
    try:
        return PyUnicode_DecodeUTF8(<const char*>p, length, NULL)
    except UnicodeDecodeError:
        fail("a string is not UTF-8")


cdef void scan_batches(FetchedPartition part, const uint8_t* p, const uint8_t* end) noexcept:
    """Hop over the batches of `part`: sets `whole_bytes` and `next_offset`. Stops at what is no batch: that is
    reported when the records are handed out.
    """
    cdef CBatchHeader h
    cdef const uint8_t* start = p
    cdef int64_t size
    cdef int64_t following
    cdef int status
    part.next_offset = part.last_leader_epoch = -1
    while True:
        status = parse_header(p, end, &h)
        if status == HEADER_OK:
            size = LOG_OVERHEAD_BYTES + <int64_t>h.batch_length
            if h.last_offset_delta < 0:
                break
            following = h.base_offset + h.last_offset_delta
            part.last_leader_epoch = h.partition_leader_epoch
        elif status == HEADER_OLD_MAGIC:
            size = LOG_OVERHEAD_BYTES + <int64_t>load_i32(p + 8)
            following = load_i64(p)
            if size <= LOG_OVERHEAD_BYTES or size > end - p:
                break
        else:
            break
        if following < 0 or following == INT64_MAX or h.base_offset < 0:
            break
        p += size
        part.next_offset = following + 1
    part.whole_bytes = p - start


cdef int read_partition_tags(FetchedPartition part, Cursor* c) except -1:
    """The tagged fields of a partition; those of replicas (snapshot id) and unknown ones are skipped."""
    cdef uint32_t count = take_uvarint(c)
    cdef uint32_t tag
    cdef uint32_t size
    cdef Cursor field
    while count > 0 and not c.failed:
        count -= 1
        tag = take_uvarint(c)
        size = take_uvarint(c)
        field.p = take(c, size)
        if field.p == NULL:
            return 0
        field.end = field.p + size
        field.failed = False
        if tag == TAG_DIVERGING_EPOCH:
            part.diverging_epoch = take_i32(&field)
            part.diverging_end_offset = take_i64(&field)
        elif tag == TAG_CURRENT_LEADER:
            part.current_leader_id = take_i32(&field)
            part.current_leader_epoch = take_i32(&field)
        if field.failed:
            cursor_fail(c)
    return 0


cdef list read_aborted(Cursor* c, bint flexible):
    """The aborted transactions of a partition; null is None."""
    cdef const uint8_t* p = c.p
    cdef int32_t count
    cdef list aborted = []
    if flexible:
        if p < c.end and p[0] == 0:
            c.p = p + 1
            return None
    elif c.end - p >= 4 and load_i32(p) == -1:
        c.p = p + 4
        return None
    count = take_count(c, flexible, 17 if flexible else 16)
    while count > 0 and not c.failed:
        count -= 1
        aborted.append((take_i64(c), take_i64(c)))
        if flexible:
            skip_tags(c)
    return aborted


cdef FetchedPartition read_partition(Cursor* c, int version, object buffer, const uint8_t* base):
    cdef FetchedPartition part = FetchedPartition.__new__(FetchedPartition)
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef const uint8_t* records
    cdef int32_t length = 0
    part.buffer = buffer
    part.partition = take_i32(c)
    part.error_code = take_i16(c)
    part.high_watermark = take_i64(c)
    part.last_stable_offset = take_i64(c)
    part.log_start_offset = take_i64(c) if version >= LOG_START_OFFSET_FROM else -1
    part.diverging_epoch = part.current_leader_id = part.current_leader_epoch = -1
    part.diverging_end_offset = -1
    part.aborted = read_aborted(c, flexible)
    part.preferred_read_replica = take_i32(c) if version >= PREFERRED_REPLICA_FROM else -1
    records = take_bytes(c, flexible, &length)
    part.next_offset = part.last_leader_epoch = -1
    if records != NULL:
        part.start = records - base
        part.size_bytes = length
        scan_batches(part, records, records + length)
    if flexible:
        read_partition_tags(part, c)
    return part


cdef int read_topics(FetchedResponse response, Cursor* c, int version, object buffer, const uint8_t* base) except -1:
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef int32_t topics = take_count(c, flexible, 4)
    cdef int32_t partitions
    cdef int32_t length = 0
    cdef const uint8_t* p
    cdef FetchedPartition part
    while topics > 0 and not c.failed:
        topics -= 1
        topic = None
        topic_id = None
        if version >= TOPIC_IDS_FROM:
            p = take(c, 16)
            if p != NULL:
                topic_id = PyBytes_FromStringAndSize(<const char*>p, 16)
        else:
            p = take_string(c, flexible, &length)
            topic = text(p, length, c)
        partitions = take_count(c, flexible, 27)
        while partitions > 0 and not c.failed:
            partitions -= 1
            part = read_partition(c, version, buffer, base)
            part.topic = topic
            part.topic_id = topic_id
            response.partitions.append(part)
        if flexible:
            skip_tags(c)
    return 0


cdef int read_nodes(FetchedResponse response, Cursor* c, int version) except -1:
    """The tagged fields of the response: from version 16 on, where leaders that moved can be reached."""
    cdef uint32_t count = take_uvarint(c)
    cdef uint32_t tag
    cdef uint32_t size
    cdef int32_t nodes
    cdef int32_t length = 0
    cdef const uint8_t* p
    cdef Cursor field
    while count > 0 and not c.failed:
        count -= 1
        tag = take_uvarint(c)
        size = take_uvarint(c)
        field.p = take(c, size)
        if field.p == NULL:
            return 0
        field.end = field.p + size
        field.failed = False
        if tag != TAG_NODE_ENDPOINTS or version < NODE_ENDPOINTS_FROM:
            continue
        nodes = take_count(&field, True, 11)
        while nodes > 0 and not field.failed:
            nodes -= 1
            node_id = take_i32(&field)
            p = take_string(&field, True, &length)
            host = text(p, length, &field)
            port = take_i32(&field)
            p = take_string(&field, True, &length)
            rack = None if p == NULL else text(p, length, &field)
            skip_tags(&field)
            response.nodes.append((node_id, host, port, rack))
        if field.failed:
            cursor_fail(c)
    return 0


def decode_fetch_response(object buffer, int version, Py_ssize_t start=0):
    """Decode the body of a fetch response, which begins at `start` of `buffer` and ends with it.

    `buffer` is any contiguous bytes-like object; it stays referenced by the partitions. Raises DecodeError when the
    bytes are not a fetch response of that version, ValueError for a version outside 4 to 18.
    """
    cdef FetchedResponse response = FetchedResponse.__new__(FetchedResponse)
    cdef Py_buffer view
    cdef Cursor c
    cdef const uint8_t* base
    if version < VERSION_MIN or version > VERSION_MAX:
        raise ValueError(f"fetch response version {version} is not one of {VERSION_MIN} to {VERSION_MAX}")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len:
            raise ValueError(f"start {start} lies outside a buffer of {view.len} bytes")
        base = <const uint8_t*>view.buf
        c.p = base + start
        c.end = base + view.len
        c.failed = False
        response.size_bytes = view.len - start
        response.partitions = []
        response.nodes = []
        response.throttle_time_ms = take_i32(&c)
        if version >= SESSIONS_FROM:
            response.error_code = take_i16(&c)
            response.session_id = take_i32(&c)
        read_topics(response, &c, version, buffer, base)
        if version >= FLEXIBLE_FROM:
            read_nodes(response, &c, version)
        if c.failed or c.p != c.end:
            fail(f"{view.len - start} bytes are malformed as version {version}")
    finally:
        PyBuffer_Release(&view)
    return response
