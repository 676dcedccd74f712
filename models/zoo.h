/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models: the zoo's own, and published names of models with the shapes of a zoo model. The
 * table `zoo/aliases.csv` has these names; its head describes the rows. --model, inspect and --from
 * use it. Any thread may call; a pool belongs to one thread at a time. */
#ifndef STW_MODELS_ZOO_H
#define STW_MODELS_ZOO_H

#include "models/model.h"

/** List the names of the zoo's models in alphabetical order, numbers by value ("4B" before "30B");
 * allocated in the pool. A missing folder gives no names. */
STW_MUST_USE stw_status stw_zoo_list(const char *data_folder, stw_pool *pool,
                                     const char *const **names, size_t *n, stw_error *err);

/** The zoo model for a name. Strings are in the pool. */
typedef struct stw_zoo_name {
    const char *word;   /* the name without its publisher, path or cache folder */
    const char *model;  /* in the zoo; NULL: no zoo model has its shapes */
    bool alias;         /* `word` is not the zoo's own name (in any case of letters) */
    uint64_t positions; /* context length if it differs from the zoo model's; else 0 */
    const char *why;    /* without a model: a note about the name, or NULL */
} stw_zoo_name;

/** Look up a published name ("Qwen/Qwen3-8B-Base"), the path of a copy ("/data/Qwen3-8B-Base/") or
 * a folder of the Hub's cache (".../models--Qwen--Qwen3-8B/snapshots/..."), in any case. Tries the
 * name as it is, then removes endings that change no shape, one after the other. An unknown name is
 * not an error; BAD_INPUT for a damaged table. */
STW_MUST_USE stw_status stw_zoo_find(const char *data_folder, const char *name, stw_pool *pool,
                                     stw_zoo_name *out, stw_error *err);

/** Open the zoo model for a name; logs (INFO) if the zoo's name differs. BAD_INPUT names the
 * nearest models if there is none. */
STW_MUST_USE stw_status stw_zoo_open(const char *data_folder, const char *name, stw_model **out,
                                     stw_error *err);

#endif
