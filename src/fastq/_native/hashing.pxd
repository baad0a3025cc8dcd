"""Kafka's murmur2, inline for the producer's hot path (org.apache.kafka.common.utils.Utils.murmur2)."""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy


cdef extern from *:
    """
    #if (defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
      #define FASTQ_LE32(v) __builtin_bswap32(v)
    #else
      #define FASTQ_LE32(v) (v)
    #endif
    """
    uint32_t FASTQ_LE32(uint32_t v) noexcept nogil


cdef inline uint32_t kafka_murmur2(const uint8_t* p, size_t n) noexcept nogil:
    """Hash of `n` bytes, at most 2 GiB: Java's int, seen as unsigned."""
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>n
    cdef uint32_t k
    while n >= 4:
        memcpy(&k, p, 4)
        k = FASTQ_LE32(k) * m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        p += 4
        n -= 4
    if n >= 3:
        h ^= <uint32_t>p[2] << 16
    if n >= 2:
        h ^= <uint32_t>p[1] << 8
    if n >= 1:
        h = (h ^ p[0]) * m
    h = (h ^ (h >> 13)) * m
    return h ^ (h >> 15)


cdef inline int32_t kafka_partition(const uint8_t* p, size_t n, int32_t partition_count) noexcept nogil:
    """The partition of a key: toPositive(murmur2(key)) % partition_count, which must be above zero."""
    return <int32_t>(kafka_murmur2(p, n) & 0x7FFFFFFF) % partition_count
