/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "models/config_keys.h"
#include "models/internal.h"
#include "models/template.h"

enum { MAX_CONFIG_BYTES = 64 << 20, MAX_TYPE = 64 };

/* The model_type becomes part of a path. Files that begin with _ are shared parts, not model types.
 */
static bool is_model_type(const char *text) {
    size_t n = strlen(text);
    if (n == 0 || n > MAX_TYPE || text[0] == '_' || text[0] == '.') return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && strchr("_-.", text[i]) == NULL) return false;
    return true;
}

static stw_status find_type(const stw_tree *tree, const char *data_folder, const char **type,
                            stw_error *err) {
    if (tree->root->kind != STW_NODE_OBJECT)
        return stw_node_fail(tree, tree->root, "an object with the key \"model_type\"", err);
    stw_status status = stw_node_string(tree, tree->root, "model_type", type, err);
    if (status != STW_STATUS_OK) return status;
    char path[4096] = "";
    bool known = is_model_type(*type);
    if (known) {
        int n = snprintf(path, sizeof path, "%s/arch/%s.csv", data_folder, *type);
        known = n > 0 && (size_t)n < sizeof path && stw_file_exists(path);
    }
    if (known) return STW_STATUS_OK;
    const stw_node *node = stw_node_get(tree->root, "model_type");
    return stw_fail_at(
        err, STW_STATUS_BAD_INPUT, tree->file, node->line, node->column,
        "unknown model_type \"%.*s\": no template in %.200s/arch; use its safetensors "
        "files or a CSV tensor list with the header name,shape,dtype",
        MAX_TYPE, *type, data_folder);
}

/* The template of the model_type, or one of its own for the text decoder that is in it
 * ("internvl.qwen3_moe"). */
static const char *template_of(const stw_tree *tree, const char *data_folder, const char *type,
                               stw_pool *pool) {
    const stw_node *text = stw_node_get(tree->root, "text_config");
    const stw_node *inner =
        text != NULL && text->kind == STW_NODE_OBJECT ? stw_node_get(text, "model_type") : NULL;
    if (inner == NULL || inner->kind != STW_NODE_STRING || !is_model_type(inner->text)) return type;
    const char *name = stw_pool_printf(pool, "%s.%s", type, inner->text);
    const char *path = stw_pool_printf(pool, "%s/arch/%s.csv", data_folder, name);
    return name != NULL && path != NULL && stw_file_exists(path) ? name : type;
}

static stw_status build(const stw_tree *tree, const char *data_folder, stw_model **out,
                        stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *model = NULL;
    stw_template template;
    const char *type = NULL;
    STW_TRY(find_type(tree, data_folder, &type, err));
    model = stw_model_new("", tree->file, type);
    if (model == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
    model->name = stw_model_name_of(model->pool, tree->file);
    if (model->name == NULL) {
        status = stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory");
        goto out;
    }
    type = template_of(tree, data_folder, type, model->pool);
    STW_TRY(stw_template_load(model->pool, data_folder, type, &template, err));
    STW_TRY(stw_config_check_keys(&template, tree, err));
    STW_TRY(stw_template_build(&template, tree, model, err));
    *out = model;
    model = NULL;
out:
    stw_model_free(model);
    return status;
}

stw_status stw_model_parse_config(const char *path, const char *text, size_t length,
                                  const char *data_folder, stw_model **out, stw_error *err) {
    stw_tree *tree = NULL;
    *out = NULL;
    stw_status status = stw_tree_parse_json(path, text, length, &tree, err);
    if (status == STW_STATUS_OK) status = build(tree, data_folder, out, err);
    stw_tree_free(tree);
    return stw_error_in(status, path, err);
}

stw_status stw_model_read_config(const char *path, const char *data_folder, stw_model **out,
                                 stw_error *err) {
    char *text = NULL;
    uint64_t length = 0;
    *out = NULL;
    stw_status status = stw_file_read(path, MAX_CONFIG_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK)
        status = stw_model_parse_config(path, text, (size_t)length, data_folder, out, err);
    free(text);
    return status;
}
