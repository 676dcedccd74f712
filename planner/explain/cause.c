/* SPDX-License-Identifier: Apache-2.0 */
/* Why: what there was, who had the rest, and whether free bytes were in pieces. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/units.h"
#include "planner/explain/parts.h"

/* Others count from this share of a GPU on; less is a context. */
static const double WORTH_TELLING = 0.02;
/* Free pieces of torch's segments that are fewer would not save a job. */
static const double WORTH_MENDING = 0.05;
static const uint64_t CONTEXTS_BYTES = 2ull << 30;

typedef struct word {
    char text[32];
} word;

static word size(uint64_t bytes) {
    word out;
    stw_bytes_format(bytes, out.text, sizeof out.text);
    return out;
}

static bool said(uint64_t value) { return value != STW_NOT_SAID; }

static const char *keep(stw_explanation *e, const char *text) {
    const char *kept = stw_pool_string(e->pool, text);
    return kept != NULL ? kept : "";
}

/* ---- GPUs ---- */

/* What the plan has beside the failed process on its GPU, as processes of the same job: its
 * rollout, or, beside that, its trainer; NULL: nothing. */
static const char *own_process(const stw_explanation *e) {
    const stw_job *job = e->plan != NULL ? e->plan->job : NULL;
    for (uint32_t r = 1; job != NULL && r < job->n_roles; r++)
        if (job->roles[r].home == 0 && job->roles[r].spec->kind == STW_ROLE_ROLLOUT)
            return e->phase == STW_PHASE_ROLLOUT ? "trainer" : job->roles[r].name;
    return NULL;
}

/* What the plan counts of it in this phase, in its own figures for the GPU. */
static uint64_t planned_of_it(const stw_explanation *e) {
    static const stw_component rollout[] = {STW_COMPONENT_ROLLOUT_WEIGHTS,
                                            STW_COMPONENT_ROLLOUT_WORK, STW_COMPONENT_KV_CACHE};
    uint64_t of_rollout = 0, all = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const uint64_t bytes = said(e->parts[i].planned) ? e->parts[i].planned : 0;
        all = stw_plus(all, bytes);
        for (size_t c = 0; c < sizeof rollout / sizeof rollout[0]; c++)
            if (e->parts[i].component == rollout[c]) of_rollout = stw_plus(of_rollout, bytes);
    }
    return e->phase == STW_PHASE_ROLLOUT ? all - of_rollout : of_rollout;
}

/* What other processes hold; STW_NOT_SAID. */
static uint64_t others_of(const stw_explanation *e) {
    const stw_failure *f = e->failure;
    if (said(f->other_processes)) return f->other_processes;
    if (!said(f->capacity) || !said(f->free)) return STW_NOT_SAID;
    const uint64_t taken = f->capacity - stw_min_u64(f->free, f->capacity);
    if (said(f->used_by_process)) return taken - stw_min_u64(f->used_by_process, taken);
    if (!said(f->allocated) || !said(f->unused)) return STW_NOT_SAID;
    const uint64_t own = stw_plus(f->allocated, f->unused);
    /* less than some contexts: no other job */
    return taken > own && taken - own > CONTEXTS_BYTES ? taken - own : 0;
}

/* Is what others hold all that is not torch's, whoever has it? */
static bool is_rest(const stw_failure *f) {
    return !said(f->other_processes) && !said(f->used_by_process);
}

/* Bytes on the device beside torch's: context, NCCL, kernels. */
static uint64_t beside_torch(const stw_failure *f) {
    if (!said(f->used_by_process) || !said(f->allocated) || !said(f->unused)) return STW_NOT_SAID;
    const uint64_t torch = stw_plus(f->allocated, f->unused);
    return f->used_by_process > torch ? f->used_by_process - torch : 0;
}

static uint64_t context_of(const stw_explanation *e) {
    return e->plan != NULL
               ? stw_plus(e->plan->cluster.gpu.context_bytes, e->plan->cluster.gpu.comm_bytes)
               : 0;
}

/* What the process could have had of the GPU, its context included. */
static void find_available(stw_explanation *e, uint64_t others) {
    const stw_failure *f = e->failure;
    const uint64_t beside = said(beside_torch(f)) ? beside_torch(f) : context_of(e);
    if (!said(f->capacity) && said(f->free) && said(f->asked) && f->free < f->asked &&
        said(f->allocated) && said(f->unused)) /* a snapshot: the device was full */
        e->available = stw_plus(stw_plus(f->allocated, f->unused), stw_plus(f->free, beside));
    if (said(others) && own_process(e) != NULL) /* the plan's bytes are with them */
        others -= stw_min_u64(planned_of_it(e), others);
    if (said(f->capacity))
        e->available = f->capacity - stw_min_u64(said(others) ? others : 0, f->capacity);
    if (said(f->allowed)) e->available = stw_min_u64(e->available, stw_plus(f->allowed, beside));
}

/* What the run needed at this moment beyond the plan's peak of the phase. */
static void find_beyond(stw_explanation *e) {
    const stw_failure *f = e->failure;
    const uint64_t beside = beside_torch(f);
    if (e->plan == NULL || !said(e->planned_allocated)) return;
    if (said(f->allocated) && said(f->asked)) {
        const uint64_t need = stw_plus(f->allocated, f->asked);
        if (need > e->planned_allocated) e->beyond = need - e->planned_allocated;
    }
    if (said(beside) && beside > context_of(e))
        e->beyond = stw_plus(e->beyond, beside - context_of(e));
}

/* Free for this process: of the device, or of what it may take. */
static uint64_t free_for(const stw_failure *f) {
    uint64_t free = f->free;
    if (!said(f->allowed) || !said(f->allocated) || !said(f->unused)) return free;
    const uint64_t reserved = stw_plus(f->allocated, f->unused);
    return stw_min_u64(free, f->allowed - stw_min_u64(reserved, f->allowed));
}

/* torch's segments, and what it could still reserve, had the bytes together. Gaps of less than a
 * share of its segments are in every process. */
static bool is_torn(const stw_failure *f) {
    if (!said(f->asked) || !said(f->unused) || f->unused == 0) return false;
    if (said(f->largest_unused) && f->largest_unused >= f->asked) return false;
    const uint64_t free = said(f->free) ? free_for(f) : 0;
    const double reserved = (double)stw_plus(said(f->allocated) ? f->allocated : 0, f->unused);
    return free < f->asked && stw_plus(f->unused, free) >= f->asked &&
           (double)f->unused >= WORTH_MENDING * reserved;
}

static void judge_torn(stw_explanation *e) {
    const stw_failure *f = e->failure;
    char text[400], largest[80] = "";
    e->cause = STW_CAUSE_FRAGMENTS;
    if (said(f->largest_unused))
        snprintf(largest, sizeof largest, ", the largest piece %s", size(f->largest_unused).text);
    snprintf(
        text, sizeof text,
        "Fragmentation: torch had reserved %s that no tensor used%s, and found no room for %s.",
        size(f->unused).text, largest, size(f->asked).text);
    e->cause_text = keep(e, text);
    if (e->plan == NULL)
        stw_explain_advise(
            e, "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
               "(PYTORCH_ALLOC_CONF from torch 2.9 on): segments then grow, and leave no gaps");
}

/* Processes of the job itself are not to be ended. */
static void advise_own(stw_explanation *e, const char *own, uint64_t others) {
    if (strcmp(own, "trainer") == 0)
        stw_explain_advise(e,
                           "the job's trainer is on this GPU, too, and processes beside this one "
                           "hold %s: let it give its memory back before the rollout (park.*)",
                           size(others).text);
    else
        stw_explain_advise(
            e,
            "the job's rollout (role %.60s) is on this GPU, too, and processes beside "
            "this one hold %s: let it sleep in this phase (free_cache_engine, "
            "sleep_level), or lower its gpu_memory_utilization",
            own, size(others).text);
}

static void judge_others(stw_explanation *e, uint64_t others) {
    const stw_failure *f = e->failure;
    char text[400];
    e->cause = STW_CAUSE_OTHERS;
    snprintf(text, sizeof text,
             "%s: they hold %s of the GPU's %s; without them %s would have been free.",
             own_process(e) != NULL ? "Processes beside this one, of the same job by the plan"
                                    : "Other processes",
             size(others).text, size(f->capacity).text,
             size(stw_plus(others, said(f->free) ? f->free : 0)).text);
    e->cause_text = keep(e, text);
    if (own_process(e) != NULL)
        advise_own(e, own_process(e), others);
    else if (said(f->device))
        stw_explain_advise(e,
                           "end the other processes on GPU %llu (nvidia-smi lists them), or take "
                           "another GPU",
                           (unsigned long long)f->device);
    else
        stw_explain_advise(
            e, "end the other processes on this GPU (nvidia-smi lists them), or take another GPU");
}

static void judge_too_much(stw_explanation *e) {
    const stw_failure *f = e->failure;
    char text[400], what[96] = "the job";
    e->cause = STW_CAUSE_TOO_MUCH;
    if (e->plan != NULL && e->beyond == 0 && e->planned_bytes > e->available &&
        said(e->available)) {
        snprintf(text, sizeof text,
                 "Too much for this GPU: the plan needs %s in %s, and %s could be had.",
                 size(e->planned_bytes).text, stw_phase_name(e->planned_phase),
                 size(e->available).text);
    } else if (said(f->allocated) && said(f->asked)) {
        snprintf(text, sizeof text, "Too much: %s has %s in use and asks for %s more%s%s.", what,
                 size(f->allocated).text, size(f->asked).text,
                 said(e->available) ? "; it may have " : "",
                 said(e->available) ? size(e->available).text : "");
    } else {
        snprintf(text, sizeof text, "Too much: a request%s%s failed.",
                 said(f->asked) ? " for " : "", said(f->asked) ? size(f->asked).text : "");
    }
    e->cause_text = keep(e, text);
}

/* What torch asks the driver for: c10/cuda/CUDACachingAllocator.cpp, get_allocation_size. */
static uint64_t segment_of(uint64_t asked) {
    const uint64_t mib = 1ull << 20;
    if (asked <= mib) return 2 * mib;
    if (asked < 10 * mib) return 20 * mib;
    return asked < INT64_MAX / 2 ? stw_round_up_u64(asked, 2 * mib) : asked;
}

static void judge_unclear(stw_explanation *e) {
    const stw_failure *f = e->failure;
    char text[300];
    e->cause = STW_CAUSE_UNKNOWN;
    snprintf(text, sizeof text, "Not clear: %s was asked for and %s was free on the GPU.",
             size(f->asked).text, size(f->free).text);
    e->cause_text = keep(e, text);
    stw_explain_unknown(e,
                        "why the driver refused: a limit that the text does not name (a memory "
                        "fraction, a container, MIG, Windows), or bytes that came free only later");
}

static void judge_gpu(stw_explanation *e) {
    const stw_failure *f = e->failure;
    const uint64_t others = others_of(e), free = free_for(f);
    char text[400];
    find_available(e, others);
    find_beyond(e);
    const bool many =
        said(others) && said(f->capacity) && (double)others > WORTH_TELLING * (double)f->capacity;
    if (many && is_rest(f))
        stw_explain_unknown(e,
                            "who holds %s of the GPU: not torch's allocator here; the text does "
                            "not say whether another process does (nvidia-smi does)",
                            size(others).text);
    if (is_torn(f)) {
        judge_torn(e);
    } else if (many && said(f->asked) && said(f->free) && f->free < f->asked &&
               stw_plus(free, others) >= f->asked &&
               (e->plan == NULL || e->planned_bytes <= f->capacity)) {
        judge_others(e, others);
    } else if (said(f->allowed) && said(f->free) && said(f->asked) && f->free >= f->asked) {
        e->cause = STW_CAUSE_LIMIT;
        snprintf(text, sizeof text,
                 "Its own limit: the process may take %s (set_per_process_memory_fraction), though "
                 "the GPU has %s free.",
                 size(f->allowed).text, size(f->free).text);
        e->cause_text = keep(e, text);
    } else if (said(f->free) && said(f->asked) && f->free >= segment_of(f->asked) &&
               !said(f->allowed)) {
        judge_unclear(e);
    } else {
        judge_too_much(e);
    }
    if (many && e->cause != STW_CAUSE_OTHERS && own_process(e) != NULL)
        advise_own(e, own_process(e), others);
    else if (many && e->cause != STW_CAUSE_OTHERS)
        stw_explain_advise(e, "other processes hold %s of this GPU: end them for as much more room",
                           size(others).text);
}

/* ---- inference engines ---- */

static void judge_start(stw_explanation *e) {
    const stw_failure *f = e->failure;
    char text[400];
    e->cause = STW_CAUSE_OTHERS;
    e->available = f->free;
    snprintf(text, sizeof text,
             "%s wants %s of the GPU (gpu_memory_utilization %.2f), and %s of %s was free when it "
             "started.",
             f->who, said(f->asked) ? size(f->asked).text : "its share",
             isnan(f->share) ? 0 : f->share, said(f->free) ? size(f->free).text : "less",
             said(f->capacity) ? size(f->capacity).text : "it");
    e->cause_text = keep(e, text);
    if (said(f->free) && said(f->capacity) && f->capacity > 0)
        stw_explain_advise(e,
                           "set gpu_memory_utilization to at most %.2f, or free the GPU first "
                           "(another process, or this one's trainer, holds %s)",
                           floor(100.0 * (double)f->free / (double)f->capacity) / 100,
                           size(f->capacity - stw_min_u64(f->free, f->capacity)).text);
}

static void judge_cache(stw_explanation *e) {
    const stw_failure *f = e->failure;
    const bool sglang = strcmp(f->who, "SGLang") == 0;
    char text[400], more[96] = "";
    e->cause = STW_CAUSE_CACHE;
    if (f->kind == STW_FAILURE_CACHE_NONE) {
        snprintf(text, sizeof text,
                 "No room for a KV cache: weights and the largest batch take the whole share that "
                 "%s may use.",
                 f->who);
        stw_explain_advise(e,
                           "raise %s, cut the weights over more GPUs (tensor parallel), or let "
                           "fewer tokens into a batch (%s)",
                           sglang ? "mem_fraction_static" : "gpu_memory_utilization",
                           sglang ? "chunked_prefill_size" : "max_num_batched_tokens");
    } else {
        if (said(f->asked) && said(f->free))
            snprintf(more, sizeof more, " (%s of the %s that it needs)", size(f->free).text,
                     size(f->asked).text);
        snprintf(text, sizeof text,
                 "The KV cache is too short: it has room for %llu tokens, and one sequence may "
                 "have %llu%s.",
                 said(f->cache_tokens) ? (unsigned long long)f->cache_tokens : 0,
                 said(f->wanted_tokens) ? (unsigned long long)f->wanted_tokens : 0, more);
        if (said(f->cache_tokens))
            stw_explain_advise(
                e,
                "set max_model_len to at most %llu, raise gpu_memory_utilization, or "
                "cut weights and cache over more GPUs (tensor_parallel_size)",
                (unsigned long long)f->cache_tokens);
    }
    e->cause_text = keep(e, text);
}

/* ---- hosts ---- */

static void judge_host(stw_explanation *e) {
    const stw_failure *f = e->failure;
    char text[400], used[96] = "";
    e->cause = STW_CAUSE_HOST;
    e->available = f->limit;
    if (said(f->used) && said(f->limit))
        snprintf(used, sizeof used, ": %s used, limit %s", size(f->used).text, size(f->limit).text);
    else if (said(f->used_by_process))
        snprintf(used, sizeof used, ": it held %s", size(f->used_by_process).text);
    else if (said(f->limit))
        snprintf(used, sizeof used, ": its limit is %s", size(f->limit).text);
    snprintf(text, sizeof text, "Host memory: %s killed %s%s%s.",
             strcmp(f->who, "cgroup") == 0 ? "the kernel, for the limit of a cgroup," : f->who,
             f->process[0] != '\0' ? "the process " : "a process", f->process, used);
    if (strcmp(f->who, "torchrun") == 0) {
        snprintf(text, sizeof text,
                 "Host memory, likely: a process got SIGKILL, which is how a kernel ends one for "
                 "host memory.");
        stw_explain_unknown(e, "who sent it: `dmesg -T | grep -i kill` on that node says");
    }
    if (f->kind == STW_FAILURE_HOST_ALLOC)
        snprintf(text, sizeof text, "Host memory: %s could not allocate%s%s.", f->who,
                 said(f->asked) ? " " : "", said(f->asked) ? size(f->asked).text : "");
    if (f->kind == STW_FAILURE_PAGE_LOCK) {
        snprintf(text, sizeof text, "Page-locked host memory: %s could not lock%s%s.", f->who,
                 said(f->asked) ? " " : "", said(f->asked) ? size(f->asked).text : "");
        stw_explain_advise(e, "raise RLIMIT_MEMLOCK (`ulimit -l unlimited`, docker --ulimit "
                              "memlock=-1), or offload less");
    }
    e->cause_text = keep(e, text);
    const bool kernel = strcmp(f->who, "kernel") == 0 || strcmp(f->who, "cgroup") == 0;
    if (kernel && f->kind == STW_FAILURE_HOST_KILL && !said(f->used_by_process))
        stw_explain_unknown(e, "what the process held: the kernel's line has no sizes (rss) that "
                               "are below 2^60 bytes");
    if (!said(f->limit) && f->kind == STW_FAILURE_HOST_KILL)
        stw_explain_unknown(e,
                            "the limit: this text does not say it (memory.max of the cgroup does)");
    if (e->plan != NULL && said(e->planned_bytes) && said(f->used) && f->used > e->planned_bytes)
        e->beyond = f->used - e->planned_bytes;
    if (e->on_host && e->beyond > 0)
        stw_explain_unknown(e,
                            "what held %s beyond the plan: processes beside the job, data "
                            "loaders, Ray's object store; `stowage record` samples them",
                            size(e->beyond).text);
}

static void judge_shared(stw_explanation *e) {
    e->cause = STW_CAUSE_SHARED;
    e->cause_text =
        "Shared memory: /dev/shm is full, and a write to it ended the process (bus error).";
    stw_explain_advise(e, "give the container more: docker run --shm-size=64g or --ipc=host; in "
                          "Kubernetes an emptyDir with medium: Memory at /dev/shm");
    stw_explain_advise(e, "or fewer workers and batches ahead: num_workers, prefetch_factor");
}

void stw_explain_cause(stw_explanation *e) {
    const stw_failure *f = e->failure;
    e->cause = STW_CAUSE_NONE;
    e->cause_text = "No allocation failed in this file, and nothing was killed.";
    if (f == NULL) return;
    switch (f->kind) {
    case STW_FAILURE_ALLOCATOR:
    case STW_FAILURE_DEVICE:
        judge_gpu(e);
        break;
    case STW_FAILURE_START:
        judge_start(e);
        break;
    case STW_FAILURE_CACHE_NONE:
    case STW_FAILURE_CACHE_SHORT:
        judge_cache(e);
        break;
    case STW_FAILURE_SHARED_MEMORY:
        judge_shared(e);
        break;
    default:
        judge_host(e);
    }
}
