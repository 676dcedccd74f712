/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/sim.h"

#include <math.h>
#include <string.h>

#include "core/deadline.h"
#include "plan/program/share.h"
#include "sim/hidden.h"
#include "sim/stall.h"

/* Operations that end within this share of a step end together: their times differ only by
 * rounding.
 */
static const double SAME_MOMENT = 1e-9;

/* Kinds of operation of a stream that share alike, as far as they are told apart. Buckets of one
 * size make the same few operations run together over and over: their rates are kept. */
#define N_KINDS 15u
#define N_MEETINGS 1024u /* a power of two */

/* Who shares how: a stream's kind of running operation, four bits each; 0: idle or starting up. */
typedef uint64_t meeting_key;

typedef struct meeting {
    meeting_key key; /* 0: nothing is kept here */
    double rates[STW_N_STREAMS];
} meeting;

/* Operations of a stream by their use of resources. */
typedef struct kind {
    double weight[STW_N_RESOURCES];
    double priority;
} kind;

/* The head of a stream: the running operation, or the one that waits to start. */
typedef struct lane {
    uint32_t next; /* first operation of the stream that has not ended; STW_OP_NONE: none left */
    bool active;
    double startup_s; /* left before the operation takes part in sharing */
    double work_s;    /* left, in seconds if it ran alone */
    stw_demand demand;
    uint32_t kind; /* of the operation, from 1; 0: none of those that are told apart */
    kind use;      /* of resources by it */
    uint32_t n_kinds;
    kind kinds[N_KINDS];
} lane;

/* What the queue knows of an operation. */
typedef struct link {
    uint32_t follower; /* next operation of the same stream in the movement */
    uint32_t after[2];
} link;

typedef struct simulation {
    stw_sim *sim;
    const stw_movement *movement;
    link *links; /* [n_ops] */
    bool *ended; /* [n_ops] */
    double now_s;
    uint32_t left;     /* operations of the movement that have not ended */
    lane *lanes;       /* [STW_N_STREAMS] */
    meeting *meetings; /* [N_MEETINGS] by the hash of their key */
} simulation;

/* Queue the operations of the movement by stream. An operation may wait only for earlier operations
 * of its program, which rules out deadlock. */
static stw_status queue_movement(simulation *e, const stw_movement *movement, stw_error *err) {
    const stw_program *program = e->sim->program;
    uint32_t last[STW_N_STREAMS];
    for (unsigned s = 0; s < STW_N_STREAMS; s++) {
        e->lanes[s].next = last[s] = STW_OP_NONE;
        e->lanes[s].active = false;
    }
    if (movement->first_op > program->n_ops ||
        movement->n_ops > program->n_ops - movement->first_op)
        return stw_fail(err, STW_STATUS_BUG, stw_phase_name(movement->phase),
                        "found operations %u and %u more, the program has %u", movement->first_op,
                        movement->n_ops, program->n_ops);
    for (uint32_t i = movement->first_op; i < movement->first_op + movement->n_ops; i++) {
        const stw_op *op = &program->ops[i];
        if ((unsigned)op->stream >= STW_N_STREAMS)
            return stw_fail(err, STW_STATUS_BUG, stw_phase_name(movement->phase),
                            "operation %u has no stream", i);
        for (unsigned k = 0; k < 2; k++)
            if (op->after[k] != STW_OP_NONE && op->after[k] >= i)
                return stw_fail(err, STW_STATUS_BUG, stw_phase_name(movement->phase),
                                "operation %u waits for operation %u, expected an earlier one", i,
                                op->after[k]);
        e->links[i] = (link){STW_OP_NONE, {op->after[0], op->after[1]}};
        if (last[op->stream] == STW_OP_NONE)
            e->lanes[op->stream].next = i;
        else
            e->links[last[op->stream]].follower = i;
        last[op->stream] = i;
    }
    e->movement = movement;
    e->left = movement->n_ops;
    return STW_STATUS_OK;
}

static bool is_ready(const simulation *e, uint32_t index) {
    const link *l = &e->links[index];
    for (unsigned k = 0; k < 2; k++)
        if (l->after[k] != STW_OP_NONE && !e->ended[l->after[k]]) return false;
    return true;
}

static void leave_op(simulation *e, lane *l) {
    e->sim->ops[l->next].end_s = e->now_s;
    e->ended[l->next] = true;
    e->left--;
    l->active = false;
    l->next = e->links[l->next].follower;
}

static void end_op(simulation *e, lane *l) {
    double *busy_s = e->sim->busy_s[e->movement->phase];
    for (unsigned r = 0; r < STW_N_RESOURCES; r++) busy_s[r] += l->demand.seconds[r];
    leave_op(e, l);
}

static bool same_demand(const stw_demand *a, const stw_demand *b) {
    return a->startup_s == b->startup_s && a->priority == b->priority &&
           memcmp(a->seconds, b->seconds, sizeof a->seconds) == 0;
}

/* What an operation that starts asks for, and its kind: often that of the one before it. */
static void take_demand(lane *l, const stw_demand *demand) {
    l->startup_s = demand->startup_s;
    l->work_s = stw_demand_alone_s(demand) - demand->startup_s;
    l->active = l->startup_s > 0 || l->work_s > 0;
    if (l->kind > 0 && same_demand(demand, &l->demand)) return;
    l->demand = *demand;
    kind *use = &l->use;
    for (unsigned r = 0; r < STW_N_RESOURCES; r++)
        use->weight[r] = l->work_s > 0 ? demand->seconds[r] / l->work_s : 0;
    use->priority = demand->priority;
    l->kind = 0;
    for (uint32_t k = 0; k < l->n_kinds && l->kind == 0; k++)
        if (memcmp(&l->kinds[k], use, sizeof *use) == 0) l->kind = k + 1;
    if (l->kind > 0 || l->n_kinds == N_KINDS) return;
    l->kinds[l->n_kinds++] = *use;
    l->kind = l->n_kinds;
}

/* Start every operation that can start, until nothing changes. An operation without duration ends
 * at once and may release others. */
static void start_ops(simulation *e) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (unsigned s = 0; s < STW_N_STREAMS; s++) {
            lane *l = &e->lanes[s];
            while (!l->active && l->next != STW_OP_NONE && is_ready(e, l->next)) {
                const stw_op *op = &e->sim->program->ops[l->next];
                stw_demand demand;
                changed = true;
                e->sim->ops[l->next].start_s = e->now_s;
                if (!stw_op_takes_time(op)) {
                    leave_op(e, l);
                    continue;
                }
                stw_demand_op(e->sim->job, op, &demand);
                take_demand(l, &demand);
                if (!l->active) end_op(e, l);
            }
        }
    }
}

static bool shares(const lane *l) { return l->active && l->startup_s <= 0; }

/* The place of a meeting; NULL where a running operation is of no kind. */
static meeting *find_meeting(const simulation *e, meeting_key *key) {
    *key = 0;
    for (unsigned s = 0; s < STW_N_STREAMS; s++) {
        const lane *l = &e->lanes[s];
        if (shares(l) && l->kind == 0) return NULL;
        *key = *key << 4 | (shares(l) ? l->kind : 0);
    }
    return &e->meetings[*key * 0x9E3779B97F4A7C15ull >> 32 & (N_MEETINGS - 1)];
}

/* Rates of the running operations; 0 for a stream that is idle or starting up. */
static void share(const simulation *e, double rates[STW_N_STREAMS]) {
    stw_share_user users[STW_N_STREAMS];
    unsigned stream_of[STW_N_STREAMS];
    uint32_t n = 0;
    meeting_key key;
    meeting *known = find_meeting(e, &key);
    if (known != NULL && known->key == key && key != 0) {
        memcpy(rates, known->rates, sizeof known->rates);
        return;
    }
    for (unsigned s = 0; s < STW_N_STREAMS; s++) {
        const lane *l = &e->lanes[s];
        rates[s] = 0;
        if (!shares(l)) continue;
        memcpy(users[n].weight, l->use.weight, sizeof users[n].weight);
        users[n].priority = l->use.priority;
        stream_of[n++] = s;
    }
    stw_share_rates(users, n);
    for (uint32_t i = 0; i < n; i++) rates[stream_of[i]] = users[i].rate;
    if (known == NULL) return;
    known->key = key;
    memcpy(known->rates, rates, sizeof known->rates);
}

static double time_left(const lane *l, double rate) {
    return l->startup_s > 0 ? l->startup_s : l->work_s / rate;
}

/* Advance to the next time at which an operation or a start-up ends. */
static stw_status advance(simulation *e, stw_error *err) {
    double rates[STW_N_STREAMS], step_s = INFINITY;
    share(e, rates);
    for (unsigned s = 0; s < STW_N_STREAMS; s++)
        if (e->lanes[s].active) step_s = fmin(step_s, time_left(&e->lanes[s], rates[s]));
    if (!isfinite(step_s))
        return stw_fail(err, STW_STATUS_BUG, stw_phase_name(e->movement->phase),
                        "deadlock: %u operations are left and none can continue", e->left);
    e->now_s += step_s;
    for (unsigned s = 0; s < STW_N_STREAMS; s++) {
        lane *l = &e->lanes[s];
        if (!l->active) continue;
        bool arrives = time_left(l, rates[s]) <= step_s * (1 + SAME_MOMENT);
        if (l->startup_s > 0) {
            l->startup_s = arrives ? 0 : l->startup_s - step_s;
            if (arrives && l->work_s <= 0) end_op(e, l);
        } else if (arrives) {
            end_op(e, l);
        } else {
            l->work_s -= rates[s] * step_s;
        }
    }
    return STW_STATUS_OK;
}

static stw_status run_movement(simulation *e, const stw_movement *movement, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(queue_movement(e, movement, err));
    const double start_s = e->now_s;
    double *phase_s = &e->sim->phase_s[movement->phase];
    if (isnan(e->sim->phase_start_s[movement->phase]))
        e->sim->phase_start_s[movement->phase] = start_s;
    start_ops(e);
    for (uint64_t step = 0; e->left > 0; step++) {
        STW_TRY(stw_deadline_check_step(step, "simulating", err));
        STW_TRY(advance(e, err));
        start_ops(e);
    }
    e->sim->phase_end_s[movement->phase] = e->now_s;
    if (movement->role_number == 0)
        *phase_s = (isnan(*phase_s) ? 0 : *phase_s) + e->now_s - start_s;
out:
    return status;
}

/* Bytes are counted in list order: allocators return memory when an operation is issued, and the
 * list is the order of issue. Streams decide when work is done, not which bytes are allocated. Of
 * several equal peaks the last one counts. */
static void account(stw_sim *sim, const stw_movement *movement, stw_live *live) {
    stw_peak *peaks = sim->peaks.phase[movement->phase];
    sim->peaks.has[movement->phase] = true;
    for (uint32_t i = 0; i <= movement->n_ops; i++) {
        if (i > 0) stw_live_apply(live, &sim->program->ops[movement->first_op + i - 1]);
        for (unsigned t = 0; t < STW_N_TIERS; t++) stw_live_note(live, (stw_tier)t, &peaks[t]);
    }
}

static stw_status make(const stw_job *job, const stw_program *program, simulation *e, stw_sim **out,
                       stw_error *err) {
    stw_pool *pool = stw_pool_new();
    stw_sim *sim = pool != NULL ? stw_pool_alloc(pool, sizeof *sim) : NULL;
    size_t n = program->n_ops;
    if (sim != NULL) {
        sim->pool = pool;
        sim->job = job;
        sim->program = program;
        sim->ops = stw_pool_array(pool, n, sizeof *sim->ops);
        e->sim = sim;
        e->links = stw_pool_array(pool, n, sizeof *e->links);
        e->ended = stw_pool_array(pool, n, sizeof *e->ended);
        e->meetings = stw_pool_array(pool, N_MEETINGS, sizeof *e->meetings);
        e->lanes = stw_pool_array(pool, STW_N_STREAMS, sizeof *e->lanes);
    }
    if (sim == NULL || sim->ops == NULL || e->links == NULL || e->ended == NULL ||
        e->meetings == NULL || e->lanes == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL,
                        "out of memory for the simulation of %zu operations", n);
    }
    for (unsigned p = 0; p < STW_N_PHASES; p++)
        sim->phase_start_s[p] = sim->phase_end_s[p] = sim->phase_s[p] = NAN;
    sim->exposed_s = sim->stall_s = NAN;
    *out = sim;
    return STW_STATUS_OK;
}

/* @param accounts fill the peaks, too */
static stw_status run(const stw_job *job, const stw_program *program, bool accounts, stw_sim **out,
                      stw_error *err) {
    stw_status status = STW_STATUS_OK;
    simulation e = {0};
    stw_sim *sim = NULL;
    stw_live live;
    memset(&live, 0, sizeof live);
    *out = NULL;
    STW_TRY(make(job, program, &e, &sim, err));
    for (uint32_t m = 0; m < program->n_movements; m++) {
        STW_TRY(run_movement(&e, &program->movements[m], err));
        if (accounts) account(sim, &program->movements[m], &live);
    }
    STW_TRY(stw_sim_hide(sim, err));
    STW_TRY(stw_sim_stall(sim, err));
    *out = sim;
    sim = NULL;
out:
    stw_sim_free(sim);
    return status;
}

stw_status stw_sim_run(const stw_job *job, const stw_program *program, stw_sim **out,
                       stw_error *err) {
    return run(job, program, true, out, err);
}

void stw_sim_free(stw_sim *sim) {
    if (sim != NULL) stw_pool_free(sim->pool);
}

double stw_sim_phase_seconds(const stw_sim *sim, stw_phase phase) {
    const bool hidden = phase == STW_PHASE_OPTIMIZER_STEP && !isnan(sim->exposed_s);
    if (phase == STW_PHASE_CHECKPOINT && !isnan(sim->stall_s)) return sim->stall_s;
    return hidden ? sim->exposed_s : sim->phase_s[phase];
}

stw_status stw_sim_seconds(const stw_job *job, const stw_program *program,
                           double seconds[STW_N_PHASES], stw_error *err) {
    stw_sim *sim = NULL;
    stw_status status = run(job, program, false, &sim, err);
    for (int p = 0; p < STW_N_PHASES; p++)
        seconds[p] =
            status == STW_STATUS_OK ? stw_sim_phase_seconds(sim, (stw_phase)p) : (double)NAN;
    stw_sim_free(sim);
    return status;
}
