/* SPDX-License-Identifier: Apache-2.0 */
/* What a call came to, and the error that explains it.
 *
 * Every function that can fail returns a stw_status and takes, last, a caller-owned stw_error *
 * that may be NULL. The first error wins: a filled stw_error is never overwritten. The status of a
 * call is not the status of a model: "nothing fits" found by a planner that worked is an outcome of
 * the plan, and only the command turns it into an exit code. Any thread may call; an stw_error
 * belongs to one thread at a time. */
#ifndef STW_CORE_STATUS_H
#define STW_CORE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

#define STW_MUST_USE __attribute__((warn_unused_result))
#define STW_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* X(enum suffix, exit code, text) */
#define STW_STATUS_TABLE(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(NO_MEMORY, 1, "out of memory")                                                               \
    X(NO_RESOURCES, 1, "the machine lacks the required resources")                                 \
    X(SOLVER, 1, "the solver failed")                                                              \
    X(USAGE, 2, "wrong usage")                                                                     \
    X(BAD_INPUT, 3, "bad input")                                                                   \
    X(IO, 3, "a file could not be read or written")                                                \
    X(NOTHING_FITS, 4, "nothing fits")                                                             \
    X(TIME_LIMIT, 5, "time limit reached without a plan")                                          \
    X(DEVICE, 6, "the device or the communicator failed")                                          \
    X(NOT_BUILT_IN, 7, "not built in or not executable")                                           \
    X(DISAGREE, 8, "prediction and measurement disagree")                                          \
    X(BUG, 70, "a bug in stowage")

typedef enum stw_status {
#define X(name, code, text) STW_STATUS_##name,
    STW_STATUS_TABLE(X)
#undef X
} stw_status;

/** One error, filled by the call that met it. */
typedef struct stw_error {
    stw_status status;
    long native;      /* errno, cudaError_t, ncclResult_t ...; 0 where there is none */
    int rank;         /* -1 where no rank is meant */
    int line, column; /* 1-based place in `where`; 0 where unknown */
    char where[256];  /* file, key, operation or resource; "" where none is meant */
    char text[768];   /* what was found and what was expected */
} stw_error;

/** An empty error: `stw_error err = STW_ERROR_INIT;` */
#define STW_ERROR_INIT                                                                             \
    { STW_STATUS_OK, 0, -1, 0, 0, "", "" }

/** The process exit code of a status. */
int stw_status_exit_code(stw_status status);
/** A fixed English text for a status; never NULL. */
const char *stw_status_text(stw_status status);

/** Fill `err` (if not NULL and still OK) and return `status`.
 * @param where file, key or operation; may be NULL
 * @param line, column 1-based, 0 where unknown */
stw_status stw_fail_at(stw_error *err, stw_status status, const char *where, int line, int column,
                       const char *format, ...) STW_PRINTF(6, 7);
/** stw_fail_at without a place inside `where`. */
stw_status stw_fail(stw_error *err, stw_status status, const char *where, const char *format, ...)
    STW_PRINTF(4, 5);
/** The same with a native code (errno and the like) kept. */
stw_status stw_fail_native(stw_error *err, stw_status status, long native, const char *where,
                           const char *format, ...) STW_PRINTF(5, 6);

/** "where:line:column: text" as a person should read it, always terminated. */
void stw_error_format(const stw_error *err, char *out, size_t out_size);

/** Leave for `out:` with the status of a failed call. Needs `stw_status status` and a label `out`.
 */
#define STW_TRY(call)                                                                              \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != STW_STATUS_OK) goto out;                                                     \
    } while (0)

#endif
