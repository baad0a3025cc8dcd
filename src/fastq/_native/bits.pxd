"""Big-endian loads and stores, varints and zigzag: the inline vocabulary of every native module.

Rules: no Python objects, no exceptions, no GIL. Readers take ``end`` and answer NULL past it; writers trust
that the caller has reserved room (MAX_VARINT32 / MAX_VARINT64 bytes a varint).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(_MSC_VER)
      #include <stdlib.h>
      #define FASTQ_BSWAP16 _byteswap_ushort
      #define FASTQ_BSWAP32 _byteswap_ulong
      #define FASTQ_BSWAP64 _byteswap_uint64
      #define FASTQ_BIG_ENDIAN 0
    #else
      #define FASTQ_BSWAP16 __builtin_bswap16
      #define FASTQ_BSWAP32 __builtin_bswap32
      #define FASTQ_BSWAP64 __builtin_bswap64
      #define FASTQ_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
    #endif
    static inline uint16_t fastq_be16(uint16_t v) { return FASTQ_BIG_ENDIAN ? v : FASTQ_BSWAP16(v); }
    static inline uint32_t fastq_be32(uint32_t v) { return FASTQ_BIG_ENDIAN ? v : FASTQ_BSWAP32(v); }
    static inline uint64_t fastq_be64(uint64_t v) { return FASTQ_BIG_ENDIAN ? v : FASTQ_BSWAP64(v); }
    """
    uint16_t fastq_be16(uint16_t v) noexcept nogil
    uint32_t fastq_be32(uint32_t v) noexcept nogil
    uint64_t fastq_be64(uint64_t v) noexcept nogil

cdef enum:
    MAX_VARINT32 = 5
    MAX_VARINT64 = 10


cdef inline int16_t load_i16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return <int16_t>fastq_be16(v)


cdef inline int32_t load_i32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return <int32_t>fastq_be32(v)


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return fastq_be32(v)


cdef inline int64_t load_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return <int64_t>fastq_be64(v)


cdef inline void store_i16(uint8_t* p, int16_t value) noexcept nogil:
    cdef uint16_t v = fastq_be16(<uint16_t>value)
    memcpy(p, &v, 2)


cdef inline void store_i32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t v = fastq_be32(<uint32_t>value)
    memcpy(p, &v, 4)


cdef inline void store_u32(uint8_t* p, uint32_t value) noexcept nogil:
    cdef uint32_t v = fastq_be32(value)
    memcpy(p, &v, 4)


cdef inline void store_i64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t v = fastq_be64(<uint64_t>value)
    memcpy(p, &v, 8)


cdef inline uint32_t zigzag32(int32_t value) noexcept nogil:
    return (<uint32_t>value << 1) ^ <uint32_t>(value >> 31)


cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int32_t unzigzag32(uint32_t value) noexcept nogil:
    return <int32_t>((value >> 1) ^ (<uint32_t>0 - (value & 1)))


cdef inline int64_t unzigzag64(uint64_t value) noexcept nogil:
    return <int64_t>((value >> 1) ^ (<uint64_t>0 - (value & 1)))


cdef inline int size_uvarint(uint64_t value) noexcept nogil:
    """Bytes that `value` takes as an unsigned varint: 1 to 10."""
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline int size_varint(int64_t value) noexcept nogil:
    """Bytes that `value` takes as a zigzag varint: 1 to 10."""
    return size_uvarint(zigzag64(value))


cdef inline uint8_t* store_uvarint(uint8_t* p, uint64_t value) noexcept nogil:
    """Write and return the place after it."""
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint8_t* store_varint(uint8_t* p, int64_t value) noexcept nogil:
    return store_uvarint(p, zigzag64(value))


cdef inline const uint8_t* load_uvarint32(const uint8_t* p, const uint8_t* end, uint32_t* value) noexcept nogil:
    """Read an unsigned varint of at most 5 bytes (32 bits); NULL when it does not end before `end` or is too wide."""
    cdef uint32_t result
    cdef uint32_t byte
    cdef int shift
    if end - p >= 3:  # nearly all: without a loop, whose length the processor would have to guess
        if p[0] < 0x80:
            value[0] = p[0]
            return p + 1
        if p[1] < 0x80:
            value[0] = (p[0] & 0x7F) | (<uint32_t>p[1] << 7)
            return p + 2
        if p[2] < 0x80:
            value[0] = (p[0] & 0x7F) | (<uint32_t>(p[1] & 0x7F) << 7) | (<uint32_t>p[2] << 14)
            return p + 3
    result = 0
    shift = 0
    while p < end:
        byte = p[0]
        p += 1
        if shift == 28 and byte > 0x0F:
            return NULL
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return p
        shift += 7
        if shift > 28:
            return NULL
    return NULL


cdef inline const uint8_t* load_uvarint64(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Read an unsigned varint of at most 10 bytes (64 bits); NULL when it does not end before `end` or is too wide."""
    cdef uint64_t result
    cdef uint64_t byte
    cdef int shift
    if end - p >= 3:  # nearly all: without a loop, whose length the processor would have to guess
        if p[0] < 0x80:
            value[0] = p[0]
            return p + 1
        if p[1] < 0x80:
            value[0] = (p[0] & 0x7F) | (<uint64_t>p[1] << 7)
            return p + 2
        if p[2] < 0x80:
            value[0] = (p[0] & 0x7F) | (<uint64_t>(p[1] & 0x7F) << 7) | (<uint64_t>p[2] << 14)
            return p + 3
    result = 0
    shift = 0
    while p < end:
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return NULL
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return p
        shift += 7
        if shift > 63:
            return NULL
    return NULL


cdef inline const uint8_t* load_varint32(const uint8_t* p, const uint8_t* end, int32_t* value) noexcept nogil:
    cdef uint32_t raw
    p = load_uvarint32(p, end, &raw)
    if p != NULL:
        value[0] = unzigzag32(raw)
    return p


cdef inline const uint8_t* load_varint64(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    cdef uint64_t raw
    p = load_uvarint64(p, end, &raw)
    if p != NULL:
        value[0] = unzigzag64(raw)
    return p
