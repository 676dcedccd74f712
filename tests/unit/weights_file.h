/* SPDX-License-Identifier: Apache-2.0 */
/* The model's seeded weights as safetensors files, in dtypes in which they are exact. */
#ifndef STW_TESTS_UNIT_WEIGHTS_FILE_H
#define STW_TESTS_UNIT_WEIGHTS_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/element.h"
#include "models/model.h"

/* Seeded weights are +-(1 + k / 128) * 2^-7 or 2^-6: fp16 has the same numbers. */
static uint16_t weights_half(float value) {
    const uint32_t bits = stw_bits_from_float(value);
    return (uint16_t)((bits >> 16 & 0x8000u) | ((bits >> 23 & 0xffu) - 112u) << 10 |
                      (bits >> 13 & 0x3ffu));
}

static void weights_put(FILE *file, stw_dtype dtype, float value) {
    const double wide = (double)value;
    const uint16_t half = weights_half(value), brain = (uint16_t)(stw_bits_from_float(value) >> 16);
    if (dtype == STW_DTYPE_F64) fwrite(&wide, 8, 1, file);
    if (dtype == STW_DTYPE_F32) fwrite(&value, 4, 1, file);
    if (dtype == STW_DTYPE_F16) fwrite(&half, 2, 1, file);
    if (dtype == STW_DTYPE_BF16) fwrite(&brain, 2, 1, file);
}

/* Tensors [first, end) in one file. @param dtypes tensor t has dtypes[t % n]
 * @param short_of this tensor lacks a row; UINT32_MAX: none does */
static void weights_write_part(const stw_model *model, uint64_t seed, const char *path,
                               uint32_t first, uint32_t end, const stw_dtype *dtypes, uint32_t n,
                               uint32_t short_of) {
    FILE *file = fopen(path, "wb");
    char *header = malloc(1 << 20);
    size_t length = (size_t)sprintf(header, "{");
    uint64_t at = 0, element = 0;
    for (uint32_t t = first; t < end; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        const stw_dtype dtype = dtypes[t % n];
        uint64_t rows = tensor->shape[0] - (t == short_of ? 1 : 0), columns = tensor->shape[1];
        uint64_t bytes = rows * (tensor->rank > 1 ? columns : 1) * stw_dtype_bits(dtype) / 8;
        length += (size_t)sprintf(header + length, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu",
                                  t > first ? "," : "", tensor->name, stw_dtype_name(dtype),
                                  (unsigned long long)rows);
        if (tensor->rank > 1)
            length += (size_t)sprintf(header + length, ",%llu", (unsigned long long)columns);
        length += (size_t)sprintf(header + length, "],\"data_offsets\":[%llu,%llu]}",
                                  (unsigned long long)at, (unsigned long long)(at + bytes));
        at += bytes;
    }
    length += (size_t)sprintf(header + length, "}");
    while (length % 8 != 0) header[length++] = ' ';
    uint64_t header_bytes = length;
    fwrite(&header_bytes, 8, 1, file);
    fwrite(header, 1, length, file);
    for (uint32_t t = 0; t < first; t++) element += model->tensors[t].numel;
    for (uint32_t t = first; t < end; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        uint64_t rows = tensor->shape[0] - (t == short_of ? 1 : 0);
        for (uint64_t i = 0; i < rows * (tensor->rank > 1 ? tensor->shape[1] : 1); i++)
            weights_put(file, dtypes[t % n], stw_seeded_weight(seed, element + i));
        element += tensor->numel;
    }
    fclose(file);
    free(header);
}

#endif
