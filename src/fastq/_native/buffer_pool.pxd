"""The producer's memory as C types."""

cimport cython
from libc.stdint cimport uint8_t

cdef enum:
    POOL_CLASS_MIN = 12     # smallest pooled buffer: 4 KiB
    POOL_CLASS_MAX = 21     # largest: 2 MiB


cdef inline int size_class(Py_ssize_t capacity) noexcept nogil:
    cdef int order = POOL_CLASS_MIN
    while (<Py_ssize_t>1 << order) < capacity:
        order += 1
    return order


cdef inline Py_ssize_t rounded_capacity(Py_ssize_t size) noexcept nogil:
    """What the pool hands out for `size` bytes: a power of two up to 2 MiB, then multiples of 64 KiB."""
    cdef int order
    if size > <Py_ssize_t>1 << POOL_CLASS_MAX:
        return (size + 0xFFFF) & ~<Py_ssize_t>0xFFFF
    order = size_class(size)
    return <Py_ssize_t>1 << order


@cython.final
cdef class BufferPool:
    cdef readonly Py_ssize_t limit_bytes
    cdef readonly Py_ssize_t used_bytes
    cdef readonly Py_ssize_t free_bytes
    cdef uint8_t* free_lists[POOL_CLASS_MAX + 1]
    cdef uint8_t* take(self, Py_ssize_t capacity, bint force=*) noexcept
    cdef void give(self, uint8_t* buffer, Py_ssize_t capacity) noexcept
    cdef void trim(self, Py_ssize_t keep_bytes) noexcept
