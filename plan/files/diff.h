/* SPDX-License-Identifier: Apache-2.0 */
/* The differences of two plans: settings, decisions, verdict, peaks by phase, tier and component,
 * seconds by phase. All figures stand in the plan files. The caller frees the difference and keeps
 * both plans until then. One difference belongs to one thread at a time. */
#ifndef STW_PLAN_DIFF_H
#define STW_PLAN_DIFF_H

#include "plan/files/plan.h"

/** A setting or a decision; NULL: that plan has no such key or decision. */
typedef struct stw_diff_words {
    const char *what, *before, *after;
} stw_diff_words;

/** Bytes of the worst kind of rank (gpu) or node (host, nvme); 0 if a plan has no such phase. */
typedef struct stw_diff_bytes {
    stw_phase phase;
    stw_tier tier;
    const char *what; /* "total", "page_locked" or the name of a component */
    uint64_t before, after;
} stw_diff_bytes;

typedef struct stw_diff_seconds {
    const char *phase;    /* or "iteration" */
    double before, after; /* NaN: unknown, or no such phase */
} stw_diff_seconds;

/** The highest peak of a tier over all phases. */
typedef struct stw_diff_peak {
    stw_phase phase; /* STW_N_PHASES: none */
    uint64_t bytes;
    const uint64_t *components; /* [STW_N_COMPONENTS] at that moment; NULL: none */
} stw_diff_peak;

typedef struct stw_diff {
    stw_pool *pool;
    const stw_plan *plans[2];
    const char *names[2]; /* file names */
    stw_diff_peak peaks[2][STW_N_TIERS];
    uint32_t n_settings, n_decisions, n_bytes, n_seconds; /* differing lines */
    stw_diff_words *settings, *decisions;
    stw_diff_bytes *bytes;
    stw_diff_seconds *seconds;
} stw_diff;

/** @param names names of the two plans, for reports; borrowed */
STW_MUST_USE stw_status stw_diff_new(const stw_plan *before, const stw_plan *after,
                                     const char *const names[2], stw_diff **out, stw_error *err);
void stw_diff_free(stw_diff *diff);
/** True if two times are equal up to rounding (a share of 1e-9), or both unknown. */
bool stw_diff_same_seconds(double a, double b);
/** Returns the tokens per second of an iteration; NaN if its time is unknown. */
double stw_plan_tokens_per_s(const stw_plan *plan);
/** Write as JSON, schema stowage.diff/1. */
STW_MUST_USE stw_status stw_diff_to_json(const stw_diff *diff, stw_text *out, stw_error *err);

#endif
