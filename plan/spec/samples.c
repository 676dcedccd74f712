/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/spec/samples.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/median.h"

enum { FIRST_CAPACITY = 64 };

stw_sample stw_sample_make(const char *what, const char *detail, const char *unit) {
    stw_sample sample;
    memset(&sample, 0, sizeof sample);
    snprintf(sample.what, sizeof sample.what, "%s", what);
    snprintf(sample.detail, sizeof sample.detail, "%s", detail);
    snprintf(sample.unit, sizeof sample.unit, "%s", unit);
    return sample;
}

void stw_sample_add(stw_sample *sample, double value) {
    if (sample->n < STW_SAMPLE_VALUES) sample->values[sample->n++] = value;
}

double stw_sample_median(const stw_sample *sample) {
    double sorted[STW_SAMPLE_VALUES];
    uint32_t n = sample->n < STW_SAMPLE_VALUES ? sample->n : STW_SAMPLE_VALUES;
    if (n == 0) return 0;
    memcpy(sorted, sample->values, n * sizeof sorted[0]);
    return stw_median(sorted, n);
}

bool stw_sample_is_steady(const stw_sample *sample) {
    uint32_t n = sample->n < STW_SAMPLE_VALUES ? sample->n : STW_SAMPLE_VALUES, apart = 0;
    double median = stw_sample_median(sample);
    for (uint32_t i = 0; i < n; i++) {
        double off = sample->values[i] - median;
        if (off > median / 8 || off < -median / 8) apart++;
    }
    return n < 3 || 3 * apart <= n;
}

void stw_samples_add(stw_samples *samples, const stw_sample *sample) {
    if (samples == NULL || sample->n == 0) return;
    if (samples->n == samples->capacity) {
        uint32_t capacity = samples->capacity == 0 ? FIRST_CAPACITY : 2 * samples->capacity;
        stw_sample *grown = realloc(samples->items, capacity * sizeof *grown);
        if (grown == NULL) {
            samples->failed = true;
            return;
        }
        samples->items = grown;
        samples->capacity = capacity;
    }
    samples->items[samples->n++] = *sample;
}

const stw_sample *stw_samples_find(const stw_samples *samples, const char *what,
                                   const char *detail) {
    for (uint32_t i = 0; i < samples->n; i++)
        if (strcmp(samples->items[i].what, what) == 0 &&
            (detail == NULL || strcmp(samples->items[i].detail, detail) == 0))
            return &samples->items[i];
    return NULL;
}

stw_status stw_samples_status(const stw_samples *samples, stw_error *err) {
    if (!samples->failed) return STW_STATUS_OK;
    return stw_fail(err, STW_STATUS_NO_MEMORY, "calibration.samples", "out of memory");
}

void stw_samples_free(stw_samples *samples) {
    free(samples->items);
    *samples = (stw_samples)STW_SAMPLES_INIT;
}

/* Five digits: the sixth differs from run to run. */
static double rounded(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.5g", isfinite(value) ? value : 0.0);
    return strtod(text, NULL);
}

void stw_samples_write_json(const stw_samples *samples, stw_json *json) {
    stw_json_begin_array(json, "samples");
    for (uint32_t i = 0; i < samples->n; i++) {
        const stw_sample *s = &samples->items[i];
        stw_json_begin_object(json, NULL);
        stw_json_string(json, "what", s->what);
        stw_json_string(json, "detail", s->detail);
        stw_json_string(json, "unit", s->unit);
        stw_json_begin_array(json, "values");
        for (uint32_t v = 0; v < s->n && v < STW_SAMPLE_VALUES; v++)
            stw_json_double(json, NULL, rounded(s->values[v]));
        stw_json_end(json);
        stw_json_end(json);
    }
    stw_json_end(json);
}

/* In double quotes. Names and details are made by the program; whatever else is in them (a folder's
 * name) must still give one YAML string. */
static void append_quoted(stw_text *out, const char *string) {
    stw_text_append(out, "\"", 1);
    for (const char *c = string; *c != '\0'; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\')
            stw_text_printf(out, "\\%c", byte);
        else if (byte < 0x20 || byte >= 0x7f)
            stw_text_printf(out, "\\x%02X", byte);
        else
            stw_text_append(out, c, 1);
    }
    stw_text_append(out, "\"", 1);
}

void stw_samples_write_yaml(const stw_samples *samples, int indent, stw_text *out) {
    if (samples->n == 0) {
        stw_text_printf(out, "%*ssamples: []\n", indent, "");
        return;
    }
    stw_text_printf(out, "%*ssamples:\n", indent, "");
    for (uint32_t i = 0; i < samples->n; i++) {
        const stw_sample *s = &samples->items[i];
        stw_text_printf(out, "%*s- {what: ", indent, "");
        append_quoted(out, s->what);
        stw_text_printf(out, ", detail: ");
        append_quoted(out, s->detail);
        stw_text_printf(out, ", unit: ");
        append_quoted(out, s->unit);
        stw_text_printf(out, ", values: [");
        for (uint32_t v = 0; v < s->n && v < STW_SAMPLE_VALUES; v++) {
            char text[32];
            stw_text_double(rounded(s->values[v]), text, sizeof text);
            stw_text_printf(out, "%s%s", v > 0 ? ", " : "", text);
        }
        stw_text_printf(out, "]}\n");
    }
}
