/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults and rules are those of megatron/training/arguments.py (validate_args,
 * core_transformer_config_from_args) unless a comment names another source. */
#include "planner/frameworks/import/megatron.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "engines/megatron/stages.h"
#include "plan/spec/registry.h"
#include "planner/frameworks/import/launch.h"

enum { MOST_LAYERS = 65536 };

/* ---- values ---- */

static uint64_t required(stw_reading *r, const char *name) {
    uint64_t value = stw_reading_count(r, name, 0);
    if (value > 0) return value;
    stw_reading_fail(r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                                 "--%s: required, and at least 1: without it there is no GPT model",
                                 name));
    return 1;
}

/* ---- the model ---- */

/* T5 (pretrain_t5.py): layers of the encoder, 0 without one. */
static uint64_t encoder_layers(stw_reading *r) {
    return stw_reading_count(r, "encoder-num-layers", 0);
}

/* Without a known tokenizer the one of --vocab-file and --merge-file is meant, or T5's own
 * (pretrain_t5.py, args_defaults). The table of embeddings is padded to a multiple of
 * make-vocab-size-divisible-by x tp by the engine (tokenizer/utils, vocab_size_with_padding). */
static uint64_t vocabulary(stw_reading *r) {
    static const struct {
        const char *tokenizer;
        uint64_t tokens;
    } known[] = {{"GPT2BPETokenizer", 50257},
                 {"Llama2Tokenizer", 32000},
                 {"BertWordPieceLowerCase", 30522},
                 {"BertWordPieceCase", 28996}};
    const char *type = stw_reading_text(r, "tokenizer-type",
                                        encoder_layers(r) > 0 ? "BertWordPieceLowerCase" : NULL);
    const uint64_t padded = stw_reading_count(r, "padded-vocab-size", 0);
    uint64_t given = stw_reading_count(r, "vocab-size", 0),
             extra = stw_reading_count(r, "vocab-extra-ids", 0);
    const bool null_tokenizer = type != NULL && strcmp(type, "NullTokenizer") == 0;
    if (padded > 0) return padded;
    if (given > 0) return null_tokenizer ? given + 1 : given; /* one more ends documents */
    for (size_t i = 0; type != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].tokenizer, type) == 0) return known[i].tokens + extra;
    if (type != NULL) {
        stw_reading_fail(
            r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                        "--vocab-size: required with --tokenizer-type %.60s, whose size is in its "
                        "files",
                        type));
        return 1;
    }
    stw_reading_assume(r, "vocab-size", "50257", "GPT2BPETokenizer");
    return known[0].tokens;
}

/* Layers with experts: every freq-th, or a list such as ([0]*3+[1]*13). */
static void layers_with_experts(stw_reading *r, uint64_t layers) {
    const stw_flag *flag = stw_flags_find(&r->flags, "moe-layer-freq");
    uint64_t freq = 1, n = 0;
    const char *text = flag != NULL ? flag->value : "1";
    stw_json_begin_array(r->json, "moe_layers");
    if (stw_reading_parse_count(text, &freq) && freq > 0) {
        for (; n < layers; n++) stw_json_u64(r->json, NULL, n % freq == 0);
    } else {
        while (*text != '\0' && n <= layers) { /* [value, ...] or [value]*times */
            char *end;
            text += strspn(text, "+ ()[,]");
            if (*text == '\0') break;
            uint64_t value = strtoull(text, &end, 10), times = 1;
            if (end == text || value > 1) break;
            text = end + strspn(end, " ]");
            if (*text == '*') {
                times = strtoull(text + 1, &end, 10);
                text = end;
            }
            for (uint64_t i = 0; i < times && n <= layers; i++, n++)
                stw_json_u64(r->json, NULL, value);
        }
    }
    stw_json_end(r->json);
    if (n != layers || *text == '*')
        stw_reading_fail(r, flag == NULL
                                ? STW_STATUS_BUG
                                : stw_flag_fail(&r->flags, flag,
                                                "a number of layers, or a list such as "
                                                "([0]*3+[1]*13) with one item for each layer",
                                                r->err));
}

static void write_experts(stw_reading *r, uint64_t layers, uint64_t ffn) {
    uint64_t experts = stw_reading_count(r, "num-experts", 0);
    stw_json_u64(r->json, "num_experts", experts);
    if (experts == 0) return;
    stw_json_u64(r->json, "moe_ffn_hidden_size", stw_reading_count(r, "moe-ffn-hidden-size", ffn));
    layers_with_experts(r, layers);
}

/* A file may name the groups alone: --group-query-attention is then meant, too. */
static uint64_t query_groups(stw_reading *r, uint64_t heads) {
    const stw_flag *flag = stw_flags_find(&r->flags, "group-query-attention");
    bool grouped = stw_reading_is_set(r, "group-query-attention");
    uint64_t groups = stw_reading_count(r, "num-query-groups", 1);
    if (flag == NULL && stw_flags_find(&r->flags, "num-query-groups") != NULL) {
        stw_reading_assume(r, "group-query-attention", "true",
                           "num-query-groups has no effect without it");
        grouped = true;
    }
    return grouped ? groups : heads;
}

/* Layers of GPT, or of T5's decoder. */
static uint64_t decoder_layers(stw_reading *r) {
    const uint64_t encoder = encoder_layers(r);
    return encoder > 0 ? stw_reading_count(r, "decoder-num-layers", encoder)
                       : required(r, "num-layers");
}

static uint64_t source_length(stw_reading *r) {
    return stw_reading_count(r, "seq-length", stw_reading_count(r, "encoder-seq-length", 0));
}

static void check_encoder(stw_reading *r) {
    static const char *const only[] = {"num-experts", "multi-latent-attention",
                                       "group-query-attention", "num-query-groups",
                                       "num-layers-per-virtual-pipeline-stage"};
    const stw_flag *positions = stw_flags_find(&r->flags, "position-embedding-type");
    if (positions != NULL && strcmp(positions->value, "relative") == 0)
        stw_reading_fail(
            r, stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, positions->line, 1,
                           "--position-embedding-type relative: not implemented: use rope or "
                           "learned_absolute"));
    for (size_t i = 0; encoder_layers(r) > 0 && i < sizeof only / sizeof only[0]; i++) {
        const stw_flag *flag = stw_flags_find(&r->flags, only[i]);
        if (flag != NULL && !stw_reading_denies(flag->value))
            stw_reading_fail(r, stw_flag_fail(&r->flags, flag,
                                              "no such flag beside --encoder-num-layers", r->err));
    }
    if (encoder_layers(r) > 0) (void)required(r, "decoder-seq-length");
}

static void write_model(stw_reading *r) {
    const uint64_t layers = decoder_layers(r), hidden = required(r, "hidden-size");
    const uint64_t heads = required(r, "num-attention-heads");
    const bool swiglu = stw_reading_is_set(r, "swiglu");
    uint64_t ffn = stw_times(hidden, swiglu ? 8 : 4);
    if (swiglu) ffn = stw_times(ffn / 3 / 64, 64);
    ffn = stw_reading_count(r, "ffn-hidden-size", ffn);
    check_encoder(r);
    if (stw_plus(layers, encoder_layers(r)) > MOST_LAYERS)
        stw_reading_fail(r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                                     "--num-layers: found %llu, expected at most %d",
                                     (unsigned long long)stw_plus(layers, encoder_layers(r)),
                                     MOST_LAYERS));
    if (r->status != STW_STATUS_OK) return;
    stw_json_u64(r->json, "encoder_layers", encoder_layers(r));
    stw_json_u64(r->json, "num_layers", layers);
    stw_json_u64(r->json, "hidden_size", hidden);
    stw_json_u64(r->json, "ffn_hidden_size", ffn);
    stw_json_u64(r->json, "num_attention_heads", heads);
    stw_json_u64(r->json, "num_query_groups", query_groups(r, heads));
    stw_json_u64(r->json, "kv_channels", stw_reading_count(r, "kv-channels", hidden / heads));
    stw_json_u64(r->json, "vocab_size", vocabulary(r));
    const uint64_t positions = stw_reading_count(r, "max-position-embeddings", source_length(r));
    if (positions > 0) stw_json_u64(r->json, "max_position_embeddings", positions);
    stw_json_string(r->json, "position_embedding_type",
                    stw_reading_is_set(r, "use-rotary-position-embeddings")
                        ? "rope"
                        : stw_reading_text(r, "position-embedding-type", "learned_absolute"));
    stw_json_string(r->json, "normalization", stw_reading_text(r, "normalization", "LayerNorm"));
    stw_json_bool(r->json, "swiglu", swiglu);
    stw_json_bool(r->json, "add_bias_linear", !stw_reading_is_set(r, "disable-bias-linear"));
    stw_json_bool(r->json, "tied", !stw_reading_is_set(r, "untie-embeddings-and-output-weights"));
    stw_json_bool(r->json, "multi_latent_attention",
                  stw_reading_is_set(r, "multi-latent-attention"));
    stw_json_string(r->json, "torch_dtype", stw_reading_is_set(r, "fp16") ? "float16" : "bfloat16");
    write_experts(r, layers, ffn);
}

/* ---- the run ---- */

static void set_precision(stw_reading *r) {
    const stw_flag *bf16 = stw_flags_find(&r->flags, "bf16");
    if (stw_reading_is_set(r, "bf16") && stw_reading_is_set(r, "fp16"))
        stw_reading_fail(r, stw_flag_fail(&r->flags, bf16, "no --bf16 beside --fp16", r->err));
    const bool half = stw_reading_is_set(r, "bf16") || stw_reading_is_set(r, "fp16");
    const char *type = stw_reading_is_set(r, "fp16") ? "fp16" : "bf16", *grads = "fp32";
    stw_reading_set(r, "precision.params", half ? type : "fp32");
    stw_reading_set(r, "precision.compute", half ? type : "fp32");
    stw_reading_set(r, "precision.master", half ? "fp32" : "none");
    /* with bf16 gradients are accumulated in fp32 unless a flag says otherwise */
    if (stw_reading_is_set(r, "fp16") &&
        !stw_reading_is_set(r, "accumulate-allreduce-grads-in-fp32"))
        grads = "fp16";
    if (stw_reading_is_set(r, "grad-reduce-in-bf16")) grads = "bf16";
    grads = stw_reading_text(r, "main-grads-dtype", grads);
    stw_reading_set(r, "precision.grads", grads);
    stw_reading_set(r, "precision.reduce", grads);
    stw_reading_set(r, "precision.exp_avg", stw_reading_text(r, "exp-avg-dtype", "fp32"));
    stw_reading_set(r, "precision.exp_avg_sq", stw_reading_text(r, "exp-avg-sq-dtype", "fp32"));
}

/* Without reductions nothing overlaps with them. */
static const char *const alone[] = {"megatron.overlap_grad_reduce=false",
                                    "megatron.overlap_param_gather=false", NULL};

static const char *const single[] = {"megatron.distributed_optimizer=true", NULL};

/* --use-custom-fsdp is an older name. @return are parameters cut, too? */
static bool set_fsdp(stw_reading *r) {
    const stw_flag *flag = stw_flags_find(&r->flags, "use-megatron-fsdp");
    if (flag == NULL) flag = stw_flags_find(&r->flags, "use-custom-fsdp");
    if (!stw_reading_is_set(r, "use-megatron-fsdp") && !stw_reading_is_set(r, "use-custom-fsdp"))
        return false;
    const char *strategy = stw_reading_text(r, "data-parallel-sharding-strategy", "no_shard");
    if (strcmp(strategy, "no_shard") == 0)
        stw_reading_fail(
            r, stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, flag->line, 1,
                           "--data-parallel-sharding-strategy no_shard is not implemented; use "
                           "optim, optim_grads or optim_grads_params"));
    else
        stw_reading_set(r, "megatron.fsdp", strategy);
    return strcmp(strategy, "optim_grads_params") == 0;
}

static bool was_set(const stw_reading *r, const char *setting) {
    for (size_t i = 0; i < r->out->n_settings; i++)
        if (strcmp(r->out->settings[i], setting) == 0) return true;
    return false;
}

/* optimizer_config.py, __post_init__. The plan's bytes follow from the optimizer only where state
 * is offloaded, cut by Megatron-FSDP or of dtypes of its own. */
static void set_awareness(stw_reading *r, bool offloads, bool distributed) {
    const stw_flag *flag = stw_flags_find(&r->flags, "use-precision-aware-optimizer");
    if (!stw_reading_is_set(r, "use-precision-aware-optimizer")) return;
    const bool fsdp =
        stw_reading_is_set(r, "use-megatron-fsdp") || stw_reading_is_set(r, "use-custom-fsdp");
    const bool matters = offloads || fsdp || !was_set(r, "precision.grads=fp32") ||
                         !was_set(r, "precision.exp_avg=fp32") ||
                         !was_set(r, "precision.exp_avg_sq=fp32");
    if (!distributed && !fsdp)
        stw_reading_fail(
            r, stw_flag_fail(&r->flags, flag, "false, or --use-distributed-optimizer", r->err));
    stw_reading_set_switch(r, "megatron.precision_aware", matters);
    if (!offloads && stw_reading_is_set(r, "bf16"))
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, flag->name, "remainders",
                         "planned with whole fp32 main parameters; TransformerEngine 2.1 and later "
                         "keep their lower 16 bits alone");
}

/* An older name of muon with --use-distributed-optimizer (megatron/training/arguments.py). */
static bool is_dist_muon(stw_reading *r) {
    return strcmp(stw_reading_text(r, "optimizer", "adam"), "dist_muon") == 0;
}

/* Names are those of optimizer.kind, but for Adam's, whose weight decay is AdamW's. */
static void set_kind(stw_reading *r) {
    static const char key[] = "optimizer.kind";
    const char *name = is_dist_muon(r) ? "muon" : stw_reading_text(r, "optimizer", "adam");
    const stw_spec_row *row = stw_spec_find(stw_run_spec_table(), key, strlen(key));
    const stw_spec_word *word = row != NULL ? row->words : NULL;
    if (strcmp(name, "adam") == 0) return;
    while (word != NULL && word->word != NULL && strcmp(word->word, name) != 0) word++;
    if (word == NULL || word->word == NULL || strcmp(name, row->fallback) == 0)
        stw_reading_refuse(r, "optimizer",
                           "use adam, or another optimizer of `stowage keys "
                           "optimizer.kind`");
    else if (stw_reading_is_set(r, "optimizer-cpu-offload"))
        stw_reading_refuse(r, "optimizer-cpu-offload", "use it with adam alone");
    else
        stw_reading_set(r, key, name);
}

static void set_optimizer(stw_reading *r) {
    set_kind(r);
    const bool overlapped = set_fsdp(r);
    const bool offloads = stw_reading_is_set(r, "optimizer-cpu-offload");
    const bool distributed = stw_reading_is_set(r, "use-distributed-optimizer") || is_dist_muon(r);
    stw_reading_set_switch(r, "megatron.distributed_optimizer", distributed);
    stw_reading_set_switch(r, "megatron.optimizer_cpu_offload", offloads && distributed);
    stw_reading_set_switch(r, "megatron.overlap_param_gather",
                           distributed && !overlapped &&
                               stw_reading_is_set(r, "overlap-param-gather"));
    stw_reading_set(r, "megatron.optimizer_offload_fraction",
                    offloads && distributed ? stw_reading_text(r, "optimizer-offload-fraction", "1")
                                            : "0");
    set_awareness(r, offloads && distributed, distributed);
    /* a padded size is taken as it is */
    if (stw_reading_count(r, "padded-vocab-size", 0) == 0)
        stw_reading_set_count(r, "megatron.vocab_multiple",
                              stw_reading_count(r, "make-vocab-size-divisible-by", 128));
    else
        stw_reading_set_count(r, "megatron.vocab_multiple", 1);
    stw_reading_set(r, "optimizer.implementation", "fused");
}

/* arguments.py, validate_args: a layout says how many chunks all stages have. Tests escape it for
 * the shell. */
static uint64_t follow_layout(stw_reading *r, uint64_t pp) {
    const stw_flag *flag = stw_flags_find(&r->flags, "pipeline-model-parallel-layout");
    const char *expected;
    stw_megatron_chunk *chunks;
    uint32_t n = 0;
    char *layout = flag != NULL ? stw_pool_string(r->out->pool, flag->value) : NULL, *end = layout;
    if (layout == NULL) return 0;
    for (const char *c = layout; *c != '\0'; c++)
        if (*c != '\\') *end++ = *c;
    *end = '\0';
    if (!stw_megatron_read_layout(layout, r->out->pool, &chunks, &n, &expected))
        stw_reading_fail(r, stw_flag_fail(&r->flags, flag, expected, r->err));
    else if (pp == 0 || n % pp != 0)
        stw_reading_fail(
            r, stw_flag_fail(&r->flags, flag, "a multiple of the pipeline stages", r->err));
    stw_reading_set(r, "megatron.pipeline_layout", layout);
    return pp > 0 ? n / pp : 1;
}

static void set_layout(stw_reading *r) {
    const uint64_t tp = stw_reading_count(r, "tensor-model-parallel-size", 1);
    const uint64_t pp = stw_reading_count(r, "pipeline-model-parallel-size", 1);
    const uint64_t layers = stw_reading_count(r, "num-layers", 1) +
                            stw_reading_is_set(r, "account-for-embedding-in-pipeline-split") +
                            stw_reading_is_set(r, "account-for-loss-in-pipeline-split");
    uint64_t each = stw_reading_count(r, "num-layers-per-virtual-pipeline-stage", 0);
    uint64_t chunks = stw_reading_count(r, "num-virtual-stages-per-pipeline-rank", 1);
    const uint64_t of_layout = follow_layout(r, pp);
    if (of_layout > 0) {
        chunks = of_layout;
    } else if (each > 0 && pp > 1) {
        const stw_flag *flag = stw_flags_find(&r->flags, "num-layers-per-virtual-pipeline-stage");
        if (layers % (pp * each) != 0)
            stw_reading_fail(r,
                             stw_flag_fail(&r->flags, flag,
                                           "a divisor of the layers of a pipeline stage", r->err));
        chunks = layers / (pp * each);
    }
    if (pp == 1) chunks = 1;
    stw_reading_set_count(r, "parallel.vpp", chunks);
    if (chunks > 1)
        stw_reading_set_count(
            r, "megatron.microbatch_group",
            stw_reading_count(r, "microbatch-group-size-per-virtual-pipeline-stage", 0));
    /* validate_args: the experts' tensor parallelism is that of the rest unless it is given */
    if (stw_reading_count(r, "num-experts", 0) > 0)
        stw_reading_set_count(r, "parallel.etp",
                              stw_reading_count(r, "expert-tensor-parallel-size", tp));
    stw_reading_set_switch(r, "parallel.sequence_parallel",
                           stw_reading_is_set(r, "sequence-parallel") && tp > 1);
}

/* The flex dispatcher of one rank of experts, or with a part of each expert, is not planned. */
static void set_dispatcher(stw_reading *r) {
    const char *type = stw_reading_text(r, "moe-token-dispatcher-type", "allgather");
    const char *backend = stw_reading_text(r, "moe-flex-dispatcher-backend", "deepep");
    const uint64_t ep = stw_reading_count(r, "expert-model-parallel-size", 1);
    const uint64_t tp = stw_reading_count(r, "tensor-model-parallel-size", 1);
    const bool whole = ep > 1 && stw_reading_count(r, "expert-tensor-parallel-size", tp) == 1;
    if (strcmp(type, "allgather") == 0) stw_reading_set(r, "moe.dispatcher", "allgather");
    if (strcmp(type, "flex") != 0 || strcmp(backend, "deepep") != 0) return;
    if (whole)
        stw_reading_set(r, "moe.dispatcher", "deepep");
    else
        stw_reading_assume(r, "moe-token-dispatcher-type", "alltoall",
                           "flex is planned with expert-model-parallel-size above 1 and "
                           "expert-tensor-parallel-size 1");
}

static void set_experts(stw_reading *r) {
    const char *capacity = stw_reading_text(r, "moe-expert-capacity-factor", "-1");
    const bool limited = strtod(capacity, NULL) > 0;
    if (r->json != NULL && stw_reading_count(r, "num-experts", 0) == 0) return;
    set_dispatcher(r);
    if (limited) stw_reading_set(r, "moe.capacity_factor", capacity);
    stw_reading_set_switch(r, "megatron.pad_to_capacity",
                           limited && stw_reading_is_set(r, "moe-pad-expert-input-to-capacity"));
    stw_reading_set_switch(r, "megatron.shared_expert_overlap",
                           stw_reading_is_set(r, "moe-shared-expert-overlap") &&
                               stw_reading_is_set(r, "sequence-parallel") &&
                               stw_reading_count(r, "tensor-model-parallel-size", 1) > 1);
}

/* Words between blanks, with or without brackets around them. */
static void set_list(stw_reading *r, const char *key, const char *words) {
    char *list = stw_pool_printf(r->out->pool, "[%s]", words + strspn(words, "[ "));
    if (list == NULL) return; /* stw_reading_set() fails in the same way */
    for (char *c = list + 1; *c != '\0'; c++)
        if (*c == ' ' || (*c == ']' && c[1] != '\0')) *c = ',';
    for (char *c = list + strlen(list) - 2; c > list && *c == ','; c--) c[0] = ']', c[1] = '\0';
    stw_reading_set(r, key, list);
}

static void set_offload(stw_reading *r) {
    const char *modules = stw_reading_text(r, "offload-modules", NULL);
    if (stw_reading_is_set(r, "fine-grained-activation-offloading") && modules != NULL)
        set_list(r, "megatron.offload_modules", modules);
}

static void set_recompute(stw_reading *r) {
    const char *granularity = stw_reading_text(r, "recompute-granularity", "none");
    const bool full = strcmp(granularity, "full") == 0;
    if (stw_reading_is_set(r, "recompute-activations")) granularity = "selective";
    stw_reading_set(r, "recompute.granularity", granularity);
    if (full && stw_flags_find(&r->flags, "recompute-method") == NULL) {
        /* transformer_config.py, __post_init__ */
        stw_reading_fail(r, stw_flag_fail(&r->flags,
                                          stw_flags_find(&r->flags, "recompute-granularity"),
                                          "recompute-method uniform or block beside it", r->err));
        return;
    }
    if (full)
        stw_reading_set(r, "recompute.method", stw_reading_text(r, "recompute-method", "none"));
    if (full && stw_flags_find(&r->flags, "recompute-num-layers") == NULL)
        stw_reading_set(r, "recompute.num_layers", "1");
    const char *modules = stw_reading_text(r, "recompute-modules", NULL);
    if (strcmp(granularity, "selective") != 0 || modules == NULL) return;
    set_list(r, "recompute.modules", modules);
}

/* transformer_config.py; without --fp8-format the others have no effect. */
static void set_fp8(stw_reading *r) {
    const char *format = stw_reading_text(r, "fp8-format", NULL);
    if (format == NULL || strcmp(format, "none") == 0) return;
    const char *why = NULL;
    if (stw_reading_is_set(r, "use-megatron-fsdp") || stw_reading_is_set(r, "use-custom-fsdp"))
        why = "planned in 16 bits with Megatron-FSDP";
    else if (strcmp(stw_reading_text(r, "transformer-impl", "transformer_engine"), "local") == 0)
        why = "local layers have no products in 8 bits";
    else if (stw_reading_is_set(r, "fine-grained-activation-offloading"))
        why = "planned in 16 bits with activations on the host";
    if (why != NULL) {
        stw_reading_assume(r, "fp8-format", "none", why);
        return;
    }
    const char *recipe = stw_reading_text(r, "fp8-recipe", "delayed");
    stw_reading_set(r, "megatron.fp8", format);
    stw_reading_set(r, "megatron.fp8_recipe", recipe);
    stw_reading_set_switch(r, "megatron.fp8_param_gather",
                           stw_reading_is_set(r, "fp8-param-gather"));
    if (strcmp(recipe, "delayed") == 0)
        stw_reading_set_count(r, "megatron.fp8_amax_history",
                              stw_reading_count(r, "fp8-amax-history-len", 1));
    if (!stw_reading_is_set(r, "first-last-layers-bf16")) return;
    stw_reading_set_count(r, "megatron.first_layers_bf16",
                          stw_reading_count(r, "num-layers-at-start-in-bf16", 1));
    stw_reading_set_count(r, "megatron.last_layers_bf16",
                          stw_reading_count(r, "num-layers-at-end-in-bf16", 1));
}

static void set_attention(stw_reading *r) {
    const bool local =
        strcmp(stw_reading_text(r, "transformer-impl", "transformer_engine"), "local") == 0;
    const char *backend = stw_reading_text(r, "attention-backend", local ? "local" : "auto");
    /* gpt_layer_specs.py, get_gpt_layer_local_spec: its attention keeps scores, whatever is asked
     */
    const bool eager = local || strcmp(backend, "unfused") == 0 || strcmp(backend, "local") == 0;
    if (local && (strcmp(backend, "flash") == 0 || strcmp(backend, "fused") == 0))
        stw_reading_assume(r, "attention-backend", "local",
                           "transformer-impl local has no other attention");
    stw_reading_set(r, "attention", eager ? "eager" : "flash");
    stw_reading_set(r, "megatron.transformer_impl", local ? "local" : "transformer_engine");
    /* The fused kernel keeps 16 bits in any case (fused_softmax.py, is_kernel_available); layer
     * scaling sets attention-softmax-in-fp32 (transformer_config.py). */
    /* TransformerEngine's choice (dot_product_attention/utils.py, get_attention_backend): cuDNN's
     * attention is not deterministic below compute capability 9.0, nor is flash-attn below 2.4.1 */
    if (!local && strcmp(backend, "auto") == 0 && stw_reading_is_set(r, "deterministic-mode"))
        stw_reading_assume(r, "flash-attn", "2.4.1",
                           "or later: without it GPUs before Hopper run unfused");
    if (local && eager)
        stw_reading_set_switch(r, "megatron.softmax_fp32",
                               stw_reading_is_set(r, "no-masked-softmax-fusion") &&
                                   (stw_reading_is_set(r, "attention-softmax-in-fp32") ||
                                    stw_reading_is_set(r, "apply-query-key-layer-scaling")));
    if (stw_reading_is_set(r, "no-gradient-accumulation-fusion") &&
        !stw_reading_is_set(r, "gradient-accumulation-fusion") && !local)
        stw_reading_set(r, "megatron.gradient_accumulation_fusion", "false");
    if (!local && stw_reading_count(r, "num-experts", 0) > 0)
        stw_reading_set_switch(r, "megatron.grouped_gemm",
                               stw_reading_is_set(r, "moe-grouped-gemm"));
    stw_reading_set(r, "megatron.hidden_dropout", stw_reading_text(r, "hidden-dropout", "0.1"));
    stw_reading_set(r, "megatron.attention_dropout",
                    eager ? stw_reading_text(r, "attention-dropout", "0.1") : "0");
}

static void write_run(stw_reading *r) {
    stw_reading_set(r, "engine", "megatron");
    const uint64_t seq = source_length(r);
    if (seq > 0) stw_reading_set_count(r, "batch.seq_len", seq);
    if (encoder_layers(r) > 0)
        stw_reading_set_count(r, "batch.decoder_seq_len",
                              stw_reading_count(r, "decoder-seq-length", 0));
    r->out->alone = alone;
    r->out->single = single;
    r->out->global_batch = stw_reading_count(r, "global-batch-size", 0);
    set_layout(r);
    set_precision(r);
    set_optimizer(r);
    set_experts(r);
    set_recompute(r);
    set_attention(r);
    if (stw_reading_is_set(r, "cross-entropy-loss-fusion"))
        stw_reading_set(r, "megatron.cross_entropy_fusion_impl",
                        stw_reading_text(r, "cross-entropy-fusion-impl", "native"));
    set_fp8(r);
    set_offload(r);
}

void stw_megatron_read(stw_reading *r, const stw_flag_table *known) {
    write_run(r);
    if (r->json == NULL) { /* the framework names a model */
        r->out->derived.layers = stw_reading_count(r, "num-layers", 0);
        r->out->derived.hidden = stw_reading_count(r, "hidden-size", 0);
    }
    for (size_t i = 0; i < r->flags.n && r->status == STW_STATUS_OK; i++) {
        const stw_flag *flag = &r->flags.items[i];
        const stw_flag_row *row = known != NULL ? stw_flag_row_named(known, flag->name) : NULL;
        if (row == NULL) row = stw_flag_row_named(&stw_megatron_flags, flag->name);
        stw_reading_sort(r, flag, row);
    }
}

/* ---- launch scripts ---- */

static bool has_layers(const stw_shell_word *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(words[i].text, "--num-layers") == 0) return true;
    return false;
}

/* The index after a program's name that ends in .py; 0: there is none.
 * @param layers a program of any name trains */
static size_t program_end(const stw_shell_word *words, size_t n, bool layers) {
    static const char *const trainers[] = {"train", "finetune", "sft"};
    for (size_t i = n; i > 0; i--) {
        const char *text = words[i - 1].text, *base = strrchr(text, '/');
        const size_t length = strlen(text);
        base = base != NULL ? base + 1 : text;
        if (length < 4 || strcmp(text + length - 3, ".py") != 0 || strchr(text, ' ') != NULL)
            continue;
        bool trains = layers;
        for (size_t k = 0; k < 3; k++) trains = trains || strstr(base, trainers[k]) != NULL;
        if (trains) return i;
    }
    return 0;
}

static size_t arguments_begin(const stw_shell_word *words, size_t n) {
    return program_end(words, n, has_layers(words, n));
}

static bool trains(const stw_shell_word *words, size_t n) { return arguments_begin(words, n) > 0; }

/* Programs beside it, such as one that evaluates, may have the same arguments. */
static bool is_trainer(const stw_shell_word *words, size_t n) {
    return has_layers(words, n) && program_end(words, n, false) == arguments_begin(words, n) &&
           trains(words, n);
}

static bool is_none(const stw_shell_word *words, size_t n) { return words == NULL && n > 0; }

/* A line that lost the backslash before it. */
static bool is_torn(const stw_shell_word *words, size_t n) {
    return n > 0 && strncmp(words[0].text, "--", 2) == 0;
}

/* The command is the text of a variable: CMD="torchrun ... pretrain_gpt.py ...", bash -c "$CMD". */
static stw_status find_in_variables(stw_reading *r, const char *text, size_t length,
                                    stw_shell *out) {
    stw_shell all;
    stw_status status =
        stw_shell_find(r->out->path, text, length, is_none, r->out->pool, &all, r->err);
    for (size_t i = 0; status == STW_STATUS_OK && i < all.n_variables; i++) {
        const stw_shell_variable *v = &all.variables[i];
        stw_shell inner;
        if (v->n != 1 || strstr(v->words[0].text, ".py ") == NULL) continue;
        const char *command = v->words[0].text;
        status = stw_shell_find(r->out->path, command, strlen(command), trains, r->out->pool,
                                &inner, r->err);
        if (status != STW_STATUS_OK || inner.n_found == 0) continue;
        inner.insert = inner.begin = inner.n_commands = 0; /* places in the variable's text */
        for (size_t k = 0; k < inner.n_words; k++) {
            inner.words[k].at = (stw_shell_places){0};
            inner.words[k].line = v->words[0].line;
            if (v->words[0].maybe > 0) inner.words[k].maybe = v->words[0].maybe;
        }
        *out = inner;
        out->n_variables = all.n_variables;
        out->variables = all.variables;
    }
    return status;
}

static stw_status find_command(stw_reading *r, const char *text, size_t length, stw_shell *out) {
    const char *path = r->out->path;
    stw_shell torn;
    stw_error why = STW_ERROR_INIT;
    stw_status status = stw_launch_find(r->out, text, length, is_trainer, out, NULL);
    if (status != STW_STATUS_OK || out->n_found == 0)
        status = stw_launch_find(r->out, text, length, trains, out, r->err);
    if (status == STW_STATUS_OK && out->n_found == 0 && r->out->line == 0)
        status = find_in_variables(r, text, length, out);
    if (status != STW_STATUS_OK) return status;
    if (out->n_found == 0)
        return stw_fail(r->err, STW_STATUS_BAD_INPUT, path,
                        "found no command that trains, expected one with pretrain_gpt.py or "
                        "another program and --num-layers");
    status = stw_shell_find(path, text, length, is_torn, r->out->pool, &torn, &why);
    if (status != STW_STATUS_OK && torn.unread > 0) return STW_STATUS_OK; /* none before that */
    if (status != STW_STATUS_OK && r->err != NULL) *r->err = why;
    if (status == STW_STATUS_OK && torn.n_found > 0)
        return stw_fail_at(r->err, STW_STATUS_BAD_INPUT, path, torn.words[0].line, 1,
                           "found a command that begins with %.60s; the line before it has to end "
                           "in a backslash",
                           torn.words[0].text);
    return status;
}

/* @param at in `text` @return does `what` begin a line there? */
static bool begins_line(const char *text, const char *at, const char *end, const char *what) {
    const size_t n = strlen(what);
    return (size_t)(end - at) >= n && memcmp(at, what, n) == 0 && (at == text || at[-1] == '\n');
}

/* A program's name is in it, and it is no test's YAML file. */
static bool is_script(const char *text, size_t length) {
    const char *end = text + length;
    bool program = false;
    for (const char *at = text; at < end; at++) {
        if (begins_line(text, at, end, "MODEL_ARGS:")) return false;
        program = program || (end - at >= 3 && memcmp(at, ".py", 3) == 0);
    }
    return program;
}

/* arguments.py at 00caa53, validate_args: without the worker --async-save is switched off with a
 * warning. */
static bool saves_async(stw_reading *r) {
    if (!stw_reading_is_set(r, "async-save")) return false;
    if (stw_reading_is_set(r, "use-persistent-ckpt-worker")) return true;
    stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "async-save", "true",
                     "planned as saves that training waits for: Megatron-LM disables it without "
                     "--use-persistent-ckpt-worker");
    return false;
}

/* arguments.py, validate_args: asserted. */
static void require_awareness(stw_reading *r) {
    if (!was_set(r, "megatron.optimizer_cpu_offload=true") ||
        was_set(r, "megatron.precision_aware=true"))
        return;
    stw_reading_set(r, "megatron.precision_aware", "true");
    stw_reading_assume_key(r, "use-precision-aware-optimizer", "true",
                           "without it Megatron-LM stops at start beside --optimizer-cpu-offload",
                           "megatron.precision_aware");
}

/* Megatron-LM's: save_interval has no effect without save; the formats are those of
 * CheckpointConfig (megatron/training/config/training_config.py). */
static void set_checkpoints(stw_reading *r) {
    static const char note[] = "checkpoints are planned as torch_dist";
    const stw_flag *format = stw_flags_find(&r->flags, "ckpt-format");
    const uint64_t every =
        stw_reading_count(r, "save-interval", stw_reading_count(r, "persistent-save-interval", 0));
    if (every == 0 || stw_flags_find(&r->flags, "save") == NULL) return;
    stw_reading_set_count(r, "checkpoint.every", every);
    if (stw_reading_is_set(r, "no-save-optim"))
        stw_reading_set(r, "checkpoint.contents", "[model]");
    if (saves_async(r)) stw_reading_set(r, "checkpoint.async", "true");
    /* checkpoint.format auto is torch_dist, or fsdp_dtensor with Megatron-FSDP */
    if (format != NULL && strcmp(format->value, "torch_dist") != 0 &&
        strcmp(format->value, "fsdp_dtensor") != 0)
        stw_reading_line(r, STW_IMPORT_NOT_MODELLED, "ckpt-format", format->value, note);
}

static const stw_flag_row own_rows[] = {
    {"save-interval", STW_FLAG_READ, STW_FLAG_COUNT, "checkpoint.every", NULL, NULL},
    {"persistent-save-interval", STW_FLAG_READ, STW_FLAG_COUNT, "checkpoint.every", NULL, NULL},
    {"ckpt-format", STW_FLAG_READ, STW_FLAG_TEXT, "checkpoint.format", NULL, NULL},
    {"async-save", STW_FLAG_READ, STW_FLAG_SWITCH, "checkpoint.async", NULL, NULL},
    {"use-persistent-ckpt-worker", STW_FLAG_READ, STW_FLAG_SWITCH, "checkpoint.async", NULL, NULL},
    {"no-save-optim", STW_FLAG_READ, STW_FLAG_SWITCH, "checkpoint.contents", NULL, NULL},
};
static const stw_flag_table own = {own_rows, sizeof own_rows / sizeof own_rows[0]};

static stw_status read_script(stw_reading *r, const char *text, size_t length) {
    const char *path = r->out->path;
    stw_shell shell;
    stw_status status = find_command(r, text, length, &shell);
    if (status != STW_STATUS_OK) return status;
    const size_t begin = arguments_begin(shell.words, shell.n_words);
    const char **launch = stw_pool_array(r->out->pool, begin + 1, sizeof *launch);
    if (launch == NULL) return stw_fail(r->err, STW_STATUS_NO_MEMORY, path, "out of memory");
    const char **source = stw_pool_array(r->out->pool, begin + 1, sizeof *source);
    if (source == NULL) return stw_fail(r->err, STW_STATUS_NO_MEMORY, path, "out of memory");
    for (size_t i = 0; i < begin; i++) launch[i] = shell.words[i].text;
    for (size_t i = 0; i < begin; i++) source[i] = shell.words[i].source;
    r->out->launch_source = source;
    r->out->launch = launch;
    r->out->n_launch = begin;
    r->flags.path = path;
    stw_launch_check_found(r, &shell);
    stw_launch_read_flags(r, &shell, begin, &stw_megatron_flags, true);
    stw_launch_read_gpus(r, &shell, begin);
    stw_launch_read_allocator(r, &shell);
    stw_launch_keep_environment(r, &shell);
    return r->status;
}

/* A test's YAML file has variables of the environment beside MODEL_ARGS. */
static void read_environment(stw_reading *r, const char *text, size_t length) {
    static const char *const names[] = {"ENV_VARS.PYTORCH_CUDA_ALLOC_CONF",
                                        "ENV_VARS.PYTORCH_ALLOC_CONF"};
    stw_flags all;
    if (stw_flags_parse_paths(r->out->path, text, length, r->out->pool, &all, NULL) !=
        STW_STATUS_OK)
        return;
    for (size_t i = 0; i < 2; i++) {
        const stw_flag *flag = stw_flags_find(&all, names[i]);
        if (flag != NULL)
            stw_launch_set_allocator(r, flag->name + strlen("ENV_VARS."), flag->value);
    }
}

static stw_status read_flags(stw_reading *r, const char *bytes, size_t length) {
    if (is_script(bytes, length)) return read_script(r, bytes, length);
    stw_status status =
        stw_flags_parse(r->out->path, bytes, length, "MODEL_ARGS", r->out->pool, &r->flags, r->err);
    if (status == STW_STATUS_OK) read_environment(r, bytes, length);
    return status == STW_STATUS_OK ? r->status : status;
}

stw_status stw_megatron_import(const char *bytes, size_t length, stw_import *out, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    stw_reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    stw_status status = read_flags(&r, bytes, length);
    if (status != STW_STATUS_OK) return status;
    r.json = stw_json_new();
    stw_json_begin_object(r.json, NULL);
    stw_json_string(r.json, "model_type", "megatron");
    stw_megatron_read(&r, &own);
    require_awareness(&r);
    set_checkpoints(&r);
    if (r.status == STW_STATUS_OK) write_model(&r);
    out->flags = r.flags;
    stw_json_end(r.json);
    status = stw_json_finish(r.json, &text, r.status == STW_STATUS_OK ? err : NULL);
    if (r.status != STW_STATUS_OK) status = r.status;
    out->config = text.data;
    out->config_length = text.length;
    return status;
}
