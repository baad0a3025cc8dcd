/* The one file `fastq-broker` (and `fastq`): the programs, their Python and their C library, packed into a static executable.
 *
 * The first start unpacks them into a directory of this user, the later ones find them there; then the process becomes the program
 * (execve, no fork): signals, exit codes, the process id and /proc/PID are the program's own.
 *
 * Rules
 * - Nothing is taken for granted but the kernel: no C library, no /proc, no /dev, no /etc. The packed files are a section of this file, so
 *   that it need not find itself.
 * - What is unpacked is code that will run: the directory belongs to the one who runs it and nobody else may write to it, and nobody but
 *   root may rename what is above it. A directory that somebody else has put there is never used, whatever is in it.
 * - A directory under its final name is whole: files are written under another name, synced, and renamed. A cleaner of temporary files
 *   may take some of them later: each start compares the list of files with what is there, and unpacks them again.
 * - Who unpacks holds .lock: several first starts at once unpack once, and what a killed one has left is removed by the next.
 * - Every process holds a shared flock on the directory that it runs from (program.c). Directories of other versions go once nobody holds
 *   them and nobody has started them for a week.
 * - The kernel takes the path of the dynamic linker from the program itself, so the directory's path is written into it over PLACE; the
 *   name of the directory has a hash of its path, as the same directory may have another one in a container.
 *
 * Built by build.py, which defines PAYLOAD (a .tar.z), KEY (hash of what is in it), PLACE, UNPACKED_BYTES.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define BLOCK 512
#define LIST "files"
#define PATCHED "bin/fastq-broker"
#define UNUSED_S (7 * 24 * 3600)
#define TOUCH_S (24 * 3600)
#define WAIT_US 50000
#define SAY_US 5000000

__asm__(".section .rodata\n"
        ".balign 16\n"
        ".global payload\n"
        ".global payload_end\n"
        "payload:\n"
        ".incbin \"" PAYLOAD "\"\n"
        "payload_end:\n"
        ".previous\n");
extern const unsigned char payload[], payload_end[];

static const char *program = "fastq-broker";
static char refusals[8192];

/* Why a directory is not used; with the others' in the error, should there be none. */
static bool refuse(const char *path, const char *form, ...) {
    size_t used = strlen(refusals);
    used += snprintf(refusals + used, sizeof refusals - used, "\n  %s: ", path);
    if (used >= sizeof refusals) return false;
    va_list rest;
    va_start(rest, form);
    vsnprintf(refusals + used, sizeof refusals - used, form, rest);
    va_end(rest);
    return false;
}

/* ---- where ---- */

/* Whether nobody but root, the owner of / and this user can replace `path`, a path without links, which must be this user's. */
static bool is_ours(const char *path) {
    struct stat root, there;
    char part[PATH_MAX];
    if (stat("/", &root) != 0) return refuse(path, "/: %s", strerror(errno));
    for (size_t at = 1, length = strlen(path); at <= length; at++) {
        if (path[at] != '/' && path[at] != 0) continue;
        memcpy(part, path, at);
        part[at] = 0;
        if (lstat(part, &there) != 0) return refuse(path, "%s: %s", part, strerror(errno));
        if (!S_ISDIR(there.st_mode)) return refuse(path, "%s is no directory", part);
        bool last = path[at] == 0;
        if (there.st_uid != geteuid() && (last || (there.st_uid != 0 && there.st_uid != root.st_uid)))
            return refuse(path, "%s belongs to user %u, and this process to user %u", part, there.st_uid, geteuid());
        if ((there.st_mode & 022) != 0 && (last || !(there.st_mode & S_ISVTX)))
            return refuse(path, "others may write to %s (mode %o)", part, there.st_mode & 07777);
    }
    return true;
}

/* Make the last `levels` directories of a path where they are not there, and write its path without links into `base`. */
static bool prepare(const char *path, int levels, char base[PATH_MAX]) {
    char part[PATH_MAX];
    if (path[0] != '/') return refuse(path, "not an absolute path");
    if (strlen(path) >= PATH_MAX) return refuse(path, "%s", strerror(ENAMETOOLONG));
    for (int up = levels - 1; up >= 0; up--) {
        strcpy(part, path);
        for (int i = 0; i < up; i++) {
            char *slash = strrchr(part, '/');
            if (slash == NULL || slash == part) break;
            *slash = 0;
        }
        if (mkdir(part, 0700) != 0 && errno != EEXIST) return refuse(path, "%s", strerror(errno));
    }
    struct stat there;
    if (lstat(path, &there) == 0 && S_ISLNK(there.st_mode) && there.st_uid != 0 && there.st_uid != geteuid())
        return refuse(path, "a link that user %u has made", there.st_uid);
    if (realpath(path, base) == NULL) return refuse(path, "%s", strerror(errno));
    if (!is_ours(base)) return false;
    struct statvfs system;
    if (statvfs(base, &system) == 0 && system.f_flag & ST_NOEXEC) return refuse(path, "mounted noexec: nothing there can be run");
    return true;
}

/* ---- unpacking ---- */

/* The tar file, as it is inflated. */
struct stream {
    z_stream z;
    int error;
};

static bool take(struct stream *in, void *to, size_t count) {
    in->z.next_out = to;
    in->z.avail_out = count;
    while (in->z.avail_out) {
        int code = inflate(&in->z, Z_NO_FLUSH);
        if (in->z.avail_out && code != Z_OK) return errno = EILSEQ, false;
    }
    return true;
}

static bool write_all(int file, const char *from, size_t count) {
    while (count) {
        ssize_t done = write(file, from, count);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        from += done;
        count -= done;
    }
    return true;
}

/* Write `place` over every PLACE of the bytes; what followed it in its string moves up to it. */
static void write_place(char *bytes, size_t count, const char *place) {
    size_t old = strlen(PLACE), new = strlen(place);
    char *end = bytes + count;
    for (char *at = bytes; (at = memmem(at, end - at, PLACE, old)) != NULL;) {
        size_t rest = strnlen(at + old, end - at - old);
        memcpy(at, place, new);
        memmove(at + new, at + old, rest);
        memset(at + new + rest, 0, old - new);
        at += new + rest;
    }
}

static bool unpack_file(struct stream *in, int root, const char *name, mode_t mode, size_t size, const char *place) {
    static char buffer[1 << 18];
    int file = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (file < 0) return false;
    bool ok = true;
    if (strcmp(name, PATCHED) == 0) {
        char *whole = malloc(size);
        ok = whole != NULL && take(in, whole, size);
        if (ok) {
            write_place(whole, size, place);
            ok = write_all(file, whole, size);
        }
        free(whole);
    } else {
        for (size_t left = size, part; ok && left; left -= part) {
            part = left < sizeof buffer ? left : sizeof buffer;
            ok = take(in, buffer, part) && write_all(file, buffer, part);
        }
    }
    int error = errno;
    if (close(file) != 0 && ok) return false;
    errno = error;
    return ok && take(in, buffer, -size & (BLOCK - 1));
}

/* All files into the directory `root`, for a program that will be found at `place`. */
static bool unpack(int root, const char *place) {
    struct stream in = {0};
    if (inflateInit(&in.z) != Z_OK) return errno = ENOMEM, false;
    in.z.next_in = (unsigned char *)payload;
    in.z.avail_in = payload_end - payload;
    char header[BLOCK], name[257], target[101];
    bool ok;
    while ((ok = take(&in, header, BLOCK)) && header[0]) {
        snprintf(name, sizeof name, "%.155s%s%.100s", header + 345, header[345] ? "/" : "", header);
        char digits[13] = {0};
        memcpy(digits, header + 124, 12);
        size_t size = strtoull(digits, NULL, 8), length = strlen(name);
        if (length && name[length - 1] == '/') name[length - 1] = 0;
        snprintf(target, sizeof target, "%.100s", header + 157);
        if (header[156] == '5')
            ok = mkdirat(root, name, 0700) == 0;
        else if (header[156] == '2')
            ok = symlinkat(target, root, name) == 0;
        else
            ok = unpack_file(&in, root, name, header[104] == '7' ? 0700 : 0600, size, place);
        if (!ok) break;
    }
    int error = errno;
    inflateEnd(&in.z);
    errno = error;
    return ok;
}

/* Whether the directory `place` is this user's, and every file of its list is in it, with its size: "SIZE NAME" a line. */
static bool is_whole(const char *place) {
    struct stat there;
    int root = open(place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0) return false;
    int file = openat(root, LIST, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    char *text = NULL;
    bool ok = file >= 0 && fstat(root, &there) == 0 && there.st_uid == geteuid() && (there.st_mode & 022) == 0
              && fstat(file, &there) == 0 && there.st_size > 0 && (text = malloc(there.st_size + 1)) != NULL
              && read(file, text, there.st_size) == there.st_size;
    if (ok) text[there.st_size] = 0;
    for (char *line = text; ok && *line;) {
        char *name, *end = strchr(line, '\n');
        long long size = strtoll(line, &name, 10);
        if (end == NULL || *name != ' ') {
            ok = false;
            break;
        }
        *end = 0;
        ok = fstatat(root, name + 1, &there, 0) == 0 && S_ISREG(there.st_mode) && there.st_size == size;
        line = end + 1;
    }
    if (file >= 0) close(file);
    close(root);
    free(text);
    return ok;
}

static int remove_one(const char *path, const struct stat *there, int kind, struct FTW *walk) {
    (void)there, (void)walk;
    if (kind == FTW_DP ? rmdir(path) : unlink(path)) return 0; /* whoever comes next tries again */
    return 0;
}

static void remove_tree(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT); }

/* Remove what unpackings that were killed have left, and versions that nobody uses. The lock is held. */
static void tidy(const char *base, const char *own) {
    DIR *directory = opendir(base);
    if (directory == NULL) return;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char path[PATH_MAX + 320];
        snprintf(path, sizeof path, "%s/%s", base, entry->d_name);
        if (strncmp(entry->d_name, ".new-", 5) == 0 || strncmp(entry->d_name, ".old-", 5) == 0) {
            remove_tree(path);
            continue;
        }
        size_t length = strlen(entry->d_name);
        if (length != strlen(own) || strcmp(entry->d_name, own) == 0 || strspn(entry->d_name, "0123456789abcdef-") != length) continue;
        int held = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        struct stat there;
        if (held < 0) continue;
        if (fstat(held, &there) == 0 && there.st_mtime < time(NULL) - UNUSED_S && flock(held, LOCK_EX | LOCK_NB) == 0) {
            char old[PATH_MAX + 320];
            snprintf(old, sizeof old, "%s/.old-%s", base, entry->d_name);
            if (rename(path, old) == 0) remove_tree(old);
        }
        close(held);
    }
    closedir(directory);
}

/* Unpack into `base`/`name`. */
static bool put(const char *base, const char *name) {
    char path[PATH_MAX + 320], draft[PATH_MAX + 320], old[PATH_MAX + 320];
    snprintf(path, sizeof path, "%s/.lock", base);
    int lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0) return refuse(base, "%s", strerror(errno));
    bool alone = true;
    for (int turn = 1; flock(lock, LOCK_EX | LOCK_NB) != 0 && alone; turn++) {
        alone = errno == EWOULDBLOCK || errno == EINTR; /* else a file system without locks: the rename decides */
        if (turn * WAIT_US == SAY_US) fprintf(stderr, "%s: waiting for another process that unpacks into %s\n", program, base);
        if (alone) usleep(WAIT_US);
    }
    snprintf(path, sizeof path, "%s/%s", base, name);
    bool ok = is_whole(path);
    if (ok) goto end;
    if (alone) tidy(base, name);
    snprintf(draft, sizeof draft, "%s/.new-XXXXXX", base);
    if (mkdtemp(draft) == NULL) {
        refuse(base, "%s", strerror(errno));
        goto end;
    }
    int root = open(draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    ok = root >= 0 && unpack(root, path) && syncfs(root) == 0;
    if (!ok) refuse(base, "%s, while %d MB were unpacked there", strerror(errno), (int)(UNPACKED_BYTES >> 20));
    if (root >= 0) close(root);
    if (ok && rename(draft, path) != 0) {
        /* What is there is not whole. Who runs from it finds the same files under the same names in a moment. */
        snprintf(old, sizeof old, "%s/.old-%s", base, name);
        ok = rename(path, old) == 0 && rename(draft, path) == 0;
        if (!ok && !(ok = is_whole(path))) refuse(base, "%s: %s", path, strerror(errno));
        remove_tree(old);
    }
    if (access(draft, F_OK) == 0) remove_tree(draft);
end:
    close(lock);
    return ok;
}

/* ---- starting ---- */

/* Become the program, from a directory that may hold its files. Returns where that cannot be. */
static void try(const char *path, int levels, char **arguments) {
    char base[PATH_MAX], name[64], place[PATH_MAX + 64], file[PATH_MAX + 128];
    if (!prepare(path, levels, base)) return;
    uint32_t hash = 2166136261u;
    for (const char *at = base; *at; at++) hash = (hash ^ (unsigned char)*at) * 16777619u;
    snprintf(name, sizeof name, KEY "-%08x", hash);
    snprintf(place, sizeof place, "%s%s%s", base, base[1] ? "/" : "", name);
    if (strlen(place) > strlen(PLACE)) {
        refuse(path, "%zu bytes are too long for the path of a directory: at most %zu", strlen(place), strlen(PLACE));
        return;
    }
    if (!is_whole(place) && !put(base, name)) return;
    struct stat there;
    if (stat(place, &there) == 0 && there.st_mtime < time(NULL) - TOUCH_S) utimensat(AT_FDCWD, place, NULL, 0);
    snprintf(file, sizeof file, "%s/bin/%s", place, program);
    execv(file, arguments);
    refuse(path, "%s: %s", file, strerror(errno));
}

static void try_below(const char *variable, const char *rest, int levels, char **arguments) {
    const char *value = variable[0] == '/' ? variable : getenv(variable);
    char path[PATH_MAX];
    if (value == NULL || value[0] != '/') return;
    struct stat there;
    if (levels > 1 && stat(value, &there) == 0 && there.st_uid != geteuid()) { /* sudo: no ~/.cache of another user is made */
        refuse(value, "belongs to user %u, and this process to user %u", there.st_uid, geteuid());
        return;
    }
    size_t length = strlen(value);
    while (length && value[length - 1] == '/') length--;
    if (snprintf(path, sizeof path, "%.*s/%s", (int)length, value, rest) < (int)sizeof path) try(path, levels, arguments);
}

int main(int count, char **arguments) {
    static char *none[] = {"fastq-broker", NULL};
    if (count < 1) arguments = none;
    const char *called = strrchr(arguments[0], '/');
    called = called ? called + 1 : arguments[0];
    if (strncmp(called, "fastq", 5) == 0 && strncmp(called, "fastq-broker", 12) != 0) program = "fastq";
    arguments[0] = (char *)program;
    mode_t mask = umask(077);
    umask(mask); /* files have modes of their own, 0600 and 0700 */

    const char *given = getenv("FASTQ_RUNTIME_DIR");
    if (given != NULL && *given) {
        try(given, 1, arguments);
    } else {
        char of_user[64];
        snprintf(of_user, sizeof of_user, "fastq-%u", geteuid());
        try_below("CACHE_DIRECTORY", "runtime", 1, arguments); /* systemd's, of a unit with CacheDirectory= */
        try_below("XDG_CACHE_HOME", "fastq", 2, arguments);
        try_below("HOME", ".cache/fastq", 2, arguments);
        try_below("TMPDIR", of_user, 1, arguments);
        try_below("/var/tmp", of_user, 1, arguments);
        try_below("/tmp", of_user, 1, arguments);
        try_below("/dev/shm", of_user, 1, arguments);
    }
    fprintf(stderr,
            "%s: its files, %d MB, must be unpacked once, and there is no directory for them:%s\n"
            "Give one in FASTQ_RUNTIME_DIR: the absolute path of a directory that belongs to user %u, that nobody else may write to, and "
            "on a file system that is not mounted noexec.\n",
            program, (int)(UNPACKED_BYTES >> 20), refusals[0] ? refusals : " none is known", geteuid());
    return 1;
}
