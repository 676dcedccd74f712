/* SPDX-License-Identifier: Apache-2.0 */
/* Version, errors, messages. */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/locale.h"
#include "core/log.h"
#include "library/handles.h"
#include "stw_config.h"

/* ---- version ---- */

int stw_get_version(void) { return STOWAGE_VERSION; }

const char *stw_get_version_text(void) { return STW_VERSION; }

int stw_has_feature(const char *feature) {
    static const struct {
        const char *name;
        int built_in;
    } features[] = {
        {"cuda", STW_WITH_CUDA},   {"nccl", STW_WITH_NCCL}, {"mpi", STW_WITH_MPI},
        {"uring", STW_WITH_URING}, {"solver", 0}, /* GLPK is GPL: `stowage` alone links it */
    };
    for (size_t i = 0; feature != NULL && i < sizeof features / sizeof features[0]; i++)
        if (strcmp(features[i].name, feature) == 0) return features[i].built_in;
    return 0;
}

/* ---- status ---- */

static stw_status_t to_public(stw_status status) {
    switch (status) {
#define X(name, code, text)                                                                        \
    case STW_STATUS_##name:                                                                        \
        return STOWAGE_##name;
        STW_STATUS_TABLE(X)
#undef X
    }
    return STOWAGE_BUG;
}

static stw_status from_public(stw_status_t status) {
    switch (status) {
#define X(name, code, text)                                                                        \
    case STOWAGE_##name:                                                                           \
        return STW_STATUS_##name;
        STW_STATUS_TABLE(X)
#undef X
    }
    return STW_STATUS_BUG;
}

const char *stw_get_status_text(stw_status_t status) {
    return stw_status_text(from_public(status));
}

int stw_get_exit_code(stw_status_t status) { return stw_status_exit_code(from_public(status)); }

/* ---- errors ---- */

static void clear(stw_error_t *error) {
    static const stw_error none = STW_ERROR_INIT;
    error->error = none;
    error->text[0] = '\0';
}

stw_error_t *stw_new_error(void) {
    stw_error_t *error = malloc(sizeof *error);
    if (error != NULL) clear(error);
    return error;
}

void stw_free_error(stw_error_t *error) { free(error); }

stw_status_t stw_get_error_status(const stw_error_t *error) {
    return error != NULL ? to_public(error->error.status) : STOWAGE_OK;
}

const char *stw_get_error_text(const stw_error_t *error) {
    return error != NULL ? error->text : "";
}

long stw_get_error_native(const stw_error_t *error) {
    return error != NULL ? error->error.native : 0;
}

/* The locale that this thread's caller has set, and the calls that the thread is in: a log callback
 * may make another. */
static _Thread_local struct {
    void *locale;
    unsigned depth;
} caller;

stw_error *stw_library_begin(stw_error_t *error) {
    if (caller.depth++ == 0) caller.locale = stw_locale_enter();
    if (error == NULL) return NULL;
    clear(error);
    return &error->error;
}

stw_status_t stw_library_end(stw_status status, stw_error_t *error) {
    if (status != STW_STATUS_OK && error != NULL) {
        /* Out of memory is reported without a text at times. */
        (void)stw_fail(&error->error, status, NULL, "%s", stw_status_text(status));
        stw_error_format(&error->error, error->text, sizeof error->text);
    }
    if (--caller.depth == 0) stw_locale_leave(caller.locale);
    return to_public(status);
}

stw_status stw_library_need(const void *argument, const char *name, stw_error *err) {
    if (argument != NULL) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, name, "found NULL, expected an argument");
}

stw_status stw_library_need_seconds(double seconds, const char *name, stw_error *err) {
    if (isfinite(seconds) && seconds >= 0) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, name, "found %g, expected at least 0", seconds);
}

stw_status stw_library_take(void *to, size_t to_size, const void *from, size_t size, size_t first,
                            stw_error *err) {
    if (from == NULL) return STW_STATUS_OK;
    if (size < first)
        return stw_fail(err, STW_STATUS_USAGE, "size",
                        "found %zu bytes, expected the sizeof of the struct, %zu or more", size,
                        first);
    stw_library_copy(to, to_size, from, size);
    return STW_STATUS_OK;
}

stw_status stw_library_need_process(long pid, const char *name, stw_error *err) {
    if (pid == (long)getpid()) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_USAGE, name,
                    "found process %ld, expected process %ld, which opened it: its threads, "
                    "device and connections do not outlive a fork",
                    (long)getpid(), pid);
}

void stw_library_copy(void *to, size_t to_size, const void *from, size_t from_size) {
    size_t both = to_size < from_size ? to_size : from_size;
    if (to != NULL && both > 0) memcpy(to, from, both);
}

/* ---- messages ---- */

static struct {
    stw_log_callback_t callback;
    void *user;
} listener;

static void forward(stw_log_level level, const char *text, void *user) {
    (void)user;
    if (listener.callback == NULL) return;
    const unsigned depth = caller.depth;
    void *locale = caller.locale, *inside = NULL;
    if (depth > 0) {
        inside = stw_locale_enter();
        stw_locale_leave(locale);
        caller.depth = 0;
    }
    listener.callback((stw_log_level_t)level, text, listener.user);
    stw_locale_leave(inside);
    caller.depth = depth;
    caller.locale = locale;
}

_Static_assert((int)STW_LOG_ERROR == STOWAGE_LOG_ERROR &&
                   (int)STW_LOG_WARN == STOWAGE_LOG_WARNING &&
                   (int)STW_LOG_INFO == STOWAGE_LOG_INFO && (int)STW_LOG_DEBUG == STOWAGE_LOG_DEBUG,
               "levels are passed on as they are");

/* A library says nothing unless asked. */
__attribute__((constructor)) static void be_silent(void) { stw_log_set(forward, NULL); }

void stw_set_log(stw_log_callback_t callback, void *user, stw_log_level_t most) {
    listener.callback = callback;
    listener.user = user;
    stw_log_level_set((stw_log_level)most);
}
