/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/run_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "plan/files/checksums.h"
#include "plan/files/file_parts.h"
#include "plan/files/plan_terms.h"
#include "plan/files/run_check.h"
#include "plan/files/run_synced.h"

static const char *const digest_names[STW_N_DIGESTS] = {"params", "exp_avg", "exp_avg_sq",
                                                        "master"};

const char *stw_digest_name(int digest) {
    return (unsigned)digest < STW_N_DIGESTS ? digest_names[digest] : "?";
}

stw_status stw_run_result_new(stw_run_result **out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_run_result *result = stw_pool_alloc(pool, sizeof *result);
    if (result == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory for a run's result");
    }
    result->pool = pool;
    result->source = "stowage";
    result->backend = result->device = result->plan_hash = result->digest_of = "";
    result->plan_terms = result->build = result->date = "";
    for (int p = 0; p < STW_N_PHASES; p++) result->time_s[p] = NAN;
    result->train_s = result->iteration_s = NAN;
    result->copies_s = result->params_per_s = result->up_bps = result->down_bps =
        result->grad_norm = result->link_share = result->gpu_growth_bytes =
            result->host_growth_bytes = NAN;
    result->clip_factor = 1;
    *out = result;
    return STW_STATUS_OK;
}

void stw_run_result_free(stw_run_result *result) {
    if (result != NULL) stw_pool_free(result->pool);
}

/* ---- writing ---- */

static uint64_t worst_device(const stw_run_result *result, int phase) {
    uint64_t most = result->gpu_bytes[phase];
    for (uint32_t i = 0; i < result->n_ranks; i++)
        if (result->ranks[i].phases[phase].known)
            most = stw_max_u64(most, result->ranks[i].phases[phase].device);
    return most;
}

static uint64_t worst_host(const stw_run_result *result, int phase) {
    uint64_t most = result->host_bytes[phase];
    for (uint32_t i = 0; i < result->n_nodes; i++)
        most = stw_max_u64(most, result->nodes[i].host[phase]);
    return most;
}

static void write_summary(const stw_run_result *result, const char *key, uint64_t peak,
                          uint64_t (*worst)(const stw_run_result *, int), stw_json *json) {
    stw_json_begin_object(json, key);
    for (int p = 0; p < STW_N_PHASES; p++) {
        uint64_t bytes = worst(result, p);
        peak = stw_max_u64(peak, bytes);
        if (bytes > 0) stw_json_u64(json, stw_phase_name((stw_phase)p), bytes);
    }
    if (peak > 0) stw_json_u64(json, "peak", peak);
    stw_json_end(json);
}

static void write_measured(const stw_measured *m, const char *key, stw_json *json) {
    stw_json_begin_object(json, key);
    stw_json_u64(json, "allocated", m->allocated);
    stw_json_u64(json, "reserved", m->reserved);
    stw_json_u64(json, "device", m->device);
    stw_json_u64(json, "host", m->host);
    stw_json_u64(json, "page_locked", m->page_locked);
    stw_part_write_components(json, "components", m->gpu_components);
    stw_part_write_components(json, "host_components", m->host_components);
    stw_json_end(json);
}

static void write_ranks(const stw_run_result *result, stw_json *json) {
    stw_json_begin_array(json, "ranks");
    for (uint32_t i = 0; i < result->n_ranks; i++) {
        const stw_run_rank *rank = &result->ranks[i];
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "rank", rank->rank);
        stw_json_u64(json, "node", rank->node);
        stw_json_string(json, "kind", rank->kind);
        stw_json_begin_object(json, "phases");
        for (int p = 0; p < STW_N_PHASES; p++)
            if (rank->phases[p].known)
                write_measured(&rank->phases[p], stw_phase_name((stw_phase)p), json);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_nodes(const stw_run_result *result, stw_json *json) {
    stw_json_begin_array(json, "nodes");
    for (uint32_t i = 0; i < result->n_nodes; i++) {
        const stw_run_node *node = &result->nodes[i];
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "node", node->node);
        stw_json_begin_object(json, "phases");
        for (int p = 0; p < STW_N_PHASES; p++) {
            if (node->host[p] == 0 && node->page_locked[p] == 0) continue;
            stw_json_begin_object(json, stw_phase_name((stw_phase)p));
            stw_json_u64(json, "host", node->host[p]);
            stw_json_u64(json, "page_locked", node->page_locked[p]);
            stw_json_end(json);
        }
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_movements(const stw_run_result *result, stw_json *json) {
    stw_json_begin_array(json, "movements");
    for (uint32_t m = 0; m < result->n_movements; m++) {
        const stw_run_movement *movement = &result->movements[m];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", stw_phase_name(movement->phase));
        stw_json_string(json, "role", movement->role);
        stw_json_begin_array(json, "samples_s");
        for (uint32_t i = 0; i < movement->n_samples; i++)
            stw_json_double(json, NULL, movement->samples_s[i]);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void write_times(const stw_run_result *result, stw_json *json) {
    write_movements(result, json);
    stw_json_begin_object(json, "time_s");
    for (int p = 0; p < STW_N_PHASES; p++)
        if (isfinite(result->time_s[p]))
            stw_json_double(json, stw_phase_name((stw_phase)p), result->time_s[p]);
    stw_json_begin_array(json, "step_all");
    for (uint32_t i = 0; i < result->n_step_all; i++)
        stw_json_double(json, NULL, result->step_all_s[i]);
    stw_json_end(json);
    stw_json_end(json);
    stw_json_begin_object(json, "rates");
    stw_json_double(json, "params_per_s", result->params_per_s);
    stw_json_double(json, "bytes_per_s_up", result->up_bps);
    stw_json_double(json, "bytes_per_s_down", result->down_bps);
    stw_json_double(json, "copies_s", result->copies_s);
    stw_json_double(json, "link_share", result->link_share);
    stw_json_begin_array(json, "link");
    for (uint32_t i = 0; i < result->n_links; i++) {
        const stw_run_link *link = &result->links[i];
        stw_json_begin_object(json, NULL);
        stw_json_u64(json, "bytes", link->bytes);
        stw_json_u64(json, "streams", link->streams);
        if (link->ring > 0) stw_json_u64(json, "ring", link->ring);
        stw_json_double(json, "bytes_per_s", link->bps);
        stw_json_begin_array(json, "bytes_per_s_all");
        for (uint32_t k = 0; k < link->n_all; k++) stw_json_double(json, NULL, link->all_bps[k]);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
    stw_json_end(json);
    stw_json_begin_object(json, "steady");
    stw_json_double(json, "gpu_growth_bytes", result->gpu_growth_bytes);
    stw_json_double(json, "host_growth_bytes", result->host_growth_bytes);
    stw_json_end(json);
}

/* JSON has no number for what is not finite: a string, as Python's float() and JavaScript's
 * Number() take it. */
static void write_norm(stw_json *json, const char *key, double value, bool known) {
    if (isfinite(value) || !known)
        stw_json_double(json, key, value);
    else
        stw_json_string(json, key, isnan(value) ? "NaN" : "Infinity");
}

static void write_weights(const stw_run_result *result, stw_json *json) {
    if (result->weights_read_bytes == 0) return;
    stw_json_begin_object(json, "weights");
    stw_json_u64(json, "read_bytes", result->weights_read_bytes);
    stw_json_u64(json, "compared_bytes", result->weights_compared_bytes);
    stw_json_end(json);
}

static void write_verify(const stw_run_result *result, stw_json *json) {
    stw_json_begin_object(json, "verify");
    stw_json_u64(json, "checked", result->checked);
    stw_json_u64(json, "mismatched", result->mismatched);
    if (result->elements > 0) stw_json_u64(json, "elements", result->elements);
    stw_json_begin_object(json, "digest");
    for (int i = 0; i < STW_N_DIGESTS; i++) {
        char hex[17];
        if (i == 3 && result->digest[i] == 0) continue; /* no master */
        snprintf(hex, sizeof hex, "%016" PRIx64, result->digest[i]);
        stw_json_string(json, digest_names[i], hex);
    }
    stw_json_end(json);
    if (result->digest_of[0] != '\0') stw_json_string(json, "digest_of", result->digest_of);
    write_norm(json, "grad_norm", result->grad_norm, result->clips);
    write_weights(result, json);
    if (result->clips) write_norm(json, "clip_factor", result->clip_factor, true);
    if (result->nonfinite_steps > 0) {
        stw_json_u64(json, "nonfinite_steps", result->nonfinite_steps);
        stw_json_u64(json, "first_nonfinite_step", result->first_nonfinite_step);
    }
    stw_json_end(json);
}

/* JSON numbers end at 2^63 - 1 here; a larger seed is written as a string of its digits. */
static void write_seed(uint64_t seed, stw_json *json) {
    char digits[24];
    if (seed <= (uint64_t)INT64_MAX) {
        stw_json_u64(json, "seed", seed);
        return;
    }
    snprintf(digits, sizeof digits, "%" PRIu64, seed);
    stw_json_string(json, "seed", digits);
}

stw_status stw_run_result_to_json(const stw_run_result *result, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "schema", "stowage.run/1");
    stw_json_string(json, "source", result->source);
    stw_json_string(json, "backend", result->backend);
    stw_json_string(json, "device", result->device);
    if (result->build[0] != '\0') stw_json_string(json, "build", result->build);
    if (result->date[0] != '\0') stw_json_string(json, "date", result->date);
    if (result->exit_code > 0) stw_json_u64(json, "exit_code", result->exit_code);
    stw_json_string(json, "plan_hash", result->plan_hash);
    stw_json_u64(json, "world", result->world);
    stw_json_u64(json, "steps", result->steps);
    if (result->first_step > 1) stw_json_u64(json, "first_step", result->first_step);
    write_seed(result->seed, json);
    stw_json_begin_array(json, "not_run");
    for (int p = 0; p < STW_N_PHASES; p++)
        if (result->not_run[p]) stw_json_string(json, NULL, stw_phase_name((stw_phase)p));
    stw_json_end(json);
    stw_json_begin_object(json, "peaks");
    write_summary(result, "gpu_bytes", result->gpu_peak_bytes, worst_device, json);
    write_summary(result, "host_bytes", result->host_peak_bytes, worst_host, json);
    stw_json_end(json);
    write_times(result, json);
    write_verify(result, json);
    stw_run_synced_write(&result->synced, json);
    write_ranks(result, json);
    write_nodes(result, json);
    stw_status termed = stw_terms_write(result->plan_terms, "plan", json, err);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    STW_TRY(termed);
    STW_TRY(stw_checksums_append(&text, err));
    stw_text_append(out, text.data, text.length);
    STW_TRY(stw_text_status(out, err));
out:
    stw_text_free(&text);
    return status;
}

stw_status stw_run_result_write(const stw_run_result *result, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    STW_TRY(stw_run_result_to_json(result, &text, err));
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}

/* ---- reading ---- */

typedef struct reader {
    const stw_tree *tree;
    stw_run_result *result;
    bool complete; /* Stowage's own file: every member is there */
    bool edited;   /* its checksums are not looked at */
} reader;

/* Is the member to be read? Absent members of external records are not. */
static bool wanted(const reader *r, const stw_node *parent, const char *key) {
    const stw_node *node = stw_node_get(parent, key);
    return r->complete || (node != NULL && node->kind != STW_NODE_NULL);
}

static stw_status read_u64(const reader *r, const stw_node *parent, const char *key, uint64_t *out,
                           stw_error *err) {
    return r->complete ? stw_node_u64(r->tree, parent, key, out, err)
                       : stw_part_optional_u64(r->tree, parent, key, out, err);
}

static stw_status read_u32(const reader *r, const stw_node *parent, const char *key, uint32_t *out,
                           stw_error *err) {
    return r->complete ? stw_part_u32(r->tree, parent, key, out, err)
                       : stw_part_optional_u32(r->tree, parent, key, out, err);
}

static stw_status read_seconds(const reader *r, const stw_node *parent, const char *key,
                               double *out, stw_error *err) {
    if (!wanted(r, parent, key)) return STW_STATUS_OK;
    return stw_part_seconds(r->tree, parent, key, out, err);
}

static stw_status read_string(const reader *r, const stw_node *parent, const char *key,
                              const char **out, stw_error *err) {
    if (!wanted(r, parent, key)) return STW_STATUS_OK;
    return stw_part_string(r->tree, parent, key, false, r->result->pool, out, err);
}

/* A member that is an object or an array, or NULL where it need not be there and is not. */
static stw_status read_object(const reader *r, const stw_node *parent, const char *key,
                              const stw_node **out, stw_error *err) {
    *out = NULL;
    return wanted(r, parent, key) ? stw_node_object(r->tree, parent, key, out, err) : STW_STATUS_OK;
}

static stw_status read_array(const reader *r, const stw_node *parent, const char *key,
                             const stw_node **out, stw_error *err) {
    *out = NULL;
    return wanted(r, parent, key) ? stw_node_array(r->tree, parent, key, out, err) : STW_STATUS_OK;
}

static size_t items_of(const stw_node *node) { return node != NULL ? node->n_items : 0; }

static stw_status array_for(const reader *r, const stw_node *list, size_t size, void **out,
                            uint32_t *n, stw_error *err) {
    *n = 0;
    *out =
        items_of(list) < UINT32_MAX ? stw_pool_array(r->result->pool, items_of(list), size) : NULL;
    if (*out == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, r->tree->file, "out of memory");
    *n = (uint32_t)items_of(list);
    return STW_STATUS_OK;
}

static stw_status read_seed(const reader *r, stw_error *err) {
    const stw_node *node = stw_node_get(r->tree->root, "seed");
    if (node == NULL || node->kind != STW_NODE_STRING)
        return read_u64(r, r->tree->root, "seed", &r->result->seed, err);
    uint64_t seed = 0;
    const char *p = node->text;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (seed > (UINT64_MAX - digit) / 10) break;
        seed = seed * 10 + digit;
    }
    if (*p != '\0' || p == node->text)
        return stw_node_fail(r->tree, node, "a whole number below 2^64", err);
    r->result->seed = seed;
    return STW_STATUS_OK;
}

/* "2026-11-22", or nothing. */
static stw_status read_date(const reader *r, stw_error *err) {
    const stw_node *node = stw_node_get(r->tree->root, "date");
    if (node == NULL) return STW_STATUS_OK;
    const char *p = node->kind == STW_NODE_STRING ? node->text : "";
    for (int i = 0; i < 10; i++, p++)
        if (i == 4 || i == 7 ? *p != '-' : !(*p >= '0' && *p <= '9'))
            return stw_node_fail(r->tree, node, "a date such as \"2026-11-22\"", err);
    if (*p != '\0') return stw_node_fail(r->tree, node, "a date such as \"2026-11-22\"", err);
    r->result->date = stw_pool_string(r->result->pool, node->text);
    if (r->result->date != NULL) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NO_MEMORY, r->tree->file, "out of memory");
}

static stw_status read_terms(const reader *r, stw_error *err) {
    stw_text lines = STW_TEXT_INIT;
    stw_status status = stw_terms_read(r->tree, "plan", &lines, err);
    if (status == STW_STATUS_OK && lines.length > 0)
        r->result->plan_terms = stw_pool_string(r->result->pool, lines.data);
    if (r->result->plan_terms == NULL)
        status = stw_fail(err, STW_STATUS_NO_MEMORY, r->tree->file, "out of memory");
    stw_text_free(&lines);
    return status;
}

static stw_status read_not_run(const reader *r, stw_error *err) {
    const stw_node *list = NULL;
    stw_status status = read_array(r, r->tree->root, "not_run", &list, err);
    for (size_t i = 0; status == STW_STATUS_OK && i < items_of(list); i++) {
        const stw_node *item = list->items[i];
        stw_phase phase;
        if (item->kind != STW_NODE_STRING || !stw_phase_parse(item->text, &phase))
            return stw_node_fail(r->tree, item, "a phase", err);
        r->result->not_run[phase] = true;
    }
    return status;
}

static stw_status read_summary(const reader *r, const char *key, uint64_t by_phase[STW_N_PHASES],
                               uint64_t *peak, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *peaks = NULL, *map = NULL;
    STW_TRY(read_object(r, r->tree->root, "peaks", &peaks, err));
    STW_TRY(read_object(r, peaks, key, &map, err));
    for (size_t i = 0; i < items_of(map); i++) {
        stw_phase phase;
        uint64_t *to = peak;
        if (strcmp(map->items[i]->key, "peak") != 0) {
            STW_TRY(stw_part_phase(r->tree, map->items[i], &phase, err));
            to = &by_phase[phase];
        }
        STW_TRY(stw_node_u64(r->tree, map, map->items[i]->key, to, err));
    }
out:
    return status;
}

static stw_status read_components(const reader *r, const stw_node *parent, const char *key,
                                  uint64_t out[STW_N_COMPONENTS], stw_error *err) {
    if (!wanted(r, parent, key)) return STW_STATUS_OK;
    uint64_t sum = 0;
    stw_status status = stw_part_components(r->tree, parent, key, out, err);
    for (int c = 0; c < STW_N_COMPONENTS && status == STW_STATUS_OK; c++)
        status = stw_add_u64(sum, out[c], &sum, "the components' bytes", err);
    return status;
}

static stw_status read_measured(const reader *r, const stw_node *node, stw_measured *out,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (node->kind != STW_NODE_OBJECT)
        return stw_node_fail(r->tree, node, "an object with the bytes of a phase", err);
    out->known = true;
    STW_TRY(read_u64(r, node, "allocated", &out->allocated, err));
    STW_TRY(read_u64(r, node, "reserved", &out->reserved, err));
    STW_TRY(read_u64(r, node, "device", &out->device, err));
    STW_TRY(read_u64(r, node, "host", &out->host, err));
    STW_TRY(read_u64(r, node, "page_locked", &out->page_locked, err));
    STW_TRY(read_components(r, node, "components", out->gpu_components, err));
    STW_TRY(read_components(r, node, "host_components", out->host_components, err));
out:
    return status;
}

static stw_status read_ranks(const reader *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL, *phases = NULL;
    void *ranks = NULL;
    STW_TRY(read_array(r, r->tree->root, "ranks", &list, err));
    STW_TRY(array_for(r, list, sizeof(stw_run_rank), &ranks, &r->result->n_ranks, err));
    r->result->ranks = ranks;
    for (uint32_t i = 0; i < r->result->n_ranks; i++) {
        const stw_node *node = list->items[i];
        stw_run_rank *rank = &r->result->ranks[i];
        rank->kind = "";
        STW_TRY(stw_part_u32(r->tree, node, "rank", &rank->rank, err));
        STW_TRY(read_u32(r, node, "node", &rank->node, err));
        STW_TRY(read_string(r, node, "kind", &rank->kind, err));
        STW_TRY(read_object(r, node, "phases", &phases, err));
        for (size_t p = 0; p < items_of(phases); p++) {
            stw_phase phase;
            STW_TRY(stw_part_phase(r->tree, phases->items[p], &phase, err));
            STW_TRY(read_measured(r, phases->items[p], &rank->phases[phase], err));
        }
    }
out:
    return status;
}

static stw_status read_nodes(const reader *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL, *phases = NULL;
    void *nodes = NULL;
    STW_TRY(read_array(r, r->tree->root, "nodes", &list, err));
    STW_TRY(array_for(r, list, sizeof(stw_run_node), &nodes, &r->result->n_nodes, err));
    r->result->nodes = nodes;
    for (uint32_t i = 0; i < r->result->n_nodes; i++) {
        stw_run_node *node = &r->result->nodes[i];
        STW_TRY(stw_part_u32(r->tree, list->items[i], "node", &node->node, err));
        STW_TRY(read_object(r, list->items[i], "phases", &phases, err));
        for (size_t p = 0; p < items_of(phases); p++) {
            const stw_node *item = phases->items[p];
            stw_phase phase;
            STW_TRY(stw_part_phase(r->tree, item, &phase, err));
            if (item->kind != STW_NODE_OBJECT)
                return stw_node_fail(r->tree, item, "an object with the bytes of a phase", err);
            STW_TRY(read_u64(r, item, "host", &node->host[phase], err));
            STW_TRY(read_u64(r, item, "page_locked", &node->page_locked[phase], err));
        }
    }
out:
    return status;
}

/* Members that earlier versions did not write. */
static stw_status read_later(const reader *r, const stw_node *parent, const char *key, double *out,
                             stw_error *err) {
    const stw_node *node = parent != NULL ? stw_node_get(parent, key) : NULL;
    if (node == NULL || node->kind == STW_NODE_NULL) return STW_STATUS_OK;
    return stw_part_seconds(r->tree, parent, key, out, err);
}

static stw_status read_numbers(const reader *r, const stw_node *list, double **out, uint32_t *n,
                               stw_error *err) {
    void *numbers = NULL;
    stw_status status = array_for(r, list, sizeof(double), &numbers, n, err);
    if (status != STW_STATUS_OK) return status;
    *out = numbers;
    for (uint32_t i = 0; i < *n; i++) {
        const stw_node *item = list->items[i];
        if ((item->kind != STW_NODE_REAL && item->kind != STW_NODE_INT) || item->real < 0)
            return stw_node_fail(r->tree, item, "a number, not negative", err);
        (*out)[i] = item->real;
    }
    return STW_STATUS_OK;
}

static stw_status read_links(const reader *r, const stw_node *rates, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_result *result = r->result;
    const stw_node *list = NULL, *all = NULL;
    void *links = NULL;
    STW_TRY(read_later(r, rates, "link_share", &result->link_share, err));
    if (stw_node_get(rates, "link") == NULL) goto out;
    STW_TRY(stw_node_array(r->tree, rates, "link", &list, err));
    STW_TRY(array_for(r, list, sizeof(stw_run_link), &links, &result->n_links, err));
    result->links = links;
    for (uint32_t i = 0; i < result->n_links; i++) {
        stw_run_link *link = &result->links[i];
        if (list->items[i]->kind != STW_NODE_OBJECT)
            return stw_node_fail(r->tree, list->items[i], "an object with a shape's rates", err);
        STW_TRY(stw_node_u64(r->tree, list->items[i], "bytes", &link->bytes, err));
        STW_TRY(stw_part_u32(r->tree, list->items[i], "streams", &link->streams, err));
        if (stw_node_get(list->items[i], "ring") != NULL)
            STW_TRY(stw_part_u32(r->tree, list->items[i], "ring", &link->ring, err));
        STW_TRY(stw_part_seconds(r->tree, list->items[i], "bytes_per_s", &link->bps, err));
        STW_TRY(stw_node_array(r->tree, list->items[i], "bytes_per_s_all", &all, err));
        STW_TRY(read_numbers(r, all, &link->all_bps, &link->n_all, err));
    }
out:
    return status;
}

/* Later than the first files of this schema. */
static stw_status read_movements(const reader *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL, *samples = NULL;
    if (stw_node_get(r->tree->root, "movements") == NULL) goto out;
    STW_TRY(read_array(r, r->tree->root, "movements", &list, err));
    if (items_of(list) == 0) goto out;
    r->result->movements =
        stw_pool_array(r->result->pool, list->n_items, sizeof *r->result->movements);
    if (r->result->movements == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory");
    r->result->n_movements = (uint32_t)list->n_items;
    for (size_t i = 0; i < list->n_items; i++) {
        stw_run_movement *movement = &r->result->movements[i];
        const char *phase = NULL;
        if (list->items[i]->kind != STW_NODE_OBJECT)
            return stw_node_fail(r->tree, list->items[i], "an object with a movement's samples",
                                 err);
        STW_TRY(stw_node_string(r->tree, list->items[i], "phase", &phase, err));
        if (!stw_phase_parse(phase, &movement->phase))
            return stw_node_fail(r->tree, stw_node_get(list->items[i], "phase"), "a phase", err);
        STW_TRY(stw_node_string(r->tree, list->items[i], "role", &movement->role, err));
        movement->role = stw_pool_string(r->result->pool, movement->role);
        if (movement->role == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, "run", "out of memory");
        STW_TRY(stw_node_array(r->tree, list->items[i], "samples_s", &samples, err));
        STW_TRY(read_numbers(r, samples, &movement->samples_s, &movement->n_samples, err));
    }
out:
    return status;
}

static stw_status read_times(const reader *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_result *result = r->result;
    const stw_node *map = NULL, *list = NULL;
    STW_TRY(read_movements(r, err));
    STW_TRY(read_object(r, r->tree->root, "time_s", &map, err));
    for (size_t i = 0; i < items_of(map); i++) {
        stw_phase phase;
        if (strcmp(map->items[i]->key, "step_all") == 0) continue;
        STW_TRY(stw_part_phase(r->tree, map->items[i], &phase, err));
        STW_TRY(stw_part_seconds(r->tree, map, map->items[i]->key, &result->time_s[phase], err));
    }
    STW_TRY(read_array(r, map, "step_all", &list, err));
    STW_TRY(read_numbers(r, list, &result->step_all_s, &result->n_step_all, err));
    STW_TRY(read_object(r, r->tree->root, "rates", &map, err));
    if (map == NULL) goto out;
    STW_TRY(read_seconds(r, map, "params_per_s", &result->params_per_s, err));
    STW_TRY(read_seconds(r, map, "bytes_per_s_up", &result->up_bps, err));
    STW_TRY(read_seconds(r, map, "bytes_per_s_down", &result->down_bps, err));
    STW_TRY(read_seconds(r, map, "copies_s", &result->copies_s, err));
    STW_TRY(read_links(r, map, err));
    map = stw_node_get(r->tree->root, "steady");
    STW_TRY(read_later(r, map, "gpu_growth_bytes", &result->gpu_growth_bytes, err));
    STW_TRY(read_later(r, map, "host_growth_bytes", &result->host_growth_bytes, err));
out:
    return status;
}

static bool parse_hex(const char *text, uint64_t *out) {
    size_t length = strlen(text);
    *out = 0;
    if (length == 0 || length > 16) return false;
    for (const char *p = text; *p != '\0'; p++) {
        unsigned digit = *p >= '0' && *p <= '9'   ? (unsigned)(*p - '0')
                         : *p >= 'a' && *p <= 'f' ? (unsigned)(*p - 'a' + 10)
                                                  : 16;
        if (digit == 16) return false;
        *out = *out << 4 | digit;
    }
    return true;
}

/* @param found out, true: there is a value, finite or not */
static stw_status read_norm(const reader *r, const stw_node *verify, const char *key, double *out,
                            bool *found, stw_error *err) {
    const stw_node *node = stw_node_get(verify, key);
    *found = node != NULL && node->kind != STW_NODE_NULL;
    if (!*found || node->kind != STW_NODE_STRING) return read_seconds(r, verify, key, out, err);
    *out = strcmp(node->text, "NaN") == 0 ? (double)NAN : (double)INFINITY;
    if (isnan(*out) || strcmp(node->text, "Infinity") == 0) return STW_STATUS_OK;
    return stw_node_fail(r->tree, node, "a number, \"NaN\", \"Infinity\" or null", err);
}

static stw_status read_norms(const reader *r, const stw_node *verify, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_result *result = r->result;
    bool found = false;
    STW_TRY(read_norm(r, verify, "grad_norm", &result->grad_norm, &result->clips, err));
    if (stw_node_get(verify, "clip_factor") != NULL)
        STW_TRY(read_norm(r, verify, "clip_factor", &result->clip_factor, &found, err));
    if (stw_node_get(verify, "nonfinite_steps") == NULL) goto out;
    STW_TRY(read_u64(r, verify, "nonfinite_steps", &result->nonfinite_steps, err));
    STW_TRY(read_u64(r, verify, "first_nonfinite_step", &result->first_nonfinite_step, err));
out:
    return status;
}

static stw_status read_weights(const reader *r, const stw_node *verify, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *weights = NULL;
    stw_run_result *result = r->result;
    STW_TRY(stw_node_object(r->tree, verify, "weights", &weights, err));
    STW_TRY(stw_node_u64(r->tree, weights, "read_bytes", &result->weights_read_bytes, err));
    STW_TRY(stw_part_u64(r->tree, weights, "compared_bytes", result->weights_read_bytes,
                         &result->weights_compared_bytes, err));
out:
    return status;
}

static stw_status read_verify(const reader *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *verify = NULL, *digest = NULL;
    STW_TRY(read_object(r, r->tree->root, "verify", &verify, err));
    if (verify == NULL) goto out;
    STW_TRY(read_u64(r, verify, "checked", &r->result->checked, err));
    STW_TRY(read_u64(r, verify, "mismatched", &r->result->mismatched, err));
    if (stw_node_get(verify, "elements") != NULL)
        STW_TRY(read_u64(r, verify, "elements", &r->result->elements, err));
    STW_TRY(read_norms(r, verify, err));
    if (stw_node_get(verify, "digest_of") != NULL)
        STW_TRY(stw_part_string(r->tree, verify, "digest_of", false, r->result->pool,
                                &r->result->digest_of, err));
    if (stw_node_get(verify, "weights") != NULL) STW_TRY(read_weights(r, verify, err));
    STW_TRY(read_object(r, verify, "digest", &digest, err));
    for (int i = 0; i < STW_N_DIGESTS && digest != NULL; i++) {
        const char *hex = NULL;
        if (i == 3 && stw_node_get(digest, digest_names[i]) == NULL) continue;
        STW_TRY(stw_node_string(r->tree, digest, digest_names[i], &hex, err));
        if (!parse_hex(hex, &r->result->digest[i]))
            return stw_node_fail(r->tree, stw_node_get(digest, digest_names[i]),
                                 "up to 16 lower-case hexadecimal digits", err);
    }
out:
    return status;
}

/* A record without a single figure can be held against nothing. */
static bool has_peaks(const stw_run_result *result) {
    bool found = result->gpu_peak_bytes > 0 || result->host_peak_bytes > 0;
    for (int p = 0; p < STW_N_PHASES; p++) {
        if (result->gpu_bytes[p] > 0 || result->host_bytes[p] > 0) found = true;
        for (uint32_t i = 0; i < result->n_ranks; i++)
            if (result->ranks[i].phases[p].known) found = true;
        for (uint32_t i = 0; i < result->n_nodes; i++)
            if (result->nodes[i].host[p] > 0) found = true;
    }
    return found;
}

/* Records of others need not have them. */
static stw_status check_checksums(const reader *r, stw_error *err) {
    static const char *const known[] = {"source", "backend", "device", "plan_hash", "world",
                                        "steps",  "seed",    "peaks",  "time_s",    "rates",
                                        "verify", "ranks",   "nodes"};
    const size_t n = r->complete ? sizeof known / sizeof known[0] : 0;
    if (r->edited || (!r->complete && stw_node_get(r->tree->root, "checksums") == NULL))
        return STW_STATUS_OK;
    return stw_checksums_check(r->tree, known, n, "run again", err);
}

static stw_status read_all(reader *r, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_result *result = r->result;
    const stw_node *root = r->tree->root;
    STW_TRY(stw_tree_schema(r->tree, "stowage.run", 1, err));
    STW_TRY(stw_part_string(r->tree, root, "source", false, result->pool, &result->source, err));
    r->complete = strcmp(result->source, "stowage") == 0;
    if (!r->complete && strcmp(result->source, "external") != 0)
        return stw_node_fail(r->tree, stw_node_get(root, "source"), "stowage or external", err);
    STW_TRY(read_string(r, root, "backend", &result->backend, err));
    STW_TRY(read_string(r, root, "device", &result->device, err));
    if (stw_node_get(root, "build") != NULL)
        STW_TRY(read_string(r, root, "build", &result->build, err));
    STW_TRY(read_date(r, err));
    STW_TRY(stw_part_optional_u32(r->tree, r->tree->root, "exit_code", &r->result->exit_code, err));
    STW_TRY(read_string(r, root, "plan_hash", &result->plan_hash, err));
    STW_TRY(read_terms(r, err));
    STW_TRY(read_u32(r, root, "world", &result->world, err));
    STW_TRY(read_u32(r, root, "steps", &result->steps, err));
    STW_TRY(stw_part_optional_u32(r->tree, root, "first_step", &result->first_step, err));
    STW_TRY(read_seed(r, err));
    STW_TRY(read_not_run(r, err));
    STW_TRY(read_summary(r, "gpu_bytes", result->gpu_bytes, &result->gpu_peak_bytes, err));
    STW_TRY(read_summary(r, "host_bytes", result->host_bytes, &result->host_peak_bytes, err));
    STW_TRY(read_ranks(r, err));
    STW_TRY(read_nodes(r, err));
    STW_TRY(read_times(r, err));
    STW_TRY(read_verify(r, err));
    STW_TRY(stw_run_synced_read(r->tree, root, r->result->pool, &r->result->synced, err));
    if (!has_peaks(result))
        return stw_part_fail(r->tree, root, err,
                             "no bytes are measured in it: found none in peaks, ranks or nodes");
    STW_TRY(stw_run_result_check(r->tree, result, r->complete, err));
    STW_TRY(check_checksums(r, err));
out:
    return status;
}

static stw_status from_tree(const stw_tree *tree, bool edited, stw_run_result **out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    reader r = {tree, NULL, false, edited};
    STW_TRY(stw_run_result_new(&r.result, err));
    r.result->file = stw_pool_string(r.result->pool, tree->file);
    STW_TRY(read_all(&r, err));
out:
    if (status == STW_STATUS_OK)
        *out = r.result;
    else
        stw_run_result_free(r.result);
    return stw_error_in(status, tree->file, err);
}

stw_status stw_run_result_parse(const char *file, const char *text, size_t length,
                                stw_run_result **out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json(file, text, length, &tree, err);
    if (status == STW_STATUS_OK) status = from_tree(tree, false, out, err);
    stw_tree_free(tree);
    return status;
}

stw_status stw_run_result_parse_edited(const char *file, const char *text, size_t length,
                                       stw_run_result **out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_parse_json(file, text, length, &tree, err);
    if (status == STW_STATUS_OK) status = from_tree(tree, true, out, err);
    stw_tree_free(tree);
    return status;
}

stw_status stw_run_result_read(const char *path, stw_run_result **out, stw_error *err) {
    stw_tree *tree = NULL;
    stw_status status = stw_tree_read_json(path, &tree, err);
    if (status == STW_STATUS_OK) status = from_tree(tree, false, out, err);
    stw_tree_free(tree);
    return status;
}
