/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* pread */
#include "backend/executor/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/host/kernels.h"
#include "backend/host/loops.h"
#include "core/checked.h"

#define SCRATCH_BYTES (256u << 10) /* of a read that expands or transposes */
#define SCALE_BYTES (4u << 10)     /* of scales that one call reads */

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weights", "out of memory");
}

/* ---- opening ---- */

static stw_status open_files(stw_weights *w, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_safetensors_open(path, &w->set, err));
    w->tensors = stw_pool_array(w->pool, w->model->n_tensors + 1u, sizeof *w->tensors);
    w->files = stw_pool_array(w->pool, w->set->n_files + 1u, sizeof *w->files);
    w->seen = stw_pool_array(w->pool, w->model->n_tensors + 1u, sizeof *w->seen);
    if (w->files != NULL)
        for (uint32_t f = 0; f < w->set->n_files; f++) w->files[f] = -1;
    if (w->tensors == NULL || w->files == NULL || w->seen == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_weights_find(w, path, err));
    for (uint32_t f = 0; f < w->set->n_files; f++) {
        w->files[f] = open(w->set->files[f], O_RDONLY | O_CLOEXEC);
        if (w->files[f] < 0)
            STW_TRY(stw_fail_native(err, STW_STATUS_IO, errno, w->set->files[f],
                                    "cannot be opened: %s", strerror(errno)));
    }
out:
    return status;
}

stw_status stw_weights_open(const stw_model *model, const char *path, uint64_t seed,
                            stw_weights **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    stw_pool *pool = stw_pool_new();
    stw_weights *w = pool != NULL ? stw_pool_alloc(pool, sizeof *w) : NULL;
    if (w == NULL) {
        stw_pool_free(pool);
        return no_memory(err);
    }
    w->pool = pool;
    w->model = model;
    w->seed = seed;
    w->first = stw_pool_array(pool, model->n_tensors + 1u, sizeof *w->first);
    if (w->first == NULL) STW_TRY(no_memory(err));
    for (uint32_t t = 0; t < model->n_tensors; t++)
        w->first[t + 1] = w->first[t] + model->tensors[t].numel;
    if (path != NULL) STW_TRY(open_files(w, path, err));
    *out = w;
    w = NULL;
out:
    stw_weights_close(w);
    return status;
}

void stw_weights_close(stw_weights *w) {
    if (w == NULL) return;
    for (uint32_t f = 0; w->files != NULL && f < w->set->n_files; f++)
        if (w->files[f] >= 0) close(w->files[f]);
    stw_safetensors_free(w->set);
    stw_pool_free(w->pool);
}

stw_dtype stw_weights_dtype(const stw_weights *w, uint32_t tensor) {
    return w->set == NULL ? STW_DTYPE_F32 : w->tensors[tensor].dtype;
}

bool stw_weights_is_turned(const stw_weights *w, uint32_t tensor) {
    return w->set != NULL && w->tensors[tensor].way != STW_NAMES_AS_IS;
}

const char *stw_weights_file(const stw_weights *w, uint32_t tensor) {
    const uint32_t file = w->tensors[tensor].sources[0].entry->file;
    const char *path = w->set->files[file], *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* ---- reading ---- */

stw_status stw_weights_read_bytes(const stw_weights *w, uint32_t file, const char *what,
                                  uint64_t offset, void *out, uint64_t bytes, stw_error *err) {
    const uint64_t call_bytes = 64ull << 20;
    const char *path = w->set->files[file];
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(w->files[file], (unsigned char *)out + done,
                            (size_t)stw_min_u64(bytes - done, call_bytes), (off_t)(offset + done));
        if (got > 0)
            done += (uint64_t)got;
        else if (got == 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                            "ends inside %.200s: it has become shorter since its header was read",
                            what);
        else if (errno != EINTR)
            return stw_fail_native(err, STW_STATUS_IO, errno, path, "cannot be read: %s",
                                   strerror(errno));
    }
    return STW_STATUS_OK;
}

/* Elements [first, first + n) of a tensor of the files, as they are stored there. */
static stw_status read_stored(const stw_weights *w, const stw_safetensors_entry *entry,
                              uint64_t first, uint64_t n, void *out, stw_error *err) {
    const uint64_t size = stw_dtype_bits(entry->dtype) / 8;
    return stw_weights_read_bytes(w, entry->file, entry->name, entry->offset_bytes + first * size,
                                  out, n * size, err);
}

/* ---- block scales ---- */

/* An fp8 tensor as matrices with scales. */
typedef struct scaled {
    const stw_weights_source *source;
    uint64_t rows, columns;             /* of a matrix */
    uint64_t block_rows, block_columns; /* elements with one scale */
    uint64_t scale_rows, scale_columns; /* scales of a matrix */
    uint64_t at;                        /* row of scales that is in `scales` */
    float *scales;                      /* [scale_columns] */
    float values[256];                  /* of all elements there are */
    unsigned char *raw;                 /* [SCRATCH_BYTES] of elements */
    unsigned char *raw_scales;          /* [SCALE_BYTES] */
} scaled;

/* Elements along a dimension that share a scale. */
static uint64_t block_of(uint64_t extent, uint64_t scales) {
    return scales == stw_div_up_u64(extent, 128) ? 128 : extent / scales;
}

static stw_status begin_scaled(const stw_weights_source *source, scaled *out, stw_error *err) {
    const stw_safetensors_entry *e = source->entry, *s = source->scale;
    const uint64_t one = stw_dtype_bits(s->dtype) / 8;
    *out = (scaled){.source = source, .at = UINT64_MAX, .scale_rows = 1, .scale_columns = 1};
    out->rows = e->shape[e->rank - 2];
    out->columns = e->shape[e->rank - 1];
    out->block_rows = out->rows;
    out->block_columns = out->columns;
    if (s->bytes != one) {
        out->scale_rows = s->shape[s->rank - 2];
        out->scale_columns = s->shape[s->rank - 1];
        out->block_rows = block_of(out->rows, out->scale_rows);
        out->block_columns = block_of(out->columns, out->scale_columns);
    }
    unsigned char bytes[256];
    for (unsigned i = 0; i < 256; i++) bytes[i] = (unsigned char)i;
    stw_host_convert(NULL, out->values, STW_ELEMENT_F32, bytes, e->dtype, 256);
    out->scales = calloc((size_t)out->scale_columns, sizeof *out->scales);
    out->raw = malloc(SCRATCH_BYTES + SCALE_BYTES);
    if (out->scales == NULL || out->raw == NULL) return no_memory(err);
    out->raw_scales = out->raw + SCRATCH_BYTES;
    return STW_STATUS_OK;
}

static void end_scaled(scaled *s) {
    free(s->scales);
    free(s->raw);
}

static stw_status read_scales(const stw_weights *w, scaled *s, uint64_t row, stw_error *err) {
    const stw_safetensors_entry *scale = s->source->scale;
    const uint64_t matrix = row / s->rows, n = s->scale_columns;
    const uint64_t one = stw_dtype_bits(scale->dtype) / 8;
    const bool single = scale->bytes == one;
    const uint64_t at = single ? 0 : matrix * s->scale_rows + row % s->rows / s->block_rows;
    if (at == s->at) return STW_STATUS_OK;
    s->at = at;
    for (uint64_t done = 0, here = 0; done < n; done += here) {
        here = stw_min_u64(n - done, SCALE_BYTES / one);
        stw_status status = read_stored(w, scale, at * n + done, here, s->raw_scales, err);
        if (status != STW_STATUS_OK) return status;
        stw_host_convert(NULL, s->scales + done, STW_ELEMENT_F32, s->raw_scales, scale->dtype,
                         here);
    }
    return STW_STATUS_OK;
}

/* Of one row: each element times the scale of its block. */
static void expand(const scaled *s, uint64_t column, uint64_t n, const unsigned char *raw,
                   float *out) {
    for (uint64_t done = 0, here = 0; done < n; done += here) {
        const uint64_t block = (column + done) / s->block_columns;
        const float scale = s->scales[block];
        here = stw_min_u64(n - done, (block + 1) * s->block_columns - column - done);
        for (uint64_t i = done; i < done + here; i++) out[i] = s->values[raw[i]] * scale;
    }
}

/* Elements as fp32: the product of each with the scale of its block. */
static stw_status read_scaled(const stw_weights *w, const stw_weights_source *source,
                              uint64_t first, uint64_t n, float *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    scaled s;
    STW_TRY(begin_scaled(source, &s, err));
    for (uint64_t done = 0, part = 0; done < n; done += part) {
        part = stw_min_u64(n - done, SCRATCH_BYTES);
        STW_TRY(read_stored(w, source->entry, first + done, part, s.raw, err));
        for (uint64_t in = 0, here = 0; in < part; in += here) {
            const uint64_t at = first + done + in, column = at % s.columns;
            here = stw_min_u64(part - in, s.columns - column);
            STW_TRY(read_scales(w, &s, at / s.columns, err));
            expand(&s, column, here, s.raw + in, out + done + in);
        }
    }
out:
    end_scaled(&s);
    return status;
}

/* ---- matrices that lie the other way round ---- */

/* A part of a matrix of the model: whole rows, or some columns of one row. */
typedef struct rectangle {
    uint64_t matrix, row, rows, column, columns;
} rectangle;

/* Elements row .. row + rows of one column, which are neighbours in the file, as stored. */
static stw_status read_column(const stw_weights *w, const stw_weights_tensor *t, const rectangle *r,
                              uint64_t column, unsigned char *out, stw_error *err) {
    const stw_weights_source *source = &t->sources[t->experts > 1 ? r->matrix : 0];
    const uint64_t matrix = t->experts > 1 ? 0 : r->matrix;
    return read_stored(w, source->entry, (matrix * t->columns + column) * t->rows + r->row, r->rows,
                       out, err);
}

#define AT_ONCE 32u /* columns: what is written then fills a cache line */
/* Between columns in scratch, so that AT_ONCE of them do not fall into the same sets of a cache. */
#define COLUMN_GAP_BYTES 64u

/* Four by four elements of 2 bytes: in[c * pitch + i] to out[i * stride + c]. */
static void turn_4x4(const unsigned char *in, uint64_t pitch, uint64_t stride, unsigned char *out) {
    uint64_t a[4], b[4], t[4];
    const uint64_t even = 0x0000FFFF0000FFFFull, low = 0x00000000FFFFFFFFull;
    for (unsigned c = 0; c < 4; c++) memcpy(&a[c], in + c * pitch, 8);
    for (unsigned c = 0; c < 4; c += 2) {
        b[c] = (a[c] & even) | (a[c + 1] & even) << 16;
        b[c + 1] = (a[c] >> 16 & even) | (a[c + 1] & ~even);
    }
    for (unsigned c = 0; c < 2; c++) {
        t[c] = (b[c] & low) | b[c + 2] << 32;
        t[c + 2] = b[c] >> 32 | (b[c + 2] & ~low);
    }
    for (unsigned i = 0; i < 4; i++) memcpy(out + i * stride, &t[i], 8);
}

/* out[i * stride + c] = in[c][i] for c below n, elements of `size` bytes; columns are `pitch` bytes
 * apart, rows `stride` elements. */
static void turn(const unsigned char *in, uint64_t pitch, uint64_t rows, uint64_t n,
                 uint64_t stride, uint64_t size, unsigned char *out) {
    const bool fours = size == 2;
    const uint64_t whole_rows = fours ? rows / 4 * 4 : 0, whole = fours ? n / 4 * 4 : 0;
    for (uint64_t i = 0; i < whole_rows; i += 4)
        for (uint64_t c = 0; c < whole; c += 4)
            turn_4x4(in + c * pitch + 2 * i, pitch, 2 * stride, out + 2 * (i * stride + c));
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t c = i < whole_rows ? whole : 0; c < n; c++)
            memcpy(out + size * (i * stride + c), in + c * pitch + size * i, size);
}

static stw_status read_swapped(const stw_weights *w, const stw_weights_tensor *t,
                               const rectangle *r, unsigned char *scratch, unsigned char *out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t size = stw_dtype_bits(t->dtype) / 8;
    const uint64_t pitch = stw_times(r->rows, size) + COLUMN_GAP_BYTES;
    const uint64_t most = stw_max_u64(1, stw_min_u64(AT_ONCE, SCRATCH_BYTES / pitch));
    for (uint64_t c = 0, n = 0; c < r->columns; c += n) {
        n = stw_min_u64(most, r->columns - c);
        for (uint64_t k = 0; k < n; k++)
            STW_TRY(read_column(w, t, r, r->column + c + k, scratch + k * pitch, err));
        turn(scratch, pitch, r->rows, n, r->columns, size, out + c * size);
    }
out:
    return status;
}

/* 4-bit floats (E2M1) by their bits, and powers of two (E8M0): OCP Microscaling Formats 1.0. */
static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static float power_of_two(unsigned char e8m0) {
    if (e8m0 == 255) return stw_float_from_bits(0x7FC00000u);
    return stw_float_from_bits(e8m0 == 0 ? 1u << 22 : (uint32_t)e8m0 << 23);
}

static stw_status read_mxfp4(const stw_weights *w, const stw_weights_tensor *t, const rectangle *r,
                             unsigned char *scratch, float *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_weights_source *source = &t->sources[0];
    const uint64_t first = r->row / 32, n = (r->row + r->rows - 1) / 32 - first + 1;
    unsigned char *scales = scratch + n * 16;
    for (uint64_t c = 0; c < r->columns; c++) {
        const uint64_t block = (r->matrix * t->columns + r->column + c) * (t->rows / 32) + first;
        STW_TRY(read_stored(w, source->entry, block * 16, n * 16, scratch, err));
        STW_TRY(read_stored(w, source->scale, block, n, scales, err));
        for (uint64_t i = 0; i < r->rows; i++) {
            const uint64_t at = r->row - first * 32 + i;
            const unsigned bits = scratch[at / 2] >> (at % 2 * 4) & 15u;
            out[i * r->columns + c] = e2m1[bits] * power_of_two(scales[at / 32]);
        }
    }
out:
    return status;
}

static stw_status read_turned(const stw_weights *w, const stw_weights_tensor *t, uint64_t first,
                              uint64_t n, unsigned char *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t size = stw_dtype_bits(t->dtype) / 8, matrix = t->rows * t->columns;
    unsigned char *scratch = malloc(SCRATCH_BYTES);
    if (scratch == NULL) STW_TRY(no_memory(err));
    for (uint64_t done = 0; done < n;) {
        const uint64_t in = (first + done) % matrix, left = n - done;
        rectangle r = {(first + done) / matrix, in / t->columns, 1, in % t->columns, 0};
        r.columns = stw_min_u64(left, t->columns - r.column);
        if (r.column == 0 && left >= t->columns)
            r.rows = stw_min_u64(stw_min_u64(left / t->columns, t->rows - r.row),
                                 SCRATCH_BYTES / 8 - 64);
        if (t->way == STW_NAMES_MXFP4)
            STW_TRY(read_mxfp4(w, t, &r, scratch, (float *)(void *)(out + done * size), err));
        else
            STW_TRY(read_swapped(w, t, &r, scratch, out + done * size, err));
        done += r.rows * r.columns;
    }
out:
    free(scratch);
    return status;
}

/* ---- runs of elements ---- */

/* Elements of a tensor that is composed of others along one dimension: run by run. */
static stw_status read_runs(const stw_weights *w, const stw_weights_tensor *t, uint64_t first,
                            uint64_t n, unsigned char *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint64_t size = stw_dtype_bits(t->dtype) / 8, outer = t->outer / t->experts;
    const uint64_t share = t->extent / t->n, extent = t->whole > 0 ? t->whole : share;
    for (uint64_t done = 0, here = 0; done < n; done += here) {
        const uint64_t at = first + done, slice = at / (t->extent * t->inner);
        const uint64_t in = at % (t->extent * t->inner), k = in / (share * t->inner);
        const stw_weights_source *source = &t->sources[slice / outer * t->n + k];
        const uint64_t from =
            (slice % outer * extent + t->first) * t->inner + in % (share * t->inner);
        here = stw_min_u64(n - done, (k + 1) * share * t->inner - in);
        if (source->scale != NULL)
            STW_TRY(read_scaled(w, source, from, here, (float *)(void *)(out + done * size), err));
        else
            STW_TRY(read_stored(w, source->entry, from, here, out + done * size, err));
    }
out:
    return status;
}

stw_status stw_weights_read(stw_weights *w, uint32_t tensor, uint64_t first, uint64_t count,
                            void *out, stw_error *err) {
    const stw_tensor *t = &w->model->tensors[tensor];
    if (first > t->numel || count > t->numel - first)
        return stw_fail(err, STW_STATUS_BUG, t->name, "elements %llu + %llu of %llu",
                        (unsigned long long)first, (unsigned long long)count,
                        (unsigned long long)t->numel);
    if (w->set == NULL) {
        stw_host_loops_get(0)->seed_weights(out, count, w->first[tensor] + first, w->seed);
        return STW_STATUS_OK;
    }
    const stw_weights_tensor *from = &w->tensors[tensor];
    if (from->way == STW_NAMES_AS_IS) return read_runs(w, from, first, count, out, err);
    return read_turned(w, from, first, count, out, err);
}
