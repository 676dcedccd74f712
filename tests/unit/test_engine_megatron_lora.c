/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters with Megatron: which products have one, what of it a rank holds, and what it keeps. */
#include "engines/megatron/acts.h"
#include "engines/megatron/lora.h"
#include "engines/megatron/params.h"
#include "tests/unit/megatron_case.h"

/* Llama-3.1-8B: 32 heads and 8 groups of 128; Qwen3-30B-A3B: 8 of 128 experts of width 768, 32
 * heads and 4 groups of 128 */
#define DENSE "Llama-3.1-8B"
#define EXPERTS "Qwen3-30B-A3B"
#define LORA(targets) "trainable.lora.rank=16 trainable.lora.targets=[" targets "] "
#define ALL LORA("q_proj,o_proj,gate_proj,down_proj")
#define GROUPED "parallel.ep=4 megatron.grouped_gemm=true "
enum { ROWS = 4096, HIDDEN = 4096, KEYS = 1024, FFN = 14336, LAYERS = 32, RANK = 16 };

static uint64_t trained(const stw_job *job) { return job->kinds[0].spaces[STW_SPACE_GRADS].n; }

static uint32_t layer_group(const stw_job *job) {
    uint32_t g = 0;
    while (!job->model->groups[g].facts.transformer) g++;
    return g;
}

/* Query, key and value share one adapter, gate and up another; naming one of them names all. Four
 * ranks cut second matrices of products that are cut by outputs, first ones of the others. */
static void merged_products(void) {
    const uint64_t layer = RANK * (HIDDEN + (HIDDEN + 2 * KEYS) / 4ull + HIDDEN / 4 + HIDDEN +
                                   HIDDEN + 2 * FFN / 4ull + FFN / 4 + HIDDEN);
    stw_plan *one = megatron_plan(DENSE, "parallel.tp=4 megatron.distributed_optimizer=false " ALL);
    stw_plan *all = megatron_plan(DENSE, "parallel.tp=4 megatron.distributed_optimizer=false " LORA(
                                             "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,"
                                             "down_proj"));
    stw_plan *half = megatron_plan(DENSE, "parallel.tp=4 " ALL); /* two data-parallel ranks */
    stw_plan *full = megatron_plan(DENSE, "parallel.tp=4 ");
    CU_ASSERT_EQUAL(trained(one->job), LAYERS * layer);
    CU_ASSERT_EQUAL(trained(all->job), LAYERS * layer);
    CU_ASSERT_EQUAL(one->job->kinds[0].params, full->job->kinds[0].params + LAYERS * layer);
    CU_ASSERT_EQUAL(half->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n, LAYERS * layer / 2);
    stw_plan_free(one);
    stw_plan_free(all);
    stw_plan_free(half);
    stw_plan_free(full);
}

/* Every expert has adapters of its own; routers have none. */
static void experts_have_adapters(void) {
    const uint64_t dense = RANK * (2048ull + 4096 + 2 * 512 + 4096 + 2048);
    const uint64_t expert = RANK * (2048ull + 2 * 768 + 768 + 2048);
    stw_plan *plan = megatron_plan(EXPERTS, GROUPED "megatron.distributed_optimizer=false " LORA(
                                                "q_proj,o_proj,gate_up_proj,down_proj"));
    CU_ASSERT_EQUAL(trained(plan->job), 48 * (dense + 128 / 4 * expert));
    stw_plan_free(plan);
    stw_error err = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(megatron_new(EXPERTS, GROUPED LORA("gate"), &plan, &err), STW_STATUS_BAD_INPUT);
}

/* Buffers, main parameters and moments are those of the adapters. */
static void state_of_adapters(void) {
    stw_plan *plan = megatron_plan(DENSE, ALL), *full = megatron_plan(DENSE, "");
    const stw_peak lora = megatron_peak(plan->job, 0, STW_PHASE_OPTIMIZER_STEP, STW_TIER_GPU);
    const stw_peak all = megatron_peak(full->job, 0, STW_PHASE_OPTIMIZER_STEP, STW_TIER_GPU);
    const uint64_t n =
        LAYERS * RANK * (HIDDEN + HIDDEN + 2ull * KEYS + 2 * HIDDEN + HIDDEN + 3 * FFN + HIDDEN);
    CU_ASSERT_EQUAL(lora.components[STW_COMPONENT_GRADS], 4 * n);
    CU_ASSERT_EQUAL(lora.components[STW_COMPONENT_MASTER], 4 * n / 8);
    CU_ASSERT_EQUAL(lora.components[STW_COMPONENT_EXP_AVG], 4 * n / 8);
    CU_ASSERT_EQUAL(lora.components[STW_COMPONENT_PARAMS],
                    all.components[STW_COMPONENT_PARAMS] + 2 * n);
    stw_plan_free(plan);
    stw_plan_free(full);
}

static uint64_t whole_of(const char *model, const char *settings) {
    stw_plan *plan = megatron_plan(model, settings);
    const stw_megatron_layer layer =
        stw_megatron_layer_of(plan->job, layer_group(plan->job), false);
    stw_plan_free(plan);
    return layer.whole;
}

/* The second product of the frozen MLP keeps no input, its adapter does. With dropout every adapter
 * keeps one of its own, and a mask. */
static void kept_by_adapters(void) {
    const uint64_t base = whole_of(DENSE, ""), inner = 2ull * RANK;
    const uint64_t inputs = HIDDEN + HIDDEN + HIDDEN + FFN;
    CU_ASSERT_EQUAL(whole_of(DENSE, ALL) - base, ROWS * 4 * inner);
    CU_ASSERT_EQUAL(base - whole_of(DENSE, LORA("q_proj")), ROWS * (2ull * FFN - inner));
    CU_ASSERT_EQUAL(whole_of(DENSE, ALL "megatron.lora_dropout=0.1") - base,
                    ROWS * (3 * inputs + 4 * inner - 2ull * FFN));
    /* rows of experts, 8 of each token; the router keeps no output of the norm */
    const uint64_t rows = 8ull * ROWS, apart = 2ull * ROWS * 2048;
    CU_ASSERT_EQUAL(whole_of(EXPERTS, GROUPED) + rows * 2 * inner -
                        whole_of(EXPERTS, GROUPED LORA("gate_up_proj,down_proj")),
                    apart);
}

/* Neither head nor embedding have gradients. */
static void backward_of_adapters(void) {
    stw_plan *plan = megatron_plan(DENSE, ALL), *full = megatron_plan(DENSE, "");
    const uint64_t vocabulary = 2ull * 128256 * HIDDEN;
    const stw_megatron_loss lora = stw_megatron_loss_of(plan->job);
    const stw_megatron_loss all = stw_megatron_loss_of(full->job);
    CU_ASSERT_EQUAL(all.head - lora.head, vocabulary);
    CU_ASSERT_EQUAL(all.kept - lora.kept, 2ull * ROWS * HIDDEN);
    double flops[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        stw_program *program = megatron_program(i == 0 ? plan->job : full->job, 0);
        for (uint32_t o = 0; o < program->n_ops; o++)
            if (program->ops[o].kind == STW_OP_BACKWARD) flops[i] += program->ops[o].flops;
        stw_program_free(program);
    }
    CU_ASSERT_TRUE(flops[0] < 0.65 * flops[1] && flops[0] > 0.5 * flops[1]);
    stw_plan_free(plan);
    stw_plan_free(full);
}

static void refused_adapters(void) {
    static const struct {
        const char *model, *settings, *text;
    } cases[] = {
        {DENSE, ALL "megatron.transformer_impl=local", "megatron.transformer_impl"},
        {DENSE, ALL "recompute.granularity=selective recompute.modules=[mlp]", "recompute.modules"},
        {EXPERTS, GROUPED ALL "parallel.etp=2", "parallel.etp"},
        {DENSE, ALL "megatron.fp8=e4m3", "megatron.fp8"},
        {DENSE, ALL "megatron.fsdp=optim", "megatron.fsdp"},
        {DENSE, ALL "checkpoint.every=1", "checkpoint.every"},
        {DENSE, "megatron.lora_dropout=0.1", "trainable.lora"},
        {"Qwen3-Next-80B-A3B", LORA("o_proj"), "engine: fsdp2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_error err = STW_ERROR_INIT;
        stw_plan *plan = NULL;
        CU_ASSERT_NOT_EQUAL(megatron_new(cases[i].model, cases[i].settings, &plan, &err),
                            STW_STATUS_OK);
        if (strstr(err.text, cases[i].text) == NULL && strstr(err.where, cases[i].text) == NULL) {
            printf("%s: %s: %s\n", cases[i].text, err.where, err.text);
            CU_FAIL("another refusal");
        }
        stw_plan_free(plan);
    }
}

STW_TEST_MAIN("engine megatron lora", {"merged products", merged_products},
              {"experts have adapters", experts_have_adapters},
              {"state of adapters", state_of_adapters}, {"kept by adapters", kept_by_adapters},
              {"backward of adapters", backward_of_adapters},
              {"refused adapters", refused_adapters})
