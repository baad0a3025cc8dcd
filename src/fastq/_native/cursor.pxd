"""Bounds-checked cursor over one received frame, and a growing output: what hand-made decoders and encoders share.

Rules: no exceptions and no Python objects. A read past the end sets `failed`, moves to the end and answers zero, so
that a decoder checks once per loop and once at its end; `failed` never resets. A count is refused unless the bytes at
hand could hold that many elements, so that no allocation exceeds what was received.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from fastq._native.bits cimport (
    MAX_VARINT32,
    load_i16,
    load_i32,
    load_i64,
    load_uvarint32,
    store_i16,
    store_i32,
    store_i64,
    store_uvarint,
)

cdef enum:
    STRING_BYTES_MAX = 32767  # of compact ones too: Kafka writes and reads none that is longer

cdef struct Cursor:
    const uint8_t* p
    const uint8_t* end
    bint failed


cdef inline void cursor_fail(Cursor* c) noexcept nogil:
    c.p = c.end
    c.failed = True


cdef inline const uint8_t* take(Cursor* c, Py_ssize_t size) noexcept nogil:
    """The next `size` bytes, or NULL (and failed) when fewer are left."""
    cdef const uint8_t* p = c.p
    if size < 0 or c.end - p < size:
        cursor_fail(c)
        return NULL
    c.p = p + size
    return p


cdef inline int8_t take_i8(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 1)
    return 0 if p == NULL else <int8_t>p[0]


cdef inline int16_t take_i16(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 2)
    return 0 if p == NULL else load_i16(p)


cdef inline int32_t take_i32(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 4)
    return 0 if p == NULL else load_i32(p)


cdef inline int64_t take_i64(Cursor* c) noexcept nogil:
    cdef const uint8_t* p = take(c, 8)
    return 0 if p == NULL else load_i64(p)


cdef inline uint32_t take_uvarint(Cursor* c) noexcept nogil:
    cdef uint32_t value = 0
    cdef const uint8_t* p = load_uvarint32(c.p, c.end, &value)
    if p == NULL:
        cursor_fail(c)
        return 0
    c.p = p
    return value


cdef inline int32_t take_compact_length(Cursor* c) noexcept nogil:
    """A compact length: stored plus one, zero is null (-1)."""
    cdef uint32_t value = take_uvarint(c)
    if value > <uint32_t>0x7FFFFFFF:
        cursor_fail(c)
        return -1
    return <int32_t>value - 1


cdef inline const uint8_t* take_string(Cursor* c, bint compact, int32_t* length) noexcept nogil:
    """A string of either notation; a null one has length -1 (and NULL comes back without `failed`). One that is too long fails."""
    length[0] = take_compact_length(c) if compact else take_i16(c)
    if length[0] == -1 and not c.failed:
        return NULL
    if length[0] > STRING_BYTES_MAX:
        cursor_fail(c)
        return NULL
    return take(c, length[0])


cdef inline const uint8_t* take_bytes(Cursor* c, bint compact, int32_t* length) noexcept nogil:
    """Bytes or records of either notation; a null one has length -1 (and NULL comes back without `failed`)."""
    length[0] = take_compact_length(c) if compact else take_i32(c)
    if length[0] == -1 and not c.failed:
        return NULL
    return take(c, length[0])


cdef inline int32_t take_count(Cursor* c, bint compact, int32_t element_bytes_min) noexcept nogil:
    """The count of a non-null array whose elements take at least `element_bytes_min` bytes each."""
    cdef int32_t count = take_compact_length(c) if compact else take_i32(c)
    if count < 0 or <int64_t>count * element_bytes_min > c.end - c.p:
        cursor_fail(c)
        return 0
    return count


cdef inline void skip_tags(Cursor* c) noexcept nogil:
    """Skip a section of tagged fields."""
    cdef uint32_t count = take_uvarint(c)
    cdef uint32_t size
    while count > 0 and not c.failed:
        take_uvarint(c)
        size = take_uvarint(c)
        take(c, size)
        count -= 1


cdef struct Output:
    uint8_t* data
    Py_ssize_t length
    Py_ssize_t capacity


cdef inline bint output_start(Output* out, Py_ssize_t capacity) noexcept nogil:
    """Allocate; False when there is no memory. Every started output is freed by `output_free`."""
    out.data = <uint8_t*>malloc(capacity)
    out.length = 0
    out.capacity = capacity if out.data != NULL else 0
    return out.data != NULL


cdef inline void output_free(Output* out) noexcept nogil:
    free(out.data)
    out.data = NULL


cdef inline uint8_t* output_reserve(Output* out, Py_ssize_t size) noexcept nogil:
    """Room for `size` bytes after what is written, or NULL when there is no memory."""
    cdef uint8_t* grown
    cdef Py_ssize_t capacity
    if out.length + size > out.capacity:
        capacity = out.capacity * 2 + size
        grown = <uint8_t*>realloc(out.data, capacity)
        if grown == NULL:
            return NULL
        out.data = grown
        out.capacity = capacity
    return out.data + out.length


# The put functions need room that output_reserve has made.

cdef inline void put_i8(Output* out, int8_t value) noexcept nogil:
    out.data[out.length] = <uint8_t>value
    out.length += 1


cdef inline void put_i16(Output* out, int16_t value) noexcept nogil:
    store_i16(out.data + out.length, value)
    out.length += 2


cdef inline void put_i32(Output* out, int32_t value) noexcept nogil:
    store_i32(out.data + out.length, value)
    out.length += 4


cdef inline void put_i64(Output* out, int64_t value) noexcept nogil:
    store_i64(out.data + out.length, value)
    out.length += 8


cdef inline void put_uvarint(Output* out, uint32_t value) noexcept nogil:
    out.length = store_uvarint(out.data + out.length, value) - out.data


cdef inline void put_count(Output* out, bint compact, int32_t count) noexcept nogil:
    """An array count or a byte length; -1 is null."""
    if compact:
        put_uvarint(out, <uint32_t>(count + 1))
    else:
        put_i32(out, count)


cdef inline void put_raw(Output* out, const void* data, Py_ssize_t size) noexcept nogil:
    memcpy(out.data + out.length, data, size)
    out.length += size


cdef inline void put_string(Output* out, bint compact, const void* data, Py_ssize_t size) noexcept nogil:
    """A string; size -1 is null. Needs MAX_VARINT32 + size bytes of room."""
    if compact:
        put_uvarint(out, <uint32_t>(size + 1))
    else:
        put_i16(out, <int16_t>size)
    if size > 0:
        put_raw(out, data, size)
