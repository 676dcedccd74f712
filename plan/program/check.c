/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/check.h"

#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"

/* ---- regions ---- */

static stw_status component_covered(const stw_job *job, const stw_layout *layout,
                                    stw_component component, stw_error *err) {
    uint64_t element = stw_job_element_bytes(job, component), next = 0;
    uint64_t all = job->kinds[layout->kind].spaces[stw_component_space(component)].n;
    if (element == 0) return STW_STATUS_OK;
    for (uint32_t i = 0; i < layout->n_regions; i++) {
        const stw_region *r = &layout->regions[i];
        if (r->component != component || r->space != (uint32_t)stw_component_space(component))
            continue;
        if (r->first_param != next || r->bytes != stw_times(r->params, element))
            return stw_fail(err, STW_STATUS_BUG, stw_component_name(component),
                            "region %u starts at element %llu, expected %llu", i,
                            (unsigned long long)r->first_param, (unsigned long long)next);
        next += r->params;
    }
    if (next == all) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_component_name(component),
                    "regions cover %llu of %llu elements", (unsigned long long)next,
                    (unsigned long long)all);
}

static stw_status regions_cover(const stw_job *job, const stw_layout *layout, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (int c = 0; c < STW_N_STATE; c++)
        STW_TRY(component_covered(job, layout, (stw_component)c, err));
out:
    return status;
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
    uint64_t next = 0, all = stw_job_placed_params(job, layout->kind);
    if (job->engine->prefetch_by_group) all = 0;
    for (uint32_t i = 0; i < layout->n_buckets; i++) {
        const stw_bucket *b = &layout->buckets[i];
        if (b->first_param != next || b->params == 0)
            return stw_fail(err, STW_STATUS_BUG, "buckets",
                            "bucket %u starts at %llu, expected %llu", i,
                            (unsigned long long)b->first_param, (unsigned long long)next);
        next += b->params;
    }
    if (next == all) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, "buckets", "buckets cover %llu of %llu elements",
                    (unsigned long long)next, (unsigned long long)all);
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

/* What is live while the operations of a program are checked in order. */
typedef struct checker {
    const stw_job *job;
    const stw_layout *layout;
    const stw_program *program;
    const stw_movement *movement;
    stw_pool *pool;
    uint32_t *live; /* indices of live allocs */
    size_t n_live, room;
    bool uncommitted; /* something was written to NVMe since the last commit */
    uint32_t index;   /* of the operation */
    const stw_op *op;
} checker;

static bool overlaps(const stw_op *a, const stw_op *b) {
    return a->to == b->to && a->offset_bytes != STW_OFFSET_EXTERNAL &&
           b->offset_bytes != STW_OFFSET_EXTERNAL && a->offset_bytes < b->offset_bytes + b->bytes &&
           b->offset_bytes < a->offset_bytes + a->bytes;
}

/* ---- one function per `check` of the table of operations ---- */

static stw_status check_nothing(checker *c, stw_error *err) {
    (void)c;
    (void)err;
    return STW_STATUS_OK;
}

static stw_status check_alloc(checker *c, stw_error *err) {
    for (size_t j = 0; j < c->n_live; j++)
        if (overlaps(c->op, &c->program->ops[c->live[j]]))
            return stw_fail(err, STW_STATUS_BUG, stw_component_name(c->op->component),
                            "operation %u allocates bytes in %s that operation %u has allocated",
                            c->index, stw_tier_name(c->op->to), c->live[j]);
    c->live = stw_pool_grow(c->pool, c->live, c->n_live, c->n_live + 1, &c->room, sizeof *c->live);
    if (c->live == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "check", "out of memory");
    c->live[c->n_live++] = c->index;
    return STW_STATUS_OK;
}

static stw_status check_free(checker *c, stw_error *err) {
    for (size_t j = 0; j < c->n_live; j++) {
        const stw_op *a = &c->program->ops[c->live[j]];
        if (a->to != c->op->to || a->component != c->op->component || a->bytes != c->op->bytes ||
            a->offset_bytes != c->op->offset_bytes)
            continue;
        c->live[j] = c->live[--c->n_live];
        return STW_STATUS_OK;
    }
    return stw_fail(err, STW_STATUS_BUG, stw_component_name(c->op->component),
                    "operation %u frees bytes in %s that are not allocated", c->index,
                    stw_tier_name(c->op->to));
}

/* Do live allocs hold these bytes? Only programs that an executor issues have offsets. */
static bool held(const checker *c, stw_tier tier, uint64_t offset, uint64_t bytes) {
    uint64_t end = offset + bytes;
    if (!c->movement->executable) return true;
    for (bool moved = true; moved && offset < end;) {
        moved = false;
        for (size_t j = 0; j < c->n_live; j++) {
            const stw_op *a = &c->program->ops[c->live[j]];
            if (a->to == tier && a->offset_bytes != STW_OFFSET_EXTERNAL &&
                a->offset_bytes <= offset && offset < a->offset_bytes + a->bytes) {
                offset = a->offset_bytes + a->bytes;
                moved = true;
            }
        }
    }
    return offset >= end;
}

static stw_status check_move(checker *c, stw_error *err) {
    const stw_op *op = c->op;
    if (op->kind == STW_OP_NVME_WRITE) c->uncommitted = true;
    if (op->from_offset_bytes == STW_OFFSET_EXTERNAL) return STW_STATUS_OK;
    if (held(c, op->from, op->from_offset_bytes, op->bytes) &&
        held(c, op->to, op->offset_bytes, op->bytes))
        return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_component_name(op->component),
                    "operation %u moves bytes between %s and %s that are not allocated", c->index,
                    stw_tier_name(op->from), stw_tier_name(op->to));
}

static uint32_t units(const checker *c) {
    switch (stw_op_row_of(c->op->kind)->unit) {
    case STW_OP_UNIT_BUCKET:
        return c->layout->n_buckets;
    case STW_OP_UNIT_PIECE: /* without a transfer they count rounds */
        return c->movement->transfer.used ? c->movement->transfer.n_pieces : UINT32_MAX;
    case STW_OP_UNIT_REGION:
        return c->layout->n_regions;
    case STW_OP_UNIT_BLOCK:
        return c->job->model->n_blocks;
    default:
        return 0;
    }
}

static stw_status check_unit(checker *c, stw_error *err) {
    bool makes = c->op->kind == STW_OP_MASTER;
    if (makes && c->op->to == STW_TIER_NVME) c->uncommitted = true;
    if (!c->movement->executable || c->op->unit < units(c)) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, stw_op_kind_name(c->op->kind),
                    "operation %u is for unit %u, its movement has %u", c->index, c->op->unit,
                    units(c));
}

/* A piece in its staging slot, where this rank has one. */
static stw_status check_staged(checker *c, stw_error *err) {
    const bool out = c->op->kind == STW_OP_PLACE;
    const uint64_t at = out ? c->op->from_offset_bytes : c->op->offset_bytes;
    if (!(out && at == STW_OFFSET_EXTERNAL) && !held(c, c->op->to, at, c->op->bytes))
        return stw_fail(err, STW_STATUS_BUG, stw_op_kind_name(c->op->kind),
                        "operation %u works on staging in %s that is not allocated", c->index,
                        stw_tier_name(c->op->to));
    if (c->op->unit == STW_OP_NONE) return STW_STATUS_OK; /* in place, without a piece */
    return check_unit(c, err);
}

static stw_status check_commit(checker *c, stw_error *err) {
    (void)err;
    c->uncommitted = false;
    return STW_STATUS_OK;
}

static stw_status check_op(checker *c, uint32_t index, stw_error *err) {
    static stw_status (*const checks[STW_N_OP_KINDS])(checker *, stw_error *) = {
#define X(name, text, class, unit, demand, check) [STW_OP_##name] = check_##check,
        STW_OP_TABLE(X)
#undef X
    };
    c->index = index;
    c->op = &c->program->ops[index];
    if ((unsigned)c->op->kind >= STW_N_OP_KINDS)
        return stw_fail(err, STW_STATUS_BUG, "program", "operation %u is of no known kind", index);
    if (stw_op_is(c->op, STW_OP_CLASS_COLLECTIVE) && c->op->group == STW_RANK_GROUP_NONE)
        return stw_fail(err, STW_STATUS_BUG, stw_op_kind_name(c->op->kind),
                        "operation %u names no group of ranks", index);
    return checks[c->op->kind](c, err);
}

static stw_status check_movements(checker *c, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t m = 0; m < c->program->n_movements; m++) {
        c->movement = &c->program->movements[m];
        STW_TRY(edges(c->program, c->movement, err));
        for (uint32_t i = 0; i < c->movement->n_ops; i++) {
            STW_TRY(stw_deadline_check_step(i, "checking programs", err));
            STW_TRY(check_op(c, c->movement->first_op + i, err));
        }
        if (c->movement->executable && c->uncommitted)
            STW_TRY(stw_fail(err, STW_STATUS_BUG, stw_phase_name(c->movement->phase),
                             "the movement writes to NVMe and does not commit"));
        c->uncommitted = false;
    }
out:
    return status;
}

stw_status stw_program_check(const stw_job *job, const stw_layout *layout,
                             const stw_program *program, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    checker c = {.job = job, .layout = layout, .program = program, .pool = stw_pool_new()};
    if (c.pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "check", "out of memory");
    STW_TRY(regions_cover(job, layout, err));
    STW_TRY(regions_apart(layout, err));
    STW_TRY(buckets_cover(job, layout, err));
    STW_TRY(check_movements(&c, err));
out:
    stw_pool_free(c.pool);
    return status;
}
