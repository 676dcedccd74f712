/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of file it is, by what it contains. CSV is one of the kinds: this file is linked with
 * its reader alone, hence its name. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/pickle.h"
#include "plan/measured/recording.h"

#define LIMIT_BYTES (4ull << 30)

/* The first line that is neither blank nor a comment. */
static void first_line(const char *text, size_t length, char *out, size_t size) {
    const char *at = text, *end = text + length;
    out[0] = '\0';
    while (at < end && out[0] == '\0') {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        while (at < stop && strchr(" \t\r", *at) != NULL) at++;
        size_t n = (size_t)(stop - at);
        if (n > 0 && *at != '#') {
            n = n < size ? n : size - 1;
            memcpy(out, at, n);
            out[n] = '\0';
        }
        at = stop + 1;
    }
}

/* A header has the name of some column between commas. */
static bool is_header(const char *line) {
    static const char *const names[] = {"time", "rank", "phase", "metric", "bytes"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = strlen(names[i]);
        for (const char *at = line; (at = strstr(at, names[i])) != NULL; at++) {
            char before = at > line ? at[-1] : ',', after = at[n];
            bool alone = (before == ',' || before == '"') && strchr(",\"\r", after) != NULL;
            if (alone && strchr(line, ',') != NULL) return true;
        }
    }
    return false;
}

static stw_status parse_log(stw_recording *samples, const char *file, const char *text,
                            size_t length, stw_error *err) {
    stw_status status = stw_recording_parse_log(samples, file, text, length, err);
    if (status == STW_STATUS_OK && samples->n == 0)
        return stw_fail(err, STW_STATUS_BAD_INPUT, file,
                        "found no measured bytes, expected a file of stowage run or stowage "
                        "record, a CSV with the columns time,rank,phase,metric,bytes, a log with "
                        "memory lines of a framework, or a memory snapshot of torch "
                        "(docs/validate.md)");
    return status;
}

stw_status stw_measured_parse(const char *file, const char *text, size_t length,
                              stw_run_result **out, stw_error *err) {
    stw_recording *samples = NULL;
    char line[256];
    first_line(text, length, line, sizeof line);
    stw_status status = stw_recording_new(file, &samples, err);
    if (status != STW_STATUS_OK) return status;
    if (stw_pickle_begins(text, length)) {
        status = stw_recording_parse_snapshot(samples, file, text, length, err);
    } else if (is_header(line)) {
        status = stw_recording_parse_csv(samples, file, text, length, err);
    } else if (line[0] == '{') { /* JSON lines have no schema */
        if (strstr(line, "\"schema\"") == NULL)
            status = stw_recording_parse_log(samples, file, text, length, err);
        if (status == STW_STATUS_OK && samples->n == 0) {
            stw_recording_free(samples);
            return stw_run_result_parse(file, text, length, out, err);
        }
    } else {
        status = parse_log(samples, file, text, length, err);
    }
    if (status == STW_STATUS_OK) status = stw_recording_fold(samples, out, err);
    stw_recording_free(samples);
    return status;
}

stw_status stw_measured_read(const char *path, stw_run_result **out, stw_error *err) {
    char *text = NULL;
    uint64_t length = 0;
    stw_status status = stw_file_read(path, LIMIT_BYTES, &text, &length, err);
    if (status == STW_STATUS_OK) status = stw_measured_parse(path, text, (size_t)length, out, err);
    free(text);
    return status;
}
