/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of an optimizer's state go on while its next step is taken, and hold the state before that
 * step, wherever it lies; loaded into another optimizer they go on with the same bits. Sessions
 * save and resume. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>

#include "tests/unit/library_case.h"

enum { TENSORS = 4, KINDS = 4 };
static const char list[] = "name,shape,dtype\nembed,\"[370, 129]\",BF16\nnorm,\"[5]\",BF16\n"
                           "first,\"[1000, 33]\",BF16\nsecond,\"[64, 1000]\",BF16\n";
static const char *const names[TENSORS] = {"embed", "norm", "first", "second"};
static const uint64_t rows[TENSORS] = {370, 5, 1000, 64}, columns[TENSORS] = {129, 1, 33, 1000};
static const char *const kinds[KINDS] = {"params", "master", "exp_avg", "exp_avg_sq"};

typedef struct job {
    stw_plan_t *plan;
    stw_optimizer_t *optimizer;
    stw_saved_t *saved;
    uint16_t *params[TENSORS], *grads[TENSORS];
} job;

static uint64_t size_of(uint32_t t) { return rows[t] * columns[t]; }

static void open_job(job *j, const stw_model_t *model, const char *place) {
    const bool resident = strstr(place, "resident=1") != NULL;
    const char *settings[] = {"precision.params=bf16",
                              "precision.grads=bf16",
                              "precision.master=fp32",
                              "placement.params=gpu",
                              "placement.grads=gpu",
                              resident ? "update.stream=0" : "update.stream=1",
                              resident ? "update.resident=1" : "update.resident=0",
                              resident ? place : "prefetch.bucket=64 KiB",
                              "prefetch.depth=3",
                              place};
    const stw_plan_options_t planned = {.cluster = "tiny.yaml",
                                        .settings = settings,
                                        .n_settings = resident                  ? 7
                                                      : strstr(place, "update") ? 9
                                                                                : 10};
    const stw_optimizer_options_t options = {
        .backend = "host", .nvme_folder = ".", .nvme_in_memory = 1};
    stw_bound_t bound[TENSORS];
    stw_saved_tensor_t tensors[TENSORS];
    stw_held_t held[TENSORS];
    memset(j, 0, sizeof *j);
    library_ok(stw_make_plan(model, &planned, sizeof planned, &j->plan, error), "plan");
    for (uint32_t t = 0; t < TENSORS; t++) {
        j->params[t] = calloc(size_of(t), 2);
        j->grads[t] = calloc(size_of(t), 2);
        for (uint64_t i = 0; i < size_of(t); i++)
            j->params[t][i] = (uint16_t)(0x3c00 + i * 7 % 512);
        bound[t] = (stw_bound_t){
            .name = names[t], .dtype = "BF16", .address = j->params[t], .elements = size_of(t)};
        const bool flat = columns[t] == 1;
        tensors[t] = (stw_saved_tensor_t){.name = names[t],
                                          .dtype = "BF16",
                                          .dimensions = flat ? 1 : 2,
                                          .shape = {rows[t], columns[t]}};
        held[t] = (stw_held_t){
            .tensor = t, .count = {rows[t], columns[t], 1, 1}, .params = 1, .state = 1};
    }
    library_ok(
        stw_open_optimizer(j->plan, bound, TENSORS, &options, sizeof options, &j->optimizer, error),
        "open");
    const stw_saved_options_t saved = {.tensors = tensors,
                                       .n_tensors = TENSORS,
                                       .pieces = held,
                                       .n_pieces = TENSORS,
                                       .world = 1,
                                       .master = "F32",
                                       .exp_avg = "F32",
                                       .exp_avg_sq = "F32",
                                       .bucket_bytes = 8192};
    library_ok(stw_plan_checkpoint(&saved, sizeof saved, &j->saved, error), "plan a checkpoint");
}

static void close_job(job *j) {
    stw_free_saved(j->saved);
    stw_free_optimizer(j->optimizer);
    stw_free_plan(j->plan);
    for (uint32_t t = 0; t < TENSORS; t++) {
        free(j->params[t]);
        free(j->grads[t]);
    }
}

static void begin_step(job *j, uint64_t step) {
    const stw_step_options_t options = {.step = step, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < size_of(t); i++)
            j->grads[t][i] = (uint16_t)(0x3c00 + (i * 13 + step * 5 + t) % 256);
    library_ok(stw_bind_gradients(j->optimizer, (const void *const *)j->grads, TENSORS, error),
               "gradients");
    library_ok(stw_begin_step(j->optimizer, &options, sizeof options, error), "step");
}

static int copy_params(void *user, uint64_t first, uint64_t elements, void *memory) {
    memcpy(memory, (uint16_t *)user + first, elements * 2);
    return 0;
}
static int put_params(void *user, uint64_t first, uint64_t elements, void *memory) {
    memcpy((uint16_t *)user + first, memory, elements * 2);
    return 0;
}

static uint32_t sources_of(job *j, int load, stw_save_source_t *out) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t k = 0; k < KINDS; k++) {
            out[n] = (stw_save_source_t){.piece = t, .component = kinds[k], .tensor = t};
            if (k == 0) {
                out[n].copy = load ? put_params : copy_params;
                out[n].user = j->params[t];
            } else {
                out[n].optimizer = j->optimizer;
            }
            n++;
        }
    return n;
}

static void same_state(job *a, job *b) {
    for (uint32_t t = 0; t < TENSORS; t++) {
        float *x = calloc(size_of(t), 4), *y = calloc(size_of(t), 4);
        CU_ASSERT_EQUAL(memcmp(a->params[t], b->params[t], size_of(t) * 2), 0);
        for (uint32_t k = 1; k < KINDS; k++) {
            library_ok(stw_read_state(a->optimizer, kinds[k], t, 0, size_of(t), x, error), "read");
            library_ok(stw_read_state(b->optimizer, kinds[k], t, 0, size_of(t), y, error), "read");
            CU_ASSERT_EQUAL(memcmp(x, y, size_of(t) * 4), 0);
        }
        free(x);
        free(y);
    }
}

/* Save after step 2 while step 3 is taken; resume in another placement and take step 3 there. */
static void behind_steps(void) {
    static const char *const places[] = {"update.stream=1", "placement.moments=nvme",
                                         "update.resident=1"};
    stw_model_t *model = NULL;
    stw_save_source_t sources[TENSORS * KINDS];
    stw_checkpoint_t *checkpoint = NULL;
    const stw_save_options_t options = {.folder = "states", .step = 2, .number = 5};
    library_files();
    library_write("list.csv", list);
    library_ok(stw_open_model("list.csv", &model, error), "model");
    for (int p = 0; p < 3; p++) {
        job first, second;
        open_job(&first, model, places[p]);
        open_job(&second, model, places[(p + 1) % 3]);
        begin_step(&first, 1);
        begin_step(&first, 2);
        const uint32_t n = sources_of(&first, 0, sources);
        library_ok(stw_begin_save(first.saved, &options, sizeof options, sources, n, error),
                   "save");
        begin_step(&first, 3);
        stw_save_result_t result;
        library_ok(stw_finish_save(first.saved, &result, sizeof result, error), "finish");
        CU_ASSERT_EQUAL(result.complete, 1);
        library_ok(stw_open_checkpoint("states", &checkpoint, error), "open");
        const uint32_t m = sources_of(&second, 1, sources);
        library_ok(stw_load_checkpoint(checkpoint, second.saved, sources, m, error), "load");
        stw_free_checkpoint(checkpoint);
        begin_step(&second, 3);
        library_ok(stw_finish_step(first.optimizer, NULL, sizeof(stw_sample_t), error), "done");
        same_state(&first, &second);
        close_job(&first);
        close_job(&second);
    }
    stw_free_model(model);
}

/* Steps go on after a handle was freed without stw_finish_save. */
static void freed_while_saving(void) {
    stw_model_t *model = NULL;
    stw_save_source_t sources[TENSORS * KINDS];
    stw_checkpoint_t *checkpoint = NULL;
    const stw_save_options_t options = {.folder = "freed", .step = 1, .number = 6};
    job j;
    library_ok(stw_open_model("list.csv", &model, error), "model");
    open_job(&j, model, "update.stream=1");
    begin_step(&j, 1);
    const uint32_t n = sources_of(&j, 0, sources);
    library_ok(stw_begin_save(j.saved, &options, sizeof options, sources, n, error), "save");
    stw_free_saved(j.saved);
    j.saved = NULL;
    begin_step(&j, 2);
    library_ok(stw_finish_step(j.optimizer, NULL, sizeof(stw_sample_t), error), "step");
    library_ok(stw_open_checkpoint("freed", &checkpoint, error), "open");
    library_ok(stw_verify_checkpoint(checkpoint, error), "verify");
    stw_free_checkpoint(checkpoint);
    close_job(&j);
    stw_free_model(model);
}

static void digests_of(stw_session_t *session, uint64_t out[KINDS]) {
    for (uint32_t k = 0; k < KINDS; k++) {
        out[k] = 0;
        if (k != 1) library_ok(stw_digest_state(session, kinds[k], &out[k], error), "digest");
    }
}

static void step_session(stw_session_t *session, uint64_t step, const char *phase) {
    library_ok(stw_seed_gradients(session, step, error), "gradients");
    library_ok(stw_execute_movement(session, phase, step, NULL, sizeof(stw_sample_t), error),
               "step");
}

static void sessions_resume(void) {
    stw_model_t *model = library_model();
    stw_plan_t *host = library_plan(model, "placement.moments=host"),
               *gpu = library_plan(model, "placement.moments=gpu");
    const stw_session_options_t options = {.backend = "host", .seed = 4};
    const stw_session_save_t save = {.folder = "sessions", .keep = 1};
    stw_session_t *session = NULL;
    uint64_t expected[KINDS], found[KINDS], step = 0;
    library_ok(stw_open_session(host, &options, sizeof options, &session, error), "open");
    library_refused(stw_save_session(session, &save, sizeof save, 1, error), STOWAGE_USAGE, "load");
    library_ok(stw_execute_movement(session, "load", 0, NULL, sizeof(stw_sample_t), error), "load");
    library_ok(stw_set_learning_rate(session, 0, 3e-4, error), "rate");
    step_session(session, 1, "first_optimizer_step");
    step_session(session, 2, "optimizer_step");
    library_ok(stw_save_session(session, &save, sizeof save, 2, error), "save");
    step_session(session, 3, "optimizer_step");
    digests_of(session, expected);
    stw_free_session(session);
    library_ok(stw_open_session(gpu, &options, sizeof options, &session, error), "open");
    library_ok(stw_resume_session(session, "sessions", &step, error), "resume");
    CU_ASSERT_EQUAL(step, 2);
    step_session(session, 3, "optimizer_step"); /* with the learning rate of the checkpoint */
    digests_of(session, found);
    CU_ASSERT_EQUAL(memcmp(expected, found, sizeof found), 0);
    stw_free_session(session);
    stw_free_plan(gpu);
    gpu = library_plan(model, "optimizer.betas=[0.9, 0.95]");
    library_ok(stw_open_session(gpu, &options, sizeof options, &session, error), "open");
    library_refused(stw_resume_session(session, "sessions", &step, error), STOWAGE_BAD_INPUT,
                    "in the checkpoint");
    stw_free_session(session);
    stw_free_plan(host);
    stw_free_plan(gpu);
    stw_free_model(model);
}

STW_TEST_MAIN("checkpoints of state", {"saves go on behind steps", behind_steps},
              {"a handle is freed while it saves", freed_while_saving},
              {"sessions resume", sessions_resume})
