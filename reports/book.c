/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/book.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reports/cost.h"
#include "reports/facts.h"
#include "reports/table.h"
#include "reports/verdict.h"

/* Costs that differ by less are equal: fewer GPUs decide. */
static const double SAME_COST = 0.01;

typedef struct question {
    const stw_sweep *sweep;
    uint32_t size; /* the axis of counts */
    uint32_t of;   /* the axis that asks; n_axes: none */
    bool priced;
} question;

/* The answer for one value. NULL: no such row. */
typedef struct answer {
    const char *value;                        /* of the axis that asks */
    const stw_sweep_row *book, *cheapest;     /* the fewest GPUs, the cheapest tokens */
    const stw_sweep_row *fewer, *risky, *any; /* tried with fewer GPUs; at risk; least memory */
} answer;

static uint32_t axis_of(const stw_sweep *sweep, const char *key) {
    for (uint32_t a = 0; a < sweep->n_axes; a++)
        if (strcmp(sweep->axes[a].key, key) == 0 && sweep->axes[a].n > 1) return a;
    return sweep->n_axes;
}

static bool ask(const stw_sweep *sweep, question *q) {
    *q = (question){.sweep = sweep, .size = axis_of(sweep, "nodes"), .priced = true};
    if (q->size == sweep->n_axes) return false;
    q->of = axis_of(sweep, "batch.seq_len");
    for (uint32_t a = 0; a < sweep->n_axes && axis_of(sweep, "batch.seq_len") == sweep->n_axes; a++)
        if (a != q->size && sweep->axes[a].n > 1 &&
            (q->of == sweep->n_axes || sweep->axes[a].n > sweep->axes[q->of].n))
            q->of = a;
    for (uint32_t i = 0; i < sweep->n_points; i++)
        if (stw_sweep_row_fits(&sweep->rows[i]))
            q->priced = q->priced && isfinite(stw_sweep_usd(&sweep->rows[i]));
    return true;
}

static const char *value_of(const question *q, const stw_sweep_row *row, uint32_t axis) {
    return stw_sweep_value(q->sweep, (uint32_t)(row - q->sweep->rows), axis);
}

static double cost_of(const question *q, const stw_sweep_row *row) {
    return q->priced ? stw_sweep_usd(row) : stw_sweep_gpu_hours(row);
}

static bool is_cheaper(const question *q, const stw_sweep_row *a, const stw_sweep_row *b,
                       double margin) {
    const double x = cost_of(q, a), y = cost_of(q, b);
    return isfinite(x) && (!isfinite(y) || x < y * (1 - margin));
}

/* Fewer GPUs; of as many, cheaper tokens. */
static bool is_smaller(const question *q, const stw_sweep_row *a, const stw_sweep_row *b) {
    return b == NULL || a->gpus < b->gpus || (a->gpus == b->gpus && is_cheaper(q, a, b, 0));
}

static void find(const question *q, const char *value, answer *out) {
    const stw_sweep *sweep = q->sweep;
    *out = (answer){.value = value};
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < sweep->n_points; i++) {
            const stw_sweep_row *row = &sweep->rows[i];
            if (q->of < sweep->n_axes && strcmp(stw_sweep_value(sweep, i, q->of), value) != 0)
                continue;
            if (row->gpus == 0) continue;
            if (pass == 1) { /* what is tried with fewer GPUs than are booked: the most of them */
                if (out->book != NULL && row->gpus < out->book->gpus &&
                    (out->fewer == NULL || row->gpus > out->fewer->gpus ||
                     (row->gpus == out->fewer->gpus && row->verdict == STW_SWEEP_AT_RISK)))
                    out->fewer = row;
                continue;
            }
            if (out->any == NULL || row->gpu_peak_bytes < out->any->gpu_peak_bytes) out->any = row;
            if (row->verdict == STW_SWEEP_AT_RISK && is_smaller(q, row, out->risky))
                out->risky = row;
            if (row->verdict != STW_SWEEP_FITS) continue;
            if (is_smaller(q, row, out->book)) out->book = row;
            if (out->cheapest == NULL || is_cheaper(q, row, out->cheapest, SAME_COST) ||
                (row->gpus < out->cheapest->gpus && !is_cheaper(q, out->cheapest, row, SAME_COST)))
                out->cheapest = row;
        }
}

/* "4 nodes" */
static stw_word nodes_of(const question *q, const stw_sweep_row *row) {
    stw_word w;
    const char *n = value_of(q, row, q->size);
    snprintf(w.text, sizeof w.text, "%.20s node%s", n, strcmp(n, "1") == 0 ? "" : "s");
    return w;
}

/* What else the row sets: "parallel.cp=2" */
static void put_settings(const question *q, const stw_sweep_row *row, stw_text *out) {
    for (uint32_t a = 0; a < q->sweep->n_axes; a++)
        if (a != q->size && a != q->of && q->sweep->axes[a].n > 1)
            stw_text_printf(out, "%s%s=%s", out->length > 0 ? " " : "", q->sweep->axes[a].key,
                            value_of(q, row, a));
}

/* Why not fewer, or why none: "2 nodes: at risk", "1 node: GPU memory in forward_backward" */
static void put_why(const question *q, const answer *a, stw_text *out) {
    const stw_sweep_row *row = a->book != NULL ? a->fewer : a->risky == NULL ? a->any : NULL;
    char bound[160] = "";
    if (row == NULL && a->book != NULL) stw_text_printf(out, "fewest tried");
    if (row == NULL && a->book == NULL) stw_text_printf(out, "none fits without risk");
    if (row == NULL) return;
    stw_bound_words(row->binds, bound, sizeof bound);
    stw_text_printf(out, "%s: %s", nodes_of(q, row).text,
                    row->verdict == STW_SWEEP_DOES_NOT_FIT && bound[0] != '\0'
                        ? bound
                        : stw_word_sweep_verdict(row->verdict));
    if (row->verdict == STW_SWEEP_DOES_NOT_FIT)
        stw_text_printf(out, " (%s)", stw_word_gib(row->gpu_peak_bytes).text);
}

/* "Book 1 node (8 GPUs) for batch.seq_len 4k to 32k, 4 nodes (32 GPUs) for 64k." */
static void put_sentence(const question *q, const answer *all, uint32_t n, stw_format format,
                         stw_text *out) {
    stw_text line = STW_TEXT_INIT;
    const bool asks = q->of < q->sweep->n_axes;
    for (uint32_t i = 0, last; i < n; i = last + 1) {
        char what[128] = "nothing that was tried fits";
        const stw_sweep_row *row = all[i].book != NULL ? all[i].book : all[i].risky;
        for (last = i; last + 1 < n;) {
            const answer *next = &all[last + 1];
            const stw_sweep_row *other = next->book != NULL ? next->book : next->risky;
            if ((row == NULL) != (other == NULL) || (all[i].book == NULL) != (next->book == NULL) ||
                (row != NULL && row->gpus != other->gpus))
                break;
            last++;
        }
        if (row != NULL)
            snprintf(what, sizeof what, "%s (%s GPU%s)%s", nodes_of(q, row).text,
                     stw_word_count(row->gpus).text, row->gpus == 1 ? "" : "s",
                     all[i].book == NULL ? ", at risk," : "");
        stw_text_printf(&line, "%s%s", i == 0 ? (row != NULL ? "Book " : "") : ", ", what);
        if (asks)
            stw_text_printf(&line, "%s%s%s%s%s%s", row != NULL ? " for " : " ",
                            i == 0 ? q->sweep->axes[q->of].key : "", i == 0 ? " " : "",
                            all[i].value,
                            last == i       ? ""
                            : last == i + 1 ? " and "
                                            : " to ",
                            last == i ? "" : all[last].value);
    }
    if (line.length > 0 && line.data[0] == 'n') line.data[0] = 'N';
    if (line.failed) out->failed = true;
    if (line.data != NULL) stw_doc_line(out, format, "%s.", line.data);
    stw_text_free(&line);
}

static void put_row(const question *q, const answer *a, stw_table *t) {
    const stw_sweep_row *row = a->book != NULL ? a->book : a->risky;
    stw_text settings = STW_TEXT_INIT, why = STW_TEXT_INIT;
    if (row != NULL) put_settings(q, row, &settings);
    put_why(q, a, &why);
    if (settings.failed || why.failed) t->failed = true;
    stw_table_cell(t, "%s", a->value);
    stw_table_cell(t, "%s%s", row != NULL ? nodes_of(q, row).text : "none",
                   a->book == NULL && row != NULL ? ", at risk" : "");
    stw_table_cell(t, "%s", settings.data != NULL ? settings.data : "");
    stw_table_cell(t, "%s", row != NULL ? stw_word_number(row->tokens_per_s).text : "");
    stw_table_cell(t, "%s",
                   row != NULL && q->priced
                       ? stw_word_number((double)row->gpus * row->usd_per_gpu_hour).text
                       : "");
    stw_table_cell(t, "%s", row != NULL ? stw_word_number(cost_of(q, row)).text : "");
    stw_table_cell(t, "%s", why.data != NULL ? why.data : "");
    stw_table_cell(t, "%s", a->cheapest != NULL ? nodes_of(q, a->cheapest).text : "");
    stw_table_cell(t, "%s", row != NULL ? stw_word_gib(row->gpu_peak_bytes).text : "");
    stw_text_free(&settings);
    stw_text_free(&why);
}

uint32_t stw_book_put(const stw_sweep *sweep, stw_format format, stw_pool *pool, stw_text *out) {
    question q;
    if (!ask(sweep, &q)) return 0;
    const uint32_t n = q.of < sweep->n_axes ? sweep->axes[q.of].n : 1;
    answer *all = stw_pool_array(pool, n, sizeof *all);
    const char *const heads[] = {q.of < sweep->n_axes ? sweep->axes[q.of].key : "",
                                 "book",
                                 "with",
                                 ">tokens/s",
                                 ">USD/h",
                                 q.priced ? ">USD per 1e9" : ">GPU-h per 1e9",
                                 "why not fewer",
                                 "cheapest",
                                 ">GPU peak"};
    stw_table t;
    if (all == NULL) {
        out->failed = true;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        find(&q, q.of < sweep->n_axes ? sweep->axes[q.of].values[i] : "", &all[i]);
    stw_doc_part(out, format, "answer");
    put_sentence(&q, all, n, format, out);
    stw_doc_part(out, format, "book");
    stw_table_begin(&t, pool, heads, sizeof heads / sizeof heads[0]);
    t.spare = 2;
    for (uint32_t i = 0; i < n; i++) put_row(&q, &all[i], &t);
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
    stw_table_write(&t, format, out);
    stw_doc_line(out, format,
                 "book: the fewest nodes that fit without risk. per 1e9: for 10^9 tokens.");
    stw_doc_part(out, format, "rows");
    return n;
}
