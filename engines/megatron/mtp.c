/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: multi_token_prediction.py, MultiTokenPredictionLayer.__init__; gpt_layer_specs.py,
 * get_gpt_mtp_block_spec_for_backend (the layer is that of the last one). */
#include "engines/megatron/mtp.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "engines/megatron/megatron.h"
#include "plan/spec/registry.h"

static stw_status no_memory(stw_error *err) {
    return stw_fail(err, STW_STATUS_NO_MEMORY, "multi-token prediction", "out of memory");
}

typedef struct adding {
    stw_model *m;
    stw_dtype dtype; /* of norms and projections */
    uint32_t layer;
    stw_error *err;
} adding;

static stw_status add_tensor(adding *a, const char *name, uint64_t rows, uint64_t columns) {
    stw_tensor *t = &a->m->tensors[a->m->n_tensors++];
    *t = (stw_tensor){
        .rank = columns > 0 ? 2 : 1, .shape = {rows, columns}, .dtype = a->dtype, .experts = 1};
    t->name = stw_pool_printf(a->m->pool, "mtp.layers.%u.%s", a->layer, name);
    if (t->name == NULL) return no_memory(a->err);
    t->use = stw_weight_of_name(t->name);
    return STW_STATUS_OK;
}

/* What follows the number of the block: "self_attn.o_proj.weight". */
static const char *tail_of(const char *name) {
    for (const char *at = name; (at = strchr(at, '.')) != NULL;) {
        size_t digits = strspn(++at, "0123456789");
        if (digits > 0 && at[digits] == '.') return at + digits + 1;
    }
    return name;
}

static bool is_norm_bias(const stw_tensor *t) {
    return t->rank == 1 && t->use.bias && t->use.weight == STW_WEIGHT_NORM;
}

static stw_status add_norm(adding *a, const char *name, bool bias) {
    stw_status status = STW_STATUS_OK;
    char text[64];
    snprintf(text, sizeof text, "%s.weight", name);
    STW_TRY(add_tensor(a, text, a->m->hidden, 0));
    snprintf(text, sizeof text, "%s.bias", name);
    if (bias) STW_TRY(add_tensor(a, text, a->m->hidden, 0));
out:
    return status;
}

static stw_status add_layer(adding *a, const stw_model *from, const stw_block *like) {
    stw_status status = STW_STATUS_OK;
    stw_model *m = a->m;
    stw_block *block = &m->blocks[m->n_blocks++];
    bool bias = false;
    for (uint32_t t = 0; t < like->n_tensors; t++)
        bias = bias || is_norm_bias(&from->tensors[like->first_tensor + t]);
    *block = (stw_block){.group = from->n_groups, .first_tensor = m->n_tensors};
    STW_TRY(add_norm(a, "enorm", bias));
    STW_TRY(add_norm(a, "hnorm", bias));
    STW_TRY(add_tensor(a, "eh_proj.weight", m->hidden, stw_times(2, m->hidden)));
    for (uint32_t t = 0; t < like->n_tensors; t++) {
        stw_tensor *copy = &m->tensors[m->n_tensors++];
        *copy = from->tensors[like->first_tensor + t];
        copy->name = stw_pool_printf(m->pool, "mtp.layers.%u.transformer_layer.%s", a->layer,
                                     tail_of(copy->name));
        if (copy->name == NULL) return no_memory(a->err);
    }
    STW_TRY(add_norm(a, "final_layernorm", bias));
    block->n_tensors = m->n_tensors - block->first_tensor;
out:
    return status;
}

static void copy_block(const stw_model *from, uint32_t b, stw_model *m) {
    const stw_block *block = &from->blocks[b];
    m->blocks[m->n_blocks] = *block;
    m->blocks[m->n_blocks++].first_tensor = m->n_tensors;
    memcpy(&m->tensors[m->n_tensors], &from->tensors[block->first_tensor],
           block->n_tensors * sizeof *m->tensors);
    m->n_tensors += block->n_tensors;
}

static stw_status make_room(const stw_model *from, const stw_block *like, uint32_t layers,
                            stw_model *m, stw_error *err) {
    const uint64_t more = stw_times(layers, stw_plus(like->n_tensors, 7));
    m->tensors = stw_pool_array(m->pool, stw_plus(from->n_tensors, more), sizeof *m->tensors);
    m->blocks = stw_pool_array(m->pool, stw_plus(from->n_blocks, layers), sizeof *m->blocks);
    m->groups = stw_pool_array(m->pool, stw_plus(from->n_groups, 1), sizeof *m->groups);
    if (m->tensors == NULL || m->blocks == NULL || m->groups == NULL) return no_memory(err);
    memcpy(m->groups, from->groups, from->n_groups * sizeof *m->groups);
    m->groups[from->n_groups] =
        (stw_block_group){.name = STW_MEGATRON_MTP_GROUP, .facts = from->groups[like->group].facts};
    m->n_tensors = m->n_blocks = 0;
    m->n_groups = from->n_groups + 1;
    return STW_STATUS_OK;
}

stw_status stw_megatron_trains(const stw_model *model, const stw_run_spec *run, stw_pool *pool,
                               const stw_model **out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t layers = stw_megatron_settings_of(run).mtp_num_layers;
    const stw_block *like = NULL;
    uint32_t after = 0;
    *out = model;
    if (layers == 0) return STW_STATUS_OK;
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const stw_block_group *group = &model->groups[model->blocks[b].group];
        if (group->facts.transformer && !group->facts.vision) like = &model->blocks[b];
        if (strcmp(group->name, "head") != 0) after = b;
    }
    if (like == NULL)
        return stw_run_spec_refuse_value(run, NULL, err, "megatron.mtp_num_layers",
                                         "0: of this model no layers are known");
    stw_model *m = stw_pool_alloc(pool, sizeof *m);
    if (m == NULL) return no_memory(err);
    *m = *model;
    m->pool = pool;
    STW_TRY(make_room(model, like, layers, m, err));
    adding a = {.m = m, .dtype = model->tensors[like->first_tensor].dtype, .err = err};
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        copy_block(model, b, m);
        for (a.layer = 0; b == after && a.layer < layers; a.layer++)
            STW_TRY(add_layer(&a, model, like));
    }
    STW_TRY(stw_model_finish(m, err));
    *out = m;
out:
    return status;
}
