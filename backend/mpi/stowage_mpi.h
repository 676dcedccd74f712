/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the MPI plugin (stowage-mpi.so). Only the plugin is compiled against mpi.h; it
 * is opened at run time so that programs start without MPI. This header has no MPI types.
 * Collectives poll until a deadline. One thread at a time. */
#ifndef STW_BACKEND_MPI_STOWAGE_MPI_H
#define STW_BACKEND_MPI_STOWAGE_MPI_H

#include <stddef.h>
#include <stdint.h>

#define STW_MPI_PLUGIN_VERSION 3u
#define STW_MPI_REPORT_BYTES 512u
#define STW_MPI_PLUGIN_SYMBOL "stowage_mpi_calls"

typedef enum stw_mpi_result {
    STW_MPI_OK,
    STW_MPI_FAILED,    /* `error` says why */
    STW_MPI_TIMED_OUT, /* peers are missing; only report and leave(1) may be called afterwards */
    STW_MPI_GIVEN_UP   /* the same, because a peer has given up */
} stw_mpi_result;

typedef struct stw_mpi_message {
    void *data;
    uint64_t bytes;
    uint32_t peer;
    int sends; /* else it is received */
} stw_mpi_message;

typedef struct stw_mpi_calls {
    uint32_t version; /* STW_MPI_PLUGIN_VERSION; the first member for ever */
    const char *library;
    /** Join (a second call only returns the values). `error` of every call receives a text; may be
     * NULL.
     * @param gave_up polled with `state` while a call waits; not 0: a peer will not come. May be
     * NULL */
    stw_mpi_result (*join)(uint32_t *rank, uint32_t *world, double timeout_s,
                           int (*gave_up)(void *state), void *state, char *error,
                           size_t error_size);
    /** @param broken 1: leave without communication; `gave_up` is not polled any more */
    void (*leave)(int broken);
    /* Sum counters over all ranks, in place. */
    stw_mpi_result (*sum_u64)(uint64_t *values, uint32_t n, double timeout_s, char *error,
                              size_t error_size);
    stw_mpi_result (*gather)(const void *mine, void *out, uint32_t bytes, double timeout_s,
                             char *error, size_t error_size);
    stw_mpi_result (*broadcast)(void *data, uint64_t bytes, uint32_t root, double timeout_s,
                                char *error, size_t error_size);
    /** Messages of two ranks are in the same order on both.
     * @param waits_for receives the first message that was not done at the timeout; n: none */
    stw_mpi_result (*messages)(const stw_mpi_message *messages, uint32_t n, double timeout_s,
                               uint32_t *waits_for, char *error, size_t error_size);
    /** From any thread: make a waiting call return at once as timed out, and all later calls,
     * too. */
    void (*interrupt)(void);
    stw_mpi_result (*barrier)(double timeout_s, char *error, size_t error_size);
    /** After a call that timed out: send `mine` to all ranks and receive theirs, for wait_s. Ranks
     * that wait in a call are informed, and their call returns as timed out.
     * @param mine STW_MPI_REPORT_BYTES
     * @param all [world][STW_MPI_REPORT_BYTES] of the other ranks;
     * @param heard [world] 0 or 1 */
    void (*report)(const char *mine, char *all, unsigned char *heard, double wait_s);
} stw_mpi_calls;

typedef const stw_mpi_calls *(*stw_mpi_calls_fn)(void);

#endif
