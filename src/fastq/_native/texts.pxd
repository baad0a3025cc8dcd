"""What hand-made decoders and encoders share above the bytes of `cursor.pxd`: strings, topic ids, and how they raise.

Rules: a string that is no UTF-8 sets the cursor's `failed`, as everything malformed does; what a version cannot carry raises EncodeError.
Whatever raises is out of line: it is never on the hot path.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t

from fastq._native.bits cimport MAX_VARINT32
from fastq._native.cursor cimport (
    STRING_BYTES_MAX,
    Cursor,
    Output,
    output_reserve,
    put_i8,
    put_raw,
    put_string,
    take_string,
)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    TOPIC_ID_BYTES = 16


cdef inline object fail(str expected, Py_ssize_t position, str detail, str within):
    """Raise DecodeError."""
    from fastq._native.wire import DecodeError
    raise DecodeError(expected, position, detail, within)


cdef inline object refuse(str what):
    """Raise EncodeError."""
    from fastq._native.wire import EncodeError
    raise EncodeError(what)


cdef inline int make_room(Output* out, Py_ssize_t size) except -1:
    if output_reserve(out, size) == NULL:
        raise MemoryError
    return 0


cdef inline int put_text(Output* out, bint compact, object text) except -1:
    """A string, null for None."""
    cdef Py_ssize_t size = -1
    cdef const char* data = NULL
    if text is not None:
        data = PyUnicode_AsUTF8AndSize(text, &size)
        if size > STRING_BYTES_MAX:
            refuse(f"a string of {size} bytes, where {STRING_BYTES_MAX} are the most")
    make_room(out, MAX_VARINT32 + size)
    put_string(out, compact, data, size)
    return 0


cdef inline int put_topic_id(Output* out, bytes topic_id) except -1:
    if PyBytes_GET_SIZE(topic_id) != TOPIC_ID_BYTES:
        refuse(f"a topic id of {len(topic_id)} bytes")
    make_room(out, TOPIC_ID_BYTES)
    put_raw(out, PyBytes_AS_STRING(topic_id), TOPIC_ID_BYTES)
    return 0


cdef inline int put_no_tags(Output* out, bint flexible) except -1:
    """The end of a struct, where the version is flexible."""
    if flexible:
        make_room(out, 1)
        put_i8(out, 0)
    return 0


cdef inline object take_text(Cursor* c, bint compact):
    """A string, or None for a null one."""
    cdef int32_t size = -1
    cdef const uint8_t* p = take_string(c, compact, &size)
    if p == NULL:
        return None
    try:
        return PyUnicode_DecodeUTF8(<const char*>p, size, NULL)
    except UnicodeDecodeError:
        c.failed = True
        return None


cdef inline int32_t count_topics(list entries) except -1:
    """How many runs of one topic there are; an entry is a tuple that begins with its topic."""
    cdef int32_t topics = 0
    cdef object previous = None
    cdef object topic
    for entry in entries:
        topic = (<tuple>entry)[0]
        if previous is None or topic != previous:
            topics += 1
            previous = topic
    return topics
