/* SPDX-License-Identifier: Apache-2.0 */
/* Private to models/, its tests and its fuzz targets: parsers of bytes in memory, and functions
 * that build a model. The caller owns pools and models; one thread at a time builds a model. */
#ifndef STW_MODELS_INTERNAL_H
#define STW_MODELS_INTERNAL_H

#include "core/tree.h"
#include "models/model.h"
#include "models/safetensors.h"

#define STW_SAFETENSORS_MAX_HEADER 100000000u /* bytes, from the format's description */

/** An empty model with a pool; name, source and model_type are copied. NULL if out of memory. */
stw_model *stw_model_new(const char *name, const char *source, const char *model_type);
/** Name of the model in `path`: the file name without suffix, or the name of the folder for
 * config.json and model.safetensors*. Allocated in the pool. */
const char *stw_model_name_of(stw_pool *pool, const char *path);
/** Number of elements, checked; the error names the tensor. */
STW_MUST_USE stw_status stw_tensor_count(stw_tensor *tensor, stw_error *err);

/** Whether a tensor of a file is a buffer: integers are never trained. */
bool stw_is_buffer(const char *name, stw_dtype dtype);
/** Assign buffers to the block with their number, else to the first block. */
STW_MUST_USE stw_status stw_model_place_buffers(stw_model *model, stw_error *err);
/** Warn if a model has more integers than parameters. */
void stw_model_warn_of_integers(const stw_model *model);

/** Whether two blocks have tensors of equal shape, dtype and use, in the same order. */
bool stw_block_same_shapes(const stw_model *model, const stw_block *a, const stw_block *b);

/** Parse the text of a CSV tensor list. */
STW_MUST_USE stw_status stw_model_parse_csv(const char *path, const char *text, size_t length,
                                            stw_model **out, stw_error *err);

/** The header of one safetensors file. */
typedef struct stw_safetensors_header {
    const char *path; /* for errors */
    const char *text; /* JSON; follows the leading 8 bytes */
    uint64_t length;  /* bytes of text */
    uint64_t file_bytes;
} stw_safetensors_header;

/** Parse a header. Offsets are checked against the length of the file.
 * @param entries out, in the order of their offsets, with file = 0; allocated in `pool` */
STW_MUST_USE stw_status stw_safetensors_parse(stw_pool *pool, const stw_safetensors_header *header,
                                              stw_safetensors_entry **entries, uint32_t *n_entries,
                                              stw_error *err);
/** Read the length of the header from the leading 8 bytes; check it against the file's length. */
STW_MUST_USE stw_status stw_safetensors_header_length(const char *path,
                                                      const unsigned char first[8],
                                                      uint64_t file_bytes, uint64_t *length,
                                                      stw_error *err);

/** Parts of a tensor's name. */
typedef struct stw_name_parts {
    size_t prefix;   /* characters before the block's number ("model.layers."), 0: none */
    uint64_t number; /* number of the block */
    int stage;       /* order of the forward pass: 0 vision tower's input ... 6 head */
    bool vision, expert, expert_number; /* it is a routed expert; its name has the expert's
                                           number */
} stw_name_parts;
void stw_name_read(const char *name, stw_name_parts *out);

#endif
