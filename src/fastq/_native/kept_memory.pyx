"""Large blocks of memory that come and go many times a second, for the modules that share them.

Rules: kept_memory.h has them; its state is this module's, so others cimport these functions.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo

cdef extern from "kept_memory.h":
    void* keep_take(size_t size) noexcept nogil
    void keep_give(void* data) noexcept nogil
    int kept_count "kept.count"
    size_t kept_total "kept.total"


cdef void* take_memory(size_t size) noexcept nogil:
    """Memory for `size` bytes, not cleared; NULL when there is none. Any thread."""
    return keep_take(size)


cdef void give_memory(void* data) noexcept nogil:
    """Give back what `take_memory` answered, NULL too. Any thread."""
    keep_give(data)


@cython.final
@cython.no_gc
cdef class KeptBuffer:
    """`size` bytes, not cleared, for those who take buffers: `memoryview(KeptBuffer(size))` can be written to.

    size: 0 or more. Raises MemoryError. The memory goes back when nobody has a view of it any more. Thread rule: any thread.
    """

    def __cinit__(self, Py_ssize_t size):
        if size < 0:
            raise ValueError(f"a buffer has 0 bytes or more, got {size}")
        self.data = <uint8_t*>take_memory(size)
        if self.data == NULL:
            raise MemoryError(f"no memory for a buffer of {size} bytes")
        self.size = size

    def __dealloc__(self):
        give_memory(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, False, flags)

    def __len__(self):
        return self.size


def kept():
    """(blocks, bytes) that are kept for the next taker."""
    return kept_count, kept_total
