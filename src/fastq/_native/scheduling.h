/* The slice of a thread in Linux's fair scheduler: sched_setattr(2), which the C library may not have. */

#ifndef FASTQ_SCHEDULING_H
#define FASTQ_SCHEDULING_H

#include <stdint.h>

#if defined(__linux__)
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__linux__) && defined(SYS_sched_setattr) && defined(SYS_sched_getattr)

/* struct sched_attr as it was first; the kernel fills in, and takes, as much as `size` says. */
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} slice_attributes;

/* The calling thread's slice in ns, 0 for the system's own; all else of its scheduling stays. 0, or an errno. */
static inline int set_slice(uint64_t slice_ns) {
    slice_attributes now = {0};
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0) return errno;
    if (now.policy != 0 && now.policy != 3) return ENOTSUP; /* SCHED_OTHER and SCHED_BATCH: to others `runtime` is something else */
    now.size = sizeof now;
    now.runtime = slice_ns;
    return syscall(SYS_sched_setattr, 0, &now, 0) == 0 ? 0 : errno;
}

#else

#include <errno.h>
static inline int set_slice(uint64_t slice_ns) { (void)slice_ns; return ENOTSUP; }

#endif
#endif
