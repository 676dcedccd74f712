/* SPDX-License-Identifier: Apache-2.0 */
/* areal/engine/megatron_utils/pipeline_parallel.py at 1.0.4, configure_pipeline_layer_splits: the
 * stage with the most parameters of a rank has as few as can be. The embedding counts for the first
 * stage, the head for the last; only these two may have no layer. Parameters are counted as there:
 * the output projection of attention is square, norms of query and key are left out. */
#include "planner/frameworks/import/areal_stages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double mlp_params(const stw_block_facts *f, uint64_t width) {
    return (f->gated ? 3.0 : 2.0) * (double)f->hidden * (double)width;
}

static double layer_params(const stw_block_facts *f, uint32_t ep) {
    const double hidden = (double)f->hidden, dim = (double)f->qk_dim;
    const double attention =
        hidden * dim * ((double)f->q_heads + 2 * (double)f->kv_heads) + hidden * hidden;
    const double rest = attention + 2 * hidden;
    if (f->experts == 0) return rest + mlp_params(f, f->ffn);
    const double local = (double)((f->experts + ep - 1) / ep);
    return rest + hidden * (double)f->experts + local * mlp_params(f, f->expert_ffn) +
           (f->shared_ffn > 0 ? mlp_params(f, f->shared_ffn) : 0);
}

/* _compute_stage_layer_lengths. Of equal loads the first counts.
 * @param sums [n + 1], parameters of the layers before each
 * @param best scratch, [stages + 1][n + 1]; from: scratch of the same shape */
static void cut(const double *sums, uint32_t n, double ends, uint32_t stages, double *best,
                uint32_t *from, uint32_t *lengths) {
    const uint32_t row = n + 1;
    for (uint32_t i = 0; i < (stages + 1) * row; i++) best[i] = INFINITY;
    best[0] = 0;
    for (uint32_t s = 1; s <= stages; s++) {
        const bool outer = s == 1 || s == stages;
        for (uint32_t end = 0; end <= n; end++)
            for (uint32_t start = 0; start <= end; start++) {
                const double before = best[(s - 1) * row + start];
                if (isinf(before) || (!outer && start == end)) continue;
                const double load = (outer ? ends : 0) + sums[end] - sums[start];
                const double most = before > load ? before : load;
                if (most >= best[s * row + end]) continue;
                best[s * row + end] = most;
                from[s * row + end] = start;
            }
    }
    for (uint32_t s = stages, at = n; s > 0; s--) {
        lengths[s - 1] = isinf(best[s * row + at]) ? 0 : at - from[s * row + at];
        at = isinf(best[s * row + at]) ? 0 : from[s * row + at];
    }
}

/* "Et*7|t*8|t*7L". @return NULL: out of memory */
static const char *layout_of(stw_reading *r, const uint32_t *lengths, uint32_t stages) {
    const char *text = "E";
    for (uint32_t s = 0; s < stages && text != NULL; s++) {
        const char *bar = s > 0 ? "|" : "";
        text = lengths[s] > 0 ? stw_pool_printf(r->out->pool, "%s%st*%u", text, bar, lengths[s])
                              : stw_pool_printf(r->out->pool, "%s%s", text, bar);
    }
    return text != NULL ? stw_pool_printf(r->out->pool, "%sL", text) : NULL;
}

void stw_areal_set_stages(stw_reading *r, const stw_model *model, uint32_t stages, uint32_t ep) {
    uint32_t n = 0;
    if (stages < 2) return;
    double *sums = stw_pool_array(r->out->pool, (size_t)model->n_blocks + 1, sizeof *sums);
    uint32_t *lengths = stw_pool_array(r->out->pool, stages, sizeof *lengths);
    for (uint32_t i = 0; i < model->n_blocks && sums != NULL; i++) {
        const stw_block_facts *f = &model->groups[model->blocks[i].group].facts;
        if (!f->transformer || f->vision) continue;
        sums[n + 1] = sums[n] + layer_params(f, ep > 0 ? ep : 1);
        n++;
    }
    const size_t cells = ((size_t)stages + 1) * ((size_t)n + 1);
    double *best = stw_pool_array(r->out->pool, cells, sizeof *best);
    uint32_t *from = stw_pool_array(r->out->pool, cells, sizeof *from);
    if (sums == NULL || lengths == NULL || best == NULL || from == NULL) {
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_NO_MEMORY, r->out->path, "out of memory"));
        return;
    }
    if (n == 0) return;
    cut(sums, n, (double)model->vocab * (double)model->hidden, stages, best, from, lengths);
    bool equal = true;
    for (uint32_t s = 1; s < stages; s++) equal = equal && lengths[s] == lengths[0];
    const char *layout = equal ? NULL : layout_of(r, lengths, stages);
    if (layout != NULL) stw_reading_set(r, "megatron.pipeline_layout", layout);
}
