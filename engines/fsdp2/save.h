/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of FSDP2 writes into a checkpoint. */
#ifndef STW_ENGINES_FSDP2_SAVE_H
#define STW_ENGINES_FSDP2_SAVE_H

#include "engines/checkpoint.h"

/** @param place of the rank's state */
stw_save stw_fsdp2_save(const stw_builder *b, const stw_place *place);
/** Slots of stw_engine. */
void stw_fsdp2_save_metadata(const stw_job *job, char *out, size_t out_size);
void stw_fsdp2_known_failure(const stw_job *job, char *out, size_t out_size);

#endif
