/* SPDX-License-Identifier: Apache-2.0 */
/* Raw values of a calibration: what the rates of a cluster were made from. They are written beside
 * the cluster (calibration.samples) for people and for comparisons; reading a cluster skips them,
 * and plans hold the rates alone. One thread at a time. */
#ifndef STW_PLAN_SAMPLES_H
#define STW_PLAN_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/json.h"
#include "core/status.h"
#include "core/text.h"

#define STW_SAMPLE_VALUES 10

/** One thing measured several times. A plain value: it may lie in memory that processes share. */
typedef struct stw_sample {
    char what[32];   /* "h2d" */
    char detail[64]; /* "32 MiB, 4 GPUs" */
    char unit[16];   /* of the values: "B/s", "param/s", "s", "B" */
    uint32_t n;      /* values, in the order in which they were measured */
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
/** One more value; those beyond STW_SAMPLE_VALUES are left out. */
void stw_sample_add(stw_sample *sample, double value);
/** The middle value, of an even number the mean of the two in the middle; 0 of none. */
double stw_sample_median(const stw_sample *sample);
/** Do values agree? Not where more than a third of three or more is further than an eighth from the
 * median. In the calibrations of H200 nodes under bench/results no rate of the CPU, of PCIe or of
 * the host's memory is that far apart, but for one that a neighbour had disturbed; NCCL's small
 * transfers and page-locking often are. */
bool stw_sample_is_steady(const stw_sample *sample);

/** Append a copy; one without values is left out. `samples` may be NULL. */
void stw_samples_add(stw_samples *samples, const stw_sample *sample);
/** The first of this name and detail (NULL: any), or NULL. */
const stw_sample *stw_samples_find(const stw_samples *samples, const char *what,
                                   const char *detail);
/** NO_MEMORY where an append failed. */
STW_MUST_USE stw_status stw_samples_status(const stw_samples *samples, stw_error *err);
void stw_samples_free(stw_samples *samples);

/** As the member "samples" of the object that is open: a list of objects, values in base units. */
void stw_samples_write_json(const stw_samples *samples, stw_json *json);
/** As the key "samples" in a map that is indented by `indent`: a list of maps, one a line. */
void stw_samples_write_yaml(const stw_samples *samples, int indent, stw_text *out);

#endif
