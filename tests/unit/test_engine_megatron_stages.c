/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline stages of Megatron-LM with unequal layers, and layers of multi-token prediction. */
#include "engines/megatron/acts.h"
#include "engines/megatron/params.h"
#include "engines/megatron/stages.h"
#include "planner/reading.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

enum { MOST_SETTINGS = 24 };
#define MEGATRON "engine=megatron precision.params=bf16 precision.master=fp32 node.gpus=8 "
#define V3 MEGATRON "nodes=64 parallel.pp=16 parallel.ep=16 recompute.granularity=none "

/* ---- plans of settings "key=value key=value" ---- */

static stw_status new_plan(const char *model_name, const char *settings, stw_plan **out,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char text[1024];
    const char *list[MOST_SETTINGS];
    size_t n = 0;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run = {0};
    stw_model *model = NULL;
    *out = NULL;
    snprintf(text, sizeof text, "%s", settings);
    for (char *at = strtok(text, " "); at != NULL; at = strtok(NULL, " ")) {
        CU_ASSERT_TRUE_FATAL(n < MOST_SETTINGS);
        list[n++] = at;
    }
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, list, n, "case", err));
    STW_TRY(stw_run_spec_check(&run, "case", err));
    STW_TRY(stw_model_open(model_name, STW_SOURCE_MODELS, &model, err));
    status = stw_plan_new(model, &cluster, &run, out, err);
out:
    stw_run_spec_free(&run);
    return status;
}

static stw_plan *plan_of(const char *model, const char *settings) {
    stw_plan *plan = NULL;
    CHECK_OK(new_plan(model, settings, &plan, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
    return plan;
}

static uint32_t kind_of(const stw_job *job, uint32_t stage) {
    return stw_job_kind_of(job, job->world / job->run->parallel.pp * stage);
}

static stw_peak peak_of(const stw_job *job, uint32_t stage) {
    stw_place places[STW_MAX_PLACES];
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    stw_peaks peaks;
    CU_ASSERT_EQUAL_FATAL(job->engine->places(job, places, NULL), 1);
    const bool full = job->run->recompute.granularity == 1;
    const stw_simple simple = {.job = job,
                               .kind = kind_of(job, stage),
                               .place = places[0],
                               .act = full ? STW_ACT_RECOMPUTE : STW_ACT_KEEP,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = true,
                               .depth = 1};
    CHECK_OK(stw_simple_build(&simple, &layout, &program, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(program);
    stw_program_walk(program, &peaks);
    stw_layout_free(layout);
    stw_program_free(program);
    return peaks.phase[STW_PHASE_FORWARD_BACKWARD][STW_TIER_GPU];
}

/* Transformer layers of each chunk, "4 4 1". */
static const char *layers_of(const char *model, const char *settings) {
    static char text[512];
    stw_plan *plan = plan_of(model, settings);
    const stw_job *job = plan->job;
    const uint32_t n = job->run->parallel.pp * job->run->parallel.vpp;
    size_t at = 0;
    for (uint32_t chunk = 0; chunk < n; chunk++) {
        uint32_t layers = 0;
        for (uint32_t b = 0; b < job->model->n_blocks; b++)
            layers += stw_megatron_is_layer(job, b) && stw_megatron_chunk_of(job, b) == chunk;
        at += (size_t)snprintf(text + at, sizeof text - at, chunk > 0 ? " %u" : "%u", layers);
    }
    stw_plan_free(plan);
    return text;
}

/* ---- layouts ---- */

static void reads_layouts(void) {
    static const struct {
        const char *text,
            *layers; /* of each chunk, a dot follows layers of multi-token prediction */
    } good[] = {
        {"EtL", "1"},
        {"Et*3|(tt|)*6tmL", "3 2 2 2 2 2 2 1."},
        {"Ettt|(tt|)*29,m|L", "3 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 0. 0"},
        {"E|t,t,t|tL", "0 3 1"},
        {"E|*3t*2|mmL", "0 0 0 2 0."},
        {"|Et||L|", "0 1 0 0 0"},
        {"Et(t|t)*2|L", "2 2 1 0"},
    };
    static const struct {
        const char *text, *expected;
    } bad[] = {
        {"", "E"},
        {"ttL", "E"},
        {"Ett", "one L"},
        {"EttLL", "one L"},
        {"Ettx|L", "t,"},
        {"Et(t|tL", "t,"},
        {"EtmtL", "m"},
        {"Etm|mL", "every m in one chunk"},
        {"EtE|L", "E"},
        {"Et**2L", "t,"},
        {"Et*99999L", "16384"},
    };
    stw_pool *pool = stw_pool_new();
    stw_megatron_chunk *chunks;
    const char *expected;
    uint32_t n;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char text[256] = "";
        size_t at = 0;
        CU_ASSERT_TRUE_FATAL(stw_megatron_read_layout(good[i].text, pool, &chunks, &n, &expected));
        for (uint32_t k = 0; k < n; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u%s", k > 0 ? " " : "",
                                   chunks[k].layers, chunks[k].mtp > 0 ? "." : "");
        CU_ASSERT_STRING_EQUAL(text, good[i].layers);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CU_ASSERT_FALSE_FATAL(stw_megatron_read_layout(bad[i].text, pool, &chunks, &n, &expected));
        CU_ASSERT_PTR_NOT_NULL(strstr(expected, bad[i].expected));
    }
    stw_pool_free(pool);
}

static void stages_may_differ(void) {
    CU_ASSERT_STRING_EQUAL(layers_of("DeepSeek-V3", V3 "megatron.pipeline_layout=Et*4|(t*4|)*14tL"),
                           "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 1");
    CU_ASSERT_STRING_EQUAL(
        layers_of("DeepSeek-V3", V3 "megatron.first_stage_layers=3 megatron.last_stage_layers=2"),
        "3 4 4 4 4 4 4 4 4 4 4 4 4 4 4 2");
    CU_ASSERT_STRING_EQUAL(layers_of("Qwen3-235B-A22B",
                                     V3 "megatron.account_for_embedding=true "
                                        "megatron.account_for_loss=true batch.grad_accumulation=16 "
                                        "parallel.vpp=2"),
                           "2 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 3 2");
    CU_ASSERT_STRING_EQUAL(layers_of("Kimi-K2", V3 "parallel.pp=8 parallel.vpp=2 "
                                                   "megatron.pipeline_layout=E|(t*4|)*14t*5L "
                                                   "batch.grad_accumulation=8"),
                           "0 4 4 4 4 4 4 4 4 4 4 4 4 4 4 5");
    CU_ASSERT_STRING_EQUAL(layers_of("Llama-3.1-8B", MEGATRON "nodes=1 parallel.pp=4 "
                                                              "parallel.vpp=2 "
                                                              "batch.grad_accumulation=4"),
                           "4 4 4 4 4 4 4 4");
}

/* Every layout that an error proposes is accepted, and divides as evenly as can be. */
static void errors_say_what_divides(void) {
    static const struct {
        const char *model, *ways;
    } cases[] = {{"DeepSeek-V3", "parallel.pp=16"},
                 {"DeepSeek-V3", "parallel.pp=8 parallel.vpp=2"},
                 {"Qwen3-235B-A22B", "parallel.pp=4"},
                 {"Qwen3-235B-A22B", "parallel.pp=8 parallel.vpp=4"},
                 {"Kimi-K2", "parallel.pp=32"},
                 {"DeepSeek-V3", "parallel.pp=16 megatron.mtp_num_layers=1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char settings[512], text[1200];
        stw_error err = STW_ERROR_INIT;
        stw_plan *plan = NULL;
        snprintf(settings, sizeof settings, V3 "batch.grad_accumulation=32 %s", cases[i].ways);
        CU_ASSERT_EQUAL(new_plan(cases[i].model, settings, &plan, &err), STW_STATUS_BAD_INPUT);
        stw_error_format(&err, text, sizeof text);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "megatron.first_stage_layers"));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "megatron.account_for_embedding"));
        char *layout = strstr(text, "megatron.pipeline_layout ('");
        CU_ASSERT_PTR_NOT_NULL_FATAL(layout);
        layout = strchr(layout, '\'') + 1;
        *strchr(layout, '\'') = '\0';
        snprintf(settings, sizeof settings,
                 V3 "batch.grad_accumulation=32 %s megatron.pipeline_layout=%s", cases[i].ways,
                 layout);
        unsigned least = UINT32_MAX, most = 0, first = 0, last = 0, n = 0;
        char *at = (char *)(uintptr_t)layers_of(cases[i].model, settings);
        for (at = strtok(at, " "); at != NULL; at = strtok(NULL, " "), n++) {
            last = (unsigned)atoi(at);
            if (n == 0) first = last;
            if (last < least) least = last;
            if (last > most) most = last;
        }
        CU_ASSERT_TRUE(most - least <= 2);
        CU_ASSERT_TRUE(first < most && last < most); /* they have embedding and loss */
    }
}

static void contradictions_are_refused(void) {
    static const struct {
        const char *settings, *word;
    } cases[] = {
        {"megatron.pipeline_layout=Et*4|(t*4|)*14ttL", "61 layers"},
        {"megatron.pipeline_layout=Et*60|tL", "it has 2"},
        {"megatron.pipeline_layout=Et*4|(t*4|)*14tmL", "megatron.mtp_num_layers 0"},
        {"megatron.pipeline_layout=Et*4|(t*4|)*14tL megatron.mtp_num_layers=1", "it has 0"},
        {"megatron.pipeline_layout=Et*4|(t*4|)*14tL megatron.first_stage_layers=1",
         "no other division"},
        {"megatron.pipeline_layout=Et*61m|(|)*14L megatron.mtp_num_layers=1", "not the first"},
        {"megatron.first_stage_layers=1 megatron.account_for_loss=true", "account_for_loss"},
        {"megatron.first_stage_layers=2", "first_stage_layers and last_stage_layers leave"},
        {"megatron.account_for_loss=true", "pipeline_layout"},
        {"parallel.pp=1 megatron.first_stage_layers=1", "parallel.pp above 1"},
        {"parallel.pp=1 megatron.pipeline_layout=Et*61L", "parallel.pp above 1"},
        {"parallel.pp=61 parallel.vpp=1000000", "parallel"},
        {"parallel.pp=1 recompute.granularity=full recompute.method=uniform "
         "recompute.num_layers=2 megatron.mtp_num_layers=1",
         "recompute.num_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char settings[512];
        stw_plan *plan = NULL;
        snprintf(settings, sizeof settings, V3 "%s", cases[i].settings);
        CHECK_FAILS(new_plan("DeepSeek-V3", settings, &plan, err), STW_STATUS_BAD_INPUT,
                    cases[i].word);
    }
}

/* A stage holds what its layers have; a stage with the loss alone has norm and head. */
static void kinds_of_ranks_follow(void) {
    stw_plan *plan = plan_of("Llama-3.1-8B", MEGATRON "nodes=1 parallel.pp=4 parallel.tp=2 "
                                                      "batch.grad_accumulation=8 "
                                                      "recompute.granularity=none "
                                                      "megatron.pipeline_layout=Et*3|t*20|t*9|L");
    const stw_job *job = plan->job;
    uint64_t layer = 0, embed = 0, kept[4];
    const stw_rank_kind *of[4];
    for (uint32_t s = 0; s < 4; s++) of[s] = &job->kinds[kind_of(job, s)];
    for (uint32_t b = 0; b < job->model->n_blocks; b++) {
        if (stw_megatron_is_layer(job, b)) layer = of[0]->block_params[b];
        if (layer > 0) break;
        embed = of[0]->block_params[b];
    }
    CU_ASSERT_EQUAL(of[0]->params, embed + 3 * layer);
    CU_ASSERT_EQUAL(of[1]->params, 20 * layer);
    CU_ASSERT_EQUAL(of[2]->params, 9 * layer);
    CU_ASSERT_EQUAL(of[3]->params, job->model->hidden + embed); /* as large as the head */
    for (uint32_t k = 0; k < 4; k++) {
        stw_peak peak = peak_of(job, k);
        kept[k] = peak.components[STW_COMPONENT_ACTIVATIONS];
        CU_ASSERT_EQUAL(peak.components[STW_COMPONENT_LOGITS] > 0, k == 3);
    }
    /* micro batches in flight: 4, 3, 2, 1 */
    CU_ASSERT_EQUAL(kept[0] * 20 * 3, kept[1] * 3 * 4);
    CU_ASSERT_EQUAL(kept[1] * 9 * 2, kept[2] * 20 * 3);
    CU_ASSERT_EQUAL(kept[3], 2 * stw_megatron_hidden_bytes(job));
    stw_plan_free(plan);
}

/* ---- multi-token prediction ---- */

static uint64_t params_of_stage(const stw_job *job, uint32_t stage) {
    stw_megatron_params params;
    stw_pool *pool = stw_pool_new();
    CHECK_OK(stw_megatron_params_of(job, stage, pool, &params, err));
    uint64_t n = params.dense + params.expert;
    stw_pool_free(pool);
    return n;
}

static void predictions_have_layers(void) {
    static const char *const layouts[] = {
        "megatron.mtp_num_layers=1 megatron.pipeline_layout=Et*4|(t*4|)*14tmL",
        "megatron.mtp_num_layers=1 megatron.pipeline_layout=Et*4|(t*4|)*13t*5|mL",
        "megatron.mtp_num_layers=2 megatron.pipeline_layout=Et*4|(t*4|)*12t*5|t*4mm|L"};
    static const uint32_t stage[] = {15, 15, 14};
    for (size_t i = 0; i < 3; i++) {
        char settings[512];
        snprintf(settings, sizeof settings, V3 "%s", layouts[i]);
        stw_plan *plan = plan_of("DeepSeek-V3", settings);
        const stw_job *job = plan->job;
        const uint64_t h = 7168, table = stw_megatron_vocab(job) * h, n = i == 2 ? 2 : 1;
        const stw_block_group *last = NULL;
        for (uint32_t g = 0; g < job->model->n_groups; g++)
            if (strcmp(job->model->groups[g].name, "moe_layer") == 0) last = &job->model->groups[g];
        CU_ASSERT_PTR_NOT_NULL_FATAL(last);
        const uint64_t layer = last->params / last->count;
        /* projection, three norms */
        CU_ASSERT_EQUAL(job->model->params - plan->model->params, n * (2 * h * h + 3 * h + layer));
        uint64_t all = 0;
        for (uint32_t s = 0; s < 16; s++) all += params_of_stage(job, s);
        uint64_t experts = 0;
        for (uint32_t t = 0; t < job->model->n_tensors; t++)
            if (job->model->tensors[t].expert) experts += job->model->tensors[t].numel;
        /* one table more, and rows that pad three tables instead of two */
        CU_ASSERT_EQUAL(all - (job->model->params - experts + experts / 16),
                        table + 2 * (table - job->model->vocab * h));
        CU_ASSERT_TRUE(stw_megatron_holds(job, stage[i], 0));
        CU_ASSERT_FALSE(stw_megatron_holds(job, stage[i] - 1, 0));
        CU_ASSERT_EQUAL(stw_megatron_norm_chunk(job), i == 0 ? 15 : i == 1 ? 14 : 14);
        stw_plan_free(plan);
    }
}

/* A tied embedding is there twice on the last stage: for the prediction, and as a head that is not
 * used. */
static void tied_predictions_have_both(void) {
    uint64_t params[2][2];
    for (int mtp = 0; mtp < 2; mtp++) {
        char settings[256];
        snprintf(settings, sizeof settings,
                 MEGATRON "nodes=1 parallel.pp=2 megatron.mtp_num_layers=%d", mtp);
        stw_plan *plan = plan_of("Qwen3-0.6B", settings);
        for (uint32_t s = 0; s < 2; s++) params[mtp][s] = params_of_stage(plan->job, s);
        if (mtp == 1) {
            const uint64_t table = stw_megatron_vocab(plan->job) * 1024;
            const uint64_t more = plan->job->model->params - plan->model->params;
            CU_ASSERT_EQUAL(params[1][0], params[0][0]);
            CU_ASSERT_EQUAL(params[1][1], params[0][1] + more + table);
            stw_peak one = peak_of(plan->job, 0), two = peak_of(plan->job, 1);
            CU_ASSERT_EQUAL(one.components[STW_COMPONENT_PARAMS] / 2, params[1][0]);
            CU_ASSERT_EQUAL(two.components[STW_COMPONENT_PARAMS] / 2, params[1][1]);
        }
        stw_plan_free(plan);
    }
}

/* All losses keep their softmax. */
static void predictions_keep_logits(void) {
    uint64_t logits[3], saved[3];
    for (int n = 0; n < 3; n++) {
        char settings[512];
        snprintf(settings, sizeof settings,
                 MEGATRON "nodes=1 recompute.granularity=none batch.seq_len=4096 "
                          "megatron.mtp_num_layers=%d",
                 n);
        stw_plan *plan = plan_of("Llama-3.1-8B", settings);
        stw_peak peak = peak_of(plan->job, 0);
        logits[n] = peak.components[STW_COMPONENT_LOGITS];
        saved[n] = peak.components[STW_COMPONENT_ACTIVATIONS];
        CU_ASSERT_EQUAL(stw_megatron_mtp_layers(plan->job), n);
        stw_plan_free(plan);
    }
    const uint64_t row = 4096ull * 128256, hidden = 4096ull * 4096 * 2;
    CU_ASSERT_EQUAL(logits[0], row * 6);
    CU_ASSERT_EQUAL(logits[1], row * (6 + 4));
    CU_ASSERT_EQUAL(logits[2], row * (6 + 8));
    /* a layer, what its norms and its projection save, and one more input of the head */
    const uint64_t layer = (saved[0] - 2 * hidden) / 32;
    CU_ASSERT_EQUAL(saved[1] - saved[0], layer + 6 * hidden + 3 * 4 * 4096);
    CU_ASSERT_EQUAL(saved[2] - saved[1], saved[1] - saved[0]);
}

static void predictions_are_recomputed(void) {
    uint64_t saved[3];
    static const char *const policies[] = {
        "recompute.granularity=none",
        "recompute.granularity=full recompute.method=block recompute.num_layers=32",
        "recompute.granularity=full recompute.method=uniform recompute.num_layers=1"};
    for (int i = 0; i < 3; i++) {
        char settings[512];
        snprintf(settings, sizeof settings,
                 MEGATRON "nodes=1 batch.seq_len=4096 megatron.mtp_num_layers=1 %s", policies[i]);
        stw_plan *plan = plan_of("Llama-3.1-8B", settings);
        saved[i] = peak_of(plan->job, 0).components[STW_COMPONENT_ACTIVATIONS];
        const stw_job *job = plan->job;
        if (i == 2) { /* all but the prediction's layer are alike */
            uint32_t group = 0;
            while (strcmp(job->model->groups[group].name, STW_MEGATRON_MTP_GROUP) != 0) group++;
            stw_megatron_layer layer = stw_megatron_mtp_of(job, group, false);
            CU_ASSERT_EQUAL(saved[1] - saved[2], layer.whole - layer.input);
            CU_ASSERT_EQUAL(layer.input, 2 * stw_megatron_hidden_bytes(job));
        }
        stw_plan_free(plan);
    }
    CU_ASSERT_TRUE(saved[0] > saved[1] && saved[1] > saved[2]);
}

/* A slow stage makes the others wait in every micro batch. */
static double idle_seconds(const char *layout, uint32_t stage) {
    char settings[512];
    double seconds = 0;
    snprintf(settings, sizeof settings,
             MEGATRON "nodes=1 parallel.pp=4 parallel.tp=2 batch.grad_accumulation=1000 "
                      "recompute.granularity=none megatron.pipeline_layout=%s",
             layout);
    stw_plan *plan = plan_of("Llama-3.1-8B", settings);
    stw_place places[STW_MAX_PLACES];
    stw_layout *l = NULL;
    stw_program *program = NULL;
    CU_ASSERT_EQUAL_FATAL(plan->job->engine->places(plan->job, places, NULL), 1);
    const stw_simple simple = {.job = plan->job,
                               .kind = kind_of(plan->job, stage),
                               .place = places[0],
                               .act = STW_ACT_KEEP,
                               .load = STW_LOAD_SHARDED_READ,
                               .by_group = true,
                               .depth = 1};
    CHECK_OK(stw_simple_build(&simple, &l, &program, err));
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].kind == STW_OP_IDLE) seconds += program->ops[i].wait_s;
    stw_layout_free(l);
    stw_program_free(program);
    stw_plan_free(plan);
    return seconds;
}

static void slow_stages_hold_up(void) {
    double even = idle_seconds("Et*8|t*8|t*8|t*8L", 1),
           uneven = idle_seconds("Et*8|t*4|t*12|t*8L", 1);
    double slow = idle_seconds("Et*8|t*4|t*12|t*8L", 2);
    CU_ASSERT_TRUE(uneven > 2 * even); /* eight layers' work, and the loss before */
    CU_ASSERT_TRUE(slow < 0.01 * uneven);
}

STW_TEST_MAIN("engine megatron stages", {"reads layouts", reads_layouts},
              {"stages may differ", stages_may_differ},
              {"errors say what divides", errors_say_what_divides},
              {"contradictions are refused", contradictions_are_refused},
              {"kinds of ranks follow", kinds_of_ranks_follow},
              {"predictions have layers", predictions_have_layers},
              {"tied predictions have both", tied_predictions_have_both},
              {"predictions keep logits", predictions_keep_logits},
              {"predictions are recomputed", predictions_are_recomputed},
              {"slow stages hold up", slow_stages_hold_up})
