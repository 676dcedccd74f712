/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "models/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "core/checked.h"
#include "models/internal.h"

stw_model *stw_model_new(const char *name, const char *source, const char *model_type) {
    stw_pool *pool = stw_pool_new();
    stw_model *model = stw_pool_alloc(pool, sizeof *model);
    if (model != NULL) {
        model->pool = pool;
        model->name = stw_pool_string(pool, name);
        model->source = stw_pool_string(pool, source);
        model->model_type = stw_pool_string(pool, model_type);
    }
    if (model != NULL && model->name != NULL && model->source != NULL && model->model_type != NULL)
        return model;
    stw_pool_free(pool);
    return NULL;
}

void stw_model_free(stw_model *model) {
    if (model != NULL) stw_pool_free(model->pool);
}

/* Length of the name without suffixes that only state the type of file. */
static size_t stem_length(const char *name) {
    static const char *const endings[] = {".index.json", ".json", ".safetensors", ".csv"};
    size_t length = strlen(name);
    for (unsigned k = 0; k < 4; k++) {
        size_t n = strlen(endings[k]);
        if (length > n && strncmp(name + length - n, endings[k], n) == 0) length -= n;
    }
    return length;
}

const char *stw_model_name_of(stw_pool *pool, const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    char *name = stw_pool_printf(pool, "%.*s", (int)(end - start), path + start);
    if (name == NULL) return NULL;
    name[stem_length(name)] = '\0';
    bool generic = strcmp(name, "config") == 0 || strcmp(name, "model") == 0;
    if (!generic || start < 2) return name;
    end = start - 1;
    for (start = end; start > 0 && path[start - 1] != '/';) start--;
    if (end == start || path[start] == '.') return name;
    return stw_pool_printf(pool, "%.*s", (int)(end - start), path + start);
}

stw_status stw_tensor_count(stw_tensor *tensor, stw_error *err) {
    tensor->numel = 1;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        stw_status status =
            stw_mul_u64(tensor->numel, tensor->shape[d], &tensor->numel, tensor->name, err);
        if (status != STW_STATUS_OK) return status;
    }
    return STW_STATUS_OK;
}

/* Bytes of n elements; formats of less than a byte are packed. */
static uint64_t packed_bytes(uint64_t n, stw_dtype dtype) {
    uint64_t bits = stw_dtype_bits(dtype);
    return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

uint64_t stw_tensor_stored_bytes(const stw_tensor *tensor) {
    return packed_bytes(tensor->numel, tensor->dtype) + tensor->scale_bytes;
}

__extension__ typedef unsigned __int128 u128;

/* floor(bytes * n / numel), n at most numel */
static uint64_t share_of(uint64_t bytes, uint64_t n, uint64_t numel) {
    return numel == 0 ? 0 : (uint64_t)((u128)bytes * n / numel);
}

uint64_t stw_tensor_run_bytes(const stw_tensor *tensor, uint64_t first, uint64_t count) {
    uint64_t end = first + count;
    return packed_bytes(end, tensor->dtype) - packed_bytes(first, tensor->dtype) +
           share_of(tensor->scale_bytes, end, tensor->numel) -
           share_of(tensor->scale_bytes, first, tensor->numel);
}

/* Parameters of a tensor that one token uses. Every row of an embedding counts. */
static uint64_t active_of(const stw_tensor *tensor, const stw_block_facts *facts) {
    if (!tensor->expert || facts->experts == 0 || facts->experts_per_token == 0)
        return tensor->numel;
    /* exact: dimension 0 of a fused tensor counts the experts */
    uint64_t each = tensor->numel / facts->experts, left = tensor->numel % facts->experts;
    return each * facts->experts_per_token + left * facts->experts_per_token / facts->experts;
}

bool stw_block_same_shapes(const stw_model *model, const stw_block *a, const stw_block *b) {
    if (a->n_tensors != b->n_tensors) return false;
    for (uint32_t k = 0; k < a->n_tensors; k++) {
        const stw_tensor *x = &model->tensors[a->first_tensor + k];
        const stw_tensor *y = &model->tensors[b->first_tensor + k];
        if (x->rank != y->rank || x->dtype != y->dtype || x->expert != y->expert ||
            x->experts != y->experts || memcmp(x->shape, y->shape, x->rank * sizeof x->shape[0]))
            return false;
    }
    return true;
}

/* Sums of one block, added to its group and to the model. */
static stw_status finish_block(stw_model *model, uint32_t index, const stw_block **first_of_group,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_block *block = &model->blocks[index];
    stw_block_group *group = &model->groups[block->group];
    uint64_t active = 0;
    block->params = 0;
    for (uint32_t k = 0; k < block->n_tensors; k++) {
        stw_tensor *tensor = &model->tensors[block->first_tensor + k];
        tensor->block = index;
        STW_TRY(stw_tensor_count(tensor, err));
        STW_TRY(stw_add_u64(block->params, tensor->numel, &block->params, tensor->name, err));
        active += active_of(tensor, &group->facts); /* at most params */
    }
    block->instance = group->count++;
    group->tensors += block->n_tensors;
    STW_TRY(stw_add_u64(group->params, block->params, &group->params, group->name, err));
    group->active_params += active;
    STW_TRY(stw_add_u64(model->params, block->params, &model->params, "the model", err));
    model->active_params += active;
    const stw_block **first = &first_of_group[block->group];
    if (*first == NULL) *first = block;
    if (!stw_block_same_shapes(model, *first, block))
        status = stw_fail(err, STW_STATUS_BAD_INPUT, model->source,
                          "blocks 0 and %" PRIu32 " of the group \"%s\" have different tensors",
                          block->instance, group->name);
out:
    return status;
}

/* Clear the sums of a group and check its facts. */
static stw_status reset_group(const stw_model *model, stw_block_group *group, stw_error *err) {
    group->count = group->tensors = 0;
    group->params = group->active_params = 0;
    if (group->facts.experts > UINT32_MAX)
        return stw_fail(err, STW_STATUS_BAD_INPUT, model->source,
                        "the group \"%s\" has %" PRIu64 " experts, expected at most %" PRIu32,
                        group->name, group->facts.experts, UINT32_MAX);
    if (group->facts.experts_per_token > group->facts.experts)
        return stw_fail(err, STW_STATUS_BAD_INPUT, model->source,
                        "each token uses %" PRIu64 " experts, but the group \"%s\" has %" PRIu64,
                        group->facts.experts_per_token, group->name, group->facts.experts);
    return STW_STATUS_OK;
}

static stw_status check_size(const stw_model *model, stw_error *err) {
    const stw_tensor *largest = &model->tensors[0];
    if (model->n_tensors > STW_MODEL_MAX_TENSORS)
        return stw_fail(err, STW_STATUS_BAD_INPUT, model->source,
                        "found %" PRIu32 " tensors, expected at most %u", model->n_tensors,
                        STW_MODEL_MAX_TENSORS);
    for (uint32_t t = 1; t < model->n_tensors; t++)
        if (model->tensors[t].numel > largest->numel) largest = &model->tensors[t];
    if (model->params <= STW_MODEL_MAX_PARAMS) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BAD_INPUT, model->source,
                    "found %" PRIu64 " parameters (%" PRIu64 " in %s), expected at most %llu",
                    model->params, largest->numel, largest->name, STW_MODEL_MAX_PARAMS);
}

/* Bytes of every tensor of the published files. */
static stw_status sum_stored(stw_model *model, stw_error *err) {
    const stw_tensor *lists[] = {model->tensors, model->buffer_tensors, model->extra_tensors};
    const uint32_t lengths[] = {model->n_tensors, model->n_buffers, model->n_extras};
    stw_status status = STW_STATUS_OK;
    model->stored_bytes = 0;
    for (unsigned l = 0; l < 3; l++) {
        for (uint32_t k = 0; k < lengths[l]; k++) {
            const stw_tensor *t = &lists[l][k];
            uint64_t bytes = 0; /* no format has more than 8 bytes an element */
            STW_TRY(stw_mul_u64(t->numel, 8, &bytes, t->name, err));
            STW_TRY(stw_add_u64(model->stored_bytes, stw_tensor_stored_bytes(t),
                                &model->stored_bytes, t->name, err));
        }
    }
out:
    return status;
}

static void write_digest(stw_model *model) {
    XXH3_state_t state; /* on the stack: the state needs 64-byte alignment, which the type has */
    XXH3_128bits_reset(&state);
    for (uint32_t k = 0; k < model->n_tensors; k++) {
        const stw_tensor *tensor = &model->tensors[k];
        const char *dtype = stw_dtype_name(tensor->dtype);
        XXH3_128bits_update(&state, tensor->name, strlen(tensor->name) + 1);
        XXH3_128bits_update(&state, dtype, strlen(dtype) + 1);
        unsigned char number[8];
        for (uint32_t d = 0; d <= tensor->rank; d++) {
            uint64_t value = d < tensor->rank ? tensor->shape[d] : UINT64_MAX; /* an end mark */
            for (unsigned b = 0; b < 8; b++) number[b] = (unsigned char)(value >> (8 * b));
            XXH3_128bits_update(&state, number, sizeof number);
        }
    }
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    snprintf(model->digest, sizeof model->digest, "%016" PRIx64 "%016" PRIx64,
             (uint64_t)hash.high64, (uint64_t)hash.low64);
}

/* Each key-value head serves a whole number of query heads. */
static stw_status check_heads(const stw_model *model, stw_error *err) {
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const stw_block_facts *f = &model->groups[g].facts;
        if (f->kv_heads > 0 && f->q_heads % f->kv_heads != 0)
            return stw_fail(err, STW_STATUS_BAD_INPUT, model->source,
                            "num_key_value_heads: found %" PRIu64 ", expected a divisor of the "
                            "%" PRIu64 " attention heads",
                            f->kv_heads, f->q_heads);
    }
    return STW_STATUS_OK;
}

stw_status stw_model_finish(stw_model *model, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    model->params = model->active_params = model->buffers = 0;
    for (uint32_t g = 0; g < model->n_groups; g++)
        STW_TRY(reset_group(model, &model->groups[g], err));
    if (model->n_tensors == 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, model->source, "has no tensors");
    STW_TRY(check_heads(model, err));
    const stw_block **first_of_group =
        stw_pool_array(model->pool, model->n_groups, sizeof *first_of_group);
    if (first_of_group == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    uint32_t next = 0;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const stw_block *block = &model->blocks[b];
        if (block->first_tensor != next || block->n_tensors == 0 ||
            block->n_tensors > model->n_tensors - next || block->group >= model->n_groups)
            return stw_fail(
                err, STW_STATUS_BUG, model->source,
                "block %" PRIu32 " does not start after the tensors of the previous block", b);
        next += block->n_tensors;
        for (uint32_t t = block->first_tensor; t < next; t++) {
            stw_tensor *tensor = &model->tensors[t];
            if (tensor->use.weight == STW_WEIGHT_OTHER)
                tensor->use = stw_weight_of_name(tensor->name);
        }
        STW_TRY(finish_block(model, b, first_of_group, err));
    }
    if (next != model->n_tensors)
        return stw_fail(err, STW_STATUS_BUG, model->source, "tensors without a block");
    for (uint32_t k = 0; k < model->n_buffers; k++) {
        stw_tensor *buffer = &model->buffer_tensors[k];
        STW_TRY(stw_tensor_count(buffer, err));
        STW_TRY(stw_add_u64(model->buffers, buffer->numel, &model->buffers, buffer->name, err));
    }
    STW_TRY(check_size(model, err));
    STW_TRY(sum_stored(model, err));
    write_digest(model);
out:
    return status;
}
