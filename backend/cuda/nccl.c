/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL as a transport. The library is opened at run time, so that programs start where it is
 * missing. The communicator is non-blocking: every call is polled (ncclCommGetAsyncError, and an
 * event for what runs on the GPU) until it is done or its deadline has passed, because NCCL itself
 * reports neither a peer that does not come nor one that does something else. What fails is
 * aborted at once; everything is allocated when the communicator is opened. */
#define _POSIX_C_SOURCE 200809L /* setenv, nanosleep */
#include "backend/comm/ops.h"
#include "backend/cuda/device.h"
#include "backend/cuda/probe.h"

#ifndef STW_HAVE_NCCL

const stw_comm_ops *stw_comm_nccl_ops(void) { return NULL; }
int stw_cuda_nccl_version(void) { return 0; }

#else

#include <dlfcn.h>
#include <inttypes.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/process.h"
#include "core/checked.h"
#include "core/log.h"

#define OLDEST_VERSION 21400 /* the first with non-blocking communicators */
#define ABORT_S 5.0          /* how long an abort may take before it is left behind */
#define SPINS 2000           /* polls before the thread starts to sleep between them */

/* X(member, function) */
#define NCCL_TABLE(X)                                                                              \
    X(version, ncclGetVersion)                                                                     \
    X(unique_id, ncclGetUniqueId)                                                                  \
    X(init, ncclCommInitRankConfig)                                                                \
    X(count, ncclCommCount)                                                                        \
    X(user_rank, ncclCommUserRank)                                                                 \
    X(async_error, ncclCommGetAsyncError)                                                          \
    X(finalize, ncclCommFinalize)                                                                  \
    X(destroy, ncclCommDestroy)                                                                    \
    X(abort, ncclCommAbort)                                                                        \
    X(error_text, ncclGetErrorString)                                                              \
    X(last_error, ncclGetLastError)                                                                \
    X(all_reduce, ncclAllReduce)                                                                   \
    X(all_gather, ncclAllGather)                                                                   \
    X(broadcast, ncclBroadcast)                                                                    \
    X(send, ncclSend)                                                                              \
    X(recv, ncclRecv)                                                                              \
    X(group_start, ncclGroupStart)                                                                 \
    X(group_end, ncclGroupEnd)

typedef struct nccl_api {
#define X(member, function) __typeof__(&function) member;
    NCCL_TABLE(X)
#undef X
} nccl_api;

typedef struct nccl {
    nccl_api api;
    stw_comm_config config; /* ranks, backend and device outlive this */
    cudaStream_t stream;
    cudaEvent_t done;
    unsigned char *scratch; /* STW_COMM_SCRATCH_BYTES of GPU memory */
    unsigned char *staged;  /* as many, page-locked */
    uint64_t operations;    /* issued so far */
    char what[160];         /* the operation under way, for errors */
    pthread_mutex_t mutex;  /* of comm, for calls that abort from another thread */
    ncclComm_t comm;        /* NULL before it is made and once it is aborted */
    bool aborted;
} nccl;

/* Between two polls: hot at first, since small operations take microseconds. */
static void pause_poll(unsigned *polls) {
    if ((*polls)++ < SPINS) return;
    const struct timespec a_while = {0, 50 * 1000};
    (void)nanosleep(&a_while, NULL);
}

/* ---- the library ---- */

static bool find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol); /* functions come as object pointers */
    return symbol != NULL;
}

static stw_status load(nccl_api *api, int *version, stw_error *err) {
    memset(api, 0, sizeof *api);
    const char *named = getenv("STOWAGE_NCCL");
    const char *path = named != NULL && named[0] != '\0' ? named : "libnccl.so.2";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return stw_fail(err, STW_STATUS_DEVICE, "NCCL",
                        "%s; STOWAGE_NCCL may name another libnccl.so.2", dlerror());
    const char *missing = NULL;
#define X(member, function)                                                                        \
    if (!find(library, #function, &api->member)) missing = #function;
    NCCL_TABLE(X)
#undef X
    *version = 0;
    if (api->version != NULL) (void)api->version(version);
    if (missing != NULL || *version < OLDEST_VERSION) {
        stw_status status =
            stw_fail(err, STW_STATUS_DEVICE, path, "NCCL 2.14 or newer is needed, found %d%s%s",
                     *version, missing != NULL ? " without " : "", missing != NULL ? missing : "");
        dlclose(library);
        return status;
    }
    return STW_STATUS_OK; /* stays loaded: its threads may outlive a communicator */
}

int stw_cuda_nccl_version(void) {
    nccl_api api;
    int version = 0;
    return load(&api, &version, NULL) == STW_STATUS_OK ? version : 0;
}

/* ---- failing ---- */

typedef struct abort_job {
    ncclResult_t (*abort)(ncclComm_t comm);
    ncclComm_t comm;
    atomic_int done, owners;
} abort_job;

static void leave_job(abort_job *job) {
    if (atomic_fetch_sub(&job->owners, 1) == 1) free(job);
}

static void *run_abort(void *arg) {
    abort_job *job = arg;
    (void)job->abort(job->comm);
    atomic_store(&job->done, 1);
    leave_job(job);
    return NULL;
}

/* An abort frees device memory and can itself wait for a kernel that never ends: it gets a thread
 * and a limit. */
static void abort_comm(nccl *n) {
    pthread_mutex_lock(&n->mutex);
    ncclComm_t comm = n->comm;
    n->comm = NULL;
    n->aborted = true;
    pthread_mutex_unlock(&n->mutex);
    if (comm == NULL) return;
    abort_job *job = calloc(1, sizeof *job);
    pthread_t thread;
    if (job != NULL) {
        *job = (abort_job){.abort = n->api.abort, .comm = comm};
        atomic_store(&job->owners, 2);
        if (pthread_create(&thread, NULL, run_abort, job) != 0) {
            free(job);
            job = NULL;
        }
    }
    if (job == NULL) {
        (void)n->api.abort(comm);
        return;
    }
    (void)pthread_detach(thread);
    unsigned polls = SPINS;
    for (double end = stw_process_now_s() + ABORT_S;
         atomic_load(&job->done) == 0 && stw_process_now_s() < end;)
        pause_poll(&polls);
    if (atomic_load(&job->done) == 0)
        stw_log(STW_LOG_WARN, "NCCL's abort has not returned after %.0f s and is left behind",
                ABORT_S);
    leave_job(job);
}

static stw_status fail_result(nccl *n, ncclResult_t result, stw_error *err) {
    char detail[256] = "";
    pthread_mutex_lock(&n->mutex);
    bool aborted = n->aborted;
    const char *last = aborted ? NULL : n->api.last_error(n->comm);
    if (last != NULL) snprintf(detail, sizeof detail, "%s", last);
    pthread_mutex_unlock(&n->mutex);
    stw_status status = aborted ? stw_fail(err, STW_STATUS_DEVICE, "NCCL",
                                           "%s was given up: the communicator is aborted", n->what)
                                : stw_fail_native(err, STW_STATUS_DEVICE, (long)result, "NCCL",
                                                  "%s: %s%s%s", n->what, n->api.error_text(result),
                                                  detail[0] != '\0' ? ": " : "", detail);
    abort_comm(n);
    return status;
}

/* The time is over, or another rank of this node has given up. */
static stw_status fail_waiting(nccl *n, const char *where, bool told, stw_error *err) {
    char operation[200], missing[600], why[60];
    stw_watch_give_up(n->config.watch, NULL);
    stw_watch_operation(n->config.watch, n->what, operation, sizeof operation);
    stw_watch_describe(n->config.watch, missing, sizeof missing);
    if (missing[0] == '\0') stw_watch_who_gave_up(n->config.watch, missing, sizeof missing);
    if (told)
        snprintf(why, sizeof why, "another rank has given up");
    else
        snprintf(why, sizeof why, "not all ranks took part within %.3g s", n->config.timeout_s);
    stw_status status = stw_fail(err, STW_STATUS_DEVICE, operation, "%s (NCCL: %s, %s): %s", why,
                                 n->what, where, missing);
    abort_comm(n);
    return status;
}

/* Is there no use in waiting any longer? Asked often, so that the others' pages are not. */
static bool is_over(const nccl *n, double end_s, unsigned polls, bool *told) {
    *told = polls >= SPINS && stw_watch_others_gave_up(n->config.watch);
    return *told || stw_process_now_s() > end_s;
}

/* ---- waiting ---- */

/* What NCCL says about the communicator now. */
static ncclResult_t state_of(nccl *n) {
    ncclResult_t state = ncclSystemError;
    pthread_mutex_lock(&n->mutex);
    if (!n->aborted) {
        ncclResult_t code = STW_NCCL_CALL(n->api.async_error(n->comm, &state));
        if (code != ncclSuccess) state = code;
    }
    pthread_mutex_unlock(&n->mutex);
    return state;
}

/* Wait until a call of the non-blocking communicator has done its part on the host. */
static stw_status settle(nccl *n, ncclResult_t result, stw_error *err) {
    unsigned polls = 0;
    bool told;
    for (double end = stw_process_now_s() + n->config.timeout_s; result == ncclInProgress;) {
        result = state_of(n);
        if (result != ncclInProgress) break;
        if (is_over(n, end, polls, &told))
            return fail_waiting(n, "which NCCL still prepares", told, err);
        pause_poll(&polls);
    }
    return result == ncclSuccess ? STW_STATUS_OK : fail_result(n, result, err);
}

/* Wait until everything on the communication stream is done. */
static stw_status finish(nccl *n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaEventRecord(n->done, n->stream), "recording the end of a collective");
    unsigned polls = 0;
    bool told;
    for (double end = stw_process_now_s() + n->config.timeout_s;;) {
        cudaError_t code = STW_CUDA_CALL(cudaEventQuery(n->done));
        if (code == cudaSuccess) break;
        if (code != cudaErrorNotReady) {
            status = stw_cuda_fail(err, code, "cudaEventQuery", n->what);
            break;
        }
        ncclResult_t state = state_of(n);
        if (state != ncclSuccess && state != ncclInProgress) return fail_result(n, state, err);
        if (is_over(n, end, polls, &told))
            return fail_waiting(n, "whose kernel waits on the GPU", told, err);
        pause_poll(&polls);
    }
out:
    if (status != STW_STATUS_OK) abort_comm(n); /* peers would wait for this rank */
    return status;
}

/* Issue one collective: `call` is evaluated with the communicator locked. */
#define ISSUE(call)                                                                                \
    do {                                                                                           \
        ncclResult_t result_ = ncclSystemError;                                                    \
        pthread_mutex_lock(&n->mutex);                                                             \
        if (!n->aborted) result_ = STW_NCCL_CALL(call);                                            \
        pthread_mutex_unlock(&n->mutex);                                                           \
        n->operations++;                                                                           \
        STW_TRY(settle(n, result_, err));                                                          \
    } while (0)

/* ---- opening ---- */

/* A port on which ranks that were started together meet, the same for all of them and different
 * for most jobs of a machine: beside MASTER_PORT, else made of what names the job. */
static unsigned meeting_port(const stw_ranks *ranks) {
    static const char *const names[] = {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"};
    if (getenv("MASTER_PORT") != NULL && ranks->master_port != 0)
        return ranks->master_port + (ranks->master_port + 17u > 65535u ? -17u : 17u);
    uint64_t seed = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (const char *c = getenv(names[i]); c != NULL && *c != '\0'; c++)
            seed = stw_mix64(seed ^ (uint64_t)*c);
    if (seed == 0) seed = (uint64_t)getppid();            /* mpirun, or its daemon on this node */
    return 20000u + (unsigned)(stw_mix64(seed) % 12000u); /* below the ephemeral ports */
}

static stw_status meet(const stw_ranks *ranks, stw_error *err) {
    if (getenv("NCCL_COMM_ID") != NULL) return STW_STATUS_OK;
    char address[192];
    const char *host = ranks->local_world == ranks->world ? "127.0.0.1" : ranks->master;
    if (host[0] == '\0')
        return stw_fail(err, STW_STATUS_DEVICE, "NCCL_COMM_ID",
                        "%u ranks on several nodes have no address of rank 0: set NCCL_COMM_ID to "
                        "<host>:<port>, or MASTER_ADDR and MASTER_PORT",
                        ranks->world);
    snprintf(address, sizeof address, "%s:%u", host, meeting_port(ranks));
    if (setenv("NCCL_COMM_ID", address, 0) != 0)
        return stw_fail(err, STW_STATUS_NO_MEMORY, "NCCL_COMM_ID", "out of memory");
    return STW_STATUS_OK;
}

static stw_status make_id(nccl *n, ncclUniqueId *id, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_comm_config *config = &n->config;
    memset(id, 0, sizeof *id);
    if (config->share == NULL) STW_TRY(meet(config->ranks, err));
    if (config->share == NULL || config->ranks->rank == 0) {
        ncclResult_t result = STW_NCCL_CALL(n->api.unique_id(id));
        if (result != ncclSuccess) {
            const char *at = getenv("NCCL_COMM_ID");
            status = stw_fail_native(err, STW_STATUS_DEVICE, (long)result, "NCCL",
                                     "making the unique id%s%s: %s",
                                     at != NULL ? " for NCCL_COMM_ID=" : "", at != NULL ? at : "",
                                     n->api.error_text(result));
        }
    }
    /* All ranks come to the exchange, the one that failed too: with zeros, which nobody uses. */
    if (config->share != NULL) {
        stw_status shared = config->share(config->share_state, id, (uint32_t)sizeof *id, err);
        if (status == STW_STATUS_OK) status = shared;
        const ncclUniqueId none = {{0}};
        if (status == STW_STATUS_OK && memcmp(id, &none, sizeof none) == 0)
            status = stw_fail(err, STW_STATUS_DEVICE, "NCCL", "rank 0 has no unique id");
    }
out:
    return status;
}

static stw_status join(nccl *n, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_ranks *ranks = n->config.ranks;
    ncclUniqueId id;
    int count = 0, rank = -1;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    snprintf(n->what, sizeof n->what, "joining %u ranks as rank %u", ranks->world, ranks->rank);
    STW_TRY(make_id(n, &id, err));
    ncclComm_t comm = NULL;
    ncclResult_t result = n->api.init(&comm, (int)ranks->world, id, (int)ranks->rank, &config);
    if (comm == NULL)
        STW_TRY(stw_fail_native(err, STW_STATUS_DEVICE, (long)result, "NCCL", "%s: %s", n->what,
                                n->api.error_text(result)));
    n->comm = comm;
    STW_TRY(settle(n, result == ncclSuccess ? ncclInProgress : result, err));
    if (n->api.count(comm, &count) != ncclSuccess || n->api.user_rank(comm, &rank) != ncclSuccess ||
        (uint32_t)count != ranks->world || (uint32_t)rank != ranks->rank)
        STW_TRY(stw_fail(err, STW_STATUS_DEVICE, "NCCL",
                         "the environment says rank %u of %u, the communicator rank %d of %d",
                         ranks->rank, ranks->world, rank, count));
out:
    return status;
}

static void nccl_close(void *state);

static stw_status nccl_open(const stw_comm_config *config, void **state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    int version = 0;
    *state = NULL;
    nccl *n = calloc(1, sizeof *n);
    if (n == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "NCCL", "out of memory");
    pthread_mutex_init(&n->mutex, NULL);
    n->config = *config;
    STW_TRY(load(&n->api, &version, err));
    STW_TRY(stw_cuda_device_use(config->device, err));
    n->stream = config->backend->native_stream(config->device, STW_STREAM_COMM);
    n->scratch = config->backend->device_address(config->device, config->scratch_offset,
                                                 STW_COMM_SCRATCH_BYTES);
    if (n->scratch == NULL || n->stream == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "NCCL", "no scratch of %llu bytes at %llu",
                         (unsigned long long)STW_COMM_SCRATCH_BYTES,
                         (unsigned long long)config->scratch_offset));
    void *staged = NULL;
    STW_CUDA_TRY(cudaHostAlloc(&staged, STW_COMM_SCRATCH_BYTES, cudaHostAllocPortable),
                 "allocating a page-locked buffer for collectives");
    n->staged = staged;
    STW_CUDA_TRY(cudaEventCreateWithFlags(&n->done, cudaEventDisableTiming),
                 "making an event for collectives");
    STW_TRY(join(n, err));
    stw_log(STW_LOG_DEBUG, "NCCL %d: rank %u of %u", version, config->ranks->rank,
            config->ranks->world);
    *state = n;
    n = NULL;
out:
    if (n != NULL) {
        abort_comm(n);
        nccl_close(n);
    }
    return status;
}

static void nccl_abort(void *state) {
    if (state != NULL) abort_comm(state);
}

/* In order: let NCCL finish what was issued, then free it. */
static void nccl_close(void *state) {
    nccl *n = state;
    if (n == NULL) return;
    pthread_mutex_lock(&n->mutex);
    ncclComm_t comm = n->comm;
    ncclResult_t result = comm != NULL ? n->api.finalize(comm) : ncclSuccess;
    pthread_mutex_unlock(&n->mutex);
    if (comm != NULL) {
        snprintf(n->what, sizeof n->what, "leaving after %" PRIu64 " operations", n->operations);
        if (settle(n, result == ncclSuccess ? ncclInProgress : result, NULL) == STW_STATUS_OK) {
            n->comm = NULL;
            (void)n->api.destroy(comm);
        }
    }
    if (n->done != NULL) (void)cudaEventDestroy(n->done);
    if (n->staged != NULL) (void)cudaFreeHost(n->staged);
    pthread_mutex_destroy(&n->mutex);
    free(n);
}

/* ---- collectives; one that fails on this rank is aborted, or its peers would wait for it ---- */

static stw_status upload(nccl *n, uint64_t at, const void *from, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    memcpy(n->staged + at, from, bytes);
    STW_CUDA_TRY(
        cudaMemcpyAsync(n->scratch + at, n->staged + at, bytes, cudaMemcpyHostToDevice, n->stream),
        "copying a collective's input to the GPU");
out:
    return status;
}

static stw_status download(nccl *n, uint64_t bytes, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    STW_CUDA_TRY(cudaMemcpyAsync(n->staged, n->scratch, bytes, cudaMemcpyDeviceToHost, n->stream),
                 "copying a collective's result to the host");
    STW_TRY(finish(n, err));
out:
    return status;
}

static void name_operation(nccl *n, const char *kind, uint64_t bytes, int root) {
    char from[32] = "";
    if (root >= 0) snprintf(from, sizeof from, " from rank %d", root);
    snprintf(n->what, sizeof n->what, "%s of %" PRIu64 " bytes%s", kind, bytes, from);
}

static stw_status sum(nccl *n, const char *kind, uint64_t *values, uint32_t count, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t most = (uint32_t)(STW_COMM_SCRATCH_BYTES / sizeof(uint64_t));
    STW_TRY(stw_cuda_device_use(n->config.device, err));
    for (uint32_t first = 0; first < count; first += most) {
        uint32_t part = count - first < most ? count - first : most;
        uint64_t bytes = part * sizeof(uint64_t);
        name_operation(n, kind, bytes, -1);
        STW_TRY(upload(n, 0, values + first, bytes, err));
        ISSUE(n->api.all_reduce(n->scratch, n->scratch, part, ncclUint64, ncclSum, n->comm,
                                n->stream));
        STW_TRY(download(n, bytes, err));
        memcpy(values + first, n->staged, bytes);
    }
out:
    if (status != STW_STATUS_OK) abort_comm(n);
    return status;
}

static stw_status nccl_sum_u64(void *state, uint64_t *values, uint32_t n_values, stw_error *err) {
    return sum(state, "sum", values, n_values, err);
}

/* In GPU memory and in the order of the stream: the host only queues it, nccl_wait waits. */
static stw_status nccl_sum_counters(void *state, uint64_t *counters, uint32_t n_counters,
                                    stw_error *err) {
    nccl *n = state;
    stw_status status = STW_STATUS_OK;
    name_operation(n, "sum of counters", n_counters * sizeof(uint64_t), -1);
    if (n_counters == 0) goto out;
    STW_TRY(stw_cuda_device_use(n->config.device, err));
    ISSUE(
        n->api.all_reduce(counters, counters, n_counters, ncclUint64, ncclSum, n->comm, n->stream));
out:
    if (status != STW_STATUS_OK) abort_comm(n);
    return status;
}

static stw_status nccl_barrier(void *state, stw_error *err) {
    uint64_t nothing = 0;
    return sum(state, "barrier", &nothing, 1, err);
}

static stw_status nccl_gather(void *state, const void *mine, void *out, uint32_t bytes,
                              stw_error *err) {
    nccl *n = state;
    stw_status status = STW_STATUS_OK;
    const uint32_t world = n->config.ranks->world;
    const uint64_t most = STW_COMM_SCRATCH_BYTES / world;
    if (most == 0) STW_TRY(stw_fail(err, STW_STATUS_BUG, "NCCL", "gather over %u ranks", world));
    STW_TRY(stw_cuda_device_use(n->config.device, err));
    for (uint64_t first = 0; first < bytes; first += most) {
        uint64_t part = stw_min_u64(bytes - first, most);
        uint64_t my_place = part * n->config.ranks->rank;
        name_operation(n, "gather", part, -1);
        STW_TRY(upload(n, my_place, (const unsigned char *)mine + first, part, err));
        ISSUE(n->api.all_gather(n->scratch + my_place, n->scratch, part, ncclUint8, n->comm,
                                n->stream));
        STW_TRY(download(n, part * world, err));
        for (uint32_t r = 0; r < world; r++)
            memcpy((unsigned char *)out + (uint64_t)r * bytes + first, n->staged + r * part, part);
    }
out:
    if (status != STW_STATUS_OK) abort_comm(n);
    return status;
}

/* From and to host memory through the scratch, all in the order of the stream. Pieces are the same
 * on every rank, wherever the range lies there. */
static stw_status broadcast_host(nccl *n, uint64_t offset, uint64_t bytes, uint32_t root,
                                 stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const stw_comm_config *config = &n->config;
    bool mine = config->ranks->rank == root;
    for (uint64_t done = 0; done < bytes; done += STW_COMM_SCRATCH_BYTES) {
        uint64_t part = stw_min_u64(bytes - done, STW_COMM_SCRATCH_BYTES);
        if (mine)
            STW_TRY(config->backend->copy(config->device, STW_STREAM_COMM,
                                          stw_at(STW_TIER_GPU, config->scratch_offset),
                                          stw_at(STW_TIER_HOST, offset + done), part, err));
        ISSUE(n->api.broadcast(n->scratch, n->scratch, part, ncclUint8, (int)root, n->comm,
                               n->stream));
        if (!mine)
            STW_TRY(config->backend->copy(config->device, STW_STREAM_COMM,
                                          stw_at(STW_TIER_HOST, offset + done),
                                          stw_at(STW_TIER_GPU, config->scratch_offset), part, err));
    }
out:
    return status;
}

static stw_status nccl_broadcast(void *state, stw_tier tier, uint64_t offset, uint64_t bytes,
                                 uint32_t root, stw_error *err) {
    nccl *n = state;
    stw_status status = STW_STATUS_OK;
    name_operation(n, "broadcast", bytes, (int)root);
    if (bytes == 0) goto out;
    if (root >= n->config.ranks->world || tier == STW_TIER_NVME)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "NCCL", "%s in tier %s among %u ranks", n->what,
                         stw_tier_name(tier), n->config.ranks->world));
    STW_TRY(stw_cuda_device_use(n->config.device, err));
    if (tier == STW_TIER_HOST) {
        STW_TRY(broadcast_host(n, offset, bytes, root, err));
        goto out;
    }
    unsigned char *memory = n->config.backend->device_address(n->config.device, offset, bytes);
    if (memory == NULL)
        STW_TRY(stw_fail(err, STW_STATUS_BUG, "NCCL", "%s outside the GPU arena", n->what));
    ISSUE(n->api.broadcast(memory, memory, bytes, ncclUint8, (int)root, n->comm, n->stream));
out:
    if (status != STW_STATUS_OK) abort_comm(n);
    return status;
}

/* "messages to ranks 1 2, from ranks 1" */
static void name_messages(nccl *n, const stw_comm_message *messages, uint32_t count) {
    char peers[2][48] = {"", ""};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *out = peers[messages[i].sends];
        const size_t used = strlen(out);
        bytes += messages[i].bytes;
        if (used + 12 < sizeof peers[0])
            snprintf(out + used, sizeof peers[0] - used, " %" PRIu32, messages[i].peer);
    }
    snprintf(n->what, sizeof n->what, "messages of %" PRIu64 " bytes%s%s%s%s", bytes,
             peers[1][0] != '\0' ? " to ranks" : "", peers[1],
             peers[0][0] != '\0' ? " from ranks" : "", peers[0]);
}

/* One message of a group. Its result is of the queueing alone: the group's end starts all. */
static ncclResult_t queue_message(const nccl *n, const stw_comm_message *m, unsigned char *memory) {
    if (m->sends)
        return STW_NCCL_CALL(
            n->api.send(memory, m->bytes, ncclUint8, (int)m->peer, n->comm, n->stream));
    return STW_NCCL_CALL(
        n->api.recv(memory, m->bytes, ncclUint8, (int)m->peer, n->comm, n->stream));
}

static ncclResult_t run_messages(nccl *n, const stw_comm_message *messages, uint32_t count,
                                 unsigned char *arena) {
    ncclResult_t result = ncclSystemError;
    pthread_mutex_lock(&n->mutex);
    if (!n->aborted) {
        result = STW_NCCL_CALL(n->api.group_start());
        for (uint32_t i = 0; i < count && (result == ncclSuccess || result == ncclInProgress); i++)
            result = queue_message(n, &messages[i], arena + messages[i].offset);
        const ncclResult_t ended = STW_NCCL_CALL(n->api.group_end());
        if (result == ncclSuccess || result == ncclInProgress) result = ended;
    }
    pthread_mutex_unlock(&n->mutex);
    return result;
}

static stw_status nccl_messages(void *state, stw_tier tier, const stw_comm_message *messages,
                                uint32_t count, stw_error *err) {
    nccl *n = state;
    stw_status status = STW_STATUS_OK;
    const stw_comm_config *config = &n->config;
    unsigned char *arena = NULL;
    name_messages(n, messages, count);
    if (count == 0) goto out;
    for (uint32_t i = 0; i < count; i++)
        if (tier != STW_TIER_GPU ||
            config->backend->device_address(config->device, messages[i].offset,
                                            messages[i].bytes) == NULL)
            STW_TRY(stw_fail(err, STW_STATUS_BUG, "NCCL", "%s outside the GPU arena", n->what));
    arena = config->backend->device_address(config->device, 0, 0);
    STW_TRY(stw_cuda_device_use(config->device, err));
    n->operations++;
    STW_TRY(settle(n, run_messages(n, messages, count, arena), err));
out:
    if (status != STW_STATUS_OK) abort_comm(n);
    return status;
}

static stw_status nccl_wait(void *state, const char *what, stw_error *err) {
    nccl *n = state;
    stw_status status = STW_STATUS_OK;
    char last[sizeof n->what];
    STW_TRY(stw_cuda_device_use(n->config.device, err));
    memcpy(last, n->what, sizeof last);
    snprintf(n->what, sizeof n->what, "%.60s, last %.80s", what, last);
    STW_TRY(finish(n, err));
    memcpy(n->what, last, sizeof last);
out:
    return status;
}

static const stw_comm_ops nccl_ops = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .abort = nccl_abort,
    .sum_u64 = nccl_sum_u64,
    .sum_counters = nccl_sum_counters,
    .gather = nccl_gather,
    .broadcast = nccl_broadcast,
    .messages = nccl_messages,
    .barrier = nccl_barrier,
    .wait = nccl_wait,
};

const stw_comm_ops *stw_comm_nccl_ops(void) { return &nccl_ops; }

#endif
