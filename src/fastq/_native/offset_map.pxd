"""The latest offset of each key as C types: what is asked per record is inline."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "siphash.h" nogil:
    void fastq_siphash128(
        uint64_t k0, uint64_t k1, const uint8_t* p, size_t n, uint64_t* first, uint64_t* second
    ) noexcept
    uint64_t fastq_scale(uint64_t x, uint64_t n) noexcept
    void fastq_prefetch(const void* p) noexcept

cdef struct Slot:
    uint64_t first
    uint64_t second
    int64_t offset                   # one above the offset; 0: free


@cython.final
cdef class OffsetMap:
    cdef Slot* slots
    cdef Py_ssize_t slots_max
    cdef Py_ssize_t used_max         # at the present capacity
    cdef Py_ssize_t used
    cdef int growths                 # how often the capacity can still double
    cdef double load_factor
    cdef uint64_t k0
    cdef uint64_t k1
    cdef readonly Py_ssize_t capacity
    cdef readonly int64_t latest_offset

    cdef int hash_of(self, key, uint64_t* first, uint64_t* second) except -1
    cdef int allocate(self, Py_ssize_t capacity) except -1
    cdef int grow(self) except -1

    cdef inline void hash_bytes(self, const uint8_t* p, Py_ssize_t size, uint64_t* first, uint64_t* second) noexcept:
        fastq_siphash128(self.k0, self.k1, p, size, first, second)

    cdef inline Slot* slot(self, uint64_t first, uint64_t second) noexcept:
        """The slot of a hash: its own, or the free one where it belongs."""
        cdef Py_ssize_t i = <Py_ssize_t>fastq_scale(first, self.capacity)
        while self.slots[i].offset and (self.slots[i].first != first or self.slots[i].second != second):
            i += 1
            if i == self.capacity:
                i = 0
        return &self.slots[i]

    cdef inline void prefetch(self, uint64_t first) noexcept:
        fastq_prefetch(&self.slots[fastq_scale(first, self.capacity)])

    cdef inline int64_t find(self, uint64_t first, uint64_t second) noexcept:
        return self.slot(first, second).offset - 1

    cdef inline int store(self, uint64_t first, uint64_t second, int64_t offset) except -1:
        """Put an offset; 0 when there is no room."""
        cdef Slot* slot = self.slot(first, second)
        if not slot.offset:
            if self.used >= self.used_max:
                if not self.grow():
                    return 0
                slot = self.slot(first, second)
            slot.first = first
            slot.second = second
            self.used += 1
        slot.offset = offset + 1
        return 1
