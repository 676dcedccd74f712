/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says when nothing fits: the limits of a minimal conflict, and changes, one or two at
 * a time, that make it fit and are the smallest of their kind. */
#include <math.h>
#include <string.h>

#include "planner/fixes.h"
#include "planner/planner.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define MAX_SETTINGS 24

static const stw_planner_options with_fixes = {.time_limit_s = 60, .no_prices = true};
static const stw_planner_options without = {
    .time_limit_s = 60, .no_prices = true, .no_fixes = true, .only_stage1 = true};

static stw_plan *unfit(const char *model, const char *const *settings) {
    stw_plan *plan = case_zoo(model, settings);
    CHECK_OK(stw_planner_solve(plan, &with_fixes, err));
    CU_ASSERT_EQUAL(plan->outcome, STW_OUTCOME_INFEASIBLE);
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_DOES_NOT_FIT);
    CU_ASSERT(plan->n_bindings > 0 && plan->n_fixes > 0);
    return plan;
}

static uint64_t step_sequences; /* of the last plan */

/* The case with more settings after its own. */
static stw_verdict verdict_with(const char *model, const char *const *settings,
                                const char *const *more, const stw_planner_options *options) {
    const char *all[MAX_SETTINGS + 1];
    uint32_t n = 0;
    for (; settings[n] != NULL && n < MAX_SETTINGS; n++) all[n] = settings[n];
    for (; *more != NULL && n < MAX_SETTINGS; more++) all[n++] = *more;
    all[n] = NULL;
    stw_plan *plan = case_zoo(model, all);
    CHECK_OK(stw_planner_solve(plan, options, err));
    const stw_verdict verdict = plan->verdict;
    step_sequences = stw_job_step_tokens(plan->job) / plan->run.batch.seq_len;
    stw_plan_free(plan);
    return verdict;
}

/* An optimizer step keeps its sequences, or the fix says what it has. */
static void check_step(const stw_plan *plan, const stw_fix *fix) {
    const uint64_t before = stw_job_step_tokens(plan->job) / plan->run.batch.seq_len;
    const bool said = strstr(fix->why, "; a step then has ") != NULL;
    CU_ASSERT_TRUE(said == (step_sequences != before));
    if (said != (step_sequences != before))
        fprintf(stderr, "%s: %llu sequences of %llu\n", fix->why,
                (unsigned long long)step_sequences, (unsigned long long)before);
}

static bool fits_with(const char *model, const char *const *settings, const char *const *more) {
    return verdict_with(model, settings, more, &without) != STW_VERDICT_DOES_NOT_FIT;
}

static void check_fixes(const char *model, const char *const *settings, const stw_plan *plan) {
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        const stw_fix *fix = &plan->fixes[i];
        char texts[STW_MAX_FIX_CHANGES][128];
        const char *more[STW_MAX_FIX_CHANGES + 1] = {NULL};
        CU_ASSERT(fix->n_changes >= 1 && fix->n_changes <= STW_MAX_FIX_CHANGES);
        for (uint32_t c = 0; c < fix->n_changes; c++) {
            snprintf(texts[c], sizeof texts[c], "%s=%s", fix->changes[c].set,
                     fix->changes[c].value);
            more[c] = texts[c];
        }
        CU_ASSERT(fits_with(model, settings, more));
        check_step(plan, fix);
    }
}

static const stw_binding *binding_of(const stw_plan *plan, const char *resource) {
    for (uint32_t i = 0; i < plan->n_bindings; i++)
        if (strcmp(plan->bindings[i].resource, resource) == 0) return &plan->bindings[i];
    return NULL;
}

/* A fix whose first change is of this key; `n` changes in all. */
static const stw_fix *fix_of(const stw_plan *plan, const char *key, uint32_t n) {
    for (uint32_t i = 0; i < plan->n_fixes; i++)
        if (strcmp(plan->fixes[i].changes[0].set, key) == 0 && plan->fixes[i].n_changes == n)
            return &plan->fixes[i];
    return NULL;
}

static void a_fixed_placement_is_freed(void) {
    const char *settings[] = {"node.gpus=1", "node.gpu.memory=6 GiB", "placement.moments=gpu",
                              "batch.seq_len=512", NULL};
    stw_plan *plan = unfit("Qwen3-0.6B", settings);
    CU_ASSERT_PTR_NOT_NULL(fix_of(plan, "placement.moments", 1));
    check_fixes("Qwen3-0.6B", settings, plan);
    stw_plan_free(plan);
}

/* State fits neither on the GPUs nor beside them; either limit could be raised. */
static void both_limits_of_a_conflict_are_named(void) {
    const char *settings[] = {"node.gpus=1",
                              "node.gpu.memory=12 GiB",
                              "node.host.memory=64 GiB",
                              "node.host.limit=8 GiB",
                              "node.nvme.capacity=0",
                              "batch.seq_len=512",
                              NULL};
    stw_plan *plan = unfit("Qwen3-1.7B", settings);
    const stw_binding *gpu = binding_of(plan, "gpu memory"),
                      *host = binding_of(plan, "host memory");
    CU_ASSERT_PTR_NOT_NULL_FATAL(gpu);
    CU_ASSERT_PTR_NOT_NULL_FATAL(host);
    CU_ASSERT(gpu->enough_bytes > 12ull << 30 && gpu->enough_bytes < 48ull << 30);
    CU_ASSERT(host->enough_bytes > 8ull << 30 && host->enough_bytes < 48ull << 30);
    const stw_fix *fix = fix_of(plan, "node.host.limit", 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    uint64_t gib = strtoull(fix->changes[0].value, NULL, 10);
    CU_ASSERT_EQUAL(gib << 30, host->enough_bytes);
    char less[64];
    snprintf(less, sizeof less, "node.host.limit=%llu GiB", (unsigned long long)gib - 1);
    const char *more[] = {less, NULL};
    CU_ASSERT_FALSE(fits_with("Qwen3-1.7B", settings, more));
    check_fixes("Qwen3-1.7B", settings, plan);
    stw_plan_free(plan);
}

static void a_page_lock_limit_is_raised(void) {
    const char *settings[] = {"node.gpus=1",
                              "node.gpu.memory=12 GiB",
                              "node.host.memory=64 GiB",
                              "node.host.limit=60 GiB",
                              "node.host.page_lock_limit=4 GiB",
                              "node.nvme.capacity=0",
                              "batch.seq_len=512",
                              NULL};
    stw_plan *plan = unfit("Qwen3-1.7B", settings);
    CU_ASSERT_PTR_NOT_NULL(binding_of(plan, "page-locked memory"));
    CU_ASSERT_PTR_NOT_NULL(fix_of(plan, "node.host.page_lock_limit", 1));
    check_fixes("Qwen3-1.7B", settings, plan);
    stw_plan_free(plan);
}

/* The longest sequence that fits is told in steps of 128 tokens, not the next half.
 */
static void a_length_is_the_longest_that_fits(void) {
    const char *settings[] = {"node.gpus=1", "node.gpu.memory=24 GiB", "batch.seq_len=8192",
                              "batch.micro_batch=8", NULL};
    stw_plan *plan = unfit("Qwen3-0.6B", settings);
    const stw_fix *fix = fix_of(plan, "batch.seq_len", 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    char longer[64];
    snprintf(longer, sizeof longer, "batch.seq_len=%llu",
             strtoull(fix->changes[0].value, NULL, 10) + 128);
    const char *more[] = {longer, NULL};
    CU_ASSERT_FALSE(fits_with("Qwen3-0.6B", settings, more));
    fix = fix_of(plan, "batch.micro_batch", 2);
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    CU_ASSERT_STRING_EQUAL(fix->changes[1].set, "batch.grad_accumulation");
    check_fixes("Qwen3-0.6B", settings, plan);
    stw_plan_free(plan);
}

/* Logits need the fused loss and state needs the host: neither is enough by itself. */
static void two_changes_are_offered_where_one_is_not_enough(void) {
    const char *settings[] = {"node.gpus=1",
                              "nodes=1",
                              "node.gpu.memory=16 GiB",
                              "node.host.memory=64 GiB",
                              "node.host.limit=6 GiB",
                              "node.nvme.capacity=0",
                              "batch.seq_len=8192",
                              NULL};
    stw_plan *plan = unfit("Qwen3-1.7B", settings);
    const stw_fix *fix = fix_of(plan, "node.host.limit", 2);
    CU_ASSERT_PTR_NULL(fix_of(plan, "node.host.limit", 1));
    CU_ASSERT_PTR_NULL(fix_of(plan, "loss.fused", 1));
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    CU_ASSERT_STRING_EQUAL(fix->changes[1].set, "loss.fused");
    check_fixes("Qwen3-1.7B", settings, plan);
    stw_plan_free(plan);
}

/* 12 ranks: experts can be cut over 4 of them, not over 8. */
static void experts_are_cut_over_ranks_that_divide(void) {
    const char *settings[] = {"nodes=3",
                              "node.gpus=4",
                              "node.gpu.memory=44 GiB",
                              "node.host.memory=999 GiB",
                              "node.host.limit=999 GiB",
                              "engine=fsdp2",
                              "batch.seq_len=16384",
                              NULL};
    stw_plan *plan = unfit("Qwen3-30B-A3B", settings);
    const stw_fix *fix = fix_of(plan, "parallel.ep", 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    CU_ASSERT_EQUAL(4 % strtoull(fix->changes[0].value, NULL, 10), 0);
    check_fixes("Qwen3-30B-A3B", settings, plan);
    stw_plan_free(plan);
}

static uint64_t value_of(const stw_fix *fix, const char *key, uint64_t otherwise) {
    for (uint32_t c = 0; c < fix->n_changes; c++)
        if (strcmp(fix->changes[c].set, key) == 0) return strtoull(fix->changes[c].value, NULL, 10);
    return otherwise;
}

/* Ranks that share sequences, other nodes and packed sequences: the tokens stay where they can. */
static void a_step_keeps_its_tokens(void) {
    const char *nodes[] = {"node.gpus=2",           "node.gpu.memory=12 GiB",
                           "batch.seq_len=1024",    "batch.grad_accumulation=64",
                           "node.nvme.capacity=0",  "node.host.memory=24 GiB",
                           "node.host.limit=8 GiB", NULL};
    const char *packed[] = {"node.gpus=8",
                            "engine=fsdp2",
                            "node.gpu.memory=9 GiB",
                            "batch.seq_len=16384",
                            "batch.max_tokens_per_gpu=16384",
                            "batch.tokens_per_step=393216",
                            "batch.grad_accumulation=3",
                            NULL};
    stw_plan *plan = unfit("Qwen3-1.7B", nodes);
    CU_ASSERT_TRUE(plan->n_fixes > 0);
    for (uint32_t i = 0; i < plan->n_fixes; i++)
        if (strcmp(plan->fixes[i].changes[0].set, "nodes") == 0)
            CU_ASSERT_EQUAL(value_of(&plan->fixes[i], "nodes", 1) *
                                value_of(&plan->fixes[i], "batch.grad_accumulation", 64),
                            64);
    check_fixes("Qwen3-1.7B", nodes, plan);
    stw_plan_free(plan);
    plan = unfit("Qwen3-0.6B", packed);
    check_fixes("Qwen3-0.6B", packed, plan);
    stw_plan_free(plan);
}

/* 64 sequences of a step, packed on 16 GPUs: 3 nodes cannot have as many each. */
static void packed_sequences_divide_over_the_gpus(void) {
    const char *settings[] = {"nodes=2",
                              "node.gpus=8",
                              "engine=fsdp2",
                              "node.gpu.memory=14 GiB",
                              "node.host.memory=64 GiB",
                              "node.host.limit=60 GiB",
                              "batch.seq_len=2048",
                              "batch.max_tokens_per_gpu=4096",
                              "batch.tokens_per_step=131072",
                              "batch.grad_accumulation=2",
                              NULL};
    stw_plan *plan = unfit("Qwen3-8B", settings);
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_fixes; i++) {
        const uint64_t nodes = value_of(&plan->fixes[i], "nodes", 2);
        const uint64_t cp = value_of(&plan->fixes[i], "parallel.cp", 1);
        CU_ASSERT_EQUAL(64 % (nodes * 8 / cp), 0);
        CU_ASSERT_PTR_NULL(strstr(plan->fixes[i].why, "a step then has"));
        n += nodes > 2;
    }
    CU_ASSERT(n > 0);
    check_fixes("Qwen3-8B", settings, plan);
    stw_plan_free(plan);
}

/* Fewer tokens of packed sequences in a micro batch, in more micro batches: as many as fit. */
static void packed_sequences_are_fewer_at_a_time(void) {
    const char *const given[] = {"batch.tokens_per_step=524288", "batch.grad_accumulation=2"};
    for (int i = 0; i < 2; i++) {
        const char *settings[] = {"node.gpus=8",
                                  "engine=fsdp2",
                                  "attention=flash",
                                  "node.gpu.memory=30 GiB",
                                  "batch.seq_len=2048",
                                  "batch.max_tokens_per_gpu=32768",
                                  "node.nvme.capacity=0",
                                  "batch.grad_accumulation=2",
                                  given[i],
                                  NULL};
        stw_plan *plan = unfit("Qwen3-0.6B", settings);
        const stw_fix *fix = fix_of(plan, "batch.max_tokens_per_gpu", 2);
        CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
        const uint64_t tokens = value_of(fix, "batch.max_tokens_per_gpu", 0);
        CU_ASSERT(tokens >= 2048 && tokens < 32768 && tokens % 2048 == 0);
        CU_ASSERT_EQUAL(value_of(fix, "batch.grad_accumulation", 0), (65536 + tokens - 1) / tokens);
        check_fixes("Qwen3-0.6B", settings, plan);
        stw_plan_free(plan);
    }
}

/* The largest share of a GPU with which a rollout beside the trainer fits. */
static void a_rollout_takes_a_smaller_share(void) {
    const char *settings[] = {"node.gpus=8", "engine=fsdp2", "batch.seq_len=2048",
                              "roles=[{name: a, gpu_memory_utilization: 0.95}]", NULL};
    stw_plan *plan = unfit("Qwen3-8B", settings);
    const stw_fix *fix = fix_of(plan, "roles.0.gpu_memory_utilization", 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    const double share = strtod(fix->changes[0].value, NULL);
    CU_ASSERT(share >= 0.2 && share < 0.95);
    check_fixes("Qwen3-8B", settings, plan);
    stw_plan_free(plan);
}

/* 7 x 2 micro batches are no change of 8 x 1 "at the same tokens per step". */
static void a_smaller_micro_batch_keeps_the_tokens(void) {
    const char *const sizes[] = {"node.gpu.memory=46 GiB", "node.gpu.memory=54 GiB"};
    for (int i = 0; i < 2; i++) {
        const char *settings[] = {"node.gpus=1", sizes[i], "batch.seq_len=8192",
                                  "batch.micro_batch=8", NULL};
        stw_plan *plan = unfit("Qwen3-0.6B", settings);
        uint32_t found = 0;
        for (uint32_t f = 0; f < plan->n_fixes; f++) {
            const stw_fix *fix = &plan->fixes[f];
            if (strcmp(fix->changes[0].set, "batch.micro_batch") != 0) continue;
            found++;
            CU_ASSERT_EQUAL(value_of(fix, "batch.micro_batch", 8) *
                                value_of(fix, "batch.grad_accumulation", 1),
                            8);
        }
        CU_ASSERT(found > 0);
        stw_plan_free(plan);
    }
}

/* At its last steps a knob may leave too few tokens for a loss in chunks: the specs refuse that,
 * and earlier steps fit. */
static void refused_steps_are_skipped(void) {
    const char *settings[] = {"node.gpus=8",
                              "node.gpu.memory=20 GiB",
                              "node.host.limit=90 GiB",
                              "batch.seq_len=131072",
                              "loss.fused=true",
                              "node.nvme.capacity=0",
                              NULL};
    stw_plan *plan = unfit("Qwen3-1.7B", settings);
    const stw_fix *longest = fix_of(plan, "batch.seq_len", 1),
                  *cut = fix_of(plan, "parallel.cp", 2);
    CU_ASSERT_PTR_NOT_NULL(longest);
    CU_ASSERT_PTR_NOT_NULL(cut);
    check_fixes("Qwen3-1.7B", settings, plan);
    stw_plan_free(plan);
}

/* Two replicas on 6 ranks, experts cut over 2: counts of nodes that cannot be cut so are no end of
 * the search. */
static void replicas_and_counts_of_nodes_are_tried(void) {
    const char *settings[] = {"nodes=4",
                              "node.gpus=4",
                              "node.gpu.memory=44 GiB",
                              "node.host.limit=100 GiB",
                              "engine=fsdp2",
                              "load.method=sharded_read",
                              "parallel.dp_replicate=2",
                              "parallel.ep=8",
                              "loss.fused=true",
                              NULL};
    stw_plan *plan = unfit("Qwen3-30B-A3B", settings);
    const stw_fix *one = fix_of(plan, "parallel.dp_replicate", 1), *more = fix_of(plan, "nodes", 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(one);
    CU_ASSERT_PTR_NOT_NULL_FATAL(more);
    CU_ASSERT_STRING_EQUAL(one->changes[0].value, "1");
    uint64_t nodes = value_of(more, "nodes", 0);
    CU_ASSERT_EQUAL(nodes % 4, 0); /* 8 ranks of a replica share the experts */
    for (uint64_t n = 8; n < nodes; n += 4) {
        char fewer[32];
        snprintf(fewer, sizeof fewer, "nodes=%llu", (unsigned long long)n);
        const char *more_nodes[] = {fewer, NULL};
        CU_ASSERT_FALSE(fits_with("Qwen3-30B-A3B", settings, more_nodes));
    }
    check_fixes("Qwen3-30B-A3B", settings, plan);
    stw_plan_free(plan);
}

/* Scores of eager attention and state: two changes, and the length alone. */
static void an_attention_without_scores_is_offered(void) {
    const char *settings[] = {"node.gpus=1",     "node.gpu.memory=24 GiB", "batch.seq_len=16384",
                              "attention=eager", "loss.fused=true",        NULL};
    stw_plan *plan = unfit("Qwen3-0.6B", settings);
    CU_ASSERT_PTR_NOT_NULL(fix_of(plan, "attention", 1));
    CU_ASSERT_PTR_NOT_NULL(fix_of(plan, "batch.seq_len", 1));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan->tried);
    CU_ASSERT_PTR_NOT_NULL(strstr(plan->tried, "attention"));
    CU_ASSERT_PTR_NOT_NULL(strstr(plan->tried, "nodes"));
    CU_ASSERT_PTR_NULL(strstr(plan->tried, "loss.fused")); /* is true */
    check_fixes("Qwen3-0.6B", settings, plan);
    stw_plan_free(plan);
}

/* The figures are options that fit, and 5% less of GPU memory does not. Where a limit is above what
 * the node has, memory goes with it. */
static void limits_can_be_pasted(void) {
    const char *const engines[] = {"engine=fsdp2", "engine=stowage"};
    for (int e = 0; e < 2; e++) {
        const char *settings[] = {engines[e],
                                  "node.gpus=8",
                                  "node.gpu.memory=24 GiB",
                                  "node.host.memory=100 GiB",
                                  "node.host.limit=100 GiB",
                                  "node.nvme.capacity=0",
                                  "batch.seq_len=8192",
                                  NULL};
        stw_plan *plan = unfit("Qwen3-14B", settings);
        const stw_binding *gpu = binding_of(plan, "gpu memory"),
                          *host = binding_of(plan, "host memory");
        CU_ASSERT_PTR_NOT_NULL_FATAL(gpu);
        CU_ASSERT_EQUAL(gpu->n_changes, 1);
        CU_ASSERT(host == NULL || strcmp(host->changes[0].set, "node.host.memory") == 0);
        for (uint32_t b = 0; b < plan->n_bindings; b++) {
            const stw_binding *binding = &plan->bindings[b];
            for (int less = 0; less < (binding == gpu ? 2 : 1); less++) {
                char texts[STW_MAX_LIMIT_CHANGES][128];
                const char *more[STW_MAX_LIMIT_CHANGES + 1] = {NULL};
                for (uint32_t c = 0; c < binding->n_changes; c++) {
                    uint64_t gib = strtoull(binding->changes[c].value, NULL, 10);
                    CU_ASSERT_EQUAL(gib << 30, binding->enough_bytes);
                    int n =
                        snprintf(texts[c], sizeof texts[c], "%s=%llu GiB", binding->changes[c].set,
                                 (unsigned long long)(gib - (less > 0 ? gib / 20 : 0)));
                    CU_ASSERT(n > 0 && (size_t)n < sizeof texts[c]);
                    more[c] = texts[c];
                }
                CU_ASSERT(fits_with("Qwen3-14B", settings, more) == (less == 0));
            }
        }
        stw_plan_free(plan);
    }
}

/* Gathered params that are kept after forward. */
static void params_are_freed_after_forward(void) {
    const char *settings[] = {"nodes=1",
                              "node.gpus=8",
                              "node.gpu.memory=30 GiB",
                              "engine=fsdp2",
                              "fsdp.reshard_after_forward=false",
                              "loss.fused=true",
                              NULL};
    stw_plan *plan = unfit("Qwen3-14B", settings);
    CU_ASSERT_PTR_NOT_NULL(fix_of(plan, "fsdp.reshard_after_forward", 1));
    check_fixes("Qwen3-14B", settings, plan);
    stw_plan_free(plan);
}

#define H100_NODES(n)                                                                              \
    "nodes=" n, "node.gpus=8", "node.gpu.memory=79.6 GiB", "node.host.memory=2000 GiB",            \
        "node.host.limit=2000 GiB"
#define MEGATRON "engine=megatron", "precision.params=bf16", "precision.master=fp32"

static bool has_key(const stw_fix *fix, const char *key) {
    for (uint32_t c = 0; c < fix->n_changes; c++)
        if (strcmp(fix->changes[c].set, key) == 0) return true;
    return false;
}

/* An engine with tensor, pipeline and expert parallelism: layouts of its ranks come first, on the
 * nodes that there are. Stages that do not divide the layers have a division of their own. */
static void layouts_of_ranks_are_tried(void) {
    const char *dense[] = {H100_NODES("4"), MEGATRON, NULL},
               *experts[] = {H100_NODES("4"), MEGATRON,
                             "parallel.tp=4", "parallel.sequence_parallel=true",
                             "parallel.ep=8", NULL};
    stw_plan *plan = unfit("Llama-3.1-70B", dense);
    CU_ASSERT_STRING_EQUAL(plan->fixes[0].changes[0].set, "parallel.tp");
    CU_ASSERT_EQUAL(value_of(&plan->fixes[0], "nodes", 4), 4);
    const stw_fix *stages = fix_of(plan, "parallel.pp", 2);
    CU_ASSERT_PTR_NOT_NULL_FATAL(stages);
    CU_ASSERT(value_of(stages, "batch.grad_accumulation", 1) >=
              value_of(stages, "parallel.pp", UINT64_MAX));
    CU_ASSERT_PTR_NOT_NULL(strstr(plan->tried, "parallel.tp, parallel.pp, parallel.ep"));
    check_fixes("Llama-3.1-70B", dense, plan);
    stw_plan_free(plan);

    plan = unfit("Qwen3-235B-A22B", experts); /* 94 layers in 8 stages */
    const stw_fix *uneven = fix_of(plan, "parallel.pp", 4);
    bool found = false;
    CU_ASSERT_PTR_NOT_NULL(uneven);
    for (uint32_t f = 0; f < plan->n_fixes; f++)
        found = found || (has_key(&plan->fixes[f], "megatron.pipeline_layout") &&
                          value_of(&plan->fixes[f], "nodes", 4) == 8);
    CU_ASSERT(found);
    check_fixes("Qwen3-235B-A22B", experts, plan);
    stw_plan_free(plan);
}

/* Nodes alone are enough, and the host beside them does with fewer: that comes first. */
static void fewer_nodes_come_first(void) {
    const char *settings[] = {H100_NODES("2"), "engine=fsdp2", "batch.seq_len=8192", NULL};
    stw_plan *plan = unfit("Llama-3.1-405B", settings);
    const stw_fix *alone = fix_of(plan, "nodes", 1), *first = &plan->fixes[0];
    CU_ASSERT_PTR_NOT_NULL_FATAL(alone);
    CU_ASSERT_STRING_EQUAL(first->changes[0].set, "fsdp.offload_policy");
    CU_ASSERT(value_of(first, "nodes", UINT64_MAX) < value_of(alone, "nodes", 0));
    check_fixes("Llama-3.1-405B", settings, plan);
    stw_plan_free(plan);
}

/* What keeps numerics and machines, then machines, another engine, then what is at risk. */
static void cheap_changes_come_first(void) {
    const char *settings[] = {H100_NODES("1"), "engine=fsdp2", "batch.seq_len=8192",
                              "recompute.granularity=full", NULL};
    const char *const order[] = {"fsdp.offload_policy", "nodes", "engine", "batch.seq_len"};
    stw_plan *plan = unfit("Llama-3.1-70B", settings);
    CU_ASSERT_EQUAL_FATAL(plan->n_fixes, 4);
    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT_STRING_EQUAL(plan->fixes[i].changes[0].set, order[i]);
    }
    const stw_fix eighth = {.n_changes = 1, .changes = {{"batch.seq_len", "1024"}}},
                  shorter = {.n_changes = 1, .changes = {{"batch.seq_len", "512"}}};
    CU_ASSERT(stw_plan_fix_is_remedy(plan, &eighth));
    CU_ASSERT_FALSE(stw_plan_fix_is_remedy(plan, &shorter));
    stw_plan_free(plan);
}

/* The smallest intervention first: verdict, reach, nodes, settings, how far values are from the
 * run's, tokens per second; another run last. */
static void the_smallest_comes_first(void) {
    const stw_found in_order[] = {
        {{1, {{"loss.fused", "true"}}, "", false, 2, 200}, STW_REACH_SETTING, 1, NULL},
        {{1, {{"fsdp.offload_policy", "true"}}, "", false, 4, 100}, STW_REACH_SETTING, 1, NULL},
        {{1, {{"node.host.limit", "900GiB"}}, "", false, 1, 900}, STW_REACH_SETTING, 3, NULL},
        {{2, {{"parallel.ep", "2"}, {"parallel.cp", "2"}}, "", false, 1, 900},
         STW_REACH_SETTING,
         2,
         NULL},
        {{2, {{"batch.micro_batch", "1"}, {"batch.grad_accumulation", "4"}}, "", false, 1, 999},
         STW_REACH_BATCH,
         2,
         NULL},
        {{1, {{"batch.seq_len", "4096"}}, "", false, 1, 999}, STW_REACH_SEQUENCE, 1, NULL},
        {{1, {{"precision.grads", "bf16"}}, "", false, 1, 999}, STW_REACH_NUMERICS, 1, NULL},
        {{1, {{"node.nvme.capacity", "100GiB"}}, "", false, 9, 9}, STW_REACH_MACHINES, 9, NULL},
        {{2, {{"load.method", "sharded_read"}, {"nodes", "2"}}, "", false, 9, 9},
         STW_REACH_MACHINES,
         2,
         NULL},
        {{1, {{"nodes", "3"}}, "", false, 1, 999}, STW_REACH_MACHINES, 2, NULL},
        {{1, {{"engine", "stowage"}}, "", false, 1, 999}, STW_REACH_ENGINE, 1, NULL},
        {{1, {{"attention", "flash"}}, "", true, 1, 999}, STW_REACH_SETTING, 1, NULL},
        {{2, {{"batch.seq_len", "512"}, {"load.method", "sharded_read"}}, "", false, 1, 999},
         STW_REACH_SEQUENCE,
         4,
         NULL}};
    enum { N = sizeof in_order / sizeof in_order[0] };
    const char *settings[] = {"batch.seq_len=8192", NULL};
    stw_plan *plan = case_zoo("Qwen3-0.6B", settings);
    stw_found_list all = {.plan = plan, .n = STW_MAX_FIXES};
    for (uint32_t absent = 0; absent < N; absent++) { /* any twelve, last to first */
        for (uint32_t i = 0, n = 0; i < N; i++)
            if (i != absent) all.list[STW_MAX_FIXES - 1 - n++] = in_order[i];
        stw_fixes_sort(&all);
        CU_ASSERT_EQUAL(all.n, STW_MAX_FIXES);
        for (uint32_t i = 0, n = 0; i < N; i++)
            if (i != absent)
                CU_ASSERT_STRING_EQUAL(all.list[n++].fix.changes[0].set,
                                       in_order[i].fix.changes[0].set);
        all.n = STW_MAX_FIXES;
    }
    /* what has all changes of a smaller one, or its keys with other values, is left out */
    all.list[0] = in_order[0];
    all.list[1] =
        (stw_found){{2, {{"attention", "flash"}, {"loss.fused", "true"}}, "", false, 1, 1},
                    STW_REACH_SETTING,
                    2,
                    NULL};
    all.list[2] = in_order[9];
    all.list[3] = in_order[9];
    all.list[3].fix.changes[0].value = "4";
    all.n = 4;
    stw_fixes_sort(&all);
    CU_ASSERT_EQUAL(all.n, 2);
    stw_plan_free(plan);
}

/* Of changes that keep the framework, those after which nothing is at risk come first; each says
 * what its own plan says. */
static void headroom_comes_first(void) {
    static const struct {
        const char *model, *settings[12];
    } cases[] = {
        {"Qwen3-8B",
         {"engine=megatron", "megatron.transformer_impl=transformer_engine", "nodes=1",
          "node.gpus=4", "node.gpu.memory=39.3 GiB", "node.host.memory=1000 GiB",
          "node.host.limit=999 GiB", "batch.seq_len=8192", "allocator.expandable_segments=true"}},
        {"Qwen3-32B",
         {"engine=fsdp2", "nodes=1", "node.gpus=8", "node.gpu.memory=36 GiB",
          "node.host.memory=1000 GiB", "node.host.limit=999 GiB",
          "allocator.expandable_segments=true"}}};
    const stw_planner_options full = {
        .time_limit_s = 60, .no_prices = true, .no_reasons = true, .simulate = stw_sim_seconds};
    uint32_t risky_ones = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_planner_options options = full;
        stw_plan *plan = case_zoo(cases[i].model, cases[i].settings);
        uint32_t risky = 0;
        options.no_reasons = false;
        CHECK_OK(stw_planner_solve(plan, &options, err));
        CU_ASSERT_FATAL(plan->n_fixes > 1);
        CU_ASSERT_FALSE(plan->fixes[0].at_risk);
        for (uint32_t f = 0; f < plan->n_fixes; f++) {
            const stw_fix *fix = &plan->fixes[f];
            char texts[STW_MAX_FIX_CHANGES][128];
            const char *more[STW_MAX_FIX_CHANGES + 1] = {NULL};
            for (uint32_t c = 0; c < fix->n_changes; c++) {
                snprintf(texts[c], sizeof texts[c], "%s=%s", fix->changes[c].set,
                         fix->changes[c].value);
                more[c] = texts[c];
            }
            const stw_verdict verdict =
                verdict_with(cases[i].model, cases[i].settings, more, &full);
            CU_ASSERT_EQUAL(verdict, fix->at_risk ? STW_VERDICT_AT_RISK : STW_VERDICT_FITS);
            const bool other = strcmp(fix->changes[0].set, "engine") == 0;
            CU_ASSERT(fix->at_risk || risky == 0 || other);
            risky += fix->at_risk;
        }
        risky_ones += risky;
        stw_plan_free(plan);
    }
    CU_ASSERT(risky_ones > 0);
}

/* At risk with the least that a trial finds; with more of the same key its plan fits, and that is
 * what is told. */
static void a_safer_value_is_preferred(void) {
    const char *settings[] = {"node.gpus=1",
                              "node.gpu.memory=12 GiB",
                              "node.host.memory=64 GiB",
                              "node.host.limit=60 GiB",
                              "node.host.page_lock_limit=4 GiB",
                              "node.nvme.capacity=0",
                              "batch.seq_len=512",
                              NULL};
    const stw_planner_options full = {
        .time_limit_s = 60, .no_prices = true, .simulate = stw_sim_seconds};
    stw_plan *plan = case_zoo("Qwen3-1.7B", settings);
    CHECK_OK(stw_planner_solve(plan, &full, err));
    const stw_fix *fix = fix_of(plan, "node.host.page_lock_limit", 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(fix);
    CU_ASSERT_FALSE(fix->at_risk);
    CU_ASSERT(fix->iteration_s > 0);
    stw_plan_free(plan);
}

/* The largest models on one GPU: some number of GPUs is always found, if need be with experts cut
 * over some of them. */
static void the_largest_models_have_a_fix(void) {
    static const struct {
        const char *model, *key;
        uint32_t n;
    } cases[] = {{"Kimi-K2", "parallel.ep", 2}, {"Llama-3.1-405B", "nodes", 1}};
    const char *settings[] = {"nodes=1", "node.gpus=1", "node.gpu.memory=139.8 GiB", NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = unfit(cases[i].model, settings);
        CU_ASSERT_PTR_NOT_NULL(fix_of(plan, cases[i].key, cases[i].n));
        check_fixes(cases[i].model, settings, plan);
        stw_plan_free(plan);
    }
}

/* Nodes alone leave each GPU the activations of a sequence, and offloaded ones are worse: what fits
 * cuts the sequence over the added nodes, too, at the length and the tokens per step of the run. */
static void cuts_grow_with_nodes(void) {
    const char *settings[] = {"nodes=2", "engine=fsdp2", "batch.seq_len=131072", NULL};
    stw_plan *plan = unfit("Llama-3.1-405B", settings);
    CU_ASSERT_FALSE(plan->fixes[0].at_risk);
    CU_ASSERT_PTR_NULL(strstr(plan->fixes[0].why, "; a step then has "));
    unsigned nodes = 0, cuts = 0;
    for (uint32_t c = 0; c < plan->fixes[0].n_changes; c++) {
        const stw_fix_change *change = &plan->fixes[0].changes[c];
        CU_ASSERT_STRING_NOT_EQUAL(change->set, "batch.seq_len");
        if (strcmp(change->set, "nodes") == 0) nodes = (unsigned)atoi(change->value);
        if (strcmp(change->set, "parallel.cp") == 0) cuts = (unsigned)atoi(change->value);
    }
    CU_ASSERT(nodes > 2 && nodes <= 16);
    CU_ASSERT(cuts > 16);
    stw_plan_free(plan);
}

/* What is found depends on the work of trials, and on time only where that is over; what was tried
 * once is known. */
static void trials_are_counted(void) {
    const char *settings[] = {"node.gpus=1", "node.gpu.memory=6 GiB", "placement.moments=gpu",
                              "batch.seq_len=512", NULL};
    static const struct {
        double end_s;
        uint64_t work;
        bool late;
        stw_trial trial;
    } cases[] = {{INFINITY, 1000000, false, STW_TRIAL_FITS},
                 {INFINITY, 0, false, STW_TRIAL_UNFIT},
                 {0, 5, true, STW_TRIAL_UNFIT}};
    const stw_change freed = {"placement.moments", "auto"}, refused = {"batch.seq_len", "0"};
    stw_plan *plan = unfit("Qwen3-0.6B", settings);
    stw_trials *trials = calloc(1, sizeof *trials);
    stw_tried tried;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        *trials = (stw_trials){.plan = plan, .work_left = cases[i].work, .end_s = cases[i].end_s};
        CHECK_OK(stw_fix_try(trials, &freed, 1, &tried, err));
        CU_ASSERT_EQUAL(tried.is, cases[i].trial);
        CU_ASSERT_EQUAL(trials->late, cases[i].late);
        CU_ASSERT_EQUAL(trials->work_left < cases[i].work, cases[i].trial == STW_TRIAL_FITS);
    }
    *trials = (stw_trials){.plan = plan, .work_left = 1, .end_s = INFINITY};
    CHECK_OK(stw_fix_try(trials, &refused, 1, &tried, err));
    CU_ASSERT_EQUAL(tried.is, STW_TRIAL_REFUSED);
    CU_ASSERT_EQUAL(trials->work_left, 1);
    CHECK_OK(stw_fix_try(trials, &freed, 1, &tried, err));
    CHECK_OK(stw_fix_try(trials, &freed, 1, &tried, err));
    CU_ASSERT_EQUAL(tried.is, STW_TRIAL_FITS);
    CU_ASSERT_EQUAL(trials->work_left, 0);
    CU_ASSERT_EQUAL(trials->n, 2);
    free(trials);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner fixes", {"a fixed placement is freed", a_fixed_placement_is_freed},
              {"both limits of a conflict are named", both_limits_of_a_conflict_are_named},
              {"a page-lock limit is raised", a_page_lock_limit_is_raised},
              {"a length is the longest that fits", a_length_is_the_longest_that_fits},
              {"two changes are offered where one is not enough",
               two_changes_are_offered_where_one_is_not_enough},
              {"experts are cut over ranks that divide", experts_are_cut_over_ranks_that_divide},
              {"a step keeps its tokens", a_step_keeps_its_tokens},
              {"packed sequences divide over the GPUs", packed_sequences_divide_over_the_gpus},
              {"packed sequences are fewer at a time", packed_sequences_are_fewer_at_a_time},
              {"a rollout takes a smaller share", a_rollout_takes_a_smaller_share},
              {"a smaller micro batch keeps the tokens", a_smaller_micro_batch_keeps_the_tokens},
              {"refused steps are skipped", refused_steps_are_skipped},
              {"replicas and counts of nodes are tried", replicas_and_counts_of_nodes_are_tried},
              {"an attention without scores is offered", an_attention_without_scores_is_offered},
              {"limits can be pasted", limits_can_be_pasted},
              {"params are freed after forward", params_are_freed_after_forward},
              {"layouts of ranks are tried", layouts_of_ranks_are_tried},
              {"fewer nodes come first", fewer_nodes_come_first},
              {"cheap changes come first", cheap_changes_come_first},
              {"the smallest comes first", the_smallest_comes_first},
              {"headroom comes first", headroom_comes_first},
              {"the largest models have a fix", the_largest_models_have_a_fix},
              {"a safer value is preferred", a_safer_value_is_preferred},
              {"cuts grow with nodes", cuts_grow_with_nodes},
              {"trials are counted", trials_are_counted})
