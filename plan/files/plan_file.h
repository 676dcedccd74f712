/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the writer and the reader of plan files: members that repeat others are computed here,
 * written by the writer and expected by the reader. Private to plan/files. */
#ifndef STW_PLAN_PLAN_FILE_H
#define STW_PLAN_PLAN_FILE_H

#include "core/text.h"
#include "plan/files/plan.h"

/** "flat" where decisions cut the rank's flat space, "all" where they take it whole. */
const char *stw_plan_state_group(const stw_plan *plan);
/** Parameters of the largest kind of rank that state decision `i` covers. */
uint64_t stw_plan_decision_count(const stw_plan *plan, uint32_t i);
/** Slots or groups that are live at once. */
uint32_t stw_plan_prefetch_live(const stw_plan *plan);
/** Does some state pass through a ring? Else prefetch has no meaning. */
bool stw_plan_streams(const stw_plan *plan);
/** Who executes a movement: "stowage", "planned, not executed" or the framework's engine. */
const char *stw_plan_movement_by(const stw_plan *plan, const stw_movement *movement);
/** The ranks of a kind and the kinds of node that have such ranks, as text; replaces both. */
STW_MUST_USE stw_status stw_plan_kind_texts(const stw_plan *plan, uint32_t kind, stw_text *ranks,
                                            stw_text *node_kinds, stw_error *err);
/** Bytes of the plan over the limit that binds; may be 0. */
uint64_t stw_plan_binding_over(const stw_plan *plan, const stw_binding *binding);
bool stw_plan_has_phase(const stw_plan *plan, stw_phase phase);
/** Most bytes of a phase: over kinds of rank for the GPU, over kinds of node for other tiers. */
uint64_t stw_plan_worst_bytes(const stw_plan *plan, stw_phase phase, stw_tier tier);
/** Most GPU bytes of a kind of rank over its phases. */
void stw_plan_rank_maxima(const stw_peaks *peaks, uint64_t *allocated, uint64_t *reserved,
                          uint64_t *device);

/** Roles, their nodes and what each holds at the peaks: write, and compare what was read with what
 * the inputs give (plan_roles.c). */
STW_MUST_USE stw_status stw_plan_write_roles(const stw_plan *plan, stw_json *json, stw_error *err);
STW_MUST_USE stw_status stw_plan_check_roles(const stw_tree *tree, const stw_plan *plan,
                                             stw_error *err);
/** How the layout of ranks was found (plan_layouts.c). */
void stw_plan_write_layouts(const stw_plan *plan, stw_json *json);
STW_MUST_USE stw_status stw_plan_read_layouts(const stw_tree *tree, stw_plan *plan, stw_error *err);
/** Peaks of ranks and nodes and the times, over the derived ones (plan_read_figures.c). */
STW_MUST_USE stw_status stw_plan_read_figures(const stw_tree *tree, stw_plan *plan, stw_error *err);
/** What the planner said of its own work: solver, prices, what binds (plan_read_evidence.c). */
STW_MUST_USE stw_status stw_plan_read_evidence(const stw_tree *tree, stw_plan *plan,
                                               stw_error *err);

#endif
