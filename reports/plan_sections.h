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
    bool brief;           /* for a screen of 25 lines */
    const char *pictures; /* of Markdown: the begin of the links to its SVG files; or NULL */
} stw_section;

/** "4 x p5.48xlarge", as --cluster takes it. */
void stw_section_cluster_name(const stw_cluster *cluster, char *out, size_t out_size);
/** "4 nodes with 8 x NVIDIA H200 each". */
void stw_section_machine(const stw_cluster *cluster, char *out, size_t out_size);
/** The verdict in one sentence, with what stays free or what is over. (plan_top.c) */
void stw_section_answer(const stw_section *s);
/** Peaks and seconds, one row for each phase: the worst GPU, the worst node. (plan_top.c) */
void stw_section_phases(const stw_section *s);
/** Phases of which this build executes nothing. (plan_top.c) */
void stw_section_unexecuted(const stw_section *s);
/** Bars of GPU, host and NVMe against their limits. (plan_top.c) */
void stw_section_bars(const stw_section *s);
/** Links to the pictures of a Markdown report. (plan_top.c) */
void stw_section_pictures(const stw_section *s);
/** What fills the GPU at its peak, and the host where that is more than half full. (plan_top.c) */
void stw_section_contents(const stw_section *s);
/** The answer, what binds, what to change and what is assumed, with headings. (plan_summary.c)
 * @param placement also where everything is, which tables of the full report say */
void stw_section_summary(const stw_section *s, bool placement);
/** Verdict, peaks of GPU and host memory, iteration time and throughput: the parts that follow, in
 * their order, and what to change. */
void stw_section_verdict(const stw_section *s);
/** "MODEL fits on 4 nodes with 8 x NVIDIA H200 each." */
void stw_section_headline(const stw_section *s);
/** Why torch's AdamW does not do what the plan streams; nothing where it does not matter. */
void stw_section_streamed(const stw_section *s);
/** Peaks of GPU, host and NVMe, one line each. */
void stw_section_uses(const stw_section *s);
/** Limits that are exceeded, and by how much. */
void stw_section_excesses(const stw_section *s);
/** Why a plan that fits is at risk. */
void stw_section_risks(const stw_section *s);
/** Seconds of an iteration, and what they leave out. Nothing where they are not known. */
void stw_section_iteration(const stw_section *s);
/** Tokens per second, MFU (reports/plan_flops.h), GPU-hours, money. */
void stw_section_spent(const stw_section *s);
/** Both: seconds of an iteration, tokens per second, MFU, GPU-hours, money. */
void stw_section_costs(const stw_section *s);
/** What the longest phase waits for. */
void stw_section_bottleneck(const stw_section *s);
/** The threads that are assumed of a step on the CPU, where it takes a notable share. */
void stw_section_threads(const stw_section *s);
/** Faster plans that were passed over. @param by_key those that a key of the run rules out */
void stw_section_alternatives(const stw_section *s, bool by_key);
/** Keys that the planner set, and what it saves. */
void stw_section_turned(const stw_section *s);
/** Settings with which the plan would be faster. */
void stw_section_turns(const stw_section *s);
/** Remarks on seconds, or the others. */
void stw_section_remarks(const stw_section *s, bool of_time);
/** State that leaves the GPU between the phases that use it; nothing if there is none. */
void stw_section_parked(const stw_section *s);
/** Changes as options of a command line: --set nodes=2 --set "node.host.limit=141 GiB" */
void stw_fix_options(const stw_fix_change *changes, uint32_t n_changes, char *out, size_t out_size);
/** Why a fix helps, and the simulated seconds where these are known. */
void stw_fix_effect(const stw_fix *fix, char *out, size_t out_size);
/** Does a limit of the cluster have to be above what its nodes have? */
bool stw_binding_is_elsewhere(const stw_plan *plan, const stw_binding *binding);
/** Placement of the state: tiers, update kind, bytes per tier. */
void stw_section_decisions(const stw_section *s);
/** Activation policy of each tensor group: keep, recompute or offload. */
void stw_section_activations(const stw_section *s);
/** Roles, their nodes, and what each holds at the peaks. Appends nothing if there is the trainer
 * alone. (plan_roles.c) */
void stw_section_roles(const stw_section *s);
/** A line for each role beside the trainer: where it is and what it holds. (plan_roles.c) */
void stw_section_role_lines(const stw_section *s);
/** Rings, prefetch and load method. */
void stw_section_ring(const stw_section *s);
/** "Load method: sharded_read (chosen by the planner)." */
void stw_section_load_method(const stw_section *s);
/** What the seconds of the load assume of its files. */
void stw_section_load_seconds(const stw_section *s);
/** Outcome and gap of the solver. */
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
