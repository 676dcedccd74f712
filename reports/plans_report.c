/* SPDX-License-Identifier: Apache-2.0 */
/* Several plans beside each other: how many fit, the cheapest of each model, one row for each. */
#include <math.h>
#include <string.h>

#include "core/checked.h"
#include "reports/cost.h"
#include "reports/plan_sections.h"
#include "reports/verdict.h"

typedef struct entry {
    const stw_plan *plan;
    const char *name;
    char cluster[96];
    uint64_t gpu_held, gpu_limit, host_peak;
    double gpu_hours, usd; /* of 10^9 tokens; NaN: not known */
} entry;

static void fill(const stw_plan *plan, const char *name, entry *out) {
    stw_plan_facts facts;
    const double price = plan->cluster.usd_per_gpu_hour;
    const double tokens = plan->model->facts_known ? stw_plan_iteration_tokens(plan) : (double)NAN;
    stw_plan_facts_get(plan, &facts);
    *out = (entry){.plan = plan,
                   .name = name,
                   .gpu_held = stw_max_u64(facts.gpu_peak, facts.gpu_reserved),
                   .gpu_limit = facts.gpu_capacity,
                   .host_peak = facts.host_peak,
                   .gpu_hours = NAN,
                   .usd = NAN};
    stw_section_cluster_name(&plan->cluster, out->cluster, sizeof out->cluster);
    if (plan->verdict == STW_VERDICT_DOES_NOT_FIT) return;
    out->gpu_hours = stw_plan_iteration_s(plan) / 3600 * plan->job->ranks * 1e9 / tokens;
    if (price > 0) out->usd = out->gpu_hours * price;
}

/* "4 of 9 plans fit, 1 is at risk." */
static void put_counts(const entry *e, size_t n, stw_format format, stw_text *out) {
    size_t fits = 0, risky = 0;
    for (size_t i = 0; i < n; i++) {
        fits += e[i].plan->verdict == STW_VERDICT_FITS;
        risky += e[i].plan->verdict == STW_VERDICT_AT_RISK;
    }
    stw_text line = STW_TEXT_INIT;
    if (fits == n)
        stw_text_printf(&line, "All %zu plans fit", n);
    else
        stw_text_printf(&line, "%zu of %zu plans fit%s", fits, n, fits == 1 ? "s" : "");
    if (risky > 0) stw_text_printf(&line, ", %zu %s at risk", risky, risky == 1 ? "is" : "are");
    if (line.failed) out->failed = true;
    if (line.data != NULL) stw_doc_line(out, format, "%s.", line.data);
    stw_text_free(&line);
}

/* Costs compare by price where all of a model's plans have one, else by GPU-hours. */
static void put_cheapest(const entry *e, size_t n, size_t first, stw_format format, stw_text *out) {
    const char *model = e[first].plan->model->name;
    const entry *best = NULL;
    bool priced = true;
    size_t of_model = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(e[i].plan->model->name, model) != 0) continue;
        if (i < first) return; /* said */
        of_model++;
        if (isfinite(e[i].gpu_hours)) priced = priced && isfinite(e[i].usd);
    }
    for (size_t i = first; i < n; i++) {
        if (strcmp(e[i].plan->model->name, model) != 0 || !isfinite(e[i].gpu_hours) ||
            e[i].plan->verdict != STW_VERDICT_FITS)
            continue;
        if (best == NULL || (priced ? e[i].usd < best->usd : e[i].gpu_hours < best->gpu_hours))
            best = &e[i];
    }
    if (of_model < 2) return;
    if (best == NULL)
        stw_doc_item(out, format, "%s: no plan fits without risk and has known seconds.", model);
    else
        stw_doc_item(out, format, "%s is cheapest on %s (%s): %s GPU-hours%s%s for 10^9 tokens.",
                     model, best->cluster, best->name, stw_word_number(best->gpu_hours).text,
                     priced ? ", " : "", priced ? stw_word_usd(best->usd).text : "");
}

static void put_row(const entry *e, bool models, bool clusters, stw_table *t) {
    const stw_plan *plan = e->plan;
    const double iteration_s = stw_plan_iteration_s(plan);
    const bool timed = isfinite(e->gpu_hours);
    stw_table_cell(t, "%s", e->name);
    stw_table_cell(t, "%s", models ? plan->model->name : "");
    stw_table_cell(t, "%s", clusters ? e->cluster : "");
    stw_table_cell(t, "%s", stw_word_verdict(plan->verdict));
    stw_table_cell(t, "%u", (unsigned)plan->job->ranks);
    stw_table_cell(t, "%s", stw_word_share((double)e->gpu_held, (double)e->gpu_limit).text);
    stw_table_cell(t, "%s", timed ? stw_word_number(e->gpu_hours).text : "");
    stw_table_cell(t, "%s", isfinite(e->usd) ? stw_word_number(e->usd).text : "");
    stw_table_cell(t, "%s", timed ? stw_word_seconds(iteration_s).text : "");
    stw_table_cell(t, "%s", stw_word_gib(e->host_peak).text);
}

static void put_rows(const entry *e, size_t n, stw_format format, stw_pool *pool, stw_text *out) {
    static const char *const heads[] = {
        "file",        "model",          "cluster",      "verdict",    ">GPUs",
        ">GPU memory", ">GPU-h per 1e9", ">USD per 1e9", ">iteration", ">worst node"};
    bool models = false, clusters = false;
    stw_table t;
    for (size_t i = 1; i < n; i++) {
        models |= strcmp(e[i].plan->model->name, e[0].plan->model->name) != 0;
        clusters |= strcmp(e[i].cluster, e[0].cluster) != 0;
    }
    stw_table_begin(&t, pool, heads, 10);
    t.spare = 2;
    for (size_t i = 0; i < n; i++) put_row(&e[i], models, clusters, &t);
    if (format == STW_FORMAT_TERMINAL) stw_text_printf(out, "\n");
    stw_table_write(&t, format, out);
    stw_doc_line(out, format,
                 "GPU memory: of its limit, on the worst GPU. per 1e9: for 10^9 tokens.");
}

stw_status stw_report_plans(const stw_plan *const *plans, const char *const *names, size_t n,
                            stw_format format, stw_text *out, stw_error *err) {
    stw_pool *pool = stw_pool_new();
    entry *entries = pool != NULL ? stw_pool_array(pool, n, sizeof *entries) : NULL;
    if (entries == NULL) {
        stw_pool_free(pool);
        return stw_fail(err, STW_STATUS_NO_MEMORY, NULL, "out of memory for a report");
    }
    for (size_t i = 0; i < n; i++) fill(plans[i], names[i], &entries[i]);
    stw_doc_title(out, format, "Capacity report: %zu plans", n);
    put_counts(entries, n, format, out);
    for (size_t i = 0; i < n; i++) put_cheapest(entries, n, i, format, out);
    put_rows(entries, n, format, pool, out);
    stw_pool_free(pool);
    return stw_text_status(out, err);
}
