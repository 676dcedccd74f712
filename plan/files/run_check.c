/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/run_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/median.h"
#include "plan/files/file_parts.h"

typedef struct checker {
    const stw_tree *tree;
    const stw_run_result *run;
    stw_error *err;
} checker;

static const stw_node *at(const checker *c, const char *path) {
    const stw_node *node = stw_node_path(c->tree->root, path);
    return node != NULL ? node : c->tree->root;
}

static const stw_node *item_at(const checker *c, const char *list, uint32_t i) {
    const stw_node *node = stw_node_get(c->tree->root, list);
    return node != NULL && i < node->n_items ? node->items[i] : c->tree->root;
}

/* ---- how many there are ---- */

static stw_status check_steps(const checker *c) {
    const stw_run_result *run = c->run;
    const stw_node *all = stw_node_path(c->tree->root, "time_s.step_all");
    if (run->world == 0)
        return stw_part_fail(c->tree, at(c, "world"), c->err,
                             "world: found 0, expected at least 1 rank");
    if (run->steps == 0)
        return stw_part_fail(c->tree, at(c, "steps"), c->err,
                             "steps: found 0, expected at least 1");
    if (run->first_step > 1 && run->first_step - 1 > run->steps)
        return stw_part_fail(c->tree, at(c, "first_step"), c->err,
                             "first_step: found %" PRIu32 ", expected at most one after steps, "
                             "which is %" PRIu32,
                             run->first_step, run->steps);
    const uint32_t taken = run->steps - (run->first_step > 1 ? run->first_step - 1 : 0);
    if (run->n_step_all == taken) return STW_STATUS_OK;
    return stw_part_fail(c->tree, all != NULL ? all : c->tree->root, c->err,
                         "time_s.step_all: found %" PRIu32 " samples, expected %" PRIu32
                         ", one per step that was executed",
                         run->n_step_all, taken);
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Each rank of the world, once. A record of others may state no world. */
static stw_status check_ranks(const checker *c, stw_pool *pool) {
    const stw_run_result *run = c->run;
    uint32_t *numbers = stw_pool_array(pool, run->n_ranks, sizeof *numbers);
    if (numbers == NULL)
        return stw_fail(c->err, STW_STATUS_NO_MEMORY, c->tree->file, "out of memory for its ranks");
    for (uint32_t i = 0; i < run->n_ranks; i++) {
        numbers[i] = run->ranks[i].rank;
        if (run->world > 0 && numbers[i] >= run->world)
            return stw_part_fail(c->tree, item_at(c, "ranks", i), c->err,
                                 "ranks[%" PRIu32 "].rank: found %" PRIu32
                                 ", expected less than world, which is %" PRIu32,
                                 i, numbers[i], run->world);
    }
    qsort(numbers, run->n_ranks, sizeof *numbers, by_number);
    for (uint32_t i = 1; i < run->n_ranks; i++)
        if (numbers[i] == numbers[i - 1])
            return stw_part_fail(c->tree, at(c, "ranks"), c->err,
                                 "ranks: found rank %" PRIu32 " twice, expected each rank once",
                                 numbers[i]);
    return STW_STATUS_OK;
}

static stw_status check_nodes(const checker *c) {
    const stw_run_result *run = c->run;
    for (uint32_t i = 0; i < run->n_nodes; i++)
        if (run->nodes[i].node != i)
            return stw_part_fail(c->tree, item_at(c, "nodes", i), c->err,
                                 "nodes[%" PRIu32 "].node: found %" PRIu32 ", expected %" PRIu32, i,
                                 run->nodes[i].node, i);
    for (uint32_t i = 0; i < run->n_ranks; i++)
        if (run->ranks[i].node >= run->n_nodes)
            return stw_part_fail(c->tree, item_at(c, "ranks", i), c->err,
                                 "ranks[%" PRIu32 "].node: found %" PRIu32
                                 ", expected one of the %" PRIu32 " nodes",
                                 i, run->ranks[i].node, run->n_nodes);
    return STW_STATUS_OK;
}

/* ---- bytes ---- */

static stw_status check_node(const checker *c, uint32_t node, int phase, const uint64_t sums[2]) {
    const stw_run_node *n = &c->run->nodes[node];
    const uint64_t stated[2] = {n->host[phase], n->page_locked[phase]};
    for (int locked = 0; locked < 2; locked++)
        if (stated[locked] != sums[locked])
            return stw_part_fail(c->tree, item_at(c, "nodes", node), c->err,
                                 "nodes[%" PRIu32 "].phases.%s.%s: found %" PRIu64
                                 ", the node's ranks add up to %" PRIu64,
                                 node, stw_phase_name((stw_phase)phase),
                                 locked ? "page_locked" : "host", stated[locked], sums[locked]);
    return STW_STATUS_OK;
}

/* A node has what its ranks have. */
static stw_status check_node_bytes(const checker *c, stw_pool *pool) {
    const stw_run_result *run = c->run;
    uint64_t(*sums)[STW_N_PHASES][2] = stw_pool_array(pool, run->n_nodes, sizeof *sums);
    if (sums == NULL)
        return stw_fail(c->err, STW_STATUS_NO_MEMORY, c->tree->file, "out of memory for its nodes");
    for (uint32_t i = 0; i < run->n_ranks; i++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            uint64_t *sum = sums[run->ranks[i].node][p];
            sum[0] = stw_plus(sum[0], run->ranks[i].phases[p].host);
            sum[1] = stw_plus(sum[1], run->ranks[i].phases[p].page_locked);
        }
    for (uint32_t n = 0; n < run->n_nodes; n++)
        for (int p = 0; p < STW_N_PHASES; p++) {
            stw_status status = check_node(c, n, p, sums[n][p]);
            if (status != STW_STATUS_OK) return status;
        }
    return STW_STATUS_OK;
}

static uint64_t worst(const stw_run_result *run, int phase, bool gpu) {
    uint64_t most = 0;
    for (uint32_t i = 0; gpu && i < run->n_ranks; i++)
        most = stw_max_u64(most, run->ranks[i].phases[phase].device);
    for (uint32_t i = 0; !gpu && i < run->n_nodes; i++)
        most = stw_max_u64(most, run->nodes[i].host[phase]);
    return most;
}

static stw_status check_peaks(const checker *c, bool gpu) {
    const uint64_t *stated = gpu ? c->run->gpu_bytes : c->run->host_bytes;
    const char *key = gpu ? "gpu_bytes" : "host_bytes", *of = gpu ? "ranks" : "nodes";
    uint64_t peak = gpu ? c->run->gpu_peak_bytes : c->run->host_peak_bytes, most = 0;
    char path[80];
    for (int p = 0; p < STW_N_PHASES; p++) {
        uint64_t bytes = worst(c->run, p, gpu);
        snprintf(path, sizeof path, "peaks.%s.%s", key, stw_phase_name((stw_phase)p));
        if (stated[p] != bytes)
            return stw_part_fail(c->tree, at(c, path), c->err,
                                 "%s: found %" PRIu64 ", the largest of its %s is %" PRIu64, path,
                                 stated[p], of, bytes);
        most = stw_max_u64(most, bytes);
    }
    snprintf(path, sizeof path, "peaks.%s.peak", key);
    if (peak == most) return STW_STATUS_OK;
    return stw_part_fail(c->tree, at(c, path), c->err,
                         "%s: found %" PRIu64 ", the largest of its phases is %" PRIu64, path, peak,
                         most);
}

/* ---- what was not executed was not measured ---- */

static stw_status check_not_run(const checker *c, int phase) {
    const stw_run_result *run = c->run;
    const char *name = stw_phase_name((stw_phase)phase);
    if (!run->not_run[phase]) return STW_STATUS_OK;
    if (isfinite(run->time_s[phase]))
        return stw_part_fail(c->tree, at(c, "time_s"), c->err,
                             "time_s.%s: found %g s, but not_run lists this phase", name,
                             run->time_s[phase]);
    for (uint32_t i = 0; i < run->n_ranks; i++)
        if (run->ranks[i].phases[phase].known)
            return stw_part_fail(
                c->tree, item_at(c, "ranks", i), c->err,
                "ranks[%" PRIu32 "].phases.%s: found bytes, but not_run lists this phase", i, name);
    for (uint32_t i = 0; i < run->n_movements; i++)
        if (run->movements[i].phase == (stw_phase)phase && run->movements[i].n_samples > 0)
            return stw_part_fail(c->tree, item_at(c, "movements", i), c->err,
                                 "movements[%" PRIu32
                                 "]: found samples of %s, but not_run lists this phase",
                                 i, name);
    return STW_STATUS_OK;
}

/* ---- verification ---- */

/* Digests and the check of elements are made together (not with --no-digest). */
static stw_status check_verify(const checker *c) {
    const stw_run_result *run = c->run;
    if (run->digest_of[0] != '\0' && run->elements > 0 && run->checked == 0)
        return stw_part_fail(
            c->tree, at(c, "verify.checked"), c->err,
            "verify.checked: found 0, expected at least 1 where digests are given");
    if (run->mismatched > run->checked)
        return stw_part_fail(c->tree, at(c, "verify.mismatched"), c->err,
                             "verify.mismatched: found %" PRIu64
                             ", expected at most verify.checked, which is %" PRIu64,
                             run->mismatched, run->checked);
    if (stw_node_path(c->tree->root, "verify.elements") != NULL && run->checked > run->elements)
        return stw_part_fail(c->tree, at(c, "verify.elements"), c->err,
                             "verify.elements: found %" PRIu64
                             ", expected at least verify.checked, which is %" PRIu64,
                             run->elements, run->checked);
    return STW_STATUS_OK;
}

/* ---- words and figures ---- */

static bool is_digest(const char *text) {
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

static stw_status check_words(const checker *c) {
    static const char *const keys[] = {"steady.gpu_growth_bytes", "steady.host_growth_bytes"};
    const double most = 1125899906842624.0; /* 1 PiB */
    const stw_run_result *run = c->run;
    const double growth[] = {run->gpu_growth_bytes, run->host_growth_bytes};
    if (strcmp(run->backend, "cuda") != 0 && strcmp(run->backend, "host") != 0)
        return stw_node_fail(c->tree, at(c, "backend"), "cuda or host", c->err);
    if (run->digest_of[0] != '\0' && !is_digest(run->digest_of))
        return stw_node_fail(c->tree, at(c, "verify.digest_of"), "16 lower-case hexadecimal digits",
                             c->err);
    for (int i = 0; i < 2; i++)
        if (growth[i] > most)
            return stw_part_fail(c->tree, at(c, keys[i]), c->err,
                                 "%s: found %g bytes, expected at most 1 PiB", keys[i], growth[i]);
    return STW_STATUS_OK;
}

/* Seconds of a phase are the medians of its movements, added up. */
static stw_status check_medians(const checker *c, stw_pool *pool) {
    const stw_run_result *run = c->run;
    double sums[STW_N_PHASES];
    for (int p = 0; p < STW_N_PHASES; p++) sums[p] = NAN;
    for (uint32_t m = 0; m < run->n_movements; m++) {
        const stw_run_movement *movement = &run->movements[m];
        if (movement->n_samples == 0) continue;
        double *sorted = stw_pool_array(pool, movement->n_samples, sizeof *sorted);
        if (sorted == NULL)
            return stw_fail(c->err, STW_STATUS_NO_MEMORY, c->tree->file, "out of memory");
        memcpy(sorted, movement->samples_s, movement->n_samples * sizeof *sorted);
        double *sum = &sums[movement->phase];
        *sum = (isnan(*sum) ? 0 : *sum) + stw_median(sorted, movement->n_samples);
    }
    for (int p = 0; p < STW_N_PHASES; p++) {
        char path[64];
        if (isnan(sums[p]) || fabs(run->time_s[p] - sums[p]) <= 1e-9 * sums[p]) continue;
        snprintf(path, sizeof path, "time_s.%s", stw_phase_name((stw_phase)p));
        return stw_part_fail(c->tree, at(c, path), c->err,
                             "%s: found %.9g s, the medians of its movements give %.9g s", path,
                             run->time_s[p], sums[p]);
    }
    return STW_STATUS_OK;
}

static stw_status check_lengths(const checker *c) {
    const stw_run_result *run = c->run;
    if (run->n_ranks != run->world)
        return stw_part_fail(c->tree, at(c, "ranks"), c->err,
                             "ranks: found %" PRIu32 " entries, expected %" PRIu32
                             ", one per rank of world",
                             run->n_ranks, run->world);
    if (run->n_nodes == 0)
        return stw_part_fail(c->tree, at(c, "nodes"), c->err,
                             "nodes: found no entry, expected one per node");
    return STW_STATUS_OK;
}

stw_status stw_run_result_check(const stw_tree *tree, const stw_run_result *result, bool complete,
                                stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const checker c = {tree, result, err};
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory"));
    STW_TRY(check_verify(&c));
    if (complete) STW_TRY(check_steps(&c));
    if (complete) STW_TRY(check_lengths(&c));
    STW_TRY(check_ranks(&c, pool));
    for (int p = 0; p < STW_N_PHASES; p++) STW_TRY(check_not_run(&c, p));
    if (!complete) goto out;
    STW_TRY(check_words(&c));
    STW_TRY(check_medians(&c, pool));
    STW_TRY(check_nodes(&c));
    STW_TRY(check_node_bytes(&c, pool));
    STW_TRY(check_peaks(&c, true));
    STW_TRY(check_peaks(&c, false));
out:
    stw_pool_free(pool);
    return status;
}
