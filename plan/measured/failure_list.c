/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "plan/measured/failure_parts.h"

enum { MOST_FRAMES = 96, MOST_FAILURES = 4096 };

const char *stw_failure_name(stw_failure_kind kind) {
#define X(name, text) text,
    static const char *const names[] = {STW_FAILURE_TABLE(X)};
#undef X
    return (unsigned)kind < STW_N_FAILURES ? names[kind] : "none";
}

stw_failure stw_failure_nothing(void) {
    const uint64_t none = STW_NOT_SAID;
    return (stw_failure){.who = "",
                         .text = "",
                         .process = "",
                         .rank = none,
                         .device = none,
                         .pid = none,
                         .asked = none,
                         .capacity = none,
                         .free = none,
                         .used_by_process = none,
                         .allowed = none,
                         .allocated = none,
                         .unused = none,
                         .largest_unused = none,
                         .other_processes = none,
                         .used = none,
                         .limit = none,
                         .share = NAN,
                         .wanted_tokens = none,
                         .cache_tokens = none};
}

/* Another rank's, or a later one, of the same kind, or of a kind that follows from another. */
static stw_failure *like(stw_failures *to, const stw_failure *failure) {
    for (size_t i = 0; i < to->n; i++)
        if (to->items[i].kind == failure->kind && strcmp(to->items[i].who, failure->who) == 0)
            return &to->items[i];
    return NULL;
}

/* What one message says and another of the same failure does not. */
static void complete(stw_failure *to, const stw_failure *from) {
    const struct {
        uint64_t *to;
        uint64_t from;
    } figures[] = {{&to->asked, from->asked},
                   {&to->capacity, from->capacity},
                   {&to->free, from->free},
                   {&to->allocated, from->allocated},
                   {&to->unused, from->unused},
                   {&to->used, from->used},
                   {&to->limit, from->limit},
                   {&to->pid, from->pid},
                   {&to->used_by_process, from->used_by_process}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        if (*figures[i].to == STW_NOT_SAID) *figures[i].to = figures[i].from;
}

stw_status stw_failures_add(stw_failures *to, const stw_failure *failure, stw_error *err) {
    stw_failure *same = like(to, failure);
    if (same != NULL && (same->n_frames > 0 || failure->n_frames == 0)) {
        const bool bare = same->asked == STW_NOT_SAID && same->used == STW_NOT_SAID;
        if (bare) complete(same, failure);
        same->alike++;
        return STW_STATUS_OK;
    }
    if (same != NULL) { /* this one has a stack */
        stw_failure with = *failure;
        with.alike = same->alike + 1;
        if (with.asked == STW_NOT_SAID) complete(&with, same);
        *same = with;
        return STW_STATUS_OK;
    }
    stw_failure *items = to->n < MOST_FAILURES ? stw_pool_grow(to->pool, to->items, to->n,
                                                               to->n + 1, &to->room, sizeof *items)
                                               : NULL;
    if (items == NULL)
        return stw_fail(err, STW_STATUS_NO_MEMORY, to->file, "out of memory for failures");
    to->items = items;
    items[to->n++] = *failure;
    return STW_STATUS_OK;
}

bool stw_failure_add_frame(stw_failure *to, stw_pool *pool, const stw_frame *frame) {
    if (to->n_frames == MOST_FRAMES) { /* the inner ones say more */
        memmove(to->frames, to->frames + 1, (MOST_FRAMES - 1) * sizeof *frame);
        to->n_frames--;
    }
    stw_frame *frames = stw_pool_grow(pool, to->frames, to->n_frames, to->n_frames + 1,
                                      &to->frames_room, sizeof *frames);
    if (frames == NULL) return false;
    to->frames = frames;
    frames[to->n_frames++] = *frame;
    return true;
}

void stw_failures_free(stw_failures *failures) {
    if (failures != NULL) stw_pool_free(failures->pool);
}
