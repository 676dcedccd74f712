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

/* Seconds from the save's begin to that of the next step. */
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

/* Bytes that buckets on the host hold. */
static uint64_t held_bytes(const stw_program *program) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (op->kind == STW_OP_ALLOC && op->component == STW_COMPONENT_CHECKPOINT_STAGING)
            bytes = stw_plus(bytes, op->bytes);
    }
    return bytes;
}

/* The longest wait for a bucket. All but `held` bytes of what precedes its end must be written.
 * @param before_s of the step's begin @param reached_s [n] */
static double longest_wait_s(const stw_sim *sim, const stw_movement *save, double before_s,
                             const double *reached_s, uint32_t n) {
    const double begin_s = sim->phase_start_s[STW_PHASE_CHECKPOINT];
    const uint64_t held = held_bytes(sim->program);
    uint32_t behind = save->first_op; /* the writes from here on are held */
    uint64_t bytes = 0;               /* of these up to now */
    double written_s = 0, wait_s = 0;
    for (uint32_t i = save->first_op; i < save->first_op + save->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->kind != STW_OP_FILE_WRITE) continue;
        for (bytes = stw_plus(bytes, op->bytes); bytes > held && behind <= i; behind++) {
            const stw_op *oldest = &sim->program->ops[behind];
            if (oldest->kind != STW_OP_FILE_WRITE) continue;
            bytes -= oldest->bytes;
            written_s = sim->ops[behind].end_s - begin_s;
        }
        if (op->unit < n) wait_s = fmax(wait_s, written_s - before_s - reached_s[op->unit]);
    }
    return wait_s;
}

static stw_status own_s(stw_sim *sim, const stw_movement *save, stw_error *err) {
    const stw_movement *step = stw_program_movement(sim->program, STW_PHASE_OPTIMIZER_STEP);
    const double before_s = before_step_s(sim);
    uint32_t n = 0;
    for (uint32_t i = save->first_op; i < save->first_op + save->n_ops; i++) {
        const stw_op *op = &sim->program->ops[i];
        if (op->unit != STW_OP_NONE && op->unit >= n) n = op->unit + 1;
    }
    double *reached_s = stw_pool_array(sim->pool, n > 0 ? n : 1, sizeof *reached_s);
    if (reached_s == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a checkpoint's stall");
    if (step != NULL) find_reached(sim, step, reached_s, n);
    sim->stall_s = fmax(fmax(0, behind_s(sim)), copied_s(sim, save) - before_s);
    if (step != NULL)
        sim->stall_s = fmax(sim->stall_s, longest_wait_s(sim, save, before_s, reached_s, n));
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
