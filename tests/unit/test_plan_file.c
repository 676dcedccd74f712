/* SPDX-License-Identifier: Apache-2.0 */
/* Plan files: exact round trips, and every way in which a file can be wrong. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include <math.h>
#include <unistd.h>

#include "core/file.h"
#include "plan/files/model_json.h"
#include "plan/files/verdict.h"
#include "tests/unit/edited.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

static const fixture_size small = {3, 256, 512, 1000};
static const stw_place mixed[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_CPU, FIXTURE_NVME};
static const uint32_t mixed_units[] = {20, 40, 60, 0};

static stw_plan *mixed_plan(uint32_t gpus, const char *const *settings) {
    stw_cluster cluster = fixture_cluster(gpus);
    stw_plan *plan = fixture_plan(small, &cluster, settings);
    fixture_state(plan, 4, mixed, mixed_units);
    CHECK_OK(stw_plan_derive(plan, err));
    stw_plan_judge(plan);
    return plan;
}

/* What a derived plan is in its file; the caller frees it. */
static char *plan_text(const stw_plan *plan) {
    stw_text text = STW_TEXT_INIT;
    CHECK_OK(stw_plan_to_json(plan, &text, err));
    return text.data;
}

static stw_status parse_plan(const char *text, stw_plan **out, stw_error *err) {
    return stw_plan_parse("plan.json", text, strlen(text), out, err);
}

/* What is parsed and written again is the same text, and the same plan. */
static void check_round_trip(const stw_plan *plan) {
    stw_plan *again = NULL;
    char *text = plan_text(plan);
    CHECK_OK(parse_plan(text, &again, err));
    if (again == NULL) {
        free(text);
        return;
    }
    char *second = plan_text(again);
    CU_ASSERT_STRING_EQUAL(text, second);
    CHECK_OK(stw_plan_check(again, true, err));
    CU_ASSERT_STRING_EQUAL(again->model->digest, plan->model->digest);
    CU_ASSERT_EQUAL(again->verdict, plan->verdict);
    CU_ASSERT_EQUAL(again->job->n_kinds, plan->job->n_kinds);
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        CU_ASSERT_STRING_EQUAL(again->layouts[k]->hash, plan->layouts[k]->hash);
        CU_ASSERT_EQUAL(memcmp(&again->peaks[k], &plan->peaks[k], sizeof plan->peaks[k]), 0);
    }
    for (uint32_t n = 0; n < plan->job->n_node_kinds; n++)
        CU_ASSERT_EQUAL(
            memcmp(&again->node_peaks[n], &plan->node_peaks[n], sizeof plan->node_peaks[n]), 0);
    free(second);
    free(text);
    stw_plan_free(again);
}

static void round_trips(void) {
    const char *const master[] = {"precision.master=fp32", "precision.params=bf16", NULL};
    const char *const roles[] = {"load.weights=/data/w.safetensors", "batch.seq_len=8192", NULL};
    const char *const *const settings[] = {NULL, master, roles};
    for (size_t s = 0; s < 3; s++)
        for (uint32_t gpus = 1; gpus <= 3; gpus += 2) {
            stw_plan *plan = mixed_plan(gpus, settings[s]);
            check_round_trip(plan);
            stw_plan_free(plan);
        }
}

static void round_trips_of_fsdp2(void) {
    const char *const plain[] = {"engine=fsdp2", NULL};
    const char *const parked[] = {"engine=fsdp2", "park.moments=host", NULL};
    const char *const *const settings[] = {plain, parked};
    for (size_t s = 0; s < 2; s++) {
        stw_cluster cluster = fixture_cluster(4);
        stw_plan *plan = fixture_plan(small, &cluster, settings[s]);
        fixture_state(plan, 1, mixed, NULL);
        plan->decisions.prefetch.by_group = true;
        plan->decisions.prefetch.depth = 1;
        plan->decisions.prefetch.bucket_bytes = 0;
        CHECK_OK(stw_plan_derive(plan, err));
        check_round_trip(plan);
        stw_plan_free(plan);
    }
}

static void round_trip_over_nodes(void) {
    stw_cluster cluster = fixture_cluster(4);
    cluster.nodes = 3;
    cluster.nic_bps = 50e9;
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    fixture_state(plan, 4, mixed, mixed_units);
    CHECK_OK(stw_plan_derive(plan, err));
    CU_ASSERT_TRUE(plan->job->n_node_kinds > 1);
    check_round_trip(plan);
    char *text = plan_text(plan);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"ranks\": \"1-3,"));
    free(text);
    stw_plan_free(plan);
}

static void evidence_round_trips(void) {
    stw_plan *plan = mixed_plan(2, NULL);
    stw_solver_stage stages[] = {{"seconds", 1.25, 1.249, 8e-4, 0.05}, {"gpu", 3, NAN, NAN, 0}};
    stw_price prices[] = {{"gpu_memory", "optimizer_step", 8, "GiB", -1e-3},
                          {"pcie", NULL, 0.1, NULL, NAN}};
    stw_binding binding = {"gpu memory", "load", 1ull << 40, 1, {{"node.gpu.memory", "1024GiB"}}};
    stw_fix fix = {
        2, {{"node.host.memory", "1 TiB"}, {"nodes", "2"}}, "plans in 1.3 s", true, 2.5, 8192};
    plan->cluster.gpu.memory_bytes = 1545ull << 20; /* little more than context and NCCL */
    stw_plan_judge(plan);
    plan->outcome = STW_OUTCOME_INFEASIBLE;
    plan->solver =
        (stw_solver_report){"glpk", "5.0", 0.1, 10, 20, 143, 1.25, 1.249, 8e-4, 2, stages};
    plan->n_prices = 2;
    plan->prices = prices;
    plan->n_bindings = plan->n_fixes = 1;
    plan->bindings = &binding;
    plan->tried = "nodes, parallel.cp";
    plan->fixes = &fix;
    plan->time_s[STW_PHASE_OPTIMIZER_STEP] = 0.1;
    plan->objective_s = 1.0 / 3.0;
    check_round_trip(plan);
    stw_plan *again = NULL;
    char *text = plan_text(plan);
    CHECK_OK(parse_plan(text, &again, err));
    CU_ASSERT_EQUAL(again->outcome, STW_OUTCOME_INFEASIBLE);
    CU_ASSERT_STRING_EQUAL(again->fixes[0].why, "plans in 1.3 s");
    CU_ASSERT_EQUAL(again->fixes[0].n_changes, 2);
    CU_ASSERT_EQUAL(again->fixes[0].iteration_s, 2.5);
    CU_ASSERT_EQUAL(again->fixes[0].tokens_per_s, 8192);
    CU_ASSERT_STRING_EQUAL(again->fixes[0].changes[1].set, "nodes");
    CU_ASSERT_STRING_EQUAL(again->tried, "nodes, parallel.cp");
    CU_ASSERT_EQUAL(again->bindings[0].enough_bytes, 1ull << 40);
    CU_ASSERT_EQUAL(again->bindings[0].n_changes, 1);
    CU_ASSERT_STRING_EQUAL(again->bindings[0].changes[0].value, "1024GiB");
    CU_ASSERT_TRUE(isnan(again->time_s[STW_PHASE_LOAD]));
    CU_ASSERT_EQUAL(again->objective_s, 1.0 / 3.0);
    free(text);
    stw_plan_free(again);
    stw_plan_free(plan);
}

static void a_zoo_model_is_whole_in_the_file(void) {
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    stw_cluster cluster = fixture_cluster(8);
    CHECK_OK(stw_run_spec_init(&run, err));
    CHECK_OK(stw_model_read_config(STW_SOURCE_MODELS "/zoo/Qwen3-30B-A3B.json", STW_SOURCE_MODELS,
                                   &model, err));
    CHECK_OK(stw_plan_new(model, &cluster, &run, &plan, err));
    if (plan == NULL) return;
    stw_decisions *d = &plan->decisions;
    d->blocks = stw_pool_array(plan->pool, model->n_groups, sizeof *d->blocks);
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.transformer)
            d->blocks[d->n_blocks++] =
                (stw_block_decision){g, STW_ACT_RECOMPUTE, model->groups[g].count};
    d->prefetch.depth = 3;
    d->prefetch.bucket_bytes = 64ull << 20;
    d->load = STW_LOAD_SHARDED_READ;
    fixture_state(plan, 2, mixed, mixed_units);
    CHECK_OK(stw_plan_derive(plan, err));
    check_round_trip(plan);
    stw_plan_free(plan);
}

/* Every fact of a group, and of the model. */
static void every_fact_is_in_the_file(void) {
    static const stw_block_facts all = {.transformer = true,
                                        .vision = true,
                                        .decoder = true,
                                        .gated = true,
                                        .wide_norms = true,
                                        .capped_scores = true,
                                        .complex_rotary = true,
                                        .wide_scores = true,
                                        .sigmoid_scores = true,
                                        .hidden = 1,
                                        .q_heads = 6,
                                        .kv_heads = 3,
                                        .qk_dim = 4,
                                        .v_dim = 5,
                                        .kv_rank = 6,
                                        .q_rank = 7,
                                        .window = 8,
                                        .linear_k_heads = 5,
                                        .linear_v_heads = 10,
                                        .linear_k_dim = 11,
                                        .linear_v_dim = 12,
                                        .ffn = 13,
                                        .experts = 15,
                                        .experts_per_token = 14,
                                        .expert_ffn = 16,
                                        .shared_ffn = 17,
                                        .norms = 18,
                                        .rotary_dim = 2,
                                        .tap_first = 19,
                                        .tap_step = 20};
    stw_model *model = NULL, *again = NULL;
    stw_tree *tree = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    CHECK_OK(stw_model_read_config(STW_SOURCE_MODELS "/zoo/Qwen3-0.6B.json", STW_SOURCE_MODELS,
                                   &model, err));
    if (model == NULL) return;
    model->groups[1].facts = all;
    model->soft_capped = true;
    stw_json_begin_object(json, NULL);
    stw_model_write_json(model, json, "model");
    stw_json_end(json);
    CHECK_OK(stw_json_finish(json, &text, err));
    CHECK_OK(stw_tree_parse_json("model.json", text.data, text.length, &tree, err));
    CHECK_OK(stw_model_from_node(tree, stw_node_get(tree->root, "model"), &again, err));
    if (again != NULL) {
        CU_ASSERT_EQUAL(memcmp(&again->groups[1].facts, &all, sizeof all), 0);
        CU_ASSERT_TRUE(again->soft_capped);
    }
    stw_model_free(again);
    stw_tree_free(tree);
    stw_text_free(&text);
    stw_model_free(model);
}

/* ---- files that are wrong ---- */

typedef struct edit {
    const char *anchor, *from, *to;
    const char *word; /* of the error */
} edit;

static const edit refused[] = {
    /* the format */
    {"", "stowage.plan/1", "stowage.plan/2", "stowage.plan/1"},
    {"", "stowage.plan/1", "stowage.run/1", "stowage.plan/1"},
    {"\"outcome\"", "\"optimal\"", "\"best\"", "optimal, feasible"},
    {"\"verdict\"", "\"fits\"", "null", "a string"},
    {"\"cluster\"", "\"nodes\": 1", "\"nodes\": -1", "nodes"},
    {"\"cluster\"", "\"nodes\": 1", "\"nods\": 1", "nods"},
    {"\"run\"", "\"engine\": \"stowage\"", "\"engine\": \"stow\"", "engine"},
    {"\"solver\"", "\"seconds\": 0.0", "\"seconds\": -1", "not negative"},
    {"\"solver\"", "\"rows\": 0", "\"rows\": 4294967296", "4294967295"},
    {"\"solver\"", "\"rows\": 0", "\"rows\": 0.5", "whole number"},
    /* decisions */
    {"\"decisions\"", "\"params\": \"gpu\"", "\"params\": \"moon\"", "gpu, host or nvme"},
    {"\"decisions\"", "\"update\": \"resident\"", "\"update\": \"later\"", "resident, stream"},
    {"\"decisions\"", "\"group\": \"flat\"", "\"group\": \"all\"", "flat"},
    {"\"decisions\"", "\"master\": null", "\"master\": \"gpu\"", "no such state"},
    {"\"decisions\"", "\"exp_avg_sq\": \"gpu\"", "\"exp_avg_sq\": \"host\"", "tier of exp_avg"},
    {"\"decisions\"", "\"units\": 20", "\"units\": 21", "quanta"},
    {"\"decisions\"", "\"units\": 20", "\"units\": -20", "not negative"},
    {"\"decisions\"", "\"units\": 20", "\"units\": 4294967296", "4294967295"},
    {"\"decisions\"", "\"count\": 40960", "\"count\": 40961", "decisions[0].count"},
    {"\"decisions\"", "\"group\": \"layer\"", "\"group\": \"lair\"", "group of the model"},
    {"\"decisions\"", "\"activations\": \"keep\"", "\"activations\": \"drop\"", "recompute"},
    {"\"decisions\"", "\"count\": 3", "\"count\": 2", "activation policies cover 2"},
    {"\"prefetch\"", "\"depth\": 3", "\"depth\": 0", "live"},
    {"\"prefetch\"", "\"depth\": 3", "\"depth\": 5000", "at most 1024"},
    {"\"prefetch\"", "\"live\": 3", "\"live\": 4", "live"},
    {"\"decisions\"", "1048576", "9223372036854775807", "at most"},
    {"\"prefetch\"", "\"unit\": \"bucket\"", "\"unit\": \"bag\"", "bucket or group"},
    {"\"load\"", "\"rank0_broadcast\"", "\"telepathy\"", "sharded_read"},
    /* what follows from them */
    {"\"movements\"", "\"by\": \"stowage\"", "\"by\": \"fsdp2\"", "movements[0].by"},
    {"\"movements\"", "\"executable\": true", "\"executable\": false", "movements[0].executable"},
    {"\"layout\"", "\"version\": 2", "\"version\": 1", "version"},
    {"\"regions\"", "\"offset\": 0", "\"offset\": 4096",
     "regions[0].offset: found the number 4096"},
    {"\"regions\"", "\"bytes\": 163840", "\"bytes\": 163844", "the decisions give 163840"},
    {"\"regions\"", "\"tier\": \"gpu\"", "\"tier\": \"host\"", "regions[0].tier"},
    {"\"regions\"", "\"component\": \"params\"", "\"component\": \"grads\"",
     "regions[0].component"},
    {"\"regions\"", "\"first_unit\": 20", "\"first_unit\": 19", "regions[1].first_unit"},
    {"\"decisions\"", "1048576", "2097152", "layout.hash.rank0"},
    {"\"rank_map\"", "\"ranks\": \"0\"", "\"ranks\": \"0-1\"", "rank_map.kinds[0].ranks"},
    {"\"rank_map\"", "\"node_kind\": \"0\"", "\"node_kind\": \"1\"", "rank_map.kinds[0].node_kind"},
    /* figures */
    {"\"gpu_bytes\"", "\"load\": ", "\"load\": -", "not negative"},
    {"\"gpu_bytes\"", "\"load\": ", "\"rollout\": ", "no movement rollout"},
    {"\"peaks\"", "\"peak\": ", "\"peek\": ", "peek"},
    {"\"phases\"", "\"device\": ", "\"device\": -", "not negative"},
    {"\"phases\"", "\"device\": ", "\"device\": \"many\", \"d\": ", "whole number"},
    {"\"phases\"", "\"components\": {", "\"components\": {\"ballast\": 1,", "ballast"},
    /* 512 MiB and 2 of page tables */
    {"\"phases\"", "\"context\": 538968064", "\"context\": 538968064000000", "components.context"},
    {"\"phases\"", "\"optimizer_step\": {", "\"optimiser_step\": {", "optimiser_step"},
    {"\"nodes\": [", "\"page_locked\": ", "\"locked\": ", "page_locked"},
    {"\"nodes\": [", "\"host\": ", "\"host\": -", "not negative"},
    {"\"first_node\"", "\"first_node\": 0", "\"first_node\": 1", "first_node of role trainer"},
    {"\"first_node\"", "\"gpu\": ", "\"gpu\": 1", "gpu of role trainer"},
    {"\"first_node\"", "\"verdict\": \"fits", "\"verdict\": \"is unknown",
     "verdict of role trainer"},
    {"\"time_s\"", "\"load\": null", "\"load\": -1.0", "not negative"},
    {"\"time_s\"", "\"load\": null", "\"load\": \"long\"", "a number"},
    {"\"time_s\"", "\"load\": null,", "", "load"},
    /* the model */
    {"\"model\": {", "\"digest\": \"", "\"digest\": \"0", "another model"},
    {"\"tensors\": [", "0.embed.weight", "0.embed.wait", "another model"},
    {"\"tensors\": [", "\"BF16\"", "\"F32\"", "another model"},
    {"\"tensors\": [", "\"BF16\"", "\"F33\"", "a dtype"},
    {"\"tensors\": [", "1000, 256]", "-1000, 256]", "dimension"},
    {"\"tensors\": [", "1000, 256]", "9223372036854775807, 9223372036854775807]",
     "9223372036854775807"},
    {"\"tensors\": [", "1000, 256]", "1, 1, 1, 1, 1, 1, 1, 1, 1]", "at most 8"},
    {"\"tensors\": [", "\"BF16\", 1, 0", "\"BF16\", 7, 0", "index of a group"},
    {"\"tensors\": [", "\"BF16\", 1, 1", "\"BF16\", 1, 2", "expected 1"},
    {"\"tensors\": [", "false, 1", "0, 1", "true or false"},
    {"\"model\": {", "\"params\": ", "\"params\": 1", "the tensors give"},
    {"\"model\": {", "\"vocab\": 1000", "\"vocab\": 99999999999", "4294967295"},
    {"\"model\": {", "\"hidden\": 256,", "\"hidden\": 256, \"hidden\": 257,", "hidden"},
    {"\"facts\": {", "\"hidden\": 256", "\"hiden\": 256", "did you mean \"hidden\""},
    {"\"groups\": [\n", "\"count\": 3", "\"count\": 4", "the tensors give 3"},
    {"\"groups\": [\n", "\"tensors\": 18", "\"tensors\": 17", "the tensors give 18"},
};

static void wrong_files_are_refused(void) {
    stw_plan *plan = mixed_plan(1, NULL);
    plan->solver.seconds = 0;
    char *text = plan_text(plan);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const edit *e = &refused[i];
        stw_plan *read = NULL;
        char *wrong = edited(text, e->anchor, e->from, e->to);
        CHECK_FAILS(parse_plan(wrong, &read, err), STW_STATUS_BAD_INPUT, e->word);
        CU_ASSERT_PTR_NULL(read);
        stw_plan_free(read);
        free(wrong);
    }
    free(text);
    stw_plan_free(plan);
}

static void errors_have_a_place(void) {
    stw_plan *plan = mixed_plan(1, NULL), *read = NULL;
    char *text = plan_text(plan);
    char *wrong = edited(text, "\"regions\"", "\"offset\": 0", "\"offset\": 12345");
    stw_error err = STW_ERROR_INIT;
    CU_ASSERT_EQUAL(parse_plan(wrong, &read, &err), STW_STATUS_BAD_INPUT);
    int line = 1;
    for (const char *p = wrong; p < strstr(wrong, "12345"); p++) line += *p == '\n';
    CU_ASSERT_EQUAL(err.line, line);
    CU_ASSERT_STRING_EQUAL(err.where, "plan.json");
    free(wrong);
    free(text);
    stw_plan_free(plan);
}

/* Every member of the root but the schema's version is needed: without any of them no plan. */
static void every_member_is_required(void) {
    stw_plan *plan = mixed_plan(2, NULL);
    char *text = plan_text(plan);
    size_t members = 0;
    for (const char *p = text; (p = strstr(p, "\n  \"")) != NULL; p++) {
        char from[64], to[80];
        snprintf(from, sizeof from, "%.*s", (int)(strchr(p + 4, '"') - p), p);
        snprintf(to, sizeof to, "\n  \"no_%s", from + 4);
        stw_plan *read = NULL;
        char *wrong = edited(text, "", from, to);
        CHECK_FAILS(parse_plan(wrong, &read, err), STW_STATUS_BAD_INPUT, from + 4);
        stw_plan_free(read);
        free(wrong);
        members++;
    }
    CU_ASSERT_EQUAL(members, 25);
    free(text);
    stw_plan_free(plan);
}

static void truncated_files_are_refused(void) {
    stw_plan *plan = mixed_plan(1, NULL), *read = NULL;
    char *text = plan_text(plan);
    size_t length = strlen(text), step = length / 97;
    for (size_t n = 0; n < length - 1; n += step) {
        CU_ASSERT_EQUAL(stw_plan_parse("plan.json", text, n, &read, NULL), STW_STATUS_BAD_INPUT);
        CU_ASSERT_PTR_NULL(read);
    }
    free(text);
    stw_plan_free(plan);
}

/* What follows from the decisions is not believed: any other figure is refused where it stands. */
static void falsified_figures_are_refused(void) {
    static const struct {
        const char *anchor, *from, *place;
    } figures[] = {{"\"gpu_bytes\"", "\"optimizer_step\": ", "peaks.gpu_bytes.optimizer_step"},
                   {"\"gpu_bytes\"", "\"peak\": ", "peaks.gpu_bytes.peak"},
                   {"\"host_bytes\"", "\"load\": ", "peaks.host_bytes.load"},
                   {"\"ranks\": [", "\"gpu_allocated_bytes\": ", "ranks[0].gpu_allocated_bytes"},
                   {"\"ranks\": [", "\"gpu_bytes\": ", "ranks[0].gpu_bytes"},
                   {"\"phases\"", "\"allocated\": ", "ranks[0].phases.load.allocated"},
                   {"\"phases\"", "\"reserved\": ", "ranks[0].phases.load.reserved"},
                   {"\"phases\"", "\"device\": ", "ranks[0].phases.load.device"},
                   {"\"phases\"", "\"exp_avg\": ", "ranks[0].phases.load.components.exp_avg"},
                   {"\"phases\"", "\"total\": ", "ranks[0].phases.load.total"},
                   {"\"nodes\": [", "\"host\": ", "nodes[0].phases.load.host"},
                   {"\"nodes\": [", "\"page_locked\": ", "nodes[0].phases.load.page_locked"}};
    stw_plan *plan = mixed_plan(1, NULL);
    char *text = plan_text(plan);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        stw_plan *read = NULL;
        char to[64];
        snprintf(to, sizeof to, "%s7", figures[i].from); /* one more digit */
        char *wrong = edited(text, figures[i].anchor, figures[i].from, to);
        CHECK_FAILS(parse_plan(wrong, &read, err), STW_STATUS_BAD_INPUT, figures[i].place);
        CU_ASSERT_PTR_NULL(read);
        stw_plan_free(read);
        free(wrong);
    }
    free(text);
    stw_plan_free(plan);
}

/* A plan that does not fit cannot be made to by an edited word, nor the reverse. */
static void a_verdict_is_judged_again(void) {
    stw_plan *plan = mixed_plan(2, NULL), *read = NULL;
    plan->cluster.gpu.memory_bytes = 1545ull << 20; /* little more than context and NCCL */
    stw_plan_judge(plan);
    CU_ASSERT_EQUAL(plan->verdict, STW_VERDICT_DOES_NOT_FIT);
    plan->outcome = STW_OUTCOME_INFEASIBLE;
    char *text = plan_text(plan);
    CHECK_OK(parse_plan(text, &read, err));
    CU_ASSERT_EQUAL(read->verdict, STW_VERDICT_DOES_NOT_FIT);
    stw_plan_free(read);
    read = NULL;
    char *fits = edited(text, "\"verdict\"", "does_not_fit", "fits");
    CHECK_FAILS(parse_plan(fits, &read, err), STW_STATUS_BAD_INPUT, "limits give does_not_fit");
    char *optimal = edited(text, "\"outcome\"", "infeasible", "optimal");
    CHECK_FAILS(parse_plan(optimal, &read, err), STW_STATUS_BAD_INPUT, "outcome: found optimal");
    CU_ASSERT_PTR_NULL(read);
    free(optimal);
    free(fits);
    free(text);
    stw_plan_free(plan);
}

/* An iteration is its phases, each as often as it happens: 3 micro batches and one step. */
static void an_iteration_is_the_sum_of_its_phases(void) {
    const char *const settings[] = {"batch.grad_accumulation=3", "batch.seq_len=64", NULL};
    stw_plan *plan = mixed_plan(2, settings), *read = NULL;
    CU_ASSERT_EQUAL(stw_plan_passes(plan, STW_PHASE_LOAD), 0);
    CU_ASSERT_EQUAL(stw_plan_passes(plan, STW_PHASE_FORWARD_BACKWARD), 3);
    CU_ASSERT_EQUAL(stw_plan_passes(plan, STW_PHASE_FIRST_OPTIMIZER_STEP), 0);
    CU_ASSERT_EQUAL(stw_plan_passes(plan, STW_PHASE_OPTIMIZER_STEP), 1);
    CU_ASSERT_EQUAL(stw_plan_iteration_tokens(plan), 3 * 2 * 64);
    CU_ASSERT_TRUE(isnan(stw_plan_iteration_s(plan)));
    plan->time_s[STW_PHASE_LOAD] = 100;
    plan->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] = 50;
    plan->time_s[STW_PHASE_FORWARD_BACKWARD] = 0.25;
    plan->time_s[STW_PHASE_OPTIMIZER_STEP] = 0.5;
    plan->objective_s = 7;
    CU_ASSERT_EQUAL(stw_plan_iteration_s(plan), 1.25);
    char *text = plan_text(plan);
    CHECK_OK(parse_plan(text, &read, err));
    CU_ASSERT_EQUAL(stw_plan_iteration_s(read), 1.25);
    CU_ASSERT_EQUAL(read->objective_s, 7);
    stw_plan_free(read);
    read = NULL;
    char *wrong = edited(text, "\"time_s\"", "\"iteration\": 1.25", "\"iteration\": 1.5");
    CHECK_FAILS(parse_plan(wrong, &read, err), STW_STATUS_BAD_INPUT, "add up to 1.25");
    free(wrong);
    free(text);
    stw_plan_free(plan);
}

static void later_minor_versions_may_add_members(void) {
    stw_plan *plan = mixed_plan(1, NULL), *read = NULL;
    char *text = plan_text(plan);
    char *later = edited(text, "", "\"stowage.plan/1\"", "\"stowage.plan/1.3\", \"new\": [1]");
    CHECK_OK(stw_plan_parse_edited("plan.json", later, strlen(later), &read, err));
    stw_plan_free(read);
    read = NULL; /* their checksums have the new members too */
    CHECK_FAILS(parse_plan(later, &read, err), STW_STATUS_BAD_INPUT, "new: was added");
    free(later);
    free(text);
    stw_plan_free(plan);
}

static void files_are_whole_or_absent(void) {
    char folder[] = "/tmp/stw-plan-XXXXXX", path[64], missing[64];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plan.json", folder);
    snprintf(missing, sizeof missing, "%s/none/plan.json", folder);
    stw_plan *plan = mixed_plan(2, NULL), *read = NULL;
    CHECK_OK(stw_plan_write(plan, path, err));
    CHECK_OK(stw_plan_read(path, &read, err));
    stw_plan_free(read);
    read = NULL;
    CHECK_FAILS(stw_plan_write(plan, missing, err), STW_STATUS_IO, "none");
    CHECK_FAILS(stw_plan_read(missing, &read, err), STW_STATUS_IO, "none");
    stw_plan_free(plan);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static void an_underived_plan_is_not_written(void) {
    stw_cluster cluster = fixture_cluster(1);
    stw_plan *plan = fixture_plan(small, &cluster, NULL);
    stw_text text = STW_TEXT_INIT;
    CHECK_FAILS(stw_plan_to_json(plan, &text, err), STW_STATUS_BUG, "derived");
    CU_ASSERT_EQUAL(text.length, 0);
    stw_plan_free(plan);
}

STW_TEST_MAIN("plan file", {"round trips", round_trips},
              {"round trips of fsdp2", round_trips_of_fsdp2},
              {"round trip over nodes", round_trip_over_nodes},
              {"evidence round trips", evidence_round_trips},
              {"a zoo model is whole in the file", a_zoo_model_is_whole_in_the_file},
              {"every fact is in the file", every_fact_is_in_the_file},
              {"wrong files are refused", wrong_files_are_refused},
              {"errors have a place", errors_have_a_place},
              {"every member is required", every_member_is_required},
              {"truncated files are refused", truncated_files_are_refused},
              {"falsified figures are refused", falsified_figures_are_refused},
              {"a verdict is judged again", a_verdict_is_judged_again},
              {"an iteration is the sum of its phases", an_iteration_is_the_sum_of_its_phases},
              {"later minor versions may add members", later_minor_versions_may_add_members},
              {"files are whole or absent", files_are_whole_or_absent},
              {"an underived plan is not written", an_underived_plan_is_not_written})
