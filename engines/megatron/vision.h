/* SPDX-License-Identifier: Apache-2.0 */
/* Vision towers as Megatron-Bridge trains them: which ones it has, which of their tensors tensor
 * parallelism cuts, and the bytes that they hold on the first pipeline stage. All figures are per
 * micro batch. Sources: vision.c. Pure functions of the job; any thread. */
#ifndef STW_ENGINES_MEGATRON_VISION_H
#define STW_ENGINES_MEGATRON_VISION_H

#include "plan/job/job.h"

/** Is the vision tower of the model one of those that are known? */
bool stw_megatron_knows_vision(const stw_job *job);
/** Does tensor parallelism cut the tower? Otherwise each rank of a TP group holds all of it. */
bool stw_megatron_cuts_vision(const stw_job *job);
/** Is the tensor one of the tower that every rank holds whole? */
bool stw_megatron_is_whole_vision(const stw_job *job, const stw_tensor *tensor);

/** The whole tower. */
typedef struct stw_megatron_tower {
    uint64_t kept;        /* what backward needs; inputs of blocks that are recomputed */
    uint64_t again;       /* of the largest block that is recomputed, while its backward runs */
    uint64_t backward;    /* beside these, at the widest moment of the backward */
    uint64_t reduced;     /* bytes that TP sums in the forward, and as many in the backward */
    double flops;         /* of the forward's products with weights */
    double rows, columns; /* of a typical one of them: patches, hidden size */
} stw_megatron_tower;

/** All zero without images. */
stw_megatron_tower stw_megatron_tower_of(const stw_job *job);

#endif
