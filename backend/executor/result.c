/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured: bytes that operations made live, counted as they were issued; what the process
 * and the device hold besides, asked of the system; seconds. Gathered from all ranks into one
 * result. */
#define _POSIX_C_SOURCE 200809L
#include "backend/executor/run_export.h"
#include "backend/executor/run_sync.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/process.h"
#include "core/build.h"
#include "core/checked.h"
#include "core/median.h"
#include "plan/files/plan_terms.h"

/* The mutex is held. */
void stw_exec_count(stw_rank_run *run, const stw_op *op) {
    stw_live_apply(&run->live, op);
    if (op->kind == STW_OP_ALLOC) stw_live_note(&run->live, op->to, &run->peak[op->to]);
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* The arenas exist as a whole from the beginning, with every page in place; a phase's own bytes are
 * what its operations made live. So: others' bytes = all bytes less the arenas, and a phase has
 * those and its own. */
stw_status stw_exec_note_phase(stw_rank_run *run, stw_phase phase, stw_error *err) {
    stw_device_info info;
    stw_measured *m = &run->measured[phase];
    (void)err;
    run->backend->info(run->device, &info);
    const stw_peak *gpu = &run->peak[STW_TIER_GPU], *host = &run->peak[STW_TIER_HOST];
    uint64_t gpu_arena = run->config.arena_bytes[STW_TIER_GPU];
    uint64_t in_memory = run->config.arena_bytes[STW_TIER_HOST];
    m->known = true;
    m->allocated = gpu->total;
    m->reserved = gpu_arena;
    m->page_locked = info.page_locked;
    memcpy(m->gpu_components, gpu->components, sizeof m->gpu_components);
    memcpy(m->host_components, host->components, sizeof m->host_components);
    if (run->backend->gpu) {
        uint64_t context = less(info.used_after_context, info.used_before);
        uint64_t others = less(less(info.used_now, info.used_before), gpu_arena);
        m->gpu_components[STW_COMPONENT_CONTEXT] = stw_min_u64(context, others);
        m->gpu_components[STW_COMPONENT_COMM] = less(others, context);
        m->device = others + gpu->total;
    } else {
        in_memory += gpu_arena;
    }
    uint64_t process = less(stw_process_resident_bytes(), in_memory + info.link_bytes);
    m->host_components[STW_COMPONENT_PROCESS] = process;
    m->host = host->total + process;
    return STW_STATUS_OK;
}

stw_status stw_exec_gather(stw_rank_run *run, const void *mine, void *out, uint64_t bytes,
                           stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t world = run->ranks.world;
    uint64_t part = stw_max_u64(STW_COMM_SCRATCH_BYTES / 4 / world / 16 * 16, 16);
    unsigned char *buffer = malloc((size_t)(part * world));
    if (buffer == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "gather", "out of memory");
    for (uint64_t done = 0; done < bytes; done += part) {
        uint64_t n = stw_min_u64(part, bytes - done);
        STW_TRY(stw_comm_gather(run->comm, (const unsigned char *)mine + done, buffer, (uint32_t)n,
                                err));
        for (uint32_t r = 0; r < world; r++)
            memcpy((unsigned char *)out + stw_times(r, bytes) + done, buffer + r * n, (size_t)n);
    }
out:
    free(buffer);
    return status;
}

/* ---- one result of all ranks ---- */

/* What every rank tells; plain bytes, the same layout everywhere (one program, one machine type).
 */
typedef struct told {
    uint32_t rank, node, kind;
    stw_measured phases[STW_N_PHASES];
    uint64_t checked, mismatched, gpu_growth, host_growth;
    stw_comm_counts synced; /* in weight syncs */
} told;

stw_status stw_exec_slowest(stw_rank_run *run, double *values, uint32_t n, stw_error *err) {
    uint32_t world = run->ranks.world;
    double *all = calloc((size_t)n * world, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory");
    stw_status status = stw_exec_gather(run, values, all, n * sizeof *all, err);
    for (uint32_t i = 0; i < n; i++) values[i] = 0.0;
    for (uint32_t i = 0; i < n * world; i++)
        if (all[i] > values[i % n]) values[i % n] = all[i];
    free(all);
    return status;
}

static stw_status fill_ranks(const stw_rank_run *run, const told *all, stw_run_result *result,
                             stw_error *err) {
    uint32_t world = run->ranks.world, nodes = 0;
    for (uint32_t r = 0; r < world; r++) nodes = all[r].node >= nodes ? all[r].node + 1 : nodes;
    result->ranks = stw_pool_array(result->pool, world, sizeof *result->ranks);
    result->nodes = stw_pool_array(result->pool, nodes, sizeof *result->nodes);
    if (result->ranks == NULL || result->nodes == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory");
    result->n_ranks = world;
    result->n_nodes = nodes;
    for (uint32_t n = 0; n < nodes; n++) result->nodes[n].node = n;
    for (uint32_t r = 0; r < world; r++) {
        stw_run_rank *rank = &result->ranks[r];
        stw_run_node *node = &result->nodes[all[r].node];
        rank->rank = all[r].rank;
        rank->node = all[r].node;
        rank->kind = stw_pool_string(result->pool, run->job->kinds[all[r].kind].name);
        if (rank->kind == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory");
        memcpy(rank->phases, all[r].phases, sizeof rank->phases);
        for (int p = 0; p < STW_N_PHASES; p++) {
            node->host[p] += all[r].phases[p].host;
            node->page_locked[p] += all[r].phases[p].page_locked;
        }
        result->checked += all[r].checked;
        result->mismatched += all[r].mismatched;
        if (run->options->steps < run->first_step + 2) continue; /* fewer than three */
        result->gpu_growth_bytes =
            fmax((double)all[r].gpu_growth, fmax(0, result->gpu_growth_bytes));
        result->host_growth_bytes =
            fmax((double)all[r].host_growth, fmax(0, result->host_growth_bytes));
    }
    return STW_STATUS_OK;
}

const stw_movement *stw_exec_step_movement(const stw_rank_run *run) {
    for (uint32_t m = 0; m < run->program->n_movements; m++) {
        const stw_movement *movement = &run->program->movements[m];
        if (run->schedules[m] != NULL && movement->repeat == STW_REPEAT_LATER &&
            stw_movement_has(run->program, movement, STW_OP_UPDATE))
            return movement;
    }
    return NULL;
}

uint64_t stw_exec_link_bytes(const stw_rank_run *run, const stw_movement *movement, bool up) {
    stw_tier from = up ? STW_TIER_HOST : STW_TIER_GPU, to = up ? STW_TIER_GPU : STW_TIER_HOST;
    uint64_t bytes = 0;
    for (uint32_t i = 0; movement != NULL && i < movement->n_ops; i++) {
        const stw_op *op = &run->program->ops[movement->first_op + i];
        if (stw_op_is(op, STW_OP_CLASS_MOVE) && op->from == from && op->to == to)
            bytes += op->bytes;
        if (op->kind == STW_OP_UPDATE && op->update == STW_UPDATE_DIRECT)
            bytes += stw_times(op->params, stw_job_optimizer_bytes(run->job));
    }
    return bytes;
}

/* ---- seconds ---- */

/* Median of the samples of all movements of a phase; NaN where none was executed.
 * @return false: out of memory */
static bool phase_seconds(const stw_rank_run *run, stw_phase phase, double *out) {
    *out = (double)NAN;
    for (uint32_t m = 0; m < run->program->n_movements; m++) {
        const stw_movement_samples *samples = &run->samples[m];
        if (run->program->movements[m].phase != phase || samples->n == 0) continue;
        double *sorted = malloc(samples->n * sizeof *sorted);
        if (sorted == NULL) return false;
        memcpy(sorted, samples->seconds, samples->n * sizeof *sorted);
        *out = (isnan(*out) ? 0 : *out) + stw_median(sorted, samples->n);
        free(sorted);
    }
    return true;
}

static void fill_rates(const stw_rank_run *run, stw_run_result *result) {
    double step_s = result->time_s[STW_PHASE_OPTIMIZER_STEP];
    if (isnan(step_s)) step_s = result->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP];
    const stw_movement *step = stw_exec_step_movement(run);
    if (!(step_s > 0.0)) return;
    result->params_per_s = (double)stw_job_placed_params(run->job, run->kind) / step_s;
    result->up_bps = (double)stw_exec_link_bytes(run, step, true) / step_s;
    result->down_bps = (double)stw_exec_link_bytes(run, step, false) / step_s;
}

/* Samples of every executed movement, and of all optimizer steps in their order. */
static stw_status fill_times(const stw_rank_run *run, stw_run_result *result, stw_error *err) {
    uint32_t n = run->program->n_movements;
    result->movements = stw_pool_array(result->pool, n, sizeof *result->movements);
    result->step_all_s = stw_pool_array(result->pool, run->options->steps, sizeof(double));
    if (result->movements == NULL || result->step_all_s == NULL) goto no_memory;
    for (uint32_t m = 0; m < n; m++) {
        const stw_movement *movement = &run->program->movements[m];
        const stw_movement_samples *samples = &run->samples[m];
        if (samples->n == 0) continue;
        stw_run_movement *out = &result->movements[result->n_movements++];
        *out = (stw_run_movement){movement->phase, movement->role, samples->n,
                                  stw_pool_array(result->pool, samples->n, sizeof(double))};
        if (out->samples_s == NULL) goto no_memory;
        memcpy(out->samples_s, samples->seconds, samples->n * sizeof(double));
        bool steps = stw_movement_has(run->program, movement, STW_OP_UPDATE);
        for (uint32_t i = 0; steps && i < samples->n; i++)
            if (result->n_step_all < run->options->steps)
                result->step_all_s[result->n_step_all++] = samples->seconds[i];
    }
    for (int p = 0; p < STW_N_PHASES; p++)
        if (!phase_seconds(run, (stw_phase)p, &result->time_s[p])) goto no_memory;
    fill_rates(run, result);
    return STW_STATUS_OK;
no_memory:
    return stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory");
}

static void fill_sync(const stw_rank_run *run, const told *all, stw_run_synced *out) {
    if (run->sync == NULL || run->sync->version == 0) return;
    out->version = run->sync->version;
    out->rounds = stw_sync_schedule_rounds(run->sync->schedule);
    for (uint32_t r = 0; r < run->ranks.world; r++) {
        out->messages += all[r].synced.sent;
        out->sent_bytes += all[r].synced.sent_bytes;
        out->received_bytes += all[r].synced.received_bytes;
    }
}

static stw_status make_result(const stw_rank_run *run, const told *all, stw_run_result **out,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_result *result = NULL;
    stw_plan_terms terms = STW_PLAN_TERMS_INIT;
    stw_device_info info;
    char digest_of[17];
    run->backend->info(run->device, &info);
    STW_TRY(stw_run_result_new(&result, err));
    result->source = "stowage";
    result->backend = run->backend->name;
    result->build = stw_build_identity();
    result->device = stw_pool_string(result->pool, info.name);
    STW_TRY(stw_plan_terms_of(run->plan, &terms, err));
    result->plan_hash = stw_pool_string(result->pool, terms.hash);
    result->plan_terms = stw_pool_string(result->pool, terms.lines.data);
    if (result->device == NULL || result->plan_hash == NULL || result->plan_terms == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    result->world = run->ranks.world;
    result->steps = run->options->steps;
    result->first_step = (uint32_t)run->first_step;
    result->seed = run->options->seed;
    result->elements = stw_plan_state_elements(run->plan);
    for (uint32_t m = 0; m < run->program->n_movements; m++) {
        stw_phase phase = run->program->movements[m].phase;
        result->not_run[phase] = !run->measured[phase].known;
    }
    STW_TRY(fill_ranks(run, all, result, err));
    STW_TRY(stw_exec_digest_of(run, digest_of, err));
    result->digest_of = run->options->no_digest ? "" : stw_pool_string(result->pool, digest_of);
    if (result->digest_of == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    STW_TRY(fill_times(run, result, err));
    STW_TRY(stw_run_export_note(run, result, err));
    fill_sync(run, all, &result->synced);
    memcpy(result->digest, run->digest, sizeof result->digest);
    result->grad_norm = run->norm;
    result->weights_read_bytes = run->weights_read;
    result->weights_compared_bytes = run->weights_compared;
    result->clips = run->adamw.clip != 0;
    result->clip_factor = (double)run->factors[run->options->steps - 1];
    result->nonfinite_steps = run->nonfinite_steps;
    result->first_nonfinite_step = run->first_nonfinite_step;
    *out = result;
    result = NULL;
out:
    stw_text_free(&terms.lines);
    stw_run_result_free(result);
    return status;
}

stw_status stw_exec_collect(stw_rank_run *run, stw_run_result **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    told *mine = calloc(1, sizeof *mine), *all = calloc(run->ranks.world, sizeof *all);
    if (mine == NULL || all == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    mine->rank = run->ranks.rank;
    mine->node = run->ranks.node;
    mine->kind = run->kind;
    mine->checked = run->checked;
    mine->mismatched = run->mismatched;
    mine->gpu_growth = run->gpu_growth;
    mine->host_growth = run->host_growth;
    if (run->sync != NULL) mine->synced = run->sync->counts;
    memcpy(mine->phases, run->measured, sizeof mine->phases);
    stw_comm_about(run->comm, "collecting results");
    STW_TRY(stw_exec_gather(run, mine, all, sizeof *mine, err));
    for (uint32_t m = 0; m < run->program->n_movements; m++)
        if (run->samples[m].n > 0)
            STW_TRY(stw_exec_slowest(run, run->samples[m].seconds, run->samples[m].n, err));
    if (run->ranks.rank == 0) STW_TRY(make_result(run, all, out, err));
out:
    free(mine);
    free(all);
    return status;
}
