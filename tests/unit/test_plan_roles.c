/* SPDX-License-Identifier: Apache-2.0 */
/* Roles: whose nodes they are on, what rollouts hold, and one walk over all of them. */
#include "engines/rollout/sizes.h"
#include "plan/files/verdict.h"
#include "plan/program/check.h"
#include "plan/program/roles.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define GIB (1ull << 30)

static const stw_rollout_figures *figures(const stw_plan *plan, uint32_t role) {
    return plan->job->roles[role].figures;
}

static uint64_t at(const stw_role_peaks *peaks, stw_phase phase, stw_tier tier) {
    return peaks->bytes[phase][tier];
}

/* ---- nodes ---- */

static stw_status try(const char *model, uint32_t nodes, const char *roles, stw_plan **plan,
                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *m = NULL;
    cluster.nodes = nodes;
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_run_spec_set(&run, "engine", "fsdp2", "case", err));
    STW_TRY(stw_run_spec_set(&run, "roles", roles, "case", err));
    STW_TRY(stw_run_spec_check(&run, "case", err));
    STW_TRY(stw_model_open(model, STW_SOURCE_MODELS, &m, err));
    status = stw_plan_new(m, &cluster, &run, plan, err);
out:
    return status;
}

static void nodes_are_shared_out(void) {
    stw_plan *plan = NULL;
    CHECK_OK(try("Qwen3-8B", 6,
                 "[{name: a, with: none, nodes: 2}, {name: b, with: a}, {name: c}, "
                 "{name: d, with: none, nodes: 1}]",
                 &plan, err));
    const stw_job *job = plan->job;
    CU_ASSERT_EQUAL(job->n_roles, 5);
    CU_ASSERT_EQUAL(job->world, 24); /* three nodes are left for the trainer */
    CU_ASSERT_EQUAL(job->ranks, 48);
    CU_ASSERT_EQUAL(job->dp_shard, 24);
    CU_ASSERT_EQUAL(job->roles[1].first_node, 3);
    CU_ASSERT_EQUAL(job->roles[2].first_node, 3);
    CU_ASSERT_EQUAL(job->roles[2].n_nodes, 2);
    CU_ASSERT_EQUAL(job->roles[3].n_nodes, 3);
    CU_ASSERT_EQUAL(job->roles[4].first_node, 5);
    CU_ASSERT_EQUAL(job->kinds[stw_job_kind_of(job, 39)].home, 1);
    CU_ASSERT_EQUAL(job->kinds[stw_job_kind_of(job, 40)].home, 4);
    CU_ASSERT_EQUAL(job->kinds[stw_job_kind_of(job, 23)].home, 0);
    CU_ASSERT_EQUAL(stw_job_node_kind_of(job, 3), stw_job_node_kind_of(job, 4));
    CU_ASSERT_NOT_EQUAL(stw_job_node_kind_of(job, 4), stw_job_node_kind_of(job, 5));
    stw_plan_free(plan);
    plan = NULL;
    CHECK_OK(try("Qwen3-8B", 4, "[{name: a, with: none}]", &plan, err));
    CU_ASSERT_EQUAL(plan->job->world, 16); /* auto: equal shares */
    stw_plan_free(plan);
}

static void impossible_roles_are_refused(void) {
    static const struct {
        const char *model, *roles, *words;
    } cases[] = {
        {"Qwen3-8B", "[{name: a, with: none, nodes: 2}]", "roles.0.nodes: found 2"},
        {"Qwen3-8B", "[{name: a, nodes: 1}]", "expected auto or 2, the nodes of trainer"},
        {"Qwen3-8B", "[{name: a, with: b}, {name: b, with: a}]", "roles.0.with"},
        {"Qwen3-8B", "[{name: a, engine: triton}]", "expected auto | vllm | sglang"},
        {"Qwen3-8B", "[{name: a, parallel: {tp: 3}}]", "a divisor of the role's 16 GPUs"},
        {"Qwen2.5-7B", "[{name: a, parallel: {tp: 8}}]", "a divisor of the attention heads, 28"},
        {"Qwen3-8B", "[{name: a, parallel: {ep: 2}}]", "the model has no experts"},
        {"Qwen3-8B", "[{name: a, dtype: mxfp4}]", "it quantizes experts"},
        {"Qwen3-30B-A3B", "[{name: a, parallel: {tp: 4, ep: 2}}]", "a multiple of tp 4"},
        {"Qwen3-8B", "[{name: a, max_model_len: 64k}]", "at most the model's 40960 positions"},
        {"Qwen3-8B", "[{name: a, gpu_memory_utilization: 0.2}]",
         "for the KV cache of one sequence of 40960 tokens"},
        {"Llama-3.1-70B", "[{name: a, gpu_memory_utilization: 0.9}]", "it leaves 0 B beside"},
        {"Qwen3-8B", "[{name: a, max_num_batched_tokens: 255}]", "at least max_num_seqs, 256"},
        {"Qwen3-8B", "[{name: a, max_num_seqs: 10000}]", "at least max_num_seqs, 10000"},
        {"Qwen3-8B", "[{name: a, with: none}, {name: b, with: none}]",
         "a cluster of at least 3 nodes (it has 2)"},
        {"Qwen3-8B", "[{name: a, with: none}, {name: b, with: none, nodes: 1}]",
         "roles.0.nodes: found auto"},
        {"Qwen3-8B", "[{name: a, with: none, nodes: 1}, {name: b, with: none}]",
         "a cluster of at least 3 nodes (it has 2)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_plan *plan = NULL;
        stw_error err = STW_ERROR_INIT;
        stw_status status = try(cases[i].model, 2, cases[i].roles, &plan, &err);
        CU_ASSERT_EQUAL(status, STW_STATUS_BAD_INPUT);
        if (strstr(err.text, cases[i].words) == NULL)
            fprintf(stderr, "%s: %s\n", cases[i].roles, err.text);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, cases[i].words));
        stw_plan_free(plan);
    }
}

/* ---- what a rollout holds ---- */

/* Llama-3.1-70B: 70,553,706,496 parameters, of them norms (80 x 2 + 1) x 8192; vocabulary 128,256,
 * a multiple of 64; 64 heads of 128, 8 of keys and values; 131,072 positions. */
static void dense_weights_and_cache(void) {
    stw_plan *plan = NULL;
    CHECK_OK(try("Llama-3.1-70B", 1,
                 "[{name: a, gpu_memory_utilization: 0.8, parallel: {tp: 8}, max_model_len: 32k}]",
                 &plan, err));
    const stw_rollout_figures *f = figures(plan, 1);
    const uint64_t norms = 161 * 8192, rotary = 131072 * 128;
    const uint64_t weights = 2 * ((70553706496 - norms) / 8 + norms + rotary);
    CU_ASSERT_EQUAL(f->weights, weights);
    /* the sampler: 256 sequences x vocabulary x 28 B, beside 8192 hidden states in bf16 */
    const uint64_t work = 256ull * 128256 * 28 + 8192ull * 8192 * 2;
    CU_ASSERT_EQUAL(f->work, work);
    const uint64_t token = 80 * 1 * (128 + 128) * 2; /* one head on each rank */
    const uint64_t asked = (uint64_t)(0.8 * (double)(80 * GIB));
    CU_ASSERT_EQUAL(f->cache_tokens, (asked - weights - work) / token / 16 * 16);
    CU_ASSERT_EQUAL(f->cache, f->cache_tokens * token);
    CU_ASSERT_EQUAL(f->sequence, 32768 * token);
    CU_ASSERT_EQUAL(f->tables, 256 * 2048 * 4);
    CU_ASSERT_EQUAL(f->graphs, 51 * (10ull << 20)); /* 3 + 32 up to 256 + 16 up to 512 */
    stw_plan_free(plan);
}

/* Qwen3-8B has 8 heads of keys and values: 16 ranks hold each of them twice. Its vocabulary of
 * 151,936 is a multiple of 64; GPT-2's 50,257 is padded to 50,304. */
static void copies_and_padding(void) {
    stw_plan *eight = NULL, *sixteen = NULL, *gpt = NULL;
    CHECK_OK(try("Qwen3-8B", 2, "[{name: a, parallel: {tp: 8}}]", &eight, err));
    CHECK_OK(try("Qwen3-8B", 2, "[{name: a, parallel: {tp: 16}}]", &sixteen, err));
    const uint64_t kv = 36ull * 2 * 128 * 4096 * 2; /* k and v of one head in all layers, bf16 */
    const uint64_t norms = 2 * (36ull * (2 * 4096 + 2 * 128) + 4096), rotary = 2 * 40960ull * 128;
    const uint64_t cut = figures(eight, 1)->weights - norms - rotary - kv;
    CU_ASSERT_EQUAL(figures(sixteen, 1)->weights, norms + rotary + kv + cut / 2);
    CU_ASSERT_EQUAL(figures(sixteen, 1)->sequence, figures(eight, 1)->sequence);
    CHECK_OK(try("GPT-2", 1, "[{name: a, parallel: {tp: 2}}]", &gpt, err));
    const stw_model *m = gpt->job->model;
    uint64_t whole = 0, rest = 0;
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const stw_tensor *x = &m->tensors[t];
        bool vector = x->rank == 1 && strstr(x->name, "ln") != NULL;
        if (vector || strstr(x->name, "wpe") != NULL) whole += x->numel;
        if (strstr(x->name, "wte") != NULL) rest += 50304ull / 2 * 768;
    }
    CU_ASSERT_TRUE(figures(gpt, 1)->weights > 2 * (whole + rest));
    stw_plan_free(eight);
    stw_plan_free(sixteen);
    stw_plan_free(gpt);
}

/* MLA caches 512 + 64 values per token and layer, whole on every rank; experts are cut by tp, or
 * spread over ep ranks. */
static void experts_and_mla(void) {
    stw_plan *plan = NULL, *spread = NULL;
    CHECK_OK(try("DeepSeek-V3", 4,
                 "[{name: a, parallel: {tp: 32}, dtype: fp8, kv_dtype: fp8, max_model_len: 16k}]",
                 &plan, err));
    CU_ASSERT_EQUAL(figures(plan, 1)->sequence, 16384ull * 61 * 576);
    CHECK_OK(try("DeepSeek-V3", 4,
                 "[{name: a, parallel: {tp: 8, ep: 32}, dtype: fp8, max_model_len: 16k}]", &spread,
                 err));
    CU_ASSERT_EQUAL(figures(spread, 1)->sequence, 16384ull * 61 * 576 * 2);
    /* 8 of 256 experts in 58 layers, each 3 x 7168 x 2048 in fp8, and a scale per 128 x 128 */
    const double experts = 58.0 * 8 * 3 * 7168 * 2048 * (1 + 4.0 / (128 * 128));
    CU_ASSERT_TRUE((double)figures(spread, 1)->weights > experts);
    CU_ASSERT_TRUE((double)figures(spread, 1)->weights < experts + 6e9);
    stw_plan_free(plan);
    stw_plan_free(spread);
}

/* Layers of a window keep its tokens, those of linear attention one state. */
static void windows_and_states(void) {
    stw_plan *oss = NULL, *next = NULL;
    CHECK_OK(try("gpt-oss-120b", 1,
                 "[{name: a, parallel: {tp: 8}, dtype: mxfp4, max_model_len: 64k}]", &oss, err));
    const uint64_t token = (64 + 64) * 2; /* one head of 64 on each rank */
    const uint64_t window = 128 - 1 + 8192;
    CU_ASSERT_EQUAL(figures(oss, 1)->sequence,
                    18 * 65536 * token + 18 * ((window + 15) / 16 * 16 + 16) * token);
    CU_ASSERT_EQUAL(figures(oss, 1)->cache_tokens, 0);
    CHECK_OK(try("Qwen3-Next-80B-A3B", 1, "[{name: a, parallel: {tp: 8}, max_model_len: 64k}]",
                 &next, err));
    const uint64_t convolution = (2 * 16 * 128 + 32 * 128) * 3 / 8 * 2;
    const uint64_t state = 32 * 128 / 8 * 128 * 4;
    CU_ASSERT_EQUAL(figures(next, 1)->sequence,
                    12ull * 65536 * (256 + 256) * 2 + 36 * (convolution + state));
    stw_plan_free(oss);
    stw_plan_free(next);
}

/* SGLang's share is of what is free before the weights, and its activations lie outside of it. */
static void share_of_sglang(void) {
    stw_plan *plan = NULL;
    CHECK_OK(try("Qwen3-8B", 1,
                 "[{name: a, engine: sglang, parallel: {tp: 2}, gpu_memory_utilization: 0.5}]",
                 &plan, err));
    const stw_rollout_figures *f = figures(plan, 1);
    const uint64_t free_bytes = 80 * GIB - (512ull << 20) - GIB;
    const uint64_t token = 36 * 4 * 256 * 2;
    CU_ASSERT_EQUAL(f->process, (512ull << 20) + GIB);
    CU_ASSERT_EQUAL(f->cache_tokens, (free_bytes / 2 - f->weights) / token / 16 * 16);
    CU_ASSERT_EQUAL(f->graphs, 256 * (2ull << 20));
    CU_ASSERT_FALSE(f->keeps_on_host); /* torch_memory_saver discards */
    stw_plan_free(plan);
}

/* ---- programs ---- */

static void derive(stw_plan *plan) {
    stw_place places[STW_MAX_PLACES];
    stw_decisions *d = &plan->decisions;
    CU_ASSERT_TRUE_FATAL(plan->job->engine->places(plan->job, places, NULL) > 0);
    d->n_state = 1;
    d->state[0] = (stw_state_decision){places[0], plan->job->n_units};
    d->blocks = stw_pool_array(plan->pool, plan->job->model->n_groups, sizeof *d->blocks);
    d->n_blocks = 0;
    for (uint32_t g = 0; g < plan->job->model->n_groups; g++)
        if (plan->job->model->groups[g].facts.transformer)
            d->blocks[d->n_blocks++] =
                (stw_block_decision){g, STW_ACT_RECOMPUTE, plan->job->model->groups[g].count};
    d->fetch_ahead = 1;
    d->prefetch.by_group = plan->job->engine->prefetch_by_group;
    d->prefetch.depth = 1;
    d->prefetch.bucket_bytes = d->prefetch.by_group ? 0 : 32u << 20;
    d->load = STW_LOAD_SHARDED_READ;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
}

/* Of every kind of rank and phase, roles sum to the peak. */
static void check_sums(const stw_plan *plan) {
    const uint32_t n = plan->job->n_roles;
    stw_role_peaks of[8];
    CU_ASSERT_TRUE_FATAL(n <= 8);
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        stw_program_walk_roles(plan->programs[k], n, of);
        for (int p = 0; p < STW_N_PHASES; p++)
            for (int t = 0; t < STW_N_TIERS; t++) {
                uint64_t sum = 0;
                for (uint32_t r = 0; r < n; r++) sum += of[r].bytes[p][t];
                CU_ASSERT_EQUAL(sum, plan->peaks[k].phase[p][t].total);
            }
    }
}

/* The role alone: its own walk, and how its bytes stand in the walk of all. */
static void roles_of_every_pair_sum_up(void) {
    static const char *const roles[] = {
        "{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.3, max_model_len: 8k}",
        "{name: a, parallel: {tp: 4}, gpu_memory_utilization: 0.3, max_model_len: 8k, "
        "free_cache_engine: false}",
        "{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.3, max_model_len: 8k, "
        "sleep_level: 2, enforce_eager: true}",
        "{name: a, engine: sglang, gpu_memory_utilization: 0.4, max_model_len: 8k}"};
    static const char *const others[] = {
        "{name: b, parallel: {tp: 8}, gpu_memory_utilization: 0.2, max_model_len: 4k}",
        "{name: b, with: none, nodes: 1, parallel: {tp: 8}, gpu_memory_utilization: 0.8}",
        "{name: b, with: none, nodes: 1, parallel: {tp: 2}, free_cache_engine: true, "
        "builds_trainer_model: true}"};
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 3; j++) {
            char both[512];
            stw_plan *plan = NULL, *alone = NULL;
            stw_role_peaks of[3], own[2];
            snprintf(both, sizeof both, "[%s, %s]", roles[i], others[j]);
            CHECK_OK(try("Qwen3-8B", 2, both, &plan, err));
            derive(plan);
            check_sums(plan);
            snprintf(both, sizeof both, "[%s]", roles[i]);
            CHECK_OK(try("Qwen3-8B", 2, both, &alone, err));
            derive(alone);
            /* what a role holds does not depend on the other one */
            stw_program_walk_roles(plan->programs[plan->job->largest], 3, of);
            stw_program_walk_roles(alone->programs[alone->job->largest], 2, own);
            for (int p = 0; p < STW_N_PHASES; p++)
                CU_ASSERT_TRUE(of[1].bytes[p][STW_TIER_GPU] <= own[1].bytes[p][STW_TIER_GPU]);
            CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_GPU),
                            at(&own[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_GPU));
            stw_plan_free(plan);
            stw_plan_free(alone);
        }
}

/* Programs of some phases: roles, too, have all operations in these alone. */
static void roles_have_operations_of_some_phases(void) {
    static const uint32_t phases[] = {STW_NO_PHASES, 1u << STW_PHASE_FORWARD_BACKWARD,
                                      1u << STW_PHASE_LOG_PROB};
    stw_plan *plan = NULL;
    CHECK_OK(try("Qwen3-8B", 1,
                 "[{name: a, gpu_memory_utilization: 0.4}, {name: b, kind: reference}]", &plan,
                 err));
    derive(plan);
    const uint32_t k = plan->job->largest;
    const stw_program *whole = plan->programs[k];
    for (size_t i = 0; i < 3; i++) {
        stw_program *some = NULL;
        uint32_t full = 0, less = 0;
        CHECK_OK(stw_program_new_phases(plan->job, &plan->decisions, plan->layouts[k], phases[i],
                                        &some, err));
        CU_ASSERT_EQUAL_FATAL(some->n_movements, whole->n_movements);
        for (uint32_t m = 0; m < some->n_movements; m++) {
            const stw_movement *a = &some->movements[m], *b = &whole->movements[m];
            uint32_t moved = 0, of_whole = 0;
            CU_ASSERT_EQUAL(a->role_number, b->role_number);
            if (a->role_number == 0) continue;
            for (uint32_t o = 0; o < a->n_ops; o++)
                moved += some->ops[a->first_op + o].kind != STW_OP_ALLOC &&
                         some->ops[a->first_op + o].kind != STW_OP_FREE;
            for (uint32_t o = 0; o < b->n_ops; o++)
                of_whole += whole->ops[b->first_op + o].kind != STW_OP_ALLOC &&
                            whole->ops[b->first_op + o].kind != STW_OP_FREE;
            const bool is_full = stw_program_is_full(some, a->phase);
            CU_ASSERT_EQUAL(moved, is_full ? of_whole : 0);
            full += is_full && moved > 0;
            if (of_whole > 0) less += !is_full && of_whole > 0;
        }
        CU_ASSERT_TRUE(less > 0);
        CU_ASSERT_EQUAL((full > 0), (phases[i] == 1u << STW_PHASE_LOG_PROB));
        stw_program_free(some);
    }
    stw_plan_free(plan);
}

static void roles_hold_what_they_say(void) {
    static const char *const keys[] = {"sleep_level: 1", "sleep_level: 2",
                                       "free_cache_engine: false"};
    for (size_t i = 0; i < 3; i++) {
        char roles[160];
        stw_plan *plan = NULL;
        stw_role_peaks of[2];
        snprintf(roles, sizeof roles,
                 "[{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.4, %s}]", keys[i]);
        CHECK_OK(try("Qwen3-8B", 1, roles, &plan, err));
        derive(plan);
        const stw_rollout_figures *f = figures(plan, 1);
        const uint64_t stays = f->process + f->graphs + f->tables;
        const uint64_t awake = stays + f->weights + f->cache;
        stw_program_walk_roles(plan->programs[plan->job->largest], 2, of);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_GPU),
                        i < 2 ? stays : awake);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_OPTIMIZER_STEP, STW_TIER_GPU), i < 2 ? stays : awake);
        CU_ASSERT_EQUAL(f->received, GIB); /* clones of a bucket */
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_WEIGHT_SYNC, STW_TIER_GPU),
                        (i < 2 ? stays + f->weights : awake) + GIB);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_ROLLOUT, STW_TIER_GPU), awake + f->work);
        const uint64_t kept = i == 0 ? f->weights + f->host_rounding : 0;
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_HOST),
                        f->host_process + kept);
        CU_ASSERT_EQUAL(
            plan->peaks[plan->job->largest].phase[STW_PHASE_ROLLOUT][STW_TIER_HOST].page_locked,
            kept);
        stw_plan_free(plan);
    }
}

/* A role on nodes of its own has two buckets that are received, and hands a third one to vLLM's
 * worker, which clones it; none of it is there in a rollout. */
static void rollouts_receive_in_buckets(void) {
    static const char *const engines[] = {"vllm", "sglang"};
    for (size_t i = 0; i < 2; i++) {
        char roles[160];
        stw_plan *plan = NULL;
        stw_role_peaks of[2];
        snprintf(roles, sizeof roles,
                 "[{name: a, with: none, nodes: 1, engine: %s, gpu_memory_utilization: 0.5, "
                 "update_bucket: 3 GiB}]",
                 engines[i]);
        CHECK_OK(try("Qwen3-8B", 2, roles, &plan, err));
        derive(plan);
        const stw_rollout_figures *f = figures(plan, 1);
        const uint64_t awake = f->process + f->graphs + f->tables + f->weights + f->cache;
        stw_program_walk_roles(plan->programs[stw_job_kind_of(plan->job, 8)], 2, of);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_WEIGHT_SYNC, STW_TIER_GPU),
                        awake + (i == 0 ? 12u : 6u) * GIB);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_ROLLOUT, STW_TIER_GPU), awake + f->work);
        stw_plan_free(plan);
    }
}

/* A reference on the host: a bf16 shard, page-locked tensor by tensor, and nothing on the GPU but
 * in its own forward. */
static void a_reference_waits_on_the_host(void) {
    static const char *const where[] = {"host", "gpu"};
    for (size_t i = 0; i < 2; i++) {
        char roles[128];
        stw_plan *plan = NULL;
        stw_role_peaks of[2];
        snprintf(roles, sizeof roles, "[{name: a, kind: reference, placement: {params: %s}}]",
                 where[i]);
        CHECK_OK(try("Qwen3-8B", 1, roles, &plan, err));
        derive(plan);
        check_sums(plan);
        const uint32_t k = plan->job->largest;
        const uint64_t shard = 2 * plan->job->kinds[k].params;
        stw_program_walk_roles(plan->programs[k], 2, of);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_GPU), i == 0 ? 0 : shard);
        const uint64_t host = at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_HOST);
        CU_ASSERT_TRUE(i == 0 ? host >= shard && host <= 2 * shard : host == 0);
        CU_ASSERT_TRUE(of[1].has[STW_PHASE_LOG_PROB]);
        CU_ASSERT_FALSE(of[1].has[STW_PHASE_OPTIMIZER_STEP]);
        CU_ASSERT_TRUE(at(&of[1], STW_PHASE_LOG_PROB, STW_TIER_GPU) > 0);
        stw_plan_free(plan);
    }
}

static stw_status try_set(const char *key, const char *value, const char *roles, stw_plan **plan,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *m = NULL;
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_run_spec_set(&run, "engine", "fsdp2", "case", err));
    STW_TRY(stw_run_spec_set(&run, key, value, "case", err));
    STW_TRY(stw_run_spec_set(&run, "roles", roles, "case", err));
    STW_TRY(stw_model_open("Qwen3-8B", STW_SOURCE_MODELS, &m, err));
    status = stw_plan_new(m, &cluster, &run, plan, err);
out:
    return status;
}

/* With adapters the reference is the actor without them. */
static void adapters_share_their_base(void) {
    stw_plan *plan = NULL;
    stw_role_peaks of[2];
    CHECK_OK(try_set("trainable.lora", "{rank: 8, targets: [q_proj]}",
                     "[{name: a, kind: reference}]", &plan, err));
    derive(plan);
    stw_program_walk_roles(plan->programs[plan->job->largest], 2, of);
    for (int p = 0; p < STW_N_PHASES; p++)
        for (int t = 0; t < STW_N_TIERS; t++) CU_ASSERT_EQUAL(of[1].bytes[p][t], 0);
    stw_plan_free(plan);
    stw_error why = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(try_set("trainable.lora", "{rank: 8, targets: [q_proj]}",
                            "[{name: a, kind: critic}]", &plan, &why),
                    STW_STATUS_BAD_INPUT);
    why = (stw_error)STW_ERROR_INIT;
    CU_ASSERT_EQUAL(try_set("engine", "deepspeed", "[{name: a, kind: reference}]", &plan, &why),
                    STW_STATUS_BAD_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(why.text, "because the trainer's engine is deepspeed"));
}

/* A critic trains: 4 B of parameters and 8 B of moments per element of a model with one output, and
 * its update is over when the trainer's begins. */
static void a_critic_trains(void) {
    stw_plan *plan = NULL;
    stw_role_peaks of[2];
    CHECK_OK(try("Qwen3-8B", 1, "[{name: a, kind: critic}]", &plan, err));
    derive(plan);
    check_sums(plan);
    const stw_job *own = plan->job->roles[1].own;
    CU_ASSERT_PTR_NOT_NULL_FATAL(own);
    const uint64_t head = 151936ull * 4096, params = own->kinds[own->largest].params;
    CU_ASSERT_EQUAL(own->model->params, plan->job->model->params - head + 4096);
    stw_program_walk_roles(plan->programs[plan->job->largest], 2, of);
    CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_WEIGHT_SYNC, STW_TIER_GPU), 0); /* no such phase */
    /* at the trainer's peak in its own pass the critic has no gradients */
    CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_GPU), 12 * params);
    const stw_program *program = plan->programs[0];
    uint32_t trained = 0;
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        if (movement->phase == STW_PHASE_OPTIMIZER_STEP && movement->role_number == 1) trained = m;
        if (movement->phase == STW_PHASE_FORWARD_BACKWARD && movement->role_number == 0)
            CU_ASSERT_TRUE(trained > 0);
    }
    stw_plan_free(plan);
}

/* What a node has once counts once on each node, whichever roles are there. */
static void nodes_have_one_object_store(void) {
    stw_plan *plan = NULL;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *m = NULL;
    const uint64_t each = (uint64_t)1 << 30;
    cluster.nodes = 3;
    cluster.host.object_store_bytes = 8 * each;
    cluster.host.data_loaders_bytes = 16 * each;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_set(&run, "engine", "fsdp2", "case", err));
    CHECK_OK(
        stw_run_spec_set(&run, "roles",
                         "[{name: a}, {name: b, kind: reference}, {name: c, with: none, nodes: "
                         "1}, {name: d, kind: reward, with: none, nodes: 1}, {name: e, kind: "
                         "reward, with: c}]",
                         "case", err));
    CHECK_OK(stw_model_open("Qwen3-0.6B", STW_SOURCE_MODELS, &m, err));
    CHECK_OK(stw_plan_new(m, &cluster, &run, &plan, err));
    derive(plan);
    check_sums(plan);
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            const stw_peak *host = &plan->node_peaks[n].phase[p][STW_TIER_HOST];
            if (!plan->node_peaks[n].has[p]) continue;
            CU_ASSERT_EQUAL(host->components[STW_COMPONENT_OBJECT_STORE], 8 * each);
            CU_ASSERT_EQUAL(host->components[STW_COMPONENT_DATA_LOADERS],
                            plan->job->node_kinds[n].first_node == 0 ? 16 * each : 0);
        }
    stw_plan_free(plan);
}

/* Runs measure the trainer: what is compared with them is what it holds without other roles. */
static void the_trainer_is_compared_alone(void) {
    stw_plan *with = NULL, *without = NULL;
    const stw_peaks *ranks = NULL, *nodes = NULL;
    stw_pool *pool = stw_pool_new();
    CHECK_OK(try("Qwen3-8B", 1,
                 "[{name: a, gpu_memory_utilization: 0.4}, {name: b, kind: reference}]", &with,
                 err));
    CHECK_OK(try("Qwen3-8B", 1, "[]", &without, err));
    derive(with);
    derive(without);
    CHECK_OK(stw_plan_trainer_peaks(with, pool, &ranks, &nodes, err));
    static const stw_phase phases[] = {STW_PHASE_LOAD, STW_PHASE_FORWARD_BACKWARD,
                                       STW_PHASE_OPTIMIZER_STEP};
    for (size_t i = 0; i < 3; i++) {
        const stw_phase p = phases[i];
        CU_ASSERT_EQUAL(stw_peak_allocated(&ranks[0].phase[p][STW_TIER_GPU]),
                        stw_peak_allocated(&without->shown[0].phase[p][STW_TIER_GPU]));
        CU_ASSERT_EQUAL(nodes[0].phase[p][STW_TIER_HOST].total,
                        without->node_peaks[0].phase[p][STW_TIER_HOST].total);
        CU_ASSERT_TRUE(with->peaks[0].phase[p][STW_TIER_HOST].total >
                       without->peaks[0].phase[p][STW_TIER_HOST].total);
    }
    CHECK_OK(stw_plan_trainer_peaks(without, pool, &ranks, &nodes, err));
    CU_ASSERT_PTR_EQUAL(ranks, without->shown);
    stw_pool_free(pool);
    stw_plan_free(with);
    stw_plan_free(without);
}

/* Beside Megatron-LM: 16-bit parameters of the rank without flat buffers, page-locked tensor by
 * tensor, on the GPU in its own forward alone. Qwen3-8B, the second of two stages, of two ranks of
 * tensor parallelism: 18 layers, the final norm, and a head of 151,936 rows padded to 152,064. */
static void a_reference_of_megatron(void) {
    static const char *const where[] = {"host", "gpu"};
    const uint64_t layer = (2 * 4096 + 2 * 1024 + 3 * 12288) * 4096ull / 2 + 2 * 4096 + 2 * 128;
    const uint64_t params = 2 * (18 * layer + 4096 + 152064 / 2 * 4096ull);
    const uint64_t logits = 4096ull * (152064 / 2) * (2 + 4); /* and their fp32 softmax */
    for (size_t i = 0; i < 2; i++) {
        char roles[128];
        stw_role_peaks of[2];
        snprintf(roles, sizeof roles, "roles=[{name: a, kind: reference, placement: {params: %s}}]",
                 where[i]);
        const char *const settings[] = {"engine=megatron",
                                        "precision.params=bf16",
                                        "precision.master=fp32",
                                        "parallel.tp=2",
                                        "parallel.pp=2",
                                        "batch.grad_accumulation=2",
                                        "batch.seq_len=4096",
                                        roles,
                                        NULL};
        stw_plan *plan = case_zoo("Qwen3-8B", settings);
        derive(plan);
        check_sums(plan);
        const uint32_t k = stw_job_kind_of(plan->job, 7);
        CU_ASSERT_STRING_EQUAL(plan->job->roles[1].engine->name, "megatron");
        CU_ASSERT_EQUAL(plan->job->kinds[k].stage, 1);
        stw_program_walk_roles(plan->programs[k], 2, of);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_GPU), i == 0 ? 0 : params);
        CU_ASSERT_EQUAL(at(&of[1], STW_PHASE_OPTIMIZER_STEP, STW_TIER_GPU), i == 0 ? 0 : params);
        const uint64_t forward = at(&of[1], STW_PHASE_LOG_PROB, STW_TIER_GPU) - params;
        CU_ASSERT_TRUE(forward > logits && forward < logits + GIB / 4);
        const uint64_t host = at(&of[1], STW_PHASE_FORWARD_BACKWARD, STW_TIER_HOST);
        CU_ASSERT_TRUE(i == 0 ? host > params && host < 2 * params : host == 0);
        if (i == 0)
            CU_ASSERT_EQUAL(
                plan->peaks[k].phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_HOST].page_locked, host);
        stw_plan_free(plan);
    }
}

/* Lines of the host ledger say whose they are. */
static void ledger_names_roles(void) {
    static const char *const words[] = {"rolls: node.host.process",
                                        "refers: placement of parameters"};
    stw_plan *plan = NULL;
    CHECK_OK(try("Qwen3-8B", 1,
                 "[{name: rolls, gpu_memory_utilization: 0.4}, {name: refers, kind: reference}]",
                 &plan, err));
    derive(plan);
    const stw_phase p = STW_PHASE_FORWARD_BACKWARD;
    stw_ledger ledger;
    CHECK_OK(stw_plan_ledger(plan, 0, p, &ledger, err));
    uint64_t all = 0, of_roles = 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < ledger.n; i++) {
        const stw_ledger_line *line = &ledger.lines[i];
        for (int w = 0; w < 2; w++) found += strncmp(line->from, words[w], strlen(words[w])) == 0;
        all += line->bytes;
        if (strncmp(line->from, "refers: ", 8) == 0) of_roles += line->bytes;
    }
    stw_role_peaks of[3];
    stw_program_walk_roles(plan->programs[0], 3, of);
    CU_ASSERT_EQUAL(found, 2);
    CU_ASSERT_EQUAL(all, plan->node_peaks[0].phase[p][STW_TIER_HOST].total);
    CU_ASSERT_EQUAL(of_roles, 8 * at(&of[2], p, STW_TIER_HOST));
    stw_plan_free(plan);
}

/* What the trainer's allocator reserves counts at the same moments as its bytes: a model that was
 * parked before the rollout loads has left its cache, too. */
static void reserves_are_of_their_moment(void) {
    const char *const settings[] = {"engine=megatron",
                                    "precision.params=bf16",
                                    "precision.master=fp32",
                                    "park.params=host",
                                    "park.grads=host",
                                    "park.moments=host",
                                    "roles=[{name: a, gpu_memory_utilization: 0.6}]",
                                    NULL};
    stw_plan *plan = case_zoo("Qwen3-8B", settings);
    derive(plan);
    const uint32_t k = plan->job->largest;
    const stw_phase load = STW_PHASE_LOAD, train = STW_PHASE_FORWARD_BACKWARD;
    const uint64_t walked = plan->peaks[k].phase[load][STW_TIER_GPU].total;
    const uint64_t shown = plan->shown[k].phase[load][STW_TIER_GPU].total;
    /* bf16 parameters and fp32 gradients of 8.19 G elements, which were there at other moments */
    CU_ASSERT_TRUE(plan->replayed[k].most[load].reserved_bytes > 48 * GIB);
    CU_ASSERT_TRUE(shown >= walked && shown - walked < GIB);
    const stw_peak *peak = &plan->shown[k].phase[train][STW_TIER_GPU];
    CU_ASSERT_EQUAL(stw_peak_reserved(peak), plan->replayed[k].most[train].reserved_bytes);
    stw_plan_free(plan);
}

/* A critic's bytes are beside what the trainer's allocator reserves for itself. */
static void reserves_are_the_trainers(void) {
    stw_plan *with = NULL, *without = NULL;
    CHECK_OK(try("Qwen3-8B", 1, "[{name: a, kind: critic}]", &with, err));
    CHECK_OK(try("Qwen3-8B", 1, "[]", &without, err));
    derive(with);
    derive(without);
    const stw_phase train = STW_PHASE_FORWARD_BACKWARD;
    stw_role_peaks of[2];
    stw_program_walk_roles(with->programs[0], 2, of);
    const stw_peak *both = &with->shown[0].phase[train][STW_TIER_GPU];
    const stw_peak *one = &without->shown[0].phase[train][STW_TIER_GPU];
    CU_ASSERT_TRUE(at(&of[1], train, STW_TIER_GPU) > 10 * GIB);
    CU_ASSERT_EQUAL(both->total, one->total + at(&of[1], train, STW_TIER_GPU));
    stw_plan_free(with);
    stw_plan_free(without);
}

/* verl pull request 4914: 70B on a node of 8 x 80 GB, with and without the trainer's model. */
static void trainer_model_on_a_rollout_node(void) {
    static const char *const with[] = {"false", "true"};
    uint64_t peak[2] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        char roles[256];
        stw_plan *plan = NULL;
        snprintf(roles, sizeof roles,
                 "[{name: a, with: none, nodes: 1, parallel: {tp: 8}, gpu_memory_utilization: 0.8, "
                 "max_model_len: 32k, free_cache_engine: false, builds_trainer_model: %s}]",
                 with[i]);
        CHECK_OK(try("Llama-3.1-70B", 5, roles, &plan, err));
        derive(plan);
        stw_plan_judge(plan);
        const uint32_t kind = stw_job_kind_of(plan->job, 32);
        CU_ASSERT_EQUAL(plan->job->kinds[kind].home, 1);
        CU_ASSERT_EQUAL(stw_job_placed_params(plan->job, kind), 0);
        peak[i] = plan->peaks[kind].phase[STW_PHASE_ROLLOUT][STW_TIER_GPU].total;
        CU_ASSERT_EQUAL(plan->peaks[kind].has[STW_PHASE_OPTIMIZER_STEP], false);
        CU_ASSERT_EQUAL(plan->verdict, i == 0 ? STW_VERDICT_FITS : STW_VERDICT_DOES_NOT_FIT);
        CU_ASSERT_EQUAL(stw_plan_verdict_of(plan, 0), STW_VERDICT_FITS);
        CU_ASSERT_EQUAL(stw_plan_verdict_of(plan, 1), plan->verdict);
        stw_plan_free(plan);
    }
    /* an eighth of the model in fp32, in chunks of rows that are no less */
    CU_ASSERT_TRUE(peak[1] - peak[0] >= 70553706496 / 8 * 4);
    CU_ASSERT_TRUE((double)(peak[1] - peak[0]) < 1.001 * 70553706496 / 8 * 4);
}

STW_TEST_MAIN("plan roles", {"nodes are shared out", nodes_are_shared_out},
              {"impossible roles are refused", impossible_roles_are_refused},
              {"dense weights and cache", dense_weights_and_cache},
              {"copies and padding", copies_and_padding}, {"experts and MLA", experts_and_mla},
              {"windows and states", windows_and_states}, {"share of SGLang", share_of_sglang},
              {"roles of every pair sum up", roles_of_every_pair_sum_up},
              {"roles have operations of some phases", roles_have_operations_of_some_phases},
              {"roles hold what they say", roles_hold_what_they_say},
              {"rollouts receive in buckets", rollouts_receive_in_buckets},
              {"a reference waits on the host", a_reference_waits_on_the_host},
              {"adapters share their base", adapters_share_their_base},
              {"a critic trains", a_critic_trains},
              {"nodes have one object store", nodes_have_one_object_store},
              {"the trainer is compared alone", the_trainer_is_compared_alone},
              {"a reference of Megatron-LM", a_reference_of_megatron},
              {"ledger names roles", ledger_names_roles},
              {"reserves are of their moment", reserves_are_of_their_moment},
              {"reserves are the trainer's", reserves_are_the_trainers},
              {"trainer's model on a rollout node", trainer_model_on_a_rollout_node})
