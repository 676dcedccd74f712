/* SPDX-License-Identifier: Apache-2.0 */
#include "reports/cost.h"

#include <math.h>
#include <stdio.h>

stw_word stw_word_usd(double usd) {
    stw_word w;
    if (usd < 1000)
        snprintf(w.text, sizeof w.text, "%.40s USD", stw_word_number(usd).text);
    else
        snprintf(w.text, sizeof w.text, "%.40s USD", stw_word_count((uint64_t)(usd + 0.5)).text);
    return w;
}

void stw_cost_of_plan(const stw_plan *plan, stw_format format, stw_text *out) {
    const double price = plan->cluster.usd_per_gpu_hour, iteration_s = stw_plan_iteration_s(plan);
    const double tokens = stw_plan_iteration_tokens(plan);
    const double usd = iteration_s / 3600 * plan->job->ranks * price;
    if (!(price > 0) || !(iteration_s > 0)) return;
    stw_doc_line(out, format,
                 "Cost at %s per GPU-hour: %s per iteration, %s per 1000, %s per 1e9 tokens.",
                 stw_word_usd(price).text, stw_word_usd(usd).text, stw_word_usd(1000 * usd).text,
                 tokens > 0 ? stw_word_usd(1e9 / tokens * usd).text : "unknown");
}

/* ---- which kind of GPU has the cheapest tokens ---- */

typedef struct choice {
    uint32_t candidates, priced; /* that fit with known seconds, and have a price */
    const stw_size_answer *best;
} choice;

/* Where nothing is without risk, what is at risk. */
static bool is_candidate(const stw_size_answer *a, stw_sweep_verdict verdict) {
    return a->fits && a->cheapest_row.verdict == verdict &&
           isfinite(stw_sweep_gpu_hours(&a->cheapest_row));
}

static double value_of(const stw_size_answer *a, bool by_price) {
    return by_price ? stw_sweep_usd(&a->cheapest_row) : stw_sweep_gpu_hours(&a->cheapest_row);
}

static choice choose_of(const stw_size_answer *answers, uint32_t n, stw_sweep_verdict verdict) {
    choice c = {.best = NULL};
    for (uint32_t i = 0; i < n; i++) {
        if (!is_candidate(&answers[i], verdict)) continue;
        c.candidates++;
        c.priced += answers[i].cheapest_row.usd_per_gpu_hour > 0;
    }
    const bool by_price = c.priced == c.candidates;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_candidate(&answers[i], verdict)) continue;
        if (c.best == NULL || value_of(&answers[i], by_price) < value_of(c.best, by_price))
            c.best = &answers[i];
    }
    return c;
}

static choice choose(const stw_size_answer *answers, uint32_t n) {
    const choice safe = choose_of(answers, n, STW_SWEEP_FITS);
    return safe.best != NULL ? safe : choose_of(answers, n, STW_SWEEP_AT_RISK);
}

static uint32_t of_model(const stw_size_answer *answers, uint32_t n, uint32_t first) {
    uint32_t end = first;
    while (end < n && answers[end].model == answers[first].model) end++;
    return end - first;
}

bool stw_size_is_cheapest(const stw_size_answer *answers, uint32_t n, const stw_size_answer *a) {
    for (uint32_t i = 0; i < n; i += of_model(answers, n, i))
        if (answers[i].model == a->model)
            return choose(answers + i, of_model(answers, n, i)).best == a;
    return false;
}

static void put_choice(const choice *c, stw_format format, stw_text *out) {
    const stw_size_answer *a = c->best;
    const uint64_t gpus = a->cheapest_row.gpus;
    char why[160];
    if (c->priced == c->candidates)
        snprintf(why, sizeof why, "%s per 1e9 tokens, by the prices that were given",
                 stw_word_usd(stw_sweep_usd(&a->cheapest_row)).text);
    else
        snprintf(why, sizeof why, "%s GPU-hours per 1e9 tokens; %s: --gpus KIND=USD,...",
                 stw_word_number(stw_sweep_gpu_hours(&a->cheapest_row)).text,
                 c->priced > 0 ? "by hours, as not every kind has a price"
                               : "no prices were given");
    stw_doc_line(out, format, "Cheapest tokens for %s: %llu GPU%s of %s%s (%s).", a->model->name,
                 (unsigned long long)gpus, gpus == 1 ? "" : "s", a->name,
                 a->cheapest_row.verdict == STW_SWEEP_AT_RISK ? ", at risk" : "", why);
}

void stw_size_recommend(const stw_size_answer *answers, uint32_t n, stw_format format,
                        stw_text *out) {
    for (uint32_t i = 0; i < n; i += of_model(answers, n, i)) {
        const choice c = choose(answers + i, of_model(answers, n, i));
        if (c.best != NULL && (c.candidates > 1 || c.priced > 0)) put_choice(&c, format, out);
    }
}
