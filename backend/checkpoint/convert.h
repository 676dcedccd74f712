/* SPDX-License-Identifier: Apache-2.0 */
/* A plain Hugging Face folder of a checkpoint's model: safetensors with their index, config.json,
 * tokenizer. Every byte that is used is compared with its hash; the folder is written beside its
 * place and gets its name when all of it has reached the disk. Memory: a few buckets of the
 * checkpoint. One thread calls. */
#ifndef STW_BACKEND_CHECKPOINT_CONVERT_H
#define STW_BACKEND_CHECKPOINT_CONVERT_H

#include "backend/checkpoint/folder.h"
#include "models/model.h"

#define STW_CONVERT_SHARD_BYTES 5000000000ull

typedef struct stw_convert_options {
    const char *folder;     /* to be made; may exist if it is empty */
    const stw_model *model; /* whose published names the tensors get; NULL: as saved */
    const char *like;       /* a folder whose config.json, tokenizer and the like are copied where
                             * the checkpoint has none of that name; NULL: none */
    bool from_master;       /* of tensors that have one */
    bool casts;             /* all tensors to dtype; else each stays as it is */
    stw_dtype dtype;        /* F32, BF16 or F16 */
    uint64_t shard_bytes;   /* about the most of one file; 0: STW_CONVERT_SHARD_BYTES */
    bool (*stop)(void);     /* asked between buckets; NULL: never */
} stw_convert_options;

typedef struct stw_convert_result {
    uint32_t n_files, n_tensors;
    uint32_t n_unmastered; /* tensors that are not trained: their parameters, not a master */
    uint64_t bytes;        /* of all tensors */
    uint64_t infinite;     /* finite elements that fp16 cannot hold, */
    char first[256];       /* and the tensor of the first of them */
    double seconds;
} stw_convert_result;

/** @return USAGE if the folder exists and is not empty, or another convert writes it; DISAGREE
 * names what is damaged; NO_RESOURCES: the disk is full. Nothing is left then. IO where `stop` said
 * so */
STW_MUST_USE stw_status stw_convert(const stw_checkpoint *checkpoint,
                                    const stw_convert_options *options, stw_convert_result *out,
                                    stw_error *err);

#endif
