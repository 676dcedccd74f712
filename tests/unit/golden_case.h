/* SPDX-License-Identifier: Apache-2.0 */
/* Small jobs of every engine, and tables of tests/golden/ that say what comes of them. A file that
 * includes this defines _XOPEN_SOURCE (mkstemp, fdopen) first. UPDATE=1 writes a table anew. */
#ifndef STW_TESTS_UNIT_GOLDEN_CASE_H
#define STW_TESTS_UNIT_GOLDEN_CASE_H

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif

/* ---- jobs ---- */

#define MOST_SETTINGS 14
typedef struct job_case {
    const char *name, *model; /* of the zoo */
    unsigned layers;          /* instead of its own; 0: its own */
    uint32_t choices;         /* drawn decisions */
    const char *settings[MOST_SETTINGS];
} job_case;

#define TIGHT "node.gpu.memory=4 GiB", "batch.seq_len=1024"
#define MEASURED                                                                                   \
    "node.gpu.update=3.1 TB/s", "node.gpu.norm=2.9 TB/s", "node.gpu.norm_bf16=2.5 TB/s",           \
        "node.gpu.best_bf16=700 TFLOP/s", "node.host.dma_up=70 GB/s",                              \
        "node.host.dma_down=80 GB/s", "node.host.cache=96 MiB"
#define RING "prefetch.depth=2", "prefetch.bucket=16 MiB"
#define BF16 "precision.params=bf16", "precision.grads=bf16", "precision.reduce=bf16"
#define MASTER "precision.params=bf16", "precision.master=fp32"
#define BF16_STATE BF16, "precision.exp_avg=bf16", "precision.exp_avg_sq=bf16"
#define FSDP2 "engine=fsdp2", "nodes=1"
#define MEGATRON "engine=megatron", MASTER
#define ZERO "engine=deepspeed", BF16, "precision.master=fp32"
#define ROLLOUT "{name: a, parallel: {tp: 2}, gpu_memory_utilization: 0.4, max_model_len: 2k"

static const job_case golden_jobs[] = {
    {"stowage", "Qwen3-0.6B", 6, 4, {"nodes=1", "node.gpus=2", TIGHT, MEASURED, RING}},
    {"stowage-alone", "Qwen3-8B", 2, 3, {"nodes=1", "node.gpus=1", "loss.fused=true", RING}},
    {"stowage-nvme",
     "Qwen3-0.6B",
     4,
     3,
     {"node.gpus=2", "placement.moments=nvme", "node.nvme.both=4 GB/s", "node.host.cache=64 MiB",
      RING}},
    {"stowage-nvme-once",
     "Qwen3-0.6B",
     3,
     2,
     {"node.gpus=1", "placement.moments=nvme", "placement.nvme_copies=2", "load.weights=/weights",
      "load.page_cached=true", RING}},
    {"stowage-shares",
     "Qwen3-0.6B",
     4,
     2,
     {"nodes=2", "node.gpus=2", "update.resident=0.2", "update.stream=0.3", "update.direct=0.2",
      "update.cpu=0.3", BF16, "load.weights=/weights", RING}},
    {"stowage-experts",
     "Qwen3-30B-A3B",
     3,
     2,
     {"nodes=2", "node.gpus=2", "parallel.ep=4", MASTER, "placement.master=host", RING}},
    {"stowage-uneven", "Qwen3-0.6B", 5, 2, {"nodes=3", "node.gpus=5", RING}},
    {"fsdp2", "Qwen3-8B", 3, 2, {FSDP2, "optimizer.implementation=fused", "batch.epochs=2"}},
    {"fsdp2-streamed",
     "Qwen3-8B",
     3,
     3,
     {FSDP2, "optimizer.implementation=streamed", "placement.moments=host", "node.gpus=4"}},
    {"fsdp2-offload",
     "Qwen3-1.7B",
     3,
     2,
     {FSDP2, "fsdp.offload_policy=true", "node.gpus=4", "node.torch.launcher=1 GiB",
      "node.pcie.pageable=7 GB/s"}},
    {"fsdp2-replicated",
     "Qwen3-8B",
     3,
     1,
     {"engine=fsdp2", "nodes=2", "parallel.dp_replicate=2", "batch.grad_accumulation=3",
      "fsdp.reshard_after_forward=false", BF16_STATE}},
    {"fsdp2-tp",
     "Qwen3-8B",
     3,
     1,
     {"engine=fsdp2", "nodes=2", "parallel.tp=2", "parallel.sequence_parallel=true",
      "batch.grad_accumulation=2"}},
    {"fsdp2-experts", "DeepSeek-V2-Lite", 4, 1, {"engine=fsdp2", "nodes=2", "parallel.ep=8"}},
    {"fsdp2-parked",
     "Qwen3-4B",
     3,
     1,
     {FSDP2, "park.params=host", "park.moments=host", "park.moments_back=forward_backward",
      "roles=[" ROLLOUT "}]"}},
    {"fsdp2-lora",
     "Qwen2.5-7B",
     3,
     1,
     {FSDP2, BF16_STATE, "batch.grad_accumulation=2",
      "trainable.lora={rank: 16, targets: [q_proj, k_proj, v_proj]}"}},
    {"fsdp2-vision",
     "Qwen2.5-VL-3B-Instruct",
     3,
     1,
     {FSDP2, "batch.image_tokens=512", "checkpoint.every=10", "recompute.granularity=full"}},
    {"fsdp2-steps",
     "Qwen3-4B",
     2,
     1,
     {FSDP2, "batch.mini_batches=4", "batch.log_prob_micro_batch=2", "batch.epochs=2",
      "checkpoint.every=5", "checkpoint.async=true"}},
    {"fsdp2-hybrid", "Qwen3.5-0.8B", 0, 1, {FSDP2, "node.gpus=2", "batch.seq_len=2048"}},
    {"megatron", "Qwen3-8B", 4, 1, {MEGATRON, "nodes=1", "megatron.overlap_grad_reduce=true"}},
    {"megatron-stages",
     "Qwen3-8B",
     8,
     1,
     {MEGATRON, "nodes=2", "parallel.pp=4", "parallel.vpp=2", "parallel.tp=2",
      "parallel.sequence_parallel=true", "batch.grad_accumulation=8"}},
    {"megatron-experts",
     "Qwen3-30B-A3B",
     4,
     1,
     {MEGATRON, "nodes=2", "parallel.ep=8", "recompute.granularity=full",
      "recompute.method=uniform", "recompute.num_layers=1"}},
    {"megatron-offload",
     "Qwen3-4B",
     4,
     1,
     {MEGATRON, "nodes=1", "megatron.optimizer_offload_fraction=0.5",
      "megatron.precision_aware=true", "node.torch.process=3 GiB"}},
    {"megatron-attention",
     "DeepSeek-V2-Lite",
     4,
     1,
     {MEGATRON, "nodes=1", "parallel.tp=2", "parallel.ep=4", "parallel.sequence_parallel=true",
      "attention=eager", "recompute.granularity=selective"}},
    {"megatron-saved",
     "Llama-3.1-8B",
     3,
     1,
     {MEGATRON, "nodes=1", "checkpoint.every=10", "park.params=host", "park.moments=host"}},
    {"deepspeed-1", "Qwen3-4B", 3, 1, {ZERO, "deepspeed.zero_stage=1", "node.gpus=2"}},
    {"deepspeed-2",
     "Qwen3-4B",
     3,
     1,
     {ZERO, "deepspeed.zero_stage=2", "deepspeed.offload_optimizer=cpu",
      "batch.grad_accumulation=2"}},
    {"deepspeed-3",
     "Qwen3-4B",
     4,
     2,
     {ZERO, "nodes=2", "deepspeed.sub_group_size=1e7", "deepspeed.prefetch_bucket=1e7"}},
    {"deepspeed-cpu",
     "Qwen3-4B",
     4,
     2,
     {ZERO, "deepspeed.offload_optimizer=cpu", "deepspeed.offload_param=cpu",
      "deepspeed.sub_group_size=1e8", "optimizer.cpu_threads=4", "node.host.bandwidth=400 GB/s"}},
    {"deepspeed-nvme",
     "Qwen3-0.6B",
     3,
     2,
     {ZERO, "node.gpus=1", "deepspeed.param_buffer_size=2e8", "deepspeed.offload_optimizer=nvme",
      "deepspeed.offload_param=nvme", "deepspeed.sub_group_size=1e8",
      "deepspeed.pipeline_write=true", "deepspeed.optimizer_buffer_count=12"}},
    {"roles",
     "Qwen3-4B",
     3,
     1,
     {"engine=fsdp2", "nodes=1",
      "roles=[" ROLLOUT ", sleep_level: 1}, {name: b, kind: reference}, {name: c, kind: critic}]"}},
    {"roles-apart",
     "Qwen3-4B",
     3,
     1,
     {"engine=megatron", MASTER, "nodes=3",
      "roles=[" ROLLOUT ", with: none, nodes: 1, engine: sglang}, "
      "{name: b, kind: reward, with: a}]"}},
    {"fsdp2-expandable",
     "Qwen3-8B",
     3,
     1,
     {FSDP2, "allocator.expandable_segments=true", "node.gpus=2", "batch.micro_batch=2",
      "batch.grad_accumulation=5"}},
    {"fsdp2-full",
     "Qwen3-8B",
     3,
     1,
     {FSDP2, "node.gpus=2", "node.gpu.memory=24 GiB", "allocator.max_split_size=64 MiB",
      "allocator.roundup_power2_divisions=4", "batch.grad_accumulation=2"}},
    {"fsdp2-retries",
     "Qwen3-8B",
     3,
     1,
     {FSDP2, "node.gpus=2", "node.gpu.memory=30 GiB", "batch.grad_accumulation=2"}},
    {"host-only", "Qwen3-0.6B", 2, 2, {"nodes=1", "node.gpus=0"}},
    {"fsdp2-stowage",
     "Qwen3-8B",
     3,
     3,
     {FSDP2, "optimizer.implementation=stowage", "optimizer.overlap=true", MASTER,
      "precision.grads=bf16", "node.gpus=4", "batch.grad_accumulation=2", RING}},
    {"fsdp2-stowage-lora",
     "Qwen2.5-7B",
     3,
     2,
     {FSDP2, "optimizer.implementation=stowage", "optimizer.overlap=true", "precision.params=bf16",
      "node.gpus=2", "trainable.lora={rank: 16, targets: [q_proj, k_proj]}", "checkpoint.every=10",
      RING}},
    {"megatron-muon",
     "Qwen3-30B-A3B",
     4,
     1,
     {MEGATRON, "nodes=1", "optimizer.kind=muon", "megatron.distributed_optimizer=false",
      "parallel.tp=2", "parallel.sequence_parallel=true", "parallel.ep=4"}},
    {"megatron-muon-dealt",
     "Qwen3-8B",
     4,
     1,
     {MEGATRON, "nodes=2", "optimizer.kind=muon", "megatron.overlap_grad_reduce=true",
      "parallel.pp=2", "batch.grad_accumulation=4"}},
};

/* A config of the zoo with another number of layers, through a file of its own. */
static stw_status open_model(const job_case *c, stw_model **out, stw_error *err) {
    static const char key[] = "\"num_hidden_layers\":";
    char from[512], to[] = "/tmp/stw_golden_XXXXXX", *text = NULL;
    uint64_t length = 0;
    if (c->layers == 0) return stw_model_open(c->model, STW_SOURCE_MODELS, out, err);
    snprintf(from, sizeof from, "%s/zoo/%s.json", STW_SOURCE_MODELS, c->model);
    stw_status status = stw_file_read(from, 1 << 20, &text, &length, err);
    if (status != STW_STATUS_OK) return status;
    char *at = strstr(text, key), *end = NULL;
    int fd = mkstemp(to);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (at == NULL || file == NULL) exit(2);
    at += strlen(key);
    (void)strtoul(at, &end, 10);
    fprintf(file, "%.*s %u%s", (int)(at - text), text, c->layers, end);
    fclose(file);
    status = stw_model_read_config(to, STW_SOURCE_MODELS, out, err);
    unlink(to);
    free(text);
    return status;
}

static stw_plan *golden_plan(const job_case *c) {
    stw_error error = STW_ERROR_INIT, *err = &error;
    stw_status status = STW_STATUS_OK;
    stw_cluster cluster = fixture_cluster(8);
    stw_run_spec run;
    stw_model *model = NULL;
    stw_plan *plan = NULL;
    size_t n = 0;
    while (n < MOST_SETTINGS && c->settings[n] != NULL) n++;
    STW_TRY(stw_run_spec_init(&run, err));
    STW_TRY(stw_specs_set_all(&cluster, &run, c->settings, n, c->name, err));
    STW_TRY(stw_cluster_check(&cluster, c->name, err));
    STW_TRY(stw_run_spec_check(&run, c->name, err));
    STW_TRY(open_model(c, &model, err));
    STW_TRY(stw_plan_new(model, &cluster, &run, &plan, err));
out:
    if (status != STW_STATUS_OK) {
        fprintf(stderr, "%s: %s: %s\n", c->name, error.where, error.text);
        stw_plan_free(plan);
        return NULL;
    }
    return plan;
}

/* ---- tables ---- */

static const double SAME = 1e-6;

/* Equal up to the rounding of numbers with a point. */
static bool is_same(const char *a, const char *b) {
    while (*a != '\0' || *b != '\0') {
        const size_t n = strcspn(a, ",\n"), m = strcspn(b, ",\n");
        char *a_end = NULL, *b_end = NULL;
        const double x = strtod(a, &a_end), y = strtod(b, &b_end);
        const bool numbers = a_end == a + n && b_end == b + m &&
                             (memchr(a, '.', n) != NULL || memchr(b, '.', m) != NULL);
        if (numbers ? !(fabs(x - y) <= SAME * fabs(y)) : n != m || memcmp(a, b, n) != 0)
            return false;
        if (a[n] != b[m]) return false;
        a += n + (a[n] != '\0');
        b += m + (b[m] != '\0');
    }
    return true;
}

static void check_table(char *golden, char *found) {
    unsigned moved = 0;
    while (*golden != '\0' || *found != '\0') {
        char *g_end = golden + strcspn(golden, "\n"), *f_end = found + strcspn(found, "\n");
        char *g_next = g_end + (*g_end != '\0'), *f_next = f_end + (*f_end != '\0');
        *g_end = *f_end = '\0';
        if (!is_same(golden, found) && moved++ < 10)
            fprintf(stderr, "golden: %s\nfound:  %s\n", golden, found);
        golden = g_next;
        found = f_next;
    }
    if (moved > 0)
        fprintf(stderr, "%u rows moved; UPDATE=1 writes the table anew where that is meant\n",
                moved);
    CU_ASSERT_EQUAL(moved, 0);
}

/* Hold a text to a table, or write it there. */
static void golden_check(const char *path, const stw_text *found) {
    char *golden = NULL;
    uint64_t length = 0;
    CHECK_OK(stw_text_status(found, err));
    if (getenv("UPDATE") != NULL) {
        FILE *file = fopen(path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        CU_ASSERT_EQUAL(fwrite(found->data, 1, found->length, file), found->length);
        CU_ASSERT_EQUAL(fclose(file), 0);
    } else {
        CHECK_OK(stw_file_read(path, 1 << 24, &golden, &length, err));
        if (golden != NULL) check_table(golden, found->data);
    }
    free(golden);
}

#endif
