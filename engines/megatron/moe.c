/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (megatron/core/transformer/moe at 0.16.1):
 * - All-to-all (token_dispatcher.py, MoEAlltoAllTokenDispatcher): rows are permuted, sent, gathered
 *   over the experts' tensor parallelism and sorted; on their way back there are the experts'
 *   output, its sorted copy and the result of the all-to-all at once.
 * - All-gather (MoEAllGatherTokenDispatcher): the rows of all ranks of the EP and ETP groups are
 *   gathered into the global buffer, and those of the rank's experts are taken from it; results lie
 *   in rows of all ranks, which are summed in the dtype of the probabilities (fp32).
 * - Capacity (router.py, routing; moe_utils.py, get_capacity, apply_router_token_dropping): of
 *   every expert, rows beyond capacity are dropped; padded, every expert gets exactly that many. */
#include "engines/megatron/moe.h"

#include <math.h>

#include "core/checked.h"
#include "engines/megatron/deepep.h"
#include "engines/megatron/megatron.h"

/* Of every token and expert: logits, softmax of the auxiliary loss, probabilities and their
 * transposed copy in fp32; the routing map and its transposed copy. Of every routed row: indices of
 * top-k and of the permutation in 64 bits; probabilities as selected, sent and sorted. (router.py,
 * TopKRouter; moe_utils.py, topk_routing_with_score_function, permute, sort_chunks_by_idxs) */
enum { ROUTER_EXPERT_BYTES = 4 * 4 + 2, ROUTER_ROW_BYTES = 2 * 8 + 3 * 4 };
/* Padded, permute() keeps no mask and no transposed probabilities, and a second index of each row.
 */
enum { PADDED_EXPERT_BYTES = 3 * 4 + 1, PADDED_ROW_BYTES = 3 * 8 + 3 * 4 };
/* All-gather: of every token and expert logits and softmax; of every gathered row and local expert
 * the mask, its transposed copy and that of the probabilities; of every row at the experts its
 * index and its probability. */
enum { OWN_EXPERT_BYTES = 2 * 4, LOCAL_EXPERT_BYTES = 4 + 2, LOCAL_ROW_BYTES = 8 + 4 };

/* Rows of this rank that one expert takes. */
static uint64_t capacity(const stw_job *job, const stw_block_facts *f, uint64_t rows) {
    const double all = (double)rows * job->run->moe.capacity_factor;
    return (uint64_t)ceil(all / (double)f->experts);
}

static void gather_rows(const stw_job *job, const stw_block_facts *f, stw_megatron_moe *out) {
    const stw_parallel *p = &job->run->parallel;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8, h = f->hidden;
    const uint64_t tokens = stw_megatron_row_tokens(job);
    const uint64_t ranks = stw_times(p->ep, p->etp), all = stw_times(tokens, ranks);
    const uint64_t rows = stw_times(stw_times(out->rows, h), c);
    const uint64_t all_rows = stw_times(stw_times(all, h), c);
    const uint64_t summed = ranks > 1 ? stw_times(stw_times(all, h), 4) : 0;
    out->router = STW_SUM(stw_times(stw_times(tokens, f->experts), OWN_EXPERT_BYTES),
                          stw_times(stw_times(all, f->experts / p->ep), LOCAL_EXPERT_BYTES),
                          stw_times(out->rows, LOCAL_ROW_BYTES),
                          stw_times(stw_times(tokens, f->experts_per_token), 8));
    out->forward = out->backward =
        stw_max_u64(stw_plus(rows, all_rows), stw_plus(all_rows, summed));
    out->gathered = ranks > 1 ? all : 0;
}

stw_megatron_moe stw_megatron_moe_of(const stw_job *job, uint32_t group) {
    const stw_block_facts *f = &job->model->groups[group].facts;
    const stw_parallel *p = &job->run->parallel;
    const stw_megatron_settings s = stw_megatron_settings_of(job->run);
    const uint64_t tokens = stw_megatron_row_tokens(job);
    const uint64_t own = stw_times(tokens, f->experts_per_token);
    stw_megatron_moe out = {.sent = own};
    out.rows = stw_scaled(stw_times(own, p->etp), job->run->moe.imbalance);
    if (job->run->moe.capacity_factor > 0 && f->experts > 0) {
        const uint64_t each = capacity(job, f, own);
        const uint64_t most = stw_times(stw_times(each, f->experts), p->etp);
        out.rows = s.pad_to_capacity ? most : stw_min_u64(out.rows, most);
        out.sent = s.pad_to_capacity ? stw_times(each, f->experts)
                                     : stw_min_u64(own, stw_times(each, f->experts));
    }
    if (job->run->moe.dispatcher == 1) {
        out.sent = 0;
        gather_rows(job, f, &out);
        return out;
    }
    if (stw_megatron_uses_deepep(job)) {
        stw_megatron_deepep_moe(job, group, &out);
        return out;
    }
    const uint64_t expert = s.pad_to_capacity ? PADDED_EXPERT_BYTES : ROUTER_EXPERT_BYTES;
    const uint64_t row = s.pad_to_capacity ? PADDED_ROW_BYTES : ROUTER_ROW_BYTES;
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    out.router = stw_plus(stw_times(stw_times(tokens, f->experts), expert),
                          stw_times(s.pad_to_capacity ? out.sent : own, row));
    out.forward = out.backward = stw_times(3, stw_times(stw_times(out.rows, f->hidden), c));
    return out;
}
