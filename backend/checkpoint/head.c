/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 writes beside tensors. */
#include <stdlib.h>
#include <string.h>

#include "backend/checkpoint/save.h"
#include "core/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MOST_CONFIG (16ull << 20)

uint64_t stw_save_name(uint64_t number, uint64_t step) {
    const uint64_t both[2] = {number, step};
    return XXH3_64bits(both, sizeof both);
}

static stw_status add(stw_pool *pool, const char *name, const char *data, uint64_t bytes,
                      stw_save_text *texts, uint32_t *n, stw_error *err) {
    char *own = stw_pool_alloc(pool, (size_t)bytes + 1);
    if (own == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, name, "out of memory");
    if (bytes > 0) memcpy(own, data, (size_t)bytes);
    texts[(*n)++] = (stw_save_text){name, own, bytes};
    return STW_STATUS_OK;
}

static stw_status list_files(stw_manifest *m, const stw_saved_files *saved, stw_error *err) {
    m->files = stw_pool_array(m->pool, (size_t)saved->n_files + 1, sizeof *m->files);
    if (m->files == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "checkpoint", "out of memory");
    m->n_files = saved->n_files;
    for (uint32_t f = 0; f < saved->n_files; f++) {
        m->files[f].name = saved->files[f].name;
        m->files[f].bytes = saved->files[f].bytes;
    }
    return STW_STATUS_OK;
}

stw_status stw_save_texts(stw_pool *pool, stw_manifest *manifest, const stw_saved_files *saved,
                          const char *config, stw_save_text texts[STW_SAVE_TEXTS], uint32_t *n,
                          stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_text text = STW_TEXT_INIT, index = STW_TEXT_INIT;
    char *data = NULL;
    uint64_t bytes = 0;
    *n = 0;
    STW_TRY(list_files(manifest, saved, err));
    STW_TRY(stw_manifest_write(manifest, &text, err));
    STW_TRY(add(pool, STW_MANIFEST_NAME, text.data, text.length, texts, n, err));
    if (saved->n_model_files == 0) goto out;
    STW_TRY(stw_saved_index(saved, &index, err));
    STW_TRY(add(pool, "model.safetensors.index.json", index.data, index.length, texts, n, err));
    if (config == NULL) goto out;
    STW_TRY(stw_file_read(config, MOST_CONFIG, &data, &bytes, err));
    STW_TRY(add(pool, "config.json", data, bytes, texts, n, err));
out:
    stw_text_free(&text);
    stw_text_free(&index);
    free(data);
    return status;
}
