/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "backend/executor/sync_loop.h"

#include <stdlib.h>
#include <time.h>

#include "backend/boxes.h"
#include "backend/process.h"

/* The CUDA room defines it for real. */
__attribute__((weak)) const stw_lent_ops *stw_lent_nccl_ops(void) { return NULL; }

#define AHEAD 4u      /* rounds that are queued before the host waits for the first of them */
#define PLACED_RING 8 /* marks of placed rounds: more than AHEAD and two sets */
#define SPIN_S 1e-3   /* most rounds take less: no sleep before */
#define ASK_S 0.1     /* a step waits no longer, so that the caller can be interrupted */

/* Marks. A set's is that of the last round that used it. */
enum {
    BEGUN,
    PACKED,
    SENT = PACKED + STW_SYNC_SETS,
    TAKEN = SENT + STW_SYNC_SETS,
    PLACED = TAKEN + STW_SYNC_SETS,
    MARKS = PLACED + PLACED_RING
};
_Static_assert((unsigned)MARKS <= STW_BOX_MARKS, "marks of a device");

struct stw_sync_loop {
    stw_sync_device *device;
    const stw_sync_view *view;
    const stw_lent_ops *lent;
    stw_comm_message *messages; /* of one round */
    stw_sync_loop_options options;
    uint32_t rounds;
    uint32_t packed, sent;   /* rounds so far: `sent` follows `packed` */
    uint32_t placed, ended;  /* queued; known to be done */
    bool received, released; /* of round `placed` */
    stw_sync_action asked;
};

stw_status stw_sync_loop_open(stw_sync_device *device, uint32_t rounds, stw_sync_loop **out,
                              stw_error *err) {
    stw_sync_loop *loop = calloc(1, sizeof *loop);
    uint32_t most = 0;
    *out = NULL;
    if (loop == NULL) goto failed;
    loop->device = device;
    loop->view = stw_sync_device_view(device);
    loop->rounds = loop->ended = rounds;
    loop->packed = loop->sent = loop->placed = rounds;
    for (uint32_t r = 0; r < rounds; r++) {
        const uint32_t n = loop->view->first_message[r + 1] - loop->view->first_message[r];
        if (n > most) most = n;
    }
    loop->messages = calloc((size_t)most + 1, sizeof *loop->messages);
    if (loop->messages == NULL) goto failed;
    *out = loop;
    return STW_STATUS_OK;
failed:
    stw_sync_loop_close(loop);
    return stw_fail(err, STW_STATUS_NO_MEMORY, "weight sync", "out of memory");
}

void stw_sync_loop_close(stw_sync_loop *loop) {
    if (loop == NULL) return;
    free(loop->messages);
    free(loop);
}

stw_status stw_sync_loop_begin(stw_sync_loop *loop, const stw_sync_loop_options *options,
                               stw_error *err) {
    stw_status status = STW_STATUS_OK;
    void *const streams[] = {options->pack, options->comm, options->place};
    loop->lent = options->lent == NULL   ? NULL
                 : options->with != NULL ? options->with
                                         : stw_lent_nccl_ops();
    if (options->lent != NULL && loop->lent == NULL)
        STW_TRY(
            stw_fail(err, STW_STATUS_NOT_BUILT_IN, "NCCL", "this library was built without NCCL"));
    if (loop->lent != NULL) STW_TRY(loop->lent->find(err));
    loop->options = *options;
    loop->packed = loop->sent = loop->placed = loop->ended = 0;
    loop->received = loop->released = false;
    loop->asked = STW_SYNC_DONE;
    STW_TRY(stw_sync_device_mark(loop->device, BEGUN, options->take, err));
    for (int i = 0; i < 3; i++)
        STW_TRY(stw_sync_device_follow(loop->device, BEGUN, streams[i], err));
out:
    return status;
}

static uint32_t set_of(uint32_t round) { return round % STW_SYNC_SETS; }
static uint32_t placed_mark(uint32_t round) { return PLACED + round % PLACED_RING; }

/* Does the round that had the buffers of `round` before still use them? Work of the stream waits.
 */
static stw_status wait_for_set(stw_sync_loop *loop, uint32_t round, void *stream, stw_error *err) {
    if (round < STW_SYNC_SETS) return STW_STATUS_OK;
    return stw_sync_device_follow(loop->device, placed_mark(round - STW_SYNC_SETS), stream, err);
}

/* ---- packing and sending ---- */

static stw_status pack(stw_sync_loop *loop, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t round = loop->packed, set = set_of(round);
    const stw_sync_loop_options *o = &loop->options;
    STW_TRY(wait_for_set(loop, round, o->pack, err));
    STW_TRY(stw_sync_device_pack(loop->device, round, o->sets[set].send, o->pack, err));
    STW_TRY(stw_sync_device_mark(loop->device, PACKED + set, o->pack, err));
    STW_TRY(stw_sync_device_follow(loop->device, PACKED + set, o->comm, err));
    STW_TRY(wait_for_set(loop, round, o->comm, err));
    loop->packed++;
out:
    return status;
}

static bool has_messages(const stw_sync_loop *loop, uint32_t round) {
    return loop->view->first_message[round] < loop->view->first_message[round + 1];
}

static stw_status send_lent(stw_sync_loop *loop, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t round = loop->sent, set = set_of(round);
    const stw_sync_loop_options *o = &loop->options;
    const stw_lent_buffers buffers = {o->sets[set].send, o->sets[set].receive};
    uint32_t n = 0;
    for (uint32_t i = loop->view->first_message[round]; i < loop->view->first_message[round + 1];
         i++) {
        const stw_sync_message *m = &loop->view->messages[i];
        loop->messages[n++] = (stw_comm_message){m->peer, m->sends, m->offset, m->bytes};
    }
    STW_TRY(loop->lent->messages(o->lent, loop->messages, n, &buffers, o->comm, o->timeout_s, err));
    STW_TRY(stw_sync_device_mark(loop->device, SENT + set, o->comm, err));
out:
    return status;
}

/* Rounds whose buffers are free, or will be. @param asks the caller has to send */
static stw_status go_ahead(stw_sync_loop *loop, bool *asks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    *asks = false;
    while (loop->sent < loop->rounds && loop->sent < loop->placed + STW_SYNC_SETS) {
        if (loop->packed == loop->sent) STW_TRY(pack(loop, err));
        if (has_messages(loop, loop->sent)) {
            *asks = loop->lent == NULL;
            if (*asks) goto out;
            STW_TRY(send_lent(loop, err));
        }
        loop->sent++;
    }
out:
    return status;
}

/* ---- placing ---- */

static bool has_parts(const stw_sync_loop *loop, uint32_t round) {
    return loop->view->first_part[round] < loop->view->first_part[round + 1];
}

static stw_status place_own(stw_sync_loop *loop, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t round = loop->placed, set = set_of(round);
    const stw_sync_loop_options *o = &loop->options;
    STW_TRY(stw_sync_device_follow(loop->device, PACKED + set, o->place, err));
    STW_TRY(stw_sync_device_follow(loop->device, TAKEN + set, o->place, err));
    STW_TRY(stw_sync_device_place_own(loop->device, round, o->sets[set].bucket, o->place, err));
out:
    return status;
}

static stw_status place_came(stw_sync_loop *loop, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t round = loop->placed, set = set_of(round);
    const stw_sync_loop_options *o = &loop->options;
    const stw_sync_buffers *b = &o->sets[set];
    if (loop->lent != NULL && has_messages(loop, round))
        STW_TRY(stw_sync_device_follow(loop->device, SENT + set, o->place, err));
    STW_TRY(stw_sync_device_place_came(loop->device, round, b->receive, b->bucket, o->place, err));
    STW_TRY(stw_sync_device_mark(loop->device, placed_mark(round), o->place, err));
    STW_TRY(stw_sync_device_follow(loop->device, placed_mark(round), o->take, err));
    loop->placed++;
    loop->received = loop->released = false;
out:
    return status;
}

/* Wait for the oldest round under way, a moment. @param still it is not done */
static stw_status settle(stw_sync_loop *loop, bool *still, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const struct timespec a_while = {0, 50 * 1000};
    const double start = stw_process_now_s();
    for (bool passed = false;;) {
        STW_TRY(stw_sync_device_passed(loop->device, placed_mark(loop->ended), &passed, err));
        *still = !passed;
        if (passed) break;
        const double spent = stw_process_now_s() - start;
        if (spent > SPIN_S && loop->lent != NULL)
            STW_TRY(loop->lent->check(loop->options.lent, err));
        if (spent > ASK_S) goto out;
        if (spent > SPIN_S) (void)nanosleep(&a_while, NULL);
    }
    loop->ended++;
out:
    return status;
}

/* ---- steps ---- */

/* What the caller was asked for is done. */
static stw_status note_answer(stw_sync_loop *loop, stw_error *err) {
    const stw_sync_action asked = loop->asked;
    loop->asked = STW_SYNC_DONE;
    if (asked == STW_SYNC_POST) loop->sent++;
    if (asked == STW_SYNC_RECEIVE) loop->received = true;
    if (asked == STW_SYNC_RELEASE) loop->released = true;
    if (asked == STW_SYNC_TAKE)
        return stw_sync_device_mark(loop->device, TAKEN + set_of(loop->placed - 1),
                                    loop->options.take, err);
    return STW_STATUS_OK;
}

static void ask(stw_sync_loop *loop, stw_sync_action action, uint32_t round, stw_sync_step *out) {
    loop->asked = action;
    *out = (stw_sync_step){action, round, set_of(round)};
}

/* The next action of round `placed`. @param acted false: go on with the next round */
static stw_status place_next(stw_sync_loop *loop, stw_sync_step *out, bool *asks, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    const uint32_t round = loop->placed;
    const bool parts = has_parts(loop, round);
    *asks = true;
    if (!loop->released) {
        if (loop->options.releases && parts) {
            ask(loop, STW_SYNC_RELEASE, round, out);
            goto out;
        }
        loop->released = true;
    }
    if (!loop->received) {
        STW_TRY(place_own(loop, err));
        loop->received = true;
        if (loop->lent == NULL && has_messages(loop, round)) {
            loop->received = false;
            ask(loop, STW_SYNC_RECEIVE, round, out);
            goto out;
        }
    }
    STW_TRY(place_came(loop, err));
    *asks = parts;
    if (parts) ask(loop, STW_SYNC_TAKE, round, out);
out:
    return status;
}

stw_status stw_sync_loop_step(stw_sync_loop *loop, stw_sync_step *out, stw_error *err) {
    stw_status status = STW_STATUS_OK;
    bool asks = false;
    *out = (stw_sync_step){STW_SYNC_DONE, loop->placed, set_of(loop->placed)};
    STW_TRY(note_answer(loop, err));
    while (!asks) {
        out->round = loop->sent;
        STW_TRY(go_ahead(loop, &asks, err));
        if (asks) {
            ask(loop, STW_SYNC_POST, loop->sent, out);
            break;
        }
        if (loop->placed - loop->ended > AHEAD || loop->placed == loop->rounds) {
            out->round = loop->ended;
            if (loop->ended == loop->rounds) break;
            STW_TRY(settle(loop, &asks, err));
            if (asks) ask(loop, STW_SYNC_WAIT, loop->ended, out);
            continue;
        }
        out->round = loop->placed;
        STW_TRY(place_next(loop, out, &asks, err));
    }
out:
    return status;
}
