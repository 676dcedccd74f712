/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* What FSDP2's program asks of each group of ranks, against recordings of torch's profiler
 * (bench/results/2026-11-22-engines/fsdp2-first-collectives.txt: Qwen3-0.6B with 8 layers on two
 * GPUs). */
#include <unistd.h>

#include "engines/bytes.h"
#include "plan/program/builder.h"
#include "plan/program/collectives.h"
#include "plan/program/demand.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

enum { LAYERS = 8 };

/* @param more keys of the model's configuration */
static stw_model *model_of(const char *type, const char *more) {
    char path[] = "/tmp/stw_fsdp2_XXXXXX";
    stw_model *model = NULL;
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fprintf(file,
            "{\"model_type\": \"%s\", %s\"hidden_size\": 1024, \"intermediate_size\": 3072,"
            " \"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 128,"
            " \"num_hidden_layers\": %d, \"vocab_size\": 151936, \"tie_word_embeddings\": true,"
            " \"max_position_embeddings\": 40960, \"torch_dtype\": \"bfloat16\"}",
            type, more, LAYERS);
    fclose(file);
    CHECK_OK(stw_model_read_config(path, STW_SOURCE_MODELS, &model, err));
    unlink(path);
    return model;
}

static stw_model *qwen3(void) { return model_of("qwen3", ""); }

/* All activations kept, everything on the GPU. Takes the model. */
static stw_plan *make_of(stw_model *model, uint32_t nodes, uint32_t gpus,
                         const char *const *settings) {
    static const char *const common[] = {"engine=fsdp2", "batch.seq_len=1024"};
    const stw_place place = {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT};
    stw_cluster cluster = fixture_cluster(gpus);
    stw_run_spec run;
    stw_plan *plan = NULL;
    size_t n = 0;
    cluster.nodes = nodes;
    cluster.nic_bps = 25e9;
    while (settings[n] != NULL) n++;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_specs_set_all(&cluster, &run, common, 2, "test", err));
    CHECK_OK(stw_specs_set_all(&cluster, &run, settings, n, "test", err));
    CHECK_OK(stw_plan_new(model, &cluster, &run, &plan, err));
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

static stw_plan *make_on(uint32_t nodes, uint32_t gpus, const char *const *settings) {
    return make_of(qwen3(), nodes, gpus, settings);
}

static stw_plan *make(uint32_t gpus, const char *const *settings) {
    return make_on(1, gpus, settings);
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
#define TP2 "parallel.tp=2"
#define WITHIN STW_PHASE_FORWARD_BACKWARD, STW_RANK_GROUP_TP
#define ROWS (2 * 1024 * 1024ull)
#define NORMS (2 * 1024ull + 2 * 128)
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
    /* apply_tp: two gathers and two reduce-scatters of 1,024 x 1,024 rows per layer and pass, one
     * of the embedding and one of the head each; three numbers of each token for the loss; norms of
     * layers (hidden twice, query, key) and the last one */
    {2,
     {TP2, "parallel.sequence_parallel=true"},
     {{WITHIN, STW_OP_ALL_GATHER, 34, 34 * ROWS},
      {WITHIN, STW_OP_REDUCE_SCATTER, 34, 34 * ROWS},
      {WITHIN, STW_OP_ALL_REDUCE, 3 + 33, 3 * 4096ull + 2 * (8 * NORMS + 1024)},
      {STW_PHASE_OPTIMIZER_STEP, STW_RANK_GROUP_TP, STW_OP_NORM_SUM, 1, 4 * 90ull}}},
    /* no rows are cut: two outputs of a layer in forward, in backward the gradient of the input of
     * each of five products; the embedding and the head's input */
    {2,
     {TP2},
     {{WITHIN, STW_OP_ALL_GATHER, 0, 0},
      {WITHIN, STW_OP_ALL_REDUCE, 58 + 3, 58 * ROWS + 3 * 4096ull}}},
    {2,
     {TP2, "parallel.sequence_parallel=true", "fsdp.loss_parallel=false"},
     {{WITHIN, STW_OP_ALL_GATHER, 35, 34 * ROWS + 2 * 1024 * 151936ull},
      {WITHIN, STW_OP_ALL_REDUCE, 33, 2 * (8 * NORMS + 1024)}}},
    /* kept by the policy are outputs of reduce-scatters, not of gathers */
    {2,
     {TP2, "parallel.sequence_parallel=true", "recompute.granularity=selective"},
     {{WITHIN, STW_OP_ALL_GATHER, 34 + 16, 50 * ROWS},
      {WITHIN, STW_OP_REDUCE_SCATTER, 34, 34 * ROWS}}},
    /* slices of two ranks, sharded over two others */
    {4,
     {TP2, "parallel.sequence_parallel=true"},
     {{FORWARD, STW_OP_ALL_GATHER, 18, 2 * (8 * (LAYER + NORMS) + (ROOT + 1024))},
      {FORWARD, STW_OP_REDUCE_SCATTER, 9, 2 * (8 * (LAYER + NORMS) + ROOT + 1024)},
      {STEP, STW_OP_NORM_SUM, 1, 4 * 90ull}}},
    /* gradients that are added up: in fp32, by the last micro batch */
    {2,
     {TP2, "parallel.sequence_parallel=true", "batch.grad_accumulation=2",
      "fsdp.sync_each_micro_batch=false"},
     {{WITHIN, STW_OP_ALL_REDUCE, 6 + 33, 6 * 4096ull + 4 * (8 * NORMS + 1024)}}},
};

static void collectives(void) {
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        stw_plan *plan = make(cases[c].gpus, cases[c].settings);
        stw_collectives all;
        CHECK_OK(stw_program_collectives(plan->job, plan->programs[0], plan->pool, &all, err));
        for (uint32_t r = 0; r < all.n; r++) /* one row for each kind, phase, group and tier */
            for (uint32_t q = 0; q < r; q++)
                CU_ASSERT(all.rows[q].phase != all.rows[r].phase ||
                          all.rows[q].group != all.rows[r].group ||
                          all.rows[q].kind != all.rows[r].kind ||
                          all.rows[q].tier != all.rows[r].tier);
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

/* A framework's process is beside its launcher, which the ranks of a node share. Its state on NVMe
 * has no second copy. */
static void processes(void) {
    const char *settings[] = {NULL};
    stw_cluster cluster = fixture_cluster(4);
    stw_plan *plan = make(4, settings);
    stw_plan *alone = fixture_plan((fixture_size){1, 64, 64, 64}, &cluster, settings);
    const char *key;
    uint64_t bytes[2] = {0, 0};
    plan->cluster.torch.process_bytes = 3ull << 30;
    plan->cluster.torch.launcher_bytes = 8ull << 30;
    CHECK_OK(stw_plan_derive(plan, err));
    const stw_program *program = plan->programs[0];
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].kind == STW_OP_ALLOC &&
            program->ops[i].component == STW_COMPONENT_PROCESS)
            bytes[0] = program->ops[i].bytes;
    CU_ASSERT_EQUAL(bytes[0], (3ull + 8 / 4) << 30);
    CU_ASSERT_EQUAL(stw_build_process_base(plan->job, &plan->cluster, &key), 3ull << 30);
    CU_ASSERT_STRING_EQUAL(key, "node.torch.process");
    CU_ASSERT_EQUAL(stw_nvme_copies(plan->job), 1);
    /* Stowage's own process is what was measured of it */
    cluster = plan->cluster;
    cluster.host.process_bytes = 1000;
    cluster.host.process_comm_bytes = 10;
    CU_ASSERT_EQUAL(stw_build_process_base(alone->job, &cluster, &key), 1010);
    CU_ASSERT_STRING_EQUAL(key, "node.host.process");
    stw_plan_free(alone);
    stw_plan_free(plan);
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

static uint64_t peak_of(const stw_plan *plan, stw_phase phase, stw_component component) {
    return plan->peaks[0].phase[phase][STW_TIER_GPU].components[component];
}

/* Two sequences of 1,024 tokens at a time, of 8 that an iteration trains on. */
static void log_prob(void) {
    static const struct {
        const char *settings[3];
        uint64_t tokens, logit_bytes, chunk, beside_bytes;
    } methods[] = {
        {{"batch.log_prob_method=whole"}, 2048, 2 + 8, 0, 0},
        {{"batch.log_prob_method=whole", "batch.log_prob_entropy=true"}, 2048, 2 + 16, 0, 0},
        {{"batch.log_prob_method=chunked", "loss.chunk=512"}, 2048, 2, 512, 8},
        {{"batch.log_prob_method=kernel", "batch.log_prob_entropy=true"}, 2048, 2, 0, 0},
    };
    const char *none[] = {"batch.grad_accumulation=8", NULL};
    stw_plan *without = make(2, none);
    CU_ASSERT_PTR_NULL(stw_program_movement(without->programs[0], STW_PHASE_LOG_PROB));
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        const char *settings[6] = {"batch.grad_accumulation=8", "batch.log_prob_micro_batch=2"};
        for (int s = 0; s < 3; s++) settings[2 + s] = methods[i].settings[s];
        stw_plan *plan = make(2, settings);
        const uint64_t vocab = plan->job->model->vocab;
        CU_ASSERT_EQUAL(stw_plan_passes(plan, STW_PHASE_LOG_PROB), 4);
        CU_ASSERT_EQUAL(
            peak_of(plan, STW_PHASE_LOG_PROB, STW_COMPONENT_LOGITS),
            vocab * (methods[i].tokens * methods[i].logit_bytes +
                     methods[i].chunk * methods[i].beside_bytes) +
                (methods[i].beside_bytes + methods[i].logit_bytes > 2 ? 0 : 2048 * 2048));
        for (int p = 0; p < STW_N_PHASES; p++)
            if (p != STW_PHASE_LOG_PROB)
                CU_ASSERT_EQUAL(plan->peaks[0].phase[p][STW_TIER_GPU].total,
                                without->peaks[0].phase[p][STW_TIER_GPU].total);
        /* what torch's counters show is what the walk counts, but for its rounding */
        const double walked =
            (double)stw_peak_allocated(&plan->peaks[0].phase[STW_PHASE_LOG_PROB][STW_TIER_GPU]);
        CU_ASSERT_DOUBLE_EQUAL(
            (double)plan->replayed[0].most[STW_PHASE_LOG_PROB].allocated_bytes / walked, 1, 0.01);
        stw_plan_free(plan);
    }
    stw_plan_free(without);
}

/* Blocks are gathered in every pass, or once where they are not resharded. */
static void log_prob_gathers(void) {
    for (int i = 0; i < 2; i++) {
        const char *settings[] = {
            "batch.grad_accumulation=8", "batch.log_prob_micro_batch=2",
            i == 0 ? "fsdp.reshard_after_forward=true" : "fsdp.reshard_after_forward=false", NULL};
        stw_plan *plan = make(2, settings);
        stw_collectives all;
        uint64_t count = 0;
        CHECK_OK(stw_program_collectives(plan->job, plan->programs[0], plan->pool, &all, err));
        for (uint32_t r = 0; r < all.n; r++)
            if (all.rows[r].phase == STW_PHASE_LOG_PROB) count += all.rows[r].count;
        CU_ASSERT_EQUAL(count, i == 0 ? 4 * 9 : 9);
        stw_plan_free(plan);
    }
}

/* With everything on the host shards go up once in all micro batches. */
static void stays_between_on_host(void) {
    const char *settings[] = {"batch.grad_accumulation=4", "fsdp.reshard_after_backward=false",
                              "fsdp.reshard_after_forward=false", "fsdp.offload_policy=true", NULL};
    const stw_place place = {STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU};
    stw_plan *plan = make(2, settings);
    uint32_t copies = 0;
    plan->decisions.state[0].place = place;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    for (uint32_t o = 0; o < plan->programs[0]->n_ops; o++) {
        const stw_op *op = &plan->programs[0]->ops[o];
        if (op->kind != STW_OP_COPY_BLOCK || op->to != STW_TIER_GPU) continue;
        CU_ASSERT_EQUAL(op->once_in, 4);
        copies++;
    }
    CU_ASSERT_EQUAL(copies, LAYERS + 2); /* layers, embedding, final norm */
    stw_plan_free(plan);
}

/* Gathered by the first forward alone, and again by every backward if forward reshards. */
static void stays_between(void) {
    for (int i = 0; i < 3; i++) {
        const char *settings[] = {
            "batch.grad_accumulation=4",
            i == 0 ? "fsdp.reshard_after_backward=true" : "fsdp.reshard_after_backward=false",
            i < 2 ? "fsdp.reshard_after_forward=true" : "fsdp.reshard_after_forward=false", NULL};
        const uint64_t count[] = {4 * 18, 9 + 4 * 9, 9};
        stw_plan *plan = make(2, settings);
        stw_collectives all;
        uint64_t found = 0;
        CHECK_OK(stw_program_collectives(plan->job, plan->programs[0], plan->pool, &all, err));
        for (uint32_t r = 0; r < all.n; r++)
            if (all.rows[r].phase == STW_PHASE_FORWARD_BACKWARD &&
                all.rows[r].kind == STW_OP_ALL_GATHER)
                found += all.rows[r].count;
        CU_ASSERT_EQUAL(found, count[i]);
        /* before the first forward of a micro batch */
        const stw_program *program = plan->programs[0];
        const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
        stw_live live = {0};
        for (uint32_t o = 0; o < m->first_op + m->n_ops; o++) {
            stw_live_apply(&live, &program->ops[o]);
            if (o > m->first_op && program->ops[o].kind == STW_OP_ALL_GATHER) break;
        }
        const uint64_t whole = 2 * (8 * LAYER + ROOT);
        CU_ASSERT_EQUAL(live.bytes[STW_TIER_GPU][STW_COMPONENT_UNSHARD] >= whole, i > 0);
        stw_plan_free(plan);
    }
}

/* 4,096 tokens are as four sequences of 1,024: the same bytes and, of attention, the same work. */
static void packed(void) {
    const char *four[] = {"batch.micro_batch=4", NULL};
    const char *tokens[] = {"batch.max_tokens_per_gpu=4096", NULL};
    const char *longer[] = {"batch.max_tokens_per_gpu=4096", "batch.seq_len=4096", NULL};
    stw_plan *plans[3] = {make(2, four), make(2, tokens), make(2, longer)};
    for (int p = 0; p < STW_N_PHASES; p++)
        CU_ASSERT_EQUAL(plans[0]->peaks[0].phase[p][STW_TIER_GPU].total,
                        plans[1]->peaks[0].phase[p][STW_TIER_GPU].total);
    CU_ASSERT_EQUAL(plans[0]->job->tokens, plans[1]->job->tokens);
    CU_ASSERT_DOUBLE_EQUAL(stw_block_forward_flops(plans[0]->job, 1),
                           stw_block_forward_flops(plans[1]->job, 1), 0);
    /* scores of longer sequences: 3 x 1,024 more tokens seen by each */
    CU_ASSERT_DOUBLE_EQUAL(stw_block_forward_flops(plans[2]->job, 1) -
                               stw_block_forward_flops(plans[1]->job, 1),
                           4096.0 * 3072 * 16 * (128 + 128), 0);
    CU_ASSERT_EQUAL(peak_of(plans[1], STW_PHASE_FORWARD_BACKWARD, STW_COMPONENT_LOGITS),
                    peak_of(plans[2], STW_PHASE_FORWARD_BACKWARD, STW_COMPONENT_LOGITS));
    for (int i = 0; i < 3; i++) stw_plan_free(plans[i]);
}

/* Backward gathers over the GPUs of a node, each of which keeps a part of all parameters. */
static void resharded_to_node(void) {
    const char *settings[] = {"fsdp.reshard_to_node=true", NULL};
    const uint64_t whole = 2 * (8 * LAYER + ROOT);
    stw_plan *plan = make_on(2, 2, settings);
    stw_collectives all;
    stw_live live = {0};
    uint64_t most = 0, bytes[STW_N_RANK_GROUPS] = {0};
    CHECK_OK(stw_program_collectives(plan->job, plan->programs[0], plan->pool, &all, err));
    for (uint32_t r = 0; r < all.n; r++)
        if (all.rows[r].kind == STW_OP_ALL_GATHER) bytes[all.rows[r].group] += all.rows[r].bytes;
    CU_ASSERT_EQUAL(bytes[STW_RANK_GROUP_SHARD], whole);
    CU_ASSERT_EQUAL(bytes[STW_RANK_GROUP_NODE], whole);
    for (uint32_t o = 0; o < plan->programs[0]->n_ops; o++) {
        const stw_op *op = &plan->programs[0]->ops[o];
        stw_live_apply(&live, op);
        if (op->kind == STW_OP_LOSS && most == 0)
            most = live.bytes[STW_TIER_GPU][STW_COMPONENT_UNSHARD];
    }
    /* parts of all layers; the root and the last layer's gather are there at the loss */
    CU_ASSERT_EQUAL(most, 2 * (8 * LAYER) / 2 + 2 * ROOT + 2 * LAYER);
    const stw_peaks *peaks = &plan->peaks[0];
    CU_ASSERT_EQUAL(
        peaks->phase[STW_PHASE_OPTIMIZER_STEP][STW_TIER_GPU].components[STW_COMPONENT_UNSHARD], 0);
    stw_plan_free(plan);
}

/* Eight experts of 3 x 256 x 1,024 a layer; beside them query, key, value, output, norms, router.
 */
#define EXPERTS (8 * 3 * 256 * 1024ull)
#define BESIDE ((2 * 2048 + 2 * 1024 + 2 + 8) * 1024ull + 2 * 128)

static void look_at_experts(uint32_t nodes, uint32_t gpus, const char *const *settings,
                            uint64_t bytes[STW_N_RANK_GROUPS][3], double *seconds) {
    static const stw_op_kind kinds[] = {STW_OP_ALL_GATHER, STW_OP_REDUCE_SCATTER,
                                        STW_OP_ALL_REDUCE};
    stw_plan *plan =
        make_of(model_of("qwen3_moe", "\"num_experts\": 8, \"num_experts_per_tok\": 2, "
                                      "\"moe_intermediate_size\": 256, \"norm_topk_prob\": true, "),
                nodes, gpus, settings);
    const stw_program *program = plan->programs[0];
    stw_collectives all;
    CHECK_OK(stw_program_collectives(plan->job, program, plan->pool, &all, err));
    memset(bytes, 0, STW_N_RANK_GROUPS * sizeof *bytes);
    for (uint32_t r = 0; r < all.n; r++)
        for (int k = 0; k < 3; k++)
            if (all.rows[r].kind == kinds[k]) bytes[all.rows[r].group][k] += all.rows[r].bytes;
    *seconds = 0;
    for (uint32_t o = 0; o < program->n_ops; o++) {
        stw_demand demand;
        if (program->ops[o].kind != STW_OP_ALL_GATHER) continue;
        stw_demand_op(plan->job, &program->ops[o], &demand);
        *seconds += demand.seconds[STW_RESOURCE_NIC];
    }
    stw_plan_free(plan);
}

/* Experts that ep cuts are gathered and reduced among the ranks with the same experts; nothing is
 * sent where each rank has its own. */
static void experts_apart(void) {
    const char *none[] = {NULL}, *two[] = {"parallel.ep=2", NULL},
               *four[] = {"parallel.ep=4", NULL};
    const char *replicas[] = {"parallel.ep=2", "parallel.dp_replicate=2", NULL};
    uint64_t bytes[STW_N_RANK_GROUPS][3];
    const uint64_t *shard = bytes[STW_RANK_GROUP_SHARD], *apart = bytes[STW_RANK_GROUP_EXPERT_DP];
    const uint64_t beside = 8 * BESIDE + ROOT;
    double seconds, first;
    look_at_experts(1, 4, none, bytes, &seconds);
    CU_ASSERT_EQUAL(shard[1], 4 * (beside + 8 * EXPERTS));
    CU_ASSERT_EQUAL(apart[0] + apart[1], 0);
    look_at_experts(1, 4, two, bytes, &seconds);
    CU_ASSERT_EQUAL(shard[0], 2 * 2 * beside);
    CU_ASSERT_EQUAL(shard[1], 4 * beside);
    CU_ASSERT_EQUAL(apart[0], 2 * 2 * 8 * EXPERTS / 2);
    CU_ASSERT_EQUAL(apart[1], 4 * 8 * EXPERTS / 2);
    look_at_experts(1, 4, four, bytes, &seconds);
    CU_ASSERT_EQUAL(shard[0], 2 * 2 * beside);
    CU_ASSERT_EQUAL(shard[1], 4 * beside);
    CU_ASSERT_EQUAL(apart[0] + apart[1], 0);
    /* a rank's shard: half of what lies beside, all of its own experts */
    look_at_experts(1, 4, replicas, bytes, &seconds);
    CU_ASSERT_EQUAL(bytes[STW_RANK_GROUP_REPLICATE][2], 4 * (beside / 2 + 8 * EXPERTS / 2));
    CU_ASSERT_EQUAL(apart[0] + apart[1], 0);
    /* two nodes of two: with ep=2 the other rank with the same experts is on the other node */
    look_at_experts(2, 2, four, bytes, &first);
    look_at_experts(2, 2, two, bytes, &seconds);
    CU_ASSERT_DOUBLE_EQUAL(seconds - first, (double)apart[0] / 2 / 25e9, 1e-9);
}

/* What the gathers of a layer make, and sums of norms by group. */
static void look_at_steps(uint32_t gpus, const char *const *settings, uint64_t *gathered,
                          uint64_t sums[STW_N_RANK_GROUPS]) {
    stw_plan *plan =
        make_of(model_of("qwen3_moe", "\"num_experts\": 8, \"num_experts_per_tok\": 2, "
                                      "\"moe_intermediate_size\": 256, \"norm_topk_prob\": true, "),
                1, gpus, settings);
    const stw_program *program = plan->programs[0];
    const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    uint32_t layer = 0;
    while (plan->model->groups[plan->model->blocks[layer].group].facts.experts == 0) layer++;
    *gathered = stw_all_gather_bytes(plan->job, layer);
    memset(sums, 0, STW_N_RANK_GROUPS * sizeof *sums);
    for (uint32_t o = step->first_op; o < step->first_op + step->n_ops; o++)
        if (program->ops[o].kind == STW_OP_NORM_SUM)
            sums[program->ops[o].group] += program->ops[o].bytes / 4; /* fp32 */
    stw_plan_free(plan);
}

/* A group of one rank has no gather buffer; experts have a norm of their own. */
static void own_experts_are_not_gathered(void) {
    const char *none[] = {NULL}, *two[] = {"parallel.ep=2", NULL},
               *four[] = {"parallel.ep=4", NULL};
    uint64_t gathered, sums[STW_N_RANK_GROUPS], all;
    look_at_steps(4, none, &gathered, sums);
    all = sums[STW_RANK_GROUP_SHARD];
    CU_ASSERT_EQUAL(gathered, 2 * (BESIDE + EXPERTS));
    CU_ASSERT_EQUAL(sums[STW_RANK_GROUP_EXPERT_DP] + sums[STW_RANK_GROUP_EP], 0);
    look_at_steps(4, two, &gathered, sums);
    const uint64_t experts = sums[STW_RANK_GROUP_EXPERT_DP];
    CU_ASSERT_EQUAL(gathered, 2 * (BESIDE + EXPERTS / 2));
    CU_ASSERT(experts > 0 && experts < all);
    CU_ASSERT_EQUAL(sums[STW_RANK_GROUP_SHARD], all - experts);
    CU_ASSERT_EQUAL(sums[STW_RANK_GROUP_EP], experts);
    look_at_steps(4, four, &gathered, sums);
    CU_ASSERT_EQUAL(gathered, 2 * BESIDE);
    CU_ASSERT_EQUAL(sums[STW_RANK_GROUP_SHARD], all - experts);
    CU_ASSERT_EQUAL(sums[STW_RANK_GROUP_EXPERT_DP], 0);
    CU_ASSERT_EQUAL(sums[STW_RANK_GROUP_EP], experts);
}

/* Activations when forward has ended, per token and layer, and what backward of a layer computes.
 */
static void look_at_layers(const char *const *settings, uint64_t *token_bytes, double *flops) {
    stw_plan *plan = make(2, settings);
    const stw_program *program = plan->programs[0];
    stw_live live = {0};
    bool lost = false;
    for (uint32_t o = 0; o < program->n_ops; o++) {
        const stw_op *op = &program->ops[o];
        stw_live_apply(&live, op);
        if (op->kind == STW_OP_LOSS && !lost)
            *token_bytes =
                live.bytes[STW_TIER_GPU][STW_COMPONENT_ACTIVATIONS] / LAYERS / plan->job->tokens;
        lost = lost || op->kind == STW_OP_LOSS;
        if (op->kind == STW_OP_BACKWARD) *flops = op->flops;
    }
    stw_plan_free(plan);
}

/* Outputs of norms, query, key, value, attention's output, MLP; fp32 copies, factors and roots of
 * the norms, of those of query and key; log-sum-exp. */
#define WHOLE                                                                                      \
    (2 * (2 * 1024 + 2048 + 2 * 1024 + 2048 + 4 * 3072) + 2 * (6 * 1024 + 4) +                     \
     (6 * 2048 + 4 * 16) + (6 * 1024 + 4 * 8) + 4 * 16)

/* Widths of a layer: hidden 1,024, query and attention's output 2,048, key and value 1,024, MLP
 * 3,072. */
static void selective(void) {
    static const struct {
        const char *modules;
        uint64_t token_bytes;    /* that are kept */
        double recomputed_flops; /* per token, of products */
    } policies[] = {
        /* input, query, value, attention's output, its log-sum-exp, gate, output of the last */
        {"[ops]", 2 * (1024 + 2048 + 1024 + 2048 + 3072 + 1024) + 4 * 16,
         2.0 * 1024 * (1024 + 2048 + 3072)},
        /* all but gate, activated gate, up and product */
        {"[mlp]", WHOLE - 2 * 4 * 3072, 2.0 * 1024 * 2 * 3072},
        /* inputs of both norms instead of their fp32 copies, factors and roots */
        {"[layernorm]", WHOLE - 2 * (6 * 1024 + 4) + 2 * 2 * 1024, 0},
        /* inputs of four modules: two norms, attention, MLP */
        {"[mlp, self_attn, layernorm]", 4 * 2 * 1024,
         2.0 * 1024 * (2 * 3072 + 2048 + 2 * 1024) + 1024.0 * 16 * 256},
    };
    const char *none[] = {"recompute.granularity=none", NULL};
    uint64_t whole_bytes = 0, bytes = 0;
    double whole_flops = 0, flops = 0;
    look_at_layers(none, &whole_bytes, &whole_flops);
    CU_ASSERT_EQUAL(whole_bytes, WHOLE);
    if (whole_bytes != WHOLE) fprintf(stderr, "whole: %llu\n", (unsigned long long)whole_bytes);
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        char modules[64];
        snprintf(modules, sizeof modules, "recompute.modules=%s", policies[i].modules);
        const char *settings[] = {"recompute.granularity=selective", modules, NULL};
        look_at_layers(settings, &bytes, &flops);
        CU_ASSERT_EQUAL(bytes, policies[i].token_bytes);
        CU_ASSERT_DOUBLE_EQUAL(flops - whole_flops, 1024 * policies[i].recomputed_flops, 1);
        if (bytes != policies[i].token_bytes)
            fprintf(stderr, "%s: %llu\n", policies[i].modules, (unsigned long long)bytes);
    }
}

/* The same on one of two ranks: heads and MLP are halves, norms have half of the tokens, rows that
 * products read are whole. */
#define WHOLE_OF_2                                                                                 \
    (2 * (2 * 1024 + 1024 + 2 * 512 + 1024 + 4 * 1536) + (6 * 1024 + 4) + (6 * 1024 + 4 * 8) +     \
     (6 * 512 + 4 * 4) + 4 * 8)

static void tensor_parallel(void) {
    const char *kept[] = {TP2, "parallel.sequence_parallel=true", NULL};
    const char *rows[] = {TP2, NULL};
    const char *ops[] = {TP2, "parallel.sequence_parallel=true", "recompute.granularity=selective",
                         NULL};
    const char *full[] = {TP2, "parallel.sequence_parallel=true", NULL};
    const char *one[] = {"recompute.granularity=none", NULL};
    uint64_t bytes = 0;
    double flops = 0, whole_flops = 0, kept_flops = 0;
    look_at_layers(one, &bytes, &whole_flops);
    look_at_layers(kept, &bytes, &kept_flops);
    CU_ASSERT_EQUAL(bytes, WHOLE_OF_2);
    CU_ASSERT_DOUBLE_EQUAL(kept_flops, whole_flops / 2, 1);
    look_at_layers(rows, &bytes, &flops);
    CU_ASSERT_EQUAL(bytes, WHOLE_OF_2 + 6 * 1024 + 4); /* norms have all tokens */
    /* input, query, value, output, log-sum-exp, gate; the last product's output with all rows, and
     * both reduce-scatters' */
    look_at_layers(ops, &bytes, &flops);
    CU_ASSERT_EQUAL(bytes, 2 * (512 + 1024 + 512 + 1024 + 1536 + 1024 + 2 * 512) + 4 * 8);
    CU_ASSERT_DOUBLE_EQUAL(flops - kept_flops, 1024 * 1024.0 * (1024 + 2048 + 3072), 1);
    /* state: slices by half, each over two ranks; norms over two */
    stw_plan *plan = make(4, full);
    const uint64_t norms = 8 * NORMS + 1024;
    CU_ASSERT_EQUAL(plan->job->group, 2);
    CU_ASSERT_EQUAL(plan->job->kinds[0].params, (8 * LAYER + ROOT - norms) / 4 + norms / 2);
    CU_ASSERT_EQUAL(plan->job->kinds[0].n_ranks + plan->job->kinds[1].n_ranks, 4);
    /* logits of half the vocabulary: in backward what was saved and three tensors beside it, and
     * the final norm: fp32 and bf16 of half the rows, its output of all */
    CU_ASSERT_EQUAL(peak_of(plan, STW_PHASE_FORWARD_BACKWARD, STW_COMPONENT_LOGITS),
                    1024 * (4 * 4 * 151936ull / 2 + (6 * 1024 + 4) / 2 + 2 * 1024));
    stw_plan_free(plan);
}

static void refused(void) {
    static const struct {
        const char *settings[3], *text;
    } wrong[] = {
        {{"engine=fsdp2", "batch.max_tokens_per_gpu=4096", "batch.micro_batch=2"},
         "batch.micro_batch"},
        {{"engine=fsdp2", "batch.max_tokens_per_gpu=4096", "attention=eager"}, "attention"},
        {{"engine=fsdp2", "batch.max_tokens_per_gpu=1023", "batch.seq_len=1024"},
         "expected at least 1024"},
        {{"engine=fsdp2", "recompute.granularity=selective", "placement.activations=offload"},
         "placement.activations"},
        {{"engine=fsdp2", "recompute.granularity=selective", "recompute.modules=[ops, mlp]"},
         "ops alone"},
        {{"engine=fsdp2", "recompute.granularity=full", "recompute.modules=[mlp]"},
         "recompute.granularity: selective"},
        {{"engine=fsdp2", "recompute.granularity=selective", "recompute.modules=[core_attn]"},
         "mlp, self_attn, layernorm"},
        {{"engine=fsdp2", "fsdp.reshard_to_node=true", "fsdp.reshard_after_forward=false"},
         "reshard_after_forward is false"},
        {{"engine=fsdp2", "batch.seq_len=1024", "precision.params=bf16"},
         "set precision.grads=bf16 precision.exp_avg=bf16 precision.exp_avg_sq=bf16"},
        {{"engine=fsdp2", "precision.exp_avg=bf16", "precision.master=fp32"},
         "set precision.exp_avg=fp32 precision.master=none"},
        {{"engine=fsdp2", "batch.seq_len=1024", "precision.grads=bf16"},
         "found bf16, expected fp32"},
        {{"engine=fsdp2", "parallel.tp=3", "batch.seq_len=1024"}, "does not divide"},
        {{"engine=fsdp2", "parallel.sequence_parallel=true", "batch.seq_len=1024"},
         "parallel.tp is 1"},
        {{"engine=fsdp2", "parallel.tp=2", "loss.fused=true"}, "fsdp.loss_parallel"},
        {{"engine=fsdp2", "parallel.tp=2", "batch.log_prob_micro_batch=1"},
         "without tensor parallelism"},
        {{"engine=fsdp2", "parallel.tp=2", "parallel.cp=2"}, "engine: megatron"},
        {{"engine=stowage", "parallel.tp=2", "batch.seq_len=1024"}, "engine fsdp2"},
        {{"engine=megatron", "batch.log_prob_micro_batch=2", "batch.seq_len=1024"},
         "batch.log_prob_micro_batch"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        stw_cluster cluster = fixture_cluster(2);
        stw_error err = STW_ERROR_INIT;
        stw_run_spec run;
        stw_plan *plan = NULL;
        CU_ASSERT_EQUAL_FATAL(stw_run_spec_init(&run, &err), STW_STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(stw_specs_set_all(&cluster, &run, wrong[i].settings, 3, "test", &err),
                              STW_STATUS_OK);
        stw_status status = stw_run_spec_check(&run, "test", &err);
        if (status == STW_STATUS_OK)
            status = stw_plan_new(qwen3(), &cluster, &run, &plan, &err);
        else
            stw_run_spec_free(&run);
        CU_ASSERT_EQUAL(status, STW_STATUS_BAD_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, wrong[i].text));
        if (strstr(err.text, wrong[i].text) == NULL)
            fprintf(stderr, "%s: %s\n", err.where, err.text);
    }
}

STW_TEST_MAIN("engine fsdp2", {"collectives", collectives}, {"tensor parallel", tensor_parallel},
              {"processes", processes}, {"seconds of once", seconds_of_once},
              {"log-prob", log_prob}, {"log-prob gathers", log_prob_gathers},
              {"stays between", stays_between},
              {"stays between, on the host", stays_between_on_host}, {"packed", packed},
              {"resharded to a node", resharded_to_node}, {"experts apart", experts_apart},
              {"own experts are not gathered", own_experts_are_not_gathered},
              {"selective", selective}, {"refused", refused})
