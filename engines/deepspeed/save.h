/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of DeepSpeed writes into a checkpoint. */
#ifndef STW_ENGINES_DEEPSPEED_SAVE_H
#define STW_ENGINES_DEEPSPEED_SAVE_H

#include "engines/checkpoint.h"
#include "engines/deepspeed/zero.h"

stw_save stw_zero_save(const stw_zero *z);
/** Refuse what DeepSpeed cannot save. */
stw_status stw_zero_check_save(const stw_run_spec *run, const char *origin, stw_error *err);
/** A slot of stw_engine. */
void stw_zero_save_metadata(const stw_job *job, char *out, size_t out_size);

#endif
