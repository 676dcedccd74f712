/* SPDX-License-Identifier: Apache-2.0 */
#include "engines/tensor_parallel.h"

#include <string.h>

#include "core/checked.h"

/* Is this vector cut as the outputs of its product are? */
static bool is_cut_vector(stw_weight weight) {
    switch (weight) {
    case STW_WEIGHT_Q:
    case STW_WEIGHT_K:
    case STW_WEIGHT_V:
    case STW_WEIGHT_KV:
    case STW_WEIGHT_QKV:
    case STW_WEIGHT_GATE:
    case STW_WEIGHT_UP:
    case STW_WEIGHT_GATE_UP:
    case STW_WEIGHT_LINEAR_STATE:
    case STW_WEIGHT_HEAD:
        return true;
    default:
        return false;
    }
}

static stw_tp_cut cut_of_matrix(stw_weight weight) {
    switch (weight) {
    case STW_WEIGHT_ROUTER:
    case STW_WEIGHT_SHARED_GATE:
    case STW_WEIGHT_POSITION:
    case STW_WEIGHT_Q_DOWN:
    case STW_WEIGHT_KV_DOWN:
        return STW_TP_WHOLE;
    case STW_WEIGHT_O:
    case STW_WEIGHT_DOWN:
        return STW_TP_COLUMNS;
    default:
        return STW_TP_ROWS;
    }
}

stw_tp_cut stw_tp_cut_of(const stw_tensor *t) {
    const stw_tp_cut cut = cut_of_matrix(t->use.weight);
    /* an adapter's A has the inputs and is cut as its product is by inputs, B as it is by outputs
     */
    if (t->use.adapter == STW_ADAPTER_A) return cut == STW_TP_COLUMNS ? cut : STW_TP_WHOLE;
    if (t->use.adapter == STW_ADAPTER_B) return cut == STW_TP_ROWS ? cut : STW_TP_WHOLE;
    if (t->rank > 1) return cut;
    return is_cut_vector(t->use.weight) ? STW_TP_ROWS : STW_TP_WHOLE;
}

/* ---- parts ---- */

static uint64_t ways_of(const stw_job *job, uint32_t tensor) {
    const bool whole = stw_tp_cut_of(&job->model->tensors[tensor]) == STW_TP_WHOLE;
    return whole ? 1 : job->run->parallel.tp;
}

uint64_t stw_tp_part(const stw_job *job, uint32_t tensor) {
    return job->model->tensors[tensor].numel / ways_of(job, tensor);
}

uint64_t stw_tp_rows(const stw_job *job, uint32_t tensor, uint64_t *row) {
    const stw_tensor *t = &job->model->tensors[tensor];
    uint64_t rows = t->rank > 0 && t->shape[0] > 0 ? t->shape[0] : 1;
    if (stw_tp_cut_of(t) == STW_TP_ROWS) rows /= job->run->parallel.tp;
    *row = rows > 0 ? stw_tp_part(job, tensor) / rows : 0;
    return rows;
}

/* ---- checks ---- */

static stw_status refuse(uint32_t tp, const char *what, uint64_t found, stw_error *err) {
    return stw_fail(err, STW_STATUS_BAD_INPUT, "parallel.tp", "tp %u does not divide the %llu %s",
                    tp, (unsigned long long)found, what);
}

static stw_status check_block(const stw_block_group *group, uint32_t tp, const char *engine,
                              stw_error *err) {
    const stw_block_facts *f = &group->facts;
    const struct {
        const char *what;
        uint64_t n;
    } cuts[] = {
        {"query heads", f->q_heads}, {"key heads", f->kv_heads}, {"columns of the MLP", f->ffn}};
    if (f->vision || f->experts > 0 || f->shared_ffn > 0 || f->linear_v_heads > 0 ||
        f->kv_rank > 0 || f->decoder)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "parallel.tp",
                        "found %u: with engine %s it cuts softmax attention and dense MLPs alone, "
                        "and %s has others; set it to 1, or use engine: megatron",
                        tp, engine, group->name);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        if (cuts[i].n % tp != 0) return refuse(tp, cuts[i].what, cuts[i].n, err);
    return STW_STATUS_OK;
}

/* Products that are a tensor each: fused ones have rows of several in turn. */
static bool is_product_alone(stw_weight weight) {
    switch (weight) {
    case STW_WEIGHT_Q:
    case STW_WEIGHT_K:
    case STW_WEIGHT_V:
    case STW_WEIGHT_O:
    case STW_WEIGHT_GATE:
    case STW_WEIGHT_UP:
    case STW_WEIGHT_DOWN:
        return true;
    default:
        return false;
    }
}

static stw_status check_tensor(const stw_model *model, const stw_tensor *t, uint32_t tp,
                               const char *engine, stw_error *err) {
    const stw_block_group *group = &model->groups[model->blocks[t->block].group];
    const stw_tp_cut cut = stw_tp_cut_of(t);
    const bool known = is_product_alone(t->use.weight) && t->use.adapter == STW_ADAPTER_NONE;
    if (t->rank > 1 && group->facts.transformer && !known)
        return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "parallel.tp",
                        "found %u: engine %s has no rule for %s; set it to 1, or use engine: "
                        "megatron",
                        tp, engine, t->name);
    const uint64_t length = cut == STW_TP_COLUMNS && t->rank > 1 ? t->shape[1] : t->shape[0];
    if (cut == STW_TP_WHOLE || length % tp == 0) return STW_STATUS_OK;
    return refuse(tp,
                  strcmp(group->name, "embed") == 0 ? "rows of the embedding" : "rows of a product",
                  length, err);
}

stw_status stw_tp_check_model(const stw_model *model, uint32_t tp, const char *engine,
                              stw_error *err) {
    stw_status status = STW_STATUS_OK;
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (model->groups[g].facts.transformer || model->groups[g].facts.vision)
            STW_TRY(check_block(&model->groups[g], tp, engine, err));
    if (model->vocab % tp != 0) return refuse(tp, "entries of the vocabulary", model->vocab, err);
    for (uint32_t t = 0; t < model->n_tensors; t++)
        STW_TRY(check_tensor(model, &model->tensors[t], tp, engine, err));
out:
    return status;
}

stw_status stw_tp_check(const stw_job *job, stw_error *err) {
    const stw_parallel *p = &job->run->parallel;
    if (p->tp == 1) return STW_STATUS_OK;
    const stw_status status = stw_tp_check_model(job->model, p->tp, job->engine->spec.name, err);
    if (status == STW_STATUS_OK && p->sequence_parallel &&
        job->run->batch.max_tokens_per_gpu == 0 && job->run->batch.seq_len / p->cp % p->tp != 0)
        return refuse(p->tp, "tokens of a sequence", job->run->batch.seq_len / p->cp, err);
    return status;
}
