/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of logs. A key is found anywhere in a line, so that prefixes of launchers, dictionaries of
 * Python and JSON lines are read alike. docs/validate.md says which programs print which key. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "plan/measured/log_line.h"
#include "plan/measured/recording.h"

#define KIB 1024.0
#define MIB (1024.0 * KIB)
#define GIB (1024.0 * MIB)

enum { NO_SPAN = -1, MOST_DIGITS = 40 };

typedef enum scope {
    SCOPE_WORST, /* the highest of the ranks */
    SCOPE_SOME,  /* of a rank that is not named, or the highest of them */
    SCOPE_FIRST, /* rank 0 */
    SCOPE_NAMED, /* "[Rank 3]" */
    SCOPE_STEPS, /* rank 0 where steps are counted by global_step, else the highest of some */
    SCOPE_NODE   /* all processes of a node */
} scope;

typedef struct key {
    const char *name;
    double unit; /* bytes or seconds */
    stw_metric metric;
    scope scope;
    bool at_moment;
    int span;           /* of seconds, else NO_SPAN */
    bool mean, inverse; /* over the run so far; a rate */
    const char *beside; /* what the line must also contain, or NULL */
    const char *note;
} key;

#define BYTES(text, unit, metric, scope, moment)                                                   \
    { text, unit, STW_METRIC_##metric, SCOPE_##scope, moment, NO_SPAN, false, false, NULL, NULL }
#define REPORT(text, metric, moment)                                                               \
    {                                                                                              \
        text, MIB, STW_METRIC_##metric, SCOPE_NAMED, moment, NO_SPAN, false, false,                \
            "memory (MB) |", NULL                                                                  \
    }
#define NODE(text)                                                                                 \
    {                                                                                              \
        text, GIB, STW_METRIC_HOST, SCOPE_NODE, false, NO_SPAN, false, false, NULL,                \
            "used memory of the node, other processes included"                                    \
    }
#define SECONDS(text, unit, span)                                                                  \
    { text, unit, STW_METRIC_NONE, SCOPE_WORST, false, span, false, false, NULL, NULL }
#define SPEED(text, inverse)                                                                       \
    {                                                                                              \
        text, 1.0, STW_METRIC_NONE, SCOPE_WORST, false, STW_SPAN_ITERATION, true, inverse, NULL,   \
            NULL                                                                                   \
    }

static const key keys[] = {
    REPORT("max allocated", ALLOCATED, false),
    REPORT("max reserved", RESERVED, false),
    REPORT("total device memory used", DEVICE, true),
    SECONDS("elapsed time per iteration (ms)", 1e-3, STW_SPAN_ITERATION),
    BYTES("perf/max_memory_allocated_gb", GIB, ALLOCATED, SOME, false),
    BYTES("perf/max_memory_reserved_gb", GIB, RESERVED, SOME, false),
    BYTES("actor/perf/max_memory_allocated_gb", GIB, ALLOCATED, SOME, false),
    BYTES("actor/perf/max_memory_reserved_gb", GIB, RESERVED, SOME, false),
    NODE("perf/cpu_memory_used_gb"),
    NODE("actor/perf/cpu_memory_used_gb"),
    SECONDS("timing_s/gen", 1.0, STW_PHASE_ROLLOUT),
    SECONDS("timing_s/old_log_prob", 1.0, STW_PHASE_LOG_PROB),
    SECONDS("timing_s/update_actor", 1.0, STW_SPAN_TRAIN),
    SECONDS("timing_s/update_weights", 1.0, STW_PHASE_WEIGHT_SYNC),
    SECONDS("timing_s/save_checkpoint", 1.0, STW_PHASE_CHECKPOINT),
    SECONDS("timing_s/step", 1.0, STW_SPAN_ITERATION),
    BYTES("memory allocated (GB)", GIB, ALLOCATED, FIRST, true),
    BYTES("memory reserved (GB)", GIB, RESERVED, FIRST, true),
    BYTES("device memory used/total (GB)", GIB, DEVICE, FIRST, true),
    BYTES("memory allocated (MB)", MIB, ALLOCATED, FIRST, true),
    BYTES("memory reserved (MB)", MIB, RESERVED, FIRST, true),
    BYTES("device memory used/total (MB)", MIB, DEVICE, FIRST, true),
    BYTES("memory(GiB)", GIB, RESERVED, STEPS, false),
    SPEED("train_speed(s/it)", false),
    SPEED("train_speed(iter/s)", true),
};

typedef struct reader {
    stw_recording *samples;
    const char *file;
    int number;       /* of the line */
    const char *line; /* NUL-terminated, without escape sequences */
    stw_error *err;
} reader;

static stw_status refuse(const reader *r, const char *name, const char *found,
                         const char *expected) {
    char quoted[160], cut[MOST_DIGITS + 1];
    found += strspn(found, " \"'");
    size_t n = strcspn(found, ",}\"'");
    snprintf(cut, sizeof cut, "%.*s", (int)(n < MOST_DIGITS ? n : MOST_DIGITS), found);
    stw_text_quote(cut, quoted, sizeof quoted);
    return stw_fail_at(r->err, STW_STATUS_BAD_INPUT, r->file, r->number, 0,
                       "%s: found %s, expected %s", name, quoted, expected);
}

static bool in_word(char c) { return isalnum((unsigned char)c) || strchr("_/.-", c) != NULL; }

/* What follows `NAME:`, `"NAME":` or `'NAME':` in the line; NULL: it is not there. */
static const char *value_of(const char *line, const char *name) {
    size_t n = strlen(name);
    for (const char *at = line; (at = strstr(at, name)) != NULL; at += n) {
        const char *end = at + n;
        if (at > line && in_word(at[-1])) continue;
        if (*end == '"' || *end == '\'') end++;
        while (*end == ' ') end++;
        if (*end == ':') return end + 1;
    }
    return NULL;
}

/* What was read is not the whole: 12GiB, 1,234.5, 1_000. */
static bool goes_on(const char *end) {
    const bool grouped = *end == ',' || *end == '_' || *end == '.';
    return isalpha((unsigned char)*end) || (grouped && isdigit((unsigned char)end[1]));
}

/* A number that may be quoted or printed as a scalar of an array library: 1.5, '1.5',
 * np.float64(1.5). */
static stw_status number(const reader *r, const char *name, const char *at, double *out) {
    static const char *const wrapped[] = {"np.float64(", "np.float32("};
    char *end = NULL;
    while (*at == ' ' || *at == '"' || *at == '\'') at++;
    for (size_t w = 0; w < sizeof wrapped / sizeof wrapped[0]; w++)
        if (strncmp(at, wrapped[w], strlen(wrapped[w])) == 0) at += strlen(wrapped[w]);
    bool decimal = isdigit((unsigned char)at[0]) && at[1] != 'x' && at[1] != 'X';
    *out = decimal ? strtod(at, &end) : 0.0;
    if (!decimal || !isfinite(*out) || goes_on(end)) return refuse(r, name, at, "a number");
    return STW_STATUS_OK;
}

static stw_status rank_of(const reader *r, const key *k, int32_t *out) {
    *out = STW_WORST_RANK;
    if (k->scope == SCOPE_FIRST) *out = 0;
    if (k->scope == SCOPE_SOME) *out = STW_SOME_RANK;
    if (k->scope == SCOPE_NODE) *out = STW_ALL_RANKS;
    if (k->scope == SCOPE_STEPS && strstr(r->line, "global_step/max_steps") != NULL) *out = 0;
    if (k->scope != SCOPE_NAMED) return STW_STATUS_OK;
    const char *at = strstr(r->line, "[Rank ");
    char *end = NULL;
    if (at == NULL) return refuse(r, k->name, r->line, "\"[Rank N]\" before it");
    long rank = isdigit((unsigned char)at[6]) ? strtol(at + 6, &end, 10) : -1;
    if (rank < 0 || rank > INT32_MAX / 2 || *end != ']')
        return refuse(r, "[Rank", at, "the number of a rank");
    *out = (int32_t)rank;
    return STW_STATUS_OK;
}

static const char *where(const reader *r, const key *k) {
    return stw_pool_printf(r->samples->pool, "line %d, %s", r->number, k->name);
}

/* The allocator holds what it held at most: so does the device. */
static bool at_peak(const char *line) {
    const char *now = strstr(line, "| reserved:"), *most = strstr(line, "| max reserved:");
    return now != NULL && most != NULL &&
           strtod(now + strlen("| reserved:"), NULL) >=
               strtod(most + strlen("| max reserved:"), NULL);
}

static stw_status add_bytes(const reader *r, const key *k, double value) {
    stw_recorded sample = {.phase = STW_EVERY_PHASE, .metric = k->metric, .note = k->note};
    stw_status status = rank_of(r, k, &sample.rank);
    if (status != STW_STATUS_OK) return status;
    if (value * k->unit >= (double)INT64_MAX)
        return refuse(r, k->name, value_of(r->line, k->name), "fewer bytes");
    sample.bytes = (uint64_t)(value * k->unit + 0.5);
    sample.at_moment = k->at_moment;
    if (k->metric == STW_METRIC_DEVICE && k->beside != NULL && at_peak(r->line))
        sample.at_moment = false;
    sample.from = where(r, k);
    if (sample.from == NULL)
        return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->file, "out of memory for samples");
    return stw_recording_add(r->samples, &sample, r->err);
}

static stw_status add_seconds(const reader *r, const key *k, double value) {
    if (value <= 0) return STW_STATUS_OK; /* nothing was timed yet */
    const stw_recorded_time time = {.span = k->span,
                                    .seconds = k->inverse ? 1.0 / value : value * k->unit,
                                    .mean = k->mean,
                                    .from = where(r, k)};
    if (time.from == NULL)
        return stw_fail(r->err, STW_STATUS_NO_MEMORY, r->file, "out of memory for samples");
    return stw_recording_add_time(r->samples, &time, r->err);
}

static stw_status read_line(const reader *r) {
    stw_status status = STW_STATUS_OK;
    double value = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && status == STW_STATUS_OK; i++) {
        const key *k = &keys[i];
        const char *at = value_of(r->line, k->name);
        if (at == NULL || (k->beside != NULL && strstr(r->line, k->beside) == NULL)) continue;
        status = number(r, k->name, at, &value);
        if (status != STW_STATUS_OK) return status;
        status = k->span == NO_SPAN ? add_bytes(r, k, value) : add_seconds(r, k, value);
    }
    return status;
}

stw_status stw_recording_parse_log(stw_recording *samples, const char *file, const char *text,
                                   size_t length, stw_error *err) {
    stw_text line = STW_TEXT_INIT;
    reader r = {.samples = samples, .file = file, .number = 1, .err = err};
    stw_status status = STW_STATUS_OK;
    for (const char *at = text, *end = text + length; at < end && status == STW_STATUS_OK; at++) {
        at = stw_log_line(at, end, &line);
        status = stw_text_status(&line, err);
        r.line = line.data != NULL ? line.data : "";
        if (status == STW_STATUS_OK) status = read_line(&r);
        if (at < end && *at == '\n') r.number++;
    }
    stw_text_free(&line);
    return status;
}
