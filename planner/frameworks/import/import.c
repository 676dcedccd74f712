/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/import/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "models/zoo.h"
#include "plan/spec/registry.h"
#include "plan/spec/spec_keys.h"
#include "planner/frameworks/import/areal.h"
#include "planner/frameworks/import/deepspeed.h"
#include "planner/frameworks/import/derived.h"
#include "planner/frameworks/import/llamafactory.h"
#include "planner/frameworks/import/megatron.h"
#include "planner/frameworks/import/ms_swift.h"
#include "planner/frameworks/import/verl.h"

enum { MAX_BYTES = 1 << 20 };

typedef struct framework {
    const char *name, *defaults; /* where the defaults are from */
    stw_status (*read)(const char *text, size_t length, stw_import *out, stw_error *err);
} framework;

static const framework frameworks[] = {
    {"megatron", "Megatron-LM d98e8a6", stw_megatron_import},
    {"ms-swift", "ms-swift 4.6.0", stw_ms_swift_import},
    {"deepspeed", "DeepSpeed 0.19.8", stw_deepspeed_import},
    {"verl", "verl 0.9.1", stw_verl_import},
    {"areal", "AReaL 1.0.4", stw_areal_import},
    {"llamafactory", "LLaMA-Factory 0.9.5", stw_llamafactory_import}};
#define EXPECTED "megatron, ms-swift, deepspeed, verl, areal or llamafactory"
enum { N_FRAMEWORKS = sizeof frameworks / sizeof frameworks[0] };

static const framework *framework_of(const char *name, size_t length) {
    for (size_t i = 0; i < N_FRAMEWORKS; i++)
        if (strlen(frameworks[i].name) == length && memcmp(frameworks[i].name, name, length) == 0)
            return &frameworks[i];
    return NULL;
}

const char *stw_import_defaults(const char *what) {
    const framework *from = framework_of(what, strcspn(what, ":"));
    return from != NULL ? from->defaults : "";
}

bool stw_import_is(const char *what) {
    size_t n = strcspn(what, ":");
    return what[n] == ':' && framework_of(what, n) != NULL;
}

/* The length of :LINE at the end of a path; 0: none. */
static size_t line_length(const char *path) {
    const char *colon = strrchr(path, ':');
    const size_t n = colon != NULL ? strlen(colon + 1) : 0;
    if (n == 0 || n > 7 || colon == path || strspn(colon + 1, "0123456789") != n) return 0;
    return strtol(colon + 1, NULL, 10) > 0 ? n + 1 : 0;
}

stw_status stw_import_parse(const char *name, const char *path, const char *text, size_t length,
                            stw_import *out, stw_error *err) {
    const framework *from = framework_of(name, strlen(name));
    *out = (stw_import){.pool = NULL};
    if (from == NULL)
        return stw_fail(err, STW_STATUS_USAGE, "--from", "found \"%.60s\", expected " EXPECTED,
                        name);
    out->pool = stw_pool_new();
    out->dashes = "--";
    const size_t named = strlen(path) - line_length(path);
    if (named < strlen(path)) out->line = atoi(path + named + 1);
    if (out->pool != NULL) out->path = stw_pool_printf(out->pool, "%.*s", (int)named, path);
    char *copy = out->path != NULL ? stw_pool_alloc(out->pool, length + 1) : NULL;
    if (copy == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    memcpy(copy, text, length);
    copy[length] = '\0';
    out->text = copy;
    out->text_length = length;
    const stw_status status = from->read(text, length, out, err);
    if (status == STW_STATUS_OK && out->line > 0 && !out->line_is_read)
        return stw_fail(err, STW_STATUS_USAGE, path,
                        "this file is no script; name it without a line");
    return status;
}

const char *stw_import_place(const stw_import *import) {
    if (import->line == 0) return import->path;
    return stw_pool_printf(import->pool, "%s:%d", import->path, import->line);
}

stw_status stw_import_read(const char *what, stw_import *out, stw_error *err) {
    const size_t n = strcspn(what, ":");
    const char *path = what + n + 1;
    char *text = NULL;
    uint64_t length = 0;
    *out = (stw_import){.pool = NULL};
    if (!stw_import_is(what) || *path == '\0')
        return stw_fail(err, STW_STATUS_USAGE, "--from",
                        "found \"%.60s\", expected FRAMEWORK:FILE with " EXPECTED, what);
    char file[4096];
    const size_t named = strlen(path) - line_length(path);
    if (named >= sizeof file)
        return stw_fail(err, STW_STATUS_USAGE, "--from", "found a path of more than 4095 bytes");
    snprintf(file, sizeof file, "%.*s", (int)named, path);
    stw_status status = stw_file_read(file, MAX_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK)
        status =
            stw_import_parse(framework_of(what, n)->name, path, text, (size_t)length, out, err);
    free(text);
    return status;
}

void stw_import_free(stw_import *import) {
    free(import->config);
    stw_pool_free(import->pool);
    *import = (stw_import){.pool = NULL};
}

bool stw_import_has_model(const stw_import *import) {
    return import->config != NULL || import->model != NULL;
}

/* The model's path is on the machine of the launch: only its name counts here. */
static stw_status open_named(const stw_import *import, const char *data_folder, stw_model **out,
                             stw_error *err) {
    stw_error inner = STW_ERROR_INIT;
    const stw_status status = stw_zoo_open(data_folder, import->model, out, &inner);
    if (status == STW_STATUS_OK) return status;
    return stw_fail(err, status, import->path, "model %.100s: %s; or add --model", import->model,
                    inner.text);
}

/* A model that is given by sizes has no name: "1.81B model of launch.sh", not that of the file. */
static stw_status name_by_size(stw_model *model, stw_error *err) {
    const double billions = (double)model->params / 1e9;
    const char *name = stw_pool_printf(model->pool, "%.3gB model of %s", billions, model->name);
    if (name == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->name, "out of memory");
    model->name = name;
    return STW_STATUS_OK;
}

stw_status stw_import_model(stw_import *import, const char *model, const char *data_folder,
                            stw_model **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *opened = NULL;
    if (model != NULL && import->config != NULL)
        return stw_fail(err, STW_STATUS_USAGE, "--from", "the model comes from it; omit --model");
    if (model == NULL && !stw_import_has_model(import))
        return stw_fail(err, STW_STATUS_USAGE, "--model", "required: %.100s names no model",
                        import->path);
    if (model != NULL)
        STW_TRY(stw_model_open(model, data_folder, &opened, err));
    else if (import->config == NULL)
        STW_TRY(open_named(import, data_folder, &opened, err));
    else
        STW_TRY(stw_model_parse_config(import->path, import->config, import->config_length,
                                       data_folder, &opened, err));
    if (import->config != NULL) STW_TRY(name_by_size(opened, err));
    STW_TRY(stw_derived_add(import, opened, err));
    *out = opened;
    opened = NULL;
out:
    stw_model_free(opened);
    return status;
}

static stw_status set(const stw_import *import, const char *setting, stw_run_spec *run,
                      stw_error *err) {
    char key[128];
    size_t n = strcspn(setting, "=");
    snprintf(key, sizeof key, "%.*s", (int)n, setting);
    return stw_run_spec_set(run, key, setting + n + 1, import->path, err);
}

stw_status stw_import_run(const stw_import *import, stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < import->n_settings && status == STW_STATUS_OK; i++)
        status = set(import, import->settings[i], run, err);
    return status;
}

uint32_t stw_import_nodes(const stw_import *import, uint32_t gpus) {
    if (gpus > 0 && import->gpus == 0 && import->nodes <= 65536) return (uint32_t)import->nodes;
    if (gpus == 0 || import->gpus == 0 || import->gpus % gpus != 0) return 0;
    return import->gpus / gpus <= 65536 ? (uint32_t)(import->gpus / gpus) : 0;
}

stw_status stw_import_cluster(const stw_import *import, stw_cluster *cluster, stw_error *err) {
    char share[32];
    if (import->scheduler == NULL || import->kill_share >= 1 || cluster->host.kill_share < 1)
        return STW_STATUS_OK;
    snprintf(share, sizeof share, "%.6g", import->kill_share);
    return stw_cluster_set(cluster, "node.host.kill_share", share, import->path, err);
}

/* Has a key another value than the file's? Then it was given beside the file. */
static bool is_given(const stw_import *import, const char *key, uint64_t value) {
    const size_t length = strlen(key);
    for (size_t i = import->n_settings; i-- > 0;) {
        const char *setting = import->settings[i];
        if (strncmp(setting, key, length) == 0 && setting[length] == '=')
            return strtoull(setting + length + 1, NULL, 10) != value;
    }
    return false;
}

static stw_status set_number(const stw_import *import, const char *key, uint64_t value,
                             stw_run_spec *run, stw_error *err) {
    char setting[96];
    snprintf(setting, sizeof setting, "%s=%" PRIu64, key, value);
    return set(import, setting, run, err);
}

/* Copies of all state: what the launch had on its own GPUs, on those of the cluster. */
static stw_status set_copies(const stw_import *import, uint64_t gpus, stw_run_spec *run,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_parallel *p = &run->parallel;
    const uint64_t each = import->shard_gpus;
    uint64_t copies = import->replicated && p->dp_shard == 1 && p->dp_replicate == 1 ? gpus : 0;
    if (each > 0 && each < gpus && gpus % each == 0) {
        copies = gpus / each;
        const uint64_t shards = stw_max_u64(each / stw_max_u64(p->cp, 1), 1);
        STW_TRY(set_number(import, "parallel.dp_shard", shards, run, err));
    } else if (each >= gpus) {
        copies = 1;
        STW_TRY(set(import, "parallel.dp_shard=auto", run, err));
    }
    if (copies > 0) status = set_number(import, "parallel.dp_replicate", copies, run, err);
out:
    return status;
}

/* A step has as many sequences on whatever ranks, micro batches and GPUs. Packed ones need not fill
 * the micro batches that they take. A batch.grad_accumulation beside the file gives another step,
 * unless packed sequences of this one take as many micro batches. */
static stw_status keep_step(const stw_import *import, uint64_t ranks, stw_run_spec *run,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t sequences = import->step_sequences, packed = run->batch.max_tokens_per_gpu;
    const uint64_t tokens = stw_times(sequences, run->batch.seq_len);
    const uint64_t once = packed > 0 ? stw_times(stw_times(ranks, run->parallel.cp), packed)
                                     : stw_times(ranks, run->batch.micro_batch);
    const bool open = stw_run_spec_is_open(run);
    const bool takes = packed > 0 && !open && once > 0 &&
                       stw_div_up_u64(tokens, once) == run->batch.grad_accumulation;
    if (sequences == 0 || run->batch.seq_len == 0 ||
        (!takes && is_given(import, "batch.grad_accumulation", run->batch.grad_accumulation)))
        return STW_STATUS_OK;
    if (packed > 0 || open) STW_TRY(set_number(import, "batch.tokens_per_step", tokens, run, err));
    if (open || once == 0) return STW_STATUS_OK;
    if (packed == 0 && sequences % once != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, import->path,
                        "the %" PRIu64 " sequences of an optimizer step are no multiple of "
                        "batch.micro_batch %" PRIu64 " x %" PRIu64
                        " data-parallel ranks; another batch.micro_batch or --set nodes, or "
                        "batch.grad_accumulation for another step",
                        sequences, run->batch.micro_batch, ranks);
    const uint64_t n = stw_div_up_u64(packed > 0 ? tokens : sequences, once);
    status = set_number(import, "batch.grad_accumulation", stw_min_u64(n, 65536), run, err);
out:
    return status;
}

/* DeepSpeedConfig._batch_assertion: the three values of the file, and what else would agree. */
static stw_status refuse_triple(const stw_import *import, uint64_t micro, uint64_t steps,
                                uint64_t ranks, stw_error *err) {
    const uint64_t once = stw_times(micro, ranks);
    char advice[96] = "";
    if (once > 0 && import->global_batch % once == 0)
        snprintf(advice, sizeof advice, "; or --set batch.grad_accumulation=%" PRIu64,
                 import->global_batch / once);
    return stw_fail(err, STW_STATUS_BAD_INPUT, import->path,
                    "train_batch_size %" PRIu64 " is not train_micro_batch_size_per_gpu %" PRIu64
                    " x gradient_accumulation_steps %" PRIu64 " x %" PRIu64
                    " data-parallel ranks: DeepSpeed asserts it (runtime/config.py, "
                    "_batch_assertion); use %" PRIu64 ", or leave one of them out%s",
                    import->global_batch, micro, steps, ranks, stw_times(once, steps), advice);
}

/* runtime/config.py at 0.19.8, DeepSpeedConfig._set_batch_related_parameters. A micro batch beside
 * the file keeps the step, an accumulation beside it gives another one. */
static stw_status deal_triple(const stw_import *import, uint64_t ranks, stw_run_spec *run,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t whole = import->global_batch;
    const uint64_t own = stw_max_u64(import->micro, 1), n = stw_max_u64(import->accumulation, 1);
    const bool other_micro = run->batch.micro_batch != own;
    const bool other_steps = run->batch.grad_accumulation != n;
    uint64_t micro = run->batch.micro_batch, steps = run->batch.grad_accumulation;
    if (import->micro == 0 && !other_micro && ranks > 0) micro = whole / ranks / steps;
    if (!other_steps && stw_times(micro, ranks) > 0 && (import->accumulation == 0 || other_micro))
        steps = import->micro > 0 || other_micro ? whole / micro / ranks : 1;
    if (micro > 0) STW_TRY(set_number(import, "batch.micro_batch", micro, run, err));
    if (stw_run_spec_is_open(run) && run->batch.seq_len > 0)
        return set_number(import, "batch.tokens_per_step", stw_times(whole, run->batch.seq_len),
                          run, err);
    const bool agrees = stw_times(stw_times(micro, steps), ranks) == whole;
    if (micro == 0 || steps == 0 || (!agrees && !other_steps))
        return refuse_triple(import, micro, steps, ranks, err);
    status = set_number(import, "batch.grad_accumulation", steps, run, err);
out:
    return status;
}

static stw_status deal_batch(const stw_import *import, const stw_cluster *cluster,
                             stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_parallel *p = &run->parallel;
    uint32_t nodes = cluster->nodes; /* the trainer's */
    for (uint32_t i = 0; i < run->n_roles; i++)
        if (strcmp(run->roles[i].with, "none") == 0 && run->roles[i].nodes < nodes)
            nodes -= run->roles[i].nodes;
    const uint64_t gpus = (uint64_t)nodes * (cluster->gpus > 0 ? cluster->gpus : 1);
    const uint64_t ways = (uint64_t)p->tp * p->cp * p->pp;
    char setting[64];
    if (import->one_gpu != NULL && gpus > 1)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, import->path, "%s", import->one_gpu);
    STW_TRY(set_copies(import, gpus, run, err));
    /* a search finds other ways */
    if (ways == 0 || (gpus % ways != 0 && !stw_run_spec_is_open(run)))
        return stw_fail(
            err, STW_STATUS_BAD_INPUT, import->path,
            "parallel: tp %u x cp %u x pp %u does not divide the %llu GPUs that the cluster "
            "has for the trainer; use a --cluster of as many GPUs as the run has",
            p->tp, p->cp, p->pp, (unsigned long long)gpus);
    const uint64_t ranks = gpus % ways == 0 ? gpus / ways : 0,
                   once = stw_times(ranks, run->batch.micro_batch);
    for (int i = 0; i < 2; i++) {
        bool applies = i == 0 ? ranks == 1 && p->cp == 1 : gpus == 1;
        const char *const *one = i == 0 ? import->alone : import->single;
        for (; applies && one != NULL && *one != NULL; one++) STW_TRY(set(import, *one, run, err));
    }
    if (import->global_batch == 0) return keep_step(import, ranks, run, err);
    if (import->triple) return deal_triple(import, ranks, run, err);
    if (stw_run_spec_is_open(run) && run->batch.seq_len > 0 && run->batch.max_tokens_per_gpu == 0) {
        snprintf(setting, sizeof setting, "batch.tokens_per_step=%llu",
                 (unsigned long long)stw_times(import->global_batch, run->batch.seq_len));
        status = set(import, setting, run, err);
        goto out;
    }
    if (once == 0 || import->global_batch % once != 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, import->path,
                        "global-batch-size %llu is no multiple of micro-batch-size %llu x %llu "
                        "data-parallel ranks of the cluster's %llu GPUs",
                        (unsigned long long)import->global_batch,
                        (unsigned long long)run->batch.micro_batch, (unsigned long long)ranks,
                        (unsigned long long)gpus);
    snprintf(setting, sizeof setting, "batch.grad_accumulation=%llu",
             (unsigned long long)(import->global_batch / once));
    status = set(import, setting, run, err);
out:
    return status;
}

/* Does a key need ranks, gathers, micro batches, parked moments or saves that the run has not?
 * (plan/job/effect.h tests all needs.) */
static bool is_idle(const stw_spec_row *row, bool one_gpu, const stw_run_spec *run) {
    const uint64_t of_ranks = 1ull << STW_NEED_SHARDS | 1ull << STW_NEED_RANKS |
                              1ull << STW_NEED_PEERS | 1ull << STW_NEED_NODES;
    const bool gathers = !one_gpu || run->precision.params != run->precision.compute;
    return ((row->needs & of_ranks) != 0 && one_gpu) ||
           ((row->needs & 1ull << STW_NEED_GATHERS) != 0 && !gathers) ||
           ((row->needs & 1ull << STW_NEED_ACCUMULATES) != 0 &&
            run->batch.grad_accumulation == 1) ||
           ((row->needs & 1ull << STW_NEED_PARKED_MOMENTS) != 0 && !run->park.moments) ||
           ((row->needs & 1ull << STW_NEED_CHECKPOINTS) != 0 && run->checkpoint.every == 0);
}

/* The default of a key that still has the file's value. */
static stw_status take_default(const stw_import *import, const stw_spec_row *row,
                               const char *imported, const stw_run_spec *defaults,
                               stw_run_spec *run, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text value = STW_TEXT_INIT, usual = STW_TEXT_INIT;
    stw_spec_write_value(row, run, &value);
    stw_spec_write_value(row, defaults, &usual);
    STW_TRY(stw_text_status(&value, err));
    STW_TRY(stw_text_status(&usual, err));
    if (value.data != NULL && usual.data != NULL && strcmp(value.data, imported) == 0)
        status = stw_run_spec_set(run, row->key, usual.data, import->path, err);
out:
    stw_text_free(&value);
    stw_text_free(&usual);
    return status;
}

/* What a file says for several ranks or micro batches has no effect on one: nobody set it. */
static stw_status drop_idle(const stw_import *import, bool one_gpu, stw_run_spec *run,
                            stw_error *err) {
    stw_run_spec defaults;
    stw_status status = stw_run_spec_init_as(run, &defaults, err);
    if (status != STW_STATUS_OK) return status;
    for (size_t i = 0; i < import->n_settings; i++) {
        const size_t length = strcspn(import->settings[i], "=");
        const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), import->settings[i], length);
        if (row != NULL && is_idle(row, one_gpu, run))
            STW_TRY(
                take_default(import, row, import->settings[i] + length + 1, &defaults, run, err));
    }
out:
    stw_run_spec_free(&defaults);
    return status;
}

stw_status stw_import_batch(const stw_import *import, const stw_cluster *cluster, stw_run_spec *run,
                            stw_error *err) {
    const bool one_gpu = cluster->nodes == 1 && cluster->gpus <= 1;
    const stw_status status = deal_batch(import, cluster, run, err);
    return status == STW_STATUS_OK ? drop_idle(import, one_gpu, run, err) : status;
}

size_t stw_import_count(const stw_import *import, stw_import_use use) {
    size_t n = 0;
    for (size_t i = 0; i < import->n_lines; i++) n += import->lines[i].use == use;
    return n;
}

void stw_import_write(const stw_import *import, stw_text *out) {
    static const char *const heads[STW_N_IMPORT_USES] = {
        [STW_IMPORT_TAKEN] = "Flags that were understood",
        [STW_IMPORT_ASSUMED] = "Assumed, because the file does not say it",
        [STW_IMPORT_NO_EFFECT] = "Flags that change neither bytes nor seconds",
        [STW_IMPORT_NOT_MODELLED] = "Flags that are not modelled",
        [STW_IMPORT_UNKNOWN] = "Flags that are not known",
    };
    if (import->nodes > 1 && import->gpus == 0)
        stw_text_printf(out, "\n  The launch has %llu nodes.\n", (unsigned long long)import->nodes);
    else if (import->nodes > 1)
        stw_text_printf(out, "\n  The launch has %llu GPUs on %llu nodes.\n",
                        (unsigned long long)import->gpus, (unsigned long long)import->nodes);
    else if (import->gpus > 0)
        stw_text_printf(out, "\n  The launch has %llu GPUs.\n", (unsigned long long)import->gpus);
    if (import->scheduler != NULL && import->kill_share < 1)
        stw_text_printf(out, "\n  %s kills at %g%% of a node's memory.\n", import->scheduler,
                        100 * import->kill_share);
    for (int use = 0; use < STW_N_IMPORT_USES; use++) {
        if (stw_import_count(import, (stw_import_use)use) == 0) continue;
        stw_text_printf(out, "\n%s\n", heads[use]);
        for (size_t i = 0; i < import->n_lines; i++) {
            const stw_import_line *line = &import->lines[i];
            if ((int)line->use != use) continue;
            stw_text_printf(out, "  ");
            stw_text_append_printable(out, line->flag);
            stw_text_printf(out, ": ");
            stw_text_append_printable(out, line->value);
            if (line->note[0] != '\0') stw_text_printf(out, "  -> ");
            stw_text_append_printable(out, line->note);
            stw_text_printf(out, "\n");
        }
    }
}
