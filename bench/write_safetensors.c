/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a model's seeded weights as safetensors (bf16, sharded, with an index), so that loads can
 * be tested and timed with files of any size: the values are those that `stowage run` makes from
 * the same seed, hence a run with --weights gives the digests of a run without. All cores make and
 * write values. With --published the names and cuts are those of published files (models/names), in
 * bf16.
 *
 *     write_safetensors [--published] MODEL FOLDER [SEED [SHARD_BYTES]] */
#define _POSIX_C_SOURCE 200809L /* mkdir, pwrite */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/element.h"
#include "backend/host/loops.h"
#include "backend/host/pool.h"
#include "cli/common.h"
#include "core/checked.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/units.h"
#include "models/names.h"

#define CHUNK_ELEMENTS (256u << 10)

/* A tensor of the files: a part of one of the model's, from `first` of the model's elements on. */
typedef struct item {
    const char *name;
    uint32_t rank;
    uint64_t shape[STW_TENSOR_MAX_RANK], numel;
    bool transposed;
    uint64_t first; /* element of the model */
    uint64_t run, stride,
        n_runs; /* elements that are neighbours in both, and in the model's tensor */
} item;

typedef struct writer {
    stw_pool *pool;
    const char *folder;
    item *items;
    uint32_t n_items;
    uint64_t seed, shard_bytes, elements;
    uint32_t n_shards;
    stw_threads *threads;
} writer;

/* Elements of one tensor on their way to its file. */
typedef struct item_values {
    const writer *w;
    const item *item;
    int file;
    uint64_t offset; /* of its first byte */
    atomic_bool failed;
} item_values;

static uint32_t shard_end(const writer *w, uint32_t first) {
    uint64_t bytes = 0;
    uint32_t t = first;
    while (t < w->n_items && (t == first || bytes + 2 * w->items[t].numel <= w->shard_bytes))
        bytes += 2 * w->items[t++].numel;
    return t;
}

/* ---- what is written ---- */

static stw_status own_items(writer *w, const stw_model *model, stw_error *err) {
    w->items = stw_pool_array(w->pool, model->n_tensors, sizeof *w->items);
    if (w->items == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->name, "out of memory");
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        item *to = &w->items[w->n_items++];
        *to = (item){tensor->name,  tensor->rank,  {0}, tensor->numel, false, w->elements,
                     tensor->numel, tensor->numel, 1};
        memcpy(to->shape, tensor->shape, sizeof to->shape);
        w->elements += tensor->numel;
    }
    return STW_STATUS_OK;
}

/* Shape of a part, which is a published tensor of its own. */
static void shape_of(const stw_names_box *published, item *to) {
    to->rank = published->rank;
    to->numel = 1;
    for (uint32_t d = 0; d < to->rank; d++) to->numel *= to->shape[d] = published->count[d];
}

static stw_status published_items(writer *w, const stw_model *model, const stw_names_list *list,
                                  stw_error *err) {
    uint32_t tensor = 0;
    w->items = stw_pool_array(w->pool, list->n_parts, sizeof *w->items);
    if (w->items == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->name, "out of memory");
    for (uint32_t i = 0; i < list->n_parts && list->parts[i].tensor < model->n_tensors; i++) {
        const stw_names_part *part = &list->parts[i];
        const stw_tensor *t = &model->tensors[part->tensor];
        item *to = &w->items[w->n_items++];
        stw_names_box own, other;
        uint64_t inner = 1, first = 0;
        for (; tensor < part->tensor; tensor++) w->elements += model->tensors[tensor].numel;
        if (part->way > STW_NAMES_TRANSPOSED || part->published_first > 0)
            return stw_fail(err, STW_STATUS_NOT_BUILT_IN, t->name, "published as %s",
                            stw_names_way_name(part->way));
        stw_names_boxes(list, part, &own, &other);
        shape_of(&other, to);
        to->name = list->published[part->published].name;
        to->transposed = part->way == STW_NAMES_TRANSPOSED;
        for (uint32_t d = part->dim + 1; d < t->rank; d++) inner *= t->shape[d];
        for (uint32_t d = 0; d < t->rank; d++) first = first * t->shape[d] + own.first[d];
        to->first = w->elements + first;
        to->run = t->rank > 0 ? part->count * inner : 1;
        to->stride = t->rank > 0 ? t->shape[part->dim] * inner : 1;
        to->n_runs = to->numel / to->run;
    }
    for (; tensor < model->n_tensors; tensor++) w->elements += model->tensors[tensor].numel;
    return STW_STATUS_OK;
}

static stw_status list_items(writer *w, const stw_model *model, bool published, stw_error *err) {
    stw_names_list *list = NULL;
    if (!published) return own_items(w, model, err);
    for (uint32_t t = 0; t < model->n_tensors;
         t++) /* what is published in fp8 or less is bf16 here */
        model->tensors[t].dtype = STW_DTYPE_BF16, model->tensors[t].scale_bytes = 0;
    stw_status status = stw_names_list_make(model, &list, err);
    if (status == STW_STATUS_OK) status = published_items(w, model, list, err);
    for (uint32_t i = 0; i < w->n_items && status == STW_STATUS_OK; i++) {
        w->items[i].name = stw_pool_string(w->pool, w->items[i].name);
        if (w->items[i].name == NULL)
            status = stw_fail(err, STW_STATUS_NO_MEMORY, model->name, "out of memory");
    }
    stw_names_list_free(list);
    return status;
}

/* ---- files ---- */

static void shard_name(const writer *w, uint32_t shard, char *out, size_t size) {
    snprintf(out, size, "model-%05u-of-%05u.safetensors", shard + 1, w->n_shards);
}

static stw_status header(const writer *w, uint32_t first, uint32_t end, stw_text *out,
                         stw_error *err) {
    stw_json *json = stw_json_new();
    uint64_t at = 0;
    stw_json_begin_object(json, NULL);
    for (uint32_t t = first; t < end; t++) {
        const item *tensor = &w->items[t];
        stw_json_begin_object(json, tensor->name);
        stw_json_string(json, "dtype", "BF16");
        stw_json_begin_array(json, "shape");
        for (uint32_t d = 0; d < tensor->rank; d++) stw_json_u64(json, NULL, tensor->shape[d]);
        stw_json_end(json);
        stw_json_begin_array(json, "data_offsets");
        stw_json_u64(json, NULL, at);
        at += 2 * tensor->numel;
        stw_json_u64(json, NULL, at);
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
    return stw_json_finish(json, out, err);
}

static bool write_exactly(int file, const void *data, uint64_t bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n =
            pwrite(file, (const char *)data + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (n <= 0) return false;
        done += (uint64_t)n;
    }
    return true;
}

/* Elements of a run, as stw_seeded_weight makes them, rounded to bf16. */
static bool make_values(const writer *w, uint64_t element, uint64_t count, uint16_t *out) {
    float *values = malloc((size_t)count * sizeof *values);
    if (values == NULL) return false;
    stw_host_loops_get(0)->seed_weights(values, count, element, w->seed);
    for (uint64_t i = 0; i < count; i++) out[i] = (uint16_t)(stw_bits_from_float(values[i]) >> 16);
    free(values);
    return true;
}

/* Elements [first, first + count) of a tensor, run by run. */
static void write_values(void *arg, uint64_t first, uint64_t count) {
    item_values *to = arg;
    const item *i = to->item;
    uint16_t *rounded = malloc((size_t)count * sizeof *rounded);
    bool ok = rounded != NULL;
    for (uint64_t done = 0, n = 0; ok && done < count; done += n) {
        const uint64_t run = (first + done) / i->run, in = (first + done) % i->run;
        n = i->run - in < count - done ? i->run - in : count - done;
        ok = make_values(to->w, i->first + run * i->stride + in, n, rounded + done);
    }
    ok = ok && write_exactly(to->file, rounded, 2 * count, to->offset + 2 * first);
    free(rounded);
    if (!ok) atomic_store(&to->failed, true);
}

/* Matrices [first, first + count) of a transposed tensor. */
static void write_matrices(void *arg, uint64_t first, uint64_t count) {
    item_values *to = arg;
    const uint64_t columns = to->item->shape[to->item->rank - 1];
    const uint64_t rows = to->item->shape[to->item->rank - 2], n = rows * columns;
    uint16_t *own = malloc((size_t)n * sizeof *own), *turned = malloc((size_t)n * sizeof *turned);
    bool ok = own != NULL && turned != NULL;
    for (uint64_t m = first; ok && m < first + count; m++) {
        ok = make_values(to->w, to->item->first + m * n, n, own);
        for (uint64_t r = 0; ok && r < rows; r++)
            for (uint64_t c = 0; c < columns; c++) turned[r * columns + c] = own[c * rows + r];
        ok = ok && write_exactly(to->file, turned, 2 * n, to->offset + 2 * m * n);
    }
    free(own);
    free(turned);
    if (!ok) atomic_store(&to->failed, true);
}

static bool write_item(const writer *w, const item *i, int file, uint64_t offset) {
    item_values values = {.w = w, .item = i, .file = file, .offset = offset, .failed = false};
    if (i->transposed)
        stw_threads_for(w->threads, i->numel / i->shape[i->rank - 1] / i->shape[i->rank - 2], 1,
                        write_matrices, &values);
    else
        stw_threads_for(w->threads, i->numel, CHUNK_ELEMENTS, write_values, &values);
    return !atomic_load(&values.failed);
}

static stw_status write_shard(const writer *w, uint32_t shard, uint32_t first, uint32_t end,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    char name[64], path[4096];
    shard_name(w, shard, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return stw_fail(err, STW_STATUS_IO, path, "cannot be written");
    STW_TRY(header(w, first, end, &text, err));
    while (text.length % 8 != 0) stw_text_append(&text, " ", 1);
    STW_TRY(stw_text_status(&text, err));
    uint64_t length = text.length, offset = 8 + length;
    bool ok = write_exactly(file, &length, 8, 0) && write_exactly(file, text.data, length, 8);
    for (uint32_t t = first; ok && t < end; offset += 2 * w->items[t++].numel)
        ok = write_item(w, &w->items[t], file, offset);
    if (close(file) != 0 || !ok)
        status = stw_fail(err, STW_STATUS_IO, path, "could not be written whole");
    file = -1;
out:
    if (file >= 0) close(file);
    stw_text_free(&text);
    return status;
}

static stw_status write_index(const writer *w, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    char path[4096];
    stw_json *json = stw_json_new();
    stw_json_begin_object(json, NULL);
    stw_json_begin_object(json, "metadata");
    stw_json_u64(json, "total_size", 2 * w->elements);
    stw_json_end(json);
    stw_json_begin_object(json, "weight_map");
    for (uint32_t shard = 0, first = 0; shard < w->n_shards; shard++) {
        char name[64];
        uint32_t end = shard_end(w, first);
        shard_name(w, shard, name, sizeof name);
        for (; first < end; first++) stw_json_string(json, w->items[first].name, name);
    }
    stw_json_end(json);
    stw_json_end(json);
    STW_TRY(stw_json_finish(json, &text, err));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", w->folder);
    STW_TRY(stw_file_write(path, text.data, text.length, err));
out:
    stw_text_free(&text);
    return status;
}

static stw_status write_all(writer *w, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t first = 0; first < w->n_items; w->n_shards++) first = shard_end(w, first);
    STW_TRY(stw_threads_new(0, &w->threads, err));
    stw_progress_phase("shards", STW_PROGRESS_SHARE, w->n_shards);
    for (uint32_t shard = 0, first = 0; shard < w->n_shards; shard++) {
        const uint32_t end = shard_end(w, first);
        STW_TRY(write_shard(w, shard, first, end, err));
        first = end;
        stw_progress_add(1);
    }
    STW_TRY(write_index(w, err));
out:
    stw_progress_end();
    stw_threads_free(w->threads);
    return status;
}

int main(int argc, char **argv) {
    stw_error err = STW_ERROR_INIT;
    stw_status status = STW_STATUS_OK;
    stw_model *model = NULL;
    char data[4096];
    writer w = {.seed = 1, .shard_bytes = 5ull << 30, .pool = stw_pool_new()};
    const bool published = argc > 1 && strcmp(argv[1], "--published") == 0;
    if (published) argc--, argv++;
    if (argc < 3 || argc > 5) {
        fprintf(stderr,
                "usage: write_safetensors [--published] MODEL FOLDER [SEED [SHARD_BYTES]]\n");
        return 2;
    }
    if (w.pool == NULL) STW_TRY(stw_fail(&err, STW_STATUS_NO_MEMORY, argv[1], "out of memory"));
    STW_TRY(stw_option_u64("SEED", argc > 3 ? argv[3] : NULL, 0, &w.seed, &err));
    STW_TRY(stw_u64_parse(argc > 4 ? argv[4] : "5 GiB", STW_UNIT_BYTES, &w.shard_bytes,
                          "SHARD_BYTES", &err));
    STW_TRY(stw_data_folder(data, sizeof data, &err));
    STW_TRY(stw_model_open(argv[1], data, &model, &err));
    STW_TRY(list_items(&w, model, published, &err));
    w.folder = argv[2];
    (void)mkdir(w.folder, 0777);
    STW_TRY(write_all(&w, &err));
out:
    stw_pool_free(w.pool);
    stw_model_free(model);
    return stw_exit(status, &err);
}
