/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a checkpoint that are not parameters, and the blocks to which they belong. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "models/internal.h"

static bool is_integer(stw_dtype dtype) {
    return dtype >= STW_DTYPE_I64 && dtype <= STW_DTYPE_BOOL;
}

bool stw_is_buffer(const char *name, stw_dtype dtype) {
    /* names in checkpoints of what is not trained */
    static const char *const names[] = {
        "e_score_correction_bias", "inv_freq", "position_ids", "running_mean", "running_var",
        "num_batches_tracked"};
    if (is_integer(dtype)) return true;
    const char *dot = strrchr(name, '.');
    const char *last = dot != NULL ? dot + 1 : name;
    for (unsigned k = 0; k < sizeof names / sizeof names[0]; k++)
        if (strcmp(last, names[k]) == 0) return true;
    return false;
}

/* A block and the common prefix of its tensor names. */
typedef struct place {
    const char *name;
    stw_name_parts parts;
    uint32_t block;
} place;

static int by_place(const void *x, const void *y) {
    const place *a = x, *b = y;
    if (a->parts.prefix != b->parts.prefix) return a->parts.prefix < b->parts.prefix ? -1 : 1;
    int order = memcmp(a->name, b->name, a->parts.prefix);
    if (order != 0) return order;
    return (a->parts.number > b->parts.number) - (a->parts.number < b->parts.number);
}

stw_status stw_model_place_buffers(stw_model *model, stw_error *err) {
    place *places = stw_pool_array(model->pool, model->n_blocks, sizeof *places);
    if (places == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        places[b].name = model->tensors[model->blocks[b].first_tensor].name;
        places[b].block = b;
        stw_name_read(places[b].name, &places[b].parts);
    }
    qsort(places, model->n_blocks, sizeof *places, by_place);
    for (uint32_t k = 0; k < model->n_buffers; k++) {
        place wanted = {.name = model->buffer_tensors[k].name};
        stw_name_read(wanted.name, &wanted.parts);
        const place *found = bsearch(&wanted, places, model->n_blocks, sizeof *places, by_place);
        if (found != NULL) model->buffer_tensors[k].block = found->block;
    }
    return STW_STATUS_OK;
}

void stw_model_warn_of_integers(const stw_model *model) {
    uint64_t integers = 0;
    for (uint32_t k = 0; k < model->n_buffers; k++)
        if (is_integer(model->buffer_tensors[k].dtype)) integers += model->buffer_tensors[k].numel;
    if (integers > model->params)
        stw_log(STW_LOG_WARN,
                "%s: most elements are integers, which are not trained; if they are quantized "
                "weights, use the model's config.json",
                model->source);
}
