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
from fastq._native.texts cimport fail, take_text

cdef enum:
    FETCH_FLEXIBLE = 12    # first version with compact lengths and tagged fields
    FETCH_TOPIC_IDS = 13   # first version that names topics by id
    REPLICA_STATE = 15     # first version with the replica id in a tagged field


@cython.final
@cython.auto_pickle(False)
@cython.freelist(256)
cdef class FetchPartition:
    """What a FetchRequest asks of one partition, under Kafka's names; what its version leaves out has Kafka's default.

    `topic` is its name, or from v13 on its id, as bytes. Nothing of it changes.
    """

    cdef readonly bytes topic
    cdef readonly int32_t partition
    cdef readonly int32_t current_leader_epoch
    cdef readonly int64_t fetch_offset
    cdef readonly int32_t last_fetched_epoch
    cdef readonly int64_t log_start_offset
    cdef readonly int32_t partition_max_bytes

    def __init__(
        self,
        bytes topic not None,
        int32_t partition,
        int64_t fetch_offset,
        int32_t partition_max_bytes,
        *,
        int32_t current_leader_epoch=-1,
        int32_t last_fetched_epoch=-1,
        int64_t log_start_offset=-1,
    ):
        self.topic = topic
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.partition_max_bytes = partition_max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset


@cython.final
@cython.auto_pickle(False)
@cython.freelist(256)
cdef class PartitionData:
    """What a FetchResponse answers for one partition, under Kafka's names.

    `records` is None (none) or any object with a `size` in bytes; `aborted_transactions` None (null) or a list of (producer id, first
    offset); `diverging_epoch` None or (epoch, end offset); `current_leader` None or (id, epoch).
    """

    cdef readonly bytes topic
    cdef readonly int32_t partition
    cdef readonly int16_t error_code
    cdef readonly int64_t high_watermark
    cdef readonly int64_t last_stable_offset
    cdef readonly int64_t log_start_offset
    cdef readonly object records
    cdef readonly list aborted_transactions
    cdef readonly object diverging_epoch
    cdef public object current_leader
    cdef readonly int32_t preferred_read_replica

    def __init__(
        self,
        bytes topic not None,
        int32_t partition,
        int16_t error_code=0,
        int64_t high_watermark=-1,
        int64_t last_stable_offset=-1,
        int64_t log_start_offset=-1,
        object records=None,
        list aborted_transactions=None,
        object diverging_epoch=None,
        *,
        object current_leader=None,
        int32_t preferred_read_replica=-1,
    ):
        self.topic = topic
        self.partition = partition
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.records = records
        self.aborted_transactions = aborted_transactions
        self.diverging_epoch = diverging_epoch
        self.current_leader = current_leader
        self.preferred_read_replica = preferred_read_replica


@cython.final
@cython.auto_pickle(False)
cdef class FetchBody:
    """A decoded FetchRequest body.

    `partitions`: FetchPartition objects; `forgotten`: tuples (topic, partition); both in the request's order.
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


cdef bytes take_topic(Cursor* c, int version):
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
    cdef int32_t topic_count, partition_count
    cdef bytes topic
    cdef FetchPartition asked
    topic_count = take_count(c, flexible, 2)
    while topic_count > 0 and not c.failed:
        topic = take_topic(c, version)
        partition_count = take_count(c, flexible, 16)
        while partition_count > 0 and not c.failed:
            asked = FetchPartition.__new__(FetchPartition)
            asked.topic = topic
            asked.partition = take_i32(c)
            asked.current_leader_epoch = take_i32(c) if version >= 9 else -1
            asked.fetch_offset = take_i64(c)
            asked.last_fetched_epoch = take_i32(c) if flexible else -1
            asked.log_start_offset = take_i64(c) if version >= 5 else -1
            asked.partition_max_bytes = take_i32(c)
            if flexible:
                skip_tags(c)
            partitions.append(asked)
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

    `results` holds PartitionData objects in the request's order, partitions of a topic as neighbours; their records become parts of
    their own. `endpoints` are (node id, host, port, rack or None) of the leaders named, sent from v16.
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
    cdef int32_t topics = 0
    cdef bytes topic = None
    cdef PartitionData result
    for result in results:
        if topic is None or result.topic != topic:
            topics += 1
            topic = result.topic
    put_count(out, flexible, topics)
    while i < count:
        topic = (<PartitionData>results[i]).topic
        j = i + 1
        while j < count and (<PartitionData>results[j]).topic == topic:
            j += 1
        if output_reserve(out, PyBytes_GET_SIZE(topic) + 2 * MAX_VARINT32) == NULL:
            raise MemoryError
        if version >= FETCH_TOPIC_IDS:
            put_raw(out, PyBytes_AS_STRING(topic), 16)
        else:
            put_string(out, flexible, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        put_count(out, flexible, <int32_t>(j - i))
        while i < j:
            put_result(out, version, <PartitionData>results[i], cuts)
            i += 1
        if flexible:
            if output_reserve(out, 1) == NULL:
                raise MemoryError
            put_i8(out, 0)
    return 0


cdef int put_result(Output* out, int version, PartitionData result, list cuts) except -1:
    """One partition's answer up to its records, a cut, and its tagged fields."""
    cdef bint flexible = version >= FETCH_FLEXIBLE
    cdef object records = result.records
    cdef int32_t size
    if output_reserve(out, 72) == NULL:
        raise MemoryError
    put_i32(out, result.partition)
    put_i16(out, result.error_code)
    put_i64(out, result.high_watermark)
    put_i64(out, result.last_stable_offset)
    if version >= 5:
        put_i64(out, result.log_start_offset)
    if result.aborted_transactions is None:
        put_count(out, flexible, -1)
    else:
        put_aborted(out, flexible, result.aborted_transactions)
        if output_reserve(out, 64) == NULL:
            raise MemoryError
    if version >= 11:
        put_i32(out, result.preferred_read_replica)
    size = 0 if records is None else <int32_t>records.size
    put_count(out, flexible, size)
    if size > 0:
        cuts.append((out.length, records, size))
    if flexible:
        put_tags(out, result.diverging_epoch, result.current_leader)
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
