/* A thread that sends one prepared request at an interval and never touches Python: a group member lives on while nobody can run.

   Rules: `mutex` guards everything but `progress`, which is read atomically; it is not held while the thread waits for the network.
   The socket belongs to the thread alone. A request is answered, or its socket is closed: an answer always belongs to the last
   request. `token` names the settings an answer was got under. Times are CLOCK_MONOTONIC, in nanoseconds. */
#ifndef FASTQ_HEARTBEAT_H
#define FASTQ_HEARTBEAT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEART_ANSWERS_MAX 64
#define HEART_FRAME_MAX (16 * 1024 * 1024)

typedef struct heart_answer {
    struct heart_answer *next;
    int64_t token;
    int leave;                    /* the answer to the farewell */
    size_t size;
    uint8_t bytes[];              /* correlation id and all */
} heart_answer;

typedef struct heart_beat {       /* what is sent; copied by heart_arm */
    const uint8_t *frame;         /* size, header, body; the correlation id at byte 8 is set when it is sent */
    size_t frame_size;
    const uint8_t *leave;         /* sent instead when the application is overdue; NULL for nothing */
    size_t leave_size;
    ptrdiff_t epoch_at;           /* where the member epoch lies in `frame`, or -1 */
    size_t error_at;              /* where the error code lies in the answer, after its size */
    int64_t interval_ns, timeout_ns, poll_limit_ns;   /* poll_limit 0: no limit */
    int64_t token;
} heart_beat;

#if defined(_WIN32)

#define FASTQ_HEARTBEAT_SUPPORTED 0
typedef struct heart { int unused; } heart;
static inline heart *heart_open(int64_t *progress) { (void)progress; return NULL; }
static inline int heart_address(heart *h, const char *ip, int port) { (void)h; (void)ip; (void)port; return -1; }
static inline int heart_arm(heart *h, const heart_beat *beat) { (void)h; (void)beat; return -1; }
static inline void heart_disarm(heart *h) { (void)h; }
static inline void heart_postpone(heart *h) { (void)h; }
static inline void heart_alive(heart *h) { (void)h; }
static inline int64_t heart_overdue_ns(heart *h) { (void)h; return 0; }
static inline int heart_armed(heart *h) { (void)h; return 0; }
static inline int64_t heart_sent(heart *h) { (void)h; return 0; }
static inline int64_t heart_unheard(heart *h) { (void)h; return 0; }
static inline heart_answer *heart_take(heart *h) { (void)h; return NULL; }
static inline void heart_give_back(heart *h, heart_answer *answers) { (void)h; (void)answers; }
static inline void heart_close(heart *h) { (void)h; }

#else

#define FASTQ_HEARTBEAT_SUPPORTED 1
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEART_NEVER INT64_MAX
#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0            /* macOS: SO_NOSIGPIPE does it */
#endif

typedef struct heart {
    pthread_mutex_t mutex;
    pthread_t thread;
    pid_t owner;                  /* the process that has the thread: a forked child has none */
    int wake[2];                  /* a pipe: a byte ends the thread's wait */
    int closing;
    struct sockaddr_storage address;
    socklen_t address_size;
    int moved;                    /* the address changed: the socket is to be closed */
    uint8_t *frame, *leave;
    heart_beat beat;              /* its pointers are the two above */
    int armed;
    int64_t next_ns;              /* when to send */
    int64_t alive_ns;             /* when the application was last seen */
    int64_t overdue_ns;           /* how long it was not, when it was found overdue; else 0 */
    int64_t *progress, progress_seen;
    int64_t sent;
    int64_t unheard;              /* requests whose answers nobody takes: none came, it is of older settings, or there were too many */
    heart_answer *first, *last;
    int answers;
    uint8_t *previous;            /* the last answer under this token that was not taken, without its correlation id */
    size_t previous_size;
    int fd;                       /* the thread's own, like what follows */
    int ending;                   /* it has seen `closing`: no wait any more, the byte that ends one is read */
    int32_t correlation;
} heart;

static int64_t heart_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void heart_wake(heart *h) {
    ssize_t n;
    do n = write(h->wake[1], "", 1); while (n < 0 && errno == EINTR);   /* full: a wake-up is on its way */
}

static void heart_put_i32(uint8_t *p, int32_t value) {
    uint32_t v = (uint32_t)value;
    p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
}

static int32_t heart_get_i32(const uint8_t *p) {
    return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

/* Wait for an event of the socket (or none, fd -1) until `deadline`; a wake-up ends it too when nothing is under way.
   1: the socket is ready; 0: the time is over, or a wake-up; -1: the thread is to end. */
static int heart_wait(heart *h, int fd, short events, int64_t deadline) {
    while (!h->ending) {
        int64_t left = deadline - heart_now();
        if (left < 0) left = 0;
        int ms = left > (int64_t)3600000 * 1000000 ? 3600000 : (int)((left + 999999) / 1000000);
        struct pollfd fds[2] = {{h->wake[0], POLLIN, 0}, {fd, events, 0}};
        int ready = poll(fds, fd < 0 ? 1 : 2, ms);
        if (ready < 0) {
            if (errno == EINTR) continue;
            return 0;
        }
        if (fds[0].revents) {
            char bytes[64];
            while (read(h->wake[0], bytes, sizeof bytes) > 0) {}
            pthread_mutex_lock(&h->mutex);
            h->ending = h->closing;
            pthread_mutex_unlock(&h->mutex);
            if (h->ending) return -1;
            if (fd < 0) return 0;
        }
        if (fd >= 0 && fds[1].revents) return 1;
        if (ready == 0) return 0;
    }
    return -1;
}

static void heart_hang_up(heart *h) {
    if (h->fd >= 0) close(h->fd);
    h->fd = -1;
}

/* A connected socket in h->fd, or a hang-up. */
static void heart_connect(heart *h, const struct sockaddr_storage *address, socklen_t size, int64_t deadline) {
    int one = 1, code = 0;
    socklen_t length = sizeof code;
    h->fd = socket(address->ss_family, SOCK_STREAM, 0);
    if (h->fd < 0) return;
    fcntl(h->fd, F_SETFD, FD_CLOEXEC);
    fcntl(h->fd, F_SETFL, O_NONBLOCK);
    setsockopt(h->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#if defined(SO_NOSIGPIPE)
    setsockopt(h->fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    if (connect(h->fd, (const struct sockaddr *)address, size) == 0) return;
    if (errno != EINPROGRESS || heart_wait(h, h->fd, POLLOUT, deadline) <= 0 ||
        getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &code, &length) < 0 || code != 0)
        heart_hang_up(h);
}

/* Move `size` bytes out or in, all of them; 0, or -1 when the socket is of no use any more. */
static int heart_transfer(heart *h, uint8_t *bytes, size_t size, int out, int64_t deadline) {
    while (size > 0) {
        ssize_t n = out ? send(h->fd, bytes, size, MSG_NOSIGNAL) : recv(h->fd, bytes, size, 0);
        if (n > 0) {
            bytes += n;
            size -= (size_t)n;
        } else if (n == 0 && !out) {
            return -1;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (heart_wait(h, h->fd, out ? POLLOUT : POLLIN, deadline) <= 0) return -1;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 0;
}

/* Send the frame (a copy, which is freed) and read its answer; NULL when there is none. `unheard` counts the tries without one: they may
   have been served all the same. Without the mutex. */
static heart_answer *heart_exchange(heart *h, uint8_t *frame, size_t size, int64_t timeout_ns,
                                    const struct sockaddr_storage *address, socklen_t address_size, int *unheard) {
    heart_answer *answer = NULL;
    /* An idle connection may have been closed by the broker: once more on a fresh one. */
    for (int attempt = 0; attempt < 2 && answer == NULL; attempt++) {
        int64_t deadline = heart_now() + timeout_ns;
        uint8_t head[4];
        int fresh = h->fd < 0;
        if (fresh) heart_connect(h, address, address_size, deadline);
        if (h->fd < 0) break;
        heart_put_i32(frame + 8, ++h->correlation);
        if (heart_transfer(h, frame, size, 1, deadline) == 0 && heart_transfer(h, head, 4, 0, deadline) == 0) {
            int32_t length = heart_get_i32(head);
            if (length >= 6 && length <= HEART_FRAME_MAX &&
                (answer = (heart_answer *)malloc(sizeof *answer + (size_t)length)) != NULL) {
                answer->size = (size_t)length;
                if (heart_transfer(h, answer->bytes, answer->size, 0, deadline) < 0 ||
                    heart_get_i32(answer->bytes) != h->correlation) {
                    free(answer);
                    answer = NULL;
                }
            }
        }
        if (answer == NULL) {
            heart_hang_up(h);
            (*unheard)++;
        }
        if (fresh) break;
    }
    free(frame);
    return answer;
}

/* An unsigned varint at *at; -1 when it does not end inside the answer. */
static int64_t heart_varint(const heart_answer *a, size_t *at) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*at >= a->size) return -1;
        uint8_t byte = a->bytes[(*at)++];
        value |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) return (int64_t)value;
    }
    return -1;
}

/* The member epoch of a ConsumerGroupHeartbeat answer: after the error code, a message and the member id. -1: not there. */
static int32_t heart_epoch(const heart_answer *a, size_t at) {
    for (int i = 0; i < 2; i++) {
        int64_t length = heart_varint(a, &at);
        if (length < 0) return -1;
        if (length > 0) at += (size_t)(length - 1);
    }
    return at + 4 <= a->size ? heart_get_i32(a->bytes + at) : -1;
}

static void heart_keep(heart *h, heart_answer *answer) {
    answer->next = NULL;
    if (h->last == NULL) h->first = answer; else h->last->next = answer;
    h->last = answer;
    if (h->answers >= HEART_ANSWERS_MAX) {
        heart_answer *oldest = h->first;
        h->first = oldest->next;
        h->unheard++;
        free(oldest);
    } else {
        h->answers++;
    }
}

/* Of fastq.errors.ErrorCode, which a test compares with these. */
enum { COORDINATOR_LOAD_IN_PROGRESS = 14, COORDINATOR_NOT_AVAILABLE = 15, REBALANCE_IN_PROGRESS = 27 };

/* Take note of an answer, which is kept when it says something new. With the mutex. */
static void heart_answered(heart *h, heart_answer *answer) {
    size_t at = h->beat.error_at, size = answer->size - 4;
    int code = answer->size >= at + 2 ? (int16_t)(answer->bytes[at] << 8 | answer->bytes[at + 1]) : -1;
    if (code == 0 && h->beat.epoch_at >= 0) {
        int32_t epoch = heart_epoch(answer, at + 2);
        if (epoch > 0) heart_put_i32(h->frame + h->beat.epoch_at, epoch);
    }
    /* The coordinator is not there yet, or there is a rebalance, through which a member lives on. */
    if (code != 0 && code != COORDINATOR_LOAD_IN_PROGRESS && code != COORDINATOR_NOT_AVAILABLE && code != REBALANCE_IN_PROGRESS)
        h->armed = 0;
    if (h->previous_size == size && memcmp(h->previous, answer->bytes + 4, size) == 0) {
        free(answer);
        return;
    }
    uint8_t *copy = (uint8_t *)realloc(h->previous, size);
    h->previous_size = copy == NULL ? 0 : size;
    if (copy != NULL) {
        h->previous = copy;
        memcpy(copy, answer->bytes + 4, size);
    }
    heart_keep(h, answer);
}

/* Send the beat, or the farewell; the mutex is let go meanwhile. */
static void heart_send(heart *h, int leave) {
    size_t size = leave ? h->beat.leave_size : h->beat.frame_size;
    uint8_t *frame = (uint8_t *)malloc(size);
    struct sockaddr_storage address = h->address;
    socklen_t address_size = h->address_size;
    int64_t token = h->beat.token, timeout_ns = h->beat.timeout_ns;
    if (frame == NULL || address_size == 0) {
        free(frame);
        return;
    }
    memcpy(frame, leave ? h->leave : h->frame, size);
    if (h->moved) heart_hang_up(h);
    h->moved = 0;
    h->sent++;
    pthread_mutex_unlock(&h->mutex);
    int unheard = 0;
    heart_answer *answer = heart_exchange(h, frame, size, timeout_ns, &address, address_size, &unheard);
    pthread_mutex_lock(&h->mutex);
    h->unheard += unheard;
    if (answer == NULL) return;
    answer->token = token;
    answer->leave = leave;
    if (h->beat.token != token) {                     /* of settings that are no more */
        free(answer);
        h->unheard++;
    } else if (leave) {
        heart_keep(h, answer);
    } else {
        heart_answered(h, answer);
    }
}

static void *heart_run(void *argument) {
    heart *h = (heart *)argument;
    pthread_mutex_lock(&h->mutex);
    while (!h->closing) {
        int64_t now = heart_now(), until = HEART_NEVER, limit = h->beat.poll_limit_ns;
        if (h->armed) {
            int64_t progress = __atomic_load_n(h->progress, __ATOMIC_RELAXED);
            if (progress != h->progress_seen) {
                h->progress_seen = progress;
                h->alive_ns = now;
            }
            if (limit > 0 && now - h->alive_ns >= limit) {
                h->armed = 0;
                h->overdue_ns = now - h->alive_ns;
                __atomic_store_n(h->progress + 1, 1, __ATOMIC_SEQ_CST);
                if (h->leave != NULL) heart_send(h, 1);
                continue;
            }
            if (now >= h->next_ns) {
                h->next_ns = now + h->beat.interval_ns;
                heart_send(h, 0);
                continue;
            }
            until = h->next_ns;
            if (limit > 0) {
                /* Look at the progress often enough that the limit is kept to an eighth. */
                int64_t look = now + limit / 8, end = h->alive_ns + limit;
                if (look < until) until = look;
                if (end < until) until = end;
            }
        }
        pthread_mutex_unlock(&h->mutex);
        heart_wait(h, -1, 0, until);
        pthread_mutex_lock(&h->mutex);
    }
    pthread_mutex_unlock(&h->mutex);
    heart_hang_up(h);
    return NULL;
}

static void heart_free(heart *h) {
    for (heart_answer *a = h->first; a != NULL;) {
        heart_answer *next = a->next;
        free(a);
        a = next;
    }
    free(h->frame);
    free(h->leave);
    free(h->previous);
    close(h->wake[0]);
    close(h->wake[1]);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}

/* NULL with errno when a descriptor or a thread cannot be had. The thread takes no signals. `progress` outlives the heart. */
static heart *heart_open(int64_t *progress) {
    heart *h = (heart *)calloc(1, sizeof *h);
    if (h == NULL) return NULL;
    if (pipe(h->wake) < 0) {
        free(h);
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(h->wake[i], F_SETFL, O_NONBLOCK);
        fcntl(h->wake[i], F_SETFD, FD_CLOEXEC);
    }
    h->fd = -1;
    h->owner = getpid();
    h->progress = progress;
    h->alive_ns = heart_now();
    pthread_mutex_init(&h->mutex, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&h->thread, NULL, heart_run, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code != 0) {
        heart_free(h);
        errno = code;
        return NULL;
    }
    return h;
}

/* Where to connect to from now on; -1 when the text is no IP address. */
static int heart_address(heart *h, const char *ip, int port) {
    struct sockaddr_storage address;
    socklen_t size;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    memset(&address, 0, sizeof address);
    if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        size = sizeof *v4;
    } else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        size = sizeof *v6;
    } else {
        return -1;
    }
    pthread_mutex_lock(&h->mutex);
    if (size != h->address_size || memcmp(&address, &h->address, size) != 0) {
        h->address = address;
        h->address_size = size;
        h->moved = 1;
    }
    pthread_mutex_unlock(&h->mutex);
    return 0;
}

/* Send this from now on, first after the interval and a half; -1 without memory. Forgets an older beat, and its answers.
   How long the application was away is counted on, and begins anew once it was found overdue. */
static int heart_arm(heart *h, const heart_beat *beat) {
    uint8_t *frame = (uint8_t *)malloc(beat->frame_size);
    uint8_t *leave = beat->leave == NULL ? NULL : (uint8_t *)malloc(beat->leave_size);
    if (frame == NULL || (beat->leave != NULL && leave == NULL)) {
        free(frame);
        free(leave);
        return -1;
    }
    memcpy(frame, beat->frame, beat->frame_size);
    if (leave != NULL) memcpy(leave, beat->leave, beat->leave_size);
    pthread_mutex_lock(&h->mutex);
    free(h->frame);
    free(h->leave);
    h->beat = *beat;
    h->frame = frame;
    h->leave = leave;
    h->previous_size = 0;
    h->armed = 1;
    h->next_ns = heart_now() + beat->interval_ns + beat->interval_ns / 2;
    if (h->overdue_ns != 0) h->alive_ns = heart_now();   /* else it was away for as long as before */
    h->overdue_ns = 0;
    pthread_mutex_unlock(&h->mutex);
    heart_wake(h);
    return 0;
}

static void heart_disarm(heart *h) {
    pthread_mutex_lock(&h->mutex);
    h->armed = 0;
    h->beat.token = -1;
    pthread_mutex_unlock(&h->mutex);
}

/* Somebody else has just sent a heartbeat. */
static void heart_postpone(heart *h) {
    pthread_mutex_lock(&h->mutex);
    h->next_ns = heart_now() + h->beat.interval_ns + h->beat.interval_ns / 2;
    pthread_mutex_unlock(&h->mutex);
}

/* The application has come back; too late once it was found overdue. */
static void heart_alive(heart *h) {
    pthread_mutex_lock(&h->mutex);
    if (h->overdue_ns == 0) h->alive_ns = heart_now();
    pthread_mutex_unlock(&h->mutex);
}

static int64_t heart_overdue_ns(heart *h) {
    pthread_mutex_lock(&h->mutex);
    int64_t overdue = h->overdue_ns == 0 ? 0 : heart_now() - h->alive_ns;
    pthread_mutex_unlock(&h->mutex);
    return overdue;
}

static int heart_armed(heart *h) {
    pthread_mutex_lock(&h->mutex);
    int armed = h->armed;
    pthread_mutex_unlock(&h->mutex);
    return armed;
}

static int64_t heart_sent(heart *h) {
    pthread_mutex_lock(&h->mutex);
    int64_t sent = h->sent;
    pthread_mutex_unlock(&h->mutex);
    return sent;
}

static int64_t heart_unheard(heart *h) {
    pthread_mutex_lock(&h->mutex);
    int64_t unheard = h->unheard;
    pthread_mutex_unlock(&h->mutex);
    return unheard;
}

/* The answers as a list that is the caller's, oldest first. What comes next is news, whatever it says: others may have heard more meanwhile. */
static heart_answer *heart_take(heart *h) {
    pthread_mutex_lock(&h->mutex);
    heart_answer *answers = h->first;
    h->first = h->last = NULL;
    h->answers = 0;
    h->previous_size = 0;
    pthread_mutex_unlock(&h->mutex);
    return answers;
}

/* A list that could not be used after all: it is the beginning of the next one. */
static void heart_give_back(heart *h, heart_answer *answers) {
    heart_answer *last = answers;
    int count = 1;
    if (answers == NULL) return;
    for (; last->next != NULL; last = last->next) count++;
    pthread_mutex_lock(&h->mutex);
    last->next = h->first;
    if (h->last == NULL) h->last = last;
    h->first = answers;
    h->answers += count;
    pthread_mutex_unlock(&h->mutex);
}

/* End the thread, also in the middle of a wait, and free everything; in a forked child, leak it. */
static void heart_close(heart *h) {
    if (h->owner != getpid()) return;
    pthread_mutex_lock(&h->mutex);
    h->closing = 1;
    pthread_mutex_unlock(&h->mutex);
    heart_wake(h);
    pthread_join(h->thread, NULL);
    heart_free(h);
}

#endif
#endif
