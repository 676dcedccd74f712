/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of boxes of elements between memories, with a cast on the way: what a weight sync packs
 * and places. Lists of copies are made once and run many times; addresses may change in between.
 *
 * A copy is cut into tiles of about STW_BOX_TILE elements: some whole rows of its innermost
 * dimension, or a part of one. The tiles of a list are what threads and blocks share. */
#ifndef STW_BACKEND_BOXES_H
#define STW_BACKEND_BOXES_H

#include <stdbool.h>

#include "backend/element.h"
#ifndef __CUDACC__
#include "core/status.h"
#endif

/** Types of elements that are copied. Rounding is to nearest, ties to even. */
typedef enum stw_box_type { STW_BOX_F32, STW_BOX_BF16, STW_BOX_F16 } stw_box_type;

#define STW_BOX_COPY_DIMS 4
#define STW_BOX_TILE 8192u

/** The first bases are the buffers of a run; the others are addresses that were bound. */
enum { STW_BOX_FROM_BUFFER, STW_BOX_TO_BUFFER, STW_BOX_SENT_BUFFER, STW_BOX_FIRST_BASE };

/** Element (i, j, k, l) lies at base + from + i * from_stride[0] + ..., all in bytes. Dimensions of
 * one element come first, with strides of 0. */
typedef struct stw_box_copy {
    uint64_t from, to;
    uint64_t from_stride[STW_BOX_COPY_DIMS], to_stride[STW_BOX_COPY_DIMS];
    uint32_t count[STW_BOX_COPY_DIMS];
    uint32_t from_base, to_base;
    uint32_t first_tile; /* of the list's */
    uint16_t from_type, to_type;
} stw_box_copy;

/** Lists of copies, one after the other. */
typedef struct stw_box_lists {
    const stw_box_copy *copies; /* list l: first[l] to first[l + 1] - 1 */
    const uint32_t *first;      /* [n + 1] */
    const uint32_t *tiles;      /* [n] */
    uint32_t n;
} stw_box_lists;

/** Buffers of a run: where bases STW_BOX_FROM_BUFFER ... lie. NULL: no copy of the list uses it. */
typedef struct stw_box_buffers {
    const void *from, *sent;
    void *to;
} stw_box_buffers;

/** A part of a copy. */
typedef struct stw_box_tile {
    uint32_t row, rows; /* rows of all outer dimensions together */
    uint32_t at, n;     /* elements of each of them */
} stw_box_tile;

STW_HD uint32_t stw_box_width(uint32_t type) { return type == STW_BOX_F32 ? 4u : 2u; }

STW_HD uint32_t stw_box_rows(const stw_box_copy *copy) {
    return copy->count[0] * copy->count[1] * copy->count[2];
}

STW_HD uint32_t stw_box_tiles(const stw_box_copy *copy) {
    const uint32_t run = copy->count[3], rows = stw_box_rows(copy);
    if (run >= STW_BOX_TILE) return rows * ((run - 1) / STW_BOX_TILE + 1);
    const uint32_t at_once = STW_BOX_TILE / run;
    return (rows - 1) / at_once + 1;
}

/** Tile `tile` of a copy, counted from its own first one. */
STW_HD stw_box_tile stw_box_tile_of(const stw_box_copy *copy, uint32_t tile) {
    const uint32_t run = copy->count[3], rows = stw_box_rows(copy);
    stw_box_tile t;
    if (run >= STW_BOX_TILE) {
        const uint32_t of_row = (run - 1) / STW_BOX_TILE + 1;
        t.row = tile / of_row;
        t.rows = 1;
        t.at = tile % of_row * STW_BOX_TILE;
        t.n = run - t.at < STW_BOX_TILE ? run - t.at : STW_BOX_TILE;
    } else {
        const uint32_t at_once = STW_BOX_TILE / run;
        t.row = tile * at_once;
        t.rows = rows - t.row < at_once ? rows - t.row : at_once;
        t.at = 0;
        t.n = run;
    }
    return t;
}

/** Bytes from the first element to that with which a row begins. */
STW_HD void stw_box_row(const stw_box_copy *copy, uint32_t row, uint64_t *from, uint64_t *to) {
    uint32_t i = 0, j = 0, k = row;
    if (row >= copy->count[2]) {
        k = row % copy->count[2];
        j = row / copy->count[2];
        i = j / copy->count[1];
        j = j % copy->count[1];
    }
    *from = i * copy->from_stride[0] + j * copy->from_stride[1] + k * copy->from_stride[2];
    *to = i * copy->to_stride[0] + j * copy->to_stride[1] + k * copy->to_stride[2];
}

/* ---- half precision ---- */

STW_HD float stw_float_from_f16(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7FFFu;
    if (rest >= 0x7C00u) return stw_float_from_bits(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
    if (rest >= 0x400u) return stw_float_from_bits(sign | (rest + 0x1C000u) << 13);
    const float magnitude = (float)rest * 0x1p-24f;
    return stw_float_from_bits(sign | stw_bits_from_float(magnitude));
}

/** Nearest, ties to even; a NaN becomes 0x7E00 with its sign (as c10::Half does on a CPU without
 * instructions for it). */
STW_HD uint16_t stw_f16_from_float(float f) {
    const uint32_t bits = stw_bits_from_float(f), rest = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (rest > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (rest >= 0x47800000u) return (uint16_t)(sign | 0x7C00u); /* 2^16 and above */
    if (rest < 0x38800000u) { /* below 2^-14: the sum has units of 2^-24 */
        const float sum = stw_float_from_bits(rest) + 0.5f;
        return (uint16_t)(sign | (stw_bits_from_float(sum) - 0x3F000000u));
    }
    const uint32_t rounded = rest + 0xFFFu + (rest >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

/** Share of the 8-byte word at place i in the sum of a buffer: sums do not depend on the order. */
STW_HD uint64_t stw_box_sum_word(uint64_t i, uint64_t word) {
    return stw_mix64(word ^ (i + 1) * 0x9E3779B97F4A7C15ull);
}

/** Share of the element with number i, whose bits are those of its type, in a digest. */
STW_HD uint64_t stw_box_digest_element(uint64_t i, uint32_t bits) {
    return stw_box_sum_word(i, bits | (uint64_t)1 << 32);
}

#ifndef __CUDACC__
/* ---- devices ---- */

#define STW_BOX_MARKS 16u

typedef struct stw_box_device stw_box_device;

typedef struct stw_box_config {
    stw_box_lists lists; /* must outlive the device */
    uint32_t n_bases;    /* addresses that are bound */
    bool gpu_is_given;   /* CUDA: else it is the thread's current device */
    uint32_t gpu;
} stw_box_config;

/** What runs lists: on the CPU, or on a GPU. */
typedef struct stw_box_ops {
    const char *name; /* "host", "cuda" */
    STW_MUST_USE stw_status (*open)(const stw_box_config *config, stw_box_device **out,
                                    stw_error *err);
    void (*close)(stw_box_device *device); /* waits for runs; NULL is fine */
    /** Addresses of bases STW_BOX_FIRST_BASE and on, from the next run on. NULL: no copy uses it.
     * @return USAGE for memory that the device does not reach, with its number in the text */
    STW_MUST_USE stw_status (*bind)(stw_box_device *device, const void *const *addresses,
                                    stw_error *err);
    /** Run a list. CUDA: it is queued on `stream`, a cudaStream_t. */
    STW_MUST_USE stw_status (*run)(stw_box_device *device, uint32_t list,
                                   const stw_box_buffers *buffers, void *stream, stw_error *err);
    /** Sum of stw_box_sum_word over n bytes, filled up with zeros, after the work of `stream`.
     * Blocks. */
    STW_MUST_USE stw_status (*sum)(stw_box_device *device, const void *address, uint64_t bytes,
                                   void *stream, uint64_t *out, stw_error *err);
    /** What a list would write, without writing it: the sum of stw_box_digest_element over its
     * elements, cast as they would be, where the number of an element is its place in the target,
     * in elements. After the work of `stream`. Blocks. */
    STW_MUST_USE stw_status (*digest)(stw_box_device *device, uint32_t list, void *stream,
                                      uint64_t *out, stw_error *err);
    /** Marks order streams, numbers 0 to STW_BOX_MARKS - 1. `mark` sets one behind the work of a
     * stream, in place of where it was; what comes on a stream after `follow` waits for it;
     * `passed` tells without waiting. One that was never set is passed. Host: work is done when a
     * call returns, so all marks are passed. */
    STW_MUST_USE stw_status (*mark)(stw_box_device *device, uint32_t number, void *stream,
                                    stw_error *err);
    STW_MUST_USE stw_status (*follow)(stw_box_device *device, uint32_t number, void *stream,
                                      stw_error *err);
    STW_MUST_USE stw_status (*passed)(stw_box_device *device, uint32_t number, bool *out,
                                      stw_error *err);
} stw_box_ops;

extern const stw_box_ops stw_box_host_ops;
/** NULL where the CUDA room is not linked. */
const stw_box_ops *stw_box_cuda_ops(void);
/** The sum on the calling thread. */
uint64_t stw_box_host_sum(const void *address, uint64_t bytes);
#endif

#endif
