"""Broker-side hot path: find requests in received bytes, decode Produce, encode its response.

Rules
- Frames are read where they were received; records are never copied, only their bounds are reported.
- Topics come out as raw bytes: UTF-8 names up to Produce v12, 16-byte ids from v13. The caller's tables are keyed so.
- Whatever is malformed raises DecodeError; the generated messages are the oracle of every version (see the tests).
- Bytes behind a body are let pass, as Apache Kafka does: some clients send a few too many.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from fastq._native.bits cimport MAX_VARINT32, load_i32, store_i32
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
    skip_tags,
    take,
    take_bytes,
    take_count,
    take_i16,
    take_i32,
    take_string,
)
from fastq._native.texts cimport fail, take_text

cdef enum:
    PRODUCE_FLEXIBLE = 9     # first version with compact lengths and tagged fields
    PRODUCE_TOPIC_IDS = 13   # first version that names topics by id
    NEVER_FLEXIBLE = 255
    HEADER_BYTES_MIN = 10    # api key, version, correlation id, client id length


def scan_request(object data, Py_ssize_t position, Py_ssize_t end, bytes flexible_versions, int32_t bytes_max):
    """Find the request frame that starts at `position` (at its size field) of the bytes received up to `end`.

    `flexible_versions[api_key]` is the first version with request header v2, 255 for never. Answers the header as
    (api_key, api_version, correlation_id, client_id or None, body start, frame end); None when the frame is not complete.
    Raises DecodeError for a size below a header's or above `bytes_max`, and for a malformed header.
    """
    cdef Py_buffer view
    cdef Cursor c
    cdef const uint8_t* base
    cdef int32_t size
    cdef int16_t api_key, api_version
    cdef int32_t correlation_id, client_id_bytes
    cdef const uint8_t* client_id
    cdef int first_flexible
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if end > view.len or position < 0:
            raise IndexError("frame bounds lie outside the buffer")
        base = <const uint8_t*>view.buf
        if end - position < 4:
            return None
        size = load_i32(base + position)
        if size < HEADER_BYTES_MIN or size > bytes_max:
            fail(f"a size from {HEADER_BYTES_MIN} to {bytes_max}", position, f"{size}", "the size field of a request")
        if end - position - 4 < size:
            return None
        c.p = base + position + 4
        c.end = c.p + size
        c.failed = False
        api_key = take_i16(&c)
        api_version = take_i16(&c)
        correlation_id = take_i32(&c)
        client_id = take_string(&c, False, &client_id_bytes)
        first_flexible = NEVER_FLEXIBLE
        if 0 <= api_key < PyBytes_GET_SIZE(flexible_versions):
            first_flexible = <uint8_t>PyBytes_AS_STRING(flexible_versions)[api_key]
        if api_version >= first_flexible:
            skip_tags(&c)
        if c.failed:
            fail("a request header", position, f"it does not fit the frame of {size} bytes", f"api key {api_key}")
        return (
            api_key,
            api_version,
            correlation_id,
            None if client_id == NULL else PyBytes_FromStringAndSize(<const char*>client_id, client_id_bytes),
            c.p - base,
            c.end - base,
        )
    finally:
        PyBuffer_Release(&view)


def decode_produce(object data, Py_ssize_t start, Py_ssize_t end, int version):
    """Decode the body of a ProduceRequest (v3 to v13) that lies at `data[start:end]`.

    Answers (transactional_id or None, acks, timeout_ms, partitions), where partitions is a flat list of
    (topic name or id as bytes, partition, start of the records, end of the records); null records start at -1.
    """
    cdef Py_buffer view
    cdef Cursor c
    cdef list partitions = []
    cdef object transactional_id
    cdef int16_t acks
    cdef int32_t timeout_ms
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len or start > end:
            raise IndexError("body bounds lie outside the buffer")
        c.p = <const uint8_t*>view.buf + start
        c.end = <const uint8_t*>view.buf + end
        c.failed = False
        transactional_id = take_text(&c, version >= PRODUCE_FLEXIBLE)
        acks = take_i16(&c)
        timeout_ms = take_i32(&c)
        take_topics(&c, version, <const uint8_t*>view.buf, partitions)
        if c.failed:
            fail("a whole body", c.p - <const uint8_t*>view.buf, f"{end - start} bytes", f"ProduceRequest v{version}")
        return transactional_id, acks, timeout_ms, partitions
    finally:
        PyBuffer_Release(&view)


cdef int take_topics(Cursor* c, int version, const uint8_t* base, list partitions) except -1:
    """The topic array of the body and the tags that end it."""
    cdef bint flexible = version >= PRODUCE_FLEXIBLE
    cdef int32_t topic_count, partition_count, index, size
    cdef const uint8_t* p
    cdef object topic
    topic_count = take_count(c, flexible, 2)
    while topic_count > 0 and not c.failed:
        if version >= PRODUCE_TOPIC_IDS:
            size = 16
            p = take(c, size)
        else:
            p = take_string(c, flexible, &size)
        if p == NULL:
            c.failed = True
            break
        topic = PyBytes_FromStringAndSize(<const char*>p, size)
        partition_count = take_count(c, flexible, 5)
        while partition_count > 0 and not c.failed:
            index = take_i32(c)
            p = take_bytes(c, flexible, &size)
            if flexible:
                skip_tags(c)
            if p == NULL:
                partitions.append((topic, index, -1, -1))
            else:
                partitions.append((topic, index, p - base, p - base + size))
            partition_count -= 1
        if flexible:
            skip_tags(c)
        topic_count -= 1
    if flexible:
        skip_tags(c)
    return 0


@cython.final
@cython.auto_pickle(False)
@cython.freelist(256)
cdef class PartitionResponse:
    """What a ProduceResponse answers for one partition, under Kafka's names.

    `topic` is its name, or from v13 on its id, as bytes; `record_errors` None or a list of (batch index, message or None). Nothing of it
    changes.
    """

    cdef readonly bytes topic
    cdef readonly int32_t partition
    cdef readonly int16_t error_code
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly int64_t log_start_offset
    cdef readonly list record_errors
    cdef readonly str error_message

    def __init__(
        self,
        bytes topic not None,
        int32_t partition,
        int16_t error_code=0,
        int64_t base_offset=-1,
        int64_t log_append_time_ms=-1,
        int64_t log_start_offset=-1,
        list record_errors=None,
        str error_message=None,
    ):
        self.topic = topic
        self.partition = partition
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.record_errors = record_errors
        self.error_message = error_message


def encode_produce_response(int version, int32_t correlation_id, list results, int32_t throttle_time_ms=0):
    """Encode a whole ProduceResponse frame (v3 to v13), its size field included.

    `results` holds PartitionResponse objects in the request's order. Partitions of a topic must be neighbours. Tagged fields (current leader, node
    endpoints) are left to the generated message.
    """
    cdef Output out
    cdef bint flexible = version >= PRODUCE_FLEXIBLE
    if not output_start(&out, 128):
        raise MemoryError
    try:
        put_i32(&out, 0)
        put_i32(&out, correlation_id)
        if flexible:
            put_i8(&out, 0)
        put_results(&out, version, results)
        if output_reserve(&out, 8) == NULL:
            raise MemoryError
        put_i32(&out, throttle_time_ms)
        if flexible:
            put_i8(&out, 0)
        store_i32(out.data, <int32_t>(out.length - 4))
        return PyBytes_FromStringAndSize(<const char*>out.data, out.length)
    finally:
        output_free(&out)


cdef int put_results(Output* out, int version, list results) except -1:
    """The array of topics; neighbours of one topic share an element."""
    cdef bint flexible = version >= PRODUCE_FLEXIBLE
    cdef Py_ssize_t count = len(results)
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    cdef int32_t topics = 0
    cdef bytes topic = None
    cdef PartitionResponse result
    for result in results:
        if topic is None or result.topic != topic:
            topics += 1
            topic = result.topic
    put_count(out, flexible, topics)
    while i < count:
        topic = (<PartitionResponse>results[i]).topic
        j = i + 1
        while j < count and (<PartitionResponse>results[j]).topic == topic:
            j += 1
        if output_reserve(out, PyBytes_GET_SIZE(topic) + 2 * MAX_VARINT32) == NULL:
            raise MemoryError
        if version >= PRODUCE_TOPIC_IDS:
            put_raw(out, PyBytes_AS_STRING(topic), 16)
        else:
            put_string(out, flexible, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        put_count(out, flexible, <int32_t>(j - i))
        while i < j:
            put_result(out, version, <PartitionResponse>results[i])
            i += 1
        if flexible:
            if output_reserve(out, 1) == NULL:
                raise MemoryError
            put_i8(out, 0)
    return 0


cdef int put_result(Output* out, int version, PartitionResponse result) except -1:
    """One partition's answer."""
    cdef bint flexible = version >= PRODUCE_FLEXIBLE
    cdef list record_errors = result.record_errors
    if output_reserve(out, 48) == NULL:
        raise MemoryError
    put_i32(out, result.partition)
    put_i16(out, result.error_code)
    put_i64(out, result.base_offset)
    put_i64(out, result.log_append_time_ms)
    if version >= 5:
        put_i64(out, result.log_start_offset)
    if version >= 8:
        put_count(out, flexible, 0 if record_errors is None else <int32_t>len(record_errors))
        if record_errors is not None:
            for index, message in record_errors:
                if output_reserve(out, 4) == NULL:
                    raise MemoryError
                put_i32(out, <int32_t>index)
                put_message(out, flexible, message)
        put_message(out, flexible, result.error_message)
    return 0


cdef int put_message(Output* out, bint flexible, object text) except -1:
    """A nullable string and the empty tag section that follows each one here (an error's, or the partition's own)."""
    cdef bytes raw
    if text is None:
        if output_reserve(out, 4) == NULL:
            raise MemoryError
        put_string(out, flexible, NULL, -1)
    else:
        raw = (<str>text).encode()[:32767]
        if output_reserve(out, PyBytes_GET_SIZE(raw) + 8) == NULL:
            raise MemoryError
        put_string(out, flexible, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
    if flexible:
        put_i8(out, 0)
    return 0
