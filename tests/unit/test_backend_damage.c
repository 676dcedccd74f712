/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that lies: in a run with state on NVMe one write has a bit flipped, is cut short, or is
 * dropped, and reports success. Whatever changes the result must be found and named, with file,
 * bytes, bucket and step; the file that stays holds the state of a step that was committed, whole,
 * or is refused. The linker hands every pwrite of the program to this test (--wrap). */
#define _GNU_SOURCE /* mkdtemp, setenv */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "backend/executor/run.h"
#include "backend/nvme/kept.h"
#include "backend/nvme/sum.h"
#include "core/log.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#define STEPS 4u

static uint64_t random_state = 88172645463325252u;
static uint64_t random64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* ---- the disk ---- */

enum fault { FLIP, TEAR, DROP, N_FAULTS };
static const char *const fault_names[N_FAULTS] = {"bit flips", "torn writes", "dropped writes"};

static pthread_mutex_t disk_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t writes, victim; /* number of the write that goes wrong, from 1; 0: none */
static enum fault fault;

ssize_t __real_pwrite(int file, const void *from, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset);

static void flip_a_bit(int file, const void *from, size_t bytes, off_t offset) {
    void *copy = NULL;
    if (posix_memalign(&copy, 4096, bytes) != 0) abort();
    memcpy(copy, from, bytes);
    ((unsigned char *)copy)[random64() % bytes] ^= (unsigned char)(1u << random64() % 8);
    if (__real_pwrite(file, copy, bytes, offset) != (ssize_t)bytes) abort();
    free(copy);
}

ssize_t __wrap_pwrite(int file, const void *from, size_t bytes, off_t offset) {
    pthread_mutex_lock(&disk_mutex);
    bool lies = ++writes == victim && bytes > 0;
    pthread_mutex_unlock(&disk_mutex);
    if (!lies) return __real_pwrite(file, from, bytes, offset);
    size_t taken = bytes > 4096 ? (size_t)(random64() % (bytes / 4096)) * 4096 : bytes / 2;
    if (fault == FLIP) flip_a_bit(file, from, bytes, offset);
    if (fault == TEAR && taken > 0 && __real_pwrite(file, from, taken, offset) < 0) abort();
    return (ssize_t)bytes;
}

/* ---- a run ---- */

static const fixture_size size = {2, 128, 256, 1000};
static char folder[64];
static uint64_t state_of[STEPS + 1]; /* hash of what the arena holds after each step */

/* Of all bytes that the plan's regions have in an arena. */
static stw_status hash_arena(const stw_layout *layout, stw_nvme *nvme, uint64_t *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t bytes = layout->persistent_bytes[STW_TIER_NVME];
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) abort();
    STW_TRY(stw_nvme_read(nvme, 0, memory, bytes, err));
    *out = stw_nvme_sum(memory, bytes);
out:
    free(memory);
    return status;
}

static stw_status note_state(void *state, stw_rank_run *run, uint32_t iteration, stw_error *err) {
    (void)state;
    return hash_arena(run->layout, run->backend->nvme(run->device), &state_of[iteration + 1], err);
}

static stw_plan *make_plan(uint32_t copies) {
    static const stw_place nvme[] = {FIXTURE_NVME};
    static const uint32_t units[] = {UINT32_MAX};
    static const char *const settings[] = {"precision.params=bf16", "precision.master=fp32", NULL};
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    plan->run.placement.nvme_copies = copies;
    fixture_state(plan, 1, nvme, units);
    plan->decisions.prefetch.depth = 2;
    plan->decisions.prefetch.bucket_bytes = 1 << 20;
    CHECK_OK(stw_plan_derive(plan, err));
    return plan;
}

static stw_status execute(const stw_plan *plan, bool notes, uint64_t digest[STW_N_DIGESTS],
                          stw_error *err) {
    stw_run_result *result = NULL;
    const stw_executor_options options = {.backend = "host",
                                          .steps = STEPS,
                                          .seed = 3,
                                          .nvme_folder = folder,
                                          .nvme_in_memory = true,
                                          .after_iteration = notes ? note_state : NULL};
    stw_status status = stw_execute(plan, &options, &result, err);
    if (result != NULL) memcpy(digest, result->digest, sizeof result->digest);
    stw_run_result_free(result);
    return status;
}

/* ---- what is left ---- */

static unsigned stayed, refused;

/* The file of a run that failed: a state that was committed, or none. */
static void check_file(const stw_plan *plan, const char *path) {
    stw_nvme *kept = NULL;
    stw_error why = STW_ERROR_INIT;
    uint64_t bytes = 0, step = 0, hash = 0;
    stw_status status = stw_nvme_open_kept(path, &bytes, &step, &kept, &why);
    if (status == STW_STATUS_OK) {
        CHECK_OK(hash_arena(plan->layouts[0], kept, &hash, err));
        CU_ASSERT_TRUE(step <= STEPS);
        if (step == 0 && state_of[0] == 0) state_of[0] = hash; /* as it was loaded */
        if (step <= STEPS) CU_ASSERT_EQUAL(hash, state_of[step]);
        stayed++;
    } else {
        CU_ASSERT_TRUE(status == STW_STATUS_DISAGREE || status == STW_STATUS_BAD_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(why.where, path));
        refused++;
    }
    stw_nvme_close(kept);
}

static void check_folder(const stw_plan *plan, bool failed) {
    char path[512];
    unsigned n = 0;
    DIR *list = opendir(folder);
    CU_ASSERT_PTR_NOT_NULL_FATAL(list);
    for (const struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        check_file(plan, path);
        CU_ASSERT_EQUAL(unlink(path), 0);
        n++;
    }
    closedir(list);
    CU_ASSERT_TRUE(n <= 1 && (failed || n == 0));
}

static void be_quiet(stw_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

/* ---- the test ---- */

static void lie(uint32_t copies, enum fault what, unsigned times) {
    stw_plan *plan = make_plan(copies);
    uint64_t truth[STW_N_DIGESTS] = {0}, found[STW_N_DIGESTS];
    unsigned named = 0, harmless = 0, missed = 0, unnamed = 0;
    stayed = refused = 0;
    fault = what;
    victim = writes = 0;
    memset(state_of, 0, sizeof state_of);
    CHECK_OK(execute(plan, true, truth, err));
    check_folder(plan, false);
    const uint64_t all = writes;
    stw_log_set(be_quiet, NULL);
    for (unsigned i = 0; i < times; i++) {
        stw_error why = STW_ERROR_INIT;
        writes = 0;
        victim = 1 + random64() % all;
        stw_status status = execute(plan, false, found, &why);
        if (status == STW_STATUS_OK) {
            bool same = memcmp(found, truth, sizeof truth) == 0;
            harmless += same;
            missed += !same;
        } else {
            bool says = status == STW_STATUS_DISAGREE && strstr(why.where, folder) != NULL &&
                        strstr(why.text, "bytes ") != NULL && strstr(why.text, "step ") != NULL;
            named += says;
            unnamed += !says;
            if (!says) fprintf(stderr, "%s: %s\n", why.where, why.text);
        }
        check_folder(plan, status != STW_STATUS_OK);
    }
    stw_log_set(NULL, NULL);
    printf("\n    %u %s of %llu writes, %u cop%s: %u named, %u changed nothing, %u missed", times,
           fault_names[what], (unsigned long long)all, copies, copies > 1 ? "ies" : "y", named,
           harmless, missed);
    if (copies == 2) printf("; %u files hold a whole step, %u are refused", stayed, refused);
    printf(" ");
    CU_ASSERT_EQUAL(missed, 0);
    CU_ASSERT_EQUAL(unnamed, 0);
    CU_ASSERT_TRUE(named > times / 3);
    stw_plan_free(plan);
}

static void begin(void) {
    snprintf(folder, sizeof folder, "damage-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    setenv("STOWAGE_NVME_IO", "threads", 1); /* by pwrite */
}

static void end(void) {
    unsetenv("STOWAGE_NVME_IO");
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

/* Lies of each number of copies; STW_DAMAGE=1 asks for 100 flips, 50 torn and 50 dropped writes. */
static void lie_in_all_ways(uint32_t copies) {
    const bool many = getenv("STW_DAMAGE") != NULL;
    begin();
    lie(copies, FLIP, many ? 100 : 10);
    lie(copies, TEAR, many ? 50 : 5);
    lie(copies, DROP, many ? 50 : 5);
    end();
}

static void in_place(void) { lie_in_all_ways(1); }
static void with_commits(void) { lie_in_all_ways(2); }

STW_TEST_MAIN("backend damage", {"one copy", in_place}, {"two copies", with_commits})
