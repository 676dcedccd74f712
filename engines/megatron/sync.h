/* SPDX-License-Identifier: Apache-2.0 */
/* How parameters of Megatron-LM become whole for a weight sync. */
#ifndef STW_ENGINES_MEGATRON_SYNC_H
#define STW_ENGINES_MEGATRON_SYNC_H

#include "engines/megatron/params.h"
#include "engines/weight_sync.h"

/** Parameters of all stages, in their order. */
typedef struct stw_megatron_sync {
    uint32_t n;
    struct {
        stw_megatron_param param;
        uint32_t stage;
    } * list;
} stw_megatron_sync;

/** Weight sync of the kind of rank that the builder works on. */
void stw_megatron_build_sync(stw_builder *b);

#endif
