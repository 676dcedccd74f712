/* SPDX-License-Identifier: Apache-2.0 */
/* Products of TransformerEngine in 8 bits: what blocks keep, copies of weights, gathers. */
#include "engines/megatron/acts.h"
#include "engines/megatron/fp8.h"
#include "tests/unit/megatron_case.h"

/* Llama-3.1-8B: 32 blocks with four products of TransformerEngine */
#define DENSE "Llama-3.1-8B"
enum { ROWS = 4096, HIDDEN = 4096, FFN = 14336, QKV = 6144, BLOCKS = 32, PRODUCTS = 4 };
#define WEIGHTS ((uint64_t)HIDDEN * (QKV + HIDDEN + 3ull * FFN))

static uint32_t block_group(const stw_job *job, bool experts) {
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (job->model->groups[g].facts.transformer &&
            (job->model->groups[g].facts.experts > 0) == experts)
            return g;
    return 0;
}

static int64_t saved(const char *model, const char *settings, bool fp8) {
    stw_plan *plan = megatron_plan(model, settings);
    const uint32_t g = block_group(plan->job, strcmp(model, DENSE) != 0);
    const uint64_t whole = stw_megatron_layer_of(plan->job, g, fp8).whole;
    stw_plan_free(plan);
    return (int64_t)whole;
}

/* Outputs of both norms and the input of the second product of the MLP lose a byte per element. The
 * output projection shares its input with the attention, but not with delayed scaling. */
static void blocks_keep_bytes(void) {
    const int64_t rows = ROWS, less = rows * (2 * HIDDEN + FFN), wide = saved(DENSE, "", false);
    CU_ASSERT_EQUAL(saved(DENSE, "megatron.fp8=hybrid megatron.fp8_recipe=tensorwise", true),
                    wide - less);
    CU_ASSERT_EQUAL(saved(DENSE, "megatron.fp8=e4m3", true), wide - less + rows * HIDDEN);
    CU_ASSERT_EQUAL(saved(DENSE, "megatron.fp8=hybrid megatron.fp8_recipe=mxfp8", true),
                    wide - less + less / 32);
    CU_ASSERT_EQUAL(saved(DENSE, "megatron.fp8=hybrid megatron.fp8_recipe=blockwise", true),
                    wide - less + less / 128 * 4);
    CU_ASSERT_EQUAL(saved(DENSE, "megatron.fp8=hybrid megatron.fp8_recipe=tensorwise", false),
                    wide);
}

/* Qwen3-30B-A3B, 128 experts of width 768, 8 rows of each token: 256 rows of each expert, which
 * need no padding. Routers keep the norm's output as it is. */
static void experts_keep_bytes(void) {
    const int64_t rows = ROWS, hidden = 2048, routed = 8 * rows;
    const char *settings = "parallel.ep=8 megatron.fp8=hybrid megatron.fp8_recipe=tensorwise";
    CU_ASSERT_EQUAL(saved("Qwen3-30B-A3B", settings, false) -
                        saved("Qwen3-30B-A3B", settings, true),
                    rows * hidden + routed * (hidden + 768));
    stw_plan *plan = megatron_plan("Qwen3-30B-A3B", settings);
    CU_ASSERT_EQUAL(stw_megatron_fp8_rows(plan->job, 16 * 16, 128), 16 * 16);
    CU_ASSERT_EQUAL(stw_megatron_fp8_rows(plan->job, 16 * 16 + 1, 128), 16 * 32);
    stw_plan_free(plan);
}

static uint64_t params_in(const char *settings, stw_phase phase) {
    stw_plan *plan = megatron_plan(DENSE, settings);
    const uint64_t n =
        megatron_peak(plan->job, 0, phase, STW_TIER_GPU).components[STW_COMPONENT_PARAMS];
    stw_plan_free(plan);
    return n;
}

/* Copies of weights in both layouts stay from the first forward on; weights of 8 bits are these
 * copies. Each product has small tensors. */
static void weights_have_copies(void) {
    const stw_phase pass = STW_PHASE_FORWARD_BACKWARD, step = STW_PHASE_OPTIMIZER_STEP;
    const uint64_t copy = BLOCKS * WEIGHTS, small = (uint64_t)BLOCKS * PRODUCTS * 512;
    const uint64_t wide = params_in("", pass), wide_step = params_in("", step);
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid", pass), wide + 2 * copy + 4 * small);
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid", step), wide_step + 2 * copy + 4 * small);
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid", STW_PHASE_LOAD),
                    params_in("", STW_PHASE_LOAD));
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid megatron.fp8_transposes=false", pass),
                    wide + copy + 4 * small);
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid megatron.fp8_param_gather=true", pass),
                    wide + 4 * small);
    /* 1,024 maxima of three tensors and of two take 24 and 16 blocks in the place of one each */
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid megatron.fp8_amax_history=1024", pass),
                    wide + 2 * copy + (2 + 24 + 16) * small);
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid megatron.fp8_recipe=tensorwise", pass),
                    wide + 2 * copy + 10 * small);
    CU_ASSERT_EQUAL(params_in("megatron.fp8=hybrid megatron.fp8_recipe=mxfp8", pass),
                    wide + 2 * (copy + copy / 32));
    CU_ASSERT_EQUAL(params_in("megatron.fp8=e4m3 megatron.fp8_recipe=tensorwise "
                              "megatron.first_layers_bf16=1 megatron.last_layers_bf16=3",
                              pass),
                    wide + (2 * copy + 10 * small) / BLOCKS * (BLOCKS - 4));
}

/* Weights of 8 bits, and rows that products get, are gathered as such. */
static void bytes_are_gathered(void) {
    stw_plan *wide = megatron_plan(DENSE, "megatron.fp8=hybrid");
    stw_plan *narrow = megatron_plan(DENSE, "megatron.fp8=hybrid megatron.fp8_param_gather=true");
    const stw_phase step = STW_PHASE_OPTIMIZER_STEP, pass = STW_PHASE_FORWARD_BACKWARD;
    CU_ASSERT_EQUAL(megatron_sent(wide->job, STW_OP_ALL_GATHER, STW_RANK_GROUP_DP, step) -
                        megatron_sent(narrow->job, STW_OP_ALL_GATHER, STW_RANK_GROUP_DP, step),
                    (double)(BLOCKS * WEIGHTS));
    stw_plan_free(narrow);
    stw_plan_free(wide);
    wide = megatron_plan(DENSE, "parallel.tp=2 parallel.sequence_parallel=true");
    narrow = megatron_plan(DENSE, "parallel.tp=2 parallel.sequence_parallel=true "
                                  "megatron.fp8=hybrid");
    /* two inputs in forward; two inputs and two gradients in backward */
    CU_ASSERT_EQUAL(megatron_sent(wide->job, STW_OP_ALL_GATHER, STW_RANK_GROUP_TP, pass) -
                        megatron_sent(narrow->job, STW_OP_ALL_GATHER, STW_RANK_GROUP_TP, pass),
                    (double)BLOCKS * 6 * ROWS * HIDDEN);
    CU_ASSERT_EQUAL(megatron_sent(wide->job, STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_TP, pass),
                    megatron_sent(narrow->job, STW_OP_REDUCE_SCATTER, STW_RANK_GROUP_TP, pass));
    stw_plan_free(narrow);
    stw_plan_free(wide);
}

/* With recipes other than delayed the precision-aware optimizer has fp32 gradients, too. */
static void gradients_are_copied(void) {
#define HALF_GRADS "precision.grads=bf16 precision.reduce=bf16 megatron.fp8=hybrid "
    uint64_t grads[3];
    const char *settings[] = {HALF_GRADS, HALF_GRADS "megatron.precision_aware=true",
                              HALF_GRADS
                              "megatron.precision_aware=true megatron.fp8_recipe=tensorwise"};
    for (int i = 0; i < 3; i++) {
        stw_plan *plan = megatron_plan(DENSE, settings[i]);
        grads[i] = megatron_peak(plan->job, 0, STW_PHASE_OPTIMIZER_STEP, STW_TIER_GPU)
                       .components[STW_COMPONENT_GRADS];
        stw_plan_free(plan);
    }
    CU_ASSERT_TRUE(grads[1] < grads[0]);
    CU_ASSERT_EQUAL(grads[2], grads[0]);
}

static void contradictions_are_refused(void) {
    static const struct {
        const char *settings, *word;
    } cases[] = {
        {"megatron.fp8=hybrid megatron.transformer_impl=local", "transformer_engine"},
        {"megatron.fp8_recipe=mxfp8", "megatron.fp8: e4m3 or hybrid"},
        {"megatron.fp8_param_gather=true", "megatron.fp8: e4m3 or hybrid"},
        {"megatron.fp8=hybrid megatron.first_layers_bf16=1", "tensorwise"},
        {"megatron.fp8=hybrid recompute.granularity=selective recompute.modules=[layernorm]",
         "tensorwise"},
        {"megatron.fp8=hybrid megatron.fp8_recipe=mxfp8 megatron.fp8_transposes=false",
         "fp8_transposes"},
        {"megatron.fp8=hybrid megatron.fp8_param_gather=true megatron.fp8_transposes=false",
         "fp8_param_gather"},
        {"megatron.fp8=hybrid megatron.fsdp=optim", "megatron.fsdp"},
        {"megatron.fp8=hybrid megatron.fp8_recipe=blockwise megatron.fp8_amax_history=16",
         "fp8_amax_history"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = NULL;
        CHECK_FAILS(megatron_new(DENSE, cases[i].settings, &plan, err), STW_STATUS_BAD_INPUT,
                    cases[i].word);
    }
}

STW_TEST_MAIN("engine megatron fp8", {"blocks keep bytes", blocks_keep_bytes},
              {"experts keep bytes", experts_keep_bytes},
              {"weights have copies", weights_have_copies},
              {"bytes are gathered", bytes_are_gathered},
              {"gradients are copied", gradients_are_copied},
              {"contradictions are refused", contradictions_are_refused})
