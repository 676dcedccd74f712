/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind the opaque types of include/stowage.h, and how a call begins and ends. Nobody
 * but library/ includes this. */
#ifndef STW_LIBRARY_HANDLES_H
#define STW_LIBRARY_HANDLES_H

#include <pthread.h>

#include "core/status.h"
#include "include/stowage.h"
#include "plan/files/plan.h"

struct stw_error_t {
    stw_error error;
    char text[1280]; /* "where:line:column: text" */
};

struct stw_model_t {
    stw_model *model;
};

/** The spaces of the rank that was asked for last. */
typedef struct stw_library_spaces {
    pthread_mutex_t mutex; /* of what follows */
    stw_pool *pool;        /* NULL: none yet */
    uint32_t rank;
    stw_space spaces[STW_N_STATE_SPACES];
} stw_library_spaces;

struct stw_plan_t {
    stw_plan *plan;
    stw_model_t model; /* the plan's own */
    stw_library_spaces spaces;
};

struct stw_optimizer_t {
    long pid; /* of the process that opened it */
    double open_s;
    struct stw_bound *bound;
};

/** Clear the caller's error; numbers are those of the C locale until stw_library_end. Every call
 * that begins ends, on its thread. @return where the call reports to, NULL if `error` is NULL */
stw_error *stw_library_begin(stw_error_t *error);
/** The public number of a status; sets the text of the caller's error and gives the thread its
 * locale again. */
stw_status_t stw_library_end(stw_status status, stw_error_t *error);
/** @return USAGE, with the name of the argument, if `argument` is NULL */
STW_MUST_USE stw_status stw_library_need(const void *argument, const char *name, stw_error *err);
/** @return USAGE, with the name of the option, unless `seconds` is finite and not negative */
STW_MUST_USE stw_status stw_library_need_seconds(double seconds, const char *name, stw_error *err);
/** USAGE, with the name of the handle, in another process than `pid`, which opened it: a child that
 * was forked has none of the threads, and must not touch the parent's device or files. */
STW_MUST_USE stw_status stw_library_need_process(long pid, const char *name, stw_error *err);
/** Copy options of a caller. @param from NULL: `to` stays as it is
 * @param size of the caller's struct
 * @param first size of the struct's first version, up to its last field: USAGE for less */
STW_MUST_USE stw_status stw_library_take(void *to, size_t to_size, const void *from, size_t size,
                                         size_t first, stw_error *err);
/** Bytes of a struct from its beginning to the end of a field. */
#define STW_LIBRARY_UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
/** Copy a struct between caller and library. Sizes differ if the caller's header is older or newer
 * than the library: what only one of them has stays as it is. `to` may be NULL. */
void stw_library_copy(void *to, size_t to_size, const void *from, size_t from_size);

/** Index of a component in stw_run_result.digest, -1 where it has no digest. */
int stw_library_digest_of(const char *component);

#endif
