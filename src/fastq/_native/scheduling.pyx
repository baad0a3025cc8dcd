"""How soon, and for how long at a time, the scheduler lets a thread run beside others that want its core.

Rules
- The share of a core stays what it is. Who asks for long slices is interrupted by whoever wakes up and has short ones, as all have by
  themselves (Linux 6.12 and later: EEVDF takes a slice from each); who waits for a core gets one later, and keeps it for longer.
- Where the system knows no such thing nothing happens: older Linux takes the request and leaves all as it was.
"""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "scheduling.h" nogil:
    int set_slice(uint64_t slice_ns) noexcept

SLICE_US_MAX = 100_000


def set_slice_us(int64_t slice_us):
    """Ask for this slice for the calling thread, in microseconds; 0: the system's own. Whether the system has taken the request.

    Threads and processes that it begins from then on have the same. slice_us: 0 to SLICE_US_MAX, which the kernel's bounds are. Raises
    ValueError. Nice values and the policy stay; a thread with another policy than SCHED_OTHER or SCHED_BATCH has no slice.
    """
    if slice_us < 0 or slice_us > SLICE_US_MAX:
        raise ValueError(f"a slice is 0 to {SLICE_US_MAX} us long, got {slice_us}")
    return set_slice(<uint64_t>slice_us * 1000) == 0
