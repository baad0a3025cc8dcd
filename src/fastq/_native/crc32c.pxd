"""CRC32C for other native modules: one dispatched function, shared by the whole process."""

from libc.stdint cimport uint8_t, uint32_t

# `crc` and the answer are finished checksums (0 for "nothing yet"): what b makes of the checksum of a is that of a + b.
cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
