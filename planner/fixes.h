/* SPDX-License-Identifier: Apache-2.0 */
/* What the search for fixes is made of: changes of one key, planning with some of them, and knobs,
 * each of which is one change that grows in steps. Internal to the planner. */
#ifndef STW_PLANNER_FIXES_H
#define STW_PLANNER_FIXES_H

#include "plan/files/plan.h"
#include "planner/resolve.h"

typedef struct stw_change {
    char key[64], value[32];
} stw_change;

/* What planning with changes says. */
typedef enum stw_trial {
    STW_TRIAL_REFUSED, /* the changed specs contradict themselves */
    STW_TRIAL_UNFIT,
    STW_TRIAL_AT_RISK, /* it fits, with the verdict at_risk */
    STW_TRIAL_FITS
} stw_trial;

/* ---- planning with changes (fix_trial.c) ---- */

/* What a search may still spend. Its answer depends on the number of trials, not on how fast a
 * machine makes them, unless the time limit of the whole plan passes. */
typedef struct stw_fix_budget {
    uint32_t trials;
    double end_s;
    bool late; /* out: the time was over before the trials were */
} stw_fix_budget;

/** Plan with these changes; UNFIT, without a look, where the budget is spent. Specs that contradict
 * themselves cost nothing. */
STW_MUST_USE stw_status stw_fix_try(const stw_plan *plan, stw_fix_budget *budget,
                                    const stw_change *changes, uint32_t n, stw_trial *out,
                                    stw_error *err);
/** Are the changed specs a job at all? This plans nothing. */
STW_MUST_USE stw_status stw_fix_admits(const stw_plan *plan, const stw_change *changes, uint32_t n,
                                       bool *out, stw_error *err);

/** Set batch.grad_accumulation among the changes, so that an optimizer step has the tokens that it
 * has in the plan (sequences, where a change is of their length). Trials do so by themselves.
 * @param changes room for one more @param tokens out, of a step; 0: those of the plan */
STW_MUST_USE stw_status stw_fix_keep_step(const stw_plan *plan, stw_change *changes, uint32_t *n,
                                          uint64_t *tokens, stw_error *err);
/** Set fix->at_risk by the plan that a command makes with its changes; as it was where the solver
 * finds none in time. */
STW_MUST_USE stw_status stw_fix_verify(const stw_plan *plan, stw_fix *fix,
                                       const stw_fix_judge *judge, double time_limit_s,
                                       stw_error *err);

/* ---- what was found (fix_order.c) ---- */

/** Append a fix, with stw_fix_keep_step and what it says of the tokens; nothing where the list is
 * full. @param trial what planning it said */
STW_MUST_USE stw_status stw_fix_note(stw_plan *plan, const stw_change *changes, uint32_t n,
                                     const char *why, stw_trial trial, stw_error *err);
/** Those with headroom first, cheapest first; stable. */
void stw_fixes_sort(stw_plan *plan);

/* ---- layouts of ranks (fix_layout.c) ---- */

/** Note layouts of ranks that fit, with an engine that cuts layers and stages.
 * @param all its time is that of this search, its trials are not
 * @param tried out, has the engine such layouts? */
STW_MUST_USE stw_status stw_fix_layouts(stw_plan *plan, const stw_fix_budget *all, bool *tried,
                                        stw_error *err);

/* ---- knobs (fix_knobs.c) ---- */

/* What step i of a knob sets: from + i x step, from x 2^i, the i-th number below from that divides
 * whole, a word, from - i twentieths, or as many of the words that park state. */
typedef enum stw_knob_kind {
    STW_KNOB_WORD,
    STW_KNOB_UP,
    STW_KNOB_DOWN,
    STW_KNOB_PART,
    STW_KNOB_GIB,
    STW_KNOB_DOUBLE,
    STW_KNOB_SHARE,
    STW_KNOB_PARK
} stw_knob_kind;

typedef struct stw_knob {
    const char *key, *why;
    stw_knob_kind kind;
    const char *word;
    const char *const *words; /* of PARK, in their order: keys that become host */
    uint64_t from, step, n;   /* steps 1 to n */
    uint64_t whole;
    uint64_t last;         /* of the steps that the specs admit; 0: none, or not known yet */
    bool single, in_pairs; /* where it is tried; neither: both */
    bool needs_nodes;      /* beside more nodes all its steps may be admitted */
    bool enough;           /* by itself */
    uint64_t fewest;       /* steps that are enough, where it is */
    bool tried;            /* the specs admitted it, alone or in a pair */
} stw_knob;

#define STW_MAX_KNOBS 40
typedef struct stw_knobs {
    uint32_t n;
    stw_knob list[STW_MAX_KNOBS];
} stw_knobs;

#define STW_MAX_KNOB_CHANGES 4
/** What a step changes. @param out room for STW_MAX_KNOB_CHANGES @return how many */
uint32_t stw_knob_changes(const stw_knob *knob, uint64_t step, stw_change *out);
/** The knobs of a plan that does not fit, cheapest first: choices that the spec takes from the
 * planner, unused room, other ways to compute the same, then what costs quality of the run, then
 * what costs machines. */
void stw_knobs_of(const stw_plan *plan, stw_knobs *out);

#endif
