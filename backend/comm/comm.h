/* SPDX-License-Identifier: Apache-2.0 */
/* Communication between ranks: the rank's number, small exact sums and gathers, broadcasts of load
 * pieces, messages between pairs, and broadcasts and gathers in a group of ranks. The transport is
 * NCCL over GPUs, MPI (a plugin loaded at run time) over hosts, or none for a single rank. Every
 * call is collective: all ranks make the same calls in the same order; the executor compares plans,
 * options and versions before the first data collective. One thread at a time. */
#ifndef STW_BACKEND_COMM_H
#define STW_BACKEND_COMM_H

#include "backend/backend.h"

/** The ranks as the environment gives them, from torchrun (RANK, WORLD_SIZE, LOCAL_RANK, ...),
 * Slurm (SLURM_PROCID ...) or Open MPI (OMPI_COMM_WORLD_RANK ...), in that order; else one rank. */
typedef struct stw_ranks {
    uint32_t rank, world, local_rank, local_world, node;
    char launcher[16]; /* "torchrun", "slurm", "mpirun", "alone" */
    char master[128];  /* host of rank 0: MASTER_ADDR, or the first of several Slurm nodes; else
                          "" */
    uint32_t master_port;
} stw_ranks;

/** Read the environment; contradictions (rank >= world, not a number) are DEVICE errors. */
STW_MUST_USE stw_status stw_ranks_from_environment(stw_ranks *out, stw_error *err);

typedef struct stw_comm stw_comm;

/** Meet the other ranks by MPI, which needs no device. With a GPU backend NCCL joins later, in
 * stw_comm_attach. After this call a rank can report its failure to the others (if
 * stw_comm_meets). */
STW_MUST_USE stw_status stw_comm_open(const stw_ranks *ranks, const stw_backend *backend,
                                      double timeout_s, stw_comm **out, stw_error *err);
/** True if ranks can exchange data before stw_comm_attach; false with NCCL only. */
bool stw_comm_meets(const stw_comm *comm);
/** Send `bytes` of every rank to every rank: by MPI if it is open, which needs no device; else as
 * stw_comm_gather. Collective. */
STW_MUST_USE stw_status stw_comm_exchange(stw_comm *comm, const void *mine, void *out,
                                          uint32_t bytes, stw_error *err);

/** Join with the device, for all other calls. With a GPU backend NCCL is opened at run time
 * (libnccl.so.2): its id comes through MPI under mpirun if the plugin is installed, else through
 * NCCL_COMM_ID on a separate port (MASTER_PORT + 17 for torchrun; loopback for ranks of one node).
 * torchrun with the host backend is NOT_BUILT_IN. A world size that differs from the transport's is
 * a DEVICE error.
 * @param scratch_offset STW_COMM_SCRATCH_BYTES of the GPU arena, used for small collectives */
STW_MUST_USE stw_status stw_comm_attach(stw_comm *comm, stw_device *device, uint64_t scratch_offset,
                                        stw_error *err);
void stw_comm_close(stw_comm *comm);
const char *stw_comm_name(const stw_comm *comm); /* "nccl", "mpi", "alone" */
/** Set the purpose of the next collective, for errors. */
void stw_comm_about(stw_comm *comm, const char *about);
/** Sum n 64-bit counters over all ranks, in place. */
STW_MUST_USE stw_status stw_comm_sum_u64(stw_comm *comm, uint64_t *values, uint32_t n,
                                         stw_error *err);
/** The same for counters at the place of stw_backend.norm_counters: with NCCL in GPU memory, queued
 * on the comm stream without waiting (stw_comm_wait waits); else in host memory, done on return. */
STW_MUST_USE stw_status stw_comm_sum_counters(stw_comm *comm, uint64_t *counters, uint32_t n,
                                              stw_error *err);
/** Send `bytes` of every rank to every rank; `out` has world x bytes. */
STW_MUST_USE stw_status stw_comm_gather(stw_comm *comm, const void *mine, void *out, uint32_t bytes,
                                        stw_error *err);
/** Broadcast a range of a tier's arena from rank `root` on the comm stream (GPU: asynchronous). */
STW_MUST_USE stw_status stw_comm_broadcast(stw_comm *comm, stw_tier tier, uint64_t offset,
                                           uint64_t bytes, uint32_t root, stw_error *err);
STW_MUST_USE stw_status stw_comm_barrier(stw_comm *comm, stw_error *err);

/** Bytes of a tier's arena to send to another rank or to receive from it. */
typedef struct stw_comm_message {
    uint32_t peer;
    bool sends; /* else it is received */
    uint64_t offset, bytes;
} stw_comm_message;
/** Issue messages together, on the comm stream (GPU: asynchronous). All ranks call it; ranks
 * without messages pass n = 0. The messages between two ranks have the same order and sizes on
 * both.
 * @return BUG for a message to this rank, or in a tier that the transport cannot reach */
STW_MUST_USE stw_status stw_comm_messages(stw_comm *comm, stw_tier tier,
                                          const stw_comm_message *messages, uint32_t n,
                                          stw_error *err);

/** Ranks, ascending; the caller's is one of them. */
typedef struct stw_comm_group {
    const uint32_t *ranks;
    uint32_t n;
} stw_comm_group;
/** stw_comm_broadcast to the ranks of a group. Every rank calls it for its own group; a rank is in
 * one group only. There are two rounds of messages: each member receives a part of the bytes and
 * passes it on.
 * @param root the rank's number in the world */
STW_MUST_USE stw_status stw_comm_group_broadcast(stw_comm *comm, const stw_comm_group *group,
                                                 stw_tier tier, uint64_t offset, uint64_t bytes,
                                                 uint32_t root, stw_error *err);
/** All-gather in a group, in place: member i provides bytes [i * bytes, (i + 1) * bytes) from
 * `offset` on, and receives the others. Every rank calls it for its own group. */
STW_MUST_USE stw_status stw_comm_group_gather(stw_comm *comm, const stw_comm_group *group,
                                              stw_tier tier, uint64_t offset, uint64_t bytes,
                                              stw_error *err);

/** The collectives and messages that this rank has issued since the communicator was opened. */
typedef struct stw_comm_counts {
    uint64_t collectives;    /* of all ranks: sums, gathers, broadcasts, barriers */
    uint64_t rounds;         /* rounds of messages */
    uint64_t sent, received; /* messages */
    uint64_t sent_bytes, received_bytes;
} stw_comm_counts;
stw_comm_counts stw_comm_counted(const stw_comm *comm);
/** Wait for all issued work, at most the timeout of stw_comm_open; then the communicator is aborted
 * and the error names `what`. */
STW_MUST_USE stw_status stw_comm_wait(stw_comm *comm, const char *what, stw_error *err);

#endif
