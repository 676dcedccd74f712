/* SPDX-License-Identifier: Apache-2.0 */
/* Files in which memory ended: what is read of each (failures.csv names their sources), and what is
 * said of some with a plan. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "models/table.h"
#include "plan/files/verdict.h"
#include "planner/explain/explain.h"
#include "planner/planner.h"
#include "reports/reports.h"
#include "tests/unit/planner_case.h"
#include "tests/unit/testing.h"

#ifndef STW_SOURCE_DIR
#define STW_SOURCE_DIR "."
#endif

#define CORPUS STW_SOURCE_DIR "/tests/fuzz/corpus/failure/"

typedef struct answer {
    stw_failures *found;
    stw_explanation *e;
} answer;

static answer explain(const char *file, const char *text, const stw_plan *plan) {
    const stw_explain_options options = {.data_folder = STW_SOURCE_MODELS,
                                         .simulate = stw_sim_seconds};
    answer out = {NULL, NULL};
    if (text != NULL)
        CHECK_OK(stw_failures_parse(file, text, strlen(text), &out.found, err));
    else
        CHECK_OK(stw_failures_read(file, &out.found, err));
    if (out.found != NULL) CHECK_OK(stw_explain(out.found, plan, &options, &out.e, err));
    if (out.e == NULL) exit(2);
    return out;
}

static void drop(answer *a) {
    stw_explanation_free(a->e);
    stw_failures_free(a->found);
}

/* "-": not said. */
static bool is_word(const char *expected, const char *found) {
    return strcmp(expected, found != NULL ? found : "-") == 0;
}

static bool is_count(const char *expected, uint64_t found) {
    char text[24] = "-";
    if (found != STW_NOT_SAID) snprintf(text, sizeof text, "%" PRIu64, found);
    return strcmp(expected, text) == 0;
}

static bool is_right(const char *const *f, const stw_explanation *e) {
    static const stw_failure none;
    const stw_failure *x = e->failure;
    const bool any = x != NULL;
    if (!any) x = &none;
    return is_word(f[1], any ? stw_failure_name(x->kind) : NULL) &&
           is_word(f[2], any ? x->who : NULL) &&
           is_word(f[3], e->phase < STW_N_PHASES ? stw_phase_name((stw_phase)e->phase) : NULL) &&
           is_word(f[4], e->part) &&
           is_word(f[5], e->component < STW_N_COMPONENTS
                             ? stw_component_name((stw_component)e->component)
                             : NULL) &&
           is_word(f[6], stw_cause_name(e->cause)) &&
           is_count(f[7], any ? x->asked : STW_NOT_SAID) &&
           is_count(f[8], any ? x->unused : STW_NOT_SAID);
}

static void real_texts(void) {
    stw_pool *pool = stw_pool_new();
    stw_table table = {.n_rows = 0};
    size_t public_texts = 0;
    CHECK_OK(stw_table_read(pool, STW_SOURCE_DIR "/tests/unit/failures.csv", &table, err));
    for (size_t r = 1; r < table.n_rows; r++) {
        const char *const *f = table.rows[r].fields;
        char path[600];
        snprintf(path, sizeof path, CORPUS "%s", f[0]);
        answer a = explain(path, NULL, NULL);
        const bool right = is_right(f, a.e);
        if (!right) fprintf(stderr, "%s: other than in failures.csv\n", f[0]);
        CU_ASSERT(right);
        /* what is not known is said, and which command makes a plan */
        CU_ASSERT(a.e->failure == NULL || a.e->phase < STW_N_PHASES || a.e->n_unknown > 0);
        CU_ASSERT(a.e->plan_command != NULL && a.e->n_changes == 0);
        public_texts += strstr(f[9], "github.com/") != NULL;
        drop(&a);
    }
    CU_ASSERT(public_texts >= 30);
    stw_pool_free(pool);
}

static uint64_t held(const stw_explanation *e, stw_component component) {
    for (uint32_t i = 0; i < e->n_parts; i++)
        if (e->parts[i].component == component) return e->parts[i].held >> 20;
    return 0;
}

/* tests/fuzz/failure_snapshots.py says what was alive. */
static void snapshots(void) {
    answer a = explain(CORPUS "snapshot_backward", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->allocated, 3328ull << 20); /* freed after the failure, too */
    CU_ASSERT_EQUAL(held(a.e, STW_COMPONENT_PARAMS), 2048);
    CU_ASSERT_EQUAL(held(a.e, STW_COMPONENT_ACTIVATIONS), 700);
    CU_ASSERT_EQUAL(held(a.e, STW_COMPONENT_GRADS), 580);
    drop(&a);
    a = explain(CORPUS "snapshot_late", NULL, NULL); /* made before the history begins */
    CU_ASSERT_EQUAL(held(a.e, STW_COMPONENT_GRADS), 2048);
    CU_ASSERT_EQUAL(held(a.e, STW_COMPONENT_EXP_AVG), 1024);
    CU_ASSERT_EQUAL(a.e->failure->free, 20ull << 20);
    drop(&a);
    a = explain(CORPUS "snapshot_fragments", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->largest_unused, 140ull << 20);
    CU_ASSERT_EQUAL(a.e->failure->unused, (16 * 80 + 4 * 120) * (1ull << 20));
    drop(&a);
}

static void tables(void) {
    answer a = explain(CORPUS "smi_query.csv", NULL, NULL);
    CU_ASSERT_EQUAL_FATAL(a.found->n_gpus, 2);
    CU_ASSERT_EQUAL(a.found->gpus[0].used, 71000ull << 20); /* the highest */
    CU_ASSERT_EQUAL(a.found->gpus[1].capacity, 81559ull << 20);
    drop(&a);
    a = explain(CORPUS "nvidia_smi", NULL, NULL);
    CU_ASSERT_EQUAL_FATAL(a.found->n_gpus, 1);
    CU_ASSERT_EQUAL(a.found->gpus[0].used, 14214ull << 20);
    CU_ASSERT_EQUAL_FATAL(a.found->n_processes, 1);
    CU_ASSERT_EQUAL(a.found->processes[0].pid, 1234);
    CU_ASSERT_EQUAL(a.found->processes[0].bytes, 14208ull << 20);
    drop(&a);
    a = explain(CORPUS "dcgmi_dmon", NULL, NULL);
    CU_ASSERT_EQUAL_FATAL(a.found->n_gpus, 2);
    CU_ASSERT_EQUAL(a.found->gpus[0].used, 70059ull << 20);
    CU_ASSERT_EQUAL(a.found->gpus[1].device, 1);
    drop(&a);
    a = explain(CORPUS "smi_apps.csv", NULL, NULL);
    CU_ASSERT_EQUAL_FATAL(a.found->n_processes, 2);
    CU_ASSERT_STRING_EQUAL(a.found->processes[1].name, "vllm");
    drop(&a);
}

static void figures(void) {
    answer a = explain(CORPUS "other_processes", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->other_processes >> 20, 73011); /* 71.30 GiB: the other one */
    drop(&a);
    a = explain(CORPUS "own_limit", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->allowed, 4608ull << 20);
    drop(&a);
    a = explain(CORPUS "megatron_log", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->iterations, 10);
    CU_ASSERT_EQUAL(a.e->of_iterations, 120000);
    drop(&a);
    a = explain(CORPUS "swift_progress", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->iterations, 600);
    CU_ASSERT_EQUAL(a.found->logged_reserved, (uint64_t)(75.22 * 1073741824.0 + 0.5));
    drop(&a);
    a = explain(CORPUS "ray_task_killed", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->pid, 4331);
    CU_ASSERT(fabs((double)a.e->failure->limit - 0.95 * 62.58 * 1073741824.0) < 2);
    drop(&a);
    a = explain(CORPUS "kernel_cgroup", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->limit, 262144ull << 10);
    CU_ASSERT_EQUAL(a.e->failure->used_by_process, (164992ull + 52176 + 92) << 10);
    drop(&a);
    a = explain(CORPUS "vllm_short_cache", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->wanted_tokens, 4096);
    CU_ASSERT_EQUAL(a.e->failure->cache_tokens, 3664);
    drop(&a);
    a = explain(CORPUS "kubectl_describe", NULL, NULL);
    CU_ASSERT_EQUAL(a.e->failure->limit, 64ull << 30);
    drop(&a);
    /* of several containers: of the one that was killed, where it can be told */
    a = explain("pods", "Limits:\n  memory: 1Gi\nReason: OOMKilled\nLimits:\n  memory: 2Gi\n",
                NULL);
    CU_ASSERT_EQUAL(a.e->failure->limit, 2ull << 30);
    drop(&a);
    a = explain("pod", "limits:\n  cpu: 8\n  memory: 2Gi\nreason: OOMKilled\n", NULL);
    CU_ASSERT_EQUAL(a.e->failure->limit, 2ull << 30);
    drop(&a);
    a = explain("pods", "limits:\n  memory: 1Gi\nlimits:\n  memory: 2Gi\nreason: OOMKilled\n",
                NULL);
    CU_ASSERT_EQUAL(a.e->failure->limit, STW_NOT_SAID);
    drop(&a);
}

static void refused(void) {
    stw_failures *found = NULL;
    const char *text = "step 1 loss 2.3\nall is well\n";
    CHECK_FAILS(stw_failures_parse("run.log", text, strlen(text), &found, err),
                STW_STATUS_BAD_INPUT, "nothing in it says that memory ended");
    CHECK_FAILS(stw_failures_read(CORPUS "hostile_call", &found, err), STW_STATUS_BAD_INPUT,
                "GLOBAL");
    CU_ASSERT_PTR_NULL(found);
    /* the line of source that raises is no failure */
    text = "    raise ValueError(\"No available memory for the cache blocks. \"\n";
    CHECK_FAILS(stw_failures_parse("run.log", text, strlen(text), &found, err),
                STW_STATUS_BAD_INPUT, "nothing");
    /* vLLM says it so while it warms up */
    text = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
           "requests.\n";
    CHECK_OK(stw_failures_parse("run.log", text, strlen(text), &found, err));
    CU_ASSERT_EQUAL(found->items[0].kind, STW_FAILURE_ALLOCATOR);
    stw_failures_free(found);
    /* nor is prose */
    text = "We discuss \"CUDA out of memory\": how to avoid CUDA out of memory errors.\n"
           "A RuntimeError: CUDA out of memory error is explained there.\nfinished\n";
    CHECK_FAILS(stw_failures_parse("run.log", text, strlen(text), &found, err),
                STW_STATUS_BAD_INPUT, "nothing");
}

/* ---- with a plan ---- */

static stw_plan *solved(const char *const *settings) {
    stw_plan *plan = case_zoo("Qwen3-0.6B", settings);
    const stw_planner_options options = {.time_limit_s = 20, .simulate = stw_sim_seconds};
    CHECK_OK(stw_planner_solve(plan, &options, err));
    return plan;
}

static const char *const whole_gpu[] = {"node.gpus=1",
                                        "node.gpu.memory=80GiB",
                                        "node.gpu.context=530MiB",
                                        "node.gpu.comm=0",
                                        "node.host.memory=250GiB",
                                        "node.host.limit=250GiB",
                                        "engine=fsdp2",
                                        "batch.seq_len=4096",
                                        "placement.activations=keep",
                                        NULL};

#define BACKWARD                                                                                   \
    "Traceback (most recent call last):\n"                                                         \
    "  File \"torch/autograd/graph.py\", line 829, in _engine_run_backward\n"                      \
    "    return Variable._execution_engine.run_backward(\n"

/* The plan has the whole GPU, the process a part of it: changes fit into that part. */
static void changes_fit(void) {
    stw_plan *plan = solved(whole_gpu);
    answer a =
        explain("error.txt",
                BACKWARD
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has "
                "a total capacity of 79.11 GiB of which 62.00 GiB is free. Including non-PyTorch "
                "memory, this process has 15.51 GiB memory in use. 16.00 GiB allowed; Of the "
                "allocated memory 14.50 GiB is allocated by PyTorch, and 500.00 MiB is reserved by "
                "PyTorch but unallocated.",
                plan);
    CU_ASSERT_EQUAL(a.e->cause, STW_CAUSE_LIMIT);
    CU_ASSERT_EQUAL(a.e->phase, STW_PHASE_FORWARD_BACKWARD);
    CU_ASSERT_EQUAL(a.e->component, STW_COMPONENT_LOGITS); /* 4096 x 151936 x 4 bytes */
    CU_ASSERT(a.e->planned_bytes > 16ull << 30 && a.e->planned_bytes < 80ull << 30);
    CU_ASSERT(a.e->planned_within > 15ull << 30 && a.e->planned_within <= 17ull << 30);
    CU_ASSERT_FATAL(a.e->n_changes > 0);
    for (uint32_t i = 0; i < a.e->n_changes; i++) {
        const stw_explained_change *c = &a.e->changes[i];
        CU_ASSERT(c->gpu_bytes <= a.e->planned_within && c->iteration_s > 0 && c->n > 0);
        for (uint32_t k = 0; k < c->n; k++) CU_ASSERT(strcmp(c->set[k].value, "auto") != 0);
    }
    drop(&a);
    stw_plan_free(plan);
}

static void fragments_first(void) {
    stw_plan *plan = solved(whole_gpu);
    answer a = explain(
        "error.txt",
        BACKWARD
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has "
        "a total capacity of 79.11 GiB of which 1.10 GiB is free. Including non-PyTorch "
        "memory, this process has 78.00 GiB memory in use. Of the allocated memory 20.00 "
        "GiB is allocated by PyTorch, and 57.40 GiB is reserved by PyTorch but unallocated.",
        plan);
    CU_ASSERT_EQUAL(a.e->cause, STW_CAUSE_FRAGMENTS);
    CU_ASSERT_FATAL(a.e->n_changes > 0);
    CU_ASSERT_STRING_EQUAL(a.e->changes[0].set[0].set, "allocator.expandable_segments");
    CU_ASSERT_PTR_NOT_NULL(a.e->changes[0].settings); /* and how torch is told */
    if (a.e->changes[0].settings != NULL)
        CU_ASSERT_PTR_NOT_NULL(strstr(a.e->changes[0].settings, "expandable_segments"));
    drop(&a);
    stw_plan_free(plan);
}

/* Texts of real failures on an H200 (bench/explain_torch.py). */
static void causes_on_a_gpu(void) {
    answer a = explain(/* together the bytes were there */
                       "error.txt",
                       BACKWARD "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
                                "1000.00 MiB. GPU 0 has a "
                                "total capacity of 139.80 GiB of which 116.92 GiB is free. "
                                "Including non-PyTorch memory, "
                                "this process has 6.95 GiB memory in use. 6.90 GiB allowed; Of the "
                                "allocated memory 5.39 "
                                "GiB is allocated by PyTorch, and 770.09 MiB is reserved by "
                                "PyTorch but unallocated.",
                       NULL);
    CU_ASSERT_EQUAL(a.e->cause, STW_CAUSE_FRAGMENTS);
    drop(&a);
    a = explain(/* gaps of 76 MiB are in every process; somebody else has the GPU */
                "error.txt",
                BACKWARD "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 44.00 MiB. "
                         "GPU 0 has a "
                         "total capacity of 139.80 GiB of which 5.56 MiB is free. Process 31438 "
                         "has 134.29 GiB "
                         "memory in use. Including non-PyTorch memory, this process has 5.49 GiB "
                         "memory in use. Of "
                         "the allocated memory 4.61 GiB is allocated by PyTorch, and 75.73 MiB is "
                         "reserved by "
                         "PyTorch but unallocated.",
                NULL);
    CU_ASSERT_EQUAL(a.e->cause, STW_CAUSE_OTHERS);
    drop(&a);
    a = explain(
        "error.txt",
        "  File \"/x/deepspeed/runtime/engine.py\", line 3431, in backward\n"
        "    self._backward_epilogue()\n"
        "  File \"/x/deepspeed/runtime/zero/stage_1_and_2.py\", line 2274, in reduce_ipg_grads\n"
        "    self.copy_grads_in_partition(param, group_idx)\n"
        "  File \"/x/deepspeed/runtime/zero/stage_1_and_2.py\", line 2192, in "
        "copy_grads_in_partition\n"
        "    self.grads_in_partition = torch.empty(int(total_size),\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 972.00 MiB. GPU 0 has a "
        "total capacity of 79.11 GiB of which 100.00 MiB is free.",
        NULL);
    CU_ASSERT_EQUAL(a.e->component, STW_COMPONENT_GRADS);
    drop(&a);
}

/* A node that held less than the plan needs: its components are the plan's. */
static void host_kill(void) {
    static const char *const offloaded[] = {"node.gpus=1",
                                            "node.gpu.memory=80GiB",
                                            "node.gpu.context=530MiB",
                                            "node.host.memory=250GiB",
                                            "node.host.limit=250GiB",
                                            "engine=fsdp2",
                                            "batch.seq_len=512",
                                            "fsdp.offload_policy=true",
                                            "placement.activations=keep",
                                            NULL};
    stw_plan *plan = solved(offloaded);
    answer a = explain("dmesg.txt",
                       "memory: usage 8388608kB, limit 8388608kB, failcnt 3\n"
                       "Memory cgroup out of memory: Killed process 63214 (python) total-vm:"
                       "31494680kB, anon-rss:8164992kB, file-rss:52176kB, shmem-rss:92kB\n",
                       plan);
    CU_ASSERT(a.e->on_host && a.e->cause == STW_CAUSE_HOST);
    CU_ASSERT_EQUAL(a.e->available, 8ull << 30);
    CU_ASSERT(a.e->planned_bytes > 8ull << 30);
    CU_ASSERT(a.e->n_parts > 2 && a.e->parts[0].planned >= a.e->parts[1].planned);
    CU_ASSERT(a.e->n_unknown > 0); /* the phase: a kernel does not know it */
    for (uint32_t i = 0; i < a.e->n_changes; i++)
        CU_ASSERT(a.e->changes[i].host_bytes <= 8ull << 30 ||
                  strncmp(a.e->changes[i].set[0].set, "node.host.", 10) == 0);
    drop(&a);
    stw_plan_free(plan);
}

/* DeepSpeed makes moments where it starts, which the plan has in the first step: they are no bytes
 * beyond the plan. */
static void made_at_the_start(void) {
    static const char *const zero[] = {
        "node.gpus=2",       "engine=deepspeed",      "deepspeed.zero_stage=1",
        "batch.seq_len=512", "node.gpu.memory=80GiB", NULL};
    stw_plan *plan = solved(zero);
    const stw_peaks *peaks = &plan->peaks[0];
    const uint64_t moment = peaks->phase[STW_PHASE_FIRST_OPTIMIZER_STEP][STW_TIER_GPU]
                                .components[STW_COMPONENT_EXP_AVG];
    const uint64_t loaded = stw_peak_allocated(&peaks->phase[STW_PHASE_LOAD][STW_TIER_GPU]);
    const uint64_t step =
        stw_peak_allocated(&peaks->phase[STW_PHASE_FIRST_OPTIMIZER_STEP][STW_TIER_GPU]);
    char text[1024];
    CU_ASSERT(moment > 100ull << 20 && step > loaded);
    snprintf(text, sizeof text,
             "Traceback (most recent call last):\n"
             "  File \"/env/deepspeed/__init__.py\", line 193, in initialize\n"
             "    engine = DeepSpeedEngine(args=args,\n"
             "  File \"/env/deepspeed/runtime/zero/stage_1_and_2.py\", line 692, in "
             "initialize_optimizer_states\n"
             "    self.optimizer.step()\n"
             "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %.2f MiB. GPU 0 has a "
             "total capacity of 79.11 GiB of which 10.00 MiB is free. Of the allocated memory %.2f "
             "MiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated.",
             (double)moment / 1048576, (double)(step - moment) / 1048576 - 1);
    answer a = explain("start.txt", text, plan);
    CU_ASSERT_EQUAL(a.e->phase, STW_PHASE_LOAD);
    CU_ASSERT_EQUAL(a.e->component, STW_COMPONENT_EXP_AVG);
    CU_ASSERT_EQUAL(a.e->planned_phase, STW_PHASE_FIRST_OPTIMIZER_STEP);
    CU_ASSERT(a.e->planned_later);
    CU_ASSERT_EQUAL(a.e->planned_component, moment);
    CU_ASSERT_EQUAL(a.e->beyond, 0);
    drop(&a);
    stw_plan_free(plan);
}

/* A kernel's size that no 64 bits hold is not known, rather than 0. */
static void beyond_64_bits(void) {
    answer a = explain("dmesg.txt",
                       "Out of memory: Killed process 7 (python) total-vm:31494680kB, anon-rss:"
                       "99999999999999999999kB, file-rss:52176kB, shmem-rss:92kB\n",
                       NULL);
    bool told = false;
    CU_ASSERT_EQUAL(a.e->failure->used_by_process, STW_NOT_SAID);
    CU_ASSERT_PTR_NULL(strstr(a.e->cause_text, "it held"));
    for (uint32_t i = 0; i < a.e->n_unknown; i++)
        told = told || strstr(a.e->unknown[i], "what the process held") != NULL;
    CU_ASSERT(told);
    drop(&a);
}

/* What vLLM calls free is what its cache may have, and its name is the framework's. */
static void short_cache(void) {
    answer a = explain("vllm.log",
                       "ValueError: To serve at least one request with the models's max seq len "
                       "(40960), (5.62 GiB KV cache is needed, which is larger than the available "
                       "KV cache memory (3.05 GiB). Based on the available memory, the estimated "
                       "maximum model length is 22192. Try increasing `gpu_memory_utilization` or "
                       "decreasing `max_model_len` when initializing the engine.\n",
                       NULL);
    stw_text text = STW_TEXT_INIT;
    CHECK_OK(stw_report_explanation(a.e, true, STW_FORMAT_MARKDOWN, &text, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(text.data);
    CU_ASSERT_PTR_NOT_NULL(strstr(text.data, "one sequence needs 5.62 GiB, 3.05 GiB left for the "
                                             "KV cache"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text.data, "tensor_parallel_size"));
    CU_ASSERT_PTR_NULL(strstr(text.data, "free on the GPU"));
    CU_ASSERT_PTR_NULL(strstr(text.data, "no known framework"));
    stw_text_free(&text);
    drop(&a);
}

/* A text of another job: said, not guessed. */
static void other_job(void) {
    stw_plan *plan = solved(whole_gpu);
    answer a =
        explain("error.txt",
                "CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0 has a total capacity "
                "of 79.11 GiB of which 9.11 GiB is free. Including non-PyTorch memory, this "
                "process has 70.00 GiB memory in use. Of the allocated memory 69.00 GiB is "
                "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
                plan);
    CU_ASSERT(a.e->beyond > 79ull << 30);
    CU_ASSERT_EQUAL(a.e->n_changes, 0);
    CU_ASSERT(a.e->n_unknown > 0);
    drop(&a);
    stw_plan_free(plan);
}

/* A run of which the plan explains little: what is left for the plan is less than a context. Errors
 * of the planner are none of the reader's. */
static void nothing_leaks(void) {
    stw_plan *plan = solved(whole_gpu);
    answer a = explain(
        "error.txt",
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
        "of "
        "which 0.11 GiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory "
        "in use. Of the allocated memory 78.00 GiB is allocated by PyTorch, and 0 bytes is "
        "reserved by PyTorch but unallocated.",
        plan);
    const uint64_t need = a.e->planned_allocated;
    drop(&a);
    /* as much more than the plan that 400 MiB are left */
    char text[700];
    const double in_use = (double)(need + (79ull << 30) - (400ull << 20)) / 1073741824.0;
    snprintf(text, sizeof text,
             "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.00 "
             "GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has %.2f "
             "GiB memory in use. Of the allocated memory %.2f GiB is allocated by PyTorch, and 0 "
             "bytes is reserved by PyTorch but unallocated.",
             in_use - 1, in_use - 1);
    a = explain("error.txt", text, plan);
    CU_ASSERT(a.e->planned_within > 0 && a.e->planned_within < 530ull << 20);
    CU_ASSERT_EQUAL(a.e->n_changes, 0);
    bool told = false;
    for (uint32_t i = 0; i < a.e->n_unknown; i++) {
        CU_ASSERT_PTR_NULL(strstr(a.e->unknown[i], "expected"));
        told |= strstr(a.e->unknown[i], "are left for the plan") != NULL;
    }
    CU_ASSERT(told);
    drop(&a);
    stw_plan_free(plan);
}

/* The job's own rollout is not to be ended. */
static void own_rollout(void) {
    static const char *const shared[] = {"node.gpus=1",
                                         "node.gpu.memory=80GiB",
                                         "node.gpu.context=530MiB",
                                         "node.gpu.comm=0",
                                         "node.host.memory=250GiB",
                                         "node.host.limit=250GiB",
                                         "engine=fsdp2",
                                         "batch.seq_len=4096",
                                         "roles=[{name: roll, kind: rollout, with: trainer}]",
                                         NULL};
    static const char said[] = BACKWARD
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.91 GiB. GPU 0 has a "
        "total "
        "capacity of 79.11 GiB of which 9.91 GiB is free. Including non-PyTorch memory, this "
        "process has 47.20 GiB memory in use. Process 88 has 22.00 GiB memory in use. Of the "
        "allocated memory 44.00 GiB is allocated by PyTorch, and 1.01 GiB is reserved by PyTorch "
        "but unallocated.";
    stw_plan *plan = solved(shared), *alone = solved(whole_gpu);
    answer a = explain("error.txt", said, plan);
    CU_ASSERT_EQUAL(a.e->cause, STW_CAUSE_OTHERS);
    CU_ASSERT_FATAL(a.e->n_advice > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.e->advice[0], "role roll"));
    for (uint32_t i = 0; i < a.e->n_advice; i++)
        CU_ASSERT_PTR_NULL(strstr(a.e->advice[i], "end the other"));
    drop(&a);
    a = explain("error.txt", said, alone);
    CU_ASSERT_FATAL(a.e->n_advice > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.e->advice[0], "end the other processes on GPU 0"));
    drop(&a);
    stw_plan_free(plan);
    stw_plan_free(alone);
}

/* Its batch is another one than the plan's. */
static void evaluation(void) {
    static const char *const settings[] = {
        "node.gpus=1",         "node.gpu.memory=80GiB",           "node.host.memory=250GiB",
        "engine=fsdp2",        "node.host.limit=250GiB",          "batch.seq_len=8192",
        "batch.micro_batch=2", "placement.activations=recompute", NULL};
    stw_plan *plan = solved(settings);
    answer a = explain(CORPUS "evaluation", NULL, plan); /* 4096 x 151936 x 4 bytes */
    CU_ASSERT_EQUAL(a.e->component, STW_COMPONENT_LOGITS);
    drop(&a);
    stw_plan_free(plan);
}

STW_TEST_MAIN("planner explain", {"real texts", real_texts},
              {"made at the start", made_at_the_start}, {"beyond 64 bits", beyond_64_bits},
              {"a cache that is too short", short_cache}, {"snapshots", snapshots},
              {"tables of GPUs", tables}, {"figures", figures}, {"what is refused", refused},
              {"changes fit", changes_fit}, {"fragments first", fragments_first},
              {"causes on a GPU", causes_on_a_gpu}, {"a node", host_kill},
              {"another job", other_job}, {"nothing leaks", nothing_leaks},
              {"the job's own rollout", own_rollout}, {"evaluation", evaluation})
