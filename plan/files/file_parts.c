/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/file_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

stw_status stw_part_fail(const stw_tree *tree, const stw_node *node, stw_error *err,
                         const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, node->line, node->column, "%s", text);
}

stw_status stw_part_u64(const stw_tree *tree, const stw_node *parent, const char *key,
                        uint64_t limit, uint64_t *out, stw_error *err) {
    stw_status status = stw_node_u64(tree, parent, key, out, err);
    if (status != STW_STATUS_OK || *out <= limit) return status;
    char expected[64];
    snprintf(expected, sizeof expected, "at most %" PRIu64, limit);
    return stw_node_fail(tree, stw_node_get(parent, key), expected, err);
}

stw_status stw_part_u32(const stw_tree *tree, const stw_node *parent, const char *key,
                        uint32_t *out, stw_error *err) {
    uint64_t value = 0;
    stw_status status = stw_part_u64(tree, parent, key, UINT32_MAX, &value, err);
    if (status == STW_STATUS_OK) *out = (uint32_t)value;
    return status;
}

static bool absent(const stw_node *parent, const char *key) {
    const stw_node *node = stw_node_get(parent, key);
    return node == NULL || node->kind == STW_NODE_NULL;
}

stw_status stw_part_optional_u64(const stw_tree *tree, const stw_node *parent, const char *key,
                                 uint64_t *out, stw_error *err) {
    return absent(parent, key) ? STW_STATUS_OK : stw_node_u64(tree, parent, key, out, err);
}

stw_status stw_part_optional_u32(const stw_tree *tree, const stw_node *parent, const char *key,
                                 uint32_t *out, stw_error *err) {
    return absent(parent, key) ? STW_STATUS_OK : stw_part_u32(tree, parent, key, out, err);
}

stw_status stw_part_real(const stw_tree *tree, const stw_node *parent, const char *key, double *out,
                         stw_error *err) {
    const stw_node *node = stw_node_get(parent, key);
    if (node != NULL && node->kind == STW_NODE_NULL) {
        *out = NAN;
        return STW_STATUS_OK;
    }
    return stw_node_double(tree, parent, key, out, err);
}

stw_status stw_part_seconds(const stw_tree *tree, const stw_node *parent, const char *key,
                            double *out, stw_error *err) {
    stw_status status = stw_part_real(tree, parent, key, out, err);
    if (status == STW_STATUS_OK && *out < 0)
        status = stw_node_fail(tree, stw_node_get(parent, key), "a number, not negative", err);
    return status;
}

stw_status stw_part_string(const stw_tree *tree, const stw_node *parent, const char *key,
                           bool may_be_null, stw_pool *pool, const char **out, stw_error *err) {
    const char *text = NULL;
    const stw_node *node = stw_node_get(parent, key);
    *out = NULL;
    if (may_be_null && node != NULL && node->kind == STW_NODE_NULL) return STW_STATUS_OK;
    stw_status status = stw_node_string(tree, parent, key, &text, err);
    if (status != STW_STATUS_OK) return status;
    *out = stw_pool_string(pool, text);
    if (*out == NULL) status = stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
    return status;
}

unsigned stw_part_find(const char *text, const char *(*word)(unsigned), unsigned n_words) {
    unsigned i = 0;
    while (i < n_words && strcmp(text, word(i)) != 0) i++;
    return i;
}

stw_status stw_part_phase(const stw_tree *tree, const stw_node *member, stw_phase *out,
                          stw_error *err) {
    char quoted[160];
    if (stw_phase_parse(member->key, out)) return STW_STATUS_OK;
    stw_text_quote(member->key, quoted, sizeof quoted);
    return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, member->key_line, member->key_column,
                       "found %s, expected a phase", quoted);
}

stw_status stw_part_components(const stw_tree *tree, const stw_node *parent, const char *key,
                               uint64_t out[STW_N_COMPONENTS], stw_error *err) {
    const stw_node *map = NULL;
    stw_status status = stw_node_object(tree, parent, key, &map, err);
    if (status != STW_STATUS_OK) return status;
    memset(out, 0, STW_N_COMPONENTS * sizeof *out);
    for (size_t i = 0; i < map->n_items && status == STW_STATUS_OK; i++) {
        const stw_node *item = map->items[i];
        stw_component component;
        char quoted[160];
        if (!stw_component_parse(item->key, &component)) {
            stw_text_quote(item->key, quoted, sizeof quoted);
            return stw_fail_at(err, STW_STATUS_BAD_INPUT, tree->file, item->key_line,
                               item->key_column, "found %s, expected a component", quoted);
        }
        status = stw_node_u64(tree, map, item->key, &out[component], err);
    }
    return status;
}

void stw_part_write_components(stw_json *json, const char *key,
                               const uint64_t components[STW_N_COMPONENTS]) {
    stw_json_begin_object(json, key);
    for (int c = 0; c < STW_N_COMPONENTS; c++)
        if (components[c] > 0)
            stw_json_u64(json, stw_component_name((stw_component)c), components[c]);
    stw_json_end(json);
}

void stw_part_format_numbers(const uint32_t *numbers, uint32_t n, stw_text *out) {
    for (uint32_t i = 0; i < n;) {
        uint32_t last = i;
        while (last + 1 < n && numbers[last + 1] == numbers[last] + 1) last++;
        stw_text_printf(out, "%s%" PRIu32, i > 0 ? "," : "", numbers[i]);
        if (last > i) stw_text_printf(out, "-%" PRIu32, numbers[last]);
        i = last + 1;
    }
}
