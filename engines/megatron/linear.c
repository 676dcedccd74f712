/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core 0.16.1, ssm/gated_delta_net.py, GatedDeltaNet; flash-linear-attention):
 * - One product makes query, key, value, gate, beta and alpha. TP cuts it by heads, and so it cuts
 *   the convolution, A_log and dt_bias; the output projection is cut by its input. Sequence
 *   parallelism gathers all rows before the product: the rule needs them in order.
 * - The product's output is split; each part is copied, so that it goes when forward returns.
 * - The convolution (causal_conv1d_fn) saves its input and makes the activation again.
 * - l2norm (modules/l2norm.py, L2NormFunction) saves its output and one fp32 root per head. With
 *   more heads of values than of keys both are repeated; otherwise the rule saves the same tensor.
 * - beta is saved after its sigmoid, alpha as the fp32 input of softplus and its output.
 * - The rule (ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction) saves query, key, value,
 *   beta, the running sums of the decay in fp32, and a triangular matrix of 64 columns per row and
 *   head. Forward and backward make w and u of every row and a state of every chunk of 64 rows.
 *   Backward adds the gradients of all of them; those of key and value exist twice for a moment.
 * - The norm saves the rule's output and one root per head; TransformerEngine's is not compiled
 *   together with the gate, so that its output is saved, too. The output projection saves its
 *   input.
 * - Context parallelism (the same file in 0.17, tensor_a2a_cp2hp and tensor_a2a_hp2cp): two
 *   all-to-alls give each rank all rows of a part of the heads and back; all sizes stay. */
#include "engines/megatron/linear.h"

#include "core/checked.h"

enum { CHUNK = 64 }; /* rows: fla/ops/gated_delta_rule/chunk.py, chunk_size */

stw_megatron_linear stw_megatron_linear_of(const stw_job *job, uint32_t group, bool te) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t tp = job->run->parallel.tp, rows = job->tokens;
    const uint64_t k_heads = f->linear_k_heads / tp, heads = f->linear_v_heads / tp;
    const uint64_t key = stw_times(k_heads, f->linear_k_dim);
    const uint64_t repeated =
        stw_times(heads, f->linear_k_dim); /* query or key as the rule sees it */
    const uint64_t value = stw_times(heads, f->linear_v_dim);
    const uint64_t qkv = STW_SUM(key, key, value);
    const uint64_t mixed = STW_SUM(qkv, value, heads, heads);
    const uint64_t states = stw_times(repeated, f->linear_v_dim) / CHUNK;
    uint64_t saved = STW_SUM(qkv, stw_times(2, repeated), value, stw_times(heads, CHUNK), heads,
                             value, value, value); /* output, gate, input of the projection */
    if (heads != k_heads) saved = STW_SUM(saved, key, key);
    if (te) saved = stw_plus(saved, value);
    /* softplus in and out, the decay, the norm's root; roots of query and key */
    uint64_t wide = stw_plus(stw_times(4, heads), stw_times(2, k_heads));
    stw_megatron_linear out = {0};
    out.saved = stw_times(rows, stw_plus(stw_times(c, saved), stw_times(4, wide)));
    out.forward =
        stw_times(rows, stw_times(c, STW_SUM(mixed, qkv, repeated, value, states, value)));
    out.backward =
        stw_times(stw_times(rows, c),
                  STW_SUM(stw_times(5, repeated), stw_times(5, value), stw_times(2, states)));
    out.weight_grad = stw_times(stw_times(c, f->hidden), mixed);
    if (job->run->parallel.cp > 1) {
        out.sent_out = stw_times(stw_times(rows, c), mixed);
        out.sent_back = stw_times(stw_times(rows, c), value);
    }
    return out;
}
