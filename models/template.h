/* SPDX-License-Identifier: Apache-2.0 */
/* An architecture template: tensors, blocks and facts of every config.json with one model_type.
 * models/arch/README.md describes the rows. A template is allocated in the caller's pool and is
 * read-only once loaded. */
#ifndef STW_MODELS_TEMPLATE_H
#define STW_MODELS_TEMPLATE_H

#include "core/tree.h"
#include "models/model.h"

typedef enum stw_row_kind {
    STW_ROW_TEXT,
    STW_ROW_LET,
    STW_ROW_KEY, /* names of keys that the template has built in */
    STW_ROW_MODEL,
    STW_ROW_BLOCK,
    STW_ROW_EXTRA,
    STW_ROW_TENSOR,
    STW_ROW_EXPERT,
    STW_ROW_BUFFER,
    STW_ROW_FACT,
    STW_ROW_DTYPE,
    STW_ROW_SCALE,
    STW_ROW_INCLUDE /* replaced by the included rows while loading */
} stw_row_kind;

typedef struct stw_template_row {
    stw_row_kind kind;
    unsigned part; /* one per included file; groups match within a part */
    const char *file;
    int line;
    const char *scope; /* path of the config's object in which keys are looked up; "" is the root */
    const char *group, *name, *value, *repeat, *condition;
} stw_template_row;

typedef struct stw_template {
    size_t n_rows;
    stw_template_row *rows;
} stw_template;

/** Load `<data_folder>/arch/<model_type>.csv` and the files that it includes. */
STW_MUST_USE stw_status stw_template_load(stw_pool *pool, const char *data_folder,
                                          const char *model_type, stw_template *out,
                                          stw_error *err);
/** Fill the new `model` from a config, and finish it (stw_model_finish). */
STW_MUST_USE stw_status stw_template_build(const stw_template *template, const stw_tree *config,
                                           stw_model *model, stw_error *err);
/** Whether `group` is one of the space-separated patterns ("*" stands for any characters). */
bool stw_template_matches(const char *patterns, const char *group);

#endif
