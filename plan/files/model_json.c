/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/files/model_json.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "plan/files/file_parts.h"

/* ---- facts, by name ---- */

typedef struct fact {
    const char *name;
    size_t offset;
    bool is_flag;
} fact;

#define FLAG(member)                                                                               \
    { #member, offsetof(stw_block_facts, member), true }
#define NUMBER(member)                                                                             \
    { #member, offsetof(stw_block_facts, member), false }
static const fact facts[] = {FLAG(transformer),
                             FLAG(vision),
                             FLAG(decoder),
                             FLAG(gated),
                             FLAG(wide_norms),
                             FLAG(capped_scores),
                             FLAG(wide_scores),
                             FLAG(sigmoid_scores),
                             FLAG(complex_rotary),
                             NUMBER(norms),
                             NUMBER(hidden),
                             NUMBER(q_heads),
                             NUMBER(kv_heads),
                             NUMBER(qk_dim),
                             NUMBER(v_dim),
                             NUMBER(kv_rank),
                             NUMBER(q_rank),
                             NUMBER(window),
                             NUMBER(linear_k_heads),
                             NUMBER(linear_v_heads),
                             NUMBER(linear_k_dim),
                             NUMBER(linear_v_dim),
                             NUMBER(ffn),
                             NUMBER(experts),
                             NUMBER(experts_per_token),
                             NUMBER(expert_ffn),
                             NUMBER(shared_ffn),
                             NUMBER(rotary_dim),
                             NUMBER(tap_first),
                             NUMBER(tap_step)};
#undef FLAG
#undef NUMBER
enum { N_FACTS = sizeof facts / sizeof facts[0] };

static bool *flag_of(stw_block_facts *f, const fact *which) {
    return (bool *)((char *)f + which->offset);
}
static uint64_t *number_of(stw_block_facts *f, const fact *which) {
    return (uint64_t *)(void *)((char *)f + which->offset);
}

static void write_facts(const stw_block_facts *f, stw_json *json) {
    stw_block_facts copy = *f;
    stw_json_begin_object(json, "facts");
    for (int i = 0; i < N_FACTS; i++) {
        if (facts[i].is_flag && *flag_of(&copy, &facts[i]))
            stw_json_bool(json, facts[i].name, true);
        if (!facts[i].is_flag && *number_of(&copy, &facts[i]) != 0)
            stw_json_u64(json, facts[i].name, *number_of(&copy, &facts[i]));
    }
    stw_json_end(json);
}

static stw_status read_facts(const stw_tree *tree, const stw_node *group, stw_block_facts *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *map = NULL;
    const char *names[N_FACTS];
    for (int i = 0; i < N_FACTS; i++) names[i] = facts[i].name;
    STW_TRY(stw_node_object(tree, group, "facts", &map, err));
    STW_TRY(stw_node_known(tree, map, names, N_FACTS, err));
    for (int i = 0; i < N_FACTS; i++) {
        if (stw_node_get(map, names[i]) == NULL) continue;
        if (facts[i].is_flag)
            STW_TRY(stw_node_bool(tree, map, names[i], flag_of(out, &facts[i]), err));
        else /* widths and counts, so that their products with tokens stay far from 2^64 */
            STW_TRY(stw_part_u64(tree, map, names[i], UINT32_MAX, number_of(out, &facts[i]), err));
    }
out:
    return status;
}

/* ---- writing ---- */

static void write_shape(const stw_tensor *tensor, stw_json *json) {
    for (uint32_t d = 0; d < tensor->rank; d++) stw_json_u64(json, NULL, tensor->shape[d]);
}

static bool has_scales(const stw_model *model) {
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (model->tensors[t].scale_bytes > 0) return true;
    return false;
}

static bool is_named_otherwise(const stw_tensor *tensor) {
    return tensor->use.weight != stw_weight_of_name(tensor->name).weight;
}

/* Which weights the tensors are, where a name does not say what the model's template does. */
static void write_weights(const stw_model *model, stw_json *json) {
    bool any = false;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        any = any || is_named_otherwise(&model->tensors[t]);
    if (!any) return;
    stw_json_begin_array(json, "weights");
    for (uint32_t t = 0; t < model->n_tensors; t++)
        stw_json_string(json, NULL, stw_weight_name(model->tensors[t].use.weight));
    stw_json_end(json);
}

static void write_tensors(const stw_model *model, stw_json *json) {
    stw_json_begin_array(json, "tensors");
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const stw_tensor *tensor = &model->tensors[t];
        const stw_block *block = &model->blocks[tensor->block];
        stw_json_begin_array(json, NULL);
        stw_json_string(json, NULL, tensor->name);
        stw_json_string(json, NULL, stw_dtype_name(tensor->dtype));
        stw_json_u64(json, NULL, block->group);
        stw_json_u64(json, NULL, block->instance);
        stw_json_bool(json, NULL, tensor->expert);
        stw_json_u64(json, NULL, tensor->experts);
        write_shape(tensor, json);
        stw_json_end(json);
    }
    stw_json_end(json);
    if (has_scales(model)) { /* bytes of block scales by index of the tensor */
        stw_json_begin_array(json, "scale_bytes");
        for (uint32_t t = 0; t < model->n_tensors; t++)
            stw_json_u64(json, NULL, model->tensors[t].scale_bytes);
        stw_json_end(json);
    }
    write_weights(model, json);
    stw_json_begin_array(json, "buffer_tensors");
    for (uint32_t t = 0; t < model->n_buffers; t++) {
        stw_json_begin_array(json, NULL);
        stw_json_string(json, NULL, model->buffer_tensors[t].name);
        stw_json_string(json, NULL, stw_dtype_name(model->buffer_tensors[t].dtype));
        write_shape(&model->buffer_tensors[t], json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

void stw_model_write_json(const stw_model *model, stw_json *json, const char *key) {
    stw_json_begin_object(json, key);
    stw_json_string(json, "name", model->name);
    stw_json_string(json, "model_type", model->model_type);
    stw_json_string(json, "digest", model->digest);
    stw_json_u64(json, "params", model->params);
    stw_json_u64(json, "active_params", model->active_params);
    stw_json_u64(json, "buffers", model->buffers);
    stw_json_u64(json, "vocab", model->vocab);
    stw_json_u64(json, "hidden", model->hidden);
    stw_json_u64(json, "layers", model->layers);
    stw_json_u64(json, "max_positions", model->max_positions);
    stw_json_bool(json, "tied_embeddings", model->tied_embeddings);
    stw_json_bool(json, "facts_known", model->facts_known);
    if (model->soft_capped) stw_json_bool(json, "soft_capped", true);
    stw_json_begin_array(json, "groups");
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_group *group = &model->groups[g];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "name", group->name);
        stw_json_u64(json, "count", group->count);
        stw_json_u64(json, "params", group->params);
        stw_json_u64(json, "tensors", group->tensors);
        write_facts(&group->facts, json);
        stw_json_end(json);
    }
    stw_json_end(json);
    write_tensors(model, json);
    stw_json_end(json);
}

/* ---- reading ---- */

static stw_status no_memory(const stw_tree *tree, stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, tree->file, "out of memory for a model");
}

/* Item `i` of a row as a whole number of at most `limit`. */
static stw_status row_number(const stw_tree *tree, const stw_node *row, size_t i, uint64_t limit,
                             const char *expected, uint64_t *out, stw_error *err) {
    const stw_node *item = row->items[i];
    if (item->kind != STW_NODE_INT || item->integer < 0 || (uint64_t)item->integer > limit)
        return stw_node_fail(tree, item, expected, err);
    *out = (uint64_t)item->integer;
    return STW_STATUS_OK;
}

/* Name and dtype at the beginning of a row, dimensions from item `first_dim` on. */
static stw_status row_tensor(const stw_tree *tree, const stw_node *row, size_t first_dim,
                             stw_pool *pool, stw_tensor *out, stw_error *err) {
    if (row->kind != STW_NODE_ARRAY || row->n_items < first_dim ||
        row->n_items - first_dim > STW_TENSOR_MAX_RANK)
        return stw_node_fail(tree, row, "a row of a tensor with at most 8 dimensions", err);
    const stw_node *name = row->items[0], *dtype = row->items[1];
    if (name->kind != STW_NODE_STRING) return stw_node_fail(tree, name, "a tensor's name", err);
    if (dtype->kind != STW_NODE_STRING || !stw_dtype_parse(dtype->text, &out->dtype))
        return stw_node_fail(tree, dtype, "a dtype", err);
    out->name = stw_pool_string(pool, name->text);
    if (out->name == NULL) return no_memory(tree, err);
    out->rank = (uint32_t)(row->n_items - first_dim);
    for (uint32_t d = 0; d < out->rank; d++) {
        stw_status status = row_number(tree, row, first_dim + d, INT64_MAX,
                                       "a dimension, not negative", &out->shape[d], err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

/* A tensor's place: it continues the last block, or begins the next one of its group. */
static stw_status place_tensor(const stw_tree *tree, const stw_node *row, stw_model *model,
                               uint64_t group, uint64_t instance, stw_error *err) {
    stw_block *last = model->n_blocks > 0 ? &model->blocks[model->n_blocks - 1] : NULL;
    if (last == NULL || last->group != group || last->instance != instance) {
        uint32_t next = model->groups[group].count;
        if (instance != next)
            return stw_part_fail(tree, row, err, "found block %" PRIu64 " of %s, expected %" PRIu32,
                                 instance, model->groups[group].name, next);
        model->groups[group].count++;
        last = &model->blocks[model->n_blocks++];
        *last = (stw_block){(uint32_t)group, next, model->n_tensors, 0, 0};
    }
    last->n_tensors++;
    model->n_tensors++;
    return STW_STATUS_OK;
}

/* Bytes of block scales, one number for each tensor; absent if none has any. */
static stw_status read_scales(const stw_tree *tree, const stw_node *node, stw_model *model,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *rows = NULL;
    if (stw_node_get(node, "scale_bytes") == NULL) return STW_STATUS_OK;
    STW_TRY(stw_node_array(tree, node, "scale_bytes", &rows, err));
    if (rows->n_items != model->n_tensors)
        return stw_node_fail(tree, rows, "one number for each tensor", err);
    for (size_t i = 0; i < rows->n_items; i++)
        STW_TRY(row_number(tree, rows, i, INT64_MAX, "bytes of block scales",
                           &model->tensors[i].scale_bytes, err));
out:
    return status;
}

/* The word of each tensor's weight; absent if all names say it. */
static stw_status read_weights(const stw_tree *tree, const stw_node *node, stw_model *model,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *rows = NULL;
    if (stw_node_get(node, "weights") == NULL) return STW_STATUS_OK;
    STW_TRY(stw_node_array(tree, node, "weights", &rows, err));
    if (rows->n_items != model->n_tensors)
        return stw_node_fail(tree, rows, "one word for each tensor", err);
    for (size_t i = 0; i < rows->n_items; i++) {
        stw_tensor *tensor = &model->tensors[i];
        tensor->use = stw_weight_of_name(tensor->name);
        if (rows->items[i]->kind != STW_NODE_STRING ||
            !stw_weight_parse(rows->items[i]->text, &tensor->use.weight))
            return stw_node_fail(tree, rows->items[i], "a weight such as \"gate_up\"", err);
    }
out:
    return status;
}

static stw_status read_tensors(const stw_tree *tree, const stw_node *node, stw_model *model,
                               stw_error *err) {
    enum { GROUP = 2, INSTANCE, EXPERT, EXPERTS, FIRST_DIM };
    stw_status status = STW_STATUS_OK;
    const stw_node *rows = NULL;
    STW_TRY(stw_node_array(tree, node, "tensors", &rows, err));
    if (rows->n_items >= UINT32_MAX) return stw_node_fail(tree, rows, "fewer tensors", err);
    model->tensors = stw_pool_array(model->pool, rows->n_items, sizeof *model->tensors);
    model->blocks = stw_pool_array(model->pool, rows->n_items, sizeof *model->blocks);
    if (model->tensors == NULL || model->blocks == NULL) return no_memory(tree, err);
    for (size_t i = 0; i < rows->n_items; i++) {
        const stw_node *row = rows->items[i];
        stw_tensor *tensor = &model->tensors[i];
        uint64_t group = 0, instance = 0;
        STW_TRY(row_tensor(tree, row, FIRST_DIM, model->pool, tensor, err));
        STW_TRY(row_number(tree, row, GROUP, model->n_groups == 0 ? 0 : model->n_groups - 1,
                           "the index of a group", &group, err));
        if (model->n_groups == 0) return stw_node_fail(tree, row, "no tensor without a group", err);
        STW_TRY(
            row_number(tree, row, INSTANCE, UINT32_MAX, "the number of a block", &instance, err));
        if (row->items[EXPERT]->kind != STW_NODE_BOOL)
            return stw_node_fail(tree, row->items[EXPERT], "true or false", err);
        tensor->expert = row->items[EXPERT]->boolean;
        STW_TRY(row_number(tree, row, EXPERTS, UINT32_MAX, "a number of experts", &tensor->experts,
                           err));
        STW_TRY(place_tensor(tree, row, model, group, instance, err));
    }
    STW_TRY(read_scales(tree, node, model, err));
    STW_TRY(read_weights(tree, node, model, err));
    STW_TRY(stw_node_array(tree, node, "buffer_tensors", &rows, err));
    model->buffer_tensors =
        stw_pool_array(model->pool, rows->n_items, sizeof *model->buffer_tensors);
    if (model->buffer_tensors == NULL || rows->n_items >= UINT32_MAX) return no_memory(tree, err);
    model->n_buffers = (uint32_t)rows->n_items;
    for (size_t i = 0; i < rows->n_items; i++)
        STW_TRY(
            row_tensor(tree, rows->items[i], GROUP, model->pool, &model->buffer_tensors[i], err));
out:
    return status;
}

static stw_status read_groups(const stw_tree *tree, const stw_node *node, stw_model *model,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_node *list = NULL;
    STW_TRY(stw_node_array(tree, node, "groups", &list, err));
    if (list->n_items >= UINT32_MAX) return stw_node_fail(tree, list, "fewer groups", err);
    model->n_groups = (uint32_t)list->n_items;
    model->groups = stw_pool_array(model->pool, list->n_items, sizeof *model->groups);
    if (model->groups == NULL) return no_memory(tree, err);
    for (uint32_t g = 0; g < model->n_groups; g++) {
        STW_TRY(stw_part_string(tree, list->items[g], "name", false, model->pool,
                                &model->groups[g].name, err));
        STW_TRY(read_facts(tree, list->items[g], &model->groups[g].facts, err));
    }
out:
    return status;
}

static stw_status read_scalars(const stw_tree *tree, const stw_node *node, stw_model *model,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_part_string(tree, node, "name", false, model->pool, &model->name, err));
    STW_TRY(stw_part_string(tree, node, "model_type", false, model->pool, &model->model_type, err));
    STW_TRY(stw_part_u64(tree, node, "vocab", UINT32_MAX, &model->vocab, err));
    STW_TRY(stw_part_u64(tree, node, "hidden", UINT32_MAX, &model->hidden, err));
    STW_TRY(stw_part_u64(tree, node, "layers", UINT32_MAX, &model->layers, err));
    STW_TRY(stw_part_u64(tree, node, "max_positions", INT64_MAX, &model->max_positions, err));
    STW_TRY(stw_node_bool(tree, node, "tied_embeddings", &model->tied_embeddings, err));
    STW_TRY(stw_node_bool(tree, node, "facts_known", &model->facts_known, err));
    if (stw_node_get(node, "soft_capped") != NULL)
        STW_TRY(stw_node_bool(tree, node, "soft_capped", &model->soft_capped, err));
out:
    return status;
}

/* A stated sum must be that of the tensors. */
static stw_status same_sum(const stw_tree *tree, const stw_node *parent, const char *key,
                           uint64_t sum, stw_error *err) {
    uint64_t stated = 0;
    stw_status status = stw_node_u64(tree, parent, key, &stated, err);
    if (status != STW_STATUS_OK || stated == sum) return status;
    return stw_part_fail(tree, stw_node_get(parent, key), err,
                         "%s: found %" PRIu64 ", the tensors give %" PRIu64, key, stated, sum);
}

static stw_status check_stated(const stw_tree *tree, const stw_node *node, const stw_model *model,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const char *digest = NULL;
    const stw_node *groups = stw_node_get(node, "groups");
    STW_TRY(stw_node_string(tree, node, "digest", &digest, err));
    if (strcmp(digest, model->digest) != 0) {
        char quoted[160];
        stw_text_quote(digest, quoted, sizeof quoted);
        return stw_part_fail(tree, stw_node_get(node, "digest"), err,
                             "digest: found %s, expected \"%s\" as computed from the tensors: the "
                             "plan belongs to another model, or was edited",
                             quoted, model->digest);
    }
    STW_TRY(same_sum(tree, node, "params", model->params, err));
    STW_TRY(same_sum(tree, node, "active_params", model->active_params, err));
    STW_TRY(same_sum(tree, node, "buffers", model->buffers, err));
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_group *group = &model->groups[g];
        if (group->count == 0)
            return stw_node_fail(tree, groups->items[g], "a group with tensors", err);
        STW_TRY(same_sum(tree, groups->items[g], "count", group->count, err));
        STW_TRY(same_sum(tree, groups->items[g], "params", group->params, err));
        STW_TRY(same_sum(tree, groups->items[g], "tensors", group->tensors, err));
    }
out:
    return status;
}

stw_status stw_model_from_node(const stw_tree *tree, const stw_node *node, stw_model **out,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_pool *pool = stw_pool_new();
    stw_model *model = stw_pool_alloc(pool, sizeof *model);
    if (model == NULL) {
        stw_pool_free(pool);
        return no_memory(tree, err);
    }
    model->pool = pool;
    model->source = stw_pool_string(pool, tree->file);
    if (model->source == NULL) {
        status = no_memory(tree, err);
        goto out;
    }
    STW_TRY(read_scalars(tree, node, model, err));
    STW_TRY(read_groups(tree, node, model, err));
    STW_TRY(read_tensors(tree, node, model, err));
    STW_TRY(stw_model_finish(model, err));
    STW_TRY(check_stated(tree, node, model, err));
out:
    if (status == STW_STATUS_OK)
        *out = model;
    else
        stw_model_free(model);
    return status;
}
