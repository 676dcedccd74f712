/* SPDX-License-Identifier: Apache-2.0 */
/* What is readable of an NVMe arena with two copies after its process has ended: the last step that
 * has all its checksums, or nothing. */
#define _GNU_SOURCE /* mkdtemp, posix_memalign */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "backend/nvme/names.h"
#include "tests/unit/nvme_case.h"

/* A process that is killed in the middle of a step cannot close anything. */
static void survives_a_kill(void) {
    char path[512];
    const char *folder = make_folder();
    fflush(NULL);
    pid_t child = fork();
    CU_ASSERT_TRUE_FATAL(child >= 0);
    if (child == 0) {
        stw_nvme *nvme = open_arena(folder, ARENA, 2);
        for (uint64_t step = 1; step <= 3; step++) {
            write_step(nvme, ARENA, step);
            if (stw_nvme_commit(nvme, step, NULL) != STW_STATUS_OK) _exit(1);
            if (stw_nvme_agree(nvme, step, NULL) != STW_STATUS_OK) _exit(1);
        }
        if (stw_nvme_write(nvme, 1000, "half of a step", 14, NULL) != STW_STATUS_OK) _exit(1);
        (void)raise(SIGKILL);
    }
    int result = 0;
    CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
    CU_ASSERT_TRUE(WIFSIGNALED(result));
    snprintf(path, sizeof path, "%s/stowage-nvme-%ld-rank3.state", folder, (long)child);
    check_file(path, ARENA, 3);
    stw_log_set(keep_log, NULL); /* the next run names it */
    logged[0] = '\0';
    stw_kept_warn(folder);
    stw_log_set(NULL, NULL);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, path));
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "stowage state list"));
    CU_ASSERT_EQUAL(unlink(path), 0);
    remove_folder();
}

static void flip_byte(const char *path, off_t offset) {
    char byte = 0;
    int file = open(path, O_RDWR | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(file >= 0);
    CU_ASSERT_EQUAL(pread(file, &byte, 1, offset), 1);
    byte = (char)(byte ^ 0x10);
    CU_ASSERT_EQUAL(pwrite(file, &byte, 1, offset), 1);
    close(file);
}

/* Any byte of the newest record, and the older one is used; the record of step s is number s % 2
 * here. */
static void uses_the_older_record(void) {
    static const off_t places[] = {0,  9,  12, 16, 24,  32,  40,  48,  56,   64,
                                   72, 76, 80, 90, 503, 504, 511, 512, 2048, 4095};
    uint64_t bytes = 0, step = 0;
    stw_nvme *kept = NULL, *nvme = open_arena(make_folder(), ARENA, 2);
    stw_log_set(keep_log, NULL);
    for (uint64_t s = 1; s <= 3; s++) {
        write_step(nvme, ARENA, s);
        commit_and_agree(nvme, s);
        const char *path = snapshot(stw_nvme_path(nvme));
        for (unsigned i = 0; s > 1 && i < sizeof places / sizeof places[0]; i++) {
            off_t newest = 4096 + (off_t)(s % 2) * 4096 + places[i];
            flip_byte(path, newest);
            logged[0] = '\0';
            check_file(path, ARENA, s - 1);
            CU_ASSERT_PTR_NOT_NULL(strstr(logged, "damaged"));
            off_t older = 4096 + (off_t)((s + 1) % 2) * 4096 + places[i];
            flip_byte(path, older);
            CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_BAD_INPUT,
                        "no record of a commit is whole");
            CU_ASSERT_PTR_NULL(kept);
            flip_byte(path, newest);
            flip_byte(path, older);
        }
        check_file(path, ARENA, s);
        CU_ASSERT_EQUAL(unlink(path), 0);
    }
    stw_log_set(NULL, NULL);
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    remove_folder();
}

/* A byte of the newest state or of its checksums, and the step before is used if it is whole: never
 * a mixture. Once the next step has begun there is no step before. */
static void uses_the_older_state(void) {
    const off_t copy = 3 * 1048576 + 4096, copies = 6 * 4096;
    uint64_t bytes = 0, step = 0;
    stw_nvme *kept = NULL, *nvme = open_arena(make_folder(), ARENA, 2);
    stw_log_set(keep_log, NULL);
    for (uint64_t s = 1; s <= 3; s++) {
        write_step(nvme, ARENA, s);
        commit_and_agree(nvme, s);
    }
    const off_t newest = copies + 1 * copy; /* step 1 went to copy 1 */
    const off_t flips[] = {newest, newest + 1234567, newest + (off_t)ARENA - 1, 5 * 4096};
    for (unsigned i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        const char *path = snapshot(stw_nvme_path(nvme));
        flip_byte(path, flips[i]);
        logged[0] = '\0';
        check_file(path, ARENA, 2);
        CU_ASSERT_PTR_NOT_NULL(strstr(logged, "step 2 is used"));
        flip_byte(path, copies + 99); /* of the other copy */
        CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_DISAGREE,
                    "no step of it verifies");
        CU_ASSERT_EQUAL(unlink(path), 0);
    }
    CHECK_OK(stw_nvme_write(nvme, 5, "x", 1, err));
    const char *path = snapshot(stw_nvme_path(nvme));
    check_file(path, ARENA, 3);
    flip_byte(path, newest);
    CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_DISAGREE,
                "bytes 0 to 65536");
    CU_ASSERT_EQUAL(unlink(path), 0);
    stw_log_set(NULL, NULL);
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    remove_folder();
}

/* A file with state of step 1, of another run and rank. */
static void make_state(const char *folder, uint64_t run, uint32_t rank, char *path, size_t size) {
    const stw_nvme_options options = {
        .folder = folder, .bytes = ARENA, .copies = 2, .rank = rank, .shape = {.in_memory = true}};
    const stw_nvme_owner owner = {run, rank, 4, rank, 4, "plan"};
    stw_nvme *nvme = NULL;
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(nvme);
    CHECK_OK(stw_nvme_own(nvme, &owner, err));
    write_step(nvme, ARENA, 1);
    commit_and_agree(nvme, 1);
    CHECK_FAILS(stw_nvme_own(nvme, &owner, err), STW_STATUS_BUG, "after a commit");
    snprintf(path, size, "%s", snapshot(stw_nvme_path(nvme)));
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
}

static void copy_header(const char *from, const char *to) {
    char header[4096];
    int file = open(from, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_EQUAL(read(file, header, sizeof header), (ssize_t)sizeof header);
    close(file);
    file = open(to, O_RDWR | O_CLOEXEC);
    CU_ASSERT_EQUAL(pwrite(file, header, sizeof header, 0), (ssize_t)sizeof header);
    close(file);
}

/* Records belong to their header: under that of another run or rank, whose cuts and sizes are the
 * same, none of them counts. */
static void refuses_another_header(void) {
    static const struct {
        uint64_t run;
        uint32_t rank;
    } others[] = {{78, 3}, {77, 2}, {78, 2}};
    char path[600], other[700], why[200];
    uint64_t bytes = 0, step = 0;
    const char *folder = make_folder();
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        stw_nvme *kept = NULL;
        stw_kept_list list;
        make_state(folder, 77, 3, path, sizeof path);
        snprintf(other, sizeof other, "%s.state", path);
        CU_ASSERT_EQUAL_FATAL(rename(path, other), 0);
        snprintf(path, sizeof path, "%.500s", other);
        check_file(path, ARENA, 1);
        make_state(folder, others[i].run, others[i].rank, other, sizeof other);
        copy_header(other, path);
        CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_BAD_INPUT,
                    "its records are of another run or rank than its header");
        CU_ASSERT_PTR_NULL(kept);
        CHECK_OK(stw_kept_scan(path, &list, err));
        CU_ASSERT_EQUAL_FATAL(list.n, 1);
        CU_ASSERT_EQUAL(list.files[0]->n_steps, 0);
        CU_ASSERT_EQUAL(list.files[0]->damaged, 1);
        CU_ASSERT_EQUAL(stw_kept_whole(&list, 0, why, sizeof why), -1);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "of another run or rank"));
        stw_kept_list_free(&list);
        CU_ASSERT_EQUAL(unlink(path), 0);
        CU_ASSERT_EQUAL(unlink(other), 0);
    }
    remove_folder();
}

/* A step that wrote nothing, of an arena that nobody has written to, is one like others. */
static void keeps_what_was_never_written(void) {
    stw_nvme *nvme = open_arena(make_folder(), ARENA, 2);
    commit_and_agree(nvme, 1);
    const char *path = snapshot(stw_nvme_path(nvme));
    stw_nvme *kept = NULL;
    uint64_t bytes = 0, step = 0;
    CHECK_OK(stw_nvme_open_kept(path, &bytes, &step, &kept, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(kept);
    CU_ASSERT_EQUAL(step, 1);
    CU_ASSERT_TRUE(reads_step(kept, ARENA, 0)); /* zeros */
    stw_nvme_close(kept);
    CU_ASSERT_EQUAL(unlink(path), 0);
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    remove_folder();
}

/* A file of the version before is refused, and both versions are named. */
static void refuses_another_version(void) {
    char path[600];
    uint64_t bytes = 0, step = 0;
    const uint32_t before = STW_NVME_VERSION - 1;
    stw_nvme *kept = NULL;
    make_state(make_folder(), 77, 3, path, sizeof path);
    int file = open(path, O_RDWR | O_CLOEXEC);
    CU_ASSERT_EQUAL(pwrite(file, &before, 4, offsetof(stw_nvme_header, version)), 4);
    close(file);
    CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_BAD_INPUT,
                "no state of this version: the file has format 3, this program reads 4");
    CU_ASSERT_EQUAL(unlink(path), 0);
    remove_folder();
}

static void refuses_other_files(void) {
    uint64_t bytes = 0, step = 0;
    stw_nvme *kept = NULL, *nvme = open_arena(make_folder(), ARENA, 2);
    write_step(nvme, ARENA, 1);
    commit_and_agree(nvme, 1);
    const char *path = snapshot(stw_nvme_path(nvme));
    check_file(path, ARENA, 1);
    CU_ASSERT_EQUAL(truncate(path, 3 * 1048576), 0);
    CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_BAD_INPUT,
                "it does not have the size");
    CU_ASSERT_EQUAL(truncate(path, 100), 0);
    CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_BAD_INPUT,
                "no state of this version");
    CHECK_FAILS(stw_nvme_open_kept(folder_name, &bytes, &step, &kept, err), STW_STATUS_BAD_INPUT,
                "no file of NVMe state");
    CU_ASSERT_EQUAL(unlink(path), 0);
    CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_IO, path);
    CU_ASSERT_PTR_NULL(kept);
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    remove_folder();
}

/* A file that an earlier process of the same id left is somebody's last step. */
static void leaves_files_that_stayed(void) {
    const char *folder = make_folder();
    char first[512], second[512];
    stw_nvme *one = open_arena(folder, ARENA, 2), *two = open_arena(folder, ARENA, 2);
    write_step(one, ARENA, 1);
    commit_and_agree(one, 1);
    commit_and_agree(two, 1);
    snprintf(first, sizeof first, "%s", stw_nvme_path(one));
    snprintf(second, sizeof second, "%s", stw_nvme_path(two));
    CU_ASSERT_STRING_NOT_EQUAL(first, second);
    stw_nvme_release(two);
    stw_nvme_close(two);
    CU_ASSERT_NOT_EQUAL(access(second, F_OK), 0);
    check_kept(first, ARENA, 1);
    stw_nvme_release(one);
    stw_nvme_close(one);
    remove_folder();
}

/* ---- file systems without files that have no name ---- */

static bool forbid_unnamed_files(void) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof lines / sizeof lines[0], .filter = lines};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void end_by_signal(int number) {
    (void)number;
    stw_nvme_on_signal();
    _exit(0);
}

/* In a process of its own: 0 as it should be, 1 not, 77 no filters.
 * @param agrees all ranks have committed a step; @param signals the process ends by a signal */
static int without_unnamed_files(const char *folder, bool agrees, bool signals) {
    if (!forbid_unnamed_files()) return 77;
    stw_nvme *one = open_arena(folder, ARENA, 1);
    bool good = stw_nvme_path(one)[0] == '\0';
    stw_nvme *two = open_arena(folder, ARENA, 2);
    good = good && stw_nvme_path(two)[0] != '\0' && access(stw_nvme_path(two), F_OK) == 0;
    write_step(two, ARENA, 1);
    good = good && stw_nvme_commit(two, 1, NULL) == STW_STATUS_OK;
    good = good && (!agrees || stw_nvme_agree(two, 1, NULL) == STW_STATUS_OK);
    if (signals) {
        (void)signal(SIGTERM, end_by_signal);
        if (good) (void)raise(SIGTERM);
    }
    stw_nvme_close(two);
    stw_nvme_close(one);
    return good && !signals ? 0 : 1;
}

static void does_without_unnamed_files(void) {
    char path[512];
    for (int kind = 0; kind < 4; kind++) {
        const bool agrees = kind % 2 == 1;
        const char *folder = make_folder();
        int result = 0;
        fflush(NULL);
        pid_t child = fork();
        CU_ASSERT_TRUE_FATAL(child >= 0);
        if (child == 0) {
            stw_log_set(keep_log, NULL);
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
            _exit(without_unnamed_files(folder, agrees, kind >= 2));
        }
        CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
        CU_ASSERT_TRUE(WIFEXITED(result));
        snprintf(path, sizeof path, "%s/stowage-nvme-%ld-rank3.state", folder, (long)child);
        if (WEXITSTATUS(result) == 77) {
            printf(" (no filters here) ");
        } else {
            CU_ASSERT_EQUAL(WEXITSTATUS(result), 0);
            if (agrees) check_file(path, ARENA, 1);
            if (agrees) CU_ASSERT_EQUAL(unlink(path), 0);
        }
        remove_folder();
    }
}

STW_TEST_MAIN("backend nvme kept", {"a killed process", survives_a_kill},
              {"a torn record: the older one", uses_the_older_record},
              {"the step before, where the newest is damaged", uses_the_older_state},
              {"another run's header is refused", refuses_another_header},
              {"another version is refused", refuses_another_version},
              {"what was never written is kept", keeps_what_was_never_written},
              {"other files are refused", refuses_other_files},
              {"files that stayed are left alone", leaves_files_that_stayed},
              {"without unnamed files", does_without_unnamed_files})
