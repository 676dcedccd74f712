/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/unit/testing.h"

static char folder[64];

/* A path inside this run's own folder; the last few stay valid. */
static const char *in_folder(const char *name) {
    static char paths[4][160];
    static unsigned turn;
    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/stowage-test-file-XXXXXX");
        if (mkdtemp(folder) == NULL) CU_FAIL_FATAL("no temporary folder");
    }
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static size_t n_entries(void) {
    size_t n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (dir != NULL) closedir(dir);
    return n;
}

static bool holds(const char *path, const char *expected) {
    char *data = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(path, 1 << 20, &data, &length, NULL);
    bool same = status == STW_STATUS_OK && length == strlen(expected) &&
                memcmp(data, expected, length) == 0 && data[length] == '\0';
    free(data);
    return same;
}

static void writes_and_reads_back(void) {
    const char *path = in_folder("plain");
    CHECK_OK(stw_file_write(path, "stowage\n", 8, err));
    CU_ASSERT_TRUE(holds(path, "stowage\n"));
    CHECK_OK(stw_file_write(path, "again", 5, err));
    CU_ASSERT_TRUE(holds(path, "again"));
    CHECK_OK(stw_file_write(path, NULL, 0, err));
    CU_ASSERT_TRUE(holds(path, ""));
    CU_ASSERT_TRUE(stw_file_exists(path));
    CU_ASSERT_FALSE(stw_file_is_folder(path));
    CU_ASSERT_TRUE(stw_file_is_folder(folder));
    CU_ASSERT_FALSE(stw_file_exists(in_folder("absent")));
    CU_ASSERT_EQUAL(n_entries(), 1);
    unlink(path);
}

/* Larger than the first buffer, so that it grows. */
static void reads_large_files(void) {
    const char *path = in_folder("large");
    enum { LENGTH = 1000003 };
    char *data = malloc(LENGTH), *back = NULL;
    uint64_t length = 0;
    for (size_t i = 0; data != NULL && i < LENGTH; i++) data[i] = (char)(i * 31 % 251);
    CHECK_OK(stw_file_write(path, data, LENGTH, err));
    CHECK_OK(stw_file_read(path, LENGTH, &back, &length, err));
    CU_ASSERT_EQUAL(length, LENGTH);
    CU_ASSERT_TRUE(back != NULL && memcmp(back, data, LENGTH) == 0);
    free(back);
    free(data);
    CHECK_FAILS(stw_file_read(path, LENGTH - 1, &back, &length, err), STW_STATUS_BAD_INPUT,
                "1000003 bytes, expected at most 1000002");
    CU_ASSERT_PTR_NULL(back);
    unlink(path);
}

static void errors_name_the_file(void) {
    char *data = (char *)1;
    uint64_t length = 7;
    CHECK_FAILS(stw_file_read(in_folder("absent"), 100, &data, &length, err), STW_STATUS_IO,
                "absent: cannot be opened: No such file");
    CU_ASSERT_PTR_NULL(data);
    CHECK_FAILS(stw_file_read(in_folder("."), 100, &data, &length, err), STW_STATUS_IO,
                "is a folder");
    CHECK_FAILS(stw_file_write(in_folder("."), "x", 1, err), STW_STATUS_IO, "is a folder");
    CHECK_FAILS(stw_file_write(in_folder("no/such/file"), "x", 1, err), STW_STATUS_IO,
                "no/such/file");
    CHECK_FAILS(stw_file_write("", "x", 1, err), STW_STATUS_IO, "cannot be");
    stw_error kept = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(stw_file_read(in_folder("absent"), 100, &data, &length, &kept), STW_STATUS_IO);
    CU_ASSERT_EQUAL(kept.native, 2); /* ENOENT */
}

static void keeps_permissions(void) {
    const char *path = in_folder("mode");
    struct stat info;
    mode_t before = umask(027);
    CHECK_OK(stw_file_write(path, "x", 1, err));
    CU_ASSERT_EQUAL(stat(path, &info), 0);
    CU_ASSERT_EQUAL(info.st_mode & 0777, 0640);
    CU_ASSERT_EQUAL(chmod(path, 0604), 0);
    CHECK_OK(stw_file_write(path, "y", 1, err));
    CU_ASSERT_EQUAL(stat(path, &info), 0);
    CU_ASSERT_EQUAL(info.st_mode & 0777, 0604);
    umask(before);
    unlink(path);
}

/* A limit on file size stands for a full disk: the write fails in its middle. */
static void failed_write_leaves_the_old_file(void) {
    const char *path = in_folder("kept");
    CHECK_OK(stw_file_write(path, "old", 3, err));
    static const char zeros[100000];
    struct rlimit old, small;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    stw_error e = STW_ERROR_INIT;
    stw_status status = stw_file_write(path, zeros, sizeof zeros, &e);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    CU_ASSERT_EQUAL(status, STW_STATUS_NO_RESOURCES);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "File too large"));
    CU_ASSERT_TRUE(holds(path, "old"));
    CU_ASSERT_EQUAL(n_entries(), 1);
    unlink(path);
}

static void follows_links_and_spares_devices(void) {
    const char *target = in_folder("target"), *link = in_folder("link");
    CHECK_OK(stw_file_write(target, "1", 1, err));
    CU_ASSERT_EQUAL(symlink("target", link), 0);
    CHECK_OK(stw_file_write(link, "2", 1, err));
    struct stat info;
    CU_ASSERT_EQUAL(lstat(link, &info), 0);
    CU_ASSERT_TRUE(S_ISLNK(info.st_mode));
    CU_ASSERT_TRUE(holds(target, "2"));
    unlink(link);
    unlink(target);
    CHECK_OK(stw_file_write("/dev/null", "x", 1, err));
    CU_ASSERT_EQUAL(stat("/dev/null", &info), 0);
    CU_ASSERT_TRUE(S_ISCHR(info.st_mode));
    CHECK_FAILS(stw_file_write("/dev/full", "x", 1, err), STW_STATUS_NO_RESOURCES, "No space left");
}

typedef struct filling {
    const char *text;
    stw_status status;
    char path[160];
} filling;

static stw_status fill(const char *path, void *user, stw_error *err) {
    filling *f = user;
    snprintf(f->path, sizeof f->path, "%s", path);
    FILE *file = fopen(path, "w");
    if (file == NULL) return STW_STATUS_BUG;
    fputs(f->text, file);
    fclose(file);
    return f->status == STW_STATUS_OK ? f->status : stw_fail(err, f->status, path, "no luck");
}

/* A writer that only takes a path fills a temporary file, which appears whole or not at all. */
static void makes_files_by_a_writer(void) {
    const char *path = in_folder("made"), *link = in_folder("link");
    filling f = {.text = "first"};
    CHECK_OK(stw_file_make(path, fill, &f, err));
    CU_ASSERT_TRUE(holds(path, "first"));
    CU_ASSERT_STRING_NOT_EQUAL(f.path, path);
    CU_ASSERT_EQUAL(chmod(path, 0604), 0);
    CU_ASSERT_EQUAL(symlink("made", link), 0);
    f.text = "second";
    CHECK_OK(stw_file_make(link, fill, &f, err));
    CU_ASSERT_TRUE(holds(path, "second"));
    struct stat info;
    CU_ASSERT_EQUAL(stat(path, &info), 0);
    CU_ASSERT_EQUAL(info.st_mode & 0777, 0604);
    f = (filling){.text = "third", .status = STW_STATUS_SOLVER};
    CHECK_FAILS(stw_file_make(path, fill, &f, err), STW_STATUS_SOLVER, "made: no luck");
    CU_ASSERT_TRUE(holds(path, "second"));
    unlink(link);
    CU_ASSERT_EQUAL(n_entries(), 1);
    unlink(path);
    f = (filling){.text = "x"};
    CHECK_OK(stw_file_make("/dev/null", fill, &f, err));
    CU_ASSERT_STRING_EQUAL(f.path, "/dev/null");
    CHECK_FAILS(stw_file_make(in_folder("."), fill, &f, err), STW_STATUS_IO, "is a folder");
    CHECK_FAILS(stw_file_make(in_folder("no/such"), fill, &f, err), STW_STATUS_IO, "no/such");
}

/* To open a FIFO would wait for a writer. */
static void reads_regular_files_only(void) {
    const char *path = in_folder("fifo");
    char *data = NULL;
    uint64_t length = 0;
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    CHECK_FAILS(stw_file_read(path, 100, &data, &length, err), STW_STATUS_IO,
                "fifo: is a FIFO, expected a regular file");
    unlink(path);
    CHECK_FAILS(stw_file_read("/dev/zero", 100, &data, &length, err), STW_STATUS_IO,
                "/dev/zero: is a device");
    int ends[2];
    char name[32];
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    CU_ASSERT_EQUAL(write(ends[1], "abc", 3), 3);
    close(ends[1]);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    CHECK_OK(stw_file_read(name, 100, &data, &length, err));
    CU_ASSERT_TRUE(length == 3 && data != NULL && memcmp(data, "abc", 3) == 0);
    free(data);
    close(ends[0]);
}

static void dash_is_standard_output(void) {
    const char *path = in_folder("stdout");
    fflush(stdout);
    int saved = dup(STDOUT_FILENO), to = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CU_ASSERT_FATAL(saved >= 0 && to >= 0);
    dup2(to, STDOUT_FILENO);
    fputs("first ", stdout); /* what stdio still holds must come before */
    stw_status status = stw_file_write("-", "second", 6, NULL);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(to);
    CU_ASSERT_EQUAL(status, STW_STATUS_OK);
    CU_ASSERT_TRUE(holds(path, "first second"));
    unlink(path);
}

static void dash_is_standard_input(void) {
    int ends[2], saved = dup(STDIN_FILENO);
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    CU_ASSERT_EQUAL(write(ends[1], "from a pipe", 11), 11);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    char *data = NULL;
    uint64_t length = 0;
    CHECK_OK(stw_file_read("-", 11, &data, &length, err));
    CU_ASSERT_EQUAL(length, 11);
    CU_ASSERT_TRUE(data != NULL && strcmp(data, "from a pipe") == 0);
    free(data);
    /* no size is known beforehand, yet the limit holds */
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    CU_ASSERT_EQUAL(write(ends[1], "from a pipe", 11), 11);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    CHECK_FAILS(stw_file_read("-", 10, &data, &length, err), STW_STATUS_BAD_INPUT, "10 bytes");
    CU_ASSERT_PTR_NULL(data);
    CU_ASSERT_TRUE(fcntl(STDIN_FILENO, F_GETFD) >= 0); /* stays open */
    if (saved >= 0) {
        dup2(saved, STDIN_FILENO);
        close(saved);
    }
}

static void leaves_nothing_behind(void) {
    CU_ASSERT_EQUAL(n_entries(), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

STW_TEST_MAIN("core file", {"writes and reads back", writes_and_reads_back},
              {"reads large files", reads_large_files},
              {"errors name the file", errors_name_the_file},
              {"keeps permissions", keeps_permissions},
              {"a failed write leaves the old file", failed_write_leaves_the_old_file},
              {"follows links and spares devices", follows_links_and_spares_devices},
              {"makes files by a writer", makes_files_by_a_writer},
              {"reads regular files only", reads_regular_files_only},
              {"- is standard output", dash_is_standard_output},
              {"- is standard input", dash_is_standard_input},
              {"leaves nothing behind", leaves_nothing_behind})
