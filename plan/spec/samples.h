/* SPDX-License-Identifier: Apache-2.0 */
/* Raw values of a calibration, from which the rates of a cluster were computed. They are written
 * beside the cluster (calibration.samples) for people and for comparisons. Reading a cluster skips
 * them, and plans hold only the rates. One thread at a time. */
#ifndef STW_PLAN_SAMPLES_H
#define STW_PLAN_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/json.h"
#include "core/status.h"
#include "core/text.h"

#define STW_SAMPLE_VALUES 10

/** Several measurements of one quantity. A plain value: it may lie in memory that processes share.
 */
typedef struct stw_sample {
    char what[32];   /* "h2d" */
    char detail[64]; /* "32 MiB, 4 GPUs" */
    char unit[16];   /* "B/s", "param/s", "s", "B" */
    uint32_t n;      /* number of values; they are in the order of measurement */
    double values[STW_SAMPLE_VALUES];
} stw_sample;

typedef struct stw_samples {
    uint32_t n, capacity;
    bool failed; /* memory ran out: something is missing */
    stw_sample *items;
} stw_samples;

#define STW_SAMPLES_INIT                                                                           \
    { 0, 0, false, NULL }

/** An empty sample; names that are too long are cut. */
stw_sample stw_sample_make(const char *what, const char *detail, const char *unit);
/** Add a value. Values beyond STW_SAMPLE_VALUES are ignored. */
void stw_sample_add(stw_sample *sample, double value);
/** The median; 0 without values. */
double stw_sample_median(const stw_sample *sample);
/** True if at most a third of the values differ from the median by more than an eighth of it, or if
 * there are fewer than three values. */
bool stw_sample_is_steady(const stw_sample *sample);

/** Append a copy. A sample without values is ignored. `samples` may be NULL. */
void stw_samples_add(stw_samples *samples, const stw_sample *sample);
/** The first sample with this name and detail (NULL: any detail), or NULL. */
const stw_sample *stw_samples_find(const stw_samples *samples, const char *what,
                                   const char *detail);
/** NO_MEMORY if an append failed. */
STW_MUST_USE stw_status stw_samples_status(const stw_samples *samples, stw_error *err);
void stw_samples_free(stw_samples *samples);

/** Write the member "samples" of the open object: a list of objects, values in base units. */
void stw_samples_write_json(const stw_samples *samples, stw_json *json);
/** Write the key "samples" of a map indented by `indent` spaces: a list of maps, one per line. */
void stw_samples_write_yaml(const stw_samples *samples, int indent, stw_text *out);

#endif
