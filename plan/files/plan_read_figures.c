/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted figures of a plan file. Bytes follow from the decisions: each stated figure must be
 * what the walk of the derived programs gives, and the verdict what follows from peaks and limits.
 * Any other is BAD_INPUT with its place. Seconds are taken as stated, as the simulator lies above
 * this folder (sim/sim.h: stw_sim_check); their sum must be that of an iteration. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "plan/files/file_parts.h"
#include "plan/files/plan_file.h"
#include "plan/files/verdict.h"

typedef struct reader {
    const stw_tree *tree;
    stw_plan *plan;
} reader;

/* Whose figure: the start of its place in errors, as "ranks[0].phases.load". */
typedef struct owner {
    const char *list;
    uint32_t index;    /* STW_NONE: no list */
    const char *phase; /* or NULL */
} owner;

static stw_status differs(const reader *r, const stw_node *node, owner of, const char *key,
                          uint64_t follows, stw_error *err) {
    char found[192], index[24] = "";
    stw_node_describe(node, found, sizeof found);
    if (of.index != STW_NONE) snprintf(index, sizeof index, "[%" PRIu32 "]", of.index);
    return stw_part_fail(r->tree, node, err,
                         "%s%s%s%s.%s: found %s, the plan's decisions give %" PRIu64, of.list,
                         index, of.phase != NULL ? ".phases." : "",
                         of.phase != NULL ? of.phase : "", key, found, follows);
}

/* A figure that must be what the decisions give. */
static stw_status follows_from(const reader *r, const stw_node *parent, const char *key, owner of,
                               uint64_t follows, stw_error *err) {
    uint64_t stated = 0;
    stw_status status = stw_node_u64(r->tree, parent, key, &stated, err);
    if (status != STW_STATUS_OK || stated == follows) return status;
    return differs(r, stw_node_get(parent, key), of, key, follows, err);
}

/* Bytes of a tier: `total_key` and "components" of `node`. */
static stw_status check_peak(const reader *r, const stw_node *node, const char *total_key, owner of,
                             const stw_peak *peak, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t components[STW_N_COMPONENTS];
    char key[64];
    STW_TRY(follows_from(r, node, total_key, of, peak->total, err));
    STW_TRY(stw_part_components(r->tree, node, "components", components, err));
    const stw_node *map = stw_node_get(node, "components");
    for (int c = 0; c < STW_N_COMPONENTS; c++) {
        if (components[c] == peak->components[c]) continue;
        const char *name = stw_component_name((stw_component)c);
        const stw_node *item = stw_node_get(map, name);
        snprintf(key, sizeof key, "components.%s", name);
        return differs(r, item != NULL ? item : map, of, key, peak->components[c], err);
    }
out:
    return status;
}

static stw_status check_tier(const reader *r, const stw_node *parent, const char *key, owner of,
                             const stw_peak *peak, stw_error *err) {
    const stw_node *node = NULL;
    stw_status status = stw_node_object(r->tree, parent, key, &node, err);
    return status == STW_STATUS_OK ? check_peak(r, node, "total", of, peak, err) : status;
}

/* Phases in a map must be those of the plan, each with its object. */
static stw_status check_phases(const stw_tree *tree, const stw_node *map,
                               const bool has[STW_N_PHASES], const char *const *others,
                               stw_error *err) {
    for (size_t i = 0; i < map->n_items; i++) {
        stw_phase phase;
        bool other = false;
        for (size_t o = 0; others != NULL && others[o] != NULL; o++)
            other = other || strcmp(map->items[i]->key, others[o]) == 0;
        if (other) continue;
        stw_status status = stw_part_phase(tree, map->items[i], &phase, err);
        if (status != STW_STATUS_OK) return status;
        if (!has[phase])
            return stw_part_fail(tree, map->items[i], err, "the plan has no movement %s",
                                 map->items[i]->key);
    }
    return STW_STATUS_OK;
}

/* ---- ranks ---- */

static stw_status check_rank_phase(const reader *r, const stw_node *phases, owner of,
                                   const stw_peak peaks[STW_N_TIERS], stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *node = NULL;
    const stw_peak *gpu = &peaks[STW_TIER_GPU];
    STW_TRY(stw_node_object(r->tree, phases, of.phase, &node, err));
    STW_TRY(check_peak(r, node, "device", of, gpu, err));
    STW_TRY(follows_from(r, node, "allocated", of, stw_peak_allocated(gpu), err));
    STW_TRY(follows_from(r, node, "reserved", of, stw_peak_reserved(gpu), err));
    STW_TRY(check_tier(r, node, "host", of, &peaks[STW_TIER_HOST], err));
    STW_TRY(check_tier(r, node, "nvme", of, &peaks[STW_TIER_NVME], err));
out:
    return status;
}

static stw_status check_rank(const reader *r, const stw_node *node, uint32_t k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_rank_kind *kind = &r->plan->job->kinds[k];
    const stw_peaks *peaks = &r->plan->shown[k];
    const stw_node *phases = NULL;
    const char *name = NULL;
    uint64_t allocated, reserved, device;
    owner of = {"ranks", k, NULL};
    STW_TRY(stw_node_string(r->tree, node, "kind", &name, err));
    if (strcmp(name, kind->name) != 0)
        return stw_node_fail(r->tree, stw_node_get(node, "kind"), kind->name, err);
    STW_TRY(follows_from(r, node, "rank", of, kind->ranks[0], err));
    STW_TRY(follows_from(r, node, "ranks", of, kind->n_ranks, err));
    STW_TRY(follows_from(r, node, "stage", of, kind->stage, err));
    stw_plan_rank_maxima(peaks, &allocated, &reserved, &device);
    STW_TRY(follows_from(r, node, "gpu_allocated_bytes", of, allocated, err));
    STW_TRY(follows_from(r, node, "gpu_reserved_bytes", of, reserved, err));
    STW_TRY(follows_from(r, node, "gpu_bytes", of, device, err));
    STW_TRY(stw_node_object(r->tree, node, "phases", &phases, err));
    STW_TRY(check_phases(r->tree, phases, peaks->has, NULL, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        of.phase = stw_phase_name((stw_phase)p);
        if (peaks->has[p]) STW_TRY(check_rank_phase(r, phases, of, peaks->phase[p], err));
    }
out:
    return status;
}

/* ---- nodes ---- */

static stw_status check_node(const reader *r, const stw_node *node, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_peaks *peaks = &r->plan->node_peaks[n];
    const stw_node *phases = NULL, *phase = NULL;
    owner of = {"nodes", n, NULL};
    STW_TRY(follows_from(r, node, "kind", of, n, err));
    STW_TRY(follows_from(r, node, "nodes", of, r->plan->job->node_kinds[n].n_nodes, err));
    STW_TRY(stw_node_object(r->tree, node, "phases", &phases, err));
    STW_TRY(check_phases(r->tree, phases, peaks->has, NULL, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        const stw_peak *host = &peaks->phase[p][STW_TIER_HOST];
        if (!peaks->has[p]) continue;
        of.phase = stw_phase_name((stw_phase)p);
        STW_TRY(stw_node_object(r->tree, phases, of.phase, &phase, err));
        STW_TRY(check_peak(r, phase, "host", of, host, err));
        STW_TRY(follows_from(r, phase, "page_locked", of, host->page_locked, err));
        STW_TRY(check_tier(r, phase, "nvme", of, &peaks->phase[p][STW_TIER_NVME], err));
    }
out:
    return status;
}

/* ---- the whole ---- */

static stw_status check_list(const reader *r, const char *key, uint32_t n, const char *of,
                             stw_status (*check)(const reader *, const stw_node *, uint32_t,
                                                 stw_error *),
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    STW_TRY(stw_node_array(r->tree, r->tree->root, key, &list, err));
    if (list->n_items != n)
        return stw_part_fail(r->tree, list, err,
                             "%s: found %zu entries, the job has %u kinds of %s", key,
                             list->n_items, n, of);
    for (uint32_t i = 0; i < n; i++) STW_TRY(check(r, list->items[i], i, err));
out:
    return status;
}

static stw_status check_summary(const reader *r, const char *key, stw_tier tier,
                                const bool has[STW_N_PHASES], stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *peaks = NULL, *map = NULL;
    uint64_t most = 0;
    char place[64];
    snprintf(place, sizeof place, "peaks.%s", key);
    const owner of = {place, STW_NONE, NULL};
    STW_TRY(stw_node_object(r->tree, r->tree->root, "peaks", &peaks, err));
    STW_TRY(stw_node_object(r->tree, peaks, key, &map, err));
    const char *const peak[] = {"peak", NULL};
    STW_TRY(check_phases(r->tree, map, has, peak, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        uint64_t bytes = stw_plan_worst_bytes(r->plan, (stw_phase)p, tier);
        if (!has[p]) continue;
        STW_TRY(follows_from(r, map, stw_phase_name((stw_phase)p), of, bytes, err));
        most = stw_max_u64(most, bytes);
    }
    STW_TRY(follows_from(r, map, "peak", of, most, err));
out:
    return status;
}

static stw_status read_times(reader *r, const bool has[STW_N_PHASES], stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *map = NULL;
    double stated = NAN;
    STW_TRY(stw_node_object(r->tree, r->tree->root, "time_s", &map, err));
    const char *const sums[] = {"iteration", has[STW_PHASE_CHECKPOINT] ? "save" : NULL, NULL};
    STW_TRY(check_phases(r->tree, map, has, sums, err));
    for (int p = 0; p < STW_N_PHASES; p++)
        if (has[p])
            STW_TRY(stw_part_seconds(r->tree, map, stw_phase_name((stw_phase)p),
                                     &r->plan->time_s[p], err));
    if (has[STW_PHASE_CHECKPOINT])
        STW_TRY(stw_part_seconds(r->tree, map, "save", &r->plan->save_s, err));
    STW_TRY(stw_part_seconds(r->tree, map, "iteration", &stated, err));
    double sum = stw_plan_iteration_s(r->plan);
    if (isnan(sum) ? isnan(stated) : fabs(stated - sum) <= 1e-9 * sum) goto out;
    status = stw_part_fail(r->tree, stw_node_get(map, "iteration"), err,
                           "time_s.iteration: found %.9g, its phases add up to %.9g", stated, sum);
out:
    return status;
}

/* The verdict follows from the peaks and the limits, and says whether the outcome can be
 * infeasible. */
static stw_status check_verdict(const reader *r, stw_error *err) {
    stw_plan *plan = r->plan;
    const stw_verdict stated = plan->verdict;
    stw_plan_judge(plan);
    if (stated != plan->verdict)
        return stw_part_fail(r->tree, stw_node_get(r->tree->root, "verdict"), err,
                             "verdict: found %s, the plan's peaks and limits give %s",
                             stw_verdict_name(stated), stw_verdict_name(plan->verdict));
    bool over = plan->verdict == STW_VERDICT_DOES_NOT_FIT;
    if (over != (plan->outcome == STW_OUTCOME_INFEASIBLE))
        return stw_part_fail(r->tree, stw_node_get(r->tree->root, "outcome"), err,
                             "outcome: found %s, but the verdict is %s",
                             stw_outcome_name(plan->outcome), stw_verdict_name(plan->verdict));
    return STW_STATUS_OK;
}

stw_status stw_plan_read_figures(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    reader r = {tree, plan};
    bool has[STW_N_PHASES];
    for (int p = 0; p < STW_N_PHASES; p++) has[p] = stw_plan_has_phase(plan, (stw_phase)p);
    STW_TRY(check_list(&r, "ranks", plan->job->n_kinds, "rank", check_rank, err));
    STW_TRY(check_list(&r, "nodes", plan->job->n_node_kinds, "node", check_node, err));
    STW_TRY(check_summary(&r, "gpu_bytes", STW_TIER_GPU, has, err));
    STW_TRY(check_summary(&r, "host_bytes", STW_TIER_HOST, has, err));
    STW_TRY(check_verdict(&r, err));
    STW_TRY(read_times(&r, has, err));
out:
    return status;
}
