/* SPDX-License-Identifier: Apache-2.0 */
/* The status of a call, and the error that explains it.
 *
 * Every function that can fail returns a stw_status. Its last parameter is a stw_error *, which the
 * caller owns and which may be NULL. The first error wins: a filled stw_error is never overwritten.
 * The status of a call is not the outcome of a plan: "infeasible" is a valid outcome, and only the
 * command turns it into an exit code. Any thread may call; one thread at a time uses an stw_error.
 */
#ifndef STW_CORE_STATUS_H
#define STW_CORE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
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
    X(AT_RISK, 9, "at risk, or a part is unknown")                                                 \
    X(BUG, 70, "a bug in stowage")

typedef enum stw_status {
#define X(name, code, text) STW_STATUS_##name,
    STW_STATUS_TABLE(X)
#undef X
} stw_status;

/** One error, filled by the call that failed. */
typedef struct stw_error {
    stw_status status;
    long native;      /* errno, cudaError_t, ncclResult_t ...; 0 if none */
    int rank;         /* -1 if no rank is meant */
    int line, column; /* 1-based place in `where`; 0 if unknown */
    char where[256];  /* file, key, operation or resource; "" if none is meant */
    char text[768];   /* what was found and what was expected */
    bool told;        /* somebody shows it already: another rank of the job, or this one before */
} stw_error;

/** An empty error: `stw_error err = STW_ERROR_INIT;` */
#define STW_ERROR_INIT                                                                             \
    { STW_STATUS_OK, 0, -1, 0, 0, "", "", false }

/** The process exit code of a status. */
int stw_status_exit_code(stw_status status);
/** English text of a status; never NULL. */
const char *stw_status_text(stw_status status);

/** Fill `err` (if not NULL and still OK) and return `status`.
 * @param where file, key or operation; may be NULL
 * @param line, column 1-based, 0 if unknown */
stw_status stw_fail_at(stw_error *err, stw_status status, const char *where, int line, int column,
                       const char *format, ...) STW_PRINTF(6, 7);
/** stw_fail_at without a place inside `where`. */
stw_status stw_fail(stw_error *err, stw_status status, const char *where, const char *format, ...)
    STW_PRINTF(4, 5);
/** stw_fail with a native error code, such as errno. */
stw_status stw_fail_native(stw_error *err, stw_status status, long native, const char *where,
                           const char *format, ...) STW_PRINTF(5, 6);

/** For the outermost call of a reader: an error that does not begin with the name of its file gets
 * it, before what it named. Returns `status`; does nothing where it is OK. */
stw_status stw_error_in(stw_status status, const char *file, stw_error *err);

/** Format as "where:line:column: text", one line for a terminal, always NUL-terminated. */
void stw_error_format(const stw_error *err, char *out, size_t out_size);
/** The same of a call that failed: the text of its status where no error says why.
 * @param err may be NULL, or empty */
void stw_failure_format(stw_status status, const stw_error *err, char *out, size_t out_size);

/** Go to `out` if the call fails. Requires a variable `stw_status status` and a label `out`. */
#define STW_TRY(call)                                                                              \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != STW_STATUS_OK) goto out;                                                     \
    } while (0)

#endif
