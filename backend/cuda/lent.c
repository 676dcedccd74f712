/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over the NCCL communicator of the process that uses libstowage. The functions are those
 * of the libnccl.so.2 that the process has loaded: a communicator belongs to the library that made
 * it. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "backend/comm/lent.h"

#include "backend/cuda/device.h"

#ifndef STW_HAVE_NCCL

const stw_lent_ops *stw_lent_nccl_ops(void) { return NULL; }

#else

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "backend/process.h"

/* X(member, function) */
#define LENT_TABLE(X)                                                                              \
    X(send, ncclSend)                                                                              \
    X(recv, ncclRecv)                                                                              \
    X(group_start, ncclGroupStart)                                                                 \
    X(group_end, ncclGroupEnd)                                                                     \
    X(async_error, ncclCommGetAsyncError)                                                          \
    X(error_text, ncclGetErrorString)

static struct {
#define X(member, function) __typeof__(&function) member;
    LENT_TABLE(X)
#undef X
} api;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *missing; /* NULL: everything is there */

static void load(void) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    missing = "libnccl.so.2";
    if (library == NULL) return;
    missing = NULL;
#define X(member, function)                                                                        \
    do {                                                                                           \
        void *symbol = dlsym(library, #function);                                                  \
        memcpy(&api.member, &symbol, sizeof symbol); /* functions come as object pointers */       \
        if (symbol == NULL) missing = #function;                                                   \
    } while (0);
    LENT_TABLE(X)
#undef X
}

static stw_status find(stw_error *err) {
    (void)pthread_once(&once, load);
    if (missing == NULL) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_DEVICE, "NCCL", "this process has not loaded %s", missing);
}

static stw_status fail(ncclResult_t result, stw_error *err) {
    return stw_fail_native(err, STW_STATUS_DEVICE, (long)result, "NCCL", "%s",
                           api.error_text(result));
}

static ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t code = STW_NCCL_CALL(api.async_error(comm, &state));
    return code != ncclSuccess ? code : state;
}

static stw_status check(void *comm, stw_error *err) {
    const ncclResult_t state = state_of(comm);
    return state == ncclSuccess || state == ncclInProgress ? STW_STATUS_OK : fail(state, err);
}

static ncclResult_t queue(ncclComm_t comm, const stw_comm_message *m, const stw_lent_buffers *b,
                          cudaStream_t stream) {
    const int peer = (int)m->peer;
    if (m->sends)
        return STW_NCCL_CALL(api.send((const unsigned char *)b->send + m->offset, m->bytes,
                                      ncclUint8, peer, comm, stream));
    return STW_NCCL_CALL(
        api.recv((unsigned char *)b->receive + m->offset, m->bytes, ncclUint8, peer, comm, stream));
}

static stw_status send_messages(void *state, const stw_comm_message *messages, uint32_t n,
                                const stw_lent_buffers *buffers, void *stream, double timeout_s,
                                stw_error *err) {
    ncclComm_t comm = state;
    ncclResult_t result = STW_NCCL_CALL(api.group_start());
    for (uint32_t i = 0; i < n && (result == ncclSuccess || result == ncclInProgress); i++)
        result = queue(comm, &messages[i], buffers, stream);
    const ncclResult_t ended = STW_NCCL_CALL(api.group_end());
    if (result == ncclSuccess || result == ncclInProgress) result = ended;
    const struct timespec a_while = {0, 20 * 1000};
    for (const double end = stw_process_now_s() + timeout_s; result == ncclInProgress;) {
        result = state_of(comm); /* a communicator that does not block */
        if (stw_process_now_s() > end)
            return stw_fail(err, STW_STATUS_DEVICE, "NCCL", "no progress in %g s", timeout_s);
        if (result == ncclInProgress) (void)nanosleep(&a_while, NULL);
    }
    return result == ncclSuccess ? STW_STATUS_OK : fail(result, err);
}

static const stw_lent_ops lent_ops = {.find = find, .messages = send_messages, .check = check};

const stw_lent_ops *stw_lent_nccl_ops(void) { return &lent_ops; }

#endif
