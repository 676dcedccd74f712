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
    uint64_t process_floor_bytes; /* the same per process, for lines with a process's own bytes
                                     (libraries, driver tables): 64 MiB */
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
    uint32_t rank;    /* the rank with the largest error */
    const char *who;  /* rank or node in words, for reports; or NULL */
    bool is_time;
    uint32_t processes;         /* processes whose own bytes are included; 0: arenas only */
    double predicted, measured; /* bytes or seconds */
    double error;               /* (predicted - measured) / measured; 0 when both are 0 */
    stw_line_verdict verdict;
    const char *note; /* why not judged, or NULL */
    const char *from; /* place of the measured value in the file, or NULL */
} stw_compare_line;

/** The elements that a run verified, and a comparison of its digests with other runs. */
typedef struct stw_compare_run {
    const char *name; /* file, for reports */
    uint64_t checked, mismatched;
    bool known[STW_N_DIGESTS]; /* the run states this digest */
    uint64_t digest[STW_N_DIGESTS];
    bool differs[STW_N_DIGESTS]; /* differs from the digest of most runs; of two runs: from the
                                    first one's */
} stw_compare_run;

typedef struct stw_comparison {
    stw_pool *pool;
    uint32_t n_lines, outside, judged;
    stw_compare_line *lines;
    uint32_t shown;   /* lines with both values, judged or not */
    bool time_judged; /* backend cuda, and a cluster calibrated on that GPU model */
    const char *time_note;
    uint32_t n_ooms;
    const stw_run_oom *ooms; /* failed allocations of the first run, which owns them */
    bool external;           /* the first run was recorded from another program */
    uint32_t n_runs;         /* runs with digests; the lines are of the first one */
    stw_compare_run *runs;
    uint32_t differing;         /* differing digests of all runs */
    const stw_lessons *lessons; /* learned from the first run; the caller's; NULL: none */
    stw_verdict plan_verdict;   /* verdict of the compared plan */
} stw_comparison;

/** BAD_INPUT if the run belongs to another plan: keys that differ are named. */
STW_MUST_USE stw_status stw_compare(const stw_plan *plan, const stw_run_result *run,
                                    const stw_tolerance *tolerance, stw_comparison **out,
                                    stw_error *err);
/** Compare the digests of n runs; runs[0] is the run of the lines. Their plans may have different
 * placements. BAD_INPUT names a run without digests, or with digests of other inputs (model, seed,
 * steps, optimizer, precision).
 * @param names of the runs, for reports; borrowed */
STW_MUST_USE stw_status stw_compare_digests(stw_comparison *comparison,
                                            const stw_run_result *const *runs,
                                            const char *const *names, uint32_t n, stw_error *err);
/** "RUN: params" of the first digest that differs, else "". */
void stw_comparison_first_difference(const stw_comparison *comparison, char *out, size_t out_size);
/** Add the member "verify": what the runs checked, and their digests. */
void stw_comparison_write_verify(const stw_comparison *comparison, stw_json *json);
void stw_comparison_free(stw_comparison *comparison);
/** Write as JSON, schema stowage.comparison/1. */
STW_MUST_USE stw_status stw_comparison_to_json(const stw_comparison *comparison, stw_text *out,
                                               stw_error *err);

#endif
