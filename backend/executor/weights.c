/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* pread */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/executor/executor.h"
#include "backend/host/loops.h"
#include "core/checked.h"
#include "core/log.h"
#include "core/text.h"
#include "models/safetensors.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SAMPLE_BYTES (64ull << 10) /* one block */
#define MOST_SAMPLES 17u           /* of a file: first, last and evenly between */
#define ALL_SAMPLES 1024u          /* of all files; three of each at least */

/* Elements of a tensor in the sample, and those that are NaN or infinite. */
typedef struct stw_seen {
    uint64_t elements, odd;
} stw_seen;

struct stw_weights {
    const stw_model *model; /* borrowed */
    uint64_t seed;
    uint64_t *first;      /* [n_tensors] number of a tensor's first element, for seeded weights */
    stw_safetensors *set; /* NULL: seeded weights */
    const stw_safetensors_entry **entries; /* [n_tensors] */
    int *files;                            /* [set->n_files] descriptors, -1 where not open */
    stw_seen *seen;                        /* [n_tensors] of the sample */
};

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weights", "out of memory");
}

static void format_shape(uint32_t rank, const uint64_t *shape, char *out, size_t out_size) {
    stw_text text = STW_TEXT_INIT;
    for (uint32_t i = 0; i < rank; i++)
        stw_text_printf(&text, "%s%llu", i > 0 ? ", " : "", (unsigned long long)shape[i]);
    snprintf(out, out_size, "[%s]", text.data != NULL ? text.data : "");
    stw_text_free(&text);
}

/* The entry of a tensor, with the model's shape and a dtype of whole bytes. */
static stw_status match(const stw_safetensors *set, const stw_tensor *tensor, const char *path,
                        const stw_safetensors_entry **out, stw_error *err) {
    const stw_safetensors_entry *entry = stw_safetensors_find(set, tensor->name);
    *out = entry;
    if (entry == NULL)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path, "holds no tensor %.200s", tensor->name);
    if (entry->rank != tensor->rank ||
        memcmp(entry->shape, tensor->shape, tensor->rank * sizeof(uint64_t)) != 0) {
        char found[160], expected[160];
        format_shape(entry->rank, entry->shape, found, sizeof found);
        format_shape(tensor->rank, tensor->shape, expected, sizeof expected);
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "tensor %.200s has shape %s, the plan's model has %s", tensor->name, found,
                        expected);
    }
    uint64_t bytes = 0;
    unsigned bits = stw_dtype_bits(entry->dtype);
    stw_status status = stw_mul_u64(tensor->numel, bits / 8, &bytes, tensor->name, err);
    if (status != STW_STATUS_OK) return status;
    if (bits % 8 != 0 || bytes != entry->bytes)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "tensor %.200s of dtype %s has %llu bytes for %llu elements", tensor->name,
                        stw_dtype_name(entry->dtype), (unsigned long long)entry->bytes,
                        (unsigned long long)tensor->numel);
    return STW_STATUS_OK;
}

static stw_status open_files(stw_weights *w, const char *path, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_safetensors_open(path, &w->set, err));
    w->entries = calloc(w->model->n_tensors + 1u, sizeof *w->entries);
    w->files = calloc(w->set->n_files + 1u, sizeof *w->files);
    w->seen = calloc(w->model->n_tensors + 1u, sizeof *w->seen);
    if (w->entries == NULL || w->files == NULL || w->seen == NULL) STW_TRY(no_memory(err));
    for (uint32_t f = 0; f < w->set->n_files; f++) w->files[f] = -1;
    for (uint32_t t = 0; t < w->model->n_tensors; t++)
        STW_TRY(match(w->set, &w->model->tensors[t], path, &w->entries[t], err));
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
    stw_weights *w = calloc(1, sizeof *w);
    if (w == NULL) return no_memory(err);
    w->model = model;
    w->seed = seed;
    w->first = calloc(model->n_tensors + 1u, sizeof *w->first);
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
    free(w->files);
    free(w->entries);
    free(w->seen);
    free(w->first);
    stw_safetensors_free(w->set);
    free(w);
}

stw_dtype stw_weights_dtype(const stw_weights *w, uint32_t tensor) {
    return w->set == NULL ? STW_DTYPE_F32 : w->entries[tensor]->dtype;
}

const char *stw_weights_file(const stw_weights *w, uint32_t tensor) {
    const char *path = w->set->files[w->entries[tensor]->file], *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static stw_status read_exactly(const stw_weights *w, uint32_t file, const char *what,
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
    const stw_safetensors_entry *entry = w->entries[tensor];
    uint64_t size = stw_dtype_bits(entry->dtype) / 8;
    return read_exactly(w, entry->file, entry->name, entry->offset_bytes + first * size, out,
                        count * size, err);
}

/* ---- a sample of the files ---- */

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

/* Count the elements of every tensor that lie whole in bytes [at, at + bytes) of the file. */
static void count_odd(const stw_weights *w, uint32_t file, const unsigned char *block, uint64_t at,
                      uint64_t bytes) {
    for (uint32_t t = 0; t < w->model->n_tensors; t++) {
        const stw_safetensors_entry *e = w->entries[t];
        const uint64_t mask = exponent_bits(e->dtype), size = stw_dtype_bits(e->dtype) / 8;
        if (e->file != file || mask == 0 || e->offset_bytes >= at + bytes ||
            e->offset_bytes + e->bytes <= at)
            continue;
        uint64_t behind = at > e->offset_bytes ? (at - e->offset_bytes) % size : 0;
        uint64_t from =
            at > e->offset_bytes ? (behind > 0 ? size - behind : 0) : e->offset_bytes - at;
        const uint64_t end = stw_min_u64(bytes, e->offset_bytes + e->bytes - at);
        for (; from + size <= end; from += size) {
            uint64_t bits = 0;
            memcpy(&bits, block + from, size); /* little-endian, as the files are */
            w->seen[t].elements++;
            w->seen[t].odd += (bits & mask) == mask;
        }
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
        STW_TRY(read_exactly(w, file, "its data", at, block, bytes, err));
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
    STW_TRY(read_exactly(w, file, "its header", 0, first, sizeof first, err));
    for (int i = 7; i >= 0; i--) length = length << 8 | first[i];
    if (length > w->set->file_bytes[file] - sizeof first)
        STW_TRY(stw_fail(err, STW_STATUS_BAD_INPUT, path,
                         "its header is longer than when it was opened"));
    header = malloc((size_t)length + 1);
    if (header == NULL) STW_TRY(no_memory(err));
    STW_TRY(read_exactly(w, file, "its header", sizeof first, header, length, err));
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
    for (uint32_t t = 0; t < w->model->n_tensors; t++) {
        const uint64_t place[] = {w->entries[t]->file, w->entries[t]->offset_bytes};
        places = XXH3_64bits_withSeed(place, sizeof place, places);
    }
    stw_text_printf(out, "weights: places of the tensors = %016llx\n", (unsigned long long)places);
    STW_TRY(stw_text_status(out, err));
out:
    return status;
}
