/* SPDX-License-Identifier: Apache-2.0 */
#include "models/config_keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"

/* What configs of transformers 5.17 and of the zoo's models hold besides parameters (its
 * configuration_utils.py, and configuration_*.py of the models in models/arch). "*" stands for any
 * characters. */
static const char HARMLESS[] =
    "model_type architectures auto_map _* transformers_version *transformers_version unsloth_* "
    "*torch_dtype *dtype *_token_id *_token_ids *_token_index *tokenizer* hidden_act* "
    "*activation_function *_activation act_fn initializer_* *_init *init_* init_std *_eps *epsilon "
    "*dropout* *_pdrop rope_* no_rope_* *_rope *rope_interleave rotary_* *_rotary_* *mrope* "
    "use_cache output_* return_dict* *aux_loss* seq_aux router_z_loss* *jitter_noise "
    "norm_topk_prob *scaling_factor n_group topk_group *topk_method scoring_func *score_function "
    "moe_router_* router_* *capacity_factor index_topk* pretraining_tp ep_size tp_plan "
    "query_pre_attn_scalar *softcapping *soft_cap* logit_scale logits_scaling "
    "*embedding_multiplier attention_multiplier residual_multiplier lm_head_multiplier "
    "scale_emb scale_depth dim_model_base swiglu_limit swiglu_alpha "
    "max_window_layers *sliding_window* *attention_chunk_size attn_temperature* attn_scale "
    "floor_scale attn_implementation *flash_attn* use_kernel* n_ctx *_context_length "
    "*max_position_embeddings max_sequence_length max_seq_len seq_length model_max_length "
    "*per_image image_seq_length downsample_ratio *pixel_shuffle_ratio in_chans in_channels "
    "*tokens_per_second spatial_patch_size vision_feature_* select_layer *image_size* "
    "ps_version dynamic_image_size use_thumbnail *_dynamic_patch template "
    "summary_* task_specific_params id2label label2id problem_type finetuning_task num_labels "
    "is_decoder is_encoder_decoder is_causal torchscript pruned_heads use_bfloat16 tf_legacy_loss "
    "chunk_size_feed_forward for_llm_compressor quantization_config compression_config "
    "generation_config cache_implementation use_mamba_kernels *reorder* gradient_checkpointing* "
    "max_length min_length do_sample early_stopping num_beams* diversity_penalty temperature top_k "
    "top_p typical_p repetition_penalty length_penalty *no_repeat_ngram_size bad_words_ids "
    "num_return_sequences forced_* *suppress_tokens exponential_decay* remove_invalid_values "
    "prefix embedding_scale keys_to_ignore* language_model_only";

/* What makes tensors, or gives them other sizes. */
static const char PLACES[] =
    "*expert* moe_* *_moe_* *lora_rank *_rank *head_dim qk_*dim *_config *intermediate_size* "
    "ffn_* *ffn_dim* hidden_size* *hidden_dim* num_*layers* n_layer* *_layers num_*heads* n_head* "
    "mtp_* num_mtp_* num_nextn_predict_layers first_k_dense_replace decoder_sparse_step "
    "interleave_moe* tie_* *tied* linear_* mamba_* ssm_* expand *conv_kernel* *_bias bias "
    "*qk_norm* vocab_size* type_vocab_size *cross_attention* index_n_heads *adapter* layer_types "
    "hybrid_* d_model d_ff d_kv embedding_size *embed_dim* n_embd n_inner block_configs";

/* ---- what rows read ---- */

static bool is_start(char c) { return isalpha((unsigned char)c) || c == '_'; }
static bool is_part(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Does an expression name the key, outside its strings? Of a path "a.b" both parts are names. */
static bool names_key(const char *text, const char *key) {
    const size_t length = strlen(key);
    while (*text != '\0') {
        if (*text == '\'') {
            text += 1 + strcspn(text + 1, "'");
            if (*text != '\0') text++;
        } else if (is_start(*text)) {
            size_t n = 1;
            while (is_part(text[n])) n++;
            if (n == length && memcmp(text, key, n) == 0) return true;
            text += n;
        } else {
            text++;
        }
    }
    return false;
}

/* The row that binds the name: the first setting counts. */
static const stw_template_row *binding_of(const stw_template *t, const char *name) {
    for (size_t r = 0; r < t->n_rows; r++)
        if (t->rows[r].kind == STW_ROW_LET && strcmp(t->rows[r].name, name) == 0)
            return &t->rows[r];
    return NULL;
}

/* Names of tensors and blocks hold expressions in braces. */
static bool has_expressions(stw_row_kind kind) {
    return kind == STW_ROW_BLOCK || kind == STW_ROW_EXTRA ||
           (kind >= STW_ROW_TENSOR && kind <= STW_ROW_BUFFER);
}

static bool row_reads(const stw_template *t, const stw_template_row *row, const char *key) {
    if (row->kind == STW_ROW_KEY) return stw_template_matches(row->name, key);
    if (row->kind == STW_ROW_TEXT) return false;
    if (row->kind == STW_ROW_LET && binding_of(t, row->name) != row) return false;
    return names_key(row->value, key) || names_key(row->condition, key) ||
           (row->kind != STW_ROW_SCALE && names_key(row->repeat, key)) ||
           (has_expressions(row->kind) && strchr(row->name, '{') != NULL &&
            names_key(row->name, key));
}

/* A bound name is the binding, not the key, but inside its own expression. */
static bool is_read(const stw_template *t, const char *key) {
    const stw_template_row *own = binding_of(t, key);
    for (size_t r = 0; r < t->n_rows; r++) {
        const stw_template_row *row = &t->rows[r];
        if (names_key(row->scope, key)) return true;
        if (own != NULL && row != own && row->kind != STW_ROW_KEY) continue;
        if (row_reads(t, row, key)) return true;
    }
    return false;
}

/* ---- values ---- */

/* Every layer attends: windows place nothing. */
static bool all_attend(const stw_node *list) {
    static const char *const kinds[] = {"full_attention", "sliding_attention", "chunked_attention",
                                        "attention"};
    for (size_t i = 0; i < list->n_items; i++) {
        const stw_node *item = list->items[i];
        bool known = false;
        for (size_t k = 0; item->kind == STW_NODE_STRING && k < sizeof kinds / sizeof kinds[0]; k++)
            known = known || strcmp(item->text, kinds[k]) == 0;
        if (!known) return false;
    }
    return true;
}

static bool is_inert(const stw_node *member) {
    static const char every[] = "moe_layer_freq decoder_sparse_step interleave_moe_layer_step";
    switch (member->kind) {
    case STW_NODE_NULL:
        return true;
    case STW_NODE_BOOL:
        return !member->boolean;
    case STW_NODE_INT: /* every layer: as if it were not there */
        return member->integer == 0 ||
               (member->integer == 1 && stw_template_matches(every, member->key));
    case STW_NODE_REAL:
        return !(member->real > 0) && !(member->real < 0);
    case STW_NODE_STRING:
        return member->text[0] == '\0';
    case STW_NODE_ARRAY:
        return member->n_items == 0 ||
               (strcmp(member->key, "layer_types") == 0 && all_attend(member));
    default:
        return member->n_items == 0;
    }
}

/* ---- the check ---- */

stw_key_use stw_config_key_use(const stw_template *template, const stw_node *member) {
    const char *key = member->key;
    if (is_read(template, key)) return STW_KEY_READ;
    if (stw_template_matches(HARMLESS, key)) return STW_KEY_HARMLESS;
    const bool places = stw_template_matches(PLACES, key);
    if (places && is_inert(member)) return STW_KEY_INERT;
    return places ? STW_KEY_PLACES : STW_KEY_UNKNOWN;
}

typedef struct unknown_keys {
    char names[512];
    size_t used;
    uint32_t n;
} unknown_keys;

static void note_unknown(unknown_keys *out, const char *key) {
    out->n++;
    if (out->used >= sizeof out->names) return;
    const int n = snprintf(out->names + out->used, sizeof out->names - out->used, "%s%.60s",
                           out->used > 0 ? ", " : "", key);
    out->used += n > 0 ? (size_t)n : 0;
}

static stw_status check_object(const stw_template *template, const stw_tree *config,
                               const stw_node *object, unknown_keys *unknown, stw_error *err) {
    for (size_t i = 0; i < object->n_items; i++) {
        const stw_node *member = object->items[i];
        char found[80];
        switch (stw_config_key_use(template, member)) {
        case STW_KEY_UNKNOWN:
            note_unknown(unknown, member->key);
            break;
        case STW_KEY_PLACES:
            stw_node_describe(member, found, sizeof found);
            return stw_fail_at(err, STW_STATUS_BAD_INPUT, config->file, member->key_line,
                               member->key_column,
                               "%.60s: found %.80s, but models of this model_type have no "
                               "parameters for it; expected the model_type of the architecture, "
                               "or the model's safetensors files or a CSV tensor list as model",
                               member->key, found);
        default:
            break;
        }
    }
    return STW_STATUS_OK;
}

/* Is it the scope of an earlier row? */
static bool is_seen(const stw_template *t, size_t row) {
    for (size_t r = 0; r < row; r++)
        if (strcmp(t->rows[r].scope, t->rows[row].scope) == 0) return true;
    return false;
}

stw_status stw_config_check_keys(const stw_template *template, const stw_tree *config,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    unknown_keys unknown = {.n = 0};
    STW_TRY(check_object(template, config, config->root, &unknown, err));
    for (size_t r = 0; r < template->n_rows; r++) {
        const char *scope = template->rows[r].scope;
        const stw_node *object = scope[0] != '\0' ? stw_node_path(config->root, scope) : NULL;
        if (object == NULL || object->kind != STW_NODE_OBJECT || is_seen(template, r)) continue;
        STW_TRY(check_object(template, config, object, &unknown, err));
    }
    if (unknown.n > 0)
        stw_log(STW_LOG_WARN, "%s: %u key%s not understood and ignored: %s", config->file,
                unknown.n, unknown.n == 1 ? " is" : "s are", unknown.names);
out:
    return status;
}
