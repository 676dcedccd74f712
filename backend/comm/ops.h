/* SPDX-License-Identifier: Apache-2.0 */
/* A transport behind stw_comm: one const table per transport (NCCL in backend/cuda, MPI through its
 * plugin, and alone). comm.c chooses and opens one; every slot has the meaning of its namesake in
 * comm.h, is required, and gets the state that `open` returned. Only backend/comm/,
 * backend/executor/ and transports include this. */
#ifndef STW_BACKEND_COMM_OPS_H
#define STW_BACKEND_COMM_OPS_H

#include "backend/comm/comm.h"
#include "backend/comm/watch.h"

/** What a transport is opened with; everything is borrowed and outlives the transport. */
typedef struct stw_comm_config {
    const stw_ranks *ranks;
    const stw_backend *backend;
    stw_device *device;      /* MPI: set after `open`, before the first broadcast */
    uint64_t scratch_offset; /* STW_COMM_SCRATCH_BYTES of the GPU arena; NCCL only */
    double timeout_s;        /* of every call that waits; > 0 */
    /** Give `bytes` of rank 0 to every rank, by means that need no GPU (NCCL's unique id: 128
     * bytes). NULL where there are none: then NCCL finds its peers by NCCL_COMM_ID (set already, or
     * set by `open` to the address and port that comm.h names). Collective. */
    stw_status (*share)(void *share_state, void *data, uint32_t bytes, stw_error *err);
    void *share_state;
    stw_watch *watch; /* names ranks that do not come; or NULL */
} stw_comm_config;

typedef struct stw_comm_ops {
    const char *name; /* "nccl", "mpi", "alone" */
    /** Join; *state is NULL on failure. DEVICE where the transport's world or rank differs. */
    STW_MUST_USE stw_status (*open)(const stw_comm_config *config, void **state, stw_error *err);
    /** Leave; after abort (or a failed call) it must return without waiting for peers. */
    void (*close)(void *state);
    /** A peer cannot be reached any more, or this rank will not take part again: end everything
     * that is under way. Calls that wait in another thread return an error. May come more than
     * once. */
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

/** NCCL's table, or NULL where NCCL is not built in. backend/cuda defines it next to
 * stw_backend_cuda_find; builds without CUDA get weak definitions of both from
 * backend/select.c. */
const stw_comm_ops *stw_comm_nccl_ops(void);
/** MPI through the plugin (mpi.c). */
const stw_comm_ops *stw_comm_mpi_ops(void);
/** Is the plugin there? */
bool stw_comm_mpi_found(void);
/** An opened MPI transport as stw_comm_config.share. */
STW_MUST_USE stw_status stw_comm_mpi_share(void *state, void *data, uint32_t bytes, stw_error *err);

/** Show the other ranks of this node why this one ends; then stw_comm_abort. NULL is fine. */
void stw_comm_fail(stw_comm *comm, const stw_error *err);
/** End what is under way on all ranks' behalf: called where this rank has failed for good, so that
 * closing does not wait for the others. NULL is fine. */
void stw_comm_abort(stw_comm *comm);

#endif
