/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models: those of the zoo, and published names whose shapes are those of one in the zoo.
 * One table says which (`zoo/aliases.csv`, whose head describes its rows); --model, inspect and
 * --from ask it alike. Any thread may call; a pool belongs to one thread at a time. */
#ifndef STW_MODELS_ZOO_H
#define STW_MODELS_ZOO_H

#include "models/model.h"

/** Names of the zoo's models in alphabetical order, numbers by value ("4B" before "30B"); allocated
 * in the pool. No folder is no names. */
STW_MUST_USE stw_status stw_zoo_list(const char *data_folder, stw_pool *pool,
                                     const char *const **names, size_t *n, stw_error *err);

/** What a name is planned as. Strings are in the pool. */
typedef struct stw_zoo_name {
    const char *word;   /* the name without its publisher, path or cache folder */
    const char *model;  /* in the zoo; NULL: none has its shapes */
    bool alias;         /* `word` is not the zoo's own name, the case of letters aside */
    uint64_t positions; /* context length, where it is not the zoo model's; 0: it is */
    const char *why;    /* without a model: what is known of the name, or NULL */
} stw_zoo_name;

/** Look up a published name ("Qwen/Qwen3-8B-Base"), the path of a copy ("/data/Qwen3-8B-Base/") or
 * a folder of the Hub's cache (".../models--Qwen--Qwen3-8B/snapshots/..."), in any case. First the
 * name as it is, then without one ending after the other that changes no shape. An unknown name is
 * no error; a damaged table is (BAD_INPUT). */
STW_MUST_USE stw_status stw_zoo_find(const char *data_folder, const char *name, stw_pool *pool,
                                     stw_zoo_name *out, stw_error *err);

/** Open the model that a name is planned as; says so (INFO) if it is another's. BAD_INPUT names the
 * nearest models if there is none. */
STW_MUST_USE stw_status stw_zoo_open(const char *data_folder, const char *name, stw_model **out,
                                     stw_error *err);

#endif
