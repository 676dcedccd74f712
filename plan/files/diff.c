/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/diff.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "plan/files/plan_file.h"
#include "plan/spec/registry.h"
#include "plan/spec/spec_keys.h"

/* A list of keys or decisions with their values as text. */
typedef struct words {
    stw_pool *pool;
    uint32_t n;
    size_t capacity;
    stw_diff_words *items; /* `before` holds the value */
    bool failed;
} words;

static void add_words(words *list, const char *what, const char *value) {
    stw_diff_words *grown = stw_pool_grow(list->pool, list->items, list->n, (size_t)list->n + 1,
                                          &list->capacity, sizeof *grown);
    const char *key = stw_pool_string(list->pool, what);
    const char *text = stw_pool_string(list->pool, value);
    if (grown == NULL || key == NULL || text == NULL) {
        list->failed = true;
        return;
    }
    list->items = grown;
    list->items[list->n++] = (stw_diff_words){key, text, NULL};
}

/* ---- settings ---- */

static void add_value(words *list, const char *key, const stw_spec_row *row, const void *base) {
    stw_text value = STW_TEXT_INIT;
    stw_spec_write_value(row, base, &value);
    if (value.failed) list->failed = true;
    add_words(list, key, value.data != NULL ? value.data : "");
    stw_text_free(&value);
}

/* Of what was learned, the recording says enough: the keys themselves are settings. */
static bool is_detail(const char *key) {
    static const char map[] = "learned.", from[] = ".from";
    const size_t length = strlen(key);
    return strncmp(key, map, sizeof map - 1) == 0 &&
           strcmp(key + length - (sizeof from - 1), from) != 0;
}

static void add_rows(words *list, const stw_spec_table *table, const void *base,
                     const char *prefix) {
    const char *off = NULL;
    char key[160], item_prefix[160];
    for (size_t i = 0; i < table->n_rows; i++) {
        const stw_spec_row *row = &table->rows[i];
        size_t off_length = off != NULL ? strlen(off) : 0;
        if (off != NULL && strncmp(row->key, off, off_length) == 0 && row->key[off_length] == '.')
            continue;
        snprintf(key, sizeof key, "%s%s", prefix, row->key);
        if (row->kind == STW_SPEC_MAP) {
            if (stw_spec_get_u64(row, base) != 0) continue; /* its rows follow */
            off = row->key;
        }
        if (is_detail(row->key)) continue;
        if (row->kind != STW_SPEC_ITEMS) {
            add_value(list, key, row, base);
            continue;
        }
        uint32_t n = 0;
        const char *items = NULL;
        memcpy(&n, (const char *)base + row->items->count_offset, sizeof n);
        memcpy(&items, (const char *)base + row->offset, sizeof items);
        for (uint32_t k = 0; k < n; k++) {
            snprintf(item_prefix, sizeof item_prefix, "%.120s.%u.", key, k);
            add_rows(list, row->items->table, items + k * row->items->item_size, item_prefix);
        }
    }
}

static void add_settings(words *list, const stw_plan *plan) {
    add_words(list, "model", plan->model->name);
    add_words(list, "model.digest", plan->model->digest);
    add_rows(list, stw_cluster_table(), &plan->cluster, "");
    add_rows(list, stw_run_spec_table(), &plan->run, "");
}

/* ---- decisions ---- */

static void add_number(words *list, const char *what, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    add_words(list, what, text);
}

static void add_decisions(words *list, const stw_plan *plan) {
    const stw_decisions *d = &plan->decisions;
    char what[224], value[96];
    uint64_t all = 0;
    for (uint32_t i = 0; i < d->n_state; i++) all = stw_plus(all, stw_plan_decision_count(plan, i));
    for (uint32_t i = 0; i < d->n_state; i++) {
        double count = (double)stw_plan_decision_count(plan, i);
        stw_place_format(&d->state[i].place, value, sizeof value);
        snprintf(what, sizeof what, "state: %s", value);
        snprintf(value, sizeof value, "%.4g%%", all > 0 ? 100 * count / (double)all : 0.0);
        if (count > 0) add_words(list, what, value);
    }
    for (uint32_t i = 0; i < d->n_blocks; i++) {
        if (d->blocks[i].count == 0) continue;
        snprintf(what, sizeof what, "blocks of %.120s: %s",
                 plan->job->model->groups[d->blocks[i].group].name, stw_act_name(d->blocks[i].act));
        add_number(list, what, d->blocks[i].count);
    }
    if (stw_plan_streams(plan)) {
        add_words(list, "prefetch: unit", d->prefetch.by_group ? "group" : "bucket");
        add_number(list, "prefetch: depth", d->prefetch.depth);
        stw_bytes_format(d->prefetch.bucket_bytes, value, sizeof value);
        if (!d->prefetch.by_group) add_words(list, "prefetch: bucket", value);
    }
    add_words(list, "load", stw_load_name(d->load));
}

/* Lines of either list whose values differ, in the order of the first. */
static uint32_t find_changes(stw_pool *pool, const words *before, const words *after,
                             stw_diff_words **out) {
    uint32_t n = 0;
    stw_diff_words *found = stw_pool_array(pool, (size_t)before->n + after->n + 1, sizeof *found);
    *out = found;
    for (uint32_t i = 0; found != NULL && i < before->n; i++) {
        const char *other = NULL;
        for (uint32_t k = 0; k < after->n && other == NULL; k++)
            if (strcmp(before->items[i].what, after->items[k].what) == 0)
                other = after->items[k].before;
        if (other == NULL || strcmp(other, before->items[i].before) != 0)
            found[n++] = (stw_diff_words){before->items[i].what, before->items[i].before, other};
    }
    for (uint32_t k = 0; found != NULL && k < after->n; k++) {
        bool known = false;
        for (uint32_t i = 0; i < before->n && !known; i++)
            known = strcmp(before->items[i].what, after->items[k].what) == 0;
        if (!known)
            found[n++] = (stw_diff_words){after->items[k].what, NULL, after->items[k].before};
    }
    return n;
}

static stw_status compare_words(stw_diff *diff, void (*add)(words *, const stw_plan *), uint32_t *n,
                                stw_diff_words **out, stw_error *err) {
    words lists[2] = {{.pool = diff->pool}, {.pool = diff->pool}};
    for (int i = 0; i < 2; i++) add(&lists[i], diff->plans[i]);
    *n = find_changes(diff->pool, &lists[0], &lists[1], out);
    if (lists[0].failed || lists[1].failed || *out == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "diff", "out of memory");
    return STW_STATUS_OK;
}

/* ---- figures ---- */

/* The peak of the worst kind of rank or node; NULL: no such phase. */
static const stw_peak *worst(const stw_plan *plan, stw_phase phase, stw_tier tier) {
    const bool gpu = tier == STW_TIER_GPU;
    const stw_peaks *peaks = gpu ? plan->peaks : plan->node_peaks;
    const uint32_t n = gpu ? plan->job->n_kinds : plan->job->n_node_kinds;
    const stw_peak *found = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const stw_peak *peak = &peaks[i].phase[phase][tier];
        if (peaks[i].has[phase] && (found == NULL || peak->total > found->total)) found = peak;
    }
    return found;
}

static void find_peaks(stw_diff *diff, int side) {
    for (int t = 0; t < STW_N_TIERS; t++) {
        stw_diff_peak *out = &diff->peaks[side][t];
        *out = (stw_diff_peak){STW_N_PHASES, 0, NULL};
        for (int p = 0; p < STW_N_PHASES; p++) {
            const stw_peak *peak = worst(diff->plans[side], (stw_phase)p, (stw_tier)t);
            if (peak == NULL || (out->components != NULL && peak->total <= out->bytes)) continue;
            *out = (stw_diff_peak){(stw_phase)p, peak->total, peak->components};
        }
    }
}

static void note_bytes(stw_diff *diff, stw_diff_bytes line) {
    if (line.before != line.after) diff->bytes[diff->n_bytes++] = line;
}

static void compare_bytes(stw_diff *diff) {
    static const stw_peak none = {0};
    for (int p = 0; p < STW_N_PHASES; p++)
        for (int t = 0; t < STW_N_TIERS; t++) {
            const stw_phase phase = (stw_phase)p;
            const stw_tier tier = (stw_tier)t;
            const stw_peak *a = worst(diff->plans[0], phase, tier);
            const stw_peak *b = worst(diff->plans[1], phase, tier);
            if (a == NULL) a = &none;
            if (b == NULL) b = &none;
            note_bytes(diff, (stw_diff_bytes){phase, tier, "total", a->total, b->total});
            for (int c = 0; c < STW_N_COMPONENTS; c++)
                note_bytes(diff, (stw_diff_bytes){phase, tier, stw_component_name((stw_component)c),
                                                  a->components[c], b->components[c]});
            note_bytes(
                diff, (stw_diff_bytes){phase, tier, "page_locked", a->page_locked, b->page_locked});
        }
}

/* Sums in another order differ by less. */
static const double ROUNDING = 1e-9;

bool stw_diff_same_seconds(double a, double b) {
    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= ROUNDING * fmax(fabs(a), fabs(b));
}

static void compare_seconds(stw_diff *diff) {
    for (int p = 0; p < STW_N_PHASES; p++) {
        double a = diff->plans[0]->time_s[p], b = diff->plans[1]->time_s[p];
        if (!stw_diff_same_seconds(a, b))
            diff->seconds[diff->n_seconds++] =
                (stw_diff_seconds){stw_phase_name((stw_phase)p), a, b};
    }
    double a = stw_plan_iteration_s(diff->plans[0]), b = stw_plan_iteration_s(diff->plans[1]);
    if (!stw_diff_same_seconds(a, b))
        diff->seconds[diff->n_seconds++] = (stw_diff_seconds){"iteration", a, b};
}

stw_status stw_diff_new(const stw_plan *before, const stw_plan *after, const char *const names[2],
                        stw_diff **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_diff *diff = pool != NULL ? stw_pool_alloc(pool, sizeof *diff) : NULL;
    if (diff == NULL) goto no_memory;
    *diff = (stw_diff){
        .pool = pool, .plans = {before, after}, .names = {names[0], names[1]}, .n_bytes = 0};
    diff->bytes = stw_pool_array(pool, (size_t)STW_N_PHASES * STW_N_TIERS * (STW_N_COMPONENTS + 2),
                                 sizeof *diff->bytes);
    diff->seconds = stw_pool_array(pool, STW_N_PHASES + 1, sizeof *diff->seconds);
    if (diff->bytes == NULL || diff->seconds == NULL) goto no_memory;
    STW_TRY(compare_words(diff, add_settings, &diff->n_settings, &diff->settings, err));
    STW_TRY(compare_words(diff, add_decisions, &diff->n_decisions, &diff->decisions, err));
    for (int side = 0; side < 2; side++) find_peaks(diff, side);
    compare_bytes(diff);
    compare_seconds(diff);
    *out = diff;
    return STW_STATUS_OK;
no_memory:
    status = stw_fail(err, STW_STATUS_NO_MEMORY, "diff", "out of memory");
out:
    stw_pool_free(pool);
    return status;
}

void stw_diff_free(stw_diff *diff) {
    if (diff != NULL) stw_pool_free(diff->pool);
}

double stw_plan_tokens_per_s(const stw_plan *plan) {
    double seconds = stw_plan_iteration_s(plan);
    return seconds > 0 ? stw_plan_iteration_tokens(plan) / seconds : (double)NAN;
}

/* ---- JSON ---- */

static void write_side(const stw_diff *diff, int side, const char *key, stw_json *json) {
    const stw_plan *plan = diff->plans[side];
    stw_json_begin_object(json, key);
    stw_json_string(json, "file", diff->names[side]);
    stw_json_string(json, "model", plan->model->name);
    stw_json_string(json, "cluster", plan->cluster.name);
    stw_json_u64(json, "ranks", plan->job->world);
    stw_json_string(json, "outcome", stw_outcome_name(plan->outcome));
    stw_json_string(json, "verdict", stw_verdict_name(plan->verdict));
    for (int t = 0; t < STW_N_TIERS; t++) {
        static const char *const keys[STW_N_TIERS] = {"gpu_peak_bytes", "host_peak_bytes",
                                                      "nvme_peak_bytes"};
        stw_json_u64(json, keys[t], diff->peaks[side][t].bytes);
    }
    stw_json_double(json, "iteration_s", stw_plan_iteration_s(plan));
    stw_json_double(json, "tokens_per_s", stw_plan_tokens_per_s(plan));
    stw_json_end(json);
}

static void write_words(const stw_diff_words *list, uint32_t n, const char *key, const char *what,
                        stw_json *json) {
    stw_json_begin_array(json, key);
    for (uint32_t i = 0; i < n; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, what, list[i].what);
        stw_json_string(json, "before", list[i].before);
        stw_json_string(json, "after", list[i].after);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_bytes(const stw_diff *diff, stw_json *json) {
    stw_json_begin_array(json, "bytes");
    for (uint32_t i = 0; i < diff->n_bytes; i++) {
        const stw_diff_bytes *line = &diff->bytes[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", stw_phase_name(line->phase));
        stw_json_string(json, "tier", stw_tier_name(line->tier));
        stw_json_string(json, "component", line->what);
        stw_json_u64(json, "before_bytes", line->before);
        stw_json_u64(json, "after_bytes", line->after);
        stw_json_end(json);
    }
    stw_json_end(json);
}

stw_status stw_diff_to_json(const stw_diff *diff, stw_text *out, stw_error *err) {
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.diff/1");
    write_side(diff, 0, "before", json);
    write_side(diff, 1, "after", json);
    write_words(diff->settings, diff->n_settings, "settings", "key", json);
    write_words(diff->decisions, diff->n_decisions, "decisions", "what", json);
    write_bytes(diff, json);
    stw_json_begin_array(json, "seconds");
    for (uint32_t i = 0; i < diff->n_seconds; i++) {
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", diff->seconds[i].phase);
        stw_json_double(json, "before_s", diff->seconds[i].before);
        stw_json_double(json, "after_s", diff->seconds[i].after);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}
