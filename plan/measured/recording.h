/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements of another program's job in the order of time: bytes of a rank or a node at an
 * instant, and marks where ranks enter phases. They come from a CSV file with the header
 * time,rank,phase,metric,bytes, or from a log. Folding turns them into a run result: peaks and
 * seconds by phase. One thread at a time. */
#ifndef STW_MEASURED_RECORDING_H
#define STW_MEASURED_RECORDING_H

#include "plan/files/run_file.h"

#define STW_NO_PHASE                                                                               \
    (-1) /* in a mark: no phase from here on; in a sample: the phase of the last                   \
            mark */
#define STW_EVERY_PHASE (-2) /* of bytes: the highest since the job began, in any phase */

typedef struct stw_recorded {
    double time_s; /* seconds of one clock, any zero */
    int32_t rank;  /* STW_ALL_RANKS: a mark for all ranks, bytes of the node. STW_WORST_RANK,
                      STW_SOME_RANK: only with STW_EVERY_PHASE */
    uint32_t node;
    int phase;
    stw_metric metric;
    uint64_t bytes;
    size_t number;    /* order of samples of the same time */
    bool at_moment;   /* with STW_EVERY_PHASE: bytes of one instant; the peak may be higher */
    bool cut_short;   /* at_moment, because an allocation failed */
    const char *from; /* where it stands in the file, for reports; or NULL */
    const char *note; /* why it cannot be judged, or NULL */
} stw_recorded;

/** Seconds that come from a statement in the file, not from marks. */
typedef struct stw_recorded_time {
    int span; /* a phase or STW_SPAN_...  */
    double seconds;
    bool mean;        /* a mean over the run so far, of which the last counts; else the median
                         counts */
    const char *from; /* as in stw_recorded */
} stw_recorded_time;

typedef struct stw_recording {
    stw_pool *pool;
    const char *file;   /* for errors */
    const char *device; /* name of the GPUs; "": unknown */
    size_t n, capacity;
    stw_recorded *items;
    size_t n_times, times_capacity;
    stw_recorded_time *times;
    size_t n_ooms, ooms_capacity;
    stw_run_oom *ooms;
    bool may_be_empty;  /* recorded by this program: valid without bytes */
    uint32_t exit_code; /* the recorded command's */
} stw_recording;

STW_MUST_USE stw_status stw_recording_new(const char *file, stw_recording **out, stw_error *err);
void stw_recording_free(stw_recording *samples);
STW_MUST_USE stw_status stw_recording_add(stw_recording *samples, const stw_recorded *sample,
                                          stw_error *err);
STW_MUST_USE stw_status stw_recording_add_time(stw_recording *samples,
                                               const stw_recorded_time *time, stw_error *err);
STW_MUST_USE stw_status stw_recording_add_oom(stw_recording *samples, const stw_run_oom *oom,
                                              stw_error *err);
const char *stw_metric_name(stw_metric metric);

/** Read a CSV: columns time (s), rank, phase, metric, bytes and optionally node (0), in any order.
 * A row without a metric is a mark. A row without a rank is for the node (a mark: for all ranks). A
 * row without a phase belongs to the phase of the rank's last mark. The phase "end" ends a phase.
 * The samples are added to `samples`. BAD_INPUT names file and line. */
STW_MUST_USE stw_status stw_recording_read_csv(stw_recording *samples, const char *path,
                                               stw_error *err);
/** The same for a text. */
STW_MUST_USE stw_status stw_recording_parse_csv(stw_recording *samples, const char *file,
                                                const char *text, size_t length, stw_error *err);
STW_MUST_USE stw_status stw_recording_to_csv(const stw_recording *samples, stw_text *out,
                                             stw_error *err);

/** Read the lines about memory that training frameworks print or write: any text, or JSON lines.
 * Lines without a measurement are skipped. docs/validate.md lists the lines and their meaning.
 * Bytes are recorded with STW_EVERY_PHASE. BAD_INPUT names a line with an unreadable number. */
STW_MUST_USE stw_status stw_recording_parse_log(stw_recording *samples, const char *file,
                                                const char *text, size_t length, stw_error *err);

/** Read a file of torch.cuda.memory._dump_snapshot: the highest allocated and reserved bytes of
 * each device, recorded for the rank with the device's number and with STW_EVERY_PHASE. They are
 * bytes of one instant if the history begins after the first segment or if an allocation failed;
 * the failure is added, too. */
STW_MUST_USE stw_status stw_recording_parse_snapshot(stw_recording *samples, const char *file,
                                                     const char *data, size_t length,
                                                     stw_error *err);

/** Fold the samples into peaks by rank, node and phase, and seconds by phase: the slowest rank's
 * median over its visits. A rank's first marked optimizer_step becomes first_optimizer_step. Sorts
 * the samples by time. The caller frees *out. BAD_INPUT if no sample has bytes, unless may_be_empty
 * is set. */
STW_MUST_USE stw_status stw_recording_fold(stw_recording *samples, stw_run_result **out,
                                           stw_error *err);

/** Read any file of measurements: a run file, a CSV, a log, or a memory snapshot. Its content
 * decides its kind. The caller frees *out. BAD_INPUT if it has no measured bytes. */
STW_MUST_USE stw_status stw_measured_read(const char *path, stw_run_result **out, stw_error *err);
STW_MUST_USE stw_status stw_measured_parse(const char *file, const char *text, size_t length,
                                           stw_run_result **out, stw_error *err);

#endif
