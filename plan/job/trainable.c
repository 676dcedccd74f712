/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* fnmatch */
#include "plan/job/trainable.h"

#include <fnmatch.h>
#include <string.h>

#include "core/checked.h"
#include "plan/spec/registry.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "trainable", "out of memory");
}

/* ---- LoRA ---- */

/* Length of a name without ".weight"; 0: it has no such end. */
static size_t module_length(const char *name) {
    static const char end[] = ".weight";
    size_t n = strlen(name), n_end = sizeof end - 1;
    return n > n_end && strcmp(name + n - n_end, end) == 0 ? n - n_end : 0;
}

/* Which target names the product of this tensor; n: none. */
static uint32_t target_of(const stw_tensor *t, const stw_strings *targets) {
    char module[256];
    size_t length = module_length(t->name);
    if (t->rank != 2 || t->expert || length == 0 || length >= sizeof module) return targets->n;
    memcpy(module, t->name, length);
    module[length] = '\0';
    const char *last = strrchr(module, '.');
    last = last != NULL ? last + 1 : module;
    for (uint32_t i = 0; i < targets->n; i++)
        if (strcmp(targets->items[i], last) == 0 || fnmatch(targets->items[i], module, 0) == 0)
            return i;
    return targets->n;
}

static stw_status add_adapter(stw_model *m, const stw_tensor *base, const char *part, uint64_t rows,
                              uint64_t columns, stw_error *err) {
    stw_tensor *t = &m->tensors[m->n_tensors++];
    *t = (stw_tensor){.block = base->block,
                      .rank = 2,
                      .shape = {rows, columns},
                      .dtype = base->dtype,
                      .experts = 1};
    t->name = stw_pool_printf(m->pool, "%.*s.%s.weight", (int)module_length(base->name), base->name,
                              part);
    if (t->name == NULL) return no_memory(err);
    return stw_mul_u64(rows, columns, &t->numel, t->name, err);
}

/* Adapters follow the tensors of their block. */
static stw_status copy_block(const stw_model *from, uint32_t b, const stw_run_spec *run,
                             bool *matched, stw_model *m, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_strings *targets = &run->trainable.lora_targets;
    const stw_block *block = &from->blocks[b];
    const stw_tensor *tensors = &from->tensors[block->first_tensor];
    const uint64_t rank = run->trainable.lora_rank;
    m->blocks[b] = *block;
    m->blocks[b].first_tensor = m->n_tensors;
    for (uint32_t t = 0; t < block->n_tensors; t++) m->tensors[m->n_tensors++] = tensors[t];
    for (uint32_t t = 0; t < block->n_tensors; t++) {
        uint32_t target = target_of(&tensors[t], targets);
        if (target == targets->n) continue;
        matched[target] = true;
        STW_TRY(add_adapter(m, &tensors[t], "lora_A", rank, tensors[t].shape[1], err));
        STW_TRY(add_adapter(m, &tensors[t], "lora_B", tensors[t].shape[0], rank, err));
    }
    m->blocks[b].n_tensors = m->n_tensors - m->blocks[b].first_tensor;
out:
    return status;
}

static stw_status refuse_pattern(const char *key, const char *found, stw_error *err) {
    return stw_run_spec_refuse(NULL, err, key, found,
                               "a pattern of tensors of the model (`stowage inspect --tensors` "
                               "lists the names)");
}

static stw_status add_lora(const stw_model *from, const stw_run_spec *run, stw_pool *pool,
                           stw_model **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_strings *targets = &run->trainable.lora_targets;
    stw_model *m = stw_pool_alloc(pool, sizeof *m);
    bool *matched = stw_pool_array(pool, targets->n, sizeof *matched);
    if (m == NULL || matched == NULL) return no_memory(err);
    *m = *from;
    m->pool = pool;
    m->n_tensors = 0;
    m->tensors = stw_pool_array(pool, stw_times(3, from->n_tensors), sizeof *m->tensors);
    m->blocks = stw_pool_array(pool, from->n_blocks, sizeof *m->blocks);
    m->groups = stw_pool_array(pool, from->n_groups, sizeof *m->groups);
    if (m->tensors == NULL || m->blocks == NULL || m->groups == NULL) return no_memory(err);
    memcpy(m->groups, from->groups, from->n_groups * sizeof *m->groups);
    for (uint32_t b = 0; b < from->n_blocks; b++)
        STW_TRY(copy_block(from, b, run, matched, m, err));
    for (uint32_t i = 0; i < targets->n; i++)
        if (!matched[i]) return refuse_pattern("trainable.lora.targets", targets->items[i], err);
    STW_TRY(stw_model_finish(m, err));
    *out = m;
out:
    return status;
}

/* ---- frozen tensors ---- */

static bool is_adapter(const stw_tensor *t) {
    return strstr(t->name, ".lora_A.weight") != NULL || strstr(t->name, ".lora_B.weight") != NULL;
}

static stw_status mark_frozen(const stw_run_spec *run, stw_trainable *out, stw_error *err) {
    const stw_strings *freeze = &run->trainable.freeze;
    const stw_model *m = out->model;
    uint32_t trained = 0;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        out->frozen[t] = run->trainable.lora_rank > 0 && !is_adapter(&m->tensors[t]);
    for (uint32_t i = 0; i < freeze->n; i++) {
        bool matched = false;
        for (uint32_t t = 0; t < m->n_tensors; t++) {
            if (fnmatch(freeze->items[i], m->tensors[t].name, 0) != 0) continue;
            matched = out->frozen[t] = true;
        }
        if (!matched) return refuse_pattern("trainable.freeze", freeze->items[i], err);
    }
    for (uint32_t t = 0; t < m->n_tensors; t++) trained += !out->frozen[t];
    if (trained == 0)
        return stw_run_spec_refuse(NULL, err, "trainable.freeze", "all tensors",
                                   "patterns that leave some to train");
    return STW_STATUS_OK;
}

stw_status stw_trainable_new(const stw_model *model, const stw_run_spec *run, stw_pool *pool,
                             stw_trainable *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *adapted = NULL;
    *out = (stw_trainable){.model = model};
    if (run->trainable.lora_rank == 0 && run->trainable.freeze.n == 0) return STW_STATUS_OK;
    if (run->trainable.lora_rank > 0 && run->trainable.lora_targets.n == 0)
        return stw_run_spec_refuse(NULL, err, "trainable.lora.targets", "[]",
                                   "the products that get adapters, as [q_proj, v_proj]");
    if (run->trainable.lora_rank > 0) {
        STW_TRY(add_lora(model, run, pool, &adapted, err));
        out->model = adapted;
    }
    out->frozen = stw_pool_array(pool, out->model->n_tensors, sizeof *out->frozen);
    if (out->frozen == NULL) return no_memory(err);
    STW_TRY(mark_frozen(run, out, err));
out:
    return status;
}
