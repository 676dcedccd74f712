/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of the formulas:
 * - Saved activations per block: blocks/.
 * - Backward of a block: the gradient of a product's factors (2 x ffn) replaces the product, beside
 *   everything saved before it; weight gradients collect from the down projection upwards.
 * - Loss (transformers/loss/loss_utils.py, ForCausalLMLoss): logits, their upcast and the
 *   log-softmax live together in forward; autograd keeps the log-softmax alone; backward adds the
 *   gradients of log-softmax and of upcast logits, then casts down.
 * - Gather and reduce (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py at pytorch 002a76f
 *   and _fsdp_collectives.py at 010ae4a): unsharded parameters are copied out of the all-gather's
 * output, which in forward lives until the next group is copied out (comm_ctx.all_gather_state) and
 * in backward is freed at once but prefetched for one group ahead; with reshard_after_forward given
 * as true the root, too, is resharded and gathered again. The reduce-scatter input lives until the
 * next group's post-backward; the gradients are freed after the copy into it, except for the last
 * one, which a loop variable of foreach_reduce holds. A group whose input needs no gradient (the
 * root, a wrapped embedding) is reduced in the final callback, the root first. With replicas
 *   (HSDP), _all_reduce_state keeps every group's output in the reduce dtype.
 * - Tied embeddings: the head's and the embedding's gradients meet at one leaf, and their sum is
 *   made beside both: three copies for a moment (measured, not read in the source).
 * - cuBLAS work areas: 32 MiB per handle and stream on Hopper (aten/src/ATen/cuda/
 *   CublasHandlePool.cpp, parseChosenWorkspaceSize; about 8 MiB elsewhere), one of the main and one
 *   of autograd's thread.
 * - Page-locking: torch's CachingHostAllocator rounds to the next power of two (pytorch issue
 *   95823). */
#include "engines/bytes.h"

#include <string.h>

#include "blocks/calls.h"
#include "core/checked.h"
#include "engines/fsdp_keys.h"
#include "engines/tensor_parallel.h"
#include "engines/vision.h"

#define CUBLAS_WORKSPACE_BYTES (32ull << 20)

static uint64_t compute_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.compute) / 8;
}

/* ---- blocks ---- */

/* Tokens, or patches of images: of a micro batch, and of them those that the rank has between
 * products. */
static uint64_t rows_of(const stw_job *job, uint32_t group) {
    return job->model->groups[group].facts.vision ? stw_job_patches(job) : job->tokens;
}

static uint64_t own_rows_of(const stw_job *job, uint32_t group) {
    return job->model->groups[group].facts.vision ? stw_job_patches(job) : stw_job_own_tokens(job);
}

/* Of a block on a rank of tensor parallelism: its heads, its columns of the MLP. */
static stw_block_facts cut_facts(const stw_job *job, uint32_t group) {
    stw_block_facts f = job->model->groups[group].facts;
    const uint32_t tp = stw_job_tp(job);
    f.q_heads /= tp;
    f.kv_heads /= tp;
    f.ffn /= tp;
    return f;
}

/* Rows between products that tensor parallelism cuts, where every rank has some of them. */
static bool cuts_rows(const stw_job *job) {
    return stw_job_tp(job) > 1 && job->run->parallel.sequence_parallel;
}

static uint64_t linear_attention_elements(const stw_block_facts *f) {
    return stw_plus(stw_times(stw_times(2, f->linear_k_heads), f->linear_k_dim),
                    stw_times(stw_times(3, f->linear_v_heads), f->linear_v_dim));
}

/* Query, key, value: their widths together. */
static uint64_t qkv_elements(const stw_block_facts *f) {
    return stw_plus(stw_times(f->q_heads, f->qk_dim),
                    stw_times(f->kv_heads, stw_plus(f->qk_dim, f->v_dim)));
}

/* Width of everything between the two products of the MLP, experts per token included. */
static uint64_t mlp_width(const stw_job *job, const stw_block_facts *f) {
    uint64_t routed =
        stw_scaled(stw_times(f->experts_per_token, f->expert_ffn), job->run->moe.imbalance);
    return STW_SUM(f->ffn, f->shared_ffn, f->experts > 0 ? routed : 0);
}

static uint64_t kept_bytes(const stw_job *job, uint32_t group) {
    uint64_t saved[STW_N_PARTS];
    stw_group_saved(job, group, saved);
    return STW_SUM(saved[STW_PART_NORMS], saved[STW_PART_INPUTS], saved[STW_PART_ATTENTION],
                   saved[STW_PART_MLP]);
}

/* Of the language model. */
static bool residual(const stw_block_facts *f) { return f->transformer && !f->vision; }

/* Does a block of the group save anything for backward? One of a vision tower where there are
 * images and backward reaches it. */
static bool saves(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    if (!f->vision) return f->transformer;
    return f->transformer && job->run->batch.image_tokens > 0 && stw_vision_is_reached(job);
}

uint64_t stw_full_activation_bytes(const stw_job *job, uint32_t group) {
    return saves(job, group) ? kept_bytes(job, group) : 0;
}

uint64_t stw_forward_work_bytes(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    if (!f->transformer || !f->vision || job->run->batch.image_tokens == 0 || saves(job, group))
        return 0;
    return kept_bytes(job, group);
}

/* Causal: every token sees half of the sequence; 2 FLOP per multiply-add, two products. Patches see
 * all of an image, and of a window. */
double stw_group_attention_flops(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    double seen = (double)stw_job_group_seq_len(job, group);
    if (f->vision) seen *= 2.0;
    if (f->window > 0 && (double)f->window < seen) seen = 2.0 * (double)f->window;
    return (double)stw_job_group_tokens(job, group) * seen *
           (double)stw_times(f->q_heads, stw_plus(f->qk_dim, f->v_dim));
}

/* ---- selective recomputation ---- */

/* torch's checkpoint of single modules keeps the input of each of them. */
static stw_selective of_modules(const stw_job *job, uint32_t group, stw_fsdp_modules modules) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t input = stw_times(stw_times(job->tokens, compute_bytes(job)), f->hidden);
    stw_calls calls;
    uint64_t saved[STW_N_PARTS];
    stw_calls_of_group(job, group, &calls);
    stw_calls_saved(&calls, saved);
    stw_selective out = {.again = {modules.mlp ? saved[STW_PART_MLP] : 0,
                                   stw_plus(modules.self_attn ? saved[STW_PART_ATTENTION] : 0,
                                            modules.layernorm ? saved[STW_PART_NORMS] : 0)}};
    out.saved[0] = saved[STW_PART_MLP] - out.again[0];
    out.saved[1] =
        STW_SUM(saved[STW_PART_ATTENTION], saved[STW_PART_NORMS], saved[STW_PART_INPUTS]) -
        out.again[1];
    if (modules.layernorm)
        out.saved[1] = stw_plus(out.saved[1], stw_times(f->norms > 0 ? f->norms : 2, input));
    if (modules.mlp && calls.values[calls.to_mlp].reads == 0) /* frozen: nothing else keeps it */
        out.saved[1] = stw_plus(out.saved[1], input);
    if (modules.self_attn && calls.values[calls.to_attention].reads == 0)
        out.saved[1] = stw_plus(out.saved[1], input);
    return out;
}

/* torchtitan's policy (torchtitan/distributed/activation_checkpoint.py; models/llama3/infra/
 * parallelize.py at 018740b, _op_sac_save_list): outputs of attention and of every second product
 * are kept, the first, third, ...: query, value, gate and down of query, key, value, output, gate,
 * up, down; and those of reduce-scatters, of which tensor parallelism with sequence parallelism has
 * two. The last product's output has all rows. */
static stw_selective of_operations(const stw_job *job, uint32_t group) {
    const stw_block_facts part = cut_facts(job, group), *f = &part;
    const uint64_t scattered = cuts_rows(job) ? 2 : 0;
    const uint64_t own =
        stw_times(stw_times(stw_job_own_tokens(job), compute_bytes(job)), f->hidden);
    const uint64_t column = stw_times(job->tokens, compute_bytes(job));
    const uint64_t full = kept_bytes(job, group), mlp = stw_mlp_activation_bytes(job, group);
    const uint64_t q = stw_times(f->q_heads, f->qk_dim);
    const uint64_t v = stw_times(f->kv_heads, f->v_dim), o = stw_times(f->q_heads, f->v_dim);
    const uint64_t first = stw_times(column, f->ffn);
    const uint64_t both = stw_plus(stw_times(column, stw_plus(v, o)),
                                   stw_times(stw_times(4, job->tokens), f->q_heads));
    stw_selective out = {.at_once = true};
    out.saved[0] = first;
    out.again[0] = mlp > first ? mlp - first : 0;
    out.again[1] = full - mlp > both ? full - mlp - both : 0;
    /* the block's input, query before its rotation, the output of the last product */
    out.saved[1] = STW_SUM(both, stw_times(own, 1 + scattered),
                           stw_times(column, stw_plus(q, f->gated ? f->hidden : 0)));
    return out;
}

stw_block_parts stw_selective_parts(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    stw_block_parts out = {.columns = 0};
    if (!stw_selective_of(job, group).is_used) return out;
    const stw_fsdp_modules modules = stw_fsdp_modules_of(job->run);
    if (modules.ops) {
        out.columns =
            (double)stw_plus(stw_times(f->kv_heads, f->qk_dim), stw_times(f->q_heads, f->v_dim));
        out.columns += f->gated ? (double)f->ffn : 0.0;
        return out;
    }
    /* recomputed up to the last tensor that is saved: without the last products */
    if (modules.mlp) out.columns += (f->gated ? 2 : 1) * (double)mlp_width(job, f);
    if (modules.self_attn) out.columns += (double)qkv_elements(f);
    out.attention = modules.self_attn;
    return out;
}

stw_selective stw_selective_of(const stw_job *job, uint32_t group) {
    stw_selective none = {.is_used = false};
    const stw_block_facts *f = &job->model->groups[group].facts;
    if (job->run->recompute.granularity != 2 || job->engine->spec.section != &stw_fsdp_section ||
        !residual(f))
        return none;
    const stw_fsdp_modules modules = stw_fsdp_modules_of(job->run);
    stw_selective out = modules.ops ? of_operations(job, group) : of_modules(job, group, modules);
    out.is_used = true;
    return out;
}

uint64_t stw_activation_bytes(const stw_job *job, uint32_t group, stw_act act) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const stw_selective selective = stw_selective_of(job, group);
    if (!saves(job, group)) return 0;
    switch (act) {
    case STW_ACT_KEEP:
        if (selective.is_used) return stw_plus(selective.saved[0], selective.saved[1]);
        return kept_bytes(job, group);
    case STW_ACT_RECOMPUTE:
        return stw_times(stw_times(own_rows_of(job, group), compute_bytes(job)), f->hidden);
    default:
        return 0;
    }
}

uint64_t stw_mlp_activation_bytes(const stw_job *job, uint32_t group) {
    uint64_t saved[STW_N_PARTS];
    if (!saves(job, group)) return 0;
    stw_group_saved(job, group, saved);
    return saved[STW_PART_MLP];
}

/* With sequence parallelism the gradient of a last product's output is gathered, and the gradient
 * of a first product's input has all rows until it is reduce-scattered: beside the rank's own rows
 * of the residual's gradient, and inside the MLP in the place of a gradient of its factors. */
stw_backward_bytes stw_block_backward_bytes(const stw_job *job, uint32_t block) {
    const stw_block_facts part = cut_facts(job, job->model->blocks[block].group), *f = &part;
    stw_backward_bytes out = {.grads = stw_unsharded_grad_bytes(job, block)};
    const uint32_t group = job->model->blocks[block].group;
    if (!saves(job, group)) return out;
    const uint64_t c = compute_bytes(job), cut = job->expert_cut > 0 ? job->expert_cut : 1;
    const uint64_t column = stw_times(rows_of(job, group), c); /* one element of every token */
    uint64_t width = stw_times(f->gated ? 2 : 1, mlp_width(job, f));
    uint64_t rows = STW_SUM(f->ffn, f->shared_ffn, stw_times(f->experts, f->expert_ffn) / cut);
    const uint64_t own = stw_times(stw_times(own_rows_of(job, group), c), f->hidden);
    if (cuts_rows(job)) width = stw_max_u64(width, stw_plus(mlp_width(job, f), f->hidden));
    out.mlp_acts = stw_plus(stw_times(column, width), own);
    out.mlp_grads = stw_min_u64(stw_times(stw_times(c, f->hidden), rows), out.grads);
    out.attention_acts =
        stw_plus(own, stw_times(column, STW_SUM(qkv_elements(f), stw_times(f->q_heads, f->v_dim),
                                                linear_attention_elements(f),
                                                cuts_rows(job) ? f->hidden : 0)));
    return out;
}

/* ---- gather and reduce ---- */

static bool gathers(const stw_job *job) {
    return job->group > 1 || job->run->precision.params != job->run->precision.compute;
}

uint64_t stw_unshard_bytes(const stw_job *job, uint32_t block) {
    return gathers(job) ? stw_times(stw_job_gathered_params(job, block), compute_bytes(job)) : 0;
}

/* A group of one rank gathers nothing: its shard is copied into the unsharded parameter
 * (_fsdp_param_group.py, wait_for_unshard). */
uint64_t stw_all_gather_bytes(const stw_job *job, uint32_t block) {
    const uint64_t all = stw_job_gathered_params(job, block);
    const uint64_t alone = job->expert_group > 1 ? 0 : stw_job_gathered_experts(job, block);
    return job->group > 1 && gathers(job) ? stw_times(all - alone, compute_bytes(job)) : 0;
}

bool stw_trains_in_place(const stw_job *job) {
    return job->group == 1 && stw_engine_steps_inside(&job->engine->spec);
}

uint64_t stw_unsharded_grad_bytes(const stw_job *job, uint32_t block) {
    if (!gathers(job) && !stw_trains_in_place(job) &&
        job->run->precision.grads == job->run->precision.compute)
        return 0;
    return stw_times(stw_job_gathered_grads(job, block),
                     stw_trains_in_place(job) ? stw_dtype_bits(job->run->precision.grads) / 8
                                              : compute_bytes(job));
}

static uint64_t reduce_element_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->precision.reduce) / 8;
}

uint64_t stw_accumulated_grad_bytes(const stw_job *job, uint32_t block) {
    return stw_times(stw_job_gathered_grads(job, block), reduce_element_bytes(job));
}

/* FSDP2 reduces a group of one rank, too (foreach_reduce). */
static bool reduces(const stw_job *job) {
    return job->group > 1 || (!job->engine->spec.own_process && !stw_trains_in_place(job));
}

uint64_t stw_reduce_bytes(const stw_job *job, uint32_t block) {
    if (!reduces(job)) return 0;
    return stw_times(stw_job_gathered_grads(job, block), reduce_element_bytes(job));
}

uint64_t stw_reduce_output_bytes(const stw_job *job, uint32_t block) {
    const uint64_t element = reduce_element_bytes(job);
    const uint64_t experts = stw_job_gathered_expert_grads(job, block);
    const uint64_t dense = stw_job_gathered_grads(job, block) - experts;
    if (!reduces(job) || job->run->precision.reduce == job->run->precision.grads) return 0;
    return stw_plus(stw_div_up_u64(stw_times(dense, element), job->group),
                    stw_div_up_u64(stw_times(experts, element), job->expert_group));
}

uint64_t stw_replica_reduce_bytes(const stw_job *job, uint64_t params) {
    if (stw_job_replicas(job) <= 1 || job->run->precision.reduce == job->run->precision.grads)
        return 0;
    return stw_times(params, reduce_element_bytes(job));
}

/* ---- loss and root ---- */

/* torch/distributed/tensor/parallel/loss.py (loss_parallel, v2.11): every rank has logits of its
 * part of the vocabulary. _log_softmax makes the shifted logits and their exponentials, then the
 * result, beside its input; _nll_loss_and_log_softmax_backward adds the exponentials to a gradient
 * of zeros and multiplies their sum, three tensors beside what was saved. */
static bool cuts_loss(const stw_job *job) {
    return stw_job_tp(job) > 1 && stw_fsdp_settings_of(job->run).loss_parallel;
}

uint64_t stw_loss_tokens(const stw_job *job) {
    const stw_run_spec *run = job->run;
    const uint64_t chunk = run->loss.chunk > 0 ? run->loss.chunk : STW_LOSS_CHUNK;
    return run->loss.fused || run->loss.checkpoint ? stw_min_u64(job->tokens, chunk) : job->tokens;
}

bool stw_loss_is_cut(const stw_job *job) {
    return job->run->loss.checkpoint && stw_loss_tokens(job) < job->tokens;
}

static uint64_t logit_elements(const stw_job *job) {
    return stw_times(stw_loss_tokens(job),
                     cuts_loss(job) ? job->model->vocab / stw_job_tp(job) : job->model->vocab);
}

/* Logits of a rank's part of the vocabulary, from which those of all entries are gathered. */
static uint64_t own_logits_bytes(const stw_job *job) {
    if (stw_job_tp(job) == 1 || cuts_loss(job)) return 0;
    return stw_times(stw_times(job->tokens, job->model->vocab / stw_job_tp(job)),
                     compute_bytes(job));
}

static uint64_t upcast_bytes(const stw_job *job) {
    return stw_dtype_bits(job->run->loss.upcast) / 8;
}

/* Is any tensor of the groups of this name trained? A tied head is the embedding. */
static bool trains_group(const stw_job *job, const char *name) {
    const stw_model *model = job->model;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        if (stw_job_trains(job, t) &&
            strcmp(model->groups[model->blocks[model->tensors[t].block].group].name, name) == 0)
            return true;
    return false;
}

static bool trains_head(const stw_job *job) {
    return trains_group(job, job->model->tied_embeddings ? "embed" : "head");
}

/* What tanh saves of soft-capped logits, until their gradient has passed through it
 * (transformers/models/gemma2/modeling_gemma2.py, Gemma2ForCausalLM.forward). */
static uint64_t cap_bytes(const stw_job *job) {
    return job->model->soft_capped && !job->run->loss.fused ? compute_bytes(job) : 0;
}

/* What the final norm saves, and its output, which the head saves. */
static uint64_t final_norm_bytes(const stw_job *job) {
    stw_calls calls;
    uint64_t saved[STW_N_PARTS], output = 0;
    (void)stw_calls_of_norm(job, &calls);
    stw_calls_saved(&calls, saved);
    if (job->frozen == NULL || trains_head(job))
        output = stw_times(job->model->hidden, compute_bytes(job));
    return stw_plus(saved[STW_PART_NORMS], stw_times(job->tokens, output));
}

/* The output of the model holds the logits in the dtype of computation; under a checkpoint they go
 * when they are upcast. */
uint64_t stw_logits_forward_bytes(const stw_job *job) {
    bool casts = job->run->loss.upcast != job->run->precision.compute && !job->run->loss.checkpoint;
    uint64_t element = STW_SUM(stw_times(cuts_loss(job) ? 3 : 2, upcast_bytes(job)),
                               casts ? compute_bytes(job) : 0, cap_bytes(job));
    return STW_SUM(final_norm_bytes(job), stw_times(logit_elements(job), element),
                   own_logits_bytes(job));
}

uint64_t stw_logits_saved_bytes(const stw_job *job) {
    if (job->run->loss.checkpoint) return final_norm_bytes(job);
    return stw_plus(final_norm_bytes(job),
                    stw_times(logit_elements(job), stw_plus(upcast_bytes(job), cap_bytes(job))));
}

/* The gradient of all hidden states, to which chunks add theirs. */
static uint64_t cut_grad_bytes(const stw_job *job) {
    if (!stw_loss_is_cut(job)) return 0;
    return stw_times(stw_times(job->tokens, job->model->hidden), compute_bytes(job));
}

uint64_t stw_logits_backward_bytes(const stw_job *job) {
    uint64_t element =
        stw_plus(stw_times(cuts_loss(job) ? 4 : 3, upcast_bytes(job)), cap_bytes(job));
    return STW_SUM(final_norm_bytes(job), stw_times(logit_elements(job), element),
                   cut_grad_bytes(job));
}

uint64_t stw_head_grad_bytes(const stw_job *job) {
    if (!trains_head(job)) return 0;
    return stw_times(stw_times(job->model->vocab, job->model->hidden), compute_bytes(job));
}

/* torch/csrc/autograd/input_buffer.cpp: in place unless what waits is a view, as a product's
 * gradient of a transposed weight is. */
bool stw_sums_into_head(const stw_job *job) {
    const bool casts =
        stw_trains_in_place(job) && job->run->precision.params != job->run->precision.compute;
    return stw_loss_is_cut(job) || casts;
}

/* A chunk's gradient is put into zeros for all tokens. */
uint64_t stw_logits_grad_bytes(const stw_job *job) {
    const uint64_t hidden = stw_times(job->tokens, job->model->hidden);
    uint64_t elements = stw_plus(logit_elements(job), hidden);
    if (stw_loss_is_cut(job))
        elements = STW_SUM(stw_max_u64(logit_elements(job), hidden), hidden,
                           stw_times(stw_loss_tokens(job), job->model->hidden));
    return STW_SUM(final_norm_bytes(job), stw_times(elements, compute_bytes(job)),
                   own_logits_bytes(job));
}

uint64_t stw_logits_tensor_bytes(const stw_job *job) {
    return stw_times(logit_elements(job), stw_max_u64(upcast_bytes(job), compute_bytes(job)));
}

uint64_t stw_embedding_rows_bytes(const stw_job *job) {
    if (!cuts_rows(job)) return 0;
    return stw_times(stw_times(job->tokens, job->model->hidden), compute_bytes(job));
}

bool stw_job_in_root(const stw_job *job, uint32_t block) {
    const stw_block_group *group = &job->model->groups[job->model->blocks[block].group];
    if (group->facts.transformer) return false;
    if (!job->model->facts_known && group->count > 1) return false;
    return job->model->tied_embeddings || strcmp(group->name, "embed") != 0 ||
           !stw_fsdp_settings_of(job->run).wrap_embeddings;
}

bool stw_reduced_last(const stw_job *job, uint32_t block) {
    const stw_block_group *group = &job->model->groups[job->model->blocks[block].group];
    return !stw_job_in_root(job, block) && !group->facts.transformer &&
           strcmp(group->name, "embed") == 0;
}

uint64_t stw_workspace_bytes(const stw_job *job) {
    bool torch_step = !job->engine->spec.own_process && job->model->facts_known;
    return torch_step ? 2 * CUBLAS_WORKSPACE_BYTES : 0;
}

/* Of one block's forward: products with weights, and of tokens with each other. */
static void block_flops(const stw_job *job, uint32_t block, double *weights, double *attention) {
    const uint32_t g = job->model->blocks[block].group;
    const stw_block_group *group = &job->model->groups[g];
    const stw_block_facts *f = &group->facts;
    const double tokens = (double)stw_job_group_tokens(job, g);
    const double heads = (double)stw_times(f->q_heads, stw_plus(f->qk_dim, f->v_dim));
    *weights = *attention = 0.0;
    if (!f->transformer) return; /* the head's product is counted with the loss */
    *weights = 2.0 * tokens * (double)group->active_params / group->count;
    *attention = stw_group_attention_flops(job, g);
    if (!f->decoder) return;
    /* keys and values are products of the encoder's tokens, and every token sees all of them */
    *weights += 2.0 * ((double)job->tokens - tokens) * heads * (double)f->hidden;
    *attention += 2.0 * tokens * (double)job->run->batch.seq_len * heads;
}

double stw_block_forward_flops(const stw_job *job, uint32_t block) {
    double weights, attention;
    block_flops(job, block, &weights, &attention);
    return weights + attention;
}

double stw_block_attention_flops(const stw_job *job, uint32_t block) {
    double weights, attention;
    block_flops(job, block, &weights, &attention);
    return attention;
}

double stw_block_backward_flops(const stw_job *job, uint32_t block) {
    const double params = (double)stw_job_gathered_params(job, block);
    const double trained = (double)stw_job_gathered_grads(job, block);
    double weights, attention;
    block_flops(job, block, &weights, &attention);
    if (!stw_block_saves(job, block)) return 0.0;
    return (1.0 + (params > 0 ? trained / params : 1.0)) * weights + 2.0 * attention;
}

bool stw_block_saves(const stw_job *job, uint32_t block) {
    return saves(job, job->model->blocks[block].group);
}

double stw_head_backward_share(const stw_job *job) {
    return job->frozen == NULL || trains_head(job) ? 2.0 : 1.0;
}

uint64_t stw_page_lock_rounding_bytes(uint64_t bytes) {
    if (bytes == 0 || bytes > (1ull << 62)) return 0;
    uint64_t power = 1;
    while (power < bytes) power <<= 1;
    return power - bytes;
}

uint64_t stw_state_rounding_bytes(const stw_job *job, uint32_t kind, stw_component component) {
    const stw_space *space = &job->kinds[kind].spaces[stw_component_space(component)];
    const uint64_t element = stw_job_element_bytes(job, component);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < space->n_segments; i++)
        bytes =
            stw_plus(bytes, stw_page_lock_rounding_bytes(stw_times(space->segments[i].n, element)));
    return bytes;
}

/* Every policy of every block together. */
uint64_t stw_batch_bytes(const stw_job *job) {
    const stw_model *model = job->model;
    uint64_t sum = STW_SUM(stw_logits_forward_bytes(job), stw_logits_saved_bytes(job),
                           stw_logits_backward_bytes(job), stw_logits_grad_bytes(job),
                           stw_vision_saved_bytes(job));
    for (uint32_t b = 0; b < model->n_blocks; b++) {
        const uint32_t group = model->blocks[b].group;
        if (model->blocks[b].instance > 0) continue; /* the blocks of a group are alike */
        const stw_backward_bytes backward = stw_block_backward_bytes(job, b);
        uint64_t block = STW_SUM(
            stw_full_activation_bytes(job, group), stw_forward_work_bytes(job, group),
            stw_activation_bytes(job, group, STW_ACT_RECOMPUTE),
            stw_mlp_activation_bytes(job, group), backward.mlp_acts, backward.attention_acts);
        sum = stw_plus(sum, stw_times(block, model->groups[group].count));
    }
    return stw_times(sum, job->ranks_per_node);
}
