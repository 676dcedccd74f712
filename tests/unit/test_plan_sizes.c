/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that do not fit in 64 bits: formulas saturate instead of wrapping, and a job that comes
 * near is refused with the key, what was found and what is accepted. */
#include "core/checked.h"
#include "engines/bytes.h"
#include "plan/job/sizes.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {4, 256, 768, 8000};

static stw_status job_status(stw_model *model, const stw_cluster *cluster,
                             const char *const *settings, stw_error *err) {
    stw_plan *plan = NULL;
    stw_run_spec run;
    stw_status status = stw_run_spec_init(&run, err);
    for (; status == STW_STATUS_OK && *settings != NULL; settings += 2)
        status = stw_run_spec_set(&run, settings[0], settings[1], "test", err);
    if (status == STW_STATUS_OK) status = stw_plan_new(model, cluster, &run, &plan, err);
    stw_plan_free(plan);
    return status;
}

static stw_status with(const char *const *settings, uint32_t gpus, stw_error *err) {
    const stw_cluster cluster = fixture_cluster(gpus);
    return job_status(fixture_model(small), &cluster, settings, err);
}

static void batches_are_refused_by_name(void) {
    static const char *const eager[] = {
        "batch.micro_batch", "65536", "batch.seq_len", "16777216", "attention", "eager", NULL};
    static const char *const flash[] = {"batch.micro_batch", "65536", "batch.seq_len", "16777216",
                                        NULL};
    CHECK_FAILS(with(eager, 1, err), STW_STATUS_BAD_INPUT,
                "batch.micro_batch: found 65536, expected at most ");
    CHECK_OK(with(flash, 1, err));
    CHECK_FAILS(with(flash, 256, err), STW_STATUS_BAD_INPUT,
                "expected at most 1631 with sequences of 16777216 tokens");
    static const char *const most[] = {"batch.micro_batch", "1631", "batch.seq_len", "16777216",
                                       NULL};
    static const char *const over[] = {"batch.micro_batch", "1632", "batch.seq_len", "16777216",
                                       NULL};
    CHECK_OK(with(most, 256, err)); /* what the error offers is accepted, and no more */
    CHECK_FAILS(with(over, 256, err), STW_STATUS_BAD_INPUT, "at most 1631 with");
}

/* Facts that a plan file states are as large as it likes. */
static void facts_do_not_wrap(void) {
    static const char *const none[] = {NULL};
    const stw_cluster cluster = fixture_cluster(1);
    for (int shift = 20; shift < 64; shift++)
        for (int fact = 0; fact < 8; fact++) {
            stw_model *model = fixture_model(small);
            stw_block_facts *f = &model->groups[1].facts;
            uint64_t *facts[] = {&f->hidden,  &f->q_heads, &f->qk_dim,       &f->v_dim,
                                 &f->kv_rank, &f->ffn,     &f->linear_k_dim, &f->shared_ffn};
            stw_error e = STW_ERROR_INIT;
            f->linear_k_heads = f->linear_v_heads = 16;
            *facts[fact] = (UINT64_C(1) << shift) + (shift % 2 == 0 ? 0 : 1);
            stw_status status = job_status(model, &cluster, none, &e);
            if (shift > 47) CU_ASSERT_EQUAL(status, STW_STATUS_BAD_INPUT);
            if (status == STW_STATUS_OK) continue;
            CU_ASSERT_EQUAL(status, STW_STATUS_BAD_INPUT);
            CU_ASSERT_TRUE(strstr(e.text, "fit in 64 bits") != NULL);
        }
}

static void models_and_processes_are_refused(void) {
    static const char *const none[] = {NULL};
    stw_cluster cluster = fixture_cluster(64);
    stw_model *model = fixture_model(small);
    model->params = UINT64_C(1) << 55;
    CHECK_FAILS(job_status(model, &cluster, none, err), STW_STATUS_BAD_INPUT,
                "fixture: found 36028797018963968 parameters");
    model = fixture_model(small);
    model->stored_bytes = UINT64_MAX - 3;
    CHECK_FAILS(job_status(model, &cluster, none, err), STW_STATUS_BAD_INPUT, "bytes as stored");
    cluster.host.memory_bytes = cluster.host.limit_bytes = UINT64_C(1) << 60;
    cluster.host.process_bytes = (UINT64_C(1) << 60) - 1;
    CHECK_FAILS(job_status(fixture_model(small), &cluster, none, err), STW_STATUS_BAD_INPUT,
                "node.host.process: found 1152921504606846975 bytes");
}

/* Twice the tokens are twice the bytes, in every job that is accepted. */
static void accepted_sizes_are_exact(void) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    stw_job job = *plan->job;
    uint64_t (*const totals[])(const stw_job *) = {stw_logits_forward_bytes, stw_logits_saved_bytes,
                                                   stw_logits_backward_bytes,
                                                   stw_logits_grad_bytes};
    for (job.tokens = 1;
         stw_check_batch_sizes(&job, NULL) == STW_STATUS_OK && job.tokens < 1u << 31;
         job.tokens *= 2) {
        stw_job twice = job;
        twice.tokens = 2 * job.tokens;
        for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++)
            CU_ASSERT_EQUAL(totals[i](&twice), 2 * totals[i](&job));
        for (int act = 0; act < STW_N_ACTS; act++)
            CU_ASSERT_EQUAL(stw_activation_bytes(&twice, 1, (stw_act)act),
                            2 * stw_activation_bytes(&job, 1, (stw_act)act));
    }
    job.tokens = UINT64_C(1) << 62;
    CU_ASSERT_EQUAL(stw_logits_saved_bytes(&job), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_activation_bytes(&job, 1, STW_ACT_KEEP), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_activation_bytes(&job, 1, STW_ACT_RECOMPUTE), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_mlp_activation_bytes(&job, 1), STW_TOO_LARGE);
    CU_ASSERT_EQUAL(stw_block_backward_bytes(&job, 1).attention_acts, STW_TOO_LARGE);
    stw_plan_free(plan);
}

STW_TEST_MAIN("plan sizes", {"batches are refused by name", batches_are_refused_by_name},
              {"facts do not wrap", facts_do_not_wrap},
              {"models and processes are refused", models_and_processes_are_refused},
              {"accepted sizes are exact", accepted_sizes_are_exact})
