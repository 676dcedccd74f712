/* SPDX-License-Identifier: Apache-2.0 */
/* What writers of files leave behind, and what they do to links, FIFOs and descriptors. */
#define _GNU_SOURCE /* O_TMPFILE */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/unit/testing.h"

/* A file system that gives a file without a name none later. */
static bool no_linkat;
int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    errno = EXDEV;
    return no_linkat ? -1 : __real_linkat(from_folder, from, to_folder, to, flags);
}

static char folder[] = "/tmp/stowage-test-left-XXXXXX";

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
    bool same = status == STW_STATUS_OK && strcmp(data, expected) == 0;
    free(data);
    return same;
}

static void on_signal(int number) {
    stw_file_on_signal();
    signal(number, SIG_DFL);
    raise(number);
}

typedef struct ending {
    int number; /* the signal that ends the process in the middle of the file */
    int calls, ends_at;
} ending;

static stw_status fill(const char *path, void *user, stw_error *err) {
    ending *e = user;
    FILE *file = fopen(path, "w");
    if (file == NULL) return stw_fail(err, STW_STATUS_BUG, path, "cannot be opened");
    fputs("half", file);
    fflush(file);
    if (++e->calls == e->ends_at) raise(e->number);
    fputs(" whole", file);
    fclose(file);
    return STW_STATUS_OK;
}

/* The signal that ended the process which wrote `path`, 0 if none did. */
static int end_while_writing(const char *path, ending e) {
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGTERM, on_signal);
        _exit(stw_file_make(path, fill, &e, NULL) == STW_STATUS_OK ? 0 : 1);
    }
    int status = 0;
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static bool has_unnamed_files(void) {
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0 && access("/proc/self/fd", F_OK) == 0;
}

static void leaves_nothing_when_ended(void) {
    static const int numbers[] = {SIGTERM, SIGKILL};
    CU_ASSERT_EQUAL_FATAL(chdir(folder), 0);
    for (int old = 0; old < 2; old++) {
        for (size_t i = 0; i < 2; i++) {
            if (numbers[i] == SIGKILL && !has_unnamed_files()) continue;
            CU_ASSERT_EQUAL(end_while_writing("a", (ending){numbers[i], 0, 1}), numbers[i]);
            CU_ASSERT_EQUAL(n_entries(), (size_t)old);
        }
        CHECK_OK(stw_file_write("a", "old", 3, err));
        CU_ASSERT_TRUE(holds("a", "old"));
    }
    CU_ASSERT_EQUAL(end_while_writing("a", (ending){SIGTERM, 0, 0}), 0);
    CU_ASSERT_TRUE(holds("a", "half whole"));
    CU_ASSERT_EQUAL(n_entries(), 1);
    unlink("a");
}

/* The named temporary file of other file systems is removed by the handler. */
static void leaves_nothing_without_linkat(void) {
    int second = has_unnamed_files() ? 2 : 1; /* the file is filled again, with a name */
    no_linkat = true;
    CU_ASSERT_EQUAL(end_while_writing("a", (ending){SIGTERM, 0, second}), SIGTERM);
    CU_ASSERT_EQUAL(n_entries(), 0);
    CHECK_OK(stw_file_write("a", "first", 5, err));
    CHECK_OK(stw_file_write("a", "second", 6, err));
    CU_ASSERT_TRUE(holds("a", "second"));
    CU_ASSERT_EQUAL(end_while_writing("a", (ending){SIGTERM, 0, second}), SIGTERM);
    CU_ASSERT_TRUE(holds("a", "second"));
    CU_ASSERT_EQUAL(n_entries(), 1);
    no_linkat = false;
    unlink("a");
}

static void writes_the_target_of_a_link(void) {
    struct stat info;
    CU_ASSERT_EQUAL(mkdir("sub", 0700), 0);
    CU_ASSERT_EQUAL(symlink("sub/target", "link"), 0);
    CU_ASSERT_EQUAL(symlink("link", "second"), 0);
    for (int i = 0; i < 2; i++) { /* the target does not exist, then it does */
        CHECK_OK(stw_file_write("second", i == 0 ? "1" : "2", 1, err));
        CU_ASSERT_TRUE(lstat("link", &info) == 0 && S_ISLNK(info.st_mode));
        CU_ASSERT_TRUE(lstat("second", &info) == 0 && S_ISLNK(info.st_mode));
        CU_ASSERT_TRUE(holds("sub/target", i == 0 ? "1" : "2"));
    }
    unlink("sub/target");
    ending e = {0};
    CHECK_OK(stw_file_make("link", fill, &e, err));
    CU_ASSERT_TRUE(holds("sub/target", "half whole"));
    CU_ASSERT_TRUE(lstat("link", &info) == 0 && S_ISLNK(info.st_mode));
    unlink("link");
    CU_ASSERT_EQUAL(symlink("link", "link"), 0);
    CHECK_FAILS(stw_file_write("link", "x", 1, err), STW_STATUS_IO, "link: cannot be written: Too");
    CU_ASSERT_TRUE(lstat("link", &info) == 0 && S_ISLNK(info.st_mode));
    unlink("link");
    unlink("second");
    unlink("sub/target");
    rmdir("sub");
}

static void does_not_wait_for_a_reader(void) {
    ending e = {0};
    char read_back[16] = "";
    CU_ASSERT_EQUAL(mkfifo("fifo", 0600), 0);
    alarm(20); /* a writer that waits is ended */
    CHECK_FAILS(stw_file_write("fifo", "x", 1, err), STW_STATUS_IO, "fifo: is a FIFO that no");
    CHECK_FAILS(stw_file_make("fifo", fill, &e, err), STW_STATUS_IO, "fifo: is a FIFO that no");
    int fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    CHECK_OK(stw_file_write("fifo", "written", 7, err));
    CU_ASSERT_EQUAL(read(fd, read_back, sizeof read_back), 7);
    CHECK_OK(stw_file_make("fifo", fill, &e, err));
    CU_ASSERT_EQUAL(read(fd, read_back, sizeof read_back), 10);
    alarm(0);
    close(fd);
    CU_ASSERT_EQUAL(n_entries(), 1);
    unlink("fifo");
}

/* A descriptor that is open is written where it stands, whatever it is. */
static void writes_descriptors(void) {
    char name[32];
    int fd = open("to", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL(write(fd, "before ", 7), 7);
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    CHECK_OK(stw_file_write(name, "after", 5, err));
    CU_ASSERT_TRUE(holds("to", "before after"));
    close(fd);
    CHECK_FAILS(stw_file_write(name, "x", 1, err), STW_STATUS_NO_RESOURCES, "it is closed");
    unlink("to");
    CHECK_FAILS(stw_file_write("", "x", 1, err), STW_STATUS_IO, "name of the output file is empty");
    CHECK_FAILS(stw_file_write("no/such", "x", 1, err), STW_STATUS_IO, "its folder does not exist");
}

int main(void) {
    if (mkdtemp(folder) == NULL) return 1;
    static const stw_test tests[] = {
        {"a signal while a file is written leaves nothing", leaves_nothing_when_ended},
        {"nor where files without names get none later", leaves_nothing_without_linkat},
        {"a link stays, and its target is written", writes_the_target_of_a_link},
        {"a FIFO without a reader is refused", does_not_wait_for_a_reader},
        {"descriptors are written in place", writes_descriptors},
    };
    int failed = stw_test_run_all("core file left", tests, sizeof tests / sizeof tests[0]);
    if (chdir("/") != 0 || rmdir(folder) != 0) return 1;
    return failed;
}
