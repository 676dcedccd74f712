/* SPDX-License-Identifier: Apache-2.0 */
/* config.json and, beneath it, the templates' expressions. */
#include <stdlib.h>

#include "models/internal.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_model *model = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_model_parse_config("config.json", (const char *)data, size,
                                               STW_SOURCE_MODELS, &model, &err);
    /* an error says what it is, and nothing is left behind */
    if ((status == STW_STATUS_OK) != (model != NULL) || status != err.status) abort();
    if (status != STW_STATUS_OK && (status != STW_STATUS_BAD_INPUT || err.text[0] == '\0')) abort();
    if (model != NULL && (model->params == 0 || model->active_params > model->params)) abort();
    stw_model_free(model);
    return 0;
}
