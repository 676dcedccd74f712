/* SPDX-License-Identifier: Apache-2.0 */
/* What frameworks' functions and log lines mean in the terms of a plan: which phase a stack is in,
 * what its allocation is for, how far a log has come, whose program it is. Pure; any thread. */
#ifndef STW_PLANNER_FRAMES_H
#define STW_PLANNER_FRAMES_H

#include "plan/measured/failure.h"
#include "plan/spec/terms.h"

typedef struct stw_stack_phase {
    stw_phase phase;        /* STW_N_PHASES: not known */
    const char *part;       /* "forward", "backward", ...; NULL: the phase as a whole */
    const stw_frame *frame; /* that says so, or that it cannot be told; NULL: none speaks of it */
} stw_stack_phase;

/** Which phase. A step counts as a later one where lazily made state is not on the stack. */
stw_stack_phase stw_stack_phase_of(const stw_frame *frames, size_t n);

typedef struct stw_stack_component {
    stw_component component; /* STW_N_COMPONENTS: not known */
    const stw_frame *frame;  /* as of a phase */
} stw_stack_component;
/** What it allocates, by the innermost frame that says; nothing is assumed. */
stw_stack_component stw_stack_component_of(const stw_frame *frames, size_t n);

/** How far a log has come. */
typedef struct stw_log_progress {
    uint64_t iterations; /* finished; STW_NOT_SAID: no line counts them */
    uint64_t of;         /* of so many, or STW_NOT_SAID */
    stw_phase phase;     /* that the last mark begins; STW_N_PHASES: none */
    const char *mark;    /* its words, or NULL */
} stw_log_progress;
/** @param length of the text before the failure */
stw_log_progress stw_log_progress_of(const char *text, size_t length);

/** Whose program it is. */
typedef struct stw_program_name {
    const char *name;   /* "Megatron-LM"; NULL: not known */
    const char *from;   /* of --from and --emit; NULL: its settings are not read */
    const char *engine; /* that stands for it without settings */
    bool model_too;     /* its settings do not say the model */
} stw_program_name;
stw_program_name stw_program_of(const stw_frame *frames, size_t n, const char *text);
/** Whose settings say a change of a plan: the program's, if they can be written and it is not only
 * a frame around others, else those of the engine; NULL: none. */
const char *stw_program_writer(const stw_program_name *program, const char *engine);

#endif
