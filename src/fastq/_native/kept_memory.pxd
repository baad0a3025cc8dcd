"""Large blocks of memory that come and go many times a second; see kept_memory.h."""

cimport cython
from libc.stdint cimport uint8_t

cdef void* take_memory(size_t size) noexcept nogil
cdef void give_memory(void* data) noexcept nogil


@cython.final
cdef class KeptBuffer:
    cdef uint8_t* data
    cdef Py_ssize_t size
