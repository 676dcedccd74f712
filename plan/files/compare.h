/* SPDX-License-Identifier: Apache-2.0 */
/* Compares predicted and measured values: bytes by phase and component of every measured rank (the
 * worst rank of each kind is kept), bytes per node, seconds by phase. The caller frees the
 * comparison and keeps plan and run until then. One comparison belongs to one thread at a time. */
#ifndef STW_PLAN_COMPARE_H
#define STW_PLAN_COMPARE_H

#include "plan/files/plan.h"
#include "plan/files/run_file.h"

typedef struct stw_tolerance {
    double memory;                /* share, 0.02 */
    uint64_t memory_floor_bytes;  /* differences up to this always pass: 2 MiB */
    uint64_t process_floor_bytes; /* the same per process, for lines that hold what a process takes
                                     by itself (libraries, the driver's own tables): 64 MiB */
    double time;                  /* share, 0.10 */
    double time_floor_s;          /* 0.0005 */
} stw_tolerance;
#define STW_TOLERANCE_DEFAULT                                                                      \
    { 0.02, 2ull << 20, 64ull << 20, 0.10, 0.0005 }

typedef enum stw_line_verdict {
    STW_LINE_WITHIN,
    STW_LINE_OUTSIDE,
    STW_LINE_NOT_MEASURED,
    STW_LINE_NOT_JUDGED
} stw_line_verdict;

typedef struct stw_compare_line {
    stw_phase phase;
    const char
        *what; /* "gpu allocated", "gpu device", "gpu params", "host", "host exp_avg", "time" */
    const char *kind; /* kind of rank, "node", "job" */
    uint32_t rank;    /* the rank that is furthest off */
    const char *who;  /* rank or node in words, for people; or NULL */
    bool is_time;
    uint32_t processes;         /* whose own bytes are in it; 0: arenas alone */
    double predicted, measured; /* bytes or seconds */
    double error;               /* (predicted - measured) / measured; 0 when both are 0 */
    stw_line_verdict verdict;
    const char *note; /* why not judged, or NULL */
} stw_compare_line;

typedef struct stw_comparison {
    stw_pool *pool;
    uint32_t n_lines, outside, judged;
    stw_compare_line *lines;
    bool time_judged; /* backend cuda, and the cluster calibrated on that GPU model */
    const char *time_note;
} stw_comparison;

/** BAD_INPUT if the run belongs to another plan (world, layout hash). */
STW_MUST_USE stw_status stw_compare(const stw_plan *plan, const stw_run_result *run,
                                    const stw_tolerance *tolerance, stw_comparison **out,
                                    stw_error *err);
void stw_comparison_free(stw_comparison *comparison);
/** As JSON, schema stowage.comparison/1. */
STW_MUST_USE stw_status stw_comparison_to_json(const stw_comparison *comparison, stw_text *out,
                                               stw_error *err);

#endif
