/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of models/names, read and matched. Rules are allocated in the caller's pool and read-only
 * once loaded. */
#ifndef STW_MODELS_NAMES_RULES_H
#define STW_MODELS_NAMES_RULES_H

#include "models/model.h"

/** The order of the elements in a published tensor. */
typedef enum stw_names_way {
    STW_NAMES_AS_IS,
    STW_NAMES_TRANSPOSED, /* the last two dimensions are swapped */
    STW_NAMES_MXFP4, /* two elements per byte, inputs last, blocks of 32 with scale 2^(s - 127) */
    STW_NAMES_INT4,  /* eight elements per I32 */
    STW_N_NAMES_WAYS
} stw_names_way;
/** "as is", "transposed", "mxfp4", "int4". */
const char *stw_names_way_name(stw_names_way way);

typedef enum stw_names_kind {
    STW_NAMES_INCLUDE,
    STW_NAMES_PART,
    STW_NAMES_SWAP,
    STW_NAMES_SPLIT,
    STW_NAMES_PREFIX,
    STW_NAMES_RENAME,
    STW_NAMES_PACKED,
    STW_NAMES_EDITION,
    STW_NAMES_SCALE,
    STW_NAMES_COPY,
    STW_N_NAMES_KINDS
} stw_names_kind;

typedef struct stw_names_row {
    stw_names_kind kind;
    uint32_t edition;
    uint32_t dim;      /* value of part and split rows; 0 if empty */
    stw_names_way way; /* for packed rows */
    const char *tensor, *published, *value;
} stw_names_row;

typedef struct stw_names_rules {
    uint32_t n, editions;
    stw_names_row *rows;
} stw_names_rules;

/** Append the rows of the compiled-in file `name` and of the files that it includes. A missing file
 * adds none. BAD_INPUT names file and line. */
STW_MUST_USE stw_status stw_names_rules_load(stw_pool *pool, const char *name, stw_names_rules *out,
                                             stw_error *err);
/** The same from a text. */
STW_MUST_USE stw_status stw_names_rules_parse(stw_pool *pool, const char *file, const char *text,
                                              stw_names_rules *out, stw_error *err);

#define STW_NAMES_MAX_STARS 4u
typedef struct stw_names_stars {
    uint32_t n;
    const char *text[STW_NAMES_MAX_STARS];
    size_t length[STW_NAMES_MAX_STARS];
} stw_names_stars;
/** True if a name matches a pattern; gives the text of each star, earlier stars as short as
 * possible. */
bool stw_names_match(const char *pattern, const char *name, stw_names_stars *stars);
/** Returns the pattern with its stars replaced. NULL if out of memory. */
char *stw_names_apply(stw_pool *pool, const char *pattern, const stw_names_stars *stars);

#endif
