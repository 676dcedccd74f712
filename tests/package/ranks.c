/* SPDX-License-Identifier: Apache-2.0 */
/* Several ranks through the installed library: an execution and a session in one process, with the
 * same digests. Usage: mpirun -n N ranks MODEL CLUSTER, with a cluster of N GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stowage.h>

#define STEPS 2
#define SEED 7

static stw_error_t *error;

static void check(stw_status_t status, const char *what) {
    if (status == STOWAGE_OK) return;
    fprintf(stderr, "ranks: %s: %s\n", what, stw_get_error_text(error));
    exit(1);
}

/* Digest of the parameters; 0 on every rank but the first. */
static uint64_t execute(const stw_plan_t *plan) {
    stw_run_options_t options;
    stw_result_t *result = NULL;
    uint64_t digest = 0;
    memset(&options, 0, sizeof options);
    options.backend = "host";
    options.steps = STEPS;
    options.seed = SEED;
    check(stw_execute_plan(plan, &options, sizeof options, &result, error), "execute the plan");
    if (result != NULL) (void)stw_get_digest(result, "params", &digest);
    stw_free_result(result);
    return digest;
}

static uint64_t step_by_step(const stw_plan_t *plan, uint32_t *rank) {
    stw_session_options_t options;
    stw_session_info_t info;
    stw_session_t *session = NULL;
    uint64_t step, digest = 0;
    memset(&options, 0, sizeof options);
    options.backend = "host";
    options.seed = SEED;
    check(stw_open_session(plan, &options, sizeof options, &session, error), "attach");
    stw_get_session_info(session, &info, sizeof info);
    *rank = info.rank;
    check(stw_execute_movement(session, "load", 0, NULL, 0, error), "load");
    for (step = 1; step <= STEPS; step++) {
        const char *phase = step == 1 ? "first_optimizer_step" : "optimizer_step";
        check(stw_seed_gradients(session, step, error), "seed gradients");
        check(stw_execute_movement(session, phase, step, NULL, 0, error), "step");
    }
    check(stw_digest_state(session, "params", &digest, error), "digest");
    stw_free_session(session);
    return digest;
}

int main(int argc, char **argv) {
    stw_plan_options_t options;
    stw_model_t *model = NULL;
    stw_plan_t *plan = NULL;
    uint64_t executed, stepped;
    uint32_t rank = 0;
    error = stw_new_error();
    if (argc != 3 || error == NULL) return 2;
    memset(&options, 0, sizeof options);
    options.cluster = argv[2];
    check(stw_open_model(argv[1], &model, error), "open the model");
    check(stw_make_plan(model, &options, sizeof options, &plan, error), "make a plan");
    executed = execute(plan);
    stepped = step_by_step(plan, &rank);
    stw_free_plan(plan);
    stw_free_model(model);
    stw_free_error(error);
    if (rank == 0 && (executed == 0 || executed != stepped)) {
        fprintf(stderr, "ranks: found %llx, expected %llx\n", (unsigned long long)stepped,
                (unsigned long long)executed);
        return 1;
    }
    if (rank == 0) printf("ranks: ok, %016llx\n", (unsigned long long)executed);
    return 0;
}
