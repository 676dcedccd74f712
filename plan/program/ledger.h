/* SPDX-License-Identifier: Apache-2.0 */
/* The host ledger: the lines that add up to a node's host memory at the peak of a phase, each with
 * its reason. Like every byte count it is read off programs: an alloc states its reason
 * (stw_op.from_what), or its component implies it. Pure; any thread. */
#ifndef STW_PLAN_LEDGER_H
#define STW_PLAN_LEDGER_H

#include "plan/program/program.h"

typedef struct stw_ledger_line {
    stw_component component;
    const char
        *from; /* a key, or the code that allocates; starts with "ROLE: " if not the trainer's */
    bool page_locked;
    uint64_t bytes;
} stw_ledger_line;

typedef struct stw_ledger {
    uint32_t n;
    size_t room;
    stw_ledger_line *lines; /* in the order of first appearance */
} stw_ledger;

/** Add `ranks` times the host bytes of one rank at its peak of a phase. Equal lines are merged.
 * @param pool owns the lines of `out` */
STW_MUST_USE stw_status stw_ledger_add(const stw_program *program, stw_phase phase, uint64_t ranks,
                                       stw_pool *pool, stw_ledger *out, stw_error *err);
/** Add a line for the bytes that each component has in `total` beyond the lines: other roles on the
 * node hold them. */
STW_MUST_USE stw_status stw_ledger_add_rest(const stw_peak *total, stw_pool *pool, stw_ledger *out,
                                            stw_error *err);
/** Make the lines of a kind of node in a phase. @param programs [n_kinds] */
STW_MUST_USE stw_status stw_ledger_of_node(const stw_job *job, const stw_program *const *programs,
                                           uint32_t node_kind, stw_phase phase, stw_pool *pool,
                                           stw_ledger *out, stw_error *err);

#endif
