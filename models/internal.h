/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share with each other, its tests and its fuzz targets, and nobody
 * else: readers over bytes in memory, and a model under construction. */
#ifndef STW_MODELS_INTERNAL_H
#define STW_MODELS_INTERNAL_H

#include "core/tree.h"
#include "models/model.h"
#include "models/safetensors.h"

#define STW_SAFETENSORS_MAX_HEADER 100000000u /* bytes, from the format's description */

/** An empty model with a pool; name, source and model_type are copied. NULL when memory is out. */
stw_model *stw_model_new(const char *name, const char *source, const char *model_type);
/** The name a model read from `path` gets: the file without its ending, the folder's name for
 * config.json and model.safetensors*. Lies in the pool. */
const char *stw_model_name_of(stw_pool *pool, const char *path);
/** Number of elements, checked; the error names the tensor. */
STW_MUST_USE stw_status stw_tensor_count(stw_tensor *tensor, stw_error *err);

/** Whether two blocks have tensors of equal shape, dtype and use, in the same order. */
bool stw_block_same_shapes(const stw_model *model, const stw_block *a, const stw_block *b);

/** A config.json's text (`path` for errors and the name). In a *_csv.c file: templates are CSV. */
STW_MUST_USE stw_status stw_model_parse_config(const char *path, const char *text, size_t length,
                                               const char *data_folder, stw_model **out,
                                               stw_error *err);
/** A CSV tensor list's text. In a *_csv.c file. */
STW_MUST_USE stw_status stw_model_parse_csv(const char *path, const char *text, size_t length,
                                            stw_model **out, stw_error *err);

/** The header of one safetensors file (`length` bytes, without the leading 8) into entries in the
 * order of their offsets; entries and names lie in `pool`, `file` of each is 0.
 * @param file_bytes length of the whole file; offsets are checked against it */
STW_MUST_USE stw_status stw_safetensors_parse(stw_pool *pool, const char *path, const char *header,
                                              uint64_t length, uint64_t file_bytes,
                                              stw_safetensors_entry **entries, uint32_t *n_entries,
                                              stw_error *err);
/** The leading 8 bytes: the header's length, checked against the file's. */
STW_MUST_USE stw_status stw_safetensors_header_length(const char *path,
                                                      const unsigned char first[8],
                                                      uint64_t file_bytes, uint64_t *length,
                                                      stw_error *err);

/** What a tensor's name says. */
typedef struct stw_name_parts {
    size_t prefix;   /* characters before the block's number ("model.layers."), 0: none */
    uint64_t number; /* the block's */
    int stage;       /* order of the forward pass: 0 vision tower's input ... 6 head */
    bool vision, expert, expert_number; /* routed expert; stored one by one */
} stw_name_parts;
void stw_name_read(const char *name, stw_name_parts *out);

#endif
