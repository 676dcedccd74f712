/* SPDX-License-Identifier: Apache-2.0 */
/* Saved activations of single modules on the host. */
#include "engines/megatron/offload.h"
#include "tests/unit/megatron_case.h"

/* Llama-3.1-8B: 32 heads and 8 groups of 128; Qwen3-30B-A3B: 8 of 128 experts of width 768 */
#define DENSE "Llama-3.1-8B"
#define EXPERTS "Qwen3-30B-A3B"
#define GROUPED "parallel.ep=8 megatron.grouped_gemm=true "
enum { ROWS = 4096, HIDDEN = 4096, KEYS = 1024, HEADS = 32, BLOCKS = 32 };

static stw_megatron_offload offload_of(const char *model, const char *settings) {
    stw_plan *plan = megatron_plan(model, settings);
    const bool experts = strcmp(model, EXPERTS) == 0;
    uint32_t g = 0;
    while (!plan->job->model->groups[g].facts.transformer ||
           (plan->job->model->groups[g].facts.experts > 0) != experts)
        g++;
    const stw_megatron_offload o = stw_megatron_offload_of(plan->job, g);
    stw_plan_free(plan);
    return o;
}

/* Query, key and value go with the tensor that they are views of; the output, which the projection
 * saves too, with both modules alone. The log-sum-exp is too small. */
static void modules_have_tensors(void) {
    const uint64_t row = 2ull * ROWS, qkv = HIDDEN + 2 * KEYS, turned = HIDDEN + KEYS;
    stw_megatron_offload o = offload_of(DENSE, "");
    CU_ASSERT_EQUAL(o.gpu + o.host + o.n, 0);
    o = offload_of(DENSE, "megatron.offload_modules=[core_attn]");
    CU_ASSERT_EQUAL(o.n, 4);
    CU_ASSERT_EQUAL(o.host, row * (qkv + HIDDEN));
    CU_ASSERT_EQUAL(o.gpu, row * (qkv + turned));
    o = offload_of(DENSE, "megatron.offload_modules=[core_attn,attn_proj]");
    CU_ASSERT_EQUAL(o.host, row * (qkv + 2 * HIDDEN));
    CU_ASSERT_EQUAL(o.gpu, row * (qkv + turned + HIDDEN));
    o = offload_of(DENSE, "megatron.offload_modules=[qkv_linear,attn_norm,mlp_norm]");
    CU_ASSERT_EQUAL(o.gpu, row * 2 * HIDDEN); /* norms are a part of the products */
    CU_ASSERT_EQUAL(o.host, o.gpu);
    o = offload_of(DENSE, "megatron.offload_modules=[core_attn,attn_proj] "
                          "recompute.granularity=selective recompute.modules=[core_attn]");
    CU_ASSERT_EQUAL(o.gpu, row * HIDDEN);
}

/* Softmax of unfused attention: two operations save it. */
static void shared_tensors_are_copied_twice(void) {
    const uint64_t scores = 2ull * ROWS * ROWS * HEADS;
    const stw_megatron_offload o =
        offload_of(DENSE, "attention=eager megatron.offload_modules=[core_attn]");
    uint64_t n = 0;
    for (uint32_t i = 0; i < o.n; i++) n += o.tensors[i] == scores;
    CU_ASSERT_EQUAL(n, 2);
    CU_ASSERT_EQUAL(o.host - 2 * scores, 2ull * ROWS * 3 * HIDDEN); /* keys repeated */
}

static void experts_have_rows(void) {
    const uint64_t row = 2ull * ROWS * 8;
    stw_megatron_offload o =
        offload_of(EXPERTS, GROUPED "megatron.offload_modules=[expert_fc1,moe_act,mlp_norm]");
    CU_ASSERT_EQUAL(o.n, 3);
    CU_ASSERT_EQUAL(o.gpu, row * (2048 + 2 * 768) + 2ull * ROWS * 2048);
    o = offload_of(EXPERTS, GROUPED "megatron.offload_modules=[expert_fc1] "
                                    "recompute.granularity=selective recompute.modules=[moe]");
    CU_ASSERT_EQUAL(o.host, 0);
}

static double carried(const stw_job *job, stw_stream stream) {
    stw_program *program = megatron_program(job, 0);
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    double bytes = 0;
    for (uint32_t i = m->first_op; i < m->first_op + m->n_ops; i++)
        if (program->ops[i].kind == STW_OP_COPY && program->ops[i].stream == stream)
            bytes += (double)program->ops[i].bytes;
    stw_program_free(program);
    return bytes;
}

/* The last block stays on the GPU; its page-locked tensors are there from the first iteration. */
static void blocks_go_and_come_back(void) {
#define BOTH "megatron.offload_modules=[core_attn,attn_proj] "
    const stw_phase pass = STW_PHASE_FORWARD_BACKWARD;
    stw_plan *kept = megatron_plan(DENSE, ""), *off = megatron_plan(DENSE, BOTH);
    const stw_megatron_offload o = offload_of(DENSE, BOTH);
    const stw_peak gpu = megatron_peak(kept->job, 0, pass, STW_TIER_GPU);
    const stw_peak less = megatron_peak(off->job, 0, pass, STW_TIER_GPU);
    const stw_peak host = megatron_peak(off->job, 0, pass, STW_TIER_HOST);
    CU_ASSERT_EQUAL(gpu.components[STW_COMPONENT_ACTIVATIONS] -
                        less.components[STW_COMPONENT_ACTIVATIONS],
                    (BLOCKS - 1) * o.gpu);
    CU_ASSERT_EQUAL(host.components[STW_COMPONENT_ACTIVATIONS], BLOCKS * o.host);
    /* powers of two are asked for */
    CU_ASSERT_EQUAL(host.components[STW_COMPONENT_PAGE_LOCK_ROUNDING],
                    megatron_peak(kept->job, 0, pass, STW_TIER_HOST)
                        .components[STW_COMPONENT_PAGE_LOCK_ROUNDING]);
    CU_ASSERT_EQUAL(carried(off->job, STW_STREAM_D2H), (double)((BLOCKS - 1) * o.host));
    CU_ASSERT_EQUAL(carried(off->job, STW_STREAM_H2D), (double)((BLOCKS - 1) * o.host));
    CU_ASSERT_EQUAL(carried(kept->job, STW_STREAM_D2H), 0);
    stw_plan_free(off);
    stw_plan_free(kept);
}

/* Of several passes in flight all are copied, and the last block of the next one is back. */
static void passes_in_flight_are_on_the_host(void) {
    const char *stages = "parallel.pp=4 batch.grad_accumulation=8 " BOTH;
    stw_plan *plan = megatron_plan(DENSE, stages);
    const stw_megatron_offload o = offload_of(DENSE, stages);
    const stw_peak host = megatron_peak(plan->job, 0, STW_PHASE_FORWARD_BACKWARD, STW_TIER_HOST);
    CU_ASSERT_EQUAL(host.components[STW_COMPONENT_ACTIVATIONS], BLOCKS / 4 * 4 * o.host);
    CU_ASSERT_EQUAL(carried(plan->job, STW_STREAM_D2H), (double)(BLOCKS / 4 * o.host));
    stw_plan_free(plan);
}

static void contradictions_are_refused(void) {
    static const struct {
        const char *settings, *word;
    } cases[] = {
        {"megatron.offload_modules=[mlp]", "expert_fc1"},
        {"megatron.offload_modules=[attn_proj]", "core_attn beside attn_proj"},
        {"megatron.offload_modules=[core_attn] megatron.transformer_impl=local",
         "transformer_engine"},
        {"megatron.offload_modules=[moe_act]", "grouped_gemm"},
        {"megatron.offload_modules=[core_attn] recompute.granularity=full", "granularity"},
        {"megatron.offload_modules=[core_attn] megatron.fp8=hybrid", "megatron.fp8"},
        {"megatron.offload_modules=[core_attn] megatron.fsdp=optim", "megatron.fsdp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = NULL;
        CHECK_FAILS(megatron_new(DENSE, cases[i].settings, &plan, err), STW_STATUS_BAD_INPUT,
                    cases[i].word);
    }
}

STW_TEST_MAIN("engine megatron offload", {"modules have tensors", modules_have_tensors},
              {"shared tensors are copied twice", shared_tensors_are_copied_twice},
              {"experts have rows", experts_have_rows},
              {"blocks go and come back", blocks_go_and_come_back},
              {"passes in flight are on the host", passes_in_flight_are_on_the_host},
              {"contradictions are refused", contradictions_are_refused})
