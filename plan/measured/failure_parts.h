/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of single kinds of text, which failure.c puts together. Each appends to what there is. */
#ifndef STW_MEASURED_FAILURE_PARTS_H
#define STW_MEASURED_FAILURE_PARTS_H

#include "plan/measured/failure.h"

/** Nothing is said of anything yet. */
stw_failure stw_failure_nothing(void);

/* A line of a text, without what launchers and loggers put before it, and without colours. */
typedef struct stw_failure_line {
    const char *text; /* NUL-terminated */
    size_t number, offset;
} stw_failure_line;

/** Does the line say that memory ended? Fills what it says. Lines that go on may be joined.
 * (failure_message.c) @param pool of the strings */
bool stw_failure_message(const char *line, stw_pool *pool, stw_failure *out);
/** A number with a unit, such as "1.70 GiB", "0 bytes", "12kB" or "59.49GB", at `at`. GB of Ray are
 * 2^30 bytes, as it divides by them. @return where it ends, or NULL */
const char *stw_failure_bytes(const char *at, uint64_t *out);

/** A frame of a stack in a line: of a Python traceback, of rich or of IPython. (failure_stack.c)
 * @param pool of the strings */
bool stw_frame_read(const char *line, stw_pool *pool, stw_frame *out);
/** Is this the beginning of a traceback? */
bool stw_frame_begins(const char *line);
/** Which process a line is of: "[rank3]", "(WorkerDict pid=12)"; length 0: none is named. */
size_t stw_line_tag(const char *line, const char **tag);

/** Lines of nvidia-smi, its queries as CSV, and dcgmi dmon. (failure_gpus.c) */
typedef struct stw_gpu_tables {
    int kind;        /* of the table that the lines are of */
    int columns[8];  /* which column has what; -1: none */
    uint64_t device; /* of the row before */
    double unit;
} stw_gpu_tables;
STW_MUST_USE stw_status stw_gpu_tables_line(stw_gpu_tables *state, const char *line,
                                            stw_failures *to, stw_error *err);

/** A snapshot of torch's allocator: the first allocation that failed, what was alive then, and the
 * largest free piece. (failure_snapshot.c) */
STW_MUST_USE stw_status stw_failures_parse_snapshot(stw_failures *to, const char *data,
                                                    size_t length, stw_error *err);

STW_MUST_USE stw_status stw_failures_add(stw_failures *to, const stw_failure *failure,
                                         stw_error *err);
/** @return false: no memory */
bool stw_failure_add_frame(stw_failure *to, stw_pool *pool, const stw_frame *frame);

#endif
