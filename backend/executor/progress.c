/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 tells of a run under way: a load by the bytes that it has placed, a step by the
 * parameters that it has updated, digests by the elements that were read. */
#include <stdio.h>

#include "backend/executor/run.h"
#include "core/checked.h"

void stw_exec_progress(const stw_rank_run *run, const char *what, stw_progress_unit unit,
                       uint64_t total) {
    if (run->ranks.rank == 0) stw_progress_phase(what, unit, total);
}

/* What an operation adds to its movement's total. */
static uint64_t amount(const stw_op *op) {
    switch (op->kind) {
    case STW_OP_PLACE:
        return op->bytes;
    case STW_OP_UPDATE:
        return op->params;
    default:
        return 0;
    }
}

void stw_exec_progress_movement(const stw_rank_run *run, const stw_movement *movement) {
    char what[96];
    uint64_t total = 0;
    bool updates = stw_movement_has(run->program, movement, STW_OP_UPDATE);
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++)
        total = stw_plus(total, amount(&run->program->ops[i]));
    if (updates)
        snprintf(what, sizeof what, "step %llu of %u", (unsigned long long)run->step,
                 run->options->steps);
    else
        snprintf(what, sizeof what, "%s", stw_phase_name(movement->phase));
    stw_exec_progress(run, what, updates ? STW_PROGRESS_SHARE : STW_PROGRESS_BYTES, total);
}

void stw_exec_progress_add(const stw_rank_run *run, uint64_t count) {
    if (run->ranks.rank == 0) stw_progress_add(count);
}

void stw_exec_progress_op(const stw_rank_run *run, const stw_op *op) {
    uint64_t n = amount(op);
    if (n > 0) stw_exec_progress_add(run, n);
}

static uint64_t elements(const stw_rank_run *run, bool grads) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < run->layout->n_regions; i++)
        if ((run->layout->regions[i].component == STW_COMPONENT_GRADS) == grads)
            n = stw_plus(n, run->layout->regions[i].params);
    return n;
}

void stw_exec_progress_grads(const stw_rank_run *run, uint64_t step) {
    char what[96];
    snprintf(what, sizeof what, "step %llu of %u, gradients", (unsigned long long)step,
             run->options->steps);
    stw_exec_progress(run, what, STW_PROGRESS_SHARE, elements(run, true));
}

void stw_exec_progress_digest(const stw_rank_run *run) {
    stw_exec_progress(run, "digest of the state", STW_PROGRESS_SHARE, elements(run, false));
}
