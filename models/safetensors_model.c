/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "models/internal.h"

/* Names of tensors in checkpoints that are not parameters. */
static bool is_buffer(const char *name) {
    static const char *const names[] = {
        "e_score_correction_bias", "inv_freq", "position_ids", "running_mean", "running_var",
        "num_batches_tracked"};
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

/* Assign buffers to the block with their number, else to the first block. */
static stw_status place_buffers(stw_model *model, stw_error *err) {
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

static stw_status fill(stw_model *model, const stw_safetensors *set, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    model->tensors = stw_pool_array(model->pool, set->n_entries, sizeof *model->tensors);
    model->buffer_tensors = stw_pool_array(model->pool, set->n_entries, sizeof *model->tensors);
    if (model->tensors == NULL || model->buffer_tensors == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    for (uint32_t k = 0; k < set->n_entries; k++) {
        const stw_safetensors_entry *entry = &set->entries[k];
        stw_tensor *tensor = is_buffer(entry->name) ? &model->buffer_tensors[model->n_buffers++]
                                                    : &model->tensors[model->n_tensors++];
        tensor->name = stw_pool_string(model->pool, entry->name);
        tensor->rank = entry->rank;
        memcpy(tensor->shape, entry->shape, sizeof tensor->shape);
        tensor->dtype = entry->dtype;
        tensor->experts = 1;
        if (tensor->name == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
        STW_TRY(stw_tensor_count(tensor, err));
    }
    STW_TRY(stw_model_group_by_name(model, NULL, err));
    STW_TRY(place_buffers(model, err));
    STW_TRY(stw_model_finish(model, err));
out:
    return status;
}

stw_status stw_model_read_safetensors(const char *path, stw_model **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_safetensors *set = NULL;
    stw_model *model = NULL;
    *out = NULL;
    STW_TRY(stw_safetensors_open(path, &set, err));
    model = stw_model_new("", path, "");
    if (model != NULL) model->name = stw_model_name_of(model->pool, path);
    if (model == NULL || model->name == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
        goto out;
    }
    STW_TRY(fill(model, set, err));
    *out = model;
    model = NULL;
out:
    stw_model_free(model);
    stw_safetensors_free(set);
    return status;
}
