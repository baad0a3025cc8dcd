/* The programs of the unpacked binary: CPython, with the directory that launcher.c has put there and nothing of the machine's.
 *
 * By the name of the file that was executed: fastq-broker, fastq, and fastq-python, which is sys.executable: the processes that fastq
 * starts (nodes, the log's cleaner) are `sys.executable -m ...` and `-c ...`, here as anywhere.
 *
 * Rules: the environment's PYTHON* and the machine's site-packages are not heard, text is UTF-8 whatever the locale, and a shared flock on
 * the directory says for the process's life that it is in use (to launcher.c, and to systemd-tmpfiles).
 */
#define _GNU_SOURCE
#include <Python.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <unistd.h>

static volatile const char place_bytes[] = PLACE; /* launcher.c writes over it */

static void hold(const char *place) {
    int directory = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    if (directory < 3) { /* a standard stream is closed, and must stay so */
        int moved = fcntl(directory, F_DUPFD_CLOEXEC, 3);
        close(directory);
        directory = moved;
    }
    flock(directory, LOCK_SH | LOCK_NB);
}

static PyStatus set_path(PyConfig *config, wchar_t **field, const char *place, const char *rest) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s", place, rest);
    return PyConfig_SetBytesString(config, field, path);
}

int main(int count, char **arguments) {
    char place[sizeof place_bytes];
    for (size_t at = 0; at < sizeof place; at++) place[at] = place_bytes[at];
    hold(place);

    const char *file = (const char *)getauxval(AT_EXECFN);
    const char *name = file ? strrchr(file, '/') : NULL;
    name = name ? name + 1 : "fastq-broker";
    int is_python = strcmp(name, "fastq-python") == 0;

    PyStatus status;
    PyPreConfig before;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);

    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config.parse_argv = is_python;
    config.install_signal_handlers = 1;
    config.site_import = 0;
    config.write_bytecode = 0;
    config.buffered_stdio = 1;
    config.module_search_paths_set = 1;
#define SET(call) \
    status = call; \
    if (PyStatus_Exception(status)) Py_ExitStatusException(status)
    SET(PyConfig_SetBytesArgv(&config, count, arguments));
    if (!is_python) {
        SET(PyConfig_SetString(&config, &config.run_command,
                               strcmp(name, "fastq") == 0 ? L"import start; start.fastq()" : L"import start; start.broker()"));
    }
    SET(set_path(&config, &config.program_name, place, "/bin/fastq-python"));
    SET(set_path(&config, &config.executable, place, "/bin/fastq-python"));
    SET(set_path(&config, &config.base_executable, place, "/bin/fastq-python"));
    SET(set_path(&config, &config.home, place, ""));
    SET(set_path(&config, &config.prefix, place, ""));
    SET(set_path(&config, &config.exec_prefix, place, ""));
    SET(set_path(&config, &config.base_prefix, place, ""));
    SET(set_path(&config, &config.base_exec_prefix, place, ""));
    for (const char *const *rest = (const char *const[]){"/python", "/site", NULL}; *rest; rest++) {
        char path[4096];
        snprintf(path, sizeof path, "%s%s", place, *rest);
        wchar_t *wide = Py_DecodeLocale(path, NULL);
        if (wide == NULL) Py_ExitStatusException(PyStatus_NoMemory());
        SET(PyWideStringList_Append(&config.module_search_paths, wide));
        PyMem_RawFree(wide);
    }
    SET(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
    return Py_RunMain();
}
