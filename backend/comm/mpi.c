/* SPDX-License-Identifier: Apache-2.0 */
/* MPI through its plugin: found, opened, checked, and wrapped as a transport. The arenas that it
 * broadcasts lie in host memory, so it serves the host backend; under a GPU backend it only carries
 * NCCL's unique id. */
#define _POSIX_C_SOURCE 200809L /* access */
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/comm/ops.h"
#include "backend/mpi/stowage_mpi.h"
#include "core/file.h"

typedef struct mpi_state {
    const stw_mpi_calls *calls;
    const stw_comm_config *config; /* its device comes after `open` */
    const stw_backend *backend;
    double timeout_s;
    atomic_bool broken; /* set by any thread */
    bool reported;      /* to ranks of other nodes */
    char late[80];      /* the message that a call waited for when it gave up; or "" */
} mpi_state;

/* ---- the plugin ---- */

#define TRIED_BYTES 400

static const stw_mpi_calls *open_file(const char *path, char *tried, stw_error *err,
                                      stw_status *status) {
    /* Global: Open MPI's own plugins look for its symbols. Never closed: MPI leaves handlers. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        const char *why = dlerror();
        size_t used = strlen(tried);
        snprintf(tried + used, TRIED_BYTES - used, "%s%s", used > 0 ? "; " : "",
                 why != NULL ? why : path);
        return NULL;
    }
    stw_mpi_calls_fn find = NULL;
    void *symbol = dlsym(library, STW_MPI_PLUGIN_SYMBOL);
    memcpy(&find, &symbol, sizeof find); /* ISO C has no cast from object to function pointer */
    const stw_mpi_calls *calls = find != NULL ? find() : NULL;
    if (calls == NULL || calls->version != STW_MPI_PLUGIN_VERSION) {
        *status = stw_fail(err, STW_STATUS_NOT_BUILT_IN, path,
                           "found an MPI plugin of version %u, expected %u",
                           calls == NULL ? 0 : calls->version, STW_MPI_PLUGIN_VERSION);
        return NULL;
    }
    return calls;
}

static stw_status find_plugin(const stw_mpi_calls **out, stw_error *err) {
    /* From bin/, from lib/, from lib/<triplet>/, or from a folder that holds everything. */
    static const char *const beside[] = {"/../lib/stowage/stowage-mpi.so",
                                         "/stowage/stowage-mpi.so", "/../stowage/stowage-mpi.so",
                                         "/stowage-mpi.so"};
    stw_status status = STW_STATUS_OK;
    char tried[TRIED_BYTES] = "";
    const char *named = getenv("STOWAGE_MPI_PLUGIN");
    *out = NULL;
    if (named != NULL && named[0] != '\0') {
        *out = open_file(named, tried, err, &status);
    } else {
        char folder[PATH_MAX] = "";
        (void)stw_code_folder(folder, sizeof folder);
        for (int i = 0; i < 4 && *out == NULL && status == STW_STATUS_OK; i++) {
            char path[PATH_MAX + 64];
            snprintf(path, sizeof path, "%s%s", folder, beside[i]);
            if (access(path, R_OK) == 0) *out = open_file(path, tried, err, &status);
        }
    }
    if (*out != NULL || status != STW_STATUS_OK) return status;
    return stw_fail(err, STW_STATUS_NOT_BUILT_IN, "MPI",
                    "the plugin stowage-mpi.so is not beside the program nor in ../lib/stowage, "
                    "and STOWAGE_MPI_PLUGIN names none that opens%s%s",
                    tried[0] != '\0' ? ": " : "", tried);
}

/* ---- the transport ---- */

#define REPORT_S 2.0 /* how long ranks that give up hear of each other */

static void append(char *out, size_t out_size, const char *text) {
    size_t used = strlen(out);
    if (text[0] != '\0')
        snprintf(out + used, out_size - used, "%s%.*s", used > 0 ? "; " : "",
                 (int)STW_MPI_REPORT_BYTES, text);
}

/* What the ranks of other nodes say of the ranks there, appended; those who say nothing are named.
 */
static void hear_nodes(const stw_ranks *ranks, const char *all, const unsigned char *heard,
                       char *out, size_t out_size) {
    uint32_t own = ranks->rank / ranks->local_world, each = ranks->local_world;
    for (uint32_t first = 0; first < ranks->world; first += each) {
        const char *said = "";
        uint32_t silent = UINT32_MAX;
        char text[80] = "";
        for (uint32_t r = first; r < first + each && r < ranks->world; r++) {
            if (!heard[r] && silent == UINT32_MAX) silent = r;
            if (heard[r] && said[0] == '\0') said = all + (size_t)r * STW_MPI_REPORT_BYTES;
        }
        if (first / each == own) continue;
        if (said[0] == '\0' && silent != UINT32_MAX)
            snprintf(text, sizeof text, "rank %u on another node does not answer", silent);
        append(out, out_size, said[0] != '\0' ? said : text);
    }
}

/* Ranks of other nodes are not seen, so ranks that give up tell each other what they see.
 * @param missing what this rank sees; the others' is appended */
static void report(mpi_state *mpi, char *missing, size_t missing_size, double wait_s) {
    const stw_ranks *ranks = mpi->config->ranks;
    if (mpi->reported || ranks->local_world >= ranks->world) return;
    mpi->reported = true;
    char mine[STW_MPI_REPORT_BYTES] = "";
    char *all = calloc(ranks->world, STW_MPI_REPORT_BYTES);
    unsigned char *heard = calloc(ranks->world, 1);
    if (all != NULL && heard != NULL) {
        snprintf(mine, sizeof mine, "%s", missing);
        mpi->calls->report(mine, all, heard, wait_s);
        for (uint32_t r = 0; r < ranks->world; r++) all[(r + 1u) * STW_MPI_REPORT_BYTES - 1] = '\0';
        if (wait_s > 0) hear_nodes(ranks, all, heard, missing, missing_size);
    }
    free(all);
    free(heard);
}

static stw_status result_status(mpi_state *mpi, stw_mpi_result result, const char *what,
                                const char *error, stw_error *err) {
    char missing[700], operation[160];
    if (result == STW_MPI_OK) return STW_STATUS_OK;
    mpi->broken = true;
    stw_watch_give_up(mpi->config->watch, NULL);
    if (result == STW_MPI_FAILED)
        return stw_fail(err, STW_STATUS_DEVICE, what, "MPI says: %.300s", error);
    stw_watch_operation(mpi->config->watch, what, operation, sizeof operation);
    stw_watch_describe(mpi->config->watch, missing, sizeof missing);
    report(mpi, missing, sizeof missing, REPORT_S);
    if (missing[0] == '\0') stw_watch_who_gave_up(mpi->config->watch, missing, sizeof missing);
    append(missing, sizeof missing, mpi->late);
    if (result == STW_MPI_GIVEN_UP)
        return stw_fail(err, STW_STATUS_DEVICE, operation, "another rank has given up (MPI): %s",
                        missing);
    return stw_fail(err, STW_STATUS_DEVICE, operation,
                    "not all ranks took part within %.3g s (MPI): %s", mpi->timeout_s, missing);
}

static stw_status check_alive(const mpi_state *mpi, const char *what, stw_error *err) {
    if (!mpi->broken) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DEVICE, what, "the communicator has failed before");
}

static int others_gave_up(void *state) { return stw_watch_others_gave_up(state); }

static stw_status mpi_open(const stw_comm_config *config, void **state, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    char error[300] = "";
    uint32_t rank = 0, world = 0;
    *state = NULL;
    mpi_state *mpi = calloc(1, sizeof *mpi);
    if (mpi == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, "MPI", "out of memory");
    mpi->backend = config->backend;
    mpi->config = config;
    mpi->timeout_s = config->timeout_s;
    STW_TRY(find_plugin(&mpi->calls, err));
    STW_TRY(result_status(mpi,
                          mpi->calls->join(&rank, &world, mpi->timeout_s, others_gave_up,
                                           config->watch, error, sizeof error),
                          "joining", error, err));
    if (rank != config->ranks->rank || world != config->ranks->world)
        status = stw_fail(err, STW_STATUS_DEVICE, "MPI",
                          "%s says rank %u of %u, MPI says rank %u of %u", config->ranks->launcher,
                          config->ranks->rank, config->ranks->world, rank, world);
out:
    if (status == STW_STATUS_OK) {
        *state = mpi;
    } else {
        if (mpi->calls != NULL) mpi->calls->leave(1);
        free(mpi);
    }
    return status;
}

static void mpi_close(void *state) {
    mpi_state *mpi = state;
    char why[STW_MPI_REPORT_BYTES];
    if (mpi == NULL) return;
    stw_watch_why(mpi->config->watch, why, sizeof why);
    if (mpi->broken && why[0] != '\0') report(mpi, why, sizeof why, 0);
    mpi->calls->leave(mpi->broken ? 1 : 0);
    free(mpi);
}

static void mpi_abort(void *state) {
    mpi_state *mpi = state;
    mpi->broken = true;
    mpi->calls->interrupt();
}

static stw_status mpi_sum_u64(void *state, uint64_t *values, uint32_t n, stw_error *err) {
    mpi_state *mpi = state;
    char error[300] = "";
    stw_status status = check_alive(mpi, "sum over ranks", err);
    if (status != STW_STATUS_OK) return status;
    return result_status(mpi, mpi->calls->sum_u64(values, n, mpi->timeout_s, error, sizeof error),
                         "sum over ranks", error, err);
}

static stw_status mpi_gather(void *state, const void *mine, void *out, uint32_t bytes,
                             stw_error *err) {
    mpi_state *mpi = state;
    char error[300] = "";
    stw_status status = check_alive(mpi, "gather over ranks", err);
    if (status != STW_STATUS_OK) return status;
    return result_status(mpi,
                         mpi->calls->gather(mine, out, bytes, mpi->timeout_s, error, sizeof error),
                         "gather over ranks", error, err);
}

stw_status stw_comm_mpi_share(void *state, void *data, uint32_t bytes, stw_error *err) {
    mpi_state *mpi = state;
    char error[300] = "";
    stw_status status = check_alive(mpi, "broadcast", err);
    if (status != STW_STATUS_OK) return status;
    return result_status(mpi,
                         mpi->calls->broadcast(data, bytes, 0, mpi->timeout_s, error, sizeof error),
                         "broadcast", error, err);
}

/* @param what for the error of bytes that MPI does not reach */
static stw_status find_memory(const mpi_state *mpi, stw_tier tier, uint64_t offset, uint64_t bytes,
                              const char *what, void **out, stw_error *err) {
    *out = NULL;
    if (tier == STW_TIER_HOST)
        *out = mpi->backend->host_address(mpi->config->device, offset, bytes);
    if (tier == STW_TIER_GPU && !mpi->backend->gpu)
        *out = mpi->backend->device_address(mpi->config->device, offset, bytes);
    if (*out != NULL) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_BUG, what, "MPI cannot reach %llu bytes of tier %s",
                    (unsigned long long)bytes, stw_tier_name(tier));
}

static stw_status mpi_broadcast(void *state, stw_tier tier, uint64_t offset, uint64_t bytes,
                                uint32_t root, stw_error *err) {
    mpi_state *mpi = state;
    char error[300] = "";
    void *memory = NULL;
    stw_status status = check_alive(mpi, "broadcast", err);
    if (status == STW_STATUS_OK)
        status = find_memory(mpi, tier, offset, bytes, "broadcast", &memory, err);
    if (status != STW_STATUS_OK) return status;
    return result_status(
        mpi, mpi->calls->broadcast(memory, bytes, root, mpi->timeout_s, error, sizeof error),
        "broadcast", error, err);
}

static stw_status mpi_messages(void *state, stw_tier tier, const stw_comm_message *messages,
                               uint32_t n, stw_error *err) {
    mpi_state *mpi = state;
    char error[300] = "";
    uint32_t late = n;
    stw_status status = check_alive(mpi, "messages", err);
    stw_mpi_message *all = calloc((size_t)n + 1, sizeof *all);
    if (all == NULL) status = stw_fail(err, STW_STATUS_NO_MEMORY, "messages", "out of memory");
    for (uint32_t i = 0; i < n && status == STW_STATUS_OK; i++) {
        const stw_comm_message *m = &messages[i];
        all[i] = (stw_mpi_message){.bytes = m->bytes, .peer = m->peer, .sends = m->sends};
        status = find_memory(mpi, tier, m->offset, m->bytes, "messages", &all[i].data, err);
    }
    if (status == STW_STATUS_OK) {
        const stw_mpi_result result =
            mpi->calls->messages(all, n, mpi->timeout_s, &late, error, sizeof error);
        if (late < n)
            snprintf(mpi->late, sizeof mpi->late, "%llu bytes %s rank %u have not passed",
                     (unsigned long long)all[late].bytes, all[late].sends ? "to" : "from",
                     all[late].peer);
        status = result_status(mpi, result, "messages", error, err);
    }
    free(all);
    return status;
}

static stw_status mpi_barrier(void *state, stw_error *err) {
    mpi_state *mpi = state;
    char error[300] = "";
    stw_status status = check_alive(mpi, "barrier", err);
    if (status != STW_STATUS_OK) return status;
    return result_status(mpi, mpi->calls->barrier(mpi->timeout_s, error, sizeof error), "barrier",
                         error, err);
}

/* Every call above returns when done. */
static stw_status mpi_wait(void *state, const char *what, stw_error *err) {
    return check_alive(state, what, err);
}

const stw_comm_ops *stw_comm_mpi_ops(void) {
    static const stw_comm_ops ops = {
        .name = "mpi",
        .open = mpi_open,
        .close = mpi_close,
        .abort = mpi_abort,
        .sum_u64 = mpi_sum_u64,
        .sum_counters = mpi_sum_u64, /* host memory, the only kind that it serves */
        .gather = mpi_gather,
        .broadcast = mpi_broadcast,
        .messages = mpi_messages,
        .barrier = mpi_barrier,
        .wait = mpi_wait,
    };
    return &ops;
}

bool stw_comm_mpi_found(void) {
    const stw_mpi_calls *calls = NULL;
    return find_plugin(&calls, NULL) == STW_STATUS_OK;
}
