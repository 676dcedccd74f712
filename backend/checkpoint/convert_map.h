/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a plain folder of a checkpoint's model has, and where the checkpoint holds their
 * elements: parameters, or master weights, under published names or the model's own. A pure
 * function of headers. */
#ifndef STW_BACKEND_CHECKPOINT_CONVERT_MAP_H
#define STW_BACKEND_CHECKPOINT_CONVERT_MAP_H

#include "backend/checkpoint/load.h"

/** A tensor of the folder. */
typedef struct stw_converted {
    const char *name;
    stw_dtype dtype; /* as it is saved, that of the first element; F32, BF16 or F16 */
    uint32_t rank;
    uint64_t shape[STW_TENSOR_MAX_RANK];
} stw_converted;

/** Elements of one dtype that are neighbours in a tensor. */
typedef struct stw_convert_source {
    uint32_t tensor;
    stw_dtype dtype;
    bool swapped; /* elements are counted with the last two dimensions in the other order */
} stw_convert_source;

#define STW_CONVERT_HEADER UINT32_MAX

typedef struct stw_convert_map {
    uint32_t n_tensors, n_sources;
    uint32_t n_unmastered; /* tensors without a master weight, where masters were asked for */
    size_t tensors_room, sources_room, needs_room;
    stw_converted *tensors; /* in the order of the model, or of the checkpoint's files */
    stw_convert_source *sources;
    uint64_t n_needs;
    /* `where` is a source and `at` an element; or STW_CONVERT_HEADER: only to be verified */
    stw_load_need *needs;
} stw_convert_map;

/** @param model whose published names the tensors get; NULL: names are as saved
 * @param pool of the result
 * @return BAD_INPUT names what is missing, or is of a dtype that is not converted */
STW_MUST_USE stw_status stw_convert_map_make(const stw_checkpoint *checkpoint,
                                             const stw_model *model, bool from_master,
                                             stw_pool *pool, stw_convert_map *out, stw_error *err);

#endif
