/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA kernels share: checks that count failures, random floats, and arrays
 * of either element type on both sides of the link. For one program each. */
#ifndef STW_TESTS_GPU_TYPED_ARRAYS_H
#define STW_TESTS_GPU_TYPED_ARRAYS_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernels.h"

static unsigned failures;
static stw_cuda_launch launch;

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(code_));                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The first failures are printed, all are counted. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            if (failures++ < 20) {                                                                 \
                fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                    \
                fprintf(stderr, __VA_ARGS__);                                                      \
                fprintf(stderr, "\n");                                                             \
            }                                                                                      \
        }                                                                                          \
    } while (0)

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const stw_element both[] = {STW_ELEMENT_F32, STW_ELEMENT_BF16};

static uint64_t random_state = 0x243F6A8885A308D3ull;
static uint64_t random64(void) { return stw_mix64(random_state++); }
static uint64_t random_below(uint64_t n) { return random64() % n; }

/* Signed, with exponents from `low` to `high`, and some zeros and subnormals. */
static float random_float(int low, int high, int positive) {
    uint64_t r = random64();
    uint32_t sign = positive ? 0 : (uint32_t)(r >> 63) << 31;
    uint32_t kind = (uint32_t)(r >> 32) & 63u;
    uint32_t mantissa = (uint32_t)r & 0x7FFFFFu;
    if (kind == 0) return stw_float_from_bits(sign);
    if (kind == 1) return stw_float_from_bits(sign | mantissa);
    uint32_t exponent = (uint32_t)(low + (int)((r >> 40) % (uint64_t)(high - low + 1)) + 127);
    return stw_float_from_bits(sign | exponent << 23 | mantissa);
}

/* ---- typed memory ---- */

static float get(stw_element type, const void *at) {
    uint16_t half;
    float single;
    if (type == STW_ELEMENT_BF16) {
        memcpy(&half, at, sizeof half);
        return stw_float_from_bf16(half);
    }
    memcpy(&single, at, sizeof single);
    return single;
}
static void set(stw_element type, void *at, float value) {
    uint16_t half = stw_bf16_from_float(value);
    if (type == STW_ELEMENT_BF16)
        memcpy(at, &half, sizeof half);
    else
        memcpy(at, &value, sizeof value);
}
static uint32_t stored_bits(stw_element type, const void *at) {
    uint32_t bits = stw_bits_from_float(get(type, at));
    return type == STW_ELEMENT_BF16 ? bits >> 16 : bits;
}
static const char *type_name(stw_element type) {
    return type == STW_ELEMENT_F32 ? "f32" : type == STW_ELEMENT_BF16 ? "bf16" : "none";
}

/* A host array and its copy on the GPU. */
typedef struct array {
    stw_element type;
    uint64_t elements;
    unsigned char *host, *seen; /* what is to come out; what came back */
    unsigned char *device;
    bool pinned; /* device is page-locked host memory */
} array;

static array array_new(stw_element type, uint64_t elements, bool pinned) {
    array a = {.type = type, .elements = elements, .pinned = pinned};
    void *memory = NULL;
    a.host = malloc((size_t)elements * 4);
    a.seen = malloc((size_t)elements * 4);
    if (a.host == NULL || a.seen == NULL) exit(1);
    if (pinned)
        CUDA(cudaHostAlloc(&memory, (size_t)elements * 4, cudaHostAllocDefault));
    else
        CUDA(cudaMalloc(&memory, (size_t)elements * 4));
    a.device = memory;
    return a;
}
static void array_free(array *a) {
    free(a->host);
    free(a->seen);
    if (a->pinned)
        CUDA(cudaFreeHost(a->device));
    else
        CUDA(cudaFree(a->device));
}
static uint64_t bytes_of(const array *a, uint64_t elements) {
    return elements * stw_element_bytes(a->type);
}
static void fill(array *a, int low, int high, int positive) {
    for (uint64_t i = 0; i < a->elements; i++)
        set(a->type, a->host + bytes_of(a, i), random_float(low, high, positive));
}
static void put(const array *a) {
    CUDA(cudaMemcpyAsync(a->device, a->host, (size_t)bytes_of(a, a->elements), cudaMemcpyDefault,
                         launch.stream));
    CUDA(cudaStreamSynchronize(launch.stream));
}
/* @param any_nan a NaN of fp32 may be any: of what is converted, not of what is updated */
static bool same_value(stw_element type, const void *a, const void *b, bool any_nan) {
    if (stored_bits(type, a) == stored_bits(type, b)) return true;
    return any_nan && type == STW_ELEMENT_F32 && get(type, a) != get(type, a) &&
           get(type, b) != get(type, b);
}
static void same(const array *a, const char *what, bool any_nan) {
    size_t bytes = (size_t)bytes_of(a, a->elements);
    CUDA(cudaMemcpyAsync(a->seen, a->device, bytes, cudaMemcpyDefault, launch.stream));
    CUDA(cudaStreamSynchronize(launch.stream));
    if (memcmp(a->seen, a->host, bytes) == 0) return;
    for (uint64_t i = 0; i < a->elements; i++) {
        const void *gpu = a->seen + bytes_of(a, i), *cpu = a->host + bytes_of(a, i);
        if (same_value(a->type, gpu, cpu, any_nan)) continue;
        CHECK(0, "%s: element %llu of %llu is %08x on the GPU, not %08x", what,
              (unsigned long long)i, (unsigned long long)a->elements, stored_bits(a->type, gpu),
              stored_bits(a->type, cpu));
        return;
    }
}

#endif
