/* SPDX-License-Identifier: Apache-2.0 */
/* A transport behind stw_comm: one const table per transport (NCCL in backend/cuda, MPI through its
 * plugin, and alone). comm.c chooses and opens one. Every slot is required, means the same as the
 * function of that name in comm.h, and gets the state that `open` returned. Only backend/comm/,
 * backend/executor/ and transports include this. */
#ifndef STW_BACKEND_COMM_OPS_H
#define STW_BACKEND_COMM_OPS_H

#include "backend/comm/comm.h"
#include "backend/comm/watch.h"

/** The arguments of `open`; everything is borrowed and outlives the transport. */
typedef struct stw_comm_config {
    const stw_ranks *ranks;
    const stw_backend *backend;
    stw_device *device;      /* MPI: set after `open`, before the first broadcast */
    uint64_t scratch_offset; /* STW_COMM_SCRATCH_BYTES of the GPU arena; NCCL only */
    double timeout_s;        /* limit of every call that waits; > 0 */
    /** Send `bytes` of rank 0 to every rank without a GPU (NCCL's unique id: 128 bytes). NULL: not
     * possible; NCCL then finds its peers by NCCL_COMM_ID (already set, or set by `open` to the
     * address and port that comm.h names). Collective. */
    stw_status (*share)(void *share_state, void *data, uint32_t bytes, stw_error *err);
    void *share_state;
    stw_watch *watch; /* names missing ranks; or NULL */
} stw_comm_config;

typedef struct stw_comm_ops {
    const char *name; /* "nccl", "mpi", "alone" */
    /** Join; *state is NULL on failure. DEVICE if the transport's world or rank differs. */
    STW_MUST_USE stw_status (*open)(const stw_comm_config *config, void **state, stw_error *err);
    /** Leave; after abort (or a failed call) it must return without waiting for peers. */
    void (*close)(void *state);
    /** End all running work, because a peer cannot be reached or this rank will not take part
     * again. Calls that wait in another thread return an error. May be called more than once. */
    void (*abort)(void *state);
    STW_MUST_USE stw_status (*sum_u64)(void *state, uint64_t *values, uint32_t n, stw_error *err);
    STW_MUST_USE stw_status (*sum_counters)(void *state, uint64_t *counters, uint32_t n,
                                            stw_error *err);
    STW_MUST_USE stw_status (*gather)(void *state, const void *mine, void *out, uint32_t bytes,
                                      stw_error *err);
    STW_MUST_USE stw_status (*broadcast)(void *state, stw_tier tier, uint64_t offset,
                                         uint64_t bytes, uint32_t root, stw_error *err);
    STW_MUST_USE stw_status (*messages)(void *state, stw_tier tier,
                                        const stw_comm_message *messages, uint32_t n,
                                        stw_error *err);
    STW_MUST_USE stw_status (*barrier)(void *state, stw_error *err);
    STW_MUST_USE stw_status (*wait)(void *state, const char *what, stw_error *err);
} stw_comm_ops;

/** NCCL's table, or NULL if NCCL is not built in. backend/cuda defines it next to
 * stw_backend_cuda_find; builds without CUDA get weak definitions of both from backend/select.c. */
const stw_comm_ops *stw_comm_nccl_ops(void);
/** MPI's table, through the plugin (mpi.c). */
const stw_comm_ops *stw_comm_mpi_ops(void);
/** True if the plugin is installed. */
bool stw_comm_mpi_found(void);
/** stw_comm_config.share through an opened MPI transport. */
STW_MUST_USE stw_status stw_comm_mpi_share(void *state, void *data, uint32_t bytes, stw_error *err);

/** Publish to the other ranks of this node why this rank ends; then stw_comm_abort. NULL is
 * fine. */
void stw_comm_fail(stw_comm *comm, const stw_error *err);
/** End all running communication after a final failure of this rank, so that closing does not wait
 * for the others. NULL is fine. */
void stw_comm_abort(stw_comm *comm);

#endif
