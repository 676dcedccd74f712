/* SPDX-License-Identifier: Apache-2.0 */
#include "models/template.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/deadline.h"
#include "models/expression.h"
#include "models/internal.h"

/* Far above any published model. More is a mistake or an attack. */
enum { MAX_REPEAT = 1024, MAX_NAME = 512 };

typedef struct builder {
    const stw_template *template;
    stw_model *model;
    stw_environment env;
    stw_dtype dtype;
    bool extra; /* the block is in the published files alone */
    size_t tensor_capacity, buffer_capacity, extra_capacity, block_capacity, group_capacity;
    stw_error *err;
} builder;

static stw_status no_memory(builder *b) {
    return stw_fail(b->err, STW_STATUS_NO_MEMORY, b->model->source, "out of memory");
}

/* An error in the template itself. */
static stw_status bad_row(builder *b, const stw_template_row *row, const char *text,
                          const char *what) {
    return stw_fail_at(b->err, STW_STATUS_BAD_INPUT, row->file, row->line, 0, "%s: \"%.120s\"",
                       text, what);
}

/* Every "*" stands for any characters. */
static bool matches_one(const char *pattern, size_t n, const char *group) {
    size_t at = 0, star = SIZE_MAX;
    const char *retry = group;
    while (*group != '\0') {
        if (at < n && pattern[at] == '*') {
            star = at++;
            retry = group;
        } else if (at < n && pattern[at] == *group) {
            at++;
            group++;
        } else if (star != SIZE_MAX) { /* the last star takes one more character */
            at = star + 1;
            group = ++retry;
        } else {
            return false;
        }
    }
    while (at < n && pattern[at] == '*') at++;
    return at == n;
}

bool stw_template_matches(const char *patterns, const char *group) {
    while (*patterns != '\0') {
        size_t n = strcspn(patterns, " ");
        if (n > 0 && matches_one(patterns, n, group)) return true;
        patterns += n;
        patterns += strspn(patterns, " ");
    }
    return false;
}

static void at_row(builder *b, const stw_template_row *row) {
    b->env.scope = row->scope[0] != '\0' ? stw_node_path(b->env.tree->root, row->scope) : NULL;
    b->env.file = row->file;
    b->env.line = row->line;
}

/* ---- names ---- */

static const char *text_value(const builder *b, const char *name, size_t n) {
    for (size_t r = 0; r < b->template->n_rows; r++) {
        const stw_template_row *row = &b->template->rows[r];
        if (row->kind == STW_ROW_TEXT && strlen(row->name) == n && memcmp(row->name, name, n) == 0)
            return row->value;
    }
    return NULL;
}

/* The value of an expression in a name, such as {num_hidden_layers + i}; NULL if it has none. */
static const char *number_text(builder *b, const char *text, size_t n, char *out, size_t room) {
    char expression[64];
    uint64_t value = 0;
    if (n >= sizeof expression) return NULL;
    memcpy(expression, text, n);
    expression[n] = '\0';
    if (stw_expression_size(&b->env, expression, &value, NULL) != STW_STATUS_OK) return NULL;
    snprintf(out, room, "%" PRIu64, value);
    return out;
}

/* Append `from` to `out`, {i}, {text} and {expression} filled in. */
static stw_status expand(builder *b, const stw_template_row *row, const char *from, char *out,
                         size_t *used) {
    while (*from != '\0') {
        char number[24];
        const char *piece = from;
        size_t n = strcspn(from, "{");
        if (n == 0) {
            size_t inner = strcspn(from + 1, "}");
            if (from[1 + inner] == '\0') return bad_row(b, row, "a { without }", from);
            if (inner == 1 && from[1] == 'i' && b->env.has_index) {
                snprintf(number, sizeof number, "%" PRIu64, b->env.index);
                piece = number;
            } else {
                piece = text_value(b, from + 1, inner);
                if (piece == NULL) piece = number_text(b, from + 1, inner, number, sizeof number);
                if (piece == NULL) return bad_row(b, row, "unknown text", from);
            }
            from += inner + 2;
            n = strlen(piece);
        } else {
            from += n;
        }
        if (n >= MAX_NAME - *used) return bad_row(b, row, "the name is too long", row->name);
        memcpy(out + *used, piece, n);
        *used += n;
        out[*used] = '\0';
    }
    return STW_STATUS_OK;
}

/* ---- the published files ---- */

/* The first row of this kind that applies to a tensor; NULL if there is none. It may stand in any
 * part of the template. */
static stw_status find_storage(builder *b, stw_row_kind kind, const char *group, const char *name,
                               const stw_template_row **found) {
    stw_status status = STW_STATUS_OK;
    *found = NULL;
    for (size_t r = 0; r < b->template->n_rows; r++) {
        const stw_template_row *row = &b->template->rows[r];
        bool applies = false;
        if (row->kind != kind || !stw_template_matches(row->group, group) ||
            !stw_template_matches(row->name, name))
            continue;
        at_row(b, row);
        STW_TRY(stw_expression_bool(&b->env, row->condition, &applies, b->err));
        if (applies) {
            *found = row;
            break;
        }
    }
out:
    return status;
}

/* Bytes of the scales of a tensor: one for each block of the shape that the row states for the last
 * dimensions. */
static stw_status read_scale(builder *b, const stw_template_row *row, stw_tensor *tensor) {
    stw_status status = STW_STATUS_OK;
    uint64_t block[STW_TENSOR_MAX_RANK], scales = 1;
    uint32_t rank = 0;
    stw_dtype dtype;
    if (!stw_dtype_parse(row->repeat, &dtype)) return bad_row(b, row, "unknown dtype", row->repeat);
    at_row(b, row);
    STW_TRY(stw_expression_shape(&b->env, row->value, STW_TENSOR_MAX_RANK, block, &rank, b->err));
    if (rank > tensor->rank) return bad_row(b, row, "more dimensions than the tensor", row->value);
    for (uint32_t d = 0; d < tensor->rank; d++) {
        uint32_t lead = tensor->rank - rank;
        uint64_t size = d < lead ? 1 : block[d - lead];
        scales *= stw_div_up_u64(tensor->shape[d], size); /* at most the number of elements */
    }
    STW_TRY(
        stw_mul_u64(scales, stw_dtype_bits(dtype) / 8, &tensor->scale_bytes, tensor->name, b->err));
out:
    return status;
}

/* Dtype and scales of a tensor whose sizes are known. */
static stw_status read_storage(builder *b, const char *group, const char *name,
                               stw_tensor *tensor) {
    stw_status status = STW_STATUS_OK;
    const stw_template_row *row = NULL;
    STW_TRY(find_storage(b, STW_ROW_DTYPE, group, name, &row));
    if (row != NULL && !stw_dtype_parse(row->value, &tensor->dtype))
        return bad_row(b, row, "unknown dtype", row->value);
    STW_TRY(find_storage(b, STW_ROW_SCALE, group, name, &row));
    if (row != NULL) STW_TRY(read_scale(b, row, tensor));
out:
    return status;
}

/* ---- one block ---- */

typedef struct tensor_list {
    stw_tensor **tensors;
    uint32_t *n;
    size_t *capacity;
} tensor_list;

static tensor_list list_for(builder *b, const stw_template_row *row) {
    stw_model *model = b->model;
    if (b->extra) return (tensor_list){&model->extra_tensors, &model->n_extras, &b->extra_capacity};
    if (row->kind == STW_ROW_BUFFER)
        return (tensor_list){&model->buffer_tensors, &model->n_buffers, &b->buffer_capacity};
    return (tensor_list){&model->tensors, &model->n_tensors, &b->tensor_capacity};
}

/* The error is at the key that gives the largest size, if one does. */
static void suspect_largest(builder *b, const stw_tensor *tensor) {
    uint64_t most = 0;
    const stw_node *root = b->env.tree->root;
    for (uint32_t i = 0; i < tensor->rank; i++) most = stw_max_u64(most, tensor->shape[i]);
    for (size_t i = 0; i < root->n_items; i++)
        if (root->items[i]->kind == STW_NODE_INT && root->items[i]->integer > 0 &&
            (uint64_t)root->items[i]->integer == most)
            b->env.last = root->items[i];
}

static stw_status add_tensor(builder *b, const stw_template_row *block,
                             const stw_template_row *row) {
    stw_status status = STW_STATUS_OK;
    stw_model *model = b->model;
    char name[MAX_NAME] = "";
    size_t used = 0;
    bool wanted = false;
    stw_tensor tensor = {.block = b->extra ? 0 : model->n_blocks, .dtype = b->dtype};
    at_row(b, row);
    STW_TRY(stw_expression_bool(&b->env, row->condition, &wanted, b->err));
    if (!wanted) return status;
    STW_TRY(expand(b, block, block->name, name, &used));
    STW_TRY(expand(b, row, row->name, name, &used));
    STW_TRY(stw_expression_shape(&b->env, row->value, STW_TENSOR_MAX_RANK, tensor.shape,
                                 &tensor.rank, b->err));
    tensor.name = stw_pool_string(model->pool, name);
    tensor.expert = row->kind == STW_ROW_EXPERT;
    tensor.experts = tensor.expert && tensor.rank > 0 ? tensor.shape[0] : 1;
    if (tensor.name == NULL) return no_memory(b);
    tensor.use = stw_weight_of_name(name);
    if (row->kind != STW_ROW_BUFFER && row->repeat[0] != '\0' &&
        !stw_weight_parse(row->repeat, &tensor.use.weight))
        return bad_row(b, row, "unknown weight", row->repeat);
    status = stw_tensor_count(&tensor, NULL);
    if (status != STW_STATUS_OK) suspect_largest(b, &tensor);
    if (status != STW_STATUS_OK)
        return stw_expression_blame(
            &b->env, b->err, "the number of elements of %.120s does not fit in 64 bits", name);
    STW_TRY(read_storage(b, block->group, row->name, &tensor));
    tensor_list list = list_for(b, row);
    stw_tensor *grown = stw_pool_grow(model->pool, *list.tensors, *list.n, (size_t)*list.n + 1,
                                      list.capacity, sizeof tensor);
    if (grown == NULL) return no_memory(b);
    grown[(*list.n)++] = tensor;
    *list.tensors = grown;
out:
    return status;
}

typedef struct fact_field {
    const char *name;
    size_t offset;
    bool boolean;
} fact_field;

#define SIZE(field)                                                                                \
    { #field, offsetof(stw_block_facts, field), false }
#define FLAG(field)                                                                                \
    { #field, offsetof(stw_block_facts, field), true }
static const fact_field fact_fields[] = {
    FLAG(transformer),  FLAG(vision),         SIZE(hidden),
    SIZE(q_heads),      SIZE(kv_heads),       SIZE(qk_dim),
    SIZE(v_dim),        SIZE(kv_rank),        SIZE(q_rank),
    SIZE(window),       SIZE(linear_k_heads), SIZE(linear_v_heads),
    SIZE(linear_k_dim), SIZE(linear_v_dim),   SIZE(ffn),
    FLAG(gated),        SIZE(experts),        SIZE(experts_per_token),
    SIZE(expert_ffn),   SIZE(shared_ffn),     SIZE(norms),
    FLAG(wide_norms),   FLAG(capped_scores),  FLAG(decoder),
    SIZE(tap_first),    SIZE(tap_step),       SIZE(rotary_dim),
    FLAG(wide_scores),  FLAG(sigmoid_scores), FLAG(complex_rotary),
};
#undef SIZE
#undef FLAG

static stw_status read_fact(builder *b, const stw_template_row *row, stw_block_facts *facts) {
    size_t n = sizeof fact_fields / sizeof fact_fields[0], f = 0;
    while (f < n && strcmp(fact_fields[f].name, row->name) != 0) f++;
    if (f == n) return bad_row(b, row, "unknown fact", row->name);
    at_row(b, row);
    char *field = (char *)facts + fact_fields[f].offset;
    if (fact_fields[f].boolean)
        return stw_expression_bool(&b->env, row->value, (bool *)field, b->err);
    uint64_t value = 0;
    stw_status status = stw_expression_size(&b->env, row->value, &value, b->err);
    if (status == STW_STATUS_OK) memcpy(field, &value, sizeof value);
    return status;
}

/* Field by field: padding need not be equal. */
static bool same_facts(const stw_block_facts *a, const stw_block_facts *b) {
    for (size_t f = 0; f < sizeof fact_fields / sizeof fact_fields[0]; f++) {
        size_t size = fact_fields[f].boolean ? sizeof(bool) : sizeof(uint64_t);
        size_t offset = fact_fields[f].offset;
        if (memcmp((const char *)a + offset, (const char *)b + offset, size) != 0) return false;
    }
    return true;
}

static stw_status find_group(builder *b, const stw_template_row *block,
                             const stw_block_facts *facts, uint32_t *index) {
    stw_model *model = b->model;
    uint32_t g = 0;
    while (g < model->n_groups && strcmp(model->groups[g].name, block->group) != 0) g++;
    if (g == model->n_groups) {
        stw_block_group *grown = stw_pool_grow(model->pool, model->groups, g, (size_t)g + 1,
                                               &b->group_capacity, sizeof *grown);
        const char *name = stw_pool_string(model->pool, block->group);
        if (grown == NULL || name == NULL) return no_memory(b);
        grown[g] = (stw_block_group){.name = name, .facts = *facts};
        model->groups = grown;
        model->n_groups++;
    } else if (!same_facts(&model->groups[g].facts, facts)) {
        return bad_row(b, block, "the blocks of a group have different facts", block->group);
    }
    *index = g;
    return STW_STATUS_OK;
}

/* Tensors and facts of a block, as the rows of its group state them. */
static stw_status fill_block(builder *b, const stw_template_row *block, stw_block_facts *facts) {
    stw_status status = STW_STATUS_OK;
    for (size_t r = 0; r < b->template->n_rows; r++) {
        const stw_template_row *row = &b->template->rows[r];
        if (row->part != block->part || row->kind < STW_ROW_TENSOR || row->kind > STW_ROW_FACT ||
            !stw_template_matches(row->group, block->group))
            continue;
        if (row->kind != STW_ROW_FACT)
            STW_TRY(add_tensor(b, block, row));
        else if (!b->extra)
            STW_TRY(read_fact(b, row, facts));
    }
out:
    return status;
}

static stw_status add_block(builder *b, const stw_template_row *block) {
    stw_status status = STW_STATUS_OK;
    stw_model *model = b->model;
    stw_block_facts facts = {.transformer = false};
    stw_block one = {.first_tensor = model->n_tensors};
    b->extra = block->kind == STW_ROW_EXTRA;
    STW_TRY(fill_block(b, block, &facts));
    if (b->extra) return STW_STATUS_OK;
    one.n_tensors = model->n_tensors - one.first_tensor;
    if (one.n_tensors == 0) return bad_row(b, block, "a block without tensors", block->group);
    STW_TRY(find_group(b, block, &facts, &one.group));
    stw_block *grown = stw_pool_grow(model->pool, model->blocks, model->n_blocks,
                                     (size_t)model->n_blocks + 1, &b->block_capacity, sizeof one);
    if (grown == NULL) return no_memory(b);
    grown[model->n_blocks++] = one;
    model->blocks = grown;
out:
    return status;
}

/* ---- runs of blocks ---- */

/* Consecutive block rows with the same name and repeat describe one sequence. For each index, the
 * first row whose condition holds is built. */
static bool same_run(const stw_template_row *a, const stw_template_row *b) {
    return a->kind == STW_ROW_BLOCK && b->kind == STW_ROW_BLOCK && a->part == b->part &&
           strcmp(a->name, b->name) == 0 && a->repeat[0] != '\0' &&
           strcmp(a->repeat, b->repeat) == 0;
}

static stw_status build_index(builder *b, const stw_template_row *rows, size_t n) {
    stw_status status = STW_STATUS_OK;
    STW_TRY(stw_deadline_check("reading the model", b->err));
    for (size_t r = 0; r < n; r++) {
        bool chosen = false;
        at_row(b, &rows[r]);
        STW_TRY(stw_expression_bool(&b->env, rows[r].condition, &chosen, b->err));
        if (chosen) return add_block(b, &rows[r]);
    }
    if (rows[0].repeat[0] != '\0' && rows[0].kind == STW_ROW_BLOCK)
        status = stw_expression_blame(&b->env, b->err, "no kind of block fits index %" PRIu64,
                                      b->env.index);
out:
    return status;
}

static stw_status build_run(builder *b, const stw_template_row *rows, size_t n) {
    stw_status status = STW_STATUS_OK;
    uint64_t repeat = 1;
    b->env.has_index = false;
    at_row(b, &rows[0]);
    if (rows[0].repeat[0] != '\0') {
        STW_TRY(stw_expression_size(&b->env, rows[0].repeat, &repeat, b->err));
        if (repeat > MAX_REPEAT)
            return stw_expression_blame(&b->env, b->err, "expected at most %d blocks", MAX_REPEAT);
        b->env.has_index = true;
    }
    for (uint64_t i = 0; i < repeat; i++) {
        b->env.index = i;
        STW_TRY(build_index(b, rows, n));
    }
    b->env.has_index = false;
out:
    return status;
}

/* ---- the whole template ---- */

/* Refuse rows for a group that does not exist; they would be ignored silently. */
static stw_status check_rows(builder *b) {
    const stw_template *t = b->template;
    for (size_t r = 0; r < t->n_rows; r++) {
        const stw_template_row *row = &t->rows[r];
        bool found = row->kind<STW_ROW_TENSOR, storage = row->kind> STW_ROW_FACT;
        for (size_t k = 0; k < t->n_rows && !found; k++)
            found = (t->rows[k].kind == STW_ROW_BLOCK || t->rows[k].kind == STW_ROW_EXTRA) &&
                    (storage || t->rows[k].part == row->part) &&
                    stw_template_matches(row->group, t->rows[k].group);
        if (!found) return bad_row(b, row, "no block of this file has the group", row->group);
    }
    return STW_STATUS_OK;
}

static stw_status collect_bindings(builder *b) {
    const stw_template *t = b->template;
    stw_environment *env = &b->env;
    env->bindings = stw_pool_array(b->model->pool, t->n_rows, sizeof *env->bindings);
    if (env->bindings == NULL) return no_memory(b);
    for (size_t r = 0; r < t->n_rows; r++) {
        const stw_template_row *row = &t->rows[r];
        if (row->kind != STW_ROW_LET) continue;
        bool known = false; /* the first setting counts */
        for (size_t k = 0; k < env->n_bindings && !known; k++)
            known = strcmp(env->bindings[k].name, row->name) == 0;
        if (known) continue;
        at_row(b, row);
        env->bindings[env->n_bindings++] = (stw_binding){.name = row->name,
                                                         .text = row->value,
                                                         .file = row->file,
                                                         .line = row->line,
                                                         .scope = env->scope};
    }
    return STW_STATUS_OK;
}

/* Dtype of the stored weights. The reference implementation defaults to float32. */
static stw_status read_dtype(builder *b) {
    static const char *const paths[] = {"torch_dtype", "dtype", "text_config.torch_dtype",
                                        "text_config.dtype"};
    b->dtype = STW_DTYPE_F32;
    for (unsigned k = 0; k < 4; k++) {
        const stw_node *node = stw_node_path(b->env.tree->root, paths[k]);
        if (node == NULL) continue;
        if (node->kind != STW_NODE_STRING || !stw_dtype_parse(node->text, &b->dtype))
            return stw_node_fail(b->env.tree, node, "a dtype such as \"bfloat16\"", b->err);
        return STW_STATUS_OK;
    }
    return STW_STATUS_OK;
}

static stw_status read_model_row(builder *b, const stw_template_row *row) {
    stw_model *model = b->model;
    const struct {
        const char *name;
        uint64_t *out;
    } sizes[] = {{"vocab", &model->vocab},
                 {"hidden", &model->hidden},
                 {"layers", &model->layers},
                 {"max_positions", &model->max_positions}};
    at_row(b, row);
    if (strcmp(row->name, "tied") == 0)
        return stw_expression_bool(&b->env, row->value, &model->tied_embeddings, b->err);
    if (strcmp(row->name, "soft_capped") == 0)
        return stw_expression_bool(&b->env, row->value, &model->soft_capped, b->err);
    for (unsigned k = 0; k < 4; k++) {
        if (strcmp(row->name, sizes[k].name) != 0) continue;
        stw_status status = stw_expression_count(&b->env, row->value, sizes[k].out, b->err);
        if (status == STW_STATUS_OK && sizes[k].out == &model->layers && model->layers == 0)
            return stw_expression_blame(&b->env, b->err, "expected at least 1 layer");
        return status;
    }
    return bad_row(b, row, "unknown property of a model", row->name);
}

stw_status stw_template_build(const stw_template *template, const stw_tree *config,
                              stw_model *model, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    builder b = {.template = template, .model = model, .env = {.tree = config}, .err = err};
    STW_TRY(check_rows(&b));
    STW_TRY(collect_bindings(&b));
    STW_TRY(read_dtype(&b));
    for (size_t r = 0; r < template->n_rows; r++) {
        const stw_template_row *row = &template->rows[r];
        if (row->kind == STW_ROW_MODEL) STW_TRY(read_model_row(&b, row));
        if (row->kind != STW_ROW_BLOCK && row->kind != STW_ROW_EXTRA) continue;
        size_t n = 1;
        while (r + n < template->n_rows && same_run(row, row + n)) n++;
        STW_TRY(build_run(&b, row, n));
        r += n - 1;
    }
    model->facts_known = true;
    STW_TRY(stw_model_finish(model, err));
out:
    return status;
}
