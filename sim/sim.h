/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator makes a time line from a program and rates, by discrete events over a fluid model.
 * Each operation progresses at a rate between 0 and 1 (1: as if it ran alone). The rates are
 * max-min fair, subject to sum(demand seconds x rate) <= 1 on every resource. Operations of a
 * stream run in order, after the operations that they wait for. An operation shares resources after
 * its start-up time. A simulation owns its results and borrows job and program; any thread may
 * call. */
#ifndef STW_SIM_SIM_H
#define STW_SIM_SIM_H

#include "plan/files/plan.h"
#include "plan/program/demand.h"

typedef struct stw_sim_op {
    double start_s, end_s;
} stw_sim_op;

typedef struct stw_sim {
    stw_pool *pool;
    const stw_job *job;
    const stw_program *program;
    stw_sim_op *ops; /* [program->n_ops]; times from the start of the first movement */
    /* Start of the first and end of the last movement of a phase; NaN: none. */
    double phase_start_s[STW_N_PHASES], phase_end_s[STW_N_PHASES];
    double phase_s[STW_N_PHASES]; /* the trainer's movements; NaN: none */
    double exposed_s; /* seconds that a step adds to an iteration (hidden.h); NaN: not hidden */
    double stall_s;   /* seconds that a save during training adds to one (stall.h); NaN: none */
    double busy_s[STW_N_PHASES][STW_N_RESOURCES]; /* seconds of demand done */
    stw_peaks peaks;                              /* in list order, the order of allocation */
} stw_sim;

/** Simulate all movements of the program of one kind of rank, one after the other. Job and program
 * must outlive the result; the caller frees *out. BUG if an operation waits for a later one. */
STW_MUST_USE stw_status stw_sim_run(const stw_job *job, const stw_program *program, stw_sim **out,
                                    stw_error *err);
void stw_sim_free(stw_sim *sim);
/** Returns the seconds that a phase of the trainer adds to an iteration (NaN: no such movement):
 * all of its seconds; for a step or a checkpoint that overlaps other phases, only the seconds for
 * which these wait. */
double stw_sim_phase_seconds(const stw_sim *sim, stw_phase phase);
/** True if the simulated time of a movement is a prediction. False if the plan does not fit, or if
 * a framework would need GPUs that the cluster lacks. */
bool stw_sim_predicts(const stw_plan *plan, const stw_movement *movement);
/** Seconds of each phase of a program (NaN: no such movement). */
STW_MUST_USE stw_status stw_sim_seconds(const stw_job *job, const stw_program *program,
                                        double seconds[STW_N_PHASES], stw_error *err);
/** Simulate every kind of rank and store the simulated seconds and peaks in the plan. Unlike the
 * planner's rows, which are sums, the simulator respects the order of operations. The verdict must
 * be set, because phases without a prediction get NaN. BUG if more bytes are live at any time than
 * the plan's peaks say.
 * @param sims [job->n_kinds] out, NULL on entry, each freed by the caller; may be NULL */
STW_MUST_USE stw_status stw_sim_plan(stw_plan *plan, stw_sim **sims, stw_error *err);
/** Simulate a plan that was read from a file, and compare its stated seconds with the simulated
 * ones. BAD_INPUT names the first difference.
 * @param file of the plan, for errors
 * @param sims as above */
STW_MUST_USE stw_status stw_sim_check(stw_plan *plan, const char *file, stw_sim **sims,
                                      stw_error *err);

#endif
