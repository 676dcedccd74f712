/* SPDX-License-Identifier: Apache-2.0 */
/* Sections that the short summary and the capacity report of a plan share. Each appends to `out`;
 * formats are terminal and Markdown. */
#ifndef STW_REPORTS_PLAN_SECTIONS_H
#define STW_REPORTS_PLAN_SECTIONS_H

#include "reports/facts.h"
#include "reports/table.h"

typedef struct stw_section {
    const stw_plan *plan;
    const stw_plan_facts *facts;
    stw_format format;
    stw_pool *pool; /* for tables */
    stw_text *out;
} stw_section;

/** What fits where, how long an iteration takes and what it costs: the answer in three sentences.
 */
void stw_section_verdict(const stw_section *s);
/** Where the state lies, who updates it, and what it takes in each tier. */
void stw_section_decisions(const stw_section *s);
/** What happens to the activations of each group of blocks. */
void stw_section_activations(const stw_section *s);
/** Ring and load method, as sentences. */
void stw_section_ring(const stw_section *s);
/** How good the plan is known to be, and what not planning would have cost. */
void stw_section_solver(const stw_section *s);
/** Rows that are over, by how much, and changes that fit. Nothing where the plan fits. */
void stw_section_infeasible(const stw_section *s);

#endif
