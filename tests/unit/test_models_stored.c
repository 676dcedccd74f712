/* SPDX-License-Identifier: Apache-2.0 */
/* Published files: their bytes against what publishers state (zoo_published.csv), dtypes and block
 * scales of templates, and a load that reads exactly these bytes. */
#include <inttypes.h>
#include <stdlib.h>

#include "models/internal.h"
#include "models/table.h"
#include "plan/files/verdict.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif
#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif

/* Elements in the files, without block scales. */
static uint64_t elements_of(const stw_model *m) {
    uint64_t n = m->params + m->buffers;
    for (uint32_t k = 0; k < m->n_extras; k++) n += m->extra_tensors[k].numel;
    return n;
}

/* "file" includes a header: 8 bytes, then names and offsets as JSON. */
static bool is_published(const stw_model *m, const char *kind, uint64_t value) {
    uint64_t tensors = m->n_tensors + m->n_buffers + m->n_extras;
    if (strcmp(kind, "elements") == 0) return elements_of(m) == value;
    if (strcmp(kind, "file") == 0)
        return m->stored_bytes < value && value - m->stored_bytes < 200 * tensors;
    return m->stored_bytes == value;
}

static void published_bytes(void) {
    stw_pool *pool = stw_pool_new();
    stw_table table = {.n_rows = 0};
    CHECK_OK(stw_table_read(pool, STW_SOURCE_DIR "/tests/unit/zoo_published.csv", &table, err));
    CU_ASSERT(table.n_rows > 40);
    for (size_t r = 1; r < table.n_rows; r++) {
        const char *const *f = table.rows[r].fields;
        uint64_t value = strtoull(f[2], NULL, 10);
        stw_model *model = NULL;
        CHECK_OK(stw_model_open(f[0], STW_SOURCE_MODELS, &model, err));
        if (model == NULL) continue;
        bool right = is_published(model, f[1], value);
        if (!right)
            fprintf(stderr, "%s: %s %" PRIu64 ", found %" PRIu64 " bytes, %" PRIu64 " elements\n",
                    f[0], f[1], value, model->stored_bytes, elements_of(model));
        CU_ASSERT(right);
        stw_model_free(model);
    }
    stw_pool_free(pool);
}

static const stw_tensor *named(const stw_tensor *tensors, uint32_t n, const char *name) {
    for (uint32_t k = 0; k < n; k++)
        if (strcmp(tensors[k].name, name) == 0) return &tensors[k];
    fprintf(stderr, "no tensor %s\n", name);
    return NULL;
}

/* DeepSeek-V3: linear weights in fp8 with a fp32 scale for each 128 x 128; norms, routers,
 * embedding and head in bf16; the layer of multi-token prediction is stored, but no part of the
 * model. */
static void fp8_blocks(void) {
    stw_model *m = NULL;
    CHECK_OK(stw_model_open("DeepSeek-V3", STW_SOURCE_MODELS, &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    const struct {
        const char *name;
        stw_dtype dtype;
        uint64_t scales; /* of 4 bytes */
    } cases[] = {
        {"model.embed_tokens.weight", STW_DTYPE_BF16, 0},
        {"model.layers.0.self_attn.q_a_proj.weight", STW_DTYPE_F8_E4M3, UINT64_C(12) * 56},
        {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", STW_DTYPE_F8_E4M3, UINT64_C(5) * 56},
        {"model.layers.0.self_attn.q_a_layernorm.weight", STW_DTYPE_BF16, 0},
        {"model.layers.0.mlp.down_proj.weight", STW_DTYPE_F8_E4M3, UINT64_C(56) * 144},
        {"model.layers.60.mlp.gate.weight", STW_DTYPE_BF16, 0},
        {"model.layers.60.mlp.experts.gate_up_proj", STW_DTYPE_F8_E4M3, UINT64_C(256) * 32 * 56},
        {"model.layers.60.mlp.shared_experts.up_proj.weight", STW_DTYPE_F8_E4M3, UINT64_C(16) * 56},
        {"lm_head.weight", STW_DTYPE_BF16, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const stw_tensor *t = named(m->tensors, m->n_tensors, cases[k].name);
        CU_ASSERT_PTR_NOT_NULL_FATAL(t);
        CU_ASSERT_EQUAL(t->dtype, cases[k].dtype);
        CU_ASSERT_EQUAL(t->scale_bytes, 4 * cases[k].scales);
    }
    CU_ASSERT_EQUAL(m->buffer_tensors[0].dtype, STW_DTYPE_F32);
    const stw_tensor *mtp = named(m->extra_tensors, m->n_extras, "model.layers.61.eh_proj.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mtp);
    CU_ASSERT_EQUAL(mtp->dtype, STW_DTYPE_BF16);
    CU_ASSERT_EQUAL(mtp->shape[1], 2 * mtp->shape[0]);
    for (uint32_t k = 0; k < m->n_tensors; k++) /* layer 61 is no parameter */
        CU_ASSERT_FATAL(strstr(m->tensors[k].name, "layers.61.") == NULL);
    stw_model_free(m);
}

/* gpt-oss: 4 bits an element, and 1 byte for 32 of them along the input. */
static void mxfp4_blocks(void) {
    stw_model *m = NULL;
    CHECK_OK(stw_model_open("gpt-oss-120b", STW_SOURCE_MODELS, &m, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(m);
    const stw_tensor *t = named(m->tensors, m->n_tensors, "model.layers.0.mlp.experts.down_proj");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT_EQUAL(t->dtype, STW_DTYPE_F4);
    CU_ASSERT_EQUAL(t->scale_bytes, UINT64_C(128) * 90 * 2880);
    CU_ASSERT_EQUAL(stw_tensor_stored_bytes(t), t->numel / 2 + t->scale_bytes);
    stw_model_free(m);
}

/* The same config with and without a key of quantization. */
static void quantized_config(void) {
#define CONFIG                                                                                     \
    "{\"model_type\":\"qwen3\",\"vocab_size\":1000,\"hidden_size\":256,\"intermediate_size\":200," \
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"torch_dtype\":\"bfloat16\""
    static const char
        plain[] = CONFIG "}",
        fp8[] = CONFIG
        ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}";
#undef CONFIG
    stw_model *a = NULL, *b = NULL;
    CHECK_OK(
        stw_model_parse_config("config.json", plain, sizeof plain - 1, STW_SOURCE_MODELS, &a, err));
    CHECK_OK(
        stw_model_parse_config("config.json", fp8, sizeof fp8 - 1, STW_SOURCE_MODELS, &b, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(a);
    CU_ASSERT_PTR_NOT_NULL_FATAL(b);
    uint64_t attention = UINT64_C(4) * 256 * 256, mlp = UINT64_C(3) * 256 * 200;
    CU_ASSERT_EQUAL(a->stored_bytes, 2 * a->params);
    /* 2 x 2 blocks of each matrix; 200 = 128 + 72 */
    CU_ASSERT_EQUAL(b->stored_bytes, 2 * a->params - attention - mlp + 7 * 4 * UINT64_C(4));
    CU_ASSERT_EQUAL(b->params, a->params);
    stw_model_free(a);
    stw_model_free(b);
}

/* The runs of a tensor add up to its bytes, wherever it is cut. */
static void runs_add_up(void) {
    const stw_tensor tensors[] = {
        {.numel = 1000003, .dtype = STW_DTYPE_F8_E4M3, .scale_bytes = 1236},
        {.numel = 999999, .dtype = STW_DTYPE_F4, .scale_bytes = 31250},
        {.numel = 7, .dtype = STW_DTYPE_BF16},
        {.numel = UINT64_C(1) << 50, .dtype = STW_DTYPE_F8_E4M3, .scale_bytes = UINT64_C(1) << 38},
    };
    for (size_t k = 0; k < sizeof tensors / sizeof tensors[0]; k++) {
        const stw_tensor *t = &tensors[k];
        uint64_t sum = 0, step = t->numel / 13 + 1;
        for (uint64_t at = 0; at < t->numel; at += step)
            sum += stw_tensor_run_bytes(t, at, at + step < t->numel ? step : t->numel - at);
        CU_ASSERT_EQUAL(sum, stw_tensor_stored_bytes(t));
    }
}

static uint64_t read_bytes(const stw_plan *plan) {
    const stw_program *program = plan->programs[0];
    const stw_movement *load = stw_program_movement(program, STW_PHASE_LOAD);
    uint64_t bytes = 0;
    for (uint32_t i = load->first_op; i < load->first_op + load->n_ops; i++)
        if (program->ops[i].kind == STW_OP_FILE_READ) bytes += program->ops[i].bytes;
    return bytes;
}

/* Keep the activations of all blocks that have any. */
static void keep_blocks(stw_plan *plan) {
    stw_decisions *d = &plan->decisions;
    d->blocks = stw_pool_array(plan->pool, plan->model->n_groups, sizeof *d->blocks);
    for (uint32_t g = 0; g < plan->model->n_groups; g++) {
        const stw_block_group *group = &plan->model->groups[g];
        if (group->facts.transformer)
            d->blocks[d->n_blocks++] = (stw_block_decision){g, STW_ACT_KEEP, group->count};
    }
}

/* A framework reads each tensor as it is published: what is stored, without what it does not use.
 * The plan's file keeps the scales, so that a reader derives the same load. */
static void load_reads_stored_bytes(void) {
    static const char *const names[] = {"gpt-oss-120b", "DeepSeek-V3", "Qwen3-0.6B"};
    stw_cluster cluster = fixture_cluster(8);
    cluster.gpu.memory_bytes = cluster.host.memory_bytes = cluster.host.limit_bytes = 64ull << 40;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        stw_model *model = NULL;
        stw_run_spec run;
        stw_plan *plan = NULL, *again = NULL;
        stw_text text = STW_TEXT_INIT;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_run_spec_set(&run, "engine", "fsdp2", "test", err));
        CHECK_OK(stw_model_open(names[k], STW_SOURCE_MODELS, &model, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(model);
        uint64_t expected = 0;
        for (uint32_t t = 0; t < model->n_tensors; t++)
            expected += stw_tensor_stored_bytes(&model->tensors[t]);
        if (k == 0) CU_ASSERT_EQUAL(expected, UINT64_C(65248815744)); /* all of its files */
        CHECK_OK(stw_plan_new(model, &cluster, &run, &plan, err));
        CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
        const stw_place resident[] = {FIXTURE_RESIDENT};
        plan->decisions.load = STW_LOAD_RANK0_BROADCAST;
        keep_blocks(plan);
        fixture_state(plan, 1, resident, NULL);
        CHECK_OK(stw_plan_derive(plan, err));
        CU_ASSERT_EQUAL(read_bytes(plan), expected);
        stw_plan_judge(plan);
        CHECK_OK(stw_plan_to_json(plan, &text, err));
        CHECK_OK(stw_plan_parse("plan.json", text.data, text.length, &again, err));
        if (again != NULL) CU_ASSERT_EQUAL(read_bytes(again), expected);
        stw_text_free(&text);
        stw_plan_free(again);
        stw_plan_free(plan);
    }
}

STW_TEST_MAIN("models stored", {"published bytes", published_bytes}, {"fp8 blocks", fp8_blocks},
              {"mxfp4 blocks", mxfp4_blocks}, {"quantized config", quantized_config},
              {"runs add up", runs_add_up}, {"load reads stored bytes", load_reads_stored_bytes})
