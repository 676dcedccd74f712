/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/stall.h"

#include <math.h>

#include "core/checked.h"

/* Of all passes of an iteration. */
static double all_s(const stw_sim *sim, stw_phase phase) {
    const bool hidden = phase == STW_PHASE_OPTIMIZER_STEP && !isnan(sim->exposed_s);
    const double seconds = hidden ? sim->exposed_s : sim->phase_s[phase];
    return isnan(seconds) ? 0 : seconds * (double)stw_job_passes(sim->job, phase);
}

/* By which a save is longer than the iterations up to the next one. */
static double behind_s(const stw_sim *sim) {
    const double iteration_s =
        all_s(sim, STW_PHASE_LOG_PROB) + all_s(sim, STW_PHASE_FORWARD_BACKWARD) +
        all_s(sim, STW_PHASE_OPTIMIZER_STEP) + all_s(sim, STW_PHASE_WEIGHT_SYNC);
    return sim->phase_s[STW_PHASE_CHECKPOINT] -
           (double)sim->job->run->checkpoint.every * iteration_s;
}

/* ---- a framework's ---- */

static double copied_s(const stw_sim *sim, const stw_movement *save) {
    const double begin_s = sim->phase_start_s[STW_PHASE_CHECKPOINT];
    double last_s = begin_s;
    for (uint32_t i = save->first_op; i < save->first_op + save->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->stream == STW_STREAM_D2H) last_s = fmax(last_s, sim->ops[i].end_s);
    }
    return last_s - begin_s;
}

static double framework_s(const stw_sim *sim, const stw_movement *save) {
    return fmax(copied_s(sim, save), behind_s(sim));
}

/* ---- Stowage's own ---- */

/* Seconds from when the run goes on to the begin of the next step. */
static double before_step_s(const stw_sim *sim) {
    const uint64_t steps = stw_max_u64(stw_job_passes(sim->job, STW_PHASE_OPTIMIZER_STEP), 1);
    const double hidden_s =
        isnan(sim->exposed_s) ? 0 : sim->phase_s[STW_PHASE_OPTIMIZER_STEP] - sim->exposed_s;
    const double seconds = all_s(sim, STW_PHASE_LOG_PROB) +
                           all_s(sim, STW_PHASE_FORWARD_BACKWARD) / (double)steps - hidden_s;
    return fmax(0, seconds);
}

/* Does an operation of a step change state that lies on the host or NVMe? */
static bool changes(const stw_op *op) {
    if (op->kind == STW_OP_UPDATE)
        return op->update == STW_UPDATE_CPU || op->update == STW_UPDATE_DIRECT;
    return stw_op_is(op, STW_OP_CLASS_MOVE) &&
           (op->to == STW_TIER_NVME || (op->from == STW_TIER_GPU && op->to == STW_TIER_HOST));
}

/* When the step first changes each bucket, from its begin; infinite: never.
 * @param reached_s [n] */
static void find_reached(const stw_sim *sim, const stw_movement *step, double *reached_s,
                         uint32_t n) {
    const double begin_s = sim->phase_start_s[STW_PHASE_OPTIMIZER_STEP];
    for (uint32_t b = 0; b < n; b++) reached_s[b] = INFINITY;
    for (uint32_t i = step->first_op; i < step->first_op + step->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->unit < n && changes(op))
            reached_s[op->unit] = fmin(reached_s[op->unit], sim->ops[i].start_s - begin_s);
    }
}

/* The longest wait for a bucket of the state on the host or NVMe.
 * @param begin_s of the step, after the save's begin @param reached_s [n] */
static double longest_wait_s(const stw_sim *sim, const stw_movement *save, double begin_s,
                             const double *reached_s, uint32_t n) {
    const double save_s = sim->phase_start_s[STW_PHASE_CHECKPOINT];
    double wait_s = 0, first_s = INFINITY;
    for (uint32_t b = 0; b < n; b++) first_s = fmin(first_s, reached_s[b]);
    for (uint32_t i = save->first_op; i < save->first_op + save->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->kind != STW_OP_PASS && op->kind != STW_OP_NVME_READ) continue;
        const double reached = op->unit < n ? reached_s[op->unit] : first_s;
        wait_s = fmax(wait_s, sim->ops[i].end_s - save_s - begin_s - reached);
    }
    return wait_s;
}

static stw_status own_s(stw_sim *sim, const stw_movement *save, stw_error *err) {
    const stw_movement *step = stw_program_movement(sim->program, STW_PHASE_OPTIMIZER_STEP);
    const double gpu_s = copied_s(sim, save);
    uint32_t n = 0;
    for (uint32_t i = save->first_op; i < save->first_op + save->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->unit != STW_OP_NONE && op->unit >= n) n = op->unit + 1;
    }
    double *reached_s = stw_pool_array(sim->pool, n > 0 ? n : 1, sizeof *reached_s);
    if (reached_s == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a checkpoint's stall");
    if (step != NULL) find_reached(sim, step, reached_s, n);
    sim->stall_s = gpu_s;
    if (step != NULL)
        sim->stall_s += longest_wait_s(sim, save, gpu_s + before_step_s(sim), reached_s, n);
    sim->stall_s = fmax(sim->stall_s, behind_s(sim));
    return STW_STATUS_OK;
}

stw_status stw_sim_stall(stw_sim *sim, stw_error *err) {
    const stw_movement *save = stw_program_movement(sim->program, STW_PHASE_CHECKPOINT);
    if (save == NULL || !save->behind || !stw_program_is_full(sim->program, STW_PHASE_CHECKPOINT))
        return STW_STATUS_OK;
    if (save->by_stowage) return own_s(sim, save, err);
    sim->stall_s = framework_s(sim, save);
    return STW_STATUS_OK;
}
