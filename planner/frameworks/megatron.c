/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults and rules are those of megatron/training/arguments.py (validate_args,
 * core_transformer_config_from_args) unless a comment names another source. */
#include "planner/frameworks/megatron.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/json.h"
#include "plan/engines/megatron/stages.h"
#include "planner/frameworks/flags.h"

enum { MOST = 1 << 30, MOST_LAYERS = 65536 };

typedef struct reading {
    stw_flags flags;
    stw_import *out;
    stw_json *json;
    stw_error *err;
    stw_status status; /* the first failure */
} reading;

/* ---- values ---- */

static const char *text_of(const reading *r, const char *name, const char *fallback) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    return flag != NULL ? flag->value : fallback;
}

static bool is_set(const reading *r, const char *name) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    return flag != NULL && strcmp(flag->value, "false") != 0 && strcmp(flag->value, "False") != 0;
}

static bool parse_count(const char *text, uint64_t *out) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && *out <= MOST;
}

static void fail(reading *r, stw_status status) {
    if (r->status == STW_STATUS_OK) r->status = status;
}

/* @return `fallback` without the flag */
static uint64_t count_of(reading *r, const char *name, uint64_t fallback) {
    const stw_flag *flag = stw_flags_find(&r->flags, name);
    uint64_t value = fallback;
    if (flag != NULL && strcmp(flag->value, "None") != 0 && !parse_count(flag->value, &value))
        fail(r, stw_flag_fail(&r->flags, flag, "a whole number", r->err));
    return value;
}

static uint64_t required(reading *r, const char *name) {
    uint64_t value = count_of(r, name, 0);
    if (value > 0) return value;
    fail(r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                     "--%s: required, and at least 1: without it there is no GPT model", name));
    return 1;
}

/* ---- what becomes of them ---- */

static void add_line(reading *r, stw_import_use use, const char *flag, const char *value,
                     const char *note) {
    stw_import *out = r->out;
    stw_import_line *grown = stw_pool_grow(out->pool, out->lines, out->n_lines, out->n_lines + 1,
                                           &out->lines_capacity, sizeof *grown);
    if (grown == NULL || flag == NULL || value == NULL || note == NULL) {
        fail(r, stw_fail(r->err, STW_STATUS_NO_MEMORY, out->path, "out of memory"));
        return;
    }
    out->lines = grown;
    out->lines[out->n_lines++] = (stw_import_line){use, flag, value, note};
}

static void assume(reading *r, const char *what, const char *value, const char *note) {
    add_line(r, STW_IMPORT_ASSUMED, what, value, note);
}

static void set(reading *r, const char *key, const char *value) {
    stw_import *out = r->out;
    const char **grown = stw_pool_grow(out->pool, out->settings, out->n_settings,
                                       out->n_settings + 1, &out->settings_capacity, sizeof *grown);
    const char *setting = stw_pool_printf(out->pool, "%s=%s", key, value);
    if (grown == NULL || setting == NULL) {
        fail(r, stw_fail(r->err, STW_STATUS_NO_MEMORY, out->path, "out of memory"));
        return;
    }
    out->settings = grown;
    out->settings[out->n_settings++] = setting;
}

static void set_count(reading *r, const char *key, uint64_t value) {
    const char *text = stw_pool_printf(r->out->pool, "%llu", (unsigned long long)value);
    set(r, key, text != NULL ? text : "0");
}

static void set_switch(reading *r, const char *key, bool value) {
    set(r, key, value ? "true" : "false");
}

/* Equal, as words or as numbers. */
static bool same(const char *a, const char *b) {
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    if (*end_a == '\0' && *end_b == '\0' && *a != '\0' && *b != '\0') return !(x < y) && !(y < x);
    return strcmp(a, b) == 0;
}

static void take(reading *r, const stw_megatron_flag *row, const stw_flag *flag) {
    uint64_t count = 0;
    if (row->type == STW_MEGATRON_COUNT) count = count_of(r, flag->name, 0);
    if (row->use == STW_MEGATRON_RUN) {
        if (row->type == STW_MEGATRON_SWITCH)
            set_switch(r, row->key, is_set(r, flag->name));
        else if (row->type == STW_MEGATRON_COUNT)
            set_count(r, row->key, count);
        else
            set(r, row->key, flag->value);
    } else if (row->use == STW_MEGATRON_MODEL) {
        if (row->type == STW_MEGATRON_SWITCH)
            stw_json_bool(r->json, row->key, is_set(r, flag->name));
        else
            stw_json_u64(r->json, row->key, count);
    }
    add_line(r, STW_IMPORT_TAKEN, flag->name, flag->value, row->key != NULL ? row->key : "");
}

static void sort_flag(reading *r, const stw_flag *flag) {
    const stw_megatron_flag *row = stw_megatron_flag_named(flag->name);
    if (row == NULL) {
        add_line(r, STW_IMPORT_UNKNOWN, flag->name, flag->value, "");
        return;
    }
    bool harmless = row->harmless != NULL && same(row->harmless, flag->value);
    if (row->use == STW_MEGATRON_IDLE || harmless) {
        add_line(r, STW_IMPORT_NO_EFFECT, flag->name, flag->value, "");
    } else if (row->use == STW_MEGATRON_LISTED && row->key != NULL &&
               strcmp(row->key, flag->value) == 0) {
        add_line(r, STW_IMPORT_TAKEN, flag->name, flag->value, "");
    } else if (row->use == STW_MEGATRON_LISTED) {
        add_line(r, STW_IMPORT_NOT_MODELLED, flag->name, flag->value, row->note);
    } else if (row->use == STW_MEGATRON_REFUSED) {
        fail(r,
             stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, flag->line, 1,
                         "--%.60s %.60s: not implemented: %s", flag->name, flag->value, row->note));
    } else {
        take(r, row, flag);
    }
}

/* ---- the model ---- */

/* T5 (pretrain_t5.py): layers of the encoder, 0 without one. */
static uint64_t encoder_layers(reading *r) { return count_of(r, "encoder-num-layers", 0); }

/* Without a known tokenizer the one of --vocab-file and --merge-file is meant, or T5's own
 * (pretrain_t5.py, args_defaults). The table of embeddings is padded to a multiple of
 * make-vocab-size-divisible-by x tp by the engine (tokenizer/utils, vocab_size_with_padding). */
static uint64_t vocabulary(reading *r) {
    static const struct {
        const char *tokenizer;
        uint64_t tokens;
    } known[] = {{"GPT2BPETokenizer", 50257},
                 {"Llama2Tokenizer", 32000},
                 {"BertWordPieceLowerCase", 30522},
                 {"BertWordPieceCase", 28996}};
    const char *type =
        text_of(r, "tokenizer-type", encoder_layers(r) > 0 ? "BertWordPieceLowerCase" : NULL);
    uint64_t given = count_of(r, "vocab-size", 0), extra = count_of(r, "vocab-extra-ids", 0);
    const bool null_tokenizer = type != NULL && strcmp(type, "NullTokenizer") == 0;
    if (given > 0) return null_tokenizer ? given + 1 : given; /* one more ends documents */
    for (size_t i = 0; type != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].tokenizer, type) == 0) return known[i].tokens + extra;
    if (type != NULL) {
        fail(r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                         "--vocab-size: required with --tokenizer-type %.60s, whose size is in its "
                         "files",
                         type));
        return 1;
    }
    assume(r, "vocab-size", "50257", "GPT2BPETokenizer");
    return known[0].tokens;
}

/* Layers with experts: every freq-th, or a list such as ([0]*3+[1]*13). */
static void layers_with_experts(reading *r, uint64_t layers) {
    const stw_flag *flag = stw_flags_find(&r->flags, "moe-layer-freq");
    uint64_t freq = 1, n = 0;
    const char *text = flag != NULL ? flag->value : "1";
    stw_json_begin_array(r->json, "moe_layers");
    if (parse_count(text, &freq) && freq > 0) {
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
        fail(r, flag == NULL ? STW_STATUS_BUG
                             : stw_flag_fail(&r->flags, flag,
                                             "a number of layers, or a list such as "
                                             "([0]*3+[1]*13) with one item for each layer",
                                             r->err));
}

static void write_experts(reading *r, uint64_t layers, uint64_t ffn) {
    uint64_t experts = count_of(r, "num-experts", 0);
    stw_json_u64(r->json, "num_experts", experts);
    if (experts == 0) return;
    stw_json_u64(r->json, "moe_ffn_hidden_size", count_of(r, "moe-ffn-hidden-size", ffn));
    layers_with_experts(r, layers);
}

/* A file may name the groups alone: --group-query-attention is then meant, too. */
static uint64_t query_groups(reading *r, uint64_t heads) {
    const stw_flag *flag = stw_flags_find(&r->flags, "group-query-attention");
    bool grouped = is_set(r, "group-query-attention");
    uint64_t groups = count_of(r, "num-query-groups", 1);
    if (flag == NULL && stw_flags_find(&r->flags, "num-query-groups") != NULL) {
        assume(r, "group-query-attention", "true", "num-query-groups has no effect without it");
        grouped = true;
    }
    return grouped ? groups : heads;
}

/* Layers of GPT, or of T5's decoder. */
static uint64_t decoder_layers(reading *r) {
    const uint64_t encoder = encoder_layers(r);
    return encoder > 0 ? count_of(r, "decoder-num-layers", encoder) : required(r, "num-layers");
}

static uint64_t source_length(reading *r) {
    return count_of(r, "seq-length", count_of(r, "encoder-seq-length", 0));
}

static void check_encoder(reading *r) {
    static const char *const only[] = {"num-experts", "multi-latent-attention",
                                       "group-query-attention", "num-query-groups",
                                       "num-layers-per-virtual-pipeline-stage"};
    const stw_flag *positions = stw_flags_find(&r->flags, "position-embedding-type");
    if (positions != NULL && strcmp(positions->value, "relative") == 0)
        fail(r, stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, positions->line, 1,
                            "--position-embedding-type relative: not implemented: use rope or "
                            "learned_absolute"));
    for (size_t i = 0; encoder_layers(r) > 0 && i < sizeof only / sizeof only[0]; i++) {
        const stw_flag *flag = stw_flags_find(&r->flags, only[i]);
        if (flag != NULL && is_set(r, only[i]))
            fail(r, stw_flag_fail(&r->flags, flag, "no such flag beside --encoder-num-layers",
                                  r->err));
    }
    if (encoder_layers(r) > 0) (void)required(r, "decoder-seq-length");
}

static void write_model(reading *r) {
    const uint64_t layers = decoder_layers(r), hidden = required(r, "hidden-size");
    const uint64_t heads = required(r, "num-attention-heads");
    const bool swiglu = is_set(r, "swiglu");
    uint64_t ffn = stw_times(hidden, swiglu ? 8 : 4);
    if (swiglu) ffn = stw_times(ffn / 3 / 64, 64);
    ffn = count_of(r, "ffn-hidden-size", ffn);
    check_encoder(r);
    if (stw_plus(layers, encoder_layers(r)) > MOST_LAYERS)
        fail(r, stw_fail(r->err, STW_STATUS_BAD_INPUT, r->flags.path,
                         "--num-layers: found %llu, expected at most %d",
                         (unsigned long long)stw_plus(layers, encoder_layers(r)), MOST_LAYERS));
    if (r->status != STW_STATUS_OK) return;
    stw_json_u64(r->json, "encoder_layers", encoder_layers(r));
    stw_json_u64(r->json, "num_layers", layers);
    stw_json_u64(r->json, "hidden_size", hidden);
    stw_json_u64(r->json, "ffn_hidden_size", ffn);
    stw_json_u64(r->json, "num_attention_heads", heads);
    stw_json_u64(r->json, "num_query_groups", query_groups(r, heads));
    stw_json_u64(r->json, "kv_channels", count_of(r, "kv-channels", hidden / heads));
    stw_json_u64(r->json, "vocab_size", vocabulary(r));
    const uint64_t positions = count_of(r, "max-position-embeddings", source_length(r));
    if (positions > 0) stw_json_u64(r->json, "max_position_embeddings", positions);
    stw_json_string(r->json, "position_embedding_type",
                    text_of(r, "position-embedding-type", "learned_absolute"));
    stw_json_string(r->json, "normalization", text_of(r, "normalization", "LayerNorm"));
    stw_json_bool(r->json, "swiglu", swiglu);
    stw_json_bool(r->json, "add_bias_linear", !is_set(r, "disable-bias-linear"));
    stw_json_bool(r->json, "tied", !is_set(r, "untie-embeddings-and-output-weights"));
    stw_json_bool(r->json, "multi_latent_attention", is_set(r, "multi-latent-attention"));
    stw_json_string(r->json, "torch_dtype", is_set(r, "fp16") ? "float16" : "bfloat16");
    write_experts(r, layers, ffn);
}

/* ---- the run ---- */

static void set_precision(reading *r) {
    const bool half = is_set(r, "bf16") || is_set(r, "fp16");
    const char *type = is_set(r, "fp16") ? "fp16" : "bf16", *grads = "fp32";
    set(r, "precision.params", half ? type : "fp32");
    set(r, "precision.compute", half ? type : "fp32");
    set(r, "precision.master", half ? "fp32" : "none");
    /* with bf16 gradients are accumulated in fp32 unless a flag says otherwise */
    if (is_set(r, "fp16") && !is_set(r, "accumulate-allreduce-grads-in-fp32")) grads = "fp16";
    if (is_set(r, "grad-reduce-in-bf16")) grads = "bf16";
    grads = text_of(r, "main-grads-dtype", grads);
    set(r, "precision.grads", grads);
    set(r, "precision.reduce", grads);
    set(r, "precision.exp_avg", text_of(r, "exp-avg-dtype", "fp32"));
    set(r, "precision.exp_avg_sq", text_of(r, "exp-avg-sq-dtype", "fp32"));
}

/* Without reductions nothing overlaps with them. */
static const char *const alone[] = {"megatron.overlap_grad_reduce=false",
                                    "megatron.overlap_param_gather=false", NULL};

static const char *const single[] = {"megatron.distributed_optimizer=true", NULL};

/* --use-custom-fsdp is an older name. @return are parameters cut, too? */
static bool set_fsdp(reading *r) {
    const stw_flag *flag = stw_flags_find(&r->flags, "use-megatron-fsdp");
    if (flag == NULL) flag = stw_flags_find(&r->flags, "use-custom-fsdp");
    if (!is_set(r, "use-megatron-fsdp") && !is_set(r, "use-custom-fsdp")) return false;
    const char *strategy = text_of(r, "data-parallel-sharding-strategy", "no_shard");
    if (strcmp(strategy, "no_shard") == 0)
        fail(r, stw_fail_at(r->err, STW_STATUS_NOT_BUILT_IN, r->flags.path, flag->line, 1,
                            "--data-parallel-sharding-strategy no_shard is not implemented; use "
                            "optim, optim_grads or optim_grads_params"));
    else
        set(r, "megatron.fsdp", strategy);
    return strcmp(strategy, "optim_grads_params") == 0;
}

static void set_optimizer(reading *r) {
    const bool overlapped = set_fsdp(r);
    const bool offloads = is_set(r, "optimizer-cpu-offload");
    const bool distributed = is_set(r, "use-distributed-optimizer");
    set_switch(r, "megatron.distributed_optimizer", distributed);
    set_switch(r, "megatron.optimizer_cpu_offload", offloads && distributed);
    set_switch(r, "megatron.overlap_param_gather",
               distributed && !overlapped && is_set(r, "overlap-param-gather"));
    set(r, "megatron.optimizer_offload_fraction",
        offloads && distributed ? text_of(r, "optimizer-offload-fraction", "1") : "0");
    set_count(r, "megatron.vocab_multiple", count_of(r, "make-vocab-size-divisible-by", 128));
    set(r, "optimizer.implementation", "fused");
}

/* arguments.py, validate_args: a layout says how many chunks all stages have. Tests escape it for
 * the shell. */
static uint64_t follow_layout(reading *r, uint64_t pp) {
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
        fail(r, stw_flag_fail(&r->flags, flag, expected, r->err));
    else if (pp == 0 || n % pp != 0)
        fail(r, stw_flag_fail(&r->flags, flag, "a multiple of the pipeline stages", r->err));
    set(r, "megatron.pipeline_layout", layout);
    return pp > 0 ? n / pp : 1;
}

static void set_layout(reading *r) {
    const uint64_t tp = count_of(r, "tensor-model-parallel-size", 1);
    const uint64_t pp = count_of(r, "pipeline-model-parallel-size", 1);
    const uint64_t layers = count_of(r, "num-layers", 1) +
                            is_set(r, "account-for-embedding-in-pipeline-split") +
                            is_set(r, "account-for-loss-in-pipeline-split");
    uint64_t each = count_of(r, "num-layers-per-virtual-pipeline-stage", 0);
    uint64_t chunks = count_of(r, "num-virtual-stages-per-pipeline-rank", 1);
    const uint64_t of_layout = follow_layout(r, pp);
    if (of_layout > 0) {
        chunks = of_layout;
    } else if (each > 0 && pp > 1) {
        const stw_flag *flag = stw_flags_find(&r->flags, "num-layers-per-virtual-pipeline-stage");
        if (layers % (pp * each) != 0)
            fail(r, stw_flag_fail(&r->flags, flag, "a divisor of the layers of a pipeline stage",
                                  r->err));
        chunks = layers / (pp * each);
    }
    if (pp == 1) chunks = 1;
    set_count(r, "parallel.vpp", chunks);
    if (chunks > 1)
        set_count(r, "megatron.microbatch_group",
                  count_of(r, "microbatch-group-size-per-virtual-pipeline-stage", 0));
    /* validate_args: the experts' tensor parallelism is that of the rest unless it is given */
    if (count_of(r, "num-experts", 0) > 0)
        set_count(r, "parallel.etp", count_of(r, "expert-tensor-parallel-size", tp));
    set_switch(r, "parallel.sequence_parallel", is_set(r, "sequence-parallel") && tp > 1);
}

static void set_experts(reading *r) {
    const char *capacity = text_of(r, "moe-expert-capacity-factor", "-1");
    const bool limited = strtod(capacity, NULL) > 0;
    if (count_of(r, "num-experts", 0) == 0) return;
    if (strcmp(text_of(r, "moe-token-dispatcher-type", "allgather"), "allgather") == 0)
        set(r, "moe.dispatcher", "allgather");
    if (limited) set(r, "moe.capacity_factor", capacity);
    set_switch(r, "megatron.pad_to_capacity",
               limited && is_set(r, "moe-pad-expert-input-to-capacity"));
    set_switch(r, "megatron.shared_expert_overlap",
               is_set(r, "moe-shared-expert-overlap") && is_set(r, "sequence-parallel") &&
                   count_of(r, "tensor-model-parallel-size", 1) > 1);
}

static void set_recompute(reading *r) {
    const char *granularity = text_of(r, "recompute-granularity", "none");
    const bool full = strcmp(granularity, "full") == 0;
    if (is_set(r, "recompute-activations")) granularity = "selective";
    set(r, "recompute.granularity", granularity);
    if (full) set(r, "recompute.method", text_of(r, "recompute-method", "none"));
    if (full && stw_flags_find(&r->flags, "recompute-num-layers") == NULL &&
        stw_flags_find(&r->flags, "recompute-method") != NULL)
        set(r, "recompute.num_layers", "1");
    const char *modules = text_of(r, "recompute-modules", NULL);
    if (strcmp(granularity, "selective") != 0 || modules == NULL) return;
    char *list = stw_pool_printf(r->out->pool, "[%s]", modules + strspn(modules, "[ "));
    if (list == NULL) return; /* set() fails in the same way */
    for (char *c = list + 1; *c != '\0'; c++)
        if (*c == ' ' || (*c == ']' && c[1] != '\0')) *c = ',';
    for (char *c = list + strlen(list) - 2; c > list && *c == ','; c--) c[0] = ']', c[1] = '\0';
    set(r, "recompute.modules", list);
}

static void set_attention(reading *r) {
    const bool local = strcmp(text_of(r, "transformer-impl", "transformer_engine"), "local") == 0;
    const char *backend = text_of(r, "attention-backend", local ? "local" : "auto");
    const bool eager = strcmp(backend, "unfused") == 0 || strcmp(backend, "local") == 0;
    set(r, "attention", eager ? "eager" : "flash");
    set(r, "megatron.transformer_impl", local ? "local" : "transformer_engine");
    /* The fused kernel keeps 16 bits in any case (fused_softmax.py, is_kernel_available); layer
     * scaling sets attention-softmax-in-fp32 (transformer_config.py). */
    /* TransformerEngine's choice (dot_product_attention/utils.py, get_attention_backend): cuDNN's
     * attention is not deterministic below compute capability 9.0, nor is flash-attn below 2.4.1 */
    if (!local && strcmp(backend, "auto") == 0 && is_set(r, "deterministic-mode"))
        assume(r, "flash-attn", "2.4.1", "or later: without it GPUs before Hopper run unfused");
    if (local && eager)
        set_switch(r, "megatron.softmax_fp32",
                   is_set(r, "no-masked-softmax-fusion") &&
                       (is_set(r, "attention-softmax-in-fp32") ||
                        is_set(r, "apply-query-key-layer-scaling")));
    if (!local && count_of(r, "num-experts", 0) > 0)
        set_switch(r, "megatron.grouped_gemm", is_set(r, "moe-grouped-gemm"));
    set(r, "megatron.hidden_dropout", text_of(r, "hidden-dropout", "0.1"));
    set(r, "megatron.attention_dropout", eager ? text_of(r, "attention-dropout", "0.1") : "0");
}

static void write_run(reading *r) {
    set(r, "engine", "megatron");
    const uint64_t seq = source_length(r);
    if (seq > 0) set_count(r, "batch.seq_len", seq);
    if (encoder_layers(r) > 0)
        set_count(r, "batch.decoder_seq_len", count_of(r, "decoder-seq-length", 0));
    r->out->alone = alone;
    r->out->single = single;
    r->out->global_batch = count_of(r, "global-batch-size", 0);
    set_layout(r);
    set_precision(r);
    set_optimizer(r);
    set_experts(r);
    set_recompute(r);
    set_attention(r);
}

stw_status stw_megatron_import(const char *bytes, size_t length, stw_import *out, stw_error *err) {
    stw_text text = STW_TEXT_INIT;
    reading r = {.out = out, .err = err, .status = STW_STATUS_OK};
    stw_status status =
        stw_flags_parse(out->path, bytes, length, "MODEL_ARGS", out->pool, &r.flags, err);
    if (status != STW_STATUS_OK) return status;
    r.json = stw_json_new();
    stw_json_begin_object(r.json, NULL);
    stw_json_string(r.json, "model_type", "megatron");
    write_run(&r);
    for (size_t i = 0; i < r.flags.n && r.status == STW_STATUS_OK; i++)
        sort_flag(&r, &r.flags.items[i]);
    if (r.status == STW_STATUS_OK) write_model(&r);
    stw_json_end(r.json);
    status = stw_json_finish(r.json, &text, r.status == STW_STATUS_OK ? err : NULL);
    if (r.status != STW_STATUS_OK) status = r.status;
    out->config = text.data;
    out->config_length = text.length;
    return status;
}
