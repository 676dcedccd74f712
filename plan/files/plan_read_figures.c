/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted figures of a plan file. They are taken as stated, so that a comparison with a
 * measurement can find a wrong one; a figure that the file states twice, differently, is kept as a
 * contradiction, which a comparison reports too. Figures that are missing, negative or of another
 * type are BAD_INPUT. */
#include <string.h>

#include "core/checked.h"
#include "plan/files/file_parts.h"
#include "plan/files/plan_file.h"

typedef struct reader {
    const stw_tree *tree;
    stw_plan *plan;
    size_t capacity; /* of plan->contradictions */
} reader;

/* Whose figure, in which phase: what a contradiction says of itself. */
typedef struct subject {
    const char *kind, *what;
    stw_phase phase;
} subject;

static stw_status contradict(reader *r, subject of, uint64_t stated, uint64_t follows,
                             stw_error *err) {
    stw_plan *plan = r->plan;
    if (stated == follows) return STW_STATUS_OK;
    plan->contradictions =
        stw_pool_grow(plan->pool, plan->contradictions, plan->n_contradictions,
                      (size_t)plan->n_contradictions + 1, &r->capacity, sizeof(stw_contradiction));
    if (plan->contradictions == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, r->tree->file, "out of memory");
    plan->contradictions[plan->n_contradictions++] =
        (stw_contradiction){of.phase, of.what, of.kind, stated, follows};
    return STW_STATUS_OK;
}

/* A figure that follows from others of the file. */
static stw_status repeated(reader *r, const stw_node *parent, const char *key, subject of,
                           uint64_t follows, stw_error *err) {
    uint64_t stated = 0;
    stw_status status = stw_node_u64(r->tree, parent, key, &stated, err);
    return status == STW_STATUS_OK ? contradict(r, of, stated, follows, err) : status;
}

/* Bytes of a tier: `total_key` and "components" of `node`. Some components are subtracted from the
 * total later on and must not exceed it. */
static stw_status read_peak(reader *r, const stw_node *node, const char *total_key, subject of,
                            stw_peak *out, stw_error *err) {
    static const stw_component outside[] = {STW_COMPONENT_CONTEXT, STW_COMPONENT_COMM,
                                            STW_COMPONENT_SLACK, STW_COMPONENT_PROCESS,
                                            STW_COMPONENT_PAGE_LOCK_ROUNDING};
    stw_status status = STW_STATUS_OK;
    uint64_t sum = 0, taken = 0;
    STW_TRY(stw_node_u64(r->tree, node, total_key, &out->total, err));
    STW_TRY(stw_part_components(r->tree, node, "components", out->components, err));
    for (int c = 0; c < STW_N_COMPONENTS; c++)
        STW_TRY(stw_add_u64(sum, out->components[c], &sum, "the components' bytes", err));
    for (int i = 0; i < 5; i++) taken += out->components[outside[i]]; /* at most sum */
    if (taken > out->total)
        return stw_node_fail(r->tree, stw_node_get(node, total_key),
                             "at least the bytes of what lies outside arenas", err);
    STW_TRY(contradict(r, of, out->total, sum, err));
out:
    return status;
}

static stw_status read_tier(reader *r, const stw_node *parent, const char *key, subject of,
                            stw_peak *out, stw_error *err) {
    const stw_node *node = NULL;
    stw_status status = stw_node_object(r->tree, parent, key, &node, err);
    return status == STW_STATUS_OK ? read_peak(r, node, "total", of, out, err) : status;
}

/* Phases in a map must be those of the plan, each with its object. */
static stw_status check_phases(const stw_tree *tree, const stw_node *map,
                               const bool has[STW_N_PHASES], const char *other_key,
                               stw_error *err) {
    for (size_t i = 0; i < map->n_items; i++) {
        stw_phase phase;
        if (other_key != NULL && strcmp(map->items[i]->key, other_key) == 0) continue;
        stw_status status = stw_part_phase(tree, map->items[i], &phase, err);
        if (status != STW_STATUS_OK) return status;
        if (!has[phase])
            return stw_part_fail(tree, map->items[i], err, "the plan has no movement %s",
                                 map->items[i]->key);
    }
    return STW_STATUS_OK;
}

/* ---- ranks ---- */

static stw_status read_rank_phase(reader *r, const stw_node *phases, const char *kind,
                                  stw_phase phase, stw_peak out[STW_N_TIERS], stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *node = NULL;
    stw_peak *gpu = &out[STW_TIER_GPU];
    STW_TRY(stw_node_object(r->tree, phases, stw_phase_name(phase), &node, err));
    STW_TRY(read_peak(r, node, "device", (subject){kind, "gpu device", phase}, gpu, err));
    STW_TRY(repeated(r, node, "allocated", (subject){kind, "gpu allocated", phase},
                     stw_peak_allocated(gpu), err));
    STW_TRY(repeated(r, node, "reserved", (subject){kind, "gpu reserved", phase},
                     stw_peak_reserved(gpu), err));
    STW_TRY(read_tier(r, node, "host", (subject){kind, "host", phase}, &out[STW_TIER_HOST], err));
    STW_TRY(read_tier(r, node, "nvme", (subject){kind, "nvme", phase}, &out[STW_TIER_NVME], err));
out:
    return status;
}

/* The phase in which a tier peaks, for a figure that is a maximum over phases. */
static stw_phase worst_phase(const stw_plan *plan, stw_tier tier) {
    int worst = 0;
    for (int p = 1; p < STW_N_PHASES; p++)
        if (stw_plan_worst_bytes(plan, (stw_phase)p, tier) >
            stw_plan_worst_bytes(plan, (stw_phase)worst, tier))
            worst = p;
    return (stw_phase)worst;
}

static stw_status same_identity(const stw_tree *tree, const stw_node *node, const char *key,
                                uint64_t expected, stw_error *err) {
    uint64_t stated = 0;
    stw_status status = stw_node_u64(tree, node, key, &stated, err);
    if (status != STW_STATUS_OK || stated == expected) return status;
    return stw_part_fail(tree, stw_node_get(node, key), err, "%s: found %llu, the job gives %llu",
                         key, (unsigned long long)stated, (unsigned long long)expected);
}

static stw_status read_rank(reader *r, const stw_node *node, uint32_t k, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_rank_kind *kind = &r->plan->job->kinds[k];
    stw_peaks *peaks = &r->plan->peaks[k];
    const stw_node *phases = NULL;
    const char *name = NULL;
    uint64_t allocated, reserved, device;
    STW_TRY(stw_node_string(r->tree, node, "kind", &name, err));
    if (strcmp(name, kind->name) != 0)
        return stw_node_fail(r->tree, stw_node_get(node, "kind"), kind->name, err);
    STW_TRY(same_identity(r->tree, node, "rank", kind->ranks[0], err));
    STW_TRY(same_identity(r->tree, node, "ranks", kind->n_ranks, err));
    STW_TRY(same_identity(r->tree, node, "stage", kind->stage, err));
    STW_TRY(stw_node_object(r->tree, node, "phases", &phases, err));
    STW_TRY(check_phases(r->tree, phases, peaks->has, NULL, err));
    for (int p = 0; p < STW_N_PHASES; p++)
        if (peaks->has[p])
            STW_TRY(read_rank_phase(r, phases, kind->name, (stw_phase)p, peaks->phase[p], err));
    stw_plan_rank_maxima(peaks, &allocated, &reserved, &device);
    stw_phase worst = worst_phase(r->plan, STW_TIER_GPU);
    STW_TRY(repeated(r, node, "gpu_allocated_bytes",
                     (subject){kind->name, "gpu_allocated_bytes", worst}, allocated, err));
    STW_TRY(repeated(r, node, "gpu_reserved_bytes",
                     (subject){kind->name, "gpu_reserved_bytes", worst}, reserved, err));
    STW_TRY(repeated(r, node, "gpu_bytes", (subject){kind->name, "gpu_bytes", worst}, device, err));
out:
    return status;
}

/* ---- nodes ---- */

static stw_status read_node(reader *r, const stw_node *node, uint32_t n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_peaks *peaks = &r->plan->node_peaks[n];
    const stw_node *phases = NULL, *phase = NULL;
    STW_TRY(same_identity(r->tree, node, "kind", n, err));
    STW_TRY(same_identity(r->tree, node, "nodes", r->plan->job->node_kinds[n].n_nodes, err));
    STW_TRY(stw_node_object(r->tree, node, "phases", &phases, err));
    STW_TRY(check_phases(r->tree, phases, peaks->has, NULL, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        stw_peak *host = &peaks->phase[p][STW_TIER_HOST];
        if (!peaks->has[p]) continue;
        STW_TRY(stw_node_object(r->tree, phases, stw_phase_name((stw_phase)p), &phase, err));
        STW_TRY(read_peak(r, phase, "host", (subject){"node", "host", (stw_phase)p}, host, err));
        STW_TRY(repeated(r, phase, "page_locked",
                         (subject){"node", "host page-locked", (stw_phase)p},
                         stw_plan_page_locked(host), err));
        STW_TRY(read_tier(r, phase, "nvme", (subject){"node", "nvme", (stw_phase)p},
                          &peaks->phase[p][STW_TIER_NVME], err));
    }
out:
    return status;
}

/* ---- the whole ---- */

static stw_status read_list(reader *r, const char *key, uint32_t n, const char *of,
                            stw_status (*read)(reader *, const stw_node *, uint32_t, stw_error *),
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    STW_TRY(stw_node_array(r->tree, r->tree->root, key, &list, err));
    if (list->n_items != n)
        return stw_part_fail(r->tree, list, err,
                             "%s: found %zu entries, the job has %u kinds of %s", key,
                             list->n_items, n, of);
    for (uint32_t i = 0; i < n; i++) STW_TRY(read(r, list->items[i], i, err));
out:
    return status;
}

static stw_status read_summary(reader *r, const char *key, stw_tier tier,
                               const bool has[STW_N_PHASES], stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_plan *plan = r->plan;
    const stw_node *peaks = NULL, *map = NULL;
    uint64_t most = 0;
    STW_TRY(stw_node_object(r->tree, r->tree->root, "peaks", &peaks, err));
    STW_TRY(stw_node_object(r->tree, peaks, key, &map, err));
    STW_TRY(check_phases(r->tree, map, has, "peak", err));
    const char *what = tier == STW_TIER_GPU ? "peaks.gpu_bytes" : "peaks.host_bytes";
    for (int p = 0; p < STW_N_PHASES; p++) {
        uint64_t bytes = stw_plan_worst_bytes(plan, (stw_phase)p, tier);
        if (!has[p]) continue;
        STW_TRY(repeated(r, map, stw_phase_name((stw_phase)p), (subject){"job", what, (stw_phase)p},
                         bytes, err));
        most = stw_max_u64(most, bytes);
    }
    STW_TRY(repeated(r, map, "peak", (subject){"job", what, worst_phase(plan, tier)}, most, err));
out:
    return status;
}

static stw_status read_times(reader *r, const bool has[STW_N_PHASES], stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *map = NULL;
    STW_TRY(stw_node_object(r->tree, r->tree->root, "time_s", &map, err));
    STW_TRY(check_phases(r->tree, map, has, "objective", err));
    for (int p = 0; p < STW_N_PHASES; p++)
        if (has[p])
            STW_TRY(stw_part_seconds(r->tree, map, stw_phase_name((stw_phase)p),
                                     &r->plan->time_s[p], err));
    STW_TRY(stw_part_seconds(r->tree, map, "objective", &r->plan->objective_s, err));
out:
    return status;
}

stw_status stw_plan_read_figures(const stw_tree *tree, stw_plan *plan, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    reader r = {tree, plan, 0};
    bool has[STW_N_PHASES];
    for (int p = 0; p < STW_N_PHASES; p++) has[p] = stw_plan_has_phase(plan, (stw_phase)p);
    STW_TRY(read_list(&r, "ranks", plan->job->n_kinds, "rank", read_rank, err));
    STW_TRY(read_list(&r, "nodes", plan->job->n_node_kinds, "node", read_node, err));
    STW_TRY(read_summary(&r, "gpu_bytes", STW_TIER_GPU, has, err));
    STW_TRY(read_summary(&r, "host_bytes", STW_TIER_HOST, has, err));
    STW_TRY(read_times(&r, has, err));
out:
    return status;
}
