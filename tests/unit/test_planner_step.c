/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing that chooses a layout or writes settings changes the training: an optimizer step keeps
 * its tokens and sequences, and an iteration its steps. Random runs of every engine through all
 * layouts of a search, then files of every framework through a search, --emit and --from.
 * STW_STEP_RUNS sets how many (bench/steps.sh runs 400); every tenth is searched to the end. */
#include <stdio.h>
#include <stdlib.h>

#include "plan/job/effect.h"
#include "planner/frameworks/emit/emit.h"
#include "planner/layouts_list.h"
#include "planner/point.h"
#include "sim/sim.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif
#define MODELS STW_SOURCE_DIR "/models"

enum { MOST_SETTINGS = 24, SETTING_BYTES = 96 };

static uint64_t seed = 20261123;

static unsigned runs(void) {
    const char *text = getenv("STW_STEP_RUNS");
    return text != NULL ? (unsigned)strtoul(text, NULL, 10) : 30;
}

static uint64_t one_of(const uint64_t *values, uint32_t n) { return values[case_random(&seed, n)]; }
#define ONE_OF(...)                                                                                \
    one_of((const uint64_t[]){__VA_ARGS__},                                                        \
           (uint32_t)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))

/* ---- settings ---- */

typedef struct settings {
    size_t n;
    char text[MOST_SETTINGS][SETTING_BYTES];
    const char *list[MOST_SETTINGS];
} settings;

static void add(settings *s, const char *key, uint64_t value) {
    snprintf(s->text[s->n], SETTING_BYTES, "%s=%llu", key, (unsigned long long)value);
    s->list[s->n] = s->text[s->n];
    s->n++;
}

static void add_text(settings *s, const char *setting) {
    snprintf(s->text[s->n], SETTING_BYTES, "%s", setting);
    s->list[s->n] = s->text[s->n];
    s->n++;
}

static void show(const char *what, const settings *s) {
    fprintf(stderr, "%s:", what);
    for (size_t i = 0; i < s->n; i++) fprintf(stderr, " --set %s", s->list[i]);
    fprintf(stderr, "\n");
}

static stw_status finish(stw_plan *plan, stw_error *e) { return stw_sim_plan(plan, NULL, e); }

static stw_status plan_of(const stw_import *import, const stw_model *model,
                          const stw_cluster *cluster, const settings *s, bool whole, stw_plan **out,
                          stw_error *e) {
    const stw_point_base base = {.model = model,
                                 .import = import,
                                 .cluster = cluster,
                                 .simulate = stw_sim_seconds,
                                 .finish = finish};
    const stw_point_options options = {.time_limit_s = 60, .fits_only = !whole};
    *out = NULL;
    return stw_point_plan(&base, s->list, s->n, &options, out, e);
}

/* What training is: a search and settings of a framework keep it. */
typedef struct training {
    uint64_t tokens, seq_len, mini_batches, epochs;
} training;

static training of_run(const stw_run_spec *run, uint64_t world) {
    return (training){stw_run_spec_step_tokens(run, world), run->batch.seq_len,
                      run->batch.mini_batches, run->batch.epochs};
}

static training of_plan(const stw_plan *plan) { return of_run(&plan->run, plan->job->world); }

static bool same(training a, training b) {
    const bool is = a.tokens == b.tokens && a.seq_len == b.seq_len &&
                    a.mini_batches == b.mini_batches && a.epochs == b.epochs;
    if (!is)
        fprintf(stderr,
                "%llu tokens in sequences of %llu, %llu x %llu steps; %llu, %llu, %llu x %llu\n",
                (unsigned long long)a.tokens, (unsigned long long)a.seq_len,
                (unsigned long long)a.mini_batches, (unsigned long long)a.epochs,
                (unsigned long long)b.tokens, (unsigned long long)b.seq_len,
                (unsigned long long)b.mini_batches, (unsigned long long)b.epochs);
    return is;
}

/* ---- all layouts of a search ---- */

static const char *const engines[] = {"stowage", "fsdp2", "megatron", "deepspeed"};
static const char *const zoo[] = {"Qwen3-0.6B", "Qwen3-30B-A3B"};

static stw_model *model_named(const char *name) {
    stw_model *model = NULL;
    CHECK_OK(stw_model_open(name, MODELS, &model, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(model);
    return model;
}

/* A run of an engine on so many ranks; tokens of a step may be given. */
static void choose_run(uint32_t engine, uint64_t world, settings *s) {
    const uint64_t length = ONE_OF(1024, 2048, 4096), packed = ONE_OF(0, 0, 4096, 6000, 16384);
    const uint64_t micro = packed > 0 ? 1 : ONE_OF(1, 2, 4), n = ONE_OF(1, 2, 3, 4, 8, 12);
    const bool megatron = strcmp(engines[engine], "megatron") == 0;
    const uint64_t cp = strcmp(engines[engine], "deepspeed") == 0 ? 1 : ONE_OF(1, 1, 2);
    const uint64_t tp = megatron ? ONE_OF(1, 2, 4) : 1, pp = megatron ? ONE_OF(1, 2) : 1;
    char name[SETTING_BYTES];
    *s = (settings){0};
    snprintf(name, sizeof name, "engine=%s", engines[engine]);
    add_text(s, name);
    add(s, "batch.seq_len", length);
    if (packed > 0) add(s, "batch.max_tokens_per_gpu", packed);
    add(s, "batch.micro_batch", micro);
    add(s, "batch.grad_accumulation", n);
    if (cp > 1) add(s, "parallel.cp", cp);
    if (tp > 1) add(s, "parallel.tp", tp);
    if (pp > 1) add(s, "parallel.pp", pp);
    add(s, "batch.mini_batches", ONE_OF(1, 2, 4));
    add(s, "batch.epochs", ONE_OF(1, 1, 2));
    /* packed sequences leave room in the last micro batch */
    const uint64_t full = packed * (world / (tp * pp)), used = full / length * length;
    if (packed > 0 && used > 0 && case_random(&seed, 2) == 0)
        add(s, "batch.tokens_per_step", full * (n - 1) + used);
}

static stw_status read_run(const settings *s, stw_run_spec *run, stw_error *e) {
    stw_status status = stw_run_spec_init(run, e);
    for (size_t i = 0; i < s->n && status == STW_STATUS_OK; i++) {
        char key[SETTING_BYTES];
        const size_t length = strcspn(s->list[i], "=");
        snprintf(key, sizeof key, "%.*s", (int)length, s->list[i]);
        status = stw_run_spec_set(run, key, s->list[i] + length + 1, "test", e);
    }
    return status;
}

/* A layout's run, and now and then its job. @return is the training another? */
static bool differs(const stw_layout_list *layouts, uint32_t i, const stw_run_spec *of,
                    training want) {
    stw_run_spec run = *of;
    stw_plan *plan = NULL;
    stw_error why = STW_ERROR_INIT;
    run.pool = stw_pool_new();
    CHECK_OK(stw_layout_apply(layouts, i, &run, err));
    bool other = !same(of_run(&run, layouts->c.world), want);
    if (case_random(&seed, 64) == 0 && stw_plan_new_sharing(layouts->c.model, layouts->c.cluster,
                                                            &run, &plan, &why) == STW_STATUS_OK) {
        const stw_job *job = plan->job;
        const stw_run_spec *now = &plan->run;
        const uint64_t ways = (uint64_t)now->parallel.tp * now->parallel.pp;
        const uint64_t micro = job->tokens * job->world / ways;
        other = other || !same(of_plan(plan), want);
        /* micro batches that hold the step, and no empty one */
        CU_ASSERT_TRUE(micro * now->batch.grad_accumulation >= want.tokens);
        CU_ASSERT_TRUE(micro * (now->batch.grad_accumulation - 1) < want.tokens);
        CU_ASSERT_EQUAL(stw_job_iteration_tokens(job),
                        want.tokens * want.mini_batches * want.epochs);
    }
    stw_plan_free(plan);
    stw_run_spec_free(&run);
    return other;
}

/* @return layouts that were looked at; 0: the run is refused */
static uint32_t all_layouts(const settings *s, const stw_model *model, const stw_cluster *cluster) {
    stw_run_spec run;
    stw_layout_list layouts = {0};
    stw_error why = STW_ERROR_INIT;
    stw_pool *pool = stw_pool_new();
    const uint64_t world = (uint64_t)cluster->nodes * cluster->gpus;
    uint32_t n = 0, others = 0;
    CHECK_OK(read_run(s, &run, err));
    const training want = of_run(&run, world);
    if (stw_run_spec_check(&run, "test", &why) == STW_STATUS_OK) {
        CHECK_OK(stw_run_spec_set(&run, "parallel", "auto", "test", err));
        run.searches.given = 0; /* and what was set, too */
        const stw_engine *engine = stw_engine_find(run.engine);
        const stw_layout_case c = {.model = model,
                                   .cluster = cluster,
                                   .run = &run,
                                   .ranks_per_node = cluster->gpus,
                                   .world = (uint32_t)world,
                                   .searched =
                                       stw_run_spec_searched(&run, engine->layouts->searches)};
        if (stw_layouts_list(&c, engine->layouts, pool, &layouts, &why) == STW_STATUS_OK)
            n = layouts.n;
        for (uint32_t i = 0; i < n; i++) others += differs(&layouts, i, &run, want);
    }
    CU_ASSERT_EQUAL(others, 0);
    if (others > 0) show("other tokens", s);
    stw_pool_free(pool);
    stw_run_spec_free(&run);
    return n;
}

/* The search itself: what it chooses and what it compares with. */
static void searched(const settings *closed, const stw_model *model, const stw_cluster *cluster) {
    settings open = *closed;
    stw_plan *before = NULL, *after = NULL;
    stw_error why = STW_ERROR_INIT;
    for (size_t i = 0; i < open.n; i++) open.list[i] = open.text[i];
    add_text(&open, "parallel=auto");
    if (plan_of(NULL, model, cluster, closed, false, &before, &why) == STW_STATUS_OK &&
        plan_of(NULL, model, cluster, &open, true, &after, &why) == STW_STATUS_OK) {
        CU_ASSERT_TRUE(same(of_plan(before), of_plan(after)));
        if (!same(of_plan(before), of_plan(after))) show("other tokens after a search", &open);
    }
    stw_plan_free(before);
    stw_plan_free(after);
}

static void layouts_keep_the_step(void) {
    stw_model *models[2] = {model_named(zoo[0]), model_named(zoo[1])};
    uint32_t of_engine[4] = {0};
    for (unsigned i = 0, tries = 0; i < runs() && tries < 20 * runs(); tries++) {
        const uint32_t engine = i % 4, m = case_random(&seed, 4) == 0;
        stw_cluster cluster = fixture_cluster((uint32_t)ONE_OF(4, 8));
        settings s;
        cluster.nodes = (uint32_t)ONE_OF(1, 2, 3);
        cluster.nic_bps = 25e9;
        choose_run(engine, (uint64_t)cluster.nodes * cluster.gpus, &s);
        const uint32_t n = all_layouts(&s, models[m], &cluster);
        if (n == 0) continue;
        of_engine[engine] += n;
        if (i++ % 10 == 9) searched(&s, models[0], &cluster);
    }
    for (int e = 0; e < 4; e++) CU_ASSERT_TRUE(of_engine[e] > runs());
    stw_model_free(models[0]);
    stw_model_free(models[1]);
}

/* ---- files ---- */

#define A "actor_rollout_ref.actor."
#define PPO                                                                                        \
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=1536 "   \
    "actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.rollout.name=vllm "            \
    "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 data.train_batch_size=192 " A          \
    "ppo_mini_batch_size=48 actor_rollout_ref.rollout.n=8 " A "ppo_epochs=2 "
#define SWIFT "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-0.6B --torch_dtype bfloat16 "
#define AREAL(backend)                                                                             \
    "allocation_mode: sglang:d8+" backend "\ncluster: {n_nodes: 2, n_gpus_per_node: 8}\n"          \
    "gconfig: {n_samples: 4, max_new_tokens: 512}\n"                                               \
    "train_dataset: {batch_size: 96, max_length: 512, path: x}\nactor:\n"                          \
    "  path: Qwen/Qwen3-0.6B\n  dtype: bfloat16\n  kl_ctl: 0.0\n  ppo_n_minibatches: 3\n"

/* What is read of a file: worked out by hand. 0 tokens: as many as its ranks have. */
typedef struct kind {
    const char *framework, *text, *model;
    training want;
    const char *keys[8]; /* searched by themselves */
} kind;

static const kind kinds[] = {
    {"verl",
     PPO A "strategy=fsdp2 " A "ppo_micro_batch_size_per_gpu=2\n",
     NULL,
     {48 * 8 * 2048, 2048, 4, 2},
     {"parallel.cp", "batch.micro_batch", "loss.fused"}},
    {"verl",
     PPO A "strategy=fsdp2 " A "use_dynamic_bsz=True " A "ppo_max_token_len_per_gpu=10000 " A
           "ulysses_sequence_parallel_size=4\n",
     NULL,
     {48 * 8 * 2048, 2048, 4, 2},
     {"parallel.cp", "loss.fused", "parallel.dp_replicate"}},
    {"verl",
     PPO "--config-name=ppo_megatron_trainer " A "ppo_micro_batch_size_per_gpu=1 " A
         "megatron.tensor_model_parallel_size=2\n",
     NULL,
     {48 * 8 * 2048, 2048, 4, 2},
     {"parallel.tp", "parallel.pp", "parallel.cp", "batch.micro_batch"}},
    {"areal",
     AREAL("fsdp:d8") "  mb_spec: {max_tokens_per_mb: 5000}\n  recompute_logprob: true\n",
     NULL,
     {96 * 4 / 3 * 1024, 1024, 3, 1},
     {"parallel.cp", "parallel.dp_replicate"}},
    {"areal",
     AREAL("megatron:d4t2") "  mb_spec: {n_mbs: 2}\n",
     NULL,
     {96 * 4 / 3 * 1024, 1024, 3, 1},
     {"parallel.tp", "parallel.pp", "batch.micro_batch"}},
    {"megatron",
     "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --bf16 --swiglu "
     "--micro-batch-size 2 --global-batch-size 96 --untie-embeddings-and-output-weights "
     "--max-position-embeddings 4096 --use-distributed-optimizer\n",
     NULL,
     {96 * 1024, 1024, 1, 1},
     {"parallel.tp", "parallel.pp", "parallel.vpp", "parallel.cp", "batch.micro_batch"}},
    {"ms-swift",
     "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-0.6B --max_length 1024 "
     "--tensor_model_parallel_size 2 --global_batch_size 48 --packing true --dataset x\n",
     NULL,
     {48 * 1024, 1024, 1, 1},
     {"parallel.tp", "parallel.pp", "batch.micro_batch"}},
    {"ms-swift",
     SWIFT "--deepspeed zero3 --max_length 1024 --per_device_train_batch_size 2 "
           "--gradient_accumulation_steps 6 --dataset x\n",
     NULL,
     {8 * 2 * 6 * 1024, 1024, 1, 1},
     {"batch.micro_batch"}},
    {"llamafactory",
     "model_name_or_path: Qwen/Qwen3-0.6B\nstage: sft\nfinetuning_type: full\nbf16: true\n"
     "deepspeed: examples/deepspeed/ds_z3_config.json\ncutoff_len: 1024\ndataset: x\n"
     "per_device_train_batch_size: 4\ngradient_accumulation_steps: 3\n",
     NULL,
     {8 * 4 * 3 * 1024, 1024, 1, 1},
     {"batch.micro_batch"}},
    {"deepspeed",
     "{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true},\n"
     "\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 4}\n",
     "Qwen3-0.6B",
     {8 * 3 * 4 * 1024, 1024, 1, 1},
     {"batch.micro_batch"}},
};

/* A DeepSpeed config says nothing of these. */
static const char *const untold[] = {"batch.seq_len=1024", "recompute.granularity=full",
                                     "attention=flash"};

static void tell(const kind *k, settings *s) {
    for (size_t i = 0; i < 3 && k->model != NULL; i++) add_text(s, untold[i]);
}

static bool equal_bytes(const stw_plan *a, const stw_plan *b) {
    if (a->job->n_kinds != b->job->n_kinds) return false;
    for (uint32_t k = 0; k < a->job->n_kinds; k++)
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            for (uint32_t m = 0; m < 3; m++)
                if (stw_peaks_bytes(&a->shown[k], p, m) != stw_peaks_bytes(&b->shown[k], p, m))
                    return false;
    return true;
}

/* Settings of the plan, read back and planned: the same training, and the same bytes where they
 * say all of the plan. What is refused is no plan's. @return was something emitted? */
static bool emitted(const kind *k, const stw_plan *plan, const stw_import *import,
                    const stw_cluster *cluster, const settings *s) {
    stw_text text = STW_TEXT_INIT, notes = STW_TEXT_INIT;
    stw_import again = {.pool = NULL};
    stw_plan *second = NULL;
    stw_model *model = NULL;
    stw_error why = STW_ERROR_INIT;
    settings more = {0};
    const stw_emit_options options = {
        .from = k->framework, .import = import, .data_folder = MODELS, .simulate = stw_sim_seconds};
    const stw_status status = stw_emit_plan(k->framework, plan, &options, &text, &notes, &why);
    CU_ASSERT_TRUE(status == STW_STATUS_OK || stw_point_refuses(status));
    if (status == STW_STATUS_OK) {
        CHECK_OK(stw_import_parse(k->framework, "again", text.data, text.length, &again, err));
        CHECK_OK(stw_import_model(&again, k->model, MODELS, &model, err));
        add_text(&more, s->text[0]);
        tell(k, &more);
        CHECK_OK(plan_of(&again, model, cluster, &more, false, &second, err));
        const bool all = notes.data == NULL || strstr(notes.data, "do not say") == NULL;
        const bool kept = second != NULL && same(of_plan(plan), of_plan(second)) &&
                          (!all || k->model != NULL || equal_bytes(plan, second));
        CU_ASSERT_TRUE(kept);
        if (!kept) show(k->framework, s);
        if (!kept) fprintf(stderr, "%s\n", text.data);
    } else {
        CU_ASSERT_EQUAL(text.length, 0);
    }
    stw_plan_free(second);
    stw_model_free(model);
    stw_import_free(&again);
    stw_text_free(&text);
    stw_text_free(&notes);
    return status == STW_STATUS_OK;
}

/* Some keys of the file's are searched, or all; GPUs that the plainest layouts do not fit on. */
static void open_some(const kind *k, settings *s) {
    *s = (settings){0};
    static const char *const sizes[] = {"6 GiB", "10 GiB", "20 GiB", "80 GiB"};
    char memory[SETTING_BYTES];
    snprintf(memory, sizeof memory, "node.gpu.memory=%s", sizes[case_random(&seed, 4)]);
    add_text(s, memory); /* the first one, which is told again */
    tell(k, s);
    if (case_random(&seed, 2) == 0) add_text(s, "parallel=auto");
    for (size_t i = 0; i < 8 && k->keys[i] != NULL; i++) {
        char setting[SETTING_BYTES];
        snprintf(setting, sizeof setting, "%s=auto", k->keys[i]);
        if (case_random(&seed, 2) == 0) add_text(s, setting);
    }
}

static void files_keep_the_step(void) {
    const unsigned n_kinds = sizeof kinds / sizeof kinds[0];
    unsigned written = 0, planned = 0;
    for (unsigned i = 0; i < runs(); i++) {
        const kind *k = &kinds[i % n_kinds];
        stw_import import;
        stw_model *model = NULL;
        stw_cluster cluster;
        stw_plan *plan = NULL;
        stw_error why = STW_ERROR_INIT;
        settings s;
        CHECK_OK(stw_import_parse(k->framework, "file", k->text, strlen(k->text), &import, err));
        CHECK_OK(stw_import_model(&import, k->model, MODELS, &model, err));
        CHECK_OK(stw_cluster_defaults(&cluster, err));
        CHECK_OK(stw_cluster_read(MODELS "/examples/h100-80g-x8.yaml", &cluster, err));
        /* another number of GPUs, where the file says the sequences of a step */
        const bool fixed = import.global_batch > 0 || import.step_sequences > 0;
        const bool areal = strcmp(k->framework, "areal") == 0;
        cluster.nodes = areal ? 2 : fixed ? (uint32_t)ONE_OF(1, 2, 3) : 1;
        open_some(k, &s);
        const stw_status status = plan_of(&import, model, &cluster, &s, i % 10 == 9, &plan, &why);
        CU_ASSERT_TRUE(status == STW_STATUS_OK || stw_point_refuses(status));
        if (status == STW_STATUS_OK) {
            planned++;
            CU_ASSERT_TRUE(same(of_plan(plan), k->want));
            if (!same(of_plan(plan), k->want)) show(k->framework, &s);
            written += emitted(k, plan, &import, &cluster, &s);
        }
        stw_plan_free(plan);
        stw_model_free(model);
        stw_import_free(&import);
    }
    CU_ASSERT_TRUE(planned * 2 > runs());
    CU_ASSERT_TRUE(written * 2 > planned);
    if (getenv("STW_STEP_RUNS") != NULL)
        printf("%u files: %u planned, %u emitted and read back\n", runs(), planned, written);
}

STW_TEST_MAIN("planner step", {"layouts keep the step", layouts_keep_the_step},
              {"files keep the step", files_keep_the_step})
