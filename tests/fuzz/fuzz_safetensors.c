/* SPDX-License-Identifier: Apache-2.0 */
/* A whole safetensors file: length, header, data. What is accepted must lie inside the file. */
#include <stdlib.h>

#include "models/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    unsigned char first[8] = {0};
    uint64_t length = 0, covered = 0;
    stw_error err = STW_ERROR_INIT;
    stw_safetensors_entry *entries = NULL;
    uint32_t n = 0;
    for (size_t k = 0; k < 8 && k < size; k++) first[k] = data[k];
    stw_pool *pool = stw_pool_new();
    stw_status status = stw_safetensors_header_length("x.safetensors", first, size, &length, &err);
    if (status == STW_STATUS_OK) {
        const stw_safetensors_header header = {"x.safetensors", (const char *)data + 8, length,
                                               size};
        status = stw_safetensors_parse(pool, &header, &entries, &n, &err);
    }
    if (status != STW_STATUS_OK && (status != STW_STATUS_BAD_INPUT || err.text[0] == '\0')) abort();
    for (uint32_t k = 0; status == STW_STATUS_OK && k < n; k++) {
        stw_name_parts parts;
        if (entries[k].offset_bytes < 8 + length || entries[k].offset_bytes > size ||
            entries[k].bytes > size - entries[k].offset_bytes)
            abort();
        covered += entries[k].bytes;
        stw_name_read(entries[k].name, &parts);
    }
    if (status == STW_STATUS_OK && covered != size - 8 - length) abort();
    stw_pool_free(pool);
    return 0;
}
