/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/program/collectives.h"

#include "core/checked.h"

/* Passes of an iteration through a movement in which an operation is issued. */
static uint64_t times_issued(const stw_job *job, const stw_movement *movement, const stw_op *op) {
    const uint64_t passes = stw_job_passes(job, movement->phase);
    return op->once_in > 1 ? passes / op->once_in : passes;
}

static stw_collectives_row *row_of(stw_collectives *all, const stw_collectives_row *like) {
    for (uint32_t i = 0; i < all->n; i++) {
        stw_collectives_row *row = &all->rows[i];
        if (row->phase == like->phase && row->group == like->group && row->kind == like->kind &&
            row->tier == like->tier)
            return row;
    }
    return NULL;
}

stw_status stw_program_collectives(const stw_job *job, const stw_program *program, stw_pool *pool,
                                   stw_collectives *out, stw_error *err) {
    size_t room = 0;
    *out = (stw_collectives){0};
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            stw_collectives_row row = {
                .phase = movement->phase, .group = op->group, .kind = op->kind, .tier = op->to};
            uint32_t on_node;
            if (!stw_op_is(op, STW_OP_CLASS_COLLECTIVE)) continue;
            stw_job_group_size(job, op->group, &row.ranks, &on_node);
            if (row.ranks <= 1) continue;
            stw_collectives_row *found = row_of(out, &row);
            if (found == NULL) {
                stw_collectives_row *rows =
                    stw_pool_regrow(pool, out->rows, out->n, out->n + 1, &room, sizeof *rows);
                if (rows == NULL)
                    return stw_fail(err, STW_STATUS_NO_MEMORY, "program", "out of memory");
                out->rows = rows;
                found = &rows[out->n++];
                *found = row;
            }
            const uint64_t issued = times_issued(job, movement, op);
            found->count = stw_plus(found->count, stw_times(issued, op->calls > 0 ? op->calls : 1));
            found->bytes = stw_plus(found->bytes, stw_times(issued, op->bytes));
        }
    }
    return STW_STATUS_OK;
}
