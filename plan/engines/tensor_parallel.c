/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/engines/tensor_parallel.h"

#include <string.h>

#include "core/checked.h"

typedef struct ending {
    const char *text;
    size_t length;
} ending;
#define ENDING(text)                                                                               \
    { text, sizeof(text) - 1 }
#define NO_ENDING                                                                                  \
    { NULL, 0 }

/* Every tensor of a model is asked for often. */
static bool ends_with_any(const char *name, size_t n, const ending *e) {
    for (; e->text != NULL; e++) {
        if (n < e->length || name[n - e->length] != e->text[0]) continue;
        if (memcmp(name + n - e->length, e->text, e->length) == 0) return true;
    }
    return false;
}

static stw_tp_cut cut_of(const char *name, size_t n, bool vector) {
    static const ending vectors[] = {ENDING("q_proj.bias"),
                                     ENDING("k_proj.bias"),
                                     ENDING("v_proj.bias"),
                                     ENDING("up_proj.bias"),
                                     ENDING("gate_proj.bias"),
                                     ENDING("linear_qkv.bias"),
                                     ENDING("linear_fc1.bias"),
                                     ENDING("attn.qkv.bias"),
                                     ENDING("A_log"),
                                     ENDING("dt_bias"),
                                     ENDING("linear_q.bias"),
                                     ENDING("linear_kv.bias"),
                                     ENDING("output_layer.bias"),
                                     NO_ENDING};
    static const ending whole[] = {ENDING("mlp.gate.weight"),
                                   ENDING("router.weight"),
                                   ENDING("q_a_proj.weight"),
                                   ENDING("wpe.weight"),
                                   ENDING("position_embeddings.weight"),
                                   ENDING("linear_q_down_proj.weight"),
                                   ENDING("linear_kv_down_proj.weight"),
                                   ENDING("kv_a_proj_with_mqa.weight"),
                                   ENDING("shared_expert_gate.weight"),
                                   NO_ENDING};
    static const ending columns[] = {ENDING("o_proj.weight"),     ENDING("out_proj.weight"),
                                     ENDING("down_proj.weight"),  ENDING("linear_proj.weight"),
                                     ENDING("linear_fc2.weight"), ENDING("attn.proj.weight"),
                                     ENDING("experts.down_proj"), NO_ENDING};
    if (vector) return ends_with_any(name, n, vectors) ? STW_TP_ROWS : STW_TP_WHOLE;
    if (ends_with_any(name, n, whole)) return STW_TP_WHOLE;
    return ends_with_any(name, n, columns) ? STW_TP_COLUMNS : STW_TP_ROWS;
}

/* An adapter's matrices are "<product>.lora_A.weight" and "<product>.lora_B.weight". */
enum { ADAPTER_END = sizeof ".lora_A.weight" - 1 };
static bool is_adapter(const char *name, size_t n) {
    if (n < (size_t)ADAPTER_END) return false;
    const char *end = name + n - ADAPTER_END;
    return end[0] == '.' && memcmp(end, ".lora_", 6) == 0 && strcmp(end + 7, ".weight") == 0;
}

/* Of an adapter's two matrices that has the inputs is cut as its product is by inputs, the other
 * one as it is by outputs. */
static stw_tp_cut cut_of_adapter(const char *name, size_t n) {
    char base[256];
    const char *end = name + n - ADAPTER_END;
    n -= ADAPTER_END;
    if (n + sizeof ".weight" > sizeof base) return STW_TP_WHOLE;
    memcpy(base, name, n);
    strcpy(base + n, ".weight");
    const stw_tp_cut cut = cut_of(base, n + sizeof ".weight" - 1, false);
    return cut == (end[6] == 'A' ? STW_TP_COLUMNS : STW_TP_ROWS) ? cut : STW_TP_WHOLE;
}

stw_tp_cut stw_tp_cut_of(const stw_tensor *t) {
    const size_t n = strlen(t->name);
    return is_adapter(t->name, n) ? cut_of_adapter(t->name, n) : cut_of(t->name, n, t->rank <= 1);
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

uint64_t stw_tp_own_tokens(const stw_job *job) {
    return job->run->parallel.sequence_parallel ? job->tokens / stw_job_tp(job) : job->tokens;
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
static stw_status check_tensor(const stw_model *model, const stw_tensor *t, uint32_t tp,
                               const char *engine, stw_error *err) {
    static const ending products[] = {ENDING("q_proj.weight"),    ENDING("k_proj.weight"),
                                      ENDING("v_proj.weight"),    ENDING("o_proj.weight"),
                                      ENDING("gate_proj.weight"), ENDING("up_proj.weight"),
                                      ENDING("down_proj.weight"), NO_ENDING};
    const stw_block_group *group = &model->groups[model->blocks[t->block].group];
    const stw_tp_cut cut = stw_tp_cut_of(t);
    if (t->rank > 1 && group->facts.transformer &&
        !ends_with_any(t->name, strlen(t->name), products))
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
