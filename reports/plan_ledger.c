/* SPDX-License-Identifier: Apache-2.0 */
/* The host ledger: lines of the fullest node, one column per phase, and what limits their sum. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "reports/plan_sections.h"

#define MOST_LINES 48

typedef struct row {
    stw_ledger_line line; /* its bytes are those of no phase */
    uint64_t bytes[STW_N_PHASES];
} row;

static row *row_of(row *rows, uint32_t *n, const stw_ledger_line *line) {
    for (uint32_t i = 0; i < *n; i++)
        if (rows[i].line.component == line->component &&
            rows[i].line.page_locked == line->page_locked &&
            strcmp(rows[i].line.from, line->from) == 0)
            return &rows[i];
    if (*n == MOST_LINES) return NULL;
    rows[*n] = (row){.line = *line};
    return &rows[(*n)++];
}

static uint32_t gather(const stw_section *s, uint32_t node_kind, row *rows) {
    uint32_t n = 0;
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        stw_ledger ledger;
        if (!s->plan->node_peaks[node_kind].has[p]) continue;
        if (stw_plan_ledger(s->plan, node_kind, (stw_phase)p, &ledger, NULL) != STW_STATUS_OK) {
            s->out->failed = true;
            return 0;
        }
        for (uint32_t i = 0; i < ledger.n; i++) {
            row *found = row_of(rows, &n, &ledger.lines[i]);
            if (found != NULL) found->bytes[p] = ledger.lines[i].bytes;
        }
    }
    return n;
}

static void put_limits(const stw_section *s) {
    const stw_cluster *c = &s->plan->cluster;
    stw_doc_line(s->out, s->format,
                 "Limits: memory %s (node.host.memory), cgroup %s "
                 "(node.host.limit).",
                 stw_word_gib(c->host.memory_bytes).text, stw_word_gib(c->host.limit_bytes).text);
    if (c->host.kill_share < 1)
        stw_doc_line(s->out, s->format,
                     "A scheduler kills at %g%% of the smaller one (node.host.kill_share): %s.",
                     100 * c->host.kill_share, stw_word_gib(s->facts->host_capacity).text);
    if (c->host.object_store_bytes > 0 && c->host.shm_bytes != STW_UNLIMITED)
        stw_doc_line(
            s->out, s->format, "/dev/shm: %s (node.host.shm), of which the object store takes %s.",
            stw_word_gib(c->host.shm_bytes).text, stw_word_gib(c->host.object_store_bytes).text);
    if (c->host.page_lock_limit_bytes != STW_UNLIMITED)
        stw_doc_line(s->out, s->format, "Page-locked: at most %s (node.host.page_lock_limit).",
                     stw_word_gib(c->host.page_lock_limit_bytes).text);
}

void stw_section_ledger(const stw_section *s) {
    const stw_plan_facts *f = s->facts;
    const stw_plan *plan = s->plan;
    const char *heads[STW_N_PHASES + 3] = {"component", "memory"};
    unsigned columns = 2;
    if (f->host_phase == STW_N_PHASES || plan->node_peaks == NULL) return;
    const uint32_t node_kind = f->phases[f->host_phase].host_kind;
    row *rows = stw_pool_array(s->pool, MOST_LINES, sizeof *rows);
    char *titles = stw_pool_array(s->pool, STW_N_PHASES, 32);
    if (rows == NULL || titles == NULL) {
        s->out->failed = true;
        return;
    }
    const uint32_t n = gather(s, node_kind, rows);
    for (unsigned p = 0; p < STW_N_PHASES; p++) {
        if (!plan->node_peaks[node_kind].has[p]) continue;
        snprintf(titles + 32 * p, 32, ">%s", stw_phase_name((stw_phase)p));
        heads[columns++] = titles + 32 * p;
    }
    heads[columns++] = "where it comes from";
    stw_table t;
    stw_table_begin(&t, s->pool, heads, columns);
    for (uint32_t i = 0; i < n; i++) {
        stw_table_cell(&t, "%s", stw_component_name(rows[i].line.component));
        stw_table_cell(&t, "%s", rows[i].line.page_locked ? "page-locked" : "pageable");
        for (unsigned p = 0; p < STW_N_PHASES; p++)
            if (plan->node_peaks[node_kind].has[p])
                stw_table_cell(&t, "%s",
                               rows[i].bytes[p] > 0 ? stw_word_gib(rows[i].bytes[p]).text : "");
        stw_table_cell(&t, "%s", rows[i].line.from);
    }
    stw_doc_heading(s->out, s->format, "Host memory of the fullest node, line by line");
    put_limits(s);
    stw_table_write(&t, s->format, s->out);
}
