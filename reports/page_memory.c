/* SPDX-License-Identifier: Apache-2.0 */
/* Memory over time for the HTML page. A movement is cut into buckets of equal time; a bucket has
 * the bytes of its fullest moment, so that no peak is lost. Nodes add up the buckets of their
 * ranks, as their peaks do. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "reports/page.h"

typedef stw_memory_grid grid;

static const stw_page_track *track_of(const stw_page_item *item, uint32_t kind) {
    return item->tracks != NULL ? &item->tracks[kind] : NULL;
}

/* From the first to the last moment of a movement; NaN where its seconds are not predicted. */
static stw_op_span span_of(const stw_program *program, const stw_page_track *track, uint32_t m) {
    const stw_movement *movement = &program->movements[m];
    stw_op_span span = {INFINITY, -INFINITY};
    if (track == NULL || !track->predicted[m]) return (stw_op_span){NAN, NAN};
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        span.start_s = fmin(span.start_s, track->ops[i].start_s);
        span.end_s = fmax(span.end_s, track->ops[i].end_s);
    }
    return span.end_s > span.start_s ? span : (stw_op_span){NAN, NAN};
}

/* The bucket of an operation: by time, or by its place in the list where there is no time. */
static uint32_t bucket_of(const grid *g, const stw_movement *movement, stw_op_span span,
                          uint32_t op, const stw_page_track *track) {
    double share = (op - movement->first_op) / (double)movement->n_ops;
    if (span.end_s > span.start_s)
        share = (track->ops[op].start_s - span.start_s) / (span.end_s - span.start_s);
    const double at = share * g->buckets;
    return at < g->buckets ? (uint32_t)fmax(at, 0) : g->buckets - 1;
}

static void note(const grid *g, const stw_live *live, stw_live *fullest) {
    if (live->total[g->tier] >= fullest->total[g->tier]) *fullest = *live;
}

static void add_bucket(const grid *g, uint32_t stretch, uint32_t bucket, uint64_t ranks,
                       const stw_live *fullest) {
    uint64_t *to = g->bytes + ((size_t)stretch * g->buckets + bucket) * STW_N_COMPONENTS;
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++)
        to[c] = stw_plus(to[c], stw_times(fullest->bytes[g->tier][c], ranks));
}

/* One movement of a kind of rank, `ranks` times, into a stretch. */
static void add_movement(const grid *g, uint32_t kind, uint32_t m, uint32_t stretch, uint64_t ranks,
                         stw_live *live) {
    const stw_program *program = g->item->plan->programs[kind];
    const stw_movement *movement = &program->movements[m];
    const stw_page_track *track = track_of(g->item, kind);
    const stw_op_span span = span_of(program, track, m);
    stw_live fullest = *live;
    uint32_t bucket = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind != STW_OP_ALLOC && op->kind != STW_OP_FREE) continue;
        const uint32_t at = bucket_of(g, movement, span, i, track);
        for (; bucket < at; bucket++) {
            add_bucket(g, stretch, bucket, ranks, &fullest);
            fullest = *live;
        }
        stw_live_apply(live, op);
        note(g, live, &fullest);
    }
    for (; bucket < g->buckets; bucket++) {
        add_bucket(g, stretch, bucket, ranks, &fullest);
        fullest = *live;
    }
}

static uint32_t stretch_of(const grid *g, uint32_t movement) {
    uint32_t i = 0;
    while (g->order[i] != movement) i++;
    return i;
}

/* By phase; movements of one phase stay in the order of the program. */
static void order_movements(const stw_program *program, uint32_t *order) {
    for (uint32_t m = 0; m < program->n_movements; m++) {
        uint32_t at = m;
        for (; at > 0 && program->movements[order[at - 1]].phase > program->movements[m].phase;
             at--)
            order[at] = order[at - 1];
        order[at] = m;
    }
}

/* Movements of other kinds go to the stretches of the same phase and role, in their order. */
static void add_kind(const grid *g, uint32_t kind, uint64_t ranks) {
    const stw_program *program = g->item->plan->programs[kind];
    stw_live live;
    memset(&live, 0, sizeof live);
    for (uint32_t m = 0, next = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        uint32_t s = next;
        while (s < g->base->n_movements &&
               (g->base->movements[s].phase != movement->phase ||
                g->base->movements[s].role_number != movement->role_number))
            s++;
        if (s == g->base->n_movements) continue;
        add_movement(g, kind, m, stretch_of(g, s), ranks, &live);
        next = s + 1;
    }
}

static void put_stretches(const grid *g, const stw_peaks *shown, stw_json *json) {
    double at_s = 0;
    stw_json_begin_array(json, "stretches");
    for (uint32_t i = 0; i < g->base->n_movements; i++) {
        const stw_movement *movement = &g->base->movements[g->order[i]];
        const stw_op_span of_program = span_of(g->base, g->track, g->order[i]);
        const stw_op_span span = {at_s, at_s + of_program.end_s - of_program.start_s};
        const bool known = isfinite(span.end_s);
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "phase", stw_phase_name(movement->phase));
        stw_json_string(json, "role", movement->role);
        stw_json_double(json, "start_s", known ? span.start_s : NAN);
        stw_json_double(json, "end_s", known ? span.end_s : NAN);
        if (known) at_s = span.end_s;
        if (shown != NULL && movement->role_number == 0)
            stw_json_u64(json, "reserved_bytes", shown->phase[movement->phase][g->tier].total);
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void put_components(const grid *g, stw_json *json) {
    const size_t n = (size_t)g->base->n_movements * g->buckets;
    stw_json_u64(json, "buckets", g->buckets);
    stw_json_begin_object(json, "bytes");
    for (unsigned c = 0; c < STW_N_COMPONENTS; c++) {
        uint64_t most = 0;
        for (size_t i = 0; i < n; i++) most = stw_max_u64(most, g->bytes[i * STW_N_COMPONENTS + c]);
        if (most == 0) continue;
        stw_json_begin_array(json, stw_component_name((stw_component)c));
        for (size_t i = 0, same; i < n; i += same) {
            const uint64_t *at = &g->bytes[i * STW_N_COMPONENTS + c];
            for (same = 1; i + same < n && at[same * STW_N_COMPONENTS] == *at;) same++;
            stw_json_u64(json, NULL, same);
            stw_json_u64(json, NULL, *at);
        }
        stw_json_end(json);
    }
    stw_json_end(json);
}

static void put_line(stw_json *json, const char *name, uint64_t bytes) {
    if (bytes == STW_UNLIMITED) return;
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "name", name);
    stw_json_u64(json, "bytes", bytes);
    stw_json_end(json);
}

static void put_limits(const stw_plan *plan, stw_tier tier, stw_json *json) {
    const stw_cluster *c = &plan->cluster;
    stw_json_begin_array(json, "limits");
    if (tier == STW_TIER_GPU) {
        put_line(json, "GPU memory limit", stw_plan_gpu_capacity(plan));
    } else {
        put_line(json, "memory of the node", c->host.memory_bytes);
        if (c->host.limit_bytes < c->host.memory_bytes)
            put_line(json, "cgroup limit", c->host.limit_bytes);
        if (c->host.kill_share < 1)
            put_line(json, "scheduler kills here", stw_plan_host_capacity(plan));
    }
    stw_json_end(json);
}

/* The highest peak of a kind of rank or node. */
static uint64_t peak_of(const stw_peaks *peaks, stw_tier tier) {
    uint64_t most = 0;
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        if (peaks->has[p]) most = stw_max_u64(most, peaks->phase[p][tier].total);
    return most;
}

static bool alike(const stw_peaks *a, const stw_peaks *b, stw_tier tier) {
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        const double x = (double)a->phase[p][tier].total, y = (double)b->phase[p][tier].total;
        if (a->has[p] != b->has[p] || fabs(x - y) > 0.01 * fmax(x, y)) return false;
    }
    return true;
}

/* Those with the highest peaks that differ. @return how many */
static uint32_t pick(const stw_peaks *peaks, uint32_t n, stw_tier tier,
                     uint32_t picked[STW_PAGE_MOST_KINDS]) {
    uint32_t n_picked = 0;
    while (n_picked < STW_PAGE_MOST_KINDS) {
        uint32_t best = n;
        for (uint32_t k = 0; k < n; k++) {
            bool shown = peak_of(&peaks[k], tier) == 0;
            for (uint32_t i = 0; i < n_picked && !shown; i++)
                shown = alike(&peaks[k], &peaks[picked[i]], tier);
            if (shown) continue;
            if (best == n || peak_of(&peaks[k], tier) > peak_of(&peaks[best], tier)) best = k;
        }
        if (best == n) break;
        picked[n_picked++] = best;
    }
    return n_picked;
}

uint32_t stw_memory_pick(const stw_plan *plan, stw_tier tier,
                         uint32_t picked[STW_PAGE_MOST_KINDS]) {
    if (plan->programs == NULL || plan->peaks == NULL || plan->node_peaks == NULL) return 0;
    return tier == STW_TIER_HOST ? pick(plan->node_peaks, plan->job->n_node_kinds, tier, picked)
                                 : pick(plan->peaks, plan->job->n_kinds, tier, picked);
}

stw_status stw_memory_grid_make(const stw_page_item *item, stw_tier tier, uint32_t kind,
                                uint32_t buckets, stw_pool *pool, stw_memory_grid *out,
                                stw_error *err) {
    const stw_plan *plan = item->plan;
    const stw_job *job = plan->job;
    const bool node = tier == STW_TIER_HOST;
    const uint32_t *ranks = node ? job->node_kinds[kind].kind_ranks : NULL;
    uint32_t base = kind;
    for (base = node ? 0 : kind; node && base < job->n_kinds - 1 && ranks[base] == 0;) base++;
    *out = (grid){.item = item,
                  .tier = tier,
                  .base = plan->programs[base],
                  .track = track_of(item, base),
                  .buckets = buckets};
    const size_t n = (size_t)out->base->n_movements * buckets * STW_N_COMPONENTS;
    out->bytes = stw_pool_array(pool, n, sizeof *out->bytes);
    out->order = stw_pool_array(pool, out->base->n_movements, sizeof *out->order);
    bool *alone = stw_pool_array(pool, job->n_node_kinds, sizeof *alone);
    if (out->bytes == NULL || out->order == NULL || alone == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    order_movements(out->base, out->order);
    if (node) alone[kind] = true;
    if (node)
        stw_job_nodes_words(job, alone, out->who, sizeof out->who);
    else
        stw_job_kind_words(job, kind, out->who, sizeof out->who);
    for (uint32_t k = 0; node && k < job->n_kinds; k++)
        if (ranks[k] > 0) add_kind(out, k, ranks[k]);
    if (!node) add_kind(out, kind, 1);
    return STW_STATUS_OK;
}

static stw_status put_chart(const stw_page_item *item, stw_tier tier, uint32_t kind,
                            uint32_t buckets, stw_json *json, stw_error *err) {
    const stw_plan *plan = item->plan;
    const bool node = tier == STW_TIER_HOST;
    stw_status status = STW_STATUS_OK;
    grid g;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a page");
    STW_TRY(stw_memory_grid_make(item, tier, kind, buckets, pool, &g, err));
    stw_json_begin_object(json, NULL);
    stw_json_string(json, "of", g.who);
    stw_json_string(json, "tier", stw_tier_name(tier));
    stw_json_u64(json, "peak_bytes",
                 peak_of(node ? &plan->node_peaks[kind] : &plan->peaks[kind], tier));
    put_limits(plan, tier, json);
    put_stretches(&g,
                  !node && plan->shown != NULL && !plan->job->engine->spec.own_process
                      ? &plan->shown[kind]
                      : NULL,
                  json);
    put_components(&g, json);
    stw_json_end(json);
out:
    stw_pool_free(pool);
    return status;
}

stw_status stw_page_memory(const stw_page_item *item, uint32_t buckets, stw_json *json,
                           stw_error *err) {
    static const stw_tier tiers[] = {STW_TIER_GPU, STW_TIER_HOST};
    stw_status status = STW_STATUS_OK;
    uint32_t picked[STW_PAGE_MOST_KINDS];
    stw_json_begin_array(json, "memory");
    for (int side = 0; side < 2; side++) {
        const uint32_t n = stw_memory_pick(item->plan, tiers[side], picked);
        for (uint32_t i = 0; i < n; i++)
            STW_TRY(put_chart(item, tiers[side], picked[i], buckets, json, err));
    }
out:
    stw_json_end(json);
    return status;
}
