/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "models/internal.h"

static stw_status fill(stw_model *model, const stw_safetensors *set, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    model->tensors = stw_pool_array(model->pool, set->n_entries, sizeof *model->tensors);
    model->buffer_tensors = stw_pool_array(model->pool, set->n_entries, sizeof *model->tensors);
    if (model->tensors == NULL || model->buffer_tensors == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    for (uint32_t k = 0; k < set->n_entries; k++) {
        const stw_safetensors_entry *entry = &set->entries[k];
        stw_tensor *tensor = stw_is_buffer(entry->name, entry->dtype)
                                 ? &model->buffer_tensors[model->n_buffers++]
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
    STW_TRY(stw_model_place_buffers(model, err));
    STW_TRY(stw_model_finish(model, err));
    stw_model_warn_of_integers(model);
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
    STW_TRY(stw_error_in(fill(model, set, err), path, err));
    *out = model;
    model = NULL;
out:
    stw_model_free(model);
    stw_safetensors_free(set);
    return status;
}
