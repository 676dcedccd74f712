/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/table.h"
#include "plan/measured/recording.h"

enum { TIME, RANK, PHASE, METRIC, BYTES, NODE, N_COLUMNS };

static const char *const columns[N_COLUMNS] = {"time", "rank", "phase", "metric", "bytes", "node"};

typedef struct reader {
    const stw_table *table;
    const stw_table_row *row;
    size_t at[N_COLUMNS]; /* SIZE_MAX: no such column */
    stw_error *err;
} reader;

static stw_status read_header(reader *r) {
    static const stw_table_row none = {.line = 1};
    r->row = r->table->n_rows > 0 ? &r->table->rows[0] : &none;
    for (size_t c = 0; c < N_COLUMNS; c++) r->at[c] = SIZE_MAX;
    for (size_t f = 0; f < r->row->n_fields; f++) {
        size_t c = 0;
        while (c < N_COLUMNS && strcmp(r->row->fields[f], columns[c]) != 0) c++;
        if (c == N_COLUMNS || r->at[c] != SIZE_MAX)
            return stw_table_fail(r->table, r->row, r->err,
                                  "found the column \"%.60s\"%s, expected the header "
                                  "time,rank,phase,metric,bytes and optionally node",
                                  r->row->fields[f], c < N_COLUMNS ? " twice" : "");
        r->at[c] = f;
    }
    for (size_t c = 0; c < NODE; c++)
        if (r->at[c] == SIZE_MAX)
            return stw_table_fail(r->table, r->row, r->err,
                                  "found no column \"%s\", expected the header "
                                  "time,rank,phase,metric,bytes and optionally node",
                                  columns[c]);
    return STW_STATUS_OK;
}

/* "" where the row is short: a mark need not have metric and bytes. */
static const char *field(const reader *r, size_t column) {
    return r->at[column] < r->row->n_fields ? r->row->fields[r->at[column]] : "";
}

static bool whole(const char *text, uint64_t most, uint64_t *out) {
    uint64_t value = 0;
    if (*text == '\0') return false;
    for (; *text >= '0' && *text <= '9'; text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (value > (most - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *out = value;
    return *text == '\0';
}

static stw_status refuse(const reader *r, size_t column, const char *expected) {
    return stw_table_fail(r->table, r->row, r->err, "%s: found \"%.60s\", expected %s",
                          columns[column], field(r, column), expected);
}

static stw_status read_phase(const reader *r, int *out) {
    stw_phase phase;
    char expected[400] = "\"end\" or one of";
    const char *text = field(r, PHASE);
    *out = STW_NO_PHASE;
    if (text[0] == '\0' || strcmp(text, "end") == 0) return STW_STATUS_OK;
    if (stw_phase_parse(text, &phase)) {
        *out = (int)phase;
        return STW_STATUS_OK;
    }
    for (int p = 0; p < STW_N_PHASES; p++) {
        size_t n = strlen(expected);
        snprintf(expected + n, sizeof expected - n, "%s %s", p > 0 ? "," : "",
                 stw_phase_name((stw_phase)p));
    }
    return refuse(r, PHASE, expected);
}

static stw_status read_metric(const reader *r, stw_metric *out) {
    const char *text = field(r, METRIC);
    for (int m = 0; m < STW_N_METRICS; m++) {
        *out = (stw_metric)m;
        if (strcmp(text, stw_metric_name(*out)) == 0) return STW_STATUS_OK;
    }
    return refuse(r, METRIC, "device, allocated, reserved, host, page_locked, or nothing");
}

/* What only a rank or only a node has. */
static stw_status check(const reader *r, const stw_recorded *s) {
    bool of_node = s->metric == STW_METRIC_HOST || s->metric == STW_METRIC_PAGE_LOCKED ||
                   s->metric == STW_METRIC_NONE;
    if (s->rank == STW_ALL_RANKS && !of_node)
        return refuse(r, RANK, "the number of a rank: these bytes are on a GPU");
    if (s->metric == STW_METRIC_NONE && field(r, PHASE)[0] == '\0')
        return refuse(r, PHASE, "a phase or \"end\": the row has no metric either");
    if (s->metric != STW_METRIC_NONE && strcmp(field(r, PHASE), "end") == 0)
        return refuse(r, PHASE, "a phase or nothing where bytes are given");
    return STW_STATUS_OK;
}

static stw_status read_row(const reader *r, stw_recorded *s) {
    char *end = NULL;
    uint64_t rank = 0, node = 0;
    *s = (stw_recorded){.rank = STW_ALL_RANKS};
    if (r->row->n_fields > N_COLUMNS || r->row->n_fields < 3)
        return stw_table_fail(r->table, r->row, r->err, "found %zu columns, expected 3 to 6",
                              r->row->n_fields);
    const char *time = field(r, TIME);
    s->time_s = strtod(time, &end);
    if (strspn(time, "0123456789.eE+-") != strlen(time) || time[0] == '-' || end == time ||
        *end != '\0' || !isfinite(s->time_s))
        return refuse(r, TIME, "seconds from 0 on, such as 1763840000.25");
    if (field(r, RANK)[0] != '\0') {
        if (!whole(field(r, RANK), INT32_MAX, &rank))
            return refuse(r, RANK, "the number of a rank, or nothing");
        s->rank = (int32_t)rank;
    }
    if (field(r, NODE)[0] != '\0' && !whole(field(r, NODE), UINT32_MAX, &node))
        return refuse(r, NODE, "the number of a node");
    s->node = (uint32_t)node;
    stw_status status = read_phase(r, &s->phase);
    if (status == STW_STATUS_OK) status = read_metric(r, &s->metric);
    if (status == STW_STATUS_OK && s->metric == STW_METRIC_NONE && field(r, BYTES)[0] != '\0')
        return refuse(r, BYTES, "nothing, because the row has no metric");
    if (status == STW_STATUS_OK && s->metric != STW_METRIC_NONE &&
        !whole(field(r, BYTES), INT64_MAX, &s->bytes))
        return refuse(r, BYTES, "a whole number of bytes");
    return status == STW_STATUS_OK ? check(r, s) : status;
}

static stw_status read_rows(stw_recording *samples, const stw_table *table, stw_error *err) {
    reader r = {.table = table, .err = err};
    stw_recorded sample;
    stw_status status = read_header(&r);
    for (size_t i = 1; i < table->n_rows && status == STW_STATUS_OK; i++) {
        r.row = &table->rows[i];
        status = read_row(&r, &sample);
        if (status == STW_STATUS_OK) status = stw_recording_add(samples, &sample, err);
    }
    return status;
}

stw_status stw_recording_parse_csv(stw_recording *samples, const char *file, const char *text,
                                   size_t length, stw_error *err) {
    stw_table table;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, file, "out of memory");
    stw_status status = stw_table_parse(pool, file, text, length, &table, err);
    if (status == STW_STATUS_OK) status = read_rows(samples, &table, err);
    stw_pool_free(pool);
    return status;
}

stw_status stw_recording_read_csv(stw_recording *samples, const char *path, stw_error *err) {
    stw_table table;
    stw_pool *pool = stw_pool_new();
    if (pool == NULL) return stw_fail(err, STW_STATUS_NO_MEMORY, path, "out of memory");
    stw_status status = stw_table_read(pool, path, &table, err);
    if (status == STW_STATUS_OK) status = read_rows(samples, &table, err);
    stw_pool_free(pool);
    return status;
}

stw_status stw_recording_to_csv(const stw_recording *samples, stw_text *out, stw_error *err) {
    stw_text_printf(out, "time,rank,phase,metric,bytes,node\n");
    for (size_t i = 0; i < samples->n; i++) {
        const stw_recorded *s = &samples->items[i];
        bool mark = s->metric == STW_METRIC_NONE;
        stw_text_printf(out, "%.6f,", s->time_s);
        if (s->rank != STW_ALL_RANKS) stw_text_printf(out, "%" PRId32, s->rank);
        stw_text_printf(out, ",%s,%s,",
                        s->phase != STW_NO_PHASE ? stw_phase_name((stw_phase)s->phase)
                        : mark                   ? "end"
                                                 : "",
                        stw_metric_name(s->metric));
        if (!mark) stw_text_printf(out, "%" PRIu64, s->bytes);
        stw_text_printf(out, ",%" PRIu32 "\n", s->node);
    }
    return stw_text_status(out, err);
}
