"""Native threads that sync and remove files: the event loop learns of the end through a descriptor, and no thread waits for the GIL.

Rules
- One SyncThreads is used by one Python thread. Jobs run in any order; the files of one job are taken in the order given.
- The caller keeps a job's descriptors open until `take` has reported it. A job stays here until then, whatever `take` raises.
- After a fork the child has no threads: it must not use the object, and freeing it there only leaks.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy


cdef extern from "flusher.h" nogil:
    enum: FASTQ_FLUSHER_SUPPORTED
    enum:
        FLUSH_SYNC
        FLUSH_REMOVE
        FLUSH_BEGIN
    ctypedef struct flush_job:
        flush_job* next
        int64_t id
        int code
        int at
        int count
        int kind
        int64_t* content
    ctypedef struct flush_pool:
        pass
    int flush_filesystem(int fd) noexcept
    int flush_range(int fd, int64_t position, int64_t size, int wait) noexcept
    int flush_reserve(int fd, int64_t position, int64_t size) noexcept
    int flush_resident(int fd, int64_t position, int64_t size) noexcept
    flush_pool* pool_open(int threads) noexcept
    void pool_submit(flush_pool* pool, flush_job* job) noexcept
    int pool_ended(flush_pool* pool) noexcept
    flush_job* pool_first(flush_pool* pool) noexcept
    void pool_drop(flush_pool* pool) noexcept
    void pool_again(flush_pool* pool) noexcept
    int pool_fd(flush_pool* pool) noexcept
    void pool_clear(flush_pool* pool) noexcept
    void pool_close(flush_pool* pool) noexcept

import os
from array import array

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


def reserve_range(int fd, int64_t position, int64_t size):
    """Take room of the disk for a range past a file's end, whose size stays (fallocate with FALLOC_FL_KEEP_SIZE); False where the system
    or the file system cannot.

    A truncation to the file's own size gives it back. Raises OSError.
    """
    cdef int code
    with nogil:
        code = flush_reserve(fd, position, size)
    if code > 0:
        raise OSError(code, os.strerror(code))
    return code == 0


def is_resident(int fd, int64_t position, int64_t size):
    """Whether all pages of a range of a file are in the page cache; None where the system cannot tell (Linux before 6.5, others) or does not
    tell this user (who may not write to the file), and for an empty range.

    It has the kernel read nothing. A read with RWF_NOWAIT does: of what is not there it begins a read-ahead, and waits for memory, and
    for a place in the disk's queue, before it says so. A page that is being read counts as there.
    """
    cdef int code
    with nogil:
        code = flush_resident(fd, position, size)
    return None if code < 0 else code != 0


cdef int closed() except -1:
    """The cold end of every use after close."""
    raise ValueError("the sync threads are closed")


@cython.final
@cython.auto_pickle(False)
cdef class SyncThreads:
    """A pool of native threads that sync files (fdatasync; F_FULLFSYNC on macOS) and remove them.

    `threads` is 1 to 64. Raises OSError when threads or a descriptor cannot be had. See the module's rules for threads.
    """

    cdef flush_pool* pool

    def __cinit__(self, int threads=4):
        if not 1 <= threads <= THREADS_MAX:
            raise ValueError(f"threads must be 1 to {THREADS_MAX}, got {threads}")
        if not FASTQ_FLUSHER_SUPPORTED:
            raise OSError("this platform has no native sync threads")
        self.pool = pool_open(threads)
        if self.pool == NULL:
            raise OSError("sync threads cannot be started")

    def __dealloc__(self):
        if self.pool != NULL:
            with nogil:
                pool_close(self.pool)
            self.pool = NULL

    def submit(self, int64_t job, fds):
        """Sync the files with these descriptors, in order; `take` reports `job`."""
        self._add(job, array("i", fds).tobytes(), len(fds), FLUSH_SYNC)

    def remove(self, int64_t job, paths):
        """Unlink the files at these paths, and remove directories that are empty by then, in order; `take` reports `job`.

        What is not there is passed over.
        """
        raw = [os.fsencode(path) for path in paths]
        if any(b"\0" in path for path in raw):
            raise ValueError("a path with a null byte")
        self._add(job, b"".join(path + b"\0" for path in raw), len(raw), FLUSH_REMOVE)

    def begin(self, int64_t job, int fd, int64_t position, int64_t size):
        """Begin to write a range of the file to the disk, as `write_range` does; `take` reports `job`."""
        self._add(job, array("q", (fd, position, size)).tobytes(), 1, FLUSH_BEGIN)

    cdef int _add(self, int64_t job, bytes content, Py_ssize_t count, int kind) except -1:
        cdef flush_job* entry
        if self.pool == NULL:
            closed()
        entry = <flush_job*>calloc(1, sizeof(flush_job) + PyBytes_GET_SIZE(content))
        if entry == NULL:
            raise MemoryError
        memcpy(entry.content, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
        entry.id = job
        entry.count = <int>count
        entry.kind = kind
        pool_submit(self.pool, entry)
        return 0

    def fileno(self):
        """The descriptor that is readable when there is something to `take`."""
        if self.pool == NULL:
            closed()
        return pool_fd(self.pool)

    def ended(self):
        """How many jobs have ended that `take` has not reported. Never waits. The descriptor is readable again when more end."""
        if self.pool == NULL:
            closed()
        pool_clear(self.pool)
        return pool_ended(self.pool)

    def take(self, dict jobs not None):
        """Of the job that ended first of them: what `jobs` has under its number, from where it goes; errno or 0; number of the file that
        failed. None where there is none. Never waits. MemoryError, KeyError: it is still there, and in `jobs`."""
        cdef flush_job* entry
        cdef object number, taken
        if self.pool == NULL:
            closed()
        entry = pool_first(self.pool)
        if entry == NULL:
            return None
        number = entry.id
        taken = (jobs[number], entry.code, entry.at)
        del jobs[number]  # nothing from here on needs memory
        pool_drop(self.pool)
        return taken

    def again(self):
        """Have the descriptor be readable where not all that has ended was taken."""
        if self.pool == NULL:
            closed()
        pool_again(self.pool)

    def close(self):
        """Finish the jobs that wait, and end the threads; waits for the disk. What has not been taken is dropped."""
        if self.pool != NULL:
            with nogil:
                pool_close(self.pool)
            self.pool = NULL
