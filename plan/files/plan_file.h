/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the writer and the reader of plan files: computes the members that repeat others, which
 * the writer writes and the reader compares. Private to plan/files. */
#ifndef STW_PLAN_PLAN_FILE_H
#define STW_PLAN_PLAN_FILE_H

#include "core/text.h"
#include "plan/files/plan.h"

/** "flat" if decisions divide the rank's flat space; "all" if one place has all of it. */
const char *stw_plan_state_group(const stw_plan *plan);
/** Parameters of the largest kind of rank that state decision `i` covers. */
uint64_t stw_plan_decision_count(const stw_plan *plan, uint32_t i);
/** Returns the slots or groups that are live at once. */
uint32_t stw_plan_prefetch_live(const stw_plan *plan);
/** True if some state passes through a ring; else prefetch has no meaning. */
bool stw_plan_streams(const stw_plan *plan);
/** Returns who executes a movement: "stowage", "planned, not executed" or the engine's name. */
const char *stw_plan_movement_by(const stw_plan *plan, const stw_movement *movement);
/** Write the ranks of a kind, and the kinds of node with such ranks; replaces both texts. */
STW_MUST_USE stw_status stw_plan_kind_texts(const stw_plan *plan, uint32_t kind, stw_text *ranks,
                                            stw_text *node_kinds, stw_error *err);
/** Returns the plan's bytes over a binding limit; may be 0. */
uint64_t stw_plan_binding_over(const stw_plan *plan, const stw_binding *binding);
bool stw_plan_has_phase(const stw_plan *plan, stw_phase phase);
/** Returns the largest peak of a phase: over kinds of rank for the GPU, over kinds of node for
 * other tiers. */
uint64_t stw_plan_worst_bytes(const stw_plan *plan, stw_phase phase, stw_tier tier);
/** Give the largest GPU bytes of a kind of rank over its phases. */
void stw_plan_rank_maxima(const stw_peaks *peaks, uint64_t *allocated, uint64_t *reserved,
                          uint64_t *device);

/** Roles, their nodes and their bytes at the peaks: write them, and compare a file's with the
 * derived ones (plan_roles.c). */
STW_MUST_USE stw_status stw_plan_write_roles(const stw_plan *plan, stw_json *json, stw_error *err);
STW_MUST_USE stw_status stw_plan_check_roles(const stw_tree *tree, const stw_plan *plan,
                                             stw_error *err);
/** The search for the parallel layout (plan_layouts.c). */
void stw_plan_write_layouts(const stw_plan *plan, stw_json *json);
STW_MUST_USE stw_status stw_plan_read_layouts(const stw_tree *tree, stw_plan *plan, stw_error *err);
/** Read the peaks of ranks and nodes and the times, over the derived ones (plan_read_figures.c). */
STW_MUST_USE stw_status stw_plan_read_figures(const stw_tree *tree, stw_plan *plan, stw_error *err);
/** Read the planner's evidence: solver, prices, binding limits (plan_read_evidence.c). */
STW_MUST_USE stw_status stw_plan_read_evidence(const stw_tree *tree, stw_plan *plan,
                                               stw_error *err);

#endif
