/* Threads that sync and remove files and never touch Python: a queue of jobs, a list of results, a descriptor that becomes readable.

   Rules: `mutex` guards queue, results and counters; a job belongs to the queue, then to one thread, then to the results, where it stays
   until its outcome has been handed over: pool_first shows it, pool_drop frees it. Its descriptors are the caller's to keep open until then.
   A job's files are taken in order; its code is the errno of the first that failed, which is number `at`, and the rest is left alone.
   To remove a file can take long: its pages and blocks are freed, and what is being written of it is waited for. */
#ifndef FASTQ_FLUSHER_H
#define FASTQ_FLUSHER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct flush_job {
    struct flush_job *next;
    int64_t id;
    int code;
    int at;
    int count;
    int kind;
    int64_t content[];
} flush_job;

/* What a job does with its `count` files, and what `content` is. */
enum {
    FLUSH_SYNC,                   /* descriptors as int */
    FLUSH_REMOVE,                 /* paths, each with its NUL: files, or directories that are empty */
    FLUSH_BEGIN                   /* descriptor, position and size of a range whose write-back is begun */
};

#if defined(_WIN32)

#define FASTQ_FLUSHER_SUPPORTED 0
static inline int flush_filesystem(int fd) { (void)fd; return 0; }
static inline int flush_range(int fd, int64_t position, int64_t size, int wait) {
    (void)fd; (void)position; (void)size; (void)wait;
    return -1;
}
static inline int flush_reserve(int fd, int64_t position, int64_t size) {
    (void)fd; (void)position; (void)size;
    return -1;
}
static inline int flush_resident(int fd, int64_t position, int64_t size) {
    (void)fd; (void)position; (void)size;
    return -1;
}
typedef struct flush_pool { int unused; } flush_pool;
static inline flush_pool *pool_open(int threads) { (void)threads; return NULL; }
static inline void pool_submit(flush_pool *pool, flush_job *job) { (void)pool; (void)job; }
static inline int pool_ended(flush_pool *pool) { (void)pool; return 0; }
static inline flush_job *pool_first(flush_pool *pool) { (void)pool; return NULL; }
static inline void pool_drop(flush_pool *pool) { (void)pool; }
static inline void pool_again(flush_pool *pool) { (void)pool; }
static inline int pool_fd(flush_pool *pool) { (void)pool; return -1; }
static inline void pool_clear(flush_pool *pool) { (void)pool; }
static inline void pool_close(flush_pool *pool) { (void)pool; }

#else

#define FASTQ_FLUSHER_SUPPORTED 1
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/eventfd.h>
#include <sys/syscall.h>
#endif

typedef struct flush_pool {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    flush_job *first, *last;      /* waiting */
    flush_job *ended, *ended_last;
    int ended_count;
    int closing;
    int started;                  /* threads that run */
    int read_fd, write_fd;        /* the same descriptor when it is an eventfd */
    pid_t owner;                  /* the process that has the threads: a forked child has none */
    pthread_t threads[64];
} flush_pool;

static int flush_sync(int fd) {
    int result;
    do {
#if defined(__APPLE__)
        result = fcntl(fd, F_FULLFSYNC);
        if (result < 0 && (errno == ENOTSUP || errno == EINVAL)) result = fsync(fd);
#elif defined(__linux__)
        result = fdatasync(fd);
#else
        result = fsync(fd);
#endif
    } while (result < 0 && errno == EINTR);
    if (result == 0) return 0;
    int code = errno;
    /* Some file systems have no sync of a directory: see Files.sync_names. */
    struct stat found;
    if ((code == EINVAL || code == ENOTSUP) && fstat(fd, &found) == 0 && S_ISDIR(found.st_mode)) return 0;
    return code;
}

/* Sync the whole file system of a descriptor; the errno of a write-back that failed since it was opened, or 0. */
static inline int flush_filesystem(int fd) {
#if defined(__linux__)
    extern int syncfs(int);
    int result;
    do {
        result = syncfs(fd);
    } while (result < 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
#else
    (void)fd;
    sync();
    return 0;
#endif
}

/* Have the kernel write a range of a file, or with `wait` wait until what it writes of that is written: 0, an errno, or -1 where a
   range cannot be written by itself. Neither makes a file last: that is flush_sync's. */
static inline int flush_range(int fd, int64_t position, int64_t size, int wait) {
#if defined(__linux__)
    extern int sync_file_range(int, int64_t, int64_t, unsigned);
    if (sync_file_range(fd, position, size, wait ? 1 : 2) == 0) return 0; /* SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE */
    return errno == ENOSYS || errno == ESPIPE || errno == EINVAL ? -1 : errno;
#else
    (void)fd; (void)position; (void)size; (void)wait;
    return -1;
#endif
}

/* Take room of the disk for a range past a file's end, whose size stays: 0, -1 where the system or the file system cannot, or errno. */
static inline int flush_reserve(int fd, int64_t position, int64_t size) {
#if defined(FALLOC_FL_KEEP_SIZE)
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)position, (off_t)size) == 0) return 0;
    return errno == ENOSYS || errno == EOPNOTSUPP || errno == ENODEV || errno == EINVAL ? -1 : errno;
#else
    (void)fd; (void)position; (void)size;
    return -1;
#endif
}

/* Whether all pages of a range are in the page cache: 1 or 0; -1 where the system cannot tell, or does not tell this user. The call is
   Linux 6.5's cachestat, which has one number on all machines but for those that count from elsewhere. */
static inline int flush_resident(int fd, int64_t position, int64_t size) {
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)) && defined(__LP64__)
    uint64_t range[2] = {(uint64_t)position, (uint64_t)size};
    uint64_t found[5] = {0, 0, 0, 0, 0};                /* cached, dirty, in write-back, evicted, recently evicted */
    int64_t page = sysconf(_SC_PAGESIZE);
    if (position < 0 || size <= 0 || page <= 0) return -1;
    if (syscall(451, fd, range, found, 0) != 0) return -1;
    return found[0] >= (uint64_t)((position + size - 1) / page - position / page + 1);
#else
    (void)fd; (void)position; (void)size;
    return -1;
#endif
}

static void flush_signal(flush_pool *pool) {
    uint64_t one = 1;
    ssize_t written;
    do {
        written = write(pool->write_fd, &one, pool->read_fd == pool->write_fd ? sizeof one : 1);
    } while (written < 0 && errno == EINTR);      /* EAGAIN: it is readable already */
}

/* Do a job and note the errno of the first file that failed. One that is not there needs no removal. */
static void flush_do(flush_job *job) {
    const char *path = (const char *)job->content;
    const int *fds = (const int *)job->content;
    for (; job->at < job->count; job->at++) {
        if (job->kind == FLUSH_REMOVE) {
            if (remove(path) != 0 && errno != ENOENT) job->code = errno;
            path += strlen(path) + 1;
        } else if (job->kind == FLUSH_BEGIN) {
            const int64_t *range = job->content + 3 * job->at;
            int code = flush_range((int)range[0], range[1], range[2], 0);
            job->code = code > 0 ? code : 0;      /* -1: such a system begins by itself */
        } else {
            job->code = flush_sync(fds[job->at]);
        }
        if (job->code != 0) break;
    }
}

static void *flush_run(void *argument) {
    flush_pool *pool = (flush_pool *)argument;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->first == NULL && !pool->closing) pthread_cond_wait(&pool->wake, &pool->mutex);
        flush_job *job = pool->first;
        if (job == NULL) break;                   /* closing, and nothing waits */
        pool->first = job->next;
        if (pool->first == NULL) pool->last = NULL;
        pthread_mutex_unlock(&pool->mutex);
        flush_do(job);
        job->next = NULL;
        pthread_mutex_lock(&pool->mutex);
        if (pool->ended_last == NULL) pool->ended = job; else pool->ended_last->next = job;
        pool->ended_last = job;
        pool->ended_count++;
        flush_signal(pool);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static int flush_open_descriptors(flush_pool *pool) {
#if defined(__linux__)
    pool->read_fd = pool->write_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return pool->read_fd < 0 ? -1 : 0;
#else
    int ends[2];
    if (pipe(ends) < 0) return -1;
    for (int i = 0; i < 2; i++) {
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    }
    pool->read_fd = ends[0];
    pool->write_fd = ends[1];
    return 0;
#endif
}

static void pool_close(flush_pool *pool);

/* NULL with errno when descriptors or threads cannot be had. Threads take no signals. */
static flush_pool *pool_open(int threads) {
    flush_pool *pool = (flush_pool *)calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    if (flush_open_descriptors(pool) < 0) {
        free(pool);
        return NULL;
    }
    pool->owner = getpid();
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = 0;
    while (pool->started < threads && code == 0) {
        code = pthread_create(&pool->threads[pool->started], NULL, flush_run, pool);
        if (code == 0) pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (pool->started == 0) {
        pool_close(pool);
        errno = code;
        return NULL;
    }
    return pool;
}

static inline void pool_submit(flush_pool *pool, flush_job *job) {
    pthread_mutex_lock(&pool->mutex);
    job->next = NULL;
    if (pool->last == NULL) pool->first = job; else pool->last->next = job;
    pool->last = job;
    pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

/* How many jobs have ended and are not dropped yet. */
static inline int pool_ended(flush_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    int count = pool->ended_count;
    pthread_mutex_unlock(&pool->mutex);
    return count;
}

/* The one of them that ended first, NULL when there are none. It is the pool's until pool_drop. */
static inline flush_job *pool_first(flush_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    flush_job *job = pool->ended;
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

/* Free the one of them that ended first. */
static inline void pool_drop(flush_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    flush_job *job = pool->ended;
    if (job != NULL) {
        pool->ended = job->next;
        if (pool->ended == NULL) pool->ended_last = NULL;
        pool->ended_count--;
    }
    pthread_mutex_unlock(&pool->mutex);
    free(job);
}

/* Make the descriptor readable again where jobs have ended that are not dropped. */
static inline void pool_again(flush_pool *pool) {
    if (pool_ended(pool) > 0) flush_signal(pool);
}

static inline int pool_fd(flush_pool *pool) { return pool->read_fd; }

/* Make the descriptor unreadable; jobs that end from now on make it readable again. */
static inline void pool_clear(flush_pool *pool) {
    char buffer[512];
    while (read(pool->read_fd, buffer, pool->read_fd == pool->write_fd ? 8 : sizeof buffer) > 0) {
        if (pool->read_fd == pool->write_fd) break;
    }
}

/* Finish the jobs that wait, end the threads, free everything; in a forked child, leak it. */
static void pool_close(flush_pool *pool) {
    if (pool->owner != getpid()) return;
    pthread_mutex_lock(&pool->mutex);
    pool->closing = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->threads[i], NULL);
    for (flush_job *job = pool->ended; job != NULL;) {
        flush_job *next = job->next;
        free(job);
        job = next;
    }
    close(pool->read_fd);
    if (pool->write_fd != pool->read_fd) close(pool->write_fd);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

#endif
#endif
