/* One small request and its answer on a non-blocking socket, in one go: written, then looked for until a time is over.

   Rules: nothing here waits in the system: between two looks the processor is offered to others. Where sockets are not file descriptors
   (Windows) nothing is written, and the caller goes its usual way. */
#ifndef FASTQ_EXCHANGE_H
#define FASTQ_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)

/* 0. */
static inline int exchange_frames(
    int fd, const uint8_t *out, size_t out_size, uint8_t *in, size_t in_size, int64_t wait_ns, size_t *sent, size_t *received)
{
    (void)fd; (void)out; (void)out_size; (void)in; (void)in_size; (void)wait_ns;
    *sent = *received = 0;
    return 0;
}

#else

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

static inline int64_t exchange_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether a frame is whole, or its size is none that fits. */
static inline int exchange_is_whole(const uint8_t *in, size_t received, size_t in_size)
{
    size_t size;
    if (received < 4)
        return 0;
    size = (size_t)in[0] << 24 | (size_t)in[1] << 16 | (size_t)in[2] << 8 | in[3];
    return received - 4 >= size || size > in_size - 4;
}

/* Write `out`; when all of it is written, receive into `in` until there is a whole frame or `wait_ns` are over. Answers 0, the errno of
   what failed, or -1 when the other side has closed; what was written and received until then is told in any case. */
static inline int exchange_frames(
    int fd, const uint8_t *out, size_t out_size, uint8_t *in, size_t in_size, int64_t wait_ns, size_t *sent, size_t *received)
{
    int64_t end;
    ssize_t count;
    *sent = *received = 0;
    while (*sent < out_size) {
        count = send(fd, out + *sent, out_size - *sent, MSG_NOSIGNAL);
        if (count >= 0)
            *sent += (size_t)count;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        else if (errno != EINTR)
            return errno;
    }
    end = exchange_now_ns() + wait_ns;
    while (*received < in_size && !exchange_is_whole(in, *received, in_size)) {
        count = recv(fd, in + *received, in_size - *received, 0);
        if (count > 0)
            *received += (size_t)count;
        else if (count == 0)
            return -1;
        else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (exchange_now_ns() >= end)
                return 0;
            sched_yield();
        } else if (errno != EINTR)
            return errno;
    }
    return 0;
}

#endif
#endif
