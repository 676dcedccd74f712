/* SPDX-License-Identifier: Apache-2.0 */
/* Small inputs for tests: a transformer of a few thousand to a few million parameters made in
 * memory, and a plan around it whose decisions the test chooses. */
#ifndef STW_TESTS_UNIT_FIXTURE_H
#define STW_TESTS_UNIT_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/files/plan.h"

typedef struct fixture_size {
    uint32_t layers;
    uint64_t hidden, ffn, vocab;
} fixture_size;

static void fixture_tensor(stw_model *m, uint32_t block, const char *name, uint64_t rows,
                           uint64_t columns) {
    stw_tensor *t = &m->tensors[m->n_tensors++];
    t->name = stw_pool_printf(m->pool, "%u.%s", block, name);
    char word[16]; /* the names' first words are those of weights */
    snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "."), name);
    stw_weight_parse(word, &t->use.weight);
    const bool mlp = t->use.weight == STW_WEIGHT_GATE_UP || t->use.weight == STW_WEIGHT_DOWN;
    if (mlp) t->use.module = STW_MODULE_MLP;
    t->block = block;
    t->rank = columns > 0 ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->numel = rows * (columns > 0 ? columns : 1);
    t->dtype = STW_DTYPE_BF16;
    t->experts = 1;
    m->blocks[block].n_tensors++;
}

/* embed | layers x (norm, qkv, o, norm, gate_up, down) | norm (head tied to the embedding) */
static stw_model *fixture_model(fixture_size s) {
    stw_pool *pool = stw_pool_new();
    stw_model *m = stw_pool_alloc(pool, sizeof *m);
    m->pool = pool;
    m->name = m->source = "fixture";
    m->model_type = "fixture";
    m->facts_known = true;
    m->n_blocks = s.layers + 2;
    m->n_groups = 3;
    m->blocks = stw_pool_array(pool, m->n_blocks, sizeof *m->blocks);
    m->groups = stw_pool_array(pool, m->n_groups, sizeof *m->groups);
    m->tensors = stw_pool_array(pool, s.layers * 6 + 2, sizeof *m->tensors);
    m->groups[0] = (stw_block_group){.name = "embed", .count = 1};
    m->groups[1] = (stw_block_group){.name = "layer", .count = s.layers};
    m->groups[2] = (stw_block_group){.name = "norm", .count = 1};
    stw_block_facts facts = {.transformer = true,
                             .hidden = s.hidden,
                             .q_heads = 4,
                             .kv_heads = 2,
                             .qk_dim = s.hidden / 4,
                             .v_dim = s.hidden / 4,
                             .ffn = s.ffn,
                             .gated = true};
    m->groups[1].facts = facts;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        stw_block *block = &m->blocks[b];
        block->first_tensor = m->n_tensors;
        block->group = b == 0 ? 0 : b <= s.layers ? 1 : 2;
        block->instance = block->group == 1 ? b - 1 : 0;
        if (block->group == 0) fixture_tensor(m, b, "embed.weight", s.vocab, s.hidden);
        if (block->group == 2) fixture_tensor(m, b, "norm.weight", s.hidden, 0);
        if (block->group != 1) continue;
        fixture_tensor(m, b, "norm1.weight", s.hidden, 0);
        fixture_tensor(m, b, "qkv.weight", s.hidden * 2, s.hidden);
        fixture_tensor(m, b, "o.weight", s.hidden, s.hidden);
        fixture_tensor(m, b, "norm2.weight", s.hidden, 0);
        fixture_tensor(m, b, "gate_up.weight", 2 * s.ffn, s.hidden);
        fixture_tensor(m, b, "down.weight", s.hidden, s.ffn);
    }
    m->vocab = s.vocab;
    m->hidden = s.hidden;
    m->layers = s.layers;
    m->tied_embeddings = true;
    stw_error err = STW_ERROR_INIT;
    if (stw_model_finish(m, &err) != STW_STATUS_OK) {
        fprintf(stderr, "fixture: %s\n", err.text);
        exit(2);
    }
    return m;
}

/* One node of `gpus` GPUs with round figures for every rate. */
static inline stw_cluster fixture_cluster(uint32_t gpus) {
    stw_cluster c;
    if (stw_cluster_defaults(&c, NULL) != STW_STATUS_OK) exit(2);
    c.nodes = 1;
    c.gpus = gpus;
    c.gpu.memory_bytes = 80ull << 30;
    c.gpu.context_bytes = 512ull << 20;
    c.gpu.comm_bytes = 1ull << 30;
    c.gpu.hbm_bps = 4e12;
    c.gpu.bf16_flops = 800e12;
    c.host.memory_bytes = c.host.limit_bytes = 512ull << 30;
    c.host.page_lock_limit_bytes = UINT64_MAX;
    c.host.process_bytes = 1ull << 30;
    c.host.bandwidth_bps = 200e9;
    c.host.dma_bps = 160e9;
    c.host.cores = 16;
    c.pcie.h2d_bps = c.pcie.d2h_bps = 50e9;
    c.pcie.both_bps = 45e9;
    c.pcie.latency_s = 10e-6;
    c.nvlink_bps = 300e9;
    c.nvme.capacity_bytes = 1ull << 40;
    c.nvme.read_bps = 3e9;
    c.nvme.write_bps = 2e9;
    c.cpu_adamw_pps = 5e9;
    return c;
}

/* A plan with all blocks kept, ready for decisions. Settings: "key=value", NULL-terminated. */
static inline stw_plan *fixture_plan(fixture_size size, const stw_cluster *cluster,
                                     const char *const *settings) {
    stw_error err = STW_ERROR_INIT;
    stw_run_spec run;
    stw_plan *plan = NULL;
    stw_status status = stw_run_spec_init(&run, &err);
    for (; status == STW_STATUS_OK && settings != NULL && *settings != NULL; settings++) {
        char key[128];
        const char *equals = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *settings), *settings);
        status = stw_run_spec_set(&run, key, equals + 1, "fixture", &err);
    }
    if (status == STW_STATUS_OK)
        status = stw_plan_new(fixture_model(size), cluster, &run, &plan, &err);
    if (status != STW_STATUS_OK) {
        fprintf(stderr, "fixture: %s: %s\n", err.where, err.text);
        exit(2);
    }
    stw_decisions *d = &plan->decisions;
    d->blocks = stw_pool_array(plan->pool, 1, sizeof *d->blocks);
    d->blocks[0] = (stw_block_decision){1, STW_ACT_KEEP, size.layers};
    d->n_blocks = 1;
    d->load = STW_LOAD_RANK0_BROADCAST;
    d->prefetch.depth = 3;
    d->prefetch.bucket_bytes = 1ull << 20;
    return plan;
}

/* Deal the quanta: units[i] to places[i]; the last place takes what is left. */
static inline void fixture_state(stw_plan *plan, uint32_t n, const stw_place *places,
                                 const uint32_t *units) {
    uint32_t left = plan->job->n_units;
    plan->decisions.n_state = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t take = i + 1 == n || units[i] > left ? left : units[i];
        plan->decisions.state[i] = (stw_state_decision){places[i], take};
        left -= take;
    }
}

#define FIXTURE_RESIDENT                                                                           \
    { STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT }
#define FIXTURE_STREAM                                                                             \
    { STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_STREAM }
#define FIXTURE_STREAM_ALL                                                                         \
    { STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_STREAM }
#define FIXTURE_DIRECT                                                                             \
    { STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_DIRECT }
#define FIXTURE_CPU                                                                                \
    { STW_TIER_GPU, STW_TIER_GPU, STW_TIER_HOST, STW_UPDATE_CPU }
#define FIXTURE_CPU_ALL                                                                            \
    { STW_TIER_HOST, STW_TIER_HOST, STW_TIER_HOST, STW_UPDATE_CPU }
#define FIXTURE_NVME                                                                               \
    { STW_TIER_GPU, STW_TIER_GPU, STW_TIER_NVME, STW_UPDATE_STREAM }

#endif
