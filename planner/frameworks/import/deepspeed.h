/* SPDX-License-Identifier: Apache-2.0 */
/* Import of a DeepSpeed config (deepspeed/runtime/config.py, zero/config.py at 0.19.8). */
#ifndef STW_PLANNER_IMPORT_DEEPSPEED_H
#define STW_PLANNER_IMPORT_DEEPSPEED_H

#include "planner/frameworks/import/reading.h"

/** What transformers' integration puts in place of "auto". */
typedef struct stw_trainer_arguments {
    const char *micro_batch, *accumulation, *clip_norm;
    const char *dtype; /* bf16 or fp16 */
    bool given;        /* in the file, not a default of transformers */
    const char
        *optim; /* the optimizer that it makes where the config names none; NULL: FusedAdam */
} stw_trainer_arguments;

/** Flags named by their path ("zero_optimization.stage") become settings and lines. */
void stw_deepspeed_read(stw_reading *r, const stw_trainer_arguments *trainer);
/** Read a config into `out`, whose pool and path are set. */
STW_MUST_USE stw_status stw_deepspeed_import(const char *text, size_t length, stw_import *out,
                                             stw_error *err);

#endif
