/* SPDX-License-Identifier: Apache-2.0 */
/* What the search for fixes is made of: changes of keys, trials of some of them, and knobs, each of
 * which is one change that grows in steps. Internal to the planner. */
#ifndef STW_PLANNER_FIXES_H
#define STW_PLANNER_FIXES_H

#include "plan/files/plan.h"
#include "planner/layouts_list.h"
#include "planner/resolve.h"

typedef struct stw_change {
    char key[64], value[64];
} stw_change;

/* What planning with changes says. */
typedef enum stw_trial {
    STW_TRIAL_REFUSED, /* the changed specs contradict themselves */
    STW_TRIAL_UNFIT,
    STW_TRIAL_AT_RISK, /* it fits, with the verdict at_risk */
    STW_TRIAL_FITS
} stw_trial;

/* ---- planning with changes (fix_trial.c) ---- */

typedef struct stw_tried {
    stw_trial is;
    double over_share; /* of the limit that is exceeded most, about; INFINITY: not planned */
} stw_tried;

typedef struct stw_trial_row {
    uint64_t hash; /* of the changes */
    stw_tried found;
} stw_trial_row;

/* All trials of a plan, and what its searches may still spend. Their answer depends on the
 * operations of the programs that they walk, not on how fast a machine does that, unless the time
 * limit of the whole plan passes. */
#define STW_MAX_TRIALS 512
typedef struct stw_trials {
    const stw_plan *plan;
    uint64_t work_left; /* operations */
    double end_s;
    bool late; /* out: the time was over before the work was */
    uint32_t n;
    stw_trial_row list[STW_MAX_TRIALS];
} stw_trials;

/** Plan with these changes, unless that was done before; UNFIT, without a look, where nothing is
 * left to spend. Specs that contradict themselves cost nothing. */
STW_MUST_USE stw_status stw_fix_try(stw_trials *trials, const stw_change *changes, uint32_t n,
                                    stw_tried *out, stw_error *err);
/** Are the changed specs a job at all? This plans nothing. */
STW_MUST_USE stw_status stw_fix_admits(const stw_plan *plan, const stw_change *changes, uint32_t n,
                                       bool *out, stw_error *err);
/** Ranks of the trainer on so many nodes; 0: they have no room for the roles. */
uint64_t stw_fix_ranks(const stw_run_spec *run, const stw_cluster *cluster, uint32_t nodes);
/** Set batch.grad_accumulation among the changes, so that an optimizer step has the tokens that it
 * has in the plan (sequences, where a change is of their length). Trials do so by themselves.
 * @param changes room for one more @param tokens out, of a step; 0: those of the plan */
STW_MUST_USE stw_status stw_fix_keep_step(const stw_plan *plan, stw_change *changes, uint32_t *n,
                                          uint64_t *tokens, stw_error *err);
/** Set verdict and seconds of a fix by the plan that a command makes with its changes; they stay
 * where there is no time for one. @param out what the plan says; REFUSED: there is none */
STW_MUST_USE stw_status stw_fix_verify(stw_trials *trials, stw_fix *fix, const stw_fix_judge *judge,
                                       stw_trial *out, stw_error *err);

/* ---- what was found (fix_order.c) ---- */

/** How far a fix reaches into a run, from the least. */
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
    double amount; /* how far its values are from those of the run: doublings, 1 for each word */
    const struct stw_mix *mix; /* that it is of; NULL: not known */
} stw_found;

typedef struct stw_found_list {
    stw_plan *plan;
    uint32_t n;
    stw_found list[STW_MAX_FIXES];
} stw_found_list;

/** Append a fix, with stw_fix_keep_step and what it says of the tokens; nothing where the list is
 * full or the changes are too many. @param found its reach and amount; the rest is made here */
STW_MUST_USE stw_status stw_fix_note(stw_found_list *to, const stw_change *changes, uint32_t n,
                                     const char *why, stw_trial trial, const stw_found *found,
                                     stw_error *err);
/** The smallest first; of those that differ in the values of their keys alone the first stays. */
void stw_fixes_sort(stw_found_list *all);

/* ---- knobs (fix_knobs.c) ---- */

/* What step i of a knob sets: a word, from + i x step, the i-th number below from that divides
 * whole, from x 2^i, from - i twentieths, or as many of the words that park state. */
typedef enum stw_knob_kind {
    STW_KNOB_WORD,
    STW_KNOB_NODES, /* searched by doublings first */
    STW_KNOB_DOWN,
    STW_KNOB_PART,
    STW_KNOB_GIB,
    STW_KNOB_DOUBLE,
    STW_KNOB_SHARE,
    STW_KNOB_PARK,
    STW_KNOB_LAYOUT /* of ranks (fix_layout.c) */
} stw_knob_kind;

/* Layouts of ranks on some nodes, the narrowest cuts first. */
typedef struct stw_rank_layouts {
    stw_pool *pool;
    stw_cluster cluster;
    stw_run_spec run;
    stw_layout_list list; /* n 0: there are none */
} stw_rank_layouts;

typedef struct stw_knob {
    const char *key, *why;
    stw_knob_kind kind;
    stw_reach reach;
    const char *word;
    const char *with;         /* "KEY=VALUE ..." that go with it, unless another change sets them */
    const char *const *words; /* of PARK, in their order: keys that become host */
    const stw_rank_layouts *layouts;
    const uint32_t *chosen; /* [n] of the layouts */
    uint64_t from, step, n; /* steps 1 to n */
    uint64_t whole;
    uint64_t last;      /* of the steps that the specs admit; 0: none, or not known yet */
    bool alone;         /* is never part of a combination */
    bool follows_nodes; /* of DOUBLE: with more nodes the specs admit more steps */
    bool enough, safe;  /* by itself, if need be at risk; and not at risk */
    bool worse;         /* by itself it takes more of the limit that is exceeded most */
    bool tried;         /* the specs admitted it, alone or with others */
} stw_knob;

#define STW_MAX_KNOBS 48
typedef struct stw_knobs {
    uint32_t n;
    stw_knob list[STW_MAX_KNOBS];
} stw_knobs;

/* Knobs at steps of theirs, each once. */
typedef struct stw_mix {
    uint32_t n;
    stw_knob *knobs[STW_MAX_KNOBS];
    uint64_t steps[STW_MAX_KNOBS];
} stw_mix;

#define STW_MAX_MIX_CHANGES 96
/** What a mix changes, every key once. @param out room for STW_MAX_MIX_CHANGES @return how many */
uint32_t stw_mix_changes(const stw_plan *plan, const stw_mix *mix, stw_change *out);
/** Set the last knob of a mix to a value that asks for less. @return false: there is none */
bool stw_mix_go_on(stw_mix *mix);
/** How far the steps of a mix are from the run. */
double stw_mix_amount(const stw_mix *mix);
/** The knobs of a plan that does not fit, by their reach: choices that the spec takes from the
 * planner, unused room, other ways to compute the same, then what costs quality of the run, then
 * what costs machines. */
void stw_knobs_of(const stw_plan *plan, stw_knobs *out);
/** A knob that raises the limit of a resource in GiB; false: there is no such key. */
bool stw_knob_of_limit(const stw_plan *plan, const char *resource, stw_knob *out);

/* ---- layouts of ranks (fix_layout.c) ---- */

/** Does the engine cut layers and stages? */
bool stw_fix_has_layouts(const stw_plan *plan);
/** A knob of all layouts on `nodes`, of which it may have none. */
STW_MUST_USE stw_status stw_knob_of_layouts(const stw_plan *plan, uint64_t nodes, stw_knob *out,
                                            stw_error *err);
/** A knob of those that turn just these ways: 1 tensor, 2 pipeline, 4 expert parallelism. */
STW_MUST_USE stw_status stw_knob_of_ways(const stw_plan *plan, const stw_rank_layouts *layouts,
                                         unsigned ways, stw_knob *out, stw_error *err);
/** "parallel.tp=2 parallel.ep=8" and how far it is from the run, of step i. */
const char *stw_layout_step_words(const stw_knob *k, uint64_t i);
double stw_layout_step_amount(const stw_knob *k, uint64_t i);

/* ---- the search (fixes.c) ---- */

typedef struct stw_fix_search {
    stw_plan *plan;
    stw_trials *trials;
    stw_knobs knobs;
    stw_found_list found;
    bool layouts; /* of ranks are knobs */
} stw_fix_search;

#endif
