/* SPDX-License-Identifier: Apache-2.0 */
/* A sweep: plans of all combinations of some settings, one row each. The file (stowage.sweep/1,
 * JSON) holds the arguments, the varied settings and the finished rows, so that a stopped sweep can
 * continue. A sweep owns everything it points to; one thread at a time. */
#ifndef STW_PLAN_SWEEP_H
#define STW_PLAN_SWEEP_H

#include "core/pool.h"
#include "core/text.h"
#include "plan/spec/terms.h"

#define STW_SWEEP_MOST_AXES 8
#define STW_SWEEP_MOST_POINTS 100000

#define STW_SWEEP_VERDICT_TABLE(X)                                                                 \
    X(NOT_PLANNED, "not_planned")                                                                  \
    X(FITS, "fits")                                                                                \
    X(AT_RISK, "at_risk")                                                                          \
    X(DOES_NOT_FIT, "does_not_fit")                                                                \
    X(REFUSED, "refused")       /* the settings contradict each other, or have no effect */        \
    X(TIME_LIMIT, "time_limit") /* no plan within the time limit */                                \
    X(FAILED, "failed")         /* the solver failed */                                            \
    X(UNKNOWN, "unknown")       /* the state fits; forward and backward are unknown */

#define X(name, text) STW_SWEEP_##name,
typedef enum stw_sweep_verdict {
    STW_SWEEP_VERDICT_TABLE(X) STW_SWEEP_N_VERDICTS
} stw_sweep_verdict;
#undef X
const char *stw_sweep_verdict_name(stw_sweep_verdict verdict);

/** A key that varies, and its values as --set takes them. */
typedef struct stw_sweep_axis {
    const char *key;
    uint32_t n;
    const char **values;
} stw_sweep_axis;

/** Row i has combination i of the axes' values; the last axis varies fastest. */
typedef struct stw_sweep_row {
    stw_sweep_verdict verdict;
    uint64_t gpus; /* ranks if GPUs are emulated */
    uint64_t gpu_peak_bytes, host_peak_bytes;
    double iteration_s, tokens_per_s; /* NaN: not known */
    double usd_per_gpu_hour;          /* 0: not known */
    const char *binds;                /* a resource in a phase, as in plan files; NULL: unknown */
    const char *reason;               /* for REFUSED, FAILED, TIME_LIMIT; else NULL */
    double planning_s;
    bool front; /* see stw_sweep_mark_front */
} stw_sweep_row;

/** The inputs of all rows, except the varied settings. */
typedef struct stw_sweep_arguments {
    const char *version; /* version of the program */
    const char *model, *model_digest, *cluster;
    const char *inputs; /* hash of cluster and run before the settings */
    uint32_t n_settings;
    const char **settings; /* KEY=VALUE */
    double time_limit_s;   /* per row */
} stw_sweep_arguments;

typedef struct stw_sweep {
    stw_pool *pool;
    stw_sweep_arguments arguments;
    uint32_t n_axes, n_points;
    stw_sweep_axis axes[STW_SWEEP_MOST_AXES];
    stw_sweep_row *rows; /* [n_points] */
} stw_sweep;

/** An empty sweep. The caller frees it. */
STW_MUST_USE stw_status stw_sweep_new(stw_sweep **out, stw_error *err);
void stw_sweep_free(stw_sweep *sweep);
/** Make the rows of all combinations, none of them planned. BAD_INPUT if there are too many. */
STW_MUST_USE stw_status stw_sweep_make_rows(stw_sweep *sweep, stw_error *err);
/** Returns the value of an axis in a row. */
const char *stw_sweep_value(const stw_sweep *sweep, uint32_t row, uint32_t axis);
uint32_t stw_sweep_count(const stw_sweep *sweep, stw_sweep_verdict verdict);
bool stw_sweep_row_fits(const stw_sweep_row *row);
/** Return the tokens per second of one GPU, and the GPU-hours of 10^9 tokens; NaN: unknown. */
double stw_sweep_tokens_per_gpu(const stw_sweep_row *row);
double stw_sweep_gpu_hours(const stw_sweep_row *row);
/** Returns the price of these GPU-hours in USD; NaN without a price. */
double stw_sweep_usd(const stw_sweep_row *row);
/** Mark the Pareto front among the rows that fit and have a known speed: a row is on the front if
 * no other row is at least as good in GPUs and in tokens per second and GPU, and better in one of
 * the two. */
void stw_sweep_mark_front(stw_sweep *sweep);

/** BAD_INPUT names the first argument or axis in which two sweeps differ. @param file of `b` */
STW_MUST_USE stw_status stw_sweep_check_same(const stw_sweep *a, const stw_sweep *b,
                                             const char *file, stw_error *err);
/** Write / read stowage.sweep/1. Reading refuses another major version, members whose checksums
 * differ, and combinations that do not occur in the axes. */
STW_MUST_USE stw_status stw_sweep_to_json(const stw_sweep *sweep, stw_text *out, stw_error *err);
STW_MUST_USE stw_status stw_sweep_read(const char *path, stw_sweep **out, stw_error *err);
STW_MUST_USE stw_status stw_sweep_parse(const char *file, const char *text, size_t length,
                                        stw_sweep **out, stw_error *err);
/** The same without the checksums: for fuzz targets, which change texts. */
STW_MUST_USE stw_status stw_sweep_parse_edited(const char *file, const char *text, size_t length,
                                               stw_sweep **out, stw_error *err);

#endif
