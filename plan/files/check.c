/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the invariants of a plan, which hold for every decision of the planner. The command checks
 * every plan that it writes or reads; the tests use the same function. */
#include <string.h>

#include "core/checked.h"
#include "plan/files/plan.h"

/* ---- regions ---- */

static stw_status regions_cover(const stw_job *job, const stw_layout *layout, stw_error *err) {
    for (int c = 0; c < STW_N_STATE; c++) {
        uint64_t next = 0;
        if (stw_job_element_bytes(job, (stw_component)c) == 0) continue;
        for (uint32_t i = 0; i < layout->n_regions; i++) {
            const stw_region *r = &layout->regions[i];
            if (r->component != (stw_component)c) continue;
            if (r->first_param != next ||
                r->bytes != r->params * stw_job_element_bytes(job, r->component))
                return stw_fail(err, STW_STATUS_BUG, stw_component_name(r->component),
                                "region %u starts at element %llu, expected %llu", i,
                                (unsigned long long)r->first_param, (unsigned long long)next);
            next += r->params;
        }
        if (next != job->kinds[layout->kind].params)
            return stw_fail(err, STW_STATUS_BUG, stw_component_name((stw_component)c),
                            "regions cover %llu of %llu elements", (unsigned long long)next,
                            (unsigned long long)job->kinds[layout->kind].params);
    }
    return STW_STATUS_OK;
}

static stw_status regions_apart(const stw_layout *layout, stw_error *err) {
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *a = &layout->regions[i];
        if (a->offset_bytes + a->bytes > layout->persistent_bytes[a->tier])
            return stw_fail(err, STW_STATUS_BUG, stw_component_name(a->component),
                            "region %u ends beyond the persistent bytes of %s", i,
                            stw_tier_name(a->tier));
        for (uint32_t j = 0; j < i; j++) {
            const stw_region *b = &layout->regions[j];
            if (a->tier == b->tier && a->offset_bytes < b->offset_bytes + b->bytes &&
                b->offset_bytes < a->offset_bytes + a->bytes)
                return stw_fail(err, STW_STATUS_BUG, stw_component_name(a->component),
                                "region %u overlaps region %u in %s", i, j, stw_tier_name(a->tier));
        }
    }
    return STW_STATUS_OK;
}

static stw_status buckets_cover(const stw_job *job, const stw_layout *layout, stw_error *err) {
    uint64_t next = 0;
    for (uint32_t i = 0; i < layout->n_buckets; i++) {
        const stw_bucket *b = &layout->buckets[i];
        if (b->first_param != next || b->params == 0)
            return stw_fail(err, STW_STATUS_BUG, "buckets",
                            "bucket %u starts at %llu, expected %llu", i,
                            (unsigned long long)b->first_param, (unsigned long long)next);
        next += b->params;
    }
    if (next != job->kinds[layout->kind].params)
        return stw_fail(err, STW_STATUS_BUG, "buckets", "buckets cover %llu of %llu elements",
                        (unsigned long long)next,
                        (unsigned long long)job->kinds[layout->kind].params);
    return STW_STATUS_OK;
}

/* ---- program ---- */

static stw_status edges(const stw_program *program, const stw_movement *movement, stw_error *err) {
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        for (int a = 0; a < 2; a++) {
            uint32_t on = op->after[a];
            if (on == STW_OP_NONE) continue;
            if (on >= i || program->ops[on].stream == op->stream)
                return stw_fail(
                    err, STW_STATUS_BUG, stw_phase_name(movement->phase),
                    "operation %u waits for %u, expected an earlier operation of another stream", i,
                    on);
        }
    }
    return STW_STATUS_OK;
}

typedef struct live_list {
    stw_pool *pool;
    uint32_t *ops; /* indices of live allocs */
    size_t n, capacity;
} live_list;

static bool overlaps(const stw_op *a, const stw_op *b) {
    return a->to == b->to && a->offset_bytes != STW_OFFSET_EXTERNAL &&
           b->offset_bytes != STW_OFFSET_EXTERNAL && a->offset_bytes < b->offset_bytes + b->bytes &&
           b->offset_bytes < a->offset_bytes + a->bytes;
}

static stw_status live_add(live_list *live, const stw_program *program, uint32_t i,
                           stw_error *err) {
    const stw_op *op = &program->ops[i];
    for (size_t j = 0; j < live->n; j++)
        if (overlaps(op, &program->ops[live->ops[j]]))
            return stw_fail(err, STW_STATUS_BUG, stw_component_name(op->component),
                            "operation %u allocates bytes in %s that operation %u has allocated", i,
                            stw_tier_name(op->to), live->ops[j]);
    live->ops = stw_pool_grow(live->pool, live->ops, live->n, live->n + 1, &live->capacity,
                              sizeof *live->ops);
    if (live->ops == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "check", "out of memory");
    live->ops[live->n++] = i;
    return STW_STATUS_OK;
}

static stw_status live_remove(live_list *live, const stw_program *program, uint32_t i,
                              stw_error *err) {
    const stw_op *op = &program->ops[i];
    for (size_t j = 0; j < live->n; j++) {
        const stw_op *a = &program->ops[live->ops[j]];
        if (a->to != op->to || a->component != op->component || a->bytes != op->bytes ||
            a->offset_bytes != op->offset_bytes)
            continue;
        live->ops[j] = live->ops[--live->n];
        return STW_STATUS_OK;
    }
    return stw_fail(err, STW_STATUS_BUG, stw_component_name(op->component),
                    "operation %u frees bytes in %s that are not allocated", i,
                    stw_tier_name(op->to));
}

/* Every copy that an executor issues reads and writes bytes that some live alloc holds. */
static bool held(const live_list *live, const stw_program *program, stw_tier tier, uint64_t offset,
                 uint64_t bytes) {
    uint64_t end = offset + bytes;
    for (bool moved = true; moved && offset < end;) {
        moved = false;
        for (size_t j = 0; j < live->n; j++) {
            const stw_op *a = &program->ops[live->ops[j]];
            if (a->to == tier && a->offset_bytes != STW_OFFSET_EXTERNAL &&
                a->offset_bytes <= offset && offset < a->offset_bytes + a->bytes) {
                offset = a->offset_bytes + a->bytes;
                moved = true;
            }
        }
    }
    return offset >= end;
}

static stw_status operands_held(const live_list *live, const stw_program *program, uint32_t i,
                                stw_error *err) {
    const stw_op *op = &program->ops[i];
    bool file = op->kind == STW_OP_READ && op->component == STW_COMPONENT_LOAD_STAGING;
    if (op->kind != STW_OP_COPY && op->kind != STW_OP_READ && op->kind != STW_OP_WRITE)
        return STW_STATUS_OK;
    if ((file || held(live, program, op->from, op->from_offset_bytes, op->bytes)) &&
        held(live, program, op->to, op->offset_bytes, op->bytes))
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_component_name(op->component),
                    "operation %u moves bytes between %s and %s that are not allocated", i,
                    stw_tier_name(op->from), stw_tier_name(op->to));
}

static stw_status check_program(const stw_program *program, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    live_list live = {.pool = stw_pool_new()};
    if (live.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "check", "out of memory");
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        STW_TRY(edges(program, movement, err));
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            if (program->ops[i].kind == STW_OP_ALLOC) STW_TRY(live_add(&live, program, i, err));
            if (program->ops[i].kind == STW_OP_FREE) STW_TRY(live_remove(&live, program, i, err));
            if (movement->executable) STW_TRY(operands_held(&live, program, i, err));
        }
    }
out:
    stw_pool_free(live.pool);
    return status;
}

/* ---- the plan ---- */

static stw_status check_peaks_equal(const stw_plan *plan, uint32_t kind, stw_error *err) {
    stw_peaks walked;
    stw_program_walk(plan->programs[kind], &walked);
    for (int p = 0; p < STW_N_PHASES; p++)
        for (int t = 0; t < STW_N_TIERS; t++)
            if (walked.phase[p][t].total != plan->peaks[kind].phase[p][t].total)
                return stw_fail(err, STW_STATUS_BUG, stw_phase_name((stw_phase)p),
                                "the plan states a peak of %llu B in %s, its program gives %llu B",
                                (unsigned long long)plan->peaks[kind].phase[p][t].total,
                                stw_tier_name((stw_tier)t),
                                (unsigned long long)walked.phase[p][t].total);
    return STW_STATUS_OK;
}

stw_status stw_plan_check(const stw_plan *plan, bool check_peaks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_decisions_check(plan->job, &plan->decisions, err));
    STW_TRY(stw_decisions_check_shares(plan->job, &plan->decisions, err));
    for (uint32_t k = 0; k < plan->job->n_kinds; k++) {
        STW_TRY(regions_cover(plan->job, plan->layouts[k], err));
        STW_TRY(regions_apart(plan->layouts[k], err));
        STW_TRY(buckets_cover(plan->job, plan->layouts[k], err));
        STW_TRY(check_program(plan->programs[k], err));
        if (check_peaks) STW_TRY(check_peaks_equal(plan, k, err));
    }
out:
    return status;
}
