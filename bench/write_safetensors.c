/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a model's seeded weights as safetensors (bf16, sharded, with an index), so that loads can
 * be tested and timed with files of any size: the values are those that `stowage run` makes from
 * the same seed, hence a run with --weights gives the digests of a run without. All cores make and
 * write values.
 *
 *     write_safetensors MODEL FOLDER [SEED [SHARD_BYTES]] */
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
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/units.h"
#include "models/model.h"

#define CHUNK_ELEMENTS (256u << 10)

typedef struct writer {
    const stw_model *model;
    const char *folder;
    uint64_t seed, shard_bytes;
    uint32_t n_shards;
    stw_threads *threads;
} writer;

/* Elements of one shard on their way to its file. */
typedef struct shard_values {
    const writer *w;
    int file;
    uint64_t header_bytes, first; /* number of the shard's first element */
    atomic_bool failed;
} shard_values;

static uint32_t shard_end(const writer *w, uint32_t first) {
    uint64_t bytes = 0;
    uint32_t t = first;
    while (t < w->model->n_tensors &&
           (t == first || bytes + 2 * w->model->tensors[t].numel <= w->shard_bytes))
        bytes += 2 * w->model->tensors[t++].numel;
    return t;
}

static void shard_name(const writer *w, uint32_t shard, char *out, size_t size) {
    snprintf(out, size, "model-%05u-of-%05u.safetensors", shard + 1, w->n_shards);
}

static stw_status header(const writer *w, uint32_t first, uint32_t end, stw_text *out,
                         stw_error *err) {
    stw_json *json = stw_json_new();
    uint64_t at = 0;
    stw_json_begin_object(json, NULL);
    for (uint32_t t = first; t < end; t++) {
        const stw_tensor *tensor = &w->model->tensors[t];
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

/* Elements [first, first + count) of a shard: as stw_seeded_weight makes them, rounded to bf16. */
static void write_values(void *arg, uint64_t first, uint64_t count) {
    shard_values *shard = arg;
    float *values = malloc((size_t)count * sizeof *values);
    uint16_t *rounded = malloc((size_t)count * sizeof *rounded);
    bool ok = values != NULL && rounded != NULL;
    if (ok) {
        stw_host_loops_get(0)->seed_weights(values, count, shard->first + first, shard->w->seed);
        for (uint64_t i = 0; i < count; i++)
            rounded[i] = (uint16_t)(stw_bits_from_float(values[i]) >> 16);
        ok = write_exactly(shard->file, rounded, 2 * count, shard->header_bytes + 2 * first);
    }
    free(values);
    free(rounded);
    if (!ok) atomic_store(&shard->failed, true);
}

/* @param element number of the shard's first element */
static stw_status write_shard(const writer *w, uint32_t shard, uint32_t first, uint32_t end,
                              uint64_t element, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT;
    char name[64], path[4096];
    uint64_t elements = 0;
    shard_name(w, shard, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return stw_fail(err, STW_STATUS_IO, path, "cannot be written");
    STW_TRY(header(w, first, end, &text, err));
    while (text.length % 8 != 0) stw_text_append(&text, " ", 1);
    STW_TRY(stw_text_status(&text, err));
    uint64_t length = text.length;
    shard_values values = {
        .w = w, .file = file, .header_bytes = 8 + length, .first = element, .failed = false};
    for (uint32_t t = first; t < end; t++) elements += w->model->tensors[t].numel;
    bool ok = write_exactly(file, &length, 8, 0) && write_exactly(file, text.data, length, 8);
    if (ok) stw_threads_for(w->threads, elements, CHUNK_ELEMENTS, write_values, &values);
    ok = ok && !atomic_load(&values.failed);
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
    stw_json_u64(json, "total_size", 2 * w->model->params);
    stw_json_end(json);
    stw_json_begin_object(json, "weight_map");
    for (uint32_t shard = 0, first = 0; shard < w->n_shards; shard++) {
        char name[64];
        uint32_t end = shard_end(w, first);
        shard_name(w, shard, name, sizeof name);
        for (; first < end; first++) stw_json_string(json, w->model->tensors[first].name, name);
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
    for (uint32_t first = 0; first < w->model->n_tensors; w->n_shards++)
        first = shard_end(w, first);
    STW_TRY(stw_threads_new(0, &w->threads, err));
    uint64_t element = 0;
    stw_progress_phase("shards", STW_PROGRESS_SHARE, w->n_shards);
    for (uint32_t shard = 0, first = 0; shard < w->n_shards; shard++) {
        uint32_t end = shard_end(w, first);
        STW_TRY(write_shard(w, shard, first, end, element, err));
        for (; first < end; first++) element += w->model->tensors[first].numel;
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
    writer w = {.seed = 1, .shard_bytes = 5ull << 30};
    if (argc < 3 || argc > 5) {
        fprintf(stderr, "usage: write_safetensors MODEL FOLDER [SEED [SHARD_BYTES]]\n");
        return 2;
    }
    STW_TRY(stw_option_u64("SEED", argc > 3 ? argv[3] : NULL, 0, &w.seed, &err));
    STW_TRY(stw_u64_parse(argc > 4 ? argv[4] : "5 GiB", STW_UNIT_BYTES, &w.shard_bytes,
                          "SHARD_BYTES", &err));
    STW_TRY(stw_data_folder(data, sizeof data, &err));
    STW_TRY(stw_model_open(argv[1], data, &model, &err));
    w.model = model;
    w.folder = argv[2];
    (void)mkdir(w.folder, 0777);
    STW_TRY(write_all(&w, &err));
out:
    stw_model_free(model);
    return stw_exit(status, &err);
}
