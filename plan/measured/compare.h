/* SPDX-License-Identifier: Apache-2.0 */
/* Compares predicted and measured values: bytes by phase and component of every measured rank (the
 * worst rank of each kind is kept), bytes per node, seconds by phase. The caller frees the
 * comparison and keeps plan and run until then. One comparison belongs to one thread at a time. */
#ifndef STW_MEASURED_COMPARE_H
#define STW_MEASURED_COMPARE_H

#include "core/json.h"
#include "plan/files/plan.h"
#include "plan/files/run_file.h"
#include "plan/measured/learn.h"

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
    const char *from; /* where the measured value stands in the file, or NULL */
} stw_compare_line;

/** What a run verified of itself, and whether its digests are those of the other runs. */
typedef struct stw_compare_run {
    const char *name; /* file, for people */
    uint64_t checked, mismatched;
    bool known[STW_N_DIGESTS]; /* the run states this digest */
    uint64_t digest[STW_N_DIGESTS];
    bool differs[STW_N_DIGESTS]; /* from the one that most runs have; of two, from the first's */
} stw_compare_run;

typedef struct stw_comparison {
    stw_pool *pool;
    uint32_t n_lines, outside, judged;
    stw_compare_line *lines;
    uint32_t shown;   /* measured and predicted, judged or not */
    bool time_judged; /* backend cuda, and the cluster calibrated on that GPU model */
    const char *time_note;
    uint32_t n_ooms;
    const stw_run_oom *ooms; /* allocations that failed in the first run, whose they are */
    bool external;           /* the first run is a recording of another program */
    uint32_t n_runs;         /* verified; the first is the one that the lines are of */
    stw_compare_run *runs;
    uint32_t differing;         /* digests that differ, over all runs */
    const stw_lessons *lessons; /* that the first run taught, the caller's; NULL: none */
    stw_verdict plan_verdict;   /* of the plan that was compared */
} stw_comparison;

/** BAD_INPUT if the run belongs to another plan: keys that differ are named. */
STW_MUST_USE stw_status stw_compare(const stw_plan *plan, const stw_run_result *run,
                                    const stw_tolerance *tolerance, stw_comparison **out,
                                    stw_error *err);
/** Hold the digests of n runs against each other; runs[0] is the one that was compared. They may be
 * of plans with other placements. BAD_INPUT names a run that has no digests, or whose digests are
 * of something else (model, seed, steps, optimizer, precision).
 * @param names of the runs, for people; kept */
STW_MUST_USE stw_status stw_compare_digests(stw_comparison *comparison,
                                            const stw_run_result *const *runs,
                                            const char *const *names, uint32_t n, stw_error *err);
/** "RUN: params" of the first digest that differs, else "". */
void stw_comparison_first_difference(const stw_comparison *comparison, char *out, size_t out_size);
/** Add the member "verify": what the runs checked, and their digests. */
void stw_comparison_write_verify(const stw_comparison *comparison, stw_json *json);
void stw_comparison_free(stw_comparison *comparison);
/** As JSON, schema stowage.comparison/1. */
STW_MUST_USE stw_status stw_comparison_to_json(const stw_comparison *comparison, stw_text *out,
                                               stw_error *err);

#endif
