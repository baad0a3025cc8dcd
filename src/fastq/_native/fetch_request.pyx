"""The consumer's hot path out: the body of a Fetch request (versions 4 to 18).

Rules: topics go by name up to version 12, by 16-byte id from 13 on; a topic has one element, where it is first named. What a consumer does
not say (replica, cluster, last fetched epoch, log start) has its default. The generated message is the oracle (see the tests).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t

from fastq._native.bits cimport MAX_VARINT32
from fastq._native.cursor cimport (
    Output,
    output_free,
    output_start,
    put_count,
    put_i8,
    put_i32,
    put_i64,
)
from fastq._native.texts cimport make_room, put_no_tags, put_text, put_topic_id, refuse

cdef enum:
    WITH_LOG_START = 5
    WITH_SESSION = 7
    WITH_LEADER_EPOCH = 9
    WITH_RACK = 11
    FLEXIBLE = 12
    TOPIC_IDS = 13
    WITHOUT_REPLICA = 15
    LAST_VERSION = 18
    PARTITION_BYTES_MAX = 33


cdef int put_topic(Output* out, int version, str name, bytes topic_id) except -1:
    if version < TOPIC_IDS:
        return put_text(out, version >= FLEXIBLE, name)
    return put_topic_id(out, topic_id)


def encode_fetch_request(
    int version,
    int32_t max_wait_ms,
    int32_t min_bytes,
    int32_t max_bytes,
    int8_t isolation_level,
    int32_t session_id,
    int32_t session_epoch,
    dict send not None,
    dict forgotten not None,
    str rack_id not None,
):
    """The body of the request.

    `send` holds (topic id, offset, leader epoch, bytes at most) by (topic, partition), `forgotten` the topic id. Raises EncodeError.
    """
    cdef Output out
    if not 4 <= version <= LAST_VERSION:
        refuse(f"Fetch has no version {version}")
    if forgotten and version < WITH_SESSION:
        refuse(f"Fetch v{version} has no sessions, and so nothing to forget")
    if not output_start(&out, 128):
        raise MemoryError
    try:
        if version < WITHOUT_REPLICA:
            put_i32(&out, -1)
        put_i32(&out, max_wait_ms)
        put_i32(&out, min_bytes)
        put_i32(&out, max_bytes)
        put_i8(&out, isolation_level)
        if version >= WITH_SESSION:
            put_i32(&out, session_id)
            put_i32(&out, session_epoch)
        put_wanted(&out, version, send)
        if version >= WITH_SESSION:
            put_forgotten(&out, version, forgotten)
        if version >= WITH_RACK:
            put_text(&out, version >= FLEXIBLE, rack_id)
        put_no_tags(&out, version >= FLEXIBLE)
        return PyBytes_FromStringAndSize(<const char*>out.data, out.length)
    except (OverflowError, TypeError) as error:
        refuse(f"Fetch v{version} has a value of the wrong type or range: {error}")
    finally:
        output_free(&out)


cdef dict by_topic(dict entries):
    """(partition, entry) by topic, in the order in which they are named."""
    cdef dict found = {}
    cdef list members
    for key, entry in entries.items():
        members = found.get(key[0])
        if members is None:
            members = found[key[0]] = []
        members.append((key[1], entry))
    return found


cdef int put_wanted(Output* out, int version, dict send) except -1:
    cdef dict topics = by_topic(send)
    cdef list members
    cdef object wanted
    make_room(out, MAX_VARINT32)
    put_count(out, version >= FLEXIBLE, <int32_t>len(topics))
    for name, members in topics.items():
        put_topic(out, version, name, (<tuple>members[0])[1][0])
        make_room(out, MAX_VARINT32 + PARTITION_BYTES_MAX * len(members))
        put_count(out, version >= FLEXIBLE, <int32_t>len(members))
        for partition, wanted in members:
            put_i32(out, <int32_t>partition)
            if version >= WITH_LEADER_EPOCH:
                put_i32(out, <int32_t>wanted[2])
            put_i64(out, <int64_t>wanted[1])
            if version >= FLEXIBLE:
                put_i32(out, -1)
            if version >= WITH_LOG_START:
                put_i64(out, -1)
            put_i32(out, <int32_t>wanted[3])
            if version >= FLEXIBLE:
                put_i8(out, 0)
        put_no_tags(out, version >= FLEXIBLE)
    return 0


cdef int put_forgotten(Output* out, int version, dict forgotten) except -1:
    """By topic and id: a topic that was deleted and made again may be forgotten under one id and wanted under another."""
    cdef dict topics = {}
    cdef list members
    for key, topic_id in forgotten.items():
        members = topics.setdefault((key[0], topic_id), [])
        members.append(key[1])
    make_room(out, MAX_VARINT32)
    put_count(out, version >= FLEXIBLE, <int32_t>len(topics))
    for key, members in topics.items():
        put_topic(out, version, key[0], key[1])
        make_room(out, MAX_VARINT32 + 4 * len(members))
        put_count(out, version >= FLEXIBLE, <int32_t>len(members))
        for partition in members:
            put_i32(out, <int32_t>partition)
        put_no_tags(out, version >= FLEXIBLE)
    return 0
