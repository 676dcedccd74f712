/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of several roles. Each role's engine builds the movements of its role; here they are
 * merged into one program for the ranks that the roles share, so that one walk gives the sum. The
 * order is that of an iteration which ends when the rollout does:
 *
 *   load | log_prob, forward_backward, optimizer steps, weight_sync, rollout, checkpoint
 *
 * log_prob has every forward pass without gradients, of whichever role. A role's movements stay in
 * the order in which its engine made them. In a phase the trainer comes first; in weight_sync last,
 * since others wake up to take what it sends. Pure functions; any thread. */
#ifndef STW_PLAN_PROGRAM_ROLES_H
#define STW_PLAN_PROGRAM_ROLES_H

#include "plan/program/program.h"

/** Merge the movements of all roles on the nodes of the program's kind into it. Programs with
 * tensors stay as they are: they show what the trainer's allocator does. */
STW_MUST_USE stw_status stw_program_add_roles(const stw_job *job, stw_program *program,
                                              stw_error *err);

/** Bytes that one role holds at the peaks of all phases; those of all roles sum to the peaks. */
typedef struct stw_role_peaks {
    bool has[STW_N_PHASES]; /* has it a movement there? */
    uint64_t bytes[STW_N_PHASES][STW_N_TIERS];
} stw_role_peaks;

/** One walk of a program. @param out [n_roles] */
void stw_program_walk_roles(const stw_program *program, uint32_t n_roles, stw_role_peaks *out);

#endif
