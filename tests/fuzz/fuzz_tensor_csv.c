/* SPDX-License-Identifier: Apache-2.0 */
/* CSV tensor lists, and the making of blocks and groups from names. */
#include <stdlib.h>

#include "models/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_model *model = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_model_parse_csv("list.csv", (const char *)data, size, &model, &err);
    if ((status == STW_STATUS_OK) != (model != NULL) || status != err.status) abort();
    if (status != STW_STATUS_OK && (status != STW_STATUS_BAD_INPUT || err.text[0] == '\0')) abort();
    if (model != NULL && (model->n_groups == 0 || model->n_blocks > model->n_tensors)) abort();
    stw_model_free(model);
    return 0;
}
