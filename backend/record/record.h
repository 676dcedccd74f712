/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a command and samples what it holds: device bytes of the GPUs (NVML) and resident bytes of
 * its processes. Called from one thread, once per process. */
#ifndef STW_RECORD_RECORD_H
#define STW_RECORD_RECORD_H

#include "plan/measured/recording.h"

typedef struct stw_record_options {
    char *const *command; /* ends with NULL */
    double every_s;       /* between samples */
    const char *marks;    /* file that the command may append to, named by STOWAGE_MARKS */
    const char *nvtx;     /* library that marks phases by NVTX ranges; NULL: none */
} stw_record_options;

typedef struct stw_record_summary {
    bool started;   /* the command was; else nothing of what follows is known */
    int exit_code;  /* of the command; 128 + the number of the signal that ended it */
    double seconds; /* that it ran */
    uint32_t ranks, gpus;
} stw_record_summary;

/** Run the command to its end. Samples are added: device bytes of a rank's GPU less what was used
 * before, resident bytes of each rank, and of all processes together. Without ranks in the
 * environment of any process, GPU i stands for rank i. Of a command that ended before it was
 * sampled there are none.
 *
 * Signals that would end this process are passed on to the command, and stay held afterwards until
 * stw_record_end: see backend/record/signals.h.
 * @return NO_RESOURCES or IO if it cannot be started; another failure is of the samples: the
 * command ran to its end, and the samples before it are there */
STW_MUST_USE stw_status stw_record(const stw_record_options *options, stw_recording *samples,
                                   stw_record_summary *out, stw_error *err);
/** What was recorded is written: signals end this process again. */
void stw_record_end(void);

#endif
