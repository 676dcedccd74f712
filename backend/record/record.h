/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a command and samples its memory: device bytes of the GPUs (NVML) and resident bytes of its
 * processes. Called from one thread, once per process. */
#ifndef STW_RECORD_RECORD_H
#define STW_RECORD_RECORD_H

#include "plan/measured/recording.h"

typedef struct stw_record_options {
    char *const *command; /* ends with NULL */
    double every_s;       /* interval of samples */
    const char *marks;    /* file to which the command may append marks; STOWAGE_MARKS names it */
    const char *nvtx;     /* library that marks phases by NVTX ranges; NULL: none */
} stw_record_options;

typedef struct stw_record_summary {
    bool started;   /* the command was started; else the members below are unknown */
    int exit_code;  /* the command's, or 128 + the number of the signal that ended it */
    double seconds; /* run time */
    uint32_t ranks, gpus;
} stw_record_summary;

/** Run the command to its end. Adds samples: device bytes of a rank's GPU minus the bytes used
 * before, resident bytes of each rank, and of all processes together. If no process has a rank in
 * its environment, GPU i stands for rank i. A command that ends before the first sample gives none.
 *
 * Signals that would end this process are passed on to the command, and stay blocked afterwards
 * until stw_record_end: see backend/record/signals.h.
 * @return NO_RESOURCES or IO if it cannot be started; other failures concern the samples: the
 * command ran to its end, and earlier samples are kept */
STW_MUST_USE stw_status stw_record(const stw_record_options *options, stw_recording *samples,
                                   stw_record_summary *out, stw_error *err);
/** Call it when the recording is written: signals end this process again. */
void stw_record_end(void);

#endif
