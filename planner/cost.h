/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's problem: what can be chosen, which rows of bytes must hold, which rows of seconds
 * add up to the objective. All solvers work on this one description: the ILP copies its
 * coefficients, the greedy and the exhaustive solver evaluate it.
 *
 * A choice is: units of every place; one ring option (depth x bucket) for all rings; blocks per
 * activation option; one load method. Every row is linear in these, apart from the products of
 * units and ring option, which is why coefficients of units come per ring option.
 *
 * Rows of bytes are upper bounds on the walk of the program at a named instant: state is counted in
 * whole quanta, rings with the widest slot of the places that may use them, and a GPU row takes the
 * largest kind of rank. Bytes are exact integers; no solver's tolerance enters an evaluation.
 *
 * A problem borrows its job, owns the rest in its pool and is read-only once built. */
#ifndef STW_PLANNER_COST_H
#define STW_PLANNER_COST_H

#include "plan/files/plan.h"
#include "plan/program/demand.h"

/* A solver's rounding must not put a plan over a limit: rows are held this far below it. */
#define STW_COST_GUARD_BYTES (1ull << 20)

typedef struct stw_cost_ring {
    uint32_t depth;
    uint64_t bucket_bytes; /* 0 where the engine prefetches by group */
} stw_cost_ring;

typedef struct stw_cost_act {
    uint32_t group;
    stw_act act;
    uint32_t blocks; /* of the whole group: the options of a group share them */
} stw_cost_act;

/* What places need as a whole as soon as one unit lies there: bit u of place_uses. First the rings
 * of a layout, then the buffer through which host-resident parameters pass on their way to being
 * gathered. (An engine that places everything in one way has one use of its own per place.) */
#define STW_USE_HOST_PARAMS STW_N_RINGS
#define STW_N_USES (STW_N_RINGS + 1)

/** Bytes of one resource at one instant, and what the choice adds to them. */
typedef struct stw_byte_row {
    const char *name;     /* "gpu_step": of rows in LP files */
    const char *resource; /* "gpu memory", "host memory", "page-locked memory", "nvme" */
    stw_phase phase;
    stw_tier tier;
    bool page_locked;
    uint32_t node_kind; /* of rows that are not on the GPU */
    uint64_t limit_bytes, constant_bytes;
    uint64_t *unit_bytes;     /* [n_places] per unit */
    uint64_t *ring_bytes;     /* [n_uses][n_rings], where it is in use */
    uint64_t *act_bytes;      /* [n_acts] per block */
    uint64_t *act_once_bytes; /* [n_acts] where any block has the policy */
    uint64_t *load_bytes;     /* [n_loads], where the method is chosen */
} stw_byte_row;

/* Stretches of an iteration that follow each other: the norm comes before the first update, the
 * backward pass after the last block's forward. */
typedef enum stw_part {
    STW_PART_NORM,
    STW_PART_STEP,
    STW_PART_FORWARD,
    STW_PART_BACKWARD,
    STW_N_PARTS
} stw_part;

/** What one resource or stream needs in one part; a part takes as long as its largest row says. */
typedef struct stw_time_row {
    const char *name;
    stw_part part;
    bool ring; /* of the slots of a ring, not of a resource */
    double constant_s;
    double *unit_s; /* [n_places][n_rings] per unit; equal for all rings where a place has none */
    double *ring_s; /* [n_uses][n_rings], where it is in use */
    double *act_s;  /* [n_acts] per block */
} stw_time_row;

typedef struct stw_cost {
    stw_pool *pool;
    const stw_job *job;
    const stw_engine *engine;
    uint32_t n_places, n_rings, n_uses, n_acts, n_loads, n_units;
    stw_place places[STW_MAX_PLACES];
    uint32_t place_uses[STW_MAX_PLACES];
    double part_weight[STW_N_PARTS]; /* how often an iteration goes through it */
    stw_cost_ring *rings;
    stw_cost_act *acts; /* options of a group are neighbours: offload, recompute, keep */
    stw_load loads[STW_N_LOADS];
    double load_s[STW_N_LOADS];
    double load_unit_s[STW_MAX_PLACES];   /* a unit's part of the load: its master */
    uint32_t update_units[STW_N_UPDATES]; /* fixed by the run's shares; STW_AUTO: free */
    bool forward_backward_known;
    stw_program *reference;  /* everything in the first place, all activations kept */
    uint64_t kept_gpu_bytes; /* what a program leaves on the GPU besides state: workspaces */
    uint32_t n_byte_rows, n_time_rows;
    stw_byte_row *byte_rows;
    stw_time_row *time_rows;
    size_t byte_row_room, time_row_room;
} stw_cost;

/** What one solver chose. A plain value; `acts` lies with whoever made it. */
typedef struct stw_choice {
    uint32_t units[STW_MAX_PLACES];
    uint32_t ring, load; /* indices into rings and loads */
    uint32_t *acts;      /* [n_acts] blocks */
} stw_choice;

typedef struct stw_evaluation {
    double part_s[STW_N_PARTS], load_s; /* parts: once each; 0 where unknown */
    double objective_s;
    bool fits;           /* all rows hold, and the shares of update engines are those of the run */
    uint64_t over_bytes; /* summed over resources, the worst row of each */
    uint64_t gpu_bytes;  /* the largest GPU row */
    uint64_t host_bytes; /* the largest host row */
} stw_evaluation;

/** Build the problem of a job. BAD_INPUT where the spec admits no place or no option. */
STW_MUST_USE stw_status stw_cost_new(const stw_job *job, stw_cost **out, stw_error *err);
void stw_cost_free(stw_cost *cost);

/** A choice with room for its acts, all zero; acts is NULL when memory is out. */
stw_choice stw_choice_new(const stw_cost *cost, stw_pool *pool);
void stw_choice_copy(const stw_cost *cost, stw_choice *to, const stw_choice *from);
/** Units that a choice gives to an update engine. */
uint32_t stw_choice_update_units(const stw_cost *cost, const stw_choice *choice, stw_update update);
/** Does the choice give every engine whose share is fixed as many units as the run says? */
bool stw_choice_keeps_shares(const stw_cost *cost, const stw_choice *choice);
/** Which ring uses a choice fills: bit u. */
uint32_t stw_choice_uses(const stw_cost *cost, const stw_choice *choice);
/** Bytes of one row, seconds of one row, and everything together. */
uint64_t stw_cost_row_bytes(const stw_cost *cost, const stw_byte_row *row,
                            const stw_choice *choice);
double stw_cost_row_seconds(const stw_cost *cost, const stw_time_row *row,
                            const stw_choice *choice);
void stw_cost_evaluate(const stw_cost *cost, const stw_choice *choice, stw_evaluation *out);
/** What a row may hold: its limit less the guard. */
uint64_t stw_cost_row_limit(const stw_byte_row *row);

/** The decisions that a choice stands for; blocks lie in `pool`. */
STW_MUST_USE stw_status stw_cost_decide(const stw_cost *cost, const stw_choice *choice,
                                        stw_pool *pool, stw_decisions *out, stw_error *err);

/** Hold the rows to the walk of the programs derived from the choice. BUG where a row lies below
 * it.
 * @param peaks [n_kinds] @param node_peaks [n_node_kinds], as in stw_plan */
STW_MUST_USE stw_status stw_cost_check_walk(const stw_cost *cost, const stw_choice *choice,
                                            const stw_peaks *peaks, const stw_peaks *node_peaks,
                                            stw_error *err);

/* ---- for cost_*.c, which fill a problem ---- */

stw_byte_row *stw_cost_byte_row(stw_cost *cost, stw_phase phase, stw_tier tier,
                                const char *resource, uint64_t limit_bytes, const char *format, ...)
    STW_PRINTF(6, 7);
stw_time_row *stw_cost_time_row(stw_cost *cost, stw_part part, const char *format, ...)
    STW_PRINTF(3, 4);
const char *stw_part_name(stw_part part);
/** A GPU row with what is there all the time: context, communicators, state of the phase.
 * @param grads is the state's gradient there at this instant? */
stw_byte_row *stw_cost_gpu_row(stw_cost *cost, stw_phase phase, bool grads, const char *name);
/** Of what lives on the GPU, the part that rows have terms for: state, context, communicators. */
uint64_t stw_cost_known_gpu_bytes(const stw_cost *cost, const stw_live *live);
/** The program of a choice that is easy to say: every unit in one place, one policy for all blocks.
 * Of the largest kind of rank; free with stw_program_free. What forward and backward need is read
 * off such programs, so that the planner has no formula of its own for it. */
STW_MUST_USE stw_status stw_cost_reference(const stw_cost *cost, uint32_t place, stw_act act,
                                           stw_program **out, stw_error *err);
STW_MUST_USE stw_status stw_cost_add_backward(stw_cost *cost, stw_error *err);
STW_MUST_USE stw_status stw_cost_add_bytes(stw_cost *cost, stw_error *err);
/** What one bucket of a place asks, all its copies together; seconds. */
typedef struct stw_bucket_flow {
    double per_unit; /* buckets in one unit */
    double resource_s[STW_N_RESOURCES];
    double stream_s[STW_N_STREAMS];                /* alone, start-up included */
    double read_s, in_s, update_s, out_s, write_s; /* alone */
    double startup_s;                              /* of all copies; in the sums above */
    double in_resource_s[STW_N_RESOURCES], out_resource_s[STW_N_RESOURCES];
} stw_bucket_flow;
/** Bytes of the ring of CPU buckets that a place's go through, 0 for none. A plan that may update
 * elsewhere in host memory as well is charged as one whose rings caches do not hold: that is what
 * becomes of them beside such updates (the program counts what there is of both). */
uint64_t stw_cost_ring_bytes(const stw_cost *cost, const stw_place *place,
                             const stw_cost_ring *ring);
void stw_bucket_flow_of(const stw_cost *cost, const stw_place *place, const stw_cost_ring *ring,
                        stw_bucket_flow *flow);
/** Speed of copies while both directions are busy, 1: as if alone. */
double stw_cost_copy_speed(const stw_job *job);
STW_MUST_USE stw_status stw_cost_add_contention(stw_cost *cost, stw_error *err);
STW_MUST_USE stw_status stw_cost_add_step(stw_cost *cost, stw_error *err);
STW_MUST_USE stw_status stw_cost_add_seconds(stw_cost *cost, stw_error *err);

#endif
