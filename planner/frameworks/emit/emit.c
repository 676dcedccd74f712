/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/emit.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/import/derived.h"

typedef struct framework {
    const char *name;
    const char *engines; /* that it runs, with spaces between */
    void (*put)(stw_emission *e);
    void (*write)(const stw_emission *e, stw_text *out);
} framework;

static const framework frameworks[] = {
    {"megatron", "megatron", stw_emit_megatron, stw_emit_as_arguments},
    {"deepspeed", "deepspeed", stw_emit_deepspeed, stw_emit_as_json},
    {"ms-swift", "deepspeed fsdp2 megatron", stw_emit_ms_swift, stw_emit_as_script},
    {"llamafactory", "deepspeed", stw_emit_llamafactory, stw_emit_as_yaml},
    {"verl", "fsdp2 megatron", stw_emit_verl, stw_emit_as_hydra},
    {"areal", "fsdp2 megatron", stw_emit_areal, stw_emit_as_yaml},
    {"fsdp2", "fsdp2", NULL, NULL}};
#define EXPECTED "megatron, deepspeed, ms-swift, llamafactory, verl, areal or fsdp2"

static const framework *framework_of(const char *what) {
    const size_t n = strcspn(what, ":");
    for (size_t i = 0; i < sizeof frameworks / sizeof frameworks[0]; i++)
        if (strlen(frameworks[i].name) == n && memcmp(frameworks[i].name, what, n) == 0)
            return &frameworks[i];
    return NULL;
}

bool stw_emit_is(const char *what) { return framework_of(what) != NULL; }

/* ---- reading back ---- */

/* What --from makes of settings. */
typedef struct given {
    stw_run_spec run;
    const char *const *idle; /* KEY=VALUE that have no effect on one data-parallel rank; or NULL */
    uint64_t gpus;           /* of the launch; 0: not in the settings */
} given;

static bool lacks_model(const framework *f, const stw_emission *e) {
    return strcmp(f->name, "megatron") == 0 && e->import == NULL;
}

/* Only the run is compared: any model will do, with as many experts as the plan's. */
static void add_model(const framework *f, const stw_emission *e, stw_text *out) {
    uint64_t experts = 0;
    for (uint32_t g = 0; g < e->plan->model->n_groups; g++)
        experts = stw_max_u64(experts, e->plan->model->groups[g].facts.experts);
    if (!lacks_model(f, e)) return;
    stw_text_printf(out, "--num-layers 2 --hidden-size 64 --num-attention-heads 2");
    if (experts > 0) stw_text_printf(out, " --num-experts %llu", (unsigned long long)experts);
}

static stw_status read_back(const framework *f, const stw_emission *e, given *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_import import = {.pool = NULL};
    stw_text text = STW_TEXT_INIT;
    stw_run_spec *run = &out->run;
    *out = (given){.idle = NULL};
    f->write(e, &text);
    add_model(f, e, &text);
    STW_TRY(stw_run_spec_init(run, err));
    STW_TRY(stw_text_status(&text, err));
    STW_TRY(stw_import_parse(f->name, "settings", text.data, text.length, &import, err));
    import.derived.text_only = false;
    STW_TRY(stw_derived_add(&import, e->plan->model, err));
    STW_TRY(stw_import_run(&import, run, err));
    STW_TRY(stw_import_batch(&import, &e->plan->cluster, run, err));
    const stw_parallel *p = &run->parallel;
    if (e->plan->job->world == (uint64_t)p->tp * p->pp && p->cp == 1) out->idle = import.alone;
    out->gpus = import.gpus;
out:
    stw_text_free(&text);
    stw_import_free(&import);
    return status;
}

static const char *text_of(const stw_spec_row *row, const void *base, stw_pool *pool) {
    stw_text text = STW_TEXT_INIT;
    stw_spec_write_value(row, base, &text);
    const char *out = stw_pool_string(pool, text.data != NULL ? text.data : "");
    stw_text_free(&text);
    return out != NULL ? out : "";
}

static bool is_idle(const given *g, const char *key) {
    const size_t n = strlen(key);
    for (const char *const *idle = g->idle; idle != NULL && *idle != NULL; idle++)
        if (strncmp(*idle, key, n) == 0 && (*idle)[n] == '=') return true;
    return false;
}

typedef struct comparison {
    const stw_run_spec *planned;
    const given *given;
    stw_pool *pool;
    stw_text *notes; /* NULL: differences are only counted */
} comparison;

/* Where the plan names no method of recomputation, the settings name the one that realises it. What
 * a search keeps of tokens is in the accumulation that it has found. */
static bool is_realised(const comparison *c, const char *key) {
    if (c->notes != NULL && strcmp(key, "batch.tokens_per_step") == 0) return true;
    return c->notes != NULL && c->planned->recompute.method == 0 &&
           c->planned->recompute.granularity != 0 && c->given->run.recompute.granularity == 1 &&
           (strcmp(key, "recompute.method") == 0 || strcmp(key, "recompute.num_layers") == 0);
}

/* Rows that differ. @param a, b of the plan and of the settings */
static size_t compare_rows(const comparison *c, const stw_spec_table *table, const void *a,
                           const void *b, const char *prefix) {
    size_t n = 0;
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        if (row->kind == STW_SPEC_ITEMS || row->label || is_idle(c->given, row->key) ||
            is_realised(c, row->key))
            continue;
        const char *planned = text_of(row, a, c->pool), *found = text_of(row, b, c->pool);
        /* where the plan leaves a choice, any will do */
        if (strcmp(planned, found) == 0 || strcmp(planned, "auto") == 0) continue;
        n++;
        if (c->notes != NULL)
            stw_text_printf(c->notes, "  %s%s: planned %s, these settings give %s\n", prefix,
                            row->key, planned, found);
    }
    return n;
}

static size_t compare(const comparison *c) {
    const stw_run_spec *planned = c->planned, *run = &c->given->run;
    size_t n = compare_rows(c, stw_run_spec_table(), planned, run, "");
    if (planned->n_roles != run->n_roles && c->notes != NULL)
        stw_text_printf(c->notes, "  roles: planned %u, these settings give %u\n", planned->n_roles,
                        run->n_roles);
    n += planned->n_roles != run->n_roles;
    for (uint32_t i = 0; i < planned->n_roles && i < run->n_roles; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "roles.%u.", i);
        n += compare_rows(c, stw_role_table(), &planned->roles[i], &run->roles[i], prefix);
    }
    return n;
}

/* Do these settings give the same run on as many GPUs? */
static bool is_same(const framework *f, const stw_emission *e, const given *as) {
    given now = {.idle = NULL};
    const bool read = read_back(f, e, &now, NULL) == STW_STATUS_OK;
    const comparison there = {&as->run, &now, e->pool, NULL}, back = {&now.run, as, e->pool, NULL};
    const bool same = read && now.gpus == as->gpus && compare(&there) == 0 && compare(&back) == 0;
    stw_run_spec_free(&now.run);
    return same;
}

/* ---- against the imported file ---- */

static void add_own(stw_emission *e) {
    const stw_flags *flags = &e->import->flags;
    for (size_t i = 0; i < flags->n; i++) {
        const stw_flag *flag = &flags->items[i];
        if (flag->line == 0 || strstr(flag->value, "...") != NULL) continue;
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

/* Megatron-LM has no default of it beside a method (transformer_config.py, __post_init__); reading
 * takes 1. */
static bool is_needed(const stw_emission *e, size_t i) {
    const char *name = e->flags[i].name;
    return before(e, i) == NULL && (strstr(name, "recompute-num-layers") != NULL ||
                                    strstr(name, "recompute_num_layers") != NULL);
}

/* Give flags i and j the file's values, if the settings still mean the same. */
static void try_own(const framework *f, stw_emission *e, size_t i, size_t j, const given *as) {
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
    given as = {.idle = NULL};
    if (read_back(f, e, &as, NULL) == STW_STATUS_OK) {
        for (size_t i = 0; i < e->n; i++) try_own(f, e, i, i, &as);
        for (size_t i = 0; i < e->n; i++)
            for (size_t j = i + 1; j < e->n; j++) try_own(f, e, i, j, &as);
    }
    stw_run_spec_free(&as.run);
}

static void note_changes(const stw_emission *e, stw_text *notes) {
    size_t n = 0;
    const char *dashes = e->import->dashes;
    for (size_t i = 0; i < e->n; i++) {
        const stw_emit_flag *flag = &e->flags[i];
        const char *value = before(e, i);
        if (equal(value, flag->value)) continue;
        if (n++ == 0) stw_text_printf(notes, "Changes against %s\n", e->import->path);
        if (value != NULL) stw_text_printf(notes, "- %s%s %s\n", dashes, flag->name, value);
        if (flag->value != NULL)
            stw_text_printf(notes, "+ %s%s %s\n", dashes, flag->name, flag->value);
    }
    for (size_t i = 0; i < e->import->flags.n; i++)
        if (strstr(e->import->flags.items[i].value, "...") != NULL)
            stw_text_printf(notes, "Left out, a list of maps: %s\n",
                            e->import->flags.items[i].name);
    if (n == 0) stw_text_printf(notes, "No changes against %s\n", e->import->path);
}

/* What is on: in words where no key says it. */
static void note_decisions(const framework *f, stw_emission *e, const given *read,
                           stw_text *notes) {
    const stw_decisions *d = &e->plan->decisions;
    uint64_t by_act[STW_N_ACTS] = {0};
    const bool open = e->plan->run.recompute.granularity == STW_AUTO;
    for (uint32_t i = 0; i < d->n_blocks; i++) by_act[d->blocks[i].act] += d->blocks[i].count;
    const bool mixed = by_act[STW_ACT_KEEP] > 0 && by_act[STW_ACT_RECOMPUTE] > 0;
    const bool apart = mixed && f->write != NULL && stw_emit_recompute_method(e) == NULL;
    if (open && (apart || by_act[STW_ACT_OFFLOAD] > 0))
        stw_text_printf(notes,
                        "  activations: planned %llu blocks kept, %llu recomputed, %llu offloaded; "
                        "these settings %s\n",
                        (unsigned long long)by_act[STW_ACT_KEEP],
                        (unsigned long long)by_act[STW_ACT_RECOMPUTE],
                        (unsigned long long)by_act[STW_ACT_OFFLOAD],
                        f->write != NULL ? "treat all alike"
                                         : "keep what is to be offloaded, and may not fit; "
                                           "--set recompute.granularity=full needs none of it");
    if (stw_plan_streamed_note(e->plan) != NULL &&
        read->run.optimizer.implementation != STW_OPTIMIZER_STREAMED)
        stw_text_printf(notes,
                        "  optimizer step: planned streamed, with moments on the host; these "
                        "settings keep all state on the GPU, and may not fit\n");
}

static stw_status write_notes(const framework *f, stw_emission *e, stw_text *notes,
                              stw_error *err) {
    given read = {.idle = NULL};
    stw_text lines = STW_TEXT_INIT;
    stw_status status =
        f->write != NULL ? read_back(f, e, &read, err) : stw_emit_fsdp2_says(e, &read.run, err);
    if (status == STW_STATUS_OK) {
        (void)compare(&(comparison){&e->plan->run, &read, e->pool, &lines});
        note_decisions(f, e, &read, &lines);
        if (lacks_model(f, e))
            stw_text_printf(&lines, "  the model: add its arguments (--num-layers, ...)\n");
        if (lines.length > 0)
            stw_text_printf(notes, "What settings of %s do not say\n%s", f->name, lines.data);
        if (e->import != NULL) note_changes(e, notes);
    }
    stw_text_free(&lines);
    stw_run_spec_free(&read.run);
    return status;
}

/* ---- all ---- */

static bool runs(const framework *f, const char *engine) {
    const size_t n = strlen(engine);
    for (const char *at = strstr(f->engines, engine); at != NULL; at = strstr(at + 1, engine))
        if ((at == f->engines || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

stw_status stw_emit_plan(const char *what, const stw_plan *plan, const char *from,
                         const stw_import *import, stw_text *settings, stw_text *notes,
                         stw_error *err) {
    const framework *f = framework_of(what);
    if (f == NULL || plan == NULL)
        return stw_fail(err, STW_STATUS_USAGE, "--emit", "found \"%.60s\", expected " EXPECTED,
                        what);
    const char *engine = stw_run_spec_engine(&plan->run)->name;
    if (!runs(f, engine))
        return stw_fail(err, STW_STATUS_USAGE, "--emit",
                        "%s has no settings for engine %s; use --set engine=%.*s", f->name, engine,
                        (int)strcspn(f->engines, " "), f->engines);
    stw_emission e = {.plan = plan, .pool = stw_pool_new(), .err = err, .status = STW_STATUS_OK};
    if (e.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "--emit", "out of memory");
    if (from != NULL && import != NULL && framework_of(from) == f) e.import = import;
    if (f->put == NULL) {
        stw_emit_fsdp2(&e, settings);
        if (e.status == STW_STATUS_OK) e.status = write_notes(f, &e, notes, err);
    } else {
        if (e.import != NULL) add_own(&e);
        f->put(&e);
        if (e.import != NULL && e.status == STW_STATUS_OK) keep_own(f, &e);
        if (e.status == STW_STATUS_OK) e.status = write_notes(f, &e, notes, err);
        if (e.status == STW_STATUS_OK) f->write(&e, settings);
    }
    stw_pool_free(e.pool);
    return e.status;
}
