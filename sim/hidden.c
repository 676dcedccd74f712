/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/hidden.h"

#include <math.h>

/* Blocks in the order in which they wait, and the seconds after which each does. */
typedef struct waits {
    uint32_t *blocks; /* [n] */
    double *start_s;  /* [n] from the begin of the forward */
    uint32_t n;
    double forward_s; /* up to the end of the loss */
} waits;

static void add(waits *w, bool *seen, uint32_t block, double start_s) {
    if (seen[block]) return;
    seen[block] = true;
    w->blocks[w->n] = block;
    w->start_s[w->n++] = start_s;
}

/* Blocks that no forward is of belong to the root: with its first gather, or, without sharding,
 * before or behind the others as they stand in the model. */
static void list_waits(const stw_sim *sim, const stw_movement *pass, bool *seen, bool *in_forward,
                       waits *w) {
    const stw_job *job = sim->job;
    const stw_op *ops = sim->program->ops;
    const double begin_s = sim->phase_start_s[STW_PHASE_FORWARD_BACKWARD];
    const uint32_t n = job->model->n_blocks, end = pass->first_op + pass->n_ops;
    uint32_t first = n;
    for (uint32_t i = pass->first_op; i < end; i++) {
        if (ops[i].kind != STW_OP_FORWARD || ops[i].unit >= n) continue;
        in_forward[ops[i].unit] = true;
        if (first == n) first = ops[i].unit;
    }
    for (uint32_t b = 0; b < n; b++)
        if (!in_forward[b] && (job->group > 1 || b < first)) add(w, seen, b, 0);
    for (uint32_t i = pass->first_op; i < end && ops[i].kind != STW_OP_BACKWARD; i++) {
        const bool begins = ops[i].kind == STW_OP_FORWARD || ops[i].kind == STW_OP_ALL_GATHER;
        if (begins && ops[i].unit < n && in_forward[ops[i].unit])
            add(w, seen, ops[i].unit, sim->ops[i].start_s - begin_s);
        if (ops[i].kind == STW_OP_LOSS && w->forward_s == 0) {
            w->forward_s = sim->ops[i].end_s - begin_s;
            for (uint32_t b = 0; b < n; b++) add(w, seen, b, sim->ops[i].start_s - begin_s);
        }
    }
}

static double alone_s(const stw_job *job, const stw_op *op) {
    stw_demand demand;
    if (!stw_op_takes_time(op)) return 0;
    stw_demand_op(job, op, &demand);
    return stw_demand_alone_s(&demand);
}

/* What is left of the step when a forward has gone as far as it can. */
static double delay_of(const stw_sim *sim, const stw_movement *step, const waits *w,
                       double *work_s) {
    const uint64_t *elements = sim->job->kinds[sim->program->kind].block_grads;
    const double begin_s = sim->phase_start_s[STW_PHASE_OPTIMIZER_STEP];
    uint64_t updated = 0, wanted = w->n > 0 ? elements[w->blocks[0]] : 0;
    uint32_t at = 0;
    double delay_s = 0;
    *work_s = 0;
    for (uint32_t i = step->first_op; i < step->first_op + step->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->stream == STW_STREAM_COMPUTE) *work_s += alone_s(sim->job, op);
        if (op->kind != STW_OP_UPDATE) continue;
        updated += op->params;
        for (; at < w->n && updated >= wanted; at++) {
            const double ready_s = sim->ops[i].end_s - begin_s - *work_s;
            if (elements[w->blocks[at]] > 0) delay_s = fmax(delay_s, ready_s - w->start_s[at]);
            if (at + 1 < w->n) wanted += elements[w->blocks[at + 1]];
        }
    }
    return fmax(delay_s, sim->phase_s[STW_PHASE_OPTIMIZER_STEP] - *work_s - w->forward_s);
}

stw_status stw_sim_hide(stw_sim *sim, stw_error *err) {
    const stw_movement *step = stw_program_movement(sim->program, STW_PHASE_OPTIMIZER_STEP);
    const stw_movement *pass = stw_program_movement(sim->program, STW_PHASE_FORWARD_BACKWARD);
    const bool full = stw_program_is_full(sim->program, STW_PHASE_OPTIMIZER_STEP) &&
                      stw_program_is_full(sim->program, STW_PHASE_FORWARD_BACKWARD);
    if (step == NULL || pass == NULL || !full || !stw_job_hides_step(sim->job))
        return STW_STATUS_OK;
    const uint32_t n = sim->job->model->n_blocks;
    waits w = {.blocks = stw_pool_array(sim->pool, n, sizeof *w.blocks),
               .start_s = stw_pool_array(sim->pool, n, sizeof *w.start_s)};
    bool *seen = stw_pool_array(sim->pool, n, sizeof *seen);
    bool *in_forward = stw_pool_array(sim->pool, n, sizeof *in_forward);
    if (w.blocks == NULL || w.start_s == NULL || seen == NULL || in_forward == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a hidden step");
    double work_s;
    list_waits(sim, pass, seen, in_forward, &w);
    const double delay_s = delay_of(sim, step, &w, &work_s);
    sim->exposed_s = fmin(sim->phase_s[STW_PHASE_OPTIMIZER_STEP], work_s + fmax(0, delay_s));
    return STW_STATUS_OK;
}
