"""Broker-side hot path: decode Fetch, and frame its response around slices of segment files.

Rules
- Topics are raw bytes: UTF-8 names up to Fetch v12, 16-byte ids from v13. The caller's tables are keyed so.
- A response is a list of parts: framing as bytes, and between them the caller's own record slices, untouched.
- Whatever is malformed raises DecodeError; the generated messages are the oracle of every version (see the tests).
- Bytes behind a body are let pass, as Apache Kafka does: some clients send a few too many.
"""

import cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from fastq._native.bits cimport MAX_VARINT32, store_i32
from fastq._native.cursor cimport (
    Cursor,
    Output,
    output_free,
    output_reserve,
    output_start,
    put_count,
    put_i8,
    put_i16,
    put_i32,
    put_i64,
    put_raw,
    put_string,
    put_uvarint,
    skip_tags,
    take,
    take_count,
    take_i8,
    take_i32,
    take_i64,
    take_string,
    take_uvarint,
)
from fastq._native.texts cimport count_topics, fail, take_text

cdef enum:
    FETCH_FLEXIBLE = 12    # first version with compact lengths and tagged fields
    FETCH_TOPIC_IDS = 13   # first version that names topics by id
    REPLICA_STATE = 15     # first version with the replica id in a tagged field


@cython.final
@cython.auto_pickle(False)
cdef class FetchBody:
    """A decoded FetchRequest body.

    `partitions`: tuples (topic, partition, current_leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset,
    partition_max_bytes), absent fields at their defaults; `forgotten`: tuples (topic, partition); both in the request's order.
    """

    cdef readonly int32_t replica_id
    cdef readonly int64_t replica_epoch
    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly int8_t isolation_level
    cdef readonly int32_t session_id
    cdef readonly int32_t session_epoch
    cdef readonly list partitions
    cdef readonly list forgotten
    cdef readonly str rack_id
    cdef readonly object cluster_id


def decode_fetch(object data, Py_ssize_t start, Py_ssize_t end, int version) -> FetchBody:
    """Decode the body of a FetchRequest (v4 to v18) that lies at `data[start:end]`."""
    cdef Py_buffer view
    cdef Cursor c
    cdef FetchBody body = FetchBody.__new__(FetchBody)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len or start > end:
            raise IndexError("body bounds lie outside the buffer")
        c.p = <const uint8_t*>view.buf + start
        c.end = <const uint8_t*>view.buf + end
        c.failed = False
        take_body(&c, version, body)
        if c.failed:
            fail("a whole body", c.p - <const uint8_t*>view.buf, f"{end - start} bytes", f"FetchRequest v{version}")
        return body
    finally:
        PyBuffer_Release(&view)


cdef int take_body(Cursor* c, int version, FetchBody body) except -1:
    cdef bint flexible = version >= FETCH_FLEXIBLE
    body.replica_id = take_i32(c) if version < REPLICA_STATE else -1
    body.replica_epoch = -1
    body.cluster_id = None
    body.max_wait_ms = take_i32(c)
    body.min_bytes = take_i32(c)
    body.max_bytes = take_i32(c)
    body.isolation_level = take_i8(c)
    if version >= 7:
        body.session_id = take_i32(c)
        body.session_epoch = take_i32(c)
    else:
        body.session_id = 0
        body.session_epoch = -1
    body.partitions = []
    take_topics(c, version, body.partitions)
    body.forgotten = []
    if version >= 7:
        take_forgotten(c, version, body.forgotten)
    body.rack_id = ""
    if version >= 11:
        body.rack_id = take_text(c, flexible)
        if body.rack_id is None:
            c.failed = True
            body.rack_id = ""
    if flexible:
        take_body_tags(c, version, body)
    return 0


cdef object take_topic(Cursor* c, int version):
    """A topic's name or id as bytes."""
    cdef int32_t size = 16
    cdef const uint8_t* p
    if version >= FETCH_TOPIC_IDS:
        p = take(c, size)
    else:
        p = take_string(c, version >= FETCH_FLEXIBLE, &size)
    if p == NULL:
        c.failed = True
        return b""
    return PyBytes_FromStringAndSize(<const char*>p, size)


cdef int take_topics(Cursor* c, int version, list partitions) except -1:
    cdef bint flexible = version >= FETCH_FLEXIBLE
    cdef int32_t topic_count, partition_count, index, leader_epoch, fetched_epoch, bytes_max
    cdef int64_t offset, log_start
    cdef object topic
    topic_count = take_count(c, flexible, 2)
    while topic_count > 0 and not c.failed:
        topic = take_topic(c, version)
        partition_count = take_count(c, flexible, 16)
        while partition_count > 0 and not c.failed:
            index = take_i32(c)
            leader_epoch = take_i32(c) if version >= 9 else -1
            offset = take_i64(c)
            fetched_epoch = take_i32(c) if flexible else -1
            log_start = take_i64(c) if version >= 5 else -1
            bytes_max = take_i32(c)
            if flexible:
                skip_tags(c)
            partitions.append((topic, index, leader_epoch, offset, fetched_epoch, log_start, bytes_max))
            partition_count -= 1
        if flexible:
            skip_tags(c)
        topic_count -= 1
    return 0


cdef int take_forgotten(Cursor* c, int version, list forgotten) except -1:
    cdef bint flexible = version >= FETCH_FLEXIBLE
    cdef int32_t partition_count
    cdef int32_t topic_count = take_count(c, flexible, 2)
    cdef object topic
    while topic_count > 0 and not c.failed:
        topic = take_topic(c, version)
        partition_count = take_count(c, flexible, 4)
        while partition_count > 0 and not c.failed:
            forgotten.append((topic, take_i32(c)))
            partition_count -= 1
        if flexible:
            skip_tags(c)
        topic_count -= 1
    return 0


cdef int take_body_tags(Cursor* c, int version, FetchBody body) except -1:
    """Tagged fields of the body: 0 the cluster id, 1 (from v15) the replica's id and epoch; others are skipped."""
    cdef uint32_t count = take_uvarint(c)
    cdef uint32_t tag, size
    cdef const uint8_t* p
    cdef Cursor field
    while count > 0 and not c.failed:
        tag = take_uvarint(c)
        size = take_uvarint(c)
        p = take(c, size)
        count -= 1
        if p == NULL:
            break
        field.p = p
        field.end = p + size
        field.failed = False
        if tag == 0:
            body.cluster_id = take_text(&field, True)
        elif tag == 1 and version >= REPLICA_STATE:
            body.replica_id = take_i32(&field)
            body.replica_epoch = take_i64(&field)
            skip_tags(&field)
        else:
            continue
        if field.failed or field.p != field.end:
            c.failed = True
    return 0


def encode_fetch_response(
    int version,
    int32_t correlation_id,
    int32_t throttle_time_ms,
    int16_t error_code,
    int32_t session_id,
    list results,
    list endpoints=None,
):
    """Frame a whole FetchResponse (v4 to v18), its size field included; answers the list of its parts.

    `results` holds (topic as bytes, partition, error_code, high_watermark, last_stable_offset, log_start_offset,
    aborted, preferred_read_replica, records, diverging, leader) in the request's order, partitions of a topic as
    neighbours. `records` is None (none) or any object with a `size` in bytes, and becomes a part of its own; `aborted` is None
    (null) or a list of (producer id, first offset); `diverging` is None or (epoch, end offset); `leader` None or (id, epoch).
    `endpoints` are (node id, host, port, rack or None) of the leaders named, sent from v16.
    """
    cdef Output out
    cdef list cuts = []
    cdef bint flexible = version >= FETCH_FLEXIBLE
    if not output_start(&out, 128):
        raise MemoryError
    try:
        put_i32(&out, 0)
        put_i32(&out, correlation_id)
        if flexible:
            put_i8(&out, 0)
        put_i32(&out, throttle_time_ms)
        if version >= 7:
            put_i16(&out, error_code)
            put_i32(&out, session_id)
        put_topics(&out, version, results, cuts)
        if flexible:
            put_endpoints(&out, endpoints if version >= 16 else None)
        return split(&out, cuts)
    finally:
        output_free(&out)


cdef list split(Output* out, list cuts):
    """Patch the frame's size and cut the framing where the records go; `cuts` are (position, records, size)."""
    cdef list parts = []
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t position
    cdef int64_t total = out.length - 4
    cdef object records
    for position, records, size in cuts:
        total += <int64_t>size
    if total > 0x7FFFFFFF:
        raise OverflowError(f"a fetch response of {total} bytes does not fit a frame")
    store_i32(out.data, <int32_t>total)
    for position, records, size in cuts:
        parts.append(PyBytes_FromStringAndSize(<const char*>out.data + start, position - start))
        parts.append(records)
        start = position
    if start < out.length:
        parts.append(PyBytes_FromStringAndSize(<const char*>out.data + start, out.length - start))
    return parts


cdef int put_topics(Output* out, int version, list results, list cuts) except -1:
    """The array of topics; neighbours of one topic share an element."""
    cdef bint flexible = version >= FETCH_FLEXIBLE
    cdef Py_ssize_t count = len(results)
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    cdef bytes topic
    put_count(out, flexible, count_topics(results))
    while i < count:
        topic = (<tuple>results[i])[0]
        j = i + 1
        while j < count and (<tuple>results[j])[0] == topic:
            j += 1
        if output_reserve(out, PyBytes_GET_SIZE(topic) + 2 * MAX_VARINT32) == NULL:
            raise MemoryError
        if version >= FETCH_TOPIC_IDS:
            put_raw(out, PyBytes_AS_STRING(topic), 16)
        else:
            put_string(out, flexible, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        put_count(out, flexible, <int32_t>(j - i))
        while i < j:
            put_result(out, version, <tuple>results[i], cuts)
            i += 1
        if flexible:
            if output_reserve(out, 1) == NULL:
                raise MemoryError
            put_i8(out, 0)
    return 0


cdef int put_result(Output* out, int version, tuple result, list cuts) except -1:
    """One partition's answer up to its records, a cut, and its tagged fields."""
    cdef bint flexible = version >= FETCH_FLEXIBLE
    cdef object aborted = result[6]
    cdef object records = result[8]
    cdef int32_t size
    if output_reserve(out, 64) == NULL:
        raise MemoryError
    put_i32(out, <int32_t>result[1])
    put_i16(out, <int16_t>result[2])
    put_i64(out, <int64_t>result[3])
    put_i64(out, <int64_t>result[4])
    if version >= 5:
        put_i64(out, <int64_t>result[5])
    if aborted is None:
        put_count(out, flexible, -1)
    else:
        put_aborted(out, flexible, aborted)
        if output_reserve(out, 64) == NULL:
            raise MemoryError
    if version >= 11:
        put_i32(out, <int32_t>result[7])
    size = 0 if records is None else <int32_t>records.size
    put_count(out, flexible, size)
    if size > 0:
        cuts.append((out.length, records, size))
    if flexible:
        put_tags(out, result[9], result[10])
    return 0


cdef int put_aborted(Output* out, bint flexible, list aborted) except -1:
    put_count(out, flexible, <int32_t>len(aborted))
    for producer_id, first_offset in aborted:
        if output_reserve(out, 17) == NULL:
            raise MemoryError
        put_i64(out, <int64_t>producer_id)
        put_i64(out, <int64_t>first_offset)
        if flexible:
            put_i8(out, 0)
    return 0


cdef int put_tags(Output* out, object diverging, object leader) except -1:
    """Tagged fields of a partition: 0 the diverging epoch, 1 the current leader. The caller has reserved the room."""
    put_uvarint(out, (diverging is not None) + (leader is not None))
    if diverging is not None:
        put_i8(out, 0)
        put_i8(out, 13)
        put_i32(out, <int32_t>diverging[0])
        put_i64(out, <int64_t>diverging[1])
        put_i8(out, 0)
    if leader is not None:
        put_i8(out, 1)
        put_i8(out, 9)
        put_i32(out, <int32_t>leader[0])
        put_i32(out, <int32_t>leader[1])
        put_i8(out, 0)
    return 0


cdef int put_endpoints(Output* out, list endpoints) except -1:
    """The body's tagged fields: 0 the endpoints of the leaders named."""
    cdef Output field
    if output_reserve(out, 1) == NULL:
        raise MemoryError
    if not endpoints:
        put_i8(out, 0)
        return 0
    if not output_start(&field, 128):
        raise MemoryError
    try:
        put_count(&field, True, <int32_t>len(endpoints))
        for node_id, host, port, rack in endpoints:
            put_endpoint(&field, <int32_t>node_id, (<str>host).encode(), <int32_t>port, None if rack is None else rack.encode())
        if output_reserve(out, field.length + 2 + MAX_VARINT32) == NULL:
            raise MemoryError
        put_i8(out, 1)
        put_i8(out, 0)
        put_uvarint(out, <uint32_t>field.length)
        put_raw(out, field.data, field.length)
    finally:
        output_free(&field)
    return 0


cdef int put_endpoint(Output* out, int32_t node_id, bytes host, int32_t port, bytes rack) except -1:
    cdef Py_ssize_t rack_bytes = -1 if rack is None else PyBytes_GET_SIZE(rack)
    if output_reserve(out, PyBytes_GET_SIZE(host) + max(rack_bytes, 0) + 2 * MAX_VARINT32 + 9) == NULL:
        raise MemoryError
    put_i32(out, node_id)
    put_string(out, True, PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host))
    put_i32(out, port)
    put_string(out, True, NULL if rack is None else PyBytes_AS_STRING(rack), rack_bytes)
    put_i8(out, 0)
    return 0
