/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* What FSDP2's program asks of each group of ranks, against recordings of torch's profiler
 * (bench/results/2026-11-22-engines/fsdp2-first-collectives.txt: Qwen3-0.6B with 8 layers on two
 * GPUs). */
#include <unistd.h>

#include "plan/program/collectives.h"
#include "plan/program/demand.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

enum { LAYERS = 8 };

static stw_model *qwen3(void) {
    char path[] = "/tmp/stw_fsdp2_XXXXXX";
    stw_model *model = NULL;
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fprintf(file,
            "{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"intermediate_size\": 3072,"
            " \"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 128,"
            " \"num_hidden_layers\": %d, \"vocab_size\": 151936, \"tie_word_embeddings\": true,"
            " \"max_position_embeddings\": 40960, \"torch_dtype\": \"bfloat16\"}",
            LAYERS);
    fclose(file);
    CHECK_OK(stw_model_read_config(path, STW_SOURCE_MODELS, &model, err));
    unlink(path);
    return model;
}

/* All activations kept, everything on the GPU. */
static stw_plan *make(uint32_t gpus, const char *const *settings) {
    static const char *const common[] = {"engine=fsdp2", "batch.seq_len=1024"};
    const stw_place place = {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT};
    stw_cluster cluster = fixture_cluster(gpus);
    stw_run_spec run;
    stw_plan *plan = NULL;
    size_t n = 0;
    while (settings[n] != NULL) n++;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_specs_set_all(&cluster, &run, common, 2, "test", err));
    CHECK_OK(stw_specs_set_all(&cluster, &run, settings, n, "test", err));
    CHECK_OK(stw_plan_new(qwen3(), &cluster, &run, &plan, err));
    stw_decisions *d = &plan->decisions;
    d->blocks = stw_pool_array(plan->pool, 1, sizeof *d->blocks);
    d->blocks[0] = (stw_block_decision){1, STW_ACT_KEEP, LAYERS};
    d->n_blocks = d->n_state = 1;
    d->state[0] = (stw_state_decision){place, plan->job->n_units};
    d->load = STW_LOAD_RANK0_BROADCAST;
    d->prefetch.by_group = true;
    d->prefetch.depth = 1;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

typedef struct expected_row {
    stw_phase phase;
    stw_rank_group group;
    stw_op_kind kind;
    uint64_t count, bytes;
} expected_row;

typedef struct recorded {
    uint32_t gpus;
    const char *settings[6];
    expected_row rows[4];
} recorded;

#define FORWARD STW_PHASE_FORWARD_BACKWARD, STW_RANK_GROUP_SHARD
#define STEP STW_PHASE_OPTIMIZER_STEP, STW_RANK_GROUP_SHARD
#define LORA "trainable.lora.rank=16", "trainable.lora.targets=[q_proj, k_proj, v_proj, o_proj]"
/* Elements of a layer, of embedding and final norm together, of the adapters of a layer. */
#define LAYER 15730944ull
#define ROOT 155583488ull
#define ADAPTERS 163840ull
/* Of a layer on three GPUs: rows of query, key, value, output and down projection, and norms of 128
 * and 1,024 elements, up to multiples of 3. */
#define PADDING ((1 + 2 + 2) * 1024ull + 2 * 2048 + 2 * 3072 + 2 * 1 + 2 * 2)

static const recorded cases[] = {
    {2,
     {NULL},
     {{FORWARD, STW_OP_ALL_GATHER, 18, 2 * (16 * LAYER + 2 * ROOT)},
      {FORWARD, STW_OP_REDUCE_SCATTER, 9, 4 * (8 * LAYER + ROOT)},
      {STEP, STW_OP_NORM_SUM, 1, 4 * 90ull}}},
    {2,
     {"batch.grad_accumulation=2", "fsdp.sync_each_micro_batch=false"},
     {{FORWARD, STW_OP_ALL_GATHER, 36, 2 * (32 * LAYER + 4 * ROOT)},
      {FORWARD, STW_OP_REDUCE_SCATTER, 9, 4 * (8 * LAYER + ROOT)},
      {STEP, STW_OP_NORM_SUM, 1, 4 * 90ull}}},
    {2,
     {"batch.grad_accumulation=2"},
     {{FORWARD, STW_OP_REDUCE_SCATTER, 18, 2 * 4 * (8 * LAYER + ROOT)}}},
    {2,
     {LORA},
     {{FORWARD, STW_OP_ALL_GATHER, 18, 2 * (16 * (LAYER + ADAPTERS) + 2 * ROOT)},
      {FORWARD, STW_OP_REDUCE_SCATTER, 8, 4 * 8 * ADAPTERS},
      {STEP, STW_OP_NORM_SUM, 1, 4 * 64ull}}},
    /* two replicas of two shards, as _fsdp_collectives.py, foreach_reduce */
    {4,
     {"parallel.dp_replicate=2"},
     {{FORWARD, STW_OP_REDUCE_SCATTER, 9, 4 * (8 * LAYER + ROOT)},
      {STW_PHASE_FORWARD_BACKWARD, STW_RANK_GROUP_REPLICATE, STW_OP_ALL_REDUCE, 9,
       2 * (8 * LAYER + ROOT)},
      {STEP, STW_OP_NORM_SUM, 1, 4 * 90ull}}},
    {3,
     {NULL},
     {{FORWARD, STW_OP_ALL_GATHER, 18, 2 * (16 * (LAYER + PADDING) + 2 * (ROOT + 2 * 1024 + 2))},
      {FORWARD, STW_OP_REDUCE_SCATTER, 9, 4 * (8 * (LAYER + PADDING) + ROOT + 2 * 1024 + 2)}}},
    {2, {"optimizer.clip_norm=none"}, {{STEP, STW_OP_NORM_SUM, 0, 0}}},
    /* keys and values of 1,024 tokens: 8 heads of 2 x 128, in forward and in backward; fp32
     * gradients of them */
    {2,
     {"parallel.cp=2"},
     {{STW_PHASE_FORWARD_BACKWARD, STW_RANK_GROUP_CP, STW_OP_ALL_GATHER, 16,
       2 * 2 * 8 * 1024 * 2048ull},
      {STW_PHASE_FORWARD_BACKWARD, STW_RANK_GROUP_CP, STW_OP_ALL_TO_ALL, 8,
       4 * 8 * 1024 * 2048ull}}},
};

static void collectives(void) {
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        stw_plan *plan = make(cases[c].gpus, cases[c].settings);
        stw_collectives all;
        CHECK_OK(stw_program_collectives(plan->job, plan->programs[0], plan->pool, &all, err));
        for (int i = 0; i < 4; i++) {
            const expected_row *e = &cases[c].rows[i];
            uint64_t count = 0, bytes = 0;
            if (e->kind == STW_OP_ALLOC) continue;
            for (uint32_t r = 0; r < all.n; r++) {
                const stw_collectives_row *row = &all.rows[r];
                if (row->phase != e->phase || row->group != e->group || row->kind != e->kind)
                    continue;
                count += row->count;
                bytes += row->bytes;
            }
            CU_ASSERT_EQUAL(count, e->count);
            CU_ASSERT_EQUAL(bytes, e->bytes);
            if (count != e->count || bytes != e->bytes)
                fprintf(stderr, "case %zu, row %d: %llu of %llu bytes\n", c, i,
                        (unsigned long long)count, (unsigned long long)bytes);
        }
        stw_plan_free(plan);
    }
}

/* An average micro batch has its share of the seconds of what only the last one does. */
static void seconds_of_once(void) {
    const char *synced[] = {"batch.grad_accumulation=4", NULL};
    const char *unsynced[] = {"batch.grad_accumulation=4", "fsdp.sync_each_micro_batch=false",
                              NULL};
    double seconds[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        stw_plan *plan = make(2, i == 0 ? synced : unsynced);
        const stw_program *program = plan->programs[0];
        for (uint32_t o = 0; o < program->n_ops; o++) {
            stw_demand demand;
            if (program->ops[o].kind != STW_OP_REDUCE_SCATTER) continue;
            stw_demand_op(plan->job, &program->ops[o], &demand);
            seconds[i] += stw_demand_alone_s(&demand);
        }
        stw_plan_free(plan);
    }
    CU_ASSERT_DOUBLE_EQUAL(seconds[0], 4 * seconds[1], 1e-12);
}

STW_TEST_MAIN("engine fsdp2", {"collectives", collectives}, {"seconds of once", seconds_of_once})
