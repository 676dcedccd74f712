/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements of somebody else's job in the order of time: bytes of a rank or a node at an
 * instant, and marks at which ranks enter phases. As a CSV file with the header
 * time,rank,phase,metric,bytes. Folded into a run result: peaks and seconds by phase. One thread at
 * a time. */
#ifndef STW_PLAN_RECORDING_H
#define STW_PLAN_RECORDING_H

#include "plan/files/run_file.h"

typedef enum stw_metric {
    STW_METRIC_NONE,       /* a mark: the rank enters the phase */
    STW_METRIC_DEVICE,     /* GPU, everything on the device */
    STW_METRIC_ALLOCATED,  /* GPU, handed out by the framework's allocator */
    STW_METRIC_RESERVED,   /* GPU, held by the framework's allocator */
    STW_METRIC_HOST,       /* resident memory, of a rank's process or of all processes of a node */
    STW_METRIC_PAGE_LOCKED /* page-locked host memory of a rank or a node */
} stw_metric;
#define STW_N_METRICS 6

#define STW_NO_PHASE (-1) /* of a mark: no phase from here on; else: the phase of the last mark */
#define STW_ALL_RANKS (-1)

typedef struct stw_recorded {
    double time_s; /* seconds of one clock, any zero */
    int32_t rank;  /* STW_ALL_RANKS: marks concern all ranks, bytes are the node's */
    uint32_t node;
    int phase;
    stw_metric metric;
    uint64_t bytes;
    size_t number; /* order of samples of the same time */
} stw_recorded;

typedef struct stw_recording {
    stw_pool *pool;
    const char *file;   /* for errors */
    const char *device; /* name of the GPUs; "" where unknown */
    size_t n, capacity;
    stw_recorded *items;
} stw_recording;

STW_MUST_USE stw_status stw_recording_new(const char *file, stw_recording **out, stw_error *err);
void stw_recording_free(stw_recording *samples);
STW_MUST_USE stw_status stw_recording_add(stw_recording *samples, const stw_recorded *sample,
                                          stw_error *err);
const char *stw_metric_name(stw_metric metric);

/** Read a CSV: columns time (s), rank, phase, metric, bytes and optionally node (0), in any order.
 * A row without a metric is a mark. A row without a rank is of the node (a mark: of all ranks). A
 * row without a phase belongs to the phase of the rank's last mark. The phase "end" ends a phase.
 * Samples are added to those that there are. BAD_INPUT names file and line. */
STW_MUST_USE stw_status stw_recording_read_csv(stw_recording *samples, const char *path,
                                               stw_error *err);
/** The same of a text. */
STW_MUST_USE stw_status stw_recording_parse_csv(stw_recording *samples, const char *file,
                                                const char *text, size_t length, stw_error *err);
STW_MUST_USE stw_status stw_recording_to_csv(const stw_recording *samples, stw_text *out,
                                             stw_error *err);

/** Peaks by rank, node and phase; seconds of a phase: the slowest rank's median over its visits.
 * The first optimizer_step of a rank that was marked becomes first_optimizer_step. Sorts the
 * samples by time. The caller frees *out. BAD_INPUT where no sample has bytes. */
STW_MUST_USE stw_status stw_recording_fold(stw_recording *samples, stw_run_result **out,
                                           stw_error *err);

#endif
