/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <strings.h>

#include "models/model.h"

/* Names: safetensors, torch, short; NULL if a notation has none. */
static const struct {
    unsigned bits;
    const char *name, *torch, *brief;
} table[STW_N_DTYPES] = {
    [STW_DTYPE_F64] = {64, "F64", "float64", "fp64"},
    [STW_DTYPE_F32] = {32, "F32", "float32", "fp32"},
    [STW_DTYPE_F16] = {16, "F16", "float16", "fp16"},
    [STW_DTYPE_BF16] = {16, "BF16", "bfloat16", NULL},
    [STW_DTYPE_I64] = {64, "I64", "int64", NULL},
    [STW_DTYPE_I32] = {32, "I32", "int32", NULL},
    [STW_DTYPE_I16] = {16, "I16", "int16", NULL},
    [STW_DTYPE_I8] = {8, "I8", "int8", NULL},
    [STW_DTYPE_U8] = {8, "U8", "uint8", NULL},
    [STW_DTYPE_BOOL] = {8, "BOOL", "bool", NULL},
    [STW_DTYPE_F8_E4M3] = {8, "F8_E4M3", "float8_e4m3fn", "fp8"},
    [STW_DTYPE_F8_E5M2] = {8, "F8_E5M2", "float8_e5m2", NULL},
    [STW_DTYPE_F8_E8M0] = {8, "F8_E8M0", "float8_e8m0fnu", NULL},
    [STW_DTYPE_F4] = {4, "F4", "float4_e2m1fn_x2", "fp4"},
};

unsigned stw_dtype_bits(stw_dtype dtype) { return table[dtype].bits; }

const char *stw_dtype_name(stw_dtype dtype) { return table[dtype].name; }

bool stw_dtype_parse(const char *text, stw_dtype *out) {
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    for (unsigned d = 0; d < STW_N_DTYPES; d++) {
        const char *names[] = {table[d].name, table[d].torch, table[d].brief};
        for (unsigned k = 0; k < 3; k++) {
            if (names[k] == NULL || strcasecmp(text, names[k]) != 0) continue;
            *out = (stw_dtype)d;
            return true;
        }
    }
    return false;
}
