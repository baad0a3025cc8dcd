"""The producer's memory: buffers of a few sizes under one bound.

Rules
- `used_bytes` counts open, queued and in-flight batches at their capacity, and compressed ones at their payload, which
  is not the pool's: the batch counts that itself.
- What was given back is kept for the next batch, inside the same bound: fresh memory is slow to touch.
- Buffers of 4 KiB to 2 MiB, in powers of two, are kept in a list a size, each free one holding the address of the
  next; others go back to the machine at once.
Source: Kafka's BufferPool.
"""

cimport cython
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy


cdef inline bint is_pooled(Py_ssize_t capacity) noexcept nogil:
    return (
        (<Py_ssize_t>1 << POOL_CLASS_MIN) <= capacity <= (<Py_ssize_t>1 << POOL_CLASS_MAX)
        and capacity & (capacity - 1) == 0
    )


@cython.final
cdef class BufferPool:
    """Buffers of a few sizes under one bound.

    Invariant: used_bytes + free_bytes <= limit_bytes, except while a split holds both halves and their parent.
    Thread rule: any thread, under the GIL.
    """

    def __cinit__(self, Py_ssize_t limit_bytes):
        self.limit_bytes = limit_bytes

    def __dealloc__(self):
        self.trim(0)

    cdef uint8_t* take(self, Py_ssize_t capacity, bint force=False) noexcept:
        """A buffer of `capacity` bytes (as rounded_capacity answered); NULL when the bound or the machine says no."""
        cdef uint8_t* buffer
        cdef int order
        if self.used_bytes + capacity > self.limit_bytes and not force:
            return NULL
        if is_pooled(capacity):
            order = size_class(capacity)
            buffer = self.free_lists[order]
            if buffer != NULL:
                memcpy(&self.free_lists[order], buffer, sizeof(void*))
                self.free_bytes -= capacity
                self.used_bytes += capacity
                return buffer
        if self.used_bytes + self.free_bytes + capacity > self.limit_bytes:
            self.trim(max(self.limit_bytes - self.used_bytes - capacity, 0))
        buffer = <uint8_t*>malloc(capacity)
        if buffer != NULL:
            self.used_bytes += capacity
        return buffer

    cdef void give(self, uint8_t* buffer, Py_ssize_t capacity) noexcept:
        cdef int order
        self.used_bytes -= capacity
        if (
            not is_pooled(capacity)
            or self.used_bytes + self.free_bytes + capacity > self.limit_bytes
        ):
            free(buffer)
            return
        order = size_class(capacity)
        memcpy(buffer, &self.free_lists[order], sizeof(void*))
        self.free_lists[order] = buffer
        self.free_bytes += capacity

    cdef void trim(self, Py_ssize_t keep_bytes) noexcept:
        """Free kept buffers, small ones first, until at most `keep_bytes` are kept."""
        cdef uint8_t* buffer
        cdef int order
        for order in range(POOL_CLASS_MIN, POOL_CLASS_MAX + 1):
            while self.free_bytes > keep_bytes and self.free_lists[order] != NULL:
                buffer = self.free_lists[order]
                memcpy(&self.free_lists[order], buffer, sizeof(void*))
                free(buffer)
                self.free_bytes -= <Py_ssize_t>1 << order
