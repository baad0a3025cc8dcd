"""Native threads that sync and close files: the event loop learns of the end through a descriptor, and no thread waits for the GIL.

Rules
- One SyncThreads is used by one Python thread. Jobs run in any order; the files of one job are synced in the order given.
- The caller keeps a job's descriptors open until `drain` has reported it.
- After a fork the child has no threads: it must not use the object, and freeing it there only leaks.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free


cdef extern from "flusher.h" nogil:
    enum: FASTQ_FLUSHER_SUPPORTED
    ctypedef struct flush_job:
        flush_job* next
        int64_t id
        int code
        int closes
        int count
        int* fds
    ctypedef struct flush_pool:
        pass
    int flush_filesystem(int fd) noexcept
    int flush_range(int fd, int64_t position, int64_t size, int wait) noexcept
    flush_pool* pool_open(int threads) noexcept
    void pool_submit(flush_pool* pool, flush_job* job) noexcept
    flush_job* pool_take(flush_pool* pool) noexcept
    int pool_fd(flush_pool* pool) noexcept
    void pool_clear(flush_pool* pool) noexcept
    void pool_close(flush_pool* pool) noexcept

import os

cdef enum:
    THREADS_MAX = 64


def supported():
    """Whether this platform has such threads."""
    return FASTQ_FLUSHER_SUPPORTED != 0


def sync_filesystem(int fd):
    """Sync everything that waits to be written on the file system of this descriptor; waits for the disk.

    Raises OSError when that fails, or when a write-back has failed since the descriptor was opened (Linux; elsewhere errors stay
    unknown). For many files it costs a fraction of a sync of each.
    """
    cdef int code
    with nogil:
        code = flush_filesystem(fd)
    if code:
        raise OSError(code, os.strerror(code))


def write_range(int fd, int64_t position, int64_t size, bint wait=False):
    """Begin to write a range of a file to the disk, or with `wait` wait for what has been begun; False where neither can be done.

    It spreads the disk's work, and leaves nothing that lasts: only a sync of the file says that. Raises OSError.
    """
    cdef int code
    with nogil:
        code = flush_range(fd, position, size, wait)
    if code > 0:
        raise OSError(code, os.strerror(code))
    return code == 0


cdef int closed() except -1:
    """The cold end of every use after close."""
    raise ValueError("the sync threads are closed")


@cython.final
@cython.auto_pickle(False)
cdef class SyncThreads:
    """A pool of native threads that sync files (fdatasync; F_FULLFSYNC on macOS).

    `threads` is 1 to 64. Raises OSError when threads or a descriptor cannot be had. See the module's rules for threads.
    """

    cdef flush_pool* pool
    cdef object owner

    def __cinit__(self, int threads=4):
        if not 1 <= threads <= THREADS_MAX:
            raise ValueError(f"threads must be 1 to {THREADS_MAX}, got {threads}")
        if not FASTQ_FLUSHER_SUPPORTED:
            raise OSError("this platform has no native sync threads")
        self.pool = pool_open(threads)
        if self.pool == NULL:
            raise OSError("sync threads cannot be started")
        self.owner = os.getpid()

    def __dealloc__(self):
        if self.pool != NULL and self.owner == os.getpid():
            with nogil:
                pool_close(self.pool)
            self.pool = NULL

    def submit(self, int64_t job, fds):
        """Sync the files with these descriptors, in order; `drain` reports `job`."""
        self.add(job, fds, False)

    def close_later(self, int fd):
        """Close a descriptor, which is the threads' from now on. Nothing is reported."""
        self.add(0, (fd,), True)

    cdef int add(self, int64_t job, fds, bint closes) except -1:
        cdef Py_ssize_t count = len(fds)
        cdef Py_ssize_t i
        cdef flush_job* entry
        if self.pool == NULL:
            closed()
        entry = <flush_job*>calloc(1, sizeof(flush_job) + count * sizeof(int))
        if entry == NULL:
            raise MemoryError
        try:
            for i in range(count):
                entry.fds[i] = fds[i]
        except BaseException:
            free(entry)
            raise
        entry.id = job
        entry.count = <int>count
        entry.closes = closes
        pool_submit(self.pool, entry)
        return 0

    def fileno(self):
        """The descriptor that is readable when `drain` has something to report."""
        if self.pool == NULL:
            closed()
        return pool_fd(self.pool)

    def drain(self):
        """(job, errno or 0) of the jobs that have ended since the last call. Never waits."""
        cdef flush_job* entry
        cdef flush_job* following
        if self.pool == NULL:
            closed()
        pool_clear(self.pool)
        entry = pool_take(self.pool)
        ended = []
        while entry != NULL:
            following = entry.next
            ended.append((entry.id, entry.code))
            free(entry)
            entry = following
        return ended

    def close(self):
        """Finish the jobs that wait, and end the threads; waits for the disk. What has not been drained is dropped."""
        if self.pool != NULL:
            with nogil:
                pool_close(self.pool)
            self.pool = NULL
