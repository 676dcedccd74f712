/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: program and rates to time line. Discrete events over a fluid model. Each operation
 * progresses at a rate between 0 and 1 (1: as if it ran alone). The rates are max-min fair, subject
 * to sum(demand seconds x rate) <= 1 on every resource. Operations of a stream run in order, after
 * the operations that they wait for. An operation shares resources after its start-up time. A
 * simulation owns its results and borrows job and program; any thread may call. */
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
    /* From the first to the last movement of a phase; NaN: there is none. */
    double phase_start_s[STW_N_PHASES], phase_end_s[STW_N_PHASES];
    double phase_s[STW_N_PHASES]; /* of the trainer's movements; NaN: it has none */
    double exposed_s; /* what a step adds to an iteration (hidden.h); NaN: it is not hidden */
    double stall_s;   /* what a save beside training adds to one (stall.h); NaN: there is none */
    double busy_s[STW_N_PHASES][STW_N_RESOURCES]; /* seconds of demand done */
    stw_peaks peaks;                              /* in list order, the order of allocation */
} stw_sim;

/** Simulate all movements of the program of one kind of rank, one after the other. Job and program
 * must outlive the result; the caller frees *out. BUG if an operation waits for a later one. */
STW_MUST_USE stw_status stw_sim_run(const stw_job *job, const stw_program *program, stw_sim **out,
                                    stw_error *err);
void stw_sim_free(stw_sim *sim);
/** Seconds that a phase of the trainer adds to an iteration (NaN: no such movement): all of its
 * seconds, of a step or a checkpoint that goes on beside others those that these wait for. */
double stw_sim_phase_seconds(const stw_sim *sim, stw_phase phase);
/** Is the simulated time of a phase a prediction? Not where the plan does not fit, and not for what
 * the framework would do on GPUs that the cluster lacks: nobody will run it. */
bool stw_sim_predicts(const stw_plan *plan, const stw_movement *movement);
/** Seconds of each phase of a program (NaN: no such movement). */
STW_MUST_USE stw_status stw_sim_seconds(const stw_job *job, const stw_program *program,
                                        double seconds[STW_N_PHASES], stw_error *err);
/** Simulate every kind of rank and store the simulated seconds and peaks in the plan. The simulator
 * knows the order of operations; the planner's rows know only sums. The verdict must be known:
 * seconds of phases that are not predicted are NaN. BUG if more bytes are live at any time than the
 * plan's peaks say.
 * @param sims [job->n_kinds] out, NULL on entry, each freed by the caller; may be NULL */
STW_MUST_USE stw_status stw_sim_plan(stw_plan *plan, stw_sim **sims, stw_error *err);
/** Simulate a plan that was read and hold the seconds that it states to the simulated ones.
 * BAD_INPUT names the first that differs. @param file of the plan, for errors @param sims as above
 */
STW_MUST_USE stw_status stw_sim_check(stw_plan *plan, const char *file, stw_sim **sims,
                                      stw_error *err);

#endif
