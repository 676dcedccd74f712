/* SPDX-License-Identifier: Apache-2.0 */
/* Models, and where their data lie. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "library/handles.h"
#include "stw_config.h"

/* ---- data ---- */

/* share/stowage beside the lib/, lib/<triplet>/ or bin/ in which this code lies. */
static bool near_this_code(char *out, size_t out_size) {
    static const char *const up[] = {"..", "../.."};
    char folder[3072];
    if (!stw_code_folder(folder, sizeof folder)) return false;
    for (int i = 0; i < 2; i++) {
        snprintf(out, out_size, "%s/%s/share/stowage", folder, up[i]);
        if (stw_file_is_folder(out)) return true;
    }
    return false;
}

/* $STOWAGE_DATA, share/stowage near the library or the program, that of the installation, or the
 * source tree. */
static stw_status find_data(char *out, size_t out_size, stw_error *err) {
    static const char *const fixed[] = {STW_INSTALLED_DATA,
#ifdef STW_SOURCE_MODELS
                                        STW_SOURCE_MODELS
#endif
    };
    const char *given = getenv("STOWAGE_DATA");
    if (given != NULL && given[0] != '\0') {
        snprintf(out, out_size, "%s", given);
        return STW_STATUS_OK;
    }
    if (near_this_code(out, out_size)) return STW_STATUS_OK;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        snprintf(out, out_size, "%s", fixed[i]);
        if (stw_file_is_folder(out)) return STW_STATUS_OK;
    }
    return stw_fail(err, STW_STATUS_IO, STW_INSTALLED_DATA,
                    "no data folder found; set STOWAGE_DATA to share/stowage");
}

/* ---- models ---- */

stw_status_t stw_open_model(const char *what, stw_model_t **out, stw_error_t *error) {
    stw_status status = STW_STATUS_OK;
    stw_error *err = stw_library_begin(error);
    char data[4096];
    stw_model_t *handle = NULL;
    if (out != NULL) *out = NULL;
    STW_TRY(stw_library_need(what, "what", err));
    STW_TRY(stw_library_need(out, "out", err));
    handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, what, "out of memory for a model"));
    STW_TRY(find_data(data, sizeof data, err));
    STW_TRY(stw_model_open(what, data, &handle->model, err));
    *out = handle;
    handle = NULL;
out:
    free(handle);
    return stw_library_end(status, error);
}

void stw_free_model(stw_model_t *model) {
    if (model == NULL) return;
    stw_model_free(model->model);
    free(model);
}

void stw_get_model_info(const stw_model_t *model, stw_model_info_t *out, size_t size) {
    static const stw_model_info_t none = {0};
    if (model == NULL) {
        stw_library_copy(out, size, &none, sizeof none);
        return;
    }
    const stw_model *m = model->model;
    const stw_model_info_t info = {.name = m->name,
                                   .source = m->source,
                                   .model_type = m->model_type,
                                   .digest = m->digest,
                                   .params = m->params,
                                   .active_params = m->active_params,
                                   .tensors = m->n_tensors};
    stw_library_copy(out, size, &info, sizeof info);
}

int stw_get_tensor(const stw_model_t *model, uint32_t i, stw_tensor_t *out, size_t size) {
    if (model == NULL || out == NULL) return 0;
    const stw_model *m = model->model;
    if (i >= m->n_tensors) return 0;
    const stw_tensor *t = &m->tensors[i];
    stw_tensor_t tensor = {.name = t->name,
                           .dtype = stw_dtype_name(t->dtype),
                           .block = m->groups[m->blocks[t->block].group].name,
                           .elements = t->numel,
                           .dimensions = t->rank};
    memcpy(tensor.shape, t->shape, t->rank * sizeof tensor.shape[0]);
    stw_library_copy(out, size, &tensor, sizeof tensor);
    return 1;
}

_Static_assert(STOWAGE_MAX_RANK == STW_TENSOR_MAX_RANK, "a tensor's shape would be cut");
