"""Hashes of keys, inline for the producer's hot path: Kafka's murmur2 (org.apache.kafka.common.utils.Utils.murmur2), and the CRC32 of
zlib, by which librdkafka's default partitioner goes.
"""

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


cdef extern from *:
    """
    static const uint32_t fastq_crc32_nibble[16] = {
        0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
        0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C, 0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
    };
    static inline uint32_t fastq_crc32(const uint8_t* p, size_t n) {
        uint32_t crc = 0xFFFFFFFFu;
        for (; n > 0; n--, p++) {
            crc ^= *p;
            crc = (crc >> 4) ^ fastq_crc32_nibble[crc & 15];
            crc = (crc >> 4) ^ fastq_crc32_nibble[crc & 15];
        }
        return ~crc;
    }
    """
    uint32_t fastq_crc32(const uint8_t* p, size_t n) noexcept nogil


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
