/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a tiny model, settings and decisions. What can be derived holds its invariants. A part
 * of the plans, picked by a hash of the bytes, is written and read back, simulated, or executed on
 * the host backend with the bits of the reference: by one thread, sometimes by a thread of each
 * stream, which takes many times as long. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include <sched.h>
#include <sys/mman.h>

#include "backend/executor/run.h"
#include "core/log.h"
#include "plan/files/verdict.h"
#include "sim/sim.h"
#include "tests/fuzz/plan_check.h"
#include "tests/fuzz/spec_check.h"
#include "tests/unit/fixture.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static unsigned take(bytes *in) { return in->at < in->end ? *in->at++ : 0; }

static const char *const settings[][2] = {
    {"optimizer.clip_norm", "0"},
    {"optimizer.clip_norm", "1e-3"},
    {"optimizer.lr", "0"},
    {"optimizer.lr", "1e30"},
    {"optimizer.eps", "0"},
    {"optimizer.weight_decay", "1"},
    {"optimizer.betas", "[0, 0]"},
    {"optimizer.groups", "[{match: [1d], lr: 0.5}]"},
    {"precision.params", "bf16"},
    {"precision.grads", "bf16"},
    {"precision.master", "none"},
    {"precision.exp_avg", "bf16"},
    {"precision.exp_avg_sq", "bf16"},
    {"precision.compute", "fp32"},
    {"precision.reduce", "fp32"},
    {"optimizer.implementation", "direct"},
    {"optimizer.implementation", "streamed"},
    {"batch.micro_batch", "3"},
    {"batch.seq_len", "17"},
    {"batch.grad_accumulation", "2"},
    {"engine", "fsdp2"},
    {"park.params", "true"},
    {"load.method", "rank0_broadcast"},
    {"placement.nvme_copies", "2"},
    {"loss.chunk", "1"},
};

static const stw_place places[] = {FIXTURE_RESIDENT, FIXTURE_STREAM, FIXTURE_STREAM_ALL,
                                   FIXTURE_DIRECT,   FIXTURE_CPU,    FIXTURE_CPU_ALL,
                                   FIXTURE_NVME};
enum {
    N_SETTINGS = sizeof settings / sizeof settings[0],
    N_PLACES = sizeof places / sizeof places[0]
};

/* One core: no threads are started but those of streams. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    cpu_set_t one;
    (void)argc;
    (void)argv;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    stw_log_level_set(STW_LOG_ERROR);
    return 0;
}

static stw_plan *new_plan(bytes *in, stw_error *err) {
    const fixture_size size = {1 + take(in) % 3, 4 * (1 + take(in) % 8), 1 + take(in) % 32,
                               1 + take(in) % 64};
    stw_run_spec run = fuzz_run_spec_new();
    static stw_cluster one;
    if (one.gpus == 0) one = fixture_cluster(1);
    stw_cluster cluster = one;
    stw_plan *plan = NULL;
    stw_status status = STW_STATUS_OK;
    cluster.gpu.context_bytes = cluster.gpu.comm_bytes = cluster.host.process_bytes = 0;
    for (unsigned n = take(in) % 8; n > 0 && status == STW_STATUS_OK; n--) {
        const char *const *setting = settings[take(in) % N_SETTINGS];
        status = stw_run_spec_set(&run, setting[0], setting[1], "setting", err);
    }
    if (status == STW_STATUS_OK) status = stw_run_spec_check(&run, "run", err);
    if (status != STW_STATUS_OK) {
        stw_run_spec_free(&run);
        return NULL;
    }
    status = stw_plan_new(fixture_model(size), &cluster, &run, &plan, err);
    FUZZ_CHECK((status == STW_STATUS_OK) == (plan != NULL) && status != STW_STATUS_BUG);
    return plan;
}

static void decide(bytes *in, bool nvme, stw_plan *plan) {
    static const stw_load loads[] = {STW_LOAD_ALL_RANKS, STW_LOAD_RANK0_BROADCAST,
                                     STW_LOAD_NODE_LEADER, STW_LOAD_SHARDED_READ};
    stw_decisions *d = &plan->decisions;
    uint32_t left = plan->job->n_units, layers = (uint32_t)plan->model->layers;
    d->blocks = stw_pool_array(plan->pool, 3, sizeof *d->blocks);
    FUZZ_CHECK(d->blocks != NULL);
    d->load = loads[take(in) % 4];
    d->prefetch.depth = 1 + take(in) % 4;
    d->prefetch.bucket_bytes = (uint64_t)(1 + take(in) % 4) << 16;
    d->fetch_ahead = 1 + take(in) % 3;
    for (int act = 0; act < 3 && layers > 0; act++) {
        uint32_t n = act == 2 ? layers : take(in) % (layers + 1);
        if (n > 0) d->blocks[d->n_blocks++] = (stw_block_decision){1, (stw_act)act, n};
        layers -= n;
    }
    unsigned wanted = take(in) % (1u << (N_PLACES - 1)); /* NVMe is last */
    if (nvme) wanted |= 1u << (N_PLACES - 1);
    for (unsigned i = 0; i < N_PLACES; i++) {
        bool last = wanted >> (i + 1) == 0;
        if ((wanted >> i & 1) == 0) continue;
        uint32_t n = last ? left : take(in) * left / 256;
        d->state[d->n_state++] = (stw_state_decision){places[i], n};
        left -= n;
    }
}

static void simulate(stw_plan *plan) {
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_sim_plan(plan, NULL, &err);
    if (status != STW_STATUS_OK) fprintf(stderr, "%s: %s\n", err.where, err.text);
    FUZZ_CHECK(status == STW_STATUS_OK);
}

/* Arenas that stay: to map and zero new ones would take most of an execution. */
static const stw_device_config *arenas(void) {
    enum { ARENA_BYTES = 256 << 20 };
    static stw_device_config config;
    for (int t = 0; t < STW_TIER_NVME && config.external[t].address == NULL; t++) {
        config.external[t].address = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        config.external[t].bytes = ARENA_BYTES;
        FUZZ_CHECK(config.external[t].address != MAP_FAILED);
    }
    return &config;
}

static void execute(bytes *in, const stw_plan *plan, bool one_thread) {
    unsigned how = take(in);
    const stw_executor_options options = {.backend = "host",
                                          .steps = 1 + how % 2,
                                          .seed = take(in),
                                          .poison_freed = how % 64 == 63,
                                          .one_thread = one_thread,
                                          .caller = arenas()};
    stw_run_result *result = NULL;
    stw_error err = STW_ERROR_INIT;
    stw_status status = stw_execute(plan, &options, &result, &err);
    if (status == STW_STATUS_BUG) fprintf(stderr, "%s: %s\n", err.where, err.text);
    FUZZ_CHECK(status != STW_STATUS_BUG && status == err.status);
    FUZZ_CHECK((status == STW_STATUS_OK) == (result != NULL));
    if (result != NULL) FUZZ_CHECK(result->checked > 0 && result->mismatched == 0);
    stw_run_result_free(result);
}

enum { EXECUTES = 8, EXECUTES_THREADS = 128, SIMULATES = 8, ROUND_TRIPS = 64 }; /* one of so many */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes in = {data, data + size};
    stw_error err = STW_ERROR_INIT;
    const uint64_t pick = XXH3_64bits(data, size);
    bool nvme =
        take(&in) % 16 == 15; /* is not executed: each run would take as long as 100 others */
    stw_plan *plan = new_plan(&in, &err);
    if (plan == NULL) return 0;
    decide(&in, nvme, plan);
    stw_status status = stw_plan_derive(plan, &err);
    FUZZ_CHECK(status != STW_STATUS_BUG && status == err.status);
    if (status == STW_STATUS_OK) status = stw_plan_check(plan, true, &err); /* shares, too */
    FUZZ_CHECK(status != STW_STATUS_BUG && status == err.status);
    if (status == STW_STATUS_OK) {
        stw_plan_judge(plan);
        if (pick % EXECUTES == 0 && !nvme) execute(&in, plan, pick % EXECUTES_THREADS != 0);
        if (pick % SIMULATES == 1 || pick % ROUND_TRIPS == 2) simulate(plan);
        if (pick % ROUND_TRIPS == 2) fuzz_plan_round_trip(plan);
    }
    stw_plan_free(plan);
    return 0;
}
