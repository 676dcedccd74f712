/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's problem: the options, the rows of bytes (constraints), and the rows of seconds,
 * which give the objective. All solvers use this one description: the ILP copies its coefficients,
 * the others evaluate it. problem.h builds it.
 *
 * A choice consists of the units of every place, one ring option (depth x bucket) for all rings,
 * the blocks of every activation option, and one load method. Rows are linear in these, except for
 * products of units and ring option. Therefore units have a coefficient per ring option.
 *
 * A row of bytes is an upper bound on the program's walk at a named instant. It counts state in
 * whole quanta, rings with the widest slot of any place that may use them, and on the GPU the
 * largest kind of rank. Bytes are exact integers; no solver's tolerance enters an evaluation.
 *
 * A problem borrows its job, owns the rest in its pool and is read-only once built. */
#ifndef STW_PLANNER_COST_H
#define STW_PLANNER_COST_H

#include "planner/simulate.h"

/* Rows stay this far below their limits, so that a solver's rounding cannot exceed one. */
#define STW_COST_GUARD_BYTES (1ull << 20)

typedef struct stw_cost_ring {
    uint32_t depth;
    uint64_t bucket_bytes; /* 0: depth counts groups */
} stw_cost_ring;

typedef struct stw_cost_act {
    uint32_t group;
    stw_act act;
    uint32_t blocks; /* blocks of the group, which its options share */
    uint32_t each;   /* model blocks per block here: one of every pipeline chunk if all chunks are
                        equal; else 1 */
} stw_cost_act;

/* Uses: the fixed needs of places that have at least one unit (bit u of place_uses). First the
 * rings of a layout, then the buffers through which host-resident parameters and gradients pass in
 * forward and backward, then one use for each place. */
#define STW_USE_HOST_PARAMS STW_N_RINGS
#define STW_USE_OWN(place) (STW_N_RINGS + 1 + (place))

/** A constraint on the bytes of one resource at one instant. */
typedef struct stw_byte_row {
    const char *name;     /* "gpu_step": the row's name in LP files */
    const char *resource; /* "gpu memory", "host memory", "page-locked memory", "nvme" */
    stw_phase phase;
    stw_tier tier;
    bool page_locked;
    uint32_t node_kind; /* for rows that are not on the GPU */
    uint64_t limit_bytes, constant_bytes;
    uint64_t less_bytes; /* subtracted from the sum of the rest, at most down to 0 */
    /* Bytes by which rows exceed the walk. spare.c gives them to a search, whose choices count as
     * fitting only after their own walk; otherwise 0. The first is taken off the use
     * STW_USE_HOST_PARAMS, the second is added to the limit. */
    uint64_t spare_host_bytes, spare_bytes;
    uint64_t *unit_bytes;     /* [n_places] per unit */
    uint64_t *ring_bytes;     /* [n_uses][n_rings] per use */
    uint64_t *act_bytes;      /* [n_acts] per block */
    uint64_t *act_once_bytes; /* [n_acts] once if any block has the policy */
    uint64_t *load_bytes;     /* [n_loads] if the method is chosen */
} stw_byte_row;

/* The stretches of an iteration, one after the other: the norm ends before the first update, the
 * forward before the backward. */
typedef enum stw_stretch {
    STW_STRETCH_NORM,
    STW_STRETCH_STEP,
    STW_STRETCH_FORWARD,
    STW_STRETCH_BACKWARD,
    STW_N_STRETCHES
} stw_stretch;

/* For a row that always holds. */
#define STW_NO_ACT UINT32_MAX

/** The seconds of one resource or stream in one stretch. A stretch takes as long as its largest
 * row. */
typedef struct stw_time_row {
    const char *name;
    stw_stretch stretch;
    bool hides;      /* row of a step that overlaps the next forward: a row of FORWARD hides as many
                        of its seconds */
    uint32_t unless; /* the row does not hold if STW_LAST_BLOCKS blocks have this option */
    double constant_s;
    double *unit_s; /* [n_places][n_rings] per unit; equal for all rings if the place has none */
    double *ring_s; /* [n_uses][n_rings] per use */
    double *act_s;  /* [n_acts] per block */
} stw_time_row;

typedef struct stw_cost {
    stw_pool *pool;
    const stw_job *job;
    bool whole;    /* all units of a plan share one place */
    bool by_group; /* rings have no buckets: depth counts groups */
    uint32_t n_places, n_rings, n_uses, n_acts, n_loads, n_units;
    stw_place places[STW_MAX_PLACES];
    uint32_t place_uses[STW_MAX_PLACES];
    double stretch_weight[STW_N_STRETCHES]; /* how often an iteration executes it */
    stw_cost_ring *rings;
    stw_cost_act *acts; /* options of a group are neighbours: offload, recompute, keep */
    stw_load loads[STW_N_LOADS];
    double load_s[STW_N_LOADS];
    double load_unit_s[STW_MAX_PLACES];   /* seconds of the load per unit: its master weights */
    uint32_t update_units[STW_N_UPDATES]; /* fixed by the run's shares; STW_AUTO: free */
    bool forward_backward_known;
    uint32_t n_byte_rows, n_time_rows;
    stw_byte_row *byte_rows;
    stw_time_row *time_rows;
    size_t byte_row_room, time_row_room;
    /* Lower bounds on the simulated seconds of every choice: sums of work only. The stretch FORWARD
     * stands for forward and backward together. */
    uint32_t n_proof_rows;
    stw_time_row *proof_rows;
} stw_cost;

/** A solver's choice. A plain value; its maker owns `acts`. */
typedef struct stw_choice {
    uint32_t units[STW_MAX_PLACES];
    uint32_t ring, load; /* indices into rings and loads */
    uint32_t *acts;      /* [n_acts] blocks */
} stw_choice;

/** Bars: options that a solver may not choose, in addition to the problem's constraints. */
typedef struct stw_bars {
    uint32_t places; /* bit p: no units there */
    uint32_t acts;   /* bit stw_act: no blocks, in groups that have another option */
    uint32_t frozen; /* bit stw_act: exactly `frozen_blocks` blocks have this policy; 0: free */
    uint32_t frozen_blocks;
} stw_bars;

typedef struct stw_evaluation {
    double stretch_s[STW_N_STRETCHES], load_s; /* one execution of each stretch; 0: unknown */
    double objective_s;
    bool fits;           /* all rows hold, and the run's fixed shares are met */
    uint64_t over_bytes; /* sum over resources of the excess of the worst row */
    double over_share;   /* the same, each as a share of its limit */
    uint64_t
        held_bytes;     /* the largest row of each memory, summed over a node's GPUs and the node */
    uint64_t gpu_bytes; /* the largest GPU row */
    uint64_t host_bytes; /* the largest host row */
} stw_evaluation;

/** NULL is fine. */
void stw_cost_free(stw_cost *cost);

/** Returns an all-zero choice with room for its acts; acts NULL: out of memory. */
stw_choice stw_choice_new(const stw_cost *cost, stw_pool *pool);
void stw_choice_copy(const stw_cost *cost, stw_choice *to, const stw_choice *from);
bool stw_choice_is_same(const stw_cost *cost, const stw_choice *a, const stw_choice *b);
/** Returns the units that a choice gives to an update kind. */
uint32_t stw_choice_update_units(const stw_cost *cost, const stw_choice *choice, stw_update update);
/** True if every update kind with a fixed share has its units. */
bool stw_choice_keeps_shares(const stw_cost *cost, const stw_choice *choice);
/** Returns the uses of a choice (bit u of place_uses). */
uint32_t stw_choice_uses(const stw_cost *cost, const stw_choice *choice);
/** Returns the bytes of one row. */
uint64_t stw_cost_row_bytes(const stw_cost *cost, const stw_byte_row *row,
                            const stw_choice *choice);
/** Returns a lower bound of the objective: the seconds of the best choice for each row by itself,
 * without the rows of bytes. */
double stw_cost_least_seconds(const stw_cost *cost);
/** Returns the part of these seconds for forward and backward without recomputation. */
double stw_cost_compute_seconds(const stw_cost *cost);
/** Returns a lower bound of the excess of some row with any choice, as a share of the GPU's memory;
 * 0 or less: unknown. If all units share one place, the bound combines rows. */
double stw_cost_least_over_share(const stw_cost *cost);
/** The same for parameters, gradients, master and moments only, before any row exists.
 * @param in_every_layout out: true if all GPUs together (or all GPUs, hosts and NVMe) have less
 * room than one copy of these, so that no layout of these ranks fits */
double stw_cost_state_over_share(const stw_job *job, bool *in_every_layout);
void stw_cost_evaluate(const stw_cost *cost, const stw_choice *choice, stw_evaluation *out);
/** Returns the bytes of a row that do not depend on the choice; below 0 if less_bytes is larger. */
static inline double stw_cost_row_constant(const stw_byte_row *row) {
    return (double)row->constant_bytes - (double)row->less_bytes;
}

/** Returns the usable limit of a row: its limit plus spare bytes, minus the guard. */
uint64_t stw_cost_row_limit(const stw_byte_row *row);
/** Returns the unit for a row's excess as a share: its limit, at least 1 GiB. */
double stw_cost_over_unit(const stw_byte_row *row);
/** True if option `a` is barred. */
bool stw_act_barred(const stw_cost *cost, uint32_t a, const stw_bars *bars);
/** True if the choice uses no barred option. */
bool stw_choice_keeps_bars(const stw_cost *cost, const stw_choice *choice, const stw_bars *bars);
/** Set the limit of every GPU row; for rows outside the trainer's decisions at least
 * placement.gpu_fill. */
void stw_cost_limit_gpu(stw_cost *cost, uint64_t limit_bytes);
/** Copy the limits of all rows from another problem of the same job. */
void stw_cost_limit_alike(stw_cost *cost, const stw_cost *other);
/** Returns the spare bytes of the GPU rows of forward and backward. */
uint64_t stw_cost_spare(const stw_cost *cost);
/** Set the spare bytes of the GPU rows of forward and backward. */
void stw_cost_give_spare(stw_cost *cost, uint64_t bytes);
/** Returns the largest GPU row of forward and backward, without spare bytes. */
uint64_t stw_cost_forward_bytes(const stw_cost *cost, const stw_choice *choice);

/** Convert a choice to decisions; blocks lie in `pool`. */
STW_MUST_USE stw_status stw_cost_decide(const stw_cost *cost, const stw_choice *choice,
                                        stw_pool *pool, stw_decisions *out, stw_error *err);

/** Compare the rows with the walk of the programs derived from the choice. BUG if a row is below
 * the walk.
 * @param peaks [n_kinds]
 * @param node_peaks [n_node_kinds], as in stw_plan */
STW_MUST_USE stw_status stw_cost_check_walk(const stw_cost *cost, const stw_choice *choice,
                                            const stw_peaks *peaks, const stw_peaks *node_peaks,
                                            stw_error *err);

const char *stw_stretch_name(stw_stretch stretch);

#endif
