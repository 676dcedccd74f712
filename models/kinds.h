/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of blocks while tensors are grouped by name: two blocks are of one kind if they have the
 * same base name and equal shapes. Each kind becomes a tensor group with a name of its own. Hash
 * tables keep the time linear in the number of tensors. Private to models/; allocated in the
 * model's pool; one thread at a time. */
#ifndef STW_MODELS_KINDS_H
#define STW_MODELS_KINDS_H

#include "models/internal.h"

/** A kind and its name. */
typedef struct stw_kind {
    const char *base; /* name before a number was added */
    const char *name;
    const stw_block *block; /* the first of the kind */
    uint64_t hash;          /* hash of base and shapes */
} stw_kind;

/** A base name and the number that its next kind tries first. */
typedef struct stw_base {
    const char *name;
    uint32_t next;
} stw_base;

typedef struct stw_kinds {
    const stw_model *model;
    uint32_t n, n_bases;
    size_t n_slots; /* slots of each table: a power of two, at least twice the number of blocks */
    stw_kind *kinds;
    stw_base *bases;
    /* hash tables: index + 1 into kinds, kinds and bases; 0: empty */
    uint32_t *by_shape, *by_name, *by_base;
    uint64_t probes; /* entries compared: tests limit this work */
    size_t groups_capacity;
} stw_kinds;

/** Tables for the blocks of `model` (n_blocks and tensors are set). False if out of memory. */
STW_MUST_USE bool stw_kinds_init(stw_kinds *kinds, const stw_model *model);
/** Find the kind of a block or make one.
 * @param index out
 * @param name out: the name of a new kind, "layer", "layer_2" and so on, skipping names in use;
 * NULL if the kind is known. False if out of memory. */
STW_MUST_USE bool stw_kinds_join(stw_kinds *kinds, const stw_block *block, const char *base,
                                 uint32_t *index, const char **name);

#endif
