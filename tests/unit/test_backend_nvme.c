/* SPDX-License-Identifier: Apache-2.0 */
/* The NVMe arena, with one copy and two, by io_uring and by threads: exact bytes for every mix of
 * alignments, readers beside writers, what a commit makes visible, and what is readable after one
 * that did not happen. */
#define _GNU_SOURCE /* RLIMIT_FSIZE, posix_memalign, mkdtemp, the filter of system calls */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/nvme/kept.h"
#include "backend/nvme/nvme.h"
#include "core/log.h"
#include "stw_config.h"
#include "tests/unit/nvme_case.h"
#include "tests/unit/testing.h"

/* Runs a test once for each method that this system has. */
static void with_each_method(void (*run)(const char *method)) {
    static const char *const methods[] = {"threads", "io_uring"};
    for (unsigned i = 0; i < 2; i++) {
        stw_nvme_options options = {.bytes = 1, .copies = 1, .shape = {.in_memory = true}};
        stw_nvme *nvme = NULL;
        stw_error why = STW_ERROR_INIT;
        setenv("STOWAGE_NVME_IO", methods[i], 1);
        stw_status status = stw_nvme_open(&options, &nvme, &why);
        if (i == 1 && status == STW_STATUS_NOT_BUILT_IN) {
            printf(" (without io_uring: %s) ", why.text);
        } else {
            CU_ASSERT_EQUAL_FATAL(status, STW_STATUS_OK);
            CU_ASSERT_STRING_EQUAL(stw_nvme_method(nvme), methods[i]);
            run(methods[i]);
        }
        stw_nvme_close(nvme);
    }
    unsetenv("STOWAGE_NVME_IO");
}

/* ---- bytes ---- */

/* A range and a place in memory: a third is aligned as a whole, a third shares its place in a
 * block. */
typedef struct trial {
    uint64_t offset, bytes, place;
} trial;

static trial random_trial(int turn) {
    uint32_t unit = turn % 3 == 0 ? BLOCK : 1;
    trial t = {.offset = random32() % ARENA / unit * unit};
    uint64_t most = ARENA - t.offset < 300 * KIB ? ARENA - t.offset : 300 * KIB;
    if (turn % 50 == 49) most = ARENA - t.offset;
    t.bytes = random32() % (most + 1) / unit * unit;
    t.place = turn % 3 == 2 ? random32() % BLOCK : t.offset % BLOCK;
    return t;
}

/* Against a plain array: random ranges, written and read at random places in memory. */
static void like_memory(const char *method) {
    const size_t room = ARENA + 2 * BLOCK;
    unsigned char *model = aligned_bytes(room), *memory = aligned_bytes(room);
    stw_nvme *nvme = open_arena(NULL, ARENA, 1);
    printf(" (%s, direct: %s) ", method, stw_nvme_is_direct(nvme) ? "yes" : "no");
    unsigned wrong = 0;
    for (int turn = 0; turn < 600; turn++) {
        trial t = random_trial(turn);
        if (turn % 2 == 0) {
            for (uint64_t i = 0; i < t.bytes; i++) memory[t.place + i] = (unsigned char)random32();
            CHECK_OK(stw_nvme_write(nvme, t.offset, memory + t.place, t.bytes, err));
            memcpy(model + t.offset, memory + t.place, t.bytes);
        } else {
            memset(memory, 0xEE, t.bytes + t.place + 1);
            CHECK_OK(stw_nvme_read(nvme, t.offset, memory + t.place, t.bytes, err));
            wrong += memcmp(memory + t.place, model + t.offset, t.bytes) != 0;
            wrong += memory[t.place + t.bytes] != 0xEE;
            wrong += t.place > 0 && memory[t.place - 1] != 0xEE;
        }
    }
    CHECK_OK(stw_nvme_read(nvme, 0, memory, ARENA, err));
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(memcmp(memory, model, ARENA), 0);
    CHECK_OK(stw_nvme_commit(nvme, 1, err));
    stw_nvme_close(nvme);
    free(model);
    free(memory);
}
static void behaves_like_memory(void) { with_each_method(like_memory); }

/* More pieces than are ever in flight, and ends that are no blocks. */
static void large_ranges(const char *method) {
    (void)method;
    const uint64_t arena = 45ull * MIB + 777, first = 4095;
    unsigned char *wrote = aligned_bytes(arena + BLOCK), *read = aligned_bytes(arena + BLOCK);
    for (uint32_t copies = 1; copies <= 2; copies++) {
        stw_nvme *nvme = open_arena(NULL, arena, copies);
        step_bytes(wrote, 0, arena, copies);
        for (unsigned shift = 0; shift < 2; shift++) { /* shift 1: no direct I/O is possible */
            memset(read, 0xEE, arena + BLOCK);
            CHECK_OK(stw_nvme_write(nvme, 0, wrote, first, err));
            CHECK_OK(stw_nvme_write(nvme, first, wrote + first, arena - first, err));
            CHECK_OK(stw_nvme_commit(nvme, shift + 1, err));
            CHECK_OK(stw_nvme_read(nvme, 0, read + shift, arena, err));
            CU_ASSERT_EQUAL(memcmp(read + shift, wrote, arena), 0);
            CU_ASSERT_EQUAL(read[arena + shift], 0xEE);
        }
        stw_nvme_close(nvme);
    }
    free(wrote);
    free(read);
}
static void moves_large_ranges(void) { with_each_method(large_ranges); }

static void refuses_ranges_beyond_the_end(void) {
    char bytes[16] = "";
    for (uint32_t copies = 1; copies <= 2; copies++) {
        stw_nvme *nvme = open_arena(NULL, 8192, copies);
        CHECK_OK(stw_nvme_read(nvme, 8192, bytes, 0, err));
        CHECK_OK(stw_nvme_read(nvme, 8176, bytes, 16, err));
        CHECK_FAILS(stw_nvme_read(nvme, 8177, bytes, 16, err), STW_STATUS_BUG, "outside");
        CHECK_FAILS(stw_nvme_write(nvme, 8193, bytes, 1, err), STW_STATUS_BUG, "outside");
        CHECK_FAILS(stw_nvme_write(nvme, UINT64_MAX, bytes, 2, err), STW_STATUS_BUG, "outside");
        CHECK_FAILS(stw_nvme_write(nvme, 16, bytes, UINT64_MAX, err), STW_STATUS_BUG, "outside");
        stw_nvme_close(nvme);
    }
}

static void starts_as_zeros(void) {
    unsigned char *memory = aligned_bytes(64 * KIB);
    for (uint32_t copies = 1; copies <= 2; copies++) {
        stw_nvme *nvme = open_arena(NULL, 64 * KIB, copies);
        memset(memory, 1, 64 * KIB);
        CHECK_OK(stw_nvme_read(nvme, 0, memory, 64 * KIB, err));
        unsigned nonzero = 0;
        for (unsigned i = 0; i < 64 * KIB; i++) nonzero += memory[i] != 0;
        CU_ASSERT_EQUAL(nonzero, 0);
        stw_nvme_close(nvme);
        nvme = open_arena(NULL, 0, copies);
        CHECK_OK(stw_nvme_write(nvme, 0, memory, 0, err));
        CHECK_OK(stw_nvme_commit(nvme, 1, err));
        stw_nvme_close(nvme);
    }
    free(memory);
}

/* ---- several threads ---- */

#define PART (1u * MIB + 5000u)
#define N_PARTS 12u /* more callers than there are rings */

typedef struct worker {
    stw_nvme *nvme;
    uint64_t offset, step;
    bool writes;
    unsigned char *memory, *expected;
    unsigned failed;
    pthread_t thread;
} worker;

/* Writers write their part of step + 1, readers must see step, again and again. */
static void *work(void *arg) {
    worker *w = arg;
    for (int turn = 0; turn < 6; turn++) {
        if (w->writes) {
            step_bytes(w->memory, w->offset, PART, w->step + 1);
            w->failed += stw_nvme_write(w->nvme, w->offset, w->memory, PART, NULL) != 0;
        } else {
            memset(w->memory, 0xEE, PART);
            w->failed += stw_nvme_read(w->nvme, w->offset, w->memory, PART, NULL) != 0;
            w->failed += memcmp(w->memory, w->expected, PART) != 0;
        }
    }
    return NULL;
}

static void beside_each_other(const char *method) {
    (void)method;
    stw_nvme *nvme = open_arena(NULL, (uint64_t)N_PARTS * PART, 2);
    static worker workers[2 * N_PARTS];
    for (unsigned i = 0; i < 2 * N_PARTS; i++) {
        worker w = {.nvme = nvme, .offset = (uint64_t)(i / 2) * PART, .writes = i % 2 == 0};
        w.memory = aligned_bytes(PART);
        w.expected = aligned_bytes(PART); /* zeros before the first commit */
        workers[i] = w;
    }
    for (uint64_t step = 0; step < 3; step++) {
        for (unsigned i = 0; i < 2 * N_PARTS; i++) {
            workers[i].step = step;
            if (step > 0) step_bytes(workers[i].expected, workers[i].offset, PART, step);
            CU_ASSERT_EQUAL_FATAL(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (unsigned i = 0; i < 2 * N_PARTS; i++) pthread_join(workers[i].thread, NULL);
        CHECK_OK(stw_nvme_commit(nvme, step + 1, err));
    }
    unsigned failed = 0;
    for (unsigned i = 0; i < 2 * N_PARTS; i++) {
        failed += workers[i].failed;
        free(workers[i].memory);
        free(workers[i].expected);
    }
    CU_ASSERT_EQUAL(failed, 0);
    stw_nvme_close(nvme);
}
static void reads_beside_writes(void) { with_each_method(beside_each_other); }

/* ---- commits ---- */

static void commits(const char *method) {
    (void)method;
    char path[512];
    const char *folder = make_folder();
    stw_nvme *nvme = open_arena(folder, ARENA, 2);
    snprintf(path, sizeof path, "%s/stowage-nvme-%ld-rank3.state", folder, (long)getpid());
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), ""); /* nothing that anybody could use */
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
    commit_and_agree(nvme, 0);
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);
    uint64_t bytes = 0, step = 0;
    stw_nvme *kept = NULL;
    for (step = 1; step <= 5; step++) {
        write_step(nvme, ARENA, step);
        CU_ASSERT_TRUE(reads_step(nvme, ARENA, step - 1)); /* not yet */
        if (step > 1) check_kept(path, ARENA, step - 1);
        commit_and_agree(nvme, step);
        CU_ASSERT_TRUE(reads_step(nvme, ARENA, step));
        CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), path);
        check_kept(path, ARENA, step);
        CHECK_FAILS(stw_nvme_open_kept(path, &bytes, &step, &kept, err), STW_STATUS_USAGE,
                    "uses it");
    }
    struct stat about;
    CU_ASSERT_EQUAL_FATAL(stat(path, &about), 0);
    CU_ASSERT_EQUAL(about.st_size, 2 * (3 * 1048576 + 4096) + 6 * 4096);
    CU_ASSERT_EQUAL(about.st_mode & 0777, 0600);
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0); /* the run ended well */

    /* Written to, never committed: nothing is lost with the file. */
    nvme = open_arena(folder, ARENA, 2);
    CHECK_OK(stw_nvme_write(nvme, 0, "x", 1, err));
    stw_nvme_close(nvme);
    CU_ASSERT_NOT_EQUAL(access(path, F_OK), 0);

    /* One copy has no name at any time; a commit changes nothing that can be read. */
    nvme = open_arena(folder, ARENA, 1);
    CU_ASSERT_STRING_EQUAL(stw_nvme_path(nvme), "");
    remove_folder();
    write_step(nvme, ARENA, 7);
    CU_ASSERT_TRUE(reads_step(nvme, ARENA, 7));
    CHECK_OK(stw_nvme_commit(nvme, 7, err));
    CU_ASSERT_TRUE(reads_step(nvme, ARENA, 7));
    stw_nvme_close(nvme);
}
static void commits_make_it_count(void) { with_each_method(commits); }

/* What readers must see, and what the next commit adds to it. */
typedef struct expected_state {
    stw_nvme *nvme;
    unsigned char *committed, *pending, *memory;
} expected_state;

static void write_part(expected_state *s, uint64_t offset, uint64_t bytes, uint64_t step) {
    step_bytes(s->pending + offset, offset, bytes, step);
    memcpy(s->memory + offset, s->pending + offset, bytes); /* aligned as in the file */
    CHECK_OK(stw_nvme_write(s->nvme, offset, s->memory + offset, bytes, err));
}

static void commit_step(expected_state *s, uint64_t step) {
    CHECK_OK(stw_nvme_commit(s->nvme, step, err));
    memcpy(s->committed, s->pending, ARENA);
}

static bool reads_committed(expected_state *s) {
    memset(s->memory, 0xEE, ARENA);
    CHECK_OK(stw_nvme_read(s->nvme, 0, s->memory, ARENA, err));
    return memcmp(s->memory, s->committed, ARENA) == 0;
}

static expected_state new_expected(const char *folder) {
    return (expected_state){.nvme = open_arena(folder, ARENA, 2),
                            .committed = aligned_bytes(ARENA),
                            .pending = aligned_bytes(ARENA),
                            .memory = aligned_bytes(ARENA)};
}

static void free_expected(expected_state *s) {
    stw_nvme_close(s->nvme);
    free(s->committed);
    free(s->pending);
    free(s->memory);
}

/* Commits after parts of the state were written, and after nothing was. */
static void partial(const char *method) {
    (void)method;
    expected_state s = new_expected(make_folder());
    CHECK_OK(stw_nvme_commit(s.nvme, 0, err)); /* before any write: zeros */
    CU_ASSERT_TRUE(reads_committed(&s));
    write_part(&s, 0, ARENA, 1);
    commit_step(&s, 1);
    write_part(&s, 1 * MIB, 100 * KIB + 7, 2);
    CU_ASSERT_TRUE(reads_committed(&s));
    commit_step(&s, 2);
    CU_ASSERT_TRUE(reads_committed(&s));
    write_part(&s, 5000, 3, 3);
    commit_step(&s, 3);
    CU_ASSERT_TRUE(reads_committed(&s));
    for (uint64_t step = 4; step < 7; step++) { /* no flip back to an older copy */
        commit_step(&s, step);
        CU_ASSERT_TRUE(reads_committed(&s));
    }
    uint64_t bytes = 0, step = 0;
    stw_nvme *kept = NULL;
    CHECK_OK(stw_nvme_agree(s.nvme, 6, err));
    const char *copy = snapshot(stw_nvme_path(s.nvme));
    CHECK_OK(stw_nvme_open_kept(copy, &bytes, &step, &kept, err));
    CU_ASSERT_EQUAL(step, 6);
    CHECK_OK(stw_nvme_read(kept, 0, s.memory, ARENA, err));
    CU_ASSERT_EQUAL(memcmp(s.memory, s.committed, ARENA), 0);
    stw_nvme_close(kept);
    CU_ASSERT_EQUAL(unlink(copy), 0);
    stw_nvme_release(s.nvme);
    free_expected(&s);
    remove_folder();
}
static void commits_keep_the_rest(void) { with_each_method(partial); }

static void random_commits(const char *method) {
    (void)method;
    expected_state s = new_expected(make_folder());
    unsigned wrong = 0;
    for (uint64_t step = 1; step <= 61; step++) { /* the last one commits */
        for (uint32_t n = random32() % 5; n > 0; n--) {
            trial t = random_trial((int)(random32() % 100));
            write_part(&s, t.offset, t.bytes, step);
        }
        if (step % 7 == 0) wrong += !reads_committed(&s);
        if (step % 3 != 0) commit_step(&s, step); /* else the next commit makes them count */
        wrong += !reads_committed(&s);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    free_expected(&s);
    remove_folder();
}
static void commits_of_random_writes(void) { with_each_method(random_commits); }

/* A write that is cut short: the error says so, half of it was written, and the step before is what
 * this process and the file that stays give. The device takes `limit` bytes of the file. */
static void limit_file(rlim_t limit) {
    struct rlimit small;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &small), 0);
    small.rlim_cur = limit;
    (void)signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &small), 0);
}

static void failing_write(const char *method) {
    (void)method;
    char path[512];
    unsigned char *memory = aligned_bytes(ARENA), *read = aligned_bytes(ARENA);
    memset(memory, 0x77, ARENA);
    const char *folder = make_folder();
    stw_nvme *nvme = open_arena(folder, ARENA, 2);
    write_step(nvme, ARENA, 1);
    commit_and_agree(nvme, 1);
    snprintf(path, sizeof path, "%s", stw_nvme_path(nvme));
    CHECK_OK(stw_nvme_write(nvme, 0, memory, 1, err)); /* into copy 0 */
    limit_file(24 * KIB + 2 * MIB);
    CHECK_FAILS(stw_nvme_write(nvme, MIB, memory, 2 * MIB, err), STW_STATUS_NO_RESOURCES,
                strerror(EFBIG));
    limit_file(RLIM_INFINITY);
    CU_ASSERT_TRUE(reads_step(nvme, ARENA, 1));
    CHECK_FAILS(stw_nvme_commit(nvme, 2, err), STW_STATUS_IO, "is not committed");
    CU_ASSERT_TRUE(reads_step(nvme, ARENA, 1));
    stw_log_set(keep_log, NULL);
    stw_log_level_set(STW_LOG_ERROR);
    stw_nvme_close(nvme);
    stw_log_level_set(STW_LOG_INFO);
    stw_log_set(NULL, NULL);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, path)); /* though only errors were asked for */
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "step 1"));
    check_file(path, ARENA, 1);
    CU_ASSERT_EQUAL(unlink(path), 0);
    remove_folder();

    nvme = open_arena(NULL, ARENA, 1); /* in place: half of the new, then the old */
    write_step(nvme, ARENA, 5);
    limit_file(MIB);
    CHECK_FAILS(stw_nvme_write(nvme, 0, memory, 2 * MIB, err), STW_STATUS_NO_RESOURCES, "1048576");
    limit_file(RLIM_INFINITY);
    CHECK_OK(stw_nvme_read(nvme, 0, read, MIB, err));
    CU_ASSERT_EQUAL(memcmp(read, memory, MIB), 0);
    CHECK_FAILS(stw_nvme_read(nvme, 0, read, ARENA, err), STW_STATUS_DISAGREE,
                "is damaged: bytes 1");
    stw_nvme_close(nvme);
    free(memory);
    free(read);
}
static void a_failing_write_loses_nothing(void) { with_each_method(failing_write); }

/* ---- what goes wrong ---- */

static void refuses_what_does_not_fit(void) {
    stw_nvme *nvme = NULL;
    stw_nvme_options options = {.bytes = 1ull << 62, .copies = 1, .shape = {.in_memory = true}};
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES, "free");
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES,
                "4611686018427387904 bytes");
    options.copies = 2;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES, "two copies");
    options.bytes = UINT64_MAX;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NO_RESOURCES, "two copies");
    options.bytes = 4096;
    options.copies = 3;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_BUG, "3 copies");
    options.copies = 2;
    options.folder = "/nonexistent/folder";
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_IO, "/nonexistent/folder");
    CU_ASSERT_PTR_NULL(nvme);
    char *longer = malloc(6000);
    CU_ASSERT_PTR_NOT_NULL_FATAL(longer);
    memset(longer, 'x', 5999);
    longer[5999] = '\0';
    options.folder = longer;
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_USAGE, "too long");
    free(longer);
    stw_nvme_close(NULL);
}

/* A limit on file sizes stands for a disk that fills: reserving fails and nothing is left; a write
 * is cut short at the limit, goes on and fails there. */
static void limited(const char *method) {
    (void)method;
    struct rlimit before, small;
    const uint64_t arena = 4 * MIB, limit = 2 * MIB + 512 * KIB;
    unsigned char *memory = aligned_bytes(arena), *read = aligned_bytes(arena);
    step_bytes(memory, 0, arena, 1);
    stw_nvme_options options = {
        .folder = make_folder(), .bytes = arena, .copies = 1, .shape = {.in_memory = true}};
    stw_nvme *none = NULL, *nvme = open_arena(folder_name, arena, 1);
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = limit;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_FAILS(stw_nvme_open(&options, &none, err), STW_STATUS_NO_RESOURCES, "reserving");
    CU_ASSERT_PTR_NULL(none);
    CHECK_FAILS(stw_nvme_write(nvme, 0, memory, arena, err), STW_STATUS_NO_RESOURCES,
                strerror(EFBIG));
    CHECK_FAILS(stw_nvme_write(nvme, MIB, memory, 3 * MIB, err), STW_STATUS_NO_RESOURCES,
                "writing 3145728 bytes at 1048576");
    CHECK_FAILS(stw_nvme_write(nvme, 0, memory, limit + 256 * KIB, err), STW_STATUS_NO_RESOURCES,
                "stopped");
    CHECK_OK(stw_nvme_write(nvme, 0, memory, limit, err));
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    CHECK_OK(stw_nvme_write(nvme, limit, memory + limit, arena - limit, err));
    CHECK_OK(stw_nvme_read(nvme, 0, read, arena, err));
    CU_ASSERT_EQUAL(memcmp(memory, read, arena), 0);
    stw_nvme_close(nvme);
    remove_folder();
    free(memory);
    free(read);
}
static void reports_a_disk_that_fills(void) { with_each_method(limited); }

/* Somebody cut the file: reads beyond are an error that names file and place, not zeros. */
static void shortened(const char *method) {
    (void)method;
    const uint64_t copies = 6 * 4096, copy = 3 * MIB + 4096;
    unsigned char *memory = aligned_bytes(ARENA);
    stw_nvme *nvme = open_arena(make_folder(), ARENA, 2);
    write_step(nvme, ARENA, 1);
    commit_and_agree(nvme, 1); /* copy 1 */
    CU_ASSERT_EQUAL(truncate(stw_nvme_path(nvme), (off_t)(copies + copy + 2 * MIB)), 0);
    CHECK_OK(stw_nvme_read(nvme, 0, memory, 2 * MIB, err));
    CHECK_FAILS(stw_nvme_read(nvme, 0, memory, ARENA, err), STW_STATUS_IO, "the file ends there");
    CHECK_FAILS(stw_nvme_read(nvme, 3 * MIB, memory, 1000, err), STW_STATUS_IO,
                stw_nvme_path(nvme));
    stw_nvme_release(nvme);
    stw_nvme_close(nvme);
    remove_folder();
    free(memory);
}
static void reports_short_reads(void) { with_each_method(shortened); }

/* ---- methods ---- */

static void takes_the_method_asked_for(void) {
    stw_nvme *nvme = NULL;
    stw_nvme_options options = {.bytes = 4096, .copies = 1, .shape = {.in_memory = true}};
    setenv("STOWAGE_NVME_IO", "paper", 1);
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_USAGE, "'paper'");
    CU_ASSERT_PTR_NULL(nvme);
    setenv("STOWAGE_NVME_IO", "", 1);
    CHECK_OK(stw_nvme_open(&options, &nvme, err));
    stw_nvme_close(nvme);
    unsetenv("STOWAGE_NVME_IO");
#if !STW_WITH_URING
    nvme = open_arena(NULL, 4096, 1);
    CU_ASSERT_STRING_EQUAL(stw_nvme_method(nvme), "threads");
    stw_nvme_close(nvme);
    setenv("STOWAGE_NVME_IO", "io_uring", 1);
    CHECK_FAILS(stw_nvme_open(&options, &nvme, err), STW_STATUS_NOT_BUILT_IN, "liburing");
    unsetenv("STOWAGE_NVME_IO");
#endif
}

/* Refuse one system call from now on, as containers do. False where filters cannot be used. */
static bool forbid(uint32_t call, uint32_t code) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof lines / sizeof lines[0], .filter = lines};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool round_trip(stw_nvme *nvme, uint64_t step) {
    unsigned char *wrote = malloc(ARENA), *read = malloc(ARENA);
    bool good = wrote != NULL && read != NULL;
    if (good) step_bytes(wrote, 0, ARENA, step);
    good = good && stw_nvme_write(nvme, 0, wrote, ARENA, NULL) == STW_STATUS_OK &&
           stw_nvme_commit(nvme, step, NULL) == STW_STATUS_OK &&
           stw_nvme_read(nvme, 0, read, ARENA, NULL) == STW_STATUS_OK &&
           memcmp(wrote, read, ARENA) == 0;
    free(wrote);
    free(read);
    return good;
}

/* In a process of its own: 0 as it should be, 1 not, 77 no filters. */
static int without_call(uint32_t call, uint32_t code) {
    stw_nvme *nvme = NULL;
    stw_nvme_options options = {.bytes = ARENA, .copies = 2, .shape = {.in_memory = true}};
    if (!forbid(call, code)) return 77;
    if (stw_nvme_open(&options, &nvme, NULL) != STW_STATUS_OK) return 1;
    bool good = strcmp(stw_nvme_method(nvme), "threads") == 0 && round_trip(nvme, 1);
    stw_nvme_close(nvme);
    setenv("STOWAGE_NVME_IO", "io_uring", 1);
    good = good && stw_nvme_open(&options, &nvme, NULL) == STW_STATUS_NOT_BUILT_IN;
    return good ? 0 : 1;
}

/* The same where it is taken away from an arena that is using it. */
static int losing_call(uint32_t call, uint32_t code) {
    stw_nvme *nvme = NULL;
    stw_nvme_options options = {.bytes = ARENA, .copies = 2, .shape = {.in_memory = true}};
    if (stw_nvme_open(&options, &nvme, NULL) != STW_STATUS_OK) return 1;
    bool good = round_trip(nvme, 1);
    if (!forbid(call, code)) return 77;
    good = good && round_trip(nvme, 2) && round_trip(nvme, 3);
    stw_nvme_close(nvme);
    return good ? 0 : 1;
}

static void check_child(int (*run)(uint32_t, uint32_t), uint32_t call, uint32_t code) {
    int result = 0;
    fflush(NULL);
    pid_t child = fork();
    CU_ASSERT_TRUE_FATAL(child >= 0);
    if (child == 0) _exit(run(call, code));
    CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77)
        printf(" (no filters here) ");
    else
        CU_ASSERT_EQUAL(WEXITSTATUS(result), 0);
}

static void does_without_io_uring(void) {
    static const uint32_t codes[] = {EPERM, ENOSYS, EACCES};
    for (unsigned i = 0; i < 3; i++) {
        check_child(without_call, SYS_io_uring_setup, codes[i]);
        check_child(without_call, SYS_io_uring_enter, codes[i]);
        check_child(losing_call, SYS_io_uring_enter, codes[i]);
    }
}

STW_TEST_MAIN("backend nvme", {"behaves like memory", behaves_like_memory},
              {"large ranges", moves_large_ranges},
              {"ranges beyond the end are refused", refuses_ranges_beyond_the_end},
              {"starts as zeros", starts_as_zeros}, {"reads beside writes", reads_beside_writes},
              {"commits make it count", commits_make_it_count},
              {"commits keep what was not written", commits_keep_the_rest},
              {"commits of random writes", commits_of_random_writes},
              {"a failing write loses nothing", a_failing_write_loses_nothing},
              {"what does not fit is refused", refuses_what_does_not_fit},
              {"a disk that fills", reports_a_disk_that_fills},
              {"short reads", reports_short_reads},
              {"the method asked for", takes_the_method_asked_for},
              {"without io_uring", does_without_io_uring})
