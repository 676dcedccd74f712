/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of torch that realise a plan of engine fsdp2 (torch.distributed.fsdp, 2.6 or later). */
#include <string.h>

#include "planner/frameworks/emit/emission.h"

static const char *dtype(stw_emission *e, const char *key) {
    const char *text = stw_emit_text(e, key);
    if (text == NULL || strcmp(text, "fp32") == 0) return "torch.float32";
    return strcmp(text, "fp16") == 0 ? "torch.float16" : "torch.bfloat16";
}

static void write_mesh(stw_emission *e, stw_text *out) {
    const stw_parallel *p = &e->plan->run.parallel;
    const uint64_t ranks = stw_emit_ranks(e), copies = p->dp_replicate > 0 ? p->dp_replicate : 1;
    if (copies > 1)
        stw_text_printf(out, "mesh: init_device_mesh(\"cuda\", (%llu, %llu))\n",
                        (unsigned long long)copies, (unsigned long long)(ranks * p->cp / copies));
    else
        stw_text_printf(out, "mesh: init_device_mesh(\"cuda\", (%llu,))\n",
                        (unsigned long long)(ranks * p->cp));
    if (p->cp > 1) stw_text_printf(out, "context parallel: %u ranks\n", p->cp);
    if (p->ep > 1) stw_text_printf(out, "expert parallel: %u ranks\n", p->ep);
}

static void write_wrapping(stw_emission *e, stw_text *out) {
    const bool policy = stw_emit_on(e, "fsdp.offload_policy");
    stw_text_printf(out, "parameters are created in: %s\n", dtype(e, "precision.params"));
    stw_text_printf(out, "units: every layer%s, then the model\n",
                    stw_emit_on(e, "fsdp.wrap_embeddings") ? ", the embedding" : "");
    stw_text_printf(
        out, "fully_shard: mp_policy=MixedPrecisionPolicy(param_dtype=%s, reduce_dtype=%s)\n",
        dtype(e, "precision.compute"), dtype(e, "precision.reduce"));
    const bool node = stw_emit_on(e, "fsdp.reshard_to_node");
    stw_text_printf(out, "fully_shard: reshard_after_forward=");
    if (node)
        stw_text_printf(out, "%u\n", e->plan->cluster.gpus);
    else
        stw_text_printf(out, stw_emit_on(e, "fsdp.reshard_after_forward") ? "True\n" : "False\n");
    if (policy) stw_text_printf(out, "fully_shard: offload_policy=CPUOffloadPolicy()\n");
    if (!stw_emit_on(e, "fsdp.reshard_after_backward"))
        stw_text_printf(out, "set_reshard_after_backward(False)\n");
    if (!stw_emit_on(e, "fsdp.sync_each_micro_batch"))
        stw_text_printf(out, "set_requires_gradient_sync(False) before the last micro batch\n");
}

void stw_emit_fsdp2(stw_emission *e, stw_text *out) {
    const stw_run_spec *run = &e->plan->run;
    const char *clip = stw_emit_text(e, "optimizer.clip_norm");
    const char *kind = stw_emit_text(e, "optimizer.implementation");
    static const char *const torchs[] = {"fused", "foreach"};
    write_mesh(e, out);
    write_wrapping(e, out);
    const char *recompute = stw_emit_recompute(e);
    stw_text_printf(out, "activation checkpointing: %s\n",
                    strcmp(recompute, "full") == 0 ? "every layer" : recompute);
    for (size_t i = 0; i < 2; i++)
        if (kind != NULL && strcmp(kind, torchs[i]) == 0)
            stw_text_printf(out, "optimizer: torch.optim.AdamW(%s=True)\n", torchs[i]);
    if (kind != NULL && strcmp(kind, "fused") != 0 && strcmp(kind, "foreach") != 0)
        stw_text_printf(out, "optimizer: %s; torch has no setting for it\n", kind);
    if (clip != NULL) stw_text_printf(out, "clip_grad_norm_: max_norm=%s\n", clip);
    stw_text_printf(out, "micro batch: %llu sequences of %llu tokens, %llu times\n",
                    (unsigned long long)run->batch.micro_batch,
                    (unsigned long long)run->batch.seq_len,
                    (unsigned long long)run->batch.grad_accumulation);
    if (stw_emit_on(e, "allocator.expandable_segments"))
        stw_text_printf(out, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n");
}
