/* SPDX-License-Identifier: Apache-2.0 */
/* How published files name and divide the tensors of a model. Templates (models/arch) name tensors
 * as the reference implementation builds them. Published files may store each expert separately,
 * gate and up separately, matrices transposed, or under other names. models/names/<model_type>.csv
 * has the rules; README.md there describes the rows. The files are compiled in, so that programs
 * need no data folder for them.
 *
 * There are two views. A form tells how one tensor is composed of published tensors in one edition
 * of the files; a load takes the first form whose tensors a folder has. A list holds all published
 * tensors of a model in the first edition, and the parts that map them to the model's tensors,
 * element by element. Rules and lists own their memory, are read-only once made and may be shared
 * between threads. */
#ifndef STW_MODELS_NAMES_H
#define STW_MODELS_NAMES_H

#include "models/model.h"
#include "models/names_rules.h"

#define STW_NAMES_MAX_ROWS 4u
#define STW_NAMES_NONE UINT32_MAX

/** How one tensor of a model is composed of published ones. */
typedef struct stw_names_form {
    stw_names_way way;
    bool singly;  /* each expert (dimension 0) is a separate tensor without that dimension */
    uint32_t dim; /* dimension of the tensor along which the published ones follow each other, in
                     equal parts */
    uint32_t n;   /* published tensors; per expert if singly */
    const char *names[STW_NAMES_MAX_ROWS]; /* "{e}" stands for the number of the expert */
    const char *ending, *scales; /* packed ways: endings of the names of elements and scales */
    /* The tensor is a part of names[0]: elements [first, first + shape[dim]) of `whole` along dim.
     * Else whole is 0. */
    uint64_t first, whole;
} stw_names_form;

typedef struct stw_names stw_names;

/** Open the rules of a model's model_type; without a file, the rules for every model. The model is
 * borrowed. */
STW_MUST_USE stw_status stw_names_open(const stw_model *model, stw_names **out, stw_error *err);
void stw_names_free(stw_names *names); /* NULL is fine */
/** Returns the number of editions (ways in which files name the model), at least 1. The first is
 * the publisher's. */
uint32_t stw_names_editions(const stw_names *names);
/** Give the form of a tensor (or a buffer or extra tensor) of the model in an edition. Its names
 * lie in `pool`. A tensor that no row names is published as it is. */
STW_MUST_USE stw_status stw_names_form_of(const stw_names *names, const stw_tensor *tensor,
                                          uint32_t edition, stw_pool *pool, stw_names_form *out,
                                          stw_error *err);
/** Returns another name under which a tied tensor is published (k = 0, 1 ...), or NULL past the
 * last. */
const char *stw_names_copy_of(const stw_names *names, const char *tensor, uint32_t k,
                              stw_pool *pool);
/** Returns the name of the scales of a published tensor (k = 0, 1 ...), or NULL past the last. */
const char *stw_names_scale_of(const stw_names *names, const char *published, uint32_t k,
                               stw_pool *pool);
/** Write the k-th name of a form for an expert. False if `out` has no room.
 * @param ending packed ways: form->ending or form->scales; else NULL */
bool stw_names_fill(const stw_names_form *form, uint32_t k, uint64_t expert, const char *ending,
                    char *out, size_t out_size);
/** Give the shape of each published tensor of a form, before packing. False if the tensor cannot be
 * divided in this way. */
STW_MUST_USE bool stw_names_shape(const stw_names_form *form, const stw_tensor *tensor,
                                  uint32_t *rank, uint64_t shape[STW_TENSOR_MAX_RANK]);

/* ---- lists ---- */

typedef enum stw_published_kind {
    STW_PUBLISHED_WEIGHT,
    STW_PUBLISHED_BUFFER,
    STW_PUBLISHED_SCALE,
    STW_PUBLISHED_EXTRA,
    STW_N_PUBLISHED_KINDS
} stw_published_kind;
/** "weight", "buffer", "scale", "extra". */
const char *stw_published_kind_name(stw_published_kind kind);

/** A tensor of the published files. */
typedef struct stw_published {
    const char *name;
    stw_published_kind kind;
    stw_dtype dtype;
    uint32_t rank;
    uint64_t shape[STW_TENSOR_MAX_RANK]; /* as stored */
} stw_published;

/** The elements of a model's tensor that one published tensor holds. */
typedef struct stw_names_part {
    uint32_t tensor;           /* index in the model: tensors, then buffers, then extras */
    uint32_t published, scale; /* indices in the list; scale: STW_NAMES_NONE if none */
    stw_names_way way;
    bool singly; /* `expert` is the index in dimension 0, which the published tensor lacks */
    uint64_t expert;
    uint32_t dim; /* elements [first, first + count) along it, all elements along the others */
    uint64_t first, count;
    uint64_t published_first; /* first element along dim in the published tensor */
} stw_names_part;

typedef struct stw_names_list {
    stw_pool *pool;
    const stw_model *model; /* borrowed */
    uint32_t n_published, n_parts;
    stw_published *published; /* in the order of the model's tensors */
    stw_names_part *parts;    /* in the order of the model's tensors */
    uint64_t bytes;           /* bytes of all published tensors */
} stw_names_list;

/** Make the list of a model's published tensors. Block scales of fp8 are for 128 x 128 elements, as
 * all publishers have them. BAD_INPUT if rows do not match the model's shapes. */
STW_MUST_USE stw_status stw_names_list_make(const stw_model *model, stw_names_list **out,
                                            stw_error *err);
void stw_names_list_free(stw_names_list *list); /* NULL is fine */
/** Returns the tensor of an index of stw_names_part.tensor. */
const stw_tensor *stw_names_tensor(const stw_model *model, uint32_t index);

/** A box of elements: first and count along each dimension. stw_names_boxes gives the box of a part
 * in the tensor and in the published tensor (unpacked). */
typedef struct stw_names_box {
    uint32_t rank;
    uint64_t first[STW_TENSOR_MAX_RANK], count[STW_TENSOR_MAX_RANK];
} stw_names_box;
void stw_names_boxes(const stw_names_list *list, const stw_names_part *part, stw_names_box *tensor,
                     stw_names_box *published);

#endif
