/* SPDX-License-Identifier: Apache-2.0 */
/* The choices that were compared, each with its seconds (simulated if there is a simulator) and its
 * plainness. Work is limited by operations of programs, not by the clock, so that the same input
 * gives the same plan on every machine, except when the deadline passes. */
#ifndef STW_PLANNER_CANDIDATES_H
#define STW_PLANNER_CANDIDATES_H

#include "planner/simulate.h"
#include "planner/solvers.h"

/** How much a person must know to understand a plan; less is plainer. */
typedef struct stw_plainness {
    uint32_t level;    /* 0: all on the GPU and kept; 1: recompute; 2: offload; 3: NVMe */
    uint32_t policies; /* places of state plus activation policies of each group */
} stw_plainness;

typedef struct stw_candidate {
    stw_choice choice;
    stw_evaluation rows;
    double seconds; /* one iteration plus 1/STW_LOAD_SPREAD of the load */
    stw_plainness plain;
    uint64_t forward_bytes; /* GPU bytes of the walk in forward and backward; 0: not simulated */
    double step_s;          /* simulated */
    bool excluded;          /* judged, and may not be chosen */
} stw_candidate;

typedef struct stw_candidates {
    stw_cost *cost;
    stw_bars bars;                 /* bars of all candidates */
    stw_planner_simulate simulate; /* NULL: by rows */
    stw_pool *pool;
    stw_candidate *list;
    uint32_t n, fastest;
    size_t room;
    stw_choice solved;                        /* solution of the last integer program */
    uint64_t work_left;                       /* operations that may still be built or simulated */
    uint64_t over_row_bytes, over_walk_bytes; /* see stw_candidates_add; of the last choice that did
                                                 not fit */
    double end_s;
} stw_candidates;

#define STW_NO_CANDIDATE UINT32_MAX

/** Returns a negative number if `a` is plainer than `b`, 0 if equal, else a positive number. */
int stw_plainness_compare(const stw_plainness *a, const stw_plainness *b);
/** True if work and time are left. */
bool stw_candidates_go_on(const stw_candidates *all);
/** Evaluate a choice by the rows. */
void stw_candidates_evaluate(stw_candidates *all, const stw_choice *choice, stw_evaluation *out);
/** Add a choice to the comparison. If rows have bytes to spare, its walk must fit, too; if it does
 * not, over_row_bytes and over_walk_bytes give the bytes of rows and walk in forward and backward.
 * @param index out, may be NULL: the candidate; STW_NO_CANDIDATE if it does not fit, is barred, or
 * no work is left */
STW_MUST_USE stw_status stw_candidates_add(stw_candidates *all, const stw_choice *choice,
                                           uint32_t *index, stw_error *err);
/** Solve the problem and add the solution; outcome LIMIT if no work is left.
 * @param index as above */
STW_MUST_USE stw_status stw_candidates_solve(stw_candidates *all, const stw_ilp_options *options,
                                             uint32_t *index, stw_ilp_result *result,
                                             stw_error *err);
/** The same as a rough search, under bars. @param most_s limit on the rows' seconds; 0: any */
STW_MUST_USE stw_status stw_candidates_solve_quickly(stw_candidates *all, const stw_bars *bars,
                                                     double most_s, uint32_t *index,
                                                     stw_error *err);
/** Walk a choice's program for its GPU bytes in forward and backward. */
STW_MUST_USE stw_status stw_candidates_walk(stw_candidates *all, const stw_choice *choice,
                                            uint64_t *forward_bytes, stw_error *err);
/** Returns the plainest candidate within STW_PLAIN_SLACK of the fastest; of equally plain ones the
 * fastest. */
uint32_t stw_candidates_choose(const stw_candidates *all);

/** Exclude a candidate from the choice. It must not be the first one. */
void stw_candidates_exclude(stw_candidates *all, uint32_t index);

/** Search for candidates: the best choices of the problem, variants with other numbers of offloaded
 * and kept blocks, and the results of descents from the fastest ones. (search.c) */
STW_MUST_USE stw_status stw_candidates_search(stw_candidates *all, const stw_choice *first,
                                              stw_error *err);
/** The same in short: the known choice, one program and one descent.
 * @param most_s limit on the rows' seconds; 0: any */
STW_MUST_USE stw_status stw_candidates_search_briefly(stw_candidates *all, const stw_choice *known,
                                                      double most_s, stw_error *err);
/** Add choices with other numbers of offloaded and kept blocks. (search.c) */
STW_MUST_USE stw_status stw_candidates_try_counts(stw_candidates *all, stw_error *err);
/** Starting from the fastest candidates, add neighbours while one of them is faster. (search.c) */
STW_MUST_USE stw_status stw_candidates_descend(stw_candidates *all, stw_error *err);
/** Search again with the bytes by which the rows of the fastest candidate exceed its walk.
 * (spare.c)
 * @param result of the problem with these spare bytes; outcome LIMIT: there are none, and nothing
 * was added */
STW_MUST_USE stw_status stw_candidates_use_spare(stw_candidates *all, double gap,
                                                 stw_ilp_result *result, stw_error *err);
/** If nothing fits by the rows: search with the bytes by which the rows of the least-over choice
 * exceed its walk. (spare.c)
 * @param options of the integer program
 * @param choice in: the least-over choice; out: a choice that fits, if the result is optimal or
 * feasible
 * @param result LIMIT: the time was over before an answer */
STW_MUST_USE stw_status stw_candidates_fit_spare(stw_candidates *all,
                                                 const stw_ilp_options *options, stw_choice *choice,
                                                 stw_ilp_result *result, stw_error *err);
/** Write the differences of a choice from `here`: "81.2% resident, 18.8% stream", "9 blocks
 * offloaded". (tell.c) */
void stw_choice_tell_more(const stw_cost *cost, const stw_choice *choice, const stw_choice *here,
                          char *out, size_t out_size);

#endif
