/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* mkstemp, fdopen */
/* What is trained, and gradients of several micro batches: adapters, frozen tensors, accumulation
 * with and without a reduction after each micro batch. */
#include "engines/bytes.h"

#include <unistd.h>

#include "core/checked.h"
#include "tests/unit/fixture.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_MODELS
#define STW_SOURCE_MODELS "models"
#endif

static const fixture_size size = {4, 1024, 4096, 32000};
enum { GPUS = 4, RANK = 16 };

#define FSDP2 "engine=fsdp2", "batch.seq_len=512"

static stw_plan *make(const char *const *settings, stw_act act) {
    const stw_cluster cluster = fixture_cluster(GPUS);
    stw_plan *plan = fixture_plan(size, &cluster, settings);
    stw_place place = {STW_TIER_GPU, STW_TIER_GPU, STW_TIER_GPU, STW_UPDATE_RESIDENT};
    stw_decisions *d = &plan->decisions;
    d->n_state = 1;
    d->state[0] = (stw_state_decision){place, plan->job->n_units};
    d->blocks[0] = (stw_block_decision){1, act, size.layers};
    d->n_blocks = 1;
    d->prefetch.by_group = true;
    d->prefetch.depth = 1;
    CHECK_OK(stw_plan_derive(plan, err));
    CHECK_OK(stw_plan_check(plan, true, err));
    return plan;
}

static const stw_peak *peak_of(const stw_plan *plan, stw_phase phase) {
    return &plan->peaks[0].phase[phase][STW_TIER_GPU];
}

/* Most live bytes of a component in forward and backward. */
static uint64_t most_of(const stw_plan *plan, stw_component component) {
    const stw_program *program = plan->programs[0];
    const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
    stw_live live = {0};
    uint64_t most = 0;
    for (uint32_t i = 0; i < m->first_op + m->n_ops; i++) {
        stw_live_apply(&live, &program->ops[i]);
        if (i >= m->first_op) most = stw_max_u64(most, live.bytes[STW_TIER_GPU][component]);
    }
    return most;
}

/* o.weight is [1024, 1024]: adapters [16, 1024] and [1024, 16] of each of 4 layers. */
static void adapters(void) {
    const char *all[] = {FSDP2, NULL};
    const char *lora[] = {FSDP2, "trainable.lora.rank=16", "trainable.lora.targets=[o]", NULL};
    stw_plan *full = make(all, STW_ACT_KEEP), *plan = make(lora, STW_ACT_KEEP);
    const stw_rank_kind *kind = &plan->job->kinds[0];
    const uint64_t adapter = 2ull * RANK * 1024, mine = size.layers * adapter / GPUS;
    CU_ASSERT_EQUAL(plan->job->model->params, full->job->model->params + size.layers * adapter);
    CU_ASSERT_EQUAL(plan->model->params, full->model->params);
    CU_ASSERT_EQUAL(kind->spaces[STW_SPACE_GRADS].n, mine);
    CU_ASSERT_EQUAL(kind->spaces[STW_SPACE_OPTIMIZER].n, mine);
    CU_ASSERT_EQUAL(kind->params, full->job->kinds[0].params + mine);
    const stw_peak *step = peak_of(plan, STW_PHASE_OPTIMIZER_STEP);
    CU_ASSERT_EQUAL(step->components[STW_COMPONENT_EXP_AVG], 4 * mine);
    CU_ASSERT_EQUAL(step->components[STW_COMPONENT_GRADS], 4 * mine);
    /* a layer's gradients, of the adapters alone; nothing of embedding and head is reduced */
    CU_ASSERT_EQUAL(stw_unsharded_grad_bytes(plan->job, 1), 2 * adapter);
    CU_ASSERT_EQUAL(stw_reduce_bytes(plan->job, 0), 0);
    CU_ASSERT_TRUE(most_of(plan, STW_COMPONENT_REDUCE) <= 2 * 4 * adapter);
    uint32_t scatters = 0;
    for (uint32_t i = 0; i < plan->programs[0]->n_ops; i++)
        scatters += plan->programs[0]->ops[i].kind == STW_OP_REDUCE_SCATTER;
    CU_ASSERT_EQUAL(scatters, size.layers);
    /* inputs of attention and MLP, the product and the norms' factors are not saved; the inner
     * result of o's adapter is, its input attention saves */
    const uint64_t saved = stw_activation_bytes(full->job, 1, STW_ACT_KEEP) -
                           stw_activation_bytes(plan->job, 1, STW_ACT_KEEP);
    const uint64_t inputs = 2 * 1024, product = 4096, norms = 2 * 1024;
    CU_ASSERT_EQUAL(saved, 512 * 2 * (inputs + product + norms - RANK));
    stw_plan_free(full);
    stw_plan_free(plan);
}

static void frozen_tensors(void) {
    const char *frozen[] = {FSDP2, "trainable.freeze=['0.embed.weight']", NULL};
    const char *all[] = {FSDP2, NULL};
    stw_plan *plan = make(frozen, STW_ACT_RECOMPUTE), *full = make(all, STW_ACT_RECOMPUTE);
    const uint64_t embedding = size.vocab * size.hidden;
    CU_ASSERT_EQUAL(full->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n -
                        plan->job->kinds[0].spaces[STW_SPACE_OPTIMIZER].n,
                    embedding / GPUS);
    CU_ASSERT_EQUAL(plan->job->kinds[0].params, full->job->kinds[0].params);
    CU_ASSERT_EQUAL(peak_of(full, STW_PHASE_OPTIMIZER_STEP)->total -
                        peak_of(plan, STW_PHASE_OPTIMIZER_STEP)->total,
                    3 * 4 * embedding / GPUS);
    stw_plan_free(plan);
    stw_plan_free(full);
}

static void refused(void) {
    static const struct {
        const char *settings[4], *text;
    } cases[] = {{{"engine=fsdp2", "trainable.freeze=[nothing]"}, "trainable.freeze"},
                 {{"engine=fsdp2", "trainable.freeze=['*']"}, "leave some to train"},
                 {{"engine=fsdp2", "trainable.lora.rank=8", "trainable.lora.targets=[q_proj]"},
                  "trainable.lora.targets"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        stw_error err = STW_ERROR_INIT;
        stw_cluster cluster = fixture_cluster(GPUS);
        stw_model *model = fixture_model(size);
        stw_run_spec run;
        stw_plan *plan = NULL;
        CU_ASSERT_EQUAL_FATAL(stw_run_spec_init(&run, &err), STW_STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(stw_specs_set_all(&cluster, &run, cases[i].settings,
                                                cases[i].settings[2] != NULL ? 3 : 2, "test", &err),
                              STW_STATUS_OK);
        CU_ASSERT_EQUAL(stw_plan_new(model, &cluster, &run, &plan, &err), STW_STATUS_BAD_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, cases[i].text));
    }
}

/* Sharded gradients of the micro batches before are there from the start, or unsharded ones in the
 * dtype of the reduction. */
static void accumulation(void) {
    const char *one[] = {FSDP2, NULL};
    const char *two[] = {FSDP2, "batch.grad_accumulation=2", NULL};
    const char *unsynced[] = {FSDP2, "batch.grad_accumulation=2",
                              "fsdp.sync_each_micro_batch=false", NULL};
    const char *const *cases[] = {one, two, unsynced};
    uint64_t at_loss[3];
    for (int i = 0; i < 3; i++) {
        stw_plan *plan = make(cases[i], STW_ACT_RECOMPUTE);
        const stw_program *program = plan->programs[0];
        const stw_movement *m = stw_program_movement(program, STW_PHASE_FORWARD_BACKWARD);
        stw_live live = {0};
        for (uint32_t op = 0; op < m->first_op + m->n_ops; op++) {
            stw_live_apply(&live, &program->ops[op]);
            if (program->ops[op].kind == STW_OP_LOSS) break;
        }
        at_loss[i] = live.bytes[STW_TIER_GPU][STW_COMPONENT_GRADS];
        const uint64_t params = plan->job->model->params;
        CU_ASSERT_EQUAL(at_loss[i], i == 0 ? 0 : i == 1 ? 4 * params / GPUS : 4 * params);
        CU_ASSERT_EQUAL(peak_of(plan, STW_PHASE_OPTIMIZER_STEP)->components[STW_COMPONENT_GRADS],
                        4 * params / GPUS);
        stw_plan_free(plan);
    }
}

/* The loss by chunks makes the gradient of the head's weight, here the tied embedding's, beside the
 * logits of a chunk; the whole loss makes it after them. */
static void fused_loss(void) {
    const char *whole[] = {FSDP2, NULL};
    const char *fused[] = {FSDP2, "loss.fused=true", "loss.chunk=128", NULL};
    for (int i = 0; i < 2; i++) {
        stw_plan *plan = make(i == 0 ? whole : fused, STW_ACT_RECOMPUTE);
        const stw_program *program = plan->programs[0];
        stw_live live = {0};
        uint32_t losses = 0;
        for (uint32_t op = 0; op < program->n_ops && losses < 2; op++) {
            stw_live_apply(&live, &program->ops[op]);
            losses += program->ops[op].kind == STW_OP_LOSS;
        }
        CU_ASSERT_EQUAL(live.bytes[STW_TIER_GPU][STW_COMPONENT_GRADS],
                        i == 0 ? 0 : 2 * (size.vocab * size.hidden + size.hidden));
        stw_plan_free(plan);
    }
}

typedef struct saved_case {
    const char *type, *settings[4];
    uint64_t token_bytes; /* of one layer */
    uint64_t logits_bytes;
} saved_case;

#define LORA(targets) "trainable.lora.rank=16", "trainable.lora.targets=[" targets "]"
/* torch 2.15 on the CPU, transformers 5.17, bf16, 256 tokens: storages that autograd saves (hooks
 * of torch.autograd.graph.saved_tensors_hooks), those of the parameters apart, by the difference of
 * models of 4 and 2 layers; of the rest, final norm and loss. */
static const saved_case saved_cases[] = {
    {"qwen3", {NULL}, 14128, 6052},
    {"qwen3", {LORA("q_proj, v_proj")}, 10352, 5028},
    {"qwen3", {LORA("q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj")}, 12560, 5028},
    {"llama", {NULL}, 11800, 6052},
    {"llama", {"attention=eager"}, 18440, 6052},
    {"gemma2", {"attention=eager"}, 25632, 8564},
};

static stw_model *small_model(const char *type) {
    char path[] = "/tmp/stw_trainable_XXXXXX";
    stw_model *model = NULL;
    int fd = mkstemp(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fprintf(file,
            "{\"model_type\": \"%s\", \"hidden_size\": 256, \"intermediate_size\": 768,"
            " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64,"
            " \"num_hidden_layers\": 4, \"vocab_size\": 1000, \"tie_word_embeddings\": false,"
            " \"max_position_embeddings\": 512, \"torch_dtype\": \"bfloat16\"%s}",
            type,
            strcmp(type, "gemma2") == 0
                ? ", \"final_logit_softcapping\": 30.0, \"attn_logit_softcapping\": 50.0"
                : "");
    fclose(file);
    CHECK_OK(stw_model_read_config(path, STW_SOURCE_MODELS, &model, err));
    unlink(path);
    return model;
}

static void saved_tensors(void) {
    for (size_t i = 0; i < sizeof saved_cases / sizeof saved_cases[0]; i++) {
        const saved_case *c = &saved_cases[i];
        const char *common[] = {"engine=fsdp2", "batch.seq_len=256"};
        stw_cluster cluster = fixture_cluster(GPUS);
        stw_run_spec run;
        stw_plan *plan = NULL;
        size_t n = 0;
        while (c->settings[n] != NULL) n++;
        CHECK_OK(stw_run_spec_init(&run, err));
        CHECK_OK(stw_specs_set_all(&cluster, &run, common, 2, "test", err));
        CHECK_OK(stw_specs_set_all(&cluster, &run, c->settings, n, "test", err));
        CHECK_OK(stw_plan_new(small_model(c->type), &cluster, &run, &plan, err));
        for (uint32_t g = 0; g < plan->job->model->n_groups; g++) {
            const uint64_t bytes = stw_activation_bytes(plan->job, g, STW_ACT_KEEP) / 256;
            if (!plan->job->model->groups[g].facts.transformer) continue;
            CU_ASSERT_EQUAL(bytes, c->token_bytes);
            if (bytes != c->token_bytes)
                fprintf(stderr, "%s: %llu, expected %llu\n", c->type, (unsigned long long)bytes,
                        (unsigned long long)c->token_bytes);
        }
        CU_ASSERT_EQUAL(stw_logits_saved_bytes(plan->job) / 256, c->logits_bytes);
        stw_plan_free(plan);
    }
}

STW_TEST_MAIN("engine trainable", {"adapters", adapters}, {"frozen tensors", frozen_tensors},
              {"refused", refused}, {"accumulation", accumulation},
              {"saved tensors", saved_tensors}, {"fused loss", fused_loss})
