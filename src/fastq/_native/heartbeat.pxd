"""What counts as a sign of life of the application: a cell that iterators increment and the heartbeat thread reads."""

from libc.stdint cimport int64_t


cdef class Progress:
    cdef int64_t* cell
