/* SPDX-License-Identifier: Apache-2.0 */
/* Every key of both tables does something, or is refused. The keys come from the tables. Each is
 * set to other legal values in several plans of three engines, of a dense model and of one with
 * experts; a value that is accepted must change the program, a byte, a second, a decision, the
 * bits of a run, or the settings of an optimizer in a framework's job. */
#ifndef STW_TESTS_UNIT_KEY_TEST_H
#define STW_TESTS_UNIT_KEY_TEST_H

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/executor/run.h"
#include "plan/job/effect.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/planner.h"
#include "reports/reports.h"
#include "sim/sim.h"
#include "tests/unit/testing.h"

/* ---- models ---- */

static const char dense_json[] =
    "{\"model_type\": \"qwen3\", \"attention_bias\": false, \"head_dim\": 64, \"hidden_size\": "
    "%d,\n"
    " \"intermediate_size\": %d, \"num_attention_heads\": 4, \"num_hidden_layers\": 2,\n"
    " \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"tie_word_embeddings\": false,\n"
    " \"torch_dtype\": \"bfloat16\", \"vocab_size\": %d, \"max_position_embeddings\": 40960}\n";
static const char moe_json[] =
    "{\"model_type\": \"qwen3_moe\", \"attention_bias\": false, \"decoder_sparse_step\": 1,\n"
    " \"head_dim\": 64, \"hidden_size\": %d, \"intermediate_size\": %d, \"mlp_only_layers\": [],\n"
    " \"moe_intermediate_size\": 256, \"num_attention_heads\": 4, \"num_experts\": 8,\n"
    " \"num_experts_per_tok\": 2, \"num_hidden_layers\": 2, \"num_key_value_heads\": 2,\n"
    " \"rms_norm_eps\": 1e-06, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\",\n"
    " \"vocab_size\": %d, \"max_position_embeddings\": 40960}\n";

static char folder[] = "/tmp/stowage-keys-XXXXXX";
static const char *const model_names[] = {"dense", "moe", "small_dense", "small_moe"};
enum { N_MODELS = 2 }; /* the small ones are run */

static void model_path(size_t index, char *out, size_t out_size) {
    snprintf(out, out_size, "%s/%s.json", folder, model_names[index]);
}

static bool write_models(void) {
    if (mkdtemp(folder) == NULL) return false;
    for (size_t i = 0; i < 4; i++) {
        char path[128];
        model_path(i, path, sizeof path);
        FILE *file = fopen(path, "w");
        if (file == NULL) return false;
        if (i < N_MODELS)
            fprintf(file, i % 2 == 0 ? dense_json : moe_json, 512, 1536, 16000);
        else
            fprintf(file, i % 2 == 0 ? dense_json : moe_json, 128, 256, 500);
        fclose(file);
    }
    return true;
}

/* Opened once: thousands of plans share it. */
static stw_model *opened[4];

static stw_status open_model(size_t index, const stw_model **out, stw_error *err) {
    char path[128];
    stw_status status = STW_STATUS_OK;
    model_path(index, path, sizeof path);
    if (opened[index] == NULL)
        status = stw_model_open(path, STW_SOURCE_MODELS, &opened[index], err);
    *out = opened[index];
    return status;
}

static void remove_models(void) {
    for (size_t i = 0; i < 4; i++) {
        char path[128];
        model_path(i, path, sizeof path);
        (void)remove(path);
        stw_model_free(opened[i]);
    }
    (void)rmdir(folder);
}

/* ---- plans ---- */

#define MOST_SETTINGS 10
/* What all settings of a case are set on: nodes of GPUs too small for the state, with all tiers. */
static const char *const cluster_settings[] = {"nodes=2",
                                               "node.gpus=2",
                                               "node.gpu.memory=180 MiB",
                                               "node.gpu.context=1 MiB",
                                               "node.gpu.comm=1 MiB",
                                               "node.host.memory=8 GiB",
                                               "node.host.limit=4 GiB",
                                               "node.host.process=64 MiB",
                                               "node.nvme.capacity=1 GiB",
                                               "node.host.cache=64 MiB",
                                               "batch.seq_len=2048",
                                               NULL};
typedef struct key_case {
    const char *name;
    const char *settings[MOST_SETTINGS];
} key_case;
static const key_case stowage_cases[] = {
    {"shares",
     {"update.resident=0.2", "update.stream=0.3", "update.direct=0.2", "update.cpu=0.3",
      "prefetch.depth=2", "prefetch.bucket=1 MiB"}},
    {"nvme",
     {"placement.moments=nvme", "loss.fused=true", "prefetch.depth=2", "prefetch.bucket=1 MiB"}},
    {"weights",
     {"load.weights=/weights", "placement.activations=offload", "loss.upcast=bf16",
      "prefetch.depth=2", "prefetch.bucket=1 MiB"}},
    {"cached weights", {"load.weights=/weights", "load.page_cached=true"}},
    {"auto", {NULL}},
    {"cpu ring",
     {"optimizer.implementation=cpu", "placement.params=gpu", "placement.grads=gpu",
      "prefetch.depth=2", "prefetch.bucket=1 MiB"}},
    {"direct", {"optimizer.implementation=direct", "placement.moments=host", "loss.fused=true"}},
    {"cpu beside copies", /* together they ask more of the host's memory than it has */
     {"update.stream=0.5", "update.cpu=0.5", "prefetch.bucket=64 KiB",
      "node.host.bandwidth=20 GB/s", "node.host.dma=15 GB/s", "node.cpu_adamw=0.5 Gparam/s",
      "batch.seq_len=64"}},
    {NULL, {NULL}}};
/* Neither memory nor a thread's rate alone is the limit. */
#define CPU_RATES "node.host.bandwidth=400 GB/s", "optimizer.cpu_threads=4"
#define CPU_STEP "engine=fsdp2", CPU_RATES
static const key_case fsdp2_cases[] = {
    {"auto", {"engine=fsdp2"}},
    {"streamed", {"engine=fsdp2", "optimizer.implementation=streamed", "loss.fused=true"}},
    {"offload", {CPU_STEP, "fsdp.offload_policy=true"}},
    {"offload, foreach",
     {CPU_STEP, "fsdp.offload_policy=true", "optimizer.implementation=foreach"}},
    {"offload, fused", {CPU_STEP, "fsdp.offload_policy=true", "optimizer.implementation=fused"}},
    {"dense: tensor parallel",
     {"engine=fsdp2", "parallel.tp=2", "parallel.sequence_parallel=true"}},
    {"saved",
     {"engine=fsdp2", "checkpoint.every=10", "checkpoint.contents=[model]",
      "node.gpu.memory=2 GiB"}},
    {"parked", {"engine=fsdp2", "park.params=host", "park.moments=host", "node.gpu.memory=2 GiB"}},
    {"stowage inside",
     {"engine=fsdp2", "optimizer.implementation=stowage", "node.gpu.memory=2 GiB",
      "update.resident=0.4", "update.stream=0.6", "prefetch.depth=2", "prefetch.bucket=1 MiB"}},
    {"stowage inside, NVMe",
     {"engine=fsdp2", "optimizer.implementation=stowage", "node.gpu.memory=2 GiB",
      "placement.moments=nvme", "prefetch.depth=2", "prefetch.bucket=1 MiB"}},
    {"roomy",
     {"engine=fsdp2", "node.gpu.memory=2 GiB", "optimizer.implementation=fused",
      "load.method=all_ranks"}},
    {NULL, {NULL}}};

#define ZERO                                                                                       \
    "engine=deepspeed", "precision.params=bf16", "precision.grads=bf16", "precision.reduce=bf16",  \
        "precision.master=fp32", "node.gpu.memory=6 GiB"
static const key_case deepspeed_cases[] = {
    {"shards", {ZERO, "deepspeed.reduce_bucket=1e6", "deepspeed.sub_group_size=1e6"}},
    {"few live", {ZERO, "deepspeed.max_live_parameters=1e6", "deepspeed.max_reuse_distance=1e6"}},
    {"offloaded", {ZERO, "deepspeed.offload_optimizer=cpu", "deepspeed.sub_group_size=1e6"}},
    {"cpu", {ZERO, "deepspeed.offload_optimizer=cpu", CPU_RATES}},
    {"stage 2", {ZERO, "deepspeed.zero_stage=2"}},
    {"stage 1", {ZERO, "deepspeed.zero_stage=1", "batch.grad_accumulation=2"}},
    {NULL, {NULL}}};
#define MEGATRON                                                                                   \
    "engine=megatron", "precision.params=bf16", "precision.master=fp32", "node.gpu.memory=2 GiB"
static const key_case megatron_cases[] = {
    {"data parallel", {MEGATRON}},
    {"stages", {MEGATRON, "parallel.pp=2", "batch.grad_accumulation=4"}},
    {"tensor parallel",
     {MEGATRON, "parallel.tp=2", "parallel.sequence_parallel=true",
      "recompute.granularity=selective"}},
    {"offload",
     {MEGATRON, CPU_RATES, "megatron.optimizer_offload_fraction=0.5",
      "megatron.precision_aware=true"}},
    {"blocks",
     {MEGATRON, "recompute.granularity=full", "recompute.method=block", "recompute.num_layers=1"}},
    {"unfused", {MEGATRON, "attention=eager"}},
    {"saved", {MEGATRON, "checkpoint.every=10"}},
    {"parked", {MEGATRON, "park.params=host", "park.moments=host"}},
    {"overlapped", {MEGATRON, "megatron.overlap_grad_reduce=true"}},
    {"muon",
     {MEGATRON, "optimizer.kind=muon", "megatron.distributed_optimizer=false", "parallel.tp=2",
      "parallel.sequence_parallel=true"}},
    {"muon, layer-wise", {MEGATRON, "optimizer.kind=muon", "megatron.overlap_grad_reduce=true"}},
    {NULL, {NULL}}};

#define ROLE                                                                                       \
    "engine=fsdp2", "node.gpu.memory=4 GiB", "batch.seq_len=512",                                  \
        "roles=[{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.4, max_model_len: 2k, "     \
        "max_num_batched_tokens: 1k"
static const key_case role_cases[] = {
    {"shared", {ROLE "}]"}},
    {"one rank",
     {"engine=fsdp2", "node.gpu.memory=4 GiB", "batch.seq_len=512",
      "roles=[{name: a, gpu_memory_utilization: 0.4, max_model_len: 2k}]"}},
    {"asleep with weights", {ROLE ", sleep_level: 1, dtype: fp8}]"}},
    {"awake", {ROLE ", engine: sglang, free_cache_engine: false}]"}},
    {"reference", {"engine=fsdp2", "node.gpu.memory=4 GiB", "roles=[{name: a, kind: reference}]"}},
    {"reward",
     {"engine=fsdp2", "node.gpu.memory=4 GiB",
      "roles=[{name: a, kind: reward, with: none, nodes: 1}]"}},
    {"critic", {"engine=fsdp2", "node.gpu.memory=4 GiB", "roles=[{name: a, kind: critic}]"}},
    {"alone", {ROLE ", with: none, nodes: 1, builds_trainer_model: true}]"}},
    {NULL, {NULL}}};

static bool is_refusal(stw_status status) {
    return status == STW_STATUS_BAD_INPUT || status == STW_STATUS_NOT_BUILT_IN;
}

static stw_status set_all(const char *const *settings, size_t most, stw_cluster *cluster,
                          stw_run_spec *run, stw_error *err) {
    size_t n = 0;
    while (n < most && settings[n] != NULL) n++;
    return stw_specs_set_all(cluster, run, settings, n, "case", err);
}

/* A plan of a case with one setting more (or NULL), without decisions.
 * @param one_rank the same job on one GPU, to be run */
static stw_status new_plan(size_t model_index, const key_case *c, const char *setting,
                           bool one_rank, stw_plan **out, stw_error *err) {
    static const char *const alone[] = {"nodes=1", "node.gpus=1", "node.gpu.memory=2 GiB", NULL};
    stw_status status = STW_STATUS_OK;
    const stw_model *model = NULL;
    stw_cluster cluster;
    stw_run_spec run = {0};
    STW_TRY(stw_cluster_defaults(&cluster, err));
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(set_all(cluster_settings, 16, &cluster, &run, err));
    STW_TRY(set_all(c->settings, MOST_SETTINGS, &cluster, &run, err));
    if (one_rank) STW_TRY(set_all(alone, 3, &cluster, &run, err));
    STW_TRY(set_all(&setting, 1, &cluster, &run, err));
    STW_TRY(stw_cluster_check(&cluster, "case", err));
    STW_TRY(stw_run_spec_check(&run, "case", err));
    STW_TRY(open_model(model_index + (one_rank ? N_MODELS : 0), &model, err));
    STW_TRY(stw_plan_new_sharing(model, &cluster, &run, out, err));
    if (setting != NULL) STW_TRY(stw_job_check_setting((*out)->job, setting, "case", err));
out:
    if (status != STW_STATUS_OK) {
        stw_plan_free(*out);
        *out = NULL;
    }
    stw_run_spec_free(&run);
    return status;
}

static stw_status solve(stw_plan *plan, stw_error *err) {
    const stw_planner_options options = {.time_limit_s = 20,
                                         .gap = 0.01,
                                         .gap_is_set = true,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .only_stage1 = true};
    stw_status status = stw_planner_solve(plan, &options, err);
    return status != STW_STATUS_OK ? status : stw_sim_plan(plan, NULL, err);
}

/* As the command makes it. */
static stw_status make_plan(size_t model_index, const key_case *c, const char *setting,
                            bool one_rank, stw_plan **out, stw_error *err) {
    stw_plan *plan = NULL;
    stw_status status = new_plan(model_index, c, setting, one_rank, &plan, err);
    if (status == STW_STATUS_OK) status = solve(plan, err);
    if (status == STW_STATUS_OK)
        *out = plan;
    else
        stw_plan_free(plan);
    return status;
}

static void add_ops(const stw_program *program, stw_text *out) {
    uint64_t hash = 1469598103934665603ull;
    double flops = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        const uint64_t fields[] = {op->kind,         op->component, op->update,    op->from,
                                   op->to,           op->stream,    op->group,     op->peer,
                                   op->unit,         op->after[0],  op->bytes,     op->after[1],
                                   op->offset_bytes, op->params,    op->ring_bytes};
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
            hash = (hash ^ fields[f]) * 1099511628211ull;
        flops += op->flops;
    }
    stw_text_printf(out, "ops %u %llx %.17g\n", program->n_ops, (unsigned long long)hash, flops);
}

/* All that a plan decides and predicts, without what it was told. */
static void describe(const stw_plan *plan, stw_text *out) {
    stw_text_printf(out, "%d %d %.12g\n", (int)plan->outcome, (int)plan->verdict,
                    plan->objective_s);
    stw_text_printf(out, "load %d ring %u %llu\n", (int)plan->decisions.load,
                    plan->decisions.prefetch.depth,
                    (unsigned long long)plan->decisions.prefetch.bucket_bytes);
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        stw_text_printf(out, "%s\n", plan->layouts[k]->hash);
        add_ops(plan->programs[k], out);
        for (int p = 0; p < STW_N_PHASES; p++)
            for (int t = 0; t < STW_N_TIERS; t++)
                for (int c = 0; c < STW_N_COMPONENTS; c++)
                    stw_text_printf(out, "%llu ",
                                    (unsigned long long)plan->shown[k].phase[p][t].components[c]);
    }
    for (int p = 0; p < STW_N_PHASES; p++) stw_text_printf(out, "%.12g ", plan->time_s[p]);
}

/* What people read of a plan: where labels are shown. */
static bool report_of(const stw_plan *plan, stw_text *out) {
    return stw_report_plan(plan, NULL, NULL, STW_FORMAT_MARKDOWN, out, NULL) == STW_STATUS_OK;
}

static bool same_text(const stw_text *a, const stw_text *b) {
    return a->length == b->length && memcmp(a->data, b->data, a->length) == 0;
}

/* Settings that are written of a plan: rates of an optimizer that works in a framework's job. */
static bool changes_settings(const stw_plan *base, const stw_plan *plan) {
    static const stw_emit_options options = {.simulate = stw_sim_seconds};
    const char *engine = stw_engine_name(plan->run.engine);
    stw_text a = STW_TEXT_INIT, b = STW_TEXT_INIT, notes = STW_TEXT_INIT;
    bool written = stw_emit_plan(engine, base, &options, &a, &notes, NULL) == STW_STATUS_OK;
    stw_text_free(&notes);
    written = written && stw_emit_plan(engine, plan, &options, &b, &notes, NULL) == STW_STATUS_OK;
    const bool changed = written && !same_text(&a, &b);
    stw_text_free(&notes);
    stw_text_free(&a);
    stw_text_free(&b);
    return changed;
}

/* ---- the bits of a run ---- */

static bool run_digest(size_t model, const key_case *c, const char *setting,
                       uint64_t digest[STW_N_DIGESTS]) {
    const stw_executor_options options = {.backend = "host", .steps = 3, .seed = 11};
    stw_error err = STW_ERROR_INIT;
    stw_plan *plan = NULL;
    stw_run_result *result = NULL;
    stw_status status = make_plan(model, c, setting, true, &plan, &err);
    if (status == STW_STATUS_OK) status = stw_execute(plan, &options, &result, &err);
    if (status == STW_STATUS_OK) memcpy(digest, result->digest, sizeof result->digest);
    if (status != STW_STATUS_OK) fprintf(stderr, "%s: %s\n", setting, err.text);
    stw_run_result_free(result);
    stw_plan_free(plan);
    return status == STW_STATUS_OK;
}

/* The same in every case, so that the last answer is kept. */
static bool changes_bits(size_t model, const char *setting) {
    static const key_case plain = {"auto", {NULL}};
    static uint64_t usual[N_MODELS][STW_N_DIGESTS];
    static bool known[N_MODELS], changed;
    static char last[640];
    uint64_t found[STW_N_DIGESTS];
    if (strcmp(last, setting) == 0) return changed;
    snprintf(last, sizeof last, "%s", setting);
    if (!known[model]) known[model] = run_digest(model, &plain, NULL, usual[model]);
    changed = known[model] && run_digest(model, &plain, setting, found) &&
              memcmp(usual[model], found, sizeof found) != 0;
    return changed;
}

/* ---- other values of a key ---- */

static void quantity_text(const stw_spec_row *row, double value, char *out, size_t out_size) {
    if (row->kind == STW_SPEC_COUNT)
        snprintf(out, out_size, "%.0f", floor(value));
    else if (row->kind == STW_SPEC_BYTES)
        stw_bytes_format_exact((uint64_t)value, out, out_size);
    else if (row->unit == STW_UNIT_RATIO)
        snprintf(out, out_size, "%.9g", value);
    else
        stw_quantity_format_exact(value, row->unit, out, out_size);
}

/* Number i of the values beside words: multiples of the present one, or round ones. */
static bool other_number(const stw_spec_row *row, const void *base, size_t i, char *out,
                         size_t out_size) {
    static const double factors[] = {16, 1.0 / 16, 2, 0.5, 200, 1.0 / 200};
    static const double wholes[] = {1, 2, 3, 4}, shares[] = {0.25, 0.5, 1, 0};
    static const double sizes[] = {65536, 1048576, 32e6, 1e9};
    const bool is_word = stw_spec_word_of(row, base) != NULL;
    double now = row->kind == STW_SPEC_NUMBER ? stw_spec_get_double(row, base)
                                              : (double)stw_spec_get_u64(row, base);
    double value;
    if (!is_word && now > 0) {
        if (i >= sizeof factors / sizeof factors[0]) return false;
        value = now * factors[i];
    } else {
        if (i >= 4) return false;
        value = row->kind == STW_SPEC_BYTES     ? sizes[i]
                : row->kind == STW_SPEC_COUNT   ? wholes[i]
                : row->unit == STW_UNIT_RATIO   ? shares[i]
                : row->unit == STW_UNIT_SECONDS ? 1e-5 * wholes[i]
                                                : 1e9 * wholes[i];
    }
    quantity_text(row, value, out, out_size);
    return true;
}

static bool other_value(const stw_spec_row *row, const void *base, size_t i, char *out,
                        size_t out_size);

/* One item whose keys all have a value of their own. */
static void one_item(const stw_spec_items *items, char *out, size_t out_size) {
    char zeros[512] = {0};
    size_t used = (size_t)snprintf(out, out_size, "[{");
    for (size_t i = 0; i < items->table->n_rows && items->item_size <= sizeof zeros; i++) {
        const stw_spec_row *row = &items->table->rows[i];
        char value[128];
        if (strchr(row->key, '.') != NULL || (!other_value(row, zeros, 1, value, sizeof value) &&
                                              !other_value(row, zeros, 0, value, sizeof value)))
            continue;
        used += (size_t)snprintf(out + used, out_size - used, "%s%s: %s", i > 0 ? ", " : "",
                                 row->key, value);
    }
    snprintf(out + used, out_size - used, "}]");
}

static bool other_value(const stw_spec_row *row, const void *base, size_t i, char *out,
                        size_t out_size) {
    for (const stw_spec_word *w = row->words; w != NULL && w->word != NULL; w++, i--)
        if (i == 0 && row->kind != STW_SPEC_FLAGS && row->kind != STW_SPEC_MAP)
            return snprintf(out, out_size, "%s", w->word) > 0;
    switch (row->kind) {
    case STW_SPEC_BOOL:
        snprintf(out, out_size, i == 0 ? "true" : "false");
        return i < 2;
    case STW_SPEC_COUNT:
    case STW_SPEC_BYTES:
    case STW_SPEC_NUMBER:
        return other_number(row, base, i, out, out_size);
    case STW_SPEC_PAIR:
        snprintf(out, out_size, "[0.8, 0.95]");
        return i == 0;
    case STW_SPEC_TEXT:
    case STW_SPEC_STRING:
        snprintf(out, out_size, "other");
        return i == 0;
    case STW_SPEC_STRINGS:
        snprintf(out, out_size, "['*']");
        return i == 0;
    case STW_SPEC_FLAGS:
        snprintf(out, out_size, "[]");
        return i == 0;
    case STW_SPEC_ITEMS:
        one_item(row->items, out, out_size);
        return i == 0;
    default: /* a word alone has no other value; a map's rows are tested one by one */
        return false;
    }
}

/* ---- the test ---- */

enum { MOST_CASES = 16 };
/* What became of the values of one key in all cases of an engine and a model. */
typedef struct outcome {
    unsigned tried, refused, changed, same;
    unsigned same_in[MOST_CASES];
    bool many_same; /* in one case */
    char last_same[256];
} outcome;

typedef struct tried_case {
    size_t model;
    const key_case *c;
    stw_plan *base;
    stw_text text, report;
} tried_case;

/* Does another program, byte or second follow from the decisions of the case? No solver is asked
 * then, which takes most of the time. */
static bool changes_derived(const tried_case *t, stw_plan *plan) {
    stw_text text = STW_TEXT_INIT;
    plan->decisions = t->base->decisions;
    plan->outcome = t->base->outcome;
    plan->verdict = t->base->verdict;
    plan->objective_s = t->base->objective_s;
    stw_status status = stw_plan_derive(plan, NULL);
    if (status == STW_STATUS_OK) status = stw_sim_plan(plan, NULL, NULL);
    if (status == STW_STATUS_OK) describe(plan, &text);
    const bool changed = text.data != NULL && !same_text(&text, &t->text);
    stw_text_free(&text);
    plan->decisions = (stw_decisions){0};
    return changed;
}

static void try_value(const tried_case *t, const stw_spec_row *row, const char *value, outcome *o) {
    char setting[640];
    stw_error why = STW_ERROR_INIT;
    stw_plan *plan = NULL;
    stw_text text = STW_TEXT_INIT, report = STW_TEXT_INIT;
    snprintf(setting, sizeof setting, "%s=%s", row->key, value);
    stw_status status = new_plan(t->model, t->c, setting, false, &plan, &why);
    o->tried++;
    if (status == STW_STATUS_OK && changes_derived(t, plan)) {
        o->changed++;
        stw_plan_free(plan);
        return;
    }
    stw_plan_free(plan);
    plan = NULL;
    if (status == STW_STATUS_OK) status = make_plan(t->model, t->c, setting, false, &plan, &why);
    if (is_refusal(status)) {
        o->refused++;
        CU_ASSERT_TRUE(strstr(why.text, row->key) != NULL || why.text[0] != '\0');
        return;
    }
    if (status == STW_STATUS_SOLVER) return; /* says nothing of the key */
    if (status != STW_STATUS_OK)
        fprintf(stderr, "%s: %s: %s: %s\n", t->c->name, setting, why.where, why.text);
    CU_ASSERT_EQUAL_FATAL(status, STW_STATUS_OK);
    describe(plan, &text);
    bool changed = !same_text(&text, &t->text);
    /* what a run reads is no figure of its plan */
    if (!changed && (row->label || strcmp(row->key, "load.weights") == 0)) {
        CU_ASSERT_TRUE(report_of(plan, &report));
        changed = !same_text(&report, &t->report);
    }
    if (!changed && t->base->job->engine->spec.own_process &&
        ((row->needs & (1ull << STW_NEED_OWN | 1ull << STW_NEED_STEP)) != 0 ||
         row->kind == STW_SPEC_ITEMS))
        changed = changes_bits(t->model, setting);
    if (!changed && stw_engine_steps_inside(&t->base->job->engine->spec) &&
        row->kind == STW_SPEC_ITEMS)
        changed = changes_settings(t->base, plan);
    if (changed)
        o->changed++;
    else
        snprintf(o->last_same, sizeof o->last_same, "%s: %.200s", t->c->name, setting), o->same++;
    stw_text_free(&text);
    stw_text_free(&report);
    stw_plan_free(plan);
}

static const char role_prefix[] = "roles.0.";

/* Value number `i` of a key in every case, until one changes something. False: there is none. */
static bool try_row(const tried_case *cases, size_t n, const stw_spec_row *row, size_t i,
                    outcome *o) {
    char value[512];
    bool any = false;
    for (size_t c = 0; c < n && o->changed == 0; c++) {
        const void *base = stw_run_spec_has_key(row->key) ? (const void *)&cases[c].base->run
                                                          : &cases[c].base->cluster;
        if (strncmp(row->key, role_prefix, sizeof role_prefix - 1) == 0)
            base = &cases[c].base->run.roles[0];
        const unsigned before = o->same;
        stw_text now = STW_TEXT_INIT;
        if (!other_value(row, base, i, value, sizeof value)) continue;
        any = true;
        stw_spec_write_value(row, base, &now);
        if (now.data == NULL || strcmp(now.data, value) != 0) try_value(&cases[c], row, value, o);
        if (o->same > before && ++o->same_in[c] > 1) o->many_same = true;
        stw_text_free(&now);
    }
    return any;
}

/* What auto decides may be asked for, and then changes nothing. If all else is refused, it is the
 * only value that the key can have there. */
static bool is_only_value(const stw_spec_row *row, const outcome *o) {
    return row->fallback != NULL && strcmp(row->fallback, "auto") == 0 && !o->many_same &&
           o->refused > 0;
}

static void check_row(size_t model, const tried_case *tried, size_t n, const stw_spec_row *row) {
    outcome o = {0};
    /* it moves only plans that come near a limit: cli.accept */
    if (strcmp(row->key, "placement.accept") == 0) return;
    for (size_t i = 0; o.changed == 0 && try_row(tried, n, row, i, &o);) i++;
    bool good = o.changed > 0 || o.refused == o.tried || is_only_value(row, &o);
    if (!good)
        fprintf(stderr, "%s, %s: no value of %s changes anything (%s)\n",
                stw_engine_name(tried[0].base->run.engine), model_names[model], row->key,
                o.last_same);
    CU_ASSERT_TRUE(good);
}

/* The keys of an item of `roles`, in cases that have one. */
static void check_role_rows(size_t model, const tried_case *tried, size_t n) {
    const stw_spec_table *table = stw_role_table();
    for (size_t r = 0; r < table->n_rows; r++) {
        char key[64];
        stw_spec_row row = table->rows[r];
        snprintf(key, sizeof key, "%s%s", role_prefix, row.key);
        row.key = key;
        check_row(model, tried, n, &row);
    }
}

/* A key with an effect in no case, though a value of it was accepted, fails. */
static void check_cases(size_t model, const key_case *cases) {
    tried_case tried[MOST_CASES];
    size_t n = 0;
    for (const key_case *c = cases; c->name != NULL; c++) {
        if (model > 0 && strncmp(c->name, "dense:", 6) == 0) continue; /* refused with experts */
        tried[n] = (tried_case){model, c, NULL, STW_TEXT_INIT, STW_TEXT_INIT};
        CHECK_OK(make_plan(model, c, NULL, false, &tried[n].base, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(tried[n].base);
        describe(tried[n].base, &tried[n].text);
        CU_ASSERT_TRUE(report_of(tried[n].base, &tried[n].report));
        n++;
    }
    for (int which = 0; which < 2; which++) {
        const stw_spec_table *table = which == 0 ? stw_run_spec_table() : stw_cluster_table();
        for (size_t r = 0; r < table->n_rows && tried[0].base->job->n_roles == 1; r++)
            check_row(model, tried, n, &table->rows[r]);
    }
    if (tried[0].base->job->n_roles > 1) check_role_rows(model, tried, n);
    for (size_t i = 0; i < n; i++) {
        stw_text_free(&tried[i].text);
        stw_text_free(&tried[i].report);
        stw_plan_free(tried[i].base);
    }
}

/* The model of this program: 0 the dense one, 1 the one with experts. */
static size_t key_model;
static void keys_of_stowage(void) { check_cases(key_model, stowage_cases); }
static void keys_of_fsdp2(void) { check_cases(key_model, fsdp2_cases); }
static void keys_of_megatron(void) { check_cases(key_model, megatron_cases); }

static void keys_of_roles(void) { check_cases(key_model, role_cases); }
static void keys_of_deepspeed(void) { check_cases(key_model, deepspeed_cases); }

static int key_test_main(const char *name, size_t model) {
    static const stw_test tests[] = {
        {"every key of engine stowage has an effect or is refused", keys_of_stowage},
        {"every key of engine fsdp2 has an effect or is refused", keys_of_fsdp2},
        {"every key of engine deepspeed has an effect or is refused", keys_of_deepspeed},
        {"every key of engine megatron has an effect or is refused", keys_of_megatron},
        {"every key of a role has an effect or is refused", keys_of_roles},
    };
    key_model = model;
    if (!write_models()) return 2;
    int code = stw_test_run_all(name, tests, sizeof tests / sizeof tests[0]);
    remove_models();
    return code;
}

#endif
