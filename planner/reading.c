/* SPDX-License-Identifier: Apache-2.0 */
#include "planner/reading.h"

#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "plan/program/staging.h"

/* ---- programs ---- */

stw_stream stw_stream_opposite(stw_stream stream) {
    static const stw_stream pairs[][2] = {{STW_STREAM_H2D, STW_STREAM_D2H},
                                          {STW_STREAM_TO_CPU, STW_STREAM_FROM_CPU}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        for (int side = 0; side < 2; side++)
            if (pairs[i][side] == stream) return pairs[i][1 - side];
    return stream;
}

stw_status stw_simple_build(const stw_simple *simple, stw_layout **layout, stw_program **program,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_job *job = simple->job;
    stw_pool *pool = stw_pool_new();
    stw_block_decision *blocks =
        pool == NULL ? NULL : stw_pool_array(pool, job->model->n_groups, sizeof *blocks);
    if (blocks == NULL) {
        status = stw_planner_no_memory(err);
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
    if (program != NULL)
        STW_TRY(stw_program_new_phases(job, &decisions, *layout, simple->phases, program, err));
out:
    stw_pool_free(pool);
    return status;
}

/* ---- seconds ---- */

stw_status stw_read_seconds(const stw_job *job, const stw_program *program, stw_phase phase,
                            stw_planner_simulate simulate, double *seconds, stw_error *err) {
    const stw_movement *movement = stw_program_movement(program, phase);
    double found[STW_N_PHASES];
    *seconds = 0;
    if (movement == NULL) return STW_STATUS_OK;
    stw_movement only = *movement;
    stw_program alone = *program;
    alone.movements = &only;
    alone.n_movements = 1;
    stw_status status = simulate(job, &alone, found, err);
    if (status == STW_STATUS_OK) *seconds = found[phase];
    return status;
}

/* Forward, backward and step together, of which one may hide a part of the other.
 * @param seconds [STW_N_PHASES] out; NaN of other phases */
static stw_status read_together(const stw_job *job, const stw_program *program,
                                stw_planner_simulate simulate, double *seconds, stw_error *err) {
    const stw_phase phases[] = {STW_PHASE_FORWARD_BACKWARD, STW_PHASE_OPTIMIZER_STEP};
    stw_movement both[2];
    stw_program part = *program;
    part.movements = both;
    part.n_movements = 0;
    for (size_t i = 0; i < 2; i++) {
        const stw_movement *movement = stw_program_movement(program, phases[i]);
        if (movement != NULL) both[part.n_movements++] = *movement;
    }
    return simulate(job, &part, seconds, err);
}

stw_status stw_read_decided(const stw_job *job, const stw_decisions *decisions, uint32_t kind,
                            uint32_t phases, stw_planner_simulate simulate, stw_decided *out,
                            stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_layout *layout = NULL;
    stw_program *program = NULL;
    stw_live live = {0};
    *out = (stw_decided){.work = 0};
    STW_TRY(stw_layout_new(job, decisions, kind, &layout, err));
    STW_TRY(stw_program_new_phases(job, decisions, layout, phases != 0 ? phases : STW_NO_PHASES,
                                   &program, err));
    stw_program_walk(program, &out->peaks);
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    for (uint32_t i = 0; movement != NULL && i < movement->first_op; i++)
        stw_live_apply(&live, &program->ops[i]);
    out->before_bytes = live.total[STW_TIER_GPU];
    out->work = program->n_ops;
    const uint32_t both = 1u << STW_PHASE_FORWARD_BACKWARD | 1u << STW_PHASE_OPTIMIZER_STEP;
    const bool hides = stw_job_hides_step(job) && (phases & both) == both;
    double together[STW_N_PHASES];
    if (hides) STW_TRY(read_together(job, program, simulate, together, err));
    for (int p = 0; p < STW_N_PHASES; p++) {
        movement = stw_program_movement(program, (stw_phase)p);
        if ((phases & 1u << p) == 0 || movement == NULL) continue;
        out->work += movement->n_ops;
        if (hides)
            out->seconds[p] = together[p];
        else
            STW_TRY(stw_read_seconds(job, program, (stw_phase)p, simulate, &out->seconds[p], err));
    }
out:
    stw_layout_free(layout);
    stw_program_free(program);
    return status;
}

double stw_read_compute_s(const stw_job *job, const stw_program *program) {
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    double seconds = 0;
    for (uint32_t i = 0; movement != NULL && i < movement->n_ops; i++) {
        const stw_op *op = &program->ops[movement->first_op + i];
        stw_demand demand;
        if (op->stream != STW_STREAM_COMPUTE || stw_op_is(op, STW_OP_CLASS_MEMORY)) continue;
        stw_demand_op(job, op, &demand);
        seconds += stw_demand_alone_s(&demand);
    }
    return seconds;
}

/* ---- bytes ---- */

/* Host bytes that are no rank's state or buffers. */
static bool is_outside(int component) {
    return component == STW_COMPONENT_PROCESS || component == STW_COMPONENT_OBJECT_STORE ||
           component == STW_COMPONENT_DATA_LOADERS;
}

/* They come first and stay, also where a role has no movement but its load and its rollouts. */
static void note_outside(const uint64_t *components, stw_byte_reading *out) {
    uint64_t all = 0;
    for (int c = 0; c < STW_N_COMPONENTS; c++)
        if (is_outside(c)) all = stw_plus(all, components[c]);
    out->process_bytes = stw_max_u64(out->process_bytes, all);
}

static void note(const stw_layout *layout, const uint64_t *components, stw_instant at,
                 stw_tier tier, stw_byte_reading *out) {
    uint64_t all = 0, state = 0;
    bool in_regions[STW_N_COMPONENTS] = {false};
    for (uint32_t i = 0; i < layout->n_regions; i++)
        in_regions[layout->regions[i].component] = true;
    for (int c = 0; c < STW_N_COMPONENTS; c++) {
        if (in_regions[c]) state += components[c];
        if (c != STW_COMPONENT_CONTEXT && c != STW_COMPONENT_LOAD_STAGING && !is_outside(c))
            all += components[c];
    }
    if (all < out->all[at][tier]) return;
    out->all[at][tier] = all;
    out->state[at][tier] = state;
}

/* All in one: only engines that divide no state have less page-locked than they hold. */
static void note_locked(const stw_job *job, const stw_peak *host, stw_instant at,
                        stw_byte_reading *out) {
    uint64_t staging = stw_load_is_pageable(job) ? 0 : host->components[STW_COMPONENT_LOAD_STAGING];
    uint64_t *all = &out->all[at][STW_MEMORY_PAGE_LOCKED];
    *all = stw_max_u64(*all, host->page_locked - staging);
}

stw_phase stw_instant_phase(stw_instant at) {
    static const stw_phase phases[STW_N_INSTANTS] = {[STW_AT_LOAD] = STW_PHASE_LOAD,
                                                     [STW_AT_REST] = STW_N_PHASES,
                                                     [STW_AT_BACKWARD] = STW_PHASE_FORWARD_BACKWARD,
                                                     [STW_AT_STEP] = STW_PHASE_OPTIMIZER_STEP,
                                                     [STW_AT_LOG_PROB] = STW_PHASE_LOG_PROB,
                                                     [STW_AT_WEIGHT_SYNC] = STW_PHASE_WEIGHT_SYNC,
                                                     [STW_AT_ROLLOUT] = STW_PHASE_ROLLOUT,
                                                     [STW_AT_CHECKPOINT] = STW_PHASE_CHECKPOINT,
                                                     [STW_AT_OTHERS] = STW_PHASE_FORWARD_BACKWARD};
    return phases[at];
}

static stw_instant instant_of(stw_phase phase) {
    int at = STW_AT_LOAD;
    if (phase == STW_PHASE_FIRST_OPTIMIZER_STEP) return STW_AT_STEP;
    while (at < STW_AT_CHECKPOINT && stw_instant_phase((stw_instant)at) != phase) at++;
    return (stw_instant)at;
}

/* Moments that no peak shows: staging of the load may hide what comes after it, and what other
 * roles train on the trainer's GPUs holds the same whatever is decided for its blocks. */
static void note_moments(const stw_layout *layout, const stw_program *program,
                         stw_byte_reading *out) {
    stw_live live = {0};
    for (uint32_t m = 0; m < program->n_movements; m++) {
        const stw_movement *movement = &program->movements[m];
        const bool load = movement->phase == STW_PHASE_LOAD;
        const bool other =
            movement->role_number != 0 && movement->phase == STW_PHASE_FORWARD_BACKWARD;
        for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
            const stw_op *op = &program->ops[i];
            stw_live_apply(&live, op);
            if ((load || other) && op->kind == STW_OP_ALLOC)
                note(layout, live.bytes[op->to], load ? STW_AT_LOAD : STW_AT_OTHERS, op->to, out);
        }
        if (other) out->instants |= 1u << STW_AT_OTHERS;
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
    const stw_peak held = {.page_locked = live.page_locked};
    note_locked(job, &held, STW_AT_REST, out);
    note_locked(job, &held, STW_AT_BACKWARD, out);
    out->context_bytes = live.bytes[STW_TIER_GPU][STW_COMPONENT_CONTEXT];
    out->page_tables = out->context_bytes > job->cluster->gpu.context_bytes;
    if (out->page_tables) out->context_bytes -= stw_page_table_bytes(job, layout);

    note_moments(layout, program, out);
    stw_peaks peaks;
    stw_program_walk(program, &peaks);
    for (int p = 0; p < STW_N_PHASES; p++) {
        stw_instant at = instant_of((stw_phase)p);
        if (!peaks.has[p]) continue;
        note_outside(peaks.phase[p][STW_TIER_HOST].components, out);
        if (at >= STW_AT_LOG_PROB) out->instants |= 1u << at;
        for (int t = 0; t < STW_N_TIERS; t++)
            note(layout, peaks.phase[p][t].components, at, (stw_tier)t, out);
        note_locked(job, &peaks.phase[p][STW_TIER_HOST], at, out);
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
    flow->stream_startup_s[op.stream] += demand.startup_s;
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
    average(out->stream_startup_s, STW_N_STREAMS, out->buckets);
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
    work->startup_s[op->stream] += demand->startup_s;
    add_all(demand, work->resource_s);
}

/* Operations of one movement, each as long as it takes alone, and where backward begins. */
typedef struct passes {
    const stw_op *ops; /* [n] */
    stw_demand *demands;
    double *end_s; /* room for replays: when an operation ends */
    uint32_t first_op, n, turn;
} passes;

static stw_status read_demands(const stw_job *job, const stw_program *program, stw_pool *pool,
                               passes *out, stw_error *err) {
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    *out = (passes){0};
    if (movement == NULL) return STW_STATUS_OK;
    *out = (passes){.ops = &program->ops[movement->first_op],
                    .demands = stw_pool_array(pool, movement->n_ops, sizeof *out->demands),
                    .end_s = stw_pool_array(pool, movement->n_ops, sizeof *out->end_s),
                    .first_op = movement->first_op,
                    .n = movement->n_ops,
                    .turn = movement->n_ops};
    if (out->demands == NULL || out->end_s == NULL) return stw_planner_no_memory(err);
    for (uint32_t i = 0; i < out->n; i++) {
        stw_demand_op(job, &out->ops[i], &out->demands[i]);
        if (out->ops[i].kind == STW_OP_LOSS && out->turn == out->n) out->turn = i + 1;
        if (out->ops[i].kind == STW_OP_BACKWARD && out->turn == out->n) out->turn = i;
    }
    return STW_STATUS_OK;
}

/* Run operations from `begin` to `end` as if alone, after others whose ends are known.
 * @param free_s when each stream is free for them @return the end of the last one to end */
static double replay(passes *p, uint32_t begin, uint32_t end, double *free_s) {
    double longest_s = -INFINITY;
    for (uint32_t i = begin; i < end; i++) {
        double start_s = free_s[p->ops[i].stream];
        for (int a = 0; a < 2; a++) {
            uint32_t after = p->ops[i].after[a];
            if (after != STW_OP_NONE && after >= p->first_op)
                start_s = fmax(start_s, p->end_s[after - p->first_op]);
        }
        p->end_s[i] = free_s[p->ops[i].stream] = start_s + stw_demand_alone_s(&p->demands[i]);
        longest_s = fmax(longest_s, p->end_s[i]);
    }
    return longest_s;
}

/* From the end of operation `last` to the end of its pass; all before it has ended. */
static double tail_s(passes *p, uint32_t last, uint32_t end) {
    double free_s[STW_N_STREAMS], start_s = -stw_demand_alone_s(&p->demands[last]);
    for (uint32_t i = 0; i < last; i++) p->end_s[i] = start_s;
    for (int s = 0; s < STW_N_STREAMS; s++) free_s[s] = start_s;
    p->end_s[last] = free_s[p->ops[last].stream] = 0;
    double longest_s = replay(p, last + 1, end, free_s);
    if (end == p->turn && last + 1 < end) longest_s = p->end_s[end - 1];
    return longest_s > 0 ? longest_s : 0;
}

/* Both passes, of operations that take as long as alone. */
static void read_whole(passes *p, stw_pass_work *pass) {
    double free_s[STW_N_STREAMS] = {0};
    if (p->n == 0 || p->turn == p->n) return;
    (void)replay(p, 0, p->turn, free_s);
    double turn_s = p->end_s[p->turn - 1];
    pass[0].whole_s = turn_s;
    pass[1].whole_s = replay(p, p->turn, p->n, free_s) - turn_s;
}

/* Does an operation take time in a stream, or in a resource (kind STW_N_STREAMS and on)? */
static bool takes(const passes *p, uint32_t i, int kind) {
    if (kind >= STW_N_STREAMS) return p->demands[i].seconds[kind - STW_N_STREAMS] > 0;
    return (int)p->ops[i].stream == kind && stw_demand_alone_s(&p->demands[i]) > 0;
}

/* What a stream or resource lacks at the beginning of a pass: how late its operations start, less
 * what it had to do before them, at most; up to its first one after the second computation. From
 * there on it is the pass that it waits for. Computations of the last pass end right before this
 * one, everything else in it has long ended. */
static double lead_s(passes *p, uint32_t begin, uint32_t end, int kind) {
    double free_s[STW_N_STREAMS], before_s = 0, busy_s = 0, most_s = -INFINITY;
    uint32_t computed = 0;
    for (uint32_t i = begin; i-- > 0;) {
        bool computes = p->ops[i].stream == STW_STREAM_COMPUTE;
        p->end_s[i] = computes ? before_s : -INFINITY;
        if (computes) before_s -= stw_demand_alone_s(&p->demands[i]);
    }
    for (int s = 0; s < STW_N_STREAMS; s++) free_s[s] = s == STW_STREAM_COMPUTE ? 0 : before_s;
    for (uint32_t i = begin; i < end; i++) {
        double alone_s = stw_demand_alone_s(&p->demands[i]);
        (void)replay(p, i, i + 1, free_s);
        if (takes(p, i, kind)) {
            most_s = fmax(most_s, p->end_s[i] - alone_s - busy_s);
            if (computed >= 2) break;
            busy_s += kind < STW_N_STREAMS ? alone_s : p->demands[i].seconds[kind - STW_N_STREAMS];
        }
        computed += p->ops[i].stream == STW_STREAM_COMPUTE && alone_s > 0;
    }
    return most_s;
}

static void read_edges(passes *p, int pass, stw_pass_work *out) {
    uint32_t begin = pass ? p->turn : 0, end = pass ? p->n : p->turn;
    for (int kind = 0; kind < STW_N_STREAMS + STW_N_RESOURCES; kind++) {
        uint32_t last = end;
        while (last > begin && !takes(p, last - 1, kind)) last--;
        if (last == begin) continue;
        const double first_s = lead_s(p, begin, end, kind);
        const double edge_s = first_s + tail_s(p, last - 1, end);
        if (kind >= STW_N_STREAMS) {
            out->resource_edge_s[kind - STW_N_STREAMS] = edge_s;
            out->resource_lead_s[kind - STW_N_STREAMS] = first_s;
            continue;
        }
        out->stream_edge_s[kind] = edge_s;
        out->stream_lead_s[kind] = first_s;
        uint32_t first = begin;
        while (!takes(p, first, kind)) first++;
        for (uint32_t i = first; i < last; i++)
            if (p->ops[i].stream == stw_stream_opposite((stw_stream)kind))
                out->beside_s[kind] += stw_demand_alone_s(&p->demands[i]);
    }
}

/* Forward ends with the first computation of the loss; the second makes its gradient. */
stw_status stw_read_forward(const stw_job *job, const stw_program *program, stw_pool *pool,
                            stw_forward_reading *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    passes p;
    memset(out, 0, sizeof *out);
    for (int pass = 0; pass < 2; pass++) {
        out->group[pass] = stw_pool_array(pool, job->model->n_groups, sizeof *out->group[pass]);
        if (out->group[pass] == NULL) return stw_planner_no_memory(err);
    }
    STW_TRY(read_demands(job, program, pool, &p, err));
    for (uint32_t i = 0; i < p.n; i++) {
        const stw_op *op = &p.ops[i];
        if (stw_op_is(op, STW_OP_CLASS_MEMORY)) continue;
        int pass = i >= p.turn ? 1 : 0;
        add_work(op, &p.demands[i], &out->pass[pass]);
        if (op->unit == STW_OP_NONE) continue;
        stw_pass_work *group = &out->group[pass][job->model->blocks[op->unit].group];
        add_work(op, &p.demands[i], group);
        group->beside_s[stw_stream_opposite(op->stream)] += stw_demand_alone_s(&p.demands[i]);
    }
    read_whole(&p, out->pass);
    for (int pass = 0; pass < 2; pass++) read_edges(&p, pass, &out->pass[pass]);
out:
    return status;
}

/* Bytes on the GPU come before their block's forward, copies of them on the host after it. What has
 * gone when the loss is computed, or the first backward of a stage without one, is not kept. */
stw_status stw_read_saved(const stw_job *job, const stw_program *program, stw_pool *pool,
                          stw_saved_acts *out, stw_error *err) {
    uint32_t n_blocks = job->model->n_blocks;
    const stw_movement *movement = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    *out = (stw_saved_acts){.blocks = stw_pool_array(pool, n_blocks, sizeof *out->blocks),
                            .gpu = stw_pool_array(pool, n_blocks, sizeof *out->gpu),
                            .host = stw_pool_array(pool, n_blocks, sizeof *out->host)};
    if (out->blocks == NULL || out->gpu == NULL || out->host == NULL)
        return stw_planner_no_memory(err);
    stw_live live = {0};
    uint64_t gpu = 0, host = 0;
    const uint64_t *now_gpu = &live.bytes[STW_TIER_GPU][STW_COMPONENT_ACTIVATIONS];
    const uint64_t *now_host = &live.bytes[STW_TIER_HOST][STW_COMPONENT_ACTIVATIONS];
    for (uint32_t i = 0; movement != NULL && i < movement->n_ops; i++) {
        const stw_op *op = &program->ops[movement->first_op + i];
        stw_live_apply(&live, op);
        if (out->n > 0) out->host[out->n - 1] = *now_host - host;
        if (op->kind == STW_OP_LOSS || op->kind == STW_OP_BACKWARD) break;
        if (op->kind != STW_OP_FORWARD) continue;
        out->blocks[out->n] = op->unit;
        out->gpu[out->n++] = *now_gpu - gpu;
        gpu = *now_gpu;
        host = *now_host;
    }
    for (uint32_t i = 0; *now_gpu == 0 && i < out->n; i++) out->gpu[i] = 0;
    return STW_STATUS_OK;
}
