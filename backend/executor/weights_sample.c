/* SPDX-License-Identifier: Apache-2.0 */
/* A sample of weights files, which ranks compare, and NaN and infinity in it. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/executor/weights.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SAMPLE_BYTES (64ull << 10) /* one block */
#define MOST_SAMPLES 17u           /* of a file: first, last and evenly between */
#define ALL_SAMPLES 1024u          /* of all files; three of each at least */

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weights", "out of memory");
}

static unsigned long long hash_of(const void *data, uint64_t bytes) {
    return XXH3_64bits(data, (size_t)bytes);
}

/* The bits of the exponent, all of which NaN and infinity have; 0 for other dtypes. */
static uint64_t exponent_bits(stw_dtype dtype) {
    switch (dtype) {
    case STW_DTYPE_F64:
        return 0x7ff0000000000000u;
    case STW_DTYPE_F32:
        return 0x7f800000u;
    case STW_DTYPE_F16:
        return 0x7c00u;
    case STW_DTYPE_BF16:
        return 0x7f80u;
    default:
        return 0;
    }
}

/* Count the elements of a source that lie whole in bytes [at, at + bytes) of its file. */
static void count_source(const stw_safetensors_entry *e, const unsigned char *block, uint64_t at,
                         uint64_t bytes, stw_weights_seen *seen) {
    const uint64_t mask = exponent_bits(e->dtype), size = stw_dtype_bits(e->dtype) / 8;
    if (mask == 0 || e->offset_bytes >= at + bytes || e->offset_bytes + e->bytes <= at) return;
    uint64_t behind = at > e->offset_bytes ? (at - e->offset_bytes) % size : 0;
    uint64_t from = at > e->offset_bytes ? (behind > 0 ? size - behind : 0) : e->offset_bytes - at;
    const uint64_t end = stw_min_u64(bytes, e->offset_bytes + e->bytes - at);
    for (; from + size <= end; from += size) {
        uint64_t bits = 0;
        memcpy(&bits, block + from, size); /* little-endian, as the files are */
        seen->elements++;
        seen->odd += (bits & mask) == mask;
    }
}

static void count_odd(const stw_weights *w, uint32_t file, const unsigned char *block, uint64_t at,
                      uint64_t bytes) {
    for (uint32_t t = 0; t < w->model->n_tensors; t++) {
        const stw_weights_tensor *tensor = &w->tensors[t];
        for (uint64_t i = 0; i < tensor->n_sources; i++)
            if (tensor->sources[i].entry->file == file)
                count_source(tensor->sources[i].entry, block, at, bytes, &w->seen[t]);
    }
}

void stw_weights_warn(const stw_weights *w) {
    const uint32_t most = 3;
    uint32_t n = 0;
    for (uint32_t t = 0; w != NULL && w->set != NULL && t < w->model->n_tensors; t++) {
        if (w->seen[t].odd == 0 || ++n > most) continue;
        stw_log(STW_LOG_WARN,
                "weights: %.200s: %llu of the %llu elements that were sampled are NaN or infinite",
                w->model->tensors[t].name, (unsigned long long)w->seen[t].odd,
                (unsigned long long)w->seen[t].elements);
    }
    if (n > most)
        stw_log(STW_LOG_WARN, "weights: %u further tensors have NaN or infinite elements",
                n - most);
}

static stw_status sample_blocks(const stw_weights *w, uint32_t file, const char *name,
                                uint64_t data_offset, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char *block = malloc(SAMPLE_BYTES);
    uint64_t data = w->set->file_bytes[file] - data_offset, before = UINT64_MAX;
    uint64_t bytes = stw_min_u64(data, SAMPLE_BYTES), last = data - bytes;
    uint64_t n = stw_min_u64(MOST_SAMPLES, stw_max_u64(3, ALL_SAMPLES / w->set->n_files));
    if (block == NULL) STW_TRY(no_memory(err));
    for (uint64_t k = 0; k < n && data > 0; k++) {
        uint64_t at = last / (n - 1) * k + last % (n - 1) * k / (n - 1);
        if (at == before) continue;
        before = at;
        at += data_offset;
        STW_TRY(stw_weights_read_bytes(w, file, "its data", at, block, bytes, err));
        count_odd(w, file, block, at, bytes);
        stw_text_printf(out, "weights: %s at byte %llu = %016llx\n", name, (unsigned long long)at,
                        hash_of(block, bytes));
    }
out:
    free(block);
    return status;
}

static stw_status sample_file(const stw_weights *w, uint32_t file, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char first[8], *header = NULL;
    uint64_t length = 0;
    const char *path = w->set->files[file], *slash = strrchr(path, '/');
    stw_text name = STW_TEXT_INIT; /* on one line */
    stw_text_append_printable(&name, slash != NULL ? slash + 1 : path);
    STW_TRY(stw_text_status(&name, err));
    STW_TRY(stw_weights_read_bytes(w, file, "its header", 0, first, sizeof first, err));
    for (int i = 7; i >= 0; i--) length = length << 8 | first[i];
    if (length > w->set->file_bytes[file] - sizeof first)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, path,
                         "its header is longer than when it was opened"));
    header = malloc((size_t)length + 1);
    if (header == NULL) STW_TRY(no_memory(err));
    STW_TRY(stw_weights_read_bytes(w, file, "its header", sizeof first, header, length, err));
    stw_text_printf(out, "weights: file %u = %s\nweights: %s bytes = %llu\n", file + 1, name.data,
                    name.data, (unsigned long long)w->set->file_bytes[file]);
    stw_text_printf(out, "weights: %s header = %016llx\n", name.data, hash_of(header, length));
    STW_TRY(sample_blocks(w, file, name.data, sizeof first + length, out, err));
out:
    free(header);
    stw_text_free(&name);
    return status;
}

stw_status stw_weights_sample(const stw_weights *w, stw_text *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t places = 0;
    if (w->set == NULL) return STW_STATUS_OK;
    stw_text_printf(out, "weights: files = %u\n", w->set->n_files);
    for (uint32_t f = 0; f < w->set->n_files; f++) STW_TRY(sample_file(w, f, out, err));
    /* An index may say that a tensor comes from another one of the files. */
    for (uint32_t t = 0; t < w->model->n_tensors; t++)
        for (uint64_t i = 0; i < w->tensors[t].n_sources; i++) {
            const stw_safetensors_entry *e = w->tensors[t].sources[i].entry;
            const uint64_t place[] = {e->file, e->offset_bytes};
            places = XXH3_64bits_withSeed(place, sizeof place, places);
        }
    stw_text_printf(out, "weights: places of the tensors = %016llx\n", (unsigned long long)places);
    STW_TRY(stw_text_status(out, err));
out:
    return status;
}
