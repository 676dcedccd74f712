/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of a calibration share: a clock of each thread's own that goes on with the work
 * that is counted, and samples as text. */
#ifndef STW_TESTS_UNIT_PROBE_CASE_H
#define STW_TESTS_UNIT_PROBE_CASE_H

#include <math.h>
#include <stdlib.h>

#include "backend/probe/probe.h"
#include "core/log.h"
#include "tests/unit/testing.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static _Thread_local double clock_s; /* each thread begins at 0 */
double __wrap_stw_process_now_s(void);
double __wrap_stw_process_now_s(void) { return clock_s; }

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static char logged[2000];
static void keep_log(stw_log_level level, const char *text, void *user) {
    size_t used = strlen(logged);
    (void)level;
    (void)user;
    snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

/* All samples: what, detail, unit and number of values, one a line. */
static const char *list_of(const stw_samples *samples) {
    static char text[3000];
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < samples->n; i++) {
        const stw_sample *s = &samples->items[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s | %s | %s | %u\n", s->what,
                                 s->detail, s->unit, s->n);
    }
    return text;
}

/* Do all values of a sample lie there? */
static bool all_are(const stw_samples *samples, const char *what, double expected) {
    const stw_sample *s = stw_samples_find(samples, what, NULL);
    bool good = s != NULL && s->n > 0;
    for (uint32_t i = 0; good && i < s->n; i++) good = near(s->values[i], expected);
    if (!good) fprintf(stderr, "%s: %g, expected %g\n", what, s ? s->values[0] : 0.0, expected);
    return good;
}

#endif
