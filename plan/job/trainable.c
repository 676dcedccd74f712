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

enum { MOST_PRODUCTS = 8 };

typedef struct adding {
    const stw_run_spec *run;
    const stw_engine *engine;
    bool *matched; /* [targets] */
    stw_model *m;
} adding;

/* Length of a name without ".weight"; of tensors of experts, which may have no such end, of all of
 * it. 0: it has no product. */
static size_t module_length(const stw_tensor *t) {
    static const char end[] = ".weight";
    size_t n = strlen(t->name), n_end = sizeof end - 1;
    if (n > n_end && strcmp(t->name + n - n_end, end) == 0) return n - n_end;
    return t->expert ? n : 0;
}

/* The number of a tensor's product, 0: none. */
static uint32_t product_of(const stw_tensor *t, const stw_engine *engine) {
    if (engine->adapted == NULL) return t->rank == 2 && !t->expert;
    const uint32_t product = engine->adapted(t);
    return product < MOST_PRODUCTS ? product : 0;
}

/* PEFT's word for all linear layers but the head (peft/tuners/tuners_utils.py,
 * _maybe_include_all_linear_layers): here those of the language model's blocks. A router is no
 * linear layer there (transformers 5: a parameter). */
static bool is_linear(const adding *a, const stw_tensor *t, const char *last) {
    const stw_block_facts *f = &a->m->groups[a->m->blocks[t->block].group].facts;
    return f->transformer && !f->vision && !t->expert && t->rank == 2 &&
           (f->experts == 0 || (strcmp(last, "gate") != 0 && strcmp(last, "router") != 0));
}

/* Which target names the product of this tensor; n: none. */
static uint32_t target_of(const adding *a, const stw_tensor *t) {
    const stw_strings *targets = &a->run->trainable.lora_targets;
    const stw_engine *engine = a->engine;
    char module[256];
    size_t length = module_length(t);
    if (product_of(t, engine) == 0 || length == 0 || length >= sizeof module) return targets->n;
    memcpy(module, t->name, length);
    module[length] = '\0';
    const char *last = strrchr(module, '.');
    last = last != NULL ? last + 1 : module;
    for (uint32_t i = 0; i < targets->n; i++)
        if (strcmp(targets->items[i], STW_ALL_LINEAR) == 0
                ? is_linear(a, t, last)
                : strcmp(targets->items[i], last) == 0 ||
                      fnmatch(targets->items[i], module, 0) == 0)
            return i;
    return targets->n;
}

static stw_status add_adapter(stw_model *m, const stw_tensor *base, const char *part, uint64_t rows,
                              uint64_t columns, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_tensor *t = &m->tensors[m->n_tensors++];
    *t = (stw_tensor){.block = base->block,
                      .rank = 2,
                      .shape = {rows, columns},
                      .dtype = base->dtype,
                      .expert = base->expert,
                      .experts = base->expert ? base->experts : 1,
                      .use = base->use};
    t->use.adapter = part[sizeof "lora_" - 1] == 'A' ? STW_ADAPTER_A : STW_ADAPTER_B;
    t->name =
        stw_pool_printf(m->pool, "%.*s.%s.weight", (int)module_length(base), base->name, part);
    if (t->name == NULL) return no_memory(err);
    STW_TRY(stw_mul_u64(rows, columns, &t->numel, t->name, err));
    if (base->rank < 3) return STW_STATUS_OK;
    t->rank = 3; /* one for each expert */
    t->shape[0] = base->shape[0];
    t->shape[1] = rows;
    t->shape[2] = columns;
    STW_TRY(stw_mul_u64(t->numel, base->shape[0], &t->numel, t->name, err));
out:
    return status;
}

/* Which products of a block have adapters. */
static void find_targets(const stw_tensor *tensors, uint32_t n, adding *a,
                         bool has[MOST_PRODUCTS]) {
    const stw_strings *targets = &a->run->trainable.lora_targets;
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t target = target_of(a, &tensors[t]);
        if (target == targets->n) continue;
        a->matched[target] = true;
        has[product_of(&tensors[t], a->engine)] = true;
    }
}

/* Adapters follow the tensors of their block. */
static stw_status copy_block(const stw_model *from, uint32_t b, adding *a, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *m = a->m;
    const stw_strings *targets = &a->run->trainable.lora_targets;
    const stw_block *block = &from->blocks[b];
    const stw_tensor *tensors = &from->tensors[block->first_tensor];
    const uint64_t rank = a->run->trainable.lora_rank;
    bool has[MOST_PRODUCTS] = {false}, begun[MOST_PRODUCTS] = {false};
    m->blocks[b] = *block;
    m->blocks[b].first_tensor = m->n_tensors;
    for (uint32_t t = 0; t < block->n_tensors; t++) m->tensors[m->n_tensors++] = tensors[t];
    find_targets(tensors, block->n_tensors, a, has);
    for (uint32_t t = 0; t < block->n_tensors; t++) {
        const stw_tensor *base = &tensors[t];
        const uint32_t product = product_of(base, a->engine);
        const bool shares = product > 1;
        if (shares ? !has[product] : target_of(a, base) == targets->n) continue;
        if (!shares || !begun[product])
            STW_TRY(add_adapter(m, base, "lora_A", rank, base->shape[base->rank - 1], err));
        STW_TRY(add_adapter(m, base, "lora_B", base->shape[base->rank - 2], rank, err));
        begun[product] = true;
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

static stw_status add_lora(const stw_model *from, const stw_run_spec *run, const stw_engine *engine,
                           stw_pool *pool, stw_model **out, stw_error *err) {
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
    adding a = {run, engine, matched, m};
    for (uint32_t b = 0; b < from->n_blocks; b++) STW_TRY(copy_block(from, b, &a, err));
    for (uint32_t i = 0; i < targets->n; i++)
        if (!matched[i]) return refuse_pattern("trainable.lora.targets", targets->items[i], err);
    STW_TRY(stw_model_finish(m, err));
    *out = m;
out:
    return status;
}

/* ---- frozen tensors ---- */

static bool is_adapter(const stw_tensor *t) { return t->use.adapter != STW_ADAPTER_NONE; }

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

stw_status stw_trainable_new(const stw_model *model, const stw_run_spec *run,
                             const stw_engine *engine, stw_pool *pool, stw_trainable *out,
                             stw_error *err) {
    stw_status status = STW_STATUS_OK;
    stw_model *adapted = NULL;
    *out = (stw_trainable){.model = model};
    if (run->trainable.lora_rank == 0 && run->trainable.freeze.n == 0) return STW_STATUS_OK;
    if (run->trainable.lora_rank > 0 && run->trainable.lora_targets.n == 0)
        return stw_run_spec_refuse(NULL, err, "trainable.lora.targets", "[]",
                                   "the products that get adapters, as [q_proj, v_proj]");
    if (run->trainable.lora_rank > 0) {
        STW_TRY(add_lora(model, run, engine, pool, &adapted, err));
        out->model = adapted;
    }
    out->frozen = stw_pool_array(pool, out->model->n_tensors, sizeof *out->frozen);
    if (out->frozen == NULL) return no_memory(err);
    STW_TRY(mark_frozen(run, out, err));
out:
    return status;
}
