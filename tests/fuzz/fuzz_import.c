/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of Megatron-LM: YAML maps and command lines, and the model that follows. */
#include <stdlib.h>

#include "planner/frameworks/import.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stw_import import;
    stw_model *model = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_error err = STW_ERROR_INIT;
    stw_status status =
        stw_import_parse("megatron", "arguments", (const char *)data, size, &import, &err);
    if (status == STW_STATUS_OK) {
        stw_import_write(&import, &text);
        status = stw_import_model(&import, STW_SOURCE_MODELS, &model, &err);
    }
    if ((status == STW_STATUS_OK) != (model != NULL) || status != err.status) abort();
    if (status != STW_STATUS_OK && status != STW_STATUS_BAD_INPUT &&
        status != STW_STATUS_NOT_BUILT_IN)
        abort();
    stw_model_free(model);
    stw_text_free(&text);
    stw_import_free(&import);
    return 0;
}
