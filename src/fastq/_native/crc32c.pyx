"""CRC32C of any bytes-like object, by the processor's instruction where there is one.

Rules: the choice is made once, at import (`HARDWARE` tells); the table path stays reachable for tests; the GIL is
released for inputs that take longer than the release itself.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32c.h" nogil:
    int fastq_crc_select() noexcept
    uint32_t fastq_crc32c(uint32_t crc, const uint8_t* p, size_t n) noexcept
    uint32_t fastq_crc32c_table(uint32_t crc, const uint8_t* p, size_t n) noexcept


cdef enum:
    GIL_RELEASE_BYTES = 64 * 1024   # 3 us of work by the instruction


HARDWARE = bool(fastq_crc_select())


cdef uint32_t crc32c_update(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil:
    return fastq_crc32c(crc, p, n)


def crc32c(data, uint32_t value=0):
    """CRC32C of `data`, any contiguous bytes-like object, going on from `value` (0: from the start).

    So ``crc32c(b, crc32c(a)) == crc32c(a + b)``. Raises TypeError or BufferError for other objects.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len >= GIL_RELEASE_BYTES:
            with nogil:
                value = fastq_crc32c(value, <const uint8_t*>view.buf, view.len)
        else:
            value = fastq_crc32c(value, <const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return value


def crc32c_table(data, uint32_t value=0):
    """The same checksum by the portable tables, whatever the processor offers."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            value = fastq_crc32c_table(value, <const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return value
