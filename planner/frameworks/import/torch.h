/* SPDX-License-Identifier: Apache-2.0 */
/* transformers' Trainer without a sharding engine: torch on one GPU, DistributedDataParallel on
 * several, as FSDP2 with shard groups of one rank. */
#ifndef STW_PLANNER_IMPORT_TORCH_H
#define STW_PLANNER_IMPORT_TORCH_H

#include "planner/frameworks/import/deepspeed.h"

typedef struct stw_plain_torch {
    const stw_trainer_arguments *trainer;
    bool lora;
    bool wide;       /* what is trained is in fp32, and computed in trainer->dtype under autocast */
    bool fused;      /* the optimizer: else foreach */
    uint64_t gpus;   /* 0: the file does not say; those of the cluster */
    const char *off; /* names of the settings that would shard: "deepspeed, fsdp" */
} stw_plain_torch;

/** Settings and lines. Several GPUs with all parameters are refused, here or in stw_import_batch.
 */
void stw_torch_read(stw_reading *r, const stw_plain_torch *t);

#endif
