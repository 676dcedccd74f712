/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* golden_case.h */
/* Two accounts of the same bytes: what torch's allocator hands out in a replay of traced tensors,
 * and what the walk of the program counts. They are made by different code, so that a tensor that
 * is forgotten, or that never goes, shows. */
#include "tests/unit/golden_case.h"

static const char *const dense[] = {"Qwen3-0.6B", "Llama-3.2-1B", "Qwen2.5-1.5B"};
static const char *const sparse[] = {"Qwen3-30B-A3B", "Mixtral-8x7B"};

typedef struct traced_case {
    double apart; /* of the walk, at most */
    const char *settings[12];
} traced_case;

#define FULL "recompute.granularity=full"
#define UNIFORM FULL, "recompute.method=uniform", "recompute.num_layers=2"
#define NONE "recompute.granularity=none"
#define LORA "trainable.lora.rank=16", "trainable.lora.targets=all-linear"
#define SDPA FSDP2, "attention=sdpa"
#define MODULES(which) "recompute.granularity=selective", "recompute.modules=" which
#define IMAGES "batch.image_tokens=256", "batch.micro_batch=4"
#define OPTIMIZER "deepspeed.offload_optimizer=cpu"

static const traced_case jobs[] = {
    {0.01, {ZERO, "deepspeed.zero_stage=1", FULL}},
    {0.01, {ZERO, "deepspeed.zero_stage=1", NONE, "batch.grad_accumulation=2"}},
    {0.01, {ZERO, "deepspeed.zero_stage=2", FULL, OPTIMIZER}},
    {0.01, {ZERO, "deepspeed.zero_stage=2", NONE, "deepspeed.overlap_comm=true"}},
    {0.01, {ZERO, "deepspeed.zero_stage=3", FULL}},
    {0.01, {ZERO, "deepspeed.zero_stage=3", NONE, OPTIMIZER}},
    {0.01, {ZERO, "deepspeed.zero_stage=2", FULL, LORA}},
    {0.01, {MEGATRON, NONE}},
    {0.01, {MEGATRON, UNIFORM, "batch.grad_accumulation=4"}},
    {0.01, {MEGATRON, NONE, "parallel.tp=2", "parallel.sequence_parallel=true"}},
    {0.01, {MEGATRON, FULL, "parallel.pp=2", "batch.grad_accumulation=8"}},
    {0.01, {MEGATRON, NONE, "batch.micro_batch=4", "megatron.distributed_optimizer=false"}},
    {0.01, {MEGATRON, NONE, "megatron.cross_entropy_fusion=true"}},
};

static void compare(const stw_plan *plan, uint32_t k, const traced_case *c, const char *name) {
    const stw_phase phase = STW_PHASE_FORWARD_BACKWARD;
    const stw_replayed *r = &plan->replayed[k];
    const double walked = (double)stw_peak_allocated(&plan->peaks[k].phase[phase][STW_TIER_GPU]);
    const double traced = (double)r->iteration[STW_REPLAY_ITERATIONS - 1][phase].allocated_bytes;
    const double before = (double)r->iteration[STW_REPLAY_ITERATIONS - 2][phase].allocated_bytes;
    const double apart = traced / walked - 1;
    const bool stays = fabs(traced / before - 1) < 0.002; /* ends of blocks that are not cut */
    if (r->full || fabs(apart) > c->apart || !stays)
        fprintf(stderr,
                "%s, kind %u: traced %.0f, walked %.0f (%+.2f%%), an iteration before %.0f;", name,
                k, traced, walked, 100 * apart, before);
    for (int i = 0; fabs(apart) > c->apart && c->settings[i] != NULL; i++)
        fprintf(stderr, " %s%s", c->settings[i], c->settings[i + 1] == NULL ? "\n" : "");
    CU_ASSERT_FALSE(r->full);
    CU_ASSERT_TRUE(fabs(apart) <= c->apart);
    CU_ASSERT_TRUE(stays); /* nothing is left from iteration to iteration */
}

static void of_model(const char *model, const traced_case *c) {
    job_case job = {model, model, 4, 1, {"node.gpu.memory=2 TiB", "batch.seq_len=1024"}};
    for (int i = 0; i < 12 && c->settings[i] != NULL; i++) job.settings[2 + i] = c->settings[i];
    stw_plan *plan = golden_plan(&job);
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    stw_cost *cost = case_cost(plan);
    stw_choice choice = stw_choice_new(cost, cost->pool);
    uint64_t seed = 1;
    case_choice(cost, &seed, &choice);
    CHECK_OK(stw_cost_decide(cost, &choice, plan->pool, &plan->decisions, err));
    CHECK_OK(stw_plan_derive(plan, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) compare(plan, k, c, model);
    stw_cost_free(cost);
    stw_plan_free(plan);
}

static void dense_models(void) {
    (void)golden_check; /* there is no table */
    (void)golden_jobs;
    for (size_t m = 0; m < sizeof dense / sizeof dense[0]; m++)
        for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) of_model(dense[m], &jobs[i]);
}

static void models_with_experts(void) {
    static const traced_case experts[] = {
        {0.02, {ZERO, "deepspeed.zero_stage=2", FULL}},
        {0.02, {ZERO, "deepspeed.zero_stage=3", FULL}},
        {0.02, {MEGATRON, NONE, "parallel.ep=4"}},
        {0.02, {MEGATRON, FULL, "parallel.ep=4", "batch.grad_accumulation=4"}},
    };
    for (size_t m = 0; m < sizeof sparse / sizeof sparse[0]; m++)
        for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++)
            of_model(sparse[m], &experts[i]);
}

/* Windows that are shorter than the sequence have masks. The small tensors around the decoder count
 * more in these small models. */
static void fsdp2(void) {
    static const char *const models[] = {"Qwen3-0.6B", "Gemma-3-1b"};
    static const traced_case cases[] = {
        {0.01, {SDPA, FULL}},
        {0.01, {SDPA, NONE}},
        {0.01, {SDPA, MODULES("[mlp]")}},
        {0.01, {SDPA, MODULES("[self_attn]")}},
        {0.01, {SDPA, MODULES("[self_attn, mlp]")}},
        {0.01, {SDPA, FULL, "node.gpus=1"}},
        {0.01, {SDPA, NONE, "node.gpus=1"}},
        {0.01, {SDPA, MODULES("[mlp]"), "node.gpus=1", "batch.grad_accumulation=2"}},
    };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) of_model(models[m], &cases[i]);
}

/* The same of models with a vision tower, one of them without deepstack and with linear attention.
 */
static void towers(void) {
    static const char *const models[] = {"Qwen3-VL-2B", "Qwen3.5-0.8B"};
    static const traced_case cases[] = {
        {0.01, {SDPA, NONE, IMAGES}},
        {0.01, {SDPA, FULL, IMAGES}},
        {0.01, {FSDP2, NONE, IMAGES}},
        {0.01, {SDPA, NONE, IMAGES, "node.gpus=1"}},
        {0.01, {SDPA, FULL, IMAGES, "batch.log_prob_micro_batch=4"}},
        {0.01, {SDPA, FULL, IMAGES, "node.gpus=1", "batch.grad_accumulation=2"}},
        {0.01, {ZERO, "deepspeed.zero_stage=1", NONE, IMAGES}},
        {0.01, {ZERO, "deepspeed.zero_stage=2", FULL, IMAGES}},
        {0.01, {ZERO, "deepspeed.zero_stage=3", NONE, IMAGES}},
        {0.01, {ZERO, "deepspeed.zero_stage=3", FULL, IMAGES}},
    };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) of_model(models[m], &cases[i]);
}

STW_TEST_MAIN("plan_traced", {"FSDP2", fsdp2}, {"vision towers", towers},
              {"dense models", dense_models}, {"models with experts", models_with_experts})
