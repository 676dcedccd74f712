/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks on the host backend: this program starts itself under mpirun. Four ranks give the
 * digests of one, however the state is cut; ranks with different plans are told so before the first
 * collective; a rank that goes does not keep the others waiting. Skipped without mpirun or the
 * plugin. */
#define _DEFAULT_SOURCE /* setenv */
#include <unistd.h>

#include "backend/executor/session.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size size = {2, 64, 136, 515}; /* rows that four ranks share unevenly */
static const char *self;
static const char *launch = "mpirun";

typedef struct case_of {
    const char *name;
    uint32_t gpus;
    const char *const settings[3];
    stw_load load;
} case_of;

static const case_of cases[] = {
    {"one", 1, {"optimizer.clip_norm=0.5"}, STW_LOAD_RANK0_BROADCAST},
    {"four", 4, {"optimizer.clip_norm=0.5"}, STW_LOAD_RANK0_BROADCAST},
    {"four_all", 4, {"optimizer.clip_norm=0.5"}, STW_LOAD_ALL_RANKS},
    {"four_shard", 4, {"optimizer.clip_norm=0.5"}, STW_LOAD_SHARDED_READ},
    {"replicas", 4, {"optimizer.clip_norm=0.5", "parallel.dp_replicate=2"}, STW_LOAD_NODE_LEADER},
    {"depth1", 4, {"optimizer.clip_norm=0.5"}, STW_LOAD_RANK0_BROADCAST},
};

static stw_plan *plan_of(const case_of *c, stw_error *err) {
    static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU};
    static const uint32_t units[] = {4, 4, 0};
    stw_cluster cluster = fixture_cluster(c->gpus);
    stw_plan *plan = fixture_plan(size, &cluster, c->settings);
    fixture_state(plan, 3, places, units);
    plan->decisions.load = c->load;
    if (strcmp(c->name, "depth1") == 0) plan->decisions.prefetch.depth = 1;
    if (stw_plan_derive(plan, err) != STW_STATUS_OK) exit(70);
    return plan;
}

static const case_of *case_named(const char *name) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    exit(2);
}

/* ---- as a rank: case, file for rank 0's digests, what to do amiss ---- */

static void rank_failed(const stw_error *err) {
    char text[1200];
    stw_error_format(err, text, sizeof text);
    printf("[%d] %s\n", err->rank, text);
    fflush(stdout);
    exit(stw_status_exit_code(err->status)); /* a moment later, for the others to say it */
}

static stw_status late_counters(stw_device *device, stw_stream stream, bool counts,
                                uint64_t **counters, stw_error *err) {
    sleep(40);
    return stw_backend_host.norm_counters(device, stream, counts, counters, err);
}

static stw_status broken_counters(stw_device *device, stw_stream stream, bool counts,
                                  uint64_t **counters, stw_error *err) {
    (void)device;
    (void)stream;
    (void)counts;
    (void)counters;
    return stw_fail(err, STW_STATUS_DEVICE, "device", "has fallen off the bus");
}

/* A caller's session in which one rank sets another learning rate. */
static int be_session(const stw_plan *plan, const stw_executor_options *options, uint32_t rank) {
    stw_error err = STW_ERROR_INIT;
    stw_session *session = NULL;
    stw_session_sample sample;
    stw_status status = stw_session_open(plan, options, &session, &err);
    if (status != STW_STATUS_OK) rank_failed(&err);
    status = stw_session_issue(session, STW_PHASE_LOAD, 0, &sample, &err);
    if (status == STW_STATUS_OK) status = stw_session_seed_grads(session, 1, &err);
    if (status == STW_STATUS_OK && rank == 3) status = stw_session_set_lr(session, 0, 0.25, &err);
    if (status == STW_STATUS_OK)
        status = stw_session_issue(session, STW_PHASE_FIRST_OPTIMIZER_STEP, 1, &sample, &err);
    if (status != STW_STATUS_OK) rank_failed(&err);
    stw_session_close(session);
    return 0;
}

static int be_rank(const char *name, const char *path, const char *amiss) {
    stw_error err = STW_ERROR_INIT;
    stw_run_result *result = NULL;
    stw_ranks ranks;
    stw_backend backend = stw_backend_host;
    if (stw_ranks_from_environment(&ranks, &err) != STW_STATUS_OK) rank_failed(&err);
    if (strcmp(amiss, "other_plan") == 0 && ranks.rank == 2) name = "four_shard";
    if (strcmp(amiss, "other_depth") == 0 && ranks.rank == 3) name = "depth1";
    stw_plan *plan = plan_of(case_named(name), &err);
    stw_executor_options options = {.backend = "host", .steps = 3, .seed = 5, .timeout_s = 20.0};
    if (strcmp(amiss, "absent") == 0) {
        options.timeout_s = 12.0; /* a rank of a busy machine keeps that */
        if (ranks.rank == 1) backend.norm_counters = late_counters; /* not there for the sum */
    }
    if (strcmp(amiss, "broken") == 0 && ranks.rank == 1) backend.norm_counters = broken_counters;
    if (strcmp(amiss, "other_steps") == 0 && ranks.rank == 1) options.steps = 2;
    if (strcmp(amiss, "other_rate") == 0) return be_session(plan, &options, ranks.rank);
    if (stw_execute_with(plan, &options, &backend, &result, &err) != STW_STATUS_OK)
        rank_failed(&err);
    if (ranks.rank == 0 && result != NULL) {
        FILE *file = fopen(path, "w");
        for (int i = 0; i < STW_N_DIGESTS; i++)
            fprintf(file, "%016llx ", (unsigned long long)result->digest[i]);
        fprintf(file, "%llu\n", (unsigned long long)result->mismatched);
        fprintf(stderr, "checked %llu, ranks %u, nodes %u\n", (unsigned long long)result->checked,
                result->n_ranks, result->n_nodes);
        fclose(file);
    }
    bool right = (result != NULL) == (ranks.rank == 0);
    stw_run_result_free(result);
    stw_plan_free(plan);
    return right ? 0 : 70;
}

/* ---- as the test ---- */

/* Exit code of n ranks; what they printed is in <name>.txt. */
static int start(uint32_t n, const char *name, const char *path, const char *amiss) {
    char command[1200];
    snprintf(command, sizeof command, "%s -n %u %s rank %s %s %s > %s.txt 2>&1", launch, n, self,
             name, path, amiss, path);
    int code = system(command);
    return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

static void read_text(const char *path, char *out, size_t out_size) {
    FILE *file = fopen(path, "r");
    size_t n = file != NULL ? fread(out, 1, out_size - 1, file) : 0;
    out[n] = '\0';
    if (file != NULL) fclose(file);
}

static void four_ranks_give_the_digest_of_one(void) {
    char one[200], four[200], log[8000];
    CU_ASSERT_EQUAL(start(1, "one", "one", "no"), 0);
    read_text("one", one, sizeof one);
    CU_ASSERT_EQUAL(strlen(one), 17 * STW_N_DIGESTS + 2);
    CU_ASSERT_STRING_EQUAL(one + 17 * STW_N_DIGESTS, "0\n");
    static const char *const names[] = {"four", "four_all", "four_shard", "replicas"};
    for (int i = 0; i < 4; i++) {
        unlink(names[i]);
        int code = start(4, names[i], names[i], "no");
        CU_ASSERT_EQUAL(code, 0);
        read_text(names[i], four, sizeof four);
        CU_ASSERT_STRING_EQUAL(one, four);
        if (code != 0) {
            snprintf(four, sizeof four, "%s.txt", names[i]);
            read_text(four, log, sizeof log);
            fprintf(stderr, "%s: exit %d\n%s\n", names[i], code, log);
        }
    }
}

/* Four ranks, of which one does something amiss, end with 6 and say all words. */
static void is_told(const char *amiss, const char *const *words) {
    char log[16000], path[64];
    CU_ASSERT_EQUAL(start(4, "four", amiss, amiss), 6);
    snprintf(path, sizeof path, "%s.txt", amiss);
    read_text(path, log, sizeof log);
    for (; *words != NULL; words++) {
        CU_ASSERT_PTR_NOT_NULL(strstr(log, *words));
        if (strstr(log, *words) == NULL) fprintf(stderr, "not said: %s\n%s\n", *words, log);
    }
}
#define IS_TOLD(amiss, ...) is_told(amiss, (const char *const[]){__VA_ARGS__, NULL})

static void ranks_that_differ_are_named(void) {
    IS_TOLD("other_plan", "load.method: rank 2 has sharded_read, rank 0 has rank0_broadcast");
    IS_TOLD("other_depth", "prefetch.live: rank 3 has ");
    IS_TOLD("other_steps", "--steps: rank 1 has 2, rank 0 has 3");
    IS_TOLD("other_rate", "parameter group 0: rank 3 updates by 2.4999");
}

static void a_late_rank_is_not_awaited_for_ever(void) {
    IS_TOLD("absent", "not all ranks took part within 12 s (MPI): rank 1 (process ",
            " has not come to it: it runs, and is after operation ",
            "(sum of squared gradients): ");
}

static void a_failure_is_told_to_the_others(void) {
    IS_TOLD("broken", "[1] rank 1: device: has fallen off the bus [operation ",
            "[0] rank 0: operation ", "another rank has given up (MPI): rank 1 (process ",
            " has failed after operation ", "): device: has fallen off the bus [operation ");
}

static void the_world_must_be_the_plans(void) {
    char log[8000];
    CU_ASSERT_EQUAL(start(2, "four", "world", "no"), 6);
    read_text("world.txt", log, sizeof log);
    CU_ASSERT_PTR_NOT_NULL(strstr(log, "the plan is for 4 ranks, the environment has 2"));
}

int main(int argc, char **argv) {
    static const stw_test tests[] = {
        {"four ranks give the digest of one", four_ranks_give_the_digest_of_one},
        {"ranks that differ are named", ranks_that_differ_are_named},
        {"a late rank is not awaited for ever", a_late_rank_is_not_awaited_for_ever},
        {"a failure is told to the others", a_failure_is_told_to_the_others},
        {"the world must be the plan's", the_world_must_be_the_plans}};
    if (argc == 5 && strcmp(argv[1], "rank") == 0) return be_rank(argv[2], argv[3], argv[4]);
    static char path[4096], plugin[4200];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    self = path;
    const char *build = getenv("STW_BUILD_DIR"), *mpiexec = getenv("STW_MPIEXEC");
    if (build != NULL && getenv("STOWAGE_MPI_PLUGIN") == NULL) {
        snprintf(plugin, sizeof plugin, "%s/lib/stowage/stowage-mpi.so", build);
        setenv("STOWAGE_MPI_PLUGIN", plugin, 1);
    }
    if (mpiexec != NULL && mpiexec[0] != '\0') launch = mpiexec;
    if (!stw_comm_mpi_found() || system("command -v mpirun > /dev/null 2>&1") != 0) {
        printf("no mpirun or no plugin: skipped\n");
        return 77;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    return stw_test_run_all("backend mpi", tests, sizeof tests / sizeof tests[0]);
}
