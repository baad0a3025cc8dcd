"""Record batch v2."""

from fastq._native.crc32c cimport crc32c_update


cdef void seal_batch(uint8_t* p, int64_t size) noexcept nogil:
    store_i32(p + 8, <int32_t>(size - LOG_OVERHEAD_BYTES))
    store_u32(p + CRC_POSITION, crc32c_update(0, p + ATTRIBUTES_POSITION, <size_t>(size - ATTRIBUTES_POSITION)))


cdef bint crc_matches(const uint8_t* p, int64_t size) noexcept nogil:
    return load_u32(p + CRC_POSITION) == crc32c_update(0, p + ATTRIBUTES_POSITION, <size_t>(size - ATTRIBUTES_POSITION))
