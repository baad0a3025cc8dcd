"""A native thread that keeps a group member alive while no Python can run: it sends one prepared request at an interval.

Rules
- The thread stands in: whoever sends a heartbeat from Python calls `postpone`, so that it sends only when that did not happen for one
  and a half intervals. It connects by itself, so it serves plain connections only (no TLS, no SASL).
- Answers that say something new are kept for `take`; what nobody will hear of is counted (`unheard`), as a coordinator tells an assignment
  once. After one that is an error (but for a rebalance, or a coordinator that is not
  ready) it sends no more until it is armed again.
- When the application gave no sign of life (`alive`, or progress) for `poll_limit_s`, it sends the farewell and nothing more
  (KIP-62: max.poll.interval.ms).
- After a fork the child has no thread: it must not use the object, and freeing it there only leaks.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free


cdef extern from "heartbeat.h" nogil:
    enum: FASTQ_HEARTBEAT_SUPPORTED
    ctypedef struct heart_answer:
        heart_answer* next
        int64_t token
        int leave
        size_t size
        uint8_t* bytes
    ctypedef struct heart_beat:
        const uint8_t* frame
        size_t frame_size
        const uint8_t* leave
        size_t leave_size
        ptrdiff_t epoch_at
        size_t error_at
        int64_t interval_ns
        int64_t timeout_ns
        int64_t poll_limit_ns
        int64_t token
    ctypedef struct heart:
        pass
    heart* heart_open(int64_t* progress) noexcept
    int heart_address(heart* h, const char* ip, int port) noexcept
    int heart_arm(heart* h, const heart_beat* beat) noexcept
    void heart_disarm(heart* h) noexcept
    void heart_postpone(heart* h) noexcept
    void heart_alive(heart* h) noexcept
    int64_t heart_overdue_ns(heart* h) noexcept
    int heart_armed(heart* h) noexcept
    int64_t heart_sent(heart* h) noexcept
    int64_t heart_unheard(heart* h) noexcept
    heart_answer* heart_take(heart* h) noexcept
    void heart_give_back(heart* h, heart_answer* answers) noexcept
    void heart_close(heart* h) noexcept

cdef enum:
    HEADER_BYTES_MIN = 14
    NS_PER_MS = 1000000


def supported():
    """Whether this platform has such threads."""
    return FASTQ_HEARTBEAT_SUPPORTED != 0


cdef int closed() except -1:
    """The cold end of every use after close."""
    raise ValueError("the heartbeat thread is closed")


@cython.final
@cython.auto_pickle(False)
cdef class Progress:
    """Counts records handed out. Whoever hands out adds; the heartbeat thread looks whether it grew.

    When the member's place is given up for want of such signs, whoever gives it up says so here first: iterators then hand out no more
    of what they hold, which is somebody else's to handle.
    """

    def __cinit__(self):
        self.cell = <int64_t*>calloc(2, sizeof(int64_t))
        if self.cell == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.cell)

    def add(self):
        """A sign of life."""
        count_one(self.cell)

    @property
    def count(self):
        """How often there was one."""
        return self.cell[0]

    @property
    def stopped(self):
        """Whether iterators ask before they hand out another record."""
        return self.cell[1] != 0

    @stopped.setter
    def stopped(self, bint value):
        self.cell[1] = value


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class HeartbeatThread:
    """One thread, one connection of its own, one member. See the rules of the module.

    Raises OSError when a thread or a descriptor cannot be had. Thread rule: any thread, but not during `close`.
    Invariant: nothing clears `progress` while the thread runs. So a collection must not: what it finds in a cycle it empties before
    it is freed, but for what is not in its books, which this is not, as it refers to nothing that could refer back.
    """

    cdef heart* heart
    cdef Progress progress       # the thread reads its cell

    def __cinit__(self, Progress progress not None):
        if not FASTQ_HEARTBEAT_SUPPORTED:
            raise OSError("this platform has no native heartbeat thread")
        self.progress = progress
        self.heart = heart_open(progress.cell)
        if self.heart == NULL:
            raise OSError("a heartbeat thread cannot be started")

    def __dealloc__(self):
        if self.heart != NULL:
            with nogil:
                heart_close(self.heart)
            self.heart = NULL

    def connect_to(self, str ip, int port):
        """Where the coordinator is, from the next request on. Raises ValueError for what is not an IP address and a port."""
        cdef bytes text = ip.encode()
        if self.heart == NULL:
            closed()
        if not 0 < port < 65536 or heart_address(self.heart, text, port) != 0:
            raise ValueError(f"an IP address and a port are needed, got {ip!r} and {port}")

    def arm(self, int64_t token, frame not None, *, size_t error_at, ptrdiff_t epoch_at=-1,
            int64_t interval_ms, int64_t timeout_ms, int64_t poll_limit_ms=0, leave=None):
        """Send `frame` (size, header and body; any correlation id) at the interval, first after one and a half.

        token: comes back with the answers. error_at: where the error code lies in an answer, counted from the correlation id.
        epoch_at: where the member epoch lies in `frame`, which then follows that of the answers (ConsumerGroupHeartbeat). timeout_ms:
        for connecting and an answer. poll_limit_ms 0: the application may be away for ever. leave: the farewell.
        """
        cdef heart_beat beat
        cdef Py_buffer frame_view
        cdef Py_buffer leave_view
        if self.heart == NULL:
            closed()
        if interval_ms <= 0 or timeout_ms <= 0:
            raise ValueError("interval_ms and timeout_ms are above 0")
        PyObject_GetBuffer(frame, &frame_view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(b"" if leave is None else leave, &leave_view, PyBUF_SIMPLE)
            try:
                if frame_view.len < HEADER_BYTES_MIN or epoch_at + 4 > frame_view.len:
                    raise ValueError(f"{frame_view.len} bytes are no request with an epoch at {epoch_at}")
                if leave is not None and leave_view.len < HEADER_BYTES_MIN:
                    raise ValueError(f"{leave_view.len} bytes are no request")
                beat.frame = <const uint8_t*>frame_view.buf
                beat.frame_size = frame_view.len
                beat.leave = NULL
                if leave is not None:
                    beat.leave = <const uint8_t*>leave_view.buf
                beat.leave_size = leave_view.len
                beat.epoch_at = epoch_at
                beat.error_at = error_at
                beat.interval_ns = interval_ms * NS_PER_MS
                beat.timeout_ns = timeout_ms * NS_PER_MS
                beat.poll_limit_ns = poll_limit_ms * NS_PER_MS
                beat.token = token
                if heart_arm(self.heart, &beat) != 0:
                    raise MemoryError
            finally:
                PyBuffer_Release(&leave_view)
        finally:
            PyBuffer_Release(&frame_view)

    def disarm(self):
        """Send nothing until armed again; an answer on its way is dropped, which `unheard` counts."""
        if self.heart == NULL:
            closed()
        heart_disarm(self.heart)

    def postpone(self):
        """Python has just sent a heartbeat itself."""
        if self.heart == NULL:
            closed()
        heart_postpone(self.heart)

    def alive(self):
        """The application has come back (it polls)."""
        if self.heart == NULL:
            closed()
        heart_alive(self.heart)

    @property
    def overdue_s(self):
        """Seconds without a sign of life, once the application was found overdue and until it is armed again; else 0."""
        if self.heart == NULL:
            closed()
        return heart_overdue_ns(self.heart) / 1e9

    @property
    def armed(self):
        """Whether it sends."""
        return self.heart != NULL and heart_armed(self.heart) != 0

    @property
    def sent(self):
        """How many requests it has sent."""
        if self.heart == NULL:
            closed()
        return heart_sent(self.heart)

    @property
    def unheard(self):
        """How many requests had no answer that `take` could give: none came, or it was dropped. They may have been served all the same."""
        if self.heart == NULL:
            closed()
        return heart_unheard(self.heart)

    def take(self):
        """(token, is the farewell's, answer from the correlation id on) of the answers since the last call, oldest first. Where there is no
        memory for them, the next call has them."""
        cdef heart_answer* taken
        cdef heart_answer* answer
        if self.heart == NULL:
            closed()
        answers = []
        taken = answer = heart_take(self.heart)
        try:
            while answer != NULL:
                answers.append((answer.token, answer.leave != 0, answer.bytes[:answer.size]))
                answer = answer.next
        except BaseException:
            if self.heart != NULL:
                heart_give_back(self.heart, taken)
            raise
        while taken != NULL:
            answer = taken.next
            free(taken)
            taken = answer
        return answers

    def close(self):
        """End the thread at once and close its connection. Idempotent."""
        cdef heart* mine = self.heart
        self.heart = NULL
        if mine != NULL:
            with nogil:
                heart_close(mine)
