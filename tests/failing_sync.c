/* Preloaded into a node of tests/nodes_apart.py: syncs fail with EIO for as long as the file that FAILING_SYNC names is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define REPLACE(name)                                          \
    int name(int fd)                                           \
    {                                                          \
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        const char *path = getenv("FAILING_SYNC");             \
        if (path && access(path, F_OK) == 0) {                 \
            errno = EIO;                                       \
            return -1;                                         \
        }                                                      \
        return real(fd);                                       \
    }

REPLACE(fsync)
REPLACE(fdatasync)
REPLACE(syncfs)
