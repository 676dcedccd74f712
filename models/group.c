/* SPDX-License-Identifier: Apache-2.0 */
/* Derives blocks and tensor groups from tensor names. Blocks are ordered by stage of the forward
 * pass, then by the first appearance of their prefix, then by number. Tensors keep their order in a
 * block. Blocks of one group have equal shapes; otherwise the group is split. */
#include <stdlib.h>
#include <string.h>

#include "models/internal.h"
#include "models/kinds.h"

/* A tensor that is assigned to a block. */
typedef struct item {
    stw_tensor tensor;
    stw_name_parts parts;
    const char *group; /* "" if the name decides */
    uint32_t index;    /* in the list as it was given */
    uint32_t block;    /* after the first sort */
} item;

typedef struct draft {
    int stage;
    uint64_t number;
    uint32_t family; /* first tensor with this prefix */
    uint32_t first;  /* first tensor of the block */
    uint32_t place;  /* after sorting */
    uint32_t id;
} draft;

static int compare_u64(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }

static int compare_prefix(const item *a, const item *b) {
    int order = compare_u64(a->parts.prefix, b->parts.prefix);
    return order != 0 ? order : memcmp(a->tensor.name, b->tensor.name, a->parts.prefix);
}

static int compare_block(const item *a, const item *b) {
    int order = compare_prefix(a, b);
    if (order == 0) order = compare_u64(a->parts.number, b->parts.number);
    return order != 0 ? order : strcmp(a->group, b->group);
}

static int by_block(const void *x, const void *y) {
    const item *a = x, *b = y;
    int order = compare_block(a, b);
    return order != 0 ? order : compare_u64(a->index, b->index);
}

static int by_place(const void *x, const void *y) {
    const item *a = x, *b = y;
    int order = compare_u64(a->block, b->block);
    return order != 0 ? order : compare_u64(a->index, b->index);
}

static int by_stage(const void *x, const void *y) {
    const draft *a = x, *b = y;
    int order = compare_u64((uint64_t)a->stage, (uint64_t)b->stage);
    if (order == 0) order = compare_u64(a->family, b->family);
    if (order == 0) order = compare_u64(a->number, b->number);
    return order != 0 ? order : compare_u64(a->first, b->first);
}

static int by_id(const void *x, const void *y) {
    return compare_u64(((const draft *)x)->id, ((const draft *)y)->id);
}

/* Name of a block without a number: by stage, else by module. */
static const char *name_unnumbered(stw_pool *pool, const item *it) {
    static const char *const by[] = {"vision_embed", NULL, "vision_merger", "embed",
                                     NULL,           NULL, "head"};
    if (by[it->parts.stage] != NULL) return by[it->parts.stage];
    const char *name = it->tensor.name, *dot = strrchr(name, '.');
    if (strstr(name, "norm") != NULL || strstr(name, "ln_f") != NULL) return "norm";
    if (dot == NULL || dot == name) return "other";
    return stw_pool_printf(pool, "%.*s", (int)(dot - name), name);
}

/* Name of a numbered block, by the use of its tensors. */
static const char *name_numbered(const item *first, uint32_t n) {
    bool moe = false, linear = false;
    for (uint32_t k = 0; k < n; k++) {
        moe = moe || first[k].parts.expert;
        linear = linear || strstr(first[k].tensor.name, "linear_attn") != NULL;
    }
    if (first->parts.vision)
        return strstr(first->tensor.name, "deepstack") != NULL ? "vision_deepstack"
                                                               : "vision_layer";
    if (linear) return moe ? "linear_moe_layer" : "linear_layer";
    return moe ? "moe_layer" : "layer";
}

/* Earliest tensor with the prefix of the first of these items, which are sorted by prefix. */
static uint32_t first_of_family(const item *items, uint32_t n) {
    uint32_t first = items[0].index;
    for (uint32_t k = 1; k < n && compare_prefix(&items[0], &items[k]) == 0; k++)
        if (items[k].index < first) first = items[k].index;
    return first;
}

/* Set the position of each block in canonical order; items are sorted by block. */
static stw_status place_blocks(stw_model *model, item *items, stw_error *err) {
    uint32_t n = model->n_tensors, n_blocks = 0;
    draft *drafts = stw_pool_array(model->pool, n, sizeof *drafts);
    if (drafts == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    uint32_t family = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (k == 0 || compare_prefix(&items[k - 1], &items[k]) != 0)
            family = first_of_family(items + k, n - k);
        if (k == 0 || compare_block(&items[k - 1], &items[k]) != 0) {
            drafts[n_blocks] =
                (draft){.stage = items[k].parts.stage,
                        .number = items[k].parts.number,
                        .family = items[k].parts.prefix > 0 ? family : items[k].index,
                        .first = items[k].index,
                        .id = n_blocks};
            n_blocks++;
        }
        draft *d = &drafts[n_blocks - 1];
        if (items[k].parts.stage < d->stage) d->stage = items[k].parts.stage;
        items[k].block = n_blocks - 1;
    }
    qsort(drafts, n_blocks, sizeof *drafts, by_stage);
    for (uint32_t b = 0; b < n_blocks; b++) drafts[b].place = b;
    qsort(drafts, n_blocks, sizeof *drafts, by_id);
    for (uint32_t k = 0; k < n; k++) items[k].block = drafts[items[k].block].place;
    qsort(items, n, sizeof *items, by_place);
    model->n_blocks = n_blocks;
    return STW_STATUS_OK;
}

static stw_status join_group(stw_model *model, stw_kinds *kinds, stw_block *block, const char *base,
                             stw_error *err) {
    uint32_t g = 0;
    const char *name = NULL;
    if (!stw_kinds_join(kinds, block, base, &g, &name))
        return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    block->group = g;
    if (name == NULL) return STW_STATUS_OK;
    stw_block_group *groups = stw_pool_grow(model->pool, model->groups, g, (size_t)g + 1,
                                            &kinds->groups_capacity, sizeof *groups);
    if (groups == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    groups[g] = (stw_block_group){.name = name};
    model->groups = groups;
    model->n_groups++;
    return STW_STATUS_OK;
}

static stw_status make_groups(stw_model *model, const item *items, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_kinds kinds;
    model->n_groups = 0;
    model->blocks = stw_pool_array(model->pool, model->n_blocks, sizeof *model->blocks);
    if (model->blocks == NULL || !stw_kinds_init(&kinds, model))
        return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    uint32_t next = 0;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        stw_block *block = &model->blocks[b];
        block->first_tensor = next;
        while (next < model->n_tensors && items[next].block == b) next++;
        block->n_tensors = next - block->first_tensor;
        const item *first = &items[block->first_tensor];
        const char *base = first->group;
        if (base[0] == '\0') base = name_numbered(first, block->n_tensors);
        STW_TRY(join_group(model, &kinds, block, base, err));
    }
out:
    return status;
}

/* Sizes of the model that names and shapes imply. */
static void read_sizes(stw_model *model, const item *items) {
    bool embed = false, head = false;
    uint32_t last_layer = UINT32_MAX;
    for (uint32_t k = 0; k < model->n_tensors; k++) {
        const item *it = &items[k];
        if (it->parts.stage == 3 && it->tensor.rank == 2 && !embed) {
            embed = true;
            model->vocab = it->tensor.shape[0];
            model->hidden = it->tensor.shape[1];
        }
        if (it->parts.stage == 4 && it->block != last_layer) {
            last_layer = it->block;
            model->layers++;
        }
        head = head || it->parts.stage == 6;
    }
    model->tied_embeddings = embed && !head;
}

stw_status stw_model_group_by_name(stw_model *model, const char *const *groups, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint32_t n = model->n_tensors;
    item *items = stw_pool_array(model->pool, n, sizeof *items);
    if (items == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    if (n == 0) return stw_fail(err, STW_STATUS_BAD_INPUT, model->source, "has no tensors");
    for (uint32_t k = 0; k < n; k++) {
        item *it = &items[k];
        it->tensor = model->tensors[k];
        it->index = k;
        stw_name_read(it->tensor.name, &it->parts);
        bool fused = it->parts.expert && !it->parts.expert_number;
        /* a fused tensor has a dimension for the experts and one at least for the weights */
        if (fused && it->tensor.rank < 2) it->parts.expert = fused = false;
        it->tensor.expert = it->parts.expert;
        it->tensor.experts = fused ? it->tensor.shape[0] : 1;
        it->group = groups != NULL && groups[k] != NULL ? groups[k] : "";
        if (it->group[0] == '\0' && it->parts.prefix == 0)
            it->group = name_unnumbered(model->pool, it);
        if (it->group == NULL)
            return stw_fail(err, STW_STATUS_NO_MEMORY, model->source, "out of memory");
    }
    qsort(items, n, sizeof *items, by_block);
    STW_TRY(place_blocks(model, items, err));
    for (uint32_t k = 0; k < n; k++) model->tensors[k] = items[k].tensor;
    STW_TRY(make_groups(model, items, err));
    read_sizes(model, items);
out:
    return status;
}
