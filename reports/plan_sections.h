/* SPDX-License-Identifier: Apache-2.0 */
/* Sections that the short summary and the capacity report of a plan share. Each function appends
 * one section to `out`, for the terminal or as Markdown. The caller owns everything in stw_section.
 */
#ifndef STW_REPORTS_PLAN_SECTIONS_H
#define STW_REPORTS_PLAN_SECTIONS_H

#include "reports/facts.h"
#include "reports/remarks.h"
#include "reports/table.h"

typedef struct stw_section {
    const stw_plan *plan;
    const stw_plan_facts *facts;
    const stw_remarks *remarks;
    stw_format format;
    stw_pool *pool; /* for tables */
    stw_text *out;
} stw_section;

/** "4 x p5.48xlarge", as --cluster takes it. */
void stw_section_cluster_name(const stw_cluster *cluster, char *out, size_t out_size);
/** "4 nodes with 8 x NVIDIA H200 each". */
void stw_section_machine(const stw_cluster *cluster, char *out, size_t out_size);
/** Verdict, peaks of GPU and host memory, iteration time and throughput. */
void stw_section_verdict(const stw_section *s);
/** Placement of the state: tiers, update kind, bytes per tier. */
void stw_section_decisions(const stw_section *s);
/** Activation policy of each tensor group: keep, recompute or offload. */
void stw_section_activations(const stw_section *s);
/** Roles, their nodes, and what each holds at the peaks. Appends nothing if there is the trainer
 * alone. (plan_roles.c) */
void stw_section_roles(const stw_section *s);
/** Rings, prefetch and load method. */
void stw_section_ring(const stw_section *s);
/** Outcome and gap of the solver, and the cost of a greedy placement. */
void stw_section_solver(const stw_section *s);
/** What a search of layouts found. Appends nothing if there was none. (layouts.c) */
void stw_section_layouts(const stw_section *s);
/** Limits that cannot be kept together and changes that make the plan fit. Appends nothing if the
 * plan fits. */
void stw_section_infeasible(const stw_section *s);

/** Host memory of the fullest node: every line in every phase, and where it comes from. */
void stw_section_ledger(const stw_section *s);

/** Weight sync and checkpoint: bytes, files, copies, metadata. */
void stw_section_transfers(const stw_section *s);

#endif
