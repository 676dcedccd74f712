/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured: bytes that operations made live, counted as they were issued; what the process
 * and the device hold besides, asked of the system; seconds. Gathered from all ranks into one
 * result. */
#define _POSIX_C_SOURCE 200809L
#include "backend/executor/run.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/process.h"
#include "core/checked.h"

/* The mutex is held. */
void stw_run_count(stw_rank_run *run, const stw_op *op) {
    stw_live_apply(&run->live, op);
    stw_peak *peak = &run->peak[op->to];
    if (op->kind != STW_OP_ALLOC || run->live.total[op->to] < peak->total) return;
    peak->total = run->live.total[op->to];
    memcpy(peak->components, run->live.bytes[op->to], sizeof peak->components);
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* The arenas exist as a whole from the beginning, with every page in place; a phase's own bytes are
 * what its operations made live. So: others' bytes = all bytes less the arenas, and a phase has
 * those and its own. */
stw_status stw_run_note_phase(stw_rank_run *run, stw_phase phase, stw_error *err) {
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

stw_status stw_run_gather(stw_rank_run *run, const void *mine, void *out, uint64_t bytes,
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
            memcpy((unsigned char *)out + r * bytes + done, buffer + r * n, (size_t)n);
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
    double load_s;
    uint64_t checked, mismatched, gpu_growth, host_growth;
} told;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stw_run_median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

stw_status stw_run_slowest(stw_rank_run *run, const double *mine, uint32_t n, double *out,
                           stw_error *err) {
    uint32_t world = run->ranks.world;
    double *all = calloc((size_t)n * world, sizeof *all);
    if (all == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory");
    stw_status status = stw_run_gather(run, mine, all, n * sizeof *all, err);
    for (uint32_t i = 0; i < n; i++) out[i] = 0.0;
    for (uint32_t i = 0; i < n * world; i++)
        if (all[i] > out[i % n]) out[i % n] = all[i];
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
        if (run->options->steps < 3) continue;
        result->gpu_growth_bytes =
            fmax((double)all[r].gpu_growth, fmax(0, result->gpu_growth_bytes));
        result->host_growth_bytes =
            fmax((double)all[r].host_growth, fmax(0, result->host_growth_bytes));
    }
    return STW_STATUS_OK;
}

/* Bytes of a bucket that a direct update reads, or writes, in host memory. */
static uint64_t direct_bytes(const stw_rank_run *run, const stw_op *op) {
    const stw_place *place =
        &run->plan->decisions.state[run->layout->buckets[op->unit].decision].place;
    return place->update == STW_UPDATE_DIRECT ? op->params * stw_job_optimizer_bytes(run->job) : 0;
}

uint64_t stw_run_step_bytes(const stw_rank_run *run, bool up) {
    const stw_movement *step = stw_program_movement(run->program, STW_PHASE_OPTIMIZER_STEP);
    stw_tier from = up ? STW_TIER_HOST : STW_TIER_GPU, to = up ? STW_TIER_GPU : STW_TIER_HOST;
    uint64_t bytes = 0;
    for (uint32_t i = 0; step != NULL && i < step->n_ops; i++) {
        const stw_op *op = &run->program->ops[step->first_op + i];
        if (op->kind == STW_OP_COPY && op->from == from && op->to == to) bytes += op->bytes;
        if (op->kind == STW_OP_UPDATE) bytes += direct_bytes(run, op);
    }
    return bytes;
}

static void fill_times(const stw_rank_run *run, const told *all, double *steps,
                       stw_run_result *result) {
    uint32_t n = run->options->steps;
    double load_s = 0.0;
    for (int p = 0; p < STW_N_PHASES; p++) result->time_s[p] = (double)NAN;
    for (uint32_t r = 0; r < run->ranks.world; r++) load_s = fmax(load_s, all[r].load_s);
    if (run->schedules[STW_PHASE_LOAD] != NULL) result->time_s[STW_PHASE_LOAD] = load_s;
    result->time_s[STW_PHASE_FIRST_OPTIMIZER_STEP] = steps[0];
    double step_s = n > 1 ? stw_run_median(steps + 1, n - 1) : steps[0];
    if (n > 1) result->time_s[STW_PHASE_OPTIMIZER_STEP] = step_s;
    if (step_s <= 0.0) return;
    result->params_per_s = (double)run->job->kinds[run->kind].params / step_s;
    result->up_bps = (double)stw_run_step_bytes(run, true) / step_s;
    result->down_bps = (double)stw_run_step_bytes(run, false) / step_s;
}

static stw_status make_result(const stw_rank_run *run, const told *all, double *steps,
                              stw_run_result **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_run_result *result = NULL;
    stw_device_info info;
    run->backend->info(run->device, &info);
    STW_TRY(stw_run_result_new(&result, err));
    result->source = "stowage";
    result->backend = run->backend->name;
    result->device = stw_pool_string(result->pool, info.name);
    result->plan_hash = stw_pool_string(result->pool, run->plan->layouts[0]->hash);
    result->world = run->ranks.world;
    result->steps = run->options->steps;
    result->seed = run->options->seed;
    for (uint32_t m = 0; m < run->program->n_movements; m++) {
        stw_phase phase = run->program->movements[m].phase;
        result->not_run[phase] = !run->measured[phase].known;
    }
    STW_TRY(fill_ranks(run, all, result, err));
    result->n_step_all = run->options->steps;
    result->step_all_s = stw_pool_array(result->pool, result->n_step_all, sizeof(double));
    if (result->device == NULL || result->plan_hash == NULL || result->step_all_s == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    memcpy(result->step_all_s, steps, result->n_step_all * sizeof(double));
    fill_times(run, all, steps, result);
    memcpy(result->digest, run->digest, sizeof result->digest);
    result->grad_norm = run->norm;
    *out = result;
    result = NULL;
out:
    stw_run_result_free(result);
    return status;
}

stw_status stw_run_collect(stw_rank_run *run, stw_run_result **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    told *mine = calloc(1, sizeof *mine), *all = calloc(run->ranks.world, sizeof *all);
    double *steps = calloc(run->options->steps, sizeof *steps);
    double *copies = calloc(run->options->steps, sizeof *copies);
    if (mine == NULL || all == NULL || steps == NULL || copies == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "result", "out of memory"));
    mine->rank = run->ranks.rank;
    mine->node = run->ranks.node;
    mine->kind = run->kind;
    mine->load_s = run->load_s;
    mine->checked = run->checked;
    mine->mismatched = run->mismatched;
    mine->gpu_growth = run->gpu_growth;
    mine->host_growth = run->host_growth;
    memcpy(mine->phases, run->measured, sizeof mine->phases);
    STW_TRY(stw_run_gather(run, mine, all, sizeof *mine, err));
    STW_TRY(stw_run_slowest(run, run->copies_s, run->options->steps, copies, err));
    STW_TRY(stw_run_slowest(run, run->step_s, run->options->steps, steps, err));
    if (run->ranks.rank == 0) STW_TRY(make_result(run, all, steps, out, err));
    if (run->ranks.rank == 0 && run->options->ceiling)
        (*out)->copies_s = stw_run_median(copies, run->options->steps);
    STW_TRY(stw_run_collect_link(run, *out, err));
out:
    free(mine);
    free(all);
    free(steps);
    free(copies);
    return status;
}
