/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of trainers: how often, what of, how many stay. A step here is an optimizer step of
 * the trainer, which is an iteration. Epochs and seconds cannot be converted: how many steps they
 * have follows from data. Such a flag is a line of the import. */
#ifndef STW_PLANNER_IMPORT_SAVES_H
#define STW_PLANNER_IMPORT_SAVES_H

#include "planner/frameworks/import/reading.h"

typedef enum stw_hf_backend {
    STW_HF_TORCH, /* one GPU, or DistributedDataParallel */
    STW_HF_FSDP,
    STW_HF_DEEPSPEED
} stw_hf_backend;

/** Those of transformers' trainer (training_args.py and trainer.py at 5.17), where the file gives
 * save_steps or save_strategy.
 * @param dashes names as the file writes them: "save-steps", else "save_steps" */
void stw_hf_set_saves(stw_reading *r, bool dashes, stw_hf_backend backend, bool lora);
/** Those of ms-swift's Megatron (swift/megatron/arguments/megatron_args.py at 4.0.0). */
void stw_ms_swift_megatron_set_saves(stw_reading *r, bool lora);
/** Those of AReaL (areal/api/cli_args.py, SaverConfig and RecoverConfig; areal/utils/saver.py and
 * recover.py): `recover` writes model and optimizer, `saver` a model that others can read.
 * @param whole rank 0 can write whole tensors: else they are planned in shards */
void stw_areal_set_saves(stw_reading *r, bool whole);

#endif
