/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the search for fixes: changes of keys, trials of several changes, and knobs. A knob
 * is one change that grows in steps. Internal to the planner. */
#ifndef STW_PLANNER_FIXES_H
#define STW_PLANNER_FIXES_H

#include "plan/files/plan.h"
#include "planner/layouts_list.h"
#include "planner/resolve.h"

typedef struct stw_change {
    char key[64], value[64];
} stw_change;

/* The result of planning with changes. */
typedef enum stw_trial {
    STW_TRIAL_REFUSED, /* the changed specs contradict themselves */
    STW_TRIAL_UNFIT,
    STW_TRIAL_AT_RISK, /* it fits, with the verdict at_risk */
    STW_TRIAL_FITS
} stw_trial;

/* ---- planning with changes (fix_trial.c) ---- */

typedef struct stw_tried {
    stw_trial is;
    double over_share; /* approximate excess as a share of the limit that is exceeded most;
                          INFINITY: not planned */
} stw_tried;

typedef struct stw_trial_row {
    uint64_t hash; /* hash of the changes */
    stw_tried found;
} stw_trial_row;

/* All trials of a plan, and the work that its searches may still spend. The answer depends on the
 * number of operations walked, not on the machine's speed, unless the time limit of the whole plan
 * passes. */
#define STW_MAX_TRIALS 512
typedef struct stw_trials {
    const stw_plan *plan;
    uint64_t work_left; /* operations */
    double end_s;
    bool late; /* out: the time ended before the work */
    uint32_t n;
    stw_trial_row list[STW_MAX_TRIALS];
} stw_trials;

/** Plan with these changes, or return the result of an earlier equal trial. UNFIT without a trial
 * if no work is left. Contradictory specs cost no work. */
STW_MUST_USE stw_status stw_fix_try(stw_trials *trials, const stw_change *changes, uint32_t n,
                                    stw_tried *out, stw_error *err);
/** Test whether the changed specs make a valid job, without planning it. */
STW_MUST_USE stw_status stw_fix_admits(const stw_plan *plan, const stw_change *changes, uint32_t n,
                                       bool *out, stw_error *err);
/** Returns the trainer's ranks on `nodes` nodes; 0: too few nodes for the roles. */
uint64_t stw_fix_ranks(const stw_run_spec *run, const stw_cluster *cluster, uint32_t nodes);
/** Set batch.grad_accumulation among the changes, so that an optimizer step keeps the plan's tokens
 * (or its sequences, if their length changes). Trials call this themselves.
 * @param changes room for one more
 * @param tokens out, per step; 0: as in the plan */
STW_MUST_USE stw_status stw_fix_keep_step(const stw_plan *plan, stw_change *changes, uint32_t *n,
                                          uint64_t *tokens, stw_error *err);
/** Set a fix's verdict and seconds from the plan that a command would make with its changes. They
 * stay if there is no time for a plan.
 * @param out the plan's result; REFUSED: no plan */
STW_MUST_USE stw_status stw_fix_verify(stw_trials *trials, stw_fix *fix, const stw_fix_judge *judge,
                                       stw_trial *out, stw_error *err);

/* ---- found fixes (fix_order.c) ---- */

/** How much a fix changes a run, in ascending order. */
typedef enum stw_reach {
    STW_REACH_PARK = -1, /* state waits on the host while other roles use the GPUs */
    STW_REACH_SETTING,   /* same numerics, batch and machines */
    STW_REACH_BATCH,     /* smaller micro batches of the same step */
    STW_REACH_SEQUENCE,  /* other samples */
    STW_REACH_NUMERICS,
    STW_REACH_MACHINES,
    STW_REACH_ENGINE
} stw_reach;

typedef struct stw_found {
    stw_fix fix;
    stw_reach reach;
    double amount; /* distance of its values from the run's: doublings, 1 for each word */
    const struct stw_mix *mix; /* the mix that it comes from; NULL: unknown */
} stw_found;

typedef struct stw_found_list {
    stw_plan *plan;
    uint32_t n;
    stw_found list[STW_MAX_FIXES];
} stw_found_list;

/** Append a fix, with stw_fix_keep_step and a note on changed tokens. Does nothing if the list is
 * full or there are too many changes.
 * @param found its reach and amount; the function fills the rest */
STW_MUST_USE stw_status stw_fix_note(stw_found_list *to, const stw_change *changes, uint32_t n,
                                     const char *why, stw_trial trial, const stw_found *found,
                                     stw_error *err);
/** Sort the fixes, the smallest first. Of fixes with the same keys only the first stays. */
void stw_fixes_sort(stw_found_list *all);

/* ---- knobs (fix_knobs.c) ---- */

/* The value that a knob sets at step i. */
typedef enum stw_knob_kind {
    STW_KNOB_WORD,   /* `word` */
    STW_KNOB_NODES,  /* the i-th multiple of `step` above `from`; doublings are tried first */
    STW_KNOB_DOWN,   /* the i-th multiple of `step` below `from` */
    STW_KNOB_PART,   /* the i-th number below `from` that divides `whole` */
    STW_KNOB_GIB,    /* the i-th multiple of `step` above `from`, in GiB */
    STW_KNOB_DOUBLE, /* from x 2^i */
    STW_KNOB_SHARE,  /* from - i twentieths */
    STW_KNOB_PARK,   /* the first i of `words` */
    STW_KNOB_LAYOUT  /* a layout of ranks (fix_layout.c) */
} stw_knob_kind;

/* Layouts of ranks on some nodes, the plainest first. */
typedef struct stw_rank_layouts {
    stw_pool *pool;
    stw_cluster cluster;
    stw_run_spec run;
    stw_layout_list list; /* n 0: none */
} stw_rank_layouts;

typedef struct stw_knob {
    const char *key, *why;
    stw_knob_kind kind;
    stw_reach reach;
    const char *word;
    const char *with;         /* "KEY=VALUE ..." set together with it, unless another change sets
                                 them */
    const char *const *words; /* for PARK, in order: keys that become host */
    const stw_rank_layouts *layouts;
    const uint32_t *chosen; /* [n] indices of layouts */
    uint64_t from, step, n; /* steps 1 to n */
    uint64_t whole;
    uint64_t last;      /* last step that the specs admit; 0: none, or not known yet */
    bool alone;         /* never part of a combination */
    bool follows_nodes; /* for DOUBLE: with more nodes the specs admit more steps */
    bool enough, safe;  /* it fits by itself, perhaps at risk; it fits without risk */
    bool worse;         /* by itself it increases the largest excess */
    bool tried;         /* the specs admitted it, alone or with others */
} stw_knob;

#define STW_MAX_KNOBS 48
typedef struct stw_knobs {
    uint32_t n;
    stw_knob list[STW_MAX_KNOBS];
} stw_knobs;

/* A combination of knobs, each once and at one step. */
typedef struct stw_mix {
    uint32_t n;
    stw_knob *knobs[STW_MAX_KNOBS];
    uint64_t steps[STW_MAX_KNOBS];
} stw_mix;

#define STW_MAX_MIX_CHANGES 96
/** List the changes of a mix, every key once.
 * @param out room for STW_MAX_MIX_CHANGES
 * @return number of changes */
uint32_t stw_mix_changes(const stw_plan *plan, const stw_mix *mix, stw_change *out);
/** Move the last knob of a mix to a further step. @return false: there is none */
bool stw_mix_go_on(stw_mix *mix);
/** Returns the distance of a mix from the run. */
double stw_mix_amount(const stw_mix *mix);
/** List the knobs of a plan that does not fit or is at risk, by reach: settings that restrict the
 * planner, unused memory, other ways to compute the same, then changes of the run's quality, then
 * more machines. */
void stw_knobs_of(const stw_plan *plan, stw_knobs *out);
/** Make a knob that raises the limit of a resource in steps of GiB; false: the limit has no key. */
bool stw_knob_of_limit(const stw_plan *plan, const char *resource, stw_knob *out);

/* ---- layouts of ranks (fix_layout.c) ---- */

/** True if the engine has layouts with tensor and pipeline parallelism. */
bool stw_fix_has_layouts(const stw_plan *plan);
/** Make a knob of all layouts on `nodes` nodes; it may have none. */
STW_MUST_USE stw_status stw_knob_of_layouts(const stw_plan *plan, uint64_t nodes, stw_knob *out,
                                            stw_error *err);
/** Make a knob of the layouts that change exactly these ways (bits): 1 tensor, 2 pipeline, 4 expert
 * parallelism. */
STW_MUST_USE stw_status stw_knob_of_ways(const stw_plan *plan, const stw_rank_layouts *layouts,
                                         unsigned ways, stw_knob *out, stw_error *err);
/** Return the settings of step i, "parallel.tp=2 parallel.ep=8", and its distance from the run. */
const char *stw_layout_step_words(const stw_knob *k, uint64_t i);
double stw_layout_step_amount(const stw_knob *k, uint64_t i);

/* ---- the search (fixes.c) ---- */

typedef struct stw_fix_search {
    stw_plan *plan;
    stw_trials *trials;
    stw_knobs knobs;
    stw_found_list found;
    bool layouts; /* layouts of ranks are knobs */
} stw_fix_search;

#endif
