/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives that Stowage's transport does not offer, for comparison with what other engines use:
 * a communicator of its own, whose calls block. Peers that never come make it wait for ever: it
 * runs in processes that are ended when their time is up. */
#include "backend/cuda/probe.h"

#ifndef STW_HAVE_NCCL

uint32_t stw_cuda_probe_collectives(const stw_cuda_probe_peers *peers, stw_sample *out,
                                    stw_error *err) {
    (void)peers;
    (void)out;
    (void)stw_fail(err, STW_STATUS_NOT_BUILT_IN, "NCCL", "this program is built without it");
    return 0;
}

#else

#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)
#define RUNS 5

/* X(member, function) */
#define TABLE(X)                                                                                   \
    X(unique_id, ncclGetUniqueId)                                                                  \
    X(init, ncclCommInitRank)                                                                      \
    X(destroy, ncclCommDestroy)                                                                    \
    X(error_text, ncclGetErrorString)                                                              \
    X(group_start, ncclGroupStart)                                                                 \
    X(group_end, ncclGroupEnd)                                                                     \
    X(send, ncclSend)                                                                              \
    X(recv, ncclRecv)                                                                              \
    X(all_gather, ncclAllGather)                                                                   \
    X(reduce_scatter, ncclReduceScatter)                                                           \
    X(all_reduce, ncclAllReduce)

typedef struct api {
#define X(member, function) __typeof__(&function) member;
    TABLE(X)
#undef X
} api;

typedef struct state {
    const stw_cuda_probe_peers *peers;
    api api;
    ncclComm_t comm;
    stw_sample *out;
    uint32_t n; /* samples written */
} state;

#define NCCL_TRY(call, purpose)                                                                    \
    do {                                                                                           \
        ncclResult_t code_ = (call);                                                               \
        if (code_ != ncclSuccess) {                                                                \
            status = stw_fail_native(err, STW_STATUS_DEVICE, (long)code_, "NCCL", "%s: %s",        \
                                     purpose, s->api.error_text(code_));                           \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

static bool find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol); /* functions come as object pointers */
    return symbol != NULL;
}

/* The library that the transport has opened already. */
static stw_status load(api *out, stw_error *err) {
    const char *named = getenv("STOWAGE_NCCL");
    const char *path = named != NULL && named[0] != '\0' ? named : "libnccl.so.2";
    const char *missing = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return stw_fail(err, STW_STATUS_DEVICE, "NCCL", "%s", dlerror());
#define X(member, function)                                                                        \
    if (!find(library, #function, &out->member)) missing = #function;
    TABLE(X)
#undef X
    if (missing == NULL) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DEVICE, path, "there is no %s in it", missing);
}

static void keep(state *s, const stw_sample *sample) {
    if (s->n < STW_CUDA_PROBE_COLLECTIVES && sample->n > 0) s->out[s->n++] = *sample;
}

/* ---- the collectives, in place, on `bytes` of the whole ---- */

typedef ncclResult_t (*collective_fn)(const state *s, uint64_t bytes);

static ncclResult_t all_gather(const state *s, uint64_t bytes) {
    const stw_cuda_probe_peers *p = s->peers;
    uint64_t part = bytes / p->world;
    return s->api.all_gather(p->memory + p->rank * part, p->memory, part, ncclUint8, s->comm,
                             p->stream);
}

static ncclResult_t reduce_scatter(const state *s, uint64_t bytes) {
    const stw_cuda_probe_peers *p = s->peers;
    uint64_t part = bytes / p->world / sizeof(float);
    return s->api.reduce_scatter(p->memory, p->memory + p->rank * part * sizeof(float), part,
                                 ncclFloat, ncclSum, s->comm, p->stream);
}

static ncclResult_t all_reduce(const state *s, uint64_t bytes) {
    const stw_cuda_probe_peers *p = s->peers;
    return s->api.all_reduce(p->memory, p->memory, bytes / sizeof(float), ncclFloat, ncclSum,
                             s->comm, p->stream);
}

/* Rank 0 gives every other rank its part. */
static ncclResult_t scatter(const state *s, uint64_t bytes) {
    const stw_cuda_probe_peers *p = s->peers;
    uint64_t part = bytes / p->world;
    ncclResult_t result = s->api.group_start();
    for (uint32_t r = 1; r < p->world && p->rank == 0 && result == ncclSuccess; r++)
        result = s->api.send(p->memory + r * part, part, ncclUint8, (int)r, s->comm, p->stream);
    if (p->rank > 0 && result == ncclSuccess)
        result = s->api.recv(p->memory, part, ncclUint8, 0, s->comm, p->stream);
    ncclResult_t ended = s->api.group_end();
    return result != ncclSuccess ? result : ended;
}

static const struct {
    const char *name;
    collective_fn run;
} collectives[] = {{"NCCL all-gather", all_gather},
                   {"NCCL reduce-scatter", reduce_scatter},
                   {"NCCL all-reduce", all_reduce},
                   {"NCCL send-receive scatter", scatter}};

static const uint64_t sizes[] = {1 * MIB, 32 * MIB, 256 * MIB, 1024 * MIB};

/* ---- measuring ---- */

static stw_status used_bytes(uint64_t *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    size_t unused = 0, total = 0;
    STW_CUDA_TRY(cudaMemGetInfo(&unused, &total), "measuring GPU memory");
    *out = total - unused;
out:
    return status;
}

/* Ranks start together: each waits for a sum over all of them. */
static stw_status meet(state *s, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    NCCL_TRY(s->api.all_reduce(s->peers->memory, s->peers->memory, 1, ncclFloat, ncclSum, s->comm,
                               s->peers->stream),
             "a barrier");
    STW_CUDA_TRY(cudaStreamSynchronize(s->peers->stream), "waiting for a barrier");
out:
    return status;
}

static stw_status measure(state *s, size_t which, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char detail[64];
    const int repeats = bytes < 64 * MIB ? 20 : 4;
    snprintf(detail, sizeof detail, "%llu MiB of the whole, %u GPUs",
             (unsigned long long)(bytes / MIB), s->peers->world);
    stw_sample sample = stw_sample_make(collectives[which].name, detail, "B/s");
    NCCL_TRY(collectives[which].run(s, bytes), collectives[which].name); /* connects */
    for (int run = 0; run < RUNS; run++) {
        STW_TRY(meet(s, err));
        double start = stw_process_now_s();
        for (int i = 0; i < repeats; i++)
            NCCL_TRY(collectives[which].run(s, bytes), collectives[which].name);
        STW_CUDA_TRY(cudaStreamSynchronize(s->peers->stream), "waiting for a collective");
        stw_sample_add(&sample, repeats * (double)bytes / (stw_process_now_s() - start));
    }
    keep(s, &sample);
out:
    return status;
}

/* What the GPU holds more than before the communicator was made. */
static stw_status note_growth(state *s, const char *detail, uint64_t used_before, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    uint64_t used = 0;
    STW_TRY(used_bytes(&used, err));
    stw_sample sample = stw_sample_make("NCCL communicator", detail, "B");
    stw_sample_add(&sample, used > used_before ? (double)(used - used_before) : 0);
    keep(s, &sample);
out:
    return status;
}

static stw_status measure_all(state *s, stw_error *err) {
    const stw_cuda_probe_peers *p = s->peers;
    stw_status status = STW_STATUS_OK;
    ncclUniqueId id;
    uint64_t before = 0;
    memset(&id, 0, sizeof id);
    STW_TRY(load(&s->api, err));
    STW_TRY(used_bytes(&before, err));
    if (p->rank == 0) NCCL_TRY(s->api.unique_id(&id), "making a unique id");
    STW_TRY(p->share(p->share_state, &id, (uint32_t)sizeof id, err));
    NCCL_TRY(s->api.init(&s->comm, (int)p->world, id, (int)p->rank), "joining");
    STW_TRY(note_growth(s, "a second one, before its first use", before, err));
    STW_CUDA_TRY(cudaMemsetAsync(p->memory, 0, (size_t)p->bytes, p->stream), "zeroing a buffer");
    for (size_t c = 0; c < sizeof collectives / sizeof collectives[0]; c++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            if (sizes[i] <= p->bytes) STW_TRY(measure(s, c, sizes[i], err));
    STW_TRY(note_growth(s, "a second one, after all collectives", before, err));
out:
    return status;
}

uint32_t stw_cuda_probe_collectives(const stw_cuda_probe_peers *peers, stw_sample *out,
                                    stw_error *err) {
    state s = {.peers = peers, .out = out};
    if (measure_all(&s, err) == STW_STATUS_OK) (void)s.api.destroy(s.comm);
    return s.n; /* a communicator that failed ends with its process */
}

#endif
