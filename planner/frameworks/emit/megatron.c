/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of Megatron-LM that realise a plan: the inverse of megatron.c. */
#include <string.h>

#include "core/checked.h"
#include "planner/frameworks/emit/emission.h"
#include "planner/frameworks/import/megatron.h"

typedef struct pair {
    const char *flag, *key;
} pair;

/* Written where the value is not `without`. */
static void put_unless(stw_emission *e, const char *flag, const char *value, const char *without) {
    stw_emit_put(e, flag, value != NULL && strcmp(value, without) != 0 ? value : NULL);
}

static void put_layout(stw_emission *e) {
    static const pair counts[] = {
        {"tensor-model-parallel-size", "parallel.tp"},
        {"pipeline-model-parallel-size", "parallel.pp"},
        {"context-parallel-size", "parallel.cp"},
        {"expert-model-parallel-size", "parallel.ep"},
    };
    const bool layout = stw_emit_text(e, "megatron.pipeline_layout") != NULL;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        stw_emit_put(e, counts[i].flag, stw_emit_text(e, counts[i].key));
    stw_emit_put(e, "expert-tensor-parallel-size", stw_emit_text(e, "parallel.etp"));
    stw_emit_put_switch(e, "sequence-parallel", stw_emit_on(e, "parallel.sequence_parallel"));
    stw_emit_put(e, "num-layers-per-virtual-pipeline-stage", NULL);
    put_unless(e, "num-virtual-stages-per-pipeline-rank",
               layout ? NULL : stw_emit_text(e, "parallel.vpp"), "1");
    put_unless(e, "microbatch-group-size-per-virtual-pipeline-stage",
               stw_emit_text(e, "megatron.microbatch_group"), "0");
    stw_emit_put(e, "pipeline-model-parallel-layout", stw_emit_text(e, "megatron.pipeline_layout"));
    put_unless(e, "decoder-first-pipeline-num-layers",
               stw_emit_text(e, "megatron.first_stage_layers"), "0");
    put_unless(e, "decoder-last-pipeline-num-layers",
               stw_emit_text(e, "megatron.last_stage_layers"), "0");
    put_unless(e, "mtp-num-layers", stw_emit_text(e, "megatron.mtp_num_layers"), "0");
}

static void put_batch(stw_emission *e) {
    const stw_run_spec *run = &e->plan->run;
    stw_emit_put_count(e, "seq-length", run->batch.seq_len);
    if (stw_emit_find(e, "decoder-seq-length") != NULL)
        stw_emit_put_count(e, "decoder-seq-length", run->batch.decoder_seq_len);
    stw_emit_put_count(e, "micro-batch-size", run->batch.micro_batch);
    stw_emit_put_count(e, "global-batch-size",
                       stw_times(stw_times(run->batch.micro_batch, run->batch.grad_accumulation),
                                 stw_emit_ranks(e)));
}

/* megatron.c, set_precision: gradients are fp32 with bf16, fp16 with fp16, unless flags differ. */
static void put_precision(stw_emission *e) {
    const bool half = stw_emit_has(e, "precision.params", "fp16");
    const char *grads = stw_emit_text(e, "precision.grads");
    const bool aware = stw_emit_on(e, "megatron.precision_aware");
    stw_emit_put_switch(e, "bf16", stw_emit_has(e, "precision.params", "bf16"));
    stw_emit_put_switch(e, "fp16", half);
    stw_emit_put_switch(e, "accumulate-allreduce-grads-in-fp32",
                        half && stw_emit_has(e, "precision.grads", "fp32"));
    stw_emit_put_switch(e, "grad-reduce-in-bf16",
                        !aware && stw_emit_has(e, "precision.grads", "bf16"));
    put_unless(e, "main-grads-dtype", aware ? grads : NULL, "fp32");
    put_unless(e, "exp-avg-dtype", stw_emit_text(e, "precision.exp_avg"), "fp32");
    put_unless(e, "exp-avg-sq-dtype", stw_emit_text(e, "precision.exp_avg_sq"), "fp32");
}

/* An optimizer other than Adam, and the flags that belong to it alone. */
static void put_kind(stw_emission *e) {
    const bool adam = stw_emit_has(e, "optimizer.kind", "adamw");
    const char *kind = adam ? "adam" : stw_emit_text(e, "optimizer.kind");
    if (!adam || stw_emit_find(e, "optimizer") != NULL) stw_emit_put(e, "optimizer", kind);
    for (size_t i = 0; i < stw_megatron_flags.n; i++) {
        const stw_flag_row *row = &stw_megatron_flags.rows[i];
        if (row->use != STW_FLAG_RUN || row->note == NULL) continue;
        if (adam || strncmp(row->note, "optimizer=", 10) != 0 ||
            !stw_flag_is_one_of(row->note + 10, kind))
            continue;
        if (row->type == STW_FLAG_SWITCH)
            stw_emit_put_switch(e, row->name, stw_emit_on(e, row->key));
        else
            stw_emit_put(e, row->name, stw_emit_text(e, row->key));
    }
}

static void put_optimizer(stw_emission *e) {
    static const pair switches[] = {
        {"use-distributed-optimizer", "megatron.distributed_optimizer"},
        {"overlap-grad-reduce", "megatron.overlap_grad_reduce"},
        {"overlap-param-gather", "megatron.overlap_param_gather"},
        {"use-precision-aware-optimizer", "megatron.precision_aware"},
        {"optimizer-cpu-offload", "megatron.optimizer_cpu_offload"},
        {"overlap-cpu-optimizer-d2h-h2d", "megatron.overlap_d2h_h2d"},
        {"fsdp-double-buffer", "megatron.fsdp_double_buffer"},
        {"account-for-embedding-in-pipeline-split", "megatron.account_for_embedding"},
        {"account-for-loss-in-pipeline-split", "megatron.account_for_loss"},
        {"cross-entropy-loss-fusion", "megatron.cross_entropy_fusion"},
        {"defer-embedding-wgrad-compute", "megatron.defer_embedding_wgrad"},
    };
    const char *fsdp = stw_emit_text(e, "megatron.fsdp");
    put_kind(e);
    const char *clip = stw_emit_text(e, "optimizer.clip_norm");
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++)
        stw_emit_put_switch(e, switches[i].flag, stw_emit_on(e, switches[i].key));
    const char *fraction = stw_emit_text(e, "megatron.optimizer_offload_fraction");
    const bool offloads = fraction != NULL && strcmp(fraction, "0") != 0;
    if (offloads) stw_emit_put(e, "optimizer-cpu-offload", "true");
    stw_emit_put(e, "optimizer-offload-fraction",
                 offloads || stw_emit_on(e, "megatron.optimizer_cpu_offload") ? fraction : NULL);
    stw_emit_put(e, "use-custom-fsdp", NULL);
    stw_emit_put_switch(e, "use-megatron-fsdp", fsdp != NULL);
    stw_emit_put(e, "data-parallel-sharding-strategy", fsdp);
    put_unless(e, "suggested-communication-unit-size",
               stw_emit_text(e, "megatron.fsdp_communication_unit"), "0");
    put_unless(e, "num-distributed-optimizer-instances",
               stw_emit_text(e, "megatron.optimizer_instances"), "1");
    stw_emit_put(e, "clip-grad", clip != NULL ? clip : "0.0");
    stw_emit_put(e, "make-vocab-size-divisible-by", stw_emit_text(e, "megatron.vocab_multiple"));
    put_unless(e, "wgrad-deferral-limit", stw_emit_text(e, "megatron.wgrad_deferral_limit"), "0");
}

static void put_recompute(stw_emission *e) {
    const char *granularity = stw_emit_recompute(e);
    const bool full = strcmp(granularity, "full") == 0;
    const bool some = strcmp(granularity, "selective") == 0;
    const char *modules = stw_emit_list(e, stw_emit_text(e, "recompute.modules"), " ");
    stw_emit_put(e, "recompute-activations", NULL);
    put_unless(e, "recompute-granularity", granularity, "none");
    stw_emit_put(e, "recompute-method", full ? stw_emit_recompute_method(e) : NULL);
    put_unless(e, "recompute-num-layers", full ? stw_emit_recompute_layers(e) : NULL, "0");
    put_unless(e, "recompute-modules", some ? modules : NULL, "");
}

static void put_layers(stw_emission *e) {
    const bool local = stw_emit_has(e, "megatron.transformer_impl", "local");
    const bool eager = stw_emit_has(e, "attention", "eager");
    const bool fp32 = stw_emit_on(e, "megatron.softmax_fp32");
    stw_emit_put(e, "transformer-impl", stw_emit_text(e, "megatron.transformer_impl"));
    stw_emit_put(e, "attention-backend", eager ? (local ? "local" : "unfused") : "flash");
    stw_emit_put(e, "hidden-dropout", stw_emit_text(e, "megatron.hidden_dropout"));
    stw_emit_put_switch(e, "no-gradient-accumulation-fusion",
                        !local && !stw_emit_on(e, "megatron.gradient_accumulation_fusion"));
    /* the default of both is 0.1, also where no masks are kept */
    stw_emit_put(e, "attention-dropout", stw_emit_text(e, "megatron.attention_dropout"));
    if (local && eager) {
        stw_emit_put_switch(e, "no-masked-softmax-fusion", fp32);
        if (fp32) stw_emit_put(e, "attention-softmax-in-fp32", "true");
    }
}

static void put_experts(stw_emission *e) {
    const bool allgather = stw_emit_has(e, "moe.dispatcher", "allgather");
    const char *capacity = stw_emit_text(e, "moe.capacity_factor");
    const bool deepep = stw_emit_has(e, "moe.dispatcher", "deepep");
    stw_emit_put(e, "moe-token-dispatcher-type",
                 deepep      ? "flex"
                 : allgather ? "allgather"
                             : "alltoall");
    stw_emit_put_switch(e, "moe-enable-deepep", deepep);
    stw_emit_put(e, "moe-expert-capacity-factor", capacity);
    stw_emit_put_switch(e, "moe-pad-expert-input-to-capacity",
                        stw_emit_on(e, "megatron.pad_to_capacity"));
    stw_emit_put_switch(e, "moe-shared-expert-overlap",
                        stw_emit_on(e, "megatron.shared_expert_overlap"));
    stw_emit_put_switch(e, "moe-grouped-gemm", stw_emit_on(e, "megatron.grouped_gemm"));
}

void stw_emit_megatron(stw_emission *e) {
    bool experts = false;
    for (uint32_t g = 0; g < e->plan->model->n_groups; g++)
        experts = experts || e->plan->model->groups[g].facts.experts > 0;
    put_layout(e);
    put_batch(e);
    put_precision(e);
    put_optimizer(e);
    put_recompute(e);
    put_layers(e);
    if (experts) put_experts(e);
    if (!experts) stw_emit_put(e, "expert-tensor-parallel-size", NULL);
}

/* Megatron-LM's own; other programs save in their ways. The format of Megatron-FSDP is its own. */
static void put_checkpoints(stw_emission *e) {
    const uint64_t every = e->plan->run.checkpoint.every;
    const bool fsdp = stw_emit_text(e, "megatron.fsdp") != NULL;
    const stw_emit_flag *folder = stw_emit_find(e, "save");
    stw_emit_put(e, "persistent-save-interval", NULL);
    if (every == 0) {
        stw_emit_put(e, "save-interval", NULL);
        stw_emit_put(e, "async-save", NULL);
        if (fsdp) stw_emit_put(e, "ckpt-format", "fsdp_dtensor");
        return;
    }
    if (folder == NULL || folder->value == NULL) stw_emit_put(e, "save", "checkpoints");
    stw_emit_put_count(e, "save-interval", every);
    stw_emit_put(e, "ckpt-format", fsdp ? "fsdp_dtensor" : "torch_dist");
    stw_emit_put_switch(e, "async-save", stw_emit_on(e, "checkpoint.async"));
    if (stw_emit_on(e, "checkpoint.async")) /* import/megatron.c, saves_async */
        stw_emit_put(e, "use-persistent-ckpt-worker", "true");
    stw_emit_put_switch(e, "no-save-optim", !e->plan->run.checkpoint.optimizer);
}

/* gpt_layer_specs.py, get_gpt_layer_local_spec: its attention keeps scores, whatever the backend.
 */
static void check_attention(stw_emission *e) {
    if (e->status == STW_STATUS_OK && stw_emit_has(e, "megatron.transformer_impl", "local") &&
        !stw_emit_has(e, "attention", "eager"))
        e->status = stw_fail(
            e->err, STW_STATUS_NOT_BUILT_IN, "--emit megatron",
            "megatron.transformer_impl: local has no flash attention in Megatron-LM; nothing is "
            "written. Use --set megatron.transformer_impl=transformer_engine, or --set "
            "attention=eager");
}

void stw_emit_megatron_lm(stw_emission *e) {
    e->allocator = stw_emit_allocator(e);
    if (e->import == NULL) stw_emit_megatron_model(e);
    check_attention(e);
    /* without it reading takes the length of sequences, which may have changed */
    if (stw_emit_find(e, "max-position-embeddings") == NULL && e->plan->model->max_positions > 0 &&
        e->plan->model->max_positions != e->plan->run.batch.seq_len)
        stw_emit_put_count(e, "max-position-embeddings", e->plan->model->max_positions);
    stw_emit_megatron(e);
    /* arguments.py, validate_args: asserted; reading back tells where the plan has it not */
    const stw_emit_flag *offload = stw_emit_find(e, "optimizer-cpu-offload");
    if (offload != NULL && offload->value != NULL && strcmp(offload->value, "true") == 0)
        stw_emit_put(e, "use-precision-aware-optimizer", "true");
    put_checkpoints(e);
}
