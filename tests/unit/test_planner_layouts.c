/* SPDX-License-Identifier: Apache-2.0 */
/* A search of layouts finds what planning every fixed layout finds; it keeps the tokens of a step,
 * does not depend on the number of threads, and leaves runs without `auto` alone. */
#include <math.h>

#include "engines/layouts.h"
#include "engines/megatron/stages.h"
#include "planner/layouts.h"
#include "planner/point.h"
#include "planner/size.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#define SEQ_LEN 4096

static stw_status finish(stw_plan *plan, stw_error *err) {
    stw_status status = stw_sim_plan(plan, NULL, err);
    return status == STW_STATUS_OK ? stw_plan_check(plan, true, err) : status;
}

typedef struct instance {
    const char *model, *engine, *memory;
    uint32_t gpus, nodes;
    uint64_t sequences;
    const char *more[2]; /* settings, or NULL */
} instance;

static stw_cluster cluster_of(const instance *in) {
    stw_cluster cluster = fixture_cluster(in->gpus);
    cluster.nodes = in->nodes;
    cluster.nic_bps = 25e9;
    CHECK_OK(stw_cluster_set(&cluster, "node.gpu.memory", in->memory, "test", err));
    return cluster;
}

/* The model of the test at hand, which its plans share. */
static stw_model *model_named(const char *name) {
    static stw_model *model;
    if (model != NULL && (name == NULL || strcmp(model->name, name) != 0)) {
        stw_model_free(model);
        model = NULL;
    }
    if (model == NULL && name != NULL)
        CHECK_OK(stw_model_open(name, STW_SOURCE_MODELS, &model, err));
    return model;
}

/* The plan with these settings. @return false: it is refused */
static bool plan_of(const instance *in, const char *const *settings, size_t n, stw_plan **out) {
    char engine[64], tokens[64], seq_len[64];
    const char *all[32] = {engine, tokens, seq_len};
    size_t n_all = 3;
    stw_error why = STW_ERROR_INIT;
    const stw_cluster cluster = cluster_of(in);
    const stw_point_options options = {.time_limit_s = 60};
    snprintf(engine, sizeof engine, "engine=%s", in->engine);
    snprintf(tokens, sizeof tokens, "batch.tokens_per_step=%llu",
             (unsigned long long)(in->sequences * SEQ_LEN));
    snprintf(seq_len, sizeof seq_len, "batch.seq_len=%d", SEQ_LEN);
    for (size_t i = 0; i < n; i++) all[n_all++] = settings[i];
    /* whether memory is split up is no question of layouts */
    if (strcmp(in->engine, "stowage") != 0) all[n_all++] = "allocator.expandable_segments=true";
    for (size_t i = 0; i < 2 && in->more[i] != NULL; i++) all[n_all++] = in->more[i];
    const stw_point_base base = {.model = model_named(in->model),
                                 .cluster = &cluster,
                                 .simulate = stw_sim_seconds,
                                 .finish = finish};
    stw_status status = stw_point_plan(&base, all, n_all, &options, out, &why);
    CU_ASSERT(status == STW_STATUS_OK || stw_point_refuses(status));
    return status == STW_STATUS_OK;
}

/* ---- every fixed layout ---- */

typedef struct space {
    uint64_t most[6]; /* tp, pp, vpp, cp, ep, micro_batch */
    bool reshard, replicas;
    uint64_t zero_stages;
} space;

/* What else a fixed layout sets. */
typedef struct extras {
    uint64_t replicas, zero_stage; /* 0: no such key */
    bool reshard, fused, sequence;
} extras;

static const char *const keys[] = {"parallel.tp", "parallel.pp", "parallel.vpp",
                                   "parallel.cp", "parallel.ep", "batch.micro_batch"};

typedef struct outcome {
    uint32_t planned, fit;
    double best_s;
} outcome;

static void plan_fixed(const instance *in, const uint64_t *value, const extras *x, outcome *out) {
    char text[12][96];
    const uint64_t chunks = value[1] * value[2], layers = stw_layout_layers(model_named(in->model));
    const char *settings[12];
    const uint64_t ranks = (uint64_t)in->gpus * in->nodes, ways = value[0] * value[1] * value[3];
    const uint64_t once = ranks % ways == 0 ? ranks / ways * value[5] : 0;
    stw_plan *plan = NULL;
    size_t n = 0;
    if (once == 0 || in->sequences % once != 0 || (x->sequence && value[0] == 1)) return;
    for (size_t k = 0; k < 6; k++)
        if (value[k] > 1)
            snprintf(text[n++], sizeof text[0], "%s=%llu", keys[k], (unsigned long long)value[k]);
    snprintf(text[n++], sizeof text[0], "batch.grad_accumulation=%llu",
             (unsigned long long)(in->sequences / once));
    if (x->sequence) snprintf(text[n++], sizeof text[0], "parallel.sequence_parallel=true");
    if (x->replicas > 1)
        snprintf(text[n++], sizeof text[0], "parallel.dp_replicate=%llu",
                 (unsigned long long)x->replicas);
    if (x->zero_stage > 0)
        snprintf(text[n++], sizeof text[0], "deepspeed.zero_stage=%llu",
                 (unsigned long long)x->zero_stage);
    if (!x->reshard) snprintf(text[n++], sizeof text[0], "fsdp.reshard_after_forward=false");
    if (x->fused) snprintf(text[n++], sizeof text[0], "loss.fused=true");
    if (layers % chunks != 0 && (value[2] & (value[2] - 1)) == 0) { /* others are not admitted */
        int used = snprintf(text[n], sizeof text[0], "megatron.pipeline_layout=");
        stw_megatron_propose_layout(layers, chunks, false, text[n] + used,
                                    sizeof text[0] - (size_t)used);
        n++;
    }
    for (size_t i = 0; i < n; i++) settings[i] = text[i];
    if (!plan_of(in, settings, n, &plan)) return;
    out->planned++;
    if (plan->verdict == STW_VERDICT_FITS) {
        const double seconds = stw_plan_iteration_s(plan);
        out->fit++;
        if (!(out->best_s <= seconds)) out->best_s = seconds;
    }
    stw_plan_free(plan);
}

/* Of ways and a micro batch. */
static void plan_extras(const instance *in, const space *s, const uint64_t *v, outcome *out) {
    const uint64_t ranks = (uint64_t)in->gpus * in->nodes;
    const uint64_t least = s->zero_stages > 0 ? 1 : 0;
    for (uint64_t r = 1; r <= (s->replicas ? ranks : 1); r *= 2)
        for (uint64_t stage = least; stage <= s->zero_stages; stage++)
            for (int last = 0; last < 8; last++) {
                const extras x = {r, stage, (last & 1) == 0, (last & 2) != 0, (last & 4) != 0};
                if ((x.reshard || s->reshard) && (!x.fused || s->reshard || stage > 0))
                    plan_fixed(in, v, &x, out);
            }
}

static void plan_all_fixed(const instance *in, const space *s, outcome *out) {
    uint64_t v[6];
    *out = (outcome){.best_s = NAN};
    for (v[0] = 1; v[0] <= s->most[0]; v[0] *= 2)
        for (v[1] = 1; v[1] <= s->most[1]; v[1] *= 2)
            for (v[2] = 1; v[2] <= s->most[2]; v[2]++)
                for (v[3] = 1; v[3] <= s->most[3]; v[3] *= 2)
                    for (v[4] = 1; v[4] <= s->most[4]; v[4] *= 2)
                        for (v[5] = 1; v[5] <= s->most[5]; v[5] *= 2) plan_extras(in, s, v, out);
}

/* ---- the search ---- */

static void check_same(const instance *in, const space *s) {
    static const char *const open[] = {"parallel=auto"};
    outcome fixed;
    stw_plan *plan = NULL;
    plan_all_fixed(in, s, &fixed);
    CU_ASSERT_FATAL(plan_of(in, open, 1, &plan));
    const stw_layout_search *l = &plan->layout_search;
    const double seconds = stw_plan_iteration_s(plan);
    printf("  %s, %s: %u fixed layouts, %u fit, best %.6g s; searched %llu: %.6g s (%s)\n",
           in->model, in->engine, fixed.planned, fixed.fit, fixed.best_s,
           (unsigned long long)l->admitted, seconds, l->rows[0].settings);
    CU_ASSERT(fixed.fit > 0);
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_FITS);
    CU_ASSERT_EQUAL(l->left + l->late, 0);
    CU_ASSERT(seconds <= fixed.best_s * (1 + STW_LEAST_GAIN) * (1 + 1e-9));
    CU_ASSERT(seconds >= fixed.best_s * (1 - 1e-9)); /* nothing that no fixed layout has */
    CU_ASSERT_EQUAL(stw_plan_iteration_tokens(plan), (double)(in->sequences * SEQ_LEN));
    stw_plan_free(plan);
}

static void dense_shards(void) {
    const instance in = {"Qwen3-0.6B", "stowage", "14 GiB", 4, 1, 8, {NULL}};
    check_same(&in, &(space){{1, 1, 1, 4, 1, 16}, true, true, 0});
}

static void experts_of_torch(void) {
    const instance in = {"DeepSeek-V2-Lite",
                         "fsdp2",
                         "140 GiB",
                         2,
                         2,
                         8,
                         {"fsdp.reshard_to_node=false", "parallel.cp=1"}};
    check_same(&in, &(space){{1, 1, 1, 1, 8, 16}, true, true, 0});
}

static void tensors_of_torch(void) {
    const instance in = {"Qwen3-1.7B", "fsdp2", "14 GiB", 4, 1, 4, {NULL}};
    check_same(&in, &(space){{4, 1, 1, 4, 1, 16}, true, true, 0});
}

static void zero_stages(void) {
    const instance in = {"Qwen3-1.7B", "deepspeed", "20 GiB", 4, 1, 16, {NULL}};
    check_same(&in, &(space){{1, 1, 1, 1, 1, 16}, false, false, 3});
}

static void dense_stages(void) {
    const instance in = {"Qwen3-1.7B", "megatron", "24 GiB", 4, 1, 8, {NULL}};
    check_same(&in, &(space){{4, 4, 8, 4, 1, 16}, false, false, 0});
}

static void experts_in_stages(void) {
    const instance in = {
        "Moonlight-16B-A3B", "megatron", "80 GiB", 4, 2, 8, {"parallel.etp=1", "parallel.pp=1"}};
    check_same(&in, &(space){{4, 1, 1, 4, 8, 16}, false, false, 0});
}

/* ---- what it depends on ---- */

static void choose(stw_run_spec *run, const instance *in, uint32_t jobs, bool fits_only,
                   stw_layout_search *out) {
    const stw_cluster cluster = cluster_of(in);
    const stw_layouts_options options = {.time_limit_s = 60,
                                         .jobs = jobs,
                                         .fits_only = fits_only,
                                         .simulate = stw_sim_seconds,
                                         .finish = finish};
    CHECK_OK(stw_run_spec_set(run, "engine", in->engine, "test", err));
    CHECK_OK(
        stw_layouts_choose(model_named(in->model), &cluster, run, &options, run->pool, out, err));
}

static void threads_do_not_count(void) {
    const instance in = {"Moonlight-16B-A3B", "megatron", "80 GiB", 8, 2, 16, {NULL}};
    stw_layout_search one, many;
    stw_run_spec run[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(stw_run_spec_init(&run[i], err));
        CHECK_OK(stw_run_spec_set(&run[i], "parallel", "auto", "test", err));
        choose(&run[i], &in, i == 0 ? 1 : 3, false, i == 0 ? &one : &many);
        CU_ASSERT_FALSE(stw_run_spec_is_open(&run[i]));
    }
    CU_ASSERT(one.left > 0); /* more than all of which are looked at */
    CU_ASSERT_EQUAL(one.planned, many.planned);
    CU_ASSERT_EQUAL(one.too_slow, many.too_slow);
    CU_ASSERT_EQUAL_FATAL(one.n_rows, many.n_rows);
    for (uint32_t i = 0; i < one.n_rows; i++)
        CU_ASSERT_STRING_EQUAL(one.rows[i].settings, many.rows[i].settings);
    CU_ASSERT_EQUAL(one.planned + one.too_slow + one.too_big + one.refused + one.left,
                    one.admitted);
    stw_run_spec_free(&run[0]);
    stw_run_spec_free(&run[1]);
}

/* Keys that are set stay, whatever comes first; the short form searches what was set before it. */
static void set_keys_stay(void) {
    const instance in = {"Qwen3-1.7B", "megatron", "24 GiB", 4, 1, 16, {NULL}};
    static const char *const settings[][2] = {{"parallel.tp=2", "parallel.search=all"},
                                              {"parallel=auto", "parallel.tp=2"},
                                              {"parallel.tp=2", "parallel=auto"}};
    for (int i = 0; i < 3; i++) {
        stw_run_spec run;
        stw_cluster cluster = cluster_of(&in);
        stw_layout_search found;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_specs_set_all(&cluster, &run, settings[i], 2, "--set", err));
        const uint32_t searched = stw_run_spec_searched(&run, ~0u);
        CU_ASSERT_EQUAL((searched >> STW_SEARCH_TP & 1) != 0, i == 2);
        CU_ASSERT((searched >> STW_SEARCH_PP & 1) != 0);
        choose(&run, &in, 1, true, &found);
        if (i < 2) CU_ASSERT_EQUAL(run.parallel.tp, 2);
        CU_ASSERT_EQUAL((strstr(found.searched, "parallel.tp") != NULL), i == 2);
        stw_run_spec_free(&run);
    }
}

/* A value of sequence parallelism that was given stays; else both are searched, also where tp alone
 * is searched. Experts with tp need it. */
static void sequence_parallelism(void) {
    static const char *const models[] = {"Qwen3-1.7B", "DeepSeek-V2-Lite"};
    static const struct {
        const char *settings[2];
        int given; /* -1: it is searched */
    } cases[] = {{{"parallel=auto", "parallel.sequence_parallel=false"}, false},
                 {{"parallel=auto", "parallel.sequence_parallel=true"}, true},
                 {{"parallel.sequence_parallel=true", "parallel.tp=auto"}, true},
                 {{"parallel=auto", "parallel.tp=2"}, -1},
                 {{"parallel.tp=auto", "batch.grad_accumulation=4"}, -1}};
    for (size_t i = 0; i < 10; i++) {
        const instance in = {models[i / 5], "megatron", "140 GiB", 4, 1, 16, {NULL}};
        const int given = cases[i % 5].given;
        stw_run_spec run;
        stw_cluster cluster = cluster_of(&in);
        stw_layout_search found;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_specs_set_all(&cluster, &run, cases[i % 5].settings, 2, "--set", err));
        choose(&run, &in, 2, false, &found);
        if (given >= 0) CU_ASSERT_EQUAL(run.parallel.sequence_parallel, given != 0);
        if (given > 0) CU_ASSERT(run.parallel.tp > 1);
        if (run.parallel.sequence_parallel) CU_ASSERT(run.parallel.tp > 1);
        if (i >= 5) CU_ASSERT_EQUAL(run.parallel.sequence_parallel, run.parallel.tp > 1);
        CU_ASSERT_EQUAL(strstr(found.searched, "sequence_parallel") != NULL, given < 0);
        CU_ASSERT(found.admitted > 0 && found.rows[0].verdict != STW_VERDICT_DOES_NOT_FIT);
        stw_run_spec_free(&run);
    }
}

static void files_may_be_open(void) {
    static const struct {
        const char *text;
        bool all;
        uint32_t keys;
    } cases[] = {{"parallel: auto\n", true, 0},
                 {"parallel: {search: all, tp: 2}\n", true, 0},
                 {"parallel: {tp: auto}\n", false, 1u << STW_SEARCH_TP},
                 {"fsdp: {reshard_after_forward: auto}\nloss: {fused: auto}\n", false,
                  1u << STW_SEARCH_OWN_1 | 1u << STW_SEARCH_FUSED_LOSS},
                 {"parallel: {tp: 2}\n", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_run_spec run;
        stw_tree *tree = NULL;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_tree_parse_yaml("run.yaml", cases[i].text, strlen(cases[i].text), &tree, err));
        CHECK_OK(stw_run_spec_from_node(tree, tree->root, &run, err));
        CU_ASSERT_EQUAL(run.search_all, cases[i].all);
        CU_ASSERT_EQUAL(run.searches.keys, cases[i].keys);
        CU_ASSERT_EQUAL(stw_run_spec_is_open(&run), cases[i].all || cases[i].keys != 0);
        stw_tree_free(tree);
        stw_run_spec_free(&run);
    }
}

static void closed_runs_are_left_alone(void) {
    const instance in = {"Qwen3-1.7B", "megatron", "24 GiB", 4, 1, 16, {NULL}};
    stw_layout_search found = {.searched = NULL};
    stw_run_spec run;
    CHECK_OK(stw_run_spec_init(&run, err));
    choose(&run, &in, 1, false, &found);
    CU_ASSERT_PTR_NULL(found.searched);
    CU_ASSERT_EQUAL(run.parallel.pp, 1);
    CU_ASSERT_EQUAL(run.batch.seq_len, 0);
    stw_run_spec_free(&run);
}

/* What a search changes is said, also where it is a key's default: the words are settings of the
 * same layout. */
static void words_are_the_layout(void) {
    const instance in = {"Phi-3-mini", "megatron", "24 GiB", 8, 1, 16, {NULL}};
    static const char *const open[] = {"parallel.pp=4", "megatron.first_stage_layers=2",
                                       "parallel=auto"};
    stw_plan *plan = NULL;
    CU_ASSERT_FATAL(plan_of(&in, open, 3, &plan));
    const stw_layout_search *l = &plan->layout_search;
    CU_ASSERT_FATAL(l->n_rows > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(l->rows[0].settings, "megatron.first_stage_layers=0"));
    stw_plan_free(plan);
}

/* ---- the time ---- */

/* Without time no layout is looked at: that none fits is not known then. */
static void time_over_is_no_answer(void) {
    const instance in = {"Moonlight-16B-A3B", "megatron", "80 GiB", 4, 2, 16, {NULL}};
    const stw_cluster cluster = cluster_of(&in);
    const stw_layouts_options options = {
        .time_limit_s = 1e-9, .jobs = 1, .simulate = stw_sim_seconds, .finish = finish};
    stw_layout_search found = {.searched = NULL};
    stw_run_spec run;
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_run_spec_set(&run, "engine", in.engine, "test", err));
    CHECK_OK(stw_run_spec_set(&run, "parallel", "auto", "test", err));
    CHECK_OK(
        stw_layouts_choose(model_named(in.model), &cluster, &run, &options, run.pool, &found, err));
    CU_ASSERT(found.late > 0 && found.planned == 0);
    CHECK_FAILS(stw_layouts_settle(&found, STW_VERDICT_DOES_NOT_FIT, 1, err), STW_STATUS_TIME_LIMIT,
                "after 0 of");
    CHECK_OK(stw_layouts_settle(&found, STW_VERDICT_AT_RISK, 1, err));
    found.late = 0;
    CHECK_OK(stw_layouts_settle(&found, STW_VERDICT_DOES_NOT_FIT, 1, err));
    stw_run_spec_free(&run);
}

/* The same of sizes: a verdict of its own, not "does not fit". */
static void sizes_without_time(void) {
    const instance in = {"Qwen3-1.7B", "megatron", "24 GiB", 4, 1, 16, {NULL}};
    const stw_cluster cluster = cluster_of(&in);
    const char *const settings[] = {"engine=megatron"};
    const stw_point_base base = {.model = model_named(in.model),
                                 .cluster = &cluster,
                                 .settings = settings,
                                 .n_settings = 1,
                                 .simulate = stw_sim_seconds,
                                 .finish = finish};
    const stw_point_base *bases[] = {&base};
    const stw_size_options options = {.time_limit_s = 1e-9, .jobs = 1};
    stw_size_answer answer = {.model = base.model, .name = "test", .cluster = cluster};
    stw_pool *pool = stw_pool_new();
    CHECK_OK(stw_size_find(bases, &options, pool, &answer, 1, err));
    CU_ASSERT_FALSE(answer.fits);
    CU_ASSERT_EQUAL(answer.row.verdict, STW_SWEEP_TIME_LIMIT);
    CU_ASSERT(answer.late > 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(answer.row.reason);
    CU_ASSERT_PTR_NOT_NULL(strstr(answer.row.reason, "raise --time-limit"));
    stw_pool_free(pool);
}

/* ---- refusals ---- */

static stw_status plan_settings(const char *const *settings, size_t n, stw_plan **out,
                                stw_error *err) {
    const instance in = {"Qwen3-0.6B", "stowage", "40 GiB", 4, 1, 0, {NULL}};
    const stw_cluster cluster = cluster_of(&in);
    const stw_point_options options = {.time_limit_s = 60};
    const stw_point_base base = {.model = model_named(in.model),
                                 .cluster = &cluster,
                                 .simulate = stw_sim_seconds,
                                 .finish = finish};
    stw_status status = stw_point_plan(&base, settings, n, &options, out, err);
    if (status == STW_STATUS_OK) stw_plan_free(*out);
    return status;
}

static void refusals(void) {
    static const char *const tensor[] = {"parallel.tp=auto"};
    static const char *const tokens[] = {"batch.tokens_per_step=100000", "parallel=auto"};
    static const char *const few[] = {"batch.tokens_per_step=4096", "batch.seq_len=4096",
                                      "batch.grad_accumulation=auto"};
    static const char *const wrong[] = {"batch.tokens_per_step=4096"};
    static const char *const right[] = {"batch.tokens_per_step=16384"};
    static const char *const follows[] = {"batch.tokens_per_step=131072",
                                          "batch.grad_accumulation=auto"};
    static const char *const role[] = {"roles.0.name=r", "roles.0.parallel.tp=auto"};
    stw_plan *plan = NULL;
    CHECK_FAILS(plan_settings(tensor, 1, &plan, err), STW_STATUS_BAD_INPUT, "parallel.tp");
    CHECK_FAILS(plan_settings(tokens, 2, &plan, err), STW_STATUS_BAD_INPUT,
                "a multiple of batch.seq_len");
    CHECK_FAILS(plan_settings(few, 3, &plan, err), STW_STATUS_BAD_INPUT, "no layout divides");
    CHECK_FAILS(plan_settings(wrong, 1, &plan, err), STW_STATUS_BAD_INPUT, "expected 16384");
    CHECK_FAILS(plan_settings(role, 2, &plan, err), STW_STATUS_BAD_INPUT, "parallel.tp");
    CHECK_OK(plan_settings(right, 1, &plan, err));
    CHECK_OK(plan_settings(follows, 2, &plan, err));
}

/* ---- files ---- */

static void file_holds_the_search(void) {
    const instance in = {"Qwen3-0.6B", "fsdp2", "14 GiB", 4, 1, 16, {NULL}};
    static const char *const open[] = {"parallel=auto"};
    stw_plan *plan = NULL, *read = NULL;
    stw_text text = STW_TEXT_INIT;
    CU_ASSERT_FATAL(plan_of(&in, open, 1, &plan));
    CHECK_OK(stw_plan_to_json(plan, &text, err));
    CHECK_OK(stw_plan_parse("plan.json", text.data, text.length, &read, err));
    const stw_layout_search *a = &plan->layout_search, *b = &read->layout_search;
    CU_ASSERT_STRING_EQUAL(a->searched, b->searched);
    CU_ASSERT_EQUAL(a->admitted, b->admitted);
    CU_ASSERT_EQUAL_FATAL(a->n_rows, b->n_rows);
    for (uint32_t i = 0; i < a->n_rows; i++)
        CU_ASSERT_STRING_EQUAL(a->rows[i].settings, b->rows[i].settings);
    stw_plan_free(read);
    stw_plan_free(plan);
    stw_text_free(&text);
    (void)model_named(NULL);
}

int main(void) {
    static const stw_test tests[] = {
        {"dense shards equal all fixed layouts", dense_shards},
        {"experts of fsdp2 equal all fixed layouts", experts_of_torch},
        {"tensor parallelism of fsdp2 equals all fixed layouts", tensors_of_torch},
        {"ZeRO stages equal all fixed layouts", zero_stages},
        {"pipeline stages equal all fixed layouts", dense_stages},
        {"experts in stages equal all fixed layouts", experts_in_stages},
        {"the number of threads does not count", threads_do_not_count},
        {"keys that are set stay", set_keys_stay},
        {"sequence parallelism is searched or stays", sequence_parallelism},
        {"files may be open", files_may_be_open},
        {"runs without auto are left alone", closed_runs_are_left_alone},
        {"words are the layout", words_are_the_layout},
        {"time that is over is no answer", time_over_is_no_answer},
        {"nor is it for sizes", sizes_without_time},
        {"refusals", refusals},
        {"a plan file holds the search", file_holds_the_search},
    };
    return stw_test_run_all("planner_layouts", tests, sizeof tests / sizeof tests[0]);
}
