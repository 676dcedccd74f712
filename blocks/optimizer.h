/* SPDX-License-Identifier: Apache-2.0 */
/* What an optimizer keeps of each parameter, and what it does to a matrix in a step: rows of data,
 * one for each optimizer.kind (optimizer.c). Engines say which parameters are matrices, and turn
 * rows into regions, tensors and work. Pure functions and constant data; any thread. */
#ifndef STW_BLOCKS_OPTIMIZER_H
#define STW_BLOCKS_OPTIMIZER_H

#include "plan/program/tensors.h"

/** Bits of states: components beside the main parameters. */
#define STW_STATE(component) (1u << STW_COMPONENT_##component)

struct stw_update_step; /* optimizer.c */

/** For parameters of one class. */
typedef struct stw_optimizer_rule {
    unsigned states; /* STW_STATE of each that is kept for every element */
    /* What is done to one matrix after the other; NULL: AdamW's kernels, which the engine knows. */
    const struct stw_update_step *steps;
} stw_optimizer_rule;

typedef struct stw_optimizer {
    stw_optimizer_rule matrices; /* weights with two dimensions, without embedding and head */
    stw_optimizer_rule others;
} stw_optimizer;

const stw_optimizer *stw_optimizer_of(const stw_run_spec *run);
/** Has this class a component? All have those that are no states. */
static inline bool stw_optimizer_keeps(const stw_run_spec *run, bool matrix,
                                       stw_component component) {
    const stw_optimizer *o = stw_optimizer_of(run);
    const unsigned states = (matrix ? &o->matrices : &o->others)->states;
    const bool is_state =
        component == STW_COMPONENT_EXP_AVG || component == STW_COMPONENT_EXP_AVG_SQ;
    return !is_state || (states & 1u << component) != 0;
}
/** Are matrices kept otherwise than the rest? */
static inline bool stw_optimizer_divides(const stw_run_spec *run) {
    const stw_optimizer *o = stw_optimizer_of(run);
    return o->matrices.states != o->others.states;
}

/** How the ranks that cut a matrix find the orthogonal one. */
typedef enum stw_update_cut {
    STW_UPDATE_ALONE,    /* each works on what it holds */
    STW_UPDATE_GATHERED, /* all work on the whole */
    STW_UPDATE_SUMMED    /* each works on what it holds, and products are summed */
} stw_update_cut;

enum { STW_MOST_PARTS = 3 };

/** A matrix that is updated, on one rank. */
typedef struct stw_update_matrix {
    uint64_t columns;               /* of each part */
    uint64_t parts[STW_MOST_PARTS]; /* rows of matrices that are orthogonalised apart; 0: none */
    stw_update_cut cut;
    uint32_t ways;    /* ranks that cut it, with GATHERED and SUMMED; else 1 */
    bool by_columns;  /* they cut columns, else rows */
    bool nesterov;    /* the update is the gradient plus the momentum */
    uint32_t repeats; /* of the iteration */
} stw_update_matrix;

/** What a step of a matrix takes. */
typedef struct stw_update_need {
    uint64_t peak_bytes; /* most temporary bytes, without those that the matrix before left */
    uint64_t left_bytes; /* until the next matrix is done */
    uint64_t gathered_bytes, summed_bytes; /* results of collectives */
    uint32_t gathers, sums;                /* collectives */
    uint32_t calls;                        /* kernels that are launched */
} stw_update_need;

/** @param work the products and passes are added; NULL: not asked for */
stw_update_need stw_update_of(const struct stw_update_step *steps, const stw_update_matrix *matrix,
                              stw_work *work);
/** Take and drop the tensors of a step. @param left in, out: what the matrix before leaves */
void stw_update_tensors(stw_builder *b, const struct stw_update_step *steps,
                        const stw_update_matrix *matrix, uint32_t *left);

#endif
