/* SPDX-License-Identifier: Apache-2.0 */
/* Open weights files: the place of each tensor of the model, and reads of its elements. Part of the
 * executor. A tensor is read under the model's own name, or composed of published tensors as
 * models/names says. */
#ifndef STW_BACKEND_EXECUTOR_WEIGHTS_H
#define STW_BACKEND_EXECUTOR_WEIGHTS_H

#include "backend/executor/executor.h"
#include "models/names.h"
#include "models/safetensors.h"

/* Elements of a tensor in the sample, and how many of them are NaN or infinite. */
typedef struct stw_weights_seen {
    uint64_t elements, odd;
} stw_weights_seen;

/* A tensor of the files, and the scales of its blocks. */
typedef struct stw_weights_source {
    const stw_safetensors_entry *entry, *scale; /* scale: NULL if none */
} stw_weights_source;

/* How a tensor of the model is composed of such tensors. */
typedef struct stw_weights_tensor {
    stw_names_way way;
    stw_dtype dtype;        /* dtype of the elements read: F32 if they are expanded */
    uint64_t experts, n;    /* sources: n of each expert; experts is 1 if they are fused */
    uint64_t outer;         /* product of the dimensions before the divided one */
    uint64_t extent, inner; /* the divided dimension, and the product of those after it */
    uint64_t first, whole;  /* the tensor is a part of its source along that dimension; whole 0: it
                               is not */
    uint64_t rows, columns; /* the last two dimensions */
    uint64_t n_sources;
    stw_weights_source *sources; /* [n_sources] n of each expert */
} stw_weights_tensor;

struct stw_weights {
    stw_pool *pool;
    const stw_model *model; /* borrowed */
    uint64_t seed;
    uint64_t *first;      /* [n_tensors] number of a tensor's first element, for seeded weights */
    stw_safetensors *set; /* NULL: seeded weights */
    stw_weights_tensor *tensors; /* [n_tensors] */
    int *files;                  /* [set->n_files] descriptors; -1: not open */
    stw_weights_seen *seen;      /* [n_tensors] of the sample */
};

/** Find the sources of all tensors; w->set and w->model are set. Errors name `path`, the tensor,
 * its shape and the expected one. */
STW_MUST_USE stw_status stw_weights_find(stw_weights *w, const char *path, stw_error *err);
/** Read bytes [offset, offset + bytes) of a file.
 * @param what for the error if the file has become shorter */
STW_MUST_USE stw_status stw_weights_read_bytes(const stw_weights *w, uint32_t file,
                                               const char *what, uint64_t offset, void *out,
                                               uint64_t bytes, stw_error *err);

#endif
