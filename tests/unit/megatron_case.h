/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of engine megatron from settings "key=value key=value", and what their programs hold and
 * send. */
#ifndef STW_TESTS_UNIT_MEGATRON_CASE_H
#define STW_TESTS_UNIT_MEGATRON_CASE_H

#include "planner/reading.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MEGATRON                                                                                   \
    "engine=megatron precision.params=bf16 precision.master=fp32 node.gpus=8 nodes=1 "             \
    "recompute.granularity=none batch.seq_len=4096 batch.micro_batch=1 "                           \
    "megatron.transformer_impl=transformer_engine "

static inline stw_status megatron_new(const char *model_name, const char *settings, stw_plan **out,
                                      stw_error *err) {
    enum { MOST_SETTINGS = 32 };
    stw_status status = STW_STATUS_OK;
    char text[1024];
    const char *list[MOST_SETTINGS];
    size_t n = 0;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run = {0};
    stw_model *model = NULL;
    *out = NULL;
    snprintf(text, sizeof text, MEGATRON "%s", settings);
    for (char *at = strtok(text, " "); at != NULL; at = strtok(NULL, " ")) {
        CU_ASSERT_TRUE_FATAL(n < MOST_SETTINGS);
        list[n++] = at;
    }
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, list, n, "case", err));
    STW_TRY(stw_run_spec_check(&run, "case", err));
    STW_TRY(stw_model_open(model_name, STW_SOURCE_MODELS, &model, err));
    status = stw_plan_new(model, &cluster, &run, out, err);
out:
    stw_run_spec_free(&run);
    return status;
}

static inline stw_plan *megatron_plan(const char *model, const char *settings) {
    stw_plan *plan = NULL;
    CHECK_OK(megatron_new(model, settings, &plan, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    return plan;
}

/** The program of the first rank of a stage; the caller frees it. */
static inline stw_program *megatron_program(const stw_job *job, uint32_t stage) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const stw_simple simple = {.job = job,
                               .kind =
                                   stw_job_kind_of(job, job->world / job->run->parallel.pp * stage),
                               .place = places[0],
                               .act = STW_ACT_KEEP,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = true,
                               .depth = 1};
    CHECK_OK(stw_simple_build(&simple, &layout, &program, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(program);
    stw_layout_free(layout);
    return program;
}

static inline stw_peak megatron_peak(const stw_job *job, uint32_t stage, stw_phase phase,
                                     stw_tier tier) {
    stw_peaks peaks;
    stw_program *program = megatron_program(job, stage);
    stw_program_walk(program, &peaks);
    stw_program_free(program);
    return peaks.phase[phase][tier];
}

/** Bytes of the first stage's operations of a kind in a group. */
static inline double megatron_sent(const stw_job *job, stw_op_kind kind, stw_rank_group group,
                                   stw_phase phase) {
    stw_program *program = megatron_program(job, 0);
    const stw_movement *m = stw_program_movement(program, phase);
    double bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == kind && program->ops[i].group == group)
            bytes += (double)program->ops[i].bytes;
    stw_program_free(program);
    return bytes;
}

#endif
