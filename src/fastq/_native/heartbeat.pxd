"""What counts as a sign of life of the application: a cell that iterators increment and the heartbeat thread reads."""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    /* Writers have the GIL, the heartbeat thread reads without it. The same two instructions as a plain increment. */
    static inline void fastq_count_one(int64_t *cell) {
    #if defined(_MSC_VER)
        ++*cell;
    #else
        __atomic_store_n(cell, *cell + 1, __ATOMIC_RELAXED);
    #endif
    }
    """
    void count_one "fastq_count_one"(int64_t* cell) noexcept nogil


cdef class Progress:
    cdef int64_t* cell               # how often; and not 0 when no more is to be handed out
