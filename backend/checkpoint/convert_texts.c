/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* lstat */
#include "backend/checkpoint/convert_texts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/nvme/sum.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/text.h"
#include "core/tree.h"
#include "core/tree_edit.h"

#define MOST_BYTES (256ull << 20)
#define CONFIG "config.json"

typedef struct copier {
    const stw_checkpoint *c; /* files that are there are those of this one; NULL: of `like` */
    const char *to;
    stw_dtype dtype;
} copier;

/* Files of a checkpoint that are none of a model's. */
static bool is_own(const char *name) {
    return name[0] == '.' || strcmp(name, STW_MANIFEST_NAME) == 0 ||
           (strncmp(name, "rank-", 5) == 0 && strstr(name, ".done") != NULL);
}

/* Rank 0's marker has the hash of what it wrote; other files were put there by others. */
static stw_status check_hash(const copier *k, const char *path, const char *name, const char *data,
                             uint64_t length, stw_error *err) {
    const stw_marker *m = &k->c->markers[0];
    for (uint32_t b = 0; b < m->n_buckets; b++) {
        const stw_marked_bucket *bucket = &m->buckets[b];
        if (strcmp(m->files[bucket->file], name) != 0) continue;
        const uint64_t hash = stw_nvme_sum(data, length);
        if (hash != bucket->hash || length != bucket->bytes)
            return stw_fail(err, STW_STATUS_DISAGREE, path,
                            "is damaged: its %" PRIu64 " bytes have hash %016" PRIx64
                            ", expected %" PRIu64 " bytes with %016" PRIx64,
                            length, hash, bucket->bytes, bucket->hash);
    }
    return STW_STATUS_OK;
}

/* ---- config.json ---- */

/* Keys of the map, and of the maps in it (text_config), that say a dtype. */
static stw_status put_dtype(const char *path, const stw_node *map, const char *prefix,
                            const char *value, stw_text *text, stw_error *err) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    stw_status status = STW_STATUS_OK;
    stw_text key = STW_TEXT_INIT;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const stw_node *node = stw_node_get(map, keys[i]);
        if (node == NULL || node->kind != STW_NODE_STRING) continue;
        key.length = 0;
        stw_text_printf(&key, "%s%s", prefix, keys[i]);
        STW_TRY(stw_text_status(&key, err));
        STW_TRY(stw_tree_put(path, text, key.data, value, err));
    }
    for (size_t i = 0; map->kind == STW_NODE_OBJECT && prefix[0] == '\0' && i < map->n_items; i++) {
        const stw_node *inner = map->items[i];
        if (inner->kind != STW_NODE_OBJECT || strchr(inner->key, '.') != NULL) continue;
        key.length = 0;
        stw_text_printf(&key, "%s.", inner->key);
        STW_TRY(stw_text_status(&key, err));
        STW_TRY(put_dtype(path, inner, key.data, value, text, err));
    }
out:
    stw_text_free(&key);
    return status;
}

static const char *torch_name(stw_dtype dtype) {
    return dtype == STW_DTYPE_F32 ? "float32" : dtype == STW_DTYPE_F16 ? "float16" : "bfloat16";
}

static stw_status edit_config(const copier *k, const char *path, stw_text *text, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    STW_TRY(stw_tree_parse_json(path, text->data, text->length, &tree, err));
    if (stw_node_get(tree->root, "quantization_config") != NULL)
        STW_TRY(stw_tree_put(path, text, "quantization_config", NULL, err));
    if (k->dtype != STW_N_DTYPES)
        STW_TRY(put_dtype(path, tree->root, "", torch_name(k->dtype), text, err));
out:
    stw_tree_free(tree);
    return status;
}

/* ---- files ---- */

static stw_status copy(void *state, const char *folder, const char *name, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const copier *k = state;
    char from[STW_FOLDER_PATH], to[STW_FOLDER_PATH], *data = NULL;
    uint64_t length = 0;
    stw_text text = STW_TEXT_INIT;
    struct stat info;
    if (is_own(name) || !stw_folder_is_rest(name)) return status;
    stw_folder_join(from, folder, name);
    stw_folder_join(to, k->to, name);
    if (stat(from, &info) != 0 || !S_ISREG(info.st_mode) || stw_file_exists(to)) return status;
    STW_TRY(stw_file_read(from, MOST_BYTES, &data, &length, err));
    if (k->c != NULL) STW_TRY(check_hash(k, from, name, data, length, err));
    stw_text_append(&text, data, (size_t)length);
    STW_TRY(stw_text_status(&text, err));
    if (strcmp(name, CONFIG) == 0) STW_TRY(edit_config(k, from, &text, err));
    STW_TRY(stw_file_write(to, text.data != NULL ? text.data : "", text.length, err));
out:
    free(data);
    stw_text_free(&text);
    return status;
}

stw_status stw_convert_texts(const stw_checkpoint *checkpoint, const char *like, const char *to,
                             stw_dtype dtype, stw_error *err) {
    copier k = {.c = checkpoint, .to = to, .dtype = dtype};
    stw_status status = stw_folder_each(checkpoint->path, copy, &k, err);
    k.c = NULL;
    if (status == STW_STATUS_OK && like != NULL) status = stw_folder_each(like, copy, &k, err);
    return status;
}
