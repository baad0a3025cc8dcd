"""Both sides' hot path of committed offsets: OffsetCommit's bodies (versions 2 to 10), and the records that keep offsets.

Rules
- Fields travel as plain tuples; a partition is (topic, partition), the topic a str, or a 16-byte id as bytes in version 10.
- Whatever is malformed raises DecodeError, what a version cannot carry EncodeError; the generated messages are the oracle of every
  version (see the tests). Bytes behind a request's body are let pass, those behind a response's are not.
- A record's key is its type (int16, 1), then group, topic and partition; its value the version (int16), then the fields.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from fastq._native.bits cimport MAX_VARINT32, store_i32
from fastq._native.cursor cimport (
    Cursor,
    Output,
    output_free,
    output_start,
    put_count,
    put_i16,
    put_i32,
    put_i64,
    put_uvarint,
    skip_tags,
    take,
    take_count,
    take_i16,
    take_i32,
    take_i64,
    take_uvarint,
)
from fastq._native.texts cimport (
    TOPIC_ID_BYTES,
    count_topics,
    fail,
    make_room,
    put_no_tags,
    put_text,
    put_topic_id,
    refuse,
    take_text,
)

cdef enum:
    WITH_THROTTLE = 3        # first response version with a throttle time
    LAST_WITH_RETENTION = 4
    WITH_LEADER_EPOCH = 6
    WITH_INSTANCE = 7
    FLEXIBLE = 8
    TOPIC_IDS = 10
    KEY_TYPE = 1
    VALUE_VERSION = 4         # as long as the broker's retention applies; flexible, as none before it
    VALUE_VERSION_WITH_EXPIRY = 1
    VALUE_WITH_LEADER_EPOCH = 3
    TAG_TOPIC_ID = 0

cdef bytes NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)


# --- what all of them share ---


cdef str take_present(Cursor* c, bint compact):
    """A string that must not be null."""
    cdef object text = take_text(c, compact)
    if text is None:
        c.failed = True
        return ""
    return text


cdef object take_topic(Cursor* c, int version):
    """A topic's name, or its id."""
    cdef const uint8_t* p
    if version < TOPIC_IDS:
        return take_present(c, version >= FLEXIBLE)
    p = take(c, 16)
    return b"" if p == NULL else PyBytes_FromStringAndSize(<const char*>p, 16)


cdef int put_topic(Output* out, int version, object topic) except -1:
    if version < TOPIC_IDS:
        put_text(out, version >= FLEXIBLE, topic)
        return 0
    return put_topic_id(out, <bytes?>topic)


cdef Py_ssize_t neighbours(list entries, Py_ssize_t i) except -1:
    """Where the run of entries ends that have the topic of entry `i`."""
    cdef object topic = (<tuple>entries[i])[0]
    cdef Py_ssize_t j = i + 1
    cdef Py_ssize_t count = len(entries)
    while j < count and (<tuple>entries[j])[0] == topic:
        j += 1
    return j


# --- the request ---


def encode_commit_request(
    int version, str group_id not None, int32_t generation, str member_id not None, object instance_id, list offsets not None
):
    """The body of an OffsetCommit request.

    `offsets` holds (topic, partition, offset, leader epoch, metadata or None); neighbours of one topic share an element. Raises EncodeError.
    """
    cdef Output out
    if not 2 <= version <= 10:
        refuse(f"OffsetCommit has no version {version}")
    if not output_start(&out, 128):
        raise MemoryError
    try:
        put_commit(&out, version, group_id, generation, member_id, instance_id, offsets)
        return PyBytes_FromStringAndSize(<const char*>out.data, out.length)
    except (OverflowError, TypeError) as error:
        refuse(f"OffsetCommit v{version} has a value of the wrong type or range: {error}")
    finally:
        output_free(&out)


cdef int put_commit(
    Output* out, int version, str group_id, int32_t generation, str member_id, object instance_id, list offsets
) except -1:
    cdef bint flexible = version >= FLEXIBLE
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    put_text(out, flexible, group_id)
    make_room(out, 4)
    put_i32(out, generation)
    put_text(out, flexible, member_id)
    if version >= WITH_INSTANCE:
        put_text(out, flexible, instance_id)
    make_room(out, 8 + MAX_VARINT32)
    if version <= LAST_WITH_RETENTION:
        put_i64(out, -1)
    put_count(out, flexible, count_topics(offsets))
    while i < len(offsets):
        j = neighbours(offsets, i)
        put_topic(out, version, (<tuple>offsets[i])[0])
        make_room(out, MAX_VARINT32)
        put_count(out, flexible, <int32_t>(j - i))
        while i < j:
            put_offset(out, version, <tuple>offsets[i])
            i += 1
        put_no_tags(out, flexible)
    put_no_tags(out, flexible)
    return 0


cdef int put_offset(Output* out, int version, tuple entry) except -1:
    make_room(out, 16)
    put_i32(out, <int32_t>entry[1])
    put_i64(out, <int64_t>entry[2])
    if version >= WITH_LEADER_EPOCH:
        put_i32(out, <int32_t>entry[3])
    put_text(out, version >= FLEXIBLE, entry[4])
    put_no_tags(out, version >= FLEXIBLE)
    return 0


def decode_commit_request(object data, Py_ssize_t start, Py_ssize_t end, int version):
    """The body of an OffsetCommit request that lies at `data[start:end]`.

    Answers (group id, generation or member epoch, member id, instance id or None, retention in ms or -1, offsets), where offsets is a flat
    list of (topic, partition, offset, leader epoch, metadata or None). Raises DecodeError.
    """
    cdef Py_buffer view
    cdef Cursor c
    cdef bint flexible = version >= FLEXIBLE
    cdef list offsets = []
    cdef object instance_id = None
    cdef int64_t retention_ms = -1
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len or start > end:
            raise IndexError("body bounds lie outside the buffer")
        c.p = <const uint8_t*>view.buf + start
        c.end = <const uint8_t*>view.buf + end
        c.failed = False
        group_id = take_present(&c, flexible)
        generation = take_i32(&c)
        member_id = take_present(&c, flexible)
        if version >= WITH_INSTANCE:
            instance_id = take_text(&c, flexible)
        if version <= LAST_WITH_RETENTION:
            retention_ms = take_i64(&c)
        take_offsets(&c, version, offsets)
        if flexible:
            skip_tags(&c)
        if c.failed:
            fail("a whole body", c.p - <const uint8_t*>view.buf, f"{end - start} bytes", f"OffsetCommitRequest v{version}")
        return group_id, generation, member_id, instance_id, retention_ms, offsets
    finally:
        PyBuffer_Release(&view)


cdef int take_offsets(Cursor* c, int version, list offsets) except -1:
    cdef bint flexible = version >= FLEXIBLE
    cdef int32_t topics = take_count(c, flexible, 2)
    cdef int32_t partitions, partition, leader_epoch
    cdef int64_t offset
    cdef object topic, metadata
    while topics > 0 and not c.failed:
        topic = take_topic(c, version)
        partitions = take_count(c, flexible, 13)
        while partitions > 0 and not c.failed:
            partition = take_i32(c)
            offset = take_i64(c)
            leader_epoch = take_i32(c) if version >= WITH_LEADER_EPOCH else -1
            metadata = take_text(c, flexible)
            if flexible:
                skip_tags(c)
            offsets.append((topic, partition, offset, leader_epoch, metadata))
            partitions -= 1
        if flexible:
            skip_tags(c)
        topics -= 1
    return 0


# --- the response ---


def encode_commit_response(int version, int32_t correlation_id, list codes not None):
    """A whole OffsetCommit response frame, its size field included.

    `codes` holds (topic, partition, error code); neighbours of one topic share an element.
    """
    cdef Output out
    cdef bint flexible = version >= FLEXIBLE
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t j
    if not output_start(&out, 128):
        raise MemoryError
    try:
        put_i32(&out, 0)
        put_i32(&out, correlation_id)
        put_no_tags(&out, flexible)
        if version >= WITH_THROTTLE:
            put_i32(&out, 0)
        make_room(&out, MAX_VARINT32)
        put_count(&out, flexible, count_topics(codes))
        while i < len(codes):
            j = neighbours(codes, i)
            put_topic(&out, version, (<tuple>codes[i])[0])
            make_room(&out, MAX_VARINT32 + 7 * (j - i))
            put_count(&out, flexible, <int32_t>(j - i))
            while i < j:
                put_i32(&out, <int32_t>(<tuple>codes[i])[1])
                put_i16(&out, <int16_t>(<tuple>codes[i])[2])
                put_no_tags(&out, flexible)
                i += 1
            put_no_tags(&out, flexible)
        put_no_tags(&out, flexible)
        store_i32(out.data, <int32_t>(out.length - 4))
        return PyBytes_FromStringAndSize(<const char*>out.data, out.length)
    finally:
        output_free(&out)


def decode_commit_response(object data, int version):
    """The body of an OffsetCommit response: the error code of each partition, by (topic, partition). Raises DecodeError."""
    cdef Py_buffer view
    cdef Cursor c
    cdef dict codes = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        c.p = <const uint8_t*>view.buf
        c.end = c.p + view.len
        c.failed = False
        if version >= WITH_THROTTLE:
            take_i32(&c)
        take_codes(&c, version, codes)
        if version >= FLEXIBLE:
            skip_tags(&c)
        if c.failed or c.p != c.end:
            fail("a whole body", c.p - <const uint8_t*>view.buf, f"{view.len} bytes", f"OffsetCommitResponse v{version}")
        return codes
    finally:
        PyBuffer_Release(&view)


cdef int take_codes(Cursor* c, int version, dict codes) except -1:
    cdef bint flexible = version >= FLEXIBLE
    cdef int32_t topics = take_count(c, flexible, 2)
    cdef int32_t partitions, partition
    cdef int16_t code
    cdef object topic
    while topics > 0 and not c.failed:
        topic = take_topic(c, version)
        partitions = take_count(c, flexible, 6)
        while partitions > 0 and not c.failed:
            partition = take_i32(c)
            code = take_i16(c)
            if flexible:
                skip_tags(c)
            codes[topic, partition] = code
            partitions -= 1
        if flexible:
            skip_tags(c)
        topics -= 1
    return 0


# --- the records ---


def encode_offset_key(str group_id not None, str topic not None, int32_t partition):
    """The key of the record that keeps a partition's offset. Raises EncodeError."""
    cdef Output out
    if not output_start(&out, 64):
        raise MemoryError
    try:
        put_i16(&out, KEY_TYPE)
        put_text(&out, False, group_id)
        put_text(&out, False, topic)
        make_room(&out, 4)
        put_i32(&out, partition)
        return PyBytes_FromStringAndSize(<const char*>out.data, out.length)
    finally:
        output_free(&out)


def decode_offset_key(bytes key not None):
    """(group id, (topic, partition)) of a record's key, whose type is not looked at. Raises DecodeError."""
    cdef Cursor c
    cdef str group_id, topic
    cdef int32_t partition
    c.p = <const uint8_t*>PyBytes_AS_STRING(key)
    c.end = c.p + PyBytes_GET_SIZE(key)
    c.failed = False
    take_i16(&c)
    group_id = take_present(&c, False)
    topic = take_present(&c, False)
    partition = take_i32(&c)
    if c.failed:
        fail("a group, a topic and a partition", 0, f"{len(key)} bytes", "the key of an offset")
    return group_id, (topic, partition)


def encode_offset_value(
    int64_t offset,
    int32_t leader_epoch,
    str metadata not None,
    int64_t commit_timestamp_ms,
    int64_t expire_timestamp_ms,
    bytes topic_id not None=NO_TOPIC_ID,
):
    """The value of that record: version 4, or 1, which carries no topic id, where it has a time of its own to expire at (not -1).
    Raises EncodeError."""
    cdef Output out
    cdef bint expires = expire_timestamp_ms >= 0
    if not output_start(&out, 64):
        raise MemoryError
    try:
        put_i16(&out, VALUE_VERSION_WITH_EXPIRY if expires else VALUE_VERSION)
        put_i64(&out, offset)
        if not expires:
            put_i32(&out, leader_epoch)
        put_text(&out, not expires, metadata)
        make_room(&out, 16 + MAX_VARINT32)
        put_i64(&out, commit_timestamp_ms)
        if expires:
            put_i64(&out, expire_timestamp_ms)
        elif topic_id == NO_TOPIC_ID:
            put_no_tags(&out, True)
        else:
            put_uvarint(&out, 1)
            put_uvarint(&out, TAG_TOPIC_ID)
            put_uvarint(&out, TOPIC_ID_BYTES)
            put_topic_id(&out, topic_id)
        return PyBytes_FromStringAndSize(<const char*>out.data, out.length)
    finally:
        output_free(&out)


def decode_offset_value(bytes value not None):
    """(offset, leader epoch or -1, metadata, commit timestamp, expire timestamp or -1, topic id or zeros), of versions 0 to 4.
    Raises DecodeError."""
    cdef Cursor c
    cdef int16_t version
    cdef int32_t leader_epoch = -1
    cdef int64_t offset, commit_timestamp_ms
    cdef int64_t expire_timestamp_ms = -1
    cdef str metadata
    cdef bytes topic_id = NO_TOPIC_ID
    c.p = <const uint8_t*>PyBytes_AS_STRING(value)
    c.end = c.p + PyBytes_GET_SIZE(value)
    c.failed = False
    version = take_i16(&c)
    if not 0 <= version <= VALUE_VERSION:
        fail("a version from 0 to 4", 0, f"{version}", "the value of an offset")
    offset = take_i64(&c)
    if version >= VALUE_WITH_LEADER_EPOCH:
        leader_epoch = take_i32(&c)
    metadata = take_present(&c, version >= VALUE_VERSION)
    commit_timestamp_ms = take_i64(&c)
    if version == VALUE_VERSION_WITH_EXPIRY:
        expire_timestamp_ms = take_i64(&c)
    if version >= VALUE_VERSION:
        topic_id = take_topic_id_tag(&c)
    if c.failed:
        fail("a whole value", 0, f"{len(value)} bytes", f"the value of an offset, version {version}")
    return offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id


cdef bytes take_topic_id_tag(Cursor* c):
    """The topic id among a value's tagged fields; zeros where it has none."""
    cdef bytes topic_id = NO_TOPIC_ID
    cdef uint32_t count = take_uvarint(c)
    cdef uint32_t tag, size
    cdef const uint8_t* p
    while count > 0 and not c.failed:
        tag = take_uvarint(c)
        size = take_uvarint(c)
        p = take(c, size)
        if tag == TAG_TOPIC_ID and p != NULL:
            if size != TOPIC_ID_BYTES:
                c.failed = True
                break
            topic_id = PyBytes_FromStringAndSize(<const char*>p, TOPIC_ID_BYTES)
        count -= 1
    return topic_id
