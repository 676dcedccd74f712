/* SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include "models/kinds.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

bool stw_kinds_init(stw_kinds *kinds, const stw_model *model) {
    size_t slots = 16;
    while (slots < 2 * (size_t)model->n_blocks) slots *= 2;
    *kinds = (stw_kinds){.model = model, .n_slots = slots};
    kinds->kinds = stw_pool_array(model->pool, model->n_blocks, sizeof *kinds->kinds);
    kinds->bases = stw_pool_array(model->pool, model->n_blocks, sizeof *kinds->bases);
    kinds->by_shape = stw_pool_array(model->pool, slots, sizeof *kinds->by_shape);
    kinds->by_name = stw_pool_array(model->pool, slots, sizeof *kinds->by_name);
    kinds->by_base = stw_pool_array(model->pool, slots, sizeof *kinds->by_base);
    return kinds->kinds != NULL && kinds->bases != NULL && kinds->by_shape != NULL &&
           kinds->by_name != NULL && kinds->by_base != NULL;
}

static uint64_t hash_name(const char *name) { return XXH3_64bits(name, strlen(name)); }

/* Of what stw_block_same_shapes compares, and the base name. */
static uint64_t hash_block(const stw_model *model, const stw_block *block, const char *base) {
    uint64_t hash = hash_name(base);
    for (uint32_t k = 0; k < block->n_tensors; k++) {
        const stw_tensor *t = &model->tensors[block->first_tensor + k];
        uint64_t fields[4 + STW_TENSOR_MAX_RANK] = {t->rank, (uint64_t)t->dtype, t->expert,
                                                    t->experts};
        memcpy(fields + 4, t->shape, t->rank * sizeof t->shape[0]);
        hash = XXH3_64bits_withSeed(fields, (4 + t->rank) * sizeof fields[0], hash);
    }
    return hash;
}

/* Slot of the kind that equals the block, else the empty slot for it. */
static uint32_t *slot_of_shape(stw_kinds *kinds, const stw_block *block, const char *base,
                               uint64_t hash) {
    for (size_t at = hash & (kinds->n_slots - 1);; at = (at + 1) & (kinds->n_slots - 1)) {
        uint32_t *slot = &kinds->by_shape[at];
        kinds->probes++;
        if (*slot == 0) return slot;
        const stw_kind *kind = &kinds->kinds[*slot - 1];
        if (kind->hash == hash && strcmp(kind->base, base) == 0 &&
            stw_block_same_shapes(kinds->model, kind->block, block))
            return slot;
    }
}

static uint32_t *slot_of_name(stw_kinds *kinds, const char *name) {
    for (size_t at = hash_name(name) & (kinds->n_slots - 1);;
         at = (at + 1) & (kinds->n_slots - 1)) {
        uint32_t *slot = &kinds->by_name[at];
        kinds->probes++;
        if (*slot == 0 || strcmp(kinds->kinds[*slot - 1].name, name) == 0) return slot;
    }
}

/* The base of this name, made if it is new. */
static stw_base *base_named(stw_kinds *kinds, const char *name) {
    size_t at = hash_name(name) & (kinds->n_slots - 1);
    for (;; at = (at + 1) & (kinds->n_slots - 1)) {
        uint32_t *slot = &kinds->by_base[at];
        kinds->probes++;
        if (*slot != 0 && strcmp(kinds->bases[*slot - 1].name, name) == 0)
            return &kinds->bases[*slot - 1];
        if (*slot != 0) continue;
        kinds->bases[kinds->n_bases] = (stw_base){.name = name, .next = 1};
        *slot = ++kinds->n_bases;
        return &kinds->bases[*slot - 1];
    }
}

bool stw_kinds_join(stw_kinds *kinds, const stw_block *block, const char *base, uint32_t *index,
                    const char **name) {
    uint64_t hash = hash_block(kinds->model, block, base);
    uint32_t *shape = slot_of_shape(kinds, block, base, hash), *taken = NULL;
    *name = NULL;
    *index = *shape - 1;
    if (*shape != 0) return true;
    /* Names stay taken, so that numbers once refused need not be tried again. */
    stw_base *numbers = base_named(kinds, base);
    do {
        uint32_t number = numbers->next++;
        *name = number == 1 ? stw_pool_string(kinds->model->pool, base)
                            : stw_pool_printf(kinds->model->pool, "%s_%" PRIu32, base, number);
        if (*name == NULL) return false;
        taken = slot_of_name(kinds, *name);
    } while (*taken != 0);
    *index = kinds->n;
    kinds->kinds[kinds->n++] =
        (stw_kind){.base = base, .name = *name, .block = block, .hash = hash};
    *shape = *taken = kinds->n;
    return true;
}
