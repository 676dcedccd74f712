/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of frameworks: YAML maps, command lines, scripts, configs, and the model that follows.
 * The corpus is read as the file of every framework, and all models are made. A fuzzer reads an
 * input as the file of one framework, picked by its length, which most mutations keep, and makes
 * the model of one of 8: reading the zoo and a template takes as long as 10 imports. */
#include <stdio.h>
#include <stdlib.h>

#include "planner/frameworks/import/import.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef STW_FUZZING
enum { MODELS = 8, ALL_FRAMEWORKS = 0 };
#else
enum { MODELS = 1, ALL_FRAMEWORKS = 1 };
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void import_as(const char *framework, const char *data, size_t size, bool with_model) {
    stw_import import;
    stw_model *model = NULL;
    stw_text text = STW_TEXT_INIT;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_import_parse(framework, "arguments", data, size, &import, &err);
    bool named = false;
    if (status == STW_STATUS_OK) {
        stw_import_write(&import, &text);
        named = with_model && stw_import_has_model(&import);
        if (named) status = stw_import_model(&import, NULL, STW_SOURCE_MODELS, &model, &err);
    }
    const bool allowed = status == STW_STATUS_OK || status == STW_STATUS_BAD_INPUT ||
                         status == STW_STATUS_NOT_BUILT_IN;
    if (!allowed || status != err.status || (status == STW_STATUS_OK && named) != (model != NULL)) {
        char message[1200];
        stw_error_format(&err, message, sizeof message);
        fprintf(stderr, "%s: status %d (%s), error %d: %s; %s model\n", framework, (int)status,
                stw_status_text(status), (int)err.status, message, model != NULL ? "a" : "no");
        abort();
    }
    stw_model_free(model);
    stw_text_free(&text);
    stw_import_free(&import);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const frameworks[] = {"megatron", "ms-swift",     "deepspeed",
                                             "verl",     "llamafactory", "areal"};
    enum { N = sizeof frameworks / sizeof frameworks[0] };
    const bool with_model = XXH3_64bits(data, size) % MODELS == 0;
    for (size_t i = 0; i < N; i++)
        if (ALL_FRAMEWORKS || i == size % N)
            import_as(frameworks[i], (const char *)data, size, with_model);
    return 0;
}
