/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/reading.h"

#include <string.h>

#include "core/checked.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "planner", "no memory for a reading");
}

/* ---- programs ---- */

stw_status stw_simple_build(const stw_simple *simple, stw_layout **layout, stw_program **program,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = simple->job;
    stw_pool *pool = stw_pool_new();
    stw_block_decision *blocks =
        pool == NULL ? NULL : stw_pool_array(pool, job->model->n_groups, sizeof *blocks);
    if (blocks == NULL) {
        status = no_memory(err);
        goto out;
    }
    stw_decisions decisions = {.n_state = 1, .blocks = blocks, .load = simple->load};
    decisions.state[0] = (stw_state_decision){simple->place, job->n_units};
    decisions.prefetch.by_group = simple->by_group;
    decisions.prefetch.depth = simple->depth;
    decisions.prefetch.bucket_bytes = simple->bucket_bytes;
    for (uint32_t g = 0; g < job->model->n_groups; g++)
        if (job->model->groups[g].facts.transformer)
            blocks[decisions.n_blocks++] =
                (stw_block_decision){g, simple->act, job->model->groups[g].count};
    STW_TRY(stw_layout_new(job, &decisions, simple->kind, layout, err));
    if (program != NULL) STW_TRY(stw_program_new(job, &decisions, *layout, program, err));
out:
    stw_pool_free(pool);
    return status;
}

/* ---- bytes ---- */

static void note(const stw_layout *layout, const uint64_t *components, stw_instant at,
                 stw_tier tier, stw_byte_reading *out) {
    uint64_t all = 0, state = 0;
    bool in_regions[STW_N_COMPONENTS] = {false};
    for (uint32_t i = 0; i < layout->n_regions; i++)
        in_regions[layout->regions[i].component] = true;
    for (int c = 0; c < STW_N_COMPONENTS; c++) {
        if (in_regions[c]) state += components[c];
        if (c != STW_COMPONENT_CONTEXT && c != STW_COMPONENT_PROCESS &&
            c != STW_COMPONENT_LOAD_STAGING)
            all += components[c];
    }
    if (all < out->all[at][tier]) return;
    out->all[at][tier] = all;
    out->state[at][tier] = state;
}

static stw_instant instant_of(stw_phase phase) {
    switch (phase) {
    case STW_PHASE_LOAD:
        return STW_AT_LOAD;
    case STW_PHASE_FORWARD_BACKWARD:
        return STW_AT_BACKWARD;
    case STW_PHASE_FIRST_OPTIMIZER_STEP:
    case STW_PHASE_OPTIMIZER_STEP:
        return STW_AT_STEP;
    default:
        return STW_AT_OTHER;
    }
}

void stw_read_bytes(const stw_job *job, const stw_layout *layout, const stw_program *program,
                    stw_byte_reading *out) {
    memset(out, 0, sizeof *out);
    for (int r = 0; r < STW_N_RINGS; r++)
        if (layout->rings[r].slots > 0) out->rings |= 1u << r;

    const stw_movement *rest = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    if (rest == NULL) rest = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    stw_live live = {0};
    for (uint32_t i = 0; rest != NULL && i < rest->first_op; i++)
        stw_live_apply(&live, &program->ops[i]);
    for (int t = 0; t < STW_N_TIERS; t++) {
        note(layout, live.bytes[t], STW_AT_REST, (stw_tier)t, out);
        note(layout, live.bytes[t], STW_AT_BACKWARD, (stw_tier)t, out);
    }
    out->process_bytes = live.bytes[STW_TIER_HOST][STW_COMPONENT_PROCESS];
    out->context_bytes = live.bytes[STW_TIER_GPU][STW_COMPONENT_CONTEXT];
    out->page_tables = out->context_bytes > job->cluster->gpu.context_bytes;
    if (out->page_tables) out->context_bytes -= stw_page_table_bytes(job, layout);

    stw_peaks peaks;
    stw_program_walk(program, &peaks);
    for (int p = 0; p < STW_N_PHASES; p++) {
        stw_instant at = instant_of((stw_phase)p);
        if (!peaks.has[p]) continue;
        out->other_phases = out->other_phases || at == STW_AT_OTHER;
        for (int t = 0; t < STW_N_TIERS; t++)
            note(layout, peaks.phase[p][t].components, at, (stw_tier)t, out);
    }
}

/* ---- the optimizer step ---- */

static void add_all(const stw_demand *demand, double *resource_s) {
    for (int r = 0; r < STW_N_RESOURCES; r++) resource_s[r] += demand->seconds[r];
}

/* The ring whose slot a copy towards an update takes. */
static stw_ring_kind ring_entered(const stw_op *op) {
    if (op->from == STW_TIER_NVME) return STW_RING_HOST_DISK;
    return op->to == STW_TIER_GPU ? STW_RING_GPU : STW_RING_HOST_CPU;
}

/* How many units before its own lies the one that an operation waits for; 0: for none. */
static uint32_t waits_back(const stw_program *program, const stw_op *op) {
    for (int a = 0; a < 2; a++) {
        if (op->after[a] == STW_OP_NONE || op->unit == STW_OP_NONE) continue;
        uint32_t unit = program->ops[op->after[a]].unit;
        if (unit < op->unit) return op->unit - unit;
    }
    return 0;
}

/* A copy: `work` is the tier of the updates. */
static void add_move(const stw_program *program, const stw_op *op, const stw_demand *demand,
                     stw_tier work, stw_flow *flow) {
    double alone = stw_demand_alone_s(demand);
    flow->startup_s += demand->startup_s;
    uint32_t back = waits_back(program, op);
    if (op->to == STW_TIER_NVME) {
        flow->write_s += alone;
        flow->write_disk_s += demand->seconds[STW_RESOURCE_DISK];
        return;
    }
    if (back > 0 && (op->from == STW_TIER_NVME || op->to == work))
        flow->slots[ring_entered(op)] = back;
    if (op->from == STW_TIER_NVME) {
        flow->read_s += alone;
        flow->read_disk_s += demand->seconds[STW_RESOURCE_DISK];
    } else if (op->to == work) {
        flow->in_s += alone;
        add_all(demand, flow->in_resource_s);
    } else {
        flow->out_s += alone;
        add_all(demand, flow->out_resource_s);
    }
}

static void add_step_op(const stw_job *job, const stw_program *program, stw_op op, bool crowded,
                        stw_tier work, stw_flow *flow) {
    stw_demand demand;
    if (stw_op_is(&op, STW_OP_CLASS_MEMORY)) return;
    if (op.kind == STW_OP_UPDATE && op.update == STW_UPDATE_CPU) {
        flow->updates_on_cpu = true;
        flow->cpu_ring_bytes = op.ring_bytes;
    }
    if (crowded && op.ring_bytes > 0) op.ring_bytes = flow->cpu_ring_bytes = UINT64_MAX;
    stw_demand_op(job, &op, &demand);
    double alone = stw_demand_alone_s(&demand);
    if (op.kind == STW_OP_NORM_SUM) {
        flow->norm_sum_s += alone;
        return;
    }
    if (op.kind == STW_OP_NORM) {
        add_all(&demand, flow->norm_s);
        return;
    }
    add_all(&demand, flow->resource_s);
    flow->stream_s[op.stream] += alone;
    if (stw_op_is(&op, STW_OP_CLASS_MOVE)) {
        add_move(program, &op, &demand, work, flow);
    } else if (op.kind == STW_OP_UPDATE) {
        flow->update_s += alone;
        flow->params += op.params;
        flow->buckets++;
    }
}

static void average(double *values, int n, double count) {
    for (int i = 0; i < n; i++) values[i] /= count;
}

void stw_read_flow(const stw_job *job, const stw_program *program, bool crowded, stw_flow *out) {
    memset(out, 0, sizeof *out);
    const stw_movement *step = stw_program_movement(program, STW_PHASE_OPTIMIZER_STEP);
    if (step == NULL) return;
    const stw_op *first = &program->ops[step->first_op], *end = first + step->n_ops;
    stw_tier work = STW_TIER_GPU;
    for (const stw_op *op = first; op < end; op++)
        if (op->kind == STW_OP_UPDATE) work = op->to;
    for (const stw_op *op = first; op < end; op++)
        add_step_op(job, program, *op, crowded, work, out);
    if (out->buckets <= 0) return;
    average(out->resource_s, STW_N_RESOURCES, out->buckets);
    average(out->in_resource_s, STW_N_RESOURCES, out->buckets);
    average(out->out_resource_s, STW_N_RESOURCES, out->buckets);
    average(out->stream_s, STW_N_STREAMS, out->buckets);
    double *sums[] = {&out->read_s,  &out->in_s,      &out->update_s,    &out->out_s,
                      &out->write_s, &out->startup_s, &out->read_disk_s, &out->write_disk_s};
    for (unsigned i = 0; i < sizeof sums / sizeof sums[0]; i++) *sums[i] /= out->buckets;
}

/* ---- the load ---- */

/* Pieces pass through at least as many slots as they have stages on the way, so that the slowest
 * stream decides. */
void stw_read_load(const stw_job *job, const stw_program *program, stw_load_reading *out) {
    *out = (stw_load_reading){0, 0};
    const stw_movement *load = stw_program_movement(program, STW_PHASE_LOAD);
    double stream_s[STW_N_STREAMS] = {0};
    for (uint32_t i = 0; load != NULL && i < load->n_ops; i++) {
        const stw_op *op = &program->ops[load->first_op + i];
        stw_demand demand;
        stw_demand_op(job, op, &demand);
        if (op->kind == STW_OP_MASTER)
            out->masters_s += stw_demand_alone_s(&demand) - demand.startup_s;
        else
            stream_s[op->stream] += stw_demand_alone_s(&demand);
    }
    for (int s = 0; s < STW_N_STREAMS; s++)
        if (stream_s[s] > out->pieces_s) out->pieces_s = stream_s[s];
}

/* ---- forward and backward ---- */

static void add_work(const stw_op *op, const stw_demand *demand, stw_pass_work *work) {
    work->stream_s[op->stream] += stw_demand_alone_s(demand);
    add_all(demand, work->resource_s);
}

/* Forward ends with the first computation of the loss; the second makes its gradient. */
stw_status stw_read_forward(const stw_job *job, const stw_program *program, stw_pool *pool,
                            stw_forward_reading *out, stw_error *err) {
    memset(out, 0, sizeof *out);
    for (int pass = 0; pass < 2; pass++) {
        out->group[pass] = stw_pool_array(pool, job->model->n_groups, sizeof *out->group[pass]);
        if (out->group[pass] == NULL) return no_memory(err);
    }
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    if (movement == NULL) return STW_STATUS_OK;
    uint32_t first_wait = STW_OP_NONE;
    bool backward = false;
    double comm_s = 0, comm_at_compute_s = 0;
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if (stw_op_is(op, STW_OP_CLASS_MEMORY)) continue;
        stw_demand demand;
        stw_demand_op(job, op, &demand);
        int pass = backward ? 1 : 0;
        backward = backward || op->kind == STW_OP_LOSS;
        add_work(op, &demand, &out->pass[pass]);
        if (op->unit != STW_OP_NONE)
            add_work(op, &demand, &out->group[pass][job->model->blocks[op->unit].group]);
        if (stw_op_is(op, STW_OP_CLASS_COLLECTIVE)) {
            comm_s += stw_demand_alone_s(&demand);
        } else if (op->stream == STW_STREAM_COMPUTE) {
            if (first_wait == STW_OP_NONE) first_wait = op->after[0];
            comm_at_compute_s = comm_s;
        }
    }
    out->last_reduce_s = comm_s - comm_at_compute_s;
    for (uint32_t i = movement->first_op; first_wait != STW_OP_NONE && i <= first_wait; i++) {
        if (!stw_op_is(&program->ops[i], STW_OP_CLASS_COLLECTIVE)) continue;
        stw_demand demand;
        stw_demand_op(job, &program->ops[i], &demand);
        out->first_gather_s += stw_demand_alone_s(&demand);
    }
    return STW_STATUS_OK;
}

/* Bytes on the GPU come before their block's forward, copies of them on the host after it. What has
 * gone when the loss is computed is not kept. */
stw_status stw_read_saved(const stw_job *job, const stw_program *program, stw_pool *pool,
                          stw_saved *out, stw_error *err) {
    uint32_t n_blocks = job->model->n_blocks;
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    *out = (stw_saved){.blocks = stw_pool_array(pool, n_blocks, sizeof *out->blocks),
                       .gpu = stw_pool_array(pool, n_blocks, sizeof *out->gpu),
                       .host = stw_pool_array(pool, n_blocks, sizeof *out->host)};
    if (out->blocks == NULL || out->gpu == NULL || out->host == NULL) return no_memory(err);
    stw_live live = {0};
    uint64_t gpu = 0, host = 0;
    const uint64_t *now_gpu = &live.bytes[STW_TIER_GPU][STW_COMPONENT_ACTIVATIONS];
    const uint64_t *now_host = &live.bytes[STW_TIER_HOST][STW_COMPONENT_ACTIVATIONS];
    for (uint32_t i = 0; movement != NULL && i < movement->n_ops; i++) {
        const stw_op *op = &program->ops[movement->first_op + i];
        stw_live_apply(&live, op);
        if (out->n > 0) out->host[out->n - 1] = *now_host - host;
        if (op->kind == STW_OP_LOSS) break;
        if (op->kind != STW_OP_FORWARD) continue;
        out->blocks[out->n] = op->unit;
        out->gpu[out->n++] = *now_gpu - gpu;
        gpu = *now_gpu;
        host = *now_host;
    }
    for (uint32_t i = 0; *now_gpu == 0 && i < out->n; i++) out->gpu[i] = 0;
    return STW_STATUS_OK;
}
