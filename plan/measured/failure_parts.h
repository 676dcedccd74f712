/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of single kinds of text, which failure.c combines. Each appends to the failures. */
#ifndef STW_MEASURED_FAILURE_PARTS_H
#define STW_MEASURED_FAILURE_PARTS_H

#include "plan/measured/failure.h"

/** Returns a failure without any facts. */
stw_failure stw_failure_nothing(void);

/* A line of a text, without prefixes of launchers and loggers and without colours. */
typedef struct stw_failure_line {
    const char *text; /* NUL-terminated */
    size_t number, offset;
} stw_failure_line;

/** True if the line reports a memory failure; fills its facts. Continued lines may be joined first.
 * (failure_message.c)
 * @param pool holds the strings */
bool stw_failure_message(const char *line, stw_pool *pool, stw_failure *out);
/** Read a number with a unit at `at`, such as "1.70 GiB", "0 bytes", "12kB" or "59.49GB". Ray's GB
 * are 2^30 bytes.
 * @return its end, or NULL */
const char *stw_failure_bytes(const char *at, uint64_t *out);

/** Read a stack frame from a line of a Python traceback, of rich or of IPython. (failure_stack.c)
 * @param pool holds the strings */
bool stw_frame_read(const char *line, stw_pool *pool, stw_frame *out);
/** True if a traceback begins with this line. */
bool stw_frame_begins(const char *line);
/** Find the name of a line's process: "[rank3]", "(WorkerDict pid=12)". Returns its length; 0:
 * none. */
size_t stw_line_tag(const char *line, const char **tag);

/** The state of a reader of nvidia-smi, of its CSV queries, and of dcgmi dmon. (failure_gpus.c) */
typedef struct stw_gpu_tables {
    int kind;        /* kind of the current table */
    int columns[8];  /* column of each value; -1: none */
    uint64_t device; /* device of the previous row */
    double unit;
} stw_gpu_tables;
STW_MUST_USE stw_status stw_gpu_tables_line(stw_gpu_tables *state, const char *line,
                                            stw_failures *to, stw_error *err);

/** Read a snapshot of torch's allocator: the first failed allocation, the live bytes then, and the
 * largest free piece. (failure_snapshot.c) */
STW_MUST_USE stw_status stw_failures_parse_snapshot(stw_failures *to, const char *data,
                                                    size_t length, stw_error *err);

STW_MUST_USE stw_status stw_failures_add(stw_failures *to, const stw_failure *failure,
                                         stw_error *err);
/** @return false: no memory */
bool stw_failure_add_frame(stw_failure *to, stw_pool *pool, const stw_frame *frame);

#endif
