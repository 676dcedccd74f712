/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/boxes.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/host/pool.h"

struct stw_box_device {
    stw_box_lists lists;
    uint32_t n_bases;
    const unsigned char **bases; /* [STW_BOX_FIRST_BASE + n_bases] */
    stw_threads *threads;
};

static void close_device(stw_box_device *device) {
    if (device == NULL) return;
    stw_threads_free(device->threads);
    free(device->bases);
    free(device);
}

static stw_status open_device(const stw_box_config *config, stw_box_device **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_box_device *device = calloc(1, sizeof *device);
    *out = NULL;
    if (device == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "boxes", "out of memory");
    device->lists = config->lists;
    device->n_bases = config->n_bases;
    device->bases = calloc(STW_BOX_FIRST_BASE + (size_t)config->n_bases, sizeof *device->bases);
    if (device->bases == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_NO_MEMORY, "boxes", "out of memory"));
    STW_TRY(stw_threads_new(0, &device->threads, err));
    *out = device;
    device = NULL;
out:
    close_device(device);
    return status;
}

static stw_status bind_device(stw_box_device *device, const void *const *addresses,
                              stw_error *err) {
    (void)err;
    for (uint32_t i = 0; i < device->n_bases; i++)
        device->bases[STW_BOX_FIRST_BASE + i] = addresses[i];
    return STW_STATUS_OK;
}

/* ---- rows ---- */

static float load(const unsigned char *from, uint32_t type) {
    float wide;
    uint16_t half;
    if (type == STW_BOX_F32) {
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
    memcpy(&half, from, sizeof half);
    return type == STW_BOX_BF16 ? stw_float_from_bf16(half) : stw_float_from_f16(half);
}

static void store(unsigned char *to, uint32_t type, float value) {
    if (type == STW_BOX_F32) {
        memcpy(to, &value, sizeof value);
        return;
    }
    const uint16_t half =
        type == STW_BOX_BF16 ? stw_bf16_from_float(value) : stw_f16_from_float(value);
    memcpy(to, &half, sizeof half);
}

/* The usual cast, of neighbours: the compiler makes vectors of it. */
static void narrow(unsigned char *restrict to, const unsigned char *restrict from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, from + 4u * i, sizeof value);
        const uint16_t half = stw_bf16_from_float(value);
        memcpy(to + 2u * i, &half, sizeof half);
    }
}

static void copy_row(const stw_box_copy *c, unsigned char *to, const unsigned char *from,
                     uint32_t n) {
    const uint32_t width = stw_box_width(c->from_type), to_width = stw_box_width(c->to_type);
    const bool dense = c->from_stride[3] == width && c->to_stride[3] == to_width;
    if (dense && c->from_type == c->to_type) {
        memcpy(to, from, (size_t)n * width);
    } else if (dense && c->from_type == STW_BOX_F32 && c->to_type == STW_BOX_BF16) {
        narrow(to, from, n);
    } else if (c->from_type == c->to_type) { /* bits as they are, those of NaNs, too */
        for (uint32_t i = 0; i < n; i++)
            memcpy(to + i * c->to_stride[3], from + i * c->from_stride[3], width);
    } else {
        for (uint32_t i = 0; i < n; i++)
            store(to + i * c->to_stride[3], c->to_type,
                  load(from + i * c->from_stride[3], c->from_type));
    }
}

/* The bits that an element has where it is written. */
static uint32_t bits_of(const stw_box_copy *c, const unsigned char *from) {
    unsigned char at[4] = {0};
    uint32_t wide;
    uint16_t half;
    if (c->from_type == c->to_type)
        memcpy(at, from, stw_box_width(c->from_type));
    else
        store(at, c->to_type, load(from, c->from_type));
    memcpy(&half, at, sizeof half);
    memcpy(&wide, at, sizeof wide);
    return stw_box_width(c->to_type) == sizeof wide ? wide : half;
}

/* @param to bytes from the target's beginning */
static uint64_t digest_row(const stw_box_copy *c, uint64_t to, const unsigned char *from,
                           uint32_t n) {
    const uint32_t width = stw_box_width(c->to_type);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += stw_box_digest_element((to + i * c->to_stride[3]) / width,
                                      bits_of(c, from + i * c->from_stride[3]));
    return sum;
}

/* ---- lists ---- */

typedef struct work {
    const stw_box_device *device;
    const stw_box_copy *copies;
    uint32_t n;
    const stw_box_buffers *buffers;
    bool digests;         /* nothing is written */
    atomic_ullong digest; /* of what was looked at */
} work;

static const unsigned char *base_of(const work *w, uint32_t base) {
    switch (base) {
    case STW_BOX_FROM_BUFFER:
        return w->buffers->from;
    case STW_BOX_TO_BUFFER:
        return w->buffers->to;
    case STW_BOX_SENT_BUFFER:
        return w->buffers->sent;
    default:
        return w->device->bases[base];
    }
}

static void run_tile(const work *w, const stw_box_copy *c, uint32_t tile) {
    const stw_box_tile t = stw_box_tile_of(c, tile);
    const unsigned char *from = base_of(w, c->from_base) + c->from + t.at * c->from_stride[3];
    const uint64_t at = c->to + t.at * c->to_stride[3];
    unsigned char *to = (unsigned char *)(uintptr_t)base_of(w, c->to_base) + at;
    for (uint32_t row = t.row; row < t.row + t.rows; row++) {
        uint64_t from_at, to_at;
        stw_box_row(c, row, &from_at, &to_at);
        copy_row(c, to + to_at, from + from_at, t.n);
    }
}

static uint64_t digest_tile(const work *w, const stw_box_copy *c, uint32_t tile) {
    const stw_box_tile t = stw_box_tile_of(c, tile);
    const unsigned char *from = base_of(w, c->from_base) + c->from + t.at * c->from_stride[3];
    uint64_t sum = 0;
    for (uint32_t row = t.row; row < t.row + t.rows; row++) {
        uint64_t from_at, to_at;
        stw_box_row(c, row, &from_at, &to_at);
        sum += digest_row(c, c->to + t.at * c->to_stride[3] + to_at, from + from_at, t.n);
    }
    return sum;
}

static void run_tiles(void *arg, uint64_t first, uint64_t count) {
    work *w = arg;
    uint32_t low = 0, high = w->n; /* the last copy that does not begin after the first tile */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (w->copies[middle].first_tile <= first)
            low = middle;
        else
            high = middle;
    }
    for (uint64_t tile = first; tile < first + count; tile++) {
        while (low + 1 < w->n && w->copies[low + 1].first_tile <= tile) low++;
        const uint32_t of_copy = (uint32_t)tile - w->copies[low].first_tile;
        if (w->digests)
            (void)atomic_fetch_add(&w->digest, digest_tile(w, &w->copies[low], of_copy));
        else
            run_tile(w, &w->copies[low], of_copy);
    }
}

#define TILES_AT_ONCE 8 /* of a thread: some 128 KiB */

static stw_status run_list(stw_box_device *device, uint32_t list, const stw_box_buffers *buffers,
                           void *stream, stw_error *err) {
    const uint32_t first = device->lists.first[list];
    work w = {.device = device,
              .copies = device->lists.copies + first,
              .n = device->lists.first[list + 1] - first,
              .buffers = buffers};
    (void)stream;
    (void)err;
    if (w.n > 0)
        stw_threads_for(device->threads, device->lists.tiles[list], TILES_AT_ONCE, run_tiles, &w);
    return STW_STATUS_OK;
}

static stw_status digest_list(stw_box_device *device, uint32_t list, void *stream, uint64_t *out,
                              stw_error *err) {
    const uint32_t first = device->lists.first[list];
    const stw_box_buffers none = {NULL, NULL, NULL};
    work w = {.device = device,
              .copies = device->lists.copies + first,
              .n = device->lists.first[list + 1] - first,
              .buffers = &none,
              .digests = true};
    (void)stream;
    (void)err;
    if (w.n > 0)
        stw_threads_for(device->threads, device->lists.tiles[list], TILES_AT_ONCE, run_tiles, &w);
    *out = atomic_load(&w.digest);
    return STW_STATUS_OK;
}

/* ---- sums ---- */

uint64_t stw_box_host_sum(const void *address, uint64_t bytes) {
    const unsigned char *at = address;
    uint64_t sum = 0, i = 0, word;
    for (; bytes >= sizeof word; bytes -= sizeof word, i++) {
        memcpy(&word, at + i * sizeof word, sizeof word);
        sum += stw_box_sum_word(i, word);
    }
    if (bytes > 0) {
        word = 0;
        memcpy(&word, at + i * sizeof word, bytes);
        sum += stw_box_sum_word(i, word);
    }
    return sum;
}

static stw_status sum_bytes(stw_box_device *device, const void *address, uint64_t bytes,
                            void *stream, uint64_t *out, stw_error *err) {
    (void)device;
    (void)stream;
    (void)err;
    *out = stw_box_host_sum(address, bytes);
    return STW_STATUS_OK;
}

/* ---- marks: everything is done already ---- */

static stw_status no_mark(stw_box_device *device, uint32_t number, void *stream, stw_error *err) {
    (void)device;
    (void)number;
    (void)stream;
    (void)err;
    return STW_STATUS_OK;
}

static stw_status is_passed(stw_box_device *device, uint32_t number, bool *out, stw_error *err) {
    (void)device;
    (void)number;
    (void)err;
    *out = true;
    return STW_STATUS_OK;
}

const stw_box_ops stw_box_host_ops = {.name = "host",
                                      .open = open_device,
                                      .close = close_device,
                                      .bind = bind_device,
                                      .run = run_list,
                                      .sum = sum_bytes,
                                      .digest = digest_list,
                                      .mark = no_mark,
                                      .follow = no_mark,
                                      .passed = is_passed};
