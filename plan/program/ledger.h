/* SPDX-License-Identifier: Apache-2.0 */
/* The host ledger: what a node's memory holds at the worst moment of a phase, line by line, and
 * where each line comes from. Read off programs, like every byte count: an alloc says why it is
 * there (stw_op.from_what), or its component does. Pure; any thread. */
#ifndef STW_PLAN_LEDGER_H
#define STW_PLAN_LEDGER_H

#include "plan/program/program.h"

typedef struct stw_ledger_line {
    stw_component component;
    const char
        *from; /* a key, or the code that makes it; "ROLE: " before what is not the trainer's */
    bool page_locked;
    uint64_t bytes;
} stw_ledger_line;

typedef struct stw_ledger {
    uint32_t n;
    size_t room;
    stw_ledger_line *lines; /* in the order in which they first appear */
} stw_ledger;

/** Add the host bytes of one rank at its peak of a phase, `ranks` times. Lines of the same kind are
 * one. @param pool owns the lines of `out` */
STW_MUST_USE stw_status stw_ledger_add(const stw_program *program, stw_phase phase, uint64_t ranks,
                                       stw_pool *pool, stw_ledger *out, stw_error *err);
/** Bytes of a component that `total` has beyond the lines, as a line of its own: those of other
 * roles on the node. */
STW_MUST_USE stw_status stw_ledger_add_rest(const stw_peak *total, stw_pool *pool, stw_ledger *out,
                                            stw_error *err);
/** The lines of a kind of node in a phase. @param programs [n_kinds] */
STW_MUST_USE stw_status stw_ledger_of_node(const stw_job *job, const stw_program *const *programs,
                                           uint32_t node_kind, stw_phase phase, stw_pool *pool,
                                           stw_ledger *out, stw_error *err);

#endif
