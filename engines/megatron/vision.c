/* SPDX-License-Identifier: Apache-2.0 */
/* Sources (NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/models/qwen_vl):
 * - The tower is built where the language model's embedding is, on the first stage; every rank of a
 *   CP group runs all images (vision_dp_when_cp is off by default).
 * - Qwen3-VL and Qwen3.5 (modelling_qwen3_vl/model.py, vision_model.py): blocks of Megatron Core
 *   with TransformerEngine layers, cut by TP without sequence parallelism and recomputed as the
 *   language model's are. Patch and position embeddings are torch's modules, whole on every rank;
 *   mergers are a column-parallel and a row-parallel product.
 *   A block saves its two residuals and the outputs of its two norms with their fp32 means and
 *   roots; query, key and value in one tensor; query and key with positions, and fp32 cosines and
 *   sines of both (rope.py, in fp32); attention's output; the input and the output of GELU.
 * - Qwen2.5-VL (modeling_qwen25_vl.py): the tower of transformers, whole on every rank of a TP
 *   group and never recomputed. Its RMSNorm saves the fp32 input and the normalised one
 *   (qwen2_5_vl/modeling_qwen2_5_vl.py, Qwen2RMSNorm); its MLP is gated.
 * - A convolution whose stride is its kernel saves the patches themselves.
 * Attention inside images is not counted in the FLOP: the images' sizes are not known. */
#include "engines/megatron/vision.h"

#include <string.h>

#include "core/checked.h"
#include "engines/megatron/megatron.h"
#include "plan/job/images.h"

static bool is_of(const stw_job *job, const char *family) {
    return strncmp(job->model->model_type, family, strlen(family)) == 0;
}

bool stw_megatron_cuts_vision(const stw_job *job) {
    return is_of(job, "qwen3_vl") || is_of(job, "qwen3_5");
}

bool stw_megatron_knows_vision(const stw_job *job) {
    return stw_megatron_cuts_vision(job) || is_of(job, "qwen2_5_vl");
}

static bool is_vision(const stw_job *job, uint32_t block) {
    return job->model->groups[job->model->blocks[block].group].facts.vision;
}

bool stw_megatron_is_whole_vision(const stw_job *job, const stw_tensor *tensor) {
    if (!is_vision(job, tensor->block)) return false;
    return !stw_megatron_cuts_vision(job) || tensor->use.weight == STW_WEIGHT_PATCH ||
           tensor->use.weight == STW_WEIGHT_POSITION;
}

/* ---- bytes ---- */

/* Of one patch in a block, the block's input included. */
static uint64_t block_row(const stw_job *job, const stw_block_facts *f, uint64_t tp) {
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t width = stw_times(f->q_heads, f->qk_dim) / tp,
                   lse = stw_times(4, f->q_heads) / tp;
    if (!stw_megatron_cuts_vision(job)) {
        uint64_t norms = stw_times(2, stw_plus(stw_times(4 + 2 * c, f->hidden), 4));
        return STW_SUM(norms, stw_times(c, stw_times(6, width)), stw_times(stw_times(4, c), f->ffn),
                       lse);
    }
    uint64_t norms = stw_plus(stw_times(stw_times(4, c), f->hidden), 4 * 4);
    return STW_SUM(norms, stw_times(c, stw_times(6, width)), stw_times(4 * 4, f->qk_dim),
                   stw_times(stw_times(2, c), f->ffn / tp), lse);
}

/* A merger: input and output of its norm, input and output of its GELU. */
static uint64_t merger_row(const stw_job *job, const stw_block_facts *f, uint64_t tp) {
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    uint64_t in = stw_megatron_cuts_vision(job) ? c : 4 + c; /* fp32 copy; normalised */
    return stw_plus(stw_times(in + c, f->hidden), stw_times(stw_times(2, c), f->hidden) / tp);
}

static bool is_recomputed(const stw_job *job, uint32_t number) {
    const stw_run_spec *run = job->run;
    if (run->recompute.granularity != 1 || !stw_megatron_cuts_vision(job)) return false;
    return run->recompute.method != 2 || number < run->recompute.num_layers;
}

/* Blocks that are recomputed together keep the input of the first one. */
static bool keeps_input(const stw_job *job, uint32_t number) {
    const stw_run_spec *run = job->run;
    uint32_t together =
        run->recompute.method == 1 && run->recompute.num_layers > 0 ? run->recompute.num_layers : 1;
    return number % together == 0;
}

static void add_layer(const stw_job *job, const stw_block_facts *f, uint64_t patches,
                      uint32_t number, stw_megatron_tower *out) {
    const uint64_t c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t tp = stw_megatron_cuts_vision(job) ? job->run->parallel.tp : 1;
    const uint64_t input = stw_times(stw_times(patches, f->hidden), c);
    uint64_t all = stw_times(patches, block_row(job, f, tp));
    if (is_recomputed(job, number)) {
        if (keeps_input(job, number)) out->kept = stw_plus(out->kept, input);
        out->again = keeps_input(job, number) ? all : stw_plus(out->again, all);
    } else {
        out->kept = stw_plus(out->kept, all);
    }
    if (tp > 1) out->reduced = STW_SUM(out->reduced, input, input);
    uint64_t grads = stw_times(c, stw_times(stw_plus(patches, f->hidden), f->ffn / tp));
    out->backward = stw_max_u64(out->backward, stw_plus(input, grads));
}

stw_megatron_tower stw_megatron_tower_of(const stw_job *job) {
    const stw_model *model = job->model;
    const uint64_t patches = stw_job_patches(job),
                   c = stw_dtype_bits(job->run->precision.compute) / 8;
    const uint64_t tp = stw_megatron_cuts_vision(job) ? job->run->parallel.tp : 1;
    stw_megatron_tower out = {0};
    uint32_t layers = 0;
    for (uint32_t b = 0; b < model->n_blocks && patches > 0; b++) {
        const stw_block *block = &model->blocks[b];
        const stw_block_facts *f = &model->groups[block->group].facts;
        const stw_tensor *first = &model->tensors[block->first_tensor];
        if (!f->vision) continue;
        if (f->transformer)
            add_layer(job, f, patches, layers++, &out);
        else if (first->rank > 2) /* patch embedding */
            out.kept = stw_plus(out.kept,
                                stw_times(stw_times(patches, c), first->numel / first->shape[0]));
        else
            out.kept = stw_plus(out.kept, stw_times(patches, merger_row(job, f, tp)));
        uint64_t rows =
            f->transformer || first->rank > 2 ? patches : patches / stw_model_merged_patches(model);
        out.rows = (double)patches;
        out.columns = (double)stw_max_u64(out.columns > 0 ? (uint64_t)out.columns : 0, f->hidden);
        out.flops += 2.0 * (double)rows * (double)block->params / (double)tp;
    }
    return out;
}
