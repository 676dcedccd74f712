/* SPDX-License-Identifier: Apache-2.0 */
/* What a forward pass without gradients and the sampler allocate in vLLM (v1/worker/
 * gpu_model_runner.py: profile_run, _dummy_run, _dummy_sampler_run). */
#include "core/checked.h"
#include "engines/rollout/sizes.h"

/* Bytes per logit where the sampler peaks (v1/sample/sampler.py: forward; ops/topk_topp_sampler.py:
 * apply_top_k_top_p): the logits in bf16 and in fp32, both sorted in fp32 with int64 indices, their
 * probabilities in fp32, two masks, and the result in fp32. */
enum { SAMPLER_BYTES = 2 + 4 + 4 + 8 + 4 + 2 + 4 };

/* One block on `tokens` tokens: its input and the residual, and inside the attention q, k, v and
 * the heads' output, inside the MLP gate and up together and their product. Experts have a row for
 * each of a token's experts (fused_moe.py, fused_experts_impl: intermediate_cache13 and 2). */
static uint64_t block_bytes(const stw_rollout_role *role, const stw_block_facts *f,
                            uint64_t tokens) {
    const uint64_t tp = role->tp, kv = stw_max_u64(f->kv_heads / tp, 1);
    const uint64_t heads = stw_plus(stw_times(f->q_heads / tp, stw_plus(f->qk_dim, f->v_dim)),
                                    stw_times(kv, stw_plus(f->qk_dim, f->v_dim)));
    const uint64_t keys = stw_times(f->linear_k_heads, f->linear_k_dim);
    const uint64_t values = stw_times(f->linear_v_heads, f->linear_v_dim);
    const uint64_t linear = stw_plus(stw_times(2, keys), stw_times(3, values)) / tp;
    uint64_t mlp = stw_times(f->gated ? 3 : 2, f->ffn / tp);
    if (f->experts > 0) {
        const uint64_t ffn = role->ep > 1 ? f->expert_ffn : f->expert_ffn / tp;
        const uint64_t rows = stw_times(f->experts_per_token,
                                        stw_plus(stw_max_u64(stw_times(2, ffn), f->hidden), ffn));
        mlp =
            stw_max_u64(mlp, stw_plus(stw_plus(rows, f->hidden), stw_times(3, f->shared_ffn / tp)));
    }
    const uint64_t widest = stw_max_u64(stw_max_u64(heads, linear), mlp);
    const uint64_t element = stw_dtype_bits(role->compute) / 8;
    return stw_times(stw_times(tokens, element), stw_plus(stw_times(3, f->hidden), widest));
}

uint64_t stw_rollout_work_bytes(const stw_rollout_role *role) {
    const uint64_t tokens = role->spec->max_num_batched_tokens;
    const uint64_t seqs = stw_min_u64(role->spec->max_num_seqs, tokens);
    uint64_t forward = 0;
    for (uint32_t g = 0; g < role->model->n_groups; g++) {
        const stw_block_facts *f = &role->model->groups[g].facts;
        if (f->transformer && !f->vision)
            forward = stw_max_u64(forward, block_bytes(role, f, tokens));
    }
    const uint64_t hidden =
        stw_times(stw_times(tokens, role->model->hidden), stw_dtype_bits(role->compute) / 8);
    const uint64_t sampler =
        stw_plus(hidden, stw_times(stw_times(seqs, role->model->vocab), SAMPLER_BYTES));
    return stw_max_u64(forward, sampler);
}

/* v1/worker/block_table.py, BlockTable; SGLang: mem_cache/memory_pool.py, ReqToTokenPool. */
uint64_t stw_rollout_table_bytes(const stw_rollout_role *role, bool sglang) {
    const uint64_t entries = sglang ? stw_plus(role->max_model_len, 4)
                                    : stw_div_up_u64(role->max_model_len, STW_ROLLOUT_BLOCK_TOKENS);
    return stw_times(stw_times(role->spec->max_num_seqs, entries), sizeof(int32_t));
}

/* vLLM captures batches of 1, 2, 4, every 8 up to 256 and every 16 up to 512, at most twice
 * max_num_seqs (vllm/config/vllm.py, _set_cudagraph_sizes). What a size takes depends on the model;
 * its log says so at start ("Graph capturing finished"): of eight public logs 4 to 14 MiB. SGLang
 * reserves 2 MiB per sequence of the largest batch (server_args.py, _handle_gpu_memory_settings).
 */
#define GRAPH_BYTES (10ull << 20)
#define SGLANG_SEQUENCE_BYTES (2ull << 20)
enum { LARGEST_GRAPH = 512, SGLANG_LARGEST_GRAPH = 256 };

static uint64_t next_size(uint64_t size) {
    return size < 2 ? 2 : size < 4 ? 4 : size < 256 ? (size / 8 + 1) * 8 : size + 16;
}

uint64_t stw_rollout_graph_bytes(const stw_rollout_role *role, bool sglang) {
    const uint64_t seqs = role->spec->max_num_seqs;
    uint64_t bytes = 0;
    if (role->spec->enforce_eager) return 0;
    if (sglang) return stw_times(stw_min_u64(seqs, SGLANG_LARGEST_GRAPH), SGLANG_SEQUENCE_BYTES);
    for (uint64_t size = 1; size <= stw_min_u64(2 * seqs, LARGEST_GRAPH); size = next_size(size))
        bytes += GRAPH_BYTES;
    return bytes;
}
