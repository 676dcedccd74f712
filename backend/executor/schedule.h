/* SPDX-License-Identifier: Apache-2.0 */
/* Issues one movement on persistent threads: one per stream, or one shared by streams that often
 * wait for each other (stw_movement.threading). A stream's operations are issued in program order.
 * An operation that names others (`after`) is issued after them and waits for their events. This
 * file does not know what an operation does. */
#ifndef STW_BACKEND_EXECUTOR_SCHEDULE_H
#define STW_BACKEND_EXECUTOR_SCHEDULE_H

#include "backend/backend.h"
#include "plan/program/program.h"

/** One movement, prepared; read-only and in a pool. Indices are into the program's ops. */
typedef struct stw_schedule {
    const stw_program *program;
    const stw_movement *movement;
    uint32_t n_stream_ops[STW_N_STREAMS];
    uint32_t *stream_ops[STW_N_STREAMS]; /* in program order */
    uint32_t *position;                  /* [movement->n_ops] place in its stream's list */
    uint32_t *event; /* [movement->n_ops] event that the op records, or STW_OP_NONE */
    bool *awaited;   /* [movement->n_ops] some op of another stream names it */
    uint32_t n_events;
} stw_schedule;

/** Prepare a movement. An `after` that does not name an earlier op of the movement is a BUG. */
STW_MUST_USE stw_status stw_schedule_new(const stw_program *program, const stw_movement *movement,
                                         stw_pool *pool, stw_schedule **out, stw_error *err);

/** The functions that the threads call. */
typedef struct stw_streams_calls {
    void *state;
    /** Issue an operation on its stream; called from the thread that serves the stream. */
    stw_status (*issue)(void *state, uint32_t op, stw_error *err);
    /** Called after the op was issued, its event recorded and its followers released: a wait that
     * needs a deadline. The op's thread issues nothing meanwhile. */
    stw_status (*settle)(void *state, uint32_t op, stw_error *err);
    /** Called once, from the thread with the first error: make calls that wait for peers return.
     * Other threads may still wait for the device. */
    void (*failed)(void *state, stw_error *error);
    /** No threads: the caller of stw_streams_run issues everything, in program order. For backends
     * whose calls are complete on return. */
    bool one_thread;
} stw_streams_calls;

typedef struct stw_streams stw_streams;
STW_MUST_USE stw_status stw_streams_new(const stw_backend *backend, stw_device *device,
                                        const stw_streams_calls *calls, stw_streams **out,
                                        stw_error *err);
void stw_streams_free(stw_streams *streams); /* NULL is fine */
/** Issue a whole movement; returns when every thread has issued its part (GPU work may still run)
 * or, after the first error, when all have stopped. The error is that first one. */
STW_MUST_USE stw_status stw_streams_run(stw_streams *streams, const stw_schedule *schedule,
                                        stw_error *err);

#endif
