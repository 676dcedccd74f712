/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/emit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/check.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/emit/said.h"
#include "planner/frameworks/import/derived.h"

enum { MOST_ELSEWHERE = 20 };

typedef struct framework {
    const char *name;
    const char *engines; /* that it runs, with spaces between */
    void (*put)(stw_emission *e);
    void (*write)(const stw_emission *e, stw_text *out);
    /* Beginnings of keys that its settings do not say: the program that trains does, or the shell
     * that starts it. NULL at the end. */
    const char *elsewhere[MOST_ELSEWHERE + 1];
} framework;

#define ANYWHERE                                                                                   \
    "checkpoint.", "load.weights", "load.page_cached", "placement.gpu_fill", "placement.accept"
#define PROGRAM                                                                                    \
    ANYWHERE, "attention", "loss.", "trainable.", "moe.", "load.", "weight_sync.", "park.",        \
        "batch.log_prob", "batch.image_tokens", "roles"

static const framework frameworks[] = {
    {"megatron",
     "megatron",
     stw_emit_megatron_lm,
     stw_emit_as_arguments,
     {ANYWHERE, "allocator.", "load.", "weight_sync.", "park.", "batch.log_prob",
      "batch.image_tokens", "roles"}},
    {"deepspeed",
     "deepspeed",
     stw_emit_deepspeed,
     stw_emit_as_json,
     {PROGRAM, "batch.seq_len", "recompute.", "allocator.", "optimizer.implementation"}},
    {"ms-swift", "deepspeed fsdp2 megatron", stw_emit_ms_swift, stw_emit_as_script, {ANYWHERE}},
    {"llamafactory",
     "deepspeed fsdp2",
     stw_emit_llamafactory,
     stw_emit_as_yaml,
     {ANYWHERE, "allocator."}},
    {"verl",
     "fsdp2 megatron",
     stw_emit_verl,
     stw_emit_as_hydra,
     {ANYWHERE, "allocator.", "batch.image_tokens"}},
    {"areal",
     "fsdp2 megatron",
     stw_emit_areal,
     stw_emit_as_yaml,
     {ANYWHERE, "allocator.", "batch.image_tokens"}},
    {"fsdp2",
     "fsdp2",
     NULL,
     NULL,
     {PROGRAM, "parallel.tp", "parallel.cp", "parallel.ep", "parallel.etp"}}};
#define EXPECTED "megatron, deepspeed, ms-swift, llamafactory, verl, areal or fsdp2"

static const framework *framework_of(const char *what) {
    const size_t n = strcspn(what, ":");
    for (size_t i = 0; i < sizeof frameworks / sizeof frameworks[0]; i++)
        if (strlen(frameworks[i].name) == n && memcmp(frameworks[i].name, what, n) == 0)
            return &frameworks[i];
    return NULL;
}

bool stw_emit_is(const char *what) { return framework_of(what) != NULL; }

bool stw_emit_says_modules(const char *what) {
    static const char *const those[] = {"megatron", "fsdp2"};
    const framework *f = framework_of(what);
    for (size_t i = 0; i < sizeof those / sizeof those[0]; i++)
        if (f != NULL && strcmp(f->name, those[i]) == 0) return true;
    return false;
}

/* ---- reading back ---- */

/* Files that settings name are found from where the file of the import is. */
static const char *path_of(const stw_emission *e) {
    const char *slash = e->import != NULL ? strrchr(e->import->path, '/') : NULL;
    if (slash == NULL) return "settings";
    const char *path =
        stw_pool_printf(e->pool, "%.*s/settings", (int)(slash - e->import->path), e->import->path);
    return path != NULL ? path : "settings";
}

static bool describes_model(const framework *f, const stw_emission *e) {
    return strcmp(f->name, "megatron") == 0 && (e->import == NULL || e->import->config != NULL);
}

/* A key that the import has set is the framework's own. */
static bool was_set(const stw_import *import, const char *key) {
    const size_t n = strlen(key);
    for (size_t i = 0; i < import->n_settings; i++)
        if (strncmp(import->settings[i], key, n) == 0) return true;
    return false;
}

static const char *const *elsewhere_of(const framework *f, const stw_import *import,
                                       stw_pool *pool) {
    size_t n = 0;
    const char **out = stw_pool_array(pool, MOST_ELSEWHERE + 1, sizeof *out);
    for (size_t i = 0; out != NULL && i < MOST_ELSEWHERE && f->elsewhere[i] != NULL; i++)
        if (!was_set(import, f->elsewhere[i])) out[n++] = f->elsewhere[i];
    return out;
}

/* @param settings what is written; NULL: the flags in the framework's form, to see what they mean
 */
static stw_status read_back(const framework *f, const stw_emission *e, const stw_text *settings,
                            const char *data_folder, stw_emit_given *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_import import = {.pool = NULL};
    stw_text text = STW_TEXT_INIT;
    stw_run_spec *run = &out->run;
    *out = (stw_emit_given){.name = f->name};
    if (settings == NULL) f->write(e, &text);
    if (settings == NULL) settings = &text;
    STW_TRY(stw_run_spec_init(run, err));
    STW_TRY(stw_text_status(settings, err));
    STW_TRY(stw_import_parse(f->name, path_of(e), settings->data, settings->length, &import, err));
    if (describes_model(f, e) && data_folder != NULL)
        STW_TRY(stw_import_model(&import, NULL, data_folder, &out->model, err));
    else
        STW_TRY(stw_derived_add(&import, e->plan->model, err));
    STW_TRY(stw_import_run(&import, run, err));
    STW_TRY(stw_import_batch(&import, &e->plan->cluster, run, err));
    if (out->model != NULL && strcmp(out->model->digest, e->plan->model->digest) == 0) {
        stw_model_free(out->model);
        out->model = NULL;
    }
    const stw_parallel *p = &run->parallel;
    if (e->plan->job->world == (uint64_t)p->tp * p->pp && p->cp == 1) out->idle = import.alone;
    out->gpus = import.gpus;
    out->elsewhere = elsewhere_of(f, &import, e->pool);
out:
    stw_text_free(&text);
    stw_import_free(&import);
    return status;
}

/* What the flags mean. @return can they be read? e->status: no memory */
static bool read_flags(const framework *f, stw_emission *e, stw_emit_given *out) {
    const stw_status status = read_back(f, e, NULL, NULL, out, NULL);
    if (status == STW_STATUS_NO_MEMORY && e->status == STW_STATUS_OK)
        e->status = stw_fail(e->err, status, "--emit", "out of memory");
    return status == STW_STATUS_OK;
}

/* Do these settings give the same run on as many GPUs? */
static bool is_same(const framework *f, stw_emission *e, const stw_emit_given *as) {
    stw_emit_given now = {.name = NULL};
    const bool same = read_flags(f, e, &now) && stw_emit_given_same(as, &now, e->pool) &&
                      stw_emit_given_same(&now, as, e->pool);
    stw_emit_given_free(&now);
    return same;
}

/* ---- against the imported file ---- */

/* A list of maps has no text: "... ...". That of a script is what it is. */
static bool has_no_text(const stw_flag *flag) {
    if (flag->source != NULL) return false;
    for (const char *at = strstr(flag->value, "..."); at != NULL; at = strstr(at + 1, "..."))
        if ((at == flag->value || at[-1] == ' ') && (at[3] == '\0' || at[3] == ' ')) return true;
    return false;
}

static void add_own(stw_emission *e) {
    const stw_flags *flags = &e->import->flags;
    for (size_t i = 0; i < flags->n; i++) {
        const stw_flag *flag = &flags->items[i];
        if (flag->line == 0 || has_no_text(flag)) continue;
        stw_emit_put(e, flag->name, flag->value);
    }
}

static bool equal(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* The file's value of a flag; NULL: it has none. */
static const char *before(const stw_emission *e, size_t i) {
    const stw_flag *own = stw_flags_find(&e->import->flags, e->flags[i].name);
    return own != NULL && own->line > 0 ? own->value : NULL;
}

/* Sequences of a pass that verl asks for, where the file's own settings did not. */
static bool needs_log_prob(const stw_emission *e, const char *name) {
    return strstr(name, "log_prob_micro_batch_size_per_gpu") != NULL &&
           e->plan->run.batch.max_tokens_per_gpu == 0 &&
           !stw_emit_verl_lacks(e, strstr(name, ".ref.") != NULL);
}

/* Reading takes a default where the framework has none, or stops: recompute-num-layers beside a
 * method (transformer_config.py, __post_init__), the folder on NVMe (zero/offload_config.py) and
 * use-precision-aware-optimizer beside optimizer-cpu-offload (arguments.py, validate_args). */
static bool is_needed(const stw_emission *e, size_t i) {
    const char *name = e->flags[i].name;
    static const char *const needed[] = {"recompute-num-layers", "recompute_num_layers",
                                         "max-position-embeddings", /* of the model */
                                         "nvme_path", "use-precision-aware-optimizer"};
    if (before(e, i) != NULL || equal(e->flags[i].value, "false")) return false;
    for (size_t k = 0; k < sizeof needed / sizeof needed[0]; k++)
        if (strstr(name, needed[k]) != NULL) return true;
    return needs_log_prob(e, name);
}

/* Give flags i and j the file's values, if the settings still mean the same. */
static void try_own(const framework *f, stw_emission *e, size_t i, size_t j,
                    const stw_emit_given *as) {
    const char *first = e->flags[i].value, *second = e->flags[j].value;
    if (equal(first, before(e, i)) || equal(second, before(e, j))) return;
    if (is_needed(e, i) || is_needed(e, j)) return;
    e->flags[i].value = before(e, i);
    e->flags[j].value = before(e, j);
    if (is_same(f, e, as)) return;
    e->flags[i].value = first;
    e->flags[j].value = second;
}

/* Values of the file that mean the same stay, alone or in pairs, such as a batch of prompts and the
 * answers to each of them. */
static void keep_own(const framework *f, stw_emission *e) {
    stw_emit_given as = {.name = NULL};
    if (read_flags(f, e, &as)) {
        for (size_t i = 0; i < e->n; i++) try_own(f, e, i, i, &as);
        for (size_t i = 0; i < e->n; i++)
            for (size_t j = i + 1; j < e->n; j++) try_own(f, e, i, j, &as);
    }
    stw_emit_given_free(&as);
}

static void note_change(stw_text *notes, const char *sign, const char *dashes, const char *name,
                        const char *value) {
    stw_text_printf(notes, "%s%s", sign, dashes);
    stw_text_append_printable(notes, name);
    stw_text_printf(notes, " ");
    stw_text_append_printable(notes, value);
    stw_text_printf(notes, "\n");
}

/* GPUs and nodes of a launcher. @param first nothing is noted yet @return how many changed */
static size_t note_launch(const stw_emission *e, bool first, stw_text *notes) {
    const stw_import *import = e->import;
    const stw_cluster *c = &e->plan->cluster;
    const uint64_t nodes = import->nodes > 0 ? import->nodes : 1;
    const struct {
        const char *name;
        uint64_t before, now;
    } counts[] = {{"nproc_per_node", import->gpus / nodes, c->gpus > 0 ? c->gpus : 1},
                  {"nnodes", nodes, c->nodes}};
    size_t n = 0;
    if (import->n_launch == 0 || import->gpus == 0) return 0;
    for (size_t i = 0; i < 2; i++) {
        if (counts[i].before == counts[i].now) continue;
        if (first && n == 0) stw_text_printf(notes, "Changes against %s\n", import->path);
        stw_text_printf(notes, "- --%s %" PRIu64 "\n+ --%s %" PRIu64 "\n", counts[i].name,
                        counts[i].before, counts[i].name, counts[i].now);
        n++;
    }
    return n;
}

/* @param document all that did not change is there */
static void note_changes(const stw_emission *e, bool document, stw_text *notes) {
    size_t n = 0;
    const char *dashes = e->import->dashes;
    for (size_t i = 0; i < e->n; i++) {
        const stw_emit_flag *flag = &e->flags[i];
        const char *value = before(e, i);
        if (equal(value, flag->value)) continue;
        if (n++ == 0) stw_text_printf(notes, "Changes against %s\n", e->import->path);
        if (value != NULL) note_change(notes, "- ", dashes, flag->name, value);
        if (flag->value != NULL) note_change(notes, "+ ", dashes, flag->name, flag->value);
    }
    for (size_t i = 0; !document && i < e->import->flags.n; i++)
        if (has_no_text(&e->import->flags.items[i]))
            stw_text_printf(notes, "Left out, a list of maps: %s\n",
                            e->import->flags.items[i].name);
    n += note_launch(e, n == 0, notes);
    if (n == 0) stw_text_printf(notes, "No changes against %s\n", e->import->path);
}

/* Settings that are not read as the framework's own files are, before anybody has seen them. */
static stw_status refuse_unread(const framework *f, const stw_emission *e, const stw_error *why,
                                stw_error *err) {
    char where[64];
    const bool own = strcmp(why->where, path_of(e)) == 0;
    snprintf(where, sizeof where, "--emit %s", f->name);
    return stw_fail(err,
                    why->status == STW_STATUS_NO_MEMORY ? why->status : STW_STATUS_NOT_BUILT_IN,
                    where, "its settings cannot say this plan; nothing is written: %s%s%s",
                    own ? "" : why->where, own ? "" : ": ", why->text);
}

static stw_status check(const framework *f, stw_emission *e, const stw_emit_options *options,
                        const stw_text *settings, stw_text *notes, stw_error *err) {
    stw_emit_given read = {.name = NULL};
    stw_error why = STW_ERROR_INIT;
    stw_text lines = STW_TEXT_INIT, same = STW_TEXT_INIT;
    stw_status status = STW_STATUS_OK;
    if (f->write != NULL) {
        status = read_back(f, e, settings, options->data_folder, &read, &why);
        if (status != STW_STATUS_OK) status = refuse_unread(f, e, &why, err);
    } else {
        read.name = f->name;
        read.elsewhere = f->elsewhere;
        status = stw_emit_fsdp2_says(e, &read.run, err);
    }
    STW_TRY(status);
    STW_TRY(stw_emit_check(e, &read, options->simulate, &lines, &same, err));
    if (lines.length > 0)
        stw_text_printf(notes, "What settings of %s do not say; set it where training starts\n%s",
                        f->name, lines.data);
    if (same.length > 0) stw_text_append(notes, same.data, same.length);
    stw_text_append(notes, e->notes.data != NULL ? e->notes.data : "", e->notes.length);
out:
    stw_text_free(&lines);
    stw_text_free(&same);
    stw_emit_given_free(&read);
    return status;
}

/* ---- all ---- */

static void write_script(const framework *f, stw_emission *e, stw_text *settings) {
    if (stw_emit_as_own_script(e, f->name, settings)) return;
    f->write(e, settings);
    stw_emit_check_command(e, f->name, settings);
    if (e->import != NULL)
        stw_text_printf(&e->notes,
                        "%s is written anew: its command, and the variables that it needs; other "
                        "lines and comments are left out\n",
                        e->import->path);
}

static bool runs(const framework *f, const char *engine) {
    const size_t n = strlen(engine);
    for (const char *at = strstr(f->engines, engine); at != NULL; at = strstr(at + 1, engine))
        if ((at == f->engines || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

stw_status stw_emit_plan(const char *what, const stw_plan *plan, const stw_emit_options *options,
                         stw_text *settings, stw_text *notes, stw_error *err) {
    const framework *f = framework_of(what);
    if (f == NULL || plan == NULL)
        return stw_fail(err, STW_STATUS_USAGE, "--emit", "found \"%.60s\", expected " EXPECTED,
                        what);
    const char *engine = stw_run_spec_engine(&plan->run)->name;
    if (!runs(f, engine))
        return stw_fail(err, STW_STATUS_USAGE, "--emit",
                        "%s has no settings for engine %s; use --set engine=%.*s", f->name, engine,
                        (int)strcspn(f->engines, " "), f->engines);
    stw_emission e = {.plan = plan,
                      .pool = stw_pool_new(),
                      .notes = STW_TEXT_INIT,
                      .err = err,
                      .status = STW_STATUS_OK};
    if (e.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
    const bool same = options->from != NULL && framework_of(options->from) == f;
    if (same && options->import != NULL) e.import = options->import;
    if (f->put != NULL) {
        if (e.import != NULL) add_own(&e);
        f->put(&e);
        if (e.import != NULL && e.status == STW_STATUS_OK) keep_own(f, &e);
    }
    const bool document = f->write != NULL && stw_emit_as_document(&e, settings);
    if (e.status == STW_STATUS_OK && f->write != NULL && !document) write_script(f, &e, settings);
    if (e.status == STW_STATUS_OK) e.status = check(f, &e, options, settings, notes, err);
    if (e.status == STW_STATUS_OK && e.import != NULL) note_changes(&e, document, notes);
    if (e.status == STW_STATUS_OK && f->put == NULL) stw_emit_fsdp2(&e, settings);
    if (e.status != STW_STATUS_OK) { /* refused: there is nothing to write */
        stw_text_free(settings);
        stw_text_free(notes);
    }
    stw_text_free(&e.notes);
    stw_pool_free(e.pool);
    return e.status;
}

/* ---- changes of a plan that does not fit ---- */

static bool is_elsewhere(const void *of, const char *key) {
    const framework *f = of;
    for (size_t i = 0; i < MOST_ELSEWHERE && f->elsewhere[i] != NULL; i++)
        if (strncmp(key, f->elsewhere[i], strlen(f->elsewhere[i])) == 0) return true;
    return false;
}

/* Without what depends on the number of GPUs. */
static stw_status read_keys(const stw_said *by, const stw_plan *plan, stw_run_spec *out) {
    const framework *f = by->framework;
    stw_error ignored = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    stw_import import = {.pool = NULL};
    stw_text text = STW_TEXT_INIT;
    stw_emission e = {.plan = plan,
                      .import = by->import,
                      .pool = stw_pool_new(),
                      .notes = STW_TEXT_INIT,
                      .err = &ignored,
                      .status = STW_STATUS_OK};
    if (e.pool == NULL) return STW_STATUS_NO_MEMORY;
    status = STW_STATUS_BAD_INPUT;
    if (!runs(f, stw_run_spec_engine(&plan->run)->name)) goto out;
    add_own(&e);
    f->put(&e);
    STW_TRY(e.status);
    f->write(&e, &text);
    STW_TRY(stw_text_status(&text, &ignored));
    STW_TRY(stw_run_spec_init(out, &ignored));
    STW_TRY(stw_import_parse(f->name, "settings", text.data, text.length, &import, &ignored));
    STW_TRY(stw_derived_add(&import, plan->model, &ignored));
    STW_TRY(stw_import_run(&import, out, &ignored));
out:
    stw_text_free(&text);
    stw_text_free(&e.notes);
    stw_import_free(&import);
    stw_pool_free(e.pool);
    return status;
}

stw_status stw_emit_order_fixes(const char *from, const stw_import *import, stw_plan *plan,
                                stw_error *err) {
    const framework *f = framework_of(from);
    const char *program = stw_import_defaults(from); /* "verl 0.9.1" */
    stw_run_spec as_it_is = {0};
    if (f == NULL || f->put == NULL || plan->n_fixes == 0) return STW_STATUS_OK;
    const stw_said by = {
        .name = stw_pool_printf(plan->pool, "%.*s", (int)strcspn(program, " "), program),
        .framework = f,
        .plan = plan,
        .import = import,
        .as_it_is = &as_it_is,
        .is_elsewhere = is_elsewhere,
        .read_back = read_keys};
    /* what is not written as it is says nothing of its changes */
    stw_status status = STW_STATUS_OK;
    if (read_keys(&by, plan, &as_it_is) == STW_STATUS_OK && by.name != NULL)
        status = stw_said_order(&by, plan, err);
    stw_run_spec_free(&as_it_is);
    return status;
}
