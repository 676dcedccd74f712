/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700 /* pread, opendir */
#endif
#include "models/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "models/internal.h"

static const char index_name[] = "model.safetensors.index.json";
static const char ending[] = ".safetensors";

typedef struct opener {
    stw_safetensors *set;
    size_t files_capacity, bytes_capacity, entries_capacity;
    stw_error *err;
} opener;

static stw_status no_memory(opener *o, const char *path) {
    return stw_fail(o->err, STW_STATUS_NO_MEMORY, path, "out of memory");
}

static stw_status read_at(int fd, const char *path, void *to, uint64_t bytes, uint64_t offset,
                          stw_error *err) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)to + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return stw_fail_native(err, STW_STATUS_IO, errno, path, "cannot be read: %s",
                                   strerror(errno));
        if (got == 0) return stw_fail(err, STW_STATUS_IO, path, "was truncated while it was read");
        done += (uint64_t)got;
    }
    return STW_STATUS_OK;
}

/* Read the header of a file. The caller frees *header. */
static stw_status read_header(const char *path, char **header, uint64_t *length,
                              uint64_t *file_bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unsigned char first[8] = {0};
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for a writer */
    if (fd < 0 || fstat(fd, &info) != 0) {
        status = stw_fail_native(err, STW_STATUS_IO, errno, path, "cannot be opened: %s",
                                 strerror(errno));
        goto out;
    }
    if (!S_ISREG(info.st_mode)) {
        status = stw_fail(err, STW_STATUS_BAD_INPUT, path, "is a %s, expected a regular file",
                          S_ISFIFO(info.st_mode)  ? "FIFO"
                          : S_ISDIR(info.st_mode) ? "folder"
                                                  : "device");
        goto out;
    }
    *file_bytes = (uint64_t)info.st_size;
    if (*file_bytes >= 8) STW_TRY(read_at(fd, path, first, 8, 0, err));
    STW_TRY(stw_safetensors_header_length(path, first, *file_bytes, length, err));
    *header = malloc((size_t)*length);
    if (*header == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
        goto out;
    }
    STW_TRY(read_at(fd, path, *header, *length, 8, err));
out:
    if (fd >= 0) close(fd);
    return status;
}

static stw_status add_file(opener *o, const char *path) {
    stw_status status = STW_STATUS_OK;
    stw_safetensors *set = o->set;
    char *header = NULL;
    uint64_t length = 0, file_bytes = 0;
    stw_safetensors_entry *found = NULL;
    uint32_t n_found = 0;
    STW_TRY(read_header(path, &header, &length, &file_bytes, o->err));
    const stw_safetensors_header parsed = {path, header, length, file_bytes};
    STW_TRY(stw_safetensors_parse(set->pool, &parsed, &found, &n_found, o->err));
    size_t n_files = set->n_files, n_entries = set->n_entries;
    const char **files = stw_pool_grow(set->pool, set->files, n_files, n_files + 1,
                                       &o->files_capacity, sizeof *files);
    uint64_t *bytes = stw_pool_grow(set->pool, set->file_bytes, n_files, n_files + 1,
                                    &o->bytes_capacity, sizeof *bytes);
    stw_safetensors_entry *entries =
        stw_pool_grow(set->pool, set->entries, n_entries, n_entries + n_found, &o->entries_capacity,
                      sizeof *entries);
    const char *copy = stw_pool_string(set->pool, path);
    if (files == NULL || bytes == NULL || entries == NULL || copy == NULL ||
        n_found > UINT32_MAX - set->n_entries) {
        status = no_memory(o, path);
        goto out;
    }
    files[n_files] = copy;
    bytes[n_files] = file_bytes;
    for (uint32_t k = 0; k < n_found; k++) {
        entries[n_entries + k] = found[k];
        entries[n_entries + k].file = set->n_files;
    }
    set->files = files;
    set->file_bytes = bytes;
    set->entries = entries;
    set->n_files++;
    set->n_entries += n_found;
out:
    free(header);
    return status;
}

static int by_name(const void *x, const void *y) {
    return strcmp(((const stw_safetensors_entry *)x)->name,
                  ((const stw_safetensors_entry *)y)->name);
}

static stw_status sort_entries(opener *o) {
    stw_safetensors *set = o->set;
    if (set->n_entries > 0) qsort(set->entries, set->n_entries, sizeof *set->entries, by_name);
    for (uint32_t k = 1; k < set->n_entries; k++) {
        const stw_safetensors_entry *a = &set->entries[k - 1], *b = &set->entries[k];
        if (strcmp(a->name, b->name) == 0)
            return stw_fail(o->err, STW_STATUS_BAD_INPUT, set->files[b->file],
                            "the tensor \"%.120s\" is also in %.200s", b->name,
                            set->files[a->file]);
    }
    return STW_STATUS_OK;
}

const stw_safetensors_entry *stw_safetensors_find(const stw_safetensors *set, const char *name) {
    if (set->n_entries == 0) return NULL;
    stw_safetensors_entry key = {.name = name};
    return bsearch(&key, set->entries, set->n_entries, sizeof *set->entries, by_name);
}

static int compare_strings(const void *x, const void *y) {
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* ---- a folder ---- */

static bool has_ending(const char *name) {
    size_t n = strlen(name), m = sizeof ending - 1;
    return n > m && strcmp(name + n - m, ending) == 0;
}

static stw_status list_folder(opener *o, const char *path, const char ***names, size_t *n) {
    stw_pool *pool = o->set->pool;
    size_t capacity = 0;
    stw_status status = STW_STATUS_OK;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return stw_fail_native(o->err, STW_STATUS_IO, errno, path, "cannot be opened: %s",
                               strerror(errno));
    errno = 0; /* what readdir sets where it fails, and leaves at the end */
    for (const struct dirent *one; (one = readdir(folder)) != NULL; errno = 0) {
        if (!has_ending(one->d_name)) continue;
        const char **grown = stw_pool_grow(pool, *names, *n, *n + 1, &capacity, sizeof *grown);
        const char *name = stw_pool_printf(pool, "%s/%s", path, one->d_name);
        if (grown == NULL || name == NULL) {
            status = no_memory(o, path);
            break;
        }
        *names = grown;
        (*names)[(*n)++] = name;
    }
    if (errno != 0 && status == STW_STATUS_OK)
        status = stw_fail_native(o->err, STW_STATUS_IO, errno, path, "cannot be listed: %s",
                                 strerror(errno));
    closedir(folder);
    return status;
}

static stw_status open_folder(opener *o, const char *path) {
    stw_status status = STW_STATUS_OK;
    const char **names = NULL;
    size_t n = 0;
    STW_TRY(list_folder(o, path, &names, &n));
    if (n == 0)
        return stw_fail(o->err, STW_STATUS_BAD_INPUT, path,
                        "contains neither %s nor a *.safetensors file", index_name);
    qsort(names, n, sizeof *names, compare_strings);
    for (size_t k = 0; k < n; k++) STW_TRY(add_file(o, names[k]));
out:
    return status;
}

/* ---- a sharded index ---- */

/* A shard must be in the folder of its index. A downloaded index can then read no other files. */
static stw_status check_shard(const stw_tree *tree, const stw_node *node, stw_error *err) {
    if (node->kind != STW_NODE_STRING) return stw_node_fail(tree, node, "the name of a file", err);
    if (strchr(node->text, '/') != NULL || strchr(node->text, '\\') != NULL ||
        !has_ending(node->text))
        return stw_node_fail(tree, node, "a *.safetensors file in the index's own folder", err);
    return STW_STATUS_OK;
}

/* Base name of a file of the set. */
static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Check that each tensor is in the file that the index names. Tensors that are not in the index are
 * ignored, as in the reference implementation. */
static stw_status check_map(opener *o, const stw_tree *tree, const stw_node *map) {
    stw_safetensors *set = o->set;
    bool *named = stw_pool_array(set->pool, set->n_entries, sizeof *named);
    if (named == NULL) return no_memory(o, tree->file);
    for (size_t k = 0; k < map->n_items; k++) {
        const stw_node *node = map->items[k];
        const stw_safetensors_entry *entry = stw_safetensors_find(set, node->key);
        if (entry == NULL || strcmp(base_name(set->files[entry->file]), node->text) != 0)
            return stw_fail_at(o->err, STW_STATUS_BAD_INPUT, tree->file, node->line, node->column,
                               "the tensor \"%.120s\" is not in %.120s", node->key, node->text);
        named[entry - set->entries] = true;
    }
    uint32_t kept = 0;
    for (uint32_t k = 0; k < set->n_entries; k++)
        if (named[k]) set->entries[kept++] = set->entries[k];
    if (kept < set->n_entries)
        stw_log(STW_LOG_WARN, "%s: ignoring %u tensors that are not in the index", tree->file,
                (unsigned)(set->n_entries - kept));
    set->n_entries = kept;
    return STW_STATUS_OK;
}

static stw_status open_index(opener *o, const char *path) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    const stw_node *map = NULL;
    stw_pool *pool = o->set->pool;
    STW_TRY(stw_tree_read_json(path, &tree, o->err));
    STW_TRY(stw_node_object(tree, tree->root, "weight_map", &map, o->err));
    if (map->n_items == 0) {
        status = stw_node_fail(tree, map, "at least one tensor", o->err);
        goto out;
    }
    const char **names = stw_pool_array(pool, map->n_items, sizeof *names);
    if (names == NULL) {
        status = no_memory(o, path);
        goto out;
    }
    for (size_t k = 0; k < map->n_items; k++) {
        STW_TRY(check_shard(tree, map->items[k], o->err));
        names[k] = map->items[k]->text;
    }
    qsort(names, map->n_items, sizeof *names, compare_strings);
    for (size_t k = 0; k < map->n_items; k++) {
        if (k > 0 && strcmp(names[k - 1], names[k]) == 0) continue;
        int folder = (int)(base_name(path) - path);
        const char *shard = stw_pool_printf(pool, "%.*s%s", folder, path, names[k]);
        if (shard == NULL) {
            status = no_memory(o, path);
            goto out;
        }
        STW_TRY(add_file(o, shard));
    }
    STW_TRY(sort_entries(o));
    STW_TRY(check_map(o, tree, map));
out:
    stw_tree_free(tree);
    return status;
}

stw_status stw_safetensors_open(const char *path, stw_safetensors **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *out = NULL;
    stw_pool *pool = stw_pool_new();
    stw_safetensors *set = stw_pool_alloc(pool, sizeof *set);
    if (set == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    }
    set->pool = pool;
    opener o = {.set = set, .err = err};
    size_t n = strlen(path);
    bool is_index = n > 5 && strcmp(path + n - 5, ".json") == 0;
    if (stw_file_is_folder(path)) {
        const char *index = stw_pool_printf(pool, "%s/%s", path, index_name);
        if (index == NULL) {
            status = no_memory(&o, path);
            goto out;
        }
        STW_TRY(stw_file_exists(index) ? open_index(&o, index) : open_folder(&o, path));
    } else {
        STW_TRY(is_index ? open_index(&o, path) : add_file(&o, path));
    }
    STW_TRY(sort_entries(&o));
    *out = set;
    set = NULL;
out:
    stw_safetensors_free(set);
    return status;
}

void stw_safetensors_free(stw_safetensors *set) {
    if (set != NULL) stw_pool_free(set->pool);
}
