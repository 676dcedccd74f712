/* SPDX-License-Identifier: Apache-2.0 */
/* Choices that were compared: each with its seconds, by the simulator where there is one, and how
 * plain it is. Work is counted in operations of programs, never by the clock, so that the same
 * input gives the same plan everywhere; the deadline is the only exception. */
#ifndef STW_PLANNER_CANDIDATES_H
#define STW_PLANNER_CANDIDATES_H

#include "planner/simulate.h"
#include "planner/solvers.h"

/** What a person has to follow to understand a plan; less is plainer. */
typedef struct stw_plainness {
    uint32_t level;    /* 0: all on the GPU and kept; 1: recompute; 2: offload; 3: NVMe */
    uint32_t policies; /* places of state, and policies of each group's activations */
} stw_plainness;

typedef struct stw_candidate {
    stw_choice choice;
    stw_evaluation rows;
    double seconds; /* of one iteration, the load spread over STW_LOAD_SPREAD of them */
    stw_plainness plain;
    uint64_t forward_bytes; /* walked: of the GPU in forward and backward; 0: not simulated */
    double step_s;          /* simulated */
    bool excluded;          /* it was judged, and may not be taken */
} stw_candidate;

typedef struct stw_candidates {
    stw_cost *cost;
    stw_bars bars;                 /* of all of them */
    stw_planner_simulate simulate; /* NULL: by rows */
    stw_pool *pool;
    stw_candidate *list;
    uint32_t n, fastest;
    size_t room;
    stw_choice solved;                        /* of the last program */
    uint64_t work_left;                       /* in operations built or simulated */
    uint64_t over_row_bytes, over_walk_bytes; /* see stw_candidates_add; of the last such choice */
    double end_s;
} stw_candidates;

#define STW_NO_CANDIDATE UINT32_MAX

/** Negative, 0 or positive as `a` is plainer than, as plain as or less plain than `b`. */
int stw_plainness_compare(const stw_plainness *a, const stw_plainness *b);
/** Is there work and time left? */
bool stw_candidates_go_on(const stw_candidates *all);
/** By the rows. */
void stw_candidates_evaluate(stw_candidates *all, const stw_choice *choice, stw_evaluation *out);
/** Compare one more choice. Where rows have bytes to spare, its walk must fit as well; if it does
 * not, over_row_bytes and over_walk_bytes say what rows and walk need in forward and backward.
 * @param index out, may be NULL: the candidate, STW_NO_CANDIDATE where it does not fit, is barred,
 * or no work is left */
STW_MUST_USE stw_status stw_candidates_add(stw_candidates *all, const stw_choice *choice,
                                           uint32_t *index, stw_error *err);
/** Solve the problem and compare what is found; outcome LIMIT where no work is left.
 * @param index as above */
STW_MUST_USE stw_status stw_candidates_solve(stw_candidates *all, const stw_ilp_options *options,
                                             uint32_t *index, stw_ilp_result *result,
                                             stw_error *err);
/** The same roughly, under bars. @param most_s by the rows; 0: any */
STW_MUST_USE stw_status stw_candidates_solve_quickly(stw_candidates *all, const stw_bars *bars,
                                                     double most_s, uint32_t *index,
                                                     stw_error *err);
/** Bytes of the GPU in forward and backward, walked. */
STW_MUST_USE stw_status stw_candidates_walk(stw_candidates *all, const stw_choice *choice,
                                            uint64_t *forward_bytes, stw_error *err);
/** The plainest candidate within STW_PLAIN_SLACK of the fastest; of those alike the fastest. */
uint32_t stw_candidates_choose(const stw_candidates *all);

/** Take one out of what is chosen from: not the first one. */
void stw_candidates_exclude(stw_candidates *all, uint32_t index);

/** Fill the pool: the best choices of the problem, with other numbers of offloaded and kept blocks,
 * and what descents from the fastest of them find. (search.c) */
STW_MUST_USE stw_status stw_candidates_search(stw_candidates *all, const stw_choice *first,
                                              stw_error *err);
/** The same in short: what is known, one program and one descent. @param most_s by the rows; 0: any
 */
STW_MUST_USE stw_status stw_candidates_search_briefly(stw_candidates *all, const stw_choice *known,
                                                      double most_s, stw_error *err);
/** Other numbers of offloaded and of kept blocks. (search.c) */
STW_MUST_USE stw_status stw_candidates_try_counts(stw_candidates *all, stw_error *err);
/** From the fastest candidates on: neighbours, as long as one is faster. (search.c) */
STW_MUST_USE stw_status stw_candidates_descend(stw_candidates *all, stw_error *err);
/** Look for choices in the bytes by which the walk of the fastest candidate stays below its rows.
 * (spare.c) @param result of the problem whose rows now have bytes to spare; outcome LIMIT: they
 * have none, nothing was added */
STW_MUST_USE stw_status stw_candidates_use_spare(stw_candidates *all, double gap,
                                                 stw_ilp_result *result, stw_error *err);
/** Where nothing fits by the rows: does something fit in the bytes by which the walk of a choice
 * that is the least over stays below its rows? (spare.c) @param options of the integer program
 * @param choice in: the least over; out: what fits, if result is optimal or feasible; LIMIT: the
 * time was over before that was known */
STW_MUST_USE stw_status stw_candidates_fit_spare(stw_candidates *all,
                                                 const stw_ilp_options *options, stw_choice *choice,
                                                 stw_ilp_result *result, stw_error *err);
/** What a choice has that `here` has not, in words: "81.2% resident, 18.8% stream", "9 blocks
 * offloaded". (tell.c) */
void stw_choice_tell_more(const stw_cost *cost, const stw_choice *choice, const stw_choice *here,
                          char *out, size_t out_size);

#endif
