/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements of somebody else's job in the order of time: bytes of a rank or a node at an
 * instant, and marks at which ranks enter phases. As a CSV file with the header
 * time,rank,phase,metric,bytes, or as a log. Folded into a run result: peaks and seconds by phase.
 * One thread at a time. */
#ifndef STW_MEASURED_RECORDING_H
#define STW_MEASURED_RECORDING_H

#include "plan/files/run_file.h"

#define STW_NO_PHASE (-1) /* of a mark: no phase from here on; else: the phase of the last mark */
#define STW_EVERY_PHASE (-2) /* of bytes: the highest since the job began, in whatever phase */

typedef struct stw_recorded {
    double time_s; /* seconds of one clock, any zero */
    int32_t rank;  /* STW_ALL_RANKS: marks concern all ranks, bytes are the node's.
                    * STW_WORST_RANK, STW_SOME_RANK: with STW_EVERY_PHASE alone */
    uint32_t node;
    int phase;
    stw_metric metric;
    uint64_t bytes;
    size_t number;    /* order of samples of the same time */
    bool at_moment;   /* with STW_EVERY_PHASE: of one instant, the highest is not lower */
    bool cut_short;   /* at_moment, because an allocation failed */
    const char *from; /* where it stands in the file, for people; or NULL */
    const char *note; /* why it cannot be judged, or NULL */
} stw_recorded;

/** Seconds that were not measured by marks. */
typedef struct stw_recorded_time {
    int span; /* a phase or STW_SPAN_...  */
    double seconds;
    bool mean;        /* of the whole run so far: the last one counts; else the median of all */
    const char *from; /* as of stw_recorded */
} stw_recorded_time;

typedef struct stw_recording {
    stw_pool *pool;
    const char *file;   /* for errors */
    const char *device; /* name of the GPUs; "" where unknown */
    size_t n, capacity;
    stw_recorded *items;
    size_t n_times, times_capacity;
    stw_recorded_time *times;
    size_t n_ooms, ooms_capacity;
    stw_run_oom *ooms;
    bool may_be_empty;  /* a recording of this program: valid without bytes */
    uint32_t exit_code; /* of the command that was recorded */
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

/** Read lines that training frameworks print or write of their memory: any text, or JSON lines.
 * What has no measurement is skipped. docs/validate.md lists what is read, and what it is of. Bytes
 * are those of STW_EVERY_PHASE. BAD_INPUT names a line whose number cannot be read. */
STW_MUST_USE stw_status stw_recording_parse_log(stw_recording *samples, const char *file,
                                                const char *text, size_t length, stw_error *err);

/** Read what torch.cuda.memory._dump_snapshot wrote: the highest bytes allocated and reserved of
 * each device, as rank of the same number; of one moment where the history begins later than the
 * first segment or an allocation failed, which is added, too. Bytes are those of STW_EVERY_PHASE.
 */
STW_MUST_USE stw_status stw_recording_parse_snapshot(stw_recording *samples, const char *file,
                                                     const char *data, size_t length,
                                                     stw_error *err);

/** Peaks by rank, node and phase; seconds of a phase: the slowest rank's median over its visits.
 * The first optimizer_step of a rank that was marked becomes first_optimizer_step. Sorts the
 * samples by time. The caller frees *out. BAD_INPUT where no sample has bytes, unless it
 * may be empty. */
STW_MUST_USE stw_status stw_recording_fold(stw_recording *samples, stw_run_result **out,
                                           stw_error *err);

/** Read any file of measurements: a run file, a CSV, a log, or a memory
 * snapshot. What it is follows from what it
 * contains. The caller frees *out. BAD_INPUT where it has no measured bytes. */
STW_MUST_USE stw_status stw_measured_read(const char *path, stw_run_result **out, stw_error *err);
STW_MUST_USE stw_status stw_measured_parse(const char *file, const char *text, size_t length,
                                           stw_run_result **out, stw_error *err);

#endif
