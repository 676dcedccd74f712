/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a checkpoint, as they follow from a model alone: which tensors they hold, where each
 * begins, and which bytes of which file an element of the state has. The model part has the
 * published names (models/names.h) and opens as any Hugging Face folder; the optimizer part has
 * "exp_avg.<tensor>" and so on, in whole tensors with the model's own names. All of it is a pure
 * function, the same on every rank. Read-only once made; any thread.
 *
 * Tensors have up to four dimensions here: those beyond the fourth are one with it. */
#ifndef STW_PLAN_CHECKPOINT_SAVED_H
#define STW_PLAN_CHECKPOINT_SAVED_H

#include "core/text.h"
#include "models/model.h"
#include "plan/sync/box.h"

/** What a checkpoint holds of an element. */
typedef enum stw_saved_kind {
    STW_SAVED_PARAMS,
    STW_SAVED_MASTER,
    STW_SAVED_EXP_AVG,
    STW_SAVED_EXP_AVG_SQ,
    STW_N_SAVED
} stw_saved_kind;
#define STW_SAVED_STATE ((1u << STW_N_SAVED) - 2) /* all but params */
/** "params", "master", "exp_avg", "exp_avg_sq". */
const char *stw_saved_name(stw_saved_kind kind);

/** A tensor of a file. */
typedef struct stw_saved_entry {
    const char *name;
    stw_dtype dtype;
    uint32_t rank;
    uint64_t shape[STW_TENSOR_MAX_RANK];
    uint64_t bytes;
    uint32_t file;
    uint64_t offset; /* of its first byte, from the start of the file */
} stw_saved_entry;

/** A box of a tensor of the model, and where its elements lie in an entry. */
typedef struct stw_saved_part {
    stw_box box;
    uint32_t entry;
    uint64_t first;                /* byte of the entry of the box's first element */
    uint64_t stride[STW_BOX_DIMS]; /* bytes from one element to the next along a dimension */
} stw_saved_part;

typedef struct stw_saved_file {
    const char *name;
    uint64_t header_bytes, bytes; /* header_bytes: its length field included */
    const char *header;           /* [header_bytes] */
} stw_saved_file;

typedef struct stw_saved_files {
    stw_pool *pool;
    uint32_t n_tensors; /* of the model */
    const stw_model *model;
    uint64_t (*shapes)[STW_BOX_DIMS]; /* [n_tensors] folded */
    bool *trains;                     /* [n_tensors] has optimizer state */
    uint32_t kinds;                   /* a bit for each stw_saved_kind */
    stw_dtype dtypes[STW_N_SAVED];    /* params: of the model's tensors, where they are mixed */
    uint32_t n_entries, n_model_entries;
    stw_saved_entry *entries; /* those of the model first */
    uint32_t *first_part;     /* [STW_N_SAVED * n_tensors + 1] by kind, then tensor */
    stw_saved_part *parts;
    uint32_t n_files, n_model_files;
    stw_saved_file *files; /* those of the model first */
    uint64_t bytes;        /* of all files */
} stw_saved_files;

typedef struct stw_saved_options {
    uint32_t kinds;                /* a bit for each stw_saved_kind that is saved */
    stw_dtype dtypes[STW_N_SAVED]; /* F32, BF16, F16 */
    const stw_dtype *params;       /* [n_tensors] NULL: all are dtypes[STW_SAVED_PARAMS] */
    const bool *frozen;            /* [n_tensors] without optimizer state; NULL: none is */
    uint64_t file_bytes;           /* about the most of one file; 0: 5 GiB */
} stw_saved_options;

/** The files of a model. The model is borrowed.
 * @return BAD_INPUT where models/names cannot cut the model's tensors */
STW_MUST_USE stw_status stw_saved_make(const stw_model *model, const stw_saved_options *options,
                                       stw_saved_files **out, stw_error *err);
void stw_saved_free(stw_saved_files *saved); /* NULL is fine */
/** model.safetensors.index.json, appended. */
STW_MUST_USE stw_status stw_saved_index(const stw_saved_files *saved, stw_text *out,
                                        stw_error *err);
/** Parts of a tensor's state: *first up to the returned number, apart and together the tensor. */
static inline const stw_saved_part *
stw_saved_parts(const stw_saved_files *saved, stw_saved_kind kind, uint32_t tensor, uint32_t *n) {
    const uint32_t *at = &saved->first_part[(uint32_t)kind * saved->n_tensors + tensor];
    *n = at[1] - at[0];
    return saved->parts + at[0];
}
/** dtype of a tensor's state. */
stw_dtype stw_saved_dtype(const stw_saved_files *saved, stw_saved_kind kind, uint32_t tensor);
/** Shape in four dimensions. */
void stw_saved_fold(uint32_t rank, const uint64_t *shape, uint64_t out[STW_BOX_DIMS]);

/* ---- rows ---- */

/** Elements that are neighbours in a file and where they come from. */
typedef struct stw_saved_row {
    uint32_t entry;
    uint64_t offset, bytes; /* in the entry's file */
    uint64_t first, n;      /* element of the source, elements */
} stw_saved_row;

/** Where the elements of a box lie at their owner: element `first` is the box's first one. */
typedef struct stw_saved_source {
    stw_saved_kind kind;
    uint32_t tensor;
    stw_box box;
    uint64_t first, stride[STW_BOX_DIMS];
} stw_saved_source;

typedef stw_status stw_saved_row_fn(void *state, const stw_saved_row *row, stw_error *err);
/** All rows of a box. */
STW_MUST_USE stw_status stw_saved_rows(const stw_saved_files *saved, const stw_saved_source *source,
                                       stw_saved_row_fn *fn, void *state, stw_error *err);
/** A box as it lies in the tensor itself, C order. */
stw_saved_source stw_saved_in_tensor(const stw_saved_files *saved, stw_saved_kind kind,
                                     uint32_t tensor, const stw_box *box);

#endif
