/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/frameworks/emit/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "plan/files/verdict.h"
#include "plan/spec/registry.h"

/* Of the plan of settings that differ. */
static const double AGAIN_S = 20;

void stw_emit_given_free(stw_emit_given *given) {
    stw_run_spec_free(&given->run);
    stw_model_free(given->model);
    given->model = NULL;
}

static const char *text_of(const stw_spec_row *row, const void *base, stw_pool *pool) {
    stw_text text = STW_TEXT_INIT;
    stw_spec_write_value(row, base, &text);
    const char *out = stw_pool_string(pool, text.data != NULL ? text.data : "");
    stw_text_free(&text);
    return out != NULL ? out : "";
}

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static bool is_idle(const stw_emit_given *g, const char *key) {
    const size_t n = strlen(key);
    for (const char *const *idle = g->idle; idle != NULL && *idle != NULL; idle++)
        if (strncmp(*idle, key, n) == 0 && (*idle)[n] == '=') return true;
    return false;
}

static bool is_elsewhere(const stw_emit_given *g, const char *key) {
    for (const char *const *at = g->elsewhere; at != NULL && *at != NULL; at++)
        if (begins_with(key, *at)) return true;
    return false;
}

/* ---- differences ---- */

enum { MOST_DIFFERENCES = 64 };

typedef struct difference {
    const char *key, *planned, *given;
    bool settable; /* `given` is a value for --set */
} difference;

typedef struct differences {
    stw_pool *pool;
    size_t n;
    difference all[MOST_DIFFERENCES];
} differences;

static void add(differences *d, const char *key, const char *planned, const char *given,
                bool settable) {
    if (d->n < MOST_DIFFERENCES) d->all[d->n++] = (difference){key, planned, given, settable};
}

/* What a search keeps is in the accumulation that it has found. */
static bool is_said(const stw_spec_row *row, const char *planned, const char *found) {
    return strcmp(row->key, "batch.tokens_per_step") == 0 &&
           (strcmp(planned, "none") == 0 || strcmp(found, "none") == 0);
}

/* Rows that differ. @param a of the plan, b of the settings */
static void compare_rows(differences *d, const stw_spec_table *table, const void *a, const void *b,
                         const stw_emit_given *given, const char *prefix) {
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        if (row->kind == STW_SPEC_ITEMS || row->label || is_idle(given, row->key)) continue;
        const char *planned = text_of(row, a, d->pool), *found = text_of(row, b, d->pool);
        if (strcmp(planned, found) == 0 || is_said(row, planned, found)) continue;
        const char *key = stw_pool_printf(d->pool, "%s%s", prefix, row->key);
        if (key != NULL) add(d, key, planned, found, true);
    }
}

static void compare(differences *d, const stw_run_spec *planned, const stw_emit_given *given) {
    const stw_run_spec *run = &given->run;
    char counts[2][16];
    compare_rows(d, stw_run_spec_table(), planned, run, given, "");
    for (uint32_t i = 0; i < planned->n_roles && i < run->n_roles; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "roles.%u.", i);
        compare_rows(d, stw_role_table(), &planned->roles[i], &run->roles[i], given, prefix);
    }
    if (planned->n_roles == run->n_roles) return;
    snprintf(counts[0], sizeof counts[0], "%u", planned->n_roles);
    snprintf(counts[1], sizeof counts[1], "%u", run->n_roles);
    add(d, "roles", stw_pool_printf(d->pool, "%s", counts[0]),
        stw_pool_printf(d->pool, "%s", counts[1]), false);
}

bool stw_emit_given_same(const stw_emit_given *a, const stw_emit_given *b, stw_pool *pool) {
    differences d = {.pool = pool};
    compare(&d, &a->run, b);
    return d.n == 0 && a->gpus == b->gpus;
}

/* ---- what is said elsewhere ---- */

static void say_activations(const stw_emission *e, stw_text *out) {
    const stw_decisions *d = &e->plan->decisions;
    uint64_t by_act[STW_N_ACTS] = {0};
    for (uint32_t i = 0; i < d->n_blocks; i++) by_act[d->blocks[i].act] += d->blocks[i].count;
    stw_text_printf(out,
                    "of the planned blocks %llu keep activations, %llu recompute, %llu offload "
                    "them",
                    (unsigned long long)by_act[STW_ACT_KEEP],
                    (unsigned long long)by_act[STW_ACT_RECOMPUTE],
                    (unsigned long long)by_act[STW_ACT_OFFLOAD]);
}

static stw_status take_elsewhere(const stw_emission *e, stw_emit_given *given, stw_text *notes,
                                 stw_error *err) {
    const stw_spec_table *table = stw_run_spec_table();
    const stw_run_spec *planned = &e->plan->run;
    stw_status status = STW_STATUS_OK;
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        if (row->kind == STW_SPEC_ITEMS || row->label || !is_elsewhere(given, row->key)) continue;
        const char *text = text_of(row, planned, e->pool);
        if (strcmp(text, text_of(row, &given->run, e->pool)) == 0) continue;
        STW_TRY(stw_run_spec_set(&given->run, row->key, text, "--emit", err));
        if (strcmp(text, "auto") != 0) stw_text_printf(notes, "  %s: %s\n", row->key, text);
    }
    if (is_elsewhere(given, "recompute.granularity") &&
        planned->recompute.granularity == STW_AUTO && e->plan->decisions.n_blocks > 0) {
        stw_text_printf(notes, "  recompute.granularity: ");
        say_activations(e, notes);
        stw_text_printf(notes, "\n");
    }
    if (is_elsewhere(given, "roles") && planned->n_roles != given->run.n_roles) {
        given->run.roles = planned->roles; /* in the plan's pool */
        given->run.n_roles = planned->n_roles;
        stw_text_printf(notes, "  roles: the other %" PRIu32 " of the job\n", planned->n_roles);
    }
out:
    return status;
}

/* ---- bytes ---- */

typedef struct excess {
    double share;
    unsigned phase;
    uint32_t memory;
    uint64_t planned, given;
} excess;

/* Of a model under other names: buckets are rounded tensor by tensor, and page-locked copies to
 * powers of two, merged tensors to other ones. */
static double loose_share(uint32_t memory) {
    if (memory == STW_TIER_GPU) return 0.002;
    return memory == STW_MEMORY_PAGE_LOCKED ? 0.05 : 0.01;
}

/* The largest relative difference; share 0: there is none.
 * @param named the models have other names of tensors, and merged ones: their files are other ones,
 * so that the load is left out, as is what torch reserves beside what it hands out */
static excess compare_bytes(const stw_plan *a, const stw_plan *b, bool named) {
    excess most = {.share = a->job->n_kinds != b->job->n_kinds ? INFINITY : 0};
    const stw_peaks *of_a = named ? a->peaks : a->shown, *of_b = named ? b->peaks : b->shown;
    for (uint32_t k = 0; k < a->job->n_kinds && k < b->job->n_kinds; k++)
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            for (uint32_t m = 0; m < STW_N_MEMORIES && !(named && p == STW_PHASE_LOAD); m++) {
                const uint64_t x = stw_peaks_bytes(&of_a[k], p, m);
                const uint64_t y = stw_peaks_bytes(&of_b[k], p, m);
                const double base = (double)(x > y ? x : y);
                const double share = x == y ? 0 : ((double)(x > y ? x - y : y - x)) / base;
                const bool loose = named && share < loose_share(m);
                if (share > most.share && !loose) most = (excess){share, p, m, x, y};
            }
    return most;
}

/* As the settings alone are planned: a decision of the plan that they do not say is made anew. A
 * plan whose choices nobody simulated is compared with one of that kind. */
static stw_status plan_again(const stw_emission *e, stw_emit_given *given,
                             stw_planner_simulate simulate, stw_plan **out, stw_error *err) {
    const stw_planner_options options = {.time_limit_s = AGAIN_S,
                                         .no_fixes = true,
                                         .no_prices = true,
                                         .no_alternatives = true,
                                         .no_reasons = true,
                                         .tells_turns = true,
                                         .only_stage1 = e->plan->solver.simulated == 0,
                                         .simulate = simulate};
    const stw_model *model = given->model != NULL ? given->model : e->plan->model;
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_run_spec_check(&given->run, "--emit", err));
    STW_TRY(stw_plan_new_sharing(model, &e->plan->cluster, &given->run, out, err));
    STW_TRY(stw_planner_solve(*out, &options, err));
out:
    return status;
}

/* What the planner chose and no key of the plan says. */
static void say_decisions(const stw_emission *e, stw_text *out) {
    if (e->plan->run.recompute.granularity == STW_AUTO) {
        stw_text_printf(out, "; ");
        say_activations(e, out);
    }
    if (stw_plan_streamed_note(e->plan) != NULL)
        stw_text_printf(out, "; the planned optimizer step is streamed, with moments on the host");
}

static const char *memory_name(uint32_t memory) {
    static const char *const names[STW_N_MEMORIES] = {"GPU memory", "host memory", "NVMe",
                                                      "page-locked memory"};
    return names[memory % STW_N_MEMORIES];
}

static void say_bytes(const excess *most, stw_text *out) {
    char bytes[2][32];
    if (!isfinite(most->share)) {
        stw_text_printf(out, "; other kinds of ranks");
    } else if (most->share > 0) {
        stw_bytes_format(most->planned, bytes[0], sizeof bytes[0]);
        stw_bytes_format(most->given, bytes[1], sizeof bytes[1]);
        stw_text_printf(out, "; %s in %s: planned %s, these settings %s", memory_name(most->memory),
                        stw_phase_name((stw_phase)most->phase), bytes[0], bytes[1]);
    }
}

enum { MOST_SETS = 330, MOST_WHY = 330 }; /* of an error's text */

/* Whole items alone: the text up to the last `between` that fits. */
static int fitting(const stw_text *text, size_t most, const char *between) {
    size_t end = text->length;
    while (end > most) {
        do end--;
        while (end > 0 && strncmp(text->data + end, between, strlen(between)) != 0);
    }
    return (int)end;
}

/* @param again the plan of the settings, or NULL: advice that does not fit is none
 * @param why it cannot be planned, or NULL */
static stw_status refuse(const stw_emission *e, const stw_emit_given *given, const differences *d,
                         const excess *most, const stw_plan *again, const char *why,
                         stw_error *err) {
    const char *engine = stw_run_spec_engine(&e->plan->run)->name;
    const bool other = strcmp(engine, given->name) != 0;
    const bool full = again != NULL && stw_plan_bytes_verdict(again) == STW_VERDICT_DOES_NOT_FIT;
    stw_text text = STW_TEXT_INIT, sets = STW_TEXT_INIT;
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(d->all[i].key, "roles") != 0) continue;
        stw_text_printf(&sets, strtoull(d->all[i].planned, NULL, 10) == 0
                                   ? " a --run file with its roles, or --from;"
                                   : " a run without roles that it does not have;");
    }
    for (size_t i = 0; i < d->n; i++) {
        const difference *at = &d->all[i];
        stw_text_printf(&text, "%s%s: planned %s, these settings %s", i > 0 ? "; " : "", at->key,
                        at->planned, at->given);
        if (at->settable) stw_text_printf(&sets, " --set %s=%s", at->key, at->given);
    }
    if (d->n == 0) stw_text_printf(&text, "the model's arguments give other bytes");
    if (sets.length == 0) stw_text_printf(&sets, " another model or run");
    say_bytes(most, &text);
    say_decisions(e, &text);
    if (why != NULL) stw_text_printf(&text, "; %s", why);
    char where[64];
    const int n_sets = fitting(&sets, MOST_SETS, " --set ");
    snprintf(where, sizeof where, "--emit %s", given->name);
    const stw_status status = stw_fail(
        err, STW_STATUS_NOT_BUILT_IN, where,
        "its settings cannot say this plan; nothing is written. %s%.*s%s%s%s%s. %.*s",
        full ? "The plan that it can say, with" : "Use", n_sets, sets.data != NULL ? sets.data : "",
        (size_t)n_sets < sets.length ? " and more" : "",
        full ? ", does not fit on this cluster: more memory, or a smaller batch, is needed" : "",
        other ? ", or --emit " : "", other ? engine : "", fitting(&text, MOST_WHY, "; "),
        text.data != NULL ? text.data : "");
    stw_text_free(&text);
    stw_text_free(&sets);
    return status;
}

static stw_status other_step(const stw_emit_given *given, const char *what, uint64_t planned,
                             uint64_t found, stw_error *err) {
    char where[64];
    snprintf(where, sizeof where, "--emit %s", given->name);
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, where,
                    "its settings cannot say this plan; nothing is written. %s: the plan has "
                    "%" PRIu64 ", its settings %" PRIu64,
                    what, planned, found);
}

/* An optimizer step has as many tokens, an iteration as many steps. */
static stw_status check_step(const stw_emission *e, const stw_emit_given *given, stw_error *err) {
    const stw_run_spec *planned = &e->plan->run;
    const uint64_t tokens = stw_job_step_tokens(e->plan->job);
    stw_run_spec found = given->run;
    if (found.batch.seq_len == 0) found.batch.seq_len = planned->batch.seq_len;
    const uint64_t now = stw_run_spec_step_tokens(&found, e->plan->job->world);
    if (now != tokens) return other_step(given, "tokens of an optimizer step", tokens, now, err);
    if (found.batch.mini_batches != planned->batch.mini_batches)
        return other_step(given, "batch.mini_batches", planned->batch.mini_batches,
                          found.batch.mini_batches, err);
    if (found.batch.epochs == planned->batch.epochs) return STW_STATUS_OK;
    return other_step(given, "batch.epochs", planned->batch.epochs, found.batch.epochs, err);
}

/* Differences that change no byte are said; a choice that was the planner's is none. */
static void note_same(const differences *d, stw_text *notes) {
    for (size_t i = 0; i < d->n; i++) {
        const char *planned = d->all[i].planned, *given = d->all[i].given;
        if (strcmp(planned, "auto") == 0 || begins_with(d->all[i].key, "recompute.")) continue;
        if (strcmp(given, "auto") == 0)
            stw_text_printf(notes,
                            "%s: the plan has %s; these settings do not set it; same bytes\n",
                            d->all[i].key, planned);
        else
            stw_text_printf(notes, "%s: the plan has %s, these settings give %s; same bytes\n",
                            d->all[i].key, planned, given);
    }
}

static void note_named(const stw_plan *planned, const stw_plan *again, stw_text *notes) {
    const excess most = compare_bytes(planned, again, false);
    char bytes[2][32];
    if (!(most.share > 0)) return;
    stw_bytes_format(most.planned, bytes[0], sizeof bytes[0]);
    stw_bytes_format(most.given, bytes[1], sizeof bytes[1]);
    stw_text_printf(notes,
                    "Read back, these settings plan to other %s in %s: %s, not %s. torch rounds "
                    "Megatron's merged tensors otherwise; what is allocated on the GPU differs by "
                    "less than 0.2%%, and there is nothing to set.\n",
                    memory_name(most.memory), stw_phase_name((stw_phase)most.phase), bytes[1],
                    bytes[0]);
}

stw_status stw_emit_check(const stw_emission *e, stw_emit_given *given,
                          stw_planner_simulate simulate, stw_text *elsewhere, stw_text *notes,
                          stw_error *err) {
    stw_plan *again = NULL;
    stw_error why = STW_ERROR_INIT;
    char text[320] = "";
    differences d = {.pool = e->pool};
    stw_status status = take_elsewhere(e, given, elsewhere, err);
    if (status == STW_STATUS_OK) status = check_step(e, given, err);
    if (status != STW_STATUS_OK) return status;
    compare(&d, &e->plan->run, given);
    if (d.n == 0 && given->model == NULL) return STW_STATUS_OK;
    excess most = {.share = 0};
    status = plan_again(e, given, simulate, &again, &why);
    if (status == STW_STATUS_NO_MEMORY || status == STW_STATUS_BUG) {
        if (err != NULL) *err = why;
    } else if (status != STW_STATUS_OK) {
        snprintf(text, sizeof text, "%.60s %.240s", why.where, why.text);
        status = refuse(e, given, &d, &most, NULL, text, err);
    } else {
        const double tokens = stw_plan_iteration_tokens(e->plan);
        const bool fewer = fabs(stw_plan_iteration_tokens(again) - tokens) > 0.5;
        const bool named = given->model != NULL &&
                           strcmp(given->model->model_type, e->plan->model->model_type) != 0;
        most = compare_bytes(e->plan, again, named);
        if (named && !(most.share > 0)) note_named(e->plan, again, notes);
        if (most.share > 0 || fewer)
            status =
                refuse(e, given, &d, &most, again, fewer ? "other tokens of a step" : NULL, err);
        else
            note_same(&d, notes);
    }
    stw_plan_free(again);
    return status;
}
