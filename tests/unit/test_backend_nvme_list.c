/* SPDX-License-Identifier: Apache-2.0 */
/* Files of NVMe state as `stowage state` finds them: their order, what is wrong with them, whose
 * run goes on, which step all ranks have, and what a look at all checksums finds. The linker hands
 * the calls below to this test (--wrap), so that they can fail. */
#define _GNU_SOURCE /* mkdtemp, O_DIRECT */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/nvme/kept.h"
#include "backend/nvme/nvme.h"
#include "backend/nvme/sum.h"
#include "core/log.h"
#include "tests/unit/testing.h"

/* ---- calls that fail when they are told to ---- */

static int open_code, flock_code, kill_code, readdir_code, direct_code, pread_code;
static int flock_times;   /* after so many calls flock works again; 0: it never does */
static pid_t asked;       /* by kill */
static uint64_t progress; /* bytes */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const mode_t mode =
        (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (open_code == 0 || (flags & O_NOFOLLOW) == 0) return __real_open(path, flags, mode);
    errno = open_code;
    return -1;
}

int __real_flock(int file, int how);
int __wrap_flock(int file, int how);
int __wrap_flock(int file, int how) {
    if (flock_code == 0) return __real_flock(file, how);
    errno = flock_code;
    if (flock_times > 0 && --flock_times == 0) flock_code = 0;
    return -1;
}

int __wrap_kill(pid_t pid, int number);
int __wrap_kill(pid_t pid, int number) {
    asked = pid;
    errno = kill_code;
    return kill_code == 0 && number == 0 ? 0 : -1;
}

struct dirent *__real_readdir(DIR *folder);
struct dirent *__wrap_readdir(DIR *folder);
struct dirent *__wrap_readdir(DIR *folder) {
    if (readdir_code == 0) return __real_readdir(folder);
    errno = readdir_code;
    return NULL;
}

ssize_t __real_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int file, void *to, size_t bytes, off_t offset) {
    const bool direct = (fcntl(file, F_GETFL) & O_DIRECT) != 0;
    const int code = direct && direct_code != 0 ? direct_code : pread_code;
    if (code == 0) return __real_pread(file, to, bytes, offset);
    errno = code;
    return code < 0 ? 0 : -1;
}

void __wrap_stw_progress_add(uint64_t count);
void __wrap_stw_progress_add(uint64_t count) { progress += count; }

static int next_descriptor(void) {
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(file);
    return file;
}

/* ---- a folder ---- */

static char folder[64], path_text[200];
static const char *path_of(const char *name) {
    snprintf(path_text, sizeof path_text, "%s/stowage-nvme-%s.state", folder, name);
    return path_text;
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "nvme-list-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
}

static void remove_folder(void) {
    char path[400];
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
        if (e->d_name[0] != '.') CU_ASSERT_EQUAL(remove(path), 0);
    }
    if (d != NULL) closedir(d);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

typedef struct maker {
    int64_t created_s, pid;
    uint64_t run;
    uint32_t rank;
    const char *host;
    bool copied; /* the inode is another's */
} maker;

/* A file without state, of which records say steps; 0: no record there, UINT64_MAX: damaged. */
static void write_file(const char *path, maker o, uint64_t first, uint64_t second) {
    const uint64_t steps[2] = {first, second};
    struct stat about;
    stw_nvme_header h = {.run = o.run,
                         .rank = o.rank,
                         .world = 16,
                         .local_rank = o.rank,
                         .local_world = 16,
                         .pid = o.pid,
                         .created_s = o.created_s};
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CU_ASSERT_TRUE_FATAL(file >= 0);
    CU_ASSERT_EQUAL(fstat(file, &about), 0);
    h.inode = (uint64_t)about.st_ino + o.copied;
    snprintf(h.host, sizeof h.host, "%s", o.host);
    stw_nvme_header_seal(&h);
    CU_ASSERT_EQUAL(ftruncate(file, 4 * 4096), 0);
    CU_ASSERT_EQUAL(pwrite(file, &h, sizeof h, 0), (ssize_t)sizeof h);
    for (uint32_t i = 0; i < 2; i++) {
        stw_nvme_record r = {.copy = i,
                             .sequence = steps[i],
                             .step = steps[i],
                             .sums_hash = 7,
                             .time_s = 1000 + (int64_t)steps[i]};
        stw_nvme_record_seal(&r, &h);
        if (steps[i] == UINT64_MAX) r.rest[0] = 1;
        if (steps[i] == 0) continue;
        CU_ASSERT_EQUAL(pwrite(file, &r, sizeof r, 4096 * (i + 1)), (ssize_t)sizeof r);
    }
    close(file);
}

static const stw_kept *find(const stw_kept_list *list, const char *name) {
    for (uint32_t i = 0; i < list->n; i++)
        if (strcmp(list->files[i]->path, path_of(name)) == 0) return list->files[i];
    return NULL;
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(text, file);
    fclose(file);
}

static void files_are_listed_in_order(void) {
    static const char *const names[] = {"",  "fifo", "folder", "link", "other", "short",
                                        "c", "d",    "b",      "j",    "a"};
    char other[200];
    stw_kept_list list;
    make_folder();
    const int before = next_descriptor();
    write_file(path_of("a"), (maker){20, 5, 5, 1, "h", false}, 4, 3);
    write_file(path_of("b"), (maker){20, 5, 5, 0, "h", false}, 1, 2);
    write_file(path_of("c"), (maker){10, 5, 9, 3, "h", false}, 0, 0);
    write_file(path_of("d"), (maker){20, 5, 4, 7, "h", false}, UINT64_MAX, 6);
    write_file(path_of("j"), (maker){20, 5, 5, 0, "h", true}, UINT64_MAX, UINT64_MAX);
    put(path_of(""), "no state");
    put(path_of("short"), "no state");
    write_file(path_of("other"), (maker){20, 5, 5, 0, "h", false}, 1, 2);
    int file = open(path_of("other"), O_RDWR | O_CLOEXEC);
    CU_ASSERT_EQUAL(pwrite(file, "\007", 1, 8), 1);
    close(file);
    CU_ASSERT_EQUAL(mkfifo(path_of("fifo"), 0600), 0);
    CU_ASSERT_EQUAL(mkdir(path_of("folder"), 0700), 0);
    CU_ASSERT_EQUAL(symlink("/etc/passwd", path_of("link")), 0);
    static const char *const not [] = {"notes.txt", "stowage-nvme-x.stat", "xstowage-nvme-a.state",
                                       "stowage-nvme-x.state.copy", "stowage-nvm"};
    for (int i = 0; i < 5; i++) {
        snprintf(other, sizeof other, "%s/%s", folder, not [i]);
        put(other, "");
    }
    CHECK_OK(stw_kept_scan(folder, &list, err));
    CU_ASSERT_EQUAL_FATAL(list.n, 11);
    for (uint32_t i = 0; i < 11; i++)
        CU_ASSERT_STRING_EQUAL(list.files[i]->path, path_of(names[i]));

    static const struct {
        const char *name, *problem;
        bool foreign, opened;
        uint32_t n_steps, damaged;
        const char *lacks;
    } expected[] = {
        {"", "it is no state of this version", true, true, 0, 0, "it is no state of this version"},
        {"fifo", "it is no regular file", false, false, 0, 0, "it is no regular file"},
        {"folder", "it is no regular file", false, false, 0, 0, "it is no regular file"},
        {"link", "it is a symbolic link", false, false, 0, 0, "it is a symbolic link"},
        {"other", "it is no state of this version: the file has format 7, this program reads 4",
         true, true, 0, 0,
         "it is no state of this version: the file has format 7, this program reads 4"},
        {"a", NULL, false, true, 2, 0, "no step was committed"},
        {"b", NULL, false, true, 2, 0, "no step was committed"},
        {"c", NULL, false, true, 0, 0, "no step was committed"},
        {"d", NULL, false, true, 1, 1, "no record of a commit is whole"},
        {"j", NULL, false, true, 0, 2, "no record of a commit is whole"}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const stw_kept *k = find(&list, expected[i].name);
        CU_ASSERT_PTR_NOT_NULL_FATAL(k);
        CU_ASSERT_TRUE(k->problem == NULL ? expected[i].problem == NULL
                                          : expected[i].problem != NULL &&
                                                strcmp(k->problem, expected[i].problem) == 0);
        CU_ASSERT_EQUAL(k->foreign, expected[i].foreign);
        CU_ASSERT_EQUAL(k->file >= 0, expected[i].opened);
        CU_ASSERT_EQUAL(k->n_steps, expected[i].n_steps);
        CU_ASSERT_EQUAL(k->damaged, expected[i].damaged);
        CU_ASSERT_EQUAL(k->strange, 0);
        CU_ASSERT_FALSE(k->live);
        CU_ASSERT_EQUAL(k->is_copy, strcmp(expected[i].name, "j") == 0);
        CU_ASSERT_STRING_EQUAL(stw_kept_lacks(k), expected[i].lacks);
        if (k->problem != NULL) CU_ASSERT_EQUAL(k->header.run, 0);
    }
    const stw_kept *a = find(&list, "a"), *b = find(&list, "b");
    for (uint32_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(a->steps[i].step, 4 - i);
        CU_ASSERT_EQUAL(a->steps[i].sequence, 4 - i);
        CU_ASSERT_EQUAL(a->steps[i].sums_hash, 7);
        CU_ASSERT_EQUAL(a->steps[i].copy, i);
        CU_ASSERT_EQUAL(a->steps[i].time_s, 1004 - i);
    }
    CU_ASSERT_EQUAL(b->steps[0].step, 2); /* the newest first, wherever it lies */
    CU_ASSERT_EQUAL(b->steps[0].copy, 1);
    CU_ASSERT_EQUAL(b->steps[1].step, 1);
    CU_ASSERT_EQUAL(b->bytes, 4 * 4096);
    struct stat about;
    CU_ASSERT_EQUAL(stat(path_of("b"), &about), 0);
    CU_ASSERT_EQUAL(b->changed_s, about.st_mtime);
    CU_ASSERT_EQUAL(b->header.rank, 0);
    CU_ASSERT_EQUAL(b->header.run, 5);
    stw_kept_list_free(&list);
    CU_ASSERT_TRUE(list.n == 0 && list.files == NULL);
    CU_ASSERT_EQUAL(next_descriptor(), before);

    /* One file, and what is none. */
    CHECK_OK(stw_kept_scan(path_of("a"), &list, err));
    CU_ASSERT_EQUAL_FATAL(list.n, 1);
    CU_ASSERT_STRING_EQUAL(list.files[0]->path, path_of("a"));
    stw_kept_list_free(&list);
    snprintf(other, sizeof other, "%s/notes.txt", folder);
    CHECK_FAILS(stw_kept_scan(other, &list, err), STW_STATUS_BAD_INPUT,
                "expected a folder, or a file stowage-nvme-*.state");
    CHECK_FAILS(stw_kept_scan("no/such", &list, err), STW_STATUS_IO, "opening the folder: No such");
    readdir_code = EIO;
    CHECK_FAILS(stw_kept_scan(folder, &list, err), STW_STATUS_IO, "reading the folder: Input");
    readdir_code = 0;
    CU_ASSERT_EQUAL(list.n, 0);
    CU_ASSERT_EQUAL(next_descriptor(), before);
    remove_folder();
}

static void what_cannot_be_opened_is_named(void) {
    static const struct {
        int code;
        const char *problem;
    } codes[] = {{ELOOP, "it is a symbolic link"},
                 {EACCES, "this user may not read it"},
                 {EPERM, "this user may not read it"},
                 {EIO, "it cannot be read"}};
    stw_kept_list list;
    stw_kept *kept = NULL;
    make_folder();
    write_file(path_of("a"), (maker){20, 5, 5, 1, "h", false}, 1, 2);
    for (int i = 0; i < 4; i++) {
        open_code = codes[i].code;
        CHECK_OK(stw_kept_scan(folder, &list, err));
        open_code = 0;
        CU_ASSERT_EQUAL_FATAL(list.n, 1);
        CU_ASSERT_STRING_EQUAL(list.files[0]->problem, codes[i].problem);
        CU_ASSERT_STRING_EQUAL(list.files[0]->path, path_of("a"));
        CU_ASSERT_EQUAL(list.files[0]->file, -1);
        char said[100];
        snprintf(said, sizeof said, "%s: it is not removed", codes[i].problem);
        CHECK_FAILS(stw_kept_remove(list.files[0], err), STW_STATUS_BAD_INPUT, said);
        stw_kept_list_free(&list);
    }
    open_code = ENOENT; /* it went meanwhile */
    CHECK_OK(stw_kept_scan(folder, &list, err));
    CU_ASSERT_EQUAL(list.n, 0);
    stw_kept_list_free(&list);
    CHECK_FAILS(stw_kept_open("gone", &kept, err), STW_STATUS_IO, "opening it: No such file");
    open_code = 0;
    CHECK_FAILS(stw_kept_open(folder, &kept, err), STW_STATUS_BAD_INPUT, "no file of NVMe state");
    char *longer = malloc(4097);
    CU_ASSERT_PTR_NOT_NULL_FATAL(longer);
    memset(longer, 'x', 4096);
    longer[4096] = '\0';
    CHECK_FAILS(stw_kept_open(longer, &kept, err), STW_STATUS_USAGE, "name is too long");
    longer[4095] = '\0';
    CHECK_FAILS(stw_kept_open(longer, &kept, err), STW_STATUS_IO, "opening it: File name too long");
    free(longer);
    CU_ASSERT_PTR_NULL(kept);
    pread_code = EIO; /* also a header that cannot be read is told of */
    CHECK_OK(stw_kept_open(path_of("a"), &kept, err));
    pread_code = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
    CU_ASSERT_STRING_EQUAL(kept->problem, "it cannot be read");
    stw_kept_close(kept);
    remove_folder();
}

/* ---- whose run goes on ---- */

static bool is_live(maker o) {
    stw_kept *kept = NULL;
    write_file(path_of("a"), o, 1, 2);
    CHECK_OK(stw_kept_open(path_of("a"), &kept, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
    const bool live = kept->live;
    if (live) {
        char said[160];
        snprintf(said, sizeof said, "process 4711 of host %s uses it: it is not removed",
                 o.host[0] != '\0' ? o.host : "?");
        CHECK_FAILS(stw_kept_remove(kept, err), STW_STATUS_USAGE, said);
    } else {
        flock_code = 0;
        CHECK_OK(stw_kept_remove(kept, err));
        CU_ASSERT_NOT_EQUAL(access(path_of("a"), F_OK), 0);
    }
    stw_kept_close(kept);
    return live;
}

static void runs_that_go_on(void) {
    char host[64] = "";
    CU_ASSERT_EQUAL(gethostname(host, sizeof host - 1), 0);
    const maker mine = {20, 4711, 5, 1, host, false}, copied = {20, 4711, 5, 1, host, true};
    make_folder();
    CU_ASSERT_FALSE(is_live(mine)); /* nobody has a lock */
    flock_code = EWOULDBLOCK;
    CU_ASSERT_TRUE(is_live(mine));
    CU_ASSERT_TRUE(is_live(copied));
    CU_ASSERT_TRUE(is_live((maker){20, 4711, 5, 1, "", false}));
    /* Where there are no locks the process decides. */
    static const struct {
        int kill_code;
        bool live;
    } answers[] = {{0, true}, {EPERM, true}, {ESRCH, false}};
    for (int i = 0; i < 3; i++) {
        flock_code = ENOLCK;
        kill_code = answers[i].kill_code;
        asked = 0;
        CU_ASSERT_EQUAL(is_live(mine), answers[i].live);
        CU_ASSERT_EQUAL(asked, 4711);
    }
    kill_code = 0;
    const maker others[] = {
        copied, {20, 0, 5, 1, host, false}, {20, 4711, 5, 1, "elsewhere", false}};
    for (int i = 0; i < 3; i++) {
        flock_code = ENOLCK;
        CU_ASSERT_FALSE(is_live(others[i]));
    }
    /* The kernel may hold the lock of a killed process for a moment more. */
    flock_code = EWOULDBLOCK;
    flock_times = 3;
    kill_code = ESRCH;
    CU_ASSERT_FALSE(is_live(mine));
    CU_ASSERT_EQUAL(flock_times, 0);
    kill_code = 0;
    /* A lock that somebody takes after the look. */
    stw_kept *kept = NULL;
    write_file(path_of("a"), mine, 1, 2);
    CHECK_OK(stw_kept_open(path_of("a"), &kept, err));
    flock_code = EWOULDBLOCK;
    CHECK_FAILS(stw_kept_remove(kept, err), STW_STATUS_USAGE, "uses it");
    flock_code = ENOLCK;
    CU_ASSERT_EQUAL(unlink(path_of("a")), 0);
    CHECK_FAILS(stw_kept_remove(kept, err), STW_STATUS_IO, "removing it: No such file");
    flock_code = 0;
    stw_kept_close(kept);
    stw_kept_close(NULL);
    remove_folder();
}

static char logged[1000];
static unsigned n_logged;
static void keep_log(stw_log_level level, const char *text, void *user) {
    (void)user;
    n_logged++;
    if (level == STW_LOG_WARN) snprintf(logged, sizeof logged, "%s", text);
}

static const char *warning(void) {
    logged[0] = '\0';
    n_logged = 0;
    stw_log_set(keep_log, NULL);
    stw_kept_warn(folder);
    stw_log_set(NULL, NULL);
    return logged;
}

static void what_runs_left_is_warned_of(void) {
    char expected[400];
    make_folder();
    (void)warning();
    CU_ASSERT_EQUAL(n_logged, 0);
    write_file(path_of("b"), (maker){20, 5, 5, 1, "h", false}, 1, 2);
    snprintf(expected, sizeof expected,
             "runs that ended left state on NVMe, 1 file of 16.00 KiB, such as %s; see: stowage "
             "state list %s",
             path_of("b"), folder);
    CU_ASSERT_STRING_EQUAL(warning(), expected);
    CU_ASSERT_EQUAL(symlink("/etc/passwd", path_of("link")), 0); /* not ours */
    CU_ASSERT_STRING_EQUAL(warning(), expected);
    write_file(path_of("c"), (maker){10, 5, 5, 1, "h", false}, 1, 2);
    snprintf(expected, sizeof expected,
             "runs that ended left state on NVMe, 2 files of 32.00 KiB, such as %s; see: stowage "
             "state list %s",
             path_of("c"), folder);
    CU_ASSERT_STRING_EQUAL(warning(), expected);
    flock_code = EWOULDBLOCK; /* their runs go on */
    (void)warning();
    flock_code = 0;
    CU_ASSERT_EQUAL(n_logged, 0);
    remove_folder();
    (void)warning();
    CU_ASSERT_EQUAL(n_logged, 0);
}

/* ---- which step all ranks have ---- */

static stw_kept made(uint64_t run, uint32_t rank, uint64_t newest, uint64_t older) {
    stw_kept k = {
        .header = {.run = run, .rank = rank, .world = 8, .local_rank = rank % 2, .local_world = 2},
        .n_steps = newest == 0  ? 0
                   : older == 0 ? 1
                                : 2,
        .steps = {{.step = newest}, {.step = older}}};
    return k;
}

/* @return the index of the step of file `of`; its reason must be `why` */
static int whole(stw_kept *files, uint32_t n, uint32_t of, const char *why) {
    stw_kept *list[4];
    char said[160] = "";
    for (uint32_t i = 0; i < n; i++) list[i] = &files[i];
    const stw_kept_list all = {n, list};
    const int found = stw_kept_whole(&all, of, said, sizeof said);
    CU_ASSERT_STRING_EQUAL(said, why);
    CU_ASSERT_EQUAL(stw_kept_whole(&all, of, NULL, sizeof said), found);
    return found;
}

static void ranks_of_a_node_have_one_step(void) {
    stw_kept two[] = {made(1, 4, 7, 6), made(1, 5, 7, 6)};
    CU_ASSERT_EQUAL(whole(two, 2, 0, ""), 0);
    CU_ASSERT_EQUAL(whole(two, 2, 1, ""), 0);
    stw_kept behind[] = {made(1, 4, 7, 6), made(1, 5, 6, 5)};
    CU_ASSERT_EQUAL(whole(behind, 2, 0, "rank 5 has another step"), 1);
    CU_ASSERT_EQUAL(whole(behind, 2, 1, ""), 0);
    stw_kept far_behind[] = {made(1, 4, 7, 6), made(1, 5, 5, 4)};
    CU_ASSERT_EQUAL(whole(far_behind, 2, 0, "rank 5 has another step"), -1);
    CU_ASSERT_EQUAL(whole(far_behind, 2, 1, "rank 4 has another step"), -1);
    stw_kept other_node[] = {made(1, 4, 7, 6), made(1, 6, 7, 6)};
    CU_ASSERT_EQUAL(whole(other_node, 2, 0, "the state of rank 5 is missing"), -1);
    CU_ASSERT_EQUAL(whole(other_node, 2, 1, "the state of rank 7 is missing"), -1);
    stw_kept other_run[] = {made(1, 4, 7, 6), made(2, 5, 7, 6)};
    CU_ASSERT_EQUAL(whole(other_run, 2, 0, "the state of rank 5 is missing"), -1);
    two[1].problem = "it is odd";
    CU_ASSERT_EQUAL(whole(two, 2, 0, "the state of rank 5 is missing"), -1);
    CU_ASSERT_EQUAL(whole(two, 2, 1, "it is odd"), -1);
    stw_kept none = made(1, 4, 0, 0);
    CU_ASSERT_EQUAL(whole(&none, 1, 0, "no step was committed"), -1);
    none.damaged = 1;
    CU_ASSERT_EQUAL(whole(&none, 1, 0, "no record of a commit is whole"), -1);
    none.strange = 1;
    CU_ASSERT_EQUAL(whole(&none, 1, 0, "its records are of another run or rank than its header"),
                    -1);
    /* A file that is no copy comes before one that is; itself before both. */
    for (int order = 0; order < 2; order++) {
        stw_kept three[] = {made(1, 4, 7, 6), made(1, 5, 9, 8), made(1, 5, 7, 6)};
        if (order == 1) three[1] = made(1, 5, 7, 6), three[2] = made(1, 5, 9, 8);
        three[1 + order].is_copy = true;
        CU_ASSERT_EQUAL(whole(three, 3, 0, ""), 0);
        three[1 + order].is_copy = false; /* else the first one */
        CU_ASSERT_EQUAL(whole(three, 3, 0, order == 1 ? "" : "rank 5 has another step"),
                        order == 1 ? 0 : -1);
        three[1].is_copy = three[2].is_copy = true;
        CU_ASSERT_EQUAL(whole(three, 3, 0, order == 1 ? "" : "rank 5 has another step"),
                        order == 1 ? 0 : -1);
    }
    stw_kept own[] = {made(1, 4, 9, 8), made(1, 4, 7, 6), made(1, 5, 7, 6)};
    own[1].is_copy = true;
    CU_ASSERT_EQUAL(whole(own, 3, 1, ""), 0);
}

/* ---- all checksums ---- */

#define ARENA (19ull << 20)
#define FIRST_CUT 1000000ull

/* Step 1 of an arena with two cuts and two parts, copied so that no run goes on. */
static void make_state(const char *path) {
    static const uint64_t cuts[] = {FIRST_CUT, 9ull << 20};
    static const stw_nvme_part parts[] = {{"exp_avg", 0, 9ull << 20},
                                          {"exp_avg_sq", 9ull << 20, 10ull << 20}};
    const stw_nvme_options options = {.folder = folder,
                                      .bytes = ARENA,
                                      .copies = 2,
                                      .rank = 3,
                                      .shape = {true, 2, cuts, 2, parts}};
    const stw_nvme_owner owner = {0, 3, 4, 3, 4, NULL};
    stw_nvme *nvme = NULL;
    uint32_t *memory = NULL;
    CU_ASSERT_EQUAL_FATAL(posix_memalign((void **)&memory, 4096, ARENA), 0);
    for (uint32_t i = 0; i < ARENA / 4; i++) memory[i] = i * 2654435761u;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    CHECK_OK(stw_nvme_own(nvme, &owner, err));
    CHECK_OK(stw_nvme_write(nvme, 0, memory, ARENA, err));
    CHECK_OK(stw_nvme_commit(nvme, 1, err));
    CHECK_OK(stw_nvme_agree(nvme, 1, err));
    CU_ASSERT_EQUAL(rename(stw_nvme_path(nvme), path), 0);
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    free(memory);
}

static void change(const char *path, uint64_t offset) {
    unsigned char byte = 0;
    int file = open(path, O_RDWR | O_CLOEXEC);
    CU_ASSERT_EQUAL(pread(file, &byte, 1, (off_t)offset), 1);
    byte ^= 8;
    CU_ASSERT_EQUAL(pwrite(file, &byte, 1, (off_t)offset), 1);
    close(file);
}

static stw_kept *open_state(const char *path) {
    stw_kept *kept = NULL;
    CHECK_OK(stw_kept_open(path, &kept, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
    CU_ASSERT_PTR_NULL_FATAL(kept->problem);
    CU_ASSERT_EQUAL_FATAL(kept->n_steps, 1);
    return kept;
}

static stw_kept_check verify(const char *path) {
    stw_kept *kept = open_state(path);
    stw_kept_check check;
    progress = 0;
    CHECK_OK(stw_kept_verify(kept, &kept->steps[0], &check, err));
    CU_ASSERT_EQUAL(progress, check.bytes);
    stw_kept_close(kept);
    return check;
}

static void all_checksums_are_compared(void) {
    static const uint64_t cell = 64 << 10;
    char path[200];
    stw_nvme_places places;
    make_folder();
    const int before = next_descriptor();
    snprintf(path, sizeof path, "%s", path_of("a"));
    make_state(path);
    stw_kept *kept = open_state(path);
    const stw_nvme_header h = kept->header;
    const stw_kept_step step = kept->steps[0];
    CU_ASSERT_EQUAL(h.run, 1); /* in place of 0, which is no run */
    CU_ASSERT_STRING_EQUAL(h.plan, "");
    CU_ASSERT_EQUAL(h.n_cuts, 3);
    /* 15 whole cells and a rest up to the first cut, as many up to the second, and 10 MiB */
    CU_ASSERT_EQUAL(h.n_cells, 16 + ((9ull << 20) - FIRST_CUT + cell - 1) / cell + 160);
    CU_ASSERT_TRUE_FATAL(stw_nvme_places_of(h.bytes, h.n_cuts, h.n_cells, &places));
    CU_ASSERT_EQUAL(kept->bytes, places.end);
    stw_kept_close(kept);
    stw_kept_check check = verify(path);
    CU_ASSERT_EQUAL(check.bytes, ARENA);
    CU_ASSERT_EQUAL(check.damaged, 0);
    CU_ASSERT_STRING_EQUAL(check.first, "");
    direct_code = EINVAL; /* a device with stricter rules */
    CU_ASSERT_EQUAL(verify(path).bytes, ARENA);
    direct_code = 0;

    const uint64_t copy = places.copies[step.copy];
    change(path, copy + 15 * cell); /* the short cell before the cut */
    change(path, copy + FIRST_CUT - 1);
    check = verify(path);
    const uint64_t small = FIRST_CUT - 15 * cell;
    CU_ASSERT_EQUAL(check.damaged, 1);
    CU_ASSERT_EQUAL(check.bytes, ARENA - small);
    CU_ASSERT_STRING_EQUAL(check.first, "bytes 983040 to 1000000 (exp_avg from its byte 983040)");
    change(path, copy + ARENA - 1);
    change(path, copy + FIRST_CUT + cell);
    change(path, copy + FIRST_CUT + 2 * cell);
    check = verify(path);
    CU_ASSERT_EQUAL(check.damaged, 4);
    CU_ASSERT_EQUAL(check.bytes, ARENA - small - 3 * cell);
    CU_ASSERT_EQUAL(strncmp(check.first, "bytes 983040 ", 13), 0);
    change(path, places.copies[1 - step.copy]); /* the other copy is not looked at */
    CU_ASSERT_EQUAL(verify(path).damaged, 4);

    /* Lists. */
    kept = open_state(path);
    const uint64_t lists[] = {places.cuts, places.cuts + 31, places.sums[step.copy],
                              places.sums[step.copy] + 8 * h.n_cells - 1};
    for (int i = 0; i < 4; i++) {
        change(path, lists[i]);
        CHECK_OK(stw_kept_verify(kept, &step, &check, err));
        CU_ASSERT_EQUAL(check.damaged, 1);
        CU_ASSERT_EQUAL(check.bytes, 0);
        CU_ASSERT_STRING_EQUAL(check.first, "the list of checksums of step 1 is damaged");
        change(path, lists[i]);
    }
    /* The disk. */
    const int codes[] = {EIO, -1};
    for (int i = 0; i < 2; i++) {
        pread_code = codes[i];
        CHECK_FAILS(stw_kept_verify(kept, &step, &check, err), STW_STATUS_IO,
                    "reading its checksums: Input/output error");
        pread_code = 0;
    }
    direct_code = EIO;
    CHECK_FAILS(stw_kept_verify(kept, &step, &check, err), STW_STATUS_IO,
                "reading its state: Input/output error");
    direct_code = 0;
    /* A list that is whole and too long. */
    uint64_t *sums = calloc(h.n_cells + 1, sizeof *sums);
    CU_ASSERT_PTR_NOT_NULL_FATAL(sums);
    CU_ASSERT_EQUAL(pread(kept->file, sums, 8 * h.n_cells + 8, (off_t)places.sums[step.copy]),
                    (ssize_t)(8 * h.n_cells + 8));
    stw_kept_step longer = step;
    longer.sums_hash = stw_nvme_sum(sums, 8 * h.n_cells + 8);
    kept->header.n_cells++;
    CHECK_OK(stw_kept_verify(kept, &longer, &check, err));
    char said[80];
    snprintf(said, sizeof said, "%llu cells, %llu were expected", (unsigned long long)h.n_cells,
             (unsigned long long)h.n_cells + 1);
    CU_ASSERT_STRING_EQUAL(check.first, said);
    kept->header.bytes = UINT64_MAX;
    CHECK_FAILS(stw_kept_verify(kept, &longer, &check, err), STW_STATUS_BUG, "was not verified");
    free(sums);
    stw_kept_close(kept);
    CU_ASSERT_EQUAL(next_descriptor(), before);
    remove_folder();
}

STW_TEST_MAIN("backend nvme list", {"files are listed in order", files_are_listed_in_order},
              {"what cannot be opened is named", what_cannot_be_opened_is_named},
              {"runs that go on", runs_that_go_on},
              {"what runs left is warned of", what_runs_left_is_warned_of},
              {"ranks of a node have one step", ranks_of_a_node_have_one_step},
              {"all checksums are compared", all_checksums_are_compared})
