/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of several roles. Each role's engine builds the movements of its role. This file merges
 * them into one program for the ranks that the roles share, so that one walk gives the sum. The
 * order is the order of an iteration that ends with the rollout:
 *
 *   load | log_prob, forward_backward, optimizer steps, weight_sync, rollout, checkpoint
 *
 * log_prob contains the forward passes without gradients of all roles. A role's movements keep
 * their order. In a phase the trainer comes first, but in weight_sync last, because the other roles
 * wake up to receive its weights. Pure functions; any thread. */
#ifndef STW_PLAN_PROGRAM_ROLES_H
#define STW_PLAN_PROGRAM_ROLES_H

#include "plan/program/program.h"

/** Merge the movements of all roles on the nodes of the program's kind into it. Programs with
 * tensors are not changed: they describe the trainer's allocator only. */
STW_MUST_USE stw_status stw_program_add_roles(const stw_job *job, stw_program *program,
                                              stw_error *err);

/** Bytes that one role holds at the peak of each phase; the bytes of all roles add up to the
 * peak. */
typedef struct stw_role_peaks {
    bool has[STW_N_PHASES]; /* true: the role has a movement in the phase */
    uint64_t bytes[STW_N_PHASES][STW_N_TIERS];
} stw_role_peaks;

/** Fill the peaks of all roles in one walk of a program. @param out [n_roles] */
void stw_program_walk_roles(const stw_program *program, uint32_t n_roles, stw_role_peaks *out);

#endif
