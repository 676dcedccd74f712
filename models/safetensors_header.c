/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the header of one safetensors file. The file is untrusted input and later code accesses
 * memory by these offsets: every value is checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/text.h"
#include "models/internal.h"

enum { MAX_NAME = 4096 };

stw_status stw_safetensors_header_length(const char *path, const unsigned char first[8],
                                         uint64_t file_bytes, uint64_t *length, stw_error *err) {
    *length = 0;
    if (file_bytes < 8)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "found %" PRIu64 " bytes, expected at least 8", file_bytes);
    for (unsigned k = 0; k < 8; k++) *length |= (uint64_t)first[k] << (8 * k);
    if (*length > STW_SAFETENSORS_MAX_HEADER)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "found a header length of %" PRIu64
                        " bytes, expected at most %u; probably not "
                        "a safetensors file",
                        *length, STW_SAFETENSORS_MAX_HEADER);
    if (*length > file_bytes - 8)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "found a header length of %" PRIu64 " bytes, but only %" PRIu64
                        " bytes follow; truncated, or not a safetensors file",
                        *length, file_bytes - 8);
    if (*length < 2)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "found a header length of %" PRIu64 " bytes, expected a JSON object",
                        *length);
    return STW_STATUS_OK;
}

static stw_status read_u64(const stw_tree *tree, const stw_node *node, const char *expected,
                           uint64_t *out, stw_error *err) {
    if (node->kind != STW_NODE_INT || node->integer < 0)
        return stw_node_fail(tree, node, expected, err);
    *out = (uint64_t)node->integer;
    return STW_STATUS_OK;
}

/* Bytes of a tensor. Elements smaller than a byte must fill whole bytes. */
static stw_status count_bytes(const stw_tree *tree, const stw_node *node,
                              const stw_safetensors_entry *entry, uint64_t *bytes, stw_error *err) {
    uint64_t bits = stw_dtype_bits(entry->dtype);
    bool over = false;
    for (uint32_t d = 0; d < entry->rank; d++)
        over = over || __builtin_mul_overflow(bits, entry->shape[d], &bits);
    for (uint32_t d = 0; d < entry->rank; d++)
        if (entry->shape[d] == 0) over = false, bits = 0;
    if (over) return stw_node_fail(tree, node, "a shape whose size fits in 64 bits", err);
    if (bits % 8 != 0) return stw_node_fail(tree, node, "a shape that fills whole bytes", err);
    *bytes = bits / 8;
    return STW_STATUS_OK;
}

static stw_status read_shape(const stw_tree *tree, const stw_node *shape,
                             stw_safetensors_entry *entry, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    if (shape->n_items > STW_TENSOR_MAX_RANK)
        return stw_node_fail(tree, shape, "at most 8 dimensions", err);
    entry->rank = (uint32_t)shape->n_items;
    for (uint32_t d = 0; d < entry->rank; d++)
        STW_TRY(read_u64(tree, shape->items[d], "a size, a whole number from 0", &entry->shape[d],
                         err));
out:
    return status;
}

static stw_status read_entry(const stw_tree *tree, const stw_node *node, stw_pool *pool,
                             uint64_t data_start, stw_safetensors_entry *entry, stw_error *err) {
    static const char *const known[] = {"dtype", "shape", "data_offsets"};
    static const char *const expected = "two offsets, begin and end";
    stw_status status = STW_STATUS_OK;
    const stw_node *shape = NULL, *offsets = NULL;
    const char *dtype = NULL;
    uint64_t begin = 0, end = 0, bytes = 0;
    if (node->kind != STW_NODE_OBJECT)
        return stw_node_fail(tree, node, "an object with dtype, shape and data_offsets", err);
    if (node->key[0] == '\0' || strlen(node->key) > MAX_NAME)
        return stw_node_fail(tree, node, "a tensor's name of 1 to 4096 characters before this",
                             err);
    STW_TRY(stw_node_known(tree, node, known, 3, err));
    STW_TRY(stw_node_string(tree, node, "dtype", &dtype, err));
    STW_TRY(stw_node_array(tree, node, "shape", &shape, err));
    STW_TRY(stw_node_array(tree, node, "data_offsets", &offsets, err));
    if (!stw_dtype_parse(dtype, &entry->dtype) || strcmp(dtype, stw_dtype_name(entry->dtype)) != 0)
        return stw_node_fail(tree, stw_node_get(node, "dtype"), "a dtype such as \"BF16\"", err);
    STW_TRY(read_shape(tree, shape, entry, err));
    if (offsets->n_items != 2) return stw_node_fail(tree, offsets, expected, err);
    STW_TRY(read_u64(tree, offsets->items[0], expected, &begin, err));
    STW_TRY(read_u64(tree, offsets->items[1], expected, &end, err));
    if (end < begin) return stw_node_fail(tree, offsets, "begin before end", err);
    STW_TRY(count_bytes(tree, shape, entry, &bytes, err));
    if (end - begin != bytes)
        return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, node->line, node->column,
                           "the tensor \"%.120s\" has %" PRIu64 " bytes by its shape and dtype, "
                           "but %" PRIu64 " by its offsets",
                           node->key, bytes, end - begin);
    entry->name = stw_pool_string(pool, node->key);
    entry->bytes = bytes;
    STW_TRY(stw_add_u64(data_start, begin, &entry->offset_bytes, "an offset", err));
    if (entry->name == NULL)
        status = stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
out:
    return status;
}

/* An empty tensor comes before a tensor with the same offset. */
static int by_offset(const void *x, const void *y) {
    const stw_safetensors_entry *a = x, *b = y;
    if (a->offset_bytes != b->offset_bytes) return a->offset_bytes < b->offset_bytes ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The tensors must cover the data from its first byte to its last, each byte once. */
static stw_status check_cover(const char *path, const stw_safetensors_entry *entries, uint32_t n,
                              uint64_t data_start, uint64_t file_bytes, stw_error *err) {
    uint64_t at = data_start;
    for (uint32_t k = 0; k < n; k++) {
        const stw_safetensors_entry *entry = &entries[k];
        if (entry->offset_bytes != at)
            return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                            "the tensor \"%.120s\" begins at byte %" PRIu64
                            " of the data, expected %" PRIu64 " (%s)",
                            entry->name, entry->offset_bytes - data_start, at - data_start,
                            entry->offset_bytes > at ? "a hole" : "an overlap");
        /* no overflow: both are at most file_bytes */
        if (entry->bytes > file_bytes - at)
            return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                            "the tensor \"%.120s\" ends %" PRIu64
                            " bytes past the end of the file; the file is truncated",
                            entry->name, entry->bytes - (file_bytes - at));
        at += entry->bytes;
    }
    if (at != file_bytes)
        return stw_fail(err, STW_STATUS_BAD_INPUT, path, "%" PRIu64 " bytes follow the last tensor",
                        file_bytes - at);
    return STW_STATUS_OK;
}

static stw_status check_metadata(const stw_tree *tree, const stw_node *node, stw_error *err) {
    if (node->kind != STW_NODE_OBJECT)
        return stw_node_fail(tree, node, "an object of strings", err);
    for (size_t k = 0; k < node->n_items; k++)
        if (node->items[k]->kind != STW_NODE_STRING)
            return stw_node_fail(tree, node->items[k], "a string", err);
    return STW_STATUS_OK;
}

stw_status stw_safetensors_parse(stw_pool *pool, const stw_safetensors_header *header,
                                 stw_safetensors_entry **entries, uint32_t *n_entries,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tree *tree = NULL;
    const char *path = header->path;
    uint64_t data_start = 8 + header->length;
    if (header->length == 0 || header->text[0] != '{')
        return stw_fail(err, STW_STATUS_BAD_INPUT, path,
                        "the header does not begin with '{'; probably not a safetensors file");
    STW_TRY(stw_tree_parse_json(path, header->text, (size_t)header->length, &tree, err));
    const stw_node *root = tree->root;
    *n_entries = 0;
    *entries = stw_pool_array(pool, root->n_items, sizeof **entries);
    if (*entries == NULL || root->n_items > UINT32_MAX) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
        goto out;
    }
    for (size_t k = 0; k < root->n_items; k++) {
        const stw_node *node = root->items[k];
        if (strcmp(node->key, "__metadata__") == 0) {
            STW_TRY(check_metadata(tree, node, err));
            continue;
        }
        STW_TRY(read_entry(tree, node, pool, data_start, &(*entries)[*n_entries], err));
        (*n_entries)++;
    }
    qsort(*entries, *n_entries, sizeof **entries, by_offset);
    STW_TRY(check_cover(path, *entries, *n_entries, data_start, header->file_bytes, err));
out:
    stw_tree_free(tree);
    return stw_error_in(status, path, err);
}
