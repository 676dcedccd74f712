/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors headers: file and offset of each tensor, for one file, a sharded index or a folder.
 * Format: https://github.com/huggingface/safetensors (header length as 8 bytes, little-endian; at
 * most 100 MB of JSON; data; offsets are relative to the data, without holes or overlap). Only
 * headers are read. A set owns its pool, is read-only once opened and may then be shared between
 * threads. */
#ifndef STW_MODELS_SAFETENSORS_H
#define STW_MODELS_SAFETENSORS_H

#include "models/model.h"

typedef struct stw_safetensors_entry {
    const char *name;
    stw_dtype dtype;
    uint32_t rank;
    uint64_t shape[STW_TENSOR_MAX_RANK];
    uint32_t file;         /* index into stw_safetensors.files */
    uint64_t offset_bytes; /* from the start of that file */
    uint64_t bytes;
} stw_safetensors_entry;

typedef struct stw_safetensors {
    stw_pool *pool;
    uint32_t n_files;
    const char **files;   /* paths */
    uint64_t *file_bytes; /* lengths */
    uint32_t n_entries;
    stw_safetensors_entry *entries; /* sorted by name */
} stw_safetensors;

STW_MUST_USE stw_status stw_safetensors_open(const char *path, stw_safetensors **out,
                                             stw_error *err);
void stw_safetensors_free(stw_safetensors *set);
/** The entry of that name, or NULL. */
const stw_safetensors_entry *stw_safetensors_find(const stw_safetensors *set, const char *name);

#endif
